//! One libFuzzer program for all targets; `ONCEWARD_FUZZ` names the one to run (see `fuzz/run`).
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use onceward::hostile::{TARGETS, Target};

fuzz_target!(|bytes: &[u8]| {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    let target = CHOSEN.get_or_init(|| {
        let name = std::env::var("ONCEWARD_FUZZ").unwrap_or_default();
        let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!("ONCEWARD_FUZZ must name one of: {}", names.join(" "));
            std::process::exit(64);
        };
        target
    });
    (target.run)(bytes);
});
