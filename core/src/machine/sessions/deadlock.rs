//! Circles of sessions that wait for each other. A wait that would close one is refused at once.
//!
//! A session waits for the holder of every lock it is queued for, and for whoever stands before it in those queues: they
//! are served first. New edges arise only when somebody joins the end of a queue, and they all start at its
//! session: a grant turns "stands before me" into "holds it" and changes nobody's target. So the one place to look is
//! before it is queued, and the one question is whether a circle leads back to that session.
//!
//! # Caveats
//!
//! - Owners without a session take no part, neither as waiters nor as holders.
//! - Over one single lock only the true circle counts: a session that holds the lock and asks for more of it, behind another
//!   one that waits for what it holds. Where it would have to wait for its own hold as well, or for its own place in the queue,
//!   threads share it: threads of two clients that share a session each may take turns at one lock.
//! - A way that passes one session twice counts as well, so where many threads share sessions a wait may be refused that
//!   would have ended.
//! - A search longer than the limit is given up and the wait let through; its own time limit ends it.

use crate::grammar::errors;
use crate::machine::locks::multi::Several;
use crate::machine::store::list::Linked;
use crate::machine::{HashMap, LockSlot, Machine, QueueEntrySlot, SessionSlot};
use crate::reply::Refusal;
use crate::types::LockKind;
use std::collections::VecDeque;

/// How a session was reached: from which one, and over which lock.
#[derive(Clone, Copy)]
struct Hop {
    from: SessionSlot,
    lock: LockSlot,
    /// Where `from` was reached over the first lock alone: that lock. The way begins there.
    begins_over: Option<LockSlot>,
}

/// One search. Sessions at the first lock of a way are kept apart from the rest: from them only other locks lead on, because
/// a walk over that one queue alone closes no circle.
struct Search<'a> {
    machine: &'a Machine,
    target: SessionSlot,
    /// Sessions reached over the first lock alone, and that lock.
    near: VecDeque<(SessionSlot, LockSlot)>,
    near_known: HashMap<(SessionSlot, LockSlot), ()>,
    /// Sessions reached over two locks or more, and how.
    far: VecDeque<SessionSlot>,
    far_known: HashMap<SessionSlot, Hop>,
    /// Queue entries from which on up to the head everybody is known.
    walked: HashMap<QueueEntrySlot, ()>,
    steps_left: usize,
}

/// What would join a queue.
#[derive(Clone, Copy)]
enum Joins {
    /// A request, at the end.
    Request(LockKind),
    /// A shared hold that would become exclusive, before everybody.
    Conversion,
}

enum SearchEnd {
    Circle(Hop),
    TooLong,
}

impl Machine {
    /// Refuses a wait of `session` for `slots` where it would close a circle. Called before anything is queued.
    pub(crate) fn refuse_circle(
        &mut self,
        session: SessionSlot,
        slots: &[LockSlot],
        kind: LockKind,
    ) -> Result<(), Refusal> {
        let places = slots.iter().map(|slot| (*slot, self.locks[*slot].queue.tail));
        self.refuse_circle_behind(session, &places.collect::<Several<_>>(), Joins::Request(kind))
    }

    /// The same for a holder that would wait for the others alone.
    pub(crate) fn refuse_circle_of_holders(
        &mut self,
        session: SessionSlot,
        slot: LockSlot,
    ) -> Result<(), Refusal> {
        self.refuse_circle_behind(session, &[(slot, QueueEntrySlot::NONE)], Joins::Conversion)
    }

    /// Each lock with the last queue entry that stands before the session there.
    fn refuse_circle_behind(
        &mut self,
        session: SessionSlot,
        places: &[(LockSlot, QueueEntrySlot)],
        joins: Joins,
    ) -> Result<(), Refusal> {
        if session.is_none() {
            return Ok(());
        }
        // Nobody waits for a session that holds nothing and stands nowhere.
        let record = &self.sessions[session];
        if record.locks.len == 0 && record.holders.len == 0 && record.waiters.len == 0 {
            return Ok(());
        }
        let mut search = Search {
            machine: self,
            target: session,
            near: VecDeque::new(),
            near_known: HashMap::default(),
            far: VecDeque::new(),
            far_known: HashMap::default(),
            walked: HashMap::default(),
            steps_left: self.limits.deadlock_steps_max.min(self.deadlock_steps_left),
        };
        let allowed = search.steps_left;
        let found = search.run(places).and_then(|()| search.run_over_one(places, joins));
        let taken = allowed - search.steps_left;
        match found {
            Ok(()) => {
                self.deadlock_steps_left -= taken;
                Ok(())
            }
            Err(SearchEnd::Circle(last)) => {
                let text = search.describe(last);
                self.deadlock_steps_left -= taken;
                self.counters.deadlocks += 1;
                Err(errors::deadlock(&text))
            }
            Err(SearchEnd::TooLong) => {
                self.deadlock_steps_left -= taken;
                self.counters.deadlock_searches_cut += 1;
                Ok(())
            }
        }
    }

    /// The sessions waited for by whoever stands right behind the queue entry `last` of this lock: the holders', with no queue entry, then
    /// those of the queue up to its head, each with its queue entry.
    pub(crate) fn sessions_ahead(
        &self,
        slot: LockSlot,
        last: QueueEntrySlot,
    ) -> impl Iterator<Item = (QueueEntrySlot, SessionSlot)> + '_ {
        let lock = &self.locks[slot];
        let holder = lock.session().is_some().then_some((QueueEntrySlot::NONE, lock.session()));
        let several =
            self.holders_of(slot).map(|holder| (QueueEntrySlot::NONE, self.holders[holder].session));
        let mut entry = last;
        let queued = std::iter::from_fn(move || {
            let record = self.queue_entries.get(entry)?;
            let item = (entry, self.waiters[record.waiter].session);
            entry = record.links().prev;
            Some(item)
        });
        holder.into_iter().chain(several).chain(queued)
    }
}

/// Whether a request could be granted beside what is held, if nobody else held anything.
fn goes_beside(kind: LockKind, held: LockKind) -> bool {
    match (kind, held) {
        (LockKind::Shared, LockKind::Shared) => true,
        (LockKind::Permits { count, max }, LockKind::Permits { count: held, .. }) => {
            held.saturating_add(count) <= max
        }
        (_, _) => false,
    }
}

impl Search<'_> {
    fn run(&mut self, places: &[(LockSlot, QueueEntrySlot)]) -> Result<(), SearchEnd> {
        let machine = self.machine;
        for &(slot, last) in places {
            for (_, session) in machine.sessions_ahead(slot, last) {
                self.count_step()?;
                let is_other = session.is_some() && session != self.target;
                if is_other && self.near_known.insert((session, slot), ()).is_none() {
                    self.near.push_back((session, slot));
                }
            }
        }
        while let Some((session, first)) = self.near.pop_front() {
            self.follow(session, Some(first))?;
        }
        while let Some(session) = self.far.pop_front() {
            self.follow(session, None)?;
        }
        Ok(())
    }

    /// Everything one session waits for, but for what it waits for at the one lock it was reached over.
    fn follow(&mut self, session: SessionSlot, begins_over: Option<LockSlot>) -> Result<(), SearchEnd> {
        let machine = self.machine;
        for waiter in machine.sessions[session].waiters.walk(&machine.waiters) {
            for &entry in &machine.waiters[waiter].queue_entries {
                self.count_step()?;
                let lock = machine.queue_entries[entry].lock;
                if begins_over != Some(lock) {
                    let before = machine.queue_entries[entry].links().prev;
                    self.walk(Hop { from: session, lock, begins_over }, before)?;
                }
            }
        }
        Ok(())
    }

    fn walk(&mut self, step: Hop, before: QueueEntrySlot) -> Result<(), SearchEnd> {
        let mut passed: Several<QueueEntrySlot> = Several::new();
        let mut met_itself = false;
        for (entry, session) in self.machine.sessions_ahead(step.lock, before) {
            self.count_step()?;
            if self.walked.contains_key(&entry) {
                break;
            }
            if session == self.target {
                return Err(SearchEnd::Circle(step));
            }
            met_itself |= session == step.from;
            if session.is_some() && session != step.from && !self.far_known.contains_key(&session) {
                self.far_known.insert(session, step);
                self.far.push_back(session);
            }
            passed.push(entry);
        }
        // A session that met another queue entry of its own did not reach itself; the next walker here may have to.
        if !met_itself {
            self.walked.extend(passed.into_iter().filter(|entry| entry.is_some()).map(|entry| (entry, ())));
        }
        Ok(())
    }

    /// A circle over one lock alone. Locks with several holders came with cluster version 2; before there is none to find.
    fn run_over_one(&mut self, places: &[(LockSlot, QueueEntrySlot)], joins: Joins) -> Result<(), SearchEnd> {
        let machine = self.machine;
        for &(slot, last) in places {
            if machine.locks[slot].queue.len == 0 || !machine.locks[slot].is_several() {
                continue;
            }
            match joins {
                Joins::Request(kind) => {
                    let held = self.held_by_target(slot)?;
                    if held.is_none_or(|held| !goes_beside(kind, held)) {
                        continue;
                    }
                    self.find_waiter(slot, last, |_, waits| {
                        held.is_some_and(|held| !goes_beside(waits, held))
                    })?;
                }
                Joins::Conversion => {
                    let mut holds: HashMap<SessionSlot, ()> = HashMap::default();
                    for holder in machine.holders_of(slot) {
                        self.count_step()?;
                        holds.insert(machine.holders[holder].session, ());
                    }
                    let reads_more =
                        |session, waits| waits == LockKind::Shared && holds.contains_key(&session);
                    self.find_waiter(slot, machine.locks[slot].queue.tail, reads_more)?;
                }
            }
        }
        Ok(())
    }

    /// What the session that asks has of a lock, all its holds together.
    fn held_by_target(&mut self, slot: LockSlot) -> Result<Option<LockKind>, SearchEnd> {
        let machine = self.machine;
        let mut held = None;
        for holder in machine.sessions[self.target].holders.walk(&machine.holders) {
            self.count_step()?;
            let holder = &machine.holders[holder];
            if holder.lock == slot {
                held = Some(match (held, holder.kind) {
                    (Some(LockKind::Permits { count, .. }), LockKind::Permits { count: more, max }) => {
                        LockKind::Permits { count: count.saturating_add(more), max }
                    }
                    (_, kind) => kind,
                });
            }
        }
        Ok(held)
    }

    /// Another session that waits at this lock in such a way.
    fn find_waiter(
        &mut self,
        slot: LockSlot,
        last: QueueEntrySlot,
        is_found: impl Fn(SessionSlot, LockKind) -> bool,
    ) -> Result<(), SearchEnd> {
        let machine = self.machine;
        let mut entry = last;
        while let Some(record) = machine.queue_entries.get(entry) {
            self.count_step()?;
            let waiter = &machine.waiters[record.waiter];
            let is_other = waiter.session.is_some() && waiter.session != self.target;
            if is_other && is_found(waiter.session, waiter.kind) {
                return Err(SearchEnd::Circle(Hop {
                    from: waiter.session,
                    lock: slot,
                    begins_over: Some(slot),
                }));
            }
            entry = record.links().prev;
        }
        Ok(())
    }

    fn count_step(&mut self) -> Result<(), SearchEnd> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(SearchEnd::TooLong)?;
        Ok(())
    }

    /// Ids of other users' sessions are not told.
    fn shown(&self, session: SessionSlot) -> String {
        let (record, own) = (&self.machine.sessions[session], &self.machine.sessions[self.target]);
        match record.user == own.user {
            true => format!("session {}", record.id),
            false => "another user's session".to_owned(),
        }
    }

    /// "session A waits for 'x' of session B waits for 'y' of session A". A long circle is cut.
    fn describe(&self, last: Hop) -> String {
        const SHOWN_MAX: usize = 8;
        let mut hops = vec![(last.lock, self.target)];
        let mut step = last;
        while step.begins_over.is_none() && hops.len() <= self.far_known.len() {
            let Some(before) = self.far_known.get(&step.from) else { break };
            hops.push((before.lock, step.from));
            step = *before;
        }
        if let Some(first) = step.begins_over {
            hops.push((first, step.from));
        }
        hops.reverse();
        let mut text = format!("session {}", self.machine.sessions[self.target].id);
        for (lock, to) in hops.iter().take(SHOWN_MAX) {
            let name = errors::shown(self.machine.locks[*lock].name());
            text.push_str(&format!(" waits for '{name}' of {}", self.shown(*to)));
        }
        if hops.len() > SHOWN_MAX {
            text.push_str(&format!(" and so on over {} sessions", hops.len()));
        }
        text
    }
}
