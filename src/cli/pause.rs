//! `pause` and `resume`: an operator's pause of destinations. Through the agent's socket while it is up; with its lock
//! while it is down.

use serde_json::json;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, agent_call, dest, output};
use crate::clock::wall_ms;
use crate::db;
use crate::exit;
use crate::owner::StateDir;
use crate::pause::{self, ALL, Pause};
use crate::store::destination;
use crate::who;

/// Arguments of `pause`.
#[derive(clap::Args)]
pub struct PauseArgs {
    /// Destination; all of them without a name
    #[arg(value_name = "DEST")]
    name: Option<String>,
    /// Why; shown wherever something waits for it, and kept in the audit
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

/// Arguments of `resume`.
#[derive(clap::Args)]
pub struct ResumeArgs {
    /// Destination; all of them without a name
    #[arg(value_name = "DEST")]
    name: Option<String>,
    /// Why; kept in the audit
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reason: String,
}

/// Runs `pause`.
pub fn pause(file: &SettingsFile, args: PauseArgs) -> Outcome {
    change(file, args.name.as_deref(), true, args.reason)
}

/// Runs `resume`.
pub fn resume(file: &SettingsFile, args: ResumeArgs) -> Outcome {
    change(file, args.name.as_deref(), false, args.reason)
}

fn change(file: &SettingsFile, name: Option<&str>, paused: bool, reason: String) -> Outcome {
    if let Some(why) = pause::unfit(&reason, paused) {
        return Err(Failure::new(exit::USAGE, format!("--reason {why}")));
    }
    let settings = file.load_for_looking()?;
    let verb = if paused { "pause" } else { "resume" };
    let path = format!("/v1/destinations/{}/{verb}", crate::percent::encode(name.unwrap_or(ALL)));
    let body = json!({ "reason": reason, "who": who::this_process() });
    if let Some(answer) = agent_call::post(&settings.listen.socket, &path, &body)? {
        return match (answer.status, answer.body["text"].as_str(), name) {
            (200, Some(text), _) => output::print(text),
            (404, _, Some(name)) => Err(dest::unknown(&settings, name)),
            (503, text, _) => {
                Err(Failure::new(exit::TRY_AGAIN, text.unwrap_or("the agent cannot write its inbox now")))
            }
            (status, text, _) => Err(Failure::new(
                exit::UNAVAILABLE,
                format!("{} (status {status})", text.unwrap_or("no answer")),
            )),
        };
    }
    let state = StateDir::new(&settings.agent.state_dir);
    let mut locked = agent_call::take_lock(file, &settings, &state, verb)?;
    let io = |error: rusqlite::Error| agent_call::db_failure(&state.inbox(), &error);
    let known = destination::all(&locked.inbox).map_err(io)?;
    // A mistake on the disk may hide a destination: then "all" would not be all, nor "no such one" true.
    let names = file.destinations()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(names) = pause::meant(name.unwrap_or(ALL), &names, &known) else {
        return Err(dest::unknown(&settings, name.unwrap_or(ALL)));
    };
    let deed = Pause { names, paused, reason, by: who::this_process() };
    let done = db::write(&mut locked.inbox, |tx| pause::apply(tx, &deed, wall_ms())).map_err(io)?;
    output::print(&pause::said(&done, paused))
}
