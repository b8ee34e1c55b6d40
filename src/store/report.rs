//! Sole writer of `report`: what vendors said later, with counts of repeats. What is a repeat decides `once`, by the rules of
//! `report/intake.rs`; what is forgotten, and its markers with it, `store/purge.rs`.
//!
//! Contradictions are kept without a say (`counts` = 0) and never take part in settling. Stores no number and no text.
//! What the reports of a message make of its row is `report.rs`'s table, applied by `store/inbox/reports.rs`.

use rusqlite::{Connection, OptionalExtension, params};

use crate::message::{Destination, MessageId};
use crate::report::{Report, Said, Verdict, Way};

/// A report's row: what `once` gives again for a repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Kept(i64);

/// Keeps a new report: to which account it was told, and whose message it is about.
pub fn keep(
    tx: &Connection,
    (account, consumer): (&Destination, &Destination),
    report: &Report,
    way: Way,
    counts: bool,
    now_ms: i64,
) -> rusqlite::Result<Kept> {
    let id = tx
        .prepare_cached(
            "INSERT INTO report (account, consumer, item, message_id, vendor_ref, code, verdict, meaning, said_at_ms, way,
                                 counts, first_at_ms, last_at_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12)",
        )?
        .insert(params![
            account,
            consumer,
            report.item(),
            report.reference,
            report.vendor_ref,
            report.code,
            report.verdict.as_str(),
            report.meaning,
            report.said_at_ms,
            way.as_str(),
            counts,
            now_ms
        ])?;
    Ok(Kept(id))
}

/// The same report again.
pub fn count_again(tx: &Connection, Kept(id): Kept, now_ms: i64) -> rusqlite::Result<()> {
    tx.prepare_cached("UPDATE report SET copies = copies + 1, last_at_ms = ?2 WHERE id = ?1")?
        .execute(params![id, now_ms])?;
    Ok(())
}

/// What counts for a message, in the order of the vendor's own times.
pub fn said(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<Vec<Said>> {
    connection
        .prepare_cached(
            "SELECT verdict, code, meaning FROM report
              WHERE consumer = ?1 AND message_id = ?2 AND message_id <> '' AND counts = 1
              ORDER BY coalesce(said_at_ms, first_at_ms), id",
        )?
        .query_map(params![consumer, message_id], |row| {
            Ok(Said { verdict: verdict(row.get(0)?)?, code: row.get(1)?, meaning: row.get(2)? })
        })?
        .collect()
}

/// Whether any report that counts names the message.
pub fn any(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<bool> {
    let found: Option<i64> = connection
        .prepare_cached(
            "SELECT 1 FROM report WHERE consumer = ?1 AND message_id = ?2 AND message_id <> '' AND counts = 1 LIMIT 1",
        )?
        .query_row(params![consumer, message_id], |row| row.get(0))
        .optional()?;
    Ok(found.is_some())
}

fn verdict(text: String) -> rusqlite::Result<Verdict> {
    Verdict::parse(&text).ok_or_else(|| crate::db::other(format!("unknown verdict {text:?}")))
}
