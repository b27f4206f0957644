//! A new cluster out of a backup: what is held stays held, what waited is gone, and no fence comes again.

mod drive;

use drive::{apply, info, restore, steps, watched, Writer, DBS, NAMES};
use proptest::prelude::*;
use redfence_core::keyspace::Resp;
use redfence_core::machine::settings::upstream_identity::Report;
use redfence_core::machine::settings::{Founding, SettingsCommand};
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, Limits, Machine, Query, RefoundError, FENCE_MARGIN_US};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Origin, RequestId, SessionId, Stamp};

const NOW_US: u64 = 1_700_000_000_000_000;
/// Of a restore an hour after the backup: above what the margin over the backup's fences comes to.
const FLOOR: u64 = NOW_US + 2 * FENCE_MARGIN_US;

struct Cluster {
    machine: Machine,
    seq: u64,
    now_ms: u64,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster { machine: Machine::new(), seq: 0, now_ms: 1_000 }
    }

    /// At cluster version 2.
    fn second() -> Cluster {
        let mut cluster = Cluster::new();
        cluster.apply(Command::Settings(SettingsCommand::Found(Founding::default())));
        cluster.raise();
        cluster
    }

    fn raise(&mut self) {
        self.apply(Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
        assert_eq!(self.machine.cluster_version(), 2);
    }

    fn apply(&mut self, command: Command<'_>) -> Option<Reply> {
        self.seq += 1;
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.seq };
        let mut applied = Applied::default();
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us: NOW_US + self.now_ms * 1_000 };
        self.machine.apply(stamp, Some(id), command, &mut applied);
        applied.replies.pop().map(|(_, reply)| reply)
    }

    fn acquire(&mut self, name: &str, owner: &str, ttl_ms: u64, session: Option<u64>) -> Option<Fence> {
        let (resource, owner, session) = (name.as_bytes(), owner.as_bytes(), session.map(SessionId));
        match self.apply(Command::Acquire { db: 0, resource, ttl_ms, wait_ms: 0, owner, session }) {
            Some(Reply::Granted { fence, .. }) => Some(fence),
            Some(Reply::Nil) => None,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, name: &str, fence: Fence) {
        let reply = self.apply(Command::Release { db: 0, resource: name.as_bytes(), fence });
        assert_eq!(reply, Some(Reply::Released));
    }

    fn check(&mut self, name: &str, fence: Fence) -> Option<Reply> {
        self.apply(Command::FenceCheck { db: 0, resource: name.as_bytes(), fence })
    }

    fn mark(&self, name: &str) -> Reply {
        self.machine.query(Query::Mark { db: 0, resource: name.as_bytes() })
    }

    /// A new cluster from a backup of this one.
    fn refounded(&mut self) -> Cluster {
        let mut machine = restore(&pieces(&mut self.machine), Limits::default());
        machine.refound(Fence(FLOOR)).unwrap();
        let again = restore(&pieces(&mut machine), Limits::default());
        assert_eq!(again.state_hash(), machine.state_hash());
        let now_ms = machine.logical_ms();
        Cluster { machine, seq: 0, now_ms }
    }
}

fn pieces(machine: &mut Machine) -> Vec<Vec<u8>> {
    machine.snapshot_begin();
    std::iter::from_fn(|| machine.snapshot_step(7)).collect()
}

#[test]
fn a_lock_is_held_for_the_whole_time_of_its_last_grant_or_renewal() {
    let mut old = Cluster::new();
    let first = old.acquire("granted", "a", 10_000, None).unwrap();
    let second = old.acquire("renewed", "a", 10_000, None).unwrap();
    old.now_ms += 1_000;
    let (resource, ttl_ms) = (&b"renewed"[..], 40_000);
    old.apply(Command::Renew { db: 0, resource, fence: second, ttl_ms });
    old.now_ms += 8_900;
    old.acquire("year", "a", 365 * 24 * 3_600_000, None).unwrap();
    assert_eq!(info(&old.machine, 0, b"granted").ttl_ms, Some(100));

    let mut new = old.refounded();
    assert_eq!(info(&new.machine, 0, b"granted").ttl_ms, Some(10_000));
    assert_eq!(info(&new.machine, 0, b"renewed").ttl_ms, Some(40_000));
    assert_eq!(info(&new.machine, 0, b"year").ttl_ms, Some(365 * 24 * 3_600_000));
    assert_eq!(info(&new.machine, 0, b"granted").fence, first);
    new.now_ms += 10_000;
    assert_eq!(new.acquire("granted", "b", 1_000, None), None, "it is still held");
    new.now_ms += 1;
    assert!(new.acquire("granted", "b", 1_000, None).unwrap().0 > FLOOR);
}

#[test]
fn every_new_fence_is_above_the_floor_and_old_ones_of_free_names_are_stale() {
    let mut old = Cluster::new();
    let free = old.acquire("free", "a", 10_000, None).unwrap();
    assert_eq!(old.check("free", free), Some(Reply::Int(1)));
    old.release("free", free);
    let forgotten = old.acquire("forgotten", "a", 10_000, None).unwrap();
    old.release("forgotten", forgotten);
    let held = old.acquire("held", "a", 10_000, None).unwrap();

    let mut new = old.refounded();
    assert_eq!(new.check("free", free), Some(Reply::Int(0)));
    assert_eq!(new.mark("free"), Reply::Int(FLOOR as i64));
    assert_eq!(new.check("forgotten", forgotten), Some(Reply::Int(0)), "it had no mark");
    // Granted by the old cluster after the backup.
    assert_eq!(new.check("forgotten", Fence(forgotten.0 + 1_000)), Some(Reply::Int(0)));
    assert_eq!(new.check("held", held), Some(Reply::Int(1)), "its holder may go on");
    assert_eq!(new.check("held", Fence(held.0 - 1)), Some(Reply::Int(0)));
    for name in ["free", "forgotten", "new"] {
        let fence = new.acquire(name, "b", 10_000, None).unwrap();
        assert!(fence.0 > FLOOR, "{name}: {fence}");
        assert_eq!(new.check(name, fence), Some(Reply::Int(1)));
    }
}

#[test]
fn a_floor_below_what_the_backup_knows_is_raised_and_one_out_of_range_is_refused() {
    let mut old = Cluster::new();
    let fence = old.acquire("a", "a", 10_000, None).unwrap();
    let mut machine = restore(&pieces(&mut old.machine), Limits::default());
    assert!(machine.refound(Fence(7)).unwrap().fence_floor >= fence);
    let refused = machine.refound(Fence(1 << 53));
    assert!(matches!(refused, Err(RefoundError::Floor(_))), "{refused:?}");
}

#[test]
fn locks_without_an_end_are_listed_and_live_as_long_as_their_session() {
    let mut old = Cluster::new();
    old.apply(Command::SessionOpen { id: SessionId(7), ttl_ms: 5_000, label: b"worker" });
    let fence = old.acquire("bound", "a", 0, Some(7)).unwrap();
    old.now_ms += 4_000;
    old.acquire("timed", "a", 10_000, Some(7)).unwrap();

    let mut new = old.refounded();
    let listed: Vec<_> = new.machine.open_ended_locks().collect();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].name[..], listed[0].fence), (&b"bound"[..], fence));
    assert_eq!(listed[0].session, Some((SessionId(7), 5_000)));
    new.now_ms += 5_000;
    assert_eq!(new.acquire("bound", "b", 1_000, None), None);
    // A client that comes back keeps it.
    assert_eq!(
        new.apply(Command::SessionKeepAlive { id: SessionId(7), own: false }),
        Some(Reply::Int(5_000))
    );
    new.now_ms += 5_000;
    assert_eq!(new.acquire("bound", "b", 1_000, None), None);
    new.now_ms += 1;
    assert!(new.acquire("bound", "b", 1_000, None).is_some());
}

#[test]
fn waiters_and_remembered_replies_are_dropped() {
    let mut old = Cluster::new();
    let fence = old.acquire("a", "a", 10_000, None).unwrap();
    for owner in [&b"b"[..], b"c"] {
        let command =
            Command::Acquire { db: 0, resource: b"a", ttl_ms: 1_000, wait_ms: 9_000, owner, session: None };
        assert_eq!(old.apply(command), None);
    }
    let first = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: 1 };
    assert_eq!(old.machine.contents().waiters, 2);

    let mut new = old.refounded();
    assert_eq!(new.machine.contents().waiters, 0);
    assert_eq!(info(&new.machine, 0, b"a").waiters, 0);
    // The same number from a new node of the same id is a new request.
    let mut applied = Applied::default();
    let stamp = Stamp { term: 2, logical_ms: new.now_ms, wall_us: NOW_US };
    let command =
        Command::Acquire { db: 0, resource: b"z", ttl_ms: 1_000, wait_ms: 0, owner: b"z", session: None };
    new.machine.apply(stamp, Some(first), command, &mut applied);
    assert!(matches!(applied.replies[..], [(_, Reply::Granted { fence, .. })] if fence.0 > FLOOR));
    new.seq = first.seq;
    new.release("a", fence);
    assert!(!info(&new.machine, 0, b"a").held, "nobody was in line");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_state_can_be_the_beginning_of_a_new_cluster(before in steps(60), after in steps(40)) {
        let mut machine = watched(Limits::default());
        let mut writer = Writer::new();
        for step in &before {
            let entry = writer.entry(step, &machine);
            apply(&mut machine, &entry);
        }
        let names = || (0..DBS).flat_map(|db| NAMES.map(|name| (db, name)));
        let held: Vec<_> = names().map(|(db, name)| info(&machine, db, name)).collect();
        let floor = machine.refound(Fence(1 << 40)).unwrap().fence_floor;
        for ((db, name), was) in names().zip(&held) {
            let is = info(&machine, db, name);
            prop_assert_eq!((is.held, &is.owner, is.waiters), (was.held, &was.owner, 0));
            prop_assert!(is.ttl_ms >= was.ttl_ms || is.ttl_ms == Some(-1));
        }
        let again = restore(&pieces(&mut machine), Limits::default());
        prop_assert_eq!(again.state_hash(), machine.state_hash());
        for step in &after {
            let entry = writer.entry(step, &machine);
            for (_, reply) in apply(&mut machine, &entry).replies {
                if let Reply::Granted { fence, .. } = reply {
                    let retried = held.iter().any(|was| was.held && was.fence == fence);
                    prop_assert!(fence > floor || retried, "{} is not above {}", fence, floor);
                }
            }
        }
    }
}

/// What happened between the backup and its restore is not known: somebody else may have had the lock and written.
#[test]
fn a_fence_of_the_backup_is_stale_once_its_lock_has_ended() {
    let mut old = Cluster::new();
    let fence = old.acquire("wallet", "a", 10_000, None).unwrap();
    assert_eq!(old.check("wallet", fence), Some(Reply::Int(1)));
    let marks = old.machine.contents().marks;

    let mut new = old.refounded();
    assert_eq!(new.machine.contents().marks, marks, "no mark for names that had none");
    assert_eq!(new.check("wallet", fence), Some(Reply::Int(1)), "it is held, for its full time");
    assert_eq!(new.mark("wallet"), Reply::Int(FLOOR as i64), "its use lets nobody else in");
    assert_eq!(new.check("wallet", Fence(fence.0 + 1)), Some(Reply::Int(0)));
    new.now_ms += 10_001;
    assert_eq!(new.check("wallet", fence), Some(Reply::Int(0)));
    let next = new.acquire("wallet", "b", 10_000, None).unwrap();
    assert_eq!(new.check("wallet", next), Some(Reply::Int(1)));
    assert_eq!(new.check("wallet", fence), Some(Reply::Int(0)));
}

/// The guarded name may be a key of its own, older than the restore, and the fence that of another lock.
#[test]
fn a_fence_above_the_floor_is_not_from_the_future() {
    let mut old = Cluster::new();
    old.acquire("row", "a", 600_000, None).unwrap();
    let mut new = old.refounded();
    let fence = new.acquire("lock:row", "b", 10_000, None).unwrap();
    assert!(fence.0 > FLOOR);
    assert_eq!(new.check("row", fence), Some(Reply::Int(1)));
}

#[test]
fn marks_of_held_names_stay_as_they_were() {
    let (yes, no) = (Some(Reply::Int(1)), Some(Reply::Int(0)));
    let mut old = Cluster::second();
    let held = old.acquire("held", "a", 10_000, None).unwrap();
    assert_eq!(old.check("held", held), yes);
    let unmarked = old.acquire("unmarked", "a", 10_000, None).unwrap();
    // Somebody newer has shown himself: the holder is stale, and stays so.
    let behind = old.acquire("behind", "a", 10_000, None).unwrap();
    let newer = Fence(behind.0 + 5);
    assert_eq!((old.check("behind", newer), old.check("behind", behind)), (yes.clone(), no.clone()));
    let free = old.acquire("free", "a", 10_000, None).unwrap();
    assert_eq!(old.check("free", free), yes);
    old.release("free", free);

    let mut new = old.refounded();
    let marks = [("held", held.0), ("unmarked", 0), ("behind", newer.0), ("free", FLOOR), ("never", FLOOR)];
    for (name, mark) in marks {
        assert_eq!(new.mark(name), Reply::Int(mark as i64), "{name}");
        if mark > 0 {
            assert_eq!(new.check(name, Fence(mark - 1)), no, "FENCE.GET and FENCE.CHECK agree about {name}");
        }
    }
    assert_eq!(new.check("behind", behind), no, "a mark made it stale");
    for (name, fence) in [("held", held), ("unmarked", unmarked)] {
        assert_eq!(new.check(name, fence), yes, "the holder of {name} goes on");
        assert_eq!(new.mark(name), Reply::Int(fence.0 as i64), "{name}");
    }

    new.now_ms += 10_001;
    for (name, fence) in [("held", held), ("unmarked", unmarked), ("behind", newer)] {
        assert_eq!(new.check(name, fence), no, "{name}: what came after the backup nobody knows");
        assert_eq!(new.mark(name), Reply::Int(FLOOR as i64), "{name}");
        let next = new.acquire(name, "b", 10_000, None).unwrap();
        assert_eq!((new.check(name, fence), new.check(name, next)), (no.clone(), yes.clone()), "{name}");
        assert_eq!(new.mark(name), Reply::Int(next.0 as i64), "{name}");
    }

    // And so on with a backup of the new cluster.
    let held = new.machine.query(Query::Mark { db: 0, resource: b"held" });
    let next = new.refounded();
    assert_eq!(next.mark("held"), held);
}

#[test]
fn a_mark_of_a_held_name_is_not_forgotten_by_folding() {
    let mut old = Cluster::second();
    old.apply(Command::Settings(SettingsCommand::Set { name: b"mark-retention-ms", value: b"1000" }));
    let behind = old.acquire("behind", "a", 600_000, None).unwrap();
    assert_eq!(old.check("behind", Fence(behind.0 + 5)), Some(Reply::Int(1)));
    let mut new = old.refounded();
    new.now_ms += 5_000;
    new.apply(Command::Expire { idle_ms: 600_000 });
    assert_eq!(new.machine.marks_len(), 0);
    assert_eq!(new.check("behind", behind), Some(Reply::Int(0)));
    assert_eq!(new.mark("behind"), Reply::Int(behind.0 as i64 + 5));
}

/// There all marks rose: what a holder's was nobody knows.
#[test]
fn a_restore_at_version_1_lets_its_holders_go_on_after_the_rise() {
    let mut old = Cluster::new();
    let fence = old.acquire("wallet", "a", 10_000, None).unwrap();
    assert_eq!(old.check("wallet", fence), Some(Reply::Int(1)));
    let mut new = old.refounded();
    assert_eq!(new.mark("never"), Reply::Int(0), "as release 1 says it");
    new.raise();
    assert_eq!(new.check("wallet", fence), Some(Reply::Int(1)));
    assert_eq!(new.check("wallet", Fence(fence.0 + 1)), Some(Reply::Int(0)));
    assert_eq!(new.mark("never"), Reply::Int(FLOOR as i64));
    assert_eq!(new.check("never", Fence(FLOOR - 1)), Some(Reply::Int(0)));
}

/// The old cluster went on after the backup: fences it granted until its end are below the floor, and their holders may still write.
#[test]
fn a_fence_that_the_backup_does_not_know_is_stale_also_where_the_name_is_held() {
    let (yes, no) = (Some(Reply::Int(1)), Some(Reply::Int(0)));
    let mut old = Cluster::second();
    let held = old.acquire("wallet", "a", 600_000, None).unwrap();
    let unmarked = old.acquire("unmarked", "a", 600_000, None).unwrap();
    assert_eq!(old.check("wallet", held), yes);
    // A plain key is held for as long as it is there.
    let words = [&b"SET"[..], b"row", b"v"].into_iter().collect();
    old.apply(Command::Redis { db: 0, resp: Resp::Two, member: None, argv: words });
    old.now_ms += 1;
    let writer = old.acquire("lock:row", "a", 600_000, None).unwrap();
    assert_eq!(old.check("row", writer), yes);

    let mut new = old.refounded();
    for (name, fence) in [("wallet", held.0), ("unmarked", unmarked.0), ("row", writer.0)] {
        for later in [fence + 1, fence + 1_000_000, FLOOR - 1] {
            assert_eq!(new.check(name, Fence(later)), no, "{name}: granted after the backup");
        }
    }
    assert_eq!(new.check("wallet", held), yes, "the holder goes on");
    assert_eq!(new.check("unmarked", unmarked), yes, "the holder goes on");
    assert_eq!(new.check("row", writer), no, "it holds another name: what became of this one nobody knows");
    let next = new.acquire("lock:row", "b", 600_000, None);
    assert_eq!(next, None, "held for its full time");
    assert_eq!(new.check("row", Fence(FLOOR + 1)), yes);
    assert_eq!(new.check("row", Fence(FLOOR)), no);
}

#[test]
fn a_holder_goes_on_over_several_restores() {
    let yes = Some(Reply::Int(1));
    let mut cluster = Cluster::second();
    let marked = cluster.acquire("marked", "a", 600_000, None).unwrap();
    assert_eq!(cluster.check("marked", marked), yes);
    let unmarked = cluster.acquire("unmarked", "a", 600_000, None).unwrap();
    for _ in 0..3 {
        cluster = cluster.refounded();
    }
    for (name, fence) in [("marked", marked), ("unmarked", unmarked)] {
        assert_eq!(cluster.check(name, fence), yes, "{name}");
        assert_eq!(cluster.check(name, Fence(fence.0 + 1)), Some(Reply::Int(0)), "{name}");
    }
}

#[test]
fn a_holder_goes_on_over_a_restore_at_version_1_and_one_at_version_2() {
    let yes = Some(Reply::Int(1));
    let mut old = Cluster::new();
    old.apply(Command::Settings(SettingsCommand::Found(Founding::default())));
    let marked = old.acquire("marked", "a", 600_000, None).unwrap();
    assert_eq!(old.check("marked", marked), yes);
    let unmarked = old.acquire("unmarked", "a", 600_000, None).unwrap();
    let mut first = old.refounded();
    first.raise();
    let mut second = first.refounded();
    for (name, fence) in [("marked", marked), ("unmarked", unmarked)] {
        assert_eq!(second.check(name, fence), yes, "{name}");
        assert_eq!(second.check(name, Fence(fence.0 + 1)), Some(Reply::Int(0)), "{name}");
    }
}

/// A state that is taken for damaged when it is read again must not come into being.
#[test]
fn a_floor_leaves_room_for_grants_and_for_further_restores() {
    let most = 1 << 52;
    let mut machine = restore(&pieces(&mut Cluster::second().machine), Limits::default());
    assert!(matches!(machine.refound(Fence(most + 1)), Err(RefoundError::Floor(_))));
    machine.refound(Fence(most)).unwrap();
    let mut cluster = Cluster { now_ms: machine.logical_ms(), machine, seq: 0 };
    let fence = cluster.acquire("name", "a", 600_000, None).unwrap();
    assert!(fence.0 > most);
    let mut again = restore(&pieces(&mut cluster.machine), Limits::default());
    again.refound(Fence(NOW_US)).unwrap();
    restore(&pieces(&mut again), Limits::default());
}

/// Everything the old cluster grants within an hour of fence time after the backup stays below the new floor, and so does what a
/// restored cluster granted where the same backup is restored again.
#[test]
fn no_fence_comes_again_where_those_of_the_backup_run_ahead_of_the_clock() {
    let day_us = 24 * FENCE_MARGIN_US;
    // The floor of an earlier restore is far ahead of the clock: fences rise one by one.
    let mut by_floor = Cluster::second();
    by_floor.machine.refound(Fence(NOW_US + day_us)).unwrap();
    // The clocks of the old cluster are far ahead of the one here.
    let mut by_clock = Cluster::second();
    by_clock.now_ms += day_us / 1_000;
    for mut old in [by_floor, by_clock] {
        for _ in 0..5 {
            let fence = old.acquire("name", "a", 600_000, None).unwrap();
            old.release("name", fence);
        }
        let backup = pieces(&mut old.machine);
        let mut granted = Vec::new();
        for _ in 0..60 {
            let fence = old.acquire("name", "a", 600_000, None).unwrap();
            old.release("name", fence);
            granted.push(fence);
            old.now_ms += 59_000;
        }

        let mut asked = Fence(NOW_US + FENCE_MARGIN_US);
        for _ in 0..3 {
            let mut machine = restore(&backup, Limits::default());
            let done = machine.refound(asked).unwrap();
            assert!(done.fence_floor >= *granted.iter().max().unwrap(), "{}", done.fence_floor);
            let mut new = Cluster { now_ms: machine.logical_ms(), machine, seq: 0 };
            for _ in 0..5 {
                let fence = new.acquire("name", "b", 600_000, None).unwrap();
                assert!(!granted.contains(&fence), "{fence} was granted before");
                assert_eq!(new.check("name", fence), Some(Reply::Int(1)));
                assert_eq!(new.check("name", granted[0]), Some(Reply::Int(0)));
                new.release("name", fence);
                granted.push(fence);
            }
            asked = done.floor_for_another().unwrap();
        }
    }
}

#[test]
fn a_floor_that_is_asked_for_is_exact_above_the_margin() {
    let mut old = Cluster::second();
    old.acquire("name", "a", 600_000, None).unwrap();
    let least = old.machine.highest_fence().0 + FENCE_MARGIN_US;
    for (asked, floor) in [(0, least), (least - 1, least), (least, least), (least + 1, least + 1)] {
        let mut machine = restore(&pieces(&mut old.machine), Limits::default());
        assert_eq!(machine.refound(Fence(asked)).unwrap().fence_floor, Fence(floor));
    }
}

/// Members of the old cluster that are not in the new one will never report what they have behind them now.
#[test]
fn the_new_clusters_leader_may_have_another_redis_behind_it() {
    let mut cluster = Cluster::second();
    let redis = |run_id: &'static [u8]| Report::Redis { run_id, replid: run_id, replid2: b"" };
    let behind = |cluster: &mut Cluster, node, leads, what| {
        cluster.apply(Command::Settings(SettingsCommand::Behind { node, leads, what }));
        format!("{:?}", cluster.machine.settings().behind)
    };
    for (node, leads) in [(1, true), (2, false), (3, false)] {
        behind(&mut cluster, node, leads, redis(b"old"));
    }
    let before = behind(&mut cluster, 1, true, redis(b"new"));
    cluster.machine.refound(Fence(FLOOR)).unwrap();
    let after = behind(&mut cluster, 1, true, redis(b"new"));
    assert_ne!(before, after, "the others had the old one; nobody has it now");
}
