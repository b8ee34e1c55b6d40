//! The one way to tell a person: the journal at once, in the thread that saw it, then the hooks from rooms of their own.
//!
//! ```text
//! any room --raise, clear--> book (memory) --> journal line            in the caller's thread
//!                              |--> notifier --> alert, alert_told      when the inbox can be written
//!                              |             --> webhook room, command room
//! conditions --level---------->|                                       disk, backlog, quarantine, ends
//! ```
//!
//! Raising never waits: it takes a lock that is held for plain assignments only, and rings a bell with one place. It
//! needs no database. The book has one entry per cause and destination, so a storm fills nothing. Delivered at least
//! once: what a hook has not taken stays due in memory and, as soon as it can be written, in the table. No text, number
//! or key of a message is in any alert; `clean.rs` is the net.

pub mod book;
mod cause;
pub(crate) mod clean;
pub mod command;
pub mod conditions;
pub mod notifier;
pub mod webhook;
pub mod words;

pub use cause::Cause;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use self::book::{Book, Key, Level, Notice, NoticeKind};
use self::clean::clean;
use crate::clock::wall_ms;

/// The journal's name in `alert_told`.
pub const JOURNAL: &str = "journal";
/// Its place in the book.
const JOURNAL_NUMBER: usize = 0;
/// Stands for destinations that the settings do not have: their names come from producers.
pub const OTHER: &str = "(other)";

/// Tells. Cheap to clone.
#[derive(Clone)]
pub struct Alerts {
    shared: Arc<Shared>,
}

struct Shared {
    book: Mutex<Book>,
    /// Rings the notifier; one place is enough, a bell that rings already needs no second.
    bell: (Sender<()>, Receiver<()>),
    /// Destinations of the settings.
    known: Vec<String>,
    /// Names of the hooks in the book's order, the journal first.
    hooks: Vec<&'static str>,
}

impl Alerts {
    /// An empty book. `hooks` are told beside the journal, each at most once per `interval` and entry.
    pub fn new(destinations: Vec<String>, interval: Duration, hooks: &[&'static str]) -> Self {
        let hooks: Vec<&'static str> = std::iter::once(JOURNAL).chain(hooks.iter().copied()).collect();
        let book = Mutex::new(Book::new(interval, hooks.len()));
        let bell = crossbeam_channel::bounded(1);
        Self { shared: Arc::new(Shared { book, bell, known: destinations, hooks }) }
    }

    /// It happened once. `text` is for people and holds no number and no text of a message.
    pub fn raise(&self, cause: Cause, destination: &str, text: String) {
        self.raise_many(cause, destination, text, 1);
    }

    /// The same for several at once.
    pub fn raise_many(&self, cause: Cause, destination: &str, text: String, count: i64) {
        let key = self.key(cause, destination);
        self.change(|book, now, at_ms| book.raise(key, count, clean(&text), now, at_ms));
    }

    /// A condition is over; nothing if it was not open.
    pub fn clear(&self, cause: Cause, destination: &str) {
        let key = self.key(cause, destination);
        self.change(|book, now, at_ms| {
            book.clear(&key, now, at_ms);
        });
    }

    /// A watch looked: raises what nobody has raised, ends what has been over for `settled`. The destination is named
    /// as the book names it, so that an alert about one that the settings lost can end.
    pub fn level(&self, cause: Cause, destination: &str, level: Level, settled: Duration) {
        let key = Key { cause, destination: destination.to_owned() };
        let level = match level {
            Level::On(count, text) => Level::On(count, clean(&text)),
            Level::Off => Level::Off,
        };
        self.change(|book, now, at_ms| {
            book.level(key, level, settled, now, at_ms);
        });
    }

    /// Destinations for which the cause is open.
    pub fn open(&self, cause: Cause) -> Vec<String> {
        self.book().open(cause)
    }

    /// Names of all hooks, the journal first.
    pub fn hooks(&self) -> &[&'static str] {
        &self.shared.hooks
    }

    /// The book under its lock: for plain assignments, never across a wait.
    fn book(&self) -> MutexGuard<'_, Book> {
        // No section can panic half-way through an entry.
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the book, says in the journal what is due there, and wakes the notifier for the rest.
    fn change(&self, change: impl FnOnce(&mut Book, Instant, i64)) {
        change(&mut self.book(), Instant::now(), wall_ms());
        self.tell_journal();
        let _ = self.shared.bell.0.try_send(());
    }

    /// Writes what the journal is due; the lock is not held while it is written.
    fn tell_journal(&self) {
        loop {
            let notice = {
                let (mut book, now) = (self.book(), Instant::now());
                let Some(notice) = book.next(JOURNAL_NUMBER, now) else { return };
                book.told(JOURNAL_NUMBER, &notice, now, wall_ms());
                notice
            };
            write_to_journal(&notice);
        }
    }

    /// Destinations come from producers too: only those of the settings (and parts of the agent) are named.
    fn key(&self, cause: Cause, destination: &str) -> Key {
        let is_part = matches!(cause, Cause::Database | Cause::Source);
        let ours = || is_part || self.shared.known.iter().any(|known| known == destination);
        let shown = if destination.is_empty() || ours() { destination } else { OTHER };
        Key { cause, destination: shown.to_owned() }
    }
}

fn write_to_journal(notice: &Notice) {
    let (cause, destination) = (notice.key.cause.as_str(), &notice.key.destination);
    let Notice { new, total, text, .. } = notice;
    match notice.kind {
        NoticeKind::Raised => {
            log::error!("alert cause={cause} dest={destination} new={new} total={total} {text}")
        }
        NoticeKind::Over => {
            log::error!("alert cause={cause} dest={destination} new={new} total={total} over {text}")
        }
        NoticeKind::Clear => {
            log::warn!("all-clear of={cause} dest={destination} new={new} total={total} was: {text}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_destinations_of_the_settings_are_named() {
        let alerts = Alerts::new(vec!["gateway".into()], Duration::from_secs(60), &[]);
        for (cause, given, shown) in [
            (Cause::Parked, "gateway", "gateway"),
            (Cause::Error, "01012345678", OTHER),
            (Cause::Disk, "", ""),
            (Cause::Clock, "", ""),
            (Cause::Database, "inbox.db", "inbox.db"),
            (Cause::Source, "shop", "shop"),
        ] {
            alerts.raise(cause, given, "text".into());
            assert_eq!(alerts.open(cause), [shown]);
            alerts.clear(cause, given);
            assert_eq!(alerts.open(cause), Vec::<String>::new(), "{given}");
        }
    }

    #[test]
    fn an_alert_about_a_destination_that_the_settings_lost_ends() {
        let alerts = Alerts::new(vec!["gateway".into()], Duration::from_secs(60), &[]);
        alerts.level(Cause::Parked, "lost", Level::On(1, "text".into()), Duration::ZERO);
        assert_eq!(alerts.open(Cause::Parked), ["lost"]);
        alerts.level(Cause::Parked, "lost", Level::Off, Duration::ZERO);
        assert_eq!(alerts.open(Cause::Parked), Vec::<String>::new());
    }
}
