//! Messages between nodes. Their encoding is in [`super::wire`].

use super::{AdminRequest, ConnectionId, NodeId};
use bytes::Bytes;
use raft::eraftpb::Message;
use redfence_core::machine::version::{ClusterVersion, VersionRange};
use redfence_core::types::Origin;

/// A message between nodes. The handshake of a connection belongs to the transport.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    Raft(Box<Message>),
    Forward(Forward),
    SnapshotChunk(SnapshotChunk),
    SnapshotAck(SnapshotAck),
    /// An operator's request, passed on to the leader. Idempotent; there is no reply, its effect shows in the membership.
    Admin {
        /// The sender's applied index: a message older than the last membership change is ignored.
        applied: u64,
        request: AdminRequest,
    },
    /// "You are no member as of this log index."
    NotMember {
        conf_index: u64,
    },
    /// The leader's view of the members, for `LOCK.CLUSTER NODES` at the others. Nothing is decided by it.
    Progress(Vec<MemberProgress>),
    /// To the leader of this term: the cluster versions that the sender can run, and a hash of its ACL users (0: not known).
    Versions {
        term: u64,
        range: VersionRange,
        users: u64,
    },
}

/// How far a member is, as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    pub id: NodeId,
    pub matched: u64,
    pub up: bool,
    /// The newest cluster version it can run, 0 where it has not said so in this term.
    pub version: ClusterVersion,
    /// A hash of its ACL users, 0 where it has not reported it in this term.
    pub users: u64,
}

impl PeerMessage {
    /// Bytes of its payload.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            PeerMessage::Raft(message) => message.entries.iter().map(|entry| entry.data.len()).sum(),
            PeerMessage::Forward(forward) => forward.commands.iter().map(|command| command.blob.len()).sum(),
            PeerMessage::SnapshotChunk(chunk) => chunk.bytes.len(),
            PeerMessage::SnapshotAck(_)
            | PeerMessage::Admin { .. }
            | PeerMessage::NotMember { .. }
            | PeerMessage::Progress(_)
            | PeerMessage::Versions { .. } => 0,
        }
    }
}

/// Commands of one node's clients, forwarded to the leader, which stamps them.
///
/// A leader takes a batch only in its own term and only if it has staged all that was sent before (see `tier2/requests/staging.rs`): a batch that
/// was lost, dropped or overtaken is sent again together with everything behind it, so commands never change order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    pub origin: Origin,
    /// The term of the leader it is meant for. A later one is sent everything anew.
    pub term: u64,
    /// The unsettled request before the first one of this batch; 0 where there is none.
    pub prev: u64,
    /// Every request of this origin below this one is settled: its remembered reply can go.
    pub acked_below: u64,
    /// In rising order of their numbers; one without a number is alone.
    pub commands: Vec<Forwarded>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    pub seq: u64,
    pub connection: ConnectionId,
    pub blob: Bytes,
}

/// A piece of a snapshot, leader to follower.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotChunk {
    /// The sender's number for this transfer; a new one for each try.
    pub transfer: u64,
    pub offset: u64,
    pub bytes: Bytes,
    /// Only in the chunk at offset 0: the raft message (`MsgSnapshot`) this file belongs to. Its data is an encoded
    /// [`SnapshotMeta`].
    pub message: Option<Box<Message>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotAck {
    pub transfer: u64,
    pub received_bytes: u64,
    pub state: TransferState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferState {
    InProgress,
    /// Stored, and handed to raft.
    Done,
    Failed,
}

/// Receives the messages of peers.
pub trait PeerSink: Send + Sync + 'static {
    /// False: dropped, because the node's queue is full.
    fn message(&self, from: NodeId, message: PeerMessage) -> bool;
    fn unreachable(&self, id: NodeId);
    /// The peer closed its connection, and nobody listens on its port.
    fn refused(&self, id: NodeId);
    /// A message to it was dropped, because its queue is full: it counts as unreachable.
    fn dropped(&self, id: NodeId) {
        self.unreachable(id);
    }
}
