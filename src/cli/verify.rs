//! `verify`: the daily ledger. Every accepted message is in exactly one state, inbox and outbox agree, nothing vanished
//! (retention included), both files are sound. Exit 0 when all of it is proven, 1 with the list otherwise.
//!
//! It only reads, through read-only connections, in short read transactions of a bounded number of rows, so that it may
//! run beside live traffic; what looks wrong is looked at again, because messages move meanwhile. The outbox row is
//! read before the inbox row of its message: what is PUBLISHED then must be in the inbox now.

mod books;
mod report;
mod sound;
mod walk;

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rusqlite::{Connection, ErrorCode};

use self::books::{Account, books};
use self::report::{Report, as_json, for_people};
use self::sound::sound;
use super::settings_file::SettingsFile;
use super::views::{self, Views};
use super::{Failure, Outcome, output};
use crate::db::DbError;
use crate::exit;
use crate::owner;
use crate::store::source;

/// Arguments of `verify`.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Longest time that one integrity check may keep an old state of a file open beside a running agent, seconds
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    lock_time: u64,
    /// Without the integrity check of the files
    #[arg(long)]
    no_integrity: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let views = views::open(&settings)?;
    let alive = owner::holder(&views.state).is_some() || std::fs::File::open(views.state.lock()).is_err();
    let mut report = Report::default();
    let begun = Instant::now();
    let bar = bar();
    let outbox_path = views.state.outbox();
    let sources = sources(&views, &mut report)?;
    let mut accounts = vec![Account { name: "outbox".into(), outbox: Some(&views.outbox) }];
    accounts.extend(
        sources
            .iter()
            .map(|(name, opened)| Account { name: format!("source {name}"), outbox: opened.as_ref() }),
    );
    outcome_of(&mut report, &outbox_path, |report| books(views.inbox.as_ref(), accounts, report, &bar))?;
    if !args.no_integrity {
        let bound = alive.then(|| Duration::from_secs(args.lock_time.max(1)));
        for (path, connection) in
            [(outbox_path, Some(&views.outbox)), (views.state.inbox(), views.inbox.as_ref())]
        {
            if let Some(connection) = connection {
                outcome_of(&mut report, &path, |report| sound(connection, &path, bound, report, &bar))?;
            }
        }
    }
    bar.finish_and_clear();
    let took_ms = begun.elapsed().as_millis();
    let faults = report.faults.len() + report.more_faults + report.unproven.len();
    if args.json {
        output::print(&format!("{}\n", as_json(&report, views.inbox.is_some(), took_ms)))?;
    } else {
        output::print(&for_people(&report, views.inbox.is_some(), took_ms))?;
    }
    match (faults, &views.inbox) {
        (0, Some(_)) => Ok(exit::OK),
        (0, None) => Err(Failure::new(
            exit::NOT_PERMITTED,
            format!(
                "{} may not be read by this user: only the outbox is proven, not that both agree; run it as the agent's user, e.g. `sudo -u onceward onceward verify`",
                views.state.inbox().display()
            ),
        )),
        _ => Ok(exit::NO),
    }
}

/// Applications' own files by name; `None` where one cannot be read now, which is said and proves nothing about its messages.
fn sources(views: &Views, report: &mut Report) -> Result<Vec<(String, Option<Connection>)>, Failure> {
    let Some(inbox) = &views.inbox else { return Ok(Vec::new()) };
    let listed = source::list(inbox).map_err(|error| DbError::sqlite(&views.state.inbox(), error))?;
    Ok(listed
        .into_iter()
        .map(|listed| {
            let opened = crate::source::open_reader(Path::new(&listed.file))
                .map_err(|error| report.unproven(&format!("source {}", listed.name), &error.to_string()));
            (listed.name, opened.ok())
        })
        .collect())
}

/// A damaged file is an answer, not a failure of the command.
fn outcome_of(
    report: &mut Report,
    path: &Path,
    work: impl FnOnce(&mut Report) -> rusqlite::Result<()>,
) -> Result<(), Failure> {
    match work(report) {
        Ok(()) => Ok(()),
        Err(error)
            if matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
            ) =>
        {
            report.fault(path.display().to_string(), format!("cannot be read to its end: {error}"));
            Ok(())
        }
        Err(source) => Err(DbError::sqlite(path, source).into()),
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {percent}% {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style) // hidden by itself where standard error is no terminal
}
