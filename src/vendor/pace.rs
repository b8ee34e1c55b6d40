//! How long a vendor asks us to wait: `Retry-After` and `RateLimit-*`, read leniently and kept within bounds.
//!
//! Reading only: it never waits, and an unreadable wish is no wish.

use std::time::Duration;

use jiff::fmt::rfc2822;

use super::client::Answer;
use crate::clock::wall_ms;

/// Shortest wait that is worth asking for: BizPpurio gives 0.299 without saying whether seconds are meant.
pub const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest wait that a header may impose, so that a typing error far away cannot stop a branch for days.
pub const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The first header of that name (lower case), trimmed.
pub fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// How long a refused caller should stay away: `Retry-After` (seconds or a date), else `RateLimit-Reset`.
/// Between 1 s and 1 h; `None` when neither is there and readable.
pub fn wait_after_refusal(answer: &Answer) -> Option<Duration> {
    retry_after(answer).or_else(|| reset(answer))
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    header(answer, "retry-after").and_then(|text| seconds(text).or_else(|| until(text, their_now_ms(answer))))
}

/// The pause that an answer of any kind asks for, so that later calls wait: `Retry-After`, or a budget that is used
/// up (`RateLimit-Remaining: 0`). `RateLimit-Reset` alone stands on every answer and asks for nothing.
pub fn pause(answer: &Answer) -> Option<Duration> {
    retry_after(answer).or_else(|| used_up(answer))
}

fn used_up(answer: &Answer) -> Option<Duration> {
    let remaining: f64 = header(answer, "ratelimit-remaining")?.parse().ok()?;
    (remaining <= 0.0).then(|| reset(answer).unwrap_or(PAUSE_MIN))
}

fn reset(answer: &Answer) -> Option<Duration> {
    header(answer, "ratelimit-reset").and_then(seconds)
}

/// Seconds, a fraction allowed.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    if !seconds.is_finite() {
        return None;
    }
    Some(Duration::from_secs_f64(seconds.clamp(PAUSE_MIN.as_secs_f64(), PAUSE_MAX.as_secs_f64())))
}

/// An HTTP date, seen from `now_ms`.
fn until(text: &str, now_ms: i64) -> Option<Duration> {
    let ahead_ms = http_date_ms(text)?.saturating_sub(now_ms).max(0);
    Some(Duration::from_millis(ahead_ms.unsigned_abs()).clamp(PAUSE_MIN, PAUSE_MAX))
}

/// The sender's clock, UTC milliseconds, so that a wrong clock on our side does not stretch a wait; ours where it
/// gives none.
pub fn their_now_ms(answer: &Answer) -> i64 {
    header(answer, "date").and_then(http_date_ms).unwrap_or_else(wall_ms)
}

fn http_date_ms(text: &str) -> Option<i64> {
    static PARSER: rfc2822::DateTimeParser = rfc2822::DateTimeParser::new().relaxed_weekday(true);
    PARSER.parse_timestamp(text).ok().map(jiff::Timestamp::as_millisecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(headers: &[(&str, &str)]) -> Answer {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Answer { status: 429, body: Vec::new(), framed: true, headers }
    }

    #[track_caller]
    fn check(headers: &[(&str, &str)], wait: Option<f64>) {
        let got = wait_after_refusal(&answer(headers));
        assert_eq!(got, wait.map(Duration::from_secs_f64), "{headers:?}");
    }

    #[test]
    fn reads_every_way_of_writing_a_wait() {
        check(&[], None);
        check(&[("retry-after", "7")], Some(7.0));
        check(&[("retry-after", "0")], Some(1.0));
        check(&[("retry-after", "-5")], Some(1.0));
        check(&[("retry-after", "999999999999999999999")], Some(3600.0));
        check(&[("retry-after", "soon"), ("ratelimit-reset", "3.5")], Some(3.5));
        check(&[("ratelimit-reset", "0.299")], Some(1.0));
        check(&[("ratelimit-reset", "60000")], Some(3600.0));
        check(&[("ratelimit-reset", "NaN")], None);
        check(&[("ratelimit-reset", "inf")], None);
        check(&[("ratelimit-reset", "")], None);
    }

    #[test]
    fn a_date_is_seen_from_the_senders_clock() {
        let sent = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        check(&[sent, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")], Some(30.0));
        check(&[sent, ("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")], Some(1.0));
        check(&[sent, ("retry-after", "Mon, 07 Nov 1994 08:49:37 GMT")], Some(3600.0));
        check(&[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")], Some(1.0));
    }

    #[test]
    fn a_used_up_budget_or_an_open_wish_asks_for_a_pause() {
        let pause = |headers: &[(&str, &str)]| super::pause(&answer(headers));
        assert_eq!(pause(&[("ratelimit-remaining", "12"), ("ratelimit-reset", "9")]), None);
        assert_eq!(
            pause(&[("ratelimit-remaining", "0"), ("ratelimit-reset", "9")]),
            Some(Duration::from_secs(9))
        );
        assert_eq!(pause(&[("ratelimit-remaining", "0")]), Some(PAUSE_MIN));
        assert_eq!(pause(&[("ratelimit-reset", "9")]), None);
        assert_eq!(
            pause(&[("retry-after", "4"), ("ratelimit-remaining", "0")]),
            Some(Duration::from_secs(4))
        );
    }
}
