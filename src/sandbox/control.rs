//! `/__sandbox/…`: looking at the ledger and steering faults over HTTP.
//!
//! | request | does |
//! |---|---|
//! | `GET arrivals`, `?reference=KEY`, `?only=duplicates/repeated`, `?limit=N`, `?recent=N` | totals and counts per reference as JSON |
//! | `GET count` | whole requests that carried a message, as a plain number |
//! | `POST reset` | forgets arrivals and reports |
//! | `GET faults`, `POST faults`, `PUT faults`, `DELETE faults` | how many, add (one rule a line), replace, clear |
//! | `POST refuse?for=2s` | stops listening for so long, then is back on the same port |
//! | `DELETE tokens` | every token given so far is no longer valid |

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::State;
use super::ledger::Counts;
use super::rule::{Rule, parse_duration};
use crate::listen::wire::{Answer, Head, Method};

/// First part of every path here.
pub(super) const PREFIX: &str = "/__sandbox";
/// References listed unless `limit` says otherwise.
const LISTED: usize = 10_000;
/// Longest `refuse`: without a listener nobody could end it over HTTP.
const REFUSE_MAX: Duration = Duration::from_secs(600);

pub(super) fn answer(state: &State, head: &Head, body: &[u8]) -> Answer {
    let name = head.path().strip_prefix(PREFIX).unwrap_or("").trim_matches('/');
    match (head.method, name) {
        (Method::Get, "arrivals") => arrivals(state, head),
        (Method::Get, "count") => Answer::text(200, format!("{}\n", state.ledger.totals().arrived)),
        (Method::Post, "reset") => {
            state.ledger.reset();
            state.reports.reset();
            Answer::text(200, "forgotten\n")
        }
        (Method::Get, "faults") => Answer::text(200, format!("{} rules\n", state.faults.len())),
        (Method::Delete, "faults") => {
            state.faults.set(Vec::new());
            Answer::text(200, "no rules\n")
        }
        (Method::Post | Method::Put, "faults") => match read_rules(body) {
            Err(text) => Answer::text(422, text + "\n"),
            Ok(rules) => {
                if head.method == Method::Put {
                    state.faults.set(rules);
                } else {
                    state.faults.add(rules);
                }
                Answer::text(200, format!("{} rules\n", state.faults.len()))
            }
        },
        (Method::Post, "refuse") => {
            match head.query("for").map_or(Some(Duration::from_secs(2)), parse_duration) {
                Some(time) if time <= REFUSE_MAX => {
                    state.gate.refuse_for(time);
                    Answer::text(200, format!("refusing for {time:?}\n"))
                }
                _ => Answer::text(422, "`for` is a time such as 500ms or 2s, at most 10m\n"),
            }
        }
        (Method::Delete, "tokens") => {
            state.account.revoke();
            Answer::text(200, "tokens revoked\n")
        }
        (_, "arrivals" | "count" | "reset" | "faults" | "refuse" | "tokens") => {
            Answer::text(405, "this path takes another method\n")
        }
        _ => Answer::text(404, "paths here: arrivals, count, reset, faults, refuse, tokens\n"),
    }
}

fn read_rules(body: &[u8]) -> Result<Vec<Rule>, String> {
    let text = std::str::from_utf8(body).map_err(|_| "rules are UTF-8 text".to_owned())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| Rule::parse(line).map_err(|error| format!("line {}: {error}", at + 1))).collect()
}

fn counts(counts: &Counts) -> Value {
    json!({"arrived": counts.arrived, "refused": counts.refused, "heads_only": counts.heads_only})
}

fn arrivals(state: &State, head: &Head) -> Answer {
    if let Some(reference) = head.query("reference") {
        let mut found = counts(&state.ledger.counts(reference));
        found["reference"] = json!(reference);
        return Answer::json(200, found.to_string());
    }
    let number = |name: &str, otherwise: usize| match head.query(name) {
        None => Some(otherwise),
        Some(text) => text.parse().ok(),
    };
    let (Some(limit), Some(recent)) = (number("limit", LISTED), number("recent", 0)) else {
        return Answer::text(422, "`limit` and `recent` are numbers\n");
    };
    let wanted: fn(&Counts) -> bool = match head.query("only") {
        None => |_| true,
        Some("duplicates") => Counts::is_duplicate,
        Some("repeated") => |counts| counts.arrived > 1,
        Some(_) => return Answer::text(422, "`only` is duplicates or repeated\n"),
    };
    let totals = state.ledger.totals();
    let listed: Map<String, Value> =
        state.ledger.references(limit, wanted).iter().map(|(name, of)| (name.clone(), counts(of))).collect();
    let mut body = json!({
        "arrived": totals.arrived,
        "refused": totals.refused,
        "accepted": totals.accepted,
        "references": totals.references,
        "repeated": totals.repeated,
        "duplicates": totals.duplicates,
        "without_reference": totals.without_reference,
        "heads_only": totals.heads_only,
        "tokens": totals.tokens,
        "connections": totals.connections,
        "by_reference": listed,
    });
    if recent > 0 {
        let newest = state.ledger.recent();
        let newest = &newest[newest.len().saturating_sub(recent)..];
        let show = |one: &super::ledger::Arrival| {
            json!({"reference": one.reference, "recipient": one.recipient,
                "ms_ago": one.at.elapsed().as_millis() as u64})
        };
        body["recent"] = newest.iter().map(show).collect();
    }
    Answer::json(200, body.to_string())
}
