//! A commit that is acknowledged must be on the disk: raises `synchronous` for one transaction and puts it
//! back.
//!
//! In WAL mode FULL syncs the log at each commit. In the rollback modes only EXTRA also syncs the folder
//! after the journal is gone; with less, a power cut right after the commit can bring the journal back and
//! undo it.

use rusqlite::Connection;

use super::OnceError;

const FULL: i64 = 2;
const EXTRA: i64 = 3;

/// Puts the connection's own level back when dropped.
pub(super) struct Synced<'c> {
    connection: &'c Connection,
    before: Option<i64>,
}

impl<'c> Synced<'c> {
    /// Outside any transaction. Refuses a journal mode that cannot roll back.
    pub(super) fn raise<E>(connection: &'c Connection) -> Result<Self, OnceError<E>> {
        let mode: String = pragma(connection, "journal_mode").map_err(OnceError::sqlite)?;
        let in_memory = connection.path().unwrap_or_default().is_empty();
        let needed = match mode.as_str() {
            "wal" => FULL,
            "off" => {
                return Err(OnceError::Unusable(
                    "journal_mode is OFF: a failed effect could not be rolled back; use any other".into(),
                ));
            }
            "memory" if !in_memory => {
                return Err(OnceError::Unusable(
                    "journal_mode is MEMORY: a crash could damage the file; use WAL, DELETE, TRUNCATE or PERSIST".into(),
                ));
            }
            _ => EXTRA,
        };
        let found: i64 = pragma(connection, "synchronous").map_err(OnceError::sqlite)?;
        let mut synced = Self { connection, before: None };
        if found < needed {
            synced.before = Some(found);
            set(connection, needed).map_err(OnceError::sqlite)?;
            // Read back: inside a transaction SQLite would leave it as it was, silently.
            let now: i64 = pragma(connection, "synchronous").map_err(OnceError::sqlite)?;
            if now < needed {
                return Err(OnceError::Unusable(format!("synchronous stays at {now}, {needed} is needed")));
            }
        }
        Ok(synced)
    }
}

impl Drop for Synced<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Never less safe for others: a failure leaves the stricter level.
            let _ = set(self.connection, before);
        }
    }
}

fn pragma<T: rusqlite::types::FromSql>(connection: &Connection, name: &str) -> rusqlite::Result<T> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn set(connection: &Connection, level: i64) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", level)
}
