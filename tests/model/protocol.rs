//! The steps of producer, relay, workers, vendor, sweeper, reports, operator and crash, each one durable
//! commit or one message between rooms, in any order; and the mistakes that can be seeded into them.

use onceward::lifecycle::{InboxEvent, InboxState, OutboxEvent, OutboxState};

use crate::world::{Answer, Flight, Guard, Hand, Heard, Owner, Row, World, rearm};

/// What somebody might get wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// The SENDING row is written when the answer is there.
    ClaimAfterCall,
    /// The SENDING commit is not synced.
    ClaimNotSynced,
    /// A time-out counts as "not sent".
    ReleaseOnTimeout,
    /// A lease on SENDING: the dead owner's row is released.
    LeaseRearmsSending,
    /// PUBLISHED when handed over.
    MarksBeforeConfirm,
    /// A mark does not name the state it leaves.
    MarksWithoutState,
    /// Purge by age alone.
    PurgeLiveRows,
    /// The dedup key goes with the row.
    PurgeForgetsKeys,
    /// Look first, then claim without the unique index.
    LookWithoutUniqueClaim,
    /// The outcome is written whatever the row says by now.
    LateReplyUndoesReport,
    /// "The vendor never received it" is believed while a worker can still call.
    NotSentWhileHeld,
    /// A claim whose commit failed is used all the same, and taken back.
    FailedClaimIsUsed,
    /// A row past its deadline is closed as PUBLISHED because the inbox has a SENDING row, whose claim may
    /// still be released. (The relay did this until the model found it.)
    SendingCountsAsDone,
    /// A confirm counts for whatever hand-off is under way now, though it may be an older copy's word from
    /// before the message was proven not sent. (Found by the model, too.)
    OldConfirmCounts,
    /// What a dead start had claimed is never given back.
    NoLease,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// The producer's job runs (again).
    Produce,
    RelayClaims,
    RelayHandsOver,
    /// A PENDING row past its deadline, whatever its destination does.
    RelayExpires,
    RelayMarks(Answer),
    /// Lease over, owner dead, or not in the relay's memory.
    LeaseOver,
    /// The outbox is synced by somebody's commit or a checkpoint.
    OutboxSync,
    WorkerTakes(usize),
    WorkerLooks(usize),
    /// The rules: never, too late, not now, unfit.
    RulesSay(usize, Answer),
    WorkerClaims(usize),
    /// The commit reports a failure; whether it landed is the second.
    ClaimFails(usize, bool),
    TakeBack,
    /// The last look right before the call stops it.
    NotBegun(usize),
    WorkerCalls(usize),
    /// No byte left, or refused at the door.
    VendorRefuses(usize),
    Arrives(usize, bool),
    WorkerHears(usize),
    /// No answer in time; whether the request is still under way is the second.
    TimesOut(usize, bool),
    WorkerRecords(usize),
    ConfirmIsLost(Answer),
    StrayArrives(bool),
    StrayIsLost,
    Crash,
    PowerCut,
    Start,
    SweepStale,
    Report,
    SettleSent,
    SettleFailed,
    SettleNotSent,
    RearmRow,
    Hold,
    Release,
    GiveUp,
    Purge,
}

impl Step {
    /// Every step that could be possible; [`World::after`] says which are.
    pub fn all() -> Vec<Self> {
        use Step::*;
        let mut all = vec![
            Produce,
            RelayClaims,
            RelayHandsOver,
            RelayExpires,
            LeaseOver,
            OutboxSync,
            TakeBack,
            StrayArrives(true),
            StrayArrives(false),
            StrayIsLost,
            Crash,
            PowerCut,
            Start,
            SweepStale,
            Report,
            SettleSent,
            SettleFailed,
            SettleNotSent,
            RearmRow,
            Hold,
            Release,
            GiveUp,
            Purge,
        ];
        use Answer as A;
        all.extend([A::Settled, A::InFlight, A::Later, A::Park, A::Skip, A::Expire].map(RelayMarks));
        all.extend([A::Settled, A::InFlight, A::Later, A::Park, A::Skip, A::Expire].map(ConfirmIsLost));
        for hand in 0..2 {
            all.extend([A::Later, A::Park, A::Skip, A::Expire].map(|answer| RulesSay(hand, answer)));
            for flag in [true, false] {
                all.extend([ClaimFails(hand, flag), Arrives(hand, flag), TimesOut(hand, flag)]);
            }
            all.extend([
                WorkerTakes(hand),
                WorkerLooks(hand),
                WorkerClaims(hand),
                NotBegun(hand),
                WorkerCalls(hand),
                VendorRefuses(hand),
                WorkerHears(hand),
                WorkerRecords(hand),
            ]);
        }
        all
    }

    /// Steps of the second worker.
    pub fn is_of_the_second_hand(self) -> bool {
        use Step::*;
        matches!(
            self,
            RulesSay(1, _)
                | ClaimFails(1, _)
                | Arrives(1, _)
                | TimesOut(1, _)
                | WorkerTakes(1)
                | WorkerLooks(1)
                | WorkerClaims(1)
                | NotBegun(1)
                | WorkerCalls(1)
                | VendorRefuses(1)
                | WorkerHears(1)
                | WorkerRecords(1)
        )
    }

    /// What happens by itself when nothing fails and nobody interferes: the way to the end may use only
    /// these.
    pub fn is_progress(self) -> bool {
        use Step::*;
        matches!(
            self,
            RelayClaims
                | RelayHandsOver
                | RelayMarks(_)
                | LeaseOver
                | TakeBack
                | WorkerTakes(_)
                | WorkerLooks(_)
                | WorkerClaims(_)
                | WorkerCalls(_)
                | Arrives(..)
                | WorkerHears(_)
                | WorkerRecords(_)
                | StrayArrives(_)
                | StrayIsLost
                | Start
                | SweepStale
                | RearmRow
        )
    }
}

impl World {
    /// The world after the step, or `None` where the step is not possible.
    pub fn after(&self, step: Step, mistake: Option<Mistake>) -> Option<World> {
        let wrong = |which: Mistake| mistake == Some(which);
        let mut next = self.clone();
        match step {
            Step::Produce => {
                if next.key {
                    return None; // the same event again: the first row stands
                }
                let row = Row { state: OutboxState::Pending, owner: None, again: false };
                (next.row, next.row_on_disk, next.key, next.produced) = (Some(row), Some(row), true, true);
                if next.purged {
                    // Another row, another message id: the old guard knows nothing of it.
                    (next.guard, next.told, next.closed, next.purged) = (None, None, None, false);
                }
            }
            Step::RelayClaims => {
                if !next.up || next.flight != Flight::Nothing {
                    return None;
                }
                next.move_row(OutboxEvent::Claim, OutboxState::Pending, false)?;
                next.flight = Flight::Claimed;
            }
            Step::RelayHandsOver => {
                if !next.up || next.flight != Flight::Claimed || next.channel.is_some() {
                    return None;
                }
                next.channel = Some(next.row?.again);
                next.flight = Flight::HandedOver;
                if wrong(Mistake::MarksBeforeConfirm) {
                    next.move_row(OutboxEvent::Confirmed, OutboxState::Publishing, false)?;
                }
            }
            Step::RelayExpires => {
                if !next.up {
                    return None;
                }
                let event = match next.guard.map(|guard| guard.state) {
                    None => OutboxEvent::DeadlinePassed,
                    // Its end is not known yet: the row waits for it.
                    Some(InboxState::Sending) if !wrong(Mistake::SendingCountsAsDone) => return None,
                    Some(_) => OutboxEvent::Confirmed,
                };
                next.move_row(OutboxEvent::Claim, OutboxState::Pending, false)?;
                next.move_row(event, OutboxState::Publishing, false)?;
            }
            Step::RelayMarks(answer) => {
                if !next.up {
                    return None;
                }
                next.take_confirm(answer)?;
                if answer == Answer::InFlight {
                    return Some(next); // the other copy's confirm will come
                }
                next.flight = Flight::Nothing;
                let event = match answer {
                    Answer::Settled => OutboxEvent::Confirmed,
                    Answer::Park => OutboxEvent::Park,
                    Answer::Skip => OutboxEvent::Policy,
                    Answer::Expire => OutboxEvent::DeadlinePassed,
                    Answer::Later | Answer::InFlight => OutboxEvent::Postpone,
                };
                if wrong(Mistake::MarksWithoutState) {
                    // An UPDATE without its WHERE: whatever the row is by now, it is given back.
                    if let (Answer::Later, Some(row)) = (answer, &mut next.row) {
                        *row = Row { state: OutboxState::Pending, owner: None, again: true };
                        return Some(next);
                    }
                }
                // Of a row that was handed over before, the inbox decides whether it has ended.
                let known = next.guard.is_some_and(|guard| guard.state != InboxState::Sending);
                let doubtful = answer == Answer::Settled && next.row?.again && !known;
                if doubtful && !wrong(Mistake::OldConfirmCounts) {
                    return Some(next);
                }
                if next.row?.owner == Some(Owner::Live) {
                    let _late = next.move_row(event, OutboxState::Publishing, false);
                }
            }
            Step::LeaseOver => {
                let dead = next.row?.owner == Some(Owner::Dead);
                if !next.up || next.flight == Flight::Claimed || (dead && wrong(Mistake::NoLease)) {
                    return None;
                }
                next.move_row(OutboxEvent::LeaseOver, OutboxState::Publishing, false)?;
                next.flight = Flight::Nothing;
            }
            Step::OutboxSync => next.row_on_disk = next.row,
            Step::WorkerTakes(hand) => {
                if next.hands[hand] != Hand::Idle {
                    return None;
                }
                let again = next.channel.take()?;
                next.hands[hand] = if again { Hand::Got { again } } else { Hand::Fit };
            }
            Step::WorkerLooks(hand) => match (next.hands[hand], next.guard) {
                (Hand::Got { .. } | Hand::Closing(_), Some(guard)) => next.tell(hand, already(guard))?,
                (Hand::Got { .. }, None) => next.hands[hand] = Hand::Fit,
                (Hand::Closing(answer), None) => next.tell(hand, answer)?,
                _ => return None,
            },
            Step::RulesSay(hand, answer) => {
                if next.hands[hand] != Hand::Fit {
                    return None;
                }
                if answer == Answer::Later {
                    next.tell(hand, answer)?; // it closes nothing, so it needs no look
                } else {
                    next.hands[hand] = Hand::Closing(answer);
                }
            }
            Step::WorkerClaims(hand) => {
                if next.hands[hand] != Hand::Fit || next.take_back {
                    return None;
                }
                if wrong(Mistake::ClaimAfterCall) {
                    next.hands[hand] = Hand::Claimed;
                } else if let Some(guard) = next.guard.filter(|_| !wrong(Mistake::LookWithoutUniqueClaim)) {
                    next.tell(hand, already(guard))?;
                } else {
                    next.guard = Some(Guard { state: InboxState::Sending, owner: Owner::Live });
                    next.hands[hand] = Hand::Claimed;
                }
            }
            Step::ClaimFails(hand, landed) => {
                if next.hands[hand] != Hand::Fit || next.take_back || next.guard.is_some() {
                    return None;
                }
                if landed {
                    next.guard = Some(Guard { state: InboxState::Sending, owner: Owner::Live });
                    next.take_back = true;
                }
                if wrong(Mistake::FailedClaimIsUsed) {
                    next.hands[hand] = Hand::Claimed;
                } else {
                    next.tell(hand, Answer::Later)?;
                }
            }
            Step::TakeBack => {
                if !next.take_back {
                    return None;
                }
                next.take_back = false;
                if next.guard == Some(Guard { state: InboxState::Sending, owner: Owner::Live }) {
                    next.move_guard(InboxEvent::NotSent)?;
                }
            }
            Step::NotBegun(hand) => {
                if next.hands[hand] != Hand::Claimed {
                    return None;
                }
                next.hands[hand] = Hand::Heard(Heard::NotSent);
            }
            Step::WorkerCalls(hand) => {
                if next.hands[hand] != Hand::Claimed {
                    return None;
                }
                next.hands[hand] = Hand::Calling(None);
            }
            Step::VendorRefuses(hand) => {
                if next.hands[hand] != Hand::Calling(None) {
                    return None;
                }
                next.hands[hand] = Hand::Heard(Heard::NotSent);
            }
            Step::Arrives(hand, accepted) => {
                if next.hands[hand] != Hand::Calling(None)
                    || next.accepted.is_some_and(|said| said != accepted)
                {
                    return None;
                }
                next.hands[hand] = Hand::Calling(Some(next.arrive(accepted)));
            }
            Step::WorkerHears(hand) => {
                next.hands[hand] = match next.hands[hand] {
                    Hand::Calling(Some(true)) => Hand::Heard(Heard::Accepted),
                    Hand::Calling(Some(false)) => Hand::Heard(Heard::Rejected),
                    _ => return None,
                };
            }
            Step::TimesOut(hand, under_way) => {
                match next.hands[hand] {
                    Hand::Calling(None) => next.strays = (next.strays + u8::from(under_way)).min(2),
                    Hand::Calling(Some(_)) if !under_way => {}
                    _ => return None,
                }
                let release = wrong(Mistake::ReleaseOnTimeout);
                next.hands[hand] = Hand::Heard(if release { Heard::NotSent } else { Heard::Unknown });
            }
            Step::WorkerRecords(hand) => {
                let Hand::Heard(heard) = next.hands[hand] else { return None };
                next.record(heard, mistake)?;
                let sent = heard != Heard::NotSent;
                next.tell(hand, if sent { Answer::Settled } else { Answer::Later })?;
            }
            Step::ConfirmIsLost(answer) => {
                next.take_confirm(answer)?;
            }
            Step::StrayArrives(accepted) => {
                if next.accepted.is_some_and(|said| said != accepted) {
                    return None;
                }
                next.strays = next.strays.checked_sub(1)?;
                next.arrive(accepted);
            }
            Step::StrayIsLost => next.strays = next.strays.checked_sub(1)?,
            Step::Crash | Step::PowerCut => {
                if !next.up {
                    return None;
                }
                if step == Step::PowerCut {
                    next.row = next.row_on_disk;
                    if let Some(row) = next.row {
                        next.closed = Some(row.state).filter(|state| state.is_final());
                    }
                    let unsynced = |guard: &Guard| guard.state == InboxState::Sending;
                    if wrong(Mistake::ClaimNotSynced) && next.guard.as_ref().is_some_and(unsynced) {
                        next.guard = None;
                    }
                }
                next.die();
            }
            Step::Start => {
                if next.up {
                    return None;
                }
                next.up = true;
                // Recovery, before any worker: what a dead start was sending may have been sent.
                next.orphan(mistake);
            }
            Step::SweepStale => {
                let sending = next.guard.is_some_and(|guard| guard.state == InboxState::Sending);
                if !next.up || !sending || next.take_back {
                    return None;
                }
                next.orphan(mistake);
            }
            Step::Report => {
                let accepted = next.accepted.filter(|_| next.up)?;
                let event = match next.guard?.state {
                    InboxState::Error if accepted => InboxEvent::SettleSent,
                    InboxState::Error => InboxEvent::SettleFailed,
                    _ => InboxEvent::Report,
                };
                next.move_guard(event)?;
            }
            Step::SettleSent | Step::SettleFailed | Step::SettleNotSent => {
                // A person or a look-up that tells the truth, and a truth that stays: nothing is under way.
                let held = next.hands.iter().any(|hand| hand.holds_a_claim());
                let arrived = next.arrivals > 0;
                let (event, true_now) = match step {
                    Step::SettleSent => (InboxEvent::SettleSent, arrived && next.accepted == Some(true)),
                    Step::SettleFailed => (InboxEvent::SettleFailed, next.accepted != Some(true)),
                    _ => (InboxEvent::SettleNotSent, !arrived && rearm().is_some()),
                };
                let careless = event == InboxEvent::SettleNotSent && wrong(Mistake::NotSentWhileHeld);
                if !true_now || next.strays > 0 || (held && !careless) {
                    return None;
                }
                if next.guard?.state != InboxState::Error {
                    return None;
                }
                next.move_guard(event)?;
                next.rearm_note |= event == InboxEvent::SettleNotSent;
            }
            Step::RearmRow => {
                let state = next.row?.state;
                if !next.up || !next.rearm_note || state == OutboxState::Publishing {
                    return None; // its confirm or its lease comes first
                }
                let _needless = next.move_row(rearm()?, OutboxState::Published, true);
                next.rearm_note = false;
            }
            Step::Hold => next.move_row(OutboxEvent::Hold, OutboxState::Pending, true)?,
            Step::Release => {
                let state = next.row?.state;
                next.move_row(OutboxEvent::Release, state, true)?;
            }
            Step::GiveUp => {
                let state = next.row?.state;
                next.move_row(OutboxEvent::GiveUp, state, true)?;
            }
            Step::Purge => {
                let row = next.row?;
                let known = next
                    .guard
                    .is_none_or(|guard| matches!(guard.state, InboxState::Sent | InboxState::Failed));
                let ended = row.state.is_final() && known && !next.rearm_note && next.is_quiet();
                if !ended && !wrong(Mistake::PurgeLiveRows) {
                    return None;
                }
                (next.row, next.row_on_disk, next.purged) = (None, None, true);
                next.key = !wrong(Mistake::PurgeForgetsKeys);
            }
        }
        next.hands.sort();
        Some(next)
    }

    /// The outcome into the inbox: from SENDING and its own claim alone. A row that moved meanwhile stays as
    /// it is.
    fn record(&mut self, heard: Heard, mistake: Option<Mistake>) -> Option<()> {
        let event = match heard {
            Heard::Accepted => InboxEvent::Accepted,
            Heard::Rejected => InboxEvent::Rejected,
            Heard::Unknown => InboxEvent::Unknown,
            Heard::NotSent => InboxEvent::NotSent,
        };
        match mistake {
            Some(Mistake::ClaimAfterCall) if heard != Heard::NotSent && self.guard.is_none() => {
                self.guard = Some(Guard { state: InboxState::Sending, owner: Owner::Live });
            }
            Some(Mistake::LateReplyUndoesReport) => {
                if let (Some(guard), Heard::Unknown) = (&mut self.guard, heard) {
                    guard.state = InboxState::Error; // an UPDATE without its WHERE
                    return Some(());
                }
            }
            _ => {}
        }
        if self.guard == Some(Guard { state: InboxState::Sending, owner: Owner::Live }) {
            self.move_guard(event)?;
        }
        Some(())
    }

    /// SENDING rows that nobody can finish.
    fn orphan(&mut self, mistake: Option<Mistake>) {
        if self.guard.is_some_and(|guard| guard.state == InboxState::Sending) {
            let rearms = mistake == Some(Mistake::LeaseRearmsSending);
            let event = if rearms { InboxEvent::NotSent } else { InboxEvent::OwnerDead };
            self.move_guard(event).expect("SENDING may always be called ERROR");
        }
    }

    /// All that is only in memory goes; requests that left are under way without anybody who waits.
    fn die(&mut self) {
        for hand in self.hands {
            self.strays = (self.strays + u8::from(hand == Hand::Calling(None))).min(2);
        }
        self.hands = [Hand::Idle; 2];
        (self.up, self.flight, self.take_back) = (false, Flight::Nothing, false);
        (self.channel, self.confirms) = (None, [None; 2]);
        for row in [&mut self.row, &mut self.row_on_disk].into_iter().flatten() {
            row.owner = row.owner.map(|_| Owner::Dead);
        }
        if let Some(guard) = &mut self.guard {
            guard.owner = Owner::Dead;
        }
    }
}

/// What a worker says when the inbox knows the message.
fn already(guard: Guard) -> Answer {
    let mine = guard.state == InboxState::Sending && guard.owner == Owner::Live;
    if mine { Answer::InFlight } else { Answer::Settled }
}
