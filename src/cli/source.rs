//! `source`: outboxes inside applications' own SQLite files: add one, list them, forget one; agent up or
//! down.
//!
//! `add` installs the tables and registers the file; a running agent picks it up within a second. `remove`
//! only forgets: what is in the file stays there.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::{Value, json};

use super::settings_file::SettingsFile;
use super::views;
use super::{Failure, Outcome, output};
use crate::clock::{ms, wall_ms};
use crate::config::Settings;
use crate::db::{self, DbError, Durability, Part};
use crate::exit;
use crate::outboxes::{File, NoFile, Outboxes};
use crate::owner::{self, StateDir};
use crate::retention::pass::{self, CUT_MARK};
use crate::source::{self, State};
use crate::store::meta;
use crate::store::source::{self as list, Source};

/// How long `add` waits for a running agent to say what it sees.
const PICKED_UP_WITHIN: Duration = Duration::from_secs(5);
/// Longest name, characters.
const NAME_CHARS_MAX: usize = 40;

/// Arguments of `source`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Install an outbox in an application's SQLite file and serve it; its other tables and journal mode stay
    Add {
        /// Its name here: letters, digits, - and _
        name: String,
        /// The application's SQLite file, which must exist
        file: PathBuf,
        /// Take over a copy, or a file of another agent: its unfinished messages are HELD until you release
        /// them
        #[arg(long)]
        adopt: bool,
    },
    /// Each source, how it is and what waits there
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Forget a source; its file and all that is in it stay
    Remove {
        /// Its name
        name: String,
    },
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    match args.verb {
        Verb::Add { name, file, adopt } => add(&settings, &name, &file, adopt),
        Verb::List { json } => show(&settings, json),
        Verb::Remove { name } => remove(&settings, &name),
    }
}

fn add(settings: &Settings, name: &str, file: &Path, adopt: bool) -> Outcome {
    check_name(name)?;
    let state = StateDir::new(&settings.agent.state_dir);
    let path = file.canonicalize().map_err(|error| {
        Failure::new(
            if error.kind() == std::io::ErrorKind::NotFound { exit::NO_INPUT } else { exit::NOT_PERMITTED },
            format!("{}: {error}; the application makes its file first", file.display()),
        )
    })?;
    let Some(text) = path.to_str() else {
        return Err(Failure::new(exit::DATA, format!("{}: the path must be UTF-8", path.display())));
    };
    if [state.outbox(), state.inbox()].iter().any(|own| own.canonicalize().is_ok_and(|own| own == path)) {
        return Err(Failure::new(exit::USAGE, format!("{text}: is the agent's own file and served anyway")));
    }
    let (mut inbox, listed) = registry(&state)?;
    for other in &listed {
        if (other.name == name) != (other.file == text) && (other.name == name || other.file == text) {
            return Err(Failure::new(
                exit::USAGE,
                format!(
                    "{text} cannot be added as {name}: the source {} is {}; `onceward source remove {}` first",
                    other.name, other.file, other.name
                ),
            ));
        }
    }
    let io = |error| Failure::from(DbError::sqlite(&state.inbox(), error));
    let agent_id = db::write(&mut inbox, meta::agent_id).map_err(io)?;
    // As far as retention has let go, and as far as a pass that is under way with the list of before may.
    let let_go_ms = pass::mark_ms(&inbox, CUT_MARK).map_err(io)?.unwrap_or(i64::MIN);
    let let_go_ms = let_go_ms.max(wall_ms().saturating_sub(ms(settings.retention.keys)));
    let forgotten_ms = |id: &str| (!listed.iter().any(|source| source.source_id == id)).then_some(let_go_ms);
    let installed = source::install(&path, &agent_id, adopt, forgotten_ms, |id| {
        listed
            .iter()
            .find(|other| other.source_id == id && other.name != name)
            .map(|other| other.name.clone())
    })?;
    db::write(&mut inbox, |tx| {
        meta::put(tx, &format!("{}{}", list::REMOVED, installed.source_id), "")?;
        list::put(tx, name, text, &installed.source_id, wall_ms())
    })
    .map_err(io)?;

    let mut said = format!(
        "source {name}: {text} (journal mode {}, unchanged); its outbox {}\n",
        installed.journal,
        if installed.new { "was made" } else { "was there" },
    );
    if installed.held > 0 {
        said.push_str(&format!(
            "{} unfinished messages are HELD: look at them with `onceward --source {name} queue --state HELD`, then release or cancel\n",
            installed.held
        ));
    }
    let mut code = exit::OK;
    if owner::holder(&state).is_none() {
        said.push_str("the agent is not running; it serves the source from its next start\n");
    } else {
        match picked_up(&inbox, name) {
            Some(seen) if seen.state == State::Ok.as_str() => said.push_str("the agent serves it\n"),
            Some(seen) => {
                code = exit::NO;
                let reason = seen.reason.unwrap_or_default();
                said.push_str(&format!("the agent cannot use it yet ({}): {reason}\n", seen.state));
            }
            None => said.push_str("the agent has not looked at it yet; see `onceward source list`\n"),
        }
    }
    output::print(&said)?;
    Ok(code)
}

/// What a running agent says of a source that was just added.
fn picked_up(inbox: &Connection, name: &str) -> Option<Source> {
    let end = Instant::now() + PICKED_UP_WITHIN;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
        if let Ok(Some(seen)) = list::get(inbox, name)
            && seen.state != list::NEW
        {
            return Some(seen);
        }
    }
    None
}

fn remove(settings: &Settings, name: &str) -> Outcome {
    let state = StateDir::new(&settings.agent.state_dir);
    let (mut inbox, listed) = registry(&state)?;
    let removed = db::write(&mut inbox, |tx| {
        if let Some(source) = listed.iter().find(|source| source.name == name) {
            meta::put(tx, &format!("{}{}", list::REMOVED, source.source_id), &wall_ms().to_string())?;
        }
        list::remove(tx, name)
    });
    let removed = removed.map_err(|error| Failure::from(DbError::sqlite(&state.inbox(), error)))?;
    if !removed {
        let there = listed.into_iter().map(|source| source.name).collect();
        return Err(NoFile::NoSource { name: name.to_owned(), there }.into());
    }
    let file = listed.iter().find(|source| source.name == name).map_or("", |source| source.file.as_str());
    output::print(&format!("source {name} is forgotten; {file} and its outbox stay as they are\n"))
}

fn show(settings: &Settings, json: bool) -> Outcome {
    let views = views::open(settings)?;
    let Some(inbox) = &views.inbox else {
        return Err(Failure::new(
            exit::NOT_PERMITTED,
            format!(
                "{}: only root and the agent's user may read the list of sources",
                views.state.inbox().display()
            ),
        ));
    };
    let seen = seen(inbox, owner::holder(&views.state).is_some())
        .map_err(|error| Failure::from(DbError::sqlite(&views.state.inbox(), error)))?;
    if json {
        return output::print(&seen.iter().map(|line| format!("{line}\n")).collect::<String>());
    }
    if seen.is_empty() {
        return output::print("no sources; `onceward source add NAME FILE` adds one\n");
    }
    output::print(&output::table(&for_people(&seen, settings)))
}

/// Each source as the running agent sees it, or as this process does; and what waits there.
pub fn seen(inbox: &Connection, agent_is_up: bool) -> rusqlite::Result<Vec<Value>> {
    let mut all = Vec::new();
    let agent_id = meta::get(inbox, "agent_id")?;
    for source in list::list(inbox)? {
        let waiting = waiting(&source, agent_id.as_deref());
        let (state, reason) = match &waiting {
            _ if agent_is_up => (source.state, source.reason),
            Ok(_) => (State::Ok.as_str().to_owned(), None),
            Err(error) => (State::of(error).as_str().to_owned(), Some(error.to_string())),
        };
        let (count, oldest) = waiting.unwrap_or((None, None));
        all.push(json!({
            "name": source.name, "file": source.file, "state": state, "reason": reason, "since_ms": source.since_ms,
            "waiting": count, "oldest_age_ms": oldest.map(|oldest| wall_ms().saturating_sub(oldest).max(0)),
        }));
    }
    Ok(all)
}

/// [`seen`] as a table with its head.
pub fn for_people(seen: &[Value], settings: &Settings) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let mut rows =
        vec![["SOURCE", "STATE", "SINCE", "WAITING", "OLDEST", "FILE", "REASON"].map(str::to_owned).to_vec()];
    rows.extend(seen.iter().map(|source| {
        vec![
            text(&source["name"]),
            text(&source["state"]),
            output::local_time(source["since_ms"].as_i64().unwrap_or(0), &settings.agent.timezone),
            source["waiting"].as_i64().map_or("?".into(), |count| count.to_string()),
            source["oldest_age_ms"].as_i64().map_or("-".into(), output::age),
            text(&source["file"]),
            text(&source["reason"]),
        ]
    }));
    rows
}

type Waiting = (Option<i64>, Option<i64>);

/// Unfinished rows and the oldest one's time, in a file that the agent would serve.
fn waiting(source: &Source, agent_id: Option<&str>) -> Result<Waiting, DbError> {
    let file = Path::new(&source.file);
    let connection = source::open_reader(file)?;
    let is_ours = source::is_served_by(&connection, &source.source_id, agent_id.unwrap_or_default());
    if !is_ours.map_err(|error| DbError::sqlite(file, error))? {
        return Err(source::not_ours(file, &source.name));
    }
    connection
        .query_row("SELECT count(*), min(created_at_ms) FROM outbox WHERE closed_at_ms IS NULL", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .map_err(|error| DbError::sqlite(file, error))
}

/// Every outbox, as far as this user may read the list; `inbox` is `None` where not.
pub fn outboxes(settings: &Settings, inbox: Option<&Connection>) -> Result<Outboxes, Failure> {
    let state = StateDir::new(&settings.agent.state_dir);
    Outboxes::read(&state.outbox(), inbox)
        .map_err(|error| Failure::from(DbError::sqlite(&state.inbox(), error)))
}

/// The outbox that `--source` names, or the agent's own.
pub fn named(file: &SettingsFile, settings: &Settings, inbox: Option<&Connection>) -> Result<File, Failure> {
    if file.source.is_some() && inbox.is_none() {
        return Err(unlisted(settings));
    }
    Ok(outboxes(settings, inbox)?.named(file.source.as_deref())?.clone())
}

/// The outbox of one message: the one that `--source` names, else the one that has it, else the agent's own.
pub fn of_message(
    file: &SettingsFile,
    settings: &Settings,
    inbox: Option<&Connection>,
    id_or_key: &str,
) -> Result<File, Failure> {
    if file.source.is_some() && inbox.is_none() {
        return Err(unlisted(settings));
    }
    Ok(outboxes(settings, inbox)?.choose(file.source.as_deref(), id_or_key)?.clone())
}

/// What a command on the agent's own file alone leaves out, for people; `None` where there is nothing.
pub fn elsewhere(
    file: &SettingsFile,
    settings: &Settings,
    inbox: Option<&Connection>,
) -> Result<Option<String>, Failure> {
    if file.source.is_some() {
        return Ok(None);
    }
    let outboxes = outboxes(settings, inbox)?;
    let names: Vec<&str> = outboxes.sources().collect();
    Ok(match names[..] {
        [] => None,
        [name] => Some(format!("the source {name} (--source {name})")),
        _ => Some(format!("the sources {} (--source NAME)", names.join(", "))),
    })
}

fn unlisted(settings: &Settings) -> Failure {
    Failure::new(
        exit::NOT_PERMITTED,
        format!("only the agent's user may read the list of sources; {}", super::permission::inbox(settings)),
    )
}

impl From<NoFile> for Failure {
    fn from(why: NoFile) -> Self {
        match why {
            NoFile::NoSource { .. } => Self::new(exit::NO_INPUT, why.to_string()),
            NoFile::Several(_) => Self::new(exit::USAGE, why.to_string()),
            NoFile::Unread(_) => Self::new(exit::TRY_AGAIN, why.to_string()),
            NoFile::Own(error) => error.into(),
        }
    }
}

fn registry(state: &StateDir) -> Result<(Connection, Vec<Source>), Failure> {
    let inbox = db::open_writer(&state.inbox(), Part::Inbox, Durability::Full)?;
    let listed = list::list(&inbox).map_err(|error| Failure::from(DbError::sqlite(&state.inbox(), error)))?;
    Ok((inbox, listed))
}

fn check_name(name: &str) -> Result<(), Failure> {
    let fits = (1..=NAME_CHARS_MAX).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if fits {
        Ok(())
    } else {
        Err(Failure::new(
            exit::USAGE,
            format!("{name:?}: a source's name has 1 to {NAME_CHARS_MAX} letters, digits, - or _"),
        ))
    }
}
