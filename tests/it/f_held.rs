//! F19: somebody holds a database: the distribution's `sqlite3` shell, left in a transaction or in a long SELECT, on either
//! file. The agent waits, names the file and the holder, does not crash, and the log is cut back afterwards.

use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::support::World;

/// A shell that was told something and then is left alone.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
}

impl Shell {
    /// `None` where this machine has no `sqlite3`.
    fn open(path: &Path, said: &str) -> Option<Self> {
        let child = Command::new("sqlite3")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else {
            eprintln!("SKIPPED: no sqlite3 on this machine");
            return None;
        };
        let mut input = child.stdin.take().expect("piped");
        writeln!(input, ".timeout 5000\n{said}").expect("told");
        Some(Self { child, input: Some(input) })
    }

    fn leave(mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

fn sent(world: &World) -> i64 {
    world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'")
}

fn wal_bytes(path: &Path) -> u64 {
    std::fs::metadata(path.with_extension("db-wal")).map_or(0, |meta| meta.len())
}

#[test]
fn f19_begin_exclusive_is_waited_out_and_its_holder_named() {
    for inbox in [true, false] {
        let world = World::new();
        let agent = world.agent();
        world.put_many("a", 5);
        world.wait("sent", |world| sent(world) == 5);
        world.wait("marked", |world| {
            world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'") == 5
        });
        let path = if inbox { world.inbox_path() } else { world.outbox_path() };
        let producer = world.outbox(); // open before, with a timeout longer than the hold
        let Some(shell) = Shell::open(&path, "BEGIN EXCLUSIVE;") else { return };
        world.wait("held", |_| !onceward::db::holder::of(&path).is_empty());
        let mut inserted = None;
        if inbox {
            producer
                .execute_batch("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES ('b', 'K', 'gateway', '010', '{}')")
                .expect("inserted");
        } else {
            // A producer waits as well; the agent has something to renew and to look for by itself.
            inserted = Some(std::thread::spawn(move || {
                producer
                    .execute_batch("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES ('b', 'K', 'gateway', '010', '{}')")
            }));
        }
        let pid = shell.child.id();
        let (code, out, _) = world.onceward(&["check", "--offline"]);
        assert_eq!(code, 1, "{out}");
        let named = format!("pid {pid} [sqlite3] (write lock)");
        assert!(out.contains(&named) && out.contains(&path.display().to_string()), "{out}");
        if inbox {
            agent.wait_log(&named);
            assert!(agent.log().contains(&path.display().to_string()), "{}", agent.log());
        }
        std::thread::sleep(Duration::from_millis(10_500)); // twice the busy time-out: longer than any wait of ours
        assert_eq!(sent(&world), 5);
        shell.leave();
        if let Some(inserted) = inserted {
            inserted.join().expect("joins").expect("inserted at last");
        }
        world.wait("sent", |world| sent(world) == 6);
        assert_eq!(world.sandbox.ledger().totals().repeated, 0);
        agent.stop();
    }
}

#[test]
fn f19_a_transaction_held_while_calls_are_under_way_loses_no_outcome() {
    let world = World::new();
    world.faults(&["delay=700ms"]);
    let agent = world.agent();
    world.put_many("a", 4);
    world.wait("under way", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'") == 4);
    let Some(shell) = Shell::open(&world.inbox_path(), "BEGIN EXCLUSIVE;") else { return };
    agent.wait_log("[sqlite3] (write lock)");
    shell.leave();
    world.wait("recorded", |world| sent(world) == 4);
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'"), 0);
    let ledger = world.sandbox.ledger().totals();
    assert_eq!((ledger.arrived, ledger.repeated), (4, 0));
    agent.stop();
}

#[test]
fn f19_a_held_inbox_is_shown_by_status_and_a_verdict_says_why_it_was_not_taken() {
    let world = World::listening("");
    world.faults(&["status=500"]);
    let agent = world.agent();
    let id = world.put_plain("k");
    world.wait_inbox(&id, "ERROR");
    let (_, out, _) = world.onceward(&["status"]);
    assert!(!out.contains("LOCKED"), "{out}");
    let Some(shell) = Shell::open(&world.inbox_path(), "BEGIN EXCLUSIVE;") else { return };
    world.wait("held", |world| !onceward::db::holder::of(&world.inbox_path()).is_empty());
    let (code, out, _) = world.onceward(&["status"]);
    let named = format!("inbox.db: pid {} [sqlite3] (write lock)", shell.child.id());
    assert!(code == 0 && out.contains("LOCKED") && out.contains(&named), "{out}");
    let (code, _, error) = world.onceward(&["settle", "k", "--sent", "--note", "they have it"]);
    assert!(code == 75 && error.contains("the agent cannot write its inbox now"), "{code} {error}");
    shell.leave();
    agent.stop();
}

#[test]
fn f19_a_long_select_is_named_sending_goes_on_and_the_log_is_cut_back() {
    let world = World::new();
    let agent = world.agent();
    world.put_many("a", 3);
    world.wait("sent", |world| sent(world) == 3);
    let inbox = world.inbox_path();
    let Some(shell) = Shell::open(&inbox, "BEGIN; SELECT count(*) FROM inbox;") else { return };
    world.wait("held", |_| !onceward::db::holder::of(&inbox).is_empty());
    let mut count = 3;
    while !agent.log().contains("its write-ahead log grows") {
        assert!(count < 20_000, "never warned; the log has {} bytes", wal_bytes(&inbox));
        world.put_many(&format!("b{count}"), 400);
        count += 400;
        world.wait("sending goes on", |world| sent(world) == count);
    }
    let named = format!("pid {} [sqlite3] (reads an old state)", shell.child.id());
    assert!(agent.log().contains(&named), "{}", agent.log());
    let (_, out, _) = world.onceward(&["check", "--offline"]);
    assert!(out.contains(&named), "{out}");
    let long = wal_bytes(&inbox);
    assert!(long > 9 << 20, "{long}");
    shell.leave();
    // A little more traffic starts the log over, and its file is cut to its bound.
    world.wait("cut back", |world| {
        world.put_many(&format!("c{}", sent(world)), 20);
        std::thread::sleep(Duration::from_millis(150));
        wal_bytes(&inbox) <= 8 << 20
    });
    assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    agent.stop();
}

/// What the file holds without its log, as a power cut that takes the whole log would leave it.
fn without_its_log(path: &Path, sql: &str) -> i64 {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy.db");
    // By another process: closing the file here would drop this process's locks on it.
    assert!(Command::new("cp").args([path, &copy]).status().expect("cp runs").success());
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_URI;
    rusqlite::Connection::open_with_flags(format!("file:{}?immutable=1", copy.display()), flags)
        .and_then(|connection| connection.query_row(sql, [], |row| row.get(0)))
        .unwrap_or(-1) // copied in the middle of a checkpoint
}

/// A log of which a sync failed may have a hole that only a power cut shows; so what is in it must not wait there for
/// the next commit.
#[test]
fn a_checkpoint_that_fails_is_tried_again_although_nobody_commits() {
    let world = World::new();
    let agent = world.agent_with(&[("ONCEWARD_FAIL_AT", "checkpoint:1:6")]);
    let id = world.put_plain("a");
    world.wait_inbox(&id, "SENT");
    world.wait_outbox(&id, "PUBLISHED");
    agent.wait_log("cannot be copied back");
    agent.wait_log("is copied back again");
    world.wait("all of it is in the two files themselves", |world| {
        without_its_log(&world.outbox_path(), "SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'") == 1
            && without_its_log(&world.inbox_path(), "SELECT count(*) FROM inbox WHERE status = 'SENT'") == 1
    });
    agent.stop();
}
