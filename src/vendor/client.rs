//! The HTTP client: the only file that names `ureq`. (Interface; the body follows.)

use std::path::PathBuf;
use std::time::Duration;

use crate::message::{NotSentProof, Timing};

/// How a destination's client is set up.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Whole-call bound: name, connect, TLS, send, answer, body.
    pub timeout: Duration,
    /// Bound on name + connect + TLS, at most `timeout`.
    pub connect_timeout: Duration,
    /// A kept connection is reused only while idle for less; zero = never.
    pub keep_alive: Duration,
    /// At most this many idle connections are kept (the destination's threads).
    pub idle_max: usize,
    /// CA bundle; `None` = the system's.
    pub ca_file: Option<PathBuf>,
    /// Explicit proxy; the environment's is never used.
    pub proxy: Option<String>,
}

/// What one exchange came to.
#[derive(Debug)]
pub enum Exchange {
    /// No byte of the request was handed to the transport.
    NotSent {
        /// For people: no url, no body.
        reason: String,
        /// The evidence.
        proof: NotSentProof,
    },
    /// A whole answer.
    Answered(Answer),
    /// Anything else: the request may be there.
    Unknown {
        /// The status, if its line was read.
        status: Option<u16>,
        /// For people.
        reason: String,
    },
}

/// A whole HTTP answer.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The body, at most [`crate::limits::ANSWER_BYTES_MAX`].
    pub body: Vec<u8>,
    /// Its length was given by Content-Length or chunks and kept; if not, the end is not proven.
    pub framed: bool,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

/// One destination's HTTP client; shared by its threads.
pub struct Client {}

impl Client {
    /// Builds the client; fails on an unreadable or empty CA file or a bad proxy.
    pub fn new(_settings: &ClientSettings) -> Result<Self, String> {
        unreachable!()
    }
    /// POSTs once. Never follows, never retries, refuses a second request within the call.
    pub fn post_once(&self, _url: &str, _headers: &[(&str, &str)], _body: &[u8]) -> (Exchange, Timing) {
        unreachable!()
    }
}
