//! `show`: everything about one message: its states with times, each call, why it waits and until when.

use rusqlite::{OptionalExtension, params};
use serde_json::{Value, json};

use super::settings_file::SettingsFile;
use super::views::{self, Line, Views};
use super::{Failure, Outcome, dest, filter, output, settling, through_agent};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::exit;
use crate::message::{Class, Destination, Message, MessageId};
use crate::owner;
use crate::policy::{Asking, Policy, Verdict, consent};
use crate::store::suppress;
use crate::vendor::fitness::Fitness;

/// Arguments of `show`.
#[derive(clap::Args)]
pub struct Args {
    /// Message id or dedup key
    #[arg(value_name = "ID-or-KEY")]
    id: String,
    /// Show number and text
    #[arg(long)]
    reveal: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let views = super::source::views(file, &settings)?;
    if views.inbox.is_none() {
        match through_agent::show(&settings, &args.id) {
            Ok(outcome) => return outcome,
            Err(why) => output::complain!("the vendor's side is not shown: {why}"),
        }
    }
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let found = views
        .outbox
        .query_row(
            &format!("SELECT {}, payload, ordering_key, claimed_by, claimed_until_ms, traceparent, wiped_at_ms FROM outbox WHERE message_id = ?1 OR dedup_key = ?1 ORDER BY message_id = ?1 DESC LIMIT 1", views::COLUMNS),
            [&args.id],
            |row| Ok((views::line(row)?, row.get::<_, String>(17)?, row.get::<_, Option<String>>(18)?, row.get::<_, Option<String>>(19)?, row.get::<_, Option<i64>>(20)?, row.get::<_, Option<String>>(21)?, row.get::<_, Option<i64>>(22)?)),
        )
        .optional()
        .map_err(io)?;
    let Some((line, payload, ordering_key, claimed_by, claimed_until_ms, traceparent, wiped_at_ms)) = found
    else {
        let hint = if file.source.is_none() {
            " in outbox.db (for an application's file: --source NAME)"
        } else {
            ""
        };
        return Err(Failure::new(
            exit::NO_INPUT,
            format!("no message has the id or key {:?}{hint}", args.id),
        ));
    };
    if args.json {
        let text = payload.clone();
        let facts = json!({
            "ordering_key": ordering_key, "claimed_by": claimed_by, "claimed_until_ms": claimed_until_ms,
            "traceparent": traceparent, "wiped_at_ms": wiped_at_ms, "payload_bytes": payload.len(), "payload": args.reveal.then_some(payload),
        });
        let message = as_message(&line, &text);
        return as_json(&views, &settings, &message, line, facts, args.reveal);
    }
    let zone = &settings.agent.timezone;
    let at = |ms: i64| output::local_time(ms, zone);
    let mut out = String::new();
    let mut say = |name: &str, value: String| out.push_str(&format!("{name:<13}{}\n", output::plain(&value)));
    say("message", line.message_id.clone());
    say("key", line.dedup_key.clone());
    say("kind", format!("{} ({}), priority {}", line.kind, line.class, line.priority));
    say(
        "destination",
        if line.destination.is_empty() {
            "(by route, not yet chosen)".into()
        } else {
            line.destination.clone()
        },
    );
    let message = as_message(&line, &payload);
    match wiped_at_ms {
        Some(wiped) => say("wiped", format!("number and text went by retention on {}", at(wiped))),
        None => {
            say("to", if args.reveal { line.recipient.clone() } else { output::masked(&line.recipient) });
            let size = format!("{} bytes (--reveal shows it)", payload.len());
            say("payload", if args.reveal { payload.clone() } else { size });
            match Fitness::new(&settings).map(|fitness| fitness.check(&message)) {
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
    if let Some(key) = &ordering_key {
        say("order lane", key.clone());
    }
    if let Some(trace) = &traceparent {
        say("traceparent", trace.clone());
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
    if let (Some(owner), Some(until)) = (&claimed_by, claimed_until_ms) {
        say("claimed by", format!("{owner} until {}", at(until)));
    }
    let fate = match &views.inbox {
        Some(inbox) => views::fate(inbox, &line.destination, &line.message_id).map_err(io)?,
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
        None => say("vendor", not_there(&views, &settings, &line.message_id).map_err(io)?),
    }
    say(
        "now",
        now_text(&line, &message, &views, &settings, fate.as_ref().map(|fate| fate.status.as_str()))
            .map_err(io)?,
    );
    if let Some(inbox) = &views.inbox {
        let calls: Vec<Vec<String>> = inbox
            .prepare("SELECT started_at_ms, outcome, http_status, vendor_code, waiting_us, connecting_us, answering_us, reason FROM attempt WHERE message_id = ?1 ORDER BY id")
            .map_err(io)?
            .query_map(params![line.message_id], |row| {
                let ms = |us: i64| format!("{:.1}", us as f64 / 1000.0);
                Ok(vec![
                    at(row.get(0)?),
                    row.get(1)?,
                    row.get::<_, Option<i64>>(2)?.map_or("-".into(), |status| status.to_string()),
                    row.get::<_, Option<String>>(3)?.unwrap_or_else(|| "-".into()),
                    ms(row.get(4)?),
                    ms(row.get(5)?),
                    ms(row.get(6)?),
                    row.get::<_, Option<String>>(7)?.unwrap_or_default(),
                ])
            })
            .map_err(io)?
            .collect::<rusqlite::Result<_>>()
            .map_err(io)?;
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
        out.push_str(&settling::story(inbox, &line, fate.as_ref(), zone).map_err(io)?);
    }
    let deeds: Vec<Vec<String>> = deeds(&views.outbox, &line.message_id)
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

/// One sentence: why it is where it is, and what happens next.
fn now_text(
    line: &Line,
    message: &Message,
    views: &Views,
    settings: &Settings,
    fate: Option<&str>,
) -> rusqlite::Result<String> {
    let alive = owner::holder(&views.state).is_some() || !owner::may_look(&views.state);
    match line.status.as_str() {
        "PENDING" => waits(line, message, views, settings, alive),
        _ => Ok(why(line, fate, alive)),
    }
}

/// The same for the local API.
pub(crate) fn now(
    views: &Views,
    settings: &Settings,
    line: &Line,
    payload: &str,
) -> rusqlite::Result<String> {
    let fate = match &views.inbox {
        Some(inbox) => views::fate(inbox, &line.destination, &line.message_id)?,
        None => None,
    };
    let message = as_message(line, payload);
    now_text(line, &message, views, settings, fate.as_ref().map(|fate| fate.status.as_str()))
}

/// The row as the rules see it.
fn as_message(line: &Line, payload: &str) -> Message {
    Message {
        message_id: MessageId::new(&line.message_id),
        dedup_key: line.dedup_key.clone(),
        kind: line.kind.clone(),
        class: Class::parse(&line.class).unwrap_or(Class::Advertising),
        destination: Destination::new(&line.destination),
        recipient: line.recipient.clone(),
        payload: payload.to_owned(),
        ordering_key: None,
        priority: 5,
        not_before_ms: line.not_before_ms,
        expires_at_ms: line.expires_at_ms,
        created_at_ms: line.created_at_ms,
        traceparent: None,
    }
}

/// Why the inbox has no row of it.
fn not_there(views: &Views, settings: &Settings, message_id: &str) -> rusqlite::Result<String> {
    let Some(inbox) = &views.inbox else {
        return Ok(format!("not shown: {}", super::permission::inbox(settings)));
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

/// A line of the outbox's audit.
#[derive(serde::Serialize)]
struct Deed {
    at_ms: i64,
    verb: String,
    who: String,
    before: String,
    after: String,
    note: String,
}

fn deeds(outbox: &rusqlite::Connection, message_id: &str) -> rusqlite::Result<Vec<Deed>> {
    outbox
        .prepare(
            "SELECT at_ms, verb, who, state_before, state_after, note FROM audit WHERE target = ?1 ORDER BY id",
        )?
        .query_map([message_id], |row| {
            Ok(Deed {
                at_ms: row.get(0)?,
                verb: row.get(1)?,
                who: row.get(2)?,
                before: row.get(3)?,
                after: row.get(4)?,
                note: row.get(5)?,
            })
        })?
        .collect()
}

/// The same facts as one object.
fn as_json(
    views: &Views,
    settings: &Settings,
    message: &Message,
    mut line: Line,
    facts: Value,
    reveal: bool,
) -> Outcome {
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let deeds = deeds(&views.outbox, &line.message_id).map_err(io)?;
    let (mut vendor, mut calls) = (Value::Null, Vec::new());
    if let Some(inbox) = &views.inbox {
        if let Some(fate) = views::fate(inbox, &line.destination, &line.message_id).map_err(io)? {
            vendor = json!({
                "status": fate.status, "code": fate.vendor_code, "reference": fate.vendor_ref, "reason": fate.reason,
                "delivery": fate.delivery, "claimed_at_ms": fate.claimed_at_ms, "finished_at_ms": fate.finished_at_ms,
                "settled_by": fate.settled_by,
            });
            line.fate = Some(fate.status);
            line.delivery = fate.delivery;
        }
        calls = inbox
            .prepare(
                "SELECT started_at_ms, outcome, http_status, vendor_code, waiting_us, connecting_us, answering_us, reason
                   FROM attempt WHERE message_id = ?1 ORDER BY id",
            )
            .map_err(io)?
            .query_map(params![line.message_id], |row| {
                Ok(json!({
                    "started_at_ms": row.get::<_, i64>(0)?, "outcome": row.get::<_, String>(1)?,
                    "http_status": row.get::<_, Option<i64>>(2)?, "code": row.get::<_, Option<String>>(3)?,
                    "waiting_us": row.get::<_, i64>(4)?, "connecting_us": row.get::<_, i64>(5)?,
                    "answering_us": row.get::<_, i64>(6)?, "reason": row.get::<_, Option<String>>(7)?,
                }))
            })
            .map_err(io)?
            .collect::<rusqlite::Result<Vec<Value>>>()
            .map_err(io)?;
    }
    let now = now_text(&line, message, views, settings, line.fate.as_deref()).map_err(io)?;
    if !reveal {
        line.recipient = output::masked(&line.recipient);
    }
    let object = json!({
        "message": line, "more": facts, "vendor": vendor, "vendor_visible": views.inbox.is_some(), "calls": calls,
        "deeds": deeds, "now": now,
    });
    output::print(&(output::json(&object)? + "\n"))
}

/// One sentence on a waiting message: what it waits for, until when, and what the rules will say then.
fn waits(
    line: &Line,
    message: &Message,
    views: &Views,
    settings: &Settings,
    alive: bool,
) -> rusqlite::Result<String> {
    let at = |ms: i64| output::local_time(ms, &settings.agent.timezone);
    let because = line.reason.as_deref().map(|reason| format!(", because of {reason}")).unwrap_or_default();
    let stands = dest::collect(views, settings)?;
    let of = stands.iter().find(|one| one["destination"] == *line.destination);
    if let Some(why) = of.and_then(|one| dest::why(one, settings)) {
        return Ok(format!("waits for its destination {}, {why}", line.destination));
    }
    match line.blocked {
        1 => return Ok("waits behind an earlier message of its order lane".into()),
        2 => return Ok(format!("waits until the clock is right{because}")),
        _ => {}
    }
    let stands = dest::collect(views, settings)?;
    let of = stands.iter().find(|one| one["destination"] == *line.destination);
    if let Some(why) = of.and_then(|one| dest::why(one, settings)) {
        return Ok(format!("waits for its destination {}, {why}", line.destination));
    }
    let (own, foreign) = consent::keys(message);
    let opt_outs = suppress::find(&views.outbox, &own, foreign.as_deref())?;
    if let Some(reason) = consent::judge(message, &opt_outs) {
        return Ok(format!("will be SKIPPED when its turn comes: {reason}"));
    }
    let now_ms = wall_ms();
    // What the rules will say when it is due, or say now.
    let verdict = Policy::new(settings).judge(message, Asking::Relay, now_ms.max(line.not_before_ms));
    Ok(match verdict {
        Verdict::Skip(reason) => format!("will be SKIPPED when its turn comes: {reason}"),
        Verdict::Expire(reason) => format!("will be EXPIRED when its turn comes: {reason}"),
        Verdict::Wait { until_ms, reason, .. } => {
            format!("waits until {}, because of {reason}", at(until_ms))
        }
        _ if line.not_before_ms > now_ms => format!("waits until {}{because}", at(line.not_before_ms)),
        _ if !alive => "is due; the agent is not running".into(),
        _ => format!(
            "is due{}",
            line.reason.as_deref().map(|reason| format!("; last time: {reason}")).unwrap_or_default()
        ),
    })
}

/// One sentence: why it is where it is, and what happens next.
fn why(line: &Line, fate: Option<&str>, alive: bool) -> String {
    match (line.status.as_str(), fate) {
        ("PUBLISHING", _) if !alive => {
            "was in the agent's hands when it stopped; the next start settles it".into()
        }
        ("PUBLISHING", _) => "is in the agent's hands".into(),
        ("PUBLISHED", Some("ERROR")) => {
            "nobody knows whether it arrived; it is not sent again until that is settled (see below)".into()
        }
        ("PUBLISHED", Some("SENT")) => "the vendor has taken it".into(),
        ("PUBLISHED", Some("FAILED")) => "the vendor has refused it for good".into(),
        ("PUBLISHED", Some("SENDING")) => "is being sent".into(),
        ("PARKED", _) => {
            "waits for a person: mend the cause, then `onceward release`, or `onceward cancel`".into()
        }
        ("HELD", _) => "is held: `onceward release` (it keeps its due time) or `onceward cancel`".into(),
        ("EXPIRED", _) => "was not sent in time and will not be".into(),
        ("SKIPPED", _) => "was not sent by rule and will not be".into(),
        ("FAILED", _) => "was cancelled by a person and will not be sent".into(),
        (state, fate) => format!("{state}, vendor side {}", fate.unwrap_or("unknown")),
    }
}
