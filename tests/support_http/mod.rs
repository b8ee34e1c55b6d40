//! A scripted server, plain or TLS, that breaks in the ways a vendor can break, and counts what it saw.
//!
//! It knows nothing of the client under test. Listens on 127.0.0.1 only; every connection is bounded by a read
//! timeout, and `finish` joins every thread before it tells the counts, so a late second request is seen too.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

/// No read or write of the server takes longer, whatever the client does.
const SERVER_PATIENCE: Duration = Duration::from_secs(5);

/// One thing that a connection does. After the last one the server reads on, counting, until the client hangs up.
#[derive(Clone)]
pub enum Step {
    /// Reads one request head.
    Head,
    /// Reads one request, head and body.
    Request,
    /// Reads this many bytes of a body.
    Take(usize),
    /// Writes.
    Say(Vec<u8>),
    /// Writes byte by byte, 20 ms apart, for as long as the client listens.
    Drip(Vec<u8>),
    /// Writes again and again for as long as the client listens.
    Flood(Vec<u8>),
    /// Reads 64 KiB every 100 ms for as long as the client writes.
    SlowDrain,
    /// Touches nothing until the client hangs up or the test ends.
    Deaf,
    /// Lets what was written arrive before what comes next.
    Settle,
    /// Waits for the test's `go`.
    Await,
    /// Tells the test that this point is reached.
    Tell,
    /// Sends the TLS close_notify, if TLS, and FIN.
    Close,
    /// FIN without close_notify.
    Fin,
    /// RST.
    Reset,
}

/// What the server saw.
#[derive(Default)]
pub struct Seen {
    pub connections: AtomicUsize,
    /// Request heads other than CONNECT.
    pub heads: AtomicUsize,
    /// Requests other than CONNECT with their whole body.
    pub whole: AtomicUsize,
    pub connects: AtomicUsize,
    /// The heads themselves.
    pub texts: Mutex<Vec<String>>,
}

/// When TLS begins on a connection.
#[derive(Clone)]
pub enum Security {
    Plain,
    Tls(Arc<ServerConfig>),
}

pub struct Server {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    pub go: Sender<()>,
    pub told: Receiver<()>,
    ending: Arc<AtomicBool>,
    accepting: Option<JoinHandle<Vec<JoinHandle<()>>>>,
}

impl Server {
    /// The first connection plays the first script, and so on; the last script is played by all that follow.
    pub fn start(security: Security, scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, ending) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let ((go, go_here), (tell, told)) = (unbounded(), unbounded());
        let (seen_there, ending_there) = (seen.clone(), ending.clone());
        let accepting = std::thread::spawn(move || {
            let mut threads = Vec::new();
            for stream in listener.incoming() {
                if ending_there.load(Ordering::SeqCst) {
                    break;
                }
                let index = seen_there.connections.fetch_add(1, Ordering::SeqCst).min(scripts.len() - 1);
                let (script, security) = (scripts[index].clone(), security.clone());
                let (seen, ending) = (seen_there.clone(), ending_there.clone());
                let (go, tell) = (go_here.clone(), tell.clone());
                threads.push(std::thread::spawn(move || {
                    let Some(mut peer) = Peer::accept(stream.unwrap(), &security, seen) else { return };
                    play(&mut peer, &script, &ending, &go, &tell);
                }));
            }
            threads
        });
        Self { address, seen, go, told, ending, accepting: Some(accepting) }
    }

    /// Ends the server once every client has hung up; after it the counts are final.
    pub fn finish(&mut self) {
        let Some(accepting) = self.accepting.take() else { return };
        self.ending.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        for thread in accepting.join().unwrap() {
            thread.join().unwrap();
        }
    }

    /// Heads and whole requests.
    pub fn counts(&self) -> (usize, usize) {
        (self.seen.heads.load(Ordering::SeqCst), self.seen.whole.load(Ordering::SeqCst))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.finish();
    }
}

fn play(peer: &mut Peer, script: &[Step], ending: &AtomicBool, go: &Receiver<()>, tell: &Sender<()>) {
    for step in script {
        let alive = match step {
            Step::Head => peer.head().is_some(),
            Step::Request => peer.request().is_some(),
            Step::Take(bytes) => peer.take(*bytes),
            Step::Say(text) => peer.say(text),
            Step::Drip(text) => text.iter().all(|byte| {
                std::thread::sleep(Duration::from_millis(20));
                peer.say(&[*byte])
            }),
            Step::Flood(text) => {
                while peer.say(text) {}
                false
            }
            Step::SlowDrain => {
                while peer.take(64 * 1024) {
                    std::thread::sleep(Duration::from_millis(100));
                }
                false
            }
            Step::Deaf => {
                while !ending.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                false
            }
            Step::Settle => {
                std::thread::sleep(Duration::from_millis(30));
                true
            }
            Step::Await => go.recv_timeout(SERVER_PATIENCE).is_ok(),
            Step::Tell => tell.send(()).is_ok(),
            Step::Close => {
                peer.close();
                continue;
            }
            Step::Fin => {
                peer.fin();
                continue;
            }
            Step::Reset => {
                peer.reset();
                continue;
            }
        };
        if !alive {
            return;
        }
    }
    while peer.request().is_some() {}
}

enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
    Gone,
}

/// The server's side of one connection.
pub struct Peer {
    wire: Wire,
    seen: Arc<Seen>,
    unread: Vec<u8>,
    body_left: usize,
}

impl Peer {
    /// TLS begins with the first read or write, so a script can cut the connection before the handshake.
    pub fn accept(stream: TcpStream, security: &Security, seen: Arc<Seen>) -> Option<Self> {
        stream.set_read_timeout(Some(SERVER_PATIENCE)).ok()?;
        stream.set_write_timeout(Some(SERVER_PATIENCE)).ok()?;
        stream.set_nodelay(true).ok()?;
        let wire = match security {
            Security::Plain => Wire::Plain(stream),
            Security::Tls(config) => {
                let connection = ServerConnection::new(config.clone()).ok()?;
                Wire::Tls(Box::new(StreamOwned::new(connection, stream)))
            }
        };
        Some(Self { wire, seen, unread: Vec::new(), body_left: 0 })
    }

    /// Finishes the TLS handshake without reading a request.
    pub fn shake_hands(&mut self) -> bool {
        match &mut self.wire {
            Wire::Tls(tls) => tls.conn.complete_io(&mut tls.sock).is_ok(),
            Wire::Plain(_) => true,
            Wire::Gone => false,
        }
    }

    fn read_more(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        let read = match &mut self.wire {
            Wire::Plain(stream) => stream.read(&mut buffer),
            Wire::Tls(stream) => stream.read(&mut buffer),
            Wire::Gone => return false,
        };
        match read {
            Ok(bytes) if bytes > 0 => {
                self.unread.extend_from_slice(&buffer[..bytes]);
                true
            }
            _ => false,
        }
    }

    /// Reads and counts one head.
    pub fn head(&mut self) -> Option<String> {
        let end = loop {
            if let Some(end) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if !self.read_more() {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&self.unread[..end]).into_owned();
        self.unread.drain(..end);
        if head.starts_with("CONNECT ") {
            self.seen.connects.fetch_add(1, Ordering::SeqCst);
        } else {
            self.seen.heads.fetch_add(1, Ordering::SeqCst);
        }
        self.body_left = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map_or(0, |(_, value)| value.trim().parse().unwrap());
        self.seen.texts.lock().unwrap().push(head.clone());
        Some(head)
    }

    /// Reads the body of the last head, and counts the request as whole.
    pub fn body(&mut self) -> bool {
        let left = self.body_left;
        let whole = self.take(left);
        if whole {
            self.seen.whole.fetch_add(1, Ordering::SeqCst);
        }
        whole
    }

    pub fn request(&mut self) -> Option<String> {
        let head = self.head()?;
        (head.starts_with("CONNECT ") || self.body()).then_some(head)
    }

    fn take(&mut self, bytes: usize) -> bool {
        while self.unread.len() < bytes {
            if !self.read_more() {
                return false;
            }
        }
        self.unread.drain(..bytes);
        self.body_left = self.body_left.saturating_sub(bytes);
        true
    }

    pub fn say(&mut self, text: &[u8]) -> bool {
        match &mut self.wire {
            Wire::Plain(stream) => stream.write_all(text).is_ok(),
            Wire::Tls(stream) => stream.write_all(text).and_then(|()| stream.flush()).is_ok(),
            Wire::Gone => false,
        }
    }

    pub fn close(&mut self) {
        if let Wire::Tls(stream) = &mut self.wire {
            stream.conn.send_close_notify();
            let _ = stream.conn.complete_io(&mut stream.sock);
        }
        self.fin();
    }

    pub fn fin(&mut self) {
        if let Some(stream) = self.socket() {
            let _ = stream.shutdown(Shutdown::Write);
        }
        self.wire = Wire::Gone;
    }

    pub fn reset(&mut self) {
        if let Some(stream) = self.socket() {
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
        }
        self.wire = Wire::Gone;
    }

    fn socket(&self) -> Option<&TcpStream> {
        match &self.wire {
            Wire::Plain(stream) => Some(stream),
            Wire::Tls(stream) => Some(&stream.sock),
            Wire::Gone => None,
        }
    }
}

/// A port on which a connect is refused: bound and let go.
pub fn dead_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A port on which a connect is never answered, for as long as the value lives: the backlog is full.
pub struct BlackHole {
    pub address: SocketAddr,
    _listener: std::os::fd::OwnedFd,
    _fill: Vec<TcpStream>,
}

impl BlackHole {
    pub fn open() -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&listener, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
        let mut fill = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
            fill.push(stream);
            assert!(fill.len() < 64, "the backlog does not fill");
        }
        Self { address, _listener: listener, _fill: fill }
    }
}

/// A certificate authority made for one test run, and what it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// What is wrong with a server's certificate.
#[derive(Clone, Copy, PartialEq)]
pub enum Flaw {
    None,
    Expired,
    OtherName,
}

impl Authority {
    /// Makes one of this name, and writes it to `ca_file` as PEM.
    pub fn new(name: &str, ca_file: &Path) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(ca_file, certificate.pem()).unwrap();
        Self { certificate: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub fn server(&self, flaw: Flaw) -> Arc<ServerConfig> {
        self.config(flaw, rustls::ALL_VERSIONS, false)
    }

    /// A server that wants a client certificate.
    pub fn demanding(&self, versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<ServerConfig> {
        self.config(Flaw::None, versions, true)
    }

    fn config(
        &self,
        flaw: Flaw,
        versions: &[&'static rustls::SupportedProtocolVersion],
        demanding: bool,
    ) -> Arc<ServerConfig> {
        let name = if flaw == Flaw::OtherName { "elsewhere.test" } else { "127.0.0.1" };
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        if flaw == Flaw::Expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions).unwrap();
        let builder = if demanding {
            let mut roots = RootCertStore::empty();
            roots.add(self.certificate.clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Arc::new(builder.with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }
}
