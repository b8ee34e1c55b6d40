//! The operator's verbs against real files and a real agent: what they say is what became of the message.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{BIN, World, text};

/// Runs with this text on standard input.
fn fed(world: &World, args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(BIN)
        .arg("--config")
        .arg(&world.config)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("written");
    text(&child.wait_with_output().expect("ends"))
}

fn due(world: &World, id: &str) -> i64 {
    world
        .outbox()
        .query_row("SELECT not_before_ms FROM outbox WHERE message_id = ?1", [id], |row| row.get(0))
        .expect("reads")
}

fn audits(world: &World) -> i64 {
    world.outbox().query_row("SELECT count(*) FROM audit", [], |row| row.get(0)).expect("reads")
}

const LATER: i64 = 4_000_000_000_000;

fn put_later(world: &World, key: &str) -> String {
    let connection = world.outbox();
    connection
        .execute(
            "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, not_before_ms) VALUES (?1, 'TEST', 'gateway', '01000000001', '{}', ?2)",
            rusqlite::params![key, LATER],
        )
        .expect("taken");
    connection
        .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| row.get(0))
        .expect("there")
}

#[test]
fn hold_and_release_keep_the_due_time_and_try_now_is_the_other_wish() {
    let world = World::new();
    let id = put_later(&world, "E:7");
    let agent = world.agent();
    let (code, said, _) = world.onceward(&["hold", "E:7", "--note", "asked by phone"]);
    assert_eq!((code, said.contains(&format!("{id} held"))), (0, true), "{said}");
    assert_eq!(world.onceward(&["hold", &id]).0, 0, "repeating it is harmless");
    let (code, said, _) = world.onceward(&["release", "--dry-run", "E:7"]);
    assert!(code == 0 && said.contains("would be released, due 2096-10-02"), "{said}");
    assert_eq!(world.outbox_state(&id).0, "HELD");
    let (code, said, _) = world.onceward(&["release", "E:7"]);
    assert!(code == 0 && said.contains("released, due 2096-10-02"), "{said}");
    assert_eq!((world.outbox_state(&id).0.as_str(), due(&world, &id)), ("PENDING", LATER));
    assert_eq!(world.arrivals(&id), 0);
    let (code, said, _) = world.onceward(&["try-now", "E:7"]);
    assert!(code == 0 && said.contains("made due now"), "{said}");
    world.wait_inbox(&id, "SENT");
    world.wait_outbox(&id, "PUBLISHED");
    let (_, shown, _) = world.onceward(&["show", "E:7"]);
    for part in ["HOLD", "RELEASE", "TRY_NOW", "uid ", "asked by phone", "PENDING due 2096-10-02"] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&world.onceward(&["show", &id, "--json"]).1).expect("JSON");
    assert_eq!(
        (json["deeds"][0]["verb"].as_str(), json["vendor"]["status"].as_str()),
        (Some("HOLD"), Some("SENT"))
    );
    assert_eq!(json["message"]["recipient"], "010****01");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

#[test]
fn a_parked_message_that_is_released_is_due_now_with_a_fresh_budget() {
    let world = World::with(
        "[retry]\nquick = { times = 0, every = \"1s\" }\nlater = { times = 0, every = \"1s\" }",
        "",
    );
    world.faults(&["status=403"]);
    let id = world.put_plain("k");
    let agent = world.agent();
    world.wait_outbox(&id, "PARKED");
    world.faults(&[]);
    let (code, said, _) = world.onceward(&["release", "k"]);
    assert!(code == 0 && said.contains("released, due now"), "{said}");
    world.wait_inbox(&id, "SENT");
    agent.stop();
}

#[test]
fn what_is_not_there_is_66_and_what_cannot_be_is_1() {
    let world = World::new();
    let id = world.put_plain("k");
    let (code, said, _) = world.onceward(&["hold", "nothing"]);
    assert_eq!(code, 66, "{said}");
    assert!(said.contains("no message has this id or key"), "{said}");
    assert_eq!(world.onceward(&["hold", "nothing", "k"]).0, 1);
    assert_eq!(world.onceward(&["try-now", "k"]).0, 1, "held: release it first");
    assert_eq!(world.onceward(&["cancel", "k"]).0, 0);
    assert_eq!(world.onceward(&["cancel", "k"]).0, 0, "repeating it is harmless");
    let (code, said, _) = world.onceward(&["release", "k"]);
    assert!(code == 1 && said.contains("it is CANCELLED"), "{said}");
    assert_eq!(audits(&world), 2);
    assert!(world.onceward(&["show", &id]).1.contains("cancelled by a person"));
    for args in
        [&["hold", "ALL", "k"][..], &["hold", "k", "--dest", "gateway"], &["hold", "ALL", "--state", "SENT"]]
    {
        assert_eq!(world.onceward(args).0, 64, "{args:?}");
    }
}

#[test]
fn ids_keys_and_json_lines_come_from_standard_input() {
    let world = World::new();
    world.put_many("k", 5);
    let (_, lines, _) = world.onceward(&["queue", "--json", "--limit", "2"]);
    let (code, said, _) = fed(&world, &["hold", "-"], &lines);
    assert!(code == 0 && said.ends_with("2 held, 0 not\n"), "{said}");
    let (code, said, _) = fed(&world, &["hold", "-", "k:0"], "k:3\n\n  k:4  \n");
    assert!(code == 0 && said.ends_with("2 held, 1 already, 0 not\n"), "{said}");
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE status = 'HELD'"), 4);
}

#[test]
fn all_goes_by_filters_in_bounded_transactions_while_producers_write() {
    let world = World::new();
    world.put_many("k", 3000);
    world.put("other", "biz", "{}");
    let (code, said, _) = world.onceward(&["hold", "ALL", "--dest", "gateway", "--dry-run"]);
    assert!(
        code == 0 && said.contains("3000 PENDING for gateway\n3000 would be held, 0 not (dry run"),
        "{said}"
    );
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE status = 'HELD'"), 0);
    // A producer never waits longer than one short transaction.
    let mut child = Command::new(BIN)
        .arg("--config")
        .arg(&world.config)
        .args(["hold", "ALL", "--kind", "TE*T", "--dest", "gateway"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let producer = world.outbox();
    producer.busy_timeout(std::time::Duration::from_millis(2_000)).expect("set");
    let mut put = 0;
    while child.try_wait().expect("waits").is_none() {
        producer
            .execute("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'LATE', 'gateway', '010', '{}')", [format!("late:{put}")])
            .expect("a producer gets in between");
        put += 1;
    }
    assert!(child.wait().expect("ends").success());
    assert!(put > 0);
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE status = 'HELD'"), 3000);
    let (code, said, _) = world.onceward(&["cancel", "ALL", "--state", "HELD", "--note", "wrong price"]);
    assert!(code == 0 && said.contains("3000 cancelled, 0 not"), "{said}");
    assert_eq!(audits(&world), 6000);
    let (code, said, _) = world.onceward(&["cancel", "ALL", "--state", "held"]);
    assert!(code == 0 && said.contains("0 cancelled, 0 not"), "{said}");
}

/// Goal: a hold that races the relay's claims is either held or sent, and the command says which.
#[test]
fn a_hold_that_races_the_claims_tells_the_truth_message_by_message() {
    let world = World::with("[relay]\nbatch = 10", "");
    world.faults(&["delay=5ms"]);
    world.put_many("k", 600);
    let ids: Vec<String> = {
        let connection = world.outbox();
        let mut statement =
            connection.prepare("SELECT message_id FROM outbox ORDER BY id DESC").expect("prepares");
        statement.query_map([], |row| row.get(0)).expect("reads").map(Result::unwrap).collect()
    };
    let agent = world.agent();
    world.wait("some are sent", |world| world.count("SELECT count(*) FROM inbox") > 50);
    let (code, said, error) = fed(&world, &["hold", "-"], &ids.join("\n"));
    assert_eq!(code, 1, "{error}");
    let held: Vec<&str> = said.lines().filter_map(|line| line.strip_suffix(" held")).collect();
    let refused: Vec<&str> = said
        .lines()
        .filter(|line| line.contains(" not held: "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(held.len() + refused.len(), 600, "{said}");
    assert!(held.len() > 50 && refused.len() > 50, "{} held, {} refused", held.len(), refused.len());
    world.wait("the others are sent", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'") == refused.len() as i64
    });
    for id in &held {
        assert_eq!(
            (world.outbox_state(id).0.as_str(), world.arrivals(id), world.inbox_state(id)),
            ("HELD", 0, None)
        );
    }
    for id in &refused {
        assert_eq!((world.inbox_state(id).as_deref(), world.arrivals(id)), (Some("SENT"), 1));
    }
    assert_eq!(world.onceward(&["release", "ALL"]).0, 0);
    world
        .wait("all are sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 600);
    assert!(ids.iter().all(|id| world.arrivals(id) == 1));
    agent.stop();
}

/// Goal: a message that went out but waits again, its mark lost, is neither called held nor cancelled.
#[test]
fn what_went_out_is_not_called_held_although_its_mark_was_lost() {
    let world = World::new();
    let id = world.put_plain("k");
    let agent = world.agent();
    world.wait_outbox(&id, "PUBLISHED");
    agent.stop();
    // As a power cut leaves it: the mark was not on the disk, the claim's lease is over.
    world
        .outbox()
        .execute_batch("DROP TRIGGER outbox_move; DROP TRIGGER outbox_rearm; UPDATE outbox SET status = 'PENDING', reason = 'CLAIM_EXPIRED', closed_at_ms = NULL")
        .expect("set back");
    for verb in ["hold", "cancel", "try-now"] {
        let (code, said, _) = world.onceward(&[verb, "k"]);
        assert!(
            code == 1 && said.contains("it went to the vendor before and is SENT there"),
            "{verb}: {said}"
        );
    }
    assert_eq!(world.outbox_state(&id).0, "PENDING");
    let agent = world.agent();
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

/// A row that was handed over says what became of it there, and what fits.
#[test]
fn a_verb_on_what_was_handed_over_says_its_fate_and_the_verb_that_fits() {
    let world = World::listening("");
    world.faults(&["reset=read,first=1"]);
    let agent = world.agent();
    let lost = world.put_plain("lost");
    world.wait_inbox(&lost, "ERROR");
    world.wait_outbox(&lost, "PUBLISHED");
    let sent = world.put_plain("sent");
    world.wait_inbox(&sent, "SENT");
    world.wait_outbox(&sent, "PUBLISHED");
    let check = |up: bool| {
        for verb in ["hold", "release", "cancel", "try-now"] {
            let (code, said, error) = world.onceward(&[verb, &lost, "sent"]);
            assert!(code == 1, "{verb} {code} {said}{error}");
            for part in [
                "PUBLISHED, and ERROR at the vendor",
                "`onceward settle`",
                "PUBLISHED, and SENT at the vendor",
            ] {
                assert!(said.contains(part), "{verb}: {said}");
            }
            if up {
                let (code, said) = world.call("POST", &format!("/v1/messages/{lost}/{verb}"), "");
                assert!(code == 409 && said.contains("ERROR") && said.contains("onceward settle"), "{said}");
            }
        }
    };
    check(true);
    agent.stop();
    check(false);
    assert_eq!(world.outbox_state(&lost).0, "PUBLISHED");
}
