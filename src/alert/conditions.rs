//! Room: looks now and then at what nobody raises by itself, and at the ends of what was raised.
//!
//! Disk, oldest due message, quarantined rows (put there by triggers in producers' commits), the inbox writer in
//! trouble; and, as the net below the rooms that raise, gates and the stock of ERROR and PARKED rows: an alert that a
//! crash swallowed is raised again, one whose stock is gone ends. Everything is an indexed look or in proportion to
//! what waits for a person, never to backlog or history. A file that cannot be read is passed over: its owner says so.
//!
//! Never: writes a table, holds a transaction or a connection between two looks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use rusqlite::Connection;

use super::book::Level;
use super::{Alerts, Cause, OTHER};
use crate::clock::{ms, wall_ms};
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::db::{self, Part};
use crate::gate::Gate;
use crate::store::{inbox, outbox};

/// Between two looks; shorter where the alert interval is.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Shortest time between two looks.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(200);
/// A gate is open at the start until a call has failed: so long an alert of an earlier start stands.
const GATE_SETTLED: Duration = Duration::from_secs(60);
/// Distinct destinations of waiting rows that are looked at: those of the settings and what producers invent.
const DESTINATIONS_MAX: usize = 256;
/// What a destination without a name, not routed yet, is called in the stock.
const NO_DESTINATION: &str = "";

/// What the room looks at.
pub struct Parts {
    /// Where to say it.
    pub alerts: Alerts,
    /// `[alert].interval`
    pub interval: Duration,
    /// `[alert].disk_free`, bytes; 0 = not looked at.
    pub disk_free: u64,
    /// `[alert].backlog_age`
    pub backlog_age: Duration,
    /// The state folder.
    pub root: PathBuf,
    /// The outbox file.
    pub outbox: PathBuf,
    /// Readers of the inbox.
    pub inbox: Pool,
    /// The inbox's writer.
    pub writer: Writer,
    /// By destination.
    pub gates: Vec<(String, Arc<Gate>)>,
    /// Last quarantined row that was raised; shared with the notifier, which keeps it.
    pub quarantine_seen: Arc<AtomicI64>,
}

/// The room.
pub struct Conditions {
    parts: Parts,
    every: Duration,
}

impl Conditions {
    /// Looks at nothing yet.
    pub fn new(parts: Parts) -> Self {
        let every = LOOK_EVERY.min(parts.interval).max(LOOK_EVERY_MIN);
        Self { parts, every }
    }

    /// Runs until `stop` is disconnected.
    pub fn run(self, stop: &Receiver<()>) {
        while stop.recv_timeout(self.every) == Err(RecvTimeoutError::Timeout) {
            self.look();
        }
    }

    /// One look at everything.
    pub fn look(&self) {
        self.disk();
        self.gates();
        let trouble = self.parts.writer.is_in_trouble();
        let text = "inbox.db cannot be written: nothing is sent until it can; see the log for the reason";
        self.level(Cause::Database, "inbox.db", trouble.then(|| (1, text.to_owned())), Duration::ZERO);
        // A record that is kept in memory is not in the stock: what the inbox says now is not the whole truth.
        if !trouble && let Ok(reader) = self.parts.inbox.get() {
            self.unless_unreadable("inbox", self.unsettled(&reader));
        }
        match db::open_reader(&self.parts.outbox, Part::Outbox) {
            Ok(reader) => {
                self.unless_unreadable("outbox", self.parked(&reader));
                self.unless_unreadable("outbox", self.quarantined(&reader));
                self.unless_unreadable("outbox", self.backlog(&reader));
            }
            Err(error) => log::debug!("alert conditions: {error}"),
        }
    }

    fn unless_unreadable(&self, what: &str, looked: rusqlite::Result<()>) {
        if let Err(error) = looked {
            log::debug!("alert conditions: the {what} cannot be read now: {error}");
        }
    }

    fn level(&self, cause: Cause, destination: &str, on: Option<(i64, String)>, settled: Duration) {
        let level = on.map_or(Level::Off, |(count, text)| Level::On(count, text));
        self.parts.alerts.level(cause, destination, level, settled);
    }

    /// Levels for a stock by destination: what is there, and what is open and not there any more.
    fn stock(&self, cause: Cause, stock: &BTreeMap<String, i64>, words: impl Fn(i64) -> String) {
        for (destination, count) in stock {
            self.level(cause, destination, Some((*count, words(*count))), self.every);
        }
        for destination in self.parts.alerts.open(cause) {
            if !stock.contains_key(&destination) {
                self.level(cause, &destination, None, self.every);
            }
        }
    }

    fn disk(&self) {
        let Parts { root, disk_free, alerts, .. } = &self.parts;
        let Ok(disk) = rustix::fs::statvfs(root) else { return };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let is_open = !alerts.open(Cause::Disk).is_empty();
        let on = is_low(free, *disk_free, is_open).then(|| {
            let text = format!(
                "{} MiB free at {}, expected at least {} MiB: make room before nothing can be written",
                free >> 20,
                root.display(),
                disk_free >> 20
            );
            (1, text)
        });
        self.level(Cause::Disk, "", on, Duration::ZERO);
    }

    /// The workers raise and clear; two of them may do so in the wrong order, and a restart forgets.
    fn gates(&self) {
        for (destination, gate) in &self.parts.gates {
            let on = gate.closed_by().map(|reason| (1, format!("closed: {reason}; its messages wait")));
            self.level(Cause::DestinationClosed, destination, on, GATE_SETTLED);
        }
        // One that the settings do not have any more.
        for destination in self.parts.alerts.open(Cause::DestinationClosed) {
            if !self.parts.gates.iter().any(|(name, _)| *name == destination) {
                self.level(Cause::DestinationClosed, &destination, None, GATE_SETTLED);
            }
        }
    }

    fn unsettled(&self, reader: &Connection) -> rusqlite::Result<()> {
        let (mut errors, mut stale) = (BTreeMap::new(), BTreeMap::new());
        for row in inbox::unsettled(reader)? {
            let stock = if row.owner_died { &mut stale } else { &mut errors };
            *stock.entry(self.shown(&row.destination)).or_insert(0) += row.count;
        }
        self.stock(Cause::Error, &errors, |count| {
            format!("{count} messages are ERROR: nobody knows whether they were sent")
        });
        self.stock(Cause::StaleSending, &stale, |count| {
            format!("{count} messages are ERROR since their owner died while they were being sent")
        });
        Ok(())
    }

    fn parked(&self, reader: &Connection) -> rusqlite::Result<()> {
        let mut stock = BTreeMap::new();
        for (destination, count) in outbox::parked(reader)? {
            *stock.entry(self.shown(&destination)).or_insert(0) += count;
        }
        self.stock(Cause::Parked, &stock, |count| {
            format!("{count} messages are PARKED and wait for a person")
        });
        Ok(())
    }

    fn quarantined(&self, reader: &Connection) -> rusqlite::Result<()> {
        let seen = self.parts.quarantine_seen.load(Ordering::SeqCst);
        let last = outbox::last_quarantined(reader)?;
        // Fewer than we have seen: the file is a new one.
        let seen = if last < seen { 0 } else { seen };
        if last > seen {
            let mut by_destination = BTreeMap::new();
            for (destination, count) in outbox::quarantined(reader, seen, last)? {
                *by_destination.entry(self.shown(&destination)).or_insert(0) += count;
            }
            for (destination, count) in by_destination {
                let text = format!(
                    "{count} rows came under a known dedup_key with other content: the first stands, these are kept in the \
                     table quarantine of outbox.db and not sent"
                );
                self.parts.alerts.raise_many(Cause::Quarantined, &destination, text, count);
            }
        }
        self.parts.quarantine_seen.store(last, Ordering::SeqCst);
        Ok(())
    }

    fn backlog(&self, reader: &Connection) -> rusqlite::Result<()> {
        let now_ms = wall_ms();
        let mut old = BTreeMap::new();
        let mut after = None;
        for _ in 0..DESTINATIONS_MAX {
            let Some(destination) = outbox::next_waiting_destination(reader, after.as_deref())? else {
                break;
            };
            if let Some(since_ms) = outbox::oldest_due_ms(reader, &destination, now_ms)? {
                let age_ms = now_ms.saturating_sub(since_ms);
                if age_ms > ms(self.parts.backlog_age) {
                    let oldest: &mut i64 = old.entry(self.shown(&destination)).or_insert(0);
                    *oldest = age_ms.max(*oldest);
                }
            }
            after = Some(destination);
        }
        for (destination, age_ms) in &old {
            let text = format!("the oldest message that could go waits for {}", span(*age_ms));
            self.level(Cause::BacklogAge, destination, Some((1, text)), self.every);
        }
        for destination in self.parts.alerts.open(Cause::BacklogAge) {
            if !old.contains_key(&destination) {
                self.level(Cause::BacklogAge, &destination, None, Duration::ZERO);
            }
        }
        Ok(())
    }

    /// As the book names it, so that stocks and open alerts meet.
    fn shown(&self, destination: &str) -> String {
        match self.parts.gates.iter().any(|(known, _)| known == destination) {
            true => destination.to_owned(),
            false if destination == NO_DESTINATION => String::new(),
            false => OTHER.to_owned(),
        }
    }
}

/// Below the bound; once low, until there is a tenth more, so that it does not flap.
fn is_low(free: u64, bound: u64, was_low: bool) -> bool {
    free < if was_low { bound.saturating_add(bound / 10) } else { bound }
}

/// Days, hours or minutes: an age at a glance.
fn span(age_ms: i64) -> String {
    match age_ms / 60_000 {
        0 => format!("{} s", age_ms / 1_000),
        minutes @ 1..120 => format!("{minutes} min"),
        minutes @ 120..2_880 => format!("{} h", minutes / 60),
        minutes => format!("{} days", minutes / 1_440),
    }
}

/// At the start, before dead owners' rows are settled: takes up the book of the earlier start, and raises what was
/// recorded after its last copy, so whose alert may have died with it. Returns the last quarantined row that was told.
pub fn recall(alerts: &Alerts, inbox: &Connection, outbox: &Connection) -> rusqlite::Result<i64> {
    let (pages, is_new) = crate::store::alert::load(inbox, alerts.hooks())?;
    let until_ms = crate::store::alert::noted_until_ms(inbox)?.min(wall_ms());
    {
        let (mut book, now, now_ms) = (alerts.book(), Instant::now(), wall_ms());
        for (key, entry, told) in pages {
            book.recall(key, entry, told, &is_new, now, now_ms);
        }
    }
    for row in inbox::unsettled_after(inbox, until_ms)? {
        let cause = if row.owner_died { Cause::StaleSending } else { Cause::Error };
        let text = format!("{} messages became ERROR right before the last start ended", row.count);
        alerts.raise_many(cause, &row.destination, text, row.count);
    }
    for (status, destination, count) in outbox::ended_after(outbox, until_ms)? {
        let (cause, word) = match status.as_str() {
            "PARKED" => (Cause::Parked, "parked"),
            _ => (Cause::Expired, "expired"),
        };
        let text = format!("{count} messages were {word} right before the last start ended");
        alerts.raise_many(cause, &destination, text, count);
    }
    crate::store::alert::quarantine_seen(inbox)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_low_until_there_is_a_tenth_more() {
        for (free, bound, was_low, low) in [
            (99, 100, false, true),
            (100, 100, false, false),
            (100, 100, true, true),
            (109, 100, true, true),
            (110, 100, true, false),
            (0, 0, false, false),
        ] {
            assert_eq!(is_low(free, bound, was_low), low, "{free} of {bound}, {was_low}");
        }
    }

    #[test]
    fn ages_are_read_at_a_glance() {
        for (age_ms, text) in [
            (5_000, "5 s"),
            (31 * 60_000, "31 min"),
            (119 * 60_000, "119 min"),
            (3 * 3_600_000, "3 h"),
            (3 * 86_400_000, "3 days"),
        ] {
            assert_eq!(span(age_ms), text);
        }
    }
}
