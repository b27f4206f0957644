//! Shared locks, permits and conversions where a golden script cannot go: transactions, plain keys, many holders, losses.

use redfence_core::grammar;
use redfence_core::keyspace::Resp;
use redfence_core::machine::request::{work, MachineWork, RequestContext};
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, EntryBuilder, Limits, Loss, Machine, Query, Wanted, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{
    Fence, LockKind, LossCause, Origin, RequestId, SessionId, SessionPolicy, SessionScope, Stamp,
};

const ORIGIN: Origin = Origin { node: 1, incarnation: 1 };

struct Node {
    machine: Machine,
    now_ms: u64,
    seq: u64,
    /// Of the entry applied last.
    replies: Vec<(u64, Reply)>,
    losses: Vec<Loss>,
}

impl Node {
    fn new() -> Node {
        Node::with_limits(Limits::default())
    }

    fn with_limits(limits: Limits) -> Node {
        let machine = Machine::with_limits(limits);
        let mut node = Node { machine, now_ms: 1_000, seq: 0, replies: Vec::new(), losses: Vec::new() };
        node.machine.set_wanted(Wanted::ALL);
        node.apply(&[Command::Upgrade(UpgradeCommand::Raise { to: 2 })]);
        node
    }

    /// One entry. Answers the reply to its last command, if it has one yet.
    fn apply(&mut self, commands: &[Command<'_>]) -> Option<Reply> {
        let wall_us = 1_700_000_000_000_000 + self.now_ms * 1_000;
        let stamp = Stamp { term: 1, logical_ms: self.now_ms, wall_us };
        let mut entry = EntryBuilder::for_version(self.machine.cluster_version(), stamp);
        let mut blobs = Vec::new();
        for command in commands {
            self.seq += 1;
            let mut blob = Vec::new();
            command.encode(&mut blob);
            blobs.push((self.seq, blob));
        }
        // All answers so far have arrived.
        entry.push_batch(ORIGIN, blobs[0].0, blobs);
        let mut out = Applied::default();
        self.machine.apply_entry(&entry.finish(), &mut out).expect("it is applied");
        self.replies = out.replies.into_iter().map(|(id, reply)| (id.seq, reply)).collect();
        self.losses = out.losses;
        let seq = self.seq;
        self.replies.iter().find(|(of, _)| *of == seq).map(|(_, reply)| reply.clone())
    }

    /// A command as a client says it; `None` where it waits.
    fn say(&mut self, line: &str) -> Option<Reply> {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let owner = format!("owner{}", self.seq);
        let context = RequestContext {
            sessions: SessionScope::All,
            db: 0,
            owner: owner.as_bytes(),
            session: SessionId(self.seq + 1),
            resp: Resp::Two,
            guarded: &argv[argv.len().min(3)..],
        };
        let Some(request) = grammar::parse(&argv) else {
            let argv = argv.iter().copied().collect();
            return self.apply(&[Command::Redis { db: 0, resp: Resp::Two, member: None, argv }]);
        };
        let work = work(request.expect("well formed"), context).expect("work for the machine");
        match work {
            MachineWork::Look(query) => Some(self.machine.query(query)),
            MachineWork::Change(command) => self.apply(&[command]),
        }
    }

    fn fence(&mut self, line: &str) -> u64 {
        match self.say(line) {
            Some(Reply::Granted { fence, .. }) => fence.0,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn multi(&mut self, lines: &[&str]) -> Vec<Reply> {
        let commands = lines.iter().map(|line| line.split(' ').map(str::as_bytes).collect()).collect();
        let member = None;
        match self.apply(&[Command::Transaction {
            db: 0,
            resp: Resp::Two,
            member,
            watched: Vec::new(),
            commands,
        }]) {
            Some(Reply::Array(replies)) => replies,
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, policy: SessionPolicy) -> SessionId {
        let id = SessionId(self.seq + 1);
        let (ttl_ms, label, age) = (1_000_000, &b""[..], 0);
        let opened = self.apply(&[Command::SessionOpenWith { id, ttl_ms, label, policy, age }]);
        assert!(matches!(opened, Some(Reply::Bulk(_))));
        id
    }

    /// Many readers.
    fn readers(&mut self, name: &str, count: usize, session: Option<SessionId>) {
        let granted = self.askers(name, count, LockKind::Shared, (100_000, 0), session);
        assert_eq!(granted, count);
    }

    /// Many that ask for a lock, in few entries. Answers how many have it at once.
    fn askers(
        &mut self,
        name: &str,
        count: usize,
        kind: LockKind,
        (ttl_ms, wait_ms): (u64, u64),
        session: Option<SessionId>,
    ) -> usize {
        let owners: Vec<String> = (0..count).map(|number| format!("r{}-{number}", self.seq)).collect();
        let mut granted = 0;
        for owners in owners.chunks(1_000) {
            let command = |owner: &String| -> Vec<u8> {
                let (resource, owner, value) = (name.as_bytes(), owner.as_bytes(), &b""[..]);
                let mut blob = Vec::new();
                Command::AcquireWith { db: 0, resource, ttl_ms, wait_ms, owner, session, kind, value }
                    .encode(&mut blob);
                blob
            };
            let blobs: Vec<Vec<u8>> = owners.iter().map(command).collect();
            let commands: Vec<Command<'_>> =
                blobs.iter().map(|blob| Command::decode(blob).expect("it was written")).collect();
            self.apply(&commands);
            granted +=
                self.replies.iter().filter(|(_, reply)| matches!(reply, Reply::Granted { .. })).count();
        }
        granted
    }

    fn holders(&self) -> u64 {
        let stats = self.machine.stats();
        stats.grants - stats.releases - stats.expiries
    }
}

fn error(reply: Option<Reply>) -> String {
    match reply {
        Some(Reply::Error(refusal)) => refusal.0.into_owned(),
        other => panic!("no error: {other:?}"),
    }
}

#[test]
fn a_conversion_within_a_transaction_answers_the_one_that_waits() {
    let mut node = Node::new();
    let (one, two) =
        (node.fence("LOCK.ACQUIRE a 9000 OWNER x SHARED"), node.fence("LOCK.ACQUIRE a 9000 OWNER y SHARED"));
    assert_eq!(node.say(&format!("LOCK.CONVERT a {one} EXCLUSIVE WAIT 5000")), None);
    let waiting = node.seq;
    let release = format!("LOCK.RELEASE a {two}");
    let convert = format!("LOCK.CONVERT a {one} EXCLUSIVE");
    let replies = node.multi(&[&release, &convert]);
    assert_eq!(replies[0], Reply::Released);
    assert!(matches!(replies[1], Reply::Granted { .. }), "{replies:?}");
    let told = node.replies.iter().find(|(seq, _)| *seq == waiting).map(|(_, reply)| reply);
    assert_eq!(told, Some(&replies[1]), "who waited for the same conversion hears of it");
}

#[test]
fn a_flush_ends_many_readers_in_bounded_parts() {
    let mut node = Node::new();
    for name in ["a", "b"] {
        node.readers(name, 5_000, None);
    }
    let waiting = node.say("LOCK.ACQUIRE a 9000 OWNER w WAIT 60000");
    assert_eq!(waiting, None);
    let before = node.holders();
    assert_eq!(node.say("FLUSHALL"), Some(Reply::OK));
    // At once as much as one entry may, once in the command and once after it.
    let mut left = node.holders();
    assert!(before - left <= 2 * 2_048 + 1, "one entry ended {} holders", before - left);
    assert_eq!(node.machine.read(0, Resp::Two, &[b"EXISTS", b"a", b"b"]), Reply::Int(0), "all is over");
    while node.machine.next_due_ms().is_some_and(|at_ms| at_ms <= node.now_ms) {
        node.apply(&[Command::Expire { idle_ms: u64::MAX }]);
        assert!(left - node.holders() <= 2 * 2_048 + 1);
        left = node.holders();
    }
    node.machine.check_invariants().unwrap();
    assert_eq!(left, 1, "the writer that waited has it");
}

#[test]
fn explain_finds_the_one_of_many_holders_that_waits() {
    let mut node = Node::new();
    node.readers("a", 1_200, None);
    for _ in 0..100 {
        let idle = node.open(SessionPolicy::Detect);
        node.readers("a", 2, Some(idle));
    }
    let blocked = node.open(SessionPolicy::Detect);
    node.readers("a", 3, Some(blocked));
    node.fence("LOCK.ACQUIRE b 100000 OWNER other");
    assert_eq!(node.say(&format!("LOCK.ACQUIRE b 100000 OWNER z SESSION {blocked} WAIT 60000")), None);
    let explain = Query::Explain { db: 0, resource: b"a", sessions: SessionScope::All };
    let Reply::Map(pairs) = node.machine.query(explain) else { panic!() };
    let field = |name: &'static str| {
        let found = pairs.iter().find(|(key, _)| *key == Reply::Text(name));
        match found.map(|(_, value)| value) {
            Some(Reply::Array(items)) => items.clone(),
            other => panic!("{name}: {other:?}"),
        }
    };
    assert_eq!(field("holders").len(), 1_000);
    let chains = field("blocked_by");
    assert_eq!(chains.len(), 1, "once for a session, however often it holds the lock: {chains:?}");
}

#[test]
fn every_holder_is_found_by_its_fence() {
    let mut node = Node::new();
    node.readers("a", 1_500, None);
    let last = node.fence("LOCK.ACQUIRE a 100000 OWNER last SHARED");
    assert!(node.machine.held_until_ms(0, b"a", Fence(last)).is_some());
    assert_eq!(node.say(&format!("LOCK.RENEW a {last} 5000")), Some(Reply::Renewed { ttl_ms: 5_000 }));
    assert!(error(node.say(&format!("FENCE.CHECK a {last}"))).starts_with("MODE"));
    assert_eq!(node.fence("LOCK.ACQUIRE a 100000 OWNER last SHARED"), last);
    assert_eq!(node.say(&format!("LOCK.FORCERELEASE a FENCE {last}")), Some(Reply::Int(1)));
    assert_eq!(node.losses.len(), 1);
    assert_eq!((node.losses[0].fence.0, node.losses[0].cause), (last, Some(LossCause::Forced)));
}

#[test]
fn a_key_that_a_session_of_readers_holds_ends_with_it() {
    let mut node = Node::new();
    let session = SessionId(77);
    node.apply(&[Command::SessionOpen { id: session, ttl_ms: 500, label: b"" }]);
    node.readers("a", 1, Some(session));
    assert!(!node.machine.is_ending(None, 0, b"a", node.now_ms + 400));
    assert!(node.machine.is_ending(None, 0, b"a", node.now_ms + 600), "a read waits for its end");
}

#[test]
fn a_loss_has_no_successor_of_another_name() {
    let mut node = Node::with_limits(Limits { idle_max: 0, ..Limits::default() });
    node.fence("LOCK.ACQUIRE a 100000 OWNER x");
    let acquire =
        Command::Acquire { db: 0, resource: b"b", ttl_ms: 1_000, wait_ms: 0, owner: b"y", session: None };
    // The record of `a` is forgotten at once, and its place is taken.
    node.apply(&[Command::ForceRelease { db: 0, resource: b"a" }, acquire]);
    assert_eq!(node.losses.len(), 1);
    assert_eq!((&node.losses[0].resource[..], node.losses[0].successor), (&b"a"[..], None));
}

#[test]
fn who_is_told_of_a_loss_hears_of_whoever_has_the_lock_now() {
    let mut node = Node::new();
    node.readers("a", 2, None);
    assert_eq!(node.say("LOCK.ACQUIRE a 9000 OWNER w WAIT 60000"), None);
    let request = RequestId { origin: ORIGIN, seq: node.seq };
    assert_eq!(node.say("LOCK.FORCERELEASE a"), Some(Reply::Int(1)));
    let granted = node.replies.iter().find(|(seq, _)| *seq == request.seq).map(|(_, reply)| reply.clone());
    let Some(Reply::Granted { fence, .. }) = granted else { panic!("{granted:?}") };
    let successors: Vec<Option<Fence>> = node.losses.iter().map(|loss| loss.successor).collect();
    assert_eq!(successors, [Some(fence), Some(fence)]);
}

#[test]
fn permits_that_end_at_once_go_to_all_who_wait() {
    const COUNT: usize = 3_000;
    let mut node = Node::new();
    let kind = LockKind::Permits { count: 1, max: COUNT as u32 };
    assert_eq!(node.askers("p", COUNT, kind, (500, 0), None), COUNT);
    assert_eq!(node.askers("p", COUNT, kind, (9_000, 60_000), None), 0);
    node.now_ms += 600;
    node.apply(&[Command::Expire { idle_ms: u64::MAX }]);
    let granted = node.replies.iter().filter(|(_, reply)| matches!(reply, Reply::Granted { .. })).count();
    assert_eq!(granted, COUNT);
    assert_eq!(node.losses.len(), COUNT);
    assert!(node.losses.iter().all(|loss| loss.successor.is_some()));
    node.machine.check_invariants().unwrap();
}

#[test]
fn a_full_session_retries_and_converts() {
    let mut node = Node::with_limits(Limits { locks_per_session_max: 3, ..Limits::default() });
    let session = node.open(SessionPolicy::Detect);
    let fence = node.fence(&format!("LOCK.ACQUIRE a 0 OWNER x SHARED SESSION {session}"));
    node.fence("LOCK.ACQUIRE a 9000 OWNER other SHARED");
    node.fence("LOCK.ACQUIRE c 9000 OWNER other");
    let wait = format!("LOCK.MACQUIRE 2 b c 0 OWNER y SESSION {session} SHARED WAIT 5000");
    assert_eq!(node.say(&wait), None);
    assert!(error(node.say(&format!("LOCK.ACQUIRE d 0 SESSION {session}"))).starts_with("OOM"));
    assert_eq!(node.say(&wait), None, "a retry keeps its place");
    assert_eq!(node.say(&format!("LOCK.CONVERT a {fence} EXCLUSIVE WAIT 5000")), None, "no lock more");
    let own = format!("LOCK.ACQUIRE a 0 OWNER x SHARED SESSION {session}");
    assert_eq!(node.fence(&own), fence, "nor is a retry of what it holds");
}

/// A waiter that may wound looks at all holders. An entry does so for few of many; the waiter is looked at again when a hold ends.
#[test]
fn an_entry_looks_at_so_many_holders_for_whom_to_wound() {
    const FREE: usize = 32;
    const HOLDERS: usize = FREE + 8;
    for kind in ["SHARED", "PERMITS 1 OF 100"] {
        for (steps, looked_at) in [(200_000, HOLDERS..=HOLDERS), (7, FREE..=FREE + 7), (0, FREE..=FREE)] {
            let limits = Limits { wound_steps_per_entry_max: steps, ..Limits::default() };
            let mut node = Node::with_limits(limits);
            let [older, younger] = [(); 2].map(|()| node.open(SessionPolicy::WoundWait));
            let mut fences: Vec<u64> = (0..HOLDERS)
                .map(|number| {
                    node.fence(&format!("LOCK.ACQUIRE r 100000 OWNER o{number} SESSION {younger} {kind}"))
                })
                .collect();
            let all = kind.replace("1 OF", "100 OF").replace("SHARED", "");
            let asked = format!("LOCK.ACQUIRE r 1000 WAIT 60000 SESSION {older} {all}");
            node.say(asked.trim());
            while !node.replies.iter().any(|(_, reply)| matches!(reply, Reply::Granted { .. })) {
                let fence = fences.pop().expect("the last hold is out of its way");
                assert_eq!(node.say(&format!("LOCK.RELEASE r {fence}")), Some(Reply::Released));
            }
            assert!(looked_at.contains(&fences.len()), "{kind}, {steps} steps: {}", fences.len());
        }
    }
}

/// A waiter is not taken for one that wounds where the entry's steps may not last until it is served: it would close a circle unseen.
#[test]
fn a_circle_is_refused_where_too_few_steps_are_left_to_wound() {
    const HOLDERS: usize = 32 + 8;
    for (steps, wounds) in
        [(200_000, true), (40, true), (39, false), (16, false), (8, false), (7, false), (0, false)]
    {
        let limits = Limits { wound_steps_per_entry_max: steps, ..Limits::default() };
        for converts in [false, true] {
            let mut node = Node::with_limits(limits);
            let [older, younger] = [(); 2].map(|()| node.open(SessionPolicy::WoundWait));
            let own = converts.then(|| node.fence(&format!("LOCK.ACQUIRE r 0 SESSION {older} SHARED")));
            for number in 0..HOLDERS {
                node.fence(&format!("LOCK.ACQUIRE r 100000 OWNER o{number} SESSION {younger} SHARED"));
            }
            node.fence(&format!("LOCK.ACQUIRE other 0 SESSION {older}"));
            assert_eq!(node.say(&format!("LOCK.ACQUIRE other 0 SESSION {younger} WAIT 60000")), None);
            let answer = node.say(&match own {
                Some(fence) => format!("LOCK.CONVERT r {fence} EXCLUSIVE WAIT 60000"),
                None => format!("LOCK.ACQUIRE r 1000 SESSION {older} WAIT 60000"),
            });
            match wounds {
                true => assert!(matches!(answer, Some(Reply::Granted { .. })), "{steps} steps: {answer:?}"),
                false => {
                    let refused = error(answer);
                    assert!(refused.starts_with("DEADLOCK"), "{steps} steps: {refused}");
                }
            }
        }
    }
}

/// The caution before a circle takes nothing from a waiter that closes none: it wounds if the steps last.
#[test]
fn many_holders_of_many_names_are_wounded_at_once() {
    const NAMES: usize = 100;
    let mut node = Node::new();
    let [older, one, other] = [(); 3].map(|()| node.open(SessionPolicy::WoundWait));
    for holder in 0..32 + 10 {
        let younger = if holder % 2 == 0 { one } else { other };
        for name in 0..NAMES {
            node.fence(&format!("LOCK.ACQUIRE r{name} 0 OWNER o{holder} SESSION {younger} SHARED"));
        }
    }
    let names: Vec<String> = (0..NAMES).map(|name| format!("r{name}")).collect();
    let asked = format!("LOCK.MACQUIRE {NAMES} {} 1000 SESSION {older} WAIT 60000", names.join(" "));
    let answer = node.say(&asked);
    assert!(matches!(answer, Some(Reply::GrantedMany { .. })), "{answer:?}");
}

/// More holders of many locks end together than one entry ends: a command that names them all does not end the rest by itself.
#[test]
fn a_command_does_not_end_a_long_backlog_of_holders() {
    const NAMES: usize = 200;
    const HOLDERS: usize = 110;
    let mut node = Node::new();
    let names: Vec<String> = (0..NAMES).map(|name| format!("r{name}")).collect();
    let list = names.join(" ");
    for owner in 0..HOLDERS {
        node.say(&format!("LOCK.MACQUIRE {NAMES} {list} 1000 OWNER o{owner} SHARED"));
    }
    let one = node.fence("LOCK.ACQUIRE single 100000 SHARED");
    node.now_ms += 5_000;
    // Behind it in the same entry: 4,096 of 22,000 have ended, and it may end 16,384.
    let resources = names.iter().map(|name| name.as_bytes());
    let del: Words<'_> = std::iter::once(&b"DEL"[..]).chain(resources.clone()).collect();
    let (db, resp, member, watched) = (0, Resp::Two, None, Vec::new());
    let owner = &b"next"[..];
    node.apply(&[
        Command::MAcquire {
            db,
            resources: resources.collect(),
            ttl_ms: 1_000,
            wait_ms: 0,
            owner,
            session: None,
        },
        Command::Redis { db, resp, member, argv: del.clone() },
        Command::Transaction { db, resp, member, watched, commands: vec![del] },
    ]);
    assert_eq!(node.replies.len(), 3);
    for (_, reply) in std::mem::take(&mut node.replies) {
        let refused = error(Some(reply));
        assert!(refused.starts_with("UNAVAILABLE"), "{refused}");
    }
    let asked = format!("LOCK.MACQUIRE {NAMES} {list} 1000 OWNER next");
    assert_eq!(node.say(&format!("LOCK.RELEASE single {one}")), Some(Reply::Released), "it has one holder");
    let mut entries = 0;
    while !matches!(node.say(&asked), Some(Reply::GrantedMany { .. })) {
        entries += 1;
        assert!(entries < 10, "the backlog is worked off by every entry");
    }
}
