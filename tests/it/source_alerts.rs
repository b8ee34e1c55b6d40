//! Alerts and `check` about messages that live in a source: raised as for outbox.db, and not ended by not looking.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use crate::f_source::{add, app, put, state, status};
use crate::support::{SOON, World};

/// Looks come once per alert interval.
const LOOKS: Duration = Duration::from_secs(4);

fn world() -> World {
    World::with("[alert]\ninterval = \"1s\"\nbacklog_age = \"1s\"\n[relay]\npoll = \"100ms\"\n", "")
}

fn open(file: &Path) -> Connection {
    let connection = Connection::open(file).expect("the file opens");
    connection.busy_timeout(SOON).expect("timeout is set");
    connection
}

fn check(world: &World) -> String {
    world.onceward(&["check", "--offline"]).1
}

#[test]
fn what_waits_for_a_person_in_a_source_is_told_and_stays_told_until_it_is_gone() {
    let world = world();
    let file = app(&world, "shop", "wal");
    add(&world, "shop", &file);
    let agent = world.agent();
    world.wait("served", |world| state(world, "shop") == "OK");
    let parked = put(&open(&file), "p", (", destination", ", 'nope'"));
    put(&open(&file), "q", ("", ""));
    open(&file)
        .execute(
            "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('q', 'TEST', '01000000001', '{\"y\":1}')
             ON CONFLICT (dedup_key) DO NOTHING",
            [],
        )
        .expect("quarantined");
    agent.wait_log("alert cause=PARKED dest=(other)");
    agent.wait_log("alert cause=QUARANTINED");
    assert!(agent.log().contains("table quarantine of the source shop"), "{}", agent.log());
    std::thread::sleep(LOOKS);
    assert!(!agent.log().contains("all-clear of=PARKED"), "{}", agent.log());
    let said = check(&world);
    assert!(said.contains("onceward --source shop queue --state PARKED"), "{said}");
    assert!(said.contains("the view v_quarantine in its file"), "{said}");
    agent.stop();

    // A start tells of no quarantined row again; a file out of reach ends nothing.
    let agent = world.agent();
    world.wait("served", |world| state(world, "shop") == "OK");
    let aside = world.dir.path().join("aside.db");
    std::fs::rename(&file, &aside).expect("moved away");
    agent.wait_log("alert cause=SOURCE dest=shop");
    assert!(!agent.log().contains("onceward init"), "{}", agent.log());
    std::thread::sleep(LOOKS);
    assert!(!agent.log().contains("all-clear of=PARKED"), "{}", agent.log());
    assert_eq!(world.alerts("QUARANTINED"), 1);
    assert_eq!(world.alerts("DATABASE"), 0, "outbox.db is well");
    std::fs::rename(&aside, &file).expect("put back");
    agent.wait_log("all-clear of=SOURCE dest=shop");

    let (code, said, error) = world.onceward(&["--source", "shop", "cancel", &parked]);
    assert_eq!(code, 0, "{said}{error}");
    agent.wait_log("all-clear of=PARKED");

    // Removed while it is away: nobody serves it again.
    std::fs::rename(&file, &aside).expect("moved away");
    world.wait("away", |world| {
        world.count("SELECT count(*) FROM alert WHERE cause = 'SOURCE' AND open = 1") == 1
    });
    assert_eq!(world.onceward(&["source", "remove", "shop"]).0, 0);
    world.wait("over", |world| {
        world.count("SELECT count(*) FROM alert WHERE cause = 'SOURCE' AND open = 1") == 0
    });
    agent.stop();
}

#[test]
fn what_waits_too_long_in_a_source_is_told_and_what_expired_right_before_a_crash() {
    let world = world();
    let file = app(&world, "shop", "delete");
    add(&world, "shop", &file);
    world.sandbox.refuse(true);
    let agent = world.agent();
    let id = put(&open(&file), "k", ("", ""));
    agent.wait_log("alert cause=BACKLOG_AGE dest=gateway");
    let said = check(&world);
    assert!(said.contains("in the source shop"), "{said}");
    world.sandbox.refuse(false);
    world.wait_inbox(&id, "SENT");
    agent.wait_log("all-clear of=BACKLOG_AGE dest=gateway");
    world.wait("marked", |_| status(&file, &id) == "PUBLISHED");
    agent.stop();

    // As a crash leaves it between the relay's commit and the book's copy.
    let late = put(&open(&file), "late", (", expires_at_ms", ", 1000000000000"));
    let now = onceward::clock::wall_ms();
    open(&file)
        .execute(
            "UPDATE outbox SET status = 'EXPIRED', closed_at_ms = ?2, updated_at_ms = ?2 WHERE message_id = ?1",
            rusqlite::params![late, now],
        )
        .expect("closed");
    let agent = world.agent();
    agent.wait_log("alert cause=EXPIRED");
    std::thread::sleep(LOOKS);
    assert_eq!(world.alerts("EXPIRED"), 1);
    agent.stop();
}

/// The inbox row is gone, the note is all that is left of it beside its file.
#[test]
fn what_was_proven_not_sent_stays_an_error_while_its_source_is_out_of_reach() {
    let world = world();
    let file = app(&world, "shop", "delete");
    add(&world, "shop", &file);
    world.faults(&["reset=read,first=1"]);
    let agent = world.agent();
    let id = put(&open(&file), "k", ("", ""));
    world.wait_inbox(&id, "ERROR");
    world.wait("marked", |_| status(&file, &id) == "PUBLISHED");
    agent.wait_log("alert cause=ERROR dest=gateway");
    agent.stop();
    let aside = world.dir.path().join("aside.db");
    std::fs::rename(&file, &aside).expect("moved away");
    world
        .inbox()
        .execute_batch(&format!(
            "BEGIN; DELETE FROM inbox WHERE message_id = '{id}';
             INSERT INTO rearm (consumer, message_id, times, by, at_ms) VALUES ('gateway', '{id}', 1, 'operator', 1); COMMIT"
        ))
        .expect("as after the first half of the verdict");
    let agent = world.agent();
    std::thread::sleep(LOOKS);
    assert!(!agent.log().contains("all-clear of=ERROR"), "{}", agent.log());
    let said = check(&world);
    assert!(said.contains("1 were proven not sent"), "{said}");
    let (code, said, _) = world.onceward(&["verify"]);
    assert!(code == 1 && said.contains(&id) && said.contains("cannot be read"), "{said}");
    assert_eq!(world.onceward(&["source", "remove", "shop"]).0, 0);
    let (code, said, _) = world.onceward(&["verify"]);
    assert!(code == 1 && said.contains(&id) && said.contains("FAULT"), "{said}");
    std::thread::sleep(LOOKS);
    assert!(!agent.log().contains("all-clear of=ERROR"), "{}", agent.log());
    agent.stop();

    std::fs::rename(&aside, &file).expect("put back");
    add(&world, "shop", &file);
    let agent = world.agent();
    world.wait_inbox(&id, "SENT");
    agent.wait_log("all-clear of=ERROR dest=gateway");
    assert_eq!(world.arrivals(&id), 2);
    agent.stop();
}
