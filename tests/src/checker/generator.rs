//! Generates histories from a seed: valid by construction, to test the checker with. Tests then corrupt them, so that the
//! checker has something to find.

use super::history::{Answer, Call, History, Operation, Outcome, Reason, NEVER};
use crate::rng::Rng;

/// The parameters of a generated history.
#[derive(Clone, Copy, Debug)]
pub struct HistoryShape {
    pub operations: usize,
    pub resources: u32,
    /// Processes of each resource.
    pub processes: u64,
    /// Operations of unknown outcome, per thousand.
    pub unknown_per_mille: u64,
    /// Tries that may be refused as busy. Without them the fast checker is exact.
    pub busy: bool,
    /// Longest time from a request to its linearization point, and from there to its reply.
    pub window_ns: u64,
}

#[derive(Clone, Copy)]
struct CurrentHolder {
    owner: u64,
    fence: u64,
    deadline_ns: u64,
}

#[derive(Clone)]
struct GeneratedProcess {
    number: u64,
    free_ns: u64,
    /// The fence and owner it believes to hold.
    held: Option<(u64, u64)>,
    /// The owner of an acquire whose reply was lost.
    retry: Option<u64>,
}

struct HistoryGenerator {
    rng: Rng,
    shape: HistoryShape,
    now_ns: u64,
    holder: Option<CurrentHolder>,
    last: u64,
    ended: Option<(u64, Reason)>,
    processes: Vec<GeneratedProcess>,
    next_process: u64,
    next_owner: u64,
}

const TTL_MS: [u64; 3] = [1, 3, 10];

/// A valid history.
#[must_use]
pub fn generate(seed: u64, shape: HistoryShape) -> History {
    let mut history = History::default();
    let each = shape.operations / shape.resources as usize;
    for resource in 0..shape.resources {
        let mut rng = Rng::new(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(resource)));
        let first = u64::from(resource) << 40;
        let process =
            |number| GeneratedProcess { number: first + number, free_ns: 0, held: None, retry: None };
        let mut generator = HistoryGenerator {
            now_ns: rng.below(1_000),
            rng,
            shape,
            holder: None,
            last: 0,
            ended: None,
            processes: (0..shape.processes).map(process).collect(),
            next_process: first + shape.processes,
            next_owner: first + 1,
        };
        history.operations.extend((0..each).filter_map(|_| generator.step(resource)));
    }
    history
}

impl HistoryGenerator {
    fn step(&mut self, resource: u32) -> Option<Operation> {
        self.now_ns += 1 + self.rng.below(self.shape.window_ns);
        if let Some(holder) = self.holder {
            // The end comes late, never early.
            if holder.deadline_ns + self.rng.below(self.shape.window_ns) <= self.now_ns {
                self.ended = Some((holder.fence, Reason::Expired));
                self.holder = None;
            }
        }
        let at = self.rng.below(self.processes.len() as u64) as usize;
        let free_ns = self.processes[at].free_ns;
        if free_ns >= self.now_ns {
            return None;
        }
        let room_ns = (self.now_ns - free_ns).min(self.shape.window_ns + 1);
        let invoke_ns = self.now_ns - self.rng.below(room_ns);
        let complete_ns = self.now_ns + self.rng.below(self.shape.window_ns);
        let lost = self.rng.below(1_000) < self.shape.unknown_per_mille;
        let takes_place = !lost || self.rng.below(2) == 0;
        let call = self.pick(at)?;
        let answer = match takes_place {
            true => self.carry_out(call),
            false => Answer::Nothing,
        };
        let number = self.processes[at].number;
        self.believe(at, call, answer, lost);
        self.processes[at].free_ns = complete_ns + 1;
        let (complete_ns, outcome) = match lost {
            true => (NEVER, Outcome::Unknown),
            false => (complete_ns, Outcome::Answered(answer)),
        };
        Some(Operation { process: number, resource, invoke_ns, complete_ns, call, outcome, group: 0 })
    }

    fn pick(&mut self, at: usize) -> Option<Call> {
        let process = self.processes[at].clone();
        let ttl_ms = TTL_MS[self.rng.below(3) as usize];
        if let Some((fence, _)) = process.held {
            return Some(match self.rng.below(5) {
                0 => Call::Renew { fence, ttl_ms },
                1 => Call::Look,
                _ => Call::Release { fence },
            });
        }
        if self.rng.below(4) == 0 {
            return Some(Call::Look);
        }
        let owner = process.retry.unwrap_or(self.next_owner);
        let would_be_busy = self.holder.is_some_and(|holder| holder.owner != owner);
        if would_be_busy && !self.shape.busy {
            return None;
        }
        if process.retry.is_none() {
            self.next_owner += 1;
        }
        Some(Call::Acquire { owner, ttl_ms, wait_ms: 0, session: 0 })
    }

    fn carry_out(&mut self, call: Call) -> Answer {
        match call {
            Call::Acquire { owner, ttl_ms, .. } => {
                let deadline_ns = self.now_ns + ttl_ms * 1_000_000;
                match &mut self.holder {
                    Some(holder) if holder.owner == owner => {
                        holder.deadline_ns = holder.deadline_ns.max(deadline_ns);
                        let ttl_ms = (holder.deadline_ns - self.now_ns) / 1_000_000;
                        Answer::Granted { fence: holder.fence, ttl_ms }
                    }
                    Some(_) => Answer::Busy,
                    None => {
                        self.last += 10;
                        self.holder = Some(CurrentHolder { owner, fence: self.last, deadline_ns });
                        Answer::Granted { fence: self.last, ttl_ms }
                    }
                }
            }
            Call::Release { fence } | Call::Renew { fence, .. } => {
                let Some(holder) = self.holder.as_mut().filter(|holder| holder.fence == fence) else {
                    let ended = self.ended.filter(|(of, _)| *of == fence && self.holder.is_none());
                    return Answer::Refused(ended.map_or(Reason::NotOwner, |(_, reason)| reason));
                };
                if let Call::Renew { ttl_ms, .. } = call {
                    holder.deadline_ns = self.now_ns + ttl_ms * 1_000_000;
                } else {
                    self.holder = None;
                    self.ended = Some((fence, Reason::AlreadyReleased));
                }
                Answer::Done
            }
            Call::Look => {
                let owner = self.holder.map_or(0, |holder| holder.owner);
                Answer::Seen { held: self.holder.is_some(), fence: self.last, owner }
            }
            Call::ForceRelease
            | Call::Open { .. }
            | Call::KeepAlive { .. }
            | Call::Close { .. }
            | Call::ReleaseBy { .. }
            | Call::RenewBy { .. }
            | Call::Orphan { .. } => Answer::Nothing,
        }
    }

    fn believe(&mut self, at: usize, call: Call, answer: Answer, lost: bool) {
        let process = &mut self.processes[at];
        match (call, answer) {
            (Call::Acquire { owner, .. }, _) if lost => process.retry = Some(owner),
            (Call::Acquire { owner, .. }, Answer::Granted { fence, .. }) => {
                process.held = Some((fence, owner));
                process.retry = None;
            }
            (Call::Release { .. }, _) => process.held = None,
            (Call::Renew { .. }, Answer::Refused(_)) if !lost => process.held = None,
            _ => {}
        }
        if lost {
            process.number = self.next_process;
            self.next_process += 1;
        }
    }
}
