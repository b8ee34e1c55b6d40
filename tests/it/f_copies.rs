//! F26, F30, F32: copies, older files, swapped, lost and damaged ones, backup and restore; files moved, replaced and
//! deleted under the running agent. In each: not one message goes out a second time, and what holds it is said.

use std::path::Path;
use std::process::Command;

use crate::f_source::{add, app, put, state, status};
use crate::support::{Agent, BIN, World, text};

/// `cp -a`: what a person does. (Never over a live database of ours: that is what is being tested.)
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(done.success());
}

/// With a socket of its own, so that `adopt` reaches the running agent.
fn world() -> World {
    World::with("[listen]\nsocket = \"agent.sock\"\n", "")
}

fn sent(world: &World) -> i64 {
    world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'")
}

/// Starts, and is held for this reason, everywhere; nothing goes out.
#[track_caller]
fn held(world: &World, reason: &str) -> Agent {
    let before = world.sandbox.ledger().totals();
    let agent = world.agent();
    assert!(agent.log().contains("HELD: nothing is sent") && agent.log().contains(reason), "{}", agent.log());
    // A round or two of the relay: what is due stays.
    let id = world.put_plain("while-held");
    for _ in 0..3 {
        assert_eq!(world.outbox_state(&id).0, "PENDING");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(world.sandbox.ledger().totals().arrived, before.arrived, "nothing is sent while held");
    for command in [&["status"][..], &["show", "while-held"], &["check", "--offline"]] {
        let (_, out, _) = world.onceward(command);
        assert!(out.contains(reason), "{command:?}: {out}");
    }
    assert!(world.onceward(&["queue"]).2.contains(reason));
    let (_, json, _) = world.onceward(&["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json["held"].as_str().is_some_and(|text| text.contains(reason)), "{json}");
    world.wait("the alert", |world| world.alerts("HELD") == 1);
    agent
}

/// A world whose agent has sent ten messages and is stopped; its folder then is copied to `old`.
fn with_a_copy() -> (World, std::path::PathBuf) {
    let world = world();
    let agent = world.agent();
    world.put_many("a", 10);
    world.wait("sent", |world| sent(world) == 10);
    agent.stop();
    let old = world.dir.path().join("old");
    copy(&world.dir.path().join("state"), &old);
    (world, old)
}

#[test]
fn f26_an_older_copy_of_the_state_folder_put_back_sends_nothing_until_adopted() {
    let world = world();
    world.put_many("a", 10);
    let old = world.dir.path().join("old");
    copy(&world.dir.path().join("state"), &old); // ten wait in it
    let agent = world.agent();
    world.wait("sent", |world| sent(world) == 10);
    agent.stop();
    let state = world.dir.path().join("state");
    std::fs::remove_dir_all(&state).expect("removed");
    copy(&old, &state);
    let agent = held(&world, "inbox.db is older than what was seen in it before");
    // Held over restarts, too.
    agent.kill9();
    let agent = held_again(&world);
    // A person decides; the eleven that wait are not sent blindly.
    let (code, out, err) = adopt(&world, "--hold-waiting");
    assert_eq!((code, out.contains("11 waiting messages are HELD")), (0, true), "{out}{err}");
    let new = world.put_plain("after");
    world.wait_inbox(&new, "SENT");
    agent.stop();
    let agent = world.agent();
    assert!(!agent.log().contains("HELD: "), "{}", agent.log());
    let ledger = world.sandbox.ledger().totals();
    assert_eq!((ledger.arrived, ledger.repeated), (11, 0));
    assert_eq!(world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'"), 1);
    assert_eq!(audit(&world), "uid 0 (root)|ADOPT|came from a test");
    agent.stop();
}

fn audit(world: &World) -> String {
    let who = onceward::who::this_process();
    let line: String = world
        .inbox()
        .query_row("SELECT who || '|' || verb || '|' || note FROM audit WHERE verb = 'ADOPT'", [], |row| {
            row.get(0)
        })
        .expect("an audit row");
    line.replace(&who, "uid 0 (root)")
}

fn adopt(world: &World, waiting: &str) -> (i32, String, String) {
    world.onceward(&["adopt", "--note", "came from a test", waiting])
}

#[track_caller]
fn held_again(world: &World) -> Agent {
    let agent = world.agent();
    assert!(agent.log().contains("HELD: nothing is sent"), "{}", agent.log());
    agent
}

#[test]
fn f26_two_agents_on_a_folder_and_its_copy_send_once() {
    let world = world();
    world.faults(&["delay=20ms"]);
    let first = world.agent();
    world.put_many("a", 200);
    world.wait("half-way", |world| sent(world) > 40);
    // A clone of the running folder, files as they are at this moment, started beside it.
    let (state, clone) = (world.dir.path().join("state"), world.dir.path().join("clone"));
    copy(&state, &clone);
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    let settings = settings.replace(&state.display().to_string(), &clone.display().to_string());
    let settings = settings.replace("agent.sock", "clone.sock");
    let other_config = world.dir.path().join("clone.toml");
    std::fs::write(&other_config, settings).expect("written");
    let mut command = Command::new(BIN);
    command.arg("--config").arg(&other_config).arg("run");
    let second = Agent::spawn(command);
    // A torn copy may also be refused as damaged: then it sends nothing either.
    second.wait_log("onceward");
    world.wait("all sent by the first", |world| sent(world) == 200);
    let log = second.log();
    assert!(log.contains("HELD: nothing is sent") && log.contains("is a copy"), "{log}");
    let ledger = world.sandbox.ledger().totals();
    assert_eq!((ledger.arrived, ledger.repeated), (200, 0));
    first.stop();
    second.stop();
}

#[test]
fn f26_each_file_alone_that_is_older_is_seen() {
    let (world, old) = with_a_copy();
    let agent = world.agent();
    world.put_many("b", 5);
    world.wait("sent", |world| sent(world) == 15);
    agent.stop();
    // Put back in place: inode and birth stay, as with `cp` over the file or `rsync --inplace`.
    for file in ["inbox/inbox.db", "outbox/outbox.db"] {
        let path = world.dir.path().join("state").join(file);
        let good = std::fs::read(&path).expect("reads");
        std::fs::write(&path, std::fs::read(old.join(file)).expect("reads")).expect("written");
        let (_, out, _) = world.onceward(&["check", "--offline"]);
        let name = file.rsplit('/').next().expect("a name");
        assert!(out.contains(&format!("{name} is older than what was seen in it before")), "{out}");
        std::fs::write(&path, good).expect("written");
        let _ = std::fs::remove_file(path.with_extension("db-wal"));
        let _ = std::fs::remove_file(path.with_extension("db-shm"));
    }
    let agent = world.agent();
    assert!(!agent.log().contains("HELD: "), "{}", agent.log());
    agent.stop();
}

#[test]
fn f26_the_whole_folder_put_back_in_place_is_seen_by_the_witness_beside_it() {
    let (world, old) = with_a_copy();
    let agent = world.agent();
    world.put_many("b", 5);
    world.wait("sent", |world| sent(world) == 15);
    agent.stop();
    for file in ["inbox/inbox.db", "outbox/outbox.db", "inbox/witness"] {
        let (from, to) = (old.join(file), world.dir.path().join("state").join(file));
        std::fs::write(&to, std::fs::read(from).expect("reads")).expect("written");
    }
    let agent = held(&world, "inbox.db is older than what was seen in it before");
    agent.stop();
    // With the agent down the command takes its lock.
    let (code, out, err) = adopt(&world, "--send-waiting");
    assert_eq!((code, out.contains("adopted: what waits is sent")), (0, true), "{out}{err}");
    assert_eq!(adopt(&world, "--send-waiting").0, 1, "nothing to adopt any more");
    let agent = world.agent();
    world.wait_outbox(&world.put_plain("while-held"), "PUBLISHED");
    agent.stop();
}

#[test]
fn f30_a_swapped_inbox_and_a_lost_witness_hold_everything() {
    let (world, _) = with_a_copy();
    let other = World::new();
    let inbox = world.inbox_path();
    std::fs::rename(&inbox, world.dir.path().join("aside.db")).expect("moved");
    std::fs::rename(other.inbox_path(), &inbox).expect("moved");
    let agent = held(&world, "were not made together");
    agent.stop();
    std::fs::rename(&inbox, other.inbox_path()).expect("moved");
    std::fs::rename(world.dir.path().join("aside.db"), &inbox).expect("moved");
    std::fs::remove_dir_all(world.dir.path().join("state-witness")).expect("removed");
    let agent = held(&world, "the witness beside the state folder is missing");
    let (code, out, err) = adopt(&world, "--send-waiting");
    assert_eq!(code, 0, "{out}{err}");
    world.wait("sent", |world| sent(world) == 11);
    agent.stop();
    let agent = world.agent();
    assert!(!agent.log().contains("HELD: "), "{}", agent.log());
    agent.stop();
}

#[test]
fn f30_a_lost_inbox_refuses_and_neither_run_nor_init_makes_an_empty_one() {
    let (world, _) = with_a_copy();
    std::fs::remove_file(world.inbox_path()).expect("removed");
    for command in [&["run"][..], &["init", "--dir", &world.dir.path().display().to_string()]] {
        let (code, _, err) = world.onceward(command);
        assert_eq!(code, 69, "{err}");
        assert!(err.contains("inbox.db") && !world.inbox_path().exists(), "{err}");
    }
}

#[test]
fn f30_a_corrupt_file_is_refused_kept_and_set_aside_by_restore() {
    let world = world();
    world.put_many("w", 3);
    let backup = world.dir.path().join("backup.tar").display().to_string();
    assert_eq!(world.onceward(&["backup", &backup]).0, 0);
    let path = world.inbox_path();
    let mut bytes = std::fs::read(&path).expect("reads");
    bytes[..100].fill(0x55);
    std::fs::write(&path, &bytes).expect("written");
    let (code, _, err) = world.onceward(&["run"]);
    assert_eq!(code, 69, "{err}");
    assert!(err.contains("inbox.db") && err.contains("restore"), "{err}");
    assert_eq!(std::fs::read(&path).expect("reads"), bytes, "not a byte was changed");
    let (code, out, err) = world.onceward(&["restore", &backup]);
    assert_eq!(code, 0, "{out}{err}");
    let aside = set_aside(&world);
    assert_eq!(std::fs::read(aside.join("inbox.db")).expect("kept"), bytes);
    let agent = held(&world, "restored from");
    let (code, out, err) = adopt(&world, "--send-waiting");
    assert_eq!(code, 0, "{out}{err}");
    world.wait("sent", |world| sent(world) == 4);
    assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    agent.stop();
}

fn set_aside(world: &World) -> std::path::PathBuf {
    std::fs::read_dir(world.dir.path().join("state"))
        .expect("reads")
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.display().to_string().contains("set-aside-"))
        .expect("a folder")
}

#[test]
fn f26_a_backup_under_load_knows_all_that_its_outbox_would_send_and_restores_held() {
    let world = world();
    world.faults(&["delay=2ms"]);
    let agent = world.agent();
    world.put_many("a", 600);
    world.wait("under way", |world| sent(world) > 100);
    let backup = world.dir.path().join("backup.tar");
    let name = backup.display().to_string();
    let (code, out, err) = world.onceward(&["backup", &name]);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(world.onceward(&["backup", &name]).0, 73, "a backup overwrites nothing");
    assert_eq!(world.onceward(&["restore", &name]).0, 75, "not under a running agent");
    world.wait("all sent", |world| sent(world) == 600);
    // In itself it is consistent: of what its outbox has as done, its inbox knows all.
    let unpacked = world.dir.path().join("unpacked");
    std::fs::create_dir(&unpacked).expect("made");
    let tar = Command::new("tar").arg("xf").arg(&backup).arg("-C").arg(&unpacked).status().expect("tar runs");
    assert!(tar.success());
    let both = rusqlite::Connection::open(unpacked.join("outbox/outbox.db")).expect("opens");
    both.execute("ATTACH ?1 AS i", [unpacked.join("inbox/inbox.db").display().to_string()])
        .expect("attached");
    let unknown: i64 = both
        .query_row(
            "SELECT count(*) FROM outbox WHERE status = 'PUBLISHED' AND message_id NOT IN (SELECT message_id FROM i.inbox)",
            [],
            |row| row.get(0),
        )
        .expect("counts");
    assert_eq!(unknown, 0);
    agent.stop();
    // A rehearsal changes nothing and tells what the backup does not know.
    let (code, out, err) = world.onceward(&["restore", &name, "--dry-run"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("messages with a call that the backup does not know"), "{out}");
    assert_eq!(sent(&world), 600);
    let (code, out, err) = world.onceward(&["restore", &name]);
    assert_eq!(code, 0, "{out}{err}");
    let agent = held(&world, "restored from");
    assert_eq!(world.sandbox.ledger().totals().arrived, 600);
    let (code, out, err) = adopt(&world, "--hold-waiting");
    assert_eq!(code, 0, "{out}{err}");
    let new = world.put_plain("after");
    world.wait_inbox(&new, "SENT");
    let ledger = world.sandbox.ledger().totals();
    assert_eq!((ledger.arrived, ledger.repeated), (601, 0));
    agent.stop();
}

#[test]
fn f26_a_damaged_backup_is_refused_and_changes_nothing() {
    let world = world();
    world.put_many("w", 3);
    let backup = world.dir.path().join("backup.tar");
    let name = backup.display().to_string();
    assert_eq!(world.onceward(&["backup", &name]).0, 0);
    let mut bytes = std::fs::read(&backup).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&backup, bytes).expect("written");
    for command in [&["restore", &name][..], &["restore", &name, "--dry-run"]] {
        let (code, out, err) = world.onceward(command);
        assert_eq!((code, err.contains("damaged")), (65, true), "{out}{err}");
    }
    assert!(!world.dir.path().join("state/restoring").exists());
    let agent = world.agent();
    world.wait("sent", |world| sent(world) == 3);
    agent.stop();
}

#[test]
fn f26_a_stale_log_beside_a_restored_file_goes_aside_with_its_database() {
    let world = world();
    world.put_many("w", 2);
    let backup = world.dir.path().join("backup.tar").display().to_string();
    assert_eq!(world.onceward(&["backup", &backup]).0, 0);
    let agent = world.agent();
    world.put_many("later", 20);
    world.wait("sent", |world| sent(world) == 22);
    agent.kill9(); // leaves both logs
    assert!(world.inbox_path().with_extension("db-wal").exists());
    let (code, out, err) = world.onceward(&["restore", &backup]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(set_aside(&world).join("inbox.db-wal").exists());
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 2, "nothing of the old log came back");
    assert_eq!(sent(&world), 0);
}

#[test]
fn f32_a_file_moved_replaced_or_deleted_under_the_agent_stops_it_before_the_next_claim() {
    for (file, how) in [
        ("inbox/inbox.db", "moved"),
        ("inbox/inbox.db", "replaced"),
        ("outbox/outbox.db", "deleted"),
        ("inbox/inbox.db-wal", "deleted"),
        ("outbox/outbox.db-wal", "deleted"),
    ] {
        let (world, old) = with_a_copy();
        let agent = world.agent();
        let path = world.dir.path().join("state").join(file);
        // Rows that come in through a connection of before: the relay sees them, whatever lies at the path.
        let producer = world.outbox();
        producer.execute_batch("SELECT count(*) FROM outbox").expect("opens");
        let aside = world.dir.path().join("aside");
        std::fs::rename(&path, &aside).expect("moved");
        match how {
            "replaced" => copy(&old.join(file), &path),
            "deleted" => std::fs::remove_file(&aside).expect("removed"),
            _ => {}
        }
        producer
            .execute_batch(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
                 INSERT INTO outbox (dedup_key, kind, destination, recipient, payload)
                 SELECT 'n:' || i, 'K', 'gateway', '010', '{}' FROM n",
            )
            .expect("inserted");
        agent.wait_log("HELD: nothing is sent");
        let name = file.rsplit('/').next().expect("a name");
        assert!(
            agent.log().contains(&format!(
                "{name} was {}",
                if how == "replaced" { how } else { "moved or deleted" }
            ))
        );
        std::thread::sleep(std::time::Duration::from_millis(1200));
        assert_eq!(world.sandbox.ledger().totals().arrived, 10, "{file} {how}: {}", agent.log());
        if how != "replaced" {
            assert!(!path.exists(), "nothing is made anew in its place: {file}");
        }
        let sign = std::fs::read_to_string(world.dir.path().join("state/inbox/agent.lock")).expect("reads");
        assert!(sign.contains("HELD: ") && sign.contains("restart the agent"), "{sign}");
        if how == "moved" {
            // Put right, and started again: goes on.
            std::fs::rename(&aside, &path).expect("moved back");
            assert_eq!(adopt(&world, "--send-waiting").0, 1, "a restart is needed, not an adoption");
            agent.stop();
            let agent = world.agent();
            assert!(!agent.log().contains("HELD: "), "{}", agent.log());
            world.wait("all sent", |world| sent(world) == 30);
            agent.stop();
        }
        assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    }
}

#[test]
fn f32_the_whole_folder_replaced_by_an_older_one_is_seen_by_every_command_and_by_the_next_start() {
    let (world, old) = with_a_copy();
    let agent = world.agent();
    world.put_many("b", 5);
    world.wait("sent", |world| sent(world) == 15);
    let state = world.dir.path().join("state");
    std::fs::rename(&state, world.dir.path().join("away")).expect("moved");
    copy(&old, &state);
    agent.wait_log("HELD: nothing is sent: ");
    for command in [&["status"][..], &["check", "--offline"]] {
        let (_, out, _) = world.onceward(command);
        assert!(
            out.contains("an agent is still running that began on the folder which lay here before"),
            "{out}"
        );
    }
    let (code, _, err) = world.onceward(&["run"]);
    assert_eq!((code, err.contains("still running")), (75, true), "{err}");
    agent.stop();
    let agent = held(&world, "inbox.db is older than what was seen in it before");
    assert_eq!(world.sandbox.ledger().totals().arrived, 15);
    agent.stop();
}

#[test]
fn f32_files_put_there_by_others_are_left_alone_by_the_stop() {
    let (world, _) = with_a_copy();
    let agent = world.agent();
    world.put_many("b", 3);
    world.wait("sent", |world| sent(world) == 13);
    let inbox = world.inbox_path();
    let wal = inbox.with_extension("db-wal");
    for (path, bytes) in [(&inbox, &b"another database"[..]), (&wal, b"and its log")] {
        let new = path.with_extension("new");
        std::fs::write(&new, bytes).expect("written");
        std::fs::rename(&new, path).expect("put in its place");
    }
    agent.wait_log("HELD: nothing is sent");
    agent.stop();
    assert_eq!(std::fs::read(&inbox).expect("there"), b"another database");
    assert_eq!(std::fs::read(&wal).expect("there"), b"and its log");
}

#[test]
fn f32_the_folder_deleted_and_made_anew_is_neither_used_nor_given_to_a_second_agent() {
    let (world, _) = with_a_copy();
    let agent = world.agent();
    std::fs::remove_dir_all(world.dir.path().join("state")).expect("removed");
    agent.wait_log("HELD: nothing is sent");
    let init = Command::new(BIN).args(["init", "--dir"]).arg(world.dir.path()).output().expect("runs");
    let (code, _, err) = text(&init);
    assert_eq!((code, err.contains("still running")), (75, true), "{err}");
    assert!(!world.inbox_path().exists() && !world.outbox_path().exists(), "nothing half-made is left");
    agent.kill9();
    let init = Command::new(BIN).args(["init", "--dir"]).arg(world.dir.path()).output().expect("runs");
    assert!(init.status.success(), "{init:?}");
    let agent = world.agent(); // F25: made anew by a person; ids differ from all earlier ones
    let id = world.put_plain("a:0");
    world.wait_inbox(&id, "SENT");
    assert_eq!(world.sandbox.ledger().totals().repeated, 0);
    agent.stop();
}

#[test]
fn f32_a_removed_log_whose_rows_are_lost_with_a_kill_is_known_at_the_next_start() {
    let world = world();
    world.faults(&["delay=10ms"]);
    let agent = world.agent();
    world.put_many("a", 300);
    world.wait("under way", |world| sent(world) > 20);
    // A reader pins the log, so that its rows are nowhere else.
    let reader = world.inbox();
    reader.execute_batch("BEGIN; SELECT count(*) FROM inbox").expect("reads");
    let then = sent(&world);
    world.wait("more", |world| sent(world) > then + 20);
    for suffix in ["db-wal", "db-shm"] {
        std::fs::remove_file(world.inbox_path().with_extension(suffix)).expect("removed");
    }
    agent.wait_log("HELD: nothing is sent");
    agent.kill9(); // the reader stays: its end would copy back what it sees of the log
    let arrived = world.sandbox.ledger().totals().arrived;
    let agent = world.agent();
    let log = agent.log();
    assert!(log.contains("inbox.db is older than what was seen in it before"), "{log}");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let ledger = world.sandbox.ledger().totals();
    assert_eq!((ledger.arrived, ledger.repeated), (arrived, 0));
    agent.stop();
    drop(reader);
}

/// Copies state folder and settings to another place, as a clone of the server does; returns the clone's settings.
fn clone_of(world: &World) -> std::path::PathBuf {
    let (state, clone) = (world.dir.path().join("state"), world.dir.path().join("clone"));
    copy(&state, &clone);
    let settings = std::fs::read_to_string(&world.config).expect("settings");
    let settings = settings.replace(&state.display().to_string(), &clone.display().to_string());
    let config = world.dir.path().join("clone.toml");
    std::fs::write(&config, settings.replace("agent.sock", "clone.sock")).expect("written");
    config
}

/// The inbox that came back does not know what was sent from an application's file since; nor may what waits there go
/// out before a person has looked, with the agent up or down at the adoption.
#[test]
fn f26_sources_of_a_restored_agent_send_nothing_until_each_is_taken_over() {
    for up in [false, true] {
        let world = world();
        let shop = app(&world, "shop", "wal");
        add(&world, "shop", &shop);
        let backup = world.dir.path().join("backup.tar").display().to_string();
        let agent = world.agent();
        assert_eq!(world.onceward(&["backup", &backup]).0, 0);
        world.faults(&["delay=1500ms"]);
        let rows = rusqlite::Connection::open(&shop).expect("opens");
        let sent = put(&rows, "sent", ("", ""));
        world.wait_inbox(&sent, "SENDING");
        world.wait("it has arrived", |world| world.arrivals(&sent) == 1);
        agent.kill9();
        world.faults(&[]);
        assert_eq!(status(&shop, &sent), "PUBLISHING");
        let (code, out, err) = world.onceward(&["restore", &backup]);
        assert_eq!(code, 0, "{out}{err}");
        let waits = put(&rows, "waits", ("", ""));
        let mut agent = up.then(|| held_again(&world));
        let (code, out, err) = adopt(&world, "--hold-waiting");
        let command = format!("onceward source add shop {} --adopt", shop.display());
        assert!(code == 0 && out.contains(&command), "{out}{err}");
        assert_eq!(adopt(&world, "--hold-waiting").0, 1, "once is enough");
        if !up {
            assert_eq!(state(&world, "shop"), "FOREIGN", "while it is down, too");
            agent = Some(world.agent());
        }
        world.wait("seen", |world| state(world, "shop") == "FOREIGN");
        let own = world.put_plain("own");
        world.wait_inbox(&own, "SENT");
        std::thread::sleep(std::time::Duration::from_millis(600));
        assert_eq!((world.arrivals(&sent), world.arrivals(&waits)), (1, 0), "up: {up}");
        let file = shop.to_str().expect("UTF-8");
        let (code, out, err) = world.onceward(&["source", "add", "shop", file, "--adopt"]);
        assert!(code == 0 && out.contains("2 unfinished messages are HELD"), "{out}{err}");
        assert_eq!((status(&shop, &sent).as_str(), status(&shop, &waits).as_str()), ("HELD", "HELD"));
        // From here on it is a source as any other: a person's word on one row, new rows, a kill in the middle.
        assert_eq!(world.onceward(&["--source", "shop", "release", &waits]).0, 0);
        world.wait_inbox(&waits, "SENT");
        world.faults(&["delay=1500ms"]);
        let new = put(&rows, "new", ("", ""));
        world.wait("it has arrived", |world| world.arrivals(&new) == 1);
        agent.expect("an agent").kill9();
        world.faults(&[]);
        let agent = world.agent();
        world.wait_inbox(&new, "ERROR");
        world.wait("closed", |_| status(&shop, &new) == "PUBLISHED");
        assert_eq!((world.arrivals(&sent), world.arrivals(&waits), world.arrivals(&new)), (1, 1, 1));
        agent.stop();
    }
}

/// What an agent has in its hands is given back by its next start although an adoption has given it another id meanwhile.
#[test]
fn f26_a_kill_after_an_adoption_leaves_nothing_waiting_for_a_lease() {
    let (world, old) = with_a_copy();
    let state = world.dir.path().join("state");
    std::fs::remove_dir_all(&state).expect("removed");
    copy(&old, &state);
    let agent = held_again(&world);
    let (code, out, err) = adopt(&world, "--send-waiting");
    assert_eq!(code, 0, "{out}{err}");
    world.faults(&["delay=1500ms"]);
    let id = world.put_plain("in its hands");
    world.wait("it has arrived", |world| world.arrivals(&id) == 1);
    agent.kill9();
    world.faults(&[]);
    let agent = world.agent();
    world.wait_inbox(&id, "ERROR");
    world.wait_outbox(&id, "PUBLISHED");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}

#[test]
fn f26_a_source_of_an_agent_and_its_adopted_clone_is_served_by_one_of_them() {
    let world = world();
    let shop = app(&world, "shop", "wal");
    add(&world, "shop", &shop);
    world.agent().stop();
    let config = clone_of(&world);
    let clone = |args: &[&str]| {
        let done = Command::new(BIN).arg("--config").arg(&config).args(args).output().expect("runs");
        text(&done)
    };
    let (code, out, err) = clone(&["adopt", "--note", "a clone", "--hold-waiting"]);
    assert!(code == 0 && out.contains("source shop is not served"), "{out}{err}");
    world.faults(&["delay=1500ms"]);
    let agent = world.agent();
    let id = put(&rusqlite::Connection::open(&shop).expect("opens"), "one", ("", ""));
    world.wait_inbox(&id, "SENDING");
    let mut command = Command::new(BIN);
    command.arg("--config").arg(&config).arg("run");
    let second = Agent::spawn(command);
    second.wait_log("FOREIGN");
    assert_eq!(status(&shop, &id), "PUBLISHING", "the other one's claim stays");
    world.wait_inbox(&id, "SENT");
    world.wait("closed", |_| status(&shop, &id) == "PUBLISHED");
    assert_eq!(world.arrivals(&id), 1);
    second.stop();
    agent.stop();
}

/// Held, it does not know whether it is the copy: what it takes for its own dead start's may be the original's.
#[test]
fn f26_a_held_clone_leaves_the_claims_in_a_source_alone() {
    let world = world();
    let shop = app(&world, "shop", "wal");
    add(&world, "shop", &shop);
    world.agent().stop();
    let config = clone_of(&world);
    world.faults(&["delay=1500ms"]);
    let agent = world.agent();
    let id = put(&rusqlite::Connection::open(&shop).expect("opens"), "one", ("", ""));
    world.wait("it has arrived", |world| world.arrivals(&id) == 1);
    agent.kill9();
    let mut command = Command::new(BIN);
    command.arg("--config").arg(&config).arg("run");
    let second = Agent::spawn(command);
    second.wait_log("HELD: nothing is sent");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(status(&shop, &id), "PUBLISHING");
    second.stop();
    assert_eq!(status(&shop, &id), "PUBLISHING", "after its stop, too");
    let agent = world.agent();
    world.wait_inbox(&id, "ERROR");
    world.wait("closed", |_| status(&shop, &id) == "PUBLISHED");
    assert_eq!(world.arrivals(&id), 1);
    agent.stop();
}
