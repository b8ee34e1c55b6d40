//! `enqueue`: one message by flags, or many as JSON lines; prints message ids; works while the agent is down.
//!
//! Each chunk of lines is one synced transaction. A bad line is named with its field and does not keep the others
//! from being stored; the same event again is harmless; the same key with other content is said aloud.

mod door;
mod lines;

use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

pub use self::door::Door;
pub use self::lines::from_lines;
pub(crate) use self::lines::parse;
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, filter, moment};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db::reserve;
use crate::db::{self, Durability, Part};
use crate::exit;
use crate::limits::INTAKE_FREE_MIN;
use crate::message::Class;
use crate::owner::StateDir;
use crate::store::outbox::{self, NewMessage, Put};

/// Arguments of `enqueue`.
#[derive(clap::Args)]
pub struct Args {
    /// JSON lines: a file, or `-` for standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["key", "kind", "to", "payload"])]
    file: Option<PathBuf>,
    /// Business key: one event is one message
    #[arg(long)]
    key: Option<String>,
    /// What it is about
    #[arg(long)]
    kind: Option<String>,
    /// Recipient
    #[arg(long)]
    to: Option<String>,
    /// Everything to be sent, as JSON
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// TRANSACTIONAL or ADVERTISING
    #[arg(long, default_value = "TRANSACTIONAL", value_parser = class)]
    class: Class,
    /// Destination; without it by route
    #[arg(long, default_value = "", hide_default_value = true)]
    dest: String,
    /// Order lane
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// 0 (first) to 9
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: u8,
    /// Due then, in the zone of the settings: 18:00 (the next one), '2026-12-01 18:00', 2026-12-01T18:00:00+09:00
    #[arg(long, value_name = "TIME", conflicts_with_all = ["delay", "not_before_ms"])]
    at: Option<String>,
    /// Due after this span, e.g. 10m, 2h, 3d
    #[arg(long = "in", value_name = "SPAN", conflicts_with = "not_before_ms")]
    delay: Option<String>,
    /// Deadline this span after the due time, e.g. 2h
    #[arg(long, value_name = "SPAN", conflicts_with = "expires_at_ms")]
    expires_in: Option<String>,
    /// Due time, UTC milliseconds
    #[arg(long, value_name = "MS")]
    not_before_ms: Option<i64>,
    /// Deadline, UTC milliseconds
    #[arg(long, value_name = "MS")]
    expires_at_ms: Option<i64>,
    /// W3C trace context
    #[arg(long)]
    traceparent: Option<String>,
    /// Print nothing but problems
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_without_secrets()?;
    let door = Door::new(&settings)?;
    // The last of the room is for the outcomes of calls already made.
    let folder = StateDir::new(&settings.agent.state_dir).outbox_dir();
    if let Some(free) = reserve::free(&folder)
        && free < INTAKE_FREE_MIN
    {
        let text = format!(
            "{}: the disk is full ({} KiB free): nothing was taken; make room and try again",
            folder.display(),
            free >> 10
        );
        return Err(Failure::new(exit::TRY_AGAIN, text));
    }
    let state = StateDir::new(&settings.agent.state_dir);
    // The list of sources is in the inbox, which a producer may not read: it is asked for only where one is named.
    let inbox = if file.source.is_some() { super::views::inbox(&state)? } else { None };
    let mut connection = super::source::named(file, &settings, inbox.as_ref())?.writer()?;
    let quiet = args.quiet;
    let mut say = |text: String| {
        if !quiet {
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    };
    let Some(path) = &args.file else {
        let message = from_flags(args, &door)?;
        let put = put_all(&mut connection, std::slice::from_ref(&message))?.remove(0);
        return Ok(match put {
            Put::New(id) | Put::Same(id) => {
                say(id.to_string());
                exit::OK
            }
            Put::Conflict(id) => return Err(Failure::new(exit::DATA, conflict_text("--key", &id))),
        });
    };
    let counts = if path.as_os_str() == "-" {
        from_lines(&mut connection, &door, std::io::stdin().lock(), None, &mut say)?
    } else {
        let opened = open_lines(path)?;
        let length = opened.metadata().map(|metadata| metadata.len()).ok();
        from_lines(&mut connection, &door, BufReader::new(opened), length, &mut say)?
    };
    if !quiet || counts.bad + counts.conflict > 0 {
        super::output::complain!(
            "{} new, {} known already, {} in quarantine (same key, other content), {} bad",
            counts.new,
            counts.same,
            counts.conflict,
            counts.bad
        );
    }
    Ok(if counts.bad + counts.conflict > 0 { exit::DATA } else { exit::OK })
}

/// Opens a file of JSON lines; 66 where there is none.
fn open_lines(path: &Path) -> Result<std::fs::File, Failure> {
    let failed = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => exit::NO_INPUT,
            std::io::ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
            _ => exit::IO,
        };
        Failure::new(code, format!("{}: {error}", path.display()))
    };
    let opened = std::fs::File::open(path).map_err(failed)?;
    if opened.metadata().is_ok_and(|metadata| metadata.is_dir()) {
        let text = format!("{}: is a folder; a file of JSON lines was expected", path.display());
        return Err(Failure::new(exit::NO_INPUT, text));
    }
    Ok(opened)
}

/// The whole file, for those who must know early whether it is there.
pub fn read_whole(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    open_lines(path)?
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(exit::IO, format!("{}: {error}", path.display())))?;
    Ok(bytes)
}

fn class(text: &str) -> Result<Class, String> {
    Class::parse(text).ok_or_else(|| "TRANSACTIONAL or ADVERTISING was expected".to_owned())
}

/// Opens the outbox as a producer does: every commit synced, no checkpoint of its own.
pub fn open(settings: &Settings) -> Result<Connection, Failure> {
    let connection =
        db::open_writer(&StateDir::new(&settings.agent.state_dir).outbox(), Part::Outbox, Durability::Full)?;
    Ok(connection)
}

fn conflict_text(field: &str, id: &crate::message::MessageId) -> String {
    format!(
        "{field}: this key is known with other content; the first message {id} stands, this one is kept in quarantine and not sent"
    )
}

pub(crate) fn put_all(connection: &mut Connection, messages: &[NewMessage]) -> Result<Vec<Put>, Failure> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let done = db::write(connection, |tx| {
        messages.iter().map(|message| outbox::put(tx, message)).collect::<rusqlite::Result<Vec<_>>>()
    });
    done.map_err(|error| {
        if crate::store::intake::is_refusal(&error) {
            return Failure::new(exit::TRY_AGAIN, format!("{error}; nothing of this part is stored"));
        }
        let code = if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
        Failure::new(code, format!("the outbox did not take it: {error}; nothing of this part is stored for sure, run the same command again (repeating is harmless)"))
    })
}

fn from_flags(args: Args, door: &Door<'_>) -> Result<NewMessage, Failure> {
    let need = |value: Option<String>, flag: &str| {
        value.ok_or_else(|| Failure::new(exit::USAGE, format!("{flag} is missing: give FILE or `-` with JSON lines, or --key, --kind, --to and --payload")))
    };
    let (now_ms, zone) = (wall_ms(), &door.settings.agent.timezone);
    let not_before_ms = match (&args.at, &args.delay) {
        (Some(time), _) => Some(moment::at_ms(time, now_ms, zone)?),
        (_, Some(span)) => Some(now_ms.saturating_add(filter::span_ms("--in", span)?)),
        _ => args.not_before_ms,
    };
    let expires_at_ms = match &args.expires_in {
        Some(span) => {
            Some(not_before_ms.unwrap_or(now_ms).saturating_add(filter::span_ms("--expires-in", span)?))
        }
        None => args.expires_at_ms,
    };
    let message = NewMessage {
        dedup_key: need(args.key, "--key")?,
        kind: need(args.kind, "--kind")?,
        class: args.class,
        destination: args.dest,
        recipient: need(args.to, "--to")?,
        payload: need(args.payload, "--payload")?,
        ordering_key: args.ordering_key,
        priority: args.priority,
        not_before_ms,
        expires_at_ms,
        traceparent: args.traceparent,
    };
    if serde_json::from_str::<serde::de::IgnoredAny>(&message.payload).is_err() {
        return Err(Failure::new(exit::DATA, "--payload: not valid JSON"));
    }
    let (message, remarks) = door.check(message).map_err(|problem| Failure::new(exit::DATA, problem))?;
    for remark in remarks {
        super::output::complain!("onceward: payload: {remark}");
    }
    Ok(message)
}
