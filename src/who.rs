//! Who did something, as `audit` names them: the process's user, or the peer of a local socket.

use std::os::unix::net::UnixStream;

/// `uid N (name)`; the name where `/etc/passwd` has one.
pub fn of_uid(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    match name_of(&users, uid) {
        Some(name) => format!("uid {uid} ({name})"),
        None => format!("uid {uid}"),
    }
}

/// This process's user.
pub fn this_process() -> String {
    of_uid(rustix::process::getuid().as_raw())
}

/// The user at the other end, by the kernel's word.
pub fn peer(stream: &UnixStream) -> String {
    rustix::net::sockopt::socket_peercred(stream)
        .map_or_else(|_| "unknown".to_owned(), |peer| of_uid(peer.uid.as_raw()))
}

/// Whether the user at the other end is this process's own, or root.
pub fn is_ours(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn name_of(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_list_of_users() {
        let users = "root:x:0:0:root:/root:/bin/sh\nhana:x:1000:1000::/home/hana:/bin/sh\nbroken\n";
        assert_eq!(name_of(users, 1000), Some("hana"));
        assert_eq!(name_of(users, 0), Some("root"));
        assert_eq!(name_of(users, 7), None);
    }
}
