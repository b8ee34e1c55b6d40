//! The facts of `show` in lines for people. Never: a whole number or a text without `--reveal`.

use super::facts::{Found, calls, deeds};
use super::now::{as_message, now};
use crate::cli::views::{self, Views};
use crate::cli::{Failure, Outcome, filter, output, permission, settling};
use crate::config::Settings;
use crate::exit;
use crate::message::Message;
use crate::outboxes::File;
use crate::vendor::fitness::Fitness;

pub(super) fn for_people(
    views: &Views,
    settings: &Settings,
    home: &File,
    found: &Found,
    reveal: bool,
) -> Outcome {
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let Found { line, payload, ordering_key, claimed_by, claimed_until_ms, traceparent, wiped_at_ms } = found;
    let zone = &settings.agent.timezone;
    let at = |ms: i64| output::local_time(ms, zone);
    let mut out = String::new();
    let mut say = |name: &str, value: String| out.push_str(&format!("{name:<13}{}\n", output::plain(&value)));
    say("message", line.message_id.clone());
    say("key", line.dedup_key.clone());
    if let Some(name) = home.source() {
        say("source", format!("{name}, {}", home.path().display()));
    }
    say("kind", format!("{} ({}), priority {}", line.kind, line.class, line.priority));
    say(
        "destination",
        if line.destination.is_empty() {
            "(by route, not yet chosen)".into()
        } else {
            line.destination.clone()
        },
    );
    let message = as_message(line, payload);
    match wiped_at_ms {
        &Some(wiped) => say("wiped", format!("number and text went by retention on {}", at(wiped))),
        None => {
            say("to", if reveal { line.recipient.clone() } else { output::masked(&line.recipient) });
            let size = format!("{} bytes (--reveal shows it)", payload.len());
            say("payload", if reveal { payload.clone() } else { size });
            match Fitness::new(settings).map(|fitness| fitness.check(&message)) {
                Ok(Ok(fit)) => {
                    for size in &fit.sizes {
                        say("size", size.to_string());
                    }
                }
                Ok(Err(unfit)) if line.closed_at_ms.is_none() => say("unfit", unfit.reason),
                _ => {} // closed already, or a template that `check` will complain about
            }
        }
    }
    if let Some(key) = ordering_key {
        say("order lane", key.clone());
    }
    if let Some(trace) = traceparent {
        let of_row = Message { traceparent: Some(trace.clone()), ..as_message(line, payload) };
        let bad = if of_row.trace_context().is_none() {
            " (no W3C trace context: neither in log lines nor in calls)"
        } else {
            ""
        };
        say("traceparent", format!("{trace}{bad}"));
    }
    if line.closed_at_ms.is_none()
        && let Some(held) = views.held()
    {
        say("HELD", format!("nothing is sent: {held}"));
    }
    say("created", at(line.created_at_ms));
    if line.status != "PARKED" {
        say("due", at(line.not_before_ms));
    }
    if let Some(deadline) = line.expires_at_ms {
        say("deadline", at(deadline));
    }
    say(
        "outbox",
        format!(
            "{} since {}, {}{}",
            filter::said(&line.status),
            at(line.closed_at_ms.unwrap_or(line.updated_at_ms)),
            output::count(line.attempts, "attempt", "attempts"),
            line.reason.as_deref().map(|reason| format!(", {reason}")).unwrap_or_default()
        ),
    );
    if let (Some(owner), Some(until)) = (claimed_by, *claimed_until_ms) {
        say("claimed by", format!("{owner} until {}", at(until)));
    }
    let fate = match &views.inbox {
        Some(inbox) => views::fate(inbox, views.rows(), &line.destination, &line.message_id).map_err(io)?,
        None => None,
    };
    match &fate {
        Some(fate) => say(
            "vendor",
            format!(
                "{} since {}{}{}{}{}{}",
                fate.status,
                at(fate.finished_at_ms.unwrap_or(fate.claimed_at_ms)),
                fate.vendor_code.as_deref().map(|code| format!(", code {code}")).unwrap_or_default(),
                fate.vendor_ref
                    .as_deref()
                    .map(|reference| format!(", their id {reference}"))
                    .unwrap_or_default(),
                fate.reason.as_deref().map(|reason| format!(", {reason}")).unwrap_or_default(),
                fate.delivery
                    .as_deref()
                    .map(|delivery| format!(
                        ", {delivery} ({})",
                        fate.delivery_code.as_deref().unwrap_or("-")
                    ))
                    .unwrap_or_default(),
                fate.settled_by
                    .as_deref()
                    .filter(|by| *by != "worker")
                    .map(|by| format!(" (settled by {by})"))
                    .unwrap_or_default(),
            ),
        ),
        None => say("vendor", not_there(views, settings, &line.message_id).map_err(io)?),
    }
    say(
        "now",
        now(line, &message, views, settings, fate.as_ref().map(|fate| fate.status.as_str()))
            .map_err(io)?
            .text,
    );
    if let Some(inbox) = &views.inbox {
        let ms = |us: i64| format!("{:.1}", us as f64 / 1000.0);
        let calls: Vec<Vec<String>> = calls(inbox, &line.message_id)
            .map_err(io)?
            .into_iter()
            .map(|call| {
                vec![
                    at(call.started_at_ms),
                    call.outcome,
                    call.http_status.map_or("-".into(), |status| status.to_string()),
                    call.code.unwrap_or_else(|| "-".into()),
                    ms(call.waiting_us),
                    ms(call.connecting_us),
                    ms(call.answering_us),
                    call.reason.unwrap_or_default(),
                ]
            })
            .collect();
        if !calls.is_empty() {
            let mut rows = vec![
                ["CALL", "OUTCOME", "HTTP", "CODE", "WAITED ms", "CONNECT ms", "ANSWER ms", "WHY"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(calls);
            out.push('\n');
            out.push_str(&output::table(&rows));
        }
        out.push_str(&settling::story(inbox, line, fate.as_ref(), zone).map_err(io)?);
    }
    let deeds: Vec<Vec<String>> = deeds(views.rows(), &line.message_id)
        .map_err(io)?
        .into_iter()
        .map(|deed| vec![at(deed.at_ms), deed.verb, deed.who, deed.before, deed.after, deed.note])
        .collect();
    if !deeds.is_empty() {
        let mut rows = vec![["DONE", "VERB", "WHO", "BEFORE", "AFTER", "NOTE"].map(str::to_owned).to_vec()];
        rows.extend(deeds);
        out.push('\n');
        out.push_str(&output::table(&rows));
    }
    output::print(&out)
}

/// Why the inbox has no row of it.
fn not_there(views: &Views, settings: &Settings, message_id: &str) -> rusqlite::Result<String> {
    let Some(inbox) = &views.inbox else {
        return Ok(format!("not shown: {}", permission::inbox(settings)));
    };
    let calls: i64 =
        inbox.query_row("SELECT count(*) FROM attempt WHERE message_id = ?1", [message_id], |row| {
            row.get(0)
        })?;
    Ok(match calls {
        0 => "not called yet".into(),
        calls => format!("not sent ({}, certainly without effect)", output::count(calls, "call", "calls")),
    })
}
