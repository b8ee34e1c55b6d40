//! Vendors' answers: nothing is called *not sent* that is not documented so, nothing accepted that is not whole and plain,
//! and what people are told of it holds nothing of the answer's text.

use serde_json::Value;

use super::world::{self, MARK, biz, gateway, is_plain, line, look_up, tells_no_number};
use crate::message::{NotSentKind, Outcome, Timing};
use crate::vendor::bizppurio::codes::{self, Class};
use crate::vendor::bizppurio::{decode, read_login, results};
use crate::vendor::client::Answer;
use crate::vendor::http::rules;
use crate::vendor::{LookedUp, json, pace};

/// A line with the status (and `~` where the end is not proven), header lines, an empty line, the body.
pub(super) fn run(bytes: &[u8]) {
    let (first, mut rest) = line(bytes);
    let first = String::from_utf8_lossy(first);
    let Ok(status @ 100..1000) = first.trim_end_matches('~').parse::<u16>() else { return };
    let mut headers = Vec::new();
    loop {
        let (header, after) = line(rest);
        rest = after;
        if header.is_empty() {
            break;
        }
        let header = String::from_utf8_lossy(header);
        if let Some((name, value)) = header.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
    }
    let answer = Answer { status, body: rest.to_vec(), framed: !first.ends_with('~'), headers };
    let _ = biz();
    of_bizppurio(&answer);
    of_rules(&answer);
    of_look_up(&answer);
    of_login(&answer);
    let (listed, forget) = results::read(&answer);
    if listed.is_ok() {
        assert!(answer.framed && code(&answer) == Some(1000) && !forget);
    }
    for wait in [pace::wait_after_refusal(&answer), pace::pause(&answer)].into_iter().flatten() {
        assert!((pace::PAUSE_MIN..=pace::PAUSE_MAX).contains(&wait), "{wait:?}");
    }
}

/// The one code that a whole and unambiguous body names.
fn code(answer: &Answer) -> Option<u16> {
    decode::code(&json::strict(&answer.body).filter(|_| answer.framed)?)
}

/// Anything in the answer, however broken, says that the message was taken.
fn speaks_of_acceptance(answer: &Answer) -> bool {
    serde_json::from_slice::<Value>(&answer.body).is_ok_and(|json| decode::code(&json) == Some(1000))
}

#[track_caller]
fn told(reason: &str, answer: &Answer) {
    is_plain(reason);
    tells_no_number(reason, &String::from_utf8_lossy(&answer.body));
    assert!(!reason.contains(MARK), "{reason}");
}

/// Codes and references are kept: one line, of bounded length.
#[track_caller]
fn kept(text: &str) {
    is_plain(text);
    assert!(!text.is_empty() && text.chars().count() <= 200, "{text:?}");
}

fn of_bizppurio(answer: &Answer) {
    let reference = world::message("biz", "", "").message_id;
    let class = code(answer).and_then(codes::look_up).map(|row| row.class);
    let decoded = decode::message(answer, reference.as_str());
    match &decoded.outcome {
        Outcome::Accepted { code, vendor_ref } => {
            assert_eq!(class, Some(Class::Accepted));
            assert!((200..300).contains(&answer.status) && answer.framed);
            kept(code);
            vendor_ref.iter().for_each(|text| kept(text));
        }
        Outcome::Rejected { reason, .. } => {
            assert_eq!(class, Some(Class::Rejected));
            told(reason, answer);
        }
        Outcome::NotSent { kind, reason, .. } => {
            let by_code = matches!(class, Some(Class::TokenInvalid | Class::Denied | Class::Throttled));
            let by_status = class.is_none() && matches!(answer.status, 307 | 308 | 401 | 403 | 429);
            assert!(by_code || by_status, "not documented as not sent: {reason}");
            assert!(!speaks_of_acceptance(answer), "it speaks of an acceptance: {reason}");
            assert!(!matches!(kind, NotSentKind::TooLate | NotSentKind::Unreachable), "{kind:?}");
            told(reason, answer);
        }
        Outcome::Unknown { reason, .. } => told(reason, answer),
    }
    assert_eq!(decoded.token_invalid, class == Some(Class::TokenInvalid) && fits(answer, reference.as_str()));
}

/// The echo of our reference, if there is one.
fn fits(answer: &Answer, reference: &str) -> bool {
    let echo = json::strict(&answer.body).and_then(|json| json.get("refkey").cloned());
    match echo {
        None | Some(Value::Null) => true,
        Some(Value::String(echo)) => echo.is_empty() || echo == reference,
        Some(_) => false,
    }
}

fn of_rules(answer: &Answer) {
    match rules::read(gateway(), answer) {
        Outcome::Accepted { code, vendor_ref } => {
            assert!((200..300).contains(&answer.status) && answer.framed);
            let json = json::strict(&answer.body).expect("its rule asks for JSON");
            assert!(json.get("code").is_some(), "{json}");
            kept(&code);
            vendor_ref.iter().for_each(|text| kept(text));
        }
        Outcome::Rejected { reason, code } => {
            assert!(matches!(answer.status, 400 | 422), "{}", answer.status);
            told(&reason, answer);
            kept(&code);
        }
        Outcome::NotSent { reason, .. } => {
            assert!(matches!(answer.status, 307 | 308 | 401 | 403 | 429), "{}", answer.status);
            told(&reason, answer);
        }
        Outcome::Unknown { reason, .. } => told(&reason, answer),
    }
}

/// "Never received" lets a message go again: only a whole answer that says one thing may do that.
fn of_look_up(answer: &Answer) {
    let state = || json::strict(&answer.body).and_then(|json| json.get("state").cloned());
    match rules::read_look_up(look_up(), gateway().vendor_ref.as_deref(), answer) {
        LookedUp::NeverReceived { code } => {
            assert!(answer.framed && matches!(answer.status, 200 | 404));
            assert_eq!(state(), Some("never".into()), "one answer, one meaning");
            kept(&code);
        }
        LookedUp::Accepted { code, vendor_ref } => {
            assert!(answer.framed && answer.status == 200 && state() == Some("taken".into()));
            kept(&code);
            vendor_ref.iter().for_each(|text| kept(text));
        }
        LookedUp::Rejected { code } => {
            assert!(answer.framed && answer.status == 200 && state().is_some());
            kept(&code);
        }
        LookedUp::Unclear(reason) => told(&reason, answer),
    }
}

/// A login carries no message: a token that a header can carry, or *not sent*.
fn of_login(answer: &Answer) {
    match read_login(answer, Timing::default()) {
        Ok(issued) => {
            let token = issued.token.reveal();
            assert!(
                !token.is_empty() && token.len() <= 8 * 1024 && token.bytes().all(|b| b.is_ascii_graphic())
            );
            assert!(issued.life.as_secs() <= 86_400 && !issued.life.is_zero());
        }
        Err(reply) => match reply.outcome {
            Outcome::NotSent { reason, .. } => told(&reason, answer),
            other => panic!("a login came to {other:?}"),
        },
    }
}
