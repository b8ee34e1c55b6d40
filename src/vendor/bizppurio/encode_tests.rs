//! Tests of the encoder: what fits, what does not and why, and that no reason repeats a number or a text.

use super::*;
use crate::config::{Reports, Secret};
use crate::message::{Class, Destination, MessageId};
use serde_json::json;

const TO: &str = "01000000001";
const ID: &str = "ow-0123456789a0123456789abcdef";

fn encode_as(id: &str, recipient: &str, payload: &str) -> Result<Value, String> {
    let settings = BizPpurioSettings {
        account: "branch01".into(),
        password: Secret::new("x".into()),
        from: "02-1234-5678".into(),
        reports: Reports::Off,
    };
    let message = Message {
        message_id: MessageId::new(id),
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

fn encode(payload: &Value) -> Result<Value, String> {
    encode_as(ID, TO, &payload.to_string())
}

fn of(kind: &str, part: Value) -> Value {
    json!({"type": kind, "content": {kind: part}})
}

fn alimtalk(part: Value) -> Value {
    let mut whole = json!({"senderkey": "s", "templatecode": "t", "message": "안녕"});
    for (key, value) in part.as_object().expect("an object") {
        whole[key] = value.clone();
    }
    of("at", whole)
}

fn with(mut payload: Value, key: &str, value: Value) -> Value {
    payload[key] = value;
    payload
}

#[track_caller]
fn fits(payload: &Value) {
    assert_eq!(encode(payload).err(), None);
}

#[track_caller]
fn refused(payload: &Value, because: &str) {
    let reason = encode(payload).expect_err("must be refused");
    assert!(reason.contains(because), "{reason}");
    assert!(!reason.contains(TO) && !reason.contains("가"), "the reason repeats a value: {reason}");
}

#[test]
fn the_reference_has_32_bytes() {
    let sms = of("sms", json!({"message": "a"})).to_string();
    assert!(encode_as(&"r".repeat(32), TO, &sms).is_ok());
    let because = |id: &str| encode_as(id, TO, &sms).expect_err("too long");
    assert_eq!(because(&"r".repeat(33)), "TOO_LONG: message id has 33 bytes, 32 are allowed");
    // Eleven Korean characters are 33 bytes.
    assert_eq!(because(&"가".repeat(11)), "TOO_LONG: message id has 33 bytes, 32 are allowed");
}

#[test]
fn texts_are_measured_as_the_network_counts() {
    let sms = |text: &str| of("sms", json!({ "message": text }));
    fits(&sms(&"가".repeat(45)));
    refused(&sms(&"가".repeat(46)), "TOO_LONG: sms has 92 bytes, 90 are allowed");
    fits(&sms(&("a".repeat(88) + "\n")));
    refused(&sms(&("a".repeat(89) + "\n")), "91 bytes");
    refused(&sms("가😀"), "sms has U+1F600");
    refused(&sms(""), "sms has no \"message\"");
    refused(&of("sms", json!({"message": 7})), "\"message\" must be text");

    let lms = |subject: &str, text: &str| of("lms", json!({"subject": subject, "message": text}));
    fits(&lms(&"가".repeat(32), &"가".repeat(1000)));
    refused(&lms("", &"가".repeat(1001)), "lms has 2002 bytes, 2000");
    refused(&lms(&"가".repeat(33), "a"), "lms subject has 66 bytes, 64");
    refused(&lms("é", "a"), "U+00E9");
}

#[test]
fn abroad_the_gsm_alphabet_counts() {
    let abroad = |text: &str| with(of("sms", json!({ "message": text })), "country", json!("1"));
    fits(&abroad(&"é".repeat(90)));
    fits(&abroad(&"가".repeat(45)));
    refused(&abroad(&("a".repeat(45) + "가")), "92 bytes");
    assert_eq!(encode_as(ID, "+1 212 555 0100", &abroad("a").to_string()).expect("fits")["to"], "2125550100");
    refused(&with(of("sms", json!({"message": "a"})), "country", json!("123456")), "country");
}

#[test]
fn alimtalk_limits() {
    fits(&alimtalk(
        json!({"message": "가".repeat(1300), "title": "가".repeat(50), "header": "가".repeat(16)}),
    ));
    refused(&alimtalk(json!({"message": "가".repeat(1301)})), "at message has 1301 characters, 1300");
    refused(&alimtalk(json!({"title": "가".repeat(51)})), "at title has 51 characters, 50");
    refused(&alimtalk(json!({"header": "가".repeat(17)})), "at header has 17 characters, 16");
    refused(&alimtalk(json!({"senderkey": ""})), "no \"senderkey\"");
    refused(&alimtalk(json!({"senderkey": "s".repeat(41)})), "41 characters, 40");
    refused(&alimtalk(json!({"templatecode": "t".repeat(33)})), "33 characters, 32");
    refused(&of("ai", json!({"senderkey": "s", "message": "a"})), "ai has no \"templatecode\"");

    let button =
        |name: usize| json!({"name": "가".repeat(name), "type": "WL", "url_mobile": "https://example.org"});
    fits(&alimtalk(json!({"button": vec![button(28); 5], "quickreply": vec![button(14); 10]})));
    refused(&alimtalk(json!({"button": vec![button(1); 6]})), "at has 6 of button, 5");
    refused(&alimtalk(json!({"button": [button(1), button(29)]})), "at button 2 name has 29 characters, 28");
    refused(&alimtalk(json!({"quickreply": vec![button(1); 11]})), "at has 11 of quickreply, 10");
    refused(&alimtalk(json!({"quickreply": [button(15)]})), "at quickreply 1 name has 15 characters, 14");
    refused(&alimtalk(json!({"button": {"name": "a"}})), "at button must be a list");
    refused(&alimtalk(json!({"button": [{"name": "a"}]})), "at button 1 has no \"type\"");
}

#[test]
fn mms_needs_pictures() {
    let mms = |files: Value| of("mms", json!({"subject": "a", "file": files}));
    let file = json!({"type": "IMG", "key": "k"});
    fits(&mms(json!([file, file, file])));
    refused(&mms(json!([])), "mms has 0 files");
    refused(&mms(json!([file, file, file, file])), "mms has 4 files");
    refused(&mms(json!([{"type": "IMG", "key": "k".repeat(41)}])), "mms file 1 key has 41");
    refused(&of("mms", json!({"message": "a"})), "mms has 0 files");
}

#[test]
fn removed_and_unknown_types_and_fields() {
    for kind in ["ft", "fi"] {
        refused(&of(kind, json!({"message": "a"})), "removed from the vendor's API on 2026-05-18");
    }
    refused(&of("fax", json!({"message": "a"})), "the type is none of");
    refused(&json!({"content": {"sms": {"message": "a"}}}), "no \"type\"");
    refused(&json!({"type": "sms"}), "no \"content\"");
    refused(
        &json!({"type": "sms", "content": {"lms": {"message": "a"}}}),
        "exactly one object, named \"sms\"",
    );
    refused(&json!({"type": "sms", "content": {"sms": {"message": "a"}, "lms": {}}}), "exactly one");
    let sms = of("sms", json!({"message": "a"}));
    refused(&with(sms.clone(), "sendtime", json!("1")), "not_before_ms");
    for key in ["account", "to", "refkey"] {
        refused(&with(sms.clone(), key, json!("x")), "added by the agent");
    }
    refused(&with(sms.clone(), "가", json!("x")), "a field that the vendor's call does not have");
    refused(&with(sms.clone(), "userinfo", json!("u".repeat(51))), "userinfo has 51 bytes, 50");
    refused(&with(sms.clone(), "resellercode", json!("12")), "resellercode");
    refused(&with(sms, "from", json!("office")), "from: ");
    assert!(encode_as(ID, TO, "{").expect_err("cut").contains("payload is not JSON"));
    assert!(encode_as(ID, TO, "[1]").expect_err("a list").contains("not a JSON object"));
}

#[test]
fn fallbacks_that_could_never_go_out_are_refused() {
    let again = |resend: Value| with(alimtalk(json!({})), "resend", resend);
    for resend in [
        json!({"first": "sms"}),
        json!({"first": "lms"}),
        json!({"first": "rcs", "second": "mms"}),
        json!({}),
    ] {
        fits(&again(resend));
    }
    refused(&again(json!({"first": "ai"})), "cannot follow");
    refused(&again(json!({"first": "sms", "second": "lms"})), "resend.second");
    refused(&again(json!({"first": "rcs", "second": "ai"})), "resend.second");
    refused(&again(json!({"second": "sms"})), "no first");
    refused(&again(json!({"first": "ft"})), "2026-05-18");
    refused(&again(json!({"third": "sms"})), "only \"first\" and \"second\"");
    refused(
        &with(of("sms", json!({"message": "a"})), "resend", json!({"first": "lms"})),
        "can have no fallback",
    );
    let rcs = of("rcs", json!({"messagebaseid": "m", "chatbotid": "c", "message": "a"}));
    fits(&with(rcs.clone(), "resend", json!({"first": "at", "second": "lms"})));
    refused(&with(rcs, "resend", json!({"first": "sms", "second": "lms"})), "resend.second");

    let recontent =
        |text: &str| with(again(json!({"first": "sms"})), "recontent", json!({"sms": {"message": text}}));
    fits(&recontent(&"가".repeat(45)));
    refused(&recontent(&"가".repeat(46)), "recontent.sms has 92 bytes, 90");
    refused(&recontent("😀"), "recontent.sms has U+1F600");
    // Without a text of its own, the SMS takes the main one.
    let long = with(alimtalk(json!({"message": "가".repeat(46)})), "resend", json!({"first": "sms"}));
    refused(&long, "which the sms fallback takes over, has 92 bytes, 90");
    fits(&with(long, "recontent", json!({"sms": {"message": "짧게"}})));
}

#[test]
fn each_type_has_its_golden_body() {
    let goldens: Value =
        serde_json::from_str(include_str!("../../../tests/data/bizppurio/bodies.json")).expect("JSON");
    let goldens = goldens.as_object().expect("by type");
    let types: Vec<_> = TYPES.iter().map(|(kind, _)| *kind).collect();
    for kind in &types {
        let golden = goldens.get(*kind).unwrap_or_else(|| panic!("no golden body of {kind}"));
        let recipient = golden["recipient"].as_str().expect("a recipient");
        let body = encode_as(ID, recipient, &golden["payload"].to_string()).expect(kind);
        assert_eq!(body, golden["body"], "{kind}: {body}");
    }
    assert_eq!(goldens.len(), types.len());
}
