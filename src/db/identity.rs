//! Which files these are: where they lie, on which machine, and the witness outside the databases.
//!
//! Database files are looked at by `stat` alone, never opened (S9). The witness files are our own and hold no database.
//! What is made of it is decided by `incarnation.rs`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::incarnation::{self, RECORD_BYTES, Seen, Witness};
use crate::owner::{self, StateDir};

/// This machine: a hash of its `/etc/machine-id`, or `none` where it has none.
pub fn machine() -> String {
    match std::fs::read_to_string("/etc/machine-id") {
        Ok(id) if !id.trim().is_empty() => {
            // The id itself is not for others to see (machine-id(5)).
            let digest =
                ring::digest::digest(&ring::digest::SHA256, format!("onceward {}", id.trim()).as_bytes());
            digest.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
        }
        _ => "none".into(),
    }
}

/// Where a file lies: its inode and time of birth. A copy has another one, and a file made anew on a freed inode too;
/// moving the folder within its file system keeps it. (Device numbers change from boot to boot and are left out.)
pub fn place(path: &Path) -> io::Result<String> {
    let meta = std::fs::metadata(path)?;
    let birth = meta
        .created()
        .ok()
        .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or_else(|| "-".into(), |since| since.as_micros().to_string());
    Ok(format!("{}@{birth}", meta.ino()))
}

/// The files that are open, to be compared with what lies at their paths (F32).
#[derive(Debug)]
pub struct OpenFiles {
    files: Vec<(PathBuf, u64, u64)>,
}

impl OpenFiles {
    /// Remembers what lies there now, the `-wal` of each included: to be called while connections hold all of them open.
    pub fn remember(databases: &[PathBuf]) -> io::Result<Self> {
        let mut files = Vec::new();
        for path in databases {
            for file in [path.clone(), beside(path, "-wal")] {
                let meta = std::fs::metadata(&file)
                    .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
                files.push((file, meta.dev(), meta.ino()));
            }
        }
        Ok(Self { files })
    }

    /// The first that is not there any more, or is another one. A few microseconds.
    pub fn changed(&self) -> Option<String> {
        self.files.iter().find_map(|(path, dev, ino)| match std::fs::metadata(path) {
            Ok(meta) if (meta.dev(), meta.ino()) == (*dev, *ino) => None,
            Ok(_) => Some(format!("{} was replaced while it is open", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Some(format!("{} was moved or deleted while it is open", path.display()))
            }
            Err(error) => Some(format!("{} cannot be looked at: {error}", path.display())),
        })
    }
}

impl OpenFiles {
    /// Whether something else lies at one of the paths now (and not only nothing).
    pub fn replaced(&self) -> bool {
        self.files.iter().any(|(path, dev, ino)| {
            std::fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) != (*dev, *ino))
        })
    }
}

/// `outbox.db` and `-wal`: `outbox.db-wal`.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(suffix);
    name.into()
}

/// The two witnesses of a state folder.
#[derive(Debug)]
pub struct WitnessFiles {
    inside: Place,
    outside: Place,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    file: OnceLock<File>,
    /// Is there and cannot be read.
    bad: bool,
    found: Option<(u64, Witness)>,
}

#[derive(Debug, Default)]
struct State {
    record: Witness,
    turn: u64,
    warned: bool,
}

/// Longest wait for a look of another process.
const LOOKS_END: Duration = Duration::from_millis(500);

/// Why the witnesses cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// Another agent holds the one outside: it ran on the folder that lay here before.
    #[error("{0}: an agent is still running that began on the folder which lay here before; stop it first")]
    Held(PathBuf),
}

impl WitnessFiles {
    /// Opens what there is and takes the lock on the outside one, which stays with this value.
    pub fn open(state: &StateDir) -> Result<Self, WitnessError> {
        let inside = Place::open(state.witness_inside());
        let outside = Place::open(state.witness_outside());
        if let Some(file) = outside.file.get() {
            // A `check` takes it for a moment.
            let end = Instant::now() + LOOKS_END;
            while flock(file, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
            {
                if Instant::now() >= end {
                    return Err(WitnessError::Held(outside.path));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let turn = |place: &Place| place.found.as_ref().map_or(0, |(turn, _)| *turn);
        let turn = turn(&inside).max(turn(&outside));
        Ok(Self { inside, outside, state: Mutex::new(State { turn, ..State::default() }) })
    }

    /// Makes what is missing (empty): for `init`, `adopt` and `restore`. The outside one may not be possible; the inside one must.
    pub fn make(&self) -> io::Result<()> {
        let owner = self.inside.path.parent().unwrap_or(Path::new(".")).to_owned();
        self.inside.make(&owner)?;
        let made = self.outside.make(&owner);
        if let (Ok(()), Some(file)) = (&made, self.outside.file.get()) {
            let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
        }
        Ok(())
    }

    /// Whether there is one outside.
    pub fn has_outside(&self) -> bool {
        self.outside.file.get().is_some()
    }

    /// What was found of both when they were opened: (inside, outside).
    pub fn seen(&self, outside_expected: bool) -> (Seen, Seen) {
        let outside = if outside_expected { self.outside.seen() } else { Seen::NotExpected };
        (self.inside.seen(), outside)
    }

    /// Writes and syncs a new record into both.
    pub fn write(&self, witness: Witness) -> io::Result<()> {
        let mut state = self.lock();
        state.record = witness;
        self.write_record(&mut state)?;
        for place in [&self.inside, &self.outside] {
            if let Some(file) = place.file.get() {
                file.sync_data()?;
            }
        }
        Ok(())
    }

    /// Notes higher counts. Not synced: a power cut may leave the witness behind, which is harmless, and never ahead.
    pub fn note(&self, claims: i64, rows: i64) {
        let mut state = self.lock();
        if claims <= state.record.claims && rows <= state.record.rows {
            return;
        }
        state.record.claims = state.record.claims.max(claims);
        state.record.rows = state.record.rows.max(rows);
        if let Err(error) = self.write_record(&mut state)
            && !std::mem::replace(&mut state.warned, true)
        {
            log::warn!("{}: the witness cannot be written: {error}", self.inside.path.display());
        }
    }

    fn write_record(&self, state: &mut State) -> io::Result<()> {
        state.turn += 1;
        let bytes = incarnation::record(&state.record, state.turn);
        let at = (state.turn % 2) * RECORD_BYTES as u64;
        for place in [&self.inside, &self.outside] {
            if let Some(file) = place.file.get() {
                file.write_all_at(&bytes, at)?;
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A torn record on a panic leaves the other one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn open(path: PathBuf) -> Self {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => {
                let mut bytes = [0; 2 * RECORD_BYTES];
                let mut filled = 0;
                while let Ok(read @ 1..) = file.read_at(&mut bytes[filled..], filled as u64) {
                    filled += read;
                }
                let found = incarnation::newest(&bytes[..filled]);
                Self { path, bad: found.is_none(), found, file: file.into() }
            }
            Err(error) => Self {
                path,
                file: OnceLock::new(),
                bad: error.kind() != io::ErrorKind::NotFound,
                found: None,
            },
        }
    }

    fn make(&self, owner: &Path) -> io::Result<()> {
        if self.file.get().is_some() {
            return Ok(());
        }
        if let Some(folder) = self.path.parent()
            && !folder.is_dir()
        {
            std::fs::DirBuilder::new().mode(0o700).create(folder)?;
            let _ = owner::give_to_owner_of(owner, folder);
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display())))?;
        // What root makes is for the agent's user.
        let _ = owner::give_to_owner_of(owner, &self.path);
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        let _: &File = self.file.get_or_init(|| file);
        Ok(())
    }

    fn seen(&self) -> Seen {
        match (&self.found, self.bad) {
            (Some((_, witness)), _) => Seen::There(witness.clone()),
            (None, true) => Seen::Unreadable,
            (None, false) => Seen::Missing,
        }
    }
}
