//! Sole writer of `inbox`, the guard against a second send: look, claim, record, release, settle what the dead left.
//!
//! A [`Sending`] is made here alone, after the commit of its SENDING row, and is spent here alone, by a [`Record`].
//! A `Record` whose row is no longer in SENDING changes nothing: a late writer loses.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::attempt::{self, Attempt, AttemptOutcome};
use super::tally;
use crate::db::writer::{Counted, Work};
use crate::lifecycle::InboxState;
use crate::message::{Destination, MessageId, NotSentProof, Outcome, OwnerId};
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
        Self { row: 0, consumer, message_id, owner: OwnerId::new("test:test") }
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
    /// Where the answer goes.
    pub reply: slot::Answer<ClaimAnswer>,
    /// Filled in by `apply`.
    pub found: Option<Known>,
    /// Filled in by `apply`.
    pub row: i64,
}

impl Work for Claim {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let inserted = connection
            .prepare_cached(
                "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms)
                 SELECT ?1, ?2, ?3, 'SENDING', ?4, ?5 WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE message_id = ?2)",
            )?
            .execute(params![self.consumer, self.message_id, self.fingerprint, self.owner, self.at_ms])?;
        self.found = if inserted == 1 {
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
    /// The end that `apply` wrote, if it did.
    ended: Option<InboxState>,
    confirm: Option<Box<dyn FnOnce() + Send>>,
}

impl Record {
    /// `confirm` runs after the commit: it tells the relay.
    pub fn new(
        sending: Sending,
        outcome: Outcome,
        attempt: Attempt,
        day: Arc<str>,
        finished_at_ms: i64,
        confirm: Box<dyn FnOnce() + Send>,
    ) -> Self {
        Self { sending, outcome, attempt, day, finished_at_ms, ended: None, confirm: Some(confirm) }
    }
}

impl Work for Record {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let Sending { row, consumer, message_id, owner } = &self.sending;
        self.ended = None;
        let (state, code, vendor_ref, reason) = match &self.outcome {
            Outcome::Accepted { code, vendor_ref } => {
                (InboxState::Sent, Some(code), vendor_ref.as_ref(), None)
            }
            Outcome::Rejected { code, reason } => (InboxState::Failed, Some(code), None, Some(reason)),
            Outcome::Unknown { code, reason } => (InboxState::Error, code.as_ref(), None, Some(reason)),
            Outcome::NotSent { .. } => {
                let released = connection
                    .prepare_cached(
                        "DELETE FROM inbox WHERE id = ?1 AND consumer = ?2 AND message_id = ?3 AND status = 'SENDING' AND claimed_by = ?4",
                    )?
                    .execute(params![row, consumer, message_id, owner])?;
                if released == 1 {
                    attempt::append(connection, &self.attempt)?;
                }
                return Ok(());
            }
        };
        let moved = connection
            .prepare_cached(
                "UPDATE inbox SET status = ?5, vendor_code = ?6, vendor_ref = ?7, reason = ?8, finished_at_ms = ?9,
                        settled_by = 'worker'
                  WHERE id = ?1 AND consumer = ?2 AND message_id = ?3 AND status = 'SENDING' AND claimed_by = ?4",
            )?
            .execute(params![row, consumer, message_id, owner, state, code, vendor_ref, reason, self.finished_at_ms])?;
        if moved == 0 && state != InboxState::Error {
            // The sweeper called it ERROR while its call was still under way: the vendor's own answer settles that.
            let settled = connection
                .prepare_cached(
                    "UPDATE inbox SET status = ?5, vendor_code = ?6, vendor_ref = ?7, reason = ?8, finished_at_ms = ?9,
                            settled_by = 'worker'
                      WHERE id = ?1 AND consumer = ?2 AND message_id = ?3 AND status = 'ERROR' AND claimed_by = ?4
                        AND settled_by = 'sweeper'",
                )?
                .execute(params![row, consumer, message_id, owner, state, code, vendor_ref, reason, self.finished_at_ms])?;
            if settled == 1 {
                log::warn!("{message_id} dest={consumer} answered after it was called ERROR: {state}");
                attempt::append(connection, &self.attempt)?;
                self.ended = Some(state);
                return Ok(());
            }
        }
        if moved == 0 {
            // It is already there (a commit that failed and had landed), or the row was deleted by hand in mid-call:
            // what was called must stay known, so the row is written again.
            let again = connection
                .prepare_cached(
                    "INSERT INTO inbox (consumer, message_id, fingerprint, status, vendor_code, vendor_ref, reason, claimed_by,
                                        claimed_at_ms, finished_at_ms, settled_by)
                     VALUES (?1, ?2, 'unknown', ?3, ?4, ?5, ?6, ?7, ?8, ?9, 'worker') ON CONFLICT (message_id, consumer) DO NOTHING",
                )?
                .execute(params![
                    consumer,
                    message_id,
                    state,
                    code,
                    vendor_ref,
                    reason,
                    owner,
                    self.attempt.started_at_ms,
                    self.finished_at_ms
                ])?;
            if again == 0 {
                return Ok(());
            }
            log::error!(
                "{message_id} dest={consumer} its row in the inbox was deleted during its call; it is written again"
            );
        }
        attempt::append(connection, &self.attempt)?;
        self.ended = Some(state);
        Ok(())
    }
    fn counted(&self) -> Option<Counted> {
        let what = self.ended?.as_str();
        Some(Counted { day: self.day.clone(), consumer: self.sending.consumer.clone(), what })
    }
    fn committed(mut self: Box<Self>) {
        if let Some(confirm) = self.confirm.take() {
            confirm();
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
        let Sending { row, consumer, message_id, owner } = &self.sending;
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
    }
    Ok(moved == 1)
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
