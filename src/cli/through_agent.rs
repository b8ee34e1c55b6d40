//! What the agent tells a user who may not read its own file: `status`, `queue`, `show` and `dest` through its socket.
//!
//! Used only where the inbox cannot be read from here. Prints what came; where nothing came the caller shows the outbox
//! alone and says so.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use serde_json::Value;

use super::{Failure, Outcome, agent_call, output};
use crate::config::Settings;
use crate::exit;

/// Most rows of one page of the agent.
const PAGE_MAX: usize = 1_000;

/// The agent's answer to a GET, or why there is none, for people.
pub fn get(settings: &Settings, path: &str) -> Result<Value, String> {
    const OWN: &str = "the agent's own file is not readable for this user";
    let socket = settings.listen.socket.display();
    match agent_call::get(&settings.listen.socket, path) {
        Ok(Some(answer)) if answer.status == 200 => Ok(answer.body),
        Ok(Some(answer)) => Err(format!(
            "{OWN}, and the agent answers {}: {}",
            answer.status,
            answer.body["text"].as_str().unwrap_or("no reason given")
        )),
        Ok(None) => Err(format!("{OWN}, and no agent answers on {socket}")),
        Err(failure) => Err(format!("{OWN}, and {}", failure.text)),
    }
}

/// A path with its query, encoded; what is `None` is left out.
pub fn path(path: &str, query: &[(&str, Option<String>)]) -> String {
    let given: Vec<String> = query
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", crate::percent::encode(value.as_ref()?))))
        .collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}

/// A list, as the agent is asked for it.
pub struct Asked<'a> {
    /// The filters.
    pub query: &'a [(&'static str, Option<String>)],
    /// One of these states, one list for each; `None` = what the agent lists without.
    pub states: &'a [Option<String>],
    /// All sources, too.
    pub everywhere: bool,
    /// At most this many; 0 = all.
    pub limit: usize,
}

/// `queue`, as the agent lists it. `Err` is why not.
pub fn queue(settings: &Settings, asked: &Asked<'_>, json: bool) -> Result<Outcome, String> {
    let mut sources = vec![None];
    if asked.everywhere {
        let status = get(settings, "/v1/status")?;
        let listed = status["sources"].as_array().into_iter().flatten();
        sources.extend(listed.filter_map(|source| source["name"].as_str()).map(|name| Some(name.to_owned())));
    }
    let limit = if asked.limit == 0 { usize::MAX } else { asked.limit };
    let (mut all, mut known, mut unread, mut more) = (Vec::new(), BTreeSet::new(), Vec::new(), false);
    for source in sources {
        for state in asked.states {
            let mut query = asked.query.to_vec();
            query.extend([("state", state.clone()), ("limit", Some(limit.min(PAGE_MAX).to_string()))]);
            if source.is_some() {
                query.push(("source", source.clone()));
            }
            let answer = match (get(settings, &path("/v1/messages", &query)), &source) {
                (Ok(answer), _) => answer,
                (Err(why), None) => return Err(why),
                (Err(_), Some(name)) => {
                    unread.push(name.clone());
                    break;
                }
            };
            more |= !answer["next"].is_null();
            for line in answer["messages"].as_array().into_iter().flatten() {
                if known.insert(line["message_id"].to_string()) {
                    let mut line = line.clone();
                    if source.is_some() {
                        line["source"] = source.clone().into();
                    }
                    all.push(line);
                }
            }
        }
    }
    more |= all.len() > limit;
    all.truncate(limit);
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let out = if json {
        all.iter().map(|line| format!("{line}\n")).collect()
    } else {
        let now_ms = crate::clock::wall_ms();
        let mut rows = vec![
            ["ID", "STATE", "FATE", "DESTINATION", "KIND", "TO", "ATT", "AGE", "WHY"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(all.iter().map(|line| {
            vec![
                text(&line["message_id"]),
                text(&line["status"]),
                line["fate"].as_str().unwrap_or("-").to_owned(),
                text(&line["destination"]),
                text(&line["kind"]),
                text(&line["recipient"]),
                line["attempts"].to_string(),
                output::age(now_ms.saturating_sub(line["created_at_ms"].as_i64().unwrap_or(now_ms))),
                after(&line["source"], "in the source ") + &after(&line["reason"], " "),
            ]
        }));
        output::table(&rows)
    };
    if let Some(left_out) = super::views::left_out(&unread) {
        output::complain!("{left_out}");
    }
    if more {
        output::complain!(
            "there are more: narrow the list with filters, or raise --limit (at most 1000 through the agent)"
        );
    }
    Ok(output::print(&out))
}

fn after(value: &Value, before: &str) -> String {
    value.as_str().map(|text| format!("{before}{text}")).unwrap_or_default()
}

/// `show`, as the agent tells it. `Err` is why not.
pub fn show(settings: &Settings, source: Option<String>, id: &str, json: bool) -> Result<Outcome, String> {
    let path = path(&format!("/v1/messages/{}", crate::percent::encode(id)), &[("source", source)]);
    if let Ok(Some(answer)) = agent_call::get(&settings.listen.socket, &path)
        && answer.status == 404
    {
        return Ok(Err(Failure::new(exit::NO_INPUT, format!("no message has the id or key {id:?}"))));
    }
    let all = get(settings, &path)?;
    if json {
        return Ok(output::json(&all).and_then(|all| output::print(&(all + "\n"))));
    }
    Ok(output::print(&story(&all, &settings.agent.timezone)))
}

fn story(all: &Value, zone: &TimeZone) -> String {
    let at = |value: &Value| value.as_i64().map_or_else(|| "-".into(), |ms| output::local_time(ms, zone));
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let or_dash = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let (message, vendor) = (&all["message"], &all["vendor"]);
    let mut out = String::new();
    let mut say = |name: &str, value: String| out.push_str(&format!("{name:<13}{value}\n"));
    say("message", text(&message["message_id"]));
    say("key", text(&message["dedup_key"]));
    if let Some(name) = all["source"].as_str() {
        say("source", name.to_owned());
    }
    say(
        "kind",
        format!("{} ({}), priority {}", text(&message["kind"]), text(&message["class"]), message["priority"]),
    );
    say("destination", text(&message["destination"]));
    say("to", text(&message["recipient"]));
    say("payload", format!("{} bytes (its text only the agent's user can see)", all["payload_bytes"]));
    say("created", at(&message["created_at_ms"]));
    say("due", at(&message["not_before_ms"]));
    if !message["expires_at_ms"].is_null() {
        say("deadline", at(&message["expires_at_ms"]));
    }
    let since =
        if message["closed_at_ms"].is_null() { &message["updated_at_ms"] } else { &message["closed_at_ms"] };
    say(
        "outbox",
        format!(
            "{} since {}, {} attempts{}",
            text(&message["status"]),
            at(since),
            message["attempts"],
            after(&message["reason"], ", ")
        ),
    );
    if vendor.is_null() {
        say("vendor", "never called, or not called with an outcome that could have arrived".into());
    } else {
        let since = if vendor["finished_at_ms"].is_null() {
            &vendor["claimed_at_ms"]
        } else {
            &vendor["finished_at_ms"]
        };
        say(
            "vendor",
            format!(
                "{} since {}{}{}{}{}",
                text(&vendor["status"]),
                at(since),
                after(&vendor["code"], ", code "),
                after(&vendor["ref"], ", their id "),
                after(&vendor["reason"], ", "),
                after(&vendor["delivery"], ", ")
            ),
        );
    }
    say("now", text(&all["now"]));
    let ms = |value: &Value| format!("{:.1}", value.as_f64().unwrap_or(0.0) / 1000.0);
    let mut table = |head: &[&str], list: &Value, cells: &dyn Fn(&Value) -> Vec<String>| {
        let list = list.as_array().filter(|list| !list.is_empty());
        if let Some(list) = list {
            let mut rows = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
            rows.extend(list.iter().map(cells));
            out.push('\n');
            out.push_str(&output::table(&rows));
        }
    };
    table(
        &["CALL", "OUTCOME", "HTTP", "CODE", "WAITED ms", "CONNECT ms", "ANSWER ms", "WHY"],
        &all["calls"],
        &|call| {
            vec![
                at(&call["started_at_ms"]),
                text(&call["outcome"]),
                or_dash(&call["http_status"]),
                or_dash(&call["code"]),
                ms(&call["waiting_us"]),
                ms(&call["connecting_us"]),
                ms(&call["answering_us"]),
                text(&call["reason"]),
            ]
        },
    );
    table(&["REPORT", "SAYS", "CODE", "MEANING", "BY"], &all["reports"], &|report| {
        vec![
            at(&report["at_ms"]),
            text(&report["verdict"]),
            text(&report["code"]),
            text(&report["meaning"]),
            text(&report["way"]),
        ]
    });
    table(&["DEED", "VERB", "WHO", "BEFORE", "AFTER", "NOTE"], &all["audit"], &|deed| {
        let mut cells = vec![at(&deed["at_ms"])];
        cells.extend(["verb", "who", "before", "after", "note"].map(|name| text(&deed[name])));
        cells
    });
    out
}
