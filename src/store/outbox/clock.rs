//! Rows and the clock: held while it cannot be believed, and given other dates where a wrong one wrote them.
//!
//! Never: judges the clock; that is `clock/trust.rs`.

use rusqlite::{Connection, Row, params};

use super::marks::leave;
use super::{RawText, next_destination};
use crate::clock::trust::Dates;
use crate::message::OwnerId;

const HOLD: &str =
    "UPDATE outbox SET status = 'PENDING', blocked = 2, reason = ?3, claimed_by = NULL, claimed_until_ms = NULL,
                    attempts = max(0, attempts - 1), updated_at_ms = ?4
              WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2";

/// PUBLISHING -> PENDING, out of the claim's sight until [`go_on`]: the clock cannot be believed now. None of its
/// times is touched.
pub fn hold_for_clock(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    leave(connection, HOLD, id, owner, reason, now_ms)
}

/// The reason of a row that was held because of the clock and goes on: the old one no longer holds, and with none at
/// all the row would look as if no agent had ever had it.
pub const GOES_ON: &str = "CLOCK_RIGHT: it was held until the clock was believed again";

/// What was held because of the clock goes on. Returns how many.
pub fn go_on(connection: &Connection) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "UPDATE outbox SET blocked = 0, reason = CASE WHEN reason LIKE 'CLOCK:%' THEN ?1 ELSE reason END
              WHERE blocked = 2",
        )?
        .execute([GOES_ON])
}

/// Waiting rows that a wrong clock may have written: written after `now_ms` or before `first_ms`. Found by their due
/// time, which is as odd (the index `outbox_due`), and in the lanes, behind an earlier row.
pub fn misdated(connection: &Connection, now_ms: i64, first_ms: i64) -> rusqlite::Result<Vec<(i64, Dates)>> {
    let read = |row: &Row<'_>| {
        Ok((row.get(0)?, Dates { created_ms: row.get(1)?, due_ms: row.get(2)?, deadline_ms: row.get(3)? }))
    };
    let mut by_due = connection.prepare_cached(
        "SELECT id, created_at_ms, not_before_ms, expires_at_ms FROM outbox
          WHERE status = 'PENDING' AND blocked = 0 AND destination = ?1 AND priority IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
            AND not_before_ms > ?2 AND not_before_ms < ?3 AND (created_at_ms > ?4 OR created_at_ms < ?5)
            AND typeof(created_at_ms) = 'integer'",
    )?;
    let mut found = Vec::new();
    let mut destination = Some(RawText::default());
    while let Some(name) = destination {
        for (from_ms, to_ms) in [(now_ms, i64::MAX), (i64::MIN, first_ms)] {
            let rows = by_due.query_map(params![name, from_ms, to_ms, now_ms, first_ms], read)?;
            found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        destination = next_destination(connection, &name)?;
    }
    let mut in_lanes = connection.prepare_cached(
        "SELECT id, created_at_ms, not_before_ms, expires_at_ms FROM outbox
          WHERE ordering_key IS NOT NULL AND closed_at_ms IS NULL AND status = 'PENDING' AND blocked = 1
            AND (created_at_ms > ?1 OR created_at_ms < ?2)
            AND typeof(created_at_ms) = 'integer'",
    )?;
    let rows = in_lanes.query_map(params![now_ms, first_ms], read)?;
    found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    Ok(found)
}

/// Other dates for a waiting row that a wrong clock wrote.
pub fn redate(
    connection: &Connection,
    id: i64,
    due_ms: i64,
    deadline_ms: Option<i64>,
    reason: &str,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET not_before_ms = ?2, expires_at_ms = ?3, reason = ?4 WHERE id = ?1 AND status = 'PENDING'",
        )?
        .execute(params![id, due_ms, deadline_ms, reason])?;
    Ok(moved == 1)
}
