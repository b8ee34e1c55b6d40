//! The sandbox's transport: accepts, reads requests, applies faults on the wire. Knows no vendor's format.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::SandboxOptions;
use super::faults::{Action, Cut, Facts, Faults, Rule, Stage, When};
use super::ledger::Ledger;
use super::vendor::Vendor;

const HEAD_BYTES_MAX: usize = 16 * 1024;
const BODY_BYTES_MAX: usize = 1024 * 1024;
const CONNECTIONS_MAX: usize = 1024;

/// The server; shared by its threads.
pub(super) struct Server {
    addr: SocketAddr,
    options: SandboxOptions,
    ledger: Ledger,
    faults: Faults,
    vendor: Vendor,
    stop: AtomicBool,
    refusing: Mutex<bool>,
    changed: Condvar,
    connections: Mutex<HashMap<u64, TcpStream>>,
    next: AtomicU64,
}

/// A whole request.
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
    /// A query parameter, without percent-decoding.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.path.split_once('?')?;
        query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
    }
}

/// An answer before any fault.
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(super) fn start(options: SandboxOptions) -> std::io::Result<Arc<Self>> {
        if !options.listen.ip().is_loopback() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the sandbox listens on a loopback address only",
            ));
        }
        let listener = TcpListener::bind(options.listen)?;
        let server = Arc::new(Self {
            addr: listener.local_addr()?,
            faults: Faults::new(options.faults.clone(), 1),
            vendor: Vendor::new(&options),
            options,
            ledger: Ledger::default(),
            stop: AtomicBool::new(false),
            refusing: Mutex::new(false),
            changed: Condvar::new(),
            connections: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let of_thread = server.clone();
        crate::thread::spawn("sandbox", move || of_thread.accept(listener))?;
        Ok(server)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }
    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
    pub(super) fn set_faults(&self, rules: Vec<Rule>) {
        self.faults.set(rules);
    }

    pub(super) fn refuse(&self, refuse: bool) {
        let was = std::mem::replace(&mut *lock(&self.refusing), refuse);
        self.changed.notify_all();
        if refuse && !was {
            let _ = TcpStream::connect(self.addr); // wakes `accept`, which then drops the listener
            self.end_connections();
            // Returns when it is true: nobody is let in any more.
            while !self.stop.load(Ordering::Relaxed) && TcpStream::connect(self.addr).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        } else if !refuse && was {
            while !self.stop.load(Ordering::Relaxed) && TcpStream::connect(self.addr).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    pub(super) fn stop(&self) {
        if !self.stop.swap(true, Ordering::SeqCst) {
            self.changed.notify_all();
            let _ = TcpStream::connect(self.addr);
            self.end_connections();
        }
    }

    fn end_connections(&self) {
        for stream in lock(&self.connections).values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn accept(self: Arc<Self>, listener: TcpListener) {
        let mut listener = Some(listener);
        while !self.stop.load(Ordering::Relaxed) {
            if *lock(&self.refusing) {
                listener = None;
                let guard = lock(&self.refusing);
                let _unused = self.changed.wait_timeout_while(guard, Duration::from_secs(1), |refusing| {
                    *refusing && !self.stop.load(Ordering::Relaxed)
                });
                continue;
            }
            let Some(open) = &listener else {
                listener = TcpListener::bind(self.addr).ok();
                if listener.is_none() {
                    std::thread::sleep(Duration::from_millis(2));
                }
                continue;
            };
            let Ok((stream, _)) = open.accept() else {
                std::thread::sleep(Duration::from_millis(5)); // EMFILE and the like: live on
                continue;
            };
            if self.stop.load(Ordering::Relaxed) || *lock(&self.refusing) {
                continue;
            }
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            if let Ok(copy) = stream.try_clone() {
                let mut connections = lock(&self.connections);
                if connections.len() >= CONNECTIONS_MAX {
                    continue;
                }
                connections.insert(id, copy);
            }
            let server = self.clone();
            let spawned = crate::thread::spawn("sandbox-conn", move || {
                server.serve(stream);
                lock(&server.connections).remove(&id);
            });
            if spawned.is_err() {
                lock(&self.connections).remove(&id);
            }
        }
    }

    fn serve(&self, mut stream: TcpStream) {
        self.ledger.connection();
        let _ = stream.set_nodelay(true);
        if let Some(rule) = self.faults.decide(Stage::Accept, &Facts::default()) {
            self.pause(rule.delay);
            return end(&stream, matches!(rule.then, Action::Reset(_)));
        }
        let mut buffer = Vec::with_capacity(4096);
        while let Some(request) = self.read(&mut stream, &mut buffer) {
            if !self.answer(&mut stream, &request) {
                return;
            }
        }
    }

    /// One whole request, or `None` at the end of the connection or on nonsense.
    fn read(&self, stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Request> {
        let (head, mut request) = loop {
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut parsed = httparse::Request::new(&mut headers);
            match parsed.parse(buffer) {
                Ok(httparse::Status::Complete(length)) => {
                    let request = Request {
                        method: parsed.method?.to_owned(),
                        path: parsed.path?.to_owned(),
                        headers: parsed
                            .headers
                            .iter()
                            .map(|header| {
                                (
                                    header.name.to_ascii_lowercase(),
                                    String::from_utf8_lossy(header.value).into_owned(),
                                )
                            })
                            .collect(),
                        body: Vec::new(),
                    };
                    break (length, request);
                }
                Ok(httparse::Status::Partial) if buffer.len() < HEAD_BYTES_MAX => more(stream, buffer)?,
                _ => {
                    let _ = stream.write_all(
                        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    );
                    return None;
                }
            }
        };
        let reference = request.header("x-reference").unwrap_or_default().to_owned();
        let length = request
            .header("content-length")
            .map_or(Some(0), |text| text.parse::<usize>().ok())
            .filter(|length| *length <= BODY_BYTES_MAX)?;
        let facts = Facts {
            path: &request.path,
            reference: &reference,
            recipient: "",
            carries_message: Vendor::carries_message(&request.path),
        };
        if let Some(rule) = self.faults.decide(Stage::Head, &facts) {
            self.ledger.head_only(&reference);
            self.pause(rule.delay);
            end(stream, matches!(rule.then, Action::Reset(_)));
            return None;
        }
        buffer.drain(..head);
        while buffer.len() < length {
            if more(stream, buffer).is_none() {
                self.ledger.head_only(&reference);
                return None;
            }
        }
        request.body = buffer.drain(..length).collect();
        Some(request)
    }

    /// Answers; false when the connection is to end.
    fn answer(&self, stream: &mut TcpStream, request: &Request) -> bool {
        if let Some(path) = request.path.strip_prefix("/__sandbox/") {
            let response = self.control(path.split('?').next().unwrap_or_default(), request);
            return write(stream, &response).is_ok();
        }
        let message = self.vendor.message(request);
        if let Some(message) = &message {
            let _arrived = self.ledger.arrive(&message.reference, &message.recipient);
        }
        let (reference, recipient) =
            message.as_ref().map_or(("", ""), |message| (&message.reference, &message.recipient));
        let facts = Facts { path: &request.path, reference, recipient, carries_message: message.is_some() };
        let magic =
            || message.as_ref().filter(|_| self.options.magic).and_then(|message| self.vendor.magic(message));
        let rule = self.faults.decide(Stage::Read, &facts).or_else(magic);
        self.pause(self.options.delay + rule.as_ref().map_or(Duration::ZERO, |rule| rule.delay));
        let response = match rule.as_ref().map(|rule| &rule.then) {
            Some(Action::Status { status, headers, body }) => {
                let mut headers = headers.clone();
                headers.push(("Content-Type".into(), "application/json".into()));
                Response {
                    status: *status,
                    headers,
                    body: body.clone().unwrap_or_else(|| "{}".into()).into_bytes(),
                }
            }
            Some(Action::VendorCode(code)) => self.vendor.refusal(*code, reference),
            Some(Action::Html(status)) => Response {
                status: *status,
                headers: vec![("Content-Type".into(), "text/html".into())],
                body: b"<html><body><h1>Bad Gateway</h1></body></html>".to_vec(),
            },
            Some(Action::Redirect { status, location }) => Response {
                status: *status,
                headers: vec![(
                    "Location".into(),
                    location.clone().unwrap_or_else(|| format!("http://{}/moved", self.addr)),
                )],
                body: Vec::new(),
            },
            Some(Action::Hang(time)) => {
                self.pause(time.unwrap_or(Duration::from_secs(3600)));
                end(stream, false);
                return false;
            }
            Some(Action::Close(When::Read)) => {
                end(stream, false);
                return false;
            }
            Some(Action::Reset(When::Read)) => {
                end(stream, true);
                return false;
            }
            Some(Action::Garbage) => {
                let _ = stream.write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n");
                end(stream, false);
                return false;
            }
            _ => self.vendor.answer(request, message.as_ref(), &self.ledger),
        };
        if message.is_some() {
            match response.status {
                200..=299 => self.ledger.accept(),
                400..=499 => self.ledger.refuse(reference),
                _ => {}
            }
        }
        match rule.map(|rule| rule.then.clone()) {
            Some(Action::Cut(cut)) => {
                let bytes = bytes(&response);
                let head = bytes.len() - response.body.len();
                let until = match cut {
                    Cut::Head => head / 2,
                    Cut::Body => head + response.body.len() / 2,
                };
                let _ = stream.write_all(&bytes[..until]);
                end(stream, false);
                false
            }
            Some(Action::Unframed) => {
                let _ = stream.write_all(
                    format!("HTTP/1.1 {} X\r\nContent-Type: application/json\r\n\r\n", response.status)
                        .as_bytes(),
                );
                let _ = stream.write_all(&response.body);
                end(stream, false);
                false
            }
            Some(Action::Huge(size)) => {
                let _ =
                    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes());
                let block = [b' '; 8192];
                let mut left = size;
                while left > 0 && stream.write_all(&block[..left.min(8192) as usize]).is_ok() {
                    left -= left.min(8192);
                }
                false
            }
            Some(
                Action::Close(when @ (When::Answer | When::Idle(_)))
                | Action::Reset(when @ (When::Answer | When::Idle(_))),
            ) => {
                let _ = write(stream, &response);
                if let When::Idle(time) = when {
                    self.pause(time);
                }
                end(stream, false);
                false
            }
            _ => write(stream, &response).is_ok() && request.header("connection") != Some("close"),
        }
    }

    /// Waits, but not beyond a stop or a refusal.
    fn pause(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        let guard = lock(&self.refusing);
        let _unused = self
            .changed
            .wait_timeout_while(guard, time, |refusing| !*refusing && !self.stop.load(Ordering::Relaxed));
    }

    fn control(&self, what: &str, request: &Request) -> Response {
        match (request.method.as_str(), what) {
            ("GET", "count") => {
                Response::json(200, format!("{{\"arrived\":{}}}\n", self.ledger.totals().arrived))
            }
            ("GET", "arrivals") => {
                let totals = self.ledger.totals();
                let one = request.query("reference");
                let list: serde_json::Map<String, serde_json::Value> = self
                    .ledger
                    .references(100_000, |_| true)
                    .into_iter()
                    .filter(|(reference, _)| one.is_none_or(|one| one == reference))
                    .map(|(reference, counts)| (reference, counts.arrived.into()))
                    .collect();
                let body = serde_json::json!({
                    "arrived": totals.arrived, "references": totals.references, "repeated": totals.repeated, "duplicates": totals.duplicates,
                    "accepted": totals.accepted, "refused": totals.refused, "heads_only": totals.heads_only, "tokens": totals.tokens,
                    "connections": totals.connections, "per_reference": list,
                });
                Response::json(200, format!("{body}\n"))
            }
            ("POST", "faults") => {
                let text = String::from_utf8_lossy(&request.body).into_owned();
                match text
                    .lines()
                    .filter(|line| !line.trim().is_empty())
                    .map(Rule::parse)
                    .collect::<Result<Vec<_>, _>>()
                {
                    Ok(rules) => {
                        self.faults.set(rules);
                        Response::json(200, "{}\n")
                    }
                    Err(error) => Response::json(400, format!("{error}\n")),
                }
            }
            ("DELETE", "faults") => {
                self.faults.set(Vec::new());
                Response::json(200, "{}\n")
            }
            ("POST", "refuse") => {
                let time =
                    Duration::from_millis(request.query("ms").and_then(|ms| ms.parse().ok()).unwrap_or(2000));
                *lock(&self.refusing) = true;
                let _ = TcpStream::connect(self.addr);
                // The asking connection ends with the others; the port comes back by itself.
                let addr = self.addr;
                self.end_connections();
                std::thread::sleep(time);
                *lock(&self.refusing) = false;
                self.changed.notify_all();
                log::info!("sandbox: {addr} is open again");
                Response::json(200, "{}\n")
            }
            ("POST", "reset") => {
                self.ledger.reset();
                Response::json(200, "{}\n")
            }
            _ => Response::json(404, "unknown control path\n"),
        }
    }
}

fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut block = [0u8; 8192];
    match stream.read(&mut block) {
        Ok(0) | Err(_) => None,
        Ok(length) => {
            buffer.extend_from_slice(&block[..length]);
            Some(())
        }
    }
}

fn end(stream: &TcpStream, reset: bool) {
    if reset {
        let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    } else {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn bytes(response: &Response) -> Vec<u8> {
    let mut out = Vec::with_capacity(160 + response.body.len());
    let _ = write!(out, "HTTP/1.1 {} X\r\nContent-Length: {}\r\n", response.status, response.body.len());
    for (name, value) in &response.headers {
        let _ = write!(out, "{name}: {value}\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&response.body);
    out
}

fn write(stream: &mut TcpStream, response: &Response) -> std::io::Result<()> {
    stream.write_all(&bytes(response))
}
