//! The seam to vendors: adapters talk and decide nothing.
//!
//! An adapter encodes a message, makes one request and says what the answer means. It has no database, no
//! policy and no retry. `send` needs a [`Sending`], which only a committed SENDING row can make.

pub mod bizppurio;
pub mod client;
pub mod euckr;
pub mod fitness;
pub mod http;
pub mod json;
pub(crate) mod pace;
pub mod token;

use std::sync::Arc;
use std::time::Instant;

use self::client::{Answer, Exchange};
use crate::config::{DestinationSettings, VendorSettings};
use crate::message::{Message, MessageId, NotSentKind, Outcome, Reply, Timing};
use crate::store::inbox::Sending;

/// A request made ready by [`Vendor::prepare`]; its content is the adapter's own.
pub struct Prepared {
    /// The request body, ready to be handed over in one piece.
    pub body: Vec<u8>,
    /// Headers that depend on the message.
    pub headers: Vec<(String, String)>,
    /// Set by the worker's last look: the request's first byte leaves before this moment, or not at all.
    pub begin_before: Option<Instant>,
}

/// A message that the adapter could never send: it is PARKED before any claim (F28).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unfit {
    /// For people, without number or text, with the measured size where size is the matter.
    pub reason: String,
}

impl Unfit {
    /// Wraps a reason that names fields and sizes, never a number or a text.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

/// One vendor API behind one destination.
pub trait Vendor: Send + Sync {
    /// Encodes the request. Pure: no clock, no network. An error parks the message before any claim.
    fn prepare(&self, message: &Message) -> Result<Prepared, Unfit>;

    /// Makes sure that a send can begin (token cached and fresh). May talk to the vendor, but never carries a
    /// message: whatever goes wrong here is *not sent*. Called before the claim, so a slow login costs no claim.
    /// `Err` is always [`Outcome::NotSent`], as a whole [`Reply`] for the attempt log.
    fn ready(&self) -> Result<(), Box<Reply>> {
        Ok(())
    }

    /// Whether [`Vendor::ready`] would have to talk to the vendor: then that call counts against the rate too.
    fn is_ready(&self) -> bool {
        true
    }

    /// Makes at most one request that carries the message. Never retries, never follows.
    fn send(&self, sending: &Sending, message: &Message, prepared: &Prepared) -> Reply;

    /// Whether the receiver really deduplicates by our message id (a setting): only then may an unknown outcome be
    /// tried again with the same id.
    fn deduplicates(&self) -> bool {
        false
    }

    /// Where the vendor keeps reports to be fetched, if it does.
    fn report_source(&self) -> Option<&dyn ReportSource> {
        None
    }

    /// Asks the vendor once what became of a message; `None` where it has no look-up. Carries no message.
    fn look_up(&self, _message_id: &MessageId) -> Option<LookedUp> {
        None
    }

    /// One harmless exchange to see whether the far end answers (a token, a TCP+TLS connect); used by `check`
    /// and `dest probe`. `Ok` holds one line for people.
    fn probe(&self) -> Result<String, String>;
}

/// Reports that wait at the vendor until we say that they are on our disk. One asker for each account: results go to
/// whoever asks first.
pub trait ReportSource: Send + Sync {
    /// Names the account for a lock; holds no secret.
    fn account(&self) -> String;
    /// How many reports come at once at most: as many mean that there may be more.
    fn batch_max(&self) -> usize;
    /// Fetches what waits, oldest first. They come again until they are confirmed.
    fn fetch(&self) -> Result<Vec<serde_json::Value>, Refused>;
    /// Says that these items (the vendor's ids) are stored.
    fn confirm(&self, items: &[String]) -> Result<(), Refused>;
}

/// Why reports cannot be fetched or confirmed now; nothing is lost by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// For people, without secrets.
    pub reason: String,
    /// The vendor asks for a pause.
    pub wait: Option<std::time::Duration>,
}

/// What a look-up said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookedUp {
    /// The vendor has it.
    Accepted {
        /// Its code.
        code: String,
        /// The vendor's own id.
        vendor_ref: Option<String>,
    },
    /// The vendor refused it for good.
    Rejected {
        /// Its code.
        code: String,
    },
    /// The documented "never received".
    NeverReceived {
        /// Its code.
        code: String,
    },
    /// Anything else; for people.
    Unclear(String),
}

/// Whether an outcome says something about the destination rather than the message.
pub fn is_about_the_destination(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::NotSent {
            kind: NotSentKind::Unreachable | NotSentKind::Throttled(_) | NotSentKind::Denied,
            ..
        }
    )
}

/// The adapter of a destination; fails on what only the adapter can check (template, headers, CA file), with a text
/// for people that holds no secret. Opens no connection.
pub fn build(settings: &DestinationSettings) -> Result<Arc<dyn Vendor>, String> {
    let client = client::ClientSettings {
        timeout: settings.timeout,
        connect_timeout: settings.connect_timeout,
        keep_alive: settings.keep_alive,
        idle_max: settings.threads,
        ca_file: settings.ca_file.clone(),
        proxy: settings.proxy.clone(),
    };
    Ok(match &settings.vendor {
        VendorSettings::Http(http) => Arc::new(http::Http::new(settings, http, &client)?),
        VendorSettings::BizPpurio(biz) => Arc::new(bizppurio::BizPpurio::new(settings, biz, &client)?),
    })
}

/// An exchange as a reply; `read` is asked about whole answers only.
fn reply(exchange: Exchange, timing: Timing, read: impl FnOnce(&Answer) -> Outcome) -> Reply {
    let (outcome, http_status, pause) = match exchange {
        Exchange::NotSent { reason, proof, too_late } => {
            let kind = if too_late { NotSentKind::TooLate } else { NotSentKind::Unreachable };
            (Outcome::NotSent { kind, code: None, reason, proof }, None, None)
        }
        Exchange::Unknown { status, reason } => {
            (Outcome::Unknown { code: status.map(|status| status.to_string()), reason }, status, None)
        }
        Exchange::Answered(answer) => {
            let outcome = read(&answer);
            let pause = match &outcome {
                Outcome::NotSent { kind: NotSentKind::Throttled(Some(wait)), .. } => Some(*wait),
                _ => pace::pause(&answer),
            };
            (outcome, Some(answer.status), pause)
        }
    };
    Reply { outcome, http_status, timing, pause }
}

/// A claim for one message may not pay for another: a mix-up is our bug, and the worker records the panic as unknown.
fn must_be_claimed(sending: &Sending, message: &Message) {
    assert_eq!(sending.message_id(), &message.message_id, "the claim is for another message");
}
