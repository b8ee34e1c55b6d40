//! Pure: how often a message is tried again, and when. Reads no clock; takes no decision about states beyond that.

use std::time::Duration;

use crate::config::RetrySettings;
use crate::limits::{ATTEMPTS_MAX, SAME_FAILURE_MAX};

/// What follows a failure that was certainly not sent and is about the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Again after this pause.
    After(Duration),
    /// The budget is used up: PARKED.
    Park,
}

/// `attempt` counts from 1 and is the one that just failed: `quick.times` short pauses, then `later.times` long ones,
/// then a person.
pub fn after_refusal(retry: &RetrySettings, attempt: u32) -> Next {
    let again = attempt.max(1);
    if again <= retry.quick.times {
        Next::After(retry.quick.every)
    } else if again <= retry.quick.times.saturating_add(retry.later.times) {
        Next::After(retry.later.every)
    } else {
        Next::Park
    }
}

/// What follows the `attempt`-th failure to hand a message over (a bug or a panic before its claim): the listed pauses,
/// the last one again and again; but a failure that is the `same` as the one before, for the
/// [`SAME_FAILURE_MAX`]-th time, would only repeat. Time without a link never counts here.
pub fn after_failed_handoff(retry: &RetrySettings, attempt: u32, same: bool) -> Next {
    if attempt >= ATTEMPTS_MAX || (same && attempt >= SAME_FAILURE_MAX) {
        return Next::Park;
    }
    let index = (attempt.max(1) - 1) as usize;
    Next::After(retry.handoff.get(index).or(retry.handoff.last()).copied().unwrap_or(Duration::from_secs(60)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Repeat;

    fn settings() -> RetrySettings {
        RetrySettings {
            quick: Repeat { times: 2, every: Duration::from_secs(1) },
            later: Repeat { times: 3, every: Duration::from_secs(600) },
            handoff: [1, 2, 4, 8, 16, 30].map(|minutes| Duration::from_secs(minutes * 60)).to_vec(),
            alert_at_attempt: 5,
        }
    }

    #[test]
    fn twice_after_a_second_then_three_times_after_ten_minutes_then_a_person() {
        let all: Vec<Next> = (1..=7).map(|attempt| after_refusal(&settings(), attempt)).collect();
        let (quick, later) = (Next::After(Duration::from_secs(1)), Next::After(Duration::from_secs(600)));
        assert_eq!(all, [quick, quick, later, later, later, Next::Park, Next::Park]);
    }

    #[test]
    fn the_last_handoff_pause_repeats_until_a_ceiling_and_the_same_failure_is_not_tried_for_ever() {
        let minutes = |minutes: u64| Next::After(Duration::from_secs(60 * minutes));
        for (attempt, same, expected) in [
            (0, false, minutes(1)),
            (1, false, minutes(1)),
            (2, true, minutes(2)),
            (6, false, minutes(30)),
            (SAME_FAILURE_MAX - 1, true, minutes(30)),
            (SAME_FAILURE_MAX, true, Next::Park),
            (SAME_FAILURE_MAX, false, minutes(30)),
            (ATTEMPTS_MAX, false, Next::Park),
            (u32::MAX, false, Next::Park),
        ] {
            assert_eq!(after_failed_handoff(&settings(), attempt, same), expected, "{attempt} {same}");
        }
    }
}
