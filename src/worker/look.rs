//! Before any claim: what the inbox knows of the message already, and what the rules, the opt-outs and the adapter say.
//!
//! Never: claims, calls, records.

use std::time::Duration;

use super::Worker;
use crate::alert::Cause;
use crate::clock::{self, Now, ms};
use crate::lifecycle::InboxState;
use crate::limits::OPT_OUTS_UNREAD_PAUSE;
use crate::message::{Message, NotSentKind, Outcome, Reply};
use crate::policy::{Asking, Verdict, consent};
use crate::relay::Answer;
use crate::source::OptOuts;
use crate::store::inbox::{self, Known};
use crate::store::suppress;
use crate::vendor::Prepared;

/// Why a copy with other content is parked; it can only be cancelled.
const OTHER_CONTENT: &str = "OTHER_CONTENT: another message with this message_id was taken before; cancel this one and insert it anew with message_id left to its default";

/// Between two looks into an inbox that cannot be read.
const DATABASE_PAUSE: Duration = Duration::from_secs(1);

impl Worker {
    /// Look first: an answer where the inbox already knows the message.
    pub(super) fn look(&self, message: &Message, fingerprint: &str) -> Option<Answer> {
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

    pub(super) fn already(&self, message: &Message, known: &Known) -> Answer {
        // Not PUBLISHED: what this copy says has not been sent, and a person must see that.
        if !known.same_content {
            let text = format!(
                "{} stands in the inbox with other content; this copy is PARKED and not sent",
                message.message_id
            );
            self.shared.alerts.raise(Cause::Conflict, message.destination.as_str(), text);
            return Answer::Park(OTHER_CONTENT.to_owned());
        }
        // A route that was lost and found anew, or one id for two destinations: nobody but a person can tell.
        if known.consumer != message.destination.as_str() {
            let (id, to) = (&message.message_id, &known.consumer);
            let text = format!("{id} went to {to} before; it is not sent again to {}", message.destination);
            self.shared.alerts.raise(Cause::Conflict, message.destination.as_str(), text);
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
    pub(super) fn fit(&self, message: &Message, of_file: Option<&OptOuts>) -> Result<Prepared, Answer> {
        self.rules(message, Asking::Worker, clock::now())?;
        self.consent(message, of_file)?;
        self.shared.vendor.prepare(message).map_err(|unfit| Answer::Park(format!("UNFIT: {}", unfit.reason)))
    }

    pub(super) fn rules(&self, message: &Message, asking: Asking, now: Now) -> Result<(), Answer> {
        match self.shared.policy.judge(message, asking, now) {
            Verdict::Go => Ok(()),
            Verdict::Wait { until_ms, last_ms, reason } => Err(Answer::Wait { until_ms, last_ms, reason }),
            Verdict::Hold(reason) => Err(Answer::Hold(reason)),
            Verdict::Skip(reason) => Err(Answer::Skip(reason)),
            Verdict::Expire(reason) => Err(Answer::Expire(reason)),
        }
    }

    /// The opt-outs, as they stand now, of outbox.db and of the message's own file: a few indexed look-ups in each. What
    /// cannot be read is no consent.
    pub(super) fn consent(&self, message: &Message, of_file: Option<&OptOuts>) -> Result<(), Answer> {
        const UNREAD: Answer = Answer::Returned("DATABASE: the opt-outs cannot be read");
        let forms = consent::keys(message);
        let mut found = match self.shared.outbox.get() {
            Ok(reader) => suppress::find(&reader, &forms).map_err(|_| UNREAD)?,
            Err(_) => return Err(UNREAD),
        };
        if let Some(of_file) = of_file {
            // Its relay may be able to work on the file all the same: without a pause it would go round at once.
            found.extend(of_file.find(&forms).map_err(|error| Answer::Wait {
                until_ms: clock::wall_ms().saturating_add(ms(OPT_OUTS_UNREAD_PAUSE)),
                last_ms: None,
                reason: format!("DATABASE: the opt-outs of its file cannot be read: {error}"),
            })?);
        }
        consent::judge(message, &found).map_or(Ok(()), |reason| Err(Answer::Skip(reason)))
    }

    /// The login failed: nothing of the message left.
    pub(super) fn not_begun(&self, message: &Message, reply: Reply) -> Answer {
        self.learn(message, &reply);
        match reply.outcome {
            Outcome::NotSent { kind, reason, .. } => Answer::NotSent { kind, reason },
            _ => {
                Answer::NotSent { kind: NotSentKind::Unreachable, reason: "the login did not succeed".into() }
            }
        }
    }
}
