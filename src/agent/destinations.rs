//! The rooms of each destination: its workers, and the poller of reports or the asker of look-ups where it has one.
//!
//! Never: a room that serves all destinations; those are in `start.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::StartError;
use crate::alert::Alerts;
use crate::clock::{self, wall_ms};
use crate::config::{DestinationSettings, Reports, Secret, Settings, VendorSettings};
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::gate::Gate;
use crate::hold::Hold;
use crate::listen;
use crate::message::{Destination, OwnerId};
use crate::policy::Policy;
use crate::poller::{Account, Poller};
use crate::rate::Rate;
use crate::reconcile::{Bell, Reconciler};
use crate::relay::Lane;
use crate::share::Places;
use crate::store::destination::Known;
use crate::thread::spawn;
use crate::vendor;
use crate::worker::{Shared, Worker};

/// What all of them share.
#[derive(Clone, Copy)]
pub(super) struct Common<'a> {
    pub(super) settings: &'a Settings,
    /// How they stood when an earlier start ended.
    pub(super) known_destinations: &'a [Known],
    pub(super) owner: &'a OwnerId,
    pub(super) writer: &'a Writer,
    pub(super) inbox_pool: &'a Pool,
    pub(super) outbox_pool: &'a Pool,
    pub(super) policy: &'a Arc<Policy>,
    pub(super) alerts: &'a Alerts,
    pub(super) hold: &'a Hold,
    /// Wakes the room that opens outbox rows.
    pub(super) rearm: &'a Bell,
    /// Begin nothing more.
    pub(super) stop: &'a Arc<AtomicBool>,
    /// Ends the waits of pollers and askers.
    pub(super) stopped: &'a Receiver<()>,
}

/// What was started, and what others need of it.
pub(super) struct Destinations {
    /// For the relays.
    pub(super) lanes: Vec<Lane>,
    pub(super) workers: Vec<JoinHandle<()>>,
    pub(super) gates: Vec<(String, Arc<Gate>)>,
    /// Pollers and askers.
    pub(super) settlers: Vec<JoinHandle<()>>,
    /// For the listener.
    pub(super) webhooks: Vec<(Account, Secret)>,
    /// For the listener.
    pub(super) endpoints: Vec<listen::Served>,
    /// The longest time-out of a call, by which a stop is measured.
    pub(super) longest_call: Duration,
}

/// Starts them all, in the order of the settings.
pub(super) fn start(common: Common<'_>) -> Result<Destinations, StartError> {
    let Common {
        settings,
        known_destinations,
        owner,
        writer,
        inbox_pool,
        outbox_pool,
        policy,
        alerts,
        hold,
        rearm,
        stop,
        stopped,
    } = common;
    let mut lanes = Vec::new();
    let mut workers = Vec::new();
    let mut gates = Vec::new();
    let mut longest_call = Duration::ZERO;
    let mut settlers = Vec::new();
    let mut webhooks = Vec::new();
    let mut endpoints = Vec::new();
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
                Reports::Webhook(secret) => webhooks.push((account(settings, destination), secret.clone())),
                Reports::Poll(every) => {
                    let poller = Poller {
                        account: account(settings, destination),
                        vendor: adapter.clone(),
                        every: *every,
                        rate: rate.clone(),
                        writer: writer.clone(),
                        inbox: inbox_pool.clone(),
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
                    settlers.push(spawn(thread_name("ask", &destination.name), move || reconciler.run())?);
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
            login: std::sync::Mutex::default(),
        });
        for number in 0..destination.threads {
            let worker = Worker::new(shared.clone(), receiver.clone());
            workers.push(spawn(thread_name(&destination.name, &number.to_string()), move || worker.run())?);
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
    Ok(Destinations { lanes, workers, gates, settlers, webhooks, endpoints, longest_call })
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

/// At most 15 bytes reach the kernel's thread name: the number must survive.
fn thread_name(first: &str, second: &str) -> String {
    let short: String = first.chars().take(10).collect();
    format!("{short}-{second}")
}
