//! The result calls: `/v1/result/request` and `/v1/result/confirm`. They carry no message.
//!
//! Fetching changes nothing at the vendor; only a confirm takes results away, so it comes after our commit.

use serde_json::{Value, json};

use super::codes::{Class, look_up};
use super::{BizPpurio, decode};
use crate::message::Outcome;
use crate::vendor::client::{Answer, Exchange};
use crate::vendor::{Refused, ReportSource, Vendor, pace};

/// A list of 1,000 results of at most 4 KiB each.
pub(super) const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Results in one list, and in one confirm, by the document.
const BATCH_MAX: usize = 1_000;

impl ReportSource for BizPpurio {
    fn account(&self) -> String {
        format!("{} {}", self.message_url, self.settings.account)
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX
    }

    fn fetch(&self) -> Result<Vec<Value>, Refused> {
        let mut answer = self.result_call("request", &json!({ "account": self.settings.account }))?;
        match answer.get_mut("report").map(Value::take) {
            Some(Value::Array(reports)) => Ok(reports),
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(_) => Err(refused("the answer's report is not a list", None)),
        }
    }

    fn confirm(&self, items: &[String]) -> Result<(), Refused> {
        for part in items.chunks(BATCH_MAX) {
            let list: Vec<Value> = part.iter().map(|item| json!({ "msgid": item })).collect();
            let _accepted =
                self.result_call("confirm", &json!({ "account": self.settings.account, "msgid": list }))?;
        }
        Ok(())
    }
}

impl BizPpurio {
    /// One call with a fresh token; its answer as JSON where its code says yes.
    fn result_call(&self, name: &str, body: &Value) -> Result<Value, Refused> {
        self.ready().map_err(|reply| match reply.outcome {
            Outcome::NotSent { reason, .. } => refused(&reason, reply.pause),
            _ => refused("the login did not succeed", reply.pause),
        })?;
        let Some(token) = self.tokens.at_hand() else {
            return Err(refused("the token became void just before the call", None));
        };
        let url = format!("{}/v1/result/{name}", self.token_url.trim_end_matches("/v1/token"));
        let bearer = format!("Bearer {}", token.reveal());
        let headers =
            [("Authorization", bearer.as_str()), ("Content-Type", "application/json; charset=utf-8")];
        let (exchange, _) = self.results.post_once(&url, &headers, body.to_string().as_bytes());
        let answer = match exchange {
            Exchange::Answered(answer) => answer,
            Exchange::NotSent { reason, .. } | Exchange::Unknown { reason, .. } => {
                return Err(refused(&reason, None));
            }
        };
        let (json, token_invalid) = read(&answer);
        if token_invalid {
            self.tokens.forget(&token);
        }
        json
    }
}

/// The answer where it says yes, and whether the token is to be forgotten.
pub(crate) fn read(answer: &Answer) -> (Result<Value, Refused>, bool) {
    let Some(json) = decode::body(answer) else {
        let why = format!("status {}: no JSON in the answer, or it is cut", answer.status);
        return (Err(refused(&why, pace::pause(answer))), false);
    };
    let code = decode::code(&json);
    let row = code.and_then(look_up);
    match row.map(|row| row.class) {
        Some(Class::Accepted) if (200..300).contains(&answer.status) => (Ok(json), false),
        class => {
            let why = match (row, code) {
                (Some(row), _) => format!("code {}: {}", row.code, row.meaning),
                (None, Some(code)) => format!("code {code}, which is not in our table"),
                (None, None) => format!("status {} and no code in the answer", answer.status),
            };
            let wait = match class {
                Some(Class::Throttled) => pace::wait_after_refusal(answer),
                _ => pace::pause(answer),
            };
            (Err(refused(&why, wait)), class == Some(Class::TokenInvalid))
        }
    }
}

fn refused(reason: &str, wait: Option<std::time::Duration>) -> Refused {
    Refused { reason: reason.to_owned(), wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_yes_is_one() {
        for (status, body, framed, yes, forget) in [
            (200, r#"{"code":1000,"report":[]}"#, true, true, false),
            (200, r#"{"code":"1000"}"#, true, true, false),
            (200, r#"{"code":1000}"#, false, false, false),
            (500, r#"{"code":1000}"#, true, false, false),
            (400, r#"{"code":3002}"#, true, false, true),
            (429, r#"{"code":5002}"#, true, false, false),
            (400, r#"{"code":3007}"#, true, false, false),
            (200, r#"{}"#, true, false, false),
            (200, "<html>", true, false, false),
        ] {
            let (result, token) = read(&Answer { status, body: body.into(), framed, headers: Vec::new() });
            assert_eq!((result.is_ok(), token), (yes, forget), "{status} {body}");
        }
    }
}
