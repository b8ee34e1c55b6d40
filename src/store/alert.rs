//! Sole writer of `alert` and `alert_told`: what a person should know, and which hook was told of it.
//!
//! A copy of the book in memory (`alert/book.rs`), absolute values, so writing again is harmless. Also finds, at a
//! start, the ends that were recorded after the last copy and so may have lost their alert to a crash.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use crossbeam_channel::Sender;
use rusqlite::{Connection, params};

use crate::alert::Cause;
use crate::alert::book::{Entry, Key, Told, Written};
use crate::db::writer::Work;
use crate::store::meta;

/// Mark: everything recorded up to this moment is in the table, UTC milliseconds.
const NOTED_UNTIL: &str = "alerts_noted_until_ms";
/// Mark: quarantined rows of outbox.db up to this id were told; of a source with its id behind a colon.
const QUARANTINE_SEEN: &str = "alerts_quarantine_seen";

/// What became of a copy: whether it is on the disk, and if not which keys it held.
pub type Saved = (bool, Vec<Key>);

/// Work: writes a copy of the changed pages.
pub struct Save {
    /// What changed.
    pub written: Vec<Written>,
    /// Names of the hooks, in the book's order.
    pub hooks: Vec<&'static str>,
    /// When the copy was taken, UTC milliseconds.
    pub at_ms: i64,
    /// Last quarantined row of each outbox that the copy counts.
    pub quarantine_seen: BTreeMap<String, i64>,
    /// Told what became of it.
    pub reply: Sender<Saved>,
}

impl Work for Save {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        for Written { key, entry, told } in &self.written {
            let (cause, destination) = (key.cause.as_str(), &key.destination);
            connection
                .prepare_cached(
                    "INSERT INTO alert (cause, destination, count, first_at_ms, last_at_ms, last_text, open, cleared_at_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                     ON CONFLICT (cause, destination) DO UPDATE
                       SET count = excluded.count, first_at_ms = excluded.first_at_ms, last_at_ms = excluded.last_at_ms,
                           last_text = excluded.last_text, open = excluded.open, cleared_at_ms = excluded.cleared_at_ms",
                )?
                .execute(params![
                    cause,
                    destination,
                    entry.count,
                    entry.first_at_ms,
                    entry.last_at_ms,
                    entry.text,
                    entry.open,
                    entry.cleared_at_ms
                ])?;
            for (hook, told) in self.hooks.iter().zip(told) {
                connection
                    .prepare_cached(
                        "INSERT INTO alert_told (hook, cause, destination, count, open, at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                         ON CONFLICT (hook, cause, destination) DO UPDATE
                           SET count = excluded.count, open = excluded.open, at_ms = excluded.at_ms",
                    )?
                    .execute(params![hook, cause, destination, told.count, told.open, told.at_ms])?;
            }
        }
        for (source_id, id) in &self.quarantine_seen {
            meta::put(connection, &quarantine_mark(source_id), &id.to_string())?;
        }
        meta::put(connection, NOTED_UNTIL, &self.at_ms.to_string())
    }
    fn committed(self: Box<Self>) {
        let _ = self.reply.send((true, Vec::new()));
    }
    fn failed(self: Box<Self>, _why: &str) {
        let keys = self.written.into_iter().map(|written| written.key).collect();
        let _ = self.reply.send((false, keys));
    }
    // Not owed: the notifier keeps it and tries again, and alerts about a database must not hold it up.
    fn must_land(&self) -> bool {
        false
    }
}

/// A page of an earlier start: `None` for a hook that has no row for it.
pub type Recalled = (Key, Entry, Vec<Option<Told>>);

/// All pages, and for each hook whether it was never there before.
pub fn load(connection: &Connection, hooks: &[&'static str]) -> rusqlite::Result<(Vec<Recalled>, Vec<bool>)> {
    let mut told: HashMap<(String, String, String), Told> = HashMap::new();
    let mut statement =
        connection.prepare("SELECT hook, cause, destination, count, open, at_ms FROM alert_told")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let of = (row.get(0)?, row.get(1)?, row.get(2)?);
        told.insert(of, Told { count: row.get(3)?, open: row.get(4)?, at_ms: row.get(5)? });
    }
    let is_new = hooks.iter().map(|hook| !told.keys().any(|(name, _, _)| name == hook)).collect();
    let mut statement = connection.prepare(
        "SELECT cause, destination, count, first_at_ms, last_at_ms, last_text, open, cleared_at_ms FROM alert",
    )?;
    let mut rows = statement.query([])?;
    let mut pages = Vec::new();
    while let Some(row) = rows.next()? {
        let (name, destination): (String, String) = (row.get(0)?, row.get(1)?);
        let of_hook = hooks
            .iter()
            .map(|hook| told.remove(&((*hook).to_owned(), name.clone(), destination.clone())))
            .collect();
        // A cause of a newer version stays in the table and is told by that version.
        let Some(cause) = Cause::parse(&name) else { continue };
        let entry = Entry {
            count: row.get(2)?,
            first_at_ms: row.get(3)?,
            last_at_ms: row.get(4)?,
            text: row.get(5)?,
            open: row.get(6)?,
            cleared_at_ms: row.get(7)?,
        };
        pages.push((Key { cause, destination }, entry, of_hook));
    }
    Ok((pages, is_new))
}

/// How far the table knows, UTC milliseconds; 0 for never.
pub fn noted_until_ms(connection: &Connection) -> rusqlite::Result<i64> {
    number(connection, NOTED_UNTIL)
}

/// The last quarantined row of an outbox that was told of, by the source's id (empty = outbox.db). Shared by who looks
/// and who keeps it.
pub type QuarantineSeen = Arc<Mutex<BTreeMap<String, i64>>>;

/// See [`QuarantineSeen`]; 0 for none.
pub fn quarantine_seen(connection: &Connection, source_id: &str) -> rusqlite::Result<i64> {
    number(connection, &quarantine_mark(source_id))
}

fn quarantine_mark(source_id: &str) -> String {
    match source_id {
        "" => QUARANTINE_SEEN.to_owned(),
        source_id => format!("{QUARANTINE_SEEN}:{source_id}"),
    }
}

fn number(connection: &Connection, key: &str) -> rusqlite::Result<i64> {
    Ok(meta::get(connection, key)?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Retention: forgets causes that were last raised before `before_ms`. Returns how many.
pub fn forget(connection: &Connection, before_ms: i64) -> rusqlite::Result<usize> {
    connection.prepare_cached("DELETE FROM alert WHERE last_at_ms < ?1")?.execute([before_ms])
}
