//! Looks at the rows that wait (what is due, overdue, without a destination) and at single rows. Changes nothing.
//!
//! Each is a few look-ups in an index, whatever the backlog. Text is read as it is in the file.

use rusqlite::{Connection, OptionalExtension, ToSql, params};

use super::RawText;
use crate::fingerprint;
use crate::message::{Destination, MessageId};

/// PENDING rows without a destination: (id, kind), oldest first.
pub fn unrouted(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<(i64, RawText)>> {
    connection
        .prepare_cached("SELECT id, kind FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND destination = '' LIMIT ?1")?
        .query_map([limit as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// The first destination after `after` that has waiting rows: a walk over the index, not over the rows.
pub fn next_destination(connection: &Connection, after: &RawText) -> rusqlite::Result<Option<RawText>> {
    connection
        .prepare_cached(
            "SELECT destination FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND destination > ?1
              ORDER BY destination LIMIT 1",
        )?
        .query_row(params![after], |row| row.get(0))
        .optional()
}

/// The earliest due time of a destination's waiting rows: ten look-ups, whatever the backlog.
pub fn next_due_ms(connection: &Connection, destination: &dyn ToSql) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(
        "SELECT not_before_ms FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND destination = ?1 AND priority = ?2
          ORDER BY not_before_ms LIMIT 1",
    )?;
    let mut earliest = None;
    for priority in 0..=9 {
        let due: Option<i64> =
            statement.query_row(params![destination, priority], |row| row.get(0)).optional()?;
        earliest = match (earliest, due) {
            (Some(a), Some(b)) => Some(std::cmp::min::<i64>(a, b)),
            (a, b) => a.or(b),
        };
    }
    Ok(earliest)
}

/// A PENDING row past its deadline.
pub struct Overdue {
    /// Row id.
    pub id: i64,
    /// Its message.
    pub message_id: MessageId,
    /// Its destination (may be empty).
    pub destination: Destination,
    /// The deadline.
    pub expires_at_ms: i64,
}

/// PENDING rows past their deadline, at most `limit`.
pub fn overdue(connection: &Connection, now_ms: i64, limit: usize) -> rusqlite::Result<Vec<Overdue>> {
    connection
        .prepare_cached(
            "SELECT id, message_id, destination, expires_at_ms FROM outbox
              WHERE status = 'PENDING' AND expires_at_ms IS NOT NULL AND expires_at_ms <= ?1 ORDER BY expires_at_ms LIMIT ?2",
        )?
        .query_map(params![now_ms, limit as i64], |row| {
            let text = |index| row.get::<_, RawText>(index).map(|text| text.lossy().into_owned());
            Ok(Overdue {
                id: row.get(0)?,
                message_id: MessageId::new(text(1)?),
                destination: Destination::new(text(2)?),
                expires_at_ms: row.get(3)?,
            })
        })?
        .collect()
}

/// Attempts, destination and message id of a row, for texts and retries; `None` if somebody has deleted it.
pub fn facts(connection: &Connection, id: i64) -> rusqlite::Result<Option<Facts>> {
    connection
        .prepare_cached("SELECT attempts, destination, message_id, reason FROM outbox WHERE id = ?1")?
        .query_row([id], |row| {
            let text = |index| row.get::<_, RawText>(index).map(|text| text.lossy().into_owned());
            let attempts: i64 = row.get(0)?;
            Ok(Facts {
                attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
                destination: text(1)?,
                message_id: text(2)?,
                reason: row.get::<_, Option<RawText>>(3)?.map(|text| text.lossy().into_owned()),
            })
        })
        .optional()
}

/// See [`facts`].
pub struct Facts {
    /// Claims so far.
    pub attempts: u32,
    /// Where to.
    pub destination: String,
    /// Which.
    pub message_id: String,
    /// Why it waited before its present claim.
    pub reason: Option<String>,
}

/// The fingerprint of what a row says, or said before it was wiped; `None` if somebody has deleted it, or it cannot be
/// read.
pub fn fingerprint(connection: &Connection, message_id: &MessageId) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT kind, recipient, payload, fingerprint FROM outbox WHERE message_id = ?1")?
        .query_row([message_id], |row| {
            if let Some(wiped) = row.get(3)? {
                return Ok(Some(wiped));
            }
            let text = |index| row.get::<_, RawText>(index).map(|text| String::from_utf8(text.0).ok());
            let (kind, recipient, payload) = (text(0)?, text(1)?, text(2)?);
            let parts = kind.zip(recipient).zip(payload);
            Ok(parts.map(|((kind, recipient), payload)| fingerprint::of_parts(&kind, &recipient, &payload)))
        })
        .optional()
        .map(Option::flatten)
}

/// The first unfinished row of an order lane.
pub struct Head {
    /// Row.
    pub id: i64,
    /// When it was written.
    pub created_at_ms: i64,
    /// Due.
    pub not_before_ms: i64,
    /// PARKED or HELD: only a person moves it.
    pub stopped: bool,
}

/// See [`Head`]; one look into the index `outbox_lane`.
pub fn lane_head(connection: &Connection, ordering_key: &str) -> rusqlite::Result<Option<Head>> {
    connection
        .prepare_cached(
            "SELECT id, created_at_ms, not_before_ms, status = 'PARKED' OR status = 'HELD' FROM outbox
              WHERE ordering_key = ?1 AND closed_at_ms IS NULL ORDER BY id LIMIT 1",
        )?
        .query_row([ordering_key], |row| {
            Ok(Head {
                id: row.get(0)?,
                created_at_ms: row.get(1)?,
                not_before_ms: row.get(2)?,
                stopped: row.get(3)?,
            })
        })
        .optional()
}

/// The earliest deadline among waiting rows.
pub fn next_deadline_ms(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached(
            "SELECT expires_at_ms FROM outbox WHERE status = 'PENDING' AND expires_at_ms IS NOT NULL ORDER BY expires_at_ms LIMIT 1",
        )?
        .query_row([], |row| row.get(0))
        .optional()
}

/// As [`next_destination`], with rows that have none yet in front (`None` begins).
pub fn next_waiting_destination(
    connection: &Connection,
    after: Option<&str>,
) -> rusqlite::Result<Option<String>> {
    match after {
        None if !unrouted(connection, 1)?.is_empty() => Ok(Some(String::new())),
        after => {
            let after = RawText(after.unwrap_or_default().as_bytes().to_vec());
            // A name that is no text has no lane and is parked at once; it is never asked for here again.
            Ok(next_destination(connection, &after)?.and_then(|raw| String::from_utf8(raw.0).ok()))
        }
    }
}

/// Since when the longest waiting of a destination's due rows could go: its due time, or its arrival if that was
/// later. Ten look-ups, whatever the backlog.
pub fn oldest_due_ms(
    connection: &Connection,
    destination: &str,
    now_ms: i64,
) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(
        "SELECT max(not_before_ms, created_at_ms) FROM outbox
          WHERE status = 'PENDING' AND blocked = 0 AND destination = ?1 AND priority = ?2 AND not_before_ms <= ?3
          ORDER BY not_before_ms LIMIT 1",
    )?;
    let mut oldest: Option<i64> = None;
    for priority in 0..=9 {
        let since: Option<i64> =
            statement.query_row(params![destination, priority, now_ms], |row| row.get(0)).optional()?;
        oldest = oldest.into_iter().chain(since).min();
    }
    Ok(oldest)
}

/// The message id and destination of a row named by its id or its key.
pub fn find(connection: &Connection, id_or_key: &str) -> rusqlite::Result<Option<(MessageId, Destination)>> {
    connection
        .prepare_cached(
            "SELECT message_id, destination FROM outbox WHERE message_id = ?1 OR dedup_key = ?1
              ORDER BY message_id = ?1 DESC LIMIT 1",
        )?
        .query_row([id_or_key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}
