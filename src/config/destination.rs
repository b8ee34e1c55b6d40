//! One `[[destination]]` block: text to [`DestinationSettings`].

use std::time::Duration;

use super::parse::{Context, json};
use super::problems::{Wrong, shown};
use super::section::Section;
use super::{
    BizPpurioSettings, DestinationSettings, HttpSettings, Match, Reports, Secret, StatusRange,
    VendorSettings, nearest,
};

const SECOND: Duration = Duration::from_secs(1);
/// BizPpurio closes an idle connection after 4 s (its document of 2025-11-09); longer reuse means unknown outcomes.
const BIZPPURIO_KEEP_ALIVE_MAX: Duration = Duration::from_secs(4);
/// Longest name, characters: the column's CHECK.
const NAME_CHARS_MAX: usize = 40;

pub(super) fn read(block: &Section<'_>, context: &Context<'_>, threads: usize) -> DestinationSettings {
    let name = block.needed("name");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    if !name.is_empty() && (name.len() > NAME_CHARS_MAX || !name.chars().all(plain)) {
        block.wrong(
            line(block, "name"),
            "name",
            &Wrong::new(format!(
                "{}: 1 to {NAME_CHARS_MAX} of a-z, 0-9, - and _ were expected",
                shown(&name)
            )),
        );
    }
    let timeout = block.duration("timeout", 15 * SECOND, SECOND..=300 * SECOND);
    let connect_timeout = block.duration_at(
        "connect_timeout",
        (timeout / 3).min(5 * SECOND),
        Duration::from_millis(100)..=300 * SECOND,
    );
    if connect_timeout.value > timeout {
        block.wrong(connect_timeout.line, "connect_timeout", &Wrong::new("must not be longer than timeout"));
    }
    let keep_alive = block.duration_at("keep_alive", SECOND, Duration::ZERO..=60 * SECOND);
    let url = url(block);
    let kind = block.needed("type");
    let vendor = match kind.as_str() {
        "bizppurio" => {
            if keep_alive.value >= BIZPPURIO_KEEP_ALIVE_MAX {
                block.wrong(
                    keep_alive.line,
                    "keep_alive",
                    &Wrong::new("must be below 4s: BizPpurio closes idle connections then"),
                );
            }
            VendorSettings::BizPpurio(bizppurio(block, context))
        }
        "http" => VendorSettings::Http(http(block, context)),
        other => {
            if !other.is_empty() {
                let meant = nearest::nearest(other, ["bizppurio", "http"]).map(|near| format!("{near:?}"));
                block.wrong(
                    line(block, "type"),
                    "type",
                    &Wrong::new(format!(
                        "{} is not known; \"bizppurio\" or \"http\" was expected",
                        shown(other)
                    ))
                    .meant(meant),
                );
            }
            VendorSettings::Http(http(block, context))
        }
    };
    let settings = DestinationSettings {
        name,
        vendor,
        url,
        timeout,
        connect_timeout: connect_timeout.value,
        threads: block.number("threads", threads as u64, 1..=256) as usize,
        rate_per_s: block.rate("rate"),
        keep_alive: keep_alive.value,
        ca_file: context.path(block, "ca_file"),
        proxy: block.text("proxy").filter(|at| !at.value.is_empty()).map(|at| at.value.to_owned()),
    };
    if matches!(kind.as_str(), "bizppurio" | "http") {
        block.no_other_keys();
    }
    settings
}

fn line(block: &Section<'_>, key: &'static str) -> usize {
    block.any(key).map_or(block.line, |at| at.line)
}

fn url(block: &Section<'_>) -> String {
    let url = block.needed("url");
    let insecure = block.flag("insecure_http", false);
    if url.is_empty() {
        return url;
    }
    let at = line(block, "url");
    let host = |rest: &str| {
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let bare = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        if authority.contains('@') {
            block.wrong(
                at,
                "url",
                &Wrong::new("must not hold a user or password; use headers or account and password"),
            );
        }
        if let Some(six) = bare.strip_prefix('[') {
            six.split(']').next().unwrap_or_default().to_owned()
        } else {
            bare.split(':').next().unwrap_or_default().to_owned()
        }
    };
    if let Some(rest) = url.strip_prefix("https://") {
        if host(rest).is_empty() {
            block.wrong(at, "url", &Wrong::new("has no host"));
        }
    } else if let Some(rest) = url.strip_prefix("http://") {
        let host = host(rest);
        let loopback =
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if !loopback && !insecure {
            block.wrong(
                at,
                "url",
                &Wrong::new(
                    "http sends numbers and texts in the clear; use https (or write insecure_http = true)",
                ),
            );
        }
    } else {
        block.wrong(at, "url", &Wrong::new("must begin with https:// (or http:// on this machine)"));
    }
    url
}

fn bizppurio(block: &Section<'_>, context: &Context<'_>) -> BizPpurioSettings {
    let account = block.needed("account");
    if account.len() > 20 {
        block.wrong(
            line(block, "account"),
            "account",
            &Wrong::new(format!("has {} bytes, the vendor takes 20", account.len())),
        );
    }
    let password = context.secret(block, "password").unwrap_or_else(|| {
        if !block.has("password") {
            block.wrong(
                block.line,
                "password",
                &Wrong::new(format!("is missing; {} was expected", super::secret::EXPECTED)),
            );
        }
        Secret::new(String::new())
    });
    let from = block.needed("from");
    if !from.is_empty() && (from.len() > 16 || !from.chars().all(|c| c.is_ascii_digit())) {
        block.wrong(line(block, "from"), "from", &Wrong::new("at most 16 digits were expected"));
    }
    let reports = match block.table("reports", "[[destination]].reports") {
        None => Reports::Off,
        Some(table) => {
            let reports = match context.secret(&table, "webhook_secret") {
                Some(secret) => Reports::Webhook(secret),
                None => Reports::Poll(table.duration("poll", 30 * SECOND, 5 * SECOND..=3600 * SECOND)),
            };
            if table.has("webhook_secret") && table.has("poll") {
                table.wrong(table.line, "", &Wrong::new("poll or webhook_secret, not both"));
            }
            table.no_other_keys();
            reports
        }
    };
    BizPpurioSettings { account, password, from, reports }
}

fn http(block: &Section<'_>, context: &Context<'_>) -> HttpSettings {
    let mut headers = Vec::new();
    if let Some(table) = block.table("headers", "[[destination]].headers") {
        for (name, at) in table.entries() {
            header_name(block, "headers", &name, at.line);
            let Some(text) = at.value else {
                table.wrong(at.line, &name, &Wrong::new("text in quotes was expected"));
                continue;
            };
            let lower = name.to_ascii_lowercase();
            let secret = ["authorization", "cookie", "token", "secret", "key", "password"]
                .iter()
                .any(|word| lower.contains(word));
            let reference = ["credential:", "file:", "env:"].iter().any(|way| text.starts_with(way));
            let value = if secret || reference {
                context.secret_text(&table, &name, text, at.line)
            } else {
                Secret::new(text.to_owned())
            };
            headers.push((name, value));
        }
    }
    let header = |key: &'static str| {
        block.text(key).map_or(String::new(), |at| {
            if !at.value.is_empty() {
                header_name(block, key, at.value, at.line);
            }
            at.value.to_owned()
        })
    };
    let rule = |key: &'static str, default: &[(u16, u16)]| {
        rule(block, key).unwrap_or_else(|| Match {
            status: default.iter().map(|(first, last)| StatusRange { first: *first, last: *last }).collect(),
            json: None,
        })
    };
    HttpSettings {
        headers,
        reference_header: header("reference_header"),
        reference_bytes_max: block.number("reference_bytes_max", 100, 1..=100) as usize,
        body: block.text("body").filter(|at| at.value != "payload").map(|at| at.value.to_owned()),
        content_type: block.text("content_type").map_or("application/json".into(), |at| at.value.to_owned()),
        accepted: rule("accepted", &[(200, 299)]),
        rejected: rule("rejected", &[(400, 400), (404, 404), (422, 422)]),
        not_sent: rule("not_sent", &[(401, 401), (403, 403), (429, 429)]),
        vendor_ref: pointer(block, "vendor_ref"),
        idempotency_header: header("idempotency_header"),
    }
}

fn header_name(block: &Section<'_>, key: &str, name: &str, line: usize) {
    let good =
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c));
    let ours = ["content-length", "transfer-encoding", "host", "expect", "connection"]
        .contains(&name.to_ascii_lowercase().as_str());
    if !good || ours {
        block.wrong(line, key, &Wrong::new(format!("{} cannot be used as a header name here", shown(name))));
    }
}

fn pointer(section: &Section<'_>, key: &'static str) -> Option<String> {
    let at = section.text(key).filter(|at| !at.value.is_empty())?;
    if !at.value.starts_with('/') {
        section.wrong(
            at.line,
            key,
            &Wrong::new(format!("{} is not a JSON pointer; \"/code\" was expected", shown(at.value))),
        );
    }
    Some(at.value.to_owned())
}

fn rule(block: &Section<'_>, key: &'static str) -> Option<Match> {
    let table = block.table(key, format!("[[destination]].{key}"))?;
    let status = match table.any("status") {
        None => {
            table.wrong(
                table.line,
                "status",
                &Wrong::new("is missing; a list such as [\"2xx\", 404] was expected"),
            );
            Vec::new()
        }
        Some(at) => at
            .value
            .as_array()
            .map(|list| list.iter().filter_map(|item| status(&table, item.get_ref(), at.line)).collect())
            .unwrap_or_else(|| {
                table.wrong(at.line, "status", &Wrong::new("a list such as [\"2xx\", 404] was expected"));
                Vec::new()
            }),
    };
    let pointer = pointer(&table, "json");
    let equals = table.any("equals").map(|at| {
        let values: Vec<_> = at
            .value
            .as_array()
            .map(|list| list.iter().filter_map(|item| json(item.get_ref())).collect())
            .unwrap_or_default();
        if values.is_empty() {
            table.wrong(at.line, "equals", &Wrong::new("a list of values such as [1000] was expected"));
        }
        values
    });
    let json = match (pointer, equals) {
        (Some(pointer), Some(values)) => Some((pointer, values)),
        (None, None) => None,
        _ => {
            table.wrong(table.line, "", &Wrong::new("json and equals go together"));
            None
        }
    };
    table.no_other_keys();
    Some(Match { status, json })
}

fn status(table: &Section<'_>, value: &toml::de::DeValue<'_>, line: usize) -> Option<StatusRange> {
    let range = match (value.as_str(), value.as_integer()) {
        (Some(text), _) => text
            .strip_suffix("xx")
            .and_then(|digit| digit.parse::<u16>().ok())
            .filter(|digit| (1..=5).contains(digit))
            .map(|digit| (digit * 100, digit * 100 + 99)),
        (None, Some(number)) => number
            .as_str()
            .parse::<u16>()
            .ok()
            .filter(|code| (100..=599).contains(code))
            .map(|code| (code, code)),
        (None, None) => None,
    };
    if range.is_none() {
        table.wrong(
            line,
            "status",
            &Wrong::new("a status such as 404 or a class such as \"2xx\" was expected"),
        );
    }
    range.map(|(first, last)| StatusRange { first, last })
}
