//! Pure: an event as a consumer sees it, its fingerprint, and what becomes of a delivery. Touches no file.

use std::fmt;

use ring::digest::{Context, SHA256};

use super::OnceError;
use crate::limits::ONCE_KEY_CHARS_MAX;

/// A versioned hash of what an event means, so that one event id can never quietly stand for two contents.
///
/// The version is that of the *rule* by which the parts are made from the event (which fields, in which
/// form). Change the rule and the version together: only equal versions are compared. Put in whatever makes
/// the event this event: publisher, subject, schema version, content. It is a hash of meaning, not a
/// signature of bytes.
///
/// ```
/// use onceward::once::Fingerprint;
/// let a = Fingerprint::of(1, &["orders", "account-7", "10"]);
/// assert_eq!(a, Fingerprint::of(1, &["orders", "account-7", "10"]));
/// assert_ne!(a, Fingerprint::of(1, &["orders", "account-71", "0"]));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint {
    version: u32,
    text: String,
}

impl Fingerprint {
    /// SHA-256 over the parts, each with its length before it, so that no two lists of parts look alike.
    pub fn of<P: AsRef<[u8]>>(version: u32, parts: &[P]) -> Self {
        let mut context = Context::new(&SHA256);
        for part in parts {
            let part = part.as_ref();
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let digest = crate::fingerprint::hex(context.finish().as_ref());
        Self { version, text: format!("{version}:{digest}") }
    }

    /// The content itself instead of its hash: where it is short, holds nothing personal, and a person who looks into the
    /// quarantine should read it.
    pub(crate) fn plain(version: u32, content: &str) -> Self {
        Self { version, text: format!("{version}:{content}") }
    }

    /// The version of its rule.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// As it is stored: `VERSION:HASH`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What a stored text says of this content: same, other, or not comparable (another version).
    pub(super) fn compare(&self, stored: &str) -> Option<bool> {
        let (version, _) = stored.split_once(':')?;
        (version == self.version.to_string()).then(|| stored == self.text)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One delivery of one logical event to one consumer.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    pub(super) consumer: &'a str,
    pub(super) event_id: &'a str,
    pub(super) fingerprint: &'a Fingerprint,
    pub(super) older: &'a [Fingerprint],
    pub(super) effect_key: Option<&'a str>,
    pub(super) corrects: Option<&'a str>,
    pub(super) occurred_at_ms: Option<i64>,
}

impl<'a> Event<'a> {
    /// `consumer` is a namespace: analysis and rewards each take the same event once. `event_id` names the
    /// logical event, not the delivery, and not the order or account it is about: one order has many events.
    /// 1-200 characters each.
    pub fn new(consumer: &'a str, event_id: &'a str, fingerprint: &'a Fingerprint) -> Self {
        Self {
            consumer,
            event_id,
            fingerprint,
            older: &[],
            effect_key: None,
            corrects: None,
            occurred_at_ms: None,
        }
    }

    /// The same content under the rules of earlier versions, so that a redelivery of an event that was stored
    /// before the rule changed can still be compared. Without one of the stored version nothing is compared,
    /// and the event counts as known.
    pub fn older_fingerprints(mut self, older: &'a [Fingerprint]) -> Self {
        self.older = older;
        self
    }

    /// The right that may be used only once, whatever the event is called: `account/season/reward`. A second
    /// event for it is refused and kept for a person. Leave it out where two equal events are two purchases.
    pub fn effect_key(mut self, key: &'a str) -> Self {
        self.effect_key = Some(key);
        self
    }

    /// This event corrects that one (of the same consumer), which must have been applied before. Which
    /// corrections are allowed is for the effect to check; [`super::result_of`] gives it what came of the
    /// first.
    pub fn corrects(mut self, event_id: &'a str) -> Self {
        self.corrects = Some(event_id);
        self
    }

    /// When it happened, UTC milliseconds, as the event itself says and the same in every delivery. Needed by
    /// a consumer that forgets ([`super::forget`]); an event without a time is remembered for ever.
    pub fn occurred_at_ms(mut self, at_ms: i64) -> Self {
        self.occurred_at_ms = Some(at_ms);
        self
    }

    pub(super) fn check<E>(&self) -> Result<(), OnceError<E>> {
        let fields = [
            ("consumer", Some(self.consumer)),
            ("event_id", Some(self.event_id)),
            ("effect_key", self.effect_key),
            ("corrects", self.corrects),
        ];
        for (field, text) in fields {
            let count = text.map_or(1, |text| text.chars().count());
            if count == 0 || count > ONCE_KEY_CHARS_MAX {
                let reason = format!("1 to {ONCE_KEY_CHARS_MAX} characters were expected, not {count}");
                return Err(OnceError::Invalid { field, reason });
            }
            // SQLite's length() ends at a NUL, and so would the CHECK.
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(OnceError::Invalid { field, reason: "a NUL character".into() });
            }
        }
        if self.corrects == Some(self.event_id) {
            let reason = "an event cannot correct itself: give the correction an id of its own".into();
            return Err(OnceError::Invalid { field: "corrects", reason });
        }
        Ok(())
    }

    /// Whether the stored content is this one; `None` = no common version.
    pub(super) fn same_content(&self, stored: &str) -> Option<bool> {
        std::iter::once(self.fingerprint).chain(self.older).find_map(|print| print.compare(stored))
    }
}

/// What became of a delivery.
#[must_use = "only some answers may be acknowledged"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Once<R> {
    /// The effect ran now, and its result is stored.
    Applied(R),
    /// It had run before; this is the stored result. Nothing was done.
    Repeated(R),
    /// It corrects an event that is not known here: nothing was done or kept. It may come before the first,
    /// so have it delivered again later, and show it to a person where that never helps.
    NotYet,
    /// Nothing was done; the delivery is kept in `onceward_once_quarantine` for a person.
    Refused(Refusal),
}

impl<R> Once<R> {
    /// Whether the broker may be told to forget the delivery. True for what is durably applied or durably
    /// refused.
    pub fn may_acknowledge(&self) -> bool {
        !matches!(self, Self::NotYet)
    }
}

/// Why a delivery was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The event id is known with other content. Neither applied nor called done.
    OtherContent,
    /// Another event has used up the effect key.
    SameEffect {
        /// That event.
        event_id: String,
    },
    /// Unknown, and from before the horizon: it may have been applied and forgotten.
    TooOld {
        /// The horizon, UTC milliseconds.
        before_ms: i64,
    },
    /// Unknown and without a time, while this consumer forgets: its age cannot be judged.
    NoTime,
}

impl Refusal {
    /// The capitals used in the quarantine, logs and documents.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::OtherContent => "SAME_EVENT_OTHER_CONTENT",
            Self::SameEffect { .. } => "SAME_EFFECT_OTHER_EVENT",
            Self::TooOld { .. } => "TOO_OLD",
            Self::NoTime => "NO_TIME",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        for (a, b) in
            [(vec!["ab", "c"], vec!["a", "bc"]), (vec!["ab"], vec!["ab", ""]), (vec!["a\0b"], vec!["a", "b"])]
        {
            assert_ne!(Fingerprint::of(1, &a), Fingerprint::of(1, &b), "{a:?} {b:?}");
        }
    }

    #[test]
    fn only_equal_versions_are_compared() {
        let [one, two, ten] = [1, 2, 10].map(|version| Fingerprint::of(version, &["x"]));
        assert_eq!(one.compare(one.as_str()), Some(true));
        assert_eq!(one.compare(Fingerprint::of(1, &["y"]).as_str()), Some(false));
        assert_eq!(one.compare(two.as_str()), None);
        assert_eq!(one.compare(ten.as_str()), None, "1 is not the beginning of 10");
        let older = [one.clone()];
        let event = Event::new("c", "e", &two).older_fingerprints(&older);
        assert_eq!(event.same_content(one.as_str()), Some(true));
        assert_eq!(event.same_content(Fingerprint::of(1, &["y"]).as_str()), Some(false));
        assert_eq!(event.same_content(ten.as_str()), None);
    }

    #[test]
    fn fields_are_named_where_they_do_not_fit() {
        let print = Fingerprint::of(1, &["x"]);
        let long = "가".repeat(ONCE_KEY_CHARS_MAX + 1);
        let fits = "가".repeat(ONCE_KEY_CHARS_MAX);
        for (event, expected) in [
            (Event::new("", "e", &print), Some("consumer")),
            (Event::new("c", &long, &print), Some("event_id")),
            (Event::new("c", "e", &print).effect_key("a\0b"), Some("effect_key")),
            (Event::new("c", "e", &print).corrects("e"), Some("corrects")),
            (Event::new("c", &fits, &print).effect_key(&fits).corrects("f"), None),
        ] {
            let found = match event.check::<()>() {
                Err(OnceError::Invalid { field, .. }) => Some(field),
                _ => None,
            };
            assert_eq!(found, expected);
        }
    }
}
