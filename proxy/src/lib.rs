//! The RESP proxy and the Raft node of Redfence.

#![forbid(unsafe_code)]
// A new variant of an enum of ours must not compile until every match has decided.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants))]

pub mod acl;
pub mod admin;
pub mod backup;
pub mod calendar;
pub mod cli;
pub mod client_memory;
pub mod clock;
pub mod config;
pub mod events;
pub mod log_text;
pub mod node_api;
pub mod resp;
pub mod retries;
pub mod secret;
pub mod serve;
pub mod server;
pub mod shutdown;
pub mod storage;
pub mod threads;
pub mod tier1;
pub mod tier2;
pub mod tls;
pub mod transport;
