//! One destination's gate, shared by the relay and the destination's workers: open, waiting, closed or paused.
//!
//! A dead destination closes once for all its messages; then one probe at a time, with growing pauses, until it
//! answers. Waiting (429) is a pause with a known end; paused is an operator's word. Knows no message and no table
//! (`store/destination.rs` keeps its [`Standing`]); measured in monotonic time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::ms;
use crate::limits::{GATE_PAUSE_MAX, GATE_PAUSE_MIN, GATE_THROTTLE_DEFAULT, GATE_WAIT_MAX};
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
    /// Nothing until an operator says so.
    Paused,
}

/// Leave to call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// The gate is open.
    Free,
    /// The one probe of a closed gate.
    Probe,
}

/// What changed by an outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Nothing.
    None,
    /// It has just closed.
    Closed(String),
    /// A probe failed: it stays closed for longer.
    Still,
    /// It answers again, after this long.
    Opened(Duration),
    /// It asked for a pause.
    Waits(Duration),
}

/// How a destination stands, to be kept over restarts and shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Standing {
    /// Closed since, UTC milliseconds.
    pub closed_since_ms: Option<i64>,
    /// Present pause between two probes while closed, milliseconds.
    pub pause_ms: i64,
    /// Next probe, or the end of a pause that the destination asked for, UTC milliseconds.
    pub next_try_ms: Option<i64>,
    /// Why.
    pub reason: Option<String>,
    /// An operator's pause: why.
    pub paused: Option<String>,
}

/// Why it waits, where a call went well and its answer still asked for a pause.
const BY_ITS_ANSWER: &str = "the headers of its last answer (Retry-After, RateLimit-*)";

/// The gate.
#[derive(Debug)]
pub struct Gate {
    state: Mutex<State>,
    /// Calls in a row whose outcome is unknown that close it; 0 = never.
    unknown_max: u32,
}

#[derive(Debug, Default)]
struct State {
    /// Set while closed.
    closed: Option<Closed>,
    /// Not before this (429, `Retry-After`).
    waits_until: Option<Instant>,
    /// An operator's pause.
    paused: Option<String>,
    /// Unknown outcomes since the last that was known.
    unknown_run: u32,
    last_error: Option<String>,
}

#[derive(Debug)]
struct Closed {
    since: Instant,
    next_probe: Instant,
    pause: Duration,
    probing: bool,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Gate {
    /// Open. `unknown_max` calls in a row whose outcome is unknown close it (0 = never).
    pub fn new(unknown_max: u32) -> Self {
        Self { state: Mutex::default(), unknown_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding it cannot leave a half state: each section is a plain assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As an earlier start left it. A closed one is probed at once: a restart is often the repair.
    pub fn restore(&self, standing: &Standing, now: Instant, now_ms: i64) {
        let mut state = self.lock();
        let span = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        state.paused = standing.paused.clone();
        state.last_error = standing.reason.clone();
        match (standing.closed_since_ms, standing.next_try_ms) {
            (Some(since_ms), _) => {
                let since = now.checked_sub(span(now_ms.saturating_sub(since_ms))).unwrap_or(now);
                let pause = span(standing.pause_ms).clamp(GATE_PAUSE_MIN, GATE_PAUSE_MAX);
                state.closed = Some(Closed { since, next_probe: now, pause, probing: false });
            }
            (None, Some(until_ms)) if until_ms > now_ms => {
                // A clock that was wrong must not shut a destination for years.
                state.waits_until = Some(now + span(until_ms - now_ms).min(GATE_WAIT_MAX));
            }
            _ => {}
        }
    }

    /// For the table and for people.
    pub fn standing(&self, now: Instant, now_ms: i64) -> Standing {
        let state = self.lock();
        let at_ms = |at: Instant| now_ms.saturating_add(ms(at.saturating_duration_since(now)));
        let waits = state.waits_until.filter(|until| *until > now);
        Standing {
            closed_since_ms: state
                .closed
                .as_ref()
                .map(|closed| now_ms.saturating_sub(ms(now.saturating_duration_since(closed.since)))),
            pause_ms: state.closed.as_ref().map_or(0, |closed| ms(closed.pause)),
            next_try_ms: state.closed.as_ref().map(|closed| closed.next_probe).or(waits).map(at_ms),
            reason: if state.closed.is_some() || waits.is_some() { state.last_error.clone() } else { None },
            paused: state.paused.clone(),
        }
    }

    /// An operator's pause (`Some(why)`) or its end.
    pub fn pause(&self, why: Option<String>) {
        self.lock().paused = why;
    }

    /// Whether an operator has paused it.
    pub fn is_paused(&self) -> bool {
        self.lock().paused.is_some()
    }

    /// Whether a worker may still call on a pass that it got some time ago, before it waited for the rate.
    pub fn still_allows(&self, pass: Pass, now: Instant) -> bool {
        let state = self.lock();
        state.paused.is_none()
            && state.waits_until.is_none_or(|until| now >= until)
            && (pass == Pass::Probe || state.closed.is_none())
    }

    /// An operator's wish: the next probe is now. A pause that the vendor asked for stands.
    pub fn probe_now(&self, now: Instant) {
        let mut state = self.lock();
        if let Some(closed) = &mut state.closed {
            closed.next_probe = now;
        }
    }

    /// For the relay: how much may be handed over.
    pub fn room(&self, now: Instant) -> Room {
        let state = self.lock();
        if state.paused.is_some() {
            return Room::Paused;
        }
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
        if state.paused.is_some() || state.waits_until.is_some_and(|until| now < until) {
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
        let asked = pause.map(|pause| state.wait(pause, now));
        if !matches!(outcome, Outcome::Unknown { .. }) {
            state.unknown_run = 0;
        }
        match outcome {
            Outcome::NotSent { kind: NotSentKind::Throttled(wait), reason, .. } => {
                state.last_error = Some(reason.clone());
                // It answered: whatever was closed is open, and only the pause counts.
                state.closed = None;
                asked.unwrap_or_else(|| state.wait(wait.unwrap_or(GATE_THROTTLE_DEFAULT), now))
            }
            Outcome::NotSent { kind: NotSentKind::Unreachable | NotSentKind::Denied, reason, .. } => {
                state.failed(reason.clone(), now, true)
            }
            // It says something about the hour alone. (The worker gives a probe back.)
            Outcome::NotSent { kind: NotSentKind::TooLate, .. } => Change::None,
            // It proves nothing about one call; but a row of them is a destination that burns every message into an
            // ERROR that a person must settle.
            Outcome::Unknown { reason, .. } => {
                state.unknown_run = state.unknown_run.saturating_add(1);
                let run = state.unknown_run;
                let close = self.unknown_max > 0 && run >= self.unknown_max;
                let change = state.failed(
                    format!("{run} calls in a row ended unknown, the last with: {reason}"),
                    now,
                    close,
                );
                // A 503 that says how long: it waits, and people see why.
                match asked {
                    Some(asked) if change == Change::None => {
                        state.last_error = Some(reason.clone());
                        asked
                    }
                    _ => change,
                }
            }
            Outcome::Accepted { .. }
            | Outcome::Rejected { .. }
            | Outcome::NotSent { kind: NotSentKind::Refused, .. } => match (state.closed.take(), asked) {
                (Some(closed), asked) => {
                    state.last_error = asked.map(|_| BY_ITS_ANSWER.to_owned());
                    Change::Opened(now.saturating_duration_since(closed.since))
                }
                (None, Some(asked)) => {
                    state.last_error = Some(BY_ITS_ANSWER.to_owned());
                    asked
                }
                (None, None) => Change::None,
            },
        }
    }

    /// Why it is closed; `None` while it is open or only waits.
    pub fn closed_by(&self) -> Option<String> {
        let state = self.lock();
        state.closed.as_ref().map(|_| state.last_error.clone().unwrap_or_else(|| "no answer".into()))
    }

    /// For status: paused, closed or waiting, why, and how long until the next try (zero where only a person ends it).
    pub fn describe(&self, now: Instant) -> Option<(String, Duration)> {
        let state = self.lock();
        if let Some(why) = &state.paused {
            return Some((format!("paused by an operator: {why}"), Duration::ZERO));
        }
        let error = state.last_error.clone().unwrap_or_else(|| "it asked for a pause".into());
        match (&state.closed, state.waits_until) {
            (Some(closed), _) => Some((error, closed.next_probe.saturating_duration_since(now))),
            (None, Some(until)) if now < until => Some((error, until - now)),
            _ => None,
        }
    }
}

impl State {
    /// A pause that the destination asked for.
    fn wait(&mut self, pause: Duration, now: Instant) -> Change {
        let pause = pause.min(GATE_WAIT_MAX);
        let was_waiting = self.waits_until.is_some_and(|until| now < until);
        self.waits_until = Some(now + pause);
        if was_waiting || pause.is_zero() { Change::None } else { Change::Waits(pause) }
    }

    /// A call failed: a closed gate stays closed for longer if this was its probe, an open one closes if `close`.
    fn failed(&mut self, reason: String, now: Instant, close: bool) -> Change {
        match &mut self.closed {
            Some(closed) if closed.probing => {
                closed.pause = (closed.pause * 2).min(GATE_PAUSE_MAX);
                closed.next_probe = now + closed.pause;
                closed.probing = false;
                self.last_error = Some(reason);
                Change::Still
            }
            // Calls that were already under way when it closed.
            Some(_) => Change::None,
            None if close => {
                let pause = GATE_PAUSE_MIN;
                self.closed = Some(Closed { since: now, next_probe: now + pause, pause, probing: false });
                self.last_error = Some(reason.clone());
                Change::Closed(reason)
            }
            None => Change::None,
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

    fn unknown() -> Outcome {
        Outcome::Unknown { code: None, reason: "status 502".into() }
    }

    #[test]
    fn unknown_outcomes_in_a_row_close_it_and_one_that_is_known_begins_anew() {
        let gate = Gate::new(3);
        let now = Instant::now();
        for outcome in [unknown(), unknown(), yes(), unknown(), unknown()] {
            assert_eq!(gate.learn(&outcome, None, now), Change::None);
        }
        assert!(
            matches!(gate.learn(&unknown(), None, now), Change::Closed(reason) if reason.starts_with("3 calls"))
        );
        let later = now + GATE_PAUSE_MIN;
        assert_eq!(gate.may_call(later), Some(Pass::Probe));
        assert_eq!(gate.learn(&unknown(), None, later), Change::Still);
        assert_eq!(gate.may_call(later), None, "one message a pause, not one a call");
        let never = Gate::new(0);
        (0..100).for_each(|_| assert_eq!(never.learn(&unknown(), None, now), Change::None));
    }

    #[test]
    fn a_pause_that_comes_with_a_yes_is_kept_and_told() {
        let gate = Gate::default();
        let now = Instant::now();
        let wait = Duration::from_secs(9);
        assert_eq!(gate.learn(&yes(), Some(wait), now), Change::Waits(wait));
        assert_eq!(gate.room(now), Room::Shut(now + wait));
        assert!(gate.describe(now).is_some());
    }

    #[test]
    fn a_restart_keeps_what_was_known() {
        let (now, now_ms) = (Instant::now(), 1_800_000_000_000);
        let gate = Gate::default();
        gate.learn(&not_sent(NotSentKind::Unreachable), None, now);
        gate.pause(Some("stock-taking".into()));
        let standing = gate.standing(now, now_ms);
        let later = Gate::default();
        later.restore(&standing, now, now_ms + 60_000);
        assert_eq!(later.room(now), Room::Paused);
        assert_eq!(later.may_call(now), None);
        later.pause(None);
        assert_eq!(later.room(now), Room::Probe, "probed at once");
        assert!(later.closed_by().is_some());
        let waiting = Standing { next_try_ms: Some(i64::MAX), ..Standing::default() };
        let fresh = Gate::default();
        fresh.restore(&waiting, now, now_ms);
        assert_eq!(fresh.room(now), Room::Shut(now + GATE_WAIT_MAX), "a wrong clock shuts nothing for years");
    }

    #[test]
    fn a_pause_has_the_reason_of_whoever_asked_for_it() {
        let gate = Gate::default();
        let now = Instant::now();
        let pause = Some(Duration::from_secs(8));
        gate.learn(&not_sent(NotSentKind::Throttled(None)), Some(Duration::from_millis(1)), now);
        let later = now + Duration::from_secs(1);
        assert_eq!(gate.learn(&yes(), pause, later), Change::Waits(Duration::from_secs(8)));
        assert_eq!(gate.standing(later, 0).reason.as_deref(), Some(BY_ITS_ANSWER));
        // A 503 with Retry-After: nothing is known of its call, and the destination waits all the same.
        let unknown = Outcome::Unknown { code: None, reason: "status 503".into() };
        let gate = Gate::default();
        assert_eq!(gate.learn(&unknown, pause, now), Change::Waits(Duration::from_secs(8)));
        assert!(gate.standing(now, 0).reason.is_some_and(|reason| reason.contains("status 503")));
    }
}
