//! What reaches terminals, logs, alerts and vendors out of rows: no steering character, no number in an alert, and a
//! trace context only in its one shape.

use super::world;
use crate::alert::clean::clean;
use crate::cli::output;
use crate::percent;

/// One text.
pub(super) fn run(bytes: &[u8]) {
    let text = &*String::from_utf8_lossy(bytes);
    let plain = output::plain(text);
    let steers = |c: char| {
        c.is_control()
            || ('\u{200e}'..='\u{200f}').contains(&c)
            || ('\u{202a}'..='\u{202e}').contains(&c)
            || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    assert!(!plain.contains(steers), "{plain:?}");
    assert_eq!(output::plain(&plain), plain);
    let rows = [vec!["HEAD".to_owned(), "X".to_owned()], vec![text.to_owned(), text.to_owned()]];
    let table = output::table(&rows);
    assert_eq!(table.lines().count(), 2, "{table:?}");
    let lines = output::plain_lines(text);
    assert!(!lines.contains(|c| steers(c) && c != '\n'));

    let json = output::json(&serde_json::json!({ "x": text })).map_err(|failure| failure.text);
    match json {
        Ok(json) => {
            assert!(!json.contains(steers), "{json:?}");
            let read: serde_json::Value = serde_json::from_str(&json).expect("JSON");
            assert_eq!(read["x"], text, "the same text");
        }
        Err(why) => panic!("{why}"),
    }
    let masked = output::masked(text);
    assert!(masked.chars().count() <= 9 && masked.contains("****"));
    assert!(output::cut(text, 20).chars().count() <= 20);
    assert_eq!(percent::decode(&percent::encode(text)).as_deref(), Some(text));
    if let Some(decoded) = percent::decode(text) {
        assert_eq!(percent::decode(&percent::encode(&decoded)), Some(decoded));
    }
    of_alert(text);
    of_trace(text);
}

/// Digits in a row, as people write a number, do not leave the machine.
fn of_alert(text: &str) {
    let told = clean(text);
    assert!(told.chars().count() <= 400 + 1 + 4 * 400, "{told:?}");
    assert!(!told.contains(char::is_control), "{told:?}");
    for number in ["01012345678", "010-1234-5678", "+82 10 1234 5678", "(02) 123-4567"] {
        let told = clean(&format!("{number} {text}"));
        assert!(!told.contains(number), "{told:?}");
        let told = clean(&format!("to={number}, {text}"));
        assert!(!told.contains(number), "{told:?}");
    }
}

/// Only the W3C's own form goes on; its text can do nothing in a log line or a header.
fn of_trace(text: &str) {
    let mut message = world::message("gateway", "", "");
    message.traceparent = Some(text.to_owned());
    if let Some(trace) = message.trace_context() {
        assert_eq!((trace, trace.len()), (text, 55));
        assert!(trace.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-')));
    } else {
        assert_eq!(message.traced(), "");
    }
    message.recipient = text.to_owned();
    message.payload = text.to_owned();
    message.traceparent = None;
    let (debug, bare) = (format!("{message:?}"), format!("{:?}", world::message("gateway", "", "")));
    assert_eq!(debug, bare, "a message prints neither its number nor its text");
}
