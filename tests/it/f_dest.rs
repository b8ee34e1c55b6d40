//! Destinations in an operator's hands: pause, resume, dest, probe, drain; verbs that race a claim or meet a lost mark;
//! receivers that deduplicate. The real agent, real files, real HTTP.

use std::time::{Duration, Instant};

use rusqlite::params;
use serde_json::Value;

use crate::support::World;

fn audits(world: &World) -> Vec<String> {
    world
        .inbox()
        .prepare("SELECT verb || ' ' || destination || ' ' || note || ': ' || state_before || ' -> ' || state_after FROM audit WHERE who LIKE 'uid %' AND at_ms > 0 ORDER BY id")
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .expect("the audit reads")
}

#[test]
fn a_pause_holds_over_restarts_and_is_shown_wherever_something_waits_for_it() {
    let world = World::listening("");
    let agent = world.agent();
    let (code, said, error) = world.onceward(&["pause", "gateway", "--reason", "contract ended"]);
    assert_eq!((code, said.as_str()), (0, "gateway paused\n"), "{error}");
    let id = world.put_plain("k");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!((world.arrivals(&id), world.outbox_state(&id).0.as_str()), (0, "PENDING"));
    for command in [&["status"][..], &["dest"], &["dest", "gateway"], &["queue"], &["show", "k"]] {
        let (code, shown, _) = world.onceward(command);
        assert!(
            code == 0 && shown.contains("contract ended") && shown.contains("uid"),
            "{command:?}: {shown}"
        );
    }
    // Again: nothing changes, nothing is audited.
    assert_eq!(world.onceward(&["pause", "gateway", "--reason", "contract ended"]).0, 0);
    agent.stop();
    let agent = world.agent();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(world.arrivals(&id), 0, "the pause is remembered");
    assert_eq!(world.onceward(&["resume", "gateway", "--reason", "renewed"]).1, "gateway resumed\n");
    world.wait_inbox(&id, "SENT");
    agent.stop();
    assert_eq!(
        audits(&world),
        [
            "PAUSE gateway contract ended: NOT PAUSED -> PAUSED: contract ended",
            "RESUME gateway renewed: PAUSED: contract ended -> NOT PAUSED",
        ]
    );
}

#[test]
fn a_pause_of_all_is_made_and_ended_while_the_agent_is_down() {
    let world = World::listening("");
    let (code, said, _) = world.onceward(&["pause", "--reason", "move"]);
    assert_eq!((code, said.as_str()), (0, "gateway paused\nbiz paused\n"));
    let id = world.put_plain("k");
    let agent = world.agent();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(world.arrivals(&id), 0);
    agent.stop();
    assert_eq!(world.onceward(&["resume"]).1, "gateway resumed\nbiz resumed\n");
    assert_eq!(world.onceward(&["resume"]).1, "gateway is not paused\nbiz is not paused\n");
    let agent = world.agent();
    world.wait_inbox(&id, "SENT");
    agent.stop();
    let (code, _, error) = world.onceward(&["pause", "nobody", "--reason", "x"]);
    assert!(code == 66 && error.contains("gateway, biz"), "{code} {error}");
    assert_eq!(world.onceward(&["pause", "gateway"]).0, 64, "a pause needs its reason");
    assert_eq!(audits(&world).len(), 4);
}

/// An agent that runs without its socket is not overtaken: the lock is its own.
#[test]
fn a_running_agent_that_cannot_be_reached_is_not_written_behind() {
    let world = World::listening("");
    let agent = world.agent();
    std::fs::remove_file(world.socket()).expect("the socket goes");
    let (code, _, error) = world.onceward(&["pause", "gateway", "--reason", "x"]);
    assert!(code == 75 && error.contains("nobody answers on its socket"), "{code} {error}");
    assert_eq!(audits(&world).len(), 0);
    agent.stop();
}

#[test]
fn dest_tells_why_and_until_when_and_a_probe_is_now() {
    let world = World::listening("rate = \"50/s\"");
    world.sandbox.refuse(true);
    let id = world.put_plain("k");
    let agent = world.agent();
    agent.wait_log("DESTINATION_CLOSED");
    // Long enough closed that the next probe of itself is seconds away.
    world.wait("a pause of 8 s", |world| {
        world.count("SELECT coalesce(max(pause_ms), 0) FROM destination") >= 8_000
    });
    let (code, shown, _) = world.onceward(&["dest", "gateway"]);
    assert!(code == 0 && shown.contains("CLOSED, closed since") && shown.contains("next try"), "{shown}");
    let (_, json, _) = world.onceward(&["dest", "gateway", "--json"]);
    let one: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (one["state"].as_str(), one["waiting"].as_i64(), one["rate_per_s"].as_f64()),
        (Some("CLOSED"), Some(1), Some(50.0)),
        "{json}"
    );
    assert!(one["next_probe_ms"].is_i64() && one["oldest_age_ms"].is_i64(), "{json}");
    assert_eq!(one["last_error"]["outcome"], "NOT_SENT", "{json}");
    let (code, said, _) = world.onceward(&["dest", "probe", "gateway"]);
    assert!(code == 1 && said.contains("does not answer"), "{code} {said}");
    world.sandbox.refuse(false);
    let begun = Instant::now();
    let (code, said, error) = world.onceward(&["dest", "probe", "gateway"]);
    assert!(code == 0 && said.contains("gateway answers"), "{code} {said} {error}");
    world.wait_inbox(&id, "SENT");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}: the probe was now", begun.elapsed());
    let (_, json, _) = world.onceward(&["dest", "gateway", "--json"]);
    let one: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((one["state"].as_str(), one["today"]["SENT"].as_i64()), (Some("OPEN"), Some(1)), "{json}");
    agent.stop();
    // Without an agent: the exchange alone.
    let (code, said, _) = world.onceward(&["dest", "probe", "gateway"]);
    assert!(code == 0 && said.contains("the agent is not running"), "{code} {said}");
    world.sandbox.refuse(true);
    assert_eq!(world.onceward(&["dest", "probe", "gateway"]).0, 1);
    assert_eq!(world.onceward(&["dest", "probe", "nobody"]).0, 66);
    assert_eq!(world.onceward(&["dest", "nobody"]).0, 66);
}

#[test]
fn a_drain_refuses_new_ones_sends_the_rest_reports_what_is_left_and_ends() {
    let world = World::listening("");
    let put = |key: &str| {
        world.outbox().execute(
            "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES (?1, 'TEST', '01000000001', '{}')",
            [key],
        )
    };
    assert_eq!(world.onceward(&["drain", "--timeout", "5s"]).0, 69, "no agent, nothing changed");
    put("a").expect("taken");
    let held = world.put_plain("held");
    assert_eq!(world.onceward(&["hold", &held]).0, 0);
    world.put_many("many", 300);
    world.faults(&["every=3,delay=20ms"]);
    let agent = world.agent();
    let (code, said, error) = world.onceward(&["drain", "--timeout", "25s"]);
    assert_eq!(code, 1, "{said}{error}");
    assert!(said.contains("held by a person") && said.contains("1 left"), "{said}");
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"), 301, "the rest is sent");
    let refused = put("b").expect_err("refused").to_string();
    assert!(refused.contains("being drained") && refused.contains("drain --end"), "{refused}");
    let (code, _, error) = world.onceward(&[
        "enqueue",
        "--key",
        "b",
        "--kind",
        "TEST",
        "--to",
        "01000000001",
        "--payload",
        "{}",
    ]);
    assert!(code == 75 && error.contains("being drained"), "{code} {error}");
    assert_eq!(
        world
            .call("POST", "/v1/messages", r#"{"dedup_key":"b","kind":"T","recipient":"010","payload":{}}"#)
            .0,
        503
    );
    assert!(world.onceward(&["status"]).1.contains("DRAINING"));
    assert_eq!(world.onceward(&["drain", "--end"]).1, "new messages are taken again\n");
    put("b").expect("taken again");
    assert_eq!(world.onceward(&["cancel", &held]).0, 0);
    let (code, said, _) = world.onceward(&["drain", "--timeout", "25s"]);
    assert_eq!((code, said.as_str()), (0, "drained: nothing is left\n"));
    put("c").expect_err("refused");
    agent.stop();
    let agent = world.agent();
    agent.wait_log("the drain has ended");
    put("c").expect("taken after the restart");
    let drains: i64 = world
        .outbox()
        .query_row("SELECT count(*) FROM audit WHERE verb IN ('DRAIN', 'DRAIN_END')", [], |row| row.get(0))
        .expect("reads");
    assert_eq!(drains, 3);
    agent.stop();
}

/// Either held or sent, and the command says which: 200 rows are held while four workers take them.
#[test]
fn a_hold_that_races_a_claim_is_either_held_or_sent() {
    let world = World::listening("");
    world.faults(&["delay=2ms"]);
    world.put_many("k", 400);
    let ids: Vec<String> = world
        .outbox()
        .prepare("SELECT message_id FROM outbox ORDER BY id DESC LIMIT 200")
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    let agent = world.agent();
    let mut args = vec!["hold"];
    args.extend(ids.iter().map(String::as_str));
    let (_, said, error) = world.onceward(&args);
    world.wait("the others are sent", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')") == 0
    });
    let (mut held, mut sent) = (0, 0);
    for id in &ids {
        let line = said
            .lines()
            .find(|line| line.starts_with(id.as_str()))
            .unwrap_or_else(|| panic!("{id}: {said}{error}"));
        let state = world.outbox_state(id).0;
        if line.contains(" held") && !line.contains("not held") {
            held += 1;
            assert_eq!(
                (state.as_str(), world.arrivals(id), world.inbox_state(id)),
                ("HELD", 0, None),
                "{line}"
            );
        } else {
            sent += 1;
            assert_eq!((state.as_str(), world.arrivals(id)), ("PUBLISHED", 1), "{line}");
        }
    }
    assert!(held > 0, "none was held: the race was not run ({sent} sent)");
    agent.stop();
}

#[test]
fn a_row_whose_mark_was_lost_is_never_called_held_or_cancelled() {
    let world = World::listening("");
    for (key, status) in [("sent", "SENT"), ("error", "ERROR"), ("failed", "FAILED"), ("sending", "SENDING")]
    {
        let id = world.put_plain(key);
        world
            .inbox()
            .execute(
                "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms)
                 VALUES ('gateway', ?1, 'f', ?2, 'a:1', 1, CASE ?2 WHEN 'SENDING' THEN NULL ELSE 2 END)",
                params![id, status],
            )
            .expect("as a lost mark leaves it");
        for verb in ["cancel", "hold"] {
            let (code, said, error) = world.onceward(&[verb, &id]);
            assert_eq!(code, 1, "{said}{error}");
            assert!(
                said.contains(&format!("it is {status}")) || said.contains(&format!("is {status} there")),
                "{said}"
            );
            assert_eq!(world.outbox_state(&id).0, "PENDING", "{verb} {status}");
        }
    }
    let fresh = world.put_plain("fresh");
    assert_eq!(world.onceward(&["cancel", &fresh]).0, 0);
    assert_eq!(world.outbox_state(&fresh).0, "FAILED");
    let agent = world.agent();
    world.wait("marks are made up for", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'") == 4
    });
    assert_eq!(world.sandbox.ledger().totals().arrived, 0);
    agent.stop();
}

const DEDUPLICATES: &str = "idempotency_header = \"Idempotency-Key\"";

fn calls(world: &World, id: &str) -> Vec<String> {
    world
        .inbox()
        .prepare("SELECT outcome FROM attempt WHERE message_id = ?1 ORDER BY id")
        .and_then(|mut statement| statement.query_map([id], |row| row.get(0))?.collect())
        .expect("the log reads")
}

#[test]
fn a_receiver_that_deduplicates_is_asked_again_under_the_same_claim() {
    let world = World::listening(DEDUPLICATES);
    world.faults(&["first=1,close=read,accepted=yes"]);
    let agent = world.agent();
    let id = world.put_plain("k");
    world.wait_inbox(&id, "SENT");
    assert_eq!(calls(&world, &id), ["UNKNOWN", "ACCEPTED"]);
    assert_eq!(world.arrivals(&id), 2, "both under one key");
    assert_eq!(world.count("SELECT count(*) FROM inbox"), 1);
    assert_eq!(world.alerts("ERROR"), 0);
    agent.stop();
}

#[test]
fn a_receiver_that_deduplicates_and_never_answers_ends_as_error_after_a_few_tries() {
    let world = World::listening(DEDUPLICATES);
    world.faults(&["status=502"]);
    let agent = world.agent();
    let id = world.put_plain("k");
    world.wait_inbox(&id, "ERROR");
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(calls(&world, &id), ["UNKNOWN", "UNKNOWN", "UNKNOWN"], "one and two quick ones");
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(calls(&world, &id).len(), 3, "and no more");
    assert_eq!(world.alerts("ERROR"), 1);
    agent.stop();
}

/// The first request may have arrived: that the second certainly did not changes nothing.
#[test]
fn a_later_try_that_was_not_sent_leaves_the_outcome_unknown() {
    let world = World::listening(DEDUPLICATES);
    world.faults(&["first=1,status=502", "status=429,retry_after=1"]);
    let agent = world.agent();
    let id = world.put_plain("k");
    world.wait_inbox(&id, "ERROR");
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(calls(&world, &id), ["UNKNOWN", "UNKNOWN"], "it asked for a pause: no third");
    let (_, shown, _) = world.onceward(&["show", "k"]);
    assert!(shown.contains("asked again with the same key, not sent"), "{shown}");
    agent.stop();
}

/// A kill between two tries is a kill in the middle of a call: ERROR, never a third request.
#[test]
fn a_kill_between_two_tries_ends_as_error() {
    let world = World::listening(DEDUPLICATES);
    world.faults(&["first=1,status=502", "hang=20s"]);
    let agent = world.agent();
    let id = world.put_plain("k");
    world.wait("the second request", |world| world.arrivals(&id) == 2);
    agent.kill9();
    world.faults(&[]);
    let agent = world.agent();
    world.wait_inbox(&id, "ERROR");
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.arrivals(&id), 2);
    assert_eq!(calls(&world, &id), ["UNKNOWN"], "the one whose end was seen");
    agent.stop();
}
