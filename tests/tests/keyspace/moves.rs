//! What a random conversation is made of: single commands, scripts, pipelines, transactions with and without a guard, and clients that
//! wait for an item.

use super::generate::{self, Dice};
use super::pair::{words, Argv, Pair};
use super::scripts;
use redfence_tests::client::REPLY_WITHIN;
use redfence_tests::process::poll_until;
use redfence_tests::resp::{Connection, Value};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) struct Mover {
    pub(crate) dice: Dice,
    pub(crate) pair: Pair,
}

impl Mover {
    pub(crate) fn step(&mut self) {
        match self.dice.roll(100) {
            0..=49 => self.commands(1),
            50..=64 => self.script(),
            65..=79 => {
                let count = 2 + self.dice.roll(12);
                self.commands(count);
            }
            80..=97 => self.transaction(),
            _ => self.blocking(),
        }
    }

    fn commands(&mut self, count: usize) {
        let batch: Vec<Argv> = (0..count).map(|_| self.command()).collect();
        self.pair.exchange(&batch);
    }

    fn command(&mut self) -> Argv {
        generate::command(&mut self.dice, now_ms())
    }

    fn script(&mut self) {
        let argv = self.eval();
        self.pair.exchange(&[argv]);
    }

    fn eval(&mut self) -> Argv {
        let (body, call) = (self.dice.pick(scripts::BODIES), self.dice.pick(scripts::CALLS));
        let mut argv = vec![b"EVAL".to_vec(), body.as_bytes().to_vec(), b"2".to_vec()];
        argv.extend(generate::fill(&mut self.dice, call, now_ms()));
        argv
    }

    /// `[WATCH, and perhaps somebody writes] MULTI … EXEC`, with all that may go wrong in it.
    fn transaction(&mut self) {
        if self.dice.roll(2) == 0 {
            let watch = generate::fill(&mut self.dice, "WATCH {k} {k}", now_ms());
            self.pair.exchange(&[watch]);
            if self.dice.roll(2) == 0 {
                // A new value, so that it is a change by anybody's measure.
                let fresh = format!("SET {{s}} fresh{}", self.dice.roll(1 << 30));
                let write = generate::fill(&mut self.dice, &fresh, now_ms());
                self.pair.another().exchange(&[write]);
            }
        }
        let mut batch = vec![words("MULTI")];
        for _ in 0..self.dice.roll(6) {
            let argv = match self.dice.roll(20) {
                0 => words(self.dice.pick(&[
                    "MULTI",
                    "WATCH s0",
                    "UNWATCH",
                    "PING",
                    "ECHO x",
                    "SELECT 0",
                    "SELECT 99",
                ])),
                1..=4 => self.eval(),
                _ => self.command(),
            };
            batch.push(argv);
        }
        batch.push(words(if self.dice.roll(10) == 0 { "DISCARD" } else { "EXEC" }));
        if self.dice.roll(2) == 0 {
            self.pair.exchange(&batch);
        } else {
            // Word by word the answers of EXEC cannot be told apart by their commands, so it goes with the last of them.
            let (first, rest) = batch.split_first().expect("it begins with MULTI");
            self.pair.exchange(std::slice::from_ref(first));
            self.pair.exchange(rest);
        }
    }

    /// A client waits at both, until something comes.
    fn blocking(&mut self) {
        let wait = self.dice.pick(&[
            "BLPOP {l} wait1 wait2 0",
            "BRPOP wait1 wait2 30",
            "BLMOVE wait1 {l} LEFT RIGHT 30",
            "BRPOPLPUSH wait1 wait1 0",
            "BLMPOP 30 2 wait1 wait2 RIGHT COUNT 2",
            "BZPOPMIN zwait1 zwait2 0",
            "BZPOPMAX zwait1 30",
            "BZMPOP 30 2 zwait2 zwait1 MAX COUNT 2",
        ]);
        let wait = generate::fill(&mut self.dice, wait, now_ms());
        let mut waiter = self.pair.another();
        waiter.send(&wait);
        self.await_blocked_or_answered(&mut waiter);
        let push = self.dice.pick(&[
            "RPUSH wait1 {v} {v} {v}",
            "LPUSH wait1 {v}",
            "EVAL return{redis.call('rpush',KEYS[1],'a','b'),redis.call('lpop',KEYS[1])} 1 wait1",
        ]);
        let push = generate::fill(&mut self.dice, push, now_ms());
        let zadd = generate::fill(&mut self.dice, "ZADD zwait1 3 {m} 1.5 {m}", now_ms());
        if self.dice.roll(2) == 0 {
            self.pair.exchange(&[push, zadd]);
        } else {
            self.pair.exchange(&[words("MULTI"), push, zadd, words("EXEC")]);
        }
        waiter.receive(&wait, &[]);
        self.pair.ask("LRANGE wait1 0 -1");
        self.pair.ask("ZRANGE zwait1 0 -1 WITHSCORES");
        self.pair.ask("DEL wait1 wait2 zwait1 zwait2");
    }

    fn await_blocked_or_answered(&mut self, waiter: &mut Pair) {
        let blocked = |connection: &mut Connection, section: &str, line: &str| match connection
            .ask(&["INFO", section], REPLY_WITHIN)
            .expect("INFO answers")
        {
            Value::Bulk(text) | Value::Verbatim(text) => String::from_utf8_lossy(&text).contains(line),
            other => panic!("INFO: {other:?}"),
        };
        let pair = &mut self.pair;
        let reached = poll_until(REPLY_WITHIN, || {
            waiter.theirs.has_value() && waiter.ours.has_value()
                || blocked(&mut pair.theirs, "clients", "blocked_clients:1\r\n")
                    && blocked(&mut pair.ours, "redfence", "blocked_commands:1\r\n")
        });
        assert!(reached, "a blocking command neither waits nor answers");
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}
