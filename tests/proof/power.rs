//! F17: real power cuts. The agent and its producers on an ext4 whose power is cut at random moments, again and again.
//!
//! After each cut: each enqueue that was acknowledged is there under its id, each request that the vendor saw has its
//! inbox row, none came twice, both files are sound. `ONCEWARD_POWERCUTS=200` makes it as long as one likes.
//! And the read-only flip: what a kernel does to a file system whose device fails.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::loop_disk::LoopDisk;
use crate::support::{Agent, BIN, SOON, World};
use crate::{asked, scramble};

/// What producers were told: key to message id.
type Acknowledged = Arc<Mutex<BTreeMap<String, String>>>;

/// A world on a disk of its own. `whole`: settings, state and both witnesses; else the state folder alone, with the second
/// witness outside, on a disk that keeps everything.
fn world_on_a_disk(whole: bool, per_destination: &str) -> Option<(World, LoopDisk)> {
    let world = World::with("[alert]\nbacklog_age = \"1h\"\n", per_destination);
    let dir = world.dir.path().to_owned();
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    let state = dir.join("state");
    if !whole {
        std::fs::remove_dir_all(&state).expect("removed");
        std::fs::remove_dir_all(dir.join("state-witness")).expect("removed");
        std::fs::create_dir(&state).expect("made");
    }
    let disk = LoopDisk::mount(if whole { &dir } else { &state })?;
    let init = Command::new(BIN).args(["init", "--dir"]).arg(&dir).output().expect("init runs");
    assert!(init.status.success(), "{init:?}");
    std::fs::write(&world.config, settings).expect("settings are written");
    let folder = std::fs::File::open(&state).expect("opens");
    rustix::fs::syncfs(&folder).expect("synced");
    Some((world, disk))
}

/// The `sqlite3` shell as a producer, one transaction a message; a message is acknowledged when the shell answers a
/// question after its commit (and `-bail`: after a failed commit a look would prove nothing).
fn shell(world: &World, group: i32, prefix: &str, told: &Acknowledged) -> (Child, JoinHandle<()>) {
    let mut shell = Command::new("sqlite3")
        .args(["-batch", "-bail"])
        .arg(world.outbox_path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(group)
        .spawn()
        .expect("sqlite3 runs");
    let (mut input, output) = (shell.stdin.take().expect("piped"), shell.stdout.take().expect("piped"));
    let (prefix, told) = (prefix.to_owned(), told.clone());
    let thread = std::thread::spawn(move || {
        let mut answers = BufReader::new(output).lines();
        if writeln!(input, ".timeout 5000\nPRAGMA synchronous = FULL;").is_err() {
            return;
        }
        for number in 0.. {
            let key = format!("{prefix}:{number}");
            let asked = writeln!(
                input,
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES ('{key}', 'TEST', 'gateway', '01000000001', '{{}}') ON CONFLICT (dedup_key) DO NOTHING;\nSELECT message_id FROM outbox WHERE dedup_key = '{key}';"
            );
            // A failed insert ends the shell, so it brings no line.
            let (Ok(()), Some(Ok(id))) = (asked, answers.next()) else { return };
            told.lock().expect("not poisoned").insert(key, id);
        }
    });
    (shell, thread)
}

/// The `enqueue` command as a producer, one run a message, until `ending`.
fn command(
    world: &World,
    group: i32,
    prefix: &str,
    told: &Acknowledged,
    ending: &Arc<Mutex<bool>>,
) -> JoinHandle<()> {
    let (config, prefix) = (world.config.clone(), prefix.to_owned());
    let (told, ending) = (told.clone(), ending.clone());
    std::thread::spawn(move || {
        for number in 0.. {
            let key = format!("{prefix}:{number}");
            let flags = ["--kind", "TEST", "--to", "01012345678", "--payload", "{}", "--dest", "gateway"];
            let mut command = Command::new(BIN);
            command.arg("--config").arg(&config).args(["enqueue", "--key", &key]).args(flags);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(group);
            let child = {
                // None is begun once the cut is: it would be outside the stopped group.
                let ending = ending.lock().expect("not poisoned");
                if *ending {
                    return;
                }
                command.spawn().expect("it runs")
            };
            let done = child.wait_with_output().expect("waits");
            if done.status.success() {
                let id = String::from_utf8_lossy(&done.stdout).trim().to_owned();
                told.lock().expect("not poisoned").insert(key, id);
            }
        }
    })
}

/// What is true after each cut, once the agent has started again.
#[track_caller]
fn check(world: &World, told: &Acknowledged, cut: u64) {
    let (outbox, inbox) = (world.outbox(), world.inbox());
    let stored: BTreeMap<String, String> = outbox
        .prepare("SELECT dedup_key, message_id FROM outbox")
        .expect("prepared")
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("reads")
        .collect::<Result<_, _>>()
        .expect("rows");
    let told = told.lock().expect("not poisoned");
    let lost: Vec<_> = told.iter().filter(|(key, id)| stored.get(*key) != Some(*id)).collect();
    assert!(
        lost.is_empty(),
        "cut {cut}: {} of {} acknowledged messages are gone: {lost:?}",
        lost.len(),
        told.len()
    );
    let mut known = inbox.prepare("SELECT 1 FROM inbox WHERE message_id = ?1").expect("prepared");
    // No producer runs now, so what arrived meanwhile is of a row that was read above.
    let rows: BTreeSet<&String> = stored.values().collect();
    for (id, _) in world.sandbox.ledger().references(usize::MAX, |_| true) {
        assert!(rows.contains(&id), "cut {cut}: {id} arrived, and its row is gone");
        assert!(
            known.exists([&id]).expect("reads"),
            "cut {cut}: {id} arrived, and the inbox does not know it"
        );
        // A request that was cut before its end is known and not counted.
        assert!(world.arrivals(&id) <= 1, "cut {cut}: {id} arrived twice");
    }
    let totals = world.sandbox.ledger().totals();
    assert_eq!(totals.repeated, 0, "cut {cut}");
    let (code, said, why) = world.onceward(&["verify"]);
    assert_eq!(code, 0, "cut {cut}: {said}{why}");
}

fn cuts(whole: bool, cuts: u64) {
    // None of these proves "not sent", so a request that was seen has its row for ever.
    let Some((world, mut disk)) = world_on_a_disk(whole, "close_after_unknown = 0") else { return };
    world.faults(&["chance=0.04,reset=read", "chance=0.04,status=500", "chance=0.04,cut=body", "delay=4ms"]);
    let (told, mut seed) = (Acknowledged::default(), u64::from(std::process::id()));
    let mut in_start = 0;
    for cut in 0..cuts {
        seed = scramble(seed);
        let ending = Arc::new(Mutex::new(false));
        let switch = disk.switch();
        // One group, to be stopped as one when the power goes.
        let mut run = Command::new(BIN);
        run.arg("--config").arg(&world.config).arg("run").env("RUST_LOG", "warn").process_group(0);
        let agent = Agent::spawn(run);
        let group = agent.pid() as i32;
        let (mut shell, shell_thread) = shell(&world, group, &format!("shell{cut}"), &told);
        let command = command(&world, group, &format!("command{cut}"), &told, &ending);
        if seed.is_multiple_of(4) {
            in_start += 1;
            std::thread::sleep(Duration::from_millis(seed / 4 % 60));
        } else {
            // In the traffic: from the first arrival of this start on.
            world.sandbox.ledger().wait_total(world.sandbox.ledger().totals().arrived + 1, SOON);
            std::thread::sleep(Duration::from_millis(seed / 4 % 400));
        }
        *ending.lock().expect("not poisoned") = true;
        switch.cut(Some(agent.pid()));
        let log = agent.log();
        agent.kill9();
        shell.wait().expect("reaped");
        shell_thread.join().expect("no panic");
        command.join().expect("no panic");
        disk.unmount();
        disk.power_on();
        assert!(!log.contains("HELD"), "cut {cut}: held before it:\n{log}");

        let agent = world.agent();
        assert!(!agent.log().contains("HELD"), "cut {cut}: {}", agent.log());
        check(&world, &told, cut);
        if cut % 20 == 19 {
            println!(
                "{} cuts, {} acknowledged, {} requests",
                cut + 1,
                told.lock().expect("not poisoned").len(),
                world.sandbox.ledger().totals().arrived
            );
        }
        agent.kill9();
    }
    world.faults(&[]);
    let agent = world.agent();
    world.wait("everything has an end", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')") == 0
    });
    check(&world, &told, cuts);
    let totals = world.sandbox.ledger().totals();
    println!(
        "{cuts} power cuts ({in_start} while the agent started; {}): all {} acknowledged messages there; each of {} requests with its inbox row, {} twice; {} SENT, {} ERROR",
        if whole { "everything on the disk" } else { "second witness elsewhere" },
        told.lock().expect("not poisoned").len(),
        totals.arrived,
        totals.repeated,
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"),
        world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'"),
    );
    assert!(totals.arrived > cuts, "too little went on to prove anything");
    agent.stop();
}

#[test]
fn f17_power_cuts_lose_no_acknowledged_message_and_send_none_twice() {
    cuts(true, asked("ONCEWARD_POWERCUTS", 6) / 2);
}

#[test]
fn f17_power_cuts_with_the_second_witness_on_another_disk() {
    cuts(false, asked("ONCEWARD_POWERCUTS", 6) / 2);
}

/// The test of the test: a producer that does not sync loses what it was told, and the same look finds it.
#[test]
fn f17_control_an_enqueue_without_a_sync_is_lost_by_a_cut() {
    let Some((world, mut disk)) = world_on_a_disk(true, "") else { return };
    let told = Acknowledged::default();
    {
        let connection = world.outbox();
        connection.execute_batch("PRAGMA synchronous = OFF").expect("set");
        connection
            .execute_batch("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES ('careless', 'TEST', 'gateway', '01000000001', '{}')")
            .expect("the row is taken");
        let id = connection.query_row("SELECT message_id FROM outbox", [], |row| row.get(0)).expect("there");
        told.lock().expect("not poisoned").insert("careless".into(), id);
        disk.switch().cut(None);
    }
    disk.unmount();
    disk.power_on();
    let agent = world.agent();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&world, &told, 0)));
    agent.kill9();
    assert!(found.is_err(), "the cut took nothing away, or the check sees nothing");
}

#[test]
fn f18_a_disk_that_turns_read_only_is_claimed_on_no_more_and_a_restart_goes_on() {
    let Some((world, mut disk)) = world_on_a_disk(true, "") else { return };
    world.faults(&["delay=900ms"]);
    let mut agent = world.agent();
    world.put_many("w", 40);
    world.wait("calls under way", |world| {
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'") == 4
    });
    if !disk.fail() {
        eprintln!("SKIPPED: this kernel has no trigger_fs_error");
        return;
    }
    agent.wait_log("cannot be written");
    // The four that were under way come to their end at the vendor; from then on nothing.
    let called = world.sandbox.ledger().totals().arrived;
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        assert_eq!(
            world.sandbox.ledger().totals().arrived,
            called,
            "something was claimed that cannot be recorded"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let flags = ["--key", "k", "--kind", "K", "--to", "01012345678", "--payload", "{}"];
    let (code, _, err) = world.onceward(&[&["enqueue"][..], &flags].concat());
    assert!(matches!(code, 74 | 75), "{code}: {err}");
    assert!(err.contains("run the same command again"), "{err}");
    agent.wait_log("cause=DATABASE");
    agent.term();
    let status = agent.wait_end();
    // It could not write what it owed, and says so; no panic, no signal, no storm of lines.
    assert_eq!(status.code(), Some(74), "{status}\n{}", agent.log());
    assert!(agent.log().lines().count() < 200, "{}", agent.log());
    // Started again on such a disk: it ends in words, with a code after which the service manager tries again.
    let mut again = world.agent_with(&[]);
    let status = again.wait_end();
    assert_eq!(status.code(), Some(74), "{status}\n{}", again.log());
    again.wait_log("the file system is read-only");
    assert_eq!(world.sandbox.ledger().totals().arrived, called);
    drop(agent);
    disk.unmount();
    disk.power_on();
    world.faults(&[]);
    let agent = world.agent();
    world.wait("all over", |world| {
        world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'") == 40
    });
    let (sent, error) = (
        world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"),
        world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'"),
    );
    assert_eq!((sent + error, error <= 4), (40, true), "{sent} SENT, {error} ERROR");
    let totals = world.sandbox.ledger().totals();
    assert_eq!((totals.arrived, totals.repeated), (40, 0));
    let (code, said, why) = world.onceward(&["verify"]);
    assert_eq!(code, 0, "{said}{why}");
    agent.stop();
}
