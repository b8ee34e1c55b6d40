//! Why the agent does not start, and the exit code that says so.
//!
//! Never: the end of an agent that had started; a room that cannot go on ends the process by a panic.

use std::path::PathBuf;

use crate::db::DbError;
use crate::db::identity::WitnessError;
use crate::exit;
use crate::listen;
use crate::owner::OwnerError;

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another agent, or a folder that cannot be used.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A database.
    #[error(transparent)]
    Db(#[from] DbError),
    /// An agent that began on other files at this path still runs.
    #[error(transparent)]
    Witness(#[from] WitnessError),
    /// One of the two files is missing while the other stands (F30).
    #[error(
        "{missing}: is missing while {stands} stands. Sending now could repeat what was sent. Put the file back, or move both away and run `onceward init` to begin anew"
    )]
    HalfThere {
        /// The missing file.
        missing: PathBuf,
        /// The other one.
        stands: PathBuf,
    },
    /// A destination's adapter cannot be built.
    #[error("[[destination]] {name}: {reason}")]
    Vendor {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// An alert hook cannot be built.
    #[error("[alert]: {reason}")]
    Alert {
        /// Why.
        reason: String,
    },
    /// The loopback address.
    #[error(transparent)]
    Listen(#[from] listen::server::ListenError),
    /// Threads, random numbers.
    #[error("cannot start: {0}")]
    Io(#[from] std::io::Error),
}

impl StartError {
    /// The documented exit code.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Owner(OwnerError::Held { .. }) | Self::Witness(_) => exit::TRY_AGAIN,
            Self::Owner(OwnerError::Io { source, .. }) | Self::Io(source) => match source.kind() {
                std::io::ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
                std::io::ErrorKind::NotFound => exit::NO_INPUT,
                std::io::ErrorKind::StorageFull => exit::TRY_AGAIN,
                _ => exit::IO,
            },
            Self::Db(error) => db_exit_code(error),
            // Whoever has the address may let go of it, and an interface may come up: the service manager tries again.
            Self::Listen(error) => match error.source.kind() {
                std::io::ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
                _ => exit::TRY_AGAIN,
            },
            Self::HalfThere { .. } => exit::UNAVAILABLE,
            Self::Vendor { .. } | Self::Alert { .. } => exit::SETTINGS,
        }
    }
}

/// The documented exit code of a database error.
pub fn db_exit_code(error: &DbError) -> i32 {
    use rusqlite::ErrorCode as E;
    match error {
        DbError::Missing { .. } | DbError::Away { .. } => exit::NO_INPUT,
        DbError::Newer { .. }
        | DbError::Older { .. }
        | DbError::Unusable { .. }
        | DbError::Foreign { .. } => exit::UNAVAILABLE,
        DbError::NotPermitted { .. } => exit::NOT_PERMITTED,
        error if error.is_temporary() => exit::TRY_AGAIN,
        DbError::Sqlite { source, .. } => match source.sqlite_error_code() {
            Some(E::ReadOnly | E::PermissionDenied | E::CannotOpen) => exit::NOT_PERMITTED,
            Some(E::NotADatabase | E::DatabaseCorrupt) => exit::UNAVAILABLE,
            _ => exit::IO,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    /// 69 and 78 keep the service manager from trying again (`RestartPreventExitStatus` of the unit).
    #[test]
    fn what_may_pass_by_itself_is_tried_again() {
        let listen = |kind| {
            StartError::Listen(listen::server::ListenError {
                place: "127.0.0.1:1".into(),
                source: Error::from(kind),
            })
        };
        assert_eq!(listen(ErrorKind::AddrInUse).exit_code(), exit::TRY_AGAIN);
        assert_eq!(listen(ErrorKind::AddrNotAvailable).exit_code(), exit::TRY_AGAIN);
        assert_eq!(listen(ErrorKind::PermissionDenied).exit_code(), exit::NOT_PERMITTED);
        assert_eq!(StartError::Io(Error::from_raw_os_error(5)).exit_code(), exit::IO, "EIO");
    }
}
