//! A backup file from anywhere: read within its bounds, or refused; what is unpacked has the digest that was told.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use rustix::fs::{MemfdFlags, memfd_create};

use super::world::line;
use crate::archive;

/// Either a whole file, or (where it begins with `!`) a manifest on the first line and the bytes of its members, for
/// which the right headers are made.
pub(super) fn run(bytes: &[u8]) {
    let made = match bytes.strip_prefix(b"!") {
        Some(parts) => with_headers(parts),
        None => bytes.to_vec(),
    };
    let Some(mut file) = in_memory(&made) else { return };
    let manifest = match archive::read_manifest(&mut file) {
        Ok(manifest) => manifest,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!(manifest.format, archive::FORMAT);
    for member in manifest.members.iter().take(3) {
        let mut unpacked = Vec::new();
        match archive::unpack(&mut file, member, &mut unpacked) {
            Ok(()) => assert_eq!(unpacked.len() as u64, member.size, "the told size"),
            Err(_) => {
                assert!(unpacked.len() <= made.len(), "more than there is");
                return;
            }
        }
    }
}

fn with_headers(parts: &[u8]) -> Vec<u8> {
    let (manifest, rest) = line(parts);
    let mut made = archive::header(archive::MANIFEST, manifest.len() as u64, 0).to_vec();
    let pad = |made: &mut Vec<u8>| made.resize(made.len().next_multiple_of(512), 0);
    made.extend_from_slice(manifest);
    pad(&mut made);
    if let Ok(read) = serde_json::from_slice::<archive::Manifest>(manifest) {
        let mut rest = rest;
        for member in read.members.iter().take(3).filter(|member| member.name.len() <= 100) {
            made.extend_from_slice(&archive::header(&member.name, member.size, 0));
            let count = usize::try_from(member.size).unwrap_or(usize::MAX).min(rest.len());
            made.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            pad(&mut made);
        }
    }
    made
}

fn in_memory(bytes: &[u8]) -> Option<File> {
    let mut file = File::from(memfd_create("onceward-backup", MemfdFlags::CLOEXEC).ok()?);
    file.write_all(bytes).ok()?;
    file.seek(SeekFrom::Start(0)).ok()?;
    Some(file)
}
