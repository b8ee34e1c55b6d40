//! `shape`: the waiting messages by destination and age, as Postfix's qshape: where it queues up, and since when; in all
//! outboxes together, for the local API too.

use std::collections::BTreeMap;

use rusqlite::Connection;
use serde_json::{Value, json};

use super::filter::{self, Conditions, Filter, States, Word};
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, dest, output, through_agent, views};
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::exit;
use crate::lifecycle::OutboxState;
use crate::outboxes::Outboxes;
use crate::owner::StateDir;
use crate::store::outbox::{RawText, UNFINISHED_IDS};

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
    let inbox = views::inbox(&StateDir::new(&settings.agent.state_dir))?;
    let own = || {
        let outboxes = super::source::outboxes(&settings, inbox.as_ref())?;
        collect(&settings, &outboxes, inbox.as_ref(), &args.filter, file.source.as_deref())
    };
    let answer = match &inbox {
        Some(_) => own()?,
        // A member of the group cannot read the list of sources; the running agent can.
        None => {
            match through_agent::get(&settings, &through_agent::path("/v1/shape", &query(file, &args.filter)))
            {
                Ok(answer) => answer,
                Err(why) if file.source.is_some() => return Err(Failure::new(exit::NOT_PERMITTED, why)),
                Err(why) => {
                    let answer = own()?;
                    output::complain!("what waits in applications' own files is not counted: {why}");
                    answer
                }
            }
        }
    };
    if let Some(left_out) = dest::left_out(&answer) {
        output::complain!("{left_out}");
    }
    let none = Vec::new();
    let lines = answer["destinations"].as_array().unwrap_or(&none);
    if args.json {
        return output::print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    }
    output::print(&table(lines))
}

/// The same filters, as the local API takes them.
fn query(file: &SettingsFile, filter: &Filter) -> [(&'static str, Option<String>); 6] {
    let states = (!filter.state.is_empty()).then(|| filter.state.join(","));
    [
        ("source", file.source.clone()),
        ("state", states),
        ("dest", filter.dest.clone()),
        ("kind", filter.kind.clone()),
        ("older", filter.older.clone()),
        ("to", filter.to.clone()),
    ]
}

/// `{"destinations": [...], "sources_unread": [...]}`: all outboxes together, or that of one source alone.
pub fn collect(
    settings: &Settings,
    outboxes: &Outboxes,
    inbox: Option<&Connection>,
    filter: &Filter,
    source: Option<&str>,
) -> Result<Value, Failure> {
    let states = match filter::states(&filter.state)? {
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
    filter.known(settings, outboxes, inbox)?;
    let mut conditions = Conditions::default();
    filter.conditions(&mut conditions)?;
    conditions.and(&format!("o.id IN ({UNFINISHED_IDS})"));
    conditions.and(&filter::any_of("o.status", states.iter().map(|state| state.as_str())));
    conditions.bind(":now", wall_ms());
    let case: String =
        MINUTES.iter().enumerate().map(|(at, end)| format!(" WHEN age < {end} THEN {at}")).collect();
    let sql = format!(
        "SELECT destination, CASE{case} ELSE {} END AS bucket, count(*)
           FROM (SELECT o.destination, (:now - o.created_at_ms) / 60000 AS age FROM outbox AS o {})
          GROUP BY destination, bucket",
        MINUTES.len(),
        conditions.where_clause()
    );
    let mut shape = BTreeMap::<String, [i64; BUCKETS]>::new();
    let mut counted = |reader: &Connection| -> rusqlite::Result<()> {
        let mut statement = reader.prepare(&sql)?;
        let mut rows = statement.query(conditions.params().as_slice())?;
        let mut all = Vec::<(String, u32, i64)>::new();
        while let Some(row) = rows.next()? {
            all.push((row.get::<_, RawText>(0)?.lossy().into_owned(), row.get(1)?, row.get(2)?));
        }
        // One that cannot be read to its end has no part in the sum.
        for (destination, bucket, count) in all {
            shape.entry(destination).or_default()[(bucket as usize).min(BUCKETS - 1)] += count;
        }
        Ok(())
    };
    counted(&outboxes.named(source)?.reader()?).map_err(Failure::io)?;
    let unread = match source {
        None => outboxes.each_source(&mut |_, reader| counted(reader)),
        Some(_) => Vec::new(),
    };
    let line = |(destination, buckets): (&String, &[i64; BUCKETS])| json!({ "destination": destination, "total": buckets.iter().sum::<i64>(), "minutes": MINUTES, "counts": buckets });
    Ok(json!({ "destinations": shape.iter().map(line).collect::<Vec<_>>(), "sources_unread": unread }))
}

fn table(lines: &[Value]) -> String {
    let mut head = vec!["DESTINATION".to_owned(), "T".to_owned()];
    head.extend(MINUTES.iter().map(|end| end.to_string()));
    head.push(format!("{}+", MINUTES[MINUTES.len() - 1]));
    let mut rows = vec![head];
    let mut all = [0; BUCKETS];
    let cells = |name: &str, buckets: &[i64; BUCKETS]| {
        let mut cells = vec![name.to_owned(), buckets.iter().sum::<i64>().to_string()];
        cells.extend(buckets.iter().map(i64::to_string));
        cells
    };
    for line in lines {
        let buckets: [i64; BUCKETS] = std::array::from_fn(|at| line["counts"][at].as_i64().unwrap_or(0));
        all.iter_mut().zip(buckets).for_each(|(sum, count)| *sum += count);
        let name = line["destination"].as_str().filter(|name| !name.is_empty()).unwrap_or("(by route)");
        rows.push(cells(name, &buckets));
    }
    rows.insert(1, cells("TOTAL", &all));
    output::table(&rows)
}
