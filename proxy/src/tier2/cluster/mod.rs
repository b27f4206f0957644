//! The state of the cluster itself: its members, its version, and whether the replicas agree.
//!
//! # Layout
//!
//! - `digests.rs`: what this node reports of its state, and what it does where it differs
//! - `membership.rs`: members, their addresses, and changes of both
//! - `peer_checks.rs`: what a peer may send
//! - `versions.rs`: what members can run, and the cluster version

pub(super) mod digests;
pub(super) mod membership;
pub(super) mod peer_checks;
pub(super) mod versions;
