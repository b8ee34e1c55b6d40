//! The one call under a claim, and, where the receiver deduplicates by our key, the few more that ask for its answer.
//!
//! Never: a call without a [`Sending`], a call without a last look at the rules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Worker;
use super::record::Waited;
use crate::clock::{self, wall_ms};
use crate::config::Repeat;
use crate::limits::{CONSENT_FRESH, DEDUPLICATED_PAUSE_MAX, DEDUPLICATED_TRIES_MAX, GATE_THROTTLE_DEFAULT};
use crate::message::{Message, NotSentKind, Outcome, Reply};
use crate::policy::Asking;
use crate::relay::Answer;
use crate::source::OptOuts;
use crate::store::attempt::{Append, AttemptOutcome};
use crate::store::inbox::Sending;
use crate::vendor::Prepared;

/// A day, milliseconds: bounds the sum of a moment and a span.
const FAR_MS: i64 = 86_400_000;

/// How often, and after what pause, an unknown outcome is tried again with the same key within one claim, where the
/// receiver deduplicates: the quick tries of the settings, bounded, since the row is SENDING and a stop waits meanwhile.
fn again(quick: Repeat) -> Repeat {
    Repeat { times: quick.times.min(DEDUPLICATED_TRIES_MAX), every: quick.every.min(DEDUPLICATED_PAUSE_MAX) }
}

impl Worker {
    /// The one call. A last look at the rules, then the adapter, whose panic is an unknown outcome. `Err` where the
    /// rules say no: then nothing was sent.
    pub(super) fn call(
        &self,
        sending: &Sending,
        message: &Message,
        of_file: Option<&OptOuts>,
        prepared: &mut Prepared,
        consented: Option<Instant>,
    ) -> Result<Reply, Answer> {
        if consented.is_none_or(|at| clock::elapsed(at) > CONSENT_FRESH) {
            self.consent(message, of_file)?; // the rate, a login or the claim took their time
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
    pub(super) fn ask_again(
        &self,
        sending: &Sending,
        message: &Message,
        of_file: Option<&OptOuts>,
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
            let Ok(mut next) = self.call(sending, message, of_file, prepared, None) else {
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
}
