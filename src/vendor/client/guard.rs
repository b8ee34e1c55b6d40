//! The record and the fuse around ureq's connections.
//!
//! Part of the HTTP client's room. ureq runs a call wholly on the calling thread, and [`Guard`] stands around ureq's
//! whole chain of connectors (TCP, CONNECT proxy, TLS). What passes through it is the request and nothing else, so a
//! thread-local record, written *before* each write, tells what this call has handed over. Never decides what that
//! means, never lets a second request or a second connection of one call through.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};

use crate::clock;
use crate::message::Timing;

/// No setting comes near it; it keeps the sum of a time and a duration from overflowing.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// What the running call has done with its transport. One a thread; valid only inside a [`Call`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wire {
    active: bool,
    /// A probe: every write is refused, which is how it ends.
    probe: bool,
    /// Name, connect and TLS must be over by then.
    connect_by: Option<Instant>,
    /// The first request byte must leave before this moment.
    begin_before: Option<Instant>,
    /// It came to the first byte too late.
    pub(super) too_late: bool,
    /// Nesting of [`Guard::connect`]: a CONNECT proxy runs the whole chain once more inside it.
    depth: u32,
    /// Connections opened; 0 with a request written = a kept one was used.
    connects: u32,
    /// Request bytes handed to the transport, counted before it is called.
    pub(super) attempted: usize,
    first_byte: Option<Instant>,
    /// Answer bytes were seen.
    answered: bool,
    /// The connection that took the request; 0 = none yet.
    owner: u64,
    /// Writes and connects that the fuse refused.
    pub(super) refused: u32,
}

thread_local! {
    static WIRE: Cell<Wire> = Cell::new(Wire::default());
}

fn wire<T>(change: impl FnOnce(&mut Wire) -> T) -> T {
    WIRE.with(|cell| {
        let mut wire = cell.get();
        let result = change(&mut wire);
        cell.set(wire);
        result
    })
}

/// One call on this thread. Dropping it, also by a panic, leaves the record inactive, and inactive = no writes.
pub(super) struct Call {
    pub(super) begun: Instant,
}

impl Call {
    pub(super) fn begin(connect_timeout: Duration, probe: bool) -> Self {
        let begun = Instant::now();
        let connect_by = Some(begun + connect_timeout.min(CONNECT_TIMEOUT_MAX));
        WIRE.set(Wire { active: true, probe, connect_by, ..Wire::default() });
        Self { begun }
    }

    /// The request must begin before this moment, or not at all.
    pub(super) fn begin_before(&self, moment: Option<Instant>) {
        wire(|w| w.begin_before = moment);
    }

    pub(super) fn record(&self) -> Wire {
        WIRE.get()
    }

    pub(super) fn timing(&self) -> Timing {
        let (record, now) = (self.record(), Instant::now());
        match record.first_byte {
            None => Timing { connecting: now - self.begun, answering: Duration::ZERO },
            Some(first) => Timing {
                connecting: if record.connects == 0 { Duration::ZERO } else { first - self.begun },
                answering: now - first,
            },
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        WIRE.set(Wire::default());
    }
}

/// The fuse: what it refuses never happens, whatever ureq does above it.
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a second request within one call was refused")
    }
}
impl std::error::Error for Refused {}

fn refused() -> Error {
    Error::Other(Box::new(Refused))
}

/// The outermost connector: ureq's default chain inside, the record around it.
#[derive(Debug, Default)]
pub(super) struct Guard(DefaultConnector);

static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

impl Connector<()> for Guard {
    type Out = Guarded;

    fn connect(&self, details: &ConnectionDetails, chained: Option<()>) -> Result<Option<Guarded>, Error> {
        struct Depth;
        impl Drop for Depth {
            fn drop(&mut self) {
                wire(|w| w.depth = w.depth.saturating_sub(1));
            }
        }
        let before = wire(|w| {
            let before = *w;
            w.depth += 1;
            before
        });
        let _depth = Depth;
        // No call on this thread, or its request is out already: no connection can be of use.
        let Some(connect_by) = before.connect_by.filter(|_| before.active && before.attempted == 0) else {
            wire(|w| w.refused += 1);
            return Err(refused());
        };
        // ureq bounds look-up and connect one after the other; together they must keep the call's one bound.
        let left = connect_by.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Timeout(ureq::Timeout::Connect));
        }
        let timeout = NextTimeout { after: left.into(), reason: ureq::Timeout::Connect, ..details.timeout };
        let details = ConnectionDetails {
            uri: details.uri,
            addrs: details.addrs.clone(),
            config: details.config,
            request_level: details.request_level,
            resolver: details.resolver,
            now: (details.current_time)(),
            timeout,
            current_time: details.current_time.clone(),
            run_connector: details.run_connector.clone(),
            register_shutdown: details.register_shutdown.clone(),
        };
        let transport = self.0.connect(&details, chained)?;
        // ureq grants each step a little grace beyond its bound; ours has none, and nothing is sent yet.
        if Instant::now() >= connect_by {
            return Err(Error::Timeout(ureq::Timeout::Connect));
        }
        let outer = before.depth == 0;
        if outer {
            wire(|w| w.connects += 1);
        }
        let id = if outer { NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed) } else { 0 };
        Ok(transport.map(|inner| Guarded { inner, id }))
    }
}

/// A connection whose writes are recorded.
#[derive(Debug)]
pub(super) struct Guarded {
    inner: Box<dyn Transport>,
    /// 0: the connection to a proxy, below the one that carries the request; not recorded.
    id: u64,
}

impl Transport for Guarded {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.id == 0 || amount == 0 {
            return self.inner.transmit_output(amount, timeout);
        }
        let allowed = wire(|w| {
            let mine = w.owner == 0 || w.owner == self.id;
            // An inactive record means that ureq writes on a thread we do not watch: then nothing may be written.
            if w.attempted == 0 && w.begin_before.is_some_and(|moment| clock::mono() >= moment) {
                w.too_late = true;
            }
            let allowed = w.active && !w.probe && mine && !w.answered && !w.too_late;
            if allowed {
                w.owner = self.id;
                w.attempted += amount;
                w.first_byte.get_or_insert_with(Instant::now);
            } else {
                w.refused += 1;
            }
            allowed
        });
        if !allowed {
            return Err(refused());
        }
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let more = self.inner.await_input(timeout)?;
        if more && self.id != 0 {
            wire(|w| w.answered = true);
        }
        Ok(more)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use ureq::Agent;
    use ureq::unversioned::resolver::DefaultResolver;

    use super::*;

    /// An agent as careless as ureq's defaults: follows ten redirects, keeps connections.
    fn careless_agent() -> Agent {
        Agent::with_parts(
            Agent::config_builder().proxy(None).timeout_global(Some(Duration::from_secs(10))).build(),
            Guard::default(),
            DefaultResolver::default(),
        )
    }

    /// Answers every request with this status and location on a kept connection; counts requests.
    fn redirecting_server(status: u16, location: Option<&str>) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let location = location.map_or_else(|| format!("http://{address}/other"), str::to_owned);
        let seen = Arc::new(AtomicUsize::new(0));
        let count = seen.clone();
        // Lives until the test's process ends; at most a few connections come.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, count, location) = (stream.unwrap(), count.clone(), location.clone());
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    let mut text = Vec::new();
                    while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                        text.extend_from_slice(&buffer[..bytes]);
                        // The body of every request here ends in '!', a GET has none.
                        if text.ends_with(b"!") || (text.starts_with(b"GET") && text.ends_with(b"\r\n\r\n")) {
                            count.fetch_add(1, Ordering::SeqCst);
                            text.clear();
                            let answer = format!(
                                "HTTP/1.1 {status} x\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
                            );
                            stream.write_all(answer.as_bytes()).unwrap();
                        }
                    }
                });
            }
        });
        (address, seen)
    }

    fn begin() -> Call {
        Call::begin(Duration::from_secs(10), false)
    }

    #[test]
    fn redirects_switched_on_by_mistake_send_no_second_request() {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let to_dead_port = format!("http://{dead}/other");
        for (status, location) in [
            (301, None),
            (302, None),
            (303, None),
            (307, None),
            (308, None),
            (303, Some(to_dead_port.as_str())),
        ] {
            let (address, seen) = redirecting_server(status, location);
            let agent = careless_agent();
            let call = begin();
            let error = agent.post(format!("http://{address}/pay")).send("hello!").unwrap_err();
            let record = call.record();
            assert!(record.attempted > 0, "{status}: {error}");
            assert_eq!(seen.load(Ordering::SeqCst), 1, "{status}");
            // ureq itself gives up on 307 and 308; the others meet the fuse.
            assert_eq!(record.refused > 0, status < 307, "{status}: {error}");
        }
    }

    #[test]
    fn outside_a_call_nothing_connects_and_a_kept_connection_writes_nothing() {
        let (address, seen) = redirecting_server(200, None);
        let agent = careless_agent();
        let url = format!("http://{address}/pay");
        assert!(matches!(agent.get(&url).call(), Err(Error::Other(why)) if why.is::<Refused>()));
        let call = begin();
        agent.post(&url).send("hello!").unwrap();
        drop(call);
        // The connection is in the pool now; on another thread there is no call.
        let there = std::thread::spawn(move || agent.post(&url).send("hello!").is_err());
        assert!(there.join().unwrap());
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_panic_leaves_no_call_behind() {
        let broken = std::panic::catch_unwind(|| {
            let _call = begin();
            wire(|w| {
                w.attempted = 7;
                w.depth = 3;
            });
            std::panic::resume_unwind(Box::new("as a library might"));
        });
        assert!(broken.is_err());
        let left = WIRE.get();
        assert!(!left.active && left.attempted == 0 && left.depth == 0);
        let call = begin();
        assert_eq!((call.record().attempted, call.record().depth), (0, 0));
    }
}
