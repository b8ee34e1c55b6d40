//! The relay's claim: due rows of one destination, most urgent first, and read as they are.
//!
//! Relies on the index `outbox_due`: look-ups in proportion to what is claimed, never to the backlog. Never: fails
//! because of what somebody wrote into a row; such a row is claimed as broken.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, ToSql, params};

use crate::clock::ms;
use crate::limits::AGING_STEP;
use crate::message::{Class, Destination, Message, MessageId, OwnerId};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{self, Part};
    use crate::store::outbox::{NewMessage, Put, put};

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
