//! Never two holders, by the clients' own lights: from the moment its answer came until it sends the release, or until its ttl,
//! counted from before it asked, has run out, a client may believe that it holds the lock. Two such times on one
//! resource must never overlap. This knows nothing of fences, so it judges plain clients and ours alike.
//!
//! Where [`Rules::counts_from_told`] says so, a client that waited counts the ttl it was told from the moment it was told: a node tells what
//! is left of it, but for [`PROMPT_NS`].
//!
//! A renewal that was answered proves that the lock was held all along; one of unknown outcome may have made the time
//! shorter and is never counted as having made it longer. Locks of a session are left to the fence chain.

use super::history::{Answer, Call, History, Operation, Outcome};
use super::{Rules, Violation, ViolationKind};
use std::collections::HashMap;

/// A grant that is told within this time of its stamp is told with its whole ttl.
const PROMPT_NS: u64 = 260_000_000;

/// One client's time with the lock.
#[derive(Clone, Debug)]
struct Hold {
    from_ns: u64,
    to_ns: u64,
    owner: u64,
    /// 0: a plain client's, not known.
    fence: u64,
    asked_ns: u64,
    renewals: Vec<Renewal>,
    /// When it first sent a release, or was told that it is over.
    given_up_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Renewal {
    invoke_ns: u64,
    complete_ns: u64,
    lasts_ns: u64,
    certain: bool,
}

pub fn check(history: &History, rules: &Rules, violations: &mut Vec<Violation>) {
    if history.operations.iter().any(|op| op.call == Call::ForceRelease) {
        return;
    }
    for (resource, operations) in history.by_resource() {
        let mut holds = holds_of(&operations, rules);
        holds.iter_mut().for_each(Hold::close);
        holds.retain(|hold| hold.from_ns < hold.to_ns);
        holds.sort_by_key(|hold| hold.from_ns);
        let mut last: Option<&Hold> = None;
        for hold in &holds {
            if let Some(last) = last.filter(|last| last.to_ns > hold.from_ns && last.owner != hold.owner) {
                let text = format!("both held it: {} and {}", last.text(), hold.text());
                violations.push(Violation {
                    kind: ViolationKind::TwoHolders,
                    resource,
                    fence: hold.fence,
                    text,
                });
                break;
            }
            if last.is_none_or(|last| last.to_ns < hold.to_ns) {
                last = Some(hold);
            }
        }
    }
}

fn holds_of(operations: &[&Operation], rules: &Rules) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    let mut by_owner: HashMap<u64, usize> = HashMap::new();
    let mut by_fence: HashMap<u64, usize> = HashMap::new();
    for op in operations {
        let Call::Acquire { owner, ttl_ms, session: 0, .. } = op.call else { continue };
        let fence = match op.answer() {
            Some(Answer::Granted { fence, .. }) => fence,
            Some(Answer::Taken) => 0,
            _ => continue,
        };
        let to_ns = op.invoke_ns.saturating_add(rules.shortest_ns(ttl_ms)).max(told_until_ns(op, rules));
        let known = by_owner.get(&owner).and_then(|at| holds.get_mut(*at));
        match known.filter(|known| known.fence == fence) {
            // A retry stretches the time, never shortens it.
            Some(known) => known.to_ns = known.to_ns.max(to_ns),
            None => {
                by_owner.insert(owner, holds.len());
                by_fence.insert(fence, holds.len());
                holds.push(Hold::new(op, to_ns, owner, fence));
            }
        }
    }
    for op in operations {
        let at = match op.call {
            Call::Release { fence } | Call::Renew { fence, .. } => by_fence.get(&fence),
            Call::ReleaseBy { owner } | Call::RenewBy { owner, .. } => by_owner.get(&owner),
            Call::Acquire { .. }
            | Call::ForceRelease
            | Call::Look
            | Call::Open { .. }
            | Call::KeepAlive { .. }
            | Call::Close { .. }
            | Call::Orphan { .. } => None,
        };
        if let Some(hold) = at.and_then(|at| holds.get_mut(*at)) {
            hold.take(op, rules);
        }
    }
    holds
}

/// How long a client that waited may believe in what it was told. No two clocks may run at different rates.
fn told_until_ns(op: &Operation, rules: &Rules) -> u64 {
    match (op.call, op.answer()) {
        (Call::Acquire { wait_ms: 1.., ttl_ms: 1.., .. }, Some(Answer::Granted { ttl_ms, .. }))
            if rules.counts_from_told && rules.clock_fast_ppm == 0 =>
        {
            let left_ns = (ttl_ms * 1_000_000).saturating_sub(PROMPT_NS + rules.slack_ns);
            op.complete_ns.saturating_add(left_ns)
        }
        _ => 0,
    }
}

impl Hold {
    fn new(op: &Operation, to_ns: u64, owner: u64, fence: u64) -> Hold {
        let (from_ns, asked_ns) = (op.complete_ns, op.invoke_ns);
        Hold { from_ns, to_ns, owner, fence, asked_ns, renewals: Vec::new(), given_up_ns: u64::MAX }
    }

    fn take(&mut self, op: &Operation, rules: &Rules) {
        match (op.call, op.outcome) {
            (Call::Renew { .. } | Call::RenewBy { .. }, Outcome::Failed) => {}
            (
                Call::Renew { ttl_ms, .. } | Call::RenewBy { ttl_ms, .. },
                Outcome::Unknown | Outcome::Answered(Answer::Done),
            ) => {
                let (invoke_ns, complete_ns, certain) = (op.invoke_ns, op.complete_ns, !op.is_unknown());
                let lasts_ns = rules.shortest_ns(ttl_ms);
                self.renewals.push(Renewal { invoke_ns, complete_ns, lasts_ns, certain });
            }
            _ => self.given_up_ns = self.given_up_ns.min(op.invoke_ns),
        }
    }

    /// Whichever setting of the time came last decides; of several that may have, the one that gave least.
    fn close(&mut self) {
        let latest_ns =
            self.renewals.iter().filter(|renewal| renewal.certain).map(|renewal| renewal.invoke_ns).max();
        let from_ns = latest_ns.unwrap_or(self.asked_ns);
        let may_be_last = self.renewals.iter().filter(|renewal| renewal.complete_ns >= from_ns);
        let least_ns =
            may_be_last.map(|renewal| renewal.invoke_ns.max(from_ns).saturating_add(renewal.lasts_ns)).min();
        let to_ns = match (latest_ns, least_ns) {
            (Some(_), Some(least_ns)) => least_ns,
            (None, Some(least_ns)) => least_ns.min(self.to_ns),
            (_, None) => self.to_ns,
        };
        self.to_ns = to_ns.min(self.given_up_ns);
    }

    fn text(&self) -> String {
        format!("owner {:x} (fence {}) from {} to {} ns", self.owner, self.fence, self.from_ns, self.to_ns)
    }
}
