//! Producers under other Unix users (S25): three users of the group enqueue while the agent, a fourth, runs and while
//! it is down; what any of them leaves behind locks nobody out; the inbox stays closed to them.
//!
//! Really switches users with setpriv and numeric ids (no users are made), so it needs root; skipped without it.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::f_source::{app, status};
use crate::support::{Agent, BIN, World, text};

/// The agent's user; its group is the one producers join.
const AGENT: u32 = 64_001;
const GROUP: u32 = 64_001;
/// Three producers, each with a primary group of its own.
const PRODUCERS: [u32; 3] = [64_011, 64_012, 64_013];
/// An application that is not in the group.
const APPLICATION: u32 = 64_021;

/// A state folder as the packages make it (tmpfiles), initialised by root, and whether users can be switched at all.
fn world() -> Option<World> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can switch users");
        return None;
    }
    if !as_user(AGENT, GROUP, &[], "true", &[]).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: setpriv cannot switch users here");
        return None;
    }
    let world = World::new();
    // Everything down to the temporary folder may be walked by all, as /var/lib is.
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode set");
    };
    mode(world.dir.path(), 0o755);
    let state = world.dir.path().join("state");
    std::fs::remove_dir_all(&state).expect("removed");
    std::fs::remove_dir_all(world.dir.path().join("state-witness")).expect("removed");
    for (folder, bits) in [("", 0o755), ("outbox", 0o2770), ("inbox", 0o700)] {
        let folder = state.join(folder);
        std::fs::create_dir(&folder).expect("made");
        chown(&folder, Some(AGENT), Some(GROUP)).expect("owned");
        mode(&folder, bits);
    }
    // As an operator does: init by root. What it makes belongs to the agent.
    let init = Command::new(BIN).args(["init", "--dir"]).arg(world.dir.path()).output().expect("init runs");
    assert!(init.status.success(), "{init:?}");
    let owned = |path: PathBuf| {
        let metadata = std::fs::metadata(&path).expect("it is there");
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o777)
    };
    assert_eq!(owned(world.outbox_path()), (AGENT, GROUP, 0o660));
    assert_eq!(owned(world.inbox_path()), (AGENT, GROUP, 0o600));
    assert_eq!(
        owned(world.dir.path().join("bizppurio.password")),
        (AGENT, GROUP, 0o600),
        "or it could not log in"
    );
    Some(world)
}

fn command(user: u32, group: u32, groups: &[u32], program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={group}"));
    if groups.is_empty() {
        command.arg("--clear-groups");
    } else {
        let list: Vec<String> = groups.iter().map(u32::to_string).collect();
        command.arg(format!("--groups={}", list.join(",")));
    }
    command.arg("--").arg(program).stdin(Stdio::null());
    command
}

fn as_user(user: u32, group: u32, groups: &[u32], program: &str, args: &[&str]) -> std::io::Result<Output> {
    command(user, group, groups, program).args(args).output()
}

/// A member of the group, with a umask that would close everything to everybody else.
fn producer(user: u32, program: &str, args: &[&str]) -> (i32, String, String) {
    let mut all = vec!["-c", "umask 077; exec \"$@\"", "sh", program];
    all.extend_from_slice(args);
    text(&as_user(user, user, &[user, GROUP], "sh", &all).expect("it runs"))
}

fn agent(world: &World, groups: &[u32]) -> Agent {
    let mut command = command(AGENT, GROUP, groups, BIN);
    command.arg("--config").arg(&world.config).arg("run");
    Agent::spawn(command)
}

const INSERT: &str = "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('KEY', 'TEST', '01000000001', '{}') ON CONFLICT (dedup_key) DO NOTHING";

/// Three ways in, and a death with everything open: what stays behind belongs to the producer.
fn enqueue_as_each(world: &World, round: &str) -> usize {
    let outbox = world.outbox_path();
    let outbox = outbox.to_str().expect("UTF-8");
    let config = world.config.to_str().expect("UTF-8");
    let mut count = 0;
    for user in PRODUCERS {
        let key = |way: &str| format!("{round}:{user}:{way}");
        let (code, _, error) = producer(
            user,
            "sqlite3",
            &["-cmd", ".timeout 30000", outbox, &INSERT.replace("KEY", &key("shell"))],
        );
        assert_eq!((code, error.as_str()), (0, ""), "the shell of user {user}");
        let (code, _, error) = producer(
            user,
            BIN,
            &[
                "--config",
                config,
                "enqueue",
                "--key",
                &key("command"),
                "--kind",
                "TEST",
                "--to",
                "01000000001",
                "--payload",
                "{}",
            ],
        );
        assert_eq!((code, error.as_str()), (0, ""), "the command of user {user}");
        let killed = format!(
            "import os, signal, sqlite3\nc = sqlite3.connect('{outbox}', timeout=30, isolation_level=None)\nc.execute('PRAGMA wal_autocheckpoint = 0')\nc.execute(\"{}\")\nos.kill(os.getpid(), signal.SIGKILL)",
            INSERT.replace("KEY", &key("killed"))
        );
        let (code, _, error) = producer(user, "python3", &["-c", &killed]);
        assert_eq!((code, error.as_str()), (-1, ""), "killed after its commit");
        count += 3;
    }
    count
}

#[test]
fn s25_three_users_of_the_group_enqueue_and_what_they_leave_behind_locks_nobody_out() {
    let Some(world) = world() else { return };
    let all_sent = |count: usize| {
        world.wait("all sent", |world| {
            world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == count as i64
        });
    };
    // The agent is down: the first producer makes the -wal and -shm, and dies with them open.
    let mut count = enqueue_as_each(&world, "down");
    let shm = std::fs::metadata(format!("{}-shm", world.outbox_path().display())).expect("left behind");
    assert!(PRODUCERS.contains(&shm.uid()), "made by a producer");
    assert_eq!((shm.gid(), shm.mode() & 0o777), (GROUP, 0o660), "whatever the umask was");
    let running = agent(&world, &[]);
    running.wait_log("ready:");
    all_sent(count);
    // The agent is up.
    count += enqueue_as_each(&world, "up");
    all_sent(count);
    // The agent dies with everything open; its files lock no producer out, nor the next agent.
    running.kill9();
    count += enqueue_as_each(&world, "dead");
    let running = agent(&world, &[]);
    running.wait_log("ready:");
    all_sent(count);
    assert_eq!(world.sandbox.ledger().totals().arrived, count as u64);

    // The inbox is closed to them, by name and by listing, and so is the list of sources.
    let inbox = world.inbox_path();
    for user in PRODUCERS {
        let (code, out, _) =
            producer(user, "sqlite3", &[inbox.to_str().expect("UTF-8"), "SELECT count(*) FROM inbox"]);
        assert!(code != 0 && out.is_empty(), "user {user} read the inbox: {out}");
        let folder = inbox.parent().expect("a folder").to_str().expect("UTF-8");
        assert_ne!(producer(user, "ls", &[folder]).0, 0);
        let (code, out, error) =
            producer(user, BIN, &["--config", world.config.to_str().expect("UTF-8"), "source", "list"]);
        assert!(code == 77 && out.is_empty(), "{code} {error}");
        // What is theirs to see, they see.
        let (code, out, error) =
            producer(user, BIN, &["--config", world.config.to_str().expect("UTF-8"), "status"]);
        assert!(code == 0, "{out}{error}");
    }
    running.stop();
}

#[test]
fn s25_what_root_makes_in_a_folder_of_the_agents_user_is_that_users() {
    if world().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    chown(dir.path(), Some(AGENT), Some(GROUP)).expect("owned");
    let init = Command::new(BIN).args(["init", "--dir"]).arg(dir.path()).output().expect("init runs");
    assert!(init.status.success(), "{init:?}");
    for (name, bits) in [
        ("bizppurio.password", 0o600),
        ("state", 0o755),
        ("state/outbox", 0o2770),
        ("state/outbox/outbox.db", 0o660),
        ("state/inbox", 0o700),
        ("state/inbox/inbox.db", 0o600),
    ] {
        let metadata = std::fs::metadata(dir.path().join(name)).expect("it is there");
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
            (AGENT, GROUP, bits),
            "{name}"
        );
    }
    let mut run = command(AGENT, GROUP, &[], BIN);
    run.arg("--config").arg(dir.path().join("onceward.toml")).arg("run");
    let running = Agent::spawn(run);
    running.wait_log("ready:");
    running.stop();
}

#[test]
fn s25_a_file_that_a_tool_left_closed_is_named_with_the_command_that_opens_it() {
    let Some(world) = world() else { return };
    let id = world.put_plain("waits");
    // No SQLite makes such a file; a restore by another user does.
    let wal = PathBuf::from(format!("{}-wal", world.outbox_path().display()));
    std::fs::write(&wal, "").expect("left");
    chown(&wal, Some(PRODUCERS[0]), Some(PRODUCERS[0])).expect("owned");
    std::fs::set_permissions(&wal, std::fs::Permissions::from_mode(0o600)).expect("closed");
    let mut refused = agent(&world, &[]);
    assert_eq!(refused.wait_end().code(), Some(77));
    let said = refused.log();
    let advice = format!("chown {AGENT}:{GROUP} {}", wal.display());
    assert!(said.contains("was left by another user") && said.contains(&advice), "{said}");
    // As it says.
    chown(&wal, Some(AGENT), Some(GROUP)).expect("owned");
    std::fs::set_permissions(&wal, std::fs::Permissions::from_mode(0o660)).expect("opened");
    let running = agent(&world, &[]);
    world.wait_inbox(&id, "SENT");
    // The folder without its set-group-id bit is how it begins: `check` says so.
    let folder = world.outbox_path().parent().expect("a folder").to_owned();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o770)).expect("changed");
    let (code, said, _) = world.onceward(&["check", "--offline"]);
    assert!(code == 1 && said.contains("set-group-id bit is missing"), "{said}");
    running.stop();
}

#[test]
fn s25_side_files_that_root_is_just_making_keep_no_agent_from_starting() {
    let Some(world) = world() else { return };
    let id = world.put_plain("waits");
    // Root's SQLite makes a -wal and a -shm and gives them to the owner a moment later; for that moment they are
    // closed to the agent, or (0644) open for reading only, and a connection that meets them so stays read-only.
    for bits in [0o600, 0o644] {
        let made: Vec<PathBuf> = [world.outbox_path(), world.inbox_path()]
            .iter()
            .flat_map(|path| ["-wal", "-shm"].map(|end| PathBuf::from(format!("{}{end}", path.display()))))
            .collect();
        for path in &made {
            std::fs::write(path, "").expect("made");
            chown(path, Some(0), Some(0)).expect("root's");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).expect("closed");
        }
        let running = agent(&world, &[]);
        std::thread::sleep(std::time::Duration::from_millis(200));
        for path in &made {
            chown(path, Some(AGENT), Some(GROUP)).expect("given to the owner");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).expect("opened");
        }
        running.wait_log("ready:");
        world.wait_inbox(&id, "SENT");
        running.stop();
    }
}

#[test]
fn s25_an_applications_file_is_served_only_where_the_agent_locks_the_application_out_of_nothing() {
    let Some(world) = world() else { return };
    let folder = world.dir.path().join("shop");
    std::fs::create_dir(&folder).expect("made");
    for journal in ["wal", "delete"] {
        let made = app(&world, journal, journal);
        std::fs::rename(&made, folder.join(format!("{journal}.db"))).expect("moved");
    }
    let file = |journal: &str| folder.join(format!("{journal}.db"));
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode set");
    };
    for path in [folder.clone(), file("wal"), file("delete")] {
        chown(&path, Some(APPLICATION), Some(APPLICATION)).expect("owned");
    }
    mode(&folder, 0o770);
    let state = |world: &World, name: &str| crate::f_source::state(world, name);
    for journal in ["wal", "delete"] {
        mode(&file(journal), 0o644);
        let (code, out, error) =
            world.onceward(&["source", "add", journal, file(journal).to_str().expect("UTF-8")]);
        assert_eq!(code, 0, "{out}{error}");
    }
    // The agent joined the application's group, but file and folder do not fit yet.
    let running = agent(&world, &[GROUP, APPLICATION]);
    running.wait_log("starts:");
    // Else a death between SQLite's open and its fchmod leaves a journal that the application cannot write.
    let umask = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).expect("reads");
    let umask = umask.lines().find_map(|line| line.strip_prefix("Umask:")).expect("its umask").trim();
    assert_eq!(umask.as_bytes()[umask.len() - 2], b'0', "{umask}");
    let insert = |journal: &str, key: &str| {
        let sql = INSERT.replace("KEY", key);
        let path = file(journal);
        let args = ["-cmd", ".timeout 30000", path.to_str().expect("UTF-8"), sql.as_str()];
        let (code, _, error) =
            text(&as_user(APPLICATION, APPLICATION, &[], "sqlite3", &args).expect("it runs"));
        assert_eq!((code, error.as_str()), (0, ""), "the application writes its own file");
    };
    for journal in ["wal", "delete"] {
        world.wait("refused", |world| state(world, journal) == "NOT_PERMITTED");
        mode(&file(journal), 0o660);
    }
    let reason = |part: &str| {
        world.wait(part, |world| world.onceward(&["source", "list"]).1.contains(part));
    };
    reason("chmod g+s"); // it may write now, but its side files would be closed to the application
    for entry in std::fs::read_dir(&folder).expect("reads") {
        // What root's commands made, SQLite gave to the application; the agent made nothing.
        let entry = entry.expect("an entry");
        assert_eq!(entry.metadata().expect("its owner").uid(), APPLICATION, "{entry:?}");
    }
    mode(&folder, 0o2770);
    for journal in ["wal", "delete"] {
        world.wait("served", |world| state(world, journal) == "OK");
        insert(journal, &format!("{journal}:up"));
    }
    let sent = |count: i64| {
        world.wait("sent", |world| world.count("SELECT count(*) FROM inbox WHERE status = 'SENT'") == count);
    };
    sent(2);
    // The agent dies with the files open: the application goes on, and the next agent, too.
    running.kill9();
    for journal in ["wal", "delete"] {
        insert(journal, &format!("{journal}:dead"));
    }
    let running = agent(&world, &[GROUP, APPLICATION]);
    sent(4);
    // A read-only file is told apart from a missing one.
    mode(&file("delete"), 0o440);
    insert_refused(&world, &file("delete"));
    running.stop();
    let running = agent(&world, &[GROUP, APPLICATION]);
    world.wait("read-only", |world| state(world, "delete") == "NOT_PERMITTED");
    assert_eq!(state(&world, "wal"), "OK");
    running.stop();
}

/// The application itself cannot write either: the test's own premise.
fn insert_refused(world: &World, path: &Path) {
    let sql = INSERT.replace("KEY", "refused");
    let args = ["-cmd", ".timeout 30000", path.to_str().expect("UTF-8"), sql.as_str()];
    let (code, _, error) = text(&as_user(APPLICATION, APPLICATION, &[], "sqlite3", &args).expect("it runs"));
    assert!(code != 0 && error.contains("readonly"), "{code} {error}");
    let id: String = rusqlite::Connection::open(path)
        .and_then(|app| {
            app.query_row("SELECT message_id FROM outbox WHERE dedup_key = 'delete:dead'", [], |row| {
                row.get(0)
            })
        })
        .expect("reads");
    world.wait("marked", |_| status(path, &id) == "PUBLISHED");
}
