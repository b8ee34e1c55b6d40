use std::convert::Infallible;
use std::time::Duration;

use super::*;

fn open() -> Connection {
    let mut connection = Connection::open_in_memory().expect("opens");
    connection.execute_batch("CREATE TABLE ledger (event TEXT, change INTEGER)").expect("creates");
    install(&mut connection).expect("installs");
    connection
}

fn add(connection: &Connection, event: &str) -> rusqlite::Result<usize> {
    connection.execute("INSERT INTO ledger VALUES (?1, 1)", [event])
}

fn rows(connection: &Connection) -> i64 {
    connection.query_row("SELECT count(*) FROM ledger", [], |row| row.get(0)).expect("counts")
}

fn markers(connection: &Connection) -> i64 {
    connection.query_row("SELECT count(*) FROM onceward_once", [], |row| row.get(0)).expect("counts")
}

fn print() -> Fingerprint {
    Fingerprint::of(1, &["x"])
}

#[test]
fn an_effect_that_fails_or_panics_leaves_nothing_and_may_come_again() {
    let mut connection = open();
    let answer = once(&mut connection, "c", "E", &print(), |tx| {
        add(tx, "E").expect("adds");
        Err::<(), _>("the account is closed")
    });
    assert!(matches!(answer, Err(OnceError::Effect("the account is closed"))), "{answer:?}");
    assert_eq!((rows(&connection), markers(&connection)), (0, 0));

    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        once(&mut connection, "c", "E", &print(), |tx| {
            add(tx, "E").expect("adds");
            let rows: u8 = "many".parse().expect("a bug in the effect");
            Ok::<_, Infallible>(rows)
        })
    }));
    assert!(unwound.is_err());
    assert!(connection.is_autocommit(), "no transaction is left open");
    assert_eq!((rows(&connection), markers(&connection)), (0, 0));

    let answer = once(&mut connection, "c", "E", &print(), |tx| add(tx, "E"));
    assert_eq!(answer.expect("applies"), Once::Applied(1));
}

#[test]
fn in_a_shared_commit_a_failed_effect_takes_nothing_else_with_it() {
    let mut connection = open();
    let print = print();
    let tx = connection.transaction().expect("begins");
    let good = Event::new("c", "good", &print).once_in(&tx, |tx| add(tx, "good"));
    assert_eq!(good.expect("applies"), Once::Applied(1));
    let bad = Event::new("c", "bad", &print).once_in(&tx, |tx| {
        add(tx, "bad")?;
        tx.execute("INSERT INTO no_such_table VALUES (1)", [])
    });
    assert!(matches!(bad, Err(OnceError::Effect(_))), "{bad:?}");
    let again = Event::new("c", "good", &print).once_in(&tx, |tx| add(tx, "good"));
    assert_eq!(again.expect("is known"), Once::Repeated(1));
    tx.commit().expect("commits");
    assert_eq!((rows(&connection), markers(&connection)), (1, 1));
}

#[test]
fn outside_a_transaction_the_shared_form_does_nothing() {
    let connection = open();
    let answer = Event::new("c", "E", &print()).once_in(&connection, |tx| add(tx, "E"));
    assert!(matches!(answer, Err(OnceError::Unusable(_))), "{answer:?}");
    assert_eq!(rows(&connection), 0);
}

/// The read snapshot is older than a rival's commit: SQLite refuses, and the answer is "try again".
#[test]
fn a_deferred_transaction_that_is_behind_a_rival_is_try_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db");
    let mut connection = Connection::open(&file).expect("opens");
    connection.pragma_update(None, "journal_mode", "WAL").expect("set");
    connection.execute_batch("CREATE TABLE ledger (event TEXT, change INTEGER)").expect("creates");
    install(&mut connection).expect("installs");
    let mut rival = Connection::open(&file).expect("opens");
    let print = print();

    let tx = connection.transaction().expect("begins deferred");
    assert_eq!(rows(&tx), 0);
    let first = once(&mut rival, "c", "E", &print, |tx| add(tx, "E"));
    assert_eq!(first.expect("applies"), Once::Applied(1));
    let answer = Event::new("c", "E", &print).once_in(&tx, |tx| add(tx, "E"));
    assert!(matches!(answer, Err(OnceError::TryAgain(_))), "{answer:?}");
    drop(tx);
    let answer = once(&mut connection, "c", "E", &print, |tx| add(tx, "E"));
    assert_eq!(answer.expect("is known"), Once::Repeated(1));
    assert_eq!(rows(&connection), 1);
}

#[test]
fn a_rival_that_holds_the_lock_is_try_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("app.db");
    let mut connection = Connection::open(&file).expect("opens");
    connection.execute_batch("CREATE TABLE ledger (event TEXT, change INTEGER)").expect("creates");
    install(&mut connection).expect("installs");
    connection.busy_timeout(Duration::ZERO).expect("set");
    let rival = Connection::open(&file).expect("opens");
    rival.execute_batch("BEGIN IMMEDIATE").expect("holds");
    let answer = once(&mut connection, "c", "E", &print(), |tx| add(tx, "E"));
    assert!(matches!(answer, Err(OnceError::TryAgain(_))), "{answer:?}");
    rival.execute_batch("ROLLBACK").expect("lets go");
    // A reader of a rollback journal lets the transaction run and stops its commit.
    rival.execute_batch("BEGIN").expect("begins");
    assert_eq!(rows(&rival), 0);
    let answer = once(&mut connection, "c", "E", &print(), |tx| add(tx, "E"));
    assert!(matches!(answer, Err(OnceError::TryAgain(_))), "{answer:?}");
    rival.execute_batch("COMMIT").expect("lets go");
    assert_eq!((rows(&connection), markers(&connection)), (0, 0));
    let answer = once(&mut connection, "c", "E", &print(), |tx| add(tx, "E"));
    assert_eq!(answer.expect("applies"), Once::Applied(1));
}

#[test]
fn an_effect_that_ends_the_transaction_is_found_out() {
    let print = print();
    for sql in ["ROLLBACK", "ROLLBACK; BEGIN", "COMMIT", "COMMIT; BEGIN"] {
        let mut connection = open();
        let answer = once(&mut connection, "c", "E", &print, |tx| {
            add(tx, "E")?;
            tx.execute_batch(sql)
        });
        assert!(matches!(answer, Err(OnceError::TryAgain(_) | OnceError::Unusable(_))), "{sql}: {answer:?}");
        assert!(connection.is_autocommit(), "{sql}");
        // Whether its effect stayed or not, a redelivery never applies it on top.
        let had = rows(&connection);
        let again = once(&mut connection, "c", "E", &print, |tx| add(tx, "E"));
        match had {
            0 => assert_eq!(again.expect("applies"), Once::Applied(1), "{sql}"),
            _ => assert!(matches!(again, Err(OnceError::Unusable(_))), "{sql}: {again:?}"),
        }
        assert_eq!(rows(&connection), 1, "{sql}");
    }
}

#[test]
fn a_result_that_cannot_be_kept_undoes_the_effect() {
    let mut connection = open();
    let answer = once(&mut connection, "c", "E", &print(), |tx| {
        add(tx, "E")?;
        Ok::<_, rusqlite::Error>("x".repeat(ONCE_RESULT_BYTES_MAX))
    });
    assert!(matches!(answer, Err(OnceError::Unusable(_))));
    assert_eq!((rows(&connection), markers(&connection)), (0, 0));
}

#[test]
fn a_result_of_another_type_is_never_applied_again() {
    let mut connection = open();
    let first = once(&mut connection, "c", "E", &print(), |tx| add(tx, "E"));
    assert_eq!(first.expect("applies"), Once::Applied(1));
    let again = once(&mut connection, "c", "E", &print(), |tx| add(tx, "E").map(|_| vec!["text".to_owned()]));
    assert!(matches!(again, Err(OnceError::Unusable(_))), "{again:?}");
    assert_eq!(rows(&connection), 1);
}

#[test]
fn a_changed_rule_of_the_fingerprint_is_no_conflict() {
    let mut connection = open();
    let old = Fingerprint::of(1, &["x"]);
    let new = Fingerprint::of(2, &["X"]);
    let first = once(&mut connection, "c", "E", &old, |tx| add(tx, "E"));
    assert_eq!(first.expect("applies"), Once::Applied(1));
    let again = once(&mut connection, "c", "E", &new, |tx| add(tx, "E"));
    assert_eq!(again.expect("is known"), Once::Repeated(1));
    // With the old rule's word beside it, other content is still found.
    let other = [Fingerprint::of(1, &["y"])];
    let answer =
        Event::new("c", "E", &new).older_fingerprints(&other).once(&mut connection, |tx| add(tx, "E"));
    assert_eq!(answer.expect("answers"), Once::Refused(Refusal::OtherContent));
    assert_eq!(rows(&connection), 1);
}

#[test]
fn a_consumer_that_forgets_takes_no_event_without_a_time() {
    let mut connection = open();
    let print = print();
    let before = once(&mut connection, "c", "no-time", &print, |tx| add(tx, "no-time"));
    assert_eq!(before.expect("applies"), Once::Applied(1));
    assert_eq!(forget(&mut connection, "c", 1_000, 100).expect("forgets"), 0, "it has no time: it stays");
    let known = once(&mut connection, "c", "no-time", &print, |tx| add(tx, "no-time"));
    assert_eq!(known.expect("is known"), Once::Repeated(1));
    let unknown = once(&mut connection, "c", "other", &print, |tx| add(tx, "other"));
    assert_eq!(unknown.expect("answers"), Once::Refused(Refusal::NoTime));
    let elsewhere = once(&mut connection, "d", "other", &print, |tx| add(tx, "other"));
    assert_eq!(elsewhere.expect("applies"), Once::Applied(1), "each consumer has its own horizon");
}

#[test]
fn the_horizon_never_goes_back() {
    let mut connection = open();
    forget(&mut connection, "c", 1_000, 100).expect("forgets");
    forget(&mut connection, "c", 500, 100).expect("forgets");
    let print = print();
    let answer = Event::new("c", "E", &print).occurred_at_ms(700).once(&mut connection, |tx| add(tx, "E"));
    assert_eq!(answer.expect("answers"), Once::Refused(Refusal::TooOld { before_ms: 1_000 }));
}

#[test]
fn effect_keys_outlive_their_markers_and_go_only_behind_the_horizon() {
    let mut connection = open();
    let print = print();
    let take = |connection: &mut Connection, event: &str, at_ms| {
        Event::new("c", event, &print)
            .effect_key("a-7/spring/gold")
            .occurred_at_ms(at_ms)
            .once(connection, |tx| add(tx, event))
            .expect("answers")
    };
    assert_eq!(take(&mut connection, "E1", 100), Once::Applied(1));
    let taken = Once::Refused(Refusal::SameEffect { event_id: "E1".into() });
    assert_eq!(take(&mut connection, "E2", 2_000), taken);
    assert_eq!(forget_effects(&mut connection, "c", 5_000, 10).expect("forgets"), 0, "no horizon yet");
    assert_eq!(forget(&mut connection, "c", 1_000, 10).expect("forgets"), 1);
    assert_eq!(take(&mut connection, "E3", 2_000), taken, "its marker is gone, its right is still used up");
    assert_eq!(forget_effects(&mut connection, "c", 5_000, 10).expect("forgets"), 1);
    assert_eq!(take(&mut connection, "E4", 2_000), Once::Applied(1));
}

#[test]
fn its_commit_is_synced_and_the_connection_s_own_level_comes_back() {
    let dir = tempfile::tempdir().expect("a folder");
    for (mode, inside) in [("WAL", 2), ("DELETE", 3), ("TRUNCATE", 3), ("PERSIST", 3)] {
        let mut connection = Connection::open(dir.path().join(mode)).expect("opens");
        connection.pragma_update(None, "journal_mode", mode).expect("set");
        connection.pragma_update(None, "synchronous", 1).expect("set");
        install(&mut connection).expect("installs");
        let level = |connection: &Connection| -> rusqlite::Result<i64> {
            connection.pragma_query_value(None, "synchronous", |row| row.get(0))
        };
        let answer = once(&mut connection, "c", "E", &print(), |tx| level(tx));
        assert_eq!(answer.expect("applies"), Once::Applied(inside), "{mode}");
        assert_eq!(level(&connection), Ok(1), "{mode}");
    }
    for mode in ["OFF", "MEMORY"] {
        let mut connection = Connection::open(dir.path().join(mode)).expect("opens");
        install(&mut connection).expect("installs");
        connection.pragma_update(None, "journal_mode", mode).expect("set");
        let answer = once(&mut connection, "c", "E", &print(), |_| Ok::<_, Infallible>(()));
        assert!(matches!(answer, Err(OnceError::Unusable(_))), "{mode}: {answer:?}");
    }
}

#[test]
fn markers_are_not_edited_by_hand() {
    let mut connection = open();
    once(&mut connection, "c", "E", &print(), |tx| add(tx, "E")).map(drop).expect("applies");
    for sql in [
        "UPDATE onceward_once SET result = '2'",
        "UPDATE onceward_once SET event_id = 'F'",
        "UPDATE onceward_once SET fingerprint = '1:0'",
    ] {
        let error = connection.execute_batch(sql).expect_err(sql);
        assert!(error.to_string().contains("what was applied is not edited"), "{error}");
    }
}

#[test]
fn installs_beside_an_outbox_in_either_order_and_refuses_a_newer_file() {
    for once_first in [true, false] {
        let mut connection = Connection::open_in_memory().expect("opens");
        if once_first {
            install(&mut connection).expect("installs");
        }
        crate::outbox::Outbox::install(&mut connection).expect("installs");
        install(&mut connection).expect("installs");
        install(&mut connection).expect("again is harmless");
    }
    let mut connection = open();
    connection.execute("UPDATE onceward_meta SET value = '99' WHERE key = 'once_schema'", []).expect("newer");
    assert!(matches!(install(&mut connection), Err(DbError::Newer { found: 99, .. })));
}
