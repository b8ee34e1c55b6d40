//! Retention's verbs on `outbox`, `quarantine`, `inbox`, `attempt` and `report`: find by index, wipe, delete.
//!
//! Each change names what it relies on (closed, wiped, settled, older than); zero rows changed means there was nothing
//! to do. No verb looks at more rows than its limit: history costs nothing. What is deleted is counted by triggers.
//! Never: touches an unfinished outbox row (a trigger refuses it), a SENDING or an ERROR row.

use rusqlite::{Connection, OptionalExtension, params};

use super::once;
use crate::fingerprint;
use crate::lifecycle::{InboxState, OutboxState};
use crate::message::Destination;
use crate::report;

/// A closed row whose body is still there.
#[derive(Clone)]
pub struct Body {
    /// Row.
    pub id: i64,
    /// Its end, UTC milliseconds.
    pub closed_at_ms: i64,
    /// Message.
    pub message_id: String,
    /// Destination.
    pub destination: String,
    /// Kind of end.
    pub status: OutboxState,
    /// Hash of what it says, to stand in for it.
    pub fingerprint: String,
}

/// Place in the order (end, row) after which to go on.
pub type Cursor = (i64, i64);
/// Before every row.
pub const START: Cursor = (i64::MIN, i64::MIN);

const BODIES: &str =
    "SELECT id, closed_at_ms, message_id, destination, status, kind, recipient, payload FROM outbox
  WHERE closed_at_ms IS NOT NULL AND wiped_at_ms IS NULL AND closed_at_ms < ?3 AND closed_at_ms >= ?1
    AND (closed_at_ms > ?1 OR id > ?2)
  ORDER BY closed_at_ms, id LIMIT ?4";

/// Closed rows with a body that ended before `before_ms`, oldest first, after the cursor.
pub fn bodies(
    connection: &Connection,
    after: Cursor,
    before_ms: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Body>> {
    connection
        .prepare_cached(BODIES)?
        .query_map(params![after.0, after.1, before_ms, limit as i64], |row| {
            let (kind, recipient, payload): (String, String, String) =
                (row.get(5)?, row.get(6)?, row.get(7)?);
            Ok(Body {
                id: row.get(0)?,
                closed_at_ms: row.get(1)?,
                message_id: row.get(2)?,
                destination: row.get(3)?,
                status: row.get(4)?,
                fingerprint: fingerprint::of_parts(&kind, &recipient, &payload),
            })
        })?
        .collect()
}

/// Recipient and payload go, the fingerprint stays in their place.
pub fn wipe(connection: &Connection, id: i64, fingerprint: &str, now_ms: i64) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET recipient = '', payload = '', fingerprint = ?2, wiped_at_ms = ?3
              WHERE id = ?1 AND closed_at_ms IS NOT NULL AND wiped_at_ms IS NULL",
        )?
        .execute(params![id, fingerprint, now_ms])?;
    Ok(moved == 1)
}

/// A wiped row: its key alone.
#[derive(Clone, Debug)]
pub struct Key {
    /// Row.
    pub id: i64,
    /// Its end, UTC milliseconds.
    pub closed_at_ms: i64,
    /// Message.
    pub message_id: String,
    /// Destination.
    pub destination: String,
    /// Kind of end.
    pub status: OutboxState,
}

const KEYS: &str = "SELECT id, closed_at_ms, message_id, destination, status FROM outbox
  WHERE closed_at_ms IS NOT NULL AND wiped_at_ms IS NOT NULL AND closed_at_ms < ?3 AND closed_at_ms >= ?1
    AND (closed_at_ms > ?1 OR id > ?2)
  ORDER BY closed_at_ms, id LIMIT ?4";

/// Wiped rows that ended before `before_ms`, oldest first, after the cursor.
pub fn keys(
    connection: &Connection,
    after: Cursor,
    before_ms: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Key>> {
    connection
        .prepare_cached(KEYS)?
        .query_map(params![after.0, after.1, before_ms, limit as i64], |row| {
            Ok(Key {
                id: row.get(0)?,
                closed_at_ms: row.get(1)?,
                message_id: row.get(2)?,
                destination: row.get(3)?,
                status: row.get(4)?,
            })
        })?
        .collect()
}

/// The oldest end among wiped rows.
pub fn oldest_key_ms(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached(
            "SELECT closed_at_ms FROM outbox WHERE closed_at_ms IS NOT NULL AND wiped_at_ms IS NOT NULL
              ORDER BY closed_at_ms LIMIT 1",
        )?
        .query_row([], |row| row.get(0))
        .optional()
}

/// The key goes: from now on its event would be a new one.
pub fn delete_key(connection: &Connection, id: i64, before_ms: i64) -> rusqlite::Result<bool> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM outbox
              WHERE id = ?1 AND closed_at_ms IS NOT NULL AND wiped_at_ms IS NOT NULL AND closed_at_ms < ?2",
        )?
        .execute(params![id, before_ms])?;
    Ok(gone == 1)
}

/// Whether this outbox file still has the message, in any state.
pub fn outbox_has(connection: &Connection, message_id: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM outbox WHERE message_id = ?1)")?
        .query_row([message_id], |row| row.get(0))
}

/// Number and text of at most `limit` quarantined rows older than `before_ms` go.
pub fn wipe_quarantine(connection: &Connection, before_ms: i64, limit: usize) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "UPDATE quarantine SET recipient = NULL, payload = NULL
              WHERE id IN (SELECT id FROM quarantine
                            WHERE (recipient IS NOT NULL OR payload IS NOT NULL) AND at_ms < ?1
                            ORDER BY at_ms LIMIT ?2)",
        )?
        .execute(params![before_ms, limit as i64])
}

/// At most `limit` quarantined rows older than `before_ms` go.
pub fn delete_quarantine(connection: &Connection, before_ms: i64, limit: usize) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "DELETE FROM quarantine
              WHERE id IN (SELECT id FROM quarantine WHERE at_ms < ?1 ORDER BY at_ms LIMIT ?2)",
        )?
        .execute(params![before_ms, limit as i64])
}

/// How many quarantined rows the two verbs above would wipe and delete now.
pub fn count_quarantine(
    connection: &Connection,
    bodies_before_ms: i64,
    keys_before_ms: i64,
) -> rusqlite::Result<(usize, usize)> {
    connection.query_row(
        "SELECT (SELECT count(*) FROM quarantine WHERE (recipient IS NOT NULL OR payload IS NOT NULL) AND at_ms < ?1),
                (SELECT count(*) FROM quarantine WHERE at_ms < ?2)",
        params![bodies_before_ms, keys_before_ms],
        |row| Ok((row.get::<_, i64>(0)? as usize, row.get::<_, i64>(1)? as usize)),
    )
}

/// Whether a repeat waits for its comparison.
pub fn recheck_waits(connection: &Connection) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM quarantine WHERE reason = 'SAME_KEY_OTHER_TEXT')")?
        .query_row([], |row| row.get(0))
}

/// Compares at most `limit` repeats with what stands under their keys; with a key, those of that key alone.
/// The same: it is dropped, as the very same event. Other content: it stays in quarantine as such, under an id of its own
/// for the alert.
pub fn recheck(
    connection: &Connection,
    dedup_key: Option<&str>,
    limit: usize,
) -> rusqlite::Result<Rechecked> {
    let rows: Vec<(i64, bool)> = connection
        .prepare_cached(
            "SELECT q.id, first.fingerprint, q.kind, q.recipient, q.payload, first.kind, first.recipient, first.payload
               FROM quarantine AS q LEFT JOIN outbox AS first ON first.dedup_key = q.dedup_key
              WHERE q.reason = 'SAME_KEY_OTHER_TEXT' AND (?1 IS NULL OR q.dedup_key = ?1) LIMIT ?2",
        )?
        .query_map(params![dedup_key, limit as i64], |row| {
            // A trigger sees a row before its CHECKs do: there may be blobs and bytes that are no text. What cannot be
            // compared (also another version, or the row is gone) is kept aside where a person sees it.
            let text = |at| row.get_ref(at).ok().and_then(|value| value.as_str().ok());
            let of = |from: usize| Some((text(from)?, text(from + 1)?, text(from + 2)?));
            let known = text(1)
                .map(str::to_owned)
                .or_else(|| of(5).map(|(kind, to, payload)| fingerprint::of_parts(kind, to, payload)));
            let same = known
                .zip(of(2))
                .is_some_and(|(known, (kind, to, payload))| fingerprint::is_of(&known, kind, to, payload));
            Ok((row.get(0)?, same))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut done = Rechecked::default();
    for (id, same) in rows {
        if !same {
            connection
                .prepare_cached(
                    "INSERT INTO quarantine (at_ms, dedup_key, first_message_id, kind, class, destination, recipient,
                                             payload, ordering_key, reason)
                     SELECT at_ms, dedup_key, first_message_id, kind, class, destination, recipient, payload,
                            ordering_key, 'SAME_KEY_OTHER_CONTENT'
                       FROM quarantine WHERE id = ?1",
                )?
                .execute([id])?;
            done.other += 1;
        } else {
            done.same += 1;
        }
        connection.prepare_cached("DELETE FROM quarantine WHERE id = ?1")?.execute([id])?;
    }
    Ok(done)
}

/// What [`recheck`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rechecked {
    /// The same event again.
    pub same: usize,
    /// Other content: now in quarantine.
    pub other: usize,
}

/// A row of the inbox or the call log, as the walk from the oldest on sees it.
#[derive(Clone, Debug)]
pub struct Aged {
    /// Row.
    pub id: i64,
    /// Destination.
    pub consumer: String,
    /// Message.
    pub message_id: String,
    /// State of the inbox row; `None` in the call log.
    pub status: Option<InboxState>,
    /// When it was made, UTC milliseconds.
    pub made_at_ms: i64,
    /// When it came to its end, UTC milliseconds.
    pub ended_at_ms: Option<i64>,
}

/// Inbox rows after row `after`, in the order of arrival.
pub fn inbox_rows(connection: &Connection, after: i64, limit: usize) -> rusqlite::Result<Vec<Aged>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, status, claimed_at_ms, finished_at_ms FROM inbox
              WHERE id > ?1 ORDER BY id LIMIT ?2",
        )?
        .query_map(params![after, limit as i64], |row| {
            Ok(Aged {
                id: row.get(0)?,
                consumer: row.get(1)?,
                message_id: row.get(2)?,
                status: Some(row.get(3)?),
                made_at_ms: row.get(4)?,
                ended_at_ms: row.get(5)?,
            })
        })?
        .collect()
}

/// A settled inbox row that ended before `before_ms` goes. The caller has seen that no outbox has the message any more.
pub fn delete_inbox_row(connection: &Connection, id: i64, before_ms: i64) -> rusqlite::Result<bool> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM inbox WHERE id = ?1 AND (status = 'SENT' OR status = 'FAILED') AND finished_at_ms < ?2",
        )?
        .execute(params![id, before_ms])?;
    Ok(gone == 1)
}

/// Lines of the call log after row `after`, in the order of arrival.
pub fn attempts(connection: &Connection, after: i64, limit: usize) -> rusqlite::Result<Vec<Aged>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, started_at_ms FROM attempt WHERE id > ?1 ORDER BY id LIMIT ?2",
        )?
        .query_map(params![after, limit as i64], |row| {
            let started_at_ms = row.get(3)?;
            Ok(Aged {
                id: row.get(0)?,
                consumer: row.get(1)?,
                message_id: row.get(2)?,
                status: None,
                made_at_ms: started_at_ms,
                ended_at_ms: Some(started_at_ms),
            })
        })?
        .collect()
}

/// A line of the call log goes, unless the inbox still has its message.
pub fn delete_attempt(connection: &Connection, id: i64, before_ms: i64) -> rusqlite::Result<bool> {
    let gone = connection
        .prepare_cached(
            "DELETE FROM attempt WHERE id = ?1 AND started_at_ms < ?2
                AND NOT EXISTS (SELECT 1 FROM inbox
                                 WHERE inbox.consumer = attempt.consumer AND inbox.message_id = attempt.message_id)",
        )?
        .execute(params![id, before_ms])?;
    Ok(gone == 1)
}

/// Reports after row `after`, in the order of arrival.
pub fn reports(connection: &Connection, after: i64, limit: usize) -> rusqlite::Result<Vec<Aged>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, first_at_ms, last_at_ms FROM report WHERE id > ?1 ORDER BY id LIMIT ?2",
        )?
        .query_map(params![after, limit as i64], |row| {
            Ok(Aged {
                id: row.get(0)?,
                consumer: row.get(1)?,
                message_id: row.get(2)?,
                status: None,
                made_at_ms: row.get(3)?,
                ended_at_ms: Some(row.get(4)?),
            })
        })?
        .collect()
}

/// A report goes, unless the inbox still has its message: it forbids a second send as long as that could happen. Its
/// markers go with it; told again after that, it names no message of this agent.
pub fn delete_report(connection: &Connection, id: i64, before_ms: i64) -> rusqlite::Result<bool> {
    let gone: Option<(Destination, String, String, String, bool)> = connection
        .prepare_cached(
            "DELETE FROM report WHERE id = ?1 AND last_at_ms < ?2
                AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.message_id = report.message_id)
             RETURNING account, item, code, message_id,
                       counts AND message_id <> '' AND verdict IN ('DELIVERED', 'UNDELIVERED')",
        )?
        .query_row(params![id, before_ms], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .optional()?;
    let Some((account, item, code, message_id, ended)) = gone else { return Ok(false) };
    let [reports, ends] = report::consumers(&account);
    once::forget_event(connection, &reports, &report::event(&item, &code, &message_id))?;
    // Else the marker, if there is one, is another report's.
    if ended {
        once::forget_event(connection, &ends, &item)?;
    }
    Ok(true)
}

/// What stands beside messages that were ERROR once, so never much: look-ups, notes of re-arming, deeds; and what `once`
/// refused of the reports.
pub fn delete_aside(connection: &Connection, before_ms: i64) -> rusqlite::Result<usize> {
    let mut gone = super::audit::forget(connection, before_ms, i64::MAX as usize)?;
    gone += once::forget_refused(connection, before_ms)?;
    for statement in [
        "DELETE FROM inquiry WHERE last_at_ms < ?1
            AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.message_id = inquiry.message_id)",
        "DELETE FROM rearm WHERE done_at_ms < ?1
            AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.message_id = rearm.message_id)",
    ] {
        gone += connection.prepare_cached(statement)?.execute([before_ms])?;
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};

    fn plan(part: Part, sql: &str) -> String {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(migrate::schema(part)).expect("the schema");
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("prepares");
        let count = statement.parameter_count();
        let lines = statement
            .query_map(rusqlite::params_from_iter(vec![1i64; count]), |row| row.get::<_, String>(3))
            .expect("explains")
            .collect::<rusqlite::Result<Vec<_>>>()
            .expect("reads");
        lines.join("; ")
    }

    #[track_caller]
    fn uses(part: Part, sql: &str, index: &str) {
        let plan = plan(part, sql);
        assert!(plan.contains(index) && !plan.contains("B-TREE"), "{sql}: {plan}");
        assert!(
            !plan.contains("SCAN outbox") || plan.contains(&format!("SCAN outbox USING INDEX {index}")),
            "{plan}"
        );
    }

    #[test]
    fn no_step_scans_or_sorts_history() {
        uses(Part::Outbox, BODIES, "outbox_body (closed_at_ms>? AND closed_at_ms<?)");
        uses(Part::Outbox, KEYS, "outbox_key (closed_at_ms>? AND closed_at_ms<?)");
        uses(
            Part::Outbox,
            "SELECT id FROM quarantine WHERE (recipient IS NOT NULL OR payload IS NOT NULL) AND at_ms < ?1 ORDER BY at_ms LIMIT ?2",
            "quarantine_body",
        );
        uses(
            Part::Outbox,
            "SELECT id FROM quarantine WHERE at_ms < ?1 ORDER BY at_ms LIMIT ?2",
            "quarantine_age",
        );
        uses(Part::Inbox, "SELECT id FROM inbox WHERE id > ?1 ORDER BY id LIMIT ?2", "INTEGER PRIMARY KEY");
    }
}
