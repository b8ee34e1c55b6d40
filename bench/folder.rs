//! A throw-away state folder, filled as producers would, and the real agent on it as a child process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onceward::db::{self, Durability, Part};
use onceward::store::outbox;
use rusqlite::Connection;

use crate::figures::median;

pub const BIN: &str = env!("CARGO_BIN_EXE_onceward");
pub const PAYLOAD: &str = r#"{"text":"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccdddd"}"#;

pub struct Folder {
    pub dir: tempfile::TempDir,
}

impl Folder {
    /// With one destination, `gateway`.
    pub fn new(addr: SocketAddr, threads: usize) -> Self {
        Self::with(&[("gateway", addr)], threads)
    }
    /// With these destinations.
    pub fn with(destinations: &[(&str, SocketAddr)], threads: usize) -> Self {
        let dir = tempfile::tempdir_in(std::env::var("BENCH_DIR").unwrap_or_else(|_| ".".into()))
            .expect("a folder");
        assert!(
            Command::new(BIN)
                .args(["init", "--dir"])
                .arg(dir.path())
                .stdout(Stdio::null())
                .status()
                .expect("init")
                .success()
        );
        let state = dir.path().canonicalize().expect("exists").join("state");
        let mut text = format!("[agent]\nstate_dir = \"{}\"\n", state.display());
        for (name, addr) in destinations {
            text += &format!(
                "[[destination]]\nname = \"{name}\"\ntype = \"http\"\nurl = \"http://{addr}/send\"\nreference_header = \"X-Reference\"\nthreads = {threads}\n"
            );
        }
        std::fs::write(dir.path().join("onceward.toml"), text).expect("written");
        Self { dir }
    }
    pub fn outbox(&self) -> Connection {
        db::open_writer(&self.dir.path().join("state/outbox/outbox.db"), Part::Outbox, Durability::Full)
            .expect("opens")
    }
    pub fn fill(&self, count: usize, future: usize) {
        let mut connection = self.outbox();
        connection
            .execute_batch(
                "PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; PRAGMA wal_autocheckpoint = 0;",
            )
            .expect("set");
        let due = onceward::clock::wall_ms() + 86_400_000;
        db::write(&mut connection, |tx| {
            let mut insert = tx.prepare("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, not_before_ms) VALUES (?1, 'BENCH', 'gateway', '01000000001', ?2, coalesce(?3, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)))")?;
            for i in 0..count + future {
                insert.execute(rusqlite::params![format!("bench:{i:09}"), PAYLOAD, (i >= count).then_some(due)])?;
            }
            Ok(())
        })
        .expect("filled");
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    pub fn agent(&self) -> (Child, Duration) {
        let begun = Instant::now();
        let mut child = Command::new(BIN)
            .arg("--config")
            .arg(self.dir.path().join("onceward.toml"))
            .arg("run")
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        while lines.read_line(&mut line).expect("reads") > 0 && !line.contains("ready:") {
            line.clear();
        }
        let ready = begun.elapsed();
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        (child, ready)
    }
}

pub fn term(mut child: Child) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a pid");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    child.wait().expect("ends");
}

/// (CPU seconds, peak memory MB) of a process.
pub fn usage(pid: u32) -> (f64, f64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().expect("utime") + fields[12].parse::<f64>().expect("stime");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|text| text.trim().split(' ').next()?.parse::<f64>().ok())
        .unwrap_or(0.0);
    (ticks / 100.0, peak / 1024.0)
}

impl Folder {
    pub fn fill_more(&self, count: usize) {
        let mut connection = self.outbox();
        db::write(&mut connection, |tx| {
            let mut insert = tx.prepare("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'BENCH', 'gateway', '01000000001', ?2)")?;
            for i in 0..count {
                insert.execute(rusqlite::params![format!("more:{i:09}"), PAYLOAD])?;
            }
            Ok(())
        })
        .expect("filled");
    }
}

pub fn insert(connection: &Connection, key: &str) {
    connection
        .execute("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'BENCH', 'gateway', '01000000001', ?2)", [key, PAYLOAD])
        .expect("commits");
}

/// Median milliseconds of a claim of 50 rows.
pub fn claim_ms(folder: &Folder) -> f64 {
    let mut connection = folder.outbox();
    connection.execute_batch("PRAGMA synchronous = NORMAL").expect("set");
    let owner = onceward::message::OwnerId::new("bench:1");
    let mut times = vec![];
    for _ in 0..9 {
        let now_ms = onceward::clock::wall_ms();
        let begun = Instant::now();
        let rows =
            db::write(&mut connection, |tx| outbox::claim(tx, &"gateway", &owner, now_ms + 1, now_ms, 50))
                .expect("claims");
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        assert_eq!(rows.len(), 50);
    }
    median(times)
}
