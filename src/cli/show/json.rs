//! The facts of `show` as one JSON object: the local API's answer, and the command's, which has some older names beside
//! them. Never: a whole number or a text unless they are to be revealed.

use rusqlite::Connection;
use serde_json::{Value, json};

use super::facts::{self, Found, calls, deeds};
use super::now::{as_message, now};
use crate::cli::sql::objects;
use crate::cli::views::{self, Line, Views};
use crate::cli::{Failure, Outcome, output};
use crate::config::Settings;
use crate::exit;

/// What the command prints.
pub(super) fn as_json(views: &Views, settings: &Settings, found: Found, reveal: bool) -> Outcome {
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let mut all = object(views, settings, found, reveal).map_err(io)?;
    // The same under the names of before, for scripts.
    let names = [
        "ordering_key",
        "claimed_by",
        "claimed_until_ms",
        "traceparent",
        "wiped_at_ms",
        "payload_bytes",
        "payload",
    ];
    all["more"] = names.iter().map(|name| ((*name).to_owned(), all[*name].clone())).collect();
    all["deeds"] = all["audit"].clone();
    if all["vendor"].is_object() {
        all["vendor"]["reference"] = all["vendor"]["ref"].clone();
    }
    all["vendor_visible"] = json!(views.inbox.is_some());
    output::print(&(output::json(&all)? + "\n"))
}

/// Everything about the message of an id or key; `None` where there is none.
pub(crate) fn story(
    views: &Views,
    settings: &Settings,
    id: &str,
    reveal: bool,
) -> rusqlite::Result<Option<Value>> {
    facts::find(views.rows(), id)?.map(|found| object(views, settings, found, reveal)).transpose()
}

fn object(views: &Views, settings: &Settings, found: Found, reveal: bool) -> rusqlite::Result<Value> {
    let message = as_message(&found.line, &found.payload);
    let Found { mut line, payload, ordering_key, claimed_by, claimed_until_ms, traceparent, wiped_at_ms } =
        found;
    let mut audit: Vec<Value> =
        deeds(views.rows(), &line.message_id)?.iter().map(|deed| json!(deed)).collect();
    let mut all = json!({
        "source": views.source.as_ref().map(|(name, _)| name), "ordering_key": ordering_key, "claimed_by": claimed_by,
        "claimed_until_ms": claimed_until_ms, "traceparent": traceparent, "wiped_at_ms": wiped_at_ms,
        "payload_bytes": payload.len(), "vendor": null, "calls": [], "reports": [], "look_up": null,
    });
    if reveal {
        all["payload"] = json!(payload);
    }
    if let Some(inbox) = &views.inbox {
        if let Some(fate) = views::fate(inbox, views.rows(), &line.destination, &line.message_id)? {
            all["vendor"] = json!({
                "status": fate.status, "code": fate.vendor_code, "ref": fate.vendor_ref, "reason": fate.reason,
                "delivery": fate.delivery, "claimed_at_ms": fate.claimed_at_ms, "finished_at_ms": fate.finished_at_ms,
                "settled_by": fate.settled_by,
            });
            line.fate = Some(fate.status);
            line.delivery = fate.delivery;
        }
        all["calls"] = json!(calls(inbox, &line.message_id)?);
        all["reports"] = json!(reports(inbox, &line)?);
        all["look_up"] = json!(look_up(inbox, &line)?);
        audit.extend(deeds(inbox, &line.message_id)?.iter().map(|deed| json!(deed)));
        audit.sort_by_key(|deed| deed["at_ms"].as_i64());
    }
    all["audit"] = json!(audit);
    let now = now(&line, &message, views, settings, line.fate.as_deref())?;
    all["now"] = json!(now.text);
    all["waits_for_rate"] = json!(now.turn);
    if !reveal {
        line.recipient = output::masked(&line.recipient);
    }
    all["message"] = json!(line);
    Ok(all)
}

fn reports(inbox: &Connection, line: &Line) -> rusqlite::Result<Vec<Value>> {
    let mut all = objects(
        inbox,
        "SELECT first_at_ms AS at_ms, verdict, code, meaning, item, way, copies, counts = 0 AS quarantined FROM report
          WHERE consumer = ?1 AND message_id = ?2 AND message_id <> '' ORDER BY id",
        &[&line.destination, &line.message_id],
    )?;
    for report in &mut all {
        report["quarantined"] = (report["quarantined"] == 1).into();
    }
    Ok(all)
}

fn look_up(inbox: &Connection, line: &Line) -> rusqlite::Result<Option<Value>> {
    let sql = "SELECT asked, last_at_ms, next_at_ms, last_said AS said FROM inquiry WHERE consumer = ?1 AND message_id = ?2";
    Ok(objects(inbox, sql, &[&line.destination, &line.message_id])?.pop())
}
