//! Retention beside live traffic: the drain rate and the commits of a producer, with and without it.

use std::time::{Duration, Instant};

use onceward::db::{self, Durability, Part};

use crate::figures::{median, percentile};
use crate::folder::{Folder, PAYLOAD, insert, term};
use crate::sink::{rate, sink};

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
pub fn purge() {
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
