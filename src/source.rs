//! Room: the sources. Looks at the list of applications' files once a second and keeps a relay and a watch
//! for each.
//!
//! Every source has its own relay (`relay.rs`), thread and connection; they share the destinations' workers,
//! gates and places (`share.rs`). A source that is missing, locked, read-only, corrupt, older or newer
//! troubles its own relay alone, which tries again with growing pauses; neither the agent's start nor another
//! source waits for it.
//!
//! Never: opens an application's file itself (its relay and watch do), writes the list.

mod file;
mod opt_outs;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::alert::Alerts;
use crate::clock;
use crate::config::{RelaySettings, RetrySettings, Route};
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::limits::SOURCES_LOOK;
use crate::message::OwnerId;
use crate::owner::AgentId;
use crate::policy::Policy;
use crate::relay::{Event, Home, Lane, Relay, RelayParts};
use crate::share::Keys;
use crate::store::source::{self, Source};
use crate::thread::{join_until, spawn};
use crate::ward::Ward;
use crate::watch::{Watch, WatchFlags};

pub use file::{
    Guard, Installed, State, install, is_served_by, not_ours, open_glance, open_reader, open_writer,
};
pub use opt_outs::OptOuts;

/// The files that are served and their relays, for whoever hands a relay a step: kept by [`Sources`] alone.
pub type Served = Arc<Mutex<Vec<(PathBuf, Sender<Event>)>>>;

/// What the room is made of: what every relay needs.
pub struct SourcesParts {
    /// This start.
    pub owner: OwnerId,
    /// The lasting id of this agent; another one after `adopt`.
    pub agent_id: AgentId,
    /// `[relay]`
    pub settings: RelaySettings,
    /// `[retry]`
    pub retry: RetrySettings,
    /// `[[route]]`
    pub routes: Vec<Route>,
    /// The rules.
    pub policy: Arc<Policy>,
    /// The destinations.
    pub lanes: Vec<Lane>,
    /// Order lanes under way.
    pub keys: Arc<Keys>,
    /// Readers of the inbox, where the list is.
    pub inbox: Pool,
    /// The inbox's writer, to mark what was seen.
    pub writer: Writer,
    /// To tell people.
    pub alerts: Alerts,
    /// Where others find the relays.
    pub served: Served,
    /// Whether anything may be sent at all.
    pub ward: Arc<Ward>,
    /// What the stop of a removed source may take.
    pub stop_within: Duration,
}

/// The room.
pub struct Sources {
    parts: SourcesParts,
    running: Vec<Running>,
    stop: Receiver<Instant>,
}

struct Running {
    source: Source,
    leaving: bool,
    events: Sender<Event>,
    flags: Arc<WatchFlags>,
    /// Set: the list is told again how the source is.
    unsaid: Arc<AtomicBool>,
    relay: JoinHandle<()>,
    watch: JoinHandle<()>,
}

impl Sources {
    /// The room, and how to stop it: a deadline, by which every relay has given back what was not begun.
    pub fn new(parts: SourcesParts) -> (Self, Sender<Instant>) {
        let (sender, stop) = crossbeam_channel::bounded(1);
        // Before any relay runs: a lane must not overtake what waits in a file that is yet to be opened.
        let listed = parts.inbox.get().ok().and_then(|reader| source::list(&reader).ok());
        for source in listed.unwrap_or_default() {
            parts.keys.files.expect(&source.name, Path::new(&source.file));
        }
        (Self { parts, running: Vec::new(), stop }, sender)
    }

    /// Runs until stopped.
    pub fn run(mut self) {
        loop {
            self.follow_the_list();
            match self.stop.recv_timeout(SOURCES_LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(deadline) => return self.stop_all(deadline),
                Err(RecvTimeoutError::Disconnected) => return self.stop_all(clock::mono()),
            }
        }
    }

    /// Starts what was added, stops what was removed, starts anew what ended (its file was replaced).
    fn follow_the_list(&mut self) {
        // In trouble the inbox is told about elsewhere; the sources that run go on.
        let Ok(reader) = self.parts.inbox.get() else { return };
        let Ok(listed) = source::list(&reader) else { return };
        drop(reader);
        for running in &mut self.running {
            let listed = listed.iter().find(|source| is_same(source, &running.source));
            // Added again, or not told yet: a look now, and its word for the list.
            if listed.is_some_and(|source| source.state == source::NEW) {
                running.unsaid.store(true, Ordering::Relaxed);
                let _ = running.events.send(Event::Wake);
            }
            if listed.is_none() && !running.leaving {
                log::info!("source {}: {} is no longer served", running.source.name, running.source.file);
                running.leaving = true;
                self.parts.keys.files.forget(&running.source.name);
                running.tell_stop(clock::mono() + self.parts.stop_within);
            }
            if running.relay.is_finished() {
                running.flags.stop();
            }
        }
        self.running.retain(|running| !(running.relay.is_finished() && running.watch.is_finished()));
        for source in listed {
            if self.running.iter().any(|running| running.source.name == source.name) {
                continue;
            }
            match self.start(source) {
                Ok(running) => self.running.push(running),
                Err(error) => log::error!("a source cannot be started: {error}"),
            }
        }
        *self.parts.served.lock().unwrap_or_else(PoisonError::into_inner) = self
            .running
            .iter()
            .filter(|running| !running.leaving)
            .map(|running| (PathBuf::from(&running.source.file), running.events.clone()))
            .collect();
    }

    fn start(&self, source: Source) -> std::io::Result<Running> {
        let parts = &self.parts;
        let path = PathBuf::from(&source.file);
        let flags = Arc::new(WatchFlags::new()?);
        let guard = Guard::new(
            source.name.clone(),
            path.clone(),
            parts.agent_id.clone(),
            source.source_id.clone(),
            parts.writer.clone(),
            parts.alerts.clone(),
        );
        let unsaid = guard.unsaid();
        let (relay, events) = Relay::unopened(RelayParts {
            path: path.clone(),
            owner: parts.agent_id.owner(&parts.owner),
            settings: parts.settings.clone(),
            retry: parts.retry.clone(),
            routes: parts.routes.clone(),
            policy: parts.policy.clone(),
            lanes: parts.lanes.clone(),
            inbox: parts.inbox.clone(),
            alerts: parts.alerts.clone(),
            home: Home::Source(guard),
            keys: parts.keys.clone(),
            flags: flags.clone(),
            ward: parts.ward.clone(),
        });
        let short: String = source.name.chars().take(9).collect();
        let wake = events.clone();
        let watch = Watch::of_source(&path, flags.clone());
        let watch = spawn(format!("watch-{short}"), move || {
            watch.run(|| {
                let _ = wake.send(Event::Wake);
            });
        })?;
        let relay = spawn(format!("relay-{short}"), move || relay.run())?;
        Ok(Running { source, leaving: false, events, flags, unsaid, relay, watch })
    }

    fn stop_all(self, deadline: Instant) {
        for running in &self.running {
            running.tell_stop(deadline);
        }
        for Running { source, relay, watch, .. } in self.running {
            if !join_until(relay, deadline) {
                log::warn!("source {}: did not end in time; the next start settles the rest", source.name);
            }
            let _ = join_until(watch, deadline);
        }
    }
}

impl Running {
    fn tell_stop(&self, deadline: Instant) {
        self.flags.stop();
        let _ = self.events.send(Event::Stop(deadline));
    }
}

fn is_same(one: &Source, other: &Source) -> bool {
    one.name == other.name && one.file == other.file && one.source_id == other.source_id
}
