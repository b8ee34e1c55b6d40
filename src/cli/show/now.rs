//! One sentence on a message: why it is where it is, what it waits for and until when, and what the rules will say.
//!
//! Never: a second opinion; hours, consent and environment are asked of the same rules that the relay asks.

use rusqlite::OptionalExtension;

use super::turn::{self, Turn};
use crate::cli::views::{Line, Views};
use crate::cli::{clock, dest, output};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::message::{Class, Destination, Message, MessageId};
use crate::owner;
use crate::policy::{Asking, Policy, Verdict, consent};
use crate::store::outbox::GOES_ON;
use crate::store::suppress;

/// What is said of a message now.
pub(super) struct Now {
    /// One sentence: why it is where it is, and what happens next.
    pub(super) text: String,
    /// Where the rate is what it waits for.
    pub(super) turn: Option<Turn>,
}

impl From<String> for Now {
    fn from(text: String) -> Self {
        Self { text, turn: None }
    }
}

/// Why it is where it is, what it waits for and until when.
pub(super) fn now(
    line: &Line,
    message: &Message,
    views: &Views,
    settings: &Settings,
    fate: Option<&str>,
) -> rusqlite::Result<Now> {
    let alive = owner::holder(&views.state).is_some() || !owner::may_look(&views.state);
    match (line.status.as_str(), fate) {
        ("PENDING", _) => waits(line, message, views, settings, alive),
        ("PUBLISHING", None) if alive => {
            let in_hand = "is in the agent's hands".to_owned();
            match turn::of(line, views, settings, alive)? {
                Some(turn) => Ok(by_rate(in_hand, turn, message, settings)),
                None => Ok(in_hand.into()),
            }
        }
        _ => Ok(why(line, fate, alive).into()),
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

/// A waiting message: what it waits for, until when, and what the rules will say then.
fn waits(
    line: &Line,
    message: &Message,
    views: &Views,
    settings: &Settings,
    alive: bool,
) -> rusqlite::Result<Now> {
    let at = |ms: i64| output::local_time(ms, &settings.agent.timezone);
    let last = line.reason.as_deref().filter(|reason| *reason != GOES_ON && !reason.starts_with("RELEASED"));
    let because = last.map(|reason| format!(", because of {reason}")).unwrap_or_default();
    let stands = dest::stand(views, settings)?;
    let of = stands.iter().find(|one| one["destination"] == *line.destination);
    if let Some(why) = of.and_then(|one| dest::why(one, settings)) {
        return Ok(format!("waits for its destination {}, {why}", line.destination).into());
    }
    match line.blocked {
        1 => return Ok(behind(line, views)?.into()),
        2 if believes_the_clock(views, alive)? => {
            let when = if alive { "within seconds" } else { "when the agent runs again" };
            return Ok(
                format!("was held because of the clock, which is believed again: goes on {when}").into()
            );
        }
        2 => return Ok(format!("waits until the clock is right{because}").into()),
        _ => {}
    }
    let forms = consent::keys(message);
    let mut opt_outs = suppress::find(&views.outbox, &forms)?;
    if views.source.is_some() {
        opt_outs.extend(suppress::find(views.rows(), &forms)?);
    }
    if let Some(reason) = consent::judge(message, &opt_outs) {
        return Ok(format!("will be SKIPPED when its turn comes: {reason}").into());
    }
    let now_ms = wall_ms();
    // What the rules will say when it is due, or say now.
    let verdict = Policy::new(settings).judge(message, Asking::Relay, now_ms.max(line.not_before_ms));
    let due = match verdict {
        Verdict::Skip(reason) => return Ok(format!("will be SKIPPED when its turn comes: {reason}").into()),
        Verdict::Expire(reason) => return Ok(format!("will be EXPIRED when its turn comes: {reason}").into()),
        Verdict::Wait { until_ms, reason, .. } => {
            return Ok(format!("waits until {}, because of {reason}", at(until_ms)).into());
        }
        _ if line.not_before_ms > now_ms => {
            return Ok(format!("waits until {}{because}", at(line.not_before_ms)).into());
        }
        _ if !alive => "is due; the agent is not running".to_owned(),
        _ => "is due".to_owned(),
    };
    // Held as a whole, nobody knows when.
    let mut now = match (views.held(), turn::of(line, views, settings, alive)?) {
        (Some(held), _) => format!("{due}; nothing is sent: {held}").into(),
        (None, Some(turn)) => by_rate(due, turn, message, settings),
        (None, None) => due.into(),
    };
    if alive && let Some(reason) = last {
        now.text.push_str(&format!("; last time: {reason}"));
    }
    Ok(now)
}

/// It waits for the rate alone; and what its hours or its deadline say of the moment when its turn comes.
fn by_rate(so_far: String, turn: Turn, message: &Message, settings: &Settings) -> Now {
    let at = |ms: i64| output::local_time(ms, &settings.agent.timezone);
    let why = turn.why();
    let text = match turn.about_ms {
        None => {
            format!("{so_far}; then it waits for {why}, about {} from a start", output::age(turn.wait_ms))
        }
        Some(about_ms) => {
            let then = match Policy::new(settings).judge(message, Asking::Worker, about_ms) {
                Verdict::Wait { until_ms, .. } => {
                    format!(", which is after its hours: so about {}", at(until_ms))
                }
                Verdict::Expire(reason) => format!(", which is too late: it will be EXPIRED ({reason})"),
                _ => String::new(),
            };
            format!("{so_far}; it waits for {why}, and its turn comes at about {}{then}", at(about_ms))
        }
    };
    Now { text, turn: Some(turn) }
}

/// As the running agent thinks of it, or as its next start will. Who may not look there is told what the row says.
fn believes_the_clock(views: &Views, alive: bool) -> rusqlite::Result<bool> {
    match &views.inbox {
        Some(inbox) => Ok(clock::doubt(&views.outbox, inbox, alive)?.is_none()),
        None => Ok(false),
    }
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
        ("PARKED", _) if line.reason.as_deref().is_some_and(content_is_the_cause) => {
            "waits for a person: its content cannot be sent, and nobody can change it: `onceward cancel` it, and insert \
             a new message under a new dedup_key"
                .into()
        }
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

/// Whether it was parked for what stands in it, which the outbox lets nobody change.
fn content_is_the_cause(reason: &str) -> bool {
    ["UNFIT", "UNREADABLE", "OTHER_CONTENT"].iter().any(|cause| reason.starts_with(cause))
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
