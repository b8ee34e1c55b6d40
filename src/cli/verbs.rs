//! `hold`, `release`, `cancel`, `try-now`: each one conditional transition for each message, with its audit row; says
//! which took and which did not, and why.
//!
//! Works in short transactions whatever the number of messages. Under the write lock it looks into the inbox (where this
//! user may) before it says that a message was not sent: a row that waits again after a lost mark may have gone out.

use std::collections::BTreeMap;
use std::io::BufRead;

use rusqlite::Connection;

use super::filter::{self, Conditions, Filter, States, Word};
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output, views};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db;
use crate::exit;
use crate::hand::{self, command, word};
use crate::lifecycle::OutboxState;
use crate::limits::RELAY_PAUSE;
use crate::outboxes::{File, NoFile, Outboxes};
use crate::owner::StateDir;
use crate::store::outbox;
use crate::store::outbox::verbs::{By, Found, Moved};
use crate::who;

pub use crate::store::outbox::verbs::Verb;

/// Messages in one transaction: bounds how long producers and the relay find the lock taken.
const BATCH: usize = 200;
/// Row ids that one look for `ALL` goes over: bounds its read transaction, whatever the history.
const STRIDE: i64 = 20_000;
/// Up to so many messages in one file it is told what keeps each that is due: every look counts what waits.
const TOLD_MORE_MAX: usize = 20;
/// Longest note, characters.
const NOTE_CHARS_MAX: usize = 500;

/// Arguments of the verbs.
#[derive(clap::Args)]
pub struct Args {
    /// Message ids or keys; `-` reads them from standard input, one a line (or the lines of `queue --json`); ALL in
    /// capitals means all that the filters leave
    #[arg(value_name = "ID-or-KEY", required = true)]
    ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Why; kept in the row and in the audit
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    note: String,
    /// Only say what would happen
    #[arg(long)]
    dry_run: bool,
}

/// Runs the verb.
pub fn run(file: &SettingsFile, verb: Verb, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    if args.note.chars().count() > NOTE_CHARS_MAX {
        return Err(Failure::new(
            exit::USAGE,
            format!("--note: at most {NOTE_CHARS_MAX} characters were expected"),
        ));
    }
    let all = args.ids.iter().any(|id| id == "ALL");
    if all && args.ids.len() > 1 {
        return Err(Failure::new(exit::USAGE, "ALL stands alone; give ids, or ALL with filters"));
    }
    if !all && args.filter.is_given() {
        return Err(Failure::new(
            exit::USAGE,
            "filters go with ALL: give ids, or ALL in capitals with filters",
        ));
    }
    let inbox = views::inbox(&StateDir::new(&settings.agent.state_dir))?;
    // A member of the group cannot look into the inbox; the running agent can.
    let ids = if all { Vec::new() } else { given(&args.ids)? };
    if inbox.is_none() && !all {
        let asked = Asked { verb, note: &args.note, dry_run: args.dry_run, source: file.source.as_deref() };
        if let Some(counts) = through_agent(&settings, &asked, &ids)? {
            return counts.end(verb, args.dry_run, false);
        }
    }
    let outboxes = super::source::outboxes(&settings, inbox.as_ref())?;
    args.filter.known(&settings, &outboxes, inbox.as_ref())?;
    // ALL is all of one file: what a person may have meant, too, is said.
    let elsewhere = if all { super::source::elsewhere(file, &settings, inbox.as_ref())? } else { None };
    let named = super::source::named(file, &settings, inbox.as_ref())?;
    let mut work = Work {
        verb,
        outbox: named.writer()?,
        named,
        outboxes,
        inbox,
        who: who::this_process(),
        note: args.note,
        dry_run: args.dry_run,
        settings: &settings,
        counts: Counts::default(),
    };
    if all {
        work.all(&args.filter)?;
    } else {
        for batch in ids.chunks(BATCH) {
            // Messages of outbox.db (or of the source that is named) in one transaction; one that only a source has, there.
            let (here, elsewhere) = match file.source {
                Some(_) => (batch.to_vec(), Vec::new()),
                None => work.by_file(batch)?,
            };
            for (home, ids) in std::iter::once((None, here)).chain(elsewhere) {
                work.together(home, &ids)?;
            }
        }
    }
    let Work { counts, .. } = work;
    if let Some(elsewhere) = elsewhere {
        super::output::complain!("left as it is: {elsewhere}");
    }
    counts.end(verb, args.dry_run, all)
}

/// The ids and keys of the command line and of standard input.
pub(super) fn given(ids: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for id in ids {
        if id != "-" {
            all.push(id.clone());
            continue;
        }
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::new(exit::IO, format!("standard input: {error}")))?;
            all.extend(from_line(&line));
        }
    }
    Ok(all)
}

/// An id or key: a line's `message_id` where it is JSON, else the line as it is (keys may hold spaces).
fn from_line(line: &str) -> Option<String> {
    let line = line.trim();
    let json = line.starts_with('{').then(|| serde_json::from_str::<serde_json::Value>(line).ok()).flatten();
    let id = json.as_ref().and_then(|json| json["message_id"].as_str()).unwrap_or(line);
    (!id.is_empty()).then(|| id.to_owned())
}

#[derive(Default)]
struct Counts {
    moved: usize,
    already: usize,
    no: usize,
    missing: usize,
    /// Moved ones by state they were taken from and destination.
    by: BTreeMap<(String, String), usize>,
    /// Those that were not moved, by why.
    why: BTreeMap<String, usize>,
}

/// What became of one.
enum Said {
    Moved(Moved),
    /// It went to the vendor before; this is the inbox's word for it.
    Gone(String),
    /// Its row is PUBLISHED; what became of it there, and what fits.
    Published(String),
    /// It may have gone before, and the inbox could not be asked.
    CannotTell,
}

struct Work<'s> {
    verb: Verb,
    /// The file that `--source` names, or outbox.db; open as `outbox`.
    named: File,
    outbox: Connection,
    outboxes: Outboxes,
    inbox: Option<Connection>,
    who: String,
    note: String,
    dry_run: bool,
    settings: &'s Settings,
    counts: Counts,
}

/// Messages of one file; `None` = the one that is open.
type Together = (Option<File>, Vec<String>);

impl Work<'_> {
    /// Which of the ids and keys the open outbox has, or nobody; and by source those that one of these has. Where that cannot be
    /// told, a line says so, and the others go on.
    fn by_file(&mut self, ids: &[String]) -> Result<(Vec<String>, Vec<Together>), Failure> {
        let (mut here, mut elsewhere) = (Vec::new(), Vec::<Together>::new());
        for id in ids {
            let found = outbox::find(&self.outbox, id).map_err(Failure::io)?;
            if found.is_some_and(|(message_id, _)| message_id.as_str() == id) {
                here.push(id.clone());
                continue;
            }
            let home = match self.outboxes.choose(None, id) {
                Ok(home) => home,
                Err(NoFile::Own(error)) => return Err(error.into()),
                Err(why) => {
                    self.counts.no += 1;
                    let line = output::plain(&format!("{id} not {}: {why}", word(self.verb)));
                    output::print(&(line + "\n"))?;
                    continue;
                }
            };
            match elsewhere.iter_mut().find(|(file, _)| file.as_ref().map(File::path) == Some(home.path())) {
                _ if home.source().is_none() => here.push(id.clone()),
                Some((_, ids)) => ids.push(id.clone()),
                None => elsewhere.push((Some(home.clone()), vec![id.clone()])),
            }
        }
        Ok((here, elsewhere))
    }

    /// One transaction in one file, and a line for each message.
    fn together(&mut self, home: Option<File>, ids: &[String]) -> Result<(), Failure> {
        if ids.is_empty() {
            return Ok(());
        }
        let file = home.as_ref().unwrap_or(&self.named).clone();
        let said = match home {
            None => self.batch(ids)?,
            Some(home) => {
                let own = std::mem::replace(&mut self.outbox, home.writer()?);
                let said = self.batch(ids);
                self.outbox = own;
                said?
            }
        };
        let views = self.looks(&file, ids.len());
        let lines: Vec<String> = ids
            .iter()
            .zip(said)
            .map(|(id, said)| {
                output::plain(&(self.line(id, &said) + &self.and_yet(views.as_ref(), &said))) + "\n"
            })
            .collect();
        output::print(&lines.concat())?;
        Ok(())
    }

    /// Readers, where it is to be told what keeps a message that is due.
    fn looks(&self, file: &File, count: usize) -> Option<views::Views> {
        if self.verb != Verb::TryNow || count > TOLD_MORE_MAX {
            return None;
        }
        let mut views = views::open(self.settings).ok()?;
        views.look_into(file).ok()?;
        Some(views)
    }

    /// What it waits for although it is due.
    fn and_yet(&self, views: Option<&views::Views>, said: &Said) -> String {
        let row = match said {
            Said::Moved(Moved::Already(row)) => row,
            Said::Moved(Moved::Yes(row)) if !self.dry_run => row,
            _ => return String::new(),
        };
        views
            .and_then(|views| super::show::and_yet(views, self.settings, &row.message_id).ok())
            .unwrap_or_default()
    }

    /// One transaction; a dry run is the same statements, rolled back.
    fn batch(&mut self, ids: &[String]) -> Result<Vec<Said>, Failure> {
        let Self { verb, outbox, inbox, who, note, dry_run, counts, .. } = self;
        let by = By { who, note };
        let before = counts.moved;
        let mut said = Vec::new();
        let mut done = || -> rusqlite::Result<()> {
            let tx = outbox.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            for id in ids {
                said.push(one(&tx, inbox.as_ref(), *verb, id, by, counts)?);
            }
            if *dry_run { tx.rollback() } else { tx.commit() }
        };
        done().map_err(|error| {
            let code = if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
            let text = "the outbox did not take this part; repeating the command is harmless";
            Failure::new(code, format!("{error}: {text} ({before} {} before it)", word(*verb)))
        })?;
        Ok(said)
    }

    /// Every message that the filters leave, as long as it was there when the command began. The look goes before the
    /// write lock and proves nothing: each transition names the state that it leaves.
    fn all(&mut self, filter: &Filter) -> Result<(), Failure> {
        let mut conditions = Conditions::default();
        filter.conditions(&mut conditions)?;
        let leaves = self.verb.leaves();
        let wanted: Vec<OutboxState> = match filter::states(&filter.state)? {
            States::Unfinished | States::All => leaves.to_vec(),
            States::These(words) => {
                let state = |word: &Word| match word {
                    Word::Outbox(state) if leaves.contains(state) => Ok(*state),
                    _ => {
                        let known: Vec<&str> = leaves.iter().map(|state| state.as_str()).collect();
                        let text = format!("--state: {} takes {}", command(self.verb), known.join(", "));
                        Err(Failure::new(exit::USAGE, text))
                    }
                };
                words.iter().map(state).collect::<Result<_, _>>()?
            }
        };
        conditions.and(&filter::any_of("o.status", wanted.iter().map(|state| state.as_str())));
        if self.verb == Verb::TryNow {
            conditions.and_with("o.not_before_ms > :now", ":now", wall_ms());
        }
        conditions.and("o.id > :from AND o.id <= :to_id");
        let sql = format!("SELECT o.message_id FROM outbox AS o {} ORDER BY o.id", conditions.where_clause());
        let (mut from, last): (i64, i64) = self
            .outbox
            .query_row("SELECT coalesce(min(id), 1) - 1, coalesce(max(id), 0) FROM outbox", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .map_err(Failure::io)?;
        while from < last {
            let to = from.saturating_add(STRIDE).min(last);
            let mut params = conditions.params();
            params.extend([(":from", &from as &dyn rusqlite::ToSql), (":to_id", &to)]);
            let ids: Vec<String> = self
                .outbox
                .prepare_cached(&sql)
                .and_then(|mut statement| statement.query_map(params.as_slice(), |row| row.get(0))?.collect())
                .map_err(Failure::io)?;
            for batch in ids.chunks(BATCH) {
                self.batch(batch)?;
                // Producers and the relay get the lock in between.
                std::thread::sleep(RELAY_PAUSE);
            }
            from = to;
        }
        Ok(())
    }

    fn line(&self, id: &str, said: &Said) -> String {
        let (done, dry) = (word(self.verb), self.dry_run);
        let now = if dry { "would be " } else { "" };
        match said {
            Said::Moved(Moved::Yes(row)) => format!("{} {now}{done}{}", row.message_id, self.then(row)),
            Said::Moved(Moved::Already(row)) => format!("{} {}", row.message_id, standing(self.verb)),
            Said::Moved(Moved::No(state)) => {
                let why = match state {
                    OutboxState::Publishing => "the agent has it in hand now (PUBLISHING)".to_owned(),
                    state => format!("it is {}", filter::outbox_word(*state)),
                };
                format!("{id} not {done}: {why}{}", advice(self.verb, *state))
            }
            Said::Moved(Moved::Missing) => format!("{id} not {done}: no message has this id or key"),
            Said::CannotTell => {
                format!("{id} {}", hand::sentence(self.verb, &hand::Said::CannotTell, self.dry_run).1)
            }
            Said::Published(why) => format!("{id} not {done}: {why}"),
            Said::Gone(fate) => format!("{id} not {done}: it went to the vendor before and is {fate} there"),
        }
    }

    /// What comes next for a message that now stands so.
    fn then(&self, row: &Found) -> String {
        let mut text = String::new();
        if row.status == OutboxState::Pending {
            if row.not_before_ms > wall_ms() {
                let due = output::local_time(row.not_before_ms, &self.settings.agent.timezone);
                text.push_str(&format!(", due {due}"));
            } else {
                text.push_str(", due now");
            }
        }
        if self.inbox.is_none() && row.again {
            text.push_str(" (whether an earlier call went out only the agent's user can see)");
        }
        text
    }
}

/// What the running agent is asked to do.
struct Asked<'a> {
    verb: Verb,
    note: &'a str,
    dry_run: bool,
    source: Option<&'a str>,
}

/// One id at a time by the running agent; `None` where none answers (then nothing was done).
fn through_agent(settings: &Settings, asked: &Asked<'_>, ids: &[String]) -> Result<Option<Counts>, Failure> {
    let mut counts = Counts::default();
    let who = who::this_process();
    for (number, id) in ids.iter().enumerate() {
        let path = format!("/v1/messages/{}/{}", crate::percent::encode(id), hand::command(asked.verb));
        let path = super::through_agent::path(&path, &[("source", asked.source.map(str::to_owned))]);
        let body = serde_json::json!({ "note": asked.note, "who": who, "dry_run": asked.dry_run });
        let socket = &settings.listen.socket;
        let Some(answer) = super::agent_call::post(socket, &path, &body)? else {
            if number == 0 {
                return Ok(None);
            }
            return Err(Failure::new(
                exit::UNAVAILABLE,
                format!(
                    "{}: the agent has stopped answering; repeating the command is harmless",
                    socket.display()
                ),
            ));
        };
        match answer.status {
            200 if answer.body["already"] == true => counts.already += 1,
            200 => counts.moved += 1,
            404 => counts.missing += 1,
            _ => counts.no += 1,
        }
        let text = answer.body["text"].as_str().unwrap_or("no answer");
        output::print(&(output::plain(&format!("{id} {text}")) + "\n"))?;
    }
    Ok(Some(counts))
}

impl Counts {
    /// The last line, and the exit code.
    fn end(self, verb: Verb, dry_run: bool, all: bool) -> Outcome {
        let counts = self;
        let mut out = String::new();
        if all {
            for ((state, destination), count) in &counts.by {
                let destination = if destination.is_empty() { "(by route)" } else { destination };
                out.push_str(&format!(
                    "{count} {} for {}\n",
                    filter::said(state),
                    output::plain(destination)
                ));
            }
            for (why, count) in &counts.why {
                out.push_str(&format!("{count} not {}: {why}\n", word(verb)));
            }
        }
        let would = if dry_run { "would be " } else { "" };
        let already = match counts.already {
            0 => String::new(),
            count => format!(", {count} already"),
        };
        let note = if dry_run { " (dry run: nothing was changed)" } else { "" };
        let no = counts.no + counts.missing;
        out.push_str(&format!("{} {would}{}{already}, {no} not{note}\n", counts.moved, word(verb)));
        output::print(&out)?;
        Ok(match (counts.moved + counts.already + counts.no, counts.missing) {
            (0, 1..) => exit::NO_INPUT,
            _ if no > 0 => exit::NO,
            _ => exit::OK,
        })
    }
}

/// One message under the write lock. While we hold it no relay can claim the row, so what the inbox says is the truth.
fn one(
    tx: &Connection,
    inbox: Option<&Connection>,
    verb: Verb,
    id_or_key: &str,
    by: By<'_>,
    counts: &mut Counts,
) -> rusqlite::Result<Said> {
    let (row, said) = hand::one(tx, inbox, verb, id_or_key, by, wall_ms())?;
    let Some(row) = row else {
        counts.missing += 1;
        *counts.why.entry("no such message".into()).or_default() += 1;
        return Ok(Said::Moved(Moved::Missing));
    };
    let moved = match said {
        hand::Said::Moved(moved) => moved,
        hand::Said::Gone(fate) => {
            counts.no += 1;
            *counts.why.entry(format!("it went to the vendor before and is {fate} there")).or_default() += 1;
            return Ok(Said::Gone(fate.to_string()));
        }
        hand::Said::Published(fate) => {
            counts.no += 1;
            *counts.why.entry("it is PUBLISHED meanwhile".into()).or_default() += 1;
            return Ok(Said::Published(hand::published(fate)));
        }
        hand::Said::CannotTell => {
            counts.no += 1;
            *counts
                .why
                .entry("it was handed over before, and the inbox could not be asked".into())
                .or_default() += 1;
            return Ok(Said::CannotTell);
        }
    };
    match &moved {
        Moved::Yes(after) => {
            counts.moved += 1;
            *counts.by.entry((row.status.to_string(), after.destination.clone())).or_default() += 1;
        }
        Moved::Already(_) => counts.already += 1,
        Moved::No(state) => {
            counts.no += 1;
            *counts.why.entry(format!("it is {} meanwhile", filter::outbox_word(*state))).or_default() += 1;
        }
        Moved::Missing => counts.missing += 1,
    }
    Ok(Said::Moved(moved))
}

fn standing(verb: Verb) -> &'static str {
    match verb {
        Verb::Hold => "is held already",
        Verb::Release => "waits already (PENDING): nothing to release",
        Verb::Cancel => "is cancelled already",
        Verb::TryNow => "is due already",
    }
}

fn advice(verb: Verb, state: OutboxState) -> &'static str {
    match (verb, state) {
        (Verb::TryNow, OutboxState::Held | OutboxState::Parked) => "; release it first",
        (_, OutboxState::Publishing) => "; `onceward show` tells what becomes of it",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::from_line;

    #[test]
    fn lines_of_standard_input() {
        for (line, expected) in [
            ("ow-1\n", Some("ow-1")),
            ("  KEY WITH SPACES:1  ", Some("KEY WITH SPACES:1")),
            (r#"{"id":1,"message_id":"ow-2"}"#, Some("ow-2")),
            ("", None),
        ] {
            assert_eq!(from_line(line).as_deref(), expected);
        }
    }
}
