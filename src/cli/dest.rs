//! `dest`: how each destination stands: open, closed, waiting or paused, since when, why, and what waits for it; and
//! `dest probe`: one harmless exchange, and the agent's next probe at once.

use serde_json::{Map, Value, json};

use super::settings_file::SettingsFile;
use super::sql::objects;
use super::through_agent;
use super::views::{self, Views};
use super::{Failure, Outcome, agent_call, output};
use crate::clock::wall_ms;
use crate::config::{DestinationSettings, Settings, VendorSettings, rate};
use crate::exit;
use crate::policy::Policy;
use crate::store::destination::{self, Known};
use crate::store::outbox::Unfinished;
use crate::vendor;

/// How many of the newest calls are looked through for the last that went wrong.
const CALLS_LOOKED_AT: i64 = 2_000;

/// Arguments of `dest`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Only this destination
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// One JSON object for each, a line each
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// One harmless exchange (login or connection); a closed destination is tried with a message at once
    Probe {
        /// Destination
        name: String,
    },
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    if let Some(Verb::Probe { name }) = args.verb {
        return probe(file, &name);
    }
    let settings = file.load_for_looking()?;
    let views = views::open(&settings)?;
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let mut all = match views.inbox {
        Some(_) => collect(&views, &settings).map_err(io)?,
        None => match through_agent::get(&settings, "/v1/destinations") {
            Ok(answer) => answer["destinations"].as_array().cloned().unwrap_or_default(),
            Err(why) => {
                output::complain!(
                    "how the destinations stand, and what waits in applications' own files, is not shown: {why}"
                );
                collect(&views, &settings).map_err(io)?
            }
        },
    };
    if let Some(name) = &args.name {
        all.retain(|one| one["destination"] == **name);
        if all.is_empty() {
            return Err(unknown(&settings, name));
        }
    }
    if let Some(left_out) = all.first().and_then(left_out) {
        output::complain!("{left_out}");
    }
    if args.json {
        return output::print(&all.iter().map(|one| format!("{one}\n")).collect::<String>());
    }
    output::print(&if args.name.is_some() { one(&all[0], &settings) } else { table(&all, &settings) })
}

/// The refusal of a name that the settings do not have.
pub fn unknown(settings: &Settings, name: &str) -> Failure {
    let known: Vec<&str> = settings.destinations.iter().map(|one| one.name.as_str()).collect();
    Failure::new(
        exit::NO_INPUT,
        format!("no destination is named {name:?}; the settings have {}", known.join(", ")),
    )
}

/// Every destination of the settings, and those that are paused although the settings have them no more, each with what
/// waits for it in all outboxes together.
pub fn collect(views: &Views, settings: &Settings) -> rusqlite::Result<Vec<Value>> {
    let now_ms = wall_ms();
    let (unfinished, unread) = views.unfinished(now_ms)?;
    let mut all = stand(views, settings)?;
    for one in &mut all {
        count(one, &unfinished, &unread, now_ms);
    }
    Ok(all)
}

/// Adds what waits for it.
pub fn count(one: &mut Value, unfinished: &[Unfinished], unread: &[String], now_ms: i64) {
    let mut by_state = Map::new();
    let (mut waiting, mut due, mut oldest_ms) = (0, 0, None::<i64>);
    for group in unfinished.iter().filter(|group| one["destination"] == *group.destination) {
        if group.status == "PENDING" || group.status == "PUBLISHING" {
            waiting += group.count;
            due += group.due;
            oldest_ms = Some(oldest_ms.map_or(group.oldest_ms, |known| known.min(group.oldest_ms)));
        }
        by_state.insert(group.status.clone(), group.count.into());
    }
    one["waiting"] = waiting.into();
    one["due"] = due.into();
    one["oldest_age_ms"] = oldest_ms.map(|oldest| now_ms.saturating_sub(oldest).max(0)).into();
    one["unfinished"] = by_state.into();
    one["sources_unread"] = unread.into();
}

/// How they stand, without a look at what waits.
pub fn stand(views: &Views, settings: &Settings) -> rusqlite::Result<Vec<Value>> {
    let known = match &views.inbox {
        Some(inbox) => destination::all(inbox)?,
        None => Vec::new(),
    };
    let mut all = Vec::new();
    for of_settings in &settings.destinations {
        let known = known.iter().find(|known| known.name == of_settings.name);
        all.push(stands(views, settings, &of_settings.name, Some(of_settings), known)?);
    }
    for gone in &known {
        let in_settings = settings.destinations.iter().any(|one| one.name == gone.name);
        if gone.standing.paused.is_some() && !in_settings {
            all.push(stands(views, settings, &gone.name, None, Some(gone))?);
        }
    }
    Ok(all)
}

fn stands(
    views: &Views,
    settings: &Settings,
    name: &str,
    of_settings: Option<&DestinationSettings>,
    known: Option<&Known>,
) -> rusqlite::Result<Value> {
    let now_ms = wall_ms();
    let standing = known.map(|known| &known.standing);
    let paused = standing.and_then(|standing| standing.paused.as_ref());
    let closed = standing.and_then(|standing| standing.closed_since_ms);
    let next =
        standing.and_then(|standing| standing.next_try_ms).filter(|at| closed.is_some() || *at > now_ms);
    let (state, since) = match known {
        _ if views.inbox.is_none() => ("UNSEEN", None),
        Some(known) if paused.is_some() => ("PAUSED", known.paused_at_ms),
        Some(_) if closed.is_some() => ("CLOSED", closed),
        Some(known) if next.is_some() => ("WAITS", Some(known.changed_at_ms)),
        _ => ("OPEN", None),
    };
    let (mut today, mut last_error) = (Map::new(), None);
    if let Some(inbox) = &views.inbox {
        let day = Policy::new(settings).day(now_ms);
        let sql = "SELECT what, count FROM tally WHERE day = ?1 AND consumer = ?2";
        for mut one in objects(inbox, sql, &[&day, &name])? {
            today.insert(one["what"].as_str().unwrap_or_default().to_owned(), one["count"].take());
        }
        let sql = "SELECT started_at_ms AS at_ms, outcome, coalesce(reason, '') AS reason FROM attempt
              WHERE consumer = ?1 AND id > (SELECT max(id) FROM attempt) - ?2 AND outcome IN ('NOT_SENT', 'UNKNOWN')
              ORDER BY id DESC LIMIT 1";
        last_error = objects(inbox, sql, &[&name, &CALLS_LOOKED_AT])?.pop();
    }
    Ok(json!({
        "destination": name,
        "type": of_settings.map(|one| match one.vendor { VendorSettings::Http(_) => "http", VendorSettings::BizPpurio(_) => "bizppurio" }),
        "state": state, "since_ms": since, "next_probe_ms": next,
        "reason": standing.and_then(|standing| standing.reason.as_ref()),
        "paused": paused, "paused_by": known.and_then(|known| known.paused_by.as_ref()),
        "last_error": last_error,
        "rate_per_s": of_settings.and_then(|one| one.rate_per_s), "threads": of_settings.map(|one| one.threads),
        "today": today,
    }))
}

/// Why, in a few words; also what `queue` and `show` say of a message that waits for it.
pub fn why(one: &Value, settings: &Settings) -> Option<String> {
    let at = |value: &Value| value.as_i64().map(|ms| output::local_time(ms, &settings.agent.timezone));
    let reason = one["reason"].as_str().unwrap_or("no answer");
    let next = at(&one["next_probe_ms"]).map(|next| format!(", next try {next}")).unwrap_or_default();
    match one["state"].as_str() {
        Some("PAUSED") => Some(format!(
            "paused since {} by {}: {}",
            at(&one["since_ms"]).unwrap_or_default(),
            one["paused_by"].as_str().unwrap_or("an operator"),
            one["paused"].as_str().unwrap_or("")
        )),
        Some("CLOSED") => {
            Some(format!("closed since {}: {reason}{next}", at(&one["since_ms"]).unwrap_or_default()))
        }
        Some("WAITS") => Some(format!("it asked for a pause: {reason}{next}")),
        _ => None,
    }
}

/// The sources that the figures of an object leave out, for people.
pub fn left_out(object: &Value) -> Option<String> {
    let names = object["sources_unread"].as_array()?;
    views::left_out(&names.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>())
}

/// One line each.
pub fn table(all: &[Value], settings: &Settings) -> String {
    let mut rows = vec![
        ["DESTINATION", "STATE", "WAITING", "DUE", "OLDEST", "RATE", "TODAY", "WHY"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(all.iter().map(|one| {
        vec![
            one["destination"].as_str().unwrap_or("").to_owned(),
            one["state"].as_str().unwrap_or("").to_owned(),
            one["waiting"].to_string(),
            one["due"].to_string(),
            one["oldest_age_ms"].as_i64().map_or_else(|| "-".into(), output::age),
            rate(one),
            counts(&one["today"]),
            why(one, settings).unwrap_or_default(),
        ]
    }));
    output::table(&rows)
}

fn one(one: &Value, settings: &Settings) -> String {
    let zone = &settings.agent.timezone;
    let mut out = String::new();
    let mut say = |name: &str, value: String| out.push_str(&format!("{name:<13}{value}\n"));
    say(
        "destination",
        format!(
            "{} ({})",
            one["destination"].as_str().unwrap_or(""),
            one["type"].as_str().unwrap_or("not in the settings")
        ),
    );
    say(
        "state",
        format!(
            "{}{}",
            one["state"].as_str().unwrap_or(""),
            why(one, settings).map(|why| format!(", {why}")).unwrap_or_default()
        ),
    );
    // A pause hides how the link itself stands.
    if one["state"] == "PAUSED" && one["reason"].is_string() {
        say("link", format!("closed or waiting: {}", one["reason"].as_str().unwrap_or("")));
    }
    say("rate", format!("{}, {} threads", rate(one), one["threads"]));
    say("unfinished", counts(&one["unfinished"]));
    say(
        "waiting",
        format!(
            "{}, {} of them due, the oldest for {}",
            one["waiting"],
            one["due"],
            one["oldest_age_ms"].as_i64().map_or_else(|| "-".into(), output::age)
        ),
    );
    say("today", counts(&one["today"]));
    let error = &one["last_error"];
    say(
        "last error",
        match error["at_ms"].as_i64() {
            Some(at_ms) => format!(
                "{} {}: {}",
                output::local_time(at_ms, zone),
                error["outcome"].as_str().unwrap_or(""),
                error["reason"].as_str().unwrap_or("")
            ),
            None => "none among the newest calls".into(),
        },
    );
    out
}

fn rate(one: &Value) -> String {
    one["rate_per_s"].as_f64().map_or_else(|| "no bound".into(), rate::in_words)
}

fn counts(of: &Value) -> String {
    let all: Vec<String> = of
        .as_object()
        .map(|of| of.iter().map(|(what, count)| format!("{what} {count}")).collect())
        .unwrap_or_default();
    if all.is_empty() { "-".into() } else { all.join(", ") }
}

fn probe(file: &SettingsFile, name: &str) -> Outcome {
    let settings = file.load_for_looking()?;
    // A running agent knows its destinations by itself: a mistake on the disk may hide one from here.
    let of_settings = settings.destinations.iter().find(|one| one.name == name);
    let path = format!("/v1/destinations/{}/probe", crate::percent::encode(name));
    let patience = agent_call::TIMEOUT + of_settings.map_or(agent_call::TIMEOUT, |one| one.timeout);
    if let Some(answer) = agent_call::post_within(&settings.listen.socket, &path, &json!({}), patience)? {
        let text = answer.body["text"].as_str().unwrap_or("the agent gave no reason");
        return match (answer.status, answer.body["answers"].as_bool()) {
            (200, Some(answers)) => {
                output::print(&format!("{text}\n"))?;
                Ok(if answers { exit::OK } else { exit::NO })
            }
            // The running agent has other settings.
            (404, _) => Err(Failure::new(exit::NO_INPUT, text)),
            _ => Err(Failure::new(exit::UNAVAILABLE, format!("{text} (status {})", answer.status))),
        };
    }
    // No agent: the exchange alone, with the secrets that this user may read.
    let settings = file.load()?;
    let Some(of_settings) = settings.destinations.iter().find(|one| one.name == name) else {
        return Err(unknown(&settings, name));
    };
    let probed = vendor::build(of_settings).and_then(|vendor| vendor.probe());
    let (code, text) = match probed {
        Ok(text) => (exit::OK, format!("{name} answers: {text}")),
        Err(text) => (exit::NO, format!("{name} does not answer: {text}")),
    };
    output::print(&format!("{text} (the agent is not running)\n"))?;
    Ok(code)
}
