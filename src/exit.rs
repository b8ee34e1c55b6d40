//! The documented exit codes, after sysexits.

/// Done.
pub const OK: i32 = 0;
/// The command worked and the answer is "no".
pub const NO: i32 = 1;
/// Wrong usage.
pub const USAGE: i32 = 64;
/// Bad data, named with line and field.
pub const DATA: i32 = 65;
/// No such file or message.
pub const NO_INPUT: i32 = 66;
/// Unavailable; also: data newer than the program.
pub const UNAVAILABLE: i32 = 69;
/// A bug of ours.
pub const SOFTWARE: i32 = 70;
/// Cannot create.
pub const CANNOT_CREATE: i32 = 73;
/// Input or output failed.
pub const IO: i32 = 74;
/// Try again later: busy, disk full, held by another agent.
pub const TRY_AGAIN: i32 = 75;
/// Not permitted.
pub const NOT_PERMITTED: i32 = 77;
/// Settings wrong.
pub const SETTINGS: i32 = 78;
