//! Sole writer of `source`: which applications' files the agent serves, and what it saw of each last.
//!
//! `source add` and `source remove` put and forget; the agent marks what it sees, through the inbox writer.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::db::writer::Work;

/// A registered source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `[a-z0-9_-]{1,40}`.
    pub name: String,
    /// Absolute.
    pub file: String,
    /// As in the file's `onceward_meta`.
    pub source_id: String,
    /// When, UTC milliseconds.
    pub added_at_ms: i64,
    /// In capitals.
    pub state: String,
    /// Why, where it is not OK.
    pub reason: Option<String>,
    /// Since when the state holds, UTC milliseconds.
    pub since_ms: i64,
}

/// The state of one that the agent has not looked at since it was added.
pub const NEW: &str = "NEW";

const COLUMNS: &str = "SELECT name, file, source_id, added_at_ms, state, reason, since_ms FROM source";

fn source(row: &Row<'_>) -> rusqlite::Result<Source> {
    Ok(Source {
        name: row.get(0)?,
        file: row.get(1)?,
        source_id: row.get(2)?,
        added_at_ms: row.get(3)?,
        state: row.get(4)?,
        reason: row.get(5)?,
        since_ms: row.get(6)?,
    })
}

/// All, by name.
pub fn list(connection: &Connection) -> rusqlite::Result<Vec<Source>> {
    connection.prepare_cached(&format!("{COLUMNS} ORDER BY name"))?.query_map([], source)?.collect()
}

/// One by its name.
pub fn get(connection: &Connection, name: &str) -> rusqlite::Result<Option<Source>> {
    connection.prepare_cached(&format!("{COLUMNS} WHERE name = ?1"))?.query_row([name], source).optional()
}

/// Registers a file under a name; a file may be registered anew under the name it has.
pub fn put(
    connection: &Connection,
    name: &str,
    file: &str,
    source_id: &str,
    now_ms: i64,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO source (name, file, source_id, added_at_ms, state, since_ms) VALUES (?1, ?2, ?3, ?4, 'NEW', ?4)
             ON CONFLICT (name) DO UPDATE SET file = excluded.file, source_id = excluded.source_id,
                    state = excluded.state, reason = NULL, since_ms = excluded.since_ms",
        )?
        .execute(params![name, file, source_id, now_ms])?;
    Ok(())
}

/// Begins the mark of a forgotten source: its id follows, and the mark holds when that was (UTC milliseconds), or nothing
/// once it was added again.
pub const REMOVED: &str = "source_removed:";

/// When a source that is not served now was last forgotten, UTC milliseconds: what the inbox knows of its messages
/// outlives it.
pub fn last_removed_ms(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached(
            "SELECT max(CAST(value AS INTEGER)) FROM onceward_meta WHERE key LIKE 'source_removed:%' AND value <> ''",
        )?
        .query_row([], |row| row.get(0))
}

/// Forgets a source; its file is not touched.
pub fn remove(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached("DELETE FROM source WHERE name = ?1")?.execute([name])? == 1)
}

/// Work: what the agent saw.
pub struct Seen {
    /// Which source.
    pub name: String,
    /// In capitals.
    pub state: &'static str,
    /// Why.
    pub reason: Option<String>,
    /// When, UTC milliseconds.
    pub at_ms: i64,
}

impl Work for Seen {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached("UPDATE source SET state = ?2, reason = ?3, since_ms = ?4 WHERE name = ?1")?
            .execute(params![self.name, self.state, self.reason, self.at_ms])?;
        Ok(())
    }
    fn committed(self: Box<Self>) {}
    fn failed(self: Box<Self>, _why: &str) {}
    fn must_land(&self) -> bool {
        true
    }
}
