//! `run`: the agent in the foreground. READY only after recovery and one real commit; WATCHDOG only from proof of
//! progress; SIGTERM and SIGINT stop gracefully.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, logging};
use crate::agent::{Agent, StartError};
use crate::exit;

/// Between two looks at the rooms where systemd asks for no watchdog.
const TICK: Duration = Duration::from_secs(20);

/// Arguments of `run`.
#[derive(clap::Args)]
pub struct Args {
    /// Stop when the process that started this one ends (for `demo`)
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: &Args) -> Outcome {
    if args.end_with_parent {
        let term = Some(rustix::process::Signal::TERM);
        rustix::process::set_parent_process_death_signal(term)
            .map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    }
    // Before anything else: a stop that comes while we start is a graceful one too.
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    let settings = file.load()?;
    let _lines = logging::start_threaded("info", settings.agent.timezone.clone())
        .map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    log::info!(
        "onceward {} starts: settings {}, state {}",
        env!("CARGO_PKG_VERSION"),
        file.path.display(),
        settings.agent.state_dir.display()
    );
    // A file-size limit is an error of the write, which is handled, and not a reason to die.
    let _ignored = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let agent = Agent::start(&settings, &file.path)
        .map_err(|error| Failure::new(error.exit_code(), explained(&error)))?;
    if let Some(reason) = agent.held() {
        log::warn!("HELD: nothing is sent: {reason}");
    }
    log::info!("ready: owner {}, {} destinations", agent.owner(), settings.destinations.len());
    notify(&[NotifyState::Ready, NotifyState::Status(&agent.status_line())]);

    let agent = wait_for_stop(agent, signals);

    log::info!(
        "stopping: nothing new is begun; calls under way come to their end (at most {} s)",
        agent.stop_within().as_secs()
    );
    notify(&[NotifyState::Stopping]);
    if agent.stop() {
        log::info!("stopped");
        Ok(exit::OK)
    } else {
        log::error!("stopped before everything had ended; the next start settles the rest");
        Ok(exit::IO)
    }
}

/// A damaged file is left as it is: a person puts a backup in its place, or mends it.
fn explained(error: &StartError) -> String {
    match error {
        StartError::Db(db) if db.is_damage() => format!(
            "{error}: damaged, and left as it is. `onceward restore FILE` sets it aside and puts a backup in its place"
        ),
        _ => error.to_string(),
    }
}

/// Ticks, feeds the watchdog, and returns on SIGTERM or SIGINT.
fn wait_for_stop(mut agent: Agent, mut signals: Signals) -> Agent {
    let handle = signals.handle();
    let (sender, signalled) = crossbeam_channel::bounded(4);
    let thread = crate::thread::spawn("signals", move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    if let Err(error) = thread {
        log::error!("no thread for signals: {error}");
        return agent;
    }
    let watchdog = sd_notify::watchdog_enabled();
    let tick = watchdog.map_or(TICK, |period| (period / 3).max(Duration::from_secs(1)));
    loop {
        match signalled.recv_timeout(tick) {
            Ok(SIGHUP) => log::warn!("SIGHUP: settings are read at the start; restart to change them"),
            Ok(_) => {
                handle.close();
                return agent;
            }
            Err(_) => {
                agent.tick();
                let begun = Instant::now();
                if agent.makes_progress(tick) {
                    notify(&[NotifyState::Watchdog, NotifyState::Status(&agent.status_line())]);
                } else {
                    log::error!(
                        "no progress for {} ms: the watchdog is not fed",
                        begun.elapsed().as_millis()
                    );
                }
            }
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states); // not under systemd: nothing to tell
}
