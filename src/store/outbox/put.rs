//! The producer's put: one event is one row, however often and however differently written it is put.
//!
//! Never: begins or commits; the row goes into the caller's transaction. Never: changes a row that is there.

use rusqlite::{Connection, OptionalExtension, params};

use super::RawText;
use crate::fingerprint;
use crate::limits::PURGE_ROWS;
use crate::message::{Class, MessageId};
use crate::store::purge;

/// A message as a producer gives it; checks and defaults are in `src/outbox.rs`.
#[derive(Clone)]
pub struct NewMessage {
    /// From business keys, 1-200 characters: one event is one row.
    pub dedup_key: String,
    /// What it is about.
    pub kind: String,
    /// Sending hours.
    pub class: Class,
    /// Empty = by route.
    pub destination: String,
    /// To whom.
    pub recipient: String,
    /// JSON text.
    pub payload: String,
    /// Order lane.
    pub ordering_key: Option<String>,
    /// 0-9.
    pub priority: u8,
    /// Due time, `None` = now.
    pub not_before_ms: Option<i64>,
    /// Deadline.
    pub expires_at_ms: Option<i64>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

/// What became of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// A new row.
    New(MessageId),
    /// The same event again: the first row stands.
    Same(MessageId),
    /// The same key with other content: the first row stands, this content is in quarantine.
    Conflict(MessageId),
}

const PUT: &str =
    "INSERT INTO outbox (dedup_key, kind, class, destination, recipient, payload, ordering_key, priority,
                     not_before_ms, expires_at_ms, traceparent)
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
          coalesce(?9, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)), ?10, ?11)
  ON CONFLICT (dedup_key) DO NOTHING";

/// Inserts inside the caller's transaction; repeating it is harmless.
pub fn put(connection: &Connection, message: &NewMessage) -> rusqlite::Result<Put> {
    if let Some(known) = same_event(connection, message)? {
        return Ok(Put::Same(known));
    }
    let inserted = connection.prepare_cached(PUT)?.execute(params![
        message.dedup_key,
        message.kind,
        message.class.as_str(),
        message.destination,
        message.recipient,
        message.payload,
        message.ordering_key,
        message.priority,
        message.not_before_ms,
        message.expires_at_ms,
        message.traceparent,
    ])?;
    let (message_id, mut same, wiped): (MessageId, bool, bool) = connection
        .prepare_cached(
            "SELECT message_id, kind IS ?2 AND class IS ?3 AND ordering_key IS ?6
                 AND (wiped_at_ms IS NOT NULL OR (recipient IS ?4 AND payload IS ?5))
                 AND (?7 = '' OR destination = '' OR destination = ?7), wiped_at_ms IS NOT NULL
               FROM outbox WHERE dedup_key = ?1",
        )?
        .query_row(
            params![
                message.dedup_key,
                message.kind,
                message.class.as_str(),
                message.recipient,
                message.payload,
                message.ordering_key,
                message.destination
            ],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )?;
    if wiped && same {
        // The trigger could not tell: the fingerprint does, here and now.
        same = purge::recheck(connection, Some(&message.dedup_key), PURGE_ROWS)?.other == 0;
    }
    Ok(match (inserted, same) {
        (1, _) => Put::New(message_id),
        (_, true) => Put::Same(message_id),
        (_, false) => Put::Conflict(message_id),
    })
}

/// The row that stands for the same event, where its payload is the same JSON written differently (spaces, order of
/// keys): the triggers compare bytes, and would put it into quarantine.
fn same_event(connection: &Connection, message: &NewMessage) -> rusqlite::Result<Option<MessageId>> {
    let found: Option<(MessageId, RawText)> = connection
        .prepare_cached(
            "SELECT message_id, payload FROM outbox
              WHERE dedup_key = ?1 AND kind = ?2 AND class = ?3 AND recipient = ?4 AND ordering_key IS ?5
                AND (?6 = '' OR destination = '' OR destination = ?6)",
        )?
        .query_row(
            params![
                message.dedup_key,
                message.kind,
                message.class.as_str(),
                message.recipient,
                message.ordering_key,
                message.destination
            ],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    Ok(found.and_then(|(message_id, payload)| {
        let same = fingerprint::canonical(&payload.lossy()) == fingerprint::canonical(&message.payload);
        same.then_some(message_id)
    }))
}
