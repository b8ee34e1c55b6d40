//! F8, F10, F17, F31 by every call of the disk: the N-th write, sync or truncation of the real agent's database files fails
//! once, fails for good, is done and called failed, or kills the agent; N upward until a run passes untouched.
//!
//! By a small library between the agent and the kernel (`failing_disk.c`), so it is SQLite's real code and a real file.
//! CI takes every few N, beginning at another one each time; `ONCEWARD_FAILING_WRITES=1` takes all.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::asked;
use crate::support::{SOON, World};

const MESSAGES: i64 = 6;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// One call fails: a blip. The agent goes on by itself.
    Once(i32),
    /// It is done, and called failed.
    Lie,
    /// From that call on all fail.
    ForGood(i32),
    /// The process dies before that call.
    Die,
}

impl Way {
    fn plan(self) -> (&'static str, u32, i32) {
        match self {
            Self::Once(errno) => ("fail", 1, errno),
            Self::Lie => ("lie", 1, EIO),
            Self::ForGood(errno) => ("fail", 0, errno),
            Self::Die => ("die", 1, 0),
        }
    }
}

/// The library, made once a run by the machine's C compiler (the one that SQLite itself was made with).
fn library() -> &'static PathBuf {
    static MADE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("libfailing_disk.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/proof/failing_disk.c");
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&path)
            .arg(source)
            .output()
            .expect("cc runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        (folder, path)
    });
    path
}

fn is_over(world: &World) -> bool {
    world.count("SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')") == 0
        && world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'") == 0
}

/// Everything has its end, nothing came twice, both files agree and are sound. `blip`: nothing may have become unknown by
/// it, but for the one message whose answer the vendor lost.
#[track_caller]
fn check(world: &World, blip: bool, what: &str) {
    let closed = world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'");
    let recorded = world.count("SELECT count(*) FROM inbox WHERE status IN ('SENT', 'FAILED', 'ERROR')");
    assert_eq!((closed, recorded), (MESSAGES, MESSAGES), "{what}");
    let totals = world.sandbox.ledger().totals();
    assert_eq!(totals.duplicates, 0, "{what}");
    let error = world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'");
    let sent = world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'");
    if blip {
        assert_eq!((sent, error), (MESSAGES - 1, 1), "{what}");
        assert_eq!(totals.references, MESSAGES as u64, "{what}");
    }
    let (code, said, why) = world.onceward(&["verify"]);
    assert_eq!(code, 0, "{what}: {said}{why}");
}

/// One world; whether the N-th call came at all.
fn touched(way: Way, part: &str, n: u64) -> bool {
    let world = World::with(
        "[retry]\nquick = { times = 3, every = \"20ms\" }\nlater = { times = 1, every = \"50ms\" }\n",
        "",
    );
    world.put_many("m", MESSAGES as usize - 2);
    // One is refused at the door first, one loses its answer.
    let (refused, lost) = (world.put_plain("refused"), world.put_plain("lost"));
    world.faults(&[
        &format!("reference={refused},status=403,first=1"),
        &format!("reference={lost},reset=read"),
    ]);
    let told = world.dir.path().join("touched");
    let (how, count, errno) = way.plan();
    let plan = format!("{how}:{n}:{count}:{errno}:{part}:{}", told.display());
    let preload = library().to_str().expect("a path");
    let mut agent = world.agent_with(&[("LD_PRELOAD", preload), ("FAILING_DISK", &plan)]);

    let (end, mut since) = (Instant::now() + SOON, None);
    let ended = loop {
        if let Some(status) = agent.try_end() {
            break Some(status);
        }
        match way {
            // It shall go on, and come to an end, by itself.
            Way::Once(_) | Way::Lie | Way::Die if is_over(&world) => break None,
            Way::ForGood(_) if !told.exists() && is_over(&world) => break None,
            // Long enough for every room to meet it, and to crash if it would.
            Way::ForGood(_) if told.exists() => {
                let since = *since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(700) {
                    break None;
                }
            }
            _ => {}
        }
        assert!(Instant::now() < end, "{how} {n}: it stands still\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(10));
    };
    let was_touched = told.exists();
    let what = format!("{how}:{count} at call {n} of {part} (touched: {was_touched})\n{}", agent.log());
    match ended {
        Some(status) if way == Way::Die => assert_eq!(status.signal(), Some(9), "{what}"),
        // A start may refuse, in words; a panic, an abort or a signal is a fault.
        Some(status) => assert!(matches!(status.code(), Some(73..=75)), "{status}: {what}"),
        None => {}
    }
    let blip = ended.is_none() && matches!(way, Way::Once(_) | Way::Lie);
    agent.kill9();
    if ended.is_none() && !matches!(way, Way::ForGood(_)) {
        check(&world, blip, &what);
    }
    let agent = world.agent();
    let end = Instant::now() + SOON;
    while !is_over(&world) {
        assert!(Instant::now() < end, "after a restart: {what}\n{}", agent.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    check(&world, blip, &what);
    agent.stop();
    was_touched
}

fn until_untouched(way: Way, part: &str) {
    let step = asked("ONCEWARD_FAILING_WRITES", 16).max(1);
    let mut n = 1 + u64::from(std::process::id()) % step;
    let mut worlds = 0;
    while touched(way, part, n) {
        worlds += 1;
        n += step;
        assert!(n < 5_000, "the agent never comes to rest");
    }
    println!(
        "{}:{} of {part}: {worlds} worlds, each call up to the {n}th, step {step}",
        way.plan().0,
        way.plan().1
    );
    assert!(worlds >= 3, "nothing was touched: is the library loaded?");
}

#[test]
fn f31_each_write_of_the_inbox_fails_once_and_costs_nothing() {
    until_untouched(Way::Once(EIO), "inbox.db");
}

#[test]
fn f31_each_write_of_the_outbox_fails_once_and_costs_nothing() {
    until_untouched(Way::Once(EIO), "outbox.db");
}

#[test]
fn f31_each_write_is_done_and_called_failed() {
    until_untouched(Way::Lie, ".db");
}

#[test]
fn f18_from_each_write_on_the_disk_is_full() {
    until_untouched(Way::ForGood(ENOSPC), ".db");
}

#[test]
fn f10_from_each_write_on_the_disk_fails() {
    until_untouched(Way::ForGood(EIO), ".db");
}

#[test]
fn f08_the_process_dies_before_each_write() {
    until_untouched(Way::Die, ".db");
}
