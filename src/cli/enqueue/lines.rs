//! Messages as JSON lines: read, checked and stored chunk by chunk; a bad line is named and keeps no other back.
//!
//! Never: quotes a value of a line; problems name the line, the column and the field.

use std::io::{BufRead, IsTerminal, Read};

use indicatif::{ProgressBar, ProgressStyle};
use rusqlite::Connection;

use super::door::Door;
use super::{conflict_text, put_all};
use crate::cli::{Failure, output};
use crate::exit;
use crate::message::Class;
use crate::store::outbox::{NewMessage, Put};

/// Longest line, bytes: the largest payload and every other field at its limit, however they are escaped, several times
/// over. A file without line ends (or the wrong file) is refused in a memory of this size.
const LINE_BYTES_MAX: usize = 1 << 20;
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
                        bar.suspend(|| output::complain!("line {number}: payload: {remark}"));
                    }
                    chunk.push(message);
                    numbers.push(number);
                }
                Err(problem) => {
                    counts.bad += 1;
                    bar.suspend(|| output::complain!("line {number}: {problem}"));
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
                    bar.suspend(|| output::complain!("line {number}: {}", conflict_text("dedup_key", &id)));
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
