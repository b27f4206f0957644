//! A general search (Wing, Gong, Lowe) over one resource without sessions: does any order of the operations, each within
//! its window, explain every answer? Exponential in the operations of unknown outcome, so for small slices only; it is
//! there to check the fast checker, and shares no code with it.
//!
//! Besides the order it keeps the earliest time at which the order is possible, so that ends by the clock are exact too.

use super::history::{Answer, Call, Operation, Outcome, Reason};
use super::Rules;
use std::collections::HashMap;

/// More operations than this are not searched.
pub const OPERATIONS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Possible,
    Impossible,
    /// Too many states, or too many operations.
    Undecided,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum GrantEnd {
    Released,
    Expired,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LockModel {
    /// Owner and fence.
    holder: Option<(u64, u64)>,
    last: u64,
    ends: Vec<(u64, GrantEnd)>,
}

#[derive(Clone, Debug)]
struct SearchState {
    lock: LockModel,
    now_ns: u64,
    /// The last entry's stamp at the earliest: no earlier than its question, and no later than its commit.
    stamp_ns: u64,
    /// When, on the clock of stamps, the holder's time is up at the earliest.
    deadline_ns: u64,
}

impl SearchState {
    fn times(&self) -> [u64; 3] {
        [self.now_ns, self.stamp_ns, self.deadline_ns]
    }
}

struct Search<'a> {
    operations: Vec<&'a Operation>,
    rules: &'a Rules,
    /// Fences somebody saw that no acquire was told of.
    unseen: Vec<u64>,
    /// Times already tried for an order's set and state; only an earlier one is worth another try.
    tried: HashMap<(u64, LockModel), Vec<[u64; 3]>>,
    states_left: usize,
}

/// Searches at most `states_max` states.
#[must_use]
pub fn decide(operations: &[Operation], rules: &Rules, states_max: usize) -> Decision {
    let operations: Vec<&Operation> = operations
        .iter()
        .filter(|op| op.outcome != Outcome::Failed)
        .filter(|op| !(op.is_unknown() && op.call == Call::Look))
        .collect();
    if operations.len() > OPERATIONS_MAX {
        return Decision::Undecided;
    }
    let told: Vec<u64> = operations
        .iter()
        .filter_map(|op| match op.answer() {
            Some(Answer::Granted { fence, .. }) => Some(fence),
            _ => None,
        })
        .collect();
    let mut unseen: Vec<u64> = operations
        .iter()
        .filter_map(|op| match op.answer() {
            Some(Answer::Seen { fence, .. }) if fence > 0 && !told.contains(&fence) => Some(fence),
            _ => None,
        })
        .collect();
    unseen.extend(told);
    unseen.sort_unstable();
    unseen.dedup();
    let mut search = Search { operations, rules, unseen, tried: HashMap::new(), states_left: states_max };
    let lock = LockModel { holder: None, last: 0, ends: Vec::new() };
    match search.go(0, SearchState { lock, now_ns: 0, stamp_ns: 0, deadline_ns: 0 }) {
        Some(true) => Decision::Possible,
        Some(false) => Decision::Impossible,
        None => Decision::Undecided,
    }
}

impl Search<'_> {
    /// `None`: out of states.
    fn go(&mut self, done: u64, state: SearchState) -> Option<bool> {
        let left = |at: &usize| done & (1 << at) == 0;
        let definite: Vec<usize> =
            (0..self.operations.len()).filter(left).filter(|at| !self.operations[*at].is_unknown()).collect();
        if definite.is_empty() {
            return Some(true);
        }
        // Everything left must still fit behind what was placed.
        let latest_ns = definite.iter().map(|at| self.operations[*at].complete_ns).min().unwrap_or(0);
        if state.now_ns > latest_ns {
            return Some(false);
        }
        let tried = self.tried.entry((done, state.lock.clone())).or_default();
        let times = state.times();
        if tried.iter().any(|known| known.iter().zip(times).all(|(known, time)| *known <= time)) {
            return Some(false);
        }
        tried.push(times);
        self.states_left = self.states_left.checked_sub(1)?;
        if state.lock.holder.is_some() && state.deadline_ns <= latest_ns && self.go(done, expired(&state))? {
            return Some(true);
        }
        for at in (0..self.operations.len()).filter(left) {
            let op = self.operations[at];
            if op.invoke_ns > latest_ns {
                continue;
            }
            for next in self.apply(op, &state) {
                if self.go(done | 1 << at, next)? {
                    return Some(true);
                }
            }
        }
        Some(false)
    }

    /// Every state an operation can lead to, its answer being what it is.
    fn apply(&self, op: &Operation, state: &SearchState) -> Vec<SearchState> {
        let mut state = state.clone();
        state.now_ns = state.now_ns.max(op.invoke_ns);
        if op.call != Call::Look {
            state.stamp_ns = state.stamp_ns.max(op.invoke_ns);
        }
        if state.now_ns > op.complete_ns {
            return Vec::new();
        }
        match op.call {
            Call::Acquire { owner, ttl_ms, .. } => self.acquire(op, state, owner, ttl_ms),
            Call::Release { fence } => match op.outcome {
                Outcome::Answered(Answer::Done) => self.released(state, fence),
                Outcome::Answered(Answer::Refused(reason)) => refused(state, fence, reason),
                _ => self.released(state, fence),
            },
            Call::Renew { fence, ttl_ms } => match op.outcome {
                Outcome::Answered(Answer::Refused(reason)) => refused(state, fence, reason),
                _ if state.lock.holder.is_some_and(|(_, held)| held == fence) => {
                    state.deadline_ns = state.stamp_ns.saturating_add(self.rules.shortest_ns(ttl_ms));
                    vec![state]
                }
                _ => Vec::new(),
            },
            Call::Look => match op.answer() {
                Some(Answer::Seen { held: true, fence, owner }) => {
                    keep_if(state.lock.holder == Some((owner, fence)), state)
                }
                Some(Answer::Seen { held: false, fence, .. }) => {
                    keep_if(state.lock.holder.is_none() && state.lock.last == fence, state)
                }
                _ => vec![state],
            },
            // Plain clients are not searched for.
            Call::ReleaseBy { .. }
            | Call::RenewBy { .. }
            | Call::ForceRelease
            | Call::Open { .. }
            | Call::KeepAlive { .. }
            | Call::Close { .. }
            | Call::Orphan { .. } => vec![state],
        }
    }

    fn acquire(&self, op: &Operation, mut state: SearchState, owner: u64, ttl_ms: u64) -> Vec<SearchState> {
        let holds = state.lock.holder.is_some_and(|(holder, _)| holder == owner);
        match op.outcome {
            Outcome::Answered(Answer::Granted { fence, ttl_ms }) => {
                let lasts_ns = self.rules.shortest_ns(ttl_ms);
                match state.lock.holder {
                    Some((_, held)) if holds && held == fence => {
                        state.deadline_ns = state.stamp_ns.saturating_add(lasts_ns);
                        vec![state]
                    }
                    Some(_) => Vec::new(),
                    None if fence > state.lock.last => {
                        self.grant(&mut state, owner, fence, lasts_ns);
                        vec![state]
                    }
                    None => Vec::new(),
                }
            }
            Outcome::Answered(Answer::Busy) => {
                keep_if(state.lock.holder.is_some_and(|(holder, _)| holder != owner), state)
            }
            Outcome::Unknown if state.lock.holder.is_none() => {
                let anonymous = state.lock.last + 1;
                let mut fences: Vec<u64> =
                    self.unseen.iter().copied().filter(|fence| *fence > state.lock.last).collect();
                fences.push(anonymous);
                let lasts_ns = self.rules.shortest_ns(ttl_ms);
                let granted = fences.into_iter().map(|fence| {
                    let mut next = state.clone();
                    self.grant(&mut next, owner, fence, lasts_ns);
                    next
                });
                granted.collect()
            }
            Outcome::Unknown | Outcome::Failed => Vec::new(),
            Outcome::Answered(_) => vec![state],
        }
    }

    fn grant(&self, state: &mut SearchState, owner: u64, fence: u64, lasts_ns: u64) {
        state.lock.holder = Some((owner, fence));
        state.lock.last = fence;
        state.deadline_ns = state.stamp_ns.saturating_add(lasts_ns);
    }

    fn released(&self, mut state: SearchState, fence: u64) -> Vec<SearchState> {
        if state.lock.holder.is_none_or(|(_, held)| held != fence) {
            return Vec::new();
        }
        state.lock.holder = None;
        state.lock.ends.push((fence, GrantEnd::Released));
        state.deadline_ns = 0;
        vec![state]
    }
}

fn expired(state: &SearchState) -> SearchState {
    let mut next = state.clone();
    if let Some((_, fence)) = next.lock.holder.take() {
        next.lock.ends.push((fence, GrantEnd::Expired));
    }
    next.stamp_ns = next.stamp_ns.max(next.deadline_ns);
    next.now_ns = next.now_ns.max(next.stamp_ns);
    next.deadline_ns = 0;
    next
}

fn refused(state: SearchState, fence: u64, reason: Reason) -> Vec<SearchState> {
    // Nobody can name a fence before it was issued.
    if state.lock.last < fence || state.lock.holder.is_some_and(|(_, held)| held == fence) {
        return Vec::new();
    }
    let end = state.lock.ends.iter().find(|(ended, _)| *ended == fence).map(|(_, end)| *end);
    let fits = match reason {
        Reason::NotOwner => true,
        Reason::AlreadyReleased => end == Some(GrantEnd::Released),
        Reason::Expired => end == Some(GrantEnd::Expired),
    };
    keep_if(fits, state)
}

fn keep_if(holds: bool, state: SearchState) -> Vec<SearchState> {
    if holds {
        vec![state]
    } else {
        Vec::new()
    }
}
