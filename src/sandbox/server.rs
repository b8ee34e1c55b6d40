//! One thread for each connection: read a request, count it, ask for a fault, answer (or not).
//!
//! The order matters to whoever counts: a whole request is in the ledger before anything else happens to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use jiff::fmt::rfc2822;

use super::reports::{self, Accepted};
use super::rule::{Action, Cut, Facts, ReportPlan, Rule, Stage, When};
use super::{State, bizppurio, control, generic};
use crate::clock::{ms, wall_ms};
use crate::listen::wire::{Answer, Broken, Head, Incoming, Method};

/// Longest time from a request's first byte to its last.
const WHOLE_REQUEST: Duration = Duration::from_secs(10);
/// Longest wait for a client that does not read its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Fin,
    Rst,
}

/// Serves one connection to its end.
pub(super) fn serve(state: &State, stream: &TcpStream) {
    // Errors here mean that the peer is gone; there is nobody to tell.
    if stream.set_nodelay(true).is_err() || stream.set_write_timeout(Some(WRITE_TIMEOUT)).is_err() {
        return;
    }
    if requests(state, stream) == End::Rst
        && let Err(error) = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))
    {
        log::warn!("sandbox: a connection could not be reset: {error}");
    }
}

fn requests(state: &State, stream: &TcpStream) -> End {
    if let Some(rule) = state.faults.decide(Stage::Accept, &Facts::default()) {
        state.pause(rule.delay);
        return ending(&rule.then);
    }
    let Ok(mut incoming) = Incoming::new(stream, state.options.idle, WHOLE_REQUEST) else { return End::Fin };
    let mut out = Vec::with_capacity(1024);
    while !state.gate.is_closed() {
        let head = match incoming.head() {
            Ok(head) => head,
            Err(Broken::Gone) => return End::Fin,
            Err(Broken::Bad(status, why)) => return refuse_to_read(stream, status, why, &mut out),
        };
        let carries_message = carries_message(&head);
        let facts = Facts { path: head.path(), reference: &head.reference, recipient: "", carries_message };
        // Never on the way to `/__sandbox/`, or a rule for every path could not be taken back.
        let early = (!head.path().starts_with(control::PREFIX)).then_some(Stage::Head);
        if let Some(rule) = early.and_then(|stage| state.faults.decide(stage, &facts)) {
            if carries_message {
                state.ledger.head_only(&head.reference);
            }
            state.pause(rule.delay);
            return ending(&rule.then);
        }
        let Ok(body) = incoming.body(&head) else {
            if carries_message {
                state.ledger.head_only(&head.reference);
            }
            return End::Fin;
        };
        let (answer, rule) = respond(state, &head, body);
        if let Some(end) = carry_out(state, stream, &head, &answer, rule.as_deref(), &mut out) {
            return end;
        }
        incoming.done(&head);
    }
    End::Fin
}

fn ending(action: &Action) -> End {
    if matches!(action, Action::Reset(_)) { End::Rst } else { End::Fin }
}

/// Everything that is posted is a message, except to the vendor's other calls and to the sandbox itself.
fn carries_message(head: &Head) -> bool {
    let path = head.path();
    head.method == Method::Post
        && !path.starts_with(control::PREFIX)
        && !matches!(path, "/v1/token" | "/v1/result/request" | "/v1/result/confirm" | "/v2/report")
}

/// Answers a request that could not be read, and lets the answer out before the connection is closed over
/// unread bytes (which would reset it).
fn refuse_to_read(mut stream: &TcpStream, status: u16, why: &str, out: &mut Vec<u8>) -> End {
    Answer::text(status, format!("{why}\n")).write_whole(out, false);
    if stream.write_all(out).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
        let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
        let mut rest = [0; 4096];
        for _ in 0..64 {
            if !matches!(stream.read(&mut rest), Ok(count) if count > 0) {
                break;
            }
        }
    }
    End::Fin
}

/// The answer that will be given where it is given whole, and the rule that met the request.
fn respond(state: &State, head: &Head, body: &[u8]) -> (Answer, Option<Arc<Rule>>) {
    let path = head.path();
    if path.starts_with(control::PREFIX) {
        return (control::answer(state, head, body), None);
    }
    if carries_message(head) {
        return respond_to_message(state, head, body);
    }
    let rule = state.faults.decide(Stage::Read, &Facts { path, ..Facts::default() });
    let code = |code| bizppurio::code_answer(code, state.options.code_as_text, "", None);
    let mut answer = match (head.method, path) {
        (Method::Post, "/v1/token") => match state.account.token(head.authorization.as_deref()) {
            Ok(answer) => {
                state.ledger.token();
                answer
            }
            Err(refused) => code(refused),
        },
        (Method::Post, _) => match state.account.bearer(head.authorization.as_deref(), None) {
            Err(refused) => code(refused),
            Ok(()) => result_call(state, path, body).unwrap_or_else(code),
        },
        (Method::Get, "/") => Answer::text(200, WELCOME),
        (Method::Get, look_up) if look_up.starts_with(generic::LOOK_UP) => {
            let reference = &look_up[generic::LOOK_UP.len()..];
            generic::looked_up(state.ledger.counts(reference).accepted > 0)
        }
        (Method::Get, "/healthz") => Answer::text(200, "ok\n"),
        _ => code(5001),
    };
    if head.method == Method::Post {
        let (within, lines) = state.account.rate();
        if !within {
            answer = code(5002);
        }
        answer.headers.push_str(&lines);
    }
    (shaped(state, answer, rule.as_deref(), ""), rule)
}

/// The calls about results; `Err` is the vendor's code.
fn result_call(state: &State, path: &str, body: &[u8]) -> Result<Answer, u16> {
    let fields: serde_json::Value = serde_json::from_slice(body).map_err(|_| 3014_u16)?;
    match path {
        "/v1/result/request" => {
            let code = if state.options.code_as_text { "\"1000\"" } else { "1000" };
            let reports = serde_json::Value::Array(state.reports.poll());
            Ok(Answer::json(
                200,
                format!("{{\"code\":{code},\"description\":\"success\",\"report\":{reports}}}"),
            ))
        }
        "/v1/result/confirm" => {
            let list = fields.get("msgid").and_then(serde_json::Value::as_array).ok_or(3014_u16)?;
            state.reports.confirm(list.iter().filter_map(|entry| entry.get("msgid")?.as_str()));
            Err(1000)
        }
        _ => {
            let key = fields.get("messagekey").and_then(serde_json::Value::as_str).ok_or(3014_u16)?;
            Err(state.reports.post_again(key))
        }
    }
}

/// Counts the message, asks for a fault, and takes the message where vendor and fault agree to.
fn respond_to_message(state: &State, head: &Head, body: &[u8]) -> (Answer, Option<Arc<Rule>>) {
    let path = head.path();
    let vendor = path == "/v3/message";
    let (sent, generic) = if vendor {
        (bizppurio::read(body), None)
    } else {
        (Default::default(), Some(generic::read(&head.reference, body)))
    };
    let (reference, recipient) = match &generic {
        Some(generic) => (generic.reference.as_str(), generic.recipient.as_str()),
        None => (sent.reference.as_str(), sent.recipient.as_str()),
    };
    let arrived = state.ledger.arrive(reference, recipient);
    let facts = Facts { path, reference, recipient, carries_message: true };
    let rule = state
        .faults
        .decide(Stage::Read, &facts)
        .or_else(|| state.magic.as_ref().and_then(|magic| magic.decide(recipient, arrived)));
    let (within, rate_lines) = if vendor { state.account.rate() } else { (true, String::new()) };
    let verdict = match vendor {
        _ if !within => Err(5002),
        true => state.account.may_send(head.authorization.as_deref(), &sent),
        false => Ok(()),
    };
    let taken = verdict.is_ok() && rule.as_deref().is_none_or(Rule::accepts);
    let mut answer = match verdict {
        Err(code) => bizppurio::code_answer(code, state.options.code_as_text, reference, None),
        Ok(()) if !taken => Answer::json(200, "{}".to_owned()),
        Ok(()) => {
            state.ledger.accept(reference);
            if vendor {
                let (media, delivered_code) = reports::media(&sent.message_type);
                let key = state.reports.accept(Accepted {
                    reference: reference.into(),
                    recipient: recipient.into(),
                    user_info: sent.user_info.as_deref().map(Into::into),
                    media,
                    delivered_code,
                    plan: rule.as_deref().map_or(ReportPlan::default(), |rule| rule.report),
                });
                bizppurio::code_answer(1000, state.options.code_as_text, reference, Some(&key))
            } else {
                generic::accepted(state.next_number(), state.options.code_as_text)
            }
        }
    };
    answer.headers.push_str(&rate_lines);
    let answer = shaped(state, answer, rule.as_deref(), reference);
    let told = rule.as_deref().is_none_or(|rule| answers_plainly(&rule.then));
    if answer.refusal && told {
        state.ledger.refuse(reference);
    }
    (answer, rule)
}

/// Whether the answer reaches the client in one piece and in time.
fn answers_plainly(action: &Action) -> bool {
    matches!(
        action,
        Action::Usual
            | Action::Status { .. }
            | Action::VendorCode(_)
            | Action::Html(_)
            | Action::Redirect { .. }
            | Action::Close(When::Answer | When::Idle(_))
            | Action::Reset(When::Idle(_))
    )
}

/// The answer as the rule wants it.
fn shaped(state: &State, usual: Answer, rule: Option<&Rule>, reference: &str) -> Answer {
    let Some(rule) = rule else { return usual };
    match &rule.then {
        Action::Status { status, headers, body } => {
            let mut answer = Answer::json(*status, body.clone().unwrap_or_else(|| "{}".to_owned()));
            for (name, value) in headers {
                answer.header(name, value);
            }
            if let Some(date) = rule.retry_date.and_then(http_date) {
                answer.header("Retry-After", &date);
            }
            answer.refusal = (400..500).contains(status) && *status != 408;
            answer
        }
        Action::VendorCode(code) => {
            let mut answer = bizppurio::code_answer(*code, state.options.code_as_text, reference, None);
            answer
                .headers
                .push_str("RateLimit-Limit: 1000\r\nRateLimit-Remaining: 999\r\nRateLimit-Reset: 0.299\r\n");
            answer
        }
        Action::Html(status) => {
            let phrase = crate::listen::wire::reason(*status);
            let mut answer = Answer::text(
                *status,
                format!(
                    "<html><head><title>{status} {phrase}</title></head><body>{phrase}</body></html>\r\n"
                ),
            );
            answer.headers = "Content-Type: text/html\r\n".to_owned();
            answer
        }
        Action::Redirect { status, location } => {
            let mut answer = Answer::text(*status, "");
            match location {
                Some(url) => answer.header("Location", url),
                None => answer.header("Location", &format!("http://{}/redirected", state.gate.address())),
            }
            answer.refusal = matches!(status, 307 | 308);
            answer
        }
        _ => usual,
    }
}

/// The date that is so far ahead, as HTTP writes it; never earlier by the fraction of a second that it cannot hold.
fn http_date(ahead: Duration) -> Option<String> {
    let at_ms = wall_ms().saturating_add(ms(ahead)).saturating_add(999);
    let at = jiff::Timestamp::from_millisecond(at_ms).ok()?;
    rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()
}

/// Gives the answer in the way the rule wants; `Some` when the connection is to end.
fn carry_out(
    state: &State,
    mut stream: &TcpStream,
    head: &Head,
    answer: &Answer,
    rule: Option<&Rule>,
    out: &mut Vec<u8>,
) -> Option<End> {
    let delay = if head.path().starts_with(control::PREFIX) { Duration::ZERO } else { state.options.delay };
    if state.pause(delay + rule.map_or(Duration::ZERO, |rule| rule.delay)) {
        return Some(End::Fin);
    }
    let action = rule.map_or(&Action::Usual, |rule| &rule.then);
    answer.write_whole(out, head.keep_alive);
    let head_bytes = out.len() - answer.body.len();
    let part = match action {
        Action::Close(When::Read) => return Some(End::Fin),
        Action::Reset(When::Read) => return Some(End::Rst),
        Action::Hang(time) => {
            hang(stream, *time);
            return Some(End::Fin);
        }
        Action::Cut(Cut::Head) => &out[..head_bytes / 2],
        Action::Cut(Cut::Body) => &out[..head_bytes + answer.body.len() / 2],
        Action::Garbage => b"\x16\x03\x01\x02\x00 this is not HTTP\r\n\r\n".as_slice(),
        Action::Unframed => {
            answer.write_head(out, None, false);
            out.extend_from_slice(answer.body.as_bytes());
            &out[..]
        }
        Action::Huge(bytes) => {
            send_huge(stream, answer, *bytes, out);
            return Some(End::Fin);
        }
        _ => &out[..],
    };
    if stream.write_all(part).is_err() {
        return Some(End::Fin);
    }
    match action {
        Action::Cut(_) | Action::Garbage | Action::Unframed => Some(End::Fin),
        Action::Close(When::Answer) => Some(End::Fin),
        Action::Reset(When::Answer) => Some(End::Rst),
        Action::Close(When::Idle(time)) | Action::Reset(When::Idle(time)) => {
            state.pause(*time);
            Some(ending(action))
        }
        _ if !head.keep_alive => Some(End::Fin),
        _ => None,
    }
}

/// Says nothing until the time is over, the client has gone, or stop shuts the socket down.
fn hang(mut stream: &TcpStream, time: Option<Duration>) {
    let until = time.map(|time| std::time::Instant::now() + time);
    let mut unread = [0; 4096];
    loop {
        let rest = until.map(|until| until.saturating_duration_since(std::time::Instant::now()));
        if rest.is_some_and(|rest| rest.is_zero()) || stream.set_read_timeout(rest).is_err() {
            return;
        }
        match stream.read(&mut unread) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
                ) => {}
            Err(_) => return,
        }
    }
}

/// A well-formed answer of so many bytes: the usual body behind a long run of blanks.
fn send_huge(mut stream: &TcpStream, answer: &Answer, bytes: u64, out: &mut Vec<u8>) {
    let mut blanks_left = bytes.saturating_sub(answer.body.len() as u64);
    answer.write_head(out, Some(blanks_left + answer.body.len() as u64), false);
    if stream.write_all(out).is_err() {
        return;
    }
    let blanks = [b' '; 64 * 1024];
    while blanks_left > 0 {
        let count = blanks_left.min(blanks.len() as u64);
        if stream.write_all(&blanks[..count as usize]).is_err() {
            return;
        }
        blanks_left -= count;
    }
    let _ = stream.write_all(answer.body.as_bytes());
}

const WELCOME: &str = "\
This is the Onceward sandbox, a stand-in vendor. Nothing that is sent here reaches anybody.

  POST /v1/token, /v3/message, /v2/report, /v1/result/request, /v1/result/confirm   as BizPpurio
  POST any other path                                                               as a generic JSON API
  GET  /__sandbox/arrivals     what arrived, per reference
  POST /__sandbox/faults       one rule a line, e.g.  status=500,every=10
  POST /__sandbox/refuse?for=2s
";
