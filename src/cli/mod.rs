//! The table of commands; one file for each. Help, manual page and completions are printed from this table.

mod adopt;
mod agent_call;
mod alert;
mod backup;
mod check;
mod clock;
mod demo;
pub(crate) mod dest;
mod drain;
pub(crate) mod enqueue;
pub(crate) mod filter;
mod init;
pub(crate) mod lists;
mod logging;
mod manual;
pub(crate) mod moment;
pub(crate) mod output;
mod pause;
mod permission;
mod purge;
mod restore;
mod run;
mod sandbox;
mod settings_file;
mod settle;
mod settling;
pub(crate) mod shape;
pub(crate) mod show;
mod source;
mod sql;
pub(crate) mod status;
mod suppress;
mod through_agent;
mod verbs;
mod verify;
pub(crate) mod views;

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{db, exit};

/// A command's failure: what to say and the documented exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: i32,
    /// For people: what, where, what to do.
    pub text: String,
}

impl Failure {
    /// With this code and text.
    pub fn new(code: i32, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Reading failed.
    fn io(error: rusqlite::Error) -> Self {
        let code = if crate::db::is_busy(&error) { exit::TRY_AGAIN } else { exit::IO };
        Self::new(code, error.to_string())
    }
}

impl From<crate::db::DbError> for Failure {
    fn from(error: crate::db::DbError) -> Self {
        let hint = match &error {
            crate::db::DbError::NotPermitted { path, .. } => format!("; {}", permission::hint(path)),
            _ => String::new(),
        };
        Self::new(crate::agent::db_exit_code(&error), format!("{error}{hint}"))
    }
}

/// What a command ends with: an exit code, or a failure.
pub type Outcome = Result<i32, Failure>;

/// Once, but never lost: keeps messages for customers and forwards each to its vendor at most once.
#[derive(Parser)]
#[command(
    name = "onceward",
    version,
    max_term_width = 110,
    after_help = "Exit codes: 0 done; 1 the answer is no; 64 usage; 65 bad data; 66 no such file or message; 69 unavailable;\n70 a bug of ours; 73 cannot create; 74 I/O; 75 try again later; 77 not permitted; 78 settings wrong."
)]
struct Cli {
    /// Settings file [default: $ONCEWARD_CONFIG, then /etc/onceward/onceward.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// For enqueue, queue, shape, show, settle, suppress and the verbs: the outbox of this source (what names one message
    /// by its id finds it without)
    #[arg(long, global = true, value_name = "NAME")]
    source: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a commented settings file and both databases; never overwrites
    Init(init::Args),
    /// Run the agent in the foreground
    Run(run::Args),
    /// The main job in one go on a throw-away folder: sandbox vendor, agent, sample messages, and their fate
    Demo(demo::Args),
    /// A stand-in vendor with faults on demand
    Sandbox(sandbox::Args),
    /// Put one message (flags) or many (JSON lines) into the outbox; works while the agent is down
    Enqueue(enqueue::Args),
    /// Is it alive, what waits and since when, what went wrong; works while the agent is down
    Status(status::Args),
    /// List messages
    Queue(lists::Args),
    /// Everything about one message
    Show(show::Args),
    /// Waiting messages by destination and age
    Shape(shape::Args),
    /// Keep waiting messages from being sent (PENDING -> HELD)
    Hold(verbs::Args),
    /// Let messages go on under the same message id: held ones at their due time, parked ones now (HELD, PARKED -> PENDING)
    Release(verbs::Args),
    /// Give up messages for good (PENDING, HELD, PARKED -> CANCELLED)
    Cancel(verbs::Args),
    /// Send nothing to a destination (or to any) until `resume`; kept over restarts
    Pause(pause::PauseArgs),
    /// End a pause
    Resume(pause::ResumeArgs),
    /// How destinations stand: open, closed, waiting or paused, why, and what waits for them
    Dest(dest::Args),
    /// Refuse new messages, send what can be sent, report the rest; exit 1 if some is left
    Drain(drain::Args),
    /// Opt-outs: who gets nothing more, or nothing of a kind
    Suppress(suppress::Args),
    /// What the agent thinks of the clock; --right says that it is right
    Clock(clock::Args),
    /// A person's verdict on an ERROR, with a note and an audit row
    Settle(settle::Args),
    /// Check settings, databases, a real commit, disk, clock, login, DNS and TLS: one verdict a line
    Check(check::Args),
    /// Try the alert hooks of the settings
    Alert(alert::Args),
    /// Prove that nothing vanished: every message in one state, both files in agreement and sound; agent up or down
    Verify(verify::Args),
    /// Retention now: wipe old numbers and texts, let old keys go; or give the space back (--compact)
    Purge(purge::Args),
    /// Outboxes inside applications' own SQLite files
    Source(source::Args),
    /// Make waiting messages due now (PENDING); sending hours and rates still hold
    TryNow(verbs::Args),
    /// Questions in SQL over both databases; reads only, holds no lock
    Sql(sql::Args),
    /// Both databases in one checked file; agent up or down
    Backup(backup::Args),
    /// Put a backup in place of the databases; what is there is set aside, and all is held until `adopt`
    Restore(restore::Args),
    /// Go on with the files that are there, after a restore, a clone, a swapped or an older file
    Adopt(adopt::Args),
    /// Print the schema of both databases
    Schema,
    /// Print a manual page
    Man {
        /// Of this command [default: of the program]
        command: Option<String>,
    },
    /// Print shell completions
    Completions {
        /// bash, zsh, fish, ...
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Whether `--source` has a meaning for it.
    fn is_of_one_outbox(&self) -> bool {
        matches!(
            self,
            Self::Enqueue(_)
                | Self::Queue(_)
                | Self::Show(_)
                | Self::Shape(_)
                | Self::Hold(_)
                | Self::Release(_)
                | Self::Cancel(_)
                | Self::TryNow(_)
                | Self::Settle(_)
                | Self::Suppress(_)
        )
    }
}

/// The table as clap knows it. Where no settings are read, `--config` is taken but not shown.
fn table() -> clap::Command {
    let quiet =
        || clap::Arg::new("config").long("config").hide(true).value_parser(clap::value_parser!(PathBuf));
    ["demo", "sandbox", "schema", "man", "completions"]
        .into_iter()
        .fold(Cli::command(), |table, name| table.mut_subcommand(name, |command| command.arg(quiet())))
}

/// Parses the command line, runs the command, prints its failure. Returns the exit code.
pub fn main() -> i32 {
    db::access::let_the_group_in();
    let cli = match table().try_get_matches().and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches))
    {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE } else { exit::OK };
        }
    };
    if cli.source.is_some() && !cli.command.is_of_one_outbox() {
        output::complain!(
            "onceward: --source goes with enqueue, queue, shape, show, settle, suppress, hold, release, cancel and try-now; \
             this command is about no single outbox, and nothing was done"
        );
        return exit::USAGE;
    }
    let settings = settings_file::SettingsFile::find(cli.config.as_deref()).with_source(cli.source);
    let named = settings_file::SettingsFile::named(cli.config.as_deref());
    let outcome = match cli.command {
        Command::Init(args) => init::run(named.as_ref(), args),
        Command::Run(args) => run::run(&settings, &args),
        Command::Demo(args) => demo::run(args),
        Command::Sandbox(args) => sandbox::run(args),
        Command::Enqueue(args) => enqueue::run(&settings, args),
        Command::Status(args) => status::run(&settings, args),
        Command::Queue(args) => lists::run(&settings, args),
        Command::Show(args) => show::run(&settings, args),
        Command::Shape(args) => shape::run(&settings, args),
        Command::Hold(args) => verbs::run(&settings, verbs::Verb::Hold, args),
        Command::Release(args) => verbs::run(&settings, verbs::Verb::Release, args),
        Command::Cancel(args) => verbs::run(&settings, verbs::Verb::Cancel, args),
        Command::Pause(args) => pause::pause(&settings, args),
        Command::Resume(args) => pause::resume(&settings, args),
        Command::Dest(args) => dest::run(&settings, args),
        Command::Drain(args) => drain::run(&settings, args),
        Command::Suppress(args) => suppress::run(&settings, args),
        Command::Clock(args) => clock::run(&settings, args),
        Command::Settle(args) => settle::run(&settings, args),
        Command::Check(args) => check::run(&settings, args),
        Command::Alert(args) => alert::run(&settings, args),
        Command::Verify(args) => verify::run(&settings, args),
        Command::Purge(args) => purge::run(&settings, args),
        Command::Source(args) => source::run(&settings, args),
        Command::TryNow(args) => verbs::run(&settings, verbs::Verb::TryNow, args),
        Command::Sql(args) => sql::run(&settings, args),
        Command::Backup(args) => backup::run(&settings, args),
        Command::Restore(args) => restore::run(&settings, args),
        Command::Adopt(args) => adopt::run(&settings, args),
        Command::Schema => output::print(include_str!("../../schema.sql")),
        Command::Man { command } => manual::run(table(), command.as_deref()),
        Command::Completions { shell } => {
            let mut bytes = Vec::new();
            clap_complete::generate(shell, &mut table(), "onceward", &mut bytes);
            output::print(&String::from_utf8_lossy(&bytes))
        }
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            output::complain!("onceward: {}", output::plain_lines(failure.text.trim_end()));
            failure.code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_commands_is_consistent() {
        table().debug_assert();
    }
}
