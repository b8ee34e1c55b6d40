//! F18: a full disk, for real: the state folder on a file system of a few megabytes, filled to the last byte.
//!
//! Needs to mount a tmpfs (root). Where that is not allowed the test says so and ends; the reserve's own tests and the
//! writer's failing commits (`f_worker.rs`) cover it in part.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::World;

/// A tmpfs over a folder, gone when dropped.
struct Small {
    path: PathBuf,
}

impl Small {
    /// `None` where mounting is not allowed.
    fn mount(path: &Path, size: &str) -> Option<Self> {
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "onceward-test"])
            .arg(path)
            .output();
        match done {
            Ok(done) if done.status.success() => Some(Self { path: path.to_owned() }),
            Ok(done) => {
                eprintln!("SKIPPED: no tmpfs here: {}", String::from_utf8_lossy(&done.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: no mount here: {error}");
                None
            }
        }
    }

    fn free(&self) -> u64 {
        onceward::db::reserve::free(&self.path).expect("statvfs")
    }

    /// Fills all but `leave` bytes.
    fn fill(&self, leave: u64) {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path.join("ballast"))
            .expect("opens");
        // At once, then piece by piece.
        let much = self.free().saturating_sub(leave + (64 << 10));
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, much.max(1)).expect("allocated");
        let piece = [1u8; 4096];
        while self.free() >= leave + 4096 && file.write_all(&piece).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.path.join("ballast")).expect("removed");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// A world whose state folder is a tmpfs of 24 MiB.
fn small_world(per_destination: &str) -> Option<(World, Small)> {
    let world = World::with("", per_destination);
    let state = world.dir.path().join("state");
    let aside = world.dir.path().join("made-by-init");
    std::fs::rename(&state, &aside).expect("moved");
    std::fs::create_dir(&state).expect("made");
    let small = Small::mount(&state, "24m")?;
    let _ = std::fs::remove_dir_all(&aside);
    let init = world.onceward(&["init", "--dir", &world.dir.path().display().to_string()]);
    assert_eq!(init.0, 0, "{init:?}");
    Some((world, small))
}

#[test]
fn f18_a_full_disk_records_what_was_called_claims_nothing_and_goes_on_by_itself() {
    let Some((world, small)) = small_world("") else { return };
    world.faults(&["delay=1500ms"]);
    let agent = world.agent();
    let reserve = world.dir.path().join("state/inbox/reserve");
    assert!(reserve.exists());
    world.put_many("w", 40);
    world.wait("calls under way", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'") == 4
    });
    // To the last byte; and a reader keeps the log of the inbox from starting over in the room it has.
    let reader = world.inbox();
    reader.execute_batch("BEGIN; SELECT count(*) FROM inbox").expect("reads");
    small.fill(0);
    assert!(small.free() < 4096);
    agent.wait_log("HELD: nothing is sent: the disk is full");
    // A producer is told, and nothing of it is half-stored.
    let flags = ["--key", "k", "--kind", "K", "--to", "01012345678", "--payload", "{}"];
    let (code, _, err) = world.onceward(&[&["enqueue"][..], &flags].concat());
    assert_eq!((code, err.contains("full")), (75, true), "{err}");
    // The outcomes of all calls that were made are recorded, though not a byte was free.
    world.wait("no call without its outcome", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'") == 0
    });
    drop(reader);
    assert!(!reserve.exists(), "by the room of the reserve");
    let called = world.sandbox.ledger().totals().arrived;
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(world.sandbox.ledger().totals().arrived, called, "nothing new is claimed");
    assert!(called < 40);
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"), called as i64);
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'"), 0);
    assert!(world.onceward(&["status"]).1.contains("HELD     nothing is sent: the disk is full"));
    small.make_room();
    world.faults(&[]);
    world.wait("all sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 40);
    assert!(reserve.exists(), "the reserve is made again");
    world.wait("all marked", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'") == 40
    });
    let ledger = world.sandbox.ledger().totals();
    assert_eq!((ledger.arrived, ledger.repeated), (40, 0));
    assert!(agent.log().contains("no longer held"), "{}", agent.log());
    let flags = [&["enqueue"][..], &flags].concat();
    assert_eq!(world.onceward(&flags).0, 0);
    agent.stop();
}

#[test]
fn f18_an_agent_that_starts_on_a_full_disk_is_held_and_then_sends() {
    let Some((world, small)) = small_world("") else { return };
    world.put_many("w", 5);
    let agent = world.agent();
    agent.kill9();
    small.fill(64 << 10);
    let agent = world.agent();
    assert!(agent.log().contains("HELD: nothing is sent: the disk is full"), "{}", agent.log());
    let called = world.sandbox.ledger().totals().arrived;
    small.make_room();
    world.wait("all over", |world| world.count("SELECT count(*) FROM inbox WHERE status <> 'SENDING'") == 5);
    let ledger = world.sandbox.ledger().totals();
    assert!(ledger.arrived <= 5 && called <= ledger.arrived);
    assert_eq!(ledger.repeated, 0);
    agent.stop();
}

#[test]
fn f18_a_reserve_that_holds_less_than_it_says_is_no_harm() {
    // A sparse file: on some file systems room cannot be kept. What is owed then waits in memory until there is room.
    let Some((world, small)) = small_world("") else { return };
    world.faults(&["delay=600ms"]);
    let agent = world.agent();
    let reserve = world.dir.path().join("state/inbox/reserve");
    let sparse = std::fs::OpenOptions::new().write(true).open(&reserve).expect("opens");
    sparse.set_len(0).expect("cut");
    sparse.write_at(b"", 0).expect("written");
    sparse.set_len(onceward::limits::RESERVE_BYTES).expect("a hole");
    world.put_many("w", 4);
    world.wait("calls under way", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'") == 4
    });
    small.fill(0);
    agent.wait_log("HELD: nothing is sent: the disk is full");
    std::thread::sleep(Duration::from_millis(1000));
    small.make_room();
    world.wait("recorded", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 4);
    let ledger = world.sandbox.ledger().totals();
    assert_eq!((ledger.arrived, ledger.repeated), (4, 0));
    agent.stop();
}
