//! Pure: a short, versioned hash of what is sent, so that one message id can never quietly stand for two contents.
//!
//! Version 2 covers kind, recipient and the payload in its canonical form, separated by NUL (which a CHECK keeps out of
//! them), SHA-256 cut to 128 bits. Another canonical form gets another version; only equal versions are compared.

use std::borrow::Cow;

use ring::digest::{Context, SHA256};
use serde_json::Value;

use crate::message::Message;
use crate::vendor::json;

/// `2:` and 32 hex digits.
pub fn of(message: &Message) -> String {
    of_parts(&message.kind, &message.recipient, &message.payload)
}

/// The same from the three parts, where there is no whole message: a row that is wiped, a producer's repeat.
pub fn of_parts(kind: &str, recipient: &str, payload: &str) -> String {
    let mut context = Context::new(&SHA256);
    for part in [kind, recipient, &*canonical(payload)] {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let digest = context.finish();
    format!("2:{}", hex(&digest.as_ref()[..16]))
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The same JSON gives the same text: keys sorted, no spaces. Where two different texts could become one (numbers that
/// are no 64-bit integers, a key named twice) and where it is no JSON, the text stays as it is.
pub fn canonical(payload: &str) -> Cow<'_, str> {
    match json::strict(payload.as_bytes()) {
        Some(value) if is_exact(&value) => Cow::Owned(value.to_string()),
        _ => Cow::Borrowed(payload),
    }
}

fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64(),
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(fields) => fields.values().all(is_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_json_is_one_text_and_different_json_never_is() {
        for (a, b, same) in [
            (r#"{"a":1,"b":[true,null]}"#, "{ \"b\": [ true , null ],\n\"a\":1 }", true),
            (r#"{"a":"x y"}"#, r#"{"a":"xy"}"#, false),
            (r#"{"a":1}"#, r#"{"a":"1"}"#, false),
            (r#"{"a":"\u0041"}"#, r#"{"a":"A"}"#, true),
            (r#"[1,2]"#, r#"[2,1]"#, false),
            (r#"{"a":12345678901234567890123}"#, r#"{"a":12345678901234567890124}"#, false),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#, false),
            ("no json", "no  json", false),
        ] {
            assert_eq!(canonical(a) == canonical(b), same, "{a} and {b}");
        }
    }
}
