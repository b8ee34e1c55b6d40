//! `shape`: the waiting messages by destination and age, as Postfix's qshape: where it queues up, and since when.

use serde_json::json;

use super::filter::{self, Conditions, Filter, States, Word};
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, output, views};
use crate::clock::wall_ms;
use crate::exit;
use crate::lifecycle::OutboxState;

/// Ends of the age buckets, minutes; what is older is in one more.
const MINUTES: [i64; 9] = [5, 10, 20, 40, 80, 160, 320, 640, 1280];
const BUCKETS: usize = MINUTES.len() + 1;

/// Arguments of `shape`.
#[derive(clap::Args)]
#[command(
    after_help = "Ages are minutes since the message was written, in doubling buckets. Many in the left columns: it flows, there is \
                  just much of it. Many in the right ones: that destination does not take them (see `onceward status`)."
)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let states = match filter::states(&args.filter.state)? {
        States::Unfinished => vec![OutboxState::Pending, OutboxState::Publishing],
        States::All => OutboxState::ALL.into_iter().filter(|state| !state.is_final()).collect(),
        States::These(words) => {
            let unfinished = |word: Word| match word {
                Word::Outbox(state) if !state.is_final() => Ok(state),
                _ => Err(Failure::new(
                    exit::USAGE,
                    "--state: PENDING, PUBLISHING, HELD, PARKED or ALL was expected",
                )),
            };
            words.into_iter().map(unfinished).collect::<Result<_, _>>()?
        }
    };
    let mut conditions = Conditions::default();
    args.filter.conditions(&mut conditions)?;
    conditions.and("o.closed_at_ms IS NULL");
    conditions.and(&filter::any_of("o.status", states.iter().map(|state| state.as_str())));
    conditions.bind(":now", wall_ms());
    let case: String =
        MINUTES.iter().enumerate().map(|(at, end)| format!(" WHEN age < {end} THEN {at}")).collect();
    let sql = format!(
        "SELECT destination, CASE{case} ELSE {} END AS bucket, count(*)
           FROM (SELECT o.destination, (:now - o.created_at_ms) / 60000 AS age FROM outbox AS o {})
          GROUP BY destination, bucket ORDER BY destination",
        MINUTES.len(),
        conditions.where_clause()
    );
    let connection = views::open_joined(file, &settings)?.connection;
    let counted: Vec<(String, u32, i64)> = connection
        .prepare(&sql)
        .and_then(|mut statement| {
            statement
                .query_map(conditions.params().as_slice(), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect()
        })
        .map_err(Failure::io)?;
    let mut shape: Vec<(String, [i64; BUCKETS])> = Vec::new();
    for (destination, bucket, count) in counted {
        if shape.last().is_none_or(|(name, _)| *name != destination) {
            shape.push((destination, [0; BUCKETS]));
        }
        if let Some((_, buckets)) = shape.last_mut() {
            buckets[(bucket as usize).min(BUCKETS - 1)] += count;
        }
    }
    if args.json {
        let mut out = String::new();
        for (destination, buckets) in &shape {
            let all: i64 = buckets.iter().sum();
            let line =
                json!({ "destination": destination, "total": all, "minutes": MINUTES, "counts": buckets });
            out.push_str(&(output::json(&line)? + "\n"));
        }
        return output::print(&out);
    }
    output::print(&table(&shape))
}

fn table(shape: &[(String, [i64; BUCKETS])]) -> String {
    let mut head = vec!["DESTINATION".to_owned(), "T".to_owned()];
    head.extend(MINUTES.iter().map(|end| end.to_string()));
    head.push(format!("{}+", MINUTES[MINUTES.len() - 1]));
    let line = |name: String, buckets: &[i64; BUCKETS]| {
        let mut cells = vec![name, buckets.iter().sum::<i64>().to_string()];
        cells.extend(buckets.iter().map(i64::to_string));
        cells
    };
    let mut all = [0; BUCKETS];
    for (_, buckets) in shape {
        for (sum, count) in all.iter_mut().zip(buckets) {
            *sum += count;
        }
    }
    let mut rows = vec![head, line("TOTAL".into(), &all)];
    rows.extend(shape.iter().map(|(name, buckets)| {
        line(if name.is_empty() { "(by route)".into() } else { name.clone() }, buckets)
    }));
    output::table(&rows)
}
