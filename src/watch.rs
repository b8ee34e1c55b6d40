//! Room: a commit by any other process wakes the relay within a millisecond.
//!
//! inotify says that somebody wrote to the `-wal` file, which happens *before* the commit is visible; so the event is
//! only a hint, followed by looks at `PRAGMA data_version` with growing pauses until it has changed. A lost hint costs
//! nothing: the relay also polls. Idle it costs nothing at all.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use crate::db::{self, Part};
use crate::limits::SOURCE_WATCH_RETRY;
use crate::source;

/// Looks after a hint: the first pause, doubled so often: about 100 ms in all.
const LOOKS: u32 = 11;
const LOOK_PAUSE: Duration = Duration::from_micros(50);

/// Shared with the relay.
#[derive(Debug)]
pub struct WatchFlags {
    /// The relay is at work and will look again by itself: hints need no answer.
    pub busy: AtomicBool,
    stop: AtomicBool,
    /// Wakes the room for its stop.
    bell: OwnedFd,
}

impl WatchFlags {
    /// One set for a watch and its relay.
    pub fn new() -> std::io::Result<Self> {
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        Ok(Self { busy: AtomicBool::new(false), stop: AtomicBool::new(false), bell })
    }

    /// The agent stops.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// What is watched, and how it is opened.
enum Kind {
    /// `outbox.db`: always in WAL mode.
    Own,
    /// An application's file, in any journal mode, perhaps not there.
    Source,
}

/// The room. `wake` is called (from this thread) whenever another connection has committed.
pub struct Watch {
    path: PathBuf,
    kind: Kind,
    connection: Option<Connection>,
    inotify: Option<OwnedFd>,
    watches_wal: bool,
    flags: Arc<WatchFlags>,
    version: i64,
}

impl Watch {
    /// Opens its own reader. Where inotify is not to be had the relay's polling serves alone.
    pub fn new(path: &Path, flags: Arc<WatchFlags>) -> Result<Self, db::DbError> {
        let connection = db::open_reader(path, Part::Outbox)?;
        let mut watch = Self {
            path: path.to_owned(),
            kind: Kind::Own,
            connection: Some(connection),
            inotify: None,
            watches_wal: false,
            flags,
            version: 0,
        };
        watch.version = watch.data_version();
        watch.add_watch();
        Ok(watch)
    }

    /// Opens nothing yet: an application's file is opened when it is there and well, and anew when it was replaced.
    pub fn of_source(path: &Path, flags: Arc<WatchFlags>) -> Self {
        let kind = Kind::Source;
        Self {
            path: path.to_owned(),
            kind,
            connection: None,
            inotify: None,
            watches_wal: false,
            flags,
            version: 0,
        }
    }

    /// In WAL mode a commit writes the `-wal`; in the rollback modes the file itself.
    fn add_watch(&mut self) {
        self.inotify = None;
        if matches!(self.kind, Kind::Source) {
            // Whatever was open may be another file by now.
            self.connection = source::open_reader(&self.path).ok();
            self.version = self.data_version();
            if self.connection.is_none() {
                return;
            }
        }
        let wal = self.wal();
        self.watches_wal = false;
        let mut watches_wal = false;
        let made =
            inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).and_then(|fd| {
                // MODIFY alone: our own opening and closing must not ring.
                let events = inotify::WatchFlags::MODIFY
                    | inotify::WatchFlags::DELETE_SELF
                    | inotify::WatchFlags::MOVE_SELF;
                let of_wal = inotify::add_watch(&fd, &wal, events);
                watches_wal = of_wal.is_ok();
                if matches!(self.kind, Kind::Source) {
                    // Watching opens nothing, so SQLite's locks stay (S9).
                    inotify::add_watch(&fd, &self.path, events)?;
                } else {
                    of_wal?;
                }
                Ok(fd)
            });
        self.watches_wal = watches_wal && made.is_ok();
        self.inotify = made.ok();
    }

    fn wal(&self) -> PathBuf {
        let mut wal = self.path.clone().into_os_string();
        wal.push("-wal");
        wal.into()
    }

    fn data_version(&self) -> i64 {
        let Some(connection) = &self.connection else { return -1 };
        connection.query_row("PRAGMA data_version", [], |row| row.get(0)).unwrap_or(-1)
    }

    /// Runs until the flags' stop.
    pub fn run(mut self, wake: impl Fn()) {
        // A hint that came while the relay was busy: the commit behind it may become visible after its last look.
        let mut owed = false;
        while !self.flags.stop.load(Ordering::Relaxed) {
            let Some(fd) = &self.inotify else {
                self.add_watch();
                if self.inotify.is_some() {
                    wake(); // what was committed before the watch
                } else {
                    self.pause();
                }
                continue;
            };
            let mut fds = [PollFd::new(fd, PollFlags::IN), PollFd::new(&self.flags.bell, PollFlags::IN)];
            let timeout = if owed {
                Timespec { tv_sec: 0, tv_nsec: 5_000_000 }
            } else {
                Timespec { tv_sec: 60, tv_nsec: 0 }
            };
            let rung = poll(&mut fds, Some(&timeout)).unwrap_or(0) > 0;
            if self.flags.stop.load(Ordering::Relaxed) || !(rung || owed) {
                continue;
            }
            owed = true;
            if self.drain_events() || !self.watches_wal && self.wal().exists() {
                self.add_watch(); // the file was replaced, or its application has changed to WAL mode
                wake();
            }
            if self.flags.busy.load(Ordering::Relaxed) {
                // The relay looks by itself; do not burn a processor on the echo of its own commits.
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            owed = !self.look_until_quiet(&wake);
        }
    }

    /// Looks with growing pauses until nothing has changed for about 100 ms since the last hint: the change that is
    /// seen first may be the relay's own commit, with a producer's right behind it. False if the relay got busy.
    fn look_until_quiet(&mut self, wake: &impl Fn()) -> bool {
        let (mut pause, mut looks) = (LOOK_PAUSE, 0);
        while looks <= LOOKS && !self.flags.stop.load(Ordering::Relaxed) {
            let version = self.data_version();
            if version != self.version {
                self.version = version;
                wake();
            }
            let Some(fd) = &self.inotify else { return true };
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
            let mut hint = [PollFd::new(fd, PollFlags::IN)];
            if poll(&mut hint, Some(&timeout)).unwrap_or(0) > 0 {
                if self.flags.busy.load(Ordering::Relaxed) {
                    return false;
                }
                if self.drain_events() {
                    self.add_watch();
                    wake();
                }
                (pause, looks) = (LOOK_PAUSE, 0);
            } else {
                pause *= 2;
                looks += 1;
            }
        }
        true
    }

    /// Waits a moment, or for the stop.
    fn pause(&self) {
        let mut bell = [PollFd::new(&self.flags.bell, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: SOURCE_WATCH_RETRY.as_secs() as i64,
            tv_nsec: i64::from(SOURCE_WATCH_RETRY.subsec_nanos()),
        };
        let _ = poll(&mut bell, Some(&timeout));
    }

    /// Reads what is queued; true if the watched file is gone.
    fn drain_events(&self) -> bool {
        let Some(fd) = &self.inotify else { return false };
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(fd, &mut buffer);
        let mut gone = false;
        while let Ok(event) = reader.next() {
            gone |= event.events().intersects(
                inotify::ReadFlags::DELETE_SELF | inotify::ReadFlags::MOVE_SELF | inotify::ReadFlags::IGNORED,
            );
        }
        gone
    }
}
