//! The model's state: one message, all that is durable about it, all that is only in memory, and the vendor's
//! truth.
//!
//! States of rows change through [`onceward::lifecycle`]'s tables alone ([`Row::go`], [`Guard::go`]): an
//! event that the table does not have is not a step of the model. Counters that would grow without bound are
//! kept out (a start is *live* or *dead*, a row was handed over *before* or not), so crashes, leases and
//! operator verbs need no budget.

use onceward::lifecycle::{InboxEvent, InboxMove, InboxState, OUTBOX_MOVES, OutboxEvent, OutboxState};

/// Whose claim it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// The present start of the agent.
    Live,
    /// A start that is no more.
    Dead,
}

/// The outbox row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    pub state: OutboxState,
    pub owner: Option<Owner>,
    /// Handed over before: a worker looks first.
    pub again: bool,
}

impl Row {
    /// The one way to another state: by the table. Owner and memory of hand-overs go with it.
    pub fn go(self, event: OutboxEvent) -> Option<Self> {
        let state = self.state.after(event)?;
        Some(Self {
            state,
            owner: (state == OutboxState::Publishing).then_some(Owner::Live),
            again: self.again || event != OutboxEvent::Claim,
        })
    }
}

/// The inbox row, the guard against a second send.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guard {
    pub state: InboxState,
    pub owner: Owner,
}

impl Guard {
    /// The one way to another state, or away: by the table.
    pub fn go(self, event: InboxEvent) -> Option<Option<Self>> {
        Some(match self.state.after(event)? {
            InboxMove::To(state) => Some(Self { state, ..self }),
            InboxMove::RowDeleted => None,
        })
    }
}

/// The event by which the table opens a closed row again, if it has one (proof that nothing was sent).
pub fn rearm() -> Option<OutboxEvent> {
    OUTBOX_MOVES
        .iter()
        .find(|(from, _, to)| *from == OutboxState::Published && *to == OutboxState::Pending)
        .map(|(_, event, _)| *event)
}

/// What the relay remembers of its claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Flight {
    Nothing,
    /// Committed, not handed over yet.
    Claimed,
    HandedOver,
}

/// A worker's word to the relay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Answer {
    Settled,
    InFlight,
    /// Certainly not sent, given back, or not now by a rule.
    Later,
    Park,
    Skip,
    Expire,
}

/// What a call told the worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Heard {
    Accepted,
    Rejected,
    Unknown,
    NotSent,
}

/// One worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hand {
    Idle,
    /// Took a hand-off.
    Got {
        again: bool,
    },
    /// The rules say it is never or not now to be sent; said only after a look.
    Closing(Answer),
    /// Looked (or need not): about to claim.
    Fit,
    /// Its SENDING row is on the disk.
    Claimed,
    /// The request left. `Some(accepted)` once it is at the vendor.
    Calling(Option<bool>),
    /// The answer is known, not yet recorded.
    Heard(Heard),
}

impl Hand {
    /// Whether it may still make or finish a call for its claim.
    pub fn holds_a_claim(self) -> bool {
        matches!(self, Self::Claimed | Self::Calling(_) | Self::Heard(_))
    }
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    // Durable.
    /// The outbox as other connections see it.
    pub row: Option<Row>,
    /// The outbox as a power cut would leave it: the relay's commits are not synced.
    pub row_on_disk: Option<Row>,
    /// The dedup key is known (it outlives a purged row).
    pub key: bool,
    /// The inbox: every commit is synced.
    pub guard: Option<Guard>,
    /// Proven not sent, the outbox row still has to open.
    pub rearm_note: bool,

    // In memory of the agent.
    pub up: bool,
    pub flight: Flight,
    /// The hand-off in the channel, with its `again`: with two workers that makes three copies of one
    /// message.
    pub channel: Option<bool>,
    /// Interchangeable, so kept sorted.
    pub hands: [Hand; 2],
    /// Confirms on their way, sorted: any may come first. A worker waits with a third.
    pub confirms: [Option<Answer>; 2],
    /// A claim whose commit failed and that may be in the file; the writer takes it back before anything
    /// else.
    pub take_back: bool,

    // The truth at the vendor.
    /// Requests under way that nobody waits for any more.
    pub strays: u8,
    /// How many copies arrived (2 stands for more).
    pub arrivals: u8,
    /// What the vendor thinks of it, since the first arrival.
    pub accepted: Option<bool>,

    // What was once said, to see that it is not unsaid.
    pub produced: bool,
    pub purged: bool,
    pub closed: Option<OutboxState>,
    pub told: Option<InboxState>,
}

impl World {
    pub fn new() -> Self {
        Self {
            row: None,
            row_on_disk: None,
            key: false,
            guard: None,
            rearm_note: false,
            up: true,
            flight: Flight::Nothing,
            channel: None,
            hands: [Hand::Idle; 2],
            confirms: [None; 2],
            take_back: false,
            strays: 0,
            arrivals: 0,
            accepted: None,
            produced: false,
            purged: false,
            closed: None,
            told: None,
        }
    }

    /// Applies an event to the row, which must be in the state that the caller names; `synced` as the commit
    /// is.
    pub fn move_row(&mut self, event: OutboxEvent, from: OutboxState, synced: bool) -> Option<()> {
        let row = self.row.filter(|row| row.state == from)?.go(event)?;
        self.row = Some(row);
        if synced {
            self.row_on_disk = self.row;
        }
        if Some(event) == rearm() {
            self.closed = None;
        }
        if row.state.is_final() && self.closed.is_none() {
            self.closed = Some(row.state);
        }
        Some(())
    }

    /// Applies an event to the guard; the table must have it.
    pub fn move_guard(&mut self, event: InboxEvent) -> Option<()> {
        self.guard = self.guard?.go(event)?;
        self.note_told();
        Some(())
    }

    /// Keeps the first final word of the guard.
    pub fn note_told(&mut self) {
        if let Some(Guard { state: state @ (InboxState::Sent | InboxState::Failed), .. }) = self.guard
            && self.told.is_none()
        {
            self.told = Some(state);
        }
    }

    /// A worker is done with its hand-off and tells the relay. (Dying between record and confirm is a crash
    /// with the confirm still under way.)
    pub fn tell(&mut self, hand: usize, answer: Answer) -> Option<()> {
        *self.confirms.iter_mut().find(|place| place.is_none())? = Some(answer);
        self.confirms.sort();
        self.hands[hand] = Hand::Idle;
        Some(())
    }

    /// A confirm comes to the relay, or is lost.
    pub fn take_confirm(&mut self, answer: Answer) -> Option<()> {
        *self.confirms.iter_mut().find(|place| **place == Some(answer))? = None;
        self.confirms.sort();
        Some(())
    }

    /// A request is at the vendor.
    pub fn arrive(&mut self, accepted: bool) -> bool {
        self.arrivals = (self.arrivals + 1).min(2);
        *self.accepted.get_or_insert(accepted)
    }

    /// Nothing of it is in anybody's hands.
    pub fn is_quiet(&self) -> bool {
        self.hands == [Hand::Idle; 2]
            && self.channel.is_none()
            && self.confirms == [None; 2]
            && self.strays == 0
            && !self.take_back
            && self.flight == Flight::Nothing
    }

    /// Delivered, ended, or where a person sees it.
    pub fn has_ended(&self) -> bool {
        let row = match self.row {
            None => self.purged,
            Some(row) => row.state.is_final() || matches!(row.state, OutboxState::Parked | OutboxState::Held),
        };
        let guard = self.guard.is_none_or(|guard| guard.state != InboxState::Sending);
        row && guard && !self.rearm_note
    }
}
