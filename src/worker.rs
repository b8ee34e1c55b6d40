//! Room: look first, claim SENDING, call, record, confirm. The heart; one hand-off at a time.
//!
//! From the claim to the record nothing interrupts: a stop is looked at before the claim and never inside, a panic of
//! an adapter becomes an unknown outcome, and an outcome that cannot be written is kept by the writer until it can.
//! Without a committed SENDING row there is no [`Sending`] and so no call. Serves F4, F5, F7-F13, F16, F28.
//!
//! Where the receiver really deduplicates (`idempotency_header`), one claim may make several requests with its one key.
//!
//! Never: writes the outbox, tries again what may have arrived anywhere else, decides when a row is tried again.

use std::cell::{Cell, OnceCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use crate::alert::{Alerts, Cause};
use crate::clock::{self, Now, us, wall_ms};
use crate::config::Repeat;
use crate::db::kill;
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::fingerprint;
use crate::gate::{Change, Gate, Pass};
use crate::hold::Hold;
use crate::lifecycle::InboxState;
use crate::limits::{CONSENT_FRESH, DEDUPLICATED_PAUSE_MAX, DEDUPLICATED_TRIES_MAX, GATE_THROTTLE_DEFAULT};
use crate::message::{Message, MessageId, NotSentKind, NotSentProof, Outcome, OwnerId, Reply};
use crate::policy::{Asking, Policy, Verdict, consent};
use crate::rate::Rate;
use crate::relay::{Answer, Confirm, Event, Handoff};
use crate::report::settle;
use crate::slot::Slot;
use crate::store::attempt::{Append, Attempt, AttemptOutcome};
use crate::store::destination::Note;
use crate::store::inbox::{self, Applied, Claim, ClaimAnswer, Known, Record, Release, Sending};
use crate::store::{report, suppress};
use crate::vendor::{Prepared, Vendor};

/// Between two looks into an inbox that cannot be read.
const DATABASE_PAUSE: Duration = Duration::from_secs(1);
/// Why a hand-off comes back while its destination is paused.
const PAUSED: &str = "DESTINATION_PAUSED";
/// A day, milliseconds: bounds the sum of a moment and a span.
const FAR_MS: i64 = 86_400_000;

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
    /// Readers of the outbox: the opt-outs.
    pub outbox: Pool,
    /// The rules.
    pub policy: Arc<Policy>,
    /// To tell people.
    pub alerts: Alerts,
    /// Set by a stop: begin nothing more.
    pub stop: Arc<AtomicBool>,
    /// The whole agent held: begin nothing more.
    pub hold: Hold,
    /// Tries again within one claim, where the receiver deduplicates; see `again`.
    pub quick: Repeat,
}

/// How often, and after what pause, an unknown outcome is tried again with the same key within one claim, where the
/// receiver deduplicates: the quick tries of the settings, bounded, since the row is SENDING and a stop waits meanwhile.
fn again(quick: Repeat) -> Repeat {
    Repeat { times: quick.times.min(DEDUPLICATED_TRIES_MAX), every: quick.every.min(DEDUPLICATED_PAUSE_MAX) }
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
        let id = handoff.message.message_id.clone();
        let say = Say {
            row: handoff.row,
            message_id: id.clone(),
            until: handoff.until,
            to: handoff.confirm.clone(),
        };
        let progress = Progress::default();
        // An adapter's panic is caught where its outcome is made; this is for a bug of ours, before or after.
        let answer = catch_unwind(AssertUnwindSafe(|| self.deliver(handoff, &say, &progress)))
            .unwrap_or_else(|_| Some(self.broken_off(&id, &progress)));
        // `None`: the record confirms after its commit.
        if let Some(answer) = answer {
            say.tell(answer);
        }
    }

    /// What is known of a hand-off that ended in a panic. After its claim nothing is proven: the row stays SENDING unless
    /// its outcome was on its way to the writer, and SENDING is never sent again.
    fn broken_off(&self, id: &MessageId, progress: &Progress) -> Answer {
        if let Some(pass) = progress.pass.get() {
            self.shared.gate.give_back(pass); // else a closed destination would wait for this probe for ever
        }
        if !progress.claimed.get() {
            log::error!("{id} a panic before its claim: this is a bug; nothing was sent, it is tried again");
            return Answer::HandoffFailed("INTERNAL: a panic before the claim".into());
        }
        log::error!(
            "{id} a panic after its claim: this is a bug; it may have been sent and is not sent again. If its outcome was \
             not recorded, it becomes ERROR at the end of alert.stale_sending or at the next start: see `onceward show {id}`"
        );
        Answer::HandoffFailed("INTERNAL: a panic after the claim; it may have been sent".into())
    }

    fn deliver(&self, handoff: Handoff, say: &Say, progress: &Progress) -> Option<Answer> {
        let Shared { gate, stop, writer, .. } = &*self.shared;
        if stop.load(Ordering::Relaxed) {
            return Some(Answer::Returned("STOPPING"));
        }
        if self.shared.hold.is_on() {
            return Some(Answer::Returned("HELD: see `onceward status`"));
        }
        if writer.is_in_trouble() {
            self.wait_for_the_database();
            return Some(Answer::Returned("DATABASE: outcomes cannot be written now"));
        }
        let Some(pass) = gate.may_call(clock::mono()) else {
            return Some(Answer::Returned(if gate.is_paused() { PAUSED } else { "DESTINATION_CLOSED" }));
        };
        progress.pass.set(Some(pass));
        let answer = self.claim_and_call(handoff, pass, say, progress);
        if answer.is_some() {
            gate.give_back(pass); // a probe that did not come to a call
        }
        answer
    }

    /// The straight pipe. Returns an answer where no call was made.
    fn claim_and_call(&self, handoff: Handoff, pass: Pass, say: &Say, progress: &Progress) -> Option<Answer> {
        let shared = &*self.shared;
        // `_held` is given back at the end of this function, whatever that is.
        let Handoff { again, message, claimed, held: _held, .. } = handoff;
        let fingerprint = fingerprint::of(&message);

        if again && let Some(answer) = self.look(&message, &fingerprint) {
            return Some(answer);
        }
        // Whatever would close the row is said only after a look: its mark may have been lost after a send.
        let mut prepared = match self.fit(&message) {
            Ok(prepared) => prepared,
            Err(answer @ (Answer::Wait { .. } | Answer::Hold(_) | Answer::Returned(_))) => {
                return Some(answer);
            }
            Err(answer) => return Some(self.look(&message, &fingerprint).unwrap_or(answer)),
        };
        // A login is a call that the vendor counts.
        if !shared.vendor.is_ready() && !shared.rate.take(&shared.stop) {
            return Some(Answer::Returned("STOPPING"));
        }
        let consented = clock::mono();
        if let Err(reply) = shared.vendor.ready() {
            return Some(self.not_begun(&message, *reply));
        }
        if !shared.rate.take(&shared.stop) {
            return Some(Answer::Returned("STOPPING"));
        }

        // After the wait for the rate: what an operator has paused meanwhile is not begun.
        if shared.gate.is_paused() {
            return Some(Answer::Returned(PAUSED));
        }
        if say.is_over() {
            return Some(Answer::Returned("LEASE: it waited too long for a worker"));
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
        progress.claimed.set(true);
        let _ = kill::point("worker-after-claim");
        let started_at_ms = wall_ms();
        // Since it was due (or came): what the customer waited for, not only our part of it.
        let due_ms = message.not_before_ms.max(message.created_at_ms);
        let waiting = Duration::from_millis(u64::try_from(started_at_ms - due_ms).unwrap_or(0))
            .max(clock::elapsed(claimed));
        let reply = match self.call(&sending, &message, &mut prepared, Some(consented)) {
            Ok(reply) => reply,
            Err(answer) => {
                shared.gate.give_back(pass);
                self.release(sending, answer, say.clone());
                return None;
            }
        };
        let mut waited = Waited { started_at_ms, waiting };
        let reply = self.ask_again(&sending, &message, &mut prepared, reply, &mut waited);
        let _ = kill::point("worker-after-call");
        self.record(sending, &message, reply, waited, say.clone());
        None
    }

    /// Look first: an answer where the inbox already knows the message.
    fn look(&self, message: &Message, fingerprint: &str) -> Option<Answer> {
        let shared = &*self.shared;
        let reader = match shared.inbox.get() {
            Ok(reader) => reader,
            Err(_) => return Some(Answer::Returned("DATABASE: the inbox cannot be read")),
        };
        // Asked before and after: a claim whose commit failed may be in the file until it is taken back. It belongs to no
        // call, so no confirm of it will come.
        let trouble_before = shared.writer.is_in_trouble();
        match inbox::look(&reader, &message.message_id, &shared.owner, fingerprint) {
            Ok(None) => None,
            Ok(Some(known))
                if known.status == InboxState::Sending
                    && known.mine
                    && (trouble_before || shared.writer.is_in_trouble()) =>
            {
                Some(Answer::Returned("DATABASE: a claim whose commit failed is being taken back"))
            }
            Ok(Some(known)) => Some(self.already(message, &known)),
            Err(error) => {
                log::error!("the inbox cannot be read: {error}; nothing is sent on it");
                self.pause(DATABASE_PAUSE);
                Some(Answer::Returned("DATABASE: the inbox cannot be read"))
            }
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
        log::info!(
            "{} duplicate dest={} known as {}{}",
            message.message_id,
            message.destination,
            known.status,
            message.traced()
        );
        Answer::Settled
    }

    /// Policy, consent and encoding, before any claim.
    fn fit(&self, message: &Message) -> Result<Prepared, Answer> {
        self.rules(message, Asking::Worker, clock::now())?;
        self.consent(message)?;
        self.shared.vendor.prepare(message).map_err(|unfit| Answer::Park(format!("UNFIT: {}", unfit.reason)))
    }

    fn rules(&self, message: &Message, asking: Asking, now: Now) -> Result<(), Answer> {
        match self.shared.policy.judge(message, asking, now) {
            Verdict::Go => Ok(()),
            Verdict::Wait { until_ms, last_ms, reason } => Err(Answer::Wait { until_ms, last_ms, reason }),
            Verdict::Hold(reason) => Err(Answer::Hold(reason)),
            Verdict::Skip(reason) => Err(Answer::Skip(reason)),
            Verdict::Expire(reason) => Err(Answer::Expire(reason)),
        }
    }

    /// The opt-outs, as they stand now: one indexed look-up. What cannot be read is no consent.
    fn consent(&self, message: &Message) -> Result<(), Answer> {
        const UNREAD: Answer = Answer::Returned("DATABASE: the opt-outs cannot be read");
        let (own, foreign) = consent::keys(message);
        let found = match self.shared.outbox.get() {
            Ok(reader) => suppress::find(&reader, &own, foreign.as_deref()).map_err(|_| UNREAD)?,
            Err(_) => return Err(UNREAD),
        };
        consent::judge(message, &found).map_or(Ok(()), |reason| Err(Answer::Skip(reason)))
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
        let at_ms = wall_ms();
        self.shared.writer.submit(Box::new(Claim {
            consumer: message.destination.clone(),
            message_id: message.message_id.clone(),
            fingerprint,
            owner: self.shared.owner.clone(),
            at_ms,
            day: self.shared.policy.day(at_ms),
            reply: slot.answer(|| ClaimAnswer::Failed("the writer has stopped".into())),
            found: None,
            row: 0,
        }));
        slot.wait()
    }

    /// The one call. A last look at the rules, then the adapter, whose panic is an unknown outcome. `Err` where the
    /// rules say no: then nothing was sent.
    fn call(
        &self,
        sending: &Sending,
        message: &Message,
        prepared: &mut Prepared,
        consented: Option<Instant>,
    ) -> Result<Reply, Answer> {
        if consented.is_none_or(|at| clock::elapsed(at) > CONSENT_FRESH) {
            self.consent(message)?; // the rate, a login or the claim took their time
        }
        // After every wait, and right before the adapter: a call that would begin at the closing does not.
        let now = clock::now();
        self.rules(message, Asking::Call, now)?;
        prepared.begin_before = self.shared.policy.begin_before_ms(message, now.ms).map(|moment_ms| {
            clock::mono() + Duration::from_millis(moment_ms.saturating_sub(now.ms).clamp(0, FAR_MS) as u64)
        });
        let reply = catch_unwind(AssertUnwindSafe(|| self.shared.vendor.send(sending, message, prepared)))
            .unwrap_or_else(|_| Reply {
                outcome: Outcome::Unknown {
                    code: None,
                    reason: "INTERNAL: the adapter panicked during the call".into(),
                },
                http_status: None,
                timing: Default::default(),
                pause: None,
            });
        match reply.outcome {
            // It connected until the window had closed: the rules know what that means.
            Outcome::NotSent { kind: NotSentKind::TooLate, .. } => {
                self.rules(message, Asking::Call, clock::now())?;
                Err(Answer::Returned("WINDOW: it came to the first byte too late"))
            }
            _ => Ok(reply),
        }
    }

    /// Where the receiver deduplicates by our key, an unknown outcome is asked about with the same request under the same
    /// claim: its answer is the first request's. At most a few times; then it stays unknown. A later try that certainly
    /// was not sent says nothing of the first, so it ends as unknown too. Each earlier try is logged at once; `waited`
    /// tells of the last.
    fn ask_again(
        &self,
        sending: &Sending,
        message: &Message,
        prepared: &mut Prepared,
        mut reply: Reply,
        waited: &mut Waited,
    ) -> Reply {
        let shared = &*self.shared;
        if !shared.vendor.deduplicates() {
            return reply;
        }
        let Repeat { times, every } = again(shared.quick);
        for _ in 0..times {
            let Outcome::Unknown { code, reason } = &reply.outcome else { break };
            let first = (code.clone(), reason.clone());
            // As with every request: nothing is begun in a stop or a pause, over the rate, or against the rules.
            self.pause(every);
            if shared.stop.load(Ordering::Relaxed)
                || shared.gate.is_paused()
                || !shared.rate.take(&shared.stop)
            {
                break;
            }
            let started_at_ms = wall_ms();
            let Ok(mut next) = self.call(sending, message, prepared, None) else {
                break; // the rules say no: what was asked before stays unknown
            };
            // The one before is no longer the last: its line, and what it tells of the destination.
            self.learn(message, &reply);
            let attempt = self.attempt(message, &reply, AttemptOutcome::Unknown, waited);
            self.say(message, &attempt);
            shared.writer.submit(Box::new(Append(attempt)));
            let mut enough = false;
            if let Outcome::NotSent { kind, reason, .. } = &next.outcome {
                if let NotSentKind::Throttled(wait) = kind {
                    enough = true; // it asks for a pause that is longer than this section may last
                    next.pause = next.pause.or(*wait).or(Some(GATE_THROTTLE_DEFAULT));
                }
                let reason = format!("{}; asked again with the same key, not sent: {reason}", first.1);
                next.outcome = Outcome::Unknown { code: first.0, reason };
            }
            (reply, waited.started_at_ms) = (next, started_at_ms);
            if enough {
                break;
            }
        }
        reply
    }

    /// The line of one call in the log of attempts.
    fn attempt(&self, message: &Message, reply: &Reply, outcome: AttemptOutcome, waited: &Waited) -> Attempt {
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

    fn say(&self, message: &Message, attempt: &Attempt) {
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
    fn release(&self, sending: Sending, answer: Answer, say: Say) {
        log::info!(
            "{} released dest={} before its call: {answer:?}",
            sending.message_id(),
            sending.consumer()
        );
        let tell = Box::new(move || say.tell(answer));
        self.shared.writer.submit(Box::new(Release::new(sending, NotSentProof::before_the_call(), tell)));
    }

    fn record(&self, sending: Sending, message: &Message, reply: Reply, waited: Waited, say: Say) {
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
    fn reports_settle(&self, message: &Message) -> bool {
        self.shared.inbox.get().is_ok_and(|reader| {
            report::said(&reader, &message.destination, &message.message_id)
                .is_ok_and(|said| settle(InboxState::Error, &said).is_some())
        })
    }

    fn learn(&self, message: &Message, reply: &Reply) {
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

    /// Waits, but not over a stop.
    fn pause(&self, span: Duration) {
        let end = clock::mono() + span;
        while clock::mono() < end && !self.shared.stop.load(Ordering::Relaxed) {
            clock::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until outcomes can be written again, so that a broken database is not asked in a loop.
    fn wait_for_the_database(&self) {
        while self.shared.writer.is_in_trouble() && !self.shared.stop.load(Ordering::Relaxed) {
            clock::sleep(Duration::from_millis(20));
        }
    }
}

/// Where the word about one hand-off goes, and how long it counts.
#[derive(Clone)]
struct Say {
    row: i64,
    message_id: MessageId,
    until: Instant,
    to: Sender<Event>,
}

impl Say {
    /// Whether the row may be in other hands by now: handed over again, or closed by a rule or a person.
    fn is_over(&self) -> bool {
        clock::mono() >= self.until
    }

    /// Tells the relay. What the inbox knows is true for ever; anything else would be said of another's claim, so it is
    /// not said when it comes too late: the relay takes the row back at the end of its lease.
    fn tell(&self, answer: Answer) {
        if self.is_over() && !matches!(answer, Answer::Settled | Answer::InFlight) {
            log::warn!(
                "row {} came back too late to be marked ({answer:?}): its lease takes it back",
                self.row
            );
            return;
        }
        let message_id = self.message_id.clone();
        let _ = self.to.send(Event::Confirm(Confirm { row: self.row, message_id, answer }));
    }
}

/// How far a hand-off has come.
#[derive(Default)]
struct Progress {
    /// The gate's leave to call, which only one may have while the gate is closed.
    pass: Cell<Option<Pass>>,
    /// Its SENDING row is on the disk.
    claimed: Cell<bool>,
}

struct Waited {
    started_at_ms: i64,
    waiting: Duration,
}
