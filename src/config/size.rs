//! Sizes as written in settings: `64MiB`, `2GiB`; `0` alone needs no unit.
//!
//! One whole number and one unit; no bare number, whose unit would be a guess, and no unit that is read in two ways.

use toml::de::DeValue;

use super::section::came;

/// Unit and its bytes, largest first.
const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads a size within bounds, bytes.
pub(super) fn size(value: &DeValue<'_>, first: u64, last: u64) -> Result<u64, String> {
    let expected = "expected a size as text with a unit (\"64MiB\", \"2GiB\"), or \"0\"";
    let bytes = value.as_str().and_then(parse).ok_or_else(|| format!("is {}, {expected}", came(value)))?;
    match (first..=last).contains(&bytes) {
        true => Ok(bytes),
        false => Err(format!("is {}, expected from {first} to {last} bytes", came(value))),
    }
}

pub(crate) fn parse(text: &str) -> Option<u64> {
    if text == "0" {
        return Some(0);
    }
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let (_, unit_bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*unit_bytes)
}

#[cfg(test)]
mod tests {
    use super::super::element::tests::read;
    use super::*;

    #[test]
    fn sizes() {
        for (good, bytes) in
            [("'0'", 0), ("'1B'", 1), ("'64MiB'", 64 << 20), ("'2GiB'", 2 << 30), ("'1TiB'", 1 << 40)]
        {
            assert_eq!(read(good, |value| size(value, 0, u64::MAX)), Ok(bytes), "{good}");
        }
        for bad in ["64", "'64'", "'64MB'", "'MiB'", "'-1MiB'", "'1.5GiB'", "'99999999999TiB'", "true", "''"]
        {
            let what = read(bad, |value| size(value, 0, u64::MAX)).unwrap_err();
            assert!(what.contains("64MiB"), "{bad}: {what}");
        }
        assert!(read("'2GiB'", |value| size(value, 0, 1 << 30)).is_err());
    }
}
