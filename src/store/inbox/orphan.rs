//! SENDING rows that nobody can finish any more, for the sweeper: they may have been sent, so they end as ERROR. Serves F8.

use rusqlite::{Connection, params};

use super::reports::{Applied, apply_reports};
use crate::lifecycle::InboxState;
use crate::message::{Destination, MessageId, OwnerId};
use crate::store::attempt::{self, Attempt, AttemptOutcome};
use crate::store::tally;

/// A SENDING row nobody can finish any more.
#[derive(Debug, Clone)]
pub struct Orphan {
    /// Row.
    pub id: i64,
    /// Destination.
    pub consumer: Destination,
    /// Message.
    pub message_id: MessageId,
    /// Who had it.
    pub claimed_by: String,
    /// Since when.
    pub claimed_at_ms: i64,
}

/// SENDING rows of other starts than `owner`, at most `limit`: one agent a folder, so those starts are dead.
pub fn orphans(connection: &Connection, owner: &OwnerId, limit: u32) -> rusqlite::Result<Vec<Orphan>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, claimed_by, claimed_at_ms FROM inbox
              WHERE status = 'SENDING' AND claimed_by <> ?1 ORDER BY claimed_at_ms LIMIT ?2",
        )?
        .query_map(params![owner, limit], orphan)?
        .collect()
}

/// SENDING rows of this start: as many as workers are in a call. How old each is tells the monotonic clock of whoever
/// asks again, never its stamp.
pub fn under_way(connection: &Connection, owner: &OwnerId) -> rusqlite::Result<Vec<Orphan>> {
    connection
        .prepare_cached(
            "SELECT id, consumer, message_id, claimed_by, claimed_at_ms FROM inbox
              WHERE status = 'SENDING' AND claimed_by = ?1",
        )?
        .query_map([owner], orphan)?
        .collect()
}

fn orphan(row: &rusqlite::Row<'_>) -> rusqlite::Result<Orphan> {
    Ok(Orphan {
        id: row.get(0)?,
        consumer: row.get(1)?,
        message_id: row.get(2)?,
        claimed_by: row.get(3)?,
        claimed_at_ms: row.get(4)?,
    })
}

/// SENDING -> ERROR for one orphan: it may have been sent, so it never is again. False if somebody was first, or if
/// reports that waited settled it at once.
pub fn settle_orphan(
    connection: &Connection,
    orphan: &Orphan,
    by: &str,
    day: &str,
    now_ms: i64,
) -> rusqlite::Result<bool> {
    let reason = "OWNER_DEAD: the agent stopped between its claim and the record of the answer";
    let moved = connection
        .prepare_cached(
            "UPDATE inbox SET status = 'ERROR', reason = ?3, finished_at_ms = ?4, settled_by = ?5
              WHERE id = ?1 AND status = 'SENDING' AND claimed_by = ?2",
        )?
        .execute(params![orphan.id, orphan.claimed_by, reason, now_ms, by])?;
    if moved == 1 {
        attempt::append(
            connection,
            &Attempt {
                consumer: orphan.consumer.clone(),
                message_id: orphan.message_id.clone(),
                started_at_ms: orphan.claimed_at_ms,
                waiting_us: 0,
                timing: Default::default(),
                outcome: AttemptOutcome::Unknown,
                http_status: None,
                vendor_code: None,
                reason: Some(reason.to_owned()),
                claimed_by: OwnerId::new(&orphan.claimed_by),
                traceparent: None,
            },
        )?;
        tally::add(connection, day, orphan.consumer.as_str(), InboxState::Error.as_str(), 1)?;
        let applied = apply_reports(connection, &orphan.consumer, &orphan.message_id, day, now_ms)?;
        return Ok(!matches!(applied, Applied::Moved { .. }));
    }
    Ok(false)
}
