//! Sole writer of `destination`: how each one stands, so that a restart forgets neither a dead link nor an operator's
//! pause. Never decides: `gate.rs` does.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::db::writer::Work;
use crate::gate::Standing;

/// Work: what a gate has learnt. Losing one costs nothing but a probe, so it is not kept.
pub struct Note {
    /// Destination.
    pub name: String,
    /// How it stands.
    pub standing: Standing,
    /// When, UTC milliseconds.
    pub at_ms: i64,
}

impl Work for Note {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let Standing { closed_since_ms, pause_ms, next_try_ms, reason, .. } = &self.standing;
        connection
            .prepare_cached(
                "INSERT INTO destination (name, closed_since_ms, pause_ms, next_try_ms, reason, changed_at_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (name) DO UPDATE SET closed_since_ms = excluded.closed_since_ms, pause_ms = excluded.pause_ms,
                   next_try_ms = excluded.next_try_ms, reason = excluded.reason, changed_at_ms = excluded.changed_at_ms",
            )?
            .execute(params![self.name, closed_since_ms, pause_ms, next_try_ms, reason, self.at_ms])?;
        Ok(())
    }
    fn committed(self: Box<Self>) {}
    fn failed(self: Box<Self>, _why: &str) {}
    fn must_land(&self) -> bool {
        true
    }
}

/// Pauses a destination, or ends the pause (`why` = `None`). False if it already stood so.
pub fn pause(
    connection: &Connection,
    name: &str,
    why: Option<&str>,
    by: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let moved = match why {
        Some(why) => connection.execute(
            "INSERT INTO destination (name, paused, paused_by, paused_at_ms, changed_at_ms) VALUES (?1, ?2, ?3, ?4, ?4)
             ON CONFLICT (name) DO UPDATE SET paused = excluded.paused, paused_by = excluded.paused_by,
               paused_at_ms = excluded.paused_at_ms, changed_at_ms = excluded.changed_at_ms
             WHERE paused IS NOT excluded.paused",
            params![name, why, by, now_ms],
        )?,
        None => connection.execute(
            "UPDATE destination SET paused = NULL, paused_by = NULL, paused_at_ms = NULL, changed_at_ms = ?2
              WHERE name = ?1 AND paused IS NOT NULL",
            params![name, now_ms],
        )?,
    };
    Ok(moved == 1)
}

/// A row for people.
#[derive(Clone, Debug)]
pub struct Known {
    /// Destination.
    pub name: String,
    /// How it stands.
    pub standing: Standing,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// Since when it is paused, UTC milliseconds.
    pub paused_at_ms: Option<i64>,
    /// Last change, UTC milliseconds.
    pub changed_at_ms: i64,
}

const COLUMNS: &str =
    "name, closed_since_ms, pause_ms, next_try_ms, reason, paused, paused_by, paused_at_ms, changed_at_ms";

fn known(row: &Row<'_>) -> rusqlite::Result<Known> {
    Ok(Known {
        name: row.get(0)?,
        standing: Standing {
            closed_since_ms: row.get(1)?,
            pause_ms: row.get(2)?,
            next_try_ms: row.get(3)?,
            reason: row.get(4)?,
            paused: row.get(5)?,
        },
        paused_by: row.get(6)?,
        paused_at_ms: row.get(7)?,
        changed_at_ms: row.get(8)?,
    })
}

/// How one stands; `None` = nothing was ever noted: open.
pub fn get(connection: &Connection, name: &str) -> rusqlite::Result<Option<Known>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM destination WHERE name = ?1"))?
        .query_row([name], known)
        .optional()
}

/// All that were ever noted, by name.
pub fn all(connection: &Connection) -> rusqlite::Result<Vec<Known>> {
    connection
        .prepare(&format!("SELECT {COLUMNS} FROM destination ORDER BY name"))?
        .query_map([], known)?
        .collect()
}
