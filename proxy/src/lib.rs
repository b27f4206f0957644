//! The RESP proxy and the Raft node of Redfence.
//!
//! # Layout
//!
//! From a client's bytes to the log and back:
//!
//! - [`resp`]: the Redis wire protocol; [`tls`]: TLS for clients and towards the upstream Redis
//! - [`server`]: what a Redis client meets: connections, routing, commands; [`acl`]: users and their rights
//! - [`tier1`]: the upstream Redis; [`events`]: channels and tracked keys; [`client_memory`]: the bytes held for clients
//! - [`tier2`]: the Raft node, a struct without I/O, and the threads around it; [`node_api`]: what goes into it and comes out
//! - [`storage`]: the data directory; [`transport`]: connections between nodes
//!
//! The program: [`cli`] and [`config`] (flags, environment, file), [`secret`], [`redis_place`] (where the upstream Redis is), [`serve`] (puts a node together), [`threads`],
//! [`shutdown`], [`notify`] (systemd), [`admin`] (probes and metrics), [`backup`] (backup and restore), [`health`] and [`join`] (for containers),
//! [`log_text`].
//! Used by all: [`clock`], [`calendar`], [`metrics`], [`retries`].
//!
//! Which of these may use which is in `tests/module_graph.rs`; what runs through which file is in `docs/internals`.

#![forbid(unsafe_code)]
// A new variant of an enum of ours must not compile until every match has decided.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants))]
// They panic where nobody reads any more: `cli::output` has `say` and `tell`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod acl;
pub mod admin;
pub mod backup;
pub mod calendar;
pub mod cli;
pub mod client_memory;
pub mod clock;
pub mod config;
pub mod events;
pub mod health;
pub mod join;
pub mod log_text;
pub mod metrics;
pub mod node_api;
pub mod notify;
pub mod redis_place;
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
