//! A disk in memory under the real SQLite: it can lose power, tear sectors, fill up, fail, and lie about a sync.
//!
//! One disk for the process, registered as SQLite's default VFS, so whatever opens a database opens it here. Every
//! file keeps what is *live* (the page cache: what a reader sees) and what is *durable* (after a power cut), with the
//! writes in between in their order. [`revive`] makes the disk of the next start: after a kill all that is live, after
//! a power cut what is durable and, for each file by itself, any subset of the writes that were not synced, the last of
//! them torn at a sector. Shared memory and locks are in memory too, so several connections work as in real life.
//!
//! Made for one thread: calls are serialised by one lock, the time stands still unless somebody moves it, and a wait
//! for a lock is told to a hook. `ffi.rs` holds the C side and all the unsafe code.

mod ffi;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are written whole or not at all.
const SECTOR: usize = 512;
/// Size of a region of shared memory; SQLite asks for no other.
const REGION: usize = 32 * 1024;

/// What goes wrong, at a counted call (each write, truncation, sync and deletion is one).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// From here on nothing is done any more: the process is dead, whatever its code still tries.
    Die,
    /// Nothing is done, and the call fails.
    Fails,
    /// Half of a write is done, and the call fails.
    Torn,
    /// It is done, and the call says that it failed.
    Lies,
    /// As on a full disk, once.
    Full,
    /// A sync fails, and the system takes what it could not write for written (as Linux does): only a power cut shows
    /// that it is not there.
    Forgets,
}

/// How the disk goes on after the end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The process was killed: the operating system still writes all that it was given.
    Kill,
    /// Power was cut: what was not synced may be lost, file by file, write by write.
    Power,
}

#[derive(Clone)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Truncate(usize),
}

impl Change {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write { at, bytes } => {
                let end = at + bytes.len();
                if to.len() < end {
                    to.resize(end, 0);
                }
                to[*at..end].copy_from_slice(bytes);
            }
            Self::Truncate(length) => to.resize(*length, 0),
        }
    }

    /// What of it reached the platter before the power went: whole sectors, `keep` of them.
    fn torn(&self, keep: u64) -> Option<Self> {
        let Self::Write { at, bytes } = self else { return None };
        let first = SECTOR - at % SECTOR;
        let cut = (first + keep as usize % (bytes.len() / SECTOR + 1) * SECTOR).min(bytes.len());
        Some(Self::Write { at: *at, bytes: bytes[..cut].to_vec() })
    }
}

/// An inode.
#[derive(Default)]
struct File {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Since the last sync.
    unsynced: Vec<Change>,
    /// Its name is in a folder that was synced.
    named: bool,
    regions: Vec<Box<[u8; REGION]>>,
}

/// An open file.
#[derive(Clone, Copy, Default)]
struct Handle {
    file: usize,
    /// Of a process that is dead.
    dead: bool,
    level: i32,
    shm_shared: u8,
    shm_exclusive: u8,
    mapped: bool,
}

#[derive(Default)]
struct Disk {
    files: Vec<File>,
    names: BTreeMap<String, usize>,
    /// Deleted, and the folder not synced since: a power cut may bring them back.
    ghosts: BTreeMap<String, usize>,
    handles: HashMap<u64, Handle>,
    next_handle: u64,
    faults: Vec<(u64, Fault)>,
    dead: bool,
    full: bool,
    calls: u64,
    struck: u64,
    random: u64,
    now_ms: i64,
    on_sleep: Option<fn(i64)>,
    unsynced_names: Vec<String>,
    forgetful: &'static str,
}

static DISK: Mutex<Option<Disk>> = Mutex::new(None);

struct Held(MutexGuard<'static, Option<Disk>>);

impl std::ops::Deref for Held {
    type Target = Disk;
    fn deref(&self) -> &Disk {
        self.0.as_ref().expect("filled in by disk()")
    }
}
impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Disk {
        self.0.as_mut().expect("filled in by disk()")
    }
}

fn disk() -> Held {
    let mut held = DISK.lock().unwrap_or_else(PoisonError::into_inner);
    held.get_or_insert_with(Disk::default);
    Held(held)
}

/// Makes this SQLite's default VFS. Once for the process, before any connection.
pub fn install() {
    ffi::register();
}

/// An empty disk with these files, synced; `random` seeds what SQLite asks for. All connections must be closed.
pub fn reset(files: &[(&str, &[u8])], random: u64) {
    let mut disk = disk();
    assert!(disk.handles.is_empty(), "{} files are still open", disk.handles.len());
    *disk = Disk {
        random,
        next_handle: 1,
        on_sleep: disk.on_sleep,
        forgetful: disk.forgetful,
        now_ms: disk.now_ms,
        ..Disk::default()
    };
    for (name, bytes) in files {
        let file = File { live: bytes.to_vec(), durable: bytes.to_vec(), named: true, ..File::default() };
        disk.files.push(file);
        let number = disk.files.len() - 1;
        disk.names.insert((*name).to_owned(), number);
    }
    drop(disk);
    ffi::reseed();
}

/// What a reader of the file would see now, if it is there.
pub fn content(name: &str) -> Option<Vec<u8>> {
    let disk = disk();
    disk.names.get(name).map(|number| disk.files[*number].live.clone())
}

/// The fault strikes at the `calls`-th counted call from now (0 = the next).
pub fn arm(calls: u64, fault: Fault) {
    let mut disk = disk();
    let at = disk.calls + calls;
    disk.faults.push((at, fault));
}

/// Takes back all faults that have not struck, and makes room.
pub fn heal() {
    let mut disk = disk();
    disk.faults.clear();
    disk.full = false;
}

/// While it is set no file can grow.
pub fn set_full(full: bool) {
    disk().full = full;
}

/// The process is dead from now on.
pub fn kill() {
    disk().dead = true;
}

/// Whether a [`Fault::Die`] has struck.
pub fn is_dead() -> bool {
    disk().dead
}

/// Counted calls so far, and faults that struck.
pub fn figures() -> (u64, u64) {
    let disk = disk();
    (disk.calls, disk.struck)
}

/// These files are never really synced from now on (a test of the test: a mistake that must be found).
pub fn forget_syncs_of(name: &str) {
    disk().unsynced_names.push(name.to_owned());
}

/// [`Fault::Forgets`] forgets only in files whose name contains this (at first: in all); elsewhere the sync only fails.
pub fn forgets_only_in(part: &'static str) {
    disk().forgetful = part;
}

/// The wall clock as SQLite sees it, UTC milliseconds.
pub fn set_time(now_ms: i64) {
    disk().now_ms = now_ms;
}

/// Called, with microseconds, whenever SQLite waits for a lock.
pub fn on_sleep(hook: fn(i64)) {
    disk().on_sleep = Some(hook);
}

/// The disk as the next start finds it. Whoever still holds a file from before gets nothing but errors.
pub fn revive(end: End, seed: u64) {
    let mut disk = disk();
    let mut dice = Dice(seed);
    let mut names = std::mem::take(&mut disk.names);
    let ghosts = std::mem::take(&mut disk.ghosts);
    if end == End::Power {
        for (name, number) in ghosts {
            if !names.contains_key(&name) && dice.below(2) == 0 {
                names.insert(name, number);
            }
        }
        names.retain(|_, number| disk.files[*number].named || dice.below(2) == 0);
    }
    for number in names.values_mut() {
        let old = &disk.files[*number];
        let bytes = match end {
            End::Kill => old.live.clone(),
            End::Power => after_power_cut(old, &mut dice),
        };
        // After a kill the system goes on to write: what was unsynced may still be lost to a later power cut.
        let (durable, unsynced) = match end {
            End::Kill => (old.durable.clone(), old.unsynced.clone()),
            End::Power => (bytes.clone(), Vec::new()),
        };
        let named = old.named || end == End::Power;
        disk.files.push(File { live: bytes, durable, unsynced, named, regions: Vec::new() });
        *number = disk.files.len() - 1;
    }
    disk.names = names;
    disk.handles.values_mut().for_each(|handle| handle.dead = true);
    disk.faults.clear();
    disk.dead = false;
    disk.free_the_unused();
}

fn after_power_cut(file: &File, dice: &mut Dice) -> Vec<u8> {
    let mut bytes = file.durable.clone();
    let mode = dice.below(4);
    let last = dice.below(file.unsynced.len() as u64 + 1) as usize;
    for (place, change) in file.unsynced.iter().enumerate() {
        let keeps = match mode {
            0 => false,
            1 => true,
            2 => place < last, // in order, up to a moment
            _ => dice.below(2) == 0,
        };
        if keeps {
            change.apply(&mut bytes);
        } else if ((mode == 2 && place == last) || (mode == 3 && dice.below(4) == 0))
            && let Some(torn) = change.torn(dice.next())
        {
            torn.apply(&mut bytes);
        }
    }
    bytes
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// Why a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    Io,
    Full,
    Busy,
}
type Done<T = ()> = Result<T, Refusal>;

impl Disk {
    fn handle(&self, id: u64) -> Done<Handle> {
        match self.handles.get(&id) {
            Some(handle) if !handle.dead && !self.dead => Ok(*handle),
            _ => Err(Refusal::Io),
        }
    }

    /// Counts the call; the fault that strikes at it, if one does.
    fn strike(&mut self) -> Done<Option<Fault>> {
        if self.dead {
            return Err(Refusal::Io);
        }
        let now = self.calls;
        self.calls += 1;
        let Some(place) = self.faults.iter().position(|(at, _)| *at <= now) else { return Ok(None) };
        let (_, fault) = self.faults.remove(place);
        self.struck += 1;
        match fault {
            Fault::Die => {
                self.dead = true;
                Err(Refusal::Io)
            }
            Fault::Fails => Err(Refusal::Io),
            Fault::Full => Err(Refusal::Full),
            Fault::Torn | Fault::Lies | Fault::Forgets => Ok(Some(fault)),
        }
    }

    fn change(&mut self, id: u64, mut change: Change) -> Done {
        let file = self.handle(id)?.file;
        let grows = match &change {
            Change::Write { at, bytes } => at + bytes.len() > self.files[file].live.len(),
            Change::Truncate(_) => false,
        };
        let struck = self.strike()?;
        if self.full && grows {
            return Err(Refusal::Full);
        }
        if struck == Some(Fault::Forgets) {
            return Err(Refusal::Io); // no sync: it only fails
        }
        if struck == Some(Fault::Torn) {
            let seed = self.calls;
            match change.torn(seed) {
                Some(torn) => change = torn,
                None => return Err(Refusal::Io),
            }
        }
        let file = &mut self.files[file];
        change.apply(&mut file.live);
        file.unsynced.push(change);
        if struck.is_some() { Err(Refusal::Io) } else { Ok(()) }
    }

    fn sync(&mut self, id: u64) -> Done {
        let file = self.handle(id)?.file;
        let struck = self.strike()?;
        if struck == Some(Fault::Torn) {
            return Err(Refusal::Io);
        }
        if struck == Some(Fault::Forgets) {
            let forgetful =
                self.names.iter().any(|(name, number)| *number == file && name.contains(self.forgetful));
            if forgetful {
                self.files[file].unsynced.clear();
            }
            return Err(Refusal::Io);
        }
        let forgotten = self
            .names
            .iter()
            .any(|(name, number)| *number == file && self.unsynced_names.iter().any(|known| known == name));
        let file = &mut self.files[file];
        file.named = true;
        if !forgotten {
            for change in file.unsynced.drain(..) {
                change.apply(&mut file.durable);
            }
        }
        if struck.is_some() { Err(Refusal::Io) } else { Ok(()) }
    }

    fn open(&mut self, name: Option<&str>, create: bool) -> Done<u64> {
        if self.dead {
            return Err(Refusal::Io);
        }
        let known = name.and_then(|name| self.names.get(name).copied());
        let file = match known {
            Some(number) => number,
            None if create || name.is_none() => {
                self.files.push(File::default());
                let number = self.files.len() - 1;
                if let Some(name) = name {
                    self.names.insert(name.to_owned(), number);
                }
                number
            }
            None => return Err(Refusal::Io),
        };
        let id = self.next_handle;
        self.next_handle += 1;
        self.handles.insert(id, Handle { file, ..Handle::default() });
        Ok(id)
    }

    fn close(&mut self, id: u64) {
        self.handles.remove(&id);
        self.free_the_unused();
    }

    fn delete(&mut self, name: &str, sync_folder: bool) -> Done {
        if self.strike()?.is_some() {
            return Err(Refusal::Io);
        }
        if let Some(number) = self.names.remove(name)
            && self.files[number].named
        {
            self.ghosts.insert(name.to_owned(), number);
        }
        if sync_folder {
            self.ghosts.clear();
        }
        self.free_the_unused();
        Ok(())
    }

    /// Contents nobody can reach any more go; numbers stay.
    fn free_the_unused(&mut self) {
        let mut used = vec![false; self.files.len()];
        let open = self.handles.values().map(|handle| handle.file);
        for number in open.chain(self.names.values().copied()).chain(self.ghosts.values().copied()) {
            used[number] = true;
        }
        for (file, used) in self.files.iter_mut().zip(used) {
            if !used {
                *file = File::default();
            }
        }
        let files_mapped: Vec<usize> =
            self.handles.values().filter(|handle| handle.mapped).map(|handle| handle.file).collect();
        for (number, file) in self.files.iter_mut().enumerate() {
            if !files_mapped.contains(&number) {
                file.regions.clear();
            }
        }
    }

    fn others(&self, id: u64, file: usize) -> impl Iterator<Item = &Handle> {
        self.handles
            .iter()
            .filter(move |(other, handle)| **other != id && handle.file == file)
            .map(|(_, h)| h)
    }

    /// SQLite's levels: 1 SHARED, 2 RESERVED, 3 PENDING, 4 EXCLUSIVE.
    fn lock(&mut self, id: u64, level: i32) -> Done {
        let handle = self.handle(id)?;
        if handle.level >= level {
            return Ok(());
        }
        let highest = self.others(id, handle.file).map(|other| other.level).max().unwrap_or(0);
        let free = match level {
            1 => highest < 3,
            2 => highest < 2,
            _ => highest == 0,
        };
        if free {
            self.set_level(id, level);
            return Ok(());
        }
        // On the way to EXCLUSIVE, PENDING keeps new readers out.
        if level == 4 && highest <= 1 {
            self.set_level(id, 3);
        }
        Err(Refusal::Busy)
    }

    fn set_level(&mut self, id: u64, level: i32) {
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.level = level;
        }
    }

    fn reserved(&self, id: u64) -> Done<bool> {
        let handle = self.handle(id)?;
        Ok(handle.level >= 2 || self.others(id, handle.file).any(|other| other.level >= 2))
    }

    fn region(&mut self, id: u64, number: usize, extend: bool) -> Done<*mut u8> {
        let file = self.handle(id)?.file;
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.mapped = true;
        }
        let regions = &mut self.files[file].regions;
        if regions.len() <= number && !extend {
            return Ok(std::ptr::null_mut());
        }
        while regions.len() <= number {
            regions.push(Box::new([0; REGION]));
        }
        Ok(regions[number].as_mut_ptr())
    }

    fn shm_lock(&mut self, id: u64, mask: u8, lock: bool, exclusive: bool) -> Done {
        let handle = self.handle(id)?;
        if lock {
            let taken = self
                .others(id, handle.file)
                .any(|other| other.shm_exclusive & mask != 0 || (exclusive && other.shm_shared & mask != 0));
            if taken {
                return Err(Refusal::Busy);
            }
        }
        if let Some(handle) = self.handles.get_mut(&id) {
            let held = if exclusive { &mut handle.shm_exclusive } else { &mut handle.shm_shared };
            if lock { *held |= mask } else { *held &= !mask }
        }
        Ok(())
    }

    fn unmap(&mut self, id: u64) {
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.mapped = false;
            handle.shm_shared = 0;
            handle.shm_exclusive = 0;
        }
        self.free_the_unused();
    }

    fn random(&mut self) -> u64 {
        let mut dice = Dice(self.random);
        let number = dice.next();
        self.random = dice.0;
        number
    }
}
