//! What the overlay answers is what apply answers: random transactions, run on the leader and logged as effects, leave the very
//! state, and give the very replies, that the same commands give when they are applied directly.
//!
//! `REDFENCE_SEED` repeats one run, `REDFENCE_STEPS` sets its length.
#![cfg(feature = "scripts")]

#[allow(dead_code, reason = "shared with core/tests/differential, which uses more of it")]
#[path = "differential/generate.rs"]
mod generate;
mod logged;

use generate::Dice;
use redfence_core::keyspace::Resp;
use redfence_core::machine::version::UpgradeCommand;
use redfence_core::machine::{Applied, Command, Db, EntryBuilder, Limits, Machine, Watched, Words};
use redfence_core::reply::Reply;
use redfence_core::script::Engine;
use redfence_core::types::{LockKind, Member, Origin, RequestId, Stamp};

const ECHO_SCRIPT: &[&[u8]] = &[b"EVAL", b"return 'x'", b"0"];
const ECHO: &[&[u8]] = &[b"ECHO", b"x"];

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// A text known at compile time comes out of the log as any other: the same on the wire.
fn as_logged(reply: Reply) -> Reply {
    match reply {
        Reply::Text(text) => Reply::bulk(text),
        Reply::Array(items) => Reply::Array(items.into_iter().map(as_logged).collect()),
        Reply::Set(items) => Reply::Set(items.into_iter().map(as_logged).collect()),
        Reply::Map(pairs) => {
            Reply::Map(pairs.into_iter().map(|(key, value)| (as_logged(key), as_logged(value))).collect())
        }
        other => other,
    }
}

/// Walks come in an order of their own: keys made in the run have no slot yet.
fn comparable(replies: Vec<(RequestId, Reply)>, argvs: &[Vec<Vec<u8>>]) -> Vec<(RequestId, Reply)> {
    let sorted = |reply: Reply| match reply {
        Reply::Array(mut items) => {
            items.sort_by_key(|item| format!("{item:?}"));
            Reply::Array(items)
        }
        other => other,
    };
    let one =
        |(at, reply): (usize, Reply)| match (argvs.get(at).map(|argv| argv[0].to_ascii_uppercase()), reply) {
            (Some(name), reply) if name == b"KEYS" => sorted(reply),
            (Some(name), Reply::Array(parts)) if name == b"SCAN" => {
                Reply::Array(parts.into_iter().map(sorted).collect())
            }
            (_, reply) => reply,
        };
    let all = |reply: Reply| match reply {
        Reply::Array(items) => Reply::Array(items.into_iter().enumerate().map(one).collect()),
        other => other,
    };
    replies.into_iter().map(|(id, reply)| (id, all(reply))).collect()
}

struct Pair {
    /// Whether the states must be equal, and not only all replies: see [`run`].
    exact: bool,
    leader: Machine,
    engine: Engine,
    direct: Machine,
    stamp: Stamp,
    seq: u64,
}

impl Pair {
    fn apply(machine: &mut Machine, stamp: Stamp, seq: u64, blob: &[u8]) -> Vec<(RequestId, Reply)> {
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq };
        let mut out = Applied::default();
        machine.apply(stamp, Some(id), Command::decode(blob).expect("a command"), &mut out);
        machine.check_invariants().expect("the invariants hold");
        out.replies.into_iter().map(|(id, reply)| (id, as_logged(reply))).collect()
    }

    fn both(&mut self, command: &Command<'_>) {
        self.seq += 1;
        let blob = logged::logged(&mut self.engine, &self.leader, self.stamp, command);
        let by_leader = Pair::apply(&mut self.leader, self.stamp, self.seq, &blob);
        assert_eq!(by_leader, Pair::apply(&mut self.direct, self.stamp, self.seq, &blob));
    }

    fn pass(&mut self, ms: u64) {
        self.stamp.logical_ms += ms;
        self.stamp.wall_us += ms * 1000;
        while self.leader.has_due(self.stamp) {
            self.both(&Command::Expire { idle_ms: 600_000 });
        }
    }

    fn transaction(&mut self, resp: Resp, member: Option<Member>, argvs: &[Vec<Vec<u8>>]) {
        let mut commands: Vec<Words<'_>> =
            argvs.iter().map(|argv| argv.iter().map(Vec::as_slice).collect()).collect();
        let exec = |commands: Vec<Words<'_>>| {
            let mut blob = Vec::new();
            Command::Transaction { db: 0, resp, member, watched: vec![], commands }.encode(&mut blob);
            blob
        };
        self.seq += 1;
        commands.push(ECHO_SCRIPT.iter().copied().collect());
        let request = exec(commands.clone());
        let before = self.leader.state_hash();
        let request = Command::decode(&request).expect("a command");
        let effects = logged::logged(&mut self.engine, &self.leader, self.stamp, &request);
        assert_eq!(self.leader.state_hash(), before, "a run changes nothing");
        commands.pop();
        commands.push(ECHO.iter().copied().collect());
        let by_leader = comparable(Pair::apply(&mut self.leader, self.stamp, self.seq, &effects), argvs);
        let directly =
            comparable(Pair::apply(&mut self.direct, self.stamp, self.seq, &exec(commands)), argvs);
        let shown = || {
            let show =
                |argv: &Vec<Vec<u8>>| argv.iter().map(|word| format!("{} ", word.escape_ascii())).collect();
            argvs.iter().map(show).collect::<Vec<String>>()
        };
        assert_eq!(by_leader, directly, "member {member:?} {:#?}", shown());
        assert_eq!(self.leader.stats().differing_effects, 0);
        let is_equal = !self.exact || self.leader.state_hash() == self.direct.state_hash();
        assert!(is_equal, "member {member:?} {:#?}", shown());
    }
}

/// A member's write of several keys that is taken back half-way leaves free records idle a while longer; effects never hold such a
/// try. So `exact` runs have none, and others compare replies alone.
fn run(seed: u64, steps: u64, exact: bool, with_readers: bool) {
    let mut dice = Dice::new(seed);
    let stamp = Stamp { term: 1, logical_ms: 1_700_000_000_000, wall_us: 1_700_000_000_000_000 };
    let (leader, direct) = (Machine::new(), Machine::new());
    let mut pair = Pair { exact, leader, engine: Engine::new(), direct, stamp, seq: 0 };
    pair.both(&Command::Redis {
        db: 0,
        resp: Resp::Two,
        member: None,
        argv: ECHO_SCRIPT.iter().copied().collect(),
    });
    if with_readers {
        pair.both(&Command::Upgrade(UpgradeCommand::Raise { to: 2 }));
    }
    for step in 0..steps {
        pair.pass([0, 1, 50, 2_000][(step * 7 % 4) as usize]);
        if with_readers && step % 5 == 0 {
            // Plain commands cannot write to what readers hold, in whichever database.
            let db = (step / 5 % 2) as Db;
            pair.both(&Command::AcquireWith {
                db,
                resource: &generate::key(&mut dice),
                ttl_ms: [500, 60_000][db as usize],
                wait_ms: 0,
                owner: b"reader",
                session: None,
                kind: LockKind::Shared,
                value: b"",
            });
        }
        let count = 1 + (step * 31 % 6) as usize;
        let unordered: [&[u8]; 3] = [b"RANDOMKEY", b"OBJECT", b"MEMORY"];
        let taken_back: [&[u8]; 2] = [b"MSET", b"MSETNX"];
        let member = [None, None, Some(Member(1)), Some(Member(2)), None][(step * 13 % 5) as usize];
        let argvs: Vec<Vec<Vec<u8>>> = (0..count)
            .map(|_| generate::command(&mut dice, pair.stamp.logical_ms))
            .filter(|argv| !unordered.iter().any(|name| argv[0].eq_ignore_ascii_case(name)))
            .filter(|argv| {
                member.is_none()
                    || !exact
                    || !taken_back.iter().any(|name| argv[0].eq_ignore_ascii_case(name))
            })
            .collect();
        let resp = if step % 3 == 0 { Resp::Three } else { Resp::Two };
        pair.transaction(resp, member, &argvs);
    }
}

#[test]
fn transactions_through_the_overlay_equal_those_applied_directly() {
    let steps = number("REDFENCE_STEPS", 1_500);
    let seeds = std::env::var("REDFENCE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .map_or(1..5, |seed| seed..seed + 1);
    for seed in seeds {
        println!("seed {seed}");
        run(seed, steps, true, false);
        run(seed, steps / 2, false, false);
        run(seed, steps, true, true);
    }
}

struct NoTime;

impl redfence_core::script::CpuMeter for NoTime {
    fn elapsed_us(&mut self) -> u64 {
        0
    }
}

fn redis<'a>(words: &[&'a str]) -> Command<'a> {
    let argv = words.iter().map(|word| word.as_bytes()).collect();
    Command::Redis { db: 0, resp: Resp::Two, member: None, argv }
}

fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut blob = Vec::new();
    command.encode(&mut blob);
    blob
}

/// An entry lets so many blocked clients try; the others try behind the first command of the next entry. The second script of that
/// entry must not have been run on what they take.
#[test]
fn no_script_runs_before_blocked_clients_have_tried() {
    let mut machine = Machine::with_limits(Limits { due_per_entry_max: 2, ..Limits::default() });
    let origin = Origin { node: 1, incarnation: 1 };
    let mut stamp = Stamp { term: 1, logical_ms: 1_000, wall_us: 1_000_000 };
    for seq in 1..=5 {
        let mut out = Applied::default();
        machine.apply(stamp, Some(RequestId { origin, seq }), redis(&["BLPOP", "l", "0"]), &mut out);
    }
    let mut out = Applied::default();
    machine.apply(stamp, None, redis(&["RPUSH", "l", "a", "b", "c", "d", "e"]), &mut out);
    assert_eq!(out.replies.len(), 2, "as many as an entry may");

    // As a leader does it.
    stamp.logical_ms += 1;
    let mut served = out.replies.len();
    while machine.has_due(stamp) {
        let mut out = Applied::default();
        machine.apply(stamp, None, Command::Expire { idle_ms: 600_000 }, &mut out);
        served += out.replies.len();
    }
    let mut engine = Engine::new();
    let scripts = [
        redis(&["EVAL", "redis.call('set', KEYS[1], 'x') return 1", "1", "other"]),
        redis(&["EVAL", "return redis.call('lpop', KEYS[1])", "1", "l"]),
    ];
    let mut entry = EntryBuilder::new(stamp);
    for (seq, script) in (6..).zip(&scripts) {
        let ran = engine.run(&machine, stamp, &encoded(script), &mut NoTime);
        entry.push_batch(origin, 0, [(seq, ran.blob)]);
    }
    let mut out = Applied::default();
    machine.apply_entry(&entry.finish(), &mut out).expect("a known entry");
    let wrong = out.replies.iter().find(|(_, reply)| matches!(reply, Reply::Error(_)));
    assert_eq!(wrong, None, "a script saw what blocked clients took before it");
    assert_eq!(served, 5);
}

/// Scripts share an entry where none touches what one before it has changed. A watched key is touched.
#[test]
fn what_a_transaction_with_a_script_watches_it_depends_on() {
    let machine = Machine::new();
    let stamp = Stamp { term: 1, logical_ms: 1_000, wall_us: 1_000_000 };
    let token = machine.watch_token(0, b"guard");
    for (token, is_stale) in [(token, false), (token + 1, true)] {
        let transaction = Command::Transaction {
            db: 0,
            resp: Resp::Two,
            member: None,
            watched: vec![Watched { db: 0, key: b"guard", token }],
            commands: vec![["EVAL", "return redis.call('set', KEYS[1], 'x')", "1", "lock"]
                .iter()
                .map(|word| word.as_bytes())
                .collect()],
        };
        let ran = Engine::new().run(&machine, stamp, &encoded(&transaction), &mut NoTime);
        let read: Vec<&[u8]> = ran.touched.read.iter().map(|(_, key)| &key[..]).collect();
        assert!(read.contains(&&b"guard"[..]), "{read:?}");
        assert_eq!(ran.touched.written.is_empty(), is_stale);
    }
}
