//! What is looked at before a message is stored: lengths, ranges, times, and what its destination's adapter would say.
//!
//! Never: stores anything. Producers who write SQL do not pass here; what is unfit there is parked.

use crate::cli::{Failure, moment};
use crate::clock::trust::HORIZON_MS;
use crate::clock::wall_ms;
use crate::config::Settings;
use crate::exit;
use crate::message::{Destination, Message, MessageId};
use crate::store::outbox::NewMessage;
use crate::vendor::fitness::Fitness;

/// 2001-09-09 in milliseconds; what is below was meant in seconds.
const SECONDS_MAX: i64 = 1_000_000_000_000;

/// What is looked at before a message is stored.
pub struct Door<'a> {
    pub(super) settings: &'a Settings,
    /// `None`: as a producer who writes SQL, whose unfit messages are parked by the worker.
    fitness: Option<Fitness>,
}

impl<'a> Door<'a> {
    /// Lengths, ranges, and what the destination's adapter says of sizes and numbers.
    pub fn new(settings: &'a Settings) -> Result<Self, Failure> {
        let fitness = Fitness::new(settings).map_err(|reason| Failure::new(exit::SETTINGS, reason))?;
        Ok(Self { settings, fitness: Some(fitness) })
    }

    /// Lengths and ranges alone.
    pub fn lengths_only(settings: &'a Settings) -> Self {
        Self { settings, fitness: None }
    }

    /// The message as it is to be stored, and remarks for whoever wrote it; or the field that is wrong.
    pub(crate) fn check(&self, message: NewMessage) -> Result<(NewMessage, Vec<String>), String> {
        let mut message = fit(message, self.settings)?;
        let Some(fitness) = &self.fitness else { return Ok((message, Vec::new())) };
        times(&message, wall_ms())?;
        moment::plausible(message.not_before_ms, message.expires_at_ms)?;
        let fit = fitness.check(&as_sent(&message)).map_err(|unfit| {
            let field = ["recipient: ", "payload"].iter().any(|field| unfit.reason.starts_with(field));
            if field { unfit.reason } else { format!("payload: {}", unfit.reason) }
        })?;
        let flagged =
            fit.sizes.iter().filter(|size| size.outside_ksx1001 > 0).map(ToString::to_string).collect();
        if let Some(recipient) = fit.recipient {
            message.recipient = recipient;
        }
        Ok((message, flagged))
    }
}

/// Seconds or microseconds in a millisecond field, and times that nobody means.
fn times(message: &NewMessage, now_ms: i64) -> Result<(), String> {
    for (field, value) in [("not_before_ms", message.not_before_ms), ("expires_at_ms", message.expires_at_ms)]
    {
        let Some(value) = value else { continue };
        if value < SECONDS_MAX {
            return Err(format!("{field}: is before 2001; it takes milliseconds, not seconds"));
        }
        if field == "not_before_ms" && value > now_ms.saturating_add(HORIZON_MS) {
            return Err(format!("{field}: is more than {} days ahead", HORIZON_MS / 86_400_000));
        }
    }
    Ok(())
}

/// The message as its destination will see it; the id is one of the same length, made when the row is.
fn as_sent(message: &NewMessage) -> Message {
    Message {
        message_id: MessageId::new("ow-000000000000000000000000000"),
        dedup_key: message.dedup_key.clone(),
        kind: message.kind.clone(),
        class: message.class,
        destination: Destination::new(&message.destination),
        recipient: message.recipient.clone(),
        payload: message.payload.clone(),
        ordering_key: message.ordering_key.clone(),
        priority: message.priority,
        not_before_ms: message.not_before_ms.unwrap_or(0),
        expires_at_ms: message.expires_at_ms,
        created_at_ms: 0,
        traceparent: message.traceparent.clone(),
    }
}

/// Length and range checks with the field's name, and the destination by route.
fn fit(mut message: NewMessage, settings: &Settings) -> Result<NewMessage, String> {
    message.check().map_err(|bad| bad.to_string())?;
    if message.destination.is_empty() {
        // What no route matches is stored all the same: the relay parks it where a person sees it.
        message.destination =
            crate::route::destination(&settings.routes, &message.kind).unwrap_or_default().to_owned();
    }
    Ok(message)
}
