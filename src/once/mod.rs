//! `once` for applications: an event's effect happens once, however often the event is delivered.
//!
//! Marker, effect and result are one transaction in the application's own database, and the delivery is
//! acknowledged after its commit:
//!
//! | dies | what is in the file | the next delivery |
//! |---|---|---|
//! | after the marker, or after the effect | nothing | applies it |
//! | after the commit, before the acknowledgement | all of it | [`Once::Repeated`] with the stored result |
//!
//! A rival that holds the row, a time-out, a full disk, a commit that reports a failure: all are
//! [`OnceError::TryAgain`], never "already done". Only a committed marker that was read says "done".
//!
//! What it does not do: it does not order different events, and it does not make a call to another system
//! part of the transaction. Read inside the effect what the effect changes (the transaction holds the write
//! lock, so no update is lost), and put messages to others into an outbox in the same transaction
//! ([`crate::outbox::Outbox`]).
//!
//! The agent takes its vendors' reports in by this very function (`report/intake.rs`), with its tables in inbox.db.
//!
//! Files of SQLite that are ATTACHed are not one atom with the main file in WAL mode: keep account, marker
//! and outbox in one.
//!
//! ```
//! use onceward::once::{self, Fingerprint, Once};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut connection = rusqlite::Connection::open_in_memory()?; // the application's own file
//! connection.execute_batch("CREATE TABLE account (id TEXT PRIMARY KEY, points INTEGER NOT NULL);
//!                           INSERT INTO account VALUES ('a-7', 10)")?;
//! once::install(&mut connection)?;
//!
//! let content = Fingerprint::of(1, &["points-service", "a-7", "+10"]);
//! for delivery in 1..=2 {
//!     let answer = once::once(&mut connection, "points", "E-1", &content, |tx| {
//!         tx.execute("UPDATE account SET points = points + 10 WHERE id = 'a-7'", [])?;
//!         tx.query_row("SELECT points FROM account WHERE id = 'a-7'", [], |row| row.get::<_, i64>(0))
//!     })?;
//!     match delivery {
//!         1 => assert_eq!(answer, Once::Applied(20)),
//!         _ => assert_eq!(answer, Once::Repeated(20)),
//!     }
//!     // Only now: acknowledge to the broker.
//! }
//! # Ok(())
//! # }
//! ```

mod event;
mod sync;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::wall_ms;
use crate::db::{self, DbError, Part, kill, migrate};
use crate::limits::ONCE_RESULT_BYTES_MAX;
use crate::store::once::{self as store, Marker};

pub use crate::store::once::Quarantined;
pub use event::{Event, Fingerprint, Once, Refusal};

/// Why a delivery has no answer, sorted by what happens next. Nothing is ever acknowledged on an error.
#[derive(Debug, thiserror::Error)]
pub enum OnceError<E> {
    /// Nothing is certain: a rival holds the database, the disk is full, a commit reported a failure (and may
    /// have landed nevertheless). Roll back where the transaction is yours, and have the event delivered
    /// again.
    #[error("not certain, deliver the event again: {0}")]
    TryAgain(rusqlite::Error),
    /// The effect's own error; nothing of it stays. Whether a redelivery helps is for the application to say.
    #[error("the effect failed, nothing of it stays: {0}")]
    Effect(E),
    /// The event can never be taken as it is.
    #[error("{field}: {reason}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// What was expected.
        reason: String,
    },
    /// The program or the database is wrong: a person must look. Nothing was applied now.
    #[error("{0}")]
    Unusable(String),
}

impl From<OnceError<rusqlite::Error>> for rusqlite::Error {
    fn from(error: OnceError<rusqlite::Error>) -> Self {
        match error {
            OnceError::TryAgain(error) | OnceError::Effect(error) => error,
            error => db::other(error.to_string()),
        }
    }
}

impl<E> OnceError<E> {
    fn sqlite(error: rusqlite::Error) -> Self {
        use ErrorCode::*;
        match error.sqlite_error_code() {
            Some(
                DatabaseBusy
                | DatabaseLocked
                | DiskFull
                | SystemIoFailure
                | OutOfMemory
                | OperationInterrupted
                | FileLockingProtocolFailed
                | CannotOpen
                | OperationAborted
                | SchemaChanged,
            ) => Self::TryAgain(error),
            _ => Self::Unusable(format!("the tables of once could not be used: {error}")),
        }
    }
}

/// Makes the tables of `once` in an open database, or brings them up to date; repeating it is harmless. Works
/// in any journal mode and beside an outbox. A file of a newer program is refused and left alone.
pub fn install(connection: &mut Connection) -> Result<(), DbError> {
    let path = connection.path().unwrap_or_default().to_owned();
    migrate::migrate(connection, path.as_ref(), Part::Once)
}

/// Applies the effect of an event once, in a transaction of its own; a redelivery gets the stored result.
///
/// The short form of [`Event::once`], for events that need no more than an id.
pub fn once<R, E>(
    connection: &mut Connection,
    consumer: &str,
    event_id: &str,
    fingerprint: &Fingerprint,
    effect: impl FnOnce(&Transaction<'_>) -> Result<R, E>,
) -> Result<Once<R>, OnceError<E>>
where
    R: Serialize + DeserializeOwned,
{
    Event::new(consumer, event_id, fingerprint).once(connection, effect)
}

impl Event<'_> {
    /// Applies the effect once, in an IMMEDIATE transaction that is on the disk when this returns (whatever
    /// the connection's `synchronous`, which is put back afterwards). Waits for rivals as long as the
    /// connection's busy timeout says.
    ///
    /// The result is kept as JSON of at most 64 KiB. The effect must not end the transaction; if it fails or
    /// panics nothing stays. Errors: see [`OnceError`]; journal mode OFF is refused, for it cannot roll back.
    pub fn once<R, E>(
        &self,
        connection: &mut Connection,
        effect: impl FnOnce(&Transaction<'_>) -> Result<R, E>,
    ) -> Result<Once<R>, OnceError<E>>
    where
        R: Serialize + DeserializeOwned,
    {
        self.check()?;
        let connection = &*connection;
        let _synced = sync::Synced::raise(connection)?;
        // `&mut` came in, so no transaction is open on it.
        let tx = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
            .map_err(OnceError::sqlite)?;
        let answer = self.run(&tx, &tx, effect)?;
        let _ = kill::point("once-before-commit");
        // Whatever a failed commit says, it may be in the file: only a redelivery that reads the marker
        // knows.
        tx.commit().map_err(OnceError::TryAgain)?;
        if kill::point("once-after-commit").is_err() {
            return Err(OnceError::TryAgain(db::other("the commit reported a failure".into())));
        }
        Ok(answer)
    }

    /// Applies the effect once, inside a transaction that the caller has open and commits: for many events in
    /// one commit. Each is a savepoint: an effect that fails takes nothing else with it.
    ///
    /// No answer is true before the caller's commit, and it is for the caller to make that commit durable
    /// (`synchronous` FULL in WAL mode, EXTRA in others) before anything is acknowledged. After
    /// [`OnceError::TryAgain`] the whole transaction must be rolled back.
    pub fn once_in<R, E>(
        &self,
        tx: &Connection,
        effect: impl FnOnce(&Connection) -> Result<R, E>,
    ) -> Result<Once<R>, OnceError<E>>
    where
        R: Serialize + DeserializeOwned,
    {
        self.check()?;
        if tx.is_autocommit() {
            return Err(OnceError::Unusable("once_in was called outside a transaction".into()));
        }
        self.run(tx, tx, effect)
    }

    /// Look, mark, effect, result, inside one savepoint. `tx` is what the effect is given; both are one
    /// connection.
    fn run<T: ?Sized, R, E>(
        &self,
        tx: &T,
        connection: &Connection,
        effect: impl FnOnce(&T) -> Result<R, E>,
    ) -> Result<Once<R>, OnceError<E>>
    where
        R: Serialize + DeserializeOwned,
    {
        let marker = Marker {
            consumer: self.consumer,
            event_id: self.event_id,
            fingerprint: self.fingerprint.as_str(),
            effect_key: self.effect_key,
            corrects: self.corrects,
            occurred_at_ms: self.occurred_at_ms,
            at_ms: wall_ms(),
        };
        let savepoint = Savepoint::begin(connection).map_err(OnceError::sqlite)?;
        match self.look(connection)? {
            Seen::Nothing => {}
            Seen::Applied(text) => return read_result(&text).map(Once::Repeated),
            Seen::NotYet => return Ok(Once::NotYet),
            Seen::Refused { refusal, first_event_id, first_fingerprint } => {
                store::refuse(
                    connection,
                    &marker,
                    refusal.as_str(),
                    first_event_id.as_deref(),
                    first_fingerprint.as_deref(),
                )
                .map_err(OnceError::sqlite)?;
                savepoint.release().map_err(OnceError::sqlite)?;
                log::warn!(
                    "{} {} is refused and kept for a person: {}",
                    self.consumer,
                    self.event_id,
                    refusal.as_str()
                );
                return Ok(Once::Refused(refusal));
            }
        }
        store::mark(connection, &marker).map_err(OnceError::sqlite)?;
        let _ = kill::point("once-after-marker");
        let result = match effect(tx) {
            Ok(result) => result,
            Err(_) if connection.is_autocommit() => return Err(gone()),
            Err(error) => return Err(OnceError::Effect(error)),
        };
        if connection.is_autocommit() {
            return Err(gone());
        }
        let _ = kill::point("once-after-effect");
        let text = serde_json::to_string(&result)
            .map_err(|error| OnceError::Unusable(format!("the effect's result is not JSON: {error}")))?;
        if text.len() > ONCE_RESULT_BYTES_MAX {
            return Err(OnceError::Unusable(format!(
                "the effect's result has {} bytes of JSON, at most {ONCE_RESULT_BYTES_MAX} are kept",
                text.len()
            )));
        }
        if !store::keep_result(connection, self.consumer, self.event_id, &text).map_err(OnceError::sqlite)? {
            return Err(OnceError::Unusable("the effect has removed its own marker".into()));
        }
        // Fails where the effect ended the transaction and began another.
        savepoint.release().map_err(|error| {
            OnceError::Unusable(format!("the effect must not begin, commit or roll back: {error}"))
        })?;
        Ok(Once::Applied(result))
    }

    /// What is known of this delivery, before anything is written.
    fn look<E>(&self, connection: &Connection) -> Result<Seen, OnceError<E>> {
        if let Some(known) =
            store::known(connection, self.consumer, self.event_id).map_err(OnceError::sqlite)?
        {
            if self.same_content(&known.fingerprint) == Some(false) {
                return Ok(Seen::Refused {
                    refusal: Refusal::OtherContent,
                    first_event_id: Some(self.event_id.to_owned()),
                    first_fingerprint: Some(known.fingerprint),
                });
            }
            return known.result.map(Seen::Applied).ok_or_else(|| {
                OnceError::Unusable(format!(
                    "{} {}: its effect ended its transaction by itself, so nobody knows whether all of it is there",
                    self.consumer, self.event_id
                ))
            });
        }
        let refused = |refusal| Seen::Refused { refusal, first_event_id: None, first_fingerprint: None };
        if let Some(before_ms) = store::horizon(connection, self.consumer).map_err(OnceError::sqlite)? {
            match self.occurred_at_ms {
                None => return Ok(refused(Refusal::NoTime)),
                Some(at_ms) if at_ms < before_ms => return Ok(refused(Refusal::TooOld { before_ms })),
                Some(_) => {}
            }
        }
        if let Some(key) = self.effect_key
            && let Some(first) =
                store::effect_owner(connection, self.consumer, key).map_err(OnceError::sqlite)?
        {
            return Ok(Seen::Refused {
                refusal: Refusal::SameEffect { event_id: first.clone() },
                first_event_id: Some(first),
                first_fingerprint: None,
            });
        }
        if let Some(corrected) = self.corrects
            && store::known(connection, self.consumer, corrected).map_err(OnceError::sqlite)?.is_none()
        {
            return Ok(Seen::NotYet);
        }
        Ok(Seen::Nothing)
    }
}

/// What `look` found.
enum Seen {
    Nothing,
    Applied(String),
    NotYet,
    Refused { refusal: Refusal, first_event_id: Option<String>, first_fingerprint: Option<String> },
}

/// The stored result of an event, for an effect that corrects it. `None` = not known (or still running).
pub fn result_of<R: DeserializeOwned>(
    tx: &Connection,
    consumer: &str,
    event_id: &str,
) -> Result<Option<R>, OnceError<std::convert::Infallible>> {
    let known = store::known(tx, consumer, event_id).map_err(OnceError::sqlite)?;
    known.and_then(|known| known.result).map(|text| read_result(&text)).transpose()
}

/// Retention: from now on this consumer's memory reaches back to `before_ms` (UTC milliseconds, the events'
/// own time). Deletes at most `limit` older markers in one short transaction and returns how many; call it
/// until it returns 0. Unknown events from before are refused from then on, not applied again.
///
/// Let it reach further back than the longest way on which an event can come again: the broker's retention,
/// replays by hand, restored back-ups. Used-up effect keys stay (see [`forget_effects`]), and so do events
/// without a time.
pub fn forget(
    connection: &mut Connection,
    consumer: &str,
    before_ms: i64,
    limit: usize,
) -> rusqlite::Result<usize> {
    db::write(connection, |tx| {
        store::raise_horizon(tx, consumer, before_ms)?;
        store::forget(tx, consumer, limit)
    })
}

/// Deletes at most `limit` used-up effect keys of events from before `before_ms`, but never of events that
/// the horizon would let in again. After this a *new* event for an old right is applied: for keys that hold
/// personal data or can no longer be used.
pub fn forget_effects(
    connection: &mut Connection,
    consumer: &str,
    before_ms: i64,
    limit: usize,
) -> rusqlite::Result<usize> {
    db::write(connection, |tx| store::forget_effects(tx, consumer, before_ms, limit))
}

/// Refused deliveries, newest first, at most `limit`: to be compared with the publisher's own ledger.
pub fn quarantined(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<Quarantined>> {
    store::quarantined(connection, limit)
}

fn read_result<R: DeserializeOwned, E>(text: &str) -> Result<R, OnceError<E>> {
    serde_json::from_str(text).map_err(|error| {
        OnceError::Unusable(format!(
            "the event was applied, but its stored result cannot be read as this type any more (column {})",
            error.column()
        ))
    })
}

/// SQLite rolls a whole transaction back by itself on some failures (disk full, I/O); an effect could also
/// have ended it. Either way nothing is certain.
fn gone<E>() -> OnceError<E> {
    OnceError::TryAgain(db::other("the transaction ended while the effect ran".into()))
}

/// Rolled back when dropped, also by a panic of the effect.
struct Savepoint<'c> {
    connection: &'c Connection,
    open: bool,
}

impl<'c> Savepoint<'c> {
    fn begin(connection: &'c Connection) -> rusqlite::Result<Self> {
        connection.prepare_cached("SAVEPOINT onceward_once")?.execute([])?;
        Ok(Self { connection, open: true })
    }
    fn release(mut self) -> rusqlite::Result<()> {
        self.connection.prepare_cached("RELEASE onceward_once")?.execute([])?;
        self.open = false;
        Ok(())
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        if self.open {
            // Fails only where the transaction is gone, and with it the savepoint.
            let _ = self.connection.execute_batch("ROLLBACK TO onceward_once; RELEASE onceward_once");
        }
    }
}

#[cfg(test)]
mod tests;
