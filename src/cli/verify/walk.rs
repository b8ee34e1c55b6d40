//! The walk over both files: the outbox row of each message with its inbox row, and the other way round.
//!
//! What looks wrong is only a suspect until it was looked at again, because messages move meanwhile. Never: one read
//! transaction over more than a page of rows.

use indicatif::ProgressBar;
use rusqlite::{Connection, OptionalExtension, params};

use super::report::Report;
use crate::ledger::{self, Verdict};
use crate::lifecycle::{InboxState, OutboxState};
use crate::limits::{VERIFY_LOOKS, VERIFY_PAUSE, VERIFY_ROWS};
use crate::message::{Destination, MessageId};
use crate::retention::pass;
use crate::store::{inbox, rearm, source};

/// Open notes that are named; more are only counted.
const NOTES_LISTED_MAX: usize = 1_000;

/// Something to look at again.
pub(super) enum Suspect {
    /// `file`: its place among the outboxes.
    Outbox {
        file: usize,
        message_id: String,
    },
    Inbox {
        id: i64,
    },
}

/// Each outbox row with the inbox row of its message. Returns how many there were.
pub(super) fn walk_outbox(
    (file, outbox): (usize, &Connection),
    inbox: Option<&Connection>,
    last_id: i64,
    report: &mut Report,
    suspects: &mut Vec<Suspect>,
    bar: &ProgressBar,
) -> rusqlite::Result<i64> {
    let (mut after, mut total) = (i64::MIN, 0);
    loop {
        let rows: Vec<(i64, String, String, String)> = outbox
            .prepare_cached(
                "SELECT id, message_id, destination, status FROM outbox WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3",
            )?
            .query_map(params![after, last_id, VERIFY_ROWS as i64], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?
            .collect::<rusqlite::Result<_>>()?;
        let Some(last) = rows.last() else { return Ok(total) };
        after = last.0;
        total += rows.len() as i64;
        bar.set_position(after.max(0) as u64);
        // From here on, so that the inbox is at least as new as what was just read.
        let inbox = inbox.map(Connection::unchecked_transaction).transpose()?;
        for (_, message_id, destination, status) in &rows {
            *report.there.entry(status.clone()).or_default() += 1;
            let Some(state) = OutboxState::parse(status) else {
                report.fault(message_id, format!("its state {status:?} is none that there is"));
                continue;
            };
            let Some(inbox) = &inbox else { continue };
            match ledger::pair(
                state,
                inbox::state(inbox, &Destination::new(destination), &MessageId::new(message_id))?,
            ) {
                Verdict::Agree => {}
                Verdict::Open(text) => *report.open.entry(format!("{state}: {text}")).or_default() += 1,
                Verdict::Heals(text) => *report.heals.entry(format!("{state}: {text}")).or_default() += 1,
                Verdict::Fault(_) => suspects.push(Suspect::Outbox { file, message_id: message_id.clone() }),
            }
        }
    }
}

/// Each inbox row must have its outbox row, under the same destination, or have outlived it by retention.
pub(super) fn walk_inbox(
    outboxes: &[Option<&Connection>],
    inbox: &Connection,
    report: &mut Report,
    suspects: &mut Vec<Suspect>,
) -> rusqlite::Result<()> {
    let last_id: i64 = inbox.query_row("SELECT coalesce(max(id), 0) FROM inbox", [], |row| row.get(0))?;
    let mut after = i64::MIN;
    loop {
        let rows: Vec<InboxRow> = inbox
            .prepare_cached(
                "SELECT id, consumer, message_id, status, claimed_at_ms FROM inbox WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3",
            )?
            .query_map(params![after, last_id, VERIFY_ROWS as i64], inbox_row)?
            .collect::<rusqlite::Result<_>>()?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.id;
        for row in &rows {
            *report.inbox.entry(format!("{} {}", row.consumer, row.status)).or_default() += 1;
            match judge(outboxes, inbox, row)? {
                Verdict::Agree => {}
                Verdict::Open(text) => {
                    *report.open.entry(format!("{}: {text}", row.status)).or_default() += 1
                }
                Verdict::Heals(_) | Verdict::Fault(_) => suspects.push(Suspect::Inbox { id: row.id }),
            }
        }
    }
}

/// Each message that was proven *not sent* and whose outbox row is not open again: it is in no inbox row any more, so it
/// must be in an outbox.
pub(super) fn walk_notes(
    outboxes: &[Option<&Connection>],
    inbox: &Connection,
    report: &mut Report,
) -> rusqlite::Result<()> {
    for (consumer, message_id) in rearm::open(inbox, u32::MAX)? {
        if inbox::state(inbox, &consumer, &message_id)?.is_some() || !rearm::is_open(inbox, &message_id)? {
            continue; // on its way again
        }
        let mut found = false;
        for outbox in outboxes.iter().flatten() {
            found |=
                outbox.prepare_cached("SELECT 1 FROM outbox WHERE message_id = ?1")?.exists([&message_id])?;
        }
        let is_read = outboxes.iter().all(Option::is_some);
        if found || !is_read {
            let where_ =
                if found { "its row opens again" } else { "its row is in a source that cannot be read" };
            let text = format!("{message_id} for {consumer}: proven not sent, {where_}");
            if report.open.len() < NOTES_LISTED_MAX {
                report.open.insert(text, 1);
            } else {
                *report.open.entry("more that were proven not sent".into()).or_default() += 1;
            }
        } else {
            report.fault(
                message_id.as_str(),
                format!("for {consumer}: proven not sent, shall go again, but no outbox that is served has its row: `onceward source add` its file"),
            );
        }
    }
    Ok(())
}

struct InboxRow {
    id: i64,
    consumer: String,
    message_id: String,
    status: InboxState,
    claimed_at_ms: i64,
}

fn inbox_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<InboxRow> {
    Ok(InboxRow {
        id: row.get(0)?,
        consumer: row.get(1)?,
        message_id: row.get(2)?,
        status: row.get(3)?,
        claimed_at_ms: row.get(4)?,
    })
}

fn judge(outboxes: &[Option<&Connection>], inbox: &Connection, row: &InboxRow) -> rusqlite::Result<Verdict> {
    let mut elsewhere = false;
    for outbox in outboxes.iter().flatten() {
        let destination: Option<String> = outbox
            .prepare_cached("SELECT destination FROM outbox WHERE message_id = ?1")?
            .query_row([&row.message_id], |row| row.get(0))
            .optional()?;
        if destination.as_ref() == Some(&row.consumer) {
            return Ok(Verdict::Agree);
        }
        elsewhere |= destination.is_some();
    }
    Ok(match elsewhere {
        true => Verdict::Fault("the inbox has it under another destination than the outbox"),
        // It may be in a file that cannot be read now.
        false if outboxes.iter().any(Option::is_none) => Verdict::Agree,
        false => {
            let cut_ms = pass::mark_ms(inbox, pass::CUT_MARK)?.unwrap_or(i64::MIN);
            let removed_ms = source::last_removed_ms(inbox)?.unwrap_or(i64::MIN);
            match ledger::alone(row.status, row.claimed_at_ms < cut_ms) {
                Verdict::Fault(_) if row.claimed_at_ms <= removed_ms => {
                    Verdict::Open("its row is in no file that is served now; a source was removed since")
                }
                verdict => verdict,
            }
        }
    })
}

/// What is still a fault after several looks is one.
pub(super) fn look_again(
    outboxes: &[Option<&Connection>],
    inbox: Option<&Connection>,
    mut suspects: Vec<Suspect>,
    report: &mut Report,
) -> rusqlite::Result<()> {
    let Some(inbox) = inbox else { return Ok(()) };
    for look in 1..=VERIFY_LOOKS {
        if suspects.is_empty() {
            return Ok(());
        }
        std::thread::sleep(VERIFY_PAUSE);
        let mut still = Vec::new();
        for suspect in suspects {
            if let Some((what, text)) = still_wrong(outboxes, inbox, &suspect)? {
                if look == VERIFY_LOOKS {
                    report.fault(what, text);
                } else {
                    still.push(suspect);
                }
            }
        }
        suspects = still;
    }
    Ok(())
}

fn still_wrong(
    outboxes: &[Option<&Connection>],
    inbox: &Connection,
    suspect: &Suspect,
) -> rusqlite::Result<Option<(String, String)>> {
    match suspect {
        Suspect::Outbox { file, message_id } => {
            let Some(outbox) = outboxes[*file] else { return Ok(None) };
            let row: Option<(String, OutboxState)> = outbox
                .prepare_cached("SELECT destination, status FROM outbox WHERE message_id = ?1")?
                .query_row([message_id], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            let Some((destination, state)) = row else { return Ok(None) }; // let go meanwhile
            let id = MessageId::new(message_id);
            let mut fate = inbox::state(inbox, &Destination::new(&destination), &id)?;
            if fate.is_some() && inbox::of_row(inbox, outbox, &id)?.is_none() {
                fate = None; // of other content under the same id: nothing about this row
            }
            Ok(match ledger::pair(state, fate) {
                // Proven not sent, and noted to be opened again: it heals.
                Verdict::Fault(_) if fate.is_none() && rearm::is_open(inbox, &id)? => None,
                Verdict::Fault(text) => {
                    let fate = fate.map_or("no row", InboxState::as_str);
                    Some((message_id.clone(), format!("outbox {state}, inbox {fate}: {text}")))
                }
                _ => None,
            })
        }
        Suspect::Inbox { id } => {
            let row = inbox
                .prepare_cached(
                    "SELECT id, consumer, message_id, status, claimed_at_ms FROM inbox WHERE id = ?1",
                )?
                .query_row([id], inbox_row)
                .optional()?;
            let Some(row) = row else { return Ok(None) };
            Ok(match judge(outboxes, inbox, &row)? {
                Verdict::Fault(text) => {
                    Some((row.message_id, format!("inbox {} {}: {text}", row.consumer, row.status)))
                }
                _ => None,
            })
        }
    }
}
