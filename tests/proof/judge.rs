//! The judge of a world: what the agent says of each message against what the vendor saw and said.
//!
//! It reads both databases when all is at rest. Pure once it has read, so that a planted lie can be shown to it.

use std::collections::HashMap;

use rusqlite::Connection;

use crate::breaking_vendor::{Tally, Told};

/// One call in the log of attempts.
#[derive(Clone, Debug)]
pub struct Call {
    pub outcome: String,
    /// There was a whole status line.
    pub answered: bool,
}

/// What the agent says of one message.
#[derive(Clone, Debug)]
pub struct Fate {
    pub destination: String,
    pub outbox: String,
    pub inbox: Option<String>,
    /// The inbox row was ended by a start or the sweeper: the line of its call says unknown, whatever it told.
    pub given_up: bool,
    pub calls: Vec<Call>,
}

pub type Fates = HashMap<String, Fate>;

/// Reads all of it.
pub fn read(outbox: &Connection, inbox: &Connection) -> Fates {
    let mut fates = Fates::new();
    let mut rows = outbox.prepare("SELECT message_id, destination, status FROM outbox").expect("prepared");
    let listed = rows
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?)))
        .expect("reads")
        .map(|row| row.expect("a row"));
    for (id, destination, outbox) in listed {
        let fate = Fate { destination, outbox, inbox: None, given_up: false, calls: Vec::new() };
        assert!(fates.insert(id, fate).is_none(), "two outbox rows with one id");
    }
    let strange = || Fate {
        destination: "?".into(),
        outbox: "GONE".into(),
        inbox: None,
        given_up: false,
        calls: Vec::new(),
    };
    let mut rows = inbox
        .prepare("SELECT message_id, status, coalesce(settled_by, '') IN ('start', 'sweeper') FROM inbox")
        .expect("prepared");
    let listed = rows
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?)))
        .expect("reads")
        .map(|row| row.expect("a row"));
    for (id, status, given_up) in listed {
        let fate = fates.entry(id).or_insert_with(strange);
        (fate.inbox, fate.given_up) = (Some(status), given_up);
    }
    let mut rows = inbox
        .prepare("SELECT message_id, outcome, http_status IS NOT NULL FROM attempt ORDER BY id")
        .expect("prepared");
    let listed = rows
        .query_map([], |row| {
            Ok((row.get::<_, String>(0)?, Call { outcome: row.get(1)?, answered: row.get(2)? }))
        })
        .expect("reads")
        .map(|row| row.expect("a row"));
    for (id, call) in listed {
        fates.entry(id).or_insert_with(strange).calls.push(call);
    }
    fates
}

/// Messages that are called SENT on an answer that the vendor gave before it had read them: it had said more on that
/// connection than it was asked. HTTP/1.1 numbers no answers, so no client can tell; a new connection for each call can. Only in the
/// experiment that asks for it.
pub fn crossed<'a>(fates: &'a Fates, tally: &Tally) -> Vec<&'a str> {
    let is = |(id, fate): &(&'a String, &Fate)| {
        let last = tally.arrivals.get(*id).and_then(|arrivals| arrivals.last());
        fate.inbox.as_deref() == Some("SENT")
            && last.is_some_and(|last| last.surplus && last.told != Told::Good)
    };
    fates.iter().filter(is).map(|(id, _)| id.as_str()).collect()
}

/// Every contradiction, in words, but for what `crossed` tells. `by_status`: destinations for which any 2xx is a yes.
pub fn faults(fates: &Fates, tally: &Tally, by_status: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    if tally.nameless > 0 {
        faults.push(format!("{} requests without an id", tally.nameless));
    }
    for id in tally.arrivals.keys().filter(|id| !fates.contains_key(*id)) {
        faults.push(format!("{id}: it arrived, and there is no row of it"));
    }
    for (id, fate) in fates {
        let arrivals = tally.arrivals.get(id).map_or(&[][..], Vec::as_slice);
        let mut fault = |text: &str| faults.push(format!("{id}: {text}: {fate:?}, vendor: {arrivals:?}"));
        let last = arrivals.last();
        // The promise.
        let twice = arrivals.iter().rev().skip(1).any(|earlier| earlier.told != Told::NotSent);
        if twice {
            fault("it arrived again although the earlier request was not documented as not sent");
        }
        match (fate.outbox.as_str(), fate.inbox.as_deref()) {
            ("PUBLISHED", Some("SENT")) => {
                let good = last.is_some_and(|last| match last.told {
                    Told::Good => last.whole,
                    Told::Bare => last.whole && by_status(&fate.destination),
                    _ => false,
                });
                if !good && !last.is_some_and(|last| last.surplus) {
                    fault("SENT, but the vendor gave it no whole good answer");
                }
            }
            ("PUBLISHED", Some("FAILED")) if last.is_some_and(|last| last.told == Told::Rejected) => {}
            ("PUBLISHED", Some("FAILED")) => fault("FAILED, but the vendor did not refuse it"),
            // Nobody knows: whatever the vendor saw agrees with that.
            ("PUBLISHED", Some("ERROR")) => {}
            ("PARKED" | "PENDING", None) => {
                if arrivals.iter().any(|arrival| arrival.told != Told::NotSent) {
                    fault("called not sent, but the vendor has it");
                }
            }
            _ => fault("no legal end"),
        }
        // "Not sent" before any request byte: such a call was not seen. One cut off by a kill has its line from the start.
        let may_be_seen =
            fate.calls.iter().filter(|call| call.outcome != "NOT_SENT" || call.answered).count();
        if arrivals.len() > may_be_seen {
            fault("seen more often than the agent says that it asked");
        }
        let open_calls = fate.calls.iter().filter(|call| call.outcome != "NOT_SENT").count();
        if open_calls > 1 {
            fault("more than one call whose outcome is not certainly not sent");
        }
    }
    faults
}
