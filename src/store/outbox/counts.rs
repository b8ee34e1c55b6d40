//! What alerts and looks ask of an outbox: what is not finished, PARKED or EXPIRED, and the quarantine. Changes nothing.

use rusqlite::{Connection, OptionalExtension};

use super::RawText;

/// Ids of all rows that are not finished, each part by its index: costs what waits, whatever the history.
pub const UNFINISHED_IDS: &str = "SELECT id FROM outbox INDEXED BY outbox_due WHERE status = 'PENDING' AND blocked = 0
 UNION ALL SELECT id FROM outbox INDEXED BY outbox_clock WHERE blocked = 2 AND status = 'PENDING'
 UNION ALL SELECT id FROM outbox INDEXED BY outbox_lane WHERE ordering_key IS NOT NULL AND closed_at_ms IS NULL AND status = 'PENDING' AND blocked = 1
 UNION ALL SELECT id FROM outbox INDEXED BY outbox_claimed WHERE status = 'PUBLISHING'
 UNION ALL SELECT id FROM outbox INDEXED BY outbox_stopped WHERE (status = 'PARKED' OR status = 'HELD' OR status = 'EXPIRED') AND status IN ('PARKED', 'HELD')";

/// Rows of one state and destination that are not finished.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfinished {
    /// State.
    pub status: String,
    /// Destination; empty = not yet routed.
    pub destination: String,
    /// How many.
    pub count: i64,
    /// When the oldest was written, UTC milliseconds.
    pub oldest_ms: i64,
    /// Those that could go now.
    pub due: i64,
}

/// What is not finished, by state and destination.
pub fn unfinished(connection: &Connection, now_ms: i64) -> rusqlite::Result<Vec<Unfinished>> {
    connection
        .prepare_cached(&format!(
            "SELECT status, destination, count(*), min(created_at_ms), sum(not_before_ms <= ?1 AND blocked = 0 AND status = 'PENDING')
               FROM outbox WHERE id IN ({UNFINISHED_IDS}) GROUP BY status, destination"
        ))?
        .query_map([now_ms], |row| {
            Ok(Unfinished {
                status: row.get(0)?,
                destination: row.get::<_, RawText>(1)?.lossy().into_owned(),
                count: row.get(2)?,
                oldest_ms: row.get(3)?,
                due: row.get(4)?,
            })
        })?
        .collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};

    #[test]
    fn whatever_is_not_finished_is_counted_and_history_is_not_read() {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(migrate::schema(Part::Outbox)).expect("made");
        let put = |key: &str, lane: &str| {
            connection
                .execute(
                    "INSERT INTO outbox (dedup_key, kind, recipient, payload, destination, ordering_key, not_before_ms)
                     VALUES (?1, 'K', '010', '{}', 'gw', nullif(?2, ''), 1)",
                    [key, lane],
                )
                .expect("taken");
        };
        for key in ["a", "b", "c", "d", "e", "f"] {
            put(key, "");
        }
        put("first", "lane");
        put("second", "lane");
        connection
            .execute_batch(
                "UPDATE outbox SET status = 'PUBLISHING', claimed_by = 'a:1', claimed_until_ms = 9 WHERE dedup_key IN ('b', 'c', 'f');
                 UPDATE outbox SET status = 'PARKED', claimed_by = NULL, claimed_until_ms = NULL WHERE dedup_key = 'c';
                 UPDATE outbox SET status = 'PUBLISHED', closed_at_ms = 5, claimed_by = NULL, claimed_until_ms = NULL WHERE dedup_key = 'f';
                 UPDATE outbox SET status = 'HELD' WHERE dedup_key = 'd';
                 UPDATE outbox SET blocked = 2 WHERE dedup_key = 'e'",
            )
            .expect("moved");
        let mut found: Vec<(String, i64, i64)> = unfinished(&connection, 5)
            .expect("reads")
            .into_iter()
            .map(|group| (group.status, group.count, group.due))
            .collect();
        found.sort();
        let expected = [("HELD", 1, 0), ("PARKED", 1, 0), ("PENDING", 4, 2), ("PUBLISHING", 1, 0)];
        assert_eq!(found, expected.map(|(status, count, due)| (status.to_owned(), count, due)));
        let plan: Vec<String> = connection
            .prepare(&format!(
                "EXPLAIN QUERY PLAN SELECT count(*) FROM outbox WHERE id IN ({UNFINISHED_IDS})"
            ))
            .and_then(|mut plan| plan.query_map([], |row| row.get(3))?.collect())
            .expect("reads");
        assert!(plan.iter().all(|step| !step.starts_with("SCAN") || step.contains("INDEX")), "{plan:#?}");
    }
}
