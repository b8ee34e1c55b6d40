//! `"20/s"`, `"100/m"`, `"1/h"` -> calls per second. Pure.

use super::problems::{Wrong, shown};

/// What a person is told to write.
pub(super) const EXPECTED: &str = r#"a rate in quotes such as "20/s", "100/m" or "1/h""#;

/// Most calls in one unit of time: far above any vendor's budget, small enough that arithmetic stays exact.
const CALLS_MAX: u32 = 100_000;
/// Most calls a second, whatever the unit.
const PER_SECOND_MAX: f64 = 10_000.0;

/// Reads `COUNT/UNIT`, the unit being a second, a minute or an hour. 1/h to 10000/s.
pub(super) fn parse(text: &str) -> Result<f64, Wrong> {
    let wrong = |why: &str| Wrong::new(format!("{} {why}, expected {EXPECTED}", shown(text)));
    let Some((count, unit)) = text.split_once('/') else {
        return Err(wrong("has no unit"));
    };
    let unit_s = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(wrong("has no unit that is known").meant(nearly(count, unit))),
    };
    if count.is_empty() || !count.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong("does not begin with a whole number"));
    }
    let count: u32 = count.parse().unwrap_or(u32::MAX);
    let per_second = f64::from(count) / unit_s;
    if count == 0 {
        return Err(wrong("would never send; leave the key out for no bound, or pause the destination"));
    }
    if count > CALLS_MAX || per_second > PER_SECOND_MAX {
        return Err(Wrong::new(format!("{} is too fast, expected at most 10000/s", shown(text))));
    }
    Ok(per_second)
}

fn nearly(count: &str, unit: &str) -> Option<String> {
    let unit = unit.trim().to_ascii_lowercase();
    let count = count.trim();
    let known = ["s", "m", "h"].into_iter().find(|known| unit.starts_with(known))?;
    (count.parse::<u32>().is_ok()).then(|| format!("\"{count}/{known}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn good(text: &str, per_hour: f64) {
        let rate = parse(text).expect("is a rate");
        assert!((rate * 3_600.0 - per_hour).abs() < 1e-6, "{text:?}: {rate}/s");
    }

    #[track_caller]
    fn bad(text: &str, part: &str) {
        let wrong = parse(text).expect_err("is refused").to_string();
        assert!(wrong.contains(part), "{text:?}: {wrong}");
    }

    #[test]
    fn rates_are_a_whole_number_over_a_unit() {
        good("20/s", 72_000.0);
        good("100/m", 6_000.0);
        good("1/h", 1.0);
        good("10000/s", 36_000_000.0);
        bad("", "has no unit");
        bad("20", "has no unit");
        bad("20/", "no unit that is known");
        bad("20/sec", r#"did you mean "20/s"?"#);
        bad("20 / min", r#"did you mean "20/m"?"#);
        bad("20/d", "no unit that is known");
        bad("/s", "whole number");
        bad("-1/s", "whole number");
        bad("0.5/s", "whole number");
        bad("0/s", "would never send");
        bad("10001/s", "too fast");
        bad("100001/h", "too fast");
        bad("99999999999999999999/h", "too fast");
        bad("1/s/s", "no unit that is known");
    }
}
