//! A world for one test: a throw-away state folder, a sandbox vendor in this process, and the real agent as a child.

#![allow(dead_code, reason = "each test uses its part of it")]

pub mod local;
pub mod receiver;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use onceward::sandbox::{self, Rule, Sandbox, SandboxOptions};
use rusqlite::{Connection, OptionalExtension};

/// Longest wait for anything that should happen at once.
pub const SOON: Duration = Duration::from_secs(30);

pub const BIN: &str = env!("CARGO_BIN_EXE_onceward");

pub struct World {
    pub dir: tempfile::TempDir,
    pub sandbox: Sandbox,
    pub config: PathBuf,
}

impl World {
    pub fn new() -> Self {
        Self::with("", "")
    }

    /// `top` goes before, `per_destination` into each `[[destination]]`.
    pub fn with(top: &str, per_destination: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let sandbox = sandbox::start(SandboxOptions::default()).expect("the sandbox starts");
        let init = Command::new(BIN).args(["init", "--dir"]).arg(dir.path()).output().expect("init runs");
        assert!(init.status.success(), "{init:?}");
        let config = dir.path().join("onceward.toml");
        let addr = sandbox.addr();
        let text = format!(
            r#"{top}
[agent]
state_dir = "{state}"
[[destination]]
name = "gateway"
type = "http"
url = "http://{addr}/send"
reference_header = "X-Reference"
timeout = "2s"
threads = 4
{per_destination}
[[destination]]
name = "biz"
type = "bizppurio"
url = "http://{addr}"
account = "branch01"
password = "file:bizppurio.password"
from = "0212345678"
timeout = "2s"
threads = 4
{per_destination}
[[route]]
kind = "*"
destination = "gateway"
"#,
            state = dir.path().join("state").display()
        );
        std::fs::write(&config, text).expect("settings are written");
        Self { dir, sandbox, config }
    }

    pub fn faults(&self, rules: &[&str]) {
        self.sandbox.set_faults(rules.iter().map(|rule| Rule::parse(rule).expect("a rule")).collect());
    }

    pub fn outbox_path(&self) -> PathBuf {
        self.dir.path().join("state/outbox/outbox.db")
    }
    pub fn inbox_path(&self) -> PathBuf {
        self.dir.path().join("state/inbox/inbox.db")
    }
    pub fn outbox(&self) -> Connection {
        let connection = Connection::open(self.outbox_path()).expect("outbox opens");
        connection.busy_timeout(SOON).expect("timeout is set");
        connection
    }
    pub fn inbox(&self) -> Connection {
        let connection = Connection::open(self.inbox_path()).expect("inbox opens");
        connection.busy_timeout(SOON).expect("timeout is set");
        connection
    }

    /// Inserts as any producer would: plain SQL. Returns the message id.
    pub fn put(&self, key: &str, destination: &str, payload: &str) -> String {
        let connection = self.outbox();
        connection
            .execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'TEST', ?2, '01000000001', ?3)
                 ON CONFLICT (dedup_key) DO NOTHING",
                [key, destination, payload],
            )
            .expect("the row is taken");
        connection
            .query_row("SELECT message_id FROM outbox WHERE dedup_key = ?1", [key], |row| row.get(0))
            .expect("the row is there")
    }
    pub fn put_plain(&self, key: &str) -> String {
        self.put(key, "gateway", r#"{"x":1}"#)
    }
    pub fn put_many(&self, prefix: &str, count: usize) {
        let mut connection = self.outbox();
        let tx = connection.transaction().expect("a transaction");
        for i in 0..count {
            tx.execute(
                "INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, 'TEST', 'gateway', '01000000001', '{}')",
                [format!("{prefix}:{i}")],
            )
            .expect("the row is taken");
        }
        tx.commit().expect("committed");
    }

    pub fn outbox_state(&self, id: &str) -> (String, i64, String) {
        self.outbox()
            .query_row(
                "SELECT status, attempts, coalesce(reason, '') FROM outbox WHERE message_id = ?1",
                [id],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .expect("the row is there")
    }
    pub fn inbox_state(&self, id: &str) -> Option<String> {
        self.inbox()
            .query_row("SELECT status FROM inbox WHERE message_id = ?1", [id], |row| row.get(0))
            .optional()
            .expect("the inbox reads")
    }
    pub fn count(&self, what: &str) -> i64 {
        let part = if what.contains("FROM outbox") || what.contains("FROM quarantine") {
            self.outbox()
        } else {
            self.inbox()
        };
        part.query_row(what, [], |row| row.get(0)).expect("counts")
    }
    pub fn alerts(&self, cause: &str) -> i64 {
        self.inbox()
            .query_row("SELECT coalesce(sum(count), 0) FROM alert WHERE cause = ?1", [cause], |row| {
                row.get(0)
            })
            .expect("alerts read")
    }
    pub fn arrivals(&self, id: &str) -> u32 {
        self.sandbox.ledger().arrived(id)
    }

    #[track_caller]
    pub fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + SOON;
        while !done(self) {
            assert!(Instant::now() < end, "did not happen: {what}\n{}", self.onceward(&["status"]).1);
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    #[track_caller]
    pub fn wait_outbox(&self, id: &str, state: &str) {
        self.wait(&format!("outbox {state}"), |world| world.outbox_state(id).0 == state);
    }
    #[track_caller]
    pub fn wait_inbox(&self, id: &str, state: &str) {
        self.wait(&format!("inbox {state}"), |world| world.inbox_state(id).as_deref() == Some(state));
    }

    pub fn agent(&self) -> Agent {
        let agent = self.agent_with(&[]);
        agent.wait_log("ready:");
        agent
    }
    pub fn agent_with(&self, environment: &[(&str, &str)]) -> Agent {
        let mut command = Command::new(BIN);
        command.arg("--config").arg(&self.config).arg("run").envs(environment.iter().copied());
        Agent::spawn(command)
    }
    /// Runs a command to its end: exit code, output, errors.
    pub fn onceward(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(BIN)
            .arg("--config")
            .arg(&self.config)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        text(&output)
    }
}

pub fn text(output: &Output) -> (i32, String, String) {
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

type Log = Arc<(Mutex<String>, Condvar)>;

/// The agent as a child process; killed (its own pid) when dropped.
pub struct Agent {
    child: Child,
    log: Log,
}

impl Agent {
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the agent starts");
        let log: Log = Arc::default();
        let of_thread = log.clone();
        let stderr = child.stderr.take().expect("piped");
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut text = of_thread.0.lock().expect("not poisoned");
                text.push_str(&line);
                text.push('\n');
                of_thread.1.notify_all();
            }
        });
        Self { child, log }
    }
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    #[track_caller]
    pub fn wait_log(&self, part: &str) {
        let guard = self.log.0.lock().expect("not poisoned");
        let (guard, late) =
            self.log.1.wait_timeout_while(guard, SOON, |text| !text.contains(part)).expect("not poisoned");
        assert!(!late.timed_out(), "no {part:?} in:\n{guard}");
    }
    pub fn log(&self) -> String {
        self.log.0.lock().expect("not poisoned").clone()
    }
    pub fn kill9(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
    pub fn term(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    }
    /// Its end, if it has come.
    pub fn try_end(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("waits")
    }
    #[track_caller]
    pub fn wait_end(&mut self) -> ExitStatus {
        let end = Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().expect("waits") {
                return status;
            }
            assert!(Instant::now() < end, "the agent does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    #[track_caller]
    pub fn stop(mut self) {
        self.term();
        let status = self.wait_end();
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!(
                "an agent of the failed test (ended: {:?}) said:\n{}",
                self.child.try_wait(),
                self.log()
            );
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
