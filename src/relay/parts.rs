//! What a relay is made of: its file, its settings, and what it shares with its workers and with the other relays.
//!
//! Never: anything that changes during a run; what a relay knows of its rows is in `relay.rs`.

use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::Sender;
use rusqlite::Connection;

use super::handoff::Handoff;
use crate::alert::Alerts;
use crate::config::{RelaySettings, RetrySettings, Route};
use crate::db::checkpoint::Checkpointer;
use crate::db::pool::Pool;
use crate::db::{self, Durability, Part};
use crate::gate::Gate;
use crate::message::{Destination, OwnerId};
use crate::policy::Policy;
use crate::share::{Keys, Places};
use crate::source::Guard;
use crate::ward::Ward;
use crate::watch::WatchFlags;

/// One destination as the relay sees it.
#[derive(Clone)]
pub struct Lane {
    /// Its name.
    pub destination: Destination,
    /// To its workers.
    pub handoff: Sender<Handoff>,
    /// Shared with its workers.
    pub gate: Arc<Gate>,
    /// Its workers.
    pub threads: usize,
    /// Its budget, calls a second.
    pub rate_per_s: Option<f64>,
    /// Shared with the relays of the other sources.
    pub places: Arc<Places>,
}

/// Whose file the relay works on.
pub enum Home {
    /// `outbox.db`, with the checkpointer of the file.
    Own(Checkpointer),
    /// An application's own file: opened as the application keeps it, looked at before each round.
    Source(Guard),
}

/// What the relay is made of.
pub struct RelayParts {
    /// The outbox file.
    pub path: PathBuf,
    /// This start.
    pub owner: OwnerId,
    /// `[relay]`
    pub settings: RelaySettings,
    /// `[retry]`
    pub retry: RetrySettings,
    /// `[[route]]`
    pub routes: Vec<Route>,
    /// The rules.
    pub policy: Arc<Policy>,
    /// One for each destination.
    pub lanes: Vec<Lane>,
    /// Readers of the inbox, to look before closing a row.
    pub inbox: Pool,
    /// To tell people.
    pub alerts: Alerts,
    /// Whose file it is.
    pub home: Home,
    /// Order lanes under way, shared with the relays of the other sources.
    pub keys: Arc<Keys>,
    /// Shared with the watch.
    pub flags: Arc<WatchFlags>,
    /// Whether anything may be sent at all.
    pub ward: Arc<Ward>,
}

impl RelayParts {
    pub(super) fn open(&self) -> Result<Connection, db::DbError> {
        match &self.home {
            Home::Own(_) => db::open_writer(&self.path, Part::Outbox, Durability::Normal),
            Home::Source(guard) => guard.open(),
        }
    }
}
