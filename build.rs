//! Tells the program when it was built: a clock before that is wrong. `SOURCE_DATE_EPOCH` keeps builds reproducible.

use std::time::{SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "the moment of the build, not of a run")]
fn main() {
    // Named, so that an ordinary change does not run this anew and compile the crate from the start.
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=Cargo.lock");
    let built_s = std::env::var("SOURCE_DATE_EPOCH")
        .ok()
        .and_then(|text| text.parse::<u64>().ok())
        .or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs()))
        .unwrap_or(0);
    println!("cargo:rustc-env=ONCEWARD_BUILT_S={built_s}");
}
