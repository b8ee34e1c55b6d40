//! BizPpurio's API codes: what each means and what it proves. One row a code, with its source; reports have a table of
//! their own (5000 there means delivered), so this one is never used for them.
//!
//! Source unless noted: the vendor's response-codes page, BIZAPI v3.11.1, 2026-07-20. The vendor advises to retry 9000,
//! 5003, 5004 and 5005; nothing there says that the message was not taken, so here they are unknown.

/// What a code proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Taken.
    Accepted,
    /// Read and refused for good.
    Rejected,
    /// Not taken; the token is to be renewed.
    TokenInvalid,
    /// Not taken; the account or this machine's address is refused.
    Denied,
    /// Not taken; too fast.
    Throttled,
    /// Not taken; the url is wrong.
    NoSuchUri,
    /// Proves nothing.
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
}

const fn row(code: u16, class: Class, meaning: &'static str) -> Code {
    Code { code, class, meaning }
}

/// The table.
pub const CODES: &[Code] = &[
    row(1000, Class::Accepted, "accepted"),
    row(2000, Class::Rejected, "message not valid"),
    row(3000, Class::Denied, "the account has no registered address"),
    row(3001, Class::Denied, "login not valid"),
    row(3002, Class::TokenInvalid, "token not valid"),
    row(3003, Class::Denied, "this machine's address is not valid for the account"),
    row(3004, Class::Denied, "account not valid"),
    row(3005, Class::TokenInvalid, "bearer token missing or not valid"),
    row(3006, Class::Denied, "account does not exist"),
    row(3007, Class::Denied, "wrong password"),
    row(3008, Class::Throttled, "too many connections of the account"),
    row(3009, Class::Denied, "account suspended"),
    row(3010, Class::Denied, "this machine's address is not the registered one"),
    row(3011, Class::Unknown, "unknown error inside the vendor"),
    row(3014, Class::Rejected, "data format error"),
    row(5001, Class::NoSuchUri, "no such uri"),
    row(5002, Class::Throttled, "rate limit"),
    row(5003, Class::Unknown, "unknown error or gateway error"),
    row(5004, Class::Unknown, "too many connections at the vendor"),
    row(5005, Class::Unknown, "gateway time-out"),
    row(9000, Class::Unknown, "unknown error"),
];

/// The row of a code; what is not in the table is unknown.
pub fn look_up(code: u16) -> Option<&'static Code> {
    CODES.iter().find(|row| row.code == code)
}
