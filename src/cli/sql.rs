//! `sql`: questions in SQL over both databases, read-only, with views for people.
//!
//! Never holds a lock: a statement's rows are read to their end (within bounds of number, size and time) before the first
//! is printed, and at the prompt no statement is open. Nothing can be written: the files are opened read-only, and only
//! statements that read are run.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, ToSql};
use serde_json::{Map, Value, json};

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, filter, output, views};
use crate::exit;

/// Most rows of one answer.
const ROWS_MAX: usize = 100_000;
/// Most text of one answer, bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The views; `messages` and what follows it in either form.
const VIEWS: &str = "
CREATE TEMP VIEW waiting AS SELECT * FROM messages WHERE closed IS NULL;
CREATE TEMP VIEW quarantined AS
SELECT id, local(at_ms) AS at, dedup_key AS key, first_message_id, kind, destination, masked(recipient) AS recipient,
       length(CAST(payload AS BLOB)) AS payload_bytes, reason FROM main.quarantine;
CREATE TEMP VIEW deeds AS
SELECT local(at_ms) AS at, who, verb, target, destination, note, state_before, state_after FROM main.audit;
";
const OUTBOX_COLUMNS: &str = "o.id, o.message_id, o.dedup_key AS key, said(o.status) AS state, o.destination, o.kind, o.class,
       masked(o.recipient) AS recipient, o.priority, o.attempts, o.reason, o.blocked, local(o.created_at_ms) AS created,
       local(o.not_before_ms) AS due, local(o.expires_at_ms) AS deadline, local(o.closed_at_ms) AS closed";
const INBOX_VIEWS: &str = "
CREATE TEMP VIEW trouble AS SELECT * FROM messages
 WHERE state IN ('PARKED', 'EXPIRED', 'SKIPPED') OR fate IN ('ERROR', 'FAILED') OR delivery = 'UNDELIVERED';
CREATE TEMP VIEW calls AS
SELECT id, message_id, consumer AS destination, local(started_at_ms) AS started, outcome, http_status, vendor_code AS code,
       waiting_us / 1000.0 AS waiting_ms, connecting_us / 1000.0 AS connecting_ms, answering_us / 1000.0 AS answering_ms,
       reason FROM vendor.attempt;
CREATE TEMP VIEW today AS SELECT day, consumer AS destination, what, count FROM vendor.tally
 WHERE day = (SELECT max(day) FROM vendor.tally);
CREATE TEMP VIEW alerts AS SELECT cause, destination, count AS times, local(first_at_ms) AS first, local(last_at_ms) AS last,
       last_text FROM vendor.alert;
";

/// Arguments of `sql`.
#[derive(clap::Args)]
#[command(
    after_help = "Views with local times and masked numbers: messages, waiting, trouble, calls, today, alerts, quarantined, deeds. \
                  The tables stand behind them (outbox, quarantine, audit of outbox.db; vendor.inbox, vendor.attempt, ... of inbox.db); \
                  local(MS), masked(NUMBER) and said(STATUS) are functions. Without QUERY statements are read from standard input, each \
                  ended by a semicolon."
)]
pub struct Args {
    /// One statement, e.g. 'SELECT state, count(*) FROM messages GROUP BY 1'
    query: Option<String>,
    /// One JSON object a row
    #[arg(long)]
    json: bool,
    /// A statement that takes longer is broken off, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let views = views::open_joined(file, &settings)?;
    prepare(&views, &settings.agent.timezone).map_err(Failure::io)?;
    let shell = Shell {
        connection: views.connection,
        json: args.json,
        timeout: Duration::from_secs(u64::from(args.timeout)),
    };
    match args.query {
        Some(query) => {
            let (mut rest, mut code) = (query.as_str(), exit::OK);
            while let Some((statement, after)) = next_statement(rest, true) {
                code = code.max(shell.answer(statement)?);
                rest = after;
            }
            Ok(code)
        }
        None => shell.converse(),
    }
}

/// Functions and views of this connection alone; nothing of it reaches a file.
fn prepare(views: &views::Joined, zone: &jiff::tz::TimeZone) -> rusqlite::Result<()> {
    let connection = &views.connection;
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    let zone = zone.clone();
    connection.create_scalar_function("local", 1, flags, move |context| {
        let ms: Option<i64> = context.get(0)?;
        Ok(ms.map(|ms| output::local_time(ms, &zone)))
    })?;
    connection.create_scalar_function("masked", 1, flags, |context| {
        let number: Option<String> = context.get(0)?;
        Ok(number.map(|number| output::masked(&number)))
    })?;
    connection.create_scalar_function("said", 1, flags, |context| {
        let status: Option<String> = context.get(0)?;
        Ok(status.map(|status| filter::said(&status).to_owned()))
    })?;
    let messages = if views.inbox {
        format!(
            "CREATE TEMP VIEW messages AS SELECT {OUTBOX_COLUMNS}, i.status AS fate, i.delivery, i.vendor_code AS code,
                    i.vendor_ref, i.reason AS vendor_reason, local(i.claimed_at_ms) AS called, i.settled_by
               FROM main.outbox AS o LEFT JOIN vendor.inbox AS i ON i.consumer = o.destination AND i.message_id = o.message_id;
             {INBOX_VIEWS}"
        )
    } else {
        format!("CREATE TEMP VIEW messages AS SELECT {OUTBOX_COLUMNS} FROM main.outbox AS o;")
    };
    connection.execute_batch(&format!("{messages}{VIEWS}"))
}

struct Shell {
    connection: Connection,
    json: bool,
    timeout: Duration,
}

impl Shell {
    /// Statements from standard input. At a terminal a mistake is said and the next one read; elsewhere it ends it.
    fn converse(&self) -> Outcome {
        let terminal = std::io::stdin().is_terminal();
        let (mut text, mut code) = (String::new(), exit::OK);
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if terminal {
                let prompt = if text.trim().is_empty() { "onceward> " } else { "     ...> " };
                let mut out = std::io::stdout();
                let _ = out.write_all(prompt.as_bytes()).and_then(|()| out.flush());
            }
            let line = lines
                .next()
                .transpose()
                .map_err(|error| Failure::new(exit::IO, format!("standard input: {error}")))?;
            let ended = line.is_none();
            let line = line.unwrap_or_default();
            if text.trim().is_empty() && matches!(line.trim(), ".quit" | ".exit") {
                return Ok(code);
            }
            text.push_str(&line);
            text.push('\n');
            let mut rest = text.as_str();
            while let Some((statement, after)) = next_statement(rest, ended) {
                match self.answer(statement) {
                    Ok(answer) => code = code.max(answer),
                    Err(failure) if terminal => output::complain!("{}", output::plain_lines(&failure.text)),
                    Err(failure) => return Err(failure),
                }
                rest = after;
            }
            text = rest.to_owned();
            if ended {
                return Ok(code);
            }
        }
    }

    /// Reads everything, then prints it. 1 where the answer had to be cut.
    fn answer(&self, sql: &str) -> Outcome {
        let first = first_word(sql);
        if !["SELECT", "WITH", "VALUES", "EXPLAIN"].contains(&first.as_str()) {
            let text = format!(
                "{first}: only SELECT, WITH, VALUES and EXPLAIN are answered here (pragmas: SELECT * FROM pragma_table_info('outbox'))"
            );
            return Err(Failure::new(exit::USAGE, text));
        }
        let wrong = |error: rusqlite::Error| match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => {
                let text =
                    format!("broken off after {} s; ask for less, or give --timeout", self.timeout.as_secs());
                Failure::new(exit::TRY_AGAIN, text)
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt) => {
                Failure::io(error)
            }
            _ => Failure::new(exit::DATA, error.to_string()),
        };
        let mut statement = self.connection.prepare(sql).map_err(wrong)?;
        if !statement.readonly() {
            return Err(Failure::new(exit::USAGE, "this statement would write; sql only reads"));
        }
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let _end = self.alarm()?;
        let (mut found, mut bytes, mut cut) = (Vec::new(), 0usize, false);
        let mut rows = statement.query([]).map_err(wrong)?;
        while let Some(row) = rows.next().map_err(wrong)? {
            let mut cells = Vec::with_capacity(names.len());
            for column in 0..names.len() {
                let value = value(row.get_ref(column).map_err(wrong)?);
                bytes += value.as_str().map_or(8, str::len);
                cells.push(value);
            }
            found.push(cells);
            if found.len() >= ROWS_MAX || bytes >= ANSWER_BYTES_MAX {
                cut = rows.next().map_err(wrong)?.is_some();
                break;
            }
        }
        drop(rows);
        drop(statement);
        let out = if self.json { as_json(&names, &found)? } else { as_table(names, &found) };
        output::print(&out)?;
        if cut {
            output::complain!("cut after {} rows: use LIMIT, or a WHERE that leaves less", found.len());
            return Ok(exit::NO);
        }
        Ok(exit::OK)
    }

    /// Breaks the running statement off when its time is over, unless dropped before.
    fn alarm(&self) -> Result<crossbeam_channel::Sender<()>, Failure> {
        let (done, wait) = crossbeam_channel::bounded::<()>(0);
        let (handle, timeout) = (self.connection.get_interrupt_handle(), self.timeout);
        crate::thread::spawn("sql-alarm", move || {
            if wait.recv_timeout(timeout) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
                handle.interrupt();
            }
        })
        .map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
        Ok(done)
    }
}

/// Rows as objects under their columns' names.
pub fn objects(connection: &Connection, sql: &str, params: &[&dyn ToSql]) -> rusqlite::Result<Vec<Value>> {
    let mut statement = connection.prepare(sql)?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = statement.query(params)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let mut object = Map::new();
        for (at, name) in names.iter().enumerate() {
            object.insert(name.clone(), value(row.get_ref(at)?));
        }
        all.push(object.into());
    }
    Ok(all)
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(text) => json!(String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

fn as_json(names: &[String], rows: &[Vec<Value>]) -> Result<String, Failure> {
    let mut out = String::new();
    for row in rows {
        let object: Map<String, Value> = names.iter().cloned().zip(row.iter().cloned()).collect();
        out.push_str(&(output::json(&object)? + "\n"));
    }
    Ok(out)
}

fn as_table(names: Vec<String>, rows: &[Vec<Value>]) -> String {
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut table = vec![names];
    table.extend(rows.iter().map(|row| row.iter().map(cell).collect()));
    output::table(&table)
}

/// The first word in capitals, behind space and comments.
fn first_word(sql: &str) -> String {
    let mut rest = sql.trim_start();
    loop {
        rest = match (rest.strip_prefix("--"), rest.strip_prefix("/*")) {
            (Some(comment), _) => comment.split_once('\n').map_or("", |(_, after)| after),
            (_, Some(comment)) => comment.split_once("*/").map_or("", |(_, after)| after),
            _ => break,
        }
        .trim_start();
    }
    rest.chars().take_while(char::is_ascii_alphabetic).collect::<String>().to_ascii_uppercase()
}

/// The next statement and what follows it: up to a semicolon outside quotes and comments, or to the end of the text
/// where no more can come. `None` where there is none (yet).
fn next_statement(text: &str, ended: bool) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    let past =
        |from: usize, end: &str| text[from..].find(end).map_or(bytes.len(), |found| from + found + end.len());
    while at < bytes.len() {
        at = match bytes[at] {
            b';' => {
                let (statement, rest) = (&text[..at], &text[at + 1..]);
                // An empty statement is none.
                if first_word(statement).is_empty() && statement.trim().is_empty() {
                    return next_statement(rest, ended);
                }
                return Some((statement, rest));
            }
            // A doubled quote inside ends and begins again: the same.
            quote @ (b'\'' | b'"' | b'`') => past(at + 1, std::str::from_utf8(&[quote]).unwrap_or("'")),
            b'[' => past(at + 1, "]"),
            b'-' if bytes[at..].starts_with(b"--") => past(at + 2, "\n"),
            b'/' if bytes[at..].starts_with(b"/*") => past(at + 2, "*/"),
            _ => at + 1,
        };
    }
    (ended && !text.trim().is_empty() && !first_word(text).is_empty()).then_some((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_outside_quotes_and_comments() {
        let all = |text: &str, ended: bool| {
            let (mut rest, mut found) = (text, Vec::new());
            while let Some((statement, after)) = next_statement(rest, ended) {
                found.push(statement.trim().to_owned());
                rest = after;
            }
            found
        };
        assert_eq!(all("SELECT 1; SELECT 2;", false), ["SELECT 1", "SELECT 2"]);
        assert_eq!(
            all("SELECT ';', \"a;b\", [c;d], 'it''s;' -- ;\n /* ; */ + 1; rest", false),
            ["SELECT ';', \"a;b\", [c;d], 'it''s;' -- ;\n /* ; */ + 1"]
        );
        assert_eq!(all("SELECT 1", false), [""; 0]);
        assert_eq!(all(";; SELECT 1\n", true), ["SELECT 1"]);
        assert_eq!(all("-- nothing\n", true), [""; 0]);
        assert_eq!(all("SELECT 'open", true), ["SELECT 'open"]);
    }

    #[test]
    fn the_first_word_is_found_behind_comments() {
        for (sql, word) in [
            ("  select 1", "SELECT"),
            ("-- DELETE\n/* x */ with a as (select 1) delete from b", "WITH"),
            ("", ""),
            ("(select 1)", ""),
        ] {
            assert_eq!(first_word(sql), word);
        }
    }
}
