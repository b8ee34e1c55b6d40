//! `"500ms"`, `"10s"`, `"15m"`, `"2h"`, `"400d"` <-> [`Duration`]. Pure; the range is asked by the caller.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::problems::{Wrong, shown};

/// What a person is told to write.
pub(super) const EXPECTED: &str = r#"a duration in quotes such as "500ms", "10s", "15m", "2h" or "400d""#;

const SECOND: u64 = 1_000;
/// Largest first, so that showing finds the shortest way to write a duration.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400 * SECOND), ("h", 3_600 * SECOND), ("m", 60 * SECOND), ("s", SECOND), ("ms", 1)];
/// Units as people also write them, for suggestions only.
const NEARLY_UNITS: [(&str, &str); 19] = [
    ("msec", "ms"),
    ("msecs", "ms"),
    ("millis", "ms"),
    ("milliseconds", "ms"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("min", "m"),
    ("mins", "m"),
    ("minute", "m"),
    ("minutes", "m"),
    ("hr", "h"),
    ("hrs", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("day", "d"),
    ("days", "d"),
    ("D", "d"),
];

/// Reads a whole number with one unit. Too large for 64 bits saturates, so that the caller's range refuses it.
pub(super) fn parse(text: &str) -> Result<Duration, Wrong> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let wrong = |why: &str| Wrong::new(format!("{} {why}, expected {EXPECTED}", shown(text)));
    if digits.is_empty() {
        return Err(wrong(if text.starts_with('-') {
            "is negative"
        } else {
            "does not begin with a number"
        }));
    }
    if unit.is_empty() {
        return Err(wrong("has no unit"));
    }
    let Some((_, unit_ms)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(wrong("has no unit that is known").meant(nearly(digits, unit)));
    };
    // Digits alone fail to parse only by overflow.
    let count: u64 = digits.parse().unwrap_or(u64::MAX);
    Ok(Duration::from_millis(count.saturating_mul(*unit_ms)))
}

fn nearly(digits: &str, unit: &str) -> Option<String> {
    let unit = unit.trim();
    let lower = unit.to_ascii_lowercase();
    let known = UNITS.iter().map(|(name, _)| *name).find(|name| *name == lower);
    let known = known.or_else(|| {
        NEARLY_UNITS.iter().find(|(name, _)| *name == unit || *name == lower).map(|(_, unit)| *unit)
    })?;
    (digits.len() <= 20).then(|| format!("\"{digits}{known}\""))
}

/// The shortest way to write a duration of whole milliseconds; what is finer is left out.
pub(super) fn show(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    match UNITS.iter().find(|(_, unit_ms)| ms != 0 && ms.is_multiple_of(*unit_ms)) {
        Some((name, unit_ms)) => format!("{}{name}", ms / unit_ms),
        None => "0s".to_owned(),
    }
}

/// The same, refused outside the range.
pub(super) fn parse_within(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, Wrong> {
    let duration = parse(text)?;
    if range.contains(&duration) {
        return Ok(duration);
    }
    let why = if duration < *range.start() { "short" } else { "long" };
    let (first, last) = (show(*range.start()), show(*range.end()));
    Err(Wrong::new(format!("{} is too {why}, expected {first} to {last}", shown(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn good(text: &str, ms: u64) {
        assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text:?}");
    }

    #[track_caller]
    fn bad(text: &str, part: &str) {
        let wrong = parse(text).expect_err("is refused").to_string();
        assert!(wrong.contains(part), "{text:?}: {wrong}");
    }

    #[test]
    fn durations_are_a_number_and_one_unit() {
        good("0s", 0);
        good("0ms", 0);
        good("500ms", 500);
        good("10s", 10_000);
        good("15m", 900_000);
        good("2h", 7_200_000);
        good("400d", 34_560_000_000);
        good("007s", 7_000);
        good("18446744073709551615ms", u64::MAX);
        good("18446744073709551616ms", u64::MAX);
        good("99999999999999999999999999d", u64::MAX);
        bad("", "does not begin with a number");
        bad("s", "does not begin with a number");
        bad("10", "has no unit,");
        bad("0", "has no unit,");
        bad("-1s", "is negative");
        bad("+1s", "does not begin");
        bad("1.5s", "no unit that is known");
        bad("1h30m", "no unit that is known");
        bad(" 10s", "does not begin");
        bad("10s ", r#"did you mean "10s"?"#);
        bad("10 s", r#"did you mean "10s"?"#);
        bad("10S", r#"did you mean "10s"?"#);
        bad("10sec", r#"did you mean "10s"?"#);
        bad("5 minutes", r#"did you mean "5m"?"#);
        bad("10x", "no unit that is known");
        bad("1000us", "no unit that is known");
        bad("１0s", "does not begin with a number");
    }

    #[test]
    fn ranges_hold_at_both_ends() {
        let range = Duration::from_secs(10)..=Duration::from_secs(86_400);
        for inside in ["10s", "10000ms", "24h", "1d"] {
            assert!(parse_within(inside, &range).is_ok(), "{inside}");
        }
        let wrong = parse_within("9999ms", &range).expect_err("is too short").to_string();
        assert_eq!(wrong, r#""9999ms" is too short, expected 10s to 1d"#);
        let wrong = parse_within("9999999999999999999999d", &range).expect_err("is too long").to_string();
        assert_eq!(wrong, r#""9999999999999999999999d" is too long, expected 10s to 1d"#);
    }

    #[test]
    fn shown_durations_read_back_as_themselves() {
        for ms in [0, 1, 999, 1_000, 1_500, 60_000, 90_000, 3_600_000, 86_400_000, 34_560_000_000] {
            let duration = Duration::from_millis(ms);
            assert_eq!(parse(&show(duration)), Ok(duration));
        }
        assert_eq!(show(Duration::from_secs(5_400)), "90m");
    }
}
