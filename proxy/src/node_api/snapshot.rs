//! Snapshot files: their names, what Raft must know of each, and the work on them.

use super::{ClusterMember, LogPosition, NodeId};
use bytes::Bytes;
use raft::eraftpb::ConfState;

/// The name of a snapshot file within one data directory. Never used twice there: the boot number is part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub u64);

/// A stored image of the machine, and what raft must know with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SnapshotMeta {
    /// 0: there is no file, the machine is empty.
    pub id: SnapshotId,
    pub at: LogPosition,
    pub conf_state: ConfState,
    pub members: Vec<ClusterMember>,
    pub size_bytes: u64,
    /// crc32 (IEEE) of the whole file.
    pub crc32: u32,
}

impl SnapshotMeta {
    /// What every founding member starts from: an empty machine at index 1 with the same voters everywhere. Not 0, so that a
    /// later joiner, whose log is empty, is always brought in by a snapshot and never by a log without its first members.
    #[must_use]
    pub fn founding(founders: &[(NodeId, String)]) -> SnapshotMeta {
        let mut members: Vec<ClusterMember> = founders
            .iter()
            .map(|(id, addr)| ClusterMember { id: *id, addr: addr.clone(), added_at: 0, voter: true })
            .collect();
        members.sort_by_key(|member| member.id);
        let mut conf_state = ConfState::default();
        conf_state.set_voters(members.iter().map(|member| member.id).collect());
        SnapshotMeta { at: LogPosition { index: 1, term: 1 }, conf_state, members, ..SnapshotMeta::default() }
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
