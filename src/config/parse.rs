//! Text to [`Settings`]: every problem at once, in line order. All defaults stand here and in `destination.rs`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::civil::Time;
use toml::de::{DeTable, DeValue};

use super::problems::{Problem, Problems, Wrong, shown};
use super::secret::{self, SecretSource, System};
use super::section::Section;
use super::{
    AgentSettings, AlertSettings, ListenSettings, RelaySettings, Repeat, RetentionSettings, RetrySettings,
    Route, Secret, Settings, WindowSettings, destination, duration,
};
use crate::exit;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// Longest span that any setting takes: ten years.
const LONG: Duration = Duration::from_secs(86_400 * 3650);

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// No such file.
    #[error("{0}: there is no such settings file")]
    Missing(PathBuf),
    /// It cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is wrong; all problems.
    #[error("{}", list(path, problems))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// In line order.
        problems: Vec<Problem>,
    },
}

fn list(path: &Path, problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(|problem| format!("{}:{problem}", path.display())).collect();
    lines.join("\n")
}

impl SettingsError {
    /// The documented exit code.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Missing(_) => exit::NO_INPUT,
            Self::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                exit::NOT_PERMITTED
            }
            Self::Unreadable { .. } => exit::IO,
            Self::Wrong { .. } => exit::SETTINGS,
        }
    }
}

impl Settings {
    /// Reads the file and its secrets.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        Self::from_text(&read(path)?, path, Some(&System))
    }

    /// Reads the file; secret references are checked for their form alone, their values stay empty.
    pub fn load_without_secrets(path: &Path) -> Result<Self, SettingsError> {
        Self::from_text(&read(path)?, path, None)
    }

    /// Reads a text that stands in `origin`.
    pub fn from_text(
        text: &str,
        origin: &Path,
        secrets: Option<&dyn SecretSource>,
    ) -> Result<Self, SettingsError> {
        let problems = Problems::new(text);
        let wrong = |problems: Problems| SettingsError::Wrong {
            path: origin.to_owned(),
            problems: problems.into_sorted(),
        };
        let table = match DeTable::parse(text) {
            Ok(table) => table,
            Err(error) => {
                let line = error.span().map_or(1, |span| problems.line_of(span.start));
                problems.add(line, "", &Wrong::new(format!("not valid TOML: {}", error.message())));
                return Err(wrong(problems));
            }
        };
        let context = Context { beside: origin.parent().unwrap_or(Path::new(".")), secrets };
        let settings = settings(&Section::new("", 1, table.get_ref(), &problems), &context);
        let found = problems.into_sorted();
        if found.is_empty() {
            Ok(settings)
        } else {
            Err(SettingsError::Wrong { path: origin.to_owned(), problems: found })
        }
    }
}

fn read(path: &Path) -> Result<String, SettingsError> {
    std::fs::read_to_string(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => SettingsError::Missing(path.to_owned()),
        _ => SettingsError::Unreadable { path: path.to_owned(), source },
    })
}

/// What reading a secret needs.
pub(super) struct Context<'a> {
    beside: &'a Path,
    secrets: Option<&'a dyn SecretSource>,
}

impl Context<'_> {
    /// A secret field; an unreadable one is a problem, and stays empty.
    pub(super) fn secret(&self, section: &Section<'_>, key: &'static str) -> Option<Secret> {
        let at = section.text(key)?;
        Some(self.secret_text(section, key, at.value, at.line))
    }
    pub(super) fn secret_text(&self, section: &Section<'_>, key: &str, text: &str, line: usize) -> Secret {
        secret::read(text, self.beside, self.secrets).unwrap_or_else(|wrong| {
            section.wrong(line, key, &wrong);
            Secret::new(String::new())
        })
    }
    /// A path, relative to the settings file; empty = none.
    pub(super) fn path(&self, section: &Section<'_>, key: &'static str) -> Option<PathBuf> {
        section.text(key).filter(|at| !at.value.is_empty()).map(|at| self.beside.join(at.value))
    }
}

fn settings(root: &Section<'_>, context: &Context<'_>) -> Settings {
    let agent = agent(root, context);
    let worker_threads = root.table("worker", "[worker]").map_or(5, |worker| {
        let threads = worker.number("threads", 5, 1..=256) as usize;
        worker.no_other_keys();
        threads
    });
    let retry = retry(root);
    let blocks = root.blocks("destination");
    let mut destinations: Vec<super::DestinationSettings> = Vec::new();
    for block in &blocks {
        let destination = destination::read(block, context, worker_threads);
        if destinations.iter().any(|other| other.name == destination.name) {
            block.wrong(
                block.line,
                "name",
                &Wrong::new(format!("{} is there twice", shown(&destination.name))),
            );
        }
        destinations.push(destination);
    }
    if blocks.is_empty() && !root.has("destination") {
        root.wrong(1, "", &Wrong::new("there is no [[destination]]; add one with name, type and url (`onceward init` writes an example)"));
    }
    let relay =
        relay(root, destinations.iter().map(|destination| destination.timeout).max().unwrap_or_default());
    let routes = root.blocks("route").iter().map(|block| route(block, &destinations)).collect();
    let advertising = advertising(root);
    let settings = Settings {
        agent,
        relay,
        retry,
        destinations,
        routes,
        advertising,
        listen: listen(root, context),
        alert: alert(root, context),
        retention: retention(root),
    };
    root.no_other_keys();
    settings
}

fn agent(root: &Section<'_>, context: &Context<'_>) -> AgentSettings {
    let default_zone = || jiff::tz::TimeZone::get("Asia/Seoul").unwrap_or(jiff::tz::TimeZone::UTC);
    let Some(section) = root.table("agent", "[agent]") else {
        return AgentSettings {
            state_dir: "/var/lib/onceward".into(),
            environment: "production".into(),
            allowed_recipients: Vec::new(),
            timezone: default_zone(),
        };
    };
    let timezone = match section.text("timezone") {
        None => default_zone(),
        Some(at) => jiff::tz::TimeZone::get(at.value).unwrap_or_else(|_| {
            section.wrong(
                at.line,
                "timezone",
                &Wrong::new(format!(
                    "{} is not a known time zone; a name such as \"Asia/Seoul\" was expected",
                    shown(at.value)
                )),
            );
            default_zone()
        }),
    };
    let settings = AgentSettings {
        state_dir: context.path(&section, "state_dir").unwrap_or_else(|| "/var/lib/onceward".into()),
        environment: section.text("environment").map_or("production".into(), |at| {
            if at.value.is_empty() {
                section.wrong(
                    at.line,
                    "environment",
                    &Wrong::new("is empty; \"production\" or another name was expected"),
                );
            }
            at.value.to_owned()
        }),
        allowed_recipients: section.texts("allowed_recipients"),
        timezone,
    };
    section.no_other_keys();
    settings
}

fn relay(root: &Section<'_>, longest_timeout: Duration) -> RelaySettings {
    let default_lease = 15 * MINUTE;
    let Some(section) = root.table("relay", "[relay]") else {
        return RelaySettings { batch: 50, lease: default_lease, poll: 2 * SECOND, channel: 1024 };
    };
    let lease = section.duration_at("lease", default_lease, 10 * SECOND..=DAY);
    if lease.value <= longest_timeout {
        section.wrong(
            lease.line,
            "lease",
            &Wrong::new(format!(
                "must be longer than the longest timeout of a destination ({})",
                duration::show(longest_timeout)
            )),
        );
    }
    let settings = RelaySettings {
        batch: section.number("batch", 50, 1..=1000) as u32,
        lease: lease.value,
        poll: section.duration("poll", 2 * SECOND, Duration::from_millis(100)..=MINUTE),
        channel: section.number("channel", 1024, 1..=65_536) as usize,
    };
    section.no_other_keys();
    settings
}

fn retry(root: &Section<'_>) -> RetrySettings {
    let (quick, later) = (Repeat { times: 2, every: SECOND }, Repeat { times: 3, every: 10 * MINUTE });
    let handoff: Vec<Duration> = [1, 2, 4, 8, 16, 30].map(|minutes| minutes * MINUTE).to_vec();
    let Some(section) = root.table("retry", "[retry]") else {
        return RetrySettings { quick, later, handoff, alert_at_attempt: 5 };
    };
    let repeat = |key: &'static str, default: Repeat| {
        let Some(table) = section.table(key, format!("[retry].{key}")) else { return default };
        let repeat = Repeat {
            times: table.number("times", u64::from(default.times), 0..=1000) as u32,
            every: table.duration("every", default.every, Duration::from_millis(10)..=7 * DAY),
        };
        table.no_other_keys();
        repeat
    };
    let (quick, later) = (repeat("quick", quick), repeat("later", later));
    let given = section.texts("handoff");
    let handoff = if section.has("handoff") {
        let line = section.any("handoff").map_or(section.line, |at| at.line);
        let read: Vec<Duration> = given
            .iter()
            .filter_map(|text| {
                duration::parse_within(text, &(Duration::from_millis(10)..=7 * DAY))
                    .map_err(|wrong| section.wrong(line, "handoff", &wrong))
                    .ok()
            })
            .collect();
        if given.is_empty() {
            section.wrong(line, "handoff", &Wrong::new("at least one duration was expected"));
        }
        read
    } else {
        handoff
    };
    let settings = RetrySettings {
        quick,
        later,
        handoff,
        alert_at_attempt: section.number("alert_at_attempt", 5, 1..=1000) as u32,
    };
    section.no_other_keys();
    settings
}

fn route(block: &Section<'_>, destinations: &[super::DestinationSettings]) -> Route {
    let route = Route { kind: block.needed("kind"), destination: block.needed("destination") };
    if !route.destination.is_empty()
        && !destinations.iter().any(|destination| destination.name == route.destination)
    {
        let line = block.any("destination").map_or(block.line, |at| at.line);
        let meant = super::nearest::nearest(
            &route.destination,
            destinations.iter().map(|destination| destination.name.as_str()),
        )
        .map(|near| format!("{near:?}"));
        block.wrong(
            line,
            "destination",
            &Wrong::new(format!("there is no [[destination]] {}", shown(&route.destination))).meant(meant),
        );
    }
    block.no_other_keys();
    route
}

/// `"08:00"`, to the minute or second.
fn time(section: &Section<'_>, key: &'static str, text: &str, line: usize, default: Time) -> Time {
    let parsed = Time::strptime("%H:%M", text).or_else(|_| Time::strptime("%H:%M:%S", text));
    parsed.unwrap_or_else(|_| {
        section.wrong(
            line,
            key,
            &Wrong::new(format!("{} is not a time; \"08:00\" was expected", shown(text))),
        );
        default
    })
}

fn advertising(root: &Section<'_>) -> WindowSettings {
    let default = WindowSettings {
        opens: Time::constant(8, 0, 0, 0),
        closes: Time::constant(20, 50, 0, 0),
        relay_until: Time::constant(20, 40, 0, 0),
    };
    let Some(classes) = root.table("class", "[class]") else { return default };
    let window = classes.table("ADVERTISING", "[class.ADVERTISING]");
    classes.no_other_keys();
    let Some(section) = window else { return default };
    let mut settings = default.clone();
    let given = section.texts("window");
    if section.has("window") {
        let line = section.any("window").map_or(section.line, |at| at.line);
        match given.as_slice() {
            [opens, closes] => {
                settings.opens = time(&section, "window", opens, line, default.opens);
                settings.closes = time(&section, "window", closes, line, default.closes);
            }
            _ => {
                section.wrong(line, "window", &Wrong::new("two times were expected: [\"08:00\", \"20:50\"]"))
            }
        }
        if settings.opens >= settings.closes {
            section.wrong(
                line,
                "window",
                &Wrong::new("the first time must be before the second, on one day"),
            );
        }
    }
    let mut line = section.line;
    if let Some(at) = section.text("relay_until") {
        line = at.line;
        settings.relay_until = time(&section, "relay_until", at.value, at.line, default.relay_until);
    } else if section.has("window") {
        settings.relay_until = settings.closes.saturating_sub(jiff::Span::new().minutes(10));
    }
    if settings.relay_until <= settings.opens || settings.relay_until > settings.closes {
        section.wrong(line, "relay_until", &Wrong::new("must be inside the window"));
    }
    section.no_other_keys();
    settings
}

fn listen(root: &Section<'_>, context: &Context<'_>) -> ListenSettings {
    let default = ListenSettings { socket: "/run/onceward/onceward.sock".into(), http: None, token: None };
    let Some(section) = root.table("listen", "[listen]") else { return default };
    let http = section.text("http").filter(|at| !at.value.is_empty());
    let address = http.as_ref().and_then(|at| match at.value.parse::<std::net::SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Some(address),
        Ok(_) => {
            section.wrong(
                at.line,
                "http",
                &Wrong::new("only a loopback address such as \"127.0.0.1:7780\" may be used"),
            );
            None
        }
        Err(_) => {
            section.wrong(
                at.line,
                "http",
                &Wrong::new(format!(
                    "{} is not an address; \"127.0.0.1:7780\" was expected",
                    shown(at.value)
                )),
            );
            None
        }
    });
    let settings = ListenSettings {
        socket: context.path(&section, "socket").unwrap_or(default.socket),
        http: address,
        token: context.secret(&section, "token"),
    };
    if let Some(at) = http.filter(|_| settings.token.is_none()) {
        section.wrong(at.line, "http", &Wrong::new("needs a token: token = \"credential:api\""));
    }
    section.no_other_keys();
    settings
}

fn alert(root: &Section<'_>, context: &Context<'_>) -> AlertSettings {
    let (stale, age) = (10 * MINUTE, 30 * MINUTE);
    let Some(section) = root.table("alert", "[alert]") else {
        return AlertSettings { webhook: None, command: Vec::new(), stale_sending: stale, backlog_age: age };
    };
    let settings = AlertSettings {
        webhook: context.secret(&section, "webhook"),
        command: section.texts("command"),
        // Longer than any call can take, or a call under way would be called stale.
        stale_sending: section.duration("stale_sending", stale, 6 * MINUTE..=30 * DAY),
        backlog_age: section.duration("backlog_age", age, SECOND..=LONG),
    };
    section.no_other_keys();
    settings
}

fn retention(root: &Section<'_>) -> RetentionSettings {
    let (bodies, keys) = (30 * DAY, 400 * DAY);
    let Some(section) = root.table("retention", "[retention]") else {
        return RetentionSettings { bodies, keys };
    };
    let bodies = section.duration_at("bodies", bodies, HOUR..=LONG);
    let keys = section.duration("keys", keys, HOUR..=LONG);
    if bodies.value > keys {
        section.wrong(bodies.line, "bodies", &Wrong::new("must not be longer than keys"));
    }
    section.no_other_keys();
    RetentionSettings { bodies: bodies.value, keys }
}

/// A JSON value of a rule's `equals`.
pub(super) fn json(value: &DeValue<'_>) -> Option<serde_json::Value> {
    if let Some(text) = value.as_str() {
        return Some(text.into());
    }
    if let Some(flag) = value.as_bool() {
        return Some(flag.into());
    }
    value.as_integer().and_then(|number| number.as_str().parse::<i64>().ok()).map(Into::into)
}
