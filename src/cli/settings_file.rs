//! Where the settings are, and loading them with the documented exit codes.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::config::{self, Settings};

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

    /// The one that is named, by `--config` or `ONCEWARD_CONFIG`; `None` = nobody named one.
    pub fn named(given: Option<&Path>) -> Option<Self> {
        let env = std::env::var("ONCEWARD_CONFIG").is_ok_and(|path| !path.is_empty());
        (given.is_some() || env).then(|| Self::find(given))
    }

    /// With secrets: for `run` and `check`.
    pub fn load(&self) -> Result<Settings, Failure> {
        Settings::load(&self.path).map_err(|error| {
            let text = error.to_string();
            // Only the secrets are out of reach: the settings are right, the user is not.
            if text.contains("Permission denied") && Settings::load_without_secrets(&self.path).is_ok() {
                let hint =
                    "run it as the agent's user, who may read the secrets: sudo -u onceward onceward ...";
                return Failure::new(crate::exit::NOT_PERMITTED, format!("{text}\n{hint}"));
            }
            self.failure(&error)
        })
    }

    /// Without secrets: for what goes by the rules of the settings (`enqueue`, `purge`), and would go by others where they
    /// have a mistake.
    pub fn load_without_secrets(&self) -> Result<Settings, Failure> {
        Settings::load_without_secrets(&self.path).map_err(|error| self.failure(&error))
    }

    /// For the operator's commands, which need the state folder and the zone alone: a mistake elsewhere in the file is
    /// said on stderr and does not make the operator blind.
    pub fn load_for_looking(&self) -> Result<Settings, Failure> {
        let (settings, mistakes) =
            Settings::load_despite_mistakes(&self.path).map_err(|error| self.failure(&error))?;
        if let Some(error) = mistakes {
            super::output::complain!(
                "{}\n(going on: only the state folder and the zone are needed)",
                super::output::plain_lines(&error.to_string())
            );
        }
        Ok(settings)
    }

    /// The names of all destinations, for whoever acts on every one of them: none may be missing for a mistake, but one
    /// in a section that has nothing to do with them is no obstacle.
    pub fn destinations(&self) -> Result<Vec<String>, Failure> {
        const OTHERS: [&str; 8] =
            ["[agent]", "[relay]", "[worker]", "[retry]", "[class", "[listen]", "[alert]", "[retention]"];
        let (settings, mistakes) =
            Settings::load_despite_mistakes(&self.path).map_err(|error| self.failure(&error))?;
        let elsewhere = |place: &str| OTHERS.iter().any(|other| place.starts_with(other));
        match mistakes {
            Some(error) if !error.problems().iter().all(|problem| elsewhere(&problem.place)) => {
                Err(self.failure(&error))
            }
            _ => Ok(settings.destinations.into_iter().map(|one| one.name).collect()),
        }
    }

    fn failure(&self, error: &crate::config::SettingsError) -> Failure {
        Failure::new(error.exit_code(), error.to_string())
    }
}
