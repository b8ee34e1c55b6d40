//! Settings as written -> settings as meant: reads every section, then checks sections against each other.
//!
//! Reports every problem at once with its line. Defaults live here and in the element files, nowhere else.
//! Touches the settings file and, through a [`SecretSource`], the places of secrets; nothing else.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::clock::{time_of_day, zone};
use super::destination::{self, ReadDestination};
use super::duration::{duration, shown};
use super::element::{list, path, quiet_text, unless_empty, whole, word};
use super::listen::listen;
use super::nearest::{distance, suggestion};
use super::problems::{Problems, SettingsError};
use super::route::routes;
use super::secret::{FormOnly, SecretReader, SecretSource, SystemSecrets};
use super::section::{Given, Section, came, printable, tables};
use super::size::size;
use super::{
    AgentSettings, AlertSettings, RelaySettings, Repeat, RetentionSettings, RetrySettings, Settings,
    WindowSettings, url,
};
use crate::limits::FIELD_CHARS_MAX;

const STATE_DIR: &str = "/var/lib/onceward";
const TIMEZONE: &str = "Asia/Seoul";
const PRODUCTION: &str = "production";
const THREADS: usize = 5;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const QUICK: Repeat = Repeat { times: 2, every: SECOND };
const LATER: Repeat = Repeat { times: 3, every: Duration::from_secs(600) };
/// Room for weeks of a branch's messages, and for outcomes when producers fill the rest.
const DISK_FREE: u64 = 256 << 20;
const HANDOFF_MINUTES: [u32; 6] = [1, 2, 4, 8, 16, 30];

/// Largest settings file, bytes: thousands of times a real one, and no accident fills the memory.
const SETTINGS_BYTES_MAX: u64 = 1024 * 1024;

impl Settings {
    /// Reads the settings file and every secret that it refers to.
    ///
    /// # Errors
    /// All problems at once; see [`SettingsError::exit_code`].
    pub fn load(path: &Path) -> Result<Settings, SettingsError> {
        load(path, &SystemSecrets::from_environment())
    }

    /// Reads the settings file; secret references are checked for form only and every [`super::Secret`] is empty.
    /// For commands that talk to no vendor and may not be permitted to read secrets.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn load_without_secrets(path: &Path) -> Result<Settings, SettingsError> {
        load(path, &FormOnly)
    }

    /// As [`Settings::load_without_secrets`], but a mistake in anything other than `[agent].state_dir` and
    /// `[agent].timezone` is handed back beside the settings, in which defaults stand for what was wrong.
    ///
    /// # Errors
    /// The file cannot be read, or nobody can say from it where the state folder is.
    pub fn load_despite_mistakes(path: &Path) -> Result<(Settings, Option<SettingsError>), SettingsError> {
        let text = read_text(path)?;
        let error = match Settings::from_text(&text, path, &FormOnly) {
            Ok(settings) => return Ok((settings, None)),
            Err(error) => error,
        };
        let vital = |place: &str| matches!(place, "[agent]" | "[agent].state_dir" | "[agent].timezone");
        if error.problems().iter().any(|problem| vital(&problem.place)) {
            return Err(error);
        }
        // Not even TOML: the two lines as they usually stand.
        let whole = DeTable::parse(&text).is_ok();
        let rest = if whole { text } else { vital_lines(&text) };
        let Ok(document) = DeTable::parse(&rest) else { return Err(error) };
        // Not named: perhaps by a slip of the pen, and the default would be another folder than the one meant.
        let agent = document.get_ref().get("agent").and_then(|agent| agent.get_ref().as_table());
        if agent.is_none_or(|agent| !agent.contains_key("state_dir")) {
            return Err(error);
        }
        let mut problems = Problems::over(&rest);
        let reader = SecretReader { source: &FormOnly, beside: path.parent().unwrap_or(Path::new("")) };
        let settings = settings(document.get_ref(), &reader, &mut problems);
        if problems.has(vital) {
            return Err(error);
        }
        Ok((settings, Some(error)))
    }

    /// Reads settings from text. `origin` is the file it came from: shown in problems, and relative paths are
    /// beside it.
    ///
    /// # Errors
    /// All problems at once, in line order; the exit code is 78.
    pub fn from_text(
        text: &str,
        origin: &Path,
        secrets: &dyn SecretSource,
    ) -> Result<Settings, SettingsError> {
        let mut problems = Problems::over(text);
        let document = DeTable::parse(text).map_err(|error| {
            let what = format!("is not TOML: {}", error.message().replace('\n', ", "));
            SettingsError::one(origin, text, error.span().unwrap_or(0..0), what)
        })?;
        let reader = SecretReader { source: secrets, beside: origin.parent().unwrap_or(Path::new("")) };
        let settings = settings(document.get_ref(), &reader, &mut problems);
        problems.or(origin).map(|()| settings)
    }
}

fn load(path: &Path, secrets: &dyn SecretSource) -> Result<Settings, SettingsError> {
    Settings::from_text(&read_text(path)?, path, secrets)
}

/// The lines of a broken file that name the state folder, the zone, and the socket on which the agent is asked.
fn vital_lines(text: &str) -> String {
    let named = |names: &[&str]| {
        let vital = |line: &&str| {
            let key = line.split('=').next().unwrap_or_default().trim();
            line.contains('=') && names.contains(&key)
        };
        text.lines().filter(vital).collect::<Vec<_>>().join("\n")
    };
    format!("[agent]\n{}\n[listen]\n{}\n", named(&["state_dir", "timezone"]), named(&["socket"]))
}

fn read_text(path: &Path) -> Result<String, SettingsError> {
    let bytes = read_file(path).map_err(|error| SettingsError::unreadable(path, error))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid =
            String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        SettingsError::one(
            path,
            &valid,
            valid.len()..valid.len(),
            "is not UTF-8 text; save the file as UTF-8".to_owned(),
        )
    })
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(SETTINGS_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > SETTINGS_BYTES_MAX {
        true => Err(std::io::Error::other("larger than 1 MiB, which no settings file is")),
        false => Ok(bytes),
    }
}

fn settings(document: &DeTable<'_>, secrets: &SecretReader<'_>, problems: &mut Problems) -> Settings {
    let mut root = Section::new("", 0..0, document);
    let agent = agent(Section::within(&mut root, "agent", "[agent]", problems), secrets.beside, problems);
    let (relay, lease) = relay(Section::within(&mut root, "relay", "[relay]", problems), problems);
    let threads = worker(Section::within(&mut root, "worker", "[worker]", problems), problems);
    let retry = retry(Section::within(&mut root, "retry", "[retry]", problems), problems);
    let destinations = destinations(&mut root, threads, secrets, problems);
    let routes = routes(&mut root, &destinations, problems);
    let mut class = Section::within(&mut root, "class", "[class]", problems);
    let advertising =
        window(Section::within(&mut class, "ADVERTISING", "[class.ADVERTISING]", problems), problems);
    class.finish(problems);
    let listen = listen(Section::within(&mut root, "listen", "[listen]", problems), secrets, problems);
    let (alert, stale_sending) =
        alert(Section::within(&mut root, "alert", "[alert]", problems), secrets, problems);
    let retention = retention(Section::within(&mut root, "retention", "[retention]", problems), problems);
    unknown_sections(document, problems);

    longer_than_calls(&lease, "[relay].lease", "a call could outlive its claim", &destinations, problems);
    let reason = "a call that still runs would be taken for a dead one";
    longer_than_calls(&stale_sending, "[alert].stale_sending", reason, &destinations, problems);

    let destinations = destinations.into_iter().filter_map(|read| read.settings).collect();
    Settings { agent, relay, retry, destinations, routes, advertising, listen, alert, retention }
}

/// Checks that a duration is longer than the timeout of every destination.
fn longer_than_calls(
    given: &Given<Duration>,
    place: &str,
    reason: &str,
    destinations: &[ReadDestination],
    problems: &mut Problems,
) {
    let longest = destinations.iter().filter(|read| read.timeout.sound).max_by_key(|read| read.timeout.value);
    if let Some(longest) = longest
        && given.sound
        && given.value <= longest.timeout.value
    {
        let what = format!(
            "is {}, expected longer than the timeout of every destination ({} for {}): {reason}",
            shown(given.value),
            shown(longest.timeout.value),
            printable(&longest.name.value),
        );
        // When the file leaves this one to its default, the timeout is the line to look at.
        let at = if given.at == (0..0) { &longest.timeout.at } else { &given.at };
        problems.add(at, place, what);
    }
}

/// Top-level words that are no section.
fn unknown_sections(document: &DeTable<'_>, problems: &mut Problems) {
    const SECTIONS: [&str; 10] = [
        "agent",
        "relay",
        "worker",
        "retry",
        "destination",
        "route",
        "class",
        "listen",
        "alert",
        "retention",
    ];
    for (key, value) in document.iter() {
        let word: &str = key.get_ref();
        if SECTIONS.contains(&word) {
            continue;
        }
        let near = suggestion(word, SECTIONS);
        let (place, what) = match value.get_ref() {
            DeValue::Table(_) => (format!("[{}]", printable(word)), "unknown section"),
            DeValue::Array(entries) if entries.iter().any(|entry| entry.get_ref().is_table()) => {
                (format!("[[{}]]", printable(word)), "unknown section")
            }
            _ => (printable(word), "stands outside of any section"),
        };
        let what = match near.is_empty() {
            true => format!("{what}, expected one of {}", SECTIONS.join(", ")),
            false => format!("{what}{near}"),
        };
        problems.add(&key.span(), place, what);
    }
}

fn agent(mut section: Section<'_, '_>, beside: &Path, problems: &mut Problems) -> AgentSettings {
    let state_dir = section.get(problems, "state_dir", PathBuf::from(STATE_DIR), |value| path(value, beside));
    let environment = section.get(problems, "environment", PRODUCTION.to_owned(), environment);
    let allowed_recipients = section.get(problems, "allowed_recipients", Vec::new(), |value| {
        list(value, "a list of recipients in quotes", |entry| {
            // A recipient is a person's number: not echoed.
            let given = quiet_text(entry, "a recipient in quotes")?;
            match !given.trim().is_empty() && given.chars().count() <= FIELD_CHARS_MAX {
                true => Ok(given.to_owned()),
                false => {
                    Err(format!("is empty or longer than {FIELD_CHARS_MAX} characters, expected a recipient"))
                }
            }
        })
    });
    let timezone = section.get(problems, "timezone", None, |value| zone(value).map(Some));
    let timezone = timezone.value.unwrap_or_else(|| match jiff::tz::TimeZone::get(TIMEZONE) {
        Ok(zone) => zone,
        Err(_) => {
            let place = section.place("timezone");
            problems.add(
                &section.at(),
                place,
                format!("{TIMEZONE} (the default) is not known here: install the tzdata package"),
            );
            jiff::tz::TimeZone::UTC
        }
    });
    section.finish(problems);
    AgentSettings {
        state_dir: state_dir.value,
        environment: environment.value,
        allowed_recipients: allowed_recipients.value,
        timezone,
    }
}

/// Any word, but none that is meant to be `production` and is not: that would silently send nothing.
fn environment(value: &DeValue<'_>) -> Result<String, String> {
    let expected = "\"production\", or another name of 1 to 40 letters, digits, _ and -, where only allowed_recipients are sent to";
    let given = word(value, expected, 40, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-')?;
    let lower = given.to_ascii_lowercase();
    match given != PRODUCTION
        && (distance(&lower, PRODUCTION) <= 2 || ["prod", "live"].contains(&lower.as_str()))
    {
        true => Err(format!("is {}, expected {expected} (did you mean {PRODUCTION}?)", came(value))),
        false => Ok(given),
    }
}

fn relay(mut section: Section<'_, '_>, problems: &mut Problems) -> (RelaySettings, Given<Duration>) {
    let batch = section.get(problems, "batch", 50, |value| whole(value, 1, 1_000));
    let lease = section.get(problems, "lease", 15 * MINUTE, |value| duration(value, 10 * SECOND, DAY));
    let poll = section
        .get(problems, "poll", 2 * SECOND, |value| duration(value, Duration::from_millis(100), MINUTE));
    let channel =
        section.get(problems, "channel", 1_024, |value| whole(value, 1u32, 65_536).map(|room| room as usize));
    section.finish(problems);
    let relay =
        RelaySettings { batch: batch.value, lease: lease.value, poll: poll.value, channel: channel.value };
    (relay, lease)
}

fn worker(mut section: Section<'_, '_>, problems: &mut Problems) -> usize {
    let threads = section.get(problems, "threads", THREADS, threads);
    section.finish(problems);
    threads.value
}

/// Workers of one destination.
pub(super) fn threads(value: &DeValue<'_>) -> Result<usize, String> {
    whole(value, 1u32, 256).map(|threads| threads as usize)
}

fn retry(mut section: Section<'_, '_>, problems: &mut Problems) -> RetrySettings {
    let quick = repeat(&mut section, "quick", QUICK, problems);
    let later = repeat(&mut section, "later", LATER, problems);
    let handoff_by_default = HANDOFF_MINUTES.map(|minutes| minutes * MINUTE).to_vec();
    let handoff = section.get(problems, "handoff", handoff_by_default, |value| {
        let pauses = list(value, "a list of pauses like [\"1m\", \"2m\", \"4m\"]", |entry| {
            duration(entry, SECOND, DAY)
        })?;
        match pauses.len() {
            1..=64 => Ok(pauses),
            entries => {
                Err(format!("has {entries} entries, expected 1 to 64 pauses like [\"1m\", \"2m\", \"4m\"]"))
            }
        }
    });
    let alert_at_attempt = section.get(problems, "alert_at_attempt", 5, |value| whole(value, 1, 1_000));
    section.finish(problems);
    RetrySettings { quick, later, handoff: handoff.value, alert_at_attempt: alert_at_attempt.value }
}

/// `{ times = 2, every = "1s" }`; a part that is missing has its default.
fn repeat(
    parent: &mut Section<'_, '_>,
    key: &'static str,
    by_default: Repeat,
    problems: &mut Problems,
) -> Repeat {
    let name = parent.place(key);
    let mut section = Section::within(parent, key, &name, problems);
    let times = section.get(problems, "times", by_default.times, |value| whole(value, 0, 1_000));
    let every =
        section.get(problems, "every", by_default.every, |value| duration(value, Duration::ZERO, 7 * DAY));
    section.finish(problems);
    Repeat { times: times.value, every: every.value }
}

fn destinations(
    root: &mut Section<'_, '_>,
    threads: usize,
    secrets: &SecretReader<'_>,
    problems: &mut Problems,
) -> Vec<ReadDestination> {
    let before = problems.count();
    let sections = tables(root, "destination", problems);
    if sections.is_empty() && problems.count() == before {
        problems.add(
            &(0..0),
            "[[destination]]",
            "there is none, so nothing could be sent; add one with the lines: [[destination]] | name = \"gateway\" | \
             type = \"http\" | url = \"https://gw.example/send\"",
        );
    }
    let mut read: Vec<ReadDestination> = Vec::new();
    for section in sections {
        let next = destination::destination(section, threads, secrets, problems);
        if next.name.sound && read.iter().any(|other| other.name.sound && other.name.value == next.name.value)
        {
            let what =
                format!("{:?} is the name of two destinations, expected a name of its own", next.name.value);
            problems.add(&next.name.at, "[[destination]].name", what);
        }
        if let Some(account) = polled_account(&next)
            && read.iter().any(|other| polled_account(other) == Some(account))
        {
            let what = "polls the reports of an account that another destination polls already; results go to whoever \
                        asks first, so set reports = \"off\" in one of them";
            problems.add(&next.name.at, "[[destination]].reports", what);
        }
        read.push(next);
    }
    read
}

/// Url and account whose results a destination polls.
fn polled_account(read: &ReadDestination) -> Option<(&str, &str)> {
    match read.settings.as_ref() {
        Some(super::DestinationSettings { url, vendor: super::VendorSettings::BizPpurio(biz), .. })
            if matches!(biz.reports, super::Reports::Poll(_)) && !biz.account.is_empty() =>
        {
            Some((url, &biz.account))
        }
        _ => None,
    }
}

fn window(mut section: Section<'_, '_>, problems: &mut Problems) -> WindowSettings {
    let time = |hour, minute| jiff::civil::time(hour, minute, 0, 0);
    let window = section.get(problems, "window", (time(8, 0), time(20, 50)), |value| {
        let expected = "two times like [\"08:00\", \"20:50\"]";
        match list(value, expected, time_of_day)?[..] {
            // One that closes before it opens lies over midnight.
            [opens, closes] if opens != closes => Ok((opens, closes)),
            [_, _] => Err("opens and closes at the same time, so it is no window".to_owned()),
            ref times => Err(format!("has {} entries, expected {expected}", times.len())),
        }
    });
    let (opens, closes) = window.value;
    // Ten minutes for what is already in the workers' hands.
    let cut = closes.wrapping_sub(jiff::SignedDuration::from_mins(10));
    let relay_until = section.get(problems, "relay_until", cut, time_of_day);
    let inside = |moment: jiff::civil::Time| match opens < closes {
        true => opens < moment && moment <= closes,
        false => opens < moment || moment <= closes,
    };
    if window.sound && relay_until.sound && !inside(relay_until.value) {
        let shown = |time: jiff::civil::Time| time.strftime("%H:%M").to_string();
        let what = format!(
            "is {}, expected inside the window: after {} and at latest {}",
            shown(relay_until.value),
            shown(opens),
            shown(closes)
        );
        problems.add(&relay_until.at, section.place("relay_until"), what);
    }
    section.finish(problems);
    WindowSettings { opens, closes, relay_until: relay_until.value }
}

fn alert(
    mut section: Section<'_, '_>,
    secrets: &SecretReader<'_>,
    problems: &mut Problems,
) -> (AlertSettings, Given<Duration>) {
    let webhook = section.get(problems, "webhook", None, |value| {
        unless_empty(value, |value| secrets.secret(value, |address| url::parse(address).map(|_| ())))
    });
    let command = section.get(problems, "command", Vec::new(), |value| {
        let expected = "a list like [\"/usr/local/bin/notify\", \"--branch\"]";
        let words = list(value, expected, |entry| match quiet_text(entry, "text")? {
            word if word.contains('\0') => Err("has a NUL character".to_owned()),
            word => Ok(word.to_owned()),
        })?;
        match words.first() {
            // A name without a path would be looked up along whatever PATH the service has.
            Some(program) if !program.starts_with('/') => {
                Err(format!("has a program without its full path, expected {expected}"))
            }
            _ => Ok(words),
        }
    });
    let stale_sending =
        section.get(problems, "stale_sending", 10 * MINUTE, |value| duration(value, SECOND, DAY));
    let backlog_age =
        section.get(problems, "backlog_age", 30 * MINUTE, |value| duration(value, SECOND, 30 * DAY));
    let interval = section.get(problems, "interval", 15 * MINUTE, |value| duration(value, SECOND, 7 * DAY));
    let command_timeout =
        section.get(problems, "command_timeout", 30 * SECOND, |value| duration(value, SECOND, 5 * MINUTE));
    let disk_free = section.get(problems, "disk_free", DISK_FREE, |value| size(value, 0, u64::MAX >> 1));
    section.finish(problems);
    let alert = AlertSettings {
        webhook: webhook.value,
        command: command.value,
        stale_sending: stale_sending.value,
        backlog_age: backlog_age.value,
        interval: interval.value,
        command_timeout: command_timeout.value,
        disk_free: disk_free.value,
    };
    (alert, stale_sending)
}

fn retention(mut section: Section<'_, '_>, problems: &mut Problems) -> RetentionSettings {
    let bodies = section.get(problems, "bodies", 30 * DAY, |value| duration(value, HOUR, 3_650 * DAY));
    let keys = section.get(problems, "keys", 400 * DAY, |value| duration(value, DAY, 3_650 * DAY));
    if bodies.sound && keys.sound && bodies.value > keys.value {
        let what = format!("is {}, expected at most keys ({})", shown(bodies.value), shown(keys.value));
        problems.add(&bodies.at, section.place("bodies"), what);
    }
    section.finish(problems);
    RetentionSettings { bodies: bodies.value, keys: keys.value }
}

#[cfg(test)]
mod tests;
