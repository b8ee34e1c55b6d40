//! What went wrong, in words for people.
//!
//! Part of the HTTP client's room. Decides nothing: whether a request was sent is known by the guard's record, not
//! by an error. Never says a url's path or query, a header's value or a body.

use std::io::ErrorKind;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};
use ureq::Error;

use super::guard::Refused;
use super::resolver::LookupFailed;
use crate::limits::{ANSWER_BYTES_MAX, ANSWER_HEAD_BYTES_MAX};

/// Why nothing was sent. Says host and port, never the rest of the url.
pub(super) fn unsent(error: &Error, name: &str, proxied: bool, connect_timeout: Duration) -> String {
    let connect_timeout = spoken(connect_timeout);
    match error {
        Error::Timeout(ureq::Timeout::Resolve) => {
            format!("name look-up of {name} gave no answer within {connect_timeout}")
        }
        Error::Timeout(_) => format!("no connection to {name} within {connect_timeout}"),
        Error::HostNotFound => format!("name look-up of {name} failed: no usable address"),
        Error::Other(why) if why.is::<LookupFailed>() => format!("name look-up of {name} failed: {why}"),
        Error::ConnectProxyFailed(why) => format!("no connection to {name}: {why}"),
        Error::Protocol(_) if proxied => {
            format!("no connection to {name}: the proxy does not speak HTTP")
        }
        Error::Tls(_) => format!("the host of {name} is no name that a certificate can carry"),
        Error::Http(_) => {
            "a header of the request cannot be sent; check the settings and the message".to_owned()
        }
        Error::Io(error) => match (tls_reason(error), error.kind()) {
            (Some(why), _) => format!("TLS with {name}: {why}"),
            (None, ErrorKind::ConnectionRefused) => format!("connection refused by {name}"),
            (None, kind) if is_closed(kind) => {
                format!("connection closed by {name} before the request could begin")
            }
            (None, _) => format!("no connection to {name}: {error}"),
        },
        _ => format!("no connection to {name}"),
    }
}

/// Why the outcome is unknown although (some of) the request was handed over.
pub(super) fn unknown(error: &Error, status: Option<u16>, timeout: Duration) -> String {
    let timeout = spoken(timeout);
    match (error, status) {
        (Error::Timeout(_), None) => format!("no answer within {timeout}"),
        (Error::Timeout(_), Some(_)) => format!("answer cut: its body was not complete within {timeout}"),
        (Error::BodyExceedsLimit(_), _) => {
            format!("answer too large: its body is longer than {} KiB", ANSWER_BYTES_MAX / 1024)
        }
        (Error::LargeResponseHeader(..), _) => {
            format!("answer too large: its head is longer than {} KiB", ANSWER_HEAD_BYTES_MAX / 1024)
        }
        (Error::Protocol(_), None) => "answer unreadable: it is not proper HTTP".to_owned(),
        (Error::Protocol(_), Some(_)) => "answer cut: its body is not proper HTTP".to_owned(),
        (Error::Other(why), _) if why.is::<Refused>() => why.to_string(),
        (Error::Io(io), None) => match tls_reason(io) {
            Some(why) => format!("connection lost after the request went out: TLS: {why}"),
            None if is_closed(io.kind()) => "connection closed before an answer".to_owned(),
            None => format!("connection lost before an answer: {io}"),
        },
        (_, Some(_)) => "answer cut: the connection closed inside its body".to_owned(),
        _ => "connection lost before an answer".to_owned(),
    }
}

fn is_closed(kind: ErrorKind) -> bool {
    use ErrorKind as K;
    matches!(
        kind,
        K::ConnectionReset | K::ConnectionAborted | K::BrokenPipe | K::UnexpectedEof | K::NotConnected
    )
}

/// What TLS said, if it was TLS that failed.
fn tls_reason(error: &std::io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        rustls::Error::InvalidCertificate(why) => match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate has expired".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate is not valid yet; is this machine's clock right?".into()
            }
            CertificateError::UnknownIssuer => "the certificate's issuer is unknown; check `ca_file`".into(),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the certificate is for another name".into()
            }
            CertificateError::BadSignature => {
                "the certificate is not signed by the issuer that it names; check `ca_file`".into()
            }
            CertificateError::Revoked => "the certificate has been revoked".into(),
            other => format!("the certificate is not accepted: {other}"),
        },
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the far end wants a client certificate".into()
        }
        rustls::Error::AlertReceived(alert) => {
            format!("the far end refused with the alert {}", apart(&format!("{alert:?}")))
        }
        rustls::Error::InvalidMessage(_) => "the far end does not speak TLS on this port".into(),
        other => other.to_string(),
    })
}

/// `HandshakeFailure` as the words that other tools print: `handshake failure`.
fn apart(name: &str) -> String {
    let mut words = String::new();
    let mut small = false;
    for letter in name.chars() {
        if small && letter.is_ascii_uppercase() {
            words.push(' ');
        }
        small = letter.is_ascii_lowercase();
        words.push(letter.to_ascii_lowercase());
    }
    words
}

/// A duration as people say it: `15 s`, `1.5 s`, `300 ms`.
pub(super) fn spoken(duration: Duration) -> String {
    match duration.as_millis() {
        ms if ms >= 1000 && ms.is_multiple_of(1000) => format!("{} s", ms / 1000),
        ms if ms >= 1000 => format!("{:.1} s", duration.as_secs_f64()),
        ms => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_told_in_words() {
        for (alert, words) in [
            (AlertDescription::HandshakeFailure, "handshake failure"),
            (AlertDescription::UnknownCA, "unknown ca"),
            (AlertDescription::NoApplicationProtocol, "no application protocol"),
        ] {
            assert_eq!(apart(&format!("{alert:?}")), words);
        }
    }
}
