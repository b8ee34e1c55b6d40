//! F3 F4 F5 F6 F27.

use std::collections::HashSet;

use onceward::message::OwnerId;
use onceward::store::outbox;

use crate::support::World;

/// The agent dies at `point`; started again, the message is sent, once.
#[track_caller]
fn dies_and_sends_once(point: &str, left_in: &str) {
    let world = World::new();
    let id = world.put_plain("k");
    let mut agent = world.agent_with(&[("ONCEWARD_KILL_AT", point)]);
    assert!(!agent.wait_end().success());
    assert_eq!(world.outbox_state(&id).0, left_in);
    let agent = world.agent();
    world.wait_inbox(&id, "SENT");
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

#[test]
fn f03_dies_after_the_claim_before_the_handoff() {
    dies_and_sends_once("relay-after-claim", "PUBLISHING");
}

#[test]
fn f04_a_lost_confirm_is_handed_over_again_and_absorbed() {
    let world = World::with("[relay]\nlease = \"10s\"\n", "");
    let id = world.put_plain("k");
    let agent = world.agent_with(&[("ONCEWARD_FAIL_AT", "worker-before-confirm")]);
    world.wait_inbox(&id, "SENT");
    assert_eq!(world.outbox_state(&id).0, "PUBLISHING");
    world.wait_outbox(&id, "PUBLISHED");
    agent.wait_log("duplicate");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

#[test]
fn f05_dies_before_published_is_written() {
    dies_and_sends_once("relay-before-publish", "PUBLISHING");
}

#[test]
fn f06_two_relays_take_different_rows() {
    let world = World::new();
    let agent = world.agent();
    world.put_many("k", 600);
    // The second relay: the same claim under another owner, which keeps what it takes.
    let mut taken = HashSet::new();
    let mut connection = world.outbox();
    let other = OwnerId::new("other:1");
    loop {
        let now_ms = onceward::clock::wall_ms();
        let rows = onceward::db::write(&mut connection, |tx| {
            let rows = outbox::claim(tx, &"gateway", &other, now_ms + 60_000, now_ms, 7)?;
            for row in &rows {
                assert!(outbox::publish(tx, row.id, &other, now_ms)?, "its own claim");
            }
            Ok(rows)
        })
        .expect("claims");
        taken.extend(rows.iter().map(|row| row.message.message_id.to_string()));
        if rows.is_empty() && world.count("SELECT count(*) FROM outbox WHERE closed_at_ms IS NULL") == 0 {
            break;
        }
    }
    let sent = world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'");
    assert_eq!(sent + taken.len() as i64, 600, "each row has one taker");
    let totals = world.sandbox.ledger().totals();
    assert_eq!((totals.arrived, totals.repeated), (sent as u64, 0));
    assert!(
        taken.iter().all(|id| world.sandbox.ledger().arrived(id) == 0),
        "what the other took the agent did not send"
    );
    agent.stop();
}

#[test]
fn f27_a_second_agent_refuses_and_names_the_first() {
    let world = World::new();
    let agent = world.agent();
    let (code, _, error) = world.onceward(&["run"]);
    assert_eq!(code, 75, "{error}");
    assert!(error.contains(&format!("pid {}", agent.pid())), "{error}");
    let id = world.put_plain("k");
    world.wait_inbox(&id, "SENT");
    agent.stop();
}

/// A row past its deadline, while a slow call for it is under way whose lease is over: it is neither called PUBLISHED
/// (the claim may still be released, and then nothing would be left) nor expired (it may be sent). Its end decides.
#[test]
fn a_row_past_its_deadline_waits_for_the_call_that_is_under_way() {
    let world = World::with("[relay]\nlease = \"10s\"\n", "");
    let text = std::fs::read_to_string(&world.config).expect("it reads");
    let slow = text.replacen("timeout = \"2s\"\nthreads = 4", "timeout = \"9s\"\nthreads = 1", 1);
    assert_ne!(slow, text);
    std::fs::write(&world.config, slow).expect("it writes");
    // Both are claimed at once; the second waits 6 s for the only worker (within three quarters of the lease), then 8 s
    // for its answer, over deadline and lease: not sent.
    world.faults(&["delay=6s,first=1", "delay=8s,status=429"]);
    let first = world.put_plain("first");
    let second = world.put_plain("second");
    let deadline_ms = onceward::clock::wall_ms() + 9_500;
    world
        .outbox()
        .execute("UPDATE outbox SET expires_at_ms = ?1 WHERE message_id = ?2", (deadline_ms, &second))
        .expect("a deadline");
    let agent = world.agent();
    world.wait_inbox(&second, "SENDING");
    world.wait_inbox(&first, "SENT");
    world.wait_outbox(&second, "EXPIRED");
    assert_eq!(world.inbox_state(&second), None, "{}", agent.log());
    assert_eq!(world.count("SELECT count(*) FROM attempt WHERE outcome = 'NOT_SENT'"), 1);
    world.wait("the alert", |world| world.alerts("EXPIRED") == 1);
    agent.stop();
}
