//! A few megabytes kept back, so that the outcomes of calls already made can be recorded on a full disk (F18).
//!
//! `inbox/reserve` is allocated at the start. When a commit finds the disk full, the file is given back to the disk: then
//! there is room for what is owed. Nothing new is claimed while there is little room or no reserve. Once there is room
//! the file is made again. On file systems that copy on write or compress, keeping room this way is a best effort.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::limits::{RESERVE_BYTES, SEND_FREE_MIN};

/// The reserve of one state folder, and the room on its file systems.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    /// Folders whose file systems must have room.
    folders: Vec<PathBuf>,
    there: AtomicBool,
}

impl Reserve {
    /// Names only; [`Self::look`] makes it. The file lies in the first folder.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        let path = folders.first().map(|folder| folder.join("reserve")).unwrap_or_default();
        let there = std::fs::metadata(&path).is_ok_and(|meta| meta.len() == RESERVE_BYTES);
        Self { path, folders, there: AtomicBool::new(there) }
    }

    /// Whether there is room to begin something: `Err` says where there is none. Makes the reserve again where it can.
    pub fn look(&self) -> Result<(), String> {
        let there = self.there.load(Ordering::Relaxed);
        let needed = SEND_FREE_MIN + if there { 0 } else { RESERVE_BYTES };
        for folder in &self.folders {
            if let Some(free) = free(folder)
                && free < needed
            {
                return Err(format!(
                    "the disk is full: {} KiB free at {}, at least {} KiB are needed",
                    free >> 10,
                    folder.display(),
                    needed >> 10
                ));
            }
        }
        if !there {
            self.make().map_err(|error| format!("{}: {error}: make room", self.path.display()))?;
            self.there.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn make(&self) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
        let made = allocate(&file).and_then(|()| file.sync_all());
        if made.is_err() {
            let _ = std::fs::remove_file(&self.path);
        }
        made
    }

    /// Gives the room back to the disk. True if there was any to give.
    pub fn release(&self) -> bool {
        if !self.there.swap(false, Ordering::Relaxed) {
            return false;
        }
        match std::fs::remove_file(&self.path) {
            Ok(()) => {
                log::warn!(
                    "{}: given back to the full disk, so that what is owed can be written",
                    self.path.display()
                );
                true
            }
            Err(_) => false,
        }
    }
}

fn allocate(file: &File) -> io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, RESERVE_BYTES) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            let mut file = file;
            let zeros = [0u8; 64 << 10];
            for _ in 0..RESERVE_BYTES / zeros.len() as u64 {
                file.write_all(&zeros)?;
            }
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Bytes free for this user; `None` where it cannot be told.
pub fn free(folder: &Path) -> Option<u64> {
    rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_given_back_once_and_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let reserve = Reserve::new(vec![folder.path().to_owned()]);
        let size = || std::fs::metadata(folder.path().join("reserve")).map(|meta| meta.len()).ok();
        assert!(!reserve.release(), "there is none yet");
        assert_eq!(reserve.look(), Ok(()));
        assert_eq!(size(), Some(RESERVE_BYTES));
        assert!(reserve.release() && !reserve.release());
        assert_eq!(size(), None);
        assert_eq!(reserve.look(), Ok(()));
        assert_eq!(size(), Some(RESERVE_BYTES));
        assert_eq!(Reserve::new(vec![folder.path().to_owned()]).look(), Ok(()), "found at the next start");
    }
}
