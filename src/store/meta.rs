//! Sole writer of the agent's own marks in `onceward_meta` (the schema version belongs to `db/migrate.rs`).

use rusqlite::{Connection, OptionalExtension, params};

/// Reads a mark.
pub fn get(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT value FROM onceward_meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()
}

/// Writes a mark.
pub fn put(connection: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO onceward_meta (key, value) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        )?
        .execute(params![key, value])?;
    Ok(())
}

/// The lasting id of this state folder's agent, made once.
pub fn agent_id(connection: &Connection) -> rusqlite::Result<String> {
    if let Some(id) = get(connection, "agent_id")? {
        return Ok(id);
    }
    let id: String = connection.query_row("SELECT lower(hex(randomblob(8)))", [], |row| row.get(0))?;
    put(connection, "agent_id", &id)?;
    Ok(id)
}
