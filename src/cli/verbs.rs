//! `hold`, `release`, `cancel`: each one conditional transition for each message; says which took and which did not.

use std::io::BufRead;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output};
use crate::clock::wall_ms;
use crate::db;
use crate::exit;
use crate::settle::{self, Cancelled};
use crate::store::outbox::{self, Moved};

/// Which verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// PENDING -> HELD
    Hold,
    /// PARKED, HELD -> PENDING
    Release,
    /// PARKED, HELD (and PENDING through HELD) -> FAILED
    Cancel,
}

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
    let mut connection = super::enqueue::open(&settings)?;
    let inbox = if verb == Verb::Cancel { super::views::open(&settings)?.inbox } else { None };
    let (mut yes, mut no) = (0, 0);
    let mut out = String::new();
    for id in &ids {
        let reason = |word: &str| {
            if args.note.is_empty() { word.to_owned() } else { format!("{word}: {}", args.note) }
        };
        let now_ms = wall_ms();
        // A dry run is the same statement, rolled back.
        let moved = connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .and_then(|tx| {
                let moved = match verb {
                    Verb::Hold => Cancelled::Row(outbox::hold(&tx, id, &reason("HELD"), now_ms)?),
                    Verb::Release => Cancelled::Row(outbox::release(&tx, id, &reason("RELEASED"), now_ms)?),
                    Verb::Cancel => settle::cancel(&tx, inbox.as_ref(), id, &reason("CANCELLED"), now_ms)?,
                };
                if args.dry_run {
                    tx.rollback()?
                } else {
                    tx.commit()?
                }
                Ok(moved)
            })
            .map_err(|error| {
                let code =
                    if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
                Failure::new(code, format!("{id}: {error}"))
            })?;
        match moved {
            Cancelled::Row(Moved::Yes) => {
                yes += 1;
                out.push_str(&format!("{id} {}\n", word(verb)));
            }
            Cancelled::Row(Moved::No(state)) => {
                no += 1;
                out.push_str(&format!("{id} not {}: it is {state}\n", word(verb)));
            }
            Cancelled::Called(state) => {
                no += 1;
                out.push_str(&format!(
                    "{id} not {}: it was or may have been sent ({state} in the inbox); let it go on, it is marked and not sent again\n",
                    word(verb)
                ));
            }
            Cancelled::Unread => {
                no += 1;
                out.push_str(&format!(
                    "{id} not {}: whether it was sent stands in the inbox, which this user may not read\n",
                    word(verb)
                ));
            }
            Cancelled::Row(Moved::Missing) => {
                no += 1;
                out.push_str(&format!("{id} not {}: no such message\n", word(verb)));
            }
        }
    }
    out.push_str(&format!(
        "{yes} {}{}, {no} not\n",
        word(verb),
        if args.dry_run { " (dry run: nothing was changed)" } else { "" }
    ));
    output::print(&out)?;
    Ok(if no > 0 { exit::NO } else { exit::OK })
}

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Hold => "held",
        Verb::Release => "released",
        Verb::Cancel => "cancelled",
    }
}
