//! What a turn of the node produces, for its shell to carry out.

use super::{ClusterMember, ClusterStatus, NodeId, OwnedQuery, PeerMessage, PersistTask, SnapshotOp, Ticket};
use bytes::Bytes;
use redfence_core::event::Event;
use redfence_core::keyspace::Value;
use redfence_core::machine::{AdminAct, Loss};
use redfence_core::reply::Reply;
use redfence_core::types::SessionId;

/// What the shell must carry out after a turn. Reused by its owner: [`Outputs::clear`] keeps the allocations.
#[derive(Debug, Default)]
pub struct Outputs {
    /// May leave before anything is written.
    pub send: Vec<(NodeId, PeerMessage)>,
    pub persist: Vec<PersistTask>,
    pub snapshot_ops: Vec<SnapshotOp>,
    /// Exactly one per ticket, unless the ticket was cancelled.
    pub replies: Vec<(Ticket, Reply)>,
    /// Reads that are not answered, because their client has too many unread replies. In place of a reply.
    pub deferred: Vec<(Ticket, OwnedQuery)>,
    /// Only of entries that were new to this start of the node, like `published`.
    pub events: Vec<Event>,
    /// Grants that have ended, in order.
    pub losses: Vec<Loss>,
    /// What was published: channel and message, in order.
    pub published: Vec<(Bytes, Bytes)>,
    /// Reads and changes of keys, in order.
    pub key_accesses: Vec<ClientKeyAccess>,
    /// The last entry applied.
    pub entry_index: u64,
    /// Sessions that clients' connections were reported for and that are not there (any more).
    pub absent_sessions: Vec<SessionId>,
    /// Administrative commands called by scripts of this node's clients.
    pub admin_acts: Vec<(Ticket, AdminAct)>,
    /// Large values that were deleted, to be freed on another thread.
    pub garbage: Vec<Value>,
    /// A snapshot was installed in place of log entries: their events and published messages were never seen on this node.
    pub missed: bool,
    /// Set when something in it changed.
    pub status: Option<ClusterStatus>,
    /// Set at the first turn and whenever membership changed: whom the transport talks to, and where.
    pub members: Option<Vec<ClusterMember>>,
    /// Call again at this time at the latest.
    pub wake_at_us: u64,
    pub wake_filter: WakeFilter,
    /// The process must stop now, non-zero, without writing anything more.
    pub fatal: Option<String>,
    /// After [`Input::Shutdown`]: nothing more to do.
    pub stopped: bool,
}

impl Outputs {
    pub fn clear(&mut self) {
        self.send.clear();
        self.persist.clear();
        self.snapshot_ops.clear();
        self.replies.clear();
        self.deferred.clear();
        self.events.clear();
        self.losses.clear();
        self.published.clear();
        self.key_accesses.clear();
        self.absent_sessions.clear();
        self.admin_acts.clear();
        self.garbage.clear();
        self.missed = false;
        self.status = None;
        self.members = None;
        self.wake_at_us = 0;
        self.wake_filter = WakeFilter::default();
        self.fatal = None;
        self.stopped = false;
    }
}

/// Wake-up filter of the node's thread while it sleeps until [`Outputs::wake_at_us`]. Any input not listed here wakes it at once;
/// waking it earlier than the filter asks for is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeFilter {
    /// Wake once this many client requests are queued.
    pub requests: usize,
    /// Whether the report that a log write is durable wakes the thread.
    pub durable: bool,
}

impl Default for WakeFilter {
    fn default() -> WakeFilter {
        WakeFilter { requests: 1, durable: true }
    }
}

/// A read or change of a key, for client tracking: the machine's own record with request ids replaced by tickets of this node's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientKeyAccess {
    Read {
        by: Ticket,
        key: Bytes,
    },
    /// `by`: where a client of this node did it.
    Changed {
        by: Option<Ticket>,
        key: Bytes,
    },
    Flushed,
}
