//! The vendor of the benchmarks: a lean HTTP sink in this process that counts arrivals per message.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Seen {
    pub total: usize,
    pub first: Option<Instant>,
    pub last: Option<Instant>,
    pub by_id: HashMap<String, (u32, Instant)>,
}

pub type Sink = Arc<(Mutex<Seen>, Condvar)>;

pub fn sink(delay: Duration) -> (SocketAddr, Sink) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let addr = listener.local_addr().expect("bound");
    let sink: Sink = Arc::default();
    let of_thread = sink.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let sink = of_thread.clone();
            std::thread::spawn(move || serve(stream, delay, &sink));
        }
    });
    (addr, sink)
}

fn serve(mut stream: TcpStream, delay: Duration, sink: &Sink) {
    let _ = stream.set_nodelay(true);
    let (mut buffer, mut length) = (vec![0u8; 8192], 0);
    loop {
        let whole = loop {
            let text = &buffer[..length];
            if let Some(head) = text.windows(4).position(|window| window == b"\r\n\r\n") {
                let lower = String::from_utf8_lossy(&text[..head]).to_ascii_lowercase();
                let field = |name: &str| {
                    lower
                        .split("\r\n")
                        .find_map(|line| line.strip_prefix(name))
                        .map(|value| value.trim().to_owned())
                };
                let body: usize = field("content-length:").and_then(|value| value.parse().ok()).unwrap_or(0);
                if length >= head + 4 + body {
                    break (head + 4 + body, field("x-reference:").unwrap_or_default());
                }
            }
            match stream.read(&mut buffer[length..]) {
                Ok(0) | Err(_) => return,
                Ok(read) => length += read,
            }
        };
        let now = Instant::now();
        {
            let mut seen = sink.0.lock().expect("not poisoned");
            seen.total += 1;
            seen.first.get_or_insert(now);
            seen.last = Some(now);
            let entry = seen.by_id.entry(whole.1).or_insert((0, now));
            entry.0 += 1;
            sink.1.notify_all();
        }
        buffer.copy_within(whole.0..length, 0);
        length -= whole.0;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").is_err() {
            return;
        }
    }
}

pub fn wait_total(sink: &Sink, total: usize) {
    let guard = sink.0.lock().expect("not poisoned");
    let (_guard, late) = sink
        .1
        .wait_timeout_while(guard, Duration::from_secs(120), |seen| seen.total < total)
        .expect("not poisoned");
    assert!(!late.timed_out(), "only {} of {total} arrived", _guard.total);
}

pub fn rate(sink: &Sink) -> f64 {
    let seen = sink.0.lock().expect("not poisoned");
    let span = seen.last.expect("arrived") - seen.first.expect("arrived");
    (seen.total - 1) as f64 / span.as_secs_f64()
}
