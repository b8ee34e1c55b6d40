//! The rules of flow: dead destinations beside live ones, rows of unknown outcomes, rate, order lanes, over restarts.
//! F21 itself is in `f_outage.rs`.

use std::time::{Duration, Instant};

use crate::support::World;

#[test]
fn f21_a_dead_destination_does_not_slow_another() {
    let world = World::new();
    world.faults(&["path=/v1/token,close=read"]);
    let sms = r#"{"type":"sms","content":{"sms":{"message":"hello"}}}"#;
    for i in 0..300 {
        world.put(&format!("dead:{i}"), "biz", sms);
    }
    let agent = world.agent();
    agent.wait_log("DESTINATION_CLOSED");
    world.put_many("live", 500);
    world.wait("live ones sent", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 500
    });
    assert_eq!(
        world.count("SELECT count(*) FROM outbox WHERE destination = 'biz' AND status = 'PENDING'"),
        300
    );
    world.faults(&[]);
    world.wait("dead ones too", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 800
    });
    agent.stop();
}

#[test]
fn unknown_outcomes_in_a_row_close_the_destination_before_they_burn_the_backlog() {
    let world = World::new();
    world.faults(&["status=502"]);
    world.put_many("k", 400);
    let agent = world.agent();
    agent.wait_log("calls in a row ended unknown");
    std::thread::sleep(Duration::from_millis(2_500));
    let errors = world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'");
    assert!((10..=16).contains(&errors), "{errors} messages burnt");
    world.faults(&[]);
    world.wait("the rest is sent", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'")
            == 400 - world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'")
    });
    assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    agent.stop();
}

#[test]
fn the_rate_is_kept_over_restarts() {
    let world = World::with("", "rate = \"10/s\"");
    world.put_many("k", 200);
    let begun = Instant::now();
    for _ in 0..5 {
        let agent = world.agent();
        std::thread::sleep(Duration::from_millis(350));
        agent.kill9();
    }
    let (arrived, most) =
        (world.sandbox.ledger().totals().arrived, begun.elapsed().as_secs_f64() * 10.0 + 1.0);
    assert!(arrived > 3 && arrived as f64 <= most, "{arrived} arrived, at most {most:.0}");
}

#[test]
fn order_lanes_are_strict_over_retries_restarts_and_parking_and_parallel_to_each_other() {
    let world = World::new();
    // Every seventh call is refused at the door and comes back a second later; some take their time.
    world.faults(&["every=7,status=403", "every=5,delay=20ms"]);
    let mut shell = world.outbox();
    let tx = shell.transaction().expect("begins");
    for number in 0..60 {
        for lane in 0..5 {
            tx.execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, ordering_key) VALUES (?1, 'TEST', 'gateway', '010', '{}', ?2)",
                [format!("{lane}:{number}"), format!("lane {lane}")],
            )
            .expect("taken");
        }
    }
    tx.commit().expect("committed");
    let agent = world.agent();
    world.wait("some sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") > 60);
    agent.kill9();
    world.faults(&[]);
    let agent = world.agent();
    world.wait("all ended", |world| {
        world.count("SELECT count(*) FROM outbox WHERE closed_at_ms IS NULL") == 0
    });
    agent.stop();
    // The claims that ended a message, in their order, are in id order within each lane.
    let order: Vec<(String, i64)> = {
        let file = world.outbox();
        file.execute("ATTACH ?1 AS i", [world.inbox_path().to_str().expect("text")]).expect("attached");
        let mut statement = file
            .prepare("SELECT o.ordering_key, o.id FROM i.inbox JOIN outbox o USING (message_id) ORDER BY inbox.claimed_at_ms, inbox.id")
            .expect("prepared");
        statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("reads")
            .map(|row| row.expect("a row"))
            .collect()
    };
    assert_eq!(order.len(), 300);
    for lane in 0..5 {
        let ids: Vec<i64> =
            order.iter().filter(|(key, _)| *key == format!("lane {lane}")).map(|(_, id)| *id).collect();
        assert!(ids.is_sorted(), "lane {lane}: {ids:?}");
    }
    assert_eq!(world.sandbox.ledger().totals().duplicates, 0);
}

#[test]
fn a_parked_head_blocks_its_lane_visibly_until_it_is_skipped() {
    let world = World::new();
    let put = |key: &str, payload: &str| {
        world
            .outbox()
            .execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, ordering_key) VALUES (?1, 'TEST', 'gateway', '010', ?2, 'lane')",
                [key, payload],
            )
            .expect("taken");
        world
            .outbox()
            .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| {
                row.get::<_, String>(0)
            })
            .expect("there")
    };
    let (head, next) = (put("head", "no json"), put("next", "{}"));
    let agent = world.agent();
    world.wait_outbox(&head, "PARKED");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(world.outbox_state(&next).0, "PENDING");
    let (code, shown, _) = world.onceward(&["show", &next]);
    assert!(code == 0 && shown.contains("the first of its order lane, which is PARKED"), "{shown}");
    let (code, said, _) = world.onceward(&["cancel", &head]);
    assert_eq!(code, 0, "{said}");
    world.wait_inbox(&next, "SENT");
    assert_eq!(world.arrivals(&head), 0);
    agent.stop();
}
