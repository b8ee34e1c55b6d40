//! The plain elements of settings: text, whole numbers, yes or no, lists, paths.
//!
//! Each turns one TOML value into one Rust value or says what came and what was expected. No defaults here.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use toml::de::DeValue;

use super::section::{came, kind};

/// Any text.
pub(super) fn text<'v>(value: &'v DeValue<'_>, expected: &str) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("is {}, expected {expected}", came(value)))
}

/// Any text that may be a secret by mistake: never echoed.
pub(super) fn quiet_text<'v>(value: &'v DeValue<'_>, expected: &str) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("is {}, expected {expected}", kind(value)))
}

/// `""` means that it is not set.
pub(super) fn unless_empty<T>(
    value: &DeValue<'_>,
    element: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if value.as_str() == Some("") { Ok(None) } else { element(value).map(Some) }
}

/// A whole number within bounds.
pub(super) fn whole<T>(value: &DeValue<'_>, first: T, last: T) -> Result<T, String>
where
    T: TryFrom<i64> + PartialOrd + Display + Copy,
{
    let expected = format!("expected a whole number from {first} to {last}");
    integer(value)
        .and_then(|number| T::try_from(number).ok())
        .filter(|number| (first..=last).contains(number))
        .ok_or_else(|| format!("is {}, {expected}", came(value)))
}

/// A TOML integer in any of its radixes, where it fits.
pub(super) fn integer(value: &DeValue<'_>) -> Option<i64> {
    let number = value.as_integer()?;
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// `true` or `false`.
pub(super) fn yes_or_no(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("is {}, expected true or false without quotes", came(value)))
}

/// A list, each entry read by its element; a problem names the entry by its number.
pub(super) fn list<T>(
    value: &DeValue<'_>,
    expected: &str,
    mut element: impl FnMut(&DeValue<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let entries = value.as_array().ok_or_else(|| format!("is {}, expected {expected}", kind(value)))?;
    entries
        .iter()
        .enumerate()
        .map(|(index, entry)| element(entry.get_ref()).map_err(|what| format!("entry {} {what}", index + 1)))
        .collect()
}

/// A path; a relative one is beside the settings file.
pub(super) fn path(value: &DeValue<'_>, beside: &Path) -> Result<PathBuf, String> {
    match text(value, "a path")? {
        "" => Err("is empty, expected a path".to_owned()),
        given if given.contains('\0') => Err("has a NUL character, expected a path".to_owned()),
        given => Ok(beside.join(given)),
    }
}

/// A JSON pointer: `/field/inner`.
pub(super) fn json_pointer(value: &DeValue<'_>) -> Result<String, String> {
    let expected = "a JSON pointer such as \"/code\"";
    let given = text(value, expected)?;
    let escapes_hold = given.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    match given.starts_with('/') && escapes_hold {
        true => Ok(given.to_owned()),
        false => Err(format!("is {}, expected {expected}", came(value))),
    }
}

/// Text of certain characters and length.
pub(super) fn word(
    value: &DeValue<'_>,
    expected: &str,
    chars_max: usize,
    allowed: impl Fn(char) -> bool,
) -> Result<String, String> {
    let given = text(value, expected)?;
    match !given.is_empty() && given.chars().count() <= chars_max && given.chars().all(allowed) {
        true => Ok(given.to_owned()),
        false => Err(format!("is {}, expected {expected}", came(value))),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The element over a value written as TOML; for the tables of every element.
    pub(in super::super) fn read<T>(
        toml: &str,
        element: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        element(DeValue::parse(toml).expect("the test's value is TOML").get_ref())
    }

    #[test]
    fn whole_numbers() {
        for (good, number) in [("1", 1), ("0x10", 16), ("1_00", 100), ("256", 256)] {
            assert_eq!(read(good, |value| whole(value, 1u32, 256)), Ok(number), "{good}");
        }
        for bad in ["0", "257", "-1", "1.5", "\"5\"", "true", "99999999999999999999", "[1]", "{ a = 1 }"] {
            let what = read(bad, |value| whole(value, 1u32, 256)).unwrap_err();
            assert!(what.contains("whole number from 1 to 256"), "{bad}: {what}");
        }
        assert_eq!(
            read("\"5\"", |value| whole(value, 1u32, 256)),
            Err("is the text \"5\", expected a whole number from 1 to 256".to_owned())
        );
    }

    #[test]
    fn yes_or_no_takes_no_text() {
        assert_eq!(read("true", yes_or_no), Ok(true));
        assert_eq!(
            read("\"yes\"", yes_or_no),
            Err("is the text \"yes\", expected true or false without quotes".to_owned())
        );
    }

    #[test]
    fn lists_name_the_entry() {
        let numbers = |value: &DeValue<'_>| list(value, "numbers", |entry| whole(entry, 1u8, 9));
        assert_eq!(read("[1, 2]", numbers), Ok(vec![1, 2]));
        assert_eq!(read("[]", numbers), Ok(vec![]));
        assert!(read("[1, 10]", numbers).unwrap_err().starts_with("entry 2 is the number 10"));
        assert_eq!(read("1", numbers), Err("is a number, expected numbers".to_owned()));
    }

    #[test]
    fn relative_paths_are_beside_the_settings() {
        let beside = Path::new("/etc/onceward");
        assert_eq!(read("'/x/y'", |value| path(value, beside)), Ok(PathBuf::from("/x/y")));
        assert_eq!(read("'y'", |value| path(value, beside)), Ok(PathBuf::from("/etc/onceward/y")));
        for bad in ["''", "1", "\"a\\u0000\""] {
            assert!(read(bad, |value| path(value, beside)).is_err(), "{bad}");
        }
    }

    #[test]
    fn json_pointers() {
        for good in ["'/code'", "'/a/0/b'", "'/a~1b'", "'/'"] {
            assert!(read(good, json_pointer).is_ok(), "{good}");
        }
        for bad in ["'code'", "''", "'/a~2'", "'/a~'", "1"] {
            assert!(read(bad, json_pointer).is_err(), "{bad}");
        }
    }
}
