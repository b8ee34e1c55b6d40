//! A bounded pool of read-only connections to one file. Nobody holds one across a call or a channel wait.

use std::path::PathBuf;
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
}

impl r2d2::ManageConnection for Manager {
    type Connection = Connection;
    type Error = DbError;

    fn connect(&self) -> Result<Connection, DbError> {
        super::open_reader(&self.path, self.part)
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
        .build(Manager { path, part })
        .map_err(|error| DbError::Unusable { path: for_error, reason: error.to_string() })
}
