//! Recorded logs and snapshots of every cluster version, in `golden/`, one folder a version: whatever is changed later, they
//! are read as they were written and give the state they gave.
//!
//! - `commands.hex`: the bytes of every command, so that no tag and no field changes unnoticed
//! - `random.hex` (of a release): random work as that release's own program logged it, one entry a line, the hash of the state
//!   behind every tenth; whatever this program does otherwise at that version would quarantine a node in a rolling upgrade
//! - `log.hex`: a log, one entry a line; `snapshot.hex`: what it comes to, one piece a line, and the hash of the state
//!
//! `UPDATE_GOLDEN=1 cargo test -p redfence-core --test golden_log` writes them anew for a version that is in no release yet
//! (`tests/releases.toml`). Those of a release never change.

use redfence_core::grammar::convert::ConvertTo;
use redfence_core::keyspace::Resp;
use redfence_core::machine::conditional::{Answer, Branch, Call, Conditional, Script};
use redfence_core::machine::digest::{DigestCommand, DigestKind};
use redfence_core::machine::effects::{result_hash, Effects, Step, Write};
use redfence_core::machine::settings::{Founding, SettingsCommand};
use redfence_core::machine::upstream_identity::Report;
use redfence_core::machine::version::{ClusterVersion, UpgradeCommand, FIRST};
use redfence_core::machine::{Applied, Command, EntryBuilder, Machine, OfUser, Watched, Words};
use redfence_core::reply::Reply;
use redfence_core::types::{
    Fence, LockKind, Member, Origin, RequestId, SessionId, SessionPolicy, Stamp, UserTag,
};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const SECOND: ClusterVersion = 2;
const ORIGIN: Origin = Origin { node: 1, incarnation: 1 << 20 };
const OTHER: Origin = Origin { node: 2, incarnation: 3 << 20 };
/// The first fence of every name: the clock stands still.
const FENCE: Fence = Fence(1_700_000_000_000_000);

fn folder(version: ClusterVersion) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

fn is_released(version: ClusterVersion) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/releases.toml");
    let text = std::fs::read_to_string(path).expect("tests/releases.toml");
    text.lines().any(|line| line.trim() == format!("cluster_version = {version}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// The recorded lines of a file; with `UPDATE_GOLDEN` what they are now, unless the version is older than the newest or released.
fn recorded(version: ClusterVersion, name: &str, now: impl FnOnce() -> Vec<String>) -> Vec<String> {
    let path = folder(version).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() && version == SECOND {
        assert!(!is_released(version), "version {version} is released: its recordings stay as they are");
        std::fs::create_dir_all(folder(version)).expect("a folder for recordings");
        std::fs::write(&path, now().join("\n") + "\n").expect("the recording is written");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_owned).collect()
}

fn words<'a>(argv: &[&'a str]) -> Words<'a> {
    argv.iter().map(|word| word.as_bytes()).collect()
}

fn redis<'a>(argv: &[&'a str]) -> Command<'a> {
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv: words(argv) }
}

fn acquire<'a>(resource: &'a str, owner: &'a str, wait_ms: u64, session: Option<SessionId>) -> Command<'a> {
    let ttl_ms = if session.is_some() { 0 } else { 60_000 };
    Command::Acquire {
        db: 0,
        resource: resource.as_bytes(),
        ttl_ms,
        wait_ms,
        owner: owner.as_bytes(),
        session,
    }
}

fn conditional() -> Command<'static> {
    let nothing = Branch { write: None, answer: Answer::Reply(Reply::Int(0)) };
    let call = Call { words: [2, 0].into_iter().collect(), line: 1, protected: false };
    Command::Conditional(Box::new(Conditional {
        db: 0,
        member: Some(Member(2)),
        sha: [7; 20],
        script: Script::Body(
            b"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end",
        ),
        words: words(&["key", "owner", "DEL"]),
        line: 1,
        absent: nothing.clone(),
        equal: Branch { write: Some(call), answer: Answer::Result },
        other: nothing,
    }))
}

fn effects() -> Command<'static> {
    let result = result_hash(&Reply::OK);
    let write = Write { db: 0, resp: Resp::Three, hiding: true, argv: words(&["SET", "k", "v"]), result };
    let steps = vec![
        Step::Read { key: b"k" },
        Step::Write(write),
        Step::Load { body: b"return 1" },
        Step::FlushScripts,
    ];
    Command::Effects(Effects { member: Some(Member(1)), steps, reply: Reply::OK })
}

/// One of every command that a version brought, and of every form that has bytes of its own. A new one is added at the end.
fn samples(version: ClusterVersion) -> Vec<Command<'static>> {
    match version {
        FIRST => first_samples(),
        _ => second_samples(),
    }
}

fn acquire_with<'a>(
    resource: &'a str,
    owner: &'a str,
    wait_ms: u64,
    kind: LockKind,
    value: &'a [u8],
) -> Command<'a> {
    let (db, resource, owner) = (0, resource.as_bytes(), owner.as_bytes());
    Command::AcquireWith { db, resource, ttl_ms: 60_000, wait_ms, owner, session: None, kind, value }
}

fn second_samples() -> Vec<Command<'static>> {
    let session = SessionId(0x1122_3344_5566_7788);
    vec![
        acquire_with("name", "owner", 0, LockKind::Exclusive, b"value"),
        acquire_with("shared", "owner", 5_000, LockKind::Shared, b""),
        acquire_with("permits", "owner", 5_000, LockKind::Permits { count: 2, max: 300 }, b"v"),
        Command::MAcquireShared {
            db: 0,
            resources: [&b"one"[..], b"two"].into_iter().collect(),
            ttl_ms: 9_000,
            wait_ms: 8,
            owner: b"o",
            session: None,
        },
        Command::Convert { db: 0, resource: b"name", fence: FENCE, to: ConvertTo::Shared, wait_ms: 0 },
        Command::Convert { db: 0, resource: b"name", fence: FENCE, to: ConvertTo::Exclusive, wait_ms: 700 },
        Command::ForceReleaseOne { db: 0, resource: b"permits", fence: FENCE },
        Command::SessionOpenWith {
            id: session,
            ttl_ms: 90_000,
            label: b"label",
            policy: SessionPolicy::WaitDie,
            age: 12,
        },
        Command::SessionOpenWith {
            id: SessionId(9),
            ttl_ms: 90_000,
            label: b"",
            policy: SessionPolicy::WoundWait,
            age: 0,
        },
        of_user(Command::SessionOpenWith {
            id: SessionId(10),
            ttl_ms: 90_000,
            label: b"",
            policy: SessionPolicy::Detect,
            age: 3,
        }),
        Command::SessionsOrphan {
            ids: [session].into_iter().collect(),
            grace_ms: 500,
            heard_index: Some(1_234_567),
        },
        Command::SessionKeepAlive { id: session, own: true },
        of_user(acquire_with("shared", "user's", 0, LockKind::Shared, b"")),
        of_user(acquire_with("shared", "user's writer", 60_000, LockKind::Exclusive, b"value")),
    ]
}

fn first_samples() -> Vec<Command<'static>> {
    let session = SessionId(0x1122_3344_5566_7788);
    let ids = || [session, SessionId(9)].into_iter().collect();
    let request = RequestId { origin: OTHER, seq: 300 };
    let redis_report = Report::Redis { run_id: b"run", replid: b"one", replid2: b"two" };
    vec![
        acquire("name", "owner", 5_000, None),
        acquire("name", "owner", 0, Some(session)),
        Command::Release { db: 3, resource: b"name", fence: FENCE },
        Command::Renew { db: 0, resource: b"name", fence: FENCE, ttl_ms: 700 },
        Command::MAcquire {
            db: 0,
            resources: [&b"one"[..], b"two"].into_iter().collect(),
            ttl_ms: 9,
            wait_ms: 8,
            owner: b"o",
            session: None,
        },
        Command::MRelease {
            db: 0,
            pairs: [(&b"one"[..], Fence(1)), (b"two", Fence(2))].into_iter().collect(),
        },
        Command::ForceRelease { db: 0, resource: b"name" },
        Command::SessionOpen { id: session, ttl_ms: 10_000, label: b"label" },
        Command::SessionKeepAlive { id: session, own: false },
        Command::SessionClose { id: session, any_user: false },
        Command::SessionsTouch { ids: ids() },
        Command::SessionsOrphan { ids: ids(), grace_ms: 500, heard_index: None },
        Command::Cancel { request },
        Command::Expire { idle_ms: 600_000 },
        Command::OriginStart { origin: ORIGIN },
        Command::OriginGone { origin: OTHER },
        redis(&["SET", "k", "v", "NX", "PX", "30000"]),
        Command::Redis { db: 1, resp: Resp::Three, member: Some(Member(3)), argv: words(&["DEL", "k"]) },
        Command::Transaction {
            db: 0,
            resp: Resp::Two,
            member: None,
            watched: vec![Watched { db: 0, key: b"w", token: 77 }],
            commands: vec![words(&["INCR", "n"]), words(&["GET", "n"])],
        },
        effects(),
        conditional(),
        Command::Settings(SettingsCommand::Found(Founding::default())),
        Command::Settings(SettingsCommand::Set { name: b"max-memory", value: b"512mb" }),
        Command::Settings(SettingsCommand::Seen { node: 2, version: 4 }),
        Command::Settings(SettingsCommand::Settle { version: 4 }),
        Command::Settings(SettingsCommand::Behind { node: 1, leads: true, what: Report::NoRedis }),
        Command::Settings(SettingsCommand::Behind { node: 2, leads: false, what: redis_report }),
        Command::FenceCheck { db: 0, resource: b"guarded", fence: FENCE },
        Command::FenceCall {
            db: 0,
            resp: Resp::Two,
            resource: b"guarded",
            fence: FENCE,
            argv: words(&["SET", "g", "1"]),
        },
        Command::Upgrade(UpgradeCommand::Raise { to: 1 }),
        Command::Upgrade(UpgradeCommand::Hold),
        Command::Upgrade(UpgradeCommand::Finish),
        Command::Digest(DigestCommand::Checkpoint { kind: DigestKind::Chain }),
        Command::Digest(DigestCommand::Checkpoint { kind: DigestKind::Full }),
        Command::Digest(DigestCommand::Report {
            node: 2,
            added_at: 7,
            kind: DigestKind::Full,
            index: 9_000,
            value: 0x1122_3344_5566_7788,
        }),
        Command::Digest(DigestCommand::Quarantine { node: 3, added_at: 0, index: 9_000 }),
        of_user(acquire("name", "owner", 5_000, None)),
        of_user(redis(&["SET", "of-user", "value"])),
        of_user(Command::SessionOpen { id: session, ttl_ms: 10_000, label: b"label" }),
        of_user(Command::SessionKeepAlive { id: session, own: false }),
        of_user(Command::SessionClose { id: session, any_user: false }),
        Command::SessionClose { id: session, any_user: true },
    ]
}

fn of_user(command: Command<'static>) -> Command<'static> {
    Command::OfUser(Box::new(OfUser { user: UserTag(0x99aa_bbcc_ddee_ff01), command }))
}

/// A new command does not compile here before it has a name, and wants a sample above.
fn name(command: &Command<'_>) -> &'static str {
    match command {
        Command::Acquire { .. } => "acquire",
        Command::AcquireWith { .. } => "acquire-with",
        Command::MAcquireShared { .. } => "macquire-shared",
        Command::Convert { .. } => "convert",
        Command::ForceReleaseOne { .. } => "forcerelease-one",
        Command::SessionOpenWith { .. } => "session-open-with",
        Command::Release { .. } => "release",
        Command::Renew { .. } => "renew",
        Command::MAcquire { .. } => "macquire",
        Command::MRelease { .. } => "mrelease",
        Command::ForceRelease { .. } => "forcerelease",
        Command::SessionOpen { .. } => "session-open",
        Command::SessionKeepAlive { .. } => "session-keepalive",
        Command::SessionClose { .. } => "session-close",
        Command::SessionsTouch { .. } => "sessions-touch",
        Command::SessionsOrphan { .. } => "sessions-orphan",
        Command::Cancel { .. } => "cancel",
        Command::Expire { .. } => "expire",
        Command::OriginStart { .. } => "origin-start",
        Command::OriginGone { .. } => "origin-gone",
        Command::Settings(_) => "settings",
        Command::Upgrade(_) => "upgrade",
        Command::Digest(_) => "digest",
        Command::OfUser(_) => "of-user",
        Command::FenceCheck { .. } => "fence-check",
        Command::FenceCall { .. } => "fence-call",
        Command::Redis { .. } => "redis",
        Command::Transaction { .. } => "transaction",
        Command::Conditional(_) => "conditional",
        Command::Effects(_) => "effects",
        #[cfg(feature = "next-version")]
        Command::Next => "next",
    }
}

fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    bytes
}

#[test]
fn every_command_keeps_its_bytes() {
    [FIRST, SECOND].into_iter().for_each(check_commands);
}

fn check_commands(version: ClusterVersion) {
    let line = |command: &Command<'_>| format!("{} {}", name(command), hex(&encoded(command)));
    let now: Vec<String> = samples(version).iter().map(line).collect();
    let recorded = recorded(version, "commands.hex", || now.clone());
    for (now, then) in now.iter().zip(&recorded) {
        assert_eq!(
            now, then,
            "the bytes of a command have changed: that takes a new tag and a new cluster version"
        );
    }
    assert_eq!(now.len(), recorded.len(), "record the new commands, unless the version is released");
    for (line, sample) in recorded.iter().zip(samples(version)) {
        let bytes = unhex(line.split_once(' ').expect("a name and bytes").1);
        let read = Command::decode(&bytes).expect("recorded bytes are read");
        assert_eq!(format!("{read:?}"), format!("{sample:?}"));
    }
}

/// A little of everything, left in a state with locks, waiters, sessions, blocked clients, collections, marks and scripts.
fn entries(version: ClusterVersion) -> Vec<Vec<u8>> {
    match version {
        FIRST => first_entries(),
        _ => second_entries(),
    }
}

/// Every kind of lock held, waited for and converted; sessions with policies.
fn second_entries() -> Vec<Vec<u8>> {
    let session = SessionId(0x1122_3344_5566_7788);
    let of_session = |resource: &'static [u8], owner: &'static [u8], kind| Command::AcquireWith {
        db: 0,
        resource,
        ttl_ms: 0,
        wait_ms: 50_000,
        owner,
        session: Some(session),
        kind,
        value: b"",
    };
    let permits = LockKind::Permits { count: 2, max: 3 };
    let more = vec![
        Command::OriginStart { origin: ORIGIN },
        acquire("plain", "first", 0, None),
        acquire_with("valued", "second", 0, LockKind::Exclusive, b"10.0.0.1"),
        acquire_with("read", "r1", 0, LockKind::Shared, b"v1"),
        acquire_with("read", "r2", 0, LockKind::Shared, b""),
        acquire_with("read", "writer", 50_000, LockKind::Exclusive, b"later"),
        acquire_with("read", "r3", 50_000, LockKind::Shared, b""),
        Command::Convert {
            db: 0,
            resource: b"read",
            fence: FENCE,
            to: ConvertTo::Exclusive,
            wait_ms: 40_000,
        },
        acquire_with("pool", "p1", 0, permits, b""),
        acquire_with("pool", "p2", 50_000, permits, b"x"),
        of_session(b"of-session", b"s1", LockKind::Shared),
        of_session(b"pool", b"s2", LockKind::Permits { count: 1, max: 3 }),
        Command::SessionOpen { id: SessionId(77), ttl_ms: 90_000, label: b"" },
    ];
    let raise = Command::Upgrade(UpgradeCommand::Raise { to: SECOND });
    let raised = std::iter::once(entry(FIRST, 0, &raise));
    let log = second_samples().into_iter().chain(more).enumerate();
    raised.chain(log.map(|(at, command)| entry(SECOND, 1 + at as u64, &command))).collect()
}

fn first_entries() -> Vec<Vec<u8>> {
    let session = SessionId(0x1122_3344_5566_7788);
    let session_of_user = SessionId(0x8877_6655_4433_2211);
    let member = |number, argv: &[&'static str]| Command::Redis {
        db: 0,
        resp: Resp::Two,
        member: Some(Member(number)),
        argv: words(argv),
    };
    let more = vec![
        Command::OriginStart { origin: ORIGIN },
        Command::Settings(SettingsCommand::Found(Founding::default())),
        acquire("held", "first", 0, None),
        acquire("held", "second", 50_000, None),
        acquire("held", "third", 40_000, None),
        Command::SessionOpen { id: session, ttl_ms: 90_000, label: b"worker" },
        acquire("of-session", "fourth", 0, Some(session)),
        of_user(Command::SessionOpen { id: session_of_user, ttl_ms: 80_000, label: b"" }),
        of_user(acquire("of-users-session", "seventh", 0, Some(session_of_user))),
        of_user(acquire("held-by-user", "sixth", 0, None)),
        of_user(acquire("held", "second", 45_000, None)),
        acquire("over", "fifth", 0, None),
        Command::Release { db: 0, resource: b"over", fence: FENCE },
        member(1, &["SET", "redlock", "value", "NX", "PX", "30000"]),
        member(2, &["SET", "redlock", "value", "NX", "PX", "30000"]),
        redis(&["RPUSH", "list", "a", "b", "c"]),
        redis(&["HSET", "hash", "field", "value"]),
        redis(&["SADD", "set", "x", "y"]),
        redis(&["ZADD", "zset", "1.5", "m"]),
        redis(&["BLPOP", "empty", "0"]),
        Command::FenceCheck { db: 0, resource: b"marked", fence: FENCE },
        Command::Effects(Effects {
            member: None,
            steps: vec![Step::Load { body: b"return 1" }],
            reply: Reply::Int(1),
        }),
        Command::Upgrade(UpgradeCommand::Hold),
    ];
    let origin_gone = |command: &Command<'_>| matches!(command, Command::OriginGone { .. });
    let log = first_samples().into_iter().filter(|command| !origin_gone(command)).chain(more);
    log.enumerate().map(|(at, command)| entry(FIRST, at as u64, &command)).collect()
}

fn entry(version: ClusterVersion, at: u64, command: &Command<'_>) -> Vec<u8> {
    let stamp = Stamp { term: 1 + at / 20, logical_ms: 10 * at, wall_us: FENCE.0 };
    let mut entry = EntryBuilder::for_version(version, stamp);
    entry.push_batch(ORIGIN, at.saturating_sub(5), [(at + 1, encoded(command))]);
    entry.finish()
}

fn replayed(log: &[String]) -> Machine {
    let mut machine = Machine::new();
    for (at, line) in log.iter().enumerate() {
        let applied = machine.apply_entry(&unhex(line), &mut Applied::default());
        applied.unwrap_or_else(|error| panic!("entry {at} of the recorded log: {error}"));
    }
    machine.check_invariants().expect("the invariants hold");
    machine
}

fn image(machine: &mut Machine) -> Vec<String> {
    let hash = machine.state_hash();
    machine.snapshot_begin();
    let mut lines = vec![format!("{hash:016x}")];
    lines.extend(std::iter::from_fn(|| machine.snapshot_step(1_000)).map(|piece| hex(&piece)));
    lines
}

#[test]
fn the_recorded_log_gives_the_recorded_snapshot() {
    [FIRST, SECOND].into_iter().for_each(check_log);
}

fn check_log(version: ClusterVersion) {
    let log = recorded(version, "log.hex", || entries(version).iter().map(|entry| hex(entry)).collect());
    let now = image(&mut replayed(&log));
    let snapshot = recorded(version, "snapshot.hex", || now.clone());
    assert_eq!(now[0], snapshot[0], "the recorded log gives another state: that takes a new cluster version");
    assert_eq!(now, snapshot, "the state is the same, its bytes are not");
    let mut restored = Machine::restore(snapshot[1..].iter().map(|line| unhex(line))).expect("it is read");
    assert_eq!(image(&mut restored), snapshot);
}

#[test]
fn random_work_of_a_release_gives_the_states_it_gave_there() {
    let text = std::fs::read_to_string(folder(FIRST).join("random.hex")).expect("the recording");
    let mut machine = Machine::new();
    for (at, line) in text.lines().enumerate() {
        let (entry, hash) = line.split_once(' ').map_or((line, None), |(entry, hash)| (entry, Some(hash)));
        machine
            .apply_entry(&unhex(entry), &mut Applied::default())
            .unwrap_or_else(|error| panic!("entry {at} of the recorded work: {error}"));
        if let Some(hash) = hash {
            assert_eq!(
                format!("{:016x}", machine.state_hash()),
                hash,
                "another state at entry {at} or before"
            );
        }
    }
}
