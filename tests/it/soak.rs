//! Thirty simulated days: the real agent, a vendor, producers and an operator, with retention far shorter than the time,
//! so that whatever grows without bound is seen to grow.
//!
//! The wall clock of agent and commands is moved a day ahead each night, now while the agent runs, now while it is down;
//! the monotonic clock goes on as it does. Each day has every kind of end: sent, rejected, unknown and settled by report or
//! by hand, refused at the door and tried again, parked and given up, expired, opted out, quarantined, from a source, in
//! lanes. Some nights the agent is stopped, some killed in the middle of its work.
//!
//! `ONCEWARD_SOAK_MESSAGES` is the number of messages a day; `--nocapture` shows the table. Without it the test is the short
//! one of CI: the same thirty days with few messages, and retention asked for every third evening only, since a running
//! agent takes some seconds until it hears of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use onceward::sandbox::{self, SandboxOptions};
use rusqlite::{Connection, params};

use crate::f_policy::Clock;
use crate::f_source;
use crate::support::{Agent, BIN, SOON, World, text};

const DAYS: i64 = 30;
/// Days from which on nothing may grow: two days of bodies and six of keys have gone by, and a restart or two.
const FLAT_FROM: i64 = 11;
/// The second half of the flat days, which is compared with the first.
const COMPARED_FROM: i64 = 21;
const DAY_MS: i64 = 86_400_000;
const SETTINGS: &str = r#"
[retry]
quick = { times = 2, every = "50ms" }
later = { times = 1, every = "100ms" }
[retention]
bodies = "2d"
keys = "6d"
[alert]
command = ["/bin/true"]
interval = "1s"
"#;
const SMS: &str = r#"{"type":"sms","content":{"sms":{"message":"soak"}}}"#;
const OPTED_OUT: &str = "01000009999";

struct Soak {
    world: World,
    clock: Clock,
    app: PathBuf,
    /// Evenings from one pass of retention to the next.
    purge_every: i64,
    /// Rows that the agent's own outbox and the source have accepted.
    accepted: (i64, i64),
}

impl Soak {
    fn new(purge_every: i64) -> Self {
        let mut world = World::with(SETTINGS, "");
        // The vendor that makes faults by recipient, and reports soon.
        let options = SandboxOptions {
            magic: true,
            report_delay: Duration::from_millis(20),
            ..SandboxOptions::default()
        };
        let vendor = sandbox::start(options).expect("the sandbox starts");
        let settings = std::fs::read_to_string(&world.config).expect("settings");
        let settings = settings
            .replace(&world.sandbox.addr().to_string(), &vendor.addr().to_string())
            .replace("from = \"0212345678\"\n", "from = \"0212345678\"\nreports = { poll = \"1s\" }\n");
        let socket = world.dir.path().join("s.sock");
        let settings = format!("{settings}\n[listen]\nsocket = \"{}\"\n", socket.display());
        std::fs::write(&world.config, settings).expect("settings are written");
        world.sandbox = vendor;
        let clock = Clock::at(&world, 1, "09:00");
        let app = f_source::app(&world, "shop", "wal");
        let soak = Self { world, clock, app, purge_every, accepted: (0, 0) };
        soak.command(&["source", "add", "shop", soak.app.to_str().expect("UTF-8")], &[0]);
        soak.command(&["suppress", "add", OPTED_OUT], &[0]);
        soak
    }

    fn start(&self) -> Agent {
        let settle = ("ONCEWARD_CLOCK_SETTLE_MS", "100");
        let agent = self.world.agent_with(&[self.clock.variable(), settle]);
        agent.wait_log("ready:");
        agent
    }

    #[track_caller]
    fn command(&self, args: &[&str], codes: &[i32]) -> String {
        let (name, value) = self.clock.variable();
        let output = Command::new(BIN)
            .arg("--config")
            .arg(&self.world.config)
            .args(args)
            .env(name, value)
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        let (code, out, error) = text(&output);
        assert!(codes.contains(&code), "{args:?}: {code}\n{out}{error}");
        out
    }

    fn put(&mut self, day: i64, number: usize, row: &Row<'_>) {
        let now_ms = self.clock.now_ms();
        let connection = if row.of_source { open(&self.app) } else { self.world.outbox() };
        let done = connection
            .execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, ordering_key, created_at_ms, not_before_ms, expires_at_ms)
                 VALUES (?1, 'SOAK', ?2, ?3, ?4, ?5, ?6, ?6, ?7) ON CONFLICT (dedup_key) DO NOTHING",
                params![
                    format!("day{day}:{number}"),
                    row.destination,
                    row.recipient,
                    row.payload,
                    row.lane,
                    now_ms,
                    row.expired.then_some(now_ms - 1)
                ],
            )
            .expect("the row is taken");
        assert_eq!(done, 1, "new");
        *(if row.of_source { &mut self.accepted.1 } else { &mut self.accepted.0 }) += 1;
    }

    /// One day's messages.
    fn day(&mut self, day: i64, messages: usize) {
        for number in 0..messages {
            let biz = Row { destination: "biz", payload: SMS, ..Row::plain() };
            let ending = |ending| Row { recipient: ending, ..biz };
            let row = match number % 20 {
                // One of each on a day: the destination waits a second after it.
                2 if number < 20 && day % 3 == 1 => ending("01000000429"),
                3 if number < 20 => ending("01000000401"),
                0 => ending("01000000500"),
                1 => ending("01000000400"),
                4 => ending("01000000503"),
                5 => ending("01000000410"),
                6 => ending("01000000411"),
                7 => ending("01000000413"),
                8 | 9 => Row { of_source: true, ..Row::plain() },
                10 => Row { expired: true, ..Row::plain() },
                11 => Row { recipient: OPTED_OUT, ..Row::plain() },
                12 => Row { destination: "biz", ..Row::plain() },
                13 | 14 => Row { lane: Some("lane"), ..Row::plain() },
                other if other % 2 == 0 => ending("01000001234"),
                _ => Row::plain(),
            };
            self.put(day, number, &row);
        }
        // Other content under a known key.
        let shop = self.world.outbox();
        for number in [15, 17] {
            shop.execute(
                "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES (?1, 'SOAK', '01000001234', '{\"y\":2}')
                 ON CONFLICT (dedup_key) DO NOTHING",
                [format!("day{day}:{number}")],
            )
            .expect("kept in quarantine");
        }
    }

    fn one(&self, path: &Path, sql: &str) -> i64 {
        open(path).query_row(sql, [], |row| row.get(0)).expect("counts")
    }

    /// Until every message of the day has an end.
    #[track_caller]
    fn rest(&self) {
        const MOVING: &str = "SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')";
        let outbox = self.world.outbox_path();
        self.world.wait("every message has an end", |_| {
            self.one(&outbox, MOVING) == 0
                && self.one(&self.app, MOVING) == 0
                && self.one(&self.world.inbox_path(), "SELECT count(*) FROM inbox WHERE status = 'SENDING'")
                    == 0
        });
    }

    /// What an operator does in the evening: every ERROR and every parked message gets its end, and retention is asked for.
    fn evening(&self, day: i64) {
        let errors: Vec<String> = self
            .world
            .inbox()
            .prepare("SELECT message_id FROM inbox WHERE status = 'ERROR'")
            .and_then(|mut rows| rows.query_map([], |row| row.get(0))?.collect())
            .expect("reads");
        for (number, id) in errors.iter().enumerate() {
            // 1: a report was faster. 66: it is in the source.
            let verdict = if number % 2 == 0 { "--failed" } else { "--sent" };
            self.command(&["settle", id, verdict, "--note", "the vendor said so"], &[0, 1, 66]);
        }
        self.command(&["cancel", "ALL", "--state", "PARKED", "--note", "cannot be sent"], &[0]);
        if day % self.purge_every == 0 {
            self.command(&["purge"], &[0]);
        }
        let said = self.command(&["verify"], &[0]);
        assert!(!said.contains("DISAGREE"), "day {day}: {said}");
    }

    /// Everything that could grow.
    fn sample(&self, agent: &Agent) -> Sample {
        let mut sample = Sample::new();
        let process = PathBuf::from(format!("/proc/{}", agent.pid()));
        let of_process = |name: &str| std::fs::read_dir(process.join(name)).expect("lists").count() as i64;
        sample.insert("descriptors".into(), of_process("fd"));
        sample.insert("threads".into(), of_process("task"));
        let status = std::fs::read_to_string(process.join("status")).expect("reads");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
        let kib = resident.trim().trim_end_matches(" kB").parse().expect("a number");
        sample.insert("memory KiB".into(), kib);
        let state = self.world.dir.path().join("state");
        for folder in [state.join("outbox"), state.join("inbox"), self.world.dir.path().join("state-witness")]
        {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let bytes = entry.metadata().map_or(0, |file| file.len()) as i64;
                sample.insert(format!("file {}", entry.file_name().display()), bytes);
            }
        }
        for (name, path) in [
            ("outbox", self.world.outbox_path()),
            ("inbox", self.world.inbox_path()),
            ("shop", self.app.clone()),
        ] {
            if name == "shop" {
                for suffix in ["", "-wal"] {
                    let bytes =
                        std::fs::metadata(format!("{}{suffix}", path.display())).map_or(0, |file| file.len());
                    sample.insert(format!("file shop.db{suffix}"), bytes as i64);
                }
            }
            let connection = open(&path);
            let tables: Vec<String> = connection
                .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
                .and_then(|mut rows| rows.query_map([], |row| row.get(0))?.collect())
                .expect("reads");
            for table in tables {
                let rows = self.one(&path, &format!("SELECT count(*) FROM {table}"));
                sample.insert(format!("rows {name}.{table}"), rows);
            }
        }
        sample
    }

    /// Nothing reached the vendor that has no record here. For the rows of this day, whose keys are still there.
    fn recorded(&self, day: i64) {
        for path in [self.world.outbox_path(), self.app.clone()] {
            let ids: Vec<(String, String)> = open(&path)
                .prepare("SELECT message_id, status FROM outbox WHERE dedup_key LIKE ?1")
                .and_then(|mut rows| {
                    rows.query_map([format!("day{day}:%")], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
                })
                .expect("reads");
            assert!(!ids.is_empty());
            for (id, status) in ids {
                let arrived = self.world.arrivals(&id);
                let known = self.world.inbox_state(&id).is_some();
                assert_eq!(status == "PUBLISHED", known, "{id} is {status}");
                assert!(
                    known || arrived == 0 || status == "FAILED",
                    "{id} is {status} and arrived {arrived} times"
                );
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Row<'r> {
    destination: &'r str,
    recipient: &'r str,
    payload: &'r str,
    lane: Option<&'r str>,
    expired: bool,
    of_source: bool,
}

impl Row<'_> {
    fn plain() -> Self {
        Row {
            destination: "gateway",
            recipient: "01000001234",
            payload: r#"{"x":1}"#,
            lane: None,
            expired: false,
            of_source: false,
        }
    }
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("the file opens");
    connection.busy_timeout(SOON).expect("timeout is set");
    connection
}

/// By name: a count, bytes or KiB.
type Sample = BTreeMap<String, i64>;

/// What may stand above the first flat days: what a day more or less of noise makes, never what thirty days would.
fn slack(name: &str, before: i64) -> i64 {
    match name {
        // Idle connections and readers come and go.
        "descriptors" => 6,
        "threads" => 2,
        // The allocator's pages; a leak of a KiB a message would be ten times that in the short run.
        "memory KiB" => before / 10 + 1_024,
        // A log is cut back when its readers have gone; it is bounded by itself (see `flat`).
        name if name.ends_with("-wal") || name.ends_with("-shm") => i64::MAX,
        name if name.starts_with("file ") => before / 10 + 64 * 1_024,
        // Rows: the nights on which the agent is killed leave some more of one kind.
        _ => before / 20 + 4,
    }
}

fn most<'s>(samples: &'s [Sample], days: std::ops::RangeInclusive<i64>, name: &str) -> i64 {
    let of_day = |day: i64| -> &'s Sample { &samples[day as usize - 1] };
    days.filter_map(|day| of_day(day).get(name)).max().copied().unwrap_or(0)
}

fn flat(samples: &[Sample]) {
    let names: std::collections::BTreeSet<&String> =
        samples.iter().flat_map(|sample| sample.keys()).collect();
    let mut grown = Vec::new();
    for name in names {
        let before = most(samples, FLAT_FROM..=COMPARED_FROM - 1, name);
        let after = most(samples, COMPARED_FROM..=DAYS, name);
        if after > before.saturating_add(slack(name, before)) {
            grown.push(format!(
                "{name}: at most {before} on days {FLAT_FROM} to {}, then {after}",
                COMPARED_FROM - 1
            ));
        }
        if name.ends_with("-wal") {
            // WAL_FRAMES_PINNED pages, twice.
            assert!(after <= 2 * 4_000 * 4_152, "{name}: {after} bytes");
        }
    }
    assert!(grown.is_empty(), "what should be flat grows:\n{}", grown.join("\n"));
}

const SHOWN: [&str; 14] = [
    "descriptors",
    "threads",
    "memory KiB",
    "file outbox.db",
    "file outbox.db-wal",
    "file inbox.db",
    "file inbox.db-wal",
    "file shop.db",
    "rows outbox.outbox",
    "rows inbox.inbox",
    "rows inbox.attempt",
    "rows inbox.report",
    "rows inbox.audit",
    "rows inbox.alert",
];

#[test]
#[should_panic(expected = "rows inbox.report: at most 20 on days 11 to 20, then 30")]
fn soak_sees_one_row_more_each_day() {
    flat(&(1..=DAYS).map(|day| Sample::from([("rows inbox.report".into(), day)])).collect::<Vec<_>>());
}

#[test]
fn soak_thirty_days_leave_descriptors_memory_files_and_tables_flat() {
    let long = std::env::var("ONCEWARD_SOAK_MESSAGES").ok().and_then(|text| text.parse().ok());
    let messages = long.unwrap_or(40);
    let mut soak = Soak::new(if long.is_some() { 1 } else { 3 });
    let mut agent = Some(soak.start());
    let mut samples: Vec<Sample> = Vec::new();
    println!("{messages} messages a day\nday | seconds | {}", SHOWN.join(" | "));
    for day in 1..=DAYS {
        let begun = Instant::now();
        soak.day(day, messages);
        if day % 7 == 4 {
            // In the middle of the day's work, the hard way.
            let before = soak.world.sandbox.ledger().totals().arrived;
            soak.world.sandbox.ledger().wait_total(before + 5, SOON);
            agent.take().expect("it runs").kill9();
            agent = Some(soak.start());
        }
        soak.rest();
        soak.evening(day);
        soak.recorded(day);
        let running = agent.as_ref().expect("it runs");
        let sample = soak.sample(running);
        let figures: Vec<String> =
            SHOWN.iter().map(|name| sample.get(*name).copied().unwrap_or(0).to_string()).collect();
        println!("{day} | {} | {}", begun.elapsed().as_secs(), figures.join(" | "));
        samples.push(sample);
        let night = soak.clock.offset() + DAY_MS;
        if day % 7 == 0 {
            // Down over night: the next start finds itself a day later.
            agent.take().expect("it runs").stop();
            soak.clock.set_offset(night);
            agent = Some(soak.start());
        } else {
            soak.clock.set_offset(night);
        }
    }
    agent.take().expect("it runs").stop();

    let totals = soak.world.sandbox.ledger().totals();
    println!("{} accepted, {} in the source; the vendor: {totals:?}", soak.accepted.0, soak.accepted.1);
    assert_eq!(totals.duplicates, 0, "sent twice");
    let outbox = soak.world.outbox_path();
    const ACCEPTED: &str = "SELECT count FROM outbox_ledger WHERE what = 'ACCEPTED'";
    assert_eq!((soak.one(&outbox, ACCEPTED), soak.one(&soak.app, ACCEPTED)), soak.accepted);
    assert!(soak.one(&outbox, "SELECT count(*) FROM outbox") < soak.accepted.0 / 3, "retention was at work");
    flat(&samples);
}
