//! A vendor that breaks in every way we know, at random, and keeps a tally: which message came, how far, and what it was told.
//!
//! It knows nothing of the client under test. Loopback only; every connection is bounded by a read timeout, and `finish`
//! joins all of them before it hands the tally out, so that a late second request is in it too.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::scramble;
use crate::support_http::{Peer, Security, dead_port};

/// The header that carries the message id, in lower case.
pub const REFERENCE: &str = "x-reference";

const GOOD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";
/// Longer than any timeout in these worlds.
const STALL: Duration = Duration::from_millis(2_600);

/// What the vendor said to one request, as far as its whole answer left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Nothing, or an answer that is cut or no HTTP.
    NoAnswer,
    /// A whole 200 that says yes in framed JSON.
    Good,
    /// A 2xx without a framed yes: good by a rule of statuses, not by a rule of JSON.
    Bare,
    /// What the settings document as *not sent* (401, 403, 429), or 307 and 308.
    NotSent,
    /// What the settings document as refused for good.
    Rejected,
    /// A whole answer that proves nothing.
    Unclear,
}

/// One request head of a message.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Its body came whole.
    pub whole: bool,
    pub told: Told,
    /// It had said more on this connection than it was asked, so an answer that the client read may be another's.
    pub surplus: bool,
}

/// What the vendor saw, by message id, in order of arrival.
#[derive(Default)]
pub struct Tally {
    pub arrivals: HashMap<String, Vec<Arrival>>,
    /// Requests without an id.
    pub nameless: u64,
    /// Connections that it broke before it had read a request.
    pub broken_early: u64,
}

impl Tally {
    pub fn requests(&self) -> usize {
        self.arrivals.values().map(Vec::len).sum()
    }
}

/// What all connections share.
struct Shared {
    tally: Mutex<Tally>,
    luck: AtomicU64,
    open: AtomicUsize,
    /// A connection's thread panicked: a mistake of this vendor's, so its tally proves nothing.
    panicked: AtomicBool,
    ending: AtomicBool,
    security: Security,
    dead: SocketAddr,
    surplus_on_kept: bool,
}

/// One connection, counted until its thread ends, however it ends.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked.store(true, Ordering::SeqCst);
        }
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct BreakingVendor {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl BreakingVendor {
    /// `surplus_on_kept`: also answers that nobody asked for on connections that are used again, in the moment in which no
    /// client can tell.
    pub fn start(security: Security, seed: u64, surplus_on_kept: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            tally: Mutex::default(),
            luck: AtomicU64::new(seed),
            open: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            security,
            dead: dead_port(),
            surplus_on_kept,
        });
        let there = shared.clone();
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if there.ending.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, there.clone()) else { continue };
                shared.open.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let open = Open(shared);
                    open.0.connection(stream);
                });
            }
        });
        Self { address, shared, accepting: Some(accepting) }
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.shared.tally.lock().expect("not poisoned").requests()
    }

    /// Waits until every connection is over; after it the tally is final.
    pub fn finish(mut self) -> Tally {
        self.shared.ending.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        self.accepting.take().expect("once").join().expect("no panic");
        while self.shared.open.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!self.shared.panicked.load(Ordering::SeqCst), "the vendor itself panicked");
        std::mem::take(&mut *self.shared.tally.lock().expect("not poisoned"))
    }
}

impl Shared {
    fn dice(&self, sides: u64) -> u64 {
        scramble(self.luck.fetch_add(1, Ordering::Relaxed)) % sides
    }

    /// Request after request until it breaks something.
    fn connection(&self, stream: TcpStream) {
        let Some(mut peer) = Peer::accept(stream, &self.security, Arc::default()) else { return };
        // Rare: before a request it proves *not sent*, which closes a destination for a second and more.
        let early = self.dice(360);
        if early < 3 {
            self.tally.lock().expect("not poisoned").broken_early += 1;
            match early {
                0 => peer.reset(),
                1 => peer.fin(),
                _ => {
                    peer.shake_hands();
                    peer.reset();
                }
            }
            return;
        }
        let mut surplus = false;
        while let Some(head) = peer.head() {
            let id = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case(REFERENCE).then(|| value.trim().to_owned())
            });
            let Some(id) = id else {
                self.tally.lock().expect("not poisoned").nameless += 1;
                return peer.reset();
            };
            // By the path: whether the client keeps connections.
            let fresh = head.lines().next().is_some_and(|line| line.contains("-new-"));
            let number = {
                let mut tally = self.tally.lock().expect("not poisoned");
                let list = tally.arrivals.entry(id.clone()).or_default();
                list.push(Arrival { whole: false, told: Told::NoAnswer, surplus });
                list.len() - 1
            };
            let note = |arrival: Arrival| {
                let mut tally = self.tally.lock().expect("not poisoned");
                tally.arrivals.get_mut(&id).expect("noted above")[number] = arrival;
            };
            let early_end = self.before_the_body(&mut peer);
            if let Some(told) = early_end {
                return note(Arrival { whole: false, told, surplus });
            }
            if !peer.body() {
                return;
            }
            note(Arrival { whole: true, told: Told::NoAnswer, surplus });
            // Some are refused whenever they come, so that there are messages which end PARKED.
            let hash = id.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
            let refused_always = scramble(hash).is_multiple_of(97);
            let (told, goes_on) = if refused_always && self.dice(8) > 0 {
                let told = if peer.say(b"HTTP/1.1 403 no\r\nContent-Length: 2\r\n\r\nno") {
                    Told::NotSent
                } else {
                    Told::NoAnswer
                };
                (told, true)
            } else {
                self.answer(&mut peer, fresh, &mut surplus)
            };
            note(Arrival { whole: true, told, surplus });
            if !goes_on {
                return;
            }
        }
    }

    /// Breaks in the middle of a request, or answers before its end. `None` = reads on.
    fn before_the_body(&self, peer: &mut Peer) -> Option<Told> {
        let told = match self.dice(160) {
            0 => {
                peer.reset();
                Told::NoAnswer
            }
            1 => {
                peer.fin();
                Told::NoAnswer
            }
            2 => self.early(peer, "HTTP/1.1 403 no\r\nContent-Length: 2\r\n\r\nno", Told::NotSent),
            3 => self.early(peer, "HTTP/1.1 413 big\r\nContent-Length: 0\r\n\r\n", Told::Unclear),
            // It promises nothing yet, and then it is gone.
            4 => self.early(peer, "HTTP/1.1 100 Continue\r\n\r\n", Told::NoAnswer),
            _ => return None,
        };
        Some(told)
    }

    fn early(&self, peer: &mut Peer, text: &str, told: Told) -> Told {
        let said = peer.say(text.as_bytes());
        if self.dice(2) == 0 {
            peer.close()
        } else {
            peer.reset()
        }
        if said { told } else { Told::NoAnswer }
    }

    /// Answers a whole request, or does not; whether the connection goes on.
    fn answer(&self, peer: &mut Peer, fresh: bool, surplus: &mut bool) -> (Told, bool) {
        let whole = |peer: &mut Peer, text: &str, told: Told| {
            if peer.say(text.as_bytes()) { (told, true) } else { (Told::NoAnswer, false) }
        };
        let cut = |peer: &mut Peer, text: &str, how: u64| {
            peer.say(text.as_bytes());
            match how {
                0 => peer.reset(),
                1 => peer.fin(),
                _ => peer.close(),
            }
            (Told::NoAnswer, false)
        };
        let how = self.dice(3);
        match self.dice(150) {
            0..3 => cut(peer, "", how),
            3 => cut(peer, "HTTP/1.1 200 OK\r\nContent-Le", how),
            4 => cut(peer, "HTTP/1.1 2", how),
            5 | 6 => cut(peer, "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"ok\":true}", how),
            7 => {
                cut(peer, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{\"ok\":true}\r\n", how)
            }
            8 => cut(
                peer,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{\"ok\":true}\r\n0\r\n\r\n",
                how,
            ),
            // The beginning of a documented "not sent" is no "not sent".
            9 | 10 => cut(peer, "HTTP/1.1 403 no\r\nContent-Length: 50\r\n\r\n{", how),
            11 => cut(peer, "what is this?\r\n\r\n", how),
            12 => cut(peer, "HTTP/1.1 99 x\r\nContent-Length: 0\r\n\r\n", how),
            13 => cut(
                peer,
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 11\r\n\r\n{\"ok\":true}",
                how,
            ),
            14 => cut(peer, "HTTP/1.1 103 x\r\n\r\n", how),
            15 => {
                let long =
                    format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\nContent-Length: 0\r\n\r\n", "a".repeat(20_000));
                cut(peer, &long, 2)
            }
            16 if how == 0 => {
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n";
                cut(peer, &format!("{head}{}", " ".repeat(300_000)), 2)
            }
            17 | 18 => {
                let status = [301, 302, 303, 307, 308][self.dice(5) as usize];
                // To a dead port, or back to ourselves, where following it would be a second arrival.
                let to = if how == 0 { format!("http://{}/", self.dead) } else { "/other".to_owned() };
                let told = if status >= 307 { Told::NotSent } else { Told::Unclear };
                whole(
                    peer,
                    &format!("HTTP/1.1 {status} x\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"),
                    told,
                )
            }
            19 => whole(peer, &format!("HTTP/1.1 100 Continue\r\n\r\n{GOOD}"), Told::Good),
            20 if how == 0 => {
                std::thread::sleep(STALL);
                // The client gave up long ago.
                cut(peer, GOOD, 2)
            }
            21 if how == 0 => {
                for byte in GOOD.as_bytes() {
                    std::thread::sleep(Duration::from_millis(4));
                    if !peer.say(&[*byte]) {
                        return (Told::NoAnswer, false);
                    }
                }
                (Told::Good, true)
            }
            // A drip that never comes to its end within the timeout.
            22 if how == 0 => {
                let end = std::time::Instant::now() + STALL;
                peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n");
                while std::time::Instant::now() < end && peer.say(b" ") {
                    std::thread::sleep(Duration::from_millis(20));
                }
                peer.reset();
                (Told::NoAnswer, false)
            }
            23 | 24 => {
                let status = [408, 500, 502, 503, 504][self.dice(5) as usize];
                whole(peer, &format!("HTTP/1.1 {status} x\r\nContent-Length: 2\r\n\r\nno"), Told::Unclear)
            }
            25..28 => whole(peer, "HTTP/1.1 400 bad\r\nContent-Length: 2\r\n\r\nno", Told::Rejected),
            28..31 => {
                let status = [401, 403][self.dice(2) as usize];
                whole(peer, &format!("HTTP/1.1 {status} no\r\nContent-Length: 2\r\n\r\nno"), Told::NotSent)
            }
            31 if how == 0 => {
                whole(peer, "HTTP/1.1 429 slow\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n", Told::NotSent)
            }
            // Answered, and gone while the client may already be using the connection again.
            32..38 => {
                let (told, _) = whole(peer, GOOD, Told::Good);
                match how {
                    0 => peer.reset(),
                    1 => peer.fin(),
                    _ => peer.close(),
                }
                (told, false)
            }
            // A second answer that nobody asked for, in one piece with the first.
            38 | 39 => {
                let (told, _) = whole(peer, &format!("{GOOD}{GOOD}"), Told::Good);
                (told, told == Told::Good)
            }
            // The same, when the next request may be on its way.
            40 if fresh || self.surplus_on_kept => {
                *surplus |= !fresh;
                let (told, goes_on) = whole(peer, GOOD, Told::Good);
                std::thread::sleep(Duration::from_millis(self.dice(8)));
                (told, goes_on && peer.say(GOOD.as_bytes()))
            }
            41 => {
                let (told, _) = whole(peer, "HTTP/1.0 200 OK\r\n\r\n{\"ok\":true}", Told::Bare);
                if how == 0 {
                    peer.reset()
                } else {
                    peer.close()
                }
                (told, false)
            }
            42 => whole(peer, "HTTP/1.1 204 No Content\r\n\r\n", Told::Bare),
            43 => whole(peer, "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"ok\":false}", Told::Bare),
            44 => whole(
                peer,
                "HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{\"ok\":false,\"ok\":true}",
                Told::Bare,
            ),
            45..48 => {
                std::thread::sleep(Duration::from_millis(self.dice(12)));
                whole(peer, GOOD, Told::Good)
            }
            48 => whole(
                peer,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{\"ok\":true}\r\n0\r\n\r\n",
                Told::Good,
            ),
            _ => whole(peer, GOOD, Told::Good),
        }
    }
}
