//! Every committed input runs through its target in the ordinary tests: what was found stays mended, without libFuzzer.

use std::path::{Path, PathBuf};

use super::{TARGETS, Target};

fn inputs(of: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(of).join(target);
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

#[test]
fn every_seed_and_everything_found_passes_its_target() {
    for target in TARGETS {
        let seeds = inputs("corpus", target.name);
        assert!(seeds.len() >= 3, "{} has {} seeds", target.name, seeds.len());
        for file in seeds.into_iter().chain(inputs("found", target.name)) {
            let bytes = std::fs::read(&file).expect("a committed file");
            if let Err(failed) = std::panic::catch_unwind(|| (target.run)(&bytes)) {
                eprintln!("failed on {}", file.display());
                std::panic::resume_unwind(failed);
            }
        }
    }
}

/// Seeds, cut and changed a little in a fixed way: a body that trips over the plainest mutation is found in the tests.
#[test]
fn seeds_cut_and_bent_pass_too() {
    const STRANGE: [&[u8]; 8] =
        [b"\0", b"\xff", b"\"", b"{", b"9999999999999999999999", b"\r\n", b"\xed\x95\x9c", b"-"];
    for Target { name, run } in TARGETS {
        for file in inputs("corpus", name) {
            let bytes = std::fs::read(&file).expect("a committed file");
            let step = (bytes.len() / 12).max(1);
            for at in (0..bytes.len()).step_by(step) {
                run(&bytes[..at]);
                for strange in STRANGE {
                    run(&[&bytes[..at], strange, &bytes[at..]].concat());
                }
            }
        }
    }
}

#[test]
fn every_folder_has_a_target() {
    for of in ["corpus", "found"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(of);
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            assert!(
                TARGETS.iter().any(|target| name == target.name),
                "{of}/{} has no target",
                name.display()
            );
        }
    }
}
