//! Whether a file is sound: structure, indexes and CHECKs, table by table.
//!
//! Never: keeps an old state of a file open beside a running agent for longer than its bound.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rusqlite::{Connection, ErrorCode};

use super::report::Report;

/// Structure, indexes and CHECKs of one file, table by table: each a read transaction of its own, ended after `bound`.
pub(super) fn sound(
    connection: &Connection,
    path: &Path,
    bound: Option<Duration>,
    report: &mut Report,
    bar: &ProgressBar,
) -> rusqlite::Result<()> {
    let begun = Instant::now();
    let mut tables = vec!["sqlite_schema".to_owned()]; // it stands for the list of free pages too
    tables.extend(
        connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name")?
            .query_map([], |row| row.get::<_, String>(0))?
            .collect::<rusqlite::Result<Vec<_>>>()?,
    );
    let mut words = "integrity_check";
    for table in &tables {
        bar.set_message(format!("{}: {table}", path.display()));
        let quoted = table.replace('\'', "''");
        let mut found = bounded(connection, bound, &format!("PRAGMA integrity_check('{quoted}')"))?;
        if found.is_none() {
            // Without the comparison of each index with its table it is several times as fast.
            words = "quick_check for some tables: the whole takes longer than --lock-time";
            found = bounded(connection, bound, &format!("PRAGMA quick_check('{quoted}')"))?;
        }
        match found {
            None => report.fault(
                path.display().to_string(),
                format!("{table} could not be checked within --lock-time; give it more in a quiet hour, or stop the agent"),
            ),
            Some(lines) => {
                for line in lines.iter().filter(|line| *line != "ok") {
                    report.fault(path.display().to_string(), format!("{table}: {line}"));
                }
            }
        }
    }
    report.sound.push(format!("{} ({words}, {} ms)", path.display(), begun.elapsed().as_millis()));
    Ok(())
}

/// Runs a check; `None` if it was ended because it took longer than `bound`.
fn bounded(
    connection: &Connection,
    bound: Option<Duration>,
    pragma: &str,
) -> rusqlite::Result<Option<Vec<String>>> {
    let check = || -> rusqlite::Result<Vec<String>> {
        connection.prepare(pragma)?.query_map([], |row| row.get(0))?.collect()
    };
    let Some(bound) = bound else { return check().map(Some) };
    let handle = connection.get_interrupt_handle();
    let (running, ended) = crossbeam_channel::bounded::<()>(0);
    let watch = crate::thread::spawn("bound", move || {
        if ended.recv_timeout(bound) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            handle.interrupt();
        }
    })
    .map_err(|error| crate::db::other(error.to_string()))?;
    let found = check();
    drop(running);
    let _ = watch.join();
    match found {
        Ok(lines) => Ok(Some(lines)),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
