//! Room: look first, claim SENDING, call, record, confirm. The heart; one hand-off at a time.
//!
//! From the claim to the record nothing interrupts: a stop is looked at before the claim and never inside, a panic of
//! an adapter becomes an unknown outcome, and an outcome that cannot be written is kept by the writer until it can.
//! Without a committed SENDING row there is no [`Sending`] and so no call. Serves F4, F5, F7-F13, F16, F28.
//!
//! Never: writes the outbox, retries, decides when something is tried again.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::alert::{Alerts, Cause};
use crate::clock::{us, wall_ms};
use crate::db::kill;
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::fingerprint;
use crate::gate::{Change, Gate};
use crate::lifecycle::InboxState;
use crate::message::{Message, NotSentKind, NotSentProof, Outcome, OwnerId, Reply};
use crate::policy::{Asking, Policy, Verdict};
use crate::rate::Rate;
use crate::relay::{Answer, Confirm, Event, Handoff};
use crate::slot::Slot;
use crate::store::attempt::{Attempt, AttemptOutcome};
use crate::store::inbox::{self, Claim, ClaimAnswer, Known, Record, Sending};
use crate::vendor::{Prepared, Vendor};

/// What the workers of one destination share.
pub struct Shared {
    /// The adapter.
    pub vendor: Arc<dyn Vendor>,
    /// The destination's gate.
    pub gate: Arc<Gate>,
    /// The destination's budget.
    pub rate: Arc<Rate>,
    /// This start.
    pub owner: OwnerId,
    /// The inbox's one writer.
    pub writer: Writer,
    /// Readers of the inbox.
    pub inbox: Pool,
    /// The rules.
    pub policy: Arc<Policy>,
    /// To tell people.
    pub alerts: Alerts,
    /// Set by a stop: begin nothing more.
    pub stop: Arc<AtomicBool>,
}

/// One worker.
pub struct Worker {
    shared: Arc<Shared>,
    handoffs: Receiver<Handoff>,
    /// Made by the thread that waits on it.
    claim_answer: OnceCell<Slot<ClaimAnswer>>,
}

impl Worker {
    /// Takes hand-offs from the destination's channel.
    pub fn new(shared: Arc<Shared>, handoffs: Receiver<Handoff>) -> Self {
        Self { shared, handoffs, claim_answer: OnceCell::new() }
    }

    /// Runs until the relay is gone.
    pub fn run(self) {
        while let Ok(handoff) = self.handoffs.recv() {
            self.run_once(handoff);
        }
    }

    /// One hand-off, to its end.
    pub fn run_once(&self, handoff: Handoff) {
        let (row, confirm) = (handoff.row, handoff.confirm.clone());
        let id = handoff.message.message_id.clone();
        // Only what comes before the claim can unwind to here: the call itself is caught where its outcome is made.
        let answer = catch_unwind(AssertUnwindSafe(|| self.deliver(handoff))).unwrap_or_else(|_| {
            log::error!("{id} a panic before its claim: this is a bug; nothing was sent");
            Some(Answer::HandoffFailed("INTERNAL: a panic before the claim".into()))
        });
        // `None`: the record confirms after its commit.
        if let Some(answer) = answer {
            let _ = confirm.send(Event::Confirm(Confirm { row, message_id: id, answer }));
        }
    }

    fn deliver(&self, handoff: Handoff) -> Option<Answer> {
        let Shared { gate, stop, writer, .. } = &*self.shared;
        if stop.load(Ordering::Relaxed) {
            return Some(Answer::Returned("STOPPING"));
        }
        if writer.is_in_trouble() {
            self.wait_for_the_database();
            return Some(Answer::Returned("DATABASE: outcomes cannot be written now"));
        }
        let Some(pass) = gate.may_call(Instant::now()) else {
            return Some(Answer::Returned("DESTINATION_CLOSED"));
        };
        let answer = self.claim_and_call(handoff);
        if answer.is_some() {
            gate.give_back(pass); // a probe that did not come to a call
        }
        answer
    }

    /// The straight pipe. Returns an answer where no call was made.
    fn claim_and_call(&self, handoff: Handoff) -> Option<Answer> {
        let shared = &*self.shared;
        // `_held` is given back at the end of this function, whatever that is.
        let Handoff { row, again, message, claimed, confirm, held: _held, .. } = handoff;
        let fingerprint = fingerprint::of(&message);

        if again && let Some(answer) = self.look(&message, &fingerprint) {
            return Some(answer);
        }
        // Whatever would close the row is said only after a look: its mark may have been lost after a send.
        let prepared = match self.fit(&message) {
            Ok(prepared) => prepared,
            Err(answer @ Answer::Wait { .. }) => return Some(answer),
            Err(answer) => return Some(self.look(&message, &fingerprint).unwrap_or(answer)),
        };
        if let Err(reply) = shared.vendor.ready() {
            return Some(self.not_begun(&message, *reply));
        }
        if !shared.rate.take(&shared.stop) {
            return Some(Answer::Returned("STOPPING"));
        }

        let _ = kill::point("worker-before-claim");
        let sending = match self.claim(&message, fingerprint) {
            ClaimAnswer::Claimed(sending) => sending,
            ClaimAnswer::Exists(known) => return Some(self.already(&message, &known)),
            ClaimAnswer::Failed(_) => {
                self.wait_for_the_database();
                return Some(Answer::Returned("DATABASE: the claim could not be written"));
            }
        };
        // From here to the record nothing interrupts.
        let _ = kill::point("worker-after-claim");
        let started_at_ms = wall_ms();
        let waiting = claimed.elapsed();
        let reply = self.call(&sending, &message, &prepared);
        let _ = kill::point("worker-after-call");
        self.record(sending, &message, reply, Waited { started_at_ms, waiting }, row, confirm);
        None
    }

    /// Look first: an answer where the inbox already knows the message.
    fn look(&self, message: &Message, fingerprint: &str) -> Option<Answer> {
        let shared = &*self.shared;
        let reader = match shared.inbox.get() {
            Ok(reader) => reader,
            Err(_) => return Some(Answer::Returned("DATABASE: the inbox cannot be read")),
        };
        match inbox::look(&reader, &message.destination, &message.message_id, &shared.owner, fingerprint) {
            Ok(None) => None,
            Ok(Some(known)) => Some(self.already(message, &known)),
            Err(_) => Some(Answer::Returned("DATABASE: the inbox cannot be read")),
        }
    }

    fn already(&self, message: &Message, known: &Known) -> Answer {
        if !known.same_content {
            self.shared.alerts.raise(
                Cause::Conflict,
                message.destination.as_str(),
                format!(
                    "{} stands in the inbox with other content; this copy is not sent",
                    message.message_id
                ),
            );
        }
        if known.status == InboxState::Sending && known.mine {
            return Answer::InFlight;
        }
        log::info!("{} duplicate dest={} known as {}", message.message_id, message.destination, known.status);
        Answer::Settled
    }

    /// Policy and encoding, before any claim.
    fn fit(&self, message: &Message) -> Result<Prepared, Answer> {
        match self.shared.policy.judge(message, Asking::Worker, wall_ms()) {
            Verdict::Go => {}
            Verdict::Wait { until_ms, reason } => return Err(Answer::Wait { until_ms, reason }),
            Verdict::Skip(reason) => return Err(Answer::Skip(reason)),
            Verdict::Expire(reason) => return Err(Answer::Expire(reason)),
        }
        self.shared.vendor.prepare(message).map_err(|unfit| Answer::Park(format!("UNFIT: {}", unfit.reason)))
    }

    /// The login failed: nothing of the message left.
    fn not_begun(&self, message: &Message, reply: Reply) -> Answer {
        self.learn(message, &reply);
        match reply.outcome {
            Outcome::NotSent { kind, reason, .. } => Answer::NotSent { kind, reason },
            _ => {
                Answer::NotSent { kind: NotSentKind::Unreachable, reason: "the login did not succeed".into() }
            }
        }
    }

    fn claim(&self, message: &Message, fingerprint: String) -> ClaimAnswer {
        let slot = self.claim_answer.get_or_init(Slot::new);
        self.shared.writer.submit(Box::new(Claim {
            consumer: message.destination.clone(),
            message_id: message.message_id.clone(),
            fingerprint,
            owner: self.shared.owner.clone(),
            at_ms: wall_ms(),
            reply: slot.answer(|| ClaimAnswer::Failed("the writer has stopped".into())),
            found: None,
        }));
        slot.wait()
    }

    /// The one call. A last look at the rules, then the adapter, whose panic is an unknown outcome.
    fn call(&self, sending: &Sending, message: &Message, prepared: &Prepared) -> Reply {
        let not_begun = |reason: String| Reply {
            outcome: Outcome::NotSent {
                kind: NotSentKind::Refused,
                code: None,
                reason,
                proof: NotSentProof::before_the_call(),
            },
            http_status: None,
            timing: Default::default(),
            pause: None,
        };
        match self.shared.policy.judge(message, Asking::Worker, wall_ms()) {
            Verdict::Go => {}
            Verdict::Wait { reason, .. } | Verdict::Skip(reason) | Verdict::Expire(reason) => {
                return not_begun(reason);
            }
        }
        catch_unwind(AssertUnwindSafe(|| self.shared.vendor.send(sending, message, prepared))).unwrap_or_else(
            |_| Reply {
                outcome: Outcome::Unknown {
                    code: None,
                    reason: "INTERNAL: the adapter panicked during the call".into(),
                },
                http_status: None,
                timing: Default::default(),
                pause: None,
            },
        )
    }

    fn record(
        &self,
        sending: Sending,
        message: &Message,
        reply: Reply,
        waited: Waited,
        row: i64,
        confirm: Sender<Event>,
    ) {
        let shared = &*self.shared;
        self.learn(message, &reply);
        let (outcome_name, code, reason, answer) = match &reply.outcome {
            Outcome::Accepted { code, .. } => {
                (AttemptOutcome::Accepted, Some(code.clone()), None, Answer::Settled)
            }
            Outcome::Rejected { code, reason } => {
                (AttemptOutcome::Rejected, Some(code.clone()), Some(reason.clone()), Answer::Settled)
            }
            Outcome::Unknown { code, reason } => {
                (AttemptOutcome::Unknown, code.clone(), Some(reason.clone()), Answer::Settled)
            }
            Outcome::NotSent { kind, code, reason, .. } => (
                AttemptOutcome::NotSent,
                code.clone(),
                Some(reason.clone()),
                Answer::NotSent { kind: *kind, reason: reason.clone() },
            ),
        };
        log::log!(
            if outcome_name == AttemptOutcome::Unknown { log::Level::Warn } else { log::Level::Info },
            "{} {} dest={} code={} waiting_us={} connecting_us={} answering_us={}{}{}",
            message.message_id,
            outcome_name.as_str(),
            message.destination,
            code.as_deref().unwrap_or("-"),
            us(waited.waiting),
            us(reply.timing.connecting),
            us(reply.timing.answering),
            reason.as_deref().map(|reason| format!(" reason={reason:?}")).unwrap_or_default(),
            message.traceparent.as_deref().map(|trace| format!(" traceparent={trace}")).unwrap_or_default(),
        );
        let attempt = Attempt {
            consumer: message.destination.clone(),
            message_id: message.message_id.clone(),
            started_at_ms: waited.started_at_ms,
            waiting_us: us(waited.waiting),
            timing: reply.timing,
            outcome: outcome_name,
            http_status: reply.http_status,
            vendor_code: code,
            reason,
            claimed_by: shared.owner.clone(),
            traceparent: message.traceparent.clone(),
        };
        if let Outcome::Unknown { reason, .. } = &reply.outcome {
            let text = format!(
                "{} is ERROR (it may or may not have been sent, and is not sent again): {reason}",
                message.message_id
            );
            shared.alerts.raise(Cause::Error, message.destination.as_str(), text);
        }
        let now_ms = wall_ms();
        let message_id = message.message_id.clone();
        let tell = Box::new(move || {
            if kill::point("worker-before-confirm").is_err() {
                return; // a test: this confirm is lost
            }
            let _ = confirm.send(Event::Confirm(Confirm { row, message_id, answer }));
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

    fn learn(&self, message: &Message, reply: &Reply) {
        let destination = &message.destination;
        match self.shared.gate.learn(&reply.outcome, reply.pause, Instant::now()) {
            Change::None => {}
            Change::Closed(reason) => self.shared.alerts.raise(
                Cause::DestinationClosed,
                destination.as_str(),
                format!("closed: {reason}; its messages wait, one probe at a time"),
            ),
            Change::Opened(after) => {
                log::warn!("dest={destination} answers again after {} s", after.as_secs())
            }
            Change::Waits(pause) => {
                log::warn!("dest={destination} asks for a pause of {} ms", pause.as_millis())
            }
        }
    }

    /// Waits until outcomes can be written again, so that a broken database is not asked in a loop.
    fn wait_for_the_database(&self) {
        while self.shared.writer.is_in_trouble() && !self.shared.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

struct Waited {
    started_at_ms: i64,
    waiting: Duration,
}
