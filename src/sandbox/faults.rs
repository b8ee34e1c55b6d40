//! The rules in force: which of them meets a request.
//!
//! Decides only; what a rule does is carried out in `server`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rule::{Facts, Rule, Stage};

/// The rules in force, with their counters.
pub(super) struct Faults {
    inner: Mutex<Inner>,
    /// So that a server without rules takes no lock.
    any: AtomicBool,
}

struct Inner {
    rules: Vec<(Arc<Rule>, u64)>,
    random: u64,
}

impl Faults {
    pub(super) fn new(rules: Vec<Rule>, seed: u64) -> Self {
        let faults = Self {
            inner: Mutex::new(Inner { rules: Vec::new(), random: seed }),
            any: AtomicBool::new(false),
        };
        faults.add(rules);
        faults
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts rules behind those in force.
    pub(super) fn add(&self, rules: Vec<Rule>) {
        let mut inner = self.lock();
        inner.rules.extend(rules.into_iter().map(|rule| (Arc::new(rule), 0)));
        self.any.store(!inner.rules.is_empty(), Ordering::Release);
    }

    /// Puts rules in the place of those in force; counters begin anew.
    pub(super) fn set(&self, rules: Vec<Rule>) {
        let mut inner = self.lock();
        inner.rules = rules.into_iter().map(|rule| (Arc::new(rule), 0)).collect();
        self.any.store(!inner.rules.is_empty(), Ordering::Release);
    }

    /// How many are in force.
    pub(super) fn len(&self) -> usize {
        self.lock().rules.len()
    }

    /// The first rule of this stage that fires. Counters move only for rules that were asked.
    pub(super) fn decide(&self, stage: Stage, facts: &Facts<'_>) -> Option<Arc<Rule>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut inner = self.lock();
        let Inner { rules, random } = &mut *inner;
        for (rule, seen) in rules.iter_mut() {
            if rule.stage() != stage || !rule.meets(facts) {
                continue;
            }
            *seen += 1;
            let Some(counted) = seen.checked_sub(rule.when.after).filter(|n| *n > 0) else { continue };
            if rule.when.first.is_none_or(|first| counted <= first)
                && rule.when.every.is_none_or(|every| counted.is_multiple_of(every))
                && rule.when.chance.is_none_or(|share| unit_interval(random) < share)
            {
                return Some(Arc::clone(rule));
            }
        }
        None
    }
}

/// SplitMix64: the same seed gives the same faults for the same sequence of requests.
fn unit_interval(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}
