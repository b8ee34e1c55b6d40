//! Rows that the relay closes or parks itself, so that no worker ever sees them: too late, without a route, for a
//! destination that the settings do not have, or unreadable.
//!
//! Never: closes a row before the inbox was asked. One that the inbox knows the end of is PUBLISHED, since only its
//! mark was lost; one that is being sent is left to its worker.

use rusqlite::Connection;

use super::Relay;
use super::round::Round;
use crate::clock::{Now, ms};
use crate::db;
use crate::lifecycle::InboxState;
use crate::limits::RELAY_SWEEP_MAX;
use crate::message::MessageId;
use crate::policy::deadline_reason;
use crate::route;
use crate::store::inbox;
use crate::store::outbox::{self, Facts, RawText};

impl Relay {
    /// What the inbox knows of a row's message: then a rule must not close it, its mark was only lost. SENDING is no end
    /// yet: that claim may still be released, and a row closed for it would be lost (`tests/model/` found this).
    pub(super) fn inbox_knows(
        &self,
        tx: &Connection,
        message_id: &MessageId,
    ) -> rusqlite::Result<Option<InboxState>> {
        let reader = self.parts.inbox.get().map_err(|error| db::other(error.to_string()))?;
        inbox::of_row(&reader, tx, message_id)
    }

    /// Whether the inbox decides about a claimed row, by what it knows. One whose end it knows is PUBLISHED, since only
    /// its mark was lost; one that is being sent is left, and its lease brings it back. A rule has the rest.
    fn inbox_decides(
        &self,
        tx: &Connection,
        row: i64,
        known: Option<InboxState>,
        now_ms: i64,
    ) -> rusqlite::Result<bool> {
        match known {
            None => return Ok(false),
            Some(InboxState::Sending) => {}
            Some(_) => {
                outbox::publish(tx, row, &self.parts.owner, now_ms)?;
            }
        }
        Ok(true)
    }

    /// Whether the inbox knows the end of this row's message.
    pub(super) fn has_ended(&self, tx: &Connection, row: i64) -> rusqlite::Result<bool> {
        let Some(Facts { message_id, .. }) = outbox::facts(tx, row)? else { return Ok(true) };
        let known = self.inbox_knows(tx, &MessageId::new(message_id))?;
        Ok(known.is_some_and(|state| state != InboxState::Sending))
    }

    /// PENDING rows past their deadline, whatever the state of their destination (F2).
    pub(super) fn close_overdue(
        &self,
        tx: &Connection,
        clock: Now,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let now_ms = clock.ms;
        for row in outbox::overdue(tx, clock.overdue_ms(), RELAY_SWEEP_MAX)? {
            let known = self.inbox_knows(tx, &row.message_id)?;
            if known == Some(InboxState::Sending) {
                continue; // its worker's confirm, or the sweeper, comes first
            }
            round.worked = true;
            if !outbox::claim_one(tx, row.id, &self.parts.owner, now_ms, now_ms)? {
                continue;
            }
            if self.inbox_decides(tx, row.id, known, now_ms)? {
                continue;
            }
            let reason = deadline_reason(row.expires_at_ms);
            outbox::expire(tx, row.id, &self.parts.owner, &reason, now_ms)?;
            round.expired(row.destination.to_string(), row.message_id.as_str(), &reason);
        }
        Ok(())
    }

    /// Rows without a destination get the one that a route names, or are parked.
    pub(super) fn route_new(&self, tx: &Connection, now_ms: i64, round: &mut Round) -> rusqlite::Result<()> {
        for (id, kind) in outbox::unrouted(tx, RELAY_SWEEP_MAX)? {
            round.worked = true;
            let kind = kind.lossy();
            match route::destination(&self.parts.routes, &kind) {
                Some(destination) => {
                    outbox::route(tx, id, destination)?;
                }
                // (The kind is the producer's text: it stays out of reasons and logs.)
                None => self.park_now(
                    tx,
                    id,
                    "NO_ROUTE: no [[route]] of the settings matches its kind",
                    now_ms,
                    round,
                )?,
            }
        }
        Ok(())
    }

    /// Rows for a destination that the settings do not have.
    pub(super) fn park_unknown(
        &self,
        tx: &Connection,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let mut after = RawText::default();
        while let Some(destination) = outbox::next_destination(tx, &after)? {
            if self.lane_of(&destination.lossy()).is_none() {
                let lease_until_ms = now_ms.saturating_add(ms(self.parts.settings.lease));
                for claimed in outbox::claim(
                    tx,
                    &destination,
                    &self.parts.owner,
                    lease_until_ms,
                    now_ms,
                    RELAY_SWEEP_MAX,
                )? {
                    round.worked = true;
                    let reason = format!(
                        "NO_DESTINATION: the settings have no [[destination]] {:?}",
                        destination.lossy()
                    );
                    let message_id = &claimed.message.message_id;
                    let known = self.inbox_knows(tx, message_id)?;
                    if !self.inbox_decides(tx, claimed.id, known, now_ms)?
                        && outbox::park(tx, claimed.id, &self.parts.owner, &reason, now_ms)?
                    {
                        round.parked(destination.lossy().into_owned(), message_id.as_str(), &reason);
                    }
                }
            }
            after = destination;
        }
        Ok(())
    }

    fn park_now(
        &self,
        tx: &Connection,
        id: i64,
        reason: &str,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let Some(Facts { destination, message_id, .. }) = outbox::facts(tx, id)? else { return Ok(()) };
        let known = self.inbox_knows(tx, &MessageId::new(&message_id))?;
        if known == Some(InboxState::Sending)
            || !outbox::claim_one(tx, id, &self.parts.owner, now_ms, now_ms)?
        {
            return Ok(());
        }
        if !self.inbox_decides(tx, id, known, now_ms)?
            && outbox::park(tx, id, &self.parts.owner, reason, now_ms)?
        {
            round.parked(destination, &message_id, reason);
        }
        Ok(())
    }

    /// A row that cannot be read as it should (bytes that are no UTF-8, a blob): it can never be sent (F28).
    pub(super) fn park_broken(
        &self,
        tx: &Connection,
        claimed: &outbox::Claimed,
        now_ms: i64,
        round: &mut Round,
    ) -> rusqlite::Result<()> {
        let outbox::Claimed { id, broken, message, .. } = claimed;
        let reason = format!("UNREADABLE: not text in UTF-8, or of the wrong type: {}", broken.join(", "));
        let known =
            if broken.contains(&"message_id") { None } else { self.inbox_knows(tx, &message.message_id)? };
        if !self.inbox_decides(tx, *id, known, now_ms)?
            && outbox::park(tx, *id, &self.parts.owner, &reason, now_ms)?
        {
            round.parked(message.destination.to_string(), &format!("row {id}"), &reason);
        }
        Ok(())
    }
}
