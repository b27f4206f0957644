//! Messages of a hostile member: none of them stops the node or makes it panic.

use super::*;
use crate::node_api::snapshot_stream::framed;
use crate::node_api::wire::encode_meta;
use crate::node_api::{AdminRequest, Forward, Input, LogPosition, NodeId, Now, Outputs, PeerMessage};
use crate::node_api::{SnapshotChunk, SnapshotMeta, SnapshotOp, TransferState};
use crate::storage::memory::{MemoryDisk, MemoryStore};
use crate::storage::LogStore;
use crate::tier2::node::rng::Rng;
use crate::tier2::node::Node;
use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, Message, MessageType};
use redfence_core::machine::Machine;
use redfence_core::types::Origin;

/// One of three members, with a disk in memory.
struct Victim {
    node: Node,
    store: MemoryStore,
    now: Now,
    /// What it has sent since it was last looked at.
    sent: Vec<(NodeId, PeerMessage)>,
    snapshot_ops: Vec<SnapshotOp>,
}

fn founders() -> Vec<(NodeId, String)> {
    (1..=3).map(|id| (id, format!("host{id}:7380"))).collect()
}

impl Victim {
    fn start(seed: u64) -> Victim {
        let disk = MemoryDisk::new(SnapshotMeta::founding(&founders()));
        let store = disk.open().unwrap();
        let node = Node::new(NodeConfig::new(1, seed), store.recovered(), store.reader()).unwrap();
        Victim { node, store, now: Now::default(), sent: Vec::new(), snapshot_ops: Vec::new() }
    }

    fn hear(&mut self, from: NodeId, message: PeerMessage) {
        self.step(Input::Peer { from, message });
    }

    fn hear_raft(&mut self, message: Message) {
        self.hear(message.from, PeerMessage::Raft(Box::new(message)));
    }

    fn step(&mut self, input: Input) {
        self.now.monotonic_us += 1_000;
        let mut out = Outputs::default();
        self.node.step(self.now, input, &mut out);
        assert_eq!(out.fatal, None);
        self.sent.append(&mut out.send);
        self.snapshot_ops.append(&mut out.snapshot_ops);
        for task in &out.persist {
            self.store.write_cached(std::slice::from_ref(task)).unwrap();
            self.sent.extend(task.after.iter().cloned());
        }
        self.store.sync();
        if let Some(number) = out.persist.last().map(|task| task.number) {
            self.step(Input::Persisted { number });
        }
    }

    /// Elected with the votes of node 2.
    fn lead(&mut self) {
        for _ in 0..1_000 {
            self.now.monotonic_us += 24_000;
            self.step(Input::Wake);
            for (to, message) in std::mem::take(&mut self.sent) {
                let PeerMessage::Raft(message) = message else { continue };
                let kind = match message.get_msg_type() {
                    MessageType::MsgRequestPreVote => MessageType::MsgRequestPreVoteResponse,
                    MessageType::MsgRequestVote => MessageType::MsgRequestVoteResponse,
                    _ => continue,
                };
                if to == 2 {
                    let mut vote = Message { from: 2, to: 1, term: message.term, ..Message::default() };
                    vote.set_msg_type(kind);
                    self.hear_raft(vote);
                }
            }
            if self.node.is_leader() {
                return;
            }
        }
        panic!("not elected");
    }
}

fn raft_message(kind: MessageType, from: NodeId, term: u64) -> Message {
    let mut message = Message { from, to: 1, term, ..Message::default() };
    message.set_msg_type(kind);
    message
}

#[test]
fn a_heartbeat_with_a_commit_beyond_the_log_does_not_kill_the_node() {
    let mut victim = Victim::start(1);
    victim.hear_raft(Message { commit: 1_000_000, ..raft_message(MessageType::MsgHeartbeat, 2, 1) });
    victim.lead();
    let term = victim.node.term() + 1;
    victim.hear_raft(Message { commit: u64::MAX, ..raft_message(MessageType::MsgHeartbeat, 2, term) });
    assert!(victim.node.is_leader(), "it is not even heard");
    assert_eq!(victim.node.impossible_messages(), 2);
}

#[test]
fn an_append_behind_a_gap_is_refused() {
    let mut victim = Victim::start(5);
    let mut append = Message { index: 500, log_term: 0, ..raft_message(MessageType::MsgAppend, 2, 1) };
    append.set_entries(vec![Entry { index: 501, term: 1, ..Entry::default() }].into());
    victim.hear_raft(append);
    assert_eq!(victim.node.impossible_messages(), 1);
}

#[test]
fn a_node_that_is_not_a_member_is_heard_about_nothing() {
    let mut victim = Victim::start(2);
    victim.lead();
    let (term, applied) = (victim.node.term(), victim.node.applied_index());
    victim.sent.clear();
    let request = AdminRequest::Add { id: 77, addr: "127.0.0.1:7777".to_owned() };
    victim.hear(77, PeerMessage::Admin { applied: u64::MAX >> 8, request });
    let request = AdminRequest::Remove { id: 3 };
    victim.hear(77, PeerMessage::Admin { applied: u64::MAX >> 8, request });
    let origin = Origin { node: 77, incarnation: 1 };
    victim
        .hear(77, PeerMessage::Forward(Forward { origin, term, prev: 0, acked_below: 0, commands: vec![] }));
    for kind in [MessageType::MsgAppend, MessageType::MsgHeartbeat, MessageType::MsgRequestVote] {
        victim.hear_raft(raft_message(kind, 77, term + 1));
    }
    let forced = Message {
        context: "CampaignTransfer".into(),
        ..raft_message(MessageType::MsgRequestVote, 77, term + 1)
    };
    victim.hear_raft(forced);
    assert!(victim.node.is_leader());
    assert_eq!((victim.node.term(), victim.node.applied_index()), (term, applied));
    let told: Vec<_> = victim.sent.iter().filter(|(to, _)| *to == 77).collect();
    let only_hints = |message: &PeerMessage| matches!(message, PeerMessage::NotMember { .. });
    assert!(told.iter().all(|(_, message)| only_hints(message)), "{told:?}");
}

#[test]
fn a_member_speaks_for_its_own_clients_alone() {
    let mut victim = Victim::start(3);
    victim.lead();
    let origin = Origin { node: 3, incarnation: 1 };
    let forward = Forward { origin, term: victim.node.term(), prev: 0, acked_below: 0, commands: vec![] };
    victim.hear(2, PeerMessage::Forward(forward));
    assert_eq!(victim.node.impossible_messages(), 1);
}

#[test]
fn a_snapshot_with_an_impossible_configuration_is_refused() {
    let conf_states = [
        (vec![1, 2, 2], vec![], vec![]),
        (vec![1, 2], vec![2], vec![]),
        (vec![], vec![1], vec![]),
        (vec![1, 0], vec![], vec![]),
        (vec![1, 2, 3], vec![], vec![2]),
    ];
    for (voters, learners, voters_outgoing) in conf_states {
        let mut conf_state = ConfState::default();
        conf_state.set_voters(voters);
        conf_state.set_learners(learners);
        conf_state.set_voters_outgoing(voters_outgoing);
        let mut victim = Victim::start(4);
        let at = LogPosition { index: 50, term: 1 };
        let meta = SnapshotMeta { at, conf_state, ..SnapshotMeta::founding(&founders()) };
        victim.hear(2, PeerMessage::SnapshotChunk(snapshot_chunk(&meta, MessageType::MsgSnapshot)));
        assert_eq!((victim.node.impossible_messages(), victim.node.applied_index()), (1, 1));
    }
    let meta = SnapshotMeta { at: LogPosition { index: 50, term: 1 }, ..SnapshotMeta::founding(&founders()) };
    let mut victim = Victim::start(4);
    victim.hear(2, PeerMessage::SnapshotChunk(snapshot_chunk(&meta, MessageType::MsgHup)));
    assert_eq!((victim.node.impossible_messages(), victim.node.applied_index()), (1, 1));
    victim.hear(2, PeerMessage::SnapshotChunk(snapshot_chunk(&meta, MessageType::MsgSnapshot)));
    assert_eq!(
        (victim.node.impossible_messages(), victim.node.applied_index()),
        (1, 50),
        "a good one is taken"
    );
}

/// A late first piece of another transfer comes in the turn in which raft takes the snapshot that is complete.
#[test]
fn a_late_snapshot_does_not_replace_one_that_raft_has_taken() {
    let of_index = |index| {
        let at = LogPosition { index, term: 1 };
        let meta = SnapshotMeta { at, ..SnapshotMeta::founding(&founders()) };
        PeerMessage::SnapshotChunk(snapshot_chunk(&meta, MessageType::MsgSnapshot))
    };
    for late in [1, 40, 60] {
        let mut victim = Victim::start(4);
        victim.node.input(victim.now, Input::Peer { from: 2, message: of_index(50) });
        victim.node.input(victim.now, Input::Peer { from: 2, message: of_index(late) });
        victim.step(Input::Wake);
        assert_eq!(victim.node.applied_index(), 50, "late: {late}");
    }
}

/// What a machine writes, as it is sent.
fn snapshot_of(index: u64) -> (SnapshotMeta, Bytes) {
    let mut machine = Machine::new();
    machine.snapshot_begin();
    let mut bytes = Vec::new();
    while let Some(piece) = machine.snapshot_step(1_000) {
        bytes.extend_from_slice(&framed(&piece));
    }
    let (size_bytes, crc32) = (bytes.len() as u64, crc32fast::hash(&bytes));
    let at = LogPosition { index, term: 1 };
    (SnapshotMeta { at, size_bytes, crc32, ..SnapshotMeta::founding(&founders()) }, bytes.into())
}

/// Its leader has a newer one by the time that it has come. Begun anew each time, a large one would never be installed under load.
#[test]
fn a_complete_snapshot_is_installed_though_a_newer_one_comes() {
    let mut victim = Victim::start(4);
    for index in [50, 60] {
        let (meta, bytes) = snapshot_of(index);
        let chunk = SnapshotChunk { bytes, ..snapshot_chunk(&meta, MessageType::MsgSnapshot) };
        victim.hear(2, PeerMessage::SnapshotChunk(chunk));
    }
    let acks = victim.sent.iter().filter_map(|(to, message)| match message {
        PeerMessage::SnapshotAck(ack) => Some((*to, ack.transfer, ack.state)),
        _ => None,
    });
    let wanted = [(2, 50, TransferState::InProgress), (2, 60, TransferState::Failed)];
    assert_eq!(acks.collect::<Vec<_>>(), wanted);
    let finished = victim.snapshot_ops.iter().find_map(|op| match op {
        SnapshotOp::Finish { id, .. } => Some(*id),
        _ => None,
    });
    let finished = finished.expect("all of it came");
    victim.step(Input::SnapshotStored(finished));
    assert_eq!(victim.node.applied_index(), 50);
    // One of an earlier term raft would ignore: that of a new leader takes its place.
    let mut victim = Victim::start(4);
    for (index, term) in [(50, 5), (60, 6)] {
        let (meta, bytes) = snapshot_of(index);
        let mut chunk = SnapshotChunk { bytes, ..snapshot_chunk(&meta, MessageType::MsgSnapshot) };
        chunk.message.as_mut().expect("it is the first").term = term;
        victim.hear(2, PeerMessage::SnapshotChunk(chunk));
    }
    let is_dropped = |op: &SnapshotOp| matches!(op, SnapshotOp::Discard(id) if *id == finished);
    assert!(victim.snapshot_ops.iter().any(is_dropped));
}

/// The first piece of what an earlier leader sent comes late, of the very same snapshot: what came of the new one's stays.
#[test]
fn a_snapshot_of_an_earlier_term_takes_nothing_over() {
    for is_whole in [true, false] {
        let mut victim = Victim::start(4);
        let (meta, bytes) = snapshot_of(50);
        for (from, term, transfer) in [(2, 6, 50), (3, 5, 51)] {
            let bytes = if is_whole { bytes.clone() } else { bytes.slice(..bytes.len() / 2) };
            let mut chunk =
                SnapshotChunk { bytes, transfer, ..snapshot_chunk(&meta, MessageType::MsgSnapshot) };
            let message = chunk.message.as_mut().expect("it is the first");
            (message.from, message.term) = (from, term);
            victim.hear(from, PeerMessage::SnapshotChunk(chunk));
        }
        let acks = victim.sent.iter().filter_map(|(to, message)| match message {
            PeerMessage::SnapshotAck(ack) => Some((*to, ack.transfer, ack.state)),
            _ => None,
        });
        let wanted = [(2, 50, TransferState::InProgress), (3, 51, TransferState::Failed)];
        assert_eq!(acks.collect::<Vec<_>>(), wanted, "whole: {is_whole}");
        assert!(!victim.snapshot_ops.iter().any(|op| matches!(op, SnapshotOp::Discard(_))));
    }
}

fn snapshot_chunk(meta: &SnapshotMeta, kind: MessageType) -> SnapshotChunk {
    let mut message = raft_message(kind, 2, 5);
    message.mut_snapshot().data = encode_meta(meta);
    let metadata = message.mut_snapshot().mut_metadata();
    (metadata.index, metadata.term) = (meta.at.index, meta.at.term);
    metadata.set_conf_state(meta.conf_state.clone());
    SnapshotChunk {
        transfer: meta.at.index,
        offset: 0,
        bytes: Bytes::new(),
        message: Some(Box::new(message)),
    }
}

/// A number that is near what the node has, or at one of the ends.
fn number(rng: &mut Rng, near: u64) -> u64 {
    match rng.between(0, 9) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.between(0, 63),
        3 => near + 1_000,
        step => (near + step as u64).saturating_sub(6),
    }
}

fn random_message(rng: &mut Rng, victim: &Victim) -> Message {
    let kinds = [
        MessageType::MsgHup,
        MessageType::MsgBeat,
        MessageType::MsgPropose,
        MessageType::MsgAppend,
        MessageType::MsgAppendResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgSnapshot,
        MessageType::MsgHeartbeat,
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgUnreachable,
        MessageType::MsgSnapStatus,
        MessageType::MsgCheckQuorum,
        MessageType::MsgTransferLeader,
        MessageType::MsgTimeoutNow,
        MessageType::MsgReadIndex,
        MessageType::MsgReadIndexResp,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgAppend,
        MessageType::MsgAppend,
        MessageType::MsgAppendResponse,
    ];
    let log = &victim.node.raw.raft.raft_log;
    let (term, last) = (victim.node.term(), log.last_index());
    // Mostly plausible: what is nonsense in every field is refused by the first check.
    let from = [2, 2, 3, 3, 3, 1, 77, 0][rng.between(0, 8)];
    let mut message = raft_message(kinds[rng.between(0, kinds.len())], from, term);
    if rng.between(0, 3) == 0 {
        message.term = number(rng, term);
    }
    message.index = number(rng, last);
    message.log_term = match log.term(message.index) {
        Ok(term) if rng.between(0, 4) > 0 => term,
        _ => number(rng, term),
    };
    message.commit = number(rng, last);
    message.commit_term = number(rng, term);
    message.reject = rng.between(0, 2) == 0;
    message.reject_hint = number(rng, last);
    if rng.between(0, 20) == 0 {
        message.request_snapshot = number(rng, last);
    }
    message.priority = number(rng, 0) as i64;
    if rng.between(0, 4) == 0 {
        message.context = [&b"CampaignTransfer"[..], b"", &[9; 65]][rng.between(0, 3)].to_vec().into();
    }
    let entries = (0..rng.between(0, 4)).map(|at| {
        let gap = if rng.between(0, 8) == 0 { number(rng, last) } else { 0 };
        let index = message.index.wrapping_add(1 + at as u64).wrapping_add(gap);
        let term = if rng.between(0, 6) == 0 { number(rng, term) } else { message.term };
        Entry { index, term, ..Entry::default() }
    });
    let entries: Vec<Entry> = entries.collect();
    message.set_entries(entries.into());
    message
}

/// Entries are empty here: one that cannot be read stops the node by design (see `stops.rs`).
#[test]
fn random_messages_of_members_never_stop_a_node() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut victim = Victim::start(seed);
        if seed % 2 == 0 {
            victim.lead();
        }
        for _ in 0..400 {
            let message = random_message(&mut rng, &victim);
            if rng.between(0, 10) == 0 {
                victim.now.monotonic_us += 200_000;
            }
            victim.hear(message.from, PeerMessage::Raft(Box::new(message)));
            victim.sent.clear();
        }
    }
}

/// Something between the nodes refused for a moment, and the leader lives. Its end is still noticed as soon as ever.
#[test]
fn a_false_alarm_does_not_silence_the_next_one() {
    let mut victim = Victim::start(1);
    let heartbeat = || raft_message(MessageType::MsgHeartbeat, 2, 5);
    victim.hear_raft(heartbeat());
    for _ in 0..3 {
        assert_eq!(victim.node.leader(), 2);
        victim.step(Input::Refused(2));
        assert_eq!(victim.node.leader(), 0, "it is forgotten");
        victim.hear_raft(heartbeat());
        victim.step(Input::Refused(2));
        assert_eq!(victim.node.leader(), 2, "not twice within a second");
        for _ in 0..12 {
            victim.now.monotonic_us += 100_000;
            victim.hear_raft(heartbeat());
        }
    }
    assert_eq!(victim.node.term(), 5, "nobody was elected");
}
