//! The facts of `show` as one JSON object. Never: a whole number without `--reveal`.

use rusqlite::params;
use serde_json::{Value, json};

use super::deeds;
use super::now::now_text;
use crate::cli::views::{self, Line, Views};
use crate::cli::{Failure, Outcome, output};
use crate::config::Settings;
use crate::exit;
use crate::message::Message;

/// The same facts as one object.
pub(super) fn as_json(
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
