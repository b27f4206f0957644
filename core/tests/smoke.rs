//! The shortest way through the machine: take, wait, hand over, snapshot, restore. The golden scripts have the details.

use redfence_core::machine::{Applied, Command, EntryBuilder, Machine};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Origin, RequestId, Stamp};

const ORIGIN: Origin = Origin { node: 1, incarnation: 7 };

fn entry(logical_ms: u64, seq: u64, command: &Command<'_>) -> Vec<u8> {
    let mut blob = Vec::new();
    command.encode(&mut blob);
    let mut entry = EntryBuilder::new(Stamp { term: 1, logical_ms, wall_us: 1_000_000 });
    entry.push_batch(ORIGIN, 1, [(seq, blob)]);
    entry.finish()
}

fn acquire(owner: &[u8], wait_ms: u64) -> Command<'_> {
    Command::Acquire { db: 0, resource: b"a", ttl_ms: 1000, wait_ms, owner, session: None }
}

#[test]
fn hand_over_survives_a_snapshot() {
    let mut machine = Machine::new();
    let mut out = Applied::default();
    machine.apply_entry(&entry(1, 1, &acquire(b"x", 0)), &mut out).expect("a known entry");
    machine.apply_entry(&entry(2, 2, &acquire(b"y", 500)), &mut out).expect("a known entry");
    let id = |seq| RequestId { origin: ORIGIN, seq };
    let first = Reply::Granted { fence: Fence(1_000_000), ttl_ms: 1000 };
    assert_eq!(out.replies, [(id(1), first)]);
    machine.snapshot_begin();
    let pieces: Vec<_> = std::iter::from_fn(|| machine.snapshot_step(1)).collect();
    let mut restored = Machine::restore(&pieces).expect("what was written can be read");
    assert_eq!(restored.state_hash(), machine.state_hash());
    out.clear();
    let release = Command::Release { db: 0, resource: b"a", fence: Fence(1_000_000) };
    restored.apply_entry(&entry(3, 3, &release), &mut out).expect("a known entry");
    let second = Reply::Granted { fence: Fence(1_000_001), ttl_ms: 1000 };
    assert_eq!(out.replies, [(id(3), Reply::Released), (id(2), second)]);
}
