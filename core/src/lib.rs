//! One grammar and one deterministic lock machine, the heart of every part of Redfence.
//!
//! Pure: no clock, no I/O, no threads, no randomness, no iteration in hash order. Time is data: every entry carries a stamp
//! somebody else took.
//!
//! # Layout
//!
//! - [`types`]: ids, times, fences and the limits of the commands
//! - [`limits`]: limits in bytes, each derived from the one above it
//! - [`grammar`]: argv → `Request`, one file a command; every error text
//! - [`reply`]: what a command answers, and the `Sink` a front renders it into
//! - [`event`]: what watchers see
//! - [`glob`]: Redis's patterns
//! - [`routes`]: which tier serves which names
//! - [`keyspace`]: Redis's commands over keys somebody else keeps
//! - [`script`]: Lua scripts over the keyspace, run on the leader; their effects are what is logged
//! - [`machine`]: the state machine
//! - [`mutants`]: bugs planted on purpose, in test builds alone

#![forbid(unsafe_code)]
// A new variant of an enum of ours must not compile until every match has decided.
#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants))]

pub mod event;
pub mod glob;
pub mod grammar;
pub mod keyspace;
pub mod limits;
pub mod machine;
pub mod mutants;
pub mod reply;
pub mod routes;
pub mod script;
pub mod types;
