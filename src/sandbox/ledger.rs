//! What arrived, per reference: the count that tests and `demo` hold against the agent's own word.
//!
//! Counts only; keeps no text and no number (of a recipient the last four characters, in a short list).
//! One reference costs some 40 bytes plus the table's slack, so that millions fit.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// References up to this many bytes are kept in place; the agent's own have 30.
const INLINE_BYTES: usize = 30;
/// How many of the newest arrivals are listed in order.
const RECENT_MAX: usize = 4_096;

/// A reference, in 32 bytes unless it is longer than usual.
#[derive(Clone)]
enum Reference {
    Short(u8, [u8; INLINE_BYTES]),
    Long(Box<[u8]>),
}
// What the header promises about memory.
const _: () = assert!(size_of::<(Reference, Counts)>() == 40);

impl Reference {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut place = [0; INLINE_BYTES];
        match place.get_mut(..bytes.len()) {
            Some(part) => {
                part.copy_from_slice(bytes);
                Reference::Short(bytes.len() as u8, place)
            }
            None => Reference::Long(bytes.into()),
        }
    }
    fn bytes(&self) -> &[u8] {
        match self {
            Reference::Short(length, place) => &place[..usize::from(*length)],
            Reference::Long(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for Reference {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}
impl Hash for Reference {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}
impl PartialEq for Reference {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}
impl Eq for Reference {}
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.bytes()))
    }
}

/// What happened under one reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Whole requests that carried it, whatever was answered.
    pub arrived: u32,
    /// Of these, how many were told a plain no (429, a wrong token, a bad field …): surely no message for the
    /// customer.
    pub refused: u16,
    /// Heads that named it and whose body never came whole.
    pub heads_only: u8,
    /// How many the vendor took, whatever it answered.
    pub accepted: u8,
}

impl Counts {
    /// Whether a customer may have got it more than once.
    pub fn is_duplicate(&self) -> bool {
        self.arrived.saturating_sub(u32::from(self.refused)) > 1
    }
}

/// Sums over everything since the start or the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Whole requests that carried a message.
    pub arrived: u64,
    /// Of these, told a plain no.
    pub refused: u64,
    /// Messages the vendor took (some of their answers may have been damaged on purpose).
    pub accepted: u64,
    /// Different references.
    pub references: u64,
    /// References with more than one whole request.
    pub repeated: u64,
    /// References with more than one whole request that was not refused: possible second messages.
    pub duplicates: u64,
    /// Messages without a reference.
    pub without_reference: u64,
    /// Heads whose body never came whole.
    pub heads_only: u64,
    /// Token calls that were answered with a token.
    pub tokens: u64,
    /// Connections that were accepted.
    pub connections: u64,
}

/// One of the newest arrivals.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Its reference; empty where it had none.
    pub reference: String,
    /// The recipient with all but the last four characters hidden.
    pub recipient: String,
    /// When the whole request had been read.
    pub at: Instant,
}

struct Recent {
    reference: Reference,
    recipient_end: [u8; 4],
    at: Instant,
}

#[derive(Default)]
struct Inner {
    counts: HashMap<Reference, Counts>,
    totals: Totals,
    recent: VecDeque<Recent>,
    waiting: usize,
}

/// The book of arrivals. Shared by the server's threads and whoever asks.
#[derive(Default)]
pub struct Ledger {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves at worst one count behind; the rest of the book stays true.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books one whole request, before anything else is done with it; says how many there are now.
    pub(super) fn arrive(&self, reference: &str, recipient: &str) -> u32 {
        let mut inner = self.lock();
        inner.totals.arrived += 1;
        let mut recipient_end = [b'*'; 4];
        let tail = recipient.as_bytes();
        let tail = &tail[tail.len().saturating_sub(4)..];
        recipient_end[4 - tail.len()..].copy_from_slice(tail);
        let key = Reference::new(reference);
        if inner.recent.len() == RECENT_MAX {
            inner.recent.pop_front();
        }
        inner.recent.push_back(Recent { reference: key.clone(), recipient_end, at: Instant::now() });
        let now = if reference.is_empty() {
            inner.totals.without_reference += 1;
            1
        } else {
            let counts = inner.counts.entry(key).or_default();
            counts.arrived = counts.arrived.saturating_add(1);
            counts.arrived
        };
        if inner.waiting > 0 {
            self.changed.notify_all();
        }
        now
    }

    /// Books that the request just booked was told a plain no.
    pub(super) fn refuse(&self, reference: &str) {
        let mut inner = self.lock();
        inner.totals.refused += 1;
        if let Some(counts) = inner.counts.get_mut(reference.as_bytes()) {
            counts.refused = counts.refused.saturating_add(1);
        }
    }

    pub(super) fn accept(&self, reference: &str) {
        let mut inner = self.lock();
        inner.totals.accepted += 1;
        if let Some(counts) = inner.counts.get_mut(reference.as_bytes()) {
            counts.accepted = counts.accepted.saturating_add(1);
        }
    }

    /// Books a head without its body; the reference is empty where the head named none.
    pub(super) fn head_only(&self, reference: &str) {
        let mut inner = self.lock();
        inner.totals.heads_only += 1;
        if !reference.is_empty() {
            let counts = inner.counts.entry(Reference::new(reference)).or_default();
            counts.heads_only = counts.heads_only.saturating_add(1);
        }
        self.changed.notify_all();
    }

    pub(super) fn token(&self) {
        self.lock().totals.tokens += 1;
    }

    pub(super) fn connection(&self) {
        self.lock().totals.connections += 1;
    }

    /// The counts of one reference; zeros where it was never seen.
    pub fn counts(&self, reference: &str) -> Counts {
        self.lock().counts.get(reference.as_bytes()).copied().unwrap_or_default()
    }

    /// Whole requests under one reference.
    pub fn arrived(&self, reference: &str) -> u32 {
        self.counts(reference).arrived
    }

    /// The sums. Walks all references (about 10 ms for a million).
    pub fn totals(&self) -> Totals {
        let inner = self.lock();
        let mut totals = inner.totals;
        totals.references = inner.counts.len() as u64;
        totals.repeated = inner.counts.values().filter(|counts| counts.arrived > 1).count() as u64;
        totals.duplicates = inner.counts.values().filter(|counts| counts.is_duplicate()).count() as u64;
        totals
    }

    /// Up to `limit` references for which `wanted` holds, in no particular order.
    pub fn references(&self, limit: usize, wanted: impl Fn(&Counts) -> bool) -> Vec<(String, Counts)> {
        let inner = self.lock();
        let found = inner.counts.iter().filter(|(_, counts)| wanted(counts)).take(limit);
        found.map(|(reference, counts)| (reference.to_string(), *counts)).collect()
    }

    /// The newest arrivals in order, oldest first; at most 4,096.
    pub fn recent(&self) -> Vec<Arrival> {
        let inner = self.lock();
        let show = |recent: &Recent| Arrival {
            reference: recent.reference.to_string(),
            recipient: format!("***{}", String::from_utf8_lossy(&recent.recipient_end)),
            at: recent.at,
        };
        inner.recent.iter().map(show).collect()
    }

    /// Waits until `reference` has arrived at least `wanted` times; false when `timeout` passed first.
    pub fn wait_for(&self, reference: &str, wanted: u32, timeout: Duration) -> bool {
        self.wait(timeout, |inner| {
            inner.counts.get(reference.as_bytes()).map_or(0, |counts| counts.arrived) >= wanted
        })
    }

    /// Waits until at least `wanted` whole requests have arrived in all; false when `timeout` passed first.
    pub fn wait_total(&self, wanted: u64, timeout: Duration) -> bool {
        self.wait(timeout, |inner| inner.totals.arrived >= wanted)
    }

    fn wait(&self, timeout: Duration, done: impl Fn(&Inner) -> bool) -> bool {
        let mut inner = self.lock();
        inner.waiting += 1;
        let result = self.changed.wait_timeout_while(inner, timeout, |inner| !done(inner));
        let (mut inner, passed) = result.unwrap_or_else(PoisonError::into_inner);
        inner.waiting -= 1;
        !passed.timed_out()
    }

    /// Forgets everything.
    pub fn reset(&self) {
        let mut inner = self.lock();
        let waiting = inner.waiting;
        *inner = Inner { waiting, ..Inner::default() };
    }
}
