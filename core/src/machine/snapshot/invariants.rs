//! What must always hold. The whole is checked in tests, by the simulator and after a restore; a cheap part after every
//! apply in debug builds.
//!
//! The checks believe nothing: a link may point anywhere, so every step is a checked one. They are written against the
//! meaning of the state, not against the code that changes it.

use crate::machine::locks::lock::{Lock, Phase};
use crate::machine::queue::waiter::Waiter;
use crate::machine::store::deadlines::{Kind, NEVER};
use crate::machine::store::list::{Linked, List};
use crate::machine::store::slab::{Image, Slab, NONE};
use crate::machine::{Machine, WALL_US_MAX};
use crate::types::FENCE_BOUND;
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
            let records = self.locks.len() + self.waiters.len() + self.sessions.len();
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
        ensure(self.queued_owners.len() == self.seats.len(), || "seats and their index differ".into())?;
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
        let is_idle = |slot: u32| self.locks[slot].phase == Phase::Idle;
        let idle_slots = check_list(&self.locks, idle, "idle list", is_idle)?;
        let all_idle = self.locks.iter().filter(|(_, lock)| lock.phase == Phase::Idle).count();
        ensure(idle_slots.len() == all_idle, || "an idle lock is not in the idle list".into())?;
        let since = |slot: &u32| self.locks[*slot].at_ms;
        ensure(idle_slots.windows(2).all(|pair| since(&pair[0]) <= since(&pair[1])), || {
            "the idle list is out of order".into()
        })?;
        for (slot, _) in &self.values {
            let holder = self.locks.get(*slot).filter(|lock| lock.is_held());
            ensure(holder.is_some_and(|lock| lock.owner().is_empty()), || {
                format!("lock {slot} has a value and is free, or has an owner")
            })?;
        }
        ensure(self.versions.keys().all(|slot| self.values.contains_key(slot)), || {
            "a version of what is no collection".into()
        })?;
        self.check_grants()?;
        ensure(self.marks.is_sound(), || "the marks and their index differ".into())?;
        self.check_seats()?;
        for (slot, waiter) in self.waiters.iter() {
            self.check_waiter(slot, waiter)?;
        }
        self.check_sessions()
    }

    fn check_lock(&self, slot: u32, lock: &Lock) -> Checked {
        let fail = |what: &str| Err(Violation(format!("lock {slot}: {what}")));
        if lock.fence.0 >= FENCE_BOUND / 4 * 3 {
            return fail("its fence is out of range");
        }
        match lock.phase {
            Phase::Held => {
                // A plain key may hold an empty string, and a hash or list has no owner at all.
                if lock.fence.0 == 0 {
                    return fail("held without a fence");
                }
                if lock.session != NONE && self.sessions.get(lock.session).is_none() {
                    return fail("its session is not there");
                }
                if lock.session == NONE && lock.links() != crate::machine::store::list::Links::ALONE {
                    return fail("in a list without a session");
                }
            }
            Phase::Awaited => {
                if lock.queue.len == 0 || lock.session != NONE || lock.at_ms != NEVER {
                    return fail("free with nobody in line, and not idle");
                }
                if lock.links() != crate::machine::store::list::Links::ALONE {
                    return fail("in a list although awaited");
                }
            }
            Phase::Idle => {
                if lock.queue.len != 0 || lock.fence.0 == 0 || lock.session != NONE {
                    return fail("idle, with a queue or without a fence");
                }
                if lock.at_ms > self.clock.logical_ms {
                    return fail("idle since a time to come");
                }
            }
        }
        Ok(())
    }

    /// Queues and seats name each other, and a free lock's first in line has a reason to wait.
    fn check_seats(&self) -> Checked {
        let mut seated = 0;
        for (slot, lock) in self.locks.iter().filter(|(_, lock)| lock.queue != List::EMPTY) {
            let seats = check_list(&self.seats, lock.queue, "queue", |seat| self.seats[seat].lock == slot)?;
            seated += seats.len();
            for seat in &seats {
                let Some(waiter) = self.waiters.get(self.seats[*seat].waiter) else {
                    return Err(Violation(format!("seat {seat} has no waiter")));
                };
                ensure(waiter.seats.contains(seat), || format!("seat {seat} is not its waiter's"))?;
            }
        }
        ensure(seated == self.seats.len(), || "a seat is in no queue".into())?;
        for (slot, lock) in self.locks.iter().filter(|(_, lock)| !lock.is_held() && lock.queue.len > 0) {
            let waiter = &self.waiters[self.seats[lock.queue.head].waiter];
            ensure(!self.could_be_granted(waiter), || {
                format!("lock {slot} is free and its first in line waits")
            })?;
        }
        Ok(())
    }

    fn could_be_granted(&self, waiter: &Waiter) -> bool {
        waiter.seats.iter().all(|seat| {
            let lock = self.seats.get(*seat).and_then(|seat| self.locks.get(seat.lock));
            lock.is_some_and(|lock| {
                lock.queue.head == *seat && (!lock.is_held() || lock.owner() == &*waiter.owner)
            })
        })
    }

    fn check_waiter(&self, slot: u32, waiter: &Waiter) -> Checked {
        let fail = |what: &str| Err(Violation(format!("waiter {slot}: {what}")));
        if waiter.requests.is_empty() || waiter.requests.len() > self.limits.requests_per_waiter_max {
            return fail("no request, or too many");
        }
        if waiter.since_ms > self.clock.logical_ms {
            return fail("it waits since a time to come");
        }
        if waiter.session != NONE && self.sessions.get(waiter.session).is_none() {
            return fail("its session is not there");
        }
        if waiter.session == NONE
            && (waiter.ttl_ms == 0 || waiter.links() != crate::machine::store::list::Links::ALONE)
        {
            return fail("bound to a session it does not have");
        }
        if waiter.ttl_ms > crate::types::TTL_MS_MAX {
            return fail("its ttl is out of range");
        }
        let mut names = Vec::new();
        for seat in &waiter.seats {
            let Some(seat) = self.seats.get(*seat).filter(|seat| seat.waiter == slot) else {
                return fail("a seat of it is another's or nobody's");
            };
            let Some(lock) = self.locks.get(seat.lock) else { return fail("it stands at no lock") };
            names.push((lock.db(), lock.name()));
        }
        if !names.windows(2).all(|pair| pair[0] < pair[1]) {
            return fail("its seats are not in canonical order");
        }
        Ok(())
    }

    fn check_sessions(&self) -> Checked {
        let (mut bound, mut waiting) = (0, 0);
        for (slot, session) in self.sessions.iter() {
            ensure((1..=crate::types::TTL_MS_MAX).contains(&session.ttl_ms), || {
                format!("session {slot}: its ttl")
            })?;
            let holds = |lock: u32| self.locks[lock].is_held() && self.locks[lock].session == slot;
            bound += check_list(&self.locks, session.locks, "session's locks", holds)?.len();
            let waits = |waiter: u32| self.waiters[waiter].session == slot;
            let waiters = check_list(&self.waiters, session.waiters, "session's waiters", waits)?;
            waiting += waiters.len();
        }
        let all_bound = self.locks.iter().filter(|(_, lock)| lock.session != NONE).count();
        ensure(bound == all_bound, || "a lock is not in its session's list".into())?;
        let all_waiting = self.waiters.iter().filter(|(_, waiter)| waiter.session != NONE).count();
        ensure(waiting == all_waiting, || "a waiter is not in its session's list".into())
    }

    /// What is worked out from the records agrees with them. Each record is found by its own name or id, so no two have the same.
    fn check_indexes(&self) -> Checked {
        ensure(self.clock.wall_us <= WALL_US_MAX, || "the wall clock is out of range".into())?;
        let mut deadlines = 0;
        for (slot, lock) in self.locks.iter() {
            ensure(self.names.find(&self.locks, lock.db(), lock.name()) == Some(slot), || {
                format!("lock {slot} is not found by its name")
            })?;
            let ends_ms = (lock.is_held() && lock.at_ms != NEVER).then_some(lock.at_ms);
            deadlines += usize::from(ends_ms.is_some());
            ensure(self.deadlines.get(Kind::Lock, slot) == ends_ms, || format!("lock {slot}: its deadline"))?;
        }
        for (slot, waiter) in self.waiters.iter() {
            deadlines += 1;
            let ends_ms = Some(waiter.next_deadline_ms());
            ensure(self.deadlines.get(Kind::Waiter, slot) == ends_ms, || {
                format!("waiter {slot}: its deadline")
            })?;
            for id in waiter.requests.iter().filter_map(|request| request.id) {
                ensure(self.requests.get(&id) == Some(&slot), || format!("request {id:?} is not found"))?;
            }
        }
        for (slot, seat) in self.seats.iter() {
            let owner = &self.waiters[seat.waiter].owner;
            let found = self.queued_owners.find(&self.seats, &self.waiters, seat.lock, owner);
            ensure(found == Some(slot), || format!("seat {slot} is not found by its owner"))?;
        }
        let requests: usize = self
            .waiters
            .iter()
            .map(|(_, w)| w.requests.iter().filter(|request| request.id.is_some()).count())
            .sum();
        ensure(requests == self.requests.len(), || "requests and their index differ".into())?;
        for (slot, session) in self.sessions.iter() {
            deadlines += 1;
            ensure(self.deadlines.get(Kind::Session, slot) == Some(session.deadline_ms), || {
                format!("session {slot}: its deadline")
            })?;
            ensure(self.session_ids.get(&session.id) == Some(&slot), || {
                format!("session {slot} is not found")
            })?;
        }
        for (slot, session) in self.sessions.iter() {
            let waiters = session.waiters.walk(&self.waiters);
            let seats: usize = waiters.map(|waiter| self.waiters[waiter].seats.len()).sum();
            ensure(seats == session.seats as usize, || format!("session {slot}: its seats"))?;
        }
        let mut counted = std::collections::BTreeMap::new();
        for (_, lock) in self.locks.iter().filter(|(_, lock)| lock.is_held() && !self.is_flushed(lock)) {
            *counted.entry(lock.db()).or_insert(0) += 1;
        }
        for (db, held) in counted {
            ensure(self.sweep.held(db) == held, || format!("database {db}: {held} keys, counted otherwise"))?;
        }
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
        for start in edges.iter().map(|edge| edge.0).collect::<BTreeSet<u32>>() {
            let mut way = vec![start];
            let circle = find_circle(&edges, &mut way, None, &mut steps_left);
            ensure(!circle, || format!("session {} waits for itself", self.sessions[start].id))?;
        }
        Ok(())
    }

    /// Who waits for whom, and over which lock.
    fn waiting_edges(&self) -> BTreeSet<(u32, u32, u32)> {
        let mut edges = BTreeSet::new();
        for (_, waiter) in self.waiters.iter().filter(|(_, waiter)| waiter.session != NONE) {
            for seat in &waiter.seats {
                let slot = self.seats[*seat].lock;
                let lock = &self.locks[slot];
                let ahead = lock.queue.walk(&self.seats).take_while(|other| other != seat);
                let queued = ahead.map(|other| self.waiters[self.seats[other].waiter].session);
                let holder = lock.is_held().then_some(lock.session);
                for to in holder.into_iter().chain(queued).filter(|to| *to != NONE && *to != waiter.session) {
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
    edges: &BTreeSet<(u32, u32, u32)>,
    way: &mut Vec<u32>,
    over: Option<u32>,
    steps_left: &mut usize,
) -> bool {
    let at = way[way.len() - 1];
    for &(_, to, lock) in edges.range((at, 0, 0)..=(at, NONE, NONE)) {
        if *steps_left == 0 {
            return false;
        }
        *steps_left -= 1;
        let over = match over {
            None => lock,
            Some(other) if other == lock => lock,
            Some(_) => NONE,
        };
        if to == way[0] {
            if over == NONE {
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
    list: List,
    what: &str,
    belongs: impl Fn(u32) -> bool,
) -> Result<Vec<u32>, Violation> {
    let mut slots = Vec::new();
    let (mut at, mut before) = (list.head, NONE);
    while at != NONE {
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
