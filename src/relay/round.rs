//! One round, which is one commit: marks first, then what the relay closes itself, then new claims.
//!
//! Channels, alerts and memory move only after the commit; a round whose commit failed keeps its confirms and makes
//! them again on a connection that is opened anew. Never: waits, or decides what becomes of a row.

use std::cell::Cell;

use rusqlite::Connection;

use super::flights::Flight;
use super::{Answer, Confirm, Handoff, Home, Relay, hours};
use crate::alert::Cause;
use crate::clock;
use crate::db::{self, kill};
use crate::limits::{WRITER_RETRY_MAX, WRITER_RETRY_MIN};
use crate::store::outbox::{self, RawText};

/// What one round did.
pub(super) struct Round {
    pub(super) worked: bool,
    pub(super) handoffs: Vec<(usize, Handoff)>,
    pub(super) alerts: Vec<(Cause, String, String)>,
}

impl Round {
    /// To be told once this round is committed.
    pub(super) fn parked(&mut self, destination: String, what: &str, reason: &str) {
        self.alerts.push((Cause::Parked, destination, format!("{what} parked: {reason}")));
    }

    /// To be told once this round is committed.
    pub(super) fn expired(&mut self, destination: String, what: &str, reason: &str) {
        self.alerts.push((Cause::Expired, destination, format!("{what} expired: {reason}")));
    }
}

impl Relay {
    /// One commit: marks first, then what the relay closes itself, then new claims. True if there was anything to do.
    pub(super) fn round(&mut self) -> bool {
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
                    if let Home::Own(_) = &self.parts.home {
                        self.parts.alerts.clear(Cause::Database, "outbox.db");
                    }
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
                match &self.parts.home {
                    Home::Source(guard) => guard.is_in_trouble(&error),
                    Home::Own(_) if self.trouble.is_none() => {
                        let text = "outbox.db cannot be written: nothing new is taken from it until it can";
                        self.parts.alerts.raise(Cause::Database, "outbox.db", text.into());
                    }
                    Home::Own(_) => {}
                }
                let pause = match self.trouble {
                    None => {
                        log::error!(
                            "{}: {error}; nothing new is taken from it until it can be written{}",
                            self.parts.path.display(),
                            db::holder::in_words(&self.parts.path)
                        );
                        WRITER_RETRY_MIN
                    }
                    Some(pause) => (pause * 2).min(WRITER_RETRY_MAX),
                };
                self.trouble = Some(pause);
                false
            }
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
        let due = self.reconcile_now || clock::elapsed(self.last_reconcile) >= self.reconcile_every();
        let reconcile = due && !self.may_be_a_copys();
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
}
