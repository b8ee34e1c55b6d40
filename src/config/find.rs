//! Which settings file: `--config`, else `ONCEWARD_CONFIG`, else the system's place. Looks at no file.

use std::path::{Path, PathBuf};

/// The system's place.
pub const SYSTEM: &str = "/etc/onceward/onceward.toml";

/// The path; whether it exists is the loader's matter.
pub fn find(given: Option<&Path>, environment: Option<&str>) -> PathBuf {
    match (given, environment.filter(|text| !text.is_empty())) {
        (Some(path), _) => path.to_owned(),
        (None, Some(path)) => path.into(),
        (None, None) => SYSTEM.into(),
    }
}
