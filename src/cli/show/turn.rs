//! When the turn of a due message comes by its destination's rate: the next free moment, and what is before it.
//!
//! The budget itself lives in the running agent alone (`rate.rs`): it spreads calls evenly and saves none, so the last
//! call and the rate say when the next may begin. An estimate: logins and look-ups share the budget, messages of other
//! sources are not counted, and what becomes due meanwhile may be more urgent.

use rusqlite::{OptionalExtension, named_params};

use crate::cli::views::{Line, Views};
use crate::clock::{ms, wall_ms};
use crate::config::{Settings, rate};
use crate::limits::AGING_STEP;
use crate::store::meta;

/// A wait that is shorter is not worth a word, milliseconds.
const WORTH_A_WORD_MS: i64 = 1_000;
/// How many of the newest calls are looked through for the destination's last.
const CALLS_LOOKED_AT: i64 = 2_000;

/// Its place in the row.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Turn {
    rate_per_s: f64,
    /// Messages that go before it.
    before: i64,
    /// About when, UTC milliseconds; `None` while no agent runs.
    pub(super) about_ms: Option<i64>,
    /// From the next free moment, or from a start of the agent, milliseconds.
    pub(super) wait_ms: i64,
}

/// `None` where the rate keeps it from nothing.
pub(super) fn of(
    line: &Line,
    views: &Views,
    settings: &Settings,
    alive: bool,
) -> rusqlite::Result<Option<Turn>> {
    let of_settings = settings.destinations.iter().find(|one| one.name == line.destination);
    let Some(rate_per_s) = of_settings.and_then(|one| one.rate_per_s) else { return Ok(None) };
    let now_ms = wall_ms();
    let gap_ms = 1_000.0 / rate_per_s;
    let mut before: i64 = 0;
    for rows in std::iter::once(&views.outbox).chain(views.source.as_ref().map(|(_, rows)| rows)) {
        before += rows
            .prepare_cached(
                // In the order of the claim; what is in the agent's hands goes as it was claimed, and before all else.
                "SELECT (SELECT count(*) FROM outbox
                          WHERE status = 'PUBLISHING' AND destination = :destination
                            AND (:claimed_ms IS NULL
                                 OR (updated_at_ms, priority - (:now_ms - not_before_ms) / :step_ms, not_before_ms, id)
                                    < (:claimed_ms, :priority - (:now_ms - :due_ms) / :step_ms, :due_ms, :id)))
                      + (SELECT count(*) FROM outbox
                          WHERE status = 'PENDING' AND blocked = 0 AND destination = :destination
                            AND :claimed_ms IS NULL AND not_before_ms <= :now_ms
                            AND (priority - (:now_ms - not_before_ms) / :step_ms, not_before_ms, id)
                                < (:priority - (:now_ms - :due_ms) / :step_ms, :due_ms, :id))",
            )?
            .query_row(
                named_params! {
                    ":destination": line.destination, ":now_ms": now_ms, ":step_ms": ms(AGING_STEP), ":priority": line.priority,
                    ":due_ms": line.not_before_ms, ":id": line.id,
                    ":claimed_ms": (line.status == "PUBLISHING").then_some(line.updated_at_ms),
                },
                |row| row.get::<_, i64>(0),
            )?;
    }
    let mut free_ms = now_ms;
    if let Some(inbox) = &views.inbox {
        // What is being sent has had its turn.
        let (sending, begun_ms): (i64, Option<i64>) = inbox
            .prepare_cached(
                "SELECT count(*), max(claimed_at_ms) FROM inbox WHERE status = 'SENDING' AND consumer = ?1",
            )?
            .query_row([&line.destination], |row| Ok((row.get(0)?, row.get(1)?)))?;
        before = (before - sending).max(0);
        let called_ms: Option<i64> = inbox
            .prepare_cached(
                "SELECT started_at_ms FROM attempt WHERE consumer = ?1 AND id > (SELECT max(id) FROM attempt) - ?2
                  ORDER BY id DESC LIMIT 1",
            )?
            .query_row(rusqlite::params![line.destination, CALLS_LOOKED_AT], |row| row.get(0))
            .optional()?;
        // A start begins with a full gap.
        let started_ms = meta::get(inbox, "started_at_ms")?.and_then(|text| text.parse().ok());
        if let Some(last_ms) = begun_ms.max(called_ms).max(started_ms) {
            // Whatever the clock did meanwhile, a gap is all that it can be.
            free_ms =
                last_ms.saturating_add(gap_ms as i64).clamp(now_ms, now_ms.saturating_add(gap_ms as i64));
        }
    }
    let gaps = if alive { before } else { before + 1 };
    let wait_ms = (gaps as f64 * gap_ms) as i64 + if alive { free_ms - now_ms } else { 0 };
    let about_ms = alive.then(|| now_ms.saturating_add(wait_ms));
    Ok((wait_ms >= WORTH_A_WORD_MS).then_some(Turn { rate_per_s, before, about_ms, wait_ms }))
}

impl Turn {
    /// Behind `is due`, without its moment.
    pub(super) fn why(&self) -> String {
        let before = match self.before {
            0 => "it is the next".to_owned(),
            1 => "1 message is before it".to_owned(),
            count => format!("{count} messages are before it"),
        };
        format!("the rate of its destination ({}): {before}", rate::in_words(self.rate_per_s))
    }
}
