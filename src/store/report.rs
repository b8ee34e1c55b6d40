//! Sole writer of `report`, the inbox of what vendors said later: each content once, with its effect in the same commit.
//!
//! Repeats count, contradictions are kept apart (`counts` = 0) and never take part in settling. Stores no number and no
//! text. What the reports of a message make of its row is `report.rs`'s table, applied by `store/inbox.rs`.

use crossbeam_channel::Sender;
use rusqlite::{Connection, OptionalExtension, params};

use super::inbox::{self, Applied};
use crate::clock::wall_ms;
use crate::db::kill;
use crate::db::writer::Work;
use crate::message::{Destination, MessageId};
use crate::report::{Report, Said, Verdict, Way};

/// What became of one report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// New.
    New,
    /// Known: counted, nothing else.
    Repeat,
    /// It contradicts an earlier one about the same item: quarantined, the first stands.
    Contradiction,
}

/// Stores one report, or counts a repeat.
fn take_in(
    tx: &Connection,
    consumer: &Destination,
    report: &Report,
    way: Way,
    now_ms: i64,
) -> rusqlite::Result<Taken> {
    let item = report.item();
    let repeats = tx
        .prepare_cached(
            "UPDATE report SET copies = copies + 1, last_at_ms = ?5
              WHERE consumer = ?1 AND item = ?2 AND code = ?3 AND message_id = ?4",
        )?
        .execute(params![consumer, item, report.code, report.reference, now_ms])?;
    if repeats > 0 {
        return Ok(Taken::Repeat);
    }
    let mut earlier = tx.prepare_cached(
        "SELECT message_id, verdict FROM report WHERE consumer = ?1 AND item = ?2 AND counts = 1",
    )?;
    let contradicts = earlier
        .query_map(params![consumer, item], |row| Ok((row.get::<_, String>(0)?, verdict(row.get(1)?)?)))?
        .collect::<rusqlite::Result<Vec<_>>>()?
        .iter()
        .any(|(reference, verdict)| {
            let other_message =
                !reference.is_empty() && !report.reference.is_empty() && *reference != report.reference;
            let other_end = verdict.is_final() && report.verdict.is_final() && *verdict != report.verdict;
            other_message || other_end
        });
    tx.prepare_cached(
        "INSERT INTO report (consumer, item, message_id, vendor_ref, code, verdict, meaning, said_at_ms, way, counts,
                             first_at_ms, last_at_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?11)",
    )?
    .execute(params![
        consumer,
        item,
        report.reference,
        report.vendor_ref,
        report.code,
        report.verdict.as_str(),
        report.meaning,
        report.said_at_ms,
        way.as_str(),
        !contradicts,
        now_ms
    ])?;
    Ok(if contradicts { Taken::Contradiction } else { Taken::New })
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

/// One report with what became of it and of its message.
#[derive(Clone, Copy, Debug)]
pub struct Effect {
    /// In its own table.
    pub taken: Taken,
    /// On the message's row.
    pub applied: Applied,
}

impl Effect {
    /// The vendor had refused the message, and yet the phone has it.
    pub fn overrules_an_answer(&self) -> bool {
        matches!(self.applied, Applied::Moved { overruled: true, .. })
    }
}

/// Work: takes reports in, each once, and lets them have their effect, all in one commit.
pub struct TakeIn {
    /// The destinations of the account that reports: the first one fetched them or was called; a report may be about a
    /// message of any.
    pub consumers: Vec<Destination>,
    /// The reports.
    pub reports: Vec<Report>,
    /// How they came.
    pub way: Way,
    /// The local day, for the tally.
    pub day: String,
    /// Told after the commit: each report's effect, in order; or why there was none.
    pub reply: Sender<Result<Vec<Effect>, String>>,
    /// Filled in by `apply`.
    pub effects: Vec<Effect>,
}

impl TakeIn {
    /// Whose message it is about; the first destination where no row tells.
    fn consumer_of(&self, tx: &Connection, report: &Report) -> rusqlite::Result<&Destination> {
        if self.consumers.len() > 1 && !report.reference.is_empty() {
            let message_id = MessageId::new(&report.reference);
            for consumer in &self.consumers {
                if inbox::state(tx, consumer, &message_id)?.is_some() {
                    return Ok(consumer);
                }
            }
        }
        Ok(&self.consumers[0])
    }
}

impl Work for TakeIn {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if kill::point("report-before-commit").is_err() {
            return Err(crate::db::other("database or disk is full (by a test)".into()));
        }
        let now_ms = wall_ms();
        self.effects.clear();
        for report in &self.reports {
            let consumer = self.consumer_of(connection, report)?;
            let taken = take_in(connection, consumer, report, self.way, now_ms)?;
            let applied = match taken {
                Taken::New if !report.reference.is_empty() => {
                    let message_id = MessageId::new(&report.reference);
                    inbox::apply_reports(connection, consumer, &message_id, &self.day, now_ms)?
                }
                Taken::New => Applied::NoRow,
                _ => Applied::Nothing,
            };
            self.effects.push(Effect { taken, applied });
        }
        Ok(())
    }
    fn committed(self: Box<Self>) {
        // Who asked may have given up waiting: then the vendor says it again, and it is a repeat.
        let _ = self.reply.send(Ok(self.effects));
    }
    fn failed(self: Box<Self>, why: &str) {
        let _ = self.reply.send(Err(why.to_owned()));
    }
    /// Nothing is owed before the 200 or the confirm: the vendor says it again.
    fn must_land(&self) -> bool {
        false
    }
}
