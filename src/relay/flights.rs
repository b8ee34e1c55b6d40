//! Hand-offs under way, in the relay's memory and in the table, and how the two are made to agree.
//!
//! A lease only brings a row back to PENDING, where the inbox decides (F4). Never: has a say about a row's end.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::Relay;
use crate::clock::{self, ms};
use crate::limits::RELAY_RECONCILE;
use crate::store::outbox;

/// A hand-off under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) lane: usize,
    pub(super) since: Instant,
    /// Handed over before: an older copy's confirm may still be under way.
    pub(super) again: bool,
}

impl Relay {
    pub(super) fn land(&mut self, row: i64) {
        if let Some(flight) = self.in_flight.remove(&row) {
            self.lane_in_flight[flight.lane] -= 1;
        }
    }

    /// Hand-offs whose confirm never came within the lease are forgotten (F4): the row is handed over again, and the
    /// inbox absorbs it.
    pub(super) fn forget_lost(&mut self) {
        let lease = self.parts.settings.lease;
        let lost: Vec<i64> = self
            .in_flight
            .iter()
            .filter(|(_, flight)| clock::elapsed(flight.since) >= lease)
            .map(|(row, _)| *row)
            .collect();
        for row in lost {
            self.land(row);
        }
    }

    /// Memory against table: renews the leases of rows in flight, gives back those that memory does not know.
    pub(super) fn reconcile(&mut self, tx: &Connection, now_ms: i64) -> rusqlite::Result<()> {
        let lease_until_ms = now_ms.saturating_add(ms(self.parts.settings.lease));
        for row in self.in_flight.keys() {
            outbox::extend_lease(tx, *row, &self.parts.owner, lease_until_ms)?;
        }
        let (in_flight, lease) = (&self.in_flight, self.parts.settings.lease);
        let mut foreign = self.foreign.look(clock::mono(), lease);
        let moved = outbox::lease_over(
            tx,
            &self.parts.owner,
            now_ms,
            |row| in_flight.contains_key(&row),
            |row, owner, until_ms| foreign.is_over(row, owner, until_ms),
        )?;
        if moved > 0 {
            log::warn!("{moved} claimed messages had no live owner and are waiting again (CLAIM_EXPIRED)");
        }
        Ok(())
    }

    pub(super) fn reconcile_every(&self) -> Duration {
        RELAY_RECONCILE.min(self.parts.settings.lease / 3)
    }
}
