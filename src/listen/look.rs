//! `GET /v1/status`, `/v1/messages`, `/v1/messages/{id}`, `/v1/destinations`: what the commands show, for the page and
//! for people who may not read the agent's own file. Writes nothing.
//!
//! Numbers are masked. Number and payload are told to the agent's own user alone, over the socket, with `reveal=1`.

use rusqlite::{Connection, OptionalExtension, ToSql, params};
use serde_json::{Value, json};

use super::routes::Request;
use super::wire::Answer;
use super::{Context, sentence};
use crate::cli::views::{self, Line, Views};
use crate::cli::{dest, output, show, status as of_status};

/// Rows of a page unless `limit` says otherwise.
const PAGE: usize = 200;
/// Most rows of a page.
const PAGE_MAX: usize = 1_000;

/// Readers of both files, as a command opens them; closed when the answer is made.
fn with_views(context: &Context, look: impl FnOnce(&Views) -> rusqlite::Result<Answer>) -> Answer {
    with_rows(context, None, look)
}

/// The same with the rows of the outbox that the request is about.
fn with_rows(
    context: &Context,
    request: Option<&Request<'_>>,
    look: impl FnOnce(&Views) -> rusqlite::Result<Answer>,
) -> Answer {
    let unreadable = || sentence(503, "the databases cannot be read now; try again");
    let Ok(mut views) = views::open(&context.settings) else { return unreadable() };
    if let Some(request) = request {
        match context.outbox_of(request).map(|file| views.look_into(&file)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return sentence(503, &error.to_string()),
            Err(answer) => return answer,
        }
    }
    look(&views).unwrap_or_else(|_| unreadable())
}

fn object(object: &Value) -> Answer {
    Answer::json(200, format!("{object}\n"))
}

/// The object of `status --json`.
pub(super) fn status(context: &Context, _: &Request<'_>) -> Answer {
    with_views(context, |views| Ok(object(&of_status::collect(views, &context.settings)?)))
}

/// `{"destinations": [...]}`, each as `dest --json` has it.
pub(super) fn destinations(context: &Context, _: &Request<'_>) -> Answer {
    with_views(context, |views| {
        Ok(object(&json!({ "destinations": dest::collect(views, &context.settings)? })))
    })
}

/// One of them.
pub(super) fn destination(context: &Context, request: &Request<'_>) -> Answer {
    let name = request.name();
    with_views(context, |views| {
        let all = dest::collect(views, &context.settings)?;
        Ok(match all.iter().find(|one| one["destination"] == *name) {
            Some(one) => object(one),
            None => sentence(404, "no destination has this name"),
        })
    })
}

/// What a list is of.
enum Wanted {
    /// Rows of the outbox in this condition.
    Outbox(&'static str),
    /// Messages that the inbox has in this state.
    Inbox(&'static str),
}

/// The words that people use.
fn wanted(word: &str) -> Option<Wanted> {
    Some(match word.to_ascii_uppercase().as_str() {
        "UNFINISHED" => Wanted::Outbox("closed_at_ms IS NULL"),
        "ALL" => Wanted::Outbox("1"),
        "PENDING" => Wanted::Outbox("status = 'PENDING'"),
        "PUBLISHING" => Wanted::Outbox("status = 'PUBLISHING'"),
        "HELD" => Wanted::Outbox("status = 'HELD'"),
        "PARKED" => Wanted::Outbox("status = 'PARKED'"),
        "PUBLISHED" => Wanted::Outbox("status = 'PUBLISHED'"),
        "SKIPPED" => Wanted::Outbox("status = 'SKIPPED'"),
        "EXPIRED" => Wanted::Outbox("status = 'EXPIRED'"),
        "CANCELLED" => Wanted::Outbox("status = 'FAILED'"),
        "SENDING" => Wanted::Inbox("SENDING"),
        "SENT" => Wanted::Inbox("SENT"),
        "FAILED" => Wanted::Inbox("FAILED"),
        "ERROR" => Wanted::Inbox("ERROR"),
        _ => return None,
    })
}

/// `{"messages": [...], "next": N}`; `next` is the `after` of the next page, null at the end. Parameters: `state` (the
/// words of `queue`; UNFINISHED without it, ALL with `q`), `dest`, `kind`, `to`, `key`, `q` (begins an id or a key),
/// `before_ms` (created earlier), `after`, `limit`, `source` (that outbox instead of the agent's own). What waits comes oldest first, all else newest first.
pub(super) fn messages(context: &Context, request: &Request<'_>) -> Answer {
    let state = request.parameter("state");
    let q = request.parameter("q");
    let word = state.as_deref().unwrap_or(if q.is_some() { "ALL" } else { "UNFINISHED" });
    let Some(wanted) = wanted(word) else { return sentence(422, "state: no such word") };
    let mut numbers = [None; 3];
    for (number, name) in numbers.iter_mut().zip(["after", "before_ms", "limit"]) {
        if let Some(text) = request.parameter(name) {
            let Ok(value) = text.parse::<i64>() else {
                return sentence(422, &format!("{name}: a whole number was expected"));
            };
            *number = Some(value);
        }
    }
    let [after, before_ms, limit] = numbers;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(PAGE).clamp(1, PAGE_MAX);
    let filter = Filter {
        dest: request.parameter("dest"),
        kind: request.parameter("kind"),
        to: request.parameter("to"),
        key: request.parameter("key"),
        q,
        before_ms,
    };
    // Without a name the agent's own: row ids, and so pages, are of one file.
    let of_source = request.parameter("source").is_some().then_some(request);
    with_rows(context, of_source, |views| {
        let (lines, next) = match wanted {
            Wanted::Outbox(condition) => of_outbox(views.rows(), condition, word, &filter, after, limit)?,
            Wanted::Inbox(status) => match &views.inbox {
                Some(inbox) => of_inbox(inbox, views.rows(), status, &filter, after, limit)?,
                None => (Vec::new(), None),
            },
        };
        let mut all = Vec::new();
        for mut line in lines {
            line.recipient = output::masked(&line.recipient);
            if let Some(inbox) = &views.inbox {
                line.fate = views::fate(inbox, views.rows(), &line.destination, &line.message_id)?
                    .map(|fate| fate.status);
            }
            all.push(json!(line));
        }
        Ok(object(&json!({ "messages": all, "next": next })))
    })
}

#[derive(Default)]
struct Filter {
    dest: Option<String>,
    kind: Option<String>,
    to: Option<String>,
    key: Option<String>,
    q: Option<String>,
    before_ms: Option<i64>,
}

impl Filter {
    /// `AND ...` for each that is given, so that each finds its index; and their values.
    fn conditions(&self) -> (String, Vec<(&'static str, &dyn ToSql)>) {
        let all: [(&str, &str, Option<&dyn ToSql>); 6] = [
            ("destination = :dest", ":dest", self.dest.as_ref().map(|value| value as _)),
            ("kind = :kind", ":kind", self.kind.as_ref().map(|value| value as _)),
            ("recipient = :to", ":to", self.to.as_ref().map(|value| value as _)),
            ("dedup_key = :key", ":key", self.key.as_ref().map(|value| value as _)),
            ("created_at_ms < :before", ":before", self.before_ms.as_ref().map(|value| value as _)),
            (
                "(message_id BETWEEN :q AND :q || char(1114111) OR dedup_key BETWEEN :q AND :q || char(1114111))",
                ":q",
                self.q.as_ref().map(|value| value as _),
            ),
        ];
        let mut sql = String::new();
        let mut values = Vec::new();
        for (condition, name, value) in all {
            if let Some(value) = value {
                sql.push_str(&format!(" AND {condition}"));
                values.push((name, value));
            }
        }
        (sql, values)
    }
}

type Page = (Vec<Line>, Option<i64>);

fn of_outbox(
    outbox: &Connection,
    condition: &str,
    word: &str,
    filter: &Filter,
    after: Option<i64>,
    limit: usize,
) -> rusqlite::Result<Page> {
    let waits = ["UNFINISHED", "PENDING", "PUBLISHING", "HELD", "PARKED"]
        .iter()
        .any(|waits| waits.eq_ignore_ascii_case(word));
    let (beyond, order) = if waits { (">", "ASC") } else { ("<", "DESC") };
    let (filter, mut params) = filter.conditions();
    let sql = format!(
        "SELECT {} FROM outbox WHERE {condition}{filter} AND (:after IS NULL OR id {beyond} :after) ORDER BY id {order} LIMIT :limit",
        views::COLUMNS
    );
    let limit_sql = limit as i64;
    params.extend([(":after", &after as &dyn ToSql), (":limit", &limit_sql)]);
    let mut statement = outbox.prepare_cached(&sql)?;
    let mut rows = statement.query(params.as_slice())?;
    let (mut lines, mut last, mut count) = (Vec::new(), None, 0);
    while let Some(row) = rows.next()? {
        count += 1;
        last = Some(row.get(0)?);
        // A row that cannot be read hides nothing else; the relay parks it where it is seen.
        lines.extend(views::line(row));
    }
    Ok((lines, last.filter(|_| count == limit)))
}

fn of_inbox(
    inbox: &Connection,
    outbox: &Connection,
    status: &str,
    filter: &Filter,
    after: Option<i64>,
    limit: usize,
) -> rusqlite::Result<Page> {
    let ids: Vec<(i64, String)> = inbox
        .prepare_cached(
            "SELECT id, message_id FROM inbox
              WHERE status = ?1 AND (?2 IS NULL OR consumer = ?2) AND (?3 IS NULL OR id < ?3) ORDER BY id DESC LIMIT ?4",
        )?
        .query_map(params![status, filter.dest, after, limit as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let (conditions, values) = filter.conditions();
    let sql = format!("SELECT {} FROM outbox WHERE message_id = :id{conditions}", views::COLUMNS);
    let mut lines = Vec::new();
    for (_, id) in &ids {
        let mut params = values.clone();
        params.push((":id", id as &dyn ToSql));
        lines.extend(outbox.prepare_cached(&sql)?.query_row(params.as_slice(), views::line).optional()?);
    }
    Ok((lines, ids.last().map(|(id, _)| *id).filter(|_| ids.len() == limit)))
}

/// Everything about one message, named by its id or key, as `show --json` has it; in whichever outbox it stands.
pub(super) fn message(context: &Context, request: &Request<'_>) -> Answer {
    let reveal = request.peer.may_see_content() && request.parameter("reveal").as_deref() == Some("1");
    with_rows(context, Some(request), |views| {
        Ok(match show::story(views, &context.settings, &request.name(), reveal)? {
            Some(story) => object(&story),
            None => sentence(404, "no message has this id or key"),
        })
    })
}
