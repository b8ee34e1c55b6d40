//! The operator's verbs on an outbox: hold, release, cancel, try-now. Part of the sole writer of `outbox`.
//!
//! Each is one conditional transition of one row, with its audit row in the same transaction, and repeating it is
//! harmless. Never touches a claimed row, never reads the inbox: the caller, who holds the write lock, looks there first.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::lifecycle::OutboxState;
use crate::store::audit::{self, Deed};

/// Which verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// PENDING -> HELD
    Hold,
    /// HELD -> PENDING at its old due time; PARKED -> PENDING, due now, with a fresh budget of attempts
    Release,
    /// PARKED, HELD (and PENDING through HELD) -> FAILED, which people read as CANCELLED
    Cancel,
    /// PENDING stays PENDING, and is due now
    TryNow,
}

impl Verb {
    /// The capitals of the audit.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "HOLD",
            Self::Release => "RELEASE",
            Self::Cancel => "CANCEL",
            Self::TryNow => "TRY_NOW",
        }
    }

    /// The states that it leaves.
    pub fn leaves(self) -> &'static [OutboxState] {
        use OutboxState as S;
        match self {
            Self::Hold | Self::TryNow => &[S::Pending],
            Self::Release => &[S::Held, S::Parked],
            Self::Cancel => &[S::Pending, S::Held, S::Parked],
        }
    }

    /// The state in which there is nothing left to do.
    fn leads_to(self) -> OutboxState {
        match self {
            Self::Hold => OutboxState::Held,
            Self::Release | Self::TryNow => OutboxState::Pending,
            Self::Cancel => OutboxState::Failed,
        }
    }
}

/// A row, as far as a verb looks at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Message.
    pub message_id: String,
    /// Destination; may be empty.
    pub destination: String,
    /// State.
    pub status: OutboxState,
    /// Due time, UTC milliseconds.
    pub not_before_ms: i64,
    /// The relay has had it before, so the inbox may know it.
    pub again: bool,
}

/// What a verb did to a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Moved {
    /// Done now; this is how the row stands.
    Yes(Found),
    /// It stood so already.
    Already(Found),
    /// It is in this state, from which the verb does not lead.
    No(OutboxState),
    /// No such row.
    Missing,
}

/// The row of a message id, or of a dedup key where no id is like it.
pub fn find(connection: &Connection, id_or_key: &str) -> rusqlite::Result<Option<Found>> {
    connection
        .prepare_cached(
            "SELECT message_id, destination, status, not_before_ms, attempts > 0 OR reason IS NOT NULL FROM outbox
              WHERE message_id = ?1 OR dedup_key = ?1 ORDER BY message_id = ?1 DESC LIMIT 1",
        )?
        .query_row([id_or_key], found)
        .optional()
}

fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    Ok(Found {
        message_id: row.get(0)?,
        destination: row.get(1)?,
        status: row.get(2)?,
        not_before_ms: row.get(3)?,
        again: row.get(4)?,
    })
}

const HOLD: &str = "UPDATE outbox SET status = 'HELD', reason = ?2, updated_at_ms = ?3 WHERE message_id = ?1 AND status = 'PENDING'";
/// A held row keeps its due time and its attempts, so that hold and release together change nothing.
const RELEASE_HELD: &str = "UPDATE outbox SET status = 'PENDING', reason = ?2, updated_at_ms = ?3 WHERE message_id = ?1 AND status = 'HELD'";
const RELEASE_PARKED: &str = "UPDATE outbox SET status = 'PENDING', reason = ?2, attempts = 0, not_before_ms = min(not_before_ms, ?3), updated_at_ms = ?3
  WHERE message_id = ?1 AND status = 'PARKED'";
const GIVE_UP: &str =
    "UPDATE outbox SET status = 'FAILED', reason = ?2, updated_at_ms = ?3, closed_at_ms = ?3
  WHERE message_id = ?1 AND (status = 'PARKED' OR status = 'HELD')";
const TRY_NOW: &str = "UPDATE outbox SET not_before_ms = ?2, updated_at_ms = ?2
  WHERE message_id = ?1 AND status = 'PENDING' AND not_before_ms > ?2";

/// Who does it and why; `note` may be empty.
#[derive(Clone, Copy, Debug)]
pub struct By<'b> {
    /// As `who.rs` names people.
    pub who: &'b str,
    /// Why.
    pub note: &'b str,
}

/// Moves one row inside the caller's IMMEDIATE transaction, and appends to the audit if it moved.
pub fn apply(
    tx: &Connection,
    verb: Verb,
    message_id: &str,
    by: By<'_>,
    now_ms: i64,
) -> rusqlite::Result<Moved> {
    let Some(before) = find(tx, message_id)?.filter(|found| found.message_id == message_id) else {
        return Ok(Moved::Missing);
    };
    let reason = |word: &str| {
        if by.note.is_empty() { word.to_owned() } else { format!("{word}: {}", by.note) }
    };
    let run =
        |sql: &str, word: &str| tx.prepare_cached(sql)?.execute(params![message_id, reason(word), now_ms]);
    let moved = match verb {
        Verb::Hold => run(HOLD, "HELD")?,
        Verb::Release if before.status == OutboxState::Parked => run(RELEASE_PARKED, "RELEASED")?,
        Verb::Release => run(RELEASE_HELD, "RELEASED")?,
        Verb::Cancel => {
            run(HOLD, "CANCELLED")?;
            run(GIVE_UP, "CANCELLED")?
        }
        Verb::TryNow => tx.prepare_cached(TRY_NOW)?.execute(params![message_id, now_ms])?,
    };
    if moved == 0 {
        return Ok(match before.status {
            status if status == verb.leads_to() => Moved::Already(before),
            status => Moved::No(status),
        });
    }
    let Some(after) = find(tx, message_id)? else { return Ok(Moved::Missing) };
    audit::append(
        tx,
        &Deed {
            at_ms: now_ms,
            who: by.who,
            verb: verb.as_str(),
            target: message_id,
            destination: &after.destination,
            note: by.note,
            before: &stands(verb, &before),
            after: &stands(verb, &after),
        },
    )?;
    Ok(Moved::Yes(after))
}

/// The state, and the due time where that is what the verb changes.
fn stands(verb: Verb, row: &Found) -> String {
    match (verb, Timestamp::from_millisecond(row.not_before_ms)) {
        (Verb::TryNow, Ok(due)) => format!("{} due {due}", row.status),
        _ => row.status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};

    const NOW: i64 = 2_000_000_000_000;

    fn outbox() -> Connection {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(migrate::schema(Part::Outbox)).expect("made");
        connection
    }

    /// A row in this state by legal moves, due an hour after `NOW`.
    fn put(connection: &Connection, state: OutboxState) {
        use OutboxState as S;
        connection
            .execute_batch("DELETE FROM audit; DROP TRIGGER IF EXISTS outbox_delete; DELETE FROM outbox")
            .expect("emptied");
        connection
            .execute("INSERT INTO outbox (message_id, dedup_key, kind, recipient, payload, not_before_ms) VALUES ('ow-1', 'k', 'K', '010', '{}', ?1)", [NOW + 3_600_000])
            .expect("taken");
        let claim =
            "UPDATE outbox SET status = 'PUBLISHING', claimed_by = 'a:1', claimed_until_ms = 1, attempts = 3";
        let free = "claimed_by = NULL, claimed_until_ms = NULL";
        let steps: Vec<String> = match state {
            S::Pending => vec![],
            S::Publishing => vec![claim.into()],
            S::Held => vec!["UPDATE outbox SET status = 'HELD', attempts = 3".into()],
            S::Parked => vec![claim.into(), format!("UPDATE outbox SET status = 'PARKED', {free}")],
            S::Failed => vec![
                "UPDATE outbox SET status = 'HELD'".into(),
                "UPDATE outbox SET status = 'FAILED', closed_at_ms = 1".into(),
            ],
            S::Published | S::Skipped | S::Expired => {
                vec![claim.into(), format!("UPDATE outbox SET status = '{state}', closed_at_ms = 1, {free}")]
            }
        };
        for step in steps {
            connection.execute_batch(&step).expect("legal");
        }
    }

    #[test]
    fn every_verb_from_every_state() {
        let connection = outbox();
        let mut grid = String::new();
        for verb in [Verb::Hold, Verb::Release, Verb::Cancel, Verb::TryNow] {
            for state in OutboxState::ALL {
                put(&connection, state);
                let by = By { who: "uid 1 (hana)", note: "because" };
                let moved = apply(&connection, verb, "ow-1", by, NOW).expect("runs");
                let (status, due, attempts): (OutboxState, i64, i64) = connection
                    .query_row("SELECT status, not_before_ms, attempts FROM outbox", [], |row| {
                        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
                    })
                    .expect("reads");
                let audits: i64 =
                    connection.query_row("SELECT count(*) FROM audit", [], |row| row.get(0)).expect("reads");
                let said = match moved {
                    Moved::Yes(_) => "yes",
                    Moved::Already(_) => "already",
                    Moved::No(_) => continue,
                    Moved::Missing => "missing",
                };
                let due = if due == NOW { "now" } else { "later" };
                grid.push_str(&format!(
                    "{} {state} {said} {status} due={due} attempts={attempts} audits={audits}\n",
                    verb.as_str()
                ));
            }
        }
        assert_eq!(
            grid,
            "HOLD PENDING yes HELD due=later attempts=0 audits=1\n\
             HOLD HELD already HELD due=later attempts=3 audits=0\n\
             RELEASE PENDING already PENDING due=later attempts=0 audits=0\n\
             RELEASE PARKED yes PENDING due=now attempts=0 audits=1\n\
             RELEASE HELD yes PENDING due=later attempts=3 audits=1\n\
             CANCEL PENDING yes FAILED due=later attempts=0 audits=1\n\
             CANCEL PARKED yes FAILED due=later attempts=3 audits=1\n\
             CANCEL HELD yes FAILED due=later attempts=3 audits=1\n\
             CANCEL FAILED already FAILED due=later attempts=0 audits=0\n\
             TRY_NOW PENDING yes PENDING due=now attempts=0 audits=1\n"
        );
    }

    #[test]
    fn the_audit_says_who_when_why_before_and_after() {
        let connection = outbox();
        put(&connection, OutboxState::Pending);
        let by = By { who: "uid 1 (hana)", note: "asked by phone" };
        apply(&connection, Verb::TryNow, "ow-1", by, NOW).expect("runs");
        apply(&connection, Verb::Cancel, "ow-1", by, NOW + 1).expect("runs");
        let rows: Vec<String> = connection
            .prepare("SELECT at_ms || ' ' || who || ' ' || verb || ' ' || target || ' ' || note || ': ' || state_before || ' -> ' || state_after FROM audit ORDER BY id")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .expect("reads");
        assert_eq!(
            rows,
            [
                "2000000000000 uid 1 (hana) TRY_NOW ow-1 asked by phone: PENDING due 2033-05-18T04:33:20Z -> PENDING due 2033-05-18T03:33:20Z",
                "2000000000001 uid 1 (hana) CANCEL ow-1 asked by phone: PENDING -> FAILED",
            ]
        );
        assert!(connection.execute("UPDATE audit SET who = 'nobody'", []).is_err());
    }

    #[test]
    fn an_id_is_found_before_a_key_that_looks_like_it() {
        let connection = outbox();
        put(&connection, OutboxState::Pending);
        connection
            .execute("INSERT INTO outbox (message_id, dedup_key, kind, recipient, payload) VALUES ('ow-2', 'ow-1', 'K', '010', '{}')", [])
            .expect("taken");
        let id = |text| find(&connection, text).expect("reads").map(|found| found.message_id);
        assert_eq!((id("ow-1"), id("k"), id("x")), (Some("ow-1".into()), Some("ow-1".into()), None));
    }
}
