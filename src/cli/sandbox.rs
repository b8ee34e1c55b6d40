//! `sandbox`: the stand-in vendor as a process of its own.

use std::net::SocketAddr;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Failure, Outcome, logging, output};
use crate::exit;
use crate::sandbox::{self, Rule, SandboxOptions};

/// Arguments of `sandbox`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to listen (loopback only)
    #[arg(long, default_value = "127.0.0.1:7790", value_name = "ADDR")]
    listen: SocketAddr,
    /// A fault, e.g. 'status=500,every=10' (may be given several times; `--fault help` lists the words)
    #[arg(long = "fault", value_name = "RULE")]
    faults: Vec<String>,
    /// Fixed time before each answer, milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    delay_ms: u64,
    /// Recipients with certain last digits fail in their own way
    #[arg(long)]
    magic: bool,
    /// The only account and password that are right [default: any]
    #[arg(long, value_name = "ACCOUNT:PASSWORD", value_parser = login)]
    login: Option<(String, String)>,
    /// Post reports to this URL
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
}

fn login(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((account, password)) if !account.is_empty() => Ok((account.to_owned(), password.to_owned())),
        _ => Err("ACCOUNT:PASSWORD was expected".to_owned()),
    }
}

const FAULT_WORDS: &str = "\
A fault is one line of comma-separated words. The first one that meets a request acts, alone.

which requests (all that are given must hold)
  path=/v3            paths with this prefix; without it only requests that carry a message
  reference=KEY       this message id, or PRE* for a prefix
  recipient=0500      recipients that end so
  after=N first=N     not the first N; only the first N behind those
  every=N chance=0.05 every Nth; this share

what happens (at most one)
  status=N            this status, with header=Name:Value, retry_after=S, body=TEXT (last word);
                      retry_date=30s is a Retry-After with the HTTP date of then
  code=N              this vendor code and its status
  hang hang=20s       reads, says nothing, closes at the end
  close reset         FIN or RST after the request; or close=accept, head, read, answer, idle (the same for reset)
  cut=head cut=body   half an answer
  garbage html=502    bytes that are not HTTP; a proxy's page
  redirect=307        with location=URL
  unframed huge       an answer that ends with the connection; one of 64 MiB (huge=BYTES)

besides
  delay=2s            waits before that
  accepted=yes/no     whether the message is taken all the same
  report=no           or twice, fallback, or a result code

examples
  status=429,retry_after=3,first=5     status=503,retry_date=30s,every=9     code=3007,path=/v1/token     hang=20s,recipient=0504     reset,every=10
";

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if args.faults.iter().any(|rule| rule == "help") {
        return output::print(FAULT_WORDS);
    }
    logging::start("info");
    let faults = args
        .faults
        .iter()
        .map(|text| {
            Rule::parse(text).map_err(|error| {
                Failure::new(
                    exit::USAGE,
                    format!("--fault {text:?}: {error} (`--fault help` lists the words)"),
                )
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = SandboxOptions {
        listen: args.listen,
        magic: args.magic,
        delay: Duration::from_millis(args.delay_ms),
        faults,
        webhook: args.webhook,
        login: args.login,
        ..SandboxOptions::default()
    };
    let sandbox = sandbox::start(options).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::AddrInUse => exit::TRY_AGAIN,
            std::io::ErrorKind::InvalidInput => exit::USAGE,
            _ => exit::UNAVAILABLE,
        };
        let address = args.listen.to_string();
        let text = error.to_string();
        Failure::new(code, if text.contains(&address) { text } else { format!("{address}: {text}") })
    })?;
    output::print(&format!(
        "sandbox vendor on http://{addr} (BizPpurio's /v1/token and /v3/message, any other path is a generic endpoint)\nwhat arrived: http://{addr}/__sandbox/arrivals\n",
        addr = sandbox.addr()
    ))?;
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?;
    let _ = signals.forever().next();
    sandbox.stop();
    Ok(exit::OK)
}
