//! Pure: whether the wall clock can be believed. Fed with monotonic spans and wall times, it reads neither itself.
//!
//! Three things make a clock doubtful: it is before the build of this program; it is well before the newest time that
//! was ever believed here; or it has run ahead of the monotonic clock in one leap and has not yet stood a while. What
//! depends on the hour is held meanwhile (`policy`), everything else flows. The timeline that was believed goes on by
//! the monotonic clock, so that nothing which was due before a leap becomes undue by it.

use std::time::Duration;

use crate::limits::{CLOCK_AHEAD_AT_START, CLOCK_BELIEVED, CLOCK_JUMP, CLOCK_SETTLE};

/// Why the clock is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// Before this program was built.
    BeforeBuild,
    /// Before the newest time that was believed.
    BehindNewest,
    /// It leapt ahead and has to stand a while.
    Ahead,
}

impl Doubt {
    /// For people, after "the clock ".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BeforeBuild => "is before the build of this program",
            Self::BehindNewest => "is before the newest time that was recorded here",
            Self::Ahead => "has leapt ahead and is watched for a while",
        }
    }
}

/// A reading of the clock, with what is thought of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// The wall clock, UTC milliseconds.
    pub ms: i64,
    /// The believed timeline, carried on by the monotonic clock; the wall clock itself while that is believed.
    pub known_ms: i64,
    /// Set while the wall clock is not believed.
    pub doubt: Option<Doubt>,
    /// Changes with every leap and every change of `doubt`.
    pub epoch: u64,
}

impl Now {
    /// A time that is not in doubt.
    pub fn sure(ms: i64) -> Self {
        Self { ms, known_ms: ms, doubt: None, epoch: 0 }
    }
    /// For "is it due yet": what either clock has reached.
    pub fn due_ms(&self) -> i64 {
        self.ms.max(self.known_ms)
    }
    /// For "is it too late": what both clocks have reached.
    pub fn overdue_ms(&self) -> i64 {
        self.ms.min(self.known_ms)
    }
}

impl From<i64> for Now {
    fn from(ms: i64) -> Self {
        Self::sure(ms)
    }
}

/// Worth telling a person.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// The wall clock leapt against the monotonic one, milliseconds; or the machine slept.
    Jumped(i64),
    /// It is not believed from now on.
    Doubted(Doubt),
    /// It is believed again.
    Believed,
}

/// The watch over one run.
#[derive(Debug)]
pub struct Trust {
    built_ms: i64,
    /// The newest time that was believed, in this run or an earlier one.
    newest_ms: Option<i64>,
    /// The last reading: monotonic, wall.
    last: Option<(Duration, i64)>,
    /// The believed timeline: monotonic, wall.
    known: Option<(Duration, i64)>,
    /// Whether a reading of this run was believed.
    believed: bool,
    stands_since: Duration,
    doubt: Option<Doubt>,
    epoch: u64,
    news: Vec<News>,
    settle: Duration,
}

impl Trust {
    /// `newest_ms` is the newest time that earlier runs recorded.
    pub fn new(built_ms: i64, newest_ms: Option<i64>, settle: Option<Duration>) -> Self {
        Self {
            built_ms,
            newest_ms,
            last: None,
            known: newest_ms.map(|newest_ms| (Duration::ZERO, newest_ms)),
            believed: false,
            stands_since: Duration::ZERO,
            doubt: None,
            epoch: 1,
            news: Vec::new(),
            settle: settle.unwrap_or(CLOCK_SETTLE),
        }
    }

    /// Takes a reading. `mono` is the time since the start of the run.
    pub fn observe(&mut self, mono: Duration, wall_ms: i64) -> Now {
        if let Some((last_mono, last_ms)) = self.last {
            let drift_ms = wall_ms.saturating_sub(after(last_ms, last_mono, mono));
            if drift_ms.unsigned_abs() >= CLOCK_JUMP.as_millis() as u64 {
                self.news.push(News::Jumped(drift_ms));
                self.epoch += 1;
                self.stands_since = mono;
            }
        }
        // Anew at each reading: a clock that is slewed gently never adds up to a leap.
        self.last = Some((mono, wall_ms));
        let known_ms = self.known.map(|(at, ms)| after(ms, at, mono));
        let doubt = self.judge(mono, wall_ms, known_ms);
        if doubt != self.doubt {
            self.news.push(doubt.map_or(News::Believed, News::Doubted));
            self.epoch += 1;
            self.doubt = doubt;
        }
        if doubt.is_none() {
            self.believe(mono, wall_ms);
        }
        let known_ms = if doubt.is_none() { wall_ms } else { known_ms.unwrap_or(wall_ms) };
        Now { ms: wall_ms, known_ms, doubt, epoch: self.epoch }
    }

    fn judge(&self, mono: Duration, wall_ms: i64, known_ms: Option<i64>) -> Option<Doubt> {
        if wall_ms < self.built_ms {
            return Some(Doubt::BeforeBuild);
        }
        if self.newest_ms.is_some_and(|newest_ms| wall_ms < newest_ms.saturating_sub(span_ms(CLOCK_BELIEVED)))
        {
            return Some(Doubt::BehindNewest);
        }
        let ahead = if self.believed { CLOCK_BELIEVED } else { CLOCK_AHEAD_AT_START };
        let leapt = known_ms.is_some_and(|known_ms| wall_ms > known_ms.saturating_add(span_ms(ahead)));
        (leapt && mono.saturating_sub(self.stands_since) < self.settle).then_some(Doubt::Ahead)
    }

    fn believe(&mut self, mono: Duration, wall_ms: i64) {
        self.believed = true;
        self.known = Some((mono, wall_ms));
        self.newest_ms = Some(self.newest_ms.map_or(wall_ms, |newest_ms| newest_ms.max(wall_ms)));
    }

    /// A person says that the clock is right: whatever was recorded before counts no more.
    pub fn vouch(&mut self, mono: Duration, wall_ms: i64) {
        self.newest_ms = None;
        self.believe(mono, wall_ms);
        self.observe(mono, wall_ms);
    }

    /// The newest time that was believed.
    pub fn newest_ms(&self) -> Option<i64> {
        self.newest_ms
    }

    /// What was noticed since the last look.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }
}

fn after(ms: i64, from: Duration, to: Duration) -> i64 {
    ms.saturating_add(span_ms(to.saturating_sub(from)))
}

fn span_ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// A waiting row that was written under another clock than today's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dates {
    /// When its insert says it was written.
    pub created_ms: i64,
    /// Due.
    pub due_ms: i64,
    /// Deadline.
    pub deadline_ms: Option<i64>,
}

/// New due time and deadline for a row that a wrong clock wrote, `None` where its dates can stand. Only asked while
/// the clock is believed.
///
/// A row written "in the future", or before this program existed, was written under a wrong clock. Due at its own
/// insert means at once, so it is due now. Due later than that by a plausible span is left alone: such a time came
/// from the business (a date), not from the clock. Only a due time beyond any plausible horizon, or before that,
/// is taken as a span from the insert. A deadline moves along only where it is as impossible as the clock was.
pub fn mended(dates: Dates, now_ms: i64) -> Option<Dates> {
    let Dates { created_ms, due_ms, deadline_ms } = dates;
    let future = created_ms > now_ms.saturating_add(SLACK_MS);
    if !future && created_ms >= FIRST_MS {
        return None;
    }
    let impossible = |ms: i64| if future { ms > now_ms.saturating_add(HORIZON_MS) } else { ms < FIRST_MS };
    let moved = |ms: i64| now_ms.saturating_add(ms.saturating_sub(created_ms).max(0));
    let at_once = due_ms <= created_ms.saturating_add(SLACK_MS);
    let due = if at_once {
        now_ms
    } else if impossible(due_ms) {
        moved(due_ms)
    } else {
        due_ms
    };
    let deadline = deadline_ms.map(|ms| if impossible(ms) && ms >= created_ms { moved(ms) } else { ms });
    let mended = Dates { created_ms, due_ms: due, deadline_ms: deadline };
    (mended != dates).then_some(mended)
}

/// Nobody schedules a message further ahead: longer than keys are kept.
pub const HORIZON_MS: i64 = 400 * 24 * 3_600_000;
/// 2026-01-01: no row was written before this program existed.
pub const FIRST_MS: i64 = 1_767_225_600_000;
/// Two stamps of one insert are this close.
pub const SLACK_MS: i64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT: i64 = 1_800_000_000_000;
    const MINUTE: i64 = 60_000;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;

    /// Readings as (seconds of the run, wall offset to BUILT + 10 days), and what is thought of each.
    #[track_caller]
    fn check(newest: Option<i64>, readings: &[(u64, i64, Option<Doubt>)]) {
        let base = BUILT + 10 * DAY;
        let mut trust = Trust::new(BUILT, newest.map(|offset| base + offset), None);
        for (seconds, offset, doubt) in readings {
            let now = trust.observe(Duration::from_secs(*seconds), base + *offset);
            assert_eq!(now.doubt, *doubt, "at {seconds} s with {offset}");
        }
    }

    #[test]
    fn what_is_believed() {
        use Doubt::{Ahead, BeforeBuild, BehindNewest};
        let s = 1_000;
        // An ordinary run; a first start; a restart after a night.
        check(None, &[(0, 0, None), (60, 60 * s, None), (3600, 3600 * s, None)]);
        check(Some(-12 * HOUR), &[(0, 0, None)]);
        // 1970 at boot, then NTP.
        check(Some(0), &[(0, -(BUILT + 10 * DAY), Some(BeforeBuild)), (5, 2 * HOUR, None)]);
        // A little back or ahead (a second is slewed, minutes are stepped): believed.
        check(None, &[(0, 0, None), (10, 11 * s, None), (20, 20 * s - 4 * MINUTE, None), (30, 30 * s, None)]);
        // A day back in the middle of the run: held until the clock has caught up, or is set right.
        check(None, &[(0, 0, None), (10, 10 * s - DAY, Some(BehindNewest)), (20, 20 * s, None)]);
        check(
            None,
            &[
                (0, 0, None),
                (10, -20 * MINUTE, Some(BehindNewest)),
                (14 * 60, -6 * MINUTE, Some(BehindNewest)),
                (15 * 60 + 30, -4 * MINUTE - 30 * s, None),
            ],
        );
        // Three years ahead and back again: never believed.
        check(None, &[(0, 0, None), (10, 3 * 365 * DAY, Some(Ahead)), (20, 20 * s, None)]);
        // Ahead by a day and it stands: a wrong battery clock was set right.
        check(
            None,
            &[
                (0, 0, None),
                (10, DAY + 10 * s, Some(Ahead)),
                (300, DAY + 300 * s, Some(Ahead)),
                (611, DAY + 611 * s, None),
                (612, DAY + 612 * s, None),
            ],
        );
        // A restart after days: stands a while first; behind what was recorded: held.
        check(Some(-3 * DAY), &[(0, 0, Some(Ahead)), (601, 601 * s, None)]);
        check(Some(DAY), &[(0, 0, Some(BehindNewest)), (3600, 3600 * s, Some(BehindNewest))]);
    }

    #[test]
    fn in_doubt_the_believed_timeline_goes_on() {
        let base = BUILT + 10 * DAY;
        let mut trust = Trust::new(BUILT, None, None);
        trust.observe(Duration::ZERO, base);
        let back = trust.observe(Duration::from_secs(10), base - DAY);
        assert_eq!((back.due_ms(), back.overdue_ms()), (base + 10_000, base - DAY));
        let ahead = trust.observe(Duration::from_secs(20), base + 900 * DAY);
        assert_eq!((ahead.due_ms(), ahead.overdue_ms()), (base + 900 * DAY, base + 20_000));
        assert_eq!(trust.newest_ms(), Some(base));
        // The machine starts at 1970: what was due before the power went is due still.
        let mut trust = Trust::new(BUILT, Some(base), None);
        let boot = trust.observe(Duration::ZERO, 30_000);
        assert_eq!((boot.due_ms(), boot.overdue_ms()), (base, 30_000));
    }

    #[test]
    fn each_leap_and_each_change_of_mind_is_told_once() {
        let base = BUILT + 10 * DAY;
        let mut trust = Trust::new(BUILT, None, None);
        trust.observe(Duration::ZERO, base);
        trust.observe(Duration::from_secs(1), base + 1_000 - DAY);
        trust.observe(Duration::from_secs(2), base + 2_000 - DAY);
        trust.observe(Duration::from_secs(3), base + 3_000);
        assert_eq!(
            trust.take_news(),
            [News::Jumped(-DAY), News::Doubted(Doubt::BehindNewest), News::Jumped(DAY), News::Believed]
        );
        assert!(trust.take_news().is_empty());
    }

    #[test]
    fn a_person_can_vouch_for_the_clock() {
        let base = BUILT + 10 * DAY;
        let mut trust = Trust::new(BUILT, Some(base + 900 * DAY), None);
        assert_eq!(trust.observe(Duration::ZERO, base).doubt, Some(Doubt::BehindNewest));
        trust.vouch(Duration::from_secs(1), base + 1_000);
        assert_eq!(trust.observe(Duration::from_secs(2), base + 2_000).doubt, None);
        assert_eq!(trust.newest_ms(), Some(base + 2_000));
    }

    #[test]
    fn rows_of_a_wrong_clock_are_mended() {
        let now = BUILT + 10 * DAY;
        let check = |created: i64, due: i64, deadline: Option<i64>, expected: Option<(i64, Option<i64>)>| {
            let dates = Dates { created_ms: created, due_ms: due, deadline_ms: deadline };
            let mended = mended(dates, now).map(|dates| (dates.due_ms, dates.deadline_ms));
            assert_eq!(mended, expected, "created {created} due {due} deadline {deadline:?}");
        };
        // Right ones, late ones and scheduled ones stay.
        check(now, now, None, None);
        check(now - 30 * DAY, now - 30 * DAY, Some(now - DAY), None);
        check(now - DAY, now + 90 * DAY, Some(now + 91 * DAY), None);
        // Written under a clock that ran ahead, at once: now.
        check(now + DAY, now + DAY, None, Some((now, None)));
        check(now + 3_650 * DAY, now + 3_650 * DAY, None, Some((now, None)));
        // ... ten minutes later, by that clock.
        check(now + 3_650 * DAY, now + 3_650 * DAY + 10 * MINUTE, None, Some((now + 10 * MINUTE, None)));
        // ... with a deadline by that clock.
        check(
            now + 3_650 * DAY,
            now + 3_650 * DAY,
            Some(now + 3_650 * DAY + HOUR),
            Some((now, Some(now + HOUR))),
        );
        // ... on a date of the business: stays.
        check(now + DAY, now + 5 * DAY, Some(now + 6 * DAY), None);
        // Written in 1970.
        check(5_000, 5_000, None, Some((now, None)));
        check(5_000, 5_000 + HOUR, Some(5_000 + 2 * HOUR), Some((now + HOUR, Some(now + 2 * HOUR))));
        check(5_000, 5_000, Some(now + DAY), Some((now, Some(now + DAY))));
    }
}
