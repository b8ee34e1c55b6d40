//! Builds, starts and joins every room in order; the only file that knows them all.
//!
//! Start: take the folder, open and check both files, settle what dead starts left, make one real commit, start the
//! rooms, then READY. Stop: along the arrows; the relay stops claiming, workers end what they began, outcomes are
//! written, confirms are marked, the rest waits again, the files close.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::adopt;
use crate::alert::conditions::{self, Conditions};
use crate::alert::notifier::{self, Notifier};
use crate::alert::{Alerts, Cause};
use crate::clock::watch::{self as watch_clock, ClockWatch};
use crate::clock::{self, wall_ms};
use crate::config::{DestinationSettings, Reports, Settings, VendorSettings};
use crate::db::checkpoint::Checkpointer;
use crate::db::identity::{WitnessError, WitnessFiles};
use crate::db::reserve::Reserve;
use crate::db::writer::{Work, Writer};
use crate::db::{self, DbError, Durability, Part, pool};
use crate::exit;
use crate::gate::Gate;
use crate::hold::{Hold, Why};
use crate::limits::{HEARTBEAT_EVERY, POOL_READERS, STOP_MARGIN, SWEEP_EVERY, WRITER_RETRY_MIN};
use crate::listen::{self, server::Server};
use crate::message::{Destination, OwnerId};
use crate::owner::{self, OwnerError, Ownership, StateDir};
use crate::policy::Policy;
use crate::poller::{Account, Poller};
use crate::rate::Rate;
use crate::reconcile::{self, Bell, Rearmer, Reconciler};
use crate::relay::{Event, Home, Lane, Relay, RelayParts};
use crate::retention::room::{Room, RoomParts};
use crate::share::{Keys, Places};
use crate::source::{Served, Sources, SourcesParts};
use crate::store::{intake, meta, tally};
use crate::sweeper::{self, Seen, Sweep};
use crate::thread::{join_until, spawn};
use crate::vendor;
use crate::ward::Ward;
use crate::watch::{Watch, WatchFlags};
use crate::worker::{Shared, Worker};

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another agent, or a folder that cannot be used.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A database.
    #[error(transparent)]
    Db(#[from] DbError),
    /// An agent that began on other files at this path still runs.
    #[error(transparent)]
    Witness(#[from] WitnessError),
    /// One of the two files is missing while the other stands (F30).
    #[error(
        "{missing}: is missing while {stands} stands. Sending now could repeat what was sent. Put the file back, or move both away and run `onceward init` to begin anew"
    )]
    HalfThere {
        /// The missing file.
        missing: PathBuf,
        /// The other one.
        stands: PathBuf,
    },
    /// A destination's adapter cannot be built.
    #[error("[[destination]] {name}: {reason}")]
    Vendor {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// An alert hook cannot be built.
    #[error("[alert]: {reason}")]
    Alert {
        /// Why.
        reason: String,
    },
    /// The loopback address.
    #[error(transparent)]
    Listen(#[from] listen::server::ListenError),
    /// Threads, random numbers.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

impl StartError {
    /// The documented exit code.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Owner(OwnerError::Held { .. }) | Self::Witness(_) => exit::TRY_AGAIN,
            Self::Owner(OwnerError::Io { source, .. }) | Self::Io(source) => match source.kind() {
                std::io::ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
                std::io::ErrorKind::NotFound => exit::NO_INPUT,
                std::io::ErrorKind::StorageFull => exit::TRY_AGAIN,
                _ => exit::IO,
            },
            Self::Db(error) => db_exit_code(error),
            Self::HalfThere { .. } | Self::Listen(_) => exit::UNAVAILABLE,
            Self::Vendor { .. } | Self::Alert { .. } => exit::SETTINGS,
        }
    }
}

/// The documented exit code of a database error.
pub fn db_exit_code(error: &DbError) -> i32 {
    use rusqlite::ErrorCode as E;
    match error {
        DbError::Missing { .. } => exit::NO_INPUT,
        DbError::Newer { .. }
        | DbError::Older { .. }
        | DbError::Unusable { .. }
        | DbError::Foreign { .. } => exit::UNAVAILABLE,
        DbError::NotPermitted { .. } => exit::NOT_PERMITTED,
        error if error.is_temporary() => exit::TRY_AGAIN,
        DbError::Sqlite { source, .. } => match source.sqlite_error_code() {
            Some(E::ReadOnly | E::PermissionDenied | E::CannotOpen) => exit::NOT_PERMITTED,
            Some(E::NotADatabase | E::DatabaseCorrupt) => exit::UNAVAILABLE,
            _ => exit::IO,
        },
    }
}

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
    /// Everything up to READY: when this returns, recovery is done and one commit is on the disk.
    pub fn start(settings: &Settings, config: &Path) -> Result<Self, StartError> {
        let state = StateDir::new(&settings.agent.state_dir);
        both_or_none(&state)?;
        db::access::usable(&state.inbox())?;
        db::access::usable(&state.outbox())?;
        let ownership = owner::take(&state, config)?;
        let witness = WitnessFiles::open(&state)?;
        let bound = listen::server::bind(&settings.listen)?;
        let policy = Arc::new(Policy::new(settings));

        // The inbox first: who we are, and what dead starts left in SENDING.
        let inbox_path = state.inbox();
        let mut connection = db::open_writer(&inbox_path, Part::Inbox, Durability::Full)?;
        let sqlite = |source| DbError::sqlite(&inbox_path, source);
        // Before anything is settled: what an earlier start had to tell, and what it may have left untold.
        let hooks = notifier::hooks(settings).map_err(|reason| StartError::Alert { reason })?;
        let names: Vec<&'static str> = hooks.iter().map(|hook| hook.name()).collect();
        let destinations = settings.destinations.iter().map(|destination| destination.name.clone()).collect();
        let alerts = Alerts::new(destinations, settings.alert.interval, &names);
        let outbox_path = state.outbox();
        let quarantine_seen = {
            let outbox = db::open_reader(&outbox_path, Part::Outbox)?;
            let seen = conditions::recall(&alerts, &connection, &outbox).map_err(sqlite)?;
            Arc::new(AtomicI64::new(seen))
        };
        let hold = Hold::new(alerts.clone(), Some(ownership.sign()?));
        {
            let mut outbox = db::open_writer(&outbox_path, Part::Outbox, Durability::Full)?;
            if let Some(reason) =
                adopt::begin(&mut connection, &mut outbox, &state, &witness).map_err(sqlite)?
            {
                hold.set(Why::Copy, &reason);
            }
        }
        let reserve = Reserve::new(vec![state.inbox_dir(), state.outbox_dir()]);
        let ward = Arc::new(Ward::new(hold.clone(), witness, reserve));
        let agent_id = db::write(&mut connection, meta::agent_id).map_err(sqlite)?;
        let owner = owner::owner_id(&agent_id)?;
        let outbox_path = state.outbox();
        let heard = begin_clock(&mut connection, &inbox_path, &outbox_path)?;
        end_drain(&outbox_path)?;
        let orphans = sweeper::recover(&mut connection, &owner, &policy).map_err(sqlite)?;
        db::write(&mut connection, |tx| {
            meta::put(tx, "started_by", owner.as_str())?;
            meta::put(tx, "started_at_ms", &wall_ms().to_string())?;
            meta::put(tx, "version", env!("CARGO_PKG_VERSION"))
        })
        .map_err(sqlite)?;

        let known_destinations = crate::store::destination::all(&connection).map_err(sqlite)?;
        let (inbox_checkpointer, inbox_checkpoint_thread) =
            checkpointer("ckpt-inbox", &inbox_path, Part::Inbox, &ward)?;
        let (writer, writer_thread) = Writer::start(
            "inbox-writer",
            inbox_path.clone(),
            Part::Inbox,
            connection,
            inbox_checkpointer,
            tally::land,
            Some(ward.clone()),
        )?;
        sweeper::tell(&alerts, Cause::StaleSending, &orphans);
        let inbox_pool = pool::open(inbox_path.clone(), Part::Inbox, POOL_READERS)?;
        let (notifier_stop, stopped) = crossbeam_channel::bounded(0);
        let notifier =
            Notifier::new(alerts.clone(), writer.clone(), hooks, quarantine_seen.clone(), stopped)?;
        let notifier = spawn("alerts", move || notifier.run())?;
        let outbox_pool = pool::open(outbox_path.clone(), Part::Outbox, POOL_READERS)?;
        let (clock_stop, stopped) = crossbeam_channel::bounded(0);
        let clock_watch = ClockWatch {
            outbox: outbox_path.clone(),
            writer: writer.clone(),
            alerts: alerts.clone(),
            stop: stopped,
            heard,
        };
        let clock_watch = spawn("clock", move || clock_watch.run())?;

        let stop = Arc::new(AtomicBool::new(false));
        let flags = Arc::new(WatchFlags::new()?);
        let mut lanes = Vec::new();
        let mut workers = Vec::new();
        let mut gates = Vec::new();
        let mut longest_call = Duration::ZERO;
        let mut settlers = Vec::new();
        let mut webhooks = Vec::new();
        let mut endpoints = Vec::new();
        let (go_on, stopped) = crossbeam_channel::bounded(0);
        let (rearm, rearm_heard) = reconcile::bell();
        for destination in &settings.destinations {
            let adapter = vendor::build(destination)
                .map_err(|reason| StartError::Vendor { name: destination.name.clone(), reason })?;
            longest_call = longest_call.max(destination.timeout);
            let gate = Arc::new(Gate::new(destination.close_after_unknown));
            if let Some(known) = known_destinations.iter().find(|known| known.name == destination.name) {
                gate.restore(&known.standing, clock::mono(), wall_ms());
            }
            gates.push((destination.name.clone(), gate.clone()));
            endpoints.push(listen::Served {
                name: destination.name.clone(),
                gate: gate.clone(),
                vendor: adapter.clone(),
            });
            let rate = Arc::new(Rate::new(destination.rate_per_s));
            match &destination.vendor {
                VendorSettings::BizPpurio(biz) => match &biz.reports {
                    Reports::Off => {}
                    Reports::Webhook(secret) => {
                        webhooks.push((account(settings, destination), secret.clone()))
                    }
                    Reports::Poll(every) => {
                        let poller = Poller {
                            account: account(settings, destination),
                            vendor: adapter.clone(),
                            every: *every,
                            rate: rate.clone(),
                            writer: writer.clone(),
                            policy: policy.clone(),
                            alerts: alerts.clone(),
                            stop: stop.clone(),
                            stopped: stopped.clone(),
                            hold: hold.clone(),
                        };
                        settlers.push(spawn(thread_name("poll", &destination.name), move || poller.run())?);
                    }
                },
                VendorSettings::Http(http) => {
                    if let Some(lookup) = &http.lookup {
                        let reconciler = Reconciler {
                            destination: Destination::new(&destination.name),
                            vendor: adapter.clone(),
                            never_received_after: lookup.never_received_after,
                            rate: rate.clone(),
                            gate: gate.clone(),
                            writer: writer.clone(),
                            inbox: inbox_pool.clone(),
                            policy: policy.clone(),
                            alerts: alerts.clone(),
                            rearm: rearm.clone(),
                            stop: stop.clone(),
                            stopped: stopped.clone(),
                            hold: hold.clone(),
                        };
                        settlers
                            .push(spawn(thread_name("ask", &destination.name), move || reconciler.run())?);
                    }
                }
            }
            let (sender, receiver) = crossbeam_channel::bounded(settings.relay.channel);
            let shared = Arc::new(Shared {
                vendor: adapter,
                gate: gate.clone(),
                rate,
                owner: owner.clone(),
                writer: writer.clone(),
                inbox: inbox_pool.clone(),
                outbox: outbox_pool.clone(),
                policy: policy.clone(),
                alerts: alerts.clone(),
                stop: stop.clone(),
                hold: hold.clone(),
                quick: settings.retry.quick,
            });
            for number in 0..destination.threads {
                let worker = Worker::new(shared.clone(), receiver.clone());
                workers
                    .push(spawn(thread_name(&destination.name, &number.to_string()), move || worker.run())?);
            }
            lanes.push(Lane {
                destination: Destination::new(&destination.name),
                handoff: sender,
                gate,
                threads: destination.threads,
                rate_per_s: destination.rate_per_s,
                places: Places::new(),
            });
        }

        let (outbox_checkpointer, outbox_checkpoint_thread) =
            checkpointer("ckpt-outbox", &outbox_path, Part::Outbox, &ward)?;
        let keys = Keys::new();
        let served = Served::default();
        let (sources, stop_sources) = Sources::new(SourcesParts {
            owner: owner.clone(),
            agent_id,
            settings: settings.relay.clone(),
            retry: settings.retry.clone(),
            routes: settings.routes.clone(),
            policy: policy.clone(),
            lanes: lanes.clone(),
            keys: keys.clone(),
            inbox: inbox_pool.clone(),
            writer: writer.clone(),
            alerts: alerts.clone(),
            served: served.clone(),
            ward: ward.clone(),
            stop_within: longest_call + STOP_MARGIN,
        });
        let look_at = Conditions::new(conditions::Parts {
            alerts: alerts.clone(),
            interval: settings.alert.interval,
            disk_free: settings.alert.disk_free,
            backlog_age: settings.alert.backlog_age,
            root: state.root.clone(),
            outbox: outbox_path.clone(),
            inbox: inbox_pool.clone(),
            writer: writer.clone(),
            gates: gates.clone(),
            quarantine_seen,
        });
        let (conditions_stop, stopped) = crossbeam_channel::bounded(0);
        let conditions = spawn("conditions", move || look_at.run(&stopped))?;
        let (relay, relay_events) = Relay::new(RelayParts {
            path: outbox_path.clone(),
            owner: owner.clone(),
            settings: settings.relay.clone(),
            retry: settings.retry.clone(),
            routes: settings.routes.clone(),
            policy: policy.clone(),
            lanes,
            inbox: inbox_pool.clone(),
            alerts: alerts.clone(),
            home: Home::Own(outbox_checkpointer),
            keys,
            flags: flags.clone(),
            ward: ward.clone(),
        })?;
        // Both writers, both checkpointers have them open: what lies there now is what must lie there.
        ward.watch(&[inbox_path.clone(), outbox_path.clone()])?;
        ward.look();
        let watch = Watch::new(&outbox_path, flags.clone())?;
        let wake = relay_events.clone();
        let watch = spawn("watch", move || {
            watch.run(|| {
                let _ = wake.send(Event::Wake);
            });
        })?;
        let relay = spawn("relay", move || relay.run())?;
        let sources = spawn("sources", move || sources.run())?;
        let rearmer = Rearmer {
            outbox: outbox_path.clone(),
            alerts: alerts.clone(),
            writer: writer.clone(),
            inbox: inbox_pool.clone(),
            heard: rearm_heard,
        };
        settlers.push(spawn("rearm", move || rearmer.run())?);
        let ready = Arc::new(AtomicBool::new(false));
        let server = listen::server::start(
            bound,
            listen::Context {
                writer: writer.clone(),
                inbox: inbox_pool,
                policy: policy.clone(),
                alerts: alerts.clone(),
                webhooks,
                rearm: rearm.clone(),
                ready: ready.clone(),
                ward: ward.clone(),
                state: state.clone(),
                settings: Arc::new(settings.clone()),
                destinations: endpoints,
                relay: relay_events.clone(),
                served: served.clone(),
            },
        )?;
        let retention = Room::start(RoomParts {
            own: (outbox_path, relay_events.clone()),
            served,
            inbox: state.inbox(),
            settings: settings.retention.clone(),
            policy: policy.clone(),
            writer: writer.clone(),
        })?;

        let agent = Self {
            writer,
            relay_events,
            stop,
            stop_sources,
            flags,
            relay,
            sources,
            workers,
            watch,
            clock_watch: (clock_stop, clock_watch),
            settlers,
            settlers_go_on: (go_on, rearm),
            server,
            ready,
            writer_thread,
            checkpointers: vec![inbox_checkpoint_thread, outbox_checkpoint_thread],
            retention,
            stop_within: longest_call + STOP_MARGIN,
            sweep: SweepParts {
                owner,
                stale: settings.alert.stale_sending,
                policy,
                alerts,
                last_sweep: Instant::now(),
                seen: Seen::default(),
            },
            gates,
            ward,
            telling: Telling { conditions, conditions_stop, notifier, notifier_stop },
            _ownership: ownership,
        };
        if !agent.makes_progress(Duration::from_secs(30)) {
            return Err(StartError::Io(std::io::Error::other(
                "the rooms did not answer within 30 s of their start",
            )));
        }
        agent.ready.store(true, Ordering::SeqCst);
        Ok(agent)
    }

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

    /// Graceful stop (F16). True if every section from claim to record came to its end.
    pub fn stop(self) -> bool {
        let deadline = Instant::now() + self.stop_within;
        // Nothing is closed over files that others have put there.
        self.ward.freeze_if_replaced();
        self.ready.store(false, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        self.flags.stop();
        let _ = self.relay_events.send(Event::Stop(deadline));
        let _ = self.stop_sources.send(deadline);
        let Self {
            relay,
            sources,
            workers,
            watch,
            clock_watch,
            settlers,
            settlers_go_on,
            server,
            writer_thread,
            checkpointers,
            writer,
            relay_events,
            sweep,
            telling,
            retention,
            ..
        } = self;
        drop(telling.conditions_stop);
        let (clock_stop, clock_watch) = clock_watch;
        drop(clock_stop);
        let _ = join_until(clock_watch, deadline);
        let served = server.stop(deadline);
        drop(settlers_go_on);
        let retention = retention.stop();
        // Their lanes drop: workers end.
        let in_time = [join_until(relay, deadline), join_until(sources, deadline), served] == [true; 3];
        let late =
            workers.into_iter().map(|worker| join_until(worker, deadline)).filter(|ended| !ended).count();
        let late = late
            + settlers
                .into_iter()
                .map(|settler| join_until(settler, deadline))
                .filter(|ended| !ended)
                .count();
        let all = in_time && late == 0;
        // After those who raise, before the writer that keeps the last of it.
        let _ = join_until(telling.conditions, deadline);
        drop(telling.notifier_stop);
        let _ = join_until(telling.notifier, deadline.max(Instant::now() + STOP_MARGIN / 2));
        drop((writer, sweep, relay_events));
        let all = join_until(retention, deadline) && all;
        if all {
            // Only now is nobody left who could hand the writer an outcome.
            let written = join_until(writer_thread, deadline);
            let _ = join_until(watch, deadline);
            for checkpointer in checkpointers {
                let _ = join_until(checkpointer, deadline);
            }
            return written;
        }
        false
    }
}

/// Begins to watch the clock, by the newest time that is recorded in both files: it may have been set wrong, or have
/// begun at 1970. Returns the last vouching of a person that was heard.
pub fn begin_clock(
    inbox: &mut rusqlite::Connection,
    inbox_path: &Path,
    outbox_path: &Path,
) -> Result<Option<String>, DbError> {
    let outbox = db::open_reader(outbox_path, Part::Outbox)?;
    let heard = db::write(inbox, |tx| {
        let vouched = watch_clock::vouched(tx, &outbox)?;
        let newest_ms = if vouched.is_some() { None } else { watch_clock::newest_recorded(tx, &outbox)? };
        if let Some(vouched) = &vouched {
            watch_clock::hear(tx, vouched)?;
        }
        clock::begin(newest_ms);
        // Not what an earlier run thought of it.
        meta::put(tx, watch_clock::DOUBT, clock::now().doubt.map_or("", clock::Doubt::as_str))?;
        meta::get(&outbox, watch_clock::VOUCHED)
    });
    let heard = heard.map_err(|source| DbError::sqlite(inbox_path, source))?;
    if let Some(doubt) = clock::now().doubt {
        log::warn!("the clock {}: what depends on the hour is held", doubt.as_str());
    }
    Ok(heard)
}

/// A drain does not outlive the agent that it was about: producers are let in again.
fn end_drain(outbox_path: &Path) -> Result<(), DbError> {
    let sqlite = |source| DbError::sqlite(outbox_path, source);
    let reader = db::open_reader(outbox_path, Part::Outbox)?;
    if intake::closed_until(&reader, wall_ms()).map_err(sqlite)?.is_some() {
        let mut outbox = db::open_writer(outbox_path, Part::Outbox, Durability::Full)?;
        let _ = db::write(&mut outbox, |tx| intake::open(tx, wall_ms())).map_err(sqlite)?;
        log::warn!("the drain has ended: new messages are taken again");
    }
    Ok(())
}

/// F30: both files or none; one alone is a person's decision.
fn both_or_none(state: &StateDir) -> Result<(), StartError> {
    let (outbox, inbox) = (state.outbox(), state.inbox());
    match (outbox.exists(), inbox.exists()) {
        (true, false) => Err(StartError::HalfThere { missing: inbox, stands: outbox }),
        (false, true) => Err(StartError::HalfThere { missing: outbox, stands: inbox }),
        (false, false) => Err(StartError::Db(DbError::Missing { path: outbox })),
        (true, true) => Ok(()),
    }
}

/// The destinations that send by this one's account.
fn account(settings: &Settings, destination: &DestinationSettings) -> Account {
    let key = |one: &DestinationSettings| match &one.vendor {
        VendorSettings::BizPpurio(biz) => Some((one.url.clone(), biz.account.clone())),
        VendorSettings::Http(_) => None,
    };
    let others = settings
        .destinations
        .iter()
        .filter(|one| one.name != destination.name && key(one).is_some() && key(one) == key(destination))
        .map(|one| Destination::new(&one.name))
        .collect();
    Account { destination: Destination::new(&destination.name), others }
}

fn checkpointer(
    name: &'static str,
    path: &Path,
    part: Part,
    ward: &Ward,
) -> Result<(Checkpointer, JoinHandle<()>), StartError> {
    Checkpointer::start(name, path.to_owned(), part, ward.frozen())
        .map_err(|reason| StartError::Db(DbError::Unusable { path: path.to_owned(), reason }))
}

/// At most 15 bytes reach the kernel's thread name: the number must survive.
fn thread_name(first: &str, second: &str) -> String {
    let short: String = first.chars().take(10).collect();
    format!("{short}-{second}")
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
