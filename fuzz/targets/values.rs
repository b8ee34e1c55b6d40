//! Small texts of people: spans, sizes, urls, times, patterns, rules of the sandbox. What is read is shown alike.

use jiff::tz::TimeZone;
use rusqlite::Connection;

use crate::cli::{filter, moment};
use crate::config::{duration, size, url};
use crate::sandbox::Rule;

/// A moment of 2026, so that the same text is always the same time.
const NOW_MS: i64 = 1_780_000_000_000;

/// One text.
pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(span) = duration::parse(text) {
        assert_eq!(duration::parse(&duration::shown(span)), Some(span), "{text:?}");
        assert!(span.as_millis() <= u128::from(u64::MAX));
    }
    if let Some(bytes) = size::parse(text) {
        assert_eq!(size::parse(&format!("{bytes}B")), Some(bytes), "{text:?}");
    }
    if let Ok(ms) = filter::span_ms("--older", text) {
        assert!((0..=i64::from(u32::MAX) * 86_400_000).contains(&ms), "{text:?}: {ms}");
    }
    for zone in [TimeZone::UTC, TimeZone::fixed(jiff::tz::Offset::constant(9))] {
        match moment::at_ms(text, NOW_MS, &zone) {
            Ok(ms) => assert_eq!(moment::at_ms(text, NOW_MS, &zone).ok(), Some(ms)),
            Err(failure) => assert_eq!(failure.code, crate::exit::USAGE),
        }
    }
    of_url(text);
    of_pattern(text);
    let _ = Rule::parse(text);
}

/// An accepted url names one host, the same for the settings' rules and for the client that connects.
fn of_url(text: &str) {
    let Ok(read) = url::parse(text) else { return };
    let uri: ureq::http::Uri = match text.parse() {
        Ok(uri) => uri,
        Err(error) => panic!("accepted, but the client cannot read it: {text:?}: {error}"),
    };
    assert_eq!(uri.scheme_str() == Some("https"), read.https, "{text:?}");
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let same = host == read.host
        || host.strip_suffix('.') == Some(&read.host)
        || host.parse::<std::net::IpAddr>().ok() == read.host.parse().ok();
    assert!(same, "{text:?}: {host:?} is not {:?}", read.host);
}

/// `*` alone has a meaning, whatever else stands in a pattern: the text itself is always found by it.
fn of_pattern(text: &str) {
    thread_local!(static SQL: Connection = match Connection::open_in_memory() {
        Ok(connection) => connection,
        Err(error) => panic!("{error}"),
    });
    if text.contains('\0') || text.len() > 200 {
        return;
    }
    SQL.with(|sql| {
        let matches = |text: &str, pattern: &str| -> bool {
            match sql.query_row("SELECT ?1 GLOB ?2", [text, pattern], |row| row.get(0)) {
                Ok(matches) => matches,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(matches(text, &filter::glob(text)), "{text:?} is not found by itself");
        if !text.contains('*') {
            assert!(!matches(&format!("{text}x"), &filter::glob(text)), "{text:?} finds more than itself");
        }
    });
}
