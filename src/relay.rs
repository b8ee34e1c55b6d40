//! Room: outbox -> hand-off -> marks. One loop over a closed set of events; the only writer of its outbox file.
//!
//! It claims due rows, only as many as the workers have room for, in fair turns between destinations, and marks each
//! row when its confirm comes back. It never closes a row on a rule without looking into the inbox first: a row
//! whose mark was lost may have been sent. Its commits are not synced (losing one only makes a row be handed over
//! again); what guards against a second send is in the inbox. Serves F2-F6, F11, F22, F28.
//!
//! Here is the loop: what wakes it, when it looks again, how it stops. In the folder: `handoff` (what passes between
//! relay and workers), `parts` (what it is made of), `round` (one commit), `turns` (new claims), `marks` (answers to
//! rows), `closing` (rows that no worker sees), `flights` (memory against table), `foreign`, `hours`.
//!
//! Never: calls a vendor, writes the inbox, holds a transaction while it waits.

mod closing;
mod flights;
mod foreign;
mod handoff;
mod hours;
mod marks;
mod parts;
mod round;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::Connection;

use self::flights::Flight;
use self::foreign::Foreign;
pub use self::handoff::{Answer, Confirm, Event, Handoff};
pub use self::parts::{Home, Lane, RelayParts};
use crate::clock::{self, wall_ms};
use crate::db;
use crate::gate::Room;
use crate::hold::Why;
use crate::limits::{FILES_LOOK, PURGE_ROWS, RELAY_GATHER, RELAY_PAUSE, RELAY_YIELD_MAX};
use crate::retention;
use crate::share::Share;
use crate::store::outbox;

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

    /// Whether what looks like a dead start's claim may be the original's, which lives: the agent may be a copy, and the
    /// file is one that both reach.
    fn may_be_a_copys(&self) -> bool {
        matches!(self.parts.home, Home::Source(_)) && self.parts.ward.hold.is(Why::Copy)
    }

    /// At the end of a stop: what was claimed and never begun waits again; what is still in a worker's hands stays
    /// PUBLISHING and is settled by the next start.
    fn give_back_the_rest(mut self) {
        let left = self.in_flight.len();
        if left > 0 {
            log::warn!("stop: {left} hand-offs did not come back in time; the next start settles them");
        }
        let may_be_a_copys = self.may_be_a_copys();
        if let Some(connection) = &mut self.connection
            && !may_be_a_copys
        {
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
