//! Pure: whether a message may be sent now. The same function serves the relay, the worker and the last look before
//! the call; it reads no clock and no table. Each rule has a room: environment, consent, window, number; the sizes are
//! the adapters' (`vendor/`), since each vendor counts in its own way.
//!
//! What depends on the hour is decided only while the clock is believed, or where both readings of it agree.

pub mod consent;
pub mod environment;
pub mod number;
pub mod window;

use std::sync::{Mutex, PoisonError};

use jiff::tz::TimeZone;

use self::environment::Environment;
use self::window::{Hours, Window};
use crate::clock::Now;
use crate::clock::trust::SLACK_MS;
use crate::config::Settings;
use crate::message::{Class, Message};

/// What the rules need of the settings.
#[derive(Debug)]
pub struct Policy {
    timezone: TimeZone,
    advertising: Window,
    environment: Environment,
    /// The local day last asked for, as text: `tally` counts by it.
    day: Mutex<(jiff::civil::Date, String)>,
}

/// Who asks: the relay stops taking advertising a little earlier than a worker stops sending it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// Before the hand-off.
    Relay,
    /// Before the claim.
    Worker,
    /// Right before the call.
    Call,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send it.
    Go,
    /// Not now: due then, for this reason.
    Wait {
        /// UTC milliseconds.
        until_ms: i64,
        /// Its deadline from now on, where it is moved to a day that is its last, UTC milliseconds.
        last_ms: Option<i64>,
        /// For people.
        reason: String,
    },
    /// Not before the clock can be believed again.
    Hold(String),
    /// Never: SKIPPED.
    Skip(String),
    /// Too late: EXPIRED.
    Expire(String),
}

/// Times before this (2001-09-09) in a millisecond column are seconds written by mistake.
const PLAUSIBLE_MS_MIN: i64 = 1_000_000_000_000;

impl Policy {
    /// From the settings.
    pub fn new(settings: &Settings) -> Self {
        let agent = &settings.agent;
        Self::of(
            Window::new(agent.timezone.clone(), settings.advertising.clone()),
            agent.timezone.clone(),
            Environment::new(&agent.environment, &agent.allowed_recipients),
        )
    }

    fn of(advertising: Window, timezone: TimeZone, environment: Environment) -> Self {
        Self { timezone, advertising, environment, day: Mutex::default() }
    }

    /// The configured zone.
    pub fn timezone(&self) -> &TimeZone {
        &self.timezone
    }

    /// The local day of a time, `YYYY-MM-DD`.
    pub fn day(&self, now_ms: i64) -> String {
        let today = self.advertising.day(now_ms);
        let mut kept = self.day.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0 != today || kept.1.is_empty() {
            *kept = (today, today.to_string());
        }
        kept.1.clone()
    }

    /// Judges by everything but consent, which needs a look into a table.
    pub fn judge(&self, message: &Message, asking: Asking, now: impl Into<Now>) -> Verdict {
        let now: Now = now.into();
        if checks_environment(asking) && !self.environment.allows(&message.recipient) {
            return Verdict::Skip(
                "ENVIRONMENT: not production, and the recipient is not in allowed_recipients".into(),
            );
        }
        if let Some(deadline_ms) = message.expires_at_ms {
            if deadline_ms <= now.overdue_ms() {
                return Verdict::Expire(deadline_reason(deadline_ms));
            }
            if deadline_ms <= now.due_ms() {
                return held(now); // one reading of the clock says too late, the other not yet
            }
        }
        match message.class {
            // Due at its own insert means at once, whatever the clock said then.
            Class::Transactional if now.doubt.is_some() => {
                let at_once = message.not_before_ms <= message.created_at_ms.saturating_add(SLACK_MS);
                if at_once || message.not_before_ms <= now.overdue_ms() { Verdict::Go } else { held(now) }
            }
            Class::Transactional => Verdict::Go,
            Class::Advertising if now.doubt.is_some() => held(now),
            Class::Advertising => self.judge_hours(message, asking, now.ms),
        }
    }

    fn judge_hours(&self, message: &Message, asking: Asking, now_ms: i64) -> Verdict {
        match self.advertising.judge(message.not_before_ms, asking, now_ms) {
            Hours::Open { .. } => Verdict::Go,
            Hours::Over(day) => Verdict::Expire(format!("WINDOW: its day {day} has passed")),
            Hours::Opens { at_ms, .. }
                if message.expires_at_ms.is_some_and(|deadline_ms| deadline_ms <= at_ms) =>
            {
                Verdict::Expire("WINDOW: its last day is over; the next opening is after its deadline".into())
            }
            Hours::Opens { at_ms, last_ms } => Verdict::Wait {
                until_ms: at_ms,
                last_ms,
                reason: format!("WINDOW: advertising goes out from {}", self.advertising.describe()),
            },
        }
    }

    /// The moment from which on a call for this message may not begin any more, UTC milliseconds: the closing of its
    /// window or its deadline, whichever is first. Asked after [`Policy::judge`] has said `Go`.
    pub fn begin_before_ms(&self, message: &Message, now_ms: i64) -> Option<i64> {
        let closes_ms = match message.class {
            Class::Transactional => None,
            Class::Advertising => match self.advertising.judge(message.not_before_ms, Asking::Call, now_ms) {
                Hours::Open { until_ms } => Some(until_ms),
                _ => Some(now_ms),
            },
        };
        match (closes_ms, message.expires_at_ms) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

fn held(now: Now) -> Verdict {
    let why = now.doubt.map_or("is in doubt", crate::clock::Doubt::as_str);
    Verdict::Hold(format!("CLOCK: it {why}; what depends on the hour waits until it is right"))
}

/// Why a row past its deadline was closed.
pub fn deadline_reason(deadline_ms: i64) -> String {
    if deadline_ms < PLAUSIBLE_MS_MIN {
        "DEADLINE: expires_at_ms is before 2001; it takes milliseconds, not seconds".into()
    } else {
        "DEADLINE: expires_at_ms has passed".into()
    }
}

/// Debug builds only: `ONCEWARD_ENVIRONMENT_CHECKS=relay,worker,call` leaves only the named checks in place, so that
/// a test can see each of them stop a message alone.
#[cfg(debug_assertions)]
fn checks_environment(asking: Asking) -> bool {
    static NAMED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let named = NAMED.get_or_init(|| std::env::var("ONCEWARD_ENVIRONMENT_CHECKS").ok());
    let name = match asking {
        Asking::Relay => "relay",
        Asking::Worker => "worker",
        Asking::Call => "call",
    };
    named.as_ref().is_none_or(|named| named.split(',').any(|one| one == name))
}

#[cfg(not(debug_assertions))]
#[inline(always)]
fn checks_environment(_asking: Asking) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Doubt;
    use crate::config::WindowSettings;
    use crate::message::{Destination, MessageId};
    use jiff::civil::Time;

    fn policy(environment: &str) -> Policy {
        let zone = TimeZone::get("Asia/Seoul").expect("jiff knows Asia/Seoul");
        let advertising = WindowSettings {
            opens: Time::constant(8, 0, 0, 0),
            closes: Time::constant(20, 50, 0, 0),
            relay_until: Time::constant(20, 40, 0, 0),
        };
        Policy::of(
            Window::new(zone.clone(), advertising),
            zone,
            Environment::new(environment, &["010-0000-0000".into()]),
        )
    }

    fn ms(text: &str) -> i64 {
        format!("{text}+09:00").parse::<jiff::Timestamp>().expect("a moment").as_millisecond()
    }

    fn message(class: Class, not_before: &str, expires_at_ms: Option<i64>) -> Message {
        Message {
            message_id: MessageId::new("ow-1"),
            dedup_key: "k".into(),
            kind: "K".into(),
            class,
            destination: Destination::new("d"),
            recipient: "01000000000".into(),
            payload: "{}".into(),
            ordering_key: None,
            priority: 5,
            not_before_ms: ms(not_before),
            expires_at_ms,
            created_at_ms: ms(not_before),
            traceparent: None,
        }
    }

    fn word(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Go => "go",
            Verdict::Wait { .. } => "wait",
            Verdict::Hold(_) => "hold",
            Verdict::Skip(_) => "skip",
            Verdict::Expire(_) => "expire",
        }
    }

    #[test]
    fn deadlines_windows_and_both_together() {
        let noon = "2026-11-30T12:00:00";
        for (class, due, deadline, asking, now, expected) in [
            (Class::Transactional, noon, None, Asking::Worker, "2026-11-30T03:00:00", "go"),
            (
                Class::Transactional,
                noon,
                Some("2026-11-30T12:30:00"),
                Asking::Call,
                "2026-11-30T12:29:59.999",
                "go",
            ),
            (
                Class::Transactional,
                noon,
                Some("2026-11-30T12:30:00"),
                Asking::Call,
                "2026-11-30T12:30:00",
                "expire",
            ),
            (Class::Advertising, noon, None, Asking::Relay, "2026-11-30T20:39:59.999", "go"),
            (Class::Advertising, noon, None, Asking::Relay, "2026-11-30T20:40:00", "wait"),
            (Class::Advertising, noon, None, Asking::Call, "2026-11-30T20:49:59.999", "go"),
            (Class::Advertising, noon, None, Asking::Call, "2026-11-30T20:50:00", "wait"),
            (Class::Advertising, noon, None, Asking::Worker, "2026-12-01T00:00:00", "expire"),
            // Its deadline is before the next opening: no use in waiting.
            (
                Class::Advertising,
                noon,
                Some("2026-12-01T08:00:00"),
                Asking::Relay,
                "2026-11-30T20:40:00",
                "expire",
            ),
            (
                Class::Advertising,
                noon,
                Some("2026-12-01T08:00:01"),
                Asking::Relay,
                "2026-11-30T20:40:00",
                "wait",
            ),
        ] {
            let message = message(class, due, deadline.map(ms));
            let verdict = policy("production").judge(&message, asking, ms(now));
            assert_eq!(word(&verdict), expected, "{class:?} {asking:?} {now}: {verdict:?}");
        }
    }

    #[test]
    fn seconds_in_a_millisecond_column_are_named() {
        let now = ms("2026-11-30T12:00:00");
        let message = message(Class::Transactional, "2026-11-30T10:00:00", Some(now / 1000));
        let verdict = policy("production").judge(&message, Asking::Relay, now);
        assert!(matches!(verdict, Verdict::Expire(ref reason) if reason.contains("milliseconds")));
    }

    #[test]
    fn a_call_begins_before_the_window_closes_and_before_the_deadline() {
        let now = ms("2026-11-30T12:00:00");
        let closes = ms("2026-11-30T20:50:00");
        for (class, deadline, expected) in [
            (Class::Transactional, None, None),
            (Class::Transactional, Some(now + 5), Some(now + 5)),
            (Class::Advertising, None, Some(closes)),
            (Class::Advertising, Some(now + 5), Some(now + 5)),
            (Class::Advertising, Some(closes + 5), Some(closes)),
        ] {
            let message = message(class, "2026-11-30T10:00:00", deadline);
            assert_eq!(
                policy("production").begin_before_ms(&message, now),
                expected,
                "{class:?} {deadline:?}"
            );
        }
    }

    #[test]
    fn outside_production_only_listed_recipients_get_anything() {
        let now = ms("2026-11-30T12:00:00");
        for asking in [Asking::Relay, Asking::Worker, Asking::Call] {
            let mut message = message(Class::Transactional, "2026-11-30T10:00:00", None);
            assert_eq!(policy("staging").judge(&message, asking, now), Verdict::Go);
            message.recipient = "01099999999".into();
            assert_eq!(word(&policy("staging").judge(&message, asking, now)), "skip");
            assert_eq!(policy("production").judge(&message, asking, now), Verdict::Go);
        }
    }

    #[test]
    fn while_the_clock_is_in_doubt_only_what_does_not_depend_on_it_goes_out() {
        let noon = "2026-11-30T12:00:00";
        let hour = 3_600_000;
        let at =
            |wall: i64, known: i64| Now { ms: wall, known_ms: known, doubt: Some(Doubt::Ahead), epoch: 2 };
        let now = ms(noon);
        for (class, due_offset, deadline, clock, expected) in [
            (Class::Transactional, 0, None, at(now - 500 * hour, now), "go"),
            (Class::Advertising, 0, None, at(now, now), "hold"),
            // Scheduled: both readings must have reached it.
            (Class::Transactional, hour, None, at(now + 500 * hour, now), "hold"),
            (Class::Transactional, hour, None, at(now + 500 * hour, now + 2 * hour), "go"),
            // Deadline: both must agree.
            (Class::Transactional, 0, Some(hour), at(now + 500 * hour, now), "hold"),
            (Class::Transactional, 0, Some(hour), at(now + 500 * hour, now + 2 * hour), "expire"),
            (Class::Transactional, 0, Some(600 * hour), at(now + 500 * hour, now), "go"),
        ] {
            let mut message = message(class, noon, deadline.map(|offset| now + offset));
            message.not_before_ms += due_offset;
            let verdict = policy("production").judge(&message, Asking::Worker, clock);
            assert_eq!(word(&verdict), expected, "{class:?} {due_offset} {deadline:?} {clock:?}");
        }
    }

    #[test]
    fn the_local_day_is_the_settings_zone_s() {
        let policy = policy("production");
        assert_eq!(policy.day(ms("2026-11-30T23:59:59.999")), "2026-11-30");
        assert_eq!(policy.day(ms("2026-12-01T00:00:00")), "2026-12-01");
        assert_eq!(policy.day(ms("2026-11-30T00:00:00")), "2026-11-30");
    }
}
