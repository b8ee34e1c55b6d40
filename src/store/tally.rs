//! Sole writer of `tally`: ends per local day and destination, in the same commit as the end itself.

use rusqlite::{Connection, params};

use crate::db::writer::Counted;

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

/// The sum of one commit's ends of a kind ([`crate::db::writer::WriteSums`]).
pub fn land(connection: &Connection, counted: &Counted, sum: i64) -> rusqlite::Result<()> {
    add(connection, &counted.day, counted.consumer.as_str(), counted.what, sum)
}
