//! The seeded simulation: the real store, the real SQLite and the real rooms under clocks that a seed moves, a scripted
//! vendor, and a disk in memory that loses power, fills up, fails and lies (`crates/simvfs`). One seed is one world.
//!
//! After each world the disk is healed, the agent started once more and everything brought to an end; then the ledger
//! must hold: each acknowledged message is there with a fate, each pair of rows is legal, and nothing reached the
//! vendor twice unless the first was proven not sent. A world that fails prints its seed and the least of its steps
//! that still fail.
//!
//! `ONCEWARD_SIM_WORLDS=1000000` runs as many as you like (20,000 without it), `ONCEWARD_SIM_SEED=7` begins there,
//! `ONCEWARD_SIM_SEED=7 ONCEWARD_SIM_WORLDS=1` runs that world alone and tells its story.
//!
//! ```text
//! cargo nextest run --test sim                                       both halves side by side
//! ONCEWARD_SIM_WORLDS=1000000 cargo test --test sim worlds -- --nocapture
//! ```
//!
//! One thread steps everything: a worker that waits for its claim, and the vendor's side of a call, are where other
//! rooms take their turns (nested, so of two calls that overlap the later ends first). Not here: threads, sockets, real
//! disks; those are the tests in `tests/it`.
#![cfg(debug_assertions)] // The clock's and the waits' hooks are in debug builds alone.

#[path = "sim/agent.rs"]
mod agent;
#[path = "sim/ledger.rs"]
mod ledger;
#[path = "sim/plan.rs"]
mod plan;
#[path = "sim/vendor.rs"]
mod vendor;
#[path = "sim/world.rs"]
mod world;

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use plan::{Mistake, Op};
use world::Figures;

/// The disk, the clocks and SQLite's default VFS are one for the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text:?}"))
    })
}

/// Every second world, from the `half`-th on.
fn worlds(half: u64) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (first, count) = (number("ONCEWARD_SIM_SEED", 1), number("ONCEWARD_SIM_WORLDS", 20_000));
    let begun = Instant::now();
    let mut sum = Figures::default();
    for seed in (first..first + count).skip(half as usize).step_by(2) {
        match world::run(&plan::of_seed(seed), seed, Mistake::None, count == 1) {
            Ok(figures) => sum.add(&figures),
            Err(why) => panic!("{}", report(seed, Mistake::None, &why)),
        }
    }
    println!("{sum} in {:.1} s", begun.elapsed().as_secs_f64());
    if count >= 1_000 {
        sum.must_have_tried_everything();
    }
}

#[test]
fn worlds_first_half() {
    worlds(0);
}

#[test]
fn worlds_second_half() {
    worlds(1);
}

/// A failing world in its least form.
fn report(seed: u64, mistake: Mistake, why: &str) -> String {
    let least = plan::shrink(plan::of_seed(seed), |ops| world::run(ops, seed, mistake, false).is_err());
    let last = world::run(&least, seed, mistake, true).err().unwrap_or_default();
    let steps: Vec<String> = least.iter().map(Op::to_string).collect();
    format!(
        "seed {seed}: {why}\nleast: {last}\n{} steps:\n  {}\nagain: ONCEWARD_SIM_SEED={seed} ONCEWARD_SIM_WORLDS=1 \
         cargo test --test sim worlds_first -- --nocapture",
        least.len(),
        steps.join("\n  ")
    )
}

/// The simulation must find this mistake within so many worlds, and can say it in few steps.
fn finds(mistake: Mistake, within: u64, words: &[&str]) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for seed in 1..=within {
        let Err(why) = world::run(&plan::of_seed(seed), seed, mistake, false) else { continue };
        let least = plan::shrink(plan::of_seed(seed), |ops| world::run(ops, seed, mistake, false).is_err());
        let again = [(); 2].map(|()| world::run(&least, seed, mistake, false).err());
        println!("{mistake:?}: found in world {seed}: {why}; {} steps are enough", least.len());
        assert!(words.iter().any(|word| why.contains(word)), "found something else: {why}");
        assert!(again[0].is_some() && again[0] == again[1], "a world is the same each time: {again:?}");
        assert!(least.len() <= 30, "{} steps are left of {}", least.len(), plan::of_seed(seed).len());
        return;
    }
    panic!("{mistake:?} was not found in {within} worlds");
}

#[test]
fn finds_a_claim_that_is_not_synced() {
    finds(Mistake::InboxNormal, 2_000, &["twice"]);
}

#[test]
fn finds_a_call_before_its_claim() {
    finds(Mistake::CallBeforeClaim, 2_000, &["twice", "its fate", "no record", "had reported"]);
}

#[test]
fn finds_a_release_on_a_time_out() {
    finds(Mistake::ReleaseOnTimeout, 2_000, &["twice"]);
}

#[test]
fn finds_a_start_that_forgets_what_was_being_sent() {
    finds(Mistake::StartForgetsSending, 2_000, &["twice"]);
}

#[test]
fn finds_a_mark_before_the_confirm() {
    finds(Mistake::MarkBeforeConfirm, 2_000, &["its fate is lost"]);
}

#[test]
fn finds_an_acknowledgement_that_is_not_synced() {
    finds(Mistake::ProducerNormal, 2_000, &["acknowledged"]);
}

/// What the simulation has found in the rooms, as worlds of a few steps; each failed before it was mended.
#[test]
fn what_was_found_stays_mended() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (what, ops) in [
        ("deadline while a release waits", plan::deadline_while_a_release_waits()),
        ("closed while an old hand-off waits", plan::closed_while_an_old_hand_off_waits()),
        ("cancel after a lost mark", plan::cancel_after_a_lost_mark()),
    ] {
        world::run(&ops, 1, Mistake::None, false).unwrap_or_else(|why| panic!("{what}: {why}"));
    }
}

/// F17 as the table has it: each call that was made has its SENDING row through a power cut, each enqueue is there.
#[test]
fn f17_power_cuts_at_every_step_of_one_message() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut cuts = 0;
    for calls in 0..400 {
        for dice in 0..4 {
            let ops = plan::one_message_and_a_power_cut_after(calls, dice);
            let figures = world::run(&ops, 17, Mistake::None, false).unwrap_or_else(|why| {
                panic!("power cut after {calls} calls of the disk, dice {dice}: {why}")
            });
            cuts += figures.power_cuts;
            if figures.power_cuts == 0 && dice == 3 {
                println!("{cuts} power cuts, at each of the {calls} calls of the disk");
                assert!(calls > 20);
                return;
            }
        }
    }
    panic!("the message does not come to its end");
}

/// The Nth call of the disk fails, once, for each N and in each way, until a run passes untouched.
#[test]
fn each_call_of_the_disk_fails_once_in_each_way() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for way in 0..5 {
        let mut calls = 0;
        loop {
            let ops = plan::one_message_and_a_fault_after(calls, way);
            let figures = world::run(&ops, 18, Mistake::None, false)
                .unwrap_or_else(|why| panic!("fault {way} at call {calls} of the disk: {why}"));
            if figures.struck == 0 {
                break;
            }
            calls += 1;
            assert!(calls < 1_000);
        }
        assert!(calls > 20, "fault {way} struck at {calls} calls only");
    }
}
