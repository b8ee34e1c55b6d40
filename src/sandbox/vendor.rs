//! What the stand-in vendor says: BizPpurio's calls and a generic JSON endpoint. Opens no socket.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::SandboxOptions;
use super::faults::Rule;
use super::ledger::Ledger;
use super::server::{Request, Response};
use crate::vendor::euckr;

/// Types of `/v3/message` (the document of 2026-07-20).
const TYPES: &[&str] =
    &["sms", "lms", "mms", "at", "ai", "ut", "ui", "uw", "ul", "uc", "um", "up", "ua", "rcs", "ntalk"];
/// Reports handed out by one poll.
const REPORTS_MAX: usize = 1000;

pub(super) struct Vendor {
    token_life: Duration,
    string_codes: bool,
    next: AtomicU64,
    tokens: Mutex<HashMap<String, Instant>>,
    reports: Mutex<VecDeque<Value>>,
    throttled: Mutex<HashMap<String, ()>>,
}

/// What a request carries for a customer.
pub(super) struct Message {
    pub(super) reference: String,
    pub(super) recipient: String,
    body: Value,
    biz: bool,
}

impl Vendor {
    pub(super) fn new(options: &SandboxOptions) -> Self {
        Self {
            token_life: options.token_life,
            string_codes: options.string_codes,
            next: AtomicU64::new(1),
            tokens: Mutex::default(),
            reports: Mutex::default(),
            throttled: Mutex::default(),
        }
    }

    pub(super) fn carries_message(path: &str) -> bool {
        !matches!(path, "/v1/token" | "/v1/result/request" | "/v1/result/confirm" | "/v2/report")
            && !path.starts_with("/__sandbox/")
    }

    pub(super) fn message(&self, request: &Request) -> Option<Message> {
        if request.method != "POST" || !Self::carries_message(&request.path) {
            return None;
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        let biz = request.path == "/v3/message";
        let reference = if biz {
            text("refkey")
        } else {
            request.header("x-reference").map(str::to_owned).unwrap_or_else(|| {
                let named = text("reference");
                if named.is_empty() { text("message_id") } else { named }
            })
        };
        let recipient = if body["to"].is_string() { text("to") } else { text("recipient") };
        Some(Message { reference, recipient, body, biz })
    }

    /// The fault that goes with a recipient's last digits.
    pub(super) fn magic(&self, message: &Message) -> Option<Arc<Rule>> {
        let digits: String = message.recipient.chars().filter(char::is_ascii_digit).collect();
        let text = match digits.get(digits.len().checked_sub(4)?..)? {
            "0400" if message.biz => "code=2000",
            "0400" => "status=400",
            "0429" => {
                let first = self
                    .throttled
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(message.reference.clone(), ())
                    .is_none();
                if !first {
                    return None;
                }
                if message.biz {
                    "status=429,retry_after=1,body={\"code\":5002}"
                } else {
                    "status=429,retry_after=1"
                }
            }
            "0500" => "status=500",
            "0501" => "reset=read",
            "0502" => "html=502",
            "0503" => "cut=body",
            "0504" => "hang=60s",
            "0505" => "close=read",
            "0307" => "redirect=307",
            _ => return None,
        };
        Rule::parse(text).ok().map(Arc::new)
    }

    pub(super) fn answer(&self, request: &Request, message: Option<&Message>, ledger: &Ledger) -> Response {
        match (request.path.as_str(), message) {
            ("/v1/token", _) => self.token(request, ledger),
            ("/v1/result/request", _) => self.poll(),
            ("/v1/result/confirm", _) => self.confirm(request),
            ("/v2/report", _) => self.refusal(3012, ""),
            ("/v3/message", Some(message)) => self.biz(request, message),
            (_, Some(_)) => {
                let id = self.next.fetch_add(1, Ordering::Relaxed);
                Response::json(200, format!("{{\"code\":1000,\"id\":\"g{id}\"}}"))
            }
            _ => Response::json(404, "{\"code\":5001,\"description\":\"no such uri\"}"),
        }
    }

    fn token(&self, request: &Request, ledger: &Ledger) -> Response {
        if !request.header("authorization").is_some_and(|value| value.starts_with("Basic ")) {
            return self.refusal(3001, "");
        }
        let token = format!("sandbox-{}", self.next.fetch_add(1, Ordering::Relaxed));
        self.tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(token.clone(), Instant::now() + self.token_life);
        ledger.token();
        let seoul = jiff::tz::TimeZone::get("Asia/Seoul").unwrap_or(jiff::tz::TimeZone::UTC);
        let until = jiff::Timestamp::now()
            .to_zoned_datetime(seoul)
            .checked_add(jiff::SignedDuration::try_from(self.token_life).unwrap_or_default());
        let expired = until.map(|at| at.strftime("%Y%m%d%H%M%S").to_string()).unwrap_or_default();
        Response::json(200, json!({ "accesstoken": token, "type": "Bearer", "expired": expired }).to_string())
    }

    fn code(&self, code: u16) -> Value {
        if self.string_codes { code.to_string().into() } else { code.into() }
    }

    /// A refusal with the HTTP status that belongs to the code.
    pub(super) fn refusal(&self, code: u16, reference: &str) -> Response {
        let status = match code {
            1000 => 200,
            5001 => 404,
            5002 => 429,
            9000 => 500,
            5003 => 502,
            5004 => 503,
            5005 => 504,
            _ => 400,
        };
        Response::json(
            status,
            json!({ "code": self.code(code), "description": "sandbox", "refkey": reference }).to_string(),
        )
    }

    fn biz(&self, request: &Request, message: &Message) -> Response {
        let reference = &message.reference;
        let bearer = request
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "))
            .unwrap_or_default();
        let known = self
            .tokens
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(bearer)
            .is_some_and(|until| Instant::now() < *until);
        if !known {
            return self.refusal(if bearer.is_empty() { 3005 } else { 3002 }, reference);
        }
        if !well_formed(&message.body) {
            return self.refusal(2000, reference);
        }
        let key = format!("{:026}", self.next.fetch_add(1, Ordering::Relaxed));
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if reports.len() < 100_000 {
            let (media, result) = match message.body["type"].as_str().unwrap_or_default() {
                "sms" => ("SMS", "4100"),
                "lms" | "mms" => ("LMS", "6600"),
                "rcs" => ("RSS", "8000"),
                "ntalk" => ("NTK", "5000"),
                _ => ("KAT", "7000"),
            };
            reports.push_back(json!({
                "device": media, "cmsgid": key, "msgid": format!("m{key}"), "phone": "***", "media": media,
                "unixtime": (crate::clock::wall_ms() / 1000).to_string(), "result": result, "refkey": reference,
            }));
        }
        drop(reports);
        let mut response = Response::json(
            200,
            json!({ "code": self.code(1000), "description": "success", "refkey": reference, "messagekey": key }).to_string(),
        );
        response.headers = vec![
            ("RateLimit-Limit".into(), "1000".into()),
            ("RateLimit-Remaining".into(), "999".into()),
            ("RateLimit-Reset".into(), "0.299".into()),
        ];
        response
    }

    fn poll(&self) -> Response {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let list: Vec<&Value> = reports.iter().take(REPORTS_MAX).collect();
        Response::json(200, json!({ "code": 1000, "description": "success", "report": list }).to_string())
    }

    fn confirm(&self, request: &Request) -> Response {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        let ids: Vec<&str> = body["msgid"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item["msgid"].as_str())
            .collect();
        self.reports
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|report| !report["msgid"].as_str().is_some_and(|id| ids.contains(&id)));
        Response::json(200, "{\"code\":1000,\"description\":\"success\"}")
    }
}

/// The checks that the vendor makes at the door.
fn well_formed(body: &Value) -> bool {
    let text = |key: &str, most: usize| {
        body[key].as_str().is_some_and(|text| !text.is_empty() && text.len() <= most)
    };
    let kind = body["type"].as_str().unwrap_or_default();
    let Some(content) = body["content"].as_object() else { return false };
    if !(text("account", 20)
        && text("from", 16)
        && text("to", 16)
        && text("refkey", 32)
        && TYPES.contains(&kind)
        && content.len() == 1)
    {
        return false;
    }
    let Some(part) = content.get(kind) else { return false };
    let bytes = euckr::measure(part["message"].as_str().unwrap_or_default()).bytes;
    match kind {
        "sms" => bytes <= 90,
        "lms" => bytes <= 2000,
        _ => true,
    }
}
