//! The claim: the SENDING row that is on the disk before its call, and the only maker of a [`Sending`].
//!
//! A claim whose commit failed is taken back, since it was surely not used (F31). Serves F8, F13.

use rusqlite::{Connection, params};

use super::reports::apply_reports;
use super::{Known, look};
use crate::db::writer::Work;
use crate::lifecycle::InboxState;
use crate::message::{Destination, MessageId, OwnerId};
use crate::slot;
use crate::store::{report, tally};

/// The right to call the vendor for one message: made only by a committed SENDING row, not cloneable, and consumed
/// by recording what came of it. Dropped unspent it changes nothing: the row stays SENDING and ends as ERROR.
#[must_use = "a SENDING row whose outcome is never recorded ends as ERROR"]
#[derive(Debug)]
pub struct Sending {
    /// The row's own id: a row that was deleted by hand and claimed anew is another one.
    pub(super) row: i64,
    pub(super) consumer: Destination,
    pub(super) message_id: MessageId,
    pub(super) owner: OwnerId,
    pub(super) claimed_at_ms: i64,
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
