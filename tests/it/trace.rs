//! Trace context: from the producer's row over relay and worker to log, attempt row and the vendor's wire.

use crate::support::World;
use crate::support::receiver::{Answer, Receiver};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_traceparent_goes_from_the_producer_to_the_vendor() {
    let world = World::new();
    let vendor = Receiver::new(Answer::Status(200));
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    let more = format!(
        "{settings}[[destination]]\nname = \"traced\"\ntype = \"http\"\nurl = \"http://{}/send\"\n",
        vendor.addr
    );
    std::fs::write(&world.config, more).expect("written");
    let enqueue = |key: &str, trace: &str| {
        let (code, id, error) = world.onceward(&[
            "enqueue",
            "--key",
            key,
            "--kind",
            "TEST",
            "--dest",
            "traced",
            "--to",
            "01000000001",
            "--payload",
            "{}",
            "--traceparent",
            trace,
        ]);
        assert_eq!(code, 0, "{error}");
        id.trim().to_owned()
    };
    let agent = world.agent();
    let traced = enqueue("k", TRACE);
    world.wait_outbox(&traced, "PUBLISHED");
    // Any text may stand in the column: it does not hold the message back and goes nowhere.
    let broken = enqueue("broken", "tel 01099998888");
    world.wait_outbox(&broken, "PUBLISHED");

    let heads: Vec<String> = vendor.requests().into_iter().map(|request| request.head).collect();
    assert_eq!(heads.len(), 2);
    assert_eq!(heads[0].matches(&format!("traceparent: {TRACE}\r\n")).count(), 1, "{}", heads[0]);
    assert!(!heads[1].contains("traceparent"), "{}", heads[1]);
    let of_attempt = |id: &str| -> Option<String> {
        world
            .inbox()
            .query_row("SELECT traceparent FROM attempt WHERE message_id = ?1", [id], |row| row.get(0))
            .expect("an attempt")
    };
    assert_eq!(of_attempt(&traced).as_deref(), Some(TRACE));
    assert_eq!(of_attempt(&broken), None);
    let log = agent.log();
    assert!(
        log.lines().any(|line| line.contains(&traced) && line.ends_with(&format!("traceparent={TRACE}"))),
        "{log}"
    );
    assert!(!log.contains("01099998888"), "{log}");
    let (_, shown, _) = world.onceward(&["show", "k"]);
    assert!(shown.contains(TRACE), "{shown}");
    agent.stop();
}

/// What settles an unknown outcome later is told with the trace of its call, too.
#[test]
fn a_verdict_is_logged_with_the_trace_of_its_call() {
    let world = World::listening("");
    world.faults(&["reset=read,accepted=yes"]);
    let args = ["enqueue", "--key", "k", "--kind", "TEST", "--dest", "gateway", "--to", "01000000001"];
    let (code, id, error) =
        world.onceward(&[&args[..], &["--payload", "{}", "--traceparent", TRACE]].concat());
    assert_eq!(code, 0, "{error}");
    let agent = world.agent();
    world.wait_inbox(id.trim(), "ERROR");
    let (code, said, error) = world.onceward(&["settle", id.trim(), "--sent", "--note", "asked them"]);
    assert_eq!(code, 0, "{said}{error}");
    agent.wait_log(&format!("settled dest=gateway as sent traceparent={TRACE}"));
    agent.stop();
}
