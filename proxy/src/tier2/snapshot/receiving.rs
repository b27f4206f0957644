//! A snapshot coming in from a leader: into a file, and into a machine at the same time. One at a time; a newer transfer
//! takes the place of an older one, and goes on where that one was if both are of the same snapshot.

use crate::node_api::snapshot_stream::{empty_machine, StreamRestorer};
use crate::node_api::wire::meta_of;
use crate::node_api::{
    NodeId, PeerMessage, SnapshotAck, SnapshotChunk, SnapshotId, SnapshotMeta, SnapshotOp, TransferState,
};
use raft::eraftpb::Message;
use redfence_core::machine::version::VersionRange;
use redfence_core::machine::Machine;

pub(crate) struct IncomingSnapshot {
    from: NodeId,
    transfer: u64,
    message: Box<Message>,
    /// As sent, but under our own file name.
    meta: SnapshotMeta,
    received_bytes: u64,
    written_bytes: u64,
    /// What this node can run.
    versions: VersionRange,
    restorer: Option<StreamRestorer>,
    machine: Option<Machine>,
    /// When the last chunk came.
    heard_ms: u64,
}

/// Everything is here and stored: raft may take it.
pub(crate) struct ReceivedSnapshot {
    pub(crate) transfer: u64,
    pub(crate) message: Box<Message>,
    pub(crate) meta: SnapshotMeta,
    pub(crate) machine: Machine,
}

impl IncomingSnapshot {
    /// Whether a chunk opens a transfer that is not this one.
    pub(crate) fn is_other(&self, from: NodeId, chunk: &SnapshotChunk) -> bool {
        (from, chunk.transfer) != (self.from, self.transfer)
    }

    /// Whether a chunk is of an earlier transfer of the same sender, which has given that one up.
    pub(crate) fn is_newer_than(&self, from: NodeId, chunk: &SnapshotChunk) -> bool {
        from == self.from && chunk.transfer < self.transfer
    }

    /// The sender, who has lost its leadership or our answers for a while, begins anew with the snapshot that is here in part: it goes
    /// on from there. False: the chunk opens a transfer of another snapshot.
    pub(crate) fn resume(&mut self, from: NodeId, chunk: &SnapshotChunk) -> bool {
        let Some(message) = &chunk.message else { return false };
        let is_same = meta_of(message).is_ok_and(|meta| {
            (meta.at, meta.size_bytes, meta.crc32) == (self.meta.at, self.meta.size_bytes, self.meta.crc32)
        });
        if is_same {
            (self.from, self.transfer) = (from, chunk.transfer);
            self.message.clone_from(message);
        }
        is_same
    }

    /// Begins a transfer with its first chunk. The chunk itself is still to be taken.
    pub(crate) fn begin(
        from: NodeId,
        chunk: &SnapshotChunk,
        id: SnapshotId,
        now_ms: u64,
        versions: VersionRange,
        ops: &mut Vec<SnapshotOp>,
    ) -> Result<IncomingSnapshot, String> {
        let message = chunk.message.clone().ok_or("a transfer begins without raft's message")?;
        let mut meta = meta_of(&message).map_err(|malformed| malformed.0.to_owned())?;
        // An empty machine has no file.
        meta.id = match meta.size_bytes {
            0 => SnapshotId(0),
            _ => id,
        };
        if meta.size_bytes > 0 {
            ops.push(SnapshotOp::Create(id));
        }
        Ok(IncomingSnapshot {
            from,
            transfer: chunk.transfer,
            message,
            meta,
            received_bytes: 0,
            written_bytes: 0,
            versions,
            restorer: Some(StreamRestorer::new(versions)),
            machine: None,
            heard_ms: now_ms,
        })
    }

    pub(crate) fn id(&self) -> SnapshotId {
        self.meta.id
    }

    /// A chunk of this transfer came.
    pub(crate) fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// Its sender is gone, or never meant it: a late chunk can open a transfer that was given up long ago.
    pub(crate) fn is_stalled(&self, now_ms: u64, stall_ms: u64) -> bool {
        !self.is_complete() && self.heard_ms.saturating_add(stall_ms) <= now_ms
    }

    pub(crate) fn from(&self) -> NodeId {
        self.from
    }

    pub(crate) fn term(&self) -> u64 {
        self.message.term
    }

    /// Everything has come, and is being stored.
    pub(crate) fn is_complete(&self) -> bool {
        self.restorer.is_none()
    }

    /// Whether a chunk opens a transfer of a later term: raft ignores a snapshot of an earlier one.
    pub(crate) fn is_outdated_by(&self, chunk: &SnapshotChunk) -> bool {
        chunk.message.as_ref().is_some_and(|message| message.term > self.term())
    }

    /// Takes a chunk if it is the next one. An error ends the transfer.
    pub(crate) fn take(&mut self, chunk: &SnapshotChunk, ops: &mut Vec<SnapshotOp>) -> Result<(), String> {
        let Some(restorer) = &mut self.restorer else { return Ok(()) };
        if chunk.offset != self.received_bytes {
            return Ok(());
        }
        if chunk.bytes.is_empty() && self.received_bytes < self.meta.size_bytes {
            // Else each would wait for the other for ever: the sender for the end, we for the rest.
            return Err("the sender has no more bytes, and the snapshot is not complete".to_owned());
        }
        if self.received_bytes + chunk.bytes.len() as u64 > self.meta.size_bytes {
            return Err("more bytes came than the snapshot has".to_owned());
        }
        if !chunk.bytes.is_empty() {
            restorer.push(&chunk.bytes)?;
            self.received_bytes += chunk.bytes.len() as u64;
            ops.push(SnapshotOp::Append { id: self.meta.id, bytes: chunk.bytes.clone() });
        }
        if self.received_bytes == self.meta.size_bytes {
            let restorer = self.restorer.take().expect("restorer is Some");
            self.machine = Some(match self.meta.size_bytes {
                0 => empty_machine(self.versions),
                _ => restorer.finish()?,
            });
            if self.meta.size_bytes > 0 {
                ops.push(SnapshotOp::Finish {
                    id: self.meta.id,
                    size_bytes: self.meta.size_bytes,
                    crc32: self.meta.crc32,
                });
            }
        }
        Ok(())
    }

    /// The leader's state is of a version this release does not read: no other try will do better.
    pub(crate) fn is_of_unknown_version(&self) -> bool {
        self.restorer.as_ref().is_some_and(StreamRestorer::is_of_unknown_version)
    }

    pub(crate) fn progress(&mut self, written_bytes: u64) {
        self.written_bytes = self.written_bytes.max(written_bytes);
    }

    /// An empty machine needs no file, and so no report that it is stored.
    pub(crate) fn is_complete_without_file(&self) -> bool {
        self.machine.is_some() && self.meta.size_bytes == 0
    }

    /// How far the sender may go on: what came, but not further ahead of our disk than the window.
    pub(crate) fn ack(&self, window_bytes: u64) -> PeerMessage {
        let received_bytes = self.received_bytes.min(self.written_bytes + window_bytes);
        PeerMessage::SnapshotAck(SnapshotAck {
            transfer: self.transfer,
            received_bytes,
            state: TransferState::InProgress,
        })
    }

    pub(crate) fn failed(&self) -> PeerMessage {
        PeerMessage::SnapshotAck(SnapshotAck {
            transfer: self.transfer,
            received_bytes: 0,
            state: TransferState::Failed,
        })
    }

    /// The file is stored. `None` where not everything had come (which the storage should have noticed).
    pub(crate) fn into_received(self) -> Option<ReceivedSnapshot> {
        Some(ReceivedSnapshot {
            transfer: self.transfer,
            message: self.message,
            meta: self.meta,
            machine: self.machine?,
        })
    }
}
