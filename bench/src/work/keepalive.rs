//! Renews one lock, or keeps one session alive, as often as it can.

use super::{agreed, granted, write_owner, TTL_MS};
use crate::load_generator::{Client, NextStep, Tally};
use crate::resp;
use std::io::Write;
use std::time::Instant;

pub(crate) struct RenewClient {
    name: Vec<u8>,
    owner: Vec<u8>,
    fence: Vec<u8>,
    asked_at: Instant,
}

impl RenewClient {
    pub(crate) fn new(number: usize) -> RenewClient {
        let mut owner = Vec::new();
        write_owner(number, 0, &mut owner);
        // Far from the names of the pairs.
        let name = super::name(900_000_000_000 + number as u64);
        RenewClient { name, owner, fence: Vec::new(), asked_at: Instant::now() }
    }
}

impl Client for RenewClient {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.fence.is_empty() {
            resp::encode(&[b"LOCK.ACQUIRE", &self.name, TTL_MS, b"OWNER", &self.owner], out);
        } else {
            resp::encode(&[b"LOCK.RENEW", &self.name, &self.fence, TTL_MS], out);
        }
        self.asked_at = now;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        if self.fence.is_empty() {
            let _ = write!(self.fence, "{}", granted(reply)?);
        } else {
            agreed(reply)?;
            tally.done += 1;
            tally.latencies.record(now - self.asked_at);
        }
        Ok(NextStep::MayStop)
    }
}

pub(crate) struct SessionClient {
    id: Vec<u8>,
    asked_at: Instant,
}

impl SessionClient {
    pub(crate) fn new() -> SessionClient {
        SessionClient { id: Vec::new(), asked_at: Instant::now() }
    }
}

impl Client for SessionClient {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.id.is_empty() {
            resp::encode(&[b"LOCK.SESSION", b"OPEN", TTL_MS], out);
        } else {
            resp::encode(&[b"LOCK.SESSION", b"KEEPALIVE", &self.id], out);
        }
        self.asked_at = now;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        if self.id.is_empty() {
            let id = resp::lines(reply).nth(1).filter(|_| reply.first() == Some(&b'$'));
            self.id = id.ok_or_else(|| format!("no session: {}", resp::shown(reply)))?.to_vec();
        } else if reply.first() == Some(&b':') {
            tally.done += 1;
            tally.latencies.record(now - self.asked_at);
        } else {
            return Err(format!("not kept alive: {}", resp::shown(reply)));
        }
        Ok(NextStep::MayStop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_renewals_count_not_the_grant_before_them() {
        let mut client = RenewClient::new(1);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        client.ask(Instant::now(), &mut out);
        client.take(b"*2\r\n:9\r\n:30000\r\n", Instant::now(), &mut tally).expect("a grant");
        out.clear();
        client.ask(Instant::now(), &mut out);
        assert!(resp::shown(&out).contains("LOCK.RENEW"));
        assert_eq!(tally.done, 0);
        client.take(b"*2\r\n:1\r\n:30000\r\n", Instant::now(), &mut tally).expect("renewed");
        assert_eq!(tally.done, 1);
    }
}
