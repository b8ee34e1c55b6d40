//! Secrets: `credential:NAME`, `file:PATH`, `env:NAME`; read when the settings are loaded, never written anywhere.
//!
//! The only file of the settings that reads the environment or another file, behind a seam for tests.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::Secret;
use super::problems::Wrong;

/// How a secret is written.
pub(super) const EXPECTED: &str = r#""credential:NAME", "file:PATH" or "env:NAME""#;

/// Where secrets come from.
pub trait SecretSource {
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<String>;
    /// A file's text, or what is wrong with it, for people.
    fn file(&self, path: &Path) -> Result<String, String>;
}

/// The process's environment and file system.
pub struct System;

impl SecretSource for System {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
    fn file(&self, path: &Path) -> Result<String, String> {
        let metadata = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(format!("{p}: others can read it; run `chmod 600 {p}`", p = path.display()));
        }
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Reads the reference, or checks its form alone where there is no source.
pub(super) fn read(text: &str, beside: &Path, source: Option<&dyn SecretSource>) -> Result<Secret, Wrong> {
    let reference = Reference::parse(text).ok_or_else(|| {
        // The value itself may be a password: it is not shown.
        Wrong::new(format!("a secret is not written here; {EXPECTED} was expected"))
    })?;
    let Some(source) = source else { return Ok(Secret::new(String::new())) };
    let value = match reference {
        Reference::Variable(name) => {
            source.variable(name).ok_or_else(|| Wrong::new(format!("the environment has no {name}")))?
        }
        Reference::Credential(name) => {
            let folder = source
                .variable("CREDENTIALS_DIRECTORY")
                .ok_or_else(|| Wrong::new(format!("there is no $CREDENTIALS_DIRECTORY: credential:{name} works under systemd (LoadCredential={name}:PATH)")))?;
            // systemd makes these files readable to the service alone, by other means than the mode.
            std::fs::read_to_string(PathBuf::from(folder).join(name))
                .map_err(|error| Wrong::new(format!("credential {name}: {error}")))?
        }
        Reference::File(path) => source.file(&beside.join(path)).map_err(Wrong::new)?,
    };
    let value = value.strip_suffix('\n').unwrap_or(&value);
    if value.is_empty() || value.contains(['\n', '\0']) {
        return Err(Wrong::new("the secret must be one line that is not empty"));
    }
    Ok(Secret::new(value.to_owned()))
}

enum Reference<'t> {
    Credential(&'t str),
    File(&'t Path),
    Variable(&'t str),
}

impl<'t> Reference<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let (way, rest) = text.split_once(':')?;
        let name = !rest.is_empty()
            && rest.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        match way {
            "credential" if name => Some(Self::Credential(rest)),
            "env" if name => Some(Self::Variable(rest)),
            "file" if !rest.is_empty() => Some(Self::File(Path::new(rest))),
            _ => None,
        }
    }
}
