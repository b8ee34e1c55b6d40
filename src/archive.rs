//! A backup file: a plain tar of one manifest and the two databases, so that `tar tf` and `tar xf` work on it too.
//!
//! Written once, read whole; only what [`write()`] makes is read: three members in order, sizes in octal, no links. Each
//! member's SHA-256 stands in the manifest. Never touches a live database: the members are copies that SQLite made.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

/// Name of the first member.
pub const MANIFEST: &str = "manifest.json";
const BLOCK: usize = 512;
/// Largest manifest, bytes.
const MANIFEST_BYTES_MAX: u64 = 64 << 10;

/// What a backup says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// `onceward-backup 1`
    pub format: String,
    /// Version of the program that made it.
    pub version: String,
    /// When, UTC milliseconds.
    pub taken_at_ms: i64,
    /// The pair id of both databases.
    pub pair: String,
    /// Commits with a claim that the inbox knows.
    pub claims: i64,
    /// Highest row number of the outbox.
    pub rows: i64,
    /// The databases, in the order in which they were copied.
    pub members: Vec<Member>,
}

/// One database in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// `outbox/outbox.db`, `inbox/inbox.db`
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

/// `onceward-backup 1`
pub const FORMAT: &str = "onceward-backup 1";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// Size and digest of a copy.
pub fn member(name: &str, path: &Path) -> io::Result<Member> {
    let mut file = File::open(path)?;
    let (size, sha256) = copy(&mut file, &mut io::sink(), u64::MAX)?;
    Ok(Member { name: name.to_owned(), size, sha256 })
}

/// Copies at most `limit` bytes: (copied, digest).
fn copy(from: &mut impl Read, to: &mut impl Write, limit: u64) -> io::Result<(u64, String)> {
    let mut digest = Context::new(&SHA256);
    let mut buffer = vec![0; 64 << 10];
    let mut copied = 0;
    while copied < limit {
        let want = buffer.len().min(usize::try_from(limit - copied).unwrap_or(usize::MAX));
        let read = from.read(&mut buffer[..want])?;
        if read == 0 {
            break;
        }
        digest.update(&buffer[..read]);
        to.write_all(&buffer[..read])?;
        copied += read as u64;
    }
    Ok((copied, hex(digest.finish().as_ref())))
}

/// Writes manifest and members, and syncs. `sources` are the members' files in the manifest's order.
pub fn write(to: &mut File, manifest: &Manifest, sources: &[PathBuf]) -> io::Result<()> {
    let text = serde_json::to_string_pretty(manifest).map_err(|error| bad(error.to_string()))? + "\n";
    put(to, MANIFEST, text.len() as u64, manifest.taken_at_ms, &mut text.as_bytes())?;
    for (member, source) in manifest.members.iter().zip(sources) {
        put(to, &member.name, member.size, manifest.taken_at_ms, &mut File::open(source)?)?;
    }
    to.write_all(&[0; 2 * BLOCK])?;
    to.sync_all()
}

fn put(to: &mut File, name: &str, size: u64, at_ms: i64, from: &mut impl Read) -> io::Result<()> {
    to.write_all(&header(name, size, at_ms))?;
    let (copied, _) = copy(from, to, size)?;
    if copied != size {
        return Err(bad(format!("{name}: {copied} bytes instead of {size}")));
    }
    to.write_all(&vec![0; padding(size)])
}

fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

/// A ustar header. Sizes from 8 GiB on are in base 256, as GNU tar has them.
pub(crate) fn header(name: &str, size: u64, at_ms: i64) -> [u8; BLOCK] {
    let mut block = [0u8; BLOCK];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    if size < 1 << 33 {
        put(124, &format!("{size:011o}\0"));
    }
    put(136, &format!("{:011o}\0", (at_ms / 1000).max(0)));
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    if size >= 1 << 33 {
        block[124] = 0x80;
        block[128..136].copy_from_slice(&size.to_be_bytes());
    }
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Name and size in a header of ours.
fn read_header(from: &mut File) -> io::Result<(String, u64)> {
    let mut block = [0u8; BLOCK];
    from.read_exact(&mut block).map_err(|_| bad("it ends too early"))?;
    let text = |range: std::ops::Range<usize>| {
        let bytes = &block[range];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let mut blank = block;
    blank[148..156].fill(b' ');
    let sum: u32 = blank.iter().map(|byte| u32::from(*byte)).sum();
    let told = u32::from_str_radix(text(148..156).trim(), 8).ok();
    if text(257..262) != "ustar" || told != Some(sum) {
        return Err(bad("it is not a backup of onceward"));
    }
    let size = if block[124] == 0x80 {
        block[128..136].iter().fold(0u64, |size, byte| size << 8 | u64::from(*byte))
    } else {
        u64::from_str_radix(text(124..136).trim(), 8).map_err(|_| bad("a size cannot be read"))?
    };
    Ok((text(0..100), size))
}

/// Reads the manifest alone; leaves the file at the first member.
pub fn read_manifest(from: &mut File) -> io::Result<Manifest> {
    let (name, size) = read_header(from)?;
    if name != MANIFEST || size > MANIFEST_BYTES_MAX {
        return Err(bad("it is not a backup of onceward"));
    }
    let mut text = vec![0; size as usize];
    from.read_exact(&mut text).map_err(|_| bad("it ends too early"))?;
    skip(from, padding(size))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| bad(format!("its manifest: {error}")))?;
    if manifest.format != FORMAT {
        return Err(bad(format!("it is of the format {:?}, this program knows {FORMAT:?}", manifest.format)));
    }
    Ok(manifest)
}

fn skip(from: &mut File, bytes: usize) -> io::Result<()> {
    from.seek(SeekFrom::Current(bytes as i64)).map(|_| ())
}

/// Unpacks the next member into a new file and proves its digest. Synced.
pub fn read_member(from: &mut File, member: &Member, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    unpack(from, member, &mut file)?;
    file.sync_all()
}

/// The next member's bytes, proven.
pub(crate) fn unpack(from: &mut File, member: &Member, to: &mut impl Write) -> io::Result<()> {
    let (name, size) = read_header(from)?;
    if name != member.name || size != member.size {
        return Err(bad(format!("{} is not where the manifest says", member.name)));
    }
    let (copied, sha256) = copy(from, to, size)?;
    if copied != size || sha256 != member.sha256 {
        return Err(bad(format!("{} is damaged: its checksum is wrong", member.name)));
    }
    skip(from, padding(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(folder: &Path) -> (Manifest, PathBuf) {
        let source = folder.join("source");
        std::fs::write(&source, vec![7u8; 1000]).expect("written");
        let manifest = Manifest {
            format: FORMAT.into(),
            version: "1".into(),
            taken_at_ms: 1_800_000_000_000,
            pair: "p".into(),
            claims: 1,
            rows: 2,
            members: vec![member("outbox/outbox.db", &source).expect("digested")],
        };
        let path = folder.join("backup.tar");
        write(&mut File::create_new(&path).expect("created"), &manifest, &[source]).expect("written");
        (manifest, path)
    }

    #[test]
    fn what_is_written_is_read_back_by_us_and_by_tar() {
        let folder = tempfile::tempdir().expect("a folder");
        let (manifest, path) = made(folder.path());
        let mut file = File::open(&path).expect("opens");
        assert_eq!(read_manifest(&mut file).expect("reads"), manifest);
        let to = folder.path().join("out");
        read_member(&mut file, &manifest.members[0], &to).expect("unpacks");
        assert_eq!(std::fs::read(&to).expect("reads"), vec![7u8; 1000]);
        let list = std::process::Command::new("tar").arg("tvf").arg(&path).output().expect("tar runs");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        assert!(list.contains("manifest.json") && list.contains("outbox/outbox.db"), "{list}");
    }

    #[test]
    fn a_changed_byte_anywhere_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let (manifest, path) = made(folder.path());
        let good = std::fs::read(&path).expect("reads");
        let read = |bytes: &[u8], to: &str| {
            let changed = folder.path().join("changed");
            std::fs::write(&changed, bytes).expect("written");
            let mut file = File::open(&changed).expect("opens");
            let read = read_manifest(&mut file)?;
            read_member(&mut file, &read.members[0], &folder.path().join(to))?;
            Ok::<_, io::Error>(read)
        };
        let data = good.len() - 2 * BLOCK - 1024;
        for at in [0, 130, 300, data - BLOCK, data, data + 999] {
            let mut bytes = good.clone();
            bytes[at] ^= 0x11;
            assert!(read(&bytes, &format!("to{at}")).is_err(), "byte {at}");
        }
        assert!(read(&good[..data + 500], "cut").is_err());
        assert_eq!(read(&good, "good").expect("reads"), manifest);
    }

    #[test]
    fn sizes_beyond_eight_gigabytes_keep_their_value() {
        let folder = tempfile::tempdir().expect("a folder");
        for size in [0, 511, (1 << 33) - 1, 1 << 33, 1 << 40] {
            let path = folder.path().join(size.to_string());
            std::fs::write(&path, header("inbox/inbox.db", size, 0)).expect("written");
            let read = read_header(&mut File::open(&path).expect("opens")).expect("reads");
            assert_eq!(read, ("inbox/inbox.db".to_owned(), size));
        }
    }
}
