//! Delivery reports: kept for polling until confirmed, and posted to the webhook where one is set.
//!
//! Keeps the newest 100,000 messages, in memory only (a recipient's number is part of the protocol here; no
//! text is kept). Polled keys are lower case, posted keys upper case, as the vendor writes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::rule::ReportPlan;

/// How many messages are remembered; the vendor keeps them by days, a sandbox by memory.
const MESSAGES_MAX: usize = 100_000;
/// Most reports in one polled answer, as the vendor documents.
const POLLED_MAX: usize = 1_000;
/// How often a report is posted until the receiver answers 200, and the pause between.
const POSTS_MAX: u8 = 3;
const POST_AGAIN_AFTER: Duration = Duration::from_secs(1);
const POST_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of the receiver's answer is read, bytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// How a message type is reported: MEDIA and the code for "delivered" (vendor's code page, 2026-07).
pub(super) fn media(message_type: &str) -> (&'static str, u16) {
    match message_type {
        "sms" => ("SMS", 4100),
        "lms" => ("LMS", 6600),
        "mms" => ("MMS", 6600),
        "rcs" => ("RSS", 8000),
        "ntalk" => ("NTK", 5000),
        "at" | "ai" => ("KAT", 7000),
        // The vendor's public pages name no MEDIA for brand messages.
        _ => ("KBM", 7000),
    }
}

/// One accepted message, as far as its reports need it.
pub(super) struct Accepted {
    pub reference: Box<str>,
    pub recipient: Box<str>,
    pub user_info: Option<Box<str>>,
    pub media: &'static str,
    pub delivered_code: u16,
    pub plan: ReportPlan,
}

struct Record {
    accepted: Accepted,
    at_seconds: u64,
    due: Instant,
}

/// One report: the message's number, and which of its reports (0 or 1).
type Item = (u64, u8);

#[derive(Default)]
struct Inner {
    /// Number of the first record in `records`.
    first: u64,
    records: VecDeque<Record>,
    /// What polling still offers.
    unconfirmed: BTreeSet<Item>,
    /// What the webhook still has to say, by due time.
    to_post: BTreeMap<(Instant, u64), (Item, u8)>,
    posts_queued: u64,
    stopping: bool,
}

/// All reports of one sandbox.
pub(super) struct Reports {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Makes message keys differ between starts, since receivers remember them.
    start: String,
    delay: Duration,
    webhook: Option<Webhook>,
}

impl Reports {
    pub(super) fn new(delay: Duration, webhook: Option<Webhook>) -> Self {
        let millis = crate::clock::wall_ms();
        Self {
            inner: Mutex::new(Inner { first: 1, ..Inner::default() }),
            changed: Condvar::new(),
            start: format!("{millis:x}"),
            delay,
            webhook,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an accepted message; gives the vendor's key for it.
    pub(super) fn accept(&self, accepted: Accepted) -> String {
        let now = Instant::now();
        let due = now + self.delay;
        let at_seconds = crate::clock::wall_ms().unsigned_abs() / 1000;
        let mut inner = self.lock();
        let number = inner.first + inner.records.len() as u64;
        let count: u8 = match accepted.plan {
            ReportPlan::Silent => 0,
            ReportPlan::Delivered | ReportPlan::Result(_) => 1,
            ReportPlan::Twice | ReportPlan::Fallback => 2,
        };
        for index in 0..count {
            inner.unconfirmed.insert((number, index));
            if self.webhook.is_some() {
                inner.queue_post(due, (number, index), 0);
            }
        }
        inner.records.push_back(Record { accepted, at_seconds, due });
        if inner.records.len() > MESSAGES_MAX {
            inner.records.pop_front();
            let gone = inner.first;
            inner.first += 1;
            inner.unconfirmed.remove(&(gone, 0));
            inner.unconfirmed.remove(&(gone, 1));
        }
        if count > 0 && self.webhook.is_some() {
            self.changed.notify_one();
        }
        self.key(number)
    }

    fn key(&self, number: u64) -> String {
        format!("sb{}-{number}", self.start)
    }

    fn number(&self, key: &str) -> Option<u64> {
        key.strip_prefix("sb")?.strip_prefix(self.start.as_str())?.strip_prefix('-')?.parse().ok()
    }

    /// The report with lower-case keys; `None` when its message is forgotten.
    fn report(&self, inner: &Inner, (number, index): Item) -> Option<Map<String, Value>> {
        let record = inner.records.get(number.checked_sub(inner.first)? as usize)?;
        let accepted = &record.accepted;
        let fallback = accepted.plan == ReportPlan::Fallback;
        let second = fallback && index == 1;
        let result = match accepted.plan {
            ReportPlan::Result(code) => code,
            ReportPlan::Fallback if second => 4100,
            ReportPlan::Fallback => 7308,
            _ => accepted.delivered_code,
        };
        let media = if second { "SMS" } else { accepted.media };
        let key = self.key(number);
        let mut report = Map::new();
        let mut put = |name: &str, value: String| report.insert(name.to_owned(), Value::String(value));
        put("device", if media.starts_with('K') { "KAO" } else { media }.to_owned());
        put("msgid", if second { format!("{key}-2") } else { key.clone() });
        put("cmsgid", key);
        put("phone", accepted.recipient.to_string());
        put("media", media.to_owned());
        put("unixtime", record.at_seconds.to_string());
        put("result", result.to_string());
        put("userdata", accepted.user_info.as_deref().unwrap_or("").to_owned());
        put("wapinfo", if media.starts_with('K') { "KAO" } else { "SKT" }.to_owned());
        put("resend_flag", if second { "1" } else { "0" }.to_owned());
        put("refkey", accepted.reference.to_string());
        Some(report)
    }

    /// Up to 1,000 due reports that were not confirmed yet, oldest first.
    pub(super) fn poll(&self) -> Vec<Value> {
        let inner = self.lock();
        let now = Instant::now();
        let due = inner.unconfirmed.iter().filter(|(number, _)| {
            inner.records.get((number - inner.first) as usize).is_some_and(|record| record.due <= now)
        });
        due.take(POLLED_MAX).filter_map(|item| self.report(&inner, *item)).map(Value::Object).collect()
    }

    /// Takes reports with these msgids out of polling; unknown ones are ignored, as confirming twice is normal.
    pub(super) fn confirm<'a>(&self, msgids: impl Iterator<Item = &'a str>) {
        let mut inner = self.lock();
        for msgid in msgids {
            if let Some(number) = self.number(msgid) {
                inner.unconfirmed.remove(&(number, 0));
                let index = (number.wrapping_sub(inner.first)) as usize;
                let same_id = inner.records.get(index).is_some_and(|r| r.accepted.plan == ReportPlan::Twice);
                if same_id {
                    inner.unconfirmed.remove(&(number, 1));
                }
            } else if let Some(number) = msgid.strip_suffix("-2").and_then(|key| self.number(key)) {
                inner.unconfirmed.remove(&(number, 1));
            }
        }
    }

    /// Asks for a message's report to be posted again: the vendor's code for the answer.
    pub(super) fn post_again(&self, messagekey: &str) -> u16 {
        let mut inner = self.lock();
        let first = inner.first;
        let found = self.number(messagekey).and_then(|number| {
            let record = inner.records.get(number.checked_sub(first)? as usize)?;
            Some((number, record.accepted.plan, record.due))
        });
        match found {
            None => 3012,
            Some((_, plan, due)) if plan == ReportPlan::Silent || due > Instant::now() => 3013,
            Some(_) if self.webhook.is_none() => 5000,
            Some((number, plan, _)) => {
                inner.queue_post(Instant::now(), (number, 0), 0);
                if plan == ReportPlan::Fallback {
                    inner.queue_post(Instant::now(), (number, 1), 0);
                }
                self.changed.notify_one();
                1000
            }
        }
    }

    /// Forgets all messages; numbers go on, so that keys stay unique.
    pub(super) fn reset(&self) {
        let mut inner = self.lock();
        inner.first += inner.records.len() as u64;
        inner.records.clear();
        inner.unconfirmed.clear();
        inner.to_post.clear();
    }

    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// The thread that posts. Returns on stop, after at most one post.
    pub(super) fn post_until_stop(&self) {
        let Some(webhook) = &self.webhook else { return };
        while let Some((item, posted, body)) = self.next_post() {
            let answer = webhook.post(&body);
            if matches!(answer, Ok(200)) || posted + 1 >= POSTS_MAX {
                continue;
            }
            self.lock().queue_post(Instant::now() + POST_AGAIN_AFTER, item, posted + 1);
        }
    }

    fn next_post(&self) -> Option<(Item, u8, String)> {
        let mut inner = self.lock();
        loop {
            if inner.stopping {
                return None;
            }
            let wait = match inner.to_post.first_key_value() {
                None => Duration::from_secs(3600),
                Some(((due, _), _)) => due.saturating_duration_since(Instant::now()),
            };
            if !wait.is_zero() {
                inner = self.changed.wait_timeout(inner, wait).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let Some((_, (item, posted))) = inner.to_post.pop_first() else { continue };
            let Some(report) = self.report(&inner, item) else { continue };
            let upper = report.into_iter().map(|(name, value)| (name.to_uppercase(), value));
            return Some((item, posted, Value::Object(upper.collect()).to_string()));
        }
    }
}

impl Inner {
    fn queue_post(&mut self, due: Instant, item: Item, posted: u8) {
        self.posts_queued += 1;
        let order = self.posts_queued;
        self.to_post.insert((due, order), (item, posted));
        if self.to_post.len() > MESSAGES_MAX {
            self.to_post.pop_first();
        }
    }
}

/// Where reports are posted to.
pub(super) struct Webhook {
    address: SocketAddr,
    host: String,
    path: String,
}

impl Webhook {
    /// Reads `http://host:port/path`; only loopback unless `any_address`.
    pub(super) fn parse(url: &str, any_address: bool) -> io::Result<Self> {
        let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("sandbox webhook: {why}"));
        let rest = url.strip_prefix("http://").ok_or_else(|| bad("the URL begins with http://"))?;
        let (host, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        if host.is_empty()
            || host.contains('@')
            || url.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(bad("the URL is http://host:port/path"));
        }
        let with_port = if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        let address = with_port.to_socket_addrs()?.next().ok_or_else(|| bad("the host has no address"))?;
        if !any_address && !address.ip().is_loopback() {
            return Err(bad("only loopback addresses, unless any address is allowed"));
        }
        Ok(Self { address, host: host.to_owned(), path: path.to_owned() })
    }

    /// One POST on a connection of its own; the answer's status.
    fn post(&self, body: &str) -> io::Result<u16> {
        let mut stream = TcpStream::connect_timeout(&self.address, POST_TIMEOUT)?;
        stream.set_read_timeout(Some(POST_TIMEOUT))?;
        stream.set_write_timeout(Some(POST_TIMEOUT))?;
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            self.path,
            self.host,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        read_status(&mut stream)
    }
}

/// Reads an answer whole (closing over unread bytes would reset the receiver's connection); gives its status.
fn read_status(stream: &mut impl Read) -> io::Result<u16> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "the webhook's answer is not HTTP");
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let mut filled = 0;
    loop {
        let count = stream.read(&mut bytes[filled..])?;
        filled += count;
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut answer = httparse::Response::new(&mut headers);
        let head = answer.parse(&bytes[..filled]).map_err(|_| bad())?;
        if let (httparse::Status::Complete(head_bytes), Some(status)) = (head, answer.code) {
            let length =
                answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
            let length =
                length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
            let whole = length.is_some_and(|length: usize| filled >= head_bytes.saturating_add(length));
            if whole || count == 0 || filled == bytes.len() {
                return Ok(status);
            }
        } else if count == 0 || filled == bytes.len() {
            return Err(bad());
        }
    }
}
