//! Room: SENDING rows that nobody can finish become ERROR, at the start for dead owners and later for stale ones.
//!
//! Such a message may have been sent, so it never is again: a person or the reconciler settles it. Runs as work of the
//! inbox's one writer. Serves F8 and the second half of F10. Never touches the outbox.

use std::time::Duration;

use rusqlite::Connection;

use crate::alert::{Alerts, Cause};
use crate::clock::{ms, wall_ms};
use crate::db;
use crate::db::writer::Work;
use crate::limits::SWEEP_MAX;
use crate::message::OwnerId;
use crate::policy::Policy;
use crate::store::inbox::{self, Orphan};

/// At the start, before any worker: every SENDING row belongs to a dead start. Returns what is ERROR now.
pub fn recover(
    connection: &mut Connection,
    owner: &OwnerId,
    policy: &Policy,
) -> rusqlite::Result<Vec<Orphan>> {
    let mut all = Vec::new();
    loop {
        let now_ms = wall_ms();
        let (left_sending, errors) =
            db::write(connection, |tx| settle(tx, owner, i64::MIN, "start", policy, now_ms))?;
        all.extend(errors);
        if left_sending == 0 {
            return Ok(all);
        }
    }
}

/// Tells a person about each, but in one alert for each destination.
pub fn tell(alerts: &Alerts, cause: Cause, settled: &[Orphan]) {
    let mut by_destination: Vec<(&str, Vec<&Orphan>)> = Vec::new();
    for orphan in settled {
        log::warn!(
            "{} ERROR dest={} its owner {} is dead: it may or may not have been sent, and is not sent again",
            orphan.message_id,
            orphan.consumer,
            orphan.claimed_by
        );
        match by_destination.iter_mut().find(|(name, _)| *name == orphan.consumer.as_str()) {
            Some((_, list)) => list.push(orphan),
            None => by_destination.push((orphan.consumer.as_str(), vec![orphan])),
        }
    }
    for (destination, list) in by_destination {
        let text = format!(
            "{} messages were being sent when their owner died: ERROR, not sent again (first: {})",
            list.len(),
            list[0].message_id
        );
        alerts.raise_many(cause, destination, text, list.len() as i64);
    }
}

/// Work: stale SENDING rows of any owner, the present one included.
pub struct Sweep {
    owner: OwnerId,
    stale: Duration,
    policy: std::sync::Arc<Policy>,
    alerts: Alerts,
    settled: Vec<Orphan>,
}

impl Sweep {
    /// Rows older than `stale` are settled.
    pub fn new(owner: OwnerId, stale: Duration, policy: std::sync::Arc<Policy>, alerts: Alerts) -> Self {
        Self { owner, stale, policy, alerts, settled: Vec::new() }
    }
}

impl Work for Sweep {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let now_ms = wall_ms();
        (_, self.settled) = settle(
            connection,
            &self.owner,
            now_ms.saturating_sub(ms(self.stale)),
            "sweeper",
            &self.policy,
            now_ms,
        )?;
        Ok(())
    }
    fn committed(self: Box<Self>) {
        tell(&self.alerts, Cause::StaleSending, &self.settled);
    }
    fn failed(self: Box<Self>, _why: &str) {} // the next sweep finds them again
    fn must_land(&self) -> bool {
        false
    }
}

/// How many rows left SENDING, and those of them that are ERROR: reports that waited settle the others at once.
fn settle(
    tx: &Connection,
    owner: &OwnerId,
    stale_before_ms: i64,
    by: &str,
    policy: &Policy,
    now_ms: i64,
) -> rusqlite::Result<(usize, Vec<Orphan>)> {
    let day = policy.day(now_ms);
    let orphans = inbox::orphans(tx, owner, stale_before_ms, SWEEP_MAX)?;
    let (count, mut errors) = (orphans.len(), Vec::new());
    for orphan in orphans {
        if inbox::settle_orphan(tx, &orphan, by, &day, now_ms)? {
            errors.push(orphan);
        }
    }
    Ok((count, errors))
}
