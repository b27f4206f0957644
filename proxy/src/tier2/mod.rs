//! Tier 2: the Raft node inside the proxy.
//!
//! # Layout
//!
//! - [`node`]: the sans-I/O node: its state, the order of a turn, the steps of a Raft Ready, apply, leader tasks, shutdown
//! - `requests/`: the way of a request into the log (pending table, staging, batching), and of a read past it;
//!   heavy commands wait before they get a number
//! - `scripts/`: scripts, run by the leader; their effects enter the log
//! - `cluster/`: membership; `snapshot/`: making, sending and receiving snapshots
//! - [`handle`]: what the rest of the proxy sees, its bounded queue into the node's thread, and the deadlines of requests
//! - [`shell`]: the threads, files and sockets around the node
//! - [`config`]: sizes and times of a node; [`refusals`]: error texts; `seq_map`: a map for numbers given out in order
//! - `tests/`: unit tests of one node; whole clusters are tested on the simulator, in `tests/tests/node`
//!
//! The types between the node and its shell are in [`crate::node_api`].
//!
//! # Caveats
//!
//! - A request that waited in a transport queue when its connection broke counts as sent: its client gets
//!   `INDETERMINATE` though it may never have arrived.
//! - ttl is a lower bound: time without a leader, and beyond 500 ms of a leader that slept, is added to every deadline.
//!   It counts from the leader's stamp, so a slow commit shortens what is left of it when the answer arrives.

mod cluster;
pub mod config;
pub mod handle;
pub mod node;
pub mod refusals;
mod requests;
pub mod scripts;
mod seq_map;
pub mod shell;
mod snapshot;
#[cfg(test)]
mod tests;

/// For tools that read the data of a stopped node.
pub use crate::node_api::snapshot_stream::load as load_snapshot;
pub use config::{NodeConfig, QUIET_ENTRIES};
pub use node::Node;
