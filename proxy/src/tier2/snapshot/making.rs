//! A snapshot of our own, some slots a turn. The machine goes on applying meanwhile; the pieces show the instant it began.

use crate::node_api::snapshot_stream::framed;
use crate::node_api::{LogPosition, SnapshotId, SnapshotMeta, SnapshotOp};
use crate::tier2::cluster::membership::Membership;
use redfence_core::machine::Machine;

/// Slots of the machine looked at in one turn: well under a millisecond.
const SLOTS_PER_TURN: usize = 2_048;

/// One that is stored, and waits to be confirmed.
pub(crate) struct StoredSnapshot {
    pub(crate) meta: SnapshotMeta,
    /// It shows the state after a checkpoint: the other voters make a full digest of the same entry.
    pub(crate) at_checkpoint: bool,
    /// And a majority has come to the same.
    pub(crate) is_confirmed: bool,
}

pub(crate) struct OwnSnapshot {
    meta: SnapshotMeta,
    crc: crc32fast::Hasher,
    written_bytes: u64,
    /// Of the state it shows, once all pieces are out. The file is being finished then.
    digest: Option<u64>,
    at_checkpoint: bool,
    is_confirmed: bool,
}

impl OwnSnapshot {
    pub(crate) fn begin(
        id: SnapshotId,
        at: LogPosition,
        at_checkpoint: bool,
        membership: &Membership,
        machine: &mut Machine,
        ops: &mut Vec<SnapshotOp>,
    ) -> OwnSnapshot {
        machine.snapshot_begin();
        ops.push(SnapshotOp::Create(id));
        let meta = SnapshotMeta {
            id,
            at,
            conf_state: membership.conf_state().clone(),
            members: membership.list(),
            size_bytes: 0,
            crc32: 0,
        };
        OwnSnapshot {
            meta,
            crc: crc32fast::Hasher::new(),
            written_bytes: 0,
            digest: None,
            at_checkpoint,
            is_confirmed: false,
        }
    }

    pub(crate) fn id(&self) -> SnapshotId {
        self.meta.id
    }

    pub(crate) fn index(&self) -> u64 {
        self.meta.at.index
    }

    pub(crate) fn is_at_checkpoint(&self) -> bool {
        self.at_checkpoint
    }

    pub(crate) fn has_digest(&self) -> bool {
        self.digest.is_some()
    }

    /// A majority has come to the digest of its entry, and so has this node, with its records.
    pub(crate) fn confirm(&mut self) {
        self.is_confirmed = self.at_checkpoint && self.has_digest();
    }

    pub(crate) fn progress(&mut self, written_bytes: u64) {
        self.written_bytes = self.written_bytes.max(written_bytes);
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether there is something to do at once: more pieces, and room on their way to the disk.
    pub(crate) fn can_go_on(&self, window_bytes: u64) -> bool {
        self.digest.is_none() && self.meta.size_bytes < self.written_bytes + window_bytes
    }

    /// The next piece, or the end: then the digest of the state that the pieces show, if all nodes make one of the same entry.
    pub(crate) fn go_on(&mut self, machine: &mut Machine, ops: &mut Vec<SnapshotOp>) -> Option<(u64, u64)> {
        let digest = machine.snapshot_digest();
        match machine.snapshot_step(SLOTS_PER_TURN) {
            Some(piece) => {
                let bytes = framed(&piece);
                self.crc.update(&bytes);
                self.meta.size_bytes += bytes.len() as u64;
                ops.push(SnapshotOp::Append { id: self.meta.id, bytes });
            }
            None => {
                self.digest = Some(digest.expect("a snapshot has been written to its end"));
                self.meta.crc32 = self.crc.clone().finalize();
                ops.push(SnapshotOp::Finish {
                    id: self.meta.id,
                    size_bytes: self.meta.size_bytes,
                    crc32: self.meta.crc32,
                });
            }
        }
        self.digest.filter(|_| self.at_checkpoint).map(|digest| (self.meta.at.index, digest))
    }

    /// The file is stored.
    pub(crate) fn into_stored(self) -> StoredSnapshot {
        StoredSnapshot { meta: self.meta, at_checkpoint: self.at_checkpoint, is_confirmed: self.is_confirmed }
    }
}
