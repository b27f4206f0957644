//! What the history says of each grant of one resource: when it can have begun, what stretched it, how it can have ended.

use super::history::{Answer, Call, Operation, Outcome, Reason, NEVER};
use super::sessions::Sessions;
use super::{Rules, Violation, ViolationKind};
use std::collections::HashMap;

/// Something that set the end of a grant to "so long from now".
#[derive(Clone, Copy, Debug)]
pub struct Setter {
    pub invoke_ns: u64,
    pub complete_ns: u64,
    pub lasts_ns: u64,
    /// It took place. Otherwise it may have.
    pub certain: bool,
    /// A renewal. Otherwise an acquire: the grant itself, or a retry.
    pub renews: bool,
}

/// A way for a grant to end: at any time from the first to the second.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub from_ns: u64,
    pub to_ns: u64,
    /// A release by the holder (`already_released`). Otherwise in any other way: ttl, force, session (`expired`).
    pub by_release: bool,
}

#[derive(Clone, Debug)]
pub struct Grant {
    pub fence: u64,
    /// 0: not known.
    pub owner: u64,
    pub session: u64,
    /// Somebody was told of it.
    pub acked: bool,
    /// Its owner's acquires that may have brought it about.
    pub asked: usize,
    /// The grant itself lies between these.
    pub begin_from_ns: u64,
    pub begin_to_ns: u64,
    /// Seen held at or after the first; seen over by the second.
    pub held_ns: u64,
    pub over_ns: u64,
    /// Seen free, with this the last fence, at or after this time: the next grant is later.
    pub free_ns: u64,
    /// The release that was answered ok.
    pub released: Option<(u64, u64)>,
    pub setters: Vec<Setter>,
    /// Every other way it may have ended, but for expiry of its own.
    pub endings: Vec<Ending>,
    pub said_expired: bool,
    pub said_released: bool,
}

#[derive(Debug)]
pub struct Grants {
    pub resource: u32,
    /// By fence, rising.
    pub list: Vec<Grant>,
    /// Seen without any fence at or after this time: the first grant is later.
    pub untouched_ns: u64,
    /// The earliest acquire of unknown outcome, by owner: when it was asked.
    pub unknown: HashMap<u64, Unknown>,
    /// Acquires that waited and were told nil, by owner. They count only where such a grant was seen.
    told_nil: HashMap<u64, Unknown>,
}

/// Acquires of one owner whose outcome is not known.
#[derive(Clone, Copy, Debug)]
pub struct Unknown {
    pub first_ns: u64,
    pub shortest_ttl_ms: u64,
    pub session: u64,
    pub count: usize,
    /// Of an acquire that waited. Where a grant has ended, or may have, before the node could tell the client of it, the node answers
    /// nil and gives back what still stands.
    pub may_be_given_back: bool,
}

impl Grant {
    fn new(fence: u64) -> Grant {
        Grant {
            fence,
            owner: 0,
            session: 0,
            acked: false,
            asked: 0,
            begin_from_ns: 0,
            begin_to_ns: NEVER,
            held_ns: 0,
            over_ns: NEVER,
            free_ns: 0,
            released: None,
            setters: Vec::new(),
            endings: Vec::new(),
            said_expired: false,
            said_released: false,
        }
    }

    fn seen_held(&mut self, op: &Operation) {
        self.begin_to_ns = self.begin_to_ns.min(op.complete_ns);
        self.held_ns = self.held_ns.max(op.invoke_ns);
    }

    fn seen_over(&mut self, op: &Operation) {
        self.over_ns = self.over_ns.min(op.complete_ns);
    }
}

/// The fence an operation proves to exist, 0 for none.
fn proven_fence(op: &Operation) -> u64 {
    match (op.call, op.answer()) {
        (_, Some(Answer::Granted { fence, .. } | Answer::Seen { fence, .. })) => fence,
        (Call::Release { fence } | Call::Renew { fence, .. }, Some(Answer::Done)) => fence,
        _ => 0,
    }
}

impl Grants {
    /// Reads all operations of one resource.
    pub fn gather(
        resource: u32,
        operations: &[&Operation],
        sessions: &Sessions,
        rules: &Rules,
        violations: &mut Vec<Violation>,
    ) -> Grants {
        let mut fences: Vec<u64> =
            operations.iter().map(|op| proven_fence(op)).filter(|fence| *fence > 0).collect();
        fences.sort_unstable();
        fences.dedup();
        let list = fences.into_iter().map(Grant::new).collect();
        let mut grants =
            Grants { resource, list, untouched_ns: 0, unknown: HashMap::new(), told_nil: HashMap::new() };
        for op in operations {
            grants.note_unknown(op);
        }
        for op in operations {
            grants.take(op, rules, violations);
        }
        grants.forced(operations);
        grants.explain_unseen(rules, violations);
        for grant in &mut grants.list {
            bind_to_session(grant, sessions);
        }
        grants
    }

    fn note_unknown(&mut self, op: &Operation) {
        let Call::Acquire { owner, ttl_ms, wait_ms, session } = op.call else { return };
        if wait_ms > 0 && op.answer() == Some(Answer::Busy) {
            let (first_ns, shortest_ttl_ms) = (op.invoke_ns, ttl_ms);
            let told = Unknown { first_ns, shortest_ttl_ms, session, count: 1, may_be_given_back: true };
            self.told_nil.entry(owner).or_insert(told);
        }
        let may_be_given_back = op.group != 0 && wait_ms > 0;
        let is_nil = may_be_given_back && op.answer() == Some(Answer::Nothing);
        // A plain client's grant whose fence nobody saw took place, but who can say under which fence.
        if op.is_unknown() || op.answer() == Some(Answer::Taken) || is_nil {
            let first_ns = op.invoke_ns;
            let first = Unknown { first_ns, shortest_ttl_ms: ttl_ms, session, count: 0, may_be_given_back };
            let known = self.unknown.entry(owner).or_insert(first);
            known.count += 1;
            known.may_be_given_back |= may_be_given_back;
            known.first_ns = known.first_ns.min(op.invoke_ns);
            if known.shortest_ttl_ms == 0 || (ttl_ms != 0 && ttl_ms < known.shortest_ttl_ms) {
                known.shortest_ttl_ms = ttl_ms;
            }
        }
    }

    fn find(&mut self, fence: u64) -> Option<&mut Grant> {
        let at = self.list.binary_search_by_key(&fence, |grant| grant.fence).ok()?;
        Some(&mut self.list[at])
    }

    fn take(&mut self, op: &Operation, rules: &Rules, violations: &mut Vec<Violation>) {
        let resource = self.resource;
        let mut wrong = |kind, fence, text| violations.push(Violation { kind, resource, fence, text });
        match (op.call, op.outcome) {
            (Call::Acquire { .. }, Outcome::Answered(Answer::Granted { fence, ttl_ms })) => {
                if let Err(text) = self.granted(op, fence, rules.shortest_ns(ttl_ms)) {
                    wrong(ViolationKind::DuplicateFence, fence, text);
                }
            }
            (Call::Release { fence }, Outcome::Answered(Answer::Done)) => {
                let Some(grant) = self.find(fence) else { return };
                if let Some(earlier) = grant.released.replace((op.invoke_ns, op.complete_ns)) {
                    wrong(ViolationKind::ReleasedTwice, fence, format!("at {earlier:?} and by {op:?}"));
                }
            }
            (Call::Release { fence }, Outcome::Unknown) => {
                let Some(grant) = self.find(fence) else { return };
                let from_ns = op.invoke_ns;
                grant.endings.push(Ending { from_ns, to_ns: NEVER, by_release: true });
            }
            (Call::Renew { fence, ttl_ms }, Outcome::Answered(Answer::Done) | Outcome::Unknown) => {
                let lasts_ns = rules.shortest_ns(ttl_ms);
                let Some(grant) = self.find(fence) else { return };
                grant.setters.push(Setter {
                    invoke_ns: op.invoke_ns,
                    complete_ns: op.complete_ns,
                    lasts_ns,
                    certain: !op.is_unknown(),
                    renews: true,
                });
                if !op.is_unknown() {
                    grant.seen_held(op);
                }
            }
            (
                Call::Release { fence } | Call::Renew { fence, .. },
                Outcome::Answered(Answer::Refused(reason)),
            ) => {
                let Some(grant) = self.find(fence) else { return };
                grant.seen_over(op);
                grant.said_expired |= reason == Reason::Expired;
                grant.said_released |= reason == Reason::AlreadyReleased;
            }
            (Call::Look, Outcome::Answered(Answer::Seen { held, fence, owner })) => {
                if let Err(text) = self.looked(op, held, fence, owner, rules) {
                    wrong(ViolationKind::DuplicateFence, fence, text);
                }
            }
            _ => {}
        }
    }

    fn granted(&mut self, op: &Operation, fence: u64, lasts_ns: u64) -> Result<(), String> {
        let Call::Acquire { owner, session, .. } = op.call else { return Ok(()) };
        // A try whose answer was lost may be what was granted.
        let unknown = self.unknown.get(&owner).copied();
        let first_ns = unknown.map_or(NEVER, |unknown| unknown.first_ns).min(op.invoke_ns);
        let Some(grant) = self.find(fence) else { return Ok(()) };
        if grant.acked && grant.owner != owner {
            return Err(format!("granted to owner {:x} and to owner {owner:x}", grant.owner));
        }
        match grant.acked {
            true => grant.begin_from_ns = grant.begin_from_ns.min(first_ns),
            false => grant.begin_from_ns = first_ns,
        }
        let seen_as = std::mem::replace(&mut grant.owner, owner);
        if seen_as != 0 && seen_as != owner {
            return Err(format!("granted to owner {owner:x}, seen in the hands of {seen_as:x}"));
        }
        grant.acked = true;
        grant.asked = grant.asked.max(unknown.map_or(0, |unknown| unknown.count)) + 1;
        grant.session = session;
        grant.begin_to_ns = grant.begin_to_ns.min(op.complete_ns);
        let (invoke_ns, complete_ns) = (op.invoke_ns, op.complete_ns);
        grant.setters.push(Setter { invoke_ns, complete_ns, lasts_ns, certain: true, renews: false });
        Ok(())
    }

    fn looked(
        &mut self,
        op: &Operation,
        held: bool,
        fence: u64,
        owner: u64,
        rules: &Rules,
    ) -> Result<(), String> {
        let Some(grant) = self.find(fence) else {
            if !rules.forgets {
                self.untouched_ns = self.untouched_ns.max(op.invoke_ns);
            }
            return Ok(());
        };
        if held {
            grant.seen_held(op);
            let known = std::mem::replace(&mut grant.owner, owner);
            if known != 0 && known != owner {
                return Err(format!("granted to owner {known:x}, seen in the hands of {owner:x}"));
            }
        } else {
            grant.begin_to_ns = grant.begin_to_ns.min(op.complete_ns);
            grant.seen_over(op);
            grant.free_ns = grant.free_ns.max(op.invoke_ns);
        }
        Ok(())
    }

    /// An operator's release names no fence: it may have ended any grant.
    fn forced(&mut self, operations: &[&Operation]) {
        let forced: Vec<Ending> = operations
            .iter()
            .filter(|op| op.call == Call::ForceRelease)
            .filter(|op| op.is_unknown() || op.answer() == Some(Answer::Done))
            .map(|op| Ending { from_ns: op.invoke_ns, to_ns: op.complete_ns, by_release: false })
            .collect();
        if !forced.is_empty() {
            self.list.iter_mut().for_each(|grant| grant.endings.extend(&forced));
        }
    }

    /// A grant nobody was told of belongs to an acquire of unknown outcome, and no two to one.
    fn explain_unseen(&mut self, rules: &Rules, violations: &mut Vec<Violation>) {
        let resource = self.resource;
        let mut left: HashMap<u64, usize> =
            self.unknown.iter().map(|(owner, unknown)| (*owner, unknown.count)).collect();
        let earliest_ns = self.unknown.values().map(|unknown| unknown.first_ns).min();
        let shortest_ttl_ms = self.unknown.values().map(|unknown| unknown.shortest_ttl_ms).min();
        let mut nameless = 0;
        for grant in self.list.iter_mut().filter(|grant| !grant.acked) {
            let known = match grant.owner {
                0 => {
                    nameless += 1;
                    earliest_ns.map(|first_ns| {
                        let shortest_ttl_ms = shortest_ttl_ms.unwrap_or(0);
                        Unknown { first_ns, shortest_ttl_ms, session: 0, count: 1, may_be_given_back: false }
                    })
                }
                owner => {
                    let count = left.get_mut(&owner).filter(|count| **count > 0);
                    let known = count.and_then(|count| {
                        *count -= 1;
                        self.unknown.get(&owner).copied()
                    });
                    known.or_else(|| self.told_nil.remove(&owner))
                }
            };
            let Some(unknown) = known else {
                let text = format!("owner {:x} cannot have asked for it", grant.owner);
                violations.push(Violation {
                    kind: ViolationKind::Phantom,
                    resource,
                    fence: grant.fence,
                    text,
                });
                continue;
            };
            grant.begin_from_ns = unknown.first_ns;
            grant.session = unknown.session;
            grant.setters.push(Setter {
                invoke_ns: unknown.first_ns,
                complete_ns: NEVER,
                lasts_ns: rules.shortest_ns(unknown.shortest_ttl_ms),
                certain: true,
                renews: false,
            });
            if unknown.may_be_given_back {
                let from_ns = unknown.first_ns;
                grant.endings.push(Ending { from_ns, to_ns: NEVER, by_release: true });
            }
            if grant.owner == 0 {
                // Nobody knows whose it was, so nobody knows what it depended on.
                grant.endings.push(Ending { from_ns: 0, to_ns: NEVER, by_release: false });
            }
        }
        if nameless > left.values().sum::<usize>() {
            let text = format!("{nameless} grants, more than there are acquires to explain them");
            violations.push(Violation { kind: ViolationKind::Phantom, resource, fence: 0, text });
        }
    }
}

/// A lock ends with its session at the latest, and may end with it.
fn bind_to_session(grant: &mut Grant, sessions: &Sessions) {
    let Some(session) = sessions.get(grant.session) else { return };
    grant.begin_to_ns = grant.begin_to_ns.min(session.over_ns);
    grant.over_ns = grant.over_ns.min(session.over_ns);
    grant.endings.push(Ending { from_ns: session.expiry_ns, to_ns: NEVER, by_release: false });
    let closed = session.closes.iter();
    grant.endings.extend(closed.map(|&(from_ns, to_ns)| Ending { from_ns, to_ns, by_release: false }));
}
