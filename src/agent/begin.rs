//! What a start settles before there is any room: both files there, the clock, a drain that an earlier agent left.
//!
//! Never: a thread, and never a message; what dead starts left in SENDING is settled by `sweeper.rs`.

use std::path::Path;

use super::StartError;
use crate::clock::watch as watch_clock;
use crate::clock::{self, wall_ms};
use crate::db::{self, DbError, Durability, Part};
use crate::owner::StateDir;
use crate::store::{intake, meta};

/// Begins to watch the clock, by the newest time that is recorded in both files: it may have been set wrong, or have
/// begun at 1970. Returns the last vouching of a person that was heard.
pub fn begin_clock(
    inbox: &mut rusqlite::Connection,
    inbox_path: &Path,
    outbox_path: &Path,
) -> Result<Option<String>, DbError> {
    let outbox = db::open_reader(outbox_path, Part::Outbox)?;
    let heard = db::write(inbox, |tx| {
        let vouched = watch_clock::vouched(tx, &outbox)?;
        let newest_ms = if vouched.is_some() { None } else { watch_clock::newest_recorded(tx, &outbox)? };
        if let Some(vouched) = &vouched {
            watch_clock::hear(tx, vouched)?;
        }
        clock::begin(newest_ms);
        // Not what an earlier run thought of it.
        meta::put(tx, watch_clock::DOUBT, clock::now().doubt.map_or("", clock::Doubt::as_str))?;
        meta::get(&outbox, watch_clock::VOUCHED)
    });
    let heard = heard.map_err(|source| DbError::sqlite(inbox_path, source))?;
    if let Some(doubt) = clock::now().doubt {
        log::warn!("the clock {}: what depends on the hour is held", doubt.as_str());
    }
    Ok(heard)
}

/// A drain does not outlive the agent that it was about: producers are let in again.
pub(super) fn end_drain(outbox_path: &Path) -> Result<(), DbError> {
    let sqlite = |source| DbError::sqlite(outbox_path, source);
    let reader = db::open_reader(outbox_path, Part::Outbox)?;
    if intake::closed_until(&reader, wall_ms()).map_err(sqlite)?.is_some() {
        let mut outbox = db::open_writer(outbox_path, Part::Outbox, Durability::Full)?;
        let _ = db::write(&mut outbox, |tx| intake::open(tx, wall_ms())).map_err(sqlite)?;
        log::warn!("the drain has ended: new messages are taken again");
    }
    Ok(())
}

/// F30: both files or none; one alone is a person's decision.
pub(super) fn both_or_none(state: &StateDir) -> Result<(), StartError> {
    let (outbox, inbox) = (state.outbox(), state.inbox());
    // A folder that cannot be looked into now is not an empty one: "missing" ends the service for good.
    match (outbox.try_exists()?, inbox.try_exists()?) {
        (true, false) => Err(StartError::HalfThere { missing: inbox, stands: outbox }),
        (false, true) => Err(StartError::HalfThere { missing: outbox, stands: inbox }),
        (false, false) => Err(StartError::Db(DbError::Missing { path: outbox })),
        (true, true) => Ok(()),
    }
}
