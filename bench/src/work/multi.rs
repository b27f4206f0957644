//! Takes four locks in one step and gives them back in one step, on names no other client asks for.

use super::{write_owner, TTL_MS};
use crate::load_generator::{Client, NextStep, Tally};
use crate::resp;
use std::time::Instant;

const LOCKS: usize = 4;

pub(crate) struct MultiLockClient {
    names: [Vec<u8>; LOCKS],
    fences: Vec<Vec<u8>>,
    number: usize,
    attempt: u64,
    owner: Vec<u8>,
    asked_at: Instant,
}

impl MultiLockClient {
    pub(crate) fn new(number: usize) -> MultiLockClient {
        let first = 800_000_000_000 + (number * LOCKS) as u64;
        let names = std::array::from_fn(|at| super::name(first + at as u64));
        MultiLockClient {
            names,
            fences: Vec::new(),
            number,
            attempt: 0,
            owner: Vec::new(),
            asked_at: Instant::now(),
        }
    }
}

impl Client for MultiLockClient {
    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        let mut words: Vec<&[u8]> = Vec::with_capacity(2 * LOCKS + 3);
        if self.fences.is_empty() {
            self.attempt += 1;
            write_owner(self.number, self.attempt, &mut self.owner);
            words.extend([b"LOCK.MACQUIRE".as_slice(), b"4"]);
            words.extend(self.names.iter().map(Vec::as_slice));
            words.extend([TTL_MS, b"OWNER", &self.owner]);
        } else {
            words.extend([b"LOCK.MRELEASE".as_slice(), b"4"]);
            words.extend(
                self.names.iter().zip(&self.fences).flat_map(|(name, fence)| [name.as_slice(), fence]),
            );
        }
        resp::encode(&words, out);
        self.asked_at = now;
    }

    fn take(&mut self, reply: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        let numbers: Vec<i64> = resp::integers(reply).collect();
        if self.fences.is_empty() {
            if numbers.len() != LOCKS + 1 {
                return Err(format!("not granted: {}", resp::shown(reply)));
            }
            self.fences = numbers[..LOCKS].iter().map(|fence| fence.to_string().into_bytes()).collect();
            tally.latencies.record(now - self.asked_at);
            return Ok(NextStep::MustContinue);
        }
        if numbers != [1; LOCKS] {
            return Err(format!("not released: {}", resp::shown(reply)));
        }
        self.fences.clear();
        tally.second.record(now - self.asked_at);
        tally.done += 1;
        Ok(NextStep::MayStop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_or_nothing() {
        let mut client = MultiLockClient::new(1);
        let (mut tally, mut out) = (Tally::default(), Vec::new());
        client.ask(Instant::now(), &mut out);
        assert!(client.take(b"*-1\r\n", Instant::now(), &mut tally).is_err());
        let grant = b"*2\r\n*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n:30000\r\n";
        assert_eq!(client.take(grant, Instant::now(), &mut tally), Ok(NextStep::MustContinue));
        out.clear();
        client.ask(Instant::now(), &mut out);
        assert!(out.starts_with(b"*10\r\n$13\r\nLOCK.MRELEASE"));
        let one_short = b"*4\r\n*2\r\n:1\r\n$2\r\nok\r\n*2\r\n:0\r\n$7\r\nexpired\r\n*2\r\n:1\r\n$2\r\nok\r\n*2\r\n:1\r\n$2\r\nok\r\n";
        assert!(client.take(one_short, Instant::now(), &mut tally).is_err());
    }
}
