//! Walks over all keys as a user meets them: `SCAN` counts what it shows, `KEYS` answers by name, `INFO` counts keys. Logged commands
//! of cluster version 1 answer as release 1 did.

use bytes::Bytes;
use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, KeysWalk, Machine, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{Origin, RequestId, Stamp};

struct Node {
    machine: Machine,
    seq: u64,
}

impl Node {
    /// At cluster version 1.
    fn new() -> Node {
        Node { machine: Machine::new(), seq: 0 }
    }

    fn raised() -> Node {
        let mut node = Node::new();
        node.apply(Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
        assert_eq!(node.machine.cluster_version(), 2);
        node
    }

    fn apply(&mut self, command: Command<'_>) -> Option<Reply> {
        self.seq += 1;
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.seq };
        let stamp = Stamp { term: 1, logical_ms: 1_000, wall_us: 1_000_000 };
        let mut out = Applied::default();
        self.machine.apply(stamp, Some(id), command, &mut out);
        out.replies.pop().map(|(_, reply)| reply)
    }

    /// Through the log.
    fn say(&mut self, line: &str) -> Reply {
        self.say_in(0, line)
    }

    fn say_in(&mut self, db: u32, line: &str) -> Reply {
        self.apply(Command::Redis { db, resp: Resp::Two, member: None, argv: words(line) })
            .expect("an answer")
    }

    fn read(&self, line: &str) -> Reply {
        self.machine.read(0, Resp::Two, &words(line))
    }

    /// Keys that are gone: their records stay for their fences.
    fn leave_records(&mut self, count: usize) {
        for number in 0..count {
            self.say(&format!("SET once{number} v"));
            self.say(&format!("DEL once{number}"));
        }
    }

    fn keys_walk(&self, pattern: &'static str) -> Vec<String> {
        let argv = [Bytes::from_static(b"KEYS"), Bytes::from_static(pattern.as_bytes())];
        let mut walk = KeysWalk::new(None, 0, &argv).expect("a walk");
        loop {
            if let Some(reply) = walk.step(&self.machine) {
                return names(&reply);
            }
        }
    }
}

fn words(line: &str) -> Words<'_> {
    line.split(' ').map(str::as_bytes).collect()
}

fn names(reply: &Reply) -> Vec<String> {
    let Reply::Array(names) = reply else { panic!("{reply:?}") };
    names.iter().map(text).collect()
}

fn text(reply: &Reply) -> String {
    let Reply::Bulk(bytes) = reply else { panic!("{reply:?}") };
    String::from_utf8_lossy(bytes).into_owned()
}

fn page(reply: &Reply) -> (String, Vec<String>) {
    match reply {
        Reply::Array(parts) if parts.len() == 2 => (text(&parts[0]), names(&parts[1])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn scan_does_not_count_keys_that_are_gone() {
    let mut node = Node::new();
    node.leave_records(300);
    assert_eq!(page(&node.read("SCAN 0")), ("0".into(), vec![]));
    node.say("SET last v");
    assert_eq!(page(&node.read("SCAN 0")), ("0".into(), vec!["last".into()]));
    // Nor what is in another database, or not looked for.
    for number in 0..300 {
        node.say_in(1, &format!("SET other{number} v"));
        node.say(&format!("RPUSH list{number} v"));
    }
    assert_eq!(page(&node.read("SCAN 0 TYPE string")), ("0".into(), vec!["last".into()]));
    assert_eq!(page(&node.read("SCAN 0 MATCH l*t COUNT 2")), ("0".into(), vec!["last".into()]));
}

#[test]
fn scan_shows_as_many_as_asked_for_and_every_key_once() {
    let mut node = Node::new();
    for number in 0..100 {
        node.say(&format!("SET key{number:03} v"));
        node.say(&format!("SET once{number} v"));
        node.say(&format!("DEL once{number}"));
    }
    for count in [1, 7, 16, 17, 99, 100, 1_000] {
        let (mut cursor, mut found) = ("0".to_string(), Vec::new());
        loop {
            let (next, names) = page(&node.read(&format!("SCAN {cursor} COUNT {count}")));
            assert!(names.len() == count || next == "0", "{} of {count} from {cursor}", names.len());
            found.extend(names);
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        found.sort();
        let all: Vec<String> = (0..100).map(|number| format!("key{number:03}")).collect();
        assert_eq!(found, all, "by {count}");
    }
}

#[test]
fn a_scan_looks_at_a_bounded_number_of_records() {
    let mut node = Node::new();
    node.leave_records(25_000);
    node.say("SET last v");
    let (mut cursor, mut calls) = ("0".to_string(), 0);
    loop {
        let before = node.machine.work_total();
        let (next, found) = page(&node.read(&format!("SCAN {cursor}")));
        let work = node.machine.work_total() - before;
        assert!(work < 25_000, "{work} units for one call");
        calls += 1;
        cursor = next;
        if !found.is_empty() || cursor == "0" {
            assert_eq!(found, ["last"]);
            break;
        }
    }
    assert!((2..=3).contains(&calls), "{calls} calls");
}

#[test]
fn lock_scan_passes_over_idle_records() {
    let mut node = Node::raised();
    node.leave_records(300);
    node.say("SET last v");
    let query = |cursor| redfence_core::machine::Query::Scan { db: 0, cursor, pattern: None, count: 10 };
    assert_eq!(page(&node.machine.query(query(0))), ("0".into(), vec!["last".into()]));
}

#[test]
fn a_logged_scan_answers_by_its_cluster_version() {
    for (mut node, cursor) in [(Node::new(), "10"), (Node::raised(), "0")] {
        node.leave_records(300);
        assert_eq!(page(&node.say("SCAN 0")), (cursor.into(), vec![]));
        node.say("SET b v");
        node.say("SET a v");
        let version = node.machine.cluster_version();
        let expected = if version == 1 { ["b", "a"] } else { ["a", "b"] };
        assert_eq!(names(&node.say("KEYS *")), expected, "at version {version}");
    }
}

#[test]
fn keys_answers_by_name() {
    let mut node = Node::new();
    for name in ["pear", "apple", "fig", "once", "cherry"] {
        node.say(&format!("SET {name} v"));
    }
    node.say("DEL once");
    node.say("SET banana v");
    assert_eq!(node.keys_walk("*"), ["apple", "banana", "cherry", "fig", "pear"]);
    assert_eq!(node.keys_walk("*e*"), ["apple", "cherry", "pear"]);
    assert_eq!(names(&node.read("KEYS *e*")), ["apple", "cherry", "pear"]);
}

#[test]
fn keys_and_those_with_a_deadline_are_counted_by_database() {
    let mut node = Node::raised();
    let counts = |node: &Node, db: usize| {
        let stats = node.machine.stats().databases[db];
        (stats.keys, stats.expires)
    };
    node.say("SET a v");
    node.say("SET b v PX 1000");
    node.say("RPUSH c v");
    node.say_in(3, "SET a v PX 1000");
    assert_eq!((counts(&node, 0), counts(&node, 3), counts(&node, 1)), ((3, 1), (1, 1), (0, 0)));
    node.say("PEXPIRE c 1000");
    node.say("PEXPIRE c 2000");
    assert_eq!(counts(&node, 0), (3, 2));
    node.say("PERSIST b");
    assert_eq!(counts(&node, 0), (3, 1));
    node.say("DEL c");
    assert_eq!(counts(&node, 0), (2, 0));
    node.say_in(3, "FLUSHDB");
    assert_eq!(counts(&node, 3), (0, 0));
    node.say("FLUSHALL");
    assert_eq!(counts(&node, 0), (0, 0));
}

/// The reply of a transaction is replicated: at version 1 it is that of release 1.
#[test]
fn a_transaction_takes_a_large_count_from_version_2_on() {
    let scan = |mut node: Node| {
        let commands = vec![words("LOCK.SCAN 0 COUNT 20000")];
        let member = None;
        let replies =
            node.apply(Command::Transaction { db: 0, resp: Resp::Two, member, watched: vec![], commands });
        match replies {
            Some(Reply::Array(mut replies)) => replies.pop().expect("one reply"),
            other => panic!("{other:?}"),
        }
    };
    let Reply::Error(refusal) = scan(Node::new()) else { panic!("it was taken") };
    assert_eq!(refusal.0, "ERR COUNT must be an integer from 1 to 10000");
    assert!(!matches!(scan(Node::raised()), Reply::Error(_)));
}
