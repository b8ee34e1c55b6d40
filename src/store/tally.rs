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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};

    #[test]
    fn folding_keeps_the_sums_and_may_be_repeated() {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(migrate::schema(Part::Inbox)).expect("the schema");
        for (day, what) in
            [("2026-01-01", "SENT"), ("2026-01-02", "SENT"), ("2026-01-02", "ERROR"), ("2026-03-01", "SENT")]
        {
            add(&connection, day, "gateway", what, 5).expect("added");
        }
        for (first_kept, gone) in [("2026-01-02", 1), ("2026-02-01", 2), ("2026-02-01", 0)] {
            assert_eq!(fold(&connection, first_kept).expect("folds"), gone, "{first_kept}");
        }
        let left: Vec<(String, String, i64)> = connection
            .prepare("SELECT day, what, count FROM tally ORDER BY day, what")
            .and_then(|mut rows| {
                rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
            })
            .expect("reads");
        let expected = [("2026-03-01", "SENT", 5), (BEFORE, "ERROR", 5), (BEFORE, "SENT", 10)]
            .map(|(day, what, count)| (day.into(), what.into(), count));
        assert_eq!(left, expected);
    }
}
