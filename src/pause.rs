//! An operator's pause of destinations, and its end: one transaction on the inbox with an audit row for each.
//!
//! Used by `onceward pause` and `resume`, through the agent's socket or, while it is down, themselves. Never tells the
//! gate: a running agent does that after the commit (`listen/destinations.rs`), a start reads the table.

use rusqlite::Connection;

use crate::store::audit::{self, Deed};
use crate::store::destination::{self, Known};

/// In the place of a name: every destination.
pub const ALL: &str = "ALL";
/// Longest reason, characters.
pub const REASON_CHARS_MAX: usize = 500;

/// What is wrong with a reason, if anything: it is shown in terminals, and a pause needs one.
pub fn unfit(reason: &str, paused: bool) -> Option<&'static str> {
    if paused && reason.trim().is_empty() {
        Some("is empty: say why, for whoever finds it paused")
    } else if reason.chars().count() > REASON_CHARS_MAX {
        Some("is longer than 500 characters")
    } else if reason.chars().any(char::is_control) {
        Some("has control characters or line ends")
    } else {
        None
    }
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pause {
    /// Destinations.
    pub names: Vec<String>,
    /// Pause, or resume.
    pub paused: bool,
    /// Why; a resume may have none.
    pub reason: String,
    /// Who, as `who.rs` names them.
    pub by: String,
}

/// What became of one destination.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Done {
    /// Its name.
    pub destination: String,
    /// It stands otherwise than before.
    pub moved: bool,
}

/// The destinations that are meant by a name or [`ALL`]: those of the settings, and those that only the table still has.
/// `None` = no such destination.
pub fn meant(name: &str, settings: &[&str], known: &[Known]) -> Option<Vec<String>> {
    let mut all: Vec<String> = settings.iter().map(|name| (*name).to_owned()).collect();
    for row in known {
        // Left out of the settings since: only a pause of it is still of interest.
        if row.standing.paused.is_some() && !all.contains(&row.name) {
            all.push(row.name.clone());
        }
    }
    if name == ALL {
        return Some(all);
    }
    all.into_iter().find(|one| one == name).map(|one| vec![one])
}

/// Pauses or resumes, inside the caller's transaction on the inbox.
pub fn apply(tx: &Connection, pause: &Pause, now_ms: i64) -> rusqlite::Result<Vec<Done>> {
    let why = pause.paused.then_some(pause.reason.as_str());
    let mut all = Vec::new();
    for name in &pause.names {
        let before = destination::get(tx, name)?;
        let moved = destination::pause(tx, name, why, &pause.by, now_ms)?;
        if moved {
            let after = destination::get(tx, name)?;
            audit::append(
                tx,
                &Deed {
                    at_ms: now_ms,
                    who: &pause.by,
                    verb: if pause.paused { "PAUSE" } else { "RESUME" },
                    target: "",
                    destination: name,
                    note: &pause.reason,
                    before: &stands(before.as_ref()),
                    after: &stands(after.as_ref()),
                },
            )?;
        }
        all.push(Done { destination: name.clone(), moved });
    }
    Ok(all)
}

fn stands(known: Option<&Known>) -> String {
    match known.and_then(|known| known.standing.paused.as_ref()) {
        Some(why) => format!("PAUSED: {why}"),
        None => "NOT PAUSED".to_owned(),
    }
}

/// One line for each destination.
pub fn said(all: &[Done], paused: bool) -> String {
    let line = |done: &Done| {
        let text = match (done.moved, paused) {
            (true, true) => "paused",
            (false, true) => "is paused already, for the same reason",
            (true, false) => "resumed",
            (false, false) => "is not paused",
        };
        format!("{} {text}\n", done.destination)
    };
    all.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Part, migrate};

    fn inbox() -> Connection {
        let connection = Connection::open_in_memory().expect("opens");
        connection.execute_batch(migrate::schema(Part::Inbox)).expect("made");
        connection
    }
    fn ask(paused: bool, reason: &str) -> Pause {
        Pause { names: vec!["gw".into()], paused, reason: reason.into(), by: "uid 1 (hana)".into() }
    }

    #[test]
    fn each_change_has_its_audit_row_and_a_repeat_has_none() {
        let inbox = inbox();
        let mut moved = Vec::new();
        for (paused, reason) in
            [(true, "work"), (true, "work"), (true, "longer"), (false, "done"), (false, "done")]
        {
            moved.push(apply(&inbox, &ask(paused, reason), 7).expect("runs")[0].moved);
        }
        assert_eq!(moved, [true, false, true, true, false]);
        let rows: Vec<String> = inbox
            .prepare("SELECT who || ' ' || verb || ' ' || destination || ' ' || note || ': ' || state_before || ' -> ' || state_after FROM audit ORDER BY id")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .expect("reads");
        assert_eq!(
            rows,
            [
                "uid 1 (hana) PAUSE gw work: NOT PAUSED -> PAUSED: work",
                "uid 1 (hana) PAUSE gw longer: PAUSED: work -> PAUSED: longer",
                "uid 1 (hana) RESUME gw done: PAUSED: longer -> NOT PAUSED",
            ]
        );
    }

    #[test]
    fn reasons_that_nobody_could_read_are_refused() {
        for (reason, paused, fit) in [
            ("why", true, true),
            ("", false, true),
            (" ", true, false),
            ("a\u{1b}[2J", true, false),
            ("two\nlines", false, false),
            (&"x".repeat(REASON_CHARS_MAX), true, true),
            (&"x".repeat(REASON_CHARS_MAX + 1), true, false),
        ] {
            assert_eq!(unfit(reason, paused).is_none(), fit, "{reason:?}");
        }
    }

    #[test]
    fn a_destination_that_left_the_settings_can_still_be_resumed() {
        let inbox = inbox();
        apply(&inbox, &ask(true, "work"), 7).expect("runs");
        let known = destination::all(&inbox).expect("reads");
        assert_eq!(meant("gw", &["biz"], &known), Some(vec!["gw".into()]));
        assert_eq!(meant(ALL, &["biz"], &known), Some(vec!["biz".into(), "gw".into()]));
        assert_eq!(meant("other", &["biz"], &known), None);
    }
}
