//! One agent per state folder (F27): an OS lock on `inbox/agent.lock`, whose content names its holder.
//!
//! The lock lives as long as the process; a crash frees it. The file is none of SQLite's three.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::clock::wall_ms;
use crate::message::OwnerId;

/// The files of a state folder.
#[derive(Clone, Debug)]
pub struct StateDir {
    /// The folder.
    pub root: PathBuf,
}

impl StateDir {
    /// Names only; touches nothing.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
    /// `outbox/`
    pub fn outbox_dir(&self) -> PathBuf {
        self.root.join("outbox")
    }
    /// `inbox/`
    pub fn inbox_dir(&self) -> PathBuf {
        self.root.join("inbox")
    }
    /// `outbox/outbox.db`
    pub fn outbox(&self) -> PathBuf {
        self.outbox_dir().join("outbox.db")
    }
    /// `inbox/inbox.db`
    pub fn inbox(&self) -> PathBuf {
        self.inbox_dir().join("inbox.db")
    }
    /// `inbox/agent.lock`
    pub fn lock(&self) -> PathBuf {
        self.inbox_dir().join("agent.lock")
    }
}

/// Holding it means: this process is the agent of the folder.
#[derive(Debug)]
pub struct Ownership {
    file: File,
}

/// Why the folder cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Another agent has it.
    #[error(
        "{path}: another agent is running on this state folder: {holder}; stop it first, or use another state_dir"
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Its content: who holds it.
        holder: String,
    },
    /// The lock file cannot be made or read.
    #[error(
        "{path}: {source}; check that the folder exists and belongs to the agent's user (see `onceward init`)"
    )]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Takes the folder, or says who has it.
pub fn take(state: &StateDir, config: &Path) -> Result<Ownership, OwnerError> {
    let path = state.lock();
    let io = |source| OwnerError::Io { path: path.clone(), source };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
    if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(io(error.into()));
        }
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        let holder = if holder.trim().is_empty() {
            "a process that is just starting".into()
        } else {
            holder.trim().to_owned()
        };
        return Err(OwnerError::Held { path, holder });
    }
    file.set_len(0).map_err(io)?;
    file.rewind().map_err(io)?;
    writeln!(
        file,
        "pid {}, settings {}, since {}",
        std::process::id(),
        config.display(),
        // UTC: whoever shows it to people has the zone of the settings.
        jiff::Timestamp::from_millisecond(wall_ms()).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    .map_err(io)?;
    file.sync_data().map_err(io)?;
    Ok(Ownership { file })
}

impl Drop for Ownership {
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
    }
}

/// Who runs on the folder now, without disturbing it: `None` = nobody (or the lock cannot be read from here).
pub fn holder(state: &StateDir) -> Option<String> {
    let mut file = File::open(state.lock()).ok()?;
    // A shared lock that succeeds means nobody holds the exclusive one; it is dropped at once.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => None,
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            Some(text.trim().to_owned())
        }
        Err(_) => None,
    }
}

/// Whether this user may look at the lock at all: members of the group `onceward` may not, and know nothing of the agent.
pub fn may_look(state: &StateDir) -> bool {
    !matches!(File::open(state.lock()), Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// The id of this start: the lasting agent id and fresh random bits. Two starts never share one.
pub fn owner_id(agent_id: &str) -> std::io::Result<OwnerId> {
    let mut random = [0u8; 6];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let start: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(OwnerId::new(format!("{agent_id}:{start}")))
}
