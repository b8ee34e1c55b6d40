//! The only way back: a closed row is opened again, under the same message id, once its message is proven *not sent*.
//!
//! Never: looks into the inbox; its row there is gone and noted (`store/rearm.rs`) before this is called.

use rusqlite::{Connection, OptionalExtension, params};

use crate::message::MessageId;

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
