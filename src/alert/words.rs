//! A notice in words and as JSON, the same for every hook. Pure.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::book::{Notice, NoticeKind};

/// Who speaks: an owner of many branches reads these side by side.
#[derive(Clone, Debug)]
pub struct Speaker {
    /// Name of the machine.
    pub host: String,
    /// `[agent].environment`
    pub environment: String,
    /// Zone of the times.
    pub zone: TimeZone,
}

impl Speaker {
    /// This machine.
    pub fn here(environment: &str, zone: &TimeZone) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { host, environment: environment.to_owned(), zone: zone.clone() }
    }

    fn time(&self, at_ms: i64) -> String {
        Timestamp::from_millisecond(at_ms)
            .map(|at| at.to_zoned_datetime(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
            .unwrap_or_else(|_| format!("{at_ms} ms"))
    }

    /// One line for people.
    pub fn line(&self, notice: &Notice) -> String {
        let Notice { key, kind, new, total, first_at_ms, last_at_ms, text } = notice;
        let of = match key.destination.as_str() {
            "" => key.cause.as_str().to_owned(),
            destination => format!("{} {destination}", key.cause.as_str()),
        };
        let count = if new == total { format!("{new}") } else { format!("{new} new, {total} in all") };
        let (first, last) = (self.time(*first_at_ms), self.time(*last_at_ms));
        let place = match self.environment.as_str() {
            "production" => self.host.clone(),
            other => format!("{} ({other})", self.host),
        };
        match kind {
            NoticeKind::Raised => format!("[{place}] ALERT {of}: {text} ({count}, last {last})"),
            NoticeKind::Over => format!("[{place}] ALERT, over already: {of}: {text} ({count}, last {last})"),
            NoticeKind::Clear => format!("[{place}] ALL CLEAR {of} (since {first}; was: {text})"),
        }
    }

    /// One object for programs.
    pub fn json(&self, notice: &Notice) -> Value {
        json!({
            "host": self.host,
            "environment": self.environment,
            "cause": notice.key.cause.as_str(),
            "destination": notice.key.destination,
            "kind": notice.kind.as_str(),
            "new": notice.new,
            "total": notice.total,
            "first_at_ms": notice.first_at_ms,
            "last_at_ms": notice.last_at_ms,
            "text": notice.text,
            "line": self.line(notice),
        })
    }
}

/// The body of a Slack-compatible webhook. `&`, `<` and `>` are the only characters that Slack reads as its own.
pub fn slack(line: &str) -> Vec<u8> {
    let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    json!({ "text": text }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alert::Cause;
    use crate::alert::book::Key;

    #[test]
    fn lines_say_who_what_how_many_and_when() {
        let speaker =
            Speaker { host: "branch-7".into(), environment: "production".into(), zone: TimeZone::UTC };
        let of = |cause, destination: &str, kind, new| Notice {
            key: Key { cause, destination: destination.into() },
            kind,
            new,
            total: 5,
            first_at_ms: 0,
            last_at_ms: 1_000,
            text: "words".into(),
        };
        for (notice, line) in [
            (
                of(Cause::Error, "gateway", NoticeKind::Raised, 5),
                "[branch-7] ALERT ERROR gateway: words (5, last 1970-01-01 00:00:01 UTC)",
            ),
            (
                of(Cause::Error, "gateway", NoticeKind::Over, 2),
                "[branch-7] ALERT, over already: ERROR gateway: words (2 new, 5 in all, last 1970-01-01 00:00:01 UTC)",
            ),
            (
                of(Cause::Disk, "", NoticeKind::Clear, 0),
                "[branch-7] ALL CLEAR DISK (since 1970-01-01 00:00:00 UTC; was: words)",
            ),
        ] {
            assert_eq!(speaker.line(&notice), line);
        }
    }

    #[test]
    fn nobody_is_called_by_a_text() {
        assert_eq!(slack("a <!channel> & b"), br#"{"text":"a &lt;!channel&gt; &amp; b"}"#);
    }
}
