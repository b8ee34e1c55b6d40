//! One sentence on a message: why it is where it is, what it waits for and until when, and what the rules will say.
//!
//! Never: a second opinion; hours, consent and environment are asked of the same rules that the relay asks.

use rusqlite::OptionalExtension;

use crate::cli::views::{Line, Views};
use crate::cli::{dest, output};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::message::{Class, Destination, Message, MessageId};
use crate::owner;
use crate::policy::{Asking, Policy, Verdict, consent};
use crate::store::suppress;

/// One sentence: why it is where it is, and what happens next.
pub(super) fn now_text(
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

/// The row as the rules see it.
pub(super) fn as_message(line: &Line, payload: &str) -> Message {
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
    let stands = dest::stand(views, settings)?;
    let of = stands.iter().find(|one| one["destination"] == *line.destination);
    if let Some(why) = of.and_then(|one| dest::why(one, settings)) {
        return Ok(format!("waits for its destination {}, {why}", line.destination));
    }
    match line.blocked {
        1 => return behind(line, views),
        2 => return Ok(format!("waits until the clock is right{because}")),
        _ => {}
    }
    let (own, foreign) = consent::keys(message);
    let mut opt_outs = suppress::find(&views.outbox, &own, foreign.as_deref())?;
    if views.source.is_some() {
        opt_outs.extend(suppress::find(views.rows(), &own, foreign.as_deref())?);
    }
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

/// The head of its order lane within its file, which has to end first.
fn behind(line: &Line, views: &Views) -> rusqlite::Result<String> {
    let head: Option<(String, String)> = views
        .rows()
        .query_row(
            "SELECT message_id, status FROM outbox
              WHERE ordering_key = (SELECT ordering_key FROM outbox WHERE message_id = ?1) AND closed_at_ms IS NULL
              ORDER BY id LIMIT 1",
            [&line.message_id],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    Ok(match head {
        Some((id, status)) if status == "PARKED" || status == "HELD" => format!(
            "waits behind {id}, the first of its order lane, which is {status}: `onceward release` or `cancel` that one"
        ),
        Some((id, status)) => {
            format!(
                "waits behind {id}, the first of its order lane, which is {status} (`onceward show {id}`)"
            )
        }
        None => "waits behind an earlier message of its order lane".into(),
    })
}
