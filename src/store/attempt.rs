//! Sole writer of `attempt`: one line per vendor call, append only, also for claims that were released.

use rusqlite::{Connection, params};

use crate::db::pool::Pool;
use crate::db::writer::Work;
use crate::message::{Destination, MessageId, OwnerId, Timing};

/// The four outcomes as the log names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttemptOutcome {
    /// The vendor took it.
    Accepted,
    /// The vendor said no.
    Rejected,
    /// Proven not to be there.
    NotSent,
    /// Nobody knows.
    Unknown,
}

impl AttemptOutcome {
    /// The capitals used in SQL, logs and CLI.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "ACCEPTED",
            Self::Rejected => "REJECTED",
            Self::NotSent => "NOT_SENT",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// One vendor call.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Destination.
    pub consumer: Destination,
    /// Message.
    pub message_id: MessageId,
    /// When the call began, UTC milliseconds.
    pub started_at_ms: i64,
    /// From due to the call, microseconds.
    pub waiting_us: i64,
    /// Where the call's time went.
    pub timing: Timing,
    /// What came of it.
    pub outcome: AttemptOutcome,
    /// Status line, if one was read.
    pub http_status: Option<u16>,
    /// Vendor's code.
    pub vendor_code: Option<String>,
    /// For people.
    pub reason: Option<String>,
    /// Who called.
    pub claimed_by: OwnerId,
    /// Trace context.
    pub traceparent: Option<String>,
}

/// The end of a log line about a message whose call is over: the trace context of its last call, or nothing.
pub fn traced(readers: &Pool, message_id: &str) -> String {
    let found: Option<String> = readers.get().ok().and_then(|reader| {
        reader
            .prepare_cached("SELECT traceparent FROM attempt WHERE message_id = ?1 ORDER BY id DESC LIMIT 1")
            .and_then(|mut last| last.query_row([message_id], |row| row.get(0)))
            .unwrap_or_default()
    });
    found.map(|trace| format!(" traceparent={trace}")).unwrap_or_default()
}

/// Work: a call that was not the last of its claim. Applied again after a failed commit, it stands once.
pub struct Append(pub Attempt);

impl Work for Append {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if is_there(connection, &self.0)? { Ok(()) } else { append(connection, &self.0) }
    }
    fn committed(self: Box<Self>) {}
    fn failed(self: Box<Self>, _why: &str) {}
    fn must_land(&self) -> bool {
        true
    }
}

/// Appends.
pub fn append(connection: &Connection, attempt: &Attempt) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO attempt (consumer, message_id, started_at_ms, waiting_us, connecting_us, answering_us,
                                  outcome, http_status, vendor_code, reason, claimed_by, traceparent)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            attempt.consumer,
            attempt.message_id,
            attempt.started_at_ms,
            attempt.waiting_us,
            crate::clock::us(attempt.timing.connecting),
            crate::clock::us(attempt.timing.answering),
            attempt.outcome.as_str(),
            attempt.http_status,
            attempt.vendor_code,
            attempt.reason,
            attempt.claimed_by,
            attempt.traceparent,
        ])?;
    Ok(())
}

/// Whether this destination was ever called for the message.
pub fn any(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM attempt WHERE message_id = ?2 AND consumer = ?1")?
        .exists(params![consumer, message_id])
}

/// Whether this very attempt stands in the log, e.g. from a commit that failed and had landed.
pub fn is_there(connection: &Connection, attempt: &Attempt) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM attempt WHERE message_id = ?1 AND consumer = ?2 AND started_at_ms = ?3
                               AND claimed_by = ?4 AND outcome = ?5 AND reason IS ?6)",
        )?
        .query_row(
            params![
                attempt.message_id,
                attempt.consumer,
                attempt.started_at_ms,
                attempt.claimed_by,
                attempt.outcome.as_str(),
                attempt.reason
            ],
            |row| row.get(0),
        )
}
