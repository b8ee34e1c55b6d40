//! `hold`, `release`, `cancel`, `try-now`: each one conditional transition for each message; says which took and which
//! did not. Where this user may not read the inbox, the running agent does it, who may.

use std::io::BufRead;

use rusqlite::{Connection, TransactionBehavior};
use serde_json::json;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, agent_call, output, views};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db;
use crate::exit;
use crate::hand;
use crate::store::outbox::verbs::By;
use crate::who;

pub use crate::store::outbox::verbs::Verb;

/// Arguments of the verbs.
#[derive(clap::Args)]
pub struct Args {
    /// Message ids, or `-` to read them from standard input, one a line
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
    /// Why; kept in the row
    #[arg(long, default_value = "")]
    note: String,
    /// Only say what would happen
    #[arg(long)]
    dry_run: bool,
}

/// Runs the verb.
pub fn run(file: &SettingsFile, verb: Verb, args: Args) -> Outcome {
    let settings = file.load_without_secrets()?;
    let mut ids = Vec::new();
    for id in &args.ids {
        if id == "-" {
            for line in std::io::stdin().lock().lines() {
                let line =
                    line.map_err(|error| Failure::new(exit::IO, format!("standard input: {error}")))?;
                ids.extend(line.split_whitespace().next().map(str::to_owned));
            }
        } else {
            ids.push(id.clone());
        }
    }
    let mut outbox = super::enqueue::open(&settings)?;
    let inbox = views::open(&settings)?.inbox;
    let (mut yes, mut no) = (0, 0);
    let mut out = String::new();
    for id in &ids {
        let asked = match &inbox {
            None => through_agent(&settings, verb, id, &args.note, args.dry_run)?,
            Some(_) => None,
        };
        let (status, text) = match asked {
            Some(said) => said,
            None => itself(&mut outbox, inbox.as_ref(), verb, id, &args.note, args.dry_run)?,
        };
        if status == 200 {
            yes += 1;
        } else {
            no += 1;
        }
        out.push_str(&format!("{id} {text}\n"));
    }
    out.push_str(&format!(
        "{yes} {}{}, {no} not\n",
        hand::word(verb),
        if args.dry_run { " (dry run: nothing was changed)" } else { "" }
    ));
    output::print(&out)?;
    Ok(if no > 0 { exit::NO } else { exit::OK })
}

/// One transaction; a dry run is the same statements, rolled back. Status as of the local API, and a sentence.
fn itself(
    outbox: &mut Connection,
    inbox: Option<&Connection>,
    verb: Verb,
    id: &str,
    note: &str,
    dry_run: bool,
) -> Result<(u16, String), Failure> {
    let by = By { who: &who::this_process(), note };
    let done = outbox.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|tx| {
        let (_, said) = hand::one(&tx, inbox, verb, id, by, wall_ms())?;
        if dry_run {
            tx.rollback()?
        } else {
            tx.commit()?
        }
        Ok(hand::sentence(verb, &said))
    });
    done.map_err(|error| {
        let code = if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
        Failure::new(code, format!("{id}: {error}"))
    })
}

/// The same by the running agent; `None` where none answers.
fn through_agent(
    settings: &Settings,
    verb: Verb,
    id: &str,
    note: &str,
    dry_run: bool,
) -> Result<Option<(u16, String)>, Failure> {
    let path = format!("/v1/messages/{}/{}", crate::percent::encode(id), hand::command(verb));
    let body = json!({ "note": note, "who": who::this_process(), "dry_run": dry_run });
    let answer = agent_call::post(&settings.listen.socket, &path, &body)?;
    Ok(answer.map(|answer| (answer.status, answer.body["text"].as_str().unwrap_or("no answer").to_owned())))
}
