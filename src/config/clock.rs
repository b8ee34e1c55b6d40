//! Times of day and zones as written in settings: `08:00`, `Asia/Seoul`.
//!
//! Wall times only; what instant they are on a given day is decided elsewhere.

use jiff::civil::Time;
use jiff::tz::TimeZone;
use toml::de::DeValue;

use super::nearest::suggestion;
use super::section::came;

/// Reads a time of day, `HH:MM`.
pub(super) fn time_of_day(value: &DeValue<'_>) -> Result<Time, String> {
    value.as_str().and_then(parse).ok_or_else(|| {
        format!(
            "is {}, expected a time of day in quotes from \"00:00\" to \"23:59\", like \"08:00\"",
            came(value)
        )
    })
}

fn parse(text: &str) -> Option<Time> {
    let (hour, minute) = text.split_once(':')?;
    let part = |digits: &str| {
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse::<i8>().ok())?
    };
    Time::new(part(hour)?, part(minute)?, 0, 0).ok()
}

/// Reads an IANA zone name.
pub(super) fn zone(value: &DeValue<'_>) -> Result<TimeZone, String> {
    let expected = "expected an IANA zone name like \"Asia/Seoul\"";
    let Some(name) = value.as_str() else { return Err(format!("is {}, {expected}", came(value))) };
    match TimeZone::get(name) {
        // "Etc/Unknown" is a name that stands for no zone: windows would silently be in UTC.
        Ok(zone) if !name.is_empty() && !zone.is_unknown() => Ok(zone),
        _ => {
            let names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
            let near = match names.is_empty() {
                true => " (this machine has no zone data: install the tzdata package)".to_owned(),
                false => suggestion(name, names.iter().map(String::as_str)),
            };
            Err(format!("is {}, which is no known zone, {expected}{near}", came(value)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::tests::read;
    use super::*;

    #[test]
    fn times_of_day() {
        for (text, hour, minute) in [("08:00", 8, 0), ("20:50", 20, 50), ("00:00", 0, 0), ("23:59", 23, 59)] {
            assert_eq!(
                read(&format!("'{text}'"), time_of_day),
                Ok(jiff::civil::time(hour, minute, 0, 0)),
                "{text}"
            );
        }
        for bad in
            ["'8:00'", "'24:00'", "'12:60'", "'0800'", "'08:00:00'", "'+8:00'", "''", "800", "08:00:00"]
        {
            assert!(read(bad, time_of_day).unwrap_err().contains("like \"08:00\""), "{bad}");
        }
    }

    #[test]
    fn zones() {
        for good in ["'Asia/Seoul'", "'UTC'", "'Europe/Berlin'"] {
            assert!(read(good, zone).is_ok(), "{good}");
        }
        for bad in ["''", "'Asia/Soul'", "'Etc/Unknown'", "'+09:00'", "'../etc/passwd'", "9"] {
            assert!(read(bad, zone).unwrap_err().contains("IANA zone name"), "{bad}");
        }
        assert!(read("'Asia/Seoull'", zone).unwrap_err().ends_with("(did you mean Asia/Seoul?)"));
    }
}
