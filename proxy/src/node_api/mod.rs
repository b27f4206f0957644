//! The interface between the Raft node (`tier2::Node`) and the code around it: everything that goes into the node and
//! everything that comes out of it. Used by `tier2`, `storage`, `transport`, `events` and `server`; knows none of them.
//!
//! The node owns no socket, no file, no thread and no clock. Its shell (one thread) hands it [`Input`]s and carries out
//! [`Outputs`]; the simulator does the same with a simulated network and disk. Nobody else touches these types, except
//! that the transport moves [`PeerMessage`]s and the log writer carries out [`PersistTask`]s.
//!
//! # One turn of the shell
//!
//! 1. Wait for inputs until [`Outputs::wake_at_us`] of the turn before.
//! 2. Hand over all that came (`Node::input` for each, at most a few thousand), then call `Node::turn` once.
//! 3. `send` may leave at once, before anything is written. `persist` goes to the log writer in order; the writer merges
//!    what queued up, syncs once, posts [`Input::Persisted`] with the highest number, **and then** sends each task's `after`.
//!    In this order: an answer to such a message must not reach the node before the report does (raft asserts on it).
//! 4. `snapshot_ops` go, in order, to whoever writes snapshot files (not the log writer: a large fsync must not hold up the
//!    log). `replies`, `events`, `status`, `members` go to the handle and to the transport.
//! 5. `fatal`: log it and stop the process at once, without another write. `stopped`: leave the loop.
//!
//! # What start-up guarantees
//!
//! The storage hands over [`Recovered`]. `boot` is strictly higher than at every earlier start of this data directory and is
//! durable before the node is made. `snapshot` is the one the log's own records name; files they do not name were
//! left by an interrupted write, and are deleted. Every data directory starts with [`SnapshotMeta::founding`] (or
//! [`SnapshotMeta::joining`]) written before the first start.
//!
//! # Identities
//!
//! - *Cluster id*: a hash of the sorted founding list (`id=addr,…`), computed at the first start and durable from then on; after
//!   a restore from a backup a new random one. A joining node has none and takes the one in the first greeting of a
//!   peer of its configuration, durably, before it answers.
//! - *Store id*: 16 random bytes made with the data directory. The greeting carries protocol version, cluster id, node id
//!   and store id. Each node remembers, durably, the first store id it saw for `(id, added_at)` of a [`ClusterMember`] and refuses
//!   any other: a wiped disk under an old id would vote twice. Removing and adding the id again gives it a new `added_at`,
//!   and with it a fresh start.
//! - A greeting of an id that is no member is still accepted when the cluster id fits: the node itself answers such a peer
//!   with [`PeerMessage::NotMember`], so that a removed node learns of its removal.

mod admin_acts;
pub mod apply_feed;
pub mod backup_file;
mod input;
mod log;
mod output;
mod peer;
mod query;
mod snapshot;
pub mod snapshot_stream;
mod status;
pub mod wire;

pub use crate::clock::{CpuClock, Now};
pub use admin_acts::AdminActs;
pub use input::{AdminRequest, Input, Read, Submit, WAIT_FOREVER};
pub use log::{LogPosition, LogReader, PersistTask, Recovered, StoreError};
pub use output::{ClientKeyAccess, Outputs, WakeFilter};
pub use peer::{
    Forward, Forwarded, MemberProgress, PeerMessage, PeerSink, SnapshotAck, SnapshotChunk, TransferState,
};
pub use query::OwnedQuery;
pub use snapshot::{SnapshotId, SnapshotMeta, SnapshotOp};
pub use status::{ClusterMember, ClusterStatus, DigestStatus, NodeStatus, Role};

/// The id of a member, 1 to 65,535.
pub type NodeId = u64;
/// The address of a member that no other can reach.
pub const NO_ADDRESS: &str = "none";

/// Which Raft group a frame or a storage key belongs to. There is only one group today; the formats already carry the id.
pub type GroupId = u16;
pub const GROUP: GroupId = 0;

/// Identifies a waiting client of this node. Chosen by the caller; unique among the tickets in use.
pub type Ticket = u64;

/// A client's connection to its node. Commands of one connection enter the log in the order they were sent. 0: no connection.
pub type ConnectionId = u64;
