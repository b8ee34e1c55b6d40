//! The recipes of `examples/producers/`, and business data with its message in one transaction, killed at every step,
//! in Python and in Rust. A language that is not on the machine is skipped with a printed reason.

use std::path::Path;
use std::process::Command;

use onceward::message::Class;
use onceward::store::outbox::{self, NewMessage};
use rusqlite::Connection;

use crate::f_source::{add, app};
use crate::support::World;

fn recipe(name: &str) -> String {
    format!("{}/examples/producers/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Orders and messages in an application's file.
fn counts(path: &Path) -> (i64, i64) {
    let connection = Connection::open(path).expect("opens");
    let count = |table: &str| {
        connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("counts")
    };
    (count("orders"), count("outbox"))
}

#[test]
fn recipes_in_every_language_of_this_machine_place_an_order_once() {
    let world = World::new();
    let agent = world.agent();
    let mut ran = 0;
    // The third says whether the language can do it at all.
    for (program, file, can) in [
        ("python3", "order.py", "import sqlite3"),
        ("sh", "order.sh", "command -v sqlite3"),
        ("php", "order.php", "exit(class_exists('SQLite3') ? 0 : 1);"),
        ("node", "order.mjs", "require('node:sqlite')"),
    ] {
        let flag = match program {
            "php" => "-r",
            "node" => "-e",
            _ => "-c",
        };
        if !Command::new(program).args([flag, can]).output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: {file}: no {program} with SQLite on this machine");
            continue;
        }
        for journal in ["wal", "delete"] {
            let name = format!("{program}-{journal}");
            let path = app(&world, &name, journal);
            add(&world, &name, &path);
            for recipient in ["01000000001", "01000000001", "it's '); DROP TABLE orders; --"] {
                let order = if recipient.starts_with('0') { "1842" } else { "7" };
                let run = Command::new(program)
                    .arg(recipe(file))
                    .arg(&path)
                    .args([order, recipient])
                    .output()
                    .expect("it runs");
                assert!(run.status.success(), "{file}: {run:?}");
            }
            assert_eq!(counts(&path), (2, 2), "{file}: the same order again is harmless");
            let quoted: i64 = Connection::open(&path)
                .expect("opens")
                .query_row("SELECT count(*) FROM outbox WHERE recipient LIKE 'it''s%--'", [], |row| {
                    row.get(0)
                })
                .expect("counts");
            assert_eq!(quoted, 1, "{file}: quotes stay quotes");
            ran += 2;
            world.wait(&format!("{name} is sent"), |world| {
                world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == ran
            });
        }
        // A file without the tables: an error, and no half order.
        let bare = world.dir.path().join(format!("{program}-bare.db"));
        Connection::open(&bare)
            .and_then(|app| {
                app.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, recipient TEXT NOT NULL)")
            })
            .expect("made");
        let run =
            Command::new(program).arg(recipe(file)).arg(&bare).args(["1", "010"]).output().expect("runs");
        assert!(!run.status.success(), "{file}: {run:?}");
        let orders: i64 = Connection::open(&bare)
            .and_then(|app| app.query_row("SELECT count(*) FROM orders", [], |row| row.get(0)))
            .expect("counts");
        assert_eq!(orders, 0, "{file}: rolled back");
    }
    assert!(ran >= 8, "Python and the shell are on every machine that runs these tests");
    assert_eq!(world.sandbox.ledger().totals().arrived, ran as u64);
    agent.stop();
}

/// Kills itself before or after the N-th statement of the recipe, without a word of it in the recipe.
const KILLED_PYTHON: &str = r#"
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import order
class Killed:
    def __init__(self, connection, at):
        self.connection, self.at, self.n = connection, at, 0
    def step(self):
        self.n += 1
        if self.n == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
    def execute(self, *args):
        self.step()
        result = self.connection.execute(*args)
        self.step()
        return result
    def __getattr__(self, name):
        return getattr(self.connection, name)
order.place_order(Killed(order.open_app(sys.argv[2]), int(sys.argv[3])), int(sys.argv[4]), "01000000001")
"#;

/// After a death at each step: both rows or neither; a second run completes it; the agent sends each order once.
fn killed_at_every_step(die: impl Fn(&Path, usize, usize) -> bool) {
    let world = World::new();
    let agent = world.agent();
    for journal in ["wal", "delete"] {
        let path = app(&world, journal, journal);
        add(&world, journal, &path);
        let (mut kept, mut step) = (0, 0);
        loop {
            step += 1;
            let killed = die(&path, step, step);
            let (orders, messages) = counts(&path);
            assert_eq!(orders, messages, "{journal}: half an order after step {step}");
            let was_committed = orders == kept + 1;
            assert!(was_committed || orders == kept, "{journal}: step {step}: {orders} orders");
            if !killed {
                assert!(was_committed);
                break;
            }
            // The job runs again, as jobs do.
            assert!(!die(&path, usize::MAX, step), "it runs to its end");
            kept += 1;
            assert_eq!(counts(&path), (kept, kept));
        }
        assert_eq!(step, 9, "four statements, before and after each, and once to the end");
        world.wait("all sent", |world| {
            let sent = world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'");
            sent == if journal == "wal" { 9 } else { 18 }
        });
    }
    assert_eq!(world.sandbox.ledger().totals().arrived, 18);
    agent.stop();
}

#[test]
fn f01_an_order_and_its_message_in_python_killed_at_every_step_are_both_there_or_neither() {
    killed_at_every_step(|path, step, order| {
        let run = Command::new("python3")
            .args(["-c", KILLED_PYTHON, &recipe("")])
            .arg(path)
            .args([(step.min(999)).to_string(), order.to_string()])
            .output()
            .expect("python3 runs");
        assert!(run.status.code().is_none() || run.status.success(), "{run:?}");
        !run.status.success()
    });
}

/// The same in Rust: this test runs itself again as the application that dies.
#[test]
fn f01_an_order_and_its_message_in_rust_killed_at_every_step_are_both_there_or_neither() {
    if let Ok(job) = std::env::var("ONCEWARD_TEST_ORDER") {
        let mut parts = job.splitn(3, ' ');
        let mut number = || parts.next().expect("given").parse::<usize>().expect("a number");
        let (step, order) = (number(), number());
        return place_order(Path::new(parts.next().expect("a path")), step, order);
    }
    killed_at_every_step(|path, step, order| {
        let run = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "producers::f01_an_order_and_its_message_in_rust_killed_at_every_step_are_both_there_or_neither"])
            .env("ONCEWARD_TEST_ORDER", format!("{step} {order} {}", path.display()))
            .output()
            .expect("it runs");
        assert!(run.status.code().is_none() || run.status.success(), "{run:?}");
        !run.status.success()
    });
}

fn place_order(path: &Path, die_at: usize, order: usize) {
    let mut passed = 0;
    let mut step = || {
        passed += 1;
        if passed == die_at {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    };
    let mut connection = Connection::open(path).expect("opens");
    connection.busy_timeout(crate::support::SOON).expect("timeout");
    step();
    let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("begins");
    step();
    step();
    tx.execute(
        "INSERT INTO orders (id, recipient) VALUES (?1, '01000000001') ON CONFLICT (id) DO NOTHING",
        [order as i64],
    )
    .expect("the order");
    step();
    step();
    let message = NewMessage {
        dedup_key: format!("ORDER_RECEIVED:{order}"),
        kind: "ORDER_RECEIVED".into(),
        class: Class::Transactional,
        destination: String::new(),
        recipient: "01000000001".into(),
        payload: format!("{{\"order\":{order}}}"),
        ordering_key: None,
        priority: 5,
        not_before_ms: None,
        expires_at_ms: None,
        traceparent: None,
    };
    let _ = outbox::put(&tx, &message).expect("its message");
    step();
    step();
    tx.commit().expect("commits");
    step();
}
