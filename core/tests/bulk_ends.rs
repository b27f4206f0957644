//! Bulk ends are spread over entries: many expiries at one instant, flushes, lost nodes, dead sessions, herds of blocked clients.
//! What is asserted is counted work, never time.

use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, EntryBuilder, Limits, Machine, Query, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{Origin, Reason, RequestId, SessionId, SessionScope, Stamp};

struct Node {
    machine: Machine,
    now_ms: u64,
    seq: u64,
}

const HERE: Origin = Origin { node: 1, incarnation: 1 };
const LOST: Origin = Origin { node: 2, incarnation: 1 };

impl Node {
    fn new() -> Node {
        Node { machine: Machine::new(), now_ms: 1_000, seq: 0 }
    }

    fn apply_from(&mut self, origin: Origin, command: Command<'_>) -> Vec<(RequestId, Reply)> {
        self.seq += 1;
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us: self.now_ms * 1000 };
        let mut out = Applied::default();
        self.machine.apply(stamp, Some(RequestId { origin, seq: self.seq }), command, &mut out);
        out.replies
    }

    /// The command's own answer; `Nil` where it waits.
    fn answer(&mut self, command: Command<'_>) -> Reply {
        let replies = self.apply_from(HERE, command);
        let own = |(id, reply)| (id == RequestId { origin: HERE, seq: self.seq }).then_some(reply);
        replies.into_iter().find_map(own).unwrap_or(Reply::Nil)
    }

    fn say(&mut self, line: &str) -> Reply {
        self.answer(redis(line))
    }

    fn acquire(&mut self, name: &str, ttl_ms: u64, wait_ms: u64) -> Reply {
        self.answer(acquire(name, "me", ttl_ms, wait_ms))
    }

    fn tick(&mut self) {
        self.apply_from(HERE, Command::Expire { idle_ms: u64::MAX });
    }

    fn read(&self, line: &str) -> Reply {
        self.machine.read(0, Resp::Two, &words(line))
    }

    fn is_held(&self, name: &str) -> bool {
        match self.machine.query(Query::Info {
            db: 0,
            resource: name.as_bytes(),
            sessions: SessionScope::All,
        }) {
            Reply::Info(info) => info.held,
            other => panic!("{other:?}"),
        }
    }

    /// Entries until nothing is left to do, each of which ends no more than `most` locks. Answers how many there were.
    fn settle(&mut self, most: u64) -> usize {
        let mut entries = 0;
        while self.machine.next_due_ms().is_some_and(|at_ms| at_ms <= self.now_ms) {
            let before = self.ended();
            self.tick();
            assert!(self.ended() - before <= most, "one entry ended {} locks", self.ended() - before);
            entries += 1;
            assert!(entries < 10_000, "it never ends");
        }
        self.machine.check_invariants().expect("the invariants hold");
        entries
    }

    fn ended(&self) -> u64 {
        self.machine.stats().expiries + self.machine.stats().releases
    }

    fn restored(&mut self) -> Machine {
        self.machine.snapshot_begin();
        let mut pieces = Vec::new();
        while let Some(piece) = self.machine.snapshot_step(100_000) {
            pieces.push(piece);
        }
        Machine::restore(pieces).expect("a snapshot can be restored")
    }
}

fn words(line: &str) -> Words<'_> {
    line.split(' ').map(str::as_bytes).collect()
}

fn redis(line: &str) -> Command<'_> {
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv: words(line) }
}

fn acquire<'a>(name: &'a str, owner: &'a str, ttl_ms: u64, wait_ms: u64) -> Command<'a> {
    let (resource, owner) = (name.as_bytes(), owner.as_bytes());
    Command::Acquire { db: 0, resource, ttl_ms, wait_ms, owner, session: None }
}

fn is_grant(reply: &Reply) -> bool {
    matches!(reply, Reply::Granted { .. })
}

#[test]
fn locks_that_expire_in_one_millisecond_end_over_many_entries() {
    let mut node = Node::new();
    for number in 0..30_000 {
        assert!(is_grant(&node.acquire(&format!("lock{number}"), 5_000, 0)));
    }
    node.now_ms += 5_001;
    let most = Limits::default().due_per_entry_max as u64 + 1;
    let before = node.ended();
    assert!(
        is_grant(&node.answer(acquire("lock29999", "other", 60_000, 0))),
        "served although others are due"
    );
    assert!(node.ended() - before <= most);
    assert!(!node.is_held("lock29998"), "past its deadline, whether worked off or not");
    assert_eq!(node.read("GET lock29998"), Reply::Nil);
    assert_eq!(node.say("SET lock29997 plain NX"), Reply::OK);
    assert_eq!(node.say("GET lock29997"), Reply::bulk("plain"));
    assert!(node.settle(most) >= 4);
    assert_eq!(node.machine.stats().locks_held, 2);
}

#[test]
fn a_plain_command_pays_only_for_the_keys_it_names() {
    let mut node = Node::new();
    for number in 0..20_000 {
        node.say(&format!("SET key{number} v PX 5000"));
    }
    node.now_ms += 5_001;
    let before = node.ended();
    assert_eq!(node.say("DEL key19999"), Reply::Int(0));
    assert!(node.ended() - before <= Limits::default().due_per_entry_max as u64 + 1);
    assert_eq!(node.read("EXISTS key19998"), Reply::Int(0));
}

#[test]
fn a_waiter_that_had_time_when_the_lock_ended_gets_it_from_whoever_touches_it() {
    let mut node = Node::new();
    for number in 0..10_000 {
        node.acquire(&format!("early{number}"), 1_000, 0);
    }
    node.acquire("lock", 2_000, 0);
    node.apply_from(LOST, acquire("lock", "waiter", 60_000, 2_500));
    // One entry moves the clock past the lock's end and past the waiter's time; the first entries work off the early ones.
    node.now_ms += 3_000;
    let replies = node.apply_from(HERE, acquire("lock", "third", 1_000, 0));
    let told: Vec<bool> = replies.iter().map(|(_, reply)| is_grant(reply)).collect();
    assert_eq!(told, [true, false], "the waiter was first: {replies:?}");
}

#[test]
fn a_flush_is_seen_at_once_and_swept_over_entries() {
    let mut node = Node::new();
    for number in 0..20_000 {
        node.say(&format!("SET key{number} v"));
    }
    node.apply_from(HERE, acquire("key19000", "waiter", 60_000, 60_000));
    let before = node.ended();
    assert_eq!(node.say("FLUSHALL"), Reply::OK);
    assert!(node.ended() - before <= 4_096, "one entry ended {}", node.ended() - before);
    assert_eq!(node.read("DBSIZE"), Reply::Int(0));
    assert_eq!(node.read("KEYS *"), Reply::Array(vec![]));
    assert_eq!(node.read("GET key18000"), Reply::Nil);
    assert!(!node.is_held("key18000"));
    assert_eq!(node.say("SET key18000 new NX"), Reply::OK);
    assert_eq!(node.say("SET key17999 new"), Reply::OK);
    assert_eq!(node.read("DBSIZE"), Reply::Int(2));
    let mut other = node.restored();
    assert_eq!(other.state_hash(), node.machine.state_hash());
    std::mem::swap(&mut other, &mut node.machine);
    assert!(node.settle(4_096) >= 4, "it goes on from where the snapshot was taken");
    assert_eq!(node.machine.stats().locks_held, 3, "the two new ones and the waiter's");
    assert_eq!(node.read("GET key19000"), Reply::bulk("waiter"));
    assert_eq!(node.read("DBSIZE"), Reply::Int(3));
}

/// A flush is no release by the holder.
#[test]
fn a_flushed_lock_has_expired_for_its_holder() {
    for touched_before in [false, true] {
        let mut node = Node::new();
        let Reply::Granted { fence, .. } = node.acquire("lock", 60_000, 0) else { panic!("a free lock") };
        node.say("FLUSHALL");
        if touched_before {
            node.settle(4_096);
        }
        let reply = node.answer(Command::Release { db: 0, resource: b"lock", fence });
        assert_eq!(reply, Reply::Refused(Reason::Expired), "swept: {touched_before}");
    }
}

#[test]
fn flushes_again_and_again_confuse_nobody() {
    let mut node = Node::new();
    for number in 0..6_000 {
        node.say(&format!("SET old{number} v"));
    }
    for round in 0..300 {
        node.say(&format!("SET new{round} v"));
        node.say("FLUSHDB");
        assert_eq!(node.read("DBSIZE"), Reply::Int(0), "round {round}");
        assert_eq!(node.say("EXISTS old5999"), Reply::Int(0));
    }
    node.settle(4_096);
    assert_eq!(node.machine.stats().locks_held, 0);
}

#[test]
fn a_flush_inside_a_transaction_frees_what_comes_after_it() {
    let mut node = Node::new();
    for number in 0..6_000 {
        node.say(&format!("SET key{number} v"));
    }
    let commands = vec![words("FLUSHDB"), words("SET key5999 w NX"), words("GET key5998"), words("DBSIZE")];
    let reply =
        node.answer(Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands });
    assert_eq!(reply, Reply::Array(vec![Reply::OK, Reply::OK, Reply::Nil, Reply::Int(1)]));
    node.settle(4_096);
    assert_eq!(node.read("GET key5999"), Reply::bulk("w"));
}

#[test]
fn waiters_of_a_lost_node_leave_over_entries_and_are_never_granted() {
    let mut node = Node::new();
    let locks = 2_000;
    for lock in 0..locks {
        node.acquire(&format!("lock{lock}"), 3_600_000, 0);
        for waiter in 0..5 {
            node.apply_from(LOST, acquire(&format!("lock{lock}"), &format!("lost{waiter}"), 60_000, 600_000));
        }
    }
    let last = format!("lock{}", locks - 1);
    node.answer(acquire(&last, "here", 60_000, 600_000));
    let before = node.machine.stats().waiters;
    node.apply_from(HERE, Command::OriginGone { origin: LOST });
    let left = node.machine.stats().waiters;
    assert!(before - left <= 4_096 && left > 1, "{left} of {before} are left");
    match node.machine.query(Query::Queue { db: 0, resource: last.as_bytes() }) {
        Reply::Array(rows) => assert_eq!(rows.len(), 1, "lost waiters are not shown"),
        other => panic!("{other:?}"),
    }
    let Reply::Info(info) =
        node.machine.query(Query::Info { db: 0, resource: last.as_bytes(), sessions: SessionScope::All })
    else {
        panic!()
    };
    let release = Command::Release { db: 0, resource: last.as_bytes(), fence: info.fence };
    let replies = node.apply_from(HERE, release);
    assert!(replies.iter().any(|(id, reply)| id.origin == HERE && is_grant(reply)), "{replies:?}");
    assert!(replies.iter().all(|(id, _)| id.origin == HERE));
    node.settle(4_096);
    assert_eq!(node.machine.stats().waiters, 0);
}

#[test]
fn a_herd_of_blocked_clients_is_served_over_entries() {
    let mut node = Node::new();
    let herd = 10_000;
    for number in 0..herd {
        let origin = if number % 10 == 0 { LOST } else { HERE };
        node.apply_from(origin, redis("BZPOPMIN key 0"));
    }
    let replies = node.apply_from(HERE, redis("RPUSH key a"));
    assert!(replies.len() <= Limits::default().due_per_entry_max + 1, "{} at once", replies.len());
    let mut answered = replies.len() - 1;
    let mut other = node.restored();
    assert_eq!(other.state_hash(), node.machine.state_hash());
    while node.machine.next_due_ms().is_some() {
        let replies = node.apply_from(HERE, Command::Expire { idle_ms: u64::MAX });
        answered += replies.len() - 1;
    }
    assert_eq!(answered, herd);
    other.check_invariants().expect("the restored one is whole");
    let stamp = other.stamp();
    let mut out = Applied::default();
    other.apply(stamp, None, Command::Expire { idle_ms: u64::MAX }, &mut out);
    assert!(!out.replies.is_empty(), "it goes on where the other was");
}

#[test]
fn a_session_has_ten_thousand_locks_at_most_and_dead_ones_end_over_entries() {
    let mut node = Node::new();
    for session in 1..=3 {
        let open = Command::SessionOpen { id: SessionId(session), ttl_ms: 60_000, label: b"" };
        assert!(!matches!(node.answer(open), Reply::Error(_)));
        for number in 0..10_001 {
            let (name, owner) = (format!("s{session}:{number}"), format!("o{session}:{number}"));
            let (resource, owner) = (name.as_bytes(), owner.as_bytes());
            let session = Some(SessionId(session));
            let terms = Command::Acquire { db: 0, resource, ttl_ms: 0, wait_ms: 0, owner, session };
            match node.answer(terms) {
                Reply::Granted { .. } => assert!(number < 10_000),
                Reply::Error(refusal) => {
                    assert!(
                        number == 10_000 && refusal.code() == "OOM" && refusal.0.contains("10000"),
                        "{refusal:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
    node.now_ms += 60_001;
    let most = Limits::default().due_per_entry_max as u64 + 1;
    let before = node.ended();
    assert!(is_grant(&node.acquire("s3:9999", 5_000, 0)), "its session is over");
    assert!(node.ended() - before <= most, "one entry ended {}", node.ended() - before);
    assert!(node.settle(most) >= 6);
    assert_eq!(node.machine.stats().locks_held, 1);
    assert_eq!(node.machine.stats().sessions, 0);
}

#[test]
fn sessions_closed_together_end_over_entries() {
    let mut node = Node::new();
    for session in 1..=4 {
        node.answer(Command::SessionOpen { id: SessionId(session), ttl_ms: 600_000, label: b"" });
        for number in 0..8_000 {
            let name = format!("s{session}:{number}");
            let (resource, session) = (name.as_bytes(), Some(SessionId(session)));
            node.answer(Command::Acquire {
                db: 0,
                resource,
                ttl_ms: 0,
                wait_ms: 0,
                owner: resource,
                session,
            });
        }
    }
    let mut entry =
        EntryBuilder::new(Stamp { term: 1, logical_ms: node.now_ms, wall_us: node.now_ms * 1000 });
    let blobs = (1..=4).map(|session| {
        let mut blob = Vec::new();
        Command::SessionClose { id: SessionId(session), any_user: false }.encode(&mut blob);
        (1_000_000 + session, blob)
    });
    entry.push_batch(HERE, 0, blobs.collect::<Vec<_>>());
    let before = node.ended();
    let mut out = Applied::default();
    let _ = node.machine.apply_entry(&entry.finish(), &mut out);
    assert!(node.ended() - before <= 16_384, "one entry ended {}", node.ended() - before);
    assert!(out.replies.iter().all(|(_, reply)| *reply == Reply::Int(8_000)), "{:?}", out.replies);
    assert!(!node.is_held("s4:7999"), "its session is closed");
    node.seq += 2_000_000;
    assert!(is_grant(&node.acquire("s4:7998", 5_000, 0)));
    node.settle(5_000);
    assert_eq!((node.machine.stats().locks_held, node.machine.stats().sessions), (1, 0));
}

/// A multi-lock stands first at many locks. When another leaves them all, it is looked at once, not once for each lock.
#[test]
fn those_who_wait_for_the_same_many_locks_leave_without_looking_at_all_pairs() {
    const NAMES: usize = 256;
    const WAITERS: u64 = 100;
    let mut node = Node::new();
    let names: Vec<String> = (0..NAMES).map(|number| format!("r{number:03}")).collect();
    // All free but the last.
    node.acquire(&names[NAMES - 1], 100_000, 0);
    for number in 0..WAITERS {
        let owner = format!("waiter{number}");
        let resources = names.iter().map(|name| name.as_bytes()).collect();
        let (db, ttl_ms, wait_ms, session) = (0, 1_000, 5_000, None);
        node.answer(Command::MAcquire { db, resources, ttl_ms, wait_ms, owner: owner.as_bytes(), session });
    }
    let before = node.machine.work_total();
    node.now_ms += 6_000;
    node.tick();
    let looks = node.machine.work_total() - before;
    assert_eq!(node.machine.stats().waiters, 0);
    assert!(looks <= 2 * WAITERS * NAMES as u64, "{looks} looks");
    assert!(is_grant(&node.acquire(&names[0], 1_000, 0)));
}

#[test]
fn clients_blocked_on_many_keys_time_out_over_entries() {
    for (version, entries) in [(1, 1), (2, 2)] {
        let mut node = Node::new();
        if version == 2 {
            node.answer(Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
        }
        let keys: Vec<String> = (0..1_000).map(|number| format!("k{number}")).collect();
        for _ in 0..100 {
            assert_eq!(node.say(&format!("BLPOP {} 1", keys.join(" "))), Reply::Nil);
        }
        node.now_ms += 2_000;
        let mut timed_out = 0;
        for entry in 1..=entries {
            let replies = node.apply_from(HERE, Command::Expire { idle_ms: u64::MAX });
            timed_out += replies.iter().filter(|(_, reply)| *reply == Reply::NilArray).count();
            assert_eq!(timed_out == 100, entry == entries, "version {version}, entry {entry}: {timed_out}");
        }
    }
}
