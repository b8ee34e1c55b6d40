//! Rows that may have been sent without our inbox knowing, so what is unfinished is HELD: those of a file that was taken over
//! from another agent, and old ones of a file that was not served while the inbox forgot.

use rusqlite::{Connection, params};

/// Whether a relay has ever had a row of this outbox.
pub fn was_ever_claimed(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM outbox WHERE attempts > 0 OR status NOT IN ('PENDING', 'HELD'))",
        [],
        |row| row.get(0),
    )
}

/// Everything unfinished -> HELD: a file was taken over whose rows another agent may have sent. Returns how many.
pub fn hold_all(connection: &Connection, reason: &str, now_ms: i64) -> rusqlite::Result<usize> {
    hold_older(connection, i64::MAX, reason, now_ms)
}

/// Everything unfinished that was inserted before a time -> HELD, whether it shows a claim or not: a claim that was given
/// back leaves no trace that lasts. Returns how many.
pub fn hold_older(
    connection: &Connection,
    before_ms: i64,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<usize> {
    let _ = connection.execute(
        "UPDATE outbox SET status = 'PENDING', reason = 'CLAIM_EXPIRED', claimed_by = NULL, claimed_until_ms = NULL,
                updated_at_ms = ?1 WHERE status = 'PUBLISHING' AND created_at_ms < ?2",
        [now_ms, before_ms],
    )?;
    connection.execute(
        "UPDATE outbox SET status = 'HELD', reason = ?1, updated_at_ms = ?2 WHERE status = 'PENDING' AND created_at_ms < ?3",
        params![reason, now_ms, before_ms],
    )
}
