//! The high-water marks of `FENCE.*` in the replicated state: they only rise, outlive snapshots, fold into a floor, and guard
//! a command in one step.

use redfence_core::keyspace::Resp;
use redfence_core::machine::settings::{Founding, SettingsCommand};
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, Machine, Query};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Origin, RequestId, Stamp};

const NOW_US: u64 = 1_700_000_000_000_000;

struct Bench {
    machine: Machine,
    seq: u64,
    now_ms: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench { machine: Machine::new(), seq: 0, now_ms: 1 }
    }

    fn apply(&mut self, command: Command<'_>) -> Reply {
        self.seq += 1;
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let mut again = Vec::new();
        Command::decode(&blob).expect("what was encoded").encode(&mut again);
        assert_eq!(again, blob);
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.seq };
        let mut applied = Applied::default();
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us: NOW_US + self.now_ms * 1_000 };
        self.machine.apply(stamp, Some(id), command, &mut applied);
        applied.replies.pop().unwrap().1
    }

    fn check(&mut self, resource: &str, fence: u64) -> Reply {
        self.apply(Command::FenceCheck { db: 0, resource: resource.as_bytes(), fence: Fence(fence) })
    }

    fn call(&mut self, resource: &str, fence: u64, line: &str) -> Reply {
        let argv = line.split(' ').map(str::as_bytes).collect();
        let (resource, fence) = (resource.as_bytes(), Fence(fence));
        self.apply(Command::FenceCall { db: 0, resp: Resp::Two, resource, fence, argv })
    }

    fn mark(&self, resource: &str) -> Reply {
        self.machine.query(Query::Mark { db: 0, resource: resource.as_bytes() })
    }

    fn restored(&mut self) -> Machine {
        self.machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| self.machine.snapshot_step(3)).collect();
        Machine::restore(&pieces).unwrap()
    }
}

fn code(reply: &Reply) -> &str {
    match reply {
        Reply::Error(refusal) => refusal.code(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn marks_only_rise_and_survive_a_snapshot() {
    let mut bench = Bench::new();
    assert_eq!(bench.mark("r"), Reply::Int(0));
    assert_eq!(bench.check("r", 43), Reply::Int(1));
    assert_eq!(bench.check("r", 42), Reply::Int(0));
    for number in 0..100 {
        bench.check(&format!("name{number}"), 7);
    }
    let hash = bench.machine.state_hash();
    bench.machine = bench.restored();
    assert_eq!(bench.machine.state_hash(), hash);
    assert_eq!(bench.check("r", 42), Reply::Int(0), "a restart forgets nothing");
    assert_eq!(bench.mark("r"), Reply::Int(43));
    assert_eq!(bench.machine.marks_len(), 101);
    assert!(bench.machine.check_invariants().is_ok());
}

#[test]
fn a_call_runs_with_its_mark_or_not_at_all() {
    let mut bench = Bench::new();
    assert_eq!(bench.call("r", 43, "SET data new"), Reply::OK);
    let stale = bench.call("r", 42, "SET data old");
    assert_eq!(stale, Reply::Error(redfence_core::reply::Refusal::new("STALE fence 42 is behind 43")));
    assert_eq!(bench.machine.read(0, Resp::Two, &[b"GET", b"data"]), Reply::bulk("new"));
    assert_eq!(code(&bench.call("r", 44, "LPUSH data x")), "WRONGTYPE");
    assert_eq!(bench.mark("r"), Reply::Int(44), "it ran, and a newer holder has shown itself");
    for line in ["NOSUCH x", "GET", "EVAL x 0", "SCRIPT FLUSH", "MULTI", "LOCK.INFO x", "FENCE.GET r"] {
        assert_eq!(code(&bench.call("r", 45, line)), "ERR", "{line}");
    }
    assert_eq!(bench.mark("r"), Reply::Int(44), "nothing of it could run");
    assert_eq!(bench.call("r", 45, "BLPOP list 10"), Reply::NilArray, "it never waits");
}

#[test]
fn a_fence_from_the_future_is_refused() {
    let mut bench = Bench::new();
    bench.apply(Command::Expire { idle_ms: 1_000 });
    let now_us = bench.machine.stamp().wall_us;
    assert_eq!(code(&bench.check("r", now_us + 60_000_001)), "ERR");
    assert_eq!(code(&bench.call("r", now_us + 60_000_001, "SET data x")), "ERR");
    assert_eq!(bench.mark("r"), Reply::Int(0));
    assert_eq!(bench.check("r", now_us + 60_000_000), Reply::Int(1));
}

#[test]
fn unused_marks_fold_into_a_floor_that_lets_no_stale_fence_in() {
    let mut bench = Bench::new();
    bench.apply(Command::Settings(SettingsCommand::Found(Founding::default())));
    bench.apply(Command::Settings(SettingsCommand::Set { name: b"mark-retention-ms", value: b"1000" }));
    bench.check("old", 50);
    bench.now_ms += 900;
    bench.check("new", 7);
    assert_eq!(bench.machine.next_mark_fold_ms(), Some(1_002));
    bench.now_ms += 200;
    bench.apply(Command::Expire { idle_ms: 1_000 });
    assert_eq!((bench.mark("old"), bench.mark("new")), (Reply::Int(0), Reply::Int(7)));
    assert_eq!(bench.machine.marks_len(), 1);
    assert_eq!(bench.check("old", 49), Reply::Int(0), "below the floor");
    let stale = bench.call("other", 49, "SET x y");
    assert_eq!(code(&stale), "STALE");
    assert_eq!(bench.check("new", 8), Reply::Int(1), "a known mark has its own limit");
    bench.machine = bench.restored();
    assert_eq!(bench.check("old", 49), Reply::Int(0), "the floor is part of the snapshot");
    assert_eq!(bench.check("old", 51), Reply::Int(1));
}

#[test]
fn a_known_mark_rises_where_there_is_no_room_for_another() {
    let limits = redfence_core::machine::Limits { marks_max: 1, ..Default::default() };
    let mut bench = Bench { machine: Machine::with_limits(limits), seq: 0, now_ms: 1 };
    bench.check("a", 5);
    assert_eq!(code(&bench.check("b", 5)), "OOM");
    assert_eq!(bench.check("a", 6), Reply::Int(1));
}

#[test]
fn a_mark_of_the_future_makes_no_true_holder_stale_when_it_is_folded() {
    let mut bench = Bench::new();
    bench.apply(Command::Settings(SettingsCommand::Found(Founding::default())));
    bench.apply(Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
    bench.apply(Command::Settings(SettingsCommand::Set { name: b"mark-retention-ms", value: b"1000" }));
    let ahead = NOW_US + 59_000_000;
    assert_eq!(bench.check("ahead", ahead), Reply::Int(1));
    for seconds in [2, 20, 57] {
        bench.now_ms = seconds * 1_000;
        assert!(bench.machine.next_mark_fold_ms().unwrap() > bench.now_ms, "it is not due");
        bench.apply(Command::Expire { idle_ms: 1_000 });
        let name = format!("holder:{seconds}");
        let fence = NOW_US + bench.now_ms * 1_000;
        assert_eq!(bench.check(&name, fence), Reply::Int(1), "after {seconds} s");
    }
    bench.now_ms = 61_000;
    bench.apply(Command::Expire { idle_ms: 1_000 });
    assert_eq!(
        bench.mark("ahead"),
        Reply::Int(ahead as i64),
        "FENCE.GET tells the floor that FENCE.CHECK goes by"
    );
    assert_eq!(bench.check("late", ahead - 1), Reply::Int(0), "and it still lets no stale fence in");
}
