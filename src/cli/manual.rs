//! `man`: manual pages from the table of commands, with what the table does not know: files, environment, exit codes.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::{Failure, Outcome, output};
use crate::exit;

const FILES: [(&str, &str); 5] = [
    ("/etc/onceward/onceward.toml", "settings; no secret stands in them"),
    ("/var/lib/onceward/outbox/outbox.db", "the outbox: producers insert, the agent marks (group onceward)"),
    ("/var/lib/onceward/inbox/inbox.db", "what was sent and what came of it; the agent's own"),
    ("/var/lib/onceward/inbox/agent.lock", "held by the running agent"),
    ("/run/onceward/onceward.sock", "local socket of the agent"),
];

const ENVIRONMENT: [(&str, &str); 6] = [
    ("ONCEWARD_CONFIG", "settings file, where --config is not given"),
    ("CREDENTIALS_DIRECTORY", "set by systemd; where credential:NAME is read"),
    ("RUST_LOG", "level of log lines: error, warn, info (the default), debug"),
    ("JOURNAL_STREAM", "set by systemd; log lines then leave the time to the journal"),
    ("NOTIFY_SOCKET, WATCHDOG_USEC", "set by systemd; readiness and watchdog"),
    ("TZ", "zone of sqlite3's views; the commands use the zone of the settings"),
];

const EXIT_STATUS: [(&str, &str); 13] = [
    ("0", "done"),
    ("1", "the command worked, and the answer is no"),
    ("64", "wrong usage"),
    ("65", "bad data, named with line and field"),
    ("66", "no such file or message"),
    ("69", "unavailable; also data of a newer program"),
    ("70", "a bug of ours"),
    ("73", "cannot create"),
    ("74", "input or output failed"),
    ("75", "try again later: busy, disk full, held by another agent"),
    ("77", "not permitted; the group is named"),
    ("78", "settings wrong"),
    ("128 + N", "ended by signal N"),
];

const STATES: [(&str, &str); 9] = [
    ("PENDING", "waits until it is due"),
    ("PUBLISHING", "is in the agent's hands"),
    ("PUBLISHED", "was handed to the vendor's side, where its fate is SENT, FAILED or ERROR"),
    ("ERROR", "nobody knows whether it arrived; it is never sent again"),
    (
        "PARKED",
        "the same failure would repeat; mend the cause, then release; UNFIT or UNREADABLE content cannot be mended: cancel",
    ),
    ("HELD", "a person stopped it; release or cancel"),
    ("EXPIRED", "its deadline passed"),
    ("SKIPPED", "not allowed by a rule"),
    ("CANCELLED", "a person gave it up"),
];

/// Prints the page of the program, or of one of its commands.
pub fn run(mut table: Command, command: Option<&str>) -> Outcome {
    table.build();
    let (page, name) = match command {
        None => (table, "onceward".to_owned()),
        Some(name) => {
            let found = table.find_subcommand(name).ok_or_else(|| {
                Failure::new(exit::NO_INPUT, format!("no command is called {name:?}; see `onceward help`"))
            })?;
            (found.clone(), format!("onceward-{name}"))
        }
    };
    let full = page.get_name() == "onceward";
    let mut bytes = Vec::new();
    write(page.display_name(name.clone()), full, &mut bytes)
        .map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    output::print(&String::from_utf8_lossy(&bytes))
}

fn write(mut page: Command, full: bool, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let after = page.get_after_help().map(ToString::to_string);
    let has_commands = page.has_subcommands();
    let usage = page.render_usage().to_string().replace("Usage: ", "");
    let man = Man::new(page).section("1");
    man.render_title(bytes)?;
    man.render_name_section(bytes)?;
    // Ours, with the names of values.
    let mut synopsis = Roff::default();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([roman(usage.trim())]);
    synopsis.to_writer(bytes)?;
    man.render_description_section(bytes)?;
    man.render_options_section(bytes)?;
    if has_commands {
        man.render_subcommands_section(bytes)?;
    }
    let mut roff = Roff::default();
    if let Some(after) = after.filter(|_| !full) {
        roff.control("SH", ["NOTES"]);
        roff.text([roman(after)]);
    }
    let mut section = |title: &str, rows: &[(&str, &str)]| {
        roff.control("SH", [title]);
        for (name, what) in rows {
            roff.control("TP", []);
            roff.text([bold(*name)]);
            roff.text([roman(*what)]);
        }
    };
    if full {
        section("STATES", &STATES);
    }
    section("FILES", &FILES);
    section("ENVIRONMENT", &ENVIRONMENT);
    section("EXIT STATUS", &EXIT_STATUS);
    if !full {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([bold("onceward"), roman("(1)")]);
    }
    roff.to_writer(bytes)
}
