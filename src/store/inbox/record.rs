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
}

impl Record {
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
        let (state, code, vendor_ref, reason) = self.ended();
        if !matches!(self.outcome, Outcome::NotSent { .. }) && self.write_again(tx)? {
            return Ok(());
        }
        tx.prepare_cached(
            "UPDATE inbox SET vendor_ref = coalesce(vendor_ref, ?4), vendor_code = coalesce(vendor_code, ?5)
              WHERE consumer = ?1 AND message_id = ?2 AND claimed_by = ?3 AND claimed_at_ms = ?6",
        )?
        .execute(params![consumer, message_id, owner, vendor_ref, code, claimed_at_ms])?;
        if state == InboxState::Error {
            return Ok(());
        }
        let moved = tx
            .prepare_cached(
                "UPDATE inbox SET status = ?4, reason = ?5, finished_at_ms = ?6, settled_by = 'worker'
                  WHERE consumer = ?1 AND message_id = ?2 AND claimed_by = ?3 AND claimed_at_ms = ?7
                    AND status = 'ERROR' AND settled_by IN ('sweeper', 'start')",
            )?
            .execute(params![
                consumer,
                message_id,
                owner,
                state,
                reason,
                self.finished_at_ms,
                claimed_at_ms
            ])?;
        if moved == 1 {
            log::warn!("{message_id} dest={consumer} answered after it was called ERROR: {state}");
            tally::add(tx, &self.day, consumer.as_str(), settled_as(state), 1)?;
            apply_reports(tx, consumer, message_id, &self.day, self.finished_at_ms)?;
        }
        Ok(())
    }

    /// True if the row was gone and is there again.
    fn write_again(&self, tx: &Connection) -> rusqlite::Result<bool> {
        let Sending { consumer, message_id, owner, claimed_at_ms, .. } = &self.sending;
        let (state, code, vendor_ref, reason) = self.ended();
        let inserted = tx
            .prepare_cached(
                "INSERT INTO inbox (consumer, message_id, fingerprint, status, vendor_code, vendor_ref, reason, claimed_by,
                                    claimed_at_ms, finished_at_ms, settled_by)
                 SELECT ?1, ?2, 'unknown', ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'worker'
                  WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE message_id = ?2)",
            )?
            .execute(params![
                consumer,
                message_id,
                state,
                code,
                vendor_ref,
                reason,
                owner,
                claimed_at_ms,
                self.finished_at_ms
            ])?;
        if inserted == 1 {
            log::error!(
                "{message_id} dest={consumer} its row in the inbox was deleted during its call; it is written again"
            );
            tally::add(tx, &self.day, consumer.as_str(), state.as_str(), 1)?;
        }
        Ok(inserted == 1)
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
        let (state, code, vendor_ref, reason) = self.ended();
        let moved = connection
            .prepare_cached(
                "UPDATE inbox SET status = ?4, vendor_code = ?5, vendor_ref = ?6, reason = ?7, finished_at_ms = ?8,
                        settled_by = 'worker'
                  WHERE consumer = ?1 AND message_id = ?2 AND status = 'SENDING' AND claimed_by = ?3
                    AND claimed_at_ms = ?9 AND id = ?10",
            )?
            .execute(params![
                consumer,
                message_id,
                owner,
                state,
                code,
                vendor_ref,
                reason,
                self.finished_at_ms,
                claimed_at_ms,
                row
            ])?;
        if moved == 0 {
            return self.late(connection);
        }
        attempt::append(connection, &self.attempt)?;
        self.ended = Some(state);
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
