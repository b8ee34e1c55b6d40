//! Room: outbox -> hand-off -> marks. One loop over a closed set of events; the only writer of its outbox file.
//!
//! It claims due rows, only as many as the workers have room for, in fair turns between destinations, and marks each
//! row when its confirm comes back. It never closes a row on a rule without looking into the inbox first: a row
//! whose mark was lost may have been sent. Its commits are not synced (losing one only makes a row be handed over
//! again); what guards against a second send is in the inbox. Serves F2-F6, F11, F22, F28.
//!
//! Never: calls a vendor, writes the inbox, holds a transaction while it waits.

mod foreign;
mod hours;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::Connection;

use self::foreign::Foreign;
use crate::alert::{Alerts, Cause};
use crate::clock::{self, Now, ms, wall_ms};
use crate::config::{RelaySettings, RetrySettings, Route};
use crate::db::checkpoint::Checkpointer;
use crate::db::pool::Pool;
use crate::db::{self, Durability, Part, kill};
use crate::gate::{Gate, Room};
use crate::lifecycle::InboxState;
use crate::limits::{
    BATCHES_PER_ROUND, FILES_LOOK, HANDOFFS_PER_THREAD, KEY_ELSEWHERE_PAUSE, PURGE_ROWS, RELAY_GATHER,
    RELAY_PAUSE, RELAY_RECONCILE, RELAY_SWEEP_MAX, RELAY_YIELD_MAX, WRITER_RETRY_MAX, WRITER_RETRY_MIN,
};
use crate::message::{Destination, Message, MessageId, NotSentKind, OwnerId};
use crate::order::{Looks, Turn};
use crate::policy::{Asking, Policy, Verdict, consent, deadline_reason};
use crate::retention;
use crate::retry::{self, Next};
use crate::route;
use crate::share::{Held, Keys, Places, Share};
use crate::source::Guard;
use crate::store::outbox::{Facts, RawText};
use crate::store::{inbox, outbox, suppress};
use crate::ward::Ward;
use crate::watch::WatchFlags;

/// One message on its way to a worker; moved, never shared.
#[derive(Debug)]
pub struct Handoff {
    /// Row in the relay's outbox.
    pub row: i64,
    /// Claims so far.
    pub attempts: u32,
    /// Handed over before: look in the inbox first.
    pub again: bool,
    /// What to deliver.
    pub message: Message,
    /// When it was claimed; waiting is measured from here and from its due time.
    pub claimed: Instant,
    /// From then on the row may be in other hands (well before its lease is over): nothing more is begun on it, and
    /// nothing but its fate is said of it.
    pub until: Instant,
    /// Where the confirm goes.
    pub confirm: Sender<Event>,
    /// Its place and its order lane, free again when the worker is done with it.
    pub held: Held,
}

/// What a worker says of a hand-off.
#[derive(Debug)]
pub struct Confirm {
    /// Row in the relay's outbox.
    pub row: i64,
    /// Its message: a file that went back in time may have given the row's id to another one.
    pub message_id: MessageId,
    /// What is to be marked.
    pub answer: Answer,
}

/// The worker's answers.
#[derive(Debug)]
pub enum Answer {
    /// The inbox has its fate: PUBLISHED.
    Settled,
    /// Another copy of it is in a worker's hands, whose confirm will come.
    InFlight,
    /// Certainly not sent.
    NotSent {
        /// What kind of "not sent".
        kind: NotSentKind,
        /// For people.
        reason: String,
    },
    /// Not even begun (stop, gate shut, database in trouble): back, no attempt used.
    Returned(&'static str),
    /// A bug or a panic before its claim: back, with the hand-off pauses.
    HandoffFailed(String),
    /// Policy: later.
    Wait {
        /// UTC milliseconds.
        until_ms: i64,
        /// Its deadline from now on, where it was moved to its last day.
        last_ms: Option<i64>,
        /// For people.
        reason: String,
    },
    /// Policy: not before the clock is right.
    Hold(String),
    /// Policy: never.
    Skip(String),
    /// Policy: too late.
    Expire(String),
    /// It could never be sent as it is: waits for a person.
    Park(String),
}

/// All that can wake the relay.
#[derive(Debug)]
pub enum Event {
    /// Somebody committed to the outbox.
    Wake,
    /// A worker is done with a hand-off.
    Confirm(Confirm),
    /// A bounded step of retention, done between two rounds.
    Purge(retention::room::Request),
    /// Answer when this round is done: a proof of progress.
    Ping(Sender<()>),
    /// Claim nothing more; give back what was not begun; end when all hand-offs are back, or at the deadline.
    Stop(Instant),
}

/// One destination as the relay sees it.
#[derive(Clone)]
pub struct Lane {
    /// Its name.
    pub destination: Destination,
    /// To its workers.
    pub handoff: Sender<Handoff>,
    /// Shared with its workers.
    pub gate: Arc<Gate>,
    /// Its workers.
    pub threads: usize,
    /// Its budget, calls a second.
    pub rate_per_s: Option<f64>,
    /// Shared with the relays of the other sources.
    pub places: Arc<Places>,
}

/// Whose file the relay works on.
pub enum Home {
    /// `outbox.db`, with the checkpointer of the file.
    Own(Checkpointer),
    /// An application's own file: opened as the application keeps it, looked at before each round.
    Source(Guard),
}

/// What the relay is made of.
pub struct RelayParts {
    /// The outbox file.
    pub path: PathBuf,
    /// This start.
    pub owner: OwnerId,
    /// `[relay]`
    pub settings: RelaySettings,
    /// `[retry]`
    pub retry: RetrySettings,
    /// `[[route]]`
    pub routes: Vec<Route>,
    /// The rules.
    pub policy: Arc<Policy>,
    /// One for each destination.
    pub lanes: Vec<Lane>,
    /// Readers of the inbox, to look before closing a row.
    pub inbox: Pool,
    /// To tell people.
    pub alerts: Alerts,
    /// Whose file it is.
    pub home: Home,
    /// Order lanes under way, shared with the relays of the other sources.
    pub keys: Arc<Keys>,
    /// Shared with the watch.
    pub flags: Arc<WatchFlags>,
    /// Whether anything may be sent at all.
    pub ward: Arc<Ward>,
}

/// The room.
pub struct Relay {
    parts: RelayParts,
    connection: Option<Connection>,
    events: Receiver<Event>,
    to_self: Sender<Event>,
    /// Rows handed over and not confirmed.
    in_flight: BTreeMap<i64, Flight>,
    /// For each lane.
    lane_in_flight: Vec<usize>,
    /// For each lane: this relay's part in its places.
    shares: Vec<Share>,
    /// The source's name in [`Keys`].
    name: Arc<str>,
    /// Confirms to be marked.
    confirms: Vec<Confirm>,
    stop: Option<Instant>,
    last_reconcile: Instant,
    reconcile_now: bool,
    trouble: Option<Duration>,
    turn: usize,
    /// Claims of other agents, and since when each was not renewed.
    foreign: Foreign,
    /// The clock's epoch in which rows were last held against it.
    clock_epoch: u64,
}

/// A hand-off under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    lane: usize,
    since: Instant,
    /// Handed over before: an older copy's confirm may still be under way.
    again: bool,
}

/// What one round did.
struct Round {
    worked: bool,
    handoffs: Vec<(usize, Handoff)>,
    alerts: Vec<(Cause, String, String)>,
}

impl Relay {
    /// Opens the outbox and gives back what dead starts of this agent had claimed.
    pub fn new(parts: RelayParts) -> Result<(Self, Sender<Event>), db::DbError> {
        let mut connection = parts.open()?;
        let moved = db::write(&mut connection, |tx| {
            outbox::lease_over(tx, &parts.owner, wall_ms(), |_| false, |_, _, _| false)
        })
        .map_err(|source| db::DbError::sqlite(&parts.path, source))?;
        if moved > 0 {
            log::warn!(
                "{moved} messages that an earlier start had claimed are looked up in the inbox: what was called for is closed, \
                 the others go out (CLAIM_EXPIRED)"
            );
        }
        let (mut relay, sender) = Self::unopened(parts);
        relay.connection = Some(connection);
        relay.reconcile_now = false;
        Ok((relay, sender))
    }

    /// Opens nothing yet: the first round does, and goes on trying, so that a source in trouble stops nobody.
    pub fn unopened(parts: RelayParts) -> (Self, Sender<Event>) {
        let (sender, events) = crossbeam_channel::unbounded();
        let lanes = parts.lanes.len();
        let name: Arc<str> = match &parts.home {
            Home::Own(_) => Arc::from(""),
            Home::Source(guard) => guard.name().into(),
        };
        parts.keys.files.expect(&name, &parts.path);
        let relay = Self {
            shares: parts.lanes.iter().map(|lane| lane.places.join(sender.clone())).collect(),
            name,
            parts,
            connection: None,
            events,
            to_self: sender.clone(),
            in_flight: BTreeMap::new(),
            lane_in_flight: vec![0; lanes],
            confirms: Vec::new(),
            stop: None,
            last_reconcile: clock::mono(),
            reconcile_now: true,
            trouble: None,
            turn: 0,
            foreign: Foreign::default(),
            clock_epoch: 0,
        };
        (relay, sender)
    }

    /// Runs until stopped and all hand-offs are back (or the stop's deadline has come), or until a source's file has
    /// been replaced: what memory knows of the old file's rows is worth nothing then.
    pub fn run(mut self) {
        let (mut wait, mut pings) = (Duration::ZERO, Vec::new());
        loop {
            self.collect(wait, &mut pings);
            if let Home::Source(guard) = &self.parts.home
                && self.connection.is_some()
                && guard.was_replaced()
            {
                log::warn!("source {}: its file was moved or replaced; it is opened anew", self.name);
                return;
            }
            let worked = self.work(&mut pings);
            if self.is_done() {
                return self.give_back_the_rest();
            }
            wait = if let Some(took) = worked {
                // Leave the lock to producers for at least as long as it was held, and let marks and claims gather:
                // the workers have enough at hand. Where they have not, look again soon.
                let gather = if self.workers_are_fed() { RELAY_GATHER } else { RELAY_PAUSE };
                clock::sleep(took.clamp(gather, RELAY_YIELD_MAX));
                Duration::ZERO
            } else {
                // From here on hints ring; look once more, since one may have come before.
                self.parts.flags.busy.store(false, Ordering::Relaxed);
                if self.round() { Duration::ZERO } else { self.until_next() }
            };
        }
    }

    /// Takes what has come, then one round: what `run` repeats, without its waits.
    pub fn step(&mut self) {
        let mut pings = Vec::new();
        self.collect(Duration::ZERO, &mut pings);
        self.work(&mut pings);
    }

    /// One round, and the answers to pings. How long the round took, if there was anything to do.
    fn work(&mut self, pings: &mut Vec<Sender<()>>) -> Option<Duration> {
        self.parts.flags.busy.store(true, Ordering::Relaxed);
        let begun = clock::mono();
        let worked = self.round();
        for ping in pings.drain(..) {
            let _ = ping.send(());
        }
        worked.then(|| clock::elapsed(begun))
    }

    /// Waits for the first event, then takes all that are there.
    fn collect(&mut self, wait: Duration, pings: &mut Vec<Sender<()>>) {
        let first = if wait.is_zero() {
            match self.events.try_recv() {
                Ok(event) => event,
                Err(_) => return,
            }
        } else {
            match self.events.recv_timeout(wait) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        };
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                Event::Wake => {}
                Event::Confirm(confirm) => self.confirms.push(confirm),
                Event::Ping(ping) => pings.push(ping),
                Event::Purge(request) => self.purge(request),
                Event::Stop(deadline) => self.stop = Some(deadline),
            }
            next = self.events.try_recv().ok();
        }
    }

    /// One step of retention in a transaction of its own. Its failure touches nothing else.
    fn purge(&mut self, request: retention::room::Request) {
        let answer = match &mut self.connection {
            Some(connection) if self.stop.is_none() => {
                match retention::apply_outbox(connection, &request.step, PURGE_ROWS) {
                    Ok(done) => {
                        if let Home::Own(checkpointer) = &self.parts.home {
                            checkpointer.after_commit(connection);
                        }
                        Ok(done)
                    }
                    Err(error) => {
                        // As after any failed commit: the next round opens and reads the file anew.
                        self.connection = None;
                        Err(format!("{}: {error}", self.parts.path.display()))
                    }
                }
            }
            Some(_) => Err("stopping".into()),
            None => Err(format!("{}: cannot be written now", self.parts.path.display())),
        };
        let _ = request.reply.send(answer);
    }

    fn is_done(&self) -> bool {
        // Marks that a source in trouble cannot take are found again by the next start, in the inbox (F5).
        let unmarkable = matches!(self.parts.home, Home::Source(_))
            && self.trouble.is_some()
            && self.in_flight.len() <= self.confirms.len();
        self.stop.is_some_and(|deadline| {
            unmarkable || (self.in_flight.is_empty() && self.confirms.is_empty()) || clock::mono() >= deadline
        })
    }

    /// One commit: marks first, then what the relay closes itself, then new claims. True if there was anything to do.
    fn round(&mut self) -> bool {
        if self.stop.is_some() && self.confirms.is_empty() {
            return false;
        }
        let confirms = std::mem::take(&mut self.confirms);
        match self.try_round(&confirms) {
            Ok(round) => {
                self.parts.keys.files.tell(&self.name, true);
                if let Home::Source(guard) = &self.parts.home {
                    guard.is_well();
                }
                if self.trouble.take().is_some() {
                    log::warn!("{}: can be written again", self.parts.path.display());
                    self.parts.alerts.clear(Cause::Database, "outbox.db");
                }
                for confirm in &confirms {
                    if !matches!(confirm.answer, Answer::InFlight) {
                        self.land(confirm.row);
                    }
                }
                for (cause, destination, text) in round.alerts {
                    log::warn!("{text} dest={destination}");
                    self.parts.alerts.raise(cause, &destination, text);
                }
                if !round.handoffs.is_empty() {
                    let _ = kill::point("relay-after-claim");
                }
                for (lane, handoff) in round.handoffs {
                    // A row that a hand edit set back while it was in flight comes a second time: the inbox absorbs it.
                    self.land(handoff.row);
                    let flight = Flight { lane, since: clock::mono(), again: handoff.again };
                    self.in_flight.insert(handoff.row, flight);
                    self.lane_in_flight[lane] += 1;
                    // Never blocks: the channel has as many places as are given out. Should it be full all the same,
                    // or the workers gone, the row waits again.
                    if let Err(refused) = self.parts.lanes[lane].handoff.try_send(handoff) {
                        let Handoff { row, message, .. } = refused.into_inner();
                        let answer = Answer::Returned("CHANNEL_FULL");
                        self.confirms.push(Confirm { row, message_id: message.message_id, answer });
                    }
                }
                round.worked
            }
            Err(error) => {
                // Marks are kept and made again; claims that may nevertheless be in the file come back by
                // `reconcile`, since memory does not know them.
                self.confirms = confirms;
                self.connection = None;
                self.parts.keys.files.tell(&self.name, false);
                self.reconcile_now = true;
                self.clock_epoch = 0;
                self.shares.iter().for_each(|share| share.want(false));
                if let Home::Source(guard) = &self.parts.home {
                    guard.is_in_trouble(&error);
                }
                let pause = match self.trouble {
                    None => {
                        log::error!(
                            "{}: {error}; nothing new is taken from it until it can be written{}",
                            self.parts.path.display(),
                            db::holder::in_words(&self.parts.path)
                        );
                        let text = "outbox.db cannot be written: nothing new is taken from it until it can";
                        self.parts.alerts.raise(Cause::Database, "outbox.db", text.into());
                        WRITER_RETRY_MIN
                    }
                    Some(pause) => (pause * 2).min(WRITER_RETRY_MAX),
                };
                self.trouble = Some(pause);
                false
            }
        }
    }

    fn land(&mut self, row: i64) {
        if let Some(flight) = self.in_flight.remove(&row) {
            self.lane_in_flight[flight.lane] -= 1;
        }
    }

    /// Hand-offs whose confirm never came within the lease are forgotten (F4): the row is handed over again, and the
    /// inbox absorbs it.
    fn forget_lost(&mut self) {
        let lease = self.parts.settings.lease;
        let lost: Vec<i64> = self
            .in_flight
            .iter()
            .filter(|(_, flight)| clock::elapsed(flight.since) >= lease)
            .map(|(row, _)| *row)
            .collect();
        for row in lost {
            self.land(row);
        }
    }

    fn try_round(&mut self, confirms: &[Confirm]) -> Result<Round, db::DbError> {
        let path = self.parts.path.clone();
        let sqlite = |source| db::DbError::sqlite(&path, source);
        let may_begin = self.parts.ward.look();
        if self.connection.is_none() {
            if matches!(self.parts.home, Home::Own(_)) && !self.parts.ward.look_at_files() {
                let reason = "it is not the file that was open; restart the agent".into();
                return Err(db::DbError::Unusable { path, reason });
            }
            self.connection = Some(self.parts.open()?);
        }
        let mut connection =
            self.connection.take().ok_or_else(|| db::DbError::Missing { path: path.clone() })?;
        let reconcile = self.reconcile_now || clock::elapsed(self.last_reconcile) >= self.reconcile_every();
        if reconcile {
            self.forget_lost();
        }
        if let Home::Source(guard) = &self.parts.home
            && !guard.is_ours(&connection).map_err(sqlite)?
        {
            return Err(db::DbError::taken_over(&path)); // said even while there is nothing to do
        }
        // Held: marks alone are made, and leases renewed; no row is claimed, closed or routed.
        let claiming = self.stop.is_none() && may_begin;
        if confirms.is_empty() && !reconcile && !(claiming && self.has_work(&connection).map_err(sqlite)?) {
            self.connection = Some(connection);
            return Ok(Round { worked: false, handoffs: Vec::new(), alerts: Vec::new() });
        }
        let ours = Cell::new(true);
        let done = db::write(&mut connection, |tx| {
            if let Home::Source(guard) = &self.parts.home
                && !guard.is_ours(tx)?
            {
                ours.set(false);
                return Err(rusqlite::Error::InvalidQuery); // told apart below
            }
            let mut round = Round { worked: !confirms.is_empty(), handoffs: Vec::new(), alerts: Vec::new() };
            let now = clock::now();
            let now_ms = now.ms;
            for confirm in confirms {
                self.mark(tx, confirm, now_ms, &mut round)?;
            }
            if reconcile {
                self.reconcile(tx, now_ms)?;
            }
            if claiming {
                if now.doubt.is_none() && now.epoch != self.clock_epoch {
                    round.worked |= hours::after_a_leap(tx, now_ms)?;
                    self.clock_epoch = now.epoch;
                }
                self.close_overdue(tx, now, &mut round)?;
                self.route_new(tx, now_ms, &mut round)?;
                self.park_unknown(tx, now_ms, &mut round)?;
                self.claim_in_turns(tx, confirms, now, &mut round)?;
            }
            Ok(round)
        })
        .map_err(|error| if ours.get() { sqlite(error) } else { db::DbError::taken_over(&path) })?;
        if let Home::Own(checkpointer) = &self.parts.home {
            checkpointer.after_commit(&connection);
            if let Ok(row) = crate::store::incarnation::rows(&connection) {
                self.parts.ward.saw_row(row);
            }
        }
        if reconcile {
            self.last_reconcile = clock::mono();
            self.reconcile_now = false;
        }
        self.connection = Some(connection);
        Ok(done)
    }

    /// A look without the write lock, so that an idle relay never takes it.
    fn has_work(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let clock = clock::now();
        let now_ms = clock.due_ms();
        if clock.doubt.is_none() && clock.epoch != self.clock_epoch {
            return Ok(true);
        }
        if outbox::next_deadline_ms(connection)?.is_some_and(|deadline| deadline <= clock.overdue_ms()) {
            return Ok(true);
        }
        let mut after = RawText::default();
        if !outbox::unrouted(connection, 1)?.is_empty() {
            return Ok(true);
        }
        let now = clock::mono();
        while let Some(destination) = outbox::next_destination(connection, &after)? {
            match self.lane_of(&destination.lossy()) {
                None => {
                    // To be parked, once it is due.
                    if outbox::next_due_ms(connection, &destination)?.is_some_and(|due| due <= now_ms) {
                        return Ok(true);
                    }
                }
                Some(lane) => {
                    let due = || -> rusqlite::Result<bool> {
                        Ok(outbox::next_due_ms(connection, &destination)?.is_some_and(|due| due <= now_ms))
                    };
                    let (room, window) = self.room(lane, 0, now);
                    if room > 0 {
                        if self.shares[lane].has_room(window) {
                            if due()? {
                                return Ok(true);
                            }
                        } else {
                            self.shares[lane].want(due()?); // rung when another source's hand-off is done
                        }
                    }
                }
            }
            after = destination;
        }
        Ok(false)
    }

    /// Whether every open destination that has work has hand-offs for all its workers and more.
    fn workers_are_fed(&self) -> bool {
        let back = self.events.len();
        self.parts.lanes.iter().zip(&self.lane_in_flight).all(|(lane, in_flight)| {
            *in_flight == 0 || in_flight.saturating_sub(back) >= lane.threads * HANDOFFS_PER_THREAD / 2
        })
    }

    fn reconcile_every(&self) -> Duration {
        RELAY_RECONCILE.min(self.parts.settings.lease / 3)
    }

    fn lane_of(&self, destination: &str) -> Option<usize> {
        self.parts.lanes.iter().position(|lane| lane.destination.as_str() == destination)
    }

    /// How many more rows of this relay the lane's workers have room for, and in how many places for all relays;
    /// `back` of those in flight are just coming back.
    fn room(&self, lane: usize, back: usize, now: Instant) -> (usize, usize) {
        let Lane { gate, threads, rate_per_s, .. } = &self.parts.lanes[lane];
        let in_flight = self.lane_in_flight[lane].saturating_sub(back);
        let window = (threads * HANDOFFS_PER_THREAD + self.parts.settings.batch as usize)
            .min(self.parts.settings.channel)
            // What waits in the channel is not overtaken by what is more urgent: no more than a second's worth.
            .min(rate_per_s.map_or(usize::MAX, |rate| rate.ceil() as usize + threads));
        match gate.room(now) {
            Room::Open => (window.saturating_sub(in_flight), window),
            Room::Probe => (1usize.saturating_sub(in_flight), 1),
            Room::Shut(_) | Room::Probing | Room::Paused => (0, 0),
        }
    }

    fn claim_in_turns(
        &mut self,
        tx: &Connection,
        confirms: &[Confirm],
        clock: Now,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let now = clock::mono();
        let now_ms = clock.due_ms();
        let opt_outs = suppress::any(tx)?;
        let (keys, name) = (self.parts.keys.clone(), self.name.clone());
        let mut looks = Looks::new(&keys.files, &name);
        let lanes = self.parts.lanes.len();
        let mut back = vec![0usize; lanes];
        for confirm in confirms {
            if let Some(flight) = self.in_flight.get(&confirm.row)
                && !matches!(confirm.answer, Answer::InFlight)
            {
                back[flight.lane] += 1;
            }
        }
        // Each round begins with another destination, so that none is always last.
        self.turn = self.turn.wrapping_add(1);
        let lease_until_ms = now_ms.saturating_add(ms(self.parts.settings.lease));
        for step in 0..lanes {
            let lane = (self.turn + step) % lanes;
            let (room, window) = self.room(lane, back[lane], now);
            let limit = room.min(self.parts.settings.batch as usize * BATCHES_PER_ROUND);
            let mut places = self.shares[lane].take(limit, window);
            let limit = places.len();
            if limit == 0 {
                continue;
            }
            let destination = self.parts.lanes[lane].destination.clone();
            for claimed in outbox::claim(tx, &destination, &self.parts.owner, lease_until_ms, now_ms, limit)?
            {
                round.worked = true;
                if !claimed.broken.is_empty() {
                    self.park_broken(tx, &claimed, now_ms, round)?;
                    continue;
                }
                if !self.may_go(tx, &claimed, clock, opt_outs, round)? {
                    continue;
                }
                let key = match looks.turn(&claimed.message, now_ms) {
                    Turn::Mine => self.parts.keys.hold(&self.name, &claimed.message).map_err(|()| {
                        (
                            KEY_ELSEWHERE_PAUSE,
                            "ORDER: its ordering_key is under way from another source".into(),
                        )
                    }),
                    Turn::After { whose, pause } => {
                        Err((pause, format!("ORDER: behind an earlier message of its order lane in {whose}")))
                    }
                };
                let key = match key {
                    Ok(key) => key,
                    Err((pause, reason)) => {
                        let not_before_ms = Some(now_ms.saturating_add(ms(pause)));
                        let how = outbox::Postpone { not_before_ms, give_back: true, reason };
                        outbox::postpone(tx, claimed.id, &self.parts.owner, &how, now_ms)?;
                        continue;
                    }
                };
                round.handoffs.push((
                    lane,
                    Handoff {
                        held: Held { place: places.pop(), key },
                        row: claimed.id,
                        attempts: claimed.attempts,
                        again: claimed.again,
                        message: claimed.message,
                        claimed: now,
                        until: now + self.parts.settings.lease * 3 / 4,
                        confirm: self.to_self.clone(),
                    },
                ));
            }
        }
        Ok(())
    }

    /// The rules before the hand-off. False if the row was marked instead. Whatever closes a row is done only where the
    /// inbox does not know it: its mark may have been lost after a send.
    fn may_go(
        &self,
        tx: &Connection,
        claimed: &outbox::Claimed,
        clock: Now,
        opt_outs: bool,
        round: &mut Round,
    ) -> rusqlite::Result<bool> {
        let message = &claimed.message;
        let mut verdict = self.parts.policy.judge(message, Asking::Relay, clock);
        if verdict == Verdict::Go && opt_outs {
            let (own, foreign) = consent::keys(message);
            if let Some(reason) = consent::judge(message, &suppress::find(tx, &own, foreign.as_deref())?) {
                verdict = Verdict::Skip(reason);
            }
        }
        let answer = match verdict {
            Verdict::Go => return Ok(true),
            Verdict::Wait { until_ms, last_ms, reason } => {
                log::info!(
                    "{} waits dest={} until_ms={until_ms} {reason}",
                    message.message_id,
                    message.destination
                );
                Answer::Wait { until_ms, last_ms, reason }
            }
            Verdict::Hold(reason) => Answer::Hold(reason),
            closing => match (self.inbox_knows(&message.message_id)?, closing) {
                (Some(InboxState::Sending), _) => return Ok(true), // the worker waits for that call's end
                (Some(_), _) => Answer::Settled,
                (None, Verdict::Expire(reason)) => Answer::Expire(reason),
                (None, Verdict::Skip(reason)) => Answer::Skip(reason),
                (None, _) => return Ok(true),
            },
        };
        let confirm = Confirm { row: claimed.id, message_id: message.message_id.clone(), answer };
        self.mark(tx, &confirm, clock.ms, round)?;
        Ok(false)
    }

    /// Marks one confirmed row. Zero rows moved means its claim was no longer ours: nothing to do.
    fn mark(
        &self,
        tx: &Connection,
        confirm: &Confirm,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let (owner, row) = (&self.parts.owner, confirm.row);
        if let Home::Source(_) = &self.parts.home
            && outbox::facts(tx, row)?.is_none_or(|facts| facts.message_id != confirm.message_id.as_str())
        {
            return Ok(()); // the file went back in time; the row that stands there is another one
        }
        let later = |not_before_ms, give_back, reason: &str| outbox::Postpone {
            not_before_ms,
            give_back,
            reason: reason.to_owned(),
        };
        match &confirm.answer {
            Answer::Settled => {
                let _ = kill::point("relay-before-publish");
                // Of a row that was handed over before, this may be an older copy's word, from before the message was
                // proven not sent: the inbox decides. If it does not know an end, the present copy's confirm will come.
                let alone = self.in_flight.get(&row).is_some_and(|flight| !flight.again);
                if alone || self.has_ended(tx, row)? {
                    outbox::publish(tx, row, owner, now_ms)?;
                }
            }
            Answer::InFlight => {}
            Answer::Returned(reason) => {
                outbox::postpone(tx, row, owner, &later(None, true, reason), now_ms)?;
            }
            Answer::Wait { until_ms, last_ms: Some(last_ms), reason } => {
                outbox::move_day(tx, row, owner, *until_ms, *last_ms, reason, now_ms)?;
            }
            Answer::Hold(reason) => {
                outbox::hold_for_clock(tx, row, owner, reason, now_ms)?;
            }
            Answer::Wait { until_ms, last_ms: None, reason } => {
                outbox::postpone(tx, row, owner, &later(Some(*until_ms), true, reason), now_ms)?;
            }
            Answer::NotSent { kind: NotSentKind::Refused, reason } => {
                self.after_refusal(tx, row, reason, now_ms, round)?
            }
            // About the destination, not the message: no attempt is used, its place in the order stays.
            Answer::NotSent { reason, .. } => {
                outbox::postpone(tx, row, owner, &later(None, true, reason), now_ms)?;
            }
            Answer::HandoffFailed(reason) => {
                let Some(Facts { attempts, destination, message_id: id, reason: before }) =
                    outbox::facts(tx, row)?
                else {
                    return Ok(());
                };
                let same = before.as_deref() == Some(reason.as_str());
                match retry::after_failed_handoff(&self.parts.retry, attempts, same) {
                    Next::After(pause) => {
                        let due_ms = now_ms.saturating_add(ms(pause));
                        outbox::postpone(tx, row, owner, &later(Some(due_ms), false, reason), now_ms)?;
                    }
                    Next::Park => self.park_after(tx, row, reason, now_ms, round)?,
                }
                if attempts == self.parts.retry.alert_at_attempt {
                    round.alerts.push((
                        Cause::ManyAttempts,
                        destination,
                        format!("{id} could not be handed over {attempts} times: {reason}"),
                    ));
                }
            }
            Answer::Skip(reason) => {
                outbox::skip(tx, row, owner, reason, now_ms)?;
            }
            Answer::Expire(reason) => {
                if outbox::expire(tx, row, owner, reason, now_ms)?
                    && let Some(Facts { destination, message_id: id, .. }) = outbox::facts(tx, row)?
                {
                    round.alerts.push((Cause::Expired, destination, format!("{id} expired: {reason}")));
                }
            }
            Answer::Park(reason) => {
                if outbox::park(tx, row, owner, reason, now_ms)?
                    && let Some(Facts { destination, message_id: id, .. }) = outbox::facts(tx, row)?
                {
                    round.alerts.push((Cause::Parked, destination, format!("{id} parked: {reason}")));
                }
            }
        }
        Ok(())
    }

    /// A row that cannot be read as it should (bytes that are no UTF-8, a blob): it can never be sent (F28).
    fn park_broken(
        &self,
        tx: &Connection,
        claimed: &outbox::Claimed,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let outbox::Claimed { id, broken, message, .. } = claimed;
        let reason = format!("UNREADABLE: not text in UTF-8, or of the wrong type: {}", broken.join(", "));
        let known =
            if broken.contains(&"message_id") { None } else { self.inbox_knows(&message.message_id)? };
        if known == Some(InboxState::Sending) {
            return Ok(()); // its lease brings it back
        }
        if known.is_some() {
            outbox::publish(tx, *id, &self.parts.owner, now_ms)?;
        } else if outbox::park(tx, *id, &self.parts.owner, &reason, now_ms)? {
            round.alerts.push((
                Cause::Parked,
                message.destination.to_string(),
                format!("row {id} parked: {reason}"),
            ));
        }
        Ok(())
    }

    fn after_refusal(
        &self,
        tx: &Connection,
        row: i64,
        reason: &str,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let Some(Facts { attempts, destination, message_id: id, .. }) = outbox::facts(tx, row)? else {
            return Ok(()); // deleted by hand: the attempt log still has it
        };
        match retry::after_refusal(&self.parts.retry, attempts) {
            Next::After(pause) => {
                let how = outbox::Postpone {
                    not_before_ms: Some(now_ms.saturating_add(ms(pause))),
                    give_back: false,
                    reason: reason.to_owned(),
                };
                outbox::postpone(tx, row, &self.parts.owner, &how, now_ms)?;
            }
            Next::Park => self.park_after(tx, row, reason, now_ms, round)?,
        }
        if attempts == self.parts.retry.alert_at_attempt {
            round.alerts.push((
                Cause::ManyAttempts,
                destination,
                format!("{id} was refused {attempts} times: {reason}"),
            ));
        }
        Ok(())
    }

    /// A budget is used up: a person decides.
    fn park_after(
        &self,
        tx: &Connection,
        row: i64,
        reason: &str,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let Some(Facts { attempts, destination, message_id, .. }) = outbox::facts(tx, row)? else {
            return Ok(());
        };
        let text = format!("{reason} ({attempts} attempts)");
        if outbox::park(tx, row, &self.parts.owner, &text, now_ms)? {
            round.alerts.push((Cause::Parked, destination, format!("{message_id} parked: {text}")));
        }
        Ok(())
    }

    /// What the inbox knows of the message: then a rule must not close it, its mark was only lost. SENDING is no end
    /// yet: that claim may still be released, and a row closed for it would be lost (`tests/model/` found this).
    fn inbox_knows(&self, message_id: &MessageId) -> rusqlite::Result<Option<InboxState>> {
        let reader = self.parts.inbox.get().map_err(|error| db::other(error.to_string()))?;
        let known = inbox::look(&reader, message_id, &self.parts.owner, "")?;
        Ok(known.map(|known| known.status))
    }

    /// Whether the inbox knows the end of this row's message.
    fn has_ended(&self, tx: &Connection, row: i64) -> rusqlite::Result<bool> {
        let Some(Facts { message_id, .. }) = outbox::facts(tx, row)? else { return Ok(true) };
        let known = self.inbox_knows(&MessageId::new(message_id))?;
        Ok(known.is_some_and(|state| state != InboxState::Sending))
    }

    /// PENDING rows past their deadline, whatever the state of their destination (F2).
    fn close_overdue(&self, tx: &Connection, clock: Now, round: &mut Round) -> rusqlite::Result<()> {
        let now_ms = clock.ms;
        for row in outbox::overdue(tx, clock.overdue_ms(), RELAY_SWEEP_MAX)? {
            let known = self.inbox_knows(&row.message_id)?;
            if known == Some(InboxState::Sending) {
                continue; // its worker's confirm, or the sweeper, comes first
            }
            round.worked = true;
            if !outbox::claim_one(tx, row.id, &self.parts.owner, now_ms, now_ms)? {
                continue;
            }
            if known.is_some() {
                outbox::publish(tx, row.id, &self.parts.owner, now_ms)?;
                continue;
            }
            let reason = deadline_reason(row.expires_at_ms);
            outbox::expire(tx, row.id, &self.parts.owner, &reason, now_ms)?;
            round.alerts.push((
                Cause::Expired,
                row.destination.to_string(),
                format!("{} expired: {reason}", row.message_id),
            ));
        }
        Ok(())
    }

    /// Rows without a destination get the one that a route names, or are parked.
    fn route_new(&self, tx: &Connection, now_ms: i64, round: &mut Round) -> rusqlite::Result<()> {
        for (id, kind) in outbox::unrouted(tx, RELAY_SWEEP_MAX)? {
            round.worked = true;
            let kind = kind.lossy();
            match route::destination(&self.parts.routes, &kind) {
                Some(destination) => {
                    outbox::route(tx, id, destination)?;
                }
                // (The kind is the producer's text: it stays out of reasons and logs.)
                None => self.park_now(
                    tx,
                    id,
                    "NO_ROUTE: no [[route]] of the settings matches its kind",
                    now_ms,
                    round,
                )?,
            }
        }
        Ok(())
    }

    /// Rows for a destination that the settings do not have.
    fn park_unknown(&self, tx: &Connection, now_ms: i64, round: &mut Round) -> rusqlite::Result<()> {
        let mut after = RawText::default();
        while let Some(destination) = outbox::next_destination(tx, &after)? {
            if self.lane_of(&destination.lossy()).is_none() {
                let lease_until_ms = now_ms.saturating_add(ms(self.parts.settings.lease));
                for claimed in outbox::claim(
                    tx,
                    &destination,
                    &self.parts.owner,
                    lease_until_ms,
                    now_ms,
                    RELAY_SWEEP_MAX,
                )? {
                    round.worked = true;
                    let reason = format!(
                        "NO_DESTINATION: the settings have no [[destination]] {:?}",
                        destination.lossy()
                    );
                    let message_id = &claimed.message.message_id;
                    let known = self.inbox_knows(message_id)?;
                    if known == Some(InboxState::Sending) {
                        continue; // its lease brings it back
                    }
                    if known.is_some() {
                        outbox::publish(tx, claimed.id, &self.parts.owner, now_ms)?;
                    } else if outbox::park(tx, claimed.id, &self.parts.owner, &reason, now_ms)? {
                        round.alerts.push((
                            Cause::Parked,
                            destination.lossy().into_owned(),
                            format!("{message_id} parked: {reason}"),
                        ));
                    }
                }
            }
            after = destination;
        }
        Ok(())
    }

    fn park_now(
        &self,
        tx: &Connection,
        id: i64,
        reason: &str,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let Some(Facts { destination, message_id, .. }) = outbox::facts(tx, id)? else { return Ok(()) };
        let known = self.inbox_knows(&MessageId::new(&message_id))?;
        if known == Some(InboxState::Sending)
            || !outbox::claim_one(tx, id, &self.parts.owner, now_ms, now_ms)?
        {
            return Ok(());
        }
        if known.is_some() {
            outbox::publish(tx, id, &self.parts.owner, now_ms)?;
        } else if outbox::park(tx, id, &self.parts.owner, reason, now_ms)? {
            round.alerts.push((Cause::Parked, destination, format!("{message_id} parked: {reason}")));
        }
        Ok(())
    }

    /// Memory against table: renews the leases of rows in flight, gives back those that memory does not know.
    fn reconcile(&mut self, tx: &Connection, now_ms: i64) -> rusqlite::Result<()> {
        let lease_until_ms = now_ms.saturating_add(ms(self.parts.settings.lease));
        for row in self.in_flight.keys() {
            outbox::extend_lease(tx, *row, &self.parts.owner, lease_until_ms)?;
        }
        let (in_flight, lease) = (&self.in_flight, self.parts.settings.lease);
        let mut foreign = self.foreign.look(clock::mono(), lease);
        let moved = outbox::lease_over(
            tx,
            &self.parts.owner,
            now_ms,
            |row| in_flight.contains_key(&row),
            |row, owner, until_ms| foreign.is_over(row, owner, until_ms),
        )?;
        if moved > 0 {
            log::warn!("{moved} claimed messages had no live owner and are waiting again (CLAIM_EXPIRED)");
        }
        Ok(())
    }

    /// How long nothing can be due.
    fn until_next(&self) -> Duration {
        let mut poll = self.trouble.unwrap_or(self.parts.settings.poll).min(FILES_LOOK);
        if !self.in_flight.is_empty() {
            poll = poll.min(self.reconcile_every());
        }
        if let Some(deadline) = self.stop {
            return poll
                .min(deadline.saturating_duration_since(clock::mono()))
                .min(Duration::from_millis(100));
        }
        let Some(connection) = &self.connection else { return poll };
        let (now, clock) = (clock::mono(), clock::now());
        let now_ms = clock.due_ms();
        let mut wait = poll;
        if self.parts.ward.hold.is_on() {
            return wait; // what is due waits for the end of the hold
        }
        let mut sooner = |span: Duration| wait = wait.min(span.max(Duration::from_millis(1)));
        for lane in &self.parts.lanes {
            let due = outbox::next_due_ms(connection, &lane.destination).ok().flatten();
            match (lane.gate.room(now), due) {
                (_, None) | (Room::Probing | Room::Paused, _) => {}
                (Room::Shut(until), Some(_)) => sooner(until.saturating_duration_since(now)),
                (_, Some(due)) if due > now_ms => sooner(Duration::from_millis((due - now_ms) as u64)),
                _ => {} // due and full: a confirm will wake us
            }
        }
        if let Ok(Some(deadline)) = outbox::next_deadline_ms(connection) {
            // Not at once: one that is just being sent stays past its deadline until its end is known.
            sooner(Duration::from_millis(deadline.saturating_sub(clock.overdue_ms()).max(50) as u64));
        }
        wait
    }

    /// At the end of a stop: what was claimed and never begun waits again; what is still in a worker's hands stays
    /// PUBLISHING and is settled by the next start.
    fn give_back_the_rest(mut self) {
        let left = self.in_flight.len();
        if left > 0 {
            log::warn!("stop: {left} hand-offs did not come back in time; the next start settles them");
        }
        if let Some(connection) = &mut self.connection {
            let in_flight = &self.in_flight;
            let owner = &self.parts.owner;
            if let Err(error) = db::write(connection, |tx| {
                outbox::lease_over(tx, owner, wall_ms(), |row| in_flight.contains_key(&row), |_, _, _| false)
            }) {
                log::warn!("{}: claims are given back at the next start: {error}", self.parts.path.display());
            }
        }
    }
}

impl RelayParts {
    fn open(&self) -> Result<Connection, db::DbError> {
        match &self.home {
            Home::Own(_) => db::open_writer(&self.path, Part::Outbox, Durability::Normal),
            Home::Source(guard) => guard.open(),
        }
    }
}
