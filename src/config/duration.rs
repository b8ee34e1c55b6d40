//! Durations as written in settings: `500ms`, `10s`, `15m`, `2h`, `400d`.
//!
//! One number and one unit; no bare number (whose unit would be a guess), no sum, no sign.

use std::time::Duration;

use toml::de::DeValue;

use super::section::came;

/// Unit and its milliseconds, largest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a duration within bounds.
pub(super) fn duration(value: &DeValue<'_>, first: Duration, last: Duration) -> Result<Duration, String> {
    let expected = format!("expected a duration from {} to {}", shown(first), shown(last));
    let Some(written) = value.as_str() else {
        return Err(format!(
            "is {}, {expected}, as text with a unit (\"500ms\", \"10s\", \"15m\", \"2h\", \"400d\")",
            came(value)
        ));
    };
    match parse(written) {
        None => Err(format!(
            "is {}, {expected}, written like \"500ms\", \"10s\", \"15m\", \"2h\" or \"400d\"",
            came(value)
        )),
        Some(duration) if duration < first => Err(format!("is too short ({written}), {expected}")),
        Some(duration) if duration > last => Err(format!("is too long ({written}), {expected}")),
        Some(duration) => Ok(duration),
    }
}

/// The duration, if the text is one.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    // An empty number does not parse; a huge one is no duration either.
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*unit_ms)?))
}

/// In the largest unit that leaves no rest.
pub(crate) fn shown(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    let fitting = UNITS.iter().find(|(_, unit_ms)| ms.is_multiple_of(u128::from(*unit_ms)));
    let (unit, unit_ms) = fitting.unwrap_or(&("ms", 1));
    format!("{}{unit}", ms / u128::from(*unit_ms))
}

#[cfg(test)]
mod tests {
    use super::super::element::tests::read;
    use super::*;

    #[test]
    fn good_durations_are_read_and_shown_alike() {
        for (text, ms) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("15m", 900_000),
            ("2h", 7_200_000),
            ("400d", 34_560_000_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(ms)), "{text}");
            assert_eq!(shown(Duration::from_millis(ms)), text);
        }
        assert_eq!(shown(Duration::from_millis(90_000)), "90s");
    }

    #[test]
    fn bad_durations_are_none() {
        for text in [
            "",
            "5",
            "s",
            "-5s",
            "+5s",
            "1.5s",
            "5 s",
            " 5s",
            "5s ",
            "1h30m",
            "5S",
            "5w",
            "99999999999999999999s",
            "300000000000d",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn bounds_hold_and_are_named() {
        let second = Duration::from_secs(1);
        let within = |value: &DeValue<'_>| duration(value, second, 300 * second);
        assert_eq!(read("'1s'", within), Ok(second));
        assert_eq!(read("'5m'", within), Ok(300 * second));
        assert_eq!(
            read("'999ms'", within),
            Err("is too short (999ms), expected a duration from 1s to 5m".to_owned())
        );
        assert_eq!(
            read("'6m'", within),
            Err("is too long (6m), expected a duration from 1s to 5m".to_owned())
        );
        assert!(
            read("15", within)
                .unwrap_err()
                .starts_with("is the number 15, expected a duration from 1s to 5m, as text")
        );
        assert!(read("'15'", within).unwrap_err().contains("written like"));
    }
}
