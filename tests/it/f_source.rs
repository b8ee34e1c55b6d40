//! Sources: outboxes inside applications' own files, in every journal mode; one in trouble stops nobody; copies and
//! second agents are seen; order and business data stay whole.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;

use crate::support::{SOON, World};

/// Polling so rare that only a watch can be the one who wakes.
pub const RARE_POLL: &str = "[relay]\npoll = \"1m\"\n";

/// An application's file with a table of its own, in a journal mode.
pub fn app(world: &World, name: &str, journal: &str) -> PathBuf {
    let path = world.dir.path().join(format!("{name}.db"));
    let connection = open(&path, journal);
    connection
        .execute_batch(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, recipient TEXT NOT NULL); PRAGMA user_version = 77",
        )
        .expect("the application's table");
    path
}

fn open(path: &Path, journal: &str) -> Connection {
    let connection = Connection::open(path).expect("the file opens");
    connection.busy_timeout(SOON).expect("timeout is set");
    let _: String = connection
        .query_row(&format!("PRAGMA journal_mode = {journal}"), [], |row| row.get(0))
        .expect("the journal mode");
    connection
}

pub fn put(connection: &Connection, key: &str, extra: (&str, &str)) -> String {
    let (column, value) = extra;
    connection
        .execute(
            &format!("INSERT INTO outbox (dedup_key, kind, recipient, payload{column}) VALUES (?1, 'TEST', '01000000001', '{{}}'{value}) ON CONFLICT (dedup_key) DO NOTHING"),
            [key],
        )
        .expect("the row is taken");
    connection
        .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| row.get(0))
        .expect("the row is there")
}

pub fn status(path: &Path, id: &str) -> String {
    let connection = Connection::open(path).expect("the file opens");
    connection.busy_timeout(SOON).expect("timeout is set");
    connection
        .query_row("SELECT status FROM outbox WHERE message_id = ?1", [id], |row| row.get(0))
        .expect("the row is there")
}

#[track_caller]
pub fn add(world: &World, name: &str, path: &Path) -> String {
    let (code, out, error) = world.onceward(&["source", "add", name, path.to_str().expect("UTF-8")]);
    assert_eq!(code, 0, "{out}{error}");
    out
}

pub fn state(world: &World, name: &str) -> String {
    let (code, out, error) = world.onceward(&["source", "list", "--json"]);
    assert_eq!(code, 0, "{out}{error}");
    out.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .find(|source| source["name"] == name)
        .map_or(String::new(), |source| source["state"].as_str().expect("text").to_owned())
}

#[test]
fn an_outbox_in_a_file_of_every_journal_mode_is_served_at_once_and_nothing_else_in_it_changes() {
    let world = World::with(RARE_POLL, "");
    let modes = ["wal", "delete", "truncate", "persist"];
    let files: Vec<PathBuf> = modes.iter().map(|mode| app(&world, mode, mode)).collect();
    // Half of them while the agent is down, half while it is up.
    let add_one = |i: usize| {
        let said = add(&world, modes[i], &files[i]);
        let kept = if modes[i] == "wal" { "wal" } else { "delete" }; // the others are a connection's, not the file's
        assert!(said.contains(&format!("journal mode {kept}")), "{said}");
    };
    add_one(0);
    add_one(1);
    let agent = world.agent();
    add_one(2);
    add_one(3);
    for mode in modes {
        world.wait(mode, |world| state(world, mode) == "OK");
    }
    for (mode, file) in modes.iter().zip(&files) {
        let mut application = open(file, mode);
        for round in 0..3 {
            let tx = application
                .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
                .expect("the application writes");
            tx.execute("INSERT INTO orders (recipient) VALUES ('01000000001')", []).expect("an order");
            let id = put(&tx, &format!("{mode}:{round}"), ("", ""));
            tx.commit().expect("committed");
            // Within 30 s, though the relay polls once a minute: the watch has woken it.
            world.wait_inbox(&id, "SENT");
            world.wait("marked", |_| status(file, &id) == "PUBLISHED");
            assert_eq!(world.arrivals(&id), 1);
        }
        let now: String = application.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("a mode");
        assert_eq!(now, *mode, "the application's journal mode stays");
        let version: i64 = application.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("77");
        let orders: i64 =
            application.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)).expect("orders");
        let sound: String =
            application.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a verdict");
        assert_eq!((version, orders, sound.as_str()), (77, 3, "ok"));
    }
    agent.stop();
    for (mode, file) in modes.iter().zip(&files) {
        let header = std::fs::read(file).expect("the file");
        assert_eq!(header[18], if *mode == "wal" { 2 } else { 1 }, "{mode}: as its header says");
    }
}

#[test]
fn a_file_with_tables_of_its_own_under_our_names_is_refused_and_stays_as_it_was() {
    let world = World::new();
    for (name, sql) in [
        ("outbox", "CREATE TABLE Outbox (id INTEGER PRIMARY KEY, letter TEXT)"),
        ("meta", "CREATE TABLE onceward_meta (a, b, c)"),
        ("view", "CREATE VIEW v_today AS SELECT 1"),
        ("index", "CREATE INDEX outbox_due ON orders (recipient)"),
    ] {
        let path = app(&world, name, "delete");
        open(&path, "delete").execute_batch(sql).expect("the application's own");
        let before = std::fs::read(&path).expect("the file");
        let (code, out, error) = world.onceward(&["source", "add", name, path.to_str().expect("UTF-8")]);
        assert_eq!((code, out.as_str()), (69, ""), "{error}");
        assert!(error.contains("of its own with names that onceward needs"), "{error}");
        assert_eq!(std::fs::read(&path).expect("the file"), before, "{name}: not a byte");
    }
    assert_eq!(world.count("SELECT count(*) FROM source"), 0);
    let own = world.outbox_path();
    assert_eq!(world.onceward(&["source", "add", "own", own.to_str().expect("UTF-8")]).0, 64);
    assert_eq!(world.onceward(&["source", "add", "none", "/nowhere/app.db"]).0, 66);
    assert_eq!(world.onceward(&["source", "add", "a/b", own.to_str().expect("UTF-8")]).0, 64);
    assert_eq!(world.onceward(&["source", "remove", "none"]).0, 66);
}

#[test]
fn a_forgotten_source_keeps_its_rows_and_goes_on_when_it_is_added_again() {
    let world = World::new();
    let path = app(&world, "shop", "wal");
    let agent = world.agent();
    add(&world, "shop", &path);
    let first = put(&open(&path, "wal"), "first", ("", ""));
    world.wait_inbox(&first, "SENT");
    assert_eq!(world.onceward(&["source", "remove", "shop"]).0, 0);
    agent.wait_log("is no longer served");
    let second = put(&open(&path, "wal"), "second", ("", ""));
    // Held and released from outside, by name, only while it is known.
    assert_eq!(world.onceward(&["--source", "shop", "hold", &second]).0, 66);
    let said = add(&world, "shop", &path);
    assert!(said.contains("its outbox was there") && said.contains("the agent serves it"), "{said}");
    world.wait_inbox(&second, "SENT");
    assert_eq!((world.arrivals(&first), world.arrivals(&second)), (1, 1));
    let third = put(&open(&path, "wal"), "third", (", destination", ", 'nowhere'"));
    world.wait("parked", |_| status(&path, &third) == "PARKED");
    let (code, shown, _) = world.onceward(&["--source", "shop", "show", &third]);
    assert!(code == 0 && shown.contains("NO_DESTINATION"), "{shown}");
    assert_eq!(world.onceward(&["--source", "shop", "cancel", &third]).0, 0);
    assert_eq!(status(&path, &third), "FAILED");
    agent.stop();
}

/// A child that holds a file EXCLUSIVE until its standard input closes.
fn holder(path: &Path) -> Child {
    let mut child = Command::new("python3")
        .args([
            "-c",
            "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\nc.execute('BEGIN EXCLUSIVE')\nprint('held', flush=True)\nsys.stdin.readline()\nc.execute('ROLLBACK')",
        ])
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "held\n");
    child
}

#[test]
fn sources_in_trouble_are_reported_stop_neither_the_start_nor_the_others_and_come_back() {
    let world = World::new();
    let names = ["missing", "locked", "corrupt", "newer", "older", "well"];
    let files: Vec<PathBuf> = names.iter().map(|name| app(&world, name, "delete")).collect();
    let mut ids = Vec::new();
    for (name, file) in names.iter().zip(&files) {
        add(&world, name, file);
        ids.push(put(&open(file, "delete"), name, ("", "")));
    }
    let aside = world.dir.path().join("aside.db");
    std::fs::rename(&files[0], &aside).expect("moved away");
    let mut locked = holder(&files[1]);
    let whole = std::fs::read(&files[2]).expect("the file");
    std::fs::write(&files[2], "this is no database, it only has the name of one; and some length, too")
        .expect("damaged");
    let version = |file: &Path, version: &str| {
        open(file, "delete")
            .execute("UPDATE onceward_meta SET value = ?1 WHERE key = 'outbox_schema'", [version])
            .expect("changed");
    };
    version(&files[3], "99");
    version(&files[4], "0");

    let agent = world.agent();
    let own = world.put_plain("own");
    world.wait_inbox(&own, "SENT");
    world.wait_inbox(&ids[5], "SENT");
    for (name, expected) in names.iter().zip(["MISSING", "LOCKED", "CORRUPT", "NEWER", "OLDER", "OK"]) {
        world.wait(&format!("{name} is {expected}"), |world| state(world, name) == expected);
    }
    world.wait("alerts", |world| world.alerts("SOURCE") >= 4);
    let (code, said, _) = world.onceward(&["check", "--offline"]);
    assert!(code == 1 && said.contains("MISSING") && said.contains("source newer"), "{said}");
    let (_, said, _) = world.onceward(&["status"]);
    assert!(said.contains("sources") && said.contains("CORRUPT"), "{said}");
    for id in &ids[..5] {
        assert_eq!(world.arrivals(id), 0);
    }

    std::fs::rename(&aside, &files[0]).expect("put back");
    locked.stdin.take().expect("piped").write_all(b"go\n").expect("written");
    assert!(locked.wait().expect("ends").success());
    std::fs::write(&files[2], whole).expect("mended");
    let present = onceward::db::migrate::newest(onceward::db::Part::Outbox).to_string();
    version(&files[3], &present);
    version(&files[4], &present);
    for (name, id) in names.iter().zip(&ids) {
        world.wait_inbox(id, "SENT");
        world.wait(&format!("{name} is OK"), |world| state(world, name) == "OK");
        assert_eq!(world.arrivals(id), 1);
    }
    agent.stop();
}

/// Whichever of the two files it stands in, an opt-out that comes after the relay's claim is seen; a file that cannot be
/// asked is no consent, and holds up nobody else's messages.
#[test]
fn consent_is_looked_at_right_before_the_call_in_the_messages_own_file_and_in_outbox_db() {
    for in_source in [true, false] {
        let world = World::new();
        let file = app(&world, "shop", "delete");
        add(&world, "shop", &file);
        let go = world.dir.path().join("go");
        let wait_at = format!("worker-before-claim:{}", go.display());
        let agent = world.agent_with(&[("ONCEWARD_WAIT_AT", &wait_at)]);
        agent.wait_log("ready:");
        let rows = open(&file, "delete");
        let withdrawn = put(&rows, "withdrawn", ("", ""));
        world.wait("claimed", |_| status(&file, &withdrawn) == "PUBLISHING");
        std::thread::sleep(Duration::from_millis(300)); // past the worker's first look
        let list = if in_source { rows } else { world.outbox() };
        list.execute("INSERT INTO suppress (recipient) VALUES ('010-0000-0001')", []).expect("opted out");
        std::fs::write(&go, "").expect("written");
        world.wait("skipped", |_| status(&file, &withdrawn) == "SKIPPED");
        assert_eq!((world.arrivals(&withdrawn), world.inbox_state(&withdrawn)), (0, None));
        agent.stop();
    }

    let world = World::new();
    let file = app(&world, "shop", "delete");
    add(&world, "shop", &file);
    let go = world.dir.path().join("go");
    let wait_at = format!("worker-before-claim:{}", go.display());
    let agent = world.agent_with(&[("ONCEWARD_WAIT_AT", &wait_at)]);
    agent.wait_log("ready:");
    let id = put(&open(&file, "delete"), "unread", ("", ""));
    world.wait("claimed", |_| status(&file, &id) == "PUBLISHING");
    std::thread::sleep(Duration::from_millis(300));
    let mut locked = holder(&file);
    std::fs::write(&go, "").expect("written");
    let own = world.put_plain("own");
    world.wait_inbox(&own, "SENT");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(world.arrivals(&id), 0, "nobody could say that it is wanted");
    locked.stdin.take().expect("piped").write_all(b"go\n").expect("written");
    assert!(locked.wait().expect("ends").success());
    world.wait_inbox(&id, "SENT");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

/// As an operator does, in a process of its own: the test's own connections keep their locks.
fn copy_file(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().expect("cp runs").success());
}

#[test]
fn a_copy_is_refused_and_once_adopted_sends_nothing_twice() {
    let world = World::new();
    let path = app(&world, "shop", "delete");
    add(&world, "shop", &path);
    let id = put(&open(&path, "delete"), "one", ("", ""));
    let copy = world.dir.path().join("copy.db");
    copy_file(&path, &copy);
    let copied = copy.to_str().expect("UTF-8");
    let (code, _, error) = world.onceward(&["source", "add", "copy", copied]);
    assert!(code == 69 && error.contains("is a copy of the source shop"), "{error}");
    let agent = world.agent();
    world.wait_inbox(&id, "SENT");
    let (code, said, error) = world.onceward(&["source", "add", "copy", copied, "--adopt"]);
    assert!(code == 0 && said.contains("1 unfinished messages are HELD"), "{said}{error}");
    assert_eq!(status(&copy, &id), "HELD");
    // Released, it is known: the same message id, the same inbox.
    assert_eq!(world.onceward(&["--source", "copy", "release", &id]).0, 0);
    world.wait("absorbed", |_| status(&copy, &id) == "PUBLISHED");
    let fresh = put(&open(&copy, "delete"), "two", ("", ""));
    world.wait_inbox(&fresh, "SENT");
    assert_eq!((world.arrivals(&id), world.arrivals(&fresh)), (1, 1));
    agent.stop();
}

#[test]
fn two_agents_never_send_from_one_file() {
    let (one, two) = (World::new(), World::new());
    let path = app(&one, "shop", "wal");
    add(&one, "shop", &path);
    let (first, second) = (one.agent(), two.agent());
    let sent = put(&open(&path, "wal"), "sent", ("", ""));
    one.wait_inbox(&sent, "SENT");
    let file = path.to_str().expect("UTF-8");
    let (code, _, error) = two.onceward(&["source", "add", "shop", file]);
    assert!(code == 69 && error.contains("is served by another agent"), "{error}");
    one.faults(&["status=429"]); // the next one waits at the first agent
    let waits = put(&open(&path, "wal"), "waits", ("", ""));
    one.wait("throttled", |one| one.arrivals(&waits) > 0);
    let (code, said, error) = two.onceward(&["source", "add", "shop", file, "--adopt"]);
    assert!(code == 0 && said.contains("HELD"), "{said}{error}");
    one.wait("taken over", |one| state(one, "shop") == "FOREIGN");
    assert_eq!(status(&path, &waits), "HELD");
    assert_eq!(two.onceward(&["--source", "shop", "release", &waits]).0, 0);
    two.wait_inbox(&waits, "SENT");
    assert_eq!(
        (one.sandbox.ledger().totals().accepted, two.arrivals(&waits), two.arrivals(&sent)),
        (1, 1, 0)
    );
    first.stop();
    second.stop();
}

#[test]
fn f32_a_restored_older_file_under_the_running_agent_sends_nothing_twice_and_loses_nothing_new() {
    let world = World::new();
    let path = app(&world, "shop", "delete");
    add(&world, "shop", &path);
    let first = put(&open(&path, "delete"), "first", ("", ""));
    let backup = world.dir.path().join("backup.db");
    copy_file(&path, &backup);
    let agent = world.agent();
    let second = put(&open(&path, "delete"), "second", ("", ""));
    world.wait_inbox(&first, "SENT");
    world.wait_inbox(&second, "SENT");
    // Nobody is writing: a file that is replaced in mid-transaction shares its journal's name with the new one.
    world.wait("marked", |_| [&first, &second].iter().all(|id| status(&path, id) == "PUBLISHED"));
    // The application's operator puts yesterday's file back; the agent still has the old one open.
    std::fs::rename(&backup, &path).expect("restored");
    let third = put(&open(&path, "delete"), "third", ("", ""));
    agent.wait_log("it is opened anew");
    world.wait_inbox(&third, "SENT");
    world.wait("absorbed", |_| status(&path, &first) == "PUBLISHED");
    assert_eq!([&first, &second, &third].map(|id| world.arrivals(id)), [1, 1, 1]);
    std::fs::remove_file(&path).expect("deleted");
    world.wait("missing", |world| state(world, "shop") == "MISSING");
    assert!(!path.exists(), "nothing is made in its place");
    agent.stop();
}

#[test]
fn a_small_source_is_not_held_up_by_a_big_one() {
    let world = World::with("", "rate = \"100/s\"");
    let big = app(&world, "big", "wal");
    let small = app(&world, "small", "delete");
    add(&world, "big", &big);
    add(&world, "small", &small);
    let mut connection = open(&big, "wal");
    let tx = connection.transaction().expect("a transaction");
    for i in 0..3_000 {
        let _ = put(&tx, &format!("big:{i}"), ("", ""));
    }
    tx.commit().expect("committed");
    let agent = world.agent();
    world.wait("the big one flows", |world| world.sandbox.ledger().totals().arrived >= 50);
    let connection = open(&small, "delete");
    let ids: Vec<String> = (0..20).map(|i| put(&connection, &format!("small:{i}"), ("", ""))).collect();
    for id in &ids {
        world.wait_inbox(id, "SENT");
    }
    // At most what was in the channel when they came (98 places), and then turn by turn.
    let arrived = world.sandbox.ledger().totals().arrived;
    assert!(arrived < 600, "the small source waited behind {arrived} calls");
    agent.stop();
}

#[test]
fn one_ordering_key_is_under_way_from_one_source_at_a_time() {
    let world = World::new();
    world.faults(&["delay=600ms"]);
    let files = [app(&world, "one", "wal"), app(&world, "two", "delete")];
    for (name, file) in ["one", "two"].iter().zip(&files) {
        add(&world, name, file);
    }
    let lane = (", ordering_key", ", 'customer:1'");
    let ids: Vec<String> =
        files.iter().map(|file| put(&Connection::open(file).expect("opens"), "k", lane)).collect();
    let agent = world.agent();
    for id in &ids {
        world.wait_inbox(id, "SENT");
        assert_eq!(world.arrivals(id), 1);
    }
    // Each call took 600 ms: had they run at once, the two attempts would overlap.
    let starts: Vec<(i64, i64)> = world
        .inbox()
        .prepare(
            "SELECT started_at_ms, started_at_ms + answering_us / 1000 FROM attempt ORDER BY started_at_ms",
        )
        .expect("prepared")
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("read")
        .collect::<rusqlite::Result<_>>()
        .expect("rows");
    assert_eq!(starts.len(), 2);
    assert!(starts[0].1 - starts[0].0 >= 500, "{starts:?}");
    assert!(starts[1].0 >= starts[0].1 - 50, "they overlap: {starts:?}");
    agent.stop();
}

#[test]
fn f03_f05_a_death_after_the_claim_or_before_the_mark_hands_a_sources_row_over_again_and_sends_it_once() {
    for (point, journal) in [
        ("relay-after-claim", "wal"),
        ("relay-after-claim", "delete"),
        ("relay-before-publish", "wal"),
        ("relay-before-publish", "delete"),
    ] {
        let world = World::new();
        let path = app(&world, "shop", journal);
        add(&world, "shop", &path);
        let id = put(&open(&path, journal), "one", ("", ""));
        let mut dying = world.agent_with(&[("ONCEWARD_KILL_AT", point)]);
        assert!(!dying.wait_end().success(), "{point}");
        assert_eq!(status(&path, &id), "PUBLISHING");
        let agent = world.agent();
        world.wait("marked", |_| status(&path, &id) == "PUBLISHED");
        assert_eq!(
            (world.inbox_state(&id).as_deref(), world.arrivals(&id)),
            (Some("SENT"), 1),
            "{point} {journal}"
        );
        agent.stop();
    }
}

/// Random kills in mid-drain with outbox.db and a source in either kind of journal. `ONCEWARD_KILLS` makes it longer.
#[test]
fn random_kills_over_three_outboxes_send_nothing_twice_lose_nothing_and_harm_no_file() {
    let kills: u64 = std::env::var("ONCEWARD_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let world = World::with(
        "[retry]\nquick = { times = 3, every = \"20ms\" }\nlater = { times = 1, every = \"50ms\" }\n",
        "",
    );
    world.faults(&[
        "chance=0.02,reset=read",
        "chance=0.02,status=500",
        "chance=0.02,status=403",
        "chance=0.02,close=answer",
    ]);
    let files = ["wal", "delete"].map(|journal| {
        let path = app(&world, journal, journal);
        add(&world, journal, &path);
        path
    });
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    for kill in 0..kills {
        world.put_many(&format!("k{kill}"), 10);
        for (file, journal) in files.iter().zip(["wal", "delete"]) {
            let mut application = open(file, journal);
            let tx = application
                .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
                .expect("begins");
            for i in 0..10 {
                tx.execute("INSERT INTO orders (recipient) VALUES ('010')", []).expect("an order");
                let _ = put(&tx, &format!("k{kill}:{i}"), ("", ""));
            }
            tx.commit().expect("committed");
        }
        let agent = world.agent_with(&[("RUST_LOG", "error")]);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = world.sandbox.ledger().totals().arrived;
        world.sandbox.ledger().wait_total(before + 1, std::time::Duration::from_secs(10));
        std::thread::sleep(std::time::Duration::from_micros((seed >> 33) % 40_000));
        agent.kill9();
    }
    world.faults(&[]);
    let agent = world.agent();
    let count = |path: &Path, what: &str| -> i64 {
        open(path, if path == files[1] { "delete" } else { "wal" })
            .query_row(&format!("SELECT count(*) FROM {what}"), [], |row| row.get(0))
            .expect("counts")
    };
    let own = world.outbox_path();
    world.wait("everything has an end", |_| {
        let unfinished = "outbox WHERE status IN ('PENDING', 'PUBLISHING')";
        [&own, &files[0], &files[1]].into_iter().all(|path| count(path, unfinished) == 0)
    });
    agent.stop();
    let mut closed = 0;
    for path in [&own, &files[0], &files[1]] {
        closed += count(path, "outbox WHERE status IN ('PUBLISHED', 'PARKED')");
        let sound: String = open(path, if *path == files[1] { "delete" } else { "wal" })
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .expect("a verdict");
        assert_eq!(sound, "ok", "{}", path.display());
    }
    for path in &files {
        assert_eq!(count(path, "orders"), kills as i64 * 10);
    }
    assert_eq!(closed, kills as i64 * 30);
    let totals = world.sandbox.ledger().totals();
    assert_eq!(totals.duplicates, 0);
    println!(
        "{kills} kills, {closed} messages: {} requests, {} duplicates",
        totals.arrived, totals.duplicates
    );
}
