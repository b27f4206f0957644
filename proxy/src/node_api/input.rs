//! What the node is given: requests of clients, messages of peers, reports of its own disk.

use super::{ConnectionId, NodeId, OwnedQuery, PeerMessage, SnapshotId, Ticket};
use crate::client_memory::Account;
use bytes::Bytes;
use redfence_core::machine::Wanted;
use redfence_core::types::SessionId;
use std::sync::Arc;

/// What the node is told.
#[derive(Debug)]
pub enum Input {
    Submit(Submit),
    Read(Read),
    /// The client behind a submitted wait is gone. No reply follows. Unknown tickets are passed over.
    Cancel {
        ticket: Ticket,
    },
    /// As [`Input::Cancel`], but the answer is wanted: the wait may have been served already, or be served before it is called off.
    Withdraw {
        ticket: Ticket,
    },
    /// Sessions whose connections were active (or are blocked in a WAIT) since the last report. Batched into the log.
    SessionsTouched(Vec<SessionId>),
    /// The connections that opened these sessions are closed.
    SessionsOrphaned {
        ids: Vec<SessionId>,
        grace_ms: u64,
    },
    /// What anybody wants to hear of here, besides replies. Starts with nothing.
    Wanted(Wanted),
    Peer {
        from: NodeId,
        message: PeerMessage,
    },
    /// The connection to a peer was lost, or its queue was full and something was dropped.
    Unreachable(NodeId),
    /// Every [`PersistTask`] up to and including this number is durable.
    Persisted {
        number: u64,
    },
    /// The log could not be written. The node answers with `fatal`.
    PersistFailed {
        reason: String,
    },
    /// So many bytes of a snapshot file were written (need not be durable). Keeps the amount under way bounded.
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
    /// Hand leadership over, refuse what is new, then report `stopped` (within a second or two).
    Shutdown,
    /// Nothing happened but time.
    Wake,
}

impl Input {
    /// What a client or a peer has sent with it: for queues that are bounded in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Input::Submit(submit) => submit.blob.len(),
            Input::Read(read) => read.query.bytes(),
            Input::Peer { message, .. } => message.bytes(),
            _ => 0,
        }
    }
}

/// A command for the log, already encoded by `redfence_core` on the front's own task.
#[derive(Clone, Debug)]
pub struct Submit {
    pub ticket: Ticket,
    pub connection: ConnectionId,
    pub blob: Bytes,
    /// How long the client may be kept waiting for an answer that says something: 5 s by default.
    pub timeout_ms: u64,
    /// What the command itself may wait in a queue (`WAIT`), 0 for all others. Comes on top of the patience.
    pub wait_ms: u64,
}

/// [`Submit::wait_ms`] of a command that waits until it is served or called off (`BLPOP key 0`). Its patience is for getting
/// into the queue.
pub const WAIT_FOREVER: u64 = u64::MAX;

/// A linearizable look at the state.
#[derive(Clone, Debug)]
pub struct Read {
    pub ticket: Ticket,
    pub query: OwnedQuery,
    pub timeout_ms: u64,
    /// The client whose memory its reply is counted to. Where that client has not taken enough of its replies the read comes back in
    /// [`Outputs::deferred`].
    pub account: Option<Arc<Account>>,
}

/// `LOCK.CLUSTER ADD / REMOVE / TRANSFER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRequest {
    Add { id: NodeId, addr: String },
    Remove { id: NodeId },
    Transfer { id: NodeId },
}
