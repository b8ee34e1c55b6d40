//! Sole writer of `inquiry`: how often a look-up was asked about an ERROR, what it last said, and when it is asked again.

use rusqlite::{Connection, OptionalExtension, params};

use crate::message::{Destination, MessageId};

/// One message's inquiry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inquiry {
    /// Times asked.
    pub asked: u32,
    /// When next, UTC milliseconds; `None` = it is left to a person.
    pub next_at_ms: Option<i64>,
    /// When last, UTC milliseconds.
    pub last_at_ms: i64,
    /// What was said then, for people.
    pub last_said: String,
}

/// What is known so far.
pub fn get(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<Option<Inquiry>> {
    connection
        .prepare_cached(
            "SELECT asked, next_at_ms, last_at_ms, last_said FROM inquiry WHERE consumer = ?1 AND message_id = ?2",
        )?
        .query_row(params![consumer, message_id], |row| {
            Ok(Inquiry {
                asked: row.get(0)?,
                next_at_ms: row.get(1)?,
                last_at_ms: row.get(2)?,
                last_said: row.get(3)?,
            })
        })
        .optional()
}

/// Notes one asking.
pub fn put(
    tx: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    inquiry: &Inquiry,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO inquiry (consumer, message_id, asked, last_at_ms, next_at_ms, last_said)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (consumer, message_id) DO UPDATE SET asked = excluded.asked, last_at_ms = excluded.last_at_ms,
           next_at_ms = excluded.next_at_ms, last_said = excluded.last_said",
    )?
    .execute(params![
        consumer,
        message_id,
        inquiry.asked,
        inquiry.last_at_ms,
        inquiry.next_at_ms,
        inquiry.last_said
    ])?;
    Ok(())
}

/// ERROR rows of a destination that are to be asked about now, oldest first: (message, ERROR since, times asked). The
/// first asking comes `first_after_ms` after the ERROR.
pub fn due(
    connection: &Connection,
    consumer: &Destination,
    now_ms: i64,
    first_after_ms: i64,
    limit: u32,
) -> rusqlite::Result<Vec<(MessageId, i64, u32)>> {
    connection
        .prepare_cached(
            "SELECT inbox.message_id, inbox.finished_at_ms, coalesce(inquiry.asked, 0)
               FROM inbox LEFT JOIN inquiry
                 ON inquiry.consumer = inbox.consumer AND inquiry.message_id = inbox.message_id
              WHERE inbox.status = 'ERROR' AND inbox.consumer = ?1
                AND CASE WHEN inquiry.asked IS NULL THEN inbox.finished_at_ms + ?3 ELSE inquiry.next_at_ms END <= ?2
              ORDER BY inbox.finished_at_ms LIMIT ?4",
        )?
        .query_map(params![consumer, now_ms, first_after_ms, limit], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?
        .collect()
}
