//! Schema, transition table and documents say the same; the outbox part works from the distribution's SQLite.

use std::process::Command;

use onceward::db::{Part, migrate};
use onceward::lifecycle::{INBOX_MOVES, InboxMove, InboxState, OUTBOX_MOVES, OutboxState};

/// `'A>B'` pairs of a trigger.
fn pairs(part: Part, trigger: &str) -> Vec<String> {
    let text = migrate::schema(part);
    let start = text.find(&format!("CREATE TRIGGER {trigger} ")).expect("the trigger is there");
    let end = start + text[start..].find("BEGIN").expect("its body");
    let quoted: Vec<&str> = text[start..end].split('\'').skip(1).step_by(2).collect();
    let mut pairs: Vec<String> = quoted.chunks(2).map(|pair| format!("{}>{}", pair[0], pair[1])).collect();
    pairs.sort();
    pairs
}

#[test]
fn the_triggers_mirror_the_transition_table() {
    let mut moves: Vec<String> = OUTBOX_MOVES.iter().map(|(from, _, to)| format!("{from}>{to}")).collect();
    moves.sort();
    moves.dedup();
    assert_eq!(pairs(Part::Outbox, "outbox_move"), moves);
    let mut moves: Vec<String> = INBOX_MOVES
        .iter()
        .filter_map(|(from, _, to)| match to {
            InboxMove::To(to) if from != to => Some(format!("{from}>{to}")),
            _ => None,
        })
        .collect();
    moves.sort();
    moves.dedup();
    assert_eq!(pairs(Part::Inbox, "inbox_move"), moves);
}

#[test]
fn the_checks_list_every_state() {
    let list = |states: Vec<&str>| {
        format!(
            "CHECK ({})",
            states.iter().map(|state| format!("status = '{state}'")).collect::<Vec<_>>().join(" OR ")
        )
    };
    assert!(
        migrate::schema(Part::Outbox).contains(&list(OutboxState::ALL.map(OutboxState::as_str).to_vec()))
    );
    assert!(migrate::schema(Part::Inbox).contains(&list(InboxState::ALL.map(InboxState::as_str).to_vec())));
}

#[test]
fn architecture_names_every_move() {
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/ARCHITECTURE.md"))
        .expect("it is there");
    for (from, event, to) in OUTBOX_MOVES {
        assert!(document.contains(&format!("{from} --{event:?}--> {to}")), "{from} --{event:?}--> {to}");
    }
    for (from, event, to) in INBOX_MOVES {
        let to = match to {
            InboxMove::To(state) => state.to_string(),
            InboxMove::RowDeleted => "(row deleted)".into(),
        };
        assert!(document.contains(&format!("{from} --{event:?}--> {to}")), "{from} --{event:?}--> {to}");
    }
}

#[test]
fn hand_edits_are_refused_with_the_command_to_use() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db");
    let shell = |sql: &str| {
        let output = Command::new("sqlite3").arg(&file).arg(sql).output().expect("sqlite3 runs");
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    // The whole outbox part is made by the distribution's shell, not by the bundled library.
    assert_eq!(shell(migrate::schema(Part::Outbox)), "");
    assert_eq!(
        shell("INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('a', 'K', '010', '{}')"),
        ""
    );
    for (sql, expected) in [
        ("UPDATE outbox SET status = 'PUBLISHED', closed_at_ms = 1", "use onceward hold, release or cancel"),
        ("UPDATE outbox SET payload = 'other'", "use onceward cancel"),
        ("UPDATE outbox SET message_id = 'other'", "use onceward cancel"),
        ("DELETE FROM outbox", "use onceward hold and onceward cancel"),
        (
            "INSERT INTO outbox (dedup_key, kind, recipient, payload, status) VALUES ('b', 'K', '010', '{}', 'PUBLISHED')",
            "starts as PENDING",
        ),
        (
            "INSERT OR REPLACE INTO outbox (id, dedup_key, kind, recipient, payload) VALUES (1, 'c', 'K', '010', '{}')",
            "belongs to another message",
        ),
        (
            "INSERT INTO outbox (dedup_key, kind, recipient, payload, priority) VALUES ('d', 'K', '010', '{}', 11)",
            "priority_is_0_to_9",
        ),
        (
            "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('e', 'K', '010', x'00')",
            "payload_is_text",
        ),
    ] {
        let said = shell(sql);
        assert!(said.contains(expected), "{sql}: {said}");
    }
    for sql in [
        "INSERT OR REPLACE INTO outbox (dedup_key, kind, recipient, payload) VALUES ('a', 'OTHER', '010', '{}')",
        "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('a', 'OTHER', '010', '{}') ON CONFLICT (dedup_key) DO UPDATE SET kind = excluded.kind",
        "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('a', 'K', '010', '{}')",
    ] {
        assert_eq!(shell(sql), "", "{sql}");
    }
    assert_eq!(
        shell(
            "SELECT count(*), kind FROM outbox; SELECT count(*) FROM quarantine; SELECT length(message_id) FROM outbox"
        ),
        "1|K\n1\n30\n"
    );
}

/// An application's file is opened by its own shell too: `once` beside an outbox, in either order.
#[test]
fn the_tables_of_once_are_made_by_the_distributions_shell() {
    for parts in [[Part::Outbox, Part::Once], [Part::Once, Part::Outbox]] {
        let dir = tempfile::tempdir().expect("a folder");
        for sql in parts.map(migrate::schema) {
            let output = Command::new("sqlite3").arg(dir.path().join("app.db")).arg(sql).output();
            let output = output.expect("sqlite3 runs");
            assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        }
    }
    use onceward::once::Refusal;
    let all = [
        Refusal::OtherContent,
        Refusal::SameEffect { event_id: String::new() },
        Refusal::TooOld { before_ms: 0 },
        Refusal::NoTime,
    ];
    let list: Vec<String> = all.iter().map(|refusal| format!("reason = '{}'", refusal.as_str())).collect();
    assert!(migrate::schema(Part::Once).contains(&format!("CHECK ({})", list.join(" OR "))));
}
