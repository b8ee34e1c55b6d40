//! Room: look first, claim SENDING, call, record, confirm. The heart; one hand-off at a time.
//!
//! From the claim to the record nothing interrupts: a stop is looked at before the claim and never inside, a panic of
//! an adapter becomes an unknown outcome, and an outcome that cannot be written is kept by the writer until it can.
//! Without a committed SENDING row there is no [`crate::store::inbox::Sending`] and so no call. Serves F4, F5, F7-F13, F16, F28.
//!
//! Where the receiver really deduplicates (`idempotency_header`), one claim may make several requests with its one key.
//!
//! Never: writes the outbox, tries again what may have arrived anywhere else, decides when a row is tried again.

mod call;
mod look;
mod record;

use std::cell::{Cell, OnceCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::Receiver;

use self::record::{Say, Waited};
use crate::alert::Alerts;
use crate::clock::{self, wall_ms};
use crate::config::Repeat;
use crate::db::kill;
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::fingerprint;
use crate::gate::{Gate, Pass};
use crate::hold::Hold;
use crate::message::{Message, MessageId, OwnerId};
use crate::policy::{Asking, Policy};
use crate::rate::Rate;
use crate::relay::{Answer, Handoff};
use crate::slot::Slot;
use crate::store::inbox::{Claim, ClaimAnswer};
use crate::vendor::Vendor;

/// Why a hand-off comes back while its destination is paused.
const PAUSED: &str = "DESTINATION_PAUSED";

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
    /// Held by the one worker that logs in.
    pub login: Mutex<()>,
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
            return Some(self.shut());
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
        let Handoff { again, message, claimed, opt_outs, held: _held, .. } = handoff;
        let of_file = opt_outs.as_deref();
        let fingerprint = fingerprint::of(&message);

        if again && let Some(answer) = self.look(&message, &fingerprint) {
            return Some(answer);
        }
        // Whatever would close the row is said only after a look: its mark may have been lost after a send.
        let consented = clock::mono();
        let no = |answer| match answer {
            Answer::Wait { .. } | Answer::Hold(_) | Answer::Returned(_) => Some(answer),
            closing => Some(self.look(&message, &fingerprint).unwrap_or(closing)),
        };
        let mut prepared = match self.fit(&message, of_file) {
            Ok(prepared) => prepared,
            Err(answer) => return no(answer),
        };
        // A login is a call that the vendor counts: one for all, so the others wait for it here and not for turns of theirs.
        let login =
            (!shared.vendor.is_ready()).then(|| shared.login.lock().unwrap_or_else(PoisonError::into_inner));
        if login.is_some() && !shared.gate.still_allows(pass, clock::mono()) {
            return Some(self.shut());
        }
        if !shared.vendor.is_ready() && !shared.rate.take(&shared.stop) {
            return Some(Answer::Returned("STOPPING"));
        }
        if let Err(reply) = shared.vendor.ready() {
            return Some(self.not_begun(&message, *reply));
        }
        drop(login);
        if !shared.rate.take(&shared.stop) {
            return Some(Answer::Returned("STOPPING"));
        }

        // After the wait for the rate: what an operator has paused or the vendor has asked to leave alone meanwhile is not
        // begun, and what is no longer allowed needs no claim.
        if !shared.gate.still_allows(pass, clock::mono()) {
            return Some(self.shut());
        }
        if let Err(answer) = self.rules(&message, Asking::Worker, clock::now()) {
            return no(answer);
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
        let reply = match self.call(&sending, &message, of_file, &mut prepared, Some(consented)) {
            Ok(reply) => reply,
            Err(answer) => {
                shared.gate.give_back(pass);
                self.release(sending, answer, say.clone());
                return None;
            }
        };
        let mut waited = Waited { started_at_ms, waiting };
        let reply = self.ask_again(&sending, &message, of_file, &mut prepared, reply, &mut waited);
        let _ = kill::point("worker-after-call");
        self.record(sending, &message, reply, waited, say.clone());
        None
    }

    /// The gate lets nobody through now.
    fn shut(&self) -> Answer {
        Answer::Returned(if self.shared.gate.is_paused() { PAUSED } else { "DESTINATION_CLOSED" })
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

/// How far a hand-off has come.
#[derive(Default)]
struct Progress {
    /// The gate's leave to call, which only one may have while the gate is closed.
    pass: Cell<Option<Pass>>,
    /// Its SENDING row is on the disk.
    claimed: Cell<bool>,
}
