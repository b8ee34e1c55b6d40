//! Pure: a short, versioned hash of what is sent, so that one message id can never quietly stand for two contents.
//!
//! Version 3 covers kind, recipient and payload in their canonical forms, separated by NUL (which a CHECK keeps out of
//! them), SHA-256 cut to 128 bits. Another canonical form gets another version; only equal versions are compared.

use std::borrow::Cow;

use ring::digest::{Context, SHA256};
use serde_json::Value;

use crate::message::Message;
use crate::policy::number;
use crate::vendor::json;

/// `3:` and 32 hex digits.
pub fn of(message: &Message) -> String {
    of_parts(&message.kind, &message.recipient, &message.payload)
}

/// The same from the three parts, where there is no whole message: a row that is wiped, a producer's repeat.
pub fn of_parts(kind: &str, recipient: &str, payload: &str) -> String {
    hash(3, kind, &one_form(recipient, number::country(payload).as_deref()), payload)
}

/// Whether a wiped row had said the same; also one that was wiped when version 2 took the recipient as it is written.
pub fn is_of(wiped: &str, kind: &str, recipient: &str, payload: &str) -> bool {
    if wiped.starts_with("2:") {
        return wiped == hash(2, kind, recipient, payload);
    }
    wiped == of_parts(kind, recipient, payload)
}

fn hash(version: u8, kind: &str, recipient: &str, payload: &str) -> String {
    let mut context = Context::new(&SHA256);
    for part in [kind, recipient, &*canonical(payload)] {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let digest = context.finish();
    format!("{version}:{}", hex(&digest.as_ref()[..16]))
}

/// Whether two fingerprints prove two contents: those of two versions prove nothing.
pub fn tells_apart(a: &str, b: &str) -> bool {
    let version = |text: &str| text.split_once(':').map(|(version, _)| version.to_owned());
    a != b && version(a).is_some() && version(a) == version(b)
}

/// One person's number is one text, whether a producer wrote it with marks or `enqueue` stored it.
fn one_form(recipient: &str, country: Option<&str>) -> String {
    number::stored(recipient, country).unwrap_or_else(|_| number::canonical(recipient))
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
    fn one_number_is_one_content_and_versions_are_not_compared() {
        let of = |recipient: &str, payload: &str| of_parts("K", recipient, payload);
        assert_eq!(of("010-0000-0001", "{ }"), of("+82 10 0000 0001", "{}"));
        assert_eq!(of("212-555-0100", r#"{"country":"1"}"#), of("+12125550100", r#"{ "country": "1" }"#));
        assert!(tells_apart(&of("010-0000-0001", "{}"), &of("010-0000-0002", "{}")));
        assert!(tells_apart(&of("store-1", "{}"), &of("store1", "{}")));
        assert!(is_of(&of("010-0000-0001", "{}"), "K", "01000000001", "{ }"));
        let old = hash(2, "K", "010-0000-0001", "{}");
        assert!(is_of(&old, "K", "010-0000-0001", "{ }") && !is_of(&old, "K", "010-0000-0002", "{}"));
        assert!(!tells_apart("2:00", "3:01"));
        assert!(!tells_apart(&of("a", "{}"), ""));
    }

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
