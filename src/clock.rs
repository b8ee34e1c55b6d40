//! The only reader of the wall clock. Spans are measured with `std::time::Instant`, which never jumps.

use std::time::{SystemTime, UNIX_EPOCH};

/// UTC milliseconds; 0 for a clock before 1970.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn wall_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Milliseconds of a span, saturating.
pub fn ms(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Microseconds of a span, saturating.
pub fn us(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
