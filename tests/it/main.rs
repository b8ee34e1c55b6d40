//! The failure table and the commands, against the real binary: real processes, real files, real HTTP, real kills.
//!
//! Belongs here: whatever needs a running agent, a shell or another language. Does not: rules that a pure function
//! holds (they are tested beside it), and the HTTP client's experiment table (`tests/http_client.rs`).

mod support;

mod cli;
mod cli_look;
mod cli_verbs;
mod documents;
mod f_alerts;
mod f_api;
mod f_clock;
mod f_copies;
mod f_dest;
mod f_disk;
mod f_flow;
mod f_held;
mod f_http;
mod f_order;
mod f_outage;
mod f_policy;
mod f_producer;
mod f_relay;
mod f_reports;
mod f_retention;
mod f_source;
mod f_stop;
mod f_users;
mod f_worker;
mod hostile;
mod producers;
mod report_lists;
mod schema;
mod show_waits;
mod soak;
mod source_alerts;
mod source_counts;
mod source_verbs;
mod torture;
mod trace;
mod upgrade;
mod verify;
