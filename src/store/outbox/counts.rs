//! What alerts ask of an outbox: rows that are PARKED or EXPIRED, and the quarantine. Changes nothing.

use rusqlite::{Connection, OptionalExtension};

/// PARKED rows by destination: as many looks as there are PARKED rows.
pub fn parked(connection: &Connection) -> rusqlite::Result<Vec<(String, i64)>> {
    connection
        .prepare_cached(
            "SELECT destination, count(*) FROM outbox WHERE status = 'PARKED' GROUP BY destination",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// PARKED and EXPIRED rows that became so after one moment up to another: (status, destination, count).
pub fn ended_between(
    connection: &Connection,
    after_ms: i64,
    to_ms: i64,
) -> rusqlite::Result<Vec<(String, String, i64)>> {
    let mut all = Vec::new();
    for statement in [
        "SELECT status, destination, count(*) FROM outbox WHERE status = 'PARKED' AND updated_at_ms > ?1 AND updated_at_ms <= ?2 GROUP BY destination",
        "SELECT status, destination, count(*) FROM outbox WHERE status = 'EXPIRED' AND updated_at_ms > ?1 AND updated_at_ms <= ?2 GROUP BY destination",
    ] {
        let mut statement = connection.prepare_cached(statement)?;
        let rows =
            statement.query_map([after_ms, to_ms], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for row in rows {
            all.push(row?);
        }
    }
    Ok(all)
}

/// Highest id that the quarantine has ever had in this file; 0 for none. Survives a purge.
pub fn last_quarantined(connection: &Connection) -> rusqlite::Result<i64> {
    let last = connection
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'quarantine'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(last.unwrap_or(0))
}

/// Quarantined rows after one id up to another, by destination; without those that are still to be compared.
pub fn quarantined(connection: &Connection, after: i64, last: i64) -> rusqlite::Result<Vec<(String, i64)>> {
    connection
        .prepare_cached(
            "SELECT coalesce(destination, ''), count(*) FROM quarantine
              WHERE id > ?1 AND id <= ?2 AND reason <> 'SAME_KEY_OTHER_TEXT' GROUP BY 1",
        )?
        .query_map([after, last], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}
