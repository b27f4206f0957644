//! Digests: equal for equal histories whatever a node went through, different for different ones, and never a reason to log more.

#![cfg(feature = "scripts")]

mod drive;

use drive::Writer;
use proptest::prelude::*;
use redfence_core::machine::digest::{
    DigestCommand, DigestKind, DigestSlice, Divergence, MemberLife, POINT_ENTRIES,
};
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine, RestoreError, Wanted};
use redfence_core::types::{Fence, Origin, Stamp};

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

fn entry(logical_ms: u64, commands: &[(u64, Command<'_>)]) -> Vec<u8> {
    let stamp = Stamp { term: 1, logical_ms, wall_us: 1_000 * logical_ms };
    let mut builder = EntryBuilder::new(stamp);
    let encoded: Vec<(u64, Vec<u8>)> = commands
        .iter()
        .map(|(seq, command)| {
            let mut blob = Vec::new();
            command.encode(&mut blob);
            (*seq, blob)
        })
        .collect();
    builder.push_batch(ORIGIN, 0, encoded);
    builder.finish()
}

fn apply(machine: &mut Machine, logical_ms: u64, commands: &[(u64, Command<'_>)]) {
    machine.apply_entry(&entry(logical_ms, commands), &mut Applied::default()).expect("a known entry");
}

fn started() -> Machine {
    let mut machine = Machine::new();
    machine.set_members((1..=3).map(|node| MemberLife { node, added_at: 0, voter: true }).collect());
    apply(&mut machine, 1, &[(0, Command::OriginStart { origin: ORIGIN })]);
    machine
}

fn acquire(name: &str, ttl_ms: u64) -> Command<'_> {
    let (resource, owner) = (name.as_bytes(), b"o".as_slice());
    Command::Acquire { db: 0, resource, ttl_ms, wait_ms: 0, owner, session: None }
}

fn digest(machine: &mut Machine, slots: usize, mut between: impl FnMut(&mut Machine)) -> u64 {
    assert!(machine.digest_begin());
    loop {
        if let Some(digest) = machine.digest_step(DigestSlice { slots, ..DigestSlice::default() }) {
            return digest;
        }
        between(machine);
    }
}

fn pieces(machine: &mut Machine) -> Vec<Vec<u8>> {
    machine.snapshot_begin();
    std::iter::from_fn(|| machine.snapshot_step(usize::MAX)).collect()
}

#[test]
fn points_come_by_entries_by_time_and_when_asked_for_and_never_because_of_reports() {
    let mut machine = started();
    assert_eq!(machine.take_point(), None);
    for seq in 1..POINT_ENTRIES - 1 {
        apply(&mut machine, 2, &[(seq, acquire("a", 50))]);
        assert_eq!(machine.take_point(), None, "entry {seq}");
    }
    apply(&mut machine, 2, &[(5_000, acquire("a", 50))]);
    let point = machine.take_point().expect("after 1,024 entries");
    assert_eq!((point.index, point.full), (POINT_ENTRIES, false));
    let report = |node, index, value| {
        let kind = DigestKind::Chain;
        Command::Digest(DigestCommand::Report { node, added_at: 0, kind, index, value })
    };
    // Nothing but reports and a clock that moves on: no content, so no point, however long.
    let chain = machine.digest_chain();
    apply(&mut machine, 40, &[(0, report(1, point.index, 5)), (0, report(2, point.index, 5))]);
    assert_eq!(machine.digest_chain(), chain);
    assert_eq!(machine.confirmed_index(), point.index);
    apply(&mut machine, 45, &[(0, Command::Expire { idle_ms: 600_000 })]);
    assert_eq!((machine.take_point(), machine.content_index()), (None, point.index));
    // The lock ends: that is content, and more than a second has gone by since the last point.
    apply(&mut machine, 2_000, &[(0, Command::Expire { idle_ms: 600_000 })]);
    assert!(machine.take_point().is_some());
    let ask = |kind| Command::Digest(DigestCommand::Checkpoint { kind });
    apply(&mut machine, 2_001, &[(0, ask(DigestKind::Chain))]);
    assert!(!machine.take_point().expect("asked for").full);
    apply(&mut machine, 2_001, &[(0, ask(DigestKind::Full)), (0, ask(DigestKind::Chain))]);
    assert!(machine.take_point().expect("asked for").full);
}

#[test]
fn the_chain_tells_answers_apart() {
    let chain = |commands: &[(u64, Command<'_>)]| {
        let mut machine = started();
        apply(&mut machine, 5, commands);
        machine.digest_chain()
    };
    let release = |fence| Command::Release { db: 0, resource: b"a", fence: Fence(fence) };
    let set = |value: &'static [u8]| Command::Redis {
        db: 0,
        resp: redfence_core::keyspace::Resp::Two,
        member: None,
        argv: [b"SET".as_slice(), b"k", value, b"GET"].into_iter().collect(),
    };
    let chains = [
        chain(&[(1, acquire("a", 50))]),
        chain(&[(2, acquire("a", 50))]),
        chain(&[(1, acquire("a", 51))]),
        chain(&[(1, acquire("a", 50)), (2, release(5_000))]),
        chain(&[(1, acquire("a", 50)), (2, release(4_999))]),
        chain(&[(1, set(b"x")), (2, set(b"y"))]),
        chain(&[(1, set(b"z")), (2, set(b"y"))]),
    ];
    for (at, one) in chains.iter().enumerate() {
        assert_eq!(chains.iter().filter(|other| *other == one).count(), 1, "chain {at}");
    }
}

/// A retry that is answered from memory, on a node that has been through a snapshot and on one that has not.
#[test]
fn a_remembered_reply_does_not_tell_a_restored_node_from_the_others() {
    let mut machine = started();
    let info = Command::Redis {
        db: 0,
        resp: redfence_core::keyspace::Resp::Three,
        member: None,
        argv: [b"OBJECT".as_slice(), b"ENCODING", b"k"].into_iter().collect(),
    };
    let set = Command::Redis {
        db: 0,
        resp: redfence_core::keyspace::Resp::Two,
        member: None,
        argv: [b"SET".as_slice(), b"k", b"5"].into_iter().collect(),
    };
    apply(&mut machine, 5, &[(1, set), (2, info.clone()), (3, acquire("a", 50))]);
    let mut restored = Machine::restore(pieces(&mut machine)).expect("our own");
    for machine in [&mut machine, &mut restored] {
        apply(machine, 6, &[(2, info.clone()), (3, acquire("a", 50)), (4, acquire("b", 9))]);
    }
    assert_eq!(machine.digest_chain(), restored.digest_chain());
}

#[test]
fn a_full_digest_shows_what_no_answer_has_shown_and_no_statistics() {
    let mut machine = started();
    apply(&mut machine, 5, &[(1, acquire("a", 50))]);
    let mut other = Machine::restore(pieces(&mut machine)).expect("our own");
    assert_eq!(digest(&mut machine, 1, |_| ()), digest(&mut other, usize::MAX, |_| ()));
    other.plant_divergence(Divergence::State(1));
    assert_eq!(machine.digest_chain(), other.digest_chain());
    assert_ne!(digest(&mut machine, 1, |_| ()), digest(&mut other, 1, |_| ()));
}

#[test]
fn a_snapshot_being_written_and_a_digest_keep_out_of_each_others_way() {
    let mut machine = started();
    machine.snapshot_begin();
    assert!(!machine.digest_begin());
    while machine.snapshot_step(1).is_some() {}
    assert!(machine.digest_begin());
}

/// The last record names the digest; a reader makes it again from the state that it has built.
#[test]
fn a_snapshot_with_another_digest_is_refused() {
    let mut machine = started();
    apply(&mut machine, 5, &[(1, acquire("a", 50))]);
    let mut pieces = pieces(&mut machine);
    let last = pieces.last_mut().expect("a piece");
    let at = last.len() - 5;
    last[at] ^= 1;
    let body = last.len() - 4;
    let crc = crc32fast::hash(&last[..body]).to_le_bytes();
    last[body..].copy_from_slice(&crc);
    assert_eq!(Machine::restore(&pieces).map(|_| ()), Err(RestoreError::Digest));
    let mut checker = redfence_core::machine::Checker::default();
    pieces.iter().for_each(|piece| checker.push(piece).expect("well formed"));
    assert_eq!(checker.finish(), Err(RestoreError::Digest));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// One node is watched, another not; one restarts from its snapshot; one makes its full digest in small slices with work going
    /// on between them, another at once. Chain and full digest are the same everywhere.
    #[test]
    fn equal_histories_have_equal_digests(before in drive::steps(60), during in drive::steps(60), slots in 1usize..9) {
        let (mut writer, mut one, mut two) = (Writer::new(), Machine::new(), Machine::new());
        two.set_wanted(Wanted::ALL);
        for step in &before {
            let entry = writer.entry(step, &one);
            drive::apply(&mut one, &entry);
            drive::apply(&mut two, &entry);
        }
        let mut restored = Machine::restore(pieces(&mut two)).expect("our own");
        prop_assert_eq!(one.digest_chain(), restored.digest_chain());
        let still = digest(&mut restored, usize::MAX, |_| ());
        let (mut steps, mut entries) = (during.iter(), Vec::new());
        let moving = digest(&mut one, slots, |one| {
            if let Some(step) = steps.next() {
                let entry = writer.entry(step, one);
                drive::apply(one, &entry);
                entries.push(entry);
            }
        });
        prop_assert_eq!(moving, still);
        entries.iter().for_each(|entry| drop(drive::apply(&mut two, entry)));
        entries.iter().for_each(|entry| drop(drive::apply(&mut restored, entry)));
        prop_assert_eq!(one.digest_chain(), two.digest_chain());
        prop_assert_eq!(one.digest_chain(), restored.digest_chain());
        prop_assert_eq!(digest(&mut one, 3, |_| ()), digest(&mut restored, 7, |_| ()));
    }
}
