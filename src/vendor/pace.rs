//! How long a vendor asks us to wait, read leniently and kept within bounds: `Retry-After`, and its word on the budget,
//! which comes as `RateLimit-Remaining` and `-Reset`, the same with `X-` before it, or in one field, `RateLimit`:
//! `limit=100, remaining=0, reset=30` (draft-ietf-httpapi-ratelimit-headers-03 on) or `"policy";r=0;t=30` (-08 on).
//!
//! Reading only: it never waits, and an unreadable wish is no wish. Whatever it reads can only add a wait.

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

/// How long a refused caller should stay away: `Retry-After` (seconds or a date), else when a budget is there again, one
/// that is used up before any other. Between 1 s and 1 h; `None` when nothing of it is there and readable.
pub fn wait_after_refusal(answer: &Answer) -> Option<Duration> {
    retry_after(answer).or_else(|| {
        let budgets = budgets(answer);
        let longest = |of: &dyn Fn(&Budget) -> bool| {
            budgets.iter().filter(|budget| of(budget)).filter_map(|budget| budget.reset).max()
        };
        longest(&|budget| budget.used_up).or_else(|| longest(&|_| true))
    })
}

fn retry_after(answer: &Answer) -> Option<Duration> {
    header(answer, "retry-after").and_then(|text| seconds(text).or_else(|| until(text, their_now_ms(answer))))
}

/// The pause that an answer of any kind asks for, so that later calls wait: `Retry-After`, or a budget that is used
/// up (nothing remains). A time of its reset alone stands on every answer and asks for nothing.
pub fn pause(answer: &Answer) -> Option<Duration> {
    let used_up = || {
        budgets(answer)
            .into_iter()
            .filter(|budget| budget.used_up)
            .map(|budget| budget.reset.unwrap_or(PAUSE_MIN))
            .max()
    };
    retry_after(answer).or_else(used_up)
}

/// What a vendor says of one of its budgets.
#[derive(Default)]
struct Budget {
    used_up: bool,
    /// When it is full again, from now.
    reset: Option<Duration>,
}

impl Budget {
    /// Takes in one `name=value` of the one-field forms.
    fn take(&mut self, remaining: [&str; 2], pair: &str) {
        let Some((name, value)) = pair.split_once('=') else { return };
        let (name, value) = (name.trim(), value.trim());
        if name.eq_ignore_ascii_case(remaining[0]) {
            self.used_up = nothing(value);
        } else if name.eq_ignore_ascii_case(remaining[1]) {
            self.reset = seconds(value);
        }
    }
}

fn nothing(remaining: &str) -> bool {
    remaining.parse::<f64>().is_ok_and(|remaining| remaining <= 0.0)
}

/// All budgets that an answer tells of, in whichever way.
fn budgets(answer: &Answer) -> Vec<Budget> {
    let plain = |remaining, reset| Budget {
        used_up: header(answer, remaining).is_some_and(nothing),
        reset: header(answer, reset).and_then(|text| moment(text, answer)),
    };
    let mut all = vec![
        plain("ratelimit-remaining", "ratelimit-reset"),
        plain("x-ratelimit-remaining", "x-ratelimit-reset"),
    ];
    for (_, value) in answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("ratelimit")) {
        let value = unquoted(value);
        // The older form has one budget in several members, the newer one a budget in each.
        let mut whole = Budget::default();
        for member in value.split(',') {
            let mut own = Budget::default();
            for pair in member.split(';') {
                whole.take(["remaining", "reset"], pair);
                own.take(["r", "t"], pair);
            }
            all.push(own);
        }
        all.push(whole);
    }
    all
}

/// The text without what stands in quotes: a policy's name may hold any sign.
fn unquoted(text: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    text.chars()
        .filter(|letter| {
            let inside = quoted;
            match letter {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                _ => {}
            }
            !inside && *letter != '"'
        })
        .collect()
}

/// From this on a number is no span but a Unix time (2001-09-09).
const UNIX_S_MIN: f64 = 1e9;
/// From this on it is one in milliseconds.
const UNIX_MS_MIN: f64 = 1e12;

/// Seconds from now, or a Unix time in seconds or milliseconds, seen from the sender's clock.
fn moment(text: &str, answer: &Answer) -> Option<Duration> {
    let number: f64 = text.parse().ok()?;
    if !(UNIX_S_MIN..1e15).contains(&number) {
        return seconds(text);
    }
    let at_ms = if number < UNIX_MS_MIN { number * 1e3 } else { number };
    Some(ahead(at_ms as i64, their_now_ms(answer)))
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
    Some(ahead(http_date_ms(text)?, now_ms))
}

fn ahead(at_ms: i64, now_ms: i64) -> Duration {
    let ahead_ms = at_ms.saturating_sub(now_ms).max(0);
    Duration::from_millis(ahead_ms.unsigned_abs()).clamp(PAUSE_MIN, PAUSE_MAX)
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
    fn a_budget_is_read_in_every_way_that_is_in_use() {
        let sent = ("date", "Sun, 06 Nov 1994 08:49:37 GMT"); // 784_111_777: before the first Unix time that is taken for one
        let later = ("date", "Fri, 01 Jan 2027 00:00:00 GMT"); // 1_798_761_600
        for (headers, after_refusal, pause) in [
            // draft -08 on: a list of policies
            (&[("RateLimit", "\"default\";r=0;t=30")][..], Some(30.0), Some(30.0)),
            (&[("ratelimit", "\"default\";r=50;t=30")], Some(30.0), None),
            (&[("ratelimit", "\"a, b;r=0;t=99 \\\" r=0\"; r=1; t=7")], Some(7.0), None),
            (
                &[("ratelimit", "\"burst\";r=3;t=2, \"day\";r=0;t=600,\"x\";r=9;t=3000")],
                Some(600.0),
                Some(600.0),
            ),
            (&[("ratelimit", "burst;r=0")], None, Some(1.0)),
            (&[("ratelimit", "\"p\";r=0;t=999999999")], Some(3600.0), Some(3600.0)),
            (&[("ratelimit", "\"p\";r=0;t=-5")], Some(1.0), Some(1.0)),
            (&[("ratelimit", "\"p\";r=soon;t=5")], Some(5.0), None),
            (&[("ratelimit", "\"p\";r=NaN;t=inf;pk=:cHsdsRa894==:")], None, None),
            (&[("ratelimit", "\"never closed;r=0;t=30")], None, None),
            (&[("ratelimit", ""), ("RateLimit", "\"b\";r=0;t=4")], Some(4.0), Some(4.0)),
            // draft -03 to -07: a dictionary
            (&[("ratelimit", "limit=100, remaining=0, reset=30")], Some(30.0), Some(30.0)),
            (&[("ratelimit", "limit=100, remaining=50, reset=30")], Some(30.0), None),
            (&[("ratelimit", "limit=100;remaining=0;reset=30")], Some(30.0), Some(30.0)),
            (&[("ratelimit", "limit=0, reset=30")], Some(30.0), None),
            // X-: seconds, or a Unix time by the sender's clock
            (&[("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "12")], Some(12.0), Some(12.0)),
            (&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "12")], Some(12.0), None),
            (
                &[later, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1798761645")],
                Some(45.0),
                Some(45.0),
            ),
            (
                &[later, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1798761645500")],
                Some(45.5),
                Some(45.5),
            ),
            (
                &[later, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1798761000")],
                Some(1.0),
                Some(1.0),
            ),
            (
                &[later, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1999999999")],
                Some(3600.0),
                Some(3600.0),
            ),
            (
                &[later, ("ratelimit-remaining", "0"), ("ratelimit-reset", "1798761645")],
                Some(45.0),
                Some(45.0),
            ),
            (
                &[sent, ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1e300")],
                Some(3600.0),
                Some(3600.0),
            ),
            (&[("x-ratelimit-remaining", "-1"), ("x-ratelimit-reset", "tomorrow")], None, Some(1.0)),
            // Several at once: the longest of those that are used up.
            (
                &[
                    ("x-ratelimit-remaining", "0"),
                    ("x-ratelimit-reset", "3"),
                    ("ratelimit", "\"p\";r=0;t=30"),
                ],
                Some(30.0),
                Some(30.0),
            ),
            (&[("retry-after", "4"), ("ratelimit", "\"p\";r=0;t=30")], Some(4.0), Some(4.0)),
        ] {
            let span = |seconds: Option<f64>| seconds.map(Duration::from_secs_f64);
            let answer = answer(headers);
            assert_eq!(wait_after_refusal(&answer), span(after_refusal), "refused: {headers:?}");
            assert_eq!(super::pause(&answer), span(pause), "any: {headers:?}");
        }
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
