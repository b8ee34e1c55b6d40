//! The table of commands; one file for each. Help, manual page and completions are printed from this table.

mod agent_call;
mod alert;
mod check;
mod clock;
mod demo;
pub(crate) mod dest;
mod drain;
pub(crate) mod enqueue;
mod init;
pub(crate) mod lists;
mod logging;
pub(crate) mod output;
mod pause;
mod purge;
mod run;
mod sandbox;
mod settings_file;
mod settle;
mod settling;
pub(crate) mod show;
pub(crate) mod status;
mod suppress;
mod through_agent;
mod verbs;
mod verify;
pub(crate) mod views;

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

use crate::exit;

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
}

impl From<crate::db::DbError> for Failure {
    fn from(error: crate::db::DbError) -> Self {
        Self::new(crate::agent::db_exit_code(&error), error.to_string())
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
    after_help = "Exit codes: 0 done; 1 the answer is no; 64 usage; 65 bad data; 66 no such file or message; 69 unavailable;\n73 cannot create; 74 I/O; 75 try again later; 77 not permitted; 78 settings wrong."
)]
struct Cli {
    /// Settings file [default: $ONCEWARD_CONFIG, then /etc/onceward/onceward.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a commented settings file and both databases; never overwrites
    Init(init::Args),
    /// Run the agent in the foreground
    Run,
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
    /// Keep waiting messages from being sent (PENDING -> HELD)
    Hold(verbs::Args),
    /// Let parked or held messages go on under the same message id (PARKED, HELD -> PENDING)
    Release(verbs::Args),
    /// Give up messages for good (waiting ones are held first)
    Cancel(verbs::Args),
    /// Make waiting messages due now
    TryNow(verbs::Args),
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
    /// Print the schema of both databases
    Schema,
    /// Print the manual page
    Man,
    /// Print shell completions
    Completions {
        /// bash, zsh, fish, ...
        shell: clap_complete::Shell,
    },
}

/// Parses the command line, runs the command, prints its failure. Returns the exit code.
pub fn main() -> i32 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE } else { exit::OK };
        }
    };
    let settings = settings_file::SettingsFile::find(cli.config.as_deref());
    let outcome = match cli.command {
        Command::Init(args) => init::run(args),
        Command::Run => run::run(&settings),
        Command::Demo(args) => demo::run(args),
        Command::Sandbox(args) => sandbox::run(args),
        Command::Enqueue(args) => enqueue::run(&settings, args),
        Command::Status(args) => status::run(&settings, args),
        Command::Queue(args) => lists::run(&settings, args),
        Command::Show(args) => show::run(&settings, args),
        Command::Hold(args) => verbs::run(&settings, verbs::Verb::Hold, args),
        Command::Release(args) => verbs::run(&settings, verbs::Verb::Release, args),
        Command::Cancel(args) => verbs::run(&settings, verbs::Verb::Cancel, args),
        Command::TryNow(args) => verbs::run(&settings, verbs::Verb::TryNow, args),
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
        Command::Schema => output::print(include_str!("../../schema.sql")),
        Command::Man => man(),
        Command::Completions { shell } => {
            let mut bytes = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "onceward", &mut bytes);
            output::print(&String::from_utf8_lossy(&bytes))
        }
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("onceward: {}", failure.text.trim_end());
            failure.code
        }
    }
}

fn man() -> Outcome {
    let mut bytes = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut bytes)
        .map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    output::print(&String::from_utf8_lossy(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_commands_is_consistent() {
        Cli::command().debug_assert();
    }
}
