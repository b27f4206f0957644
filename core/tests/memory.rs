//! `max-memory`, the limits on values, and the limits on replies: at the limit, one past it, and after a restore.

use redfence_core::grammar::convert::ConvertTo;
use redfence_core::keyspace::Resp;
use redfence_core::limits::{
    COLLECTION_BYTES_MAX, ELEMENT_OVERHEAD_BYTES, ENTRY_REPLIES_BYTES_MAX, LOGGED_REPLY_BYTES_MAX,
    READ_REPLY_BYTES_MAX, STRING_BYTES_MAX, WORD_BYTES_MAX,
};
use redfence_core::machine::settings::SettingsCommand;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Origin, RequestId, SessionId, Stamp};

const OOM: &str = "OOM command not allowed when used memory > 'max-memory'.";
const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

struct Node {
    machine: Machine,
    seq: u64,
    /// Of commands that waited.
    late: Vec<Reply>,
}

impl Node {
    fn new(max_memory: usize) -> Node {
        let mut node = Node { machine: Machine::new(), seq: 0, late: Vec::new() };
        let value = max_memory.to_string();
        let set = SettingsCommand::Set { name: b"max-memory", value: value.as_bytes() };
        assert_eq!(node.apply(Command::Settings(set)), Some(Reply::OK));
        node
    }

    fn stamp(&self) -> Stamp {
        Stamp { term: 1, logical_ms: self.seq, wall_us: 1_700_000_000_000_000 + self.seq }
    }

    fn apply(&mut self, command: Command<'_>) -> Option<Reply> {
        self.seq += 1;
        let mut out = Applied::default();
        let id = RequestId { origin: ORIGIN, seq: self.seq };
        self.machine.apply(self.stamp(), Some(id), command, &mut out);
        let mut own = None;
        for (of, reply) in out.replies {
            match of == id {
                true => own = Some(reply),
                false => self.late.push(reply),
            }
        }
        own
    }

    fn run(&mut self, argv: &[&[u8]]) -> Reply {
        let argv: Words<'_> = argv.iter().copied().collect();
        self.apply(Command::Redis { db: 0, resp: Resp::Two, member: None, argv }).expect("answered at once")
    }

    fn multi(&mut self, commands: &[&[&[u8]]]) -> Vec<Reply> {
        let commands = commands.iter().map(|argv| argv.iter().copied().collect()).collect();
        let transaction =
            Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: Vec::new(), commands };
        match self.apply(transaction) {
            Some(Reply::Array(replies)) => replies,
            other => panic!("{other:?}"),
        }
    }

    fn acquire(&mut self, name: &[u8], owner: &[u8], wait_ms: u64) -> Option<Reply> {
        let (resource, session) = (name, None);
        self.apply(Command::Acquire { db: 0, resource, ttl_ms: 1_000_000, wait_ms, owner, session })
    }

    fn used(&self) -> u64 {
        self.machine.memory_used_bytes()
    }

    /// Fills memory with plain keys until one more is refused.
    fn fill(&mut self) -> usize {
        for number in 0.. {
            if is_oom(&self.run(&[b"SET", format!("fill{number}").as_bytes(), &[b'v'; 10_000]])) {
                break;
            }
        }
        for number in 0.. {
            if is_oom(&self.run(&[b"SET", format!("small{number}").as_bytes(), b""])) {
                return number;
            }
        }
        unreachable!()
    }

    /// The state through a snapshot: the count of bytes is the same, and so is what is refused.
    fn restored(&mut self) -> Node {
        self.machine.check_invariants().unwrap();
        self.machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| self.machine.snapshot_step(1000)).collect();
        let machine = Machine::restore(&pieces).unwrap();
        assert_eq!(machine.memory_used_bytes(), self.used());
        assert_eq!(machine.state_hash(), self.machine.state_hash());
        Node { machine, seq: self.seq, late: Vec::new() }
    }
}

fn is_oom(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(refusal) if refusal.0 == OOM)
}

fn error(reply: &Reply) -> &str {
    match reply {
        Reply::Error(refusal) => &refusal.0,
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn what_would_grow_the_state_beyond_max_memory_is_oom_and_nothing_else_is() {
    let mut node = Node::new(1 << 20);
    node.run(&[b"RPUSH", b"list", b"item"]);
    assert!(matches!(node.acquire(b"lock", b"me", 0), Some(Reply::Granted { .. })));
    assert_eq!(node.acquire(b"lock", b"waiter", 1000), None, "queued");
    let open = Command::SessionOpen { id: SessionId(7), ttl_ms: 1_000_000, label: b"" };
    node.apply(open);
    node.fill();
    for mut node in [node.restored(), node] {
        assert!(node.used() <= (1 << 20) + 4096, "{} bytes", node.used());
        // What grows.
        assert!(is_oom(&node.run(&[b"SET", b"another", b"v"])));
        assert!(is_oom(&node.run(&[b"RPUSH", b"list", &[b'i'; 500]])));
        assert!(is_oom(&node.run(&[b"APPEND", b"fill0", &[b'i'; 500]])));
        assert!(is_oom(&node.run(&[b"MSET", b"fill1", b"x", b"new1", &[b'v'; 20_000]])));
        assert!(node.run(&[b"GET", b"fill1"]) == Reply::bulk([b'v'; 10_000]), "all or nothing");
        assert!(is_oom(&node.acquire(b"other", b"me", 0).unwrap()));
        assert!(is_oom(&node.acquire(b"lock", b"third", 1000).unwrap()));
        let open = Command::SessionOpen { id: SessionId(8), ttl_ms: 1000, label: b"" };
        assert!(is_oom(&node.apply(open).unwrap()));
        // Owner retries, renewals, hand-over, releases, deletions.
        let Some(Reply::Granted { fence, .. }) = node.acquire(b"lock", b"me", 0) else { panic!("a retry") };
        assert_eq!(node.acquire(b"lock", b"waiter", 1000), None, "a retry of one that is queued");
        let renew = Command::Renew { db: 0, resource: b"lock", fence, ttl_ms: 500 };
        assert_eq!(node.apply(renew), Some(Reply::Renewed { ttl_ms: 500 }));
        let keep_alive = Command::SessionKeepAlive { id: SessionId(7), own: false };
        assert_eq!(node.apply(keep_alive), Some(Reply::Int(1_000_000)));
        assert_eq!(node.run(&[b"SET", b"small0", b"", b"PX", b"100000"]), Reply::OK, "the value it has");
        assert_eq!(node.run(&[b"PEXPIRE", b"small0", b"100000"]), Reply::Int(1));
        assert_eq!(node.run(&[b"SET", b"fill2", b"shorter"]), Reply::OK);
        assert_eq!(node.run(&[b"LPOP", b"list"]), Reply::bulk("item"));
        let release = Command::Release { db: 0, resource: b"lock", fence };
        assert_eq!(node.apply(release), Some(Reply::Released));
        assert!(matches!(node.late[..], [Reply::Granted { fence: Fence(next), .. }, ..] if next > fence.0));
        // Room again.
        assert_eq!(node.run(&[b"DEL", b"fill3", b"fill4"]), Reply::Int(2));
        assert_eq!(node.run(&[b"SET", b"another", b"v"]), Reply::OK);
        node.restored();
    }
}

#[test]
fn records_of_free_locks_are_forgotten_oldest_first_before_anything_is_refused() {
    let mut node = Node::new(1 << 20);
    for number in 0..20_000 {
        let name = format!("once{number}");
        let Some(Reply::Granted { fence, .. }) = node.acquire(name.as_bytes(), b"me", 0) else {
            panic!("refused after {number}")
        };
        let release = Command::Release { db: 0, resource: name.as_bytes(), fence };
        assert_eq!(node.apply(release), Some(Reply::Released));
        assert!(node.used() <= (1 << 20) + 4096, "{} bytes", node.used());
    }
    assert!(node.machine.stats().idle_records > 100);
    // Idle records make room for keys too.
    assert!(node.fill() > 0);
    assert_eq!(node.machine.stats().idle_records, 0);
    node.restored();
}

#[test]
fn replies_are_remembered_up_to_a_limit_in_bytes() {
    let mut node = Node::new(1 << 30);
    node.run(&[b"SET", b"some", &[b'v'; 15_000]]);
    for _ in 0..3_000 {
        node.run(&[b"GETEX", b"some"]);
    }
    assert!(node.used() < 10 << 20, "{} bytes", node.used());
    node.restored();
}

/// At the limit, one past it, and after a restore, for every type.
#[test]
fn values_and_collections_have_limits_in_bytes() {
    let mut node = Node::new(1 << 30);
    let word = vec![b'w'; WORD_BYTES_MAX];
    for part in 0..STRING_BYTES_MAX / WORD_BYTES_MAX {
        let offset = (part * WORD_BYTES_MAX).to_string();
        node.run(&[b"SETRANGE", b"string", offset.as_bytes(), &word]);
    }
    let mut number = 0_u32;
    for (command, overhead) in [("RPUSH", 1), ("SADD", 1), ("HSET", 2), ("ZADD", 2)] {
        let key = format!("{command}-key");
        let overhead = overhead * ELEMENT_OVERHEAD_BYTES;
        let mut weight = 0;
        loop {
            // Elements of a size that fills the collection exactly.
            number += 1;
            let left = COLLECTION_BYTES_MAX - weight;
            let field = format!("{number:08}");
            let names = if command == "HSET" { field.len() } else { 0 };
            let size = (left - overhead - names).min(60_000);
            let size = if left - overhead - names - size < 2 * overhead + 16 {
                left - overhead - names
            } else {
                size
            };
            let mut element = vec![b'e'; size.min(64_000)];
            element[..8].copy_from_slice(field.as_bytes());
            let reply = match command {
                "HSET" => node.run(&[b"HSET", key.as_bytes(), field.as_bytes(), &element]),
                "ZADD" => node.run(&[b"ZADD", key.as_bytes(), b"1", &element]),
                _ => node.run(&[command.as_bytes(), key.as_bytes(), &element]),
            };
            assert!(matches!(reply, Reply::Int(_)), "{command}: {reply:?}");
            weight += element.len() + overhead + names;
            if weight == COLLECTION_BYTES_MAX {
                break;
            }
        }
    }
    for mut node in [node.restored(), node] {
        assert_eq!(node.run(&[b"APPEND", b"string", b""]), Reply::Int(STRING_BYTES_MAX as i64));
        assert!(error(&node.run(&[b"APPEND", b"string", b"x"])).starts_with("ERR string exceeds"));
        for (argv, len) in [
            (&[&b"RPUSH"[..], b"RPUSH-key", b""][..], "LLEN"),
            (&[b"SADD", b"SADD-key", b""], "SCARD"),
            (&[b"HSET", b"HSET-key", b"", b""], "HLEN"),
            (&[b"ZADD", b"ZADD-key", b"1", b""], "ZCARD"),
        ] {
            let before = node.run(&[len.as_bytes(), argv[1]]);
            assert!(error(&node.run(argv)).starts_with("ERR collection exceeds 16 MiB"), "{argv:?}");
            assert_eq!(node.run(&[len.as_bytes(), argv[1]]), before, "nothing changed");
        }
        // What does not grow it is no growth.
        assert!(node.run(&[b"SADD", b"SADD-key", b"x"]).is_error());
        assert_eq!(node.run(&[b"LSET", b"RPUSH-key", b"0", b"short"]), Reply::OK);
        assert_eq!(
            node.run(&[b"LMOVE", b"RPUSH-key", b"RPUSH-key", b"LEFT", b"RIGHT"]),
            Reply::bulk("short")
        );
        // A whole collection is more than a reply may show; parts of it are not.
        assert!(error(&node.machine.read(0, Resp::Two, &[b"HGETALL", b"HSET-key"])).contains("exceeds 8 MiB"));
        assert!(error(&node.machine.read(0, Resp::Two, &[b"LRANGE", b"RPUSH-key", b"0", b"-1"]))
            .contains("8 MiB"));
        assert!(!node.machine.read(0, Resp::Two, &[b"LRANGE", b"RPUSH-key", b"0", b"99"]).is_error());
        assert!(error(&node.run(&[b"LPOP", b"RPUSH-key", b"1000"])).contains("exceeds 2 MiB"));
        assert!(error(&node.run(&[b"SPOP", b"SADD-key", b"1000"])).contains("exceeds 2 MiB"));
        assert!(error(&node.run(&[b"ZPOPMIN", b"ZADD-key", b"1000"])).contains("exceeds 2 MiB"));
        node.restored();
    }
}

#[test]
fn a_move_without_room_loses_nothing() {
    let mut node = Node::new(1 << 20);
    node.run(&[b"RPUSH", b"from", b"a", b"b"]);
    node.run(&[b"SADD", b"set", b"a", b"b"]);
    node.fill();
    assert!(is_oom(&node.run(&[b"LMOVE", b"from", b"to", b"LEFT", b"LEFT"])));
    assert!(is_oom(&node.run(&[b"SMOVE", b"set", b"other", b"a"])));
    assert_eq!(node.run(&[b"LLEN", b"from"]), Reply::Int(2));
    assert_eq!(node.run(&[b"SCARD", b"set"]), Reply::Int(2));
}

/// `MULTI` with 12 × `MGET k k k …`: counted before anything is built, refused in its place, the rest goes on.
#[test]
fn replies_of_a_transaction_are_bounded_together() {
    let mut node = Node::new(1 << 30);
    for part in 0..STRING_BYTES_MAX / WORD_BYTES_MAX {
        let offset = (part * WORD_BYTES_MAX).to_string();
        node.run(&[b"SETRANGE", b"k", offset.as_bytes(), &[b'v'; WORD_BYTES_MAX]]);
    }
    let mut mget: Vec<&[u8]> = vec![b"MGET"];
    // Three of a megabyte each: more than a transaction may answer, and little enough work to be asked twelve times.
    mget.resize(1 + 3, b"k");
    let get: &[&[u8]] = &[b"GET", b"k"];
    let mut commands: Vec<&[&[u8]]> = vec![&mget; 12];
    commands.extend([get, get, &[b"GETDEL", b"k"], &[b"SET", b"x", b"y"], get]);
    let replies = node.multi(&commands);
    for reply in &replies[..12] {
        assert!(error(reply).starts_with("ERR reply exceeds 2 MiB"), "{reply:?}");
    }
    assert!(matches!(replies[12], Reply::Bulk(_)));
    assert!(
        error(&replies[13]).contains("2 MiB"),
        "two of them are more than 2 MiB with what is around them"
    );
    assert!(error(&replies[14]).contains("2 MiB"), "nothing is deleted that cannot be shown");
    assert_eq!(replies[15], Reply::OK);
    assert!(Reply::Array(replies).weight() <= LOGGED_REPLY_BYTES_MAX + 16 * 1024);
    assert_eq!(node.run(&[b"STRLEN", b"k"]), Reply::Int(STRING_BYTES_MAX as i64));
    mget.resize(1 + READ_REPLY_BYTES_MAX / STRING_BYTES_MAX, b"k");
    assert!(error(&node.machine.read(0, Resp::Two, &mget)).contains("exceeds 8 MiB"));
    mget.pop();
    assert!(!node.machine.read(0, Resp::Two, &mget).is_error());
}

/// Four thousand `GETEX` of a megabyte in one entry: their replies together are bounded, and what is refused did nothing.
#[test]
fn replies_of_one_entry_are_bounded_together() {
    let mut node = Node::new(1 << 30);
    for part in 0..STRING_BYTES_MAX / WORD_BYTES_MAX {
        let offset = (part * WORD_BYTES_MAX).to_string();
        node.run(&[b"SETRANGE", b"k", offset.as_bytes(), &[b'v'; WORD_BYTES_MAX]]);
    }
    let argv: Words<'_> = [&b"GETEX"[..], b"k"].into_iter().collect();
    let mut blob = Vec::new();
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv }.encode(&mut blob);
    let mut builder = EntryBuilder::new(node.stamp());
    builder.push_batch(ORIGIN, 0, (1..=4_000).map(|number| (node.seq + number, &blob)));
    let mut out = Applied::default();
    let _ = node.machine.apply_entry(&builder.finish(), &mut out);
    assert_eq!(out.replies.len(), 4_000);
    let bytes: usize = out.replies.iter().map(|(_, reply)| reply.weight()).sum();
    assert!(bytes < ENTRY_REPLIES_BYTES_MAX + 4_000 * 128, "{bytes} bytes");
    let shown = out.replies.iter().filter(|(_, reply)| matches!(reply, Reply::Bulk(_))).count();
    assert!(shown >= 31, "{shown}");
    assert!(error(&out.replies[3_999].1).starts_with("UNAVAILABLE"));
}

#[test]
fn kinds_at_max_memory() {
    let mut node = Node::new(1 << 20);
    node.apply(Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
    let shared = |names: &[&'static str], owner: &'static str, wait_ms: u64| Command::MAcquireShared {
        db: 0,
        resources: names.iter().map(|name| name.as_bytes()).collect(),
        ttl_ms: 1_000_000,
        wait_ms,
        owner: owner.as_bytes(),
        session: None,
    };
    let Some(Reply::Granted { fence, .. }) = node.acquire(b"writer", b"me", 0) else { panic!() };
    let Some(Reply::Granted { fence: taken, .. }) = node.acquire(b"b3", b"other", 0) else { panic!() };
    assert!(matches!(node.apply(shared(&["a1", "a2", "a3"], "reader", 0)), Some(Reply::GrantedMany { .. })));
    assert_eq!(node.apply(shared(&["b1", "b2", "b3"], "waiter", 900_000)), None, "queued");
    node.fill();
    for mut node in [node.restored(), node] {
        let convert =
            Command::Convert { db: 0, resource: b"writer", fence, to: ConvertTo::Shared, wait_ms: 0 };
        assert!(is_oom(&node.apply(convert).unwrap()), "a reader needs more than a writer");
        // Retries of who holds and of who waits.
        let again = node.apply(shared(&["a1", "a2", "a3"], "reader", 0));
        assert!(matches!(again, Some(Reply::GrantedMany { .. })), "{again:?}");
        assert_eq!(node.apply(shared(&["b1", "b2", "b3"], "waiter", 900_000)), None);
        // A hand-over needs no more than the waiter had.
        let before = node.used();
        node.late.clear();
        node.apply(Command::Release { db: 0, resource: b"b3", fence: taken });
        assert_eq!(node.late.len(), 2, "both requests of the waiter are answered");
        assert!(node.used() <= before + 1_024, "replies alone: {} after {before}", node.used());
        node.machine.check_invariants().unwrap();
    }
}
