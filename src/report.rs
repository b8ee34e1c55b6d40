//! Pure: a vendor's report in one form, whichever way it came, and what all reports of a message make of it.
//!
//! The end does not depend on the order in which the answer to our call and the reports arrive: it is computed from the
//! set of them ([`settle`]). A report that comes while the call is still out waits in its table until the outcome is
//! recorded. [`intake`] takes them in, once each. Serves F29. Never reads a clock, a table or a number: the recipient's
//! number is not even read.

pub mod intake;

use serde_json::{Map, Value};

use crate::lifecycle::{InboxEvent, InboxState};
use crate::message::Destination;
use crate::once::Fingerprint;
use crate::vendor::bizppurio::report_codes::{self, Delivery};

// The longest fields that are taken, characters: together an event's id, which holds 200 (`ONCE_KEY_CHARS_MAX`). The
// documented ones are far shorter: references have at most 32, codes 4.
const ITEM_CHARS_MAX: usize = 80;
const MEDIUM_CHARS_MAX: usize = 20;
const CODE_CHARS_MAX: usize = 20;
const REFERENCE_CHARS_MAX: usize = 70;
const VENDOR_REF_CHARS_MAX: usize = 100;
const SEPARATORS: usize = 3;
const _: () = assert!(
    ITEM_CHARS_MAX + MEDIUM_CHARS_MAX + CODE_CHARS_MAX + REFERENCE_CHARS_MAX + SEPARATORS
        <= crate::limits::ONCE_KEY_CHARS_MAX
);

/// What a result code says about the customer's phone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Verdict {
    /// It is there.
    Delivered,
    /// It is not there and will not be.
    Undelivered,
    /// The vendor itself cannot say.
    Uncertain,
    /// A code that our table does not have: for a person to look up.
    Unlisted,
}

impl Verdict {
    /// The capitals used in SQL, logs and CLI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "DELIVERED",
            Self::Undelivered => "UNDELIVERED",
            Self::Uncertain => "UNCERTAIN",
            Self::Unlisted => "UNLISTED",
        }
    }
    /// Reads the capitals.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Delivered, Self::Undelivered, Self::Uncertain, Self::Unlisted]
            .into_iter()
            .find(|verdict| verdict.as_str() == text)
    }
    /// Whether two different ones about one item cannot both be true.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Delivered | Self::Undelivered)
    }
}

/// How a report came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The vendor called us.
    Webhook,
    /// We asked.
    Poll,
}

impl Way {
    /// The capitals used in SQL and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Webhook => "WEBHOOK",
            Self::Poll => "POLL",
        }
    }
}

/// One report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The vendor's id of one sent item; what a poll confirms.
    pub vendor_item: String,
    /// Its medium, as the vendor names it; may be empty. A fallback is another item, even under the same id.
    pub medium: String,
    /// Our reference; empty where the report names none.
    pub reference: String,
    /// The key that the answer to our call held.
    pub vendor_ref: Option<String>,
    /// Result code.
    pub code: String,
    /// What it means.
    pub verdict: Verdict,
    /// In words.
    pub meaning: &'static str,
    /// The vendor's own time, UTC milliseconds.
    pub said_at_ms: Option<i64>,
}

impl Report {
    /// What the report is about: the same item is told of again, or contradicted.
    pub fn item(&self) -> String {
        format!("{}/{}", self.vendor_item, self.medium)
    }

    /// What stands for one that cannot be read, beside others that can: its digest, so that a repeat is only counted, and
    /// the message it may be about; none of its other values. It settles nothing and is shown.
    pub fn unreadable(value: &Value) -> Self {
        let reference = value
            .as_object()
            .map(|fields| field(fields, &["REFKEY"], REFERENCE_CHARS_MAX))
            .and_then(Result::ok);
        Self {
            vendor_item: format!("unreadable {}", Fingerprint::of(1, &[&value.to_string()])),
            medium: String::new(),
            reference: reference.flatten().unwrap_or_default(),
            vendor_ref: None,
            code: "unreadable".into(),
            verdict: Verdict::Unlisted,
            meaning: "a report that cannot be read: ask the vendor",
            said_at_ms: None,
        }
    }
}

/// The consumers, as `once` has them, of what an account's vendor reports: its reports, and how its items ended.
pub fn consumers(account: &Destination) -> [String; 2] {
    [format!("report:{account}"), format!("report-end:{account}")]
}

/// The event that a report is. The same item, code and reference: the same report, however often and whenever it comes.
pub fn event(item: &str, code: &str, reference: &str) -> String {
    format!("{item}/{code}/{reference}")
}

/// What the event that an item ended says: how, and for whom; the event itself is the item. `None` for what settles
/// nothing.
pub fn end(verdict: Verdict, reference: &str) -> Option<String> {
    (verdict.is_final() && !reference.is_empty()).then(|| format!("{} {reference}", verdict.as_str()))
}

/// Why something is no report; names fields, never values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// Reads one BizPpurio report: keys in upper case (webhook) or lower case (poll), values as text or numbers.
pub fn normalise(value: &Value) -> Result<Report, Unreadable> {
    let Value::Object(fields) = value else {
        return Err(Unreadable("a report is a JSON object".into()));
    };
    let required = |name: &str, chars_max| {
        field(fields, &[name], chars_max)?.ok_or_else(|| Unreadable(format!("a report without {name}")))
    };
    let vendor_item = required("MSGID", ITEM_CHARS_MAX)?;
    let code = required("RESULT", CODE_CHARS_MAX)?;
    let (verdict, meaning) = match report_codes::look_up(&code) {
        Some(row) => (
            match row.delivery {
                Delivery::Delivered => Verdict::Delivered,
                Delivery::Undelivered => Verdict::Undelivered,
                Delivery::Uncertain => Verdict::Uncertain,
            },
            row.meaning,
        ),
        None => (Verdict::Unlisted, "a result code that is not in our table"),
    };
    // One vendor document spells it without the second I.
    let seconds =
        field(fields, &["UNIXTIME", "UNIXTME"], CODE_CHARS_MAX)?.and_then(|text| text.parse::<i64>().ok());
    Ok(Report {
        vendor_item,
        medium: field(fields, &["MEDIA"], MEDIUM_CHARS_MAX)?.unwrap_or_default(),
        reference: field(fields, &["REFKEY"], REFERENCE_CHARS_MAX)?.unwrap_or_default(),
        vendor_ref: field(fields, &["CMSGID"], VENDOR_REF_CHARS_MAX)?,
        code,
        verdict,
        meaning,
        said_at_ms: seconds.and_then(|seconds| seconds.checked_mul(1000)),
    })
}

/// The first of the names that has a value, in any case; text or a number, trimmed, bounded. A name that stands there
/// twice, in two cases, says two things, and is refused.
fn field(
    fields: &Map<String, Value>,
    names: &[&str],
    chars_max: usize,
) -> Result<Option<String>, Unreadable> {
    for name in names {
        let mut named =
            fields.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let found = named.next();
        if named.next().is_some() {
            return Err(Unreadable(format!("{name} is there twice")));
        }
        let text = match found {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(Value::Number(number)) => number.to_string(),
            Some(_) => return Err(Unreadable(format!("{name} is neither text nor a number"))),
        };
        if text.chars().count() > chars_max || text.contains(char::is_control) {
            return Err(Unreadable(format!("{name} is longer than {chars_max} characters, or not plain")));
        }
        if !text.is_empty() {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// What one stored report says of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    /// What it means.
    pub verdict: Verdict,
    /// The vendor's code.
    pub code: String,
    /// In words.
    pub meaning: String,
}

/// What all reports together make of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement<'s> {
    /// The move.
    pub event: InboxEvent,
    /// `delivery` from now on.
    pub delivery: Verdict,
    /// The report that decides.
    pub by: &'s Said,
}

/// The rule, as a pure table; `said` in the order of the vendor's own times. `None` = the reports change nothing.
///
/// | row | any says DELIVERED | else any says UNDELIVERED | else |
/// |---|---|---|---|
/// | SENDING | waits for the outcome | waits | waits |
/// | ERROR | SENT | FAILED | stays ERROR |
/// | SENT | delivery | delivery | - |
/// | FAILED | SENT | delivery | - |
///
/// One delivery is enough: of a message with a fallback the phone has it, whichever report comes first.
pub fn settle(state: InboxState, said: &[Said]) -> Option<Settlement<'_>> {
    if state == InboxState::Sending {
        return None;
    }
    let newest = |verdict| said.iter().rev().find(|said| said.verdict == verdict);
    let by = newest(Verdict::Delivered).or_else(|| newest(Verdict::Undelivered))?;
    let event = match (state, by.verdict) {
        (InboxState::Error, Verdict::Delivered) => InboxEvent::SettleSent,
        (InboxState::Error, _) => InboxEvent::SettleFailed,
        (InboxState::Failed, Verdict::Delivered) => InboxEvent::Delivered,
        _ => InboxEvent::Report,
    };
    Some(Settlement { event, delivery: by.verdict, by })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::InboxMove;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn both_ways_are_one_form() {
        let posted = json!({"DEVICE": "SMS", "CMSGID": "c1", "MSGID": "m1", "PHONE": "01000000001", "MEDIA": "SMS",
            "UNIXTIME": "1700000000", "RESULT": "4100", "REFKEY": "ow-1"});
        let polled = json!({"device": "SMS", "cmsgid": "c1", "msgid": "m1", "phone": "01000000001", "media": "SMS",
            "unixtme": 1700000000, "result": 4100, "refkey": "ow-1"});
        let report = normalise(&posted).expect("a report");
        assert_eq!(normalise(&polled), Ok(report.clone()));
        assert_eq!((report.item().as_str(), report.verdict), ("m1/SMS", Verdict::Delivered));
        assert_eq!(report.said_at_ms, Some(1_700_000_000_000));
        assert!(!format!("{report:?}").contains("0100"), "the number is not read");
    }

    #[test]
    fn what_is_no_report_is_said_without_its_values() {
        for (value, said) in [
            (json!([]), "a report is a JSON object"),
            (json!({"RESULT": "4100"}), "a report without MSGID"),
            (json!({"MSGID": "m"}), "a report without RESULT"),
            (json!({"MSGID": "m", "RESULT": ["4100"]}), "RESULT is neither text nor a number"),
            (
                json!({"MSGID": "m".repeat(101), "RESULT": "1"}),
                "MSGID is longer than 80 characters, or not plain",
            ),
        ] {
            assert_eq!(normalise(&value), Err(Unreadable(said.into())));
        }
        let unlisted = normalise(&json!({"MSGID": "m", "RESULT": "1000"})).expect("a report");
        assert_eq!(
            unlisted.verdict,
            Verdict::Unlisted,
            "1000 is an API code; reports have a table of their own"
        );
    }

    fn said(verdict: Verdict) -> Said {
        Said { verdict, code: verdict.as_str().into(), meaning: String::new() }
    }

    #[test]
    fn the_table() {
        use InboxState as S;
        use Verdict::{Delivered as D, Uncertain as C, Undelivered as U, Unlisted as N};
        for (state, verdicts, end) in [
            (S::Sending, &[D][..], "SENDING"),
            (S::Sending, &[U], "SENDING"),
            (S::Error, &[D], "SENT DELIVERED"),
            (S::Error, &[U], "FAILED UNDELIVERED"),
            (S::Error, &[U, D], "SENT DELIVERED"),
            (S::Error, &[D, U], "SENT DELIVERED"),
            (S::Error, &[C, D], "SENT DELIVERED"),
            (S::Error, &[C], "ERROR"),
            (S::Error, &[N], "ERROR"),
            (S::Error, &[], "ERROR"),
            (S::Sent, &[D], "SENT DELIVERED"),
            (S::Sent, &[U, C], "SENT UNDELIVERED"),
            (S::Sent, &[D, U], "SENT DELIVERED"),
            (S::Sent, &[C, N], "SENT"),
            (S::Failed, &[U], "FAILED UNDELIVERED"),
            (S::Failed, &[U, D], "SENT DELIVERED"),
            (S::Failed, &[C], "FAILED"),
        ] {
            assert_eq!(after(state, verdicts), end, "{state} {verdicts:?}");
        }
    }

    /// State and delivery after one look at these reports.
    fn after(state: InboxState, verdicts: &[Verdict]) -> String {
        let said: Vec<Said> = verdicts.iter().copied().map(self::said).collect();
        match settle(state, &said) {
            None => state.to_string(),
            Some(settlement) => match state.after(settlement.event) {
                Some(InboxMove::To(to)) => format!("{to} {}", settlement.delivery.as_str()),
                other => panic!("{state} --{:?}--> {other:?} is not in the table", settlement.event),
            },
        }
    }

    /// Steps: `None` is the end of the call, `Some` a report; applied one by one, as the store does.
    fn end(outcome: InboxState, steps: &[Option<Verdict>]) -> (InboxState, Option<Verdict>) {
        let (mut state, mut delivery, mut known) = (InboxState::Sending, None, Vec::new());
        for step in steps {
            match step {
                None => state = outcome,
                Some(verdict) => known.push(said(*verdict)),
            }
            if let Some(settlement) = settle(state, &known) {
                if let Some(InboxMove::To(to)) = state.after(settlement.event) {
                    state = to;
                }
                delivery = Some(settlement.delivery);
            }
        }
        (state, delivery)
    }

    proptest! {
        #[test]
        fn the_order_of_answer_and_reports_does_not_matter(
            outcome in prop::sample::select(vec![InboxState::Sent, InboxState::Failed, InboxState::Error]),
            (steps, shuffled) in prop::collection::vec(
                prop::sample::select(vec![
                    Verdict::Delivered, Verdict::Undelivered, Verdict::Uncertain, Verdict::Unlisted,
                ]), 0..5)
                .prop_map(|verdicts| {
                    let mut steps: Vec<_> = verdicts.into_iter().map(Some).collect();
                    steps.push(None);
                    steps
                })
                .prop_flat_map(|steps| (Just(steps.clone()), Just(steps).prop_shuffle())),
        ) {
            prop_assert_eq!(end(outcome, &steps), end(outcome, &shuffled));
        }
    }
}
