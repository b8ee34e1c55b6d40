//! One order lane over several files: rows of one `ordering_key` in outbox.db and in applications' own files go one after
//! another as they were created, over retries, restarts and parking; a file in trouble holds nobody up.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use crate::f_source::{add, app, state, status};
use crate::support::{SOON, World};

/// A row with its own time of writing, as a producer's clock would give it; its id.
fn put(path: &Path, key: &str, lane: &str, created_at_ms: i64, payload: &str) -> String {
    let file = Connection::open(path).expect("the file opens");
    file.busy_timeout(SOON).expect("timeout is set");
    file.execute(
        "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, ordering_key, created_at_ms)
         VALUES (?1, 'TEST', 'gateway', '01000000001', ?4, ?2, ?3)",
        params![key, lane, created_at_ms, payload],
    )
    .expect("taken");
    file.query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| row.get(0))
        .expect("there")
}

fn now_ms() -> i64 {
    onceward::clock::wall_ms()
}

#[test]
fn a_lane_over_three_files_goes_as_it_was_written_over_retries_and_kills() {
    let world = World::new();
    // Every seventh call is refused at the door and comes back a second later; some take their time.
    world.faults(&["every=7,status=403", "every=5,delay=20ms"]);
    let mut files = vec![world.outbox_path()];
    for (name, journal) in [("one", "wal"), ("two", "delete")] {
        files.push(app(&world, name, journal));
        add(&world, name, files.last().expect("just made"));
    }
    let (lanes, rows, begun_ms) = (3usize, 15usize, now_ms() - 60_000);
    let mut written: Vec<Vec<String>> = vec![Vec::new(); lanes];
    for number in 0..rows {
        for (lane, written) in written.iter_mut().enumerate() {
            // In which file the next one of a lane is looks random, and is not.
            let file = &files[(number * number + number / 3 + lane) % files.len()];
            let at_ms = begun_ms + number as i64;
            written.push(put(file, &format!("{lane}:{number}"), &format!("lane {lane}"), at_ms, "{}"));
        }
    }
    for share in [1, 2] {
        let agent = world.agent();
        let some = (lanes * rows * share / 3) as i64;
        world.wait("some sent", |world| {
            world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") >= some
        });
        agent.kill9();
    }
    world.faults(&[]);
    let agent = world.agent();
    world.wait("all have ended", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status IN ('SENT', 'ERROR')") == (lanes * rows) as i64
    });
    agent.stop();
    let inbox = world.inbox();
    let mut statement =
        inbox.prepare("SELECT message_id FROM inbox ORDER BY claimed_at_ms, id").expect("prepared");
    let claimed: Vec<String> =
        statement.query_map([], |row| row.get(0)).expect("reads").map(|row| row.expect("an id")).collect();
    for written in &written {
        let order: Vec<&String> = claimed.iter().filter(|id| written.contains(id)).collect();
        assert!(order.iter().copied().eq(written.iter()), "wrote {written:?}, claimed {order:?}");
    }
    assert_eq!(world.sandbox.ledger().totals().duplicates, 0);
}

/// A head that can never be sent, parked in one file, and a younger row of its lane in another.
fn parked_in(world: &World) -> (PathBuf, PathBuf, String, String) {
    let files = (app(world, "one", "wal"), app(world, "two", "delete"));
    add(world, "one", &files.0);
    add(world, "two", &files.1);
    let at_ms = now_ms() - 1_000;
    let head = put(&files.0, "head", "customer:1", at_ms, "no json");
    let next = put(&files.1, "next", "customer:1", at_ms + 1, "{}");
    (files.0, files.1, head, next)
}

#[test]
fn a_head_that_is_parked_in_one_file_blocks_its_lane_in_another_until_it_is_skipped() {
    let world = World::new();
    let (one, two, head, next) = parked_in(&world);
    let other = put(&two, "other", "customer:2", now_ms(), "{}");
    let agent = world.agent();
    world.wait("parked", |_| status(&one, &head) == "PARKED");
    world.wait_inbox(&other, "SENT");
    let says = |world: &World| world.onceward(&["--source", "two", "show", &next]).1;
    world.wait("it says why", |world| says(world).contains("order lane in the source one"));
    agent.kill9();
    // A restart does not forget it.
    let agent = world.agent();
    world.wait("both are served", |world| state(world, "one") == "OK" && state(world, "two") == "OK");
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!((status(&two, &next).as_str(), world.arrivals(&next)), ("PENDING", 0), "{}", says(&world));
    let (code, said, error) = world.onceward(&["--source", "one", "cancel", &head]);
    assert_eq!(code, 0, "{said}{error}");
    world.wait_inbox(&next, "SENT");
    assert_eq!((world.arrivals(&head), world.arrivals(&next)), (0, 1));
    agent.stop();
}

#[test]
fn a_file_that_is_gone_or_no_longer_served_holds_no_lane_of_another() {
    let world = World::new();
    let (one, _two, head, next) = parked_in(&world);
    let agent = world.agent();
    world.wait("parked", |_| status(&one, &head) == "PARKED");
    std::fs::rename(&one, one.with_extension("away")).expect("renamed");
    world.wait("missing", |world| state(world, "one") == "MISSING");
    world.wait_inbox(&next, "SENT");
    agent.stop();
}
