//! Pure: the hours of a message class. Local wall time in an IANA zone, turned into instants for each day.
//!
//! A window that closes before it opens lies over midnight and belongs to the day on which it opens. Where the clocks
//! of a zone change, a bound that does not exist is the moment of the change, and a bound that comes twice is taken so
//! that the window is the shorter: nothing goes out at a wall time outside of it. Instants of a day are computed once
//! and kept until another day is asked for.

use std::sync::{Mutex, PoisonError};

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp, ToSpan};

use super::Asking;
use crate::config::WindowSettings;

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hours {
    /// Inside: a call may begin before this moment, UTC milliseconds.
    Open {
        /// When it closes.
        until_ms: i64,
    },
    /// Outside: it opens then.
    Opens {
        /// UTC milliseconds.
        at_ms: i64,
        /// Set where the message is moved to another day than its own: the end of that day's window, after which it
        /// is not wanted any more.
        last_ms: Option<i64>,
    },
    /// Its day has passed.
    Over(Date),
}

/// A class's window in a zone.
#[derive(Debug)]
pub struct Window {
    zone: TimeZone,
    settings: WindowSettings,
    /// The days around the one last asked for.
    days: Mutex<Option<Days>>,
}

impl Clone for Window {
    fn clone(&self) -> Self {
        Self::new(self.zone.clone(), self.settings.clone())
    }
}

/// One day's window in instants, UTC milliseconds. Empty where it opens no earlier than it closes.
#[derive(Clone, Copy, Debug)]
struct Opening {
    day: Date,
    opens_ms: i64,
    /// The relay stops taking.
    cut_ms: i64,
    closes_ms: i64,
    /// Neither the day nor its window is there any more.
    over_ms: i64,
}

/// The days before and after a moment.
#[derive(Clone, Copy, Debug)]
struct Days {
    /// Holds for moments in this local day.
    from_ms: i64,
    until_ms: i64,
    today: Date,
    /// Yesterday's, today's and the three after it: a window may be empty on one day, never on two.
    openings: [Opening; 5],
}

impl Window {
    /// In this zone.
    pub fn new(zone: TimeZone, settings: WindowSettings) -> Self {
        Self { zone, settings, days: Mutex::new(None) }
    }

    /// Whether a message that is due at `due_ms` may go out at `now_ms`, and if not, when.
    pub fn judge(&self, due_ms: i64, asking: Asking, now_ms: i64) -> Hours {
        let around = self.days(now_ms);
        let due =
            if (around.from_ms..around.until_ms).contains(&due_ms) { around } else { self.compute(due_ms) };
        // The first window in which the relay could take it is its own.
        let Some(own) = due.openings.iter().find(|opening| opening.is_real() && due_ms < opening.cut_ms)
        else {
            return Hours::Over(due.today);
        };
        let ends_ms = if asking == Asking::Relay { own.cut_ms } else { own.closes_ms };
        if now_ms < own.opens_ms {
            let last_ms = (own.day > due.today).then_some(own.closes_ms);
            return Hours::Opens { at_ms: own.opens_ms, last_ms };
        }
        if now_ms < ends_ms {
            return Hours::Open { until_ms: own.closes_ms };
        }
        if now_ms >= own.over_ms {
            return Hours::Over(own.day);
        }
        let next = around.openings.iter().find(|opening| opening.is_real() && now_ms < opening.opens_ms);
        match next {
            Some(next) => Hours::Opens { at_ms: next.opens_ms, last_ms: Some(next.closes_ms) },
            None => Hours::Over(own.day),
        }
    }

    /// For people: `08:00 to 20:50`.
    pub fn describe(&self) -> String {
        let short = |time: Time| time.strftime("%H:%M").to_string();
        format!("{} to {}", short(self.settings.opens), short(self.settings.closes))
    }

    /// The local day of a moment.
    pub fn day(&self, at_ms: i64) -> Date {
        self.days(at_ms).today
    }

    fn days(&self, at_ms: i64) -> Days {
        let mut kept = self.days.lock().unwrap_or_else(PoisonError::into_inner);
        match *kept {
            Some(days) if (days.from_ms..days.until_ms).contains(&at_ms) => days,
            _ => {
                let days = self.compute(at_ms);
                *kept = Some(days);
                days
            }
        }
    }

    fn compute(&self, at_ms: i64) -> Days {
        let at = Timestamp::from_millisecond(at_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        let today = at.to_zoned_datetime(self.zone.clone()).date();
        let opening = |days: i64| self.opening(shifted(today, days));
        Days {
            from_ms: self.starts_ms(today),
            until_ms: self.starts_ms(shifted(today, 1)),
            today,
            openings: [opening(-1), opening(0), opening(1), opening(2), opening(3)],
        }
    }

    fn opening(&self, day: Date) -> Opening {
        let WindowSettings { opens, closes, relay_until } = self.settings;
        let end = |time: Time| if time <= opens { shifted(day, 1) } else { day };
        let closes_ms = self.instant_ms(end(closes).to_datetime(closes), Bound::End);
        Opening {
            day,
            opens_ms: self.instant_ms(day.to_datetime(opens), Bound::Begin),
            cut_ms: self.instant_ms(end(relay_until).to_datetime(relay_until), Bound::End).min(closes_ms),
            closes_ms,
            over_ms: self.starts_ms(shifted(day, 1)).max(closes_ms),
        }
    }

    fn starts_ms(&self, day: Date) -> i64 {
        self.instant_ms(day.to_datetime(Time::midnight()), Bound::Begin)
    }

    /// A local wall time as an instant.
    fn instant_ms(&self, local: DateTime, bound: Bound) -> i64 {
        let far = if bound == Bound::Begin { i64::MAX } else { i64::MIN };
        let with = |offset: jiff::tz::Offset| offset.to_timestamp(local).ok();
        let instant = match self.zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => with(offset),
            // It comes twice: a window begins at the later one and ends at the earlier one.
            AmbiguousOffset::Fold { before, after } => match (with(before), with(after)) {
                (Some(one), Some(other)) if bound == Bound::Begin => Some(one.max(other)),
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
            // It does not come: the moment of the change stands for it.
            AmbiguousOffset::Gap { before, .. } => with(before).and_then(|after_change| {
                let later = after_change.checked_add(1.second()).ok()?;
                self.zone.preceding(later).next().map(|change| change.timestamp())
            }),
        };
        instant.map_or(far, Timestamp::as_millisecond)
    }
}

impl Opening {
    fn is_real(&self) -> bool {
        self.opens_ms < self.cut_ms
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Begin,
    End,
}

fn shifted(day: Date, days: i64) -> Date {
    day.saturating_add(Span::new().days(days))
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
