//! The fast checker. Fences fix the order of the grants of a resource, so nothing is searched for: walk along them, place
//! each beginning and each end as early as its bounds allow, and a bound that cannot be met is a violation. Placing early
//! is exact: whatever is possible with a later place is possible with the earlier one. (FAULTS, 4.3)

use super::grants::{Ending, Grant, Grants};
use super::history::{Answer, Call, Operation, NEVER};
use super::{Rules, Violation, ViolationKind};

/// The current position of the walk: on the clock of the leaders' stamps, and on the clients' clock.
///
/// A grant lasts from its stamp on, and its entry may be committed much later; so ends by the clock are reckoned on stamps,
/// and what clients saw is compared with commits. A stamp is never earlier than the question, a commit never earlier than
/// its stamp.
#[derive(Clone, Copy, Debug, Default)]
struct ChainTime {
    stamp_ns: u64,
    commit_ns: u64,
}

impl ChainTime {
    /// At or after this, and no earlier than asked for at `from_ns`.
    fn after(self, from_ns: u64) -> ChainTime {
        ChainTime { stamp_ns: self.stamp_ns.max(from_ns), commit_ns: self.commit_ns.max(from_ns) }
    }

    /// Seen at this time by a client.
    fn seen(self, at_ns: u64) -> ChainTime {
        ChainTime { commit_ns: self.commit_ns.max(at_ns), ..self }
    }
}

/// Places all grants of one resource. The first that has no place is reported.
pub fn check(grants: &mut Grants, rules: &Rules, violations: &mut Vec<Violation>) {
    let untouched_ns = if rules.forgets { 0 } else { grants.untouched_ns };
    let mut now = ChainTime::default().seen(untouched_ns);
    for at in 0..grants.list.len() {
        let is_last = at + 1 == grants.list.len();
        match place(&grants.list[at], now, is_last) {
            Ok(end) => now = end.seen(grants.list[at].free_ns),
            Err((kind, text)) => {
                let fence = grants.list[at].fence;
                violations.push(Violation { kind, resource: grants.resource, fence, text });
                return;
            }
        }
    }
}

type ChainError = (ViolationKind, String);

/// Places one grant that begins now or later. Answers when it can have ended at the earliest.
fn place(grant: &Grant, now: ChainTime, is_last: bool) -> Result<ChainTime, ChainError> {
    let begin = now.after(grant.begin_from_ns);
    if begin.commit_ns > grant.begin_to_ns {
        let text = format!(
            "it was there by {} ns, but the lock was not free before {} ns and it was not asked for before {} ns",
            grant.begin_to_ns, now.commit_ns, grant.begin_from_ns
        );
        return Err((ViolationKind::Order, text));
    }
    if grant.said_expired && grant.said_released {
        return Err((ViolationKind::Reason, "said to have expired, and said to have been released".into()));
    }
    let floor = begin.seen(grant.held_ns);
    let end = match grant.released {
        Some((from_ns, to_ns)) => {
            if grant.said_expired {
                return Err((ViolationKind::Reason, "released, and said to have expired".into()));
            }
            fit(floor, Ending { from_ns, to_ns, by_release: true })
        }
        None => earliest_end(grant, begin, floor),
    };
    match end {
        Some(end) if end.commit_ns <= grant.over_ns => Ok(end),
        Some(_) | None if is_last && grant.over_ns == NEVER && grant.released.is_none() => Ok(floor),
        Some(end) => {
            let text = format!(
                "over by {} ns, but begun at {} ns, held at {} ns and not ended before {} ns",
                grant.over_ns, begin.commit_ns, grant.held_ns, end.commit_ns
            );
            Err((ViolationKind::Order, text))
        }
        None => {
            let kind = if grant.said_expired || grant.said_released {
                ViolationKind::Reason
            } else {
                ViolationKind::Order
            };
            let (begin_ns, held_ns) = (begin.commit_ns, grant.held_ns);
            Err((kind, format!("begun at {begin_ns} ns, held at {held_ns} ns, and no way to end")))
        }
    }
}

fn fit(floor: ChainTime, ending: Ending) -> Option<ChainTime> {
    let at = floor.after(ending.from_ns);
    (at.commit_ns <= ending.to_ns).then_some(at)
}

/// The earliest of all ways this grant can have ended, apart from a release that was acknowledged. Whatever is earlier by
/// stamp is no later by commit, for all of them begin at the same floor.
fn earliest_end(grant: &Grant, begin: ChainTime, floor: ChainTime) -> Option<ChainTime> {
    let allowed = |ending: &&Ending| match ending.by_release {
        true => !grant.said_expired,
        false => !grant.said_released,
    };
    let asked = grant.endings.iter().filter(allowed).filter_map(|ending| fit(floor, *ending));
    let expiry = (!grant.said_released).then(|| expiry_ns(grant, begin)).flatten();
    asked.chain(expiry.map(|at_ns| floor.after(at_ns))).min_by_key(|end| (end.stamp_ns, end.commit_ns))
}

/// When the grant's own time was up at the earliest: whichever setter came last decides, and every certain one came no later.
fn expiry_ns(grant: &Grant, begin: ChainTime) -> Option<u64> {
    let certain = grant.setters.iter().filter(|setter| setter.certain);
    let latest = begin.after(certain.map(|setter| setter.invoke_ns).max().unwrap_or(0));
    // The grant itself comes first: where it is known which acquire it was, a renewal came after it.
    let renewed = grant.asked == 1 && grant.setters.iter().any(|setter| setter.certain && setter.renews);
    let last = grant
        .setters
        .iter()
        .filter(|setter| setter.complete_ns >= latest.commit_ns && (setter.renews || !renewed));
    last.map(|setter| latest.stamp_ns.max(setter.invoke_ns).saturating_add(setter.lasts_ns))
        .min()
        .filter(|at_ns| *at_ns != NEVER)
}

/// A try that was refused as busy met somebody else's grant, if it met a resource that only single locks are taken on.
pub fn check_busy(
    grants: &Grants,
    operations: &[&Operation],
    rules: &Rules,
    violations: &mut Vec<Violation>,
) {
    if rules.waits_for_several {
        return;
    }
    let reach = Reach::of(grants);
    for op in operations {
        let Call::Acquire { owner, wait_ms: 0, .. } = op.call else { continue };
        if op.answer() != Some(Answer::Busy) || op.group != 0 {
            continue;
        }
        let of_others = grants.unknown.iter().filter(|(other, _)| **other != owner);
        let may_be_unseen = of_others.map(|(_, unknown)| unknown.first_ns).min() <= Some(op.complete_ns)
            && grants.unknown.keys().any(|other| *other != owner);
        if may_be_unseen || reach.may_be_held_by_another(op, owner) {
            continue;
        }
        let text = format!("refused as busy though nobody else can have held it: {op:?}");
        violations.push(Violation { kind: ViolationKind::Busy, resource: grants.resource, fence: 0, text });
    }
}

/// For every grant in the order of their earliest beginnings: how late it or one before it can have ended.
struct Reach(Vec<(u64, [(u64, u64); 2])>);

impl Reach {
    fn of(grants: &Grants) -> Reach {
        let next_ns = grants.list.iter().skip(1).map(|next| next.begin_to_ns).chain([NEVER]);
        let mut spans: Vec<(u64, u64, u64)> = grants
            .list
            .iter()
            .zip(next_ns)
            .map(|(grant, next_ns)| {
                let released_ns = grant.released.map_or(NEVER, |(_, to_ns)| to_ns);
                (grant.begin_from_ns, grant.over_ns.min(released_ns).min(next_ns), grant.owner)
            })
            .collect();
        spans.sort_unstable();
        // The two latest ends so far, of two different owners: one of them is not the asker's.
        let mut best = [(0, 0); 2];
        let rows = spans.into_iter().map(|(from_ns, to_ns, owner)| {
            if owner == best[0].1 || to_ns > best[0].0 {
                if owner != best[0].1 {
                    best[1] = best[0];
                }
                best[0] = (to_ns.max(if owner == best[0].1 { best[0].0 } else { 0 }), owner);
            } else if owner == best[1].1 || to_ns > best[1].0 {
                best[1] = (to_ns.max(if owner == best[1].1 { best[1].0 } else { 0 }), owner);
            }
            (from_ns, best)
        });
        Reach(rows.collect())
    }

    fn may_be_held_by_another(&self, op: &Operation, owner: u64) -> bool {
        let before = self.0.partition_point(|(from_ns, _)| *from_ns <= op.complete_ns);
        let Some((_, best)) = before.checked_sub(1).map(|at| &self.0[at]) else { return false };
        best.iter().any(|(to_ns, of)| *to_ns >= op.invoke_ns && *to_ns > 0 && *of != owner)
    }
}
