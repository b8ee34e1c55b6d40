//! Phone numbers as `/v3/message` takes them: digits alone, domestic form. Pure; no reason repeats a number.

use crate::vendor::Unfit;

/// Longest number, digits.
const DIGITS_MAX: usize = 16;
/// Shortest number, digits: special numbers such as 112.
const DIGITS_MIN: usize = 3;

/// A registered sender number.
pub fn sender(text: &str) -> Result<String, Unfit> {
    digits("from", &domestic(&without_marks(text)))
}

/// A recipient; abroad by the payload's `country`, whose own code may stand before the number with a `+`.
pub fn recipient(text: &str, country: Option<&str>) -> Result<String, Unfit> {
    let plain = without_marks(text);
    match country.map(|country| country.trim_start_matches('+')).filter(|country| *country != "82") {
        None => {
            let number = digits("recipient", &domestic(&plain))?;
            if !number.starts_with('0') {
                return Err(Unfit::new(
                    "recipient: a number in Korea begins with 0 (was it lost in a spreadsheet?); a foreign one \
                     needs \"country\" in the payload",
                ));
            }
            Ok(number)
        }
        Some(country) => {
            let national = match plain.strip_prefix('+') {
                None => plain.as_str(),
                Some(rest) => rest.strip_prefix(country).ok_or_else(|| {
                    Unfit::new("recipient: the number's country code is not the payload's \"country\"")
                })?,
            };
            digits("recipient", national)
        }
    }
}

fn without_marks(text: &str) -> String {
    text.chars().filter(|character| !matches!(character, '-' | ' ' | '(' | ')' | '.')).collect()
}

/// `+82 10…` and `0082 (0)10…` become `010…`.
fn domestic(plain: &str) -> String {
    match plain.strip_prefix("+82").or_else(|| plain.strip_prefix("0082")) {
        Some(rest) => format!("0{}", rest.strip_prefix('0').unwrap_or(rest)),
        None => plain.to_owned(),
    }
}

fn digits(field: &str, number: &str) -> Result<String, Unfit> {
    let length = number.chars().count();
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Unfit::new(format!("{field}: a phone number was expected, and not all of it is digits")));
    }
    if !(DIGITS_MIN..=DIGITS_MAX).contains(&length) {
        return Err(Unfit::new(format!(
            "{field}: has {length} digits, {DIGITS_MIN} to {DIGITS_MAX} are allowed"
        )));
    }
    Ok(number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_writing_a_domestic_number_is_one() {
        for text in [
            "01000000001",
            "010-0000-0001",
            "010 0000 0001",
            "+82 10-0000-0001",
            "+82(0)10.0000.0001",
            "00821000000001",
        ] {
            assert_eq!(recipient(text, None).as_deref(), Ok("01000000001"), "{text}");
            assert_eq!(recipient(text, Some("82")).as_deref(), Ok("01000000001"), "{text}");
        }
        assert_eq!(sender("1588-0000").as_deref(), Ok("15880000"));
        assert_eq!(sender("+82-2-1234-5678").as_deref(), Ok("0212345678"));
    }

    #[test]
    fn abroad_by_country() {
        assert_eq!(recipient("212-555-0100", Some("1")).as_deref(), Ok("2125550100"));
        assert_eq!(recipient("+1 212 555 0100", Some("1")).as_deref(), Ok("2125550100"));
        assert_eq!(recipient("+81 90 0000 0000", Some("+81")).as_deref(), Ok("9000000000"));
        assert!(recipient("+44 20 0000 0000", Some("1")).is_err());
        assert!(recipient("+44 20 0000 0000", None).is_err());
    }

    #[test]
    fn what_is_no_number_is_refused_without_repeating_it() {
        for text in [
            "",
            "12",
            "1000000001",
            "01000000001x",
            "０１０００００００１",
            "01000000001000000",
            "010\u{202c}0000",
        ] {
            let reason = recipient(text, None).expect_err(text).reason;
            assert!(reason.starts_with("recipient: "), "{reason}");
            assert!(text.is_empty() || text == "12" || !reason.contains(text), "{reason}");
        }
    }
}
