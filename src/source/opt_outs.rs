//! The opt-outs in an application's own file, as a worker reads them right before a call.
//!
//! Opened anew for each look, so that no file that was replaced or removed is held open. Never: waits long for an
//! application's lock (the worker has other files' messages to deliver), takes another file's word.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::file::is_served_by;
use crate::db::{self, DbError};
use crate::limits::{OPT_OUTS_LOCK_WAIT, OPT_OUTS_LOCK_WAIT_AGAIN};
use crate::owner::AgentId;
use crate::policy::consent::OptOut;
use crate::store::suppress;

/// Whose list it is; shared by a source's relay with its hand-offs.
#[derive(Debug)]
pub struct OptOuts {
    path: PathBuf,
    agent_id: AgentId,
    source_id: String,
    /// The last look found it locked: the next ones hardly wait.
    was_locked: AtomicBool,
}

impl OptOuts {
    pub(super) fn new(path: PathBuf, agent_id: AgentId, source_id: String) -> Self {
        Self { path, agent_id, source_id, was_locked: AtomicBool::new(false) }
    }

    /// Of a recipient, by all of its forms.
    pub fn find(&self, forms: &[String]) -> Result<Vec<OptOut>, DbError> {
        let connection = db::open_foreign_glance(&self.path)?;
        let look = || {
            connection.busy_timeout(if self.was_locked.load(Ordering::Relaxed) {
                OPT_OUTS_LOCK_WAIT_AGAIN
            } else {
                OPT_OUTS_LOCK_WAIT
            })?;
            let ours = is_served_by(&connection, &self.source_id, &self.agent_id.get())?;
            suppress::find(&connection, forms).map(|found| ours.then_some(found))
        };
        let found = look();
        self.was_locked.store(found.as_ref().is_err_and(db::is_busy), Ordering::Relaxed);
        found
            .map_err(|error| DbError::sqlite(&self.path, error))?
            .ok_or_else(|| DbError::taken_over(&self.path))
    }
}
