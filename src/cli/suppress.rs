//! `suppress`: who has opted out, by outbox.db of everything, by a source's own table of what is in that source. Works
//! while the agent is down; a running one sees each change at its next look.
//!
//! Numbers are masked unless `--reveal`. A recipient that could never be found is refused: an opt-out without effect
//! is worse than an error.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::filter::unknown_destination;
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::limits::FIELD_CHARS_MAX;
use crate::message::Class;
use crate::outboxes::File;
use crate::owner::StateDir;
use crate::policy::consent::OptOut;
use crate::policy::number::{canonical, forms, is_unreadable};
use crate::store::audit::{self, Deed};
use crate::store::suppress;
use crate::{db, exit, who};

/// Lines in one commit.
const CHUNK: usize = 500;

/// Arguments of `suppress`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Add opt-outs
    Add {
        /// Phone numbers or other recipients
        #[arg(value_name = "NUMBER", required = true)]
        recipients: Vec<String>,
        #[command(flatten)]
        covers: Covers,
        /// Where it came from; kept in the row
        #[arg(long)]
        note: Option<String>,
    },
    /// Remove opt-outs that cover exactly this
    Remove {
        /// Phone numbers or other recipients
        #[arg(value_name = "NUMBER", required = true)]
        recipients: Vec<String>,
        #[command(flatten)]
        covers: Covers,
    },
    /// List opt-outs
    List {
        /// Only of this recipient
        #[arg(value_name = "NUMBER")]
        recipient: Option<String>,
        /// Show the numbers
        #[arg(long)]
        reveal: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Add many: one recipient a line, before the first comma or tab; lines with # are comments
    Import {
        /// A file, or `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        covers: Covers,
        /// Where they came from; kept in the rows
        #[arg(long)]
        note: Option<String>,
    },
}

/// What is covered; without any of them, everything.
#[derive(clap::Args)]
struct Covers {
    /// Only messages to this destination
    #[arg(long, value_name = "NAME", default_value = "")]
    dest: String,
    /// Only this channel, a payload's type such as sms or at (sms stands for lms and mms too)
    #[arg(long, value_name = "TYPE", default_value = "")]
    channel: String,
    /// Only TRANSACTIONAL or only ADVERTISING
    #[arg(long, default_value = "")]
    class: String,
}

impl Covers {
    fn read(self, settings: &Settings) -> Result<OptOut, Failure> {
        if !self.dest.is_empty() && !settings.destinations.iter().any(|known| known.name == self.dest) {
            return Err(unknown_destination(settings, &self.dest));
        }
        if !self.class.is_empty() && Class::parse(&self.class).is_none() {
            return Err(Failure::new(exit::DATA, "--class: TRANSACTIONAL or ADVERTISING was expected"));
        }
        let channel = self.channel.to_ascii_lowercase();
        if channel.len() > 40 || !channel.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(Failure::new(
                exit::DATA,
                "--channel: letters and digits were expected, such as sms or at",
            ));
        }
        Ok(OptOut { destination: self.dest, channel, class: self.class })
    }
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    match args.verb {
        Verb::Add { recipients, covers, note } => {
            let covers = covers.read(&settings)?;
            let recipients = read_all(&recipients)?;
            let mut connection = home(file, &settings)?.writer()?;
            let added = add(&mut connection, &recipients, &covers, note.as_deref())?;
            output::print(&format!("{added} added, {} known already\n", recipients.len() - added))
        }
        Verb::Remove { recipients, covers } => {
            let covers = covers.read(&settings)?;
            remove(&mut home(file, &settings)?.writer()?, &read_all(&recipients)?, &covers)
        }
        Verb::List { recipient, reveal, json } => {
            list(&settings, &home(file, &settings)?.reader()?, recipient.as_deref(), reveal, json)
        }
        Verb::Import { file: path, covers, note } => {
            let covers = covers.read(&settings)?;
            import(&mut home(file, &settings)?.writer()?, &path, &covers, note.as_deref())
        }
    }
}

/// Whose table it is. The list of sources is in the inbox, which a producer may not read: asked for only where one is named.
fn home(file: &SettingsFile, settings: &Settings) -> Result<File, Failure> {
    let state = StateDir::new(&settings.agent.state_dir);
    let inbox = if file.source.is_some() { super::views::inbox(&state)? } else { None };
    super::source::named(file, settings, inbox.as_ref())
}

fn read_all(given: &[String]) -> Result<Vec<String>, Failure> {
    let read = |(index, text): (usize, &String)| {
        recipient(text)
            .map_err(|problem| Failure::new(exit::DATA, format!("NUMBER {}: {problem}", index + 1)))
    };
    given.iter().enumerate().map(read).collect()
}

/// A recipient in the form in which messages are compared with it, or why it would never be found.
fn recipient(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    let canonical = canonical(text);
    if canonical.is_empty() || canonical.chars().count() > FIELD_CHARS_MAX {
        return Err("is empty or too long");
    }
    // Copied from a page or a spreadsheet: full-width digits, direction marks.
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{a0}')
    };
    if is_unreadable(text) || canonical.chars().any(|c| hidden(c) || (c.is_numeric() && !c.is_ascii())) {
        return Err("has characters that do not show, or digits and marks that no number is compared with");
    }
    let like_a_number = canonical.bytes().all(|byte| byte.is_ascii_digit() || byte == b'+');
    if like_a_number && !canonical.starts_with(['0', '+']) {
        return Err(
            "a number begins with 0, or with + and the country's code (was the 0 lost in a spreadsheet?)",
        );
    }
    if like_a_number && !(4..=17).contains(&canonical.len()) {
        return Err("is no phone number: too short or too long");
    }
    Ok(canonical)
}

fn add(
    connection: &mut Connection,
    recipients: &[String],
    covers: &OptOut,
    note: Option<&str>,
) -> Result<usize, Failure> {
    let now_ms = wall_ms();
    db::write(connection, |tx| {
        let mut added = 0;
        for recipient in recipients {
            added += usize::from(suppress::add(tx, recipient, covers, note, now_ms)?);
        }
        if added > 0 {
            let after = format!("{added} added");
            audited(tx, "SUPPRESS_ADD", covers, note.unwrap_or_default(), &after, now_ms)?;
        }
        Ok(added)
    })
    .map_err(|error| failed(&error))
}

/// One deed for each commit. The audit holds no number: whose opt-out it was, the list itself says.
fn audited(
    tx: &Connection,
    verb: &str,
    covers: &OptOut,
    note: &str,
    after: &str,
    at_ms: i64,
) -> rusqlite::Result<()> {
    let who = who::this_process();
    let destination = &covers.destination;
    audit::append(tx, &Deed { at_ms, who: &who, verb, target: "", destination, note, before: "", after })
}

fn failed(error: &rusqlite::Error) -> Failure {
    let code = if db::is_busy(error) || db::is_full(error) { exit::TRY_AGAIN } else { exit::IO };
    Failure::new(code, format!("the opt-outs were not changed: {error}; run the same command again"))
}

fn remove(connection: &mut Connection, recipients: &[String], covers: &OptOut) -> Outcome {
    let mut out = String::new();
    let mut missing = 0;
    for (index, recipient) in recipients.iter().enumerate() {
        let forms = forms(recipient, None);
        let (removed, left) = db::write(connection, |tx| {
            let removed = suppress::remove(tx, &forms, covers)?;
            if removed {
                audited(tx, "SUPPRESS_REMOVE", covers, "", "1 removed", wall_ms())?;
            }
            Ok((removed, suppress::find(tx, &forms)?.len()))
        })
        .map_err(|error| failed(&error))?;
        missing += usize::from(!removed);
        let word = if removed { "removed" } else { "there was no such opt-out" };
        let rest = if left > 0 {
            format!("; {left} others of this recipient stand (see list)")
        } else {
            String::new()
        };
        out.push_str(&format!("NUMBER {} ({}): {word}{rest}\n", index + 1, output::masked(recipient)));
    }
    output::print(&out)?;
    Ok(if missing == 0 { exit::OK } else { exit::NO })
}

fn list(settings: &Settings, file: &Connection, only: Option<&str>, reveal: bool, json: bool) -> Outcome {
    let only = only.map(|recipient| forms(recipient, None));
    let entries =
        suppress::list(file, only.as_deref()).map_err(|error| Failure::new(exit::IO, error.to_string()))?;
    let shown = |number: &str| if reveal { number.to_owned() } else { output::masked(number) };
    if json {
        let mut out = String::new();
        for entry in &entries {
            let line = serde_json::json!({
                "recipient": shown(&entry.recipient), "destination": entry.covers.destination,
                "channel": entry.covers.channel, "class": entry.covers.class, "note": entry.note, "at_ms": entry.at_ms,
            });
            out.push_str(&format!("{line}\n"));
        }
        return output::print(&out);
    }
    let all = |text: &str| if text.is_empty() { "all".to_owned() } else { text.to_owned() };
    let mut table =
        vec![["RECIPIENT", "DESTINATION", "CHANNEL", "CLASS", "SINCE", "NOTE"].map(str::to_owned).to_vec()];
    table.extend(entries.iter().map(|entry| {
        vec![
            shown(&entry.recipient),
            all(&entry.covers.destination),
            all(&entry.covers.channel),
            all(&entry.covers.class),
            output::local_time(entry.at_ms, &settings.agent.timezone),
            entry.note.clone().unwrap_or_default(),
        ]
    }));
    output::print(&output::table(&table))
}

fn import(connection: &mut Connection, path: &Path, covers: &OptOut, note: Option<&str>) -> Outcome {
    let input: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let opened = std::fs::File::open(path).map_err(|error| {
            let code = if error.kind() == std::io::ErrorKind::NotFound { exit::NO_INPUT } else { exit::IO };
            Failure::new(code, format!("{}: {error}", path.display()))
        })?;
        Box::new(std::io::BufReader::new(opened))
    };
    let (mut added, mut known, mut bad) = (0, 0, 0);
    let mut chunk = Vec::new();
    let mut store = |chunk: &mut Vec<String>| -> Result<(), Failure> {
        let new = add(connection, chunk, covers, note)?;
        added += new;
        known += chunk.len() - new;
        chunk.clear();
        Ok(())
    };
    for (index, line) in input.lines().enumerate() {
        let line = line.map_err(|error| Failure::new(exit::IO, format!("line {}: {error}", index + 1)))?;
        let field = line.split([',', '\t', ';']).next().unwrap_or_default().trim().trim_matches('"');
        if field.is_empty() || field.starts_with('#') {
            continue;
        }
        match recipient(field) {
            Ok(recipient) => chunk.push(recipient),
            Err(problem) => {
                bad += 1;
                output::complain!("line {}: {problem}", index + 1);
            }
        }
        if chunk.len() >= CHUNK {
            store(&mut chunk)?;
        }
    }
    store(&mut chunk)?;
    output::print(&format!("{added} added, {known} known already, {bad} bad\n"))?;
    Ok(if bad == 0 { exit::OK } else { exit::DATA })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_never_be_found_is_refused() {
        for (text, expected) in [
            ("010-1234-5678", Ok("01012345678")),
            (" +82 10 1234 5678 ", Ok("01012345678")),
            ("+1 212 555 0100", Ok("+12125550100")),
            ("store-1", Ok("store-1")),
            ("a@example.org", Ok("a@example.org")),
            ("1012345678", Err(())),
            ("01", Err(())),
            ("010\u{202c}12345678", Err(())),
            ("０１０１２３４５６７８", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(recipient(text).as_deref().map_err(|_| ()), expected, "{text:?}");
        }
    }
}
