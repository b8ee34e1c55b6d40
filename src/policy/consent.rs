//! Pure: whether a recipient has opted out of a message. The rows come from `store/suppress.rs`.
//!
//! An opt-out names a recipient and may be narrowed to a destination, a channel (a payload's `type`) and a class; what
//! is left empty stands for all. SMS, LMS and MMS are one channel. A message that may fall back to a channel is judged
//! by that channel too.

use serde_json::Value;

use super::number::{country, forms};
use crate::message::Message;

/// One row of the list, as far as it decides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OptOut {
    /// Empty = every destination.
    pub destination: String,
    /// Empty = every channel.
    pub channel: String,
    /// Empty = both classes.
    pub class: String,
}

/// The forms under which a message's recipient may stand in the list (see [`forms`]).
pub fn keys(message: &Message) -> Vec<String> {
    forms(&message.recipient, country(&message.payload).as_deref())
}

/// Why the message is not sent, if one of its recipient's opt-outs says so.
pub fn judge(message: &Message, opt_outs: &[OptOut]) -> Option<String> {
    let mut channels = None;
    opt_outs.iter().find_map(|opt_out| {
        let applies = |wanted: &str, mine: &str| wanted.is_empty() || wanted == mine;
        if !applies(&opt_out.destination, message.destination.as_str())
            || !applies(&opt_out.class, message.class.as_str())
        {
            return None;
        }
        if !opt_out.channel.is_empty() {
            let channels = channels.get_or_insert_with(|| channels_of(&message.payload));
            let wanted = family(&opt_out.channel.to_ascii_lowercase()).to_owned();
            // What cannot be told is not sent: a missing "type" is no consent.
            if !channels.is_empty() && !channels.contains(&wanted) {
                return None;
            }
        }
        let mut reason = String::from("CONSENT: the recipient has opted out");
        for (what, value) in
            [("destination", &opt_out.destination), ("channel", &opt_out.channel), ("class", &opt_out.class)]
        {
            if !value.is_empty() {
                reason.push_str(&format!(" of {what} {value}"));
            }
        }
        Some(reason)
    })
}

/// The channels that a payload may use: its `type` and its fallbacks.
fn channels_of(payload: &str) -> Vec<String> {
    let payload: Value = serde_json::from_str(payload).unwrap_or(Value::Null);
    [payload.get("type"), payload.pointer("/resend/first"), payload.pointer("/resend/second")]
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|kind| family(&kind.to_ascii_lowercase()).to_owned())
        .collect()
}

/// Text messages are one channel, however long.
fn family(channel: &str) -> &str {
    match channel {
        "lms" | "mms" => "sms",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Class, Destination, MessageId};

    fn message(class: Class, recipient: &str, payload: &str) -> Message {
        Message {
            message_id: MessageId::new("ow-1"),
            dedup_key: "k".into(),
            kind: "K".into(),
            class,
            destination: Destination::new("biz"),
            recipient: recipient.into(),
            payload: payload.into(),
            ordering_key: None,
            priority: 5,
            not_before_ms: 0,
            expires_at_ms: None,
            created_at_ms: 0,
            traceparent: None,
        }
    }

    #[test]
    fn an_opt_out_reaches_as_far_as_it_says() {
        let sms = r#"{"type":"sms"}"#;
        let lms = r#"{"type":"LMS"}"#;
        let at = r#"{"type":"at"}"#;
        let at_then_sms = r#"{"type":"at","resend":{"first":"rcs","second":"sms"}}"#;
        let bare = r#"{"x":1}"#;
        let (ad, tx) = (Class::Advertising, Class::Transactional);
        for (opt_out, class, payload, skipped) in [
            (("", "", ""), tx, bare, true),
            (("", "", ""), ad, sms, true),
            (("biz", "", ""), tx, sms, true),
            (("other", "", ""), tx, sms, false),
            (("", "", "ADVERTISING"), ad, sms, true),
            (("", "", "ADVERTISING"), tx, sms, false),
            (("", "sms", ""), tx, sms, true),
            (("", "SMS", ""), tx, lms, true),
            (("", "mms", ""), tx, sms, true),
            (("", "sms", ""), tx, at, false),
            (("", "sms", ""), tx, at_then_sms, true),
            (("", "at", ""), tx, at_then_sms, true),
            (("", "sms", ""), tx, bare, true),
            (("biz", "sms", "ADVERTISING"), ad, sms, true),
            (("biz", "sms", "ADVERTISING"), tx, sms, false),
            (("other", "sms", "ADVERTISING"), ad, sms, false),
        ] {
            let (destination, channel, kind) = opt_out;
            let row = OptOut { destination: destination.into(), channel: channel.into(), class: kind.into() };
            let reason = judge(&message(class, "01000000001", payload), &[row]);
            assert_eq!(reason.is_some(), skipped, "{opt_out:?} {class:?} {payload}: {reason:?}");
            assert!(reason.is_none_or(|reason| reason.starts_with("CONSENT: ") && !reason.contains("0100")));
        }
        assert_eq!(judge(&message(tx, "01000000001", sms), &[]), None);
    }

    #[test]
    fn a_foreign_number_is_found_with_and_without_its_country() {
        let of = |recipient: &str, payload: &str| keys(&message(Class::Transactional, recipient, payload));
        assert_eq!(of("010-0000-0001", "{}")[0], "01000000001");
        assert!(of("212-555-0100", r#"{"country":"+1"}"#).contains(&"+12125550100".to_owned()));
        assert_eq!(of("212-555-0100", r#"{"a":{"country":"1"}}"#), ["2125550100"]);
    }
}
