//! Tier 2: the raft node inside the proxy.
//!
//! # Layout
//!
//! - [`ports`]: everything that crosses the border between the node and its shell
//! - [`handle`], [`inbox`]: what the rest of the proxy sees, and its queue into the node's thread
//! - [`wire`]: bytes of what nodes tell each other
//! - [`refusals`]: error texts

pub mod handle;
pub mod inbox;
pub mod ports;
pub mod refusals;
pub mod wire;
