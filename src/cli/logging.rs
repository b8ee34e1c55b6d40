//! Log lines on stderr: level, then the event. Under systemd the journal adds the time and reads the level's number.
//!
//! The agent's lines go through a thread of their own: a stuck journal, terminal or pipe never holds up a worker
//! between a call and its record, and many lines share one write. What does not fit into memory meanwhile is counted
//! and said. A `kill -9` may take the last few milliseconds of lines with it; the databases hold the truth.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use log::Level;

use super::output;
use crate::clock::wall_ms;

/// Most text kept while stderr does not take it, bytes.
const KEPT_MAX: usize = 1024 * 1024;
/// Lines of this span share one write.
const GATHER: Duration = Duration::from_millis(5);
/// Longest wait for stderr at the end.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Straight to stderr, for commands that end soon. `RUST_LOG` sets the level; `default` otherwise.
pub fn start(default: &str) {
    init(default, env_logger::Target::Stderr, jiff::tz::TimeZone::system());
}

/// Through a thread, for the agent; times in the zone of the settings. Dropping the guard waits (shortly) until all is written.
pub fn start_threaded(default: &str, zone: jiff::tz::TimeZone) -> std::io::Result<Guard> {
    let pipe = Pipe::default();
    let of_thread = pipe.clone();
    crate::thread::spawn("log", move || of_thread.run(|bytes| drop(std::io::stderr().write_all(bytes))))?;
    init(default, env_logger::Target::Pipe(Box::new(pipe.clone())), zone);
    Ok(Guard(pipe))
}

fn init(default: &str, target: env_logger::Target, zone: jiff::tz::TimeZone) {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let environment = env_logger::Env::default().default_filter_or(default);
    let _ = env_logger::Builder::from_env(environment)
        // At trace the HTTP client prints whole urls and bodies.
        .filter_module("ureq", log::LevelFilter::Warn)
        .filter_module("ureq_proto", log::LevelFilter::Warn)
        .target(target)
        .format(move |out, record| {
            if journal {
                let number = match record.level() {
                    Level::Error => 3,
                    Level::Warn => 4,
                    Level::Info => 6,
                    Level::Debug | Level::Trace => 7,
                };
                write!(out, "<{number}>")?;
            } else {
                with_time(wall_ms(), &zone, |time| write!(out, "{time} {:<5} ", record.level()))?;
            }
            // Kinds, keys and vendors' words come from outside: a line stays one line.
            let _ = output::Plain(&mut *out).write_fmt(*record.args());
            writeln!(out)
        })
        .try_init();
}

/// The time with date and offset; its text is made once a second, not once a line.
fn with_time<T>(now_ms: i64, zone_of: &jiff::tz::TimeZone, use_it: impl FnOnce(&str) -> T) -> T {
    thread_local! { static LAST: RefCell<(i64, String, String)> = const { RefCell::new((i64::MIN, String::new(), String::new())) }; }
    LAST.with_borrow_mut(|(second, text, zone)| {
        if *second != now_ms.div_euclid(1000) {
            *second = now_ms.div_euclid(1000);
            let now = jiff::Timestamp::from_millisecond(now_ms)
                .unwrap_or_default()
                .to_zoned_datetime(zone_of.clone());
            *text = now.strftime("%Y-%m-%d %H:%M:%S").to_string();
            *zone = now.strftime("%:z").to_string();
        }
        let length = text.len();
        let _ = write!(text, ".{:03}{zone}", now_ms.rem_euclid(1000));
        let value = use_it(text);
        text.truncate(length);
        value
    })
}

/// Waits for the last lines when dropped.
pub struct Guard(Pipe);

impl Drop for Guard {
    fn drop(&mut self) {
        let Shared { state, empty, filled } = &*self.0.shared;
        let mut waiting = lock(state);
        waiting.ending = true;
        filled.notify_one();
        let _ = empty
            .wait_timeout_while(waiting, FLUSH_MAX, |waiting| !waiting.bytes.is_empty() || waiting.writing)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

#[derive(Clone, Default)]
struct Pipe {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<Waiting>,
    filled: Condvar,
    empty: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    dropped: u64,
    writing: bool,
    ending: bool,
}

fn lock(state: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Write for Pipe {
    /// Takes one line, or counts it as dropped.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut waiting = lock(&self.shared.state);
        if waiting.bytes.len() + line.len() > KEPT_MAX {
            waiting.dropped += 1;
            return Ok(line.len());
        }
        let first = waiting.bytes.is_empty();
        waiting.bytes.extend_from_slice(line);
        drop(waiting);
        if first {
            self.shared.filled.notify_one();
        }
        Ok(line.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Pipe {
    fn run(self, write: impl Fn(&[u8])) {
        let Shared { state, filled, empty } = &*self.shared;
        let mut bytes = Vec::new();
        loop {
            let waiting = filled
                .wait_while(lock(state), |waiting| waiting.bytes.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let ending = waiting.ending;
            drop(waiting);
            if !ending {
                std::thread::sleep(GATHER);
            }
            let mut waiting = lock(state);
            std::mem::swap(&mut bytes, &mut waiting.bytes);
            waiting.writing = true;
            let dropped = std::mem::take(&mut waiting.dropped);
            drop(waiting);
            write(&bytes);
            if dropped > 0 {
                write(format!("{dropped} log lines are missing here: stderr did not take them\n").as_bytes());
            }
            bytes.clear();
            lock(state).writing = false;
            empty.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_reader_holds_up_nobody_and_what_is_missing_is_said() {
        let pipe = Pipe::default();
        let (sender, written) = crossbeam_channel::unbounded();
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let of_thread = pipe.clone();
        std::thread::spawn(move || {
            of_thread.run(|bytes| {
                let _ = wait.recv();
                let _ = sender.send(bytes.to_vec());
            })
        });
        let line = [b'x'; 1024];
        let begun = std::time::Instant::now();
        let mut writer = pipe.clone();
        for _ in 0..3 * KEPT_MAX / line.len() {
            assert_eq!(writer.write(&line).expect("never fails"), line.len());
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
        drop(go);
        let all: Vec<u8> =
            std::iter::from_fn(|| written.recv_timeout(Duration::from_millis(500)).ok()).flatten().collect();
        let text = String::from_utf8_lossy(&all);
        assert!(all.len() >= KEPT_MAX && text.contains("log lines are missing here"), "{}", all.len());
    }

    #[test]
    fn the_time_has_date_milliseconds_and_offset() {
        for (ms, tail) in [(0, ":00.000"), (1_000_001, ":40.001"), (1_000_999, ":40.999")] {
            let text = with_time(ms, &jiff::tz::TimeZone::UTC, str::to_owned);
            assert!(text.contains(tail) && text.starts_with("19") && text.len() == 29, "{text}");
        }
    }
}
