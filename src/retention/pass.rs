//! One pass of retention over both files, in small steps done by whoever may write each file.
//!
//! It reads through connections of its own, a few rows at once, never in a transaction across steps; it decides by
//! the pure rules; the [`Hands`] change and pause. Run by the retention room while the agent is up, by `purge` while it
//! is down, and with hands that only count for `purge --dry-run`.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::{Age, Done, Fate, InboxStep, OutboxStep, age, cut_ms, is_settled};
use crate::clock::{ms, wall_ms};
use crate::config::RetentionSettings;
use crate::limits::{PURGE_LOOK_ROWS, PURGE_YOUNG_RUN};
use crate::message::{Destination, MessageId};
use crate::policy::Policy;
use crate::store::{meta, purge};

/// Mark in the inbox: keys that ended before it may be gone.
pub const CUT_MARK: &str = "purge_cut_ms";
/// Mark in the outbox: when a person asked for a pass.
pub const ASKED_MARK: &str = "purge_asked_ms";
/// Mark in the outbox: the asking that the last pass has answered.
pub const SERVED_MARK: &str = "purge_served_ms";
/// Mark in the outbox: when the last pass came to its end. The figure to watch.
pub const DONE_MARK: &str = "purged_at_ms";
/// Mark in the outbox: what the last pass did, as JSON.
pub const RESULT_MARK: &str = "purge_result";

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished {
    /// The agent stops.
    #[error("stopping")]
    Stopping,
    /// A file could not be read.
    #[error("{0}")]
    Read(#[from] rusqlite::Error),
    /// A file could not be written now.
    #[error("{0}")]
    Write(String),
}

/// Who changes and who waits.
pub trait Hands {
    /// Rows for one step.
    fn rows(&self) -> usize;
    /// Done by the only writer of the outbox at this place of [`Files::outboxes`].
    fn outbox(&mut self, source: usize, step: OutboxStep) -> Result<Done, Unfinished>;
    /// Done by the inbox file's only writer.
    fn inbox(&mut self, step: InboxStep) -> Result<Done, Unfinished>;
    /// Leaves the files to live traffic after a step that took this long.
    fn pause(&mut self, took: Duration) -> Result<(), Unfinished>;
}

/// Readers of the files. Every outbox that could hand a message over must be in the list.
pub struct Files<'a> {
    /// Readers of all outboxes, the agent's own first. `None` = cannot be read now: it is left alone, and no inbox row
    /// goes, since that outbox might hand its message over.
    pub outboxes: &'a [Option<&'a Connection>],
    /// Further files that could hand a message over: looked at, never changed by this pass.
    pub also: &'a [Option<Connection>],
    /// `None` where the inbox may not be read: then nothing of it is looked at (for counting only).
    pub inbox: Option<&'a Connection>,
}

/// What one pass did, or would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Outbox rows that lost number and text.
    pub wiped: usize,
    /// Outbox rows whose key went.
    pub keys: usize,
    /// Closed rows that stay as they are because they are not settled.
    pub unsettled: usize,
    /// Quarantined rows wiped or gone.
    pub quarantine: usize,
    /// Inbox rows gone.
    pub inbox: usize,
    /// Lines of the call log gone.
    pub attempts: usize,
    /// Reports gone.
    #[serde(default)]
    pub reports: usize,
    /// Days of the tally folded, alerts and the like forgotten.
    pub figures: usize,
    /// Repeats of wiped rows that were compared.
    pub rechecked: usize,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { wiped, keys, unsettled, quarantine, inbox, attempts, reports, figures, rechecked } = self;
        write!(
            f,
            "{wiped} numbers and texts, {keys} keys, {inbox} fates, {attempts} calls, {reports} reports, {quarantine} in \
             quarantine, {figures} figures forgotten; {unsettled} unsettled kept; {rechecked} repeats compared"
        )
    }
}

/// One pass.
pub struct Pass<'a> {
    /// The files.
    pub files: Files<'a>,
    /// `[retention]`
    pub settings: &'a RetentionSettings,
    /// For the local day.
    pub policy: &'a Policy,
    /// How much history of keys it may take.
    pub span: Duration,
}

impl Pass<'_> {
    /// Runs to its end; `progress` is told now and then.
    pub fn run(
        &self,
        hands: &mut dyn Hands,
        progress: &mut dyn FnMut(&Counts),
    ) -> Result<Counts, Unfinished> {
        let mut counts = Counts::default();
        let now_ms = wall_ms();
        let bodies_before_ms = now_ms.saturating_sub(ms(self.settings.bodies));
        let keys_before_ms = now_ms.saturating_sub(ms(self.settings.keys));
        for (source, outbox) in self.files.outboxes.iter().enumerate() {
            let Some(outbox) = outbox else { continue };
            // First: as long as its key is there, a repeat can be compared.
            counts.rechecked += until_none(hands, source, || OutboxStep::Recheck)?;
            self.wipe(hands, (source, outbox), bodies_before_ms, &mut counts, progress)?;
            counts.quarantine +=
                until_none(hands, source, || OutboxStep::Quarantine(bodies_before_ms, keys_before_ms))?;
            self.keys(hands, (source, outbox), now_ms, &mut counts, progress)?;
            progress(&counts);
        }
        if let Some(inbox) = self.files.inbox {
            // Nothing of the inbox is younger than what the outbox has let go.
            let mark = meta::get(inbox, CUT_MARK)?.and_then(|text| text.parse::<i64>().ok());
            let cut_ms = mark.unwrap_or(i64::MIN).min(keys_before_ms);
            self.walk(hands, cut_ms, now_ms, &mut counts)?;
            let first_kept = self.policy.day(keys_before_ms);
            counts.figures = hands.inbox(InboxStep::Fold(first_kept, keys_before_ms))?.changed;
        }
        progress(&counts);
        Ok(counts)
    }

    fn fate(&self, destination: &str, message_id: &str) -> rusqlite::Result<Fate> {
        let Some(inbox) = self.files.inbox else { return Ok(Fate::Unread) };
        Ok(crate::store::inbox::state(inbox, &Destination::new(destination), &MessageId::new(message_id))?
            .map_or(Fate::Never, Fate::Is))
    }

    fn wipe(
        &self,
        hands: &mut dyn Hands,
        (source, outbox): (usize, &Connection),
        before_ms: i64,
        counts: &mut Counts,
        progress: &mut dyn FnMut(&Counts),
    ) -> Result<(), Unfinished> {
        let mut cursor = purge::START;
        loop {
            let rows = purge::bodies(outbox, cursor, before_ms, hands.rows())?;
            let Some(last) = rows.last() else { return Ok(()) };
            cursor = (last.closed_at_ms, last.id);
            let mut due = Vec::new();
            for row in rows {
                if is_settled(row.status, self.fate(&row.destination, &row.message_id)?) {
                    due.push((row.id, row.fingerprint));
                } else {
                    counts.unsettled += 1;
                }
            }
            counts.wiped += in_steps(due, hands, |hands, rows| hands.outbox(source, OutboxStep::Wipe(rows)))?;
            progress(counts);
        }
    }

    fn keys(
        &self,
        hands: &mut dyn Hands,
        (source, outbox): (usize, &Connection),
        now_ms: i64,
        counts: &mut Counts,
        progress: &mut dyn FnMut(&Counts),
    ) -> Result<(), Unfinished> {
        let oldest_ms = purge::oldest_key_ms(outbox)?;
        let Some(cut_ms) = cut_ms(now_ms, self.settings.keys, oldest_ms, self.span) else { return Ok(()) };
        if let Some(inbox) = self.files.inbox {
            // Before the first key goes, so that `verify` never wonders about an inbox row without its outbox row.
            let mark = meta::get(inbox, CUT_MARK)?.and_then(|text| text.parse::<i64>().ok());
            if mark.is_none_or(|mark| mark < cut_ms) {
                hands.inbox(InboxStep::Mark(CUT_MARK, cut_ms.to_string()))?;
            }
        }
        let mut cursor = purge::START;
        loop {
            let rows = purge::keys(outbox, cursor, cut_ms, hands.rows())?;
            let Some(last) = rows.last() else { return Ok(()) };
            cursor = (last.closed_at_ms, last.id);
            let mut due = Vec::new();
            for row in rows {
                if is_settled(row.status, self.fate(&row.destination, &row.message_id)?) {
                    due.push(row.id);
                } else {
                    counts.unsettled += 1;
                    log::error!(
                        "{} is {} and wiped, but not settled: its key stays; see `onceward verify`",
                        row.message_id,
                        row.status
                    );
                }
            }
            counts.keys +=
                in_steps(due, hands, |hands, rows| hands.outbox(source, OutboxStep::Delete(rows, cut_ms)))?;
            progress(counts);
        }
    }

    /// Over the inbox and the call log, from the oldest row on, as far as they are old.
    fn walk(
        &self,
        hands: &mut dyn Hands,
        cut_ms: i64,
        now_ms: i64,
        counts: &mut Counts,
    ) -> Result<(), Unfinished> {
        let Some(inbox) = self.files.inbox else { return Ok(()) };
        let rows = |after| purge::inbox_rows(inbox, after, PURGE_LOOK_ROWS);
        counts.inbox = self.walk_one(hands, cut_ms, now_ms, rows, InboxStep::DeleteRows)?;
        let lines = |after| purge::attempts(inbox, after, PURGE_LOOK_ROWS);
        counts.attempts = self.walk_one(hands, cut_ms, now_ms, lines, InboxStep::DeleteAttempts)?;
        let reports = |after| purge::reports(inbox, after, PURGE_LOOK_ROWS);
        counts.reports = self.walk_one(hands, cut_ms, now_ms, reports, InboxStep::DeleteReports)?;
        Ok(())
    }

    fn walk_one(
        &self,
        hands: &mut dyn Hands,
        cut_ms: i64,
        now_ms: i64,
        read: impl Fn(i64) -> rusqlite::Result<Vec<purge::Aged>>,
        step: fn(Vec<i64>, i64) -> InboxStep,
    ) -> Result<usize, Unfinished> {
        let (mut after, mut young, mut gone) = (i64::MIN, 0, 0);
        loop {
            let rows = read(after)?;
            let Some(last) = rows.last() else { return Ok(gone) };
            after = last.id;
            let mut due = Vec::new();
            for row in rows {
                match age(&row, cut_ms, now_ms) {
                    Age::Young => young += 1,
                    Age::Stays => {}
                    Age::Old => {
                        young = 0;
                        if !self.any_outbox_has(&row.message_id)? {
                            due.push(row.id);
                        }
                    }
                }
            }
            for chunk in due.chunks(hands.rows()) {
                gone += in_steps(chunk.to_vec(), hands, |hands, rows| hands.inbox(step(rows, cut_ms)))?;
            }
            if young >= PURGE_YOUNG_RUN {
                return Ok(gone);
            }
        }
    }

    fn any_outbox_has(&self, message_id: &str) -> rusqlite::Result<bool> {
        let also = self.files.also.iter().map(Option::as_ref);
        for outbox in self.files.outboxes.iter().copied().chain(also) {
            match outbox {
                Some(outbox) if !purge::outbox_has(outbox, message_id)? => {}
                _ => return Ok(true), // a file that cannot be read may have it
            }
        }
        Ok(false)
    }
}

/// The same step until it finds nothing more. Returns what was changed.
fn until_none(
    hands: &mut dyn Hands,
    source: usize,
    step: impl Fn() -> OutboxStep,
) -> Result<usize, Unfinished> {
    let mut changed = 0;
    loop {
        let begun = Instant::now();
        let done = hands.outbox(source, step())?;
        if done.changed == 0 {
            return Ok(changed);
        }
        changed += done.changed;
        hands.pause(begun.elapsed())?;
    }
}

/// All of the rows, in as many steps as their time allows. Returns what was changed.
fn in_steps<T: Clone>(
    mut rows: Vec<T>,
    hands: &mut dyn Hands,
    step: impl Fn(&mut dyn Hands, Vec<T>) -> Result<Done, Unfinished>,
) -> Result<usize, Unfinished> {
    let mut changed = 0;
    while !rows.is_empty() {
        let begun = Instant::now();
        let done = step(hands, rows.clone())?;
        changed += done.changed;
        rows.drain(..done.dealt.clamp(1, rows.len()));
        hands.pause(begun.elapsed())?;
    }
    Ok(changed)
}

/// The marks of a pass that came to its end, and what it did for `purge` and `status`.
pub fn finish(hands: &mut dyn Hands, counts: &Counts, asked_ms: Option<i64>) -> Result<(), Unfinished> {
    let result = serde_json::to_string(counts).unwrap_or_default();
    hands.outbox(0, OutboxStep::Mark(RESULT_MARK, result))?;
    hands.outbox(0, OutboxStep::Mark(DONE_MARK, wall_ms().to_string()))?;
    if let Some(asked_ms) = asked_ms {
        hands.outbox(0, OutboxStep::Mark(SERVED_MARK, asked_ms.to_string()))?;
    }
    Ok(())
}

/// Reads a number that is kept as a mark.
pub fn mark_ms(connection: &Connection, key: &str) -> rusqlite::Result<Option<i64>> {
    Ok(meta::get(connection, key)?.and_then(|text| text.parse().ok()))
}

/// The asking that no pass has answered yet.
pub fn asked(outbox: &Connection) -> rusqlite::Result<Option<i64>> {
    let served = mark_ms(outbox, SERVED_MARK)?.unwrap_or(0);
    Ok(mark_ms(outbox, ASKED_MARK)?.filter(|asked| *asked > served))
}

/// Hands for a stopped agent: this process holds the folder's lock and both files.
pub struct DirectHands<'a> {
    /// Writer of the outbox.
    pub outbox: &'a mut Connection,
    /// Writer of the inbox.
    pub inbox: &'a mut Connection,
}

impl Hands for DirectHands<'_> {
    fn rows(&self) -> usize {
        200
    }
    fn outbox(&mut self, _source: usize, step: OutboxStep) -> Result<Done, Unfinished> {
        super::apply_outbox(self.outbox, &step, self.rows())
            .map_err(|error| Unfinished::Write(error.to_string()))
    }
    fn inbox(&mut self, step: InboxStep) -> Result<Done, Unfinished> {
        crate::db::write(self.inbox, |tx| super::apply_inbox(tx, &step))
            .map_err(|error| Unfinished::Write(error.to_string()))
    }
    fn pause(&mut self, took: Duration) -> Result<(), Unfinished> {
        // Producers are at work all the same: as long as it was held the lock is theirs.
        std::thread::sleep(took);
        Ok(())
    }
}

/// Hands that only count, for a dry run.
pub struct CountingHands<'a> {
    /// Reader of the outbox.
    pub outbox: &'a Connection,
    /// Each question that finds something anew is answered once.
    pub asked_quarantine: bool,
}

impl Hands for CountingHands<'_> {
    fn rows(&self) -> usize {
        200
    }
    fn outbox(&mut self, _source: usize, step: OutboxStep) -> Result<Done, Unfinished> {
        let all = |changed| Ok(Done { dealt: changed, changed });
        match step {
            OutboxStep::Wipe(rows) => all(rows.len()),
            OutboxStep::Delete(rows, _) => all(rows.len()),
            OutboxStep::Quarantine(bodies_before_ms, keys_before_ms) => {
                if std::mem::replace(&mut self.asked_quarantine, true) {
                    return all(0);
                }
                let (wiped, gone) = purge::count_quarantine(self.outbox, bodies_before_ms, keys_before_ms)?;
                all(wiped + gone)
            }
            OutboxStep::Recheck | OutboxStep::Mark(..) => all(0),
        }
    }
    fn inbox(&mut self, step: InboxStep) -> Result<Done, Unfinished> {
        Ok(match step {
            InboxStep::DeleteRows(rows, _)
            | InboxStep::DeleteAttempts(rows, _)
            | InboxStep::DeleteReports(rows, _) => Done { dealt: rows.len(), changed: rows.len() },
            InboxStep::Fold(..) | InboxStep::Mark(..) => Done { dealt: 1, changed: 0 },
        })
    }
    fn pause(&mut self, _took: Duration) -> Result<(), Unfinished> {
        Ok(())
    }
}
