//! How long a text is to a Korean vendor: bytes of EUC-KR, as the SMS and LMS limits are written.
//!
//! Counting only: it never changes, cuts or logs a text. The encoder is the WHATWG one, whose repertoire is
//! CP949: it knows all 11,172 Hangul syllables, while strict KS X 1001 knows 2,350. What lies between the two
//! is counted apart, because vendors differ on it and BizPpurio does not say (asked of the vendor).

use encoding_rs::{EUC_KR, EncoderResult};

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Length in bytes; a line break counts 2 however it is written, because some vendors send CR LF.
    pub bytes: usize,
    /// Characters that CP949 has and KS X 1001 has not (such as `똠`).
    pub outside_ksx1001: usize,
    /// The first character that cannot be written at all (emoji, decomposed Hangul, `é`); counted as 2 bytes.
    pub unencodable: Option<char>,
}

/// Measures a text. Never fails: what cannot be encoded is reported in the result.
pub fn measure(text: &str) -> Measured {
    let mut measured = Measured { bytes: 0, outside_ksx1001: 0, unencodable: None };
    let mut encoder = EUC_KR.new_encoder();
    let mut source = [0_u8; 4];
    let mut encoded = [0_u8; 16];
    let mut after_cr = false;
    for character in text.chars() {
        let ends_crlf = after_cr && character == '\n';
        after_cr = character == '\r';
        if ends_crlf {
            continue;
        }
        if matches!(character, '\r' | '\n') {
            measured.bytes += 2;
            continue;
        }
        let piece = character.encode_utf8(&mut source);
        let (result, _, written) = encoder.encode_from_utf8_without_replacement(piece, &mut encoded, false);
        match (result, written) {
            (EncoderResult::InputEmpty, 1) => measured.bytes += 1,
            (EncoderResult::InputEmpty, 2) => {
                measured.bytes += 2;
                // KS X 1001 lives where both bytes have the high bit and start at A1; CP949 filled the rest.
                if encoded[0] < 0xA1 || encoded[1] < 0xA1 {
                    measured.outside_ksx1001 += 1;
                }
            }
            _ => {
                measured.bytes += 2;
                measured.unencodable.get_or_insert(character);
            }
        }
    }
    measured
}

/// Length of a text abroad: one byte a character while all of it is in the GSM 7-bit alphabet (its extension
/// characters count 2), and two bytes for every UTF-16 unit as soon as one is not (vendor's guide, 2026-07).
pub fn measure_abroad(text: &str) -> usize {
    const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./:;<=>?¡ÄÖÑÜ§¿äöñüà";
    const EXTENDED: &str = "^{}\\[~]|€";
    let mut bytes = 0;
    for character in text.chars() {
        if character.is_ascii_alphanumeric() || BASIC.contains(character) {
            bytes += 1;
        } else if EXTENDED.contains(character) {
            bytes += 2;
        } else {
            return text.encode_utf16().count() * 2;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bytes: usize, outside_ksx1001: usize, unencodable: Option<char>) {
        assert_eq!(measure(text), Measured { bytes, outside_ksx1001, unencodable }, "{text:?}");
    }

    #[test]
    fn counts_as_the_vendor_does() {
        check("", 0, 0, None);
        check("abc 123", 7, 0, None);
        check("가나다", 6, 0, None);
        check("똠방각하", 8, 1, None);
        check("힣", 2, 1, None);
        check("①㈜", 4, 0, None);
        check("a😀", 3, 0, Some('😀'));
        check("é", 2, 0, Some('é'));
        // Decomposed Hangul, as macOS file names have it.
        check("\u{1112}\u{1161}", 4, 0, Some('\u{1112}'));
    }

    #[test]
    fn every_line_break_counts_two() {
        for text in ["a\nb", "a\r\nb", "a\rb"] {
            check(text, 4, 0, None);
        }
        check("\n\r\n\r", 6, 0, None);
    }

    #[test]
    fn all_syllables_can_be_encoded_and_2350_are_in_the_standard() {
        let all: String = ('가'..='힣').collect();
        let measured = measure(&all);
        assert_eq!(measured.bytes, 2 * 11_172);
        assert_eq!(measured.outside_ksx1001, 11_172 - 2_350);
        assert_eq!(measured.unencodable, None);
    }

    #[test]
    fn abroad_one_strange_character_doubles_the_text() {
        assert_eq!(measure_abroad("hello"), 5);
        assert_eq!(measure_abroad("h€llo"), 6);
        assert_eq!(measure_abroad("héllo"), 5);
        assert_eq!(measure_abroad("hello 가"), 14);
        assert_eq!(measure_abroad("😀"), 4);
    }
}
