//! Tables of the window: ordinary days, over midnight, and days on which a zone's clocks change.

use super::*;

fn window(zone: &str, opens: &str, closes: &str, relay_until: &str) -> Window {
    let time = |text: &str| text.parse().expect("a time");
    Window::new(
        TimeZone::get(zone).expect("a zone"),
        WindowSettings { opens: time(opens), closes: time(closes), relay_until: time(relay_until) },
    )
}

/// Moments are written in UTC (`...Z`) or with an offset.
fn ms(text: &str) -> i64 {
    text.parse::<Timestamp>().expect("a moment").as_millisecond()
}

fn shown(window: &Window, hours: Hours) -> String {
    let local = |at_ms: i64| {
        Timestamp::from_millisecond(at_ms)
            .expect("a moment")
            .to_zoned_datetime(window.zone.clone())
            .strftime("%m-%d %H:%M:%S %:z")
            .to_string()
    };
    match hours {
        Hours::Open { until_ms } => format!("open until {}", local(until_ms)),
        Hours::Opens { at_ms, last_ms } => {
            format!(
                "opens {}{}",
                local(at_ms),
                last_ms.map(|at| format!(", last {}", local(at))).unwrap_or_default()
            )
        }
        Hours::Over(day) => format!("over {day}"),
    }
}

#[track_caller]
fn check(window: &Window, due: &str, asking: Asking, now: &str, expected: &str) {
    assert_eq!(shown(window, window.judge(ms(due), asking, ms(now))), expected, "due {due}, now {now}");
}

#[test]
fn advertising_in_seoul_to_the_millisecond() {
    let window = window("Asia/Seoul", "08:00", "20:50", "20:40");
    let due = "2026-11-30T10:00:00+09:00";
    for (asking, now, expected) in [
        (Asking::Relay, "2026-11-30T12:00:00+09:00", "open until 11-30 20:50:00 +09:00"),
        (Asking::Relay, "2026-11-30T20:39:59.999+09:00", "open until 11-30 20:50:00 +09:00"),
        (
            Asking::Relay,
            "2026-11-30T20:40:00+09:00",
            "opens 12-01 08:00:00 +09:00, last 12-01 20:50:00 +09:00",
        ),
        (Asking::Worker, "2026-11-30T20:40:00+09:00", "open until 11-30 20:50:00 +09:00"),
        (Asking::Call, "2026-11-30T20:49:59.999+09:00", "open until 11-30 20:50:00 +09:00"),
        (
            Asking::Call,
            "2026-11-30T20:50:00+09:00",
            "opens 12-01 08:00:00 +09:00, last 12-01 20:50:00 +09:00",
        ),
        (
            Asking::Relay,
            "2026-11-30T23:59:59.999+09:00",
            "opens 12-01 08:00:00 +09:00, last 12-01 20:50:00 +09:00",
        ),
        (Asking::Relay, "2026-12-01T00:00:00+09:00", "over 2026-11-30"),
        (Asking::Worker, "2026-12-01T09:00:00+09:00", "over 2026-11-30"),
        // Before its day the hour alone counts; the claim looks at the due time.
        (Asking::Worker, "2026-11-30T07:59:59.999+09:00", "opens 11-30 08:00:00 +09:00"),
    ] {
        check(&window, due, asking, now, expected);
    }
    // In the night before: the same day's opening, and one more move is left to it.
    check(
        &window,
        "2026-11-30T02:00:00+09:00",
        Asking::Relay,
        "2026-11-30T02:00:00+09:00",
        "opens 11-30 08:00:00 +09:00",
    );
    // After the cut: its day is the next one, and that is its last.
    for now in ["2026-11-30T23:00:00+09:00", "2026-12-01T00:10:00+09:00"] {
        let moved = "opens 12-01 08:00:00 +09:00, last 12-01 20:50:00 +09:00";
        check(&window, "2026-11-30T23:00:00+09:00", Asking::Relay, now, moved);
    }
    check(
        &window,
        "2026-11-30T20:45:00+09:00",
        Asking::Worker,
        "2026-11-30T20:46:00+09:00",
        "opens 12-01 08:00:00 +09:00, last 12-01 20:50:00 +09:00",
    );
    check(
        &window,
        "2026-11-30T23:00:00+09:00",
        Asking::Relay,
        "2026-12-01T09:00:00+09:00",
        "open until 12-01 20:50:00 +09:00",
    );
    check(
        &window,
        "2026-11-30T23:00:00+09:00",
        Asking::Relay,
        "2026-12-02T09:00:00+09:00",
        "over 2026-12-01",
    );
}

#[test]
fn over_midnight_the_window_belongs_to_the_day_it_opens() {
    let window = window("Asia/Seoul", "22:00", "06:00", "05:30");
    let due = "2026-11-30T22:30:00+09:00";
    for (asking, now, expected) in [
        (Asking::Relay, "2026-11-30T23:00:00+09:00", "open until 12-01 06:00:00 +09:00"),
        (Asking::Relay, "2026-12-01T03:00:00+09:00", "open until 12-01 06:00:00 +09:00"),
        (
            Asking::Relay,
            "2026-12-01T05:30:00+09:00",
            "opens 12-01 22:00:00 +09:00, last 12-02 06:00:00 +09:00",
        ),
        (Asking::Worker, "2026-12-01T05:59:59+09:00", "open until 12-01 06:00:00 +09:00"),
        (Asking::Worker, "2026-12-01T06:00:00+09:00", "over 2026-11-30"),
        (Asking::Worker, "2026-12-01T23:00:00+09:00", "over 2026-11-30"),
    ] {
        check(&window, due, asking, now, expected);
    }
    // Due at 03:00: the night that is under way.
    check(
        &window,
        "2026-12-01T03:00:00+09:00",
        Asking::Relay,
        "2026-12-01T03:00:00+09:00",
        "open until 12-01 06:00:00 +09:00",
    );
    check(
        &window,
        "2026-12-01T12:00:00+09:00",
        Asking::Relay,
        "2026-12-01T12:00:00+09:00",
        "opens 12-01 22:00:00 +09:00",
    );
    // A cut before midnight of a window that closes after it.
    let early = super::tests::window("Asia/Seoul", "20:00", "00:30", "23:50");
    check(
        &early,
        "2026-12-01T21:00:00+09:00",
        Asking::Relay,
        "2026-12-01T23:50:00+09:00",
        "opens 12-02 20:00:00 +09:00, last 12-03 00:30:00 +09:00",
    );
    check(
        &early,
        "2026-12-01T21:00:00+09:00",
        Asking::Worker,
        "2026-12-02T00:29:00+09:00",
        "open until 12-02 00:30:00 +09:00",
    );
}

#[test]
fn a_bound_in_a_gap_is_the_moment_of_the_change() {
    // Berlin, 2026-03-29: 02:00 +01:00 becomes 03:00 +02:00 at 01:00 UTC.
    let opening = window("Europe/Berlin", "02:30", "20:00", "19:00");
    let due = "2026-03-29T00:00:00+01:00";
    check(&opening, due, Asking::Relay, "2026-03-29T00:59:59Z", "opens 03-29 03:00:00 +02:00");
    check(&opening, due, Asking::Relay, "2026-03-29T01:00:00Z", "open until 03-29 20:00:00 +02:00");
    let closing = window("Europe/Berlin", "00:30", "02:30", "02:10");
    check(&closing, due, Asking::Call, "2026-03-29T00:59:59Z", "open until 03-29 03:00:00 +02:00");
    check(
        &closing,
        due,
        Asking::Call,
        "2026-03-29T01:00:00Z",
        "opens 03-30 00:30:00 +02:00, last 03-30 02:30:00 +02:00",
    );
    // A window that lies wholly in the gap does not exist on that day.
    let inside = window("Europe/Berlin", "02:10", "02:50", "02:40");
    check(
        &inside,
        due,
        Asking::Relay,
        "2026-03-29T01:00:00Z",
        "opens 03-30 02:10:00 +02:00, last 03-30 02:50:00 +02:00",
    );
}

#[test]
fn a_bound_that_comes_twice_makes_the_window_shorter() {
    // Berlin, 2026-10-25: 03:00 +02:00 becomes 02:00 +01:00 at 01:00 UTC, so 02:30 comes at 00:30 and 01:30 UTC.
    let opening = window("Europe/Berlin", "02:30", "20:00", "19:00");
    let due = "2026-10-25T00:30:00+02:00";
    check(&opening, due, Asking::Relay, "2026-10-25T00:45:00Z", "opens 10-25 02:30:00 +01:00");
    check(&opening, due, Asking::Relay, "2026-10-25T01:30:00Z", "open until 10-25 20:00:00 +01:00");
    let closing = window("Europe/Berlin", "00:10", "02:30", "02:20");
    check(&closing, due, Asking::Call, "2026-10-25T00:29:59Z", "open until 10-25 02:30:00 +02:00");
    check(
        &closing,
        due,
        Asking::Call,
        "2026-10-25T00:30:00Z",
        "opens 10-26 00:10:00 +01:00, last 10-26 02:30:00 +01:00",
    );
}

#[test]
fn no_moment_outside_the_wall_hours_is_ever_open() {
    // Every quarter of an hour of two years, in zones that change by an hour, by half an hour, and at midnight.
    for zone in ["Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Cairo", "Asia/Seoul"] {
        let tz = TimeZone::get(zone).expect("a zone");
        for (opens, closes, cut) in
            [("08:00", "20:50", "20:40"), ("22:00", "02:15", "01:45"), ("00:00", "02:30", "02:10")]
        {
            let window = window(zone, opens, closes, cut);
            let (opens, closes): (Time, Time) = (opens.parse().expect("time"), closes.parse().expect("time"));
            let mut at_ms = ms("2025-12-31T00:00:00Z");
            while at_ms < ms("2028-01-01T00:00:00Z") {
                let wall =
                    Timestamp::from_millisecond(at_ms).expect("moment").to_zoned_datetime(tz.clone()).time();
                let inside = if opens < closes {
                    opens <= wall && wall < closes
                } else {
                    wall >= opens || wall < closes
                };
                // Due now, or a while ago.
                for due_ms in [at_ms, at_ms - 3 * 3_600_000] {
                    match window.judge(due_ms, Asking::Call, at_ms) {
                        Hours::Open { until_ms } => assert!(inside && until_ms > at_ms, "{zone} {wall}"),
                        Hours::Opens { at_ms: next, .. } => assert!(next > at_ms, "{zone} {wall}"),
                        Hours::Over(_) => {}
                    }
                }
                at_ms += 15 * 60_000;
            }
        }
    }
}
