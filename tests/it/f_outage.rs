//! F21: the vendor is down for three days while business goes on, then it is back.
//!
//! Three days *pass* here, they are no leap: both clocks of the agent, the wall's and the monotonic one, go ahead
//! together (`ONCEWARD_PASSED_FILE`), as on a machine that is up all the time. So the pauses between probes, leases and
//! ageing run as they would, and `clock/trust.rs` sees nothing odd. Twice the machine is off for some hours: then only
//! the wall clock is ahead at the next start, as after any night. What the clock's own leaps do is F20 (`f_clock.rs`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

use crate::f_policy::{Clock, seoul};
use crate::support::{Agent, SOON, World};

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
/// Between two looks at business: longer than any pause between probes, shorter than what is left of a lease.
const STEP: i64 = 10 * MINUTE;
/// Calls a second once it is back.
const RATE: usize = 500;
/// Hand-offs under way at most (4 workers, see `relay.rs`): how far the order of calls can differ from that of claims,
/// but for a worker that the machine holds up.
const WINDOW: usize = 4 * 12 + 50;

/// Rows of the outage: `ONCEWARD_F21_ROWS=100000 cargo nextest run f21_three_days` is the long run.
fn rows() -> usize {
    std::env::var("ONCEWARD_F21_ROWS").ok().and_then(|text| text.parse().ok()).unwrap_or(12_000)
}

/// A vendor that refuses connections, an agent whose time a test lets pass, and a producer that goes on.
struct Outage {
    world: World,
    clock: Clock,
    producer: Connection,
    passed: std::path::PathBuf,
    passed_ms: i64,
    written: usize,
}

impl Outage {
    fn new() -> Self {
        let world = World::with("", &format!("rate = \"{RATE}/s\""));
        world.sandbox.refuse(true);
        let clock = Clock::at(&world, 1, "09:00");
        let (producer, passed) = (world.outbox(), world.dir.path().join("passed"));
        Self { world, clock, producer, passed, passed_ms: 0, written: 0 }
    }

    fn agent(&self) -> Agent {
        let passed = self.passed.to_str().expect("utf-8");
        let agent = self.world.agent_with(&[self.clock.variable(), ("ONCEWARD_PASSED_FILE", passed)]);
        agent.wait_log("ready:");
        agent
    }

    fn now_ms(&self) -> i64 {
        self.clock.now_ms() + self.passed_ms
    }

    /// Both clocks of a running agent go on.
    fn pass(&mut self, span_ms: i64) {
        self.passed_ms += span_ms;
        let new = self.passed.with_extension("new");
        std::fs::write(&new, self.passed_ms.to_string()).expect("written");
        std::fs::rename(&new, &self.passed).expect("renamed");
    }

    /// Business: so many messages, written now, in one commit (which rings the relay).
    fn write(&mut self, count: usize) {
        let now_ms = self.now_ms();
        let tx = self.producer.transaction().expect("begins");
        for _ in 0..count {
            let key = format!("row:{}", self.written);
            tx.prepare_cached(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, created_at_ms, not_before_ms)
                 VALUES (?1, 'TEST', 'gateway', '01000000001', '{}', ?2, ?2)",
            )
            .and_then(|mut insert| insert.execute(params![key, now_ms]))
            .expect("taken");
            self.written += 1;
        }
        tx.commit().expect("committed");
    }

    /// One message that the test looks at again; its id.
    fn put(&self, key: &str, class: &str, priority: u8, expires_at_ms: Option<i64>) -> String {
        self.producer
            .execute(
                "INSERT INTO outbox (dedup_key, kind, class, destination, recipient, payload, priority, created_at_ms, not_before_ms, expires_at_ms)
                 VALUES (?1, 'TEST', ?2, 'gateway', '01000000001', '{}', ?3, ?4, ?4, ?5)",
                params![key, class, priority, self.now_ms(), expires_at_ms],
            )
            .expect("taken");
        self.producer
            .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| row.get(0))
            .expect("there")
    }

    fn probes(&self) -> i64 {
        self.world.count("SELECT count(*) FROM attempt")
    }

    /// The next probe has come and gone: never two.
    #[track_caller]
    fn one_more_probe(&self, agent: &Agent, before: i64) {
        let end = Instant::now() + SOON;
        while self.probes() <= before {
            assert!(Instant::now() < end, "no probe at {}:\n{}", self.now_ms(), agent.log());
            std::thread::sleep(Duration::from_millis(3));
        }
        self.world.wait("the probe's row waits again", |world| {
            world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHING'") == 0
        });
        assert_eq!(self.probes(), before + 1, "one probe at a time");
    }

    /// Nothing has ended by the outage, and no attempt was used.
    #[track_caller]
    fn nothing_is_lost_by_it(&self, expired: i64) {
        let count = |what: &str| self.world.count(&format!("SELECT count(*) FROM outbox WHERE {what}"));
        assert_eq!(count("status NOT IN ('PENDING', 'EXPIRED')"), 0);
        assert_eq!(count("status = 'EXPIRED'"), expired);
        assert_eq!(count("status = 'PENDING' AND attempts > 0"), 0, "attempts were used up");
        assert_eq!(self.world.count("SELECT count(*) FROM inbox"), 0, "no claim is left behind");
    }
}

/// Before the first pause is over until it has its longest: 1 s, 2 s, 4 s .. 60 s, 60 s.
fn pauses_grow_to_the_cap(outage: &mut Outage) {
    let begun = outage.probes();
    assert!((1..=4).contains(&begun), "{begun} calls were under way when it closed");
    while outage.probes() < begun + 8 {
        outage.pass(SECOND);
        outage.write(1);
        std::thread::sleep(Duration::from_millis(5));
    }
    let inbox = outage.world.inbox();
    let mut statement = inbox.prepare("SELECT started_at_ms FROM attempt ORDER BY id").expect("prepared");
    let at: Vec<i64> =
        statement.query_map([], |row| row.get(0)).expect("reads").map(|row| row.expect("a time")).collect();
    let pauses: Vec<i64> = at.windows(2).skip(begun as usize - 1).map(|pair| pair[1] - pair[0]).collect();
    for (pause, least) in pauses.iter().zip([1, 2, 4, 8, 16, 32, 60, 60]) {
        // A stamp is cut to the millisecond.
        assert!(*pause >= least * SECOND - 1, "{pauses:?} between probes");
    }
    outage.world.wait("the longest pause is noted", |world| {
        world.count("SELECT pause_ms FROM destination WHERE name = 'gateway'") == 60 * SECOND
    });
}

/// The ids of the inbox's rows in the order of their claims, with their rank.
fn ranks(world: &World) -> HashMap<String, usize> {
    let inbox = world.inbox();
    let mut statement = inbox.prepare("SELECT message_id FROM inbox ORDER BY id").expect("prepared");
    let rows = statement.query_map([], |row| row.get(0)).expect("reads");
    rows.enumerate().map(|(rank, id)| (id.expect("an id"), rank)).collect()
}

/// No second had more calls than the rate has: each of the four workers may be a call late, no more.
fn in_the_set_rate(world: &World) {
    let inbox = world.inbox();
    let mut statement = inbox
        .prepare("SELECT started_at_ms FROM attempt WHERE outcome = 'ACCEPTED' ORDER BY started_at_ms")
        .expect("prepared");
    let at: Vec<i64> =
        statement.query_map([], |row| row.get(0)).expect("reads").map(|row| row.expect("a time")).collect();
    let most = RATE + 4 + 2;
    let crowded = at.windows(most + 1).find(|span| span[most] - span[0] < SECOND);
    assert!(crowded.is_none(), "more than {most} calls within a second");
}

#[test]
fn f21_three_days_without_the_vendor_and_then_everything_goes_out_oldest_first() {
    let mut outage = Outage::new();
    // Twelve hours of the three days the machine is off.
    let each = rows() / (60 * HOUR / STEP) as usize;
    outage.write(each);
    let mut agent = outage.agent();
    agent.wait_log("DESTINATION_CLOSED");
    outage.world.wait("calls under way are over", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHING'") == 0
    });
    pauses_grow_to_the_cap(&mut outage);

    let mut plan = std::collections::VecDeque::from([
        (seoul(1, "09:20"), "urgent"),
        (seoul(1, "11:00"), "deadlines"),
        (seoul(1, "14:00"), "advertising of the first day"),
        (seoul(2, "10:00"), "stop"),
        (seoul(2, "20:00"), "late urgent"),
        (seoul(3, "12:00"), "power cut"),
        (seoul(3, "22:00"), "advertising of the last night"),
    ]);
    let mut kept: HashMap<&str, String> = HashMap::new();
    let back_ms = seoul(4, "09:00");
    while outage.now_ms() < back_ms {
        let before = outage.probes();
        match plan.pop_front_if(|(at_ms, _)| *at_ms <= outage.now_ms()).map(|(_, what)| what) {
            None => {}
            Some("deadlines") => {
                let end_ms = outage.now_ms() + 24 * HOUR;
                kept.insert("too late", outage.put("too late", "TRANSACTIONAL", 5, Some(end_ms)));
                kept.insert("in time", outage.put("in time", "TRANSACTIONAL", 5, Some(back_ms + 24 * HOUR)));
            }
            Some(what @ ("stop" | "power cut")) => {
                if what == "stop" {
                    agent.stop()
                } else {
                    agent.kill9()
                }
                outage.clock.set_offset(outage.clock.offset() + 6 * HOUR);
                agent = outage.agent();
                outage.one_more_probe(&agent, before); // at once: a start is often the repair
                continue;
            }
            Some(key) => {
                let (class, priority) = match key {
                    "urgent" | "late urgent" => ("TRANSACTIONAL", 0),
                    _ => ("ADVERTISING", 5),
                };
                kept.insert(key, outage.put(key, class, priority, None));
            }
        }
        outage.pass(STEP);
        outage.write(each);
        outage.one_more_probe(&agent, before);
    }
    assert!(plan.is_empty(), "{plan:?}");
    outage.world.wait_outbox(&kept["too late"], "EXPIRED");
    outage.nothing_is_lost_by_it(1);
    outage.world.wait("the alert", |world| world.alerts("EXPIRED") == 1);
    assert_eq!(outage.world.alerts("PARKED"), 0);
    assert_eq!(outage.world.alerts("DESTINATION_CLOSED"), 1, "told once");
    assert!(!agent.log().contains("leapt"), "time passed, nothing leapt:\n{}", agent.log());

    // Back: the next probe finds it, and everything flows.
    let begun = Instant::now();
    outage.world.sandbox.refuse(false);
    outage.pass(MINUTE + SECOND);
    outage.write(1);
    // All but the one past its deadline, and the advertising whose own day is over: that is its class's deadline.
    let due = outage.written as i64 + 4;
    let end = Instant::now() + Duration::from_secs(60) + Duration::from_secs(due as u64 * 5 / RATE as u64);
    let world = &outage.world;
    while world.count("SELECT count(*) FROM outbox WHERE closed_at_ms IS NULL") > 0 {
        assert!(Instant::now() < end, "not all went out:\n{}", world.onceward(&["status"]).1);
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{due} messages in {:.1} s at {RATE} a second at most", begun.elapsed().as_secs_f64());
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"), due);
    assert_eq!(world.count("SELECT count(*) FROM inbox"), due);
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'"), due);
    let totals = world.sandbox.ledger().totals();
    assert_eq!((totals.arrived as i64, totals.references as i64, totals.repeated), (due, due, 0));
    in_the_set_rate(world);

    let ranks = ranks(world);
    let file = world.outbox();
    let old = rows_in_order(&file);
    let late = old.iter().enumerate().filter(|(place, (id, _))| ranks[id] > place + WINDOW + 3).count();
    assert!(late <= 16, "{late} rows went out late in the order of their age");
    assert!(ranks[&kept["urgent"]] <= WINDOW, "the urgent one was number {}", ranks[&kept["urgent"]]);
    // Urgency is worth fifty minutes of waiting, not a day of it.
    let late_ms: i64 = file
        .query_row("SELECT not_before_ms FROM outbox WHERE dedup_key = 'late urgent'", [], |row| row.get(0))
        .expect("there");
    let older = old.iter().filter(|(_, due_ms)| *due_ms < late_ms - HOUR).count();
    let younger = old.iter().filter(|(_, due_ms)| *due_ms < late_ms - 30 * MINUTE).count();
    let rank = ranks[&kept["late urgent"]];
    assert!(rank + WINDOW >= older && rank <= younger + WINDOW, "{rank} is not in {older}..{younger}");
    let first_day = world.outbox_state(&kept["advertising of the first day"]);
    assert!(first_day.0 == "EXPIRED" && first_day.2.contains("has passed"), "{first_day:?}");
    agent.stop();
}

/// Plain rows in the order in which they should go: by due time, then by arrival.
fn rows_in_order(file: &Connection) -> Vec<(String, i64)> {
    let mut statement = file
        .prepare("SELECT message_id, not_before_ms FROM outbox WHERE dedup_key LIKE 'row:%' ORDER BY not_before_ms, id")
        .expect("prepared");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("reads");
    rows.map(|row| row.expect("a row")).collect()
}
