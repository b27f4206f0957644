//! A session belongs to the user who opened it. For other users it does not exist; administrators may look at it and close it.
//! The tag of a user counts in memory.

use redfence_core::keyspace::Resp;
use redfence_core::machine::settings::SettingsCommand;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{
    put_user, Applied, Command, EntryBuilder, Limits, Machine, OfUser, Query, Restorer,
};
use redfence_core::reply::Reply;
use redfence_core::types::{Origin, SessionId, SessionScope, Stamp, UserTag};

const ORIGIN: Origin = Origin { node: 1, incarnation: 7 };
const ALICE: UserTag = UserTag(0xa11ce);
const BOB: UserTag = UserTag(0xb0b);
const SESSION: SessionId = SessionId(0x1122_3344_5566_7788);
const OTHER: SessionId = SessionId(0x99aa_bbcc_ddee_ff00);
const TAG_BYTES: u64 = 8;

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
        // Answers are acknowledged at once, so that none of them counts in memory.
        entry.push_batch(ORIGIN, self.seq, [(self.seq, blob)]);
        let mut out = Applied::default();
        self.machine.apply_entry(&entry.finish(), &mut out).expect("a known entry");
        self.machine.check_invariants().expect("the invariants hold");
        out.replies.into_iter().map(|(_, reply)| reply).collect()
    }

    fn open(&mut self, user: UserTag, id: SessionId) {
        let replies = self.run(user, &Command::SessionOpen { id, ttl_ms: 600_000, label: b"" });
        assert_eq!(replies, [Reply::bulk(id.to_string())]);
    }

    fn keep_alive(&mut self, user: UserTag, id: SessionId) -> Vec<Reply> {
        self.run(user, &Command::SessionKeepAlive { id, own: false })
    }

    fn close(&mut self, user: UserTag, id: SessionId, any_user: bool) -> Vec<Reply> {
        self.run(user, &Command::SessionClose { id, any_user })
    }

    fn acquire(
        &mut self,
        user: UserTag,
        name: &str,
        owner: &str,
        wait_ms: u64,
        session: Option<SessionId>,
    ) -> Vec<Reply> {
        let (resource, owner, ttl_ms) = (name.as_bytes(), owner.as_bytes(), 60_000);
        self.run(user, &Command::Acquire { db: 0, resource, ttl_ms, wait_ms, owner, session })
    }

    fn transaction(&mut self, user: UserTag, line: &str) -> Reply {
        let commands = vec![line.split(' ').map(str::as_bytes).collect()];
        let transaction =
            Command::Transaction { db: 0, resp: Resp::Two, member: None, watched: vec![], commands };
        match self.run(user, &transaction).pop() {
            Some(Reply::Array(mut replies)) => replies.pop().expect("one reply"),
            other => panic!("not a transaction's reply: {other:?}"),
        }
    }

    fn redis(&mut self, user: UserTag, words: &[&[u8]]) -> Reply {
        let argv = words.iter().copied().collect();
        let command = Command::Redis { db: 0, resp: Resp::Two, member: None, argv };
        self.run(user, &command).pop().expect("an answer")
    }

    fn shown_session(&self, name: &str, sessions: SessionScope) -> Option<SessionId> {
        match self.machine.query(Query::Info { db: 0, resource: name.as_bytes(), sessions }) {
            Reply::Info(info) => {
                assert!(info.held);
                info.session
            }
            other => panic!("{other:?}"),
        }
    }

    fn over_a_snapshot(&mut self) {
        let (hash, used) = (self.machine.state_hash(), self.machine.memory_used_bytes());
        self.machine.snapshot_begin();
        let pieces: Vec<_> = std::iter::from_fn(|| self.machine.snapshot_step(1)).collect();
        self.machine = Machine::restore(&pieces).expect("what was written can be read");
        assert_eq!((self.machine.state_hash(), self.machine.memory_used_bytes()), (hash, used));
    }

    /// By how much a command makes the state grow.
    fn growth(&mut self, user: UserTag, command: &Command<'_>) -> u64 {
        let before = self.machine.memory_used_bytes();
        self.run(user, command);
        self.machine.memory_used_bytes() - before
    }
}

fn code(reply: &Reply) -> &str {
    match reply {
        Reply::Error(refusal) => refusal.code(),
        _ => "",
    }
}

fn is_unknown(replies: &[Reply]) -> bool {
    matches!(replies, [reply] if code(reply) == "NOSESSION")
}

fn is_granted(replies: &[Reply]) -> bool {
    matches!(replies, [Reply::Granted { .. }])
}

#[test]
fn for_other_users_a_session_does_not_exist() {
    let mut cluster = Cluster::new();
    cluster.open(ALICE, SESSION);
    cluster.open(UserTag::DEFAULT, OTHER);
    assert!(is_granted(&cluster.acquire(ALICE, "wallet", "a", 0, Some(SESSION))));
    for _ in 0..2 {
        for (user, id) in [(BOB, SESSION), (UserTag::DEFAULT, SESSION), (ALICE, OTHER), (BOB, OTHER)] {
            assert!(is_unknown(&cluster.keep_alive(user, id)), "{user:?}");
            assert!(is_unknown(&cluster.close(user, id, false)), "{user:?}");
            assert!(is_unknown(&cluster.acquire(user, "more", "b", 0, Some(id))), "{user:?}");
            assert!(is_unknown(&cluster.acquire(user, "wallet", "b", 9_000, Some(id))), "{user:?}");
            let (resources, session) = ([&b"x"[..], b"y"].into_iter().collect(), Some(id));
            let many = Command::MAcquire { db: 0, resources, ttl_ms: 9, wait_ms: 0, owner: b"b", session };
            assert!(is_unknown(&cluster.run(user, &many)), "{user:?}");
            let line = format!("LOCK.ACQUIRE more 9000 OWNER b SESSION {id}");
            assert_eq!(code(&cluster.transaction(user, &line)), "NOSESSION", "{user:?}");
            let sessions = SessionScope::Of(user);
            assert_eq!(code(&cluster.machine.query(Query::Session { id, sessions })), "NOSESSION");
        }
        let sessions = SessionScope::None;
        assert_eq!(code(&cluster.machine.query(Query::Session { id: SESSION, sessions })), "NOSESSION");
        cluster.over_a_snapshot();
    }
    for (user, id) in [(ALICE, SESSION), (UserTag::DEFAULT, OTHER)] {
        assert_eq!(cluster.keep_alive(user, id), [Reply::Int(600_000)]);
        let look = Query::Session { id, sessions: SessionScope::Of(user) };
        assert!(matches!(cluster.machine.query(look), Reply::Map(_)));
    }
    assert_eq!(cluster.close(ALICE, SESSION, false), [Reply::Int(1)]);
    assert!(is_granted(&cluster.acquire(BOB, "wallet", "b", 0, None)), "its lock went with it");
    assert_eq!(cluster.close(UserTag::DEFAULT, OTHER, false), [Reply::Int(0)]);
}

#[test]
fn administrators_see_and_close_every_session_and_take_no_lock_under_it() {
    let mut cluster = Cluster::new();
    cluster.open(ALICE, SESSION);
    assert!(is_granted(&cluster.acquire(ALICE, "wallet", "a", 0, Some(SESSION))));
    let look = || Query::Session { id: SESSION, sessions: SessionScope::All };
    assert!(matches!(cluster.machine.query(look()), Reply::Map(_)));
    for admin in [BOB, UserTag::DEFAULT] {
        assert!(is_unknown(&cluster.keep_alive(admin, SESSION)));
        assert!(is_unknown(&cluster.acquire(admin, "more", "b", 0, Some(SESSION))));
    }
    assert_eq!(cluster.close(BOB, SESSION, true), [Reply::Int(1)]);
    assert_eq!(code(&cluster.machine.query(look())), "NOSESSION");
    assert!(is_unknown(&cluster.close(BOB, SESSION, true)));
}

#[test]
fn the_id_of_a_session_is_shown_to_its_user_and_to_administrators_alone() {
    let mut cluster = Cluster::new();
    cluster.open(ALICE, SESSION);
    assert!(is_granted(&cluster.acquire(ALICE, "wallet", "a", 0, Some(SESSION))));
    cluster.over_a_snapshot();
    for (sessions, shown) in [
        (SessionScope::All, Some(SESSION)),
        (SessionScope::Of(ALICE), Some(SESSION)),
        (SessionScope::Of(BOB), None),
        (SessionScope::Of(UserTag::DEFAULT), None),
        (SessionScope::None, None),
    ] {
        assert_eq!(cluster.shown_session("wallet", sessions), shown, "{sessions:?}");
    }
    for (user, shown) in [(ALICE, Some(SESSION)), (BOB, None), (UserTag::DEFAULT, None)] {
        let Reply::Info(info) = cluster.transaction(user, "LOCK.INFO wallet") else { panic!("a lock") };
        assert_eq!(info.session, shown, "{user:?}");
        assert_eq!(info.owner.as_deref(), Some(&b"a"[..]));
    }
}

#[test]
fn a_deadlock_names_no_session_of_another_user() {
    let mut cluster = Cluster::new();
    cluster.open(ALICE, SESSION);
    cluster.open(BOB, OTHER);
    assert!(is_granted(&cluster.acquire(ALICE, "one", "a", 0, Some(SESSION))));
    assert!(is_granted(&cluster.acquire(BOB, "two", "b", 0, Some(OTHER))));
    assert_eq!(cluster.acquire(ALICE, "two", "a", 9_000, Some(SESSION)), []);
    let replies = cluster.acquire(BOB, "one", "b", 9_000, Some(OTHER));
    let [Reply::Error(refusal)] = &replies[..] else { panic!("not refused: {replies:?}") };
    assert_eq!(refusal.code(), "DEADLOCK");
    assert!(refusal.0.contains(&OTHER.to_string()), "its own: {}", refusal.0);
    assert!(!refusal.0.contains(&SESSION.to_string()), "another user's: {}", refusal.0);
    assert!(refusal.0.contains("'one' of another user's session waits for 'two'"), "{}", refusal.0);
}

#[test]
fn commands_on_one_session_may_be_of_a_user_and_batches_may_not() {
    let decodes = |command| {
        let mut blob = Vec::new();
        Command::OfUser(Box::new(OfUser { user: ALICE, command })).encode(&mut blob);
        let is_read = Command::decode(&blob).is_some();
        is_read
    };
    assert!(decodes(Command::SessionOpen { id: SESSION, ttl_ms: 1, label: b"" }));
    assert!(decodes(Command::SessionKeepAlive { id: SESSION, own: false }));
    assert!(decodes(Command::SessionClose { id: SESSION, any_user: false }));
    assert!(decodes(Command::SessionClose { id: SESSION, any_user: true }));
    assert!(!decodes(Command::SessionsTouch { ids: [SESSION].into_iter().collect() }));
    assert!(!decodes(Command::SessionsOrphan {
        ids: [SESSION].into_iter().collect(),
        grace_ms: 1,
        heard_index: None
    }));
}

#[test]
fn the_tag_of_a_user_counts_with_each_record_and_goes_with_it() {
    let (mut plain, mut of_user) = (Cluster::new(), Cluster::new());
    let acquire = |name: &'static str, owner: &'static str, wait_ms| Command::Acquire {
        db: 0,
        resource: name.as_bytes(),
        ttl_ms: 60_000,
        wait_ms,
        owner: owner.as_bytes(),
        session: None,
    };
    let set = [&b"SET"[..], b"key", b"value"].into_iter().collect();
    let push = [&b"RPUSH"[..], b"list", b"item"].into_iter().collect();
    let redis = |argv| Command::Redis { db: 0, resp: Resp::Two, member: None, argv };
    let commands = [
        acquire("name", "holder", 0),
        acquire("name", "waiter", 9_000),
        Command::SessionOpen { id: SESSION, ttl_ms: 600_000, label: b"label" },
        redis(set),
        redis(push),
    ];
    // The first command of a node also makes the record of its replies.
    plain.keep_alive(UserTag::DEFAULT, OTHER);
    of_user.keep_alive(ALICE, OTHER);
    let mut tags = 0;
    for command in &commands {
        let growth = plain.growth(UserTag::DEFAULT, command);
        assert_eq!(of_user.growth(ALICE, command), growth + TAG_BYTES, "{command:?}");
        tags += TAG_BYTES;
    }
    assert_eq!(of_user.machine.memory_used_bytes(), plain.machine.memory_used_bytes() + tags);
    of_user.over_a_snapshot();
    // The hand-over moves the waiter's tag to the lock.
    for cluster in [&mut plain, &mut of_user] {
        let Reply::Info(info) = cluster.transaction(UserTag::DEFAULT, "LOCK.INFO name") else { panic!() };
        cluster.run(UserTag::DEFAULT, &Command::Release { db: 0, resource: b"name", fence: info.fence });
    }
    assert_eq!(of_user.machine.memory_used_bytes(), plain.machine.memory_used_bytes() + tags - TAG_BYTES);
    for cluster in [&mut plain, &mut of_user] {
        cluster.redis(UserTag::DEFAULT, &[b"DEL", b"name", b"key", b"list"]);
        cluster.close(UserTag::DEFAULT, SESSION, true);
    }
    assert_eq!(of_user.machine.memory_used_bytes(), plain.machine.memory_used_bytes());
}

/// Room for the tags is asked for with the rest: where it is missing nothing happens, of one key or of many.
#[test]
fn a_users_keys_are_refused_where_there_is_no_room_for_its_tag() {
    let mut cluster = Cluster::new();
    let value = (1 << 20).to_string();
    let set = SettingsCommand::Set { name: b"max-memory", value: value.as_bytes() };
    assert_eq!(cluster.run(UserTag::DEFAULT, &Command::Settings(set)), [Reply::OK]);
    let pair: [&[u8]; 5] = [b"MSET", b"one", b"1", b"two", b"2"];
    for number in 0..100 {
        let name = format!("fill{number:02}");
        cluster.redis(UserTag::DEFAULT, &[b"SET", name.as_bytes(), &[b'v'; 10_000]]);
    }
    // The largest value beside which there is room for two keys of the user `default`.
    let (mut fits, mut too_large) = (0, 32_000);
    while too_large - fits > 1 {
        let length = (fits + too_large) / 2;
        let is_set = cluster.redis(UserTag::DEFAULT, &[b"SET", b"last", &vec![b'v'; length]]) == Reply::OK;
        match is_set && cluster.redis(UserTag::DEFAULT, &pair) == Reply::OK {
            true => fits = length,
            false => too_large = length,
        }
        cluster.redis(UserTag::DEFAULT, &[b"DEL", b"last", b"one", b"two"]);
    }
    assert_eq!(cluster.redis(UserTag::DEFAULT, &[b"SET", b"last", &vec![b'v'; fits]]), Reply::OK);
    assert_eq!(code(&cluster.redis(ALICE, &pair)), "OOM");
    assert_eq!(cluster.redis(UserTag::DEFAULT, &[b"EXISTS", b"one", b"two"]), Reply::Int(0));
    assert_eq!(cluster.redis(UserTag::DEFAULT, &pair), Reply::OK);
    // The keys are there; to become theirs takes the tags.
    let again: [&[u8]; 5] = [b"MSET", b"one", b"3", b"two", b"4"];
    assert_eq!(code(&cluster.redis(ALICE, &again)), "OOM");
    assert_eq!(cluster.redis(UserTag::DEFAULT, &[b"GET", b"one"]), Reply::bulk("1"));
    assert_eq!(cluster.redis(UserTag::DEFAULT, &again), Reply::OK);
    assert!(cluster.machine.memory_used_bytes() <= 1 << 20);
}

#[test]
fn one_user_cannot_have_all_sessions() {
    let mut cluster = Cluster::new();
    cluster.machine = Machine::with_limits(Limits { sessions_max: 6, ..Limits::default() });
    cluster.run(UserTag::DEFAULT, &Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
    let open = |cluster: &mut Cluster, user, id| {
        let command = Command::SessionOpen { id: SessionId(id), ttl_ms: 600_000, label: b"" };
        matches!(cluster.run(user, &command)[..], [Reply::Bulk(_)])
    };
    assert!((1..=3).all(|id| open(&mut cluster, ALICE, id)));
    assert!(!open(&mut cluster, ALICE, 4), "half of them");
    assert!(open(&mut cluster, BOB, 5), "others have theirs");
    cluster.close(ALICE, SessionId(1), false);
    assert!(open(&mut cluster, ALICE, 6));
    cluster.machine.snapshot_begin();
    let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| cluster.machine.snapshot_step(100)).collect();
    let mut restorer = Restorer::new(cluster.machine.limits());
    pieces.iter().for_each(|piece| restorer.push(piece).unwrap());
    cluster.machine = restorer.finish().unwrap();
    assert!(!open(&mut cluster, ALICE, 7), "counted after a restart too");
    assert!(open(&mut cluster, UserTag::DEFAULT, 8), "without users all are `default`");
}
