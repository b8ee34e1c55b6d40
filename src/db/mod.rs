//! Opening SQLite files: the right pragmas, read back; versions refused with a clear text. Knows no table.
//!
//! Invariants: no code of this crate opens `outbox.db`, `inbox.db` or their `-wal`/`-shm` files except through
//! SQLite (closing a foreign descriptor drops SQLite's POSIX locks: hazard S9); every writing transaction begins
//! IMMEDIATE (S1); a file is never created where one was expected.

pub mod access;
pub mod checkpoint;
pub mod holder;
pub mod identity;
pub mod kill;
pub mod migrate;
pub mod pool;
pub mod queue;
pub mod reserve;
pub mod writer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::limits::BUSY_TIMEOUT;

/// The oldest SQLite that may write these files from inside the agent: it has the WAL-reset fix (S7).
pub const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// Which part of `schema.sql` a file holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Producers insert, the relay marks.
    Outbox,
    /// The agent's own.
    Inbox,
    /// Markers of `once`, in a file that belongs to an application (or beside another part).
    Once,
}

/// How hard a commit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Every commit is on the disk when it returns: whatever guards a promise.
    Full,
    /// Commits are never reordered and become durable with the next FULL one or checkpoint: the relay's claims and
    /// marks, whose loss only makes a row be handed over again.
    Normal,
}

/// What went wrong with a database file, sorted by what a person does about it.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// Not there.
    #[error(
        "{path}: there is no such database; make both with `onceward init --config FILE`, FILE being these settings"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// An application's file is not there.
    #[error(
        "{path}: there is no such file; put it back, or `onceward source remove` it if it is gone for good"
    )]
    Away {
        /// The file.
        path: PathBuf,
    },
    /// Made by a newer program.
    #[error(
        "{path}: its schema is version {found}, this program knows up to {known}; install the newer onceward (nothing was changed)"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// Made by an older program.
    #[error("{path}: its schema is version {found}, this program needs {known}; {advice}")]
    Older {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
        /// What brings it up.
        advice: &'static str,
    },
    /// An application's file that is not the one that was added, or belongs to another agent.
    #[error("{path}: {reason}")]
    Foreign {
        /// The file.
        path: PathBuf,
        /// For people.
        reason: String,
    },
    /// This user may not use it, or would lock others out of it.
    #[error("{path}: {reason}")]
    NotPermitted {
        /// The file or folder.
        path: PathBuf,
        /// For people.
        reason: String,
    },
    /// Not one of ours, or damaged so far that its version cannot be read.
    #[error("{path}: {reason}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// For people.
        reason: String,
    },
    /// Anything SQLite says.
    #[error("{path}: {source}")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's words.
        source: rusqlite::Error,
    },
}

impl DbError {
    /// Wraps SQLite's error with the file's name.
    pub fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        if is_refused(&source) && !may_write(path) {
            return Self::NotPermitted { path: path.to_owned(), reason: "permission denied".into() };
        }
        Self::Sqlite { path: path.to_owned(), source }
    }
    /// Another agent has taken the source over while this one served it.
    pub fn taken_over(path: &Path) -> Self {
        let reason = "another agent has taken this source over (`onceward source add --adopt`); nothing is taken from it here. Forget it with `onceward source remove`".into();
        Self::Foreign { path: path.to_owned(), reason }
    }
    /// Whether the file is damaged, or no database at all.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. } if matches!(
            source.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
        ))
    }
    /// Whether SQLite was refused a file, though this user may write the database and its folder.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. } if is_refused(source))
    }
    /// Whether waiting may help (somebody holds the lock, the disk is full).
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. } if is_busy(source) || is_full(source))
    }
}

/// SQLite may not write, or open, a file.
fn is_refused(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen)
    )
}

/// Somebody else holds the lock.
pub fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The disk is full: a clean roll-back that may be tried again.
pub fn is_full(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull))
}

/// Whether this user may write the file and its folder, as the files beside it (`-wal`, `-shm`) need. Asks the kernel,
/// opens nothing.
fn may_write(path: &Path) -> bool {
    let allowed = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    allowed(path) && path.parent().is_none_or(allowed)
}

/// Opens an existing file for writing. Fails where it is missing, newer, or where a pragma does not take.
pub fn open_writer(path: &Path, part: Part, durability: Durability) -> Result<Connection, DbError> {
    let opened = access::patiently(path, || {
        let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let sqlite = |source| DbError::sqlite(path, source);
        prepare_writer(&connection, durability).map_err(sqlite)?;
        migrate::check_version(&connection, path, part)?;
        may_begin(&connection).map_err(sqlite)?;
        Ok(connection)
    });
    // "unable to open database file" helps nobody: look for what another user left beside it (S25).
    opened
        .map_err(|error| if error.is_refusal() { access::usable(path).err().unwrap_or(error) } else { error })
}

/// Fails where this connection could only read, because it met the `-wal` or `-shm` in a moment in which they were
/// closed to it. Whoever holds the lock now is no reason to wait.
fn may_begin(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    let begun = connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK");
    connection.busy_timeout(BUSY_TIMEOUT)?;
    match begun {
        Err(error) if is_busy(&error) => Ok(()),
        begun => begun,
    }
}

/// Opens an existing file for reading only; never creates, never writes a row.
pub fn open_reader(path: &Path, part: Part) -> Result<Connection, DbError> {
    access::patiently(path, || {
        let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let set = || -> rusqlite::Result<()> {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection
                .execute_batch("PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0; PRAGMA cache_size = -512;")
        };
        set().map_err(|source| DbError::sqlite(path, source))?;
        migrate::check_version(&connection, path, part)?;
        Ok(connection)
    })
}

/// Opens or creates a file and brings it to the newest schema: for `init` and `source add` alone.
pub fn create(path: &Path, part: Part) -> Result<Connection, DbError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut connection =
        Connection::open_with_flags(path, flags).map_err(|source| DbError::sqlite(path, source))?;
    prepare_writer(&connection, Durability::Full).map_err(|source| DbError::sqlite(path, source))?;
    migrate::migrate(&mut connection, path, part)?;
    Ok(connection)
}

/// Opens an application's own file for writing, as the application keeps it: its journal mode, auto-vacuum and limits
/// stay. Marks are NORMAL in a WAL; in a rollback journal FULL, because there less could damage the file (S16).
pub fn open_foreign_writer(path: &Path) -> Result<Connection, DbError> {
    access::usable(path)?;
    access::patiently(path, || {
        let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let set = || -> rusqlite::Result<()> {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.set_prepared_statement_cache_capacity(64);
            let _stable =
                connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            let journal: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
            let synchronous = if journal == "wal" { 1 } else { 2 };
            connection.execute_batch(&format!(
                "PRAGMA synchronous = {synchronous}; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0; PRAGMA cache_size = -1024;"
            ))?;
            // A rollback journal is opened anew by each write; the application's lock is left alone there.
            if journal == "wal" { may_begin(&connection) } else { Ok(()) }
        };
        set().map_err(|source| DbError::sqlite(path, source))?;
        Ok(connection)
    })
}

/// Opens an application's own file for reading, where that leaves no file behind that locks the application out.
/// Not as SQLite's read-only: that could not take away the `-wal` and `-shm` that it made, and they would stay behind.
pub fn open_foreign_reader(path: &Path) -> Result<Connection, DbError> {
    access::usable(path)?;
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let set = || -> rusqlite::Result<()> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.execute_batch(
            "PRAGMA query_only = ON; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0; PRAGMA cache_size = -512;",
        )
    };
    set().map_err(|source| DbError::sqlite(path, source))?;
    Ok(connection)
}

/// As [`open_foreign_reader`], for a look or two: it waits for no lock and reads nothing yet.
pub fn open_foreign_glance(path: &Path) -> Result<Connection, DbError> {
    access::usable(path)?;
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let set = || -> rusqlite::Result<()> {
        connection.busy_timeout(Duration::ZERO)?;
        connection.execute_batch("PRAGMA query_only = ON")
    };
    set().map_err(|source| DbError::sqlite(path, source))?;
    Ok(connection)
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, DbError> {
    // `stat` is safe beside SQLite's locks; opening the file ourselves would not be.
    match std::fs::metadata(path) {
        // Even asking an empty file for its journal mode would write to it.
        Ok(meta) if meta.len() == 0 => {
            let reason = "the file is empty (a failed copy, a full disk?); put the right one back".into();
            return Err(DbError::Unusable { path: path.to_owned(), reason });
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(DbError::Missing { path: path.to_owned() });
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(DbError::NotPermitted { path: path.to_owned(), reason: "permission denied".into() });
        }
        // The disk's trouble, which may pass: not the file's.
        Err(error) => return Err(DbError::sqlite(path, io_error(&error))),
    }
    Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|source| DbError::sqlite(path, source))
}

fn prepare_writer(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Plans do not depend on bound values: else SQLite prepares the claim anew at each run.
    let _stable = connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let synchronous = match durability {
        Durability::Full => 2,
        Durability::Normal => 1,
    };
    // Read back: a pragma that SQLite does not know or refuses answers nothing, silently.
    let journal: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    connection.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous}; PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0;
         PRAGMA cache_size = -1024; PRAGMA foreign_keys = ON;"
    ))?;
    // One checkpointer for each file (checkpoint.rs); this is the net below it.
    let _: i64 = connection.query_row("PRAGMA wal_autocheckpoint = 20000", [], |row| row.get(0))?;
    let _: i64 = connection.query_row("PRAGMA journal_size_limit = 8388608", [], |row| row.get(0))?;
    let found: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    if journal != "wal" || found != synchronous {
        return Err(other(format!(
            "this file cannot be used safely: journal_mode is {journal} (wal is needed), synchronous is {found} ({synchronous} is needed)"
        )));
    }
    Ok(())
}

/// An error of ours in SQLite's type, for closures that return it.
pub fn other(text: String) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(text.into())
}

/// An I/O error that we met ourselves, as SQLite would have called it.
fn io_error(error: &std::io::Error) -> rusqlite::Error {
    let code = rusqlite::ffi::Error {
        code: ErrorCode::SystemIoFailure,
        extended_code: rusqlite::ffi::SQLITE_IOERR_FSTAT,
    };
    rusqlite::Error::SqliteFailure(code, Some(error.to_string()))
}

/// Runs `work` in one IMMEDIATE transaction. On any error nothing of it stays, unless the commit itself failed:
/// then the caller must look before it acts.
pub fn write<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let value = work(&transaction)?;
    transaction.commit()?;
    Ok(value)
}
