//! `verify`: it proves a clean world, beside live traffic too, and finds each kind of fault.

use crate::support::{BIN, World};

/// Runs `verify --json`.
#[track_caller]
fn verify(world: &World) -> (i32, serde_json::Value, String) {
    let (code, out, error) = world.onceward(&["verify", "--json"]);
    let value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{error}"));
    (code, value, error)
}

/// A stopped world with three sent messages.
fn sent_three() -> (World, Vec<String>) {
    let world = World::new();
    let ids: Vec<String> = ["a", "b", "c"].iter().map(|key| world.put_plain(key)).collect();
    let agent = world.agent();
    for id in &ids {
        world.wait_outbox(id, "PUBLISHED");
    }
    agent.stop();
    (world, ids)
}

#[track_caller]
fn finds(world: &World, what: &str, text: &str) {
    let (code, found, error) = verify(world);
    assert_eq!(code, 1, "{found} {error}");
    let hit = found["faults"].as_array().expect("a list").iter().any(|fault| {
        fault["what"].as_str().expect("text").contains(what)
            && fault["text"].as_str().expect("text").contains(text)
    });
    assert!(hit, "{what} {text}: {found}");
}

#[test]
fn a_clean_world_is_proven_agent_up_and_down() {
    let (world, _) = sent_three();
    let (code, found, error) = verify(&world);
    assert_eq!(code, 0, "{found} {error}");
    assert_eq!((&found["accepted"], &found["there"]["PUBLISHED"]), (&3.into(), &3.into()), "{found}");
    assert_eq!(found["inbox"]["gateway SENT"], 3, "{found}");
    assert_eq!(found["sound"].as_array().map(Vec::len), Some(2), "{found}");
    let agent = world.agent();
    assert_eq!(verify(&world).0, 0);
    agent.stop();
}

#[test]
fn it_is_exact_beside_live_traffic() {
    let world = World::new();
    let agent = world.agent();
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            for round in 0..40 {
                world.put_many(&format!("r{round}"), 50);
                world.onceward(&[
                    "enqueue",
                    "--key",
                    &format!("one{round}"),
                    "--kind",
                    "TEST",
                    "--to",
                    "1",
                    "--payload",
                    "{}",
                ]);
            }
        });
        let mut looks = 0;
        while !producer.is_finished() || looks < 3 {
            let (code, found, error) = verify(&world);
            assert_eq!(code, 0, "{found} {error}");
            looks += 1;
        }
    });
    world.wait("all are sent", |world| {
        world.count("SELECT count(*) FROM outbox WHERE closed_at_ms IS NULL") == 0
    });
    let (code, found, _) = verify(&world);
    assert_eq!((code, &found["accepted"]), (0, &2040.into()), "{found}");
    agent.stop();
}

#[test]
fn a_lost_mark_heals_and_is_no_fault() {
    let world = World::new();
    let id = world.put_plain("k");
    let mut agent = world.agent_with(&[("ONCEWARD_KILL_AT", "relay-before-publish")]);
    assert!(!agent.wait_end().success());
    assert_eq!(world.outbox_state(&id).0, "PUBLISHING");
    let (code, found, error) = verify(&world);
    assert_eq!(code, 0, "{found} {error}");
    assert_eq!(found["heals"].as_object().map(|heals| heals.len()), Some(1), "{found}");
}

#[test]
fn a_row_that_vanished_is_missed() {
    let (world, ids) = sent_three();
    // Someone took the guards away first.
    world
        .outbox()
        .execute_batch(
            "DROP TRIGGER outbox_delete_key; DROP TRIGGER outbox_deleted; DELETE FROM outbox WHERE dedup_key = 'b'",
        )
        .expect("gone");
    finds(&world, "outbox", "3 rows were accepted, 2 are there and 0 were let go: 1 are missing");
    finds(&world, &ids[1], "its outbox row is gone, and retention has not taken it");
}

/// An application's file has books of its own, and one that is away proves nothing.
#[test]
fn a_source_is_proven_like_the_agents_own_file() {
    let world = World::new();
    let shop = crate::f_source::app(&world, "shop", "delete");
    crate::f_source::add(&world, "shop", &shop);
    let own = world.put_plain("own");
    let ids: Vec<String> = {
        let file = rusqlite::Connection::open(&shop).expect("opens");
        ["a", "b", "c"].iter().map(|key| crate::f_source::put(&file, key, ("", ""))).collect()
    };
    let agent = world.agent();
    world.wait_outbox(&own, "PUBLISHED");
    world.wait("marked", |_| ids.iter().all(|id| crate::f_source::status(&shop, id) == "PUBLISHED"));
    agent.stop();
    let (code, found, error) = verify(&world);
    assert_eq!(code, 0, "{found} {error}");
    assert_eq!((&found["accepted"], &found["there"]["PUBLISHED"]), (&4.into(), &4.into()), "{found}");
    let away = world.dir.path().join("away.db");
    std::fs::rename(&shop, &away).expect("moved");
    let (code, found, _) = verify(&world);
    assert_eq!((code, &found["ok"]), (1, &false.into()), "{found}");
    assert_eq!(found["unproven"][0]["what"], "source shop", "{found}");
    assert_eq!(found["faults"].as_array().map(Vec::len), Some(0), "{found}");
    std::fs::rename(&away, &shop).expect("back");
    // Forgotten, it takes its rows out of sight, not out of the world.
    let path = shop.to_str().expect("UTF-8");
    assert_eq!(world.onceward(&["source", "remove", "shop"]).0, 0);
    let (code, found, _) = verify(&world);
    assert_eq!((code, &found["ok"]), (0, &true.into()), "{found}");
    assert!(found["open"].to_string().contains("a source was removed"), "{found}");
    assert_eq!(world.onceward(&["source", "add", "shop", path]).0, 0);
    rusqlite::Connection::open(&shop)
        .and_then(|file| {
            file.execute_batch(
                "DROP TRIGGER outbox_delete_key; DROP TRIGGER outbox_deleted; DELETE FROM outbox WHERE dedup_key = 'b'",
            )
        })
        .expect("gone");
    finds(&world, "source shop", "3 rows were accepted, 2 are there and 0 were let go: 1 are missing");
    finds(&world, &ids[1], "its outbox row is gone, and retention has not taken it");
}

#[test]
fn an_inbox_row_that_vanished_is_missed() {
    let (world, ids) = sent_three();
    world.inbox().execute("DELETE FROM inbox WHERE message_id = ?1", [&ids[0]]).expect("gone");
    finds(&world, &ids[0], "outbox PUBLISHED, inbox no row");
}

#[test]
fn states_that_contradict_each_other_are_listed() {
    let (world, ids) = sent_three();
    world
        .outbox()
        .execute_batch(
            "DROP TRIGGER outbox_move; UPDATE outbox SET status = 'EXPIRED' WHERE dedup_key = 'a';
             UPDATE outbox SET status = 'PARKED', closed_at_ms = NULL WHERE dedup_key = 'c'",
        )
        .expect("changed");
    finds(&world, &ids[0], "outbox EXPIRED, inbox SENT");
    finds(&world, &ids[2], "outbox PARKED, inbox SENT");
}

#[test]
fn a_message_under_another_destination_is_listed() {
    let (world, ids) = sent_three();
    world
        .inbox()
        .execute(
            "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms)
             VALUES ('biz', ?1, 'x', 'SENT', 'a:b', 1, 2)",
            [&ids[0]],
        )
        .expect("added");
    finds(&world, &ids[0], "under another destination");
}

#[test]
fn a_sequence_that_was_set_back_is_noticed() {
    let (world, _) = sent_three();
    world.outbox().execute("UPDATE sqlite_sequence SET seq = 1 WHERE name = 'outbox'", []).expect("set back");
    finds(&world, "outbox", "it was set back");
}

#[test]
fn a_damaged_file_is_listed() {
    let (world, _) = sent_three();
    {
        let connection = world.inbox();
        // An index that no longer fits its table: the file opens and reads, and is wrong all the same.
        connection
            .execute_batch(
                "PRAGMA writable_schema = ON;
                 UPDATE sqlite_schema SET sql = 'CREATE INDEX inbox_error ON inbox (finished_at_ms) WHERE status = ''SENT''' WHERE name = 'inbox_error';
                 PRAGMA writable_schema = RESET;",
            )
            .expect("damaged");
    }
    finds(&world, "inbox.db", "inbox_error");
}

#[test]
fn a_member_of_the_group_is_told_what_is_not_proven() {
    if !rustix::process::geteuid().is_root() {
        // Only root can become another user; elsewhere the folder's mode is the test's own business.
        return;
    }
    let (world, _) = sent_three();
    use std::os::unix::fs::PermissionsExt;
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    open(world.dir.path(), 0o755);
    open(&world.dir.path().join("state"), 0o755);
    open(&world.dir.path().join("state/outbox"), 0o777);
    open(&world.outbox_path(), 0o666);
    open(&world.config, 0o644);
    open(&world.dir.path().join("state/inbox"), 0o700);
    let binary = world.dir.path().join("onceward");
    #[expect(clippy::disallowed_methods, reason = "a program, no database")]
    std::fs::copy(BIN, &binary).expect("copied");
    open(&binary, 0o755);
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .arg("--config")
        .arg(&world.config)
        .arg("verify")
        .output()
        .expect("setpriv runs");
    let (code, out, error) = crate::support::text(&output);
    assert_eq!(code, 77, "{out}{error}");
    assert!(out.contains("NOT proven") && error.contains("sudo -u onceward"), "{out}{error}");
}
