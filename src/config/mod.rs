//! Settings as meant: typed, complete, checked. No room reads a file or the environment; they get these structs.
//!
//! `parse.rs` turns the text into this, reporting every problem at once with its line. Defaults live in
//! `parse.rs` and the files of single sections only. Secrets are read when the settings are loaded and print as stars.

mod clock;
mod destination;
pub(crate) mod duration;
mod element;
mod find;
mod header;
mod listen;
mod matching;
mod nearest;
mod parse;
mod problems;
pub mod rate;
mod route;
mod sample;
mod secret;
mod section;
pub(crate) mod size;
pub(crate) mod url;

pub use find::{DEFAULT_PATH, find};
pub use problems::{Problem, SettingsError};
pub use sample::{SAMPLE_PASSWORD_FILE, sample};
pub use secret::{FormOnly, SecretReference, SecretSource, SystemSecrets};

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A secret value: prints as stars, compared by nobody.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value that was just read from its place.
    pub fn new(value: String) -> Self {
        Self(value)
    }
    /// The value, for the request that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

/// Everything, as meant.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `[agent]`
    pub agent: AgentSettings,
    /// `[relay]`
    pub relay: RelaySettings,
    /// `[retry]`
    pub retry: RetrySettings,
    /// `[[destination]]`, in file order; names unique.
    pub destinations: Vec<DestinationSettings>,
    /// `[[route]]`, first match wins.
    pub routes: Vec<Route>,
    /// `[class.ADVERTISING]`
    pub advertising: WindowSettings,
    /// `[listen]`
    pub listen: ListenSettings,
    /// `[alert]`
    pub alert: AlertSettings,
    /// `[retention]`
    pub retention: RetentionSettings,
}

/// `[agent]`
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Folder of both databases.
    pub state_dir: PathBuf,
    /// `production`, or anything else: then only `allowed_recipients` are ever sent to.
    pub environment: String,
    /// The only recipients outside production.
    pub allowed_recipients: Vec<String>,
    /// IANA zone of windows and of times shown to people.
    pub timezone: jiff::tz::TimeZone,
}

/// `[relay]`
#[derive(Clone, Debug)]
pub struct RelaySettings {
    /// Rows per claim, 1..=1000.
    pub batch: u32,
    /// Lease of a claim, 10 s..=24 h; longer than any vendor timeout.
    pub lease: Duration,
    /// Fall-back polling, 100 ms..=1 min.
    pub poll: Duration,
    /// Hand-offs that may wait per destination, 1..=65536.
    pub channel: usize,
}

/// `{ times, every }`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// How often, 0..=1000.
    pub times: u32,
    /// Pause before each.
    pub every: Duration,
}

/// `[retry]`
#[derive(Clone, Debug)]
pub struct RetrySettings {
    /// First tries again.
    pub quick: Repeat,
    /// Then these; after them PARKED.
    pub later: Repeat,
    /// Pauses after failures to hand over; the last repeats.
    pub handoff: Vec<Duration>,
    /// This attempt alerts.
    pub alert_at_attempt: u32,
}

/// `[[destination]]`
#[derive(Clone, Debug)]
pub struct DestinationSettings {
    /// Unique, `[a-z0-9_-]{1,40}`.
    pub name: String,
    /// The vendor and what it needs.
    pub vendor: VendorSettings,
    /// `http://` (loopback only unless allowed) or `https://`.
    pub url: String,
    /// Whole call.
    pub timeout: Duration,
    /// Name + connect + TLS; default a third of `timeout`, at most 5 s.
    pub connect_timeout: Duration,
    /// Workers.
    pub threads: usize,
    /// Calls per second, `None` = no bound.
    pub rate_per_s: Option<f64>,
    /// Calls in a row whose outcome is unknown that close it; 0 = never.
    pub close_after_unknown: u32,
    /// Reuse of kept connections; zero = never.
    pub keep_alive: Duration,
    /// CA bundle, `None` = the system's.
    pub ca_file: Option<PathBuf>,
    /// Explicit proxy.
    pub proxy: Option<String>,
}

/// What the type of a destination needs.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a handful per program, made once")]
pub enum VendorSettings {
    /// `type = "bizppurio"`
    BizPpurio(BizPpurioSettings),
    /// `type = "http"`
    Http(HttpSettings),
}

/// `type = "bizppurio"`
#[derive(Clone, Debug)]
pub struct BizPpurioSettings {
    /// Account id, at most 20 bytes.
    pub account: String,
    /// Password of the account.
    pub password: Secret,
    /// Registered sender number.
    pub from: String,
    /// How reports come back.
    pub reports: Reports,
}

/// How a vendor's reports come back.
#[derive(Clone, Debug)]
pub enum Reports {
    /// Not at all.
    Off,
    /// Polled this often.
    Poll(Duration),
    /// The vendor calls us; the secret is part of the path.
    Webhook(Secret),
}

/// `type = "http"`
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Sent with every request, values may be secrets.
    pub headers: Vec<(String, Secret)>,
    /// Carries the message id; empty = none.
    pub reference_header: String,
    /// Longest reference the receiver takes, bytes.
    pub reference_bytes_max: usize,
    /// `None` = the payload as it is; else a template over the row's fields.
    pub body: Option<String>,
    /// Content type of the body.
    pub content_type: String,
    /// Means SENT.
    pub accepted: Match,
    /// Means FAILED.
    pub rejected: Match,
    /// Means certainly not sent.
    pub not_sent: Match,
    /// JSON pointer to the vendor's own id in an accepted answer.
    pub vendor_ref: Option<String>,
    /// Set only if the receiver really deduplicates; empty = none.
    pub idempotency_header: String,
    /// How the receiver is asked what became of a message.
    pub lookup: Option<LookUpSettings>,
}

/// `lookup` of `type = "http"`: a GET that names the message id, with the destination's own headers.
#[derive(Clone, Debug)]
pub struct LookUpSettings {
    /// With `{message_id}` in it; on the destination's own scheme and host rules.
    pub url: String,
    /// Settles ERROR as SENT.
    pub accepted: Match,
    /// Settles ERROR as FAILED.
    pub rejected: Match,
    /// The receiver's documented "never received": the message goes again, once.
    pub never_received: Match,
    /// Before that it is not believed: the request may still be on its way, 1 s..=7 d.
    pub never_received_after: Duration,
}

/// A rule over an answer: the status must be listed and, where a JSON rule is given, that must hold too.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Match {
    /// Status codes and classes; empty = never matches.
    pub status: Vec<StatusRange>,
    /// JSON pointer and the values it may have.
    pub json: Option<(String, Vec<serde_json::Value>)>,
}

/// `200` or `"2xx"`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange {
    /// First status.
    pub first: u16,
    /// Last status.
    pub last: u16,
}

/// `[[route]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Kind with `*` at any place.
    pub kind: String,
    /// Name of a destination.
    pub destination: String,
}

/// `[class.ADVERTISING]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSettings {
    /// Opening, local wall time.
    pub opens: jiff::civil::Time,
    /// Closing, local wall time: a call that would begin at it does not. Before `opens`: on the next day.
    pub closes: jiff::civil::Time,
    /// The relay stops taking at it.
    pub relay_until: jiff::civil::Time,
}

/// `[listen]`
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// Local API socket.
    pub socket: PathBuf,
    /// Page, API, metrics; off unless set.
    pub http: Option<std::net::SocketAddr>,
    /// Required with `http`.
    pub token: Option<Secret>,
}

/// `[alert]`
#[derive(Clone, Debug)]
pub struct AlertSettings {
    /// Slack-compatible URL.
    pub webhook: Option<Secret>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// SENDING older than this is stale.
    pub stale_sending: Duration,
    /// Oldest due row older than this.
    pub backlog_age: Duration,
    /// Between two notices of one cause and destination to one hook, 1 s..=7 d; the first comes at once.
    pub interval: Duration,
    /// Longest run of the command, 1 s..=5 min; then it is killed.
    pub command_timeout: Duration,
    /// Free space on the file system of the state folder below which a person is told, bytes; 0 = never.
    pub disk_free: u64,
}

/// `[retention]`
#[derive(Clone, Debug)]
pub struct RetentionSettings {
    /// Bodies and numbers are wiped after.
    pub bodies: Duration,
    /// Keys are kept for.
    pub keys: Duration,
}
