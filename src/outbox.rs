//! The library's door into an outbox: a message in the caller's own transaction, beside its business data.
//!
//! For Rust applications that keep an outbox inside their own SQLite file; other languages write the same row
//! with plain SQL. Writes through `store/outbox.rs` alone; never begins, commits or sends anything.
//!
//! ```
//! use onceward::outbox::{Enqueued, Message, Outbox};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut connection = rusqlite::Connection::open_in_memory()?; // the application's own file
//! connection.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")?;
//! Outbox::install(&mut connection)?;
//!
//! let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
//! tx.execute("INSERT INTO orders (id, total) VALUES (1842, 35000)", [])?;
//! let message = Message::new("ORDER_PLACED:1842", "ORDER_SMS", "01000000001", r#"{"type":"sms"}"#);
//! let Enqueued::New(message_id) = Outbox::enqueue(&tx, &message)? else { panic!("it is new") };
//! assert_eq!(Outbox::enqueue(&tx, &message)?, Enqueued::Same(message_id), "the same event again is harmless");
//! tx.commit()?; // the order and its message, or neither
//! # Ok(())
//! # }
//! ```

use std::fmt;

use rusqlite::Connection;

use crate::db::{self, DbError, Part, migrate};
use crate::limits::{DEDUP_KEY_CHARS_MAX, FIELD_CHARS_MAX, PAYLOAD_BYTES_MAX};
use crate::message::Class;
use crate::store::outbox;

pub use crate::store::outbox::{NewMessage as Message, Put as Enqueued};

/// Longest `destination`, characters (also a CHECK).
const DESTINATION_CHARS_MAX: usize = 40;
/// 5138-11-16: from here on milliseconds are micro- or nanoseconds by mistake, as the CHECKs have it.
const TIME_MS_END: i64 = 100_000_000_000_000;

/// An outbox inside an open database.
pub struct Outbox;

impl Outbox {
    /// Makes the outbox tables in an open database, or brings them up to date; repeating it is harmless.
    /// Changes no setting of the file. A file of a newer program is refused and left alone.
    ///
    /// The agent reads it once the file is one of its sources.
    pub fn install(connection: &mut Connection) -> Result<(), DbError> {
        let path = connection.path().unwrap_or_default().to_owned();
        migrate::migrate(connection, path.as_ref(), Part::Outbox)
    }

    /// Puts a message into the transaction that the caller has open (`&Transaction` fits) and commits: it is
    /// there if and only if the caller's other changes are. Begin that transaction IMMEDIATE. Repeating it is
    /// harmless: one `dedup_key` is one message, and other content under the same key is kept in quarantine,
    /// not sent.
    ///
    /// The commit must be durable before anyone is told (`synchronous` FULL in WAL mode).
    pub fn enqueue(tx: &Connection, message: &Message) -> Result<Enqueued, EnqueueError> {
        message.check().map_err(EnqueueError::Invalid)?;
        if tx.is_autocommit() {
            return Err(EnqueueError::NoTransaction);
        }
        outbox::put(tx, message).map_err(|error| {
            if db::is_busy(&error) || db::is_full(&error) {
                EnqueueError::TryAgain(error)
            } else {
                EnqueueError::Database(error)
            }
        })
    }
}

/// Why a message was not put, sorted by what happens next. Nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// Bad data: mend the message.
    #[error("{0}")]
    Invalid(BadField),
    /// A bug of the caller: the message would stand alone.
    #[error(
        "enqueue was called outside a transaction; begin one, so that the message and your data are one commit"
    )]
    NoTransaction,
    /// Somebody holds the database, or the disk is full: roll the transaction back and try again later.
    #[error("the outbox cannot take it now, try again later: {0}")]
    TryAgain(rusqlite::Error),
    /// Anything else that SQLite says, e.g. no outbox in this file: roll back.
    #[error("the outbox did not take it: {0}")]
    Database(rusqlite::Error),
}

/// A field that does not fit, without its value (which may be a number or a text).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadField {
    /// Its name, as the column is called.
    pub field: &'static str,
    /// What was expected and what was found.
    pub reason: String,
}

impl fmt::Display for BadField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl Message {
    /// A message with the four facts that have no default: `dedup_key` from business keys (1-200 characters),
    /// what it is about, to whom, and everything to be sent as JSON, at its value when the event happened (at
    /// most 64 KiB).
    pub fn new(
        dedup_key: impl Into<String>,
        kind: impl Into<String>,
        recipient: impl Into<String>,
        payload: impl Into<String>,
    ) -> Self {
        Self {
            dedup_key: dedup_key.into(),
            kind: kind.into(),
            class: Class::Transactional,
            destination: String::new(),
            recipient: recipient.into(),
            payload: payload.into(),
            ordering_key: None,
            priority: 5,
            not_before_ms: None,
            expires_at_ms: None,
            traceparent: None,
        }
    }

    /// Lengths and ranges as the table's CHECKs have them, and whether the payload is JSON; the field is
    /// named.
    pub fn check(&self) -> Result<(), BadField> {
        let chars = |field, text: &str, least: usize, most: usize| {
            let count = text.chars().count();
            if count < least || count > most {
                return Err(BadField {
                    field,
                    reason: format!("{least} to {most} characters were expected, not {count}"),
                });
            }
            // SQLite's length() ends at a NUL, and so would the CHECK.
            if text.contains('\0') {
                return Err(BadField { field, reason: "a NUL character".into() });
            }
            Ok(())
        };
        chars("dedup_key", &self.dedup_key, 1, DEDUP_KEY_CHARS_MAX)?;
        chars("kind", &self.kind, 1, FIELD_CHARS_MAX)?;
        chars("destination", &self.destination, 0, DESTINATION_CHARS_MAX)?;
        if !self.destination.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
            let reason = "letters, digits, - _ and . alone were expected".into();
            return Err(BadField { field: "destination", reason });
        }
        chars("recipient", &self.recipient, 0, FIELD_CHARS_MAX)?;
        if let Some(key) = &self.ordering_key {
            chars("ordering_key", key, 1, FIELD_CHARS_MAX)?;
        }
        if let Some(trace) = &self.traceparent {
            chars("traceparent", trace, 0, FIELD_CHARS_MAX)?;
            if !trace.is_ascii() {
                return Err(BadField { field: "traceparent", reason: "is not ASCII".into() });
            }
        }
        for (field, value) in [("not_before_ms", self.not_before_ms), ("expires_at_ms", self.expires_at_ms)] {
            if value.is_some_and(|ms| ms >= TIME_MS_END) {
                return Err(BadField {
                    field,
                    reason: "is after the year 5000; it takes milliseconds".into(),
                });
            }
        }
        if self.payload.len() > PAYLOAD_BYTES_MAX {
            let found = self.payload.len();
            let reason = format!("at most {PAYLOAD_BYTES_MAX} bytes were expected, not {found}");
            return Err(BadField { field: "payload", reason });
        }
        if serde_json::from_str::<serde::de::IgnoredAny>(&self.payload).is_err() {
            return Err(BadField { field: "payload", reason: "not valid JSON".into() });
        }
        if self.priority > 9 {
            let reason = format!("0 to 9 was expected, not {}", self.priority);
            return Err(BadField { field: "priority", reason });
        }
        Ok(())
    }
}

impl fmt::Debug for Message {
    /// Without recipient and payload, as every message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("dedup_key", &self.dedup_key)
            .field("kind", &self.kind)
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new("k", "K", "01000000001", "{}")
    }

    #[test]
    fn a_field_that_does_not_fit_is_named_without_its_value() {
        let long = |count| "가".repeat(count);
        let cases: [(&str, Message); 14] = [
            ("dedup_key", Message { dedup_key: String::new(), ..message() }),
            ("dedup_key", Message { dedup_key: long(DEDUP_KEY_CHARS_MAX + 1), ..message() }),
            ("kind", Message { kind: long(FIELD_CHARS_MAX + 1), ..message() }),
            ("destination", Message { destination: long(DESTINATION_CHARS_MAX + 1), ..message() }),
            ("recipient", Message { recipient: "010\0".into(), ..message() }),
            ("ordering_key", Message { ordering_key: Some(String::new()), ..message() }),
            ("payload", Message { payload: "{".into(), ..message() }),
            ("payload", Message { payload: format!("\"{}\"", "x".repeat(PAYLOAD_BYTES_MAX)), ..message() }),
            ("priority", Message { priority: 10, ..message() }),
            // What the table's CHECKs refuse is refused here: else one such line would keep a whole chunk from being stored.
            ("destination", Message { destination: "a b".into(), ..message() }),
            ("traceparent", Message { traceparent: Some("é".repeat(101)), ..message() }),
            ("traceparent", Message { traceparent: Some("é".into()), ..message() }),
            ("not_before_ms", Message { not_before_ms: Some(TIME_MS_END), ..message() }),
            ("expires_at_ms", Message { expires_at_ms: Some(i64::MAX), ..message() }),
        ];
        for (field, message) in cases {
            let bad = message.check().expect_err(field);
            assert_eq!(bad.field, field);
            assert!(!bad.to_string().contains("010"), "{bad}");
        }
        assert_eq!(Message { dedup_key: long(DEDUP_KEY_CHARS_MAX), ..message() }.check(), Ok(()));
        assert!(!format!("{:?}", message()).contains("010"));
    }

    #[test]
    fn without_a_transaction_or_without_an_outbox_nothing_is_put() {
        let mut connection = Connection::open_in_memory().expect("opens");
        Outbox::install(&mut connection).expect("installs");
        Outbox::install(&mut connection).expect("again is harmless");
        assert!(matches!(Outbox::enqueue(&connection, &message()), Err(EnqueueError::NoTransaction)));
        let tx = connection.transaction().expect("begins");
        assert!(matches!(Outbox::enqueue(&tx, &message()), Ok(Enqueued::New(_))));
        drop(tx); // the caller changed its mind
        let rows: i64 =
            connection.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0)).expect("counts");
        assert_eq!(rows, 0);

        let mut bare = Connection::open_in_memory().expect("opens");
        let tx = bare.transaction().expect("begins");
        assert!(matches!(Outbox::enqueue(&tx, &message()), Err(EnqueueError::Database(_))));
    }

    #[test]
    fn a_rival_s_lock_is_try_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("app.db");
        let mut connection = Connection::open(&file).expect("opens");
        Outbox::install(&mut connection).expect("installs");
        let rival = Connection::open(&file).expect("opens");
        rival.execute_batch("BEGIN IMMEDIATE").expect("holds");
        connection.busy_timeout(std::time::Duration::ZERO).expect("set");
        let tx = connection.transaction().expect("begins");
        assert!(matches!(Outbox::enqueue(&tx, &message()), Err(EnqueueError::TryAgain(_))));
    }
}
