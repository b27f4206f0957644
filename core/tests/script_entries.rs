//! Several scripts in one entry, and scripts near limits of the whole state: what they came to on the leader is what comes out
//! when the entry is applied. The leader here does what a node does, with the same [`SharedEntry`].
//!
//! A write that comes out differently fails by an assertion of the machine; `REDFENCE_SEED` repeats one random run,
//! `REDFENCE_STEPS` sets its length.
#![cfg(feature = "scripts")]

#[allow(dead_code, reason = "shared with core/tests/differential, which uses more of it")]
#[path = "differential/generate.rs"]
mod generate;
mod logged;

use generate::Dice;
use logged::Slow;
use redfence_core::keyspace::Resp;
use redfence_core::machine::settings::SettingsCommand;
use redfence_core::machine::{Applied, Command, EntryBuilder, Limits, Machine, Watched, Words};
use redfence_core::reply::Reply;
use redfence_core::script::{Engine, SharedEntry};
use redfence_core::types::{Member, Origin, RequestId, SessionId, SessionScope, Stamp};
use std::collections::BTreeMap;

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

struct Leader {
    machine: Machine,
    engine: Engine,
    stamp: Stamp,
    seq: u64,
    replies: BTreeMap<u64, Reply>,
}

fn blob(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    bytes
}

fn redis<'a>(member: Option<Member>, words: &[&'a [u8]]) -> Command<'a> {
    Command::Redis { db: 0, resp: Resp::Two, member, argv: words.iter().copied().collect() }
}

fn eval(body: &str) -> Vec<u8> {
    blob(&redis(None, &[b"EVAL", body.as_bytes(), b"0"]))
}

fn eval_by(member: u64, body: &str) -> Vec<u8> {
    blob(&redis(Some(Member(member)), &[b"EVAL", body.as_bytes(), b"0"]))
}

fn is_error(reply: &Reply, code: &str) -> bool {
    matches!(reply, Reply::Error(refusal) if refusal.0.starts_with(code))
}

impl Leader {
    fn new(limits: Limits) -> Leader {
        let stamp = Stamp { term: 1, logical_ms: 1_700_000_000_000, wall_us: 1_700_000_000_000_000 };
        let mut leader = Leader {
            machine: Machine::with_limits(limits),
            engine: Engine::new(),
            stamp,
            seq: 0,
            replies: BTreeMap::new(),
        };
        leader.apply(&[blob(&Command::OriginStart { origin: ORIGIN })]);
        leader
    }

    fn with_memory(max_memory: u64) -> Leader {
        let mut leader = Leader::new(Limits::default());
        leader.set_memory(max_memory);
        leader
    }

    fn set_memory(&mut self, max_memory: u64) {
        let value = max_memory.to_string();
        let set = SettingsCommand::Set { name: b"max-memory", value: value.as_bytes() };
        assert_eq!(self.plain(&Command::Settings(set)), Some(Reply::OK));
    }

    /// One entry. Answers the numbers of its commands.
    fn apply<B: AsRef<[u8]>>(&mut self, blobs: &[B]) -> Vec<u64> {
        let mut entry = EntryBuilder::new(self.stamp);
        let numbers: Vec<u64> = (1..=blobs.len() as u64).map(|at| self.seq + at).collect();
        self.seq += blobs.len() as u64;
        entry.push_batch(ORIGIN, 0, numbers.iter().copied().zip(blobs));
        let mut out = Applied::default();
        self.machine.apply_entry(&entry.finish(), &mut out).expect("it is of this release");
        self.machine.check_invariants().expect("the invariants hold");
        assert_eq!(self.machine.stats().differing_effects, 0);
        self.replies.extend(out.replies.into_iter().map(|(RequestId { seq, .. }, reply)| (seq, reply)));
        numbers
    }

    /// An entry of its own. `None`: it waits.
    fn plain(&mut self, command: &Command<'_>) -> Option<Reply> {
        let seq = self.apply(&[blob(command)])[0];
        self.replies.get(&seq).cloned()
    }

    fn run(&mut self, words: &[&[u8]]) -> Option<Reply> {
        self.plain(&redis(None, words))
    }

    fn pass(&mut self, ms: u64) {
        self.stamp.logical_ms += ms;
        self.stamp.wall_us += ms * 1000;
        while self.machine.has_due(self.stamp) {
            self.apply(&[blob(&Command::Expire { idle_ms: 600_000 })]);
        }
    }

    /// Runs requests with scripts as a node does. Answers their replies, and how many shared each entry.
    fn scripts(&mut self, requests: &[Vec<u8>]) -> (Vec<Reply>, Vec<usize>) {
        let (mut replies, mut entries) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < requests.len() {
            let mut shared = SharedEntry::default();
            let mut blobs = Vec::new();
            while let Some(request) = requests.get(at) {
                let ran = self.engine.run_behind(
                    shared.taken(),
                    &self.machine,
                    self.stamp,
                    request,
                    &mut Slow::start(),
                );
                if let Some((db, key)) = ran.touched.unswept.first().filter(|_| blobs.is_empty()) {
                    let argv = [&b"EXISTS"[..], key].into_iter().collect();
                    self.plain(&Command::Redis { db: *db, resp: Resp::Two, member: None, argv });
                    continue;
                }
                if !ran.touched.unswept.is_empty() || !shared.admits(&ran) {
                    break;
                }
                shared.add(&self.machine, &ran);
                blobs.push(ran.blob);
                at += 1;
                if shared.is_closed() {
                    break;
                }
            }
            assert!(!blobs.is_empty(), "a script that is alone is always taken");
            entries.push(blobs.len());
            for seq in self.apply(&blobs) {
                replies.push(self.replies.get(&seq).expect("a script is answered at once").clone());
            }
            self.pass(0);
        }
        (replies, entries)
    }

    fn script(&mut self, body: &str) -> Reply {
        self.scripts(&[eval(body)]).0.remove(0)
    }
}

#[test]
fn scripts_that_touch_other_keys_share_an_entry() {
    let mut leader = Leader::new(Limits::default());
    let set = |key: &str| eval(&format!("redis.call('SET', '{key}', 'v') return redis.call('GET', '{key}')"));
    let (_, entries) = leader.scripts(&[set("a"), set("b"), set("a"), set("c")]);
    assert_eq!(entries, [2, 2], "the third reads what the first wrote");
}

#[test]
fn a_word_too_long_for_any_command_is_refused_when_the_script_runs() {
    let mut leader = Leader::new(Limits::default());
    for call in
        ["'PUBLISH', 'c', w", "'SADD', 's', w", "'DEL', w", "'SET', 'k', w", "'SET', 'k', 'v', 'IFEQ', w"]
    {
        let body = format!("local w = string.rep('a', 1024 * 1024 + 1) return redis.pcall({call})");
        let reply = leader.script(&body);
        assert!(is_error(&reply, "ERR"), "{call}: {reply:?}");
    }
}

#[test]
fn scripts_of_one_entry_never_make_more_records_than_there_may_be() {
    let mut leader = Leader::new(Limits { locks_max: 6, ..Limits::default() });
    let make = |name: &str| {
        eval(&format!(
            "for i = 1, 4 do redis.call('SET', '{name}' .. i, 'v') end return redis.call('GET', '{name}1')"
        ))
    };
    let (replies, entries) =
        leader.scripts(&[make("a"), make("b"), eval("return redis.call('SET', 'c', 'v')")]);
    assert_eq!(entries.iter().sum::<usize>(), 3);
    assert_eq!(replies[0], Reply::bulk("v"));
    assert!(is_error(&replies[1], "OOM"), "{:?}", replies[1]);
    assert_eq!(replies[2], Reply::OK, "what was refused took nothing");
}

#[test]
fn scripts_of_one_entry_never_take_more_memory_than_there_is() {
    let mut leader = Leader::with_memory(1 << 20);
    let fill = |name: &str| eval(&format!("redis.call('SET', '{name}', string.rep('x', 700000)) return 1"));
    let (replies, _) = leader.scripts(&[fill("a"), fill("b"), fill("c")]);
    assert_eq!(replies[0], Reply::Int(1));
    assert!(replies[1..].iter().all(|reply| is_error(reply, "OOM command not allowed")), "{replies:?}");
    assert!(leader.machine.memory_used_bytes() <= 1 << 20);
}

#[test]
fn what_a_script_deletes_is_room_for_what_it_writes() {
    let mut leader = Leader::with_memory(2 << 20);
    assert_eq!(leader.script("redis.call('SET', 'a', string.rep('x', 1000000)) redis.call('RPUSH', 'l', string.rep('y', 600000)) return 1"), Reply::Int(1));
    let grow = "return redis.call('SET', 'b', string.rep('z', 900000))";
    assert!(is_error(&leader.script(grow), "OOM"));
    for free in ["'DEL', 'a'", "'LPOP', 'l'", "'SET', 'a', ''"] {
        let mut leader = Leader::with_memory(2 << 20);
        leader.script("redis.call('SET', 'a', string.rep('x', 1000000)) redis.call('RPUSH', 'l', string.rep('y', 600000)) return 1");
        let reply = leader.script(&format!("redis.call({free}) {grow}"));
        assert_eq!(reply, Reply::OK, "{free}");
        assert!(leader.machine.memory_used_bytes() <= 2 << 20, "{free}");
    }
}

#[test]
fn a_transaction_waits_where_a_script_of_its_entry_wrote_a_key_it_watches() {
    let mut leader = Leader::new(Limits::default());
    leader.run(&[b"SET", b"watched", b"old"]);
    let token = leader.machine.watch_token(0, b"watched");
    let commands: Vec<Words<'_>> = vec![
        [&b"SET"[..], b"other", b"v"].into_iter().collect(),
        [&b"EVAL"[..], b"return 1", b"0"].into_iter().collect(),
    ];
    let watched = vec![Watched { db: 0, key: b"watched", token }];
    let transaction = blob(&Command::Transaction { db: 0, resp: Resp::Two, member: None, watched, commands });
    let write = eval("redis.call('GET', 'other') return redis.call('SET', 'watched', 'new')");
    let (replies, entries) = leader.scripts(&[write, transaction]);
    assert_eq!((entries, &replies[1]), (vec![1, 1], &Reply::NilArray));
}

#[test]
fn blocked_clients_that_are_still_to_try_close_an_entry() {
    let mut leader = Leader::new(Limits { due_per_entry_max: 1, ..Limits::default() });
    for _ in 0..4 {
        assert_eq!(leader.run(&[b"BLPOP", b"l", b"0"]), None);
    }
    // One is served with it, the rest with later entries.
    leader.run(&[b"RPUSH", b"l", b"1", b"2", b"3", b"4", b"5", b"6"]);
    let (replies, entries) = leader
        .scripts(&[eval("return redis.call('SET', 'x', '1')"), eval("return redis.call('RPUSH', 'l', '7')")]);
    assert_eq!(entries, [1, 1]);
    assert!(matches!(replies[1], Reply::Int(1..=5)), "the first script's entry served one more: {replies:?}");
}

#[test]
fn a_members_flush_is_refused_as_a_whole_or_applied() {
    let mut leader = Leader::new(Limits::default());
    let many = |leader: &mut Leader| {
        for part in 0..21 {
            let names: Vec<String> = (0..500).map(|at| format!("k{part}-{at}")).collect();
            let mut words: Vec<&[u8]> = vec![b"MSET"];
            names.iter().for_each(|name| words.extend([name.as_bytes(), b"v"]));
            assert_eq!(leader.run(&words), Some(Reply::OK));
        }
    };
    many(&mut leader);
    let flush = eval_by(1, "redis.call('SET', 'mine', 'v') return redis.pcall('FLUSHALL')");
    let (replies, _) = leader.scripts(std::slice::from_ref(&flush));
    assert!(is_error(&replies[0], "ERR a Redlock listener flushes"), "{replies:?}");
    assert_eq!(leader.run(&[b"EXISTS", b"mine", b"k0-0"]), Some(Reply::Int(1)), "it changed nothing");
    // Few records again, but of numbers beyond the limit.
    leader.run(&[b"FLUSHALL"]);
    for _ in 0..20 {
        leader.apply(&[blob(&Command::Expire { idle_ms: 0 })]);
    }
    leader.run(&[b"SET", b"k", b"v"]);
    assert_eq!(leader.scripts(&[flush]).0, [Reply::OK]);
    assert_eq!(leader.run(&[b"EXISTS", b"mine", b"k"]), Some(Reply::Int(0)));
}

#[test]
fn a_refused_write_of_a_member_frees_no_key_that_is_waited_for() {
    let mut leader = Leader::new(Limits::default());
    leader.run(&[b"SET", b"held", b"x"]);
    let acquire = Command::MAcquire {
        db: 0,
        resources: [&b"free"[..], b"held"].into_iter().collect(),
        ttl_ms: 1_000,
        wait_ms: 100_000,
        owner: b"waiter",
        session: None,
    };
    assert_eq!(leader.plain(&acquire), None);
    leader.plain(&redis(Some(Member(1)), &[b"SET", b"members", b"v"]));
    let body = "local e = redis.pcall('MSET', 'free', 'a', 'members', 'other') return {e.err, redis.call('SETNX', 'free', 'b')}";
    let (replies, _) = leader.scripts(&[eval_by(2, body)]);
    let Reply::Array(items) = &replies[0] else { panic!("{replies:?}") };
    assert_eq!(items[1], Reply::Int(0), "somebody is first in line for it");
}

/// Keys enough that one flush does not end them all.
fn flushed_with_a_waiter(leader: &mut Leader, name: &[u8]) -> u64 {
    for part in 0..10 {
        let names: Vec<String> = (0..500).map(|at| format!("k{part}-{at}")).collect();
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        names.iter().for_each(|key| words.extend([key.as_bytes(), b"v"]));
        leader.run(&words);
    }
    let acquire = |owner: &'static [u8]| Command::Acquire {
        db: 0,
        resource: name,
        ttl_ms: 1_000,
        wait_ms: 100_000,
        owner,
        session: None,
    };
    assert!(matches!(leader.plain(&acquire(b"first")), Some(Reply::Granted { .. })));
    assert_eq!(leader.plain(&acquire(b"second")), None);
    let waits = leader.seq;
    leader.run(&[b"FLUSHALL"]);
    assert!(!leader.replies.contains_key(&waits), "it is swept later");
    waits
}

#[test]
fn a_flushed_lock_goes_to_its_waiter_before_a_script_sees_it() {
    for body in [
        "return redis.call('SETNX', 'lock', 'script')",
        "if redis.call('EXISTS', 'lock') == 0 then redis.call('SET', 'lock', 'script') return 1 end return 0",
        "if redis.call('SET', 'lock', 'script', 'NX') then return 1 end return 0",
    ] {
        let mut leader = Leader::new(Limits::default());
        let waits = flushed_with_a_waiter(&mut leader, b"lock");
        assert_eq!(leader.script(body), Reply::Int(0), "{body}");
        assert!(matches!(leader.replies.get(&waits), Some(Reply::Granted { .. })), "{body}");
        assert_eq!(leader.run(&[b"GET", b"lock"]), Some(Reply::bulk("second")));
    }
}

#[test]
fn a_script_sees_the_locks_it_changed_itself() {
    let mut leader = Leader::new(Limits::default());
    let (id, label) = (SessionId(7), &b""[..]);
    leader.plain(&Command::SessionOpen { id, ttl_ms: 100_000, label });
    let (resource, owner, session) = (&b"lock"[..], &b"o"[..], Some(id));
    leader.plain(&Command::Acquire { db: 0, resource, ttl_ms: 90_000, wait_ms: 0, owner, session });
    let info =
        "local t = {} local f = redis.call('LOCK.INFO', 'lock') for i = 1, #f, 2 do t[f[i]] = f[i + 1] end ";
    let body =
        format!("redis.call('SET', 'lock', 'other') {info} return {{t.state, t.owner, t.session, t.fence}}");
    let Reply::Array(items) = leader.script(&body) else { panic!("an array") };
    assert_eq!(items[..2], [Reply::bulk("held"), Reply::bulk("other")]);
    assert_eq!(items[2], Reply::Nil, "the session's grant is over");
    // The fence a script is told is the one the key has.
    let Reply::Info(after) = leader.machine.query(redfence_core::machine::Query::Info {
        db: 0,
        resource,
        sessions: SessionScope::All,
    }) else {
        panic!("a lock")
    };
    assert_eq!(items[3], Reply::Int(after.fence.0 as i64));
    let reply = leader.script(&format!("redis.call('FLUSHALL') {info} return {{t.state, t.owner}}"));
    assert_eq!(reply, Reply::Array(vec![Reply::bulk("free"), Reply::Nil]));
}

// ---- random runs ----

const NAMES: &[&str] = &["s0", "s1", "s2", "h0", "l0", "l1", "z0", "t0"];

/// A request that holds a script: as text with random calls, or as a transaction.
fn request(dice: &mut Dice, now_ms: u64) -> Vec<u8> {
    let member = match dice.roll(5) {
        0 => Some(Member(1)),
        1 => Some(Member(2)),
        _ => None,
    };
    let argvs: Vec<Vec<Vec<u8>>> = (0..1 + dice.roll(4)).map(|_| call(dice, now_ms)).collect();
    let mut commands: Vec<Words<'_>> =
        argvs.iter().map(|argv| argv.iter().map(Vec::as_slice).collect()).collect();
    let resp = if dice.roll(3) == 0 { Resp::Three } else { Resp::Two };
    if dice.roll(2) == 0 {
        commands.push([&b"EVAL"[..], b"return 'x'", b"0"].into_iter().collect());
        return blob(&Command::Transaction { db: 0, resp, member, watched: vec![], commands });
    }
    let mut body = "local r = {}\n".to_owned();
    for argv in &argvs {
        let words: Vec<String> = argv
            .iter()
            .map(|word| format!("'{}'", word.iter().map(|byte| format!("\\{byte:03}")).collect::<String>()))
            .collect();
        body += &format!("r[#r + 1] = redis.pcall({})\n", words.join(","));
    }
    body += "return #r";
    let argv = [&b"EVAL"[..], body.as_bytes(), b"0"].into_iter().collect();
    let command = Command::Redis { db: 0, resp, member, argv };
    blob(&command)
}

fn call(dice: &mut Dice, now_ms: u64) -> Vec<Vec<u8>> {
    let own = |text: String| text.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    let name = dice.pick(NAMES);
    match dice.roll(16) {
        0 => own(format!("SET {name} v{} NX PX {}", dice.roll(3), 1 + dice.roll(60))),
        1 => own(format!("PEXPIRE {name} {}", dice.roll(40))),
        2 => own(format!("SPOP t{} {}", dice.roll(3), dice.roll(3))),
        3 => own(dice.pick(&["FLUSHDB", "FLUSHALL", "RANDOMKEY", "TIME", "DBSIZE", "KEYS *"]).to_owned()),
        4 => vec![b"APPEND".to_vec(), name.into(), vec![b'x'; 1 + dice.roll(3_000)]],
        5 => own(format!("LOCK.INFO {name}")),
        6 => own(format!("RPUSH l{} {} {}", dice.roll(2), dice.roll(9), "y".repeat(1 + dice.roll(900)))),
        7 => own(format!("SET n{} v", dice.roll(60))),
        _ => generate::command(dice, now_ms),
    }
}

/// What other clients do between the scripts: waiters, blocked clients, sessions, members, flushes.
fn other(dice: &mut Dice, leader: &mut Leader) {
    let name = dice.pick(NAMES).as_bytes();
    let owner = format!("o{}", dice.roll(3)).into_bytes();
    let session = (dice.roll(3) == 0).then_some(SessionId(7));
    let (ttl_ms, wait_ms) = (1 + dice.roll(80) as u64, dice.roll(90) as u64);
    match dice.roll(9) {
        0 | 1 => {
            leader.plain(&Command::Acquire {
                db: 0,
                resource: name,
                ttl_ms,
                wait_ms,
                owner: &owner,
                session,
            });
        }
        2 => {
            let resources = [name, b"both"].into_iter().collect();
            leader.plain(&Command::MAcquire { db: 0, resources, ttl_ms, wait_ms, owner: &owner, session });
        }
        3 => {
            leader.plain(&Command::SessionOpen { id: SessionId(7), ttl_ms: 40, label: b"" });
        }
        4 => {
            let key = dice.pick(&["l0", "l1"]).as_bytes();
            leader.run(&[b"BLPOP", key, b"0.05"]);
        }
        5 => {
            leader.run(&[b"BLMOVE", b"l0", b"l1", b"LEFT", b"RIGHT", b"0.1"]);
        }
        6 => {
            let member = Some(Member(1 + dice.roll(3) as u64));
            leader.plain(&redis(member, &[b"SET", name, &owner, b"NX", b"PX", b"50"]));
        }
        7 => {
            leader.plain(&Command::ForceRelease { db: 0, resource: name });
        }
        _ => {
            let words = generate::command(dice, leader.stamp.logical_ms);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            // What nobody knows a node refuses before it is logged.
            if words[0] != b"NOSUCH" {
                leader.run(&words);
            }
        }
    }
}

fn random_run(seed: u64, steps: u64) {
    let mut dice = Dice::new(seed);
    let tight = Limits {
        locks_max: 40,
        idle_max: 6,
        due_per_entry_max: 2,
        idle_per_entry_max: 2,
        ..Limits::default()
    };
    let mut leader = Leader::new(if seed.is_multiple_of(3) { Limits::default() } else { tight });
    let mut shared = 0;
    for step in 0..steps {
        if step % 50 == 0 && seed.is_multiple_of(2) {
            // Nearly full, and now and then over it.
            leader.run(&[b"SET", b"ballast", &vec![b'b'; 1_000_000]]);
            let used = leader.machine.memory_used_bytes();
            leader.set_memory((used + dice.roll(20_000) as u64).max(1 << 20));
        }
        leader.pass([0, 0, 1, 7, 30][dice.roll(5)]);
        for _ in 0..dice.roll(3) {
            other(&mut dice, &mut leader);
        }
        leader.pass(0);
        let now_ms = leader.stamp.logical_ms;
        let requests: Vec<Vec<u8>> = (0..1 + dice.roll(5)).map(|_| request(&mut dice, now_ms)).collect();
        let before = leader.machine.state_hash();
        let ran = leader.engine.run(&leader.machine, leader.stamp, &requests[0], &mut Slow::start());
        assert_eq!(leader.machine.state_hash(), before, "a run changes nothing");
        drop(ran);
        shared += leader.scripts(&requests).1.iter().filter(|scripts| **scripts > 1).count();
        leader.replies.clear();
    }
    assert!(shared > 0, "no scripts ever shared an entry");
}

#[test]
fn random_scripts_that_share_entries_come_out_as_they_ran() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let steps = number("REDFENCE_STEPS").unwrap_or(150);
    for seed in number("REDFENCE_SEED").map_or(1..5, |seed| seed..seed + 1) {
        println!("seed {seed}");
        random_run(seed, steps);
    }
}
