//! Files of earlier versions: the road from each ends at `schema.sql`, and what they know stays known.

use std::path::Path;

use rusqlite::Connection;

use crate::f_reports::{Listening, posted};
use crate::support::World;

const INBOX_1: &str = include_str!("../../src/db/road/inbox_1.sql");

/// Every object with its text, without comments and line breaks.
fn shape(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).expect("the file opens");
    let mut objects: Vec<String> = connection
        .prepare("SELECT type || ' ' || name || ': ' || coalesce(sql, '') FROM sqlite_master")
        .and_then(|mut rows| rows.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    for object in &mut objects {
        let bare: Vec<&str> = object
            .lines()
            .map(|line| line.split_once("--").map_or(line, |(text, _)| text))
            .flat_map(str::split_whitespace)
            .collect();
        *object = bare.join(" ");
    }
    objects.sort();
    objects
}

/// Makes the world's inbox one of the first version, with the same marks; the file stays the same one.
fn first_version(world: &World) -> Connection {
    let connection = world.inbox();
    let marks: Vec<(String, String)> = connection
        .prepare("SELECT key, value FROM onceward_meta WHERE key NOT LIKE '%_schema'")
        .and_then(|mut rows| rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .expect("reads");
    let objects: Vec<String> = connection
        .prepare("SELECT 'DROP ' || type || ' ' || name FROM sqlite_master WHERE type IN ('view', 'table') AND name NOT LIKE 'sqlite_%' ORDER BY type DESC")
        .and_then(|mut rows| rows.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    for drop in objects {
        connection.execute_batch(&drop).expect("dropped");
    }
    connection.execute_batch(INBOX_1).expect("the first version");
    let mark = "INSERT INTO onceward_meta (key, value) VALUES (?1, ?2)";
    connection.execute(mark, ["inbox_schema", "1"]).expect("marked");
    for (key, value) in &marks {
        connection.execute(mark, [key, value]).expect("marked");
    }
    connection
}

#[test]
fn the_road_from_the_first_inbox_ends_at_the_present_shape() {
    let (old, new) = (World::new(), World::new());
    drop(first_version(&old));
    let (code, _, error) = old.onceward(&["status"]);
    assert!(code == 69 && error.contains("version 1") && error.contains("onceward init"), "{code} {error}");
    let (code, _, error) = old.onceward(&["init"]);
    assert_eq!(code, 0, "{error}");
    let (found, expected) = (shape(&old.inbox_path()), shape(&new.inbox_path()));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    let versions = "SELECT group_concat(key || value) FROM (SELECT key, value FROM onceward_meta WHERE key LIKE '%_schema' ORDER BY key)";
    let of =
        |world: &World| -> String { world.inbox().query_row(versions, [], |row| row.get(0)).expect("reads") };
    assert_eq!(
        (of(&old), of(&new)),
        ("inbox_schema2,once_schema1".into(), "inbox_schema2,once_schema1".into())
    );
    old.agent().stop();
}

const OUTBOX_1: &str = include_str!("../../src/db/road/outbox_1.sql");

/// The road of the outbox, in outbox.db by `init` and in an application's file by `source add`.
#[test]
fn the_road_from_the_first_outbox_ends_at_the_present_shape_and_messages_on_it_go() {
    let (old, new) = (World::new(), World::new());
    let first = |path: &Path| {
        let connection = Connection::open(path).expect("the file opens");
        connection.execute_batch(OUTBOX_1).expect("the first version");
        let mark = "INSERT INTO onceward_meta (key, value) VALUES ('outbox_schema', '1')";
        connection.execute(mark, []).expect("marked");
        connection
            .execute("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'K', 'gateway', '01000000001', '{}')", [path.to_str()])
            .expect("a message of that time");
    };
    // outbox.db is made anew in its first shape, with the marks that tie it to its inbox.
    let marks: Vec<(String, String)> = old
        .outbox()
        .prepare("SELECT key, value FROM onceward_meta WHERE key NOT LIKE '%_schema'")
        .and_then(|mut rows| rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .expect("reads");
    let objects: Vec<String> = old
        .outbox()
        .prepare("SELECT 'DROP ' || type || ' ' || name FROM sqlite_master WHERE type IN ('view', 'table') AND name NOT LIKE 'sqlite_%' ORDER BY type DESC")
        .and_then(|mut rows| rows.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    for drop in objects {
        old.outbox().execute_batch(&drop).expect("dropped");
    }
    first(&old.outbox_path());
    for (key, value) in &marks {
        old.outbox()
            .execute("INSERT INTO onceward_meta (key, value) VALUES (?1, ?2)", [key, value])
            .expect("marked");
    }
    let (code, _, error) = old.onceward(&["status"]);
    assert!(code == 69 && error.contains("version 1") && error.contains("onceward init"), "{code} {error}");
    let (code, _, error) = old.onceward(&["init"]);
    assert_eq!(code, 0, "{error}");
    assert_eq!(shape(&old.outbox_path()), shape(&new.outbox_path()));
    let file = old.dir.path().join("shop.db");
    first(&file);
    crate::f_source::add(&old, "shop", &file);
    let agent = old.agent();
    old.wait("both are sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == 2);
    agent.stop();
}

/// Reports of the time before `once`: their repeats are repeats, their contradictions contradict.
#[test]
fn f29_reports_in_a_file_of_the_first_version_are_known_after_the_upgrade() {
    let it = Listening::webhook();
    let file = first_version(&it.world);
    let id = it.world.put("k", "biz", "{}");
    it.world
        .outbox()
        .execute("UPDATE outbox SET status = 'PUBLISHING', claimed_by = 'a:1', claimed_until_ms = 1", [])
        .expect("claimed");
    it.world
        .outbox()
        .execute("UPDATE outbox SET status = 'PUBLISHED', claimed_by = NULL, claimed_until_ms = NULL, closed_at_ms = 2", [])
        .expect("published");
    file.execute(
        "INSERT INTO inbox (consumer, message_id, fingerprint, status, delivery, delivery_code, claimed_by, claimed_at_ms, finished_at_ms, settled_by)
         VALUES ('biz', ?1, 'f', 'SENT', 'DELIVERED', '4100', 'a:1', 1, 2, 'report')",
        [&id],
    )
    .expect("sent");
    for (item, code, verdict, counts, reference) in [
        ("m1/SMS", "4100", "DELIVERED", 1, id.as_str()),
        ("m1/SMS", "4410", "UNDELIVERED", 0, &id),
        ("m2/SMS", "7305", "UNCERTAIN", 1, &id),
        ("m3/SMS", "4100", "DELIVERED", 1, ""),
    ] {
        file.execute(
            "INSERT INTO report (consumer, item, message_id, code, verdict, meaning, way, counts, first_at_ms, last_at_ms)
             VALUES ('biz', ?1, ?2, ?3, ?4, 'in words', 'POLL', ?5, 3, 3)",
            rusqlite::params![item, reference, code, verdict, counts],
        )
        .expect("reported");
    }
    drop(file);
    let (code, _, error) = it.world.onceward(&["init"]);
    assert_eq!(code, 0, "{error}");
    let agent = it.world.agent();
    for (item, code, reference) in
        [("m1", "4100", id.as_str()), ("m1", "4410", &id), ("m2", "7305", &id), ("m3", "4100", "")]
    {
        it.report(&posted(item, "SMS", code, reference, 1_700_000_000));
    }
    assert_eq!(it.world.count("SELECT count(*) FROM report"), 4);
    assert_eq!(it.world.count("SELECT count(*) FROM report WHERE copies = 2"), 4);
    // Another code for the same end has its own row and a say; another end is quarantined.
    it.report(&posted("m1", "SMS", "6600", &id, 1_700_000_000));
    assert_eq!(it.world.count("SELECT count(*) FROM report WHERE counts = 1 AND code = '6600'"), 1);
    it.report(&posted("m1", "SMS", "4430", &id, 1_700_000_000));
    it.world.wait("a contradiction", |world| world.alerts("REPORT_CONFLICT") == 1);
    assert_eq!(it.row(&id), ("SENT".into(), "DELIVERED".into(), "report".into()));
    let quarantined =
        "SELECT count(*) FROM onceward_once_quarantine WHERE reason = 'SAME_EVENT_OTHER_CONTENT'";
    assert_eq!(it.world.count(quarantined), 1);
    // And the agent goes on as before.
    let next = it.world.put_plain("next");
    it.world.wait_inbox(&next, "SENT");
    agent.stop();
}
