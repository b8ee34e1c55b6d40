//! Room: tells of the clock's leaps within a second, keeps the newest believed time, and hears when a person vouches.
//!
//! Decides nothing: what is thought of the clock is in `trust.rs`, what is held because of it in `policy/`. Writes the
//! marks `clock_*` of the inbox's `onceward_meta` through the inbox's writer; of the outbox it only reads one mark.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use rusqlite::Connection;

use super::trust::News;
use crate::alert::{Alerts, Cause};
use crate::db::writer::{Work, Writer};
use crate::db::{self, Part};
use crate::limits::{CLOCK_LOOK, HEARTBEAT_EVERY};
use crate::store::meta;

/// Inbox: the newest time that was believed.
pub const NEWEST: &str = "clock_newest_ms";
/// Inbox: what is thought of the clock now, for people; empty = believed.
pub const DOUBT: &str = "clock_doubt";
/// Inbox: the last vouching that was heard.
const HEARD: &str = "clock_vouched_heard";
/// Outbox: when a person vouched for the clock (`onceward clock --right`).
pub const VOUCHED: &str = "clock_vouched_at_ms";

/// The newest time that is recorded: the kept mark (rows may have been written while the clock was in doubt), or where
/// there is none the newest call or claim; and what producers wrote while the agent was down, three rows of them, so
/// that a single odd one does not count.
pub fn newest_recorded(inbox: &Connection, outbox: &Connection) -> rusqlite::Result<Option<i64>> {
    let mark = meta::get(inbox, NEWEST)?.and_then(|text| text.parse::<i64>().ok());
    let rows: Option<i64> = inbox.query_row(
        "SELECT coalesce((SELECT started_at_ms FROM attempt ORDER BY id DESC LIMIT 1),
                         (SELECT claimed_at_ms FROM inbox ORDER BY id DESC LIMIT 1))",
        [],
        |row| row.get(0),
    )?;
    let (count, written): (i64, Option<i64>) = outbox.query_row(
        "SELECT count(*), min(created_at_ms) FROM (SELECT created_at_ms FROM outbox ORDER BY id DESC LIMIT 3)",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    Ok(mark.or(rows).max(written.filter(|_| count == 3)))
}

/// Whether a person has vouched since the agent last heard of it. Then older records count no more.
pub fn vouched(inbox: &Connection, outbox: &Connection) -> rusqlite::Result<Option<String>> {
    let said = meta::get(outbox, VOUCHED)?;
    let heard = meta::get(inbox, HEARD)?;
    Ok(said.filter(|said| Some(said) != heard.as_ref()))
}

/// Marks that a vouching was heard.
pub fn hear(inbox: &Connection, vouched: &str) -> rusqlite::Result<()> {
    meta::put(inbox, HEARD, vouched)
}

/// The room.
pub struct ClockWatch {
    /// For the one mark.
    pub outbox: PathBuf,
    /// Keeps the marks.
    pub writer: Writer,
    /// To tell people.
    pub alerts: Alerts,
    /// Its sender's end is the stop.
    pub stop: Receiver<()>,
    /// The vouching that was heard before the start, if any.
    pub heard: Option<String>,
}

impl ClockWatch {
    /// Runs until the stop.
    pub fn run(mut self) {
        let mut kept: Option<Instant> = None;
        let mut doubt = None;
        while self.stop.recv_timeout(CLOCK_LOOK) == Err(RecvTimeoutError::Timeout) {
            let now = super::now();
            if now.doubt.is_some() {
                self.listen();
            }
            let (newest_ms, news) = super::take_news();
            for news in &news {
                self.tell(*news);
            }
            if now.doubt != doubt || kept.is_none_or(|at| at.elapsed() >= HEARTBEAT_EVERY) {
                doubt = now.doubt;
                kept = Some(Instant::now());
                self.writer.submit(Box::new(Keep {
                    newest_ms,
                    doubt: doubt.map_or("", super::Doubt::as_str),
                    heard: self.heard.clone(),
                }));
            }
        }
    }

    fn listen(&mut self) {
        let said = db::open_reader(&self.outbox, Part::Outbox)
            .ok()
            .and_then(|outbox| meta::get(&outbox, VOUCHED).ok().flatten());
        if let Some(said) = said
            && self.heard.as_ref() != Some(&said)
        {
            self.heard = Some(said);
            log::warn!("a person says that the clock is right: it is believed from now on");
            super::vouch();
        }
    }

    fn tell(&self, news: News) {
        match news {
            News::Jumped(by_ms) => {
                let (word, span) =
                    if by_ms < 0 { ("back", by_ms.unsigned_abs()) } else { ("ahead", by_ms.unsigned_abs()) };
                let span = Duration::from_millis(span).as_secs_f64();
                self.alerts.raise(
                    Cause::Clock,
                    "",
                    format!("the clock leapt {word} by {span:.1} s (or the machine slept); claims are not touched by it"),
                );
            }
            News::Doubted(doubt) => self.alerts.raise(
                Cause::Clock,
                "",
                format!(
                    "the clock {}: advertising, deadlines and later due times are held until it is right. \
                     Set it, or say `onceward clock --right`",
                    doubt.as_str()
                ),
            ),
            News::Believed => log::warn!("the clock is believed again: what was held because of it goes on"),
        }
    }
}

/// Work: the marks.
struct Keep {
    newest_ms: Option<i64>,
    doubt: &'static str,
    heard: Option<String>,
}

impl Work for Keep {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if let Some(newest_ms) = self.newest_ms {
            meta::put(connection, NEWEST, &newest_ms.to_string())?;
        }
        if let Some(heard) = &self.heard {
            hear(connection, heard)?;
        }
        meta::put(connection, DOUBT, self.doubt)
    }
    fn committed(self: Box<Self>) {}
    fn failed(self: Box<Self>, _why: &str) {} // the next look writes them again
    fn must_land(&self) -> bool {
        false
    }
}
