//! What reports do to a row, by the pure table of [`settle`]: in the commit of whatever came last, the report or the
//! outcome. Serves F29. Never stores a report.

use rusqlite::{Connection, OptionalExtension, params};

use super::settle::settled_as;
use crate::lifecycle::{InboxMove, InboxState};
use crate::message::{Destination, MessageId};
use crate::report::settle;
use crate::store::{report, tally};

/// What the stored reports did to a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The inbox does not know the message.
    NoRow,
    /// Nothing changed: it waits for its outcome, or it is known already.
    Nothing,
    /// Its `delivery` changed.
    Delivery,
    /// Its state changed.
    Moved {
        /// From here.
        from: InboxState,
        /// To here.
        to: InboxState,
        /// Against the vendor's own answer or a person's verdict, not just an earlier report's.
        overruled: bool,
    },
}

/// Lets all stored reports of a message have their effect on its row, by the table of [`settle`]. Repeatable: without a
/// new report or outcome it changes nothing.
pub fn apply_reports(
    tx: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    day: &str,
    now_ms: i64,
) -> rusqlite::Result<Applied> {
    let said = report::said(tx, consumer, message_id)?;
    if said.is_empty() {
        return Ok(Applied::Nothing);
    }
    struct Row {
        from: InboxState,
        delivery: Option<String>,
        delivery_code: Option<String>,
        settled_by: Option<String>,
    }
    let row = tx
        .prepare_cached(
            "SELECT status, delivery, delivery_code, settled_by FROM inbox WHERE consumer = ?1 AND message_id = ?2",
        )?
        .query_row(params![consumer, message_id], |row| {
            Ok(Row {
                from: row.get(0)?,
                delivery: row.get(1)?,
                delivery_code: row.get(2)?,
                settled_by: row.get(3)?,
            })
        })
        .optional()?;
    let Some(Row { from, delivery, delivery_code, settled_by }) = row else { return Ok(Applied::NoRow) };
    let Some(settlement) = settle(from, &said) else { return Ok(Applied::Nothing) };
    let Some(InboxMove::To(to)) = from.after(settlement.event) else { return Ok(Applied::Nothing) };
    let code = &settlement.by.code;
    if to == from
        && delivery.as_deref() == Some(settlement.delivery.as_str())
        && delivery_code.as_ref() == Some(code)
    {
        return Ok(Applied::Nothing);
    }
    let reason = format!("report {code}: {}", settlement.by.meaning);
    tx.prepare_cached(
        "UPDATE inbox SET status = ?4, delivery = ?5, delivery_code = ?6,
                reason = CASE WHEN ?3 = ?4 THEN reason ELSE ?7 END,
                settled_by = CASE WHEN ?3 = ?4 THEN settled_by ELSE 'report' END,
                finished_at_ms = CASE WHEN ?3 = ?4 THEN finished_at_ms ELSE ?8 END
          WHERE consumer = ?1 AND message_id = ?2 AND status = ?3",
    )?
    .execute(params![
        consumer,
        message_id,
        from,
        to,
        settlement.delivery.as_str(),
        code,
        reason,
        now_ms
    ])?;
    if from == to {
        return Ok(Applied::Delivery);
    }
    if from == InboxState::Error {
        tally::add(tx, day, consumer.as_str(), settled_as(to), 1)?;
    }
    let overruled = from == InboxState::Failed && settled_by.as_deref() != Some("report");
    Ok(Applied::Moved { from, to, overruled })
}
