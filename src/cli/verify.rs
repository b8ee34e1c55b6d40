//! `verify`: the daily ledger. Every accepted message is in exactly one state, inbox and outbox agree, nothing vanished
//! (retention included), both files are sound. Exit 0 when all of it is proven, 1 with the list otherwise.
//!
//! It only reads, through read-only connections, in short read transactions of a bounded number of rows, so that it may
//! run beside live traffic; what looks wrong is looked at again, because messages move meanwhile. The outbox row is
//! read before the inbox row of its message: what is PUBLISHED then must be in the inbox now.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use serde_json::{Value, json};

use super::settings_file::SettingsFile;
use super::views::{self, Views};
use super::{Failure, Outcome, output};
use crate::db::DbError;
use crate::exit;
use crate::ledger::{self, Verdict};
use crate::lifecycle::{InboxState, OutboxState};
use crate::limits::{VERIFY_LOOKS, VERIFY_PAUSE, VERIFY_ROWS};
use crate::message::{Destination, MessageId};
use crate::owner;
use crate::retention::pass;
use crate::store::{inbox, rearm, source};

/// Faults that are kept for the list; more are only counted.
const LISTED_MAX: usize = 1_000;

/// Arguments of `verify`.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Longest time that one integrity check may keep an old state of a file open beside a running agent, seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    lock_time: u64,
    /// Without the integrity check of the files
    #[arg(long)]
    no_integrity: bool,
}

/// Counts by state.
type Counts = BTreeMap<String, i64>;

#[derive(Default)]
struct Report {
    accepted: i64,
    there: Counts,
    let_go: Counts,
    unused_ids: i64,
    quarantined: i64,
    rechecks: i64,
    inbox: Counts,
    inbox_let_go: Counts,
    open: Counts,
    heals: Counts,
    faults: Vec<(String, String)>,
    more_faults: usize,
    sound: Vec<String>,
}

impl Report {
    fn fault(&mut self, what: impl Into<String>, text: impl Into<String>) {
        if self.faults.len() < LISTED_MAX {
            self.faults.push((what.into(), text.into()));
        } else {
            self.more_faults += 1;
        }
    }
}

/// Something to look at again.
enum Suspect {
    /// `file`: its place among the outboxes.
    Outbox {
        file: usize,
        message_id: String,
    },
    Inbox {
        id: i64,
    },
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_without_secrets()?;
    let views = views::open(&settings)?;
    let alive = owner::holder(&views.state).is_some() || std::fs::File::open(views.state.lock()).is_err();
    let mut report = Report::default();
    let begun = Instant::now();
    let bar = bar();
    let outbox_path = views.state.outbox();
    let sources = sources(&views, &mut report)?;
    outcome_of(&mut report, &outbox_path, |report| books(&views, &sources, report, &bar))?;
    if !args.no_integrity {
        let bound = alive.then(|| Duration::from_secs(args.lock_time.max(1)));
        for (path, connection) in
            [(outbox_path, Some(&views.outbox)), (views.state.inbox(), views.inbox.as_ref())]
        {
            if let Some(connection) = connection {
                outcome_of(&mut report, &path, |report| sound(connection, &path, bound, report, &bar))?;
            }
        }
    }
    bar.finish_and_clear();
    let took_ms = begun.elapsed().as_millis();
    let faults = report.faults.len() + report.more_faults;
    if args.json {
        output::print(&format!("{}\n", as_json(&report, views.inbox.is_some(), took_ms)))?;
    } else {
        output::print(&for_people(&report, views.inbox.is_some(), took_ms))?;
    }
    match (faults, &views.inbox) {
        (0, Some(_)) => Ok(exit::OK),
        (0, None) => Err(Failure::new(
            exit::NOT_PERMITTED,
            format!(
                "{} may not be read by this user: only the outbox is proven, not that both agree; run it as the agent's user, e.g. `sudo -u onceward onceward verify`",
                views.state.inbox().display()
            ),
        )),
        _ => Ok(exit::NO),
    }
}

/// Applications' own files; `None` where one cannot be read now, which is said and proves nothing about its messages.
fn sources(views: &Views, report: &mut Report) -> Result<Vec<Option<Connection>>, Failure> {
    let Some(inbox) = &views.inbox else { return Ok(Vec::new()) };
    let listed = source::list(inbox).map_err(|error| DbError::sqlite(&views.state.inbox(), error))?;
    Ok(listed
        .into_iter()
        .map(|listed| match crate::source::open_reader(Path::new(&listed.file)) {
            Ok(opened) => Some(opened),
            Err(error) => {
                report
                    .sound
                    .push(format!("source {} cannot be read, nothing of it is proven: {error}", listed.name));
                None
            }
        })
        .collect())
}

/// A damaged file is an answer, not a failure of the command.
fn outcome_of(
    report: &mut Report,
    path: &Path,
    work: impl FnOnce(&mut Report) -> rusqlite::Result<()>,
) -> Result<(), Failure> {
    match work(report) {
        Ok(()) => Ok(()),
        Err(error)
            if matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ) =>
        {
            report.fault(path.display().to_string(), format!("cannot be read to its end: {error}"));
            Ok(())
        }
        Err(source) => Err(DbError::sqlite(path, source).into()),
    }
}

/// A state of the books in one short read transaction.
struct Books {
    accepted: i64,
    deleted: i64,
    last_id: i64,
    sequence: i64,
}

fn open_books(outbox: &Connection) -> rusqlite::Result<Books> {
    outbox
        .prepare_cached(
            "SELECT (SELECT count FROM outbox_ledger WHERE what = 'ACCEPTED'),
                    (SELECT coalesce(sum(count), 0) FROM outbox_ledger WHERE what NOT IN ('ACCEPTED', 'QUARANTINED')),
                    (SELECT coalesce(max(id), 0) FROM outbox),
                    (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'outbox')",
        )?
        .query_row([], |row| {
            Ok(Books { accepted: row.get(0)?, deleted: row.get(1)?, last_id: row.get(2)?, sequence: row.get(3)? })
        })
}

fn counts(connection: &Connection, sql: &str) -> rusqlite::Result<Counts> {
    connection.prepare(sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

fn books(
    views: &Views,
    sources: &[Option<Connection>],
    report: &mut Report,
    bar: &ProgressBar,
) -> rusqlite::Result<()> {
    let outbox = &views.outbox;
    let mut outboxes = vec![Some(outbox)];
    outboxes.extend(sources.iter().map(Option::as_ref));
    let mut before = open_books(outbox)?;
    let mut suspects = Vec::new();
    bar.set_length(before.last_id.max(0) as u64);
    let inbox = views.inbox.as_ref();
    let mut there = walk_outbox((0, outbox), inbox, before.last_id, report, &mut suspects, bar)?;
    for (file, source) in outboxes.iter().enumerate().skip(1) {
        if let Some(source) = source {
            let last_id =
                source.query_row("SELECT coalesce(max(id), 0) FROM outbox", [], |row| row.get(0))?;
            walk_outbox((file, source), inbox, last_id, report, &mut suspects, bar)?;
        }
    }
    if let Some(inbox) = inbox {
        walk_inbox(&outboxes, inbox, report, &mut suspects)?;
        report.inbox_let_go =
            counts(inbox, "SELECT consumer || ' ' || what, count FROM inbox_ledger ORDER BY 1")?;
    }
    // Rows that retention takes during the walk blur the sum: then count again, until it is exact.
    for look in 0..=VERIFY_LOOKS {
        let after = open_books(outbox)?;
        let sums = ledger::adds_up(before.accepted, there, before.deleted, after.deleted);
        if (sums && before.deleted == after.deleted) || look == VERIFY_LOOKS {
            report.accepted = before.accepted;
            report.unused_ids = before.sequence - before.accepted;
            if !sums {
                report.fault(
                    "outbox",
                    format!(
                        "{} rows were accepted, {there} are there and {} were let go: {} are missing",
                        before.accepted,
                        after.deleted,
                        before.accepted - there - after.deleted
                    ),
                );
            }
            if before.accepted > before.sequence || before.last_id > before.sequence {
                report.fault(
                    "outbox",
                    format!(
                        "the sequence stands at {}, below the {} accepted rows or the last id {}: it was set back",
                        before.sequence, before.accepted, before.last_id
                    ),
                );
            }
            break;
        }
        std::thread::sleep(VERIFY_PAUSE);
        before = open_books(outbox)?;
        there = count_rows(outbox, before.last_id)?;
    }
    report.let_go =
        counts(outbox, "SELECT what, count FROM outbox_ledger WHERE what <> 'ACCEPTED' AND count > 0")?;
    let one = |sql: &str| outbox.query_row(sql, [], |row| row.get::<_, i64>(0));
    report.quarantined = one("SELECT count(*) FROM quarantine")?;
    report.rechecks = one("SELECT count(*) FROM outbox_recheck")?;
    look_again(&outboxes, inbox, suspects, report)
}

/// How many rows there are up to `last_id`, in short reads.
fn count_rows(outbox: &Connection, last_id: i64) -> rusqlite::Result<i64> {
    let (mut after, mut total) = (i64::MIN, 0);
    loop {
        let (count, last): (i64, Option<i64>) = outbox
            .prepare_cached(
                "SELECT count(*), max(id) FROM (SELECT id FROM outbox WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3)",
            )?
            .query_row(params![after, last_id, 20 * VERIFY_ROWS as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let Some(last) = last else { return Ok(total) };
        total += count;
        after = last;
    }
}

/// Each outbox row with the inbox row of its message. Returns how many there were.
fn walk_outbox(
    (file, outbox): (usize, &Connection),
    inbox: Option<&Connection>,
    last_id: i64,
    report: &mut Report,
    suspects: &mut Vec<Suspect>,
    bar: &ProgressBar,
) -> rusqlite::Result<i64> {
    let (mut after, mut total) = (i64::MIN, 0);
    loop {
        let rows: Vec<(i64, String, String, String)> = outbox
            .prepare_cached(
                "SELECT id, message_id, destination, status FROM outbox WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3",
            )?
            .query_map(params![after, last_id, VERIFY_ROWS as i64], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?
            .collect::<rusqlite::Result<_>>()?;
        let Some(last) = rows.last() else { return Ok(total) };
        after = last.0;
        total += rows.len() as i64;
        bar.set_position(after.max(0) as u64);
        // From here on, so that the inbox is at least as new as what was just read.
        let inbox = inbox.map(Connection::unchecked_transaction).transpose()?;
        for (_, message_id, destination, status) in &rows {
            *report.there.entry(status.clone()).or_default() += 1;
            let Some(state) = OutboxState::parse(status) else {
                report.fault(message_id, format!("its state {status:?} is none that there is"));
                continue;
            };
            let Some(inbox) = &inbox else { continue };
            match ledger::pair(
                state,
                inbox::state(inbox, &Destination::new(destination), &MessageId::new(message_id))?,
            ) {
                Verdict::Agree => {}
                Verdict::Open(text) => *report.open.entry(format!("{state}: {text}")).or_default() += 1,
                Verdict::Heals(text) => *report.heals.entry(format!("{state}: {text}")).or_default() += 1,
                Verdict::Fault(_) => suspects.push(Suspect::Outbox { file, message_id: message_id.clone() }),
            }
        }
    }
}

/// Each inbox row must have its outbox row, under the same destination, or have outlived it by retention.
fn walk_inbox(
    outboxes: &[Option<&Connection>],
    inbox: &Connection,
    report: &mut Report,
    suspects: &mut Vec<Suspect>,
) -> rusqlite::Result<()> {
    let last_id: i64 = inbox.query_row("SELECT coalesce(max(id), 0) FROM inbox", [], |row| row.get(0))?;
    let mut after = i64::MIN;
    loop {
        let rows: Vec<InboxRow> = inbox
            .prepare_cached(
                "SELECT id, consumer, message_id, status, claimed_at_ms FROM inbox WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3",
            )?
            .query_map(params![after, last_id, VERIFY_ROWS as i64], inbox_row)?
            .collect::<rusqlite::Result<_>>()?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.id;
        for row in &rows {
            *report.inbox.entry(format!("{} {}", row.consumer, row.status)).or_default() += 1;
            if !matches!(judge(outboxes, inbox, row)?, Verdict::Agree) {
                suspects.push(Suspect::Inbox { id: row.id });
            }
        }
    }
}

struct InboxRow {
    id: i64,
    consumer: String,
    message_id: String,
    status: InboxState,
    claimed_at_ms: i64,
}

fn inbox_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<InboxRow> {
    Ok(InboxRow {
        id: row.get(0)?,
        consumer: row.get(1)?,
        message_id: row.get(2)?,
        status: row.get(3)?,
        claimed_at_ms: row.get(4)?,
    })
}

fn judge(outboxes: &[Option<&Connection>], inbox: &Connection, row: &InboxRow) -> rusqlite::Result<Verdict> {
    let mut destination: Option<String> = None;
    for outbox in outboxes.iter().flatten() {
        destination = outbox
            .prepare_cached("SELECT destination FROM outbox WHERE message_id = ?1")?
            .query_row([&row.message_id], |row| row.get(0))
            .optional()?;
        if destination.is_some() {
            break;
        }
    }
    Ok(match destination {
        // It may be in a file that cannot be read now.
        None if outboxes.iter().any(Option::is_none) => Verdict::Agree,
        Some(destination) if destination == row.consumer => Verdict::Agree,
        Some(_) => Verdict::Fault("the inbox has it under another destination than the outbox"),
        None => {
            let cut_ms = pass::mark_ms(inbox, pass::CUT_MARK)?.unwrap_or(i64::MIN);
            ledger::alone(row.status, row.claimed_at_ms < cut_ms)
        }
    })
}

/// What is still a fault after several looks is one.
fn look_again(
    outboxes: &[Option<&Connection>],
    inbox: Option<&Connection>,
    mut suspects: Vec<Suspect>,
    report: &mut Report,
) -> rusqlite::Result<()> {
    let Some(inbox) = inbox else { return Ok(()) };
    for look in 1..=VERIFY_LOOKS {
        if suspects.is_empty() {
            return Ok(());
        }
        std::thread::sleep(VERIFY_PAUSE);
        let mut still = Vec::new();
        for suspect in suspects {
            if let Some((what, text)) = still_wrong(outboxes, inbox, &suspect)? {
                if look == VERIFY_LOOKS {
                    report.fault(what, text);
                } else {
                    still.push(suspect);
                }
            }
        }
        suspects = still;
    }
    Ok(())
}

fn still_wrong(
    outboxes: &[Option<&Connection>],
    inbox: &Connection,
    suspect: &Suspect,
) -> rusqlite::Result<Option<(String, String)>> {
    match suspect {
        Suspect::Outbox { file, message_id } => {
            let Some(outbox) = outboxes[*file] else { return Ok(None) };
            let row: Option<(String, OutboxState)> = outbox
                .prepare_cached("SELECT destination, status FROM outbox WHERE message_id = ?1")?
                .query_row([message_id], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((destination, state)) = row else { return Ok(None) }; // let go meanwhile
            let fate = inbox::state(inbox, &Destination::new(&destination), &MessageId::new(message_id))?;
            let id = MessageId::new(message_id);
            Ok(match ledger::pair(state, fate) {
                // Proven not sent, and noted to be opened again: it heals.
                Verdict::Fault(_) if fate.is_none() && rearm::is_open(inbox, &id)? => None,
                Verdict::Fault(text) => {
                    let fate = fate.map_or("no row", InboxState::as_str);
                    Some((message_id.clone(), format!("outbox {state}, inbox {fate}: {text}")))
                }
                _ => None,
            })
        }
        Suspect::Inbox { id } => {
            let row = inbox
                .prepare_cached(
                    "SELECT id, consumer, message_id, status, claimed_at_ms FROM inbox WHERE id = ?1",
                )?
                .query_row([id], inbox_row)
                .optional()?;
            let Some(row) = row else { return Ok(None) };
            Ok(match judge(outboxes, inbox, &row)? {
                Verdict::Fault(text) => {
                    Some((row.message_id, format!("inbox {} {}: {text}", row.consumer, row.status)))
                }
                _ => None,
            })
        }
    }
}

/// Structure, indexes and CHECKs of one file, table by table: each a read transaction of its own, ended after `bound`.
fn sound(
    connection: &Connection,
    path: &Path,
    bound: Option<Duration>,
    report: &mut Report,
    bar: &ProgressBar,
) -> rusqlite::Result<()> {
    let begun = Instant::now();
    let mut tables = vec!["sqlite_schema".to_owned()]; // it stands for the list of free pages too
    tables.extend(
        connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name")?
            .query_map([], |row| row.get::<_, String>(0))?
            .collect::<rusqlite::Result<Vec<_>>>()?,
    );
    let mut words = "integrity_check";
    for table in &tables {
        bar.set_message(format!("{}: {table}", path.display()));
        let quoted = table.replace('\'', "''");
        let mut found = bounded(connection, bound, &format!("PRAGMA integrity_check('{quoted}')"))?;
        if found.is_none() {
            // Without the comparison of each index with its table it is several times as fast.
            words = "quick_check for some tables: the whole takes longer than --lock-time";
            found = bounded(connection, bound, &format!("PRAGMA quick_check('{quoted}')"))?;
        }
        match found {
            None => report.fault(
                path.display().to_string(),
                format!("{table} could not be checked within --lock-time; give it more in a quiet hour, or stop the agent"),
            ),
            Some(lines) => {
                for line in lines.iter().filter(|line| *line != "ok") {
                    report.fault(path.display().to_string(), format!("{table}: {line}"));
                }
            }
        }
    }
    report.sound.push(format!("{} ({words}, {} ms)", path.display(), begun.elapsed().as_millis()));
    Ok(())
}

/// Runs a check; `None` if it was ended because it took longer than `bound`.
fn bounded(
    connection: &Connection,
    bound: Option<Duration>,
    pragma: &str,
) -> rusqlite::Result<Option<Vec<String>>> {
    let check = || -> rusqlite::Result<Vec<String>> {
        connection.prepare(pragma)?.query_map([], |row| row.get(0))?.collect()
    };
    let Some(bound) = bound else { return check().map(Some) };
    let handle = connection.get_interrupt_handle();
    let (running, ended) = crossbeam_channel::bounded::<()>(0);
    let watch = crate::thread::spawn("bound", move || {
        if ended.recv_timeout(bound) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            handle.interrupt();
        }
    })
    .map_err(|error| crate::db::other(error.to_string()))?;
    let found = check();
    drop(running);
    let _ = watch.join();
    match found {
        Ok(lines) => Ok(Some(lines)),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {percent}% {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style) // hidden by itself where standard error is no terminal
}

fn as_json(report: &Report, inbox_read: bool, took_ms: u128) -> Value {
    json!({
        "ok": report.faults.is_empty() && inbox_read, "inbox_read": inbox_read, "accepted": report.accepted,
        "there": report.there, "let_go": report.let_go, "unused_ids": report.unused_ids,
        "quarantined": report.quarantined, "rechecks": report.rechecks, "inbox": report.inbox,
        "inbox_let_go": report.inbox_let_go, "open": report.open, "heals": report.heals, "sound": report.sound,
        "faults": report.faults.iter().map(|(what, text)| json!({ "what": what, "text": text })).collect::<Vec<_>>(),
        "more_faults": report.more_faults, "took_ms": took_ms as u64,
    })
}

fn for_people(report: &Report, inbox_read: bool, took_ms: u128) -> String {
    let list = |counts: &Counts| {
        if counts.is_empty() {
            return "none".to_owned();
        }
        counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut out = String::new();
    let mut say = |name: &str, text: String| out.push_str(&format!("{name:<11}{text}\n"));
    say("accepted", format!("{} messages", report.accepted));
    say("there", list(&report.there));
    say("let go", format!("{} (by retention)", list(&report.let_go)));
    if inbox_read {
        say("inbox", list(&report.inbox));
        say("let go", format!("{} (by retention)", list(&report.inbox_let_go)));
    } else {
        say("inbox", "NOT READ: this user may not".into());
    }
    if report.quarantined > 0 {
        say("quarantine", format!("{} rows: same key, other content", report.quarantined));
    }
    if report.rechecks > 0 {
        say(
            "compare",
            format!("{} repeats of wiped messages wait for the agent to compare them", report.rechecks),
        );
    }
    for (text, count) in &report.open {
        say("open", format!("{count} {text}"));
    }
    for (text, count) in &report.heals {
        say("heals", format!("{count} {text}"));
    }
    for file in &report.sound {
        say("checked", file.clone());
    }
    for (what, text) in &report.faults {
        say("FAULT", format!("{what} {text}"));
    }
    if report.more_faults > 0 {
        say("FAULT", format!("and {} more", report.more_faults));
    }
    let faults = report.faults.len() + report.more_faults;
    let verdict = match (faults, inbox_read) {
        (0, true) => "every message is in one state, both files agree, nothing vanished".to_owned(),
        (0, false) => "the outbox adds up; that both files agree is NOT proven".to_owned(),
        _ => format!("{faults} FAULTS"),
    };
    say("verdict", format!("{verdict} ({took_ms} ms)"));
    out
}
