//! Sole writer of `inbox`. (Interface; the body follows.)

use crate::message::{Destination, MessageId};

/// The right to call the vendor for one message: made only by a committed SENDING row, not cloneable, and
/// consumed by recording what came of it.
#[must_use = "a SENDING row whose outcome is never recorded ends as ERROR"]
pub struct Sending {
    consumer: Destination,
    message_id: MessageId,
}

impl Sending {
    /// The destination whose row this is.
    pub fn consumer(&self) -> &Destination {
        &self.consumer
    }
    /// The message.
    pub fn message_id(&self) -> &MessageId {
        &self.message_id
    }
    /// For adapters' tests only: a token that stands for no row.
    #[doc(hidden)]
    #[cfg(any(test, debug_assertions))]
    pub fn for_tests(consumer: Destination, message_id: MessageId) -> Self {
        Self { consumer, message_id }
    }
}
