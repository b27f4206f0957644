//! The state of the cluster itself: its members and its version.
//!
//! # Layout
//!
//! - `membership.rs`: members, their addresses, and changes of both
//! - `versions.rs`: what members can run, and the cluster version

pub(super) mod membership;
pub(super) mod versions;
