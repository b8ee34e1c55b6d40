//! Random `kill -9` during a drain with all vendor faults on. `ONCEWARD_KILLS` makes it as long as one likes.
//!
//! Goal: no id arrives twice after its claim, and every message ends in a terminal or visible state.

use std::time::Duration;

use crate::support::World;

#[test]
fn torture_random_kills_never_send_twice_and_lose_nothing() {
    let kills: u64 = std::env::var("ONCEWARD_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    let world = World::with(
        "[retry]\nquick = { times = 3, every = \"20ms\" }\nlater = { times = 1, every = \"50ms\" }\n",
        "",
    );
    world.faults(&[
        "chance=0.02,reset=read",
        "chance=0.02,status=500",
        "chance=0.02,cut=body",
        "chance=0.02,status=403",
        "chance=0.02,close=answer",
        "chance=0.01,garbage",
        "chance=0.02,delay=30ms",
    ]);
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut total = 0;
    for kill in 0..kills {
        world.put_many(&format!("k{kill}"), 25);
        total += 25;
        let agent = world.agent_with(&[("RUST_LOG", "error")]);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // From the first arrival on, so that the kill falls into the work and not into the start.
        let before = world.sandbox.ledger().totals().arrived;
        world.sandbox.ledger().wait_total(before + 1, Duration::from_secs(10));
        std::thread::sleep(Duration::from_micros((seed >> 33) % 25_000));
        agent.kill9();
    }
    world.faults(&[]);
    let agent = world.agent();
    world.wait("everything has an end", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')") == 0
    });
    agent.stop();
    let totals = world.sandbox.ledger().totals();
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'"), 0);
    let closed = world.count("SELECT count(*) FROM outbox WHERE status IN ('PUBLISHED', 'PARKED')");
    let recorded = world.count("SELECT count(*) FROM inbox WHERE status IN ('SENT', 'ERROR', 'FAILED')");
    let parked = world.count("SELECT count(*) FROM outbox WHERE status = 'PARKED'");
    println!(
        "{kills} kills, {total} messages: {} requests, {} refused at the door, {} sent twice, {} without a record, {} ERROR",
        totals.arrived,
        totals.refused,
        totals.duplicates,
        total - closed,
        world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'")
    );
    assert_eq!(totals.duplicates, 0);
    assert_eq!(closed, total);
    assert_eq!(recorded + parked, total, "each published message has its fate in the inbox");
    let integrity: String =
        world.inbox().query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("checks");
    assert_eq!(integrity, "ok");
}
