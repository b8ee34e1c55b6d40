//! `clock`: what the agent thinks of the wall clock, and a person's word that it is right.
//!
//! The word is a mark in the outbox file, which the agent reads while it is in doubt.

use rusqlite::Connection;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output, views};
use crate::clock::watch::{DOUBT, NEWEST, VOUCHED, newest_recorded};
use crate::clock::{self, Doubt, wall_ms};
use crate::{db, exit, owner, store::meta};

/// Arguments of `clock`.
#[derive(clap::Args)]
pub struct Args {
    /// The clock is right: what was recorded under a wrong one counts no more
    #[arg(long)]
    right: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let at = |ms: i64| output::local_time(ms, &settings.agent.timezone);
    if args.right {
        let connection = super::enqueue::open(&settings)?;
        let now_ms = wall_ms();
        if now_ms < clock::built_ms() {
            let text = format!("it is {} and {}: set it first", at(now_ms), Doubt::BeforeBuild.as_str());
            return Err(Failure::new(exit::DATA, text));
        }
        meta::put(&connection, VOUCHED, &now_ms.to_string()).map_err(|error| {
            let code = if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
            Failure::new(code, error.to_string())
        })?;
        return output::print(&format!(
            "noted: {} is right; the agent hears of it within seconds\n",
            at(now_ms)
        ));
    }
    let views = views::open(&settings)?;
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let mut out = format!("now       {}\n", at(wall_ms()));
    out.push_str(&format!("built     {}\n", at(clock::built_ms())));
    let Some(inbox) = &views.inbox else { return output::print(&out) };
    if let Some(newest_ms) = meta::get(inbox, NEWEST).map_err(io)?.and_then(|text| text.parse().ok()) {
        out.push_str(&format!("believed  {} at the latest\n", at(newest_ms)));
    }
    let alive = owner::holder(&views.state).is_some();
    let doubt = doubt(&views.outbox, inbox, alive).map_err(io)?;
    out.push_str(&match &doubt {
        None => "verdict   it is believed\n".to_owned(),
        Some(doubt) => format!("verdict   it {doubt}: what depends on the hour is held\n"),
    });
    output::print(&out)?;
    Ok(if doubt.is_none() { exit::OK } else { exit::NO })
}

/// What is thought of the clock: by the running agent, or by what it recorded.
pub fn doubt(outbox: &Connection, inbox: &Connection, alive: bool) -> rusqlite::Result<Option<String>> {
    if alive {
        return Ok(meta::get(inbox, DOUBT)?.filter(|text| !text.is_empty()));
    }
    let now = clock::now_beside(newest_recorded(inbox, outbox)?);
    Ok(now.doubt.map(|doubt| doubt.as_str().to_owned()))
}
