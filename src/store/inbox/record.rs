//! What came of a claim: the outcome of its call, or its release without one. Spends the [`Sending`].
//!
//! A [`Record`] whose row is no longer in SENDING undoes nothing: what it knows is added (`Record::late`). Reports that
//! waited have their effect in its commit. Serves F10, F31.

use std::sync::Arc;

use rusqlite::{Connection, params};

use super::claim::Sending;
use super::reports::{Applied, apply_reports};
use super::settle::settled_as;
use crate::db::writer::{Counted, Work};
use crate::lifecycle::InboxState;
use crate::message::{NotSentProof, Outcome};
use crate::store::attempt::{self, Attempt};
use crate::store::{report, tally};

// The three ways in which an outcome ends its row: ?1 to ?5 name the claim, ?6 to ?10 say what came of it.

const END: &str = "UPDATE inbox SET status = ?6, vendor_code = ?7, vendor_ref = ?8, reason = ?9, finished_at_ms = ?10, settled_by = 'worker'
  WHERE consumer = ?1 AND message_id = ?2 AND claimed_by = ?3 AND claimed_at_ms = ?4 AND id = ?5 AND status = 'SENDING'";
/// The sweeper or a start had given it up.
const END_LATE: &str =
    "UPDATE inbox SET status = ?6, reason = ?9, finished_at_ms = ?10, settled_by = 'worker'
  WHERE consumer = ?1 AND message_id = ?2 AND claimed_by = ?3 AND claimed_at_ms = ?4 AND status = 'ERROR'
    AND settled_by IN ('sweeper', 'start')";
/// The row was deleted by hand in mid-call.
const END_AGAIN: &str = "INSERT INTO inbox (consumer, message_id, fingerprint, status, vendor_code, vendor_ref, reason, claimed_by,
                   claimed_at_ms, finished_at_ms, settled_by)
  SELECT ?1, ?2, 'unknown', ?6, ?7, ?8, ?9, ?3, ?4, ?10, 'worker'
   WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE message_id = ?2)";
/// A row that has come to its end without this outcome learns from it, and stays as it is.
const ADD_WHAT_IT_KNOWS: &str =
    "UPDATE inbox SET vendor_code = coalesce(vendor_code, ?5), vendor_ref = coalesce(vendor_ref, ?6)
  WHERE consumer = ?1 AND message_id = ?2 AND claimed_by = ?3 AND claimed_at_ms = ?4";

/// Work: what came of a call. Spends the [`Sending`].
pub struct Record {
    sending: Sending,
    outcome: Outcome,
    attempt: Attempt,
    day: Arc<str>,
    finished_at_ms: i64,
    confirm: Option<Confirm>,
    /// The end that `apply` wrote, if it did.
    ended: Option<InboxState>,
    applied: Applied,
}

/// Runs after the commit of a [`Record`], with what waiting reports made of its row.
pub type Confirm = Box<dyn FnOnce(Applied) + Send>;

impl Record {
    /// `confirm` runs after the commit: it tells the relay.
    pub fn new(
        sending: Sending,
        outcome: Outcome,
        attempt: Attempt,
        day: Arc<str>,
        finished_at_ms: i64,
        confirm: Confirm,
    ) -> Self {
        Self {
            sending,
            outcome,
            attempt,
            day,
            finished_at_ms,
            confirm: Some(confirm),
            ended: None,
            applied: Applied::Nothing,
        }
    }

    /// What came of the call, as columns.
    fn ended(&self) -> (InboxState, Option<&String>, Option<&String>, Option<&String>) {
        match &self.outcome {
            Outcome::Accepted { code, vendor_ref } => {
                (InboxState::Sent, Some(code), vendor_ref.as_ref(), None)
            }
            Outcome::Rejected { code, reason } => (InboxState::Failed, Some(code), None, Some(reason)),
            // `NotSent` comes here only where a report says otherwise.
            Outcome::NotSent { code, reason, .. } | Outcome::Unknown { code, reason } => {
                (InboxState::Error, code.as_ref(), None, Some(reason))
            }
        }
    }

    /// One of the statements above, with the columns of what came of the call. How many rows it changed.
    fn write(&self, tx: &Connection, statement: &str) -> rusqlite::Result<usize> {
        let Sending { row, consumer, message_id, owner, claimed_at_ms } = &self.sending;
        let (state, code, vendor_ref, reason) = self.ended();
        tx.prepare_cached(statement)?.execute(params![
            consumer,
            message_id,
            owner,
            claimed_at_ms,
            row,
            state,
            code,
            vendor_ref,
            reason,
            self.finished_at_ms
        ])
    }

    /// The row has left SENDING without this outcome: it is there already (its commit failed and had landed), or the
    /// sweeper called it ERROR, which a report or a person may have settled since. Nothing that is settled is undone; a
    /// plain answer settles the sweeper's ERROR, and the attempt is kept either way. A row that was deleted by hand in
    /// mid-call is written again: what was called must stay known.
    fn late(&self, tx: &Connection) -> rusqlite::Result<()> {
        let Sending { consumer, message_id, owner, claimed_at_ms, .. } = &self.sending;
        if attempt::is_there(tx, &self.attempt)? {
            return Ok(());
        }
        attempt::append(tx, &self.attempt)?;
        let (state, code, vendor_ref, _) = self.ended();
        let counted = if !matches!(self.outcome, Outcome::NotSent { .. }) && self.write(tx, END_AGAIN)? == 1 {
            log::error!(
                "{message_id} dest={consumer} its row in the inbox was deleted during its call; it is written again"
            );
            state.as_str()
        } else {
            tx.prepare_cached(ADD_WHAT_IT_KNOWS)?.execute(params![
                consumer,
                message_id,
                owner,
                claimed_at_ms,
                code,
                vendor_ref
            ])?;
            if state == InboxState::Error || self.write(tx, END_LATE)? == 0 {
                return Ok(());
            }
            log::warn!("{message_id} dest={consumer} answered after it was called ERROR: {state}");
            settled_as(state)
        };
        tally::add(tx, &self.day, consumer.as_str(), counted, 1)?;
        apply_reports(tx, consumer, message_id, &self.day, self.finished_at_ms)?;
        Ok(())
    }
}

impl Work for Record {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let Sending { row, consumer, message_id, owner, claimed_at_ms } = &self.sending;
        (self.ended, self.applied) = (None, Applied::Nothing);
        if matches!(self.outcome, Outcome::NotSent { .. }) && !report::any(connection, consumer, message_id)?
        {
            let released = connection
                .prepare_cached(
                    "DELETE FROM inbox WHERE consumer = ?1 AND message_id = ?2 AND status = 'SENDING' AND claimed_by = ?3
                        AND claimed_at_ms = ?4 AND id = ?5",
                )?
                .execute(params![consumer, message_id, owner, claimed_at_ms, row])?;
            return if released == 1 {
                attempt::append(connection, &self.attempt)
            } else {
                self.late(connection)
            };
        }
        if self.write(connection, END)? == 0 {
            return self.late(connection);
        }
        attempt::append(connection, &self.attempt)?;
        self.ended = Some(self.ended().0);
        self.applied = apply_reports(connection, consumer, message_id, &self.day, self.finished_at_ms)?;
        Ok(())
    }
    fn counted(&self) -> Option<Counted> {
        let what = self.ended?.as_str();
        Some(Counted { day: self.day.clone(), consumer: self.sending.consumer.clone(), what })
    }
    fn committed(mut self: Box<Self>) {
        if let Some(confirm) = self.confirm.take() {
            confirm(self.applied);
        }
    }
    fn failed(self: Box<Self>, why: &str) {
        log::error!(
            "{} dest={} the outcome of its call could not be written ({why}): its SENDING row becomes ERROR at the next start",
            self.sending.message_id,
            self.sending.consumer
        );
    }
    fn must_land(&self) -> bool {
        true
    }
}

/// Work: a claim whose call was not begun, because the last look at the rules said no. Spends the [`Sending`]; no
/// attempt is logged, since there was none.
pub struct Release {
    sending: Sending,
    confirm: Option<Box<dyn FnOnce() + Send>>,
}

impl Release {
    /// `_proof` says that the adapter sent nothing. `confirm` runs after the commit: it tells the relay.
    pub fn new(sending: Sending, _proof: NotSentProof, confirm: Box<dyn FnOnce() + Send>) -> Self {
        Self { sending, confirm: Some(confirm) }
    }
}

impl Work for Release {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let Sending { row, consumer, message_id, owner, .. } = &self.sending;
        connection
            .prepare_cached(
                "DELETE FROM inbox WHERE id = ?1 AND consumer = ?2 AND message_id = ?3 AND status = 'SENDING' AND claimed_by = ?4",
            )?
            .execute(params![row, consumer, message_id, owner])?;
        Ok(())
    }
    fn committed(mut self: Box<Self>) {
        if let Some(confirm) = self.confirm.take() {
            confirm();
        }
    }
    fn failed(self: Box<Self>, why: &str) {
        log::error!(
            "{} dest={} its unused claim could not be released ({why}): it becomes ERROR at the next start",
            self.sending.message_id,
            self.sending.consumer
        );
    }
    fn must_land(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};
    use crate::message::{Destination, MessageId, OwnerId};
    use crate::report::{self, Way};
    use crate::store::attempt::AttemptOutcome;

    /// Its row was deleted by hand in mid-call, and the vendor's report had come before the answer.
    #[test]
    fn a_row_that_is_written_again_gets_what_reports_said_meanwhile() {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(migrate::schema(Part::Inbox)).expect("the schema");
        let (consumer, message_id) = (Destination::new("biz"), MessageId::new("ow-1"));
        let value = serde_json::json!({"MSGID": "m1", "MEDIA": "SMS", "RESULT": "4100", "REFKEY": "ow-1"});
        let told = report::normalise(&value).expect("a report");
        let _ = crate::store::report::keep(&connection, (&consumer, &consumer), &told, Way::Poll, true, 5)
            .expect("kept");
        let attempt = Attempt {
            consumer: consumer.clone(),
            message_id: message_id.clone(),
            started_at_ms: 1,
            waiting_us: 0,
            timing: Default::default(),
            outcome: AttemptOutcome::Unknown,
            http_status: None,
            vendor_code: None,
            reason: None,
            claimed_by: OwnerId::new("a:1"),
            traceparent: None,
        };
        let unknown = Outcome::Unknown { code: None, reason: "reset".into() };
        let sending = Sending::for_tests(consumer, message_id);
        let mut record = Record::new(sending, unknown, attempt, "2026-01-01".into(), 9, Box::new(|_| {}));
        for _ in 0..2 {
            record.apply(&connection).expect("recorded"); // repeatable, as after a failed commit
        }
        let row: (String, String, String) = connection
            .query_row("SELECT status, delivery, settled_by FROM inbox", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .expect("one row");
        assert_eq!(row, ("SENT".into(), "DELIVERED".into(), "report".into()));
    }
}
