//! Pure: how often a message is tried again, and when. Reads no clock; takes no decision about states beyond that.

use std::time::Duration;

use crate::config::RetrySettings;

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

/// Pause after the `attempt`-th failure to hand a message over (a bug or a panic before its claim); the last repeats.
pub fn after_failed_handoff(retry: &RetrySettings, attempt: u32) -> Duration {
    let index = (attempt.max(1) - 1) as usize;
    retry.handoff.get(index).or(retry.handoff.last()).copied().unwrap_or(Duration::from_secs(60))
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
    fn the_last_handoff_pause_repeats() {
        assert_eq!(after_failed_handoff(&settings(), 0), Duration::from_secs(60));
        assert_eq!(after_failed_handoff(&settings(), 1), Duration::from_secs(60));
        assert_eq!(after_failed_handoff(&settings(), 6), Duration::from_secs(1800));
        assert_eq!(after_failed_handoff(&settings(), u32::MAX), Duration::from_secs(1800));
    }
}
