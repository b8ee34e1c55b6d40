//! The limits of each channel's own body, measured before any claim. Pure.
//!
//! Checks what the vendor documents as a limit and leaves the rest to the vendor, which adds fields and kinds without
//! notice: an unknown field passes. Reasons hold sizes, never a text.

use serde_json::{Map, Value};

use super::encode::{text, too_long};
use crate::vendor::Unfit;
use crate::vendor::euckr;

/// SMS, bytes of EUC-KR.
const SMS_BYTES_MAX: usize = 90;
/// LMS and MMS, bytes of EUC-KR.
const LMS_BYTES_MAX: usize = 2_000;
/// Subject of LMS and MMS, bytes of EUC-KR.
const SUBJECT_BYTES_MAX: usize = 64;
/// Pictures of an MMS.
const FILES_MAX: usize = 3;
/// Key of an uploaded picture, characters.
const FILE_KEY_CHARS_MAX: usize = 40;
/// Alimtalk text, characters; since 2025-09-19 (1,000 before, which the vendor's FAQ still advises).
const ALIMTALK_CHARS_MAX: usize = 1_300;
/// A Kakao sender key, characters.
const SENDER_KEY_CHARS_MAX: usize = 40;

/// Checks the body of the main channel.
pub fn check(kind: &str, part: &Map<String, Value>, abroad: bool) -> Result<(), Unfit> {
    check_channel(kind, part, abroad, true)
}

/// Checks a fallback's body. The vendor's older pages use `mms` for a long text, so it needs no picture here.
pub fn check_fallback(kind: &str, part: &Map<String, Value>, abroad: bool) -> Result<(), Unfit> {
    check_channel(kind, part, abroad, false)
        .map_err(|unfit| Unfit::new(unfit.reason.replacen(kind, &format!("recontent.{kind}"), 1)))
}

/// Checks the main channel's text as the SMS that it would become.
pub fn check_reused_as_sms(main: &Map<String, Value>, abroad: bool) -> Result<(), Unfit> {
    match text(main, "message")? {
        Some(message) => {
            fits("the main text, which the sms fallback takes over,", message, SMS_BYTES_MAX, abroad)
        }
        // Brand messages and RCS may keep their text elsewhere; the vendor knows what it takes from there.
        None => Ok(()),
    }
}

fn check_channel(kind: &str, part: &Map<String, Value>, abroad: bool, main: bool) -> Result<(), Unfit> {
    match kind {
        "sms" => fits("sms", needed(kind, part, "message")?, SMS_BYTES_MAX, abroad),
        "lms" | "mms" => {
            let message = match kind {
                "lms" => Some(needed(kind, part, "message")?),
                _ => text(part, "message")?,
            };
            fits(kind, message.unwrap_or_default(), LMS_BYTES_MAX, abroad)?;
            if let Some(subject) = text(part, "subject")? {
                fits(&format!("{kind} subject"), subject, SUBJECT_BYTES_MAX, abroad)?;
            }
            if kind == "mms" { files(part, main) } else { Ok(()) }
        }
        "at" | "ai" => alimtalk(kind, part),
        "rcs" => {
            needed(kind, part, "messagebaseid")?;
            needed(kind, part, "chatbotid").map(|_| ())
        }
        "ntalk" if part.is_empty() => Err(Unfit::new("ntalk is empty")),
        "ntalk" => Ok(()),
        // Brand messages: their bodies differ by type and change; the one lasting field is the sender.
        _ => sender_key(kind, part),
    }
}

fn alimtalk(kind: &str, part: &Map<String, Value>) -> Result<(), Unfit> {
    sender_key(kind, part)?;
    needed(kind, part, "templatecode")?;
    needed(kind, part, "message")?;
    for (key, chars_max) in
        [("templatecode", 32), ("message", ALIMTALK_CHARS_MAX), ("title", 50), ("header", 16)]
    {
        let chars = text(part, key)?.map_or(0, |text| text.chars().count());
        if chars > chars_max {
            return Err(too_long(&format!("{kind} {key}"), chars, "characters", chars_max));
        }
    }
    buttons(kind, part, "button", 5, 28)?;
    buttons(kind, part, "quickreply", 10, 14)
}

fn sender_key(kind: &str, part: &Map<String, Value>) -> Result<(), Unfit> {
    let chars = needed(kind, part, "senderkey")?.chars().count();
    if chars > SENDER_KEY_CHARS_MAX {
        return Err(too_long(&format!("{kind} senderkey"), chars, "characters", SENDER_KEY_CHARS_MAX));
    }
    Ok(())
}

fn buttons(
    kind: &str,
    part: &Map<String, Value>,
    key: &str,
    count_max: usize,
    name_chars_max: usize,
) -> Result<(), Unfit> {
    let buttons = match part.get(key) {
        None => return Ok(()),
        Some(Value::Array(buttons)) => buttons,
        Some(_) => return Err(Unfit::new(format!("{kind} {key} must be a list"))),
    };
    if buttons.len() > count_max {
        return Err(Unfit::new(format!("{kind} has {} of {key}, {count_max} are allowed", buttons.len())));
    }
    for (index, button) in buttons.iter().enumerate() {
        let position = index + 1;
        let button = button
            .as_object()
            .ok_or_else(|| Unfit::new(format!("{kind} {key} {position} must be an object")))?;
        let chars = needed(&format!("{kind} {key} {position}"), button, "name")?.chars().count();
        if chars > name_chars_max {
            return Err(too_long(
                &format!("{kind} {key} {position} name"),
                chars,
                "characters",
                name_chars_max,
            ));
        }
        needed(&format!("{kind} {key} {position}"), button, "type")?;
    }
    Ok(())
}

fn files(part: &Map<String, Value>, needed_at_all: bool) -> Result<(), Unfit> {
    let files = match part.get("file") {
        None if !needed_at_all => return Ok(()),
        // The vendor answers 3014 to an empty list.
        None => &[][..],
        Some(Value::Array(files)) => files,
        Some(_) => return Err(Unfit::new("mms file must be a list")),
    };
    if !(1..=FILES_MAX).contains(&files.len()) {
        return Err(Unfit::new(format!("mms has {} files, 1 to {FILES_MAX} are allowed", files.len())));
    }
    for (index, file) in files.iter().enumerate() {
        let what = format!("mms file {}", index + 1);
        let file = file.as_object().ok_or_else(|| Unfit::new(format!("{what} must be an object")))?;
        let chars = needed(&what, file, "key")?.chars().count();
        if chars > FILE_KEY_CHARS_MAX {
            return Err(too_long(&format!("{what} key"), chars, "characters", FILE_KEY_CHARS_MAX));
        }
    }
    Ok(())
}

/// A text that must be there and not be empty.
fn needed<'a>(kind: &str, part: &'a Map<String, Value>, key: &str) -> Result<&'a str, Unfit> {
    match text(part, key)? {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(Unfit::new(format!("{kind} has no {key:?}"))),
    }
}

/// Whether a text goes into `bytes_max`, counted as its network counts.
fn fits(what: &str, text: &str, bytes_max: usize, abroad: bool) -> Result<(), Unfit> {
    let bytes = if abroad {
        euckr::measure_abroad(text)
    } else {
        let measured = euckr::measure(text);
        if let Some(character) = measured.unencodable {
            return Err(Unfit::new(format!(
                "{what} has U+{:04X}, which a Korean text message cannot carry",
                u32::from(character)
            )));
        }
        measured.bytes
    };
    if bytes > bytes_max {
        return Err(too_long(what, bytes, "bytes", bytes_max));
    }
    Ok(())
}

/// A text with a limit, as the vendor counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sized {
    /// Which text, e.g. `sms message`.
    pub what: String,
    /// Its size.
    pub measured: usize,
    /// `bytes` or `characters`.
    pub unit: &'static str,
    /// The limit.
    pub allowed: usize,
    /// Characters that CP949 has and EUC-KR proper (KS X 1001) has not: the vendor does not say what becomes of them.
    pub outside_ksx1001: usize,
}

/// The sizes of a payload's texts, fallbacks too. For showing; what does not fit is refused elsewhere.
pub fn sizes(payload: &Value) -> Vec<Sized> {
    let abroad = payload
        .get("country")
        .and_then(Value::as_str)
        .is_some_and(|code| code.trim_start_matches('+') != "82");
    let mut found = Vec::new();
    for (holder, prefix) in [("content", ""), ("recontent", "fallback ")] {
        for (kind, part) in payload.get(holder).and_then(Value::as_object).into_iter().flatten() {
            let text_of = |key: &str| part.get(key).and_then(Value::as_str);
            let limits: &[(&str, usize)] = match kind.as_str() {
                "sms" => &[("message", SMS_BYTES_MAX)],
                "lms" | "mms" => &[("subject", SUBJECT_BYTES_MAX), ("message", LMS_BYTES_MAX)],
                "at" | "ai" => &[("message", ALIMTALK_CHARS_MAX)],
                _ => &[],
            };
            for (key, allowed) in limits {
                let Some(text) = text_of(key) else { continue };
                let (measured, unit, outside_ksx1001) = match kind.as_str() {
                    "at" | "ai" => (text.chars().count(), "characters", 0),
                    _ if abroad => (euckr::measure_abroad(text), "bytes", 0),
                    _ => {
                        let measured = euckr::measure(text);
                        (measured.bytes, "bytes", measured.outside_ksx1001)
                    }
                };
                let what = format!("{prefix}{kind} {key}");
                found.push(Sized { what, measured, unit, allowed: *allowed, outside_ksx1001 });
            }
        }
    }
    found
}

impl std::fmt::Display for Sized {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} of {} {}", self.what, self.measured, self.allowed, self.unit)?;
        if self.outside_ksx1001 > 0 {
            write!(
                f,
                ", {} character(s) outside EUC-KR proper (in CP949 only): some networks show ? for them",
                self.outside_ksx1001
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_name_every_text_with_a_limit_and_flag_what_is_only_in_cp949() {
        let shown = |payload: &str| -> Vec<String> {
            sizes(&serde_json::from_str(payload).expect("JSON")).iter().map(Sized::to_string).collect()
        };
        assert_eq!(shown(r#"{"content":{"sms":{"message":"가나\nab"}}}"#), ["sms message 8 of 90 bytes"]);
        assert_eq!(
            shown(r#"{"content":{"sms":{"message":"똠방각하"}}}"#),
            [
                "sms message 8 of 90 bytes, 1 character(s) outside EUC-KR proper (in CP949 only): some networks show ? for them"
            ]
        );
        assert_eq!(
            shown(
                r#"{"content":{"at":{"message":"안녕"}},"recontent":{"lms":{"subject":"가","message":"a\r\nb"}}}"#
            ),
            [
                "at message 2 of 1300 characters",
                "fallback lms subject 2 of 64 bytes",
                "fallback lms message 4 of 2000 bytes"
            ]
        );
        assert_eq!(
            shown(r#"{"country":"1","content":{"sms":{"message":"é가"}}}"#),
            ["sms message 4 of 90 bytes"]
        );
        assert!(shown("{}").is_empty());
    }
}
