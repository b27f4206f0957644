//! The log as the node sees it: atomic writes, reads of old entries, and what was found at start-up.

use super::{NodeId, PeerMessage, SnapshotId, SnapshotMeta};
use bytes::Bytes;
use raft::eraftpb::{Entry, HardState};

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
    pub compact: Option<LogPosition>,
    /// This node differs from a majority of voters at this index. Stays with the data directory for good.
    pub quarantine: Option<u64>,
    /// False: losing this task in a power failure is harmless (it must still be written in order).
    pub must_sync: bool,
    /// Messages to be sent only when the task is durable.
    pub after: Vec<(NodeId, PeerMessage)>,
}

/// An entry of the log by index and term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    pub index: u64,
    pub term: u64,
}

/// What storage recovered at start-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Strictly higher than at every earlier start of this data directory.
    pub boot: u64,
    pub hard_state: HardState,
    pub snapshot: SnapshotMeta,
    /// The entry before the first one the log still has.
    pub truncated: LogPosition,
    /// Equal to `truncated.index` where the log is empty.
    pub last_index: u64,
    /// The index at which an earlier start was found to differ from a majority of voters.
    pub quarantined: Option<u64>,
}

/// Reads by the node itself: entries that left its cache, and chunks of snapshot files. Sees everything persisted, and may be
/// used while the log writer writes.
pub trait LogReader: Send {
    /// Entries `low..high`, as many as fit into `max_bytes`, at least one. All of them are known to be persisted.
    fn entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError>;
    /// The term of a persisted entry.
    fn term(&self, index: u64) -> Result<u64, StoreError>;
    /// A chunk of a stored snapshot file, at most `max_bytes`; empty at its end.
    fn snapshot_read(&self, id: SnapshotId, offset: u64, max_bytes: usize) -> Result<Bytes, StoreError>;
}

/// A read from disk failed, with a description. The node turns it into `fatal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError(pub String);
