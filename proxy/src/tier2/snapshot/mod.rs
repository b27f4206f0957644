//! Snapshots of the machine: made between turns, written in pieces, sent to followers that are too far behind, received from a
//! leader, read back at start-up. The format of a snapshot file is in [`crate::node_api::snapshot_stream`].
//!
//! # Layout
//!
//! - `coordinator.rs`: when a snapshot is made or sent, and what follows from it
//! - `making.rs`: our own; - `sending.rs`: to followers; - `receiving.rs`: from a leader
//! - `backups.rs`: clients that read a snapshot

pub(super) mod backups;
pub(super) mod coordinator;
pub(super) mod making;
pub(super) mod receiving;
pub(super) mod sending;
