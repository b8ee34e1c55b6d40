//! Whether the sandbox listens: accepting, refusing on demand, and coming back on the same port.
//!
//! A second socket is bound to the port from start to stop and never listens. While the sandbox refuses, it
//! keeps the port from being handed to anybody else, and the kernel answers connects to it with a reset.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

/// How long a change waits for the accepting thread to carry it out.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(2);
/// How soon a listener that could not come back is tried again.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Listen,
    Refuse,
    RefuseUntil(Instant),
    Stop,
}

struct Inner {
    wanted: Wanted,
    listening: bool,
}

/// The wish to listen or not, and the thread's word on it.
pub(super) struct Gate {
    inner: Mutex<Inner>,
    changed: Condvar,
    wake: OwnedFd,
    closed: AtomicBool,
    address: SocketAddr,
    _holds_the_port: OwnedFd,
}

impl Gate {
    /// Binds the port and listens on it.
    pub(super) fn open(wanted: SocketAddr) -> io::Result<(Self, TcpListener)> {
        let family = if wanted.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let holder = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_reuseaddr(&holder, true)?;
        rustix::net::bind(&holder, &wanted)?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&holder)?)?;
        let listener = listen(address)?;
        let gate = Self {
            inner: Mutex::new(Inner { wanted: Wanted::Listen, listening: true }),
            changed: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            closed: AtomicBool::new(false),
            address,
            _holds_the_port: holder,
        };
        Ok((gate, listener))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether kept connections must end after what they are doing.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Refuses connections, or takes them again; returns when that is so.
    pub(super) fn refuse(&self, refuse: bool) {
        self.change(if refuse { Wanted::Refuse } else { Wanted::Listen });
    }

    /// Refuses for so long; returns when connections are refused.
    pub(super) fn refuse_for(&self, time: Duration) {
        self.change(Wanted::RefuseUntil(Instant::now() + time));
    }

    pub(super) fn stop(&self) {
        self.change(Wanted::Stop);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().wanted == Wanted::Stop
    }

    /// Waits until stop, at most so long; true on stop.
    pub(super) fn stopped_within(&self, time: Duration) -> bool {
        let wait = self.changed.wait_timeout_while(self.lock(), time, |inner| inner.wanted != Wanted::Stop);
        !wait.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn change(&self, wanted: Wanted) {
        let mut inner = self.lock();
        if inner.wanted == Wanted::Stop {
            return;
        }
        inner.wanted = wanted;
        self.closed.store(wanted != Wanted::Listen, Ordering::Release);
        self.changed.notify_all();
        // Fails only when 2^64 wake-ups are unread; then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        let listening = wanted == Wanted::Listen;
        let done = self
            .changed
            .wait_timeout_while(inner, CHANGE_TIMEOUT, |inner| {
                inner.wanted == wanted && inner.listening != listening
            })
            .unwrap_or_else(PoisonError::into_inner);
        if done.1.timed_out() {
            log::warn!("sandbox: {} could not be opened or closed within 2 s", self.address);
        }
    }

    /// The accepting thread: hands each connection to `take`; calls `shut` when it stops listening. Ends on stop.
    pub(super) fn accept_until_stop(
        &self,
        listener: TcpListener,
        mut take: impl FnMut(std::net::TcpStream),
        shut: impl Fn(),
    ) {
        let mut listener = Some(listener);
        loop {
            let mut timeout = None;
            let wanted = {
                let mut inner = self.lock();
                if let Wanted::RefuseUntil(until) = inner.wanted {
                    let rest = until.saturating_duration_since(Instant::now());
                    if rest.is_zero() {
                        inner.wanted = Wanted::Listen;
                        self.closed.store(false, Ordering::Release);
                    }
                    timeout = Some(rest);
                }
                inner.wanted
            };
            match wanted {
                Wanted::Listen if listener.is_none() => {
                    timeout = None;
                    match listen(self.address) {
                        Ok(again) => listener = Some(again),
                        Err(error) => {
                            log::warn!("sandbox: cannot listen on {} again yet: {error}", self.address);
                            timeout = Some(LISTEN_AGAIN_AFTER);
                        }
                    }
                }
                Wanted::Listen => timeout = None,
                Wanted::Refuse | Wanted::RefuseUntil(_) | Wanted::Stop => {
                    listener = None;
                    shut();
                }
            }
            {
                let mut inner = self.lock();
                inner.listening = listener.is_some();
                self.changed.notify_all();
                if inner.wanted == Wanted::Stop && listener.is_none() {
                    return;
                }
            }
            self.wait(listener.as_ref(), timeout);
            if let Some(listener) = &listener {
                loop {
                    match listener.accept() {
                        Ok((stream, _)) => take(stream),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => {
                            // Out of descriptors, as a rule: without a pause this would spin.
                            log::warn!("sandbox: accept: {error}");
                            self.stopped_within(LISTEN_AGAIN_AFTER);
                            break;
                        }
                    }
                }
            }
        }
    }

    fn wait(&self, listener: Option<&TcpListener>, timeout: Option<Duration>) {
        // Rounded up, so that a rest of under a millisecond does not spin.
        let timeout = timeout.and_then(|time| Timespec::try_from(time + Duration::from_millis(1)).ok());
        let mut watched = vec![PollFd::new(&self.wake, PollFlags::IN)];
        if let Some(listener) = listener {
            watched.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        }
        // An interrupted or failed poll only means that the loop looks once more.
        let _ = poll(&mut watched, timeout.as_ref());
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    // The standard library sets SO_REUSEADDR, which the holder has as well.
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
