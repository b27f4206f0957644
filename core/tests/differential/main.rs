//! Random sequences of commands against a real redis-server and against the keyspace: the replies must be the same bytes.
//!
//! `REDFENCE_SEED` repeats one run, `REDFENCE_STEPS` sets its length, `REDFENCE_SECONDS` makes it a fuzzer: seed after seed from
//! `REDFENCE_SEED` on until the time is up. Without a redis-server on the machine the test says so
//! and passes.
//!
//! # Documented differences, and what is done about them here
//!
//! - Sets, `KEYS` and `SCAN` have no order in Redis: compared sorted.
//! - `DBSIZE` is left out: Redis counts keys whose time is over until somebody looks at them.
//! - Sums of floats are asked only of numbers that doubles and Redis's 80-bit floats both hold exactly.
//! - Maps and sets that a script returns are sorted here and in Lua's order in Redis: not returned whole.
//! - Lua's own error texts are Luau's: scripts here make none but by `error`.
//! - Times pass: `TTL` and its relatives may differ by two seconds.
//! - Random picks (`SPOP`, `SRANDMEMBER`, `RANDOMKEY`, `HRANDFIELD`) are not asked of keys that are there.
//! - `SCAN` cursors are our own: asked with a count that answers all at once.

// A test against a live server needs a clock; the ban is meant for the machine.
#![allow(clippy::disallowed_methods)]

mod generate;
#[cfg(feature = "scripts")]
#[path = "../logged/mod.rs"]
mod logged;
#[cfg(feature = "scripts")]
mod lua;
mod resp;
#[cfg(feature = "scripts")]
mod scripts;

use generate::Dice;
use redfence_core::keyspace::{execute, table, Clock, Context, MemoryKeys, Resp};
use redfence_core::machine::{is_read, Applied, Command, Machine};
use redfence_core::reply::Reply;
use redfence_core::types::{Origin, RequestId, Stamp};
use resp::{to_frame, Client, Frame, Server};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn now() -> Clock {
    let wall_us = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
    Clock { logical_ms: wall_us / 1000, wall_us }
}

/// A millisecond in which nothing has run yet, neither there nor here. Two `EXPIRE … GT` in a row would otherwise come in the same
/// millisecond here and in two there.
fn next_ms() -> Clock {
    let over = now().logical_ms;
    loop {
        let at = now();
        if at.logical_ms > over {
            return at;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The same seeds at every run; `REDFENCE_SEED=n` tries another.
fn seeds() -> Vec<u64> {
    match std::env::var("REDFENCE_SEED") {
        Ok(seed) => vec![seed.parse().expect("REDFENCE_SEED is a number")],
        Err(_) => vec![1, 2],
    }
}

/// The lock machine, asked as a node asks it: reads from the state, the rest by entries.
struct Locks {
    machine: Machine,
    #[cfg(feature = "scripts")]
    engine: redfence_core::script::Engine,
    requests: u64,
}

impl Locks {
    fn new() -> Locks {
        Locks {
            machine: Machine::new(),
            #[cfg(feature = "scripts")]
            engine: redfence_core::script::Engine::new(),
            requests: 0,
        }
    }

    fn call(&mut self, now: Clock, resp: Resp, argv: &[&[u8]]) -> Reply {
        let stamp = Stamp { term: 1, logical_ms: now.logical_ms, wall_us: now.wall_us };
        let mut applied = Applied::default();
        let row = table::find(argv[0]);
        if row.is_none_or(is_read) {
            // A leader stamps an entry before a read when time has passed.
            self.machine.apply(stamp, None, Command::Expire { idle_ms: 600_000 }, &mut applied);
            return self.machine.read(0, resp, argv);
        }
        self.requests += 1;
        let id = RequestId { origin: Origin { node: 1, incarnation: 1 }, seq: self.requests };
        let command = Command::Redis { db: 0, resp, member: None, argv: argv.iter().copied().collect() };
        while self.machine.has_due(stamp) {
            self.machine.apply(stamp, None, Command::Expire { idle_ms: 600_000 }, &mut applied);
        }
        let blob = self.logged(stamp, &command);
        let command = Command::decode(&blob).expect("what was encoded is read");
        self.machine.apply(stamp, Some(id), command, &mut applied);
        if applied.replies.is_empty() {
            // It waits: the real server's client has been told that its time is up.
            self.machine.apply(stamp, None, Command::Cancel { request: id }, &mut applied);
        }
        applied.replies.pop().expect("an answer").1
    }

    #[cfg(feature = "scripts")]
    fn logged(&mut self, stamp: Stamp, command: &Command<'_>) -> Vec<u8> {
        logged::logged(&mut self.engine, &self.machine, stamp, command)
    }

    #[cfg(not(feature = "scripts"))]
    fn logged(&mut self, _stamp: Stamp, command: &Command<'_>) -> Vec<u8> {
        let mut blob = Vec::new();
        command.encode(&mut blob);
        blob
    }

    /// What a node that starts from this one's snapshot is, must be the same.
    fn check_snapshot(&mut self) {
        self.machine.check_invariants().expect("the invariants hold");
        self.machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| self.machine.snapshot_step(7)).collect();
        let restored = Machine::restore(pieces).expect("the snapshot is whole");
        assert_eq!(restored.state_hash(), self.machine.state_hash());
        self.machine = restored;
    }
}

fn shown(argv: &[Vec<u8>]) -> String {
    argv.iter().map(|word| format!("{} ", word.escape_ascii())).collect()
}

/// Brings replies into a form in which equal ones are equal.
fn comparable(name: &[u8], frame: Frame) -> Frame {
    match (name.to_ascii_uppercase().as_slice(), frame) {
        (b"KEYS" | b"SMEMBERS" | b"SUNION" | b"SINTER" | b"SDIFF", Frame::Many(kind, mut items)) => {
            items.sort();
            Frame::Many(kind, items)
        }
        (b"SCAN" | b"SSCAN", Frame::Many(kind, items)) => {
            let sort = |item| match item {
                Frame::Many(kind, mut items) => {
                    items.sort();
                    Frame::Many(kind, items)
                }
                other => other,
            };
            Frame::Many(kind, items.into_iter().map(sort).collect())
        }
        (_, frame) => frame,
    }
}

/// Milliseconds of slack a reply may have.
fn slack(name: &[u8]) -> i64 {
    match name.to_ascii_uppercase().as_slice() {
        b"TTL" | b"EXPIRETIME" => 2,
        b"PTTL" | b"PEXPIRETIME" => 2000,
        _ => 0,
    }
}

fn same(name: &[u8], theirs: &Frame, ours: &Frame) -> bool {
    if let (Frame::Line(b':', theirs), Frame::Line(b':', ours)) = (theirs, ours) {
        let (theirs, ours): (i64, i64) =
            (theirs.parse().expect("an integer"), ours.parse().expect("an integer"));
        let negative_alike = (theirs < 0) == (ours < 0) && (theirs >= 0 || theirs == ours);
        return theirs == ours || (negative_alike && (theirs - ours).abs() <= slack(name));
    }
    theirs == ours
}

fn run(seed: u64, steps: u64, resp: Resp, port: u16) {
    println!("seed {seed} {resp:?}");
    let mut client = Client::connect(port).expect("the server listens");
    if resp == Resp::Three {
        client.call(&[b"HELLO", b"3"]);
    }
    client.call(&[b"FLUSHALL"]);
    let mut dice = Dice::new(seed);
    let mut keys = MemoryKeys::default();
    let mut locks = Locks::new();
    let mut trail: Vec<String> = Vec::new();
    for step in 0..steps {
        keys.now = next_ms();
        let argv = generate::command(&mut dice, keys.now.logical_ms);
        let argv_slices: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
        let theirs = comparable(&argv[0], client.call(&argv_slices));
        let mut cx = Context::new(&mut keys, 0, resp);
        let reply = execute(&mut cx, &argv_slices);
        let reply = cx.would_block.map_or(reply, |block| block.timed_out);
        let ours = comparable(&argv[0], to_frame(&reply, resp));
        let machine = comparable(&argv[0], to_frame(&locks.call(keys.now, resp, &argv_slices), resp));
        if step % 500 == 499 {
            locks.check_snapshot();
        }
        assert!(
            same(&argv[0], &theirs, &machine),
            "seed {seed} {resp:?} step {step}: {}\n  redis {theirs:?}\n  machine {machine:?}",
            shown(&argv)
        );
        trail.push(format!("{} -> {theirs:?}", shown(&argv)));
        if !same(&argv[0], &theirs, &ours) {
            let from = trail.len().saturating_sub(40);
            panic!(
                "seed {seed} {resp:?} step {step}: {}\n  redis {theirs:?}\n  ours  {ours:?}\n{}",
                shown(&argv),
                trail[from..].join("\n")
            );
        }
    }
}

#[test]
fn random_commands_answer_as_redis_does() {
    let Some(server) = Server::start() else {
        println!("skipped: no redis-server on this machine");
        return;
    };
    let steps = number("REDFENCE_STEPS", 5_000);
    for seed in seeds() {
        run(seed, steps, Resp::Two, server.port);
        run(seed, steps, Resp::Three, server.port);
    }
}

/// Commands and scripts in turn, so that scripts meet keys of all kinds. Answers what came out differently.
#[cfg(feature = "scripts")]
fn run_scripts(seed: u64, steps: u64, resp: Resp, port: u16) -> Vec<String> {
    println!("seed {seed} {resp:?} scripts");
    let mut client = Client::connect(port).expect("the server listens");
    if resp == Resp::Three {
        client.call(&[b"HELLO", b"3"]);
    }
    client.call(&[b"FLUSHALL"]);
    let mut dice = Dice::new(seed);
    let mut locks = Locks::new();
    let mut differences = Vec::new();
    for step in 0..steps {
        let at = next_ms();
        let argv =
            if step % 2 == 0 { script(&mut dice, at) } else { generate::command(&mut dice, at.logical_ms) };
        let argv_slices: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
        let theirs = comparable(&argv[0], client.call(&argv_slices));
        let machine = comparable(&argv[0], to_frame(&locks.call(at, resp, &argv_slices), resp));
        if step % 500 == 499 {
            locks.check_snapshot();
        }
        if !same(&argv[0], &theirs, &machine) {
            let words: Vec<_> = argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
            let words = words.join(" ");
            differences
                .push(format!("seed {seed} {resp:?} step {step}: {words}\n{}", apart(&theirs, &machine)));
            // What they hold may differ as well: from here on both begin anew.
            client.call(&[b"FLUSHALL"]);
            locks = Locks::new();
        }
    }
    differences
}

/// A text that lock libraries send, a corner known before, or one made up.
#[cfg(feature = "scripts")]
fn script(dice: &mut Dice, at: Clock) -> Vec<Vec<u8>> {
    let body = match dice.roll(2) {
        0 => dice.pick(scripts::BODIES).to_owned(),
        _ => lua::program(dice, at.logical_ms),
    };
    let call = dice.pick(scripts::CALLS);
    let mut argv = vec![b"EVAL".to_vec(), body.into_bytes(), b"2".to_vec()];
    argv.extend(generate::fill(dice, call, at.logical_ms));
    argv
}

/// Where two replies differ.
#[cfg(feature = "scripts")]
fn apart(theirs: &Frame, ours: &Frame) -> String {
    let text = |frame: Option<&Frame>| match frame {
        Some(Frame::Bulk(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    };
    match (theirs, ours) {
        (Frame::Many(_, theirs), Frame::Many(_, ours)) => {
            let at = theirs.iter().zip(ours).position(|(theirs, ours)| theirs != ours);
            let at = at.unwrap_or(theirs.len().min(ours.len()));
            format!("  item {at}: redis {} ours {}", text(theirs.get(at)), text(ours.get(at)))
        }
        (theirs, ours) => format!("  redis {theirs:?}\n  ours  {ours:?}"),
    }
}

#[cfg(feature = "scripts")]
#[test]
fn random_scripts_answer_as_redis_does() {
    let Some(server) = Server::start() else {
        println!("skipped: no redis-server on this machine");
        return;
    };
    let steps = number("REDFENCE_STEPS", 4_000);
    let seconds = number("REDFENCE_SECONDS", 0);
    let started = std::time::Instant::now();
    let goes_on = |done: u64| match seconds {
        0 => done < seeds().len() as u64,
        seconds => started.elapsed().as_secs() < seconds,
    };
    let (mut differences, mut done) = (Vec::new(), 0);
    while goes_on(done) && differences.len() < 20 {
        let seed = seeds()[0] + done;
        differences.extend(run_scripts(seed, steps, Resp::Two, server.port));
        differences.extend(run_scripts(seed, steps, Resp::Three, server.port));
        done += 1;
    }
    println!("{done} seeds, {} scripts, {} s", done * steps, started.elapsed().as_secs());
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}
