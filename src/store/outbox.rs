//! Sole writer of `outbox`: the producer's put, the relay's claim and marks; the operator's verbs are in `verbs`.
//!
//! Every move names the state, and where there is one the owner, that it leaves; the returned bool says whether the
//! row was still there to be moved. Statements are constants; the claim relies on the index `outbox_due`.

pub mod verbs;

use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::purge;
use crate::clock::ms;
use crate::clock::trust::Dates;
use crate::fingerprint;
use crate::limits::AGING_STEP;
use crate::limits::PURGE_ROWS;
use crate::message::{Class, Destination, Message, MessageId, OwnerId};

/// A message as a producer gives it; checks and defaults are in `src/outbox.rs`.
#[derive(Clone)]
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
    if let Some(known) = same_event(connection, message)? {
        return Ok(Put::Same(known));
    }
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
    let (message_id, mut same, wiped): (MessageId, bool, bool) = connection
        .prepare_cached(
            "SELECT message_id, kind IS ?2 AND class IS ?3 AND ordering_key IS ?6
                 AND (wiped_at_ms IS NOT NULL OR (recipient IS ?4 AND payload IS ?5))
                 AND (?7 = '' OR destination = '' OR destination = ?7), wiped_at_ms IS NOT NULL
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
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )?;
    if wiped && same {
        // The trigger could not tell: the fingerprint does, here and now.
        same = purge::recheck(connection, Some(&message.dedup_key), PURGE_ROWS)?.other == 0;
    }
    Ok(match (inserted, same) {
        (1, _) => Put::New(message_id),
        (_, true) => Put::Same(message_id),
        (_, false) => Put::Conflict(message_id),
    })
}

/// The row that stands for the same event, where its payload is the same JSON written differently (spaces, order of
/// keys): the triggers compare bytes, and would put it into quarantine.
fn same_event(connection: &Connection, message: &NewMessage) -> rusqlite::Result<Option<MessageId>> {
    let found: Option<(MessageId, RawText)> = connection
        .prepare_cached(
            "SELECT message_id, payload FROM outbox
              WHERE dedup_key = ?1 AND kind = ?2 AND class = ?3 AND recipient = ?4 AND ordering_key IS ?5
                AND (?6 = '' OR destination = '' OR destination = ?6)",
        )?
        .query_row(
            params![
                message.dedup_key,
                message.kind,
                message.class.as_str(),
                message.recipient,
                message.ordering_key,
                message.destination
            ],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    Ok(found.and_then(|(message_id, payload)| {
        let same = fingerprint::canonical(&payload.lossy()) == fingerprint::canonical(&message.payload);
        same.then_some(message_id)
    }))
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
    /// Columns that do not hold what they should (bytes that are no UTF-8, a blob): it can never be sent.
    pub broken: Vec<&'static str>,
    /// The message; broken columns are shown as well as they can be.
    pub message: Message,
}

const CLAIM: &str = "UPDATE outbox SET status = 'PUBLISHING', claimed_by = ?1, claimed_until_ms = ?2,
         attempts = min(attempts, 999999) + 1, updated_at_ms = ?3
  WHERE id IN (SELECT id FROM outbox
                WHERE status = 'PENDING' AND blocked = 0 AND destination = ?4 AND priority = ?6 AND not_before_ms <= ?3
                ORDER BY not_before_ms, id LIMIT ?5)
  RETURNING id, message_id, dedup_key, kind, class, destination, recipient, payload, ordering_key, priority,
            not_before_ms, expires_at_ms, created_at_ms, traceparent, attempts, reason";

/// PENDING -> PUBLISHING for at most `limit` due rows of one destination, most urgent and oldest first; a row becomes one
/// step more urgent with each [`AGING_STEP`] that it waits, so that nothing starves.
pub fn claim(
    connection: &Connection,
    destination: &dyn ToSql,
    owner: &OwnerId,
    lease_until_ms: i64,
    now_ms: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Claimed>> {
    let mut claim = connection.prepare_cached(CLAIM)?;
    let mut rows = Vec::new();
    for (priority, count) in shares(connection, destination, now_ms, limit)? {
        let taken = claim.query_map(
            params![owner, lease_until_ms, now_ms, destination, count as i64, priority],
            claimed,
        )?;
        for row in taken {
            rows.push(row?);
        }
    }
    // RETURNING promises no order.
    rows.sort_by_key(|row| {
        let Message { priority, not_before_ms, .. } = row.message;
        (urgency(priority.into(), not_before_ms, now_ms), not_before_ms, row.id)
    });
    Ok(rows)
}

/// Priority less the steps that it has aged; smaller goes first.
fn urgency(priority: i64, not_before_ms: i64, now_ms: i64) -> i64 {
    priority - now_ms.saturating_sub(not_before_ms) / ms(AGING_STEP)
}

/// How many rows of each priority a claim of `limit` takes. Reads index entries only, and those of one priority alone
/// where no other has rows.
fn shares(
    connection: &Connection,
    destination: &dyn ToSql,
    now_ms: i64,
    limit: usize,
) -> rusqlite::Result<Vec<(i64, usize)>> {
    let mut heads = connection.prepare_cached(
        "SELECT not_before_ms FROM outbox
          WHERE status = 'PENDING' AND blocked = 0 AND destination = ?1 AND priority = ?2 AND not_before_ms <= ?3
          ORDER BY not_before_ms LIMIT ?4",
    )?;
    let mut waiting = Vec::new();
    for priority in 0..=9i64 {
        if heads.exists(params![destination, priority, now_ms, 1])? {
            waiting.push(priority);
        }
    }
    if let [only] = waiting[..] {
        return Ok(vec![(only, limit)]);
    }
    let mut candidates = Vec::new();
    for priority in waiting {
        for due in heads
            .query_map(params![destination, priority, now_ms, limit as i64], |row| row.get::<_, i64>(0))?
        {
            let due = due?;
            candidates.push((urgency(priority, due, now_ms), due, priority));
        }
    }
    candidates.sort_unstable();
    candidates.truncate(limit);
    let mut shares: Vec<(i64, usize)> = Vec::new();
    for (_, _, priority) in candidates {
        match shares.iter_mut().find(|(known, _)| *known == priority) {
            Some((_, count)) => *count += 1,
            None => shares.push((priority, 1)),
        }
    }
    Ok(shares)
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

/// Reads the columns of a row that anybody may have written: what is broken is noted, not an error, so that one bad
/// row can be parked and never stops the others.
struct Columns<'a, 'r> {
    row: &'a Row<'r>,
    broken: Vec<&'static str>,
}

impl Columns<'_, '_> {
    fn text(&mut self, index: usize, name: &'static str) -> rusqlite::Result<String> {
        Ok(self.optional_text(index, name)?.unwrap_or_else(|| {
            self.broken.push(name);
            String::new()
        }))
    }
    fn optional_text(&mut self, index: usize, name: &'static str) -> rusqlite::Result<Option<String>> {
        Ok(match self.row.get_ref(index)? {
            ValueRef::Null => None,
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Some(text.to_owned()),
                Err(_) => {
                    self.broken.push(name);
                    Some(String::from_utf8_lossy(bytes).into_owned())
                }
            },
            _ => {
                self.broken.push(name);
                None
            }
        })
    }
    fn integer(&mut self, index: usize, name: &'static str) -> rusqlite::Result<Option<i64>> {
        Ok(match self.row.get_ref(index)? {
            ValueRef::Null => None,
            ValueRef::Integer(value) => Some(value),
            _ => {
                self.broken.push(name);
                None
            }
        })
    }
}

fn claimed(row: &Row<'_>) -> rusqlite::Result<Claimed> {
    let mut columns = Columns { row, broken: Vec::new() };
    let attempts = columns.integer(14, "attempts")?.unwrap_or(i64::MAX);
    let message = Message {
        message_id: MessageId::new(columns.text(1, "message_id")?),
        dedup_key: columns.text(2, "dedup_key")?,
        kind: columns.text(3, "kind")?,
        // CHECKed by the schema; anything else would be advertising's stricter hours.
        class: Class::parse(&columns.text(4, "class")?).unwrap_or(Class::Advertising),
        destination: Destination::new(columns.text(5, "destination")?),
        recipient: columns.text(6, "recipient")?,
        payload: columns.text(7, "payload")?,
        ordering_key: columns.optional_text(8, "ordering_key")?,
        priority: columns.integer(9, "priority")?.and_then(|value| value.try_into().ok()).unwrap_or(5),
        not_before_ms: columns.integer(10, "not_before_ms")?.unwrap_or(0),
        expires_at_ms: columns.integer(11, "expires_at_ms")?,
        created_at_ms: columns.integer(12, "created_at_ms")?.unwrap_or(0),
        traceparent: columns.optional_text(13, "traceparent")?,
    };
    let has_reason = !matches!(row.get_ref(15)?, ValueRef::Null);
    Ok(Claimed {
        id: row.get(0)?,
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        again: attempts > 1 || has_reason,
        broken: columns.broken,
        message,
    })
}

/// Text as it is in the file, valid UTF-8 or not: to be compared and bound again byte for byte.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawText(Vec<u8>);

impl RawText {
    /// For people and for comparing with names of ours.
    pub fn lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}
impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}
impl FromSql for RawText {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_bytes().map(|bytes| Self(bytes.to_vec()))
    }
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

/// PUBLISHING -> PENDING on the next day of its window: due then, and not wanted any more after `last_ms`.
pub fn move_day(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    until_ms: i64,
    last_ms: i64,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET status = 'PENDING', reason = ?3, claimed_by = NULL, claimed_until_ms = NULL, not_before_ms = ?4,
                    expires_at_ms = min(coalesce(expires_at_ms, ?5), ?5), attempts = max(0, attempts - 1), updated_at_ms = ?6
              WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2",
        )?
        .execute(params![id, owner, reason, until_ms, last_ms, now_ms])?;
    Ok(moved == 1)
}

/// PUBLISHING -> PENDING, out of the claim's sight until [`go_on`]: the clock cannot be believed now. None of its
/// times is touched.
pub fn hold_for_clock(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET status = 'PENDING', blocked = 2, reason = ?3, claimed_by = NULL, claimed_until_ms = NULL,
                    attempts = max(0, attempts - 1), updated_at_ms = ?4
              WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2",
        )?
        .execute(params![id, owner, reason, now_ms])?;
    Ok(moved == 1)
}

/// What was held because of the clock goes on. Returns how many.
pub fn go_on(connection: &Connection) -> rusqlite::Result<usize> {
    connection.prepare_cached("UPDATE outbox SET blocked = 0 WHERE blocked = 2")?.execute([])
}

/// Waiting rows that a wrong clock may have written: written after `now_ms` or before `first_ms`. Found by their due
/// time, which is as odd (the index `outbox_due`), and in the lanes, behind an earlier row.
pub fn misdated(connection: &Connection, now_ms: i64, first_ms: i64) -> rusqlite::Result<Vec<(i64, Dates)>> {
    let read = |row: &Row<'_>| {
        Ok((row.get(0)?, Dates { created_ms: row.get(1)?, due_ms: row.get(2)?, deadline_ms: row.get(3)? }))
    };
    let mut by_due = connection.prepare_cached(
        "SELECT id, created_at_ms, not_before_ms, expires_at_ms FROM outbox
          WHERE status = 'PENDING' AND blocked = 0 AND destination = ?1 AND priority IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
            AND not_before_ms > ?2 AND not_before_ms < ?3 AND (created_at_ms > ?4 OR created_at_ms < ?5)
            AND typeof(created_at_ms) = 'integer'",
    )?;
    let mut found = Vec::new();
    let mut destination = Some(RawText::default());
    while let Some(name) = destination {
        for (from_ms, to_ms) in [(now_ms, i64::MAX), (i64::MIN, first_ms)] {
            let rows = by_due.query_map(params![name, from_ms, to_ms, now_ms, first_ms], read)?;
            found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        destination = next_destination(connection, &name)?;
    }
    let mut in_lanes = connection.prepare_cached(
        "SELECT id, created_at_ms, not_before_ms, expires_at_ms FROM outbox
          WHERE ordering_key IS NOT NULL AND closed_at_ms IS NULL AND status = 'PENDING' AND blocked = 1
            AND (created_at_ms > ?1 OR created_at_ms < ?2)
            AND typeof(created_at_ms) = 'integer'",
    )?;
    let rows = in_lanes.query_map(params![now_ms, first_ms], read)?;
    found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    Ok(found)
}

/// Other dates for a waiting row that a wrong clock wrote.
pub fn redate(
    connection: &Connection,
    id: i64,
    due_ms: i64,
    deadline_ms: Option<i64>,
    reason: &str,
) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET not_before_ms = ?2, expires_at_ms = ?3, reason = ?4 WHERE id = ?1 AND status = 'PENDING'",
        )?
        .execute(params![id, due_ms, deadline_ms, reason])?;
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

/// PUBLISHING -> PENDING for rows of dead starts of this agent (`AGENT:...` other than `owner`), for those of this
/// start that `is_live` does not know, and for those of other agents where `is_over` says that the lease was not
/// renewed for as long as it lasts (row, owner, end of its lease): the wall clock has no say. Returns how many moved.
pub fn lease_over(
    connection: &Connection,
    owner: &OwnerId,
    now_ms: i64,
    is_live: impl Fn(i64) -> bool,
    mut is_over: impl FnMut(i64, &str, i64) -> bool,
) -> rusqlite::Result<usize> {
    let agent = format!("{}:", owner.as_str().split(':').next().unwrap_or_default());
    let rows: Vec<(i64, RawText, i64)> = connection
        .prepare_cached("SELECT id, claimed_by, claimed_until_ms FROM outbox WHERE status = 'PUBLISHING'")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut moved = 0;
    for (id, claimed_by, until_ms) in rows {
        let by = claimed_by.lossy();
        let stays = if by == owner.as_str() {
            is_live(id)
        } else {
            !by.starts_with(&agent) && !is_over(id, &by, until_ms)
        };
        if stays {
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
pub fn unrouted(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<(i64, RawText)>> {
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
pub fn next_destination(connection: &Connection, after: &RawText) -> rusqlite::Result<Option<RawText>> {
    connection
        .prepare_cached(
            "SELECT destination FROM outbox WHERE status = 'PENDING' AND blocked = 0 AND destination > ?1
              ORDER BY destination LIMIT 1",
        )?
        .query_row(params![after], |row| row.get(0))
        .optional()
}

/// The earliest due time of a destination's waiting rows: ten look-ups, whatever the backlog.
pub fn next_due_ms(connection: &Connection, destination: &dyn ToSql) -> rusqlite::Result<Option<i64>> {
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
            let text = |index| row.get::<_, RawText>(index).map(|text| text.lossy().into_owned());
            Ok(Overdue {
                id: row.get(0)?,
                message_id: MessageId::new(text(1)?),
                destination: Destination::new(text(2)?),
                expires_at_ms: row.get(3)?,
            })
        })?
        .collect()
}

/// Attempts, destination and message id of a row, for texts and retries; `None` if somebody has deleted it.
pub fn facts(connection: &Connection, id: i64) -> rusqlite::Result<Option<Facts>> {
    connection
        .prepare_cached("SELECT attempts, destination, message_id, reason FROM outbox WHERE id = ?1")?
        .query_row([id], |row| {
            let text = |index| row.get::<_, RawText>(index).map(|text| text.lossy().into_owned());
            let attempts: i64 = row.get(0)?;
            Ok(Facts {
                attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
                destination: text(1)?,
                message_id: text(2)?,
                reason: row.get::<_, Option<RawText>>(3)?.map(|text| text.lossy().into_owned()),
            })
        })
        .optional()
}

/// See [`facts`].
pub struct Facts {
    /// Claims so far.
    pub attempts: u32,
    /// Where to.
    pub destination: String,
    /// Which.
    pub message_id: String,
    /// Why it waited before its present claim.
    pub reason: Option<String>,
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

/// Whether a relay has ever had a row of this outbox.
pub fn was_ever_claimed(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM outbox WHERE attempts > 0 OR status NOT IN ('PENDING', 'HELD'))",
        [],
        |row| row.get(0),
    )
}

/// Everything unfinished -> HELD: a file was taken over whose rows another agent may have sent. Returns how many.
pub fn hold_all(connection: &Connection, reason: &str, now_ms: i64) -> rusqlite::Result<usize> {
    let _ = connection.execute(
        "UPDATE outbox SET status = 'PENDING', reason = 'CLAIM_EXPIRED', claimed_by = NULL, claimed_until_ms = NULL,
                updated_at_ms = ?1 WHERE status = 'PUBLISHING'",
        [now_ms],
    )?;
    connection.execute(
        "UPDATE outbox SET status = 'HELD', reason = ?1, updated_at_ms = ?2 WHERE status = 'PENDING'",
        params![reason, now_ms],
    )
}

/// What became of opening a closed row again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rearmed {
    /// It waits again.
    Yes,
    /// It waits, is held or was closed by a rule: nothing to open.
    NotNeeded,
    /// It is in the relay's hands: its mark is still to come. Look again.
    NotYet,
    /// Its content was wiped: there is nothing that could be sent.
    Wiped,
    /// There is no such row in this outbox.
    Missing,
}

/// PUBLISHED -> PENDING for a message proven *not sent*, whose inbox row is gone; with a fresh budget of attempts.
pub fn rearm(
    connection: &Connection,
    message_id: &MessageId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<Rearmed> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET status = 'PENDING', reason = 'NOT_SENT: ' || ?2, attempts = 0, closed_at_ms = NULL,
                    updated_at_ms = ?3
              WHERE message_id = ?1 AND status = 'PUBLISHED' AND payload <> ''",
        )?
        .execute(params![message_id, reason, now_ms])?;
    if moved == 1 { Ok(Rearmed::Yes) } else { could_rearm(connection, message_id) }
}

/// What [`rearm`] would find; changes nothing.
pub fn could_rearm(connection: &Connection, message_id: &MessageId) -> rusqlite::Result<Rearmed> {
    use crate::lifecycle::OutboxState as S;
    let row: Option<(S, bool)> = connection
        .prepare_cached("SELECT status, payload = '' FROM outbox WHERE message_id = ?1")?
        .query_row([message_id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(match row {
        None => Rearmed::Missing,
        Some((_, true)) => Rearmed::Wiped,
        Some((S::Published, _)) => Rearmed::Yes,
        Some((S::Publishing, _)) => Rearmed::NotYet,
        Some(_) => Rearmed::NotNeeded,
    })
}

/// The message id and destination of a row named by its id or its key.
pub fn find(connection: &Connection, id_or_key: &str) -> rusqlite::Result<Option<(MessageId, Destination)>> {
    connection
        .prepare_cached(
            "SELECT message_id, destination FROM outbox WHERE message_id = ?1 OR dedup_key = ?1
              ORDER BY message_id = ?1 DESC LIMIT 1",
        )?
        .query_row([id_or_key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

/// PARKED rows by destination: as many looks as there are PARKED rows.
pub fn parked(connection: &Connection) -> rusqlite::Result<Vec<(String, i64)>> {
    connection
        .prepare_cached(
            "SELECT destination, count(*) FROM outbox WHERE status = 'PARKED' GROUP BY destination",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// PARKED and EXPIRED rows that became so after this moment: (status, destination, count).
pub fn ended_after(connection: &Connection, after_ms: i64) -> rusqlite::Result<Vec<(String, String, i64)>> {
    let mut all = Vec::new();
    for statement in [
        "SELECT status, destination, count(*) FROM outbox WHERE status = 'PARKED' AND updated_at_ms > ?1 GROUP BY destination",
        "SELECT status, destination, count(*) FROM outbox WHERE status = 'EXPIRED' AND updated_at_ms > ?1 GROUP BY destination",
    ] {
        let mut statement = connection.prepare_cached(statement)?;
        let rows = statement.query_map([after_ms], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for row in rows {
            all.push(row?);
        }
    }
    Ok(all)
}

/// Highest id that the quarantine has ever had in this file; 0 for none. Survives a purge.
pub fn last_quarantined(connection: &Connection) -> rusqlite::Result<i64> {
    let last = connection
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'quarantine'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(last.unwrap_or(0))
}

/// Quarantined rows after one id up to another, by destination.
pub fn quarantined(connection: &Connection, after: i64, last: i64) -> rusqlite::Result<Vec<(String, i64)>> {
    connection
        .prepare_cached(
            "SELECT coalesce(destination, ''), count(*) FROM quarantine WHERE id > ?1 AND id <= ?2 GROUP BY 1",
        )?
        .query_map([after, last], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// As [`next_destination`], with rows that have none yet in front (`None` begins).
pub fn next_waiting_destination(
    connection: &Connection,
    after: Option<&str>,
) -> rusqlite::Result<Option<String>> {
    match after {
        None if !unrouted(connection, 1)?.is_empty() => Ok(Some(String::new())),
        after => {
            let after = RawText(after.unwrap_or_default().as_bytes().to_vec());
            // A name that is no text has no lane and is parked at once; it is never asked for here again.
            Ok(next_destination(connection, &after)?.and_then(|raw| String::from_utf8(raw.0).ok()))
        }
    }
}

/// Since when the longest waiting of a destination's due rows could go: its due time, or its arrival if that was
/// later. Ten look-ups, whatever the backlog.
pub fn oldest_due_ms(
    connection: &Connection,
    destination: &str,
    now_ms: i64,
) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(
        "SELECT max(not_before_ms, created_at_ms) FROM outbox
          WHERE status = 'PENDING' AND blocked = 0 AND destination = ?1 AND priority = ?2 AND not_before_ms <= ?3
          ORDER BY not_before_ms LIMIT 1",
    )?;
    let mut oldest: Option<i64> = None;
    for priority in 0..=9 {
        let since: Option<i64> =
            statement.query_row(params![destination, priority, now_ms], |row| row.get(0)).optional()?;
        oldest = oldest.into_iter().chain(since).min();
    }
    Ok(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{self, Part};

    fn put_at(connection: &Connection, key: &str, priority: u8, not_before_ms: i64) {
        let message = NewMessage {
            dedup_key: key.into(),
            kind: "K".into(),
            class: Class::Transactional,
            destination: "d".into(),
            recipient: "010".into(),
            payload: r#"{"a":1,"b":2}"#.into(),
            ordering_key: None,
            priority,
            not_before_ms: Some(not_before_ms),
            expires_at_ms: None,
            traceparent: None,
        };
        assert!(matches!(put(connection, &message), Ok(Put::New(_))), "{key}");
        let other = NewMessage { payload: "{ \"b\": 2, \"a\": 1 }".into(), ..message.clone() };
        assert!(matches!(put(connection, &other), Ok(Put::Same(_))), "the same event, written differently");
        let other = NewMessage { payload: r#"{"a":2}"#.into(), ..message };
        assert!(matches!(put(connection, &other), Ok(Put::Conflict(_))));
    }

    #[test]
    fn the_urgent_go_first_and_nobody_starves() {
        let dir = tempfile::tempdir().expect("a folder");
        let connection = db::create(&dir.path().join("o.db"), Part::Outbox).expect("made");
        let (now_ms, step) = (1_800_000_000_000, ms(AGING_STEP));
        for (key, priority, age) in [
            ("usual", 5, 1),
            ("usual, older", 5, 2),
            ("urgent", 0, 0),
            ("slow, four steps ago", 9, 4 * step),
            ("slow, five steps ago", 9, 5 * step),
            ("not yet due", 0, -1),
        ] {
            put_at(&connection, key, priority, now_ms - age);
        }
        let owner = OwnerId::new("a:1");
        let take = |limit| -> Vec<String> {
            claim(&connection, &"d", &owner, now_ms + 1, now_ms, limit)
                .expect("claims")
                .into_iter()
                .map(|row| row.message.dedup_key)
                .collect()
        };
        assert_eq!(take(2), ["urgent", "slow, five steps ago"]);
        assert_eq!(take(9), ["slow, four steps ago", "usual, older", "usual"]);
        assert!(take(9).is_empty());
    }
}
