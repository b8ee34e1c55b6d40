//! `restore FILE [--dry-run]`: puts a backup in the place of the databases; the agent must be down.
//!
//! Unpacked and checked first, and marked as held; then what lies there now (damaged or not, with its `-wal` and `-shm`) is
//! moved into a folder of its own, never overwritten, and the copies take its place. A death in between leaves half a
//! state, which the agent refuses, or a held one. Nothing is sent afterwards until `onceward adopt`.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::backup::{self, MEMBERS, Scratch, io};
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output};
use crate::archive;
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db::identity::{WitnessFiles, beside};
use crate::db::{self, Durability, Part, holder};
use crate::exit;
use crate::owner::{self, StateDir};
use crate::store::{audit, incarnation};
use crate::who;

/// Arguments of `restore`.
#[derive(clap::Args)]
pub struct Args {
    /// A file made by `onceward backup`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Check the backup, compare it with what is there, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let state = StateDir::new(&settings.agent.state_dir);
    let mut source = File::open(&args.file).map_err(|error| io(&args.file, &error))?;
    let manifest = archive::read_manifest(&mut source).map_err(|error| io(&args.file, &error))?;
    let names: Vec<&str> = manifest.members.iter().map(|member| member.name.as_str()).collect();
    if names != MEMBERS.map(|(name, _)| name) {
        return Err(Failure::new(
            exit::DATA,
            format!("{}: holds {}, expected both databases", args.file.display(), names.join(", ")),
        ));
    }
    if !args.dry_run {
        make_folders(&state)?;
    }
    // On the file system of the state folder, so that putting in place is a rename.
    let near = if args.dry_run { beside(&args.file, ".checking") } else { state.root.join("restoring") };
    let scratch = Scratch::new(&near)?;
    let mut copies = Vec::new();
    for (member, (name, part)) in manifest.members.iter().zip(MEMBERS) {
        let copy = scratch.path.join(name.rsplit('/').next().unwrap_or(name));
        archive::read_member(&mut source, member, &copy).map_err(|error| io(&args.file, &error))?;
        drop(backup::sound(&copy, part)?);
        copies.push(copy);
    }
    let shown = output::local_time(manifest.taken_at_ms, &settings.agent.timezone);
    let mut text = format!(
        "{}: sound; taken {shown} by onceward {}; {} rows accepted, {} commits with a claim\n",
        args.file.display(),
        manifest.version,
        manifest.rows,
        manifest.claims
    );
    text.push_str(&compared(&state, &copies)?);
    if args.dry_run {
        text.push_str("dry run: nothing was changed\n");
        return output::print(&text);
    }
    let aside = put_in_place(file, &settings, &state, &args.file, &shown, &copies)?;
    drop(scratch);
    if let Some(aside) = aside {
        text.push_str(&format!("what was there lies in {} now\n", aside.display()));
    }
    text.push_str(
        "restored. Nothing is sent until `onceward adopt`: what was sent after the backup is not known here; compare with the vendor's lists first\n",
    );
    output::print(&text)
}

/// What the present files know and the backup does not, as far as they can be read.
fn compared(state: &StateDir, copies: &[PathBuf]) -> Result<String, Failure> {
    let mut text = String::new();
    let present = [
        (
            state.outbox(),
            Part::Outbox,
            "outbox",
            "accepted messages",
            "SELECT count(*) FROM now.outbox WHERE message_id NOT IN (SELECT message_id FROM main.outbox)",
        ),
        (
            state.inbox(),
            Part::Inbox,
            "inbox",
            "messages with a call",
            "SELECT count(*) FROM now.inbox WHERE message_id NOT IN (SELECT message_id FROM main.inbox)",
        ),
    ];
    for ((path, part, name, what, sql), copy) in present.into_iter().zip(copies) {
        if std::fs::metadata(&path).is_err() {
            text.push_str(&format!("present {name}.db: there is none\n"));
            continue;
        }
        let unknown = db::open_reader(&path, part).map_err(|error| error.to_string()).and_then(|reader| {
            drop(reader);
            count_beside(copy, &path, sql).map_err(|error| error.to_string())
        });
        text.push_str(&match unknown {
            Ok(count) => format!("present {name}.db: {count} {what} that the backup does not know\n"),
            Err(error) => format!("present {name}.db: cannot be read ({error})\n"),
        });
    }
    Ok(text)
}

fn count_beside(copy: &Path, present: &Path, sql: &str) -> rusqlite::Result<i64> {
    let connection = Connection::open_with_flags(
        copy,
        rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_URI,
    )?;
    connection.busy_timeout(crate::limits::BUSY_TIMEOUT)?;
    let uri = format!("file:{}?mode=ro", crate::percent::encode(&present.to_string_lossy()));
    connection.execute("ATTACH ?1 AS now", [uri])?;
    connection.query_row(sql, [], |row| row.get(0))
}

fn make_folders(state: &StateDir) -> Result<(), Failure> {
    for (folder, mode) in [(&state.root, 0o755), (&state.outbox_dir(), 0o2770), (&state.inbox_dir(), 0o700)] {
        super::init::make_dir(folder, mode)?;
    }
    Ok(())
}

/// The steps from here on change the state folder. Returns where the present files went, if there were any.
fn put_in_place(
    file: &SettingsFile,
    settings: &Settings,
    state: &StateDir,
    from: &Path,
    shown: &str,
    copies: &[PathBuf],
) -> Result<Option<PathBuf>, Failure> {
    let _ownership = owner::take(state, &file.path).map_err(|error| {
        let code = crate::agent::StartError::from(error).exit_code();
        let socket = settings.listen.socket.display();
        Failure::new(code, format!("an agent is running on this state folder (socket {socket}), or it cannot be written; stop the agent first"))
    })?;
    // The lock outside: an agent that began on other files at this path.
    let _witness =
        WitnessFiles::open(state).map_err(|error| Failure::new(exit::TRY_AGAIN, error.to_string()))?;
    for path in [state.outbox(), state.inbox()] {
        if let Some(other) = holder::of(&path).first() {
            return Err(Failure::new(
                exit::TRY_AGAIN,
                format!("{}: is in use by {}; end it first", path.display(), holder::name(other)),
            ));
        }
    }
    mark_held(&copies[1], from, shown)?;
    let aside = set_aside(state)?;
    // The inbox first: without it nothing is ever sent.
    for (copy, target, mode) in [(&copies[1], state.inbox(), 0o600), (&copies[0], state.outbox(), 0o660)] {
        std::fs::set_permissions(copy, std::fs::Permissions::from_mode(mode))
            .map_err(|error| io(copy, &error))?;
        // Root restores for the agent's user: a file belongs to whom its folder belongs.
        if let Some(folder) = target.parent() {
            owner::give_to_owner_of(folder, copy).map_err(|error| io(&target, &error))?;
        }
        std::fs::rename(copy, &target).map_err(|error| io(&target, &error))?;
        backup::sync_folder_of(&target).map_err(|error| io(&target, &error))?;
    }
    Ok(aside)
}

/// In the copy, before it is in place: whoever starts on it is held.
fn mark_held(inbox: &Path, from: &Path, shown: &str) -> Result<(), Failure> {
    let mut connection = db::open_writer(inbox, Part::Inbox, Durability::Full)?;
    let text = format!("restored from {} of {shown}", from.display());
    db::write(&mut connection, |tx| {
        incarnation::put_held(tx, &text)?;
        audit::append(
            tx,
            &audit::Deed {
                at_ms: wall_ms(),
                who: &who::this_process(),
                verb: "RESTORE",
                target: "",
                destination: "",
                note: &text,
                before: "",
                after: "HELD",
            },
        )
    })
    .and_then(|()| {
        // One file alone is renamed: nothing may be left in its log.
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
    })
    .map_err(|error| Failure::new(exit::IO, format!("{}: {error}", inbox.display())))?;
    drop(connection);
    Ok(())
}

/// Moves whatever is there into a new folder, each log with its database.
fn set_aside(state: &StateDir) -> Result<Option<PathBuf>, Failure> {
    // The inbox's database before its log, and before all else: a death in between leaves half a state, which no agent
    // starts on.
    let files: Vec<PathBuf> = [state.inbox(), state.outbox()]
        .iter()
        .flat_map(|path| [path.clone(), beside(path, "-wal"), beside(path, "-shm"), beside(path, "-journal")])
        .filter(|path| path.symlink_metadata().is_ok())
        .collect();
    if files.is_empty() {
        return Ok(None);
    }
    let stamp = jiff::ZonedDateTime::now().strftime("%Y%m%d-%H%M%S").to_string();
    let mut aside = state.root.join(format!("set-aside-{stamp}"));
    for number in 2..100 {
        match std::fs::DirBuilder::new().mode(0o700).create(&aside) {
            Ok(()) => break,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                aside = state.root.join(format!("set-aside-{stamp}-{number}"));
            }
            Err(error) => return Err(io(&aside, &error)),
        }
    }
    for path in &files {
        let name = path.file_name().unwrap_or_default();
        std::fs::rename(path, aside.join(name)).map_err(|error| io(path, &error))?;
    }
    for folder in [state.outbox_dir(), state.inbox_dir(), aside.clone()] {
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(|error| io(&folder, &error))?;
    }
    backup::sync_folder_of(&aside).map_err(|error| io(&aside, &error))?;
    Ok(Some(aside))
}
