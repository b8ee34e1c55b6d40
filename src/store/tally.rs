//! Sole writer of `tally`: ends per local day and destination, in the same commit as the end itself.

use rusqlite::{Connection, params};

/// Counts `by` ends of the kind `what`.
pub fn add(connection: &Connection, day: &str, consumer: &str, what: &str, by: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO tally (day, consumer, what, count) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (day, consumer, what) DO UPDATE SET count = count + excluded.count",
        )?
        .execute(params![day, consumer, what, by])?;
    Ok(())
}

/// The day of [`fold`]'s sums: after every real day in the order of the text.
pub const BEFORE: &str = "before";

/// Days before `first_kept` (`YYYY-MM-DD`) become one sum for each destination and kind of end. Returns how many rows went.
pub fn fold(connection: &Connection, first_kept: &str) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "INSERT INTO tally (day, consumer, what, count)
             SELECT ?1, consumer, what, sum(count) FROM tally WHERE day < ?2 GROUP BY consumer, what
             ON CONFLICT (day, consumer, what) DO UPDATE SET count = count + excluded.count",
        )?
        .execute(params![BEFORE, first_kept])?;
    connection.prepare_cached("DELETE FROM tally WHERE day < ?1")?.execute([first_kept])
}
