//! A stand-in vendor: a real HTTP server that speaks BizPpurio's token and message calls and a generic JSON endpoint,
//! breaks on demand, and counts what arrived under each reference. For people trying the agent, `demo`, and tests.
//!
//! Loopback only. Keeps no text and no number. Two sends under one reference are two sends: no deduplication.
//!
//! With `magic`, recipients with these last digits fail in their own way (BizPpurio and generic alike): `0400`
//! rejected, `0429` the first call throttled for a second, `0500` HTTP 500, `0501` reset after reading, `0502` a
//! proxy's page, `0503` half an answer, `0504` no answer, `0307` redirect, `0505` closed after reading.
//!
//! At run time: `GET /__sandbox/arrivals[?reference=]`, `GET /__sandbox/count`, `POST /__sandbox/faults` (lines of
//! rules, see [`faults`]), `DELETE /__sandbox/faults`, `POST /__sandbox/refuse?ms=2000`, `POST /__sandbox/reset`.

pub mod faults;
pub mod ledger;
mod server;
mod vendor;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use faults::Rule;
pub use ledger::Ledger;

/// How the sandbox behaves.
#[derive(Clone, Debug)]
pub struct SandboxOptions {
    /// Where to listen; port 0 = any free one. Loopback only.
    pub listen: SocketAddr,
    /// Recipients with certain last digits fail.
    pub magic: bool,
    /// Before each answer.
    pub delay: Duration,
    /// Faults from the start.
    pub faults: Vec<Rule>,
    /// Where reports are posted; `None` = nowhere.
    pub webhook: Option<String>,
    /// Life of a token.
    pub token_life: Duration,
    /// Codes as strings instead of numbers.
    pub string_codes: bool,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            magic: false,
            delay: Duration::ZERO,
            faults: Vec::new(),
            webhook: None,
            token_life: Duration::from_secs(86_400),
            string_codes: false,
        }
    }
}

/// A running sandbox.
pub struct Sandbox {
    server: Arc<server::Server>,
}

/// Starts it.
///
/// # Errors
/// An address that is not loopback, or one that cannot be had.
pub fn start(options: SandboxOptions) -> std::io::Result<Sandbox> {
    Ok(Sandbox { server: server::Server::start(options)? })
}

impl Sandbox {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }
    /// What arrived.
    pub fn ledger(&self) -> &Ledger {
        self.server.ledger()
    }
    /// Puts these rules in the place of those in force.
    pub fn set_faults(&self, rules: Vec<Rule>) {
        self.server.set_faults(rules);
    }
    /// Refuses connections (and ends those that stand), or takes them again on the same port.
    pub fn refuse(&self, refuse: bool) {
        self.server.refuse(refuse);
    }
    /// Ends promptly.
    pub fn stop(&self) {
        self.server.stop();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.stop();
    }
}
