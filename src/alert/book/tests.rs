//! Cases of the book, with a clock that only moves when told.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const JOURNAL: HookNumber = 0;

fn key(cause: Cause) -> Key {
    Key { cause, destination: "gateway".into() }
}

/// A book under test with a clock that only moves when told.
struct Desk {
    book: Book,
    start: Instant,
    at: Duration,
}
impl Desk {
    fn new(hooks: usize) -> Self {
        Self { book: Book::new(10 * MINUTE, hooks), start: Instant::now(), at: Duration::ZERO }
    }
    fn now(&self) -> Instant {
        self.start + self.at
    }
    fn at_ms(&self) -> i64 {
        1_000_000 + self.at.as_millis() as i64
    }
    fn raise(&mut self, cause: Cause) {
        self.book.raise(key(cause), 1, "text".into(), self.now(), self.at_ms());
    }
    fn clear(&mut self, cause: Cause) {
        self.book.clear(&key(cause), self.now(), self.at_ms());
    }
    /// Delivers all that is due: (cause, kind, new).
    fn tell(&mut self, hook: HookNumber) -> Vec<(Cause, NoticeKind, i64)> {
        let mut all = Vec::new();
        while let Some(notice) = self.book.next(hook, self.now()) {
            self.book.told(hook, &notice, self.now(), self.at_ms());
            all.push((notice.key.cause, notice.kind, notice.new));
        }
        all
    }
}

#[test]
fn first_at_once_then_one_an_interval_with_the_count() {
    let mut desk = Desk::new(1);
    desk.raise(Cause::Error);
    assert_eq!(desk.tell(JOURNAL), [(Cause::Error, NoticeKind::Raised, 1)]);
    for _ in 0..9_999 {
        desk.raise(Cause::Error);
    }
    assert_eq!(desk.tell(JOURNAL), []);
    assert_eq!(desk.book.next_at(JOURNAL, desk.now()), Some(desk.start + 10 * MINUTE));
    desk.at = 10 * MINUTE;
    assert_eq!(desk.tell(JOURNAL), [(Cause::Error, NoticeKind::Raised, 9_999)]);
    assert_eq!(desk.book.next_at(JOURNAL, desk.now()), None);
}

#[test]
fn the_end_is_told_once_and_to_those_who_know_of_it() {
    let mut desk = Desk::new(2);
    desk.raise(Cause::DestinationClosed);
    assert_eq!(desk.tell(JOURNAL), [(Cause::DestinationClosed, NoticeKind::Raised, 1)]);
    desk.at = MINUTE;
    desk.clear(Cause::DestinationClosed);
    assert_eq!(desk.tell(JOURNAL), [(Cause::DestinationClosed, NoticeKind::Clear, 0)]);
    assert_eq!(desk.tell(JOURNAL), []);
    // The other hook was down all the time: one notice, not two.
    assert_eq!(desk.tell(1), [(Cause::DestinationClosed, NoticeKind::Over, 1)]);
}

#[test]
fn what_opens_and_closes_all_day_makes_at_most_two_notices_an_interval() {
    let mut desk = Desk::new(1);
    let mut told = Vec::new();
    for second in 0..3_600 {
        desk.at = Duration::from_secs(second);
        if second % 2 == 0 {
            desk.raise(Cause::DestinationClosed);
        } else {
            desk.clear(Cause::DestinationClosed);
        }
        told.extend(desk.tell(JOURNAL));
    }
    assert!((6..=12).contains(&told.len()), "{}: {told:?}", told.len());
    desk.at = Duration::from_secs(3_600 + 601);
    told.extend(desk.tell(JOURNAL));
    assert_eq!(told.iter().map(|(_, _, new)| new).sum::<i64>(), 1_800, "every one is counted");
}

/// Quiet for this long after the all-clear, then a trouble that lasts: when it is told.
#[test]
fn a_new_trouble_after_an_all_clear_does_not_wait_for_the_interval() {
    for (quiet, told_after) in [(1, 10), (9, 10), (10, 0), (300, 0)] {
        let mut desk = Desk::new(1);
        desk.raise(Cause::Error);
        desk.tell(JOURNAL);
        desk.at += Duration::from_secs(5);
        desk.clear(Cause::Error);
        assert_eq!(desk.tell(JOURNAL), [(Cause::Error, NoticeKind::Clear, 0)]);
        desk.at += Duration::from_secs(quiet);
        desk.raise(Cause::Error);
        let due = desk.now() + Duration::from_secs(told_after);
        assert!(desk.book.next_at(JOURNAL, desk.now()).is_some_and(|at| at <= due), "after {quiet} s");
        desk.at += Duration::from_secs(told_after);
        assert_eq!(desk.tell(JOURNAL), [(Cause::Error, NoticeKind::Raised, 1)], "after {quiet} s");
    }
}

/// Each time for a minute: a pair an interval, and one more for each all-clear.
#[test]
fn slow_flapping_makes_at_most_three_notices_an_interval() {
    let mut desk = Desk::new(1);
    let mut told = 0;
    for minute in 0..600 {
        desk.at = minute * MINUTE;
        if minute % 2 == 0 {
            desk.raise(Cause::DestinationClosed);
        } else {
            desk.clear(Cause::DestinationClosed);
        }
        told += desk.tell(JOURNAL).len();
    }
    assert!((120..=182).contains(&told), "{told}");
}

#[test]
fn a_notice_that_is_not_delivered_stays_due_and_holds_up_no_other() {
    let mut desk = Desk::new(1);
    desk.raise(Cause::Error);
    desk.raise(Cause::Parked);
    let first = desk.book.next(JOURNAL, desk.now()).unwrap();
    let second = desk.book.next(JOURNAL, desk.now()).unwrap();
    assert_ne!(first.key, second.key);
    assert_eq!(desk.book.next(JOURNAL, desk.now()).unwrap().key, first.key);
    desk.raise(Cause::Error);
    desk.book.told(JOURNAL, &first, desk.now(), 0);
    desk.at = 10 * MINUTE;
    let mut rest = desk.tell(JOURNAL);
    rest.sort();
    assert_eq!(rest, [(Cause::Error, NoticeKind::Raised, 1), (Cause::Parked, NoticeKind::Raised, 1)]);
}

#[test]
fn events_have_no_end() {
    let mut desk = Desk::new(1);
    desk.raise(Cause::Expired);
    assert!(!desk.book.clear(&key(Cause::Expired), desk.now(), 0));
    assert_eq!(desk.tell(JOURNAL), [(Cause::Expired, NoticeKind::Raised, 1)]);
}

#[test]
fn levels_raise_once_and_end_only_when_settled() {
    let mut desk = Desk::new(1);
    let on = || Level::On(3, "three".into());
    let look = |desk: &mut Desk, level| {
        let (now, at_ms) = (desk.now(), desk.at_ms());
        desk.book.level(key(Cause::Parked), level, MINUTE, now, at_ms)
    };
    assert!(!look(&mut desk, Level::Off));
    assert!(look(&mut desk, on()));
    assert!(!look(&mut desk, on()));
    assert_eq!(desk.tell(JOURNAL), [(Cause::Parked, NoticeKind::Raised, 3)]);
    assert!(!look(&mut desk, Level::Off), "too fresh");
    assert_eq!(desk.book.open(Cause::Parked), ["gateway"]);
    desk.at = MINUTE;
    assert!(look(&mut desk, Level::Off));
    assert_eq!(desk.tell(JOURNAL), [(Cause::Parked, NoticeKind::Clear, 0)]);
    assert_eq!(desk.book.open(Cause::Parked), Vec::<String>::new());
}

/// Hooks: 0 was told of both, 1 was down, 2 is new. One minute or one hour later.
#[test]
fn a_restart_forgets_nothing_and_repeats_nothing_within_the_interval() {
    for (later_ms, again) in [(60_000, false), (3_600_000, true), (-3_600_000, false)] {
        let mut old = Desk::new(2);
        old.raise(Cause::Error);
        old.raise(Cause::Expired);
        assert_eq!(old.tell(JOURNAL).len(), 2);
        let written = old.book.take_dirty();
        assert!(!old.book.is_dirty());

        let mut new = Desk::new(3);
        for Written { key, entry, told } in written {
            let mut told: Vec<Option<Told>> = told.into_iter().map(Some).collect();
            told.push(None);
            let (now, now_ms) = (new.now(), old.at_ms() + later_ms);
            new.book.recall(key, entry, told, &[false, false, true], now, now_ms);
        }
        assert_eq!(new.tell(0), [], "told already");
        assert_eq!(
            new.tell(1),
            [(Cause::Error, NoticeKind::Raised, 1), (Cause::Expired, NoticeKind::Raised, 1)]
        );
        assert_eq!(new.tell(2), [(Cause::Error, NoticeKind::Raised, 1)], "history is not told to a new hook");
        new.raise(Cause::Error);
        assert_eq!(!new.tell(0).is_empty(), again, "{later_ms}");
    }
}

#[test]
fn a_failed_write_is_made_again() {
    let mut desk = Desk::new(1);
    desk.raise(Cause::Error);
    let written = desk.book.take_dirty();
    assert_eq!(written.len(), 1);
    assert!(!desk.book.is_dirty());
    desk.book.not_written(&[key(Cause::Error)]);
    assert_eq!(desk.book.take_dirty(), written);
}
