//! The only reader of the wall clock. Spans are measured with `std::time::Instant`, which never jumps; rooms whose
//! decisions hang on a span read it through [`mono`], so that a simulation can let time pass.
//!
//! A process has one wall clock, so the watch over it (`clock/trust.rs`) is one for the process too. `now` is for
//! whatever decides by the hour; `wall_ms` is for stamps that people read. `clock/watch.rs` tells of leaps.

#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod simulated;
pub mod trust;
pub mod watch;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use self::trust::{Doubt, Now};
use self::trust::{News, Trust};

/// UTC milliseconds; 0 for a clock before 1970.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_ms() -> i64 {
    #[cfg(debug_assertions)]
    if let Some(wall_ms) = simulated::wall_ms() {
        return wall_ms;
    }
    let wall_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
    wall_ms.saturating_add(leapt_ms()).saturating_add(ms(passed()))
}

/// The monotonic clock. What was measured by it is compared with it: a test may let it run ahead of `Instant::now`.
pub fn mono() -> Instant {
    #[cfg(debug_assertions)]
    if let Some(mono) = simulated::mono() {
        return mono;
    }
    Instant::now() + passed()
}

/// How long ago that was, by [`mono`].
pub fn elapsed(since: Instant) -> Duration {
    mono().saturating_duration_since(since)
}

/// Waits.
pub fn sleep(span: Duration) {
    #[cfg(debug_assertions)]
    if simulated::wait(span) {
        return;
    }
    std::thread::sleep(span);
}

/// When this program was built, UTC milliseconds.
pub fn built_ms() -> i64 {
    static BUILT: OnceLock<i64> = OnceLock::new();
    *BUILT.get_or_init(|| env!("ONCEWARD_BUILT_S").parse::<i64>().unwrap_or(0).saturating_mul(1_000))
}

static WATCHED: Mutex<Option<(Instant, Trust)>> = Mutex::new(None);

fn watched() -> MutexGuard<'static, Option<(Instant, Trust)>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to watch the clock. `newest_ms` is the newest time that earlier runs recorded.
pub fn begin(newest_ms: Option<i64>) {
    *watched() = Some((mono(), Trust::new(built_ms(), newest_ms, settle_of_a_test())));
}

/// The time, and whether it can be believed. Without [`begin`] (in commands) it is.
pub fn now() -> Now {
    match &mut *watched() {
        Some((begun, trust)) => {
            // Both clocks under the lock: readings never come out of order.
            let (mono, wall_ms) = both(*begun);
            trust.observe(mono, wall_ms)
        }
        None => Now::sure(wall_ms()),
    }
}

/// What a command may think of the clock: as [`now`], by the newest time that the agent has recorded.
pub fn now_beside(newest_ms: Option<i64>) -> Now {
    Trust::new(built_ms(), newest_ms, settle_of_a_test()).observe(Duration::ZERO, wall_ms())
}

/// A person says that the clock is right.
pub fn vouch() {
    if let Some((begun, trust)) = &mut *watched() {
        let (mono, wall_ms) = both(*begun);
        trust.vouch(mono, wall_ms);
    }
}

/// The newest believed time, and what was noticed since the last look.
pub fn take_news() -> (Option<i64>, Vec<News>) {
    match &mut *watched() {
        Some((_, trust)) => (trust.newest_ms(), trust.take_news()),
        None => (None, Vec::new()),
    }
}

/// Milliseconds of a span, saturating.
pub fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Microseconds of a span, saturating.
pub fn us(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Both clocks in one reading: the span since `begun`, and the wall clock.
fn both(begun: Instant) -> (Duration, i64) {
    loop {
        let before = passed();
        let reading = (elapsed(begun), wall_ms());
        if passed() == before {
            return reading; // a test did not let time pass in between: that would look like a leap
        }
    }
}

/// Debug builds only: the file that `ONCEWARD_CLOCK_FILE` names holds an offset of the wall clock alone, milliseconds,
/// so that a test can make the clock of a running program leap.
fn leapt_ms() -> i64 {
    #[cfg(debug_assertions)]
    {
        static FILE: OnceLock<Option<String>> = OnceLock::new();
        set_by_a_test(&FILE, "ONCEWARD_CLOCK_FILE")
    }
    #[cfg(not(debug_assertions))]
    0
}

/// Debug builds only: the file that `ONCEWARD_PASSED_FILE` names holds how much more time has passed than really has,
/// milliseconds, by both clocks: days go by, and nothing leaps. It only grows.
fn passed() -> Duration {
    #[cfg(debug_assertions)]
    {
        static FILE: OnceLock<Option<String>> = OnceLock::new();
        Duration::from_millis(u64::try_from(set_by_a_test(&FILE, "ONCEWARD_PASSED_FILE")).unwrap_or(0))
    }
    #[cfg(not(debug_assertions))]
    Duration::ZERO
}

/// Read at each reading of a clock.
#[cfg(debug_assertions)]
fn set_by_a_test(file: &OnceLock<Option<String>>, variable: &str) -> i64 {
    file.get_or_init(|| std::env::var(variable).ok())
        .as_ref()
        .and_then(|file| std::fs::read_to_string(file).ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Debug builds only: `ONCEWARD_CLOCK_SETTLE_MS` shortens the watch after a leap.
fn settle_of_a_test() -> Option<Duration> {
    if !cfg!(debug_assertions) {
        return None;
    }
    let text = std::env::var("ONCEWARD_CLOCK_SETTLE_MS").ok()?;
    text.parse().ok().map(Duration::from_millis)
}
