//! Rows of a file that was taken over: another agent may have sent them, so all that is unfinished is HELD.

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
    let _ = connection.execute(
        "UPDATE outbox SET status = 'PENDING', reason = 'CLAIM_EXPIRED', claimed_by = NULL, claimed_until_ms = NULL,
                updated_at_ms = ?1 WHERE status = 'PUBLISHING'",
        [now_ms],
    )?;
    connection.execute(
        "UPDATE outbox SET status = 'HELD', reason = ?1, updated_at_ms = ?2 WHERE status = 'PENDING'",
        params![reason, now_ms],
    )
}
