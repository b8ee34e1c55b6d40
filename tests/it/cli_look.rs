//! The commands that look: what they list, what they leave out and say so, and what they never do (lock, write, leak).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::support::{BIN, World, text};

/// A world with one message SENT, one ERROR, one FAILED.
fn three_fates() -> World {
    let world = World::new();
    let agent = world.agent();
    for (key, fault, fate) in
        [("a", None, "SENT"), ("b", Some("status=500"), "ERROR"), ("c", Some("status=400"), "FAILED")]
    {
        world.faults(&fault.into_iter().collect::<Vec<_>>());
        let id = world.put_plain(key);
        world.wait_inbox(&id, fate);
        world.wait_outbox(&id, "PUBLISHED");
    }
    agent.stop();
    world
}

fn keys(world: &World, args: &[&str]) -> (String, String) {
    let (code, out, error) = world.onceward(&[&["queue", "--json"], args].concat());
    assert_eq!(code, 0, "{args:?}: {error}");
    let key = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["dedup_key"].as_str().expect("a key").to_owned()
    };
    (out.lines().map(key).collect::<Vec<_>>().join(" "), error)
}

#[test]
fn queue_knows_the_words_of_people_and_says_what_it_leaves_out() {
    let world = three_fates();
    let held = world.put_plain("h");
    world.put_plain("x");
    assert_eq!(world.onceward(&["hold", "h"]).0, 0);
    assert_eq!(world.onceward(&["cancel", "x"]).0, 0);
    for (args, expected) in [
        (&["--state", "ERROR"][..], "b"),
        (&["--state", "failed"], "c"),
        (&["--state", "SENT,ERROR"], "b a"),
        (&["--state", "SENT", "--state", "HELD"], "h a"),
        (&["--state", "PUBLISHED,ERROR"], "c b a"),
        (&["--state", "CANCELLED"], "x"),
        (&["--state", "DELIVERED"], ""),
        (&["--trouble"], "c b"),
        (&["--key", "a"], "a"),
        (&["--to", "010-0000-0001"], "x h c b a"),
        (&["--state", "ALL", "--kind", "TE*"], "x h c b a"),
        (&["--state", "ALL", "--dest", "biz"], ""),
    ] {
        assert_eq!(keys(&world, args).0, expected, "{args:?}");
    }
    let (found, error) = keys(&world, &[]);
    assert_eq!(found, "h");
    assert!(error.contains("4 finished not shown (--state ALL"), "{error}");
    let (found, error) = keys(&world, &["--state", "ALL", "--limit", "2"]);
    assert_eq!(found, "x h");
    assert!(error.contains("2 of 5 shown (--limit 0 for all)"), "{error}");
    assert_eq!(keys(&world, &["--state", "ALL", "--limit", "0"]), ("x h c b a".into(), String::new()));
    let (_, table, _) = world.onceward(&["queue", "--state", "ALL"]);
    assert!(table.starts_with("ID ") && table.contains("CANCELLED") && table.contains(" KEY "), "{table}");
    assert!(world.onceward(&["show", &held, "--json"]).1.contains("\"state\":\"HELD\""));
}

#[test]
fn more_than_a_page_is_listed_once_and_in_order() {
    let world = World::new();
    world.put_many("k", 2500);
    let (found, error) = keys(&world, &["--limit", "0"]);
    let expected: Vec<String> = (0..2500).map(|i| format!("k:{i}")).collect();
    assert_eq!(found, expected.join(" "));
    assert_eq!(error, "");
}

#[test]
fn check_and_status_name_what_waits_for_a_person() {
    let world = three_fates();
    let outbox = world.outbox();
    let row = "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES ('q', 'K', '119', ?1)";
    outbox.execute(row, ["{}"]).expect("taken");
    outbox.execute(row, ["{\"x\":1}"]).expect("kept apart");
    let (code, said, _) = world.onceward(&["check", "--offline"]);
    assert_eq!(code, 0, "{said}");
    for part in [
        "warn  unknown                1 may or may not",
        "warn  quarantine             1 (",
        "ok    parked                 none",
    ] {
        assert!(said.contains(part), "{part} in\n{said}");
    }
    let (code, said, _) = world.onceward(&["check", "--offline", "--strict", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((code, json["fine"].as_bool()), (1, Some(false)));
    let (code, said, _) = world.onceward(&["status", "--exit-code"]);
    assert_eq!(code, 1, "not running");
    assert!(said.contains("gateway      OPEN") && said.contains("+09:00"), "{said}");
    let agent = world.agent();
    let (code, said, _) = world.onceward(&["status", "--exit-code"]);
    assert_eq!(code, 0);
    assert!(
        said.lines().next().is_some_and(|line| line.contains(", since 2") && line.ends_with("+09:00")),
        "{said}"
    );
    agent.stop();
}

#[test]
fn status_says_whether_a_destination_answers_now() {
    let world = World::new();
    world.sandbox.refuse(true);
    let agent = world.agent();
    let id = world.put_plain("k");
    world.wait("closed", |world| world.alerts("DESTINATION_CLOSED") > 0);
    let said = world.onceward(&["status"]).1;
    assert!(said.contains("gateway      CLOSED"), "{said}");
    world.sandbox.refuse(false);
    world.wait_inbox(&id, "SENT");
    let said = world.onceward(&["status"]).1;
    assert!(said.contains("gateway      OPEN"), "{said}");
    agent.stop();
}

#[test]
fn sql_reads_both_files_writes_nothing_and_holds_no_lock_at_the_prompt() {
    let world = three_fates();
    let (code, said, error) =
        world.onceward(&["sql", "SELECT key, state, fate, recipient FROM messages ORDER BY key"]);
    assert_eq!(code, 0, "{error}");
    let cells: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[1], ["a", "PUBLISHED", "SENT", "010****01"]);
    assert_eq!(cells[2][2], "ERROR");
    let (_, said, _) = world.onceward(&[
        "sql",
        "--json",
        "SELECT count(*) AS n FROM calls; SELECT count(*) AS n FROM trouble",
    ]);
    assert_eq!(said, "{\"n\":3}\n{\"n\":2}\n");
    for (sql, code) in [
        ("DELETE FROM outbox", 64),
        ("WITH x AS (SELECT 1) DELETE FROM outbox", 64),
        ("WITH x AS (SELECT 1) INSERT INTO vendor.tally VALUES ('d', 'c', 'w', 1)", 64),
        ("PRAGMA journal_mode = DELETE", 64),
        ("ATTACH '/tmp/x' AS x", 64),
        ("BEGIN", 64),
        ("SELECT nothing", 65),
    ] {
        assert_eq!(world.onceward(&["sql", sql]).0, code, "{sql}");
    }
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 3);

    let mut child = Command::new(BIN)
        .arg("--config")
        .arg(&world.config)
        .args(["sql", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut input = child.stdin.take().expect("piped");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    input.write_all(b"SELECT 'x;'\n AS a FROM messages LIMIT 1;\n").expect("written");
    output.read_line(&mut line).expect("answers");
    assert_eq!(line, "{\"a\":\"x;\"}\n");
    // It waits for the next statement: nothing keeps a writer or a checkpoint away.
    for connection in [world.outbox(), world.inbox()] {
        connection.busy_timeout(std::time::Duration::ZERO).expect("set");
        connection.execute_batch("BEGIN EXCLUSIVE; COMMIT").expect("no lock is held");
        let busy: i64 =
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).expect("runs");
        assert_eq!(busy, 0);
    }
    input.write_all(b"SELECT 2 AS a").expect("written");
    drop(input);
    line.clear();
    output.read_line(&mut line).expect("answers");
    assert_eq!(line, "{\"a\":2}\n");
    assert!(child.wait().expect("ends").success());
}

#[test]
fn shape_counts_waiting_messages_by_destination_and_age() {
    let world = World::new();
    let connection = world.outbox();
    let now_ms: i64 = connection
        .query_row("SELECT CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)", [], |row| {
            row.get(0)
        })
        .expect("reads");
    for (key, destination, minutes) in
        [("a", "gateway", 0), ("b", "gateway", 7), ("c", "gateway", 8), ("d", "biz", 2000), ("e", "biz", 0)]
    {
        connection
            .execute("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload, created_at_ms) VALUES (?1, 'K', ?2, '010', '{}', ?3)",
                rusqlite::params![key, destination, now_ms - minutes * 60_000])
            .expect("taken");
    }
    assert_eq!(world.onceward(&["hold", "e"]).0, 0);
    let (code, said, _) = world.onceward(&["shape"]);
    assert_eq!(code, 0);
    let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        ["DESTINATION", "T", "5", "10", "20", "40", "80", "160", "320", "640", "1280", "1280+"]
    );
    assert_eq!(rows[1], ["TOTAL", "4", "1", "2", "0", "0", "0", "0", "0", "0", "0", "1"]);
    assert_eq!(rows[2], ["biz", "1", "0", "0", "0", "0", "0", "0", "0", "0", "0", "1"]);
    assert_eq!(rows[3], ["gateway", "3", "1", "2", "0", "0", "0", "0", "0", "0", "0", "0"]);
    let (_, said, _) = world.onceward(&["shape", "--state", "HELD", "--json"]);
    assert!(said.starts_with("{") && said.contains("\"total\":1"), "{said}");
}

#[test]
fn nothing_from_a_row_steers_the_terminal_or_fakes_a_line() {
    let world = World::new();
    let kind = "ki\u{1b}[2Jnd\nFAKE ROW\u{9b}1m";
    world
        .outbox()
        .execute("INSERT INTO outbox (dedup_key, kind, destination, recipient, payload) VALUES (?1, ?1, ?2, '01012345678', '\u{1b}]0;x')", [kind, "nowhere"])
        .expect("taken");
    let agent = world.agent();
    world.wait("parked", |world| world.count("SELECT count(*) FROM outbox WHERE status = 'PARKED'") == 1);
    let id: String =
        world.outbox().query_row("SELECT message_id FROM outbox", [], |row| row.get(0)).expect("reads");
    let steers = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    for args in [
        &["queue"][..],
        &["queue", "--json"],
        &["show", &id],
        &["show", &id, "--reveal"],
        &["show", &id, "--reveal", "--json"],
        &["status"],
        &["status", "--json"],
        &["shape", "--state", "ALL"],
        &["sql", "SELECT * FROM outbox"],
        &["hold", kind],
        &["check", "--offline"],
    ] {
        let (_, out, error) = world.onceward(args);
        assert!(!steers(&out) && !steers(&error), "{args:?}: {out:?} {error:?}");
        assert!(
            out.lines().chain(error.lines()).all(|line| !line.starts_with("FAKE ROW")),
            "{args:?}: {out}"
        );
    }
    world.wait("the log says it", |_| agent.log().contains("PARKED"));
    assert!(!steers(&agent.log()), "{:?}", agent.log());
    agent.stop();
}

#[test]
fn views_mask_as_the_commands_do() {
    let world = World::new();
    let outbox = world.outbox();
    for (key, recipient, payload) in
        [("a", "abcde", "{}"), ("b", "01012345678", "{}"), ("b", "01012345678", "{\"secret\":1}")]
    {
        outbox
            .execute(
                "INSERT INTO outbox (dedup_key, kind, recipient, payload) VALUES (?1, 'K', ?2, ?3)",
                [key, recipient, payload],
            )
            .expect("taken or kept apart");
    }
    for view in ["v_waiting", "v_message", "v_quarantine", "v_trouble"] {
        let output = Command::new("sqlite3")
            .arg("-readonly")
            .arg(world.outbox_path())
            .arg(format!("SELECT * FROM {view}"))
            .output()
            .expect("the distribution's shell runs");
        let (code, said, error) = text(&output);
        assert_eq!(code, 0, "{view}: {error}");
        assert!(!said.is_empty(), "{view}");
        for part in ["abcde", "12345", "secret"] {
            assert!(!said.contains(part), "{view}: {said}");
        }
    }
}

#[test]
fn a_mistake_in_the_settings_does_not_make_the_operator_blind() {
    let world = World::new();
    world.put_plain("k");
    let good = std::fs::read_to_string(&world.config).expect("reads");
    for broken in [good.replace("threads = 4", "thrads = 4"), format!("{good}\n[[[\n")] {
        std::fs::write(&world.config, broken).expect("written");
        for args in [
            &["status"][..],
            &["queue"],
            &["show", "k"],
            &["hold", "k"],
            &["release", "k"],
            &["sql", "SELECT 1"],
            &["verify"],
            &["clock"],
            &["dest"],
            &["source", "list"],
            &["suppress", "add", "01099998888"],
            &["suppress", "list"],
            &["drain", "--end"],
        ] {
            let (code, _, error) = world.onceward(args);
            assert_eq!(code, 0, "{args:?}: {error}");
            assert!(error.contains("only the state folder and the zone are needed"), "{args:?}: {error}");
        }
        assert_eq!(world.onceward(&["run"]).0, 78);
    }
    std::fs::write(&world.config, good.replace("state_dir = ", "state_dri = ")).expect("written");
    assert_eq!(world.onceward(&["status"]).0, 78, "the default folder is not the one that was meant");
}

/// The brakes of a running agent do not hang on the file that it read at its start.
#[test]
fn a_mistake_in_the_settings_does_not_take_the_brakes_away() {
    let world = World::listening("");
    world.faults(&["status=500,first=1"]);
    let open = world.put_plain("open");
    let agent = world.agent();
    world.wait_inbox(&open, "ERROR");
    let good = std::fs::read_to_string(&world.config).expect("reads");
    for (number, broken) in [
        good.replace("[agent]", "[agent]\nbogus = 1"),
        good.replace("threads = 4", "threads ="),
        good.clone(),
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(&world.config, broken).expect("written");
        let copy = world.dir.path().join(format!("copy-{number}"));
        let copy = copy.to_str().expect("UTF-8");
        for args in [
            &["pause", "gateway", "--reason", "stop"][..],
            &["pause", "--reason", "stop all"],
            &["resume"],
            &["settle", "open", "--sent", "--note", "they have it"],
            &["dest", "probe", "gateway"],
            &["drain", "--timeout", "10s"],
            &["drain", "--end"],
            &["backup", copy],
            &["verify"],
        ] {
            let (code, said, error) = world.onceward(args);
            assert_eq!(code, 0, "{number} {args:?}: {said}{error}");
        }
    }
    agent.stop();
    // With the agent down the file alone says what "all" is: a mistake that has nothing to do with it is no obstacle.
    std::fs::write(&world.config, good.replace("[agent]", "[agent]\nbogus = 1")).expect("written");
    let (code, said, error) = world.onceward(&["pause", "--reason", "stop all"]);
    assert_eq!((code, said.as_str()), (0, "gateway paused\nbiz paused\n"), "{error}");
    std::fs::write(&world.config, good.replace("[[destination]]", "[[destinaton]]")).expect("written");
    assert_eq!(world.onceward(&["pause", "--reason", "stop all"]).0, 78, "half of them is not all");
    for args in [&["enqueue", "-"][..], &["purge", "--dry-run"], &["alert", "test"]] {
        assert_eq!(world.onceward(args).0, 78, "{args:?} goes by what stands there");
    }
}

/// Goal: another user is told with 77 which group to join. Root becomes nobody; others lose their own permissions.
#[test]
fn permission_denied_is_77_and_names_the_way() {
    let world = World::new();
    world.put_plain("k");
    let closed = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    let root = rustix::process::geteuid().is_root();
    let program = world.dir.path().join("onceward");
    if root {
        std::fs::write(&program, std::fs::read(BIN).expect("read")).expect("copied");
        closed(&program, 0o755);
        closed(world.dir.path(), 0o755);
    }
    let outbox_dir = world.dir.path().join("state/outbox");
    closed(&outbox_dir, if root { 0o770 } else { 0o000 });
    for args in [&["status"][..], &["queue"], &["show", "k"], &["hold", "k"]] {
        let mut command = Command::new(if root { &program } else { std::path::Path::new(BIN) });
        if root {
            command.uid(65_534).gid(65_534).current_dir("/");
        }
        let (code, _, error) =
            text(&command.arg("--config").arg(&world.config).args(args).output().expect("runs"));
        assert_eq!(code, 77, "{args:?}: {error}");
        assert!(error.contains("permission denied; "), "{args:?}: {error}");
    }
    // In the group, but not the agent's user: the outbox is there, the vendor's side and the agent are not seen.
    closed(&outbox_dir, 0o777);
    closed(&world.outbox_path(), 0o666);
    let agent = world.agent();
    for file in std::fs::read_dir(&outbox_dir).expect("reads").flatten() {
        closed(&file.path(), 0o666);
    }
    if !root {
        closed(&world.dir.path().join("state/inbox"), 0o000);
    }
    let run = |args: &[&str]| {
        let mut command = Command::new(if root { &program } else { std::path::Path::new(BIN) });
        if root {
            command.uid(65_534).gid(65_534).current_dir("/");
        }
        text(&command.arg("--config").arg(&world.config).args(args).output().expect("runs"))
    };
    let (code, said, error) = run(&["status"]);
    assert_eq!(code, 0, "{error}");
    assert!(said.contains("agent    cannot be seen by this user") && !said.contains("NOT RUNNING"), "{said}");
    let (code, _, error) = run(&["queue", "--state", "ERROR"]);
    assert!(code == 77 && error.contains("only the agent's user may"), "{error}");
    assert_eq!(run(&["show", "k"]).0, 0);
    assert_eq!(run(&["sql", "SELECT count(*) FROM messages, deeds, quarantined"]).0, 0);
    closed(&world.dir.path().join("state/inbox"), 0o700);
    agent.stop();
}

#[test]
fn times_that_are_seconds_are_refused_and_people_s_times_are_read() {
    let world = World::new();
    let put = |key: &str, more: &[&str]| {
        let args = [
            "enqueue",
            "--key",
            key,
            "--kind",
            "K",
            "--to",
            "01000000001",
            "--payload",
            "{}",
            "--dest",
            "gateway",
        ];
        world.onceward(&[&args[..], more].concat())
    };
    let in_hours = |hours: i64| (onceward::clock::wall_ms() + hours * 3_600_000).to_string();
    for (more, code, words) in [
        (&["--not-before-ms", "1796111111"][..], 65, "not_before_ms"),
        (&["--expires-at-ms", "1796111111"], 65, "expires_at_ms"),
        (&["--not-before-ms", &in_hours(2), "--expires-at-ms", &in_hours(1)], 65, "not after the due time"),
        (&["--at", "noon"], 64, "--at"),
        (&["--in", "10x"], 64, "--in"),
        (&["--at", "18:00", "--in", "10m"], 64, "cannot be used with"),
    ] {
        let (found, _, error) = put("bad", more);
        assert!(found == code && error.contains(words), "{more:?}: {found} {error}");
    }
    assert_eq!(world.count("SELECT count(*) FROM outbox"), 0);
    let (code, _, error) = put("in", &["--in", "2h", "--expires-in", "30m"]);
    assert_eq!(code, 0, "{error}");
    assert_eq!(put("at", &["--at", "2027-06-01 18:00"]).0, 0);
    let ms = |sql: &str| world.count(&format!("SELECT {sql} FROM outbox"));
    assert_eq!(ms("sum((expires_at_ms - not_before_ms) * (dedup_key = 'in'))"), 30 * 60_000);
    assert!(
        (7_190_000..7_210_000).contains(&ms("sum((not_before_ms - created_at_ms) * (dedup_key = 'in'))"))
    );
    // 18:00 in Seoul.
    assert_eq!(ms("sum((not_before_ms / 1000 % 86400) * (dedup_key = 'at'))"), 9 * 3600);
}

#[test]
fn init_makes_the_databases_of_named_settings_and_demo_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = dir.path().join("own.toml");
    let world = World::new();
    let moved = std::fs::read_to_string(&world.config).expect("reads").replace(
        &world.dir.path().join("state").display().to_string(),
        &dir.path().join("own").display().to_string(),
    );
    std::fs::write(&config, moved).expect("written");
    let run = |args: &[&str]| text(&Command::new(BIN).args(args).output().expect("runs"));
    let config = config.to_str().expect("UTF-8");
    let (code, _, error) = run(&["--config", config, "status"]);
    assert!(code == 66 && error.contains("onceward init --config FILE"), "{error}");
    assert_eq!(run(&["init", "--config", config]).0, 0);
    assert_eq!(run(&["--config", config, "status"]).0, 0);
    assert!(dir.path().join("own/outbox/outbox.db").exists());
    let missing = dir.path().join("none.toml");
    assert_eq!(run(&["init", "--config", missing.to_str().expect("UTF-8")]).0, 66);
    assert!(!missing.exists());

    let demo = dir.path().join("demo");
    let demo_text = demo.to_str().expect("UTF-8");
    let (code, _, error) = run(&["demo", "--dir", demo_text, "--messages", "/nonexistent"]);
    assert!(code == 66 && error.contains("/nonexistent"), "{error}");
    assert!(!demo.exists());
    let (code, said, error) = run(&["demo", "--dir", demo_text, "--messages", "/dev/null"]);
    assert_eq!(code, 0, "{said}{error}");
}

#[test]
fn every_command_has_a_manual_page() {
    let run = |args: &[&str]| text(&Command::new(BIN).args(args).output().expect("runs"));
    let (_, page, _) = run(&["man"]);
    for section in ["FILES", "ENVIRONMENT", "EXIT STATUS", "STATES"] {
        assert!(
            page.contains(&format!(".SH {section}")) || page.contains(&format!(".SH \"{section}\"")),
            "{section}"
        );
    }
    let commands: Vec<&str> = page
        .lines()
        .filter_map(|line| line.trim().strip_prefix("onceward\\-")?.strip_suffix("(1)"))
        .collect();
    assert!(commands.len() > 12, "{commands:?}");
    for command in commands {
        let command = command.replace('\\', "");
        let (code, page, error) = run(&["man", &command]);
        assert!(code == 0 && page.contains(".SH"), "{command}: {error}");
    }
    assert_eq!(run(&["man", "nothing"]).0, 66);
    assert!(!run(&["man", "demo"]).1.contains("Settings file"));
    assert!(run(&["man", "hold"]).1.contains("Settings file"));
    assert!(run(&["man", "hold"]).1.contains("<ID\\-or\\-KEY>"));
}
