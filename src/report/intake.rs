//! Work: takes reports in, each once by [`crate::once`]: marker, effect and stored result in the inbox writer's commit.
//!
//! | event | content | effect | again |
//! |---|---|---|---|
//! | a report ([`super::event`]) | as its id | its row, and what it makes of its message | is counted in the row that the stored result names |
//! | an item ended | how, and for whom ([`super::end`]) | that report counts | so does another code for the same end |
//!
//! An end that contradicts an earlier one, or names another message, is the same event with other content: `once` keeps
//! it in its quarantine, and the report's row is kept without a say. Both consumers belong to the account. Markers go with their
//! reports (`store/purge.rs`) and have no horizon: a report that comes when its message is forgotten is never silently
//! too old, it names no message of this agent and is shown as that. Serves F29. Never sends, never touches the outbox.

use crossbeam_channel::Sender;
use rusqlite::{Connection, ErrorCode};

use super::{Report, Way, consumers, end, event};
use crate::clock::wall_ms;
use crate::db::kill;
use crate::db::writer::Work;
use crate::message::{Destination, MessageId};
use crate::once::{Event, Fingerprint, Once, OnceError};
use crate::store::inbox::{self, Applied};
use crate::store::report::{self, Kept};
use crate::store::{attempt, once as markers};

/// Version of the rules by which the events' fingerprints are made.
const FINGERPRINT_VERSION: u32 = 1;

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
    pub destinations: Vec<Destination>,
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

type Refused = OnceError<rusqlite::Error>;

impl TakeIn {
    fn take_in(&self, tx: &Connection, report: &Report, now_ms: i64) -> Result<Effect, Refused> {
        let item = report.item();
        let event_id = event(&item, &report.code, &report.reference);
        let account = self.account(tx, &item, &event_id).map_err(OnceError::TryAgain)?;
        let [reports, ends] = consumers(account);
        // The id says it all but where its parts meet.
        let parts = [&report.vendor_item, &report.medium, &report.code].map(|part| part.len().to_string());
        let print = Fingerprint::plain(FINGERPRINT_VERSION, &parts.join("/"));
        let mut done = Effect { taken: Taken::New, applied: Applied::Nothing };
        let told = Event::new(&reports, &event_id, &print).once_in(tx, |tx| {
            let consumer = self.consumer(tx, report)?;
            let counts = may_end(tx, &ends, &item, report).map_err(one_is_bad)?;
            let kept = report::keep(tx, (account, consumer), report, self.way, counts, now_ms)?;
            if !counts {
                done.taken = Taken::Contradiction;
            } else if report.reference.is_empty() {
                done.applied = Applied::NoRow;
            } else {
                let message_id = MessageId::new(&report.reference);
                done.applied = inbox::apply_reports(tx, consumer, &message_id, &self.day, now_ms)?;
            }
            Ok::<Kept, rusqlite::Error>(kept)
        })?;
        match told {
            Once::Applied(_) => {}
            Once::Repeated(kept) => {
                report::count_again(tx, kept, now_ms).map_err(OnceError::TryAgain)?;
                done.taken = Taken::Repeat;
            }
            // Two reports that only look alike (a separator within a field): kept by `once` for a person.
            Once::Refused(_) | Once::NotYet => done.taken = Taken::Contradiction,
        }
        Ok(done)
    }

    /// Under which of the account's destinations its reports are known: where the item is known already, so that another
    /// choice in the settings forgets nothing; else the one that was told.
    fn account(&self, tx: &Connection, item: &str, event_id: &str) -> rusqlite::Result<&Destination> {
        for one in self.destinations.iter().skip(1) {
            let [reports, ends] = consumers(one);
            if markers::known(tx, &reports, event_id)?.is_some() || markers::known(tx, &ends, item)?.is_some()
            {
                return Ok(one);
            }
        }
        Ok(&self.destinations[0])
    }

    /// Whose message it is about: the destination that has its row, or has called and released it; the first one where
    /// nothing tells.
    fn consumer(&self, tx: &Connection, report: &Report) -> rusqlite::Result<&Destination> {
        if self.destinations.len() > 1 && !report.reference.is_empty() {
            let message_id = MessageId::new(&report.reference);
            for one in &self.destinations {
                if inbox::state(tx, one, &message_id)?.is_some() || attempt::any(tx, one, &message_id)? {
                    return Ok(one);
                }
            }
        }
        Ok(&self.destinations[0])
    }
}

/// Whether the report may have a say: its item ends once, in one way, for one message.
fn may_end(tx: &Connection, ends: &str, item: &str, report: &Report) -> Result<bool, Refused> {
    let Some(content) = end(report.verdict, &report.reference) else { return Ok(true) };
    let print = Fingerprint::plain(FINGERPRINT_VERSION, &content);
    let told = Event::new(ends, item, &print).once_in(tx, |_| Ok::<(), rusqlite::Error>(()))?;
    Ok(matches!(told, Once::Applied(()) | Once::Repeated(())))
}

/// What the database says, as it is. What only this report is to blame for becomes an error of the data: the writer then
/// refuses this work alone, and no claim of others with it.
fn one_is_bad(error: Refused) -> rusqlite::Error {
    match error {
        OnceError::TryAgain(error) | OnceError::Effect(error) => error,
        OnceError::Invalid { .. } | OnceError::Unusable(_) => rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error { code: ErrorCode::ConstraintViolation, extended_code: 0 },
            Some(error.to_string()),
        ),
    }
}

impl Work for TakeIn {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if kill::point("report-before-commit").is_err() {
            return Err(crate::db::other("database or disk is full (by a test)".into()));
        }
        let now_ms = wall_ms();
        self.effects.clear();
        for index in 0..self.reports.len() {
            let effect = self.take_in(connection, &self.reports[index], now_ms).map_err(one_is_bad)?;
            self.effects.push(effect);
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
