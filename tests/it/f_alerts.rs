//! Alerts against the real agent: each cause raised for real, its end, the hooks, storms, restarts, bad receivers.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::receiver::{Answer, Receiver};
use crate::support::{Agent, World};

/// Secret part of the webhook's address.
const SECRET: &str = "T0SECRETB0";

/// A world whose agent posts to $HOOK, with more lines for `[alert]` and more sections.
fn settings(alert: &str, sections: &str) -> String {
    format!(
        "[alert]\nwebhook = \"env:HOOK\"\nstale_sending = \"1m\"\n{alert}\n{sections}\n[relay]\npoll = \"100ms\"\n"
    )
}

fn world(alert: &str, sections: &str) -> World {
    World::with(&settings(alert, sections), "")
}

fn environment(receiver: &Receiver) -> Vec<(&'static str, String)> {
    vec![("HOOK", format!("http://{}/{SECRET}", receiver.addr))]
}

fn start(world: &World, receiver: &Receiver, more: &[(&str, &str)]) -> Agent {
    let environment = environment(receiver);
    let mut all: Vec<(&str, &str)> = environment.iter().map(|(key, value)| (*key, value.as_str())).collect();
    all.extend_from_slice(more);
    let agent = world.agent_with(&all);
    agent.wait_log("ready:");
    agent
}

/// Notices by their first words, without the machine's name.
fn kinds(receiver: &Receiver) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for request in receiver.requests() {
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        let text = body["text"].as_str().expect("a text").to_owned();
        let words = text.split_once("] ").expect("[host] first").1;
        let kind = match words.find([':', '(']) {
            Some(end) => words[..end].trim().to_owned(),
            None => words.to_owned(),
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    kinds
}

#[test]
fn a_storm_of_10_000_failures_is_a_handful_of_alerts_and_ends_with_an_all_clear() {
    let receiver = Receiver::new(Answer::Status(200));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("alerts.jsonl");
    let command =
        format!("command = [\"/bin/sh\", \"-c\", \"cat >> {}\"]\ninterval = \"5s\"", file.display());
    // Without this the destination would close after ten of them.
    let world = World::with(&settings(&command, ""), "close_after_unknown = 0");
    world.faults(&["status=500"]);
    world.put_many("k", 10_000);
    let begun = Instant::now();
    let agent = start(&world, &receiver, &[]);
    let end = begun + Duration::from_secs(180);
    while world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'") < 10_000 {
        assert!(Instant::now() < end, "the storm does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = begun.elapsed();
    world.wait("all are counted", |world| world.alerts("ERROR") == 10_000);
    // What came after the first is told within the interval, with its count.
    let told = || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| line["cause"] == "ERROR").collect::<Vec<_>>()
    };
    world.wait("the command was told of all", |_| {
        told().iter().map(|line| line["new"].as_i64().unwrap_or(0)).sum::<i64>() == 10_000
    });
    let most = 2 + took.as_secs() as usize / 5 + 1;
    assert!(told().len() <= most, "{} in {took:?}: {:?}", told().len(), told());
    assert!(told().iter().all(|line| line["destination"] == "gateway" && line["kind"] == "RAISED"));
    let posts = receiver.requests().len();
    assert!(posts <= most + 1, "{posts} posts in {took:?}: {:?}", kinds(&receiver));
    let lines = agent.log().matches("alert cause=ERROR dest=gateway").count();
    assert!((1..=most).contains(&lines), "{lines} journal lines");

    // A person settles them (here: all at once).
    world.inbox().execute("UPDATE inbox SET status = 'SENT' WHERE status = 'ERROR'", []).expect("settled");
    receiver.wait("ALL CLEAR ERROR gateway");
    agent.wait_log("all-clear of=ERROR dest=gateway");
    world.wait("over in the table", |world| {
        world.count(
            "SELECT count(*) FROM alert WHERE cause = 'ERROR' AND open = 0 AND cleared_at_ms IS NOT NULL",
        ) == 1
    });
    let (_, shown, _) = world.onceward(&["status"]);
    assert!(shown.contains("over since"), "{shown}");
    agent.stop();
}

#[test]
fn parked_quarantined_expired_closed_backlog_and_many_attempts_are_told_and_end() {
    let receiver = Receiver::new(Answer::Status(200));
    let world = world(
        "interval = \"1s\"\nbacklog_age = \"1s\"",
        "[retry]\nquick = { times = 5, every = \"50ms\" }\nalert_at_attempt = 2",
    );
    let agent = start(&world, &receiver, &[]);

    // PARKED, and its end.
    let parked = world.put("bad", "gateway", "not json 01077776666");
    receiver.wait("ALERT PARKED gateway");
    assert_eq!(world.onceward(&["cancel", &parked]).0, 0);
    receiver.wait("ALL CLEAR PARKED gateway");

    // PARKED for a destination that only the producer knows: it is not named.
    world.put("nowhere", "01055554444", "{}");
    receiver.wait("ALERT PARKED (other)");

    // QUARANTINED: put there by a trigger in the producer's own commit.
    world.put("same", "gateway", r#"{"text":"apricot 01011112222"}"#);
    world.put("same", "gateway", r#"{"text":"walnut 01033334444"}"#);
    receiver.wait("ALERT QUARANTINED gateway");

    // EXPIRED.
    let expires = "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, expires_at_ms)
                   VALUES ('late', 'TEST', 'gateway', '01000000001', '{}', 1000000000000)";
    world.outbox().execute(expires, []).expect("the row is taken");
    receiver.wait("ALERT EXPIRED gateway");

    // MANY_ATTEMPTS: refused at the door, twice.
    world.faults(&["redirect=307,first=2"]);
    let often = world.put_plain("often");
    receiver.wait("ALERT MANY_ATTEMPTS gateway");
    world.wait_inbox(&often, "SENT");

    // DESTINATION_CLOSED and BACKLOG_AGE, and their ends.
    world.sandbox.refuse(true);
    let waits = world.put_plain("waits");
    receiver.wait("ALERT DESTINATION_CLOSED gateway");
    receiver.wait("ALERT BACKLOG_AGE gateway");
    let (_, shown, _) = world.onceward(&["status"]);
    assert!(shown.contains("lasts"), "{shown}");
    world.sandbox.refuse(false);
    receiver.wait("ALL CLEAR DESTINATION_CLOSED gateway");
    world.wait_inbox(&waits, "SENT");
    receiver.wait("ALL CLEAR BACKLOG_AGE gateway");

    // Nothing of a person and no secret leaves.
    let log = agent.log();
    let alerts: String = log.lines().filter(|line| line.contains("alert cause=")).collect();
    for request in receiver.requests() {
        let text = format!("{}{alerts}", request.body);
        for word in ["0107777", "0105555", "0101111", "0103333", "0100000", "apricot", "walnut", SECRET] {
            assert!(!text.contains(word), "{word} in {text}");
        }
    }
    assert!(!log.contains(SECRET), "{log}");
    // A flood of notices would be a fault too: each cause once or twice.
    let kinds = kinds(&receiver);
    assert!(kinds.values().all(|count| *count <= 4), "{kinds:?}");
    agent.stop();
}

#[test]
fn stale_sending_is_told_after_the_crash_and_conflict_when_the_inbox_knows_other_content() {
    let receiver = Receiver::new(Answer::Status(200));
    let world = world("interval = \"1s\"", "");
    let id = world.put_plain("k");
    let hook = environment(&receiver)[0].1.clone();
    let mut dies = world.agent_with(&[("HOOK", &hook), ("ONCEWARD_KILL_AT", "worker-after-claim")]);
    assert!(!dies.wait_end().success());
    let other = world.put_plain("other");
    world
        .inbox()
        .execute(
            "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms)
             VALUES ('gateway', ?1, '3:other', 'SENT', 'x:1', 1, 1)",
            [&other],
        )
        .expect("a row with other content");
    let agent = start(&world, &receiver, &[]);
    receiver.wait("ALERT STALE_SENDING gateway");
    receiver.wait("ALERT CONFLICT gateway");
    // Not PUBLISHED: what this copy says was sent by nobody.
    world.wait_outbox(&other, "PARKED");
    world.wait_inbox(&id, "ERROR");
    world.inbox().execute("UPDATE inbox SET status = 'FAILED' WHERE status = 'ERROR'", []).expect("settled");
    receiver.wait("ALL CLEAR STALE_SENDING gateway");
    assert_eq!(world.alerts("ERROR"), 0, "one cause, one alert");
    agent.stop();
}

#[test]
fn an_alert_that_died_with_the_agent_is_told_by_the_next_one() {
    let receiver = Receiver::new(Answer::Status(200));
    let world = world("interval = \"1s\"", "");
    // Ends as they stand after a crash between their commit and their alert's.
    for (key, state) in [("expired", "EXPIRED"), ("parked", "PARKED")] {
        let id = world.put_plain(key);
        let outbox = world.outbox();
        let claim = "UPDATE outbox SET status = 'PUBLISHING', claimed_by = 'x:1', claimed_until_ms = 1 WHERE message_id = ?1";
        outbox.execute(claim, [&id]).expect("claimed");
        let end = format!(
            "UPDATE outbox SET status = '{state}', claimed_by = NULL, claimed_until_ms = NULL, updated_at_ms = {},
                    closed_at_ms = CASE WHEN '{state}' = 'EXPIRED' THEN 1 END WHERE message_id = ?1",
            onceward::clock::wall_ms()
        );
        outbox.execute(&end, [&id]).expect("ended");
    }
    world
        .inbox()
        .execute(
            "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms, settled_by)
             VALUES ('gateway', 'ow-1', '1:x', 'ERROR', 'x:1', 1, ?1, 'worker')",
            [onceward::clock::wall_ms()],
        )
        .expect("an ERROR");
    for _ in 0..2 {
        let agent = start(&world, &receiver, &[]);
        for cause in ["EXPIRED", "PARKED", "ERROR"] {
            receiver.wait(&format!("ALERT {cause} gateway"));
        }
        agent.stop();
        // The second start finds nothing new and tells nothing again.
        for cause in ["EXPIRED", "PARKED", "ERROR"] {
            assert_eq!(world.alerts(cause), 1, "{cause}");
            assert_eq!(receiver.with(&format!("ALERT {cause} gateway")).len(), 1, "{cause}");
        }
    }
}

#[test]
fn disk_is_told_and_its_end_too() {
    let receiver = Receiver::new(Answer::Status(200));
    let world = world("interval = \"1s\"\ndisk_free = \"4000000TiB\"", "");
    let agent = start(&world, &receiver, &[]);
    let body = receiver.wait("ALERT DISK:");
    assert!(body.contains("MiB free at"), "{body}");
    agent.stop();
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    std::fs::write(&world.config, settings.replace("4000000TiB", "1MiB")).expect("written");
    let agent = start(&world, &receiver, &[]);
    receiver.wait("ALL CLEAR DISK");
    agent.stop();
}

/// The default interval is 15 minutes: a second trouble is not left to it.
#[test]
fn after_an_all_clear_the_next_trouble_is_told_at_once() {
    let receiver = Receiver::new(Answer::Status(200));
    let world = world("", "");
    world.faults(&["status=500"]);
    let agent = start(&world, &receiver, &[]);
    let first = world.put_plain("first");
    world.wait_inbox(&first, "ERROR");
    receiver.wait("ALERT ERROR gateway");
    world.inbox().execute("UPDATE inbox SET status = 'SENT' WHERE status = 'ERROR'", []).expect("settled");
    receiver.wait("ALL CLEAR ERROR gateway");
    std::thread::sleep(Duration::from_secs(10));
    let second = world.put_plain("second");
    world.wait_inbox(&second, "ERROR");
    world.wait("the second is told, too", |_| kinds(&receiver).get("ALERT ERROR gateway") == Some(&2));
    agent.stop();
}

#[test]
fn alerts_go_out_while_the_database_cannot_be_written() {
    let receiver = Receiver::new(Answer::Status(200));
    let world = world("interval = \"1s\"", "");
    // Commit 1 is the heartbeat; the claim and all that follows fail for about six seconds.
    let agent = start(&world, &receiver, &[("ONCEWARD_FAIL_AT", "writer-before-commit:2:8")]);
    let id = world.put_plain("k");
    receiver.wait("ALERT DATABASE inbox.db");
    assert_eq!(world.alerts("DATABASE"), 0, "told from memory");
    receiver.wait("ALL CLEAR DATABASE inbox.db");
    world.wait("written down later", |world| world.alerts("DATABASE") == 1);
    world.wait_inbox(&id, "SENT");
    agent.stop();
}

#[test]
fn a_receiver_that_is_slow_redirects_or_is_down_touches_nothing_and_hears_of_it_later() {
    let elsewhere = Receiver::new(Answer::Status(200));
    let receiver = Receiver::new(Answer::Hang);
    let world = world("", "");
    let agent = start(&world, &receiver, &[]);
    let begun = Instant::now();
    world.put("bad", "gateway", "not json");
    receiver.wait("ALERT PARKED gateway"); // it has it, and does not answer
    world.put_many("k", 200);
    world.wait("all are sent beside it", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 200
    });
    assert!(
        begun.elapsed() < Duration::from_secs(9),
        "before the receiver's time is over: {:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    agent.stop();
    assert!(begun.elapsed() < Duration::from_secs(6), "a stop does not wait for it: {:?}", begun.elapsed());

    // Kept in the table; a redirect is not followed and not taken for a delivery.
    receiver.answer(Answer::Redirect(format!("http://{}/x", elsewhere.addr)));
    let agent = start(&world, &receiver, &[]);
    agent.wait_log("alert hook webhook fails: status 302");
    let (_, shown, _) = world.onceward(&["status"]);
    assert!(shown.contains("due to webhook"), "{shown}");
    receiver.answer(Answer::Status(200));
    agent.wait_log("alert hook webhook delivers again");
    world.wait("told", |world| {
        world.count(
            "SELECT count(*) FROM alert_told WHERE hook = 'webhook' AND cause = 'PARKED' AND count = 1",
        ) == 1
    });
    assert_eq!(elsewhere.requests().len(), 0);
    let posts = receiver.requests().len();
    agent.stop();
    let agent = start(&world, &receiver, &[]);
    world.put_many("more", 1);
    world.wait("sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 201);
    agent.stop();
    assert_eq!(receiver.requests().len(), posts, "what was delivered is not told again");

    // Down: nobody listens on the port; a later start delivers.
    let port = TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("an address");
    let hook = format!("http://{port}/{SECRET}");
    let agent = world.agent_with(&[("HOOK", &hook)]);
    agent.wait_log("ready:");
    world.put("worse", "biz", "not json");
    agent.wait_log("alert hook webhook fails");
    assert!(!agent.log().contains(SECRET), "{}", agent.log());
    agent.stop();
    let later = Receiver::at(port, Answer::Status(204));
    let agent = world.agent_with(&[("HOOK", &hook)]);
    later.wait("ALERT PARKED biz");
    agent.stop();
}

#[test]
fn the_command_gets_the_alert_and_nothing_else_and_is_killed_in_time() {
    let receiver = Receiver::new(Answer::Status(200));
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let script = path("hook");
    let text = format!(
        "#!/bin/sh\ncat > {json}.new\nenv > {env}\nls -l /proc/self/fd > {fds}\nmv {json}.new {json}\nsleep 300\n",
        json = path("json"),
        env = path("env"),
        fds = path("fds")
    );
    std::fs::write(&script, text).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("executable");
    let world = world(&format!("command = [\"{script}\"]\ncommand_timeout = \"1s\""), "");
    let agent = start(&world, &receiver, &[("SOME_TOKEN", "hunter2")]);
    world.put("bad", "gateway", "not json");
    agent.wait_log("alert hook command fails");
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(path("json")).expect("it ran")).expect("JSON");
    assert_eq!(
        (json["cause"].as_str(), json["destination"].as_str(), json["new"].as_i64()),
        (Some("PARKED"), Some("gateway"), Some(1))
    );
    let env = std::fs::read_to_string(path("env")).expect("it ran");
    assert!(
        env.contains("ONCEWARD_ALERT_CAUSE=PARKED\n") && !env.contains("hunter2") && !env.contains(SECRET),
        "{env}"
    );
    let fds = std::fs::read_to_string(path("fds")).expect("it ran");
    for leak in ["socket:", ".db", "agent.lock", "inotify", "eventfd"] {
        assert!(!fds.contains(leak), "{leak} in {fds}");
    }
    // Killed with what it had started, and reaped: the agent has no child left, dead or alive.
    world.wait("no child", |_| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).expect("tasks");
        tasks.flatten().all(|task| {
            std::fs::read_to_string(task.path().join("children")).unwrap_or_default().trim().is_empty()
        })
    });
    assert!(agent.log().contains("was killed: no end after 1 s"), "{}", agent.log());
    receiver.wait("ALERT PARKED gateway"); // one hook does not hold up the other
    agent.stop();
}

#[test]
fn alert_test_tries_each_hook_and_says_what_came_of_it() {
    let receiver = Receiver::new(Answer::Status(200));
    let world = world("command = [\"/bin/false\"]", "");
    let run = |hook: &str| {
        let mut command = std::process::Command::new(crate::support::BIN);
        command.arg("--config").arg(&world.config).args(["alert", "test"]).env("HOOK", hook);
        crate::support::text(&command.output().expect("it runs"))
    };
    let good = environment(&receiver)[0].1.clone();
    let (code, shown, error) = run(&good);
    assert_eq!(code, 1, "{shown}{error}");
    assert!(
        shown.contains("ok    webhook") && shown.contains("ERROR command  /bin/false ended with"),
        "{shown}"
    );
    receiver.wait("ALERT TEST");
    receiver.answer(Answer::Status(404));
    let (code, shown, _) = run(&good);
    assert!(code == 1 && shown.contains("status 404") && !shown.contains(SECRET), "{shown}");
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    std::fs::write(&world.config, settings.replace("/bin/false", "/bin/true")).expect("written");
    receiver.answer(Answer::Status(200));
    let (code, shown, _) = run(&good);
    assert_eq!(code, 0, "{shown}");
}

#[test]
fn looks_at_conditions_use_their_indexes() {
    let world = World::new();
    let plan = |connection: rusqlite::Connection, statement: &str| -> String {
        let mut statement =
            connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).expect("a statement");
        let rows = statement.query_map([], |row| row.get::<_, String>(3)).expect("a plan");
        rows.map_while(Result::ok).collect::<Vec<_>>().join("; ")
    };
    for (statement, index) in [
        ("SELECT destination, count(*) FROM outbox WHERE status = 'PARKED' GROUP BY destination", "outbox_stopped"),
        (
            "SELECT status, destination, count(*) FROM outbox WHERE status = 'EXPIRED' AND updated_at_ms > 1 GROUP BY destination",
            "outbox_stopped",
        ),
        (
            "SELECT max(not_before_ms, created_at_ms) FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND
             destination = 'x' AND priority = 5 AND not_before_ms <= 9 ORDER BY not_before_ms LIMIT 1",
            "outbox_due",
        ),
        ("SELECT coalesce(destination, ''), count(*) FROM quarantine WHERE id > 1 AND id <= 2 GROUP BY 1", "INTEGER PRIMARY KEY"),
    ] {
        let plan = plan(world.outbox(), statement);
        assert!(plan.contains(index) && !plan.contains("SCAN"), "{statement}: {plan}");
    }
    let statement = "SELECT consumer, settled_by IN ('start', 'sweeper'), count(*) FROM inbox
                      WHERE status = 'ERROR' AND finished_at_ms > 1 GROUP BY 1, 2";
    let plan = plan(world.inbox(), statement);
    assert!(plan.contains("inbox_error"), "{plan}");
}
