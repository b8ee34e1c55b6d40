//! One destination's gate, shared by the relay and the destination's workers: open, waiting or closed.
//!
//! A dead destination closes once for all its messages; then one probe at a time, with growing pauses, until it
//! answers. Waiting (429) is a pause with a known end. Knows no message and no table; measured in monotonic time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limits::{GATE_PAUSE_MAX, GATE_PAUSE_MIN, GATE_THROTTLE_DEFAULT};
use crate::message::{NotSentKind, Outcome};

/// What the relay may hand over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// As much as the channel has places for.
    Open,
    /// One message, as a probe.
    Probe,
    /// Nothing before this moment.
    Shut(Instant),
    /// Nothing until the probe that is under way has come back.
    Probing,
}

/// Leave to call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// The gate is open.
    Free,
    /// The one probe of a closed gate.
    Probe,
}

/// What changed by an outcome, worth a line in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    None,
    /// It has just closed.
    Closed(String),
    /// It answers again, after this long.
    Opened(Duration),
    /// It asked for a pause.
    Waits(Duration),
}

/// The gate.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Set while closed.
    closed: Option<Closed>,
    /// Not before this (429, `Retry-After`).
    waits_until: Option<Instant>,
    last_error: Option<String>,
}

#[derive(Debug)]
struct Closed {
    since: Instant,
    next_probe: Instant,
    pause: Duration,
    probing: bool,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding it cannot leave a half state: each section is a plain assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the relay: how much may be handed over.
    pub fn room(&self, now: Instant) -> Room {
        let state = self.lock();
        if let Some(until) = state.waits_until
            && now < until
        {
            return Room::Shut(until);
        }
        match &state.closed {
            None => Room::Open,
            Some(closed) if closed.probing => Room::Probing,
            Some(closed) if now < closed.next_probe => Room::Shut(closed.next_probe),
            Some(_) => Room::Probe,
        }
    }

    /// For a worker, right before it begins: may it call? Takes the probe if the gate is closed and one is due.
    pub fn may_call(&self, now: Instant) -> Option<Pass> {
        let mut state = self.lock();
        if state.waits_until.is_some_and(|until| now < until) {
            return None;
        }
        match &mut state.closed {
            None => Some(Pass::Free),
            Some(closed) if closed.probing || now < closed.next_probe => None,
            Some(closed) => {
                closed.probing = true;
                Some(Pass::Probe)
            }
        }
    }

    /// A worker with this pass did not come to call (policy, claim, stop): a probe is free again.
    pub fn give_back(&self, pass: Pass) {
        if pass == Pass::Probe
            && let Some(closed) = &mut self.lock().closed
        {
            closed.probing = false;
        }
    }

    /// What a call (or a login) told about the destination.
    pub fn learn(&self, outcome: &Outcome, pause: Option<Duration>, now: Instant) -> Change {
        let mut state = self.lock();
        if let Some(pause) = pause {
            state.waits_until = Some(now + pause);
        }
        match outcome {
            Outcome::NotSent { kind: NotSentKind::Throttled(wait), reason, .. } => {
                let wait = wait.unwrap_or(GATE_THROTTLE_DEFAULT);
                let was_waiting = state.waits_until.is_some_and(|until| now < until);
                state.waits_until = Some(now + wait);
                state.last_error = Some(reason.clone());
                // It answered: whatever was closed is open, and only the pause counts.
                state.closed = None;
                if was_waiting { Change::None } else { Change::Waits(wait) }
            }
            Outcome::NotSent { kind: NotSentKind::Unreachable | NotSentKind::Denied, reason, .. } => {
                state.last_error = Some(reason.clone());
                match &mut state.closed {
                    Some(closed) if closed.probing => {
                        closed.pause = (closed.pause * 2).min(GATE_PAUSE_MAX);
                        closed.next_probe = now + closed.pause;
                        closed.probing = false;
                        Change::None
                    }
                    // Calls that were already under way when it closed.
                    Some(_) => Change::None,
                    None => {
                        let pause = GATE_PAUSE_MIN;
                        state.closed =
                            Some(Closed { since: now, next_probe: now + pause, pause, probing: false });
                        Change::Closed(reason.clone())
                    }
                }
            }
            // It says something about the hour alone. (The worker gives a probe back.)
            Outcome::NotSent { kind: NotSentKind::TooLate, .. } => Change::None,
            // Unknown proves nothing about the destination: a probe that ends so leaves it closed a while longer.
            Outcome::Unknown { reason, .. } => {
                if let Some(closed) = &mut state.closed
                    && closed.probing
                {
                    closed.probing = false;
                    closed.pause = (closed.pause * 2).min(GATE_PAUSE_MAX);
                    closed.next_probe = now + closed.pause;
                    state.last_error = Some(reason.clone());
                }
                Change::None
            }
            Outcome::Accepted { .. }
            | Outcome::Rejected { .. }
            | Outcome::NotSent { kind: NotSentKind::Refused, .. } => {
                state.last_error = None;
                match state.closed.take() {
                    Some(closed) => Change::Opened(now.saturating_duration_since(closed.since)),
                    None => Change::None,
                }
            }
        }
    }

    /// For status: closed or waiting, why, and how long until the next try.
    pub fn describe(&self, now: Instant) -> Option<(String, Duration)> {
        let state = self.lock();
        let error = state.last_error.clone().unwrap_or_else(|| "no answer".into());
        match (&state.closed, state.waits_until) {
            (Some(closed), _) => Some((error, closed.next_probe.saturating_duration_since(now))),
            (None, Some(until)) if now < until => Some((error, until - now)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NotSentProof;

    fn not_sent(kind: NotSentKind) -> Outcome {
        Outcome::NotSent { kind, code: None, reason: "refused".into(), proof: NotSentProof::vendor_only() }
    }
    fn yes() -> Outcome {
        Outcome::Accepted { code: "200".into(), vendor_ref: None }
    }

    #[test]
    fn closes_once_probes_one_at_a_time_and_opens() {
        let gate = Gate::default();
        let t0 = Instant::now();
        assert_eq!(gate.room(t0), Room::Open);
        assert!(matches!(gate.learn(&not_sent(NotSentKind::Unreachable), None, t0), Change::Closed(_)));
        assert_eq!(gate.learn(&not_sent(NotSentKind::Unreachable), None, t0), Change::None);
        assert_eq!(gate.room(t0), Room::Shut(t0 + GATE_PAUSE_MIN));
        assert_eq!(gate.may_call(t0), None);
        let t1 = t0 + GATE_PAUSE_MIN;
        assert_eq!(gate.room(t1), Room::Probe);
        assert_eq!(gate.may_call(t1), Some(Pass::Probe));
        assert_eq!(gate.may_call(t1), None, "one probe at a time");
        assert_eq!(gate.room(t1), Room::Probing);
        gate.learn(&not_sent(NotSentKind::Unreachable), None, t1);
        assert_eq!(gate.room(t1), Room::Shut(t1 + GATE_PAUSE_MIN * 2), "the pause grows");
        let t2 = t1 + GATE_PAUSE_MIN * 2;
        assert_eq!(gate.may_call(t2), Some(Pass::Probe));
        assert!(matches!(gate.learn(&yes(), None, t2), Change::Opened(_)));
        assert_eq!(gate.room(t2), Room::Open);
    }

    #[test]
    fn the_pause_has_a_cap() {
        let gate = Gate::default();
        let mut now = Instant::now();
        gate.learn(&not_sent(NotSentKind::Unreachable), None, now);
        for _ in 0..30 {
            now += GATE_PAUSE_MAX;
            assert_eq!(gate.may_call(now), Some(Pass::Probe));
            gate.learn(&not_sent(NotSentKind::Unreachable), None, now);
        }
        assert_eq!(gate.room(now), Room::Shut(now + GATE_PAUSE_MAX));
    }

    #[test]
    fn a_throttle_waits_exactly_as_long_as_asked() {
        let gate = Gate::default();
        let now = Instant::now();
        let wait = Duration::from_secs(7);
        assert_eq!(gate.learn(&not_sent(NotSentKind::Throttled(Some(wait))), None, now), Change::Waits(wait));
        assert_eq!(gate.room(now), Room::Shut(now + wait));
        assert_eq!(gate.room(now + wait), Room::Open);
    }

    #[test]
    fn a_probe_that_was_not_used_is_free_again() {
        let gate = Gate::default();
        let now = Instant::now();
        gate.learn(&not_sent(NotSentKind::Denied), None, now);
        let later = now + GATE_PAUSE_MIN;
        assert_eq!(gate.may_call(later), Some(Pass::Probe));
        gate.give_back(Pass::Free);
        assert_eq!(gate.may_call(later), None, "another worker's end does not free the probe");
        gate.give_back(Pass::Probe);
        assert_eq!(gate.may_call(later), Some(Pass::Probe));
    }
}
