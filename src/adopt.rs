//! The marks of identity over a life: made by `init`, taken on by each start, and given anew by a person's `adopt`.
//!
//! A start that finds something wrong (`incarnation.rs`) writes the reason into the inbox and leaves every mark and the
//! witness as they are: they are the evidence. From then on the agent is held, over restarts, until `onceward adopt` takes the
//! reason away in one commit with its audit row.
//!
//! `adopt` gives the agent another id, too. Whatever was copied still has the old one, and may live: an application's file
//! says whom it is served by, so neither takes the other's claims for those of a dead start of its own, and each source
//! is looked at by a person (`source add --adopt`, which holds what waits in it) before it is served again.

use std::path::Path;

use rusqlite::Connection;

use crate::clock::wall_ms;
use crate::db::identity::{self, WitnessFiles};
use crate::db::{DbError, Durability, Part};
use crate::incarnation::{Found, Marks, Seen, Witness, in_words, judge};
use crate::message::OwnerId;
use crate::owner::StateDir;
use crate::store::{audit, incarnation, meta, outbox};

/// What is done with messages that wait, once the files are adopted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// They are sent.
    Send,
    /// They become HELD, and a person releases or cancels each.
    Hold,
}

impl Waiting {
    /// As in the local API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Hold => "hold",
        }
    }
    /// Reads it.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Send, Self::Hold].into_iter().find(|waiting| waiting.as_str() == text)
    }
}

/// A fresh random id.
fn fresh() -> rusqlite::Result<String> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(|error| crate::db::other(error.to_string()))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn place(path: &Path) -> rusqlite::Result<String> {
    identity::place(path).map_err(|error| crate::db::other(format!("{}: {error}", path.display())))
}

fn io(error: std::io::Error) -> rusqlite::Error {
    crate::db::other(format!("the witness cannot be written: {error}"))
}

/// The first marks of two new files, or of files whose `init` died half-way. Nothing where both have theirs.
pub fn first(
    inbox: &mut Connection,
    outbox: &mut Connection,
    state: &StateDir,
    witness: &WitnessFiles,
    made_now: bool,
) -> rusqlite::Result<()> {
    // Where nothing was ever inserted, nothing can be sent twice.
    let unused = incarnation::claims(inbox)? == 0 && incarnation::rows(outbox)? == 0;
    let unfinished = unused && !judge(&found(inbox, outbox, state, witness)?).is_empty();
    if !made_now && !unfinished {
        return Ok(());
    }
    witness.make().map_err(io)?;
    let marks = next(state, &fresh()?, &fresh()?, None)?;
    write(inbox, outbox, &marks, witness, |tx| {
        incarnation::put_machine(tx, &identity::machine(), witness.has_outside())
    })
}

/// Marks of a new incarnation: (inbox, outbox).
fn next(
    state: &StateDir,
    pair: &str,
    incarnation: &str,
    before: Option<&str>,
) -> rusqlite::Result<(Marks, Marks)> {
    let marks = |path: &Path| -> rusqlite::Result<Marks> {
        Ok(Marks {
            pair: pair.into(),
            incarnation: incarnation.into(),
            before: before.unwrap_or(incarnation).into(),
            place: place(path)?,
        })
    };
    Ok((marks(&state.inbox())?, marks(&state.outbox())?))
}

/// Inbox, outbox, witness: in this order, each synced.
fn write(
    inbox: &mut Connection,
    outbox: &mut Connection,
    (of_inbox, of_outbox): &(Marks, Marks),
    witness: &WitnessFiles,
    with: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    crate::db::write(inbox, |tx| {
        incarnation::put(tx, of_inbox)?;
        with(tx)
    })?;
    crate::db::write(outbox, |tx| incarnation::put(tx, of_outbox))?;
    witness.write(record(inbox, outbox, of_inbox)?).map_err(io)
}

fn record(inbox: &Connection, outbox: &Connection, marks: &Marks) -> rusqlite::Result<Witness> {
    Ok(Witness {
        pair: marks.pair.clone(),
        incarnation: marks.incarnation.clone(),
        claims: incarnation::claims(inbox)?,
        rows: incarnation::rows(outbox)?,
    })
}

/// All that can be found out about the files now.
pub fn found(
    inbox: &Connection,
    outbox: &Connection,
    state: &StateDir,
    witness: &WitnessFiles,
) -> rusqlite::Result<Found> {
    let (machine, outside_expected) = incarnation::machine(inbox)?;
    let (inside, outside) = witness.seen(outside_expected);
    Ok(Found {
        inbox: incarnation::marks(inbox)?,
        outbox: incarnation::marks(outbox)?,
        claims: incarnation::claims(inbox)?,
        rows: incarnation::rows(outbox)?,
        inbox_place: place(&state.inbox())?,
        outbox_place: place(&state.outbox())?,
        machine,
        machine_now: identity::machine(),
        inside,
        outside,
    })
}

/// A start: a new incarnation, or the reason why everything is held until `adopt`. Both connections sync their commits.
pub fn begin(
    inbox: &mut Connection,
    outbox: &mut Connection,
    state: &StateDir,
    witness: &WitnessFiles,
) -> rusqlite::Result<Option<String>> {
    let found = found(inbox, outbox, state, witness)?;
    let doubts = judge(&found);
    let held = incarnation::held(inbox)?;
    if held.is_some() || !doubts.is_empty() {
        let words = in_words(&doubts);
        let text = match held {
            Some(held) if doubts.is_empty() || held.contains(&words) => held,
            Some(held) => format!("{held}; {words}"),
            None => words,
        };
        crate::db::write(inbox, |tx| incarnation::put_held(tx, &text))?;
        return Ok(Some(text));
    }
    let Marks { pair, incarnation: last, .. } = found.inbox.clone();
    let is_last = |seen: &Seen| match seen {
        Seen::There(witness) => witness.incarnation == last,
        _ => true,
    };
    if found.outbox.incarnation != last || !is_last(&found.inside) || !is_last(&found.outside) {
        // An earlier start died between its three steps: first come to its end, so that `before` fits all of them.
        crate::db::write(outbox, |tx| {
            incarnation::put(tx, &Marks { place: found.outbox.place.clone(), ..found.inbox.clone() })
        })?;
        witness.write(record(inbox, outbox, &found.inbox)?).map_err(io)?;
    }
    let marks = next(state, &pair, &fresh()?, Some(&last))?;
    write(inbox, outbox, &marks, witness, |_| Ok(()))?;
    Ok(None)
}

/// What the last start had claimed under the id of before an adoption (it was running then) is a dead start's, too.
pub fn give_back(inbox: &Connection, outbox: &Path, owner: &OwnerId) -> Result<(), DbError> {
    let last = meta::get(inbox, "started_by").map_err(|error| DbError::sqlite(outbox, error))?;
    let agent = |owner: &str| owner.split(':').next().unwrap_or_default().to_owned();
    let Some(last) = last.filter(|last| agent(last) != agent(owner.as_str())) else { return Ok(()) };
    let mut connection = crate::db::open_writer(outbox, Part::Outbox, Durability::Full)?;
    crate::db::write(&mut connection, |tx| {
        crate::store::outbox::lease_over(tx, owner, wall_ms(), |_| false, |_, by, _| by == last)
    })
    .map_err(|error| DbError::sqlite(outbox, error))?;
    Ok(())
}

/// A person's decision: these files are the ones, from now on, here.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// Who.
    pub who: String,
    /// Why.
    pub note: String,
    /// What happens to what waits.
    pub waiting: Waiting,
    /// Whose files they are from now on.
    pub agent_id: String,
    marks: (Marks, Marks),
    has_outside: bool,
}

impl Adoption {
    /// Of the files that lie in the state folder. The pair id becomes the inbox's, or a new one where it has none.
    pub fn new(
        inbox: &Connection,
        state: &StateDir,
        has_outside: bool,
        who: String,
        note: String,
        waiting: Waiting,
    ) -> rusqlite::Result<Self> {
        let pair = incarnation::marks(inbox)?.pair;
        let pair = if pair.is_empty() { fresh()? } else { pair };
        let marks = next(state, &pair, &fresh()?, None)?;
        Ok(Self { who, note, waiting, agent_id: fresh()?, marks, has_outside })
    }

    /// First: the outbox's marks, and what waits; `copied` is the agent's id until now. Returns how many became HELD. A death after it leaves the agent held.
    pub fn outbox(&self, outbox: &mut Connection, copied: &str) -> rusqlite::Result<usize> {
        let now_ms = wall_ms();
        crate::db::write(outbox, |tx| {
            incarnation::put(tx, &self.marks.1)?;
            // What the copied agent had in its hands waits, too: under the new id it would be another agent's.
            let holds = self.waiting == Waiting::Hold;
            let owner = OwnerId::new(format!("{copied}:adopt"));
            outbox::lease_over(tx, &owner, now_ms, |_| false, |_, _, _| holds)?;
            if !holds {
                return Ok(0);
            }
            outbox::hold_all(tx, &format!("HELD by adopt: {}", self.note), now_ms)
        })
    }

    /// Second, in a transaction on the inbox: its marks, the audit row, and the reason goes.
    pub fn inbox(&self, tx: &Connection) -> rusqlite::Result<()> {
        let held = incarnation::held(tx)?.unwrap_or_default();
        incarnation::put(tx, &self.marks.0)?;
        incarnation::put_machine(tx, &identity::machine(), self.has_outside)?;
        incarnation::put_held(tx, "")?;
        meta::put(tx, "agent_id", &self.agent_id)?;
        meta::put(tx, "adopted_at_ms", &wall_ms().to_string())?;
        audit::append(
            tx,
            &audit::Deed {
                at_ms: wall_ms(),
                who: &self.who,
                verb: "ADOPT",
                target: "",
                destination: "",
                note: &self.note,
                before: &format!("HELD: {held}"),
                after: &format!("adopted, waiting messages: {}", self.waiting.as_str()),
            },
        )
    }

    /// Third: what the witnesses must say now.
    pub fn witness(&self, inbox: &Connection, outbox: &Connection) -> rusqlite::Result<Witness> {
        record(inbox, outbox, &self.marks.0)
    }
}
