//! The start: every room in order, from the folder to READY.
//!
//! Never: a room before the inbox knows who we are and what dead starts left in SENDING is settled, and no READY before
//! a real commit is on the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::begin::{begin_clock, both_or_none, end_drain};
use super::destinations::{self, Common, Destinations};
use super::{Agent, StartError, SweepParts, Telling};
use crate::adopt;
use crate::alert::conditions::{self, Conditions};
use crate::alert::notifier::{self, Notifier};
use crate::alert::{Alerts, Cause};
use crate::clock::wall_ms;
use crate::clock::watch::ClockWatch;
use crate::config::Settings;
use crate::db::checkpoint::Checkpointer;
use crate::db::identity::WitnessFiles;
use crate::db::reserve::Reserve;
use crate::db::writer::Writer;
use crate::db::{self, DbError, Durability, Part, pool};
use crate::hold::{Hold, Why};
use crate::limits::{POOL_READERS, STOP_MARGIN};
use crate::listen;
use crate::owner::{self, AgentId, StateDir};
use crate::policy::Policy;
use crate::reconcile::{self, Rearmer};
use crate::relay::{Event, Home, Relay, RelayParts};
use crate::retention::room::{Room, RoomParts};
use crate::share::Keys;
use crate::source::{Served, Sources, SourcesParts};
use crate::store::{meta, tally};
use crate::sweeper::{self, Seen};
use crate::thread::spawn;
use crate::ward::Ward;
use crate::watch::{Watch, WatchFlags};

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
        let recalled = {
            let outbox = db::open_reader(&outbox_path, Part::Outbox)?;
            conditions::recall(&alerts, &connection, &outbox).map_err(sqlite)?
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
        adopt::give_back(&connection, &outbox_path, &owner)?;
        let agent_id = AgentId::new(agent_id);
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
            Notifier::new(alerts.clone(), writer.clone(), hooks, recalled.quarantine_seen.clone(), stopped)?;
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
        let (go_on, stopped) = crossbeam_channel::bounded(0);
        let (rearm, rearm_heard) = reconcile::bell();
        let Destinations { lanes, workers, gates, mut settlers, webhooks, endpoints, longest_call } =
            destinations::start(Common {
                settings,
                known_destinations: &known_destinations,
                owner: &owner,
                writer: &writer,
                inbox_pool: &inbox_pool,
                outbox_pool: &outbox_pool,
                policy: &policy,
                alerts: &alerts,
                hold: &hold,
                rearm: &rearm,
                stop: &stop,
                stopped: &stopped,
            })?;

        let (outbox_checkpointer, outbox_checkpoint_thread) =
            checkpointer("ckpt-outbox", &outbox_path, Part::Outbox, &ward)?;
        let keys = Keys::new();
        let served = Served::default();
        let (sources, stop_sources) = Sources::new(SourcesParts {
            owner: owner.clone(),
            agent_id: agent_id.clone(),
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
            recalled,
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
                agent_id,
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
}

fn checkpointer(
    name: &'static str,
    path: &Path,
    part: Part,
    ward: &Ward,
) -> Result<(Checkpointer, JoinHandle<()>), StartError> {
    Checkpointer::start(name, path.to_owned(), part, ward.frozen()).map_err(StartError::Db)
}
