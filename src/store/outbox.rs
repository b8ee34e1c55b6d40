//! Sole writer of `outbox`: the producer's put, the relay's claim and marks; the operator's verbs are in `verbs`.
//!
//! Every move names the state, and where there is one the owner, that it leaves; the returned bool says whether the
//! row was still there to be moved. Statements are constants; the claim relies on the index `outbox_due`.

pub mod verbs;

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::message::{Class, Destination, Message, MessageId, OwnerId};

/// A message as a producer gives it.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// From business keys, 1-200 characters: one event is one row.
    pub dedup_key: String,
    /// What it is about.
    pub kind: String,
    /// Sending hours.
    pub class: Class,
    /// Empty = by route.
    pub destination: String,
    /// To whom.
    pub recipient: String,
    /// JSON text.
    pub payload: String,
    /// Order lane.
    pub ordering_key: Option<String>,
    /// 0-9.
    pub priority: u8,
    /// Due time, `None` = now.
    pub not_before_ms: Option<i64>,
    /// Deadline.
    pub expires_at_ms: Option<i64>,
    /// W3C trace context.
    pub traceparent: Option<String>,
}

/// What became of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// A new row.
    New(MessageId),
    /// The same event again: the first row stands.
    Same(MessageId),
    /// The same key with other content: the first row stands, this content is in quarantine.
    Conflict(MessageId),
}

const PUT: &str =
    "INSERT INTO outbox (dedup_key, kind, class, destination, recipient, payload, ordering_key, priority,
                     not_before_ms, expires_at_ms, traceparent)
  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
          coalesce(?9, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)), ?10, ?11)
  ON CONFLICT (dedup_key) DO NOTHING";

/// Inserts inside the caller's transaction; repeating it is harmless.
pub fn put(connection: &Connection, message: &NewMessage) -> rusqlite::Result<Put> {
    let inserted = connection.prepare_cached(PUT)?.execute(params![
        message.dedup_key,
        message.kind,
        message.class.as_str(),
        message.destination,
        message.recipient,
        message.payload,
        message.ordering_key,
        message.priority,
        message.not_before_ms,
        message.expires_at_ms,
        message.traceparent,
    ])?;
    let (message_id, same): (MessageId, bool) = connection
        .prepare_cached(
            "SELECT message_id, kind IS ?2 AND class IS ?3 AND recipient IS ?4 AND payload IS ?5 AND ordering_key IS ?6
                 AND (?7 = '' OR destination = '' OR destination = ?7)
               FROM outbox WHERE dedup_key = ?1",
        )?
        .query_row(
            params![
                message.dedup_key,
                message.kind,
                message.class.as_str(),
                message.recipient,
                message.payload,
                message.ordering_key,
                message.destination
            ],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
    Ok(match (inserted, same) {
        (1, _) => Put::New(message_id),
        (_, true) => Put::Same(message_id),
        (_, false) => Put::Conflict(message_id),
    })
}

/// A claimed row.
#[derive(Debug)]
pub struct Claimed {
    /// Row id.
    pub id: i64,
    /// Claims so far, this one included.
    pub attempts: u32,
    /// It was handed over before: look in the inbox first.
    pub again: bool,
    /// The message.
    pub message: Message,
}

const CLAIM: &str = "UPDATE outbox SET status = 'PUBLISHING', claimed_by = ?1, claimed_until_ms = ?2,
         attempts = attempts + 1, updated_at_ms = ?3
  WHERE id IN (SELECT id FROM outbox
                WHERE status = 'PENDING' AND blocked = 0 AND destination = ?4
                  AND priority IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9) AND not_before_ms <= ?3
                ORDER BY priority, not_before_ms LIMIT ?5)
  RETURNING id, message_id, dedup_key, kind, class, destination, recipient, payload, ordering_key, priority,
            not_before_ms, expires_at_ms, created_at_ms, traceparent, attempts, reason";

/// PENDING -> PUBLISHING for at most `limit` due rows of one destination, most urgent and oldest first.
pub fn claim(
    connection: &Connection,
    destination: &str,
    owner: &OwnerId,
    lease_until_ms: i64,
    now_ms: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Claimed>> {
    let mut rows = connection
        .prepare_cached(CLAIM)?
        .query_map(params![owner, lease_until_ms, now_ms, destination, limit as i64], claimed)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    // RETURNING promises no order.
    rows.sort_by_key(|row| (row.message.priority, row.message.not_before_ms, row.id));
    Ok(rows)
}

/// PENDING -> PUBLISHING for one row whatever its due time, e.g. to close it by the rules of a claimed row.
pub fn claim_one(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    lease_until_ms: i64,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET status = 'PUBLISHING', claimed_by = ?2, claimed_until_ms = ?3, updated_at_ms = ?4
              WHERE id = ?1 AND status = 'PENDING'",
        )?
        .execute(params![id, owner, lease_until_ms, now_ms])?;
    Ok(moved == 1)
}

fn claimed(row: &Row<'_>) -> rusqlite::Result<Claimed> {
    let class: String = row.get(4)?;
    let attempts: u32 = row.get(14)?;
    let reason: Option<String> = row.get(15)?;
    Ok(Claimed {
        id: row.get(0)?,
        attempts,
        again: attempts > 1 || reason.is_some(),
        message: Message {
            message_id: row.get(1)?,
            dedup_key: row.get(2)?,
            kind: row.get(3)?,
            // CHECKed by the schema; anything else would be advertising's stricter hours.
            class: Class::parse(&class).unwrap_or(Class::Advertising),
            destination: row.get(5)?,
            recipient: row.get(6)?,
            payload: row.get(7)?,
            ordering_key: row.get(8)?,
            priority: row.get(9)?,
            not_before_ms: row.get(10)?,
            expires_at_ms: row.get(11)?,
            created_at_ms: row.get(12)?,
            traceparent: row.get(13)?,
        },
    })
}

const PUBLISH: &str =
    "UPDATE outbox SET status = 'PUBLISHED', reason = NULL, claimed_by = NULL, claimed_until_ms = NULL,
         updated_at_ms = ?3, closed_at_ms = ?3
  WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2";

/// PUBLISHING -> PUBLISHED: the inbox has it.
pub fn publish(connection: &Connection, id: i64, owner: &OwnerId, now_ms: i64) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached(PUBLISH)?.execute(params![id, owner, now_ms])? == 1)
}

/// How a row goes back to PENDING.
#[derive(Clone, Debug)]
pub struct Postpone {
    /// Due time from now on; `None` = unchanged, so its place in the order stays.
    pub not_before_ms: Option<i64>,
    /// Whether the claim's attempt is given back.
    pub give_back: bool,
    /// Why it waits.
    pub reason: String,
}

/// PUBLISHING -> PENDING.
pub fn postpone(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    how: &Postpone,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET status = 'PENDING', reason = ?3, claimed_by = NULL, claimed_until_ms = NULL,
                    not_before_ms = coalesce(?4, not_before_ms), attempts = max(0, attempts - ?5), updated_at_ms = ?6
              WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2",
        )?
        .execute(params![id, owner, how.reason, how.not_before_ms, i64::from(how.give_back), now_ms])?;
    Ok(moved == 1)
}

/// PUBLISHING -> PARKED: waits for a person.
pub fn park(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET status = 'PARKED', reason = ?3, claimed_by = NULL, claimed_until_ms = NULL, updated_at_ms = ?4
              WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2",
        )?
        .execute(params![id, owner, reason, now_ms])?;
    Ok(moved == 1)
}

/// PUBLISHING -> SKIPPED: policy says never.
pub fn skip(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    close(connection, "UPDATE outbox SET status = 'SKIPPED', reason = ?3, claimed_by = NULL, claimed_until_ms = NULL,
            updated_at_ms = ?4, closed_at_ms = ?4 WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2", id, owner, reason, now_ms)
}

/// PUBLISHING -> EXPIRED.
pub fn expire(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    close(connection, "UPDATE outbox SET status = 'EXPIRED', reason = ?3, claimed_by = NULL, claimed_until_ms = NULL,
            updated_at_ms = ?4, closed_at_ms = ?4 WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2", id, owner, reason, now_ms)
}

fn close(
    connection: &Connection,
    statement: &str,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    Ok(connection.prepare_cached(statement)?.execute(params![id, owner, reason, now_ms])? == 1)
}

/// PUBLISHING -> PENDING for rows of dead starts of this agent (`AGENT:...` other than `owner`), and of anybody whose
/// lease is over. `is_live` keeps rows that this start still holds in memory. Returns how many moved.
pub fn lease_over(
    connection: &Connection,
    owner: &OwnerId,
    now_ms: i64,
    is_live: impl Fn(i64) -> bool,
) -> rusqlite::Result<usize> {
    let agent = owner.as_str().split(':').next().unwrap_or_default();
    let rows: Vec<(i64, String)> = connection
        .prepare_cached(
            "SELECT id, claimed_by FROM outbox
              WHERE status = 'PUBLISHING' AND (claimed_until_ms < ?1 OR claimed_by = ?2 OR substr(claimed_by, 1, length(?3)) = ?3)",
        )?
        .query_map(params![now_ms, owner, format!("{agent}:")], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut moved = 0;
    for (id, claimed_by) in rows {
        if claimed_by == owner.as_str() && is_live(id) {
            continue;
        }
        moved += connection
            .prepare_cached(
                "UPDATE outbox SET status = 'PENDING', reason = 'CLAIM_EXPIRED', claimed_by = NULL, claimed_until_ms = NULL,
                        attempts = max(0, attempts - 1), updated_at_ms = ?3
                  WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2",
            )?
            .execute(params![id, claimed_by, now_ms])?;
    }
    Ok(moved)
}

/// A longer lease for rows that this start still holds in memory.
pub fn extend_lease(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    lease_until_ms: i64,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached("UPDATE outbox SET claimed_until_ms = ?3 WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2")?
        .execute(params![id, owner, lease_until_ms])?;
    Ok(moved == 1)
}

/// PENDING rows without a destination: (id, kind), oldest first.
pub fn unrouted(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<(i64, String)>> {
    connection
        .prepare_cached("SELECT id, kind FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND destination = '' LIMIT ?1")?
        .query_map([limit as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Fills in the destination of a row that has none.
pub fn route(connection: &Connection, id: i64, destination: &str) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET destination = ?2 WHERE id = ?1 AND destination = '' AND status = 'PENDING'",
        )?
        .execute(params![id, destination])?;
    Ok(moved == 1)
}

/// The first destination after `after` that has waiting rows: a walk over the index, not over the rows.
pub fn next_destination(connection: &Connection, after: &str) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached(
            "SELECT destination FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND destination > ?1
              ORDER BY destination LIMIT 1",
        )?
        .query_row([after], |row| row.get(0))
        .optional()
}

/// The earliest due time of a destination's waiting rows: ten look-ups, whatever the backlog.
pub fn next_due_ms(connection: &Connection, destination: &str) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(
        "SELECT not_before_ms FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND destination = ?1 AND priority = ?2
          ORDER BY not_before_ms LIMIT 1",
    )?;
    let mut earliest = None;
    for priority in 0..=9 {
        let due: Option<i64> =
            statement.query_row(params![destination, priority], |row| row.get(0)).optional()?;
        earliest = match (earliest, due) {
            (Some(a), Some(b)) => Some(std::cmp::min::<i64>(a, b)),
            (a, b) => a.or(b),
        };
    }
    Ok(earliest)
}

/// A PENDING row past its deadline.
pub struct Overdue {
    /// Row id.
    pub id: i64,
    /// Its message.
    pub message_id: MessageId,
    /// Its destination (may be empty).
    pub destination: Destination,
    /// The deadline.
    pub expires_at_ms: i64,
}

/// PENDING rows past their deadline, at most `limit`.
pub fn overdue(connection: &Connection, now_ms: i64, limit: usize) -> rusqlite::Result<Vec<Overdue>> {
    connection
        .prepare_cached(
            "SELECT id, message_id, destination, expires_at_ms FROM outbox
              WHERE status = 'PENDING' AND expires_at_ms IS NOT NULL AND expires_at_ms <= ?1 ORDER BY expires_at_ms LIMIT ?2",
        )?
        .query_map(params![now_ms, limit as i64], |row| {
            Ok(Overdue { id: row.get(0)?, message_id: row.get(1)?, destination: row.get(2)?, expires_at_ms: row.get(3)? })
        })?
        .collect()
}

/// The earliest deadline among waiting rows.
pub fn next_deadline_ms(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached(
            "SELECT expires_at_ms FROM outbox WHERE status = 'PENDING' AND expires_at_ms IS NOT NULL ORDER BY expires_at_ms LIMIT 1",
        )?
        .query_row([], |row| row.get(0))
        .optional()
}
