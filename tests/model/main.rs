//! The protocol, exhaustively: every interleaving of producer, relay, two workers, vendor, sweeper, reports,
//! operator, crash and power cut around one message, over the very tables of `src/lifecycle.rs`.
//!
//! Belongs here: questions of order. Does not: SQL, time, HTTP (real processes and files are in `tests/it/`).
//! Two copies of one message are the most that matter (a third adds no pair of rivals), and messages do not
//! touch each other but by order lanes, which the outbox's triggers keep.
//!
//! Run with `--nocapture` to see how many worlds were looked at, and the way to each seeded mistake.

mod check;
mod protocol;
mod world;

use check::{
    A_CALL_HAS_ITS_ROW, A_RECORD_STAYS, FINAL_IS_FINAL, ONE_ARRIVAL, Protocol, broken, explore, stuck,
};
use protocol::Mistake;

#[test]
fn in_every_world_at_most_one_arrival_and_no_message_without_a_record() {
    let explored = explore(Protocol { mistake: None });
    println!(
        "{} worlds, {} steps, {} deep; re-arming by proof is {} the table",
        explored.worlds,
        explored.steps,
        explored.depth,
        if world::rearm().is_some() { "in" } else { "not in" }
    );
    assert!(explored.worlds > 10_000, "a model of {} worlds proves little", explored.worlds);
}

#[test]
fn from_every_world_the_message_can_end_when_faults_cease() {
    let stuck = stuck(Protocol { mistake: None });
    assert_eq!(stuck.first, None, "{} of {} worlds cannot end", stuck.worlds, stuck.of);
}

/// Each mistake with the rule that it breaks.
#[test]
fn every_seeded_mistake_is_found() {
    for (mistake, rule) in [
        (Mistake::ClaimAfterCall, ONE_ARRIVAL),
        (Mistake::ClaimNotSynced, ONE_ARRIVAL),
        (Mistake::ReleaseOnTimeout, ONE_ARRIVAL),
        (Mistake::LeaseRearmsSending, ONE_ARRIVAL),
        (Mistake::LookWithoutUniqueClaim, ONE_ARRIVAL),
        (Mistake::FailedClaimIsUsed, A_CALL_HAS_ITS_ROW),
        (Mistake::PurgeForgetsKeys, ONE_ARRIVAL),
        (Mistake::NotSentWhileHeld, ONE_ARRIVAL),
        (Mistake::MarksBeforeConfirm, A_RECORD_STAYS),
        (Mistake::PurgeLiveRows, A_RECORD_STAYS),
        (Mistake::SendingCountsAsDone, A_RECORD_STAYS),
        (Mistake::OldConfirmCounts, A_RECORD_STAYS),
        (Mistake::MarksWithoutState, FINAL_IS_FINAL),
        (Mistake::LateReplyUndoesReport, FINAL_IS_FINAL),
    ] {
        let of_rearming = matches!(mistake, Mistake::NotSentWhileHeld | Mistake::OldConfirmCounts);
        if of_rearming && world::rearm().is_none() {
            println!("{mistake:?}: the table opens no closed row again, so this cannot be made");
            continue;
        }
        let (path, worlds) = broken(mistake, rule);
        let path = path.unwrap_or_else(|| panic!("{mistake:?} is not found in {worlds} worlds"));
        println!("{mistake:?} breaks {rule:?}, seen after {worlds} worlds: {path:?}");
    }
}

#[test]
fn a_dead_owner_s_claim_that_nobody_gives_back_is_found() {
    let stuck = stuck(Protocol { mistake: Some(Mistake::NoLease) });
    let path = stuck.first.expect("some world cannot end");
    println!("{} of {} worlds cannot end, the first: {path:?}", stuck.worlds, stuck.of);
}
