//! Why a person is told: the closed list of causes, which of them can end, and how the end is seen. Pure.

/// Causes, as the log, `status`, the hooks and the `alert` table name them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// An outcome stayed unknown. Over when the destination has no ERROR message left.
    Error,
    /// SENDING rows of a dead owner, or stale ones. Over when none of them is ERROR any more.
    StaleSending,
    /// A message waits for a person. Over when the destination has no PARKED message left.
    Parked,
    /// A deadline passed. An event.
    Expired,
    /// Other content came under a known key: the first stands. An event.
    Quarantined,
    /// A destination stopped answering or refuses the account. Over when it answers.
    DestinationClosed,
    /// Little room on the file system of the databases. Over when there is room and a tenth more.
    Disk,
    /// The wall clock is wrong or jumped. Over when its watch says so.
    Clock,
    /// The oldest message that could go waits too long. Over when it does not.
    BacklogAge,
    /// A message was tried often. An event.
    ManyAttempts,
    /// The inbox knows this message id with other content. An event.
    Conflict,
    /// A database cannot be written. Over when it can.
    Database,
    /// The whole agent is held: a copy, a changed file, a full disk. Over when no reason is left.
    Held,
    /// Two reports contradict each other, or a report the vendor's own answer. An event.
    ReportConflict,
    /// A report names no message of ours. An event.
    ReportUnmatched,
    /// A report that cannot be read, or a result code that is not in our table. An event.
    ReportUnclear,
    /// Reports cannot be fetched. An event, raised again while it lasts.
    ReportsStopped,
    /// An application's file cannot be served. Over when it can.
    Source,
    /// A person tries the hooks out. An event.
    Test,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Error,
        Self::StaleSending,
        Self::Parked,
        Self::Expired,
        Self::Quarantined,
        Self::DestinationClosed,
        Self::Disk,
        Self::Clock,
        Self::BacklogAge,
        Self::ManyAttempts,
        Self::Conflict,
        Self::Database,
        Self::Held,
        Self::ReportConflict,
        Self::ReportUnmatched,
        Self::ReportUnclear,
        Self::ReportsStopped,
        Self::Source,
        Self::Test,
    ];

    /// The capitals.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::StaleSending => "STALE_SENDING",
            Self::Parked => "PARKED",
            Self::Expired => "EXPIRED",
            Self::Quarantined => "QUARANTINED",
            Self::DestinationClosed => "DESTINATION_CLOSED",
            Self::Disk => "DISK",
            Self::Clock => "CLOCK",
            Self::BacklogAge => "BACKLOG_AGE",
            Self::ManyAttempts => "MANY_ATTEMPTS",
            Self::Conflict => "CONFLICT",
            Self::Database => "DATABASE",
            Self::Held => "HELD",
            Self::ReportConflict => "REPORT_CONFLICT",
            Self::ReportUnmatched => "REPORT_UNMATCHED",
            Self::ReportUnclear => "REPORT_UNCLEAR",
            Self::ReportsStopped => "REPORTS_STOPPED",
            Self::Source => "SOURCE",
            Self::Test => "TEST",
        }
    }

    /// Reads the capitals.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == text)
    }

    /// Whether it lasts until something ends it (and an all-clear follows), or is an event that is over at once.
    pub fn has_end(self) -> bool {
        match self {
            Self::Error
            | Self::StaleSending
            | Self::Parked
            | Self::DestinationClosed
            | Self::Disk
            | Self::Clock
            | Self::BacklogAge
            | Self::Source
            | Self::Database
            | Self::Held => true,
            Self::Expired
            | Self::Quarantined
            | Self::ManyAttempts
            | Self::Conflict
            | Self::ReportConflict
            | Self::ReportUnmatched
            | Self::ReportUnclear
            | Self::ReportsStopped
            | Self::Test => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_unique() {
        for cause in Cause::ALL {
            assert_eq!(Cause::parse(cause.as_str()), Some(cause));
        }
        assert_eq!(Cause::parse("error"), None);
    }
}
