//! `status`: is it alive, what waits and since when, today's ends, what went wrong; agent up or down.

use serde_json::{Value, json};

use super::dest;
use super::settings_file::SettingsFile;
use super::sql::objects;
use super::through_agent;
use super::views::{self, Views};
use super::{Failure, Outcome, filter, output};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::db::holder;
use crate::exit;
use crate::owner;

/// Arguments of `status`.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// For monitoring: end with 1 if the agent is not running
    #[arg(long)]
    exit_code: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let views = views::open(&settings)?;
    let own = || collect(&views, &settings).map_err(|error| Failure::new(exit::IO, error.to_string()));
    let status = match &views.inbox {
        Some(_) => own()?,
        None => match through_agent::get(&settings, "/v1/status") {
            Ok(status) => status,
            Err(why) => {
                output::complain!(
                    "whether the agent runs, and the vendor's side, is not shown, nor what waits in applications' own files: {why}"
                );
                own()?
            }
        },
    };
    if args.json {
        output::print(&(output::json(&status)? + "\n"))?;
    } else {
        output::print(&for_people(&status, &settings))?;
    }
    Ok(match status["alive"].as_bool() {
        _ if !args.exit_code => exit::OK,
        Some(true) => exit::OK,
        Some(false) => exit::NO,
        None => exit::NOT_PERMITTED,
    })
}

pub(crate) fn collect(views: &Views, settings: &Settings) -> rusqlite::Result<Value> {
    let now_ms = wall_ms();
    // Today's ends are counted as they happen, so history costs nothing here.
    let (unfinished, unread) = views.unfinished(now_ms)?;
    let live: Vec<Value> = unfinished
        .iter()
        .map(|group| {
            json!({
                "status": group.status, "destination": group.destination, "count": group.count,
                "oldest_age_ms": now_ms.saturating_sub(group.oldest_ms).max(0), "due": group.due,
            })
        })
        .collect();
    let mut destinations = dest::stand(views, settings)?;
    for one in &mut destinations {
        dest::count(one, &unfinished, &unread, now_ms);
    }
    let closed = objects(
        &views.outbox,
        "SELECT status, count(*) AS count FROM outbox WHERE closed_at_ms IS NOT NULL GROUP BY status ORDER BY status",
        &[],
    )?;
    let purged_at_ms = crate::retention::pass::mark_ms(&views.outbox, crate::retention::pass::DONE_MARK)?;
    let quarantined: i64 = views.outbox.query_row("SELECT count(*) FROM quarantine", [], |row| row.get(0))?;

    let owner = owner::holder(&views.state);
    let mut clock_doubt = None;
    let (mut fates, mut today, mut alerts, mut agent) = (Vec::new(), Vec::new(), Vec::new(), json!({}));
    if let Some(inbox) = &views.inbox {
        fates = objects(
            inbox,
            "SELECT consumer AS destination, status, count(*) AS count, max(coalesce(finished_at_ms, claimed_at_ms)) AS last_at_ms
               FROM inbox GROUP BY consumer, status ORDER BY consumer, status",
            &[],
        )?;
        let day = crate::policy::Policy::new(settings).day(now_ms);
        today = objects(
            inbox,
            "SELECT consumer AS destination, what AS status, count FROM tally WHERE day = ?1 ORDER BY consumer, what",
            &[&day],
        )?;
        alerts = objects(
            inbox,
            "SELECT cause, destination, count, first_at_ms, last_at_ms, last_text AS text, open, cleared_at_ms,
                    (SELECT group_concat(hook, ', ') FROM alert_told AS told
                      WHERE told.cause = alert.cause AND told.destination = alert.destination
                        AND (told.count < alert.count OR told.open > alert.open)) AS not_yet_told
               FROM alert ORDER BY alert.open DESC, last_at_ms DESC LIMIT 20",
            &[],
        )?;
        for alert in &mut alerts {
            alert["open"] = (alert["open"] == 1).into();
        }
        let mark = |key: &str| crate::store::meta::get(inbox, key);
        clock_doubt = super::clock::doubt(&views.outbox, inbox, owner.is_some())?;
        agent = json!({ "owner": mark("started_by")?, "started_at_ms": mark("started_at_ms")?.and_then(|text| text.parse::<i64>().ok()), "version": mark("version")? });
    }
    let sources = match &views.inbox {
        Some(inbox) => super::source::seen(inbox, owner.is_some())?,
        None => Vec::new(),
    };
    let intake = crate::store::intake::closed_until(&views.outbox, now_ms)?;
    let free =
        rustix::fs::statvfs(&views.state.root).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)).ok();
    let agent_pid = owner::pid(&views.state);
    let locked: Vec<String> = [views.state.outbox(), views.state.inbox()]
        .iter()
        .flat_map(|path| {
            let of = holder::lasting(path, agent_pid);
            of.into_iter()
                .map(|one| format!("{}: {}", path.display(), holder::name(&one)))
                .collect::<Vec<_>>()
        })
        .collect();
    Ok(json!({
        "locked": locked, "alive": owner::may_look(&views.state).then_some(owner.is_some()), "holder": owner, "agent": agent, "now_ms": now_ms, "clock_doubt": clock_doubt, "held": views.held(), "state_dir": settings.agent.state_dir,
        "environment": settings.agent.environment, "timezone": settings.agent.timezone.iana_name(), "disk_free_bytes": free,
        "waiting": live, "closed": closed, "purged_at_ms": purged_at_ms, "quarantined": quarantined, "inbox": fates, "today": today, "alerts": alerts,
        "sources": sources, "sources_unread": unread, "vendor_visible": views.inbox.is_some(),
        "destinations": destinations, "intake_closed_until_ms": intake,
    }))
}

fn for_people(status: &Value, settings: &Settings) -> String {
    let zone = &settings.agent.timezone;
    let now_ms = status["now_ms"].as_i64().unwrap_or(0);
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let mut out = String::new();
    match status["holder"].as_str() {
        Some(holder) => out.push_str(&format!("agent    running: {}\n", output::holder(holder, zone))),
        None if status["alive"].is_null() => out.push_str("agent    cannot be seen by this user\n"),
        None => out.push_str("agent    NOT RUNNING (messages are kept and wait)\n"),
    }
    if let Some(held) = status["held"].as_str() {
        out.push_str(&format!("HELD     nothing is sent: {held}\n"));
    }
    for locked in status["locked"].as_array().into_iter().flatten() {
        out.push_str(&format!(
            "LOCKED   {}: nobody else can write, and nothing is sent while it lasts; end it or its transaction\n",
            text(locked)
        ));
    }
    out.push_str(&format!("clock    {} ({})\n", output::local_time(now_ms, zone), text(&status["timezone"])));
    if let Some(doubt) = status["clock_doubt"].as_str() {
        out.push_str(&format!("         it {doubt}: advertising, deadlines and later due times are held\n"));
    }
    if status["environment"] != "production" {
        out.push_str(&format!(
            "NOT production ({}): only allowed_recipients are sent to\n",
            text(&status["environment"])
        ));
    }
    if let Some(free) = status["disk_free_bytes"].as_u64() {
        out.push_str(&format!("disk     {} MiB free\n", free >> 20));
    }
    match status["purged_at_ms"].as_i64() {
        Some(at) => out.push_str(&format!("purge    last done {}\n", output::local_time(at, zone))),
        None => out.push_str("purge    not yet done\n"),
    }
    if status["vendor_visible"] == false {
        out.push_str(&format!("the vendor's side is not shown: {}\n", super::permission::inbox(settings)));
    }
    if let Some(until) = status["intake_closed_until_ms"].as_i64() {
        out.push_str(&format!(
            "DRAINING (new messages are refused until {}, the agent's next start, or `onceward drain --end`)\n",
            output::local_time(until, zone)
        ));
    }
    if let Some(left_out) = dest::left_out(status) {
        out.push_str(&format!("{left_out}\n"));
    }
    let none = Vec::new();
    let destinations = status["destinations"].as_array().unwrap_or(&none);
    if !destinations.is_empty() {
        out.push_str(&format!("\ndestinations\n{}", dest::table(destinations, settings)));
    }
    let mut section = |title: &str, head: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            let mut all = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
            all.extend(rows);
            out.push_str(&format!("\n{title}\n{}", output::table(&all)));
        }
    };
    let each = |key: &str, row: &dyn Fn(&Value) -> Vec<String>| {
        status[key].as_array().map(|list| list.iter().map(row).collect()).unwrap_or_default()
    };
    section(
        "unfinished",
        &["STATE", "DESTINATION", "COUNT", "DUE", "OLDEST"],
        each("waiting", &|row| {
            vec![
                text(&row["status"]),
                text(&row["destination"]),
                row["count"].to_string(),
                if row["status"] == "PENDING" { row["due"].to_string() } else { String::new() },
                output::age(row["oldest_age_ms"].as_i64().unwrap_or(0)),
            ]
        }),
    );
    if let Some(sources) = status["sources"].as_array().filter(|sources| !sources.is_empty()) {
        let mut rows = super::source::for_people(sources, settings);
        let head = rows.remove(0);
        section("sources", &head.iter().map(String::as_str).collect::<Vec<_>>(), rows);
    }
    section(
        "closed in outbox.db",
        &["STATE", "COUNT"],
        each("closed", &|row| vec![filter::said(&text(&row["status"])).to_owned(), row["count"].to_string()]),
    );
    section(
        "fate at the vendor",
        &["DESTINATION", "STATE", "COUNT", "LAST"],
        each("inbox", &|row| {
            vec![
                text(&row["destination"]),
                text(&row["status"]),
                row["count"].to_string(),
                output::local_time(row["last_at_ms"].as_i64().unwrap_or(0), zone),
            ]
        }),
    );
    section(
        "today",
        &["DESTINATION", "STATE", "COUNT"],
        each("today", &|row| vec![text(&row["destination"]), text(&row["status"]), row["count"].to_string()]),
    );
    section(
        "alerts (what lasts first, then the latest)",
        &["LAST", "CAUSE", "DESTINATION", "COUNT", "STATE", "TEXT"],
        each("alerts", &|row| {
            vec![
                output::local_time(row["last_at_ms"].as_i64().unwrap_or(0), zone),
                text(&row["cause"]),
                text(&row["destination"]),
                row["count"].to_string(),
                match (row["open"].as_bool(), row["cleared_at_ms"].as_i64()) {
                    (Some(true), _) => "lasts".to_owned(),
                    (_, Some(at_ms)) => format!("over since {}", output::local_time(at_ms, zone)),
                    _ => "happened".to_owned(),
                } + &row["not_yet_told"]
                    .as_str()
                    .map(|hooks| format!("; due to {hooks}"))
                    .unwrap_or_default(),
                text(&row["text"]),
            ]
        }),
    );
    if status["quarantined"].as_i64().unwrap_or(0) > 0 {
        out.push_str(&format!(
            "\nquarantine: {} (same key, other content or still to be compared; see the view v_quarantine in outbox.db)\n",
            status["quarantined"]
        ));
    }
    out
}
