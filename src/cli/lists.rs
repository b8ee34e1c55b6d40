//! `queue`: lists messages; `--json` prints one object a line. What it leaves out it says on stderr.
//!
//! Reads in pages and prints between them: no read transaction is open while a pager waits.

use rusqlite::{Connection, Row};

use super::filter::{self, Conditions, Filter, States, Word};
use super::settings_file::SettingsFile;
use super::{Failure, Outcome, dest, output, through_agent, views};
use crate::clock::wall_ms;
use crate::exit;
use crate::lifecycle::OutboxState;
use crate::owner::StateDir;

/// Rows read at once.
const PAGE: usize = 1000;
/// Rows left out are counted up to this: a count over all history would take as long as history.
const COUNT_MAX: i64 = 100_000;
/// Finished rows are looked for among this many newest rows.
const HIDDEN_AMONG: i64 = 100_000;

/// Arguments of `queue`.
#[derive(clap::Args)]
#[command(
    after_help = "States: PENDING, PUBLISHING, HELD, PARKED wait; SENT, DELIVERED, FAILED, UNDELIVERED, ERROR, SENDING are the vendor's \
                  side; EXPIRED, SKIPPED, CANCELLED were never sent; PUBLISHED is whatever the outbox has handed over. UNFINISHED is the \
                  default, ALL with --key or --to. Waiting messages are listed oldest first, finished ones newest first."
)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,
    /// Only this dedup key; * stands for anything
    #[arg(long)]
    key: Option<String>,
    /// What did not go as meant: PARKED, EXPIRED, SKIPPED, ERROR, FAILED, UNDELIVERED
    #[arg(long, conflicts_with = "state")]
    trouble: bool,
    /// At most this many; 0 = all
    #[arg(long, default_value_t = 200)]
    limit: u32,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(file: &SettingsFile, args: Args) -> Outcome {
    let settings = file.load_for_looking()?;
    let states = if args.trouble {
        States::These(filter::TROUBLE.to_vec())
    } else if args.filter.state.is_empty() && (args.key.is_some() || args.filter.to.is_some()) {
        States::All
    } else {
        filter::states(&args.filter.state)?
    };
    // A member of the group cannot look into the inbox; the running agent can.
    let visible = views::inbox(&StateDir::new(&settings.agent.state_dir))?.is_some();
    // What went wrong anywhere is one list; any other is of one file, and says which others there are.
    let everywhere = args.trouble && file.source.is_none();
    if !visible {
        let older_ms =
            args.filter.older.as_deref().map(|text| filter::span_ms("--older", text)).transpose()?;
        let query = [
            ("source", file.source.clone()),
            ("dest", args.filter.dest.clone()),
            ("kind", args.filter.kind.clone()),
            ("key", args.key.clone()),
            ("to", args.filter.to.clone()),
            ("before_ms", older_ms.map(|span| wall_ms().saturating_sub(span).to_string())),
        ];
        let states = match &states {
            States::Unfinished => vec![None],
            States::All => vec![Some("ALL".to_owned())],
            States::These(words) => words.iter().map(|word| Some(word.said().to_owned())).collect(),
        };
        let limit = args.limit as usize;
        let asked = through_agent::Asked { query: &query, states: &states, everywhere, limit };
        match through_agent::queue(&settings, &asked, args.json) {
            Ok(outcome) => return outcome,
            Err(why) => output::complain!("the vendor's side is not shown: {why}"),
        }
    }
    let views = views::open_joined(file, &settings)?;
    let own = views::open(&settings)?;
    args.filter.known(
        &settings,
        &super::source::outboxes(&settings, own.inbox.as_ref())?,
        own.inbox.as_ref(),
    )?;
    // Beside the list, so that JSON lines stay JSON lines.
    if let Some(held) = &views.held {
        output::complain!("HELD: nothing is sent: {held}");
    }
    let lists = lists(&args, &states, views.inbox).map_err(|failure| match failure.code {
        exit::NOT_PERMITTED => {
            Failure::new(failure.code, format!("{}: {}", failure.text, super::permission::inbox(&settings)))
        }
        _ => failure,
    })?;
    // Why rows wait that could go: their destination is closed, paused or waits.
    let stands: Vec<(String, String)> = dest::stand(&own, &settings)
        .map_err(|error| Failure::new(exit::IO, error.to_string()))?
        .iter()
        .filter_map(|one| Some((one["destination"].as_str()?.to_owned(), dest::why(one, &settings)?)))
        .collect();
    let elsewhere =
        if everywhere { None } else { super::source::elsewhere(file, &settings, own.inbox.as_ref())? };
    let left = if args.limit == 0 { usize::MAX } else { args.limit as usize };
    let zone = &settings.agent.timezone;
    let mut listing =
        Listing { json: args.json, inbox: views.inbox, zone, stands, left, head: true, shown: 0, more: 0 };
    listing.of(&views.connection, None, &lists)?;
    if everywhere {
        let outboxes = super::source::outboxes(&settings, own.inbox.as_ref())?;
        let mut printed = Ok(());
        let unread = outboxes.each_source(&mut |name, reader| {
            views::attach(reader, &own.state)?;
            match listing.of(reader, Some(name), &lists) {
                // What could be opened, but not read to its end.
                Err(failure) if matches!(failure.code, exit::TRY_AGAIN | exit::IO) => {
                    Err(crate::db::other(failure.text))
                }
                ended => {
                    printed = ended;
                    Ok(())
                }
            }
        });
        printed?;
        if let Some(left_out) = views::left_out(&unread) {
            output::complain!("{left_out}");
        }
    }
    drop(own);
    let Listing { shown, more, .. } = listing;
    if more > 0 {
        let or_more = if more >= COUNT_MAX { " or more" } else { "" };
        output::complain!("{shown} of {}{or_more} shown (--limit 0 for all)", shown as i64 + more);
    }
    if states == States::Unfinished {
        let hidden = hidden(&views.connection, &args)?;
        if hidden > 0 {
            output::complain!("{hidden} finished not shown (--state ALL, or --trouble)");
        }
    }
    if let Some(elsewhere) = elsewhere {
        output::complain!("not looked at: {elsewhere}");
    }
    if !views.inbox {
        output::complain!("the vendor's side is not shown: {}", super::permission::inbox(&settings));
    }
    Ok(exit::OK)
}

/// A list under way, over one file or several.
struct Listing<'a> {
    json: bool,
    inbox: bool,
    zone: &'a jiff::tz::TimeZone,
    /// Why rows wait that could go, by destination.
    stands: Vec<(String, String)>,
    /// How many may still be shown.
    left: usize,
    /// Nothing has been printed yet.
    head: bool,
    shown: usize,
    more: i64,
}

impl Listing<'_> {
    fn of(&mut self, connection: &Connection, source: Option<&str>, lists: &[List]) -> Result<(), Failure> {
        for list in lists {
            let mut after = None;
            while self.left > 0 {
                let limit = PAGE.min(self.left);
                let page = page(connection, list, after, limit)?;
                let full = page.len() == limit;
                after = page.last().map(|(key, _)| *key);
                self.shown += page.len();
                self.left -= page.len();
                let mut lines: Vec<views::Line> = page.into_iter().filter_map(|(_, line)| line).collect();
                for line in &mut lines {
                    line.source = source.map(str::to_owned);
                    let waits = line.status == "PENDING" && line.blocked == 0;
                    if let Some((_, why)) =
                        self.stands.iter().find(|(name, _)| waits && *name == line.destination)
                    {
                        line.reason = Some(why.clone());
                    }
                }
                print(lines, self.json, std::mem::take(&mut self.head), self.inbox, self.zone)?;
                if !full {
                    break;
                }
            }
            if self.left == 0 {
                self.more += rest(connection, list, after, COUNT_MAX)?;
            }
        }
        Ok(())
    }
}

/// One statement's worth: rows of the outbox, or rows of the inbox with their outbox row.
struct List {
    from: &'static str,
    key: &'static str,
    conditions: Conditions,
    newest_first: bool,
}

const OUTBOX_ALONE: &str = "outbox AS o";
const OUTBOX_FIRST: &str =
    "outbox AS o LEFT JOIN vendor.inbox AS i ON i.consumer = o.destination AND i.message_id = o.message_id";
/// CROSS JOIN is SQLite's way to say: the inbox drives.
const INBOX_FIRST: &str =
    "vendor.inbox AS i CROSS JOIN outbox AS o ON o.message_id = i.message_id AND o.destination = i.consumer";

/// The outbox's words and the inbox's words need different ways through the files: at most two lists, without doubles.
fn lists(args: &Args, states: &States, inbox: bool) -> Result<Vec<List>, Failure> {
    let conditions = || -> Result<Conditions, Failure> {
        let mut conditions = Conditions::default();
        args.filter.conditions(&mut conditions)?;
        match &args.key {
            Some(key) if key.contains('*') => {
                conditions.and_with("o.dedup_key GLOB :key", ":key", filter::glob(key));
            }
            Some(key) => conditions.and_with("o.dedup_key = :key", ":key", key.clone()),
            None => {}
        }
        Ok(conditions)
    };
    let from = if inbox { OUTBOX_FIRST } else { OUTBOX_ALONE };
    let of_outbox = |condition: Option<&str>, newest_first| -> Result<List, Failure> {
        let mut conditions = conditions()?;
        if let Some(condition) = condition {
            conditions.and(condition);
        }
        Ok(List { from, key: "o.id", conditions, newest_first })
    };
    let words = match states {
        States::Unfinished => return Ok(vec![of_outbox(Some("o.closed_at_ms IS NULL"), false)?]),
        States::All => return Ok(vec![of_outbox(None, true)?]),
        States::These(words) => words,
    };
    let statuses: Vec<OutboxState> = words
        .iter()
        .filter_map(|word| if let Word::Outbox(state) = word { Some(*state) } else { None })
        .collect();
    let status_is = filter::any_of("o.status", statuses.iter().map(|state| state.as_str()));
    let mut lists = Vec::new();
    if !statuses.is_empty() {
        lists.push(of_outbox(Some(&status_is), statuses.iter().any(|state| state.is_final()))?);
    }
    let fate = words
        .iter()
        .filter_map(|word| if let Word::Fate(state) = word { Some(state.as_str()) } else { None });
    let delivery =
        words.iter().filter_map(|word| if let Word::Delivery(word) = word { Some(*word) } else { None });
    let terms = [filter::any_of("i.status", fate), filter::any_of("i.delivery", delivery)];
    let terms: Vec<&str> = terms.iter().map(String::as_str).filter(|term| *term != "0").collect();
    if !terms.is_empty() {
        if !inbox {
            let text = "the state asked for is the vendor's side, which this user may not read";
            return Err(Failure::new(exit::NOT_PERMITTED, text));
        }
        let mut conditions = conditions()?;
        match terms.as_slice() {
            // Alone and bare, so that a partial index of that state is of use.
            [one] => conditions.and(one),
            several => conditions.and(&format!("({})", several.join(" OR "))),
        }
        if !statuses.is_empty() {
            conditions.and(&format!("NOT {status_is}"));
        }
        lists.push(List { from: INBOX_FIRST, key: "i.id", conditions, newest_first: true });
    }
    Ok(lists)
}

type Read = (i64, Option<views::Line>);

fn page(
    connection: &Connection,
    list: &List,
    after: Option<i64>,
    limit: usize,
) -> Result<Vec<Read>, Failure> {
    let columns: Vec<String> = views::COLUMNS.split(", ").map(|column| format!("o.{column}")).collect();
    let fate = if list.from == OUTBOX_ALONE { "NULL, NULL" } else { "i.status, i.delivery" };
    let (than, order) = if list.newest_first { ("<", "DESC") } else { (">", "ASC") };
    let key = list.key;
    let mut all = list.conditions.where_clause();
    if after.is_some() {
        all.push_str(if all.is_empty() { "WHERE " } else { " AND " });
        all.push_str(&format!("{key} {than} :after"));
    }
    let sql = format!(
        "SELECT {}, {fate}, {key} FROM {} {all} ORDER BY {key} {order} LIMIT :limit",
        columns.join(", "),
        list.from
    );
    let mut params = list.conditions.params();
    let limit = limit as i64;
    params.push((":limit", &limit));
    if let Some(after) = &after {
        params.push((":after", after));
    }
    let mut statement = connection.prepare(&sql).map_err(Failure::io)?;
    let read = |row: &Row<'_>| -> rusqlite::Result<Read> {
        let key: i64 = row.get(19)?;
        let line = views::line(row).and_then(|mut line| {
            line.fate = row.get(17)?;
            line.delivery = row.get(18)?;
            Ok(line)
        });
        // A row that cannot be read is named and hides nothing else.
        Ok((
            key,
            line.map_err(|error| {
                output::complain!("row {key} cannot be read: {}", output::plain(&error.to_string()))
            })
            .ok(),
        ))
    };
    let rows = statement.query_map(params.as_slice(), read).map_err(Failure::io)?;
    rows.collect::<rusqlite::Result<_>>().map_err(Failure::io)
}

/// How many come after that, counted up to `most`.
fn rest(connection: &Connection, list: &List, after: Option<i64>, most: i64) -> Result<i64, Failure> {
    let than = if list.newest_first { "<" } else { ">" };
    let mut all = list.conditions.where_clause();
    if after.is_some() {
        all.push_str(if all.is_empty() { "WHERE " } else { " AND " });
        all.push_str(&format!("{} {than} :after", list.key));
    }
    let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {} {all} LIMIT :most)", list.from);
    let mut params = list.conditions.params();
    params.push((":most", &most));
    if let Some(after) = &after {
        params.push((":after", after));
    }
    connection.query_row(&sql, params.as_slice(), |row| row.get(0)).map_err(Failure::io)
}

/// Finished rows that the filters fit, among the newest rows.
fn hidden(connection: &Connection, args: &Args) -> Result<i64, Failure> {
    let mut conditions = Conditions::default();
    args.filter.conditions(&mut conditions)?;
    conditions.and_with("o.id > (SELECT max(id) FROM outbox) - :among", ":among", HIDDEN_AMONG);
    conditions.and("o.closed_at_ms IS NOT NULL");
    let sql = format!("SELECT count(*) FROM outbox AS o {}", conditions.where_clause());
    connection.query_row(&sql, conditions.params().as_slice(), |row| row.get(0)).map_err(Failure::io)
}

fn print(lines: Vec<views::Line>, json: bool, head: bool, inbox: bool, zone: &jiff::tz::TimeZone) -> Outcome {
    let now_ms = wall_ms();
    if json {
        let mut out = String::new();
        for mut line in lines {
            line.recipient = output::masked(&line.recipient);
            out.push_str(&output::json(&line)?);
            out.push('\n');
        }
        return output::print(&out);
    }
    let mut table = Vec::new();
    if head {
        table.push(
            ["ID", "STATE", "FATE", "DESTINATION", "KIND", "KEY", "TO", "ATT", "AGE", "WHY"]
                .map(str::to_owned)
                .to_vec(),
        );
    }
    for line in lines {
        let why = why(&line, now_ms, zone);
        let fate = match (line.delivery, line.fate) {
            (Some(delivery), Some(_)) => delivery,
            (_, Some(fate)) => fate,
            _ if inbox => "-".into(),
            _ => "?".into(),
        };
        table.push(vec![
            line.message_id,
            line.state,
            fate,
            line.destination,
            line.kind,
            output::cut(&line.dedup_key, 40),
            output::masked(&line.recipient),
            line.attempts.to_string(),
            output::age(now_ms.saturating_sub(line.created_at_ms)),
            why,
        ]);
    }
    output::print(&output::table(&table))
}

fn why(line: &views::Line, now_ms: i64, zone: &jiff::tz::TimeZone) -> String {
    let mut parts = Vec::new();
    parts.extend(line.source.as_ref().map(|name| format!("in the source {name}")));
    match line.blocked {
        1 if line.closed_at_ms.is_none() => {
            parts.push("behind an earlier row of its ordering key".to_owned())
        }
        2 if line.closed_at_ms.is_none() => parts.push("until the clock is right".to_owned()),
        _ => {}
    }
    if matches!(line.status.as_str(), "PENDING" | "HELD") && line.not_before_ms > now_ms {
        parts.push(format!("due {}", output::local_time(line.not_before_ms, zone)));
    }
    parts.extend(line.reason.clone());
    parts.join("; ")
}
