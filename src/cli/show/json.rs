//! The facts of `show` as one JSON object. Never: a whole number without `--reveal`.

use serde_json::{Value, json};

use super::facts::{Found, calls, deeds};
use super::now::{as_message, now_text};
use crate::cli::views::{self, Views};
use crate::cli::{Failure, Outcome, output};
use crate::config::Settings;
use crate::exit;

/// The same facts as one object.
pub(super) fn as_json(views: &Views, settings: &Settings, found: Found, reveal: bool) -> Outcome {
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let message = as_message(&found.line, &found.payload);
    let Found { mut line, payload, ordering_key, claimed_by, claimed_until_ms, traceparent, wiped_at_ms } =
        found;
    let facts = json!({
        "ordering_key": ordering_key, "claimed_by": claimed_by, "claimed_until_ms": claimed_until_ms,
        "traceparent": traceparent, "wiped_at_ms": wiped_at_ms, "payload_bytes": payload.len(), "payload": reveal.then_some(payload),
    });
    let deeds = deeds(views.rows(), &line.message_id).map_err(io)?;
    let (mut vendor, mut called) = (Value::Null, Vec::new());
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
        called = calls(inbox, &line.message_id).map_err(io)?;
    }
    let now = now_text(&line, &message, views, settings, line.fate.as_deref()).map_err(io)?;
    if !reveal {
        line.recipient = output::masked(&line.recipient);
    }
    let object = json!({
        "message": line, "source": views.source.as_ref().map(|(name, _)| name), "more": facts, "vendor": vendor, "vendor_visible": views.inbox.is_some(), "calls": called,
        "deeds": deeds, "now": now,
    });
    output::print(&(output::json(&object)? + "\n"))
}
