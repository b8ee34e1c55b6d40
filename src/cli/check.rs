//! `check`: one verdict a line on settings, databases, a real commit, disk, clock, and each destination's login or
//! connection. Exit 0 if all is well, 1 if something is not (with `--strict`: also for a warning), 78 if the settings are
//! wrong.

use rusqlite::Connection;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output};
use crate::clock::{self, Doubt, wall_ms};
use crate::config::Settings;
use crate::db::{self, Durability, Part, holder};

use crate::exit;
use crate::outboxes::Outboxes;
use crate::owner::{self, StateDir};
use crate::store::{incarnation, meta, rearm};
use crate::vendor;

/// Below this the disk is called nearly full, bytes.
const DISK_FREE_MIN: u64 = 64 << 20;

/// Arguments of `check`.
#[derive(clap::Args)]
pub struct Args {
    /// Do not contact the destinations
    #[arg(long)]
    offline: bool,
    /// Check the settings file alone
    #[arg(long)]
    settings_only: bool,
    /// Warnings count too: for monitoring
    #[arg(long)]
    strict: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// One line.
#[derive(serde::Serialize)]
struct Verdict {
    verdict: &'static str,
    what: String,
    text: String,
}

#[derive(Default)]
struct Verdicts {
    all: Vec<Verdict>,
}

impl Verdicts {
    fn add(&mut self, verdict: &'static str, what: &str, text: String) {
        self.all.push(Verdict { verdict, what: what.to_owned(), text });
    }
    fn say(&mut self, what: &str, verdict: Result<String, String>) {
        match verdict {
            Ok(text) => self.add("ok", what, text),
            Err(text) => self.add("ERROR", what, text),
        }
    }
    fn warn(&mut self, what: &str, text: &str) {
        self.add("warn", what, text.to_owned());
    }
    fn count(&self, verdict: &str) -> usize {
        self.all.iter().filter(|line| line.verdict == verdict).count()
    }
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load()?;
    let mut verdicts = Verdicts::default();
    verdicts.say(
        "settings",
        Ok(format!("{}: {} destinations", file.path.display(), settings.destinations.len())),
    );
    for destination in &settings.destinations {
        if let Err(reason) = vendor::build(destination) {
            return Err(Failure::new(
                exit::SETTINGS,
                format!("{}: [[destination]] {}: {reason}", file.path.display(), destination.name),
            ));
        }
    }
    if !args.settings_only {
        folder(&mut verdicts, &settings);
        if !args.offline {
            for destination in &settings.destinations {
                let probe = vendor::build(destination).and_then(|vendor| vendor.probe());
                verdicts.say(&format!("destination {}", destination.name), probe);
            }
        }
    }
    let fine = verdicts.count("ERROR") == 0 && (!args.strict || verdicts.count("warn") == 0);
    if args.json {
        let object = serde_json::json!({ "fine": fine, "verdicts": verdicts.all });
        output::print(&(output::json(&object)? + "\n"))?;
    } else {
        let line = |line: &Verdict| {
            format!("{:<5} {:<22} {}\n", line.verdict, output::plain(&line.what), output::plain(&line.text))
        };
        output::print(&verdicts.all.iter().map(line).collect::<String>())?;
    }
    Ok(if fine { exit::OK } else { exit::NO })
}

fn folder(verdicts: &mut Verdicts, settings: &Settings) {
    let state = StateDir::new(&settings.agent.state_dir);
    match owner::holder(&state) {
        Some(holder) => {
            let holder = output::holder(&holder, &settings.agent.timezone);
            verdicts.say("agent", Ok(format!("running: {holder}")));
        }
        None => verdicts.warn("agent", "not running; messages are kept and wait"),
    }
    let open = |path: std::path::PathBuf, part, durability| {
        db::open_writer(&path, part, durability).map_err(|error| Failure::from(error).text).and_then(
            |connection| {
                let journal: String = connection
                    .query_row("PRAGMA journal_mode", [], |row| row.get(0))
                    .map_err(|error| error.to_string())?;
                Ok((
                    connection,
                    format!("{} journal {journal}, SQLite {}", path.display(), rusqlite::version()),
                ))
            },
        )
    };
    let outbox = open(state.outbox(), Part::Outbox, Durability::Full);
    verdicts.say("outbox", outbox.as_ref().map(|(_, text)| text.clone()).map_err(Clone::clone));
    if let Ok((connection, _)) = &outbox {
        // A real change, rolled back after the log was written would prove less: so a mark is really committed.
        verdicts.say("outbox commit", commit(connection, &state.outbox()));
    }
    let inbox = open(state.inbox(), Part::Inbox, Durability::Full);
    verdicts.say("inbox", inbox.as_ref().map(|(_, text)| text.clone()).map_err(Clone::clone));
    if let Ok((connection, _)) = &inbox {
        sources(verdicts, connection, owner::holder(&state).is_some());
        unknown(verdicts, connection);
    }
    if let Ok((own, _)) = &outbox {
        let books = Book::all(own, &state, inbox.as_ref().ok().map(|(connection, _)| connection));
        backlog(verdicts, &books, settings);
        waiting_for_people(verdicts, &books);
    }
    if let Some(fault) = db::access::shared_folder_fault(&state.outbox_dir()) {
        verdicts.say("outbox folder", Err(fault));
    }
    if let (Ok((outbox, _)), Ok((inbox, _))) = (&outbox, &inbox) {
        identity(verdicts, &state, outbox, inbox);
    }
    locks(verdicts, &state, &state.outbox());
    locks(verdicts, &state, &state.inbox());
    if rusqlite::version_number() < db::SQLITE_VERSION_MIN {
        verdicts.say(
            "SQLite",
            Err(format!("{} is older than 3.51.3, which mended the WAL reset", rusqlite::version())),
        );
    }
    match rustix::fs::statvfs(&state.root) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let text = format!("{} MiB free in {}", free >> 20, state.root.display());
            verdicts.say(
                "disk",
                if free >= DISK_FREE_MIN { Ok(text) } else { Err(format!("{text}: nearly full, make room")) },
            );
        }
        Err(error) => verdicts.say("disk", Err(format!("{}: {error}", state.root.display()))),
    }
    let alive = owner::holder(&state).is_some();
    let doubt = match (&outbox, &inbox) {
        (Ok((outbox, _)), Ok((inbox, _))) => super::clock::doubt(outbox, inbox, alive).unwrap_or(None),
        _ => clock::now_beside(None).doubt.map(|doubt| doubt.as_str().to_owned()),
    };
    let shown = output::local_time(wall_ms(), &settings.agent.timezone);
    match doubt {
        None => verdicts.say("clock", Ok(shown)),
        // Without an agent nothing is held yet, and after days of rest it looks like this, too.
        Some(doubt) if !alive && doubt == Doubt::Ahead.as_str() => {
            verdicts.warn("clock", &format!("{shown}: it is far ahead of what was recorded; the next start watches it for a while first"));
        }
        Some(doubt) => verdicts.say(
            "clock",
            Err(format!(
                "{shown}: it {doubt}: advertising, deadlines and later due times are held; set it, or say `onceward clock --right`"
            )),
        ),
    }
}

/// Each source as the running agent sees it, or as this user does.
fn sources(verdicts: &mut Verdicts, inbox: &Connection, agent_is_up: bool) {
    let seen = match super::source::seen(inbox, agent_is_up) {
        Ok(seen) => seen,
        Err(error) => return verdicts.say("sources", Err(error.to_string())),
    };
    for source in seen {
        let text = |key: &str| source[key].as_str().unwrap_or("").to_owned();
        let verdict = match text("state").as_str() {
            "OK" => Ok(format!("{}: {} unfinished", text("file"), source["waiting"])),
            "NEW" => Ok(format!("{}: not yet looked at", text("file"))),
            state => Err(format!("{state}: {}", text("reason"))),
        };
        verdicts.say(&format!("source {}", text("name")), verdict);
    }
}

fn commit(connection: &Connection, path: &std::path::Path) -> Result<String, String> {
    let begun = std::time::Instant::now();
    let done = connection
        .execute_batch("BEGIN IMMEDIATE")
        .and_then(|()| meta::put(connection, "checked_at_ms", &wall_ms().to_string()))
        .and_then(|()| connection.execute_batch("COMMIT"));
    match done {
        Ok(()) => Ok(format!("one synced commit took {:.1} ms", begun.elapsed().as_secs_f64() * 1000.0)),
        Err(error) if db::is_busy(&error) => {
            Err(format!("{error}: another process holds the write lock{}", holder::in_words(path)))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Who holds a database, and which lock of it.
fn locks(verdicts: &mut Verdicts, state: &StateDir, path: &std::path::Path) {
    // The agent itself reads and writes: that is its work.
    let agent = owner::pid(state);
    for one in holder::of(path).iter().filter(|one| Some(one.pid) != agent) {
        let text = format!("{}: {}", path.display(), holder::name(one));
        if one.blocks_writers {
            verdicts.say("lock", Err(format!("{text}: nobody else can write; end it or its transaction")));
        } else {
            verdicts.warn("lock", &format!("{text}: the log cannot be cut back while it lasts"));
        }
    }
}

/// Whether these are the files that the agent wrote last, and whether it is held.
fn identity(verdicts: &mut Verdicts, state: &StateDir, outbox: &Connection, inbox: &Connection) {
    let held = super::views::held(state, outbox, Some(inbox));
    match held {
        Some(reason) => {
            verdicts.say(
                "identity",
                Err(format!("held, nothing is sent: {reason}; see `onceward adopt --help`")),
            );
        }
        None => verdicts.say("identity", Ok("these are the files that the agent wrote last".into())),
    }
    if incarnation::machine(inbox).is_ok_and(|(_, outside)| !outside) {
        let path = state.witness_outside();
        verdicts.warn(
            "witness",
            &format!(
                "there is none at {}: a whole older state folder put back in place is not seen",
                path.display()
            ),
        );
    }
}

/// One outbox whose rows are looked at.
struct Book<'c> {
    /// `None` = the agent's own.
    source: Option<String>,
    outbox: Reader<'c>,
}

/// The agent's own is open already.
enum Reader<'c> {
    Own(&'c Connection),
    Source(Connection),
}

impl<'c> Book<'c> {
    /// outbox.db and every source that can be read; the others have a line that says why not.
    fn all(own: &'c Connection, state: &StateDir, inbox: Option<&Connection>) -> Vec<Self> {
        let mut all = vec![Self { source: None, outbox: Reader::Own(own) }];
        let listed = inbox.and_then(|inbox| Outboxes::read(&state.outbox(), Some(inbox)).ok());
        for file in listed.iter().flat_map(Outboxes::files) {
            if let (Some(name), Some(reader)) = (file.source(), file.glance()) {
                all.push(Self { source: Some(name.to_owned()), outbox: Reader::Source(reader) });
            }
        }
        all
    }

    fn number(&self, sql: &str) -> rusqlite::Result<Option<i64>> {
        let connection = match &self.outbox {
            Reader::Own(connection) => connection,
            Reader::Source(connection) => connection,
        };
        connection.query_row(sql, [], |row| row.get(0))
    }

    /// ` in the source NAME`; nothing for the agent's own.
    fn place(&self) -> String {
        self.source.as_ref().map_or(String::new(), |name| format!(" in the source {name}"))
    }

    /// The command that looks into this outbox.
    fn command(&self) -> String {
        self.source.as_ref().map_or("onceward".into(), |name| format!("onceward --source {name}"))
    }
}

fn backlog(verdicts: &mut Verdicts, books: &[Book<'_>], settings: &Settings) {
    let now_ms = wall_ms();
    let mut fine = true;
    for book in books {
        let oldest =
            book.number("SELECT min(not_before_ms) FROM outbox WHERE status = 'PENDING' AND blocked = 0");
        let text = match oldest {
            Ok(Some(due)) if due < now_ms.saturating_sub(crate::clock::ms(settings.alert.backlog_age)) => {
                format!("the oldest due message{} waits for {}", book.place(), output::age(now_ms - due))
            }
            Ok(_) => continue,
            Err(error) => format!("{error}{}", book.place()),
        };
        verdicts.say("backlog", Err(text));
        fine = false;
    }
    if fine {
        verdicts.say("backlog", Ok("nothing waits too long".into()));
    }
}

/// What only a person can move on.
fn waiting_for_people(verdicts: &mut Verdicts, books: &[Book<'_>]) {
    for (what, sql, how) in [
        (
            "parked",
            "SELECT count(*) FROM outbox WHERE status = 'PARKED' AND closed_at_ms IS NULL",
            ("", "queue --state PARKED"),
        ),
        (
            "quarantine",
            "SELECT count(*) FROM quarantine",
            (
                "same key, other content or still to be compared, not sent: ",
                "sql 'SELECT * FROM quarantined'",
            ),
        ),
    ] {
        let mut none = true;
        for book in books {
            match book.number(sql).map(Option::unwrap_or_default) {
                Ok(0) => continue,
                Ok(found) => {
                    let (why, verb) = how;
                    // `sql` is of the agent's own files.
                    let look = match book.source {
                        Some(_) if what == "quarantine" => "the view v_quarantine in its file".to_owned(),
                        _ => format!("{} {verb}", book.command()),
                    };
                    verdicts.warn(what, &format!("{found}{} ({why}{look})", book.place()));
                }
                Err(error) => verdicts.say(what, Err(format!("{error}{}", book.place()))),
            }
            none = false;
        }
        if none {
            verdicts.say(what, Ok("none".into()));
        }
    }
}

/// Calls whose outcome nobody knows.
fn unknown(verdicts: &mut Verdicts, inbox: &Connection) {
    match inbox.query_row("SELECT count(*) FROM inbox WHERE status = 'ERROR'", [], |row| row.get::<_, i64>(0))
    {
        Ok(0) => verdicts.say("unknown", Ok("none".into())),
        Ok(found) => verdicts
            .warn("unknown", &format!("{found} may or may not have arrived (onceward queue --state ERROR)")),
        Err(error) => verdicts.say("unknown", Err(error.to_string())),
    }
    match rearm::open_by_destination(inbox).map(|notes| notes.iter().map(|(_, count)| count).sum::<i64>()) {
        Ok(0) => {}
        Ok(found) => verdicts.warn(
            "not sent",
            &format!(
                "{found} were proven not sent and shall go again, but their outbox row is not open (onceward verify names them)"
            ),
        ),
        Err(error) => verdicts.say("not sent", Err(error.to_string())),
    }
}
