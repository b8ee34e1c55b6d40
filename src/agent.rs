//! Builds, starts and joins every room in order; nothing else knows them all.
//!
//! Start: take the folder, open and check both files, settle what dead starts left, make one real commit, start the
//! rooms, then READY. Stop: along the arrows; the relay stops claiming, workers end what they began, outcomes are
//! written, confirms are marked, the rest waits again, the files close.
//!
//! In the folder: `begin` (before any room), `start`, `destinations` (the rooms of each), `stop`, `error`. Here is what
//! a running agent is asked and what it does by the clock. Never: a decision about a message.

mod begin;
mod destinations;
mod error;
mod start;
mod stop;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

pub use self::begin::begin_clock;
pub use self::error::{StartError, db_exit_code};
use crate::alert::Alerts;
use crate::clock::wall_ms;
use crate::db::writer::{Work, Writer};
use crate::gate::Gate;
use crate::limits::{HEARTBEAT_EVERY, SWEEP_EVERY, WRITER_RETRY_MIN};
use crate::listen::server::Server;
use crate::message::OwnerId;
use crate::owner::Ownership;
use crate::policy::Policy;
use crate::reconcile::Bell;
use crate::relay::Event;
use crate::retention::room::Room;
use crate::store::meta;
use crate::sweeper::{Seen, Sweep};
use crate::ward::Ward;
use crate::watch::WatchFlags;

/// A running agent.
pub struct Agent {
    writer: Writer,
    relay_events: Sender<Event>,
    stop_sources: Sender<Instant>,
    stop: Arc<AtomicBool>,
    flags: Arc<WatchFlags>,
    /// Joined in this order.
    relay: JoinHandle<()>,
    sources: JoinHandle<()>,
    workers: Vec<JoinHandle<()>>,
    watch: JoinHandle<()>,
    clock_watch: (Sender<()>, JoinHandle<()>),
    /// Pollers of reports, look-ups, and the room that opens outbox rows again.
    settlers: Vec<JoinHandle<()>>,
    /// Dropped at the stop: ends the settlers' waits.
    settlers_go_on: (Sender<()>, Bell),
    server: Server,
    ready: Arc<AtomicBool>,
    writer_thread: JoinHandle<()>,
    checkpointers: Vec<JoinHandle<()>>,
    retention: Room,
    stop_within: Duration,
    sweep: SweepParts,
    gates: Vec<(String, Arc<Gate>)>,
    ward: Arc<Ward>,
    telling: Telling,
    _ownership: Ownership,
}

/// The rooms that tell people; each ends when its sender is dropped.
struct Telling {
    conditions: JoinHandle<()>,
    conditions_stop: Sender<()>,
    notifier: JoinHandle<()>,
    notifier_stop: Sender<()>,
}

struct SweepParts {
    owner: OwnerId,
    stale: Duration,
    policy: Arc<Policy>,
    alerts: Alerts,
    last_sweep: Instant,
    seen: Seen,
}

impl Agent {
    /// The id of this start.
    pub fn owner(&self) -> &OwnerId {
        &self.sweep.owner
    }

    /// Proof of progress: the writer has committed, and the relay has ended a round, since this call began.
    /// A commit that is due to `HEARTBEAT_EVERY` is made by this.
    pub fn makes_progress(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        let (sender, receiver): (Sender<()>, Receiver<()>) = crossbeam_channel::bounded(1);
        if self.relay_events.send(Event::Ping(sender)).is_err() || receiver.recv_deadline(end).is_err() {
            return false;
        }
        let last_commit_ms = self.writer.health().last_commit_ms.load(Ordering::Relaxed);
        let idle_ms = wall_ms().saturating_sub(last_commit_ms);
        if self.writer.is_in_trouble() {
            // It is alive and says so itself; restarting would not give the disk more room.
            return true;
        }
        if (0..crate::clock::ms(HEARTBEAT_EVERY)).contains(&idle_ms) {
            return true;
        }
        // A commit that fails is no end: the disk may have room, or the lock be free, a moment later.
        while Instant::now() < end {
            let (sender, receiver) = crossbeam_channel::bounded(1);
            self.writer.submit(Box::new(Heartbeat { reply: sender }));
            match receiver.recv_deadline(end) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(WRITER_RETRY_MIN),
            }
        }
        false
    }

    /// Timed duties; cheap when nothing is due. Call it about every minute or more often.
    pub fn tick(&mut self) {
        if self.sweep.last_sweep.elapsed() >= SWEEP_EVERY {
            self.sweep.last_sweep = Instant::now();
            let SweepParts { owner, stale, policy, alerts, seen, .. } = &self.sweep;
            let sweep = Sweep::new(owner.clone(), *stale, policy.clone(), alerts.clone(), seen.clone());
            self.writer.submit(Box::new(sweep));
        }
    }

    /// One line for systemd's STATUS.
    pub fn status_line(&self) -> String {
        let now = Instant::now();
        let shut: Vec<String> = self
            .gates
            .iter()
            .filter_map(|(name, gate)| {
                let (why, next) = gate.describe(now)?;
                Some(if gate.is_paused() {
                    format!("{name} {why}")
                } else {
                    format!("{name} closed ({why}), next try in {} s", next.as_secs())
                })
            })
            .collect();
        let commits = self.writer.health().commits.load(Ordering::Relaxed);
        if let Some(reason) = self.ward.hold.reason() {
            format!("HELD, nothing is sent: {reason}")
        } else if self.writer.is_in_trouble() {
            "the inbox cannot be written: nothing is sent until it can".into()
        } else if shut.is_empty() {
            format!("sending; {commits} commits since the start")
        } else {
            shut.join("; ")
        }
    }

    /// Why nothing is sent; `None` = it is.
    pub fn held(&self) -> Option<String> {
        self.ward.hold.reason()
    }

    /// How long a stop may take.
    pub fn stop_within(&self) -> Duration {
        self.stop_within
    }
}

struct Heartbeat {
    reply: Sender<()>,
}

impl Work for Heartbeat {
    fn apply(&mut self, connection: &rusqlite::Connection) -> rusqlite::Result<()> {
        meta::put(connection, "heartbeat_at_ms", &wall_ms().to_string())
    }
    fn committed(self: Box<Self>) {
        let _ = self.reply.send(());
    }
    fn failed(self: Box<Self>, _why: &str) {}
    fn must_land(&self) -> bool {
        false
    }
}
