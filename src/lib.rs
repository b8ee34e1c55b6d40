//! **Once, but never lost.** Keeps messages for customers in local SQLite and forwards each to a vendor's HTTP
//! API at most once; whatever stays unknown is shown to a person.
#![forbid(unsafe_code)]

pub mod config;
pub mod lifecycle;
pub mod limits;
pub mod message;
pub mod store;
pub mod vendor;
