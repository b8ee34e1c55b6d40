//! BizPpurio's side of the conversation: token, message, result request and confirm, report again.
//!
//! Checks what the vendor is documented to check and answers in its codes (vendor pages of 2026-07, BIZAPI
//! v3.11). Two sends with one `refkey` are two sends: like the vendor it deduplicates nothing. Faults and
//! counting are the caller's.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Map, Value, json};

use crate::listen::wire::Answer;

/// Tokens kept at once; the oldest goes first.
const TOKENS_MAX: usize = 10_000;
/// Longest `refkey`, bytes.
const REFKEY_BYTES_MAX: usize = 32;
/// Limits of the text channels, bytes as EUC-KR.
const SMS_BYTES_MAX: usize = 90;
const LMS_BYTES_MAX: usize = 2_000;
const LMS_SUBJECT_BYTES_MAX: usize = 64;
/// Longest Alimtalk text, characters (since 2025-09).
const ALIMTALK_CHARS_MAX: usize = 1_300;

/// The types that may be sent.
const TYPES: [&str; 15] =
    ["sms", "lms", "mms", "at", "ai", "rcs", "ntalk", "ut", "ui", "uw", "ul", "uc", "um", "up", "ua"];

/// The HTTP status that goes with a code.
fn status_of(code: u16) -> u16 {
    match code {
        1000 => 200,
        5001 => 404,
        5002 => 429,
        9000 => 500,
        5003 => 502,
        5004 => 503,
        5005 => 504,
        _ => 400,
    }
}

/// Whether the code says plainly that nothing was taken; the others leave it open.
fn is_refusal(code: u16) -> bool {
    !matches!(code, 1000 | 3011 | 9000 | 5003 | 5004 | 5005)
}

fn description(code: u16) -> &'static str {
    match code {
        1000 => "success",
        2000 => "invalid message",
        3001 => "invalid basic authentication",
        3002 => "invalid token",
        3004 => "invalid account",
        3005 => "invalid bearer authentication",
        3006 => "account does not exist",
        3007 => "wrong password",
        3012 => "no such message",
        3013 => "message not completed",
        3014 => "data format error",
        5000 => "report request failed",
        5001 => "no such uri",
        5002 => "rate limit exceeded",
        _ => "error",
    }
}

/// An answer with the vendor's code.
pub(super) fn code_answer(code: u16, code_as_text: bool, refkey: &str, messagekey: Option<&str>) -> Answer {
    let mut body = Map::new();
    body.insert("code".to_owned(), if code_as_text { json!(code.to_string()) } else { json!(code) });
    body.insert("description".to_owned(), json!(description(code)));
    if !refkey.is_empty() {
        body.insert("refkey".to_owned(), json!(refkey));
    }
    if let Some(messagekey) = messagekey {
        body.insert("messagekey".to_owned(), json!(messagekey));
    }
    let mut answer = Answer::json(status_of(code), Value::Object(body).to_string());
    answer.refusal = is_refusal(code);
    answer
}

/// A message as far as it could be read.
#[derive(Default)]
pub(super) struct Sent {
    pub reference: String,
    pub recipient: String,
    pub user_info: Option<String>,
    pub message_type: String,
    account: String,
    /// The code to refuse its content with.
    pub fault: Option<u16>,
}

/// Reads and checks a message; never fails, so that what cannot be read can still be counted.
pub(super) fn read(body: &[u8]) -> Sent {
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(body) else {
        return Sent { fault: Some(3014), ..Sent::default() };
    };
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or("").to_owned();
    let mut sent = Sent {
        reference: text("refkey"),
        recipient: text("to"),
        user_info: fields.get("userinfo").and_then(Value::as_str).map(str::to_owned),
        message_type: text("type"),
        account: text("account"),
        fault: None,
    };
    sent.fault = check(&fields, &sent).err();
    sent
}

fn check(fields: &Map<String, Value>, sent: &Sent) -> Result<(), u16> {
    let length = |name: &str| fields.get(name).and_then(Value::as_str).map_or(0, str::len);
    let within = |name: &str, max: usize| (1..=max).contains(&length(name));
    let known = TYPES.contains(&sent.message_type.as_str());
    if !known || !within("account", 20) || !within("from", 16) || !within("to", 16) {
        return Err(2000);
    }
    if !within("refkey", REFKEY_BYTES_MAX) || length("country") > 5 || length("userinfo") > 50 {
        return Err(2000);
    }
    let content = fields.get("content").and_then(Value::as_object).filter(|content| content.len() == 1);
    let channel = content.and_then(|content| content.get(&sent.message_type)).and_then(Value::as_object);
    check_channel(&sent.message_type, channel.ok_or(2000_u16)?)
}

fn check_channel(message_type: &str, channel: &Map<String, Value>) -> Result<(), u16> {
    let text = |name: &str| channel.get(name).and_then(Value::as_str).unwrap_or("");
    let euc_kr_fits = |name: &str, max: usize| {
        let (bytes, _, unmappable) = encoding_rs::EUC_KR.encode(text(name));
        !unmappable && bytes.len() <= max
    };
    let good = match message_type {
        "sms" => !text("message").is_empty() && euc_kr_fits("message", SMS_BYTES_MAX),
        "lms" => {
            !text("message").is_empty()
                && euc_kr_fits("message", LMS_BYTES_MAX)
                && euc_kr_fits("subject", LMS_SUBJECT_BYTES_MAX)
        }
        "mms" => match channel.get("file").and_then(Value::as_array) {
            Some(files) if files.is_empty() => return Err(3014),
            Some(files) => files.len() <= 3 && euc_kr_fits("message", LMS_BYTES_MAX),
            None => false,
        },
        "at" | "ai" => {
            (1..=40).contains(&text("senderkey").len())
                && (1..=32).contains(&text("templatecode").len())
                && (1..=ALIMTALK_CHARS_MAX).contains(&text("message").chars().count())
                && channel.get("button").is_none_or(|button| button.as_array().is_some_and(|b| b.len() <= 5))
        }
        "rcs" => !text("messagebaseid").is_empty(),
        "ntalk" => true,
        _ => !text("senderkey").is_empty(),
    };
    if good { Ok(()) } else { Err(2000) }
}

/// Tokens given out and the account's rate budget.
pub(super) struct Account {
    inner: Mutex<Tokens>,
    life: Duration,
    /// Account and password that are right; anybody's where `None`.
    login: Option<(String, String)>,
    rate: Option<u32>,
    window: Mutex<(Instant, u32)>,
}

#[derive(Default)]
struct Tokens {
    known: HashMap<String, (String, Instant)>,
    order: VecDeque<String>,
    given: u64,
}

impl Account {
    pub(super) fn new(life: Duration, login: Option<(String, String)>, rate: Option<u32>) -> Self {
        let window = Mutex::new((Instant::now(), 0));
        Self { inner: Mutex::default(), life, login, rate, window }
    }

    fn lock(&self) -> MutexGuard<'_, Tokens> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// POST /v1/token: a token's answer, or the vendor's code.
    pub(super) fn token(&self, authorization: Option<&str>) -> Result<Answer, u16> {
        let encoded = authorization.and_then(|text| text.strip_prefix("Basic ")).ok_or(3001_u16)?;
        let decoded =
            base64::engine::general_purpose::STANDARD.decode(encoded.trim()).map_err(|_| 3001_u16)?;
        let text = String::from_utf8(decoded).map_err(|_| 3001_u16)?;
        let (account, password) = text.split_once(':').ok_or(3001_u16)?;
        if account.is_empty() || password.is_empty() {
            return Err(3001);
        }
        if let Some((right_account, right_password)) = &self.login {
            if account != right_account {
                return Err(3006);
            }
            if password != right_password {
                return Err(3007);
            }
        }
        let mut tokens = self.lock();
        tokens.given += 1;
        let token = format!("sandbox-token-{:x}-{}", std::process::id(), tokens.given);
        tokens.known.insert(token.clone(), (account.to_owned(), Instant::now() + self.life));
        tokens.order.push_back(token.clone());
        if tokens.order.len() > TOKENS_MAX
            && let Some(oldest) = tokens.order.pop_front()
        {
            tokens.known.remove(&oldest);
        }
        // The vendor writes no zone; its times are Korean.
        let life = jiff::SignedDuration::try_from(self.life).unwrap_or(jiff::SignedDuration::from_hours(24));
        let until = jiff::Timestamp::now().checked_add(life).unwrap_or(jiff::Timestamp::MAX);
        let expired = jiff::tz::offset(9).to_datetime(until).strftime("%Y%m%d%H%M%S").to_string();
        let body = json!({"accesstoken": token, "type": "Bearer", "expired": expired});
        Ok(Answer::json(200, body.to_string()))
    }

    /// Whether the Bearer header is good for this account (`None` where the call names none).
    pub(super) fn bearer(&self, authorization: Option<&str>, account: Option<&str>) -> Result<(), u16> {
        let token = authorization.and_then(|text| text.strip_prefix("Bearer ")).ok_or(3005_u16)?;
        let tokens = self.lock();
        match tokens.known.get(token.trim()) {
            Some((owner, until)) if *until > Instant::now() => match account {
                Some(account) if account != owner => Err(3004),
                _ => Ok(()),
            },
            _ => Err(3002),
        }
    }

    /// Whether a message may be taken: first who asks, then what is asked.
    pub(super) fn may_send(&self, authorization: Option<&str>, sent: &Sent) -> Result<(), u16> {
        let account = Some(sent.account.as_str()).filter(|account| !account.is_empty());
        self.bearer(authorization, account)?;
        sent.fault.map_or(Ok(()), Err)
    }

    /// Makes every token given so far invalid.
    pub(super) fn revoke(&self) {
        let mut tokens = self.lock();
        tokens.known.clear();
        tokens.order.clear();
    }

    /// Counts a call and puts the `RateLimit-*` headers on its answer; false when the budget is spent.
    pub(super) fn rate(&self) -> (bool, String) {
        let Some(limit) = self.rate else {
            // The vendor's own example values; its Reset is a fraction although the text says milliseconds.
            let lines = "RateLimit-Limit: 1000\r\nRateLimit-Remaining: 999\r\nRateLimit-Reset: 0.299\r\n";
            return (true, lines.to_owned());
        };
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.0.elapsed() >= Duration::from_secs(1) {
            *window = (Instant::now(), 0);
        }
        window.1 = window.1.saturating_add(1);
        let remaining = limit.saturating_sub(window.1);
        let reset = Duration::from_secs(1).saturating_sub(window.0.elapsed()).as_secs_f64();
        let lines = format!(
            "RateLimit-Limit: {limit}\r\nRateLimit-Remaining: {remaining}\r\nRateLimit-Reset: {reset:.3}\r\n"
        );
        (window.1 <= limit, lines)
    }
}
