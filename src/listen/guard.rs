//! Pure: who may ask what. Secrets are compared in constant time, hosts by a fixed list.

use std::net::SocketAddr;

use ring::digest::{SHA256, digest};

use crate::config::Secret;

/// How a connection came in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Over the Unix socket, whose file mode let it in.
    Socket {
        /// Who it is, by the kernel's word.
        who: String,
        /// It is the agent's own user, or root: those who could read the databases themselves.
        ours: bool,
    },
    /// Over the loopback address.
    Tcp,
}

/// How the kernel names a user that the agent's own user namespace does not have.
const STRANGER: &str = "uid 65534";
/// Longest name that is kept, characters.
const WHO_CHARS_MAX: usize = 60;

impl Peer {
    /// As `audit` names them. `own_word` is used where the kernel cannot tell (a service with its own user namespace
    /// sees strangers as one).
    pub fn name(&self, own_word: &str) -> String {
        match self {
            Self::Socket { who, .. } if who.starts_with(STRANGER) && !own_word.is_empty() => {
                format!("{} (by its own word)", own_word.chars().take(WHO_CHARS_MAX).collect::<String>())
            }
            Self::Socket { who, .. } => who.clone(),
            Self::Tcp => "token".to_owned(),
        }
    }

    /// Whether texts and numbers may be shown.
    pub fn may_see_content(&self) -> bool {
        matches!(self, Self::Socket { ours: true, .. })
    }
}

/// What a route asks of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// Nothing: it tells nothing that is anybody's.
    Open,
    /// A secret in the path, compared by the route; a vendor behind a reverse proxy names any host.
    PathSecret,
    /// Over the loopback address the token of `[listen]`.
    Token,
}

/// What the loopback listener knows.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Its address.
    pub address: SocketAddr,
    /// Its token.
    pub token: Option<Secret>,
}

/// `Err` is the status to answer. `keys` is `None` on the Unix socket.
pub fn admit(
    guard: Guard,
    keys: Option<&Keys>,
    host: Option<&str>,
    authorization: Option<&str>,
) -> Result<(), u16> {
    let Some(keys) = keys else { return Ok(()) };
    // A page of somebody else's, open in a browser here, reaches this port under its own name (DNS rebinding).
    if guard != Guard::PathSecret && !host.is_some_and(|host| is_ours(host, keys.address)) {
        return Err(421);
    }
    if guard == Guard::Token {
        let given = authorization.and_then(|text| text.strip_prefix("Bearer ")).map(str::trim);
        let right = match (given, &keys.token) {
            (Some(given), Some(token)) => same_secret(given, token),
            _ => false,
        };
        if !right {
            return Err(401);
        }
    }
    Ok(())
}

fn is_ours(host: &str, address: SocketAddr) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, port.parse().ok()),
        _ => (host, Some(80)),
    };
    port == Some(address.port())
        && (name.eq_ignore_ascii_case("localhost") || name == "127.0.0.1" || name == "[::1]" || {
            let ip = address.ip();
            name == if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() }
        })
}

/// Equal, in a time that depends on the length of the given text alone: digests are compared, bit by bit.
pub fn same_secret(given: &str, secret: &Secret) -> bool {
    let (given, secret) = (digest(&SHA256, given.as_bytes()), digest(&SHA256, secret.reveal().as_bytes()));
    let difference = given.as_ref().iter().zip(secret.as_ref()).fold(0u8, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_who_may_ask() {
        let keys = Keys {
            address: "127.0.0.1:7780".parse().expect("an address"),
            token: Some(Secret::new("0123456789abcdef".into())),
        };
        let ours = Some("127.0.0.1:7780");
        let right = Some("Bearer 0123456789abcdef");
        for (guard, host, authorization, said) in [
            (Guard::Open, ours, None, Ok(())),
            (Guard::Open, Some("LOCALHOST:7780"), None, Ok(())),
            (Guard::Open, Some("[::1]:7780"), None, Ok(())),
            (Guard::Open, Some("127.0.0.1"), None, Err(421)),
            (Guard::Open, Some("127.0.0.1:80"), None, Err(421)),
            (Guard::Open, Some("evil.example:7780"), None, Err(421)),
            (Guard::Open, Some(""), None, Err(421)),
            (Guard::Open, None, None, Err(421)),
            (Guard::PathSecret, Some("hook.example"), None, Ok(())),
            (Guard::Token, ours, right, Ok(())),
            (Guard::Token, ours, None, Err(401)),
            (Guard::Token, ours, Some("0123456789abcdef"), Err(401)),
            (Guard::Token, ours, Some("Bearer "), Err(401)),
            (Guard::Token, ours, Some("Bearer 0123456789abcdeF"), Err(401)),
            (Guard::Token, Some("evil.example:7780"), right, Err(421)),
        ] {
            assert_eq!(admit(guard, Some(&keys), host, authorization), said, "{guard:?} {host:?}");
            assert_eq!(admit(guard, None, host, authorization), Ok(()), "the socket's mode has let it in");
        }
        let keys = Keys { token: None, ..keys };
        assert_eq!(admit(Guard::Token, Some(&keys), ours, Some("Bearer ")), Err(401));
    }
}
