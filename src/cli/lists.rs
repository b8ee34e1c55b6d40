//! `queue`: lists messages, oldest first; `--json` prints one object a line.

use rusqlite::named_params;

use super::dest;
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output, through_agent, views};
use crate::clock::wall_ms;
use crate::exit;
use crate::lifecycle::OutboxState;

/// Arguments of `queue`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this state (default: all unfinished ones)
    #[arg(long)]
    state: Option<String>,
    /// Only this destination
    #[arg(long)]
    dest: Option<String>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only those created longer ago than this, e.g. 10m, 2h, 3d
    #[arg(long, value_name = "AGE")]
    older: Option<String>,
    /// Only this dedup key
    #[arg(long)]
    key: Option<String>,
    /// Only this recipient
    #[arg(long)]
    to: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 200)]
    limit: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_without_secrets()?;
    if let Some(state) = &args.state
        && OutboxState::parse(&state.to_ascii_uppercase()).is_none()
    {
        let all: Vec<&str> = OutboxState::ALL.iter().map(|state| state.as_str()).collect();
        return Err(Failure::new(exit::USAGE, format!("--state: one of {} was expected", all.join(", "))));
    }
    let older_ms = args.older.as_deref().map(older).transpose()?.map(|span| wall_ms().saturating_sub(span));
    let views = views::open(&settings)?;
    if views.inbox.is_none() {
        let state = args.state.as_ref().map(|state| match state.to_ascii_uppercase().as_str() {
            "FAILED" => "CANCELLED".to_owned(),
            other => other.to_owned(),
        });
        let query = [
            ("state", state),
            ("dest", args.dest.clone()),
            ("kind", args.kind.clone()),
            ("key", args.key.clone()),
            ("to", args.to.clone()),
            ("before_ms", older_ms.map(|at| at.to_string())),
            ("limit", Some(args.limit.to_string())),
        ];
        match through_agent::queue(&settings, &query, args.json) {
            Ok(outcome) => return outcome,
            Err(why) => eprintln!("the vendor's side is not shown: {why}"),
        }
    }
    let stands =
        dest::collect(&views, &settings).map_err(|error| Failure::new(exit::IO, error.to_string()))?;
    let io = |error: rusqlite::Error| Failure::new(exit::IO, error.to_string());
    let mut statement = views
        .outbox
        .prepare(&format!(
            "SELECT {} FROM outbox
              WHERE (:state IS NULL AND closed_at_ms IS NULL OR status = :state) AND (:dest IS NULL OR destination = :dest)
                AND (:kind IS NULL OR kind = :kind) AND (:older IS NULL OR created_at_ms < :older)
                AND (:key IS NULL OR dedup_key = :key) AND (:to IS NULL OR recipient = :to)
              ORDER BY id LIMIT :limit",
            views::COLUMNS
        ))
        .map_err(io)?;
    let rows = statement
        .query_map(
            named_params! { ":state": args.state.map(|state| state.to_ascii_uppercase()), ":dest": args.dest, ":kind": args.kind, ":older": older_ms,
                ":key": args.key, ":to": args.to, ":limit": args.limit },
            views::line,
        )
        .map_err(io)?;
    let now_ms = wall_ms();
    let mut out = String::new();
    let mut table = vec![
        ["ID", "STATE", "FATE", "DESTINATION", "KIND", "TO", "ATT", "AGE", "WHY"].map(str::to_owned).to_vec(),
    ];
    for row in rows {
        // A row that cannot be read is named and hides nothing else.
        let mut line = match row {
            Ok(line) => line,
            Err(error) => {
                eprintln!("a row cannot be read: {error}");
                continue;
            }
        };
        line.recipient = output::masked(&line.recipient);
        if let Some(inbox) = &views.inbox {
            line.fate =
                views::fate(inbox, &line.destination, &line.message_id).map_err(io)?.map(|fate| fate.status);
        }
        if args.json {
            out.push_str(
                &serde_json::to_string(&line)
                    .map_err(|error| Failure::new(exit::SOFTWARE, error.to_string()))?,
            );
            out.push('\n');
        } else {
            let why = if line.blocked == 1 {
                "behind an earlier row of its ordering key".to_owned()
            } else if line.status == "PENDING"
                && let Some(why) = stands
                    .iter()
                    .find(|one| one["destination"] == *line.destination)
                    .and_then(|one| dest::why(one, &settings))
            {
                why
            } else {
                line.reason.unwrap_or_default()
            };
            table.push(vec![
                line.message_id,
                line.status,
                line.fate.unwrap_or_else(|| "-".into()),
                line.destination,
                line.kind,
                line.recipient,
                line.attempts.to_string(),
                output::age(now_ms.saturating_sub(line.created_at_ms)),
                why,
            ]);
        }
    }
    output::print(&if args.json { out } else { output::table(&table) })
}

fn older(text: &str) -> Result<i64, Failure> {
    let bad = || Failure::new(exit::USAGE, "--older: an age such as 30s, 10m, 2h or 3d was expected");
    let unit = text.chars().last().ok_or_else(bad)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(bad()),
    };
    let count: i64 = text[..text.len() - 1].parse().map_err(|_| bad())?;
    Ok(count.saturating_mul(seconds).saturating_mul(1000))
}
