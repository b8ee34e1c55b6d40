//! F29: reports by webhook and by polling, and what else settles an ERROR. The real agent, the sandbox vendor, real kills.
//!
//! What the sandbox cannot say by itself (contradictions, strangers, a wrong order) is posted by the test as the vendor
//! would, to the agent's own address.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::World;

const SECRET: &str = "hook-secret-0123456789";
const TOKEN: &str = "api-token-0123456789";
const SMS: &str = r#"{"type":"sms","content":{"sms":{"message":"hello"}}}"#;

/// A world whose agent listens, with reports as the settings say.
pub struct Listening {
    pub world: World,
    port: u16,
}

impl Listening {
    fn with(reports: &str) -> Self {
        Self::with_all(reports, "")
    }
    fn with_all(reports: &str, gateway: &str) -> Self {
        let world = World::new();
        // Free a moment ago; the tests of one machine do not fight for it.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let dir = world.dir.path();
        std::fs::write(dir.join("hook"), SECRET).expect("written");
        std::fs::write(dir.join("token"), TOKEN).expect("written");
        for file in ["hook", "token"] {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(dir.join(file), std::fs::Permissions::from_mode(0o600)).expect("mode");
        }
        let text = std::fs::read_to_string(&world.config).expect("settings");
        let text =
            text.replace("from = \"0212345678\"\n", &format!("from = \"0212345678\"\nreports = {reports}\n"));
        let text = text.replace(
            "reference_header = \"X-Reference\"\n",
            &format!("reference_header = \"X-Reference\"\n{gateway}\n"),
        );
        let listen = format!(
            "{text}\n[listen]\nsocket = \"{}\"\nhttp = \"127.0.0.1:{port}\"\ntoken = \"file:token\"\n",
            dir.join("s.sock").display()
        );
        std::fs::write(&world.config, listen).expect("settings are written");
        Self { world, port }
    }
    pub fn webhook() -> Self {
        Self::with(r#"{ webhook_secret = "file:hook" }"#)
    }
    /// With a second destination `biz2` that sends by the same account and does not ask for its reports.
    fn shared(reports: &str) -> Self {
        let it = Self::with(reports);
        let text = std::fs::read_to_string(&it.world.config).expect("settings");
        let begin = text.find("[[destination]]\nname = \"biz\"").expect("the destination");
        let end = begin + text[begin..].find("[[route]]").expect("its end");
        let second = text[begin..end]
            .replace("name = \"biz\"", "name = \"biz2\"")
            .replace(&format!("reports = {reports}"), "reports = \"off\"");
        std::fs::write(&it.world.config, format!("{}{second}{}", &text[..end], &text[end..]))
            .expect("written");
        it
    }
    fn socket(&self) -> PathBuf {
        self.world.dir.path().join("s.sock")
    }
    pub fn path(&self) -> String {
        format!("/v1/reports/biz/{SECRET}")
    }
    /// Status and body.
    fn raw(&self, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        exchange(&mut stream, request)
    }
    pub fn post(&self, path: &str, body: &Value) -> u16 {
        let body = body.to_string();
        self.raw(&format!(
            "POST {path} HTTP/1.1\r\nHost: hook.example\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
        .0
    }
    #[track_caller]
    pub fn report(&self, body: &Value) {
        assert_eq!(self.post(&self.path(), body), 200, "{body}");
    }
    pub fn row(&self, id: &str) -> (String, String, String) {
        self.world
            .inbox()
            .query_row(
                "SELECT status, coalesce(delivery, ''), coalesce(settled_by, '') FROM inbox WHERE message_id = ?1",
                [id],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .expect("the row is there")
    }
    #[track_caller]
    fn wait_row(&self, id: &str, status: &str, delivery: &str) {
        let is = |world: &World| {
            world.inbox_state(id).as_deref() == Some(status)
                && (self.row(id).0.as_str(), self.row(id).1.as_str()) == (status, delivery)
        };
        self.world.wait(&format!("{id} {status} {delivery}"), is);
    }
    /// A message whose answer is lost, so that it is ERROR.
    #[track_caller]
    pub fn error(&self, key: &str) -> String {
        let id = self.world.put(key, "biz", SMS);
        self.world.wait_inbox(&id, "ERROR");
        self.world.wait_outbox(&id, "PUBLISHED");
        id
    }
}

fn exchange(stream: &mut (impl Read + Write), request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// As the vendor posts it.
pub fn posted(item: &str, media: &str, result: &str, reference: &str, unixtime: u64) -> Value {
    json!({"DEVICE": media, "CMSGID": item, "MSGID": item, "PHONE": "01000000001", "MEDIA": media,
        "UNIXTIME": unixtime.to_string(), "RESULT": result, "REFKEY": reference})
}

#[test]
fn f29_a_lost_answer_is_settled_by_the_webhook_and_delivery_of_sent_is_set() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=yes,report=no,first=1"]);
    let agent = it.world.agent();
    let id = it.error("lost");
    it.report(&posted("m1", "SMS", "4100", &id, 1_700_000_000));
    assert_eq!(it.row(&id), ("SENT".into(), "DELIVERED".into(), "report".into()));
    let plain = it.world.put("plain", "biz", SMS);
    it.world.wait_inbox(&plain, "SENT");
    it.report(&posted("m2", "SMS", "4410", &plain, 1_700_000_000));
    assert_eq!(it.row(&plain), ("SENT".into(), "UNDELIVERED".into(), "worker".into()));
    assert_eq!((it.world.arrivals(&id), it.world.arrivals(&plain)), (1, 1));
    let (_, shown, _) = it.world.onceward(&["show", "lost"]);
    assert!(shown.contains("DELIVERED (4100)") && shown.contains("settled by report"), "{shown}");
    assert!(!agent.log().contains("01000000001") && !agent.log().contains(SECRET), "{}", agent.log());
    agent.stop();
}

#[test]
fn f29_repeats_wrong_order_and_a_fallbacks_second_report_end_alike() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=yes,report=no"]);
    let agent = it.world.agent();
    let delivered = |id: &str| posted("k-2", "SMS", "4100", id, 1_700_000_060);
    let refused = |id: &str| posted("k", "KAT", "7319", id, 1_700_000_000);
    let uncertain = |id: &str| posted("k", "KAT", "7305", id, 1_699_999_000);
    let with = |report: Value, key: &str| {
        let mut report = report;
        report["MSGID"] = json!(format!("{key}-{}", report["MSGID"].as_str().expect("text")));
        report
    };
    for (key, order) in [("a", [0, 1, 2]), ("b", [1, 0, 2]), ("c", [2, 1, 0]), ("d", [1, 2, 0])] {
        let id = it.error(key);
        let all = [with(delivered(&id), key), with(refused(&id), key), with(uncertain(&id), key)];
        for index in order {
            it.report(&all[index]);
            it.report(&all[index]); // the vendor repeats itself
        }
        assert_eq!(it.row(&id).0, "SENT", "{order:?}");
        assert_eq!(it.row(&id).1, "DELIVERED", "{order:?}");
        let stored = it.world.count(&format!("SELECT count(*) FROM report WHERE message_id = '{id}'"));
        let copies = it.world.count(&format!("SELECT sum(copies) FROM report WHERE message_id = '{id}'"));
        assert_eq!((stored, copies), (3, 6));
        assert_eq!(it.world.arrivals(&id), 1);
    }
    assert_eq!(it.world.alerts("REPORT_CONFLICT"), 0, "a fallback is no contradiction");
    agent.stop();
}

/// The sandbox's own webhook, which says a report up to three times, a second apart, until it is answered 200.
#[test]
fn f29_the_vendors_webhook_settles_a_time_out_even_over_a_death_between_store_and_answer() {
    let it = Listening::webhook();
    let vendor = onceward::sandbox::start(onceward::sandbox::SandboxOptions {
        webhook: Some(format!("http://127.0.0.1:{}{}", it.port, it.path())),
        // After the caller's own time-out of 2 s.
        report_delay: Duration::from_millis(3_500),
        faults: vec!["hang,accepted=yes,first=1".parse().expect("a rule")],
        ..Default::default()
    })
    .expect("the vendor starts");
    let text = std::fs::read_to_string(&it.world.config).expect("settings");
    let (mine, theirs) = (it.world.sandbox.addr().to_string(), vendor.addr().to_string());
    std::fs::write(&it.world.config, text.replace(&mine, &theirs)).expect("written");
    let mut agent = it.world.agent_with(&[("ONCEWARD_KILL_AT", "webhook-before-answer")]);
    let id = it.error("time-out");
    assert!(!agent.wait_end().success());
    assert_eq!(it.row(&id), ("SENT".into(), "DELIVERED".into(), "report".into()), "stored before the answer");
    let agent = it.world.agent();
    it.world.wait("told again", |world| world.count("SELECT max(copies) FROM report") == 2);
    assert_eq!(it.row(&id).0, "SENT");
    assert_eq!(vendor.ledger().arrived(&id), 1);
    agent.stop();
}

#[test]
fn f29_reports_of_a_shared_account_find_the_message_of_the_other_destination() {
    let it = Listening::shared(r#"{ poll = "1s" }"#);
    let agent = it.world.agent();
    let ids = [it.world.put("a", "biz", SMS), it.world.put("b", "biz2", SMS)];
    for id in &ids {
        it.wait_row(id, "SENT", "DELIVERED");
    }
    assert_eq!(it.world.alerts("REPORT_UNMATCHED"), 0);
    agent.stop();
}

#[test]
fn f29_early_arrival_waits_for_the_answer_and_loses_nothing() {
    for (fault, end) in [
        ("delay=700ms,report=no", ("SENT", "DELIVERED", "ACCEPTED")),
        ("delay=700ms,reset=read,accepted=yes,report=no", ("SENT", "DELIVERED", "UNKNOWN")),
        ("delay=700ms,code=2000,accepted=yes,report=no", ("SENT", "DELIVERED", "REJECTED")),
        ("delay=700ms,code=5002,accepted=yes,report=no", ("SENT", "DELIVERED", "NOT_SENT")),
    ] {
        let it = Listening::webhook();
        it.world.faults(&[fault]);
        let agent = it.world.agent();
        let id = it.world.put("early", "biz", SMS);
        it.world.wait_inbox(&id, "SENDING");
        it.world.wait("arrived", |world| world.arrivals(&id) == 1);
        it.report(&posted("m1", "SMS", "4100", &id, 1_700_000_000));
        it.wait_row(&id, end.0, end.1);
        it.world.wait_outbox(&id, "PUBLISHED");
        let outcome: String = it
            .world
            .inbox()
            .query_row("SELECT group_concat(outcome) FROM attempt WHERE message_id = ?1", [&id], |row| {
                row.get(0)
            })
            .expect("the attempt is kept");
        assert_eq!(outcome, end.2, "{fault}");
        assert_eq!(it.world.arrivals(&id), 1, "{fault}");
        assert_eq!(it.world.alerts("ERROR"), 0, "nothing is unknown: {fault}");
        agent.stop();
    }
}

#[test]
fn f29_a_report_on_a_message_that_was_refused_at_the_door_keeps_it_from_being_sent_again() {
    let it = Listening::webhook();
    it.world.faults(&["status=429,retry_after=2,accepted=yes,report=no,first=1"]);
    let agent = it.world.agent();
    let id = it.world.put("k", "biz", SMS);
    it.world.wait("the refusal is recorded", |world| {
        world.count("SELECT count(*) FROM attempt WHERE outcome = 'NOT_SENT'") == 1
    });
    it.report(&posted("m1", "SMS", "4100", &id, 1_700_000_000));
    it.wait_row(&id, "SENT", "DELIVERED");
    it.world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(it.world.arrivals(&id), 1);
    agent.stop();
}

/// No row stands any more that would tell whose message it is: the log of calls does.
#[test]
fn f29_the_same_where_another_destination_of_the_account_was_refused_at_the_door() {
    let it = Listening::shared(r#"{ webhook_secret = "file:hook" }"#);
    it.world.faults(&["status=429,retry_after=2,accepted=yes,report=no,first=1"]);
    let agent = it.world.agent();
    let id = it.world.put("k", "biz2", SMS);
    it.world.wait("the refusal is recorded", |world| {
        world.count("SELECT count(*) FROM attempt WHERE outcome = 'NOT_SENT'") == 1
    });
    it.report(&posted("m1", "SMS", "4100", &id, 1_700_000_000));
    it.wait_row(&id, "SENT", "DELIVERED");
    it.world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(it.world.arrivals(&id), 1);
    assert_eq!(it.world.count("SELECT count(*) FROM report WHERE account = 'biz' AND consumer = 'biz2'"), 1);
    agent.stop();
}

/// Marker, effect and stored result are one commit: after a death in the middle of it nothing is known.
#[test]
fn f29_killed_between_marker_and_effect_the_report_is_taken_when_it_comes_again() {
    for point in ["once-after-marker", "once-after-effect"] {
        let it = Listening::webhook();
        it.world.faults(&["reset=read,accepted=yes,report=no"]);
        let mut agent = it.world.agent_with(&[("ONCEWARD_KILL_AT", point)]);
        agent.wait_log("ready:");
        let id = it.error("k");
        let report = posted("m1", "SMS", "4100", &id, 1_700_000_000).to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", it.port)).expect("it listens");
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{report}",
            it.path(),
            report.len()
        );
        stream.write_all(request.as_bytes()).expect("written");
        assert!(!agent.wait_end().success());
        let known = "SELECT (SELECT count(*) FROM report) + (SELECT count(*) FROM onceward_once)";
        assert_eq!((it.world.count(known), it.row(&id).0.as_str()), (0, "ERROR"), "{point}");
        let agent = it.world.agent();
        it.report(&posted("m1", "SMS", "4100", &id, 1_700_000_000));
        assert_eq!(it.row(&id), ("SENT".into(), "DELIVERED".into(), "report".into()));
        agent.stop();
    }
}

/// A stored result that somebody has spoilt: that one report cannot be taken; nothing else waits for it.
#[test]
fn f29_a_report_that_cannot_be_taken_holds_up_no_message() {
    let it = Listening::webhook();
    it.world.faults(&["report=no"]);
    let agent = it.world.agent();
    let first = it.world.put("first", "biz", SMS);
    it.world.wait_inbox(&first, "SENT");
    it.report(&posted("m1", "SMS", "4100", &first, 1_700_000_000));
    it.world
        .inbox()
        .execute_batch(
            "BEGIN; CREATE TEMP TABLE spoilt AS SELECT * FROM onceward_once WHERE consumer = 'report:biz';
             DELETE FROM onceward_once WHERE consumer = 'report:biz';
             INSERT INTO onceward_once SELECT id, consumer, event_id, fingerprint, effect_key, corrects, occurred_at_ms,
               processed_at_ms, '{}' FROM spoilt; COMMIT",
        )
        .expect("spoilt");
    for number in 0..3 {
        assert_eq!(it.post(&it.path(), &posted("m1", "SMS", "4100", &first, 1_700_000_000)), 503);
        let id = it.world.put(&format!("next {number}"), "biz", SMS);
        it.world.wait_inbox(&id, "SENT");
        it.report(&posted(&format!("m2-{number}"), "SMS", "4100", &id, 1_700_000_000));
        assert_eq!(it.row(&id).1, "DELIVERED");
    }
    assert!(!agent.log().contains("cannot be written"), "{}", agent.log());
    agent.stop();
}

/// Markers go with their reports, and those with their message. What comes then is shown, never silently too old.
#[test]
fn f29_a_report_told_again_after_retention_is_shown() {
    let it = Listening::webhook();
    it.world.faults(&["report=no"]);
    let agent = it.world.agent();
    let id = it.world.put("k", "biz", SMS);
    it.world.wait_outbox(&id, "PUBLISHED");
    let last = posted("m1", "SMS", "4100", &id, 1_700_000_000);
    it.report(&last);
    it.report(&posted("m1", "SMS", "4410", &id, 1_700_000_000));
    it.world.wait("a contradiction", |world| world.alerts("REPORT_CONFLICT") == 1);
    let known = "SELECT (SELECT count(*) FROM report) + (SELECT count(*) FROM onceward_once)
                      + (SELECT count(*) FROM onceward_once_quarantine)";
    // Two reports with a marker each, one end with its marker, one refusal.
    assert_eq!(it.world.count(known), 6);
    let old = "SET last_at_ms = last_at_ms - 35000000000, first_at_ms = first_at_ms - 35000000000";
    it.world
        .inbox()
        .execute_batch(&format!("UPDATE report {old}; UPDATE onceward_once_quarantine {old}"))
        .expect("aged");
    let purge = || {
        let (code, said, error) = it.world.onceward(&["purge"]);
        assert_eq!(code, 0, "{said}{error}");
    };
    purge();
    assert_eq!(it.world.count("SELECT count(*) FROM report"), 2, "as long as its message is known");
    assert_eq!(it.world.count("SELECT count(*) FROM onceward_once"), 3);
    it.world
        .inbox()
        .execute_batch("UPDATE inbox SET claimed_at_ms = claimed_at_ms - 35000000000, finished_at_ms = finished_at_ms - 35000000000")
        .expect("aged");
    it.world
        .outbox()
        .execute("UPDATE outbox SET closed_at_ms = closed_at_ms - 35000000000", [])
        .expect("aged");
    // Bodies, keys, the message and its reports.
    for _ in 0..3 {
        purge();
    }
    assert_eq!((it.world.count("SELECT count(*) FROM outbox"), it.world.count(known)), (0, 0));
    it.report(&last);
    it.world.wait("shown", |world| world.alerts("REPORT_UNMATCHED") == 1);
    assert_eq!(it.world.count("SELECT count(*) FROM v_report WHERE fate = 'UNMATCHED'"), 1);
    assert_eq!((it.world.inbox_state(&id), it.world.arrivals(&id)), (None, 1));
    agent.stop();
}

#[test]
fn f29_killed_in_the_call_the_waiting_report_settles_at_the_next_start() {
    let it = Listening::webhook();
    it.world.faults(&["hang,accepted=yes,report=no"]);
    let agent = it.world.agent();
    let id = it.world.put("k", "biz", SMS);
    it.world.wait("arrived", |world| world.arrivals(&id) == 1);
    it.report(&posted("m1", "SMS", "4410", &id, 1_700_000_000));
    assert_eq!(it.row(&id).0, "SENDING");
    agent.kill9();
    let agent = it.world.agent();
    it.wait_row(&id, "FAILED", "UNDELIVERED");
    it.world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(it.world.alerts("STALE_SENDING"), 0, "nothing is unknown");
    assert_eq!(it.world.arrivals(&id), 1);
    agent.stop();
}

#[test]
fn f29_strangers_contradictions_and_unknown_codes_settle_nothing_and_are_shown() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=yes,report=no"]);
    let agent = it.world.agent();
    let id = it.error("k");
    let mut without = posted("m0", "SMS", "4100", "", 1_700_000_000);
    without.as_object_mut().expect("an object").remove("REFKEY");
    it.report(&without);
    it.report(&posted("m1", "SMS", "4100", "somebody-elses", 1_700_000_000));
    it.world.wait("two strangers", |world| world.alerts("REPORT_UNMATCHED") == 2);
    it.report(&posted("m2", "SMS", "4999", &id, 1_700_000_000));
    it.world.wait("an unknown code", |world| world.alerts("REPORT_UNCLEAR") == 1);
    assert_eq!(it.row(&id).0, "ERROR", "a code that nobody knows proves nothing");
    it.report(&posted("m3", "SMS", "4100", &id, 1_700_000_000));
    assert_eq!(it.row(&id).0, "SENT");
    it.report(&posted("m3", "SMS", "4410", &id, 1_700_000_009));
    it.world.wait("a contradiction", |world| world.alerts("REPORT_CONFLICT") == 1);
    assert_eq!((it.row(&id).0.as_str(), it.row(&id).1.as_str()), ("SENT", "DELIVERED"), "the first stands");
    it.report(&posted("m3", "SMS", "4100", "another-reference", 1_700_000_000));
    it.world.wait("another", |world| world.alerts("REPORT_CONFLICT") == 2);
    assert_eq!(it.world.count("SELECT count(*) FROM v_report WHERE fate = 'QUARANTINED'"), 2);
    let refused = "SELECT count(*) FROM onceward_once_quarantine
                    WHERE consumer = 'report-end:biz' AND reason = 'SAME_EVENT_OTHER_CONTENT' AND count = 1";
    assert_eq!(it.world.count(refused), 2, "by the very function that applications have");
    assert_eq!(it.world.count("SELECT count(*) FROM v_report WHERE fate = 'UNMATCHED'"), 2);
    for (body, status) in [("{", 400), ("[1]", 400), (r#"{"MSGID":"m"}"#, 400)] {
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            it.path(),
            body.len()
        );
        assert_eq!(it.raw(&request).0, status, "{body}");
    }
    let (_, shown, _) = it.world.onceward(&["show", "k"]);
    assert!(shown.contains("QUARANTINED") && shown.contains("4999"), "{shown}");
    agent.stop();
}

#[test]
fn f29_nine_thousand_reports_at_once() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=yes,report=no"]);
    let agent = it.world.agent();
    let ids: Vec<String> = (0..3).map(|number| it.error(&format!("k{number}"))).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..9 {
            let (it, ids) = (&it, &ids);
            scope.spawn(move || {
                let mut stream = TcpStream::connect(("127.0.0.1", it.port)).expect("it listens");
                let mut answer = [0u8; 4096];
                for number in 0..1_000 {
                    let reference = match number {
                        500 => ids[thread % 3].clone(),
                        _ => format!("ow-stranger-{thread}-{number}"),
                    };
                    // Every id is reported by three threads: each is another item.
                    let body =
                        posted(&format!("m{thread}-{number}"), "SMS", "4100", &reference, 1_700_000_000)
                            .to_string();
                    let request = format!(
                        "POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
                        it.path(),
                        body.len()
                    );
                    stream.write_all(request.as_bytes()).expect("written");
                    let count = stream.read(&mut answer).expect("answered");
                    assert!(
                        answer[..count].starts_with(b"HTTP/1.1 200"),
                        "{}",
                        String::from_utf8_lossy(&answer[..count])
                    );
                }
            });
        }
    });
    eprintln!("9,000 reports in {} ms", begun.elapsed().as_millis());
    assert_eq!(it.world.count("SELECT count(*) FROM report"), 9_000);
    for id in &ids {
        assert_eq!(it.row(id).1, "DELIVERED");
    }
    agent.stop();
}

#[test]
fn f29_polling_settles_and_a_poll_that_dies_between_store_and_confirm_repeats() {
    let it = Listening::with(r#"{ poll = "1s" }"#);
    it.world.faults(&["reset=read,accepted=yes,first=3", "report=twice"]);
    let mut agent = it.world.agent_with(&[("ONCEWARD_KILL_AT", "poller-before-confirm")]);
    agent.wait_log("ready:");
    let ids: Vec<String> = (0..3).map(|number| it.world.put(&format!("k{number}"), "biz", SMS)).collect();
    let ended = agent.wait_end();
    assert!(!ended.success());
    let stored = it.world.count("SELECT count(*) FROM report");
    assert!(stored >= 1, "it died after its commit");
    let agent = it.world.agent();
    let plain = it.world.put("plain", "biz", SMS);
    for id in ids.iter().chain([&plain]) {
        it.wait_row(id, "SENT", "DELIVERED");
        assert_eq!(it.world.arrivals(id), 1);
    }
    assert!(it.world.count("SELECT max(copies) FROM report") >= 2, "the same reports came again");
    // Confirmed: nothing comes any more.
    it.world.wait("all confirmed", |world| {
        let before = world.count("SELECT sum(copies) FROM report");
        std::thread::sleep(Duration::from_millis(1_500));
        world.count("SELECT sum(copies) FROM report") == before
    });
    agent.stop();
}

#[test]
fn f29_nine_thousand_polled_reports_come_in_full_lists() {
    let it = Listening::with(r#"{ poll = "1s" }"#);
    let text = std::fs::read_to_string(&it.world.config)
        .expect("settings")
        .replace("timeout = \"2s\"", "timeout = \"10s\"");
    std::fs::write(&it.world.config, text.replace("threads = 4", "threads = 8\nrate = \"5000/s\""))
        .expect("written");
    {
        let mut outbox = it.world.outbox();
        let tx = outbox.transaction().expect("a transaction");
        for number in 0..9_000 {
            tx.execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'T', 'biz', '01000000001', ?2)",
                [&format!("k{number}"), SMS],
            )
            .expect("inserted");
        }
        tx.commit().expect("committed");
    }
    let agent = it.world.agent();
    it.world.wait("all delivered", |world| {
        world.count("SELECT count(*) FROM inbox WHERE delivery = 'DELIVERED'") == 9_000
    });
    assert_eq!(it.world.count("SELECT count(*) FROM report"), 9_000);
    assert_eq!(it.world.sandbox.ledger().totals().duplicates, 0);
    agent.stop();
}

#[test]
fn f29_two_pollers_of_one_account_on_one_machine_are_refused_by_a_lock() {
    let it = Listening::with(r#"{ poll = "1s" }"#);
    let agent = it.world.agent();
    let id = it.world.put("k", "biz", SMS);
    it.wait_row(&id, "SENT", "DELIVERED");
    // Another state folder, the same account at the same vendor.
    let other = Listening::with(r#"{ poll = "1s" }"#);
    let text = std::fs::read_to_string(&other.world.config).expect("settings");
    let (mine, theirs) = (other.world.sandbox.addr().to_string(), it.world.sandbox.addr().to_string());
    std::fs::write(&other.world.config, text.replace(&mine, &theirs)).expect("written");
    let second = other.world.agent();
    second.wait_log("another process on this machine fetches this account's");
    agent.stop();
    // The lock went with the first; the second takes over.
    let id = other.world.put("k2", "biz", SMS);
    other.wait_row(&id, "SENT", "DELIVERED");
    second.stop();
}

#[test]
fn f29_one_account_polled_twice_in_one_file_is_a_settings_error() {
    let it = Listening::with(r#"{ poll = "1s" }"#);
    let text = std::fs::read_to_string(&it.world.config).expect("settings");
    let begin = text.find("[[destination]]\nname = \"biz\"").expect("the destination");
    let end = begin + text[begin..].find("[[route]]").expect("its end");
    let second = text[begin..end].replace("name = \"biz\"", "name = \"biz2\"");
    std::fs::write(&it.world.config, format!("{}{second}{}", &text[..end], &text[end..])).expect("written");
    let (code, _, said) = it.world.onceward(&["run"]);
    assert_eq!(code, 78, "{said}");
    assert!(
        said.contains("polls the reports of an account that another destination polls already"),
        "{said}"
    );
}

#[test]
fn a_person_settles_while_the_agent_runs_and_while_it_is_down() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,first=4"]);
    let agent = it.world.agent();
    let ids: Vec<String> = (0..4).map(|number| it.error(&format!("k{number}"))).collect();
    let settle = |id: &str, how: &[&str]| {
        let mut args = vec!["settle", id];
        args.extend(how);
        it.world.onceward(&args)
    };
    let (code, said, _) = settle(&ids[0], &["--sent", "--note", "they have it"]);
    assert_eq!(
        (code, it.row(&ids[0]).0.as_str(), it.row(&ids[0]).2.as_str()),
        (0, "SENT", "operator"),
        "{said}"
    );
    let (code, said, _) = settle("k0", &["--sent", "--note", "again"]);
    assert!(code == 0 && said.contains("already"), "{said}");
    let (code, said, _) = settle("k0", &["--failed", "--note", "no"]);
    assert!(code == 1 && said.contains("it is SENT"), "{said}");
    let (code, _, said) = settle("nobody", &["--failed", "--note", "no"]);
    assert_eq!(code, 66, "{said}");
    let (code, _, said) = settle("k1", &["--not-sent", "--note", "no"]);
    assert!(code == 64 && said.contains("--i-checked-the-vendor"), "{said}");
    let (code, _, said) = settle("k1", &["--sent", "--failed", "--note", "no"]);
    assert_eq!(code, 64, "{said}");
    // Not sent: the same row goes again, under the same id.
    let (code, said, _) =
        settle("k1", &["--not-sent", "--i-checked-the-vendor", "--note", "they never had it"]);
    assert_eq!(code, 0, "{said}");
    it.world.wait_inbox(&ids[1], "SENT");
    it.world.wait_outbox(&ids[1], "PUBLISHED");
    assert_eq!(it.world.arrivals(&ids[1]), 2, "once before the reset, once by order of a person");
    assert_eq!(it.world.count(&format!("SELECT count(*) FROM attempt WHERE message_id = '{}'", ids[1])), 2);
    let (code, said, _) = it.world.onceward(&["verify"]);
    assert!(code == 0 && said.contains("ERROR 1 (by retention, or proven not sent)"), "{said}");
    // The command and the API tell the same story, a person's verdict in it.
    let (_, said, _) = it.world.onceward(&["show", &ids[0], "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (shown["audit"][0]["note"].as_str(), shown["deeds"][0]["after"].as_str()),
        (Some("they have it"), Some("SENT")),
        "{said}"
    );
    for (name, value) in it.world.get(&format!("/v1/messages/{}", ids[0])).as_object().expect("an object") {
        if name != "vendor" {
            assert_eq!(&shown[name], value, "{name}");
        }
    }
    agent.stop();
    // Down: with its lock.
    let (code, said, _) = settle("k2", &["--failed", "--note", "they refused it"]);
    assert_eq!((code, it.row(&ids[2]).0.as_str()), (0, "FAILED"), "{said}");
    let (code, said, _) = settle("k3", &["--not-sent", "--i-checked-the-vendor", "--note", "never had it"]);
    assert_eq!((code, it.world.outbox_state(&ids[3]).0.as_str()), (0, "PENDING"), "{said}");
    assert_eq!(it.world.inbox_state(&ids[3]), None);
    let agent = it.world.agent();
    it.world.wait_inbox(&ids[3], "SENT");
    let audit = it
        .world
        .count("SELECT count(*) FROM audit WHERE who LIKE 'uid %' AND state_before = 'ERROR' AND note <> ''");
    assert_eq!(audit, 4, "one row for each verdict that was one");
    agent.stop();
}

/// A trace context that is none, put by plain SQL, is not dropped in silence either.
#[test]
fn every_call_whose_answer_is_not_known_counts_as_tried() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,first=2"]);
    let agent = it.world.agent();
    let id = it.error("k");
    let (code, said, _) =
        it.world.onceward(&["settle", "k", "--not-sent", "--i-checked-the-vendor", "--note", "never had it"]);
    assert_eq!(code, 0, "{said}");
    it.world.wait("called again", |world| world.arrivals(&id) == 2);
    it.world.wait_inbox(&id, "ERROR");
    it.world.outbox().execute("UPDATE outbox SET traceparent = 'bad'", []).expect("written");
    let (_, shown, _) = it.world.onceward(&["show", "k"]);
    assert!(shown.contains("tried: 2 calls whose answers are not known; no report"), "{shown}");
    assert!(shown.contains("bad (no W3C trace context"), "{shown}");
    agent.stop();
}

#[test]
fn not_sent_survives_a_death_between_the_two_files() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,first=1"]);
    let agent = it.world.agent();
    let id = it.error("k");
    agent.stop();
    // The first half alone, as a process that died right after its commit leaves it.
    it.world
        .inbox()
        .execute_batch(&format!(
            "BEGIN; DELETE FROM inbox WHERE message_id = '{id}';
             INSERT INTO rearm (consumer, message_id, times, by, at_ms) VALUES ('biz', '{id}', 1, 'operator', 1); COMMIT"
        ))
        .expect("written");
    let agent = it.world.agent();
    it.world.wait_inbox(&id, "SENT");
    it.world
        .wait("closed", |world| world.count("SELECT count(*) FROM rearm WHERE done_at_ms IS NOT NULL") == 1);
    assert_eq!(it.world.arrivals(&id), 2);
    // The note open again over a message that was sent: nothing happens.
    it.world.inbox().execute("UPDATE rearm SET done_at_ms = NULL", []).expect("written");
    agent.stop();
    let agent = it.world.agent();
    it.world
        .wait("closed", |world| world.count("SELECT count(*) FROM rearm WHERE done_at_ms IS NOT NULL") == 1);
    assert_eq!((it.world.arrivals(&id), it.world.outbox_state(&id).0.as_str()), (2, "PUBLISHED"));
    agent.stop();
}

#[test]
fn what_goes_again_takes_its_place_in_its_lane_and_not_by_hand() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=no,first=1"]);
    let put = |key: &str| {
        it.world
            .outbox()
            .execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, ordering_key)
                 VALUES (?1, 'T', 'biz', '01000000001', ?2, 'lane')",
                [key, SMS],
            )
            .expect("inserted");
        it.world
            .outbox()
            .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| {
                row.get::<_, String>(0)
            })
            .expect("it is there")
    };
    let agent = it.world.agent();
    let first = put("first");
    it.world.wait_inbox(&first, "ERROR");
    it.world.wait_outbox(&first, "PUBLISHED");
    agent.stop();
    let by_hand = it.world.outbox().execute("UPDATE outbox SET status = 'PENDING', closed_at_ms = NULL", []);
    assert!(by_hand.is_err_and(|error| error.to_string().contains("onceward settle ID --not-sent")));
    let (second, third) = (put("second"), put("third"));
    let (code, said, _) = it.world.onceward(&[
        "settle",
        "first",
        "--not-sent",
        "--i-checked-the-vendor",
        "--note",
        "never had it",
    ]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(it.world.count("SELECT count(*) FROM outbox WHERE status = 'PENDING' AND blocked = 1"), 2);
    let agent = it.world.agent();
    it.world.wait_inbox(&third, "SENT");
    let order: Vec<String> =
        it.world.sandbox.ledger().recent().into_iter().map(|one| one.reference).collect();
    assert_eq!(order, [first.clone(), first, second, third]);
    agent.stop();
}

#[test]
fn a_report_forbids_not_sent() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=yes,report=no"]);
    let agent = it.world.agent();
    let id = it.error("k");
    it.report(&posted("m1", "KAT", "7305", &id, 1_700_000_000));
    assert_eq!(it.row(&id).0, "ERROR", "the vendor itself is not sure");
    let (_, said, _) = it.world.onceward(&["show", "k", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(
        (shown["reports"][0]["code"].as_str(), shown["reports"][1].is_null()),
        (Some("7305"), true),
        "{said}"
    );
    let (code, said, _) =
        it.world.onceward(&["settle", "k", "--not-sent", "--i-checked-the-vendor", "--note", "I think so"]);
    assert!(code == 1 && said.contains("the vendor has it"), "{said}");
    assert_eq!(it.row(&id).0, "ERROR");
    agent.stop();
}

fn with_lookup(after: &str) -> Listening {
    let it = Listening::with_all(r#""off""#, "lookup = LOOKUP");
    let text = std::fs::read_to_string(&it.world.config).expect("settings");
    let lookup = format!(
        r#"{{ url = "http://{}/messages/{{message_id}}", accepted = {{ status = [200], json = "/state", equals = ["taken"] }}, never_received = {{ status = [404] }}, never_received_after = "{after}" }}"#,
        it.world.sandbox.addr()
    );
    std::fs::write(&it.world.config, text.replace("LOOKUP", &lookup)).expect("written");
    it
}

#[test]
fn a_look_up_settles_what_was_taken_and_sends_again_once_what_never_was() {
    let it = with_lookup("1s");
    it.world.faults(&["reset=read,accepted=yes,first=1", "reset=read,accepted=no"]);
    let agent = it.world.agent();
    let taken = it.world.put_plain("taken");
    it.world.wait_inbox(&taken, "ERROR");
    let never = it.world.put_plain("never");
    it.world.wait_inbox(&never, "ERROR");
    // The first asking comes 10 s after the ERROR.
    it.wait_row(&taken, "SENT", "");
    assert_eq!(it.row(&taken).2, "look-up");
    // Sent again, and lost again: now it is a person's.
    it.world.wait("sent again", |world| world.arrivals(&never) == 2);
    it.world.wait_inbox(&never, "ERROR");
    let next = "SELECT count(*) FROM inquiry WHERE next_at_ms IS NULL";
    it.world
        .inbox()
        .execute("UPDATE inquiry SET next_at_ms = 0 WHERE message_id = ?1", [&never])
        .expect("its next asking is now");
    it.world.wait("left to a person", |world| world.count(next) == 1);
    assert_eq!((it.world.arrivals(&never), it.row(&never).0.as_str()), (2, "ERROR"));
    assert_eq!(it.world.arrivals(&taken), 1);
    let (_, shown, _) = it.world.onceward(&["show", "never"]);
    assert!(shown.contains("ask the vendor") && shown.contains("look-up asked 2 times"), "{shown}");
    agent.stop();
}

#[test]
fn never_received_is_not_believed_too_early() {
    let it = with_lookup("1h");
    it.world.faults(&["reset=read,accepted=no"]);
    let agent = it.world.agent();
    let id = it.world.put_plain("k");
    it.world.wait_inbox(&id, "ERROR");
    // Old by the wall clock, e.g. after a jump: this process has known it for seconds only.
    it.world.inbox().execute("UPDATE inbox SET finished_at_ms = 1", []).expect("written");
    it.world.wait("asked", |world| world.count("SELECT count(*) FROM inquiry WHERE asked >= 1") == 1);
    assert_eq!((it.row(&id).0.as_str(), it.world.arrivals(&id)), ("ERROR", 1));
    let (_, shown, _) = it.world.onceward(&["show", "k"]);
    assert!(shown.contains("too early to be believed"), "{shown}");
    agent.stop();
}

#[test]
fn the_listener_refuses_from_the_head_and_bounds_everything() {
    let it = Listening::webhook();
    let agent = it.world.agent();
    let ours = format!("Host: 127.0.0.1:{}", it.port);
    let get = |path: &str, host: &str| {
        it.raw(&format!("GET {path} HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n"))
    };
    assert_eq!(get("/healthz", &ours), (200, "ok\n".into()));
    assert_eq!(get("/readyz", &ours), (200, "ready\n".into()));
    assert_eq!(get("/healthz", "Host: evil.example").0, 421);
    assert_eq!(get("/nothing", &ours).0, 404);
    // A body that never comes: the head is enough for an answer.
    let begun = Instant::now();
    for (head, status) in [
        (format!("POST /nothing HTTP/1.1\r\n{ours}\r\nContent-Length: 100\r\n\r\n"), 404),
        (format!("DELETE /healthz HTTP/1.1\r\n{ours}\r\nContent-Length: 100\r\n\r\n"), 405),
        (format!("OPTIONS {} HTTP/1.1\r\n{ours}\r\nOrigin: http://evil.example\r\n\r\n", it.path()), 405),
        (format!("POST /v1/messages/x/settle HTTP/1.1\r\n{ours}\r\nContent-Length: 100\r\n\r\n"), 401),
        (
            format!(
                "POST /v1/messages/x/settle HTTP/1.1\r\n{ours}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 99999\r\n\r\n"
            ),
            413,
        ),
        (format!("POST {} HTTP/1.1\r\n{ours}\r\nContent-Length: 99999999\r\n\r\n", it.path()), 413),
        (format!("POST {} HTTP/1.1\r\n{ours}\r\nTransfer-Encoding: chunked\r\n\r\n", it.path()), 411),
        (format!("GET /{} HTTP/1.1\r\n{ours}\r\n\r\n", "x".repeat(20_000)), 431),
        ("nonsense\r\n\r\n".into(), 400),
    ] {
        let (found, body) = it.raw(&head);
        assert_eq!(found, status, "{head:.80}");
        assert!(!body.contains("Access-Control"), "{body}");
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    for wrong in
        ["/v1/reports/biz/wrong", "/v1/reports/nobody/hook-secret-0123456789", "/v1/reports/gateway/x"]
    {
        assert_eq!(it.post(wrong, &json!({})), 404, "{wrong}");
    }
    assert_eq!(it.world.count("SELECT count(*) FROM report"), 0);
    // The socket needs no token: its file mode is the guard.
    let mut socket = UnixStream::connect(it.socket()).expect("it listens");
    let (status, body) = exchange(
        &mut socket,
        "POST /v1/messages/x/settle HTTP/1.1\r\nConnection: close\r\nContent-Length: 30\r\n\r\n{\"as\": \"sent\", \"note\": \"text\"}",
    );
    assert_eq!(status, 404, "{body}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(it.socket()).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    // More connections than there is room for do not hold up the rest, and a stop does not wait for idle ones.
    let idle: Vec<TcpStream> =
        (0..80).map(|_| TcpStream::connect(("127.0.0.1", it.port)).expect("connects")).collect();
    let mut socket = UnixStream::connect(it.socket()).expect("it listens");
    let (status, _) = exchange(&mut socket, "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 200, "strangers on the address keep nobody off the socket");
    let begun = Instant::now();
    agent.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(idle);
    assert!(!it.socket().exists(), "the socket goes with the agent");
}

#[test]
fn a_webhook_is_answered_503_while_the_inbox_cannot_be_written_and_the_repeat_is_taken() {
    let it = Listening::webhook();
    it.world.faults(&["reset=read,accepted=yes,report=no"]);
    let agent = it.world.agent_with(&[("ONCEWARD_FAIL_AT", "report-before-commit:1:1")]);
    agent.wait_log("ready:");
    let id = it.error("k");
    let report = posted("m1", "SMS", "4100", &id, 1_700_000_000);
    assert_eq!(it.post(&it.path(), &report), 503);
    assert_eq!(it.row(&id).0, "ERROR");
    it.report(&report);
    assert_eq!(it.row(&id).0, "SENT");
    agent.stop();
}

#[test]
fn a_call_that_may_still_be_under_way_is_not_settled_as_not_sent_and_its_answer_counts() {
    let world = World::new();
    world.faults(&["delay=1500ms,first=1"]);
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    let socket = world.dir.path().join("onceward.sock");
    std::fs::write(&world.config, format!("{settings}\n[listen]\nsocket = \"{}\"\n", socket.display()))
        .expect("written");
    let agent = world.agent();
    let id = world.put_plain("slow");
    world.wait_inbox(&id, "SENDING");
    // As the sweeper does to a call that takes too long.
    world
        .inbox()
        .execute(
            "UPDATE inbox SET status = 'ERROR', settled_by = 'sweeper', finished_at_ms = claimed_at_ms",
            [],
        )
        .expect("given up");
    let (code, said, error) =
        world.onceward(&["settle", &id, "--not-sent", "--i-checked-the-vendor", "--note", "none came"]);
    assert_eq!(code, 1, "{said}{error}");
    assert!(format!("{said}{error}").contains("may still be under way"), "{said}{error}");
    world.wait_inbox(&id, "SENT");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}
