//! What must hold after each world, read from both files by plain SQL of its own.

use std::collections::BTreeMap;

use onceward::ledger::{Verdict, adds_up, pair};
use onceward::lifecycle::{InboxState, OutboxState};
use rusqlite::Connection;

use crate::vendor::Truth;

/// What producers were told.
#[derive(Debug, Default)]
pub struct Told {
    /// Key to message id, for each commit that was acknowledged.
    pub acknowledged: BTreeMap<String, String>,
}

struct Row {
    id: String,
    status: OutboxState,
    wiped: bool,
}

/// `keys_may_go`: retention may have let go of keys (the clock leapt by years).
pub fn holds(
    outbox: &Connection,
    inbox: &Connection,
    told: &Told,
    truth: &Truth,
    keys_may_go: bool,
) -> Result<(), String> {
    let text = |error: rusqlite::Error| format!("the ledger cannot be read: {error}");
    for (name, connection) in [("outbox", outbox), ("inbox", inbox)] {
        let said: String =
            connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(text)?;
        if said != "ok" {
            return Err(format!("{name}.db is damaged: {said}"));
        }
    }
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut statement = outbox
        .prepare("SELECT dedup_key, message_id, status, wiped_at_ms IS NOT NULL FROM outbox")
        .map_err(text)?;
    let found = statement
        .query_map([], |row| {
            Ok((row.get::<_, String>(0)?, Row { id: row.get(1)?, status: row.get(2)?, wiped: row.get(3)? }))
        })
        .map_err(text)?;
    for row in found {
        let (key, row) = row.map_err(text)?;
        rows.insert(key, row);
    }
    let mut states: BTreeMap<String, (InboxState, Option<String>)> = BTreeMap::new();
    let mut statement = inbox.prepare("SELECT message_id, status, settled_by FROM inbox").map_err(text)?;
    let found = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, (row.get(1)?, row.get(2)?))))
        .map_err(text)?;
    for row in found {
        let (id, state) = row.map_err(text)?;
        if states.insert(id.clone(), state).is_some() {
            return Err(format!("{id} stands twice in the inbox"));
        }
    }

    // Each acknowledged enqueue is there, under the id that the producer was told.
    for (key, id) in &told.acknowledged {
        match rows.get(key) {
            Some(row) if row.id == *id => {}
            Some(row) => return Err(format!("{key} was acknowledged as {id} and is {}", row.id)),
            None if keys_may_go => {}
            None => return Err(format!("{key} was acknowledged (as {id}) and is gone")),
        }
    }
    // Each pair is legal, and nothing is left in the air.
    for (key, row) in &rows {
        let state = states.get(&row.id).map(|(state, _)| *state);
        let gone_by_retention = keys_may_go && row.wiped && state.is_none();
        if let Verdict::Fault(why) = pair(row.status, state)
            && !gone_by_retention
        {
            return Err(format!("{key} ({}): {}/{state:?}: {why}", row.id, row.status));
        }
        if row.status == OutboxState::Publishing {
            return Err(format!("{key} ({}) is PUBLISHING for ever", row.id));
        }
        if state == Some(InboxState::Sending) {
            return Err(format!("{key} ({}) is SENDING for ever", row.id));
        }
    }
    // Whatever reached the vendor and was not proven otherwise has a record; whatever has none was never there.
    let kept: Vec<&str> = rows.values().map(|row| row.id.as_str()).collect();
    for (id, known) in &truth.ids {
        if known.open > 1 {
            return Err(format!("{id} reached the vendor twice"));
        }
        let stands = states.get(id);
        if known.open == 1 && stands.is_none() && !keys_may_go {
            return Err(format!("{id} reached the vendor and has no record ({known:?})"));
        }
        if known.requests > 0 && !kept.contains(&id.as_str()) && !keys_may_go {
            return Err(format!("{id} reached the vendor and its outbox row is gone"));
        }
    }
    // The worker's own word is the vendor's.
    for (id, (state, by)) in &states {
        let known = truth.ids.get(id).copied().unwrap_or_default();
        if *state == InboxState::Sent && by.as_deref() == Some("worker") && known.delivered == 0 {
            return Err(format!("{id} is SENT by the answer and was never delivered"));
        }
        if *state == InboxState::Failed
            && by.as_deref() == Some("worker")
            && known.delivered > 0
            && !known.lied
        {
            return Err(format!("{id} is FAILED by the answer and was delivered"));
        }
    }
    // The counts that outlive the rows.
    let count = |what: &str| -> Result<i64, String> {
        outbox
            .query_row("SELECT count FROM outbox_ledger WHERE what = ?1", [what], |row| row.get(0))
            .map_err(text)
    };
    let deleted = count("PUBLISHED")? + count("SKIPPED")? + count("EXPIRED")? + count("FAILED")?;
    if !adds_up(count("ACCEPTED")?, rows.len() as i64, deleted, deleted) {
        return Err(format!("accepted {} <> there {} + deleted {deleted}", count("ACCEPTED")?, rows.len()));
    }
    Ok(())
}
