//! The generic adapter: a message as one POST, its fate read by rules of status and JSON from the settings.
//!
//! It decides nothing: no retry, no database, no clock. Whatever no rule names is *unknown*; a redirect is never
//! followed, and only 307 and 308, which ask for the same request elsewhere, prove that nothing was done (F15).

pub(crate) mod rules;
pub mod template;

use self::template::{Escaping, Template};
use super::client::{Client, ClientSettings, Exchange};
use super::{LookedUp, Prepared, Unfit, Vendor};
use crate::config::{DestinationSettings, HttpSettings};
use crate::message::{Message, MessageId, Reply};
use crate::store::inbox::Sending;

/// One `type = "http"` destination; shared by its threads.
pub struct Http {
    client: Client,
    url: String,
    encoder: Encoder,
}

/// The half of the adapter that needs no network: a message to a request.
pub struct Encoder {
    settings: HttpSettings,
    escaping: Escaping,
    template: Option<Template>,
}

impl Http {
    /// Compiles the template and checks the headers; fails with a text for people that holds no secret.
    pub fn new(
        destination: &DestinationSettings,
        settings: &HttpSettings,
        client: &ClientSettings,
    ) -> Result<Self, String> {
        let encoder = Encoder::new(settings)?;
        check_headers(settings)?;
        Ok(Self { client: Client::new(client)?, url: destination.url.clone(), encoder })
    }
}

impl Encoder {
    /// Compiles the template.
    pub fn new(settings: &HttpSettings) -> Result<Self, String> {
        let escaping = Escaping::of(&settings.content_type);
        let template = match &settings.body {
            Some(source) => Some(Template::compile(source, escaping)?),
            None => None,
        };
        Ok(Self { settings: settings.clone(), escaping, template })
    }

    /// Encodes one message, or says why it could never be sent.
    pub fn prepare(&self, message: &Message) -> Result<Prepared, Unfit> {
        let body = match &self.template {
            Some(template) => template.render(message)?,
            None => {
                if self.escaping == Escaping::Json {
                    serde_json::from_str::<serde::de::IgnoredAny>(&message.payload).map_err(|error| {
                        Unfit { reason: format!("payload is not JSON: {}", template::place(&error)) }
                    })?;
                }
                message.payload.clone().into_bytes()
            }
        };
        let mut headers = Vec::new();
        let id = message.message_id.as_str();
        let bytes_max = self.settings.reference_bytes_max;
        if id.len() > bytes_max {
            let bytes = id.len();
            return Err(Unfit::new(format!(
                "TOO_LONG: message id has {bytes} bytes, {bytes_max} are allowed"
            )));
        }
        for name in [&self.settings.reference_header, &self.settings.idempotency_header] {
            if name.is_empty() {
                continue;
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
        // A broken trace context is no reason to hold a message back; it just stays at home.
        if let Some(context) = message.trace_context()
            && !traced
        {
            headers.push(("traceparent".to_owned(), context.to_owned()));
        }
        Ok(Prepared { body, headers, begin_before: None })
    }
}

impl Vendor for Http {
    fn prepare(&self, message: &Message) -> Result<Prepared, Unfit> {
        self.encoder.prepare(message)
    }

    fn send(&self, sending: &Sending, message: &Message, prepared: &Prepared) -> Reply {
        super::must_be_claimed(sending, message);
        let settings = &self.encoder.settings;
        let mut headers: Vec<(&str, &str)> = vec![("Content-Type", &settings.content_type)];
        headers.extend(settings.headers.iter().map(|(name, value)| (name.as_str(), value.reveal())));
        headers.extend(prepared.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let (exchange, timing) =
            self.client.post_before(prepared.begin_before, &self.url, &headers, &prepared.body);
        super::reply(exchange, timing, |answer| rules::read(settings, answer))
    }

    fn look_up(&self, message_id: &MessageId) -> Option<LookedUp> {
        let lookup = self.encoder.settings.lookup.as_ref()?;
        let url = lookup.url.replace("{message_id}", &crate::percent::encode(message_id.as_str()));
        let headers: Vec<(&str, &str)> = self
            .encoder
            .settings
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.reveal()))
            .collect();
        let (exchange, _) = self.client.get_once(&url, &headers);
        Some(match exchange {
            Exchange::Answered(answer) => {
                rules::read_look_up(lookup, self.encoder.settings.vendor_ref.as_deref(), &answer)
            }
            Exchange::NotSent { reason, .. } | Exchange::Unknown { reason, .. } => LookedUp::Unclear(reason),
        })
    }

    fn probe(&self) -> Result<String, String> {
        self.client.connect_only(&self.url)
    }

    fn deduplicates(&self) -> bool {
        !self.encoder.settings.idempotency_header.is_empty()
    }
}

/// Refuses header names and values that would break the request or that the client sets itself.
fn check_headers(settings: &HttpSettings) -> Result<(), String> {
    const OURS: [&str; 6] =
        ["content-length", "content-type", "transfer-encoding", "host", "connection", "accept-encoding"];
    let own = [&settings.reference_header, &settings.idempotency_header];
    let names = settings.headers.iter().map(|(name, _)| name);
    for name in names.chain(own.into_iter().filter(|name| !name.is_empty())) {
        if name.is_empty()
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
        {
            return Err(format!("{name:?} is not a header name"));
        }
        if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
            return Err(format!("header {name} is set by the agent itself; take it out of the settings"));
        }
    }
    for (name, value) in &settings.headers {
        if !is_header_value(value.reveal()) {
            return Err(format!(
                "the value of header {name} has a character that a header cannot carry (a line end?)"
            ));
        }
        if own.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Err(format!(
                "header {name} carries the message id; take its fixed value out of the settings"
            ));
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
