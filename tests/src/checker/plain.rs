//! Plain clients (`SET NX PX`, compare-and-delete, compare-and-pexpire) are told no fences, and name their value instead.
//!
//! Every value belongs to one attempt, so where `LOCK.INFO` showed it under a fence, all that its client did is told again by
//! that fence, and the fence chain sees no difference between old clients and new. What was never seen stays a grant
//! of unknown fence: it explains a fence that nobody was told of, and a refusal.
//!
//! A Redlock client asks every member under one value: a `SET` that comes late to one of them takes the lock once more after
//! the others' was let go. What such a client did may then have been done to either grant.

use super::history::{Answer, Call, History, Operation, Outcome};
use super::{Violation, ViolationKind};
use std::collections::{HashMap, HashSet};

/// The same history, told by fence as far as it can be. `None` where there are no plain clients in it.
pub fn by_fence(history: &History, violations: &mut Vec<Violation>) -> Option<History> {
    if !history.operations.iter().any(is_plain) {
        return None;
    }
    let acknowledged = acknowledged(history);
    let fences = seen_fences(history, &acknowledged, violations);
    let operations = history.operations.iter().flat_map(|op| told(op, &fences, &acknowledged)).collect();
    Some(History { operations, queued: history.queued.clone() })
}

fn is_plain(op: &Operation) -> bool {
    matches!(op.call, Call::ReleaseBy { .. } | Call::RenewBy { .. }) || op.answer() == Some(Answer::Taken)
}

type Fences = HashMap<(u32, u64), Vec<u64>>;
type Owners = HashSet<(u32, u64)>;

/// Plain clients' attempts that were answered OK.
fn acknowledged(history: &History) -> Owners {
    let taken = history.operations.iter().filter(|op| op.answer() == Some(Answer::Taken));
    let owners = taken.filter_map(|op| match op.call {
        Call::Acquire { owner, .. } => Some((op.resource, owner)),
        _ => None,
    });
    owners.collect()
}

/// The fences each owner was granted under. Two for one that asked a single master once are two grants for one question.
fn seen_fences(history: &History, acknowledged: &Owners, violations: &mut Vec<Violation>) -> Fences {
    let mut fences = Fences::new();
    for op in &history.operations {
        let (owner, fence) = match (op.call, op.answer()) {
            (Call::Look, Some(Answer::Seen { held: true, fence, owner })) => (owner, fence),
            (Call::Acquire { owner, .. }, Some(Answer::Granted { fence, .. })) => (owner, fence),
            _ => continue,
        };
        let known = fences.entry((op.resource, owner)).or_default();
        if known.contains(&fence) {
            continue;
        }
        known.push(fence);
        if known.len() > 1 && acknowledged.contains(&(op.resource, owner)) {
            let text = format!("owner {owner:x} asked once and was granted {known:?}");
            violations.push(Violation { kind: ViolationKind::Phantom, resource: op.resource, fence, text });
        }
    }
    fences
}

fn told(op: &Operation, fences: &Fences, acknowledged: &Owners) -> Vec<Operation> {
    let fences_of = |owner| fences.get(&(op.resource, owner)).map_or(&[][..], Vec::as_slice);
    let refused = matches!(op.answer(), Some(Answer::Refused(_)));
    // A script that answers 0 says that the lock is not the client's: no longer, or, where its SET got lost, not yet.
    let says_nothing = |owner| refused && !acknowledged.contains(&(op.resource, owner));
    match (op.call, op.answer()) {
        (Call::Acquire { owner, ttl_ms, .. }, Some(Answer::Taken)) => match fences_of(owner).last() {
            Some(&fence) => {
                let outcome = Outcome::Answered(Answer::Granted { fence, ttl_ms });
                vec![Operation { outcome, ..*op }]
            }
            None => vec![*op],
        },
        (Call::ReleaseBy { owner } | Call::RenewBy { owner, .. }, _) if says_nothing(owner) => Vec::new(),
        (Call::ReleaseBy { owner }, _) => done_to_any(op, fences_of(owner), |fence| Call::Release { fence }),
        (Call::RenewBy { owner, ttl_ms }, _) => {
            done_to_any(op, fences_of(owner), |fence| Call::Renew { fence, ttl_ms })
        }
        _ => vec![*op],
    }
}

/// The same done by fence. Where there are several, nobody knows to which.
fn done_to_any(op: &Operation, fences: &[u64], call: impl Fn(u64) -> Call) -> Vec<Operation> {
    let outcome =
        |outcome| if fences.len() > 1 && outcome != Outcome::Failed { Outcome::Unknown } else { outcome };
    fences.iter().map(|fence| Operation { call: call(*fence), outcome: outcome(op.outcome), ..*op }).collect()
}
