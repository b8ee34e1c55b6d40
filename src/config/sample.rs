//! The commented settings file that `init` writes.

use std::path::Path;

/// With the paths filled in.
pub fn sample(state_dir: &Path, socket: &Path) -> String {
    include_str!("sample.toml")
        .replace("@STATE_DIR@", &state_dir.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
        .replace("@SOCKET@", &socket.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}
