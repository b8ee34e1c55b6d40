//! Messages as JSON lines: read, checked and stored chunk by chunk; a bad line is named and keeps no other back.
//!
//! Never: quotes a value of a line; problems name the line, the column and the field.

use std::io::{BufRead, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};
use rusqlite::Connection;

use super::door::Door;
use super::{conflict_text, put_all};
use crate::cli::Failure;
use crate::exit;
use crate::message::Class;
use crate::store::outbox::{NewMessage, Put};

/// Lines in one commit.
const CHUNK: usize = 500;

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
            text.clear();
            let read = input
                .read_until(b'\n', &mut text)
                .map_err(|error| Failure::new(exit::IO, format!("line {}: {error}", number + 1)))?;
            if read == 0 {
                ended = true;
                break;
            }
            number += 1;
            bar.inc(read as u64);
            if number == 1 && text.starts_with(b"\xef\xbb\xbf") {
                text.drain(..3); // the byte order mark of other systems' editors
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match parse(&text).and_then(|message| door.check(message)) {
                Ok((message, remarks)) => {
                    for remark in remarks {
                        bar.suspend(|| eprintln!("line {number}: payload: {remark}"));
                    }
                    chunk.push(message);
                    numbers.push(number);
                }
                Err(problem) => {
                    counts.bad += 1;
                    bar.suspend(|| eprintln!("line {number}: {problem}"));
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
                    bar.suspend(|| eprintln!("line {number}: {}", conflict_text("dedup_key", &id)));
                }
            }
        }
        if ended {
            bar.finish_and_clear();
            return Ok(counts);
        }
    }
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
    } else {
        text.to_owned()
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
