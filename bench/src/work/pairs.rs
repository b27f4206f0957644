//! Takes a lock and gives it back, again and again: on names no other client asks for, or all of them as readers of one.

use super::{agreed, granted, write_name, write_owner, READ_NAME, TTL_MS};
use crate::load_generator::{Client, NextStep, Tally};
use crate::resp;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

/// Each client goes round among this many names of its own.
const NAMES_PER_CLIENT: u64 = 500;

pub(crate) const COMPARE_AND_DELETE: &[u8] =
    b"if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
pub(crate) const FENCED: &[u8] = b"if redis.call('set',KEYS[1],ARGV[1],'NX','PX',ARGV[2]) then return redis.call('incr',KEYS[2]) else return false end";

/// How a lock is asked for.
#[derive(Clone, Debug)]
pub(crate) enum LockCommands {
    /// `SET NX PX`, and compare-and-delete by script.
    SetNx { compare_and_delete: Vec<u8> },
    /// The same with a counter beside it, by a script.
    Fenced { acquire: Vec<u8>, compare_and_delete: Vec<u8> },
    /// `LOCK.ACQUIRE` and `LOCK.RELEASE`.
    Lock,
    /// The same with `SHARED`, all clients on one name.
    SharedLock,
    /// The Lua library's functions.
    Functions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairPhase {
    Acquire,
    Release,
}

pub(crate) struct PairClient {
    words: Rc<LockCommands>,
    number: usize,
    pair: u64,
    half: PairPhase,
    name: Vec<u8>,
    counter: Vec<u8>,
    owner: Vec<u8>,
    fence: Vec<u8>,
    asked_at: Instant,
}

impl PairClient {
    pub(crate) fn new(words: &Rc<LockCommands>, number: usize) -> PairClient {
        PairClient {
            words: Rc::clone(words),
            number,
            pair: 0,
            half: PairPhase::Acquire,
            name: Vec::new(),
            counter: Vec::new(),
            owner: Vec::new(),
            fence: Vec::new(),
            asked_at: Instant::now(),
        }
    }

    fn begin(&mut self) {
        self.pair += 1;
        let number = match *self.words {
            LockCommands::SharedLock => READ_NAME,
            LockCommands::SetNx { .. }
            | LockCommands::Fenced { .. }
            | LockCommands::Lock
            | LockCommands::Functions => self.number as u64 * NAMES_PER_CLIENT + self.pair % NAMES_PER_CLIENT,
        };
        write_name(number, &mut self.name);
        write_owner(self.number, self.pair, &mut self.owner);
        if matches!(*self.words, LockCommands::Fenced { .. }) {
            self.counter.clear();
            self.counter.extend_from_slice(b"counter:");
            self.counter.extend_from_slice(&self.name);
        }
    }
}

impl Client for PairClient {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.half == PairPhase::Acquire {
            self.begin();
        }
        let (name, owner, fence) = (&self.name, &self.owner, &self.fence);
        match (&*self.words, self.half) {
            (LockCommands::SetNx { .. }, PairPhase::Acquire) => {
                resp::encode(&[b"SET", name, owner, b"NX", b"PX", TTL_MS], out);
            }
            (LockCommands::Fenced { acquire, .. }, PairPhase::Acquire) => {
                resp::encode(&[b"EVALSHA", acquire, b"2", name, &self.counter, owner, TTL_MS], out);
            }
            (
                LockCommands::SetNx { compare_and_delete } | LockCommands::Fenced { compare_and_delete, .. },
                PairPhase::Release,
            ) => {
                resp::encode(&[b"EVALSHA", compare_and_delete, b"1", name, owner], out);
            }
            (LockCommands::Lock, PairPhase::Acquire) => {
                resp::encode(&[b"LOCK.ACQUIRE", name, TTL_MS, b"OWNER", owner], out)
            }
            (LockCommands::SharedLock, PairPhase::Acquire) => {
                resp::encode(&[b"LOCK.ACQUIRE", name, TTL_MS, b"SHARED", b"OWNER", owner], out)
            }
            (LockCommands::Lock | LockCommands::SharedLock, PairPhase::Release) => {
                resp::encode(&[b"LOCK.RELEASE", name, fence], out)
            }
            (LockCommands::Functions, PairPhase::Acquire) => {
                resp::encode(&[b"FCALL", b"lock_acquire", b"1", name, TTL_MS, b"OWNER", owner], out);
            }
            (LockCommands::Functions, PairPhase::Release) => {
                resp::encode(&[b"FCALL", b"lock_release", b"1", name, fence], out);
            }
        }
        self.asked_at = now;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        let took = now - self.asked_at;
        match self.half {
            PairPhase::Acquire => {
                tally.latencies.record(took);
                match &*self.words {
                    LockCommands::SetNx { .. } if reply == b"+OK\r\n" => {}
                    LockCommands::Fenced { .. } if reply.first() == Some(&b':') => {}
                    LockCommands::SetNx { .. } | LockCommands::Fenced { .. } => {
                        return Err(format!("not granted: {}", resp::shown(reply)))
                    }
                    LockCommands::Lock | LockCommands::SharedLock | LockCommands::Functions => {
                        let fence = granted(reply)?;
                        self.fence.clear();
                        let _ = write!(self.fence, "{fence}");
                    }
                }
                self.half = PairPhase::Release;
                Ok(NextStep::MustContinue)
            }
            PairPhase::Release => {
                tally.second.record(took);
                match &*self.words {
                    LockCommands::SetNx { .. } | LockCommands::Fenced { .. } if reply == b":1\r\n" => {}
                    LockCommands::SetNx { .. } | LockCommands::Fenced { .. } => {
                        return Err(format!("not released: {}", resp::shown(reply)))
                    }
                    LockCommands::Lock | LockCommands::SharedLock | LockCommands::Functions => agreed(reply)?,
                }
                tally.done += 1;
                self.half = PairPhase::Acquire;
                Ok(NextStep::MayStop)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_an_acquire_and_the_release_of_its_fence() {
        let mut client = PairClient::new(&Rc::new(LockCommands::Lock), 3);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        let now = Instant::now();
        client.ask(now, &mut out);
        assert!(out.starts_with(b"*5\r\n$12\r\nLOCK.ACQUIRE\r\n$64\r\ntenant:"), "{}", resp::shown(&out));
        assert_eq!(client.take(b"*2\r\n:4711\r\n:30000\r\n", now, &mut tally), Ok(NextStep::MustContinue));
        out.clear();
        client.ask(now, &mut out);
        assert!(out.ends_with(b"$4\r\n4711\r\n"), "{}", resp::shown(&out));
        assert_eq!(client.take(b"*2\r\n:1\r\n$2\r\nok\r\n", now, &mut tally), Ok(NextStep::MayStop));
        assert_eq!((tally.done, tally.latencies.count(), tally.second.count()), (1, 1, 1));
    }

    #[test]
    fn readers_ask_for_one_name_each_as_an_owner_of_its_own() {
        let words = Rc::new(LockCommands::SharedLock);
        let asked = |number| {
            let (mut client, mut out) = (PairClient::new(&words, number), Vec::new());
            client.ask(Instant::now(), &mut out);
            (client.name, client.owner, out)
        };
        let (one, other) = (asked(1), asked(2));
        assert_eq!(one.0, other.0);
        assert_ne!(one.1, other.1);
        assert!(one.2.windows(6).any(|word| word == b"SHARED"), "{}", resp::shown(&one.2));
    }

    #[test]
    fn a_refusal_is_an_error_not_a_pair() {
        let words = Rc::new(LockCommands::SetNx { compare_and_delete: vec![b'a'; 40] });
        let mut client = PairClient::new(&words, 0);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        client.ask(Instant::now(), &mut out);
        assert!(client.take(b"$-1\r\n", Instant::now(), &mut tally).is_err());
        assert_eq!(tally.done, 0);
    }
}
