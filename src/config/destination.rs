//! `[[destination]]`: what every destination has, and what the two types add.
//!
//! Form and relations only: no name is looked up, no CA file opened, no connection made.

use std::time::Duration;

use toml::de::DeValue;

use super::duration::{duration, shown};
use super::element::{json_pointer, path, quiet_text, text, unless_empty, whole, word, yes_or_no};
use super::problems::Problems;
use super::secret::SecretReader;
use super::section::{Given, Section, came};
use super::{
    BizPpurioSettings, DestinationSettings, HttpSettings, LookUpSettings, Reports, Secret, StatusRange,
    VendorSettings, header, matching, nearest, rate, url,
};
use crate::limits::{GATE_UNKNOWN_MAX, MESSAGE_ID_CHARS_MAX};

const SECOND: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(15);
const KEEP_ALIVE: Duration = SECOND;
/// The vendor closes a kept connection at 4 s; one that is reused later may be cut in the middle of a call.
const BIZPPURIO_KEEP_ALIVE_MAX: Duration = Duration::from_secs(4);
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT_DEFAULT_MAX: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(100);
const BIZPPURIO_URL: &str = "https://api.bizppurio.com";
const BIZPPURIO_RATE_PER_S: f64 = 20.0;
/// Far longer than a gateway holds a request before it knows it.
const NEVER_RECEIVED_AFTER: Duration = Duration::from_secs(600);
const REPORTS_POLL: Duration = Duration::from_secs(30);
/// A webhook's secret is all that keeps strangers from settling messages.
const WEBHOOK_SECRET_CHARS_MIN: usize = 16;
/// A message id made by the outbox has this many bytes; a receiver that takes less could be sent nothing.
const REFERENCE_BYTES_MIN: usize = 30;
const BIZPPURIO_KEYS: [&str; 4] = ["account", "password", "from", "reports"];
const HTTP_KEYS: [&str; 11] = [
    "headers",
    "reference_header",
    "reference_bytes_max",
    "body",
    "content_type",
    "accepted",
    "rejected",
    "not_sent",
    "vendor_ref",
    "idempotency_header",
    "lookup",
];

/// One destination as read, with what other sections are checked against.
pub(super) struct ReadDestination {
    /// The name, where it is usable.
    pub(super) name: Given<String>,
    /// For the lease, which must be longer.
    pub(super) timeout: Given<Duration>,
    /// As meant, unless its type is not known.
    pub(super) settings: Option<DestinationSettings>,
}

/// The types there are.
#[derive(Clone, Copy, PartialEq)]
enum Type {
    BizPpurio,
    Http,
}

/// Reads one `[[destination]]`.
pub(super) fn destination(
    mut section: Section<'_, '_>,
    threads_by_default: usize,
    secrets: &SecretReader<'_>,
    problems: &mut Problems,
) -> ReadDestination {
    let name = section.required(
        problems,
        "name",
        "expected for example name = \"gateway\"",
        String::new(),
        |value| {
            let allowed = |character: char| {
                character.is_ascii_lowercase() || character.is_ascii_digit() || "_-".contains(character)
            };
            word(value, "1 to 40 characters of a-z, 0-9, _ and -", 40, allowed)
        },
    );
    let vendor_type =
        section.required(problems, "type", "expected \"bizppurio\" or \"http\"", None, kind_of_vendor).value;

    let url = target(&mut section, vendor_type, problems);
    let timeout = section.get(problems, "timeout", TIMEOUT, |value| duration(value, SECOND, 300 * SECOND));
    let connect_timeout = connect_timeout(&mut section, &timeout, problems);
    let threads = section.get(problems, "threads", threads_by_default, super::parse::threads).value;
    let rate_by_default = (vendor_type == Some(Type::BizPpurio)).then_some(BIZPPURIO_RATE_PER_S);
    let rate_per_s =
        section.get(problems, "rate", rate_by_default, |value| unless_empty(value, rate::rate)).value;
    let close_after_unknown = section
        .get(problems, "close_after_unknown", GATE_UNKNOWN_MAX, |value| whole(value, 0, 1_000_000))
        .value;
    let keep_alive = keep_alive(&mut section, vendor_type, problems);
    let ca_file = section
        .get(problems, "ca_file", None, |value| unless_empty(value, |value| path(value, secrets.beside)))
        .value;
    let proxy = section.get(problems, "proxy", None, |value| unless_empty(value, proxy_url)).value;

    let vendor = match vendor_type {
        Some(Type::BizPpurio) => Some(VendorSettings::BizPpurio(bizppurio(&mut section, secrets, problems))),
        Some(Type::Http) => Some(VendorSettings::Http(http(&mut section, secrets, problems))),
        None => {
            // Which keys belong cannot be told; those of any type are let pass.
            for key in BIZPPURIO_KEYS.into_iter().chain(HTTP_KEYS) {
                section.raw(key);
            }
            None
        }
    };
    match vendor_type {
        Some(Type::BizPpurio) => foreign(&mut section, &HTTP_KEYS, "http", problems),
        Some(Type::Http) => foreign(&mut section, &BIZPPURIO_KEYS, "bizppurio", problems),
        None => {}
    }
    section.finish(problems);

    let settings = vendor.map(|vendor| DestinationSettings {
        name: name.value.clone(),
        vendor,
        url,
        timeout: timeout.value,
        connect_timeout,
        threads,
        rate_per_s,
        close_after_unknown,
        keep_alive,
        ca_file,
        proxy,
    });
    ReadDestination { name, timeout, settings }
}

/// Reports keys that belong to the other type.
fn foreign(section: &mut Section<'_, '_>, keys: &[&'static str], owner: &str, problems: &mut Problems) {
    for key in keys {
        if let Some(at) = section.misplaced(key) {
            problems.add(
                &at,
                section.place(key),
                format!("belongs to destinations of type \"{owner}\"; remove it here"),
            );
        }
    }
}

fn kind_of_vendor(value: &DeValue<'_>) -> Result<Option<Type>, String> {
    let expected = "\"bizppurio\" or \"http\"";
    match text(value, expected)? {
        "bizppurio" => Ok(Some(Type::BizPpurio)),
        "http" => Ok(Some(Type::Http)),
        other => {
            let near = nearest::suggestion(other, ["bizppurio", "http"]);
            Err(format!("is {}, expected {expected}{near}", came(value)))
        }
    }
}

/// `url` and `insecure_http`.
fn target(section: &mut Section<'_, '_>, vendor_type: Option<Type>, problems: &mut Problems) -> String {
    let insecure_http = section.get(problems, "insecure_http", false, yes_or_no);
    let read = |value: &DeValue<'_>| {
        let written = quiet_text(value, "a url like \"https://api.example.com/send\"")?;
        let parsed = url::parse(written)?;
        if !parsed.https && !parsed.loopback && insecure_http.sound && !insecure_http.value {
            return Err(format!(
                "is plain http to {}, which anybody on the way can read and change; use https, or set \
                 insecure_http = true in this destination",
                parsed.host
            ));
        }
        if vendor_type != Some(Type::BizPpurio) {
            return Ok(written.to_owned());
        }
        // The adapter puts its own paths behind it.
        match parsed.rest.contains('?') {
            true => {
                Err("has a ? part, expected the vendor's address alone like \"https://api.bizppurio.com\""
                    .to_owned())
            }
            false => Ok(written.trim_end_matches('/').to_owned()),
        }
    };
    match vendor_type {
        Some(Type::BizPpurio) => section.get(problems, "url", BIZPPURIO_URL.to_owned(), read).value,
        _ => {
            let hint = "expected for example url = \"https://api.example.com/send\"";
            section.required(problems, "url", hint, String::new(), read).value
        }
    }
}

fn connect_timeout(
    section: &mut Section<'_, '_>,
    timeout: &Given<Duration>,
    problems: &mut Problems,
) -> Duration {
    let by_default = (timeout.value / 3).min(CONNECT_TIMEOUT_DEFAULT_MAX);
    let given = section
        .optional(problems, "connect_timeout", |value| duration(value, CONNECT_TIMEOUT_MIN, 300 * SECOND));
    if let Some(connect) = given.value
        && timeout.sound
        && connect > timeout.value
    {
        let what = format!("is longer than timeout ({}), expected at most that", shown(timeout.value));
        problems.add(&given.at, section.place("connect_timeout"), what);
    }
    given.value.unwrap_or(by_default)
}

fn keep_alive(section: &mut Section<'_, '_>, vendor_type: Option<Type>, problems: &mut Problems) -> Duration {
    let bizppurio = vendor_type == Some(Type::BizPpurio);
    section
        .get(problems, "keep_alive", KEEP_ALIVE, |value| {
            let given = duration(value, Duration::ZERO, KEEP_ALIVE_MAX)?;
            match bizppurio && given > BIZPPURIO_KEEP_ALIVE_MAX {
                true => Err(format!(
                    "is too long ({}), expected at most 4s: this vendor closes kept connections at 4 s, and a call on \
                     a closing one has an unknown outcome",
                    shown(given)
                )),
                false => Ok(given),
            }
        })
        .value
}

fn proxy_url(value: &DeValue<'_>) -> Result<String, String> {
    let written = quiet_text(value, "a proxy url like \"http://proxy:3128\"")?;
    match url::parse(written)?.rest.as_str() {
        "" | "/" => Ok(written.to_owned()),
        _ => Err("has a path, expected a proxy url like \"http://proxy:3128\"".to_owned()),
    }
}

fn bizppurio(
    section: &mut Section<'_, '_>,
    secrets: &SecretReader<'_>,
    problems: &mut Problems,
) -> BizPpurioSettings {
    let account =
        section.required(problems, "account", "expected the vendor's account id", String::new(), |value| {
            // A colon would end the account within the vendor's `account:password`.
            word(value, "an account id of at most 20 ASCII characters without a colon", 20, |c| {
                c.is_ascii_graphic() && c != ':'
            })
        });
    let unread = Secret::new(String::new());
    let hint = format!("expected {}", super::secret::HOW);
    let password =
        section.required(problems, "password", &hint, unread, |value| secrets.secret(value, |_| Ok(())));
    let hint = "expected the sender number registered with the vendor";
    let from = section.required(problems, "from", hint, String::new(), |value| {
        word(value, "a registered sender number of 1 to 16 digits in quotes", 16, |c| c.is_ascii_digit())
    });
    BizPpurioSettings {
        account: account.value,
        password: password.value,
        from: from.value,
        reports: reports(section, secrets, problems),
    }
}

/// `{ poll = "30s" }`, `{ webhook_secret = "credential:hook" }` or `"off"`.
fn reports(section: &mut Section<'_, '_>, secrets: &SecretReader<'_>, problems: &mut Problems) -> Reports {
    let expected = "expected { poll = \"30s\" }, { webhook_secret = \"credential:hook\" } or \"off\"";
    let place = section.place("reports");
    let Some(raw) = section.raw("reports") else { return Reports::Poll(REPORTS_POLL) };
    let table = match raw.get_ref() {
        DeValue::Table(table) => table,
        DeValue::String(word) if word == "off" => return Reports::Off,
        other => {
            problems.add(&raw.span(), place, format!("is {}, {expected}", super::section::kind(other)));
            return Reports::Off;
        }
    };
    let mut inner = Section::new(place.clone(), raw.span(), table);
    let poll = inner.optional(problems, "poll", |value| duration(value, SECOND, 3_600 * SECOND));
    let secret = inner.optional(problems, "webhook_secret", |value| secrets.secret(value, webhook_secret));
    inner.finish(problems);
    match (poll.value, secret.value) {
        (Some(every), None) => Reports::Poll(every),
        (None, Some(secret)) => Reports::Webhook(secret),
        (both, _) => {
            if poll.sound && secret.sound {
                let what = if both.is_some() { "has both poll and webhook_secret" } else { "is empty" };
                problems.add(&raw.span(), place, format!("{what}, {expected}"));
            }
            Reports::Off
        }
    }
}

/// The secret is a part of the webhook's path.
fn webhook_secret(value: &str) -> Result<(), String> {
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match value.len() >= WEBHOOK_SECRET_CHARS_MIN && value.len() <= 200 && value.bytes().all(usable) {
        true => Ok(()),
        false => Err(format!(
            "cannot be part of the webhook's path, expected {WEBHOOK_SECRET_CHARS_MIN} to 200 characters of letters, digits, - and _"
        )),
    }
}

fn http(section: &mut Section<'_, '_>, secrets: &SecretReader<'_>, problems: &mut Problems) -> HttpSettings {
    let reference_header =
        section.get(problems, "reference_header", Some("X-Reference".to_owned()), |value| {
            unless_empty(value, header::name_value)
        });
    let idempotency_header =
        section.get(problems, "idempotency_header", None, |value| unless_empty(value, header::name_value));
    let reserved: Vec<&str> = [&reference_header.value, &idempotency_header.value]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    if let [one, other] = reserved[..]
        && one.eq_ignore_ascii_case(other)
    {
        let what = format!("is {one:?} like reference_header, expected another header");
        problems.add(&idempotency_header.at, section.place("idempotency_header"), what);
    }
    let headers = headers(section, &reserved, secrets, problems);
    let reference_bytes_max = section.get(problems, "reference_bytes_max", MESSAGE_ID_CHARS_MAX, |value| {
        // Ids from elsewhere may have characters of up to four bytes.
        whole(value, REFERENCE_BYTES_MIN as u32, 4 * MESSAGE_ID_CHARS_MAX as u32).map(|bytes| bytes as usize)
    });
    let body = section.get(problems, "body", None, body);
    let content_type = section.get(problems, "content_type", "application/json".to_owned(), |value| {
        let written = text(value, "a media type like \"application/json\"")?;
        match written.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty())
            && header::sendable(written).is_ok()
        {
            true => Ok(written.to_owned()),
            false => Err(format!("is {}, expected a media type like \"application/json\"", came(value))),
        }
    });
    let one = |status| StatusRange { first: status, last: status };
    let accepted = matching::rule(section, "accepted", &[StatusRange { first: 200, last: 299 }], problems);
    let rejected = matching::rule(section, "rejected", &[one(400), one(404), one(422)], problems);
    let not_sent = matching::rule(section, "not_sent", &[one(401), one(403), one(429)], problems);
    matching::check_together(section, &accepted, &rejected, &not_sent, problems);
    let vendor_ref = section.get(problems, "vendor_ref", None, |value| unless_empty(value, json_pointer));
    HttpSettings {
        headers,
        reference_header: reference_header.value.unwrap_or_default(),
        reference_bytes_max: reference_bytes_max.value,
        body: body.value,
        content_type: content_type.value,
        accepted: accepted.value,
        rejected: rejected.value,
        not_sent: not_sent.value,
        vendor_ref: vendor_ref.value,
        idempotency_header: idempotency_header.value.unwrap_or_default(),
        lookup: lookup(section, problems),
    }
}

/// `lookup = { url = "https://.../{message_id}", accepted = {...}, rejected = {...}, never_received = {...} }`
fn lookup(section: &mut Section<'_, '_>, problems: &mut Problems) -> Option<LookUpSettings> {
    let place = section.place("lookup");
    let raw = section.raw("lookup")?;
    if raw.get_ref().as_str() == Some("off") {
        return None;
    }
    let DeValue::Table(table) = raw.get_ref() else {
        let came = super::section::kind(raw.get_ref());
        let expected =
            "expected \"off\" or { url = \"https://.../{message_id}\", accepted = { status = [200], ... } }";
        problems.add(&raw.span(), place, format!("is {came}, {expected}"));
        return None;
    };
    let mut inner = Section::new(place.clone(), raw.span(), table);
    let insecure_http = inner.get(problems, "insecure_http", false, yes_or_no);
    let hint = "expected for example url = \"https://api.example.com/messages/{message_id}\"";
    let url = inner.required(problems, "url", hint, String::new(), |value| {
        let written = quiet_text(value, "a url with {message_id} in it")?;
        let parsed = url::parse(written)?;
        if !parsed.https && !parsed.loopback && !insecure_http.value {
            return Err(format!(
                "is plain http to {}; use https, or set insecure_http = true here",
                parsed.host
            ));
        }
        match parsed.rest.matches("{message_id}").count() {
            1 => Ok(written.to_owned()),
            _ => Err("does not have {message_id} once in its path or query".to_owned()),
        }
    });
    let accepted = matching::rule(&mut inner, "accepted", &[], problems);
    let rejected = matching::rule(&mut inner, "rejected", &[], problems);
    let never_received = matching::rule(&mut inner, "never_received", &[], problems);
    let never_received_after = inner.get(problems, "never_received_after", NEVER_RECEIVED_AFTER, |value| {
        duration(value, SECOND, 7 * 86_400 * SECOND)
    });
    inner.finish(problems);
    if never_received.sound
        && never_received.value.json.is_none()
        && never_received
            .value
            .status
            .iter()
            .any(|range| (range.first..=range.last).any(|status| status != 404 && status != 410))
    {
        problems.add(
            &never_received.at,
            place.clone(),
            "never_received by its status alone may list 404 and 410 only: anything else proves nothing, and the \
             message would be sent again; add json and equals",
        );
    }
    if accepted.value.status.is_empty()
        && rejected.value.status.is_empty()
        && never_received.value.status.is_empty()
    {
        problems.add(&raw.span(), place, "has no rule, expected accepted, rejected or never_received");
    }
    Some(LookUpSettings {
        url: url.value,
        accepted: accepted.value,
        rejected: rejected.value,
        never_received: never_received.value,
        never_received_after: never_received_after.value,
    })
}

/// `headers = { Name = "value or secret reference" }`, sorted by name.
fn headers(
    section: &mut Section<'_, '_>,
    reserved: &[&str],
    secrets: &SecretReader<'_>,
    problems: &mut Problems,
) -> Vec<(String, Secret)> {
    let place = section.place("headers");
    let Some(raw) = section.raw("headers") else { return Vec::new() };
    let DeValue::Table(table) = raw.get_ref() else {
        let came = super::section::kind(raw.get_ref());
        problems.add(&raw.span(), place, format!("is {came}, expected {{ Name = \"value\" }}"));
        return Vec::new();
    };
    let mut read: Vec<(String, Secret)> = Vec::new();
    for (key, value) in table.iter() {
        let written: &str = key.get_ref();
        let place = format!("{place}.{}", super::section::printable(written));
        let name = match header::name(written) {
            Ok(name) => name,
            Err(what) => {
                problems.add(&key.span(), place, what);
                continue;
            }
        };
        if reserved.iter().any(|other| other.eq_ignore_ascii_case(&name)) {
            problems.add(&key.span(), place, "carries the message id already; remove it here");
        } else if read.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
            problems.add(&key.span(), place, "stands there twice in different case, expected once");
        } else {
            match header::value(&name, value.get_ref(), secrets) {
                Ok(value) => read.push((name, value)),
                Err(what) => problems.add(&value.span(), place, what),
            }
        }
    }
    read
}

/// `"payload"`, or a template whose form is checked here and whose fields are filled by the adapter.
fn body(value: &DeValue<'_>) -> Result<Option<String>, String> {
    let expected = "expected \"payload\" or a template like '{\"to\": {{ recipient | tojson }}}'";
    match quiet_text(value, "\"payload\" or a template")? {
        "payload" => Ok(None),
        "" => Err(format!("is empty, {expected}")),
        plain if !plain.contains("{{") && !plain.contains("{%") => {
            let near = nearest::suggestion(plain, ["payload"]);
            Err(format!("is a text without any field of the message, {expected}{near}"))
        }
        template => match minijinja::Environment::new().template_from_str(template) {
            Ok(_) => Ok(Some(template.to_owned())),
            Err(error) => {
                let line =
                    error.line().map(|line| format!(" in line {line} of the template")).unwrap_or_default();
                let detail = error.detail().unwrap_or("cannot be read");
                Err(format!("is no valid template: {detail}{line}"))
            }
        },
    }
}
