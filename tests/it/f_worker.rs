//! F7 F8 F10 F11 F12 F13 F28.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use onceward::alert::Alerts;
use onceward::config::Settings;
use onceward::db::checkpoint::Checkpointer;
use onceward::db::writer::Writer;
use onceward::db::{self, Durability, Part, pool};
use onceward::gate::Gate;
use onceward::message::{Class, Destination, Message, MessageId, OwnerId};
use onceward::policy::Policy;
use onceward::rate::Rate;
use onceward::relay::Handoff;
use onceward::worker::{Shared, Worker};

use crate::support::World;

#[test]
fn f07_dies_before_its_claim_and_sends_later() {
    let world = World::new();
    let id = world.put_plain("k");
    let mut agent = world.agent_with(&[("ONCEWARD_KILL_AT", "worker-before-claim")]);
    assert!(!agent.wait_end().success());
    assert_eq!(world.inbox_state(&id), None);
    let agent = world.agent();
    world.wait_inbox(&id, "SENT");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

/// Dies at `point` after the claim: ERROR with alert at the next start, never sent again.
#[track_caller]
fn dies_and_is_error(point: &str, arrivals: u32) {
    let world = World::new();
    let id = world.put_plain("k");
    let mut agent = world.agent_with(&[("ONCEWARD_KILL_AT", point)]);
    assert!(!agent.wait_end().success());
    assert_eq!(world.inbox_state(&id).as_deref(), Some("SENDING"));
    for _ in 0..2 {
        let agent = world.agent();
        world.wait_inbox(&id, "ERROR");
        world.wait_outbox(&id, "PUBLISHED");
        world.wait("alert", |world| world.alerts("STALE_SENDING") == 1);
        let other = world.put_plain("other");
        world.wait_inbox(&other, "SENT");
        agent.stop();
    }
    assert_eq!(world.arrivals(&id), arrivals);
    let (_, shown, _) = world.onceward(&["show", "k"]);
    assert!(shown.contains("nobody knows whether it arrived"), "{shown}");
}

#[test]
fn f08_killed_after_the_claim_before_the_call_is_error_and_never_sent() {
    dies_and_is_error("worker-after-claim", 0);
}

#[test]
fn f10_dies_after_the_answer_before_its_record() {
    dies_and_is_error("worker-after-call", 1);
}

#[test]
fn f10_an_outcome_that_cannot_be_written_is_kept_until_it_can() {
    let world = World::new();
    // Commits of the inbox writer: 1 the first heartbeat, 2 the claim, 3 the outcome, which fails five times.
    let agent = world.agent_with(&[("ONCEWARD_FAIL_AT", "writer-before-commit:3:5")]);
    agent.wait_log("ready:");
    let id = world.put_plain("k");
    world.wait_inbox(&id, "SENT");
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.arrivals(&id), 1);
    agent.wait_log("can be written again");
    assert_eq!(world.count("SELECT count(*) FROM attempt"), 1);
    agent.stop();
}

#[test]
fn f31_a_claim_whose_commit_fails_is_not_sent_on_and_comes_back() {
    for lie in ["writer-before-commit:2:3", "writer-commit-lies:2:1"] {
        let world = World::new();
        let agent = world.agent_with(&[("ONCEWARD_FAIL_AT", lie)]);
        agent.wait_log("ready:");
        let id = world.put_plain("k");
        world.wait_inbox(&id, "SENT");
        assert_eq!(world.arrivals(&id), 1, "{lie}");
        // Without this the test would pass if nothing had failed at all.
        agent.wait_log("cannot be written");
        agent.stop();
    }
}

#[test]
fn f31_commits_that_fail_or_lie_at_any_step_lose_nothing_and_send_nothing_twice() {
    for point in ["writer-before-commit", "writer-commit-lies"] {
        // The n-th commit of the inbox's writer and the one after it; until a pass that nothing has touched.

        for first in 2.. {
            let world = World::new();
            world.put_many("m", 6);
            let agent = world.agent_with(&[("ONCEWARD_FAIL_AT", &format!("{point}:{first}:2"))]);
            let end = Instant::now() + crate::support::SOON;
            while world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'") < 6 {
                assert!(Instant::now() < end, "{point} {first}: not all settled\n{}", agent.log());
                std::thread::sleep(Duration::from_millis(5));
            }
            let ledger = world.sandbox.ledger().totals();
            assert_eq!((ledger.arrived, ledger.repeated), (6, 0), "{point} {first}");
            assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"), 6);
            assert_eq!(world.count("SELECT count(*) FROM attempt"), 6, "{point} {first}");
            std::thread::sleep(Duration::from_millis(20)); // log lines are a few milliseconds late
            let touched = agent.log().contains("cannot be written");
            agent.stop();
            // A start has three commits at least, so the second always is one that is made.
            assert!(touched || first > 2, "{point}: nothing ever failed");
            if !touched && first > 5 {
                break;
            }
        }
    }
}

#[test]
fn f31_a_claim_that_was_in_the_file_after_all_and_then_a_kill_is_an_error_and_not_sent() {
    // The claim's commit says no and is in the file; before it is taken back the agent is killed. Which commit carries
    // the claim depends on what else the rooms have to write at the start, so a few worlds are tried; at most one
    // arrival holds in each of them.
    let is_error = |claim: u32| {
        let world = World::new();
        let id = world.put_plain("k");
        let (lies, dies) =
            (format!("writer-commit-lies:{claim}:100"), format!("writer-before-commit:{}", claim + 1));
        let mut agent =
            world.agent_with(&[("ONCEWARD_FAIL_AT", lies.as_str()), ("ONCEWARD_KILL_AT", dies.as_str())]);
        // Where the lying commit was a late one, the next comes only with more work.
        for more in 0..100 {
            if agent.try_end().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(if more < 10 { 20 } else { 300 }));
            if more >= 10 {
                world.put_plain(&format!("more {more}"));
            }
        }
        assert!(!agent.wait_end().success());
        let arrived = world.arrivals(&id);
        let agent = world.agent();
        world.wait("an end", |world| matches!(world.inbox_state(&id).as_deref(), Some("SENT" | "ERROR")));
        assert!(world.arrivals(&id) <= 1);
        let state = world.inbox_state(&id);
        agent.stop();
        arrived == 0 && world.arrivals(&id) == 0 && state.as_deref() == Some("ERROR")
    };
    assert!(
        [2, 1, 3, 2, 1, 3].into_iter().any(is_error),
        "no world in which the claim was in the file after all"
    );
}

#[test]
fn f11_result_written_dies_before_the_acknowledgement() {
    let world = World::new();
    let id = world.put_plain("k");
    let mut agent = world.agent_with(&[("ONCEWARD_KILL_AT", "worker-before-confirm")]);
    assert!(!agent.wait_end().success());
    assert_eq!(world.inbox_state(&id).as_deref(), Some("SENT"));
    assert_eq!(world.outbox_state(&id).0, "PUBLISHING");
    let agent = world.agent();
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

#[test]
fn f12_certainly_not_sent_is_tried_again_and_never_error() {
    let sms = r#"{"type":"sms","content":{"sms":{"message":"hello"}}}"#;
    for faults in [
        vec!["status=401,first=2"],
        vec!["status=403,first=1"],
        vec!["status=429,retry_after=1,first=1"],
        vec!["code=3002,first=1"],
        vec!["path=/v1/token,status=503,first=1"],
        vec!["path=/v1/token,close=read,first=1"],
        vec!["path=/v1/token,code=3007,first=1"],
    ] {
        let world = World::new();
        world.faults(&faults);
        let biz = world.put("biz", "biz", sms);
        let gateway =
            (!faults[0].contains("code=") && !faults[0].contains("token")).then(|| world.put_plain("gw"));
        let agent = world.agent();
        world.wait_inbox(&biz, "SENT");
        if let Some(id) = gateway {
            world.wait_inbox(&id, "SENT");
        }
        assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'"), 0, "{faults:?}");
        assert_eq!(world.sandbox.ledger().totals().duplicates, 0, "{faults:?}");
        agent.stop();
    }
}

#[test]
fn f12_a_refused_connection_closes_the_destination_and_uses_no_attempt() {
    let world = World::new();
    world.sandbox.refuse(true);
    world.put_many("k", 40);
    let id = world.put_plain("one");
    let agent = world.agent();
    agent.wait_log("cause=DESTINATION_CLOSED");
    world
        .wait("not sent", |world| world.count("SELECT count(*) FROM attempt WHERE outcome = 'NOT_SENT'") > 0);
    let (state, _, _) = world.outbox_state(&id);
    assert!(matches!(state.as_str(), "PENDING" | "PUBLISHING"), "{state}");
    world.sandbox.refuse(false);
    world.wait("all sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 41);
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE attempts > 1"), 0, "no attempt is used up");
    assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    assert_eq!(agent.log().matches("cause=DESTINATION_CLOSED").count(), 1, "one alert, not one a message");
    agent.stop();
}

#[test]
fn f13_copies_of_one_message_in_two_agents_worth_of_workers_make_one_call() {
    let world = World::new();
    let settings = Settings::load(&world.config).expect("settings");
    let destination = &settings.destinations[0];
    let open = |part, path: &std::path::Path| db::open_writer(path, part, Durability::Full).expect("opens");
    let inbox = world.inbox_path();
    let (checkpointer, _) =
        Checkpointer::start("ckpt", inbox.clone(), Part::Inbox, Arc::default()).expect("starts");
    let (writer, _) = Writer::start(
        "writer",
        inbox.clone(),
        Part::Inbox,
        open(Part::Inbox, &inbox),
        checkpointer,
        onceward::store::tally::land,
        None,
    )
    .expect("starts");
    // Two agents' worth: two owners, eight workers each, one inbox.
    let agents: Vec<Arc<Shared>> = ["a:1", "b:1"]
        .map(|owner| {
            Arc::new(Shared {
                vendor: onceward::vendor::build(destination).expect("builds"),
                gate: Arc::new(Gate::default()),
                rate: Arc::new(Rate::new(None)),
                owner: OwnerId::new(owner),
                writer: writer.clone(),
                inbox: pool::open(inbox.clone(), Part::Inbox, 2).expect("opens"),
                outbox: pool::open(world.outbox_path(), Part::Outbox, 2).expect("opens"),
                policy: Arc::new(Policy::new(&settings)),
                alerts: Alerts::new(vec!["gateway".into()], std::time::Duration::from_secs(60), &[]),
                quick: onceward::config::Repeat { times: 0, every: std::time::Duration::ZERO },
                stop: Arc::new(AtomicBool::new(false)),
                hold: onceward::hold::Hold::new(
                    Alerts::new(Vec::new(), std::time::Duration::from_secs(60), &[]),
                    None,
                ),
                login: std::sync::Mutex::default(),
            })
        })
        .into();
    for round in 0..50 {
        let id = format!("ow-race-{round}");
        let barrier = std::sync::Barrier::new(16);
        std::thread::scope(|scope| {
            for number in 0..16 {
                let (shared, id, barrier) = (agents[number % 2].clone(), &id, &barrier);
                scope.spawn(move || {
                    let (_sender, handoffs) = crossbeam_channel::unbounded();
                    let (confirm, _confirmed) = crossbeam_channel::unbounded();
                    let worker = Worker::new(shared, handoffs);
                    let message = Message {
                        message_id: MessageId::new(id),
                        dedup_key: id.clone(),
                        kind: "TEST".into(),
                        class: Class::Transactional,
                        destination: Destination::new("gateway"),
                        recipient: "01000000001".into(),
                        payload: "{}".into(),
                        ordering_key: None,
                        priority: 5,
                        not_before_ms: 0,
                        expires_at_ms: None,
                        created_at_ms: 0,
                        traceparent: None,
                    };
                    barrier.wait();
                    // `again: false`: past look-first, into the claim.
                    worker.run_once(Handoff {
                        row: 1,
                        attempts: 1,
                        again: false,
                        message,
                        claimed: Instant::now(),
                        until: Instant::now() + std::time::Duration::from_secs(900),
                        opt_outs: None,
                        confirm,
                        held: Default::default(),
                    });
                });
            }
        });
        assert_eq!(world.arrivals(&id), 1);
    }
}

#[test]
fn f28_a_poison_message_is_parked_before_any_claim_and_the_others_flow() {
    let world = World::new();
    let sms = |text: &str| format!(r#"{{"type":"sms","content":{{"sms":{{"message":"{text}"}}}}}}"#);
    let bad = [
        world.put("not json", "gateway", "not json"),
        world.put("unknown type", "biz", r#"{"type":"fax","content":{"fax":{}}}"#),
        world.put("no template", "biz", r#"{"type":"at","content":{"at":{"message":"x"}}}"#),
        world.put("too long", "biz", &sms(&"가".repeat(46))),
        world.put("no destination", "nowhere", "{}"),
    ];
    let good = [world.put("good biz", "biz", &sms("hello")), world.put_plain("good gw")];
    let agent = world.agent();
    for id in &bad {
        world.wait_outbox(id, "PARKED");
        assert_eq!(world.arrivals(id), 0);
        assert_eq!(world.inbox_state(id), None);
    }
    for id in &good {
        world.wait_inbox(id, "SENT");
    }
    world.wait("alerts", |world| world.alerts("PARKED") == 5);
    let (_, _, reason) = world.outbox_state(&bad[3]);
    assert!(reason.contains("92 bytes, 90"), "{reason}");
    // Released as it is, it is parked again; cancelled, it ends.
    assert_eq!(world.onceward(&["release", &bad[3]]).0, 0);
    world.wait_outbox(&bad[3], "PARKED");
    assert_eq!(world.onceward(&["cancel", &bad[3]]).0, 0);
    assert_eq!(world.outbox_state(&bad[3]).0, "FAILED");
    agent.stop();
}

#[test]
fn a_panic_of_ours_after_the_claim_is_never_called_unsent_and_never_sent_again() {
    let world = World::new();
    let agent = world.agent_with(&[("ONCEWARD_PANIC_AT", "worker-after-claim")]);
    agent.wait_log("ready:");
    let id = world.put_plain("k");
    agent.wait_log("a panic after its claim");
    assert!(!agent.log().contains("nothing was sent"), "{}", agent.log());
    world.wait("its row says so", |world| world.outbox_state(&id).2.contains("it may have been sent"));
    let next = world.put_plain("next");
    world.wait_inbox(&next, "SENT");
    assert_eq!(world.inbox_state(&id).as_deref(), Some("SENDING"));
    agent.stop();
    let agent = world.agent();
    world.wait("seen", |world| world.alerts("STALE_SENDING") + world.alerts("ERROR") > 0);
    assert_eq!((world.arrivals(&id), world.inbox_state(&id).as_deref()), (0, Some("ERROR")));
    agent.stop();
}

/// While a destination is closed one message at a time may try it: a panic must give that leave back.
#[test]
fn a_panic_of_ours_in_a_probe_leaves_the_next_one_to_try() {
    let world = World::with("[retry]\nhandoff = [\"1s\"]\n", "");
    world.sandbox.refuse(true);
    let agent = world.agent_with(&[("ONCEWARD_PANIC_AT", "worker-before-claim:2")]);
    agent.wait_log("ready:");
    let id = world.put_plain("k");
    agent.wait_log("a panic before its claim");
    world.sandbox.refuse(false);
    world.wait_inbox(&id, "SENT");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}
