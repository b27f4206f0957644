//! A snapshot as it comes in, piece by piece.

use crate::node_api::wire::encode_meta;
use crate::node_api::{LogPosition, NodeId, SnapshotChunk, SnapshotId, SnapshotMeta};
use crate::tier2::snapshot::receiving::IncomingSnapshot;
use raft::eraftpb::{Message, MessageType};
use redfence_core::machine::version::VersionRange;

/// The first chunk of a snapshot of 1,000 bytes.
fn first_chunk(from: NodeId, to: NodeId, bytes: &'static [u8]) -> SnapshotChunk {
    let at = LogPosition { index: 2, term: 1 };
    let meta = SnapshotMeta { at, size_bytes: 1_000, ..SnapshotMeta::default() };
    let mut message = Message { from, to, term: 1, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    message.mut_snapshot().data = encode_meta(&meta);
    message.mut_snapshot().mut_metadata().index = at.index;
    message.mut_snapshot().mut_metadata().term = at.term;
    message.mut_snapshot().mut_metadata().set_conf_state(meta.conf_state);
    SnapshotChunk { transfer: 9, offset: 0, bytes: bytes.into(), message: Some(Box::new(message)) }
}

/// Found by the simulator: the file that was sent was shorter than raft's message said. The sender had nothing left to send,
/// the receiver waited for the rest, and both took each other's words for progress: the follower never caught up.
#[test]
fn a_transfer_that_ends_short_fails() {
    let mut ops = Vec::new();
    let first = first_chunk(1, 2, b"\x01\0");
    let mut receiving = IncomingSnapshot::begin(1, &first, SnapshotId(7), 0, VersionRange::PROGRAM, &mut ops)
        .expect("well formed");
    assert_eq!(receiving.take(&first, &mut ops), Ok(()));
    // A doubled or late one is passed over.
    assert_eq!(receiving.take(&first, &mut ops), Ok(()));
    let asks = SnapshotChunk { transfer: 9, offset: 2, bytes: Default::default(), message: None };
    let told = receiving.take(&asks, &mut ops);
    assert_eq!(told, Err("the sender has no more bytes, and the snapshot is not complete".to_owned()));
}
