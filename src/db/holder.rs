//! Who holds a database: the kernel's list of locks, read for people (F19). Looks only; opens no database.
//!
//! SQLite's locks are byte ranges: of `-shm` 120 is the write lock, 121 the checkpoint's, 123 to 127 are readers' marks;
//! of the file itself a WRITE range at 2^30 is exclusive. What every open connection has (a shared range, byte 128) holds
//! nobody up and is left out.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::identity::beside;

/// Held for so long, a lock is worth a line.
const LASTS: Duration = Duration::from_secs(1);

/// One process that holds something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Which lock.
    pub lock: &'static str,
    /// Whether it keeps others from writing (and not only the log from being cut back).
    pub blocks_writers: bool,
}

/// Other processes that hold something of the database at `path`.
pub fn of(path: &Path) -> Vec<Holder> {
    let list = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let own = std::process::id();
    let mut holders = parse(&list, file(path), file(&beside(path, "-shm")));
    holders.retain(|holder| holder.pid != own);
    holders
}

/// Those that keep others from writing for a while: a short commit is nobody's trouble, so who is seen is looked for
/// again until they are gone or one second is over.
pub fn lasting(path: &Path, except: Option<u32>) -> Vec<Holder> {
    let blocking = || {
        let mut holders = of(path);
        holders.retain(|one| one.blocks_writers && Some(one.pid) != except);
        holders
    };
    let mut all = blocking();
    let end = Instant::now() + LASTS;
    while !all.is_empty() && Instant::now() < end {
        std::thread::sleep(LASTS / 5);
        let still = blocking();
        all.retain(|one| still.contains(one));
    }
    all
}

/// `; held by pid 12 [sqlite3] (write lock)`, or nothing where nobody is seen.
pub fn in_words(path: &Path) -> String {
    let mut named: Vec<String> = of(path).iter().map(name).collect();
    named.dedup();
    if named.is_empty() { String::new() } else { format!("; held by {}", named.join(", ")) }
}

/// `pid 12 [sqlite3] (write lock)`; the name only where this user may see it.
pub fn name(holder: &Holder) -> String {
    let command = std::fs::read_to_string(format!("/proc/{}/comm", holder.pid)).unwrap_or_default();
    // A process chooses its own name: none of it may break a line.
    let command: String = command.trim().chars().filter(|c| !c.is_control()).collect();
    let command = if command.is_empty() { String::new() } else { format!(" [{command}]") };
    format!("pid {}{command} ({})", holder.pid, holder.lock)
}

type Id = Option<(u64, u64)>;

fn parse(list: &str, file: Id, shm: Id) -> Vec<Holder> {
    let mut holders: Vec<Holder> = Vec::new();
    for line in list.lines() {
        // `1: POSIX  ADVISORY  WRITE 1234 08:01:5678 120 120`; one that waits has `->` after the number.
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[_, _, _, kind, pid, id, from, to] = words.as_slice() else { continue };
        let (Ok(pid), Some(id), Ok(from)) = (pid.parse::<u32>(), file_id(id), from.parse::<u64>()) else {
            continue;
        };
        let to = to.parse::<u64>().unwrap_or(u64::MAX);
        let covers = |byte: u64| from <= byte && byte <= to;
        let mut say = |lock, blocks_writers| {
            let holder = Holder { pid, lock, blocks_writers };
            if !holders.contains(&holder) {
                holders.push(holder);
            }
        };
        if Some(id) == shm {
            if kind == "WRITE" && covers(120) {
                say("write lock", true);
            } else if kind == "WRITE" && covers(121) {
                say("checkpoint lock", false);
            } else if kind == "WRITE" && covers(122) {
                say("recovery lock", true);
            } else if kind == "READ" && (123..=127).any(covers) {
                say("reads an old state", false);
            }
        } else if Some(id) == file && kind == "WRITE" && to >= 1 << 30 {
            say("exclusive lock on the file", true);
        }
    }
    holders
}

/// `08:01:5678`: device in hexadecimal, inode.
fn file_id(text: &str) -> Option<(u64, u64)> {
    let mut parts = text.split(':');
    let mut hex = || u32::from_str_radix(parts.next()?, 16).ok();
    let (major, minor) = (hex()?, hex()?);
    Some((rustix::fs::makedev(major, minor), parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locks_that_hold_somebody_up_are_named() {
        let dev = rustix::fs::makedev(0xfe, 0);
        let list = "\
1: POSIX  ADVISORY  WRITE 11 fe:00:7 120 120
1: -> POSIX  ADVISORY  WRITE 99 fe:00:7 120 120
2: POSIX  ADVISORY  READ 12 fe:00:7 128 128
3: POSIX  ADVISORY  READ 12 fe:00:7 124 124
4: POSIX  ADVISORY  READ 12 fe:00:6 1073741826 1073742335
5: POSIX  ADVISORY  WRITE 13 fe:00:6 1073741824 1073742335
6: POSIX  ADVISORY  WRITE 14 fe:00:8 120 120
7: FLOCK  ADVISORY  WRITE 15 fe:01:7 0 EOF
8: OFDLCK ADVISORY  WRITE -1 fe:00:7 120 120
9: garbage";
        let holder = |pid, lock, blocks_writers| Holder { pid, lock, blocks_writers };
        assert_eq!(
            parse(list, Some((dev, 6)), Some((dev, 7))),
            [
                holder(11, "write lock", true),
                holder(12, "reads an old state", false),
                holder(13, "exclusive lock on the file", true),
            ]
        );
        assert_eq!(parse(list, None, None), []);
    }
}
