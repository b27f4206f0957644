//! A worker: takes a batch of locks of its own in one pipeline, then releases them in another, at one node after the other.
//!
//! Nobody else knows its names, so every answer is known beforehand: a grant with a higher fence than the last one of that name, a release that
//! is `ok`. After an error it asks again with the same OWNER, which must end in the same lock.

use std::time::{Duration, Instant};

use super::Shared;
use crate::resp::{encode, Connection, Value};

/// Longer than any outage of the run.
const TTL_MS: &str = "600000";
pub(super) const PATIENCE: Duration = Duration::from_secs(8);

struct Worker<'a> {
    shared: &'a Shared,
    number: usize,
    node: usize,
    connection: Option<Connection>,
    /// The last fence of each name.
    fences: Vec<i64>,
    round: u64,
}

pub fn work(shared: &Shared, number: usize, pipeline: usize) {
    let (node, fences) = (number, vec![0; pipeline]);
    let mut worker = Worker { shared, number, node, connection: None, fences, round: 0 };
    while !shared.stopped() {
        worker.round += 1;
        let all: Vec<usize> = (0..pipeline).collect();
        if !worker.until_done(all.clone(), Worker::acquire, Worker::acquired) {
            return;
        }
        if !worker.until_done(all, Worker::release, Worker::released) {
            return;
        }
    }
}

impl Worker<'_> {
    fn name(&self, at: usize) -> String {
        format!("soak:{}:{at}", self.number)
    }

    fn acquire(&self, at: usize) -> Vec<u8> {
        let owner = format!("{}:{}:{at}", self.number, self.round);
        encode(&["LOCK.ACQUIRE", &self.name(at), TTL_MS, "OWNER", &owner])
    }

    fn release(&self, at: usize) -> Vec<u8> {
        encode(&["LOCK.RELEASE", &self.name(at), &self.fences[at].to_string()])
    }

    /// What is wrong with the answer, if anything is.
    fn acquired(&mut self, at: usize, reply: &Value, again: bool) -> Option<String> {
        let fence = match reply {
            Value::Array(items) => match items.first() {
                Some(Value::Integer(fence)) => *fence,
                _ => return Some(format!("no grant: {reply:?}")),
            },
            // It ended before the node could tell it: only after so long a time that the first answer was lost.
            Value::NullBulk | Value::NullArray if again => return None,
            _ => return Some(format!("no grant: {reply:?}")),
        };
        let last = std::mem::replace(&mut self.fences[at], fence);
        (fence <= last).then(|| format!("fence {fence} of {} after {last}", self.name(at)))
    }

    fn released(&mut self, at: usize, reply: &Value, again: bool) -> Option<String> {
        let words = match reply {
            Value::Array(items) => items.as_slice(),
            _ => &[],
        };
        match words {
            [Value::Integer(1), _] => None,
            [Value::Integer(0), reason] if again && reason.text() == "already_released" => None,
            _ => Some(format!("release of {} with fence {}: {reply:?}", self.name(at), self.fences[at])),
        }
    }

    /// Asks for all of it, and again for whatever was not served. False: the run is over.
    fn until_done(
        &mut self,
        mut left: Vec<usize>,
        question: fn(&Self, usize) -> Vec<u8>,
        check: fn(&mut Self, usize, &Value, bool) -> Option<String>,
    ) -> bool {
        let mut again = false;
        while !left.is_empty() {
            if self.shared.stopped() {
                return false;
            }
            let bytes: Vec<u8> = left.iter().flat_map(|at| question(self, *at)).collect();
            let begun = Instant::now();
            if !self.send(&bytes) {
                continue;
            }
            let (mut unserved, mut is_refused) = (Vec::new(), false);
            for (place, at) in left.iter().enumerate() {
                match self.receive(begun) {
                    Ok(reply) if reply.is_error() => {
                        self.refused(reply.error_code());
                        unserved.push(*at);
                        is_refused = true;
                    }
                    Ok(reply) => {
                        if let Some(wrong) = check(self, *at, &reply, again) {
                            self.shared.wrong(wrong);
                        }
                    }
                    Err(()) => {
                        unserved.extend(&left[place..]);
                        break;
                    }
                }
            }
            again = true;
            left = unserved;
            if is_refused {
                self.give_up_node();
            }
        }
        true
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        if self.connection.is_none() {
            self.node += 1;
            self.connection = Connection::open(self.shared.address(self.node)).ok();
        }
        let sent = self.connection.as_mut().is_some_and(|connection| connection.send_raw(bytes).is_ok());
        if !sent {
            self.give_up_node();
        }
        sent
    }

    /// The next one may serve, as the refusal of one that shuts down says too.
    fn give_up_node(&mut self) {
        self.connection = None;
        std::thread::sleep(Duration::from_millis(5));
    }

    fn receive(&mut self, begun: Instant) -> Result<Value, ()> {
        let reply = self.connection.as_mut().ok_or(()).and_then(|c| c.receive(PATIENCE).map_err(drop));
        match &reply {
            Ok(value) if !value.is_error() => {
                let us = begun.elapsed().as_micros() as u64;
                let minute = self.shared.minute();
                self.shared.report(|report| report.minute(minute).took(us));
            }
            Ok(_) => {}
            Err(()) => {
                self.connection = None;
                self.count("connection");
            }
        }
        reply
    }

    fn refused(&self, code: &str) {
        self.count(code);
        if !["UNAVAILABLE", "INDETERMINATE"].contains(&code) {
            self.shared.wrong(format!("refused with {code}"));
        }
    }

    fn count(&self, code: &str) {
        let minute = self.shared.minute();
        self.shared.report(|report| report.minute(minute).failed(code));
    }
}
