//! The only table of legal moves: outbox and inbox states, events, and where each event leads. Pure.
//!
//! `schema.sql` mirrors it in CHECKs and triggers, ARCHITECTURE.md draws it, and `tests/it/schema.rs` holds the
//! three together. Whatever is not in the table is refused; nothing else in the crate decides a state.

/// States of an outbox row. Written by producers (who insert) and the relay alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OutboxState {
    /// Waits until it is due. In: insert, postponed, lease over, released. Out: claimed, held, closed by policy.
    Pending,
    /// Claimed by a relay, with owner and lease. Out: confirmed, postponed, parked, closed by policy.
    Publishing,
    /// Its hand-off is confirmed: the inbox row tells its fate. Closed; only proof that nothing was sent opens it again.
    Published,
    /// Policy said never (consent, environment). Final.
    Skipped,
    /// Its deadline or scheduled day passed. Final, alerted.
    Expired,
    /// The same failure would repeat: waits for a person.
    Parked,
    /// A person (or the producer) said: not now.
    Held,
    /// A person gave it up. Final.
    Failed,
}

/// What can happen to an outbox row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OutboxEvent {
    /// The relay takes it, with lease and owner.
    Claim,
    /// The worker's confirm: the inbox has it.
    Confirmed,
    /// Certainly not sent, or not even handed over: later again.
    Postpone,
    /// Its owner is dead or the lease is over (reason CLAIM_EXPIRED).
    LeaseOver,
    /// Consent withdrawn, number blocked, environment.
    Policy,
    /// Deadline or scheduled day passed.
    DeadlinePassed,
    /// The same failure would repeat.
    Park,
    /// A person: not now.
    Hold,
    /// A person: go on, same row, same message id.
    Release,
    /// A person: never.
    GiveUp,
    /// Its ERROR was proven *not sent* (a look-up's documented "never received", or a person who asked the vendor): the
    /// inbox row is gone and noted in `rearm`, and the same row goes again under the same message id.
    Rearm,
}

/// States of an inbox row. Written by the worker side alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum InboxState {
    /// Claimed, on disk, right before or in the call.
    Sending,
    /// The vendor took it.
    Sent,
    /// The vendor said no for good.
    Failed,
    /// Nobody knows: never sent again, shown to a person until settled.
    Error,
}

/// What can happen to an inbox row. The claim itself is the insert that makes the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum InboxEvent {
    /// The vendor's yes.
    Accepted,
    /// The vendor's no.
    Rejected,
    /// Time-out, reset, 5xx, anything unproven.
    Unknown,
    /// Proven not to be at the vendor.
    NotSent,
    /// The owner died, or the row is older than the stale limit.
    OwnerDead,
    /// A report, a look-up or a person says: it went out.
    SettleSent,
    /// A report, a look-up or a person says: it did not arrive and never will.
    SettleFailed,
    /// Proof that it never left: the row goes and the message may be released again.
    SettleNotSent,
    /// A delivery report on a row that is settled: it sets `delivery`, never the state.
    Report,
    /// A report says that the phone has it, though the answer or an earlier report (of a first channel, before its
    /// fallback) had said no: what arrived, arrived.
    Delivered,
}

/// Where an inbox event leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InboxMove {
    /// To this state.
    To(InboxState),
    /// The row is deleted; the attempt stays in the attempt log.
    RowDeleted,
}

/// The outbox table: from, event, to.
pub const OUTBOX_MOVES: &[(OutboxState, OutboxEvent, OutboxState)] = {
    use OutboxEvent as E;
    use OutboxState as S;
    &[
        (S::Pending, E::Claim, S::Publishing),
        (S::Publishing, E::Confirmed, S::Published),
        (S::Publishing, E::Postpone, S::Pending),
        (S::Publishing, E::LeaseOver, S::Pending),
        (S::Pending, E::Policy, S::Skipped),
        (S::Publishing, E::Policy, S::Skipped),
        (S::Pending, E::DeadlinePassed, S::Expired),
        (S::Publishing, E::DeadlinePassed, S::Expired),
        (S::Publishing, E::Park, S::Parked),
        (S::Parked, E::Release, S::Pending),
        (S::Held, E::Release, S::Pending),
        (S::Pending, E::Hold, S::Held),
        (S::Parked, E::GiveUp, S::Failed),
        (S::Held, E::GiveUp, S::Failed),
        (S::Published, E::Rearm, S::Pending),
    ]
};

/// The inbox table: from, event, to.
pub const INBOX_MOVES: &[(InboxState, InboxEvent, InboxMove)] = {
    use InboxEvent as E;
    use InboxMove as M;
    use InboxState as S;
    &[
        (S::Sending, E::Accepted, M::To(S::Sent)),
        (S::Sending, E::Rejected, M::To(S::Failed)),
        (S::Sending, E::Unknown, M::To(S::Error)),
        (S::Sending, E::NotSent, M::RowDeleted),
        (S::Sending, E::OwnerDead, M::To(S::Error)),
        (S::Error, E::SettleSent, M::To(S::Sent)),
        (S::Error, E::SettleFailed, M::To(S::Failed)),
        (S::Error, E::SettleNotSent, M::RowDeleted),
        (S::Sent, E::Report, M::To(S::Sent)),
        (S::Failed, E::Report, M::To(S::Failed)),
        (S::Failed, E::Delivered, M::To(S::Sent)),
    ]
};

impl OutboxState {
    /// All states, in the order of the documents.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Publishing,
        Self::Published,
        Self::Skipped,
        Self::Expired,
        Self::Parked,
        Self::Held,
        Self::Failed,
    ];
    /// The capitals used in SQL, logs, CLI and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Publishing => "PUBLISHING",
            Self::Published => "PUBLISHED",
            Self::Skipped => "SKIPPED",
            Self::Expired => "EXPIRED",
            Self::Parked => "PARKED",
            Self::Held => "HELD",
            Self::Failed => "FAILED",
        }
    }
    /// Reads the capitals.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
    /// Final states have a closing time and never move again, PUBLISHED but by [`OutboxEvent::Rearm`].
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Published | Self::Skipped | Self::Expired | Self::Failed)
    }
    /// Where the event leads from here, if it is legal.
    pub fn after(self, event: OutboxEvent) -> Option<Self> {
        OUTBOX_MOVES.iter().find(|(from, what, _)| *from == self && *what == event).map(|(_, _, to)| *to)
    }
}

impl InboxState {
    /// All states, in the order of the documents.
    pub const ALL: [Self; 4] = [Self::Sending, Self::Sent, Self::Failed, Self::Error];
    /// The capitals used in SQL, logs, CLI and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sending => "SENDING",
            Self::Sent => "SENT",
            Self::Failed => "FAILED",
            Self::Error => "ERROR",
        }
    }
    /// Reads the capitals.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
    /// Where the event leads from here, if it is legal.
    pub fn after(self, event: InboxEvent) -> Option<InboxMove> {
        INBOX_MOVES.iter().find(|(from, what, _)| *from == self && *what == event).map(|(_, _, to)| *to)
    }
}

/// The state as a number column-independent text for SQL parameters.
macro_rules! state_sql {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl rusqlite::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                Ok(rusqlite::types::ToSqlOutput::Borrowed(self.as_str().into()))
            }
        }
        impl rusqlite::types::FromSql for $name {
            fn column_result(value: rusqlite::types::ValueRef<'_>) -> rusqlite::types::FromSqlResult<Self> {
                let text = value.as_str()?;
                Self::parse(text).ok_or_else(|| {
                    rusqlite::types::FromSqlError::Other(format!("unknown state {text:?}").into())
                })
            }
        }
    };
}
state_sql!(OutboxState);
state_sql!(InboxState);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_states_never_move_but_by_proof_that_nothing_was_sent() {
        for (from, event, to) in OUTBOX_MOVES {
            assert!(!from.is_final() || *event == OutboxEvent::Rearm, "{from} --{event:?}--> {to}");
        }
    }

    #[test]
    fn the_same_state_and_event_never_lead_to_two_places() {
        for (i, a) in OUTBOX_MOVES.iter().enumerate() {
            assert!(OUTBOX_MOVES[i + 1..].iter().all(|b| (a.0, a.1) != (b.0, b.1)), "{a:?}");
        }
        for (i, a) in INBOX_MOVES.iter().enumerate() {
            assert!(INBOX_MOVES[i + 1..].iter().all(|b| (a.0, a.1) != (b.0, b.1)), "{a:?}");
        }
    }

    #[test]
    fn nothing_but_proof_leads_from_a_claim_back_to_a_send() {
        for (from, event, to) in INBOX_MOVES {
            if *to == InboxMove::RowDeleted {
                assert!(
                    matches!(event, InboxEvent::NotSent | InboxEvent::SettleNotSent),
                    "{from} --{event:?}"
                );
            }
        }
    }

    #[test]
    fn state_names_read_back() {
        for state in OutboxState::ALL {
            assert_eq!(OutboxState::parse(state.as_str()), Some(state));
        }
        for state in InboxState::ALL {
            assert_eq!(InboxState::parse(state.as_str()), Some(state));
        }
    }
}
