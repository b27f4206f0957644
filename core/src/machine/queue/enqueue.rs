//! Joining a queue, attaching the retry of a queued owner, and every way to leave the queue except the grant.

use crate::event::EventKind;
use crate::grammar::errors;
use crate::machine::locks::acquire::AcquireParams;
use crate::machine::locks::convert::ConvertParams;
use crate::machine::locks::multi::Several;
use crate::machine::queue::waiter::{QueueEntry, QueuedRequest, ReplyForm, Waiter};
use crate::machine::requests::dedup::Seen;
use crate::machine::store::deadlines::Timer;
use crate::machine::{version, Applied, EventOwner, HolderSlot, LockSlot, Machine, SessionSlot, WaiterSlot};
use crate::mutant;
use crate::reply::{Refusal, Reply};
use crate::types::{LockKind, OwnerIdentity, RequestId};
use smallvec::SmallVec;

/// Where a waiter joins a queue.
#[derive(Clone, Copy)]
enum Place {
    First,
    Last,
}

/// Whether a new waiter is granted what it waits for by the same command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prospect {
    Certain,
    /// If the steps of this entry last, which is not certain: if they do not it waits, so it may not close a circle.
    Possible,
    No,
}

impl Machine {
    /// Queues a request for these locks, given in canonical order. A retry of a queued owner is attached to its waiter.
    pub(crate) fn wait_for(
        &mut self,
        slots: &[LockSlot],
        form: ReplyForm,
        params: &AcquireParams<'_>,
        session: SessionSlot,
        out: &mut Applied,
    ) -> Result<(), Refusal> {
        let deadline_ms = self.clock.logical_ms + params.wait_ms;
        let pending = QueuedRequest { id: params.id, deadline_ms, form };
        if let Some(waiter) = self.queued_waiter(slots, params.asker())? {
            let queued = self.waiters[waiter].kind;
            if queued.mode() != params.kind.mode() || queued.count() != params.kind.count() {
                return Err(errors::owner_in_other_mode());
            }
            return self.attach(waiter, pending, params.ttl_ms, session);
        }
        self.check_session_room(session, slots.len())?;
        self.check_room(slots)?;
        self.room_for_waiter(params.asker(), params.kind, params.value, slots.len())?;
        let record = Waiter::new(params.asker(), session, params.ttl_ms, self.clock.logical_ms, pending)
            .of_kind(params.kind, params.value);
        let prospect = self.prospect_by_wounds(slots, &record);
        if prospect != Prospect::Certain {
            self.refuse_older(session, slots)?;
            self.refuse_circle(session, slots, params.kind)?;
        }
        if prospect != Prospect::No {
            // It is served, not queued: whoever is in the way loses the lock at the end of this command.
            self.to_serve.extend(slots);
        }
        let waiter = self.waiters.insert(record);
        for &slot in slots {
            self.join_queue(waiter, slot, Place::Last, out);
        }
        self.note_waiter(waiter, deadline_ms);
        Ok(())
    }

    /// Queues the holder of a shared lock before everybody else, until it is the only one.
    pub(crate) fn wait_to_convert(
        &mut self,
        slot: LockSlot,
        holder: HolderSlot,
        params: &ConvertParams<'_>,
        out: &mut Applied,
    ) -> Result<(), Refusal> {
        let deadline_ms = self.clock.logical_ms + params.wait_ms;
        let pending = QueuedRequest { id: params.id, deadline_ms, form: ReplyForm::One };
        let (owner, user) = (self.holders[holder].owner.clone(), self.holders[holder].user);
        let (asker, session) = (OwnerIdentity { owner: &owner, user }, self.holders[holder].session);
        if let Some(waiter) = self.queued_waiter(&[slot], asker)? {
            if self.waiters[waiter].converts != params.fence {
                return Err(errors::owner_queued_elsewhere());
            }
            return self.attach(waiter, pending, 0, session);
        }
        // It waits for a lock that its session has already.
        self.check_room(&[slot])?;
        self.room_for_waiter(asker, LockKind::Exclusive, b"", 1)?;
        // Bound to its hold, not to a time of its own.
        let mut record = Waiter::new(asker, session, 0, self.clock.logical_ms, pending);
        record.converts = params.fence;
        let prospect = self.prospect_of(&[slot], &record);
        if prospect != Prospect::Certain {
            self.refuse_older_holders(session, slot)?;
            self.refuse_circle_of_holders(session, slot)?;
        }
        if prospect != Prospect::No {
            self.to_serve.push_back(slot);
        }
        let waiter = self.waiters.insert(record);
        self.join_queue(waiter, slot, Place::First, out);
        self.note_waiter(waiter, deadline_ms);
        Ok(())
    }

    /// The prospect of a new waiter that would be first everywhere, and may take what is in its way from younger sessions.
    fn prospect_by_wounds(&self, slots: &[LockSlot], record: &Waiter) -> Prospect {
        let is_first = || slots.iter().all(|slot| self.locks[*slot].queue.len == 0);
        match self.wounds(record.session) && is_first() {
            true => self.prospect_of(slots, record),
            false => Prospect::No,
        }
    }

    /// The prospect of a new waiter that is first everywhere. It is looked at again when it is served, twice for each time that one of its
    /// locks is found to be due; what is left for this entry has to last.
    fn prospect_of(&self, slots: &[LockSlot], record: &Waiter) -> Prospect {
        let before = self.wound_steps_left.get();
        let may_have_it = slots.iter().all(|slot| self.in_the_way(*slot, record).is_some());
        let left = self.wound_steps_left.get();
        match may_have_it {
            true if (before - left) * 2 * (slots.len() + 1) <= left => Prospect::Certain,
            true => Prospect::Possible,
            false => Prospect::No,
        }
    }

    /// Counts, lists and indexes of a waiter that stands in its queues.
    fn note_waiter(&mut self, waiter: WaiterSlot, deadline_ms: u64) {
        let (session, places) = (self.waiters[waiter].session, self.waiters[waiter].queue_entries.len());
        self.memory.waiters += self.waiters[waiter].weight();
        if session.is_some() {
            let mut waiters = self.sessions[session].waiters;
            waiters.push_back(&mut self.waiters, waiter);
            let record = self.sessions.edit(session);
            record.waiters = waiters;
            record.queue_entries += places as u32;
        }
        if let Some(id) = self.waiters[waiter].requests[0].id {
            self.requests.insert(id, waiter);
        }
        self.deadlines.set(Timer::Waiter(waiter), deadline_ms);
    }

    fn join_queue(&mut self, waiter: WaiterSlot, slot: LockSlot, place: Place, out: &mut Applied) {
        // A free lock with a waiter is no longer idle.
        self.unpark(slot);
        let entry = self.queue_entries.insert(QueueEntry::new(slot, waiter));
        let mut queue = self.locks[slot].queue;
        match place {
            Place::First => queue.push_front(&mut self.queue_entries, entry),
            Place::Last => queue.push_back(&mut self.queue_entries, entry),
        }
        while mutant!(LastComeFirstServed) && queue.head != entry {
            let first = queue.head;
            queue.unlink(&mut self.queue_entries, first);
            queue.push_back(&mut self.queue_entries, first);
        }
        self.locks.edit(slot).queue = queue;
        self.waiters.edit(waiter).queue_entries.push(entry);
        self.queued_owners.insert(&self.queue_entries, &self.waiters, entry);
        self.emit(EventKind::Queued, slot, EventOwner::Waiter(waiter), out);
    }

    /// The waiter this owner already has for exactly these locks. An owner names one attempt: the same owner with another set of
    /// locks is refused.
    fn queued_waiter(
        &self,
        slots: &[LockSlot],
        asker: OwnerIdentity<'_>,
    ) -> Result<Option<WaiterSlot>, Refusal> {
        let entry_at =
            |slot: &LockSlot| self.queued_owners.find(&self.queue_entries, &self.waiters, *slot, asker);
        let Some(entry) = slots.iter().find_map(entry_at) else { return Ok(None) };
        let waiter = self.queue_entries[entry].waiter;
        let queued_for =
            self.waiters[waiter].queue_entries.iter().map(|entry| self.queue_entries[*entry].lock);
        if queued_for.eq(slots.iter().copied()) {
            Ok(Some(waiter))
        } else {
            Err(errors::owner_queued_elsewhere())
        }
    }

    /// Whether this owner is in line for a lock already.
    pub(crate) fn is_queued(&self, slot: LockSlot, asker: OwnerIdentity<'_>) -> bool {
        self.queued_owners.find(&self.queue_entries, &self.waiters, slot, asker).is_some()
    }

    fn attach(
        &mut self,
        waiter: WaiterSlot,
        pending: QueuedRequest,
        ttl_ms: u64,
        session: SessionSlot,
    ) -> Result<(), Refusal> {
        self.check_retry_session(self.waiters[waiter].session, session)?;
        if self.waiters[waiter].requests.len() >= self.limits.requests_per_waiter_max {
            return Err(errors::too_many_retries(self.limits.requests_per_waiter_max));
        }
        if let Some(id) = pending.id {
            self.requests.insert(id, waiter);
        }
        let deadline_ms = self.change_waiter(waiter, |record| {
            record.requests.push(pending);
            // At least the ttl asked; 0, which only a session can ask for, is the longest.
            record.ttl_ms = if record.ttl_ms == 0 || ttl_ms == 0 { 0 } else { record.ttl_ms.max(ttl_ms) };
            record.next_deadline_ms()
        });
        self.deadlines.set(Timer::Waiter(waiter), deadline_ms);
        Ok(())
    }

    fn check_room(&self, slots: &[LockSlot]) -> Result<(), Refusal> {
        let limits = &self.limits;
        if slots.iter().any(|slot| self.locks[*slot].queue.len as usize >= limits.waiters_per_lock_max) {
            return Err(errors::queue_full());
        }
        if self.waiters.len() >= limits.waiters_max {
            return Err(errors::too_many_waiters(limits.waiters_max));
        }
        if self.queue_entries.len() + slots.len() > limits.queue_entries_max {
            return Err(match self.upgrade.version < version::SECOND {
                true => errors::too_many_waiters(limits.waiters_max),
                false => errors::too_many_queue_entries(limits.queue_entries_max),
            });
        }
        Ok(())
    }

    /// The client of a request has disconnected. If the request itself is applied later than this, it must not be queued.
    pub(crate) fn cancel(&mut self, request: RequestId, out: &mut Applied) -> Reply {
        if !self.is_waiting(request) {
            self.forestall(request);
        }
        if let Some(&waiter) = self.requests.get(&request) {
            self.give_up(waiter, |pending| pending.id == Some(request), Some(&Reply::Nil), out);
        }
        self.cancel_blocked(request, out);
        Reply::OK
    }

    /// Remembers a request that was not met so far as answered, in the same bounded memory as all answers.
    fn forestall(&mut self, request: RequestId) {
        if matches!(self.dedup.known(request), Seen::New) {
            let max_memory = self.max_memory_bytes();
            self.dedup.remember(request, &Reply::Nil, self.limits.remembered_per_origin_max, max_memory);
        }
    }

    /// Drops the requests of nodes that are gone, without a reply.
    pub(crate) fn drop_lost(&mut self, waiter: WaiterSlot, out: &mut Applied) {
        let requests = &self.waiters[waiter].requests;
        let lost: SmallVec<[RequestId; 1]> =
            requests.iter().filter_map(|pending| pending.id).filter(|id| self.is_lost(*id)).collect();
        if !lost.is_empty() {
            self.give_up(waiter, |pending| pending.id.is_some_and(|id| lost.contains(&id)), None, out);
        }
    }

    /// Requests whose WAIT has run out are answered with nil.
    pub(crate) fn give_up_overdue(
        &mut self,
        waiter: WaiterSlot,
        is_up: impl Fn(u64) -> bool,
        out: &mut Applied,
    ) {
        self.give_up(waiter, |pending| is_up(pending.deadline_ms), Some(&Reply::Nil), out);
    }

    /// Some of a waiter's requests end without a grant. With the last of them the waiter leaves.
    fn give_up(
        &mut self,
        waiter: WaiterSlot,
        ends: impl Fn(&QueuedRequest) -> bool,
        reply: Option<&Reply>,
        out: &mut Applied,
    ) {
        let (ended, is_empty, next_ms) = self.change_waiter(waiter, |record| {
            let requests = std::mem::take(&mut record.requests);
            let (ended, kept): (SmallVec<[QueuedRequest; 1]>, SmallVec<[QueuedRequest; 1]>) =
                requests.into_iter().partition(ends);
            record.requests = kept;
            (ended, record.requests.is_empty(), record.next_deadline_ms())
        });
        if is_empty {
            self.leave(waiter, out);
        } else {
            self.deadlines.set(Timer::Waiter(waiter), next_ms);
        }
        for pending in ended {
            self.settle(&pending, reply.cloned(), out);
        }
    }

    /// Removes a waiter from all its queues. The waiters behind it may be next.
    pub(crate) fn leave(&mut self, waiter: WaiterSlot, out: &mut Applied) -> Waiter {
        for at in 0..self.waiters[waiter].queue_entries.len() {
            let slot = self.queue_entries[self.waiters[waiter].queue_entries[at]].lock;
            self.emit(EventKind::Abandoned, slot, EventOwner::Waiter(waiter), out);
        }
        let (record, slots) = self.vacate(waiter);
        self.to_serve.extend(slots);
        record
    }

    /// Removes a waiter from all structures. Returns it, and the locks it waited for in canonical order.
    pub(crate) fn vacate(&mut self, waiter: WaiterSlot) -> (Waiter, Several<LockSlot>) {
        self.memory.waiters -= self.waiters[waiter].weight();
        let mut slots = Several::new();
        for at in 0..self.waiters[waiter].queue_entries.len() {
            let entry = self.waiters[waiter].queue_entries[at];
            let slot = self.queue_entries[entry].lock;
            self.queued_owners.remove(&self.queue_entries, &self.waiters, entry);
            let mut queue = self.locks[slot].queue;
            queue.unlink(&mut self.queue_entries, entry);
            self.locks.edit(slot).queue = queue;
            self.queue_entries.remove(entry);
            slots.push(slot);
        }
        let session = self.waiters[waiter].session;
        if session.is_some() {
            let mut waiters = self.sessions[session].waiters;
            waiters.unlink(&mut self.waiters, waiter);
            let record = self.sessions.edit(session);
            record.waiters = waiters;
            record.queue_entries -= slots.len() as u32;
        }
        self.deadlines.clear(Timer::Waiter(waiter));
        (self.waiters.remove(waiter), slots)
    }

    /// Ends a queued request, with a reply if there is one.
    pub(crate) fn settle(&mut self, pending: &QueuedRequest, mut reply: Option<Reply>, out: &mut Applied) {
        if let Some(id) = pending.id {
            self.requests.remove(&id);
        }
        if let Some(reply) = &mut reply {
            self.answer(pending.id, reply, out);
        }
    }
}
