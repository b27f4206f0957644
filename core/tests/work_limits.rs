//! Every logged command has a deterministic limit on its work, and says so before it changes anything. Work is counted, not timed.

use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::work::{WORK_FREE, WORK_PER_COMMAND_MAX, WORK_PER_ENTRY_MAX, WORK_PER_READ_MAX};
use redfence_core::machine::{Applied, Command, EntryBuilder, KeysWalk, Machine, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{LockKind, Origin, RequestId, Stamp};

const HERE: Origin = Origin { node: 1, incarnation: 1 };

struct Node {
    machine: Machine,
    seq: u64,
}

impl Node {
    fn new() -> Node {
        Node { machine: Machine::new(), seq: 0 }
    }

    /// At cluster version 2.
    fn second() -> Node {
        let mut node = Node::new();
        node.answer(Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
        assert_eq!(node.machine.cluster_version(), 2);
        node
    }

    fn stamp(&self) -> Stamp {
        Stamp { term: 1, logical_ms: 1_000, wall_us: 1_000_000 }
    }

    fn answer(&mut self, command: Command<'_>) -> (Reply, Applied) {
        self.seq += 1;
        let mut out = Applied::default();
        self.machine.apply(self.stamp(), Some(RequestId { origin: HERE, seq: self.seq }), command, &mut out);
        let reply = out.replies.pop().expect("an answer").1;
        (reply, out)
    }

    fn say(&mut self, line: &str) -> Reply {
        self.answer(redis(line)).0
    }

    /// A collection with so many elements.
    fn fill(&mut self, verb: &str, key: &str, count: usize) {
        let mut number = 0;
        while number < count {
            let mut line = format!("{verb} {key}");
            for _ in 0..500 {
                let element = format!("e{number:07}");
                line += &match verb {
                    "ZADD" => format!(" {number} {element}"),
                    "HSET" => format!(" {element} v"),
                    _ => format!(" {element}"),
                };
                number += 1;
            }
            let reply = self.say(&line);
            assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        }
    }

    /// The work of one command, and its answer.
    fn measured(&mut self, line: &str) -> (u64, Reply) {
        let before = self.machine.work_total();
        let reply = self.say(line);
        (self.machine.work_total() - before, reply)
    }
}

fn words(line: &str) -> Words<'_> {
    line.split(' ').map(str::as_bytes).collect()
}

fn redis(line: &str) -> Command<'_> {
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv: words(line) }
}

fn refusal(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Error(refusal) => Some(&refusal.0),
        _ => None,
    }
}

#[test]
fn a_logged_command_beyond_its_work_is_refused_and_changes_nothing() {
    let mut node = Node::new();
    node.fill("SADD", "set", 120_000);
    node.fill("ZADD", "zset", 120_000);
    node.fill("RPUSH", "list", 220_000);
    let hash = |node: &Node| node.machine.read(0, Resp::Two, &words("EXISTS dst"));
    for line in [
        "SUNIONSTORE dst set set",
        "SINTERSTORE dst set set set",
        "ZRANGESTORE dst zset 0 -1",
        "ZREMRANGEBYSCORE zset -inf +inf",
        "ZREMRANGEBYRANK zset 0 -1",
        "ZREMRANGEBYLEX zset - +",
        "ZPOPMIN zset 100000",
        "SPOP set 100000",
        "LREM list 0 nothing",
        "LINSERT list BEFORE nothing x",
        "LPOP list 200000",
    ] {
        let (work, reply) = node.measured(line);
        assert!(
            refusal(&reply).is_some_and(|text| text.starts_with("ERR") && text.contains("200000")),
            "{line}: {reply:?}"
        );
        assert!(work <= WORK_PER_COMMAND_MAX, "{line} took {work}");
        assert_eq!(hash(&node), Reply::Int(0), "{line}");
    }
    assert_eq!(node.say("SCARD set"), Reply::Int(120_000));
    assert_eq!(node.say("ZCARD zset"), Reply::Int(120_000));
    assert_eq!(node.say("LLEN list"), Reply::Int(220_000));
    // What stays within the limit works, and says what it took.
    let (work, reply) = node.measured("ZREMRANGEBYRANK zset 0 9999");
    assert_eq!(reply, Reply::Int(10_000));
    assert!((40_000..100_000).contains(&work), "{work}");
    let (work, _) = node.measured("ZRANGEBYSCORE zset -inf +inf LIMIT 0 1");
    assert!(work < 100, "a small look into a large set took {work}");
    for line in ["DEL set", "LTRIM list 0 100", "RENAME zset other", "COPY other again"] {
        assert!(refusal(&node.say(line)).is_none(), "{line}");
    }
}

#[test]
fn a_transaction_has_the_work_of_one_command() {
    let mut node = Node::new();
    node.fill("SADD", "set", 20_000);
    let commands: Vec<Words<'_>> = (0..1_000).map(|_| words("SUNIONSTORE dst set")).collect();
    let before = node.machine.work_total();
    let transaction =
        Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands };
    let Reply::Array(replies) = node.answer(transaction).0 else { panic!("no list") };
    assert!(node.machine.work_total() - before <= WORK_PER_COMMAND_MAX);
    assert_eq!(replies.len(), 1_000);
    assert_eq!(replies[0], Reply::Int(20_000));
    assert!(refusal(&replies[999]).is_some_and(|text| text.contains("one command or transaction")));
    // Too many words are refused before anything happens.
    let long = format!("SADD dst2{}", " x".repeat(1_000));
    let commands: Vec<Words<'_>> = (0..100).map(|_| words(&long)).collect();
    let transaction =
        Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands };
    assert!(refusal(&node.answer(transaction).0).is_some());
    assert_eq!(node.say("EXISTS dst2"), Reply::Int(0));
}

#[test]
fn copies_of_equal_collections_cannot_be_compared_without_end() {
    let mut node = Node::new();
    node.fill("SADD", "a", 50_000);
    node.say("COPY a b");
    let commands: Vec<Words<'_>> = (0..1_000).map(|_| words("COPY a b REPLACE")).collect();
    let before = node.machine.work_total();
    node.answer(Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands });
    assert!(node.machine.work_total() - before <= WORK_PER_COMMAND_MAX);
}

#[test]
fn the_commands_of_one_entry_share_a_budget_and_small_ones_never_wait_for_it() {
    let mut node = Node::new();
    node.fill("SADD", "set", 20_000);
    let mut entry = EntryBuilder::new(node.stamp());
    let mut blobs = Vec::new();
    for number in 0..100u64 {
        let line = if number % 2 == 0 { "SUNIONSTORE dst set" } else { "SET k v" };
        let mut blob = Vec::new();
        redis(line).encode(&mut blob);
        blobs.push((1_000 + number, blob));
    }
    entry.push_batch(HERE, 0, blobs);
    let before = node.machine.work_total();
    let mut out = Applied::default();
    let _ = node.machine.apply_entry(&entry.finish(), &mut out);
    let work = node.machine.work_total() - before;
    assert!(work <= WORK_PER_ENTRY_MAX + 100 * WORK_FREE, "{work}");
    let refused = |(id, reply): &&(RequestId, Reply)| {
        assert!(id.seq % 2 == 0 || refusal(reply).is_none(), "a small command was refused: {reply:?}");
        refusal(reply).is_some_and(|text| text.starts_with("UNAVAILABLE"))
    };
    assert!(out.replies.iter().filter(refused).count() > 30);
}

#[test]
fn reads_have_a_limit_too_and_keys_goes_in_slices() {
    let mut node = Node::new();
    for thousand in 0..45 {
        let mut line = String::from("MSET");
        for number in 0..1_000 {
            line += &format!(" k{} v", thousand * 1_000 + number);
        }
        assert_eq!(node.say(&line), Reply::OK);
    }
    node.fill("SADD", "set", 120_000);
    let read = |node: &Node, line: &str| {
        let before = node.machine.work_total();
        (node.machine.read(0, Resp::Two, &words(line)), node.machine.work_total() - before)
    };
    let (reply, work) = read(&node, "SUNION set set");
    assert!(refusal(&reply).is_some_and(|text| text.contains("400000")), "{reply:?}");
    assert!(work <= 2 * WORK_PER_READ_MAX, "{work}");
    assert!(read(&node, "DBSIZE").1 < 32, "a count is no walk");
    let Reply::Array(page) = read(&node, "SCAN 0 COUNT 1000000").0 else { panic!() };
    assert!(matches!(&page[1], Reply::Array(names) if names.len() <= 1_000));
    let argv = [bytes::Bytes::from_static(b"KEYS"), bytes::Bytes::from_static(b"k*")];
    let mut walk = KeysWalk::new(None, 0, &argv).expect("a walk");
    let mut slices = 1;
    let reply = loop {
        match walk.step(&node.machine) {
            Some(reply) => break reply,
            None => slices += 1,
        }
        // Other commands go on between the slices.
        node.say("SET between v");
    };
    assert!(slices >= 10, "{slices}");
    assert!(matches!(reply, Reply::Array(names) if names.len() == 45_000));
}

/// So many names of so many bytes, which differ in their last ones.
fn long_names(count: usize, len: usize) -> Vec<String> {
    (0..count).map(|number| format!("{}{number:04}", "x".repeat(len - 4))).collect()
}

fn transaction<'a>(lines: impl Iterator<Item = &'a str>) -> Command<'a> {
    let commands = lines.map(words).collect();
    Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: Vec::new(), commands }
}

#[test]
fn long_names_in_collections_cost_by_their_bytes() {
    let mut node = Node::second();
    let names = long_names(128, 2_048);
    node.say(&format!("SADD set {}", names.join(" ")));
    for (number, name) in names.iter().enumerate() {
        node.say(&format!("ZADD zset {} {name}", number % 2));
    }
    let all = vec!["set"; 1_022].join(" ");
    for line in [format!("SINTERSTORE d {all}"), format!("SUNIONSTORE d {all}"), format!("SINTER {all}")] {
        let (work, reply) = node.measured(&line);
        let verb = &line[..8];
        assert!(refusal(&reply).is_some_and(|text| text.contains("200000")), "{verb}: {reply:?}");
        assert!(work <= WORK_PER_COMMAND_MAX, "{verb} took {work}");
    }
    let read = node.machine.read(0, Resp::Two, &words(&format!("SINTER {all}")));
    assert!(refusal(&read).is_some(), "{read:?}");
    // Each name is compared with those before it, and the whole with what was there.
    for line in ["ZRANGESTORE e zset 0 -1", "COPY set c REPLACE", "ZREMRANGEBYRANK zset 0 -1"] {
        let (work, reply) = node.measured(line);
        assert_eq!(refusal(&reply), None, "{line}");
        if line.starts_with('Z') {
            assert!(work >= 128 * 64 * 2, "{line} took {work}");
        }
    }
    let (_, reply) = node.measured("COPY set c REPLACE");
    assert_eq!(reply, Reply::Int(1));
    let copies = transaction(std::iter::repeat_n("COPY set c REPLACE", 1_000));
    let Reply::Array(replies) = node.answer(copies).0 else {
        panic!("a transaction is answered by an array")
    };
    assert!(refusal(&replies[999]).is_some(), "1,000 copies of 256 KiB");
}

/// Names of everyday length are not felt: as many are compared as before.
#[test]
fn short_names_in_collections_cost_what_they_did() {
    let [before, now] = [Node::new(), Node::second()].map(|mut node| {
        node.fill("SADD", "set", 35_000);
        node.measured("SINTERSTORE d set set")
    });
    assert_eq!((&before.1, &now.1), (&Reply::Int(35_000), &Reply::Int(35_000)));
    // The first 128 are compared with all of them.
    assert!(now.0 - before.0 < 128, "{} against {}", now.0, before.0);
}

#[test]
fn what_was_done_before_it_was_refused_counts_in_a_transaction() {
    let mut node = Node::second();
    for name in long_names(16, 60_000) {
        node.say(&format!("SET {name} v"));
    }
    let line = format!("SCAN 0 MATCH *{}zz*", "?".repeat(1_000));
    let before = node.machine.work_total();
    let Reply::Array(replies) = node.answer(transaction(std::iter::repeat_n(&*line, 100))).0 else {
        panic!("a transaction is answered by an array")
    };
    assert!(replies[1..].iter().all(|reply| refusal(reply).is_some()), "{:?}", replies[1]);
    let work = node.machine.work_total() - before;
    // One slice that was allowed, and one that turned out to be too much.
    assert!(work < 2 * WORK_PER_COMMAND_MAX + 1_000, "{work} units");
}

#[test]
fn looks_at_locks_are_counted_in_a_transaction() {
    let mut node = Node::second();
    for number in 0..1_000 {
        let owner = format!("o{number}");
        node.answer(Command::AcquireWith {
            db: 0,
            resource: b"shared",
            ttl_ms: 60_000,
            wait_ms: 0,
            owner: owner.as_bytes(),
            session: None,
            kind: LockKind::Shared,
            value: &[b'v'; 64],
        });
    }
    for line in ["LOCK.INFO shared", "LOCK.SCAN 0 MATCH *a*b*c*d*e*f*g*h*i*j*"] {
        let before = node.machine.work_total();
        let Reply::Array(replies) = node.answer(transaction(std::iter::repeat_n(line, 1_000))).0 else {
            panic!("a transaction is answered by an array")
        };
        assert_eq!(refusal(&replies[0]), None, "{line}");
        let work = node.machine.work_total() - before;
        assert!(work <= WORK_PER_COMMAND_MAX + 1_000, "{line} took {work}");
        // By their bytes first, which are limited too.
        assert!(!line.starts_with("LOCK.INFO") || refusal(&replies[999]).is_some());
    }
}

#[test]
fn a_large_value_is_handed_out_to_be_dropped() {
    let mut node = Node::new();
    for end in ["DEL big", "SET big v", "RENAME other big", "FLUSHALL", "SDIFFSTORE big nothing"] {
        node.fill("SADD", "big", 10_000);
        node.say("SET other v");
        let (reply, out) = node.answer(redis(end));
        assert!(refusal(&reply).is_none(), "{end}: {reply:?}");
        assert_eq!(out.garbage.len(), 1, "{end}");
        node.say("DEL big");
    }
    node.say("RPUSH small a b c");
    assert!(node.answer(redis("DEL small")).1.garbage.is_empty());
}

/// `WATCH` of a thousand large values, and `EXEC`, look at none of their elements; each change of any kind changes the token.
#[test]
fn a_watched_key_is_known_by_its_version() {
    let mut node = Node::new();
    node.fill("HSET", "hash", 2_000);
    for change in [
        "HSET hash f 1",
        "HSET hash f 2",
        "HINCRBY hash f 1",
        "HDEL hash f",
        "PEXPIRE hash 50000",
        "PERSIST hash",
        "DEL hash",
        "RPUSH hash a",
        "RPUSH hash b",
        "LSET hash 0 c",
        "SET hash v",
        "APPEND hash w",
        "FLUSHALL",
    ] {
        let before = node.machine.watch_token(0, b"hash");
        node.say(change);
        let after = node.machine.watch_token(0, b"hash");
        assert_ne!(before, after, "{change}");
        // A look changes nothing.
        for look in ["HGET hash f", "GET hash", "EXISTS hash", "TTL hash"] {
            node.say(look);
        }
        assert_eq!(node.machine.watch_token(0, b"hash"), after, "{change}");
    }
    node.say("RPUSH list a");
    node.say("RPUSH list b");
    let token = node.machine.watch_token(0, b"list");
    node.machine.snapshot_begin();
    let mut pieces = Vec::new();
    while let Some(piece) = node.machine.snapshot_step(10) {
        pieces.push(piece);
    }
    let restored = Machine::restore(pieces).expect("a snapshot can be restored");
    assert_eq!(restored.watch_token(0, b"list"), token, "the same on every node");
    assert_eq!(restored.state_hash(), node.machine.state_hash());
}

/// A byte more on a long string copies all of it.
#[test]
fn long_strings_cost_by_their_bytes() {
    let mut node = Node::new();
    let long = "x".repeat(1_000_000);
    assert_eq!(node.say(&format!("SET long {long}")), Reply::OK);
    let commands: Vec<Words<'_>> = (0..1_000).map(|_| words("APPEND long y")).collect();
    let before = node.machine.work_total();
    let transaction =
        Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands };
    let Reply::Array(replies) = node.answer(transaction).0 else { panic!("no list") };
    assert!(node.machine.work_total() - before <= WORK_PER_COMMAND_MAX);
    let done = replies.iter().filter(|reply| matches!(reply, Reply::Int(_))).count();
    assert!((10..100).contains(&done), "{done} of them fit");
    assert_eq!(node.say("STRLEN long"), Reply::Int(1_000_000 + done as i64));
}

/// The limit on work may be reached anywhere within a command. Wherever that is: what is refused has changed nothing. `MSETNX` is a
/// multi-lock, and half of one would stand for ever.
#[test]
fn a_command_that_runs_out_of_work_midway_changes_nothing() {
    let (long, longer) = ("v".repeat(700), "w".repeat(900));
    let commands = [
        format!("MSETNX a {long} b {longer} c {long}"),
        format!("MSET a {long} s {longer} c {long}"),
        "LMOVE l m LEFT RIGHT".to_owned(),
        "RPOPLPUSH l m".to_owned(),
        "BLMOVE l m LEFT RIGHT 0".to_owned(),
        "SMOVE s t x".to_owned(),
        "RENAME l m".to_owned(),
        "COPY l m REPLACE".to_owned(),
    ];
    // A look through the list costs as much as it has items, and four units for each word. The last one leaves `left` units.
    const LENGTH: u64 = 5_000;
    let each = LENGTH + 4 * 3;
    let count = WORK_PER_COMMAND_MAX / each;
    let rest = WORK_PER_COMMAND_MAX - count * each - 4 * 5;
    for command in &commands {
        let (mut refused, mut done) = (0, 0);
        for left in 0..60 {
            let mut node = Node::new();
            node.fill("RPUSH", "big", LENGTH as usize);
            node.say("RPUSH l 1 2 3");
            node.say("RPUSH m 4");
            node.say("SADD s x y");
            node.say("SADD t z");
            let before = shown(&node.machine);
            let rest = format!("LPOS big nosuch MAXLEN {}", rest - left);
            let mut commands = vec![words("LPOS big nosuch"); count as usize];
            commands.extend([words(&rest), words(command)]);
            let (reply, _) = node.answer(Command::Transaction {
                db: 0,
                resp: Resp::Two,
                member: None,
                watched: Vec::new(),
                commands,
            });
            let Reply::Array(replies) = reply else { panic!("{command}: {reply:?}") };
            match replies.last().expect("an answer") {
                Reply::Error(refusal) => {
                    refused += 1;
                    assert_eq!(
                        shown(&node.machine),
                        before,
                        "{} with {left} left: {refusal:?}",
                        &command[..5]
                    );
                }
                _ => done += 1,
            }
        }
        assert!(refused > 0 && done > 0, "{}: {refused} refused, {done} done", &command[..5]);
    }
}

/// All keys with what they hold.
fn shown(machine: &Machine) -> Vec<Reply> {
    let look = |line: &str| machine.read(0, Resp::Two, &words(line));
    let strings = ["a", "b", "c"].map(|key| look(&format!("GET {key}")));
    let lists = ["l", "m"].map(|key| look(&format!("LRANGE {key} 0 -1")));
    let sets = ["s", "t"].map(|key| look(&format!("SMEMBERS {key}")));
    [&strings[..], &lists, &sets].concat()
}
