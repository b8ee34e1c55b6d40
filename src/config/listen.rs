//! `[listen]`: the local socket, and the loopback address of page, API and metrics.
//!
//! Opens neither.

use std::path::PathBuf;

use toml::de::DeValue;

use super::element::{path, text, unless_empty};
use super::problems::Problems;
use super::secret::{HOW, SecretReader};
use super::section::{Section, came};
use super::{ListenSettings, header};

const SOCKET: &str = "/run/onceward/onceward.sock";
/// Longest path of a Unix socket, bytes (`sun_path` less its NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// A token that can be guessed protects nothing.
const TOKEN_CHARS_MIN: usize = 16;

/// Reads `[listen]`.
pub(super) fn listen(
    mut section: Section<'_, '_>,
    secrets: &SecretReader<'_>,
    problems: &mut Problems,
) -> ListenSettings {
    let socket = section.get(problems, "socket", PathBuf::from(SOCKET), |value| {
        let socket = path(value, secrets.beside)?;
        match socket.as_os_str().len() {
            ..=SOCKET_PATH_BYTES_MAX => Ok(socket),
            bytes => Err(format!(
                "has {bytes} bytes, expected at most {SOCKET_PATH_BYTES_MAX} (a limit of Unix sockets)"
            )),
        }
    });
    let http = section.get(problems, "http", None, |value| unless_empty(value, loopback_address));
    let token = section.get(problems, "token", None, |value| {
        unless_empty(value, |value| {
            secrets.secret(value, |token| {
                header::sendable(token)?;
                match token.len() >= TOKEN_CHARS_MIN {
                    true => Ok(()),
                    false => Err(format!("is too short, expected at least {TOKEN_CHARS_MIN} characters")),
                }
            })
        })
    });
    if http.value.is_some() && token.value.is_none() && token.sound {
        let what = format!("is missing, and http is set; expected {}", HOW);
        problems.add(&http.at, section.place("token"), what);
    }
    section.finish(problems);
    ListenSettings { socket: socket.value, http: http.value, token: token.value }
}

fn loopback_address(value: &DeValue<'_>) -> Result<std::net::SocketAddr, String> {
    let expected = "expected a loopback address and port like \"127.0.0.1:7780\"";
    let given = text(value, "a loopback address and port like \"127.0.0.1:7780\"")?;
    let address: std::net::SocketAddr =
        given.parse().map_err(|_| format!("is {}, {expected}", came(value)))?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!("is {}, which other machines reach without TLS, {expected}", came(value))),
    }
}
