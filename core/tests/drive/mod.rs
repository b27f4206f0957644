//! Random work for the machine: a small world in which names, owners and sessions meet often.

// Each test binary uses its own part of this.
#![allow(dead_code, reason = "each test file uses its own part")]

use proptest::prelude::*;
use redfence_core::machine::{version, Applied, Command, EntryBuilder, Limits, Machine, Restorer};
use redfence_core::types::{Fence, Origin, RequestId, SessionId, SessionScope, Stamp};

pub(crate) const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"eeeeeeeeeeeeeeeeeeeeeeeeeee"];
const OWNERS: [&[u8]; 6] = [b"o1", b"o2", b"o3", b"o4", b"o5", b"a-longer-owner-than-the-others"];
pub(crate) const DBS: u32 = 2;

/// One thing to do. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Acquire {
        db: u32,
        name: usize,
        owner: usize,
        ttl_ms: u64,
        wait_ms: u64,
        session: Option<u64>,
    },
    MAcquire {
        names: Vec<usize>,
        owner: usize,
        ttl_ms: u64,
        wait_ms: u64,
        session: Option<u64>,
    },
    Release {
        db: u32,
        name: usize,
        how: Guess,
    },
    MRelease {
        names: Vec<usize>,
        how: Guess,
    },
    Renew {
        db: u32,
        name: usize,
        how: Guess,
        ttl_ms: u64,
    },
    Force {
        db: u32,
        name: usize,
    },
    Open {
        id: u64,
        ttl_ms: u64,
    },
    KeepAlive {
        id: u64,
    },
    Close {
        id: u64,
    },
    Touch {
        ids: Vec<u64>,
    },
    Orphan {
        ids: Vec<u64>,
        grace_ms: u64,
    },
    Cancel {
        back: u64,
    },
    Expire {
        idle_ms: u64,
    },
    Start {
        node: u64,
        incarnation: u64,
    },
    Gone {
        node: u64,
        incarnation: u64,
    },
    /// Bytes that are no command.
    Nonsense(Vec<u8>),
}

/// Which fence a client comes with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Guess {
    Current,
    Before,
    Wrong,
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) op: Op,
    /// Milliseconds since the step before.
    pub(crate) elapsed_ms: u64,
    pub(crate) node: u64,
    pub(crate) older_term: bool,
    /// How many of its answers the node says it has, counted back from the newest.
    pub(crate) acked_back: u64,
}

fn guess() -> impl Strategy<Value = Guess> {
    prop_oneof![6 => Just(Guess::Current), 1 => Just(Guess::Before), 1 => Just(Guess::Wrong)]
}

fn session() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 2 => (1..4u64).prop_map(Some)]
}

fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0u64), 3 => 1..200u64]
}

fn op() -> impl Strategy<Value = Op> {
    let name = || 0..NAMES.len();
    let owner = || 0..OWNERS.len();
    let db = || prop_oneof![8 => Just(0u32), 1 => Just(1u32)];
    let names = || prop::collection::vec(0..NAMES.len(), 1..4);
    prop_oneof![
        12 => (db(), name(), owner(), 0..120u64, wait(), session()).prop_map(
            |(db, name, owner, ttl_ms, wait_ms, session)| Op::Acquire { db, name, owner, ttl_ms, wait_ms, session }),
        6 => (names(), owner(), 0..120u64, wait(), session()).prop_map(
            |(names, owner, ttl_ms, wait_ms, session)| Op::MAcquire { names, owner, ttl_ms, wait_ms, session }),
        9 => (db(), name(), guess()).prop_map(|(db, name, how)| Op::Release { db, name, how }),
        2 => (names(), guess()).prop_map(|(names, how)| Op::MRelease { names, how }),
        2 => (db(), name(), guess(), 0..150u64).prop_map(|(db, name, how, ttl_ms)| Op::Renew { db, name, how, ttl_ms }),
        1 => (db(), name()).prop_map(|(db, name)| Op::Force { db, name }),
        4 => (1..4u64, 0..200u64).prop_map(|(id, ttl_ms)| Op::Open { id, ttl_ms }),
        2 => (1..4u64).prop_map(|id| Op::KeepAlive { id }),
        1 => (1..4u64).prop_map(|id| Op::Close { id }),
        1 => prop::collection::vec(1..4u64, 0..3).prop_map(|ids| Op::Touch { ids }),
        1 => (prop::collection::vec(1..4u64, 0..3), 0..50u64).prop_map(|(ids, grace_ms)| Op::Orphan { ids, grace_ms }),
        2 => (0..12u64).prop_map(|back| Op::Cancel { back }),
        3 => (0..100u64).prop_map(|idle_ms| Op::Expire { idle_ms }),
        1 => (1..4u64, 1..3u64).prop_map(|(node, incarnation)| Op::Start { node, incarnation }),
        1 => (2..4u64, 1..3u64).prop_map(|(node, incarnation)| Op::Gone { node, incarnation }),
        1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Op::Nonsense),
    ]
}

pub(crate) fn steps(max: usize) -> impl Strategy<Value = Vec<Step>> {
    let elapsed = prop_oneof![4 => Just(0u64), 6 => 1..20u64, 1 => 50..300u64];
    let node = prop_oneof![4 => Just(1u64), 2 => Just(2u64), 1 => Just(3u64)];
    let older_term = prop_oneof![15 => Just(false), 1 => Just(true)];
    let step = (op(), elapsed, node, older_term, 0..40u64).prop_map(
        |(op, elapsed_ms, node, older_term, acked_back)| Step {
            op,
            elapsed_ms,
            node,
            older_term,
            acked_back,
        },
    );
    prop::collection::vec(step, 1..max)
}

/// Sessions that live long and get in each other's way.
pub(crate) fn sessions_at_odds(max: usize) -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..NAMES.len();
    let session = || (1..5u64).prop_map(Some);
    let op = prop_oneof![
        6 => (name(), 0..OWNERS.len(), session(), any::<bool>()).prop_map(|(name, owner, session, waits)| {
            Op::Acquire { db: 0, name, owner, ttl_ms: 0, wait_ms: if waits { 100_000 } else { 0 }, session }
        }),
        3 => (prop::collection::vec(name(), 1..4), 0..OWNERS.len(), session()).prop_map(|(names, owner, session)| {
            Op::MAcquire { names, owner, ttl_ms: 0, wait_ms: 100_000, session }
        }),
        2 => name().prop_map(|name| Op::Release { db: 0, name, how: Guess::Current }),
    ];
    let step = |op| Step { op, elapsed_ms: 1, node: 1, older_term: false, acked_back: 0 };
    let opened = (1..5u64).map(move |id| step(Op::Open { id, ttl_ms: 1_000_000 })).collect::<Vec<Step>>();
    prop::collection::vec(op.prop_map(step), 1..max).prop_map(move |steps| [opened.clone(), steps].concat())
}

/// Small enough that every limit is met.
pub(crate) fn tight_limits() -> Limits {
    Limits {
        locks_max: 8,
        waiters_per_lock_max: 3,
        waiters_max: 6,
        queue_entries_max: 9,
        holders_per_lock_max: 3,
        holders_max: 5,
        requests_per_waiter_max: 2,
        sessions_max: 2,
        idle_max: 3,
        marks_max: 2,
        origins_max: 2,
        remembered_per_origin_max: 8,
        due_per_entry_max: 1,
        idle_per_entry_max: 1,
        locks_per_session_max: 10_000,
        session_ends_per_entry_max: 2,
        deadlock_steps_per_entry_max: 200_000,
        wound_steps_per_entry_max: 200_000,
        deadlock_steps_max: 6,
    }
}

/// Turns steps into entries, as the nodes and their leader would.
pub(crate) struct Writer {
    stamp: Stamp,
    seq: u64,
    /// Which start of each node sends.
    incarnations: [u64; 4],
    requests: Vec<RequestId>,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        let stamp = Stamp { term: 5, logical_ms: 1000, wall_us: 1_000_000 };
        Writer { stamp, seq: 0, incarnations: [1; 4], requests: Vec::new() }
    }

    /// The entry of a step. The machine is only looked at: a client knows its fence.
    pub(crate) fn entry(&mut self, step: &Step, machine: &Machine) -> Vec<u8> {
        self.stamp.logical_ms += step.elapsed_ms;
        // The wall clock jumps about, also backwards.
        self.stamp.wall_us = match step.elapsed_ms % 7 {
            6 => self.stamp.wall_us.saturating_sub(50_000),
            _ => self.stamp.wall_us + step.elapsed_ms * 1000,
        };
        if let Op::Start { node, incarnation } = step.op {
            self.incarnations[node as usize] = incarnation;
        }
        self.seq += 1;
        let origin = Origin { node: step.node, incarnation: self.incarnations[step.node as usize] };
        let blob = self.blob(&step.op, machine);
        let term = if step.older_term { self.stamp.term - 1 } else { self.stamp.term };
        let mut entry = EntryBuilder::new(Stamp { term, ..self.stamp });
        entry.push_batch(origin, self.seq.saturating_sub(step.acked_back), [(self.seq, &blob)]);
        // What cannot be read stops the node: nobody is answered.
        if !matches!(step.op, Op::Nonsense(_)) {
            self.requests.push(RequestId { origin, seq: self.seq });
        }
        entry.finish()
    }

    /// Everything that was asked so far.
    pub(crate) fn requests(&self) -> &[RequestId] {
        &self.requests
    }

    fn blob(&self, op: &Op, machine: &Machine) -> Vec<u8> {
        let mut blob = Vec::new();
        let fence = |db, name: usize, how| match (current_fence(machine, db, NAMES[name]), how) {
            (fence, Guess::Current) => fence,
            (fence, Guess::Before) => Fence(fence.0.saturating_sub(1)),
            (_, Guess::Wrong) => Fence(7),
        };
        let ids = |ids: &Vec<u64>| ids.iter().map(|id| SessionId(*id)).collect();
        match op {
            Op::Acquire { db, name, owner, ttl_ms, wait_ms, session } => Command::Acquire {
                db: *db,
                resource: NAMES[*name],
                ttl_ms: *ttl_ms,
                wait_ms: *wait_ms,
                owner: OWNERS[*owner],
                session: session.map(SessionId),
            }
            .encode(&mut blob),
            Op::MAcquire { names, owner, ttl_ms, wait_ms, session } => Command::MAcquire {
                db: 0,
                resources: names.iter().map(|name| NAMES[*name]).collect(),
                ttl_ms: *ttl_ms,
                wait_ms: *wait_ms,
                owner: OWNERS[*owner],
                session: session.map(SessionId),
            }
            .encode(&mut blob),
            Op::Release { db, name, how } => {
                Command::Release { db: *db, resource: NAMES[*name], fence: fence(*db, *name, *how) }
                    .encode(&mut blob);
            }
            Op::MRelease { names, how } => {
                let pairs = names.iter().map(|name| (NAMES[*name], fence(0, *name, *how))).collect();
                Command::MRelease { db: 0, pairs }.encode(&mut blob);
            }
            Op::Renew { db, name, how, ttl_ms } => {
                let fence = fence(*db, *name, *how);
                Command::Renew { db: *db, resource: NAMES[*name], fence, ttl_ms: *ttl_ms }.encode(&mut blob);
            }
            Op::Force { db, name } => {
                Command::ForceRelease { db: *db, resource: NAMES[*name] }.encode(&mut blob)
            }
            Op::Open { id, ttl_ms } => {
                Command::SessionOpen { id: SessionId(*id), ttl_ms: *ttl_ms, label: b"l" }.encode(&mut blob);
            }
            Op::KeepAlive { id } => {
                let own = machine.cluster_version() >= version::SECOND && id % 2 == 1;
                Command::SessionKeepAlive { id: SessionId(*id), own }.encode(&mut blob);
            }
            Op::Close { id } => {
                Command::SessionClose { id: SessionId(*id), any_user: false }.encode(&mut blob)
            }
            Op::Touch { ids: touched } => Command::SessionsTouch { ids: ids(touched) }.encode(&mut blob),
            Op::Orphan { ids: lost, grace_ms } => {
                let is_known = machine.cluster_version() >= version::SECOND && grace_ms % 2 == 1;
                let heard_index = is_known.then(|| machine.entry_index().saturating_sub(grace_ms % 16));
                Command::SessionsOrphan { ids: ids(lost), grace_ms: *grace_ms, heard_index }
                    .encode(&mut blob);
            }
            Op::Cancel { back } => {
                let at = self.requests.len().saturating_sub(*back as usize + 1);
                let nobody = RequestId { origin: Origin { node: 9, incarnation: 9 }, seq: 9 };
                let request = self.requests.get(at).copied().unwrap_or(nobody);
                Command::Cancel { request }.encode(&mut blob);
            }
            Op::Expire { idle_ms } => Command::Expire { idle_ms: *idle_ms }.encode(&mut blob),
            Op::Start { node, incarnation } => {
                let origin = Origin { node: *node, incarnation: *incarnation };
                Command::OriginStart { origin }.encode(&mut blob);
            }
            Op::Gone { node, incarnation } => {
                let origin = Origin { node: *node, incarnation: *incarnation };
                Command::OriginGone { origin }.encode(&mut blob);
            }
            Op::Nonsense(bytes) => blob.extend_from_slice(bytes),
        }
        blob
    }
}

pub(crate) fn current_fence(machine: &Machine, db: u32, name: &[u8]) -> Fence {
    info(machine, db, name).fence
}

pub(crate) fn info(machine: &Machine, db: u32, resource: &[u8]) -> redfence_core::reply::LockInfo {
    match machine.query(redfence_core::machine::Query::Info { db, resource, sessions: SessionScope::All }) {
        redfence_core::reply::Reply::Info(info) => *info,
        other => panic!("LOCK.INFO answered {other:?}"),
    }
}

pub(crate) fn watched(limits: Limits) -> Machine {
    let mut machine = Machine::with_limits(limits);
    machine.set_watched(true);
    machine
}

pub(crate) fn apply(machine: &mut Machine, entry: &[u8]) -> Applied {
    let mut out = Applied::default();
    let before = machine.state_hash();
    if machine.apply_entry(entry, &mut out).is_err() {
        assert_eq!(machine.state_hash(), before, "an entry that cannot be applied changes nothing");
        assert!(out.replies.is_empty() && out.events.is_empty());
    }
    machine.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    out
}

pub(crate) fn restore(pieces: &[Vec<u8>], limits: Limits) -> Machine {
    let mut restorer = Restorer::new(limits);
    for piece in pieces {
        restorer.push(piece).expect("a piece that was written can be read");
    }
    let mut machine = restorer.finish().expect("a snapshot that was written can be read");
    machine.set_watched(true);
    machine
}
