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

/// Looks after a hint: 50 us, doubled, about 100 ms in all.
const LOOKS: u32 = 11;

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

/// The room. `wake` is called (from this thread) whenever another connection has committed.
pub struct Watch {
    path: PathBuf,
    connection: Connection,
    inotify: Option<OwnedFd>,
    flags: Arc<WatchFlags>,
    version: i64,
}

impl Watch {
    /// Opens its own reader. Where inotify is not to be had the relay's polling serves alone.
    pub fn new(path: &Path, flags: Arc<WatchFlags>) -> Result<Self, db::DbError> {
        let connection = db::open_reader(path, Part::Outbox)?;
        let mut watch = Self { path: path.to_owned(), connection, inotify: None, flags, version: 0 };
        watch.version = watch.data_version();
        watch.add_watch();
        Ok(watch)
    }

    fn add_watch(&mut self) {
        let mut wal = self.path.clone().into_os_string();
        wal.push("-wal");
        let made =
            inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).and_then(|fd| {
                // MODIFY alone: our own opening and closing must not ring.
                inotify::add_watch(
                    &fd,
                    Path::new(&wal),
                    inotify::WatchFlags::MODIFY
                        | inotify::WatchFlags::DELETE_SELF
                        | inotify::WatchFlags::MOVE_SELF,
                )?;
                Ok(fd)
            });
        self.inotify = made.ok();
    }

    fn data_version(&self) -> i64 {
        self.connection.query_row("PRAGMA data_version", [], |row| row.get(0)).unwrap_or(-1)
    }

    /// Runs until the flags' stop.
    pub fn run(mut self, wake: impl Fn()) {
        while !self.flags.stop.load(Ordering::Relaxed) {
            let Some(fd) = &self.inotify else {
                std::thread::sleep(Duration::from_secs(1));
                self.add_watch();
                continue;
            };
            let mut fds = [PollFd::new(fd, PollFlags::IN), PollFd::new(&self.flags.bell, PollFlags::IN)];
            let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
            if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 || self.flags.stop.load(Ordering::Relaxed) {
                continue;
            }
            if self.drain_events() {
                self.add_watch(); // the file was replaced
            }
            if self.flags.busy.load(Ordering::Relaxed) {
                // The relay looks by itself; do not burn a processor on the echo of its own commits.
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
            if self.changed_soon() {
                wake();
            }
        }
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

    fn changed_soon(&mut self) -> bool {
        let mut pause = Duration::from_micros(50);
        for _ in 0..=LOOKS {
            let version = self.data_version();
            if version != self.version {
                self.version = version;
                return true;
            }
            std::thread::sleep(pause);
            pause *= 2;
        }
        false
    }
}
