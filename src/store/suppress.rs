//! Sole writer of `suppress` inside this program: who has opted out of what. Applications write the same table by SQL.
//!
//! Recipients are kept and looked up in the canonical form of `policy::number`; a trigger does the same to what others
//! insert. The look-up is one range of the primary key.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::policy::consent::OptOut;

/// One row, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Canonical form.
    pub recipient: String,
    /// What it covers.
    pub covers: OptOut,
    /// Where it came from.
    pub note: Option<String>,
    /// Since when, UTC milliseconds.
    pub at_ms: i64,
}

/// Adds; false if it was there (its note and time stay).
pub fn add(
    connection: &Connection,
    recipient: &str,
    covers: &OptOut,
    note: Option<&str>,
    at_ms: i64,
) -> rusqlite::Result<bool> {
    let added = connection
        .prepare_cached(
            "INSERT INTO suppress (recipient, destination, channel, class, note, at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (recipient, destination, channel, class) DO NOTHING",
        )?
        .execute(params![recipient, covers.destination, covers.channel, covers.class, note, at_ms])?;
    Ok(added == 1)
}

/// Removes exactly this opt-out, under whatever form of the recipient; false if there was none.
pub fn remove(connection: &Connection, forms: &[String], covers: &OptOut) -> rusqlite::Result<bool> {
    let mut removed = 0;
    for form in forms {
        removed += connection
            .prepare_cached(
                "DELETE FROM suppress WHERE recipient = ?1 AND destination = ?2 AND channel = ?3 AND class = ?4",
            )?
            .execute(params![form, covers.destination, covers.channel, covers.class])?;
    }
    Ok(removed > 0)
}

/// The opt-outs of a recipient, by all of its forms.
pub fn find(connection: &Connection, forms: &[String]) -> rusqlite::Result<Vec<OptOut>> {
    let mut statement =
        connection.prepare_cached("SELECT destination, channel, class FROM suppress WHERE recipient = ?1")?;
    let mut found = Vec::new();
    for form in forms {
        let mut rows = statement.query([form])?;
        while let Some(row) = rows.next()? {
            found.push(OptOut { destination: row.get(0)?, channel: row.get(1)?, class: row.get(2)? });
        }
    }
    Ok(found)
}

/// Whether there is any opt-out at all.
pub fn any(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM suppress LIMIT 1")?
        .query_row([], |_| Ok(()))
        .optional()?
        .is_some())
}

/// Opt-outs in order of recipient: all, or those of one recipient by its forms.
pub fn list(connection: &Connection, only: Option<&[String]>) -> rusqlite::Result<Vec<Entry>> {
    const COLUMNS: &str = "SELECT recipient, destination, channel, class, note, at_ms FROM suppress";
    let entry = |row: &Row<'_>| {
        Ok(Entry {
            recipient: row.get(0)?,
            covers: OptOut { destination: row.get(1)?, channel: row.get(2)?, class: row.get(3)? },
            note: row.get(4)?,
            at_ms: row.get(5)?,
        })
    };
    let Some(forms) = only else {
        let order = format!("{COLUMNS} ORDER BY recipient, destination, channel, class");
        return connection.prepare_cached(&order)?.query_map([], entry)?.collect();
    };
    let mut found = Vec::new();
    let mut statement = connection.prepare_cached(&format!("{COLUMNS} WHERE recipient = ?1"))?;
    for form in forms {
        let rows: rusqlite::Result<Vec<Entry>> = statement.query_map([form], entry)?.collect();
        found.extend(rows?);
    }
    Ok(found)
}
