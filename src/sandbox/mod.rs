//! The sandbox: a stand-in vendor as a real HTTP/1.1 server, for trying the agent, for `demo` and for tests.
//!
//! Speaks BizPpurio's calls and a generic JSON endpoint, makes faults on demand, and counts what arrived per
//! reference. Sends nothing to anybody; listens on loopback only unless told otherwise; keeps everything in
//! memory. Usable in-process ([`start`]) and from outside over HTTP (`/__sandbox/…`).
//!
//! ```text
//! accept thread (gate) ──> a thread for each connection (server): wire ─> ledger ─> faults/magic ─> bizppurio/generic
//!                                                                                         reports ──> webhook thread
//! ```
//!
//! Rules are described in [`rule`], magic recipients in [`magic::TABLE`].

mod bizppurio;
mod control;
mod faults;
mod gate;
mod generic;
pub mod ledger;
pub mod magic;
mod reports;
pub mod rule;
mod server;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use ledger::{Counts, Ledger, Totals};
pub use rule::{Rule, RuleError};

/// Most connections at once; more are closed on accept.
const CONNECTIONS_MAX: usize = 1_024;
/// Stack of a connection's thread, bytes: JSON of any depth that the parser allows fits well.
const STACK_BYTES: usize = 512 * 1024;
/// Longest wait for connection threads at stop; their sockets are shut, so they end at once as a rule.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How a sandbox behaves.
#[derive(Clone, Debug)]
pub struct SandboxOptions {
    /// Where to listen; port 0 picks a free one. Default `127.0.0.1:0`.
    pub listen: SocketAddr,
    /// Allow addresses (of the listener and of the webhook) that are not loopback. Default no.
    pub any_address: bool,
    /// Whether magic recipients act, see [`magic::TABLE`]. Default no.
    pub magic: bool,
    /// Time every answer takes, besides the rules' own. Default none.
    pub delay: Duration,
    /// Rules in force from the start.
    pub faults: Vec<Rule>,
    /// Seed of rules with `chance`. Default 1.
    pub seed: u64,
    /// `http://host:port/path` that reports are posted to. Default none: reports wait to be polled.
    pub webhook: Option<String>,
    /// From acceptance to report. Default 200 ms.
    pub report_delay: Duration,
    /// Write the vendor's `code` as text rather than as a number. Default no.
    pub code_as_text: bool,
    /// Life of a token. Default 24 h.
    pub token_life: Duration,
    /// Account and password that are right; `None` (the default) takes any.
    pub login: Option<(String, String)>,
    /// Vendor calls allowed in each second; more get 429 and code 5002. Default no limit.
    pub rate: Option<u32>,
    /// Longest silence on a kept connection before it is closed. Default 4 s, the vendor's limit.
    pub idle: Duration,
}

impl Default for SandboxOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            any_address: false,
            magic: false,
            delay: Duration::ZERO,
            faults: Vec::new(),
            seed: 1,
            webhook: None,
            report_delay: Duration::from_millis(200),
            code_as_text: false,
            token_life: Duration::from_secs(24 * 3600),
            login: None,
            rate: None,
            idle: Duration::from_secs(4),
        }
    }
}

/// What all threads of one sandbox share.
struct State {
    options: SandboxOptions,
    gate: gate::Gate,
    ledger: Arc<Ledger>,
    faults: faults::Faults,
    magic: Option<magic::MagicRules>,
    account: bizppurio::Account,
    reports: reports::Reports,
    numbers: AtomicU64,
    connections: Mutex<HashMap<u64, Arc<TcpStream>>>,
    connection_ended: Condvar,
}

impl State {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<TcpStream>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits; true when stop came first.
    fn pause(&self, time: Duration) -> bool {
        !time.is_zero() && self.gate.stopped_within(time)
    }

    /// Ends waiting for further requests everywhere; on stop also what is being answered.
    fn shut_connections(&self) {
        let how = if self.gate.is_stopping() { Shutdown::Both } else { Shutdown::Read };
        for stream in self.connections().values() {
            // Fails where the peer has gone already, which is as good.
            let _ = stream.shutdown(how);
        }
    }

    fn take(self: &Arc<Self>, stream: TcpStream) {
        self.ledger.connection();
        let id = self.next_number();
        let stream = Arc::new(stream);
        {
            let mut connections = self.connections();
            if connections.len() >= CONNECTIONS_MAX {
                log::warn!("sandbox: more than {CONNECTIONS_MAX} connections, one closed");
                return;
            }
            connections.insert(id, Arc::clone(&stream));
        }
        let held = Registered { state: Arc::clone(self), id };
        let serve = move || {
            server::serve(&held.state, &stream);
            // Last but one holder; the book's own goes with `held`, and only then does the socket close.
            drop(stream);
            drop(held);
        };
        let builder = thread::Builder::new().name("sandbox-connection".to_owned()).stack_size(STACK_BYTES);
        if let Err(error) = builder.spawn(serve) {
            log::warn!("sandbox: no thread for a connection: {error}");
        }
    }
}

/// Takes a connection out of the book when its thread ends, also by a panic.
struct Registered {
    state: Arc<State>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.state.connections().remove(&self.id);
        self.state.connection_ended.notify_all();
    }
}

/// A running sandbox; stops when dropped.
pub struct Sandbox {
    state: Arc<State>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Starts a sandbox and returns when it listens.
///
/// # Errors
/// The address is not loopback (unless `any_address`), cannot be bound, or the webhook's URL cannot be used.
pub fn start(options: SandboxOptions) -> io::Result<Sandbox> {
    if !options.any_address && !options.listen.ip().is_loopback() {
        let text = format!("sandbox: {} is not a loopback address; listen on 127.0.0.1", options.listen);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let webhook = options.webhook.as_deref();
    let webhook = webhook.map(|url| reports::Webhook::parse(url, options.any_address)).transpose()?;
    let posts = webhook.is_some();
    let (gate, listener) = gate::Gate::open(options.listen)?;
    let state = Arc::new(State {
        gate,
        ledger: Arc::default(),
        faults: faults::Faults::new(options.faults.clone(), options.seed),
        magic: options.magic.then(magic::MagicRules::new),
        account: bizppurio::Account::new(options.token_life, options.login.clone(), options.rate),
        reports: reports::Reports::new(options.report_delay, webhook),
        numbers: AtomicU64::new(1),
        connections: Mutex::default(),
        connection_ended: Condvar::new(),
        options,
    });
    let mut threads = Vec::new();
    let accepting = Arc::clone(&state);
    threads.push(thread::Builder::new().name("sandbox-accept".to_owned()).spawn(move || {
        accepting.gate.accept_until_stop(
            listener,
            |stream| accepting.take(stream),
            || accepting.shut_connections(),
        );
    })?);
    if posts {
        let posting = Arc::clone(&state);
        let post = move || posting.reports.post_until_stop();
        threads.push(thread::Builder::new().name("sandbox-webhook".to_owned()).spawn(post)?);
    }
    Ok(Sandbox { state, threads: Mutex::new(threads) })
}

impl Sandbox {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.state.gate.address()
    }

    /// Its address as `http://…`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// What arrived.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.state.ledger)
    }

    /// Puts these rules in the place of those in force.
    pub fn set_faults(&self, rules: Vec<Rule>) {
        self.state.faults.set(rules);
    }

    /// Makes every token given so far invalid (the next call gets code 3002).
    pub fn revoke_tokens(&self) {
        self.state.account.revoke();
    }

    /// Stops listening and ends kept connections (connects are refused), or comes back on the same port.
    /// Returns when that is so; requests being answered are still answered.
    pub fn refuse(&self, refuse: bool) {
        self.state.gate.refuse(refuse);
    }

    /// Forgets arrivals and reports.
    pub fn reset(&self) {
        self.state.ledger.reset();
        self.state.reports.reset();
    }

    /// Stops: no new connections, the open ones are cut, hanging answers included. Calling it again does nothing.
    pub fn stop(&self) {
        self.state.gate.stop();
        self.state.reports.stop();
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic there has been printed by its own thread; stopping goes on.
            let _ = thread.join();
        }
        self.state.shut_connections();
        let open = self.state.connections();
        let ended =
            self.state.connection_ended.wait_timeout_while(open, STOP_TIMEOUT, |open| !open.is_empty());
        if ended.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
            log::warn!("sandbox: some connections did not end within 5 s");
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.stop();
    }
}
