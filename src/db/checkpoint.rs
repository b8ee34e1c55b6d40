//! The one checkpointer of a database file: a thread that copies the WAL back while there is something to copy.
//!
//! PASSIVE only, on a connection of its own: RESTART and TRUNCATE would hold the write lock while they wait for a
//! reader (S6). It never truncates in normal running: a WAL that is overwritten in place syncs twice as fast. When
//! the log stays long the writer closes the gap by one PASSIVE right after a commit, so that the WAL starts over.
//!
//! A checkpoint that fails is tried again until one succeeds, also when nobody commits: a log of which a sync failed may
//! have a hole that only a power cut shows, and what is copied back and synced no longer needs the log.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::Connection;

use super::{DbError, Durability, Part, kill};
use crate::limits::{CHECKPOINT_PAUSE, CHECKPOINT_RETRY_MAX, WAL_FRAMES_LONG, WAL_FRAMES_PINNED};

/// The handle held by whoever commits to the file. Cheap to clone.
#[derive(Clone)]
pub struct Checkpointer {
    ring: Sender<()>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Other files lie at the paths than are open.
    frozen: Arc<AtomicBool>,
    close_gap: AtomicBool,
    frames: AtomicU64,
}

impl Checkpointer {
    /// Starts the thread; it ends when all handles are dropped.
    ///
    /// Once `frozen` is set nothing is copied back any more, and this connection is never closed: SQLite's last close
    /// would delete the `-wal` at the path, which is somebody else's then.
    pub fn start(
        name: &'static str,
        path: PathBuf,
        part: Part,
        frozen: Arc<AtomicBool>,
    ) -> Result<(Self, JoinHandle<()>), DbError> {
        let (handle, room) = Self::new(path.clone(), part, frozen)?;
        let thread = crate::thread::spawn(name, move || room.run())
            .map_err(|error| DbError::sqlite(&path, super::other(format!("no thread for it: {error}"))))?;
        Ok((handle, thread))
    }

    /// The handle, and the room that is still to be run.
    pub fn new(
        path: PathBuf,
        part: Part,
        frozen: Arc<AtomicBool>,
    ) -> Result<(Self, CheckpointRoom), DbError> {
        let connection = super::open_writer(&path, part, Durability::Full)?;
        let (ring, rung) = crossbeam_channel::bounded::<()>(1);
        let shared = Arc::new(Shared { frozen, ..Shared::default() });
        let room =
            CheckpointRoom { path, connection, rung, shared: shared.clone(), pinned: false, trouble: None };
        Ok((Self { ring, shared }, room))
    }

    /// To be called after each commit, on the connection that made it.
    pub fn after_commit(&self, connection: &Connection) {
        let _ = self.ring.try_send(()); // full = already rung
        if self.shared.close_gap.swap(false, Ordering::Relaxed) && !self.shared.frozen.load(Ordering::SeqCst)
        {
            let _ = passive(connection);
        }
    }

    /// Pages in the write-ahead log at the last look.
    pub fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }
}

/// The checkpointer's own side: run in a thread, or looked through step by step.
pub struct CheckpointRoom {
    path: PathBuf,
    connection: Connection,
    rung: Receiver<()>,
    shared: Arc<Shared>,
    pinned: bool,
    /// The pause after the last checkpoint, which failed.
    trouble: Option<Duration>,
}

impl CheckpointRoom {
    fn run(mut self) {
        loop {
            let rung = match self.trouble {
                None => self.rung.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(pause) => self.rung.recv_timeout(pause),
            };
            if rung == Err(RecvTimeoutError::Disconnected) {
                break;
            }
            std::thread::sleep(CHECKPOINT_PAUSE);
            self.look();
        }
        if self.shared.frozen.load(Ordering::SeqCst) {
            std::mem::forget(self.connection); // the end of the process lets go of it
        }
    }

    /// One checkpoint. Errors here lose nothing by themselves: the WAL stays.
    pub fn look(&mut self) {
        if self.shared.frozen.load(Ordering::SeqCst) {
            self.trouble = None;
            return;
        }
        let (log, copied) = match passive(&self.connection) {
            Ok(pages) => pages,
            Err(error) => {
                let pause = match self.trouble {
                    None => {
                        log::error!(
                            "{}: its write-ahead log cannot be copied back: {error}; it is tried again",
                            self.path.display()
                        );
                        CHECKPOINT_PAUSE
                    }
                    Some(pause) => (pause * 2).min(CHECKPOINT_RETRY_MAX),
                };
                self.trouble = Some(pause);
                return;
            }
        };
        if self.trouble.take().is_some() {
            log::warn!("{}: its write-ahead log is copied back again", self.path.display());
        }
        self.shared.frames.store(log, Ordering::Relaxed);
        self.shared.close_gap.store(log > WAL_FRAMES_LONG, Ordering::Relaxed);
        let stuck = log.saturating_sub(copied) > WAL_FRAMES_PINNED;
        if stuck && !self.pinned {
            log::warn!(
                "{}: its write-ahead log grows ({log} pages): a reader holds an old state open; find it with `onceward check`{}",
                self.path.display(),
                super::holder::in_words(&self.path)
            );
        }
        self.pinned = stuck;
    }
}

/// One PASSIVE checkpoint: (pages in the log, pages copied back). None and none where another one is at work.
fn passive(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    if kill::point("checkpoint").is_err() {
        return Err(super::other("disk I/O error (by a test)".into()));
    }
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        let log: i64 = row.get(1)?;
        let copied: i64 = row.get(2)?;
        Ok((log.max(0) as u64, copied.max(0) as u64))
    })
}
