//! One conformance suite over all adapters, against a scripted server that counts what arrives.
//!
//! Each case runs for every adapter: the generic one with the payload as it is, the generic one with a template and
//! JSON rules, and BizPpurio. After every call the suite checks that at most one whole request came in and that no
//! secret, number or text stands in the reply. Then follow the cases of the login alone.

#![cfg(debug_assertions)] // `Sending::for_tests` exists in debug builds only

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onceward::config::{
    BizPpurioSettings, DestinationSettings, HttpSettings, Match, Reports, Secret, StatusRange, VendorSettings,
};
use onceward::limits::ANSWER_BYTES_MAX;
use onceward::message::{Class, Destination, Message, MessageId, NotSentKind, Outcome, Reply};
use onceward::store::inbox::Sending;
use onceward::vendor::{self, Vendor};
use serde_json::{Value, json};

const ID: &str = "ow-0123456789a0123456789abcdef";
const RECIPIENT: &str = "01000000001";
const TEXT: &str = "비밀 본문";
const HEADER_SECRET: &str = "Bearer s3cret-header";
const PASSWORD: &str = "pa55word";
const TOKEN: &str = "tok3n-";
/// Nothing on the server waits longer, whatever the client does.
const PATIENCE: Duration = Duration::from_secs(10);

// ---------------------------------------------------------------------------------------------- scripted server

/// What the server does with the next message request (the login has its own list).
#[derive(Clone)]
enum Act {
    /// Answers with these bytes and closes.
    Say(Vec<u8>),
    /// Closes the connection without reading.
    CloseAtOnce,
    /// Reads the request and closes.
    CloseAfterReading,
    /// Reads the request and says no more until the client hangs up.
    Silence,
}

struct Request {
    path: String,
    head: String,
    body: Vec<u8>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

#[derive(Default)]
struct Desk {
    act: Option<Act>,
    logins: Vec<Act>,
    tokens: usize,
    seen: Vec<Request>,
}

struct Server {
    address: SocketAddr,
    desk: Arc<Mutex<Desk>>,
    stopping: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let (desk, stopping) = (Arc::new(Mutex::new(Desk::default())), Arc::new(AtomicBool::new(false)));
        let acceptor = {
            let (desk, stopping) = (desk.clone(), stopping.clone());
            std::thread::spawn(move || {
                let mut connections = Vec::new();
                for stream in listener.incoming() {
                    if stopping.load(Ordering::SeqCst) {
                        break;
                    }
                    let desk = desk.clone();
                    connections.push(std::thread::spawn(move || serve(stream.expect("accepted"), &desk)));
                }
                drop(listener);
                for connection in connections {
                    connection.join().expect("the server does not panic");
                }
            })
        };
        Self { address, desk, stopping, acceptor: Some(acceptor) }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect("the server does not panic")
    }

    fn messages(&self) -> usize {
        self.desk().seen.iter().filter(|request| request.path != "/v1/token").count()
    }

    fn logins(&self) -> usize {
        self.desk().seen.iter().filter(|request| request.path == "/v1/token").count()
    }

    /// Closes the door; every connection has ended when this returns.
    fn stop(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            self.stopping.store(true, Ordering::SeqCst);
            // Wakes the acceptor; refused if it has gone already.
            let _ = TcpStream::connect(self.address);
            acceptor.join().expect("the server does not panic");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

fn serve(mut stream: TcpStream, desk: &Mutex<Desk>) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    if matches!(desk.lock().expect("no panic").act, Some(Act::CloseAtOnce)) {
        return;
    }
    let Some(request) = read_request(&mut stream) else { return };
    let act = {
        let mut desk = desk.lock().expect("no panic");
        let act = if request.path == "/v1/token" {
            let scripted = (!desk.logins.is_empty()).then(|| desk.logins.remove(0));
            scripted.unwrap_or_else(|| {
                desk.tokens += 1;
                token_answer(&format!("{TOKEN}{}", desk.tokens - 1))
            })
        } else {
            desk.act.clone().expect("the test says what comes")
        };
        desk.seen.push(request);
        act
    };
    match act {
        Act::Say(bytes) => {
            // The client may hang up in the middle of an answer that is too large.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            drain(&mut stream);
        }
        Act::Silence => drain(&mut stream),
        Act::CloseAfterReading | Act::CloseAtOnce => {}
    }
}

fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).expect("an ASCII head");
            let mut request = Request { path: String::new(), body: bytes[end + 4..].to_vec(), head };
            request.path = request.head.split(' ').nth(1).expect("a target").to_owned();
            let length: usize =
                request.header("content-length").map_or(0, |text| text.parse().expect("a length"));
            while request.body.len() < length {
                let read = stream.read(&mut piece).ok().filter(|&read| read > 0)?;
                request.body.extend_from_slice(&piece[..read]);
            }
            return Some(request);
        }
        let read = stream.read(&mut piece).ok().filter(|&read| read > 0)?;
        bytes.extend_from_slice(&piece[..read]);
    }
}

fn drain(stream: &mut TcpStream) {
    let mut piece = [0; 4096];
    while stream.read(&mut piece).is_ok_and(|read| read > 0) {}
}

fn say(status: u16, headers: &str, body: &str) -> Act {
    let length = body.len();
    Act::Say(format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n{headers}\r\n{body}").into_bytes())
}

fn token_answer(token: &str) -> Act {
    say(200, "", &json!({"accesstoken": token, "type": "Bearer"}).to_string())
}

// ---------------------------------------------------------------------------------------------------- adapters

/// One adapter and how its far end speaks.
struct Adapter {
    name: &'static str,
    settings: fn() -> VendorSettings,
    payload: fn() -> Value,
    /// Status and body of each meaning; every body repeats a number, which no reply may do.
    accepted: (u16, Value),
    vendor_ref: Option<&'static str>,
    rejected: (u16, Value),
    throttled: (u16, Value),
    /// Where the reference is found in a request.
    reference: fn(&Request) -> String,
}

fn statuses(ranges: &[(u16, u16)]) -> Vec<StatusRange> {
    ranges.iter().map(|&(first, last)| StatusRange { first, last }).collect()
}

fn plain_http() -> VendorSettings {
    VendorSettings::Http(HttpSettings {
        headers: vec![("Authorization".into(), Secret::new(HEADER_SECRET.into()))],
        reference_header: "X-Reference".into(),
        reference_bytes_max: 64,
        body: None,
        content_type: "application/json".into(),
        accepted: Match { status: statuses(&[(200, 299)]), json: None },
        rejected: Match { status: statuses(&[(400, 400), (422, 422)]), json: None },
        not_sent: Match { status: statuses(&[(401, 401), (403, 403), (429, 429)]), json: None },
        vendor_ref: None,
        idempotency_header: String::new(),
        lookup: None,
    })
}

fn ruled_http() -> VendorSettings {
    let code = |code: u16| Some(("/result/code".to_owned(), vec![json!(code)]));
    VendorSettings::Http(HttpSettings {
        headers: vec![("X-Api-Key".into(), Secret::new(HEADER_SECRET.into()))],
        reference_header: String::new(),
        reference_bytes_max: 64,
        body: Some(
            r#"{"ref":"{{ message_id }}","to":{{ recipient }},"text":"** {{ payload.text }} **"}"#.into(),
        ),
        content_type: "application/json; charset=utf-8".into(),
        accepted: Match { status: statuses(&[(200, 299)]), json: code(0) },
        rejected: Match { status: statuses(&[(200, 299)]), json: code(40) },
        not_sent: Match { status: statuses(&[(429, 429)]), json: code(29) },
        vendor_ref: Some("/result/id".into()),
        idempotency_header: "Idempotency-Key".into(),
        lookup: None,
    })
}

fn bizppurio() -> VendorSettings {
    VendorSettings::BizPpurio(BizPpurioSettings {
        account: "branch01".into(),
        password: Secret::new(PASSWORD.into()),
        from: "0212345678".into(),
        reports: Reports::Off,
    })
}

fn adapters() -> Vec<Adapter> {
    let free_text = format!("{RECIPIENT} {TEXT} {HEADER_SECRET}");
    let header = |request: &Request| request.header("x-reference").unwrap_or_default().to_owned();
    vec![
        Adapter {
            name: "http",
            settings: plain_http,
            payload: || json!({ "text": TEXT }),
            accepted: (202, json!({ "note": free_text })),
            vendor_ref: None,
            rejected: (422, json!({ "note": free_text })),
            throttled: (429, json!({ "note": free_text })),
            reference: header,
        },
        Adapter {
            name: "http with template and rules",
            settings: ruled_http,
            payload: || json!({ "text": TEXT }),
            accepted: (200, json!({"result": {"code": 0, "id": "v-1"}, "note": free_text})),
            vendor_ref: Some("v-1"),
            rejected: (200, json!({"result": {"code": "40"}, "note": free_text})),
            throttled: (429, json!({"result": {"code": 29}, "note": free_text})),
            reference: |request| {
                let body: Value = serde_json::from_slice(&request.body).expect("a JSON body");
                assert_eq!(body["text"], format!("** {TEXT} **"));
                assert_eq!(request.header("idempotency-key"), Some(ID));
                body["ref"].as_str().unwrap_or_default().to_owned()
            },
        },
        Adapter {
            name: "bizppurio",
            settings: bizppurio,
            payload: || json!({"type": "sms", "content": {"sms": {"message": TEXT}}}),
            accepted: (
                200,
                json!({"code": 1000, "description": free_text, "refkey": ID, "messagekey": "k#1"}),
            ),
            vendor_ref: Some("k#1"),
            rejected: (400, json!({"code": "2000", "description": free_text, "refkey": ID})),
            throttled: (429, json!({"code": 5002, "description": free_text, "refkey": ID})),
            reference: |request| {
                let body: Value = serde_json::from_slice(&request.body).expect("a JSON body");
                assert_eq!(request.path, "/v3/message");
                body["refkey"].as_str().unwrap_or_default().to_owned()
            },
        },
    ]
}

fn destination(url: &str, timeout: Duration, vendor: VendorSettings) -> DestinationSettings {
    DestinationSettings {
        name: "d".into(),
        vendor,
        url: url.into(),
        timeout,
        connect_timeout: timeout.min(Duration::from_secs(2)),
        threads: 4,
        rate_per_s: None,
        close_after_unknown: 0,
        keep_alive: Duration::ZERO,
        ca_file: None,
        proxy: None,
    }
}

fn message(payload: &Value) -> Message {
    Message {
        message_id: MessageId::new(ID),
        dedup_key: "K:1".into(),
        kind: "K".into(),
        class: Class::Transactional,
        destination: Destination::new("d"),
        recipient: RECIPIENT.into(),
        payload: payload.to_string(),
        ordering_key: None,
        priority: 5,
        not_before_ms: 0,
        expires_at_ms: None,
        created_at_ms: 1_700_000_000_000,
        traceparent: None,
    }
}

/// One adapter before one server.
struct Bench {
    adapter: Adapter,
    server: Server,
    vendor: Arc<dyn Vendor>,
    message: Message,
}

impl Bench {
    fn new(adapter: Adapter, timeout: Duration) -> Self {
        let server = Server::start();
        let url = format!("http://{}", server.address);
        let settings = destination(&url, timeout, (adapter.settings)());
        let shown = format!("{settings:?}");
        assert!(!shown.contains(HEADER_SECRET) && !shown.contains(PASSWORD), "{shown}");
        let vendor = vendor::build(&settings).expect("builds");
        let message = message(&(adapter.payload)());
        Self { adapter, server, vendor, message }
    }

    fn ready(&self) {
        self.vendor.ready().unwrap_or_else(|reply| panic!("{}: {reply:?}", self.adapter.name));
    }

    /// One send against one act, with what must hold for every send.
    fn send(&self, act: Act) -> Reply {
        self.server.desk().act = Some(act);
        let (messages, logins) = (self.server.messages(), self.server.logins());
        let reply = self.send_now();
        assert!(self.server.messages() - messages <= 1, "{}: more than one request", self.adapter.name);
        assert_eq!(self.server.logins(), logins, "{}: a login inside a send", self.adapter.name);
        reply
    }

    fn send_now(&self) -> Reply {
        let prepared = self.vendor.prepare(&self.message).expect("fits");
        let sending = Sending::for_tests(self.message.destination.clone(), self.message.message_id.clone());
        let reply = self.vendor.send(&sending, &self.message, &prepared);
        no_secrets(&format!("{reply:?}"));
        reply
    }

    fn body(&self, answer: &(u16, Value), headers: &str) -> Act {
        say(answer.0, headers, &answer.1.to_string())
    }

    #[track_caller]
    fn unknown(&self, what: &str, act: Act, requests: usize) {
        let before = self.server.messages();
        let reply = self.send(act);
        assert!(matches!(reply.outcome, Outcome::Unknown { .. }), "{}: {what}: {reply:?}", self.adapter.name);
        assert_eq!(self.server.messages() - before, requests, "{}: {what}", self.adapter.name);
    }
}

#[track_caller]
fn no_secrets(text: &str) {
    for secret in [HEADER_SECRET, "s3cret", PASSWORD, TOKEN, RECIPIENT, TEXT, "YnJhbmNoMDE6"] {
        assert!(!text.contains(secret), "{secret} stands in {text}");
    }
}

fn for_each(timeout: Duration, check: impl Fn(&Bench)) {
    for adapter in adapters() {
        let bench = Bench::new(adapter, timeout);
        bench.ready();
        check(&bench);
    }
}

fn kind(outcome: &Outcome) -> Option<NotSentKind> {
    match outcome {
        Outcome::NotSent { kind, .. } => Some(*kind),
        _ => None,
    }
}

// ------------------------------------------------------------------------------------------------------- suite

#[test]
fn accepted_with_the_vendors_reference() {
    for_each(PATIENCE, |bench| {
        let reply = bench.send(bench.body(&bench.adapter.accepted, ""));
        let Outcome::Accepted { vendor_ref, .. } = &reply.outcome else { panic!("{reply:?}") };
        assert_eq!(vendor_ref.as_deref(), bench.adapter.vendor_ref, "{}", bench.adapter.name);
        assert_eq!(reply.http_status, Some(bench.adapter.accepted.0));
        assert_eq!(reply.pause, None);
    });
}

#[test]
fn rejected_for_good() {
    for_each(PATIENCE, |bench| {
        let reply = bench.send(bench.body(&bench.adapter.rejected, ""));
        assert!(matches!(reply.outcome, Outcome::Rejected { .. }), "{}: {reply:?}", bench.adapter.name);
    });
}

#[test]
fn f22_throttled_with_every_way_of_saying_how_long() {
    let date = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nRetry-After: Sun, 06 Nov 1994 08:50:07 GMT\r\n";
    for_each(PATIENCE, |bench| {
        for (headers, wait) in [
            ("", None),
            ("Retry-After: 7\r\n", Some(7)),
            (date, Some(30)),
            ("RateLimit-Reset: 0.299\r\n", Some(1)),
            ("RateLimit-Reset: 60000\r\n", Some(3600)),
        ] {
            let wait = wait.map(Duration::from_secs);
            let reply = bench.send(bench.body(&bench.adapter.throttled, headers));
            assert_eq!(kind(&reply.outcome), Some(NotSentKind::Throttled(wait)), "{}", bench.adapter.name);
            assert_eq!(reply.pause, wait, "{}", bench.adapter.name);
        }
    });
}

#[test]
fn a_used_up_budget_pauses_whatever_the_outcome() {
    for_each(PATIENCE, |bench| {
        let headers = "RateLimit-Limit: 10\r\nRateLimit-Remaining: 0\r\nRateLimit-Reset: 3\r\n";
        for answer in [&bench.adapter.accepted, &bench.adapter.rejected, &(500, json!({}))] {
            assert_eq!(bench.send(bench.body(answer, headers)).pause, Some(Duration::from_secs(3)));
        }
        let headers = "RateLimit-Limit: 10\r\nRateLimit-Remaining: 9\r\nRateLimit-Reset: 3\r\n";
        assert_eq!(bench.send(bench.body(&bench.adapter.accepted, headers)).pause, None);
    });
}

#[test]
fn f09_garbage_server_errors_and_cut_answers_are_unknown() {
    for_each(PATIENCE, |bench| {
        for status in [404, 500, 502, 503, 504] {
            bench.unknown("a proxy's page", say(status, "", "<html>01000000001</html>"), 1);
            bench.unknown("no body", say(status, "", ""), 1);
        }
        // Accepted by its body, not by its status.
        let body = bench.adapter.accepted.1.to_string();
        bench.unknown("a server error with a good body", say(500, "", &body), 1);
        bench.unknown("not HTTP", Act::Say(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()), 1);
        bench.unknown("nothing", Act::Say(Vec::new()), 1);
        bench.unknown("half a head", Act::Say(b"HTTP/1.1 200 OK\r\nContent-Le".to_vec()), 1);
        let cut = |body: &str| {
            let length = body.len() + 1;
            Act::Say(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes())
        };
        bench.unknown("cut by one byte", cut(&body), 1);
        let chunk =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n", body.len());
        bench.unknown("a missing last chunk", Act::Say(chunk.into_bytes()), 1);
    });
}

#[test]
fn where_json_decides_an_answer_that_is_none_or_has_no_proven_end_is_unknown() {
    for_each(PATIENCE, |bench| {
        if bench.adapter.name == "http" {
            return; // its rules read the status alone
        }
        bench.unknown("not JSON", say(200, "", "<html>"), 1);
        bench.unknown("another JSON", say(200, "", "[]"), 1);
        bench.unknown("an unlisted code", say(200, "", r#"{"code":1234,"result":{"code":1234}}"#), 1);
        let body = bench.adapter.accepted.1.to_string();
        bench.unknown(
            "ended by the close",
            Act::Say(format!("HTTP/1.1 200 OK\r\n\r\n{body}").into_bytes()),
            1,
        );
    });
}

#[test]
fn an_oversized_answer_is_unknown() {
    for_each(PATIENCE, |bench| {
        let body = " ".repeat(usize::try_from(ANSWER_BYTES_MAX).expect("fits") + 1);
        bench.unknown("a huge body", say(200, "", &body), 1);
        bench.unknown("a huge head", say(200, &format!("X-Long: {}\r\n", "x".repeat(40_000)), ""), 1);
    });
}

#[test]
fn f09_a_slow_answer_ends_at_the_deadline_as_unknown() {
    for_each(Duration::from_millis(700), |bench| {
        let begun = Instant::now();
        bench.unknown("silence", Act::Silence, 1);
        assert!(begun.elapsed() < Duration::from_secs(5), "{}: {:?}", bench.adapter.name, begun.elapsed());
    });
}

#[test]
fn f09_closed_before_and_after_reading_is_unknown() {
    for_each(PATIENCE, |bench| {
        bench.unknown("closed after reading", Act::CloseAfterReading, 1);
        bench.unknown("closed before reading", Act::CloseAtOnce, 0);
    });
}

#[test]
fn f15_redirects_are_not_followed_and_only_307_and_308_prove_anything() {
    for_each(PATIENCE, |bench| {
        let to = format!("Location: http://{}/elsewhere\r\n", bench.server.address);
        for status in [301, 302, 303] {
            bench.unknown("redirect", say(status, &to, ""), 1);
        }
        for status in [307, 308] {
            let before = bench.server.messages();
            let reply = bench.send(say(status, &to, ""));
            assert_eq!(kind(&reply.outcome), Some(NotSentKind::Refused), "{} {status}", bench.adapter.name);
            assert_eq!(bench.server.messages() - before, 1);
        }
    });
}

#[test]
fn f12_a_refused_connection_is_certainly_not_sent() {
    for adapter in adapters() {
        let mut bench = Bench::new(adapter, PATIENCE);
        bench.ready();
        bench.server.stop();
        let reply = bench.send_now();
        assert_eq!(kind(&reply.outcome), Some(NotSentKind::Unreachable), "{}: {reply:?}", bench.adapter.name);
        assert_eq!(bench.server.messages(), 0);
        assert!(bench.vendor.probe().is_err(), "{}", bench.adapter.name);
    }
}

#[test]
fn f12_an_unknown_name_is_certainly_not_sent() {
    for adapter in adapters() {
        let url = "http://vendor.invalid:9";
        let vendor =
            vendor::build(&destination(url, Duration::from_secs(5), (adapter.settings)())).expect("builds");
        let message = message(&(adapter.payload)());
        let outcome = match vendor.ready() {
            Err(reply) => reply.outcome,
            Ok(()) => {
                let sending = Sending::for_tests(message.destination.clone(), message.message_id.clone());
                vendor.send(&sending, &message, &vendor.prepare(&message).expect("fits")).outcome
            }
        };
        assert_eq!(kind(&outcome), Some(NotSentKind::Unreachable), "{}: {outcome:?}", adapter.name);
        no_secrets(&format!("{outcome:?}"));
    }
}

#[test]
fn the_same_reference_goes_with_every_request_of_a_message() {
    for_each(PATIENCE, |bench| {
        for _ in 0..2 {
            bench.send(bench.body(&bench.adapter.accepted, ""));
        }
        let desk = bench.server.desk();
        let messages: Vec<_> = desk.seen.iter().filter(|request| request.path != "/v1/token").collect();
        assert_eq!(messages.len(), 2);
        for request in &messages {
            assert_eq!((bench.adapter.reference)(request), ID, "{}", bench.adapter.name);
            assert!(
                request.header("content-type").is_some_and(|media| media.starts_with("application/json"))
            );
        }
        assert_eq!(messages[0].body, messages[1].body, "{}", bench.adapter.name);
    });
}

#[test]
fn secrets_go_to_the_vendor_and_nowhere_else() {
    for_each(PATIENCE, |bench| {
        bench.send(bench.body(&bench.adapter.accepted, ""));
        let desk = bench.server.desk();
        let request = desk.seen.last().expect("a request");
        let wanted = match bench.adapter.name {
            "bizppurio" => format!("Bearer {TOKEN}0"),
            _ => HEADER_SECRET.to_owned(),
        };
        assert_eq!(request.header("authorization").or(request.header("x-api-key")), Some(wanted.as_str()));
    });
}

#[test]
fn a_probe_makes_no_message_request() {
    for_each(PATIENCE, |bench| {
        let line = bench.vendor.probe().expect("reachable");
        no_secrets(&line);
        assert_eq!(bench.server.messages(), 0, "{}", bench.adapter.name);
    });
}

#[test]
fn f28_what_can_never_be_sent_is_said_before_any_claim() {
    for adapter in adapters() {
        let mut bench = Bench::new(adapter, PATIENCE);
        let good = bench.message.clone();
        let unfit = |bench: &Bench| {
            let reason = bench.vendor.prepare(&bench.message).err().expect("unfit").reason;
            no_secrets(&reason);
            reason
        };
        bench.message.payload = format!("{{\"text\": \"{TEXT}");
        assert!(unfit(&bench).contains("payload is not JSON"), "{}", bench.adapter.name);
        bench.message = good.clone();
        bench.message.message_id = MessageId::new("r".repeat(65));
        assert!(unfit(&bench).contains("TOO_LONG: message id has 65 bytes"), "{}", bench.adapter.name);
        bench.message = good;
        assert!(bench.vendor.prepare(&bench.message).is_ok());
        assert_eq!(bench.server.desk().seen.len(), 0, "preparing asks nobody");
    }
}

#[test]
fn only_who_says_so_deduplicates() {
    let says: Vec<bool> =
        adapters().into_iter().map(|adapter| Bench::new(adapter, PATIENCE).vendor.deduplicates()).collect();
    assert_eq!(says, [false, true, false]);
}

#[test]
fn settings_that_would_break_a_request_are_refused_without_their_secret() {
    let refused = |change: fn(&mut HttpSettings)| {
        let VendorSettings::Http(mut settings) = plain_http() else { panic!("http settings") };
        change(&mut settings);
        let settings = destination("http://127.0.0.1:9", PATIENCE, VendorSettings::Http(settings));
        let reason = vendor::build(&settings).err().expect("refused");
        no_secrets(&reason);
        reason
    };
    assert!(
        refused(|s| s.headers[0].1 = Secret::new(format!("{HEADER_SECRET}\r\nX: y")))
            .contains("Authorization")
    );
    assert!(refused(|s| s.headers[0].0 = "Content-Length".into()).contains("Content-Length"));
    assert!(refused(|s| s.headers[0].0 = "X-Reference".into()).contains("X-Reference"));
    assert!(refused(|s| s.reference_header = "X Reference".into()).contains("not a header name"));
    assert!(refused(|s| s.body = Some("{{ payload.text".into())).contains("line 1"));
}

// ------------------------------------------------------------------------------------------------------- login

fn biz() -> Bench {
    Bench::new(adapters().pop().expect("bizppurio is the last"), PATIENCE)
}

fn invalid(code: u16) -> Act {
    say(400, "", &json!({"code": code, "refkey": ID}).to_string())
}

#[test]
fn an_invalid_token_is_not_sent_and_renewed_before_the_next_claim() {
    for code in [3002, 3005] {
        let bench = biz();
        bench.ready();
        assert_eq!(kind(&bench.send(invalid(code)).outcome), Some(NotSentKind::Refused));
        // Nothing is sent without a token, and no login is made for it here.
        let reply = bench.send(bench.body(&bench.adapter.accepted, ""));
        assert!(matches!(kind(&reply.outcome), Some(NotSentKind::Throttled(Some(_)))), "{reply:?}");
        assert_eq!((bench.server.messages(), bench.server.logins()), (1, 1));
        bench.ready();
        let reply = bench.send(bench.body(&bench.adapter.accepted, ""));
        assert!(matches!(reply.outcome, Outcome::Accepted { .. }), "{reply:?}");
        let desk = bench.server.desk();
        assert_eq!(
            desk.seen.last().and_then(|request| request.header("authorization")),
            Some("Bearer tok3n-1")
        );
    }
}

#[test]
fn many_threads_make_one_login_and_one_more_when_the_token_is_invalid() {
    let bench = biz();
    let all_ready = || {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| bench.ready());
            }
        });
    };
    all_ready();
    assert_eq!(bench.server.logins(), 1);
    bench.server.desk().act = Some(invalid(3002));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert!(kind(&bench.send_now().outcome).is_some()));
        }
    });
    all_ready();
    assert_eq!(bench.server.logins(), 2);
    let desk = bench.server.desk();
    let login = desk.seen.iter().find(|request| request.path == "/v1/token").expect("a login");
    assert_eq!(login.header("authorization"), Some("Basic YnJhbmNoMDE6cGE1NXdvcmQ="));
    assert!(login.body.is_empty());
}

#[test]
fn whatever_goes_wrong_in_a_login_is_not_sent() {
    let code = |code: u16| say(400, "", &json!({ "code": code, "description": RECIPIENT }).to_string());
    let seven = Duration::from_secs(7);
    for (act, wanted) in [
        (code(3000), NotSentKind::Denied),
        (code(3001), NotSentKind::Denied),
        (code(3007), NotSentKind::Denied),
        (code(3010), NotSentKind::Denied),
        (say(429, "Retry-After: 7\r\n", r#"{"code":5002}"#), NotSentKind::Throttled(Some(seven))),
        (say(429, "", "<html>"), NotSentKind::Throttled(None)),
        (say(200, "", "<html>"), NotSentKind::Unreachable),
        (say(302, "Location: /login\r\n", ""), NotSentKind::Unreachable),
        (say(500, "", r#"{"code":9000}"#), NotSentKind::Unreachable),
        (
            Act::Say(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"accesstoken\":\"a\"}".to_vec()),
            NotSentKind::Unreachable,
        ),
        (Act::Say(b"HTTP/1.1 200 OK\r\n\r\n{\"accesstoken\":\"a\"}".to_vec()), NotSentKind::Unreachable),
        (Act::CloseAfterReading, NotSentKind::Unreachable),
    ] {
        let bench = biz();
        bench.server.desk().logins.push(act);
        let reply = bench.vendor.ready().expect_err("no token");
        no_secrets(&format!("{reply:?}"));
        assert_eq!(kind(&reply.outcome), Some(wanted), "{reply:?}");
        assert_eq!((bench.server.messages(), bench.server.logins()), (0, 1), "{reply:?}");
        bench.ready();
    }
}

#[test]
fn a_slow_login_ends_at_the_deadline_as_not_sent() {
    let bench = Bench::new(adapters().pop().expect("bizppurio is the last"), Duration::from_millis(500));
    bench.server.desk().logins.push(Act::Silence);
    let reply = bench.vendor.ready().expect_err("no token");
    assert_eq!(kind(&reply.outcome), Some(NotSentKind::Unreachable));
    assert_eq!(bench.server.logins(), 1);
}

#[test]
fn a_token_is_renewed_when_it_nears_its_end_and_not_for_each_message() {
    let bench = biz();
    // Two seconds by the vendor's own clock, whatever ours says: 17:49:39 in Korea is 08:49:39 UTC.
    let body =
        json!({"accesstoken": "tok3n-short", "type": "Bearer", "expired": "19941106174939"}).to_string();
    bench.server.desk().logins.push(say(200, "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", &body));
    bench.ready();
    bench.ready();
    assert_eq!(bench.server.logins(), 1);
    let begun = Instant::now();
    while bench.server.logins() == 1 {
        assert!(begun.elapsed() < PATIENCE, "never renewed");
        bench.ready();
        std::thread::yield_now();
    }
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(bench.server.logins(), 2);
}
