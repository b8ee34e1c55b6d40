//! Pure: how long an answer asks the whole destination to wait (`Retry-After`, `RateLimit-*`).

use std::time::Duration;

use super::client::Answer;

/// Longest pause that is believed.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Shortest pause after a refusal for speed.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The pause that a 429 or 503 asks for: `Retry-After` in seconds or as an HTTP date, else `RateLimit-Reset`.
pub fn retry_after(answer: &Answer, now_ms: i64) -> Option<Duration> {
    let asked =
        answer.header("retry-after").and_then(|text| seconds(text).or_else(|| until_date(text, now_ms)));
    asked.or_else(|| reset(answer)).map(clamp)
}

/// The pause when nothing is left of the present budget, though this request was taken.
pub fn used_up(answer: &Answer) -> Option<Duration> {
    let remaining: f64 = answer.header("ratelimit-remaining")?.trim().parse().ok()?;
    if remaining > 0.0 { None } else { Some(clamp(reset(answer).unwrap_or(PAUSE_MIN))) }
}

/// BizPpurio writes "milliseconds" and shows 0.299: a fraction is seconds. Large values can only be milliseconds.
fn reset(answer: &Answer) -> Option<Duration> {
    let value: f64 = answer.header("ratelimit-reset")?.trim().parse().ok()?;
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    let seconds = if value > PAUSE_MAX.as_secs_f64() { value / 1000.0 } else { value };
    Some(Duration::from_secs_f64(seconds.min(PAUSE_MAX.as_secs_f64())))
}

fn seconds(text: &str) -> Option<Duration> {
    text.trim().parse::<u64>().ok().map(Duration::from_secs)
}

fn until_date(text: &str, now_ms: i64) -> Option<Duration> {
    let at = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp().as_millisecond();
    Some(Duration::from_millis(u64::try_from(at.saturating_sub(now_ms)).unwrap_or(0)))
}

fn clamp(pause: Duration) -> Duration {
    pause.clamp(PAUSE_MIN, PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(headers: &[(&str, &str)]) -> Answer {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Answer { status: 429, body: Vec::new(), framed: true, headers }
    }

    #[test]
    fn seconds_dates_and_fractions() {
        let now_ms = 1_796_000_000_000; // Mon, 30 Nov 2026 00:53:20 GMT
        for (headers, expected) in [
            (vec![("retry-after", "7")], Some(7.0)),
            (vec![("retry-after", "Mon, 30 Nov 2026 00:53:50 GMT")], Some(30.0)),
            (vec![("retry-after", "Mon, 30 Nov 2026 00:00:00 GMT")], Some(1.0)),
            (vec![("retry-after", "999999")], Some(3600.0)),
            (vec![("retry-after", "soon"), ("ratelimit-reset", "2.5")], Some(2.5)),
            (vec![("ratelimit-reset", "0.299")], Some(1.0)),
            (vec![("ratelimit-reset", "60000")], Some(60.0)),
            (vec![("ratelimit-reset", "-1")], None),
            (vec![], None),
        ] {
            let found = retry_after(&answer(&headers), now_ms).map(|pause| pause.as_secs_f64());
            assert_eq!(found, expected, "{headers:?}");
        }
    }

    #[test]
    fn a_used_up_budget_pauses_though_the_request_was_taken() {
        assert_eq!(used_up(&answer(&[("ratelimit-remaining", "3"), ("ratelimit-reset", "5")])), None);
        assert_eq!(
            used_up(&answer(&[("ratelimit-remaining", "0"), ("ratelimit-reset", "5")])),
            Some(Duration::from_secs(5))
        );
    }
}
