//! `show`, `try-now`, `check` and `dest` say what a message really waits for, and no longer what has passed: the rate,
//! its lane, its content, the clock.

use std::process::Command;

use serde_json::Value;

use crate::f_policy::{Clock, put_at, seoul};
use crate::support::local::is_root;
use crate::support::{BIN, World, text};

/// A world whose gateway may be called twice a minute, and eight messages for it.
fn slow() -> (World, Vec<String>) {
    let world = World::listening("rate = \"2/m\"");
    let ids = (0..8).map(|number| world.put_plain(&format!("k{number}"))).collect();
    (world, ids)
}

fn story(said: &str) -> Value {
    serde_json::from_str(said).expect("JSON")
}

#[test]
fn a_message_that_waits_for_the_rate_says_so_and_about_until_when() {
    let (world, ids) = slow();
    let (_, shown, _) = world.onceward(&["show", &ids[7]]);
    assert!(
        shown.contains("the agent is not running; then it waits for the rate of its destination (2/m): 7 messages are before it, about 4m from a start"),
        "{shown}"
    );
    if is_root() {
        world.open_to_the_group();
    }
    let agent = world.agent();
    world.wait("the workers have some in hand", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHING'") >= 5
    });
    let begun_ms = onceward::clock::wall_ms();
    for (number, in_hand) in [(2, true), (7, false)] {
        let (_, shown, _) = world.onceward(&["show", &ids[number]]);
        let state = if in_hand { "is in the agent's hands; " } else { "is due; " };
        assert!(
            shown.contains(&format!("{state}it waits for the rate of its destination (2/m): {number} messages are before it, and its turn comes at about 20")),
            "{shown}"
        );
        let about = [
            story(&world.onceward(&["show", "--json", &ids[number]]).1),
            world.get(&format!("/v1/messages/{}", ids[number])),
        ];
        for told in about {
            let rate = &told["waits_for_rate"];
            assert_eq!(rate["before"], number as i64, "{told}");
            // The first after a full gap of a start, then one each thirty seconds.
            let wait_ms = rate["about_ms"].as_i64().expect("a moment") - begun_ms;
            let expected_ms = 30_000 * (number as i64 + 1);
            assert!((expected_ms - 12_000..=expected_ms + 2_000).contains(&wait_ms), "{wait_ms} {told}");
        }
    }
    if is_root() {
        world.open_socket();
        let (code, shown, error) = world.as_stranger(&["show", &ids[7]]);
        assert!(
            code == 0 && shown.contains("it waits for the rate of its destination (2/m): 7"),
            "{shown}{error}"
        );
    }
    for command in [&["dest"][..], &["dest", "gateway"], &["status"]] {
        let (_, shown, _) = world.onceward(command);
        assert!(shown.contains("2/m") && !shown.contains("0.03"), "{shown}");
    }
    // What waits for something else is not said to wait for the rate.
    assert_eq!(world.onceward(&["pause", "gateway", "--reason", "move"]).0, 0);
    let paused = story(&world.onceward(&["show", "--json", &ids[7]]).1);
    assert!(
        paused["waits_for_rate"].is_null() && paused["now"].as_str().is_some_and(|now| now.contains("move"))
    );
    agent.kill9();
}

#[test]
fn try_now_names_what_a_message_waits_for_although_it_is_due() {
    let world = World::listening("");
    let outbox = world.outbox();
    for (key, lane, due_ms) in [
        ("head", Some("lane"), onceward::clock::wall_ms() + 3_600_000),
        ("next", Some("lane"), 0),
        ("later", Some("lane"), onceward::clock::wall_ms() + 3_600_000),
        ("alone", None, 0),
    ] {
        let taken = outbox.execute(
            "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, ordering_key, not_before_ms)
             VALUES (?1, 'TEST', 'gateway', '01000000001', '{}', ?2, CASE ?3 WHEN 0 THEN 1700000000000 ELSE ?3 END)",
            rusqlite::params![key, lane, due_ms],
        );
        assert_eq!(taken, Ok(1), "{key}");
    }
    let id = |key: &str| -> String {
        outbox
            .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| row.get(0))
            .expect("there")
    };
    let behind = format!("but waits behind {}, the first of its order lane, which is PENDING", id("head"));
    let (code, said, _) = world.onceward(&["try-now", "next"]);
    assert!(code == 0 && said.contains(&format!("is due already, {behind}")), "{said}");
    let (_, said, _) = world.onceward(&["try-now", "later"]);
    assert!(said.contains(&format!("made due now, due now, {behind}")), "{said}");
    let (_, said, _) = world.onceward(&["try-now", "alone"]);
    assert!(said.contains("is due already; the agent is not running\n"), "{said}");
    assert_eq!(world.onceward(&["pause", "gateway", "--reason", "move"]).0, 0);
    let agent = world.agent();
    let (_, said, _) = world.onceward(&["try-now", "alone"]);
    assert!(said.contains("is due already, but waits for its destination gateway, paused since"), "{said}");
    assert_eq!(world.onceward(&["resume", "gateway"]).0, 0);
    let (status, said) = world.call("POST", "/v1/messages/next/try-now", "");
    assert!(status == 200 && said.contains(&format!("is due already, {behind}")), "{said}");
    agent.stop();
}

#[test]
fn content_that_can_never_be_sent_is_not_said_to_be_mendable() {
    let world = World::new();
    let unfit = world.put("unfit", "biz", r#"{"type":"none of theirs"}"#);
    let elsewhere = world.put("elsewhere", "nowhere", "{}");
    let agent = world.agent();
    world.wait_outbox(&unfit, "PARKED");
    world.wait_outbox(&elsewhere, "PARKED");
    let (_, shown, _) = world.onceward(&["show", &unfit]);
    assert!(
        shown.contains("`onceward cancel` it, and insert a new message under a new dedup_key")
            && !shown.contains("mend"),
        "{shown}"
    );
    // A cause in the settings can be mended.
    let (_, shown, _) = world.onceward(&["show", &elsewhere]);
    assert!(shown.contains("mend the cause, then `onceward release`"), "{shown}");
    agent.stop();
}

#[test]
fn after_a_leap_no_reason_is_told_that_no_longer_holds_and_check_says_what_status_says() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "12:00");
    let agent = world.agent_with(&[clock.variable()]);
    agent.wait_log("ready:");
    let onceward = |args: &[&str]| {
        let mut command = Command::new(BIN);
        let (name, value) = clock.variable();
        text(&command.arg("--config").arg(&world.config).args(args).env(name, value).output().expect("runs"))
    };
    world.wait("the first mark is kept", |world| {
        world.count("SELECT count(*) FROM onceward_meta WHERE key = 'clock_newest_ms'") == 1
    });
    assert_eq!(onceward(&["check", "--offline"]).0, 0);
    let right = clock.offset();
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms() + 2_000, None);
    clock.set_offset(right + 3 * 24 * 3_600_000);
    world.wait("held", |world| world.count("SELECT count(*) FROM outbox WHERE blocked = 2") == 1);
    world.wait("all say it", |_| onceward(&["clock"]).0 == 1);
    let (code, said, _) = onceward(&["check", "--offline"]);
    assert!(
        code == 1
            && said.contains("has leapt ahead")
            && said.contains("deadlines and later due times are held")
            && said.contains("onceward clock --right"),
        "{said}"
    );
    let (_, said, _) = onceward(&["show", &ad]);
    assert!(said.contains("waits until the clock is right, because of CLOCK: it has leapt ahead"), "{said}");

    // Down: the clock is right again, and the row still stands as the leap left it.
    agent.kill9();
    clock.set_offset(right);
    let (_, said, _) = onceward(&["show", &ad]);
    assert!(
        said.contains(
            "held because of the clock, which is believed again: goes on when the agent runs again"
        ),
        "{said}"
    );
    assert_eq!(onceward(&["pause", "gateway", "--reason", "move"]).0, 0);
    let agent = world.agent_with(&[clock.variable()]);
    world.wait("released", |world| world.count("SELECT count(*) FROM outbox WHERE blocked = 2") == 0);
    let (_, said, _) = onceward(&["show", &ad]);
    assert!(!said.contains("leapt") && !said.contains("waits until it is right"), "{said}");
    assert_eq!(onceward(&["check", "--offline"]).0, 0);
    agent.stop();
    // Only a row without any reason looks as if no agent had had it: this one is looked up before it is sent.
    assert!(world.outbox_state(&ad).2.starts_with("CLOCK_RIGHT: "));
}

#[test]
fn an_advert_that_waits_for_the_rate_when_its_hours_end_takes_no_claim() {
    let world = World::with(
        "[class.ADVERTISING]\nwindow = [\"08:00\", \"20:50\"]\nrelay_until = \"20:49\"\n",
        "rate = \"20/m\"",
    );
    let clock = Clock::at(&world, 1, "20:48");
    let passed = world.dir.path().join("passed");
    std::fs::write(&passed, "0").expect("written");
    let ids: Vec<String> = (0..3)
        .map(|number| put_at(&world, &format!("ad{number}"), "ADVERTISING", clock.now_ms(), None))
        .collect();
    let agent =
        world.agent_with(&[clock.variable(), ("ONCEWARD_PASSED_FILE", passed.to_str().expect("utf-8"))]);
    world.wait("in the workers' hands", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHING'") == 3
    });
    std::fs::write(&passed, "180000").expect("written");
    for id in &ids {
        world.wait_outbox(id, "PENDING");
        let due: i64 = world
            .outbox()
            .query_row("SELECT not_before_ms FROM outbox WHERE message_id = ?1", [id], |row| row.get(0))
            .expect("there");
        assert_eq!((due, world.arrivals(id)), (seoul(2, "08:00"), 0));
    }
    assert!(!agent.log().contains("released dest="), "no claim was made: {}", agent.log());
    agent.stop();
}
