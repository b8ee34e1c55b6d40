//! Calls to the running agent over its local socket: one request, one answer, within a bound of time and size.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::Failure;
use crate::exit;

/// Longest wait for an answer; the agent itself gives up on a commit before that.
const TIMEOUT: Duration = Duration::from_secs(40);
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
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.set_read_timeout(Some(TIMEOUT)).map_err(broken)?;
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
