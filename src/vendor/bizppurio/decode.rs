//! What an answer of `/v3/message` proves. Pure.
//!
//! The code in the body decides whatever the HTTP status: the vendor's page says that errors come as 400, and its
//! own table says otherwise. The status has a say only where there is no listed code, and against an acceptance.

use serde_json::Value;

use super::codes::{Class, Code, look_up};
use crate::message::{NotSentKind, NotSentProof, Outcome};
use crate::vendor::client::Answer;
use crate::vendor::{json, pace};

/// Longest `messagekey` that is kept, characters; the document says 32.
const MESSAGE_KEY_CHARS_MAX: usize = 100;

/// What was read.
pub struct Decoded {
    /// What it means.
    pub outcome: Outcome,
    /// The token that was used is to be forgotten.
    pub token_invalid: bool,
}

/// Reads the whole answer to the send of `reference`.
pub fn message(answer: &Answer, reference: &str) -> Decoded {
    let (outcome, token_invalid) = match body(answer) {
        Some(json) => with_body(answer, &json, reference),
        None => (without_code(answer, None, "no JSON in the answer, or it is cut"), false),
    };
    Decoded { outcome, token_invalid }
}

/// The body as JSON if its end is proven; half an answer must not look like a whole one.
pub fn body(answer: &Answer) -> Option<Value> {
    if answer.framed { json::strict(&answer.body) } else { None }
}

/// `code`, which official examples show as a number and as text.
pub fn code(json: &Value) -> Option<u16> {
    match json.get("code")? {
        Value::Number(number) => number.as_u64().and_then(|code| u16::try_from(code).ok()),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

fn with_body(answer: &Answer, json: &Value, reference: &str) -> (Outcome, bool) {
    let code = code(json);
    if !echo_fits(json, reference) {
        return (unknown(answer, code, "the answer is about another reference"), false);
    }
    let Some(code) = code else {
        return (without_code(answer, None, "no code in the answer"), false);
    };
    let Some(row) = look_up(code) else {
        return (without_code(answer, Some(code), "a code that is not in our table"), false);
    };
    let outcome = match row.class {
        Class::Accepted if (200..300).contains(&answer.status) => {
            Outcome::Accepted { code: code.to_string(), vendor_ref: message_key(json) }
        }
        Class::Accepted => unknown(answer, Some(code), "accepted by its code, but not by its status"),
        Class::Rejected => {
            Outcome::Rejected { code: code.to_string(), reason: format!("code {code}: {}", row.meaning) }
        }
        Class::TokenInvalid => refused(NotSentKind::Refused, row),
        Class::Denied => refused(NotSentKind::Denied, row),
        Class::Throttled => refused(NotSentKind::Throttled(pace::wait_after_refusal(answer)), row),
        Class::Unknown => unknown(answer, Some(code), row.meaning),
    };
    (outcome, row.class == Class::TokenInvalid)
}

/// The echo of our reference: absent or empty is allowed (errors carry it "where possible").
fn echo_fits(json: &Value, reference: &str) -> bool {
    match json.get("refkey") {
        None | Some(Value::Null) => true,
        Some(Value::String(echo)) => echo.is_empty() || echo == reference,
        Some(_) => false,
    }
}

fn message_key(json: &Value) -> Option<String> {
    let key = match json.get("messagekey")? {
        Value::String(key) => key.clone(),
        Value::Number(key) => key.to_string(),
        _ => return None,
    };
    let fits =
        !key.is_empty() && key.chars().count() <= MESSAGE_KEY_CHARS_MAX && !key.contains(char::is_control);
    fits.then_some(key)
}

/// Without a listed code the status may still prove a refusal by something in front of the vendor: 401 and 403 are
/// in none of its tables, 429 is, and 307 and 308 ask for the same request elsewhere (F15).
fn without_code(answer: &Answer, code: Option<u16>, why: &str) -> Outcome {
    // A body that cannot be trusted whole, and yet speaks of an acceptance, takes the proof away.
    let speaks_of_acceptance = serde_json::from_slice::<Value>(&answer.body).is_ok_and(|json| {
        self::code(&json).and_then(look_up).is_some_and(|row| row.class == Class::Accepted)
    });
    // Nor is a body any proof that names a key twice, and so says two things.
    let contradicts_itself = answer.framed
        && json::strict(&answer.body).is_none()
        && serde_json::from_slice::<Value>(&answer.body).is_ok();
    let (kind, meaning) = match answer.status {
        _ if contradicts_itself => return unknown(answer, code, "the answer names a key twice"),
        _ if speaks_of_acceptance => return unknown(answer, code, why),
        401 | 403 => (NotSentKind::Refused, "refused at the door"),
        429 => (NotSentKind::Throttled(pace::wait_after_refusal(answer)), "too many requests"),
        307 | 308 => (NotSentKind::Refused, "redirected, not followed; put the new address into url"),
        _ => return unknown(answer, code, why),
    };
    Outcome::NotSent {
        kind,
        code: Some(code.unwrap_or(answer.status).to_string()),
        reason: format!("status {}: {meaning}", answer.status),
        proof: NotSentProof::vendor_only(),
    }
}

fn refused(kind: NotSentKind, row: &Code) -> Outcome {
    Outcome::NotSent {
        kind,
        code: Some(row.code.to_string()),
        reason: format!("code {}: {}", row.code, row.meaning),
        proof: NotSentProof::vendor_only(),
    }
}

fn unknown(answer: &Answer, code: Option<u16>, why: &str) -> Outcome {
    let shown = code.unwrap_or(answer.status).to_string();
    let reason = match code {
        Some(code) => format!("code {code}, status {}: {why}", answer.status),
        None => format!("status {}: {why}", answer.status),
    };
    Outcome::Unknown { code: Some(shown), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor::bizppurio::codes::CODES;

    const REFERENCE: &str = "ow-1";

    fn said(status: u16, body: &str, framed: bool) -> String {
        let answer = Answer { status, body: body.into(), framed, headers: Vec::new() };
        let decoded = message(&answer, REFERENCE);
        let said = match decoded.outcome {
            Outcome::Accepted { vendor_ref, .. } => format!("accepted {}", vendor_ref.unwrap_or_default()),
            Outcome::Rejected { code, .. } => format!("rejected {code}"),
            Outcome::NotSent { kind, .. } => format!("not sent {kind:?}"),
            Outcome::Unknown { .. } => "unknown".to_owned(),
        };
        if decoded.token_invalid { format!("{said}, token invalid") } else { said }
    }

    #[track_caller]
    fn check(status: u16, body: &str, wanted: &str) {
        assert_eq!(said(status, body, true), wanted, "{status} {body}");
    }

    #[test]
    fn accepted_needs_the_code_and_the_status() {
        check(
            200,
            r#"{"code":1000,"description":"success","refkey":"ow-1","messagekey":"k#1"}"#,
            "accepted k#1",
        );
        check(200, r#"{"code":"1000","refkey":"ow-1","messagekey":"k","new":[1]}"#, "accepted k");
        check(200, r#"{"code":1000}"#, "accepted ");
        check(200, r#"{"code":1000,"refkey":"ow-2","messagekey":"k"}"#, "unknown");
        check(200, r#"{"code":1000,"refkey":7}"#, "unknown");
        for status in [302, 307, 400, 401, 429, 500, 502] {
            check(status, r#"{"code":1000,"refkey":"ow-1","messagekey":"k"}"#, "unknown");
        }
    }

    #[test]
    fn the_code_decides_whatever_the_status() {
        for status in [200, 400, 401, 500] {
            check(status, r#"{"code":2000,"refkey":"ow-1"}"#, "rejected 2000");
            check(status, r#"{"code":"3002"}"#, "not sent Refused, token invalid");
            check(status, r#"{"code":3005,"refkey":""}"#, "not sent Refused, token invalid");
            check(status, r#"{"code":3010}"#, "not sent Denied");
            check(status, r#"{"code":5002}"#, "not sent Throttled(None)");
            check(status, r#"{"code":9000}"#, "unknown");
        }
    }

    #[test]
    fn every_row_is_read_as_its_class_says() {
        for row in CODES {
            let said = said(400, &format!(r#"{{"code":{}}}"#, row.code), true);
            let wanted = match row.class {
                Class::Accepted | Class::Unknown => "unknown",
                Class::Rejected => "rejected",
                Class::TokenInvalid | Class::Denied | Class::Throttled => "not sent",
            };
            assert!(said.starts_with(wanted), "{}: {said}", row.code);
        }
    }

    #[test]
    fn what_is_not_listed_proves_nothing() {
        for body in [
            "",
            "<html>",
            "{}",
            "[]",
            "null",
            r#"{"code":1001}"#,
            r#"{"code":"+1000"}"#,
            r#"{"code":1000.5}"#,
            r#"{"code":-1000}"#,
            r#"{"code":66536}"#,
            r#"{"code":null}"#,
            r#"{"code":1000"#,
            "\u{feff}{}",
        ] {
            for status in [200, 302, 400, 404, 500, 502, 503] {
                check(status, body, "unknown");
            }
        }
    }

    #[test]
    fn a_status_that_refuses_at_the_door_needs_no_code() {
        check(401, "", "not sent Refused");
        check(403, "<html>", "not sent Refused");
        check(403, r#"{"code":7777}"#, "not sent Refused");
        check(429, "<html>", "not sent Throttled(None)");
        check(307, "", "not sent Refused");
    }

    #[test]
    fn a_body_without_a_proven_end_has_no_code() {
        assert_eq!(said(200, r#"{"code":1000}"#, false), "unknown");
        assert_eq!(said(400, r#"{"code":2000}"#, false), "unknown");
        assert_eq!(said(401, "", false), "not sent Refused");
        assert_eq!(said(401, r#"{"code":1000}"#, false), "unknown");
    }
}
