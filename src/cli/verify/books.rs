//! The books of every outbox: accepted = there + let go, exactly, beside live traffic.
//!
//! Short read transactions; a sum that retention blurred is made again. Never: says that rows are missing after one look.

use indicatif::ProgressBar;
use rusqlite::{Connection, params};

use super::report::{Counts, Report};
use super::walk::{look_again, walk_inbox, walk_notes, walk_outbox};
use crate::ledger;
use crate::limits::{VERIFY_LOOKS, VERIFY_PAUSE, VERIFY_ROWS};

/// A state of the books in one short read transaction.
struct Books {
    accepted: i64,
    deleted: i64,
    last_id: i64,
    sequence: i64,
}

fn open_books(outbox: &Connection) -> rusqlite::Result<Books> {
    outbox
        .prepare_cached(
            "SELECT (SELECT count FROM outbox_ledger WHERE what = 'ACCEPTED'),
                    (SELECT coalesce(sum(count), 0) FROM outbox_ledger WHERE what NOT IN ('ACCEPTED', 'QUARANTINED')),
                    (SELECT coalesce(max(id), 0) FROM outbox),
                    (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'outbox')",
        )?
        .query_row([], |row| {
            Ok(Books { accepted: row.get(0)?, deleted: row.get(1)?, last_id: row.get(2)?, sequence: row.get(3)? })
        })
}

fn counts(connection: &Connection, sql: &str) -> rusqlite::Result<Counts> {
    connection.prepare(sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// An outbox whose books are closed: the agent's own, or a source's.
pub(super) struct Account<'c> {
    /// As faults name it.
    pub(super) name: String,
    /// `None` where it cannot be read now.
    pub(super) outbox: Option<&'c Connection>,
}

/// Every outbox against the inbox, and each by itself: accepted = there + let go. The first is the agent's own.
pub(super) fn books(
    inbox: Option<&Connection>,
    mut accounts: Vec<Account<'_>>,
    report: &mut Report,
    bar: &ProgressBar,
) -> rusqlite::Result<()> {
    let (mut suspects, mut open) = (Vec::new(), Vec::new());
    for (file, account) in accounts.iter_mut().enumerate() {
        let Some(outbox) = account.outbox else { continue };
        let begun = open_books(outbox).and_then(|before| {
            bar.set_length(before.last_id.max(0) as u64);
            let there = walk_outbox((file, outbox), inbox, before.last_id, report, &mut suspects, bar)?;
            Ok((before, there))
        });
        match begun {
            Ok((before, there)) => open.push((account.name.clone(), outbox, before, there)),
            Err(error) if file > 0 => {
                report.unproven(&account.name, &error.to_string());
                account.outbox = None;
            }
            Err(error) => return Err(error),
        }
    }
    let outboxes: Vec<Option<&Connection>> = accounts.iter().map(|account| account.outbox).collect();
    if let Some(inbox) = inbox {
        walk_inbox(&outboxes, inbox, report, &mut suspects)?;
        walk_notes(&outboxes, inbox, report)?;
        report.inbox_let_go =
            counts(inbox, "SELECT consumer || ' ' || what, count FROM inbox_ledger ORDER BY 1")?;
    }
    for (name, outbox, before, there) in open {
        add_up(&name, outbox, before, there, report)?;
    }
    look_again(&outboxes, inbox, suspects, report)
}

/// The sum of one outbox, which must be exact. Rows that retention takes during the walk blur it: then count again.
fn add_up(
    name: &str,
    outbox: &Connection,
    mut before: Books,
    mut there: i64,
    report: &mut Report,
) -> rusqlite::Result<()> {
    for look in 0..=VERIFY_LOOKS {
        let after = open_books(outbox)?;
        let sums = ledger::adds_up(before.accepted, there, before.deleted, after.deleted);
        if (sums && before.deleted == after.deleted) || look == VERIFY_LOOKS {
            report.accepted += before.accepted;
            report.unused_ids += before.sequence - before.accepted;
            if !sums {
                report.fault(
                    name,
                    format!(
                        "{} rows were accepted, {there} are there and {} were let go: {} are missing",
                        before.accepted,
                        after.deleted,
                        before.accepted - there - after.deleted
                    ),
                );
            }
            if before.accepted > before.sequence || before.last_id > before.sequence {
                report.fault(
                    name,
                    format!(
                        "the sequence stands at {}, below the {} accepted rows or the last id {}: it was set back",
                        before.sequence, before.accepted, before.last_id
                    ),
                );
            }
            break;
        }
        std::thread::sleep(VERIFY_PAUSE);
        before = open_books(outbox)?;
        there = count_rows(outbox, before.last_id)?;
    }
    for (what, count) in
        counts(outbox, "SELECT what, count FROM outbox_ledger WHERE what <> 'ACCEPTED' AND count > 0")?
    {
        *report.let_go.entry(what).or_default() += count;
    }
    let one = |sql: &str| outbox.query_row(sql, [], |row| row.get::<_, i64>(0));
    report.quarantined += one("SELECT count(*) FROM quarantine WHERE reason <> 'SAME_KEY_OTHER_TEXT'")?;
    report.rechecks += one("SELECT count(*) FROM quarantine WHERE reason = 'SAME_KEY_OTHER_TEXT'")?;
    Ok(())
}

/// How many rows there are up to `last_id`, in short reads.
fn count_rows(outbox: &Connection, last_id: i64) -> rusqlite::Result<i64> {
    let (mut after, mut total) = (i64::MIN, 0);
    loop {
        let (count, last): (i64, Option<i64>) = outbox
            .prepare_cached(
                "SELECT count(*), max(id) FROM (SELECT id FROM outbox WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3)",
            )?
            .query_row(params![after, last_id, 20 * VERIFY_ROWS as i64], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let Some(last) = last else { return Ok(total) };
        total += count;
        after = last;
    }
}
