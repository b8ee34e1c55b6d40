//! `purge`: retention now, agent up (it is asked, and waited for) or down (done here, under the folder's lock);
//! `--dry-run` counts; `--compact` gives free space back to the file system in a maintenance window.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rusqlite::Connection;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output, views};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db::{self, DbError, Durability, Part};
use crate::exit;
use crate::limits::PURGE_SPAN_ASKED;
use crate::owner::{self, OwnerError, StateDir};
use crate::policy::Policy;
use crate::retention::pass::{self, CountingHands, Counts, DirectHands, Files, Pass, Unfinished};
use crate::store::meta;

/// What compacting needs beside the live pages: a copy in a temporary file and the same again in the log, bytes.
const COMPACT_MARGIN: u64 = 16 << 20;

/// Arguments of `purge`.
#[derive(clap::Args)]
pub struct Args {
    /// Only count what would go
    #[arg(long)]
    dry_run: bool,
    /// After it, give free space back to the file system; needs the agent stopped and room for two copies. Producers wait meanwhile
    #[arg(long)]
    compact: bool,
    /// How long to wait for a running agent, seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_without_secrets()?;
    let state = StateDir::new(&settings.agent.state_dir);
    if args.dry_run {
        return dry_run(&settings, args.compact);
    }
    match owner::take(&state, &file.path) {
        Ok(_lock) => {
            let (mut outbox, mut inbox) = open_both(&state)?;
            purge_here(&settings, &state, &mut outbox, &mut inbox)?;
            if args.compact {
                compact(&state, &[(&state.outbox(), &outbox), (&state.inbox(), &inbox)])
            } else {
                Ok(exit::OK)
            }
        }
        Err(OwnerError::Held { holder, .. }) if args.compact => Err(Failure::new(
            exit::TRY_AGAIN,
            format!(
                "--compact needs the agent stopped; now it runs: {holder}. Without it, freed pages are used again, so the files do not grow"
            ),
        )),
        Err(OwnerError::Held { .. }) => ask(&state, Duration::from_secs(args.timeout)),
        Err(OwnerError::Io { path, source }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            // A member of the group sees neither lock nor inbox, but may ask a running agent.
            if is_alive(&state) {
                return ask(&state, Duration::from_secs(args.timeout));
            }
            Err(Failure::new(
                exit::NOT_PERMITTED,
                format!(
                    "{}: {source}; run it as the agent's user, e.g. `sudo -u onceward onceward purge`",
                    path.display()
                ),
            ))
        }
        Err(error) => Err(Failure::new(exit::IO, error.to_string())),
    }
}

/// Whether an agent runs, as far as this user can see. Unseen counts as running: asking it is harmless.
fn is_alive(state: &StateDir) -> bool {
    std::fs::File::open(state.lock()).is_err() || owner::holder(state).is_some()
}

fn open_both(state: &StateDir) -> Result<(Connection, Connection), Failure> {
    let open = |path: PathBuf, part| db::open_writer(&path, part, Durability::Full);
    let (outbox, inbox) = (open(state.outbox(), Part::Outbox)?, open(state.inbox(), Part::Inbox)?);
    for connection in [&outbox, &inbox] {
        // No checkpointer runs now: the log is copied back on the way.
        let _: i64 = connection
            .query_row("PRAGMA wal_autocheckpoint = 1000", [], |row| row.get(0))
            .map_err(|error| Failure::new(exit::IO, error.to_string()))?;
    }
    Ok((outbox, inbox))
}

fn unfinished(error: Unfinished) -> Failure {
    Failure::new(
        exit::TRY_AGAIN,
        format!("retention did not come to its end: {error}; what was done stays done, run it again"),
    )
}

/// The agent is down and this process holds the lock.
fn purge_here(
    settings: &Settings,
    state: &StateDir,
    outbox: &mut Connection,
    inbox: &mut Connection,
) -> Result<(), Failure> {
    let readers =
        (db::open_reader(&state.outbox(), Part::Outbox)?, db::open_reader(&state.inbox(), Part::Inbox)?);
    let asked_ms = pass::asked(&readers.0).map_err(|error| unfinished(error.into()))?;
    let policy = Policy::new(settings);
    let bar = spinner();
    let pass = Pass {
        files: Files {
            outboxes: &[Some(&readers.0)],
            also: &sources(Some(&readers.1))?,
            inbox: Some(&readers.1),
        },
        settings: &settings.retention,
        policy: &policy,
        span: PURGE_SPAN_ASKED,
    };
    let mut hands = DirectHands { outbox, inbox };
    let counts = pass
        .run(&mut hands, &mut |counts| {
            bar.set_message(format!("{} wiped, {} keys gone", counts.wiped, counts.keys))
        })
        .and_then(|counts| pass::finish(&mut hands, &counts, asked_ms).map(|()| counts))
        .map_err(unfinished)?;
    bar.finish_and_clear();
    output::print(&text(&counts, ""))?;
    Ok(())
}

/// The agent is up: it does it, since it alone writes the files.
fn ask(state: &StateDir, timeout: Duration) -> Outcome {
    let path = state.outbox();
    let mut outbox = db::open_writer(&path, Part::Outbox, Durability::Full)?;
    let sqlite = |source| Failure::from(DbError::sqlite(&path, source));
    let served = pass::mark_ms(&outbox, pass::SERVED_MARK).map_err(sqlite)?.unwrap_or(0);
    let asked_ms = wall_ms().max(served + 1);
    db::write(&mut outbox, |tx| meta::put(tx, pass::ASKED_MARK, &asked_ms.to_string())).map_err(sqlite)?;
    let bar = spinner();
    bar.set_message("the agent is at it, between its other work");
    let end = Instant::now() + timeout;
    loop {
        if pass::mark_ms(&outbox, pass::SERVED_MARK).map_err(sqlite)?.is_some_and(|served| served >= asked_ms)
        {
            bar.finish_and_clear();
            let result = meta::get(&outbox, pass::RESULT_MARK).map_err(sqlite)?.unwrap_or_default();
            let counts: Counts = serde_json::from_str(&result)
                .map_err(|error| Failure::new(exit::SOFTWARE, format!("{}: {error}", pass::RESULT_MARK)))?;
            return output::print(&text(&counts, ""));
        }
        if Instant::now() >= end {
            return Err(Failure::new(
                exit::TRY_AGAIN,
                format!(
                    "the agent has not come to the end of it within {} s; it goes on, `onceward status` shows when it is done (is it running?)",
                    timeout.as_secs()
                ),
            ));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Applications' own files: their relays wipe them while the agent is up; here they only keep what they still need.
fn sources(inbox: Option<&Connection>) -> Result<Vec<Option<Connection>>, Failure> {
    let Some(inbox) = inbox else { return Ok(Vec::new()) };
    let listed = crate::store::source::list(inbox).map_err(|error| unfinished(error.into()))?;
    Ok(listed
        .iter()
        .map(|source| crate::source::open_reader(std::path::Path::new(&source.file)).ok())
        .collect())
}

fn dry_run(settings: &Settings, compact: bool) -> Outcome {
    let views = views::open(settings)?;
    let policy = Policy::new(settings);
    let pass = Pass {
        files: Files {
            outboxes: &[Some(&views.outbox)],
            also: &sources(views.inbox.as_ref())?,
            inbox: views.inbox.as_ref(),
        },
        settings: &settings.retention,
        policy: &policy,
        span: PURGE_SPAN_ASKED,
    };
    let mut hands = CountingHands { outbox: &views.outbox, asked_quarantine: false };
    let counts = pass.run(&mut hands, &mut |_| {}).map_err(unfinished)?;
    let mut out = text(&counts, " (dry run: nothing was changed)");
    if views.inbox.is_none() {
        out.push_str("the inbox may not be read by this user: the figures are upper bounds\n");
    }
    if compact {
        for (path, connection) in
            [(views.state.outbox(), Some(&views.outbox)), (views.state.inbox(), views.inbox.as_ref())]
        {
            if let Some(connection) = connection {
                let size = Size::of(connection).map_err(|source| DbError::sqlite(&path, source))?;
                out.push_str(&size.text(&path));
            }
        }
    }
    output::print(&out)
}

fn text(counts: &Counts, note: &str) -> String {
    let mut rows = Vec::new();
    let mut say = |what: &str, count: usize| rows.push(vec![what.to_owned(), count.to_string()]);
    say("number and text wiped", counts.wiped);
    say("keys gone", counts.keys);
    say("kept, since not settled", counts.unsettled);
    say("quarantined rows wiped or gone", counts.quarantine);
    say("inbox rows gone", counts.inbox);
    say("lines of the call log gone", counts.attempts);
    say("days and alerts folded", counts.figures);
    let table = output::table(&rows);
    if note.is_empty() { table } else { format!("{table}{}\n", note.trim_start()) }
}

fn spinner() -> ProgressBar {
    // Hidden by itself where standard error is no terminal.
    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {elapsed} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A database file's pages.
#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    free_bytes: u64,
}

impl Size {
    fn of(connection: &Connection) -> rusqlite::Result<Self> {
        let pragma = |name: &str| -> rusqlite::Result<u64> {
            connection
                .query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0))
                .map(|n| n.max(0) as u64)
        };
        let page = pragma("page_size")?;
        Ok(Self { bytes: pragma("page_count")? * page, free_bytes: pragma("freelist_count")? * page })
    }
    /// The live pages once in a temporary file, once in the log.
    fn needs(self) -> u64 {
        (self.bytes - self.free_bytes) * 2 + COMPACT_MARGIN
    }
    fn text(self, path: &Path) -> String {
        format!(
            "{}: {} KiB, of which {} KiB free; compacting needs {} KiB of room\n",
            path.display(),
            self.bytes >> 10,
            self.free_bytes >> 10,
            self.needs() >> 10
        )
    }
}

/// In place, by SQLite: another file in its stead would leave producers writing into the old one.
fn compact(state: &StateDir, files: &[(&PathBuf, &Connection)]) -> Outcome {
    let free = rustix::fs::statvfs(&state.root)
        .map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))
        .map_err(|error| Failure::new(exit::IO, format!("{}: {error}", state.root.display())))?;
    let sqlite = |path: &Path, source| Failure::from(DbError::sqlite(path, source));
    for (path, connection) in files {
        let size = Size::of(connection).map_err(|source| sqlite(path, source))?;
        if size.needs() > free {
            return Err(Failure::new(
                exit::TRY_AGAIN,
                format!(
                    "{}there are {} KiB free: make room first; nothing was compacted",
                    size.text(path),
                    free >> 10
                ),
            ));
        }
    }
    let mut out = String::new();
    for (path, connection) in files {
        let before = Size::of(connection).map_err(|source| sqlite(path, source))?;
        let begun = Instant::now();
        let bar = spinner();
        bar.set_message(format!("compacting {}", path.display()));
        let done = vacuum(connection, &state.inbox_dir());
        bar.finish_and_clear();
        done.map_err(|source| sqlite(path, source))?;
        let after = Size::of(connection).map_err(|source| sqlite(path, source))?;
        out.push_str(&format!(
            "{}: {} KiB before, {} KiB now, {} ms\n",
            path.display(),
            before.bytes >> 10,
            after.bytes >> 10,
            begun.elapsed().as_millis()
        ));
    }
    output::print(&out)
}

/// The temporary copy goes beside the inbox: never to a shared /tmp (it holds numbers and texts), and onto the file
/// system whose room was checked.
fn vacuum(connection: &Connection, dir: &Path) -> rusqlite::Result<()> {
    let dir = dir.to_string_lossy().replace('\'', "''");
    connection.execute_batch(&format!("PRAGMA temp_store = FILE; PRAGMA temp_store_directory = '{dir}';"))?;
    connection.execute_batch("VACUUM")?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
