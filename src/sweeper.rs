//! Room: SENDING rows that nobody can finish become ERROR, at the start for dead owners and later for stale ones.
//!
//! Such a message may have been sent, so it never is again: a person or the reconciler settles it. Runs as work of the
//! inbox's one writer. Serves F8 and the second half of F10. Never touches the outbox.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::alert::{Alerts, Cause};
use crate::clock::{self, wall_ms};
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
        let (left_sending, errors) = db::write(connection, |tx| {
            let orphans = inbox::orphans(tx, owner, SWEEP_MAX)?;
            settle(tx, orphans, "start", policy, now_ms)
        })?;
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

/// SENDING rows of this start and when the sweeper first saw each. Age is monotonic: a leap of the wall clock makes no
/// live call stale.
pub type Seen = Arc<Mutex<HashMap<i64, Instant>>>;

/// Work: stale SENDING rows of the present start, and whatever another one left.
pub struct Sweep {
    owner: OwnerId,
    stale: Duration,
    policy: Arc<Policy>,
    alerts: Alerts,
    seen: Seen,
    settled: Vec<Orphan>,
}

impl Sweep {
    /// Rows that `seen` has known for `stale` are settled; it is kept by the caller from sweep to sweep.
    pub fn new(owner: OwnerId, stale: Duration, policy: Arc<Policy>, alerts: Alerts, seen: Seen) -> Self {
        Self { owner, stale, policy, alerts, seen, settled: Vec::new() }
    }
}

/// Forgets rows that are finished, remembers new ones, and returns those that have been under way for `stale`.
fn stale_ones(
    seen: &mut HashMap<i64, Instant>,
    under_way: Vec<Orphan>,
    stale: Duration,
    now: Instant,
) -> Vec<Orphan> {
    seen.retain(|id, _| under_way.iter().any(|row| row.id == *id));
    under_way
        .into_iter()
        .filter(|row| now.saturating_duration_since(*seen.entry(row.id).or_insert(now)) >= stale)
        .collect()
}

impl Work for Sweep {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut orphans = inbox::orphans(connection, &self.owner, SWEEP_MAX)?;
        let under_way = inbox::under_way(connection, &self.owner)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        orphans.extend(stale_ones(&mut seen, under_way, self.stale, clock::mono()));
        (_, self.settled) = settle(connection, orphans, "sweeper", &self.policy, wall_ms())?;
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
    orphans: Vec<Orphan>,
    by: &str,
    policy: &Policy,
    now_ms: i64,
) -> rusqlite::Result<(usize, Vec<Orphan>)> {
    let day = policy.day(now_ms);
    let (count, mut errors) = (orphans.len(), Vec::new());
    for orphan in orphans {
        if inbox::settle_orphan(tx, &orphan, by, &day, now_ms)? {
            errors.push(orphan);
        }
    }
    Ok((count, errors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Destination, MessageId};

    #[test]
    fn a_row_is_stale_by_how_long_it_was_seen_whatever_its_stamp_says() {
        let row = |id: i64, claimed_at_ms: i64| Orphan {
            id,
            consumer: Destination::new("d"),
            message_id: MessageId::new("ow-1"),
            claimed_by: "a:1".into(),
            claimed_at_ms,
        };
        let (mut seen, begun, stale) = (HashMap::new(), Instant::now(), Duration::from_secs(600));
        let mut look = |rows: Vec<Orphan>, after_s: u64| -> Vec<i64> {
            let now = begun + Duration::from_secs(after_s);
            stale_ones(&mut seen, rows, stale, now).into_iter().map(|row| row.id).collect()
        };
        // Claimed in 1970 and in the year 2100 by the stamps: neither is stale at the first look.
        assert_eq!(look(vec![row(1, 0), row(2, 4_102_444_800_000)], 0), [0i64; 0]);
        assert_eq!(look(vec![row(1, 0), row(2, 4_102_444_800_000)], 599), [0i64; 0]);
        assert_eq!(look(vec![row(2, 4_102_444_800_000), row(3, 0)], 600), [2]);
        // A row that was finished meanwhile is forgotten.
        assert_eq!(look(vec![row(1, 0)], 601), [0i64; 0]);
    }
}
