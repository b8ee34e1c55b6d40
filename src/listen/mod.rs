//! The agent's local HTTP: a Unix socket (its file mode is the guard) and, if set, a loopback address (token).
//!
//! ```text
//! accept thread for each address (server) ──> a thread for each connection: wire ─> guard ─> routes ─> answer
//! ```
//!
//! To add a call: one line in [`routes::ROUTES`] and a function in a file of its own. A request whose path or method is
//! not in that table is answered from its head alone. No CORS headers, ever. Never sends a message itself. What is
//! written to the inbox goes through its one writer; to the outbox as any producer or operator writes, in one short
//! transaction.

pub mod adopt;
mod destinations;
mod enqueue;
pub mod guard;
mod health;
mod look;
mod messages;
pub(crate) mod reports;
pub mod routes;
pub mod server;
pub mod settle;
pub(crate) mod wire;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use self::routes::Request;
use self::wire::Answer;
use crate::alert::Alerts;
use crate::config::{Secret, Settings};
use crate::db::pool::Pool;
use crate::db::writer::Writer;
use crate::gate::Gate;
use crate::outboxes::{File, Outboxes};
use crate::owner::{AgentId, StateDir};
use crate::policy::Policy;
use crate::poller::Account;
use crate::reconcile::Bell;
use crate::relay::Event;
use crate::vendor::Vendor;
use crate::ward::Ward;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

/// Longest wait for a commit before the caller is told to come again.
const COMMIT_WAIT: Duration = Duration::from_secs(20);

/// What the routes work with; one for all listeners.
pub struct Context {
    /// The inbox's one writer.
    pub writer: Writer,
    /// Readers of the inbox.
    pub inbox: Pool,
    /// The rules: for the local day.
    pub policy: Arc<Policy>,
    /// To tell people.
    pub alerts: Alerts,
    /// Accounts whose reports are posted to us, with the secret of their path.
    pub webhooks: Vec<(Account, Secret)>,
    /// Wakes the room that opens outbox rows again.
    pub rearm: Bell,
    /// Set once the agent is READY, cleared by its stop.
    pub ready: Arc<AtomicBool>,
    /// Whether anything may be sent at all.
    pub ward: Arc<Ward>,
    /// The lasting id of this agent; `adopt` gives a new one.
    pub agent_id: AgentId,
    /// Names of the files.
    pub state: StateDir,
    /// Settings; those of the destinations, the door of new messages, the zone.
    pub settings: Arc<Settings>,
    /// Gate and adapter of each destination, in the order of the settings.
    pub destinations: Vec<Served>,
    /// Wakes the relay.
    pub relay: Sender<Event>,
    /// The relays of the sources, to be waked.
    pub served: crate::source::Served,
}

impl Context {
    /// Which outbox a call is about: the one that `source=` names, else the one that has the message. `Err` is the answer.
    /// No pooled reader of the inbox is held over the look into applications' files: workers need it.
    fn outbox_of(&self, request: &Request<'_>) -> Result<File, Answer> {
        let listed =
            self.inbox.get().ok().and_then(|inbox| Outboxes::read(&self.state.outbox(), Some(&inbox)).ok());
        let Some(outboxes) = listed else {
            return Err(sentence(503, "the databases cannot be read now; try again"));
        };
        let source = request.parameter("source");
        match outboxes.choose(source.as_deref(), &request.name()) {
            Ok(file) => Ok(file.clone()),
            Err(why) => Err(sentence(why.status(), &why.to_string())),
        }
    }

    /// Wakes the relay of that outbox.
    fn wake(&self, file: &File) {
        if file.source().is_none() {
            let _ = self.relay.send(Event::Wake);
            return;
        }
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, relay)) = served.iter().find(|(path, _)| path == file.path()) {
            let _ = relay.send(Event::Wake);
        }
    }
}

/// A destination, as far as the routes touch it.
pub struct Served {
    /// Its name.
    pub name: String,
    /// Shared with its workers.
    pub gate: Arc<Gate>,
    /// For a harmless probe.
    pub vendor: Arc<dyn Vendor>,
}

/// An answer of one field and one sentence, which is all that most callers show.
fn sentence(status: u16, text: &str) -> Answer {
    let mut answer = Answer::json(status, serde_json::json!({ "text": text }).to_string() + "\n");
    if status == 503 {
        answer.header("Retry-After", "10");
    }
    answer
}

/// Waits for a commit's answer: `Err` is the 503 to give.
fn committed<T>(reply: &Receiver<Result<T, String>>) -> Result<T, Answer> {
    match reply.recv_timeout(COMMIT_WAIT) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(sentence(503, "the agent cannot write its inbox now; try again"))
        }
    }
}
