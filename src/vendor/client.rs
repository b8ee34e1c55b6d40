//! The HTTP client: one request a call, and an honest account of whether any of it left.
//!
//! This room (`client.rs` and `client/`: guard, resolver, reasons) is the only one that names `ureq`. Never follows a
//! redirect, never repeats a request, never reads the environment's proxy, never says "not sent" unless the guard's
//! record holds no request byte. The error alone would not tell: the same reset, end of file or timeout comes before
//! and after the request.

mod guard;
mod reasons;
mod resolver;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::RootCertStore;
use ureq::http::{Response, Uri, Version};
use ureq::tls::{PemItem, RootCerts, TlsConfig};
use ureq::{Agent, Body, Error, Proxy, ProxyProtocol};

use self::guard::{Call, Guard};
use self::resolver::CachedResolver;
use crate::limits::{ANSWER_BYTES_MAX, ANSWER_HEAD_BYTES_MAX, HTTP_BUFFER_BYTES};
use crate::message::{NotSentProof, Timing};

/// Where Debian keeps the certificates of the authorities it trusts (package `ca-certificates`).
const SYSTEM_CA_FILE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// How the client names itself.
const USER_AGENT: &str = concat!("onceward/", env!("CARGO_PKG_VERSION"));
/// Headers that belong to the client: a wrong length hangs the call with the head already gone, and a request
/// in two steps is two chances to be unsure.
const OWN_HEADERS: [&str; 3] = ["content-length", "transfer-encoding", "expect"];

/// How a destination's client is set up.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Whole-call bound: name, connect, TLS, send, answer, body.
    pub timeout: Duration,
    /// Bound on name + connect + TLS, at most `timeout`.
    pub connect_timeout: Duration,
    /// A kept connection is reused only while idle for less; zero = never.
    pub keep_alive: Duration,
    /// At most this many idle connections are kept (the destination's threads).
    pub idle_max: usize,
    /// CA bundle; `None` = the system's.
    pub ca_file: Option<PathBuf>,
    /// Explicit proxy; the environment's is never used.
    pub proxy: Option<String>,
}

/// What one exchange came to.
#[derive(Debug)]
pub enum Exchange {
    /// No byte of the request was handed to the transport.
    NotSent {
        /// For people: no url, no body.
        reason: String,
        /// The evidence.
        proof: NotSentProof,
    },
    /// A whole answer.
    Answered(Answer),
    /// Anything else: the request may be there.
    Unknown {
        /// The status, if its line was read.
        status: Option<u16>,
        /// For people.
        reason: String,
    },
}

/// A whole HTTP answer.
#[derive(Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// The body, at most [`crate::limits::ANSWER_BYTES_MAX`].
    pub body: Vec<u8>,
    /// Its length was given by Content-Length or chunks and kept; if not, the end is not proven.
    pub framed: bool,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Answer {
    /// The first header of that (lower-case) name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// One destination's HTTP client; shared by its threads.
pub struct Client {
    settings: ClientSettings,
    proxy: Option<Proxy>,
    /// Loaded at the start when the file was named in the settings, else when an https url first needs it.
    named_roots: Option<RootCerts>,
    resolver: CachedResolver,
    agents: Mutex<Agents>,
}

/// Built when first needed, and anew after a panic inside ureq (its pool's lock may be poisoned).
#[derive(Default)]
struct Agents {
    plain: Option<Agent>,
    secure: Option<Agent>,
}

/// Where a call goes, as far as people may read it.
struct FarEnd {
    secure: bool,
    /// `host:port` without credentials, path or query, and the proxy if there is one.
    name: String,
}

impl Client {
    /// Builds the client; fails on an unreadable or empty CA file or a bad proxy. The system's CA file is read
    /// only when an `https` url is used, so plain HTTP needs none. Opens no connection.
    pub fn new(settings: &ClientSettings) -> Result<Self, String> {
        let named_roots = settings.ca_file.as_deref().map(load_roots).transpose()?;
        Ok(Self {
            proxy: settings.proxy.as_deref().map(read_proxy).transpose()?,
            settings: settings.clone(),
            named_roots,
            resolver: CachedResolver::default(),
            agents: Mutex::default(),
        })
    }

    /// POSTs once. Never follows, never retries, refuses a second request within the call.
    ///
    /// `Content-Length` is set here; a caller's own, like `Transfer-Encoding` and `Expect`, is refused unsent.
    pub fn post_once(&self, url: &str, headers: &[(&str, &str)], body: &[u8]) -> (Exchange, Timing) {
        self.exchange(url, headers, |agent| {
            let mut request = agent.post(url);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            request.send(body)
        })
    }

    /// GETs once, under the same rules; for reading from a vendor (reports, probes), never for a message.
    pub fn get_once(&self, url: &str, headers: &[(&str, &str)]) -> (Exchange, Timing) {
        self.exchange(url, headers, |agent| {
            let mut request = agent.get(url);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            request.call()
        })
    }

    /// A harmless probe: looks the name up, connects on a new connection (through the proxy, if set), shakes
    /// hands over TLS for `https`, and hangs up without a request byte. Both texts are for people.
    pub fn connect_only(&self, url: &str) -> Result<String, String> {
        let far_end = self.far_end(url)?;
        // A fresh agent: an idle connection of the real one would prove nothing.
        let agent = self.build_agent(far_end.secure)?;
        let call = Call::begin(self.connect_timeout(), true);
        let result = catch_unwind(AssertUnwindSafe(|| agent.get(url).call()));
        let (wire, took) = (call.record(), call.begun.elapsed());
        drop(call);
        match result {
            _ if wire.refused > 0 => {
                let how = if far_end.secure { "connected and TLS agreed" } else { "connected (no TLS)" };
                Ok(format!("{how}: {} in {}; no request was made", far_end.name, reasons::spoken(took)))
            }
            Ok(Err(error)) => Err(self.unsent_reason(&error, &far_end)),
            Ok(Ok(_)) => {
                Err("the HTTP client ended the probe without a connection; please report this".to_owned())
            }
            Err(_) => Err("the HTTP client failed inside; please report this".to_owned()),
        }
    }

    fn exchange(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        run: impl FnOnce(&Agent) -> Result<Response<Body>, Error>,
    ) -> (Exchange, Timing) {
        let ready = self.far_end(url).and_then(|far_end| {
            match headers.iter().find(|(name, _)| OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str())) {
                Some((name, _)) => {
                    Err(format!("the header {name} is the client's own; take it out of the settings"))
                }
                None => Ok((self.agent(far_end.secure)?, far_end)),
            }
        });
        let (agent, far_end) = match ready {
            Ok(ready) => ready,
            Err(reason) => return (not_sent(reason), Timing::default()),
        };

        let call = Call::begin(self.connect_timeout(), false);
        let mut status = None;
        // The body is read inside too: a panic there has a request behind it like any other loss.
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut response = run(&agent)?;
            status = Some(response.status().as_u16());
            read_answer(&mut response)
        }));
        let (wire, timing) = (call.record(), call.timing());
        drop(call);

        let exchange = match result {
            Ok(Ok(answer)) => Exchange::Answered(answer),
            Ok(Err(error)) if wire.attempted == 0 => not_sent(self.unsent_reason(&error, &far_end)),
            Ok(Err(error)) => {
                Exchange::Unknown { status, reason: reasons::unknown(&error, status, self.settings.timeout) }
            }
            Err(_) => {
                *self.agents.lock().unwrap_or_else(PoisonError::into_inner) = Agents::default();
                let reason = "the HTTP client failed inside; please report this".to_owned();
                if wire.attempted == 0 { not_sent(reason) } else { Exchange::Unknown { status, reason } }
            }
        };
        (exchange, timing)
    }

    fn unsent_reason(&self, error: &Error, far_end: &FarEnd) -> String {
        reasons::unsent(error, &far_end.name, self.proxy.is_some(), self.connect_timeout())
    }

    /// Name, connect and TLS together.
    fn connect_timeout(&self) -> Duration {
        self.settings.connect_timeout.min(self.settings.timeout)
    }

    fn far_end(&self, url: &str) -> Result<FarEnd, String> {
        let uri = url
            .parse::<Uri>()
            .map_err(|_| "the url cannot be read; check `url` in the settings".to_owned())?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => {
                return Err("the url begins with neither http:// nor https://; check `url` in the settings"
                    .to_owned());
            }
        };
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| "the url names no host; check `url` in the settings".to_owned())?;
        let mut name = format!("{host}:{}", uri.port_u16().unwrap_or(if secure { 443 } else { 80 }));
        if let Some(proxy) = &self.proxy {
            name.push_str(&format!(" through the proxy {}:{}", proxy.host(), proxy.port()));
        }
        Ok(FarEnd { secure, name })
    }

    fn agent(&self, secure: bool) -> Result<Agent, String> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = if secure { &mut agents.secure } else { &mut agents.plain };
        if slot.is_none() {
            *slot = Some(self.build_agent(secure)?);
        }
        // An `Agent` is a few `Arc`s; the lock is not held during the call.
        slot.clone().ok_or_else(|| "the HTTP client has no agent; please report this".to_owned())
    }

    fn build_agent(&self, secure: bool) -> Result<Agent, String> {
        let secure_proxy = self.proxy.as_ref().is_some_and(|proxy| proxy.protocol() == ProxyProtocol::Https);
        let roots = match &self.named_roots {
            Some(roots) => roots.clone(),
            None if secure || secure_proxy => load_roots(Path::new(SYSTEM_CA_FILE))?,
            None => RootCerts::new_with_certs(&[]),
        };
        let tls = TlsConfig::builder()
            .root_certs(roots)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let settings = &self.settings;
        let idle_max = if settings.keep_alive.is_zero() { 0 } else { settings.idle_max };
        let config = Agent::config_builder()
            .tls_config(tls)
            // Explicit even when `None`: the default would be the environment's.
            .proxy(self.proxy.clone())
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(USER_AGENT)
            .accept_encoding("identity")
            .max_response_header_size(ANSWER_HEAD_BYTES_MAX)
            .input_buffer_size(HTTP_BUFFER_BYTES)
            .output_buffer_size(HTTP_BUFFER_BYTES)
            .max_idle_connections(idle_max)
            .max_idle_connections_per_host(idle_max)
            .max_idle_age(settings.keep_alive)
            .timeout_global(Some(settings.timeout))
            .timeout_resolve(Some(self.connect_timeout()))
            .timeout_connect(Some(self.connect_timeout()))
            .build();
        Ok(Agent::with_parts(config, Guard::default(), self.resolver.clone()))
    }
}

/// The only place of the client that makes the proof; every caller has looked at `attempted` or not yet called ureq.
fn not_sent(reason: String) -> Exchange {
    Exchange::NotSent { reason, proof: NotSentProof::vendor_only() }
}

fn read_answer(response: &mut Response<Body>) -> Result<Answer, Error> {
    let status = response.status().as_u16();
    let headers: Vec<(String, String)> = response
        .headers()
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    // ureq takes any end of the connection, a reset too, for the end of a body without a length.
    let chunked = response.version() == Version::HTTP_11
        && headers.iter().any(|(name, value)| {
            name == "transfer-encoding"
                && value.split(',').any(|word| word.trim().eq_ignore_ascii_case("chunked"))
        });
    let framed =
        chunked || matches!(status, 204 | 304) || headers.iter().any(|(name, _)| name == "content-length");
    let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
    Ok(Answer { status, body, framed, headers })
}

fn load_roots(path: &Path) -> Result<RootCerts, String> {
    let shown = path.display();
    let pem = std::fs::read(path).map_err(|error| {
        format!("CA file {shown} cannot be read: {error}; install ca-certificates or set `ca_file`")
    })?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    // Counted by the library that will use them: it skips what it cannot read without a word.
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(
        certificates.iter().map(|certificate| rustls::pki_types::CertificateDer::from(certificate.der())),
    );
    if usable == 0 {
        return Err(format!("CA file {shown} holds no usable certificate; give a PEM bundle as `ca_file`"));
    }
    Ok(RootCerts::from(certificates))
}

fn read_proxy(text: &str) -> Result<Proxy, String> {
    // Said without the text itself: it may carry a password.
    let bad = || "the proxy must be given as http://HOST:PORT or https://HOST:PORT; check `proxy`".to_owned();
    let proxy = Proxy::new(text).map_err(|_| bad())?;
    // A SOCKS proxy would be passed over without a word, since that feature is not compiled in.
    match proxy.protocol() {
        ProxyProtocol::Http | ProxyProtocol::Https if !proxy.host().is_empty() => Ok(proxy),
        _ => Err(bad()),
    }
}
