//! `GET /v1/status`, `/v1/messages`, `/v1/messages/{id}`, `/v1/destinations`: what the commands show, for the page and
//! for people who may not read the agent's own file. Writes nothing.
//!
//! Numbers are masked. Number and payload are told to the agent's own user alone, over the socket, with `reveal=1`.

use rusqlite::{Connection, OptionalExtension, ToSql, params};
use serde_json::{Value, json};

use super::routes::Request;
use super::wire::Answer;
use super::{Context, sentence};
use crate::cli::filter::{self, Conditions, Filter, States, Word};
use crate::cli::views::{self, Line, Views};
use crate::cli::{Failure, dest, output, shape as of_shape, show, status as of_status};
use crate::exit;
use crate::outboxes::Outboxes;

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

/// `{"destinations": [...], "sources_unread": [...]}`, each as `shape --json` has it, of all outboxes together. Parameters:
/// `state`, `dest`, `kind`, `to`, `older` as the command has them, and `source` (that outbox alone).
pub(super) fn shape(context: &Context, request: &Request<'_>) -> Answer {
    let filter = Filter {
        state: request.parameter("state").iter().flat_map(|all| all.split(',')).map(str::to_owned).collect(),
        dest: request.parameter("dest"),
        kind: request.parameter("kind"),
        older: request.parameter("older"),
        to: request.parameter("to"),
    };
    with_views(context, |views| {
        let outboxes = Outboxes::read(&views.state.outbox(), views.inbox.as_ref())?;
        let source = request.parameter("source");
        let inbox = views.inbox.as_ref();
        Ok(of_shape::collect(&context.settings, &outboxes, inbox, &filter, source.as_deref())
            .map_or_else(|failure| refused(&failure), |shape| object(&shape)))
    })
}

/// A command's failure as an answer.
fn refused(failure: &Failure) -> Answer {
    let status = match failure.code {
        exit::USAGE | exit::DATA => 422,
        exit::NO_INPUT => 404,
        _ => 503,
    };
    sentence(status, &failure.text)
}

/// What a list is of, in the words that people use.
struct Wanted {
    /// Rows of the outbox; else messages by their row of the inbox.
    of_outbox: bool,
    /// What waits comes oldest first.
    waits: bool,
    condition: String,
}

fn wanted(word: &str) -> Option<Wanted> {
    let words = match filter::states(&[word.to_owned()]).ok()? {
        States::These(words) => words,
        States::All => return Some(Wanted { of_outbox: true, waits: false, condition: "1".into() }),
        States::Unfinished => Vec::new(),
    };
    let (of_outbox, waits, condition) = match words.as_slice() {
        [Word::Outbox(state)] => (true, !state.is_final(), format!("status = '{state}'")),
        [Word::Fate(state)] => (false, false, format!("status = '{state}'")),
        [Word::Delivery(word)] => (false, false, format!("delivery = '{word}'")),
        _ => (true, true, "closed_at_ms IS NULL".into()),
    };
    Some(Wanted { of_outbox, waits, condition })
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
    let asked = Filter {
        dest: request.parameter("dest"),
        kind: request.parameter("kind"),
        to: request.parameter("to"),
        ..Default::default()
    };
    let mut conditions = Conditions::default();
    if let Err(failure) = asked.conditions(&mut conditions) {
        return refused(&failure);
    }
    if let Some(key) = request.parameter("key") {
        conditions.and_with("o.dedup_key = :key", ":key", key);
    }
    if let Some(before_ms) = before_ms {
        conditions.and_with("o.created_at_ms < :before", ":before", before_ms);
    }
    if let Some(q) = q {
        let begins = "(o.message_id BETWEEN :q AND :q || char(1114111) OR o.dedup_key BETWEEN :q AND :q || char(1114111))";
        conditions.and_with(begins, ":q", q);
    }
    // Without a name the agent's own: row ids, and so pages, are of one file.
    let of_source = request.parameter("source").is_some().then_some(request);
    with_rows(context, of_source, |views| {
        let outboxes = Outboxes::read(&views.state.outbox(), views.inbox.as_ref())?;
        if let Err(failure) = asked.known(&context.settings, &outboxes, views.inbox.as_ref()) {
            return Ok(refused(&failure));
        }
        let (lines, next) = match &views.inbox {
            _ if wanted.of_outbox => of_outbox(views.rows(), &wanted, conditions, after, limit)?,
            Some(inbox) => {
                let condition = &wanted.condition;
                of_inbox((inbox, condition, asked.dest.as_deref()), views.rows(), conditions, after, limit)?
            }
            None => (Vec::new(), None),
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

type Page = (Vec<Line>, Option<i64>);

fn of_outbox(
    outbox: &Connection,
    wanted: &Wanted,
    mut conditions: Conditions,
    after: Option<i64>,
    limit: usize,
) -> rusqlite::Result<Page> {
    let (beyond, order) = if wanted.waits { (">", "ASC") } else { ("<", "DESC") };
    conditions.and(&wanted.condition);
    conditions.and_with(&format!("(:after IS NULL OR id {beyond} :after)"), ":after", after);
    conditions.bind(":limit", limit as i64);
    let sql = format!(
        "SELECT {} FROM outbox AS o {} ORDER BY id {order} LIMIT :limit",
        views::COLUMNS,
        conditions.where_clause()
    );
    let mut statement = outbox.prepare_cached(&sql)?;
    let mut rows = statement.query(conditions.params().as_slice())?;
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
    (inbox, condition, dest): (&Connection, &str, Option<&str>),
    outbox: &Connection,
    mut conditions: Conditions,
    after: Option<i64>,
    limit: usize,
) -> rusqlite::Result<Page> {
    let ids: Vec<(i64, String)> = inbox
        .prepare_cached(&format!(
            "SELECT id, message_id FROM inbox
              WHERE {condition} AND (?1 IS NULL OR consumer = ?1) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
        ))?
        .query_map(params![dest, after, limit as i64], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    conditions.and("message_id = :id");
    let sql = format!("SELECT {} FROM outbox AS o {}", views::COLUMNS, conditions.where_clause());
    let mut lines = Vec::new();
    for (_, id) in &ids {
        let mut params = conditions.params();
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
