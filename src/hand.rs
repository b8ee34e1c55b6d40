//! A person's hand on one message: the look into the inbox and the transition, as one, for command line and local API.
//!
//! Under the outbox's write lock no relay can claim the row, so what the inbox says then stays true until the commit. A
//! row that waits again although its message went out (its mark was lost) is never called held or cancelled.

use rusqlite::Connection;

use crate::lifecycle::{InboxState, OutboxState};
use crate::message::MessageId;
use crate::store::inbox;
use crate::store::outbox::verbs::{self, By, Found, Moved, Verb};

/// What became of the wish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// The verb was tried.
    Moved(Moved),
    /// It went to the vendor before; this is the inbox's word for it.
    Gone(InboxState),
    /// Its row is PUBLISHED, and this is the inbox's word for it.
    Published(InboxState),
    /// It may have gone to the vendor before, and the inbox could not be asked.
    CannotTell,
}

/// Applies `verb` to the row of an id or key, inside the caller's IMMEDIATE transaction on the outbox. `inbox` is `None`
/// where it cannot be read; then a row that was handed over before is left alone. Also returns the row as it stood.
pub fn one(
    tx: &Connection,
    inbox: Option<&Connection>,
    verb: Verb,
    id_or_key: &str,
    by: By<'_>,
    now_ms: i64,
) -> rusqlite::Result<(Option<Found>, Said)> {
    let Some(row) = verbs::find(tx, id_or_key)? else { return Ok((None, Said::Moved(Moved::Missing))) };
    // What was sent goes on to its mark: it can be released, but neither held nor cancelled nor hurried.
    if verb != Verb::Release && verb.leaves().contains(&row.status) {
        match inbox {
            Some(inbox) => {
                if let Some(fate) = inbox::of_row(inbox, tx, &MessageId::new(&row.message_id))? {
                    return Ok((Some(row), Said::Gone(fate)));
                }
            }
            None if row.again && verb != Verb::TryNow => return Ok((Some(row), Said::CannotTell)),
            None => {}
        }
    }
    // Its own state says only that it was handed over: what a person can still do depends on what became of it there.
    if row.status == OutboxState::Published
        && let Some(inbox) = inbox
        && let Some(fate) = inbox::of_row(inbox, tx, &MessageId::new(&row.message_id))?
    {
        return Ok((Some(row), Said::Published(fate)));
    }
    let moved = verbs::apply(tx, verb, &row.message_id, by, now_ms)?;
    Ok((Some(row), Said::Moved(moved)))
}

/// Status of the local API and one sentence, which begins behind the id. A dry run's says what would be.
pub fn sentence(verb: Verb, said: &Said, dry_run: bool) -> (u16, String) {
    let done = word(verb);
    match said {
        Said::Moved(Moved::Yes(_)) if dry_run => {
            (200, format!("would be {done} (dry run: nothing was changed)"))
        }
        Said::Moved(Moved::Yes(row)) => (200, format!("{done}: it is {} now", shown(row.status))),
        Said::Moved(Moved::Already(_)) if verb == Verb::TryNow => (200, "is due already".into()),
        Said::Moved(Moved::Already(row)) => (200, format!("is {} already", shown(row.status))),
        Said::Moved(Moved::No(OutboxState::Publishing)) => (
            409,
            format!(
                "not {done}: the agent has it in hand now (PUBLISHING); `onceward show` tells what becomes of it"
            ),
        ),
        Said::Moved(Moved::No(state)) => (409, format!("not {done}: it is {}", shown(*state))),
        Said::Moved(Moved::Missing) => (404, format!("not {done}: no message has this id or key")),
        Said::Gone(fate) => (
            409,
            format!(
                "not {done}: it is {fate} (it went to the vendor before; its row will follow{})",
                fitting(*fate)
            ),
        ),
        Said::Published(fate) => (409, format!("not {done}: {}", published(*fate))),
        Said::CannotTell => (
            503,
            format!(
                "not {done}: it was handed over before, and whether it went out only the agent or its user can see; start \
                 the agent, or ask as its user"
            ),
        ),
    }
}

/// What became of a message that was handed over, and what fits it.
pub fn published(fate: InboxState) -> String {
    format!("it is PUBLISHED, and {fate} at the vendor{}", fitting(fate))
}

/// What a person can do about it there.
fn fitting(fate: InboxState) -> &'static str {
    match fate {
        InboxState::Error => {
            "; nobody knows whether it arrived, and it is not sent again: ask the vendor, then `onceward settle`"
        }
        InboxState::Sending => "; the call is under way: `onceward show` tells what becomes of it",
        InboxState::Sent => "; it cannot be called back",
        InboxState::Failed => "; it was refused for good and is not sent again",
    }
}

/// What people call the state.
fn shown(state: OutboxState) -> &'static str {
    if state == OutboxState::Failed { "CANCELLED" } else { state.as_str() }
}

/// What was done, in a word.
pub fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Hold => "held",
        Verb::Release => "released",
        Verb::Cancel => "cancelled",
        Verb::TryNow => "made due now",
    }
}

/// The command's name, also the last part of its path in the local API.
pub fn command(verb: Verb) -> &'static str {
    match verb {
        Verb::Hold => "hold",
        Verb::Release => "release",
        Verb::Cancel => "cancel",
        Verb::TryNow => "try-now",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};

    /// Every verb on a row that waits, by what the inbox says and whether it was handed over before.
    #[test]
    fn what_the_inbox_knows_is_never_called_held_or_cancelled() {
        let open = |part| {
            let connection = Connection::open_in_memory().expect("opens");
            connection.execute_batch(migrate::schema(part)).expect("made");
            connection
        };
        for verb in [Verb::Hold, Verb::Cancel, Verb::TryNow] {
            for (fate, readable, attempts, expected) in [
                (None, true, 0, 200),
                (None, true, 3, 200),
                (Some("SENDING"), true, 0, 409),
                (Some("SENT"), true, 3, 409),
                (Some("ERROR"), true, 0, 409),
                (Some("FAILED"), true, 1, 409),
                (Some("SENT"), false, 0, 200), // by the outbox's own word it was never handed over
                (Some("SENT"), false, 3, if verb == Verb::TryNow { 200 } else { 503 }),
            ] {
                let (outbox, inbox) = (open(Part::Outbox), open(Part::Inbox));
                outbox
                    .execute("INSERT INTO outbox (message_id, dedup_key, kind, recipient, payload, not_before_ms) VALUES ('ow-1', 'k', 'K', '010', '{}', 9000000000000)", [])
                    .expect("taken");
                outbox.execute("UPDATE outbox SET attempts = ?1", [attempts]).expect("handed over before");
                if let Some(fate) = fate {
                    // Under another destination: the route may have been lost with an unsynced commit.
                    inbox
                        .execute(
                            "INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms)
                             VALUES ('gw', 'ow-1', 'f', ?1, 'a:1', 1, CASE ?1 WHEN 'SENDING' THEN NULL ELSE 2 END)",
                            [fate],
                        )
                        .expect("known");
                }
                let by = By { who: "test", note: "" };
                let (_, said) = one(&outbox, readable.then_some(&inbox), verb, "k", by, 5).expect("runs");
                let (status, text) = sentence(verb, &said, false);
                assert_eq!(status, expected, "{verb:?} {fate:?} {readable} {attempts}: {text}");
                let moved: bool = outbox
                    .query_row("SELECT status <> 'PENDING' OR not_before_ms = 5 FROM outbox", [], |row| {
                        row.get(0)
                    })
                    .expect("reads");
                assert_eq!(moved, status == 200, "{verb:?} {fate:?}: what is said is what is so");
                if status == 409 {
                    assert!(text.contains(&format!("it is {}", fate.unwrap_or("-"))), "{text}");
                }
            }
        }
    }
}
