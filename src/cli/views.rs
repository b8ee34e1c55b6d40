//! What the read-only commands read: both databases, opened by SQLite alone, agent up or down. Writes nothing.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::Failure;
use super::settings_file::SettingsFile;
use crate::adopt;
use crate::config::Settings;
use crate::db::identity::WitnessFiles;
use crate::db::{self, DbError, Part};
use crate::incarnation::{in_words, judge};
use crate::message::MessageId;
use crate::outboxes::{File, Outboxes};
use crate::owner::{self, StateDir};
use crate::store::outbox::{self, Unfinished};
use crate::store::{inbox as of_inbox, incarnation};

/// Readers of both files.
pub struct Views {
    /// Names of the files.
    pub state: StateDir,
    /// Reader of the agent's own outbox, which also holds the opt-outs.
    pub outbox: Connection,
    /// A source's name and a reader of it, where that is what is looked at.
    pub source: Option<(String, Connection)>,
    /// `None` where the agent's own folder may not be read by this user.
    pub inbox: Option<Connection>,
}

/// Opens readers of the settings' state folder.
pub fn open(settings: &Settings) -> Result<Views, Failure> {
    let state = StateDir::new(&settings.agent.state_dir);
    let outbox = db::open_reader(&state.outbox(), Part::Outbox)?;
    let inbox = inbox(&state)?;
    Ok(Views { state, outbox, source: None, inbox })
}

impl Views {
    /// The outbox whose rows are looked at.
    pub fn rows(&self) -> &Connection {
        self.source.as_ref().map_or(&self.outbox, |(_, rows)| rows)
    }

    /// From now on looks at the rows of this one.
    pub fn look_into(&mut self, file: &File) -> Result<(), DbError> {
        if let Some(name) = file.source() {
            self.source = Some((name.to_owned(), file.reader()?));
        }
        Ok(())
    }

    /// What is not finished in all outboxes together, by state and destination; and the sources that are missing from it.
    /// Without the inbox, where the list of sources is, outbox.db alone.
    pub fn unfinished(&self, now_ms: i64) -> rusqlite::Result<(Vec<Unfinished>, Vec<String>)> {
        let outboxes = Outboxes::read(&self.state.outbox(), self.inbox.as_ref())?;
        let mut all = outbox::unfinished(&self.outbox, now_ms)?;
        let unread = outboxes.each_source(&mut |_, reader| {
            all.append(&mut outbox::unfinished(reader, now_ms)?);
            Ok(())
        });
        let (mut sums, mut places) = (Vec::<Option<Unfinished>>::new(), BTreeMap::new());
        for one in all {
            let place = (one.status.clone(), one.destination.clone());
            let at = *places.entry(place).or_insert(sums.len());
            match sums.get_mut(at) {
                Some(Some(sum)) => {
                    sum.count += one.count;
                    sum.due += one.due;
                    sum.oldest_ms = sum.oldest_ms.min(one.oldest_ms);
                }
                _ => sums.push(Some(one)),
            }
        }
        Ok((places.into_values().filter_map(|at| sums[at].take()).collect(), unread))
    }

    /// Why nothing is sent; `None` = nothing holds it.
    pub fn held(&self) -> Option<String> {
        held(&self.state, &self.outbox, self.inbox.as_ref())
    }
}

/// By the sign of the running agent; else by the mark that a start or a restore left, or by what the next start will find.
pub fn held(state: &StateDir, outbox: &Connection, inbox: Option<&Connection>) -> Option<String> {
    let alive = owner::holder(state).is_some();
    if alive && let Some(said) = owner::held(state) {
        return Some(said);
    }
    let inbox = inbox?;
    let text = incarnation::held(inbox).ok().flatten().or_else(|| {
        if alive {
            return None;
        }
        match WitnessFiles::open(state) {
            Ok(witness) => {
                let doubts = judge(&adopt::found(inbox, outbox, state, &witness).ok()?);
                if doubts.is_empty() { None } else { Some(in_words(&doubts)) }
            }
            Err(error) => Some(error.to_string()),
        }
    })?;
    Some(format!("{text} (until `onceward adopt`)"))
}

/// A reader of the inbox; `None` where this user may not look into the agent's own folder.
pub fn inbox(state: &StateDir) -> Result<Option<Connection>, Failure> {
    match db::open_reader(&state.inbox(), Part::Inbox) {
        Ok(inbox) => Ok(Some(inbox)),
        Err(DbError::NotPermitted { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A reader of the outbox with the inbox attached under the name `vendor`, for statements that join the two.
pub struct Joined {
    /// The reader.
    pub connection: Connection,
    /// Whether the inbox is there: not where this user may not look into the agent's own folder.
    pub inbox: bool,
    /// Why nothing is sent at all, if so.
    pub held: Option<String>,
}

/// Opens both for joins; the outbox is the one that `--source` names, or the agent's own.
pub fn open_joined(file: &SettingsFile, settings: &Settings) -> Result<Joined, Failure> {
    let state = StateDir::new(&settings.agent.state_dir);
    let reader = inbox(&state)?;
    let connection = super::source::named(file, settings, reader.as_ref())?.reader()?;
    let held = held(&state, &db::open_reader(&state.outbox(), Part::Outbox)?, reader.as_ref());
    let inbox = reader.is_some();
    drop(reader);
    if inbox {
        attach(&connection, &state).map_err(|source| DbError::sqlite(&state.inbox(), source))?;
    }
    Ok(Joined { connection, inbox, held })
}

/// The inbox under the name `vendor`; on a read-only connection it is read-only too.
pub fn attach(outbox: &Connection, state: &StateDir) -> rusqlite::Result<()> {
    outbox.execute("ATTACH ?1 AS vendor", [state.inbox().to_string_lossy()]).map(drop)
}

/// The sources that a sum or a list leaves out, for people; `None` where there is none.
pub fn left_out(unread: &[String]) -> Option<String> {
    let names = match unread {
        [] => return None,
        [name] => format!("the source {name}"),
        names => format!("the sources {}", names.join(", ")),
    };
    Some(format!("not looked at: {names}, which cannot be read now (`onceward source list` says why)"))
}

/// One outbox row for lists.
#[derive(Debug, serde::Serialize)]
pub struct Line {
    /// Row.
    pub id: i64,
    /// Message.
    pub message_id: String,
    /// Key.
    pub dedup_key: String,
    /// State of the outbox row.
    pub status: String,
    /// The same in the word that people use: CANCELLED for FAILED.
    pub state: String,
    /// State of the inbox row, if there is one.
    pub fate: Option<String>,
    /// What a report said of it.
    pub delivery: Option<String>,
    /// Where to.
    pub destination: String,
    /// What.
    pub kind: String,
    /// Class.
    pub class: String,
    /// Masked by the printer unless asked otherwise.
    pub recipient: String,
    /// Priority.
    pub priority: i64,
    /// Claims so far.
    pub attempts: i64,
    /// Why.
    pub reason: Option<String>,
    /// 1 = behind an earlier row of its order lane, 2 = until the clock is right.
    pub blocked: i64,
    /// Created.
    pub created_at_ms: i64,
    /// Due.
    pub not_before_ms: i64,
    /// Deadline.
    pub expires_at_ms: Option<i64>,
    /// Last change.
    pub updated_at_ms: i64,
    /// Closed.
    pub closed_at_ms: Option<i64>,
    /// Whose file it is in, in a list over several; `None` = outbox.db, or the one that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Columns of [`line`], in order.
pub const COLUMNS: &str = "id, message_id, dedup_key, status, destination, kind, class, recipient, priority, attempts, reason, blocked, created_at_ms, not_before_ms, expires_at_ms, updated_at_ms, closed_at_ms";

/// Reads a row of [`COLUMNS`].
pub fn line(row: &Row<'_>) -> rusqlite::Result<Line> {
    let status: String = row.get(3)?;
    Ok(Line {
        state: super::filter::said(&status).to_owned(),
        id: row.get(0)?,
        message_id: row.get(1)?,
        dedup_key: row.get(2)?,
        status,
        fate: None,
        delivery: None,
        destination: row.get(4)?,
        kind: row.get(5)?,
        class: row.get(6)?,
        recipient: row.get(7)?,
        priority: row.get(8)?,
        attempts: row.get(9)?,
        reason: row.get(10)?,
        blocked: row.get(11)?,
        created_at_ms: row.get(12)?,
        not_before_ms: row.get(13)?,
        expires_at_ms: row.get(14)?,
        updated_at_ms: row.get(15)?,
        closed_at_ms: row.get(16)?,
        source: None,
    })
}

/// The inbox row of a message.
#[derive(Debug)]
pub struct Fate {
    /// State.
    pub status: String,
    /// Vendor's code.
    pub vendor_code: Option<String>,
    /// Vendor's id.
    pub vendor_ref: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// What reports said.
    pub delivery: Option<String>,
    /// With this code.
    pub delivery_code: Option<String>,
    /// Claimed.
    pub claimed_at_ms: i64,
    /// Finished.
    pub finished_at_ms: Option<i64>,
    /// By whom.
    pub settled_by: Option<String>,
}

/// Looks a message of an outbox up in the inbox.
pub fn fate(
    inbox: &Connection,
    outbox: &Connection,
    destination: &str,
    message_id: &str,
) -> rusqlite::Result<Option<Fate>> {
    if of_inbox::of_row(inbox, outbox, &MessageId::new(message_id))?.is_none() {
        return Ok(None);
    }
    inbox
        .prepare_cached(
            "SELECT status, vendor_code, vendor_ref, reason, delivery, claimed_at_ms, finished_at_ms, settled_by, delivery_code
               FROM inbox WHERE consumer = ?1 AND message_id = ?2",
        )?
        .query_row(params![destination, message_id], |row| {
            Ok(Fate {
                status: row.get(0)?,
                vendor_code: row.get(1)?,
                vendor_ref: row.get(2)?,
                reason: row.get(3)?,
                delivery: row.get(4)?,
                claimed_at_ms: row.get(5)?,
                finished_at_ms: row.get(6)?,
                settled_by: row.get(7)?,
                delivery_code: row.get(8)?,
            })
        })
        .optional()
}
