//! Sole writer of `inbox`, the guard against a second send: look, claim, record, release, settle what the dead left.
//!
//! A [`Sending`] is made here alone, after the commit of its SENDING row, and is spent here alone, by a [`Record`].
//! A `Record` whose row is no longer in SENDING changes nothing: a late writer loses.

use crossbeam_channel::Sender;
use rusqlite::{Connection, OptionalExtension, params};

use super::attempt::{self, Attempt, AttemptOutcome};
use super::tally;
use crate::db::writer::Work;
use crate::lifecycle::InboxState;
use crate::message::{Destination, MessageId, Outcome, OwnerId};

/// The right to call the vendor for one message: made only by a committed SENDING row, not cloneable, and consumed
/// by recording what came of it. Dropped unspent it changes nothing: the row stays SENDING and ends as ERROR.
#[must_use = "a SENDING row whose outcome is never recorded ends as ERROR"]
#[derive(Debug)]
pub struct Sending {
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
        Self { consumer, message_id, owner: OwnerId::new("test:test") }
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

/// Looks whether the inbox knows the message. The fast path: the claim decides.
pub fn look(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    owner: &OwnerId,
    fingerprint: &str,
) -> rusqlite::Result<Option<Known>> {
    connection
        .prepare_cached(
            "SELECT status, claimed_by, fingerprint FROM inbox WHERE consumer = ?1 AND message_id = ?2",
        )?
        .query_row(params![consumer, message_id], |row| {
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

/// The state of a message, for whoever only wants to know that.
pub fn state(
    connection: &Connection,
    consumer: &str,
    message_id: &str,
) -> rusqlite::Result<Option<InboxState>> {
    connection
        .prepare_cached("SELECT status FROM inbox WHERE consumer = ?1 AND message_id = ?2")?
        .query_row(params![consumer, message_id], |row| row.get(0))
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
    pub reply: Sender<ClaimAnswer>,
    /// Filled in by `apply`.
    pub found: Option<Known>,
}

impl Work for Claim {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let inserted = connection
            .prepare_cached(
                "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms)
                 VALUES (?1, ?2, ?3, 'SENDING', ?4, ?5) ON CONFLICT (consumer, message_id) DO NOTHING",
            )?
            .execute(params![self.consumer, self.message_id, self.fingerprint, self.owner, self.at_ms])?;
        self.found = if inserted == 1 {
            None
        } else {
            look(connection, &self.consumer, &self.message_id, &self.owner, &self.fingerprint)?
        };
        Ok(())
    }
    fn committed(self: Box<Self>) {
        let answer = match self.found {
            None => ClaimAnswer::Claimed(Sending {
                consumer: self.consumer,
                message_id: self.message_id,
                owner: self.owner,
            }),
            Some(known) => ClaimAnswer::Exists(known),
        };
        // A worker that is gone leaves its row in SENDING, which the next start settles as ERROR: never sent.
        let _ = self.reply.send(answer);
    }
    fn failed(self: Box<Self>, why: &str) {
        let _ = self.reply.send(ClaimAnswer::Failed(why.to_owned()));
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
    day: String,
    finished_at_ms: i64,
    confirm: Option<Box<dyn FnOnce() + Send>>,
}

impl Record {
    /// `confirm` runs after the commit: it tells the relay.
    pub fn new(
        sending: Sending,
        outcome: Outcome,
        attempt: Attempt,
        day: String,
        finished_at_ms: i64,
        confirm: Box<dyn FnOnce() + Send>,
    ) -> Self {
        Self { sending, outcome, attempt, day, finished_at_ms, confirm: Some(confirm) }
    }
}

impl Work for Record {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let Sending { consumer, message_id, owner } = &self.sending;
        let (state, code, vendor_ref, reason) = match &self.outcome {
            Outcome::Accepted { code, vendor_ref } => {
                (InboxState::Sent, Some(code), vendor_ref.as_ref(), None)
            }
            Outcome::Rejected { code, reason } => (InboxState::Failed, Some(code), None, Some(reason)),
            Outcome::Unknown { code, reason } => (InboxState::Error, code.as_ref(), None, Some(reason)),
            Outcome::NotSent { .. } => {
                let released = connection
                    .prepare_cached(
                        "DELETE FROM inbox WHERE consumer = ?1 AND message_id = ?2 AND status = 'SENDING' AND claimed_by = ?3",
                    )?
                    .execute(params![consumer, message_id, owner])?;
                if released == 1 {
                    attempt::append(connection, &self.attempt)?;
                }
                return Ok(());
            }
        };
        let moved = connection
            .prepare_cached(
                "UPDATE inbox SET status = ?4, vendor_code = ?5, vendor_ref = ?6, reason = ?7, finished_at_ms = ?8,
                        settled_by = 'worker'
                  WHERE consumer = ?1 AND message_id = ?2 AND status = 'SENDING' AND claimed_by = ?3",
            )?
            .execute(params![consumer, message_id, owner, state, code, vendor_ref, reason, self.finished_at_ms])?;
        // 0 = it is already there (a commit that failed and had landed), or the sweeper called it ERROR meanwhile.
        if moved == 1 {
            attempt::append(connection, &self.attempt)?;
            tally::add(connection, &self.day, consumer.as_str(), state.as_str(), 1)?;
        }
        Ok(())
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

/// SENDING rows of other starts than `owner`, or older than `stale_before_ms`, at most `limit`.
pub fn orphans(
    connection: &Connection,
    owner: &OwnerId,
    stale_before_ms: i64,
    limit: u32,
) -> rusqlite::Result<Vec<Orphan>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, claimed_by, claimed_at_ms FROM inbox
              WHERE status = 'SENDING' AND (claimed_by <> ?1 OR claimed_at_ms < ?2)
              ORDER BY claimed_at_ms LIMIT ?3",
        )?
        .query_map(params![owner, stale_before_ms, limit], |row| {
            Ok(Orphan {
                id: row.get(0)?,
                consumer: row.get(1)?,
                message_id: row.get(2)?,
                claimed_by: row.get(3)?,
                claimed_at_ms: row.get(4)?,
            })
        })?
        .collect()
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
