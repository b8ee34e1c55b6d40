//! `init`: a commented settings file and both databases; never overwrites. With `--config FILE` the databases of those
//! settings. What root makes in the system's places belongs to the user `onceward`, where there is one.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output};
use crate::adopt;
use crate::config::{SAMPLE_PASSWORD_FILE, Settings, sample};
use crate::db::identity::WitnessFiles;
use crate::db::{self, Part};
use crate::exit;
use crate::owner::StateDir;

/// Arguments of `init`.
#[derive(clap::Args)]
pub struct Args {
    /// Everything below this folder; without it /etc/onceward and /var/lib/onceward, or, with --config FILE (or
    /// ONCEWARD_CONFIG), the databases of those settings
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Runs the command. `named` is the settings file that `--config` or the environment names.
pub fn run(named: Option<&SettingsFile>, args: Args) -> Outcome {
    if let (None, Some(file)) = (&args.dir, named) {
        let settings = file.load_without_secrets()?;
        let made = make_databases(&settings.agent.state_dir, agent_user())?;
        return output::print(&said_of(&made));
    }
    let (config_dir, state, socket) = match &args.dir {
        Some(dir) => {
            make_dir(dir, 0o755)?;
            let dir = dir.canonicalize().map_err(|error| cannot(dir, &error))?;
            (dir.clone(), dir.join("state"), dir.join("onceward.sock"))
        }
        None => ("/etc/onceward".into(), "/var/lib/onceward".into(), "/run/onceward/onceward.sock".into()),
    };
    make_dir(&config_dir, 0o755)?;
    let config = config_dir.join("onceward.toml");
    let mut said = String::new();
    let mut new_file = |path: &Path, mode: u32, text: &str| -> Result<(), Failure> {
        let made = write_new(path, mode, text)?;
        said.push_str(&format!("{} {}\n", if made { "wrote" } else { "kept " }, path.display()));
        Ok(())
    };
    new_file(&config, 0o644, &sample(&state, &socket))?;
    new_file(&config_dir.join(SAMPLE_PASSWORD_FILE), 0o600, "change-me\n")?;

    // The settings that stand decide where the databases are.
    let settings = Settings::load_without_secrets(&config).map_err(|error| {
        Failure::new(
            error.exit_code(),
            format!("{error}\n(the settings file was kept; nothing else was made)"),
        )
    })?;
    let user = if args.dir.is_none() { agent_user() } else { None };
    let made = make_databases(&settings.agent.state_dir, user)?;
    said.push_str(&said_of(&made));
    // Only its owner may read it, and that has to be the agent.
    let password = config_dir.join(SAMPLE_PASSWORD_FILE);
    match user {
        Some((uid, gid)) => {
            chown(&password, Some(uid), Some(gid)).map_err(|error| cannot(&password, &error))?;
        }
        None => give_to_the_owner_of(&settings.agent.state_dir, &password)?,
    }
    said.push_str(&format!(
        "\nNext: put the account into {config} and its password into {password},\n  onceward --config {config} check\n  onceward --config {config} run\nTo try it without a vendor: onceward sandbox &  (the settings as written fit it)\n",
        config = config.display(),
        password = config_dir.join(SAMPLE_PASSWORD_FILE).display(),
    ));
    output::print(&said)
}

fn said_of(made: &[(PathBuf, bool)]) -> String {
    made.iter()
        .map(|(path, new)| format!("{} {}\n", if *new { "made " } else { "kept " }, path.display()))
        .collect()
}

/// User and group `onceward`, if we are root and they are there.
fn agent_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with("onceward:"))?;
    let mut numbers = line.split(':').skip(2);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Both databases below `state_dir`; existing ones are kept and brought to the newest schema. What is new belongs to
/// `user` (user and group id), if one is given.
pub fn make_databases(state_dir: &Path, user: Option<(u32, u32)>) -> Result<Vec<(PathBuf, bool)>, Failure> {
    let state = StateDir::new(state_dir);
    let dirs = [(state.root.clone(), 0o755), (state.outbox_dir(), 0o2770), (state.inbox_dir(), 0o700)];
    let give = |path: &Path| match user {
        Some((uid, gid)) => chown(path, Some(uid), Some(gid)).map_err(|error| cannot(path, &error)),
        None => give_to_the_owner_of(path.parent().unwrap_or(path), path),
    };
    for (dir, mode) in dirs {
        if make_dir(&dir, mode)? {
            give(&dir)?;
            // chown takes the set-group-id bit away.
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode))
                .map_err(|error| cannot(&dir, &error))?;
        }
    }
    let (outbox, inbox) = (state.outbox(), state.inbox());
    // An empty file is what a failed copy or a full disk leaves: as good as missing.
    let there = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.len() > 0);
    if there(&outbox) != there(&inbox) {
        let (missing, stands) = if there(&outbox) { (&inbox, &outbox) } else { (&outbox, &inbox) };
        return Err(Failure::new(
            exit::UNAVAILABLE,
            format!(
                "{}: is missing or empty while {} stands. Making an empty one could repeat what was sent. Put the file back, or move both away and run init again",
                missing.display(),
                stands.display()
            ),
        ));
    }
    let _ownership = crate::owner::take(&state, Path::new("init")).map_err(|error| {
        Failure::new(
            crate::agent::StartError::from(error).exit_code(),
            "this state folder is in use by a running agent, or cannot be written; stop the agent first",
        )
    })?;
    let witness =
        WitnessFiles::open(&state).map_err(|error| Failure::new(exit::TRY_AGAIN, error.to_string()))?;
    let mut made = Vec::new();
    let mut open = Vec::new();
    for (path, part, mode) in [(outbox, Part::Outbox, 0o660), (inbox, Part::Inbox, 0o600)] {
        let new = !there(&path);
        open.push(db::create(&path, part)?);
        if new {
            // SQLite gives -wal and -shm the mode of the file itself.
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                .map_err(|error| cannot(&path, &error))?;
            give(&path)?;
        }
        made.push((path, new));
    }
    give(&state.lock())?;
    if let [outbox, inbox] = open.as_mut_slice() {
        let new = made.iter().all(|(_, new)| *new);
        adopt::first(inbox, outbox, &state, &witness, new)
            .map_err(|error| Failure::new(exit::CANNOT_CREATE, error.to_string()))?;
    }
    Ok(made)
}

/// `init` is often run by root, the agent never is: what root makes in a folder belongs to that folder's owner.
fn give_to_the_owner_of(folder: &Path, path: &Path) -> Result<(), Failure> {
    let (folder, file) = match (fs::metadata(folder), fs::metadata(path)) {
        (Ok(folder), Ok(file)) => (folder, file),
        (Err(error), _) | (_, Err(error)) => return Err(cannot(path, &error)),
    };
    if !rustix::process::geteuid().is_root() || (folder.uid(), folder.gid()) == (file.uid(), file.gid()) {
        return Ok(());
    }
    chown(path, Some(folder.uid()), Some(folder.gid())).map_err(|error| cannot(path, &error))
}

/// True if it was made.
pub fn make_dir(path: &Path, mode: u32) -> Result<bool, Failure> {
    if path.is_dir() {
        return Ok(false);
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode & 0o777)
        .create(path)
        .map_err(|error| cannot(path, &error))?;
    // The set-group-id bit is not for mkdir to give.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| cannot(path, &error))?;
    Ok(true)
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<bool, Failure> {
    match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        Ok(mut file) => file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map(|()| true)
            .map_err(|error| cannot(path, &error)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(cannot(path, &error)),
    }
}

fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    let code = if error.kind() == std::io::ErrorKind::PermissionDenied {
        exit::NOT_PERMITTED
    } else {
        exit::CANNOT_CREATE
    };
    Failure::new(code, format!("{}: {error}", path.display()))
}
