//! `POST /v1/destinations/{name}/pause`, `/resume` (`ALL` in the place of a name: every one) and `/probe`, as the commands.
//!
//! Body: `{"reason": "..."}` (a probe needs none). Answers `{"text": "..."}` and, for pause and resume, what became of
//! each; 200 done or so already, 404 no such destination, 422 a field is wrong, 503 not now.

use serde_json::json;

use super::routes::Request;
use super::wire::Answer;
use super::{Context, Served, committed, sentence};
use crate::clock::{self, wall_ms};
use crate::deed::Deed;
use crate::gate::Room;
use crate::pause::{self, Done, Pause};
use crate::relay::Event;
use crate::store::destination;

#[derive(serde::Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Asked {
    reason: String,
    /// Who says so, by their own word: see `guard.rs`.
    who: String,
}

pub(super) fn pause(context: &Context, request: &Request<'_>) -> Answer {
    change(context, request, true)
}

pub(super) fn resume(context: &Context, request: &Request<'_>) -> Answer {
    change(context, request, false)
}

fn change(context: &Context, request: &Request<'_>, paused: bool) -> Answer {
    let body: &[u8] = if request.body.is_empty() { b"{}" } else { request.body };
    let Ok(asked) = serde_json::from_slice::<Asked>(body) else {
        return sentence(422, "expected {\"reason\": \"...\"}");
    };
    if let Some(why) = pause::unfit(&asked.reason, paused) {
        return sentence(422, &format!("reason {why}"));
    }
    let Ok(reader) = context.inbox.get() else {
        return sentence(503, "the inbox cannot be read now; try again");
    };
    let Ok(known) = destination::all(&reader) else {
        return sentence(503, "the inbox cannot be read now; try again");
    };
    drop(reader);
    let settings: Vec<&str> = context.destinations.iter().map(|served| served.name.as_str()).collect();
    let Some(names) = pause::meant(&request.name(), &settings, &known) else {
        return sentence(404, "no destination has this name");
    };
    let (by, reason) = (request.peer.name(&asked.who), asked.reason);
    let gates: Vec<_> = context
        .destinations
        .iter()
        .filter(|served| names.contains(&served.name))
        .map(|served| served.gate.clone())
        .collect();
    let (told, why) = (names.join(", "), paused.then(|| reason.clone()));
    let relay = context.relay.clone();
    let deed = Pause { names, paused, reason, by };
    let (work, reply) = Deed::work(
        move |tx| pause::apply(tx, &deed, wall_ms()),
        // In the order of the commits, so that gates and table agree whoever asks at the same time.
        move |done: &Vec<Done>| {
            for gate in gates {
                gate.pause(why.clone());
            }
            if done.iter().any(|done| done.moved) {
                let verb = if why.is_some() { "paused" } else { "resumed" };
                log::warn!("dest={told} {verb} by an operator");
            }
            let _ = relay.send(Event::Wake);
        },
    );
    context.writer.submit(work);
    match committed(&reply) {
        Ok(done) => {
            let object = json!({ "destinations": done, "text": pause::said(&done, paused) });
            Answer::json(200, object.to_string() + "\n")
        }
        Err(answer) => answer,
    }
}

/// The next message to a closed destination goes now, as its probe; and one harmless exchange tells how it answers.
pub(super) fn probe(context: &Context, request: &Request<'_>) -> Answer {
    let name = request.name();
    let Some(Served { gate, vendor, .. }) = context.destinations.iter().find(|served| served.name == name)
    else {
        return sentence(404, "no destination has this name");
    };
    let paused = gate.is_paused();
    gate.probe_now(clock::mono());
    let _ = context.relay.send(Event::Wake);
    let probed = vendor.probe();
    let waits = matches!(gate.room(clock::mono()), Room::Shut(_)) && gate.closed_by().is_none();
    let note = match (paused, waits) {
        (true, _) => "; it is paused: nothing is sent until `onceward resume`",
        (false, true) => "; it has asked for a pause, which stands (see `onceward dest`)",
        (false, false) => "",
    };
    let (answers, text) = match probed {
        Ok(text) => (true, format!("{name} answers: {text}{note}")),
        Err(text) => (false, format!("{name} does not answer: {text}{note}")),
    };
    Answer::json(200, json!({ "answers": answers, "text": text }).to_string() + "\n")
}
