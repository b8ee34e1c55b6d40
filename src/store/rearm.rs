//! Sole writer of `rearm`: messages proven *not sent*, whose outbox row still has to open again.
//!
//! The two files have no common commit. So the inbox row goes and this note comes in one synced commit of the inbox; then
//! the outbox row opens in a synced commit of its own; then the note is closed. A crash in between repeats the second
//! step, which is harmless: the inbox absorbs a message that was already sent again.

use rusqlite::{Connection, OptionalExtension, params};

use crate::message::{Destination, MessageId};

/// How often a message was armed again.
pub fn times(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<u32> {
    Ok(connection
        .prepare_cached("SELECT times FROM rearm WHERE consumer = ?1 AND message_id = ?2")?
        .query_row(params![consumer, message_id], |row| row.get(0))
        .optional()?
        .unwrap_or(0))
}

/// Notes one, in the commit that deletes its inbox row.
pub fn note(
    tx: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    by: &str,
    now_ms: i64,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO rearm (consumer, message_id, times, by, at_ms) VALUES (?1, ?2, 1, ?3, ?4)
         ON CONFLICT (consumer, message_id) DO UPDATE
           SET times = times + 1, by = excluded.by, at_ms = excluded.at_ms, done_at_ms = NULL",
    )?
    .execute(params![consumer, message_id, by, now_ms])?;
    Ok(())
}

/// Notes whose outbox row has not been opened yet, oldest first.
pub fn open(connection: &Connection, limit: u32) -> rusqlite::Result<Vec<(Destination, MessageId)>> {
    connection
        .prepare_cached(
            "SELECT consumer, message_id FROM rearm WHERE done_at_ms IS NULL ORDER BY at_ms LIMIT ?1",
        )?
        .query_map([limit], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Open notes by destination.
pub fn open_by_destination(connection: &Connection) -> rusqlite::Result<Vec<(String, i64)>> {
    connection
        .prepare_cached("SELECT consumer, count(*) FROM rearm WHERE done_at_ms IS NULL GROUP BY 1")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Whether the message's outbox row still has to be opened.
pub fn is_open(connection: &Connection, message_id: &MessageId) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM rearm WHERE done_at_ms IS NULL AND message_id = ?1")?
        .exists([message_id])
}

/// The outbox row is open, or needs no opening.
pub fn done(
    tx: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    now_ms: i64,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE rearm SET done_at_ms = ?3 WHERE consumer = ?1 AND message_id = ?2 AND done_at_ms IS NULL",
    )?
    .execute(params![consumer, message_id, now_ms])?;
    Ok(())
}
