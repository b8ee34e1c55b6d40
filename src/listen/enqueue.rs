//! `POST /v1/messages`: puts messages into the outbox as `onceward enqueue` does: one object, or JSON lines.
//!
//! One object answers 201 with its id, 200 the same event again, 409 the same key with other content (kept in
//! quarantine, not sent), 422 a field is wrong, 503 with Retry-After: the disk is full, the file is busy or the outbox is
//! drained. Lines are one synced transaction and answer a line each, with its own status; the whole has the worst of
//! them. Good lines are stored beside bad ones. No answer holds a number or a text.

use serde_json::{Value, json};

use super::Context;
use super::routes::Request;
use super::wire::Answer;
use crate::cli::enqueue::{self, Door};
use crate::relay::Event;
use crate::store::outbox::Put;

/// Most lines in one request: as many as the command stores in one commit.
const LINES_MAX: usize = 500;

pub(super) fn take_in(context: &Context, request: &Request<'_>) -> Answer {
    let lines: Vec<&[u8]> = match serde_json::from_slice::<serde::de::IgnoredAny>(request.body) {
        // One object over several lines is one object.
        Ok(_) => vec![request.body],
        Err(_) => request
            .body
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.iter().all(u8::is_ascii_whitespace))
            .collect(),
    };
    if lines.is_empty() || lines.len() > LINES_MAX {
        return answer(
            422,
            &[json!({ "text": format!("one object or 1 to {LINES_MAX} JSON lines were expected") })],
        );
    }
    let door = match Door::new(&context.settings) {
        Ok(door) => door,
        Err(failure) => return unavailable(&failure.text),
    };
    let mut said: Vec<Value> = Vec::new();
    let (mut good, mut places) = (Vec::new(), Vec::new());
    for (place, line) in lines.iter().enumerate() {
        match enqueue::parse(line).and_then(|message| door.check(message)) {
            Ok((message, remarks)) => {
                good.push(message);
                places.push(place);
                said.push(json!({ "remarks": remarks }));
            }
            Err(problem) => said.push(json!({ "status": 422, "text": problem })),
        }
    }
    let put = enqueue::open(&context.settings).and_then(|mut outbox| enqueue::put_all(&mut outbox, &good));
    let put = match put {
        Ok(put) => put,
        Err(failure) => return unavailable(&failure.text),
    };
    for (put, place) in put.into_iter().zip(places) {
        let (status, id, text) = match put {
            Put::New(id) => (201, id, "new"),
            Put::Same(id) => (200, id, "known already"),
            Put::Conflict(id) => (
                409,
                id,
                "dedup_key: known with other content; the first message stands, this one is kept in quarantine and not sent",
            ),
        };
        said[place]["status"] = json!(status);
        said[place]["message_id"] = json!(id.as_str());
        said[place]["text"] = json!(text);
    }
    let _ = context.relay.send(Event::Wake);
    let worst = said.iter().filter_map(|line| line["status"].as_u64()).max().unwrap_or(422);
    answer(worst as u16, &said)
}

fn answer(status: u16, lines: &[Value]) -> Answer {
    Answer::json(status, lines.iter().map(|line| format!("{line}\n")).collect())
}

/// Nothing of it is stored for sure; repeating is harmless.
fn unavailable(text: &str) -> Answer {
    super::sentence(503, text)
}
