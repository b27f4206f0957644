//! Inputs of the node: requests of clients, messages from peers, reports of its own disk.

use super::{ConnectionId, NodeId, OwnedQuery, PeerMessage, SnapshotId, Ticket};
use crate::client_memory::Account;
use bytes::Bytes;
use redfence_core::machine::Wanted;
use redfence_core::types::SessionId;
use std::sync::Arc;

/// One input of the node.
#[derive(Debug)]
pub enum Input {
    Submit(Submit),
    Read(Read),
    /// The client of a submitted wait has disconnected. No reply follows. Unknown tickets are ignored.
    Cancel {
        ticket: Ticket,
    },
    /// As [`Input::Cancel`], but a reply is still wanted: the wait may have been served already, or be served before it is cancelled.
    Withdraw {
        ticket: Ticket,
    },
    /// Sessions whose connections were active (or are blocked in a WAIT) since the last report. Batched into the log.
    SessionsTouched(Vec<SessionId>),
    /// The same of sessions that may end before the next batch: into the log at once.
    SessionsInHurry(Vec<SessionId>),
    /// The connections that opened these sessions are closed.
    SessionsOrphaned {
        ids: Vec<SessionId>,
        grace_ms: u64,
        /// The last entry this node had applied when it last heard of the connection.
        heard_index: u64,
    },
    /// What this node's listeners want to receive besides replies. Initially nothing.
    Wanted(Wanted),
    /// A hash of this node's ACL users, for the others to compare. Initially 0: not known.
    Users(u64),
    Peer {
        from: NodeId,
        message: PeerMessage,
    },
    /// The connection to a peer was lost, or its queue was full and something was dropped.
    Unreachable(NodeId),
    /// The connection to a peer was closed by the other side, and nobody listens on its port: its process has ended.
    Refused(NodeId),
    /// Every [`PersistTask`] up to and including this number is durable.
    Persisted {
        number: u64,
    },
    /// The log could not be written. The node answers with `fatal`.
    PersistFailed {
        reason: String,
    },
    /// How many bytes of a snapshot file were written so far (not necessarily durable). Bounds the bytes in flight.
    SnapshotProgress {
        id: SnapshotId,
        written_bytes: u64,
    },
    /// After [`SnapshotOp::Finish`]: the file is durable under its final name, and so is its directory entry.
    SnapshotStored(SnapshotId),
    /// Writing a snapshot file failed, or its checksum did not fit. The file is gone. Not fatal: another try follows.
    SnapshotFailed {
        id: SnapshotId,
        reason: String,
    },
    Admin {
        ticket: Ticket,
        request: AdminRequest,
        timeout_ms: u64,
    },
    /// Transfer leadership, refuse new requests, then report `stopped` (within a second or two).
    Shutdown,
    /// Only time has passed.
    Wake,
    /// For tests: this replica is to differ from the others. Not in a release build.
    #[cfg(any(debug_assertions, feature = "mutants"))]
    Diverge(redfence_core::machine::digest::Divergence),
}

impl Input {
    /// Payload bytes that a client or a peer sent with it, for queues that are bounded in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Input::Submit(submit) => submit.blob.len(),
            Input::Read(read) => read.query.bytes(),
            Input::Peer { message, .. } => message.bytes(),
            Input::Cancel { .. }
            | Input::Withdraw { .. }
            | Input::SessionsTouched(_)
            | Input::SessionsInHurry(_)
            | Input::SessionsOrphaned { .. }
            | Input::Wanted(_)
            | Input::Users(_)
            | Input::Unreachable(_)
            | Input::Refused(_)
            | Input::Persisted { .. }
            | Input::PersistFailed { .. }
            | Input::SnapshotProgress { .. }
            | Input::SnapshotStored(_)
            | Input::SnapshotFailed { .. }
            | Input::Admin { .. }
            | Input::Shutdown
            | Input::Wake => 0,
            #[cfg(any(debug_assertions, feature = "mutants"))]
            Input::Diverge(_) => 0,
        }
    }
}

/// A command for the log, already encoded by `redfence_core` on the task of its connection.
#[derive(Clone, Debug)]
pub struct Submit {
    pub ticket: Ticket,
    pub connection: ConnectionId,
    pub blob: Bytes,
    /// After this time the client gets an error if the command has no result yet: 5 s by default.
    pub timeout_ms: u64,
    /// How long the command itself may wait in a lock queue (`WAIT`), 0 for all others. Added to `timeout_ms`.
    pub wait_ms: u64,
}

/// [`Submit::wait_ms`] of a command that waits until it is served or cancelled (`BLPOP key 0`). Its time-out covers only the time
/// until it is in the queue.
pub const WAIT_FOREVER: u64 = u64::MAX;

/// A linearizable read of the state.
#[derive(Clone, Debug)]
pub struct Read {
    pub ticket: Ticket,
    pub query: OwnedQuery,
    pub timeout_ms: u64,
    /// The client that the reply's memory is accounted to. If that client has too many unread replies, the read is returned in
    /// `Outputs::deferred` instead of being answered.
    pub account: Option<Arc<Account>>,
}

/// `LOCK.CLUSTER ADD / REMOVE / TRANSFER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRequest {
    Add { id: NodeId, addr: String },
    Remove { id: NodeId },
    Transfer { id: NodeId },
}
