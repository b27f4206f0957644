//! Snapshots on their way from one node to another, piece by piece.

use crate::node_api::wire::encode_meta;
use crate::node_api::{
    LogPosition, NodeId, PeerMessage, SnapshotAck, SnapshotChunk, SnapshotId, SnapshotMeta, TransferState,
};
use crate::tier2::snapshot::receiving::IncomingSnapshot;
use crate::tier2::snapshot::sending::{OutgoingSnapshots, TransferEnd};
use raft::eraftpb::{Message, MessageType};
use redfence_core::machine::version::VersionRange;

/// Of 1,000 bytes.
fn snapshot_at(index: u64) -> SnapshotMeta {
    SnapshotMeta { at: LogPosition { index, term: 1 }, size_bytes: 1_000, ..SnapshotMeta::default() }
}

fn message_with(meta: &SnapshotMeta, from: NodeId, to: NodeId, term: u64) -> Box<Message> {
    let mut message = Message { from, to, term, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    message.mut_snapshot().data = encode_meta(meta);
    message.mut_snapshot().mut_metadata().index = meta.at.index;
    message.mut_snapshot().mut_metadata().term = meta.at.term;
    message.mut_snapshot().mut_metadata().set_conf_state(meta.conf_state.clone());
    Box::new(message)
}

/// The first chunk of a snapshot of 1,000 bytes.
fn first_chunk(from: NodeId, to: NodeId, bytes: &'static [u8]) -> SnapshotChunk {
    let message = Some(message_with(&snapshot_at(2), from, to, 1));
    SnapshotChunk { transfer: 9, offset: 0, bytes: bytes.into(), message }
}

fn received_bytes(ack: PeerMessage) -> (u64, u64) {
    let PeerMessage::SnapshotAck(ack) = ack else { panic!("not an acknowledgement") };
    (ack.transfer, ack.received_bytes)
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

/// A leader that was away for a moment begins its transfers anew. Each time from the first byte, a slow one would never end.
#[test]
fn a_new_transfer_of_the_same_snapshot_goes_on_where_the_old_one_was() {
    let mut ops = Vec::new();
    let first = first_chunk(1, 2, b"\x01\0");
    let mut receiving = IncomingSnapshot::begin(1, &first, SnapshotId(7), 0, VersionRange::PROGRAM, &mut ops)
        .expect("well formed");
    assert_eq!(receiving.take(&first, &mut ops), Ok(()));
    receiving.progress(2);
    let again = |transfer, from, index| SnapshotChunk {
        transfer,
        message: Some(message_with(&snapshot_at(index), from, 2, 5)),
        ..first_chunk(from, 2, b"\x01\0")
    };
    // Another snapshot, or one that the sender has given up, does not.
    assert!(!receiving.resume(1, &again(10, 1, 3)));
    assert!(receiving.is_newer_than(1, &again(8, 1, 2)) && !receiving.is_newer_than(3, &again(8, 3, 2)));
    let operations = ops.len();
    let resumed = again(10, 1, 2);
    assert!(
        receiving.is_other(1, &resumed) && receiving.resume(1, &resumed) && !receiving.is_other(1, &resumed)
    );
    assert_eq!(receiving.take(&resumed, &mut ops), Ok(()));
    assert_eq!(ops.len(), operations, "what is there is not written again");
    assert_eq!(received_bytes(receiving.ack(1_000)), (10, 2));
}

fn ack(transfer: u64, received_bytes: u64, state: TransferState) -> SnapshotAck {
    SnapshotAck { transfer, received_bytes, state }
}

/// A receiver that restarted near the end may be opened anew by a late copy of the first piece. It waits for what is not sent again: only a
/// transfer that begins anew goes on from there.
#[test]
fn a_receiver_that_has_less_than_it_had_keeps_no_transfer_open() {
    let in_progress = |bytes| ack(1, bytes, TransferState::InProgress);
    let mut outgoing = OutgoingSnapshots::new(0);
    let meta = snapshot_at(20);
    outgoing.start(2, meta.clone(), message_with(&meta, 1, 2, 1), 500, 0);
    assert_eq!(outgoing.acked(2, &in_progress(1_000), 10), None);
    // It has everything, and checks it: that may take long.
    assert_eq!(outgoing.acked(2, &in_progress(1_000), 100), None);
    assert_eq!(outgoing.stalled(190, 100), []);
    for now_ms in [110, 150, 199] {
        assert_eq!(outgoing.acked(2, &in_progress(300), now_ms), None);
    }
    assert_eq!(outgoing.stalled(200, 100), [TransferEnd { to: 2, delivered: false }]);
    assert!(outgoing.is_empty());
}

/// The log behind a snapshot is kept while it is sent, and until the member has caught up, within a limit.
#[test]
fn the_log_behind_a_snapshot_is_kept_for_whoever_is_sent_it() {
    let mut outgoing = OutgoingSnapshots::new(0);
    let nobody = |_: NodeId| None;
    assert_eq!(outgoing.log_needed_from(100, 0, nobody), None);
    let meta = snapshot_at(20);
    outgoing.start(2, meta.clone(), message_with(&meta, 1, 2, 1), 500, 0);
    assert_eq!(outgoing.log_needed_from(100, 500, |_| Some(0)), Some(20));
    assert_eq!(outgoing.log_needed_from(100, 501, |_| Some(0)), None, "beyond the limit");
    let done = outgoing.acked(2, &ack(1, 1_000, TransferState::Done), 1);
    assert_eq!(done, Some(TransferEnd { to: 2, delivered: true }));
    assert_eq!(outgoing.log_needed_from(100, 500, |_| Some(0)), Some(20), "it goes on from there");
    assert_eq!(outgoing.log_needed_from(100, 500, |_| Some(60)), Some(60), "it is further by now");
    assert_eq!(outgoing.log_needed_from(100, 500, |_| Some(100)), None, "it has caught up");
    assert_eq!(outgoing.log_needed_from(200, 500, |_| Some(100)), None, "and is a member like all others");
    // Who is no member any more, or failed, needs nothing.
    for (transfer, state) in [(2, TransferState::Done), (3, TransferState::Failed)] {
        outgoing.start(2, meta.clone(), message_with(&meta, 1, 2, 1), 500, 0);
        assert!(outgoing.acked(2, &ack(transfer, 0, state), 1).is_some());
        assert_eq!(outgoing.log_needed_from(100, 500, nobody), None);
    }
}

/// It makes a machine of what it has, which takes its thread many seconds where the state is large.
#[test]
fn a_receiver_that_has_everything_may_be_silent_for_longer() {
    const SIZE: u64 = 400 * 1024 * 1024;
    let mut outgoing = OutgoingSnapshots::new(0);
    let meta = SnapshotMeta { size_bytes: SIZE, ..snapshot_at(20) };
    outgoing.start(2, meta.clone(), message_with(&meta, 1, 2, 1), 500, 0);
    let acked = ack(1, SIZE - 1, TransferState::InProgress);
    assert_eq!(outgoing.acked(2, &acked, 0), None);
    assert_eq!(outgoing.stalled(9_999, 10_000), []);
    assert_eq!(outgoing.acked(2, &ack(1, SIZE, TransferState::InProgress), 9_999), None);
    assert_eq!(outgoing.stalled(60_000, 10_000), []);
    assert_eq!(outgoing.stalled(71_200, 10_000), [TransferEnd { to: 2, delivered: false }]);
    outgoing.start(2, meta.clone(), message_with(&meta, 1, 2, 1), 500, 0);
    assert_eq!(outgoing.stalled(10_000, 10_000).len(), 1, "one that has not got everything may not");
}
