//! One agent per state folder (F27): an OS lock on the folder `inbox/` itself; `inbox/agent.lock` names its holder.
//!
//! The lock lives as long as the process; a crash frees it. It is on the folder because a file in it could be deleted
//! and made anew under the running agent, and then two would each hold "the" lock.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

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
    /// `inbox/witness`: what the databases must at least know (`incarnation.rs`).
    pub fn witness_inside(&self) -> PathBuf {
        self.inbox_dir().join("witness")
    }
    /// `<state folder>-witness/witness`: the same, where a copy of the state folder does not take it along.
    pub fn witness_outside(&self) -> PathBuf {
        // A slash at the end of the setting must not make it a file inside.
        let root: PathBuf = self.root.components().collect();
        crate::db::identity::beside(&root, "-witness").join("witness")
    }
    /// `inbox/agent.lock`
    pub fn lock(&self) -> PathBuf {
        self.inbox_dir().join("agent.lock")
    }
}

/// Holding it means: this process is the agent of the folder.
#[derive(Debug)]
pub struct Ownership {
    _folder: File,
    name: File,
    line: String,
}

/// The writing on `agent.lock`, for `status` and the like: who runs, and in a second line why nothing is sent.
#[derive(Debug)]
pub struct Sign {
    file: File,
    line: String,
}

impl Sign {
    /// Writes it anew. Errors are of no account: it is for people.
    pub fn say(&self, held: Option<&str>) {
        let mut text = self.line.clone();
        if let Some(reason) = held {
            text.push_str(HELD);
            text.push_str(&reason.replace('\n', " "));
            text.push('\n');
        }
        let _ =
            self.file.write_all_at(text.as_bytes(), 0).and_then(|()| self.file.set_len(text.len() as u64));
    }
}

impl Ownership {
    /// The sign.
    pub fn sign(&self) -> std::io::Result<Sign> {
        Ok(Sign { file: self.name.try_clone()?, line: self.line.clone() })
    }
}

/// Begins the second line.
const HELD: &str = "HELD: ";

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
    #[error("{path}: {source}; {}", advice(source))]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What to do about it.
fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only, as after an error of its device: see the kernel's messages, mount it anew, start again"
        }
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            "make room on this file system"
        }
        _ => "check that the folder exists and belongs to the agent's user (see `onceward init`)",
    }
}

/// Longest wait for a look of [`holder`], which takes the lock for a moment.
const LOOKS_END: Duration = Duration::from_millis(500);

/// Takes the folder, or says who has it.
pub fn take(state: &StateDir, config: &Path) -> Result<Ownership, OwnerError> {
    let path = state.lock();
    let io = |source| OwnerError::Io { path: path.clone(), source };
    let folder = File::open(state.inbox_dir()).map_err(io)?;
    let end = Instant::now() + LOOKS_END;
    while let Err(error) = flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(io(error.into()));
        }
        if Instant::now() >= end {
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.lines().next().unwrap_or_default().to_owned();
            let holder = if holder.trim().is_empty() {
                "a process that is just starting".into()
            } else {
                holder.trim().to_owned()
            };
            return Err(OwnerError::Held { path, holder });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut name =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path).map_err(io)?;
    // What root makes here is for the agent's user.
    let _ = give_to_owner_of(&state.inbox_dir(), &path);
    let line = format!(
        "pid {}, settings {}, since {}\n",
        std::process::id(),
        config.display(),
        // UTC: whoever shows it to people has the zone of the settings.
        jiff::Timestamp::from_millisecond(wall_ms()).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ")
    );
    // On a full disk the lock is what counts, not the name on it.
    if let Err(error) = name.write_all(line.as_bytes()).and_then(|()| name.sync_data())
        && error.kind() != std::io::ErrorKind::StorageFull
    {
        return Err(io(error));
    }
    Ok(Ownership { _folder: folder, name, line })
}

impl Drop for Ownership {
    fn drop(&mut self) {
        let _ = self.name.set_len(0);
    }
}

/// Who runs on the folder now, without disturbing it: `None` = nobody (or the lock cannot be read from here).
pub fn holder(state: &StateDir) -> Option<String> {
    let folder = File::open(state.inbox_dir()).ok()?;
    // A shared lock that succeeds means nobody holds the exclusive one; it is dropped at once, and `take` waits for it.
    match flock(&folder, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let text = std::fs::read_to_string(state.lock()).unwrap_or_default();
            Some(text.lines().next().unwrap_or_default().trim().to_owned())
        }
        Ok(()) | Err(_) => None,
    }
}

/// The process that runs on the folder now, as [`holder`] names it.
pub fn pid(state: &StateDir) -> Option<u32> {
    holder(state)?.strip_prefix("pid ")?.split(',').next()?.parse().ok()
}

/// Whether this user may look at the lock at all: members of the group `onceward` may not, and know nothing of the agent.
pub fn may_look(state: &StateDir) -> bool {
    !matches!(File::open(state.lock()), Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Gives a file of ours (never a database that is open) to whom a folder belongs. Nothing where it is so already.
pub fn give_to_owner_of(folder: &Path, path: &Path) -> std::io::Result<()> {
    let (folder, file) = (std::fs::metadata(folder)?, std::fs::metadata(path)?);
    if (folder.uid(), folder.gid()) == (file.uid(), file.gid()) {
        return Ok(());
    }
    std::os::unix::fs::chown(path, Some(folder.uid()), Some(folder.gid()))
}

/// Why the running agent sends nothing; `None` = it does, or it cannot be seen from here.
pub fn held(state: &StateDir) -> Option<String> {
    let text = std::fs::read_to_string(state.lock()).ok()?;
    text.lines().find_map(|line| line.strip_prefix(HELD)).map(str::to_owned)
}

/// The lasting agent id as the rooms of a running agent know it. `adopt` gives a new one under them, so that a source of
/// the copied agent is another agent's from the moment on in which sending is allowed again.
#[derive(Clone, Debug)]
pub struct AgentId(Arc<RwLock<String>>);

impl AgentId {
    /// As the inbox says.
    pub fn new(id: String) -> Self {
        Self(Arc::new(RwLock::new(id)))
    }
    /// Now.
    pub fn get(&self) -> String {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// After the inbox's commit, before the hold ends.
    pub fn set(&self, id: &str) {
        id.clone_into(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
    /// A start under the id of now: what it claims in a source is given back by the next start, which has that id.
    pub fn owner(&self, start: &OwnerId) -> OwnerId {
        let random = start.as_str().split_once(':').map_or("", |(_, random)| random);
        OwnerId::new(format!("{}:{random}", self.get()))
    }
}

/// The id of this start: the lasting agent id and fresh random bits. Two starts never share one.
pub fn owner_id(agent_id: &str) -> std::io::Result<OwnerId> {
    let mut random = [0u8; 6];
    getrandom::fill(&mut random).map_err(|error| std::io::Error::other(error.to_string()))?;
    let start: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(OwnerId::new(format!("{agent_id}:{start}")))
}
