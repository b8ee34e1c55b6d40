//! Settling an ERROR: one verdict, one transaction with its audit row; and opening the outbox row of what was not sent.
//!
//! Used by `onceward settle` (through the agent's socket, or itself while the agent is down) and by the reconciler. A
//! verdict leads from ERROR alone, so a report or a person that was first wins. *Not sent* is refused where a report
//! names the message (the vendor has it), and a look-up may say it once only.

use std::path::Path;

use rusqlite::Connection;

use crate::clock::wall_ms;
use crate::config::DestinationSettings;
use crate::db::DbError;
use crate::db::writer::Work;
use crate::lifecycle::{InboxEvent, InboxState};
use crate::message::{Destination, MessageId};
use crate::outboxes::{File, Outboxes};
use crate::store::inbox::{self, Verdict};
use crate::store::outbox::{self, Rearmed};
use crate::store::{audit, meta, rearm, report};

/// What is said about an ERROR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It went out.
    Sent,
    /// It did not arrive and never will.
    Failed,
    /// The vendor never received it: it may be sent.
    NotSent,
}

impl End {
    /// As on the command line and in the local API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::NotSent => "not-sent",
        }
    }
    /// Reads it.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Sent, Self::Failed, Self::NotSent].into_iter().find(|end| end.as_str() == text)
    }
    fn event(self) -> InboxEvent {
        match self {
            Self::Sent => InboxEvent::SettleSent,
            Self::Failed => InboxEvent::SettleFailed,
            Self::NotSent => InboxEvent::SettleNotSent,
        }
    }
    fn verb(self) -> &'static str {
        match self {
            Self::Sent => "SETTLE_SENT",
            Self::Failed => "SETTLE_FAILED",
            Self::NotSent => "SETTLE_NOT_SENT",
        }
    }
    /// The state it leads to, for people.
    pub fn after(self) -> &'static str {
        match self {
            Self::Sent => "SENT",
            Self::Failed => "FAILED",
            Self::NotSent => "PENDING",
        }
    }
}

/// Who speaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Speaker {
    /// A person, named as `who.rs` does.
    Operator(String),
    /// The vendor's look-up.
    LookUp,
}

/// One verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// Destination.
    pub consumer: Destination,
    /// Message.
    pub message_id: MessageId,
    /// What is said.
    pub end: End,
    /// By whom.
    pub by: Speaker,
    /// Why, for people; a person's note, or the look-up's answer.
    pub note: String,
    /// The vendor's code, where it told one.
    pub code: Option<String>,
    /// The vendor's own id, where it told one.
    pub vendor_ref: Option<String>,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Done now.
    Yes,
    /// It was so already.
    Already,
    /// It is in this state, from which no verdict leads.
    No(InboxState),
    /// The inbox does not know it: no call stands.
    Missing,
    /// *Not sent* is contradicted by a report.
    Reported,
    /// *Not sent* of a call that may still be under way in the running agent.
    UnderWay,
    /// A look-up said *never received* before; the second time is for a person.
    Once,
}

/// The verdict and its audit row, inside the caller's transaction on the inbox.
pub fn apply(tx: &Connection, settle: &Settle, day: &str, now_ms: i64) -> rusqlite::Result<Settled> {
    let Settle { consumer, message_id, end, by, note, .. } = settle;
    let (who, by) = match by {
        Speaker::Operator(who) => (who.as_str(), "operator"),
        Speaker::LookUp => ("look-up", "look-up"),
    };
    if *end == End::NotSent {
        if report::any(tx, consumer, message_id)? {
            return Ok(Settled::Reported);
        }
        // The sweeper gave it up, but its worker may only be slow: a second call could overtake the first.
        let live = meta::get(tx, "started_by")?.unwrap_or_default();
        if inbox::is_given_up_of(tx, consumer, message_id, &live)? {
            return Ok(Settled::UnderWay);
        }
        if by == "look-up" && rearm::times(tx, consumer, message_id)? > 0 {
            return Ok(Settled::Once);
        }
    }
    let verdict = Verdict {
        event: end.event(),
        by,
        code: settle.code.as_deref(),
        vendor_ref: settle.vendor_ref.as_deref(),
        reason: note,
    };
    if let Err(state) = inbox::settle_error(tx, consumer, message_id, &verdict, day, now_ms)? {
        return Ok(match (state, end) {
            (Some(InboxState::Sent), End::Sent) | (Some(InboxState::Failed), End::Failed) => Settled::Already,
            (Some(state), _) => Settled::No(state),
            (None, End::NotSent) if rearm::times(tx, consumer, message_id)? > 0 => Settled::Already,
            (None, _) => Settled::Missing,
        });
    }
    if *end == End::NotSent {
        rearm::note(tx, consumer, message_id, by, now_ms)?;
    }
    audit::append(
        tx,
        &audit::Deed {
            at_ms: now_ms,
            who,
            verb: end.verb(),
            target: message_id.as_str(),
            destination: consumer.as_str(),
            note,
            before: InboxState::Error.as_str(),
            after: end.after(),
        },
    )?;
    Ok(Settled::Yes)
}

/// The message of this id where the inbox knows it under one of these destinations: what a verdict that opens no outbox
/// row needs, while the file it stands in is out of reach.
pub fn known_by_id(
    inbox: &Connection,
    destinations: &[DestinationSettings],
    id: &str,
) -> rusqlite::Result<Option<(MessageId, Destination)>> {
    let message_id = MessageId::new(id);
    for destination in destinations {
        let consumer = Destination::new(destination.name.as_str());
        if inbox::state(inbox, &consumer, &message_id)?.is_some() {
            return Ok(Some((message_id, consumer)));
        }
    }
    Ok(None)
}

/// Work: a note of `rearm` is closed. Lost, the row is looked at again.
pub struct RearmDone {
    /// Destination.
    pub consumer: Destination,
    /// Message.
    pub message_id: MessageId,
}

impl Work for RearmDone {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        rearm::done(connection, &self.consumer, &self.message_id, wall_ms())
    }
    fn committed(self: Box<Self>) {}
    fn failed(self: Box<Self>, _why: &str) {}
    fn must_land(&self) -> bool {
        false
    }
}

/// What became of a noted message's outbox row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Opened {
    /// The note may be closed: the row waits again, or need not.
    Done,
    /// The relay has it in hand: look again soon.
    NotYet,
    /// No outbox that can be read has the row, though it cannot have been purged: its source is out of reach. The note
    /// stays; this is why, for people.
    OutOfReach(String),
}

/// Opens the outbox row of a noted message, in whichever outbox it stands, in a synced commit: the note is closed on the
/// word of it. The caller has seen that the inbox does not know the message: else it is on its way again, or has been.
pub fn open_outbox_row(
    outboxes: &Outboxes,
    consumer: &Destination,
    message_id: &MessageId,
) -> Result<Opened, DbError> {
    let sqlite = |path: &Path, error| DbError::sqlite(path, error);
    let file = match handed_over(outboxes, message_id)? {
        Ok(file) => file,
        Err(why) => return Ok(Opened::OutOfReach(why)),
    };
    let mut outbox = match file.writer() {
        Err(error) if file.source().is_some() => return Ok(Opened::OutOfReach(error.to_string())),
        opened => opened?,
    };
    let reason = "proven never to have reached the vendor; goes again under the same id";
    let rearmed = crate::db::write(&mut outbox, |tx| outbox::rearm(tx, message_id, reason, wall_ms()));
    let rearmed = match rearmed {
        Err(error) if file.source().is_some() => {
            return Ok(Opened::OutOfReach(sqlite(file.path(), error).to_string()));
        }
        rearmed => rearmed.map_err(|error| sqlite(file.path(), error))?,
    };
    match rearmed {
        Rearmed::Yes => log::warn!("{message_id} waits again dest={consumer}: {reason}"),
        Rearmed::Wiped => {
            log::error!("{message_id} was not sent, and its content was wiped: nothing to send")
        }
        Rearmed::Missing => {
            let reason = "no outbox that is served has its row; was its source removed?";
            return Ok(Opened::OutOfReach(reason.into()));
        }
        Rearmed::NotNeeded => {}
        Rearmed::NotYet => return Ok(Opened::NotYet),
    }
    Ok(Opened::Done)
}

/// The outbox that handed the message over: if an application gave its id to rows of two files, it is the one whose row
/// is closed as PUBLISHED, or is about to be. `Err` within: why there is none, for people.
fn handed_over<'o>(
    outboxes: &'o Outboxes,
    message_id: &MessageId,
) -> Result<Result<&'o File, String>, DbError> {
    let (mut waits, mut unread) = (None, None);
    for file in outboxes.files() {
        let Some(reader) = file.glance() else {
            match file.source() {
                None => drop(file.writer()?),
                Some(name) => unread = Some(format!("source {name} cannot be read now")),
            }
            continue;
        };
        let found = outbox::could_rearm(&reader, message_id);
        match found.map_err(|error| DbError::sqlite(file.path(), error))? {
            Rearmed::Yes | Rearmed::NotYet => return Ok(Ok(file)),
            Rearmed::NotNeeded | Rearmed::Wiped => waits = waits.or(Some(file)),
            Rearmed::Missing => {}
        }
    }
    // One that waits may be another row of the same id, while the file of the one that was sent cannot be read.
    match unread {
        Some(why) => Ok(Err(why)),
        None => {
            Ok(waits.ok_or_else(|| "no outbox that is served has its row; was its source removed?".into()))
        }
    }
}
