//! Encodings and requests: bytes are counted as the vendor counts them, and no row changes the structure of a body.

use serde_json::{Value, json};

use super::world::{self, MARK, biz, is_plain};
use crate::vendor::bizppurio::encode;
use crate::vendor::euckr::{measure, measure_abroad};
use crate::vendor::http::template::{Escaping, Template};

/// One text: measured, sent as an SMS, and as the whole payload.
pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let measured = measure(text);
    let breaks = text.contains(['\r', '\n']);
    let (encoded, _, unmappable) = encoding_rs::EUC_KR.encode(text);
    assert_eq!(measured.unencodable.is_some(), unmappable, "what cannot be written is seen");
    if !unmappable && !breaks {
        assert_eq!(measured.bytes, encoded.len(), "counted as encoded");
    }
    if breaks {
        let unix = text.replace("\r\n", "\n").replace('\r', "\n");
        assert_eq!(measure(&unix), measured, "however a line break is written");
    }
    assert!(measure_abroad(text) <= text.encode_utf16().count() * 2);

    let sms = json!({ "type": "sms", "content": { "sms": { "message": text } } }).to_string();
    if as_sent(&sms, &[MARK]) {
        assert!(measured.bytes <= 90 && measured.unencodable.is_none() && !text.is_empty(), "{measured:?}");
    }
    as_sent(text, &[]);
    templates(text);
}

/// Whether BizPpurio's adapter takes the payload; the body says what the payload says, and whose it is.
fn as_sent(payload: &str, untold: &[&str]) -> bool {
    let message = world::message("biz", "010-1234-5678", payload);
    match encode::body(biz(), &message) {
        Err(unfit) => {
            is_plain(&unfit.reason);
            assert!(!untold.iter().any(|text| unfit.reason.contains(text)), "{}", unfit.reason);
            false
        }
        Ok(body) => {
            let body: Value = serde_json::from_slice(&body).expect("a body is JSON");
            let payload: Value = serde_json::from_str(payload).expect("it was read");
            for (key, value) in body.as_object().expect("an object") {
                match key.as_str() {
                    "account" => assert_eq!(value, "branch01"),
                    "from" => assert!(value.as_str().is_some_and(|from| !from.is_empty())),
                    "to" => assert!(value.as_str().is_some_and(|to| to.bytes().all(|b| b.is_ascii_digit()))),
                    "refkey" => assert_eq!(value, message.message_id.as_str()),
                    _ => assert_eq!(Some(value), payload.get(key), "{key} is not as it was given"),
                }
            }
            true
        }
    }
}

/// A text in every place of a row: the body stays one object of the same keys, a form one of the same fields.
fn templates(text: &str) {
    const JSON: &str =
        r#"{"to":"{{ recipient }}","key":{{ dedup_key }},"body":{{ payload }},"x":"a{{ payload.x }}b"}"#;
    const FORM: &str = "to={{ recipient }}&x={{ payload.x }}&end=1";
    thread_local!(static COMPILED: (Template, Template) = (
        Template::compile(JSON, Escaping::Json).expect("compiles"),
        Template::compile(FORM, Escaping::Form).expect("compiles"),
    ));
    let mut message = world::message("gateway", text, &json!({ "x": text }).to_string());
    message.dedup_key = text.to_owned();
    // Four control characters are the engine's own marks: a text with one is refused for good, before any claim.
    let marks = text.contains(['\u{1}', '\u{2}', '\u{3}', '\u{4}']);
    COMPILED.with(|(as_json, as_form)| {
        match as_json.render(&message) {
            Ok(body) => {
                let body: Value = serde_json::from_slice(&body).expect("JSON, as the content type says");
                assert_eq!(
                    body,
                    json!({ "to": text, "key": text, "body": { "x": text }, "x": format!("a{text}b") })
                );
            }
            Err(unfit) => assert!(marks, "a text can stand everywhere: {}", unfit.reason),
        }
        match as_form.render(&message) {
            Ok(body) => {
                let body = String::from_utf8(body).expect("a form is ASCII");
                let fields: Vec<&str> = body.split('&').collect();
                assert_eq!((fields.len(), fields[2]), (3, "end=1"), "{body}");
                let value = fields[1].strip_prefix("x=").expect("its name");
                assert_eq!(crate::percent::decode(&value.replace('+', " ")).as_deref(), Some(text));
            }
            Err(unfit) => panic!("a text can stand everywhere: {}", unfit.reason),
        }
    });
    // The payload as the whole template of somebody: it compiles or says why, and what it makes is bounded by its kind.
    if let Err(why) = Template::compile(text, Escaping::Json) {
        is_plain(&why);
    }
}
