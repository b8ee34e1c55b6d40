//! Which settings file is meant: `--config`, else `ONCEWARD_CONFIG`, else the usual place.
//!
//! Does not look whether it is there; loading says so.

use std::path::{Path, PathBuf};

/// The usual place.
pub const DEFAULT_PATH: &str = "/etc/onceward/onceward.toml";

/// The settings file: `cli` is `--config`, `env` the value of `ONCEWARD_CONFIG` (empty counts as not set).
pub fn find(cli: Option<&Path>, env: Option<&str>) -> PathBuf {
    match (cli, env) {
        (Some(path), _) => path.to_path_buf(),
        (None, Some(path)) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from(DEFAULT_PATH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_to_the_user_wins() {
        let cli = Some(Path::new("a.toml"));
        for (cli, env, expected) in [
            (cli, Some("b.toml"), "a.toml"),
            (cli, None, "a.toml"),
            (None, Some("b.toml"), "b.toml"),
            (None, Some(""), DEFAULT_PATH),
            (None, None, "/etc/onceward/onceward.toml"),
        ] {
            assert_eq!(find(cli, env), Path::new(expected));
        }
    }
}
