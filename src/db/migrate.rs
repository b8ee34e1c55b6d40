//! The road to `schema.sql`: an append-only list of steps for each part, applied in one transaction.
//!
//! Rules: never remove, never reorder, never change a step that was released. The version of a file is the number of
//! steps it has taken, kept in `onceward_meta` (an application's own file has its own `user_version`). A file with
//! more steps than this list is refused and left alone; a version that cannot be read is an error, never zero. A new
//! file is made in its final shape; `tests/it/upgrade.rs` sees that the road ends there too.

use std::path::Path;
use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension};

use super::{DbError, Part};

const SCHEMA: &str = include_str!("../../schema.sql");

/// A part's final shape. The inbox's has the tables of `once` in it: its reports are events of `once`.
pub fn schema(part: Part) -> &'static str {
    static INBOX: LazyLock<String> =
        LazyLock::new(|| format!("{}{}", section(Part::Inbox), section(Part::Once)));
    match part {
        Part::Inbox => &INBOX,
        Part::Outbox | Part::Once => section(part),
    }
}

/// What stands under one heading of `schema.sql`.
fn section(part: Part) -> &'static str {
    let (_, rest) = SCHEMA.split_once("-- part: outbox").unwrap_or(("", SCHEMA));
    let (outbox, rest) = rest.split_once("-- part: inbox").unwrap_or((rest, ""));
    let (inbox, once) = rest.split_once("-- part: once").unwrap_or((rest, ""));
    match part {
        Part::Outbox => outbox,
        Part::Inbox => inbox,
        Part::Once => once,
    }
}

/// The steps of a part. What the inbox shall have of a later step of `once` becomes a step of its own here.
fn steps(part: Part) -> Vec<Vec<&'static str>> {
    match part {
        Part::Once => vec![vec![section(part)]],
        Part::Outbox => {
            vec![vec![include_str!("road/outbox_1.sql")], vec![include_str!("road/outbox_2.sql")]]
        }
        Part::Inbox => vec![
            vec![include_str!("road/inbox_1.sql")],
            vec![section(Part::Once), include_str!("road/inbox_2.sql")],
        ],
    }
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
    let advice = "run `onceward init` with the agent stopped to bring it up";
    if is_newest(connection, path, part, advice)? {
        return Ok(());
    }
    let reason = "this is not a database of onceward (no version in onceward_meta)".into();
    Err(DbError::Unusable { path: path.to_owned(), reason })
}

/// Refuses an older or a newer file; false where it has no such part at all. `advice` says what brings an older one up.
pub fn is_newest(
    connection: &Connection,
    path: &Path,
    part: Part,
    advice: &'static str,
) -> Result<bool, DbError> {
    let found = version(connection, part).map_err(|source| DbError::sqlite(path, source))?;
    let known = newest(part);
    match not_newer(path, part, found)? {
        Some(found) if found < known => Err(DbError::Older { path: path.to_owned(), found, known, advice }),
        found => Ok(found.is_some()),
    }
}

/// Refuses what a newer program has made.
pub fn not_newer(path: &Path, part: Part, found: Option<i64>) -> Result<Option<i64>, DbError> {
    let known = newest(part);
    match found {
        Some(found) if found > known => Err(DbError::Newer { path: path.to_owned(), found, known }),
        found => Ok(found),
    }
}

/// Brings a file to the newest version in one transaction; a newer file is refused and untouched.
pub fn migrate(connection: &mut Connection, path: &Path, part: Part) -> Result<(), DbError> {
    let sqlite = |source| DbError::sqlite(path, source);
    let found = not_newer(path, part, version(connection, part).map_err(sqlite)?)?;
    if found == Some(newest(part)) {
        return Ok(());
    }
    super::write(connection, |tx| migrate_in(tx, part, found)).map_err(sqlite)
}

/// The names of all tables, indexes, triggers and views of a part, in lower case.
pub fn names(part: Part) -> rusqlite::Result<Vec<String>> {
    let scratch = Connection::open_in_memory()?;
    scratch.execute_batch(schema(part))?;
    let mut statement =
        scratch.prepare("SELECT lower(name) FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// Brings a file from the version that was found to the newest inside the caller's transaction.
pub fn migrate_in(tx: &Connection, part: Part, found: Option<i64>) -> rusqlite::Result<()> {
    match found {
        None => tx.execute_batch(schema(part))?,
        Some(found) => {
            for text in steps(part).iter().skip(usize::try_from(found).unwrap_or(0)).flatten() {
                tx.execute_batch(text)?;
            }
        }
    }
    let parts = if part == Part::Inbox { &[part, Part::Once][..] } else { &[part] };
    for part in parts {
        let _ = tx.execute(
            "INSERT INTO onceward_meta (key, value) VALUES (?1, ?2)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE value <> excluded.value",
            rusqlite::params![key(*part), newest(*part).to_string()],
        )?;
    }
    Ok(())
}
