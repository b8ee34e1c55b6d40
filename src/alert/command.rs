//! Hook: a program, once per notice. JSON on its standard input, the same as `ONCEWARD_ALERT_*` variables; never
//! through a shell (unless the setting names one), with no other descriptor and none of the agent's environment, which
//! may hold secrets. Bounded in time: then its whole process group is killed. Always waited for, so no zombie stays.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::book::Notice;
use super::notifier::{Hook, Refusal};
use super::words::Speaker;

/// Name in `alert_told`.
pub const NAME: &str = "command";
/// What a service finds programs by where its own environment is not given on.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Between two looks at the child: short at first, since most programs are.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(100);

/// The hook.
pub struct CommandHook {
    program: String,
    arguments: Vec<String>,
    timeout: Duration,
    speaker: Speaker,
}

impl CommandHook {
    /// `words` are the program with its full path and its arguments; `None` where there is no program.
    pub fn new(words: &[String], timeout: Duration, speaker: Speaker) -> Option<Self> {
        let (program, arguments) = words.split_first()?;
        Some(Self { program: program.clone(), arguments: arguments.to_vec(), timeout, speaker })
    }
}

impl Hook for CommandHook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn deliver(&mut self, notice: &Notice, stop: &dyn Fn() -> bool) -> Result<(), Refusal> {
        let json = self.speaker.json(notice);
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .current_dir("/")
            .env_clear()
            .env("PATH", PATH)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        for key in ["host", "environment", "cause", "destination", "kind", "new", "total", "text", "line"] {
            let value = match &json[key] {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            command.env(format!("ONCEWARD_ALERT_{}", key.to_uppercase()), value);
        }
        let refused = |reason: String| Refusal { reason, wait: None };
        let mut child = command
            .spawn()
            .map_err(|error| refused(format!("{} cannot be started: {error}", self.program)))?;
        if let Some(mut stdin) = child.stdin.take() {
            // Far below what a pipe takes, so this does not wait; a program that does not read is no failure.
            let _ = stdin.write_all(format!("{json}\n").as_bytes());
        }
        match wait(&mut child, self.timeout, stop) {
            Ended::Itself(status) if status.success() => Ok(()),
            Ended::Itself(status) => Err(refused(format!("{} ended with {status}", self.program))),
            Ended::Killed(why) => Err(refused(format!("{} was killed: {why}", self.program))),
        }
    }
}

enum Ended {
    Itself(ExitStatus),
    Killed(String),
}

/// Waits for the child's end, brings it about if need be, and reaps it.
fn wait(child: &mut Child, timeout: Duration, stop: &dyn Fn() -> bool) -> Ended {
    let end = Instant::now() + timeout;
    let mut pause = LOOK_MIN;
    let why = loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ended::Itself(status),
            Ok(None) if stop() => break "the agent stops".to_owned(),
            Ok(None) if Instant::now() >= end => break format!("no end after {} s", timeout.as_secs()),
            Ok(None) => std::thread::sleep(pause),
            Err(error) => break format!("it cannot be waited for: {error}"),
        }
        pause = (pause * 2).min(LOOK_MAX);
    };
    // Its group has its id: what it started goes with it. Not reaped yet, so the id is still its own.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.kill();
    let _ = child.wait();
    Ended::Killed(why)
}
