//! Tier 2: the raft node inside the proxy.
//!
//! # Layout
//!
//! - [`ports`]: everything that crosses the border between the node and its shell; [`wire`]: bytes of what nodes tell each other
//! - [`node`]: the node's state and the order of a turn; [`config`]: its sizes and times
//! - `requests.rs`, `pending.rs`, `stage.rs`, `read.rs`: the way of a request into the log, and of a read past it
//! - `scripts/`: scripts, run by the leader; their effects enter the log
//! - `ready.rs`, `apply.rs`, `persist.rs`, `log.rs`: the steps of a raft Ready, the machine, the disk, the log's tail
//! - `stamps.rs`, `duties.rs`: the logical clock, and what a leader does without being asked
//! - `membership.rs`, `snapshots.rs` and `snapshot/`, `status.rs`, `shutdown.rs`
//! - [`handle`], [`inbox`]: what the rest of the proxy sees, and its queue into the node's thread; [`news`]: what apply tells it
//! - [`shell`]: the threads, files and sockets around the node
//! - [`refusals`]: error texts; `simnet/`: clusters on a simulated network, for tests and the simulator
//!
//! # Caveats
//!
//! - A request that waited in a transport queue when its connection broke counts as sent: its client is told
//!   `INDETERMINATE` though it may never have arrived.
//! - ttl is a lower bound: time without a leader, and beyond 500 ms of a leader that slept, is added to every deadline.
//!   It counts from the leader's stamp, so a slow commit shortens what is left of it when the answer arrives.

mod apply;
mod chance;
pub mod config;
mod deadlines;
mod duties;
pub mod handle;
pub mod inbox;
mod log;
mod membership;
pub mod news;
pub mod node;
mod pace;
mod pending;
mod persist;
pub mod ports;
mod read;
mod ready;
pub mod refusals;
mod requests;
pub mod scripts;
pub mod shell;
mod shutdown;
#[doc(hidden)]
pub mod simnet;
pub(crate) mod snapshot;
mod snapshots;
mod stage;
mod stamps;
mod status;
mod telling;
#[cfg(test)]
mod tests;
pub mod wire;

pub use config::Config;
pub use node::Node;
/// For whoever looks at the data of a stopped node.
pub use snapshot::pieces::load as load_snapshot;
