//! What happens in a world: a list of steps made from a seed, and how a list that fails is made smaller.
//!
//! A step holds all its own dice (`arg`), so that leaving others out changes nothing about it.

use std::fmt;

/// SplitMix64.
#[derive(Clone, Copy, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
    pub fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A producer commits a new message.
    Put,
    /// A producer's job runs again: the same key, sometimes with other content.
    PutAgain,
    /// One round of the relay.
    Relay,
    /// One hand-off, with other steps while it waits and calls.
    Worker,
    /// One commit of the inbox's writer.
    Writer,
    /// A checkpoint of either file.
    Checkpoint,
    /// The sweeper.
    Sweep,
    /// Opens outbox rows of what was proven not sent.
    Rearm,
    /// The look-up room.
    LookUp,
    /// A pass of retention.
    Retention,
    /// A report of the vendor: early, late, twice, contradictory, or about nothing.
    Report,
    /// A person settles.
    Settle,
    /// A person holds, releases or cancels.
    Operator,
    /// Time passes.
    Tick,
    /// The wall clock leaps.
    Leap,
    /// Somebody else takes a file's write lock, or an old snapshot of it.
    Foreigner,
    /// He lets go.
    ForeignerGoes,
    /// The process dies some calls of the disk from now.
    Dies,
    /// Power is cut some calls of the disk from now.
    PowerCut,
    /// A call of the disk fails, in one way or another, some calls from now.
    Fault,
    /// The disk is full.
    Full,
    /// There is room again.
    Room,
    /// The agent is stopped as systemd does it.
    Stop,
    /// The agent is started, if it is down.
    Start,
}

/// A step with its dice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    pub kind: Kind,
    pub arg: u64,
    /// How many of the steps after it are taken in the middle of it, where it waits.
    pub nest: u8,
}

impl Op {
    /// What the step is told to do instead of throwing dice.
    pub fn said(&self) -> Option<u64> {
        (self.arg >> 63 == 1 && self.nest == SAID).then_some(self.arg & !(1 << 63))
    }
}

/// Marks a step whose dice are said out loud (no step takes so many others in).
const SAID: u8 = u8::MAX;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:#x}", self.kind, self.arg)?;
        if self.nest > 0 { write!(f, " ({} steps inside)", self.nest) } else { Ok(()) }
    }
}

/// What is done wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    None,
    /// The inbox commits with synchronous = NORMAL.
    InboxNormal,
    /// The vendor is called, then the SENDING row is written.
    CallBeforeClaim,
    /// A time-out is taken for proof that nothing was sent.
    ReleaseOnTimeout,
    /// The start deletes SENDING rows instead of making them ERROR.
    StartForgetsSending,
    /// The relay is told "settled" at the hand-off.
    MarkBeforeConfirm,
    /// Producers commit with synchronous = NORMAL.
    ProducerNormal,
}

/// Steps and how often each comes, in a hundred or so.
const WEIGHTS: &[(Kind, u64)] = &[
    (Kind::Put, 14),
    (Kind::PutAgain, 3),
    (Kind::Relay, 16),
    (Kind::Worker, 20),
    (Kind::Writer, 8),
    (Kind::Checkpoint, 3),
    (Kind::Sweep, 2),
    (Kind::Rearm, 3),
    (Kind::LookUp, 2),
    (Kind::Retention, 1),
    (Kind::Report, 7),
    (Kind::Settle, 4),
    (Kind::Operator, 4),
    (Kind::Tick, 6),
    (Kind::Leap, 1),
    (Kind::Foreigner, 1),
    (Kind::ForeignerGoes, 1),
    (Kind::Dies, 2),
    (Kind::PowerCut, 3),
    (Kind::Fault, 3),
    (Kind::Full, 1),
    (Kind::Room, 1),
    (Kind::Stop, 1),
    (Kind::Start, 2),
];

/// The steps of a seed's world.
pub fn of_seed(seed: u64) -> Vec<Op> {
    let mut dice = Dice(seed.wrapping_mul(0xD134_2543_DE82_EF95));
    // Worlds differ: some are calm on the disk, some have no vendor trouble, some are only clocks.
    let calm = dice.one_in(8);
    let lawful_clock = dice.one_in(2);
    let sum: u64 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let count = 15 + dice.below(60);
    let mut ops = vec![Op { kind: Kind::Put, arg: dice.next(), nest: 0 }];
    while (ops.len() as u64) < count {
        let mut at = dice.below(sum);
        let kind = WEIGHTS.iter().find(|(_, weight)| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let Some((kind, _)) = kind.copied() else { continue };
        let on_the_disk =
            matches!(kind, Kind::Dies | Kind::PowerCut | Kind::Fault | Kind::Full | Kind::Foreigner);
        if (calm && on_the_disk) || (lawful_clock && kind == Kind::Leap) {
            continue;
        }
        let arg = dice.next();
        let nest = if dice.one_in(3) { dice.below(6) as u8 } else { 0 };
        ops.push(Op { kind, arg, nest });
    }
    ops
}

fn op(kind: Kind, arg: u64) -> Op {
    Op { kind, arg, nest: 0 }
}

/// The plain way of a message, twice, so that the second start has something to settle.
fn plain_way(first: Op) -> Vec<Op> {
    let round = [
        op(Kind::Put, 1),
        op(Kind::Relay, 0),
        op(Kind::Worker, 0),
        op(Kind::Writer, 0),
        op(Kind::Relay, 0),
        op(Kind::Checkpoint, 0),
        op(Kind::Checkpoint, 1),
    ];
    let mut ops = vec![op(Kind::Start, 0), first];
    ops.extend(round);
    ops.push(op(Kind::Stop, 0));
    ops.push(op(Kind::Start, 0));
    ops.extend(round);
    ops
}

/// F17.
pub fn one_message_and_a_power_cut_after(calls: u64, dice: u64) -> Vec<Op> {
    plain_way(said(Kind::PowerCut, calls | dice << 32))
}

/// The Nth call fails in this way.
pub fn one_message_and_a_fault_after(calls: u64, way: u64) -> Vec<Op> {
    plain_way(said(Kind::Fault, calls | way << 32))
}

/// A step that is told what to do.
fn said(kind: Kind, what: u64) -> Op {
    Op { kind, arg: what | 1 << 63, nest: SAID }
}

/// Found by the simulation: a refusal whose record waits while the lease and the deadline pass. The relay closed the row
/// because the inbox knew it (SENDING), and then the record let the claim go: nothing was left of the message.
pub fn deadline_while_a_release_waits() -> Vec<Op> {
    vec![
        said(Kind::Put, 1),
        op(Kind::Relay, 0),
        said(Kind::Worker, 13),
        said(Kind::Tick, 1_200_000),
        op(Kind::Relay, 0),
    ]
}

/// Found by the simulation: a row whose mark was lost is cancelled: FAILED said that nothing was sent.
pub fn cancel_after_a_lost_mark() -> Vec<Op> {
    vec![
        said(Kind::Put, 0),
        op(Kind::Relay, 0),
        said(Kind::Worker, 16),
        op(Kind::Writer, 0),
        said(Kind::Dies, 0),
        said(Kind::Operator, 2),
    ]
}

/// Found by the simulation: a hand-off waits for a worker for longer than its lease, its row is closed meanwhile (here by
/// its deadline), the clock is set back, and then the old hand-off was sent all the same.
pub fn closed_while_an_old_hand_off_waits() -> Vec<Op> {
    vec![
        said(Kind::Put, 1),
        op(Kind::Relay, 0),
        said(Kind::Tick, 1_200_000),
        op(Kind::Relay, 0),
        said(Kind::Leap, 1_190_000),
        said(Kind::Worker, 0),
    ]
}

/// Leaves out whatever the failure does not need.
pub fn shrink(mut ops: Vec<Op>, fails: impl Fn(&[Op]) -> bool) -> Vec<Op> {
    let mut chunk = ops.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut less = ops.clone();
            less.drain(at..(at + chunk).min(ops.len()));
            if fails(&less) { ops = less } else { at += chunk }
        }
        chunk /= 2;
    }
    for at in 0..ops.len() {
        if ops[at].nest > 0 && ops[at].nest != SAID {
            let mut flat = ops.clone();
            flat[at].nest = 0;
            if fails(&flat) {
                ops = flat;
            }
        }
    }
    ops
}
