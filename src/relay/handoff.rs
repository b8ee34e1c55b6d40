//! What passes between a relay and the workers: hand-offs out, confirms back, and all else that can wake the relay.
//!
//! Plain data that is moved, never shared. Never: a decision; what an answer does to its row is in `relay/marks.rs`.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use jiff::Timestamp;

use crate::message::{Message, MessageId, NotSentKind};
use crate::retention;
use crate::share::Held;
use crate::source::OptOuts;

/// One message on its way to a worker; moved, never shared.
#[derive(Debug)]
pub struct Handoff {
    /// Row in the relay's outbox.
    pub row: i64,
    /// Claims so far.
    pub attempts: u32,
    /// Handed over before: look in the inbox first.
    pub again: bool,
    /// What to deliver.
    pub message: Message,
    /// When it was claimed; waiting is measured from here and from its due time.
    pub claimed: Instant,
    /// From then on the row may be in other hands (well before its lease is over): nothing more is begun on it, and
    /// nothing but its fate is said of it.
    pub until: Instant,
    /// The opt-outs of the file it stands in, where that is not outbox.db.
    pub opt_outs: Option<Arc<OptOuts>>,
    /// Where the confirm goes.
    pub confirm: Sender<Event>,
    /// Its place and its order lane, free again when the worker is done with it.
    pub held: Held,
}

/// What a worker says of a hand-off.
#[derive(Debug)]
pub struct Confirm {
    /// Row in the relay's outbox.
    pub row: i64,
    /// Its message: a file that went back in time may have given the row's id to another one.
    pub message_id: MessageId,
    /// What is to be marked.
    pub answer: Answer,
}

/// The worker's answers.
#[derive(Debug)]
pub enum Answer {
    /// The inbox has its fate: PUBLISHED.
    Settled,
    /// Another copy of it is in a worker's hands, whose confirm will come.
    InFlight,
    /// Certainly not sent.
    NotSent {
        /// What kind of "not sent".
        kind: NotSentKind,
        /// For people.
        reason: String,
    },
    /// Not even begun (stop, gate shut, database in trouble): back, no attempt used.
    Returned(&'static str),
    /// A bug or a panic before its claim: back, with the hand-off pauses.
    HandoffFailed(String),
    /// Policy: later.
    Wait {
        /// UTC milliseconds.
        until_ms: i64,
        /// Its deadline from now on, where it was moved to its last day.
        last_ms: Option<i64>,
        /// For people.
        reason: String,
    },
    /// Policy: not before the clock is right.
    Hold(String),
    /// Policy: never.
    Skip(String),
    /// Policy: too late.
    Expire(String),
    /// It could never be sent as it is: waits for a person.
    Park(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settled => f.write_str("its fate is known"),
            Self::InFlight => f.write_str("another copy of it is under way"),
            Self::NotSent { reason, .. } => write!(f, "not sent: {reason}"),
            Self::Returned(reason) => f.write_str(reason),
            Self::HandoffFailed(reason) => f.write_str(reason),
            Self::Wait { until_ms, reason, .. } => match Timestamp::from_millisecond(*until_ms) {
                Ok(until) => write!(f, "it waits until {until}: {reason}"),
                Err(_) => write!(f, "it waits: {reason}"),
            },
            Self::Hold(reason) => write!(f, "it waits: {reason}"),
            Self::Skip(reason) => write!(f, "SKIPPED: {reason}"),
            Self::Expire(reason) => write!(f, "EXPIRED: {reason}"),
            Self::Park(reason) => write!(f, "PARKED: {reason}"),
        }
    }
}

/// All that can wake the relay.
#[derive(Debug)]
pub enum Event {
    /// Somebody committed to the outbox.
    Wake,
    /// A worker is done with a hand-off.
    Confirm(Confirm),
    /// A bounded step of retention, done between two rounds.
    Purge(retention::room::Request),
    /// Answer when this round is done: a proof of progress.
    Ping(Sender<()>),
    /// Claim nothing more; give back what was not begun; end when all hand-offs are back, or at the deadline.
    Stop(Instant),
}
