//! `settle`: a person's verdict on ERRORs. Through the agent's socket while it is up; with its lock while it is down.

use serde_json::json;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, agent_call, output, through_agent, verbs, views};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db;
use crate::exit;
use crate::listen;
use crate::message::{Destination, MessageId};
use crate::outboxes::Outboxes;
use crate::owner::StateDir;
use crate::policy::Policy;
use crate::settle::{self, End, Opened, Settle, Speaker};
use crate::store::outbox::{self, Rearmed};
use crate::store::{inbox, meta, rearm};
use crate::who;

/// Arguments of `settle`.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("end").required(true))]
pub struct Args {
    /// Message ids or dedup keys of ERRORs; `-` reads them from standard input, one a line (or the lines of `queue --json`)
    #[arg(value_name = "ID-or-KEY", required = true)]
    ids: Vec<String>,
    /// It went out
    #[arg(long, group = "end")]
    sent: bool,
    /// It did not arrive and never will
    #[arg(long, group = "end")]
    failed: bool,
    /// The vendor never received it: send it, under the same message id
    #[arg(long, group = "end", requires = "i_checked_the_vendor")]
    not_sent: bool,
    /// How you know; kept in the audit
    #[arg(long, value_name = "TEXT")]
    note: String,
    /// You have asked the vendor: if it did arrive after all, the customer gets it twice
    #[arg(long)]
    i_checked_the_vendor: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let end = match (args.sent, args.failed) {
        (true, _) => End::Sent,
        (_, true) => End::Failed,
        _ => End::NotSent,
    };
    if args.note.trim().is_empty() || args.note.chars().count() > listen::settle::NOTE_CHARS_MAX {
        return Err(Failure::new(
            exit::USAGE,
            "--note is empty or longer than 500 characters: say how you know",
        ));
    }
    let ids = verbs::given(&args.ids)?;
    let mut worst = exit::OK;
    for id in &ids {
        match one(file, &settings, id, end, &args.note, args.i_checked_the_vendor) {
            Ok(code) => worst = worst.max(code),
            // About this message: the others go on. Anything else would be so for all of them.
            Err(failure)
                if ids.len() > 1 && [exit::NO_INPUT, exit::DATA, exit::USAGE].contains(&failure.code) =>
            {
                output::complain!("{}", failure.text);
                worst = exit::NO;
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(worst)
}

/// The verdict on one message.
fn one(file: &SettingsFile, settings: &Settings, id: &str, end: End, note: &str, checked: bool) -> Outcome {
    let state = StateDir::new(&settings.agent.state_dir);
    let path = format!("/v1/messages/{}/settle", crate::percent::encode(id));
    let path = through_agent::path(&path, &[("source", file.source.clone())]);
    let body = json!({
        "as": end.as_str(), "note": note, "i_checked_the_vendor": checked, "who": who::this_process(),
    });
    // The running agent looks for the message itself: not everybody who may ask it may look.
    if let Some(answer) = agent_call::post(&settings.listen.socket, &path, &body)? {
        let text = answer.body["text"].as_str().unwrap_or("the agent gave no reason").to_owned();
        let message_id = answer.body["message_id"].as_str().unwrap_or(id).to_owned();
        return tell(&message_id, answer.status, &text);
    }
    let inbox = views::inbox(&state)?;
    let home = match super::source::of_message(file, settings, inbox.as_ref(), id) {
        // No such source, or several files with this key: for the person to say.
        Err(why) if [exit::NO_INPUT, exit::USAGE].contains(&why.code) => return Err(why),
        home => home,
    };
    let in_its_file = || -> Result<Option<(MessageId, Destination, Rearmed)>, Failure> {
        let home = home?;
        let io = |error: rusqlite::Error| agent_call::db_failure(home.path(), &error);
        let reader = home.reader()?;
        let Some((message_id, destination)) = outbox::find(&reader, id).map_err(io)? else {
            return Ok(None);
        };
        let could = outbox::could_rearm(&reader, &message_id).map_err(io)?;
        Ok(Some((message_id, destination, could)))
    };
    let (message_id, destination) = match in_its_file() {
        Ok(None) => {
            return Err(Failure::new(exit::NO_INPUT, format!("no message has the id or key {id:?}")));
        }
        Ok(Some((message_id, _, Rearmed::Wiped))) if end == End::NotSent => {
            let text = "its content was wiped: nothing can be sent; settle it as failed";
            return tell(message_id.as_str(), 409, text);
        }
        Ok(Some((message_id, destination, _))) => (message_id, destination),
        Err(why) if end == End::NotSent => return Err(why),
        // Its file is out of reach; only what was not sent needs it.
        Err(why) => {
            let known = inbox.as_ref().map(|inbox| settle::known_by_id(inbox, &settings.destinations, id));
            match known.transpose().map_err(|error| agent_call::db_failure(&state.inbox(), &error))? {
                Some(Some(known)) => known,
                _ => return Err(why),
            }
        }
    };
    drop(inbox);
    let settle = Settle {
        consumer: destination,
        message_id: message_id.clone(),
        end,
        by: Speaker::Operator(who::this_process()),
        note: note.to_owned(),
        code: None,
        vendor_ref: None,
    };
    let (status, text) = while_down(file, settings, &state, &settle)?;
    tell(message_id.as_str(), status, &text)
}

/// Prints the sentence; its status as an exit code.
fn tell(message_id: &str, status: u16, text: &str) -> Outcome {
    let line = format!("{message_id} {text}");
    match status {
        200 => output::print(&format!("{line}\n")),
        404 => Err(Failure::new(exit::NO_INPUT, line)),
        409 => {
            output::print(&format!("{line}\n"))?;
            Ok(exit::NO)
        }
        422 => Err(Failure::new(exit::DATA, line)),
        503 => Err(Failure::new(exit::TRY_AGAIN, line)),
        _ => Err(Failure::new(exit::UNAVAILABLE, format!("{line} (status {status})"))),
    }
}

/// Takes the agent's lock, so that no agent starts meanwhile, and writes itself.
fn while_down(
    file: &SettingsFile,
    settings: &Settings,
    state: &StateDir,
    settle: &Settle,
) -> Result<(u16, String), Failure> {
    let mut locked = agent_call::take_lock(file, settings, state, "settle")?;
    let inbox = &mut locked.inbox;
    let inbox_path = state.inbox();
    let failed = |path: &std::path::Path, error: rusqlite::Error| agent_call::db_failure(path, &error);
    let now_ms = wall_ms();
    let day = Policy::new(settings).day(now_ms);
    let settled = db::write(inbox, |tx| {
        // We hold the agent's lock: no start is alive, and no call is under way.
        meta::put(tx, "started_by", "")?;
        settle::apply(tx, settle, &day, now_ms)
    })
    .map_err(|error| failed(&inbox_path, error))?;
    // What was noted now or by an earlier run that died; what the relay of a dead agent still holds waits for its start.
    let notes: Vec<(Destination, MessageId)> =
        rearm::open(inbox, 1_000).map_err(|error| failed(&inbox_path, error))?;
    let outboxes =
        Outboxes::read(&state.outbox(), Some(inbox)).map_err(|error| failed(&inbox_path, error))?;
    let mut later = String::new();
    for (consumer, message_id) in notes {
        let known =
            inbox::state(inbox, &consumer, &message_id).map_err(|error| failed(&inbox_path, error))?;
        let opened = match known {
            Some(_) => Opened::Done, // it is on its way again, or has been
            None => settle::open_outbox_row(&outboxes, &consumer, &message_id)?,
        };
        match opened {
            Opened::Done => db::write(inbox, |tx| rearm::done(tx, &consumer, &message_id, now_ms))
                .map_err(|error| failed(&inbox_path, error))?,
            Opened::OutOfReach(why) if message_id == settle.message_id => {
                later = format!("; its row is out of reach, and the agent opens it when it is not: {why}");
            }
            Opened::NotYet | Opened::OutOfReach(_) => {}
        }
    }
    let (status, _, text) = listen::settle::said(settled, settle.end);
    Ok((status, text + &later))
}
