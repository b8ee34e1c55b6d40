//! **Once, but never lost.** Keeps messages for customers in local SQLite and forwards each to a vendor's HTTP
//! API at most once; whatever stays unknown is shown to a person.
//!
//! Reading order: [`message`], [`lifecycle`], `schema.sql`, [`store`], [`relay`], [`worker`], [`vendor`], [`agent`].
//! ARCHITECTURE.md has the picture.
//!
//! For applications: [`outbox::Outbox::enqueue`] puts a message into the caller's own transaction, and [`once::once`]
//! applies an event's effect once, however often the event is delivered.
#![forbid(unsafe_code)]

pub mod adopt;
pub mod agent;
pub mod alert;
pub mod archive;
pub mod cli;
pub mod clock;
pub mod config;
pub mod db;
pub mod deed;
pub mod exit;
pub mod fingerprint;
pub mod gate;
pub mod hand;
pub mod hold;
pub mod incarnation;
pub mod ledger;
pub mod lifecycle;
pub mod limits;
pub mod listen;
pub mod message;
pub mod once;
pub mod order;
pub mod outbox;
pub mod outboxes;
pub mod owner;
pub mod pause;
pub mod percent;
pub mod policy;
pub mod poller;
pub mod rate;
pub mod reconcile;
pub mod relay;
pub mod report;
pub mod retention;
pub mod retry;
pub mod route;
pub mod sandbox;
pub mod settle;
pub mod share;
pub mod slot;
pub mod source;
pub mod store;
pub mod sweeper;
pub mod thread;
pub mod vendor;
pub mod ward;
pub mod watch;
pub mod who;
pub mod worker;

/// What reads bytes of strangers, under hostile bytes: bodies of the fuzz targets. Not part of the program.
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/targets/mod.rs"]
pub mod hostile;
