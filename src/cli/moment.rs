//! Times as people write them, and whether milliseconds are milliseconds. Pure.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::Failure;
use crate::exit;

/// 2001-09-09: milliseconds before it are seconds by mistake.
const PLAUSIBLE_MS_MIN: i64 = 1_000_000_000_000;
/// 5138-11-16: milliseconds after it are micro- or nanoseconds by mistake.
const PLAUSIBLE_MS_MAX: i64 = 100_000_000_000_000;

/// `18:00` (the next one), `2026-12-01 18:00[:00]` in the zone, or a time with its offset, as UTC milliseconds.
pub fn at_ms(text: &str, now_ms: i64, zone: &TimeZone) -> Result<i64, Failure> {
    let bad = || {
        let text = "--at: a time such as 18:00, '2026-12-01 18:00' or 2026-12-01T18:00:00+09:00 was expected";
        Failure::new(exit::USAGE, text)
    };
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(instant.as_millisecond());
    }
    let in_zone =
        |civil: DateTime| civil.to_zoned_datetime(zone.clone()).map(|at| at.timestamp().as_millisecond());
    if let Some(time) = time_of_day(text) {
        let now = Timestamp::from_millisecond(now_ms).map_err(|_| bad())?.to_zoned_datetime(zone.clone());
        let today = in_zone(now.date().to_datetime(time)).map_err(|_| bad())?;
        if today > now_ms {
            return Ok(today);
        }
        let tomorrow = now.date().checked_add(1.day()).map_err(|_| bad())?;
        return in_zone(tomorrow.to_datetime(time)).map_err(|_| bad());
    }
    text.parse::<DateTime>().and_then(in_zone).map_err(|_| bad())
}

/// `18:00` or `18:00:30`.
fn time_of_day(text: &str) -> Option<Time> {
    let mut parts = text.split(':');
    let mut next = || {
        let digits = parts.next()?;
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse::<i8>().ok())?
    };
    let (hour, minute) = (next()?, next()?);
    let second = if text.matches(':').count() == 2 { next()? } else { 0 };
    parts.next().is_none().then(|| Time::new(hour, minute, second, 0).ok())?
}

/// Refuses seconds, microseconds, and a deadline before the due time; names the field.
pub fn plausible(not_before_ms: Option<i64>, expires_at_ms: Option<i64>) -> Result<(), String> {
    for (field, ms) in [("not_before_ms", not_before_ms), ("expires_at_ms", expires_at_ms)] {
        match ms {
            Some(ms) if ms < PLAUSIBLE_MS_MIN => {
                return Err(format!("{field}: is before 2001; milliseconds were expected, not seconds"));
            }
            Some(ms) if ms >= PLAUSIBLE_MS_MAX => {
                return Err(format!("{field}: is after the year 5000; milliseconds were expected"));
            }
            _ => {}
        }
    }
    match (not_before_ms, expires_at_ms) {
        (Some(due), Some(deadline)) if deadline <= due => {
            Err("expires_at_ms: the deadline is not after the due time (not_before_ms)".into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_people() {
        let zone = TimeZone::get("Asia/Seoul").expect("known");
        // 2026-11-30 16:40:53 in Seoul.
        let now_ms = 1_796_024_453_000;
        for (text, expected) in [
            ("18:00", Some("2026-11-30T09:00:00Z")),
            ("08:30", Some("2026-11-30T23:30:00Z")),
            ("2026-12-01 18:00", Some("2026-12-01T09:00:00Z")),
            ("2026-12-01T18:00:30", Some("2026-12-01T09:00:30Z")),
            ("2026-12-01T18:00:00+02:00", Some("2026-12-01T16:00:00Z")),
            ("tomorrow", None),
            ("25:00", None),
            ("1796111111", None),
            ("", None),
        ] {
            let found = at_ms(text, now_ms, &zone).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
            assert_eq!(found.map(|at| at.to_string()), expected.map(str::to_owned), "{text}");
        }
    }

    #[test]
    fn seconds_microseconds_and_a_deadline_before_the_due_time_are_refused() {
        let ms = 1_796_024_453_000;
        for (due, deadline, field) in [
            (Some(ms), Some(ms + 1), None),
            (None, None, None),
            (Some(ms / 1000), None, Some("not_before_ms")),
            (Some(ms * 1000), None, Some("not_before_ms")),
            (None, Some(ms / 1000), Some("expires_at_ms")),
            (Some(ms), Some(ms), Some("expires_at_ms")),
        ] {
            let found = plausible(due, deadline).err();
            assert_eq!(
                found.as_deref().and_then(|text| text.split(':').next()),
                field,
                "{due:?} {deadline:?}"
            );
        }
    }
}
