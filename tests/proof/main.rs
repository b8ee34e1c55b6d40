//! The long proofs against the real binary: real processes, real files, real HTTP, real cuts.
//!
//! Belongs here: what runs as long as one likes and judges a whole world at its end. Each test has a bounded size in CI and
//! a variable that makes it longer; `PROOF.md` has the commands and the figures. Never: one interruption with one
//! expected end (those are `tests/it`), nor a timed limit on speed.

#[path = "../it/support/mod.rs"]
mod support;
#[path = "../support_http/mod.rs"]
#[allow(dead_code, reason = "each test program uses its part of it")]
mod support_http;

mod breaking_vendor;
mod chaos;
mod failing_writes;
mod judge;
mod kill_points;
mod loop_disk;
mod power;

/// A number from the environment, for a longer run.
fn asked(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a whole number"))
}

/// Numbers without a pattern (splitmix64).
fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
