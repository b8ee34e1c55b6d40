//! What `show` reads, in whichever form it is told: the row, the calls, the audit of the outbox. Changes nothing.

use rusqlite::{Connection, OptionalExtension};

use crate::cli::views::{self, Line};

/// The row, with what lists do not show of it.
pub(super) struct Found {
    pub(super) line: Line,
    pub(super) payload: String,
    pub(super) ordering_key: Option<String>,
    pub(super) claimed_by: Option<String>,
    pub(super) claimed_until_ms: Option<i64>,
    pub(super) traceparent: Option<String>,
    pub(super) wiped_at_ms: Option<i64>,
}

/// By message id, or by dedup key where no id is like it.
pub(super) fn find(outbox: &Connection, id: &str) -> rusqlite::Result<Option<Found>> {
    outbox
        .query_row(
            &format!("SELECT {}, payload, ordering_key, claimed_by, claimed_until_ms, traceparent, wiped_at_ms FROM outbox WHERE message_id = ?1 OR dedup_key = ?1 ORDER BY message_id = ?1 DESC LIMIT 1", views::COLUMNS),
            [id],
            |row| {
                Ok(Found {
                    line: views::line(row)?,
                    payload: row.get(17)?,
                    ordering_key: row.get(18)?,
                    claimed_by: row.get(19)?,
                    claimed_until_ms: row.get(20)?,
                    traceparent: row.get(21)?,
                    wiped_at_ms: row.get(22)?,
                })
            },
        )
        .optional()
}

/// A call to the vendor.
#[derive(serde::Serialize)]
pub(super) struct Call {
    pub(super) started_at_ms: i64,
    pub(super) outcome: String,
    pub(super) http_status: Option<i64>,
    pub(super) code: Option<String>,
    pub(super) waiting_us: i64,
    pub(super) connecting_us: i64,
    pub(super) answering_us: i64,
    pub(super) reason: Option<String>,
}

/// The calls about a message, in their order.
pub(super) fn calls(inbox: &Connection, message_id: &str) -> rusqlite::Result<Vec<Call>> {
    inbox
        .prepare(
            "SELECT started_at_ms, outcome, http_status, vendor_code, waiting_us, connecting_us, answering_us, reason
                   FROM attempt WHERE message_id = ?1 ORDER BY id",
        )?
        .query_map([message_id], |row| {
            Ok(Call {
                started_at_ms: row.get(0)?,
                outcome: row.get(1)?,
                http_status: row.get(2)?,
                code: row.get(3)?,
                waiting_us: row.get(4)?,
                connecting_us: row.get(5)?,
                answering_us: row.get(6)?,
                reason: row.get(7)?,
            })
        })?
        .collect()
}

/// A line of the outbox's audit.
#[derive(serde::Serialize)]
pub(super) struct Deed {
    pub(super) at_ms: i64,
    pub(super) verb: String,
    pub(super) who: String,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) note: String,
}

/// What people did to a message, in its order.
pub(super) fn deeds(outbox: &Connection, message_id: &str) -> rusqlite::Result<Vec<Deed>> {
    outbox
        .prepare(
            "SELECT at_ms, verb, who, state_before, state_after, note FROM audit WHERE target = ?1 ORDER BY id",
        )?
        .query_map([message_id], |row| {
            Ok(Deed {
                at_ms: row.get(0)?,
                verb: row.get(1)?,
                who: row.get(2)?,
                before: row.get(3)?,
                after: row.get(4)?,
                note: row.get(5)?,
            })
        })?
        .collect()
}
