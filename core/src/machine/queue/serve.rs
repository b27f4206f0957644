//! What happens to a lock that became free: it is granted to the first waiter in the same step. Without waiters its record is kept
//! for a while, for its last fence.
//!
//! Whatever ends a grant or shortens a queue puts the lock on `to_serve`; every command ends with `serve_all`. A work list,
//! not recursion: one end may bring about any number of others.

use crate::event::EventKind;
use crate::machine::locks::ending::Ending;
use crate::machine::locks::lock::Phase;
use crate::machine::locks::multi::many_granted;
use crate::machine::locks::several::{GrantTerms, Hold};
use crate::machine::queue::waiter::{ReplyForm, Waiter};
use crate::machine::{Applied, LockSlot, Machine, WaiterSlot};
use crate::mutant;
use crate::reply::Reply;
use crate::types::{has_passed, Fence, LockKind};
use smallvec::SmallVec;

/// A waiter that was found to wait for more, while nothing has happened since.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StillWaiting {
    waiter: WaiterSlot,
    event_seq: u64,
}

impl Machine {
    pub(crate) fn serve_all(&mut self, out: &mut Applied) {
        let mut still_waiting = None;
        while let Some(slot) = self.to_serve.pop_front() {
            while self.serve(slot, &mut still_waiting, out) {}
        }
    }

    /// Serves a lock once. True if it must be served again.
    fn serve(&mut self, slot: LockSlot, still_waiting: &mut Option<StillWaiting>, out: &mut Applied) -> bool {
        // The record may be gone, or its slot reused by another lock: serving a lock once more does no harm.
        let Some(lock) = self.locks.get(slot) else { return false };
        let first = self.queue_entries.get(lock.queue.head).map(|entry| entry.waiter);
        let waiter = match (lock.phase, first) {
            (Phase::Idle { .. }, _) | (Phase::Held { .. } | Phase::Several { .. }, None) => return false,
            (Phase::Awaited, None) => {
                self.park(slot);
                return false;
            }
            (Phase::Awaited, Some(waiter)) => waiter,
            // The holder may be the first waiter too, with a multi-lock that includes this resource.
            (Phase::Held { .. }, Some(waiter)) if lock.is_held_by(self.waiters[waiter].asker()) => waiter,
            (Phase::Held { .. }, Some(waiter)) if mutant!(AllWaitersAtOnce) => waiter,
            (Phase::Held { .. } | Phase::Several { .. }, Some(waiter)) => {
                if self.in_the_way(slot, &self.waiters[waiter]).is_none() {
                    return false;
                }
                waiter
            }
        };
        if !self.is_fit(waiter, out) {
            return true;
        }
        // A multi-lock stands first at many locks, and is looked at for each of them.
        let look = StillWaiting { waiter, event_seq: self.event_seq };
        if *still_waiting == Some(look) {
            return false;
        }
        if !self.is_first_everywhere(waiter, out) {
            // Where the look itself has ended something, another one may find more.
            *still_waiting = Some(look).filter(|look| look.event_seq == self.event_seq);
            return false;
        }
        self.grant_waiter(waiter, out);
        // The next in line may go beside it, or take it away again.
        mutant!(AllWaitersAtOnce) || self.locks.get(slot).is_some_and(|lock| lock.queue.len > 0)
    }

    /// Whether a waiter may still be granted. One whose session or WAIT has ended leaves at once.
    fn is_fit(&mut self, waiter: WaiterSlot, out: &mut Applied) -> bool {
        let session = self.waiters[waiter].session;
        if session.is_some() && self.has_passed(self.sessions[session].deadline_ms) {
            self.leave_with_session(waiter, out);
            return false;
        }
        if self.sweep.drops_waiters() {
            self.drop_lost(waiter, out);
            if self.waiters.get(waiter).is_none() {
                return false;
            }
        }
        let instant_ms = self.instant_ms;
        let is_up = |deadline_ms| has_passed(deadline_ms, instant_ms);
        let requests = &self.waiters[waiter].requests;
        let is_live = !requests.iter().all(|request| is_up(request.deadline_ms));
        if requests.iter().any(|request| is_up(request.deadline_ms)) {
            self.give_up_overdue(waiter, is_up, out);
        }
        is_live
    }

    /// Whether a waiter is first in each of its queues, and every lock is free, already its own, or held by others that it goes beside.
    /// Holders of younger sessions in its way lose their locks here.
    fn is_first_everywhere(&mut self, waiter: WaiterSlot, out: &mut Applied) -> bool {
        let queue_entries = self.waiters[waiter].queue_entries.clone();
        let mut wounds: SmallVec<[Hold; 2]> = SmallVec::new();
        for entry in &queue_entries {
            self.work.count(1);
            let slot = self.queue_entries[*entry].lock;
            if self.end_if_due(slot, out).is_some() {
                // The lock is on `to_serve` now; serving it finds this waiter again if it is first there.
                return false;
            }
            if self.locks[slot].queue.head != *entry {
                return false;
            }
            match self.in_the_way(slot, &self.waiters[waiter]) {
                Some(holds) => wounds.extend(holds),
                None if mutant!(AllWaitersAtOnce) => {}
                None => return false,
            }
        }
        if mutant!(WoundKeepsFence) && !wounds.is_empty() && self.waiters[waiter].kind == LockKind::Exclusive
        {
            crate::mutants::mark();
        }
        for hold in wounds {
            self.end_hold(hold, Ending::Wounded, out);
        }
        true
    }

    fn grant_waiter(&mut self, waiter: WaiterSlot, out: &mut Applied) {
        let (record, slots) = self.vacate(waiter);
        let waited_ms = self.instant_ms.saturating_sub(record.since_ms);
        slots.iter().for_each(|slot| self.history.note_wait(*slot, waited_ms, self.clock.logical_ms));
        out.tally.served += 1;
        if slots.len() > 1 {
            // Others may go beside it there.
            self.to_serve.extend(slots.iter().filter(|slot| self.locks[**slot].queue.len > 0));
        }
        if record.converts != Fence(0) {
            self.grant_conversion(&record, slots[0], out);
            return;
        }
        for &slot in &slots {
            // Locks that it already holds are not granted again: their queue entries end without a grant.
            if let Some(hold) = self.hold_of_owner(slot, record.asker()) {
                self.emit(EventKind::Abandoned, slot, Machine::event_owner(hold), out);
            }
        }
        let terms = GrantTerms {
            asker: record.asker(),
            value: &record.value,
            kind: record.kind,
            ttl_ms: record.ttl_ms,
            session: record.session,
        };
        let (fences, ttl_ms) = self.grant_many(&slots, &terms, out);
        for pending in &record.requests {
            let reply = match &pending.form {
                ReplyForm::One => Reply::Granted { fence: fences[0], ttl_ms },
                ReplyForm::Many(order) => many_granted(order, &fences, ttl_ms),
            };
            self.settle(pending, Some(reply), out);
        }
    }

    /// The last other reader is gone.
    fn grant_conversion(&mut self, record: &Waiter, slot: LockSlot, out: &mut Applied) {
        let holder = self.holder_index.with_fence(slot, record.converts);
        let holder = holder.expect("a conversion is given up with its hold");
        let (fence, ttl_ms) = self.make_exclusive(slot, holder, out);
        for pending in &record.requests {
            self.settle(pending, Some(Reply::Granted { fence, ttl_ms }), out);
        }
    }

    /// A free lock without waiters: kept for its last fence, or removed if it never had one.
    fn park(&mut self, slot: LockSlot) {
        let lock = self.locks.edit(slot);
        if lock.fence.0 == 0 {
            self.names.remove(&self.locks, slot);
            self.remove_lock(slot);
            return;
        }
        lock.phase = Phase::Idle { since_ms: self.clock.logical_ms };
        self.memory.idle += lock.weight();
        self.idle.push_back(&mut self.locks, slot);
        if self.idle.len as usize > self.limits.idle_max {
            self.forget_oldest_idle(1);
        }
    }

    /// Takes a lock that is needed again off the idle list.
    pub(crate) fn unpark(&mut self, slot: LockSlot) {
        match self.locks[slot].phase {
            Phase::Held { .. } | Phase::Several { .. } | Phase::Awaited => {}
            Phase::Idle { .. } => {
                let lock = self.locks.edit(slot);
                self.memory.idle -= lock.weight();
                lock.phase = Phase::Awaited;
                self.idle.unlink(&mut self.locks, slot);
            }
        }
    }

    /// Drops up to `count` records, and keeps the highest of their fences as the floor of all names without a record.
    pub(crate) fn forget_oldest_idle(&mut self, count: usize) {
        for _ in 0..count {
            let slot = self.idle.head;
            if slot.is_none() {
                return;
            }
            self.memory.idle -= self.locks[slot].weight();
            self.idle.unlink(&mut self.locks, slot);
            if !mutant!(FloorForgotten) {
                self.floor = self.floor.max(self.locks[slot].fence);
            }
            self.names.remove(&self.locks, slot);
            self.remove_lock(slot);
        }
    }
}
