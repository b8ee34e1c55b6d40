//! The generic adapter: a message as one POST, its fate read by rules of status and JSON from the settings.
//!
//! It decides nothing: no retry, no database, no clock. Whatever no rule names is *unknown*; a redirect is never
//! followed, and only 307 and 308, which ask for the same request elsewhere, prove that nothing was done (F15).

mod rules;
pub mod template;

use std::time::Duration;

use crate::config::{DestinationSettings, HttpSettings};
use crate::message::{Message, NotSentKind, Outcome, Reply};
use crate::store::inbox::Sending;
use template::{Escaping, Template};

use super::client::{Client, Exchange};
use super::{Prepared, Unfit, Vendor, pace};

/// Longest wait of a probe for a connection, where the settings allow more.
const PROBE_TIMEOUT_MAX: Duration = Duration::from_secs(5);

/// One `type = "http"` destination; shared by its threads.
pub struct HttpVendor {
    client: Client,
    url: String,
    connect_timeout: Duration,
    proxy: Option<String>,
    settings: HttpSettings,
    escaping: Escaping,
    template: Option<Template>,
}

impl HttpVendor {
    /// Compiles the template and checks the headers; fails with a text for people that holds no secret.
    pub fn new(destination: &DestinationSettings, settings: &HttpSettings) -> Result<Self, String> {
        let escaping = Escaping::of(&settings.content_type);
        let template = match &settings.body {
            Some(source) => Some(Template::compile(source, escaping)?),
            None => None,
        };
        check_headers(settings)?;
        Ok(Self {
            client: Client::new(&super::client_settings(destination))?,
            url: destination.url.clone(),
            connect_timeout: destination.connect_timeout,
            proxy: destination.proxy.clone(),
            settings: settings.clone(),
            escaping,
            template,
        })
    }
}

impl Vendor for HttpVendor {
    fn prepare(&self, message: &Message) -> Result<Prepared, Unfit> {
        let body = match &self.template {
            Some(template) => template.render(message)?,
            None => {
                if self.escaping == Escaping::Json {
                    serde_json::from_str::<serde::de::IgnoredAny>(&message.payload).map_err(|error| Unfit {
                        reason: format!("payload is not JSON: {}", template::place(&error)),
                    })?;
                }
                message.payload.clone().into_bytes()
            }
        };
        let mut headers = Vec::new();
        let id = message.message_id.as_str();
        for name in [&self.settings.reference_header, &self.settings.idempotency_header] {
            if name.is_empty() {
                continue;
            }
            if id.len() > self.settings.reference_bytes_max {
                return Err(Unfit {
                    reason: format!(
                        "message id has {} bytes; {name} takes at most {}",
                        id.len(),
                        self.settings.reference_bytes_max
                    ),
                });
            }
            if !is_header_value(id) || id.is_empty() {
                return Err(Unfit { reason: format!("message id has characters that {name} cannot carry") });
            }
            // Both settings may name one header: then it goes once.
            if !headers.iter().any(|(known, _): &(String, String)| known.eq_ignore_ascii_case(name)) {
                headers.push((name.clone(), id.to_owned()));
            }
        }
        let traced = self.settings.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("traceparent"));
        match &message.traceparent {
            // A broken trace context is no reason to hold a message back; it just stays at home.
            Some(context) if !traced && !context.is_empty() && is_header_value(context) => {
                headers.push(("traceparent".to_owned(), context.clone()));
            }
            _ => {}
        }
        Ok(Prepared { body, headers })
    }

    fn send(&self, sending: &Sending, message: &Message, prepared: &Prepared) -> Reply {
        super::must_be_claimed(sending, message);
        let mut headers: Vec<(&str, &str)> = vec![("Content-Type", &self.settings.content_type)];
        headers.extend(self.settings.headers.iter().map(|(name, value)| (name.as_str(), value.reveal())));
        headers.extend(prepared.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let (exchange, timing) = self.client.post_once(&self.url, &headers, &prepared.body);
        match exchange {
            Exchange::NotSent { reason, proof } => Reply {
                outcome: Outcome::NotSent { kind: NotSentKind::Unreachable, code: None, reason, proof },
                http_status: None,
                timing,
                pause: None,
            },
            Exchange::Unknown { status, reason } => Reply {
                outcome: Outcome::Unknown { code: status.map(|status| status.to_string()), reason },
                http_status: status,
                timing,
                pause: None,
            },
            Exchange::Answered(answer) => {
                let outcome = rules::read(&self.settings, &answer);
                let pause = match &outcome {
                    Outcome::NotSent { kind: NotSentKind::Throttled(wait), .. } => *wait,
                    Outcome::NotSent { .. } => pace::wait_after_refusal(&answer),
                    _ => pace::wait_for_budget(&answer),
                };
                Reply { outcome, http_status: Some(answer.status), timing, pause }
            }
        }
    }

    fn probe(&self) -> Result<String, String> {
        super::probe_connect(&self.url, self.proxy.as_deref(), self.connect_timeout.min(PROBE_TIMEOUT_MAX))
    }

    fn deduplicates(&self) -> bool {
        !self.settings.idempotency_header.is_empty()
    }
}

/// Refuses header names and values that would break the request or that the client sets itself.
fn check_headers(settings: &HttpSettings) -> Result<(), String> {
    const OURS: [&str; 6] =
        ["content-length", "content-type", "transfer-encoding", "host", "connection", "accept-encoding"];
    let own = [&settings.reference_header, &settings.idempotency_header];
    let names = settings.headers.iter().map(|(name, _)| name);
    for name in names.chain(own.into_iter().filter(|name| !name.is_empty())) {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)) {
            return Err(format!("{name:?} is not a header name"));
        }
        if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
            return Err(format!("header {name} is set by the agent itself; take it out of the settings"));
        }
    }
    for (name, value) in &settings.headers {
        if !is_header_value(value.reveal()) {
            return Err(format!("the value of header {name} has a character that a header cannot carry (a line end?)"));
        }
        if own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Err(format!("header {name} carries the message id; take its fixed value out of the settings"));
        }
    }
    if !is_header_value(&settings.content_type) || settings.content_type.is_empty() {
        return Err("content_type is not a header value".to_owned());
    }
    Ok(())
}

fn is_header_value(text: &str) -> bool {
    text.bytes().all(|byte| (0x20..0x7F).contains(&byte))
}
