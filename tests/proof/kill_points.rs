//! Every kill point of the real agent, as death and as a blip: F3, F4, F5, F7, F8, F10, F11, F29, F31 in one table.
//!
//! A death is tried at the point's first pass, its second, and so on, until the agent comes through untouched. A blip is a
//! failure of that step where it can fail, and else a standstill: the room stays there while the others go on. After each:
//! started again, everything has its end, the vendor got nothing twice, and `verify` has nothing to say.
//! The table must name every point of the agent's sources; those of `once` belong to `tests/once.rs`.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Agent, SOON, World};

const SECRET: &str = "hook-secret-0123456789";
const SMS: &str = r#"{"type":"sms","content":{"sms":{"message":"hello"}}}"#;

/// The pause of the checkpointers, some times over.
const COPIED_BACK: Duration = Duration::from_millis(300);

/// How a point's messages come and end.
#[derive(Clone, Copy, PartialEq)]
enum Scene {
    /// Six messages of a generic destination: four are taken, one is refused at the door first, one loses its answer.
    Flow,
    /// Two of BizPpurio, one of which loses its answer; the reports are fetched.
    Poll,
    /// The same, and the test posts the report as the vendor would, until it gets its 200.
    Webhook,
}

#[derive(Clone, Copy, PartialEq)]
enum Blip {
    /// The step fails once.
    Fails,
    /// The step has nothing that could fail: the room stands still there for a while.
    Stands,
}

#[derive(Clone, Copy)]
struct Point {
    name: &'static str,
    scene: Scene,
    blip: Blip,
}

const fn point(name: &'static str, scene: Scene, blip: Blip) -> Point {
    Point { name, scene, blip }
}

const POINTS: [Point; 12] = [
    point("relay-after-claim", Scene::Flow, Blip::Stands),
    point("worker-before-claim", Scene::Flow, Blip::Stands),
    point("writer-before-commit", Scene::Flow, Blip::Fails),
    point("writer-commit-lies", Scene::Flow, Blip::Fails),
    point("worker-after-claim", Scene::Flow, Blip::Stands),
    point("worker-after-call", Scene::Flow, Blip::Stands),
    point("worker-before-confirm", Scene::Flow, Blip::Fails),
    point("relay-before-publish", Scene::Flow, Blip::Stands),
    point("checkpoint", Scene::Flow, Blip::Fails),
    point("report-before-commit", Scene::Poll, Blip::Fails),
    point("poller-before-confirm", Scene::Poll, Blip::Stands),
    point("webhook-before-answer", Scene::Webhook, Blip::Stands),
];

struct Stage {
    world: World,
    scene: Scene,
    port: u16,
    lost: String,
    /// The report had its 200.
    taken: Cell<bool>,
}

impl Stage {
    fn set(scene: Scene, lease: &str) -> Self {
        let top = format!(
            "[retry]\nquick = {{ times = 3, every = \"20ms\" }}\nlater = {{ times = 1, every = \"50ms\" }}\n[relay]\nlease = {lease:?}\n"
        );
        let world = World::with(&top, "");
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let dir = world.dir.path().to_owned();
        for (file, secret) in [("hook", SECRET), ("token", "api-token-0123456789")] {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(dir.join(file), secret).expect("written");
            std::fs::set_permissions(dir.join(file), std::fs::Permissions::from_mode(0o600)).expect("mode");
        }
        let reports = match scene {
            Scene::Webhook => "{ webhook_secret = \"file:hook\" }",
            Scene::Poll => "{ poll = \"1s\" }",
            Scene::Flow => "\"off\"",
        };
        let from = "from = \"0212345678\"\n";
        let settings = std::fs::read_to_string(&world.config)
            .expect("settings")
            .replace(from, &format!("{from}reports = {reports}\n"));
        let socket = dir.join("s.sock");
        // A free port may be taken a moment later: only where it is needed.
        let http = format!("http = \"127.0.0.1:{port}\"\ntoken = \"file:token\"\n");
        let http = if scene == Scene::Webhook { http } else { String::new() };
        let listen = format!("{settings}\n[listen]\nsocket = {socket:?}\n{http}");
        std::fs::write(&world.config, listen).expect("settings are written");
        let lost = if scene == Scene::Flow {
            world.put_many("m", 4);
            let (refused, lost) = (world.put_plain("refused"), world.put_plain("lost"));
            world.faults(&[
                &format!("reference={refused},status=403,first=1"),
                &format!("reference={lost},reset=read,accepted=yes"),
            ]);
            lost
        } else {
            world.put("plain", "biz", SMS);
            let lost = world.put("lost", "biz", SMS);
            let report = if scene == Scene::Webhook { ",report=no" } else { "" };
            world.faults(&[&format!("reference={lost},reset=read,accepted=yes{report}")]);
            lost
        };
        Self { world, scene, port, lost, taken: Cell::new(false) }
    }

    /// Everything has its end: for the scenes with reports, the lost one is settled by its report.
    fn is_over(&self) -> bool {
        let world = &self.world;
        let rest = world.count("SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING')") == 0
            && world.count("SELECT count(*) FROM inbox WHERE status = 'SENDING'") == 0;
        rest && match self.scene {
            Scene::Flow => true,
            // A message whose request never left has no report.
            _ if world.arrivals(&self.lost) == 0 => true,
            Scene::Webhook if !self.taken.get() => false,
            _ => world.inbox_state(&self.lost).as_deref() == Some("SENT"),
        }
    }

    /// What is not at its end, for whoever has to find out why.
    fn rows(&self) -> String {
        let mut told = String::new();
        for (connection, sql) in [
            (
                self.world.outbox(),
                "SELECT message_id || ' outbox ' || status || ' ' || coalesce(claimed_by, '-') || ' ' || attempts || ' ' || coalesce(reason, '-') FROM outbox WHERE closed_at_ms IS NULL",
            ),
            (
                self.world.inbox(),
                "SELECT message_id || ' inbox ' || status || ' ' || claimed_by FROM inbox WHERE status = 'SENDING'",
            ),
        ] {
            let mut rows = connection.prepare(sql).expect("prepared");
            for row in rows.query_map([], |row| row.get::<_, String>(0)).expect("reads").flatten() {
                told.push('\n');
                told.push_str(&row);
            }
        }
        told
    }

    /// As the vendor posts it, until it gets a 200; the agent may die over it.
    fn post_report(&self) {
        if self.scene != Scene::Webhook || self.world.arrivals(&self.lost) == 0 {
            return;
        }
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return };
        let body = format!(
            r#"{{"DEVICE":"SMS","CMSGID":"m1","MSGID":"m1","PHONE":"01000000001","MEDIA":"SMS","UNIXTIME":"1700000000","RESULT":"4100","REFKEY":"{}"}}"#,
            self.lost
        );
        let request = format!(
            "POST /v1/reports/biz/{SECRET} HTTP/1.1\r\nHost: hook.example\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let mut answer = String::new();
        let _ =
            stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer).map(drop));
        if answer.starts_with("HTTP/1.1 200") {
            self.taken.set(true);
        }
    }

    /// Until everything is over (`None`) or the agent has died. `first`: not before what comes after the last mark has come
    /// too: reports that are polled are confirmed, the logs are copied back.
    #[track_caller]
    fn run(&self, agent: &mut Agent, first: bool, what: &str) -> Option<std::process::ExitStatus> {
        let (end, mut lingered) = (Instant::now() + SOON, false);
        loop {
            if let Some(status) = agent.try_end() {
                return Some(status);
            }
            let waits = first && self.scene == Scene::Poll && !agent.log().contains("reports fetched");
            if self.is_over() && !waits {
                if first && self.scene == Scene::Flow && !lingered {
                    lingered = true;
                    std::thread::sleep(COPIED_BACK);
                    continue;
                }
                return None;
            }
            self.post_report();
            assert!(Instant::now() < end, "{what}: it stands still{}\n{}", self.rows(), agent.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// `unknown`: the most messages that nobody knows about.
    #[track_caller]
    fn check(&self, unknown: i64, what: &str) {
        let world = &self.world;
        let messages = if self.scene == Scene::Flow { 6 } else { 2 };
        let published = world.count("SELECT count(*) FROM outbox WHERE status = 'PUBLISHED'");
        let recorded = world.count("SELECT count(*) FROM inbox WHERE status IN ('SENT', 'ERROR')");
        assert_eq!((published, recorded), (messages, messages), "{what}");
        let error = world.count("SELECT count(*) FROM inbox WHERE status = 'ERROR'");
        assert!(error <= unknown, "{what}: {error} of at most {unknown} are ERROR");
        let totals = world.sandbox.ledger().totals();
        assert_eq!(totals.duplicates, 0, "{what}");
        let (code, said, why) = world.onceward(&["verify"]);
        assert_eq!(code, 0, "{what}: {said}{why}");
    }
}

/// Dies at the `pass`-th pass, if it comes to it.
fn dies(point: &Point, pass: u64) -> bool {
    let stage = Stage::set(point.scene, "15m");
    let what = format!("death at {}, pass {pass}", point.name);
    let mut agent = stage.world.agent_with(&[("ONCEWARD_KILL_AT", &format!("{}:{pass}", point.name))]);
    let ended = stage.run(&mut agent, true, &what);
    agent.kill9();
    let mut again = stage.world.agent();
    assert!(stage.run(&mut again, false, &what).is_none(), "{what}: the second start died\n{}", again.log());
    again.stop();
    // At most what its four workers had claimed, and the one whose answer the vendor lost.
    stage.check(if ended.is_some() { 5 } else { 1 }, &what);
    ended.is_some()
}

/// The agent goes on by itself, and the blip makes nothing unknown.
fn blips(point: &Point, pass: u64) {
    let what = format!("blip at {}, pass {pass}", point.name);
    // A lost confirm is made good by the lease.
    let lease = if point.name == "worker-before-confirm" { "10s" } else { "15m" };
    let stage = Stage::set(point.scene, lease);
    let go = stage.world.dir.path().join("go");
    let (variable, value) = match point.blip {
        Blip::Fails => ("ONCEWARD_FAIL_AT", format!("{}:{pass}", point.name)),
        Blip::Stands => ("ONCEWARD_WAIT_AT", format!("{}:{}", point.name, go.display())),
    };
    let mut agent = stage.world.agent_with(&[(variable, value.as_str())]);
    if point.blip == Blip::Stands {
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(800) {
            stage.post_report();
            std::thread::sleep(Duration::from_millis(50));
        }
        if point.scene == Scene::Flow {
            assert!(!stage.is_over(), "{what}: it did not stand still");
        }
        std::fs::write(&go, "").expect("written");
    }
    assert!(stage.run(&mut agent, true, &what).is_none(), "{what}: it died\n{}", agent.log());
    agent.stop();
    stage.check(i64::from(stage.scene == Scene::Flow), &what);
}

fn everything_at(names: &[&str]) {
    for name in names {
        let point = POINTS.iter().find(|point| point.name == *name).expect("it is in the table");
        let mut deaths = 0;
        while dies(point, deaths + 1) {
            deaths += 1;
            assert!(deaths < 200, "{}: never comes through", point.name);
        }
        assert!(deaths > 0, "{}: nothing comes by there", point.name);
        // A lost confirm waits for its lease: once is enough.
        let often = point.blip == Blip::Fails && point.name != "worker-before-confirm";
        let passes = if often { deaths.min(3) } else { 1 };
        for pass in 1..=passes {
            blips(point, pass);
        }
        println!("{}: {deaths} deaths, {passes} blips", point.name);
    }
}

#[test]
fn each_step_of_the_relay_and_the_worker_dies_and_blips() {
    everything_at(&[
        "relay-after-claim",
        "worker-before-claim",
        "worker-after-claim",
        "worker-after-call",
        "relay-before-publish",
    ]);
}

#[test]
fn each_commit_and_confirm_dies_and_blips() {
    everything_at(&["writer-before-commit", "writer-commit-lies", "worker-before-confirm", "checkpoint"]);
}

#[test]
fn each_step_of_a_report_dies_and_blips() {
    everything_at(&["report-before-commit", "poller-before-confirm", "webhook-before-answer"]);
}

#[test]
fn the_table_names_every_kill_point_of_the_sources() {
    fn walk(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("reads") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).expect("reads");
                let names = text.split("kill::point(\"").skip(1).filter_map(|rest| rest.split('"').next());
                found.extend(names.map(str::to_owned));
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found.retain(|name| !name.starts_with("once-"));
    let listed: BTreeSet<String> = POINTS.iter().map(|point| point.name.to_owned()).collect();
    assert_eq!(found, listed);
}
