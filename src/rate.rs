//! One destination's budget of calls, shared by its workers: calls are spread evenly, none is saved up. A start begins
//! with a full gap, so that restarts, however many, never exceed the budget and nothing has to be stored for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The budget.
#[derive(Debug)]
pub struct Rate {
    /// Between two calls; zero = no bound.
    gap: Duration,
    next: Mutex<Instant>,
}

impl Rate {
    /// `None` = no bound.
    pub fn new(per_s: Option<f64>) -> Self {
        let gap = per_s
            .filter(|rate| *rate > 0.0)
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        Self { gap, next: Mutex::new(Instant::now() + gap) }
    }

    /// Waits for this caller's turn. False if `stop` was set meanwhile: then the turn is not used.
    pub fn take(&self, stop: &AtomicBool) -> bool {
        if self.gap.is_zero() {
            return true;
        }
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn + self.gap;
            turn
        };
        loop {
            let left = turn.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_spread_evenly_over_threads() {
        let rate = Rate::new(Some(200.0));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..5).for_each(|_| assert!(rate.take(&AtomicBool::new(false)))));
            }
        });
        // 20 calls at 5 ms, the first after a gap, whoever made them.
        assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let rate = Rate::new(Some(0.001));
        assert!(!rate.take(&AtomicBool::new(true)));
    }
}
