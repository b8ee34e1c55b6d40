//! Pure: what an adapter will say of a message before any claim, for commands that put messages or show them.
//!
//! The same encoders as in the adapters, without a client: no CA file, no secret, no network. Sizes are counted as the
//! vendor counts them, numbers brought into the form that is stored.

use serde_json::Value;

use super::bizppurio::{self, Sized};
use super::{Unfit, http};
use crate::config::{DestinationSettings, Settings, VendorSettings};
use crate::message::Message;
use crate::policy::number;

/// One checker for each destination.
pub struct Fitness {
    checkers: Vec<(String, Checker)>,
}

#[expect(clippy::large_enum_variant, reason = "one for each destination, made once")]
enum Checker {
    BizPpurio(crate::config::BizPpurioSettings),
    Http(http::Encoder),
}

/// What was found out about a message that can be sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fit {
    /// The recipient as it should be stored, where that differs from what was given.
    pub recipient: Option<String>,
    /// Texts with a limit, as the vendor counts them.
    pub sizes: Vec<Sized>,
}

impl Fitness {
    /// Compiles templates; fails with a text for people.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let checkers = settings
            .destinations
            .iter()
            .map(|destination| Ok((destination.name.clone(), checker(destination)?)))
            .collect::<Result<_, String>>()?;
        Ok(Self { checkers })
    }

    /// Whether the message's destination could ever send it. A destination that the settings do not have says nothing:
    /// the relay parks such a row where a person sees it.
    pub fn check(&self, message: &Message) -> Result<Fit, Unfit> {
        let found = self.checkers.iter().find(|(name, _)| name == message.destination.as_str());
        match found.map(|(_, checker)| checker) {
            None => Ok(Fit::default()),
            Some(Checker::Http(encoder)) => encoder.prepare(message).map(|_| Fit::default()),
            Some(Checker::BizPpurio(settings)) => {
                bizppurio::check(settings, message)?;
                let payload: Value = serde_json::from_str(&message.payload).unwrap_or(Value::Null);
                let country = payload.get("country").and_then(Value::as_str);
                let stored = number::stored(&message.recipient, country).map_err(Unfit::new)?;
                Ok(Fit {
                    recipient: Some(stored).filter(|stored| *stored != message.recipient),
                    sizes: bizppurio::sizes(&payload),
                })
            }
        }
    }
}

fn checker(destination: &DestinationSettings) -> Result<Checker, String> {
    Ok(match &destination.vendor {
        VendorSettings::BizPpurio(settings) => Checker::BizPpurio(settings.clone()),
        VendorSettings::Http(settings) => Checker::Http(
            http::Encoder::new(settings)
                .map_err(|reason| format!("[[destination]] {}: {reason}", destination.name))?,
        ),
    })
}
