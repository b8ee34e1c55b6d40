//! A small HTTP receiver on loopback that keeps what it was sent and answers as told: for alert hooks and headers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::SOON;

#[derive(Clone, Debug)]
pub enum Answer {
    Status(u16),
    /// 302 to this place.
    Redirect(String),
    /// Reads and never answers.
    Hang,
}

#[derive(Clone, Debug, Default)]
pub struct Request {
    pub head: String,
    pub body: String,
}

pub struct Receiver {
    pub addr: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    answer: Arc<Mutex<Answer>>,
}

impl Receiver {
    pub fn new(answer: Answer) -> Self {
        Self::at("127.0.0.1:0".parse().expect("an address"), answer)
    }

    /// On this very address, e.g. one that was reserved while nobody listened.
    pub fn at(addr: SocketAddr, answer: Answer) -> Self {
        let listener = TcpListener::bind(addr).expect("binds");
        let addr = listener.local_addr().expect("an address");
        let (requests, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(answer)));
        let (kept, told) = (requests.clone(), answer.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, told) = (kept.clone(), told.clone());
                std::thread::spawn(move || serve(stream, &kept, &told));
            }
        });
        Self { addr, requests, answer }
    }

    pub fn answer(&self, answer: Answer) {
        *self.answer.lock().expect("not poisoned") = answer;
    }
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("not poisoned").clone()
    }
    /// Bodies that hold the text.
    pub fn with(&self, text: &str) -> Vec<String> {
        let all = self.requests().into_iter().map(|request| request.body);
        all.filter(|body| body.contains(text)).collect()
    }
    #[track_caller]
    pub fn wait(&self, text: &str) -> String {
        let end = Instant::now() + SOON;
        loop {
            if let Some(body) = self.with(text).into_iter().next() {
                return body;
            }
            assert!(Instant::now() < end, "nothing with {text:?} in {:?}", self.requests());
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Vec<Request>>, told: &Mutex<Answer>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut request = Request::default();
    while !request.head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request.head).ok()? == 0 {
            return None;
        }
    }
    let length = request
        .head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    kept.lock().ok()?.push(request);
    let answer = told.lock().ok()?.clone();
    let head = match answer {
        Answer::Status(status) => format!("HTTP/1.1 {status} X\r\n"),
        Answer::Redirect(to) => format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n"),
        Answer::Hang => {
            let _ = reader.read(&mut [0; 1]); // until the far end gives up
            return None;
        }
    };
    (&stream).write_all(format!("{head}Content-Length: 2\r\nConnection: close\r\n\r\nok").as_bytes()).ok()
}
