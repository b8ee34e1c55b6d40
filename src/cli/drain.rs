//! `drain`: nothing new comes in, what can be sent is sent, the rest is reported; exit 1 if some is left.
//!
//! The mark that refuses new rows is in the outbox file (`store/intake.rs`). It stays after the command, so that the
//! agent can be stopped in peace, and ends at the agent's start, with `drain --end`, or by itself an hour later. Moves no
//! message: the agent sends by its own rules. Applications' own files are waited for and listed, but go on taking rows: a
//! mark in each would have to be taken out of files that may be out of reach by then.

use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::Value;

use super::settings_file::SettingsFile;
use super::views::{self, Views};
use super::{Failure, Outcome, agent_call, dest, output};
use crate::clock::{ms, wall_ms};
use crate::config::Settings;
use crate::db::{self, DbError};
use crate::exit;
use crate::outboxes::Outboxes;
use crate::owner;
use crate::store::audit::{self, Deed};
use crate::store::intake;
use crate::who;

/// How long new rows are refused beyond the time of the command.
const KEPT_CLOSED: Duration = Duration::from_secs(3_600);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Longest `--timeout`.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// Arguments of `drain`.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Args {
    /// Longest wait for what can be sent, e.g. 30s, 10m
    #[arg(long, value_name = "SPAN", group = "what")]
    timeout: Option<String>,
    /// Take new messages again
    #[arg(long, group = "what")]
    end: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let mut outbox = super::enqueue::open(&settings)?;
    let Some(timeout) = args.timeout else {
        let was = mark(&mut outbox, None)?;
        return output::print(if was {
            "new messages are taken again\n"
        } else {
            "nothing was being drained\n"
        });
    };
    let timeout = span(&timeout)?;
    let views = views::open(&settings)?;
    if !is_up(&views, &settings) {
        let text = "the agent is not running: nothing would be sent; start it first (nothing was changed)";
        return Err(Failure::new(exit::UNAVAILABLE, text));
    }
    let until_ms = wall_ms().saturating_add(ms(timeout)).saturating_add(ms(KEPT_CLOSED));
    mark(&mut outbox, Some(until_ms))?;
    drop(outbox);
    let closed = format!(
        "new messages in outbox.db are refused until {}, the agent's next start, or `onceward drain --end`; applications' own files go on taking theirs",
        output::local_time(until_ms, &settings.agent.timezone)
    );
    output::complain!("{closed}");
    let end = Instant::now() + timeout;
    let mut last = None;
    let left = loop {
        let left = count(
            &views,
            &settings,
            wall_ms().saturating_add(ms(end.saturating_duration_since(Instant::now()))),
        )?;
        // Nothing that this wait could bring along is left.
        if left.moving == 0 || Instant::now() >= end {
            break left;
        }
        if last != Some(left.moving) {
            output::complain!("{} to be sent", left.moving);
            last = Some(left.moving);
        }
        std::thread::sleep(LOOK);
    };
    let still = intake::closed_until(&views.outbox, wall_ms())
        .map_err(|error| Failure::new(exit::IO, error.to_string()))?;
    if still.is_none() {
        output::complain!(
            "the drain was ended meanwhile (the agent was started anew, or by `drain --end`): new messages may have come"
        );
    }
    if left.rows.is_empty() && !left.unread {
        output::print(if views.inbox.is_some() {
            "drained: nothing is left\n"
        } else {
            "drained: nothing is left in outbox.db (what waits in applications' own files only the agent's user can see)\n"
        })?;
        return Ok(exit::OK);
    }
    let total: i64 = left.rows.iter().filter_map(|row| row.0).sum();
    let mut table = vec![["LEFT", "STATE", "DESTINATION", "WHY"].map(str::to_owned).to_vec()];
    table.extend(left.rows.into_iter().map(|(count, state, destination, why)| {
        vec![count.map_or("?".into(), |count| count.to_string()), state, destination, why]
    }));
    output::print(&format!(
        "{}{total} left{}; nothing is lost, they go on when they can\n",
        output::table(&table),
        if left.unread { ", and what is in the files that cannot be read" } else { "" }
    ))?;
    Ok(exit::NO)
}

/// Sets or ends the mark, with its audit row. True if rows were refused before.
fn mark(outbox: &mut Connection, until_ms: Option<i64>) -> Result<bool, Failure> {
    let (now_ms, who) = (wall_ms(), who::this_process());
    db::write(outbox, |tx| {
        let was = intake::closed_until(tx, now_ms)?.is_some();
        match until_ms {
            Some(until_ms) => intake::close(tx, until_ms)?,
            None => {
                intake::open(tx, now_ms)?;
            }
        }
        let word = |closed: bool| if closed { "REFUSES" } else { "TAKES" };
        if was || until_ms.is_some() {
            let (verb, before, after) =
                (if until_ms.is_some() { "DRAIN" } else { "DRAIN_END" }, word(was), word(until_ms.is_some()));
            let (who, at_ms) = (who.as_str(), now_ms);
            audit::append(
                tx,
                &Deed { at_ms, who, verb, target: "", destination: "", note: "", before, after },
            )?;
        }
        Ok(was)
    })
    .map_err(|error| {
        let code = if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
        Failure::new(code, format!("the outbox: {error}"))
    })
}

/// By its lock, or by its socket where the lock cannot be seen from here.
fn is_up(views: &Views, settings: &Settings) -> bool {
    owner::holder(&views.state).is_some()
        || matches!(agent_call::get(&settings.listen.socket, "/healthz"), Ok(Some(answer)) if answer.status == 200)
}

struct Left {
    /// Of those, how many may still go before the end.
    moving: i64,
    /// A source could not be read; it is among the rows.
    unread: bool,
    /// Count, state, destination, why.
    rows: Vec<(Option<i64>, String, String, String)>,
}

/// What is not finished in any file; `end_ms` is the end of the wait.
fn count(views: &Views, settings: &Settings, end_ms: i64) -> Result<Left, Failure> {
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let stands = dest::stand(views, settings).map_err(io)?;
    let mut left = Left { moving: 0, unread: false, rows: Vec::new() };
    count_in(&views.outbox, &stands, settings, end_ms, None, &mut left).map_err(io)?;
    let outboxes = Outboxes::read(&views.state.outbox(), views.inbox.as_ref()).map_err(io)?;
    for name in outboxes.sources() {
        let looked = outboxes.named(Some(name)).map_err(Failure::from).and_then(|file| {
            let reader = file.reader()?;
            count_in(&reader, &stands, settings, end_ms, Some(name), &mut left)
                .map_err(|error| DbError::sqlite(file.path(), error).into())
        });
        if let Err(failure) = looked {
            left.unread = true;
            let why = format!("source {name} cannot be read: {}", failure.text);
            left.rows.push((None, String::new(), String::new(), why));
        }
    }
    Ok(left)
}

/// Adds what is not finished in one file; `source` is its name, or none for outbox.db.
fn count_in(
    file: &Connection,
    stands: &[Value],
    settings: &Settings,
    end_ms: i64,
    source: Option<&str>,
    left: &mut Left,
) -> rusqlite::Result<()> {
    let mut statement = file.prepare_cached(
            "SELECT status, destination, blocked, not_before_ms > ?1, count(*) FROM outbox WHERE closed_at_ms IS NULL
              GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        )?;
    let rows = statement.query_map([end_ms], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, i64>(2)?,
            row.get::<_, bool>(3)?,
            row.get::<_, i64>(4)?,
        ))
    })?;
    for row in rows {
        let (status, destination, blocked, later, count) = row?;
        let of = stands.iter().find(|one| one["destination"] == *destination);
        let why_dest = of.and_then(|one| dest::why(one, settings));
        let paused = of.is_some_and(|one| one["state"] == "PAUSED");
        let (moves, why) = match status.as_str() {
            "PUBLISHING" => (true, "is in the agent's hands".to_owned()),
            "PENDING" if paused => (false, why_dest.unwrap_or_default()),
            "PENDING" if later => (false, "due after the end of the wait".into()),
            "PENDING" if blocked == 1 => (false, "behind an earlier message of its order lane".into()),
            "PENDING" if blocked == 2 => (false, "until the clock is right".into()),
            "PENDING" => (true, why_dest.unwrap_or_else(|| "due; the time was too short".into())),
            "HELD" => (false, "held by a person".into()),
            "PARKED" => (false, "waits for a person".into()),
            _ => (false, String::new()),
        };
        if moves {
            left.moving += count;
        }
        let why = source.map_or(why.clone(), |name| format!("source {name}: {why}"));
        left.rows.push((Some(count), status, destination, why));
    }
    Ok(())
}

/// `500ms`, `30s`, `10m`, `2h`.
fn span(text: &str) -> Result<Duration, Failure> {
    let bad =
        || Failure::new(exit::USAGE, "--timeout: a span such as 30s, 10m or 2h was expected, at most 24h");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    let span = Duration::from_millis(number.saturating_mul(unit_ms));
    if span > TIMEOUT_MAX { Err(bad()) } else { Ok(span) }
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn spans_as_people_write_them() {
        for (text, expected) in [
            ("0s", Some(0)),
            ("500ms", Some(500)),
            ("30s", Some(30_000)),
            ("10m", Some(600_000)),
            ("24h", Some(86_400_000)),
            ("25h", None),
            ("30", None),
            ("-1s", None),
            ("", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(span(text).ok().map(|span| span.as_millis()), expected, "{text}");
        }
    }
}
