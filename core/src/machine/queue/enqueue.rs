//! Standing in line: taking seats, hanging another request on them, and every way to leave but the grant.

use crate::event::EventKind;
use crate::grammar::errors;
use crate::machine::locks::acquire::Terms;
use crate::machine::locks::multi::Several;
use crate::machine::queue::waiter::{Form, Pending, Seat, Waiter};
use crate::machine::requests::dedup::Seen;
use crate::machine::store::deadlines::Kind;
use crate::machine::store::slab::NONE;
use crate::machine::{Applied, EventOwner, Machine};
use crate::mutants::{on, Mutant};
use crate::reply::{Refusal, Reply};
use crate::types::RequestId;
use smallvec::SmallVec;

impl Machine {
    /// Queues a request for these locks, given in canonical order, or hangs it on the seats its owner already has.
    pub(crate) fn wait_for(
        &mut self,
        slots: &[u32],
        form: Form,
        terms: &Terms<'_>,
        session: u32,
        out: &mut Applied,
    ) -> Result<(), Refusal> {
        let deadline_ms = self.clock.logical_ms + terms.wait_ms;
        let pending = Pending { id: terms.id, deadline_ms, form };
        if let Some(waiter) = self.queued_waiter(slots, terms.owner)? {
            return self.attach(waiter, pending, terms.ttl_ms, session);
        }
        self.check_session_room(session, slots.len())?;
        self.check_room(slots)?;
        self.room_for_waiter(terms.owner, slots.len())?;
        self.refuse_circle(session, slots)?;
        let waiter = self.waiters.insert(Waiter::new(
            terms.owner,
            session,
            terms.ttl_ms,
            self.clock.logical_ms,
            pending,
        ));
        for &slot in slots {
            self.take_seat(waiter, slot, out);
        }
        self.memory.waiters += self.waiters[waiter].weight();
        if session != NONE {
            let mut waiters = self.sessions[session].waiters;
            waiters.push_back(&mut self.waiters, waiter);
            let record = self.sessions.edit(session);
            record.waiters = waiters;
            record.seats += slots.len() as u32;
        }
        if let Some(id) = terms.id {
            self.requests.insert(id, waiter);
        }
        self.deadlines.set(Kind::Waiter, waiter, deadline_ms);
        Ok(())
    }

    fn take_seat(&mut self, waiter: u32, slot: u32, out: &mut Applied) {
        // A free lock with somebody in line is no longer idle.
        self.unpark(slot);
        let seat = self.seats.insert(Seat::new(slot, waiter));
        let mut queue = self.locks[slot].queue;
        queue.push_back(&mut self.seats, seat);
        while on(Mutant::LastComeFirstServed) && queue.head != seat {
            let first = queue.head;
            queue.unlink(&mut self.seats, first);
            queue.push_back(&mut self.seats, first);
        }
        self.locks.edit(slot).queue = queue;
        self.waiters.edit(waiter).seats.push(seat);
        self.queued_owners.insert(&self.seats, &self.waiters, seat);
        self.emit(EventKind::Queued, slot, EventOwner::Waiter(waiter), out);
    }

    /// The waiter this owner already has for exactly these locks. An owner names one attempt: it cannot be in line with
    /// another set.
    fn queued_waiter(&self, slots: &[u32], owner: &[u8]) -> Result<Option<u32>, Refusal> {
        let seat_at = |slot: &u32| self.queued_owners.find(&self.seats, &self.waiters, *slot, owner);
        let Some(seat) = slots.iter().find_map(seat_at) else { return Ok(None) };
        let waiter = self.seats[seat].waiter;
        let queued_for = self.waiters[waiter].seats.iter().map(|seat| self.seats[*seat].lock);
        if queued_for.eq(slots.iter().copied()) {
            Ok(Some(waiter))
        } else {
            Err(errors::owner_queued_elsewhere())
        }
    }

    fn attach(&mut self, waiter: u32, pending: Pending, ttl_ms: u64, session: u32) -> Result<(), Refusal> {
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
        self.deadlines.set(Kind::Waiter, waiter, deadline_ms);
        Ok(())
    }

    fn check_room(&self, slots: &[u32]) -> Result<(), Refusal> {
        let limits = &self.limits;
        if slots.iter().any(|slot| self.locks[*slot].queue.len as usize >= limits.waiters_per_lock_max) {
            return Err(errors::queue_full());
        }
        if self.waiters.len() >= limits.waiters_max || self.seats.len() + slots.len() > limits.seats_max {
            return Err(errors::too_many_waiters(limits.waiters_max));
        }
        Ok(())
    }

    /// The client behind a request is gone. The request itself may still be on its way: it must not find a queue then.
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

    /// Nodes that are no more have nobody to answer to: their requests leave without a word.
    pub(crate) fn drop_lost(&mut self, waiter: u32, out: &mut Applied) {
        let requests = &self.waiters[waiter].requests;
        let lost: SmallVec<[RequestId; 1]> =
            requests.iter().filter_map(|pending| pending.id).filter(|id| self.is_lost(*id)).collect();
        if !lost.is_empty() {
            self.give_up(waiter, |pending| pending.id.is_some_and(|id| lost.contains(&id)), None, out);
        }
    }

    /// Requests whose time is up are answered nil.
    pub(crate) fn give_up_overdue(&mut self, waiter: u32, is_up: impl Fn(u64) -> bool, out: &mut Applied) {
        self.give_up(waiter, |pending| is_up(pending.deadline_ms), Some(&Reply::Nil), out);
    }

    /// Some of a waiter's requests end without a grant. With the last of them the waiter leaves.
    fn give_up(
        &mut self,
        waiter: u32,
        ends: impl Fn(&Pending) -> bool,
        reply: Option<&Reply>,
        out: &mut Applied,
    ) {
        let (ended, is_empty, next_ms) = self.change_waiter(waiter, |record| {
            let requests = std::mem::take(&mut record.requests);
            let (ended, kept): (SmallVec<[Pending; 1]>, SmallVec<[Pending; 1]>) =
                requests.into_iter().partition(ends);
            record.requests = kept;
            (ended, record.requests.is_empty(), record.next_deadline_ms())
        });
        if is_empty {
            self.leave(waiter, out);
        } else {
            self.deadlines.set(Kind::Waiter, waiter, next_ms);
        }
        for pending in ended {
            self.settle(&pending, reply.cloned(), out);
        }
    }

    /// A waiter leaves all its queues; whoever stood behind it may be next.
    pub(crate) fn leave(&mut self, waiter: u32, out: &mut Applied) -> Waiter {
        for at in 0..self.waiters[waiter].seats.len() {
            let slot = self.seats[self.waiters[waiter].seats[at]].lock;
            self.emit(EventKind::Abandoned, slot, EventOwner::Waiter(waiter), out);
        }
        let (record, slots) = self.vacate(waiter);
        self.to_serve.extend(slots);
        record
    }

    /// Takes a waiter out of all structures. Answers it, and the locks it stood at in canonical order.
    pub(crate) fn vacate(&mut self, waiter: u32) -> (Waiter, Several<u32>) {
        self.memory.waiters -= self.waiters[waiter].weight();
        let mut slots = Several::new();
        for at in 0..self.waiters[waiter].seats.len() {
            let seat = self.waiters[waiter].seats[at];
            let slot = self.seats[seat].lock;
            self.queued_owners.remove(&self.seats, &self.waiters, seat);
            let mut queue = self.locks[slot].queue;
            queue.unlink(&mut self.seats, seat);
            self.locks.edit(slot).queue = queue;
            self.seats.remove(seat);
            slots.push(slot);
        }
        let session = self.waiters[waiter].session;
        if session != NONE {
            let mut waiters = self.sessions[session].waiters;
            waiters.unlink(&mut self.waiters, waiter);
            let record = self.sessions.edit(session);
            record.waiters = waiters;
            record.seats -= slots.len() as u32;
        }
        self.deadlines.clear(Kind::Waiter, waiter);
        (self.waiters.remove(waiter), slots)
    }

    /// A request that hung on a waiter is over.
    pub(crate) fn settle(&mut self, pending: &Pending, reply: Option<Reply>, out: &mut Applied) {
        if let Some(id) = pending.id {
            self.requests.remove(&id);
        }
        if let Some(reply) = reply {
            self.answer(pending.id, reply, out);
        }
    }
}
