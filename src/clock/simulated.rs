//! Debug builds only: clocks that stand still until the simulation (`tests/sim.rs`) moves them, and its word at each wait.
//!
//! For a process that drives the rooms step by step in one thread. In a release build none of it exists.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, TryRecvError};

static ON: AtomicBool = AtomicBool::new(false);
static WALL_MS: AtomicI64 = AtomicI64::new(0);
static MONO_US: AtomicU64 = AtomicU64::new(0);
static WAIT: OnceLock<fn(Duration)> = OnceLock::new();

/// From now on both clocks say this; `mono` counts from the first call.
pub fn set(wall_ms: i64, mono: Duration) {
    WALL_MS.store(wall_ms, Ordering::SeqCst);
    MONO_US.store(u64::try_from(mono.as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
    ON.store(true, Ordering::SeqCst);
}

/// Called instead of any wait: a room that sleeps (by that long), or one that waits for another's answer (by zero).
pub fn on_wait(hook: fn(Duration)) {
    let _ = WAIT.set(hook);
}

pub(super) fn wall_ms() -> Option<i64> {
    ON.load(Ordering::Relaxed).then(|| WALL_MS.load(Ordering::Relaxed))
}

pub(super) fn mono() -> Option<Instant> {
    static BASE: OnceLock<Instant> = OnceLock::new();
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    // Far ahead of the real one: what a restart looks back upon is still there.
    let base = BASE.get_or_init(|| Instant::now() + Duration::from_secs(100 * 86_400));
    Some(*base + Duration::from_micros(MONO_US.load(Ordering::Relaxed)))
}

/// False where nothing is simulated: then the caller waits for real.
pub fn wait(span: Duration) -> bool {
    match WAIT.get() {
        Some(hook) if ON.load(Ordering::Relaxed) => {
            hook(span);
            true
        }
        _ => false,
    }
}

/// Another room's answer, stepped for until it is there; `Some(None)` where it will never come. `None` where nothing is
/// simulated.
pub fn answer<T>(receiver: &Receiver<T>) -> Option<Option<T>> {
    loop {
        match receiver.try_recv() {
            Ok(answer) => return Some(Some(answer)),
            Err(TryRecvError::Disconnected) => return Some(None),
            Err(TryRecvError::Empty) if wait(Duration::ZERO) => {}
            Err(TryRecvError::Empty) => return None,
        }
    }
}
