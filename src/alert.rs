//! The one way to tell a person: a log line at level error first, then a count by cause and destination.
//!
//! The line does not depend on the database it may be about. Nothing here waits for anything.

use crate::clock::wall_ms;
use crate::db::writer::Writer;
use crate::store::alert::Raise;

/// Causes, as `status` and the `alert` table name them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// An outcome stayed unknown.
    Error,
    /// SENDING rows of a dead owner, or stale ones.
    StaleSending,
    /// A message waits for a person.
    Parked,
    /// A deadline passed.
    Expired,
    /// A destination stopped answering or refuses the account.
    DestinationClosed,
    /// A message was tried often.
    ManyAttempts,
    /// The same message id with other content.
    Conflict,
    /// An application's file cannot be served.
    Source,
}

impl Cause {
    /// The capitals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::StaleSending => "STALE_SENDING",
            Self::Parked => "PARKED",
            Self::Expired => "EXPIRED",
            Self::DestinationClosed => "DESTINATION_CLOSED",
            Self::ManyAttempts => "MANY_ATTEMPTS",
            Self::Conflict => "CONFLICT",
            Self::Source => "SOURCE",
        }
    }
}

/// Tells.
#[derive(Clone)]
pub struct Alerts {
    writer: Writer,
}

impl Alerts {
    /// Counts go through the inbox writer.
    pub fn new(writer: Writer) -> Self {
        Self { writer }
    }

    /// `text` is for people and holds no number and no text of a message.
    pub fn raise(&self, cause: Cause, destination: &str, text: String) {
        self.raise_many(cause, destination, text, 1);
    }

    /// The same for several at once: one line.
    pub fn raise_many(&self, cause: Cause, destination: &str, text: String, count: i64) {
        log::error!("alert cause={} dest={destination} {text}", cause.as_str());
        self.writer.submit(Box::new(Raise {
            cause: cause.as_str(),
            destination: destination.to_owned(),
            text,
            count,
            at_ms: wall_ms(),
        }));
    }
}
