//! What stands between a message and its call besides the message's own rules: whether anything may be sent at all.
//!
//! One for an agent, shared by relay, inbox writer and workers. Before each claim commit, and after it, the files at the
//! paths must be the ones that are open (F32), and there must be room on the disk (F18). Each commit with a claim raises
//! the count that the witness outside the databases keeps, so that an older inbox is known as such (F26, F30).
//!
//! Never: opens a database, decides about one message.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rusqlite::Connection;

use crate::clock;
use crate::db::identity::{OpenFiles, WitnessFiles};
use crate::db::reserve::Reserve;
use crate::hold::{Hold, Why};
use crate::incarnation::Witness;
use crate::limits::DISK_LOOK;
use crate::store::incarnation;

/// The ward.
pub struct Ward {
    /// Whether, and why, nothing is sent.
    pub hold: Hold,
    witness: WitnessFiles,
    reserve: Reserve,
    /// Set once everything is open.
    files: OnceLock<OpenFiles>,
    disk_looked: Mutex<Option<Instant>>,
    /// Shared with the checkpointers.
    frozen: Arc<AtomicBool>,
}

impl Ward {
    /// Of one agent.
    pub fn new(hold: Hold, witness: WitnessFiles, reserve: Reserve) -> Self {
        let (files, disk_looked) = (OnceLock::new(), Mutex::new(None));
        Self { hold, witness, reserve, files, disk_looked, frozen: Arc::default() }
    }

    /// Set once other files lie at the paths than are open.
    pub fn frozen(&self) -> Arc<AtomicBool> {
        self.frozen.clone()
    }

    /// Before the files are closed, too.
    pub fn freeze_if_replaced(&self) {
        if self.files.get().is_some_and(OpenFiles::replaced) {
            self.frozen.store(true, Ordering::SeqCst);
        }
    }

    /// From now on the files at these paths must stay the ones that are open.
    pub fn watch(&self, databases: &[PathBuf]) -> std::io::Result<()> {
        let files = OpenFiles::remember(databases)?;
        self.files.get_or_init(|| files);
        Ok(())
    }

    /// Looks at files and disk. True if something may be begun.
    pub fn look(&self) -> bool {
        self.look_at_files();
        let due = {
            let mut looked = self.disk_looked.lock().unwrap_or_else(PoisonError::into_inner);
            let due = looked.is_none_or(|at| clock::elapsed(at) >= DISK_LOOK);
            if due {
                *looked = Some(clock::mono());
            }
            due
        };
        if due {
            match self.reserve.look() {
                Ok(()) => self.hold.clear(Why::Disk),
                Err(text) => self.hold.set(Why::Disk, &text),
            }
        }
        !self.hold.is_on()
    }

    /// Whether the files are still those that are open. Once they are not, only a restart begins anew.
    pub fn look_at_files(&self) -> bool {
        if self.hold.is(Why::Files) {
            return false;
        }
        match self.files.get().and_then(OpenFiles::changed) {
            None => true,
            Some(text) => {
                self.freeze_if_replaced();
                self.hold.set(Why::Files, &text);
                false
            }
        }
    }

    /// A commit failed: where there is no room (or SQLite says so: a quota), the reserve goes back to the disk, so that
    /// what is owed can be written.
    pub fn make_room(&self, full: bool) {
        match self.reserve.look() {
            Err(text) => self.hold.set(Why::Disk, &text),
            Ok(()) if full => self.hold.set(Why::Disk, "the disk is full, or a quota is used up"),
            Ok(()) => return,
        }
        self.reserve.release();
    }

    /// In the transaction of a claim.
    pub fn count_claim(tx: &Connection) -> rusqlite::Result<i64> {
        incarnation::count_claim(tx)
    }

    /// After the commit: the inbox has this many commits with a claim.
    pub fn claimed(&self, claims: i64) {
        self.witness.note(claims, 0);
    }

    /// The outbox has given this row number.
    pub fn saw_row(&self, row: i64) {
        // A held agent's witness is the evidence.
        if !self.hold.is(Why::Copy) {
            self.witness.note(0, row);
        }
    }

    /// A person has adopted the files: the witness is theirs from now on.
    pub fn adopted(&self, witness: Witness) -> std::io::Result<()> {
        self.witness.write(witness)?;
        self.hold.clear(Why::Copy);
        Ok(())
    }

    /// Makes the witnesses that are missing. Returns whether there is one outside the state folder.
    pub fn make_witnesses(&self) -> std::io::Result<bool> {
        self.witness.make()?;
        Ok(self.witness.has_outside())
    }
}
