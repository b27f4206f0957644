//! Tier 2: the raft node inside the proxy.
//!
//! # Layout
//!
//! - [`ports`]: everything that crosses the border between the node and its shell

pub mod ports;
