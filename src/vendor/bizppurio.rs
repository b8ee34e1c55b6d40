//! BizPpurio (Daou Technology), BIZAPI v3.11.1: login, one `/v3/message` a message, and what its answers prove.
//!
//! The vendor does not deduplicate `refkey` and has no look-up by it, so the claim is the only guard. It decides
//! nothing, retries nothing and never logs in during a send. Encoding, decoding and both code tables are rooms of
//! their own under `bizppurio/`.

pub mod codes;
mod content;
pub(crate) mod decode;
pub(crate) mod encode;
pub mod report_codes;
pub(crate) mod results;

use std::time::Duration;

use base64::Engine;
use serde_json::Value;

use self::codes::Class;
use super::client::{Answer, Client, ClientSettings, Exchange};
use super::token::{Issued, Tokens};
use super::{Prepared, ReportSource, Unfit, Vendor, pace};
use crate::config::{BizPpurioSettings, DestinationSettings, Secret};
use crate::message::{Message, NotSentKind, NotSentProof, Outcome, Reply, Timing};
use crate::store::inbox::Sending;

/// A token's life by the document; the answer's `expired` may only shorten it.
const TOKEN_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Longest token that is taken, bytes: a longer one would not fit into a request's head with the rest, and the document's
/// are a few hundred.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// Korean time; the zone of `expired` is not written, that of `sendtime` is (asked of the vendor).
const KST: jiff::tz::Offset = jiff::tz::Offset::constant(9);
/// Wait for the next turn, when another thread's answer made the token void between our look at it and our send.
const TOKEN_LOST_WAIT: Duration = Duration::from_secs(1);

/// Where a fact of the vendor's stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The document.
    pub document: &'static str,
    /// Its date, `YYYY-MM-DD`.
    pub dated: &'static str,
}

/// One BizPpurio destination; shared by its threads.
pub struct BizPpurio {
    token_url: String,
    message_url: String,
    settings: BizPpurioSettings,
    client: Client,
    /// For the result calls: their lists are long, and they never wait for a message's connection.
    results: Client,
    tokens: Tokens,
}

pub use content::{Sized, sizes};

/// Whether the vendor could ever take this message; needs no client.
pub fn check(settings: &BizPpurioSettings, message: &Message) -> Result<(), Unfit> {
    encode::body(settings, message).map(|_| ())
}

impl BizPpurio {
    /// Builds the client; opens no connection.
    pub fn new(
        destination: &DestinationSettings,
        settings: &BizPpurioSettings,
        client: &ClientSettings,
    ) -> Result<Self, String> {
        let base = destination.url.trim_end_matches('/');
        Ok(Self {
            token_url: format!("{base}/v1/token"),
            message_url: format!("{base}/v3/message"),
            settings: settings.clone(),
            client: Client::new(client)?,
            results: Client::new(&ClientSettings { idle_max: 1, ..client.clone() })?
                .with_answers_up_to(results::ANSWER_BYTES_MAX),
            tokens: Tokens::default(),
        })
    }

    /// One login. It carries no message, so whatever goes wrong is *not sent*.
    fn login(&self) -> Result<Issued, Box<Reply>> {
        let pair = format!("{}:{}", self.settings.account, self.settings.password.reveal());
        let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
        let headers =
            [("Authorization", basic.as_str()), ("Content-Type", "application/json; charset=utf-8")];
        let (exchange, timing) = self.client.post_once(&self.token_url, &headers, b"");
        match exchange {
            Exchange::Answered(answer) => read_login(&answer, timing),
            Exchange::NotSent { reason, .. } => {
                Err(login_failed(NotSentKind::Unreachable, None, &reason, None, timing))
            }
            Exchange::Unknown { status, reason } => Err(login_failed(
                NotSentKind::Unreachable,
                status.map(|status| status.to_string()),
                &reason,
                status,
                timing,
            )),
        }
    }
}

impl Vendor for BizPpurio {
    fn prepare(&self, message: &Message) -> Result<Prepared, Unfit> {
        let body = encode::body(&self.settings, message)?;
        Ok(Prepared { body, headers: Vec::new(), begin_before: None })
    }

    fn ready(&self) -> Result<(), Box<Reply>> {
        self.tokens.renew(|| self.login())
    }

    fn is_ready(&self) -> bool {
        self.tokens.is_fresh()
    }

    fn send(&self, sending: &Sending, message: &Message, prepared: &Prepared) -> Reply {
        super::must_be_claimed(sending, message);
        let Some(token) = self.tokens.at_hand() else {
            return Reply {
                outcome: Outcome::NotSent {
                    kind: NotSentKind::Throttled(Some(TOKEN_LOST_WAIT)),
                    code: None,
                    reason: "the token became void just before the call; it is renewed first".to_owned(),
                    proof: NotSentProof::vendor_only(),
                },
                http_status: None,
                timing: Timing::default(),
                pause: Some(TOKEN_LOST_WAIT),
            };
        };
        let bearer = format!("Bearer {}", token.reveal());
        let mut headers =
            vec![("Authorization", bearer.as_str()), ("Content-Type", "application/json; charset=utf-8")];
        headers.extend(prepared.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let (exchange, timing) =
            self.client.post_before(prepared.begin_before, &self.message_url, &headers, &prepared.body);
        super::reply(exchange, timing, |answer| {
            let decoded = decode::message(answer, message.message_id.as_str());
            if decoded.token_invalid {
                self.tokens.forget(&token);
            }
            decoded.outcome
        })
    }

    fn report_source(&self) -> Option<&dyn ReportSource> {
        Some(self)
    }

    fn probe(&self) -> Result<String, String> {
        let connected = self.client.connect_only(&self.token_url)?;
        match self.tokens.renew(|| self.login()) {
            // The connection alone made no request; the login did.
            Ok(()) => Ok(format!("{}; login accepted", connected.trim_end_matches("; no request was made"))),
            Err(reply) => match reply.outcome {
                Outcome::NotSent { reason, .. } => Err(reason),
                // `login` makes no other outcome.
                _ => Err("login failed".to_owned()),
            },
        }
    }
}

pub(crate) fn read_login(answer: &Answer, timing: Timing) -> Result<Issued, Box<Reply>> {
    let json = decode::body(answer).unwrap_or(Value::Null);
    if (200..300).contains(&answer.status)
        && let Some(token) = json.get("accesstoken").and_then(Value::as_str)
        && (1..=TOKEN_BYTES_MAX).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_graphic())
    {
        let expired = json.get("expired").and_then(Value::as_str);
        return Ok(Issued {
            token: Secret::new(token.to_owned()),
            life: life(expired, pace::their_now_ms(answer)),
        });
    }
    let row = decode::code(&json).and_then(codes::look_up);
    let kind = match row.map(|row| row.class) {
        Some(Class::Throttled) => NotSentKind::Throttled(pace::wait_after_refusal(answer)),
        Some(Class::Denied) => NotSentKind::Denied,
        _ if answer.status == 429 => NotSentKind::Throttled(pace::wait_after_refusal(answer)),
        // Anything odd: a proxy's page, half an answer, a code that has no place here. Tried again by the probe.
        _ => NotSentKind::Unreachable,
    };
    let why = match row {
        Some(row) => format!("code {}: {}", row.code, row.meaning),
        None => format!("status {} and no token in the answer", answer.status),
    };
    let code = row.map_or(answer.status, |row| row.code).to_string();
    let mut failed = login_failed(kind, Some(code), &why, Some(answer.status), timing);
    failed.pause = match kind {
        NotSentKind::Throttled(Some(wait)) => Some(wait),
        _ => pace::pause(answer),
    };
    Err(failed)
}

fn login_failed(
    kind: NotSentKind,
    code: Option<String>,
    why: &str,
    http_status: Option<u16>,
    timing: Timing,
) -> Box<Reply> {
    let reason = format!("login: {why}");
    let outcome = Outcome::NotSent { kind, code, reason, proof: NotSentProof::vendor_only() };
    Box::new(Reply { outcome, http_status, timing, pause: None })
}

/// The earlier of 24 h and `expired`, read as Korean time against the vendor's own clock.
fn life(expired: Option<&str>, now_ms: i64) -> Duration {
    let ends_ms = expired
        .and_then(|text| jiff::civil::DateTime::strptime("%Y%m%d%H%M%S", text).ok())
        .and_then(|civil| KST.to_timestamp(civil).ok())
        .map(jiff::Timestamp::as_millisecond);
    match ends_ms.map(|ends_ms| ends_ms.saturating_sub(now_ms)) {
        Some(left_ms) if left_ms > 0 => TOKEN_LIFE.min(Duration::from_millis(left_ms.unsigned_abs())),
        // Over before it began: a clock or our guess of the zone is off. The vendor's 3002 is the truth.
        _ => TOKEN_LIFE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_until_the_earlier_of_24_hours_and_expired_in_korean_time() {
        // 2026-07-20 12:00:00 UTC is 21:00:00 in Korea, whatever this machine's zone is.
        let now: jiff::Timestamp = "2026-07-20T12:00:00Z".parse().expect("a time");
        let check = |expired: Option<&str>, seconds: u64| {
            assert_eq!(life(expired, now.as_millisecond()), Duration::from_secs(seconds), "{expired:?}");
        };
        check(Some("20260720220000"), 3600);
        check(Some("20260721210000"), 86_400);
        check(Some("20260801000000"), 86_400);
        check(Some("20260720205959"), 86_400);
        check(Some("soon"), 86_400);
        check(None, 86_400);
    }

    fn login(status: u16, body: &str) -> Result<String, Outcome> {
        let answer = Answer { status, body: body.into(), framed: true, headers: Vec::new() };
        match read_login(&answer, Timing::default()) {
            Ok(issued) => Ok(issued.token.reveal().to_owned()),
            Err(reply) => Err(reply.outcome),
        }
    }

    #[test]
    fn whatever_a_login_says_is_a_token_or_not_sent() {
        assert_eq!(login(200, r#"{"accesstoken":"abc","type":"Bearer"}"#), Ok("abc".into()));
        let kind = |status, body: &str| match login(status, body) {
            Err(Outcome::NotSent { kind, .. }) => kind,
            other => panic!("{other:?}"),
        };
        for code in [3000, 3001, 3003, 3004, 3006, 3007, 3009, 3010] {
            assert_eq!(kind(400, &format!(r#"{{"code":{code}}}"#)), NotSentKind::Denied, "{code}");
            assert_eq!(kind(400, &format!(r#"{{"code":"{code}"}}"#)), NotSentKind::Denied, "{code}");
        }
        assert_eq!(kind(429, r#"{"code":5002}"#), NotSentKind::Throttled(None));
        assert_eq!(kind(429, "<html>"), NotSentKind::Throttled(None));
        for (status, body) in [
            (200, "{}"),
            (200, ""),
            (200, r#"{"accesstoken":""}"#),
            (200, r#"{"accesstoken":"line\nend"}"#),
            (200, r#"{"accesstoken":7}"#),
            (400, r#"{"accesstoken":"abc"}"#),
            (400, r#"{"code":9999}"#),
            (400, r#"{"code":3002}"#),
            (401, ""),
            (500, r#"{"code":9000}"#),
            (302, ""),
        ] {
            assert_eq!(kind(status, body), NotSentKind::Unreachable, "{status} {body}");
        }
    }
}
