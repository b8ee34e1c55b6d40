//! The tables. The rule of this folder: a file per table (and a folder where its callers are many), verbs only, no
//! `set_state`; every move is one conditional statement that names the state (and the owner) it leaves. Zero rows
//! changed means somebody else was first.

pub mod alert;
pub mod attempt;
pub mod audit;
pub mod destination;
pub mod inbox;
pub mod incarnation;
pub mod inquiry;
pub mod intake;
pub mod meta;
pub mod once;
pub mod outbox;
pub mod purge;
pub mod rearm;
pub mod report;
pub mod source;
pub mod suppress;
pub mod tally;
