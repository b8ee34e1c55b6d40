//! Pure: a short, versioned hash of what is sent, so that one message id can never quietly stand for two contents.
//!
//! Version 1 covers kind, recipient and payload as they stand in the row, separated by NUL (which SQLite text from a
//! producer does not hold), SHA-256 cut to 128 bits. Another canonical form gets another version; only equal versions
//! are compared.

use ring::digest::{Context, SHA256};

use crate::message::Message;

/// `1:` and 32 hex digits.
pub fn of(message: &Message) -> String {
    let mut context = Context::new(&SHA256);
    for part in [&message.kind, &message.recipient, &message.payload] {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let digest = context.finish();
    format!("1:{}", hex(&digest.as_ref()[..16]))
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
