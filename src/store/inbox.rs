//! Sole writer of `inbox`, the guard against a second send: look, claim, record, release, settle what the dead left.
//!
//! A [`Sending`] is made here alone, after the commit of its SENDING row, and is spent here alone, by a [`Record`].
//! A `Record` whose row is no longer in SENDING undoes nothing: what it knows is added (`Record::late`). Reports have
//! their effect in the commit of whatever came last, the report or the outcome ([`apply_reports`]).

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::attempt::{self, Attempt, AttemptOutcome};
use super::{report, tally};
use crate::db::writer::{Counted, Work};
use crate::lifecycle::{InboxEvent, InboxMove, InboxState};
use crate::message::{Destination, MessageId, NotSentProof, Outcome, OwnerId};
use crate::report::settle;
use crate::slot;

/// The right to call the vendor for one message: made only by a committed SENDING row, not cloneable, and consumed
/// by recording what came of it. Dropped unspent it changes nothing: the row stays SENDING and ends as ERROR.
#[must_use = "a SENDING row whose outcome is never recorded ends as ERROR"]
#[derive(Debug)]
pub struct Sending {
    /// The row's own id: a row that was deleted by hand and claimed anew is another one.
    row: i64,
    consumer: Destination,
    message_id: MessageId,
    owner: OwnerId,
    claimed_at_ms: i64,
}

impl Sending {
    /// The destination whose row this is.
    pub fn consumer(&self) -> &Destination {
        &self.consumer
    }
    /// The message.
    pub fn message_id(&self) -> &MessageId {
        &self.message_id
    }
    /// For adapters' tests only (debug builds): a token that stands for no row.
    #[doc(hidden)]
    #[cfg(debug_assertions)]
    pub fn for_tests(consumer: Destination, message_id: MessageId) -> Self {
        Self { row: 0, consumer, message_id, owner: OwnerId::new("test:test"), claimed_at_ms: 0 }
    }
}

/// What is known of a message before (or instead of) a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its state.
    pub status: InboxState,
    /// Whether the present start of this agent holds it (then its confirm is still to come).
    pub mine: bool,
    /// Whether it is about the same content.
    pub same_content: bool,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum ClaimAnswer {
    /// The row is on the disk: call now.
    Claimed(Sending),
    /// The unique index picked somebody else.
    Exists(Known),
    /// Nothing may be sent.
    Failed(String),
}

/// Looks whether the inbox knows the message, under whatever destination: a row's route may have been lost with an
/// unsynced commit and found anew differently, and still it was sent. The fast path: the claim decides.
pub fn look(
    connection: &Connection,
    message_id: &MessageId,
    owner: &OwnerId,
    fingerprint: &str,
) -> rusqlite::Result<Option<Known>> {
    connection
        .prepare_cached("SELECT status, claimed_by, fingerprint FROM inbox WHERE message_id = ?1")?
        .query_row(params![message_id], |row| {
            let claimed_by: String = row.get(1)?;
            let known: String = row.get(2)?;
            Ok(Known {
                status: row.get(0)?,
                mine: claimed_by == owner.as_str(),
                same_content: known == fingerprint,
            })
        })
        .optional()
}

/// Work: the durable claim right before the call.
pub struct Claim {
    /// Destination.
    pub consumer: Destination,
    /// Message.
    pub message_id: MessageId,
    /// Hash of what is sent.
    pub fingerprint: String,
    /// Who claims.
    pub owner: OwnerId,
    /// When, UTC milliseconds.
    pub at_ms: i64,
    /// The local day of that, for the tally.
    pub day: String,
    /// Where the answer goes.
    pub reply: slot::Answer<ClaimAnswer>,
    /// Filled in by `apply`.
    pub found: Option<Known>,
    /// Filled in by `apply`.
    pub row: i64,
}

impl Claim {
    /// A report names this message although no call of it stands in the inbox: the vendor has it, whatever its answer
    /// said (a refusal at the door that was none). It is not sent again; the reports settle it, or a person does.
    fn reported(&self, tx: &Connection) -> rusqlite::Result<bool> {
        if !report::any(tx, &self.consumer, &self.message_id)? {
            return Ok(false);
        }
        tx.prepare_cached(
            "UPDATE inbox SET status = 'ERROR', finished_at_ms = ?3, settled_by = 'report',
                    reason = 'REPORTED: the vendor reports on it, though no call of it is known to have arrived'
              WHERE consumer = ?1 AND message_id = ?2 AND status = 'SENDING'",
        )?
        .execute(params![self.consumer, self.message_id, self.at_ms])?;
        tally::add(tx, &self.day, self.consumer.as_str(), InboxState::Error.as_str(), 1)?;
        apply_reports(tx, &self.consumer, &self.message_id, &self.day, self.at_ms)?;
        Ok(true)
    }
}

impl Work for Claim {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let inserted = connection
            .prepare_cached(
                "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms)
                 SELECT ?1, ?2, ?3, 'SENDING', ?4, ?5 WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE message_id = ?2)",
            )?
            .execute(params![self.consumer, self.message_id, self.fingerprint, self.owner, self.at_ms])?;
        self.found = if inserted == 1 && !self.reported(connection)? {
            self.row = connection.last_insert_rowid();
            None
        } else {
            look(connection, &self.message_id, &self.owner, &self.fingerprint)?
        };
        Ok(())
    }
    fn committed(self: Box<Self>) {
        let answer = match self.found {
            None => ClaimAnswer::Claimed(Sending {
                row: self.row,
                consumer: self.consumer,
                message_id: self.message_id,
                owner: self.owner,
                claimed_at_ms: self.at_ms,
            }),
            Some(known) => ClaimAnswer::Exists(known),
        };
        // A worker that is gone leaves its row in SENDING, which the next start settles as ERROR: never sent.
        self.reply.give(answer);
    }
    fn failed(self: Box<Self>, why: &str) {
        self.reply.give(ClaimAnswer::Failed(why.to_owned()));
    }
    fn must_land(&self) -> bool {
        false
    }
    fn is_claim(&self) -> bool {
        true
    }
    fn undo(&self) -> Option<Box<dyn Work>> {
        // A conflict found by `apply` means the row is another's.
        if self.found.is_some() {
            return None;
        }
        Some(Box::new(TakeBack {
            consumer: self.consumer.clone(),
            message_id: self.message_id.clone(),
            owner: self.owner.clone(),
            at_ms: self.at_ms,
        }))
    }
}

/// Work: a claim whose commit failed and which was surely not used is released, if it is in the file after all.
struct TakeBack {
    consumer: Destination,
    message_id: MessageId,
    owner: OwnerId,
    at_ms: i64,
}

impl Work for TakeBack {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached(
                "DELETE FROM inbox WHERE consumer = ?1 AND message_id = ?2 AND status = 'SENDING'
                    AND claimed_by = ?3 AND claimed_at_ms = ?4",
            )?
            .execute(params![self.consumer, self.message_id, self.owner, self.at_ms])?;
        Ok(())
    }
    fn committed(self: Box<Self>) {}
    fn failed(self: Box<Self>, _why: &str) {}
    fn must_land(&self) -> bool {
        true
    }
}

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

/// A SENDING row nobody can finish any more.
#[derive(Debug, Clone)]
pub struct Orphan {
    /// Row.
    pub id: i64,
    /// Destination.
    pub consumer: Destination,
    /// Message.
    pub message_id: MessageId,
    /// Who had it.
    pub claimed_by: String,
    /// Since when.
    pub claimed_at_ms: i64,
}

/// SENDING rows of other starts than `owner`, at most `limit`: one agent a folder, so those starts are dead.
pub fn orphans(connection: &Connection, owner: &OwnerId, limit: u32) -> rusqlite::Result<Vec<Orphan>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, claimed_by, claimed_at_ms FROM inbox
              WHERE status = 'SENDING' AND claimed_by <> ?1 ORDER BY claimed_at_ms LIMIT ?2",
        )?
        .query_map(params![owner, limit], orphan)?
        .collect()
}

/// SENDING rows of this start: as many as workers are in a call. How old each is tells the monotonic clock of whoever
/// asks again, never its stamp.
pub fn under_way(connection: &Connection, owner: &OwnerId) -> rusqlite::Result<Vec<Orphan>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, claimed_by, claimed_at_ms FROM inbox
              WHERE status = 'SENDING' AND claimed_by = ?1",
        )?
        .query_map([owner], orphan)?
        .collect()
}

fn orphan(row: &rusqlite::Row<'_>) -> rusqlite::Result<Orphan> {
    Ok(Orphan {
        id: row.get(0)?,
        consumer: row.get(1)?,
        message_id: row.get(2)?,
        claimed_by: row.get(3)?,
        claimed_at_ms: row.get(4)?,
    })
}

/// SENDING -> ERROR for one orphan: it may have been sent, so it never is again. False if somebody was first.
/// SENDING -> ERROR for one orphan: it may have been sent, so it never is again. False if somebody was first, or if
/// reports that waited settled it at once.
pub fn settle_orphan(
    connection: &Connection,
    orphan: &Orphan,
    by: &str,
    day: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let reason = "OWNER_DEAD: the agent stopped between its claim and the record of the answer";
    let moved = connection
        .prepare_cached(
            "UPDATE inbox SET status = 'ERROR', reason = ?3, finished_at_ms = ?4, settled_by = ?5
              WHERE id = ?1 AND status = 'SENDING' AND claimed_by = ?2",
        )?
        .execute(params![orphan.id, orphan.claimed_by, reason, now_ms, by])?;
    if moved == 1 {
        attempt::append(
            connection,
            &Attempt {
                consumer: orphan.consumer.clone(),
                message_id: orphan.message_id.clone(),
                started_at_ms: orphan.claimed_at_ms,
                waiting_us: 0,
                timing: Default::default(),
                outcome: AttemptOutcome::Unknown,
                http_status: None,
                vendor_code: None,
                reason: Some(reason.to_owned()),
                claimed_by: OwnerId::new(&orphan.claimed_by),
                traceparent: None,
            },
        )?;
        tally::add(connection, day, orphan.consumer.as_str(), InboxState::Error.as_str(), 1)?;
        let applied = apply_reports(connection, &orphan.consumer, &orphan.message_id, day, now_ms)?;
        return Ok(!matches!(applied, Applied::Moved { .. }));
    }
    Ok(false)
}

/// How the tally counts what settled an ERROR.
fn settled_as(state: InboxState) -> &'static str {
    match state {
        InboxState::Failed => "SETTLED_FAILED",
        _ => "SETTLED_SENT",
    }
}

/// What the stored reports did to a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The inbox does not know the message.
    NoRow,
    /// Nothing changed: it waits for its outcome, or it is known already.
    Nothing,
    /// Its `delivery` changed.
    Delivery,
    /// Its state changed.
    Moved {
        /// From here.
        from: InboxState,
        /// To here.
        to: InboxState,
        /// Against the vendor's own answer or a person's verdict, not just an earlier report's.
        overruled: bool,
    },
}

/// Lets all stored reports of a message have their effect on its row, by the table of [`settle`]. Repeatable: without a
/// new report or outcome it changes nothing.
pub fn apply_reports(
    tx: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    day: &str,
    now_ms: i64,
) -> rusqlite::Result<Applied> {
    let said = report::said(tx, consumer, message_id)?;
    if said.is_empty() {
        return Ok(Applied::Nothing);
    }
    struct Row {
        from: InboxState,
        delivery: Option<String>,
        delivery_code: Option<String>,
        settled_by: Option<String>,
    }
    let row = tx
        .prepare_cached(
            "SELECT status, delivery, delivery_code, settled_by FROM inbox WHERE consumer = ?1 AND message_id = ?2",
        )?
        .query_row(params![consumer, message_id], |row| {
            Ok(Row {
                from: row.get(0)?,
                delivery: row.get(1)?,
                delivery_code: row.get(2)?,
                settled_by: row.get(3)?,
            })
        })
        .optional()?;
    let Some(Row { from, delivery, delivery_code, settled_by }) = row else { return Ok(Applied::NoRow) };
    let Some(settlement) = settle(from, &said) else { return Ok(Applied::Nothing) };
    let Some(InboxMove::To(to)) = from.after(settlement.event) else { return Ok(Applied::Nothing) };
    let code = &settlement.by.code;
    if to == from
        && delivery.as_deref() == Some(settlement.delivery.as_str())
        && delivery_code.as_ref() == Some(code)
    {
        return Ok(Applied::Nothing);
    }
    let reason = format!("report {code}: {}", settlement.by.meaning);
    tx.prepare_cached(
        "UPDATE inbox SET status = ?4, delivery = ?5, delivery_code = ?6,
                reason = CASE WHEN ?3 = ?4 THEN reason ELSE ?7 END,
                settled_by = CASE WHEN ?3 = ?4 THEN settled_by ELSE 'report' END,
                finished_at_ms = CASE WHEN ?3 = ?4 THEN finished_at_ms ELSE ?8 END
          WHERE consumer = ?1 AND message_id = ?2 AND status = ?3",
    )?
    .execute(params![
        consumer,
        message_id,
        from,
        to,
        settlement.delivery.as_str(),
        code,
        reason,
        now_ms
    ])?;
    if from == to {
        return Ok(Applied::Delivery);
    }
    if from == InboxState::Error {
        tally::add(tx, day, consumer.as_str(), settled_as(to), 1)?;
    }
    let overruled = from == InboxState::Failed && settled_by.as_deref() != Some("report");
    Ok(Applied::Moved { from, to, overruled })
}

/// A verdict on an ERROR row by somebody who knows more than the call did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict<'v> {
    /// `SettleSent`, `SettleFailed` or `SettleNotSent`.
    pub event: InboxEvent,
    /// Who: `operator` or `look-up`.
    pub by: &'v str,
    /// The vendor's code, where it told one.
    pub code: Option<&'v str>,
    /// The vendor's own id, where it told one.
    pub vendor_ref: Option<&'v str>,
    /// Why, for people.
    pub reason: &'v str,
}

/// ERROR -> SENT | FAILED | (row deleted; its attempts stay). `None` = it is done; else the state it is in, from which
/// this does not lead, or no row.
pub fn settle_error(
    tx: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    verdict: &Verdict<'_>,
    day: &str,
    now_ms: i64,
) -> rusqlite::Result<Result<(), Option<InboxState>>> {
    let Some(leads) = InboxState::Error.after(verdict.event) else {
        return Ok(Err(state(tx, consumer, message_id)?));
    };
    let (moved, counted) = match leads {
        InboxMove::To(to) => (
            tx.prepare_cached(
                "UPDATE inbox SET status = ?3, reason = ?4, settled_by = ?5, finished_at_ms = ?6,
                        vendor_code = coalesce(?7, vendor_code), vendor_ref = coalesce(?8, vendor_ref)
                  WHERE consumer = ?1 AND message_id = ?2 AND status = 'ERROR'",
            )?
            .execute(params![
                consumer,
                message_id,
                to,
                verdict.reason,
                verdict.by,
                now_ms,
                verdict.code,
                verdict.vendor_ref
            ])?,
            settled_as(to),
        ),
        InboxMove::RowDeleted => (
            tx.prepare_cached(
                "DELETE FROM inbox WHERE consumer = ?1 AND message_id = ?2 AND status = 'ERROR'",
            )?
            .execute(params![consumer, message_id])?,
            "SETTLED_NOT_SENT",
        ),
    };
    if moved == 0 {
        return Ok(Err(state(tx, consumer, message_id)?));
    }
    tally::add(tx, day, consumer.as_str(), counted, 1)?;
    // A report that named it so far only as uncertain may still say more of a settled row.
    apply_reports(tx, consumer, message_id, day, now_ms)?;
    Ok(Ok(()))
}

/// Whether the sweeper called the message ERROR while this start of the agent may still be in its call.
pub fn is_given_up_of(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    live: &str,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT 1 FROM inbox WHERE message_id = ?2 AND consumer = ?1 AND status = 'ERROR' AND settled_by = 'sweeper'
                AND claimed_by = ?3",
        )?
        .exists(params![consumer, message_id, live])
}

/// The state of a message's row.
pub fn state(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<Option<InboxState>> {
    connection
        .prepare_cached("SELECT status FROM inbox WHERE consumer = ?1 AND message_id = ?2")?
        .query_row(params![consumer, message_id], |row| row.get(0))
        .optional()
}

/// ERROR rows of one destination.
pub struct Unsettled {
    /// Destination.
    pub destination: String,
    /// Their owner died, or they were stale; else the call itself had an unknown outcome.
    pub owner_died: bool,
    /// How many.
    pub count: i64,
}

/// ERROR rows by destination: as many looks as there are ERROR rows.
pub fn unsettled(connection: &Connection) -> rusqlite::Result<Vec<Unsettled>> {
    unsettled_after(connection, i64::MIN)
}

/// The same for those that became ERROR after this moment.
pub fn unsettled_after(connection: &Connection, after_ms: i64) -> rusqlite::Result<Vec<Unsettled>> {
    connection
        .prepare_cached(
            "SELECT consumer, settled_by IN ('start', 'sweeper'), count(*) FROM inbox
              WHERE status = 'ERROR' AND finished_at_ms > ?1 GROUP BY 1, 2",
        )?
        .query_map([after_ms], |row| {
            Ok(Unsettled {
                destination: row.get(0)?,
                owner_died: row.get::<_, Option<bool>>(1)?.unwrap_or(false),
                count: row.get(2)?,
            })
        })?
        .collect()
}
