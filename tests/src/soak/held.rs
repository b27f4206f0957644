//! Locks that are held from the beginning to the end: whoever looks sees the same fence.

use std::time::Duration;

use super::load::PATIENCE;
use super::Shared;
use crate::resp::{encode, Connection, Value};
use crate::rng::Rng;

const DAY_MS: &str = "86400000";
const PIPELINE: usize = 500;
const WITHIN: Duration = Duration::from_secs(60);
const TRIES_MAX: usize = 20;

pub struct Held {
    pub fences: Vec<i64>,
}

fn name(number: usize) -> String {
    format!("held:{number:0>48}")
}

/// Takes them, before anything else happens.
pub fn take(shared: &Shared, count: usize) -> Held {
    let mut fences = Vec::with_capacity(count);
    let mut connection = Connection::open(shared.address(0)).expect("a new cluster");
    while fences.len() < count {
        let end = (fences.len() + PIPELINE).min(count);
        let bytes: Vec<u8> =
            (fences.len()..end).flat_map(|at| encode(&["LOCK.ACQUIRE", &name(at), DAY_MS])).collect();
        connection.send_raw(&bytes).expect("sent");
        while fences.len() < end {
            let reply = connection.receive(WITHIN).expect("an answer");
            fences.push(reply.array()[0].integer());
        }
    }
    Held { fences }
}

impl Held {
    /// Looks at one after the other, at all nodes, until the run stops.
    pub fn look_around(&self, shared: &Shared) {
        let mut rng = Rng::new(11);
        let mut node = 0;
        while !shared.stopped() && !self.fences.is_empty() {
            node += 1;
            let Ok(mut connection) = Connection::open(shared.address(node)) else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            for _ in 0..100 {
                let at = rng.below(self.fences.len() as u64) as usize;
                if self.look(shared, &mut connection, at).is_none() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn look(&self, shared: &Shared, connection: &mut Connection, at: usize) -> Option<()> {
        let reply = connection.ask(&["LOCK.INFO", &name(at)], PATIENCE).ok()?;
        if reply.is_error() {
            return None;
        }
        self.compare(shared, at, &reply);
        Some(())
    }

    fn compare(&self, shared: &Shared, at: usize, reply: &Value) {
        let fields = reply.array();
        let field =
            |wanted: &str| fields.chunks_exact(2).find(|pair| pair[0].text() == wanted).map(|pair| &pair[1]);
        let is_held = field("state").is_some_and(|state| state.text() == "held");
        let fence = field("fence").map(Value::integer);
        if !is_held || fence != Some(self.fences[at]) {
            shared.wrong(format!("held lock {at} with fence {}: {reply:?}", self.fences[at]));
        }
        shared.report(|report| report.looks += 1);
    }

    /// In the end: every one of them.
    pub fn check_all(&self, shared: &Shared) {
        let (mut next, mut tries) = (0, 0);
        while next < self.fences.len() {
            tries += 1;
            if tries > TRIES_MAX {
                return shared.wrong("held locks cannot be looked at in the end".to_owned());
            }
            let Ok(mut connection) = Connection::open(shared.address(tries)) else { continue };
            while next < self.fences.len() {
                let end = (next + PIPELINE).min(self.fences.len());
                let bytes: Vec<u8> = (next..end).flat_map(|at| encode(&["LOCK.INFO", &name(at)])).collect();
                if connection.send_raw(&bytes).is_err() {
                    break;
                }
                let replies: Vec<Value> =
                    (next..end).map_while(|_| connection.receive(WITHIN).ok()).collect();
                if replies.len() < end - next || replies.iter().any(Value::is_error) {
                    std::thread::sleep(Duration::from_millis(500));
                    break;
                }
                replies.iter().zip(next..).for_each(|(reply, at)| self.compare(shared, at, reply));
                next = end;
            }
        }
    }
}
