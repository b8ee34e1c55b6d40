//! The generic adapter: any HTTP API that takes one message per POST, described by settings alone.
//!
//! Says what an answer means by the three rules of the settings, in the order `not_sent`, `rejected`, `accepted`;
//! 307 and 308 promise that nothing was done; anything else is unknown. Decides nothing.

use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};

use super::client::{Answer, Client, ClientSettings, Exchange};
use super::{Prepared, Unfit, Vendor, pace};
use crate::clock::wall_ms;
use crate::config::{DestinationSettings, HttpSettings, Match};
use crate::message::{Message, NotSentKind, NotSentProof, Outcome, Reply, Timing};
use crate::store::inbox::Sending;

/// Name of the body's template.
const BODY: &str = "body";

/// One generic destination.
pub struct Http {
    url: String,
    settings: HttpSettings,
    templates: Option<Environment<'static>>,
    client: Client,
}

impl Http {
    /// Compiles the template and builds the client.
    pub fn new(
        destination: &DestinationSettings,
        settings: &HttpSettings,
        client: &ClientSettings,
    ) -> Result<Self, String> {
        let templates =
            settings.body.as_ref().map(|body| compile(body.clone(), is_json(settings))).transpose()?;
        Ok(Self {
            url: destination.url.clone(),
            settings: settings.clone(),
            templates,
            client: Client::new(client)?,
        })
    }

    fn body(&self, message: &Message) -> Result<Vec<u8>, Unfit> {
        let payload = serde_json::from_str::<serde_json::Value>(&message.payload);
        let Some(templates) = &self.templates else {
            if is_json(&self.settings) && payload.is_err() {
                return Err(unfit("the payload is not valid JSON"));
            }
            return Ok(message.payload.clone().into_bytes());
        };
        let payload = payload.map_err(|_| unfit("the payload is not valid JSON"))?;
        let rendered = templates.get_template(BODY).and_then(|template| {
            template.render(context! {
                message_id => message.message_id.as_str(),
                dedup_key => message.dedup_key.as_str(),
                kind => message.kind.as_str(),
                class => message.class.as_str(),
                recipient => message.recipient.as_str(),
                priority => message.priority,
                created_at_ms => message.created_at_ms,
                payload => for_template(&payload),
            })
        });
        // The kind of the error and its place, never the values.
        rendered.map(String::into_bytes).map_err(|error| {
            unfit(format!(
                "the body template does not fit: {} at line {}",
                error.kind(),
                error.line().unwrap_or(1)
            ))
        })
    }

    fn classify(&self, answer: &Answer) -> Outcome {
        let settings = &self.settings;
        let code = answer.status.to_string();
        let json = serde_json::from_slice::<serde_json::Value>(&answer.body).ok();
        let holds = |rule: &Match| matches(rule, answer, json.as_ref());
        let refused = |kind, reason: &str| Outcome::NotSent {
            kind,
            code: Some(code.clone()),
            reason: reason.to_owned(),
            proof: NotSentProof::vendor_only(),
        };
        if matches!(answer.status, 307 | 308) {
            return refused(
                NotSentKind::Refused,
                &format!("HTTP {code}: the destination has moved; it was not followed, change its url"),
            );
        }
        if holds(&settings.not_sent) {
            if answer.status == 429 {
                return refused(
                    NotSentKind::Throttled(pace::retry_after(answer, wall_ms())),
                    "HTTP 429: too many requests",
                );
            }
            return refused(NotSentKind::Refused, &format!("HTTP {code}: refused at the door"));
        }
        if holds(&settings.rejected) {
            return Outcome::Rejected {
                code: json_code(&settings.rejected, json.as_ref()).unwrap_or(code.clone()),
                reason: format!("HTTP {code}: rejected"),
            };
        }
        if holds(&settings.accepted) {
            let vendor_ref =
                settings.vendor_ref.as_ref().and_then(|pointer| json.as_ref()?.pointer(pointer)).map(plain);
            return Outcome::Accepted {
                code: json_code(&settings.accepted, json.as_ref()).unwrap_or(code),
                vendor_ref,
            };
        }
        let why = if !answer.framed && json.is_none() {
            "an answer whose end is not proven"
        } else {
            "no rule of the settings covers this answer"
        };
        Outcome::Unknown { code: Some(code.clone()), reason: format!("HTTP {code}: {why}") }
    }
}

impl Vendor for Http {
    fn prepare(&self, message: &Message) -> Result<Prepared, Unfit> {
        let bytes = message.message_id.as_str().len();
        let most = self.settings.reference_bytes_max;
        if bytes > most {
            return Err(unfit(format!(
                "the message id has {bytes} bytes, the destination's reference takes {most}"
            )));
        }
        Ok(Prepared { body: self.body(message)?, headers: Vec::new() })
    }

    fn send(&self, sending: &Sending, message: &Message, prepared: &Prepared) -> Reply {
        let settings = &self.settings;
        let id = sending.message_id().as_str();
        let mut headers: Vec<(&str, &str)> = vec![("Content-Type", &settings.content_type)];
        for (name, value) in &settings.headers {
            headers.push((name, value.reveal()));
        }
        for name in [&settings.reference_header, &settings.idempotency_header] {
            if !name.is_empty() {
                headers.push((name, id));
            }
        }
        if let Some(trace) = &message.traceparent {
            headers.push(("traceparent", trace));
        }
        let (exchange, timing) = self.client.post_once(&self.url, &headers, &prepared.body);
        reply(exchange, timing, |answer| self.classify(answer))
    }

    fn deduplicates(&self) -> bool {
        !self.settings.idempotency_header.is_empty()
    }

    fn probe(&self) -> Result<String, String> {
        self.client.connect_only(&self.url)
    }
}

/// An exchange as a reply; `classify` is asked only about whole answers.
pub(super) fn reply(exchange: Exchange, timing: Timing, classify: impl FnOnce(&Answer) -> Outcome) -> Reply {
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
            let outcome = classify(&answer);
            Reply { outcome, http_status: Some(answer.status), timing, pause: pace::used_up(&answer) }
        }
    }
}

pub(super) fn unfit(reason: impl Into<String>) -> Unfit {
    Unfit { reason: reason.into() }
}

/// JSON as a template's value.
fn for_template(json: &serde_json::Value) -> minijinja::Value {
    match json {
        serde_json::Value::Null => minijinja::Value::from(()),
        serde_json::Value::Bool(flag) => (*flag).into(),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, fraction) => fraction.unwrap_or_default().into(),
        },
        serde_json::Value::String(text) => text.as_str().into(),
        serde_json::Value::Array(list) => list.iter().map(for_template).collect::<Vec<_>>().into(),
        serde_json::Value::Object(map) => {
            minijinja::Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), for_template(value))))
        }
    }
}

fn is_json(settings: &HttpSettings) -> bool {
    settings.content_type.to_ascii_lowercase().contains("json")
}

fn compile(body: String, json: bool) -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    // In a JSON body every `{{ value }}` is written as JSON (text with its quotes), so no value can break out.
    environment.set_auto_escape_callback(move |_| if json { AutoEscape::Json } else { AutoEscape::None });
    environment
        .add_template_owned(BODY, body)
        .map_err(|error| format!("body: the template is wrong: {error}"))?;
    Ok(environment)
}

fn matches(rule: &Match, answer: &Answer, json: Option<&serde_json::Value>) -> bool {
    if !rule.status.iter().any(|range| (range.first..=range.last).contains(&answer.status)) {
        return false;
    }
    match &rule.json {
        None => true,
        Some((pointer, values)) => json
            .and_then(|json| json.pointer(pointer))
            .is_some_and(|found| values.iter().any(|value| same(value, found))),
    }
}

/// Vendors write codes as numbers and as strings: `1000` equals `"1000"`.
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    a == b || plain(a) == plain(b)
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.chars().take(100).collect(),
        other => other.to_string().chars().take(100).collect(),
    }
}

fn json_code(rule: &Match, json: Option<&serde_json::Value>) -> Option<String> {
    let (pointer, _) = rule.json.as_ref()?;
    json?.pointer(pointer).map(plain)
}
