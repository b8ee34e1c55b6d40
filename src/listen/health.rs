//! `GET /healthz` (it runs) and `GET /readyz` (it can send: recovered, and outcomes can be written).

use std::sync::atomic::Ordering;

use super::Context;
use super::routes::Request;
use super::wire::Answer;

pub(super) fn alive(_: &Context, _: &Request<'_>) -> Answer {
    Answer::text(200, "ok\n")
}

pub(super) fn ready(context: &Context, _: &Request<'_>) -> Answer {
    if !context.ready.load(Ordering::Relaxed) {
        return Answer::text(503, "starting or stopping\n");
    }
    if let Some(reason) = context.ward.hold.reason() {
        return Answer::text(503, format!("held: {reason}\n"));
    }
    if context.writer.is_in_trouble() {
        return Answer::text(503, "the inbox cannot be written: nothing is sent until it can\n");
    }
    Answer::text(200, "ready\n")
}
