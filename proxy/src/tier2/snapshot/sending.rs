//! Outgoing snapshots: one transfer per follower, with a window of unacknowledged bytes.
//!
//! raft pauses a follower from the moment it hands out a `MsgSnapshot` until the end of the transfer is reported to it, so every
//! transfer ends in [`TransferEnd`]: acknowledged, failed, or stalled.
//!
//! A transfer ends with the snapshot it began with: its file is not deleted meanwhile, and the log behind it is kept, within limits,
//! until the member has caught up.

use crate::node_api::{
    LogReader, NodeId, PeerMessage, SnapshotAck, SnapshotChunk, SnapshotId, SnapshotMeta, StoreError,
    TransferState,
};
use raft::eraftpb::Message;
use std::collections::BTreeMap;

/// Without an acknowledgement for this long, the window is sent again.
const REPEAT_MS: u64 = 1_000;
/// A receiver that has everything makes a machine of it, and is silent meanwhile: at this pace at least. Seen here: 45 MB a second.
const CHECKED_BYTES_PER_MS: u64 = 8 * 1024;

#[derive(Default)]
pub(crate) struct OutgoingSnapshots {
    next_transfer: u64,
    to: BTreeMap<NodeId, OutgoingSnapshot>,
    /// Members that have received theirs and go on with the log behind it.
    catching_up: BTreeMap<NodeId, LogStart>,
}

/// Where the log behind a snapshot begins.
#[derive(Clone, Copy)]
struct LogStart {
    index: u64,
    /// In bytes applied by the leader.
    position: u64,
}

struct OutgoingSnapshot {
    transfer: u64,
    meta: SnapshotMeta,
    message: Box<Message>,
    log_position: u64,
    sent_bytes: u64,
    /// A chunk is out since the beginning or since the last repetition. The first goes even for an empty file, because it
    /// carries raft's message.
    opened: bool,
    acked_bytes: u64,
    acked_ms: u64,
    repeated_ms: u64,
}

/// How a transfer ended, for raft to know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TransferEnd {
    pub(crate) to: NodeId,
    pub(crate) delivered: bool,
}

impl OutgoingSnapshots {
    /// `first_transfer` must be higher than any number an earlier start of this node has used.
    pub(crate) fn new(first_transfer: u64) -> OutgoingSnapshots {
        OutgoingSnapshots { next_transfer: first_transfer, ..OutgoingSnapshots::default() }
    }

    /// raft wants this snapshot at a follower. An older transfer to it is dropped.
    pub(crate) fn start(
        &mut self,
        to: NodeId,
        meta: SnapshotMeta,
        message: Box<Message>,
        log_position: u64,
        now_ms: u64,
    ) {
        let promised = message.get_snapshot().get_metadata().index;
        assert_eq!(promised, meta.at.index, "another snapshot is sent than raft promises");
        self.next_transfer += 1;
        let sending = OutgoingSnapshot {
            transfer: self.next_transfer,
            meta,
            message,
            log_position,
            sent_bytes: 0,
            opened: false,
            acked_bytes: 0,
            acked_ms: now_ms,
            repeated_ms: now_ms,
        };
        self.catching_up.remove(&to);
        self.to.insert(to, sending);
    }

    pub(crate) fn uses(&self, id: SnapshotId) -> bool {
        self.to.values().any(|sending| sending.meta.id == id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// Leadership has ended: raft no longer waits for the transfers.
    pub(crate) fn clear(&mut self) {
        self.to.clear();
        self.catching_up.clear();
    }

    /// The index from which on members need the log that have, or are being sent, a snapshot older than the one of `snapshot_index`.
    /// Log that begins before `oldest`, in bytes applied, is kept for nobody. `matched`: how far a member's log is known to be.
    pub(crate) fn log_needed_from(
        &mut self,
        snapshot_index: u64,
        oldest: u64,
        matched: impl Fn(NodeId) -> Option<u64>,
    ) -> Option<u64> {
        self.catching_up.retain(|id, start| {
            start.position >= oldest && matched(*id).is_some_and(|matched| matched < snapshot_index)
        });
        let behind = self.catching_up.iter().map(|(id, start)| start.index.max(matched(*id).unwrap_or(0)));
        let receiving = self.to.values().filter(|sending| sending.log_position >= oldest);
        behind.chain(receiving.map(|sending| sending.meta.at.index)).min()
    }

    pub(crate) fn acked(&mut self, from: NodeId, ack: &SnapshotAck, now_ms: u64) -> Option<TransferEnd> {
        let sending = self.to.get_mut(&from).filter(|sending| sending.transfer == ack.transfer)?;
        sending.opened = true;
        // Fewer than before: an acknowledgement that is late, or a receiver that began anew and waits for what is not sent again. That is
        // no progress.
        if ack.received_bytes >= sending.acked_bytes {
            sending.acked_ms = now_ms;
        }
        if ack.received_bytes > sending.acked_bytes {
            sending.acked_bytes = ack.received_bytes.min(sending.meta.size_bytes);
            // More than was sent: the other side goes on with an earlier transfer.
            sending.sent_bytes = sending.sent_bytes.max(sending.acked_bytes);
            sending.repeated_ms = now_ms;
        }
        let delivered = match ack.state {
            TransferState::InProgress => return None,
            TransferState::Done => true,
            TransferState::Failed => false,
        };
        let start = LogStart { index: sending.meta.at.index, position: sending.log_position };
        self.to.remove(&from);
        if delivered {
            self.catching_up.insert(from, start);
        }
        Some(TransferEnd { to: from, delivered })
    }

    pub(crate) fn lost(&mut self, to: NodeId) -> Option<TransferEnd> {
        self.to.remove(&to).map(|_| TransferEnd { to, delivered: false })
    }

    /// Ends what has stalled.
    pub(crate) fn stalled(&mut self, now_ms: u64, stall_ms: u64) -> Vec<TransferEnd> {
        let late: Vec<NodeId> = self
            .to
            .iter()
            .filter(|(_, sending)| sending.acked_ms + stall_ms + sending.check_ms() <= now_ms)
            .map(|(to, _)| *to)
            .collect();
        late.into_iter().filter_map(|to| self.lost(to)).collect()
    }

    /// Sends what the windows allow.
    pub(crate) fn go_on(
        &mut self,
        reader: &dyn LogReader,
        now_ms: u64,
        piece_bytes: usize,
        window_bytes: u64,
        out: &mut Vec<(NodeId, PeerMessage)>,
    ) -> Result<(), StoreError> {
        for (to, sending) in &mut self.to {
            if sending.repeated_ms + REPEAT_MS <= now_ms {
                sending.repeated_ms = now_ms;
                sending.sent_bytes = sending.acked_bytes;
                // At least one chunk goes out, if only to ask how far the other side is.
                sending.opened = false;
            }
            while let Some(chunk) = sending.next_chunk(reader, piece_bytes, window_bytes)? {
                out.push((*to, PeerMessage::SnapshotChunk(chunk)));
            }
        }
        Ok(())
    }
}

impl OutgoingSnapshot {
    /// How long the receiver may be silent because it checks what it has.
    fn check_ms(&self) -> u64 {
        match self.sent_bytes >= self.meta.size_bytes {
            true => self.meta.size_bytes / CHECKED_BYTES_PER_MS,
            false => 0,
        }
    }

    fn next_chunk(
        &mut self,
        reader: &dyn LogReader,
        piece_bytes: usize,
        window_bytes: u64,
    ) -> Result<Option<SnapshotChunk>, StoreError> {
        let left = self.meta.size_bytes - self.sent_bytes;
        let opens = !self.opened;
        if !opens && (left == 0 || self.sent_bytes >= self.acked_bytes + window_bytes) {
            return Ok(None);
        }
        let offset = self.sent_bytes;
        let bytes = match left {
            0 => bytes::Bytes::new(),
            left => reader.snapshot_read(self.meta.id, offset, piece_bytes.min(left as usize))?,
        };
        if bytes.is_empty() && left > 0 {
            return Err(StoreError(format!("snapshot file {} ends at {offset}", self.meta.id.0)));
        }
        self.opened = true;
        self.sent_bytes += bytes.len() as u64;
        let message = (offset == 0).then(|| self.message.clone());
        Ok(Some(SnapshotChunk { transfer: self.transfer, offset, bytes, message }))
    }
}
