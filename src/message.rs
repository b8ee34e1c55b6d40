//! Plain data that moves between rooms: ids as newtypes, the message, the hand-off, the outcome.
//!
//! Nothing here decides, reads a clock or touches a file. `Debug` of a [`Message`] never prints a recipient
//! or a payload, so a stray `{:?}` cannot put a phone number into a log.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The id a message carries for its whole life, to the vendor's reference field and back in reports.
/// Made by the default of `outbox.message_id`: `ow-` + milliseconds in hex + 64 random bits, 30 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

/// The name of a `[[destination]]`, and the `consumer` of its inbox rows.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination(Arc<str>);

/// Who holds a claim: the agent's lasting id and its present start, `AGENT:START`. Two starts never share one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OwnerId(Arc<str>);

macro_rules! text_newtype {
    ($name:ident) => {
        impl $name {
            /// Wraps the text as it is.
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl rusqlite::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                Ok(rusqlite::types::ToSqlOutput::Borrowed(self.as_str().into()))
            }
        }
        impl rusqlite::types::FromSql for $name {
            fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
                value.as_str().map(Self::new)
            }
        }
    };
}
text_newtype!(MessageId);
text_newtype!(Destination);
text_newtype!(OwnerId);

/// Message class: decides the hours in which a message may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Class {
    /// Something happened that the customer must know: any hour.
    Transactional,
    /// Advertising: only inside the class's window.
    Advertising,
}

impl Class {
    /// As written in the `class` column and in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Transactional => "TRANSACTIONAL",
            Class::Advertising => "ADVERTISING",
        }
    }
    /// Reads the column's text.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "TRANSACTIONAL" => Some(Class::Transactional),
            "ADVERTISING" => Some(Class::Advertising),
            _ => None,
        }
    }
}

/// What to deliver: the facts of one outbox row, all that a worker or an adapter may see.
#[derive(Clone)]
pub struct Message {
    /// The vendor-side reference, unique for ever.
    pub message_id: MessageId,
    /// From business keys; one event is one row.
    pub dedup_key: String,
    /// What it is about, e.g. `GRADE_RENEWAL`; routes go by it.
    pub kind: String,
    /// Decides the sending hours.
    pub class: Class,
    /// Where to, resolved.
    pub destination: Destination,
    /// To whom: a phone number or whatever the destination understands.
    pub recipient: String,
    /// Everything to be sent, as JSON text, at its value when the event happened.
    pub payload: String,
    /// Order lane, if any.
    pub ordering_key: Option<String>,
    /// 0 (most urgent) to 9.
    pub priority: u8,
    /// Due time, UTC milliseconds.
    pub not_before_ms: i64,
    /// Deadline, UTC milliseconds.
    pub expires_at_ms: Option<i64>,
    /// When the row was written, UTC milliseconds.
    pub created_at_ms: i64,
    /// W3C trace context, handed on to the vendor call and the logs.
    pub traceparent: Option<String>,
}

impl Message {
    /// The trace context, if it has the shape that W3C gives it (version 00): only then does it go into logs, attempt
    /// rows and to the vendor, since a producer may put any text there. A broken one never holds a message back.
    pub fn trace_context(&self) -> Option<&str> {
        let text = self.traceparent.as_deref()?;
        let mut parts = text.split('-');
        let mut hex = |digits: usize| {
            parts.next().filter(|part| {
                part.len() == digits && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            })
        };
        let version = hex(2)?;
        let (trace, parent) = (hex(32)?, hex(16)?);
        let _flags = hex(2)?;
        let zeros = |id: &str| id.bytes().all(|byte| byte == b'0');
        (version == "00" && !zeros(trace) && !zeros(parent) && parts.next().is_none()).then_some(text)
    }

    /// The end of a log line about this message: its trace context, or nothing.
    pub fn traced(&self) -> String {
        self.trace_context().map(|trace| format!(" traceparent={trace}")).unwrap_or_default()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("message_id", &self.message_id)
            .field("kind", &self.kind)
            .field("destination", &self.destination)
            .finish_non_exhaustive()
    }
}

/// Why a request is *certainly* not at the vendor, sorted by what happens next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotSentKind {
    /// Name look-up, connect, TLS, proxy: the destination closes, the message loses no attempt.
    Unreachable,
    /// 429 and the like: the destination waits (at least this long), the message loses no attempt.
    Throttled(Option<Duration>),
    /// The account as a whole is refused (password, address list, suspended): the destination closes with an
    /// alert, the message loses no attempt.
    Denied,
    /// The moment until which the call had to begin passed while it connected: the rules are asked again.
    TooLate,
    /// Refused at the door for a reason that may pass: counts as an attempt, tried again later, then PARKED.
    Refused,
}

/// What one vendor call told us, sorted by what may happen next. `Unknown` is never folded into another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The vendor took it: SENT.
    Accepted {
        /// The vendor's code (or the HTTP status).
        code: String,
        /// The vendor's own id for it.
        vendor_ref: Option<String>,
    },
    /// The vendor read it and said no for good: FAILED.
    Rejected {
        /// The vendor's code (or the HTTP status).
        code: String,
        /// The code's meaning, never the vendor's free text (which may repeat a number).
        reason: String,
    },
    /// Proven not to be at the vendor: the claim is released.
    NotSent {
        /// What happens next.
        kind: NotSentKind,
        /// The vendor's code (or the HTTP status), where there was an answer.
        code: Option<String>,
        /// For people.
        reason: String,
        /// The evidence.
        proof: NotSentProof,
    },
    /// Anything else: ERROR, never sent again.
    Unknown {
        /// The vendor's code (or the HTTP status), where there was an answer.
        code: Option<String>,
        /// For people.
        reason: String,
    },
}

/// Evidence that no request reached the vendor. Only the HTTP client (no byte handed over) and an adapter's
/// code table (a documented refusal at the door) can make one, so nobody can release a claim on a hunch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotSentProof {
    _only_vendor_makes_one: (),
}

impl NotSentProof {
    /// For `vendor/` alone.
    pub(crate) fn vendor_only() -> Self {
        Self { _only_vendor_makes_one: () }
    }
    /// For a scripted vendor (debug builds).
    #[doc(hidden)]
    #[cfg(debug_assertions)]
    pub fn for_tests() -> Self {
        Self { _only_vendor_makes_one: () }
    }
    /// For the worker's last look at the rules: the adapter was not even asked.
    pub(crate) fn before_the_call() -> Self {
        Self { _only_vendor_makes_one: () }
    }
}

/// How long the parts of a call took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timing {
    /// Name look-up, TCP and TLS; zero on a kept connection.
    pub connecting: Duration,
    /// From the first request byte to the end of the answer.
    pub answering: Duration,
}

/// What an adapter hands back after one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// What it means.
    pub outcome: Outcome,
    /// The HTTP status line, where one was read.
    pub http_status: Option<u16>,
    /// Where the time went.
    pub timing: Timing,
    /// The vendor asks the whole destination to slow down (`RateLimit-*` with nothing remaining, `Retry-After`).
    pub pause: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trace_context_passes_for_one() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for (text, passes) in [
            (good, true),
            (&good.replace("00-4b", "01-4b")[..], false),
            (&good.to_uppercase()[..], false),
            (&format!("{good}-00")[..], false),
            ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", false),
            ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", false),
            ("01012345678", false),
            ("a\nalert cause=ERROR", false),
            ("", false),
        ] {
            let message = Message {
                message_id: MessageId::new("ow-1"),
                dedup_key: "k".into(),
                kind: "TEST".into(),
                class: Class::Transactional,
                destination: Destination::new("gateway"),
                recipient: "01000000001".into(),
                payload: "{}".into(),
                ordering_key: None,
                priority: 5,
                not_before_ms: 0,
                expires_at_ms: None,
                created_at_ms: 0,
                traceparent: Some(text.to_owned()),
            };
            assert_eq!(message.trace_context(), passes.then_some(text), "{text}");
        }
    }
}
