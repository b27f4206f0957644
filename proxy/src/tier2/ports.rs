//! The border of the node: everything that goes into [`super::Node`] and everything that comes out of it.
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
//! # What start-up promises
//!
//! The storage hands over [`Recovered`]. `boot` is strictly higher than at every earlier start of this data directory and is
//! durable before the node is made. `snapshot` is the one the log's own records name; files they do not name are strays of
//! an interrupted write, and are deleted. Every data directory starts with [`SnapshotMeta::founding`] (or
//! [`SnapshotMeta::joining`]) written before the first start.
//!
//! # Who is who
//!
//! - *Cluster id*: a hash of the sorted founding list (`id=addr,…`), computed at the first start and durable from then on; a
//!   joining node has none and takes the one in the first greeting of a peer it was told of, durably, before it answers.
//! - *Store id*: 16 random bytes made with the data directory. The greeting carries protocol version, cluster id, node id
//!   and store id. Each node remembers, durably, the first store id it saw for `(id, added_at)` of a [`Member`] and refuses
//!   any other: a wiped disk under an old id would vote twice. Removing and adding the id again gives it a new `added_at`,
//!   and with it a fresh start.
//! - A greeting of an id that is no member is still accepted when the cluster id fits: the node itself answers such a peer
//!   with [`PeerMessage::NotMember`], so that a removed node learns of its removal.

use crate::client_memory::Account;
use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, HardState, Message};
use redfence_core::event::Event;
use redfence_core::keyspace::{Resp, Value};
use redfence_core::machine::settings::Setting;
use redfence_core::machine::{KeysWalk, Machine, Query, Stats, Wanted, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{Member as RedlockMember, Origin, SessionId};
use std::sync::Arc;

/// A member's number, 1 to 65,535.
pub type NodeId = u64;

/// Which raft group a frame or a storage key belongs to. There is one today; the field is there from the first day.
pub type GroupId = u16;
pub const GROUP: GroupId = 0;

/// The shell's name for a waiting client: whatever number it likes, as long as no two live ones are equal.
pub type Ticket = u64;

/// A client's connection to its node. Commands of one connection enter the log in the order they came. 0: none, the node itself.
pub type ConnectionId = u64;

/// The only clocks the node sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, from any starting point.
    pub monotonic_us: u64,
    /// Since 1970. Serves fences alone.
    pub wall_us: u64,
}

impl Now {
    #[must_use]
    pub fn monotonic_ms(&self) -> u64 {
        self.monotonic_us / 1_000
    }
}

/// How much CPU time the node's thread has used. Asked while scripts run, and where work is cut into slices.
pub trait CpuClock: Send {
    fn thread_us(&mut self) -> u64;
}

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
        patience_ms: u64,
    },
    /// Hand leadership over, refuse what is new, then report `stopped` (within a second or two).
    Shutdown,
    /// Nothing happened but time.
    Wake,
}

/// A command for the log, already encoded by `redfence_core` on the front's own task.
#[derive(Clone, Debug)]
pub struct Submit {
    pub ticket: Ticket,
    pub connection: ConnectionId,
    pub blob: Bytes,
    /// How long the client may be kept waiting for an answer that says something: 5 s by default.
    pub patience_ms: u64,
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
    pub patience_ms: u64,
    /// The client whose memory its reply is counted to. Where that client has not taken enough of its replies the read comes back in
    /// [`Outputs::deferred`].
    pub account: Option<Arc<Account>>,
}

/// A look at the state, with bytes of its own to cross threads: [`redfence_core::machine::Query`], or one at plain keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedQuery {
    Info {
        db: u32,
        resource: Bytes,
    },
    Queue {
        db: u32,
        resource: Bytes,
    },
    Scan {
        db: u32,
        cursor: u64,
        pattern: Option<Bytes>,
        count: u64,
    },
    Session {
        id: SessionId,
    },
    /// `FENCE.GET`.
    Mark {
        db: u32,
        resource: Bytes,
    },
    /// All replicated settings, encoded.
    Settings,
    /// One of them, as text.
    Setting(Setting),
    /// How keys are, for `WATCH`: their tokens in the order asked, as integers of the same bits.
    Tokens {
        db: u32,
        keys: Vec<Bytes>,
    },
    /// A plain command that only reads.
    Redis {
        db: u32,
        resp: Resp,
        member: Option<RedlockMember>,
        argv: Vec<Bytes>,
    },
    /// `EVAL_RO`, `EVALSHA_RO`, or a script flagged `no-writes`.
    Script {
        db: u32,
        resp: Resp,
        member: Option<RedlockMember>,
        argv: Vec<Bytes>,
    },
}

impl OwnedQuery {
    /// A `KEYS`, which is answered in slices.
    #[must_use]
    pub fn keys_walk(&self) -> Option<KeysWalk> {
        let OwnedQuery::Redis { db, member, argv, .. } = self else { return None };
        KeysWalk::new(*member, *db, argv)
    }

    /// Answers from the state; scripts are answered by the node, which has the VM. `late_ms`: see [`Machine::query_later`].
    #[must_use]
    pub fn ask(&self, machine: &Machine, late_ms: u64) -> Reply {
        let query = match self {
            OwnedQuery::Info { db, resource } => Query::Info { db: *db, resource },
            OwnedQuery::Queue { db, resource } => Query::Queue { db: *db, resource },
            OwnedQuery::Scan { db, cursor, pattern, count } => {
                Query::Scan { db: *db, cursor: *cursor, pattern: pattern.as_deref(), count: *count }
            }
            OwnedQuery::Session { id } => Query::Session { id: *id },
            OwnedQuery::Mark { db, resource } => Query::Mark { db: *db, resource },
            OwnedQuery::Settings => Query::Settings,
            OwnedQuery::Setting(name) => Query::Setting(*name),
            OwnedQuery::Tokens { db, keys } => {
                let token = |key: &Bytes| Reply::Int(machine.watch_token(*db, key) as i64);
                return Reply::Array(keys.iter().map(token).collect());
            }
            OwnedQuery::Redis { db, resp, member, argv } | OwnedQuery::Script { db, resp, member, argv } => {
                let argv: Words<'_> = argv.iter().map(|word| &word[..]).collect();
                return machine.read_later(*member, *db, *resp, &argv, late_ms);
            }
        };
        machine.query_later(query, late_ms)
    }
}

/// `LOCK.CLUSTER ADD / REMOVE / TRANSFER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminRequest {
    Add { id: NodeId, addr: String },
    Remove { id: NodeId },
    Transfer { id: NodeId },
}

/// What is to be done after a turn. Reused by its owner: [`Outputs::clear`] keeps the memory.
#[derive(Debug, Default)]
pub struct Outputs {
    /// May leave before anything is written.
    pub send: Vec<(NodeId, PeerMessage)>,
    pub persist: Vec<PersistTask>,
    pub snapshot_ops: Vec<SnapshotOp>,
    /// Exactly one per ticket, unless it was cancelled.
    pub replies: Vec<(Ticket, Reply)>,
    /// Reads that are not answered, because their client has too many unread replies. In place of a reply.
    pub deferred: Vec<(Ticket, OwnedQuery)>,
    /// Only of entries that were new to this start of the node, like `published`.
    pub events: Vec<Event>,
    /// What was published: channel and message, in order.
    pub published: Vec<(Bytes, Bytes)>,
    /// Reads and changes of keys, in order.
    pub noted: Vec<Noted>,
    /// Large values that are no more, to be dropped on another thread.
    pub garbage: Vec<Value>,
    /// A snapshot took the place of entries: what they would have brought in events and messages is unknown here.
    pub missed: bool,
    /// Set when something in it changed.
    pub status: Option<ClusterStatus>,
    /// Set at the first turn and whenever membership changed: whom the transport talks to, and where.
    pub members: Option<Vec<Member>>,
    /// Call again at this time at the latest.
    pub wake_at_us: u64,
    pub rest: Rest,
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
        self.published.clear();
        self.noted.clear();
        self.garbage.clear();
        self.missed = false;
        self.status = None;
        self.members = None;
        self.wake_at_us = 0;
        self.rest = Rest::default();
        self.fatal = None;
        self.stopped = false;
    }
}

/// What ends the sleep before its time. Whatever is not named here does so at once; a shell may call earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// So many requests of clients.
    pub requests: usize,
    /// The word that a write is durable.
    pub durable: bool,
}

impl Default for Rest {
    fn default() -> Rest {
        Rest { requests: 1, durable: true }
    }
}

/// What the tracking of keys is made of: [`redfence_core::machine::Noted`], with this node's own clients for requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
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

/// One atomic write to the log. Its parts take effect in the order of the fields; all of it is in one batch, or none.
#[derive(Debug, Default)]
pub struct PersistTask {
    /// Rises by one with each task of this start.
    pub number: u64,
    /// A snapshot received from the leader takes the place of the whole log: entries are dropped, `truncated` becomes its
    /// (index, term), and the record of the snapshot to start from becomes this one. Its file is stored already.
    pub install: Option<SnapshotMeta>,
    /// Drop every entry from the first one's index on, then append.
    pub entries: Vec<Entry>,
    pub hard_state: Option<HardState>,
    /// A snapshot of our own is stored: the record of the snapshot to start from becomes this one. The log stays.
    pub snapshot: Option<SnapshotMeta>,
    /// Entries up to and including this one are not needed any more. `truncated` becomes this mark.
    pub compact: Option<LogMark>,
    /// False: losing this task in a power cut does no harm (it must still not overtake others).
    pub must_sync: bool,
    /// Leaves only when the task is durable.
    pub after: Vec<(NodeId, PeerMessage)>,
}

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogMark {
    pub index: u64,
    pub term: u64,
}

/// What the storage found at start-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Strictly higher than at every earlier start of this data directory.
    pub boot: u64,
    pub hard_state: HardState,
    pub snapshot: SnapshotMeta,
    /// The entry before the first one the log still has.
    pub truncated: LogMark,
    /// Equal to `truncated.index` where the log is empty.
    pub last_index: u64,
}

/// What the node reads back by itself: old entries that left its cache, and pieces of snapshot files. Reads what was
/// persisted, while the writer goes on writing behind it.
pub trait LogReader: Send {
    /// Entries `low..high`, as many as fit into `max_bytes`, at least one. All of them are known to be persisted.
    fn entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError>;
    /// The term of a persisted entry.
    fn term(&self, index: u64) -> Result<u64, StoreError>;
    /// A piece of a stored snapshot file, at most `max_bytes`; empty at its end.
    fn snapshot_read(&self, id: SnapshotId, offset: u64, max_bytes: usize) -> Result<Bytes, StoreError>;
}

/// A read from disk failed; the sentence says how. The node turns it into `fatal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError(pub String);

/// The name of a snapshot file within one data directory. Never used twice there: the boot number is part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

/// A stored image of the machine, and what raft must know with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotMeta {
    /// 0: there is no file, the machine is empty.
    pub id: SnapshotId,
    pub at: LogMark,
    pub conf_state: ConfState,
    pub members: Vec<Member>,
    pub size_bytes: u64,
    /// crc32 (IEEE) of the whole file.
    pub crc32: u32,
}

impl SnapshotMeta {
    /// What every founding member starts from: an empty machine at index 1 with the same voters everywhere. Not 0, so that a
    /// later joiner, whose log is empty, is always brought in by a snapshot and never by a log without its first members.
    #[must_use]
    pub fn founding(founders: &[(NodeId, String)]) -> SnapshotMeta {
        let mut members: Vec<Member> = founders
            .iter()
            .map(|(id, addr)| Member { id: *id, addr: addr.clone(), added_at: 0, voter: true })
            .collect();
        members.sort_by_key(|member| member.id);
        let mut conf_state = ConfState::default();
        conf_state.set_voters(members.iter().map(|member| member.id).collect());
        SnapshotMeta { at: LogMark { index: 1, term: 1 }, conf_state, members, ..SnapshotMeta::default() }
    }

    /// What a node starts from that waits to be added by a running cluster.
    #[must_use]
    pub fn joining() -> SnapshotMeta {
        SnapshotMeta::default()
    }
}

/// Work on snapshot files. Carried out in order.
#[derive(Debug)]
pub enum SnapshotOp {
    /// Start a temporary file.
    Create(SnapshotId),
    Append {
        id: SnapshotId,
        bytes: Bytes,
    },
    /// Check size and checksum, sync, rename to the final name, sync the directory; then [`Input::SnapshotStored`].
    Finish {
        id: SnapshotId,
        size_bytes: u64,
        crc32: u32,
    },
    /// Delete it, finished or not.
    Discard(SnapshotId),
}

/// One member, as the transport and `LOCK.CLUSTER NODES` know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub id: NodeId,
    pub addr: String,
    /// Log index of the change that brought it in; 0 for founders. Tells two lives of one id apart.
    pub added_at: u64,
    pub voter: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    Leader,
    #[default]
    Follower,
    Candidate,
    Learner,
    /// Voted out of the cluster. Answers nothing but its status.
    Removed,
}

impl Role {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
            Role::Removed => "removed",
        }
    }
}

/// `LOCK.CLUSTER INFO` and `NODES`, as this node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    pub id: NodeId,
    pub role: Role,
    /// 0 where none is known.
    pub leader: NodeId,
    pub term: u64,
    pub commit: u64,
    pub applied: u64,
    pub voters: u64,
    /// Whether this node believes that it can be served by a majority.
    pub quorum: bool,
    pub nodes: Vec<NodeStatus>,
    /// Of the replicated settings that are applied here.
    pub settings_version: u64,
    /// Figures of the machine, for `INFO`. At most a tenth of a second old.
    pub stats: Stats,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    pub id: NodeId,
    pub addr: String,
    pub role: Role,
    /// Highest log index known to be on it. Only the leader knows those of others; elsewhere 0.
    pub matched: u64,
    /// Heard of within the last seconds.
    pub up: bool,
}

/// What nodes tell each other. The greeting is the transport's own business.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    Raft(Box<Message>),
    Forward(Forward),
    SnapshotChunk(SnapshotChunk),
    SnapshotAck(SnapshotAck),
    /// Asked of the leader by the node that was asked. Idempotent; its effect is seen in the membership, there is no answer.
    Admin {
        /// What the sender had applied: a message that is older than the last change of membership counts for nothing.
        applied: u64,
        request: AdminRequest,
    },
    /// "You are no member as of this log index."
    NotMember {
        conf_index: u64,
    },
}

/// Commands of one node's clients, on their way to the leader, which stamps them.
///
/// A leader takes a batch only in its own term and only if it has staged all that was sent before (see `stage.rs`): a batch that
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
    Going,
    /// Stored, and handed to raft.
    Done,
    Failed,
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

impl OwnedQuery {
    /// Bytes of its words.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let sum = |words: &[Bytes]| words.iter().map(Bytes::len).sum();
        match self {
            OwnedQuery::Tokens { keys, .. } => sum(keys),
            OwnedQuery::Redis { argv, .. } | OwnedQuery::Script { argv, .. } => sum(argv),
            OwnedQuery::Info { resource, .. }
            | OwnedQuery::Queue { resource, .. }
            | OwnedQuery::Mark { resource, .. } => resource.len(),
            OwnedQuery::Scan { pattern, .. } => pattern.as_ref().map_or(0, Bytes::len),
            OwnedQuery::Session { .. } | OwnedQuery::Settings | OwnedQuery::Setting(_) => 0,
        }
    }
}

impl PeerMessage {
    /// Bytes of its payload.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            PeerMessage::Raft(message) => message.entries.iter().map(|entry| entry.data.len()).sum(),
            PeerMessage::Forward(forward) => forward.commands.iter().map(|command| command.blob.len()).sum(),
            PeerMessage::SnapshotChunk(chunk) => chunk.bytes.len(),
            PeerMessage::SnapshotAck(_) | PeerMessage::Admin { .. } | PeerMessage::NotMember { .. } => 0,
        }
    }
}
