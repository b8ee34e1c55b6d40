//! What to do about "permission denied": which group to join, or whose command it is. Reads names, opens no database.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::config::Settings;
use crate::owner::StateDir;

/// One sentence for a file of the state folder that may not be used.
pub fn hint(path: &Path) -> String {
    let user = current_user();
    // The nearest folder that may be looked at tells the group.
    let owner = path.ancestors().find_map(|place| std::fs::metadata(place).ok());
    let Some(owner) = owner else { return format!("user {user} may not use it") };
    let (group, agent) = (name("/etc/group", owner.gid()), name("/etc/passwd", owner.uid()));
    if path.components().any(|part| part.as_os_str() == "inbox") {
        return format!("only the agent's user may: sudo -u {agent} onceward ...");
    }
    format!(
        "user {user} is not in the group {group}: have it added (usermod -aG {group} {user}), or sudo -u {agent} onceward ..."
    )
}

/// Why the vendor's side cannot be seen.
pub fn inbox(settings: &Settings) -> String {
    let path = StateDir::new(&settings.agent.state_dir).inbox();
    format!("{}: {}", path.display(), hint(&path))
}

fn current_user() -> String {
    name("/etc/passwd", rustix::process::geteuid().as_raw())
}

/// The name with this number in the third field; else the number itself.
fn name(list: &str, number: u32) -> String {
    let text = std::fs::read_to_string(list).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| number.to_string())
}
