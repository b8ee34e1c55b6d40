//! Reports: the webhook's body and the polled list, to rows. What is read is stored, once; what all of them make of a
//! message does not depend on their order; what cannot be read is said without a value.

use crossbeam_channel::bounded;
use rusqlite::Connection;
use serde_json::Value;

use super::world::{is_plain, line, tables, tells_no_number};
use crate::db::Part;
use crate::db::writer::Work;
use crate::lifecycle::{InboxEvent, InboxState};
use crate::listen::reports;
use crate::message::Destination;
use crate::report::intake::{TakeIn, Taken};
use crate::report::{self, Report, Said, Verdict, Way};

/// A body, as the webhook gets it; and as one entry of a polled list for each line.
pub(super) fn run(bytes: &[u8]) {
    let input = String::from_utf8_lossy(bytes);
    match reports::read(bytes) {
        Err(why) => {
            is_plain(&why.0);
            tells_no_number(&why.0, &input);
        }
        Ok(posted) => {
            let list = posted.reports;
            assert!(list.len() <= 1_000 && posted.readable <= list.len());
            assert_eq!(posted.why.is_some(), posted.readable < list.len());
            if let Some(why) = posted.why {
                is_plain(&why.0);
                tells_no_number(&why.0, &input);
            }
            taken(&list);
            settled(&list);
        }
    }
    let (first, _) = line(bytes);
    if let Ok(value) = serde_json::from_slice::<Value>(first) {
        either_case(&value);
    }
}

#[track_caller]
fn bounded_fields(report: &Report) {
    let optional = report.vendor_ref.iter();
    for text in
        [&report.vendor_item, &report.medium, &report.reference, &report.code].into_iter().chain(optional)
    {
        assert!(text.chars().count() <= 100, "{text:?}");
        is_plain(text);
    }
    assert!(!report.vendor_item.is_empty() && !report.code.is_empty());
}

/// The webhook's keys are in upper case, the poll's in lower: the same report.
fn either_case(value: &Value) {
    let Value::Object(fields) = value else { return };
    let with = |change: fn(&str) -> String| -> serde_json::Map<String, Value> {
        fields.iter().map(|(key, value)| (change(key), value.clone())).collect()
    };
    let (upper, lower) = (with(str::to_ascii_uppercase), with(str::to_ascii_lowercase));
    // A key in both cases says two things.
    if upper.len() == fields.len() {
        let (a, b) = (report::normalise(&Value::Object(upper)), report::normalise(&Value::Object(lower)));
        assert_eq!(a, b, "the case of its keys");
        if let Ok(report) = report::normalise(value) {
            assert_eq!(a.as_ref(), Ok(&report));
            bounded_fields(&report);
        }
    } else if ["MSGID", "RESULT", "REFKEY", "MEDIA", "CMSGID"]
        .iter()
        .any(|name| fields.keys().filter(|key| key.eq_ignore_ascii_case(name)).count() > 1)
    {
        assert!(report::normalise(value).is_err(), "a field that is named twice was believed");
    }
}

/// The table takes what was read; the same again changes nothing but its count.
fn taken(list: &[Report]) {
    thread_local!(static INBOX: Connection = tables(Part::Inbox));
    for report in list {
        bounded_fields(report);
    }
    let apply = |inbox: &Connection| {
        let (reply, _answer) = bounded(1);
        let mut work = TakeIn {
            destinations: vec![Destination::new("biz")],
            reports: list.to_vec(),
            way: Way::Webhook,
            day: "2026-11-30".into(),
            reply,
            effects: Vec::new(),
        };
        work.apply(inbox).map(|()| work.effects)
    };
    INBOX.with(|inbox| {
        let result = inbox.execute_batch("BEGIN").and_then(|()| {
            let first = apply(inbox)?;
            assert_eq!(first.len(), list.len());
            let rows: i64 = inbox.query_row("SELECT count(*) FROM report", [], |row| row.get(0))?;
            let again = apply(inbox)?;
            assert!(again.iter().all(|effect| effect.taken == Taken::Repeat), "the vendor says it again");
            let same: i64 = inbox.query_row("SELECT count(*) FROM report", [], |row| row.get(0))?;
            assert_eq!((rows, rows <= list.len() as i64), (same, true));
            Ok(())
        });
        if let Err(error) = result.and(inbox.execute_batch("ROLLBACK")) {
            panic!("a report was read that the table refuses: {error}");
        }
    });
}

/// The table of `report.rs`: forwards and backwards the same end, one delivery is enough, and doubt settles nothing.
fn settled(list: &[Report]) {
    let said = |report: &Report| Said {
        verdict: report.verdict,
        code: report.code.clone(),
        meaning: report.meaning.to_owned(),
    };
    let forwards: Vec<Said> = list.iter().map(said).collect();
    let backwards: Vec<Said> = list.iter().rev().map(said).collect();
    let any = |verdict| forwards.iter().any(|said| said.verdict == verdict);
    for state in [InboxState::Sending, InboxState::Error, InboxState::Sent, InboxState::Failed] {
        let end = |said: &[Said]| report::settle(state, said).map(|end| (end.event, end.delivery));
        let found = end(&forwards);
        assert_eq!(found, end(&backwards), "{state:?}: by the order");
        let expected = match state {
            InboxState::Sending => None,
            _ if any(Verdict::Delivered) => Some(Verdict::Delivered),
            _ if any(Verdict::Undelivered) => Some(Verdict::Undelivered),
            _ => None,
        };
        assert_eq!(found.map(|(_, delivery)| delivery), expected, "{state:?}");
        if let Some((event, delivery)) = found {
            assert!(event != InboxEvent::SettleSent || delivery == Verdict::Delivered);
            assert!(
                event != InboxEvent::NotSent && event != InboxEvent::SettleNotSent,
                "a report re-arms nothing"
            );
        }
    }
}
