//! Keys made by plain Redis commands and locks taken by `LOCK.*` are the same things: fences, waiters, ends.

#[cfg(feature = "scripts")]
mod logged;

use redfence_core::keyspace::Resp;
use redfence_core::machine::{Applied, Command, Machine, Wanted, Watched, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Origin, Reason, RequestId, SessionScope, Stamp};

struct Node {
    machine: Machine,
    #[cfg(feature = "scripts")]
    engine: redfence_core::script::Engine,
    now_ms: u64,
    seq: u64,
}

impl Node {
    fn new() -> Node {
        let mut machine = Machine::new();
        machine.set_wanted(Wanted::ALL);
        Node {
            machine,
            #[cfg(feature = "scripts")]
            engine: redfence_core::script::Engine::new(),
            now_ms: 1_000,
            seq: 0,
        }
    }

    fn apply(&mut self, command: Command<'_>) -> (u64, Applied) {
        self.seq += 1;
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.seq };
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us: self.now_ms * 1000 };
        let mut out = Applied::default();
        #[cfg(feature = "scripts")]
        {
            while command.is_request() && self.machine.has_due(stamp) {
                self.machine.apply(stamp, None, Command::Expire { idle_ms: 600_000 }, &mut out);
            }
            let blob = logged::logged(&mut self.engine, &self.machine, stamp, &command);
            let command = Command::decode(&blob).expect("what is logged can be read");
            self.machine.apply(stamp, Some(id), command, &mut out);
        }
        #[cfg(not(feature = "scripts"))]
        self.machine.apply(stamp, Some(id), command, &mut out);
        self.machine.check_invariants().expect("the invariants hold");
        (self.seq, out)
    }

    fn answer(&mut self, command: Command<'_>) -> Reply {
        let (seq, out) = self.apply(command);
        out.replies.into_iter().find(|(id, _)| id.seq == seq).expect("an answer").1
    }

    fn say(&mut self, line: &str) -> Reply {
        self.answer(redis(line))
    }

    fn eval(&mut self, body: &str, keys: &[&str]) -> Reply {
        let count = keys.len().to_string();
        let mut argv: Words<'_> =
            [b"EVAL".as_slice(), body.as_bytes(), count.as_bytes()].into_iter().collect();
        argv.extend(keys.iter().map(|key| key.as_bytes()));
        self.answer(Command::Redis { db: 0, resp: Resp::Two, member: None, argv })
    }

    fn acquire(&mut self, name: &str, owner: &str, wait_ms: u64) -> (u64, Applied) {
        let (resource, owner) = (name.as_bytes(), owner.as_bytes());
        self.apply(Command::Acquire { db: 0, resource, ttl_ms: 1_000, wait_ms, owner, session: None })
    }

    fn fence(&self, name: &str) -> u64 {
        match self.machine.query(redfence_core::machine::Query::Info {
            db: 0,
            resource: name.as_bytes(),
            sessions: SessionScope::All,
        }) {
            Reply::Info(info) => info.fence.0,
            other => panic!("{other:?}"),
        }
    }

    fn owner(&self, name: &str) -> Option<Vec<u8>> {
        match self.machine.query(redfence_core::machine::Query::Info {
            db: 0,
            resource: name.as_bytes(),
            sessions: SessionScope::All,
        }) {
            Reply::Info(info) => info.owner.map(|owner| owner.to_vec()),
            other => panic!("{other:?}"),
        }
    }
}

fn words(line: &str) -> Words<'_> {
    line.split(' ').map(str::as_bytes).collect()
}

fn redis(line: &str) -> Command<'_> {
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv: words(line) }
}

fn granted(out: &Applied, seq: u64) -> Option<Fence> {
    out.replies.iter().find_map(|(id, reply)| match reply {
        Reply::Granted { fence, .. } if id.seq == seq => Some(*fence),
        _ => None,
    })
}

#[test]
fn a_key_is_a_lock_and_its_value_the_owner() {
    let mut node = Node::new();
    assert_eq!(node.say("SET k alice NX PX 30000"), Reply::OK);
    let first = node.fence("k");
    assert!(first > 0);
    assert_eq!(node.owner("k").as_deref(), Some(b"alice".as_slice()));
    let (seq, out) = node.acquire("k", "bob", 0);
    assert_eq!(out.replies, [(RequestId { origin: Origin { node: 1, incarnation: 1 }, seq }, Reply::Nil)]);
    // The same value again is a renewal, another one a new grant.
    node.say("SET k alice PX 60000");
    assert_eq!(node.fence("k"), first);
    node.say("PEXPIRE k 90000");
    assert_eq!(node.fence("k"), first);
    node.say("SET k carol PX 60000");
    let second = node.fence("k");
    assert!(second > first);
    let release = |fence| Command::Release { db: 0, resource: b"k", fence: Fence(fence) };
    // Somebody else overwrote it: its holder did not release it.
    assert_eq!(node.answer(release(first)), Reply::Refused(Reason::Expired));
    assert_eq!(node.answer(release(second)), Reply::Released);
    assert_eq!(node.say("EXISTS k"), Reply::Int(0));
    // An end brings a key back under a new fence.
    node.say("SET k carol PX 10");
    let third = node.fence("k");
    node.now_ms += 20;
    node.say("SET k carol PX 10");
    assert!(third > second && node.fence("k") > third);
}

#[test]
fn plain_commands_and_lock_commands_exclude_each_other() {
    let mut node = Node::new();
    let (seq, out) = node.acquire("k", "alice", 0);
    let fence = granted(&out, seq).expect("free");
    assert_eq!(node.say("SET k bob NX PX 1000"), Reply::Nil);
    assert_eq!(node.say("GET k"), Reply::bulk("alice"));
    let release =
        "if redis.call('get', KEYS[1]) == 'alice' then return redis.call('del', KEYS[1]) else return 0 end";
    if cfg!(feature = "scripts") {
        assert_eq!(node.eval(release, &["k"]), Reply::Int(1));
    } else {
        assert_eq!(node.say("DEL k"), Reply::Int(1));
    }
    let again = Command::Release { db: 0, resource: b"k", fence };
    assert_eq!(node.answer(again), Reply::Refused(Reason::AlreadyReleased));
}

#[test]
fn whatever_ends_a_key_serves_its_waiters_in_the_same_step() {
    for end in ["DEL k", "RENAME k elsewhere", "PEXPIRE k 0", "FLUSHDB", "GETDEL k", "DELEX k IFEQ alice"] {
        let mut node = Node::new();
        node.say("SET k alice");
        let (seq, out) = node.acquire("k", "bob", 5_000);
        assert!(out.replies.is_empty(), "bob waits");
        let (_, out) = node.apply(redis(end));
        assert!(granted(&out, seq).is_some(), "{end}");
        assert_eq!(node.say("GET k"), Reply::bulk("bob"), "{end}");
    }
    // Overwriting is no end for those who wait.
    let mut node = Node::new();
    node.say("SET k alice");
    let (seq, _) = node.acquire("k", "bob", 5_000);
    let (_, out) = node.apply(redis("SET k carol"));
    assert!(granted(&out, seq).is_none());
    // Its time is.
    node.say("PEXPIRE k 100");
    node.now_ms += 100;
    let (_, out) = node.apply(Command::Expire { idle_ms: 600_000 });
    assert!(granted(&out, seq).is_none(), "its last millisecond");
    node.now_ms += 1;
    let (_, out) = node.apply(Command::Expire { idle_ms: 600_000 });
    assert!(granted(&out, seq).is_some());
}

/// Strict order is for plain clients too: a free lock is not for the taking while a multi-lock waits at its head.
#[test]
fn a_lock_a_multi_lock_waits_for_is_not_vacant() {
    let mut node = Node::new();
    node.say("SET busy x PX 60000");
    let resources = [b"busy".as_slice(), b"free"].into_iter().collect();
    let (owner, wait_ms) = (b"multi".as_slice(), 60_000);
    let (multi, _) =
        node.apply(Command::MAcquire { db: 0, resources, ttl_ms: 1_000, wait_ms, owner, session: None });
    assert_eq!(node.say("SET free y NX PX 1000"), Reply::Nil);
    assert_eq!(node.say("SETNX free y"), Reply::Int(0));
    assert_eq!(node.say("MSETNX other 1 free y"), Reply::Int(0));
    assert_eq!(node.say("EXISTS free other"), Reply::Int(0));
    node.say("SET spare y");
    assert_eq!(node.say("RENAMENX spare free"), Reply::Int(0));
    let (_, out) = node.apply(redis("DEL busy"));
    assert!(out.replies.iter().any(|(id, _)| id.seq == multi), "both are its now");
    assert_eq!(node.owner("free"), Some(b"multi".to_vec()));
}

/// What a command frees it may take again: it is one step, and those in line come after it.
#[cfg(feature = "scripts")]
#[test]
fn a_script_may_take_again_what_it_deleted() {
    let mut node = Node::new();
    node.say("SET k mine");
    let (waiter, _) = node.acquire("k", "next", 60_000);
    let again = node.eval("redis.call('del', 'k') return redis.call('set', 'k', 'again', 'NX')", &[]);
    assert_eq!(again, Reply::OK);
    let (_, out) = node.apply(redis("DEL k"));
    assert!(granted(&out, waiter).is_some());
}

#[test]
fn collections_are_locks_too() {
    let mut node = Node::new();
    node.say("HSET k uuid:1 1");
    let fence = node.fence("k");
    node.say("HINCRBY k uuid:1 1");
    assert_eq!(node.fence("k"), fence, "a change in place keeps the fence");
    assert_eq!(node.owner("k").as_deref(), Some(b"hash".as_slice()));
    let (seq, _) = node.acquire("k", "bob", 5_000);
    let (_, out) = node.apply(redis("HDEL k uuid:1"));
    assert!(granted(&out, seq).is_some(), "an emptied hash is a release");
    assert_eq!(node.say("HGET k f"), Reply::Error(redfence_core::keyspace::errors::WRONG_TYPE));
    // An owner named like a type is nobody's retry.
    node.say("RPUSH l x");
    let (_, out) = node.acquire("l", "list", 0);
    assert_eq!(out.replies[0].1, Reply::Nil);
}

/// Found by the differential test: the list was gone for a moment, and with it its time.
#[test]
fn a_list_of_one_that_is_rotated_keeps_its_time_and_its_fence() {
    for rotate in ["RPOPLPUSH l l", "LMOVE l l LEFT RIGHT", "BRPOPLPUSH l l 0", "LMOVE l l LEFT LEFT"] {
        let mut node = Node::new();
        node.say("RPUSH l a");
        node.say("PEXPIRE l 5000");
        let fence = node.fence("l");
        assert_eq!(node.say(rotate), Reply::bulk("a"), "{rotate}");
        assert_eq!(node.fence("l"), fence, "{rotate}");
        assert_eq!(node.say("PERSIST l"), Reply::Int(1), "{rotate}");
    }
}

#[test]
fn blocked_pops_are_served_first_come_first_served() {
    let mut node = Node::new();
    let (first, out) = node.apply(redis("BLPOP a b 5"));
    assert!(out.replies.is_empty());
    let (second, _) = node.apply(redis("BLPOP b 0"));
    let (third, _) = node.apply(redis("BRPOP b 1"));
    let (_, out) = node.apply(redis("RPUSH b x y"));
    let told: Vec<u64> = out.replies.iter().map(|(id, _)| id.seq).skip(1).collect();
    assert_eq!(told, [first, second]);
    assert_eq!(node.say("EXISTS b"), Reply::Int(0));
    assert_eq!(node.machine.next_due_ms(), Some(node.now_ms + 1_001));
    // A snapshot remembers who waits.
    node.machine.snapshot_begin();
    let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| node.machine.snapshot_step(3)).collect();
    let restored = Machine::restore(pieces).expect("whole");
    assert_eq!(restored.state_hash(), node.machine.state_hash());
    node.machine = restored;
    node.now_ms += 1_001;
    let (_, out) = node.apply(Command::Expire { idle_ms: 600_000 });
    let timed_out = out.replies.iter().find(|(id, _)| id.seq == third).expect("its time is up");
    assert_eq!(timed_out.1, Reply::NilArray);
}

#[test]
fn a_blocked_client_that_goes_takes_nothing() {
    let mut node = Node::new();
    let (first, _) = node.apply(redis("BLPOP b 0"));
    let request = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: first };
    node.apply(Command::Cancel { request });
    assert_eq!(node.say("RPUSH b x"), Reply::Int(1));
    assert_eq!(node.say("LLEN b"), Reply::Int(1));
}

#[test]
fn transactions_see_whether_watched_keys_changed() {
    let mut node = Node::new();
    node.say("SET k 1");
    node.say("HSET h f 1");
    let watch =
        |node: &Node, key: &'static [u8]| Watched { db: 0, key, token: node.machine.watch_token(0, key) };
    let exec = |watched| Command::Transaction {
        db: 0,
        resp: Resp::Two,
        member: None,
        watched,
        commands: vec![words("INCR k"), words("SELECT 1"), words("GET k"), words("NOSUCH")],
    };
    let watched = vec![watch(&node, b"k"), watch(&node, b"h"), watch(&node, b"none")];
    let Reply::Array(replies) = node.answer(exec(watched)) else { panic!("nothing changed") };
    assert_eq!(replies[..3], [Reply::Int(2), Reply::OK, Reply::Nil]);
    assert!(replies[3].is_error());
    for change in ["SET k 7", "HINCRBY h f 1", "SET none x", "PEXPIRE k 5000"] {
        let watched = vec![watch(&node, b"k"), watch(&node, b"h"), watch(&node, b"none")];
        node.say(change);
        assert_eq!(node.answer(exec(watched)), Reply::NilArray, "{change}");
    }
}

#[cfg(feature = "scripts")]
#[test]
fn a_stopped_script_leaves_no_trace() {
    let mut node = Node::new();
    node.say("SET held alice PX 5000");
    node.say("RPUSH list a b");
    node.say("SET gone x");
    node.say("DEL gone");
    let (waiter, _) = node.acquire("held", "bob", 60_000);
    let (popper, _) = node.apply(redis("BLPOP empty 0"));
    let fence = node.fence("held");
    let body = "redis.call('del', 'held') redis.call('set', 'held', 'carol') redis.call('del', 'list')
        redis.call('set', 'new', 1) redis.call('hset', 'gone', 'f', 1) redis.call('rpush', 'empty', 'x')
        redis.call('publish', 'c', 'm') redis.call('flushall') redis.call('set', 'after', 1)
        while true do end";
    let (_, out) = node.apply(Command::Redis {
        db: 0,
        resp: Resp::Two,
        member: None,
        argv: [b"EVAL".as_slice(), body.as_bytes(), b"0"].into_iter().collect(),
    });
    assert!(out.replies[0].1.is_error());
    assert_eq!(out.replies.len(), 1, "nobody was served: {:?}", out.replies);
    assert!(out.events.is_empty() && out.published.is_empty(), "{:?}", out.events);
    assert_eq!(node.fence("held"), fence);
    assert_eq!(node.say("GET held"), Reply::bulk("alice"));
    assert_eq!(node.say("PTTL held"), Reply::Int(5_000));
    assert_eq!(node.say("LLEN list"), Reply::Int(2));
    assert_eq!(node.say("EXISTS new gone empty after"), Reply::Int(0));
    // And those who waited still do.
    let (_, out) = node.apply(redis("DEL held"));
    assert!(granted(&out, waiter).is_some());
    let (_, out) = node.apply(redis("RPUSH empty y"));
    assert!(out.replies.iter().any(|(id, _)| id.seq == popper));
}

#[test]
fn lock_commands_in_a_transaction_do_not_wait() {
    let mut node = Node::new();
    node.acquire("taken", "other", 0);
    let commands = [
        "LOCK.ACQUIRE free 1000 OWNER me WAIT 60000",
        "LOCK.ACQUIRE taken 1000 OWNER me WAIT 60000",
        "LOCK.MACQUIRE 2 free taken 1000 OWNER me WAIT 60000",
        "GET free",
        "LOCK.ACQUIRE unnamed 1000",
        "LOCK.ACQUIRE unnamed2 1000",
        "LOCK.SESSION OPEN 1000",
    ];
    let commands = commands.iter().map(|line| words(line)).collect();
    let reply =
        node.answer(Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands });
    let Reply::Array(replies) = reply else { panic!("{reply:?}") };
    assert!(matches!(replies[0], Reply::Granted { .. }), "{replies:?}");
    assert_eq!(replies[1..4], [Reply::Nil, Reply::Nil, Reply::bulk("me")]);
    assert!(matches!(replies[6], Reply::Error(_)), "{replies:?}");
    assert_ne!(node.owner("unnamed"), node.owner("unnamed2"), "each has an owner of its own");
    assert_eq!(node.machine.stats().waiters, 0);
}

/// The contract: `LOCK.*` commands that write are refused inside scripts; those that look see what the script has done.
#[cfg(feature = "scripts")]
#[test]
fn lock_commands_that_write_are_refused_in_scripts() {
    let mut node = Node::new();
    node.acquire("kept", "owner", 0);
    let fence = node.fence("kept");
    for call in [
        "'LOCK.ACQUIRE', 'a', 1000",
        "'LOCK.RELEASE', 'kept', '1'",
        "'LOCK.RENEW', 'kept', '1', 1000",
        "'LOCK.MACQUIRE', 2, 'a', 'c', 1000",
        "'LOCK.MRELEASE', 1, 'kept', '1'",
        "'LOCK.FORCERELEASE', 'kept'",
        "'LOCK.SESSION', 'OPEN', 1000",
    ] {
        let reply = node.eval(&format!("return redis.call({call})"), &[]);
        let refused = matches!(&reply, Reply::Error(refusal) if refusal.0.starts_with("ERR LOCK."));
        assert!(refused, "{call}: {reply:?}");
    }
    assert_eq!((node.fence("kept"), node.fence("a")), (fence, 0));
    assert_eq!(node.eval("return redis.call('LOCK.INFO', KEYS[1])[10]", &["kept"]), Reply::bulk("owner"));
    let reply = node.eval("redis.call('set', 'n', 'me') return redis.call('LOCK.INFO', 'n')[10]", &[]);
    assert_eq!(reply, Reply::bulk("me"));
    let reply = node.eval("redis.call('del', 'kept') return redis.call('LOCK.INFO', 'kept')[6]", &[]);
    assert_eq!(reply, Reply::bulk("free"));
    let reply = node.eval("return redis.call('LOCK.SCAN', 0)[2]", &[]);
    assert_eq!(reply, Reply::Array(vec![Reply::bulk("n")]));
}

/// A transaction with a script is run and logged as a whole.
#[cfg(feature = "scripts")]
#[test]
fn a_transaction_may_hold_scripts() {
    let mut node = Node::new();
    node.say("SET k 1");
    let exec = |lines: &[&'static str], watched| Command::Transaction {
        db: 0,
        resp: Resp::Two,
        member: None,
        watched,
        commands: lines.iter().map(|line| line.split('|').map(str::as_bytes).collect()).collect(),
    };
    let lines = &[
        "INCR|k",
        "EVAL|return redis.call('incr', KEYS[1])|1|k",
        "GET|k",
        "SELECT|1",
        "GET|k",
        "BLPOP|none|0",
        "SCRIPT|LOAD|return 7",
        "EVALSHA|f7a4e47e1b1dbc8fbd2c1b5a9e5d5b0c2f6c7d11|0",
        "LOCK.INFO|k",
    ];
    let Reply::Array(replies) = node.answer(exec(lines, vec![])) else { panic!("an array") };
    assert_eq!(
        replies[..6],
        [Reply::Int(2), Reply::Int(3), Reply::bulk("3"), Reply::OK, Reply::Nil, Reply::NilArray]
    );
    assert!(matches!(&replies[7], Reply::Error(refusal) if refusal.code() == "NOSCRIPT"), "{replies:?}");
    assert_eq!(node.say("GET k"), Reply::bulk("3"));
    // Watched keys are looked at when it runs.
    let token = node.machine.watch_token(0, b"k");
    let watched = |token| vec![redfence_core::machine::Watched { db: 0, key: b"k", token }];
    let lines = &["EVAL|return redis.call('incr', 'k')|0"];
    assert_eq!(node.answer(exec(lines, watched(token ^ 1))), Reply::NilArray);
    assert_eq!(node.answer(exec(lines, watched(token))), Reply::Array(vec![Reply::Int(4)]));
    // What scripts may not do, a transaction with one may not either: and nothing of it happens.
    let lines = &["SET|k|9", "EVAL|return 1|0", "LOCK.ACQUIRE|a|1000"];
    let reply = node.answer(exec(lines, vec![]));
    assert!(
        matches!(&reply, Reply::Error(refusal) if refusal.0.contains("LOCK.ACQUIRE and a script")),
        "{reply:?}"
    );
    let reply = node.answer(exec(&["SET|k|9", "EVAL|while true do end|0"], vec![]));
    assert!(matches!(&reply, Reply::Error(refusal) if refusal.0.contains("CPU time")), "{reply:?}");
    assert_eq!((node.say("GET k"), node.fence("a")), (Reply::bulk("4"), 0));
}

/// A script out of the log stops the node: only what the leader made of it is ever logged.
#[test]
fn a_raw_script_in_the_log_is_not_applied() {
    use redfence_core::machine::{EntryBuilder, EntryError};
    let eval = redis("EVAL return 0");
    let load = redis("SCRIPT LOAD x");
    let exec = Command::Transaction {
        db: 0,
        resp: Resp::Two,
        member: None,
        watched: vec![],
        commands: vec![words("SET k v"), words("EVALSHA 00 0")],
    };
    for command in [eval, load, exec] {
        let mut machine = Machine::new();
        let before = machine.state_hash();
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let mut entry = EntryBuilder::new(Stamp { term: 1, logical_ms: 10, wall_us: 10_000 });
        entry.push_batch(Origin { node: 1, incarnation: 1 }, 0, [(1, blob)]);
        let applied = machine.apply_entry(&entry.finish(), &mut Applied::default());
        assert_eq!(applied, Err(EntryError::Script { at: 0 }), "{command:?}");
        assert_eq!(machine.state_hash(), before);
    }
}

#[cfg(feature = "scripts")]
#[test]
fn two_nodes_fed_the_same_log_hold_the_same_state() {
    let log: &[&str] = &[
        "for i = 1, 300 do redis.call('hset', 'h', 'f' .. i * 7919 % 1000, i / 3) end return redis.call('hlen', 'h')",
        "local t = redis.call('hkeys', 'h') table.sort(t) for i, k in ipairs(t) do redis.call('zadd', 'z', i / 7, k) end",
        "for k, v in pairs({a = 1, b = 2, c = 3}) do redis.call('rpush', 'l', k .. v) end return redis.call('time')",
        "redis.call('set', 'half', string.format('%.17g %s', 0.1, 1 / 3)) error('half-way')",
        "redis.call('set', 'gone', 1) while true do end",
    ];
    let play = move || {
        let mut node = Node::new();
        for body in log {
            node.eval(body, &[]);
            node.now_ms += 7;
        }
        node.machine.state_hash()
    };
    let other = std::thread::spawn(play);
    assert_eq!(play(), other.join().expect("the other node"));
}

/// A machine whose entries are stamped with any wall clock, the logical one going on by itself.
fn say_at(node: &mut Node, wall_ms: u64, line: &str) -> Reply {
    node.now_ms += 10;
    node.seq += 1;
    let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: node.seq };
    let stamp = Stamp { term: 1, logical_ms: node.now_ms, wall_us: wall_ms * 1000 };
    let mut out = Applied::default();
    node.machine.apply(stamp, Some(id), redis(line), &mut out);
    out.replies.pop().expect("an answer").1
}

/// One leader's clock was a day ahead. It is repaired; from the next entry on absolute times mean what they say.
#[test]
fn a_wall_clock_that_was_a_day_ahead_does_no_lasting_harm() {
    const NOW_MS: u64 = 1_790_000_000_000;
    const DAY_MS: u64 = 86_400_000;
    let mut node = Node::new();
    say_at(&mut node, NOW_MS + DAY_MS, "SET ahead x");
    let ahead = node.fence("ahead");
    assert!(ahead >= (NOW_MS + DAY_MS) * 1000);

    let end_ms = NOW_MS + 10_000;
    assert_eq!(say_at(&mut node, NOW_MS, &format!("SET k A NX PXAT {end_ms}")), Reply::OK);
    assert_eq!(say_at(&mut node, NOW_MS, &format!("SET k B NX PXAT {end_ms}")), Reply::Nil, "two holders");
    assert!(node.fence("k") >= ahead, "fences never fall behind the clock they saw");
    let later_ms = NOW_MS + 20_000;
    assert_eq!(say_at(&mut node, NOW_MS, &format!("PEXPIREAT k {later_ms}")), Reply::Int(1));
    assert_eq!(say_at(&mut node, NOW_MS, "GET k"), Reply::bulk("A"), "an extension deleted the lock");
    assert_eq!(say_at(&mut node, NOW_MS, "PEXPIRETIME k"), Reply::Int(later_ms as i64 - 20));
    let seconds = later_ms / 1000;
    assert_eq!(say_at(&mut node, NOW_MS, &format!("EXPIREAT k {seconds}")), Reply::Int(1));
    assert_eq!(say_at(&mut node, NOW_MS, &format!("SET l A EXAT {seconds}")), Reply::OK);

    // Reads go by the newest entry's own clock and the time since, also after a restore.
    let restored = {
        node.machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| node.machine.snapshot_step(100)).collect();
        Machine::restore(&pieces).expect("a snapshot that was written can be read")
    };
    for machine in [&node.machine, &restored] {
        let read = |line: &str| machine.read_later(None, 0, Resp::Two, &words(line), 500);
        let time = Reply::Array(vec![Reply::bulk((NOW_MS / 1000).to_string()), Reply::bulk("500000")]);
        assert_eq!(read("TIME"), time);
        assert_eq!(read("PEXPIRETIME l"), Reply::Int(seconds as i64 * 1000));
        assert_eq!(read("EXPIRETIME k"), Reply::Int(seconds as i64));
    }
}
