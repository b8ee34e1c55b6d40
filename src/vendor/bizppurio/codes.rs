//! BizPpurio's API codes: what each means and what it proves about a message. One row a code.
//!
//! For answers to our own calls only. Reports have a table of their own ([`super::report_codes`]): there 5000 means
//! delivered and 5001 to 5003 are failures of another channel. A code without a row proves nothing.

use super::Source;

/// The vendor's response-codes page, BIZAPI v3.11.1.
const PAGE: Source =
    Source { document: "bizppurio.github.io response-codes, BIZAPI v3.11.1", dated: "2026-07-20" };

/// What a code proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Taken.
    Accepted,
    /// Read and refused for good: the same message would be refused again.
    Rejected,
    /// Not taken; the token is to be renewed.
    TokenInvalid,
    /// Not taken; the account, this machine's address or the url is refused: a person must act.
    Denied,
    /// Not taken; too fast.
    Throttled,
    /// Proves nothing about a message.
    Unknown,
}

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// The number.
    pub code: u16,
    /// What it proves.
    pub class: Class,
    /// In our words.
    pub meaning: &'static str,
    /// Where that stands.
    pub source: Source,
}

const fn row(code: u16, class: Class, meaning: &'static str) -> Code {
    Code { code, class, meaning, source: PAGE }
}

/// The table, by number. The vendor advises to call again after 9000, 5003, 5004 and 5005; nothing in its pages says
/// that the message was not taken then, so here they prove nothing. The same holds for 3011. What belongs to the
/// report calls alone (3012, 3013, 5000) proves nothing either, should a send ever be answered with it.
pub const CODES: &[Code] = &[
    row(1000, Class::Accepted, "accepted"),
    row(2000, Class::Rejected, "message not valid"),
    row(3000, Class::Denied, "the account has no allowed address; register this machine's with the vendor"),
    row(3001, Class::Denied, "login not valid; check account and password"),
    row(3002, Class::TokenInvalid, "token not valid"),
    row(3003, Class::Denied, "this machine's address is not valid for the account"),
    row(3004, Class::Denied, "account not valid"),
    row(3005, Class::TokenInvalid, "bearer token missing or not valid"),
    row(3006, Class::Denied, "account does not exist; check account"),
    row(3007, Class::Denied, "wrong password; check password"),
    row(3008, Class::Throttled, "too many connections of the account"),
    row(3009, Class::Denied, "account suspended; ask the vendor"),
    row(3010, Class::Denied, "this machine's address is not the registered one"),
    row(3011, Class::Unknown, "unknown error inside the vendor"),
    row(3012, Class::Unknown, "no such message (an answer of the report call)"),
    row(3013, Class::Unknown, "not completed yet (an answer of the report call)"),
    row(3014, Class::Rejected, "data format error"),
    row(5000, Class::Unknown, "report could not be requested again (an answer of the report call)"),
    row(5001, Class::Denied, "no such uri; check url"),
    row(5002, Class::Throttled, "rate limit"),
    row(5003, Class::Unknown, "unknown error or gateway error"),
    row(5004, Class::Unknown, "too many connections inside the vendor"),
    row(5005, Class::Unknown, "unknown error or gateway timeout"),
    row(9000, Class::Unknown, "unknown error"),
];

/// The row of a code.
pub fn look_up(code: u16) -> Option<&'static Code> {
    CODES.binary_search_by_key(&code, |row| row.code).ok().map(|index| &CODES[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_found() {
        assert!(CODES.is_sorted_by(|a, b| a.code < b.code));
        for row in CODES {
            assert_eq!(look_up(row.code), Some(row));
            assert!(!row.meaning.is_empty() && row.source.dated.len() == 10);
        }
        assert_eq!(look_up(1001), None);
    }

    #[test]
    fn only_one_code_is_an_acceptance_and_no_server_error_is_a_proof() {
        let of =
            |class| CODES.iter().filter(|row| row.class == class).map(|row| row.code).collect::<Vec<_>>();
        assert_eq!(of(Class::Accepted), [1000]);
        assert_eq!(of(Class::TokenInvalid), [3002, 3005]);
        assert_eq!(of(Class::Throttled), [3008, 5002]);
        assert_eq!(of(Class::Rejected), [2000, 3014]);
        assert_eq!(of(Class::Unknown), [3011, 3012, 3013, 5000, 5003, 5004, 5005, 9000]);
    }
}
