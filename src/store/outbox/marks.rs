//! The relay's marks: how a claimed row is left, its lease, and the destination of a row that has none.
//!
//! Each names the row, the state and the owner that it leaves. Never: touches a row that somebody else claimed, other
//! than one whose owner is dead.

use rusqlite::{Connection, params};

use super::RawText;
use crate::message::OwnerId;

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

const PARK: &str =
    "UPDATE outbox SET status = 'PARKED', reason = ?3, claimed_by = NULL, claimed_until_ms = NULL, updated_at_ms = ?4
              WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2";

/// PUBLISHING -> PARKED: waits for a person.
pub fn park(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    leave(connection, PARK, id, owner, reason, now_ms)
}

/// Both ends by rule are one statement; the state is a part of its text, as everywhere.
macro_rules! close_as {
    ($state:literal) => {
        concat!("UPDATE outbox SET status = '", $state, "', reason = ?3, claimed_by = NULL, claimed_until_ms = NULL,
            updated_at_ms = ?4, closed_at_ms = ?4 WHERE id = ?1 AND status = 'PUBLISHING' AND claimed_by = ?2")
    };
}
const SKIP: &str = close_as!("SKIPPED");
const EXPIRE: &str = close_as!("EXPIRED");

/// PUBLISHING -> SKIPPED: policy says never.
pub fn skip(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    leave(connection, SKIP, id, owner, reason, now_ms)
}

/// PUBLISHING -> EXPIRED.
pub fn expire(
    connection: &Connection,
    id: i64,
    owner: &OwnerId,
    reason: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    leave(connection, EXPIRE, id, owner, reason, now_ms)
}

/// One claimed row leaves PUBLISHING by a statement whose parameters are row, owner, reason and time.
pub(super) fn leave(
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

/// Fills in the destination of a row that has none.
pub fn route(connection: &Connection, id: i64, destination: &str) -> rusqlite::Result<bool> {
    let moved = connection
        .prepare_cached(
            "UPDATE outbox SET destination = ?2 WHERE id = ?1 AND destination = '' AND status = 'PENDING'",
        )?
        .execute(params![id, destination])?;
    Ok(moved == 1)
}
