//! Bodies of the fuzz targets: what reads bytes of strangers, with what must hold whatever the bytes are.
//!
//! Two callers: `fuzz/` under libFuzzer, and a test that runs every committed input (`corpus/` and `found/`) through the
//! same bodies. Compiled with the crate (as `onceward::hostile`, under `cfg(test)` and `cfg(fuzzing)`), so that a target
//! reaches what is no outsider's business without a door that the program does not need. To add a target: a file here, a
//! line in [`TARGETS`], a folder of seeds in `fuzz/corpus/`.
//!
//! A body must be repeatable: the same bytes, the same steps. It may use loopback sockets and databases in memory; no
//! file, no other host.

mod answers;
mod backup;
mod client;
mod fingerprint;
mod lines;
mod numbers;
mod outputs;
mod reports;
mod request;
mod settings;
mod sizes;
mod values;
mod world;

#[cfg(test)]
mod regression;

/// One target.
pub struct Target {
    /// Its name, and that of its folders in `corpus/` and `found/`.
    pub name: &'static str,
    /// Panics where something does not hold.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "settings", run: settings::run },
    Target { name: "values", run: values::run },
    Target { name: "lines", run: lines::run },
    Target { name: "numbers", run: numbers::run },
    Target { name: "sizes", run: sizes::run },
    Target { name: "fingerprint", run: fingerprint::run },
    Target { name: "request", run: request::run },
    Target { name: "client", run: client::run },
    Target { name: "answers", run: answers::run },
    Target { name: "reports", run: reports::run },
    Target { name: "outputs", run: outputs::run },
    Target { name: "backup", run: backup::run },
];
