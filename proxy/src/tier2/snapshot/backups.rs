//! Backups: clients that read a snapshot file of this node, piece by piece.
//!
//! `BACKUP BEGIN` is a linearizable read: it is answered once this node has applied everything that was committed when it came. A
//! snapshot of a later checkpoint is made as any other, and stays on disk for the client although a newer one takes its place. A
//! majority of voters must have come to the digest of the very records that are in it. Each `BACKUP READ` is one bounded read of that file, so a client that stops
//! reading holds a file and nothing else, and only for a minute; snapshots and locks go on.

use crate::node_api::backup_file::BackupHeader;
use crate::node_api::{SnapshotId, SnapshotMeta};
use crate::tier2::node::Node;
use crate::tier2::refusals;
use bytes::Bytes;
use redfence_core::grammar::cluster::Backup;
use redfence_core::reply::Reply;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Backups under way at one node. Each may keep a snapshot file.
pub(in crate::tier2) const BACKUPS_MAX: usize = 4;
/// A backup nobody asks for this long is over.
const STALL_MS: u64 = 60_000;
/// Bytes in one reply.
const PIECE_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(in crate::tier2) struct Backups {
    last_id: u64,
    under_way: Vec<ClientBackup>,
    /// The last snapshot of this node whose own digest was confirmed.
    allowed: Option<SnapshotId>,
    /// As the peers know it; 0 while this node has not joined a cluster.
    cluster_id: Arc<AtomicU64>,
}

struct ClientBackup {
    id: u64,
    /// The snapshot must hold this entry.
    index: u64,
    taken_at_us: u64,
    heard_ms: u64,
    /// Once it is stored.
    snapshot: Option<(SnapshotMeta, Bytes)>,
}

impl Backups {
    /// `first_id` must be higher than any number an earlier start of this node has used.
    pub(in crate::tier2) fn new(first_id: u64) -> Backups {
        Backups { last_id: first_id, ..Backups::default() }
    }

    pub(in crate::tier2) fn set_cluster_id(&mut self, cluster_id: Arc<AtomicU64>) {
        self.cluster_id = cluster_id;
    }

    /// Whether a client reads this file.
    pub(in crate::tier2) fn uses(&self, id: SnapshotId) -> bool {
        self.under_way.iter().any(|backup| backup.snapshot.as_ref().is_some_and(|(meta, _)| meta.id == id))
    }

    /// Whether one waits for a snapshot.
    pub(in crate::tier2) fn wait(&self) -> bool {
        self.under_way.iter().any(|backup| backup.snapshot.is_none())
    }

    /// Drops what nobody asks for, and gives those that wait the snapshot there is, if it will do.
    pub(in crate::tier2) fn go_on(&mut self, newest: &SnapshotMeta, is_single_voter: bool, now_ms: u64) {
        self.under_way.retain(|backup| {
            let stalled = backup.heard_ms + STALL_MS <= now_ms;
            if stalled {
                tracing::warn!(backup = backup.id, "nobody reads this backup any more: dropped");
            }
            !stalled
        });
        let is_allowed = is_single_voter || Some(newest.id) == self.allowed;
        for backup in self.under_way.iter_mut().filter(|backup| backup.snapshot.is_none()) {
            if backup.index <= newest.at.index && is_allowed {
                let cluster_id = self.cluster_id.load(Ordering::Relaxed);
                let header = BackupHeader::new(cluster_id, backup.taken_at_us, newest).encode();
                backup.snapshot = Some((newest.clone(), header));
            }
        }
    }

    /// A majority has come to the digest of the records in this snapshot.
    pub(in crate::tier2) fn allow(&mut self, id: SnapshotId) {
        self.allowed = Some(id);
    }

    /// This node is quarantined: nobody gets its state, nor waits for it.
    pub(in crate::tier2) fn clear(&mut self) {
        self.under_way.clear();
    }

    fn begin(&mut self, index: u64, taken_at_us: u64, now_ms: u64) -> Option<u64> {
        if self.under_way.len() >= BACKUPS_MAX {
            return None;
        }
        self.last_id += 1;
        let id = self.last_id;
        self.under_way.push(ClientBackup { id, index, taken_at_us, heard_ms: now_ms, snapshot: None });
        Some(id)
    }

    fn end(&mut self, id: u64) -> bool {
        let before = self.under_way.len();
        self.under_way.retain(|backup| backup.id != id);
        before != self.under_way.len()
    }
}

impl Node {
    /// Where the id of the cluster is kept up to date.
    pub fn set_cluster_id(&mut self, cluster_id: Arc<AtomicU64>) {
        self.snapshots.backups.set_cluster_id(cluster_id);
    }

    /// Called when the read was confirmed: what is applied now is not older than the request.
    pub(in crate::tier2) fn answer_backup(&mut self, request: Backup) -> Reply {
        let now_ms = self.now.monotonic_ms();
        match request {
            Backup::Begin if !self.membership.get(self.config.id).is_some_and(|own| own.voter) => {
                refusals::backup_of_a_learner()
            }
            Backup::Begin => {
                let begun = self.snapshots.backups.begin(self.applied, self.now.wall_us, now_ms);
                begun.map_or_else(|| refusals::too_many_backups(BACKUPS_MAX), |id| Reply::Int(id as i64))
            }
            Backup::Read { id, offset } => self.read_backup(id, offset, now_ms),
            Backup::End { id } => Reply::Int(i64::from(self.snapshots.backups.end(id))),
        }
    }

    fn read_backup(&mut self, id: u64, offset: u64, now_ms: u64) -> Reply {
        let written_bytes = self.snapshots.written_bytes();
        let backups = &mut self.snapshots.backups;
        let Some(backup) = backups.under_way.iter_mut().find(|backup| backup.id == id) else {
            return refusals::unknown_backup();
        };
        backup.heard_ms = now_ms;
        let Some((meta, header)) = &backup.snapshot else {
            return piece("writing", written_bytes, Bytes::new());
        };
        let header_bytes = header.len() as u64;
        let total_bytes = header_bytes + meta.size_bytes;
        if offset < header_bytes {
            return piece("ready", total_bytes, header.slice(offset as usize..));
        }
        let left = total_bytes.saturating_sub(offset);
        if left == 0 {
            return piece("ready", total_bytes, Bytes::new());
        }
        let wanted = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let read = self.raw.store().reader().snapshot_read(meta.id, offset - header_bytes, wanted);
        match read {
            Ok(bytes) if !bytes.is_empty() => piece("ready", total_bytes, bytes),
            Ok(_) => refusals::unreadable_backup("its file is too short"),
            Err(error) => refusals::unreadable_backup(&error.0),
        }
    }
}

fn piece(state: &'static str, bytes_total: u64, bytes: Bytes) -> Reply {
    Reply::Array(vec![Reply::Text(state), Reply::Int(bytes_total as i64), Reply::Bulk(bytes)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_api::LogPosition;

    fn snapshot(id: u64, index: u64) -> SnapshotMeta {
        let at = LogPosition { index, term: 1 };
        SnapshotMeta { id: SnapshotId(id), at, size_bytes: 10, ..SnapshotMeta::default() }
    }

    #[test]
    fn a_backup_takes_no_snapshot_from_before_it_began() {
        let mut backups = Backups::new(100);
        assert_eq!(backups.begin(8, 0, 0), Some(101));
        backups.allow(SnapshotId(1));
        backups.go_on(&snapshot(1, 7), false, 0);
        assert!(backups.wait() && !backups.uses(SnapshotId(1)));
        backups.go_on(&snapshot(2, 8), false, 0);
        assert!(backups.wait(), "a digest of a later entry has confirmed it");
        backups.allow(SnapshotId(2));
        backups.go_on(&snapshot(2, 8), false, 0);
        assert!(!backups.wait() && backups.uses(SnapshotId(2)));
        backups.go_on(&snapshot(3, 9), true, 0);
        assert!(backups.uses(SnapshotId(2)), "it keeps the one it began with");
        assert!(backups.end(101) && !backups.end(101) && !backups.uses(SnapshotId(2)));
    }

    #[test]
    fn a_client_that_stops_reading_keeps_its_file_for_a_minute() {
        let mut backups = Backups::new(0);
        for _ in 0..BACKUPS_MAX {
            assert!(backups.begin(1, 0, 0).is_some());
        }
        assert_eq!(backups.begin(1, 0, 0), None, "one too many");
        backups.go_on(&snapshot(1, 1), true, STALL_MS - 1);
        assert!(backups.uses(SnapshotId(1)));
        backups.go_on(&snapshot(1, 1), true, STALL_MS);
        assert!(!backups.uses(SnapshotId(1)));
        assert!(backups.begin(1, 0, STALL_MS).is_some());
    }
}
