//! `show`: everything about one message: its states with times, each call, why it waits and until when.
//!
//! The facts are read in `facts` and told by `people` or `json`, whose object is the local API's, too; `now` is the
//! sentence on what happens next, `turn` the part of it that the rate has. Never: writes.

mod facts;
mod json;
mod now;
mod people;
mod turn;

use self::json::as_json;
pub(crate) use self::json::story;
use self::people::for_people;
use super::settings_file::SettingsFile;
use super::views::Views;
use super::{Failure, Outcome, output, through_agent, views};
use crate::config::Settings;
use crate::exit;

/// For a verb that has just made a message due: what it waits for all the same, as words behind "due".
pub(crate) fn and_yet(views: &Views, settings: &Settings, id: &str) -> rusqlite::Result<String> {
    let found = facts::find(views.rows(), id)?.filter(|found| found.line.status == "PENDING");
    let Some(found) = found else { return Ok(String::new()) };
    let message = now::as_message(&found.line, &found.payload);
    let text = now::now(&found.line, &message, views, settings, None)?.text;
    Ok(match text.strip_prefix("is due") {
        Some(rest) => rest.to_owned(),
        None => format!(", but {text}"),
    })
}

/// Arguments of `show`.
#[derive(clap::Args)]
pub struct Args {
    /// Message id or dedup key
    #[arg(value_name = "ID-or-KEY")]
    id: String,
    /// Show number and text
    #[arg(long)]
    reveal: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let mut views = views::open(&settings)?;
    if views.inbox.is_none() {
        match through_agent::show(&settings, file.source.clone(), &args.id, args.json) {
            Ok(outcome) => return outcome,
            Err(why) => output::complain!("the vendor's side is not shown: {why}"),
        }
    }
    let home = super::source::of_message(file, &settings, views.inbox.as_ref(), &args.id)?;
    views.look_into(&home)?;
    let found =
        facts::find(views.rows(), &args.id).map_err(|error| Failure::new(exit::IO, error.to_string()))?;
    let Some(found) = found else {
        let hint = if views.inbox.is_none() {
            " in outbox.db; the sources only the agent's user can see"
        } else {
            ""
        };
        return Err(Failure::new(
            exit::NO_INPUT,
            format!("no message has the id or key {:?}{hint}", args.id),
        ));
    };
    if args.json {
        as_json(&views, &settings, found, args.reveal)
    } else {
        for_people(&views, &settings, &home, &found, args.reveal)
    }
}
