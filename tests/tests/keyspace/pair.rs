//! One conversation held with both servers at once: what goes to the one goes to the other, and the answers are compared.

use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::resp::{Connection, Protocol, Value};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// How many commands a failure shows.
const TRAIL: usize = 40;

pub(crate) type Argv = Vec<Vec<u8>>;

pub(crate) struct Pair {
    pub(crate) theirs: Connection,
    pub(crate) ours: Connection,
    addresses: (SocketAddr, SocketAddr),
    protocol: Protocol,
    seed: u64,
    trail: VecDeque<String>,
}

impl Pair {
    pub(crate) fn open(theirs: SocketAddr, ours: SocketAddr, protocol: Protocol, seed: u64) -> Pair {
        let connect =
            |address| Connection::open_with(address, protocol).unwrap_or_else(|error| panic!("{error}"));
        Pair {
            theirs: connect(theirs),
            ours: connect(ours),
            addresses: (theirs, ours),
            protocol,
            seed,
            trail: VecDeque::new(),
        }
    }

    /// A second client of both.
    pub(crate) fn another(&self) -> Pair {
        Pair::open(self.addresses.0, self.addresses.1, self.protocol, self.seed)
    }

    /// A command in plain words.
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        self.exchange(&[words(line)]).remove(0)
    }

    /// Sends all at once, then compares the answers one by one. Answers those of Redis.
    pub(crate) fn exchange(&mut self, batch: &[Argv]) -> Vec<Value> {
        for argv in batch {
            self.send(argv);
        }
        let mut queued: Vec<Vec<u8>> = Vec::new();
        let mut answers = Vec::with_capacity(batch.len());
        for argv in batch {
            let answer = self.receive(argv, &queued);
            match argv[0].to_ascii_uppercase().as_slice() {
                b"EXEC" | b"DISCARD" => queued.clear(),
                _ if answer == Value::Simple(b"QUEUED".to_vec()) => queued.push(argv[0].clone()),
                _ => {}
            }
            answers.push(answer);
        }
        answers
    }

    pub(crate) fn send(&mut self, argv: &Argv) {
        for connection in [&mut self.theirs, &mut self.ours] {
            connection.send(argv).unwrap_or_else(|error| panic!("send: {error}"));
        }
    }

    /// The next answer of both, which must be the same. `queued`: the commands an `EXEC` answers.
    pub(crate) fn receive(&mut self, argv: &Argv, queued: &[Vec<u8>]) -> Value {
        let theirs = self.theirs.receive(REPLY_WITHIN).unwrap_or_else(|error| panic!("redis: {error:?}"));
        let ours = match self.ours.receive(REPLY_WITHIN) {
            Ok(ours) => ours,
            Err(error) => self.fail(argv, &format!("redis {theirs:?}\n  ours  none: {error:?}")),
        };
        self.trail.push_back(format!("{} -> {theirs:?}", shown(argv)));
        if self.trail.len() > TRAIL {
            self.trail.pop_front();
        }
        let same = match (&theirs, &ours) {
            (Value::Array(theirs), Value::Array(ours)) if argv[0].eq_ignore_ascii_case(b"EXEC") => {
                theirs.len() == ours.len()
                    && theirs.len() == queued.len()
                    && queued
                        .iter()
                        .zip(theirs.iter().zip(ours))
                        .all(|(name, (theirs, ours))| same(name, theirs, ours))
            }
            _ => same(&argv[0], &theirs, &ours),
        };
        if !same {
            self.fail(argv, &format!("redis {theirs:?}\n  ours  {ours:?}"));
        }
        theirs
    }

    fn fail(&self, argv: &Argv, what: &str) -> ! {
        let trail: Vec<&str> = self.trail.iter().map(String::as_str).collect();
        panic!(
            "REDFENCE_SEED={} {}: {}\n  {what}\n{}",
            self.seed,
            self.protocol.name(),
            shown(argv),
            trail.join("\n")
        );
    }
}

pub(crate) fn words(line: &str) -> Argv {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn shown(argv: &Argv) -> String {
    argv.iter().map(|word| format!("{} ", word.escape_ascii())).collect()
}

/// Whether two answers to a command are the same, but for what has no order and for time that passes between the two.
fn same(name: &[u8], theirs: &Value, ours: &Value) -> bool {
    let name = name.to_ascii_uppercase();
    let slack = match name.as_slice() {
        b"TTL" | b"EXPIRETIME" => 2,
        b"PTTL" | b"PEXPIRETIME" => 2_000,
        _ => 0,
    };
    if let (Value::Integer(theirs), Value::Integer(ours)) = (theirs, ours) {
        // What is negative is no time.
        let both_times = *theirs >= 0 && *ours >= 0;
        return theirs == ours || (both_times && theirs.abs_diff(*ours) <= slack);
    }
    comparable(&name, theirs) == comparable(&name, ours)
}

fn comparable(name: &[u8], value: &Value) -> Value {
    let unordered = |items: &[Value]| {
        let mut items = items.to_vec();
        items.sort_by_key(|item| format!("{item:?}"));
        items
    };
    match (name, value) {
        (b"KEYS" | b"SMEMBERS" | b"SUNION" | b"SINTER" | b"SDIFF", Value::Array(items)) => {
            Value::Array(unordered(items))
        }
        (_, Value::Set(items)) => Value::Set(unordered(items)),
        (b"SCAN" | b"SSCAN", Value::Array(parts)) => {
            let sorted = parts.iter().map(|part| match part {
                Value::Array(items) => Value::Array(unordered(items)),
                other => other.clone(),
            });
            Value::Array(sorted.collect())
        }
        (_, other) => other.clone(),
    }
}
