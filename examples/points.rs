//! A consumer of events that uses `once` and the outbox: a points account in an application's own SQLite
//! file.
//!
//! Reads deliveries as JSON lines from standard input and answers each with a JSON line: whether to
//! acknowledge it, what became of it, and the balance. The broker may send a delivery as often as it likes,
//! to as many of these processes as it likes. `tests/once.rs` runs this very code as processes that are
//! killed on the way.
//!
//! ```sh
//! echo '{"event_id":"E-1","account":"a-7","change":10,"at_ms":1700000000000}' | cargo run --example points -- points.db
//! ```

use std::io::{BufRead, Write};
use std::time::Duration;

use onceward::once::{self, Event, Fingerprint, Once, OnceError};
use onceward::outbox::{EnqueueError, Message, Outbox};
use rusqlite::{Connection, Transaction};
use serde::{Deserialize, Serialize};

/// One delivery. `event_id` names the logical event; the same event may come in many deliveries.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Delivery {
    /// The logical event, 1-200 characters.
    pub event_id: String,
    /// Whose points.
    pub account: String,
    /// Points to add, or to take where negative.
    pub change: i64,
    /// When it happened, UTC milliseconds; the same in every delivery.
    pub at_ms: i64,
    /// A right that exists once, e.g. `a-7/2026-spring/gold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<String>,
    /// The event whose change this one replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrects: Option<String>,
}

/// What the broker is told.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The event that was delivered.
    pub event_id: String,
    /// Whether the broker may forget the delivery.
    pub acknowledge: bool,
    /// What became of it.
    pub answer: String,
    /// The stored result, where the event is applied.
    pub booked: Option<Booked>,
}

/// The stored result of an event.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Booked {
    /// What this event set the customer's change to.
    pub change: i64,
    /// The account after it.
    pub balance: i64,
}

/// What can go wrong with the business itself.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// SQLite.
    #[error(transparent)]
    Database(#[from] rusqlite::Error),
    /// The message to the customer could not be put.
    #[error(transparent)]
    Outbox(#[from] EnqueueError),
    /// Not enough points.
    #[error("the account would be below zero")]
    BelowZero,
    /// The application's rule for corrections.
    #[error("the event that it corrects is about another account, or was corrected already")]
    NotCorrectable,
}

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS account (id TEXT PRIMARY KEY, points INTEGER NOT NULL CHECK (points >= 0));
CREATE TABLE IF NOT EXISTS ledger (
  id INTEGER PRIMARY KEY, event_id TEXT NOT NULL, account TEXT NOT NULL, change INTEGER NOT NULL,
  corrected_by TEXT
);";

/// Opens the application's file with its tables, the markers and an outbox, all in one.
pub fn open(
    file: &str,
    journal_mode: &str,
    busy: Duration,
) -> Result<Connection, Box<dyn std::error::Error>> {
    let mut connection = Connection::open(file)?;
    connection.busy_timeout(busy)?;
    connection.pragma_update(None, "journal_mode", journal_mode)?;
    connection.execute_batch(TABLES)?;
    once::install(&mut connection)?;
    Outbox::install(&mut connection)?;
    Ok(connection)
}

/// Works deliveries off until the input ends.
pub fn work(
    connection: &mut Connection,
    consumer: &str,
    input: impl BufRead,
    mut output: impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    for line in input.lines() {
        let answer = take(connection, consumer, &serde_json::from_str(&line?)?);
        writeln!(output, "{}", serde_json::to_string(&answer)?)?;
        output.flush()?;
    }
    Ok(())
}

/// One delivery: once, then the acknowledgement.
fn take(connection: &mut Connection, consumer: &str, delivery: &Delivery) -> Answer {
    // Rule 1: publisher, account, change, time. Another rule gets another number.
    let parts = ["points", &delivery.account, &delivery.change.to_string(), &delivery.at_ms.to_string()];
    let fingerprint = Fingerprint::of(1, &parts);
    let mut event = Event::new(consumer, &delivery.event_id, &fingerprint).occurred_at_ms(delivery.at_ms);
    if let Some(right) = &delivery.right {
        event = event.effect_key(right);
    }
    if let Some(corrected) = &delivery.corrects {
        event = event.corrects(corrected);
    }
    let result = event.once(connection, |tx| book(tx, consumer, delivery));
    let acknowledge = matches!(&result, Ok(answer) if answer.may_acknowledge());
    let (answer, booked) = match result {
        Ok(Once::Applied(booked)) => ("applied".into(), Some(booked)),
        Ok(Once::Repeated(booked)) => ("repeated".into(), Some(booked)),
        Ok(Once::NotYet) => ("not yet".into(), None),
        Ok(Once::Refused(refusal)) => (refusal.as_str().into(), None),
        Err(OnceError::TryAgain(_)) => ("try again".into(), None),
        Err(error) => (error.to_string(), None),
    };
    Answer { event_id: delivery.event_id.clone(), acknowledge, answer, booked }
}

/// The effect: account, ledger and the message to the customer, inside the transaction of the marker.
fn book(tx: &Transaction<'_>, consumer: &str, delivery: &Delivery) -> Result<Booked, Refused> {
    let mut change = delivery.change;
    if let Some(corrected) = &delivery.corrects {
        let replaced = tx.execute(
            "UPDATE ledger SET corrected_by = ?2 WHERE event_id = ?1 AND account = ?3 AND corrected_by IS NULL",
            [corrected, &delivery.event_id, &delivery.account],
        )?;
        let first = once::result_of::<Booked>(tx, consumer, corrected).ok().flatten();
        let (1, Some(first)) = (replaced, first) else { return Err(Refused::NotCorrectable) };
        change -= first.change;
    }
    // Read inside the transaction what is changed in it: no other event can come in between.
    tx.execute(
        "INSERT INTO account (id, points) VALUES (?1, 0) ON CONFLICT (id) DO NOTHING",
        [&delivery.account],
    )?;
    let before: i64 =
        tx.query_row("SELECT points FROM account WHERE id = ?1", [&delivery.account], |row| row.get(0))?;
    let balance = before + change;
    if balance < 0 {
        return Err(Refused::BelowZero);
    }
    tx.execute("UPDATE account SET points = ?2 WHERE id = ?1", rusqlite::params![delivery.account, balance])?;
    tx.execute(
        "INSERT INTO ledger (event_id, account, change) VALUES (?1, ?2, ?3)",
        rusqlite::params![delivery.event_id, delivery.account, change],
    )?;
    let text = serde_json::json!({ "account": delivery.account, "change": change, "balance": balance });
    let message =
        Message::new(format!("POINTS:{}", delivery.event_id), "POINTS", "01000000001", text.to_string());
    Outbox::enqueue(tx, &message)?;
    Ok(Booked { change: delivery.change, balance })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: points FILE < deliveries.jsonl")?;
    let mut connection = open(&file, "WAL", Duration::from_secs(5))?;
    work(&mut connection, "points", std::io::stdin().lock(), std::io::stdout().lock())
}
