//! What a node does not know stops it with one line; it never skips it (issue item 13).

use super::*;
use crate::node_api::snapshot_stream::framed;
use crate::node_api::wire::encode_meta;
use crate::node_api::{Input, LogPosition, Now, Outputs, PeerMessage, SnapshotChunk, SnapshotMeta};
use crate::storage::memory::{MemoryDisk, MemoryStore};
use crate::storage::LogStore;
use crate::tier2::node::Node;
use raft::eraftpb::{ConfChange, Entry, EntryType, Message, MessageType};
use redfence_core::machine::{EntryBuilder, Machine};
use redfence_core::types::{Origin, Stamp};

struct Single {
    node: Node,
    store: MemoryStore,
    now: Now,
}

impl Single {
    fn start(disk: &MemoryDisk) -> Single {
        let store = disk.open().expect("the disk opens");
        let node =
            Node::new(NodeConfig::new(1, 1), store.recovered(), store.reader()).expect("the node starts");
        Single { node, store, now: Now::default() }
    }

    /// Turns and writes until nothing more is written. Answers why the node stopped, if it did.
    fn settle(&mut self) -> Option<String> {
        let mut out = Outputs::default();
        let mut input = Input::Wake;
        for _ in 0..50 {
            self.now.monotonic_us += 30_000;
            out.clear();
            self.node.step(self.now, input, &mut out);
            if out.fatal.is_some() {
                assert!(out.replies.is_empty() && out.persist.is_empty() && out.send.is_empty());
                return out.fatal;
            }
            let number = out.persist.last().map(|task| task.number);
            self.store.write_cached(&out.persist).expect("the disk takes it");
            self.store.sync();
            input = number.map_or(Input::Wake, |number| Input::Persisted { number });
        }
        None
    }

    fn propose(&mut self, kind: EntryType, data: Vec<u8>) {
        let mut entry = Entry { data: data.into(), ..Entry::default() };
        entry.set_entry_type(kind);
        let mut message = Message { from: 1, to: 1, ..Message::default() };
        message.set_msg_type(MessageType::MsgPropose);
        message.set_entries(vec![entry].into());
        self.node.raw.raft.step(message).expect("the leader takes it");
    }
}

fn entry_with(blob: &[u8]) -> Vec<u8> {
    let mut entry = EntryBuilder::new(Stamp { term: 9, logical_ms: 50, wall_us: 50 });
    let good = crate::tier2::requests::encoded(&acquire("r", "a", 1_000, 0));
    entry.push_batch(Origin { node: 1, incarnation: 1 }, 0, [(0, &good[..]), (0, blob)]);
    entry.finish()
}

/// The line a node stops with when this entry is committed: at once, and again after every restart.
fn stops_with(kind: EntryType, data: Vec<u8>) -> String {
    let disk = MemoryDisk::new(SnapshotMeta::founding(&[(1, "a:1".to_owned())]));
    let mut single = Single::start(&disk);
    assert_eq!(single.settle(), None);
    assert!(single.node.is_leader());
    let (applied, state) = (single.node.applied_index(), single.node.machine().state_hash());
    single.propose(kind, data);
    let line = single.settle().expect("the node stops");
    assert_eq!(single.node.applied_index(), applied, "applied stays before the entry");
    assert_eq!(single.node.machine().state_hash(), state, "nothing of the entry was applied");
    assert_eq!(line.lines().count(), 1);
    drop(single);
    let again = Single::start(&disk).settle().expect("it stops again after a restart");
    assert_eq!(again, line);
    line
}

#[test]
fn an_entry_version_nobody_knows_stops_the_node() {
    let mut data = entry_with(&[13, 0]);
    data[0] = 77;
    let line = stops_with(EntryType::EntryNormal, data);
    assert!(line.contains("its format is that of cluster version 62"), "{line}");
}

#[test]
fn an_entry_from_before_release_1_stops_the_node() {
    let mut data = entry_with(&[13, 0]);
    data[0] = 1;
    let line = stops_with(EntryType::EntryNormal, data);
    assert!(line.contains("its format is from before release 1"), "{line}");
}

#[test]
fn a_raise_beyond_what_the_node_can_run_stops_it() {
    let to = redfence_core::machine::version::NEWEST + 1;
    let raise = Command::Upgrade(redfence_core::machine::version::UpgradeCommand::Raise { to });
    let line = stops_with(EntryType::EntryNormal, entry_with(&crate::tier2::requests::encoded(&raise)));
    assert!(line.contains(&format!("raises the cluster version to {to}")), "{line}");
}

#[test]
fn a_command_tag_nobody_knows_stops_the_node() {
    let line = stops_with(EntryType::EntryNormal, entry_with(&[250, 1, 2]));
    assert!(line.contains("command 1 (tag 250)"), "{line}");
}

#[test]
fn a_malformed_command_stops_the_node() {
    let line = stops_with(EntryType::EntryNormal, entry_with(&[1, 0]));
    assert!(line.contains("command 1 (tag 1) is malformed"), "{line}");
}

#[test]
fn a_redis_command_nobody_knows_stops_the_node() {
    let argv = [&b"HFUTURE"[..], b"k"].into_iter().collect();
    let resp = redfence_core::keyspace::Resp::Two;
    let blob = crate::tier2::requests::encoded(&Command::Redis { db: 0, resp, member: None, argv });
    let line = stops_with(EntryType::EntryNormal, entry_with(&blob));
    assert!(line.contains("HFUTURE"), "{line}");
}

#[test]
fn changes_of_membership_that_cannot_be_read_stop_the_node() {
    use protobuf::Message as _;
    let line = stops_when_applied(EntryType::EntryConfChangeV2, vec![0xff; 7]);
    assert!(line.contains("change of membership cannot be read"), "{line}");
    let v1 = ConfChange { node_id: 2, ..ConfChange::default() }.write_to_bytes().expect("encodes");
    let line = stops_when_applied(EntryType::EntryConfChange, v1);
    assert!(line.contains("ConfChange v1"), "{line}");
}

/// For what this release's raft does not let in: another's may have.
fn stops_when_applied(kind: EntryType, data: Vec<u8>) -> String {
    let disk = MemoryDisk::new(SnapshotMeta::founding(&[(1, "a:1".to_owned())]));
    let mut single = Single::start(&disk);
    assert_eq!(single.settle(), None);
    let applied = single.node.applied_index();
    let mut entry = Entry { data: data.into(), index: applied + 1, term: 1, ..Entry::default() };
    entry.set_entry_type(kind);
    single.node.apply_committed(vec![entry]);
    let line = single.settle().expect("the node stops");
    assert_eq!(single.node.applied_index(), applied, "applied stays before the entry");
    line
}

#[test]
fn a_snapshot_version_nobody_knows_stops_the_node_that_is_sent_it() {
    let mut machine = Machine::new();
    machine.snapshot_begin();
    let mut piece = machine.snapshot_step(10).expect("there is a first piece");
    piece[0] = 99;
    let (body, crc) = piece.split_last_chunk_mut::<4>().expect("a checksum");
    *crc = crc32fast::hash(body).to_le_bytes();
    let bytes = framed(&piece);
    let at = LogPosition { index: 5, term: 1 };
    let founders = [(1, "a:1".to_owned()), (2, "b:1".to_owned())];
    let size_bytes = 1_000 + bytes.len() as u64;
    let meta = SnapshotMeta { at, size_bytes, ..SnapshotMeta::founding(&founders) };
    let mut message = Message { from: 2, to: 1, term: 1, ..Message::default() };
    message.set_msg_type(MessageType::MsgSnapshot);
    message.mut_snapshot().data = encode_meta(&meta);
    message.mut_snapshot().mut_metadata().index = at.index;
    message.mut_snapshot().mut_metadata().term = at.term;
    message.mut_snapshot().mut_metadata().set_conf_state(meta.conf_state);
    let chunk = SnapshotChunk { transfer: 1, offset: 0, bytes, message: Some(Box::new(message)) };

    let disk = MemoryDisk::new(SnapshotMeta::founding(&founders));
    let mut single = Single::start(&disk);
    let mut out = Outputs::default();
    let input = Input::Peer { from: 2, message: PeerMessage::SnapshotChunk(chunk) };
    single.node.step(single.now, input, &mut out);
    let line = out.fatal.expect("the node stops");
    assert!(line.contains("the snapshot cannot be read: its format is that of cluster version 84"), "{line}");
}

#[test]
fn a_node_whose_log_cannot_be_written_says_so_and_nothing_else() {
    let disk = MemoryDisk::new(SnapshotMeta::founding(&[(1, "a:1".to_owned())]));
    let store = disk.open().expect("a fresh disk opens");
    let mut node =
        Node::new(NodeConfig::new(1, 1), store.recovered(), store.reader()).expect("a fresh node starts");
    let mut out = Outputs::default();
    node.step(Now::default(), Input::Wake, &mut out);
    assert!(out.fatal.is_none() && !out.persist.is_empty());
    for input in
        [Input::PersistFailed { reason: "no space".to_owned() }, Input::Persisted { number: 9 }, Input::Wake]
    {
        out.clear();
        node.step(Now::default(), input, &mut out);
        assert!(out.fatal.as_ref().is_some_and(|reason| reason.contains("no space")));
        assert!(out.persist.is_empty() && out.send.is_empty() && out.replies.is_empty());
    }
}
