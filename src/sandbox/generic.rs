//! The generic JSON endpoint: any other path takes a message and answers `{"code":1000,"id":"…"}`; and its look-up,
//! `GET /messages/REFERENCE`: 200 `{"state":"taken"}` for what was taken, else 404.
//!
//! Reads who and under which reference; judges nothing about the content.

use serde::Deserialize;
use serde_json::Value;

use crate::listen::wire::Answer;

/// What the counting needs of a generic request.
#[derive(Default)]
pub(super) struct Sent {
    pub reference: String,
    pub recipient: String,
}

#[derive(Deserialize)]
struct Fields {
    reference: Option<Value>,
    message_id: Option<Value>,
    recipient: Option<Value>,
    to: Option<Value>,
    phone: Option<Value>,
}

/// Reads reference and recipient; the header wins over the body.
pub(super) fn read(header: &str, body: &[u8]) -> Sent {
    let fields = serde_json::from_slice::<Fields>(body).ok();
    let text = |value: Option<Value>| match value? {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let Some(fields) = fields else {
        return Sent { reference: header.to_owned(), recipient: String::new() };
    };
    let in_body = text(fields.reference).or_else(|| text(fields.message_id));
    Sent {
        reference: if header.is_empty() { in_body.unwrap_or_default() } else { header.to_owned() },
        recipient: text(fields.recipient)
            .or_else(|| text(fields.to))
            .or_else(|| text(fields.phone))
            .unwrap_or_default(),
    }
}

/// The answer to a message that was taken.
pub(super) fn accepted(number: u64, code_as_text: bool) -> Answer {
    let quote = if code_as_text { "\"" } else { "" };
    Answer::json(200, format!("{{\"code\":{quote}1000{quote},\"id\":\"g{number}\"}}"))
}

/// Path of the look-up, before the reference.
pub(super) const LOOK_UP: &str = "/messages/";

/// The look-up's answer.
pub(super) fn looked_up(taken: bool) -> Answer {
    match taken {
        true => Answer::json(200, r#"{"state":"taken"}"#.to_owned()),
        false => Answer::json(404, r#"{"state":"unknown"}"#.to_owned()),
    }
}
