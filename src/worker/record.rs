//! What came of a hand-off: the line of the call, its record (or the claim's release), what it tells of the destination,
//! and the word to the relay, which comes after the commit.
//!
//! Never: calls, or says of a row what may be another's by now.

use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use super::Worker;
use crate::alert::Cause;
use crate::clock::{self, us, wall_ms};
use crate::db::kill;
use crate::gate::Change;
use crate::lifecycle::InboxState;
use crate::message::{Message, MessageId, NotSentProof, Outcome, Reply};
use crate::relay::{Answer, Confirm, Event};
use crate::report::settle;
use crate::store::attempt::{Attempt, AttemptOutcome};
use crate::store::destination::Note;
use crate::store::inbox::{Applied, Record, Release, Sending};
use crate::store::report;

impl Worker {
    /// The line of one call in the log of attempts.
    pub(super) fn attempt(
        &self,
        message: &Message,
        reply: &Reply,
        outcome: AttemptOutcome,
        waited: &Waited,
    ) -> Attempt {
        let (vendor_code, reason) = match &reply.outcome {
            Outcome::Accepted { code, .. } => (Some(code.clone()), None),
            Outcome::Rejected { code, reason } => (Some(code.clone()), Some(reason.clone())),
            Outcome::Unknown { code, reason } | Outcome::NotSent { code, reason, .. } => {
                (code.clone(), Some(reason.clone()))
            }
        };
        Attempt {
            consumer: message.destination.clone(),
            message_id: message.message_id.clone(),
            started_at_ms: waited.started_at_ms,
            waiting_us: us(waited.waiting),
            timing: reply.timing,
            outcome,
            http_status: reply.http_status,
            vendor_code,
            reason,
            claimed_by: self.shared.owner.clone(),
            traceparent: message.trace_context().map(str::to_owned),
        }
    }

    pub(super) fn say(&self, message: &Message, attempt: &Attempt) {
        log::log!(
            if attempt.outcome == AttemptOutcome::Unknown { log::Level::Warn } else { log::Level::Info },
            "{} {} dest={} code={} waiting_us={} connecting_us={} answering_us={}{}{}",
            message.message_id,
            attempt.outcome.as_str(),
            message.destination,
            attempt.vendor_code.as_deref().unwrap_or("-"),
            attempt.waiting_us,
            us(attempt.timing.connecting),
            us(attempt.timing.answering),
            attempt.reason.as_deref().map(|reason| format!(" reason={reason:?}")).unwrap_or_default(),
            message.traced(),
        );
    }

    /// The claim goes, and then the row gets the rules' answer: no call was begun, so no attempt is used.
    pub(super) fn release(&self, sending: Sending, answer: Answer, say: Say) {
        log::info!("{} released dest={} before its call: {answer}", sending.message_id(), sending.consumer());
        let tell = Box::new(move || say.tell(answer));
        self.shared.writer.submit(Box::new(Release::new(sending, NotSentProof::before_the_call(), tell)));
    }

    pub(super) fn record(&self, sending: Sending, message: &Message, reply: Reply, waited: Waited, say: Say) {
        let shared = &*self.shared;
        self.learn(message, &reply);
        let (outcome, answer) = match &reply.outcome {
            Outcome::Accepted { .. } => (AttemptOutcome::Accepted, Answer::Settled),
            Outcome::Rejected { .. } => (AttemptOutcome::Rejected, Answer::Settled),
            Outcome::Unknown { .. } => (AttemptOutcome::Unknown, Answer::Settled),
            Outcome::NotSent { kind, reason, .. } => {
                (AttemptOutcome::NotSent, Answer::NotSent { kind: *kind, reason: reason.clone() })
            }
        };
        let attempt = self.attempt(message, &reply, outcome, &waited);
        self.say(message, &attempt);
        if let Outcome::Unknown { reason, .. } = &reply.outcome
            && !self.reports_settle(message)
        {
            let text = format!(
                "{} is ERROR (it may or may not have been sent, and is not sent again): {reason}",
                message.message_id
            );
            shared.alerts.raise(Cause::Error, message.destination.as_str(), text);
        }
        let now_ms = wall_ms();
        let (alerts, dest, id) =
            (shared.alerts.clone(), message.destination.clone(), message.message_id.clone());
        let tell = Box::new(move |applied| {
            if let Applied::Moved { overruled: true, .. } = applied {
                let text =
                    format!("{id} was refused by the answer, and a report says that it was delivered: SENT");
                alerts.raise(Cause::ReportConflict, dest.as_str(), text);
            }
            if kill::point("worker-before-confirm").is_err() {
                return; // a test: this confirm is lost
            }
            say.tell(answer);
        });
        shared.writer.submit(Box::new(Record::new(
            sending,
            reply.outcome,
            attempt,
            shared.policy.day(now_ms).into(),
            now_ms,
            tell,
        )));
    }

    /// Whether reports that came before the answer will settle what would be ERROR, in the commit of its record: then
    /// nobody need be told. At worst (a report in this very moment) somebody is told for nothing.
    pub(super) fn reports_settle(&self, message: &Message) -> bool {
        self.shared.inbox.get().is_ok_and(|reader| {
            report::said(&reader, &message.destination, &message.message_id)
                .is_ok_and(|said| settle(InboxState::Error, &said).is_some())
        })
    }

    pub(super) fn learn(&self, message: &Message, reply: &Reply) {
        let destination = &message.destination;
        let (now, now_ms) = (clock::mono(), wall_ms());
        let change = self.shared.gate.learn(&reply.outcome, reply.pause, now);
        if change != Change::None {
            self.shared.writer.submit(Box::new(Note {
                name: destination.to_string(),
                standing: self.shared.gate.standing(now, now_ms),
                at_ms: now_ms,
            }));
        }
        match change {
            Change::None | Change::Still => {}
            Change::Closed(reason) => self.shared.alerts.raise(
                Cause::DestinationClosed,
                destination.as_str(),
                format!("closed: {reason}; its messages wait, one probe at a time"),
            ),
            Change::Opened(after) => {
                log::warn!("dest={destination} answers again after {} s", after.as_secs());
                self.shared.alerts.clear(Cause::DestinationClosed, destination.as_str());
            }
            Change::Waits(pause) => {
                log::warn!("dest={destination} asks for a pause of {} ms", pause.as_millis())
            }
        }
    }
}

/// Where the word about one hand-off goes, and how long it counts.
#[derive(Clone)]
pub(super) struct Say {
    pub(super) row: i64,
    pub(super) message_id: MessageId,
    pub(super) until: Instant,
    pub(super) to: Sender<Event>,
}

impl Say {
    /// Whether the row may be in other hands by now: handed over again, or closed by a rule or a person.
    pub(super) fn is_over(&self) -> bool {
        clock::mono() >= self.until
    }

    /// Tells the relay. What the inbox knows is true for ever; anything else would be said of another's claim, so it is
    /// not said when it comes too late: the relay takes the row back at the end of its lease.
    pub(super) fn tell(&self, answer: Answer) {
        if self.is_over() && !matches!(answer, Answer::Settled | Answer::InFlight) {
            log::warn!(
                "row {} came back too late to be marked ({answer}): its lease takes it back",
                self.row
            );
            return;
        }
        let message_id = self.message_id.clone();
        let _ = self.to.send(Event::Confirm(Confirm { row: self.row, message_id, answer }));
    }
}

/// For the line of a call: when it began, and how long the customer had waited by then.
pub(super) struct Waited {
    pub(super) started_at_ms: i64,
    pub(super) waiting: Duration,
}
