//! F20: the clock leaps back, ahead, starts at 1970, or is years off.

use std::time::{Duration, Instant};

use crate::f_policy::{Clock, put_at};
use crate::support::{Agent, World};

const HOUR: i64 = 3_600_000;
const YEAR: i64 = 365 * 24 * HOUR;

fn held(world: &World, id: &str) -> bool {
    let blocked: i64 = world
        .outbox()
        .query_row("SELECT blocked FROM outbox WHERE message_id = ?1", [id], |row| row.get(0))
        .expect("the row is there");
    blocked == 2
}

fn start(world: &World, clock: &Clock) -> Agent {
    let agent = world.agent_with(&[clock.variable()]);
    agent.wait_log("ready:");
    agent
}

/// The clock leaps by `by_ms` and comes back. What does not depend on the hour flows, the rest is held and goes out,
/// once, when the clock is right; nothing expires by it.
#[track_caller]
fn leaps(by_ms: i64) {
    let world = World::new();
    let clock = Clock::at(&world, 1, "12:00");
    let agent = start(&world, &clock);
    let right = clock.offset();
    let first = put_at(&world, "first", "TRANSACTIONAL", clock.now_ms(), None);
    world.wait_inbox(&first, "SENT");

    // A call is under way while the clock leaps.
    world.faults(&["delay=1500ms,first=1"]);
    let calling = put_at(&world, "calling", "TRANSACTIONAL", clock.now_ms(), None);
    world.wait_inbox(&calling, "SENDING");
    clock.set_offset(right + by_ms);
    agent.wait_log("cause=CLOCK");
    let soon = clock.now_ms().max(clock.now_ms() - by_ms);
    let deadline = put_at(
        &world,
        "deadline",
        "TRANSACTIONAL",
        clock.now_ms() - by_ms,
        Some(soon.min(clock.now_ms() - by_ms) + HOUR),
    );
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms() - by_ms, None);
    let later = put_at(&world, "later", "TRANSACTIONAL", clock.now_ms() - by_ms, None);
    world.wait_inbox(&later, "SENT");
    world.wait_inbox(&calling, "SENT");
    world.wait("the advertising is held", |world| held(world, &ad));
    assert!(world.outbox_state(&ad).2.starts_with("CLOCK: "), "{:?}", world.outbox_state(&ad));
    let (_, shown, _) = world.onceward(&["show", &ad]);
    assert!(shown.contains("waits until the clock is right"), "{shown}");
    world.wait("status says it", |world| {
        world.onceward(&["status"]).1.contains("deadlines and later due times are held")
    });
    assert_ne!(
        world.outbox_state(&deadline).0,
        "EXPIRED",
        "its deadline is an hour away by the clock that was believed"
    );

    clock.set_offset(right);
    world.wait_inbox(&ad, "SENT");
    world.wait_inbox(&deadline, "SENT");
    agent.wait_log("the clock is believed again");
    for id in [&first, &calling, &deadline, &ad, &later] {
        assert_eq!(world.arrivals(id), 1);
    }
    assert_eq!(
        world.count("SELECT count(*) FROM outbox WHERE status <> 'PUBLISHED' AND closed_at_ms IS NOT NULL"),
        0
    );
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status <> 'SENT'"), 0);
    agent.stop();
}

#[test]
fn f20_the_clock_leaps_three_years_ahead_and_back() {
    leaps(3 * YEAR);
}

#[test]
fn f20_the_clock_leaps_six_hours_back_and_forth() {
    leaps(-6 * HOUR);
}

#[test]
fn f20_a_leap_ahead_that_stands_is_believed() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "12:00");
    let agent = world.agent_with(&[clock.variable(), ("ONCEWARD_CLOCK_SETTLE_MS", "6000")]);
    world.wait("the first mark is kept", |world| {
        world.count("SELECT count(*) FROM onceward_meta WHERE key = 'clock_newest_ms'") == 1
    });
    clock.set_offset(clock.offset() + 24 * HOUR);
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms(), None);
    world.wait("held", |world| held(world, &ad));
    assert_eq!(world.arrivals(&ad), 0);
    world.wait_inbox(&ad, "SENT");
    agent.wait_log("the clock is believed again");
    agent.stop();
}

#[test]
fn f20_at_boot_it_is_1970() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "12:00");
    let agent = start(&world, &clock);
    let first = put_at(&world, "first", "TRANSACTIONAL", clock.now_ms(), None);
    world.wait_inbox(&first, "SENT");
    let right = clock.offset();
    agent.stop();

    let before = put_at(&world, "before the power went", "TRANSACTIONAL", clock.now_ms() - 5_000, None);
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms(), None);
    clock.set(5_000);
    let agent = start(&world, &clock);
    let new = put_at(&world, "written in 1970", "TRANSACTIONAL", clock.now_ms(), None);
    world.wait_inbox(&new, "SENT");
    world.wait_inbox(&before, "SENT");
    let (code, said, _) = world.onceward(&["clock"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("before the build"), "{said}");
    world.wait("alert", |world| world.alerts("CLOCK") >= 1);
    // Another one of 1970, and one whose day would have been over since.
    let old_ad = put_at(&world, "ad written in 1970", "ADVERTISING", clock.now_ms(), None);
    world.wait("held", |world| held(world, &old_ad));
    clock.set_offset(right);
    world.wait_inbox(&ad, "SENT");
    world.wait_inbox(&old_ad, "SENT");
    assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    agent.stop();
}

#[test]
fn f20_rows_of_a_wrong_clock_do_not_wait_for_years() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "12:00");
    let now_ms = clock.now_ms();
    let at_once = put_at(&world, "at once", "TRANSACTIONAL", now_ms + 10 * YEAR, None);
    let ad = put_at(&world, "ad", "ADVERTISING", now_ms + 10 * YEAR, None);
    let planned = put_at(&world, "planned", "TRANSACTIONAL", now_ms + 10 * YEAR, None);
    let of_business = put_at(&world, "on a date", "TRANSACTIONAL", now_ms, None);
    let connection = world.outbox();
    for (id, due_ms) in [(&planned, now_ms + 10 * YEAR + 3_000), (&of_business, now_ms + 90 * 24 * HOUR)] {
        connection
            .execute(
                "UPDATE outbox SET not_before_ms = ?2 WHERE message_id = ?1",
                rusqlite::params![id, due_ms],
            )
            .expect("set");
    }
    let agent = start(&world, &clock);
    agent.wait_log("written under a wrong clock");
    for id in [&at_once, &ad, &planned] {
        world.wait_inbox(id, "SENT");
        assert_eq!(world.arrivals(id), 1);
    }
    assert_eq!(world.outbox_state(&of_business).0, "PENDING");
    agent.stop();
}

#[test]
fn f20_no_lease_is_eternal_and_no_renewed_one_is_over() {
    let world = World::with("[relay]\nlease = \"10s\"\n", "");
    let clock = Clock::at(&world, 1, "12:00");
    let (dead, alive) = (world.put_plain("dead"), world.put_plain("alive"));
    let connection = world.outbox();
    // Other agents' claims: one from a clock in the year 2100, one that was long over by this clock and is renewed.
    let claim = |id: &str, owner: &str, until_ms: i64| {
        connection
            .execute(
                "UPDATE outbox SET status = 'PUBLISHING', claimed_by = ?2, claimed_until_ms = ?3 WHERE message_id = ?1",
                rusqlite::params![id, owner, until_ms],
            )
            .expect("claimed");
    };
    claim(&dead, "another:1", 4_102_444_800_000);
    claim(&alive, "third:1", 1_000);
    let agent = start(&world, &clock);
    let begun = Instant::now();
    let mut renewals = 0;
    while world.inbox_state(&dead).as_deref() != Some("SENT") {
        assert!(begun.elapsed() < Duration::from_secs(40), "{}", agent.log());
        renewals += 1;
        claim(&alive, "third:1", 1_000 + renewals);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(begun.elapsed() >= Duration::from_secs(9), "not before a whole lease: {:?}", begun.elapsed());
    assert_eq!(world.outbox_state(&alive).0, "PUBLISHING");
    assert_eq!((world.arrivals(&dead), world.arrivals(&alive)), (1, 0));
    agent.stop();
}

#[test]
fn f20_a_person_can_say_that_the_clock_is_right() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "12:00");
    // An earlier run believed a clock that was years ahead.
    world
        .inbox()
        .execute(
            "INSERT INTO onceward_meta (key, value) VALUES ('clock_newest_ms', ?1)",
            [(clock.now_ms() + 4 * YEAR).to_string()],
        )
        .expect("set");
    let agent = start(&world, &clock);
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms(), None);
    world.wait("held", |world| held(world, &ad));
    assert_eq!(world.onceward(&["clock"]).0, 1);
    let (code, said, error) = world.onceward(&["clock", "--right"]);
    assert_eq!(code, 0, "{said}{error}");
    world.wait_inbox(&ad, "SENT");
    agent.stop();
    // Heard once: the next start needs no further word.
    let agent = start(&world, &clock);
    let next = put_at(&world, "next", "ADVERTISING", clock.now_ms(), None);
    world.wait_inbox(&next, "SENT");
    agent.stop();
}
