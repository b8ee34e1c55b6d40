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
    /// A fault, e.g. 'status=500,every=10' (may be given several times; see `examples/README.md`)
    #[arg(long = "fault", value_name = "RULE")]
    faults: Vec<String>,
    /// Fixed time before each answer, milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS")]
    delay_ms: u64,
    /// Recipients with certain last digits fail in their own way
    #[arg(long)]
    magic: bool,
    /// Post reports to this URL
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    logging::start("info");
    let faults = args
        .faults
        .iter()
        .map(|text| {
            Rule::parse(text).map_err(|error| Failure::new(exit::USAGE, format!("--fault {text:?}: {error}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = SandboxOptions {
        listen: args.listen,
        magic: args.magic,
        delay: Duration::from_millis(args.delay_ms),
        faults,
        webhook: args.webhook,
        ..SandboxOptions::default()
    };
    let sandbox = sandbox::start(options).map_err(|error| {
        let code =
            if error.kind() == std::io::ErrorKind::AddrInUse { exit::TRY_AGAIN } else { exit::UNAVAILABLE };
        Failure::new(code, format!("{}: {error}", args.listen))
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
