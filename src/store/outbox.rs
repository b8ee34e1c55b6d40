//! Sole writer of `outbox`: the producer's put, the relay's claim and marks; the operator's verbs are in `verbs`.
//!
//! Every move names the state, and where there is one the owner, that it leaves; the returned bool says whether the
//! row was still there to be moved. Statements are constants; the claim relies on the index `outbox_due`.
//!
//! A file for each job in the folder; callers name all of it `outbox::VERB`.

mod adopted;
mod claim;
mod clock;
mod counts;
mod look;
mod marks;
mod put;
mod rearm;
pub mod verbs;

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};

pub use self::adopted::{hold_all, hold_older, was_ever_claimed};
pub use self::claim::{Claimed, claim, claim_one};
pub use self::clock::{GOES_ON, go_on, hold_for_clock, misdated, redate};
pub use self::counts::{
    UNFINISHED_IDS, Unfinished, ended_between, last_quarantined, parked, quarantined, unfinished,
};
pub use self::look::{
    Facts, Head, Overdue, facts, find, fingerprint, lane_head, next_deadline_ms, next_destination,
    next_due_ms, next_waiting_destination, oldest_due_ms, overdue, unrouted,
};
pub use self::marks::{
    Postpone, expire, extend_lease, lease_over, move_day, park, postpone, publish, route, skip,
};
pub use self::put::{NewMessage, Put, put};
pub use self::rearm::{Rearmed, could_rearm, rearm};

/// Text as it is in the file, valid UTF-8 or not: to be compared and bound again byte for byte.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RawText(Vec<u8>);

impl RawText {
    /// For people and for comparing with names of ours.
    pub fn lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}
impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}
impl FromSql for RawText {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_bytes().map(|bytes| Self(bytes.to_vec()))
    }
}
