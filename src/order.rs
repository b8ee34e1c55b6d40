//! One order lane over several files: whose turn it is among the outboxes that have rows of one `ordering_key`.
//!
//! Within a file the schema keeps a lane in id order: all but its first unfinished row, its head, are blocked. Files share
//! no ids, but the machine's clock wrote `created_at_ms` in each. So of the heads of all files the one that was created
//! first goes, and the others wait, whatever keeps it: a retry, its hour, a dead destination, PARKED, HELD. Each relay
//! looks into the other files right before it would hand a row over, so a restart forgets nothing.
//!
//! A file that cannot be read now holds nobody: then two rows of a lane may go in either order, never at once
//! ([`crate::share::Keys`]). A row that is committed later than a younger one was sent comes after it.
//!
//! Never: writes, waits for a lock, decides about rows without an `ordering_key`, orders rows within a file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use crate::clock;
use crate::db;
use crate::limits::{KEY_ELSEWHERE_PAUSE, LANE_ELSEWHERE_PAUSE_MAX, LANE_FILE_EXPECTED, LANES_ELSEWHERE_MAX};
use crate::message::Message;
use crate::store::outbox::{self, Head};

/// The files whose rows share lanes; empty name = outbox.db, else a source's.
#[derive(Debug, Default)]
pub struct Files {
    table: Mutex<Vec<Entry>>,
    /// How a lane's head that has to wait has waited so far, by its file and `ordering_key`.
    pauses: Mutex<HashMap<(String, String), Waited>>,
}

/// The last wait of a head.
#[derive(Default, Debug)]
struct Waited {
    pause: Duration,
    /// Behind which row of which file.
    behind: (String, i64),
}

#[derive(Clone, Debug)]
struct Entry {
    name: Arc<str>,
    path: PathBuf,
    standing: Standing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    /// Its relay has not told yet, since this moment: a start must not overtake what waits there.
    Expected(Instant),
    /// Its relay can work on it.
    Well,
    /// Its relay cannot.
    InTrouble,
}

/// Whether a row may be handed over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is the first of its lane, as far as can be seen.
    Mine,
    /// An earlier one of its lane waits in another file, or may wait there.
    After {
        /// For people.
        why: String,
        /// Look again after this.
        pause: Duration,
    },
}

impl Files {
    /// Says that a relay for this file is about to start, or that it is there.
    pub fn expect(&self, name: &str, path: &Path) {
        let entry =
            Entry { name: name.into(), path: path.to_owned(), standing: Standing::Expected(clock::mono()) };
        let mut table = self.table();
        match table.iter_mut().find(|entry| &*entry.name == name) {
            Some(known) if known.path == path => {}
            Some(known) => *known = entry,
            None => table.push(entry),
        }
    }

    /// What a relay's last round told of its file.
    pub fn tell(&self, name: &str, well: bool) {
        if let Some(entry) = self.table().iter_mut().find(|entry| &*entry.name == name) {
            entry.standing = if well { Standing::Well } else { Standing::InTrouble };
        }
    }

    /// The file is served no more.
    pub fn forget(&self, name: &str) {
        self.table().retain(|entry| &*entry.name != name);
    }

    /// The pause of a head that waits once more: doubled as long as it waits behind the same row, so that a lane which
    /// waits for days costs little, and short again once that row has gone; at least until the other row is due.
    fn pause(&self, name: &str, key: &str, behind: (String, i64), least: Duration) -> Duration {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() >= LANES_ELSEWHERE_MAX {
            pauses.clear(); // they only begin anew
        }
        let waited = pauses.entry((name.to_owned(), key.to_owned())).or_default();
        if waited.behind != behind {
            *waited = Waited { pause: Duration::ZERO, behind };
        }
        waited.pause = (waited.pause * 2).clamp(KEY_ELSEWHERE_PAUSE, LANE_ELSEWHERE_PAUSE_MAX);
        least.clamp(waited.pause, LANE_ELSEWHERE_PAUSE_MAX)
    }

    fn goes_on(&self, name: &str, key: &str) {
        let mut pauses = self.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        if !pauses.is_empty() {
            let _ = pauses.remove(&(name.to_owned(), key.to_owned()));
        }
    }

    fn table(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All but this one that may have something to say.
    fn others(&self, name: &str) -> Vec<Entry> {
        self.table()
            .iter()
            .filter(|entry| &*entry.name != name)
            .filter(|entry| match entry.standing {
                Standing::Expected(since) => clock::elapsed(since) < LANE_FILE_EXPECTED,
                Standing::Well => true,
                Standing::InTrouble => false,
            })
            .cloned()
            .collect()
    }
}

/// One round's looks of one relay: the other files are opened at the first row with an `ordering_key`, and closed with it,
/// so that no file that was replaced or removed is held open.
pub struct Looks<'f> {
    files: &'f Files,
    name: &'f str,
    open: Option<Vec<(Entry, Option<Connection>)>>,
}

impl<'f> Looks<'f> {
    /// For the relay of the file `name`.
    pub fn new(files: &'f Files, name: &'f str) -> Self {
        Self { files, name, open: None }
    }

    /// Whether the head of a lane in this relay's file may go.
    pub fn turn(&mut self, message: &Message, now_ms: i64) -> Turn {
        let Some(key) = &message.ordering_key else { return Turn::Mine };
        let (files, name) = (self.files, self.name);
        let open = self.open.get_or_insert_with(|| {
            let looked_into = |entry| {
                let reader = reader(&entry);
                (entry, reader)
            };
            files.others(name).into_iter().map(looked_into).collect()
        });
        for (entry, reader) in open {
            let whose = || match &*entry.name {
                "" => "outbox.db".to_owned(),
                name => format!("the source {name}"),
            };
            // A moment later it can be read, or its own relay is in trouble, too.
            let unseen = || Turn::After {
                why: format!("{} cannot be looked into now for earlier messages of its order lane", whose()),
                pause: KEY_ELSEWHERE_PAUSE,
            };
            match reader.as_ref().map(|reader| outbox::lane_head(reader, key)) {
                Some(Ok(Some(head))) if is_first(&head, &entry.name, message, name) => {
                    let behind = (entry.name.to_string(), head.id);
                    let pause = files.pause(name, key, behind, least(&head, now_ms));
                    return Turn::After {
                        why: format!("behind an earlier message of its order lane in {}", whose()),
                        pause,
                    };
                }
                Some(Err(error)) if is_busy(&error) => return unseen(),
                None if entry.standing != Standing::Well => return unseen(),
                _ => {}
            }
        }
        files.goes_on(name, key);
        Turn::Mine
    }
}

/// `None` where it cannot be opened now.
fn reader(entry: &Entry) -> Option<Connection> {
    // Whether one that is only expected is the right file at all, its relay has yet to see.
    if entry.standing == Standing::Well { db::open_foreign_glance(&entry.path).ok() } else { None }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether the other file's head comes before the message; the same millisecond is decided by the files' names.
fn is_first(head: &Head, its_name: &str, message: &Message, name: &str) -> bool {
    (head.created_at_ms, its_name) < (message.created_at_ms, name)
}

/// How long the other row certainly waits: for an hour, or for a person.
fn least(head: &Head, now_ms: i64) -> Duration {
    let wait_ms = if head.stopped { i64::MAX } else { head.not_before_ms.saturating_sub(now_ms) };
    Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Part;
    use crate::message::{Class, Destination, MessageId};

    const NOW_MS: i64 = 1_800_000_000_000;

    fn message(created_at_ms: i64) -> Message {
        Message {
            message_id: MessageId::new("m"),
            dedup_key: "k".into(),
            kind: "K".into(),
            class: Class::Transactional,
            destination: Destination::new("d"),
            recipient: String::new(),
            payload: String::new(),
            ordering_key: Some("lane".into()),
            priority: 5,
            not_before_ms: 0,
            expires_at_ms: None,
            created_at_ms,
            traceparent: None,
        }
    }

    fn insert(file: &Connection, key: &str, created_at_ms: i64, due_ms: i64) {
        let written = file.execute(
            "INSERT INTO outbox (dedup_key, kind, recipient, payload, ordering_key, created_at_ms, not_before_ms)
             VALUES (?1, 'K', '010', '{}', 'lane', ?2, ?3)",
            rusqlite::params![key, created_at_ms, due_ms],
        );
        assert_eq!(written, Ok(1));
    }

    #[test]
    fn the_head_that_was_written_first_goes_and_a_file_in_trouble_holds_nobody() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("other.db");
        let other = db::create(&path, Part::Outbox).expect("made");
        // The second is older, but behind the first by id: it has no say.
        insert(&other, "head", NOW_MS - 50, NOW_MS + 3_000);
        insert(&other, "behind it", NOW_MS - 90, NOW_MS);
        let files = Files::default();
        let turn = |created_at_ms, name| Looks::new(&files, name).turn(&message(created_at_ms), NOW_MS);
        let after = |pause_ms| Turn::After {
            why: "behind an earlier message of its order lane in the source b".into(),
            pause: Duration::from_millis(pause_ms),
        };
        assert_eq!(turn(NOW_MS, "c"), Turn::Mine, "it knows no other file");
        files.expect("b", &path);
        assert!(
            matches!(turn(NOW_MS, "c"), Turn::After { pause: KEY_ELSEWHERE_PAUSE, .. }),
            "not before its relay has told"
        );
        files.tell("b", true);
        assert_eq!(turn(NOW_MS, "b"), Turn::Mine, "its own file");
        assert_eq!(turn(NOW_MS, "c"), after(3_000), "until that one is due");
        assert_eq!(turn(NOW_MS - 60, "c"), Turn::Mine);
        assert_eq!((turn(NOW_MS - 50, "a"), turn(NOW_MS - 50, "c")), (Turn::Mine, after(3_000)), "by name");
        let held = other.execute("UPDATE outbox SET status = 'HELD' WHERE dedup_key = 'head'", []);
        assert_eq!(held, Ok(1));
        assert_eq!(turn(NOW_MS, "c"), after(15_000), "a person's turn");
        assert_eq!(
            Looks::new(&files, "c").turn(&Message { ordering_key: None, ..message(NOW_MS) }, NOW_MS),
            Turn::Mine
        );
        files.tell("b", false);
        assert_eq!(turn(NOW_MS, "c"), Turn::Mine);
        files.tell("b", true);
        files.forget("b");
        assert_eq!(turn(NOW_MS, "c"), Turn::Mine);
    }

    #[test]
    fn a_file_that_is_locked_for_a_moment_is_asked_again_and_one_that_is_no_database_holds_nobody() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("other.db");
        let other = db::create(&path, Part::Outbox).expect("made");
        let mode: String =
            other.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0)).expect("a mode");
        assert_eq!(mode, "delete");
        let files = Files::default();
        files.expect("", &path);
        files.tell("", true);
        let turn = || Looks::new(&files, "c").turn(&message(NOW_MS), NOW_MS);
        other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
        let why = "outbox.db cannot be looked into now for earlier messages of its order lane".to_owned();
        assert_eq!(turn(), Turn::After { why, pause: KEY_ELSEWHERE_PAUSE });
        other.execute_batch("ROLLBACK").expect("free");
        assert_eq!(turn(), Turn::Mine);
        drop(other);
        std::fs::write(&path, "no database, and longer than a header of one would be: ".repeat(9))
            .expect("written");
        assert_eq!(turn(), Turn::Mine);
    }
}
