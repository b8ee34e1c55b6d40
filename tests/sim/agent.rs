//! The rooms of one start, built in the order of `agent.rs` and stepped instead of run in threads.
//!
//! A room that is at work is taken out of its place, so that nothing calls it again in the middle of its own step.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use onceward::agent::begin_clock;
use onceward::alert::{Alerts, Cause};
use onceward::clock::{self, wall_ms};
use onceward::config::Settings;
use onceward::db::checkpoint::{CheckpointRoom, Checkpointer};
use onceward::db::identity::WitnessFiles;
use onceward::db::pool::Pool;
use onceward::db::reserve::Reserve;
use onceward::db::writer::{self, Writer};
use onceward::db::{self, Durability, Part, pool};
use onceward::gate::Gate;
use onceward::hold::Hold;
use onceward::message::{Destination, OwnerId};
use onceward::owner::StateDir;
use onceward::policy::Policy;
use onceward::poller::Account;
use onceward::rate::Rate;
use onceward::reconcile::{self, Bell, Rearmer, Reconciler};
use onceward::relay::{Event, Handoff, Home, Lane, Relay, RelayParts};
use onceward::retention::room::{Duty, RoomParts};
use onceward::share::{Keys, Places};
use onceward::store::{destination, meta, tally};
use onceward::sweeper::{self, Seen};
use onceward::vendor::Vendor;
use onceward::ward::Ward;
use onceward::watch::WatchFlags;
use onceward::worker::{Shared, Worker};

use crate::plan::Mistake;
use crate::vendor::Scripted;

/// The one destination.
pub const GATEWAY: &str = "gateway";
const WORKERS: usize = 3;

pub struct Agent {
    pub owner: OwnerId,
    pub writer: Writer,
    pub writer_room: Option<writer::Room>,
    pub relay: Option<Relay>,
    pub relay_events: Sender<Event>,
    pub workers: Vec<Option<Worker>>,
    pub handoffs: Receiver<Handoff>,
    pub checkpoints: [Option<CheckpointRoom>; 2],
    pub rearmer: Option<Rearmer>,
    pub reconciler: Option<(Reconciler, reconcile::Seen)>,
    pub retention: Option<Duty>,
    pub policy: Arc<Policy>,
    pub alerts: Alerts,
    pub account: Account,
    pub stop: Arc<AtomicBool>,
    pub seen: Seen,
    /// Their other ends are the rooms' stops and bells.
    _held: (Bell, Sender<()>),
}

pub struct Place {
    pub settings: Settings,
    pub outbox: PathBuf,
    pub inbox: PathBuf,
}

fn readers(path: &Path, part: Part) -> Result<Pool, String> {
    static HELPER: OnceLock<Arc<scheduled_thread_pool::ScheduledThreadPool>> = OnceLock::new();
    let helper = HELPER.get_or_init(|| Arc::new(scheduled_thread_pool::ScheduledThreadPool::new(1)));
    let reader = db::open_reader(path, part).map_err(|error| error.to_string())?;
    let pool = pool::of(vec![reader], helper.clone());
    // The helper has let go of the pool when this returns: the reader is closed by whoever drops the pool, and then.
    let (done, is_done) = crossbeam_channel::bounded(1);
    helper.execute(move || done.send(()).unwrap_or_default());
    is_done.recv().map_err(text)?;
    Ok(pool)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

impl Agent {
    /// As `Agent::start`, without threads, folder lock, hooks and server.
    pub fn start(place: &Place, number: u32, mistake: Mistake) -> Result<Self, String> {
        let Place { settings, outbox: outbox_path, inbox: inbox_path } = place;
        let policy = Arc::new(Policy::new(settings));
        let mut connection = db::open_writer(inbox_path, Part::Inbox, Durability::Full).map_err(text)?;
        if mistake == Mistake::InboxNormal {
            connection.execute_batch("PRAGMA synchronous = NORMAL").map_err(text)?;
        }
        let alerts = Alerts::new(vec![GATEWAY.into()], settings.alert.interval, &[]);
        // The witness and the reserve are real files: no world is a copy, and the real disk has room.
        let state = StateDir::new(&settings.agent.state_dir);
        let hold = Hold::new(alerts.clone(), None);
        let witness = WitnessFiles::open(&state).map_err(text)?;
        let reserve = Reserve::new(vec![settings.agent.state_dir.clone()]);
        let ward = Arc::new(Ward::new(hold.clone(), witness, reserve));
        let owner = OwnerId::new(format!("sim:{number}"));
        begin_clock(&mut connection, inbox_path, outbox_path).map_err(text)?;
        if mistake == Mistake::StartForgetsSending {
            connection.execute("DELETE FROM inbox WHERE status = 'SENDING'", []).map_err(text)?;
        }
        let orphans = sweeper::recover(&mut connection, &owner, &policy).map_err(text)?;
        db::write(&mut connection, |tx| meta::put(tx, "started_by", owner.as_str())).map_err(text)?;
        let known = destination::all(&connection).map_err(text)?;
        let (checkpointer, inbox_checkpoint) =
            Checkpointer::new(inbox_path.clone(), Part::Inbox, ward.frozen()).map_err(text)?;
        let (writer, writer_room) = Writer::new(
            inbox_path.clone(),
            Part::Inbox,
            connection,
            checkpointer,
            tally::land,
            Some(ward.clone()),
        );
        sweeper::tell(&alerts, Cause::StaleSending, &orphans);
        let inbox = readers(inbox_path, Part::Inbox)?;
        let outbox = readers(outbox_path, Part::Outbox)?;
        let stop = Arc::new(AtomicBool::new(false));
        let gate = Arc::new(Gate::new(settings.destinations[0].close_after_unknown));
        if let Some(known) = known.iter().find(|known| known.name == GATEWAY) {
            gate.restore(&known.standing, clock::mono(), wall_ms());
        }
        let vendor: Arc<dyn Vendor> = Arc::new(Scripted);
        let rate = Arc::new(Rate::new(None));
        let (bell, heard) = reconcile::bell();
        let (go_on, stopped) = crossbeam_channel::bounded(0);
        let (handoff, handoffs) = crossbeam_channel::bounded(settings.relay.channel);
        let shared = Arc::new(Shared {
            vendor: vendor.clone(),
            gate: gate.clone(),
            rate: rate.clone(),
            owner: owner.clone(),
            writer: writer.clone(),
            inbox: inbox.clone(),
            outbox,
            policy: policy.clone(),
            alerts: alerts.clone(),
            stop: stop.clone(),
            hold: hold.clone(),
            quick: settings.retry.quick,
            login: std::sync::Mutex::default(),
        });
        let workers = (0..WORKERS).map(|_| Some(Worker::new(shared.clone(), handoffs.clone()))).collect();
        let (checkpointer, outbox_checkpoint) =
            Checkpointer::new(outbox_path.clone(), Part::Outbox, ward.frozen()).map_err(text)?;
        let lane = Lane {
            destination: Destination::new(GATEWAY),
            handoff,
            gate: gate.clone(),
            threads: WORKERS,
            rate_per_s: None,
            places: Places::new(),
        };
        let (relay, relay_events) = Relay::new(RelayParts {
            path: outbox_path.clone(),
            owner: owner.clone(),
            settings: settings.relay.clone(),
            retry: settings.retry.clone(),
            routes: settings.routes.clone(),
            policy: policy.clone(),
            lanes: vec![lane],
            inbox: inbox.clone(),
            alerts: alerts.clone(),
            home: Home::Own(checkpointer),
            keys: Keys::new(),
            ward,
            flags: Arc::new(WatchFlags::new().map_err(text)?),
        })
        .map_err(text)?;
        let rearmer = Rearmer {
            outbox: outbox_path.clone(),
            alerts: alerts.clone(),
            writer: writer.clone(),
            inbox: inbox.clone(),
            heard,
        };
        let reconciler = Reconciler {
            destination: Destination::new(GATEWAY),
            vendor,
            never_received_after: Duration::from_secs(600),
            rate,
            gate,
            writer: writer.clone(),
            inbox,
            policy: policy.clone(),
            alerts: alerts.clone(),
            rearm: bell.clone(),
            stop: stop.clone(),
            stopped: stopped.clone(),
            hold,
        };
        let retention = Duty::new(
            RoomParts {
                own: (outbox_path.clone(), relay_events.clone()),
                served: Default::default(),
                inbox: inbox_path.clone(),
                settings: settings.retention.clone(),
                policy: policy.clone(),
                writer: writer.clone(),
            },
            stopped,
        );
        Ok(Self {
            owner,
            writer,
            writer_room: Some(writer_room),
            relay: Some(relay),
            relay_events,
            workers,
            handoffs,
            checkpoints: [Some(inbox_checkpoint), Some(outbox_checkpoint)],
            rearmer: Some(rearmer),
            reconciler: Some((reconciler, reconcile::Seen::new())),
            retention: Some(retention),
            policy,
            alerts,
            account: Account { destination: Destination::new(GATEWAY), others: Vec::new() },
            stop,
            seen: Seen::default(),
            _held: (bell, go_on),
        })
    }
}
