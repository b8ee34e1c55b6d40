//! Settling an ERROR: one verdict, one transaction with its audit row; and opening the outbox row of what was not sent.
//!
//! Used by `onceward settle` (through the agent's socket, or itself while the agent is down) and by the reconciler. A
//! verdict leads from ERROR alone, so a report or a person that was first wins. *Not sent* is refused where a report
//! names the message (the vendor has it), and a look-up may say it once only.

use crossbeam_channel::Sender;
use rusqlite::Connection;

use crate::clock::wall_ms;
use crate::db::writer::Work;
use crate::lifecycle::{InboxEvent, InboxState, OutboxState};
use crate::message::{Destination, MessageId, OwnerId};
use crate::store::inbox::{self, Verdict};
use crate::store::outbox::{self, Moved, Rearmed};
use crate::store::{audit, rearm, report};

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

/// Work of the inbox's writer: one verdict.
pub struct SettleNow {
    /// The verdict.
    pub settle: Settle,
    /// The local day, for the tally.
    pub day: String,
    /// Told after the commit.
    pub reply: Sender<Result<Settled, String>>,
    /// Filled in by `apply`.
    pub settled: Settled,
}

impl Work for SettleNow {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.settled = apply(connection, &self.settle, &self.day, wall_ms())?;
        Ok(())
    }
    fn committed(self: Box<Self>) {
        let Settle { message_id, consumer, end, .. } = &self.settle;
        if self.settled == Settled::Yes {
            log::warn!("{message_id} settled dest={consumer} as {}", end.as_str());
        }
        let _ = self.reply.send(Ok(self.settled));
    }
    fn failed(self: Box<Self>, why: &str) {
        let _ = self.reply.send(Err(why.to_owned()));
    }
    /// Who asked is told, and may ask again: the verb is idempotent.
    fn must_land(&self) -> bool {
        false
    }
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

/// What became of a cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cancelled {
    /// As for every verb on an outbox row.
    Row(Moved),
    /// The inbox knows a call of it: FAILED would say that nothing was sent. Its mark was only lost.
    Called(InboxState),
    /// The inbox cannot be read by whoever asks, and nothing else says that there was no call.
    Unread,
}

/// PENDING | PARKED | HELD -> FAILED, inside the caller's transaction on the outbox: under its lock no relay hands the row
/// over. Like every rule that closes a row, never without a look into the inbox; without one only where the relay has
/// looked before (PARKED).
pub fn cancel(
    outbox: &Connection,
    inbox: Option<&Connection>,
    message_id: &str,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<Cancelled> {
    match inbox {
        Some(inbox) => {
            if let Some(known) = inbox::look(inbox, &MessageId::new(message_id), &OwnerId::new(""), "")? {
                return Ok(Cancelled::Called(known.status));
            }
            outbox::hold(outbox, message_id, reason, now_ms)?;
        }
        None => {
            if matches!(
                outbox::state(outbox, message_id)?,
                Some(OutboxState::Pending | OutboxState::Held | OutboxState::Publishing)
            ) {
                return Ok(Cancelled::Unread);
            }
        }
    }
    Ok(Cancelled::Row(outbox::give_up(outbox, message_id, reason, now_ms)?))
}

/// Opens the outbox row of a noted message, in a synced commit. True when the note may be closed.
///
/// `inbox` is any connection to the inbox; `outbox` must be opened with `Durability::Full`, since the note is closed on
/// the word of this commit.
pub fn open_outbox_row(
    inbox: &Connection,
    outbox: &mut Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<bool> {
    if inbox::state(inbox, consumer, message_id)?.is_some() {
        return Ok(true); // it is on its way again, or has been
    }
    let reason = "proven never to have reached the vendor; goes again under the same id";
    let rearmed = crate::db::write(outbox, |tx| outbox::rearm(tx, message_id, reason, wall_ms()))?;
    match rearmed {
        Rearmed::Yes => log::warn!("{message_id} waits again dest={consumer}: {reason}"),
        Rearmed::Gone => {
            log::error!("{message_id} was not sent, and its row is gone or wiped: nothing to send")
        }
        Rearmed::NotNeeded | Rearmed::NotYet => {}
    }
    Ok(rearmed != Rearmed::NotYet)
}
