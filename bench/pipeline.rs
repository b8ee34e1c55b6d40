//! Speed and memory of the whole agent, as ratios against yardsticks measured in the same run. See bench/README.md.
//!
//! The vendor is a lean sink in this process; the agent is the real binary as a child process.

mod figures;
mod folder;
mod lanes;
mod purge;
mod sink;

use std::path::Path;
use std::time::{Duration, Instant};

use onceward::db::{self, Part};
use onceward::vendor::client::{Client, ClientSettings};
use rusqlite::Connection;

use crate::figures::{median, percentile};
use crate::folder::{BIN, Folder, PAYLOAD, claim_ms, insert, term, usage};
use crate::sink::{rate, sink, wait_total};

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

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
    for (name, part) in [
        ("drain", drain as fn()),
        ("latency", latency),
        ("million", million),
        ("idle", idle),
        ("kills", kills),
        ("lanes", lanes::lanes as fn()),
        ("purge", purge::purge),
    ] {
        if wanted(name) {
            part();
        }
    }
}
