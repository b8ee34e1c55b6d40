//! The commented settings file that `onceward init` writes.
//!
//! Text only: writes nothing. Every key is in it; what is a default is commented out.

use std::path::Path;

/// The file beside the settings, mode 0600, that the sample's BizPpurio password is read from.
pub const SAMPLE_PASSWORD_FILE: &str = "bizppurio.password";

/// The settings file with these two places filled in. A path that is not UTF-8 cannot be written in TOML: its
/// odd bytes become U+FFFD.
pub fn sample(state_dir: &Path, socket: &Path) -> String {
    include_str!("sample.toml")
        .replace("@STATE_DIR@", &quoted(state_dir))
        .replace("@SOCKET@", &quoted(socket))
}

/// A path as TOML text.
fn quoted(path: &Path) -> String {
    let mut text = String::from("\"");
    for character in path.to_string_lossy().chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            control if control.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(control))),
            plain => text.push(plain),
        }
    }
    text.push('"');
    text
}
