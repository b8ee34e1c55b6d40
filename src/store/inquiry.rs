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

/// An ERROR that is to be asked about, now or soon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Due {
    /// Message.
    pub message_id: MessageId,
    /// ERROR since, UTC milliseconds.
    pub error_at_ms: i64,
    /// Times asked.
    pub asked: u32,
}

/// ERROR rows of a destination whose next asking has come, and those never asked about (the first asking waits a while
/// after the ERROR; the caller knows how long), oldest first.
pub fn due(
    connection: &Connection,
    consumer: &Destination,
    now_ms: i64,
    limit: u32,
) -> rusqlite::Result<Vec<Due>> {
    connection
        .prepare_cached(
            "SELECT inbox.message_id, inbox.finished_at_ms, coalesce(inquiry.asked, 0)
               FROM inbox LEFT JOIN inquiry
                 ON inquiry.consumer = inbox.consumer AND inquiry.message_id = inbox.message_id
              WHERE inbox.status = 'ERROR' AND inbox.consumer = ?1
                AND (inquiry.asked IS NULL OR inquiry.next_at_ms <= ?2)
              ORDER BY inbox.finished_at_ms LIMIT ?3",
        )?
        .query_map(params![consumer, now_ms, limit], |row| {
            Ok(Due { message_id: row.get(0)?, error_at_ms: row.get(1)?, asked: row.get(2)? })
        })?
        .collect()
}
