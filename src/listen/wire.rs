//! HTTP/1.1 on one connection: reads whole requests within limits and a deadline, builds answers in one piece.
//!
//! Shared by the agent's listener and the sandbox vendor. Knows nothing of routes, vendors, faults or counting. Bodies
//! need a `Content-Length` (411 otherwise), as the agent sends them.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Largest request head, bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Largest request body, bytes; a route may allow less.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Most header lines.
const HEADERS_MAX: usize = 64;

/// A connection whose silences can be bounded.
pub(crate) trait Stream {
    fn read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)
    }
}

impl Stream for UnixStream {
    fn read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(timeout)
    }
}

/// What the two servers look at in a request's head.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    pub method: Method,
    /// Path with its query.
    pub target: String,
    pub authorization: Option<String>,
    pub host: Option<String>,
    /// `X-Reference`, or empty.
    pub reference: String,
    pub keep_alive: bool,
    expects_continue: bool,
    /// Its own length.
    pub bytes: usize,
    pub body_bytes: usize,
}

impl Head {
    /// The path without the query.
    pub fn path(&self) -> &str {
        self.target.split_once('?').map_or(self.target.as_str(), |(path, _)| path)
    }

    /// The whole query, as it stands; empty where there is none.
    pub fn query_text(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// The value of a query parameter, as it stands.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query_text().split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    #[default]
    Post,
    Put,
    Delete,
    Other,
}

/// Why no request came.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The peer closed, fell silent or broke off, before a head was whole.
    Gone,
    /// Not a request that can be read: answer this status and close.
    Bad(u16, &'static str),
}

/// One connection's reading side.
pub(crate) struct Incoming<'a, S> {
    stream: &'a S,
    buffer: Vec<u8>,
    filled: usize,
    /// Longest silence between two requests.
    idle: Duration,
    /// Longest time from a request's first byte to its last.
    whole: Duration,
    timeout_in_force: Duration,
}

impl<'a, S: Stream> Incoming<'a, S>
where
    &'a S: Read + Write,
{
    pub fn new(stream: &'a S, idle: Duration, whole: Duration) -> io::Result<Self> {
        stream.read_timeout(Some(idle))?;
        Ok(Self { stream, buffer: vec![0; 4 * 1024], filled: 0, idle, whole, timeout_in_force: idle })
    }

    /// Reads until a head is whole.
    pub fn head(&mut self) -> Result<Head, Broken> {
        let mut deadline = (self.filled > 0).then(|| Instant::now() + self.whole);
        loop {
            if self.filled > 0
                && let Some(head) = parse_head(&self.buffer[..self.filled.min(HEAD_BYTES_MAX)])?
            {
                return Ok(head);
            }
            // By its own length, not by what happens to be in the buffer, which an earlier body may have made large.
            if self.filled >= HEAD_BYTES_MAX {
                return Err(Broken::Bad(431, "request head too large"));
            }
            self.read_more(deadline)?;
            deadline.get_or_insert_with(|| Instant::now() + self.whole);
        }
    }

    /// Reads until the body that belongs to `head` is whole. [`Self::done`] gives the next request its turn.
    pub fn body(&mut self, head: &Head) -> Result<&[u8], Broken> {
        let end = head.bytes + head.body_bytes;
        if self.filled < end {
            if head.expects_continue {
                self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(|_| Broken::Gone)?;
            }
            let deadline = Some(Instant::now() + self.whole);
            while self.filled < end {
                self.read_more(deadline)?;
            }
        }
        Ok(&self.buffer[head.bytes..end])
    }

    /// Forgets a request that has been dealt with.
    pub fn done(&mut self, head: &Head) {
        let end = (head.bytes + head.body_bytes).min(self.filled);
        self.buffer.copy_within(end..self.filled, 0);
        self.filled -= end;
    }

    fn read_more(&mut self, deadline: Option<Instant>) -> Result<(), Broken> {
        let timeout = match deadline {
            None => self.idle,
            Some(at) => at.saturating_duration_since(Instant::now()),
        };
        if timeout.is_zero() {
            return Err(Broken::Gone);
        }
        // A system call that whole-in-one-packet requests on a kept connection never make.
        if timeout != self.timeout_in_force {
            self.stream.read_timeout(Some(timeout)).map_err(|_| Broken::Gone)?;
            self.timeout_in_force = timeout;
        }
        if self.filled == self.buffer.len() {
            let larger = (self.buffer.len() * 2).min(HEAD_BYTES_MAX + BODY_BYTES_MAX);
            self.buffer.resize(larger, 0);
        }
        loop {
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(Broken::Gone),
                Ok(count) => {
                    self.filled += count;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken::Gone),
            }
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, Broken> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let size = match request.parse(bytes) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Broken::Bad(400, "not an HTTP/1.1 request")),
    };
    let mut head = Head {
        method: match request.method {
            Some("GET") => Method::Get,
            Some("POST") => Method::Post,
            Some("PUT") => Method::Put,
            Some("DELETE") => Method::Delete,
            _ => Method::Other,
        },
        target: request.path.unwrap_or("/").to_owned(),
        keep_alive: request.version == Some(1),
        bytes: size,
        ..Head::default()
    };
    let mut length = None;
    for header in request.headers.iter() {
        let text = || std::str::from_utf8(header.value).unwrap_or("").trim();
        let named = |name: &str| header.name.eq_ignore_ascii_case(name);
        if named("content-length") {
            let digits = text();
            let value = digits.parse::<usize>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
            match value {
                Some(value) if length.is_none_or(|known| known == value) => length = Some(value),
                _ => return Err(Broken::Bad(400, "Content-Length is not one number")),
            }
        } else if named("transfer-encoding") {
            return Err(Broken::Bad(411, "a body needs a Content-Length here"));
        } else if named("authorization") {
            head.authorization = Some(text().to_owned());
        } else if named("host") {
            if head.host.is_some() {
                return Err(Broken::Bad(400, "two Host headers"));
            }
            head.host = Some(text().to_owned());
        } else if named("x-reference") {
            head.reference = text().to_owned();
        } else if named("connection") {
            let value = text();
            if value.split(',').any(|part| part.trim().eq_ignore_ascii_case("close")) {
                head.keep_alive = false;
            } else if value.eq_ignore_ascii_case("keep-alive") {
                head.keep_alive = true;
            }
        } else if named("expect") {
            head.expects_continue = text().eq_ignore_ascii_case("100-continue");
        }
    }
    head.body_bytes = length.unwrap_or(0);
    if head.body_bytes > BODY_BYTES_MAX {
        return Err(Broken::Bad(413, "request body over 1 MiB"));
    }
    Ok(Some(head))
}

/// An answer, until it is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub status: u16,
    /// Whole header lines, each with its CR LF, besides length and connection.
    pub headers: String,
    pub body: String,
    /// It says plainly that no message will go out.
    pub refusal: bool,
}

impl Answer {
    pub fn json(status: u16, body: String) -> Self {
        Self { status, headers: "Content-Type: application/json\r\n".to_owned(), body, refusal: false }
    }

    pub fn text(status: u16, body: impl Into<String>) -> Self {
        let headers = "Content-Type: text/plain; charset=utf-8\r\n".to_owned();
        Self { status, headers, body: body.into(), refusal: false }
    }

    pub fn header(&mut self, name: &str, value: &str) {
        // Rules come from people; a line break must not become a second header by accident.
        let clean = |text: &str| text.replace(['\r', '\n'], " ");
        let _ = write!(self.headers, "{}: {}\r\n", clean(name), clean(value));
    }

    /// Puts the head into `out` (cleared first); `length` is what it announces, nothing where `None`.
    pub fn write_head(&self, out: &mut Vec<u8>, length: Option<u64>, keep_alive: bool) {
        out.clear();
        let _ = write!(out, "HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        out.extend_from_slice(self.headers.as_bytes());
        if let Some(length) = length {
            let _ = write!(out, "Content-Length: {length}\r\n");
        }
        if !keep_alive {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// The whole answer in `out`.
    pub fn write_whole(&self, out: &mut Vec<u8>, keep_alive: bool) {
        self.write_head(out, Some(self.body.len() as u64), keep_alive);
        out.extend_from_slice(self.body.as_bytes());
    }
}

/// The standard phrase of a status.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Status",
    }
}
