//! Sole writer of `alert`: what a person should know, by cause and destination, with counts.

use rusqlite::{Connection, params};

use crate::db::writer::Work;

/// One alert to be counted. The log line was written before this; a database in trouble loses no alert.
pub struct Raise {
    /// Cause in capitals, e.g. `ERROR`.
    pub cause: &'static str,
    /// Destination, or empty.
    pub destination: String,
    /// For people; no number, no text of a message.
    pub text: String,
    /// How many at once.
    pub count: i64,
    /// When.
    pub at_ms: i64,
}

impl Work for Raise {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached(
                "INSERT INTO alert (cause, destination, count, first_at_ms, last_at_ms, last_text)
                 VALUES (?1, ?2, ?3, ?4, ?4, ?5)
                 ON CONFLICT (cause, destination) DO UPDATE
                   SET count = count + excluded.count, last_at_ms = excluded.last_at_ms, last_text = excluded.last_text",
            )?
            .execute(params![self.cause, self.destination, self.count, self.at_ms, self.text])?;
        Ok(())
    }
    fn committed(self: Box<Self>) {}
    fn failed(self: Box<Self>, _why: &str) {}
    fn must_land(&self) -> bool {
        true
    }
}

/// Retention: forgets causes that were last raised before `before_ms`. Returns how many.
pub fn forget(connection: &Connection, before_ms: i64) -> rusqlite::Result<usize> {
    connection.prepare_cached("DELETE FROM alert WHERE last_at_ms < ?1")?.execute([before_ms])
}
