//! Sole writer of the `onceward_once` tables: markers, used-up rights, horizons, refusals.
//!
//! Verbs only; what follows from what they find is decided in `once/`. Every verb runs inside the caller's
//! transaction, together with the effect. Statements run on any SQLite from 3.26 on.

use rusqlite::{Connection, OptionalExtension, params};

/// A marker as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Version and hash of the content that was applied.
    pub fingerprint: String,
    /// JSON; `None` only where an effect broke out of its transaction.
    pub result: Option<String>,
}

/// A marker about to be written.
#[derive(Clone, Copy, Debug)]
pub struct Marker<'a> {
    /// Namespace.
    pub consumer: &'a str,
    /// The logical event.
    pub event_id: &'a str,
    /// Version and hash of its content.
    pub fingerprint: &'a str,
    /// The right it uses up.
    pub effect_key: Option<&'a str>,
    /// The event it corrects.
    pub corrects: Option<&'a str>,
    /// Its own time, UTC milliseconds.
    pub occurred_at_ms: Option<i64>,
    /// Now, UTC milliseconds.
    pub at_ms: i64,
}

/// The marker of an event, if there is one.
pub fn known(connection: &Connection, consumer: &str, event_id: &str) -> rusqlite::Result<Option<Known>> {
    connection
        .prepare_cached(
            "SELECT fingerprint, result FROM onceward_once WHERE consumer = ?1 AND event_id = ?2",
        )?
        .query_row([consumer, event_id], |row| Ok(Known { fingerprint: row.get(0)?, result: row.get(1)? }))
        .optional()
}

/// How far back the consumer's memory reaches, UTC milliseconds; `None` = it never forgot anything.
pub fn horizon(connection: &Connection, consumer: &str) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached("SELECT before_ms FROM onceward_once_horizon WHERE consumer = ?1")?
        .query_row([consumer], |row| row.get(0))
        .optional()
}

/// The event that used up a right.
pub fn effect_owner(
    connection: &Connection,
    consumer: &str,
    effect_key: &str,
) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT event_id FROM onceward_once_effect WHERE consumer = ?1 AND effect_key = ?2")?
        .query_row([consumer, effect_key], |row| row.get(0))
        .optional()
}

/// Writes the marker (and uses up its right) before the effect runs. The unique indexes are the guard: a
/// rival's marker makes this fail, never pass.
pub fn mark(connection: &Connection, marker: &Marker<'_>) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO onceward_once (consumer, event_id, fingerprint, effect_key, corrects, occurred_at_ms, processed_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            marker.consumer,
            marker.event_id,
            marker.fingerprint,
            marker.effect_key,
            marker.corrects,
            marker.occurred_at_ms,
            marker.at_ms,
        ])?;
    if let Some(effect_key) = marker.effect_key {
        connection
            .prepare_cached(
                "INSERT INTO onceward_once_effect (consumer, effect_key, event_id, at_ms) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![
                marker.consumer,
                effect_key,
                marker.event_id,
                marker.occurred_at_ms.unwrap_or(marker.at_ms)
            ])?;
    }
    Ok(())
}

/// Adds the result to a marker that has none. False if there is no such marker.
pub fn keep_result(
    connection: &Connection,
    consumer: &str,
    event_id: &str,
    result: &str,
) -> rusqlite::Result<bool> {
    let kept = connection
        .prepare_cached(
            "UPDATE onceward_once SET result = ?3 WHERE consumer = ?1 AND event_id = ?2 AND result IS NULL",
        )?
        .execute([consumer, event_id, result])?;
    Ok(kept == 1)
}

/// Keeps a refused delivery for a person; the same refusal again only counts.
pub fn refuse(
    connection: &Connection,
    delivery: &Marker<'_>,
    reason: &str,
    first_event_id: Option<&str>,
    first_fingerprint: Option<&str>,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO onceward_once_quarantine (consumer, event_id, reason, fingerprint, first_event_id,
                                                   first_fingerprint, occurred_at_ms, first_at_ms, last_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
             ON CONFLICT (consumer, event_id, reason, fingerprint) DO UPDATE
               SET count = count + 1, last_at_ms = excluded.last_at_ms",
        )?
        .execute(params![
            delivery.consumer,
            delivery.event_id,
            reason,
            delivery.fingerprint,
            first_event_id,
            first_fingerprint,
            delivery.occurred_at_ms,
            delivery.at_ms,
        ])?;
    Ok(())
}

/// Moves the horizon forward, never back.
pub fn raise_horizon(connection: &Connection, consumer: &str, before_ms: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO onceward_once_horizon (consumer, before_ms) VALUES (?1, ?2)
             ON CONFLICT (consumer) DO UPDATE SET before_ms = max(before_ms, excluded.before_ms)",
        )?
        .execute(params![consumer, before_ms])?;
    Ok(())
}

/// Deletes at most `limit` markers from before the horizon, oldest first. Markers without a time of their own
/// stay.
pub fn forget(connection: &Connection, consumer: &str, limit: usize) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "DELETE FROM onceward_once WHERE id IN (
               SELECT id FROM onceward_once
                WHERE consumer = ?1 AND occurred_at_ms IS NOT NULL
                  AND occurred_at_ms < (SELECT before_ms FROM onceward_once_horizon WHERE consumer = ?1)
                ORDER BY occurred_at_ms LIMIT ?2)",
        )?
        .execute(params![consumer, limit as i64])
}

/// Deletes at most `limit` used-up rights from before `before_ms`, never past the horizon.
pub fn forget_effects(
    connection: &Connection,
    consumer: &str,
    before_ms: i64,
    limit: usize,
) -> rusqlite::Result<usize> {
    connection
        .prepare_cached(
            "DELETE FROM onceward_once_effect WHERE consumer = ?1 AND effect_key IN (
               SELECT effect_key FROM onceward_once_effect
                WHERE consumer = ?1 AND at_ms < ?2
                  AND at_ms < (SELECT before_ms FROM onceward_once_horizon WHERE consumer = ?1)
                LIMIT ?3)",
        )?
        .execute(params![consumer, before_ms, limit as i64])
}

/// Forgets one event that used up no right, whatever its age and without a horizon: for a consumer whose effect finds
/// nothing to do once the event's subject is gone.
pub fn forget_event(connection: &Connection, consumer: &str, event_id: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM onceward_once WHERE consumer = ?1 AND event_id = ?2 AND effect_key IS NULL",
        )?
        .execute([consumer, event_id])?;
    Ok(())
}

/// Refusals that came last before `before_ms` go: few, in a file where a person is told of each.
pub fn forget_refused(connection: &Connection, before_ms: i64) -> rusqlite::Result<usize> {
    connection
        .prepare_cached("DELETE FROM onceward_once_quarantine WHERE last_at_ms < ?1")?
        .execute([before_ms])
}

/// A refused delivery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quarantined {
    /// Namespace.
    pub consumer: String,
    /// The event as it was named.
    pub event_id: String,
    /// In capitals, e.g. `SAME_EVENT_OTHER_CONTENT`.
    pub reason: String,
    /// Of the refused content.
    pub fingerprint: String,
    /// The event that stands, where there is one.
    pub first_event_id: Option<String>,
    /// Of the content that stands.
    pub first_fingerprint: Option<String>,
    /// When it was last refused, UTC milliseconds.
    pub last_at_ms: i64,
    /// How often.
    pub count: i64,
}

/// Refused deliveries, newest first, at most `limit`.
pub fn quarantined(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<Quarantined>> {
    connection
        .prepare_cached(
            "SELECT consumer, event_id, reason, fingerprint, first_event_id, first_fingerprint, last_at_ms, count
               FROM onceward_once_quarantine ORDER BY id DESC LIMIT ?1",
        )?
        .query_map([limit as i64], |row| {
            Ok(Quarantined {
                consumer: row.get(0)?,
                event_id: row.get(1)?,
                reason: row.get(2)?,
                fingerprint: row.get(3)?,
                first_event_id: row.get(4)?,
                first_fingerprint: row.get(5)?,
                last_at_ms: row.get(6)?,
                count: row.get(7)?,
            })
        })?
        .collect()
}
