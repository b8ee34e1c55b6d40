//! Recipients that make something happen, for people who try the agent without writing rules.
//!
//! The last four digits of the recipient choose; in force only when [`super::SandboxOptions::magic`] is set,
//! and behind the rules in force. The table [`TABLE`] is all there is: text for people beside the rule itself.

use std::collections::HashMap;
use std::sync::Arc;

use super::rule::Rule;

/// One line of the table.
pub struct Magic {
    /// How the recipient ends.
    pub ending: &'static str,
    /// Only the first request of each reference.
    pub once: bool,
    /// The rule, as in [`super::rule`].
    pub rule: &'static str,
    /// For people.
    pub what: &'static str,
}

const fn always(ending: &'static str, rule: &'static str, what: &'static str) -> Magic {
    Magic { ending, once: false, rule, what }
}

const fn once(ending: &'static str, rule: &'static str, what: &'static str) -> Magic {
    Magic { ending, once: true, rule, what }
}

/// Every magic recipient.
pub const TABLE: &[Magic] = &[
    always("0400", "code=2000", "rejected for good (400, code 2000)"),
    once("0401", "code=3002", "first call: token no longer valid (400, code 3002); then accepted"),
    once(
        "0429",
        "status=429,retry_after=1,body={\"code\":5002}",
        "first call: 429, Retry-After 1; then accepted",
    ),
    always("0500", "code=9000", "500, code 9000: nobody knows; no report comes"),
    always("0501", "reset", "connection reset after reading; taken all the same, a report comes"),
    always("0502", "html=502", "a proxy's HTML page with 502; no report comes"),
    always("0503", "cut=body", "answer cut in half; taken all the same, a report comes"),
    always("0504", "hang=20s", "no answer for 20 s, then closed; taken all the same, a report comes"),
    always("0505", "reset,report=no", "connection reset after reading; no report ever comes"),
    always("0506", "garbage", "bytes that are not HTTP; taken all the same, a report comes"),
    always("0509", "delay=3s", "slow: the answer takes 3 s"),
    always("0302", "redirect=302", "redirect 302, must not be followed"),
    always("0307", "redirect=307", "redirect 307, must not be followed"),
    always("0410", "report=7308", "accepted, then reported as undeliverable (number error)"),
    always("0411", "report=twice", "accepted, the same report comes twice"),
    always("0412", "report=no", "accepted, no report ever comes"),
    always("0413", "report=fallback", "accepted, the main channel fails and an SMS is delivered instead"),
];

/// The table, ready to be asked.
pub(super) struct MagicRules(HashMap<&'static str, (bool, Arc<Rule>)>);

impl MagicRules {
    pub(super) fn new() -> Self {
        let read = |line: &Magic| {
            let rule = Rule::parse(line.rule).expect("every line of the table is read by a test");
            (line.ending, (line.once, Arc::new(rule)))
        };
        Self(TABLE.iter().map(read).collect())
    }

    /// The rule for this recipient, on the `arrived`th request of its reference.
    pub(super) fn decide(&self, recipient: &str, arrived: u32) -> Option<Arc<Rule>> {
        let ending = recipient.get(recipient.len().checked_sub(4)?..)?;
        let (once, rule) = self.0.get(ending)?;
        (!once || arrived == 1).then(|| Arc::clone(rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_rule_and_endings_differ() {
        assert_eq!(MagicRules::new().0.len(), TABLE.len());
    }

    #[test]
    fn once_means_the_first_request_of_a_reference() {
        let rules = MagicRules::new();
        assert!(rules.decide("01000000429", 1).is_some());
        assert!(rules.decide("01000000429", 2).is_none());
        assert!(rules.decide("01000000400", 2).is_some());
        assert!(rules.decide("01000001234", 1).is_none());
        assert!(rules.decide("429", 1).is_none());
        assert!(rules.decide("전화번호", 1).is_none());
    }
}
