//! Speed and memory of the whole agent, as ratios against yardsticks measured in the same run. See bench/README.md.
//!
//! The vendor is a lean sink in this process; the agent is the real binary as a child process.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use onceward::db::{self, Durability, Part};
use onceward::store::outbox;
use onceward::vendor::client::{Client, ClientSettings};
use rusqlite::Connection;

const BIN: &str = env!("CARGO_BIN_EXE_onceward");
const PAYLOAD: &str = r#"{"text":"aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccdddd"}"#;

#[derive(Default)]
struct Seen {
    total: usize,
    first: Option<Instant>,
    last: Option<Instant>,
    by_id: HashMap<String, (u32, Instant)>,
}

type Sink = Arc<(Mutex<Seen>, Condvar)>;

fn sink(delay: Duration) -> (SocketAddr, Sink) {
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

fn wait_total(sink: &Sink, total: usize) {
    let guard = sink.0.lock().expect("not poisoned");
    let (_guard, late) = sink
        .1
        .wait_timeout_while(guard, Duration::from_secs(120), |seen| seen.total < total)
        .expect("not poisoned");
    assert!(!late.timed_out(), "only {} of {total} arrived", _guard.total);
}

fn rate(sink: &Sink) -> f64 {
    let seen = sink.0.lock().expect("not poisoned");
    let span = seen.last.expect("arrived") - seen.first.expect("arrived");
    (seen.total - 1) as f64 / span.as_secs_f64()
}

struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new(addr: SocketAddr, threads: usize) -> Self {
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
        let text = format!(
            "[agent]\nstate_dir = \"{}\"\n[[destination]]\nname = \"gateway\"\ntype = \"http\"\nurl = \"http://{addr}/send\"\nreference_header = \"X-Reference\"\nthreads = {threads}\n",
            dir.path().canonicalize().expect("exists").join("state").display()
        );
        std::fs::write(dir.path().join("onceward.toml"), text).expect("written");
        Self { dir }
    }
    fn outbox(&self) -> Connection {
        db::open_writer(&self.dir.path().join("state/outbox/outbox.db"), Part::Outbox, Durability::Full)
            .expect("opens")
    }
    fn fill(&self, count: usize, future: usize) {
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
    fn agent(&self) -> (Child, Duration) {
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

fn term(mut child: Child) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a pid");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    child.wait().expect("ends");
}

/// (CPU seconds, peak memory MB) of a process.
fn usage(pid: u32) -> (f64, f64) {
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

fn no_database(threads: usize, delay: Duration, total: usize) -> f64 {
    let (addr, sink) = sink(delay);
    let client = Client::new(&ClientSettings {
        timeout: Duration::from_secs(15),
        connect_timeout: Duration::from_secs(5),
        keep_alive: Duration::from_secs(1),
        idle_max: threads,
        ca_file: None,
        proxy: None,
    })
    .expect("builds");
    let url = format!("http://{addr}/send");
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (client, url) = (&client, &url);
            scope.spawn(move || {
                for i in 0..total / threads {
                    let id = format!("raw-{thread}-{i}");
                    let _ = client.post_once(
                        url,
                        &[("Content-Type", "application/json"), ("X-Reference", &id)],
                        PAYLOAD.as_bytes(),
                    );
                }
            });
        }
    });
    rate(&sink)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}

fn drain() {
    println!(
        "| drain | agent /s | no database /s | ratio | must reach | CPU s per 10,000 | peak MB |\n|---|---|---|---|---|---|---|"
    );
    for (threads, delay_ms, total, goal) in
        [(16, 0, 30_000, 0.25), (64, 0, 30_000, 0.40), (16, 10, 4_000, 0.95)]
    {
        let delay = Duration::from_millis(delay_ms);
        let (mut ours, mut raw, mut cpu, mut peak) = (vec![], vec![], vec![], 0f64);
        for _ in 0..3 {
            raw.push(no_database(threads, delay, total));
            let (addr, sink) = sink(delay);
            let folder = Folder::new(addr, threads);
            folder.fill(total, 0);
            let (child, _) = folder.agent();
            wait_total(&sink, total);
            let (seconds, megabytes) = usage(child.id());
            ours.push(rate(&sink));
            cpu.push(seconds * 10_000.0 / total as f64);
            peak = peak.max(megabytes);
            term(child);
            let twice =
                sink.0.lock().expect("not poisoned").by_id.values().filter(|(count, _)| *count > 1).count();
            assert_eq!(twice, 0, "sent twice");
        }
        let (ours, raw) = (median(ours), median(raw));
        println!(
            "| {threads} workers, vendor {delay_ms} ms | {ours:.0} | {raw:.0} | {:.2} | {goal:.2} | {:.2} | {peak:.1} |",
            ours / raw,
            median(cpu)
        );
    }
}

fn latency() {
    let (addr, sink) = sink(Duration::ZERO);
    let folder = Folder::new(addr, 16);
    let (child, _) = folder.agent();
    let connection = folder.outbox();
    let (mut waits, mut commits, mut idle) = (vec![], vec![], vec![]);
    let scratch = Connection::open(folder.dir.path().join("scratch.db")).expect("opens");
    scratch
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (x TEXT);")
        .expect("made");
    for i in 0..400 {
        std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        scratch.execute("INSERT INTO t VALUES (?1)", [PAYLOAD]).expect("commits");
        commits.push(begun.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(5));
        let begun = Instant::now();
        insert(&connection, &format!("lat:{i}"));
        idle.push(begun.elapsed().as_secs_f64() * 1000.0);
        let id: String = connection
            .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [format!("lat:{i}")], |row| {
                row.get(0)
            })
            .expect("there");
        let guard = sink.0.lock().expect("not poisoned");
        let (seen, late) = sink
            .1
            .wait_timeout_while(guard, Duration::from_secs(5), |seen| !seen.by_id.contains_key(&id))
            .expect("not poisoned");
        assert!(!late.timed_out(), "did not arrive");
        waits.push((seen.by_id[&id].1 - begun).as_secs_f64() * 1000.0);
    }
    let two = |share: f64, commits: &mut Vec<f64>| 2.0 * percentile(commits, share);
    for (name, share, goal) in [("p50", 0.5, 1.0), ("p99", 0.99, 5.0)] {
        let (wait, two) = (percentile(&mut waits, share), two(share, &mut commits));
        println!(
            "insert to call, idle, {name}: {wait:.2} ms; two durable commits {two:.2} ms; above them {:.2} ms (at most {goal})",
            wait - two
        );
    }
    // A producer beside a drain at full speed.
    folder.fill_more(60_000);
    let mut beside = vec![];
    for i in 0..400 {
        let begun = Instant::now();
        insert(&connection, &format!("beside:{i}"));
        beside.push(begun.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(5));
    }
    let (busy, quiet) = (percentile(&mut beside, 0.99), percentile(&mut idle, 0.99));
    println!(
        "producer's insert p99: {busy:.2} ms beside a drain, {quiet:.2} ms idle: ratio {:.1} (at most 5)",
        busy / quiet
    );
    term(child);
}

impl Folder {
    fn fill_more(&self, count: usize) {
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

fn insert(connection: &Connection, key: &str) {
    connection
        .execute("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'BENCH', 'gateway', '01000000001', ?2)", [key, PAYLOAD])
        .expect("commits");
}

/// Median milliseconds of a claim of 50 rows.
fn claim_ms(folder: &Folder) -> f64 {
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

fn million() {
    let (addr, sink) = sink(Duration::from_millis(10));
    let small = Folder::new(addr, 16);
    small.fill(500, 500);
    let big = Folder::new(addr, 16);
    big.fill(500_000, 500_000);
    let (few, many) = (claim_ms(&small), claim_ms(&big));
    println!(
        "claim of 50 rows: {few:.2} ms at 1,000 waiting, {many:.2} ms at 1,000,000 (half later): ratio {:.2} (at most 1.3)",
        many / few
    );
    let (child, ready) = big.agent();
    println!("start to READY with 1,000,000 waiting: {:.3} s (at most 0.5)", ready.as_secs_f64());
    wait_total(&sink, 5_000);
    println!("peak memory with 1,000,000 waiting and 16 workers: {:.1} MB (at most 24)", usage(child.id()).1);
    term(child);
}

fn idle() {
    let (addr, sink) = sink(Duration::ZERO);
    let folder = Folder::new(addr, 16);
    folder.fill(10, 0);
    let (child, _) = folder.agent();
    wait_total(&sink, 10);
    std::thread::sleep(Duration::from_secs(3));
    let switches = |pid: u32| -> u64 {
        std::fs::read_dir(format!("/proc/{pid}/task"))
            .expect("alive")
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
            .filter_map(|text| {
                text.lines().find_map(|line| {
                    line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok()
                })
            })
            .sum()
    };
    let (before, cpu) = (switches(child.id()), usage(child.id()).0);
    std::thread::sleep(Duration::from_secs(20));
    println!(
        "idle: {:.2} wake-ups a second (at most 5), CPU {:.3} % (at most 0.1)",
        (switches(child.id()) - before) as f64 / 20.0,
        (usage(child.id()).0 - cpu) / 20.0 * 100.0
    );
    term(child);
    println!(
        "release binary: {:.2} MB (at most 8)",
        std::fs::metadata(BIN).expect("there").len() as f64 / 1e6
    );
}

fn kills() {
    let (addr, sink) = sink(Duration::from_millis(10));
    let folder = Folder::new(addr, 16);
    folder.fill(20_000, 0);
    let mut seed = 42u64;
    for _ in 0..20 {
        let before = sink.0.lock().expect("not poisoned").total;
        let (mut child, _) = folder.agent();
        wait_total(&sink, before + 1);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(50 + (seed >> 33) % 550));
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
    let (child, _) = folder.agent();
    let connection = folder.outbox();
    let open = || -> i64 {
        connection
            .query_row("SELECT count(*) FROM outbox WHERE closed_at_ms IS NULL", [], |row| row.get(0))
            .expect("counts")
    };
    while open() > 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
    term(child);
    let inbox = db::open_reader(Path::new(&folder.dir.path().join("state/inbox/inbox.db")), Part::Inbox)
        .expect("opens");
    let records: i64 = inbox
        .query_row("SELECT count(*) FROM inbox WHERE status IN ('SENT', 'ERROR')", [], |row| row.get(0))
        .expect("counts");
    let errors: i64 = inbox
        .query_row("SELECT count(*) FROM inbox WHERE status = 'ERROR'", [], |row| row.get(0))
        .expect("counts");
    let seen = sink.0.lock().expect("not poisoned");
    let twice = seen.by_id.values().filter(|(count, _)| *count > 1).count();
    println!(
        "20 kills in mid-drain of 20,000: sent twice {twice}, without a record {}, shown as ERROR {errors}",
        20_000 - records
    );
}

/// What retention finds to do.
#[derive(Clone, Copy, PartialEq)]
enum Old {
    Nothing,
    ToWipe,
    ToDelete,
}

impl Folder {
    /// Messages that were sent 401 days ago, with random keys (the dear case), and a pass that is asked for.
    fn fill_old(&self, count: usize, old: Old) {
        let inbox_path = self.dir.path().join("state/inbox/inbox.db");
        let mut inbox = db::open_writer(&inbox_path, Part::Inbox, Durability::Normal).expect("opens");
        let mut outbox = self.outbox();
        let end = onceward::clock::wall_ms() - 401 * 86_400_000;
        db::write(&mut outbox, |tx| {
            let mut insert = tx.prepare("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (lower(hex(randomblob(12))), 'OLD', 'gateway', '01000000001', ?1)")?;
            for _ in 0..count {
                insert.execute([PAYLOAD])?;
            }
            tx.execute_batch(&format!(
                "UPDATE outbox SET status = 'PUBLISHING', claimed_by = 'a:b', claimed_until_ms = 1 WHERE kind = 'OLD';
                 UPDATE outbox SET status = 'PUBLISHED', claimed_by = NULL, claimed_until_ms = NULL, closed_at_ms = {end} + id WHERE kind = 'OLD';"
            ))?;
            if old == Old::ToDelete {
                tx.execute_batch("UPDATE outbox SET recipient = '', payload = '', fingerprint = '1:0', wiped_at_ms = 1 WHERE kind = 'OLD'")?;
            }
            onceward::store::meta::put(tx, onceward::retention::pass::ASKED_MARK, &onceward::clock::wall_ms().to_string())?;
            Ok(())
        })
        .expect("filled");
        let ids: Vec<String> = outbox
            .prepare("SELECT message_id FROM outbox WHERE kind = 'OLD' ORDER BY id")
            .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
            .expect("reads");
        db::write(&mut inbox, |tx| {
            let mut insert = tx.prepare("INSERT INTO inbox (consumer, message_id, fingerprint, status, claimed_by, claimed_at_ms, finished_at_ms) VALUES ('gateway', ?1, '1:0', 'SENT', 'a:b', ?2, ?2)")?;
            for id in &ids {
                insert.execute(rusqlite::params![id, end])?;
            }
            Ok(())
        })
        .expect("filled");
        for connection in [&inbox, &outbox] {
            let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }
}

/// Drain rate, p99 of a producer's commits beside it (ms), rows that retention dealt with meanwhile.
fn drain_beside(total: usize, old: Old) -> (f64, f64, i64) {
    let (addr, sink) = sink(Duration::ZERO);
    let folder = Folder::new(addr, 16);
    // The same history in each case, so that only the work on it differs.
    folder.fill_old(total.max(10_000), if old == Old::Nothing { Old::ToWipe } else { old });
    if old == Old::Nothing {
        folder
            .outbox()
            .execute("DELETE FROM onceward_meta WHERE key = ?1", [onceward::retention::pass::ASKED_MARK])
            .expect("not asked");
    }
    folder.fill(total, 0);
    let connection = folder.outbox();
    let (child, _) = folder.agent();
    let mut commits = vec![];
    for i in 0.. {
        if sink.0.lock().expect("not poisoned").total >= total {
            break;
        }
        let begun = Instant::now();
        insert(&connection, &format!("beside:{i}"));
        commits.push(begun.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(5));
    }
    let dealt: i64 = connection
        .query_row("SELECT (SELECT count(*) FROM outbox WHERE kind = 'OLD' AND wiped_at_ms > 1) + (SELECT sum(count) FROM outbox_ledger WHERE what = 'PUBLISHED')", [], |row| row.get(0))
        .expect("counts");
    let drained = rate(&sink);
    term(child);
    (drained, percentile(&mut commits, 0.99), dealt)
}

/// BENCH_TOTAL messages are drained in each run (30,000 by default).
fn purge() {
    let total = std::env::var("BENCH_TOTAL").ok().and_then(|text| text.parse().ok()).unwrap_or(30_000);
    println!(
        "| purge beside a drain | messages /s | of the rate without | at least | commit p99 ms | times that without | at most | rows purged meanwhile |\n|---|---|---|---|---|---|---|---|"
    );
    let (mut none, mut wipe, mut delete) = (vec![], vec![], vec![]);
    // Each round begins with another case: the machine's mood changes in between.
    for round in 0..3 {
        for case in 0..3 {
            match (round + case) % 3 {
                0 => none.push(drain_beside(total, Old::Nothing)),
                1 => wipe.push(drain_beside(total, Old::ToWipe)),
                _ => delete.push(drain_beside(total, Old::ToDelete)),
            }
        }
    }
    let middle = |runs: &[(f64, f64, i64)]| {
        (
            median(runs.iter().map(|run| run.0).collect()),
            median(runs.iter().map(|run| run.1).collect()),
            runs.iter().map(|run| run.2).max().unwrap_or(0),
        )
    };
    let base = middle(&none);
    println!("| none | {:.0} | | | {:.2} | | | {} |", base.0, base.1, base.2);
    for (name, runs) in [("bodies wiped", &wipe), ("keys deleted", &delete)] {
        let (rate, p99, dealt) = middle(runs);
        println!(
            "| {name} | {rate:.0} | {:.2} | 0.90 | {p99:.2} | {:.2} | 2 | {dealt} |",
            rate / base.0,
            p99 / base.1
        );
    }
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
    for (name, part) in [
        ("drain", drain as fn()),
        ("latency", latency),
        ("million", million),
        ("idle", idle),
        ("kills", kills),
        ("purge", purge),
    ] {
        if wanted(name) {
            part();
        }
    }
}
