//! F1 F2 F25, and producers in other languages.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::support::World;

const PYTHON: &str = r#"
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
c.execute("BEGIN IMMEDIATE")
c.execute("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES ('F01', 'TEST', 'gateway', '01000000001', '{}') ON CONFLICT (dedup_key) DO NOTHING")
print("inserted", flush=True)
sys.stdin.readline()
c.execute("COMMIT")
print("committed", flush=True)
"#;

#[test]
fn f01_a_producer_that_dies_before_its_commit_leaves_no_row_and_may_run_again() {
    let world = World::new();
    let agent = world.agent();
    let run = || {
        let mut child = Command::new("python3")
            .args(["-c", PYTHON])
            .arg(world.outbox_path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        assert_eq!(lines.next().expect("a line").expect("text"), "inserted");
        (child, lines)
    };
    let (mut first, _) = run();
    first.kill().expect("killed");
    first.wait().expect("reaped");
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 0);
    for _ in 0..2 {
        let (mut again, mut lines) = run();
        again.stdin.take().expect("piped").write_all(b"go\n").expect("written");
        assert_eq!(lines.next().expect("a line").expect("text"), "committed");
        assert!(again.wait().expect("ends").success());
    }
    world.wait("sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 1);
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 1);
    assert_eq!(world.sandbox.ledger().totals().arrived, 1);
    agent.stop();
}

#[test]
fn f02_rows_wait_while_the_agent_is_away_and_expire_past_their_deadline() {
    let world = World::new();
    let waits = world.put_plain("waits");
    let late = world.put_plain("late");
    world
        .outbox()
        .execute("UPDATE outbox SET expires_at_ms = created_at_ms - 1 WHERE message_id = ?1", [&late])
        .expect("deadline set");
    let agent = world.agent();
    world.wait_inbox(&waits, "SENT");
    world.wait_outbox(&late, "EXPIRED");
    world.wait("alert", |world| world.alerts("EXPIRED") == 1);
    assert_eq!((world.arrivals(&waits), world.arrivals(&late)), (1, 0));
    agent.stop();
}

#[test]
fn f23_same_key_other_content_the_first_stands_the_second_is_kept_and_alerted() {
    let world = World::new();
    let agent = world.agent();
    let first = world.put_plain("f23");
    world.wait_inbox(&first, "SENT");
    let offer = |payload: &str| {
        world
            .outbox()
            .execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES ('f23', 'TEST', 'gateway', '01000000001', ?1) ON CONFLICT (dedup_key) DO NOTHING",
                [payload],
            )
            .expect("a producer's insert never fails for this")
    };

    offer(r#"{"x":1}"#);
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 0, "the same content again is the same event");
    offer(r#"{"x":2}"#);
    // Kept aside at once; SQL cannot tell other JSON from the same in another text, the agent does.
    assert_eq!(world.count("SELECT count(*) FROM quarantine WHERE dedup_key = 'f23'"), 1);
    world.wait("compared", |world| {
        world.count(
            "SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_CONTENT' AND dedup_key = 'f23'",
        ) == 1
    });
    world.wait("alert", |world| world.alerts("QUARANTINED") >= 1);

    // The command says so to whoever asked, and what it was given is kept as well.
    let (code, _, error) = world.onceward(&[
        "enqueue",
        "--key",
        "f23",
        "--kind",
        "TEST",
        "--dest",
        "gateway",
        "--to",
        "01000000001",
        "--payload",
        r#"{"x":3}"#,
    ]);
    assert_eq!(code, 65, "{error}");
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 2);

    // A message after them has come through: nothing of the others was on the way.
    let after = world.put_plain("f23-after");
    world.wait_inbox(&after, "SENT");
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE dedup_key = 'f23'"), 1, "one event is one row");
    assert_eq!(
        world.count(
            "SELECT count(*) FROM outbox WHERE dedup_key = 'f23' AND json_extract(payload, '$.x') = 1"
        ),
        1,
        "the first stands"
    );
    assert_eq!((world.arrivals(&first), world.sandbox.ledger().totals().arrived), (1, 2));
    agent.stop();
}

#[test]
fn f23_the_same_content_in_another_text_is_the_same_event_by_every_way_in() {
    let world = World::new();
    let agent = world.agent();
    let plain = |key: &str, to: &str, payload: &str| {
        let sql = "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'TEST', 'biz', ?2, ?3)
                   ON CONFLICT (dedup_key) DO NOTHING";
        world.outbox().execute(sql, [key, to, payload]).expect("taken")
    };
    let command = |key: &str, to: &str, payload: &str| {
        let args =
            ["enqueue", "--key", key, "--kind", "TEST", "--dest", "biz", "--to", to, "--payload", payload];
        let (code, _, error) = world.onceward(&args);
        assert_eq!(code, 0, "{error}");
    };
    let tight = r#"{"type":"sms","content":{"sms":{"message":"a b"}}}"#;
    let loose = "{ \"content\" : {\"sms\": {\"message\": \"a b\"} },\n  \"type\": \"sms\" }";
    command("by-command", "010-0000-0001", loose);
    assert_eq!(plain("by-sql", "010-0000-0001", tight), 1);
    for (to, payload) in [
        ("01000000001", tight),
        ("010-0000-0001", loose),
        ("+82 10 0000 0001", tight),
        ("01000000001", loose),
    ] {
        assert_eq!(plain("by-command", to, payload), 0);
        assert_eq!(plain("by-sql", to, payload), 0);
        command("by-command", to, payload);
        command("by-sql", to, payload);
    }
    world.wait("compared", |world| {
        world.count("SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_TEXT'") == 0
    });
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 0);
    // What is no text at all stops no comparison of others, nor retention.
    for odd in ["x'ff00'", "CAST(x'ff' AS TEXT)", "NULL", "7"] {
        let sql = format!(
            "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES ('by-sql', 'TEST', 'biz', '01000000001', {odd})
             ON CONFLICT (dedup_key) DO NOTHING"
        );
        assert_eq!(world.outbox().execute(&sql, []).expect("never an error of the producer"), 0, "{odd}");
    }
    let uncompared = "SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_TEXT'";
    world.wait("compared", |world| world.count(uncompared) == 0);
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 4);
    world.outbox().execute("DELETE FROM quarantine", []).expect("looked at");
    // Another number is another content, by SQL as by command.
    plain("by-sql", "010-0000-0002", tight);
    let other = "SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_CONTENT'";
    world.wait("known as other content", |world| world.count(other) == 1);
    world.wait("sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 2);
    assert_eq!(world.sandbox.ledger().totals().arrived, 2);
    agent.stop();
}

#[test]
fn f25_new_databases_make_new_message_ids() {
    let world = World::new();
    let first = world.put_plain("same-key");
    let agent = world.agent();
    world.wait_inbox(&first, "SENT");
    agent.stop();
    std::fs::remove_dir_all(world.dir.path().join("state")).expect("removed");
    let init = Command::new(crate::support::BIN)
        .args(["init", "--dir"])
        .arg(world.dir.path())
        .output()
        .expect("init runs");
    assert!(init.status.success(), "{init:?}");
    let second = world.put_plain("same-key");
    assert_ne!(first, second);
    let agent = world.agent();
    world.wait_inbox(&second, "SENT");
    assert_eq!((world.arrivals(&first), world.arrivals(&second)), (1, 1));
    agent.stop();
}

#[test]
fn the_distributions_shell_and_library_are_producers_and_wake_the_agent() {
    let world = World::new();
    let agent = world.agent();
    let insert = "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('shell', 'TEST', '01000000001', '{}') ON CONFLICT (dedup_key) DO NOTHING; INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('shell', 'TEST', '01000000001', '{\"other\":1}')";
    let shell = Command::new("sqlite3")
        .args(["-cmd", ".timeout 5000"])
        .arg(world.outbox_path())
        .arg(insert)
        .output()
        .expect("sqlite3 runs");
    assert!(shell.status.success(), "{shell:?}");
    world.wait("sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 1);
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 1, "same key, other content");
    // The habit of every operator: look, quit. Nothing of it may hurt the agent.
    let look = Command::new("sqlite3")
        .args(["-cmd", ".timeout 5000"])
        .arg(world.inbox_path())
        .arg("SELECT count(*) FROM v_today")
        .output()
        .expect("sqlite3 runs");
    assert!(look.status.success(), "{look:?}");
    world.put_plain("after");
    world.wait("sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 2);
    assert_eq!(world.sandbox.ledger().totals().arrived, 2);
    agent.stop();
}
