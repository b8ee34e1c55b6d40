//! Where the settings are, and loading them with the documented exit codes.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::config::{self, Settings};
use crate::exit;

/// The settings file of this call.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    /// Its path; it may not exist.
    pub path: PathBuf,
    /// `--source`: which outbox a command is about; `None` = outbox.db.
    pub source: Option<String>,
}

impl SettingsFile {
    /// `--config`, else `ONCEWARD_CONFIG`, else the system's place.
    pub fn find(given: Option<&Path>) -> Self {
        Self { path: config::find(given, std::env::var("ONCEWARD_CONFIG").ok().as_deref()), source: None }
    }

    /// With the outbox that the command is about.
    pub fn with_source(self, source: Option<String>) -> Self {
        Self { source, ..self }
    }

    /// With secrets: for `run` and `check`.
    pub fn load(&self) -> Result<Settings, Failure> {
        Settings::load(&self.path).map_err(|error| self.failure(&error))
    }

    /// Without secrets: for commands that only look or put.
    pub fn load_without_secrets(&self) -> Result<Settings, Failure> {
        Settings::load_without_secrets(&self.path).map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &crate::config::SettingsError) -> Failure {
        let code = error.exit_code();
        let hint = if code == exit::NO_INPUT {
            "\nMake one with `onceward init --dir DIR` and name it by --config or ONCEWARD_CONFIG."
        } else {
            ""
        };
        Failure::new(code, format!("{error}{hint}"))
    }
}
