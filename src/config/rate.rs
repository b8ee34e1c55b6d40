//! Rates as written in settings: `20/s`, `100/m`, `1/h`.
//!
//! A whole number of calls per unit; never zero (pause a destination instead).

use toml::de::DeValue;

use super::section::came;

/// Most calls per second that one destination may be given.
const PER_SECOND_MAX: f64 = 10_000.0;

/// Reads a rate as calls per second.
pub(super) fn rate(value: &DeValue<'_>) -> Result<f64, String> {
    value.as_str().and_then(parse).ok_or_else(|| {
        format!(
            "is {}, expected a rate up to \"10000/s\", written like \"20/s\", \"100/m\" or \"1/h\"",
            came(value)
        )
    })
}

/// Calls per second, if the text is a rate.
fn parse(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once('/')?;
    let unit_s = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return None,
    };
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let per_second = f64::from(number.parse::<u32>().ok().filter(|calls| *calls > 0)?) / unit_s;
    (per_second <= PER_SECOND_MAX).then_some(per_second)
}

/// As a person writes it: the first unit in which it is a whole number, so that `2/m` is not `0.0333.../s`.
pub fn in_words(per_second: f64) -> String {
    for (unit_s, unit) in [(1.0, "s"), (60.0, "m"), (3_600.0, "h")] {
        let calls = per_second * unit_s;
        if calls >= 0.5 && (calls - calls.round()).abs() < 1e-6 {
            return format!("{}/{unit}", calls.round());
        }
    }
    format!("{:.3}/h", per_second * 3_600.0) // no setting gives this
}

#[cfg(test)]
mod tests {
    use super::super::element::tests::read;
    use super::*;

    #[test]
    fn a_rate_is_told_as_it_is_written() {
        for (written, told) in [
            ("20/s", "20/s"),
            ("2/m", "2/m"),
            ("100/m", "100/m"),
            ("120/m", "2/s"),
            ("7/h", "7/h"),
            ("1/h", "1/h"),
            ("10000/s", "10000/s"),
            ("59999/m", "59999/m"),
        ] {
            assert_eq!(parse(written).map(in_words).as_deref(), Some(told), "{written}");
        }
        assert_eq!(in_words(0.123_456_789), "444.444/h");
    }

    #[test]
    fn good_and_bad_rates() {
        for (text, per_second) in
            [("20/s", 20.0), ("120/m", 2.0), ("1/h", 1.0 / 3_600.0), ("10000/s", 10_000.0)]
        {
            assert_eq!(read(&format!("'{text}'"), rate), Ok(per_second), "{text}");
        }
        for text in [
            "",
            "20",
            "/s",
            "0/s",
            "-1/s",
            "+1/s",
            "1.5/s",
            "20/d",
            "20 / s",
            "10001/s",
            "20/s/s",
            "99999999999/s",
        ] {
            let what = read(&format!("'{text}'"), rate).unwrap_err();
            assert!(what.contains("\"20/s\""), "{text}: {what}");
        }
        assert!(read("20", rate).unwrap_err().starts_with("is the number 20, expected a rate"));
    }
}
