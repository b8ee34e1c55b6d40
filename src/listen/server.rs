//! Accepting and serving: a thread for each address, a thread for each connection, bounds on everything.
//!
//! A request is looked up from its head; what does not exist, is not allowed or is too large is answered without reading
//! its body, and the connection is closed. At the stop nothing more is accepted, requests under way are answered, idle
//! connections are shut.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::Context;
use super::guard::{self, Keys, Peer};
use super::routes::{self, Found, Request};
use super::wire::{Answer, Broken, Head, Incoming, Stream};
use crate::clock;
use crate::config::ListenSettings;
use crate::thread::{spawn, spawn_guest};

/// Most connections at once on each address, so that strangers on one never keep people off the other; more are closed.
const CONNECTIONS_MAX: usize = 64;
/// Longest silence between two requests of a kept connection.
const IDLE: Duration = Duration::from_secs(5);
/// Longest time from a request's first byte to its last.
const WHOLE_REQUEST: Duration = Duration::from_secs(10);
/// Longest wait for a client that does not read its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why it cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("[listen] {place}: {source}")]
pub struct ListenError {
    /// The address or path.
    pub place: String,
    /// Why.
    pub source: io::Error,
}

/// Addresses that are bound, before anything is served.
pub struct Bound {
    unix: Option<(UnixListener, PathBuf)>,
    tcp: Option<(TcpListener, Keys)>,
}

/// Binds what the settings name. The socket is a convenience for people and may be missing (its folder is made by the
/// service manager); the address was asked for, and reports may depend on it.
pub fn bind(settings: &ListenSettings) -> Result<Bound, ListenError> {
    let unix = match bind_socket(&settings.socket) {
        Ok(listener) => Some((listener, settings.socket.clone())),
        Err(error) => {
            log::warn!(
                "{}: no local socket ({error}); commands that need the running agent will not reach it",
                settings.socket.display()
            );
            None
        }
    };
    let tcp = match settings.http {
        None => None,
        Some(address) => {
            let failed = |source| ListenError { place: address.to_string(), source };
            let listener = TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            Some((listener, Keys { address, token: settings.token.clone() }))
        }
    };
    Ok(Bound { unix, tcp })
}

/// A socket file that nobody answers on is a dead start's; one that answers is somebody's.
fn bind_socket(path: &Path) -> io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok() {
        match UnixStream::connect(path) {
            Ok(_) => return Err(io::Error::other("another process listens on it")),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            Err(error) => return Err(error),
        }
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The running listeners.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

struct Shared {
    context: Context,
    stop: AtomicBool,
    bell: OwnedFd,
    /// To be shut at the stop.
    connections: Mutex<Book>,
    ended: Condvar,
}

/// Open connections by number: the address they came to, and a handle to shut them.
type Book = HashMap<u64, (&'static str, Box<dyn Connection>)>;

trait Connection: Send {
    fn shut(&self);
}
impl Connection for TcpStream {
    fn shut(&self) {
        let _ = self.shutdown(Shutdown::Read); // fails where the peer has gone already
    }
}
impl Connection for UnixStream {
    fn shut(&self) {
        let _ = self.shutdown(Shutdown::Read);
    }
}

impl Shared {
    fn connections(&self) -> std::sync::MutexGuard<'_, Book> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts serving.
pub fn start(bound: Bound, context: Context) -> io::Result<Server> {
    let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
    let shared = Arc::new(Shared {
        context,
        stop: AtomicBool::new(false),
        bell,
        connections: Mutex::default(),
        ended: Condvar::new(),
    });
    let mut threads = Vec::new();
    let mut socket = None;
    if let Some((listener, path)) = bound.unix {
        log::info!("listening on {}", path.display());
        socket = Some(path);
        let shared = shared.clone();
        threads.push(spawn("listen-unix", move || {
            accept(&shared, "unix", &listener, |number| {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                let handle = stream.try_clone()?;
                let peer =
                    Peer::Socket { who: crate::who::peer(&stream), ours: crate::who::is_ours(&stream) };
                Ok((Box::new(handle) as _, job(&shared, number, stream, peer, None)))
            });
        })?);
    }
    if let Some((listener, keys)) = bound.tcp {
        log::info!("listening on http://{}", keys.address);
        let shared = shared.clone();
        threads.push(spawn("listen-http", move || {
            accept(&shared, "http", &listener, |number| {
                let (stream, _): (_, SocketAddr) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                let handle = stream.try_clone()?;
                Ok((Box::new(handle) as _, job(&shared, number, stream, Peer::Tcp, Some(keys.clone()))))
            });
        })?);
    }
    Ok(Server { shared, threads, socket })
}

type Job = Box<dyn FnOnce() + Send>;

fn accept(
    shared: &Arc<Shared>,
    address: &'static str,
    listener: &impl std::os::fd::AsFd,
    mut next: impl FnMut(u64) -> io::Result<(Box<dyn Connection>, Job)>,
) {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    while !shared.stop.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&shared.bell, PollFlags::IN)];
        if poll(&mut fds, None).is_err() || shared.stop.load(Ordering::Relaxed) {
            continue;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (handle, job) = match next(number) {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                // No descriptors left, most likely: the listener stays readable, so do not spin on it.
                log::warn!("a connection could not be accepted: {error}");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        {
            let mut connections = shared.connections();
            if connections.values().filter(|(of, _)| *of == address).count() >= CONNECTIONS_MAX {
                log::warn!("more than {CONNECTIONS_MAX} connections ({address}): one was closed at once");
                continue; // `job` drops the stream
            }
            let _new = connections.insert(number, (address, handle));
        }
        if let Err(error) = spawn_guest(job) {
            log::warn!("no thread for a connection: {error}");
            let _gone = shared.connections().remove(&number);
        }
    }
}

/// Takes a connection out of the book when its thread ends, also by a panic (which ends that connection alone).
struct Registered {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _gone = self.shared.connections().remove(&self.number);
        self.shared.ended.notify_all();
    }
}

fn job<S>(shared: &Arc<Shared>, number: u64, stream: S, peer: Peer, keys: Option<Keys>) -> Job
where
    S: Stream + Send + 'static,
    for<'s> &'s S: Read + Write,
{
    let shared = shared.clone();
    Box::new(move || {
        let registered = Registered { shared, number };
        serve(&registered.shared, &stream, &peer, keys.as_ref());
        drop(stream);
    })
}

/// Requests of one connection, until either side has had enough.
fn serve<S>(shared: &Shared, stream: &S, peer: &Peer, keys: Option<&Keys>)
where
    S: Stream,
    for<'s> &'s S: Read + Write,
{
    let Ok(mut incoming) = Incoming::new(stream, IDLE, WHOLE_REQUEST) else { return };
    let mut out = Vec::with_capacity(512);
    let mut writer: &S = stream;
    while !shared.stop.load(Ordering::Relaxed) {
        let head = match incoming.head() {
            Ok(head) => head,
            Err(Broken::Gone) => return,
            Err(Broken::Bad(status, why)) => {
                return refuse(stream, &Answer::text(status, format!("{why}\n")), &mut out);
            }
        };
        let (route, names) = match look_up(&head, keys) {
            Ok(found) => found,
            Err(answer) => return refuse(stream, &answer, &mut out),
        };
        let Ok(body) = incoming.body(&head) else { return };
        let answer =
            (route.answer)(&shared.context, &Request { names, query: head.query_text(), body, peer });
        let keep = head.keep_alive && !shared.stop.load(Ordering::Relaxed);
        answer.write_whole(&mut out, keep);
        if writer.write_all(&out).is_err() || !keep {
            return;
        }
        incoming.done(&head);
    }
}

/// From the head alone: the call, or the answer that ends it.
pub(crate) fn look_up<'h>(
    head: &'h Head,
    keys: Option<&Keys>,
) -> Result<(&'static routes::Route, [&'h str; 2]), Answer> {
    let (route, names) = match routes::find(head.method, head.path()) {
        Found::Route(route, names) => (route, names),
        Found::Method(allowed) => {
            let mut answer = Answer::text(405, "method not allowed\n");
            answer.header("Allow", allowed);
            return Err(answer);
        }
        Found::Nothing => return Err(Answer::text(404, "not found\n")),
    };
    match guard::admit(route.guard, keys, head.host.as_deref(), head.authorization.as_deref()) {
        Ok(()) if head.body_bytes > route.body_bytes_max => {
            Err(Answer::text(413, format!("at most {} bytes\n", route.body_bytes_max)))
        }
        Ok(()) => match route.unknown(head.query_text()) {
            Some(name) => Err(super::sentence(422, &unknown_parameter(route, name))),
            None => Ok((route, names)),
        },
        Err(401) => {
            let mut answer =
                Answer::text(401, "the token of [listen] is needed: Authorization: Bearer ...\n");
            answer.header("WWW-Authenticate", "Bearer");
            Err(answer)
        }
        Err(status) => Err(Answer::text(status, "this server does not answer under that host name\n")),
    }
}

/// For people: which parameter of the query, and which there are.
fn unknown_parameter(route: &routes::Route, name: &str) -> String {
    let known = route.query.unwrap_or_default();
    let known = if known.is_empty() { "none here".to_owned() } else { known.join(", ") };
    let name: String = name.chars().take(40).collect();
    format!("unknown parameter {name:?}; known: {known}. Nothing was done")
}

/// Answers and closes, letting the answer out before unread bytes would reset the connection.
fn refuse<S>(stream: &S, answer: &Answer, out: &mut Vec<u8>)
where
    S: Stream,
    for<'s> &'s S: Read + Write,
{
    answer.write_whole(out, false);
    let mut both: &S = stream;
    if both.write_all(out).is_err() || stream.read_timeout(Some(Duration::from_millis(100))).is_err() {
        return;
    }
    let until = Instant::now() + Duration::from_millis(500);
    let mut rest = [0; 4096];
    while Instant::now() < until && matches!(both.read(&mut rest), Ok(count) if count > 0) {}
}

impl Server {
    /// Stops: nothing more is accepted, what is under way is answered. True if all ended before `deadline`.
    pub fn stop(self, deadline: Instant) -> bool {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
        for thread in self.threads {
            let _ = thread.join();
        }
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
        let mut open = self.shared.connections();
        for (_, connection) in open.values() {
            connection.shut();
        }
        while !open.is_empty() {
            let left = deadline.saturating_duration_since(clock::mono());
            if left.is_zero() {
                return false;
            }
            open = self.shared.ended.wait_timeout(open, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
