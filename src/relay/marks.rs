//! What a worker's answer, or a rule before the hand-off, does to its row; how often a row is tried before it is parked.
//!
//! Each mark names the state and the owner that it leaves: zero rows moved means that the claim was no longer ours.
//! Never: PUBLISHED on the word of an older copy's confirm; there the inbox is asked.

use rusqlite::Connection;

use super::round::Round;
use super::{Answer, Confirm, Home, Relay};
use crate::alert::Cause;
use crate::clock::ms;
use crate::db::kill;
use crate::message::NotSentKind;
use crate::retry::{self, Next};
use crate::store::outbox::{self, Facts};

/// How a try failed for certain, each with a budget and pauses of its own.
#[derive(Clone, Copy)]
enum Failed {
    /// Refused at the door.
    Refused,
    /// A bug or a panic before its claim.
    Handoff,
}

impl Relay {
    /// Marks one confirmed row. Zero rows moved means its claim was no longer ours: nothing to do.
    pub(super) fn mark(
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
                self.try_again(tx, row, Failed::Refused, reason, now_ms, round)?
            }
            // About the destination, not the message: no attempt is used, its place in the order stays.
            Answer::NotSent { reason, .. } => {
                outbox::postpone(tx, row, owner, &later(None, true, reason), now_ms)?;
            }
            Answer::HandoffFailed(reason) => {
                self.try_again(tx, row, Failed::Handoff, reason, now_ms, round)?
            }
            Answer::Skip(reason) => {
                outbox::skip(tx, row, owner, reason, now_ms)?;
            }
            Answer::Expire(reason) => {
                if outbox::expire(tx, row, owner, reason, now_ms)?
                    && let Some(Facts { destination, message_id: id, .. }) = outbox::facts(tx, row)?
                {
                    round.expired(destination, &id, reason);
                }
            }
            Answer::Park(reason) => {
                if outbox::park(tx, row, owner, reason, now_ms)?
                    && let Some(Facts { destination, message_id: id, .. }) = outbox::facts(tx, row)?
                {
                    round.parked(destination, &id, reason);
                }
            }
        }
        Ok(())
    }

    /// A try that failed: again after a pause, or parked, since its budget is used up and a person decides.
    fn try_again(
        &self,
        tx: &Connection,
        row: i64,
        failed: Failed,
        reason: &str,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let Some(Facts { attempts, destination, message_id, reason: before }) = outbox::facts(tx, row)?
        else {
            return Ok(()); // deleted by hand: the attempt log still has it
        };
        let settings = &self.parts.retry;
        let (next, what) = match failed {
            Failed::Refused => (retry::after_refusal(settings, attempts), "was refused"),
            Failed::Handoff => {
                let same = before.as_deref() == Some(reason);
                (retry::after_failed_handoff(settings, attempts, same), "could not be handed over")
            }
        };
        match next {
            Next::After(pause) => {
                let how = outbox::Postpone {
                    not_before_ms: Some(now_ms.saturating_add(ms(pause))),
                    give_back: false,
                    reason: reason.to_owned(),
                };
                outbox::postpone(tx, row, &self.parts.owner, &how, now_ms)?;
            }
            Next::Park => {
                let text = format!("{reason} ({attempts} attempts)");
                if outbox::park(tx, row, &self.parts.owner, &text, now_ms)? {
                    round.parked(destination.clone(), &message_id, &text);
                }
            }
        }
        if attempts == settings.alert_at_attempt {
            round.alerts.push((
                Cause::ManyAttempts,
                destination,
                format!("{message_id} {what} {attempts} times: {reason}"),
            ));
        }
        Ok(())
    }
}
