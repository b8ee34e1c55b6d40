//! How much waits, and what went wrong, over outbox.db and all applications' files together: by the commands, by the
//! local API and for a member of the group; and `--source` and `--dest` where they mean nothing.

use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::Value;

use crate::f_source::{add, app, put, state};
use crate::support::World;
use crate::support::local::is_root;

struct Two {
    world: World,
    files: [PathBuf; 2],
}

/// Two sources and outbox.db with three, two and one waiting messages for `gateway`, of which each has one HELD; and one
/// PARKED in `shop`.
fn two() -> Two {
    let world = World::listening("");
    let files = [("shop", "delete"), ("till", "wal")].map(|(name, journal)| {
        let file = app(&world, name, journal);
        add(&world, name, &file);
        file
    });
    let two = Two { world, files };
    let due = onceward::clock::wall_ms() + 3_600_000;
    for (count, connection) in [(1, two.world.outbox()), (3, two.rows(0)), (2, two.rows(1))] {
        for number in 0..=count {
            let key = format!("k{number}");
            let id = put(&connection, &key, (", destination, not_before_ms", &format!(", 'gateway', {due}")));
            if number == count {
                connection
                    .execute("UPDATE outbox SET status = 'HELD' WHERE message_id = ?1", [&id])
                    .expect("held");
            }
        }
    }
    let id = put(&two.rows(0), "parked", (", destination", ", 'gateway'"));
    for to in [
        "'PUBLISHING', claimed_by = 'a:1', claimed_until_ms = 1",
        "'PARKED', claimed_by = NULL, claimed_until_ms = NULL, reason = 'TEST'",
    ] {
        two.rows(0)
            .execute(&format!("UPDATE outbox SET status = {to} WHERE message_id = ?1"), [&id])
            .expect("parked");
    }
    two
}

impl Two {
    fn rows(&self, file: usize) -> Connection {
        let connection = Connection::open(&self.files[file]).expect("opens");
        connection.busy_timeout(crate::support::SOON).expect("timeout is set");
        connection
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The object of the destination `gateway`.
fn gateway(all: &[Value]) -> &Value {
    all.iter().find(|one| one["destination"] == "gateway").expect("it is there")
}

type Run<'a> = dyn Fn(&[&str]) -> (i32, String, String) + 'a;

/// What waits for gateway: by `dest`, `status` and `shape`; and the sources that were left out.
#[track_caller]
fn asked(run: &Run<'_>) -> [(i64, Vec<String>); 3] {
    let names = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (code, out, error) = run(&["dest", "--json"]);
    assert_eq!(code, 0, "{error}");
    let all = lines(&out);
    let dest = (gateway(&all)["waiting"].as_i64().expect("a count"), names(&all[0]["sources_unread"]));
    let (code, out, error) = run(&["status", "--json"]);
    assert_eq!(code, 0, "{error}");
    let all: Value = serde_json::from_str(&out).expect("JSON");
    let waiting = all["waiting"].as_array().expect("a list");
    let pending = waiting.iter().find(|one| one["status"] == "PENDING" && one["destination"] == "gateway");
    let status = (pending.expect("there")["count"].as_i64().expect("a count"), names(&all["sources_unread"]));
    assert_eq!(gateway(all["destinations"].as_array().expect("a list"))["waiting"], status.0);
    let (code, out, error) = run(&["shape", "--json", "--dest", "gateway"]);
    assert_eq!(code, 0, "{error}");
    let unread =
        ["shop", "till"].into_iter().filter(|name| error.contains(name)).map(str::to_owned).collect();
    let shape = (gateway(&lines(&out))["total"].as_i64().expect("a count"), unread);
    [dest, status, shape]
}

#[test]
fn what_waits_is_the_sum_over_all_outboxes_and_what_could_not_be_read_is_named() {
    let two = two();
    let run = |args: &[&str]| two.world.onceward(args);
    let whole = [(6, vec![]), (6, vec![]), (6, vec![])];
    assert_eq!(asked(&run), whole, "the agent is down");
    let held = |one: &Value| one["unfinished"]["HELD"].clone();
    assert_eq!(held(gateway(&lines(&run(&["dest", "--json"]).1))), 3);
    let agent = two.world.agent();
    two.world.wait("served", |world| state(world, "till") == "OK" && state(world, "shop") == "OK");
    assert_eq!(asked(&run), whole, "it is up");
    assert_eq!(two.world.get("/v1/destinations/gateway")["waiting"], 6);
    assert_eq!(two.world.get("/v1/shape?state=HELD")["destinations"][0]["total"], 3);
    // One alone.
    let (_, out, _) = run(&["--source", "shop", "shape", "--json"]);
    assert_eq!(gateway(&lines(&out))["total"], 3);
    assert_eq!(two.world.get("/v1/shape?source=till")["destinations"][0]["total"], 2);
    assert_eq!(two.world.call("GET", "/v1/shape?source=nowhere", "").0, 404);
    // What went wrong, wherever.
    let (code, out, error) = run(&["queue", "--trouble"]);
    assert!(code == 0 && out.contains("PARKED") && out.contains("in the source shop"), "{out}{error}");
    assert!(!error.contains("not looked at"), "{error}");
    let (_, out, _) = run(&["queue", "--trouble", "--json"]);
    assert_eq!((lines(&out).len(), &lines(&out)[0]["source"]), (1, &Value::from("shop")));
    let (_, out, _) = run(&["--source", "till", "queue", "--trouble", "--json"]);
    assert_eq!(out, "");
    // One is away.
    std::fs::rename(&two.files[0], two.world.dir.path().join("aside.db")).expect("moved away");
    let missing = || vec!["shop".to_owned()];
    assert_eq!(asked(&run), [(3, missing()), (3, missing()), (3, missing())]);
    for command in [&["dest"][..], &["shape"], &["queue", "--trouble"]] {
        let (code, _, error) = run(command);
        assert!(code == 0 && error.contains("not looked at: the source shop, which cannot"), "{error}");
    }
    assert!(run(&["status"]).1.contains("not looked at: the source shop, which cannot"));
    assert_eq!(two.world.get("/v1/destinations")["destinations"][0]["sources_unread"][0], "shop");
    agent.stop();
}

#[test]
fn a_member_of_the_group_gets_the_same_sum_through_the_socket() {
    if !is_root() {
        return;
    }
    let two = two();
    two.world.open_to_the_group();
    let run = |args: &[&str]| two.world.as_stranger(args);
    let (code, out, error) = run(&["shape", "--json"]);
    assert!(code == 0 && error.contains("own files is not counted"), "{error}");
    assert_eq!(gateway(&lines(&out))["total"], 1, "no agent to be asked");
    assert_eq!(run(&["--source", "shop", "shape"]).0, 77);
    let agent = two.world.agent();
    two.world.wait("served", |world| state(world, "till") == "OK" && state(world, "shop") == "OK");
    two.world.open_socket();
    assert_eq!(asked(&run), [(6, vec![]), (6, vec![]), (6, vec![])]);
    let (_, out, _) = run(&["--source", "shop", "shape", "--json"]);
    assert_eq!(gateway(&lines(&out))["total"], 3);
    let (code, out, error) = run(&["queue", "--trouble"]);
    assert!(code == 0 && out.contains("PARKED") && out.contains("in the source shop"), "{out}{error}");
    let (code, _, error) = run(&["queue", "--dest", "nope"]);
    assert!(code == 65 && error.contains("no \"nope\""), "{code} {error}");
    std::fs::rename(&two.files[0], two.world.dir.path().join("aside.db")).expect("moved away");
    let missing = || vec!["shop".to_owned()];
    assert_eq!(asked(&run), [(3, missing()), (3, missing()), (3, missing())]);
    agent.stop();
}

#[test]
fn a_source_that_a_command_would_not_heed_is_refused_and_suppress_heeds_it() {
    let world = World::listening("");
    let file = app(&world, "shop", "wal");
    add(&world, "shop", &file);
    for command in [
        &["status"][..],
        &["dest"],
        &["purge"],
        &["purge", "--dry-run"],
        &["check"],
        &["verify"],
        &["drain", "--timeout", "1s"],
        &["sql", "SELECT 1"],
        &["pause", "gateway", "--reason", "x"],
        &["source", "list"],
    ] {
        let mut all = vec!["--source", "shop"];
        all.extend(command);
        let (code, out, error) = world.onceward(&all);
        assert!(code == 64 && out.is_empty() && error.contains("--source goes with"), "{command:?} {error}");
    }
    // An opt-out of that source alone, agent up, seen by the worker.
    let agent = world.agent();
    world.wait("served", |world| state(world, "shop") == "OK");
    let (code, _, error) = world.onceward(&["--source", "shop", "suppress", "add", "010-0000-0001"]);
    assert_eq!(code, 0, "{error}");
    let count = |args: &[&str]| lines(&world.onceward(args).1).len();
    assert_eq!(count(&["--source", "shop", "suppress", "list", "--json"]), 1);
    assert_eq!(count(&["suppress", "list", "--json"]), 0);
    let theirs = put(&Connection::open(&file).expect("opens"), "k", ("", ""));
    let own = world.put_plain("own");
    world.wait_inbox(&own, "SENT");
    world.wait("skipped", |_| crate::f_source::status(&file, &theirs) == "SKIPPED");
    assert_eq!(world.arrivals(&theirs), 0);
    let (code, out, error) = world.onceward(&["--source", "shop", "suppress", "remove", "01000000001"]);
    assert!(code == 0 && out.contains("removed"), "{out}{error}");
    assert_eq!(world.onceward(&["--source", "nowhere", "suppress", "list"]).0, 66);
    agent.stop();
}

#[test]
fn a_destination_that_nobody_knows_is_a_mistake_and_one_that_rows_still_name_is_not() {
    let world = World::listening("");
    let file = app(&world, "shop", "wal");
    add(&world, "shop", &file);
    for command in [
        &["queue", "--dest", "nope"][..],
        &["queue", "--dest", "nope", "--state", "ALL"],
        &["shape", "--dest", "nope"],
        &["hold", "ALL", "--dest", "nope"],
        &["cancel", "ALL", "--dest", "nope", "--dry-run"],
        &["--source", "shop", "release", "ALL", "--dest", "nope"],
    ] {
        let (code, _, error) = world.onceward(command);
        assert!(
            code == 65 && error.contains("the settings have no \"nope\", only gateway, biz"),
            "{command:?} {code} {error}"
        );
    }
    for command in [&["queue", "--dest", ""][..], &["hold", "ALL", "--dest", "biz"], &["shape", "--dest", ""]]
    {
        let (code, _, error) = world.onceward(command);
        assert_eq!(code, 0, "{command:?} {error}");
    }
    // Gone from the settings, but not from the rows: in one file for all looks.
    put(&Connection::open(&file).expect("opens"), "k", (", destination", ", 'gone'"));
    for command in [&["queue", "--dest", "gone"][..], &["--source", "shop", "hold", "ALL", "--dest", "gone"]]
    {
        let (code, out, error) = world.onceward(command);
        assert_eq!(code, 0, "{command:?} {out}{error}");
    }
    let agent = world.agent();
    assert_eq!(world.call("GET", "/v1/messages?dest=nope", "").0, 422);
    assert_eq!(world.call("GET", "/v1/messages?dest=gone", "").0, 200);
    agent.stop();
}

#[test]
fn a_source_that_is_added_again_is_shown_as_the_agent_sees_it() {
    let world = World::listening("");
    let file = app(&world, "shop", "wal");
    add(&world, "shop", &file);
    let agent = world.agent();
    world.wait("served", |world| state(world, "shop") == "OK");
    let said = add(&world, "shop", &file);
    assert!(said.contains("the agent serves it"), "{said}");
    assert_eq!(state(&world, "shop"), "OK");
    // Forgotten and back before the agent has noticed.
    assert_eq!(world.onceward(&["source", "remove", "shop"]).0, 0);
    let said = add(&world, "shop", &file);
    assert!(said.contains("the agent serves it"), "{said}");
    assert_eq!(state(&world, "shop"), "OK");
    agent.stop();
}
