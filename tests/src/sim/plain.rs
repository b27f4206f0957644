//! Clients of an unchanged Redlock library: `SET NX PX` with a value of their own, scripts to stretch it and to let go. Some
//! have one master, any node's ordinary listener; others take every founder for a master of its own, ask each by its Redlock
//! listener, and hold the lock where a majority said yes in time.
//!
//! What one member answers goes into the history as unknown: the fence chain then only asks that whatever was seen can be
//! explained by it. That a majority is a lock is judged by the time each client may believe it holds it.

use super::calls::{Ask, Does, Heard};
use super::clients::Client;
use super::plan::Plan;
use super::world::World;
use crate::checker::{Answer, Call, Operation, Outcome};
use crate::rng::Rng;
use redfence::node_api::NodeId;

/// A master that gives no certain answer to a release is asked again this often.
const TRIES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `LOCK.*`
    Locks,
    /// One master.
    Plain,
    /// Every founder is a master.
    Redlock,
}

impl Role {
    pub fn draw(plan: &Plan, rng: &mut Rng) -> Role {
        if plan.plain_permille + plan.redlock_permille == 0 {
            return Role::Locks;
        }
        match rng.below(1_200) {
            drawn if drawn < plan.plain_permille => Role::Plain,
            drawn if drawn < plan.plain_permille + plan.redlock_permille => Role::Redlock,
            _ => Role::Locks,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Taking,
    Held,
    LettingGo,
}

/// One try for one lock, under a value of its own.
#[derive(Clone, Debug)]
pub struct Attempt {
    resource: u32,
    owner: u64,
    ttl_ms: u64,
    begun_us: u64,
    stage: Stage,
    /// Masters that are still to be asked at this stage: a node, and its number as a member (0: none).
    left: Vec<(NodeId, NodeId)>,
    granted: u64,
    tries: u32,
}

/// What a plain client does next.
pub enum Next {
    Ask(NodeId, Ask),
    Pause(u64),
}

impl World {
    pub(super) fn plain_acts(&mut self, at: usize, home: NodeId) -> Next {
        let resource = self.clients[at].rng.below(u64::from(self.plan.resources)) as u32;
        let Some(mut attempt) = self.clients[at].attempt.take() else {
            if self.clients[at].rng.per_mille(self.plan.look_permille) {
                return Next::Ask(home, Ask::Look { resource });
            }
            let attempt = self.new_attempt(at, home, resource);
            self.clients[at].attempt = Some(attempt);
            return Next::Pause(0);
        };
        let next = match attempt.stage {
            Stage::Taking => self.take(at, &mut attempt),
            Stage::Held => self.hold(at, home, &mut attempt),
            Stage::LettingGo => self.let_go(at, &mut attempt),
        };
        let over =
            attempt.stage == Stage::LettingGo && matches!(next, Next::Pause(_)) && attempt.left.is_empty();
        self.clients[at].attempt = (!over).then_some(attempt);
        next
    }

    fn new_attempt(&mut self, at: usize, home: NodeId, resource: u32) -> Attempt {
        let owner = self.number();
        let left = self.masters(at, home);
        let ttl_ms = *self.clients[at].rng.pick(&self.plan.ttl_ms).expect("not empty");
        let (begun_us, stage) = (self.kernel.now_us, Stage::Taking);
        Attempt { resource, owner, ttl_ms, begun_us, stage, left, granted: 0, tries: 0 }
    }

    /// In the order in which they are asked, last first.
    fn masters(&mut self, at: usize, home: NodeId) -> Vec<(NodeId, NodeId)> {
        if self.clients[at].role == Role::Plain {
            return vec![(home, 0)];
        }
        let mut masters: Vec<(NodeId, NodeId)> = (1..=self.plan.founders).map(|id| (id, id)).collect();
        let first = self.clients[at].rng.below(self.plan.founders) as usize;
        masters.rotate_left(first);
        masters
    }

    fn is_reachable(&self, host: NodeId) -> bool {
        self.kernel.hosts.get(&host).is_some_and(super::kernel::host::Host::is_up)
    }

    fn take(&mut self, at: usize, attempt: &mut Attempt) -> Next {
        while let Some((host, member)) = attempt.left.pop() {
            if self.is_reachable(host) {
                let (resource, owner, ttl_ms) = (attempt.resource, attempt.owner, attempt.ttl_ms);
                return Next::Ask(host, Ask::Take { resource, owner, ttl_ms, member });
            }
        }
        let is_redlock = self.clients[at].role == Role::Redlock;
        let wanted = if is_redlock { self.plan.founders / 2 + 1 } else { 1 };
        let valid_us = self.rules().shortest_ns(attempt.ttl_ms) / 1_000;
        if attempt.granted < wanted || self.kernel.now_us >= attempt.begun_us + valid_us {
            self.begin_to_let_go(at, attempt);
            return Next::Pause(0);
        }
        if is_redlock {
            self.note_majority(attempt);
        }
        attempt.stage = Stage::Held;
        // Mostly within its time, now and then past it.
        Next::Pause(self.clients[at].rng.below(1_200 * attempt.ttl_ms))
    }

    fn note_majority(&mut self, attempt: &Attempt) {
        let (owner, ttl_ms) = (attempt.owner, attempt.ttl_ms);
        self.majorities.push(Operation {
            process: 0,
            resource: attempt.resource,
            invoke_ns: attempt.begun_us * 1_000,
            complete_ns: self.kernel.now_us * 1_000,
            call: Call::Acquire { owner, ttl_ms, wait_ms: 0, session: 0 },
            outcome: Outcome::Answered(Answer::Taken),
            group: 0,
        });
    }

    fn hold(&mut self, at: usize, home: NodeId, attempt: &mut Attempt) -> Next {
        let (resource, owner, ttl_ms) = (attempt.resource, attempt.owner, attempt.ttl_ms);
        let whole = self.clients[at].whole_scripts;
        match self.clients[at].rng.below(10) {
            0..3 => Next::Ask(home, Ask::Look { resource }),
            3 if self.clients[at].role == Role::Plain => {
                let does = Does::CompareAndPexpire { ttl_ms };
                Next::Ask(home, Ask::Script { resource, owner, does, member: 0, whole })
            }
            _ => {
                self.begin_to_let_go(at, attempt);
                self.let_go(at, attempt)
            }
        }
    }

    fn begin_to_let_go(&mut self, at: usize, attempt: &mut Attempt) {
        let home = self.kernel.hosts.keys().copied().find(|id| self.is_reachable(*id)).unwrap_or(1);
        attempt.stage = Stage::LettingGo;
        attempt.left = self.masters(at, home);
        attempt.tries = 0;
    }

    fn let_go(&mut self, at: usize, attempt: &mut Attempt) -> Next {
        let whole = self.clients[at].whole_scripts;
        while let Some((host, member)) = attempt.left.pop() {
            if self.is_reachable(host) {
                let (resource, owner, does) = (attempt.resource, attempt.owner, Does::CompareAndDelete);
                return Next::Ask(host, Ask::Script { resource, owner, does, member, whole });
            }
        }
        Next::Pause(1_000 * self.clients[at].rng.below(self.plan.think_ms_max))
    }
}

impl Client {
    /// Takes an answer into account. True where it goes on at once.
    pub(super) fn heard_of_attempt(&mut self, ask: &Ask, heard: &Heard) -> bool {
        let Some(attempt) = &mut self.attempt else { return false };
        match (ask, heard) {
            (Ask::Take { .. }, Heard::Taken) => attempt.granted += 1,
            (Ask::Script { .. }, Heard::NoScript) => self.whole_scripts = true,
            _ => {}
        }
        if let Ask::Script { does: Does::CompareAndDelete, member, .. } = ask {
            let again = matches!(heard, Heard::NoScript | Heard::Unknown | Heard::Failed);
            if again && attempt.tries < TRIES_MAX {
                attempt.tries += 1;
                attempt.left.push((if *member == 0 { self.home } else { *member }, *member));
            }
        }
        true
    }
}
