//! One answer for one waiting thread: a parked thread and a place for the answer, without the spinning of a channel.
//!
//! A worker waits for each of its claims. On a branch server's few processors a spinning wait takes the time from the
//! very commit that is waited for. An [`Answer`] that is dropped unspoken gives its fall-back, so nobody waits for ever.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

/// The place. Belongs to the thread that made it.
#[derive(Debug)]
pub struct Slot<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Debug)]
struct Shared<T> {
    place: Mutex<Option<T>>,
    waiter: Thread,
}

impl<T> Slot<T> {
    /// For the current thread, which alone may [`Slot::wait`].
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared { place: Mutex::new(None), waiter: std::thread::current() }) }
    }

    /// The right to answer once; `unspoken` is the answer if it is dropped.
    pub fn answer(&self, unspoken: fn() -> T) -> Answer<T> {
        Answer { shared: self.shared.clone(), unspoken: Some(unspoken) }
    }

    /// Waits for the answer.
    pub fn wait(&self) -> T {
        loop {
            if let Some(answer) = self.shared.place.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return answer;
            }
            #[cfg(debug_assertions)]
            if crate::clock::simulated::wait(std::time::Duration::ZERO) {
                continue;
            }
            std::thread::park();
        }
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The right to answer once.
#[derive(Debug)]
pub struct Answer<T> {
    shared: Arc<Shared<T>>,
    unspoken: Option<fn() -> T>,
}

impl<T> Answer<T> {
    /// Answers and wakes the waiter.
    pub fn give(mut self, answer: T) {
        self.unspoken = None;
        self.put(answer);
    }

    fn put(&self, answer: T) {
        *self.shared.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.shared.waiter.unpark();
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(unspoken) = self.unspoken.take() {
            self.put(unspoken());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_wakes_its_waiter_and_a_dropped_one_gives_its_fall_back() {
        let slot = Slot::new();
        for spoken in [true, false] {
            let answer = slot.answer(|| 0);
            let thread = std::thread::spawn(move || if spoken { answer.give(1) } else { drop(answer) });
            assert_eq!(slot.wait(), i32::from(spoken));
            thread.join().expect("ends");
        }
    }
}
