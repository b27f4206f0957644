//! What the nodes of a cluster agree on about themselves.
//!
//! # Layout
//!
//! - `membership.rs`: members, their addresses, and changes of both

pub(super) mod membership;
