//! Room: looks now and then at what nobody raises by itself, and at the ends of what was raised.
//!
//! Disk; in outbox.db and in each source the oldest due message and quarantined rows (put there by triggers in
//! producers' commits); the inbox writer in trouble; and, as the net below the rooms that raise, gates and the stock of ERROR and PARKED rows: an alert that a
//! crash swallowed is raised again, one whose stock is gone ends. Everything is an indexed look or in proportion to
//! what waits for a person, never to backlog or history. A file that cannot be read is passed over: its owner says so.
//! While one is, no stock over all of them is called gone.
//!
//! Never: writes a table, holds a transaction or a connection between two looks.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use rusqlite::Connection;

use super::book::Level;
use super::{Alerts, Cause, OTHER};
use crate::clock::{ms, wall_ms};
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::gate::Gate;
use crate::outboxes::{File, Outboxes};
use crate::store::alert::QuarantineSeen;
use crate::store::{inbox, outbox, rearm};

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
    /// What [`recall`] found.
    pub recalled: Recalled,
}

/// What an earlier start had told, where it matters for looks to come.
pub struct Recalled {
    /// Last quarantined rows that were raised; shared with the notifier, which keeps them.
    pub quarantine_seen: QuarantineSeen,
    /// Up to here everything was told, UTC milliseconds.
    until_ms: i64,
    /// When this start began, UTC milliseconds.
    now_ms: i64,
}

/// What one look found in all outboxes together.
struct Found {
    parked: BTreeMap<String, i64>,
    /// Age of the oldest due row of each destination where it is too old.
    old: BTreeMap<String, i64>,
    /// Every outbox was read to its end.
    all: bool,
}

/// The room.
pub struct Conditions {
    parts: Parts,
    every: Duration,
    /// Ids of the sources that were read since this start.
    sources_recalled: RefCell<BTreeSet<String>>,
}

impl Conditions {
    /// Looks at nothing yet.
    pub fn new(parts: Parts) -> Self {
        let every = LOOK_EVERY.min(parts.interval).max(LOOK_EVERY_MIN);
        Self { parts, every, sources_recalled: RefCell::default() }
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
        self.outboxes();
    }

    /// outbox.db and each source: what is there is told of whichever could be read; what is gone, only of all of them.
    fn outboxes(&self) {
        let own = &self.parts.outbox;
        let listed = self.parts.inbox.get().ok().and_then(|inbox| Outboxes::read(own, Some(&inbox)).ok());
        let mut found = Found { parked: BTreeMap::new(), old: BTreeMap::new(), all: listed.is_some() };
        if let Some(listed) = &listed {
            self.sources_removed(listed);
        }
        // Without the list, the agent's own at least.
        let Some(outboxes) = listed.or_else(|| Outboxes::read(own, None).ok()) else { return };
        for file in outboxes.files() {
            let looked = file.glance().map(|reader| self.outbox(file, &reader, &mut found));
            found.all &= matches!(looked, Some(Ok(())));
            self.unless_unreadable("outbox", looked.unwrap_or(Ok(())));
        }
        self.stock(Cause::Parked, &found.parked, found.all, |count| {
            format!("{count} messages are PARKED and wait for a person")
        });
        self.backlog(&found);
    }

    fn outbox(&self, file: &File, reader: &Connection, found: &mut Found) -> rusqlite::Result<()> {
        let Recalled { until_ms, now_ms, .. } = self.parts.recalled;
        let is_new = file.source().is_some() && !self.sources_recalled.borrow().contains(file.source_id());
        if is_new {
            ended(&self.parts.alerts, reader, until_ms, now_ms)?;
            self.sources_recalled.borrow_mut().insert(file.source_id().to_owned());
        }
        for (destination, count) in outbox::parked(reader)? {
            *found.parked.entry(self.shown(&destination)).or_insert(0) += count;
        }
        self.quarantined(file, reader)?;
        self.oldest(reader, &mut found.old)
    }

    /// The relay clears what it serves again; one that is not listed any more has no relay.
    fn sources_removed(&self, listed: &Outboxes) {
        for name in self.parts.alerts.open(Cause::Source) {
            if !listed.sources().any(|source| source == name) {
                self.level(Cause::Source, &name, None, self.every);
            }
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
    /// `all` = the stock is the whole one, so that what is not in it is over.
    fn stock(&self, cause: Cause, stock: &BTreeMap<String, i64>, all: bool, words: impl Fn(i64) -> String) {
        for (destination, count) in stock {
            self.level(cause, destination, Some((*count, words(*count))), self.every);
        }
        for destination in self.parts.alerts.open(cause) {
            if all && !stock.contains_key(&destination) {
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
        // Proven not sent, but its outbox row is not open again: it is nowhere else, and no end of an ERROR.
        for (destination, count) in rearm::open_by_destination(reader)? {
            *errors.entry(self.shown(&destination)).or_insert(0) += count;
        }
        self.stock(Cause::Error, &errors, true, |count| {
            format!(
                "{count} messages are ERROR: nobody knows whether they were sent, or they were not and their outbox row is out of \
                 reach"
            )
        });
        self.stock(Cause::StaleSending, &stale, true, |count| {
            format!("{count} messages are ERROR since their owner died while they were being sent")
        });
        Ok(())
    }

    fn quarantined(&self, file: &File, reader: &Connection) -> rusqlite::Result<()> {
        let marks = &self.parts.recalled.quarantine_seen;
        let marks = || marks.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = marks().get(file.source_id()).copied();
        let seen = match (seen, self.parts.inbox.get()) {
            (Some(seen), _) => seen,
            // A source of which this start has said nothing yet.
            (None, Ok(inbox)) => crate::store::alert::quarantine_seen(&inbox, file.source_id())?,
            (None, Err(_)) => return Ok(()),
        };
        let last = outbox::last_quarantined(reader)?;
        // Fewer than we have seen: the file is a new one.
        let seen = if last < seen { 0 } else { seen };
        if last > seen {
            let mut by_destination = BTreeMap::new();
            for (destination, count) in outbox::quarantined(reader, seen, last)? {
                *by_destination.entry(self.shown(&destination)).or_insert(0) += count;
            }
            for (destination, count) in by_destination {
                let whose = file.source().map_or("outbox.db".to_owned(), |name| format!("the source {name}"));
                let text = format!(
                    "{count} rows came under a known dedup_key with other content: the first stands, these are kept in the \
                     table quarantine of {whose} and not sent"
                );
                self.parts.alerts.raise_many(Cause::Quarantined, &destination, text, count);
            }
        }
        marks().insert(file.source_id().to_owned(), last);
        Ok(())
    }

    fn oldest(&self, reader: &Connection, old: &mut BTreeMap<String, i64>) -> rusqlite::Result<()> {
        let now_ms = wall_ms();
        let mut after = None;
        for _ in 0..DESTINATIONS_MAX {
            let Some(destination) = outbox::next_waiting_destination(reader, after.as_deref())? else {
                break;
            };
            if let Some(since_ms) = outbox::oldest_due_ms(reader, &destination, now_ms)? {
                let age_ms = now_ms.saturating_sub(since_ms);
                if age_ms > ms(self.parts.backlog_age) {
                    let oldest = old.entry(self.shown(&destination)).or_insert(0);
                    *oldest = age_ms.max(*oldest);
                }
            }
            after = Some(destination);
        }
        Ok(())
    }

    fn backlog(&self, found: &Found) {
        for (destination, age_ms) in &found.old {
            let text = format!("the oldest message that could go waits for {}", span(*age_ms));
            self.level(Cause::BacklogAge, destination, Some((1, text)), self.every);
        }
        for destination in self.parts.alerts.open(Cause::BacklogAge) {
            if found.all && !found.old.contains_key(&destination) {
                self.level(Cause::BacklogAge, &destination, None, Duration::ZERO);
            }
        }
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
/// recorded after its last copy, so whose alert may have died with it. Sources, for which no start waits, follow at the
/// first look at each.
pub fn recall(alerts: &Alerts, inbox: &Connection, outbox: &Connection) -> rusqlite::Result<Recalled> {
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
    ended(alerts, outbox, until_ms, i64::MAX)?;
    let seen = BTreeMap::from([(String::new(), crate::store::alert::quarantine_seen(inbox, "")?)]);
    Ok(Recalled { quarantine_seen: Arc::new(Mutex::new(seen)), until_ms, now_ms: wall_ms() })
}

/// Raises what an outbox recorded between two moments.
fn ended(alerts: &Alerts, outbox: &Connection, after_ms: i64, to_ms: i64) -> rusqlite::Result<()> {
    for (status, destination, count) in outbox::ended_between(outbox, after_ms, to_ms)? {
        let (cause, word) = match status.as_str() {
            "PARKED" => (Cause::Parked, "parked"),
            _ => (Cause::Expired, "expired"),
        };
        let text = format!("{count} messages were {word} right before the last start ended");
        alerts.raise_many(cause, &destination, text, count);
    }
    Ok(())
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
