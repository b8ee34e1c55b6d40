//! `backup FILE`: both databases in one file, agent up or down. Copied by SQLite, opened and checked, synced, renamed.
//!
//! The outbox is copied first, the inbox last: whatever had been sent when the outbox was read is known to the inbox that
//! is read afterwards. So the backup's inbox never knows less than its own outbox would send again. What is sent after the
//! backup neither of them knows; that is why all is held after `restore`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output};
use crate::archive::{self, FORMAT, Manifest};
use crate::clock::wall_ms;
use crate::db::{self, Part};
use crate::exit;
use crate::owner::StateDir;
use crate::store::incarnation;

/// Arguments of `backup`.
#[derive(clap::Args)]
pub struct Args {
    /// The file to make (a tar); it must not exist
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Names of the members, outbox first.
pub const MEMBERS: [(&str, Part); 2] = [("outbox/outbox.db", Part::Outbox), ("inbox/inbox.db", Part::Inbox)];

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let state = StateDir::new(&settings.agent.state_dir);
    if args.file.exists() {
        return Err(Failure::new(
            exit::CANNOT_CREATE,
            format!("{}: is there already; a backup overwrites nothing", args.file.display()),
        ));
    }
    // Beside the target, so that the last step is a rename.
    let scratch = Scratch::new(&db::identity::beside(&args.file, ".making"))?;
    let mut copies = Vec::new();
    for ((name, part), source) in MEMBERS.into_iter().zip([state.outbox(), state.inbox()]) {
        let copy = scratch.path.join(name.rsplit('/').next().unwrap_or(name));
        copy_of(&source, part, &copy)?;
        copies.push(copy);
    }
    let outbox = sound(&copies[0], Part::Outbox)?;
    let inbox = sound(&copies[1], Part::Inbox)?;
    let failed = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let (pair, other) =
        (incarnation::marks(&inbox).map_err(failed)?.pair, incarnation::marks(&outbox).map_err(failed)?.pair);
    if pair != other {
        return Err(Failure::new(
            exit::UNAVAILABLE,
            "inbox.db and outbox.db were not made together: nothing was backed up; see `onceward check`",
        ));
    }
    let (claims, rows) =
        (incarnation::claims(&inbox).map_err(failed)?, incarnation::rows(&outbox).map_err(failed)?);
    drop((inbox, outbox));
    let cannot = |path: &Path, error: std::io::Error| io(path, &error);
    let mut members = Vec::new();
    for ((name, _), copy) in MEMBERS.into_iter().zip(&copies) {
        members.push(archive::member(name, copy).map_err(|error| cannot(copy, error))?);
    }
    let manifest = Manifest {
        format: FORMAT.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        taken_at_ms: wall_ms(),
        pair,
        claims,
        rows,
        members,
    };
    let whole = scratch.path.join("backup.tar");
    let mut target = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&whole)
        .map_err(|error| cannot(&whole, error))?;
    archive::write(&mut target, &manifest, &copies).map_err(|error| cannot(&whole, error))?;
    // A link fails where somebody has made the file meanwhile; a rename would replace it.
    std::fs::hard_link(&whole, &args.file)
        .or_else(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Err(error),
            _ if !args.file.exists() => std::fs::rename(&whole, &args.file), // no links here (FAT, exFAT)
            _ => Err(error),
        })
        .map_err(|error| cannot(&args.file, error))?;
    drop(scratch);
    sync_folder_of(&args.file).map_err(|error| cannot(&args.file, error))?;
    let bytes: u64 = manifest.members.iter().map(|member| member.size).sum();
    output::print(&format!(
        "{}: both databases, {} KiB, checked and synced; {} rows accepted so far, {} commits with a claim\n",
        args.file.display(),
        bytes >> 10,
        rows,
        claims
    ))
}

/// The exit code and text for a file that cannot be read or written.
pub fn io(path: &Path, error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => exit::NO_INPUT,
        std::io::ErrorKind::PermissionDenied => exit::NOT_PERMITTED,
        std::io::ErrorKind::AlreadyExists => exit::CANNOT_CREATE,
        std::io::ErrorKind::StorageFull => exit::TRY_AGAIN,
        std::io::ErrorKind::InvalidData => exit::DATA,
        _ => exit::IO,
    };
    Failure::new(code, format!("{}: {error}", path.display()))
}

/// Syncs the folder that a file's name is in.
pub fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// A consistent copy at one moment, made by SQLite alone (S13): `VACUUM INTO` reads, and locks nobody out.
fn copy_of(source: &Path, part: Part, copy: &Path) -> Result<(), Failure> {
    let reader = db::open_reader(source, part)?;
    let target = copy
        .to_str()
        .ok_or_else(|| Failure::new(exit::USAGE, format!("{}: the name is not in UTF-8", copy.display())))?;
    reader.execute("VACUUM INTO ?1", [target]).map_err(|error| {
        let code = if db::is_busy(&error) || db::is_full(&error) { exit::TRY_AGAIN } else { exit::IO };
        Failure::new(code, format!("{}: cannot be copied: {error}", source.display()))
    })?;
    Ok(())
}

/// Opens a copy and checks it to its last page.
pub fn sound(copy: &Path, part: Part) -> Result<Connection, Failure> {
    let damaged = |text: String| Failure::new(exit::DATA, format!("{}: is damaged: {text}", copy.display()));
    let connection = db::open_reader(copy, part).map_err(|error| damaged(error.to_string()))?;
    let verdict: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| damaged(error.to_string()))?;
    if verdict == "ok" { Ok(connection) } else { Err(damaged(verdict)) }
}

/// A folder for what is being made; gone when dropped.
pub struct Scratch {
    /// The folder.
    pub path: PathBuf,
}

impl Scratch {
    /// Makes it: only the user may look into it.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        std::fs::DirBuilder::new().mode(0o700).create(path).map_err(|error| {
            let hint = if error.kind() == std::io::ErrorKind::AlreadyExists {
                " (left by an earlier try that was cut off? remove it)"
            } else {
                ""
            };
            Failure::new(exit::CANNOT_CREATE, format!("{}: {error}{hint}", path.display()))
        })?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
