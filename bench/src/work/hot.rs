//! All clients wait for one lock, release it at once, and queue again.
//!
//! A hand-over is measured from the moment one client sends its release to the moment another reads its grant.

use super::{agreed, granted, write_owner, TTL_MS};
use crate::load_generator::{Client, NextStep, Tally};
use crate::resp;
use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

const WAIT_MS: &[u8] = b"60000";

/// When the lock was last released: the next holder measures the hand-over from it.
pub(crate) type LastRelease = Rc<Cell<Option<Instant>>>;

pub(crate) struct HotLockClient {
    name: Rc<Vec<u8>>,
    last_release: LastRelease,
    number: usize,
    attempt: u64,
    owner: Vec<u8>,
    fence: Option<i64>,
    asked_at: Instant,
}

impl HotLockClient {
    pub(crate) fn new(name: &Rc<Vec<u8>>, last_release: &LastRelease, number: usize) -> HotLockClient {
        HotLockClient {
            name: Rc::clone(name),
            last_release: Rc::clone(last_release),
            number,
            attempt: 0,
            owner: Vec::new(),
            fence: None,
            asked_at: Instant::now(),
        }
    }
}

impl Client for HotLockClient {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        match self.fence {
            None => {
                self.attempt += 1;
                write_owner(self.number, self.attempt, &mut self.owner);
                resp::encode(
                    &[b"LOCK.ACQUIRE", &self.name, TTL_MS, b"WAIT", WAIT_MS, b"OWNER", &self.owner],
                    out,
                );
            }
            Some(fence) => {
                let mut digits = Vec::with_capacity(20);
                let _ = write!(digits, "{fence}");
                resp::encode(&[b"LOCK.RELEASE", &self.name, &digits], out);
                self.last_release.set(Some(now));
            }
        }
        self.asked_at = now;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        if self.fence.take().is_some() {
            agreed(reply)?;
            return Ok(NextStep::MayStop);
        }
        self.fence = Some(granted(reply)?);
        tally.done += 1;
        tally.latencies.record(now - self.asked_at);
        if let Some(last_release) = self.last_release.take() {
            tally.second.record(now - last_release);
        }
        Ok(NextStep::MustContinue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_hand_over_is_from_one_clients_release_to_anothers_grant() {
        let (name, last_release) = (Rc::new(b"hot".to_vec()), LastRelease::default());
        let mut one = HotLockClient::new(&name, &last_release, 1);
        let mut other = HotLockClient::new(&name, &last_release, 2);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        let start = Instant::now();
        one.ask(start, &mut out);
        other.ask(start, &mut out);
        assert_eq!(one.take(b"*2\r\n:5\r\n:30000\r\n", start, &mut tally), Ok(NextStep::MustContinue));
        assert_eq!(tally.second.count(), 0);
        let released = start + Duration::from_millis(7);
        one.ask(released, &mut out);
        let got = released + Duration::from_millis(2);
        assert_eq!(other.take(b"*2\r\n:6\r\n:30000\r\n", got, &mut tally), Ok(NextStep::MustContinue));
        assert_eq!(tally.second.longest_us(), 2_000.0);
        assert_eq!(one.take(b"*2\r\n:1\r\n$2\r\nok\r\n", got, &mut tally), Ok(NextStep::MayStop));
        assert_eq!(tally.done, 2);
    }
}
