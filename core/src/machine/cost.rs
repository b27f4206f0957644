//! What a command is likely to cost when it is applied, told before it is logged.
//!
//! An estimate in microseconds of a slow core, by words, bytes and the collections it goes through. It decides no answer: nodes
//! use it to keep expensive commands from standing in front of cheap ones (the limit that all nodes agree on is in `work.rs`).

use super::log::codec::{acts_on_one_lock, without_user};
use super::log::command::{Command, Db};
use super::log::script_use::names_script;
use super::Machine;
use crate::keyspace::args::is;

/// Bytes that are sent, written and copied in a microsecond.
const BYTES_PER_US: usize = 256;
/// Elements of a collection that are looked at in a microsecond.
const ELEMENTS_PER_US: usize = 2;
/// Words of a command that may name such a collection and are looked up.
const NAMES_MAX: usize = 16;
/// No logged command may do more work than this.
const COLLECTIONS_US_MAX: usize = 20_000;

/// Commands whose work grows with what they find.
const SEARCHING: &[&str] = &[
    "SUNIONSTORE",
    "SINTERSTORE",
    "SDIFFSTORE",
    "ZUNIONSTORE",
    "ZINTERSTORE",
    "ZDIFFSTORE",
    "ZRANGESTORE",
    "ZREMRANGEBYSCORE",
    "ZREMRANGEBYRANK",
    "ZREMRANGEBYLEX",
    "ZMPOP",
    "LREM",
    "LINSERT",
    "LTRIM",
    "LMPOP",
    "SORT",
    "COPY",
    // Reads come here in transactions alone.
    "SMEMBERS",
    "SUNION",
    "SINTER",
    "SINTERCARD",
    "SDIFF",
    "HGETALL",
    "HKEYS",
    "HVALS",
    "LRANGE",
    "LPOS",
    "ZRANGE",
    "ZREVRANGE",
    "ZRANGEBYSCORE",
    "ZREVRANGEBYSCORE",
    "ZRANGEBYLEX",
    "ZREVRANGEBYLEX",
    "ZLEXCOUNT",
    "ZUNION",
    "ZINTER",
    "ZINTERCARD",
    "ZDIFF",
];
/// The same, where they are given a count.
const POPPING: &[&str] = &["LPOP", "RPOP", "SPOP", "ZPOPMIN", "ZPOPMAX"];

/// Looks at one lock, at all who hold it or wait for it.
const LOOKS: &[&str] = &["LOCK.INFO", "LOCK.QUEUE"];

impl Machine {
    /// Of an encoded command. Scripts cost nothing here: they are run before they are logged, within limits of their own.
    #[inline]
    #[must_use]
    pub fn cost_us(&self, blob: &[u8]) -> u64 {
        if acts_on_one_lock(blob) {
            return 1 + (blob.len() / BYTES_PER_US) as u64;
        }
        self.decoded_cost_us(blob)
    }

    fn decoded_cost_us(&self, blob: &[u8]) -> u64 {
        let words = match Command::decode(without_user(blob)) {
            Some(Command::Redis { db, argv, .. } | Command::FenceCall { db, argv, .. }) => {
                self.words_us(db, &argv)
            }
            Some(Command::Transaction { db, watched, commands, .. }) => {
                let commands: Option<usize> = commands.iter().map(|argv| self.words_us(db, argv)).sum();
                commands.map(|commands| commands + watched.len())
            }
            Some(Command::MAcquire { resources, .. } | Command::MAcquireShared { resources, .. }) => {
                Some(resources.len())
            }
            Some(Command::MRelease { pairs, .. }) => Some(pairs.len()),
            Some(
                Command::Acquire { .. }
                | Command::AcquireWith { .. }
                | Command::Convert { .. }
                | Command::ForceReleaseOne { .. }
                | Command::SessionOpenWith { .. }
                | Command::Release { .. }
                | Command::Renew { .. }
                | Command::ForceRelease { .. }
                | Command::SessionOpen { .. }
                | Command::SessionKeepAlive { .. }
                | Command::SessionClose { .. }
                | Command::SessionsTouch { .. }
                | Command::SessionsOrphan { .. }
                | Command::Cancel { .. }
                | Command::Expire { .. }
                | Command::OriginStart { .. }
                | Command::OriginGone { .. }
                | Command::Settings(_)
                | Command::Upgrade(_)
                | Command::FenceCheck { .. }
                | Command::Conditional(_)
                | Command::Effects(_)
                | Command::Digest(_)
                | Command::OfUser(_),
            )
            | None => Some(1),
            #[cfg(feature = "next-version")]
            Some(Command::Next) => Some(1),
        };
        words.map_or(0, |words| (words + blob.len() / BYTES_PER_US) as u64)
    }

    /// `None`: it holds a script.
    fn words_us(&self, db: Db, argv: &[&[u8]]) -> Option<usize> {
        let (name, words) = argv.split_first()?;
        if names_script(name) {
            return None;
        }
        // A blocking command looks at its keys and then registers for each of them.
        let each = if matches!(name, [b'b' | b'B', ..]) { 2 } else { 1 };
        let is_one_of = |names: &[&str]| names.iter().any(|one| is(name, one));
        let found = match is_one_of(SEARCHING) || (words.len() > 1 && is_one_of(POPPING)) {
            true => words.iter().take(NAMES_MAX).map(|word| self.elements_at(db, word)).sum(),
            false => 0,
        };
        let shown = match words.first() {
            Some(name) if is_one_of(LOOKS) => self.work_of_look(db, name) as usize,
            Some(_) | None => 0,
        };
        Some(each * argv.len() + (found / ELEMENTS_PER_US + shown).min(COLLECTIONS_US_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::Resp;
    use crate::machine::version::UpgradeCommand;
    use crate::machine::Applied;
    use crate::types::{LockKind, Stamp};

    fn redis<'a>(words: &[&'a str]) -> Command<'a> {
        let argv = words.iter().map(|word| word.as_bytes()).collect();
        Command::Redis { db: 0, resp: Resp::Two, member: None, argv }
    }

    fn cost_us(machine: &Machine, words: &[&str]) -> u64 {
        let mut blob = Vec::new();
        redis(words).encode(&mut blob);
        machine.cost_us(&blob)
    }

    #[test]
    fn a_command_costs_what_it_names_carries_and_goes_through() {
        let mut machine = Machine::new();
        let names: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
        let push: Vec<&str> = ["SADD", "set"].into_iter().chain(names.iter().map(String::as_str)).collect();
        assert!(cost_us(&machine, &push) >= 1_000);
        assert!(cost_us(&machine, &["SUNIONSTORE", "to", "set"]) < 10, "nothing is there");
        machine.apply(Stamp::default(), None, redis(&push), &mut Applied::default());
        assert!(cost_us(&machine, &["SUNIONSTORE", "to", "set"]) >= 500);
        assert!(cost_us(&machine, &["SADD", "set", "one"]) < 10, "one element, however many are there");
        assert!(cost_us(&machine, &["SET", "k", &"x".repeat(60_000)]) >= 200);
        assert_eq!(cost_us(&machine, &["EVAL", "return 1", "0"]), 0);
    }

    #[test]
    fn a_look_costs_what_it_shows() {
        let mut machine = Machine::new();
        let raise = Command::Upgrade(UpgradeCommand::Raise { to: 2 });
        machine.apply(Stamp::default(), None, raise, &mut Applied::default());
        for number in 0..500 {
            let owner = format!("reader{number}");
            let command = Command::AcquireWith {
                db: 0,
                resource: b"read",
                ttl_ms: 60_000,
                wait_ms: 0,
                owner: owner.as_bytes(),
                session: None,
                kind: LockKind::Shared,
                value: b"",
            };
            machine.apply(Stamp::default(), None, command, &mut Applied::default());
        }
        for look in ["LOCK.INFO", "LOCK.QUEUE"] {
            assert!(cost_us(&machine, &[look, "read"]) >= 4_000, "{look}");
            assert!(cost_us(&machine, &[look, "other"]) < 10, "{look}");
        }
    }
}
