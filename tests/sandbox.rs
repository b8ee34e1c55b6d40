//! The sandbox vendor as its clients see it: every fault on the wire, the count, stop, refuse and return.
//!
//! Raw sockets on purpose: an HTTP client would hide what is tested here.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use base64::Engine as _;
use onceward::sandbox::{Rule, Sandbox, SandboxOptions, rule::Cut, start};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(10);

fn sandbox(rules: &[&str]) -> Sandbox {
    let faults = rules.iter().map(|text| Rule::parse(text).unwrap()).collect();
    start(SandboxOptions { faults, report_delay: Duration::ZERO, ..SandboxOptions::default() }).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: sandbox\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn generic(reference: &str) -> String {
    post("/send", &format!("X-Reference: {reference}\r\n"), r#"{"to":"01000001234"}"#)
}

/// How reading ended.
#[derive(Debug, PartialEq)]
enum Ended {
    Fin,
    Rst,
}

/// Everything until the other side ends the connection.
fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, Ended) {
    let mut all = Vec::new();
    let mut part = [0; 65536];
    loop {
        match stream.read(&mut part) {
            Ok(0) => return (all, Ended::Fin),
            Ok(count) => all.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (all, Ended::Rst),
            Err(error) => panic!("no end came: {error}"),
        }
    }
}

/// One framed answer: status, head, body.
fn answer(stream: &mut TcpStream) -> (u16, String, String) {
    let mut all = Vec::new();
    let mut one = [0; 1];
    while !all.ends_with(b"\r\n\r\n") {
        stream
            .read_exact(&mut one)
            .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&all)));
        all.push(one[0]);
    }
    let head = String::from_utf8(all).unwrap();
    let status = head[9..12].parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned))
        .unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (status, head, String::from_utf8(body).unwrap())
}

fn exchange(address: SocketAddr, request: &str) -> (u16, String, String) {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    answer(&mut stream)
}

/// Sends one generic message on a connection of its own and reads until that ends.
fn broken(address: SocketAddr, reference: &str) -> (String, Ended) {
    let mut stream = connect(address);
    // A peer that resets before reading may break the write already; what counts is how reading ends.
    let _ = stream.write_all(generic(reference).as_bytes());
    let (bytes, ended) = read_to_end(&mut stream);
    (String::from_utf8_lossy(&bytes).into_owned(), ended)
}

fn token(address: SocketAddr) -> String {
    let basic = base64::engine::general_purpose::STANDARD.encode("branch01:secret");
    let (status, _, body) =
        exchange(address, &post("/v1/token", &format!("Authorization: Basic {basic}\r\n"), ""));
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["type"], "Bearer");
    assert_eq!(body["expired"].as_str().unwrap().len(), 14);
    body["accesstoken"].as_str().unwrap().to_owned()
}

fn sms(reference: &str, to: &str, message: &str) -> Value {
    json!({"account": "branch01", "type": "sms", "from": "0212345678", "to": to, "refkey": reference,
        "content": {"sms": {"message": message}}})
}

fn send(address: SocketAddr, token: &str, message: &Value) -> (u16, String, Value) {
    let headers = format!("Authorization: Bearer {token}\r\n");
    let (status, head, body) = exchange(address, &post("/v3/message", &headers, &message.to_string()));
    (status, head, serde_json::from_str(&body).unwrap_or_else(|_| panic!("{status}: {body}")))
}

fn vendor_call(address: SocketAddr, token: &str, path: &str, body: &Value) -> Value {
    let headers = format!("Authorization: Bearer {token}\r\n");
    serde_json::from_str(&exchange(address, &post(path, &headers, &body.to_string())).2).unwrap()
}

#[test]
fn bizppurio_takes_a_message_and_does_not_deduplicate() {
    let vendor = sandbox(&[]);
    let token = token(vendor.addr());
    let (status, head, first) = send(vendor.addr(), &token, &sms("key-1", "01000001234", "안녕하세요"));
    assert_eq!((status, &first["code"], &first["refkey"]), (200, &json!(1000), &json!("key-1")));
    assert!(head.contains("RateLimit-Remaining: "), "{head}");
    let (_, _, second) = send(vendor.addr(), &token, &sms("key-1", "01000001234", "안녕하세요"));
    assert_eq!(second["code"], 1000);
    assert_ne!(first["messagekey"], second["messagekey"]);
    let ledger = vendor.ledger();
    assert_eq!(ledger.arrived("key-1"), 2);
    let totals = ledger.totals();
    assert_eq!((totals.arrived, totals.references, totals.duplicates, totals.tokens), (2, 1, 1, 1));
    assert_eq!(ledger.recent()[0].recipient, "***1234");
}

#[test]
fn bizppurio_refuses_what_the_vendor_refuses() {
    let vendor = sandbox(&[]);
    let address = vendor.addr();
    let token = token(address);
    let good = sms("k", "01000001234", "x");
    let with = |name: &str, value: Value| {
        let mut message = good.clone();
        message[name] = value;
        message
    };
    let without = |name: &str| {
        let mut message = good.clone();
        message.as_object_mut().unwrap().remove(name);
        message
    };
    let at = |channel: Value| {
        let mut message = with("type", json!("at"));
        message["content"] = json!({ "at": channel });
        message
    };
    // 45 syllables are 90 bytes as EUC-KR, 46 are 92.
    assert_eq!(send(address, &token, &sms("k", "01000001234", &"가".repeat(45))).2["code"], 1000);
    let long_alimtalk = "가".repeat(1301);
    let refused = [
        sms("k", "01000001234", &"가".repeat(46)),
        sms("k", "01000001234", "이모지 😀"),
        sms(&"k".repeat(33), "01000001234", "x"),
        sms("가나다라마바사아자차카", "01000001234", "x"), // 33 bytes
        with("type", json!("fax")),
        with("type", json!("lms")), // content still has the key sms
        with("content", json!({"sms": {"message": "x"}, "lms": {"message": "x"}})),
        without("account"),
        without("from"),
        without("to"),
        without("refkey"),
        without("content"),
        at(json!({"senderkey": "s", "templatecode": "t"})),
        at(json!({"senderkey": "s", "templatecode": "t", "message": long_alimtalk})),
    ];
    for message in &refused {
        let (status, _, body) = send(address, &token, message);
        assert_eq!((status, &body["code"]), (400, &json!(2000)), "{message}");
    }
    let alimtalk = at(json!({"senderkey": "s", "templatecode": "t", "message": "가".repeat(1300)}));
    assert_eq!(send(address, &token, &alimtalk).2["code"], 1000);
    assert_eq!(send(address, "wrong", &good).2["code"], 3002);
    assert_eq!(send(address, &token, &with("account", json!("other"))).2["code"], 3004);
    let (status, _, body) = exchange(address, &post("/v3/message", "", &good.to_string()));
    assert_eq!((status, body.contains("3005")), (400, true));
    let (_, _, body) = exchange(address, &post("/v3/message", "", "not json"));
    assert!(body.contains("3005"), "{body}");
    let headers = format!("Authorization: Bearer {token}\r\n");
    assert!(exchange(address, &post("/v3/message", &headers, "not json")).2.contains("3014"));
    let (status, _, body) = exchange(address, &post("/v1/token", "Authorization: Basic !!\r\n", ""));
    assert_eq!((status, body.contains("3001")), (400, true));
    vendor.revoke_tokens();
    assert_eq!(send(address, &token, &good).2["code"], 3002);
    // Every one of them arrived, and eight more; all but the two good ones were told a plain no.
    let totals = vendor.ledger().totals();
    assert_eq!((totals.arrived, totals.accepted), (refused.len() as u64 + 8, 2));
    assert_eq!(totals.refused, totals.arrived - 2);
}

#[test]
fn options_shape_codes_logins_tokens_and_rates() {
    let vendor = start(SandboxOptions {
        code_as_text: true,
        login: Some(("branch01".to_owned(), "secret".to_owned())),
        token_life: Duration::ZERO,
        rate: Some(2),
        ..SandboxOptions::default()
    })
    .unwrap();
    let short_lived = token(vendor.addr());
    let (_, _, body) = send(vendor.addr(), &short_lived, &sms("k", "01000001234", "x"));
    assert_eq!(body["code"], "3002");
    let other = base64::engine::general_purpose::STANDARD.encode("branch01:wrong");
    // Two calls a second: sooner or later three fall into one.
    let request = post("/v1/token", &format!("Authorization: Basic {other}\r\n"), "");
    let begin = Instant::now();
    loop {
        let (status, _, body) = exchange(vendor.addr(), &request);
        if status == 429 {
            assert!(body.contains("\"5002\""), "{body}");
            break;
        }
        assert!(status == 400 && body.contains("\"3007\""), "{body}");
        assert!(begin.elapsed() < LIMIT, "the budget was never spent");
    }
}

#[test]
fn reports_come_until_they_are_confirmed() {
    let vendor = sandbox(&[
        "reference=silent,report=no",
        "reference=twice,report=twice",
        "reference=fallback,report=fallback",
        "reference=failed,report=7308",
        "reference=reset,reset",
        "reference=error,status=500",
    ]);
    let address = vendor.addr();
    let token = token(address);
    for reference in ["plain", "silent", "twice", "fallback", "failed"] {
        assert_eq!(send(address, &token, &sms(reference, "01000001234", "x")).2["code"], 1000);
    }
    let headers = format!("Authorization: Bearer {token}\r\n");
    let mut stream = connect(address);
    let body = sms("reset", "01000001234", "x").to_string();
    stream.write_all(post("/v3/message", &headers, &body).as_bytes()).unwrap();
    assert_eq!(read_to_end(&mut stream), (Vec::new(), Ended::Rst));
    assert_eq!(send(address, &token, &sms("error", "01000001234", "x")).0, 500);

    let poll = || {
        let body = vendor_call(address, &token, "/v1/result/request", &json!({"account": "branch01"}));
        assert_eq!(body["code"], 1000);
        body["report"].as_array().unwrap().clone()
    };
    let reports = poll();
    let line = |report: &Value| {
        format!("{} {}", report["refkey"].as_str().unwrap(), report["result"].as_str().unwrap())
    };
    let lines: Vec<String> = reports.iter().map(line).collect();
    let expected = [
        "plain 4100",
        "twice 4100",
        "twice 4100",
        "fallback 7308",
        "fallback 4100",
        "failed 7308",
        "reset 4100",
    ];
    assert_eq!(lines, expected);
    assert_eq!(reports[1]["msgid"], reports[2]["msgid"]);
    assert_ne!(reports[3]["msgid"], reports[4]["msgid"]);
    assert_eq!(poll().len(), 7, "unconfirmed reports come again");
    let confirmed: Vec<Value> = reports[..4].iter().map(|report| json!({"msgid": report["msgid"]})).collect();
    let body = json!({"account": "branch01", "msgid": confirmed});
    assert_eq!(vendor_call(address, &token, "/v1/result/confirm", &body)["code"], 1000);
    assert_eq!(poll().iter().map(line).collect::<Vec<_>>(), expected[4..]);
    let unknown = vendor_call(address, &token, "/v2/report", &json!({"messagekey": "nobody's"}));
    assert_eq!(unknown["code"], 3012);
}

#[test]
fn the_webhook_gets_reports_with_upper_case_keys_and_again_on_failure() {
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/reports/bizppurio/secret", receiver.local_addr().unwrap());
    let faults = vec![Rule::parse("report=twice").unwrap()];
    let options = SandboxOptions {
        webhook: Some(url),
        report_delay: Duration::ZERO,
        faults,
        ..SandboxOptions::default()
    };
    let vendor = start(options).unwrap();
    let token = token(vendor.addr());
    let (_, _, sent) = send(vendor.addr(), &token, &sms("key-1", "01000001234", "x"));
    // Three posts: the first is answered with 500 and comes again.
    let mut got = Vec::new();
    for status in ["500 Error", "200 OK", "200 OK"] {
        let (mut stream, _) = receiver.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut request = String::new();
        let mut part = [0; 4096];
        while !request.ends_with('}') {
            let count = stream.read(&mut part).unwrap();
            assert!(count > 0, "{request}");
            request.push_str(std::str::from_utf8(&part[..count]).unwrap());
        }
        assert!(request.starts_with("POST /v1/reports/bizppurio/secret HTTP/1.1\r\n"));
        got.push(serde_json::from_str::<Value>(request.split_once("\r\n\r\n").unwrap().1).unwrap());
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
    }
    for report in &got {
        assert_eq!(report["REFKEY"], "key-1");
        assert_eq!(report["CMSGID"], sent["messagekey"]);
        assert_eq!(report["RESULT"], "4100");
        assert_eq!(report["PHONE"], "01000001234");
    }
    assert_eq!(got[0]["MSGID"], got[2]["MSGID"]);
}

#[test]
fn a_generic_message_is_known_by_header_or_body() {
    let vendor = sandbox(&[]);
    let address = vendor.addr();
    let mut stream = connect(address);
    for request in [
        generic("in-header"),
        post("/notify?x=1", "", r#"{"reference":"in-body","recipient":"01000001234"}"#),
        post("/notify", "", r#"{"message_id":"as-id"}"#),
        post("/notify", "", "no json"),
    ] {
        stream.write_all(request.as_bytes()).unwrap();
        let (status, _, body) = answer(&mut stream);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["code"], body["id"].is_string()), (200, &json!(1000), true));
    }
    let ledger = vendor.ledger();
    for reference in ["in-header", "in-body", "as-id"] {
        assert_eq!(ledger.arrived(reference), 1, "{reference}");
    }
    let totals = ledger.totals();
    assert_eq!((totals.arrived, totals.without_reference, totals.connections), (4, 1, 1));
}

#[test]
fn requests_in_pieces_and_one_behind_another_are_read_whole() {
    let vendor = sandbox(&[]);
    let mut stream = connect(vendor.addr());
    for byte in generic("drip").as_bytes() {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(answer(&mut stream).0, 200);
    let body = format!(r#"{{"reference":"large","text":"{}"}}"#, "x".repeat(100_000));
    let three = generic("first") + &post("/send", "Expect: 100-continue\r\n", &body) + &generic("third");
    stream.write_all(three.as_bytes()).unwrap();
    assert_eq!(answer(&mut stream).0, 200);
    let mut next = answer_or_continue(&mut stream);
    if next == 100 {
        next = answer(&mut stream).0;
    }
    assert_eq!((next, answer(&mut stream).0), (200, 200));
    for reference in ["drip", "first", "large", "third"] {
        assert_eq!(vendor.ledger().arrived(reference), 1, "{reference}");
    }
}

/// Reads a head; where it is not an interim one, its body too.
fn answer_or_continue(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 25];
    stream.peek(&mut line).unwrap();
    if line.starts_with(b"HTTP/1.1 100 Continue\r\n\r\n") {
        stream.read_exact(&mut line).unwrap();
        return 100;
    }
    answer(stream).0
}

#[test]
fn unreadable_requests_are_refused_and_not_counted() {
    let vendor = sandbox(&[]);
    let long_head = format!("POST / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    for (request, status) in [
        ("nonsense\r\n\r\n", 400),
        ("POST /send HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("POST /send HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n", 413),
        ("POST /send HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
        ("POST /send HTTP/1.1\r\nContent-Length: +1\r\n\r\nx", 400),
        (long_head.as_str(), 431),
    ] {
        assert_eq!(exchange(vendor.addr(), request).0, status, "{}", &request[..20]);
    }
    assert_eq!(vendor.ledger().totals().arrived, 0);
}

#[test]
fn faults_that_end_the_connection() {
    let vendor = sandbox(&[
        "reference=close-head,close=head",
        "reference=reset-head,reset=head",
        "reference=close,close",
        "reference=reset,reset",
        "reference=cut-head,cut=head",
        "reference=cut-body,cut=body",
        "reference=garbage,garbage",
        "reference=close-answer,close=answer",
        "reference=reset-idle,reset=idle",
        "reference=unframed,unframed",
        "reference=hang,hang=100ms",
    ]);
    let run = |reference: &str| broken(vendor.addr(), reference);
    let whole = |text: &str| text.ends_with(r#""}"#) && text.starts_with("HTTP/1.1 200 OK\r\n");

    // Closing over an unread body may reset as well; nothing is answered either way.
    assert_eq!(run("close-head").0, "");
    assert_eq!(run("reset-head"), (String::new(), Ended::Rst));
    assert_eq!(run("close"), (String::new(), Ended::Fin));
    assert_eq!(run("reset"), (String::new(), Ended::Rst));
    let (text, ended) = run("cut-head");
    assert!(ended == Ended::Fin && text.starts_with("HTTP/1.1 200") && !text.contains("\r\n\r\n"), "{text}");
    let (text, ended) = run("cut-body");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let announced: usize = head.split_once("Content-Length: ").unwrap().1.parse().unwrap();
    assert!(ended == Ended::Fin && !body.is_empty() && body.len() < announced, "{text}");
    let (text, ended) = run("garbage");
    assert!(ended == Ended::Fin && !text.contains("HTTP/1.1"), "{text}");
    let (text, ended) = run("close-answer");
    assert!(ended == Ended::Fin && whole(&text) && !text.contains("Connection: close"), "{text}");
    let (text, ended) = run("reset-idle");
    assert!(ended == Ended::Rst && whole(&text), "{text}");
    let (text, ended) = run("unframed");
    assert!(ended == Ended::Fin && whole(&text) && !text.contains("Content-Length"), "{text}");
    let begin = Instant::now();
    assert_eq!(run("hang"), (String::new(), Ended::Fin));
    assert!(begin.elapsed() >= Duration::from_millis(100));

    let ledger = vendor.ledger();
    for reference in ["close-head", "reset-head"] {
        let counts = ledger.counts(reference);
        assert_eq!((counts.arrived, counts.heads_only), (0, 1), "{reference}");
    }
    for reference in [
        "close",
        "reset",
        "cut-head",
        "cut-body",
        "garbage",
        "close-answer",
        "reset-idle",
        "unframed",
        "hang",
    ] {
        let counts = ledger.counts(reference);
        assert_eq!((counts.arrived, counts.refused, counts.heads_only), (1, 0, 0), "{reference}");
    }
    assert_eq!(ledger.totals().accepted, 9, "only the answers were damaged");
}

#[test]
fn connections_can_be_ended_on_accept() {
    let vendor = sandbox(&["reset=accept,first=1", "close=accept,first=1"]);
    assert_eq!(broken(vendor.addr(), "one"), (String::new(), Ended::Rst));
    assert_eq!(broken(vendor.addr(), "two").0, "");
    assert_eq!(exchange(vendor.addr(), &generic("three")).0, 200);
    assert_eq!(vendor.ledger().totals().arrived, 1);
}

#[test]
fn faults_that_answer_something_else() {
    let vendor = sandbox(&[
        "reference=500,status=500,body=a, b",
        "reference=429,retry_after=1,header=RateLimit-Reset:0.3,status=429",
        "reference=date,status=503,retry_date=30s",
        "reference=code,code=5004",
        "reference=html,html",
        "reference=redirect-301,redirect=301",
        "reference=redirect-307,redirect=307",
        "reference=elsewhere,redirect=303,location=http://127.0.0.1:1/x",
        "reference=slow,delay=100ms",
        "reference=yes,status=500,accepted=yes",
        "reference=no,reset,accepted=no",
        "reference=huge,huge=3000000",
    ]);
    let run = |reference: &str| exchange(vendor.addr(), &generic(reference));
    assert_eq!((run("500").0, run("500").2.as_str()), (500, "a, b"));
    let (status, head, _) = run("429");
    assert!(
        status == 429 && head.contains("Retry-After: 1\r\n") && head.contains("RateLimit-Reset: 0.3\r\n")
    );
    let (status, head, _) = run("date");
    let date = head.lines().find_map(|line| line.strip_prefix("Retry-After: ")).expect("the header");
    let at = jiff::fmt::rfc2822::parse(date).expect("a date").timestamp().as_millisecond();
    let ahead_ms = at - onceward::clock::wall_ms();
    assert!(status == 503 && date.ends_with(" GMT") && (28_000..=31_000).contains(&ahead_ms), "{date}");
    let (status, _, body) = run("code");
    assert!(status == 503 && body.contains("5004"), "{body}");
    let (status, head, body) = run("html");
    assert!(status == 502 && head.contains("text/html") && body.starts_with("<html>"));
    let (status, head, _) = run("redirect-301");
    let here = format!("Location: {}/redirected\r\n", vendor.url());
    assert!(status == 301 && head.contains(&here), "{head}");
    assert_eq!(run("redirect-307").0, 307);
    assert!(run("elsewhere").1.contains("Location: http://127.0.0.1:1/x\r\n"));
    let begin = Instant::now();
    assert_eq!(run("slow").0, 200);
    assert!(begin.elapsed() >= Duration::from_millis(100));
    let accepted = vendor.ledger().totals().accepted;
    assert_eq!(run("yes").0, 500);
    broken(vendor.addr(), "no");
    assert_eq!(vendor.ledger().totals().accepted, accepted + 1);
    let (status, _, body) = run("huge");
    assert_eq!((status, body.len()), (200, 3_000_000));
    let refused = |reference: &str| vendor.ledger().counts(reference).refused;
    assert_eq!([refused("429"), refused("redirect-307")], [1, 1]);
    assert_eq!([refused("500"), refused("code"), refused("redirect-301"), refused("no")], [0; 4]);
}

#[test]
fn counters_of_rules() {
    let vendor = sandbox(&["reference=a*,after=1,first=1,status=500", "reference=b*,every=3,status=502"]);
    let mut stream = connect(vendor.addr());
    let mut statuses = |references: &[&str]| -> Vec<u16> {
        let one = |reference: &&str| {
            stream.write_all(generic(reference).as_bytes()).unwrap();
            answer(&mut stream).0
        };
        references.iter().map(one).collect()
    };
    assert_eq!(statuses(&["a1", "a2", "c", "a3"]), [200, 500, 200, 200]);
    assert_eq!(statuses(&["b1", "b2", "b3", "b4", "b5", "b6"]), [200, 200, 502, 200, 200, 502]);
    let share = |seed| {
        let faults = vec![Rule::parse("chance=0.5,status=500").unwrap()];
        let vendor = start(SandboxOptions { faults, seed, ..SandboxOptions::default() }).unwrap();
        let mut stream = connect(vendor.addr());
        let one = |_| {
            stream.write_all(generic("x").as_bytes()).unwrap();
            answer(&mut stream).0
        };
        (0..64).map(one).collect::<Vec<u16>>()
    };
    let first = share(7);
    assert_eq!(first, share(7), "the same seed gives the same faults");
    assert!(first.contains(&200) && first.contains(&500));
    assert_ne!(first, share(8));
}

#[test]
fn magic_recipients() {
    let vendor = start(SandboxOptions { magic: true, ..SandboxOptions::default() }).unwrap();
    let token = token(vendor.addr());
    let run = |reference: &str, to: &str| {
        let (status, _, body) = send(vendor.addr(), &token, &sms(reference, to, "x"));
        (status, body["code"].as_u64().unwrap())
    };
    assert_eq!(run("plain", "01000001234"), (200, 1000));
    assert_eq!(run("rejected", "01000000400"), (400, 2000));
    assert_eq!(run("throttled", "01000000429"), (429, 5002));
    assert_eq!(run("throttled", "01000000429"), (200, 1000));
    assert_eq!(run("renewed", "01000000401"), (400, 3002));
    assert_eq!(run("renewed", "01000000401"), (200, 1000));
    assert_eq!(run("unknown", "01000000500"), (500, 9000));
    let totals = vendor.ledger().totals();
    assert_eq!((totals.repeated, totals.duplicates), (2, 0), "a refused request is no second message");
    let off = sandbox(&[]);
    let body = r#"{"reference":"x","to":"01000000400"}"#;
    assert_eq!(exchange(off.addr(), &post("/send", "", body)).0, 200);
}

#[test]
fn rules_say_what_is_wrong_with_them() {
    for (text, part) in [
        ("", "says nothing"),
        ("every=10", "says nothing"),
        ("status=700", "200 to 599"),
        ("status", "needs an HTTP status"),
        ("status=500,reset", "second thing"),
        ("every=0,reset", "from 1"),
        ("redirect=200", "300 to 599"),
        ("redirect=305", "301, 302"),
        ("stauts=500", "unknown word `stauts`"),
        ("retry_after=1,reset", "belong to `status`"),
        ("retry_date=1s,reset", "belongs to `status`"),
        ("retry_date=5,status=429", "a time such as"),
        ("close=accept,path=/v3", "not known yet"),
        ("reset=head,recipient=0500", "not known yet"),
        ("delay=5", "a time such as"),
        ("chance=2,reset", "between 0 and 1"),
    ] {
        let error = Rule::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let rule = Rule::parse(" every=10 , cut ").unwrap();
    assert_eq!((rule.when.every, rule.then), (Some(10), onceward::sandbox::rule::Action::Cut(Cut::Body)));
}

#[test]
fn control_over_http() {
    let vendor = sandbox(&[]);
    let address = vendor.addr();
    let control = |method: &str, path: &str, body: &str| {
        let request = post(&format!("/__sandbox/{path}"), "", body).replacen("POST", method, 1);
        exchange(address, &request)
    };
    assert_eq!(control("POST", "faults", "status=500,first=1\n\npath=/v1/token,status=503\n").2, "2 rules\n");
    assert_eq!((exchange(address, &generic("a")).0, exchange(address, &generic("a")).0), (500, 200));
    assert_eq!(exchange(address, &post("/v1/token", "", "")).0, 503);
    assert_eq!(control("PUT", "faults", "delay=1ms").2, "1 rules\n");
    let (status, _, text) = control("POST", "faults", "reset\nnonsense=1");
    assert!(status == 422 && text.starts_with("line 2: "), "{text}");
    assert_eq!(control("DELETE", "faults", "").2, "no rules\n");
    assert_eq!(control("GET", "count", "").2, "2\n");
    exchange(address, &generic("b"));
    let body: Value = serde_json::from_str(&control("GET", "arrivals?recent=1", "").2).unwrap();
    assert_eq!((&body["arrived"], &body["duplicates"]), (&json!(3), &json!(1)));
    assert_eq!(body["by_reference"]["a"]["arrived"], 2);
    assert_eq!((&body["recent"][0]["reference"], body["recent"].as_array().unwrap().len()), (&json!("b"), 1));
    let body: Value = serde_json::from_str(&control("GET", "arrivals?only=duplicates", "").2).unwrap();
    assert_eq!(body["by_reference"].as_object().unwrap().len(), 1);
    let body: Value = serde_json::from_str(&control("GET", "arrivals?reference=a", "").2).unwrap();
    assert_eq!(body["arrived"], 2);
    assert_eq!(control("POST", "reset", "").0, 200);
    assert_eq!(vendor.ledger().totals().arrived, 0);
    assert_eq!(control("GET", "reset", "").0, 405);
    assert_eq!(control("POST", "refuse?for=1d", "").0, 422);
    assert_eq!(control("GET", "nowhere", "").0, 404);
}

#[test]
fn refused_connections_and_the_same_port_again() {
    let vendor = sandbox(&[]);
    let address = vendor.addr();
    let mut kept = connect(address);
    kept.write_all(generic("before").as_bytes()).unwrap();
    assert_eq!(answer(&mut kept).0, 200);
    for _ in 0..20 {
        vendor.refuse(true);
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        vendor.refuse(false);
        assert_eq!(exchange(address, &generic("again")).0, 200);
    }
    assert_eq!(read_to_end(&mut kept), (Vec::new(), Ended::Fin), "kept connections end as well");

    let mut asking = connect(address);
    asking.write_all(post("/__sandbox/refuse?for=200ms", "", "").as_bytes()).unwrap();
    assert_eq!(answer(&mut asking).0, 200);
    let begin = Instant::now();
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    while TcpStream::connect(address).is_err() {
        assert!(begin.elapsed() < LIMIT, "the sandbox did not come back");
        std::thread::yield_now();
    }
    assert_eq!(exchange(address, &generic("after")).0, 200);
}

#[test]
fn stop_is_prompt_whatever_hangs() {
    let vendor = sandbox(&["reference=hang,hang", "reference=slow,delay=1m"]);
    let address = vendor.addr();
    let idle = connect(address);
    let mut half = connect(address);
    half.write_all(b"POST /send HTTP/1.1\r\n").unwrap();
    let mut others = Vec::new();
    for reference in ["hang", "slow"] {
        let mut stream = connect(address);
        stream.write_all(generic(reference).as_bytes()).unwrap();
        others.push(stream);
        assert!(vendor.ledger().wait_for(reference, 1, LIMIT));
    }
    let begin = Instant::now();
    vendor.stop();
    assert!(begin.elapsed() < Duration::from_secs(1), "stop took {:?}", begin.elapsed());
    for mut stream in others.into_iter().chain([idle, half]) {
        assert_eq!(read_to_end(&mut stream).0, Vec::<u8>::new());
    }
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    vendor.stop();
}

#[test]
fn waiting_for_arrivals() {
    let vendor = sandbox(&[]);
    let ledger = vendor.ledger();
    assert!(!ledger.wait_for("a", 1, Duration::from_millis(20)));
    let address = vendor.addr();
    let sender = std::thread::spawn(move || {
        for _ in 0..3 {
            exchange(address, &generic("a"));
        }
    });
    assert!(ledger.wait_for("a", 2, LIMIT) && ledger.wait_total(3, LIMIT));
    sender.join().unwrap();
    assert_eq!(ledger.arrived("a"), 3);
}

#[test]
fn a_broken_off_body_is_a_head_only() {
    let vendor = sandbox(&[]);
    let mut stream = connect(vendor.addr());
    stream.write_all(b"POST /send HTTP/1.1\r\nX-Reference: half\r\nContent-Length: 100\r\n\r\n{").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&mut stream).0, Vec::<u8>::new());
    let counts = vendor.ledger().counts("half");
    assert_eq!((counts.arrived, counts.heads_only), (0, 1));
}

#[test]
fn only_loopback_unless_told_otherwise() {
    let everywhere = SandboxOptions { listen: "0.0.0.0:0".parse().unwrap(), ..SandboxOptions::default() };
    assert!(start(everywhere).is_err());
    let far = SandboxOptions { webhook: Some("http://192.0.2.1/x".to_owned()), ..SandboxOptions::default() };
    assert!(start(far).is_err());
}

#[test]
fn many_connections_at_once_lose_no_count() {
    let vendor = sandbox(&[]);
    let address = vendor.addr();
    std::thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                let mut stream = connect(address);
                for number in 0..200 {
                    stream.write_all(generic(&format!("{client}-{number}")).as_bytes()).unwrap();
                    assert_eq!(answer(&mut stream).0, 200);
                }
            });
        }
    });
    let totals = vendor.ledger().totals();
    assert_eq!((totals.arrived, totals.references, totals.repeated, totals.connections), (1600, 1600, 0, 8));
}

/// What the sandbox says to each sample, as the adapter would send it; recipients are not magic here.
#[test]
fn samples_are_good_except_where_they_are_meant_not_to_be() {
    let vendor = sandbox(&[]);
    let address = vendor.addr();
    let bearer = format!("Authorization: Bearer {}\r\n", token(address));
    let samples = include_str!("../examples/messages.jsonl");
    let mut refused = Vec::new();
    let mut stream = connect(address);
    for (number, line) in samples.lines().enumerate() {
        let row: Value = serde_json::from_str(line).unwrap();
        for column in row.as_object().unwrap().keys() {
            let known = ["dedup_key", "kind", "class", "destination", "recipient", "payload", "priority"];
            let known = known.iter().chain(&["ordering_key", "expires_at_ms"]).any(|name| name == column);
            assert!(known, "line {}: {column}", number + 1);
        }
        let recipient = row["recipient"].as_str().unwrap();
        assert!(recipient.len() == 11 && recipient.starts_with("0100000"), "line {}", number + 1);
        let mut body = row["payload"].clone();
        assert!(body.is_object(), "line {}", number + 1);
        if row["destination"] == "gateway" {
            assert_eq!(body["to"], recipient, "line {}", number + 1);
            continue;
        }
        for (name, value) in [("account", "branch01"), ("from", "0212345678"), ("to", recipient)] {
            body[name] = json!(value);
        }
        body["refkey"] = json!(format!("line-{number}"));
        stream.write_all(post("/v3/message", &bearer, &body.to_string()).as_bytes()).unwrap();
        if answer(&mut stream).0 != 200 {
            refused.push(row["dedup_key"].as_str().unwrap().to_owned());
        }
    }
    let meant = ["sms-too-long", "sms-emoji", "lms-subject-too-long", "alimtalk-too-long", "unknown-type"];
    let meant = meant.iter().chain(&["content-of-other-type", "no-content"]);
    assert_eq!(refused, meant.map(|name| format!("TROUBLE:{name}")).collect::<Vec<_>>());
    assert!(samples.lines().count() >= 240);
}
