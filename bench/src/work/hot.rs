//! All clients wait for one lock, hold it for no time, and stand in line again.
//!
//! A hand-over is measured from the moment one client sends its release to the moment another reads its grant.

use super::{agreed, granted, write_owner, TTL_MS};
use crate::fleet::{Client, Tally, Then};
use crate::resp;
use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

const WAIT_MS: &[u8] = b"60000";

/// When the lock was last given up, for whoever gets it next.
pub(crate) type GivenUp = Rc<Cell<Option<Instant>>>;

pub(crate) struct Hot {
    name: Rc<Vec<u8>>,
    given_up: GivenUp,
    number: usize,
    attempt: u64,
    owner: Vec<u8>,
    fence: Option<i64>,
    asked_at: Instant,
}

impl Hot {
    pub(crate) fn new(name: &Rc<Vec<u8>>, given_up: &GivenUp, number: usize) -> Hot {
        Hot {
            name: Rc::clone(name),
            given_up: Rc::clone(given_up),
            number,
            attempt: 0,
            owner: Vec::new(),
            fence: None,
            asked_at: Instant::now(),
        }
    }
}

impl Client for Hot {
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
                self.given_up.set(Some(now));
            }
        }
        self.asked_at = now;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<Then, String> {
        if self.fence.take().is_some() {
            agreed(reply)?;
            return Ok(Then::MayRest);
        }
        self.fence = Some(granted(reply)?);
        tally.done += 1;
        tally.latencies.record(now - self.asked_at);
        if let Some(given_up) = self.given_up.take() {
            tally.second.record(now - given_up);
        }
        Ok(Then::GoesOn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_hand_over_is_from_one_clients_release_to_anothers_grant() {
        let (name, given_up) = (Rc::new(b"hot".to_vec()), GivenUp::default());
        let mut one = Hot::new(&name, &given_up, 1);
        let mut other = Hot::new(&name, &given_up, 2);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        let start = Instant::now();
        one.ask(start, &mut out);
        other.ask(start, &mut out);
        assert_eq!(one.take(b"*2\r\n:5\r\n:30000\r\n", start, &mut tally), Ok(Then::GoesOn));
        assert_eq!(tally.second.count(), 0);
        let released = start + Duration::from_millis(7);
        one.ask(released, &mut out);
        let got = released + Duration::from_millis(2);
        assert_eq!(other.take(b"*2\r\n:6\r\n:30000\r\n", got, &mut tally), Ok(Then::GoesOn));
        assert_eq!(tally.second.longest_us(), 2_000.0);
        assert_eq!(one.take(b"*2\r\n:1\r\n$2\r\nok\r\n", got, &mut tally), Ok(Then::MayRest));
        assert_eq!(tally.done, 2);
    }
}
