//! The canonical form of a payload and the fingerprint over it: the same content is one text, other content never is.

use std::borrow::Cow;

use serde_json::Value;

use super::world::line;
use crate::fingerprint::{canonical, of_parts};
use crate::vendor::json;

/// Kind and recipient on two lines, then a payload.
pub(super) fn run(bytes: &[u8]) {
    let (kind, rest) = line(bytes);
    let (recipient, payload) = line(rest);
    let text = |bytes| std::str::from_utf8(bytes).ok().filter(|text: &&str| !text.contains('\0'));
    let (Some(kind), Some(recipient), Some(payload)) = (text(kind), text(recipient), text(payload)) else {
        return;
    };
    let once = canonical(payload);
    assert_eq!(canonical(&once), once, "canonical is at rest");
    let fingerprint = of_parts(kind, recipient, payload);
    assert_eq!(fingerprint.len(), 34);
    assert_eq!(of_parts(kind, recipient, &once), fingerprint, "the form does not matter");
    // Any other three contents have another one; that the parts are told apart, too.
    let ours = (kind.to_owned(), recipient.to_owned(), once.to_string());
    for (kind, recipient, payload) in [
        (format!("{kind}x"), recipient.to_owned(), payload.to_owned()),
        (kind.to_owned(), format!("{recipient}x"), payload.to_owned()),
        (kind.to_owned(), recipient.to_owned(), format!("{payload}x")),
        (format!("{kind}{recipient}"), String::new(), payload.to_owned()),
        (String::new(), format!("{kind}{recipient}"), payload.to_owned()),
    ] {
        let other = of_parts(&kind, &recipient, &payload);
        let theirs = (kind, recipient, canonical(&payload).into_owned());
        assert_eq!(theirs == ours, other == fingerprint, "{theirs:?}");
    }

    let read: Option<Value> = serde_json::from_str(payload).ok();
    let strict = json::strict(payload.as_bytes());
    // Strict is the same reading, or none.
    if let Some(strict) = &strict {
        assert_eq!(Some(strict), read.as_ref());
        if once != payload {
            assert_eq!(serde_json::from_str::<Value>(&once).ok().as_ref(), Some(strict), "the same content");
        }
        // Where a number has no exact form, the text stands as it is, spaces and all.
        if matches!(once, Cow::Owned(_)) {
            let pretty = serde_json::to_string_pretty(strict).unwrap_or_default();
            assert_eq!(canonical(&pretty), once, "spaces are no content");
        }
    } else {
        assert_eq!(once, payload, "what is not understood is not changed");
    }
}
