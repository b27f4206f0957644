//! Commands that come in by the Redlock listeners: N members that look like N masters, on one table of locks.

#[cfg(feature = "scripts")]
mod logged;

use redfence_core::keyspace::Resp;
use redfence_core::machine::settings::SettingsCommand;
use redfence_core::machine::{Applied, Command, Machine, Query, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Member, Origin, RequestId, SessionScope, Stamp};

struct Cluster {
    machine: Machine,
    #[cfg(feature = "scripts")]
    engine: redfence_core::script::Engine,
    now_ms: u64,
    seq: u64,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            machine: Machine::new(),
            #[cfg(feature = "scripts")]
            engine: redfence_core::script::Engine::new(),
            now_ms: 1_000,
            seq: 0,
        }
    }

    fn apply(&mut self, command: Command<'_>) -> Reply {
        self.try_apply(command).expect("an answer")
    }

    /// `None` where the answer comes later.
    fn try_apply(&mut self, command: Command<'_>) -> Option<Reply> {
        self.seq += 1;
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.seq };
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us: self.now_ms * 1000 };
        let mut out = Applied::default();
        #[cfg(feature = "scripts")]
        while command.is_request() && self.machine.has_due(stamp) {
            self.machine.apply(stamp, None, Command::Expire { idle_ms: 600_000 }, &mut out);
        }
        #[cfg(feature = "scripts")]
        let blob = logged::logged(&mut self.engine, &self.machine, stamp, &command);
        #[cfg(not(feature = "scripts"))]
        let blob = {
            let mut blob = Vec::new();
            command.encode(&mut blob);
            blob
        };
        let command = Command::decode(&blob).expect("what was encoded is read");
        self.machine.apply(stamp, Some(id), command, &mut out);
        self.machine.check_invariants().expect("the invariants hold");
        out.replies.into_iter().find(|(other, _)| *other == id).map(|(_, reply)| reply)
    }

    /// Member 0 is none: another listener.
    fn say(&mut self, member: u64, line: &str) -> Reply {
        self.call(member, &line.split(' ').map(str::as_bytes).collect())
    }

    fn call(&mut self, member: u64, argv: &Words<'_>) -> Reply {
        let member = Some(Member(member)).filter(|member| member.0 != 0);
        self.apply(Command::Redis { db: 0, resp: Resp::Two, member, argv: argv.clone() })
    }

    #[cfg(feature = "scripts")]
    fn eval(&mut self, member: u64, body: &str, keys: &[&str], args: &[&str]) -> Reply {
        let count = keys.len().to_string();
        let head = [b"EVAL".as_slice(), body.as_bytes(), count.as_bytes()];
        let words = keys.iter().chain(args).map(|word| word.as_bytes());
        let argv: Words<'_> = head.into_iter().chain(words).collect();
        self.call(member, &argv)
    }

    fn acquire(&mut self, name: &str, owner: &str, wait_ms: u64) -> Option<Reply> {
        let (resource, owner) = (name.as_bytes(), owner.as_bytes());
        self.try_apply(Command::Acquire { db: 0, resource, ttl_ms: 1_000, wait_ms, owner, session: None })
    }

    fn read(&self, member: u64, line: &str) -> Reply {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.machine.read_as(Some(Member(member)).filter(|member| member.0 != 0), 0, Resp::Two, &argv)
    }

    /// The fence of the holder; `None` where the lock is free.
    fn fence(&self, name: &str) -> Option<Fence> {
        match self.machine.query(Query::Info {
            db: 0,
            resource: name.as_bytes(),
            sessions: SessionScope::All,
        }) {
            Reply::Info(info) => info.held.then_some(info.fence),
            other => panic!("{other:?}"),
        }
    }

    fn restart(&mut self) {
        self.machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| self.machine.snapshot_step(3)).collect();
        let restored = Machine::restore(pieces).expect("the snapshot is whole");
        assert_eq!(restored.state_hash(), self.machine.state_hash());
        self.machine = restored;
    }
}

fn is_ok(reply: &Reply) -> bool {
    *reply == Reply::OK
}

fn int(value: i64) -> Reply {
    Reply::Int(value)
}

#[test]
fn each_member_grants_a_key_once_and_all_refuse_another_value() {
    let mut cluster = Cluster::new();
    for member in 1..=3 {
        assert!(is_ok(&cluster.say(member, "SET k a NX PX 5000")), "member {member}");
        assert_eq!(cluster.say(member, "SET k a NX PX 5000"), Reply::Nil, "once is all, member {member}");
    }
    for member in 1..=5 {
        assert_eq!(cluster.say(member, "SET k b NX PX 5000"), Reply::Nil, "member {member}");
    }
    assert_eq!(cluster.acquire("k", "b", 0), Some(Reply::Nil));
    assert_eq!(cluster.say(0, "SET k b NX"), Reply::Nil);
    assert_eq!(cluster.say(0, "GET k"), Reply::bulk("a"));
}

#[test]
fn a_value_is_refused_by_members_that_have_granted_nothing_yet() {
    let mut cluster = Cluster::new();
    assert!(is_ok(&cluster.say(1, "SET k a NX PX 5000")));
    for member in 1..=3 {
        assert_eq!(cluster.say(member, "SET k b NX PX 5000"), Reply::Nil, "member {member}");
        assert_eq!(cluster.say(member, "SETNX k b"), int(0), "member {member}");
        assert_eq!(cluster.say(member, "MSETNX other 1 k b"), int(0), "member {member}");
    }
    assert_eq!(cluster.say(0, "EXISTS other"), int(0));
}

#[test]
fn a_key_made_elsewhere_is_held_at_every_member() {
    let mut cluster = Cluster::new();
    cluster.acquire("k", "a", 0);
    cluster.say(0, "SET plain a");
    for member in 1..=3 {
        assert_eq!(cluster.say(member, "SET k a NX PX 5000"), Reply::Nil);
        assert_eq!(cluster.say(member, "SET plain a NX PX 5000"), Reply::Nil);
        assert_eq!(cluster.read(member, "GET k"), Reply::bulk("a"));
    }
    assert_eq!(cluster.say(2, "DEL plain"), int(1));
    assert_eq!(cluster.say(3, "DEL plain"), int(0));
}

#[test]
fn a_member_sees_what_it_has_granted() {
    let mut cluster = Cluster::new();
    cluster.say(1, "SET k a NX PX 5000");
    cluster.say(0, "SET plain x");
    cluster.say(1, "RPUSH list x");
    let looks = [
        ("GET k", Reply::bulk("a"), Reply::Nil),
        ("EXISTS k", int(1), int(0)),
        ("PTTL k", int(5000), int(-2)),
        ("TYPE k", Reply::Status("string".into()), Reply::Status("none".into())),
        ("DBSIZE", int(3), int(2)),
        ("KEYS k*", Reply::Array(vec![Reply::bulk("k")]), Reply::Array(vec![])),
        ("LLEN list", int(1), int(1)),
        ("GET plain", Reply::bulk("x"), Reply::bulk("x")),
    ];
    for (look, granter, other) in looks {
        assert_eq!(cluster.read(1, look), granter, "{look}");
        assert_eq!(cluster.read(0, look), granter, "{look}");
        assert_eq!(cluster.read(2, look), other, "{look}");
    }
    assert_eq!(cluster.say(2, "DEL k"), int(0));
    assert_eq!(cluster.say(2, "PEXPIRE k 1"), int(0));
    assert_eq!(cluster.say(2, "SET k a XX"), Reply::Nil);
    assert_eq!(cluster.say(1, "GETDEL k"), Reply::bulk("a"));
    assert_eq!(cluster.fence("k"), None);
}

#[test]
fn a_key_ends_with_the_last_member_and_its_waiter_is_served_then() {
    let mut cluster = Cluster::new();
    (1..=3).for_each(|member| assert!(is_ok(&cluster.say(member, "SET k a NX PX 5000"))));
    let fence = cluster.fence("k");
    assert_eq!(cluster.acquire("k", "next", 60_000), None);
    for member in 1..=2 {
        assert_eq!(cluster.say(member, "DEL k"), int(1));
        assert_eq!(cluster.say(member, "DEL k"), int(0));
        assert_eq!(cluster.fence("k"), fence, "others have it");
    }
    assert_eq!(cluster.say(3, "DEL k"), int(1));
    assert!(cluster.fence("k") > fence, "the waiter has it");
    assert_eq!(cluster.say(0, "GET k"), Reply::bulk("next"));
}

#[test]
fn each_member_keeps_its_own_time() {
    let mut cluster = Cluster::new();
    cluster.say(1, "SET k a NX PX 100");
    cluster.say(2, "SET k a NX PX 300");
    assert_eq!(cluster.read(1, "PTTL k"), int(100));
    assert_eq!(cluster.read(0, "PTTL k"), int(300));
    cluster.now_ms += 150;
    cluster.say(0, "PING");
    assert_eq!(cluster.read(1, "EXISTS k"), int(0));
    assert_eq!(cluster.say(1, "SET k b NX PX 100"), Reply::Nil, "it is held, if not here");
    cluster.say(2, "PEXPIRE k 500");
    assert_eq!(cluster.read(0, "PTTL k"), int(500));
    cluster.now_ms += 501;
    assert!(is_ok(&cluster.say(1, "SET k b NX PX 100")));
}

#[test]
fn a_member_that_grants_again_brings_a_new_fence() {
    let mut cluster = Cluster::new();
    // Two clients that write the same value; the second has got one member so far.
    cluster.say(1, "SET k x NX PX 5000");
    cluster.say(2, "SET k x NX PX 5000");
    let first = cluster.fence("k");
    cluster.say(3, "SET k x NX PX 5000");
    assert_eq!(cluster.fence("k"), first, "joining is no new grant");
    cluster.say(1, "DEL k");
    cluster.say(2, "DEL k");
    assert!(is_ok(&cluster.say(1, "SET k x NX PX 5000")));
    let second = cluster.fence("k");
    assert!(second > first, "the second client's majority is not the first one's");
    assert!(is_ok(&cluster.say(2, "SET k x NX PX 5000")));
    assert_eq!(cluster.fence("k"), second, "member 2 has not granted this one yet");
}

#[test]
fn no_member_changes_the_value_others_hold() {
    let mut cluster = Cluster::new();
    cluster.say(1, "SET k a NX PX 5000");
    cluster.say(2, "SET k a NX PX 5000");
    for (member, write) in
        [(3, "SET k b"), (1, "SET k b"), (3, "APPEND k b"), (3, "MSET fresh 1 k b"), (2, "GETSET k b")]
    {
        match cluster.say(member, write) {
            Reply::Error(refusal) => assert!(refusal.0.contains("another value"), "{write}: {}", refusal.0),
            other => panic!("member {member} {write}: {other:?}"),
        }
        assert_eq!(cluster.say(0, "GET k"), Reply::bulk("a"), "{write}");
        assert_eq!(cluster.say(0, "EXISTS fresh"), int(0), "all or nothing");
    }
    assert!(matches!(cluster.say(3, "HSET k f v"), Reply::Error(refusal) if refusal.code() == "WRONGTYPE"));
    // Alone, it may do what it likes with its own.
    cluster.say(2, "DEL k");
    assert!(is_ok(&cluster.say(1, "SET k b")));
    assert_eq!(cluster.say(0, "GET k"), Reply::bulk("b"));
}

#[test]
fn a_flush_takes_one_member_out() {
    let mut cluster = Cluster::new();
    cluster.say(1, "SET k a NX PX 5000");
    cluster.say(2, "SET k a NX PX 5000");
    cluster.say(1, "SET mine a NX PX 5000");
    cluster.say(1, "FLUSHALL");
    assert_eq!(cluster.read(1, "DBSIZE"), int(0));
    assert_eq!(cluster.read(2, "GET k"), Reply::bulk("a"));
    assert_eq!(cluster.fence("mine"), None);
    cluster.say(0, "FLUSHALL");
    assert_eq!(cluster.read(2, "DBSIZE"), int(0));
}

#[test]
fn lock_commands_work_on_what_members_granted() {
    let mut cluster = Cluster::new();
    (1..=3).for_each(|member| assert!(is_ok(&cluster.say(member, "SET k a NX PX 100"))));
    let fence = cluster.fence("k").expect("held");
    cluster.apply(Command::Renew { db: 0, resource: b"k", fence, ttl_ms: 900 });
    (1..=3).for_each(|member| assert_eq!(cluster.read(member, "PTTL k"), int(900)));
    assert_eq!(cluster.apply(Command::Release { db: 0, resource: b"k", fence }), Reply::Released);
    (1..=3).for_each(|member| assert_eq!(cluster.read(member, "EXISTS k"), int(0)));
    assert!(is_ok(&cluster.say(1, "SET k b NX PX 100")));
}

#[test]
fn no_member_forgets_over_a_snapshot() {
    let mut cluster = Cluster::new();
    cluster.say(1, "SET k a NX PX 5000");
    cluster.say(2, "SET k a NX PX 4000");
    cluster.say(2, "DEL k");
    cluster.restart();
    assert_eq!(cluster.say(1, "SET k a NX PX 5000"), Reply::Nil);
    assert_eq!(cluster.say(3, "SET k b NX PX 5000"), Reply::Nil);
    let before = cluster.fence("k");
    assert!(is_ok(&cluster.say(2, "SET k a NX PX 5000")));
    assert!(cluster.fence("k") > before, "that member 2 had its turn is not forgotten either");
}

#[cfg(feature = "scripts")]
mod scripts {
    use super::*;

    const CAD: &str =
        "if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
    /// node-redlock: all keys or none.
    const NODE_REDLOCK: &str =
        "for i, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end \
        for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end return #KEYS";
    const AIOREDLOCK: &str = "local identifier = redis.call('get', KEYS[1]) \
        if not identifier or identifier == ARGV[1] then return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) \
        else return redis.error_reply('ERROR') end";

    #[test]
    fn scripts_acquire_and_release_on_every_member() {
        for (acquire, taken) in [
            (NODE_REDLOCK, int(0)),
            (AIOREDLOCK, Reply::Error(redfence_core::reply::Refusal::new("ERR ERROR"))),
        ] {
            let mut cluster = Cluster::new();
            for member in 1..=3 {
                let got = cluster.eval(member, acquire, &["k"], &["a", "5000"]);
                assert!(got == int(1) || is_ok(&got), "{got:?}");
                for other in 1..=3 {
                    assert_eq!(cluster.eval(other, acquire, &["k"], &["b", "5000"]), taken);
                }
            }
            for member in 1..=3 {
                assert_eq!(cluster.eval(member, CAD, &["k"], &["b"]), int(0));
                assert_eq!(cluster.eval(member, CAD, &["k"], &["a"]), int(1));
                assert_eq!(cluster.eval(member, CAD, &["k"], &["a"]), int(0));
            }
            assert_eq!(cluster.fence("k"), None);
        }
    }

    #[test]
    fn a_script_that_meets_a_hidden_key_leaves_nothing_behind() {
        let mut cluster = Cluster::new();
        cluster.say(1, "SET b theirs NX PX 5000");
        assert_eq!(cluster.eval(2, NODE_REDLOCK, &["a", "b"], &["mine", "5000"]), int(0));
        assert_eq!(cluster.say(0, "EXISTS a"), int(0));
        let body =
            "redis.call('set', 'a', '1') redis.call('publish', 'c', 'm') redis.pcall('set', 'b', 'x') \
                    return redis.call('exists', 'b')";
        assert_eq!(cluster.eval(2, body, &[], &[]), int(1), "in the end nothing was hidden");
        assert_eq!(cluster.say(0, "GET b"), Reply::bulk("theirs"));
    }

    #[test]
    fn a_script_joins_and_takes_in_one_step() {
        let mut cluster = Cluster::new();
        cluster.say(1, "SET a mine NX PX 5000");
        assert_eq!(cluster.eval(2, NODE_REDLOCK, &["a", "b"], &["mine", "5000"]), int(2));
        assert_eq!(cluster.read(2, "MGET a b"), Reply::Array(vec![Reply::bulk("mine"), Reply::bulk("mine")]));
    }
}

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % sides
    }
}

/// A client as the Redlock paper has it: it knows only which members said yes, and when it asked them.
#[derive(Clone)]
struct Client {
    value: String,
    /// Member → when its grant ends for certain: counted from before it was asked.
    granted: Vec<Option<u64>>,
}

impl Client {
    fn has_majority(&self, now_ms: u64) -> bool {
        let live = self.granted.iter().flatten().filter(|until_ms| **until_ms >= now_ms).count();
        live > self.granted.len() / 2
    }
}

/// Random clients, members and moments; each client cleans up only what it was granted. `constant`: all write one value.
fn never_two_majorities(seed: u64, members: usize, constant: bool) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut cluster = Cluster::new();
    let client = |number: usize| Client {
        value: if constant { "x".into() } else { format!("v{number}") },
        granted: vec![None; members],
    };
    let mut clients: Vec<Client> = (0..4).map(client).collect();
    let mut fences: std::collections::BTreeMap<Fence, usize> = std::collections::BTreeMap::new();
    let mut majorities = 0;
    for step in 0..3_000 {
        let (who, at) = (dice.roll(4) as usize, dice.roll(members as u64) as usize);
        let (now_ms, member) = (cluster.now_ms, at as u64 + 1);
        let value = clients[who].value.clone();
        match dice.roll(12) {
            0..=6 => {
                let ttl_ms = 20 + dice.roll(60);
                if is_ok(&cluster.say(member, &format!("SET k {value} NX PX {ttl_ms}"))) {
                    clients[who].granted[at] = Some(now_ms + ttl_ms);
                }
            }
            7..=8 => {
                // It may delete what it knows to be its own still, as its script would.
                if clients[who].granted[at].take().is_some_and(|until_ms| until_ms >= now_ms) {
                    assert_eq!(
                        cluster.say(member, "DEL k"),
                        int(1),
                        "seed {seed} step {step}: it was granted"
                    );
                }
            }
            9 => {
                if clients[who].granted[at].is_some_and(|until_ms| until_ms >= now_ms) {
                    assert_eq!(
                        cluster.say(member, "PEXPIRE k 50"),
                        int(1),
                        "seed {seed} step {step}: it was granted"
                    );
                    clients[who].granted[at] = Some(now_ms + 50);
                }
            }
            10 => cluster.now_ms += dice.roll(25),
            _ => cluster.restart(),
        }
        cluster.say(0, "PING");
        let holders: Vec<usize> = (0..4).filter(|who| clients[*who].has_majority(cluster.now_ms)).collect();
        assert!(holders.len() <= 1, "seed {seed} step {step}: {holders:?} both have a majority");
        if let [holder] = holders[..] {
            majorities += 1;
            let fence = cluster.fence("k").expect("what a majority has granted is held");
            let whose = *fences.entry(fence).or_insert(holder);
            assert_eq!(whose, holder, "seed {seed} step {step}: {fence} was another's");
        }
    }
    assert!(majorities > 50, "seed {seed}: {majorities} moments with a holder prove nothing");
}

#[test]
fn two_clients_never_have_a_majority_at_once() {
    for seed in 1..=4 {
        for members in [1, 3, 5] {
            never_two_majorities(seed, members, false);
            never_two_majorities(seed, members, true);
        }
    }
}

/// What a member's grant takes comes on top of the key: room for the first of two may be all there is.
#[test]
fn a_refused_write_of_several_keys_leaves_none_of_them() {
    let mut cluster = Cluster::new();
    cluster.say(0, "SET fill x");
    let name = b"max-memory";
    cluster.apply(Command::Settings(SettingsCommand::Set { name, value: b"1mb" }));
    let mut refused = 0;
    for slack in 0..400 {
        cluster.say(0, "DEL a b");
        let used = cluster.machine.memory_used_bytes() as usize;
        let now = cluster.say(0, "STRLEN fill");
        let Reply::Int(now) = now else { panic!("{now:?}") };
        let fill = "x".repeat(now as usize + (1 << 20) - used - slack);
        cluster.say(0, &format!("SET fill {fill}"));
        if let Reply::Error(refusal) = cluster.say(1, "MSETNX a 1 b 1") {
            assert_eq!(refusal.code(), "OOM");
            refused += 1;
        }
        let held = ["a", "b"].map(|key| cluster.say(0, &format!("EXISTS {key}")));
        assert_eq!(held[0], held[1], "with {slack} bytes left: {held:?}");
    }
    assert!((1..400).contains(&refused), "{refused}");
}
