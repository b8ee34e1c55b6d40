//! `POST /v1/adopt`: a person's word that these files are the ones, as `onceward adopt`.
//!
//! Body: `{"note": "...", "waiting": "send" | "hold"}`. Answers `{"text": "..."}`: 200 done, 409 nothing is held for that
//! reason (or a restart is needed first), 422 a field is wrong.

use rusqlite::Connection;
use serde_json::json;

use super::routes::Request;
use super::settle::NOTE_CHARS_MAX;
use super::wire::Answer;
use super::{Context, committed};
use crate::adopt::{Adoption, Waiting};
use crate::db::writer::Work;
use crate::db::{self, Durability, Part};
use crate::hold::Why;
use crate::store::meta;
use crate::store::source::{self, Source};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    note: String,
    waiting: String,
    /// See `settle.rs`.
    #[serde(default)]
    who: String,
}

pub(super) fn adopt(context: &Context, request: &Request<'_>) -> Answer {
    let Ok(asked) = serde_json::from_slice::<Asked>(request.body) else {
        return answer(422, "expected {\"note\": \"...\", \"waiting\": \"send|hold\"}");
    };
    let Some(waiting) = Waiting::parse(&asked.waiting) else {
        return answer(422, "waiting is not send or hold");
    };
    if asked.note.trim().is_empty() || asked.note.chars().count() > NOTE_CHARS_MAX {
        return answer(422, "note is empty or longer than 500 characters");
    }
    let hold = &context.ward.hold;
    if hold.is(Why::Files) {
        return answer(409, "the agent has other files open than lie there now: restart it first");
    }
    if !hold.is(Why::Copy) {
        return answer(409, "nothing to adopt: the agent is not held for a copy or older files");
    }
    let who = request.peer.name(&asked.who);
    match take_over(context, who, asked.note, waiting) {
        Ok((held, sources)) => {
            log::warn!("adopted: waiting messages: {}, {held} are HELD now", waiting.as_str());
            answer(200, &said(waiting, held, &sources))
        }
        Err(answer) => answer,
    }
}

/// The sentences for people.
pub fn said(waiting: Waiting, held: usize, sources: &[Source]) -> String {
    let mut text = match waiting {
        Waiting::Send => "adopted: what waits is sent".into(),
        Waiting::Hold => format!("adopted: {held} waiting messages are HELD; release or cancel them"),
    };
    for Source { name, file, .. } in sources {
        text.push_str(&format!(
            "\nsource {name} is not served until you take it over, since the copied agent may serve it; what waits in it becomes HELD then: `onceward source add {name} {file} --adopt`"
        ));
    }
    text
}

fn take_over(
    context: &Context,
    who: String,
    note: String,
    waiting: Waiting,
) -> Result<(usize, Vec<Source>), Answer> {
    let failed = |error: String| answer(503, &format!("not adopted, still held: {error}"));
    let (adoption, copied, sources) = {
        let reader = context.inbox.get().map_err(|error| failed(error.to_string()))?;
        let outside = context.ward.make_witnesses().map_err(|error| failed(error.to_string()))?;
        Adoption::new(&reader, &context.state, outside, who, note, waiting)
            .and_then(|adoption| {
                let copied = meta::get(&reader, "agent_id")?.unwrap_or_default();
                Ok((adoption, copied, source::list(&reader)?))
            })
            .map_err(|error| failed(error.to_string()))?
    };
    let mut outbox = db::open_writer(&context.state.outbox(), Part::Outbox, Durability::Full)
        .map_err(|error| failed(error.to_string()))?;
    let held = adoption.outbox(&mut outbox, &copied).map_err(|error| failed(error.to_string()))?;
    let (sender, reply) = crossbeam_channel::bounded(1);
    context.writer.submit(Box::new(AdoptNow { adoption: adoption.clone(), reply: sender }));
    committed(&reply)?;
    context.agent_id.set(&adoption.agent_id);
    let reader = context.inbox.get().map_err(|error| failed(error.to_string()))?;
    let witness = adoption.witness(&reader, &outbox).map_err(|error| failed(error.to_string()))?;
    context
        .ward
        .adopted(witness)
        .map_err(|error| failed(format!("the witness cannot be written: {error}")))?;
    Ok((held, sources))
}

struct AdoptNow {
    adoption: Adoption,
    reply: crossbeam_channel::Sender<Result<(), String>>,
}

impl Work for AdoptNow {
    fn apply(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.adoption.inbox(connection)
    }
    fn committed(self: Box<Self>) {
        let _ = self.reply.send(Ok(()));
    }
    fn failed(self: Box<Self>, why: &str) {
        let _ = self.reply.send(Err(why.to_owned()));
    }
    /// Who asked is told and may ask again.
    fn must_land(&self) -> bool {
        false
    }
}

fn answer(status: u16, text: &str) -> Answer {
    Answer::json(status, json!({ "text": text }).to_string() + "\n")
}
