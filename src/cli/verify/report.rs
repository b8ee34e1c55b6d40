//! What `verify` found, and how it is said: as one JSON object, or in lines for people.
//!
//! Never: a database; whoever looks adds what was seen.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Faults that are kept for the list; more are only counted.
const LISTED_MAX: usize = 1_000;
/// Counts by state.
pub(super) type Counts = BTreeMap<String, i64>;

#[derive(Default)]
pub(super) struct Report {
    pub(super) accepted: i64,
    pub(super) there: Counts,
    pub(super) let_go: Counts,
    pub(super) unused_ids: i64,
    pub(super) quarantined: i64,
    pub(super) rechecks: i64,
    pub(super) inbox: Counts,
    pub(super) inbox_let_go: Counts,
    pub(super) open: Counts,
    pub(super) heals: Counts,
    pub(super) faults: Vec<(String, String)>,
    pub(super) more_faults: usize,
    pub(super) sound: Vec<String>,
    /// Sources of whose messages nothing is said, and why.
    pub(super) unproven: Vec<(String, String)>,
}

impl Report {
    pub(super) fn fault(&mut self, what: impl Into<String>, text: impl Into<String>) {
        if self.faults.len() < LISTED_MAX {
            self.faults.push((what.into(), text.into()));
        } else {
            self.more_faults += 1;
        }
    }

    /// A source that is out of reach is no fault of the books, but nothing can be said of its messages.
    pub(super) fn unproven(&mut self, name: &str, why: &str) {
        self.unproven.push((name.to_owned(), why.to_owned()));
    }
}

pub(super) fn as_json(report: &Report, inbox_read: bool, took_ms: u128) -> Value {
    json!({
        "ok": report.faults.is_empty() && report.unproven.is_empty() && inbox_read, "inbox_read": inbox_read, "accepted": report.accepted,
        "there": report.there, "let_go": report.let_go, "unused_ids": report.unused_ids,
        "quarantined": report.quarantined, "rechecks": report.rechecks, "inbox": report.inbox,
        "inbox_let_go": report.inbox_let_go, "open": report.open, "heals": report.heals, "sound": report.sound,
        "unproven": report.unproven.iter().map(|(what, why)| json!({ "what": what, "why": why })).collect::<Vec<_>>(),
        "faults": report.faults.iter().map(|(what, text)| json!({ "what": what, "text": text })).collect::<Vec<_>>(),
        "more_faults": report.more_faults, "took_ms": took_ms as u64,
    })
}

pub(super) fn for_people(report: &Report, inbox_read: bool, took_ms: u128) -> String {
    let list = |counts: &Counts| {
        if counts.is_empty() {
            return "none".to_owned();
        }
        counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut out = String::new();
    let mut say = |name: &str, text: String| out.push_str(&format!("{name:<11}{text}\n"));
    say("accepted", format!("{} messages", report.accepted));
    say("there", list(&report.there));
    say("let go", format!("{} (by retention)", list(&report.let_go)));
    if inbox_read {
        say("inbox", list(&report.inbox));
        // The ledger counts rows that went by their state, not by why.
        say("let go", format!("{} (by retention, or proven not sent)", list(&report.inbox_let_go)));
    } else {
        say("inbox", "NOT READ: this user may not".into());
    }
    if report.quarantined > 0 {
        say("quarantine", format!("{} rows: same key, other content", report.quarantined));
    }
    if report.rechecks > 0 {
        say(
            "compare",
            format!(
                "{} repeats in another text, or of wiped messages, wait for the agent to compare them",
                report.rechecks
            ),
        );
    }
    for (text, count) in &report.open {
        say("open", format!("{count} {text}"));
    }
    for (text, count) in &report.heals {
        say("heals", format!("{count} {text}"));
    }
    for file in &report.sound {
        say("checked", file.clone());
    }
    for (what, why) in &report.unproven {
        say("NOT PROVEN", format!("{what} cannot be read: {why}"));
    }
    for (what, text) in &report.faults {
        say("FAULT", format!("{what} {text}"));
    }
    if report.more_faults > 0 {
        say("FAULT", format!("and {} more", report.more_faults));
    }
    let faults = report.faults.len() + report.more_faults;
    let verdict = match (faults, inbox_read) {
        (0, true) if !report.unproven.is_empty() => {
            format!("what could be read is in order; NOT proven: {} sources", report.unproven.len())
        }
        (0, true) => "every message is in one state, all files agree, nothing vanished".to_owned(),
        (0, false) => "the outbox adds up; that both files agree is NOT proven".to_owned(),
        _ => format!("{faults} FAULTS"),
    };
    say("verdict", format!("{verdict} ({took_ms} ms)"));
    out
}
