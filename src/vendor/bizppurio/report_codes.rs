//! BizPpurio's result codes: what a report (webhook or poll) says became of a message. One row a code.
//!
//! Never used for answers to our own calls, whose codes overlap in number and differ in meaning ([`super::codes`]).
//! A result is final for the record and never a licence to send again, not even a timeout.

use super::Source;

/// The vendor's response-codes page, BIZAPI v3.11.1.
const PAGE: Source =
    Source { document: "bizppurio.github.io response-codes, BIZAPI v3.11.1", dated: "2026-07-20" };

/// What a result says about the customer's phone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It is there.
    Delivered,
    /// It is not there and will not be.
    Undelivered,
    /// Nobody can say (timeouts beyond the vendor, "success uncertain").
    Uncertain,
}

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReportCode {
    /// The number.
    pub code: u16,
    /// What it says.
    pub delivery: Delivery,
    /// In our words.
    pub meaning: &'static str,
    /// Where that stands.
    pub source: Source,
}

const fn row(code: u16, delivery: Delivery, meaning: &'static str) -> ReportCode {
    ReportCode { code, delivery, meaning, source: PAGE }
}

use Delivery::{Delivered, Uncertain, Undelivered};

/// The table, by number; a code without a row is for a person to look up.
pub const REPORT_CODES: &[ReportCode] = &[
    row(4100, Delivered, "SMS delivered"),
    row(4410, Undelivered, "SMS: wrong number"),
    row(4421, Uncertain, "SMS: timeout"),
    row(4430, Undelivered, "SMS: blocked as spam"),
    row(4431, Undelivered, "SMS: blocked as spam"),
    row(4434, Undelivered, "SMS: sender number not registered"),
    row(4443, Undelivered, "SMS: blocked as spam"),
    row(5000, Delivered, "Talktalk delivered"),
    row(5001, Undelivered, "Talktalk: failed"),
    row(5002, Undelivered, "Talktalk: failed"),
    row(5003, Undelivered, "Talktalk: failed"),
    row(6600, Delivered, "LMS or MMS delivered"),
    row(6601, Uncertain, "LMS or MMS: timeout"),
    row(6606, Undelivered, "LMS or MMS: wrong number"),
    row(6617, Undelivered, "LMS or MMS: blocked as spam"),
    row(6618, Undelivered, "LMS or MMS: blocked as spam"),
    row(6619, Undelivered, "LMS or MMS: blocked as spam"),
    row(6621, Undelivered, "LMS or MMS: too long"),
    row(6626, Undelivered, "LMS or MMS: recipient opted out by the 080 number"),
    row(6631, Undelivered, "LMS or MMS: sender number not registered"),
    row(6641, Undelivered, "LMS or MMS: blocked as spam"),
    row(7000, Delivered, "Kakao delivered"),
    row(7204, Undelivered, "Kakao: text differs from the template"),
    row(7305, Uncertain, "Kakao: success uncertain (may be told up to 30 days later)"),
    row(7306, Undelivered, "Kakao: system error"),
    row(7307, Uncertain, "Kakao: delayed"),
    row(7308, Undelivered, "Kakao: wrong number"),
    row(7314, Undelivered, "Kakao: too long"),
    row(7315, Undelivered, "Kakao: no such template"),
    row(7319, Undelivered, "Kakao: recipient does not use KakaoTalk"),
    row(7320, Undelivered, "Kakao: recipient blocks Alimtalk"),
    row(7322, Undelivered, "Kakao: outside the allowed hours"),
    row(7421, Uncertain, "Kakao: timeout"),
    row(7436, Undelivered, "Kakao: wallet empty"),
    row(7437, Undelivered, "Kakao: charge failed"),
    row(7521, Undelivered, "Kakao: limit on repeated sending"),
    row(8000, Delivered, "RCS delivered"),
    row(9020, Undelivered, "bad format, or more than 24 hours after the time to send"),
    row(9023, Uncertain, "timeout while waiting for a result"),
    row(9026, Undelivered, "recipient is on the blacklist"),
    row(9034, Uncertain, "timeout while waiting for a result"),
    row(9037, Uncertain, "timeout while waiting for a result"),
    row(9070, Undelivered, "prepaid balance used up"),
    row(9071, Undelivered, "postpaid limit reached"),
];

/// The row of a result, as a report writes it.
pub fn look_up(code: &str) -> Option<&'static ReportCode> {
    let code: u16 = code.trim().parse().ok()?;
    REPORT_CODES.binary_search_by_key(&code, |row| row.code).ok().map(|index| &REPORT_CODES[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_found() {
        assert!(REPORT_CODES.is_sorted_by(|a, b| a.code < b.code));
        for row in REPORT_CODES {
            assert_eq!(look_up(&row.code.to_string()), Some(row));
        }
        assert_eq!(look_up("1000"), None);
        assert_eq!(look_up(""), None);
    }

    #[test]
    fn five_channels_deliver_and_5000_is_one_of_them() {
        let delivered = REPORT_CODES.iter().filter(|row| row.delivery == Delivered).map(|row| row.code);
        assert_eq!(delivered.collect::<Vec<_>>(), [4100, 5000, 6600, 7000, 8000]);
        assert_ne!(
            super::super::codes::look_up(5000).map(|row| row.class),
            Some(super::super::codes::Class::Accepted)
        );
    }
}
