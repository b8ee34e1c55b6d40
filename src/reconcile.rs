//! Rooms that settle without a report: one asks a destination's look-up about its ERRORs, one opens outbox rows again.
//!
//! The look-up is asked with growing pauses that survive a restart (`inquiry`); each answer and its effect are one commit.
//! *Never received* is believed only when the ERROR is old enough by the wall clock and by this process's own, and once
//! for each message: at most once is not bent by a clock or by a hasty vendor. What no answer settles stays ERROR, and
//! after the last pause it is left to a person. Never sends: a message that may go again goes the way of all others.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::Connection;

use crate::alert::{Alerts, Cause};
use crate::clock::{self, ms, wall_ms};
use crate::db::pool::Pool;
use crate::db::writer::{Work, Writer};
use crate::gate::{Gate, Room};
use crate::hold::Hold;
use crate::message::{Destination, MessageId};
use crate::outboxes::Outboxes;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::settle::{self, End, Opened, RearmDone, Settle, Settled, Speaker};
use crate::store::inquiry::{self, Due, Inquiry};
use crate::store::{attempt, inbox, rearm};
use crate::vendor::{LookedUp, Vendor};

/// Pauses before each asking; the last repeats.
const PAUSES_S: [u64; 9] = [10, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600];
/// Askings after which it is left to a person: about eight days.
const ASKED_MAX: u32 = 40;
/// Between two looks for ERRORs to ask about.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// ERRORs asked about in one look.
const LOOK_MAX: u32 = 50;
/// Between two looks at notes of `rearm` that could not be closed yet.
const REARM_EVERY: Duration = Duration::from_secs(1);
/// Between two looks when nothing rings: a note of a command that ran while the agent was down is found at the start.
const REARM_IDLE: Duration = Duration::from_secs(60);

/// Notes looked at in one round.
const NOTES_MAX: u32 = 1_000;

/// Pause before the asking after `asked` of them.
fn pause(asked: u32) -> Duration {
    Duration::from_secs(PAUSES_S[(asked as usize).min(PAUSES_S.len() - 1)])
}

/// Wakes the room that opens outbox rows; a ring that finds it awake is not lost.
#[derive(Clone)]
pub struct Bell(Sender<()>);

impl Bell {
    /// Rings.
    pub fn ring(&self) {
        let _ = self.0.try_send(()); // full: a ring waits already
    }
}

/// A bell and what hears it; the room ends when all bells are gone.
pub fn bell() -> (Bell, Receiver<()>) {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    (Bell(sender), receiver)
}

/// When this process first saw each ERROR, by its own clock.
pub type Seen = HashMap<MessageId, Instant>;

/// The room that asks one destination's look-up.
pub struct Reconciler {
    /// Whose ERRORs.
    pub destination: Destination,
    /// The adapter; it has a look-up.
    pub vendor: Arc<dyn Vendor>,
    /// *Never received* is not believed of a younger ERROR.
    pub never_received_after: Duration,
    /// The destination's budget.
    pub rate: Arc<Rate>,
    /// A closed destination is not asked.
    pub gate: Arc<Gate>,
    /// The inbox's one writer.
    pub writer: Writer,
    /// Readers of the inbox.
    pub inbox: Pool,
    /// For the local day.
    pub policy: Arc<Policy>,
    /// To tell people.
    pub alerts: Alerts,
    /// Wakes the other room.
    pub rearm: Bell,
    /// Set by a stop.
    pub stop: Arc<AtomicBool>,
    /// Disconnected by a stop.
    pub stopped: Receiver<()>,
    /// The whole agent held: nothing is asked.
    pub hold: Hold,
}

impl Reconciler {
    /// Runs until stopped.
    pub fn run(self) {
        let mut seen = Seen::new();
        while self.stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) && self.look(&mut seen)
        {
        }
    }

    /// Asks about what is due. False where there is nothing more to do: a stop, or no look-up.
    pub fn look(&self, seen: &mut Seen) -> bool {
        if self.hold.is_on() {
            return true;
        }
        let due = match self.inbox.get().map_err(|error| error.to_string()).and_then(|reader| {
            inquiry::due(&reader, &self.destination, wall_ms(), LOOK_MAX).map_err(|error| error.to_string())
        }) {
            Ok(due) => due,
            Err(error) => {
                log::warn!("dest={} ERRORs cannot be looked at: {error}", self.destination);
                return true;
            }
        };
        if due.is_empty() && seen.len() > 10_000 {
            seen.clear(); // believed a little later, that is all
        }
        for Due { message_id, error_at_ms, asked } in due {
            let first_seen = *seen.entry(message_id.clone()).or_insert_with(clock::mono);
            let age_ms = wall_ms().saturating_sub(error_at_ms);
            if asked == 0 && age_ms < ms(pause(0)) {
                continue;
            }
            if !matches!(self.gate.room(clock::mono()), Room::Open) || !self.rate.take(&self.stop) {
                break;
            }
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            let Some(answer) = self.vendor.look_up(&message_id) else { return false };
            let old_enough = clock::elapsed(first_seen) >= self.never_received_after
                && age_ms >= ms(self.never_received_after);
            self.conclude(&message_id, asked + 1, answer, old_enough);
        }
        true
    }

    fn conclude(&self, message_id: &MessageId, asked: u32, answer: LookedUp, old_enough: bool) {
        let (end, said, code, vendor_ref) = match answer {
            LookedUp::Accepted { code, vendor_ref } => {
                (Some(End::Sent), format!("accepted ({code})"), Some(code), vendor_ref)
            }
            LookedUp::Rejected { code } => {
                (Some(End::Failed), format!("rejected ({code})"), Some(code), None)
            }
            LookedUp::NeverReceived { code } if old_enough => {
                (Some(End::NotSent), format!("never received ({code})"), Some(code), None)
            }
            LookedUp::NeverReceived { code } => {
                (None, format!("never received ({code}), too early to be believed"), None, None)
            }
            LookedUp::Unclear(why) => (None, why, None, None),
        };
        let now_ms = wall_ms();
        let settle = end.map(|end| Settle {
            consumer: self.destination.clone(),
            message_id: message_id.clone(),
            end,
            by: Speaker::LookUp,
            note: format!("look-up: {said}"),
            code,
            vendor_ref,
        });
        let next_at_ms = (asked < ASKED_MAX).then(|| now_ms.saturating_add(ms(pause(asked))));
        let (reply, told) = crossbeam_channel::bounded(1);
        self.writer.submit(Box::new(Asked {
            consumer: self.destination.clone(),
            message_id: message_id.clone(),
            inquiry: Inquiry { asked, next_at_ms, last_at_ms: now_ms, last_said: said.clone() },
            settle,
            day: self.policy.day(now_ms),
            reply,
            settled: None,
        }));
        #[cfg(debug_assertions)]
        let told = match clock::simulated::answer(&told) {
            Some(answer) => answer.ok_or(crossbeam_channel::RecvError),
            None => told.recv(),
        };
        #[cfg(not(debug_assertions))]
        let told = told.recv();
        match told {
            Ok(Some(Settled::Yes)) => {
                let traced = attempt::traced(&self.inbox, message_id.as_str());
                log::warn!("{message_id} settled dest={} by its look-up: {said}{traced}", self.destination);
                if end == Some(End::NotSent) {
                    self.rearm.ring();
                }
            }
            Ok(Some(Settled::Once | Settled::Reported)) => self.alerts.raise(
                Cause::Error,
                self.destination.as_str(),
                format!(
                    "{message_id}: the look-up says never received, but it was sent again once before or a report names \
                     it: stays ERROR for a person"
                ),
            ),
            _ if next_at_ms.is_none() => self.alerts.raise(
                Cause::Error,
                self.destination.as_str(),
                format!("{message_id}: the look-up was asked {asked} times and did not settle it: ERROR for a person"),
            ),
            _ => {}
        }
    }
}

/// Work: one answer of a look-up, with its effect.
struct Asked {
    consumer: Destination,
    message_id: MessageId,
    inquiry: Inquiry,
    settle: Option<Settle>,
    day: String,
    reply: Sender<Option<Settled>>,
    settled: Option<Settled>,
}

impl Work for Asked {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.settled = None;
        let mut inquiry = self.inquiry.clone();
        if let Some(settle) = &self.settle {
            let settled = settle::apply(connection, settle, &self.day, wall_ms())?;
            if matches!(settled, Settled::Once | Settled::Reported) {
                inquiry.next_at_ms = None; // nothing more to be learnt there
            }
            self.settled = Some(settled);
        }
        inquiry::put(connection, &self.consumer, &self.message_id, &inquiry)
    }
    fn committed(self: Box<Self>) {
        let _ = self.reply.send(self.settled);
    }
    fn failed(self: Box<Self>, _why: &str) {} // asked again at the next look
    fn must_land(&self) -> bool {
        false
    }
}

/// The room that opens the outbox rows of what was proven not sent, in whichever outbox they stand.
pub struct Rearmer {
    /// The agent's own outbox file; the sources are as the inbox lists them.
    pub outbox: PathBuf,
    /// To tell people of what is out of reach.
    pub alerts: Alerts,
    /// The inbox's one writer.
    pub writer: Writer,
    /// Readers of the inbox.
    pub inbox: Pool,
    /// Rings when a note was made.
    pub heard: Receiver<()>,
}

impl Rearmer {
    /// Runs until all bells are gone.
    pub fn run(self) {
        loop {
            let wait = match self.round() {
                Ok(0) => REARM_IDLE,
                Ok(_) => REARM_EVERY,
                Err(error) => {
                    log::warn!(
                        "{}: messages that were not sent cannot wait again yet: {error}",
                        self.outbox.display()
                    );
                    REARM_EVERY
                }
            };
            if self.heard.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Every open note once; how many may be closed soon (as far as this round knows). What is out of reach is not among
    /// them: it is looked at again at the next ring, and each minute.
    pub fn round(&self) -> Result<usize, String> {
        let reader = self.inbox.get().map_err(|error| error.to_string())?;
        let mut notes = rearm::open(&reader, NOTES_MAX).map_err(|error| error.to_string())?;
        if notes.is_empty() {
            return Ok(0);
        }
        let outboxes = Outboxes::read(&self.outbox, Some(&reader)).map_err(|error| error.to_string())?;
        let mut soon = notes.len();
        let done = |consumer: &Destination, message_id: &MessageId| {
            self.writer
                .submit(Box::new(RearmDone { consumer: consumer.clone(), message_id: message_id.clone() }));
        };
        let mut unknown = Vec::new();
        for (consumer, message_id) in notes.drain(..) {
            match inbox::state(&reader, &consumer, &message_id).map_err(|error| error.to_string())? {
                Some(_) => done(&consumer, &message_id), // it is on its way again, or has been
                None => unknown.push((consumer, message_id)),
            }
        }
        drop(reader); // an application may keep us waiting for its lock
        for (consumer, message_id) in &unknown {
            let opened = settle::open_outbox_row(&outboxes, consumer, message_id)
                .map_err(|error| error.to_string())?;
            match opened {
                Opened::Done => done(consumer, message_id),
                Opened::NotYet => {}
                Opened::OutOfReach(why) => {
                    soon -= 1;
                    self.alerts.raise(
                        Cause::Error,
                        consumer.as_str(),
                        format!("{message_id} was proven not sent and shall wait again, but its row is out of reach: {why}"),
                    );
                }
            }
        }
        Ok(soon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_last_which_repeats() {
        let pauses: Vec<u64> = (0..12).map(|asked| pause(asked).as_secs()).collect();
        assert!(pauses.is_sorted());
        assert_eq!((pauses[0], pauses[8], pauses[11]), (10, 21_600, 21_600));
    }
}
