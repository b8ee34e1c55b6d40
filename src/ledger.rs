//! Pure: which states an outbox row and its inbox row may have together, and whether the counts add up.
//!
//! `verify` reads the outbox row first and the inbox row after it, so a pair may be a moment apart; what is still a
//! fault after several looks is one.

use crate::lifecycle::{InboxState, OutboxState};

/// What a pair of states says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// They agree, and nobody needs to do anything.
    Agree,
    /// They agree, and a person has something to settle or to decide.
    Open(&'static str),
    /// A mark is late or was lost; the agent mends it by itself, without a second send.
    Heals(&'static str),
    /// They contradict each other: for the list, and exit 1.
    Fault(&'static str),
}

/// The table: an outbox row in this state, and the inbox row of its message (`None` = there is none).
pub const fn pair(outbox: OutboxState, inbox: Option<InboxState>) -> Verdict {
    use InboxState as I;
    use OutboxState as O;
    use Verdict::{Agree, Fault, Heals, Open};
    match (outbox, inbox) {
        (O::Pending | O::Publishing, None) => Agree,
        (O::Publishing, Some(I::Sending)) => Agree,
        (O::Publishing, Some(_)) => Heals("sent or refused already; its mark is on the way"),
        (O::Pending, Some(I::Sending)) => {
            Heals("its claim was given back while it is being sent; the inbox absorbs the next hand-off")
        }
        (O::Pending, Some(_)) => Heals("its mark was lost; the inbox absorbs the next hand-off"),

        (O::Published, Some(I::Sent | I::Failed)) => Agree,
        (O::Published, Some(I::Error)) => Open("nobody knows whether it arrived: settle it"),
        (O::Published, Some(I::Sending)) => {
            Heals("its sender died; it becomes ERROR at the next sweep or start")
        }
        (O::Published, None) => {
            Fault("marked as handed over, but the inbox does not know it: its fate is lost")
        }

        (O::Parked, None) => Open("waits for a person: release or cancel"),
        (O::Held, None) => Open("held by a person: release or cancel"),
        (O::Held, Some(_)) => {
            Heals("it was sent before it was held; released, it is marked and not sent again")
        }
        (O::Parked, Some(_)) => Fault("parked as not sent, but the inbox has a call of it"),

        (O::Skipped | O::Expired | O::Failed, None) => Agree,
        (O::Skipped, Some(_)) => Fault("skipped as not sent, but the inbox has a call of it"),
        (O::Expired, Some(_)) => Fault("expired as not sent, but the inbox has a call of it"),
        (O::Failed, Some(_)) => Fault("given up as not sent, but the inbox has a call of it"),
    }
}

/// An inbox row whose message no outbox has. `let_go` = retention has let keys of its age go.
pub const fn alone(inbox: InboxState, let_go: bool) -> Verdict {
    match (inbox, let_go) {
        (InboxState::Sent | InboxState::Failed, true) => Verdict::Agree,
        (InboxState::Sent | InboxState::Failed, false) => {
            Verdict::Fault("its outbox row is gone, and retention has not taken it")
        }
        (InboxState::Sending | InboxState::Error, _) => {
            Verdict::Fault("its outbox row is gone although it is not settled")
        }
    }
}

/// Accepted = there + deleted, for rows accepted before the count began. `deleted` at its begin and at its end: what
/// retention deleted meanwhile was counted as there or not, so the difference is allowed and no more.
pub fn adds_up(accepted: i64, there: i64, deleted_before: i64, deleted_after: i64) -> bool {
    (accepted - deleted_after..=accepted - deleted_before).contains(&there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_its_verdict() {
        use InboxState as I;
        use OutboxState as O;
        // Columns: no row, SENDING, SENT, FAILED, ERROR. A = agree, o = open, h = heals, F = fault.
        for (state, expected) in [
            (O::Pending, "Ahhhh"),
            (O::Publishing, "AAhhh"),
            (O::Published, "FhAAo"),
            (O::Skipped, "AFFFF"),
            (O::Expired, "AFFFF"),
            (O::Parked, "oFFFF"),
            (O::Held, "ohhhh"),
            (O::Failed, "AFFFF"),
        ] {
            let found: String = [None, Some(I::Sending), Some(I::Sent), Some(I::Failed), Some(I::Error)]
                .into_iter()
                .map(|inbox| match pair(state, inbox) {
                    Verdict::Agree => 'A',
                    Verdict::Open(_) => 'o',
                    Verdict::Heals(_) => 'h',
                    Verdict::Fault(_) => 'F',
                })
                .collect();
            assert_eq!(found, expected, "{state}");
        }
    }

    #[test]
    fn an_inbox_row_alone_is_legal_only_after_retention() {
        for state in InboxState::ALL {
            let legal = matches!(state, InboxState::Sent | InboxState::Failed);
            assert_eq!(alone(state, true) == Verdict::Agree, legal, "{state}");
            assert!(matches!(alone(state, false), Verdict::Fault(_)), "{state}");
        }
    }

    #[test]
    fn sums() {
        for (accepted, there, before, after, expected) in [
            (10, 10, 0, 0, true),
            (10, 7, 3, 3, true),
            (10, 6, 3, 3, false),
            (10, 8, 3, 3, false),
            (10, 6, 3, 4, true),
            (10, 7, 3, 4, true),
            (10, 5, 3, 4, false),
        ] {
            assert_eq!(
                adds_up(accepted, there, before, after),
                expected,
                "{accepted} {there} {before} {after}"
            );
        }
    }
}
