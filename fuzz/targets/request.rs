//! The reader of requests, of the agent's listener and of the sandbox: bytes to requests, wherever they are cut; nothing
//! over a limit, nothing without its guard; and answers whose headers are one line each.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::time::Duration;

use super::world::MARK;
use crate::config::Secret;
use crate::listen::guard::Keys;
use crate::listen::server::look_up;
use crate::listen::wire::{Answer, BODY_BYTES_MAX, Broken, HEAD_BYTES_MAX, Head, Incoming, Stream};

/// The secret of the listener.
const TOKEN: &str = "a-token-that-nobody-guesses";

/// How the bytes are cut (one byte), then what the peer sends.
pub(super) fn run(bytes: &[u8]) {
    let Some((&cut, sent)) = bytes.split_first() else { return };
    let whole = requests(sent, usize::MAX);
    let piece = 1 + usize::from(cut);
    // Reading a long head anew at each of its bytes would only make the fuzzer slow.
    let piece = if sent.len() > 8_192 { piece.max(64) } else { piece };
    assert_eq!(requests(sent, piece), whole, "cut into pieces of {piece}");
    a_header_is_one_line(&String::from_utf8_lossy(sent));
}

/// A peer that sends this in pieces, and then closes.
struct Peer<'b> {
    bytes: &'b [u8],
    at: Cell<usize>,
    piece: usize,
}

impl Stream for Peer<'_> {
    fn read_timeout(&self, _: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}

impl Read for &Peer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = &self.bytes[self.at.get()..];
        let count = left.len().min(buffer.len()).min(self.piece);
        buffer[..count].copy_from_slice(&left[..count]);
        self.at.set(self.at.get() + count);
        Ok(count)
    }
}

impl Write for &Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is read of a connection, as `server.rs` reads it.
fn requests(sent: &[u8], piece: usize) -> Vec<String> {
    let peer = Peer { bytes: sent, at: Cell::new(0), piece };
    let long = Duration::from_secs(3_600);
    let Ok(mut incoming) = Incoming::new(&peer, long, long) else { return Vec::new() };
    let mut seen = Vec::new();
    loop {
        let head = match incoming.head() {
            Ok(head) => head,
            Err(Broken::Gone) => {
                seen.push("gone".into());
                return seen;
            }
            Err(Broken::Bad(status, why)) => {
                assert!(matches!(status, 400 | 411 | 413 | 431), "{status} {why}");
                seen.push(format!("{status}"));
                return seen;
            }
        };
        assert!(head.body_bytes <= BODY_BYTES_MAX, "a body over the limit: {}", head.body_bytes);
        assert!(head.bytes <= HEAD_BYTES_MAX, "a head over the limit: {}", head.bytes);
        guarded(&head);
        let body = match incoming.body(&head) {
            Ok(body) => body.to_vec(),
            Err(_) => {
                seen.push(format!("{head:?} without its body"));
                return seen;
            }
        };
        assert_eq!(body.len(), head.body_bytes, "the announced length");
        seen.push(format!("{head:?} {body:?}"));
        incoming.done(&head);
    }
}

/// The loopback listener lets in what has the token, under a name of ours, within the route's size; all else it refuses
/// from the head alone.
fn guarded(head: &Head) {
    let keys = Keys { address: ([127, 0, 0, 1], 7780).into(), token: Some(Secret::new(TOKEN.into())) };
    match look_up(head, Some(&keys)) {
        Ok((route, names)) => {
            assert!(head.body_bytes <= route.body_bytes_max, "over the route's limit");
            assert!(names.iter().all(|name| !name.contains('/') && !name.contains('?')), "{names:?}");
            if route.guard == crate::listen::guard::Guard::Token {
                let given = head.authorization.as_deref().unwrap_or_default();
                assert!(given.contains(TOKEN), "{} without the token", route.path);
            }
        }
        Err(answer) => {
            assert!(matches!(answer.status, 401 | 404 | 405 | 413 | 421 | 422), "{}", answer.status);
            assert!(!answer.body.contains(TOKEN));
        }
    }
}

/// Whatever text a header of ours gets, it adds one line.
fn a_header_is_one_line(text: &str) {
    let mut answer = Answer::text(200, MARK);
    answer.header("X-Told", text);
    let mut out = Vec::new();
    answer.write_whole(&mut out, true);
    let head_ends = out.len() - MARK.len();
    assert_eq!(&out[head_ends..], MARK.as_bytes());
    let lines = out[..head_ends].split(|byte| *byte == b'\n').count();
    assert_eq!(
        lines,
        6,
        "status, type, told, length, and the empty line: {:?}",
        String::from_utf8_lossy(&out)
    );
}
