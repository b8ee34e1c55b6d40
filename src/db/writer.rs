//! One writer for a database: puts all that waits into one `BEGIN IMMEDIATE ... COMMIT` and then answers each.
//!
//! Work comes in two kinds. A *claim* ([`Work::must_land`] false) is answered at once, committed or not; if its
//! commit failed it may still be in the file (F31), so the writer takes it back ([`Work::undo`]) before anything
//! else. An *outcome* (`must_land` true) is kept, in order, until it is written: the vendor has been called and the
//! record of it is owed. The writer decides nothing about states; the verbs in `store/` do.
//!
//! After any commit error the connection is closed and the file is opened and read anew before the next commit.
//!
//! Where a [`Ward`] stands guard, claims are refused while the agent is held, a claim counts only if the files were the
//! open ones before and after its commit, and a file that was put in the place of the open one is never opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::checkpoint::Checkpointer;
use super::queue::{Queue, Wants};
use super::{DbError, Durability, Part, kill};
use crate::limits::{
    OUTCOME_LINGER, SYNC_LINGER_MAX, SYNC_SLOW, WRITER_BATCH_MAX, WRITER_RETRY_MAX, WRITER_RETRY_MIN,
};
use crate::ward::Ward;

/// One piece of writing, part of a shared commit.
pub trait Work: Send {
    /// Writes. Must be repeatable: after a failed commit an outcome is applied again.
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()>;
    /// It is on the disk.
    fn committed(self: Box<Self>);
    /// It is not to be relied on. `undo` was already taken.
    fn failed(self: Box<Self>, why: &str);
    /// Whether it is kept until it lands.
    fn must_land(&self) -> bool;
    /// What takes it back if it turns out to be in the file after all.
    fn undo(&self) -> Option<Box<dyn Work>> {
        None
    }
    /// Whether the vendor is called on it: refused while the agent is held, and counted for the witness.
    fn is_claim(&self) -> bool {
        false
    }
    /// What `apply` has just counted, if anything: the commit writes the sum of all its work in one row each.
    fn counted(&self) -> Option<Counted> {
        None
    }
}

/// One end to be counted in the same commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counted {
    /// Local day, `YYYY-MM-DD`.
    pub day: Arc<str>,
    /// Destination.
    pub consumer: crate::message::Destination,
    /// Kind of end.
    pub what: &'static str,
}

/// What the writer tells others without being asked.
#[derive(Debug, Default)]
pub struct WriterHealth {
    /// Commits so far.
    pub commits: AtomicU64,
    /// UTC milliseconds of the last commit.
    pub last_commit_ms: AtomicI64,
    /// Outcomes that wait for a commit that fails; 0 when healthy.
    pub kept: AtomicU64,
    /// Mean time of a commit, microseconds.
    pub commit_us: AtomicU64,
}

/// Writes the sums of a commit's [`Counted`] work.
pub type WriteSums = fn(&Connection, &Counted, i64) -> rusqlite::Result<()>;

/// The handle: cheap to clone, all clones dropped = the writer ends after its last commit.
#[derive(Clone)]
pub struct Writer {
    queue: Queue,
    health: Arc<WriterHealth>,
}

impl Writer {
    /// Starts the writer's thread on an opened connection.
    pub fn start(
        name: &'static str,
        path: PathBuf,
        part: Part,
        connection: Connection,
        checkpointer: Checkpointer,
        write_sums: WriteSums,
        ward: Option<Arc<Ward>>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (writer, room) = Self::new(path, part, connection, checkpointer, write_sums, ward);
        let handle = crate::thread::spawn(name, move || room.run())?;
        Ok((writer, handle))
    }

    /// The handle, and the room that is still to be run.
    pub fn new(
        path: PathBuf,
        part: Part,
        connection: Connection,
        checkpointer: Checkpointer,
        write_sums: WriteSums,
        ward: Option<Arc<Ward>>,
    ) -> (Self, Room) {
        let (queue, receiver) = super::queue::new();
        let health = Arc::new(WriterHealth::default());
        let room = Room {
            path,
            part,
            connection: Some(connection),
            receiver,
            kept: Vec::new(),
            health: health.clone(),
            checkpointer,
            write_sums,
            ward,
            mean_commit: Duration::ZERO,
            trouble: None,
        };
        (Self { queue, health }, room)
    }

    /// Hands work over. If the writer is gone the work is told so.
    pub fn submit(&self, work: Box<dyn Work>) {
        if let Some(lost) = self.queue.put(work) {
            lost.failed("the writer has stopped");
        }
    }

    /// The writer's figures.
    pub fn health(&self) -> &WriterHealth {
        &self.health
    }

    /// Whether outcomes are waiting for a commit that fails: then nobody should begin a call.
    pub fn is_in_trouble(&self) -> bool {
        self.health.kept.load(Ordering::SeqCst) > 0
    }
}

/// The writer's own side: run in a thread, or step by step.
pub struct Room {
    path: PathBuf,
    part: Part,
    connection: Option<Connection>,
    receiver: super::queue::Taker,
    /// Outcomes and undos of failed commits, oldest first.
    kept: Vec<Box<dyn Work>>,
    health: Arc<WriterHealth>,
    checkpointer: Checkpointer,
    write_sums: WriteSums,
    ward: Option<Arc<Ward>>,
    mean_commit: Duration,
    /// The present trouble's text and the pause before the next try.
    trouble: Option<(String, Duration)>,
}

impl Room {
    fn run(mut self) {
        loop {
            let mut batch = std::mem::take(&mut self.kept);
            let open = if batch.is_empty() {
                self.gather(&mut batch)
            } else {
                self.gather_after_trouble(&mut batch)
            };
            if !batch.is_empty() {
                self.commit(batch);
            }
            if !open
                && (self.kept.is_empty()
                    || self.trouble.as_ref().is_some_and(|(_, pause)| *pause >= WRITER_RETRY_MAX))
            {
                // Everybody is gone. What could not be written is told by its SENDING row at the next start.
                for work in self.kept {
                    work.failed("the database could not be written before the stop");
                }
                return;
            }
        }
    }

    /// What waits, in one commit (or one try, after trouble), without waiting for more.
    pub fn step(&mut self) {
        let mut batch = std::mem::take(&mut self.kept);
        let now = Some(Instant::now());
        if batch.is_empty() {
            self.receiver.take(&mut batch, Wants::Nothing, now);
        } else {
            let mut came = Vec::new();
            self.receiver.take(&mut came, Wants::Nothing, now);
            self.admit(came, &mut batch);
        }
        if !batch.is_empty() {
            self.commit(batch);
        }
    }

    /// In trouble: what must land joins the batch, claims are refused.
    fn admit(&self, came: Vec<Box<dyn Work>>, batch: &mut Vec<Box<dyn Work>>) {
        let why = self.trouble.as_ref().map_or("the database is in trouble", |(why, _)| why.as_str());
        for work in came {
            if work.must_land() { batch.push(work) } else { work.failed(why) }
        }
    }

    /// Waits for work and lets others join it. False when no more can come.
    fn gather(&self, batch: &mut Vec<Box<dyn Work>>) -> bool {
        let begun = Instant::now();
        // An outcome alone waits a moment for a claim to share its sync with; a claim never waits for an outcome.
        let mut open = self.receiver.take(batch, Wants::Anything, None);
        if batch.iter().all(|work| work.must_land()) && batch.len() < WRITER_BATCH_MAX && open {
            open = self.receiver.take(
                batch,
                Wants::Claim,
                Some(begun.max(self.receiver.rang()) + OUTCOME_LINGER),
            );
        }
        // Where a sync is slow, those who finish together should share one: wait a fraction of it.
        if self.mean_commit > SYNC_SLOW && open {
            let linger = (self.mean_commit / 4).min(SYNC_LINGER_MAX);
            open = self.receiver.take(batch, Wants::Full, Some(Instant::now() + linger));
        }
        open
    }

    /// After a failed commit: wait out the pause, refusing claims meanwhile.
    fn gather_after_trouble(&self, batch: &mut Vec<Box<dyn Work>>) -> bool {
        let pause = self.trouble.as_ref().map_or(WRITER_RETRY_MIN, |(_, pause)| *pause);
        let end = Instant::now() + pause;
        loop {
            let mut came = Vec::new();
            let open = self.receiver.take(&mut came, Wants::Claim, Some(end));
            self.admit(came, batch);
            if !open {
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                return false;
            }
            if Instant::now() >= end {
                return true;
            }
        }
    }

    fn commit(&mut self, batch: Vec<Box<dyn Work>>) {
        let mut batch = self.refuse_while_held(batch);
        if batch.is_empty() {
            return;
        }
        let begun = Instant::now();
        match self.try_commit(&mut batch) {
            Ok(()) => {
                self.after_success(begun.elapsed());
                self.tell(batch);
            }
            Err(Failure::OneIsBad) => self.one_by_one(batch),
            Err(Failure::Database { why, full }) => self.after_failure(batch, why, full),
        }
        // However the batch ended: what has landed is owed no more.
        self.show_what_is_owed();
    }

    /// Also before anybody is told of a failure: a worker that is told no hands its message back, and whoever gets it next
    /// must see that the claim in the file is being taken back, or it would wait for a confirm that nobody gives.
    fn show_what_is_owed(&self) {
        self.health.kept.store(self.kept.len() as u64, Ordering::SeqCst);
    }

    /// Not to be relied on: what takes it back is owed, and only then the callers are told no.
    fn refuse(&mut self, refused: Vec<Box<dyn Work>>, why: &str) {
        self.kept.extend(refused.iter().filter_map(|work| work.undo()));
        self.show_what_is_owed();
        refused.into_iter().for_each(|work| work.failed(why));
    }

    /// Takes the claims out while the agent is held; what else there is goes on.
    fn refuse_while_held(&self, batch: Vec<Box<dyn Work>>) -> Vec<Box<dyn Work>> {
        let Some(ward) = &self.ward else { return batch };
        if !batch.iter().any(|work| work.is_claim()) || ward.look() {
            return batch;
        }
        let why = ward.hold.reason().unwrap_or_default();
        let (claims, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(|work| work.is_claim());
        claims.into_iter().for_each(|work| work.failed(&why));
        rest
    }

    /// After a commit. A claim in a file that lies no more where it lay is none: it is told no, and taken back.
    fn tell(&mut self, batch: Vec<Box<dyn Work>>) {
        let stands = match &self.ward {
            Some(ward) if batch.iter().any(|work| work.is_claim()) => ward.look_at_files(),
            _ => true,
        };
        let (refused, done): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|work| work.is_claim() && !stands);
        if !refused.is_empty() {
            self.refuse(refused, "the database was moved, replaced or deleted");
        }
        done.into_iter().for_each(|work| work.committed());
    }

    /// A piece of work was refused by the data itself: each gets a commit of its own, so that one bad row cannot
    /// hold up the others.
    fn one_by_one(&mut self, batch: Vec<Box<dyn Work>>) {
        let mut rest = batch.into_iter();
        while let Some(work) = rest.next() {
            let mut single = vec![work];
            let begun = Instant::now();
            match self.try_commit(&mut single) {
                Ok(()) => {
                    self.after_success(begun.elapsed());
                    self.tell(single);
                }
                Err(Failure::OneIsBad) => {
                    for work in single {
                        log::error!(
                            "{}: a record was refused by the database and is given up",
                            self.path.display()
                        );
                        work.failed("the database refused this record");
                    }
                }
                Err(Failure::Database { why, full }) => {
                    single.extend(rest);
                    return self.after_failure(single, why, full);
                }
            }
        }
    }

    fn after_success(&mut self, took: Duration) {
        if let Some((why, _)) = self.trouble.take() {
            log::warn!("{}: can be written again (was: {why})", self.path.display());
        }
        self.mean_commit = if self.mean_commit.is_zero() { took } else { (self.mean_commit * 7 + took) / 8 };
        self.health.commits.fetch_add(1, Ordering::Relaxed);
        self.health.commit_us.store(self.mean_commit.as_micros() as u64, Ordering::Relaxed);
        self.health.last_commit_ms.store(crate::clock::wall_ms(), Ordering::Relaxed);
        if let Some(connection) = &self.connection {
            self.checkpointer.after_commit(connection);
        }
    }

    fn after_failure(&mut self, batch: Vec<Box<dyn Work>>, why: String, full: bool) {
        // What is owed must be written though the disk is full; without room SQLite may also call it an I/O error.
        if let Some(ward) = &self.ward {
            ward.make_room(full);
        }
        // Close first: what a broken connection says is not evidence. The next try opens and reads the file anew.
        self.connection = None;
        let pause = match &self.trouble {
            None => {
                log::error!(
                    "{}: cannot be written: {why}; nothing new is sent until it can",
                    self.path.display()
                );
                WRITER_RETRY_MIN
            }
            Some((_, pause)) => (*pause * 2).min(WRITER_RETRY_MAX),
        };
        let (owed, refused): (Vec<_>, Vec<_>) = batch.into_iter().partition(|work| work.must_land());
        self.kept.extend(owed);
        // Each caller gets "no" now and never calls the vendor on it, so taking it back is certain.
        self.refuse(refused, &why);
        self.trouble = Some((why, pause));
    }

    fn try_commit(&mut self, batch: &mut [Box<dyn Work>]) -> Result<(), Failure> {
        let connection = match &self.connection {
            Some(connection) => connection,
            None => {
                if let Some(ward) = &self.ward
                    && !ward.look_at_files()
                {
                    return Err(Failure::other("it is not the file that was open; restart the agent"));
                }
                let opened = super::open_writer(&self.path, self.part, Durability::Full);
                self.connection.insert(opened.map_err(|error: DbError| Failure::other(&error.to_string()))?)
            }
        };
        let database = |error: rusqlite::Error| Failure::Database {
            why: describe(&error, &self.path),
            full: super::is_full(&error),
        };
        connection.execute_batch("BEGIN IMMEDIATE").map_err(database)?;
        let mut sums: Vec<(Counted, i64)> = Vec::new();
        for work in batch.iter_mut() {
            if let Err(error) = work.apply(connection) {
                let _ = connection.execute_batch("ROLLBACK"); // already rolled back on some errors
                return Err(match error.sqlite_error_code() {
                    Some(
                        rusqlite::ErrorCode::ConstraintViolation
                        | rusqlite::ErrorCode::TypeMismatch
                        | rusqlite::ErrorCode::TooBig,
                    ) => Failure::OneIsBad,
                    _ => database(error),
                });
            }
            if let Some(counted) = work.counted() {
                match sums.iter_mut().find(|(known, _)| *known == counted) {
                    Some((_, sum)) => *sum += 1,
                    None => sums.push((counted, 1)),
                }
            }
        }
        let mut claims = None;
        if self.ward.is_some() && batch.iter().any(|work| work.is_claim()) {
            match Ward::count_claim(connection) {
                Ok(count) => claims = Some(count),
                Err(error) => {
                    let _ = connection.execute_batch("ROLLBACK");
                    return Err(database(error));
                }
            }
        }
        for (counted, sum) in &sums {
            if let Err(error) = (self.write_sums)(connection, counted, *sum) {
                let _ = connection.execute_batch("ROLLBACK");
                return Err(database(error));
            }
        }
        if kill::point("writer-before-commit").is_err() {
            let _ = connection.execute_batch("ROLLBACK");
            return Err(Failure::other("database or disk is full (by a test)"));
        }
        connection.execute_batch("COMMIT").map_err(database)?;
        if let (Some(ward), Some(claims)) = (&self.ward, claims) {
            ward.claimed(claims);
        }
        if kill::point("writer-commit-lies").is_err() {
            return Err(Failure::other("disk I/O error after the commit (by a test)"));
        }
        Ok(())
    }
}

enum Failure {
    /// The data refused one piece of work.
    OneIsBad,
    /// The file, the disk or the lock.
    Database { why: String, full: bool },
}

impl Failure {
    fn other(why: &str) -> Self {
        Self::Database { why: why.to_owned(), full: false }
    }
}

fn describe(error: &rusqlite::Error, path: &std::path::Path) -> String {
    if super::is_busy(error) {
        format!(
            "{error}: another process holds its write lock (a shell left in BEGIN? see `onceward check`){}",
            super::holder::in_words(path)
        )
    } else if super::is_full(error) {
        format!("{error}: make room on this file system")
    } else {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use rusqlite::ErrorCode;

    /// A writer on a new inbox, to be stepped; the folder goes when it is dropped.
    fn writer() -> (tempfile::TempDir, Writer, Room) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("inbox.db");
        let connection = super::super::create(&path, Part::Inbox).expect("created");
        let (checkpointer, _room) =
            Checkpointer::new(path.clone(), Part::Inbox, Arc::default()).expect("a checkpointer");
        let (writer, room) = Writer::new(path, Part::Inbox, connection, checkpointer, |_, _, _| Ok(()), None);
        (dir, writer, room)
    }

    /// An outcome that meets a failing disk first and is refused by the data afterwards.
    struct Refused(u32);

    impl Work for Refused {
        fn apply(&mut self, _: &Connection) -> rusqlite::Result<()> {
            self.0 += 1;
            let code = if self.0 == 1 { ErrorCode::SystemIoFailure } else { ErrorCode::ConstraintViolation };
            Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error { code, extended_code: 0 }, None))
        }
        fn committed(self: Box<Self>) {
            unreachable!("it is always refused")
        }
        fn failed(self: Box<Self>, _: &str) {}
        fn must_land(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_kept_outcome_that_is_refused_at_last_does_not_leave_the_writer_in_trouble() {
        let (_dir, writer, mut room) = writer();
        writer.submit(Box::new(Refused(0)));
        room.step();
        assert!(writer.is_in_trouble(), "the disk failed and the outcome is owed");
        room.step();
        assert!(!writer.is_in_trouble(), "nothing is owed any more: workers must not wait for it");
    }

    /// A claim whose commit fails: its undo is owed, and whoever is told no looks at once whether something is.
    struct ClaimThatFails(Writer, Arc<Mutex<Option<bool>>>);
    struct Undo;

    impl Work for ClaimThatFails {
        fn apply(&mut self, _: &Connection) -> rusqlite::Result<()> {
            let code = ErrorCode::SystemIoFailure;
            Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error { code, extended_code: 0 }, None))
        }
        fn committed(self: Box<Self>) {
            unreachable!("it always fails")
        }
        fn failed(self: Box<Self>, _: &str) {
            *self.1.lock().expect("not poisoned") = Some(self.0.is_in_trouble());
        }
        fn must_land(&self) -> bool {
            false
        }
        fn undo(&self) -> Option<Box<dyn Work>> {
            Some(Box::new(Undo))
        }
    }
    impl Work for Undo {
        fn apply(&mut self, _: &Connection) -> rusqlite::Result<()> {
            Ok(())
        }
        fn committed(self: Box<Self>) {}
        fn failed(self: Box<Self>, _: &str) {}
        fn must_land(&self) -> bool {
            true
        }
    }

    #[test]
    fn who_is_told_that_a_claim_failed_can_see_that_its_undo_is_owed() {
        let (_dir, writer, mut room) = writer();
        let seen = Arc::default();
        writer.submit(Box::new(ClaimThatFails(writer.clone(), Arc::clone(&seen))));
        room.step();
        assert_eq!(*seen.lock().expect("not poisoned"), Some(true), "told before it could be seen");
        room.step();
        assert!(!writer.is_in_trouble(), "taken back");
    }
}
