//! Sole writer of `audit` (one in each file): what a person, or the look-up, did to a message, a destination or the agent.
//!
//! Append only, in the same transaction as the deed: a verb on the inbox appends to `inbox.db`, one on an outbox to that
//! file. No number and no text of a message goes into it, only ids, states and the person's own note.

use rusqlite::{Connection, params};

/// One deed.
#[derive(Clone, Debug)]
pub struct Deed<'d> {
    /// When, UTC milliseconds.
    pub at_ms: i64,
    /// Who, as `who.rs` names them.
    pub who: &'d str,
    /// The verb in capitals, e.g. `SETTLE_SENT`.
    pub verb: &'d str,
    /// Message id, or empty where a destination or the whole agent is meant.
    pub target: &'d str,
    /// Destination, or empty.
    pub destination: &'d str,
    /// Why.
    pub note: &'d str,
    /// State before, as the documents name it.
    pub before: &'d str,
    /// State after.
    pub after: &'d str,
}

/// Appends.
pub fn append(tx: &Connection, deed: &Deed<'_>) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO audit (at_ms, who, verb, target, destination, note, state_before, state_after)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        deed.at_ms,
        deed.who,
        deed.verb,
        deed.target,
        deed.destination,
        deed.note,
        deed.before,
        deed.after
    ])?;
    Ok(())
}
