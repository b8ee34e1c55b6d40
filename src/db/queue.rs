//! The writer's queue: many put one piece of work each, one takes all that is there at once.
//!
//! A plain lock and a bell instead of a channel: the taker sleeps until there is what it [`Wants`], so an outcome that
//! may wait wakes nobody, and nobody spins on a machine with few processors.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::writer::Work;
use crate::limits::WRITER_BATCH_MAX;

/// What the taker waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// Any work.
    Anything,
    /// Work that somebody is waiting for (not [`Work::must_land`]), or a full batch.
    Claim,
    /// A full batch.
    Full,
    /// Nothing: it is not waiting.
    Nothing,
}

struct State {
    waiting: Vec<Box<dyn Work>>,
    /// How many of `waiting` somebody waits for.
    claims: usize,
    /// How much the taker already has.
    taken: usize,
    wants: Wants,
    /// When the first of `waiting` came.
    rang: Instant,
    handles: usize,
    taker_is_gone: bool,
}

impl State {
    fn has(&self, wants: Wants) -> bool {
        let full = self.taken + self.waiting.len() >= WRITER_BATCH_MAX;
        match wants {
            Wants::Anything => !self.waiting.is_empty(),
            Wants::Claim => self.claims > 0 || full,
            Wants::Full => full,
            Wants::Nothing => false,
        }
    }
}

struct Shared {
    state: Mutex<State>,
    bell: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each section leaves the state whole before it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The putting end. When the last clone is dropped the taker learns that no more can come.
pub struct Queue {
    shared: Arc<Shared>,
}

/// The taking end.
pub struct Taker {
    shared: Arc<Shared>,
}

/// A queue.
pub fn new() -> (Queue, Taker) {
    let state = State {
        waiting: Vec::new(),
        claims: 0,
        taken: 0,
        wants: Wants::Nothing,
        rang: Instant::now(),
        handles: 1,
        taker_is_gone: false,
    };
    let shared = Arc::new(Shared { state: Mutex::new(state), bell: Condvar::new() });
    (Queue { shared: shared.clone() }, Taker { shared })
}

impl Queue {
    /// Puts work in; gives it back if the taker is gone.
    pub fn put(&self, work: Box<dyn Work>) -> Option<Box<dyn Work>> {
        let claim = !work.must_land();
        let mut state = self.shared.lock();
        if state.taker_is_gone {
            return Some(work);
        }
        if state.waiting.is_empty() {
            state.rang = Instant::now();
        }
        state.claims += usize::from(claim);
        state.waiting.push(work);
        let ring = state.wants != Wants::Nothing && state.has(state.wants);
        if ring {
            state.wants = Wants::Nothing; // one ring is enough
        }
        drop(state);
        if ring {
            self.shared.bell.notify_one();
        }
        None
    }
}

impl Clone for Queue {
    fn clone(&self) -> Self {
        self.shared.lock().handles += 1;
        Self { shared: self.shared.clone() }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.handles -= 1;
        if state.handles == 0 {
            drop(state);
            self.shared.bell.notify_one();
        }
    }
}

impl Taker {
    /// Waits for what is wanted (at most until `end`), then adds all that is there to `batch`, up to
    /// [`WRITER_BATCH_MAX`]. False when no more can come.
    pub fn take(&self, batch: &mut Vec<Box<dyn Work>>, wants: Wants, end: Option<Instant>) -> bool {
        let mut state = self.shared.lock();
        state.taken = batch.len();
        while !state.has(wants) && state.handles > 0 {
            state.wants = wants;
            state = match end {
                None => self.shared.bell.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.shared.bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.wants = Wants::Nothing;
        let count = state.waiting.len().min(WRITER_BATCH_MAX.saturating_sub(batch.len()));
        if batch.is_empty() && count == state.waiting.len() {
            std::mem::swap(batch, &mut state.waiting);
            state.claims = 0;
        } else {
            batch.extend(state.waiting.drain(..count));
            state.claims = state.waiting.iter().filter(|work| !work.must_land()).count();
        }
        state.handles > 0 || !state.waiting.is_empty()
    }

    /// When the first work of the last wait came.
    pub fn rang(&self) -> Instant {
        self.shared.lock().rang
    }
}

impl Drop for Taker {
    /// Also when the writer panics: nobody may wait for an answer that never comes.
    fn drop(&mut self) {
        let left = {
            let mut state = self.shared.lock();
            state.taker_is_gone = true;
            std::mem::take(&mut state.waiting)
        };
        for work in left {
            work.failed("the writer has stopped");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Piece {
        claim: bool,
    }
    impl Work for Piece {
        fn apply(&mut self, _: &rusqlite::Connection) -> rusqlite::Result<()> {
            Ok(())
        }
        fn committed(self: Box<Self>) {}
        fn failed(self: Box<Self>, _: &str) {}
        fn must_land(&self) -> bool {
            !self.claim
        }
    }
    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(30))
    }

    #[test]
    fn an_outcome_waits_for_a_claim_and_a_claim_waits_for_nobody() {
        let (queue, taker) = new();
        let mut batch = Vec::new();
        queue.put(Box::new(Piece { claim: false }));
        let begun = Instant::now();
        assert!(taker.take(&mut batch, Wants::Claim, soon()));
        assert!(begun.elapsed() >= Duration::from_millis(30), "no claim came");
        assert_eq!(batch.len(), 1);
        queue.put(Box::new(Piece { claim: true }));
        assert!(taker.take(&mut batch, Wants::Claim, Some(Instant::now() + Duration::from_secs(60))));
        assert_eq!(batch.len(), 2);
    }

    #[test]
    fn a_batch_has_a_bound_and_the_rest_stays_in_order() {
        let (queue, taker) = new();
        for i in 0..WRITER_BATCH_MAX + 3 {
            queue.put(Box::new(Piece { claim: i % 2 == 0 }));
        }
        let mut batch = Vec::new();
        assert!(taker.take(&mut batch, Wants::Anything, None));
        assert_eq!(batch.len(), WRITER_BATCH_MAX);
        batch.clear();
        assert!(taker.take(&mut batch, Wants::Claim, None));
        assert_eq!(batch.len(), 3);
    }

    #[test]
    fn the_last_handle_ends_the_wait_after_what_is_left_was_taken() {
        let (queue, taker) = new();
        let other = queue.clone();
        queue.put(Box::new(Piece { claim: false }));
        drop(queue);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(other);
        });
        let mut batch = Vec::new();
        assert!(taker.take(&mut batch, Wants::Anything, None));
        assert!(!taker.take(&mut batch, Wants::Full, None));
        assert_eq!(batch.len(), 1);
        thread.join().expect("ends");
    }

    #[test]
    fn work_for_a_taker_that_is_gone_comes_back() {
        let (queue, taker) = new();
        drop(taker);
        assert!(queue.put(Box::new(Piece { claim: true })).is_some());
    }
}
