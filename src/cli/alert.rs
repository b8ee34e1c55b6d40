//! `alert test`: one notice through each hook of the settings, from this process, with what came of it. Touches no
//! database and asks no agent, so it also works while the agent is down.

use std::time::Instant;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output};
use crate::alert::Cause;
use crate::alert::book::{Key, Notice, NoticeKind};
use crate::alert::notifier;
use crate::clock::wall_ms;
use crate::exit;

/// Arguments of `alert`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Send a test alert through each hook; exit 1 if one fails or there is none
    Test,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let What::Test = args.what;
    let settings = file.load()?;
    let hooks = notifier::hooks(&settings).map_err(|reason| {
        Failure::new(exit::SETTINGS, format!("{}: [alert]: {reason}", file.path.display()))
    })?;
    if hooks.is_empty() {
        output::print(
            "no hook: set webhook or command under [alert]; the journal and `status` work without\n",
        )?;
        return Ok(exit::NO);
    }
    let now_ms = wall_ms();
    let notice = Notice {
        key: Key { cause: Cause::Test, destination: String::new() },
        kind: NoticeKind::Raised,
        new: 1,
        total: 1,
        first_at_ms: now_ms,
        last_at_ms: now_ms,
        text: "a test by `onceward alert test`; nothing is wrong".to_owned(),
    };
    let mut failed = 0;
    let mut text = String::new();
    for mut hook in hooks {
        let begun = Instant::now();
        match hook.deliver(&notice, &|| false) {
            Ok(()) => text.push_str(&format!(
                "ok    {:<8} delivered in {} ms\n",
                hook.name(),
                begun.elapsed().as_millis()
            )),
            Err(refusal) => {
                failed += 1;
                text.push_str(&format!("ERROR {:<8} {}\n", hook.name(), refusal.reason));
            }
        }
    }
    output::print(&text)?;
    Ok(if failed == 0 { exit::OK } else { exit::NO })
}
