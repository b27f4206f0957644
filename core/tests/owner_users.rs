//! An OWNER is a retry for the user who took the lock alone: held, queued, in multi-locks, in transactions, over a snapshot.

use redfence_core::keyspace::Resp;
use redfence_core::machine::{put_user, Applied, Command, EntryBuilder, Machine, OfUser};
use redfence_core::reply::Reply;
use redfence_core::types::{Fence, Origin, Stamp, UserTag};

const ORIGIN: Origin = Origin { node: 1, incarnation: 7 };
const ALICE: UserTag = UserTag(0xa11ce);
const BOB: UserTag = UserTag(0xb0b);

struct Cluster {
    machine: Machine,
    seq: u64,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster { machine: Machine::new(), seq: 0 }
    }

    fn run(&mut self, user: UserTag, command: &Command<'_>) -> Vec<Reply> {
        let mut blob = Vec::new();
        put_user(&mut blob, user);
        command.encode(&mut blob);
        self.seq += 1;
        let stamp = Stamp { term: 1, logical_ms: self.seq, wall_us: 1_000_000 };
        let mut entry = EntryBuilder::new(stamp);
        entry.push_batch(ORIGIN, 1, [(self.seq, blob)]);
        let mut out = Applied::default();
        self.machine.apply_entry(&entry.finish(), &mut out).expect("a known entry");
        self.machine.check_invariants().expect("the invariants hold");
        out.replies.into_iter().map(|(_, reply)| reply).collect()
    }

    fn acquire(&mut self, user: UserTag, name: &str, owner: &str, wait_ms: u64) -> Vec<Reply> {
        let (resource, owner) = (name.as_bytes(), owner.as_bytes());
        self.run(user, &Command::Acquire { db: 0, resource, ttl_ms: 60_000, wait_ms, owner, session: None })
    }

    fn acquire_many(&mut self, user: UserTag, names: &[&str], owner: &str) -> Vec<Reply> {
        let resources = names.iter().map(|name| name.as_bytes()).collect();
        let owner = owner.as_bytes();
        let (ttl_ms, wait_ms, session) = (60_000, 0, None);
        self.run(user, &Command::MAcquire { db: 0, resources, ttl_ms, wait_ms, owner, session })
    }

    fn release(&mut self, name: &str, fence: Fence) -> Vec<Reply> {
        self.run(UserTag::DEFAULT, &Command::Release { db: 0, resource: name.as_bytes(), fence })
    }

    fn redis(&mut self, user: UserTag, line: &str) -> Vec<Reply> {
        let argv = line.split(' ').map(str::as_bytes).collect();
        self.run(user, &Command::Redis { db: 0, resp: Resp::Two, member: None, argv })
    }

    fn over_a_snapshot(&mut self) {
        let hash = self.machine.state_hash();
        self.machine.snapshot_begin();
        let pieces: Vec<_> = std::iter::from_fn(|| self.machine.snapshot_step(1)).collect();
        self.machine = Machine::restore(&pieces).expect("what was written can be read");
        assert_eq!(self.machine.state_hash(), hash);
    }
}

fn fence(replies: &[Reply]) -> Fence {
    match replies {
        [Reply::Granted { fence, .. }] => *fence,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn the_holders_owner_is_no_retry_for_another_user() {
    let mut cluster = Cluster::new();
    let first = fence(&cluster.acquire(ALICE, "name", "owner", 0));
    for _ in 0..2 {
        assert_eq!(cluster.acquire(BOB, "name", "owner", 0), [Reply::Nil]);
        assert_eq!(cluster.acquire(UserTag::DEFAULT, "name", "owner", 0), [Reply::Nil]);
        assert_eq!(fence(&cluster.acquire(ALICE, "name", "owner", 0)), first);
        cluster.over_a_snapshot();
    }
    let of_default = fence(&cluster.acquire(UserTag::DEFAULT, "other", "owner", 0));
    assert_eq!(cluster.acquire(ALICE, "other", "owner", 0), [Reply::Nil]);
    assert_eq!(fence(&cluster.acquire(UserTag::DEFAULT, "other", "owner", 0)), of_default);
    // A record that was another user's is the new holder's alone.
    cluster.release("name", first);
    let second = fence(&cluster.acquire(UserTag::DEFAULT, "name", "owner", 0));
    assert_eq!(cluster.acquire(ALICE, "name", "owner", 0), [Reply::Nil]);
    assert_eq!(fence(&cluster.acquire(UserTag::DEFAULT, "name", "owner", 0)), second);
}

#[test]
fn a_queued_owner_keeps_a_place_for_each_user() {
    let mut cluster = Cluster::new();
    let first = fence(&cluster.acquire(UserTag::DEFAULT, "name", "holder", 0));
    assert_eq!(cluster.acquire(ALICE, "name", "owner", 9_000), []);
    assert_eq!(cluster.acquire(BOB, "name", "owner", 9_000), []);
    cluster.over_a_snapshot();
    let granted = cluster.release("name", first);
    let [Reply::Released, Reply::Granted { fence: alices, .. }] = granted[..] else {
        panic!("one of them is granted, not both: {granted:?}")
    };
    assert_eq!(fence(&cluster.acquire(ALICE, "name", "owner", 0)), alices);
    let granted = cluster.release("name", alices);
    let [Reply::Released, Reply::Granted { fence: bobs, .. }] = granted[..] else {
        panic!("then the other: {granted:?}")
    };
    assert!(bobs > alices);
    assert_eq!(cluster.acquire(ALICE, "name", "owner", 0), [Reply::Nil]);
}

#[test]
fn multi_locks_keys_and_transactions_follow_the_same_rule() {
    let mut cluster = Cluster::new();
    let first = cluster.acquire_many(ALICE, &["a", "b"], "owner");
    assert!(matches!(first[..], [Reply::GrantedMany { .. }]), "{first:?}");
    assert_eq!(cluster.acquire_many(BOB, &["a", "b"], "owner"), [Reply::Nil]);
    assert_eq!(cluster.acquire(BOB, "a", "owner", 0), [Reply::Nil]);
    assert!(matches!(cluster.acquire_many(ALICE, &["a", "b"], "owner")[..], [Reply::GrantedMany { .. }]));
    assert_eq!(cluster.redis(ALICE, "SET key owner NX PX 60000"), [Reply::OK]);
    assert_eq!(cluster.acquire(BOB, "key", "owner", 0), [Reply::Nil]);
    fence(&cluster.acquire(ALICE, "key", "owner", 0));
    let words = "LOCK.ACQUIRE key 60000 OWNER owner".split(' ').map(str::as_bytes).collect();
    let transaction =
        Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands: vec![words] };
    assert_eq!(cluster.run(BOB, &transaction), [Reply::Array(vec![Reply::Nil])]);
    let of_alice = cluster.run(ALICE, &transaction);
    assert!(matches!(&of_alice[..], [Reply::Array(items)] if matches!(items[..], [Reply::Granted { .. }])));
}

#[test]
fn only_what_takes_locks_is_of_a_user_and_nothing_is_of_two() {
    let acquire =
        || Command::Acquire { db: 0, resource: b"a", ttl_ms: 9, wait_ms: 0, owner: b"o", session: None };
    let of = |user, command| Command::OfUser(Box::new(OfUser { user, command }));
    let decodes = |command: &Command<'_>| {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        let is_read = Command::decode(&blob).is_some();
        is_read
    };
    assert!(decodes(&of(ALICE, acquire())));
    assert!(!decodes(&of(ALICE, of(BOB, acquire()))));
    assert!(!decodes(&of(ALICE, Command::Expire { idle_ms: 1 })));
    let script = [&b"EVAL"[..], b"return 1", b"0"].into_iter().collect();
    assert!(!decodes(&of(ALICE, Command::Redis { db: 0, resp: Resp::Two, member: None, argv: script })));
    let mut blob = vec![25];
    blob.extend_from_slice(&[0; 8]);
    acquire().encode(&mut blob);
    assert_eq!(Command::decode(&blob), None, "the default user has no tag");
}
