//! Random work, and what must hold whatever it is: equal machines after snapshots, restarts and doubled entries; one holder
//! at a time, rising fences, first come first served, no early end, an answer for everybody.
//!
//! The seed is fixed, so a run is the same everywhere; `PROPTEST_CASES=100000` looks further.

mod drive;

use drive::{apply, info, restore, sessions_at_odds, steps, tight_limits, watched, Writer, DBS, NAMES};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use redfence_core::event::{Event, EventKind};
use redfence_core::machine::{Command, EntryBuilder, Limits, Machine, Query};
use redfence_core::reply::Reply;
use redfence_core::types::{Origin, RequestId, Stamp};
use std::collections::{BTreeMap, BTreeSet};

fn config() -> Config {
    Config { rng_seed: RngSeed::Fixed(20_240_607), failure_persistence: None, ..Config::with_cases(cases()) }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

fn limits_of(tight: bool) -> Limits {
    if tight {
        tight_limits()
    } else {
        Limits::default()
    }
}

proptest! {
    #![proptest_config(config())]

    /// A machine that is torn down and restored again and again, from snapshots written while entries went on, is the same
    /// as one that was left alone.
    #[test]
    fn restarts_from_snapshots_make_no_difference(
        steps in steps(120),
        tight in any::<bool>(),
        cuts in prop::collection::vec((1..30usize, 1..4usize), 1..8),
    ) {
        let limits = limits_of(tight);
        let mut original = watched(limits);
        let mut other = watched(limits);
        let mut writer = Writer::new();
        let mut cuts = cuts.into_iter().cycle();
        let (mut wait, mut slots) = cuts.next().unwrap();
        let mut pieces: Option<Vec<Vec<u8>>> = None;
        let mut since = Vec::new();
        for step in &steps {
            let entry = writer.entry(step, &original);
            let expected = apply(&mut original, &entry);
            let got = apply(&mut other, &entry);
            prop_assert_eq!(&expected.replies, &got.replies);
            prop_assert_eq!(&expected.events, &got.events);
            prop_assert_eq!(original.state_hash(), other.state_hash());
            wait -= 1;
            if let Some(written) = &mut pieces {
                since.push(entry);
                match other.snapshot_step(slots) {
                    Some(piece) => written.push(piece),
                    None => {
                        // The restart: the snapshot, and what was logged since it began.
                        other = restore(written, limits);
                        since.drain(..).for_each(|entry| drop(apply(&mut other, &entry)));
                        prop_assert_eq!(original.state_hash(), other.state_hash());
                        pieces = None;
                        (wait, slots) = cuts.next().unwrap();
                    }
                }
            } else if wait == 0 {
                other.snapshot_begin();
                pieces = Some(Vec::new());
                wait = usize::MAX;
            }
        }
        prop_assert_eq!(original.next_due_ms(), other.next_due_ms());
        prop_assert_eq!(original.stats(), other.stats());
    }

    /// An entry that comes twice, at once or much later, changes nothing, and is answered as before or not at all.
    #[test]
    fn doubled_entries_change_nothing(steps in steps(100), picks in prop::collection::vec(any::<u16>(), 100)) {
        let mut machine = watched(Limits::default());
        let mut writer = Writer::new();
        let mut entries = Vec::new();
        let mut answers: BTreeMap<RequestId, Reply> = BTreeMap::new();
        for (step, pick) in steps.iter().zip(&picks) {
            let entry = writer.entry(step, &machine);
            for (id, reply) in apply(&mut machine, &entry).replies {
                prop_assert_eq!(answers.insert(id, reply), None, "answered twice");
            }
            entries.push(entry);
            let before = machine.state_hash();
            for again in [entries.last().unwrap(), &entries[usize::from(*pick) % entries.len()]] {
                let out = apply(&mut machine, again);
                prop_assert!(out.events.is_empty());
                for (id, reply) in out.replies {
                    prop_assert_eq!(Some(&reply), answers.get(&id));
                }
                prop_assert_eq!(machine.state_hash(), before);
            }
        }
    }

    /// What a watcher can see of the promises.
    #[test]
    fn promises_hold(steps in steps(150), tight in any::<bool>()) {
        let mut machine = watched(limits_of(tight));
        let mut writer = Writer::new();
        let mut watcher = Watcher::default();
        for step in &steps {
            let entry = writer.entry(step, &machine);
            let out = apply(&mut machine, &entry);
            if !tight {
                // Only then is no search for circles given up.
                machine.check_no_circle().unwrap_or_else(|violation| panic!("{violation}"));
            }
            for event in &out.events {
                watcher.see(event, machine.logical_ms());
            }
            watcher.compare(&machine);
        }
    }

    /// No circle of sessions over two locks or more ever comes about.
    #[test]
    fn sessions_never_wait_in_a_circle(steps in sessions_at_odds(60)) {
        let mut machine = watched(Limits::default());
        let mut writer = Writer::new();
        for step in &steps {
            let entry = writer.entry(step, &machine);
            apply(&mut machine, &entry);
            machine.check_no_circle().unwrap_or_else(|violation| panic!("{violation}"));
        }
    }

    /// Everybody is answered once, at the latest when his time is up; with nobody left, nothing is.
    #[test]
    fn everybody_is_answered_and_nothing_stays(steps in steps(100), tight in any::<bool>()) {
        let mut machine = watched(limits_of(tight));
        let mut writer = Writer::new();
        let mut answered: BTreeSet<RequestId> = BTreeSet::new();
        for step in &steps {
            let entry = writer.entry(step, &machine);
            for (id, _) in apply(&mut machine, &entry).replies {
                prop_assert!(answered.insert(id), "answered twice");
            }
        }
        for round in 1..200 {
            let mut blob = Vec::new();
            Command::Expire { idle_ms: 0 }.encode(&mut blob);
            let mut entry = EntryBuilder::new(Stamp { term: 9, logical_ms: 1_000_000 + round, wall_us: 0 });
            entry.push_batch(Origin { node: 1, incarnation: 1 }, 0, [(0, blob)]);
            for (id, _) in apply(&mut machine, &entry.finish()).replies {
                prop_assert!(answered.insert(id), "answered twice");
            }
        }
        // Nodes that were lost on the way have nobody to answer to. (With room for few nodes a lost one may come back.)
        for id in writer.requests().iter().filter(|id| !tight && machine.is_live(id.origin)) {
            prop_assert!(answered.contains(id), "{:?} was never answered", id);
        }
        let stats = machine.stats();
        prop_assert_eq!((stats.locks_held, stats.waiters, stats.sessions, stats.idle_records), (0, 0, 0, 0));
        prop_assert_eq!(machine.next_due_ms(), None);
    }
}

type Key = (u32, Vec<u8>);

/// A model fed from events alone, written apart from the machine.
#[derive(Default)]
struct Watcher {
    seq: u64,
    fences: BTreeMap<Key, u64>,
    holders: BTreeMap<Key, Vec<u8>>,
    queues: BTreeMap<Key, Vec<Vec<u8>>>,
    /// Places of an owner that holds the lock already. Its multi-lock may have been granted, which has no event here.
    unsure: BTreeSet<(Key, Vec<u8>)>,
    /// When the holder's time ends, as `LOCK.INFO` showed it after the step before.
    ends_ms: BTreeMap<Key, u64>,
}

impl Watcher {
    fn see(&mut self, event: &Event, now_ms: u64) {
        self.seq += 1;
        assert_eq!(event.seq, self.seq, "events are numbered without a gap");
        let key = (event.db, event.resource.to_vec());
        let owner = event.owner.to_vec();
        match event.kind {
            EventKind::Acquired => {
                let last = self.fences.insert(key.clone(), event.fence.0).unwrap_or(0);
                assert!(event.fence.0 > last, "the fence of {key:?} went from {last} to {}", event.fence);
                let queue = self.queues.entry(key.clone()).or_default();
                let place = queue.iter().position(|queued| *queued == owner);
                let mut passed = queue[..place.unwrap_or(queue.len())].iter();
                let is_next = passed.all(|queued| self.unsure.contains(&(key.clone(), queued.clone())));
                assert!(is_next, "{key:?} went to {owner:?} past {queue:?}");
                queue.retain(|queued| *queued != owner);
                self.unsure.remove(&(key.clone(), owner.clone()));
                self.ends_ms.remove(&key);
                assert_eq!(self.holders.insert(key, owner), None, "two holders");
            }
            EventKind::Released | EventKind::Expired | EventKind::SessionEnded => {
                assert_eq!(self.fences.get(&key), Some(&event.fence.0));
                assert_eq!(self.holders.remove(&key).as_ref(), Some(&owner), "who ended did not hold");
                if self.queues.get(&key).is_some_and(|queue| queue.contains(&owner)) {
                    self.unsure.insert((key.clone(), owner));
                }
                if event.kind == EventKind::Expired {
                    let end_ms = self.ends_ms.get(&key).copied().unwrap_or(0);
                    assert!(now_ms >= end_ms, "{key:?} ended at {now_ms}, before {end_ms}");
                }
                self.ends_ms.remove(&key);
            }
            EventKind::Renewed => {
                assert_eq!(self.holders.get(&key), Some(&owner));
                self.ends_ms.remove(&key);
            }
            EventKind::Queued => {
                let queue = self.queues.entry(key.clone()).or_default();
                if self.unsure.remove(&(key, owner.clone())) {
                    queue.retain(|queued| *queued != owner);
                }
                assert!(!queue.contains(&owner), "twice in line");
                queue.push(owner);
            }
            EventKind::Abandoned => {
                let queue = self.queues.entry(key.clone()).or_default();
                let at = queue.iter().position(|queued| *queued == owner).expect("who leaves was in line");
                queue.remove(at);
                self.unsure.remove(&(key, owner));
            }
        }
    }

    /// What the machine shows is what the events said.
    fn compare(&mut self, machine: &Machine) {
        for db in 0..DBS {
            for name in NAMES {
                let key = (db, name.to_vec());
                let shown = info(machine, db, name);
                let holder = self.holders.get(&key);
                // What is past its end is not shown, though its event may still have to come.
                if shown.held {
                    assert_eq!(shown.owner.as_deref(), holder.map(Vec::as_slice), "holder of {key:?}");
                }
                if let (true, Some(ttl_ms)) = (shown.held, shown.ttl_ms) {
                    let end_ms = if ttl_ms < 0 { u64::MAX } else { machine.logical_ms() + ttl_ms as u64 };
                    self.ends_ms.insert(key.clone(), end_ms);
                }
                self.compare_queue(machine, &key);
            }
        }
    }

    fn compare_queue(&mut self, machine: &Machine, key: &Key) {
        let Reply::Array(rows) = machine.query(Query::Queue { db: key.0, resource: &key.1 }) else {
            panic!("LOCK.QUEUE answers an array")
        };
        let shown: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| match row {
                Reply::Array(row) => match &row[0] {
                    Reply::Bulk(owner) => owner.to_vec(),
                    other => panic!("an owner, not {other:?}"),
                },
                other => panic!("a row, not {other:?}"),
            })
            .collect();
        let queue = self.queues.entry(key.clone()).or_default();
        let is_exact = machine.next_due_ms().is_none_or(|at_ms| at_ms > machine.logical_ms());
        if is_exact {
            let holder = self.holders.get(key);
            let is_gone = |queued: &Vec<u8>| {
                let is_unsure =
                    self.unsure.contains(&(key.clone(), queued.clone())) || holder == Some(queued);
                is_unsure && !shown.contains(queued)
            };
            queue.retain(|queued| !is_gone(queued));
            self.unsure.retain(|(other, _)| other != key);
            assert_eq!(&shown, queue, "the queue of {key:?}");
        }
        // Those whose time is up are not shown; the rest is in the order of the events.
        let mut expected = queue.iter();
        assert!(shown.iter().all(|owner| expected.any(|queued| queued == owner)), "{shown:?} of {queue:?}");
    }
}
