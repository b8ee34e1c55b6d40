//! `once` against real processes that are killed, and a broker that delivers at least once.
//!
//! The workers are the consumer of `examples/points.rs`, run as children of this test binary. The broker is
//! this process: it counts acknowledgements itself. Balance, ledger, outbox and acknowledgements are counted
//! apart, since each can be wrong alone. Every case runs in a write-ahead and in a rollback journal.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use onceward::once;
use rusqlite::Connection;

#[path = "../examples/points.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod points;

use points::{Answer, Booked, Delivery};

const JOURNALS: [&str; 4] = ["WAL", "DELETE", "TRUNCATE", "PERSIST"];
const SOON: Duration = Duration::from_secs(30);

/// The worker's process. Run as any other test it works off whatever is on the standard input: nothing.
#[test]
fn worker_process() {
    let setting = |name: &str| std::env::var(format!("POINTS_{name}")).ok();
    let throw_away = tempfile::tempdir().expect("a folder");
    let file =
        setting("FILE").unwrap_or_else(|| throw_away.path().join("app.db").to_string_lossy().into_owned());
    let busy = Duration::from_millis(setting("BUSY_MS").map_or(0, |text| text.parse().expect("a number")));
    let mut connection =
        points::open(&file, &setting("JOURNAL").unwrap_or("WAL".into()), busy).expect("it opens");
    let consumer = setting("CONSUMER").unwrap_or("points".into());
    println!(); // libtest leaves its line open
    let child = setting("FILE").is_some();
    let input: Box<dyn BufRead> =
        if child { Box::new(std::io::stdin().lock()) } else { Box::new(std::io::empty()) };
    points::work(&mut connection, &consumer, input, std::io::stdout().lock()).expect("it works");
    if !child {
        let balance: i64 =
            connection.query_row("SELECT count(*) FROM ledger", [], |row| row.get(0)).expect("counts");
        assert_eq!(balance, 0, "nothing was delivered");
    }
}

/// An application's file, and the broker's own counts.
struct World {
    dir: tempfile::TempDir,
    journal: &'static str,
}

/// What a case ends with; each of the four counts can be wrong alone.
#[derive(PartialEq, Eq, Debug)]
struct Totals {
    balance: i64,
    ledger: i64,
    outbox: i64,
    markers: i64,
}

impl World {
    fn new(journal: &'static str) -> Self {
        let world = Self { dir: tempfile::tempdir().expect("a folder"), journal };
        let connection =
            points::open(world.file().to_str().expect("a path"), journal, SOON).expect("it opens");
        connection.execute("INSERT INTO account VALUES ('a-7', 10)", []).expect("an account of 10 points");
        world
    }
    fn file(&self) -> PathBuf {
        self.dir.path().join("app.db")
    }
    fn open(&self) -> Connection {
        let connection = Connection::open(self.file()).expect("it opens");
        connection.busy_timeout(SOON).expect("set");
        connection
    }
    fn worker(&self, environment: &[(&str, &str)]) -> Worker {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "worker_process", "--nocapture"])
            .env("POINTS_FILE", self.file())
            .env("POINTS_JOURNAL", self.journal)
            .env("POINTS_BUSY_MS", "20000")
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Worker { child, input, output }
    }
    fn count(&self, sql: &str) -> i64 {
        self.open().query_row(sql, [], |row| row.get(0)).expect("it counts")
    }
    #[track_caller]
    fn expect(&self, expected: Totals) {
        let found = Totals {
            balance: self.count("SELECT points FROM account WHERE id = 'a-7'"),
            ledger: self.count("SELECT count(*) FROM ledger"),
            outbox: self.count("SELECT count(*) FROM outbox"),
            markers: self.count("SELECT count(*) FROM onceward_once"),
        };
        assert_eq!(found, expected, "{}", self.journal);
        // The ledger explains the balance.
        assert_eq!(found.balance, 10 + self.count("SELECT coalesce(sum(change), 0) FROM ledger"));
        let sound: String =
            self.open().query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("it reads");
        assert_eq!(sound, "ok");
    }
    fn quarantine(&self) -> Vec<(String, String, i64)> {
        let rows = once::quarantined(&self.open(), 100).expect("it reads");
        rows.into_iter().map(|row| (row.event_id, row.reason, row.count)).collect()
    }
    /// Until somebody holds the write lock.
    fn wait_for_a_holder(&self) {
        let connection = Connection::open(self.file()).expect("it opens");
        connection.busy_timeout(Duration::ZERO).expect("set");
        let end = Instant::now() + SOON;
        while connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
            assert!(Instant::now() < end, "nobody takes the lock");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A consumer as a process of its own; killed when dropped.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn send(&mut self, delivery: &Delivery) -> bool {
        let line = serde_json::to_string(delivery).expect("JSON");
        writeln!(self.input, "{line}").is_ok()
    }
    /// `None`: it died without an answer, so the broker has no acknowledgement.
    fn receive(&mut self) -> Option<Answer> {
        let mut line = String::new();
        while self.output.read_line(&mut line).ok()? > 0 {
            if line.starts_with('{') && line.ends_with('\n') {
                return Some(serde_json::from_str(&line).expect("an answer"));
            }
            line.clear();
        }
        None
    }
    fn deliver(&mut self, delivery: &Delivery) -> Option<Answer> {
        self.send(delivery).then(|| self.receive()).flatten()
    }
    fn kill9(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn event(id: &str, change: i64) -> Delivery {
    Delivery { event_id: id.into(), account: "a-7".into(), change, at_ms: 5_000, right: None, corrects: None }
}

#[track_caller]
fn said(answer: Option<Answer>) -> (String, bool, Option<i64>) {
    let answer = answer.expect("an answer");
    (answer.answer, answer.acknowledge, answer.booked.map(|booked| booked.balance))
}

fn applied(balance: i64) -> (String, bool, Option<i64>) {
    ("applied".into(), true, Some(balance))
}
fn repeated(balance: i64) -> (String, bool, Option<i64>) {
    ("repeated".into(), true, Some(balance))
}
fn refused(reason: &str) -> (String, bool, Option<i64>) {
    (reason.into(), true, None)
}
fn unacknowledged(answer: &str) -> (String, bool, Option<i64>) {
    (answer.into(), false, None)
}

/// Two workers get the same 60 events at the same time: each event has one effect, each delivery its
/// acknowledgement.
#[test]
fn the_same_events_in_two_workers_have_one_effect_each() {
    for journal in JOURNALS {
        let world = World::new(journal);
        let events: Vec<Delivery> = (0..60).map(|i| event(&format!("E-{i}"), 5)).collect();
        let run = || {
            let mut worker = world.worker(&[]);
            let answers: Vec<Answer> =
                events.iter().map(|event| worker.deliver(event).expect("an answer")).collect();
            answers
        };
        let (one, two) = std::thread::scope(|scope| {
            let (one, two) = (scope.spawn(run), scope.spawn(run));
            (one.join().expect("ends"), two.join().expect("ends"))
        });
        let acknowledged = one.iter().chain(&two).filter(|answer| answer.acknowledge).count();
        assert_eq!(acknowledged, 120, "{journal}");
        for (a, b) in one.iter().zip(&two) {
            let mut words = [a.answer.as_str(), b.answer.as_str()];
            words.sort();
            assert_eq!(words, ["applied", "repeated"], "{journal} {}", a.event_id);
            assert_eq!(a.booked, b.booked, "the stored result is the first one's");
        }
        world.expect(Totals { balance: 310, ledger: 60, outbox: 60, markers: 60 });
    }
}

/// A rival is in the middle of the very same event: "try again", never "already done". Here the rival then
/// dies.
#[test]
fn a_rival_s_open_transaction_is_not_already_done() {
    for journal in JOURNALS {
        let world = World::new(journal);
        let gate = world.dir.path().join("gate");
        let wait = format!("once-after-effect:{}", gate.display());
        let mut rival = world.worker(&[("ONCEWARD_WAIT_AT", &wait)]);
        let mut second = world.worker(&[("POINTS_BUSY_MS", "50")]);
        // Both are up before the lock is taken.
        assert_eq!(said(second.deliver(&event("OTHER", 0))), applied(10));
        assert!(rival.send(&event("E", 10)));
        world.wait_for_a_holder();
        assert_eq!(said(second.deliver(&event("E", 10))), unacknowledged("try again"), "{journal}");
        rival.kill9();
        assert_eq!(said(second.deliver(&event("E", 10))), applied(20), "{journal}");
        world.expect(Totals { balance: 20, ledger: 2, outbox: 2, markers: 2 });
    }
}

/// As before, but the rival commits: then it is "already done", with the rival's result.
#[test]
fn a_rival_that_commits_is_already_done() {
    for journal in JOURNALS {
        let world = World::new(journal);
        let gate = world.dir.path().join("gate");
        let wait = format!("once-after-effect:{}", gate.display());
        let mut rival = world.worker(&[("ONCEWARD_WAIT_AT", &wait)]);
        let mut second = world.worker(&[]);
        assert_eq!(said(second.deliver(&event("OTHER", 0))), applied(10));
        assert!(rival.send(&event("E", 10)));
        world.wait_for_a_holder();
        assert!(second.send(&event("E", 10)));
        std::fs::write(&gate, "").expect("opened");
        assert_eq!(said(rival.receive()), applied(20), "{journal}");
        assert_eq!(said(second.receive()), repeated(20), "{journal}");
        world.expect(Totals { balance: 20, ledger: 2, outbox: 2, markers: 2 });
    }
}

/// Different events on one account from two workers: none is lost (the effect reads, then sets).
#[test]
fn different_events_on_one_account_lose_no_update() {
    for journal in JOURNALS {
        let world = World::new(journal);
        let run = |name: &'static str| {
            let world = &world;
            move || {
                let mut worker = world.worker(&[]);
                (0..60)
                    .filter_map(|i| worker.deliver(&event(&format!("{name}-{i}"), 5)))
                    .filter(|answer| answer.acknowledge && answer.answer == "applied")
                    .count()
            }
        };
        let acknowledged = std::thread::scope(|scope| {
            let (one, two) = (scope.spawn(run("one")), scope.spawn(run("two")));
            one.join().expect("ends") + two.join().expect("ends")
        });
        assert_eq!(acknowledged, 120, "{journal}");
        world.expect(Totals { balance: 610, ledger: 120, outbox: 120, markers: 120 });
    }
}

/// The counts above can see a lost update: two who read outside the transaction and set inside it lose one.
#[test]
fn reading_outside_the_transaction_does_lose_an_update() {
    let world = World::new("WAL");
    let mut connections = [world.open(), world.open()];
    let read = connections.each_ref().map(|connection| {
        connection
            .query_row("SELECT points FROM account WHERE id = 'a-7'", [], |row| row.get::<_, i64>(0))
            .expect("it reads")
    });
    for (i, connection) in connections.iter_mut().enumerate() {
        let print = once::Fingerprint::of(1, &[i.to_string()]);
        let answer = once::once(connection, "points", &format!("E-{i}"), &print, |tx| {
            tx.execute("UPDATE account SET points = ?1 WHERE id = 'a-7'", [read[i] + 5])
        });
        assert!(matches!(answer, Ok(once::Once::Applied(1))));
    }
    assert_eq!(
        world.count("SELECT points FROM account WHERE id = 'a-7'"),
        15,
        "once alone does not prevent it"
    );
}

/// Killed at every step: before the commit nothing stays and the redelivery applies it; after it the
/// redelivery gets the stored result. In both cases one effect, and one acknowledgement reaches the broker.
#[test]
fn killed_at_every_step_has_one_effect() {
    for journal in JOURNALS {
        for (point, stays) in [
            ("once-after-marker", false),
            ("once-after-effect", false),
            ("once-before-commit", false),
            ("once-after-commit", true), // committed, the acknowledgement is lost
        ] {
            let world = World::new(journal);
            let mut worker = world.worker(&[("ONCEWARD_KILL_AT", point)]);
            assert_eq!(worker.deliver(&event("E", 10)), None, "{point}: it is dead, no acknowledgement");
            drop(worker);
            let left = i64::from(stays);
            world.expect(Totals { balance: 10 + 10 * left, ledger: left, outbox: left, markers: left });
            let mut worker = world.worker(&[]);
            let again = worker.deliver(&event("E", 10));
            assert_eq!(said(again), if stays { repeated(20) } else { applied(20) }, "{journal} {point}");
            world.expect(Totals { balance: 20, ledger: 1, outbox: 1, markers: 1 });
        }
    }
}

/// A commit reports a failure and is in the file nevertheless (F31): "try again", then the stored result.
#[test]
fn a_commit_that_only_seems_to_fail_is_try_again_and_then_known() {
    let world = World::new("WAL");
    let mut worker = world.worker(&[("ONCEWARD_FAIL_AT", "once-after-commit")]);
    assert_eq!(said(worker.deliver(&event("E", 10))), unacknowledged("try again"));
    assert_eq!(said(worker.deliver(&event("E", 10))), repeated(20));
    world.expect(Totals { balance: 20, ledger: 1, outbox: 1, markers: 1 });
}

/// Same id, other content: the first stands, the second is neither applied nor called done, however often it
/// comes.
#[test]
fn the_same_id_with_other_content_goes_to_quarantine() {
    for journal in JOURNALS {
        let world = World::new(journal);
        let mut worker = world.worker(&[]);
        assert_eq!(said(worker.deliver(&event("E", 10))), applied(20));
        for _ in 0..2 {
            let other = worker.deliver(&event("E", 1_000));
            assert_eq!(said(other), refused("SAME_EVENT_OTHER_CONTENT"), "{journal}");
        }
        assert_eq!(said(worker.deliver(&event("E", 10))), repeated(20), "the first still stands");
        world.expect(Totals { balance: 20, ledger: 1, outbox: 1, markers: 1 });
        assert_eq!(world.quarantine(), [("E".into(), "SAME_EVENT_OTHER_CONTENT".into(), 2)]);
    }
}

/// After retention a replay is refused, not applied again; what is younger goes on.
#[test]
fn a_replay_after_retention_is_refused() {
    for journal in JOURNALS {
        let world = World::new(journal);
        let mut worker = world.worker(&[]);
        let old = event("E-old", 10);
        let young = Delivery { at_ms: 9_000, ..event("E-young", 10) };
        assert_eq!(said(worker.deliver(&old)), applied(20));
        assert_eq!(said(worker.deliver(&young)), applied(30));
        let mut connection = world.open();
        assert_eq!(once::forget(&mut connection, "points", 8_000, 100).expect("forgets"), 1);
        assert_eq!(once::forget(&mut connection, "points", 8_000, 100).expect("forgets"), 0);
        drop(connection);
        assert_eq!(said(worker.deliver(&old)), refused("TOO_OLD"), "{journal}");
        assert_eq!(said(worker.deliver(&young)), repeated(30), "{journal}");
        let never_seen = event("E-late", 10);
        assert_eq!(said(worker.deliver(&never_seen)), refused("TOO_OLD"), "it may have been applied");
        world.expect(Totals { balance: 30, ledger: 2, outbox: 2, markers: 1 });
        let kept = world.quarantine();
        assert_eq!(kept, [("E-late".into(), "TOO_OLD".into(), 1), ("E-old".into(), "TOO_OLD".into(), 1)]);
    }
}

/// The producer made one reward twice, under two ids; and it meant two equal purchases, which stay two.
#[test]
fn one_right_is_used_once_and_two_equal_events_stay_two() {
    let world = World::new("WAL");
    let mut worker = world.worker(&[]);
    let reward = |id: &str| Delivery { right: Some("a-7/spring/gold".into()), ..event(id, 100) };
    assert_eq!(said(worker.deliver(&reward("R-1"))), applied(110));
    assert_eq!(said(worker.deliver(&reward("R-2"))), refused("SAME_EFFECT_OTHER_EVENT"));
    assert_eq!(said(worker.deliver(&reward("R-1"))), repeated(110));
    assert_eq!(said(worker.deliver(&event("BUY-1", 5))), applied(115));
    assert_eq!(said(worker.deliver(&event("BUY-2", 5))), applied(120));
    world.expect(Totals { balance: 120, ledger: 3, outbox: 3, markers: 3 });
    assert_eq!(world.quarantine(), [("R-2".into(), "SAME_EFFECT_OTHER_EVENT".into(), 1)]);
}

/// Two consumers of one event each apply it once.
#[test]
fn each_consumer_has_a_namespace_of_its_own() {
    let world = World::new("WAL");
    let mut points = world.worker(&[]);
    let mut analysis = world.worker(&[("POINTS_CONSUMER", "analysis")]);
    assert_eq!(said(points.deliver(&event("E", 10))), applied(20));
    assert_eq!(said(analysis.deliver(&event("E", 10))), applied(30));
    assert_eq!(said(analysis.deliver(&event("E", 10))), repeated(30));
    assert_eq!(said(points.deliver(&event("E", 10))), repeated(20));
    // The outbox has one row: both asked for the same message to the customer, by the same business key...
    // with another balance in it, so the second is in the outbox's quarantine.
    world.expect(Totals { balance: 30, ledger: 2, outbox: 1, markers: 2 });
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 1);
}

/// A correction is an event of its own that names what it corrects; it waits for it, and applies once.
#[test]
fn a_correction_names_what_it_corrects() {
    for journal in JOURNALS {
        let world = World::new(journal);
        let mut worker = world.worker(&[]);
        let correction = |id: &str| Delivery { corrects: Some("E".into()), ..event(id, 3) };
        assert_eq!(said(worker.deliver(&correction("C-1"))), unacknowledged("not yet"), "{journal}");
        world.expect(Totals { balance: 10, ledger: 0, outbox: 0, markers: 0 });
        assert_eq!(said(worker.deliver(&event("E", 10))), applied(20));
        assert_eq!(said(worker.deliver(&correction("C-1"))), applied(13), "3 in place of 10");
        assert_eq!(said(worker.deliver(&correction("C-1"))), repeated(13));
        assert_eq!(said(worker.deliver(&event("E", 10))), repeated(20), "what was said then");
        // The application's own rule: one correction. The failed effect leaves nothing.
        let (words, acknowledged, _) = said(worker.deliver(&correction("C-2")));
        assert!(words.contains("corrected already") && !acknowledged, "{words}");
        world.expect(Totals { balance: 13, ledger: 2, outbox: 2, markers: 2 });
    }
}

/// A random walk: two workers, redelivery until acknowledged, kill -9 at any time.
#[test]
fn random_kills_leave_one_effect_for_each_event() {
    for journal in ["WAL", "DELETE"] {
        let world = World::new(journal);
        let counts = std::thread::scope(|scope| {
            let run = |seed: u64| {
                let world = &world;
                move || broker(world, seed, 40)
            };
            let (one, two) = (scope.spawn(run(1)), scope.spawn(run(2)));
            [one.join().expect("ends"), two.join().expect("ends")]
        });
        let [acknowledged, kills] = [0, 1].map(|i| counts.iter().map(|count| count[i]).sum::<usize>());
        println!("{journal}: {acknowledged} acknowledgements, {kills} kills");
        assert_eq!(acknowledged, 80, "{journal}: both brokers have one for each event");
        assert!(kills >= 10, "{journal}: {kills} kills prove little");
        // Both brokers deliver the same 40 events.
        world.expect(Totals { balance: 10 + 40 * 5, ledger: 40, outbox: 40, markers: 40 });
    }
}

/// Delivers `events` events, each until it is acknowledged, to a worker that it kills after a random while.
/// Returns acknowledgements and kills.
fn broker(world: &World, seed: u64, events: usize) -> [usize; 2] {
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut worker = world.worker(&[]);
    let (mut acknowledged, mut kills) = (0, 0);
    for i in 0..events {
        // Bounded, so that an event nobody will ever acknowledge is a failure and not a wait.
        for delivery in 1.. {
            assert!(delivery <= 100, "E-{i} is never acknowledged");
            let sent = worker.send(&event(&format!("E-{i}"), 5));
            if kills < 20 && next(3) == 0 {
                std::thread::sleep(Duration::from_micros(next(12_000)));
                worker.kill9();
                kills += 1;
                // An answer that was on its way is lost with its broker connection.
                worker = world.worker(&[]);
                continue;
            }
            let answer = sent.then(|| worker.receive()).flatten().expect("an answer");
            if answer.acknowledge {
                assert!(matches!(answer.booked, Some(Booked { change: 5, .. })));
                acknowledged += 1;
                break;
            }
        }
    }
    [acknowledged, kills]
}
