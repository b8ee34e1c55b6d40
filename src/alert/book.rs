//! The book of alerts: what happened, by cause and destination, and what was told of it to whom. Pure: no clock, no
//! thread, no file; time comes in as parameters, so that cases are tables.
//!
//! It is the whole memory of the alert path and bounded: one entry for each cause and destination, however many
//! messages. For each hook an entry is told at once the first time, then at most once per interval with the count
//! since; its end is told once (an all-clear), also at most once per interval. After an all-clear a new trouble is a
//! first one again: told at once, or, where the quiet before it was short, once it has lasted a little. So a storm, or a
//! destination that opens and closes all day, makes a handful of notices. What could not be delivered stays due.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::cause::Cause;

/// Quiet for so long, and what comes next is no flapping; nor is what lasts for so long.
const CALM: Duration = Duration::from_secs(10);

/// What an entry is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Why.
    pub cause: Cause,
    /// Destination, or the part of the agent; empty = the agent itself.
    pub destination: String,
}

/// A hook's place in the book; 0 is the journal.
pub type HookNumber = usize;

/// The present of a condition, as a watch found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Level {
    /// It lasts; so many messages, and words for people if nobody has raised it yet.
    On(i64, String),
    /// It does not.
    Off,
}

/// What a notice says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NoticeKind {
    /// It happened (and lasts, if its cause has an end).
    Raised,
    /// It happened and is over already.
    Over,
    /// What was told before is over.
    Clear,
}

impl NoticeKind {
    /// The capitals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Raised => "RAISED",
            Self::Over => "OVER",
            Self::Clear => "CLEAR",
        }
    }
}

/// One thing to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notice {
    /// Of what.
    pub key: Key,
    /// What of it.
    pub kind: NoticeKind,
    /// How many since this hook was told last.
    pub new: i64,
    /// How many ever.
    pub total: i64,
    /// When it began, UTC milliseconds.
    pub first_at_ms: i64,
    /// The last of them, UTC milliseconds.
    pub last_at_ms: i64,
    /// For people, clean.
    pub text: String,
}

/// One entry, as the table keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// How many ever; only grows.
    pub count: i64,
    /// When it was opened (the last time), UTC milliseconds.
    pub first_at_ms: i64,
    /// Raised last, UTC milliseconds.
    pub last_at_ms: i64,
    /// The last text.
    pub text: String,
    /// The condition lasts.
    pub open: bool,
    /// When it ended, UTC milliseconds.
    pub cleared_at_ms: Option<i64>,
}

/// What one hook was told of one entry, as the table keeps it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// The entry's count at that time.
    pub count: i64,
    /// It was told that the condition lasts.
    pub open: bool,
    /// When, UTC milliseconds; `None` = never.
    pub at_ms: Option<i64>,
}

struct Teller {
    told: Told,
    raise_at: Option<Instant>,
    clear_at: Option<Instant>,
    /// Order of tries: who waits longest is next, so that one refused notice holds up no other.
    tried: u64,
}

struct Page {
    entry: Entry,
    raised: Instant,
    /// Opened last.
    opened: Instant,
    /// Ended last; `None` = long ago, or never.
    cleared: Option<Instant>,
    tellers: Vec<Teller>,
    dirty: bool,
}

impl Page {
    /// From when on this trouble is worth telling although the one before it was told lately.
    fn new_trouble(&self) -> Instant {
        match self.cleared {
            Some(cleared) if self.opened.saturating_duration_since(cleared) < CALM => self.opened + CALM,
            _ => self.opened,
        }
    }
}

/// A page as it is to be written to the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Which.
    pub key: Key,
    /// The entry.
    pub entry: Entry,
    /// By hook.
    pub told: Vec<Told>,
}

/// The book.
pub struct Book {
    interval: Duration,
    hooks: usize,
    pages: BTreeMap<Key, Page>,
    tries: u64,
}

impl Book {
    /// Empty, for so many hooks (the journal is one of them).
    pub fn new(interval: Duration, hooks: usize) -> Self {
        Self { interval, hooks, pages: BTreeMap::new(), tries: 0 }
    }

    /// Takes up a page of an earlier start. `told` has `None` for a hook that has no row for it: one that is new
    /// (`is_new`) is told of what is open and not of history; another has everything to come.
    pub fn recall(
        &mut self,
        key: Key,
        entry: Entry,
        told: Vec<Option<Told>>,
        is_new: &[bool],
        now: Instant,
        now_ms: i64,
    ) {
        let interval = self.interval;
        let ago =
            |at_ms: i64| Duration::from_millis(u64::try_from(now_ms.saturating_sub(at_ms)).unwrap_or(0));
        let tellers = (0..self.hooks)
            .map(|hook| {
                let told = told.get(hook).cloned().flatten().unwrap_or_else(|| Told {
                    count: if is_new.get(hook) == Some(&true) && !entry.open { entry.count } else { 0 },
                    ..Told::default()
                });
                // A clock that went back may silence an alert for one interval, not for years.
                let at = told.at_ms.and_then(|at_ms| {
                    let ago = ago(at_ms);
                    if ago >= interval { None } else { now.checked_sub(ago) }
                });
                let clear_at = if told.open { None } else { at };
                Teller { told, raise_at: at, clear_at, tried: 0 }
            })
            .collect();
        let opened = now.checked_sub(ago(entry.first_at_ms)).unwrap_or(now);
        let cleared = entry.cleared_at_ms.and_then(|at_ms| now.checked_sub(ago(at_ms)));
        self.pages.insert(key, Page { entry, raised: now, opened, cleared, tellers, dirty: false });
    }

    /// It happened, `count` times.
    pub fn raise(&mut self, key: Key, count: i64, text: String, now: Instant, at_ms: i64) {
        let (has_end, hooks) = (key.cause.has_end(), self.hooks);
        let page = self.pages.entry(key).or_insert_with(|| Page {
            entry: Entry {
                count: 0,
                first_at_ms: at_ms,
                last_at_ms: at_ms,
                text: String::new(),
                open: false,
                cleared_at_ms: None,
            },
            raised: now,
            opened: now,
            cleared: None,
            tellers: (0..hooks)
                .map(|_| Teller { told: Told::default(), raise_at: None, clear_at: None, tried: 0 })
                .collect(),
            dirty: true,
        });
        let entry = &mut page.entry;
        if has_end && !entry.open {
            entry.open = true;
            entry.first_at_ms = at_ms;
            entry.cleared_at_ms = None;
            page.opened = now;
        }
        entry.count += count;
        entry.last_at_ms = at_ms;
        entry.text = text;
        page.raised = now;
        page.dirty = true;
    }

    /// It is over. True if it was open.
    pub fn clear(&mut self, key: &Key, now: Instant, at_ms: i64) -> bool {
        match self.pages.get_mut(key) {
            Some(page) if page.entry.open => {
                page.entry.open = false;
                page.entry.cleared_at_ms = Some(at_ms);
                page.cleared = Some(now);
                page.dirty = true;
                true
            }
            _ => false,
        }
    }

    /// A watch looked. `Off` counts only for what was raised at least `settled` ago: what is raised now may not be in
    /// the database yet. True if anything changed.
    pub fn level(&mut self, key: Key, level: Level, settled: Duration, now: Instant, at_ms: i64) -> bool {
        let page = self.pages.get(&key);
        let open = page.is_some_and(|page| page.entry.open);
        match level {
            Level::On(count, text) if !open => {
                self.raise(key, count, text, now, at_ms);
                true
            }
            Level::Off
                if open && page.is_some_and(|page| now.saturating_duration_since(page.raised) >= settled) =>
            {
                self.clear(&key, now, at_ms)
            }
            _ => false,
        }
    }

    /// Destinations for which this cause is open.
    pub fn open(&self, cause: Cause) -> Vec<String> {
        let of_cause = self.pages.iter().filter(|(key, page)| key.cause == cause && page.entry.open);
        of_cause.map(|(key, _)| key.destination.clone()).collect()
    }

    /// What the hook should be told now, the one tried longest ago first; it counts as tried.
    pub fn next(&mut self, hook: HookNumber, now: Instant) -> Option<Notice> {
        let interval = self.interval;
        let (key, page, kind) = self
            .pages
            .iter_mut()
            .filter_map(|(key, page)| {
                let (kind, at) = due(key.cause, page, hook, interval)?;
                at.is_none_or(|at| at <= now).then_some((key, page, kind))
            })
            .min_by_key(|(_, page, _)| page.tellers[hook].tried)?;
        self.tries += 1;
        page.tellers[hook].tried = self.tries;
        let entry = &page.entry;
        Some(Notice {
            key: key.clone(),
            kind,
            new: entry.count - page.tellers[hook].told.count,
            total: entry.count,
            first_at_ms: entry.first_at_ms,
            last_at_ms: entry.last_at_ms,
            text: entry.text.clone(),
        })
    }

    /// When the hook should be asked again; `None` = not before something happens.
    pub fn next_at(&self, hook: HookNumber, now: Instant) -> Option<Instant> {
        self.pages
            .iter()
            .filter_map(|(key, page)| due(key.cause, page, hook, self.interval))
            .map(|(_, at)| at.unwrap_or(now))
            .min()
    }

    /// The hook has delivered the notice.
    pub fn told(&mut self, hook: HookNumber, notice: &Notice, now: Instant, at_ms: i64) {
        let Some(page) = self.pages.get_mut(&notice.key) else { return };
        let Some(teller) = page.tellers.get_mut(hook) else { return };
        let open = notice.kind == NoticeKind::Raised && notice.key.cause.has_end();
        teller.told = Told { count: notice.total, open, at_ms: Some(at_ms) };
        match notice.kind {
            NoticeKind::Clear => teller.clear_at = Some(now),
            NoticeKind::Raised | NoticeKind::Over => teller.raise_at = Some(now),
        }
        page.dirty = true;
    }

    /// Whether anything is not in the table yet.
    pub fn is_dirty(&self) -> bool {
        self.pages.values().any(|page| page.dirty)
    }

    /// What is to be written; it counts as written until [`Book::not_written`].
    pub fn take_dirty(&mut self) -> Vec<Written> {
        self.pages
            .iter_mut()
            .filter(|(_, page)| page.dirty)
            .map(|(key, page)| {
                page.dirty = false;
                let told = page.tellers.iter().map(|teller| teller.told.clone()).collect();
                Written { key: key.clone(), entry: page.entry.clone(), told }
            })
            .collect()
    }

    /// The write failed.
    pub fn not_written(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(page) = self.pages.get_mut(key) {
                page.dirty = true;
            }
        }
    }
}

/// What is due for a teller, and from when on (`None` = at once).
fn due(
    cause: Cause,
    page: &Page,
    hook: HookNumber,
    interval: Duration,
) -> Option<(NoticeKind, Option<Instant>)> {
    let (entry, teller) = (&page.entry, page.tellers.get(hook)?);
    let after = |last: Option<Instant>| last.map(|last| last + interval);
    if teller.told.open && !entry.open {
        return Some((NoticeKind::Clear, after(teller.clear_at)));
    }
    if entry.count > teller.told.count {
        let kind = if cause.has_end() && !entry.open { NoticeKind::Over } else { NoticeKind::Raised };
        let at = after(teller.raise_at);
        // It knows of no trouble that lasts: this one is news. All-clears, which make it so, keep the interval.
        let news = entry.open && !teller.told.open;
        return Some((kind, if news { at.map(|at| at.min(page.new_trouble())) } else { at }));
    }
    None
}

#[cfg(test)]
mod tests;
