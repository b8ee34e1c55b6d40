//! The HTTP client before a vendor that says anything: real sockets on loopback, a scripted answer.
//!
//! One request a call, whatever is answered; a vendor that has read it is never *not there*; an answer that claims a
//! length has it; and what is told of it to people is plain and holds no number.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::world::{gateway, is_plain, tells_no_number};
use crate::limits::ANSWER_BYTES_MAX;
use crate::message::Outcome;
use crate::vendor::client::{Answer, Client, ClientSettings, Exchange};

const BODY: &[u8] = b"{\"to\":\"01012345678\"}";

/// How the vendor behaves (one byte), then what it answers.
pub(super) fn run(bytes: &[u8]) {
    let Some((&how, script)) = bytes.split_first() else { return };
    let early = how & 1 != 0;
    let reset = how & 2 != 0;
    let Some(listener) = listener() else { return };
    let Ok(address) = listener.local_addr() else { return };
    let (exchange, requests) = std::thread::scope(|scope| {
        let vendor = scope.spawn(|| serve(&listener, script, early, reset));
        let url = format!("http://{address}/send");
        let (exchange, _) = client().post_once(&url, &[("Content-Type", "application/json")], BODY);
        (exchange, vendor.join())
    });
    let Ok(requests) = requests else { panic!("the vendor's thread failed") };
    judge(&exchange, requests, script, reset);
}

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let made = Client::new(&ClientSettings {
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            keep_alive: Duration::ZERO,
            idle_max: 1,
            ca_file: None,
            proxy: None,
        });
        match made {
            Ok(client) => client,
            Err(why) => panic!("{why}"),
        }
    })
}

/// Another loopback address each time, so that closed connections do not use up the ports.
fn listener() -> Option<TcpListener> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, a, b, c] = (NEXT.fetch_add(1, Ordering::Relaxed) % 0xFF_FF00 + 1).to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, a, b, c), 0)).ok()
}

/// One connection to its end: the number of requests that came over it.
fn serve(listener: &TcpListener, script: &[u8], early: bool, reset: bool) -> usize {
    let Ok((mut stream, _)) = listener.accept() else { return 0 };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let _ = stream.set_nodelay(true);
    let mut seen = Vec::new();
    if early {
        let _ = stream.write_all(script);
    }
    read_until(&mut stream, &mut seen, |seen| seen.ends_with(BODY));
    if !early {
        let _ = stream.write_all(script);
    }
    if reset {
        let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    } else {
        let _ = stream.shutdown(Shutdown::Write);
        // Whatever the client still says belongs to the count.
        read_until(&mut stream, &mut seen, |_| false);
    }
    seen.windows(6).filter(|window| window == b"POST /").count()
}

fn read_until(stream: &mut TcpStream, seen: &mut Vec<u8>, enough: impl Fn(&[u8]) -> bool) {
    let mut piece = [0; 1024];
    while !enough(seen) {
        match stream.read(&mut piece) {
            Ok(count @ 1..) => seen.extend_from_slice(&piece[..count]),
            _ => return,
        }
    }
}

fn judge(exchange: &Exchange, requests: usize, script: &[u8], reset: bool) {
    assert!(requests <= 1, "{requests} requests in one call");
    let input = String::from_utf8_lossy(script);
    match exchange {
        // An answer before the request may end the call before its first byte; a vendor that saw one is never "not sent".
        Exchange::NotSent { reason, .. } => {
            assert_eq!(requests, 0, "the vendor has it, and yet: not sent ({reason})");
            is_plain(reason);
            tells_no_number(reason, &input);
        }
        Exchange::Unknown { reason, status } => {
            is_plain(reason);
            tells_no_number(reason, &input);
            assert!(status.is_none_or(|status| (100..1000).contains(&status)), "{status:?}");
        }
        Exchange::Answered(answer) => answered(answer, script, reset),
    }
}

fn answered(answer: &Answer, script: &[u8], reset: bool) {
    assert!(answer.body.len() as u64 <= ANSWER_BYTES_MAX, "{} bytes", answer.body.len());
    assert!((200..1000).contains(&answer.status) || answer.status == 101, "status {}", answer.status);
    let told = format!("HTTP/1.1 {}", answer.status);
    let other = format!("HTTP/1.0 {}", answer.status);
    let script_text = String::from_utf8_lossy(script);
    assert!(script_text.contains(&told) || script_text.contains(&other), "a status that nobody gave: {told}");
    let length = answer.header("content-length").and_then(|text| text.trim().parse::<usize>().ok());
    let chunked = answer.header("transfer-encoding").is_some();
    if let Some(length) = length
        && answer.framed
        && !chunked
        && !matches!(answer.status, 204 | 304)
    {
        assert_eq!(answer.body.len(), length, "an answer with a length has it");
    }
    let _ = reset;
    if !answer.framed {
        // Its end is not proven: the rules take it for no acceptance that JSON would have to say.
        let outcome = crate::vendor::http::rules::read(gateway(), answer);
        assert!(!matches!(outcome, Outcome::Accepted { .. }), "accepted without an end");
    }
}
