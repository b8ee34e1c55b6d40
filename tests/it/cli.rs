//! Commands: output, exit codes, bad input.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{BIN, World, text};

#[test]
fn five_mistakes_in_the_settings_are_reported_at_once_with_their_lines() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("onceward.toml");
    std::fs::write(
        &config,
        "[agent]\ntimezone = \"Asia/Seol\"\nstate_dri = \"/x\"\n[relay]\nbatch = 0\n[[destination]]\nname = \"a\"\ntype = \"http\"\nurl = \"ftp://x\"\ntimeout = 5\n",
    )
    .expect("written");
    let (code, _, error) =
        text(&Command::new(BIN).arg("--config").arg(&config).arg("run").output().expect("runs"));
    assert_eq!(code, 78);
    for part in [
        ":2: [agent].timezone",
        ":3: [agent].state_dri",
        "did you mean state_dir?",
        ":5: [relay].batch",
        ":9: [[destination]].url",
        ":10: [[destination]].timeout",
    ] {
        assert!(error.contains(part), "{part} in\n{error}");
    }
}

#[test]
fn without_a_settings_file_run_says_how_to_make_one() {
    let (code, _, error) = text(
        &Command::new(BIN).args(["--config", "/nonexistent/onceward.toml", "run"]).output().expect("runs"),
    );
    assert_eq!(code, 66);
    assert!(error.contains("onceward init"), "{error}");
}

#[test]
fn init_never_overwrites() {
    let world = World::new();
    let id = world.put_plain("k");
    let before = std::fs::read_to_string(&world.config).expect("reads");
    let again = Command::new(BIN).args(["init", "--dir"]).arg(world.dir.path()).output().expect("runs");
    assert!(again.status.success(), "{again:?}");
    assert_eq!(std::fs::read_to_string(&world.config).expect("reads"), before);
    assert_eq!(world.outbox_state(&id).0, "PENDING");
}

#[test]
fn a_newer_database_is_refused_and_untouched() {
    let world = World::new();
    world
        .inbox()
        .execute("UPDATE onceward_meta SET value = '99' WHERE key = 'inbox_schema'", [])
        .expect("set");
    let (code, _, error) = world.onceward(&["run"]);
    assert_eq!(code, 69, "{error}");
    assert!(error.contains("version 99") && error.contains("inbox.db"), "{error}");
    assert_eq!(world.count("SELECT count(*) FROM onceward_meta WHERE value = '99'"), 1);
}

#[test]
fn one_database_without_the_other_is_a_persons_decision() {
    let world = World::new();
    std::fs::remove_file(world.inbox_path()).expect("removed");
    let (code, _, error) = world.onceward(&["run"]);
    assert_eq!(code, 69, "{error}");
    assert!(error.contains("inbox.db: is missing"), "{error}");
    let init = Command::new(BIN).args(["init", "--dir"]).arg(world.dir.path()).output().expect("runs");
    assert_eq!(
        init.status.code(),
        Some(69),
        "init does not make an empty inbox beside an outbox that stands"
    );
}

#[test]
fn enqueue_reads_json_lines_names_bad_ones_and_is_repeatable() {
    let world = World::new();
    let lines = concat!(
        "{\"dedup_key\":\"a\",\"kind\":\"K\",\"recipient\":\"01000000001\",\"payload\":{\"x\":1}}\n",
        "{\"dedup_key\":\"b\",\"kind\":\"K\",\"recipient\":\"01000000001\",\"payload\":{\"x\":1},\"priority\":12}\n",
        "not json\n",
        "{\"dedup_key\":\"c\",\"kind\":\"K\",\"recipient\":\"01099998888\",\"payload\":{},\"colour\":1}\n",
        "{\"dedup_key\":\"d\",\"kind\":\"K\",\"recipient\":\"01000000001\",\"payload\":{}}\n",
    );
    let run = || {
        let mut child = Command::new(BIN)
            .arg("--config")
            .arg(&world.config)
            .args(["enqueue", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("written");
        text(&child.wait_with_output().expect("ends"))
    };
    let (code, ids, error) = run();
    assert_eq!(code, 65, "{error}");
    assert_eq!(ids.lines().count(), 2);
    for part in ["line 2: priority", "line 3:", "line 4:", "colour", "2 new"] {
        assert!(error.contains(part), "{part} in\n{error}");
    }
    assert!(!error.contains("99998888"), "no number in {error}");
    let (_, again, error) = run();
    assert_eq!(again, ids);
    assert!(error.contains("0 new, 2 known already"), "{error}");
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 2);
    assert_eq!(
        world.onceward(&["enqueue", "--key", "e", "--kind", "K", "--to", "010", "--payload", "{"]).0,
        65
    );
    assert_eq!(world.onceward(&["enqueue", "--key", "e"]).0, 64);
    assert_eq!(world.onceward(&["enqueue", "--class", "ADV", "--key", "e"]).0, 64);
    assert_eq!(world.onceward(&["enqueue", "/"]).0, 66);
    assert_eq!(world.onceward(&["enqueue", "/nonexistent"]).0, 66);
}

#[test]
fn status_queue_and_show_tell_the_truth_with_the_agent_down_and_up() {
    let world = World::new();
    let id = world.put_plain("k");
    let (code, status, _) = world.onceward(&["status"]);
    assert_eq!(code, 0);
    assert!(status.contains("NOT RUNNING") && status.contains("PENDING"), "{status}");
    let (_, shown, _) = world.onceward(&["show", &id]);
    assert!(shown.contains("is due; the agent is not running") && shown.contains("010****01"), "{shown}");
    assert!(!shown.contains("01000000001"), "{shown}");
    assert!(world.onceward(&["show", &id, "--reveal"]).1.contains("01000000001"));
    let agent = world.agent();
    world.wait_outbox(&id, "PUBLISHED");
    let (_, status, _) = world.onceward(&["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(json["alive"], true);
    assert_eq!(json["inbox"][0]["status"], "SENT");
    let (_, shown, _) = world.onceward(&["show", "k"]);
    assert!(shown.contains("the vendor has taken it") && shown.contains("ACCEPTED"), "{shown}");
    let (_, queue, _) = world.onceward(&["queue", "--state", "published", "--json"]);
    let line: serde_json::Value = serde_json::from_str(queue.lines().next().expect("a line")).expect("JSON");
    assert_eq!((line["message_id"].as_str(), line["fate"].as_str()), (Some(id.as_str()), Some("SENT")));
    assert_eq!(world.onceward(&["show", "nothing"]).0, 66);
    assert_eq!(world.onceward(&["queue", "--state", "WRONG"]).0, 64);
    agent.stop();
}

#[test]
fn hold_and_release_while_the_agent_runs() {
    let world = World::with("", "");
    world.faults(&["delay=100ms"]);
    let id = world.put_plain("k");
    assert_eq!(world.onceward(&["hold", &id]).0, 0);
    let agent = world.agent();
    let other = world.put_plain("other");
    world.wait_inbox(&other, "SENT");
    assert_eq!(world.outbox_state(&id).0, "HELD");
    assert_eq!(world.onceward(&["release", "--dry-run", &id]).0, 0);
    assert_eq!(world.outbox_state(&id).0, "HELD");
    assert_eq!(world.onceward(&["release", &id]).0, 0);
    world.wait_inbox(&id, "SENT");
    let (code, said, _) = world.onceward(&["hold", &id]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("it is PUBL"), "{said}");
    agent.stop();
}

#[test]
fn check_says_a_verdict_a_line() {
    let world = World::new();
    let (code, said, _) = world.onceward(&["check"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("login accepted") && said.contains("one synced commit"), "{said}");
    world.sandbox.refuse(true);
    let (code, said, _) = world.onceward(&["check"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("ERROR destination gateway"), "{said}");
}

#[test]
fn ordered_lanes_go_one_after_another() {
    let world = World::new();
    world.faults(&["delay=20ms"]);
    let connection = world.outbox();
    for i in 0..12 {
        connection
            .execute("INSERT INTO outbox (dedup_key, kind, recipient, payload, destination, ordering_key) VALUES (?1, 'K', '010', '{}', 'gateway', 'lane')", [format!("l{i}")])
            .expect("taken");
    }
    let agent = world.agent();
    world.wait("all sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 12);
    let order: Vec<String> =
        world.sandbox.ledger().recent().into_iter().map(|arrival| arrival.reference).collect();
    let mut statement = connection.prepare("SELECT message_id FROM outbox ORDER BY id").expect("prepares");
    let expected: Vec<String> =
        statement.query_map([], |row| row.get(0)).expect("reads").map(Result::unwrap).collect();
    assert_eq!(order, expected);
    agent.stop();
}

#[test]
fn the_demo_agrees_with_the_vendor() {
    let dir = tempfile::tempdir().expect("a folder");
    let (code, said, error) =
        text(&Command::new(BIN).args(["demo", "--dir"]).arg(dir.path().join("demo")).output().expect("runs"));
    assert_eq!(code, 0, "{said}\n{error}");
    assert!(said.contains("they agree"), "{said}");
}

/// A line without an end fills no memory; what the table would refuse is that line's own mistake; the others are stored.
#[test]
fn enqueue_names_a_line_that_is_too_long_or_that_the_table_refuses() {
    let world = World::new();
    let file = world.dir.path().join("messages.jsonl");
    let good = r#"{"dedup_key":"after","kind":"TEST","destination":"gateway","recipient":"1","payload":{}}"#;
    let refused = good.replace("gateway", "b:z").replace("after", "refused");
    std::fs::write(&file, format!("{}\n{refused}\n{good}\n", "[".repeat(8 << 20))).expect("written");
    let (code, out, error) = world.onceward(&["enqueue", file.to_str().expect("a path")]);
    assert_eq!(code, 65, "{error}");
    assert!(error.contains("line 1: longer than 1048576 bytes"), "{error}");
    assert!(error.contains("line 2: destination: letters, digits"), "{error}");
    assert_eq!(out.lines().count(), 1);
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE dedup_key = 'after'"), 1);
}

/// Whoever reads a command's stderr may have gone: what was done stays done, and the exit code says it.
#[test]
fn a_broken_stderr_does_not_change_the_exit_code() {
    let world = World::new();
    let file = world.dir.path().join("messages.jsonl");
    std::fs::write(&file, "no JSON\n").expect("written");
    for (args, code) in [
        (vec!["enqueue", file.to_str().expect("a path")], 65),
        (vec!["show", "nobody"], 66),
        (vec!["--config", "/nowhere/onceward.toml", "status"], 66),
        (vec!["no-such-command"], 64),
        (vec!["drain", "--timeout", "1s"], 69),
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("opens");
        let (reader, closed) = std::io::pipe().expect("a pipe");
        drop(reader);
        for stderr in [std::process::Stdio::from(full), std::process::Stdio::from(closed)] {
            let status = std::process::Command::new(crate::support::BIN)
                .env("ONCEWARD_CONFIG", &world.config)
                .args(&args)
                .stdin(std::process::Stdio::null())
                .stdout(std::process::Stdio::null())
                .stderr(stderr)
                .status()
                .expect("it runs");
            assert_eq!(status.code(), Some(code), "{args:?}");
        }
    }
}
