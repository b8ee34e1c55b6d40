//! `enqueue`: one message by flags, or many as JSON lines; prints message ids; works while the agent is down.
//!
//! Each chunk of lines is one synced transaction. A bad line is named with its field and does not keep the others
//! from being stored; the same event again is harmless; the same key with other content is said aloud.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use rusqlite::Connection;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, filter, moment};
use crate::clock::trust::HORIZON_MS;
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db::reserve;
use crate::db::{self, Durability, Part};
use crate::exit;
use crate::limits::INTAKE_FREE_MIN;
use crate::message::{Class, Destination, Message, MessageId};
use crate::owner::StateDir;
use crate::store::outbox::{self, NewMessage, Put};
use crate::vendor::fitness::Fitness;

/// 2001-09-09 in milliseconds; what is below was meant in seconds.
const SECONDS_MAX: i64 = 1_000_000_000_000;
/// Longest line, bytes: the largest payload and every other field at its limit, however they are escaped, several times
/// over. A file without line ends (or the wrong file) is refused in a memory of this size.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Lines in one commit.
const CHUNK: usize = 500;

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

/// A line as producers write it: the columns of the outbox; `payload` is any JSON value.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    dedup_key: String,
    kind: String,
    #[serde(default)]
    class: Option<String>,
    #[serde(default)]
    destination: Option<String>,
    recipient: String,
    payload: Box<serde_json::value::RawValue>,
    #[serde(default)]
    ordering_key: Option<String>,
    #[serde(default)]
    priority: Option<u8>,
    #[serde(default)]
    not_before_ms: Option<i64>,
    #[serde(default)]
    expires_at_ms: Option<i64>,
    #[serde(default)]
    traceparent: Option<String>,
}

/// What became of the lines.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// New rows.
    pub new: usize,
    /// The same event again.
    pub same: usize,
    /// The same key with other content: in quarantine.
    pub conflict: usize,
    /// Not stored: bad data.
    pub bad: usize,
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
    let mut connection = super::source::outbox(file, &settings)?;
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

/// Reads, checks and stores JSON lines. Bad lines are reported and counted.
pub fn from_lines(
    connection: &mut Connection,
    door: &Door<'_>,
    mut input: impl BufRead,
    length: Option<u64>,
    say: &mut dyn FnMut(String),
) -> Result<Counts, Failure> {
    let bar = match length {
        Some(length) if std::io::stderr().is_terminal() => {
            let style = ProgressStyle::with_template("{bar:40} {percent}%  {bytes}/{total_bytes}  {per_sec}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(length).with_style(style)
        }
        _ => ProgressBar::hidden(),
    };
    let mut counts = Counts::default();
    let mut number = 0usize;
    let mut text = Vec::new();
    loop {
        let mut chunk = Vec::new();
        let mut numbers = Vec::new();
        let mut ended = false;
        while chunk.len() < CHUNK {
            let read = read_line(&mut input, &mut text)
                .map_err(|error| Failure::new(exit::IO, format!("line {}: {error}", number + 1)))?;
            if read == 0 {
                ended = true;
                break;
            }
            number += 1;
            bar.inc(read);
            if number == 1 && text.starts_with(b"\xef\xbb\xbf") {
                text.drain(..3); // the byte order mark of other systems' editors
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let parsed = if text.len() > LINE_BYTES_MAX {
                Err(format!("longer than {LINE_BYTES_MAX} bytes: one JSON object a line was expected"))
            } else {
                parse(&text)
            };
            match parsed.and_then(|message| door.check(message)) {
                Ok((message, remarks)) => {
                    for remark in remarks {
                        bar.suspend(|| super::output::complain!("line {number}: payload: {remark}"));
                    }
                    chunk.push(message);
                    numbers.push(number);
                }
                Err(problem) => {
                    counts.bad += 1;
                    bar.suspend(|| super::output::complain!("line {number}: {problem}"));
                }
            }
        }
        for (put, number) in put_all(connection, &chunk)?.into_iter().zip(&numbers) {
            match put {
                Put::New(id) => {
                    counts.new += 1;
                    say(id.to_string());
                }
                Put::Same(id) => {
                    counts.same += 1;
                    say(id.to_string());
                }
                Put::Conflict(id) => {
                    counts.conflict += 1;
                    bar.suspend(|| {
                        super::output::complain!("line {number}: {}", conflict_text("dedup_key", &id))
                    });
                }
            }
        }
        if ended {
            bar.finish_and_clear();
            return Ok(counts);
        }
    }
}

/// The next line with its end: bytes read, 0 at the end. Of one that is longer than the limit `text` gets one byte more
/// than that, and the rest is passed over.
fn read_line(input: &mut impl BufRead, text: &mut Vec<u8>) -> std::io::Result<u64> {
    text.clear();
    let mut read = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', text)? as u64;
    if text.len() > LINE_BYTES_MAX && !text.ends_with(b"\n") {
        while !input.fill_buf()?.is_empty() {
            let buffer = input.fill_buf()?;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(buffer.len(), |at| at + 1);
            input.consume(count);
            read += count as u64;
            if end.is_some() {
                break;
            }
        }
    }
    Ok(read)
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

pub(crate) fn parse(text: &[u8]) -> Result<NewMessage, String> {
    // serde_json's words quote at most a field's name, never a value of ours, except "invalid type": cut those.
    let line: Line = serde_json::from_slice(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            format!("column {}: {}", error.column(), data_problem(&error.to_string()))
        }
        _ => format!("column {}: not valid JSON", error.column()),
    })?;
    let class = line.class.as_deref().unwrap_or("TRANSACTIONAL");
    Ok(NewMessage {
        dedup_key: line.dedup_key,
        kind: line.kind,
        class: Class::parse(class).ok_or("class: TRANSACTIONAL or ADVERTISING was expected")?,
        destination: line.destination.unwrap_or_default(),
        recipient: line.recipient,
        payload: line.payload.get().to_owned(),
        ordering_key: line.ordering_key,
        priority: line.priority.unwrap_or(5),
        not_before_ms: line.not_before_ms,
        expires_at_ms: line.expires_at_ms,
        traceparent: line.traceparent,
    })
}

fn data_problem(text: &str) -> String {
    let text = text.split(" at line ").next().unwrap_or(text);
    if text.starts_with("invalid") {
        match text.rsplit_once("expected ") {
            Some((_, expected)) => format!("a field has the wrong type, {} was expected", in_words(expected)),
            None => "a field has the wrong type".into(),
        }
    } else if let Some((name, expected)) =
        text.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, expected "))
    {
        // A name that is no name may be anything: a number, a text, what steers a terminal.
        let is_name = (1..=40).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphabetic() || b"_-".contains(&byte));
        match is_name {
            true => format!("unknown field `{name}`, expected {expected}"),
            false => format!("an unknown field, expected {expected}"),
        }
    } else {
        text.to_owned()
    }
}

/// What is looked at before a message is stored.
pub struct Door<'a> {
    settings: &'a Settings,
    /// `None`: as a producer who writes SQL, whose unfit messages are parked by the worker.
    fitness: Option<Fitness>,
}

impl<'a> Door<'a> {
    /// Lengths, ranges, and what the destination's adapter says of sizes and numbers.
    pub fn new(settings: &'a Settings) -> Result<Self, Failure> {
        let fitness = Fitness::new(settings).map_err(|reason| Failure::new(exit::SETTINGS, reason))?;
        Ok(Self { settings, fitness: Some(fitness) })
    }

    /// Lengths and ranges alone.
    pub fn lengths_only(settings: &'a Settings) -> Self {
        Self { settings, fitness: None }
    }

    /// The message as it is to be stored, and remarks for whoever wrote it; or the field that is wrong.
    pub(crate) fn check(&self, message: NewMessage) -> Result<(NewMessage, Vec<String>), String> {
        let mut message = fit(message, self.settings)?;
        let Some(fitness) = &self.fitness else { return Ok((message, Vec::new())) };
        times(&message, wall_ms())?;
        moment::plausible(message.not_before_ms, message.expires_at_ms)?;
        let fit = fitness.check(&as_sent(&message)).map_err(|unfit| {
            let field = ["recipient: ", "payload"].iter().any(|field| unfit.reason.starts_with(field));
            if field { unfit.reason } else { format!("payload: {}", unfit.reason) }
        })?;
        let flagged =
            fit.sizes.iter().filter(|size| size.outside_ksx1001 > 0).map(ToString::to_string).collect();
        if let Some(recipient) = fit.recipient {
            message.recipient = recipient;
        }
        Ok((message, flagged))
    }
}

/// Seconds or microseconds in a millisecond field, and times that nobody means.
fn times(message: &NewMessage, now_ms: i64) -> Result<(), String> {
    for (field, value) in [("not_before_ms", message.not_before_ms), ("expires_at_ms", message.expires_at_ms)]
    {
        let Some(value) = value else { continue };
        if value < SECONDS_MAX {
            return Err(format!("{field}: is before 2001; it takes milliseconds, not seconds"));
        }
        if field == "not_before_ms" && value > now_ms.saturating_add(HORIZON_MS) {
            return Err(format!("{field}: is more than {} days ahead", HORIZON_MS / 86_400_000));
        }
    }
    Ok(())
}

/// The message as its destination will see it; the id is one of the same length, made when the row is.
fn as_sent(message: &NewMessage) -> Message {
    Message {
        message_id: MessageId::new("ow-000000000000000000000000000"),
        dedup_key: message.dedup_key.clone(),
        kind: message.kind.clone(),
        class: message.class,
        destination: Destination::new(&message.destination),
        recipient: message.recipient.clone(),
        payload: message.payload.clone(),
        ordering_key: message.ordering_key.clone(),
        priority: message.priority,
        not_before_ms: message.not_before_ms.unwrap_or(0),
        expires_at_ms: message.expires_at_ms,
        created_at_ms: 0,
        traceparent: message.traceparent.clone(),
    }
}

/// What serde calls a type, for people who write JSON.
fn in_words(expected: &str) -> &str {
    match expected {
        "a string" => "a text",
        "u8" => "a number from 0 to 9",
        "i64" => "a whole number",
        other if other.starts_with("struct ") => "an object with the columns of the outbox",
        other => other,
    }
}

/// Length and range checks with the field's name, and the destination by route.
fn fit(mut message: NewMessage, settings: &Settings) -> Result<NewMessage, String> {
    message.check().map_err(|bad| bad.to_string())?;
    if message.destination.is_empty() {
        // What no route matches is stored all the same: the relay parks it where a person sees it.
        message.destination =
            crate::route::destination(&settings.routes, &message.kind).unwrap_or_default().to_owned();
    }
    Ok(message)
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

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn a_line_is_read_to_its_limit_and_the_next_one_is_whole() {
        let long = |count| vec![b'x'; count];
        for (count, kept) in [
            (3, 4),
            (LINE_BYTES_MAX - 1, LINE_BYTES_MAX),
            (LINE_BYTES_MAX, LINE_BYTES_MAX + 1),
            (LINE_BYTES_MAX + 1, LINE_BYTES_MAX + 1),
            (LINE_BYTES_MAX + 2, LINE_BYTES_MAX + 1),
            (3 * LINE_BYTES_MAX, LINE_BYTES_MAX + 1),
        ] {
            let bytes = [long(count), b"\nnext\n".to_vec()].concat();
            let mut input = BufReader::with_capacity(1_000, bytes.as_slice());
            let mut text = Vec::new();
            assert_eq!(read_line(&mut input, &mut text).expect("reads"), count as u64 + 1);
            assert_eq!(text.len(), kept, "{count}");
            assert!(text.capacity() <= 2 * LINE_BYTES_MAX, "memory stays bounded");
            assert_eq!(read_line(&mut input, &mut text).expect("reads"), 5);
            assert_eq!(text, b"next\n");
            assert_eq!(read_line(&mut input, &mut text).expect("reads"), 0);
        }
    }
}
