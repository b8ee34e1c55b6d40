//! What a careless producer or a hand with a shell can do to the files: it is refused, or seen, and the rest flows.
//! (F28's hard half, F27 under a deleted lock file.) Each case once stopped, doubled or hid something.

use std::time::Duration;

use crate::support::World;

const INSERT: &str = "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload";

/// Everything but the broken rows is sent, and the agent still works afterwards.
#[track_caller]
fn flows(world: &World, key: &str) {
    let id = world.put_plain(key);
    world.wait_inbox(&id, "SENT");
}

#[test]
fn f28_bytes_that_are_no_text_are_parked_and_the_others_flow() {
    let world = World::new();
    let agent = world.agent();
    let shell = world.outbox();
    let bad = "CAST(x'B0A1FF' AS TEXT)";
    for (sql, fits) in [
        (format!("{INSERT}) VALUES ('r', 'K', 'gateway', {bad}, '{{}}')"), true),
        (format!("{INSERT}) VALUES ('p', 'K', 'gateway', '010', {bad})"), true),
        (format!("{INSERT}) VALUES ({bad}, 'K', 'gateway', '010', '{{}}')"), true),
        (format!("{INSERT}) VALUES ('k', {bad}, 'gateway', '010', '{{}}')"), true),
        (format!("{INSERT}) VALUES ('k2', {bad}, '', '010', '{{}}')"), true),
        (format!("{INSERT}, ordering_key) VALUES ('o', 'K', 'gateway', '010', '{{}}', {bad})"), true),
        (format!("{INSERT}) VALUES ('d', 'K', {bad}, '010', '{{}}')"), false),
        (format!("{INSERT}) VALUES ('n', 'K', char(10), '010', '{{}}')"), false),
        (format!("{INSERT}, message_id) VALUES ('m', 'K', 'gateway', '010', '{{}}', {bad})"), false),
        (
            format!("{INSERT}, message_id) VALUES ('m', 'K', 'gateway', '010', '{{}}', 'a' || char(10))"),
            false,
        ),
        (format!("{INSERT}, traceparent) VALUES ('t', 'K', 'gateway', '010', '{{}}', x'00')"), false),
        (format!("{INSERT}, created_at_ms) VALUES ('c', 'K', 'gateway', '010', '{{}}', 'now')"), false),
        (format!("{INSERT}, id) VALUES ('i', 'K', 'gateway', '010', '{{}}', 9223372036854775807)"), false),
        (
            format!("{INSERT}) VALUES ('z', 'K', 'gateway', '0' || char(0) || printf('%2000s', ''), '{{}}')"),
            false,
        ),
    ] {
        let done = shell.execute_batch(&sql);
        assert_eq!(done.is_ok(), fits, "{sql}: {done:?}");
    }
    // (The kind without a destination falls under the route `*`.)
    world.wait("parked", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PARKED' AND reason LIKE 'UNREADABLE%'") == 6
    });
    flows(&world, "after");
    // Past every CHECK: whoever does this is seen too.
    shell.execute_batch("PRAGMA ignore_check_constraints = ON").expect("set");
    for sql in [
        format!("{INSERT}, traceparent) VALUES ('t', 'K', 'gateway', '010', '{{}}', x'00')"),
        format!("{INSERT}, created_at_ms) VALUES ('c', 'K', 'gateway', '010', '{{}}', 'now')"),
        format!("{INSERT}, message_id) VALUES ('m', 'K', 'gateway', '010', '{{}}', {bad})"),
        format!("{INSERT}) VALUES ('d', 'K', CAST(x'FF41' AS TEXT), '010', '{{}}')"),
        format!("{INSERT}) VALUES ('b', 'K', 'gateway', x'00', '{{}}')"),
    ] {
        shell.execute_batch(&sql).expect("nothing checks it");
    }
    world
        .wait("all parked", |world| world.count("SELECT count(*) FROM outbox WHERE status = 'PARKED'") == 11);
    flows(&world, "at last");
    assert_eq!(world.sandbox.ledger().totals().arrived, 2);
    agent.stop();
}

#[test]
fn a_row_deleted_while_its_call_is_refused_stops_nobody() {
    let world = World::new();
    world.faults(&["status=401,delay=300ms,first=1"]);
    let agent = world.agent();
    let id = world.put_plain("gone");
    world.wait_inbox(&id, "SENDING");
    world
        .outbox()
        .execute_batch("DROP TRIGGER outbox_delete; DELETE FROM outbox WHERE dedup_key = 'gone'")
        .expect("deleted");
    flows(&world, "after");
    agent.stop();
}

#[test]
fn f28_a_hand_written_count_of_attempts_stops_nobody() {
    let world = World::new();
    let id = world.put_plain("many");
    world
        .outbox()
        .execute_batch(
            "PRAGMA ignore_check_constraints = ON; UPDATE outbox SET attempts = 9223372036854775806",
        )
        .expect("written");
    let agent = world.agent();
    flows(&world, "after");
    world.wait_inbox(&id, "SENT");
    agent.stop();
}

#[test]
fn rows_of_one_statement_follow_each_other_whatever_the_sequence_says() {
    let world = World::new();
    world
        .outbox()
        .execute_batch(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
             INSERT INTO outbox (dedup_key, kind, destination, recipient, payload)
             SELECT 'n:' || i, 'K', 'gateway', '010', '{}' FROM n",
        )
        .expect("inserted");
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 500);
}

#[test]
fn rows_set_back_by_hand_while_in_flight_do_not_use_up_the_room() {
    let world = World::new();
    world.faults(&["delay=1500ms,first=8"]);
    let agent = world.agent();
    world.put_many("a", 90);
    world.wait("in flight", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHING'") > 50
    });
    for _ in 0..4 {
        world
            .outbox()
            .execute_batch("UPDATE outbox SET status = 'PENDING', claimed_by = NULL, claimed_until_ms = NULL WHERE status = 'PUBLISHING'")
            .expect("a hand that should not");
        std::thread::sleep(Duration::from_millis(100));
    }
    world.put_many("b", 300);
    world.wait("all sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 390);
    assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    agent.stop();
}

#[test]
fn an_inbox_row_deleted_in_mid_call_is_written_again() {
    let world = World::new();
    world.faults(&["delay=300ms,first=1"]);
    let agent = world.agent();
    let id = world.put_plain("k");
    world.wait_inbox(&id, "SENDING");
    world.inbox().execute_batch("DELETE FROM inbox").expect("deleted");
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.inbox_state(&id).as_deref(), Some("SENT"));
    assert_eq!(world.count("SELECT count(*) FROM attempt"), 1);
    agent.wait_log("was deleted during its call");
    agent.stop();
}

#[test]
fn f27_a_deleted_lock_file_lets_nobody_else_in_and_a_look_keeps_nobody_out() {
    let world = World::new();
    let agent = world.agent();
    std::fs::remove_file(world.dir.path().join("state/inbox/agent.lock")).expect("removed");
    let (code, _, error) = world.onceward(&["run"]);
    assert_eq!(code, 75, "{error}");
    agent.stop();
    let looking = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        let keep_looking = &looking;
        for _ in 0..3 {
            let world = &world;
            scope.spawn(move || {
                while keep_looking.load(std::sync::atomic::Ordering::Relaxed) {
                    world.onceward(&["status"]);
                }
            });
        }
        for _ in 0..8 {
            world.agent().stop();
        }
        looking.store(false, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn f30_an_empty_file_is_not_filled_while_the_other_stands() {
    let world = World::new();
    std::fs::write(world.inbox_path(), b"").expect("emptied");
    let (code, _, error) = world.onceward(&["run"]);
    assert_eq!(code, 69, "{error}");
    let init = std::process::Command::new(crate::support::BIN)
        .args(["init", "--dir"])
        .arg(world.dir.path())
        .output()
        .expect("init runs");
    assert_eq!(init.status.code(), Some(69), "{init:?}");
    assert_eq!(std::fs::metadata(world.inbox_path()).expect("there").len(), 0, "left as it was");
}
