//! `POST /v1/messages/{id}/settle`: a person's verdict on an ERROR, as `onceward settle`.
//!
//! `?source=NAME` where more than one source has the key. Body: `{"as": "sent" | "failed" | "not-sent", "note": "...", "i_checked_the_vendor": true}`; the last is needed for
//! `not-sent`. Answers `{"settled": "...", "text": "..."}`: 200 done (or so already), 404 no such message, 409 its state
//! does not allow it, 422 a field is wrong.

use serde_json::json;

use super::routes::Request;
use super::wire::Answer;
use super::{Context, committed};
use crate::clock::wall_ms;
use crate::deed::Deed;
use crate::message::{Destination, MessageId};
use crate::outboxes::File;
use crate::settle::{self, End, Settle, Settled, Speaker};
use crate::store::attempt;
use crate::store::outbox::{self, Rearmed};

/// Longest note, characters.
pub const NOTE_CHARS_MAX: usize = 500;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    r#as: String,
    note: String,
    #[serde(default)]
    i_checked_the_vendor: bool,
    /// Who says so, by their own word: used where the kernel cannot tell (a service with its own user namespace sees
    /// strangers as one).
    #[serde(default)]
    who: String,
}

pub(super) fn settle(context: &Context, request: &Request<'_>) -> Answer {
    let wrong = |text: &str| answer(422, "no", text);
    let Ok(asked) = serde_json::from_slice::<Asked>(request.body) else {
        return wrong("expected {\"as\": \"sent|failed|not-sent\", \"note\": \"...\"}");
    };
    let Some(end) = End::parse(&asked.r#as) else { return wrong("as is not sent, failed or not-sent") };
    if asked.note.trim().is_empty() || asked.note.chars().count() > NOTE_CHARS_MAX {
        return wrong("note is empty or longer than 500 characters");
    }
    if end == End::NotSent && !asked.i_checked_the_vendor {
        return wrong("not-sent needs i_checked_the_vendor: if it did arrive, the customer gets it twice");
    }
    let unreadable = || answer(503, "no", "the databases cannot be read now; try again");
    let in_its_file = || -> Result<(Option<File>, MessageId, Destination), Answer> {
        let file = context.outbox_of(request)?;
        let reader = file.reader().map_err(|_| unreadable())?;
        let Some((message_id, destination)) =
            outbox::find(&reader, &request.name()).map_err(|_| unreadable())?
        else {
            return Err(answer(404, "no", "no message has this id or key"));
        };
        if end == End::NotSent
            && outbox::could_rearm(&reader, &message_id).map_err(|_| unreadable())? == Rearmed::Wiped
        {
            return Err(answer(409, "no", "its content was wiped: nothing can be sent; settle it as failed"));
        }
        Ok((Some(file), message_id, destination))
    };
    let (file, message_id, destination) = match in_its_file() {
        Ok(found) => found,
        // Its file is out of reach; only what was not sent needs it.
        Err(why) if end != End::NotSent && why.status == 503 => {
            let known = context.inbox.get().ok().and_then(|inbox| {
                settle::known_by_id(&inbox, &context.settings.destinations, &request.name()).ok().flatten()
            });
            match known {
                Some((message_id, destination)) => (None, message_id, destination),
                None => return why,
            }
        }
        Err(why) => return why,
    };
    let verdict = Settle {
        consumer: destination,
        message_id,
        end,
        by: Speaker::Operator(request.peer.name(&asked.who)),
        note: asked.note,
        code: None,
        vendor_ref: None,
    };
    let id = verdict.message_id.clone();
    let (day, told) =
        (context.policy.day(wall_ms()), format!("{} settled dest={}", verdict.message_id, verdict.consumer));
    let traced = attempt::traced(&context.inbox, id.as_str());
    let (work, reply) = Deed::work(
        move |tx| settle::apply(tx, &verdict, &day, wall_ms()),
        move |settled| {
            if *settled == Settled::Yes {
                log::warn!("{told} as {}{traced}", end.as_str());
            }
        },
    );
    context.writer.submit(work);
    let settled = match committed(&reply) {
        Ok(settled) => settled,
        Err(answer) => return answer,
    };
    if settled == Settled::Yes && end == End::NotSent {
        context.rearm.ring();
    }
    let (status, word, text) = said(settled, end);
    let object = json!({ "message_id": id.as_str(), "source": file.as_ref().and_then(File::source), "settled": word, "text": text });
    Answer::json(status, object.to_string() + "\n")
}

/// Status, word and sentence for what came of a verdict.
pub fn said(settled: Settled, end: End) -> (u16, &'static str, String) {
    match settled {
        Settled::Yes => (200, "yes", format!("settled: ERROR -> {}", end.after())),
        Settled::Already => (200, "already", format!("is settled as {} already", end.as_str())),
        Settled::No(state) => (409, "no", format!("not settled: it is {state}, and only ERROR can be")),
        Settled::Missing => (
            409,
            "no",
            "not settled: no call of it stands (it waits, or was closed by a rule): see `onceward show`"
                .into(),
        ),
        Settled::Reported => (
            409,
            "no",
            "not settled: a report of the vendor names it, so the vendor has it; see `onceward show`".into(),
        ),
        Settled::UnderWay => (
            409,
            "no",
            "not settled: its call may still be under way in the running agent; restart the agent first"
                .into(),
        ),
        Settled::Once => (409, "no", "not settled: it was sent again once before".into()),
    }
}

fn answer(status: u16, settled: &str, text: &str) -> Answer {
    Answer::json(status, json!({ "settled": settled, "text": text }).to_string() + "\n")
}
