//! Texts of alerts leave the machine: numbers that may be a person's, addresses and control characters do not. Pure.
//!
//! Callers give no personal data; this is the net below them. Message ids (`ow-...`) stay, they are what is asked for.

/// Longest text of an alert, characters: a line in a chat, not a log.
const TEXT_CHARS_MAX: usize = 400;
/// So many digits in one word may be a phone number.
const DIGITS_MAX: usize = 6;
/// What stands in their place.
const STARS: &str = "****";

/// The text as it may be shown anywhere.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    for character in text.chars().take(TEXT_CHARS_MAX) {
        match character {
            // A number may be written with these inside; letters belong to the word that decides.
            _ if character.is_alphanumeric() || "-_+.@".contains(character) => word.push(character),
            _ => {
                flush(&mut word, &mut out);
                out.push(if character.is_control() { ' ' } else { character });
            }
        }
    }
    flush(&mut word, &mut out);
    if text.chars().nth(TEXT_CHARS_MAX).is_some() {
        out.push('…');
    }
    join_split_numbers(&out)
}

fn flush(word: &mut String, out: &mut String) {
    let digits = word.chars().filter(char::is_ascii_digit).count();
    if word.contains('@') || (digits > DIGITS_MAX && !is_harmless(word)) {
        out.push_str(STARS);
    } else {
        out.push_str(word);
    }
    word.clear();
}

/// Message ids as the schema makes them, dates, and addresses of machines.
fn is_harmless(word: &str) -> bool {
    let id = || {
        word.len() == 30 && word.starts_with("ow-") && word[3..].bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let date =
        || word.get(..10).is_some_and(|day| day.parse::<jiff::civil::Date>().is_ok()) && word.len() <= 20;
    id() || date() || word.trim_end_matches('.').parse::<std::net::Ipv4Addr>().is_ok()
}

/// `010 1234 5678`: groups of digits in a row count as one number, whatever stands before and behind them (`to=010 …,`).
fn join_split_numbers(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&character) = characters.get(at) {
        match split_number(&characters, at) {
            Some(end) => {
                out.push_str(STARS);
                at = end;
            }
            None => {
                out.push(character);
                at += 1;
            }
        }
    }
    out
}

/// Where the number ends that begins here and is written in groups.
fn split_number(characters: &[char], begin: usize) -> Option<usize> {
    let is_part = |at: usize| {
        characters.get(at).is_some_and(|character| character.is_ascii_digit() || "()+-".contains(*character))
    };
    let in_word = |character: char| character.is_alphanumeric() || character == '_';
    if begin.checked_sub(1).is_some_and(|before| in_word(characters[before])) {
        return None;
    }
    let (mut groups, mut digits, mut end, mut next) = (0, 0, begin, begin);
    while is_part(next) {
        let length = (next..).take_while(|at| is_part(*at)).count();
        // The first half of a word or of a time (`10:30`) is no group.
        let behind = characters.get(next + length);
        let of_time =
            behind == Some(&':') && characters.get(next + length + 1).is_some_and(char::is_ascii_digit);
        if of_time || behind.is_some_and(|behind| in_word(*behind)) {
            break;
        }
        groups += 1;
        end = next + length;
        digits += characters[next..end].iter().filter(|character| character.is_ascii_digit()).count();
        if behind != Some(&' ') {
            break;
        }
        next = end + 1;
    }
    (groups > 1 && digits > DIGITS_MAX).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses_of_people_do_not_pass() {
        for (given, shown) in [
            ("parked: 01012345678 is no number", "parked: **** is no number"),
            ("to +82-10-1234-5678.", "to ****"),
            ("to 010 1234 5678 now", "to **** now"),
            ("(010) 1234 5678", "****"),
            ("to=+82 10 1234 5678, and more", "to=****, and more"),
            ("since 2026-08-01 10:30", "since 2026-08-01 10:30"),
            ("3 of 500 rows, 2 of 12000", "3 of 500 rows, 2 of 12000"),
            ("mail kim@example.com", "mail ****"),
            ("key GRADE:1842", "key GRADE:1842"),
            ("NO_ROUTE: kind \"x01012345678\"", "NO_ROUTE: kind \"****\""),
            ("ow-0198c3f2a1b0123456789abcdef is ERROR", "ow-0198c3f2a1b0123456789abcdef is ERROR"),
            ("DEADLINE: 2026-08-01T10:00:00 passed", "DEADLINE: 2026-08-01T10:00:00 passed"),
            ("192.168.100.200 refused", "192.168.100.200 refused"),
            ("ow-01012345678x", "****"),
            ("92 bytes, 90 are allowed", "92 bytes, 90 are allowed"),
            ("127.0.0.1:7790 refused", "127.0.0.1:7790 refused"),
            ("a\nb\u{1b}[31m", "a b [31m"),
        ] {
            assert_eq!(clean(given), shown, "{given:?}");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let text = clean(&"x ".repeat(1_000));
        assert_eq!(text.chars().count(), TEXT_CHARS_MAX + 1);
        assert!(text.ends_with('…'));
    }
}
