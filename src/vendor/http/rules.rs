//! What an answer means by the rules of the settings: `not_sent`, then `rejected`, then `accepted`, else unknown.
//!
//! Pure. The one place where the generic adapter makes a proof that nothing was sent.

use serde_json::Value;

use crate::config::{HttpSettings, Match};
use crate::message::{NotSentKind, NotSentProof, Outcome};
use crate::vendor::client::Answer;
use crate::vendor::pace;

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
    let code = answer.status.to_string();
    match answer.status {
        307 | 308 => {
            return Outcome::NotSent {
                kind: NotSentKind::Refused,
                code: Some(code),
                reason: "redirected, not followed; put the new address into url".to_owned(),
                proof: NotSentProof::vendor_only(),
            };
        }
        // These may follow work that was done, so no rule may call them *not sent*.
        301..=303 => return unknown(code, "redirected, not followed; put the right address into url"),
        _ => {}
    }
    // A body without a proven end may be half of one.
    let json: Option<Value> =
        if answer.framed { serde_json::from_slice(&answer.body).ok() } else { None };

    match verdict(&settings.not_sent, answer.status, json.as_ref()) {
        Verdict::Holds => {
            let kind = match answer.status {
                429 => NotSentKind::Throttled(pace::wait_after_refusal(answer)),
                _ => NotSentKind::Refused,
            };
            let reason = format!("refused with status {code}, which the settings list as not sent");
            return Outcome::NotSent { kind, code: Some(code), reason, proof: NotSentProof::vendor_only() };
        }
        Verdict::Unreadable => return unreadable(code, "not_sent"),
        Verdict::Fails => {}
    }
    match verdict(&settings.rejected, answer.status, json.as_ref()) {
        Verdict::Holds => {
            let reason = format!("status {code}, which the settings list as rejected");
            return Outcome::Rejected { code, reason };
        }
        Verdict::Unreadable => return unreadable(code, "rejected"),
        Verdict::Fails => {}
    }
    match verdict(&settings.accepted, answer.status, json.as_ref()) {
        Verdict::Holds => Outcome::Accepted {
            code,
            vendor_ref: settings.vendor_ref.as_deref().and_then(|pointer| reference(json.as_ref()?, pointer)),
        },
        Verdict::Unreadable => unreadable(code, "accepted"),
        Verdict::Fails => unknown(code, "no rule of the settings names this answer"),
    }
}

fn unknown(code: String, reason: &str) -> Outcome {
    Outcome::Unknown { code: Some(code), reason: reason.to_owned() }
}

fn unreadable(code: String, rule: &str) -> Outcome {
    Outcome::Unknown {
        code: Some(code),
        reason: format!("the rule {rule} asks for JSON, and the answer is none, or is cut"),
    }
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

/// Equal as JSON; `1000` and `1000.0` are one number, `1000` and `"1000"` are not.
fn same(wanted: &Value, found: &Value) -> bool {
    match (wanted, found) {
        (Value::Number(wanted), Value::Number(found)) if wanted != found => {
            (wanted.is_f64() || found.is_f64()) && wanted.as_f64() == found.as_f64()
        }
        _ => wanted == found,
    }
}

fn reference(json: &Value, pointer: &str) -> Option<String> {
    let text = match json.pointer(pointer)? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let fits = !text.is_empty() && text.chars().count() <= VENDOR_REF_CHARS_MAX && !text.contains(char::is_control);
    fits.then_some(text)
}
