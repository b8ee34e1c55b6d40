//! Sole writer of `inbox`, the guard against a second send: look here; claim, record, release and settle in the files of
//! this folder, each with one duty.
//!
//! A [`Sending`] is made in `claim.rs` alone, after the commit of its SENDING row, and is spent in `record.rs` alone.
//! Reports have their effect in the commit of whatever came last, the report or the outcome (`reports.rs`).

mod claim;
mod orphan;
mod record;
mod reports;
mod settle;

use rusqlite::{Connection, OptionalExtension, params};

use crate::fingerprint;
use crate::lifecycle::InboxState;
use crate::message::{Destination, MessageId, OwnerId};

pub use claim::{Claim, ClaimAnswer, Sending};
pub use orphan::{Orphan, orphans, settle_orphan, under_way};
pub use record::{Confirm, Record, Release};
pub use reports::{Applied, apply_reports};
pub use settle::{Verdict, settle_error};

/// What is known of a message before (or instead of) a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its state.
    pub status: InboxState,
    /// Whether the present start of this agent holds it (then its confirm is still to come).
    pub mine: bool,
    /// Whether it is about the same content.
    pub same_content: bool,
    /// The destination under which it was sent.
    pub consumer: String,
}

/// Looks whether the inbox knows the message, under whatever destination: a row's route may have been lost with an
/// unsynced commit and found anew differently, and still it was sent. The fast path: the claim decides.
pub fn look(
    connection: &Connection,
    message_id: &MessageId,
    owner: &OwnerId,
    fingerprint: &str,
) -> rusqlite::Result<Option<Known>> {
    connection
        .prepare_cached("SELECT status, claimed_by, fingerprint, consumer FROM inbox WHERE message_id = ?1")?
        .query_row(params![message_id], |row| {
            let claimed_by: String = row.get(1)?;
            let known: String = row.get(2)?;
            Ok(Known {
                status: row.get(0)?,
                mine: claimed_by == owner.as_str(),
                same_content: !fingerprint::tells_apart(&known, fingerprint),
                consumer: row.get(3)?,
            })
        })
        .optional()
}

/// What the inbox knows of an outbox's row, whatever destination it was sent under. Other content under the same message
/// id (an application gave it twice, in two files) is another message: of this row the inbox then knows nothing.
pub fn of_row(
    connection: &Connection,
    outbox: &Connection,
    message_id: &MessageId,
) -> rusqlite::Result<Option<InboxState>> {
    let known: Option<(InboxState, String)> = connection
        .prepare_cached("SELECT status, fingerprint FROM inbox WHERE message_id = ?1")?
        .query_row([message_id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((status, known)) = known else { return Ok(None) };
    let row = super::outbox::fingerprint(outbox, message_id)?.unwrap_or_default();
    Ok((!fingerprint::tells_apart(&known, &row)).then_some(status))
}

/// Whether the sweeper called the message ERROR while this start of the agent may still be in its call.
pub fn is_given_up_of(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
    live: &str,
) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT 1 FROM inbox WHERE message_id = ?2 AND consumer = ?1 AND status = 'ERROR' AND settled_by = 'sweeper'
                AND claimed_by = ?3",
        )?
        .exists(params![consumer, message_id, live])
}

/// The state of a message's row.
pub fn state(
    connection: &Connection,
    consumer: &Destination,
    message_id: &MessageId,
) -> rusqlite::Result<Option<InboxState>> {
    connection
        .prepare_cached("SELECT status FROM inbox WHERE consumer = ?1 AND message_id = ?2")?
        .query_row(params![consumer, message_id], |row| row.get(0))
        .optional()
}

/// ERROR rows of one destination.
pub struct Unsettled {
    /// Destination.
    pub destination: String,
    /// Their owner died, or they were stale; else the call itself had an unknown outcome.
    pub owner_died: bool,
    /// How many.
    pub count: i64,
}

/// ERROR rows by destination: as many looks as there are ERROR rows.
pub fn unsettled(connection: &Connection) -> rusqlite::Result<Vec<Unsettled>> {
    unsettled_after(connection, i64::MIN)
}

/// The same for those that became ERROR after this moment.
pub fn unsettled_after(connection: &Connection, after_ms: i64) -> rusqlite::Result<Vec<Unsettled>> {
    connection
        .prepare_cached(
            "SELECT consumer, settled_by IN ('start', 'sweeper'), count(*) FROM inbox
              WHERE status = 'ERROR' AND finished_at_ms > ?1 GROUP BY 1, 2",
        )?
        .query_map([after_ms], |row| {
            Ok(Unsettled {
                destination: row.get(0)?,
                owner_died: row.get::<_, Option<bool>>(1)?.unwrap_or(false),
                count: row.get(2)?,
            })
        })?
        .collect()
}
