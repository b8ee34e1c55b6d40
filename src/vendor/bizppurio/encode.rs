//! A message's payload to the body of `/v3/message`, checked before any claim. Pure.
//!
//! The payload is `{"type": "at", "content": {"at": {…}}, "resend": …, "recontent": …, "country": …, "userinfo": …,
//! "from": …}` in the vendor's own field names; account, from, to and refkey are added here. Limits are those of
//! BIZAPI v3.11.1 (2026-07-20). Reasons name fields and sizes, never a text or a number.

use serde_json::{Map, Value};

use super::content;
use crate::config::BizPpurioSettings;
use crate::message::Message;
use crate::policy::number;
use crate::vendor::Unfit;
use crate::vendor::http::template::place;

/// The reference field, bytes of UTF-8 (limit written since v3.0.1, 2023-02-22).
const REFKEY_BYTES_MAX: usize = 32;
/// Department code for billing, bytes.
const USERINFO_BYTES_MAX: usize = 50;
/// Country code, characters.
const COUNTRY_CHARS_MAX: usize = 5;
/// A reseller's identification, digits.
const RESELLERCODE_DIGITS: usize = 9;

/// What kind of channel a type is: decides which fallbacks it may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channel {
    Text,
    Kakao,
    Rcs,
    Talktalk,
}

/// The types that `/v3/message` takes.
const TYPES: &[(&str, Channel)] = &[
    ("sms", Channel::Text),
    ("lms", Channel::Text),
    ("mms", Channel::Text),
    ("at", Channel::Kakao),
    ("ai", Channel::Kakao),
    ("ut", Channel::Kakao),
    ("ui", Channel::Kakao),
    ("uw", Channel::Kakao),
    ("ul", Channel::Kakao),
    ("uc", Channel::Kakao),
    ("um", Channel::Kakao),
    ("up", Channel::Kakao),
    ("ua", Channel::Kakao),
    ("rcs", Channel::Rcs),
    ("ntalk", Channel::Talktalk),
];

/// Encodes, or says why the vendor would never take it.
pub fn body(settings: &BizPpurioSettings, message: &Message) -> Result<Vec<u8>, Unfit> {
    let refkey = message.message_id.as_str();
    if refkey.len() > REFKEY_BYTES_MAX {
        return Err(too_long("message id", refkey.len(), "bytes", REFKEY_BYTES_MAX));
    }
    let payload: Value = serde_json::from_str(&message.payload)
        .map_err(|error| Unfit::new(format!("payload is not JSON: {}", place(&error))))?;
    let payload = payload.as_object().ok_or_else(|| Unfit::new("payload is not a JSON object"))?;
    known_fields(payload)?;

    let kind = text(payload, "type")?.ok_or_else(|| Unfit::new("payload has no \"type\""))?;
    let channel = channel(kind)?;
    let contents = object(payload, "content")?.ok_or_else(|| Unfit::new("payload has no \"content\""))?;
    let part = match (contents.len(), contents.get(kind)) {
        (1, Some(Value::Object(part))) => part,
        _ => return Err(Unfit::new(format!("\"content\" must hold exactly one object, named {kind:?}"))),
    };
    let country = text(payload, "country")?;
    if country.is_some_and(|code| !(1..=COUNTRY_CHARS_MAX).contains(&code.chars().count())) {
        return Err(Unfit::new(format!("\"country\" has 1 to {COUNTRY_CHARS_MAX} characters")));
    }
    let abroad = country.is_some_and(|code| code.trim_start_matches('+') != "82");
    content::check(kind, part, abroad)?;
    fallbacks(payload, channel, part, abroad)?;
    if let Some(info) = text(payload, "userinfo")?
        && info.len() > USERINFO_BYTES_MAX
    {
        return Err(too_long("userinfo", info.len(), "bytes", USERINFO_BYTES_MAX));
    }
    if let Some(code) = text(payload, "resellercode")?
        && !(code.len() == RESELLERCODE_DIGITS && code.bytes().all(|byte| byte.is_ascii_digit()))
    {
        return Err(Unfit::new(format!("\"resellercode\" has {RESELLERCODE_DIGITS} digits")));
    }

    let mut body = Map::new();
    for key in ["type", "content", "resend", "recontent", "country", "userinfo", "resellercode"] {
        if let Some(value) = payload.get(key) {
            body.insert(key.to_owned(), value.clone());
        }
    }
    let from = number::sender(text(payload, "from")?.unwrap_or(&settings.from)).map_err(Unfit::new)?;
    let to = number::recipient(&message.recipient, country).map_err(Unfit::new)?;
    body.insert("account".to_owned(), settings.account.clone().into());
    body.insert("from".to_owned(), from.into());
    body.insert("to".to_owned(), to.into());
    body.insert("refkey".to_owned(), refkey.into());
    Ok(Value::Object(body).to_string().into_bytes())
}

fn known_fields(payload: &Map<String, Value>) -> Result<(), Unfit> {
    for key in payload.keys() {
        match key.as_str() {
            "type" | "content" | "resend" | "recontent" | "country" | "userinfo" | "resellercode"
            | "from" => {}
            // A reservation cannot be taken back, and a past time sends at once.
            "sendtime" => {
                return Err(Unfit::new(
                    "\"sendtime\" is not supported; give the row a not_before_ms instead",
                ));
            }
            "account" | "to" | "refkey" => {
                return Err(Unfit::new(format!("{key:?} is added by the agent; take it out of the payload")));
            }
            _ => return Err(Unfit::new("payload has a field that the vendor's call does not have")),
        }
    }
    Ok(())
}

/// The channel of a type; says since when a removed one is gone.
fn channel(kind: &str) -> Result<Channel, Unfit> {
    if let Some((_, channel)) = TYPES.iter().find(|(name, _)| *name == kind) {
        return Ok(*channel);
    }
    Err(Unfit::new(match kind {
        "ft" | "fi" => {
            "friend talk (ft, fi) was removed from the vendor's API on 2026-05-18; use a brand message (ut to ua)"
        }
        _ => "the type is none of sms lms mms at ai ut ui uw ul uc um up ua rcs ntalk",
    }))
}

/// `resend` and `recontent`: who may follow whom, and that each fallback could really go out.
fn fallbacks(
    payload: &Map<String, Value>,
    main: Channel,
    main_part: &Map<String, Value>,
    abroad: bool,
) -> Result<(), Unfit> {
    let recontent = object(payload, "recontent")?;
    for (kind, part) in recontent.into_iter().flatten() {
        channel(kind)?;
        let part =
            part.as_object().ok_or_else(|| Unfit::new(format!("recontent.{kind} must be an object")))?;
        content::check_fallback(kind, part, abroad)?;
    }
    let Some(resend) = object(payload, "resend")? else { return Ok(()) };
    if resend.keys().any(|key| key != "first" && key != "second") {
        return Err(Unfit::new("\"resend\" has only \"first\" and \"second\""));
    }
    let (first, second) = (text(resend, "first")?, text(resend, "second")?);
    let Some(first) = first else {
        return if second.is_some() { Err(Unfit::new("resend has a second and no first")) } else { Ok(()) };
    };
    let first_channel = channel(first)?;
    // The vendor's table (operations guide); Talktalk is not in it, so it is left to the vendor.
    let allowed = match main {
        Channel::Text => false,
        Channel::Kakao => matches!(first_channel, Channel::Text | Channel::Rcs),
        Channel::Rcs => matches!(first_channel, Channel::Text | Channel::Kakao),
        Channel::Talktalk => true,
    };
    if !allowed {
        return Err(Unfit::new(match main {
            Channel::Text => "a text message (sms, lms, mms) can have no fallback",
            _ => "resend.first is a channel that cannot follow this type",
        }));
    }
    if let Some(second) = second {
        let follows = match main {
            Channel::Kakao => first_channel == Channel::Rcs,
            Channel::Rcs => first_channel == Channel::Kakao,
            Channel::Text | Channel::Talktalk => true,
        };
        if channel(second)? != Channel::Text || !follows {
            return Err(Unfit::new(
                "resend.second can only be a text, after rcs (or after Kakao, when rcs is the main channel)",
            ));
        }
    }
    // Without a text of its own an SMS fallback takes the main one, and silently does not go if that is too long.
    for kind in [Some(first), second].into_iter().flatten() {
        if kind == "sms" && recontent.is_none_or(|recontent| !recontent.contains_key("sms")) {
            content::check_reused_as_sms(main_part, abroad)?;
        }
    }
    Ok(())
}

/// A text field of an object: absent, or text.
pub(super) fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, Unfit> {
    match object.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Unfit::new(format!("{key:?} must be text"))),
    }
}

fn object<'a>(payload: &'a Map<String, Value>, key: &str) -> Result<Option<&'a Map<String, Value>>, Unfit> {
    match payload.get(key) {
        None => Ok(None),
        Some(Value::Object(object)) => Ok(Some(object)),
        Some(_) => Err(Unfit::new(format!("{key:?} must be an object"))),
    }
}

/// The one way to say that something is too long.
pub(super) fn too_long(what: &str, measured: usize, unit: &str, allowed: usize) -> Unfit {
    Unfit::new(format!("TOO_LONG: {what} has {measured} {unit}, {allowed} are allowed"))
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
