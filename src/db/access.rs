//! May this user open a database file, and would the files that SQLite makes beside it lock anybody out
//! (S25)?
//!
//! Looks by `stat` and `access` alone: opening the file here would drop SQLite's locks (S9). A `-wal`, `-shm`
//! or `-journal` belongs to whoever came first, with the mode of the database and the group of the folder (if
//! its set-group-id bit is set; else the maker's own group). So a folder that several users share needs that
//! bit.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};

use super::DbError;
use crate::clock::wall_ms;

/// The files that SQLite keeps beside a database.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// How long a side file may be in the making: root's SQLite makes it first and gives it to the file's owner next, so for
/// a moment it is closed to everybody else.
const IN_THE_MAKING: Duration = Duration::from_millis(500);
/// Between two looks at it.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Fails, with the command that mends it, where this user cannot use the file or would lock its owner out. Waits up to
/// half a second for a side file that somebody is just making.
pub fn usable(path: &Path) -> Result<(), DbError> {
    let begun = Instant::now();
    loop {
        match usable_now(path) {
            Err(_) if begun.elapsed() < IN_THE_MAKING && in_the_making(path) => {
                std::thread::sleep(LOOK_AGAIN);
            }
            looked => return looked,
        }
    }
}

/// Opens by `open`, again where SQLite was refused a file: what it met may have been a side file in the making, and a
/// connection that met one read-only stays read-only. Once more at least, since that file may be gone again, and for half
/// a second while there is a young one.
pub fn patiently<T>(path: &Path, mut open: impl FnMut() -> Result<T, DbError>) -> Result<T, DbError> {
    let begun = Instant::now();
    let mut first = true;
    loop {
        match open() {
            Err(error)
                if error.is_refusal()
                    && (first || (begun.elapsed() < IN_THE_MAKING && in_the_making(path))) =>
            {
                first = false;
                std::thread::sleep(LOOK_AGAIN);
            }
            opened => return opened,
        }
    }
}

/// Whether a side file changed hands, or came, within the last moment.
fn in_the_making(path: &Path) -> bool {
    let now_ms = wall_ms();
    let young = |file: &Metadata| {
        let changed_ms = file.ctime().saturating_mul(1000).saturating_add(file.ctime_nsec() / 1_000_000);
        now_ms.abs_diff(changed_ms) < 2 * IN_THE_MAKING.as_millis() as u64
    };
    beside(path).iter().any(|file| std::fs::metadata(file).is_ok_and(|file| young(&file)))
}

fn usable_now(path: &Path) -> Result<(), DbError> {
    let file = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DbError::Away { path: path.to_owned() },
        _ => DbError::NotPermitted { path: path.to_owned(), reason: error.to_string() },
    })?;
    let folder_path = path.parent().unwrap_or(Path::new("/"));
    let folder = std::fs::metadata(folder_path)
        .map_err(|error| DbError::NotPermitted { path: folder_path.to_owned(), reason: error.to_string() })?;
    let refused = |path: &Path, reason: String| Err(DbError::NotPermitted { path: path.to_owned(), reason });
    // SQLite gives what root makes to the file's owner, so root locks nobody out.
    let user = rustix::process::geteuid();
    if access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        let why = format!(
            "user {} may not write it ({}); put that user into group {} and `chmod g+rw` the file (under systemd also SupplementaryGroups= and ReadWritePaths=)",
            user.as_raw(),
            whose(&file),
            file.gid()
        );
        return refused(path, why);
    }
    if access(folder_path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let why = format!(
            "user {} may not make files in this folder ({}), which SQLite must; `chgrp {}` and `chmod g+rwxs` it (under systemd also ReadWritePaths=)",
            user.as_raw(),
            whose(&folder),
            file.gid()
        );
        return refused(folder_path, why);
    }
    for beside in beside(path) {
        // One that is gone meanwhile, with the last connection, is closed to nobody.
        if let Ok(metadata) = std::fs::metadata(&beside)
            && access(&beside, Access::READ_OK | Access::WRITE_OK)
                .is_err_and(|error| error != rustix::io::Errno::NOENT)
        {
            let why = format!(
                "was left by another user ({}) and user {} may not write it; as root: `chown {}:{} {path}` and `chmod {:o} {path}` (never delete it: it may hold committed messages)",
                whose(&metadata),
                user.as_raw(),
                file.uid(),
                file.gid(),
                file.mode() & 0o666,
                path = beside.display(),
            );
            return refused(&beside, why);
        }
    }
    if user.is_root() || user.as_raw() == file.uid() || !leaves_others_out(&file, &folder) {
        return Ok(());
    }
    let why = format!(
        "files that SQLite makes here for user {} would not be writable for the file's owner {}; `chgrp {group} {folder}` and `chmod g+s {folder}`, and `chmod g+rw` the file",
        user.as_raw(),
        file.uid(),
        group = file.gid(),
        folder = folder_path.display(),
    );
    refused(folder_path, why)
}

/// Takes the group's bits out of this process's umask. SQLite makes a side file under the umask and only then gives it
/// the database's mode: a death between the two would leave a file that the owner's group cannot write. What is ours
/// alone is made with a mode of its own.
pub fn let_the_group_in() {
    use rustix::fs::Mode;
    let given = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let _ = rustix::process::umask(given & !Mode::RWXG);
}

/// Whether a side file made by another user than the file's owner is closed to that owner's group.
fn leaves_others_out(file: &Metadata, folder: &Metadata) -> bool {
    let group = if folder.mode() & 0o2000 != 0 { folder.gid() } else { rustix::process::getegid().as_raw() };
    let by_group = group == file.gid() && file.mode() & 0o060 == 0o060;
    let by_all = file.mode() & 0o006 == 0o006;
    !by_group && !by_all
}

/// A folder that several users of one group share, and what is wrong with it for that.
pub fn shared_folder_fault(folder: &Path) -> Option<String> {
    let metadata = std::fs::metadata(folder).ok()?;
    (metadata.mode() & 0o020 != 0 && metadata.mode() & 0o2000 == 0).then(|| {
        format!(
            "{}: its group may write, but its set-group-id bit is missing: what one user leaves may lock out the others; `chmod g+s` it",
            folder.display()
        )
    })
}

/// The name of the network file system that a file is on, if it is one: there SQLite's locks and shared
/// memory cannot be relied on between machines (S26).
pub fn network_file_system(path: &Path) -> Option<&'static str> {
    // Magic numbers of statfs(2).
    match rustix::fs::statfs(path).ok()?.f_type as i64 & 0xFFFF_FFFF {
        0x6969 => Some("NFS"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => Some("SMB"),
        0x0102_1997 => Some("9p"),
        _ => None,
    }
}

/// The paths of the side files.
pub fn beside(path: &Path) -> [PathBuf; 3] {
    BESIDE.map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    })
}

fn whose(metadata: &Metadata) -> String {
    format!("owner {}, group {}, mode {:04o}", metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
}
