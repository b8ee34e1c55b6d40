//! A person's verbs on messages that live in a source: by the local API and by the command, while the agent runs and
//! while it is down, named by the source or found by their id.

use std::path::PathBuf;

use rusqlite::Connection;
use serde_json::Value;

use crate::f_source::{add, app, put, state, status};
use crate::support::local::is_root;
use crate::support::{SOON, World};

struct Shop {
    world: World,
    file: PathBuf,
}

impl Shop {
    fn open(world: World, journal: &str) -> Self {
        let file = app(&world, "shop", journal);
        add(&world, "shop", &file);
        Self { world, file }
    }
    fn rows(&self) -> Connection {
        let connection = Connection::open(&self.file).expect("the file opens");
        connection.busy_timeout(SOON).expect("timeout is set");
        connection
    }
    /// A message that waits for an hour.
    fn later(&self, key: &str) -> String {
        let soon = onceward::clock::wall_ms() + 3_600_000;
        put(&self.rows(), key, (", not_before_ms", &format!(", {soon}")))
    }
    fn status(&self, id: &str) -> String {
        status(&self.file, id)
    }
    #[track_caller]
    fn wait(&self, id: &str, expected: &str) {
        self.world.wait(&format!("{id} {expected}"), |_| self.status(id) == expected);
    }
    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        let (status, body) = self.world.call("POST", &format!("/v1/messages/{path}"), body);
        (status, serde_json::from_str(&body).unwrap_or(Value::Null))
    }
    fn deeds(&self, id: &str) -> Vec<String> {
        self.rows()
            .prepare("SELECT verb FROM audit WHERE target = ?1 ORDER BY id")
            .and_then(|mut rows| rows.query_map([id], |row| row.get(0))?.collect())
            .expect("reads")
    }
}

/// What is of one file says which others there are.
#[test]
fn a_list_and_all_say_which_sources_they_leave_out() {
    let shop = Shop::open(World::new(), "wal");
    let (own, id) = (shop.world.put_plain("own"), shop.later("a"));
    let (code, said, error) = shop.world.onceward(&["queue"]);
    assert!(code == 0 && said.contains(&own) && !said.contains(&id), "{said}");
    assert!(error.contains("not looked at: the source shop (--source shop)"), "{error}");
    let (code, _, error) = shop.world.onceward(&["hold", "ALL"]);
    assert!(code == 0 && error.contains("left as it is: the source shop (--source shop)"), "{code} {error}");
    assert_eq!((shop.world.outbox_state(&own).0.as_str(), shop.status(&id).as_str()), ("HELD", "PENDING"));
    let (code, said, error) = shop.world.onceward(&["--source", "shop", "hold", "ALL"]);
    assert!(code == 0 && !error.contains("left as it is"), "{said} {error}");
    assert_eq!(shop.status(&id), "HELD");
}

#[test]
fn the_local_api_holds_releases_cancels_hurries_shows_and_lists_what_is_in_a_source() {
    for journal in ["wal", "delete"] {
        let shop = Shop::open(World::listening(""), journal);
        let agent = shop.world.agent();
        shop.world.wait("served", |world| state(world, "shop") == "OK");
        let (a, b) = (shop.later("a"), shop.later("b"));
        let (code, said) = shop.post(&format!("{a}/hold"), r#"{"note":"asked"}"#);
        assert_eq!(
            (code, said["source"].as_str(), said["moved"].as_bool()),
            (200, Some("shop"), Some(true)),
            "{said}"
        );
        assert_eq!(shop.status(&a), "HELD");
        assert_eq!(shop.post("a/try-now?source=shop", "").0, 409, "held; the key names it too");
        assert_eq!(shop.post(&format!("{a}/release?source=shop"), "").0, 200);
        let (code, said) = shop.post(&format!("{b}/cancel"), r#"{"dry_run":true}"#);
        assert_eq!((code, said["moved"].as_bool(), shop.status(&b).as_str()), (200, Some(false), "PENDING"));
        assert_eq!(shop.post(&format!("{b}/cancel"), "").0, 200);
        assert_eq!(shop.status(&b), "FAILED");
        let page = shop.world.get("/v1/messages?source=shop");
        assert_eq!(
            (page["messages"].as_array().map(Vec::len), page["messages"][0]["message_id"].as_str()),
            (Some(1), Some(&*a))
        );
        assert_eq!(shop.world.get("/v1/messages")["messages"].as_array().map(Vec::len), Some(0));
        assert_eq!(shop.post(&format!("{a}/try-now"), "").0, 200);
        shop.world.wait_inbox(&a, "SENT");
        shop.wait(&a, "PUBLISHED");
        assert_eq!(shop.post(&format!("{a}/cancel"), "").0, 409, "it is sent");
        let story = shop.world.get(&format!("/v1/messages/{a}"));
        assert_eq!(
            (story["source"].as_str(), story["vendor"]["status"].as_str()),
            (Some("shop"), Some("SENT"))
        );
        assert_eq!(shop.deeds(&a), ["HOLD", "RELEASE", "TRY_NOW"]);
        assert_eq!(shop.deeds(&b), ["CANCEL"]);
        for (path, expected) in
            [("nobody/hold", 404), (&*format!("{a}/hold?source=nowhere"), 404), ("nobody/settle", 422)]
        {
            assert_eq!(shop.post(path, "").0, expected, "{path}");
        }
        assert_eq!(shop.world.call("GET", "/v1/messages?source=nowhere", "").0, 404);
        agent.stop();
    }
}

#[test]
fn a_key_that_two_sources_have_is_not_guessed_and_a_file_that_is_out_of_reach_is_no_answer() {
    let shop = Shop::open(World::listening(""), "delete");
    let other = app(&shop.world, "other", "delete");
    add(&shop.world, "other", &other);
    let soon = onceward::clock::wall_ms() + 3_600_000;
    let mine = shop.later("k");
    let theirs =
        put(&Connection::open(&other).expect("opens"), "k", (", not_before_ms", &format!(", {soon}")));
    let agent = shop.world.agent();
    let (code, said) = shop.post("k/hold", "");
    assert!(code == 409 && said["text"].as_str().is_some_and(|text| text.contains("other, shop")), "{said}");
    let own = put(&shop.world.outbox(), "own", (", not_before_ms", &format!(", {soon}")));
    let (code, said, error) = shop.world.onceward(&["hold", "k", &own]);
    assert!(code == 1 && said.contains("k not held") && said.contains("--source"), "{code} {said}{error}");
    assert_eq!(shop.world.outbox_state(&own).0, "HELD", "the other one goes on");
    assert_eq!(shop.world.onceward(&["show", "k"]).0, 64);
    assert_eq!(shop.post("k/hold?source=other", "").0, 200);
    assert_eq!((shop.status(&mine).as_str(), status(&other, &theirs).as_str()), ("PENDING", "HELD"));
    assert_eq!(shop.post(&format!("{mine}/hold"), "").0, 200, "an id is one message's");
    let aside = shop.world.dir.path().join("aside.db");
    std::fs::rename(&other, &aside).expect("moved away");
    let (code, said) = shop.post(&format!("{theirs}/release"), "");
    assert!(
        code == 503 && said["text"].as_str().is_some_and(|text| text.contains("source other cannot be read")),
        "{said}"
    );
    let (code, _, error) = shop.world.onceward(&["show", &theirs]);
    assert!(code == 75 && error.contains("source other"), "{code} {error}");
    // Another file under the name is not the one that was added.
    assert!(std::process::Command::new("cp").args([&shop.file, &other]).status().expect("cp runs").success());
    let (code, said) = shop.post(&format!("{mine}/release?source=other"), "");
    assert!(
        code == 503
            && said["text"].as_str().is_some_and(|text| text.contains("is not the file that was added")),
        "{said}"
    );
    assert_eq!(shop.world.onceward(&["--source", "other", "release", &mine]).0, 69);
    assert_eq!(status(&other, &mine), "HELD");
    agent.stop();
}

/// The agent's own file is no better guess than a source.
#[test]
fn a_key_that_outbox_db_and_a_source_have_is_not_guessed() {
    let shop = Shop::open(World::listening(""), "delete");
    let soon = onceward::clock::wall_ms() + 3_600_000;
    let own = put(&shop.world.outbox(), "k", (", not_before_ms", &format!(", {soon}")));
    let theirs = shop.later("k");
    let agent = shop.world.agent();
    let (code, said) = shop.post("k/cancel", "");
    assert!(
        code == 409 && said["text"].as_str().is_some_and(|text| text.contains("outbox.db, shop")),
        "{said}"
    );
    let (code, said, error) = shop.world.onceward(&["cancel", "k"]);
    assert!(
        code == 1 && said.contains("outbox.db, shop") && said.contains("message id"),
        "{code} {said}{error}"
    );
    assert_eq!(shop.world.onceward(&["show", "k"]).0, 64);
    assert_eq!(
        (shop.world.outbox_state(&own).0.as_str(), shop.status(&theirs).as_str()),
        ("PENDING", "PENDING")
    );
    assert_eq!(shop.world.onceward(&["hold", &own]).0, 0, "an id is one message's");
    assert_eq!(shop.world.onceward(&["--source", "shop", "cancel", "k"]).0, 0);
    assert_eq!((shop.world.outbox_state(&own).0.as_str(), shop.status(&theirs).as_str()), ("HELD", "FAILED"));
    // That a file is away is no sign that it has the key.
    std::fs::rename(&shop.file, shop.world.dir.path().join("aside.db")).expect("moved away");
    assert_eq!(shop.world.onceward(&["release", "k"]).0, 0);
    assert_eq!(shop.world.outbox_state(&own).0, "PENDING");
    agent.stop();
}

#[test]
fn f23_other_content_under_a_message_id_of_another_file_is_parked_in_sight_and_not_sent() {
    let shop = Shop::open(World::listening(""), "delete");
    let agent = shop.world.agent();
    let first = put(&shop.world.outbox(), "first", ("", ""));
    shop.world.wait_inbox(&first, "SENT");
    let twice = |key: &str, payload: &str| {
        let sql =
            "INSERT INTO outbox (message_id, dedup_key, kind, destination, recipient, payload, expires_at_ms)
                   VALUES (?1, ?2, 'T', 'gateway', '01000000001', ?3, ?4)";
        let soon = onceward::clock::wall_ms() + 3_600_000;
        Connection::open(&shop.file)
            .and_then(|file| file.execute(sql, rusqlite::params![first, key, payload, soon]))
            .expect("taken")
    };
    twice("second", r#"{"other":"content"}"#);
    shop.world.wait("parked", |_| shop.status(&first) == "PARKED");
    shop.world.wait("told", |world| world.alerts("CONFLICT") == 1);
    let (code, shown, error) = shop.world.onceward(&["--source", "shop", "show", "second"]);
    assert!(code == 0 && shown.contains("PARKED") && shown.contains("OTHER_CONTENT"), "{shown}{error}");
    // Released, it comes back; past its deadline it ends by its own rule, not as what the other one came to.
    assert_eq!(shop.world.onceward(&["--source", "shop", "release", "second"]).0, 0);
    shop.world.wait("parked again", |_| shop.status(&first) == "PARKED");
    let (code, said, _) = shop.world.onceward(&["verify"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(shop.world.onceward(&["--source", "shop", "cancel", "second"]).0, 0);
    assert_eq!(shop.status(&first), "FAILED");
    assert_eq!((shop.world.arrivals(&first), shop.world.sandbox.ledger().totals().arrived), (1, 1));
    agent.stop();
}

/// The verdict opens the row that was sent, not the one that an application gave the same id in another file.
#[test]
fn what_was_not_sent_opens_its_own_row_though_another_file_has_its_id() {
    let shop = Shop::open(World::listening(""), "delete");
    shop.world.faults(&["reset=read,first=1"]);
    let agent = shop.world.agent();
    let id = lost(&shop, "first");
    let twice = "INSERT INTO outbox (message_id, dedup_key, kind, destination, recipient, payload)
                 VALUES (?1, 'second', 'T', 'gateway', '01000000001', '{\"other\":1}')";
    shop.world.outbox().execute(twice, [&id]).expect("taken");
    shop.world.wait_outbox(&id, "PARKED");
    let args = ["settle", &id, "--not-sent", "--i-checked-the-vendor", "--note", "asked"];
    let (code, said, error) = shop.world.onceward(&args);
    assert_eq!(code, 0, "{said}{error}");
    shop.world.wait_inbox(&id, "SENT");
    shop.wait(&id, "PUBLISHED");
    assert_eq!(shop.world.count("SELECT count(*) FROM rearm WHERE done_at_ms IS NULL"), 0);
    agent.stop();
}

#[test]
fn a_parameter_that_a_call_does_not_know_is_refused_and_nothing_is_stored() {
    let shop = Shop::open(World::listening(""), "delete");
    let agent = shop.world.agent();
    let message = r#"{"dedup_key":"b","kind":"T","recipient":"010","payload":{}}"#;
    let (code, said) = shop.world.call("POST", "/v1/messages?source=shop", message);
    assert!(code == 422 && said.contains("unknown parameter \\\"source\\\""), "{code} {said}");
    assert_eq!(shop.world.count("SELECT count(*) FROM outbox"), 0);
    for (method, path) in [
        ("GET", "/v1/messages?source=shop&stat=ALL"),
        ("GET", "/v1/status?x=1"),
        ("POST", "/v1/messages/k/cancel?sorce=shop"),
        ("POST", "/v1/destinations/gateway/pause?until=1"),
    ] {
        let (code, said) = shop.world.call(method, path, "");
        assert!(code == 422 && said.contains("unknown parameter"), "{path}: {code} {said}");
    }
    assert_eq!(shop.world.call("POST", "/v1/messages", message).0, 201);
    agent.stop();
}

#[test]
fn a_drain_is_not_over_while_a_source_has_rows_or_cannot_be_read() {
    let shop = Shop::open(World::listening(""), "delete");
    let agent = shop.world.agent();
    assert_eq!(shop.world.onceward(&["pause", "gateway", "--reason", "x"]).0, 0);
    let id = put(&shop.rows(), "a", ("", ""));
    let (code, said, error) = shop.world.onceward(&["drain", "--timeout", "1s"]);
    assert!(code == 1 && said.contains("source shop: ") && said.contains("1 left"), "{code} {said}{error}");
    put(&shop.rows(), "b", ("", "")); // refused in outbox.db only, and the command says so
    assert!(error.contains("go on taking theirs"), "{error}");
    assert_eq!(shop.world.onceward(&["resume", "gateway"]).0, 0);
    let (code, said, error) = shop.world.onceward(&["drain", "--timeout", "25s"]);
    assert_eq!((code, said.as_str()), (0, "drained: nothing is left\n"), "{error}");
    shop.world.wait_inbox(&id, "SENT");
    std::fs::rename(&shop.file, shop.world.dir.path().join("aside.db")).expect("moved away");
    let (code, said, error) = shop.world.onceward(&["drain", "--timeout", "1s"]);
    assert!(code == 1 && said.contains("source shop cannot be read"), "{code} {said}{error}");
    agent.stop();
}

/// Each verb of the command on a source's row, with the agent up and down; the id alone says which file.
#[test]
fn the_commands_reach_a_sources_message_while_the_agent_runs_and_while_it_is_down() {
    let shop = Shop::open(World::listening(""), "wal");
    let mut agent = None;
    for up in [false, true] {
        if up {
            agent = Some(shop.world.agent());
        }
        for named in [false, true] {
            let key = |name: &str| format!("{name}:{up}:{named}");
            let run = |args: &[&str]| {
                let mut all = if named { vec!["--source", "shop"] } else { vec![] };
                all.extend(args);
                shop.world.onceward(&all)
            };
            let (a, b) = (shop.later(&key("a")), shop.later(&key("b")));
            let soon = onceward::clock::wall_ms() + 3_600_000;
            let own = put(&shop.world.outbox(), &key("own"), (", not_before_ms", &format!(", {soon}")));
            shop.world.onceward(&["hold", &own]);
            let (code, said, error) = run(&["hold", &a, &b]);
            assert!(code == 0 && said.contains("2 held"), "{said}{error}");
            assert_eq!((shop.status(&a).as_str(), shop.status(&b).as_str()), ("HELD", "HELD"));
            let (code, said, error) = run(&["release", &a]);
            assert!(code == 0 && said.contains("1 released"), "{said}{error}");
            if named {
                assert_eq!(run(&["release", &own]).0, 66, "not in that file");
            } else {
                // One command over two files.
                let (code, said, error) = run(&["cancel", &own, &b]);
                assert!(code == 0 && said.contains("2 cancelled"), "{said}{error}");
                assert_eq!(
                    (shop.world.outbox_state(&own).0.as_str(), shop.status(&b).as_str()),
                    ("FAILED", "FAILED")
                );
            }
            let (code, said, error) = run(&["try-now", &a]);
            assert_eq!(code, 0, "{said}{error}");
            let (code, shown, error) = run(&["show", &a]);
            assert!(code == 0 && shown.contains("shop") && shown.contains("TRY_NOW"), "{shown}{error}");
            assert!(!shown.contains("HELD:") && !shown.contains("nothing is sent"), "{shown}");
            let (code, listed, _) = shop.world.onceward(&["--source", "shop", "queue", "--state", "ALL"]);
            assert!(code == 0 && listed.contains(&a) && !listed.contains(&own), "{listed}");
            if up {
                shop.world.wait_inbox(&a, "SENT");
                shop.wait(&a, "PUBLISHED");
                assert_eq!(run(&["cancel", &a]).0, 1);
            }
        }
    }
    if let Some(agent) = agent {
        agent.stop();
    }
}

fn lost(shop: &Shop, key: &str) -> String {
    let id = put(&shop.rows(), key, ("", ""));
    shop.world.wait_inbox(&id, "ERROR");
    shop.wait(&id, "PUBLISHED");
    id
}

#[test]
fn an_error_of_a_source_is_settled_and_what_was_not_sent_goes_again_from_its_own_file() {
    let shop = Shop::open(World::listening(""), "delete");
    shop.world.faults(&["reset=read,first=5"]);
    let agent = shop.world.agent();
    let ids: Vec<String> = (0..5).map(|number| lost(&shop, &format!("k{number}"))).collect();
    let settle = |id: &str, how: &str| {
        shop.post(
            &format!("{id}/settle"),
            &format!(r#"{{"as":"{how}","note":"asked","i_checked_the_vendor":true}}"#),
        )
    };
    let (code, said) = settle(&ids[0], "sent");
    assert_eq!((code, said["source"].as_str()), (200, Some("shop")), "{said}");
    assert_eq!(shop.world.inbox_state(&ids[0]).as_deref(), Some("SENT"));
    let (code, said, error) = shop.world.onceward(&["settle", &ids[1], "--failed", "--note", "they said so"]);
    assert_eq!(code, 0, "{said}{error}");
    // Not sent: its own row opens, under the same id.
    let (code, said) = settle(&ids[2], "not-sent");
    assert_eq!(code, 200, "{said}");
    shop.world.wait_inbox(&ids[2], "SENT");
    shop.wait(&ids[2], "PUBLISHED");
    assert_eq!(shop.world.arrivals(&ids[2]), 2, "once before the reset, once by order of a person");
    let open = "SELECT count(*) FROM rearm WHERE done_at_ms IS NULL";
    shop.world.wait("the note is closed", |world| world.count(open) == 0);
    // The file is away when the verdict is spoken: the message is not lost, it waits for its file.
    let aside = shop.world.dir.path().join("aside.db");
    let asked = &ids[3];
    shop.world
        .inbox()
        .execute_batch(&format!(
            "BEGIN; DELETE FROM inbox WHERE message_id = '{asked}';
             INSERT INTO rearm (consumer, message_id, times, by, at_ms) VALUES ('gateway', '{asked}', 1, 'operator', 1); COMMIT"
        ))
        .expect("as after the first half of the verdict");
    std::fs::rename(&shop.file, &aside).expect("moved away");
    agent.stop();
    let agent = shop.world.agent();
    shop.world.wait("told", |world| {
        world.count("SELECT count(*) FROM alert WHERE cause = 'ERROR' AND last_text LIKE '%out of reach%'")
            == 1
    });
    assert_eq!(shop.world.count(open), 1);
    std::fs::rename(&aside, &shop.file).expect("put back");
    agent.stop();
    // Down, with the agent's lock.
    let (code, said, error) = shop.world.onceward(&[
        "--source",
        "shop",
        "settle",
        "k4",
        "--not-sent",
        "--i-checked-the-vendor",
        "--note",
        "none",
    ]);
    assert_eq!(code, 0, "{said}{error}");
    assert_eq!((shop.status(&ids[3]).as_str(), shop.status(&ids[4]).as_str()), ("PENDING", "PENDING"));
    assert_eq!(shop.world.count(open), 0);
    let agent = shop.world.agent();
    for id in &ids[3..] {
        shop.world.wait_inbox(id, "SENT");
        shop.wait(id, "PUBLISHED");
        assert_eq!(shop.world.arrivals(id), 2);
    }
    agent.stop();
}

#[test]
fn an_error_of_a_source_that_is_away_is_settled_by_its_id_and_only_not_sent_needs_the_file() {
    let shop = Shop::open(World::listening(""), "delete");
    shop.world.faults(&["reset=read,first=5"]);
    let agent = shop.world.agent();
    let ids: Vec<String> = (0..5).map(|number| lost(&shop, &format!("k{number}"))).collect();
    let aside = shop.world.dir.path().join("aside.db");
    std::fs::rename(&shop.file, &aside).expect("moved away");
    let state = |id: &str| shop.world.inbox_state(id);
    let settle = |id: &str, how: &str| shop.world.onceward(&["settle", id, how, "--note", "they said so"]);
    let not_sent =
        ["settle", &ids[0], "--not-sent", "--i-checked-the-vendor", "--note", "none"].map(str::to_owned);
    let not_sent: Vec<&str> = not_sent.iter().map(String::as_str).collect();
    assert_eq!(shop.world.onceward(&not_sent).0, 75);
    let (code, said, error) = settle(&ids[0], "--sent");
    assert_eq!((code, state(&ids[0]).as_deref()), (0, Some("SENT")), "{said}{error}");
    assert_eq!(settle("k1", "--failed").0, 75, "whose key it is only the file says");
    agent.stop();
    assert_eq!(shop.world.onceward(&not_sent).0, 75);
    let (code, said, error) = settle(&ids[1], "--failed");
    assert_eq!((code, state(&ids[1]).as_deref()), (0, Some("FAILED")), "{said}{error}");
    assert_eq!(settle(&ids[1], "--failed").0, 0, "repeating is harmless");
    assert_eq!(shop.world.onceward(&["--source", "shop", "settle", &ids[2], "--sent", "--note", "x"]).0, 0);
    std::fs::rename(&aside, &shop.file).expect("put back");
    // Ids on standard input; one that nobody has does not stop the others.
    let mut child = std::process::Command::new(crate::support::BIN)
        .arg("--config")
        .arg(&shop.world.config)
        .args(["settle", "-", "--sent", "--note", "their list"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    let lines = format!("{}\nnobody\n{{\"message_id\":\"{}\"}}\n", ids[3], ids[4]);
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), lines.as_bytes()).expect("written");
    let (code, said, error) = crate::support::text(&child.wait_with_output().expect("ends"));
    assert!(code == 1 && error.contains("nobody"), "{code} {said}{error}");
    assert_eq!((state(&ids[3]).as_deref(), state(&ids[4]).as_deref()), (Some("SENT"), Some("SENT")));
}

/// A look-up knows no files: what it proves not sent is found in the source.
#[test]
fn what_a_look_up_calls_never_received_goes_again_from_its_source() {
    let world = World::listening("lookup = LOOKUP");
    let text = std::fs::read_to_string(&world.config).expect("settings");
    let lookup = format!(
        r#"{{ url = "http://{}/messages/{{message_id}}", accepted = {{ status = [200], json = "/state", equals = ["taken"] }}, never_received = {{ status = [404] }}, never_received_after = "1s" }}"#,
        world.sandbox.addr()
    );
    std::fs::write(&world.config, text.replace("LOOKUP", &lookup)).expect("written");
    let shop = Shop::open(world, "wal");
    shop.world.faults(&["reset=read,accepted=no,first=1"]);
    let agent = shop.world.agent();
    let id = lost(&shop, "never");
    shop.world.wait_inbox(&id, "SENT");
    shop.wait(&id, "PUBLISHED");
    assert_eq!(shop.world.arrivals(&id), 2, "the reset one, and after the look-up the other");
    agent.stop();
}

#[test]
fn a_member_of_the_group_reaches_a_source_through_the_socket() {
    if !is_root() {
        return;
    }
    let world = World::listening("");
    world.open_to_the_group();
    let shop = Shop::open(world, "wal");
    let (a, b) = (shop.later("a"), shop.later("b"));
    let (code, _, error) = shop.world.as_stranger(&["--source", "shop", "hold", &a]);
    assert!(code == 77 && error.contains("list of sources"), "{code} {error}");
    let agent = shop.world.agent();
    shop.world.open_socket();
    let (code, said, error) = shop.world.as_stranger(&["--source", "shop", "hold", &a]);
    assert_eq!((code, shop.status(&a).as_str()), (0, "HELD"), "{said}{error}");
    let (code, said, error) = shop.world.as_stranger(&["cancel", &b]);
    assert_eq!((code, shop.status(&b).as_str()), (0, "FAILED"), "{said}{error}");
    let (code, shown, error) = shop.world.as_stranger(&["show", &a]);
    assert!(code == 0 && shown.contains("shop") && shown.contains("HELD"), "{shown}{error}");
    let (code, shown, error) = shop.world.as_stranger(&["--source", "shop", "queue"]);
    assert!(code == 0 && shown.contains(&a), "{shown}{error}");
    let who =
        shop.rows().query_row("SELECT who FROM audit WHERE verb = 'HOLD'", [], |row| row.get::<_, String>(0));
    assert!(who.expect("audited").starts_with("uid 4242"));
    agent.stop();
}
