//! What an answer means by the rules of the settings: `not_sent`, then `rejected`, then `accepted`, else unknown.
//!
//! Pure. The one place where the generic adapter makes a proof that nothing was sent.

use serde_json::Value;

use crate::config::{HttpSettings, LookUpSettings, Match};
use crate::message::{NotSentKind, NotSentProof, Outcome};
use crate::vendor::client::Answer;
use crate::vendor::{LookedUp, json, pace};

/// Longest reference of the vendor's that is kept, characters.
const VENDOR_REF_CHARS_MAX: usize = 200;

/// What became of one rule.
enum Verdict {
    Holds,
    Fails,
    /// The rule asks for JSON and there is none that can be trusted.
    Unreadable,
}

/// Reads one whole answer.
pub fn read(settings: &HttpSettings, answer: &Answer) -> Outcome {
    let status = answer.status.to_string();
    match answer.status {
        307 | 308 => {
            let reason = format!("status {status}: redirected, not followed; put the new address into url");
            let proof = NotSentProof::vendor_only();
            return Outcome::NotSent { kind: NotSentKind::Refused, code: Some(status), reason, proof };
        }
        // These may follow work that was done, so no rule may call them *not sent*.
        301..=303 => return unknown(status, "redirected, not followed; put the right address into url"),
        _ => {}
    }
    // A body without a proven end may be half of one.
    let json: Option<Value> = if answer.framed { json::strict(&answer.body) } else { None };
    let judge = |rule| verdict(rule, answer.status, json.as_ref());
    // The vendor's own code is worth more to people than the status, where the rule names its place.
    let code = |rule: &Match| {
        let found = rule.json.as_ref().and_then(|(pointer, _)| short_text(json.as_ref()?.pointer(pointer)?));
        found.unwrap_or_else(|| status.clone())
    };

    match judge(&settings.not_sent) {
        Verdict::Holds => {
            let kind = match answer.status {
                429 => NotSentKind::Throttled(pace::wait_after_refusal(answer)),
                _ => NotSentKind::Refused,
            };
            let reason = format!("status {status}, which the settings list as not sent");
            let code = Some(code(&settings.not_sent));
            return Outcome::NotSent { kind, code, reason, proof: NotSentProof::vendor_only() };
        }
        Verdict::Unreadable => return unreadable(status, "not_sent"),
        Verdict::Fails => {}
    }
    match judge(&settings.rejected) {
        Verdict::Holds => {
            let reason = format!("status {status}, which the settings list as rejected");
            return Outcome::Rejected { code: code(&settings.rejected), reason };
        }
        Verdict::Unreadable => return unreadable(status, "rejected"),
        Verdict::Fails => {}
    }
    match judge(&settings.accepted) {
        Verdict::Holds => Outcome::Accepted {
            code: code(&settings.accepted),
            vendor_ref: settings
                .vendor_ref
                .as_deref()
                .and_then(|pointer| short_text(json.as_ref()?.pointer(pointer)?)),
        },
        Verdict::Unreadable => unreadable(status, "accepted"),
        Verdict::Fails => unknown(status, "no rule of the settings names this answer"),
    }
}

/// What a look-up's answer says: exactly one rule must hold.
pub fn read_look_up(settings: &LookUpSettings, vendor_ref: Option<&str>, answer: &Answer) -> LookedUp {
    let json: Option<Value> = if answer.framed { json::strict(&answer.body) } else { None };
    let holds = |rule| matches!(verdict(rule, answer.status, json.as_ref()), Verdict::Holds);
    let code = |rule: &Match| {
        let found = rule.json.as_ref().and_then(|(pointer, _)| short_text(json.as_ref()?.pointer(pointer)?));
        found.unwrap_or_else(|| answer.status.to_string())
    };
    let LookUpSettings { accepted, rejected, never_received, .. } = settings;
    match (holds(accepted), holds(rejected), holds(never_received)) {
        (true, false, false) => LookedUp::Accepted {
            code: code(accepted),
            vendor_ref: vendor_ref.and_then(|pointer| short_text(json.as_ref()?.pointer(pointer)?)),
        },
        (false, true, false) => LookedUp::Rejected { code: code(rejected) },
        (false, false, true) => LookedUp::NeverReceived { code: code(never_received) },
        (false, false, false) => {
            LookedUp::Unclear(format!("status {}: no rule of lookup names this answer", answer.status))
        }
        _ => LookedUp::Unclear(format!("status {}: more than one rule of lookup holds", answer.status)),
    }
}

fn unknown(status: String, why: &str) -> Outcome {
    Outcome::Unknown { reason: format!("status {status}: {why}"), code: Some(status) }
}

fn unreadable(status: String, rule: &str) -> Outcome {
    unknown(status, &format!("the rule {rule} asks for JSON, and the answer is none, or is cut"))
}

fn verdict(rule: &Match, status: u16, json: Option<&Value>) -> Verdict {
    if !rule.status.iter().any(|range| (range.first..=range.last).contains(&status)) {
        return Verdict::Fails;
    }
    let Some((pointer, wanted)) = &rule.json else { return Verdict::Holds };
    let Some(json) = json else { return Verdict::Unreadable };
    match json.pointer(pointer) {
        Some(found) if wanted.iter().any(|wanted| same(wanted, found)) => Verdict::Holds,
        _ => Verdict::Fails,
    }
}

/// Equal as JSON; vendors write codes as numbers and as text, so `1000`, `1000.0` and `"1000"` are one.
fn same(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Number(wanted), Value::Number(found)) => {
            wanted == found || ((wanted.is_f64() || found.is_f64()) && wanted.as_f64() == found.as_f64())
        }
        (Value::Number(number), Value::String(text)) | (Value::String(text), Value::Number(number)) => {
            number.to_string() == *text
        }
        _ => wanted == found,
    }
}

/// A code or reference, if it is one: text or number, without control characters, of bounded length.
fn short_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let fits =
        !text.is_empty() && text.chars().count() <= VENDOR_REF_CHARS_MAX && !text.contains(char::is_control);
    fits.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::StatusRange;
    use serde_json::json;
    use std::time::Duration;

    fn rule(statuses: &[u16], json: Option<(&str, Value)>) -> Match {
        Match {
            status: statuses.iter().map(|&status| StatusRange { first: status, last: status }).collect(),
            json: json.map(|(pointer, value)| (pointer.to_owned(), vec![value])),
        }
    }

    fn settings() -> HttpSettings {
        HttpSettings {
            headers: Vec::new(),
            reference_header: String::new(),
            reference_bytes_max: 100,
            body: None,
            content_type: "application/json".into(),
            accepted: rule(&[200], Some(("/code", json!(1000)))),
            rejected: rule(&[200, 422], Some(("/code", json!(9)))),
            not_sent: rule(&[401, 429, 307, 302], None),
            vendor_ref: Some("/id".into()),
            idempotency_header: String::new(),
            lookup: None,
        }
    }

    fn answer(status: u16, body: &str, framed: bool) -> Answer {
        let headers = vec![("retry-after".to_owned(), "5".to_owned())];
        Answer { status, body: body.into(), framed, headers }
    }

    #[track_caller]
    fn check(status: u16, body: &str, wanted: &str) {
        let said = match read(&settings(), &answer(status, body, true)) {
            Outcome::Accepted { code, vendor_ref } => format!("accepted {code} {vendor_ref:?}"),
            Outcome::Rejected { code, .. } => format!("rejected {code}"),
            Outcome::NotSent { kind, .. } => format!("not sent {kind:?}"),
            Outcome::Unknown { .. } => "unknown".to_owned(),
        };
        assert_eq!(said, wanted, "{status} {body}");
    }

    #[test]
    fn rules_are_read_in_their_order() {
        check(200, r#"{"code":1000,"id":"v1"}"#, r#"accepted 1000 Some("v1")"#);
        check(200, r#"{"code":"1000","id":7}"#, r#"accepted 1000 Some("7")"#);
        check(200, r#"{"code":1000.0}"#, "accepted 1000.0 None");
        check(200, r#"{"code":9}"#, "rejected 9");
        check(200, r#"{"code":8}"#, "unknown");
        check(200, r#"{}"#, "unknown");
        check(200, "<html>", "unknown");
        check(422, r#"{"code":9}"#, "rejected 9");
        check(422, r#"{"code":1000}"#, "unknown");
        check(401, "", "not sent Refused");
        check(500, r#"{"code":1000}"#, "unknown");
        let wait = NotSentKind::Throttled(Some(Duration::from_secs(5)));
        check(429, "<html>", &format!("not sent {wait:?}"));
    }

    #[test]
    fn redirects_follow_f15_whatever_the_rules_say() {
        check(307, "", "not sent Refused");
        check(308, "", "not sent Refused");
        for status in [301, 302, 303] {
            check(status, r#"{"code":1000}"#, "unknown");
        }
    }

    #[test]
    fn a_body_without_a_proven_end_decides_nothing() {
        let read = |status| read(&settings(), &answer(status, r#"{"code":1000}"#, false));
        assert!(matches!(read(200), Outcome::Unknown { .. }));
        assert!(matches!(read(401), Outcome::NotSent { .. }), "the status alone is this rule's evidence");
    }

    #[test]
    fn a_look_up_is_believed_only_where_exactly_one_rule_holds() {
        let lookup = LookUpSettings {
            url: String::new(),
            accepted: rule(&[200], Some(("/state", json!("taken")))),
            rejected: rule(&[200, 409], Some(("/code", json!(9)))),
            never_received: rule(&[404], None),
            never_received_after: Duration::from_secs(600),
        };
        let check = |status, body: &str, framed| {
            let mut answer = answer(status, body, true);
            answer.framed = framed;
            match read_look_up(&lookup, Some("/id"), &answer) {
                LookedUp::Accepted { code, vendor_ref } => format!("accepted {code} {vendor_ref:?}"),
                LookedUp::Rejected { code } => format!("rejected {code}"),
                LookedUp::NeverReceived { code } => format!("never {code}"),
                LookedUp::Unclear(_) => "unclear".to_owned(),
            }
        };
        assert_eq!(check(200, r#"{"state":"taken","id":"v1"}"#, true), r#"accepted taken Some("v1")"#);
        assert_eq!(check(409, r#"{"code":9}"#, true), "rejected 9");
        assert_eq!(check(404, "<html>", true), "never 404");
        assert_eq!(check(200, r#"{"state":"taken","code":9}"#, true), "unclear", "two rules hold");
        assert_eq!(check(200, r#"{"state":"taken"}"#, false), "unclear", "the end is not proven");
        assert_eq!(check(200, r#"{"state":"never","state":"taken"}"#, true), "unclear", "it says two things");
        for status in [200, 302, 401, 429, 500, 503] {
            assert_eq!(check(status, "", true), "unclear", "{status}");
        }
    }
}
