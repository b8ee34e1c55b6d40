//! One application's file as the agent sees it: installing the outbox part there, opening it, and saying how
//! it is.
//!
//! The file's `onceward_meta` holds `source_id` (made at `source add`) and `served_by` (the agent). Both are
//! looked at on opening and in each claiming transaction: a copy, a file put in its place, or a second agent
//! on the same file is noticed before anything is taken from it. Never: changes the journal mode or any
//! object that is not onceward's.

use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rusqlite::Connection;

use super::opt_outs::OptOuts;
use crate::alert::{Alerts, Cause};
use crate::clock::wall_ms;
use crate::db::writer::Writer;
use crate::db::{self, DbError, Part, migrate};
use crate::limits::{SOURCE_GLANCE, SOURCE_LOCKED_ALERT};
use crate::owner::AgentId;
use crate::store::source::Seen;
use crate::store::{meta, outbox};

/// How a source is, sorted by what a person does about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Served.
    Ok,
    /// No such file.
    Missing,
    /// Somebody holds the lock for long.
    Locked,
    /// No room on its disk.
    Full,
    /// This user may not use it, or would lock others out.
    NotPermitted,
    /// A read-only file system.
    ReadOnly,
    /// Damaged, or no database at all.
    Corrupt,
    /// Its outbox was made by an older program.
    Older,
    /// Its outbox was made by a newer program.
    Newer,
    /// Another file than the one that was added, or another agent's.
    Foreign,
    /// Anything else.
    Trouble,
}

impl State {
    /// The capitals, as `source list` and `status` show them.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Missing => "MISSING",
            Self::Locked => "LOCKED",
            Self::Full => "FULL",
            Self::NotPermitted => "NOT_PERMITTED",
            Self::ReadOnly => "READ_ONLY",
            Self::Corrupt => "CORRUPT",
            Self::Older => "OLDER",
            Self::Newer => "NEWER",
            Self::Foreign => "FOREIGN",
            Self::Trouble => "TROUBLE",
        }
    }

    /// Of an error.
    pub fn of(error: &DbError) -> Self {
        use rusqlite::ErrorCode as E;
        match error {
            DbError::Missing { .. } | DbError::Away { .. } => Self::Missing,
            DbError::Newer { .. } => Self::Newer,
            DbError::Older { .. } => Self::Older,
            DbError::Foreign { .. } => Self::Foreign,
            DbError::NotPermitted { .. } => Self::NotPermitted,
            DbError::Unusable { .. } => Self::Trouble,
            DbError::Sqlite { source, .. } => match source.sqlite_error_code() {
                Some(E::DatabaseBusy | E::DatabaseLocked | E::FileLockingProtocolFailed) => Self::Locked,
                Some(E::DiskFull) => Self::Full,
                Some(E::ReadOnly) => Self::ReadOnly,
                Some(E::PermissionDenied | E::CannotOpen) => Self::NotPermitted,
                Some(E::DatabaseCorrupt | E::NotADatabase) => Self::Corrupt,
                _ => Self::Trouble,
            },
        }
    }
}

/// What `source add` found and did.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The file's identity.
    pub source_id: String,
    /// The application's journal mode, untouched.
    pub journal: String,
    /// Whether the tables were made now.
    pub new: bool,
    /// Rows that are HELD now because the file was adopted, or because the inbox may have forgotten them.
    pub held: usize,
}

/// Installs the outbox part in an application's file, or brings it up, in one transaction; does nothing where
/// it is there. `is_known` says under which name another registered source has an id: then this file is a
/// copy of it. `adopt` takes over a copy or another agent's file: a new identity, and everything unfinished
/// in it is HELD, since the original may have been sent. `forgotten_ms` is for a file that is not in the list: what was
/// inserted before it may have been sent by this very agent, whose inbox kept no row of it while the file was away (F24).
pub fn install(
    path: &Path,
    agent_id: &str,
    adopt: bool,
    forgotten_ms: impl Fn(&str) -> Option<i64>,
    is_known: impl Fn(&str) -> Option<String>,
) -> Result<Installed, DbError> {
    if let Some(kind) = db::access::network_file_system(path) {
        let reason = format!(
            "is on {kind}, where SQLite's locks do not hold; an outbox must be on a disk of this machine"
        );
        return Err(DbError::Unusable { path: path.to_owned(), reason });
    }
    let mut connection = db::open_foreign_writer(path)?;
    let sqlite = |source| DbError::sqlite(path, source);
    let foreign = |reason: String| DbError::Foreign { path: path.to_owned(), reason };
    let journal: String =
        connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(sqlite)?;
    let tx =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(sqlite)?;
    // Its own table of that name may have any shape.
    let found = migrate::version(&tx, Part::Outbox).unwrap_or(None);
    if migrate::not_newer(path, Part::Outbox, found)?.is_none() {
        let taken = names_taken(&tx).map_err(sqlite)?;
        if !taken.is_empty() {
            return Err(foreign(format!(
                "has objects of its own with names that onceward needs: {}; nothing was changed. Rename them, or let the application write to outbox.db instead",
                taken.join(", ")
            )));
        }
    }
    migrate::migrate_in(&tx, Part::Outbox, found).map_err(sqlite)?;
    let mark = |key| meta::get(&tx, key).map_err(sqlite);
    let (served_by, old_id) = (mark("served_by")?, mark("source_id")?);
    let stranger = match &served_by {
        Some(other) if other != agent_id => {
            Some(format!("is served by another agent ({other}); two agents would both send from it"))
        }
        Some(_) => old_id.as_deref().and_then(&is_known).map(|name| {
            format!("is a copy of the source {name}: what waits in it waits there, too, or has been sent")
        }),
        None if found.is_some() && outbox::was_ever_claimed(&tx).map_err(sqlite)? => {
            Some("is an outbox that some agent has served already".to_owned())
        }
        None => None,
    };
    let mut held = 0;
    let source_id = match (stranger, old_id) {
        (Some(reason), _) if !adopt => {
            return Err(foreign(format!(
                "{reason}. `--adopt` takes it over and holds its unfinished messages (HELD) until you release them"
            )));
        }
        (None, Some(id)) => {
            if let Some(before_ms) = forgotten_ms(&id) {
                let reason = "ADDED_AGAIN: older than what the inbox keeps, it may have been sent";
                held = outbox::hold_older(&tx, before_ms, reason, wall_ms()).map_err(sqlite)?;
            }
            id
        }
        (stranger, _) => {
            if stranger.is_some() {
                held = outbox::hold_all(&tx, "ADOPTED: taken over with unfinished messages", wall_ms())
                    .map_err(sqlite)?;
            }
            tx.query_row("SELECT lower(hex(randomblob(8)))", [], |row| row.get(0)).map_err(sqlite)?
        }
    };
    meta::put(&tx, "source_id", &source_id)
        .and_then(|()| meta::put(&tx, "served_by", agent_id))
        .map_err(sqlite)?;
    tx.commit().map_err(sqlite)?;
    Ok(Installed { source_id, journal, new: found.is_none(), held })
}

/// The file's own objects with names of the outbox part.
fn names_taken(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let needed = migrate::names(Part::Outbox)?;
    let mut statement = connection.prepare("SELECT type, name FROM sqlite_master")?;
    let mut rows = statement.query([])?;
    let mut taken = Vec::new();
    while let Some(row) = rows.next()? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        if needed.contains(&name.to_lowercase()) {
            taken.push(format!("{kind} {name}"));
        }
    }
    Ok(taken)
}

/// Opens a source's file for looking at it: `status`, `source list`, `check`, and the watch.
pub fn open_reader(path: &Path) -> Result<Connection, DbError> {
    let connection = db::open_foreign_reader(path)?;
    check_version(&connection, path)?;
    Ok(connection)
}

/// As [`open_reader`], for a look that has other files to look at: it hardly waits for a lock.
pub fn open_glance(path: &Path) -> Result<Connection, DbError> {
    let connection = db::open_foreign_glance(path)?;
    connection.busy_timeout(SOURCE_GLANCE).map_err(|error| DbError::sqlite(path, error))?;
    check_version(&connection, path)?;
    Ok(connection)
}

/// Opens a source's file for an operator's verb.
pub fn open_writer(path: &Path) -> Result<Connection, DbError> {
    let connection = db::open_foreign_writer(path)?;
    check_version(&connection, path)?;
    Ok(connection)
}

fn check_version(connection: &Connection, path: &Path) -> Result<(), DbError> {
    let advice = "run `onceward source add NAME FILE` again to bring it up";
    if migrate::is_newest(connection, path, Part::Outbox, advice)? {
        return Ok(());
    }
    let reason = "has no outbox of onceward; install one with `onceward source add NAME FILE`".into();
    Err(DbError::Foreign { path: path.to_owned(), reason })
}

/// Whether a file says that it is this source, and served by this agent.
pub fn is_served_by(connection: &Connection, source_id: &str, agent_id: &str) -> rusqlite::Result<bool> {
    Ok(meta::get(connection, "source_id")?.as_deref() == Some(source_id)
        && meta::get(connection, "served_by")?.as_deref() == Some(agent_id))
}

/// It is not, for people.
pub fn not_ours(path: &Path, name: &str) -> DbError {
    let reason = format!(
        "is not the file that was added as {name}, or another agent has taken it over, or this agent was adopted since; if it shall be served, `onceward source add {name} FILE` again"
    );
    DbError::Foreign { path: path.to_owned(), reason }
}

/// Stands between a relay and an application's file: opens it, knows whether it is still the same one, and
/// tells people once when it is not well.
pub struct Guard {
    name: String,
    path: PathBuf,
    agent_id: AgentId,
    source_id: String,
    writer: Writer,
    alerts: Alerts,
    opt_outs: Arc<OptOuts>,
    opened: Cell<Option<(u64, u64)>>,
    last: RefCell<Last>,
    /// The list does not have what we saw last: it was added again.
    unsaid: Arc<AtomicBool>,
}

struct Last {
    state: Option<State>,
    reason: Option<String>,
    since: Instant,
    told: bool,
}

impl Guard {
    /// Touches nothing yet.
    pub fn new(
        name: String,
        path: PathBuf,
        agent_id: AgentId,
        source_id: String,
        writer: Writer,
        alerts: Alerts,
    ) -> Self {
        let opt_outs = Arc::new(OptOuts::new(path.clone(), agent_id.clone(), source_id.clone()));
        let last = Last { state: None, reason: None, since: Instant::now(), told: false };
        Self {
            name,
            path,
            agent_id,
            source_id,
            writer,
            alerts,
            opt_outs,
            opened: Cell::new(None),
            last: RefCell::new(last),
            unsaid: Arc::default(),
        }
    }

    /// To be set where the list shall be told at the end of the next round, even if nothing has changed.
    pub fn unsaid(&self) -> Arc<AtomicBool> {
        self.unsaid.clone()
    }

    /// The source's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For the workers: who has opted out by this file.
    pub fn opt_outs(&self) -> Arc<OptOuts> {
        self.opt_outs.clone()
    }

    /// Opens the file if it is the one that was added and this agent's.
    pub fn open(&self) -> Result<Connection, DbError> {
        let before = inode(&self.path);
        let connection = open_writer(&self.path)?;
        let is_ours = self.is_ours(&connection).map_err(|source| DbError::sqlite(&self.path, source))?;
        if !is_ours || before.is_none() || before != inode(&self.path) {
            return Err(not_ours(&self.path, &self.name));
        }
        self.opened.set(before);
        Ok(connection)
    }

    /// Whether another file stands under the path, or none, since it was opened (F32).
    pub fn was_replaced(&self) -> bool {
        self.opened.get().is_some() && inode(&self.path) != self.opened.get()
    }

    /// Whether the file still says that it is this source and this agent's.
    pub fn is_ours(&self, connection: &Connection) -> rusqlite::Result<bool> {
        is_served_by(connection, &self.source_id, &self.agent_id.get())
    }

    /// A round has ended well.
    pub fn is_well(&self) {
        self.saw(State::Ok, None);
    }

    /// A round has failed; nothing is taken from the file until one ends well.
    pub fn is_in_trouble(&self, error: &DbError) {
        self.saw(State::of(error), Some(error.to_string()));
    }

    fn saw(&self, state: State, reason: Option<String>) {
        let mut last = self.last.borrow_mut();
        if self.unsaid.swap(false, Ordering::Relaxed) || last.state != Some(state) || last.reason != reason {
            if last.state != Some(state) {
                last.since = Instant::now();
                if state == State::Ok {
                    log::info!("source {}: {} is served", self.name, self.path.display());
                    last.told = false;
                    // Raised by an earlier start, too.
                    self.alerts.clear(Cause::Source, &self.name);
                }
            }
            last.state = Some(state);
            last.reason.clone_from(&reason);
            self.writer.submit(Box::new(Seen {
                name: self.name.clone(),
                state: state.as_str(),
                reason: reason.clone(),
                at_ms: wall_ms(),
            }));
        }
        let waits = state == State::Locked && last.since.elapsed() < SOURCE_LOCKED_ALERT;
        if let Some(reason) = reason
            && !last.told
            && !waits
        {
            last.told = true;
            let text = format!("source {} is {}: {reason}", self.name, state.as_str());
            self.alerts.raise(Cause::Source, &self.name, text);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}
