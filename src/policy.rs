//! Pure: whether a message may be sent now. The same function serves the relay, the worker and the last look before
//! the call; it reads no clock and no table.

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use crate::config::{AgentSettings, Settings, WindowSettings};
use crate::message::{Class, Message};

/// What the rules need of the settings.
#[derive(Clone, Debug)]
pub struct Policy {
    timezone: TimeZone,
    advertising: WindowSettings,
    production: bool,
    allowed_recipients: Vec<String>,
}

/// Who asks: the relay stops taking advertising a little earlier than a worker stops sending it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asking {
    /// Before the hand-off.
    Relay,
    /// Before the claim, and again right before the call.
    Worker,
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
        /// For people.
        reason: String,
    },
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
        let AgentSettings { environment, allowed_recipients, timezone, .. } = &settings.agent;
        Self {
            timezone: timezone.clone(),
            advertising: settings.advertising.clone(),
            production: environment == "production",
            allowed_recipients: allowed_recipients.iter().map(|number| digits(number)).collect(),
        }
    }

    /// The configured zone.
    pub fn timezone(&self) -> &TimeZone {
        &self.timezone
    }

    /// The local day of a time, `YYYY-MM-DD`.
    pub fn day(&self, now_ms: i64) -> String {
        self.local(now_ms).0.to_string()
    }

    /// Judges.
    pub fn judge(&self, message: &Message, asking: Asking, now_ms: i64) -> Verdict {
        if !self.production && !self.allowed_recipients.contains(&digits(&message.recipient)) {
            return Verdict::Skip(
                "ENVIRONMENT: not production, and the recipient is not in allowed_recipients".into(),
            );
        }
        if let Some(deadline_ms) = message.expires_at_ms
            && deadline_ms <= now_ms
        {
            return Verdict::Expire(deadline_reason(deadline_ms));
        }
        match message.class {
            Class::Transactional => Verdict::Go,
            Class::Advertising => self.judge_advertising(message, asking, now_ms),
        }
    }

    fn judge_advertising(&self, message: &Message, asking: Asking, now_ms: i64) -> Verdict {
        let (today, time) = self.local(now_ms);
        let scheduled = self.scheduled_day(message.not_before_ms);
        if today > scheduled {
            return Verdict::Expire(format!("WINDOW: its day {scheduled} has passed"));
        }
        let window = &self.advertising;
        let closes = match asking {
            Asking::Relay => window.relay_until,
            Asking::Worker => window.closes,
        };
        let day = if time < window.opens {
            today
        } else if time >= closes {
            today.tomorrow().unwrap_or(today)
        } else {
            return Verdict::Go;
        };
        Verdict::Wait {
            until_ms: self.utc_ms(day, window.opens),
            reason: format!(
                "WINDOW: advertising goes out from {} to {}",
                short(window.opens),
                short(window.closes)
            ),
        }
    }

    /// The first day on which an advertising message with this due time could go out.
    fn scheduled_day(&self, not_before_ms: i64) -> Date {
        let (day, time) = self.local(not_before_ms);
        if time >= self.advertising.relay_until { day.tomorrow().unwrap_or(day) } else { day }
    }

    fn local(&self, at_ms: i64) -> (Date, Time) {
        let timestamp = Timestamp::from_millisecond(at_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        let zoned = timestamp.to_zoned_datetime(self.timezone.clone());
        (zoned.date(), zoned.time())
    }

    /// A local wall time as UTC; in a gap the first moment after it, in an overlap the earlier one (jiff's rule).
    fn utc_ms(&self, day: Date, time: Time) -> i64 {
        day.to_datetime(time)
            .to_zoned_datetime(self.timezone.clone())
            .map_or(i64::MAX, |zoned| zoned.timestamp().as_millisecond())
    }
}

/// Why a row past its deadline was closed.
pub fn deadline_reason(deadline_ms: i64) -> String {
    if deadline_ms < PLAUSIBLE_MS_MIN {
        "DEADLINE: expires_at_ms is before 2001; it takes milliseconds, not seconds".into()
    } else {
        "DEADLINE: expires_at_ms has passed".into()
    }
}

fn short(time: Time) -> String {
    time.strftime("%H:%M").to_string()
}

/// Digits alone, so that `010-1234-5678` in the settings equals `01012345678` in a row; others compare as they are.
fn digits(number: &str) -> String {
    let only: String = number.chars().filter(|c| !matches!(c, '-' | ' ')).collect();
    only
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Destination, MessageId};

    fn policy(production: bool) -> Policy {
        Policy {
            timezone: TimeZone::get("Asia/Seoul").expect("jiff knows Asia/Seoul"),
            advertising: WindowSettings {
                opens: Time::constant(8, 0, 0, 0),
                closes: Time::constant(20, 50, 0, 0),
                relay_until: Time::constant(20, 40, 0, 0),
            },
            production,
            allowed_recipients: vec!["01000000000".into()],
        }
    }

    fn ms(text: &str) -> i64 {
        let civil: jiff::civil::DateTime = text.parse().expect("a civil time");
        civil
            .to_zoned_datetime(TimeZone::get("Asia/Seoul").expect("zone"))
            .expect("exists")
            .timestamp()
            .as_millisecond()
    }

    fn message(class: Class, not_before: &str, expires_at_ms: Option<i64>) -> Message {
        Message {
            message_id: MessageId::new("ow-1"),
            dedup_key: "k".into(),
            kind: "K".into(),
            class,
            destination: Destination::new("d"),
            recipient: "010-0000-0000".into(),
            payload: "{}".into(),
            ordering_key: None,
            priority: 5,
            not_before_ms: ms(not_before),
            expires_at_ms,
            created_at_ms: ms(not_before),
            traceparent: None,
        }
    }

    #[track_caller]
    fn check(class: Class, due: &str, asking: Asking, now: &str, expected: &str) {
        let verdict = policy(true).judge(&message(class, due, None), asking, ms(now));
        let text = match verdict {
            Verdict::Go => "go".to_owned(),
            Verdict::Wait { until_ms, .. } => {
                let zoned = Timestamp::from_millisecond(until_ms)
                    .expect("time")
                    .to_zoned_datetime(TimeZone::get("Asia/Seoul").expect("zone"));
                format!("wait {}", zoned.strftime("%m-%d %H:%M"))
            }
            Verdict::Skip(_) => "skip".into(),
            Verdict::Expire(_) => "expire".into(),
        };
        assert_eq!(text, expected);
    }

    #[test]
    fn advertising_keeps_its_hours_to_the_second() {
        let due = "2026-11-30T10:00:00";
        check(Class::Transactional, due, Asking::Worker, "2026-11-30T03:00:00", "go");
        check(Class::Advertising, due, Asking::Relay, "2026-11-30T12:00:00", "go");
        check(Class::Advertising, due, Asking::Relay, "2026-11-30T20:39:59", "go");
        check(Class::Advertising, due, Asking::Relay, "2026-11-30T20:40:00", "wait 12-01 08:00");
        check(Class::Advertising, due, Asking::Worker, "2026-11-30T20:49:59", "go");
        check(Class::Advertising, due, Asking::Worker, "2026-11-30T20:50:00", "wait 12-01 08:00");
        check(Class::Advertising, due, Asking::Worker, "2026-12-01T09:00:00", "expire");
        check(
            Class::Advertising,
            "2026-11-30T02:00:00",
            Asking::Relay,
            "2026-11-30T02:00:00",
            "wait 11-30 08:00",
        );
        check(
            Class::Advertising,
            "2026-11-30T23:00:00",
            Asking::Relay,
            "2026-11-30T23:00:00",
            "wait 12-01 08:00",
        );
        check(
            Class::Advertising,
            "2026-11-30T23:00:00",
            Asking::Relay,
            "2026-12-01T00:10:00",
            "wait 12-01 08:00",
        );
        check(Class::Advertising, "2026-11-30T23:00:00", Asking::Relay, "2026-12-01T09:00:00", "go");
    }

    #[test]
    fn past_the_deadline_is_expired_and_seconds_are_named() {
        let now = ms("2026-11-30T12:00:00");
        let late = policy(true).judge(
            &message(Class::Transactional, "2026-11-30T10:00:00", Some(now)),
            Asking::Relay,
            now,
        );
        assert!(matches!(late, Verdict::Expire(ref reason) if reason.contains("has passed")));
        let seconds = policy(true).judge(
            &message(Class::Transactional, "2026-11-30T10:00:00", Some(now / 1000)),
            Asking::Relay,
            now,
        );
        assert!(matches!(seconds, Verdict::Expire(ref reason) if reason.contains("milliseconds")));
    }

    #[test]
    fn outside_production_only_listed_recipients_get_anything() {
        let mut to_customer = message(Class::Transactional, "2026-11-30T10:00:00", None);
        assert_eq!(policy(false).judge(&to_customer, Asking::Worker, ms("2026-11-30T12:00:00")), Verdict::Go);
        to_customer.recipient = "01099999999".into();
        assert!(matches!(
            policy(false).judge(&to_customer, Asking::Worker, ms("2026-11-30T12:00:00")),
            Verdict::Skip(_)
        ));
    }
}
