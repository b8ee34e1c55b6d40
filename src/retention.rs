//! Pure: what may be forgotten, and when. `retention/pass.rs` walks, `retention/room.rs` times, `store/purge.rs` deletes.
//!
//! State first, age second: nothing that is unfinished or unsettled ever ages out. In this order, oldest first:
//!
//! | what | goes when |
//! |---|---|
//! | number and text of an outbox row | its end is `bodies` old and its fate is settled |
//! | number and text in quarantine | `bodies` old |
//! | the outbox row itself (its key) | it is wiped and its end is `keys` old |
//! | an inbox row | SENT or FAILED, `keys` old, and no outbox has the message any more |
//! | a line of the call log | `keys` old, and neither an outbox nor the inbox has the message any more |
//! | a report, its markers of `once` with it | `keys` old since it came last, and the same |
//! | a quarantined row, a refusal of `once`, an alert | `keys` old |
//! | a day of the tally | `keys` old: it becomes part of one sum |
//!
//! So an inbox row outlives every outbox row that could hand its message over again; that deletion is synced before
//! the inbox is looked at. Serves F24.

pub mod pass;
pub mod room;

use std::time::Duration;

use rusqlite::Connection;

use crate::clock::{self, ms, wall_ms};
use crate::db;
use crate::lifecycle::{InboxState, OutboxState};
use crate::limits::PURGE_STEP_MAX;
use crate::store::{meta, purge};

/// What the inbox says of an outbox row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The inbox has never kept a row of it.
    Never,
    /// It has a row in this state.
    Is(InboxState),
    /// The inbox may not be read from here (a look by a group member): counted as settled.
    Unread,
}

/// Whether a closed outbox row may be forgotten, in whole or in part, once it is old enough.
pub fn is_settled(status: OutboxState, fate: Fate) -> bool {
    use InboxState as I;
    use OutboxState as O;
    match (status, fate) {
        (O::Pending | O::Publishing | O::Parked | O::Held, _) => false,
        (_, Fate::Is(I::Sending | I::Error)) => false,
        // A PUBLISHED row without an inbox row is a fault: `verify` needs it to say so.
        (O::Published, Fate::Never) => false,
        (O::Published | O::Skipped | O::Expired | O::Failed, _) => true,
    }
}

/// Up to which end keys go in this pass: older than `keys`, and at most `span` of history from the oldest on, so that
/// a clock that jumped ahead cannot take all keys at once. `None` = there is none.
pub fn cut_ms(now_ms: i64, keys: Duration, oldest_ms: Option<i64>, span: Duration) -> Option<i64> {
    let wanted = now_ms.saturating_sub(ms(keys));
    let oldest = oldest_ms.filter(|oldest| *oldest < wanted)?;
    Some(wanted.min(oldest.saturating_add(ms(span))))
}

/// What becomes of a row in the walk over the inbox or the call log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    /// Old and settled: goes if no outbox has its message.
    Old,
    /// Not old enough: after a run of these the walk ends.
    Young,
    /// Stays and says nothing about its neighbours: unsettled, or stamped by a clock that was ahead.
    Stays,
}

/// Judges a row of the inbox (`status` given) or of the call log.
pub fn age(row: &purge::Aged, cut_ms: i64, now_ms: i64) -> Age {
    match (row.status, row.ended_at_ms) {
        (Some(InboxState::Sending | InboxState::Error), _) | (_, None) => Age::Stays,
        _ if row.made_at_ms > now_ms => Age::Stays,
        (_, Some(ended)) if ended >= cut_ms => Age::Young,
        _ => Age::Old,
    }
}

/// A bounded piece of work on an outbox file, done by its only writer.
#[derive(Clone, Debug)]
pub enum OutboxStep {
    /// Repeats of wiped rows are compared.
    Recheck,
    /// These rows (id, fingerprint) lose number and text.
    Wipe(Vec<(i64, String)>),
    /// These keys go, as far as they ended before the time. Synced.
    Delete(Vec<i64>, i64),
    /// Quarantine: what is older than the first time loses number and text, than the second goes.
    Quarantine(i64, i64),
    /// A mark in `onceward_meta`.
    Mark(&'static str, String),
}

/// A bounded piece of work on the inbox file, done by its only writer.
#[derive(Clone, Debug)]
pub enum InboxStep {
    /// These settled inbox rows go, as far as they ended before the time.
    DeleteRows(Vec<i64>, i64),
    /// These lines of the call log go, as far as they began before the time.
    DeleteAttempts(Vec<i64>, i64),
    /// These reports go, as far as they last came before the time.
    DeleteReports(Vec<i64>, i64),
    /// Tally days before this local day become one sum; alerts, look-ups, notes of re-arming and deeds from
    /// before the time go.
    Fold(String, i64),
    /// A mark in `onceward_meta`.
    Mark(&'static str, String),
}

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// How many of the step's rows were dealt with; the rest is for the next step.
    pub dealt: usize,
    /// How many rows were changed.
    pub changed: usize,
}

/// Does each until all are done or the step's time is over; at least one.
fn each<T>(items: &[T], mut change: impl FnMut(&T) -> rusqlite::Result<bool>) -> rusqlite::Result<Done> {
    let begun = clock::mono();
    let mut done = Done::default();
    for item in items {
        done.changed += usize::from(change(item)?);
        done.dealt += 1;
        if clock::elapsed(begun) >= PURGE_STEP_MAX {
            break;
        }
    }
    Ok(done)
}

/// One step in a transaction of its own, on the connection of the file's only writer. `rows_max` bounds what it changes.
pub fn apply_outbox(
    connection: &mut Connection,
    step: &OutboxStep,
    rows_max: usize,
) -> rusqlite::Result<Done> {
    let now_ms = wall_ms();
    match step {
        OutboxStep::Recheck => db::write(connection, |tx| {
            let done = purge::recheck(tx, None, rows_max)?;
            Ok(Done { dealt: done.same + done.other, changed: done.same + done.other })
        }),
        // Overwritten, not only let go: the text is gone from the page too.
        OutboxStep::Wipe(rows) => with_pragma(connection, "secure_delete", 1, |connection| {
            db::write(connection, |tx| {
                each(rows, |(id, fingerprint)| purge::wipe(tx, *id, fingerprint, now_ms))
            })
        }),
        // On the disk before the inbox forgets the message: else a power cut could bring the row back alone.
        OutboxStep::Delete(rows, before_ms) => with_pragma(connection, "synchronous", 2, |connection| {
            db::write(connection, |tx| each(rows, |id| purge::delete_key(tx, *id, *before_ms)))
        }),
        OutboxStep::Quarantine(bodies_before_ms, keys_before_ms) => {
            with_pragma(connection, "secure_delete", 1, |connection| {
                db::write(connection, |tx| {
                    let wiped = purge::wipe_quarantine(tx, *bodies_before_ms, rows_max)?;
                    let gone = purge::delete_quarantine(tx, *keys_before_ms, rows_max.saturating_sub(wiped))?;
                    let deeds = crate::store::audit::forget(tx, *keys_before_ms, rows_max)?;
                    Ok(Done { dealt: wiped + gone, changed: wiped + gone + deeds })
                })
            })
        }
        OutboxStep::Mark(key, value) => db::write(connection, |tx| {
            meta::put(tx, key, value)?;
            Ok(Done { dealt: 1, changed: 1 })
        }),
    }
}

/// One step inside the inbox writer's transaction.
pub fn apply_inbox(connection: &Connection, step: &InboxStep) -> rusqlite::Result<Done> {
    match step {
        InboxStep::DeleteRows(rows, before_ms) => {
            each(rows, |id| purge::delete_inbox_row(connection, *id, *before_ms))
        }
        InboxStep::DeleteAttempts(rows, before_ms) => {
            each(rows, |id| purge::delete_attempt(connection, *id, *before_ms))
        }
        InboxStep::DeleteReports(rows, before_ms) => {
            each(rows, |id| purge::delete_report(connection, *id, *before_ms))
        }
        InboxStep::Fold(first_kept, before_ms) => {
            let folded = crate::store::tally::fold(connection, first_kept)?;
            let forgotten = crate::store::alert::forget(connection, *before_ms)?;
            let aside = purge::delete_aside(connection, *before_ms)?;
            Ok(Done { dealt: 1, changed: folded + forgotten + aside })
        }
        InboxStep::Mark(key, value) => {
            meta::put(connection, key, value)?;
            Ok(Done { dealt: 1, changed: 1 })
        }
    }
}

/// Runs `work` with a connection's setting at `value`, and puts it back.
fn with_pragma<T>(
    connection: &mut Connection,
    name: &str,
    value: i64,
    work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let before: i64 = connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))?;
    connection.execute_batch(&format!("PRAGMA {name} = {value}"))?;
    let found: i64 = connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))?;
    let done =
        if found == value { work(connection) } else { Err(db::other(format!("{name} stays {found}"))) };
    connection.execute_batch(&format!("PRAGMA {name} = {before}"))?;
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    #[test]
    fn nothing_unsettled_is_forgotten() {
        use Fate::{Is, Never, Unread};
        use InboxState as I;
        use OutboxState as O;
        for status in O::ALL {
            for (fate, expected) in [
                (Never, matches!(status, O::Skipped | O::Expired | O::Failed)),
                (Is(I::Sent), status.is_final()),
                (Is(I::Failed), status.is_final()),
                (Is(I::Sending), false),
                (Is(I::Error), false),
                (Unread, status.is_final()),
            ] {
                assert_eq!(is_settled(status, fate), expected, "{status} {fate:?}");
            }
        }
    }

    #[test]
    fn the_cut_follows_the_oldest_key_and_never_leaps() {
        let days = |days: i64| Duration::from_secs((days * DAY / 1000) as u64);
        let now = 20_000 * DAY;
        let cut = |oldest: Option<i64>| cut_ms(now, days(400), oldest.map(|age| now - age * DAY), days(7));
        assert_eq!(cut(None), None, "nothing there");
        assert_eq!(cut(Some(399)), None, "too young");
        assert_eq!(cut(Some(400)), None, "just not old enough");
        assert_eq!(cut(Some(401)), Some(now - 400 * DAY), "all that is old enough");
        assert_eq!(cut(Some(407)), Some(now - 400 * DAY));
        assert_eq!(cut(Some(4_000)), Some(now - 3_993 * DAY), "a clock ten years ahead takes a week");
        assert_eq!(cut_ms(0, days(400), Some(5), days(7)), None, "a clock at 1970 takes nothing");
    }

    #[test]
    fn the_walk_from_the_oldest_on() {
        let row = |status, made: i64, ended: Option<i64>| purge::Aged {
            id: 1,
            consumer: "d".into(),
            message_id: "m".into(),
            status,
            made_at_ms: made,
            ended_at_ms: ended,
        };
        use InboxState as I;
        for (row, expected) in [
            (row(Some(I::Sent), 10, Some(20)), Age::Old),
            (row(Some(I::Failed), 10, Some(99)), Age::Old),
            (row(Some(I::Sent), 10, Some(100)), Age::Young),
            (row(Some(I::Error), 10, Some(20)), Age::Stays),
            (row(Some(I::Sending), 10, None), Age::Stays),
            (row(Some(I::Sent), 2_000, Some(2_001)), Age::Stays),
            (row(None, 10, Some(10)), Age::Old),
            (row(None, 500, Some(500)), Age::Young),
        ] {
            assert_eq!(age(&row, 100, 1_000), expected, "{row:?}");
        }
    }

    #[test]
    fn a_step_is_bounded_and_leaves_the_connection_as_it_was() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("outbox.db");
        drop(db::create(&path, db::Part::Outbox).expect("made"));
        let mut connection = db::open_writer(&path, db::Part::Outbox, db::Durability::Normal).expect("opens");
        for i in 0..3 {
            connection
                .execute(
                    "INSERT INTO outbox (dedup_key, kind, recipient, payload, status) VALUES (?1, 'K', '010', '{}', 'HELD')",
                    [i.to_string()],
                )
                .expect("taken");
        }
        connection
            .execute("UPDATE outbox SET status = 'FAILED', closed_at_ms = 7 WHERE id < 3", [])
            .expect("closed");
        let wipe = OutboxStep::Wipe((1..=3).map(|id| (id, "1:0".to_owned())).collect());
        assert_eq!(
            apply_outbox(&mut connection, &wipe, 50).expect("wipes").changed,
            2,
            "an open row is not wiped"
        );
        let delete = |before_ms| OutboxStep::Delete(vec![1, 2, 3], before_ms);
        assert_eq!(apply_outbox(&mut connection, &delete(7), 50).expect("runs").changed, 0, "not older than");
        assert_eq!(apply_outbox(&mut connection, &delete(8), 50).expect("deletes").changed, 2);
        for (name, expected) in [("synchronous", 1), ("secure_delete", 0)] {
            let found: i64 =
                connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).expect("reads");
            assert_eq!(found, expected, "{name} is put back");
        }
        // What takes longer than a step may is left for the next; at least one row is always dealt with.
        let slow = each(&[1, 2, 3], |_| {
            let begun = std::time::Instant::now();
            while begun.elapsed() < PURGE_STEP_MAX {}
            Ok(true)
        })
        .expect("runs");
        assert_eq!((slow.dealt, slow.changed), (1, 1));
    }
}
