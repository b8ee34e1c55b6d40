//! `POST /v1/messages/{id}/hold`, `/release`, `/cancel`, `/try-now`: as the commands, through the same verbs.
//!
//! Body: `{"note": "..."}` or nothing; `?source=NAME` where more than one source has the key. Answers `{"moved": true, "already": false, "text": "..."}`: 200 done (or so already), 404 no such
//! message, 409 its state does not allow it or it went to the vendor before, 422 a field is wrong, 503 not now.

use rusqlite::TransactionBehavior;
use serde_json::json;

use super::routes::Request;
use super::wire::Answer;
use super::{Context, sentence};
use crate::cli::{show, views};
use crate::clock::wall_ms;
use crate::db;
use crate::hand::{self, Said};
use crate::listen::settle::NOTE_CHARS_MAX;
use crate::outboxes::File;
use crate::store::outbox::verbs::{By, Moved, Verb};

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Asked {
    note: String,
    /// Who says so, by their own word: see `guard.rs`.
    who: String,
    /// Only say what would happen.
    dry_run: bool,
}

pub(super) fn hold(context: &Context, request: &Request<'_>) -> Answer {
    act(context, request, Verb::Hold)
}
pub(super) fn release(context: &Context, request: &Request<'_>) -> Answer {
    act(context, request, Verb::Release)
}
pub(super) fn cancel(context: &Context, request: &Request<'_>) -> Answer {
    act(context, request, Verb::Cancel)
}
pub(super) fn try_now(context: &Context, request: &Request<'_>) -> Answer {
    act(context, request, Verb::TryNow)
}

fn act(context: &Context, request: &Request<'_>, verb: Verb) -> Answer {
    let body: &[u8] = if request.body.is_empty() { b"{}" } else { request.body };
    let Ok(asked) = serde_json::from_slice::<Asked>(body) else {
        return sentence(422, "expected {\"note\": \"...\"}");
    };
    if asked.note.chars().count() > NOTE_CHARS_MAX {
        return sentence(422, "note is longer than 500 characters");
    }
    let unwritable = |error: Option<&dyn std::fmt::Display>| {
        let why = error.map_or("the databases cannot be used now".to_owned(), ToString::to_string);
        sentence(503, &format!("{why}; try again"))
    };
    let file = match context.outbox_of(request) {
        Ok(file) => file,
        Err(answer) => return answer,
    };
    // As any operator's process: a connection of its own, a synced commit. The relay sees it as it sees a producer's.
    let mut outbox = match file.writer() {
        Ok(outbox) => outbox,
        Err(error) => return unwritable(file.source().map(|_| &error as _)),
    };
    let who = request.peer.name(&asked.who);
    let by = By { who: &who, note: &asked.note };
    let done = outbox.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|tx| {
        // Taken only now: an application may keep us waiting for its lock, and workers need these readers.
        let inbox = context.inbox.get().map_err(|error| db::other(error.to_string()))?;
        let (row, said) = hand::one(&tx, Some(&inbox), verb, &request.name(), by, wall_ms())?;
        if asked.dry_run {
            tx.rollback()?
        } else {
            tx.commit()?
        }
        Ok((row, said))
    });
    let (row, said) = match done {
        Ok(done) => done,
        Err(error) => {
            let error = db::DbError::sqlite(file.path(), error);
            return unwritable(file.source().map(|_| &error as _));
        }
    };
    let moved = matches!(said, Said::Moved(Moved::Yes(_)));
    let already = matches!(said, Said::Moved(Moved::Already(_)));
    if moved && !asked.dry_run {
        context.wake(&file);
    }
    let (status, mut text) = hand::sentence(verb, &said, asked.dry_run);
    if verb == Verb::TryNow && (already || (moved && !asked.dry_run)) {
        text.push_str(&and_yet(context, &file, &request.name()));
    }
    let object = json!({ "message_id": row.map(|row| row.message_id), "source": file.source(), "moved": moved && !asked.dry_run, "already": already, "text": text });
    Answer::json(status, object.to_string() + "\n")
}

/// What a message waits for although it is due; nothing where that cannot be seen now.
fn and_yet(context: &Context, file: &File, id: &str) -> String {
    let settings = &context.settings;
    let looked = views::open(settings).ok().and_then(|mut views| views.look_into(file).ok().map(|()| views));
    looked.and_then(|views| show::and_yet(&views, settings, id).ok()).unwrap_or_default()
}
