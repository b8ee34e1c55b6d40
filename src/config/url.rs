//! URLs as written in settings: form, scheme, host, and whether the host is this machine.
//!
//! Looks nothing up and opens nothing. Never echoes a URL: it may hold a password or a key by mistake.

use std::net::{Ipv4Addr, Ipv6Addr};

/// What matters about a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// `https`, else `http`.
    pub(crate) https: bool,
    /// Lower case, an IPv6 address without its brackets.
    pub(crate) host: String,
    /// The host is this machine by its name or address.
    pub(crate) loopback: bool,
    /// Path and query as written; empty or starting with `/` or `?`.
    pub(crate) rest: String,
}

/// Takes a URL apart; the error says what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Url, String> {
    let expected = "expected a url like \"https://api.example.com/send\"";
    if text.is_empty() {
        return Err(format!("is empty, {expected}"));
    }
    // What no url has unencoded (RFC 3986); the client could not read it, and each call would fail. Braces stand for a
    // field in a look-up's url.
    let misplaced = |character: &char| !character.is_ascii_graphic() || "\"<>\\^`|".contains(*character);
    if let Some(bad) = text.chars().find(misplaced) {
        return Err(format!("has the character {bad:?}, which a url must not hold, {expected}"));
    }
    let (scheme, after) = text.split_once("://").ok_or_else(|| format!("has no scheme, {expected}"))?;
    let https = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return Err(format!("has a scheme that is neither http nor https, {expected}")),
    };
    let (authority, rest) = after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len()));
    if rest.contains('#') {
        return Err("has a # part, which is never sent; remove it".to_owned());
    }
    if authority.contains('@') {
        return Err("has a user name or password in it, which must not stand in this file; use a secret reference in a header".to_owned());
    }
    let (host, port) =
        split_port(authority).ok_or_else(|| format!("has an unclosed [ in its host, {expected}"))?;
    if port.is_some_and(|port| {
        !port.bytes().all(|byte| byte.is_ascii_digit()) || !matches!(port.parse::<u16>(), Ok(1..))
    }) {
        return Err("has a bad port, expected 1 to 65535".to_owned());
    }
    let (host, loopback) = host_of(host).ok_or_else(|| format!("has a bad host name or none, {expected}"))?;
    Ok(Url { https, host, loopback, rest: rest.to_owned() })
}

/// Host (with its brackets) and port.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if authority.starts_with('[') {
        let (host, after) = authority.split_at(authority.find(']')? + 1);
        return match after {
            "" => Some((host, None)),
            _ => Some((host, Some(after.strip_prefix(':')?))),
        };
    }
    Some(authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))))
}

/// The host and whether it is this machine.
fn host_of(host: &str) -> Option<(String, bool)> {
    if let Some(inner) = host.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        return Some((address.to_string(), address.is_loopback()));
    }
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Some((address.to_string(), address.is_loopback()));
    }
    let label_holds = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = host.strip_suffix('.').unwrap_or(host);
    // Digits alone at the end would be a malformed address, which resolvers read in surprising ways.
    let address_like =
        name.rsplit('.').next().is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()));
    if name.len() > 253 || address_like || !name.split('.').all(label_holds) {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let loopback = name == "localhost";
    Some((name, loopback))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls() {
        for (text, https, host, loopback, rest) in [
            ("https://api.bizppurio.com", true, "api.bizppurio.com", false, ""),
            ("HTTPS://Gw.Example/send?x=1", true, "gw.example", false, "/send?x=1"),
            ("http://127.0.0.1:7790/send", false, "127.0.0.1", true, "/send"),
            ("http://127.9.9.9", false, "127.9.9.9", true, ""),
            ("http://localhost:80", false, "localhost", true, ""),
            ("http://[::1]:7790/x", false, "::1", true, "/x"),
            ("http://[2001:db8::1]/", false, "2001:db8::1", false, "/"),
            ("http://10.0.0.1", false, "10.0.0.1", false, ""),
            ("http://localhost.example", false, "localhost.example", false, ""),
            ("https://h?q=a@b", true, "h", false, "?q=a@b"),
        ] {
            let expected = Url { https, host: host.to_owned(), loopback, rest: rest.to_owned() };
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn bad_urls_are_refused_and_not_echoed() {
        for text in [
            "",
            "hunter2",
            "hunter2.example/send",
            "ftp://hunter2",
            "https://",
            "https:///hunter2",
            "https://user:hunter2@h/",
            "https://h:0",
            "https://h:65536",
            "https://h:",
            "https://h:+80",
            "https://h:80a",
            "https://[::1",
            "https://[hunter2]",
            "https://[::1]80",
            "https://a..b",
            "https://-a",
            "https://h/ hunter2",
            "https://h/#hunter2",
            "https://h/한",
            "https://127.1",
            "https://1.2.3.4.5",
            "http://127.0.0.1:80:80",
            "https://h\\hunter2",
            "https://h/<hunter2>",
            "https://h/?q=\"hunter2\"",
            "https://h/hunter2^`|",
        ] {
            let what = parse(text).unwrap_err();
            assert!(!what.contains("hunter2"), "{text}: {what}");
        }
    }
}
