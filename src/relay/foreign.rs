//! Pure: claims of other agents on one outbox file, and when one of them is dead.
//!
//! A live relay renews its leases again and again. A claim that was not renewed for as long as a lease lasts, by the
//! monotonic clock of this run, is over, however far in the future or the past the wall clock put its end. So a leap
//! of a clock kills no live claim, and no wrong clock makes a lease eternal.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What was seen of other agents' claims.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    seen: HashMap<i64, Seen>,
    round: u64,
}

#[derive(Debug)]
struct Seen {
    owner: String,
    until_ms: i64,
    since: Instant,
    round: u64,
}

/// One look at all of them.
pub(super) struct Look<'a> {
    foreign: &'a mut Foreign,
    now: Instant,
    lease: Duration,
}

impl Foreign {
    /// Begins a look; claims that it does not come to are forgotten at its end.
    pub(super) fn look(&mut self, now: Instant, lease: Duration) -> Look<'_> {
        self.round += 1;
        Look { foreign: self, now, lease }
    }
}

impl Look<'_> {
    /// Whether this claim was not renewed for a whole lease.
    pub(super) fn is_over(&mut self, row: i64, owner: &str, until_ms: i64) -> bool {
        let Foreign { seen, round } = self.foreign;
        let seen = seen.entry(row).or_insert_with(|| Seen {
            owner: owner.to_owned(),
            until_ms,
            since: self.now,
            round: *round,
        });
        if seen.owner != owner || seen.until_ms != until_ms {
            *seen = Seen { owner: owner.to_owned(), until_ms, since: self.now, round: *round };
        }
        seen.round = *round;
        self.now.saturating_duration_since(seen.since) >= self.lease
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        let round = self.foreign.round;
        self.foreign.seen.retain(|_, seen| seen.round == round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_claim_that_nobody_renews_for_a_lease_is_over() {
        let (mut foreign, begun, lease) = (Foreign::default(), Instant::now(), Duration::from_secs(900));
        let mut look = |after_s: u64, rows: &[(i64, &str, i64)]| -> Vec<i64> {
            let mut look = foreign.look(begun + Duration::from_secs(after_s), lease);
            rows.iter()
                .filter(|(row, owner, until)| look.is_over(*row, owner, *until))
                .map(|(row, _, _)| *row)
                .collect()
        };
        let eternal = i64::MAX;
        // 1 is renewed, 2 was claimed under a clock far ahead and is dead, 3 long over by its stamp and alive.
        assert_eq!(look(0, &[(1, "b:1", 10), (2, "b:1", eternal), (3, "c:1", 0)]), [0i64; 0]);
        assert_eq!(look(600, &[(1, "b:1", 20), (2, "b:1", eternal), (3, "c:1", 5)]), [0i64; 0]);
        assert_eq!(look(900, &[(1, "b:1", 30), (2, "b:1", eternal), (3, "c:1", 9)]), [2]);
        // Claimed anew by another: its time begins anew. One that was gone for a look too.
        assert_eq!(look(1000, &[(1, "d:1", 30)]), [0i64; 0]);
        assert_eq!(look(1899, &[(1, "d:1", 30), (2, "b:1", eternal)]), [0i64; 0]);
        assert_eq!(look(1900, &[(1, "d:1", 30), (2, "b:1", eternal)]), [1]);
    }
}
