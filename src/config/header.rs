//! Header names and values as written in settings.
//!
//! Refuses what the HTTP client writes itself, and secrets that stand in the file.

use toml::de::DeValue;

use super::Secret;
use super::element::{quiet_text, text};
use super::secret::{HOW, SecretReader};

/// Written by the HTTP client or by the destination's own keys.
const OURS: [(&str, &str); 10] = [
    ("content-type", "write it as content_type"),
    ("content-length", "the client writes it"),
    ("transfer-encoding", "the client writes it"),
    ("connection", "write keep_alive instead"),
    ("host", "it follows from url"),
    ("expect", "the client never waits for 100 Continue"),
    ("te", "the client writes it"),
    ("trailer", "the client writes none"),
    ("upgrade", "the client never upgrades"),
    ("traceparent", "it comes from the message"),
];

/// Longest value of a header, bytes.
const VALUE_BYTES_MAX: usize = 4 * 1024;

/// A usable header name, or why it is none.
pub(super) fn name(written: &str) -> Result<String, String> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if written.is_empty() || written.len() > 100 || !written.bytes().all(token) {
        return Err("is no header name, expected letters, digits and - like \"X-Reference\"".to_owned());
    }
    match OURS.iter().find(|(ours, _)| written.eq_ignore_ascii_case(ours)) {
        Some((_, instead)) => Err(format!("the header {written} cannot be set: {instead}")),
        None => Ok(written.to_owned()),
    }
}

/// A key that holds a header's name.
pub(super) fn name_value(value: &DeValue<'_>) -> Result<String, String> {
    name(text(value, "a header name like \"X-Reference\"")?)
}

/// A header's value: plain text, or a reference where the name says that it is a secret.
pub(super) fn value(name: &str, value: &DeValue<'_>, secrets: &SecretReader<'_>) -> Result<Secret, String> {
    if holds_a_secret(name) {
        return secrets.secret(value, sendable).map_err(|what| match value.as_str() {
            Some(_) => format!("{what} (the place holds the whole header value, \"Bearer …\" included)"),
            None => what,
        });
    }
    let written = quiet_text(value, &format!("text, or {HOW}"))?;
    match secrets.reference(written)? {
        Some(reference) => secrets.read(&reference, sendable),
        None => sendable(written).map(|()| Secret::new(written.to_owned())),
    }
}

/// Whether a header of this name carries a secret.
pub(super) fn holds_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["auth", "cookie", "token", "secret", "key", "password"].iter().any(|part| name.contains(part))
}

/// Whether a value can stand in a header line.
pub(super) fn sendable(value: &str) -> Result<(), String> {
    let visible = |byte: u8| byte.is_ascii_graphic() || byte == b' ' || byte == b'\t';
    // A request's head has to fit into one buffer whole, or every message would end unknown.
    if value.len() > VALUE_BYTES_MAX {
        return Err(format!("is longer than {VALUE_BYTES_MAX} bytes"));
    }
    match !value.is_empty() && value.bytes().all(visible) && value.trim() == value {
        true => Ok(()),
        false => {
            Err("cannot stand in a header, expected visible ASCII text without spaces at its ends".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::element::tests::read;
    use super::super::secret::{SecretReference, SecretSource};
    use super::*;

    struct Fixed(&'static str);
    impl SecretSource for Fixed {
        fn read(&self, _: &SecretReference) -> Result<Option<String>, String> {
            Ok(Some(self.0.to_owned()))
        }
    }

    #[test]
    fn names() {
        for good in ["X-Reference", "Authorization", "x_y", "A"] {
            assert_eq!(name(good), Ok(good.to_owned()));
        }
        for bad in
            ["", "X Reference", "X:Y", "X\r\nY", "한", "Content-Type", "HOST", "Content-Length", "connection"]
        {
            assert!(name(bad).is_err(), "{bad:?}");
        }
        assert!(name("content-type").unwrap_err().contains("content_type"));
    }

    #[test]
    fn secret_names_take_references_only() {
        for secret in
            ["Authorization", "proxy-authorization", "Cookie", "X-API-Key", "X-Auth-Token", "my-SECRET"]
        {
            assert!(holds_a_secret(secret), "{secret}");
        }
        for plain in ["X-Branch", "Accept", "X-Reference", "User-Agent"] {
            assert!(!holds_a_secret(plain), "{plain}");
        }
        let reader = SecretReader { source: &Fixed("Bearer abc\n"), beside: Path::new("/") };
        let of = |header: &str, toml: &str| read(toml, |written| value(header, written, &reader));
        assert_eq!(of("Authorization", "'credential:gw'").unwrap().reveal(), "Bearer abc");
        assert_eq!(of("X-Branch", "'seoul 1'").unwrap().reveal(), "seoul 1");
        assert_eq!(of("X-Branch", "'env:BRANCH'").unwrap().reveal(), "Bearer abc");
        for (header, toml) in [
            ("Authorization", "'Bearer hunter2'"),
            ("X-Key", "'hunter2'"),
            ("X-Branch", "\"hunter2\\r\\nX: y\""),
            ("X-Branch", "''"),
            ("X-Branch", "['hunter2']"),
        ] {
            let what = of(header, toml).unwrap_err();
            assert!(!what.contains("hunter2"), "{what}");
        }
        let reader = SecretReader { source: &Fixed("비밀"), beside: Path::new("/") };
        assert!(read("'env:X'", |written| value("Authorization", written, &reader)).is_err());
    }
}
