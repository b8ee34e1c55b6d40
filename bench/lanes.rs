//! A great backlog of all kinds against a small one of the same mix: half of it due later, order lanes, and one
//! destination of three dead. What waits must not slow what can go.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use onceward::db;
use onceward::message::OwnerId;
use onceward::store::outbox;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::figures::median;
use crate::folder::{Folder, PAYLOAD, term, usage};
use crate::sink::{Sink, sink};

/// Two that answer, and one that refuses.
const NAMES: [&str; 3] = ["one", "two", "dead"];
const THREADS: usize = 8;
/// Messages of one order lane.
const OF_A_LANE: usize = 10;
/// Rows of a kind that lie together.
const BLOCK: usize = 50;
/// Rows of one commit of the producer that replaces what was sent.
const FEED: usize = 100;
/// Messages of one measurement.
const MEASURED: usize = 20_000;

/// How many rows are in order lanes.
#[derive(Clone, Copy)]
enum Mix {
    Tenth,
    All,
}

impl Mix {
    /// Row `i` of a backlog. Kinds come in blocks, as from a producer that writes many at once: what replaces them while
    /// they are sent lies together, too, so that both backlogs are read alike.
    fn row(self, i: usize) -> Row {
        self.of_kind(i / BLOCK % 6, i / BLOCK / 6 * BLOCK + i % BLOCK)
    }

    /// The n-th row of a kind; those of a lane are all alike.
    fn of_kind(self, kind: usize, nth: usize) -> Row {
        let lane = match self {
            Self::Tenth => nth.is_multiple_of(10).then(|| format!("{kind}:{}", nth / 10 / OF_A_LANE)),
            Self::All => Some(format!("{kind}:{}", nth / OF_A_LANE)),
        };
        (NAMES[kind % 3], kind >= 3, lane)
    }
}

/// Destination, whether it is due later, order lane.
type Row = (&'static str, bool, Option<String>);

struct Backlog {
    folder: Folder,
    sink: Sink,
    mix: Mix,
    /// Rows that were due at the beginning, at destinations that answer.
    due: usize,
    fed: usize,
}

impl Backlog {
    fn new(rows: usize, mix: Mix, dead: SocketAddr) -> Self {
        let (addr, sink) = sink(Duration::ZERO);
        let folder = Folder::with(&[(NAMES[0], addr), (NAMES[1], addr), (NAMES[2], dead)], THREADS);
        let mut connection = folder.outbox();
        connection
            .execute_batch(
                "PRAGMA synchronous = OFF; PRAGMA cache_size = -200000; PRAGMA wal_autocheckpoint = 0;",
            )
            .expect("set");
        let now_ms = onceward::clock::wall_ms();
        put(&mut connection, (0..rows).map(|i| mix.row(i)), "old", now_ms);
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        let due = (0..rows).filter(|i| is_live_and_due(*i)).count();
        Self { folder, sink, mix, due, fed: 0 }
    }

    /// The producer inserts `FEED` rows that can go now.
    fn feed(&mut self, connection: &mut Connection) {
        let (mix, from) = (self.mix, self.fed);
        let rows = (from..from + FEED).map(|i| mix.of_kind(i / BLOCK % 2, i / BLOCK / 2 * BLOCK + i % BLOCK));
        put(connection, rows, &format!("fed:{from}"), onceward::clock::wall_ms());
        self.fed += FEED;
    }

    /// What the last drain took after its measurement is replaced.
    fn refill(&mut self) {
        let mut connection = self.folder.outbox();
        let there: i64 = connection
            .query_row(
                "SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING') AND destination <> ?1 AND not_before_ms <= ?2",
                params![NAMES[2], onceward::clock::wall_ms()],
                |row| row.get(0),
            )
            .expect("counts");
        for _ in 0..self.due.saturating_sub(there as usize).div_ceil(FEED) {
            self.feed(&mut connection);
        }
    }

    /// Median milliseconds of a claim of ten rows, without its commit: taken back, so that all are there again.
    fn claim_ms(&self) -> f64 {
        let mut connection = self.folder.outbox();
        let owner = OwnerId::new("bench:1");
        let mut times = vec![];
        for _ in 0..101 {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).expect("begins");
            let (begun, now_ms) = (Instant::now(), onceward::clock::wall_ms());
            let rows = outbox::claim(&tx, &NAMES[0], &owner, now_ms + 1, now_ms, 10).expect("claims");
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
            assert_eq!(rows.len(), 10);
            tx.rollback().expect("taken back");
        }
        median(times)
    }

    /// Messages a second, and processor seconds for 10,000 of them, over the next `MEASURED` ones, from a start of the agent on. A producer replaces what was sent,
    /// so that as many wait at the end as did at the beginning.
    fn drain(&mut self) -> (f64, f64) {
        self.refill();
        {
            let mut seen = self.sink.0.lock().expect("not poisoned");
            (seen.total, seen.first, seen.last) = (0, None, None);
        }
        let mut connection = self.folder.outbox();
        let (child, _) = self.folder.agent();
        let (mut fed, end) = (0, Instant::now() + Duration::from_secs(120));
        let rate = loop {
            let guard = self.sink.0.lock().expect("not poisoned");
            let (seen, _) = self
                .sink
                .1
                .wait_timeout_while(guard, Duration::from_secs(1), |seen| {
                    seen.total < (fed + FEED).min(MEASURED)
                })
                .expect("not poisoned");
            assert!(Instant::now() < end, "only {} of {MEASURED} arrived", seen.total);
            if seen.total >= MEASURED {
                let span = seen.last.expect("arrived") - seen.first.expect("arrived");
                break (seen.total - 1) as f64 / span.as_secs_f64();
            }
            let arrived = seen.total;
            drop(seen);
            while fed + FEED <= arrived {
                self.feed(&mut connection);
                fed += FEED;
            }
        };
        let (seconds, _) = usage(child.id());
        term(child);
        (rate, seconds * 10_000.0 / MEASURED as f64)
    }
}

/// Whether row `i` of a backlog can go now.
fn is_live_and_due(i: usize) -> bool {
    i / BLOCK % 6 < 2
}

fn put(connection: &mut Connection, rows: impl Iterator<Item = Row>, prefix: &str, now_ms: i64) {
    db::write(connection, |tx| {
        let mut insert = tx.prepare_cached("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, ordering_key, not_before_ms) VALUES (?1, 'BENCH', ?2, '01000000001', ?3, ?4, ?5)")?;
        for (i, (destination, later, lane)) in rows.enumerate() {
            let due_ms = now_ms + if later { 86_400_000 } else { 0 };
            // What is fed has lanes of its own: it must not wait behind the backlog's.
            let lane = lane.map(|lane| if prefix == "old" { lane } else { format!("fed {lane}") });
            insert.execute(params![format!("{prefix}:{i:09}"), destination, PAYLOAD, lane, due_ms])?;
        }
        Ok(())
    })
    .expect("filled");
}

/// BENCH_ROWS sets the great backlog (1,000,000 by default), BENCH_ROUNDS how often each is drained (5).
pub fn lanes() {
    let number = |name: &str, otherwise: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (rows, rounds) = (number("BENCH_ROWS", 1_000_000), number("BENCH_ROUNDS", 5));
    // Bound and let go: it refuses.
    let dead = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("loopback");
    println!(
        "| {rows} waiting against 1,000: half later, one destination of three dead | live ones /s | with 1,000 /s | ratio | at least | CPU s per 10,000, both | claim of 10, ratio | at most |\n|---|---|---|---|---|---|---|---|"
    );
    for (name, mix, lanes) in
        [("a tenth in lanes", Mix::Tenth, rows / 100), ("all in lanes", Mix::All, rows / 10)]
    {
        let (mut small, mut great) = (Backlog::new(1_000, mix, dead), Backlog::new(rows, mix, dead));
        let claims = great.claim_ms() / small.claim_ms();
        let (mut few, mut many) = (vec![], vec![]);
        for round in 0..rounds {
            // Each round begins with the other one: the machine's mood changes in between.
            if round % 2 == 0 {
                few.push(small.drain());
                many.push(great.drain());
            } else {
                many.push(great.drain());
                few.push(small.drain());
            }
        }
        for backlog in [&small, &great] {
            let seen = backlog.sink.0.lock().expect("not poisoned");
            assert_eq!(seen.by_id.values().filter(|(count, _)| *count > 1).count(), 0, "sent twice");
        }
        let middle = |runs: &[(f64, f64)]| {
            (median(runs.iter().map(|run| run.0).collect()), median(runs.iter().map(|run| run.1).collect()))
        };
        let (few, many) = (middle(&few), middle(&many));
        println!(
            "| {name} ({lanes} lanes) | {:.0} | {:.0} | {:.2} | 0.90 | {:.2} / {:.2} | {claims:.2} | 1.3 |",
            many.0,
            few.0,
            many.0 / few.0,
            many.1,
            few.1
        );
    }
}
