//! Pure: a short, versioned hash of what is sent, so that one message id can never quietly stand for two contents.
//!
//! Version 1 covers kind, recipient and payload as they stand in the row, separated by NUL (which SQLite text from a
//! producer does not hold), SHA-256 cut to 128 bits. Another canonical form gets another version; only equal versions
//! are compared.

use ring::digest::{Context, SHA256};

use crate::message::Message;

/// `1:` and 32 hex digits.
pub fn of(message: &Message) -> String {
    of_parts(&message.kind, &message.recipient, &message.payload)
}

/// The same from the three parts, where there is no whole message: a row that is wiped, a producer's repeat.
pub fn of_parts(kind: &str, recipient: &str, payload: &str) -> String {
    let mut context = Context::new(&SHA256);
    for part in [kind, recipient, payload] {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let digest = context.finish();
    let mut text = String::with_capacity(34);
    text.push_str("1:");
    for byte in &digest.as_ref()[..16] {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    text
}
