//! JSON lines of `enqueue`: what the door lets in, the table takes, comes back as it went in, and can be sent; what is
//! refused is said without a number or a text.

use rusqlite::Connection;

use super::world::{MARK, is_plain, settings, tables, tells_no_number};
use crate::cli::enqueue::{self, Door};
use crate::db::Part;
use crate::store::outbox::{self, NewMessage, Put};

/// Bytes of a file of lines.
pub(super) fn run(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n').take(4) {
        one(line);
    }
}

fn one(line: &[u8]) {
    thread_local!(static OUTBOX: Connection = tables(Part::Outbox));
    let door = match Door::new(settings()) {
        Ok(door) => door,
        Err(failure) => panic!("{}", failure.text),
    };
    let text = String::from_utf8_lossy(line);
    match enqueue::parse(line).and_then(|message| door.check(message)) {
        Err(problem) => {
            is_plain(&problem);
            tells_no_number(&problem, &text);
        }
        Ok((message, remarks)) => {
            for remark in &remarks {
                is_plain(remark);
                tells_no_number(remark, &text);
            }
            match door.check(message.clone()) {
                Ok((again, _)) => assert_eq!(facts(&again), facts(&message), "the door is idempotent"),
                Err(problem) => panic!("accepted, then not: {problem}"),
            }
            OUTBOX.with(|outbox| stored(outbox, &message));
        }
    }
    marked(&text, &door);
}

fn facts(message: &NewMessage) -> impl PartialEq + std::fmt::Debug {
    (
        [&message.dedup_key, &message.kind, &message.destination, &message.recipient, &message.payload]
            .map(String::clone),
        (message.ordering_key.clone(), message.traceparent.clone(), message.priority),
        (message.not_before_ms, message.expires_at_ms, message.class),
    )
}

/// In a transaction that is taken back.
fn stored(outbox: &Connection, message: &NewMessage) {
    let result = outbox.execute_batch("BEGIN").and_then(|()| {
        let first = outbox::put(outbox, message)?;
        assert!(matches!(first, Put::New(_)), "an empty table: {first:?}");
        let again = outbox::put(outbox, message)?;
        assert!(matches!(again, Put::Same(_)), "the same event: {again:?}");
        let other = NewMessage { kind: format!("{}x", message.kind), ..message.clone() };
        if other.check().is_ok() {
            let other = outbox::put(outbox, &other)?;
            assert!(matches!(other, Put::Conflict(_)), "the same key, other content: {other:?}");
        }
        let (recipient, payload): (String, String) =
            outbox.query_row("SELECT recipient, payload FROM outbox", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        assert_eq!((&recipient, &payload), (&message.recipient, &message.payload), "as it went in");
        Ok(())
    });
    let undone = outbox.execute_batch("ROLLBACK");
    if let Err(error) = result.and(undone) {
        panic!("the door let in what the table refuses: {error}");
    }
}

/// The same line with a mark in every value: no problem repeats it.
fn marked(text: &str, door: &Door<'_>) {
    let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(text) else { return };
    for wanted in ["recipient", "payload", "dedup_key", "class", "priority", "traceparent", "destination"] {
        let mut fields = fields.clone();
        if let Some(value) = fields.get_mut(wanted) {
            mark(value);
        }
        let line = serde_json::Value::Object(fields).to_string();
        if let Err(problem) = enqueue::parse(line.as_bytes()).and_then(|message| door.check(message)) {
            assert!(!problem.contains(MARK), "a value is told: {problem}");
        }
    }
}

fn mark(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::String(text) => text.insert_str(0, MARK),
        Value::Array(items) => items.iter_mut().for_each(mark),
        Value::Object(fields) => fields.values_mut().for_each(mark),
        other => *other = MARK.into(),
    }
}
