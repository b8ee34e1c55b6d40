//! A bounded pool of read-only connections to one file. Nobody holds one across a call or a channel wait.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use super::{DbError, Part};

/// The pool; cheap to clone.
pub type Pool = r2d2::Pool<Manager>;

/// Opens readers for r2d2.
#[derive(Debug)]
pub struct Manager {
    path: PathBuf,
    part: Part,
    /// Opened before: the simulation's.
    ready: Mutex<Vec<Connection>>,
}

impl r2d2::ManageConnection for Manager {
    type Connection = Connection;
    type Error = DbError;

    fn connect(&self) -> Result<Connection, DbError> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop();
        ready.map_or_else(|| super::open_reader(&self.path, self.part), Ok)
    }
    fn is_valid(&self, connection: &mut Connection) -> Result<(), DbError> {
        connection.execute_batch("SELECT 1").map_err(|source| DbError::sqlite(&self.path, source))
    }
    fn has_broken(&self, connection: &mut Connection) -> bool {
        // A connection that still has a transaction open would pin the WAL.
        !connection.is_autocommit()
    }
}

/// A pool of at most `size` readers, opened when first needed.
pub fn open(path: PathBuf, part: Part, size: u32) -> Result<Pool, DbError> {
    let for_error = path.clone();
    r2d2::Pool::builder()
        .max_size(size)
        .min_idle(Some(0))
        .test_on_check_out(false)
        .connection_timeout(Duration::from_secs(5))
        .idle_timeout(None)
        .max_lifetime(None)
        .thread_pool(std::sync::Arc::new(
            scheduled_thread_pool::ScheduledThreadPool::builder()
                .num_threads(1)
                .thread_name_pattern("pool")
                .build(),
        ))
        .build(Manager { path, part, ready: Mutex::default() })
        .map_err(|error| DbError::Unusable { path: for_error, reason: error.to_string() })
}

/// A pool of these connections alone, for the simulation, where nothing may be opened behind its back.
#[doc(hidden)]
#[cfg(debug_assertions)]
pub fn of(
    connections: Vec<Connection>,
    helper: std::sync::Arc<scheduled_thread_pool::ScheduledThreadPool>,
) -> Pool {
    let count = connections.len() as u32;
    r2d2::Pool::builder()
        .max_size(count)
        .min_idle(Some(count))
        .test_on_check_out(false)
        .idle_timeout(None)
        .max_lifetime(None)
        .thread_pool(helper)
        .build(Manager { path: PathBuf::new(), part: Part::Inbox, ready: Mutex::new(connections) })
        .expect("they are there already")
}
