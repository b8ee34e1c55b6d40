//! A message's payload to the body of `/v3/message`, checked before any claim. Pure.
//!
//! The payload is `{"type": "at", "content": {"at": {...}}, "resend": .., "recontent": .., "country": .., "userinfo": ..,
//! "from": ..}` in the vendor's own field names; account, from, to and refkey are added here. Limits: the vendor's
//! document v3.11.1 (2026-07-20). Reasons name sizes and fields, never texts or numbers.

use serde_json::{Map, Value, json};

use crate::config::BizPpurioSettings;
use crate::message::Message;
use crate::vendor::Unfit;
use crate::vendor::euckr;
use crate::vendor::http::unfit;

/// Types that `/v3/message` takes.
const TYPES: &[&str] =
    &["sms", "lms", "mms", "at", "ai", "ut", "ui", "uw", "ul", "uc", "um", "up", "ua", "rcs", "ntalk"];
/// The reference field, bytes of UTF-8 (since v3.0.1, 2023-02-22).
const REFKEY_BYTES_MAX: usize = 32;
const SMS_BYTES_MAX: usize = 90;
const LMS_BYTES_MAX: usize = 2000;
const SUBJECT_BYTES_MAX: usize = 64;
/// Since 2025-09-19; 1,000 before.
const ALIMTALK_CHARS_MAX: usize = 1300;
const BUTTONS_MAX: usize = 5;
const QUICK_REPLIES_MAX: usize = 10;

/// Encodes, or says why the vendor would never take it.
pub fn body(settings: &BizPpurioSettings, message: &Message) -> Result<Vec<u8>, Unfit> {
    let refkey = message.message_id.as_str();
    if refkey.len() > REFKEY_BYTES_MAX {
        return Err(unfit(format!(
            "the message id has {} bytes, refkey takes {REFKEY_BYTES_MAX}",
            refkey.len()
        )));
    }
    let payload: Value =
        serde_json::from_str(&message.payload).map_err(|_| unfit("the payload is not valid JSON"))?;
    let payload = payload.as_object().ok_or_else(|| unfit("the payload is not a JSON object"))?;
    let kind =
        payload.get("type").and_then(Value::as_str).ok_or_else(|| unfit("the payload has no \"type\""))?;
    if matches!(kind, "ft" | "fi") {
        return Err(unfit(
            "friend talk (ft, fi) was removed by the vendor on 2026-05-18; use a brand message",
        ));
    }
    if !TYPES.contains(&kind) {
        return Err(unfit("the payload's \"type\" is none of the vendor's"));
    }
    let content = payload
        .get("content")
        .and_then(Value::as_object)
        .ok_or_else(|| unfit("the payload has no \"content\" object"))?;
    let part = content
        .get(kind)
        .filter(|_| content.len() == 1)
        .ok_or_else(|| unfit(format!("\"content\" must hold exactly one object named {kind:?}")))?;
    check(kind, part)?;
    let mut body = Map::new();
    for key in payload.keys() {
        match key.as_str() {
            "type" | "content" | "from" | "resend" | "recontent" | "country" | "userinfo"
            | "resellercode" => {}
            "sendtime" => return Err(unfit("\"sendtime\" is not used: not_before_ms of the row says when")),
            "account" | "to" | "refkey" => {
                return Err(unfit(format!(
                    "{key:?} is added by the agent and must not stand in the payload"
                )));
            }
            _ => return Err(unfit("the payload has a field that the vendor does not know")),
        }
    }
    if let Some(recontent) = payload.get("recontent").and_then(Value::as_object) {
        for (kind, part) in recontent {
            check(kind, part)?; // an SMS fallback above 90 bytes would silently not be sent
        }
    }
    let from = payload.get("from").and_then(Value::as_str).unwrap_or(&settings.from);
    let foreign = payload.contains_key("country");
    body.insert("account".into(), settings.account.as_str().into());
    body.insert("type".into(), kind.into());
    body.insert("from".into(), number(from, false, "from")?.into());
    body.insert("to".into(), number(&message.recipient, foreign, "recipient")?.into());
    body.insert("refkey".into(), refkey.into());
    body.insert("content".into(), Value::Object(content.clone()));
    for key in ["resend", "recontent", "country", "userinfo", "resellercode"] {
        if let Some(value) = payload.get(key) {
            body.insert(key.into(), value.clone());
        }
    }
    serde_json::to_vec(&json!(body)).map_err(|_| unfit("the payload cannot be written as JSON"))
}

/// Digits alone; `+82 10-…` becomes `010…`. A foreign number goes by `country` and has no 00 or +.
fn number(text: &str, foreign: bool, field: &str) -> Result<String, Unfit> {
    let mut digits: String = text.chars().filter(|c| !matches!(c, '-' | ' ' | '(' | ')' | '.')).collect();
    if !foreign && let Some(rest) = digits.strip_prefix("+82").or_else(|| digits.strip_prefix("0082")) {
        digits = format!("0{}", rest.trim_start_matches('0'));
    }
    let length = digits.len();
    if !(3..=16).contains(&length) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(unfit(format!(
            "{field}: 3 to 16 digits were expected (it has {} characters)",
            text.chars().count()
        )));
    }
    if !foreign && field == "recipient" && !digits.starts_with('0') {
        return Err(unfit(
            "recipient: a domestic number begins with 0; a foreign one needs \"country\" in the payload",
        ));
    }
    Ok(digits)
}

fn check(kind: &str, part: &Value) -> Result<(), Unfit> {
    let part = part.as_object().ok_or_else(|| unfit(format!("\"content\".{kind} must be an object")))?;
    let text = |key: &str| part.get(key).and_then(Value::as_str);
    let message = text("message");
    match kind {
        "sms" => within("sms", message.ok_or_else(|| unfit("sms has no \"message\""))?, SMS_BYTES_MAX)?,
        "lms" | "mms" => {
            if kind == "lms" || message.is_some() {
                within(kind, message.ok_or_else(|| unfit("lms has no \"message\""))?, LMS_BYTES_MAX)?;
            }
            within(&format!("{kind} subject"), text("subject").unwrap_or_default(), SUBJECT_BYTES_MAX)?;
            if kind == "mms"
                && part
                    .get("file")
                    .and_then(Value::as_array)
                    .is_none_or(|files| files.is_empty() || files.len() > 3)
            {
                return Err(unfit("mms needs 1 to 3 files"));
            }
        }
        "at" | "ai" => {
            let chars = message.ok_or_else(|| unfit(format!("{kind} has no \"message\"")))?.chars().count();
            if chars > ALIMTALK_CHARS_MAX {
                return Err(unfit(format!(
                    "TOO_LONG: {kind} has {chars} characters, {ALIMTALK_CHARS_MAX} are allowed"
                )));
            }
            for (key, most) in [("senderkey", 40), ("templatecode", 32)] {
                let length = text(key).ok_or_else(|| unfit(format!("{kind} has no {key:?}")))?.len();
                if length == 0 || length > most {
                    return Err(unfit(format!(
                        "{kind}.{key} has {length} characters, 1 to {most} are allowed"
                    )));
                }
            }
            for (key, most) in [("title", 50), ("header", 16)] {
                let chars = text(key).unwrap_or_default().chars().count();
                if chars > most {
                    return Err(unfit(format!(
                        "TOO_LONG: {kind}.{key} has {chars} characters, {most} are allowed"
                    )));
                }
            }
            for (key, most, name_most) in [("button", BUTTONS_MAX, 28), ("quickreply", QUICK_REPLIES_MAX, 14)]
            {
                let list = part.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                if list.len() > most {
                    return Err(unfit(format!(
                        "{kind}.{key} has {} entries, {most} are allowed",
                        list.len()
                    )));
                }
                if list
                    .iter()
                    .any(|entry| entry["name"].as_str().unwrap_or_default().chars().count() > name_most)
                {
                    return Err(unfit(format!("{kind}.{key}: a name is longer than {name_most} characters")));
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn within(what: &str, text: &str, bytes_max: usize) -> Result<(), Unfit> {
    let measured = euckr::measure(text);
    if let Some(character) = measured.unencodable {
        return Err(unfit(format!(
            "{what} has a character that no Korean text message can carry (U+{:04X})",
            character as u32
        )));
    }
    if measured.bytes > bytes_max {
        return Err(unfit(format!("TOO_LONG: {what} has {} bytes, {bytes_max} are allowed", measured.bytes)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Reports, Secret};
    use crate::message::{Class, Destination, MessageId};

    fn encode(recipient: &str, payload: &str) -> Result<Value, String> {
        let settings = BizPpurioSettings {
            account: "branch01".into(),
            password: Secret::new("x".into()),
            from: "0212345678".into(),
            reports: Reports::Off,
        };
        let message = Message {
            message_id: MessageId::new("ow-0123456789a0123456789abcdef"),
            dedup_key: "k".into(),
            kind: "K".into(),
            class: Class::Transactional,
            destination: Destination::new("bizppurio"),
            recipient: recipient.into(),
            payload: payload.into(),
            ordering_key: None,
            priority: 5,
            not_before_ms: 0,
            expires_at_ms: None,
            created_at_ms: 0,
            traceparent: None,
        };
        body(&settings, &message)
            .map(|bytes| serde_json::from_slice(&bytes).expect("JSON"))
            .map_err(|unfit| unfit.reason)
    }

    #[test]
    fn each_type_gets_the_common_fields_and_keeps_its_content() {
        for kind in TYPES {
            let part = match *kind {
                "at" | "ai" => r#"{"senderkey":"s","templatecode":"t","message":"안녕"}"#,
                "mms" => r#"{"subject":"제목","message":"안녕","file":[{"type":"IMG","key":"k"}]}"#,
                _ => r#"{"message":"안녕"}"#,
            };
            let body =
                encode("010-0000-0001", &format!(r#"{{"type":"{kind}","content":{{"{kind}":{part}}}}}"#))
                    .expect(kind);
            assert_eq!(body["account"], "branch01");
            assert_eq!(body["from"], "0212345678");
            assert_eq!(body["to"], "01000000001");
            assert_eq!(body["refkey"], "ow-0123456789a0123456789abcdef");
            assert_eq!(body["content"][kind], serde_json::from_str::<Value>(part).expect("JSON"));
        }
    }

    #[track_caller]
    fn refused(recipient: &str, payload: &str, because: &str) {
        let reason = encode(recipient, payload).expect_err("must be refused");
        assert!(reason.contains(because), "{reason}");
        assert!(!reason.contains(recipient) || recipient.is_empty(), "no number in {reason}");
    }

    #[test]
    fn what_the_vendor_would_never_take_is_refused_with_its_size() {
        let to = "01000000001";
        let sms =
            |text: &str| format!(r#"{{"type":"sms","content":{{"sms":{{"message":{}}}}}}}"#, json!(text));
        assert!(encode(to, &sms(&"가".repeat(45))).is_ok());
        refused(to, &sms(&"가".repeat(46)), "92 bytes, 90");
        refused(to, &sms("좋아요 😀"), "U+1F600");
        refused(
            to,
            r#"{"type":"lms","content":{"lms":{"message":"a","subject":"가가가가가가가가가가가가가가가가가가가가가가가가가가가가가가가가가"}}}"#,
            "66 bytes, 64",
        );
        refused(
            to,
            &format!(
                r#"{{"type":"at","content":{{"at":{{"senderkey":"s","templatecode":"t","message":"{}"}}}}}}"#,
                "가".repeat(1301)
            ),
            "1301 characters, 1300",
        );
        refused(
            to,
            r#"{"type":"at","content":{"at":{"senderkey":"s","templatecode":"t","message":"a"}},"recontent":{"sms":{"message":"aaaaaaaaaabbbbbbbbbbccccccccccaaaaaaaaaabbbbbbbbbbccccccccccaaaaaaaaaabbbbbbbbbbccccccccccX"}}}"#,
            "91 bytes, 90",
        );
        refused(to, r#"{"type":"ft","content":{"ft":{}}}"#, "2026-05-18");
        refused(to, r#"{"type":"fax","content":{"fax":{}}}"#, "none of the vendor's");
        refused(to, r#"{"type":"sms","content":{"sms":{"message":"a"},"lms":{}}}"#, "exactly one");
        refused(to, r#"{"type":"sms","content":{"sms":{"message":"a"}},"sendtime":"1"}"#, "not_before_ms");
        refused(to, r#"{"type":"sms","content":{"sms":{"message":"a"}},"refkey":"x"}"#, "added by the agent");
        refused(to, "[1]", "not a JSON object");
        refused(to, "not json", "not valid JSON");
        refused("abc", &sms("a"), "digits");
        refused("1012345678", &sms("a"), "begins with 0");
    }

    #[test]
    fn numbers_become_domestic() {
        let sms = r#"{"type":"sms","content":{"sms":{"message":"a"}}}"#;
        assert_eq!(encode("+82 10-0000-0001", sms).expect("fits")["to"], "01000000001");
        let abroad = r#"{"type":"sms","content":{"sms":{"message":"a"}},"country":"1"}"#;
        assert_eq!(encode("2125550100", abroad).expect("fits")["to"], "2125550100");
    }
}
