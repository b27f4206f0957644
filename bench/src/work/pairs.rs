//! Takes a lock and gives it back, again and again, on names no other client asks for.

use super::{agreed, granted, write_owner, TTL_MS};
use crate::fleet::{Client, Tally, Then};
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
pub(crate) enum Words {
    /// `SET NX PX`, and compare-and-delete by script.
    SetNx { compare_and_delete: Vec<u8> },
    /// The same with a counter beside it, by a script.
    Fenced { acquire: Vec<u8>, compare_and_delete: Vec<u8> },
    /// `LOCK.ACQUIRE` and `LOCK.RELEASE`.
    Lock,
    /// The Lua library's functions.
    Functions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Acquire,
    Release,
}

pub(crate) struct Pairs {
    words: Rc<Words>,
    number: usize,
    pair: u64,
    half: Half,
    name: Vec<u8>,
    counter: Vec<u8>,
    owner: Vec<u8>,
    fence: Vec<u8>,
    asked_at: Instant,
}

impl Pairs {
    pub(crate) fn new(words: &Rc<Words>, number: usize) -> Pairs {
        Pairs {
            words: Rc::clone(words),
            number,
            pair: 0,
            half: Half::Acquire,
            name: Vec::new(),
            counter: Vec::new(),
            owner: Vec::new(),
            fence: Vec::new(),
            asked_at: Instant::now(),
        }
    }

    fn begin(&mut self) {
        self.pair += 1;
        self.name.clear();
        let own = self.number as u64 * NAMES_PER_CLIENT + self.pair % NAMES_PER_CLIENT;
        let _ = write!(self.name, "{:<52}{own:012}", "tenant:4711:invoices:settlement:");
        write_owner(self.number, self.pair, &mut self.owner);
        if matches!(*self.words, Words::Fenced { .. }) {
            self.counter.clear();
            self.counter.extend_from_slice(b"counter:");
            self.counter.extend_from_slice(&self.name);
        }
    }
}

impl Client for Pairs {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.half == Half::Acquire {
            self.begin();
        }
        let (name, owner, fence) = (&self.name, &self.owner, &self.fence);
        match (&*self.words, self.half) {
            (Words::SetNx { .. }, Half::Acquire) => {
                resp::encode(&[b"SET", name, owner, b"NX", b"PX", TTL_MS], out);
            }
            (Words::Fenced { acquire, .. }, Half::Acquire) => {
                resp::encode(&[b"EVALSHA", acquire, b"2", name, &self.counter, owner, TTL_MS], out);
            }
            (
                Words::SetNx { compare_and_delete } | Words::Fenced { compare_and_delete, .. },
                Half::Release,
            ) => {
                resp::encode(&[b"EVALSHA", compare_and_delete, b"1", name, owner], out);
            }
            (Words::Lock, Half::Acquire) => {
                resp::encode(&[b"LOCK.ACQUIRE", name, TTL_MS, b"OWNER", owner], out)
            }
            (Words::Lock, Half::Release) => resp::encode(&[b"LOCK.RELEASE", name, fence], out),
            (Words::Functions, Half::Acquire) => {
                resp::encode(&[b"FCALL", b"lock_acquire", b"1", name, TTL_MS, b"OWNER", owner], out);
            }
            (Words::Functions, Half::Release) => {
                resp::encode(&[b"FCALL", b"lock_release", b"1", name, fence], out);
            }
        }
        self.asked_at = now;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<Then, String> {
        let took = now - self.asked_at;
        match self.half {
            Half::Acquire => {
                tally.latencies.record(took);
                match &*self.words {
                    Words::SetNx { .. } if reply == b"+OK\r\n" => {}
                    Words::Fenced { .. } if reply.first() == Some(&b':') => {}
                    Words::SetNx { .. } | Words::Fenced { .. } => {
                        return Err(format!("not granted: {}", resp::shown(reply)))
                    }
                    Words::Lock | Words::Functions => {
                        let fence = granted(reply)?;
                        self.fence.clear();
                        let _ = write!(self.fence, "{fence}");
                    }
                }
                self.half = Half::Release;
                Ok(Then::GoesOn)
            }
            Half::Release => {
                tally.second.record(took);
                match &*self.words {
                    Words::SetNx { .. } | Words::Fenced { .. } if reply == b":1\r\n" => {}
                    Words::SetNx { .. } | Words::Fenced { .. } => {
                        return Err(format!("not released: {}", resp::shown(reply)))
                    }
                    Words::Lock | Words::Functions => agreed(reply)?,
                }
                tally.done += 1;
                self.half = Half::Acquire;
                Ok(Then::MayRest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_an_acquire_and_the_release_of_its_fence() {
        let mut client = Pairs::new(&Rc::new(Words::Lock), 3);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        let now = Instant::now();
        client.ask(now, &mut out);
        assert!(out.starts_with(b"*5\r\n$12\r\nLOCK.ACQUIRE\r\n$64\r\ntenant:"), "{}", resp::shown(&out));
        assert_eq!(client.take(b"*2\r\n:4711\r\n:30000\r\n", now, &mut tally), Ok(Then::GoesOn));
        out.clear();
        client.ask(now, &mut out);
        assert!(out.ends_with(b"$4\r\n4711\r\n"), "{}", resp::shown(&out));
        assert_eq!(client.take(b"*2\r\n:1\r\n$2\r\nok\r\n", now, &mut tally), Ok(Then::MayRest));
        assert_eq!((tally.done, tally.latencies.count(), tally.second.count()), (1, 1, 1));
    }

    #[test]
    fn a_refusal_is_an_error_not_a_pair() {
        let words = Rc::new(Words::SetNx { compare_and_delete: vec![b'a'; 40] });
        let mut client = Pairs::new(&words, 0);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        client.ask(Instant::now(), &mut out);
        assert!(client.take(b"$-1\r\n", Instant::now(), &mut tally).is_err());
        assert_eq!(tally.done, 0);
    }
}
