//! Kinds of locks as the log shows them: a writer alone, readers side by side, permits up to the asker's own `max`, one queue for all, a
//! conversion in one step, fences that rise with every grant, and a notice for whoever loses a lock.
//!
//! Read from the events of a replay, by the contract alone. Owners carry what no event tells: see [`KindOwner`].

use redfence_core::event::{Event, EventKind};
use redfence_core::machine::{Loss, Machine, Query};
use redfence_core::reply::Reply;
use redfence_core::types::{LockMode, LossCause, SessionId, SessionPolicy, SessionScope};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// The name of an attempt, with its permits and its `max`: `k17:2:3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KindOwner {
    pub number: u64,
    /// 1 where it is no permit.
    pub count: u32,
    pub max: u32,
}

impl fmt::Display for KindOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k{}:{}:{}", self.number, self.count, self.max)
    }
}

impl KindOwner {
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<KindOwner> {
        let mut parts = std::str::from_utf8(name).ok()?.strip_prefix('k')?.split(':');
        let number = parts.next()?.parse().ok()?;
        let (count, max) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(KindOwner { number, count, max })
    }
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    owner: KindOwner,
    mode: LockMode,
}

#[derive(Default)]
struct Lock {
    /// By fence.
    holders: BTreeMap<u64, Holder>,
    queue: VecDeque<KindOwner>,
    last_fence: u64,
    /// Whose shared hold the event before ended, without a cause: it may go on as the exclusive holder.
    converting: Option<KindOwner>,
}

/// The locks of one log.
#[derive(Default)]
pub struct KindLines {
    locks: BTreeMap<Vec<u8>, Lock>,
}

impl KindLines {
    pub fn take(&mut self, event: &Event) -> Result<(), String> {
        let owner = KindOwner::parse(&event.owner).ok_or_else(|| format!("an owner of nobody: {event:?}"))?;
        let lock = self.locks.entry(event.resource.to_vec()).or_default();
        lock.take(event, owner).map_err(|text| {
            let name = event.resource.escape_ascii();
            format!("{name}, owner {owner}, fence {}: {text}", event.fence)
        })
    }

    /// Who has lost a lock is told so.
    pub fn check_losses(events: &[Event], losses: &[Loss]) -> Result<(), String> {
        for event in events.iter().filter(|event| event.cause.is_some()) {
            let is_it = |loss: &Loss| {
                (loss.db, &loss.resource, loss.fence, loss.cause)
                    == (event.db, &event.resource, event.fence, event.cause)
            };
            match losses.iter().filter(|loss| is_it(loss)).count() {
                1 => {}
                told => {
                    let (name, fence) = (event.resource.escape_ascii(), event.fence);
                    return Err(format!("{name}, fence {fence}: its loss is told {told} times"));
                }
            }
        }
        Ok(())
    }
}

/// Who holds a lock or waits for it, and its session.
#[derive(Clone, Copy, Debug)]
struct Party {
    owner: KindOwner,
    session: Option<Policied>,
}

/// A session's policy and age. No two have the same age where nobody asks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policied {
    policy: SessionPolicy,
    age: i64,
}

impl KindLines {
    /// The policies of sessions, by what `LOCK.EXPLAIN` shows of the locks of these events: who dies does not wait for an older one,
    /// and who could wound its way does not wait.
    pub fn check_policies(machine: &Machine, events: &[Event]) -> Result<(), String> {
        let names: BTreeSet<&[u8]> = events.iter().map(|event| &event.resource[..]).collect();
        for name in names {
            check_waits(&parties(machine, name, "holders"), &parties(machine, name, "queue"))
                .map_err(|text| format!("{}: {text}", name.escape_ascii()))?;
        }
        Ok(())
    }
}

fn field<'a>(map: &'a Reply, name: &'static str) -> &'a Reply {
    let Reply::Map(pairs) = map else { panic!("no map: {map:?}") };
    let found = pairs.iter().find(|(key, _)| *key == Reply::Text(name));
    found.map_or(&Reply::Nil, |(_, value)| value)
}

fn parties(machine: &Machine, name: &[u8], rows: &'static str) -> Vec<Party> {
    let explained = machine.query(Query::Explain { db: 0, resource: name, sessions: SessionScope::All });
    let Reply::Array(rows) = field(&explained, rows) else { return Vec::new() };
    let party = |row: &Reply| {
        let Reply::Bulk(owner) = field(row, "owner") else { return None };
        let session = match field(row, "session") {
            Reply::Bulk(id) => session(machine, id),
            _ => None,
        };
        Some(Party { owner: KindOwner::parse(owner)?, session })
    };
    rows.iter().filter_map(party).collect()
}

fn session(machine: &Machine, id: &[u8]) -> Option<Policied> {
    let id = SessionId(u64::from_str_radix(std::str::from_utf8(id).ok()?, 16).ok()?);
    let shown = machine.query(Query::Session { id, sessions: SessionScope::All });
    let (Reply::Text(policy), Reply::Int(age)) = (field_of(&shown, "policy")?, field_of(&shown, "age")?)
    else {
        return None;
    };
    Some(Policied { policy: SessionPolicy::parse(policy.as_bytes())?, age: *age })
}

/// `None`: the session has ended.
fn field_of<'a>(reply: &'a Reply, name: &'static str) -> Option<&'a Reply> {
    match reply {
        Reply::Map(_) => Some(field(reply, name)),
        _ => None,
    }
}

fn check_waits(holders: &[Party], queue: &[Party]) -> Result<(), String> {
    for (at, waiter) in queue.iter().enumerate() {
        let Some(own) = waiter.session.filter(|own| own.policy == SessionPolicy::WaitDie) else { continue };
        // Who converts waits for the other holders alone.
        let mut ahead = holders.iter().chain(&queue[..at]).filter_map(|party| Some((party, party.session?)));
        if let Some((older, _)) = ahead.find(|(_, other)| other.age < own.age) {
            return Err(format!("{waiter:?} of wait-die waits for the older {older:?}"));
        }
    }
    let Some(first) = queue.first() else { return Ok(()) };
    let Some(own) = first.session.filter(|own| own.policy == SessionPolicy::WoundWait) else { return Ok(()) };
    let is_safe = |holder: &&Party| {
        let woundable = holder.session.is_some_and(|other| other.policy == own.policy && own.age < other.age);
        holder.owner != first.owner && !woundable
    };
    let (safe, permits) = holders
        .iter()
        .filter(is_safe)
        .fold((0, 0), |(safe, permits), holder| (safe + 1, permits + holder.owner.count));
    // A `max` of 1 is what owners of readers and writers carry: those wait for everybody.
    let must_wait = match first.owner.max {
        1 => safe > 0,
        max => permits + first.owner.count > max,
    };
    match must_wait || holders.is_empty() {
        true => Ok(()),
        false => Err(format!("{first:?} of wound-wait waits for younger ones alone: {holders:?}")),
    }
}

impl Lock {
    fn take(&mut self, event: &Event, owner: KindOwner) -> Result<(), String> {
        let converting = self.converting.take();
        let fence = event.fence.0;
        match event.kind {
            EventKind::Queued if self.holds(owner) => self.queue.push_front(owner),
            EventKind::Queued => self.queue.push_back(owner),
            EventKind::Abandoned => self.queue.retain(|other| *other != owner),
            EventKind::Acquired => return self.granted(event, owner, converting == Some(owner)),
            EventKind::Renewed => {
                let Some(holder) = self.holders.get_mut(&fence) else {
                    return Err("renewed, and held by nobody".to_owned());
                };
                let goes_down = holder.mode == LockMode::Exclusive && event.mode == LockMode::Shared;
                if holder.mode != event.mode && !goes_down {
                    return Err(format!("a renewal turns {:?} into {:?}", holder.mode, event.mode));
                }
                holder.mode = event.mode;
            }
            EventKind::Released | EventKind::Expired | EventKind::SessionEnded => {
                let Some(ended) = self.holders.remove(&fence).filter(|holder| holder.owner == owner) else {
                    return Err("ended, and it did not hold it".to_owned());
                };
                if event.cause.is_none() && ended.mode == LockMode::Shared {
                    self.converting = Some(owner);
                }
                if event.cause == Some(LossCause::Wounded) && self.queue.is_empty() {
                    return Err("wounded for nobody".to_owned());
                }
            }
        }
        Ok(())
    }

    fn holds(&self, owner: KindOwner) -> bool {
        self.holders.values().any(|holder| holder.owner == owner)
    }

    fn granted(&mut self, event: &Event, owner: KindOwner, converts: bool) -> Result<(), String> {
        let fence = event.fence.0;
        if fence <= self.last_fence {
            return Err(format!("its fence does not rise: {} was before", self.last_fence));
        }
        self.last_fence = fence;
        let others = || self.holders.values();
        let all = |mode| others().all(|holder| holder.mode == mode);
        match event.mode {
            LockMode::Exclusive if !self.holders.is_empty() => {
                return Err("granted to a writer beside others".to_owned());
            }
            LockMode::Shared if !all(LockMode::Shared) => {
                return Err("granted to a reader beside another kind".to_owned());
            }
            LockMode::Permits if !all(LockMode::Permits) => {
                return Err("permits beside another kind".to_owned());
            }
            LockMode::Permits => {
                let held: u32 = others().map(|holder| holder.owner.count).sum();
                if held + owner.count > owner.max {
                    return Err(format!("{held} permits are held"));
                }
            }
            LockMode::Exclusive | LockMode::Shared => {}
        }
        match self.queue.front() {
            Some(first) if *first == owner => _ = self.queue.pop_front(),
            Some(_) if !(converts && event.mode == LockMode::Exclusive) => {
                return Err("granted out of its turn".to_owned());
            }
            Some(_) | None => {}
        }
        self.holders.insert(fence, Holder { owner, mode: event.mode });
        Ok(())
    }
}

/// What a client believes to hold, on the clock of the run.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    pub owner: KindOwner,
    pub mode: LockMode,
    pub fence: u64,
    pub until_us: u64,
}

/// The newest fences of a lock that are kept, with their owners.
const OWNERS_KEPT: usize = 100_000;

/// What clients believe of one lock: never a writer beside anybody, never more permits than the last of them asked for.
#[derive(Default)]
pub struct Beliefs {
    held: Vec<Belief>,
    owners: BTreeMap<u64, KindOwner>,
}

impl Beliefs {
    /// A client was told of a grant.
    pub fn begin(&mut self, now_us: u64, belief: Belief) -> Result<(), String> {
        if self.owners.insert(belief.fence, belief.owner).is_some_and(|other| other != belief.owner) {
            return Err(format!("one fence for two: {belief:?}"));
        }
        if self.owners.len() > OWNERS_KEPT {
            self.owners.pop_first();
        }
        // It waited longer than it could have held the lock for certain: it never believed to.
        if belief.until_us <= now_us {
            return Ok(());
        }
        self.held.retain(|other| other.until_us > now_us && other.fence != belief.fence);
        self.held.push(belief);
        let writer = self.held.iter().find(|held| held.mode == LockMode::Exclusive);
        if let (Some(writer), 2..) = (writer, self.held.len()) {
            return Err(format!("a writer beside others: {writer:?} in {:?}", self.held));
        }
        if self.held.iter().any(|held| held.mode != belief.mode) {
            return Err(format!("two kinds at once: {:?}", self.held));
        }
        // All of them are held now, so they were when the last of them was granted.
        let held: u32 = self.held.iter().map(|held| held.owner.count).sum();
        let last = self.held.iter().max_by_key(|held| held.fence).map_or(0, |last| last.owner.max);
        match belief.mode == LockMode::Permits && held > last {
            true => Err(format!("{held} permits of {last}: {:?}", self.held)),
            false => Ok(()),
        }
    }

    /// The client gives it up, or must doubt it, from now on.
    pub fn end(&mut self, fence: u64) {
        self.held.retain(|held| held.fence != fence);
    }

    /// The writer goes on as a reader.
    pub fn share(&mut self, fence: u64) {
        self.held.iter_mut().filter(|held| held.fence == fence).for_each(|held| held.mode = LockMode::Shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::types::Fence;

    fn event(kind: EventKind, owner: &str, mode: LockMode, fence: u64, cause: Option<LossCause>) -> Event {
        Event {
            kind,
            db: 0,
            resource: "kind:1".into(),
            fence: Fence(fence),
            owner: owner.to_owned().into(),
            seq: 0,
            mode,
            value: "".into(),
            cause,
        }
    }

    fn verdict(events: &[Event]) -> Result<(), String> {
        let mut lines = KindLines::default();
        events.iter().try_for_each(|event| lines.take(event))
    }

    #[test]
    fn what_the_contract_allows() {
        use EventKind::{Acquired, Queued, Released, Renewed};
        use LockMode::{Exclusive, Permits, Shared};
        let log = [
            event(Acquired, "k1:1:1", Shared, 1, None),
            event(Acquired, "k2:1:1", Shared, 2, None),
            event(Queued, "k3:1:1", Exclusive, 2, None),
            event(Queued, "k1:1:1", Exclusive, 2, None),
            event(Released, "k2:1:1", Shared, 2, None),
            event(Released, "k1:1:1", Shared, 1, None),
            event(Acquired, "k1:1:1", Exclusive, 3, None),
            event(Renewed, "k1:1:1", Shared, 3, None),
            event(Released, "k1:1:1", Shared, 3, Some(LossCause::Wounded)),
            event(Acquired, "k3:1:1", Exclusive, 4, None),
            event(Released, "k3:1:1", Exclusive, 4, None),
            event(Acquired, "k4:2:3", Permits, 5, None),
            event(Acquired, "k5:1:3", Permits, 6, None),
        ];
        assert_eq!(verdict(&log), Ok(()));
    }

    #[test]
    fn beliefs_at_one_time_are_compared() {
        let belief = |number: u64, until_us: u64| {
            let owner = KindOwner { number, count: 2, max: 3 };
            Belief { owner, mode: LockMode::Permits, fence: number, until_us }
        };
        let told = |now_us: u64, later: Belief| {
            let mut beliefs = Beliefs::default();
            assert_eq!(beliefs.begin(0, belief(2, 100)), Ok(()));
            beliefs.begin(now_us, later)
        };
        assert!(told(50, belief(1, 51)).is_err());
        assert_eq!(told(50, belief(1, 50)), Ok(()), "over when it was told");
        assert_eq!(told(100, belief(3, 200)), Ok(()), "the other one is over");
    }

    #[test]
    fn each_rule_is_known() {
        use EventKind::{Acquired, Queued, Released};
        use LockMode::{Exclusive, Permits, Shared};
        let wrong: [(&str, Vec<Event>); 7] = [
            (
                "a writer beside",
                vec![
                    event(Acquired, "k1:1:1", Shared, 1, None),
                    event(Acquired, "k2:1:1", Exclusive, 2, None),
                ],
            ),
            (
                "a reader beside",
                vec![
                    event(Acquired, "k1:1:1", Exclusive, 1, None),
                    event(Acquired, "k2:1:1", Shared, 2, None),
                ],
            ),
            (
                "permits are held",
                vec![
                    event(Acquired, "k1:2:3", Permits, 1, None),
                    event(Acquired, "k2:2:3", Permits, 2, None),
                ],
            ),
            (
                "does not rise",
                vec![
                    event(Acquired, "k1:1:1", Exclusive, 1, None),
                    event(Queued, "k2:1:1", Exclusive, 1, None),
                    event(Released, "k1:1:1", Exclusive, 1, Some(LossCause::Wounded)),
                    event(Acquired, "k2:1:1", Exclusive, 1, None),
                ],
            ),
            (
                "out of its turn",
                vec![
                    event(Acquired, "k1:1:1", Shared, 1, None),
                    event(Queued, "k2:1:1", Exclusive, 1, None),
                    event(Acquired, "k3:1:1", Shared, 2, None),
                ],
            ),
            (
                "out of its turn",
                vec![
                    event(Acquired, "k1:1:1", Shared, 1, None),
                    event(Queued, "k1:1:1", Exclusive, 1, None),
                    event(Released, "k1:1:1", Shared, 1, None),
                    event(Acquired, "k2:1:1", Exclusive, 2, None),
                ],
            ),
            ("did not hold it", vec![event(Released, "k1:1:1", Exclusive, 1, None)]),
        ];
        for (text, log) in wrong {
            let found = verdict(&log).expect_err(text);
            assert!(found.contains(text), "{found}");
        }
        let lost = event(EventKind::Expired, "k1:1:1", Shared, 1, Some(LossCause::Expired));
        assert!(KindLines::check_losses(&[lost], &[]).is_err());
    }

    #[test]
    fn who_waits_against_its_policy_is_found() {
        use SessionPolicy::{WaitDie, WoundWait};
        let party = |number, policy, age| {
            let owner = KindOwner { number, count: 1, max: 1 };
            Party { owner, session: Some(Policied { policy, age }) }
        };
        let free = Party { owner: KindOwner { number: 9, count: 1, max: 1 }, session: None };
        assert_eq!(check_waits(&[party(1, WaitDie, 5), free], &[party(2, WaitDie, 3)]), Ok(()));
        assert!(check_waits(&[party(1, WaitDie, 2)], &[party(2, WaitDie, 3)]).is_err());
        assert!(check_waits(&[free], &[party(1, WoundWait, 2), party(2, WaitDie, 3)]).is_err());
        assert_eq!(check_waits(&[party(1, WoundWait, 2)], &[party(2, WoundWait, 3)]), Ok(()));
        assert_eq!(check_waits(&[party(1, WoundWait, 5), free], &[party(2, WoundWait, 3)]), Ok(()));
        assert!(check_waits(&[party(1, WoundWait, 5)], &[party(2, WoundWait, 3)]).is_err());
        let permits = |number, count, max, age| {
            let session = Some(Policied { policy: WoundWait, age });
            Party { owner: KindOwner { number, count, max }, session }
        };
        let held = [permits(1, 1, 3, 1), permits(2, 2, 3, 9)];
        assert!(check_waits(&held, &[permits(3, 2, 3, 5)]).is_err());
        assert_eq!(check_waits(&held, &[permits(3, 3, 3, 5)]), Ok(()));
    }

    #[test]
    fn beliefs_that_cannot_stand_together() {
        let owner = |number, count, max| KindOwner { number, count, max };
        let belief = |owner, mode, fence| Belief { owner, mode, fence, until_us: 100 };
        let mut beliefs = Beliefs::default();
        assert_eq!(beliefs.begin(1, belief(owner(1, 1, 1), LockMode::Shared, 1)), Ok(()));
        assert_eq!(beliefs.begin(1, belief(owner(2, 1, 1), LockMode::Shared, 2)), Ok(()));
        assert!(beliefs.begin(1, belief(owner(3, 1, 1), LockMode::Exclusive, 3)).is_err());
        let mut beliefs = Beliefs::default();
        assert_eq!(beliefs.begin(1, belief(owner(1, 2, 3), LockMode::Permits, 1)), Ok(()));
        assert_eq!(beliefs.begin(1, belief(owner(2, 2, 4), LockMode::Permits, 2)), Ok(()));
        assert!(beliefs.begin(2, belief(owner(3, 1, 4), LockMode::Permits, 3)).is_err());
        assert_eq!(beliefs.begin(200, belief(owner(4, 4, 4), LockMode::Permits, 4)), Ok(()));
    }
}
