//! `adopt`: a person's word that the files in the state folder are the ones to go on with, after a restore, a clone, a
//! swapped or an older file. Through the agent's socket while it is up; with its lock while it is down.

use serde_json::json;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, agent_call, output};
use crate::adopt::{self, Adoption, Waiting};
use crate::config::Settings;
use crate::db::identity::WitnessFiles;
use crate::db::{self, Durability, Part};
use crate::exit;
use crate::incarnation::{in_words, judge};
use crate::listen;
use crate::owner::{self, OwnerError, StateDir};
use crate::store::{incarnation, meta, source};
use crate::who;

/// Arguments of `adopt`.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("waiting").required(true))]
pub struct Args {
    /// What is known about these files, and why it is right to go on with them; kept in the audit
    #[arg(long, value_name = "TEXT")]
    note: String,
    /// Messages that wait are sent: if another copy has sent them already, customers get them twice
    #[arg(long, group = "waiting")]
    send_waiting: bool,
    /// Messages that wait become HELD, to be released or cancelled one by one
    #[arg(long, group = "waiting")]
    hold_waiting: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let waiting = if args.send_waiting { Waiting::Send } else { Waiting::Hold };
    if args.note.trim().is_empty() || args.note.chars().count() > listen::settle::NOTE_CHARS_MAX {
        return Err(Failure::new(
            exit::USAGE,
            "--note is empty or longer than 500 characters: say what you know",
        ));
    }
    let body = json!({ "note": args.note, "waiting": waiting.as_str(), "who": who::this_process() });
    let (status, text) = match agent_call::post(&settings.listen.socket, "/v1/adopt", &body)? {
        Some(answer) => {
            (answer.status, answer.body["text"].as_str().unwrap_or("the agent gave no reason").to_owned())
        }
        None => while_down(file, &settings, args.note, waiting)?,
    };
    match status {
        200 => output::print(&format!("{text}\n")),
        409 => {
            output::print(&format!("{text}\n"))?;
            Ok(exit::NO)
        }
        422 => Err(Failure::new(exit::DATA, text)),
        503 => Err(Failure::new(exit::TRY_AGAIN, text)),
        _ => Err(Failure::new(exit::UNAVAILABLE, format!("{text} (status {status})"))),
    }
}

fn while_down(
    file: &SettingsFile,
    settings: &Settings,
    note: String,
    waiting: Waiting,
) -> Result<(u16, String), Failure> {
    let state = StateDir::new(&settings.agent.state_dir);
    let _ownership = take(&state, file, settings)?;
    let failed = |error: rusqlite::Error| {
        let code = if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
        Failure::new(code, format!("not adopted: {error}"))
    };
    let witness =
        WitnessFiles::open(&state).map_err(|error| Failure::new(exit::TRY_AGAIN, error.to_string()))?;
    let mut inbox = db::open_writer(&state.inbox(), Part::Inbox, Durability::Full)?;
    let mut outbox = db::open_writer(&state.outbox(), Part::Outbox, Durability::Full)?;
    let doubts = judge(&adopt::found(&inbox, &outbox, &state, &witness).map_err(failed)?);
    if doubts.is_empty() && incarnation::held(&inbox).map_err(failed)?.is_none() {
        return Ok((409, "nothing to adopt: these are the files that the agent wrote last".into()));
    }
    if !doubts.is_empty() {
        output::print(&format!("found: {}\n", in_words(&doubts)))?;
    }
    witness.make().map_err(|error| Failure::new(exit::CANNOT_CREATE, error.to_string()))?;
    let copied = meta::get(&inbox, "agent_id").map_err(failed)?.unwrap_or_default();
    let adoption = Adoption::new(&inbox, &state, witness.has_outside(), who::this_process(), note, waiting)
        .map_err(failed)?;
    let held = adoption.outbox(&mut outbox, &copied).map_err(failed)?;
    db::write(&mut inbox, |tx| adoption.inbox(tx)).map_err(failed)?;
    let sources = source::list(&inbox).map_err(failed)?;
    let record = adoption.witness(&inbox, &outbox).map_err(failed)?;
    witness
        .write(record)
        .map_err(|error| Failure::new(exit::IO, format!("not adopted: the witness: {error}")))?;
    Ok((200, listen::adopt::said(waiting, held, &sources)))
}

/// The lock of a stopped agent, or why it cannot be had.
pub fn take(state: &StateDir, file: &SettingsFile, settings: &Settings) -> Result<owner::Ownership, Failure> {
    owner::take(state, &file.path).map_err(|error| match &error {
        OwnerError::Held { .. } => Failure::new(
            exit::TRY_AGAIN,
            format!(
                "the agent is running ({error}), and for this it must answer on its socket {} or be stopped",
                settings.listen.socket.display()
            ),
        ),
        OwnerError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Failure::new(exit::NOT_PERMITTED, format!("{error}; only the agent's user may"))
        }
        _ => Failure::new(exit::IO, error.to_string()),
    })
}
