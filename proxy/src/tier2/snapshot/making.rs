//! A snapshot of our own, some slots a turn. The machine goes on applying meanwhile; the pieces show the instant it began.

use crate::node_api::snapshot_stream::framed;
use crate::node_api::{LogPosition, SnapshotId, SnapshotMeta, SnapshotOp};
use crate::tier2::cluster::membership::Membership;
use redfence_core::machine::Machine;

/// Slots of the machine looked at in one turn: well under a millisecond.
const SLOTS_PER_TURN: usize = 2_048;

pub(crate) struct OwnSnapshot {
    meta: SnapshotMeta,
    crc: crc32fast::Hasher,
    written_bytes: u64,
    /// All pieces are out; the file is being finished.
    complete: bool,
}

impl OwnSnapshot {
    pub(crate) fn begin(
        id: SnapshotId,
        at: LogPosition,
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
        OwnSnapshot { meta, crc: crc32fast::Hasher::new(), written_bytes: 0, complete: false }
    }

    pub(crate) fn id(&self) -> SnapshotId {
        self.meta.id
    }

    pub(crate) fn progress(&mut self, written_bytes: u64) {
        self.written_bytes = self.written_bytes.max(written_bytes);
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Whether there is something to do at once: more pieces, and room on their way to the disk.
    pub(crate) fn can_go_on(&self, window_bytes: u64) -> bool {
        !self.complete && self.meta.size_bytes < self.written_bytes + window_bytes
    }

    /// The next piece, or the end.
    pub(crate) fn go_on(&mut self, machine: &mut Machine, ops: &mut Vec<SnapshotOp>) {
        match machine.snapshot_step(SLOTS_PER_TURN) {
            Some(piece) => {
                let bytes = framed(&piece);
                self.crc.update(&bytes);
                self.meta.size_bytes += bytes.len() as u64;
                ops.push(SnapshotOp::Append { id: self.meta.id, bytes });
            }
            None => {
                self.complete = true;
                self.meta.crc32 = self.crc.clone().finalize();
                ops.push(SnapshotOp::Finish {
                    id: self.meta.id,
                    size_bytes: self.meta.size_bytes,
                    crc32: self.meta.crc32,
                });
            }
        }
    }

    /// The file is stored.
    pub(crate) fn into_meta(self) -> SnapshotMeta {
        self.meta
    }
}
