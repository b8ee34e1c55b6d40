//! Writes and reads the marks of identity in `onceward_meta` of both files (see `incarnation.rs` for what they mean).

use rusqlite::Connection;

use super::meta;
use crate::incarnation::Marks;

const PAIR: &str = "pair_id";
const INCARNATION: &str = "incarnation";
const BEFORE: &str = "incarnation_before";
const PLACE: &str = "place";
const MACHINE: &str = "machine";
const OUTSIDE: &str = "witness_outside";
const CLAIMS: &str = "claim_commits";
const HELD: &str = "held";

/// The marks of either file.
pub fn marks(connection: &Connection) -> rusqlite::Result<Marks> {
    let read = |key| meta::get(connection, key).map(Option::unwrap_or_default);
    Ok(Marks {
        pair: read(PAIR)?,
        incarnation: read(INCARNATION)?,
        before: read(BEFORE)?,
        place: read(PLACE)?,
    })
}

/// Writes them.
pub fn put(tx: &Connection, marks: &Marks) -> rusqlite::Result<()> {
    for (key, value) in [
        (PAIR, &marks.pair),
        (INCARNATION, &marks.incarnation),
        (BEFORE, &marks.before),
        (PLACE, &marks.place),
    ] {
        meta::put(tx, key, value)?;
    }
    Ok(())
}

/// The machine that the inbox was on, and whether a witness outside is expected.
pub fn machine(inbox: &Connection) -> rusqlite::Result<(String, bool)> {
    let expected = meta::get(inbox, OUTSIDE)?.as_deref() == Some("1");
    Ok((meta::get(inbox, MACHINE)?.unwrap_or_default(), expected))
}

/// Writes both.
pub fn put_machine(tx: &Connection, machine: &str, has_outside: bool) -> rusqlite::Result<()> {
    meta::put(tx, MACHINE, machine)?;
    meta::put(tx, OUTSIDE, if has_outside { "1" } else { "0" })
}

/// Commits with a claim, by the inbox's own count.
pub fn claims(inbox: &Connection) -> rusqlite::Result<i64> {
    Ok(meta::get(inbox, CLAIMS)?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Counts one more, in the transaction that holds the claim. Returns the count.
pub fn count_claim(tx: &Connection) -> rusqlite::Result<i64> {
    let claims = claims(tx)?.saturating_add(1);
    meta::put(tx, CLAIMS, &claims.to_string())?;
    Ok(claims)
}

/// Highest row number that the outbox has given.
pub fn rows(outbox: &Connection) -> rusqlite::Result<i64> {
    outbox
        .prepare_cached("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'outbox'")?
        .query_row([], |row| row.get(0))
}

/// Why the agent is held until `adopt`; `None` = it is not.
pub fn held(inbox: &Connection) -> rusqlite::Result<Option<String>> {
    Ok(meta::get(inbox, HELD)?.filter(|text| !text.is_empty()))
}

/// Holds it (a text), or lets it go (an empty one).
pub fn put_held(tx: &Connection, text: &str) -> rusqlite::Result<()> {
    meta::put(tx, HELD, text)
}
