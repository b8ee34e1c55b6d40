//! The rules seen from outside: hours, deadlines, consent, environment, sizes, numbers. With the real binary, whose
//! clock a debug build reads with an offset from a file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use onceward::vendor::client::{Client, ClientSettings, Exchange};

use crate::support::World;

const SMS: &str = r#"{"type":"sms","content":{"sms":{"message":"hello"}}}"#;

/// A clock that a test sets.
pub struct Clock {
    file: PathBuf,
}

impl Clock {
    /// Shows this wall time in Seoul, some days ahead: never before the build, whatever the real hour is.
    pub fn at(world: &World, days: i64, time: &str) -> Self {
        let clock = Self { file: world.dir.path().join("clock-offset") };
        clock.set(seoul(days, time));
        clock
    }
    pub fn set(&self, wall_ms: i64) {
        self.set_offset(wall_ms - real_ms());
    }
    pub fn set_offset(&self, offset_ms: i64) {
        // In one step: the agent must not read half a number.
        let new = self.file.with_extension("new");
        std::fs::write(&new, offset_ms.to_string()).expect("written");
        std::fs::rename(&new, &self.file).expect("renamed");
    }
    pub fn offset(&self) -> i64 {
        std::fs::read_to_string(&self.file).expect("reads").parse().expect("a number")
    }
    pub fn now_ms(&self) -> i64 {
        real_ms() + self.offset()
    }
    pub fn variable(&self) -> (&str, &str) {
        ("ONCEWARD_CLOCK_FILE", self.file.to_str().expect("utf-8"))
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's own clock")]
fn real_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    since.as_millis() as i64
}

/// A wall time in Seoul, so many days from today.
pub fn seoul(days: i64, time: &str) -> i64 {
    let zone = TimeZone::get("Asia/Seoul").expect("a zone");
    // One day for the whole test, also if midnight comes meanwhile.
    static TODAY: std::sync::OnceLock<jiff::civil::Date> = std::sync::OnceLock::new();
    let today = *TODAY.get_or_init(|| {
        let now = jiff::Timestamp::from_millisecond(real_ms()).expect("a time");
        now.to_zoned_datetime(zone.clone()).date()
    });
    let time: jiff::civil::Time = time.parse().expect("a time");
    let day = today.saturating_add(jiff::Span::new().days(days));
    day.to_datetime(time).to_zoned_datetime(zone).expect("exists").timestamp().as_millisecond()
}

/// A row that was written at the test's time.
pub fn put_at(world: &World, key: &str, class: &str, at_ms: i64, expires_at_ms: Option<i64>) -> String {
    let connection = world.outbox();
    connection
        .execute(
            "INSERT INTO outbox (dedup_key, kind, class, destination, recipient, payload, created_at_ms, not_before_ms, expires_at_ms)
             VALUES (?1, 'TEST', ?2, 'gateway', '01000000001', '{}', ?3, ?3, ?4)",
            rusqlite::params![key, class, at_ms, expires_at_ms],
        )
        .expect("the row is taken");
    connection
        .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| row.get(0))
        .expect("the row is there")
}

fn times(world: &World, id: &str) -> (i64, Option<i64>) {
    world
        .outbox()
        .query_row("SELECT not_before_ms, expires_at_ms FROM outbox WHERE message_id = ?1", [id], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .expect("the row is there")
}

fn in_agent_section(world: &World, lines: &str) {
    let text = std::fs::read_to_string(&world.config).expect("reads");
    std::fs::write(&world.config, text.replacen("[agent]\n", &format!("[agent]\n{lines}\n"), 1))
        .expect("written");
}

#[test]
fn advertising_moves_once_at_the_relay_s_cut_and_expires_when_its_last_day_is_over() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "20:45");
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms(), None);
    let tx = put_at(&world, "tx", "TRANSACTIONAL", clock.now_ms(), None);
    // The host's zone is another one than the setting's.
    let agent = world.agent_with(&[clock.variable(), ("TZ", "America/New_York")]);
    world.wait_inbox(&tx, "SENT");
    world.wait("moved", |world| times(world, &ad).0 == seoul(2, "08:00"));
    assert_eq!(
        world.outbox_state(&ad),
        ("PENDING".into(), 0, "WINDOW: advertising goes out from 08:00 to 20:50".into())
    );
    assert_eq!(times(&world, &ad).1, Some(seoul(2, "20:50")));
    let (_, shown, _) = world.onceward(&["show", &ad]);
    assert!(shown.contains(" 08:00:00+09:00, because of WINDOW") && shown.contains("waits until"), "{shown}");
    agent.stop();

    // The next day after the cut: its last day is over.
    clock.set(seoul(2, "20:41"));
    let agent = world.agent_with(&[clock.variable()]);
    world.wait_outbox(&ad, "EXPIRED");
    world.wait("alert", |world| world.alerts("EXPIRED") == 1);
    assert!(
        world.outbox_state(&ad).2.starts_with("WINDOW: its last day is over"),
        "{:?}",
        world.outbox_state(&ad)
    );
    assert_eq!(world.arrivals(&ad), 0);
    agent.stop();
}

#[test]
fn a_moved_message_goes_out_in_the_next_window() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "20:45");
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms(), None);
    let agent = world.agent_with(&[clock.variable()]);
    world.wait("moved", |world| times(world, &ad).0 == seoul(2, "08:00"));
    agent.stop();
    clock.set(seoul(2, "07:59:58"));
    let agent = world.agent_with(&[clock.variable()]);
    agent.wait_log("ready:");
    assert_eq!(world.arrivals(&ad), 0);
    world.wait_inbox(&ad, "SENT");
    assert!(clock.now_ms() >= seoul(2, "08:00"), "not before its opening");
    assert_eq!(world.arrivals(&ad), 1);
    agent.stop();
}

#[test]
fn a_call_that_would_begin_at_the_closing_does_not_and_costs_nothing() {
    let world = World::with("[class.ADVERTISING]\nrelay_until = \"20:50\"\n", "");
    let clock = Clock::at(&world, 1, "20:48:00");
    let go = world.dir.path().join("go");
    let ad = put_at(&world, "ad", "ADVERTISING", clock.now_ms(), None);
    let wait_at = format!("worker-after-claim:{}", go.display());
    let agent = world.agent_with(&[clock.variable(), ("ONCEWARD_WAIT_AT", &wait_at)]);
    world.wait_inbox(&ad, "SENDING");
    // The window closes while the worker holds its claim.
    clock.set(seoul(1, "20:50:00"));
    std::fs::write(&go, "").expect("written");
    world.wait("the claim is released", |world| world.inbox_state(&ad).is_none());
    world.wait_outbox(&ad, "PENDING");
    assert_eq!(times(&world, &ad), (seoul(2, "08:00"), Some(seoul(2, "20:50"))));
    assert_eq!(world.outbox_state(&ad).1, 0, "no attempt is used");
    assert_eq!((world.arrivals(&ad), world.count("SELECT count(*) FROM attempt")), (0, 0));
    agent.stop();
}

#[test]
fn the_first_byte_leaves_in_time_or_not_at_all() {
    let world = World::new();
    let client = Client::new(&ClientSettings {
        timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(2),
        keep_alive: Duration::from_secs(1),
        idle_max: 1,
        ca_file: None,
        proxy: None,
    })
    .expect("builds");
    let url = format!("http://{}/send", world.sandbox.addr());
    let post = |before| client.post_before(before, &url, &[("X-Reference", "r")], b"{}").0;
    // On a new connection, and on a kept one.
    for arrived in [0, 1] {
        let late = post(Some(Instant::now()));
        assert!(matches!(late, Exchange::NotSent { too_late: true, .. }), "{late:?}");
        assert_eq!(world.sandbox.ledger().totals().arrived, arrived);
        let early = post(Some(Instant::now() + Duration::from_secs(60)));
        assert!(matches!(early, Exchange::Answered(_)), "{early:?}");
    }
    assert_eq!(world.sandbox.ledger().totals().arrived, 2);
}

#[test]
fn a_deadline_that_passes_while_the_worker_waits_expires_the_row() {
    let world = World::new();
    let clock = Clock::at(&world, 1, "12:00");
    let go = world.dir.path().join("go");
    let id = put_at(&world, "otp", "TRANSACTIONAL", clock.now_ms(), Some(clock.now_ms() + 60_000));
    let wait_at = format!("worker-after-claim:{}", go.display());
    let agent = world.agent_with(&[clock.variable(), ("ONCEWARD_WAIT_AT", &wait_at)]);
    world.wait_inbox(&id, "SENDING");
    clock.set_offset(clock.offset() + 120_000);
    std::fs::write(&go, "").expect("written");
    world.wait_outbox(&id, "EXPIRED");
    world.wait("alert", |world| world.alerts("EXPIRED") == 1);
    assert_eq!((world.inbox_state(&id), world.arrivals(&id)), (None, 0));
    agent.stop();
}

#[test]
fn consent_is_looked_at_by_the_relay_and_again_right_before_the_call() {
    let world = World::new();
    let go = world.dir.path().join("go");
    // Withdrawn while the row waits: the relay skips it. Whatever the way of writing, also by an application's SQL.
    assert_eq!(
        world
            .onceward(&["suppress", "add", "+82 10-0000-0001", "--dest", "gateway", "--note", "phone call"])
            .0,
        0
    );
    let skipped = world.put_plain("skipped");
    let other = world.put("other destination", "biz", SMS);
    let (_, shown, _) = world.onceward(&["show", &skipped]);
    assert!(shown.contains("will be SKIPPED") && shown.contains("CONSENT"), "{shown}");
    let wait_at = format!("worker-before-claim:{}", go.display());
    let agent = world.agent_with(&[("ONCEWARD_WAIT_AT", &wait_at)]);
    world.wait_outbox(&skipped, "SKIPPED");
    assert_eq!(world.inbox_state(&skipped), None);
    assert!(
        world
            .outbox_state(&skipped)
            .2
            .starts_with("CONSENT: the recipient has opted out of destination gateway")
    );
    // Withdrawn between the worker's look and its call.
    world.wait_outbox(&other, "PUBLISHING");
    std::thread::sleep(Duration::from_millis(300));
    world
        .outbox()
        .execute("INSERT INTO suppress (recipient, channel) VALUES ('(010) 0000-0001', 'sms')", [])
        .expect("an application's own statement");
    std::fs::write(&go, "").expect("written");
    world.wait_outbox(&other, "SKIPPED");
    assert_eq!((world.inbox_state(&other), world.arrivals(&other)), (None, 0));
    assert_eq!(world.count("SELECT count(*) FROM attempt"), 0);

    // Listed without numbers, removed as it was added, and messages flow.
    let (_, listed, _) = world.onceward(&["suppress", "list"]);
    assert!(
        listed.contains("010****01") && listed.contains("phone call") && !listed.contains("01000000001"),
        "{listed}"
    );
    assert_eq!(world.onceward(&["suppress", "remove", "01000000001"]).0, 1, "there is none that covers all");
    assert_eq!(world.onceward(&["suppress", "remove", "01000000001", "--dest", "gateway"]).0, 0);
    assert_eq!(world.onceward(&["suppress", "remove", "01000000001", "--channel", "sms"]).0, 0);
    let id = world.put_plain("flows");
    world.wait_inbox(&id, "SENT");
    agent.stop();
}

#[test]
fn suppress_import_takes_lines_and_names_bad_ones() {
    let world = World::new();
    let file = world.dir.path().join("list.csv");
    std::fs::write(
        &file,
        "# from the shop\n010-1111-2222,2026-01-01\n1012345678\n\"+82 10 1111 2222\"\n+1 212 555 0100\n",
    )
    .expect("written");
    let (code, said, error) =
        world.onceward(&["suppress", "import", file.to_str().expect("utf-8"), "--class", "ADVERTISING"]);
    assert_eq!(code, 65, "{error}");
    assert_eq!(said, "2 added, 1 known already, 1 bad\n");
    assert!(error.contains("line 3: a number begins with 0") && !error.contains("1012345678"), "{error}");
    let (_, listed, _) = world.onceward(&["suppress", "list", "--reveal", "--json"]);
    assert!(listed.contains("\"01011112222\"") && listed.contains("\"+12125550100\""), "{listed}");
    assert_eq!(world.onceward(&["suppress", "remove", "010-1111-2222", "--class", "ADVERTISING"]).0, 0);
    let audit: Vec<String> = world
        .outbox()
        .prepare("SELECT verb || ' ' || state_after FROM audit WHERE who LIKE 'uid %' ORDER BY id")
        .and_then(|mut rows| rows.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    assert_eq!(audit, ["SUPPRESS_ADD 2 added", "SUPPRESS_REMOVE 1 removed"], "who did it, and no number");
    assert_eq!(world.onceward(&["suppress", "add", "010-1111-2222", "--dest", "nowhere"]).0, 65);
    assert_eq!(world.onceward(&["suppress", "import", "/nonexistent"]).0, 66);
}

#[test]
fn the_trigger_writes_numbers_as_the_rules_compare_them() {
    let world = World::new();
    let connection = world.outbox();
    for text in [
        "01000000001",
        "010-0000-0001",
        "+82 10-0000-0001",
        "+82(0)10.0000.0001",
        "00821000000001",
        "+1 (212) 555-0100",
        "store-1",
        "a.b@example.org",
    ] {
        connection.execute("DELETE FROM suppress", []).expect("deleted");
        for statement in ["INSERT INTO", "INSERT OR IGNORE INTO", "INSERT OR REPLACE INTO"] {
            connection
                .execute(&format!("{statement} suppress (recipient) VALUES (?1)"), [text])
                .or_else(|error| if statement == "INSERT INTO" { Err(error) } else { Ok(0) })
                .expect("taken");
        }
        let kept: Vec<String> = connection
            .prepare("SELECT recipient FROM suppress")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .expect("reads");
        assert_eq!(kept, [onceward::policy::number::canonical(text)], "{text}");
    }
}

#[test]
fn an_opt_out_by_sql_is_found_however_it_was_written_or_refused() {
    let world = World::new();
    let opt_out =
        |text: &str| world.outbox().execute("INSERT OR IGNORE INTO suppress (recipient) VALUES (?1)", [text]);
    let put = |key: &str, to: &str, payload: &str| {
        let sql = "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'TEST', 'biz', ?2, ?3)";
        world.outbox().execute(sql, [key, to, payload]).expect("taken");
        let find = "SELECT message_id FROM outbox WHERE dedup_key = ?1";
        world.outbox().query_row(find, [key], |row| row.get::<_, String>(0)).expect("it is there")
    };
    // What looks like a number and would never be found: the application is told.
    for text in [
        "010/0000/0009",
        "010–0000–0009",
        "０１０００００００９",
        "010-0000-0009\n",
        "010\u{a0}0000\u{a0}0009",
    ] {
        let refused = opt_out(text).expect_err(text).to_string();
        assert!(refused.contains("cannot be read") && !refused.contains("0009"), "{refused}");
    }
    let abroad = |code: &str| SMS.replacen('{', &format!(r#"{{"country":"{code}","#), 1);
    let mut skipped = Vec::new();
    for (number, (listed, to, payload)) in [
        ("82-10-0000-0011", "010-0000-0011", SMS.to_owned()),
        ("1000000012", "01000000012", SMS.to_owned()),
        ("+82 (0)10 0000 0013", "+82 10 0000 0013", SMS.to_owned()),
        ("+819000000014", "090-0000-0014", abroad("81")),
        ("+81 (0)90-0000-0015", "90-0000-0015", abroad("81")),
        ("0081 90 0000 0016", "+81 90 0000 0016", abroad("81")),
        ("+1 212 555 0117", "0012125550117", abroad("1")),
        ("12125550118", "212-555-0118", abroad("1")),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(opt_out(listed).expect("taken"), 1 - usize::from(kept_canonical(listed)));
        skipped.push(put(&format!("k{number}"), to, &payload));
    }
    let other = put("other", "090-0000-0019", &abroad("81"));
    let (_, shown, _) = world.onceward(&["show", &skipped[3]]);
    assert!(shown.contains("will be SKIPPED"), "{shown}");
    let agent = world.agent();
    for id in &skipped {
        world.wait_outbox(id, "SKIPPED");
        assert_eq!((world.inbox_state(id), world.arrivals(id)), (None, 0));
    }
    world.wait_inbox(&other, "SENT");
    // An escape in the field's name hides no country.
    assert_eq!(opt_out("+819000000020").expect("taken"), 1);
    let hidden = put("hidden", "090-0000-0020", &abroad("81").replacen("country", "c\\u006funtry", 1));
    world.wait_outbox(&hidden, "SKIPPED");
    // No edit makes an opt-out one that is never found.
    for edit in [
        "UPDATE suppress SET recipient = '010-0000-0021' WHERE recipient = '+819000000020'",
        "INSERT INTO suppress (recipient) VALUES ('+819000000020') ON CONFLICT (recipient, destination, channel, class) DO UPDATE SET recipient = '010-0000-0021'",
    ] {
        let refused = world.outbox().execute(edit, []).expect_err(edit).to_string();
        assert!(refused.contains("is not edited"), "{refused}");
    }
    // The command finds and removes what SQL wrote in another form.
    let (_, listed, _) = world.onceward(&["suppress", "list", "010-0000-0011", "--reveal"]);
    assert!(listed.contains("821000000011"), "{listed}");
    assert_eq!(world.onceward(&["suppress", "remove", "010-0000-0011"]).0, 0);
    let again = put("again", "010-0000-0011", SMS);
    world.wait_inbox(&again, "SENT");
    agent.stop();
}

/// Whether the trigger stores another text than it was given: then the statement itself inserts no row.
fn kept_canonical(text: &str) -> bool {
    onceward::policy::number::canonical(text) != text
}

#[test]
fn each_of_the_three_environment_checks_stops_a_message_alone() {
    for (checks, claimed) in [("relay", false), ("worker", false), ("call", true)] {
        let world = World::new();
        in_agent_section(&world, "environment = \"staging\"\nallowed_recipients = [\"010-0000-0002\"]");
        let customer = world.put_plain("customer");
        let agent = world.agent_with(&[("ONCEWARD_ENVIRONMENT_CHECKS", checks)]);
        world.wait_outbox(&customer, "SKIPPED");
        assert!(world.outbox_state(&customer).2.starts_with("ENVIRONMENT"), "{checks}");
        assert_eq!((world.arrivals(&customer), world.inbox_state(&customer)), (0, None), "{checks}");
        let (_, shown, _) = world.onceward(&["show", &customer]);
        assert!(shown.contains("SKIPPED") && shown.contains("allowed_recipients"), "{shown}");
        // Which of them it was: only the last look comes after the claim.
        assert_eq!(
            agent.log().contains("released dest=gateway before its call"),
            claimed,
            "{checks}: {}",
            agent.log()
        );
        if claimed {
            agent.wait_log("before its call: SKIPPED: ENVIRONMENT");
        }
        agent.stop();
    }
    // Without any of them it would go out: the switch of this test does what it says.
    let world = World::new();
    in_agent_section(&world, "environment = \"staging\"");
    let customer = world.put_plain("customer");
    let agent = world.agent_with(&[("ONCEWARD_ENVIRONMENT_CHECKS", "none")]);
    world.wait_inbox(&customer, "SENT");
    agent.stop();
    // And with all of them a listed recipient gets it, however it is written.
    let world = World::new();
    in_agent_section(&world, "environment = \"staging\"\nallowed_recipients = [\"+82 10 0000 0001\"]");
    let listed = world.put_plain("listed");
    let agent = world.agent();
    world.wait_inbox(&listed, "SENT");
    agent.stop();
}

#[test]
fn sizes_and_numbers_are_looked_at_when_a_message_is_put() {
    let world = World::new();
    let put = |key: &str, to: &str, payload: &str, more: &[&str]| {
        let mut args =
            vec!["enqueue", "--key", key, "--kind", "K", "--dest", "biz", "--to", to, "--payload", payload];
        args.extend(more);
        world.onceward(&args)
    };
    let sms = |text: &str| format!(r#"{{"type":"sms","content":{{"sms":{{"message":"{text}"}}}}}}"#);
    for (to, payload, more, expected) in [
        (
            "01000000001",
            sms(&"가".repeat(46)),
            &[][..],
            "payload: TOO_LONG: sms has 92 bytes, 90 are allowed",
        ),
        (
            "01000000001",
            sms(&format!("{}\\n", "a".repeat(89))),
            &[],
            "payload: TOO_LONG: sms has 91 bytes, 90 are allowed",
        ),
        ("01000000001", sms("😀"), &[], "payload: sms has U+1F600"),
        ("1000000001", sms("a"), &[], "recipient: a number in Korea begins with 0"),
        ("+44 20 0000 0000", sms("a"), &[], "recipient: "),
        ("01000000001", sms("a"), &["--not-before-ms", "1790000000"], "not_before_ms: is before 2001"),
        (
            "01000000001",
            sms("a"),
            &["--not-before-ms", "1790000000000000"],
            "not_before_ms: is after the year 5000; it takes milliseconds",
        ),
        (
            "01000000001",
            sms("a"),
            &["--not-before-ms", "2790000000000"],
            "not_before_ms: is more than 400 days ahead",
        ),
    ] {
        let (code, _, error) = put("bad", to, &payload, more);
        assert_eq!(code, 65, "{error}");
        assert!(error.contains(expected) && !error.contains(to), "{expected} in {error}");
    }
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 0);

    // One person has one form; the same event written otherwise is the same event.
    let (code, id, error) = put("ok", "+82 10-0000-0001", &sms("똠방각하"), &[]);
    assert_eq!(code, 0, "{error}");
    assert!(error.contains("1 character(s) outside EUC-KR proper"), "{error}");
    assert_eq!(put("ok", "010-0000-0001", &sms("똠방각하"), &[]), (0, id.clone(), error));
    let abroad = r#"{"type":"sms","country":"1","content":{"sms":{"message":"hi"}}}"#;
    assert_eq!(put("us", "212-555-0100", abroad, &[]).0, 0);
    let stored: Vec<String> = world
        .outbox()
        .prepare("SELECT recipient FROM outbox ORDER BY id")
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    assert_eq!(stored, ["01000000001", "+12125550100"]);
    let (_, shown, _) = world.onceward(&["show", id.trim()]);
    assert!(shown.contains("sms message 8 of 90 bytes, 1 character(s) outside"), "{shown}");

    // By SQL everything is taken, and the worker parks what it could never send, before any claim.
    let long = world.put("long", "biz", &sms(&"가".repeat(46)));
    let agent = world.agent();
    world.wait_outbox(&long, "PARKED");
    world.wait_inbox(id.trim(), "SENT");
    assert_eq!(world.inbox_state(&long), None);
    agent.stop();
}
