//! F24, and the rules of retention against the real binary: what is wiped, what is kept, what stays bounded.
//!
//! Time is moved by moving the rows' own times back, as a clock would have.

use std::time::Duration;

use onceward::db::{self, Durability, Part};
use onceward::retention::pass::{DirectHands, Files, Hands, Pass, Unfinished};
use onceward::retention::{Done, InboxStep, OutboxStep};
use rusqlite::Connection;

use crate::f_source::{add, app, put, status};
use crate::support::World;

const DAY_MS: i64 = 86_400_000;

/// Moves every time of the world's rows back.
fn age(world: &World, days: i64) {
    let ms = days * DAY_MS;
    let outbox = world.outbox();
    // created_at_ms stays: a message is not edited, and retention goes by the end.
    outbox
        .execute("UPDATE outbox SET closed_at_ms = closed_at_ms - ?1 WHERE closed_at_ms IS NOT NULL", [ms])
        .expect("aged");
    outbox.execute("UPDATE quarantine SET at_ms = at_ms - ?1", [ms]).expect("aged");
    let inbox = world.inbox();
    inbox
        .execute(
            "UPDATE inbox SET claimed_at_ms = claimed_at_ms - ?1, finished_at_ms = finished_at_ms - ?1",
            [ms],
        )
        .expect("aged");
    inbox.execute("UPDATE attempt SET started_at_ms = started_at_ms - ?1", [ms]).expect("aged");
}

#[track_caller]
fn purge(world: &World) -> String {
    let (code, out, error) = world.onceward(&["purge"]);
    assert_eq!(code, 0, "{out}{error}");
    out
}

#[track_caller]
fn verified(world: &World) -> String {
    let (code, out, error) = world.onceward(&["verify"]);
    assert_eq!(code, 0, "{out}{error}");
    out
}

fn wiped(world: &World, id: &str) -> bool {
    world
        .outbox()
        .query_row(
            "SELECT wiped_at_ms IS NOT NULL, recipient || payload FROM outbox WHERE message_id = ?1",
            [id],
            |row| {
                let (wiped, body): (bool, String) = (row.get(0)?, row.get(1)?);
                assert_eq!(wiped, body.is_empty(), "number and text go together with the mark");
                Ok(wiped)
            },
        )
        .expect("the row is there")
}

fn sent(world: &World, key: &str) -> String {
    let id = world.put_plain(key);
    world.wait_outbox(&id, "PUBLISHED");
    world.wait_inbox(&id, "SENT");
    id
}

fn insert(connection: &Connection, key: &str, payload: &str) {
    connection
        .execute(
            "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'TEST', 'gateway', '01000000001', ?2)
             ON CONFLICT (dedup_key) DO NOTHING",
            [key, payload],
        )
        .expect("taken");
}

#[test]
fn f24_a_purged_message_is_known_for_the_replay_window_and_not_sent_again() {
    let world = World::new();
    let agent = world.agent();
    let id = sent(&world, "k");
    age(&world, 31);
    assert!(purge(&world).contains("number and text wiped           1"), "bodies are 30 days");
    assert!(wiped(&world, &id));
    let shown = world.onceward(&["show", "k"]).1;
    assert!(shown.contains("went by retention"), "{shown}");

    // The same event again, as plain SQL and by the command: known, and nothing waits for long.
    insert(&world.outbox(), "k", r#"{"x":1}"#);
    world.wait("the repeat is compared", |world| {
        world.count("SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_TEXT'") == 0
    });
    let args =
        ["enqueue", "--key", "k", "--kind", "TEST", "--dest", "gateway", "--to", "01000000001", "--payload"];
    let (code, out, error) = world.onceward(&[&args[..], &[r#"{"x":1}"#]].concat());
    assert_eq!((code, out.trim()), (0, id.as_str()), "{error}");
    assert_eq!(world.count("SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_TEXT'"), 0);
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 0);

    // Other content under the key: found although the first content is gone, by both ways in.
    insert(&world.outbox(), "k", r#"{"x":2}"#);
    world.wait("the other content is in quarantine", |world| {
        world.count("SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_CONTENT'") == 1
    });
    let (code, _, error) = world.onceward(&[&args[..], &[r#"{"x":3}"#]].concat());
    assert_eq!(code, 65, "{error}");
    assert_eq!(world.count("SELECT count(*) FROM quarantine"), 2);
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 1, "one event is one row");

    // A message after it has come through: the repeats are not sent.
    sent(&world, "after");
    assert_eq!(world.arrivals(&id), 1);
    assert_eq!(world.sandbox.ledger().totals().arrived, 2);
    verified(&world);
    agent.stop();
}

#[test]
fn f24_the_key_goes_before_the_guard_and_all_of_it_is_counted() {
    let world = World::new();
    let agent = world.agent();
    for key in ["a", "b", "c"] {
        sent(&world, key);
    }
    let young = sent(&world, "young");
    let old = "dedup_key IN ('a', 'b', 'c')";
    let ms = 401 * DAY_MS;
    world
        .outbox()
        .execute(&format!("UPDATE outbox SET closed_at_ms = closed_at_ms - {ms} WHERE {old}"), [])
        .expect("aged");
    world
        .inbox()
        .execute(
            "UPDATE inbox SET claimed_at_ms = claimed_at_ms - ?1, finished_at_ms = finished_at_ms - ?1 WHERE message_id <> ?2",
            rusqlite::params![ms, young],
        )
        .expect("aged");
    world
        .inbox()
        .execute(
            "UPDATE attempt SET started_at_ms = started_at_ms - ?1 WHERE message_id <> ?2",
            rusqlite::params![ms, young],
        )
        .expect("aged");
    let (code, dry, error) = world.onceward(&["purge", "--dry-run"]);
    assert_eq!(code, 0, "{error}");
    assert!(
        dry.contains("number and text wiped           3") && dry.contains("nothing was changed"),
        "{dry}"
    );
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE wiped_at_ms IS NULL"), 4);

    let said = purge(&world);
    for part in [
        "keys gone                       3",
        "inbox rows gone                 3",
        "lines of the call log gone      3",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 1);
    assert_eq!(world.count("SELECT count(*) FROM inbox"), 1);
    assert_eq!(world.count("SELECT count(*) FROM attempt"), 1);
    let out = verified(&world);
    assert!(out.contains("accepted   4 messages"), "{out}");
    assert!(out.contains("let go     PUBLISHED 3 (by retention)"), "{out}");
    assert!(out.contains("let go     gateway SENT 3 (by retention, or proven not sent)"), "{out}");
    let status = world.onceward(&["status"]).1;
    assert!(status.contains("purge    last done 20"), "{status}");
    agent.stop();
    verified(&world);
}

#[test]
fn nothing_unfinished_or_unsettled_ages_out() {
    let world = World::new();
    let parked = world.put("parked", "nowhere", "{}");
    let agent = world.agent();
    world.wait_outbox(&parked, "PARKED");
    let unknown = unknown(&world, "unknown");
    agent.stop();
    let held = world.put_plain("held");
    assert_eq!(world.onceward(&["hold", &held]).0, 0);
    let waiting = world.put_plain("waiting");
    age(&world, 3_000);
    for _ in 0..2 {
        let said = purge(&world); // the agent is down: done by the command itself
        assert!(said.contains("kept, since not settled         1"), "{said}");
    }
    for id in [&parked, &unknown, &held, &waiting] {
        assert!(!wiped(&world, id), "{id}");
    }
    assert_eq!(world.inbox_state(&unknown).as_deref(), Some("ERROR"));
    assert_eq!(world.count("SELECT count(*) FROM attempt"), 1, "what was tried stays as long as its message");
    let out = verified(&world);
    assert!(out.contains("open       1 PUBLISHED: nobody knows whether it arrived"), "{out}");
}

/// A message whose call was answered by nothing.
fn unknown(world: &World, key: &str) -> String {
    world.faults(&["status=500"]);
    let id = world.put_plain(key);
    world.wait_outbox(&id, "PUBLISHED");
    world.wait_inbox(&id, "ERROR");
    world.faults(&[]);
    id
}

#[test]
fn an_inbox_row_stays_as_long_as_an_outbox_could_hand_its_message_over() {
    let world = World::new();
    let agent = world.agent();
    let id = sent(&world, "k");
    agent.stop();
    // The inbox row looks very old (its clock was wrong), the outbox row is young.
    world
        .inbox()
        .execute_batch(
            "UPDATE inbox SET claimed_at_ms = 1, finished_at_ms = 2; UPDATE attempt SET started_at_ms = 1;
             INSERT INTO onceward_meta VALUES ('purge_cut_ms', '1000')",
        )
        .expect("aged");
    purge(&world);
    assert_eq!(world.inbox_state(&id).as_deref(), Some("SENT"));
    assert_eq!(world.count("SELECT count(*) FROM attempt"), 1);
}

#[test]
fn files_stay_bounded_and_compact_gives_the_space_back() {
    let world = World::new();
    let body = "x".repeat(1_500);
    let pages = |what: &str| -> i64 {
        world.outbox().query_row(&format!("PRAGMA {what}"), [], |row| row.get(0)).expect("reads")
    };
    let mut sizes = Vec::new();
    for round in 0..4 {
        let mut connection = world.outbox();
        let tx = connection.transaction().expect("begins");
        for i in 0..600 {
            tx.execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, status) VALUES (?1, 'TEST', 'gateway', '01000000001', ?2, 'HELD')",
                [format!("{i:x}-{round}"), body.clone()],
            )
            .expect("taken");
        }
        // Given up by a person, long ago.
        tx.execute(
            "UPDATE outbox SET status = 'FAILED', closed_at_ms = ?1 WHERE status = 'HELD'",
            [onceward::clock::wall_ms() - 401 * DAY_MS],
        )
        .expect("closed");
        tx.commit().expect("committed");
        purge(&world);
        assert_eq!(world.count("SELECT count(*) FROM outbox"), 0);
        sizes.push(pages("page_count"));
    }
    assert!(sizes[3] <= sizes[0] + sizes[0] / 10, "freed pages are used again: {sizes:?}");
    assert!(pages("freelist_count") > sizes[0] / 2, "most of it is free");
    let wal = std::fs::metadata(world.outbox_path().with_extension("db-wal")).map_or(0, |file| file.len());
    assert!(wal <= 8 << 20, "the log stays bounded: {wal}");

    let (code, said, error) = world.onceward(&["purge", "--compact"]);
    assert_eq!(code, 0, "{said}{error}");
    assert!(pages("page_count") < sizes[0] / 4, "{said}");
    let temporary = std::fs::read_dir(world.dir.path().join("state/inbox"))
        .expect("lists")
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with("inbox.db"))
        .filter(|entry| !matches!(entry.file_name().to_str(), Some("agent.lock" | "witness" | "reserve")))
        .count();
    assert_eq!(temporary, 0, "no copy is left behind");
    let out = verified(&world);
    assert!(out.contains("accepted   2400 messages") && out.contains("FAILED 2400 (by retention)"), "{out}");
    let id = world.put_plain("next");
    assert_eq!(
        world.count("SELECT max(id) FROM outbox"),
        2401,
        "an id never comes back, not even after a compaction: {id}"
    );
}

#[test]
fn compact_needs_the_agent_stopped() {
    let world = World::new();
    let agent = world.agent();
    let (code, _, error) = world.onceward(&["purge", "--compact"]);
    assert_eq!(code, 75, "{error}");
    assert!(error.contains(&format!("pid {}", agent.pid())), "{error}");
    agent.stop();
}

#[test]
fn a_key_is_not_deleted_by_hand() {
    let world = World::new();
    let agent = world.agent();
    let id = sent(&world, "k");
    agent.stop();
    let error = world.outbox().execute("DELETE FROM outbox", []).expect_err("refused").to_string();
    assert!(error.contains("onceward purge"), "{error}");
    for sql in [
        "UPDATE outbox SET payload = ''",
        "UPDATE outbox SET payload = '', recipient = '', wiped_at_ms = 1",
        "UPDATE outbox SET wiped_at_ms = 1, fingerprint = 'x'",
    ] {
        assert!(world.outbox().execute(sql, []).is_err(), "{sql}");
    }
    age(&world, 31);
    purge(&world);
    assert!(wiped(&world, &id));
    for sql in [
        "UPDATE outbox SET wiped_at_ms = NULL, payload = 'other'",
        "UPDATE outbox SET fingerprint = 'other'",
        "UPDATE outbox SET payload = 'other'",
    ] {
        assert!(world.outbox().execute(sql, []).is_err(), "{sql}");
    }
}

/// Hands that do the work until the N-th step, and die there.
struct Mortal<'a> {
    hands: DirectHands<'a>,
    steps_left: usize,
}

impl Mortal<'_> {
    fn step(&mut self) -> Result<(), Unfinished> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Unfinished::Stopping)?;
        Ok(())
    }
}

impl Hands for Mortal<'_> {
    fn rows(&self) -> usize {
        2
    }
    fn outbox(&mut self, source: usize, step: OutboxStep) -> Result<Done, Unfinished> {
        self.step()?;
        self.hands.outbox(source, step)
    }
    fn inbox(&mut self, step: InboxStep) -> Result<Done, Unfinished> {
        self.step()?;
        self.hands.inbox(step)
    }
    fn pause(&mut self, _took: Duration) -> Result<(), Unfinished> {
        Ok(())
    }
}

#[test]
fn a_pass_that_dies_at_any_step_leaves_both_files_in_agreement() {
    let world = World::new();
    let agent = world.agent();
    for i in 0..5 {
        sent(&world, &format!("k{i}"));
    }
    agent.stop();
    let settings = onceward::config::Settings::load_without_secrets(&world.config).expect("settings");
    let policy = onceward::policy::Policy::new(&settings);
    // 402 days: the ends lie within the span that one pass may take.
    age(&world, 402);
    let mut steps = 0;
    loop {
        let open =
            |path: &std::path::Path, part| db::open_writer(path, part, Durability::Full).expect("opens");
        let (mut outbox, mut inbox) =
            (open(&world.outbox_path(), Part::Outbox), open(&world.inbox_path(), Part::Inbox));
        let readers = (
            db::open_reader(&world.outbox_path(), Part::Outbox).expect("opens"),
            db::open_reader(&world.inbox_path(), Part::Inbox).expect("opens"),
        );
        let pass = Pass {
            files: Files { outboxes: &[Some(&readers.0)], also: &[], inbox: Some(&readers.1) },
            settings: &settings.retention,
            policy: &policy,
            span: Duration::from_secs(7 * 86_400),
        };
        let hands = DirectHands { outbox: &mut outbox, inbox: &mut inbox };
        // Each life gets a little further, and begins with what the one before has left.
        let ended = pass.run(&mut Mortal { hands, steps_left: 1 + steps % 9 }, &mut |_| {}).is_ok();
        drop((outbox, inbox, readers));
        assert_eq!(
            world.count("SELECT count(*) FROM inbox") + gone(&world),
            5,
            "an inbox row goes only after its outbox row"
        );
        assert!(world.count("SELECT count(*) FROM inbox") >= world.count("SELECT count(*) FROM outbox"));
        verified(&world);
        if ended {
            break;
        }
        steps += 1;
        assert!(steps < 60, "it never comes to its end");
    }
    assert!(steps > 5, "it did die on the way");
    assert_eq!(world.count("SELECT count(*) FROM outbox") + world.count("SELECT count(*) FROM inbox"), 0);
}

fn gone(world: &World) -> i64 {
    world.count("SELECT coalesce(sum(count), 0) FROM inbox_ledger")
}

#[test]
fn verify_is_exact_while_retention_takes_keys() {
    let world = World::new();
    let mut connection = world.outbox();
    let tx = connection.transaction().expect("begins");
    for i in 0..3_000 {
        tx.execute(
            "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, status) VALUES (?1, 'TEST', 'gateway', '010', '{}', 'HELD')",
            [i.to_string()],
        )
        .expect("taken");
    }
    let end = onceward::clock::wall_ms() - 401 * DAY_MS;
    tx.execute("UPDATE outbox SET status = 'FAILED', closed_at_ms = ?1", [end]).expect("closed");
    tx.execute("UPDATE outbox SET recipient = '', payload = '', fingerprint = '1:0', wiped_at_ms = 1", [])
        .expect("wiped");
    tx.execute("INSERT INTO onceward_meta VALUES ('purge_asked_ms', '1')", []).expect("asked");
    tx.commit().expect("committed");
    let agent = world.agent();
    let mut seen_in_between = false;
    loop {
        let (code, out, error) = world.onceward(&["verify", "--no-integrity"]);
        assert_eq!(code, 0, "{out}{error}");
        let left = world.count("SELECT count(*) FROM outbox");
        seen_in_between |= left > 0 && left < 3_000;
        if left == 0 {
            break;
        }
    }
    assert!(seen_in_between, "it was looked at on the way");
    assert!(verified(&world).contains("FAILED 3000 (by retention)"));
    agent.stop();
}

#[test]
fn compaction_leaves_no_trace_of_a_wiped_text_in_the_file() {
    let world = World::new();
    let agent = world.agent();
    let mut ids = Vec::new();
    for i in 0..60 {
        // Some in the page, some in pages of their own.
        let text = format!(
            "{{\"t\":\"{}\"}}",
            format!("SECRETWORD{i:02}").repeat(if i % 7 == 0 { 600 } else { 20 })
        );
        ids.push(world.put(&format!("k{i}"), "gateway", &text));
    }
    for id in &ids {
        world.wait_outbox(id, "PUBLISHED");
    }
    agent.stop();
    age(&world, 31);
    // Wiped rows leave traces in the free space of pages, until that is used again or the file is compacted.
    let (code, said, error) = world.onceward(&["purge", "--compact"]);
    assert_eq!(code, 0, "{said}{error}");
    assert_eq!(world.count("SELECT count(*) FROM outbox WHERE wiped_at_ms IS NULL"), 0);
    for name in ["outbox.db", "outbox.db-wal"] {
        // Nobody has the file open now.
        let bytes = std::fs::read(world.dir.path().join("state/outbox").join(name)).unwrap_or_default();
        let left = bytes.windows(10).filter(|window| window == b"SECRETWORD").count();
        assert_eq!(left, 0, "{name} of {} bytes", bytes.len());
    }
}

/// While a source is not listed nothing keeps the inbox from forgetting its messages. So what may be forgotten waits for a
/// person when the file comes back, and what is younger goes on.
#[test]
fn f24_a_source_that_was_away_while_the_inbox_forgot_sends_nothing_old_again() {
    let world = World::new();
    let shop = app(&world, "shop", "delete");
    add(&world, "shop", &shop);
    let agent = world.agent();
    sent(&world, "own");
    world.faults(&["delay=1s"]);
    let rows = Connection::open(&shop).expect("opens");
    let long_ago = onceward::clock::wall_ms() - 401 * DAY_MS;
    let old = put(&rows, "old", (", created_at_ms", &format!(", {long_ago}")));
    world.wait_inbox(&old, "SENDING");
    // Somebody's lock while the outcome comes in: the row keeps its claim.
    rows.execute_batch("BEGIN IMMEDIATE").expect("locked");
    world.wait_inbox(&old, "SENT");
    assert_eq!(world.onceward(&["source", "remove", "shop"]).0, 0);
    agent.kill9();
    rows.execute_batch("COMMIT").expect("unlocked");
    assert_eq!(status(&shop, &old), "PUBLISHING");
    let young = put(&rows, "young", ("", ""));
    world.faults(&[]);
    age(&world, 401);
    purge(&world);
    assert_eq!(world.inbox_state(&old), None, "forgotten");
    let agent = world.agent();
    let said = add(&world, "shop", &shop);
    assert!(said.contains("1 unfinished messages are HELD"), "{said}");
    world.wait_inbox(&young, "SENT");
    assert_eq!((status(&shop, &old).as_str(), world.arrivals(&old)), ("HELD", 1));
    let reason: String = rows
        .query_row("SELECT reason FROM outbox WHERE message_id = ?1", [&old], |row| row.get(0))
        .expect("the row is there");
    assert!(reason.starts_with("ADDED_AGAIN: "), "{reason}");
    agent.stop();
}
