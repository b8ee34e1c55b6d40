//! BizPpurio (Daou Technology), BIZAPI v3.11.1: login, `/v3/message`, and what its answers prove.
//!
//! The vendor does not deduplicate `refkey` and has no look-up by it, so the claim is the only guard. Its refusals come
//! as HTTP 400 with a code in the body: the code decides, the status is a second hint.

mod codes;
mod encode;

use std::time::Duration;

use base64::Engine;
use serde_json::Value;

use self::codes::{Class, look_up};
use super::client::{Answer, Client, ClientSettings, Exchange};
use super::token::Tokens;
use super::{Prepared, Unfit, Vendor, http, pace};
use crate::clock::wall_ms;
use crate::config::{BizPpurioSettings, DestinationSettings, Secret};
use crate::message::{Message, NotSentKind, NotSentProof, Outcome, Reply, Timing};
use crate::store::inbox::Sending;

/// A token's life by the document; the answer's `expired` may only shorten it.
const TOKEN_LIFE: Duration = Duration::from_secs(86_400);

/// One BizPpurio destination.
pub struct BizPpurio {
    url: String,
    settings: BizPpurioSettings,
    client: Client,
    tokens: Tokens,
}

impl BizPpurio {
    /// Builds the client.
    pub fn new(
        destination: &DestinationSettings,
        settings: &BizPpurioSettings,
        client: &ClientSettings,
    ) -> Result<Self, String> {
        let url = destination.url.trim_end_matches('/').to_owned();
        Ok(Self { url, settings: settings.clone(), client: Client::new(client)?, tokens: Tokens::default() })
    }

    /// One login. It carries no message, so whatever goes wrong is *not sent*.
    fn login(&self) -> Result<(Secret, Duration), Box<Reply>> {
        let pair = format!("{}:{}", self.settings.account, self.settings.password.reveal());
        let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
        let headers = [("Authorization", basic.as_str()), ("Content-Type", "application/json")];
        let (exchange, timing) = self.client.post_once(&format!("{}/v1/token", self.url), &headers, b"");
        let refused = |kind, code: Option<String>, reason: String, status| {
            Box::new(Reply {
                outcome: Outcome::NotSent { kind, code, reason, proof: NotSentProof::vendor_only() },
                http_status: status,
                timing,
                pause: None,
            })
        };
        let answer = match exchange {
            Exchange::Answered(answer) => answer,
            Exchange::NotSent { reason, .. } | Exchange::Unknown { reason, .. } => {
                return Err(refused(NotSentKind::Unreachable, None, format!("login: {reason}"), None));
            }
        };
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or(Value::Null);
        if let Some(token) =
            body["accesstoken"].as_str().filter(|token| answer.status == 200 && !token.is_empty())
        {
            return Ok((Secret::new(token.to_owned()), life(&body)));
        }
        let code = code_of(&body);
        let row = code.and_then(look_up);
        let kind = match row.map(|row| row.class) {
            Some(Class::Denied) => NotSentKind::Denied,
            Some(Class::Throttled) => NotSentKind::Throttled(pace::retry_after(&answer, wall_ms())),
            _ if answer.status == 429 => NotSentKind::Throttled(pace::retry_after(&answer, wall_ms())),
            _ if matches!(answer.status, 401 | 403) => NotSentKind::Denied,
            _ => NotSentKind::Unreachable,
        };
        let meaning = row.map_or("no token in the answer", |row| row.meaning);
        let shown = code.map(|code| code.to_string());
        Err(refused(
            kind,
            shown.clone(),
            format!("login: HTTP {} code {}: {meaning}", answer.status, shown.as_deref().unwrap_or("-")),
            Some(answer.status),
        ))
    }

    fn classify(&self, answer: &Answer, reference: &str, token: &Secret) -> Outcome {
        let status = answer.status;
        let unknown = |code: Option<String>, why: &str| Outcome::Unknown {
            code,
            reason: format!("HTTP {status}: {why}"),
        };
        let not_sent = |kind, code: Option<String>, why: &str| Outcome::NotSent {
            kind,
            code,
            reason: format!("HTTP {status}: {why}"),
            proof: NotSentProof::vendor_only(),
        };
        let body = serde_json::from_slice::<Value>(&answer.body).unwrap_or(Value::Null);
        let Some(code) = code_of(&body) else {
            return match status {
                // From something in front of the vendor: refused at the door.
                401 | 403 => not_sent(NotSentKind::Refused, None, "refused at the door"),
                307 | 308 => not_sent(NotSentKind::Refused, None, "moved; not followed"),
                429 => not_sent(
                    NotSentKind::Throttled(pace::retry_after(answer, wall_ms())),
                    None,
                    "too many requests",
                ),
                _ => unknown(None, "no code in the answer"),
            };
        };
        let shown = Some(code.to_string());
        if let Some(echo) = body["refkey"].as_str().filter(|echo| !echo.is_empty() && *echo != reference) {
            let _ = echo;
            return unknown(shown, "the answer is about another reference");
        }
        let Some(row) = look_up(code) else { return unknown(shown, "a code that is not in our table") };
        match row.class {
            Class::Accepted if (200..300).contains(&status) => Outcome::Accepted {
                code: code.to_string(),
                vendor_ref: body["messagekey"].as_str().map(|key| key.chars().take(100).collect()),
            },
            Class::Accepted => unknown(shown, "code 1000 with an error status"),
            Class::Rejected => Outcome::Rejected { code: code.to_string(), reason: row.meaning.into() },
            Class::TokenInvalid => {
                self.tokens.forget(token);
                not_sent(NotSentKind::Refused, shown, row.meaning)
            }
            Class::Denied => not_sent(NotSentKind::Denied, shown, row.meaning),
            Class::Throttled => {
                not_sent(NotSentKind::Throttled(pace::retry_after(answer, wall_ms())), shown, row.meaning)
            }
            Class::NoSuchUri => {
                not_sent(NotSentKind::Denied, shown, "no such uri: the destination's url is wrong")
            }
            Class::Unknown => unknown(shown, row.meaning),
        }
    }
}

impl Vendor for BizPpurio {
    fn prepare(&self, message: &Message) -> Result<Prepared, Unfit> {
        Ok(Prepared { body: encode::body(&self.settings, message)?, headers: Vec::new() })
    }

    fn ready(&self) -> Result<(), Box<Reply>> {
        self.tokens.get(|| self.login()).map(|_| ())
    }

    fn send(&self, sending: &Sending, _message: &Message, prepared: &Prepared) -> Reply {
        let Some(token) = self.tokens.at_hand() else {
            // Another thread's answer made the token void since `ready`.
            return Reply {
                outcome: Outcome::NotSent {
                    kind: NotSentKind::Refused,
                    code: None,
                    reason: "the token was renewed meanwhile".into(),
                    proof: NotSentProof::vendor_only(),
                },
                http_status: None,
                timing: Timing::default(),
                pause: None,
            };
        };
        let bearer = format!("Bearer {}", token.reveal());
        let headers =
            [("Authorization", bearer.as_str()), ("Content-Type", "application/json; charset=utf-8")];
        let (exchange, timing) =
            self.client.post_once(&format!("{}/v3/message", self.url), &headers, &prepared.body);
        http::reply(exchange, timing, |answer| self.classify(answer, sending.message_id().as_str(), &token))
    }

    fn probe(&self) -> Result<String, String> {
        let connected = self.client.connect_only(&self.url)?;
        match self.tokens.get(|| self.login()) {
            Ok(_) => Ok(format!("{connected}; login accepted")),
            Err(reply) => match reply.outcome {
                Outcome::NotSent { reason, .. } => Err(reason),
                _ => Err("the login failed".into()),
            },
        }
    }
}

/// `code` comes as a number and as a string.
fn code_of(body: &Value) -> Option<u16> {
    match &body["code"] {
        Value::Number(number) => number.as_u64().and_then(|code| u16::try_from(code).ok()),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// The earlier of 24 h and `expired`, which is taken for Korean time (its zone is not written).
fn life(body: &Value) -> Duration {
    let seoul = jiff::tz::TimeZone::get("Asia/Seoul").unwrap_or(jiff::tz::TimeZone::UTC);
    let expires = body["expired"]
        .as_str()
        .and_then(|text| jiff::civil::DateTime::strptime("%Y%m%d%H%M%S", text).ok())
        .and_then(|civil| civil.to_zoned_datetime(seoul).ok())
        .map(|at| at.timestamp().as_millisecond().saturating_sub(wall_ms()));
    match expires {
        // In the past: this machine's clock or our guess of the zone is off; the vendor's 3002 is the truth.
        Some(left) if left > 0 => TOKEN_LIFE.min(Duration::from_millis(left as u64)),
        _ => TOKEN_LIFE,
    }
}
