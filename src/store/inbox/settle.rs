//! A verdict on an ERROR by a person or a look-up. What may be said of which ERROR decides `settle.rs`.

use rusqlite::{Connection, params};

use super::reports::apply_reports;
use super::state;
use crate::lifecycle::{InboxEvent, InboxMove, InboxState};
use crate::message::{Destination, MessageId};
use crate::store::tally;

/// How the tally counts what settled an ERROR.
pub(super) fn settled_as(state: InboxState) -> &'static str {
    match state {
        InboxState::Failed => "SETTLED_FAILED",
        _ => "SETTLED_SENT",
    }
}

/// A verdict on an ERROR row by somebody who knows more than the call did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict<'v> {
    /// `SettleSent`, `SettleFailed` or `SettleNotSent`.
    pub event: InboxEvent,
    /// Who: `operator` or `look-up`.
    pub by: &'v str,
    /// The vendor's code, where it told one.
    pub code: Option<&'v str>,
    /// The vendor's own id, where it told one.
    pub vendor_ref: Option<&'v str>,
    /// Why, for people.
    pub reason: &'v str,
}

/// ERROR -> SENT | FAILED | (row deleted; its attempts stay). `None` = it is done; else the state it is in, from which
/// this does not lead, or no row.
pub fn settle_error(
    tx: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    verdict: &Verdict<'_>,
    day: &str,
    now_ms: i64,
) -> rusqlite::Result<Result<(), Option<InboxState>>> {
    let Some(leads) = InboxState::Error.after(verdict.event) else {
        return Ok(Err(state(tx, consumer, message_id)?));
    };
    let (moved, counted) = match leads {
        InboxMove::To(to) => (
            tx.prepare_cached(
                "UPDATE inbox SET status = ?3, reason = ?4, settled_by = ?5, finished_at_ms = ?6,
                        vendor_code = coalesce(?7, vendor_code), vendor_ref = coalesce(?8, vendor_ref)
                  WHERE consumer = ?1 AND message_id = ?2 AND status = 'ERROR'",
            )?
            .execute(params![
                consumer,
                message_id,
                to,
                verdict.reason,
                verdict.by,
                now_ms,
                verdict.code,
                verdict.vendor_ref
            ])?,
            settled_as(to),
        ),
        InboxMove::RowDeleted => (
            tx.prepare_cached(
                "DELETE FROM inbox WHERE consumer = ?1 AND message_id = ?2 AND status = 'ERROR'",
            )?
            .execute(params![consumer, message_id])?,
            "SETTLED_NOT_SENT",
        ),
    };
    if moved == 0 {
        return Ok(Err(state(tx, consumer, message_id)?));
    }
    tally::add(tx, day, consumer.as_str(), counted, 1)?;
    // A report that named it so far only as uncertain may still say more of a settled row.
    apply_reports(tx, consumer, message_id, day, now_ms)?;
    Ok(Ok(()))
}
