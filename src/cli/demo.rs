//! `demo`: the main job in one go on a throw-away folder, with the real agent, real files and real HTTP.
//!
//! Starts the sandbox vendor in this process and the agent as a child process, puts in the sample messages, shows
//! progress, and ends with each message's fate beside the vendor's own count. Exit 0 only if they agree.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rusqlite::Connection;

use super::{Failure, Outcome, enqueue, init, output, views};
use crate::config::{SAMPLE_PASSWORD_FILE, Settings, sample};
use crate::exit;
use crate::sandbox::{self, Sandbox, SandboxOptions};

/// The samples, part of the program: the demo needs no other file.
const SAMPLES: &str = include_str!("../../examples/messages.jsonl");
/// Longest whole run.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to work; must not exist [default: a new folder in the system's temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Other samples: JSON lines
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    let io = |what: &str, error: std::io::Error| Failure::new(exit::IO, format!("{what}: {error}"));
    // Read before anything is made or started.
    let samples = match &args.messages {
        Some(path) => enqueue::read_whole(path)?,
        None => SAMPLES.as_bytes().to_vec(),
    };
    let dir = args
        .dir
        .unwrap_or_else(|| std::env::temp_dir().join(format!("onceward-demo-{}", std::process::id())));
    if dir.exists() {
        return Err(Failure::new(
            exit::CANNOT_CREATE,
            format!("{}: exists already; name another folder", dir.display()),
        ));
    }
    std::fs::create_dir_all(&dir).map_err(|error| io(&dir.display().to_string(), error))?;
    let dir = dir.canonicalize().map_err(|error| io("the folder", error))?;
    let sandbox = sandbox::start(SandboxOptions {
        magic: true,
        delay: Duration::from_millis(5),
        ..SandboxOptions::default()
    })
    .map_err(|error| io("the sandbox vendor", error))?;
    let config = write_settings(&dir, &sandbox)?;
    let settings = Settings::load_without_secrets(&config)
        .map_err(|error| Failure::new(error.exit_code(), error.to_string()))?;
    let _made = init::make_databases(&settings.agent.state_dir, None)?;
    output::tell!("folder   {}\nvendor   http://{} (in this process)", dir.display(), sandbox.addr());

    let mut agent = DemoAgent(start_agent(&dir, &config).map_err(|error| io("the agent", error))?);
    output::tell!("agent    pid {} (log: {})", agent.0.id(), dir.join("agent.log").display());
    agent.wait_ready(&dir.join("agent.log"))?;
    let mut connection = enqueue::open(&settings)?;
    if args.messages.is_none() {
        output::tell!(
            "(two of the samples repeat a key with other content on purpose: they are named and not sent)"
        );
    }
    // As producers' SQL would put them: what is unfit is seen to be parked.
    let door = enqueue::Door::lengths_only(&settings);
    let counts = enqueue::from_lines(&mut connection, &door, samples.as_slice(), None, &mut |_| {})?;
    output::tell!(
        "enqueued {} new, {} known already, {} in quarantine, {} bad\n",
        counts.new,
        counts.same,
        counts.conflict,
        counts.bad
    );

    let finished = wait(&mut agent.0, &connection, counts.new);
    let stopped = stop_agent(&mut agent.0);
    finished?;
    stopped?;
    let agreed = report(&settings, &sandbox)?;
    sandbox.stop();
    output::tell!(
        "\nlook at it:\n  sqlite3 -readonly {outbox} 'select * from v_today'\n  sqlite3 -readonly {outbox} 'select * from v_trouble'\n  sqlite3 -readonly {inbox} 'select * from v_today'\n  onceward --config {config} status\n  onceward --config {config} queue --state PARKED",
        outbox = settings.agent.state_dir.join("outbox/outbox.db").display(),
        inbox = settings.agent.state_dir.join("inbox/inbox.db").display(),
        config = config.display(),
    );
    Ok(if agreed { exit::OK } else { exit::NO })
}

/// The sample settings, pointed at our sandbox, with short pauses: a demo does not wait ten minutes.
fn write_settings(dir: &Path, sandbox: &Sandbox) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    let config = dir.join("onceward.toml");
    let text = sample(&dir.join("state"), &dir.join("onceward.sock"))
        .replace("127.0.0.1:7790", &sandbox.addr().to_string())
        .replace("#timeout = \"15s\"", "timeout = \"2s\"")
        .replace("#connect_timeout = \"5s\"", "connect_timeout = \"1s\"")
        .replace("#rate = \"20/s\"", "rate = \"200/s\"")
        .replace("#later = { times = 3, every = \"10m\" }", "later = { times = 1, every = \"1s\" }");
    let password = dir.join(SAMPLE_PASSWORD_FILE);
    let write = |path: &Path, mode: u32, text: &str| {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        std::io::Write::write_all(&mut file, text.as_bytes())
    };
    write(&config, 0o644, &text)
        .and_then(|()| write(&password, 0o600, "sandbox\n"))
        .map_err(|error| Failure::new(exit::CANNOT_CREATE, format!("{}: {error}", dir.display())))?;
    Ok(config)
}

/// The agent as our child: it ends on every way out of the demo.
struct DemoAgent(Child);

impl DemoAgent {
    /// Until it has said that it is ready, or has ended.
    fn wait_ready(&mut self, log: &Path) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            if std::fs::read_to_string(log).is_ok_and(|text| text.contains(" ready: ")) {
                return Ok(());
            }
            let ended = self.0.try_wait().ok().flatten();
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let text = format!("the agent did not get ready; see {}", log.display());
                return Err(Failure::new(exit::SOFTWARE, text));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for DemoAgent {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

fn start_agent(dir: &Path, config: &Path) -> std::io::Result<Child> {
    let log = std::fs::File::create(dir.join("agent.log"))?;
    Command::new(std::env::current_exe()?)
        .arg("--config")
        .arg(config)
        .args(["run", "--end-with-parent"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
}

/// Until every row is closed or waits for a person.
fn wait(agent: &mut Child, connection: &Connection, total: usize) -> Result<(), Failure> {
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} settled") {
        bar.set_style(style);
    }
    let begun = Instant::now();
    loop {
        let waiting: i64 = connection
            .query_row("SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PUBLISHING') AND not_before_ms < ?1", [crate::clock::wall_ms() + 600_000], |row| row.get(0))
            .map_err(|error| Failure::new(exit::IO, error.to_string()))?;
        bar.set_position((total as i64 - waiting).max(0) as u64);
        if waiting == 0 {
            bar.finish_and_clear();
            return Ok(());
        }
        if let Ok(Some(status)) = agent.try_wait() {
            return Err(Failure::new(
                exit::SOFTWARE,
                format!("the agent ended early ({status}); its log is in the folder"),
            ));
        }
        if begun.elapsed() > PATIENCE {
            return Err(Failure::new(
                exit::NO,
                format!("{waiting} messages still wait after {} s", PATIENCE.as_secs()),
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn stop_agent(agent: &mut Child) -> Result<(), Failure> {
    if let Some(pid) = rustix::process::Pid::from_raw(agent.id().cast_signed()) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    match agent.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::new(exit::SOFTWARE, format!("the agent ended with {status}"))),
        Err(error) => Err(Failure::new(exit::IO, error.to_string())),
    }
}

/// The table of fates, and whether it agrees with what the vendor counted, message by message.
fn report(settings: &Settings, sandbox: &Sandbox) -> Result<bool, Failure> {
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let views = views::open(settings)?;
    let inbox =
        views.inbox.as_ref().ok_or_else(|| Failure::new(exit::NOT_PERMITTED, "the inbox cannot be read"))?;
    let mut fates: std::collections::BTreeMap<(String, String), (u64, u64)> =
        std::collections::BTreeMap::new();
    let mut problems = Vec::new();
    let mut statement =
        views.outbox.prepare("SELECT message_id, destination, status FROM outbox ORDER BY id").map_err(io)?;
    let rows: Vec<(String, String, String)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .map_err(io)?
        .collect::<rusqlite::Result<_>>()
        .map_err(io)?;
    for (message_id, destination, status) in rows {
        let fate = views::fate(inbox, &views.outbox, &destination, &message_id).map_err(io)?;
        let counts = sandbox.ledger().counts(&message_id);
        // Whole requests that were not plainly refused: what may have reached a customer.
        let arrivals = u64::from(counts.arrived).saturating_sub(u64::from(counts.refused));
        let shown = fate.as_ref().map_or(status.clone(), |fate| fate.status.clone());
        let fits = match shown.as_str() {
            "SENT" => arrivals == 1,
            "ERROR" => arrivals <= 1,
            "FAILED" => arrivals == 0,
            _ => arrivals == 0 || status == "PARKED",
        };
        if !fits || counts.is_duplicate() && shown != "PARKED" {
            problems.push(format!("{message_id} is {shown}, the vendor counted {arrivals} arrivals"));
        }
        let entry = fates.entry((shown, destination)).or_default();
        entry.0 += 1;
        entry.1 += u64::from(counts.arrived);
    }
    let mut table =
        vec![["FATE", "DESTINATION", "MESSAGES", "REQUESTS AT THE VENDOR"].map(str::to_owned).to_vec()];
    let (mut messages, mut requests) = (0, 0);
    for ((fate, destination), (count, arrived)) in &fates {
        messages += count;
        requests += arrived;
        table.push(vec![fate.clone(), destination.clone(), count.to_string(), arrived.to_string()]);
    }
    table.push(vec!["all".into(), String::new(), messages.to_string(), requests.to_string()]);
    output::tell!("{}", output::table(&table).trim_end());
    let totals = sandbox.ledger().totals();
    output::tell!(
        "\nthe vendor's own count: {} requests, of which it refused {} at the door (some came again later); they name {} \
         different messages",
        totals.arrived,
        totals.refused,
        totals.references
    );
    let agreed = problems.is_empty() && totals.arrived == requests;
    for problem in &problems {
        output::tell!("DISAGREES: {problem}");
    }
    output::tell!(
        "{}",
        if agreed {
            "they agree: nothing was sent twice, nothing is without a record"
        } else {
            "THEY DO NOT AGREE"
        }
    );
    Ok(agreed)
}
