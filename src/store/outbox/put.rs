//! The producer's put: one event is one row, however often and however differently written it is put.
//!
//! Never: begins or commits; the row goes into the caller's transaction. Never: changes a row that is there.

use rusqlite::{Connection, params};

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
    if inserted == 1 {
        let id = connection.last_insert_rowid();
        return connection
            .prepare_cached("SELECT message_id FROM outbox WHERE id = ?1")?
            .query_row([id], |row| row.get(0).map(Put::New));
    }
    let put = stands(connection, message)?;
    // The trigger could not tell whether another text says the same: the fingerprint does, here and now.
    let _ = purge::recheck(connection, Some(&message.dedup_key), PURGE_ROWS)?;
    Ok(put)
}

/// What the row that stands under the key says, against this message.
fn stands(connection: &Connection, message: &NewMessage) -> rusqlite::Result<Put> {
    connection
        .prepare_cached(
            "SELECT message_id, class IS ?2 AND ordering_key IS ?3 AND (?4 = '' OR destination = '' OR destination = ?4),
                    fingerprint, kind, recipient, payload
               FROM outbox WHERE dedup_key = ?1",
        )?
        .query_row(
            params![message.dedup_key, message.class.as_str(), message.ordering_key, message.destination],
            |row| {
                let text = |at| row.get::<_, RawText>(at).map(|text| text.lossy().into_owned());
                let known = match row.get::<_, Option<String>>(2)? {
                    Some(wiped) => wiped,
                    None => fingerprint::of_parts(&text(3)?, &text(4)?, &text(5)?),
                };
                let same = fingerprint::is_of(&known, &message.kind, &message.recipient, &message.payload);
                let id: MessageId = row.get(0)?;
                Ok(if row.get(1)? && same { Put::Same(id) } else { Put::Conflict(id) })
            },
        )
}
