//! The agent's socket as a test reaches it, and commands run as another user of the machine.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{BIN, World, text};

/// A user that owns nothing here.
const STRANGER: u32 = 4_242;

impl World {
    /// With a socket of its own; `gateway` goes into the destination of that name.
    pub fn listening(gateway: &str) -> Self {
        let world = Self::new();
        let settings = std::fs::read_to_string(&world.config).expect("settings");
        let settings = settings.replace(
            "reference_header = \"X-Reference\"\n",
            &format!("reference_header = \"X-Reference\"\n{gateway}\n"),
        );
        let listen = format!("{settings}\n[listen]\nsocket = {:?}\n", world.socket());
        std::fs::write(&world.config, listen).expect("settings are written");
        world
    }
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s.sock")
    }
    /// Status and body.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = UnixStream::connect(self.socket()).expect("it listens");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }
    #[track_caller]
    pub fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// Lets a stranger do what a member of the group may: the outbox, not the inbox. Before the agent starts.
    pub fn open_to_the_group(&self) {
        let mode = |path: PathBuf, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
        };
        mode(self.dir.path().to_owned(), 0o755);
        mode(self.config.clone(), 0o644);
        mode(self.dir.path().join("state"), 0o755);
        mode(self.dir.path().join("state/outbox"), 0o777);
        for file in ["outbox.db", "outbox.db-wal", "outbox.db-shm"] {
            let path = self.dir.path().join("state/outbox").join(file);
            if path.exists() {
                mode(path, 0o666);
            }
        }
    }
    pub fn open_socket(&self) {
        std::fs::set_permissions(self.socket(), std::fs::Permissions::from_mode(0o666)).expect("mode");
    }
    /// Runs a command as somebody who may not read the inbox. Needs root.
    pub fn as_stranger(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(BIN)
            .arg("--config")
            .arg(&self.config)
            .args(args)
            .uid(STRANGER)
            .gid(STRANGER)
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        text(&output)
    }
}

/// Whether this test may run commands as somebody else.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("left out: needs root to run a command as another user");
    }
    root
}
