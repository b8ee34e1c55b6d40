//! The road to `schema.sql`: an append-only list of steps for each part, applied in one transaction.
//!
//! Rules: never remove, never reorder, never change a step that was released. The version of a file is the number of
//! steps it has taken, kept in `onceward_meta` (an application's own file has its own `user_version`). A file with
//! more steps than this list is refused and left alone; a version that cannot be read is an error, never zero.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use super::{DbError, Part};

const SCHEMA: &str = include_str!("../../schema.sql");

/// One part of `schema.sql`.
pub fn schema(part: Part) -> &'static str {
    let (_, rest) = SCHEMA.split_once("-- part: outbox").unwrap_or(("", SCHEMA));
    let (outbox, rest) = rest.split_once("-- part: inbox").unwrap_or((rest, ""));
    let (inbox, once) = rest.split_once("-- part: once").unwrap_or((rest, ""));
    match part {
        Part::Outbox => outbox,
        Part::Inbox => inbox,
        Part::Once => once,
    }
}

/// The steps of a part. Step 1 is the first release's schema.
fn steps(part: Part) -> [&'static str; 1] {
    [schema(part)]
}

/// The version this program writes.
pub fn newest(part: Part) -> i64 {
    steps(part).len() as i64
}

fn key(part: Part) -> &'static str {
    match part {
        Part::Outbox => "outbox_schema",
        Part::Inbox => "inbox_schema",
        Part::Once => "once_schema",
    }
}

/// The version of an open file: `None` where it has no `onceward_meta` at all.
pub fn version(connection: &Connection, part: Part) -> rusqlite::Result<Option<i64>> {
    let has_meta: bool = connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'onceward_meta')",
        [],
        |row| row.get(0),
    )?;
    if !has_meta {
        return Ok(None);
    }
    let text: Option<String> = connection
        .query_row("SELECT value FROM onceward_meta WHERE key = ?1", [key(part)], |row| row.get(0))
        .optional()?;
    match text {
        None => Ok(None),
        Some(text) => {
            text.parse().map(Some).map_err(|_| super::other(format!("its schema version reads {text:?}")))
        }
    }
}

/// Refuses a file that is not exactly of this program's version.
pub fn check_version(connection: &Connection, path: &Path, part: Part) -> Result<(), DbError> {
    let known = newest(part);
    match version(connection, part).map_err(|source| DbError::sqlite(path, source))? {
        Some(found) if found == known => Ok(()),
        Some(found) if found > known => Err(DbError::Newer { path: path.to_owned(), found, known }),
        Some(found) => Err(DbError::Older {
            path: path.to_owned(),
            found,
            known,
            advice: "run `onceward init` with the agent stopped to bring it up",
        }),
        None => Err(DbError::Unusable {
            path: path.to_owned(),
            reason: "this is not a database of onceward (no version in onceward_meta)".into(),
        }),
    }
}

/// Brings a file to the newest version in one transaction; a newer file is refused and untouched.
pub fn migrate(connection: &mut Connection, path: &Path, part: Part) -> Result<(), DbError> {
    let known = newest(part);
    let found = version(connection, part).map_err(|source| DbError::sqlite(path, source))?;
    if let Some(found) = found.filter(|found| *found > known) {
        return Err(DbError::Newer { path: path.to_owned(), found, known });
    }
    let from = usize::try_from(found.unwrap_or(0)).unwrap_or(0);
    if from >= steps(part).len() {
        return Ok(());
    }
    super::write(connection, |tx| take_steps(tx, part, from)).map_err(|source| DbError::sqlite(path, source))
}

/// Brings a file to the newest version inside the caller's transaction: for `source add`.
pub fn migrate_in(tx: &Connection, part: Part, found: Option<i64>) -> rusqlite::Result<()> {
    take_steps(tx, part, usize::try_from(found.unwrap_or(0)).unwrap_or(0))
}

/// The names of all tables, indexes, triggers and views of a part, in lower case.
pub fn names(part: Part) -> rusqlite::Result<Vec<String>> {
    let scratch = Connection::open_in_memory()?;
    scratch.execute_batch(schema(part))?;
    let mut statement =
        scratch.prepare("SELECT lower(name) FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

fn take_steps(tx: &Connection, part: Part, from: usize) -> rusqlite::Result<()> {
    for step in steps(part).iter().skip(from) {
        tx.execute_batch(step)?;
    }
    if from < steps(part).len() {
        let _ = tx.execute(
            "INSERT INTO onceward_meta (key, value) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            rusqlite::params![key(part), newest(part).to_string()],
        )?;
    }
    Ok(())
}
