//! What must always hold. The whole is checked in tests, by the simulator and after a restore; a cheap part after every
//! apply in debug builds.
//!
//! The checks believe nothing: a link may point anywhere, so every step is a checked one. They are written against the
//! meaning of the state, not against the code that changes it.

use crate::machine::locks::lock::{Lock, Phase};
use crate::machine::queue::waiter::Waiter;
use crate::machine::store::deadlines::{Timer, NEVER};
use crate::machine::store::list::{Linked, Links, List};
use crate::machine::store::slab::{Image, Slab};
use crate::machine::{HolderSlot, LockSlot, Machine, SessionSlot, Slot, WaiterSlot, WALL_US_MAX};
use crate::types::{Fence, LockKind, LockMode, UserTag, FENCE_BOUND, OWNER_BYTES_MAX, PERMITS_MAX};
use std::collections::BTreeSet;
use std::fmt;

/// What does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub(crate) String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

type Checked = Result<(), Violation>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(Violation(what()))
    }
}

/// Below this many records the whole is checked after every apply in debug builds.
const SMALL: usize = 64;

impl Machine {
    pub(crate) fn check_after_apply(&self) {
        if cfg!(debug_assertions) {
            let records = self.locks.len() + self.waiters.len() + self.sessions.len() + self.blocked.len();
            let checked = if records <= SMALL { self.check_invariants() } else { self.check_counts() };
            if let Err(violation) = checked {
                panic!("the machine broke an invariant: {violation}");
            }
        }
    }

    /// Everything, in time linear in the state (but for circles of sessions, see `check_no_circle`).
    pub fn check_invariants(&self) -> Result<(), Violation> {
        self.check_records()?;
        self.check_indexes()?;
        self.check_counts()
    }

    fn check_counts(&self) -> Checked {
        ensure(self.to_serve.is_empty(), || "locks are left to serve".into())?;
        ensure(self.idle.len as usize <= self.locks.len(), || "more idle locks than locks".into())?;
        ensure(self.counters.held + u64::from(self.idle.len) <= self.locks.len() as u64, || {
            format!("{} held and {} idle of {} locks", self.counters.held, self.idle.len, self.locks.len())
        })?;
        ensure(self.queued_owners.len() == self.queue_entries.len(), || {
            "queue entries and their index differ".into()
        })?;
        let of_users = self.sessions.iter().filter(|(_, session)| session.user != UserTag::DEFAULT).count();
        ensure(self.sessions_of.values().sum::<usize>() == of_users, || "sessions of users".into())?;
        ensure(self.session_ids.len() == self.sessions.len(), || "sessions and their index differ".into())
    }

    /// The records alone, before any index is built on them.
    pub(crate) fn check_records(&self) -> Checked {
        let mut held = 0;
        for (slot, lock) in self.locks.iter() {
            held += u64::from(lock.is_held());
            self.check_lock(slot, lock)?;
        }
        ensure(held == self.counters.held, || format!("{held} held, {} counted", self.counters.held))?;
        ensure(self.floor.0 < FENCE_BOUND / 4 * 3, || "the floor is out of range".into())?;
        let idle = self.idle;
        let is_idle = |slot: LockSlot| self.locks[slot].idle_since_ms().is_some();
        let idle_slots = check_list(&self.locks, idle, "idle list", is_idle)?;
        let all_idle = self.locks.iter().filter(|(_, lock)| lock.idle_since_ms().is_some()).count();
        ensure(idle_slots.len() == all_idle, || "an idle lock is not in the idle list".into())?;
        let since = |slot: &LockSlot| self.locks[*slot].idle_since_ms();
        ensure(idle_slots.windows(2).all(|pair| since(&pair[0]) <= since(&pair[1])), || {
            "the idle list is out of order".into()
        })?;
        for (slot, _) in &self.values {
            let holder = self.locks.get(*slot).filter(|lock| lock.is_held());
            ensure(holder.is_some_and(|lock| lock.owner().is_empty() && !lock.is_several()), || {
                format!("lock {slot} has a value and is free, or has an owner")
            })?;
        }
        ensure(self.versions.keys().all(|slot| self.values.contains_key(slot)), || {
            "a version of what is no collection".into()
        })?;
        self.check_grants()?;
        self.check_holder_records()?;
        ensure(self.marks.is_sound(), || "the marks and their index differ".into())?;
        self.check_queues()?;
        for (slot, waiter) in self.waiters.iter() {
            self.check_waiter(slot, waiter)?;
        }
        self.check_sessions()
    }

    fn check_lock(&self, slot: LockSlot, lock: &Lock) -> Checked {
        let fail = |what: &str| Err(Violation(format!("lock {slot}: {what}")));
        if lock.fence.0 >= FENCE_BOUND / 4 * 3 {
            return fail("its fence is out of range");
        }
        match lock.phase {
            Phase::Held { .. } => {
                // A plain key may hold an empty string, and a hash or list has no owner at all.
                if lock.fence.0 == 0 {
                    return fail("held without a fence");
                }
                if lock.session().is_some() && self.sessions.get(lock.session()).is_none() {
                    return fail("its session is not there");
                }
                if lock.session().is_none() && lock.links() != Links::UNLINKED {
                    return fail("in a list without a session");
                }
            }
            Phase::Several { holders, .. } => {
                if lock.fence.0 == 0 || holders == 0 {
                    return fail("held without a fence or a holder");
                }
                if lock.links() != Links::UNLINKED {
                    return fail("in a list although its holders are");
                }
            }
            Phase::Awaited => {
                if lock.queue.len == 0 {
                    return fail("free with nobody in line, and not idle");
                }
                if lock.links() != Links::UNLINKED {
                    return fail("in a list although awaited");
                }
            }
            Phase::Idle { since_ms } => {
                if lock.queue.len != 0 || lock.fence.0 == 0 {
                    return fail("idle, with a queue or without a fence");
                }
                if since_ms > self.clock.logical_ms {
                    return fail("idle since a time to come");
                }
            }
        }
        Ok(())
    }

    /// Queues and queue entries name each other, and a free lock's first in line has a reason to wait.
    fn check_queues(&self) -> Checked {
        let mut queued = 0;
        for (slot, lock) in self.locks.iter().filter(|(_, lock)| lock.queue != List::EMPTY) {
            let queue_entries = check_list(&self.queue_entries, lock.queue, "queue", |entry| {
                self.queue_entries[entry].lock == slot
            })?;
            queued += queue_entries.len();
            for entry in &queue_entries {
                let Some(waiter) = self.waiters.get(self.queue_entries[*entry].waiter) else {
                    return Err(Violation(format!("queue entry {entry} has no waiter")));
                };
                ensure(waiter.queue_entries.contains(entry), || {
                    format!("queue entry {entry} is not its waiter's")
                })?;
            }
        }
        ensure(queued == self.queue_entries.len(), || "a queue entry is in no queue".into())?;
        Ok(())
    }

    /// Who waits to convert its hold is the first in line, and has that hold.
    fn check_upgraders(&self) -> Checked {
        for (slot, waiter) in self.waiters.iter().filter(|(_, waiter)| waiter.converts != Fence(0)) {
            let place = waiter.queue_entries.first().and_then(|entry| self.queue_entries.get(*entry));
            let lock = place.map_or(LockSlot::NONE, |place| place.lock);
            let is_first = self.locks.get(lock).is_some_and(|lock| {
                waiter.queue_entries.len() == 1 && lock.queue.head == waiter.queue_entries[0]
            });
            let hold = self.holder_index.with_fence(lock, waiter.converts);
            let has_hold = hold.map(|hold| &self.holders[hold]).is_some_and(|hold| {
                hold.asker() == waiter.asker()
                    && hold.session == waiter.session
                    && hold.kind == LockKind::Shared
            });
            ensure(is_first && has_hold && waiter.kind == LockKind::Exclusive, || {
                format!("waiter {slot} converts what it does not hold, or from behind")
            })?;
        }
        Ok(())
    }

    /// The first in line has a reason to wait. After the indexes: who holds what is found by them.
    fn check_heads(&self) -> Checked {
        for (slot, lock) in self.locks.iter().filter(|(_, lock)| lock.queue.len > 0) {
            let waiter = &self.waiters[self.queue_entries[lock.queue.head].waiter];
            ensure(!self.could_be_granted(waiter), || {
                format!("the first in line of lock {slot} could have it and waits")
            })?;
        }
        Ok(())
    }

    /// Holders name locks that count them, in the mode of the lock.
    fn check_holder_records(&self) -> Checked {
        let mut counted = std::collections::BTreeMap::new();
        let mut known = BTreeSet::new();
        for (slot, holder) in self.holders.iter() {
            let fail = |what: &str| Err(Violation(format!("holder {slot}: {what}")));
            let mode = self.locks.get(holder.lock).and_then(Lock::mode);
            if mode != Some(holder.kind.mode()) || !holder.kind.is_valid() {
                return fail("its lock is free, or held in another mode");
            }
            if holder.fence.0 == 0 || holder.fence > self.locks[holder.lock].fence {
                return fail("its fence was never issued");
            }
            if !known.insert((holder.lock, holder.fence)) {
                return fail("another has the same fence");
            }
            if holder.session.is_some() && self.sessions.get(holder.session).is_none() {
                return fail("its session is not there");
            }
            if holder.session.is_none() && holder.links() != Links::UNLINKED {
                return fail("in a list without a session");
            }
            if holder.since_ms > self.clock.logical_ms {
                return fail("it holds since a time to come");
            }
            let (sum, holders) = counted.entry(holder.lock).or_insert((0u64, 0u32));
            (*sum, *holders) = (*sum + u64::from(holder.kind.count()), *holders + 1);
        }
        for (slot, lock) in self.locks.iter() {
            if let Phase::Several { mode, sum, holders, .. } = lock.phase {
                let most = if mode == LockMode::Permits { PERMITS_MAX } else { holders };
                ensure(sum <= most, || format!("lock {slot}: its sum of {sum} is out of range"))?;
                let found = counted.get(&slot).copied().unwrap_or_default();
                ensure(found == (u64::from(sum), holders), || {
                    format!("lock {slot}: {sum} of {holders} holders, counted {found:?}")
                })?;
            }
        }
        for (slot, _) in &self.attached {
            let lock = self.locks.get(*slot);
            ensure(lock.is_some_and(|lock| lock.is_held() && !lock.is_several()), || {
                format!("lock {slot} has a value of its grant and no exclusive holder")
            })?;
        }
        let is_early = self.cluster_version() < 2;
        ensure(!is_early || (self.holders.len() == 0 && self.attached.is_empty()), || {
            "holders before cluster version 2".into()
        })
    }

    fn could_be_granted(&self, waiter: &Waiter) -> bool {
        waiter.queue_entries.iter().all(|entry| {
            let lock = self.queue_entries.get(*entry).and_then(|entry| self.locks.get(entry.lock));
            let slot = self.queue_entries.get(*entry).map_or(LockSlot::NONE, |entry| entry.lock);
            lock.is_some_and(|lock| lock.queue.head == *entry && self.may_hold(slot, lock, waiter))
        })
    }

    /// Whether a waiter goes with those who hold a lock, by the contract's table of kinds.
    fn may_hold(&self, slot: LockSlot, lock: &Lock, waiter: &Waiter) -> bool {
        // Numbers and sums are those of the records: that was checked before.
        match lock.phase {
            Phase::Awaited | Phase::Idle { .. } => true,
            Phase::Held { .. } => lock.is_held_by(waiter.asker()) && waiter.kind == LockKind::Exclusive,
            Phase::Several { holders, .. } if waiter.converts != Fence(0) => {
                let own = self.holder_index.with_fence(slot, waiter.converts);
                holders == 1 && own.is_some_and(|own| self.is_live_holder(own))
            }
            Phase::Several { holders, .. } if holders as usize >= self.limits.holders_per_lock_max => false,
            Phase::Several { mode, sum, .. } => match waiter.kind {
                LockKind::Exclusive => false,
                LockKind::Shared => mode == LockMode::Shared,
                LockKind::Permits { count, max } => {
                    mode == LockMode::Permits && u64::from(sum) + u64::from(count) <= u64::from(max)
                }
            },
        }
    }

    fn check_waiter(&self, slot: WaiterSlot, waiter: &Waiter) -> Checked {
        let fail = |what: &str| Err(Violation(format!("waiter {slot}: {what}")));
        if waiter.requests.is_empty() || waiter.requests.len() > self.limits.requests_per_waiter_max {
            return fail("no request, or too many");
        }
        if !(1..=OWNER_BYTES_MAX).contains(&waiter.owner.len()) {
            return fail("its owner is too short or too long");
        }
        if waiter.since_ms > self.clock.logical_ms {
            return fail("it waits since a time to come");
        }
        if waiter.session.is_some() && self.sessions.get(waiter.session).is_none() {
            return fail("its session is not there");
        }
        let is_bound = waiter.ttl_ms == 0 && waiter.converts == Fence(0);
        if waiter.session.is_none() && (is_bound || waiter.links() != Links::UNLINKED) {
            return fail("bound to a session it does not have");
        }
        if waiter.ttl_ms > crate::types::TTL_MS_MAX {
            return fail("its ttl is out of range");
        }
        let mut names = Vec::new();
        for entry in &waiter.queue_entries {
            let Some(entry) = self.queue_entries.get(*entry).filter(|entry| entry.waiter == slot) else {
                return fail("a queue entry of it is another's or nobody's");
            };
            let Some(lock) = self.locks.get(entry.lock) else { return fail("it stands at no lock") };
            names.push((lock.db(), lock.name()));
        }
        if !names.windows(2).all(|pair| pair[0] < pair[1]) {
            return fail("its queue entries are not in canonical order");
        }
        Ok(())
    }

    fn check_sessions(&self) -> Checked {
        let (mut bound, mut waiting) = (0, 0);
        for (slot, session) in self.sessions.iter() {
            ensure((1..=crate::types::TTL_MS_MAX).contains(&session.ttl_ms), || {
                format!("session {slot}: its ttl")
            })?;
            let holds = |lock: LockSlot| {
                let lock = &self.locks[lock];
                lock.is_held() && lock.session() == slot && lock.user() == session.user
            };
            bound += check_list(&self.locks, session.locks, "session's locks", holds)?.len();
            let waits = |waiter: WaiterSlot| {
                let waiter = &self.waiters[waiter];
                waiter.session == slot && waiter.user == session.user
            };
            let waiters = check_list(&self.waiters, session.waiters, "session's waiters", waits)?;
            waiting += waiters.len();
        }
        let mut bound_holders = 0;
        for (slot, session) in self.sessions.iter() {
            let holds = |holder: HolderSlot| self.holders[holder].session == slot;
            bound_holders += check_list(&self.holders, session.holders, "session's holders", holds)?.len();
        }
        let all_holders = self.holders.iter().filter(|(_, holder)| holder.session.is_some()).count();
        ensure(bound_holders == all_holders, || "a holder is not in its session's list".into())?;
        let all_bound = self.locks.iter().filter(|(_, lock)| lock.session().is_some()).count();
        ensure(bound == all_bound, || "a lock is not in its session's list".into())?;
        let all_waiting = self.waiters.iter().filter(|(_, waiter)| waiter.session.is_some()).count();
        ensure(waiting == all_waiting, || "a waiter is not in its session's list".into())
    }

    /// What is worked out from the records agrees with them. Each record is found by its own name or id, so no two have the same.
    fn check_indexes(&self) -> Checked {
        ensure(self.clock.wall_us <= WALL_US_MAX, || "the wall clock is out of range".into())?;
        let mut deadlines = 0;
        let mut expires = std::collections::BTreeMap::new();
        for (slot, lock) in self.locks.iter() {
            ensure(self.names.find(&self.locks, lock.db(), lock.name()) == Some(slot), || {
                format!("lock {slot} is not found by its name")
            })?;
            let ends_ms = Some(lock.deadline_ms()).filter(|deadline_ms| *deadline_ms != NEVER);
            deadlines += usize::from(ends_ms.is_some());
            *expires.entry(lock.db()).or_default() += u64::from(ends_ms.is_some());
            ensure(self.deadlines.get(Timer::Lock(slot)) == ends_ms, || {
                format!("lock {slot}: its deadline")
            })?;
        }
        for (db, count) in expires {
            ensure(self.deadlines.locks_of(db) == count, || format!("database {db}: keys with a deadline"))?;
        }
        for (slot, holder) in self.holders.iter() {
            let ends_ms = Some(holder.deadline_ms).filter(|deadline_ms| *deadline_ms != NEVER);
            deadlines += usize::from(ends_ms.is_some());
            ensure(self.deadlines.get(Timer::Holder(slot)) == ends_ms, || {
                format!("holder {slot}: its deadline")
            })?;
            let by_owner = self.holder_index.of_owner(&self.holders, holder.lock, holder.asker());
            let by_fence = self.holder_index.with_fence(holder.lock, holder.fence);
            ensure((by_owner, by_fence) == (Some(slot), Some(slot)), || {
                format!("holder {slot} is not found by its owner or its fence")
            })?;
        }
        ensure(self.holder_index.len() == self.holders.len(), || "holders and their index differ".into())?;
        for (slot, waiter) in self.waiters.iter() {
            deadlines += 1;
            let ends_ms = Some(waiter.next_deadline_ms());
            ensure(self.deadlines.get(Timer::Waiter(slot)) == ends_ms, || {
                format!("waiter {slot}: its deadline")
            })?;
            for id in waiter.requests.iter().filter_map(|request| request.id) {
                ensure(self.requests.get(&id) == Some(&slot), || format!("request {id:?} is not found"))?;
            }
        }
        for (slot, entry) in self.queue_entries.iter() {
            let asker = self.waiters[entry.waiter].asker();
            let found = self.queued_owners.find(&self.queue_entries, &self.waiters, entry.lock, asker);
            ensure(found == Some(slot), || format!("queue entry {slot} is not found by its owner"))?;
        }
        let requests: usize = self
            .waiters
            .iter()
            .map(|(_, w)| w.requests.iter().filter(|request| request.id.is_some()).count())
            .sum();
        ensure(requests == self.requests.len(), || "requests and their index differ".into())?;
        for (slot, session) in self.sessions.iter() {
            deadlines += 1;
            ensure(self.deadlines.get(Timer::Session(slot)) == Some(session.deadline_ms), || {
                format!("session {slot}: its deadline")
            })?;
            ensure(self.session_ids.get(&session.id) == Some(&slot), || {
                format!("session {slot} is not found")
            })?;
        }
        for (slot, session) in self.sessions.iter() {
            let waiters = session.waiters.walk(&self.waiters);
            let queue_entries: usize = waiters.map(|waiter| self.waiters[waiter].queue_entries.len()).sum();
            ensure(queue_entries == session.queue_entries as usize, || {
                format!("session {slot}: its queue entries")
            })?;
        }
        let mut counted = std::collections::BTreeMap::new();
        for (_, lock) in self.locks.iter().filter(|(_, lock)| lock.is_held() && !self.is_flushed(lock)) {
            *counted.entry(lock.db()).or_insert(0) += 1;
        }
        for (db, held) in counted {
            ensure(self.sweep.held(db) == held, || format!("database {db}: {held} keys, counted otherwise"))?;
        }
        self.check_upgraders()?;
        self.check_heads()?;
        ensure(deadlines == self.deadlines.len(), || "a deadline belongs to nothing".into())?;
        let weighed = self.weigh_records();
        ensure(weighed == self.memory, || format!("{weighed:?} weighed, {:?} counted", self.memory))?;
        let blocked: usize = self.blocked.waitings().values().map(|waiting| waiting.weight()).sum();
        ensure(blocked == self.blocked.weight(), || "blocked clients and their weight differ".into())?;
        ensure(self.dedup.is_weighed(), || "replies and their weight differ".into())
    }

    /// No circle of sessions over two locks or more, in which each session comes once. Tries all ways, so it is for tests with
    /// few sessions; with many it gives up after a while and says nothing.
    pub fn check_no_circle(&self) -> Result<(), Violation> {
        let edges = self.waiting_edges();
        let mut steps_left = 100_000;
        for start in edges.iter().map(|edge| edge.0).collect::<BTreeSet<SessionSlot>>() {
            let mut way = vec![start];
            let circle = find_circle(&edges, &mut way, None, &mut steps_left);
            ensure(!circle, || format!("session {} waits for itself", self.sessions[start].id))?;
        }
        Ok(())
    }

    /// Who waits for whom, and over which lock.
    fn waiting_edges(&self) -> BTreeSet<(SessionSlot, SessionSlot, LockSlot)> {
        let mut edges = BTreeSet::new();
        for (_, waiter) in self.waiters.iter().filter(|(_, waiter)| waiter.session.is_some()) {
            for entry in &waiter.queue_entries {
                let slot = self.queue_entries[*entry].lock;
                let lock = &self.locks[slot];
                let ahead = lock.queue.walk(&self.queue_entries).take_while(|other| other != entry);
                let queued = ahead.map(|other| self.waiters[self.queue_entries[other].waiter].session);
                let several = self.holders_of(slot).map(|holder| self.holders[holder].session);
                let holders = lock.is_held().then_some(lock.session()).into_iter().chain(several);
                for to in holders.chain(queued).filter(|to| to.is_some() && *to != waiter.session) {
                    edges.insert((waiter.session, to, slot));
                }
            }
        }
        edges
    }
}

/// Whether the way can be closed to a circle over more than one lock. `over`: the one lock it has used, `NONE` where there
/// were more.
fn find_circle(
    edges: &BTreeSet<(SessionSlot, SessionSlot, LockSlot)>,
    way: &mut Vec<SessionSlot>,
    over: Option<LockSlot>,
    steps_left: &mut usize,
) -> bool {
    let at = way[way.len() - 1];
    for &(_, to, lock) in edges.range((at, Slot::new(0), Slot::new(0))..=(at, Slot::NONE, Slot::NONE)) {
        if *steps_left == 0 {
            return false;
        }
        *steps_left -= 1;
        let over = match over {
            None => lock,
            Some(other) if other == lock => lock,
            Some(_) => LockSlot::NONE,
        };
        if to == way[0] {
            if over.is_none() {
                return true;
            }
        } else if !way.contains(&to) {
            way.push(to);
            if find_circle(edges, way, Some(over), steps_left) {
                return true;
            }
            way.pop();
        }
    }
    false
}

/// A list that may be anything: walks it with checked steps and answers its slots.
fn check_list<T: Image + Linked>(
    slab: &Slab<T>,
    list: List<T>,
    what: &str,
    belongs: impl Fn(Slot<T>) -> bool,
) -> Result<Vec<Slot<T>>, Violation> {
    let mut slots = Vec::new();
    let (mut at, mut before) = (list.head, Slot::NONE);
    while at.is_some() {
        let linked = slab.get(at).filter(|record| record.links().prev == before);
        let Some(record) = linked.filter(|_| slots.len() < list.len as usize && belongs(at)) else {
            return Err(Violation(format!("the {what} is broken at slot {at}")));
        };
        slots.push(at);
        (before, at) = (at, record.links().next);
    }
    ensure(before == list.tail && slots.len() == list.len as usize, || {
        format!("the {what} has another end")
    })?;
    Ok(slots)
}
