//! Log lines on stderr: level, then the event. Under systemd the journal adds the time and reads the level's number.

use std::io::Write;

use log::Level;

/// `RUST_LOG` sets the level; `info` otherwise.
pub fn start(default: &str) {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let environment = env_logger::Env::default().default_filter_or(default);
    let _ = env_logger::Builder::from_env(environment)
        // At trace the HTTP client prints whole urls and bodies.
        .filter_module("ureq", log::LevelFilter::Warn)
        .filter_module("ureq_proto", log::LevelFilter::Warn)
        .format(move |out, record| {
            if journal {
                let number = match record.level() {
                    Level::Error => 3,
                    Level::Warn => 4,
                    Level::Info => 6,
                    Level::Debug | Level::Trace => 7,
                };
                writeln!(out, "<{number}>{}", record.args())
            } else {
                let now = jiff::ZonedDateTime::now().strftime("%H:%M:%S%.3f");
                writeln!(out, "{now} {:<5} {}", record.level(), record.args())
            }
        })
        .try_init();
}
