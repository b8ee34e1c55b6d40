//! Pure: phone numbers. One canonical form for comparing, and the domestic form that Korean vendors take.
//!
//! No reason repeats a number. Whether a destination's recipients are phone numbers at all is the adapter's business.

use std::collections::HashSet;

use serde_json::Value;

/// Longest number, digits (E.164 has 15; vendors' fields hold 16).
const DIGITS_MAX: usize = 16;
/// Shortest text that is taken for a subscriber's number, characters without marks.
const CANONICAL_MIN: usize = 7;
/// Shortest number, digits: special numbers such as 112.
const DIGITS_MIN: usize = 3;
/// A Korean subscriber's number with its leading 0: 02-123-4567 to 0505-1234-5678.
const DOMESTIC_DIGITS: std::ops::RangeInclusive<usize> = 9..=12;

/// The form in which recipients are compared (opt-outs, allowed_recipients): marks taken out and Korea's country
/// code turned into the 0; whatever is not written like a phone number stays as it is, without outer blanks.
/// `schema.sql` does the same to rows of `suppress`.
pub fn canonical(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_digit() || b"+() .-".contains(&byte)) {
        let plain = without_marks(text);
        // Below this it is no subscriber's number but a short id, in which marks tell one from another.
        if plain.len() >= CANONICAL_MIN || plain.starts_with('+') {
            return domestic(&plain);
        }
    }
    text.to_owned()
}

/// Whether a text looks like a number (no letter in it) that cannot be read: characters that no number is compared with.
/// The trigger `suppress_readable` refuses the same texts.
pub fn is_unreadable(text: &str) -> bool {
    const LETTERS: [std::ops::RangeInclusive<char>; 5] =
        ['A'..='Z', 'a'..='z', '@'..='@', '\u{c0}'..='\u{1fff}', '\u{3040}'..='\u{faff}'];
    let letter = |c: char| "_#:".contains(c) || LETTERS.iter().any(|range| range.contains(&c));
    text.chars().count() >= 7
        && text.chars().any(|c| !c.is_ascii_digit() && !"+() .-".contains(c))
        && !text.chars().any(letter)
}

/// Every form under which the list of opt-outs may have a recipient, its canonical one first: an application's list may
/// lack the country's code, its `+`, or the 0 that a spreadsheet takes away, and a foreign number may keep the 0 of
/// calls at home. Never a form that reads as somebody else's number.
pub fn forms(text: &str, country: Option<&str>) -> Vec<String> {
    let own = canonical(text);
    let mut forms = vec![own.clone()];
    // A destination may take what the list refuses: it is looked up as a person would read it.
    let own = if is_unreadable(text) || text.starts_with("tel:") {
        canonical(&ascii_digits(text))
    } else if abroad(country).is_some() && !own.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        without_marks(&own)
    } else {
        own
    };
    forms.push(own.clone());
    let like_a_number = own.bytes().all(|byte| byte.is_ascii_digit() || byte == b'+');
    if like_a_number && let Some((code, nationals)) = foreign(&own, abroad(country)) {
        for national in nationals {
            let bare = national.trim_start_matches('0');
            let with_0 = format!("0{bare}");
            // In Italy the 0 tells a landline from a mobile number.
            let numbers = [national, bare, &with_0];
            for number in &numbers[..if code == "39" { 1 } else { 3 }] {
                forms.extend(["+", "00", ""].map(|sign| format!("{sign}{code}{number}")));
            }
        }
    } else if like_a_number && let Some(rest) = own.strip_prefix('0').filter(|rest| is_korean(rest)) {
        forms.extend(["82", "820", "082", "0820", "00182"].map(|code| format!("{code}{rest}")));
        if rest.starts_with("10") && rest.len() == 10 {
            forms.push(rest.to_owned()); // a mobile number whose 0 was lost
        }
    }
    let mut seen = HashSet::new();
    forms.retain(|form| seen.insert(form.clone()));
    forms
}

/// Whether a number of so many digits behind its 0 may be a Korean subscriber's: areas 2 to 6, services 5, 7 and 8, and
/// mobile numbers 10, 11, 16 to 19 (numbering plan of the Republic of Korea).
fn is_korean(rest: &str) -> bool {
    DOMESTIC_DIGITS.contains(&(rest.len() + 1))
        && match rest.as_bytes() {
            [b'2'..=b'8', ..] => true,
            [b'1', second, ..] => matches!(second, b'0' | b'1' | b'6'..=b'9'),
            _ => false,
        }
}

/// The digits of a text and its `+`, full-width ones too; all else is left out.
fn ascii_digits(text: &str) -> String {
    text.chars()
        .filter_map(|c| match c {
            '0'..='9' | '+' => Some(c),
            '\u{ff10}'..='\u{ff19}' => char::from_u32(u32::from(c) - 0xff10 + u32::from('0')),
            '\u{ff0b}' => Some('+'),
            _ => None,
        })
        .collect()
}

/// The calling code of a foreign number and what may be its national part.
fn foreign<'a>(own: &'a str, country: Option<&'a str>) -> Option<(&'a str, Vec<&'a str>)> {
    let written = own.strip_prefix('+').or_else(|| own.strip_prefix("00"));
    if let Some(digits) = written {
        let code = country.filter(|code| digits.starts_with(code)).unwrap_or_else(|| calling_code(digits));
        return digits.strip_prefix(code).map(|national| (code, vec![national]));
    }
    // The code may stand before the number without a sign, or what looks like it is the number's own beginning.
    let code = country?;
    Some((code, std::iter::once(own).chain(own.strip_prefix(code)).collect()))
}

/// Whether a text is a country's calling code; 1 with an area code is one, too. No code begins with another one's digits.
fn is_calling_code(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
        && match text.len() {
            1 => matches!(text, "1" | "7"),
            2 | 3 => !text.starts_with('0') && calling_code(&format!("{text}0")) == text,
            4 => text.starts_with('1'),
            _ => false,
        }
}

/// The country's code at the beginning of an international number: 1 and 7 have one digit, these have two, the others
/// three (ITU-T E.164, list of assigned codes).
fn calling_code(digits: &str) -> &str {
    const TWO: &[&str] = &[
        "20", "27", "30", "31", "32", "33", "34", "36", "39", "40", "41", "43", "44", "45", "46", "47", "48",
        "49", "51", "52", "53", "54", "55", "56", "57", "58", "60", "61", "62", "63", "64", "65", "66", "81",
        "82", "84", "86", "90", "91", "92", "93", "94", "95", "98",
    ];
    let length = match digits.as_bytes().first() {
        Some(b'1' | b'7') => 1,
        _ if digits.get(..2).is_some_and(|two| TWO.contains(&two)) => 2,
        _ => 3,
    };
    digits.get(..length).unwrap_or(digits)
}

/// A registered sender number.
pub fn sender(text: &str) -> Result<String, String> {
    digits("from", &domestic(&without_marks(text)))
}

/// A recipient as the vendor takes it; abroad by the payload's `country`, whose own code may stand before the number
/// with a `+` or `00`. A 0 before a foreign number stays: in some countries (Italy) it belongs to it.
pub fn recipient(text: &str, country: Option<&str>) -> Result<String, String> {
    let plain = without_marks(text.trim_matches(' '));
    let Some(country) = abroad(country) else {
        let number = digits("recipient", &domestic(&plain))?;
        if number.starts_with("00") {
            return Err(
                "recipient: a number with 00 in front is a foreign one and needs \"country\" in the \
                        payload"
                    .into(),
            );
        }
        if !number.starts_with('0') {
            return Err(
                "recipient: a number in Korea begins with 0 (was it lost in a spreadsheet?); a foreign one \
                 needs \"country\" in the payload"
                    .into(),
            );
        }
        if !DOMESTIC_DIGITS.contains(&number.len()) {
            return Err(format!(
                "recipient: has {} digits, a number in Korea has {} to {}",
                number.len(),
                DOMESTIC_DIGITS.start(),
                DOMESTIC_DIGITS.end()
            ));
        }
        return Ok(number);
    };
    if country.starts_with("82") || !is_calling_code(country) {
        return Err(
            "recipient: the payload's \"country\" is not a country's calling code, such as 1 or 81".into()
        );
    }
    let national = match plain.strip_prefix('+').or_else(|| plain.strip_prefix("00")) {
        None => plain.as_str(),
        Some(rest) => rest
            .strip_prefix(country)
            .ok_or("recipient: the number's country code is not the payload's \"country\"")?,
    };
    digits("recipient", national)
}

/// A recipient as `enqueue` stores it: domestic form, or `+` and the country's code, so that one person has one form.
pub fn stored(text: &str, country: Option<&str>) -> Result<String, String> {
    let number = recipient(text, country)?;
    Ok(match abroad(country) {
        None => number,
        Some(country) => format!("+{country}{number}"),
    })
}

/// The `country` of a payload. Parsed only where the word is there at all: most payloads have none.
pub fn country(payload: &str) -> Option<String> {
    // (JSON may write any letter of it as an escape.)
    if !payload.contains("\"country\"") && !payload.contains("\\u") {
        return None;
    }
    let payload: Value = serde_json::from_str(payload).ok()?;
    payload.get("country").and_then(Value::as_str).map(str::to_owned)
}

/// The calling code without `+`, unless it is Korea's own.
pub fn abroad(country: Option<&str>) -> Option<&str> {
    country.map(|country| country.trim_start_matches('+')).filter(|country| *country != "82")
}

fn without_marks(text: &str) -> String {
    text.chars().filter(|character| !matches!(character, '-' | ' ' | '(' | ')' | '.')).collect()
}

/// `+82 10…` and `0082 (0)10…` become `010…`.
fn domestic(plain: &str) -> String {
    match plain.strip_prefix("+82").or_else(|| plain.strip_prefix("0082")) {
        Some(rest) => format!("0{}", rest.trim_start_matches('0')),
        None => plain.to_owned(),
    }
}

fn digits(field: &str, number: &str) -> Result<String, String> {
    let length = number.chars().count();
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{field}: a phone number was expected, and not all of it is digits"));
    }
    if !(DIGITS_MIN..=DIGITS_MAX).contains(&length) {
        return Err(format!("{field}: has {length} digits, {DIGITS_MIN} to {DIGITS_MAX} are allowed"));
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
            " 010 0000 0001 ",
            "+82 10-0000-0001",
            "+82(0)10.0000.0001",
            "00821000000001",
        ] {
            assert_eq!(recipient(text, None).as_deref(), Ok("01000000001"), "{text}");
            assert_eq!(recipient(text, Some("82")).as_deref(), Ok("01000000001"), "{text}");
            assert_eq!(stored(text, Some("+82")).as_deref(), Ok("01000000001"), "{text}");
            assert_eq!(canonical(text), "01000000001", "{text}");
        }
        assert_eq!(sender("1588-0000").as_deref(), Ok("15880000"));
        assert_eq!(sender("+82-2-1234-5678").as_deref(), Ok("0212345678"));
    }

    #[test]
    fn abroad_by_country() {
        for (text, country, sent, kept) in [
            ("212-555-0100", "1", "2125550100", "+12125550100"),
            ("+1 212 555 0100", "1", "2125550100", "+12125550100"),
            ("+81 90 0000 0000", "+81", "9000000000", "+819000000000"),
            ("0012125550100", "1", "2125550100", "+12125550100"),
            ("0081-90-0000-0000", "81", "9000000000", "+819000000000"),
        ] {
            assert_eq!(recipient(text, Some(country)).as_deref(), Ok(sent), "{text}");
            assert_eq!(stored(text, Some(country)).as_deref(), Ok(kept), "{text}");
            // What was stored is sent as the same number.
            assert_eq!(recipient(kept, Some(country)).as_deref(), Ok(sent), "{text}");
        }
        assert!(recipient("+44 20 0000 0000", Some("1")).is_err());
        assert!(recipient("+44 20 0000 0000", None).is_err());
        assert!(recipient("0044 20 0000 0000", None).is_err());
        assert!(recipient("0044 20 0000 0000", Some("1")).is_err());
        for none in ["UK", "", "0", "8", "22", "811", "0082", "821", "12345"] {
            assert!(recipient("20 0000 0000", Some(none)).is_err(), "{none}");
        }
    }

    #[test]
    fn an_opt_out_is_found_however_the_list_has_the_number() {
        for (recipient, country, listed) in [
            ("010-0000-0001", None, "01000000001"),
            ("010-0000-0001", None, "+82 10-0000-0001"),
            ("010-0000-0001", None, "82-10-0000-0001"),
            ("010-0000-0001", None, "82 010 0000 0001"),
            ("010-0000-0001", None, "1000000001"),
            ("+82 10 0000 0001", Some("82"), "82(0)10-0000-0001"),
            ("02-000-0001", None, "8220000001"),
            ("+81 90 0000 0000", None, "+81 (0)90-0000-0000"),
            ("+81 90 0000 0000", None, "0081-90-0000-0000"),
            ("090-0000-0000", Some("81"), "+819000000000"),
            ("090-0000-0000", Some("81"), "+8109000000000"),
            ("90-0000-0000", Some("+81"), "0081 090-0000-0000"),
            ("0081 90 0000 0000", Some("81"), "81 90 0000 0000"),
            ("819000000000", Some("81"), "+819000000000"),
            ("0012125550100", Some("1"), "+1 (212) 555-0100"),
            ("212-555-0100", Some("1"), "12125550100"),
            ("+39 06 0000 0000", None, "+39 0600000000"),
            ("010-0000-0001", None, "001-82-10-0000-0001"),
            ("０１０-0000-0001", None, "010-0000-0001"),
            ("010/0000/0001", None, "01000000001"),
            ("tel:+82-10-0000-0001", None, "010 0000 0001"),
            ("+353 1 000 0000", None, "+35310000000"),
        ] {
            let forms = forms(recipient, country);
            assert!(forms.contains(&canonical(listed)), "{recipient} {listed}: {forms:?}");
            assert_eq!(forms[0], canonical(recipient));
        }
        for (recipient, country, listed) in [
            ("02-000-0001", None, "20000001"), // it could be anybody's in a list of other numbers
            ("090-0000-0000", Some("81"), "09000000001"),
            ("2125550100", Some("1"), "02125550100"), // a Korean number
            ("store-1", None, "1"),
            ("12-3", None, "1-23"),
            ("10.0.0.11", None, "10.0.01.1"),
            ("0112345678", None, "112345678"),
            ("0123456789", None, "82123456789"),
            ("+39 331 000 0000", None, "+39 0331 000 0000"),
            ("12345", None, "012345"),
        ] {
            assert!(!forms(recipient, country).contains(&canonical(listed)), "{recipient} {listed}");
        }
        assert_eq!(forms("store 1", Some("81")), ["store 1"]);
    }

    #[test]
    fn what_is_no_number_is_refused_without_repeating_it() {
        for text in [
            "",
            "12",
            "112",
            "1000000001",
            "01000000",
            "0100000000100",
            "01000000001x",
            "０１０００００００１",
            "01000000001000000",
            "010\u{202c}0000",
        ] {
            let reason = recipient(text, None).expect_err(text);
            assert!(reason.starts_with("recipient: "), "{reason}");
            assert!(text.len() < 4 || !reason.contains(text), "{reason}");
        }
    }

    #[test]
    fn what_is_not_written_like_a_number_is_compared_as_it_is() {
        for text in ["store-1", "a.b@example.org", "홍길동", " store 1 "] {
            assert_eq!(canonical(text), text);
        }
        assert_eq!(canonical("+1 (212) 555-0100"), "+12125550100");
    }
}
