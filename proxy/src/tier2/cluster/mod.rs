//! The state of the cluster itself: its members.
//!
//! # Layout
//!
//! - `membership.rs`: members, their addresses, and changes of both

pub(super) mod membership;
