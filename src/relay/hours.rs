//! What the relay does once the clock can be believed (again): whatever was held because of it goes on, and rows that
//! were written under a wrong clock get dates that can be kept. Runs inside the relay's transaction, at the start and
//! after each leap; never while the clock is in doubt.

use rusqlite::Connection;

use crate::clock::trust::{FIRST_MS, SLACK_MS, mended};
use crate::store::outbox;

/// True if anything was changed.
pub(super) fn after_a_leap(tx: &Connection, now_ms: i64) -> rusqlite::Result<bool> {
    let going_on = outbox::go_on(tx)?;
    if going_on > 0 {
        log::warn!("{going_on} messages that were held because of the clock go on");
    }
    let mut redated = 0;
    for (row, dates) in outbox::misdated(tx, now_ms.saturating_add(SLACK_MS), FIRST_MS)? {
        if let Some(new) = mended(dates, now_ms) {
            let reason = "CLOCK: written under a wrong clock; its due time was set right";
            redated += usize::from(outbox::redate(tx, row, new.due_ms, new.deadline_ms, reason)?);
        }
    }
    if redated > 0 {
        log::warn!("{redated} messages were written under a wrong clock: their due times were pulled back");
    }
    Ok(going_on + redated > 0)
}
