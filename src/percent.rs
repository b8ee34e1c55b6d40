//! Pure: percent-encoding of one part of a path or query, as used for message ids and keys.

/// Whatever is not plain is encoded.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The text again; `None` where a `%` is not followed by two hex digits, or the bytes are not UTF-8.
pub fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_comes_back() {
        for text in ["ow-018f", "GRADE:1842/가", "100%", "a b+c", ""] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
            assert!(encode(text).bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
        }
        for broken in ["%", "%4", "%zz", "%+1", "%ff"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }
}
