//! Calls to the running agent over its local socket: one request, one answer, within a bound of time and size; and,
//! where nobody listens, taking the agent's lock to write its inbox oneself. The one mechanism of all verbs on the inbox.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use super::Failure;
use super::settings_file::SettingsFile;
use crate::config::Settings;
use crate::db::{self, Durability, Part};
use crate::exit;
use crate::owner::{self, OwnerError, Ownership, StateDir};

/// Longest wait for an answer; the agent itself gives up on a commit before that.
pub const TIMEOUT: Duration = Duration::from_secs(40);
/// Largest answer, bytes.
const ANSWER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// An answer.
#[derive(Debug)]
pub struct Answered {
    /// HTTP status.
    pub status: u16,
    /// Its body as JSON; null where it is none.
    pub body: serde_json::Value,
}

/// POSTs JSON; `None` where nobody listens (no agent, or none on this socket).
///
/// # Errors
/// The socket may not be used by this user (77), or the agent broke off or did not answer in time (69): then whether it
/// acted is not known here, and `onceward show` tells.
pub fn post(socket: &Path, path: &str, body: &serde_json::Value) -> Result<Option<Answered>, Failure> {
    post_within(socket, path, body, TIMEOUT)
}

/// The same with another longest wait.
///
/// # Errors
/// As [`post`].
pub fn post_within(
    socket: &Path,
    path: &str,
    body: &serde_json::Value,
    patience: Duration,
) -> Result<Option<Answered>, Failure> {
    call(socket, "POST", path, &body.to_string(), patience)
}

/// GETs JSON; `None` where nobody listens.
///
/// # Errors
/// As [`post`].
pub fn get(socket: &Path, path: &str) -> Result<Option<Answered>, Failure> {
    call(socket, "GET", path, "", TIMEOUT)
}

fn call(
    socket: &Path,
    method: &str,
    path: &str,
    body: &str,
    patience: Duration,
) -> Result<Option<Answered>, Failure> {
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let text = format!("{}: {error}; join the group of the socket", socket.display());
            return Err(Failure::new(exit::NOT_PERMITTED, text));
        }
        Err(_) => return Ok(None),
    };
    let broken = |error: std::io::Error| {
        let text = format!("{}: the agent did not answer ({error}); see `onceward show`", socket.display());
        Failure::new(exit::UNAVAILABLE, text)
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.set_read_timeout(Some(patience)).map_err(broken)?;
    stream.write_all(request.as_bytes()).map_err(broken)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(broken)?;
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    match head.parse(&answer) {
        Ok(httparse::Status::Complete(head_bytes)) => Ok(Some(Answered {
            status: head.code.unwrap_or(0),
            body: serde_json::from_slice(&answer[head_bytes..]).unwrap_or(serde_json::Value::Null),
        })),
        _ => Err(broken(std::io::Error::other("half an answer"))),
    }
}

/// The agent's lock, and its inbox for writing: while it is held no agent starts.
pub struct Locked {
    _ownership: Ownership,
    /// For one transaction of one verb.
    pub inbox: Connection,
}

/// Takes the lock of an agent that does not run.
///
/// # Errors
/// It runs, but nobody answers on its socket (75); this user may not (77); the inbox cannot be opened.
pub fn take_lock(
    file: &SettingsFile,
    settings: &Settings,
    state: &StateDir,
    verb: &str,
) -> Result<Locked, Failure> {
    let ownership = owner::take(state, &file.path).map_err(|error| match &error {
        OwnerError::Held { .. } => Failure::new(
            exit::TRY_AGAIN,
            format!(
                "the agent is running, but nobody answers on its socket {}; check [listen].socket, or stop the agent \
                 first",
                settings.listen.socket.display()
            ),
        ),
        OwnerError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => Failure::new(
            exit::NOT_PERMITTED,
            format!("{error}; while the agent is down only its user may {verb}"),
        ),
        _ => Failure::new(exit::IO, error.to_string()),
    })?;
    let inbox = db::open_writer(&state.inbox(), Part::Inbox, Durability::Full)?;
    Ok(Locked { _ownership: ownership, inbox })
}

/// An error of a database file with the documented exit code.
pub fn db_failure(path: &Path, error: &rusqlite::Error) -> Failure {
    let code = if db::is_busy(error) || db::is_full(error) { exit::TRY_AGAIN } else { exit::IO };
    Failure::new(code, format!("{}: {error}", path.display()))
}
