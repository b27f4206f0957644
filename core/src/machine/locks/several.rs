//! Locks with several holders: shared ones and permits. Grants, ends, and who goes beside whom.
//!
//! A [`Hold`] is one holder of a lock in whatever mode, so that release, renewal and retries are written once.

use crate::event::EventKind;
use crate::grammar::errors;
use crate::machine::locks::acquire::AcquireParams;
use crate::machine::locks::ending::{EndCause, Ending};
use crate::machine::locks::holder::Holder;
use crate::machine::locks::lock::{GrantedTime, Phase};
use crate::machine::log::command::Command;
use crate::machine::queue::waiter::Waiter;
use crate::machine::store::deadlines::{Timer, NEVER};
use crate::machine::store::list::Links;
use crate::machine::{version, Applied, EventOwner, HolderSlot, LockSlot, Machine, SessionSlot, WaiterSlot};
use crate::mutant;
use crate::reply::{Refusal, Reply};
use crate::types::{has_passed, Fence, LockKind, LockMode, OwnerIdentity};
use smallvec::SmallVec;

/// Holders of a lock that may be looked at each time for whom to wound, whatever the others of the entry did.
const WOUND_STEPS_FREE: usize = 32;

/// What is granted, but for the lock and the fence.
#[derive(Clone, Copy)]
pub(crate) struct GrantTerms<'a> {
    pub(crate) asker: OwnerIdentity<'a>,
    pub(crate) value: &'a [u8],
    pub(crate) kind: LockKind,
    pub(crate) ttl_ms: u64,
    pub(crate) session: SessionSlot,
}

/// One holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Exclusive(LockSlot),
    Several(HolderSlot),
}

/// A holder past its end, not ended yet.
struct DueHolder {
    ended_ms: u64,
    fence: Fence,
    ending: Ending,
}

impl Machine {
    /// The holders of a lock in another mode than exclusive, oldest first.
    pub(crate) fn holders_of(&self, slot: LockSlot) -> impl DoubleEndedIterator<Item = HolderSlot> + '_ {
        self.holder_index.of_lock(slot)
    }

    /// Who holds a lock under this fence.
    pub(crate) fn hold_with_fence(&self, slot: LockSlot, fence: Fence) -> Option<Hold> {
        let lock = &self.locks[slot];
        match lock.phase {
            Phase::Held { .. } => (lock.fence == fence).then_some(Hold::Exclusive(slot)),
            Phase::Several { .. } => self.holder_index.with_fence(slot, fence).map(Hold::Several),
            Phase::Awaited | Phase::Idle { .. } => None,
        }
    }

    /// What an owner holds of a lock.
    pub(crate) fn hold_of_owner(&self, slot: LockSlot, asker: OwnerIdentity<'_>) -> Option<Hold> {
        let lock = &self.locks[slot];
        match lock.phase {
            Phase::Held { .. } => lock.is_held_by(asker).then_some(Hold::Exclusive(slot)),
            Phase::Several { .. } => {
                self.holder_index.of_owner(&self.holders, slot, asker).map(Hold::Several)
            }
            Phase::Awaited | Phase::Idle { .. } => None,
        }
    }

    pub(crate) fn fence_of(&self, hold: Hold) -> Fence {
        match hold {
            Hold::Exclusive(slot) => self.locks[slot].fence,
            Hold::Several(holder) => self.holders[holder].fence,
        }
    }

    pub(crate) fn session_of_hold(&self, hold: Hold) -> SessionSlot {
        match hold {
            Hold::Exclusive(slot) => self.locks[slot].session(),
            Hold::Several(holder) => self.holders[holder].session,
        }
    }

    pub(crate) fn end_of(&self, hold: Hold) -> u64 {
        match hold {
            Hold::Exclusive(slot) => self.locks[slot].deadline_ms(),
            Hold::Several(holder) => self.holders[holder].deadline_ms,
        }
    }

    /// Whether a hold is what this kind asks for. The `max` of permits is the asker's own.
    pub(crate) fn is_of_kind(&self, hold: Hold, kind: LockKind) -> bool {
        let held = match hold {
            Hold::Exclusive(_) => LockKind::Exclusive,
            Hold::Several(holder) => self.holders[holder].kind,
        };
        held.mode() == kind.mode() && held.count() == kind.count()
    }

    pub(crate) fn set_end_of(&mut self, hold: Hold, at_ms: u64) {
        match hold {
            Hold::Exclusive(slot) => self.set_end(slot, at_ms),
            Hold::Several(slot) => {
                let now_ms = self.clock.logical_ms;
                let holder = self.holders.edit(slot);
                holder.deadline_ms = at_ms;
                holder.granted = GrantedTime::until(at_ms, now_ms);
                self.deadlines.set(Timer::Holder(slot), at_ms);
            }
        }
    }

    pub(crate) fn end_hold(&mut self, hold: Hold, ending: Ending, out: &mut Applied) {
        match hold {
            Hold::Exclusive(slot) => self.end_grant(slot, ending, out),
            Hold::Several(holder) => self.end_holder(holder, ending, out),
        }
    }

    /// Ends every hold of a lock.
    pub(crate) fn end_all_holds(&mut self, slot: LockSlot, ending: Ending, out: &mut Applied) {
        match self.locks[slot].phase {
            Phase::Held { .. } => self.end_grant(slot, ending, out),
            Phase::Several { .. } => {
                let holders: Vec<HolderSlot> = self.holders_of(slot).collect();
                holders.into_iter().for_each(|holder| self.end_holder(holder, ending, out));
            }
            Phase::Awaited | Phase::Idle { .. } => {}
        }
    }

    /// The event of a hold names its own fence and owner.
    pub(crate) fn event_owner(hold: Hold) -> EventOwner {
        match hold {
            Hold::Exclusive(_) => EventOwner::Holder,
            Hold::Several(holder) => EventOwner::Several(holder),
        }
    }

    /// Grants a lock that is free, or that goes beside its holders.
    pub(crate) fn grant_as(&mut self, slot: LockSlot, terms: &GrantTerms<'_>, out: &mut Applied) -> Fence {
        match terms.kind {
            LockKind::Exclusive => {
                // Before the grant, whose event shows it.
                if !terms.value.is_empty() {
                    self.set_attached(slot, Some(terms.value.into()));
                }
                self.grant(slot, terms.asker, terms.ttl_ms, terms.session, out)
            }
            LockKind::Shared | LockKind::Permits { .. } => {
                self.unpark(slot);
                let fence = Fence::next(self.locks[slot].fence.max(self.floor), self.clock.wall_us);
                let holder = self.insert_holder(slot, fence, terms, self.deadline_after(terms.ttl_ms));
                self.counters.grants += 1;
                self.emit(EventKind::Acquired, slot, EventOwner::Several(holder), out);
                fence
            }
        }
    }

    /// A record for one holder more, under a fence of its lock. Lists, indexes and counts follow.
    pub(crate) fn insert_holder(
        &mut self,
        slot: LockSlot,
        fence: Fence,
        terms: &GrantTerms<'_>,
        deadline_ms: u64,
    ) -> HolderSlot {
        let (now_ms, db) = (self.clock.logical_ms, self.locks[slot].db());
        let epoch = match self.locks[slot].is_held() {
            true => self.locks[slot].epoch(),
            false => {
                self.counters.held += 1;
                self.sweep.count_held(db)
            }
        };
        let kind = terms.kind;
        self.change_lock(slot, |lock| lock.add_holder(fence, kind.mode(), kind.count(), epoch));
        let holder = self.holders.insert(Holder {
            lock: slot,
            fence,
            owner: terms.asker.owner.into(),
            user: terms.asker.user,
            value: terms.value.into(),
            kind,
            since_ms: now_ms,
            deadline_ms,
            granted: GrantedTime::until(deadline_ms, now_ms),
            session: terms.session,
            links: Links::UNLINKED,
        });
        self.memory.holders += self.holders[holder].weight();
        self.holder_index.insert(&self.holders, holder);
        self.deadlines.set(Timer::Holder(holder), deadline_ms);
        if terms.session.is_some() {
            let mut list = self.sessions[terms.session].holders;
            list.push_back(&mut self.holders, holder);
            self.sessions.edit(terms.session).holders = list;
        }
        holder
    }

    /// Ends one holder's grant. Its lock is served with the rest at the end of the command.
    pub(crate) fn end_holder(&mut self, slot: HolderSlot, ending: Ending, out: &mut Applied) {
        let (lock, fence, session) =
            (self.holders[slot].lock, self.holders[slot].fence, self.holders[slot].session);
        self.emit_end(ending, lock, EventOwner::Several(slot), out);
        let held_ms = self.clock.logical_ms.saturating_sub(self.holders[slot].since_ms);
        self.history.note_hold(lock, fence, self.clock.wall_us, ending);
        out.tally.held(held_ms.saturating_mul(1_000), ending.loss());
        if session.is_some() {
            let mut list = self.sessions[session].holders;
            list.unlink(&mut self.holders, slot);
            self.sessions.edit(session).holders = list;
        }
        self.deadlines.clear(Timer::Holder(slot));
        self.holder_index.remove(&self.holders, slot);
        let count = self.holders[slot].kind.count();
        let (db, epoch) = (self.locks[lock].db(), self.locks[lock].epoch());
        self.memory.holders -= self.holders[slot].weight();
        self.holders.remove(slot);
        self.change_lock(lock, |lock| lock.end_holder(fence, count, ending.of_several()));
        if !self.locks[lock].is_held() {
            self.sweep.count_ended(db, epoch);
            self.counters.held -= 1;
        }
        match ending.cause() {
            EndCause::Released => self.counters.releases += 1,
            EndCause::Expired => self.counters.expiries += 1,
        }
        // Where all holders end at once, it is served once.
        if self.to_serve.back() != Some(&lock) {
            self.to_serve.push_back(lock);
        }
        if let Some(waiter) = self.upgrader_of(lock).filter(|waiter| self.waiters[*waiter].converts == fence)
        {
            self.answer_upgrader(waiter, out);
        }
    }

    /// The waiter that wants to turn its shared hold into an exclusive one: always the first of its queue.
    pub(crate) fn upgrader_of(&self, slot: LockSlot) -> Option<WaiterSlot> {
        let first = self.queue_entries.get(self.locks[slot].queue.head)?.waiter;
        (self.waiters[first].converts != Fence(0)).then_some(first)
    }

    /// The shared hold it wanted to convert has ended: nothing is held.
    fn answer_upgrader(&mut self, waiter: WaiterSlot, out: &mut Applied) {
        let record = self.leave(waiter, out);
        for pending in &record.requests {
            self.settle(pending, Some(Reply::Nil), out);
        }
    }

    // ---- what has passed its end ----

    /// Ends the holders of a lock whose time, or whose session's, is over, each at its own instant: whoever still had time then is served.
    /// Answers the lock's slot afterwards.
    #[inline(never)]
    pub(crate) fn refresh_several(&mut self, slot: LockSlot, out: &mut Applied) -> bool {
        let due = self.due_holders(slot, self.clock.logical_ms);
        let any = !due.is_empty();
        for DueHolder { ended_ms, fence, ending } in due {
            // Serving in between may have ended others, and given the slot to another lock.
            if let Some(holder) = self.holder_index.with_fence(slot, fence) {
                self.end_holder(holder, ending, out);
                self.instant_ms = ended_ms;
                self.serve_all(out);
                self.instant_ms = self.clock.logical_ms;
            }
        }
        any
    }

    /// The same without serving anybody, and no further than the instant that is being worked off: whoever waits may have given up
    /// before the next of them ends. Answers when the last of them ended, if there was one.
    #[inline(never)]
    pub(crate) fn end_due_holders(&mut self, slot: LockSlot, out: &mut Applied) -> Option<u64> {
        let due = self.due_holders(slot, self.instant_ms);
        let last_ms = due.last().map(|due| due.ended_ms);
        for DueHolder { fence, ending, .. } in due {
            let holder = self.holder_index.with_fence(slot, fence);
            holder.into_iter().for_each(|holder| self.end_holder(holder, ending, out));
        }
        last_ms
    }

    /// Those past their end at an instant, in the order of their ends.
    fn due_holders(&self, slot: LockSlot, instant_ms: u64) -> SmallVec<[DueHolder; 1]> {
        let now_ms = self.clock.logical_ms;
        if self.is_flushed(&self.locks[slot]) {
            let flushed = |holder: HolderSlot| {
                let fence = self.holders[holder].fence;
                DueHolder { ended_ms: now_ms, fence, ending: Ending::Flushed }
            };
            return self.holders_of(slot).map(flushed).collect();
        }
        if !self.has_overdue_at(instant_ms) {
            return SmallVec::new();
        }
        let due = |holder: HolderSlot| {
            let (ended_ms, ending) = self.holder_end(holder);
            let fence = self.holders[holder].fence;
            has_passed(ended_ms, instant_ms).then_some(DueHolder { ended_ms, fence, ending })
        };
        let mut due: SmallVec<[DueHolder; 1]> = self.holders_of(slot).filter_map(due).collect();
        due.sort_by_key(|due| (due.ended_ms, due.fence));
        due
    }

    /// Whether a command names locks with more holders than this entry can still end, while ends are left over from entries before: it
    /// would have to end those that are due first. Only since cluster version 2.
    #[cold]
    pub(crate) fn is_backlog_too_long(&mut self, command: &Command<'_>) -> bool {
        if self.upgrade.version < version::SECOND {
            return false;
        }
        let mut holders = 0;
        command.for_each_lock(|db, name| {
            let slot = self.names.find(&self.locks, db, name);
            if let Some(Phase::Several { holders: count, .. }) = slot.map(|slot| self.locks[slot].phase) {
                holders += count as usize;
            }
        });
        match self.session_ends_left.checked_sub(holders) {
            Some(left) => {
                self.session_ends_left = left;
                false
            }
            None => true,
        }
    }

    /// Whether something past its end was left over, because one entry ends so much and no more.
    #[inline]
    pub(crate) fn has_overdue(&self) -> bool {
        self.has_overdue_at(self.clock.logical_ms)
    }

    /// The same at an instant: while ends are worked off in their order, nothing is over that was not ended.
    fn has_overdue_at(&self, instant_ms: u64) -> bool {
        self.deadlines.next().is_some_and(|(at_ms, _)| has_passed(at_ms, instant_ms))
    }

    /// When and how a holder ends if nothing happens before.
    fn holder_end(&self, slot: HolderSlot) -> (u64, Ending) {
        let holder = &self.holders[slot];
        let session_ms = self.sessions.get(holder.session).map_or(NEVER, |session| session.deadline_ms);
        match holder.deadline_ms <= session_ms {
            true => (holder.deadline_ms, Ending::Expired),
            false => (session_ms, Ending::SessionEnded),
        }
    }

    pub(crate) fn is_live_holder(&self, slot: HolderSlot) -> bool {
        !self.has_passed(self.holder_end(slot).0)
    }

    /// The oldest holder that lives. The lock was not flushed.
    pub(crate) fn oldest_holder(&self, slot: LockSlot) -> Option<HolderSlot> {
        match self.has_overdue() {
            false => self.holders_of(slot).next(),
            true => self.holders_of(slot).find(|holder| self.is_live_holder(*holder)),
        }
    }

    // ---- who goes beside whom ----

    /// Refuses what can never stand in one queue with what is there: permits beside other kinds.
    pub(crate) fn check_mode(&self, slot: LockSlot, kind: LockKind) -> Result<(), Refusal> {
        let lock = &self.locks[slot];
        let queued = || {
            let first = self.queue_entries.get(lock.queue.head)?;
            Some(self.waiters[first.waiter].kind.mode())
        };
        let Some(mode) = lock.mode().or_else(queued) else { return Ok(()) };
        match (mode == LockMode::Permits) == (kind.mode() == LockMode::Permits) {
            true => Ok(()),
            false => Err(errors::other_mode(mode)),
        }
    }

    /// Whether a holder of this kind may join those that hold the lock now. Whoever waits is another question.
    pub(crate) fn goes_beside(&self, slot: LockSlot, kind: LockKind) -> bool {
        match (self.locks[slot].phase, kind) {
            (Phase::Awaited | Phase::Idle { .. }, _) => true,
            (Phase::Several { mode: LockMode::Shared, holders, .. }, LockKind::Shared) => {
                (holders as usize) < self.limits.holders_per_lock_max
            }
            (
                Phase::Several { mode: LockMode::Permits, sum, holders, .. },
                LockKind::Permits { count, max },
            ) => sum + count <= max && (holders as usize) < self.limits.holders_per_lock_max,
            (Phase::Held { .. } | Phase::Several { .. }, _) => mutant!(ReaderBesideWriter),
        }
    }

    /// Room for one holder more of a lock. Not asked for hand-overs, nor by who is in line already.
    pub(crate) fn check_holder_room(
        &self,
        slot: LockSlot,
        params: &AcquireParams<'_>,
    ) -> Result<(), Refusal> {
        if params.kind == LockKind::Exclusive || self.is_queued(slot, params.asker()) {
            return Ok(());
        }
        let Phase::Several { holders, .. } = self.locks[slot].phase else { return self.check_holders() };
        if holders as usize >= self.limits.holders_per_lock_max {
            return Err(errors::too_many_holders(self.limits.holders_per_lock_max));
        }
        self.check_holders()
    }

    pub(crate) fn check_holders(&self) -> Result<(), Refusal> {
        match self.holders.len() >= self.limits.holders_max {
            true => Err(errors::too_many_holders_in_all(self.limits.holders_max)),
            false => Ok(()),
        }
    }

    /// What has to be taken away so that the first waiter of a lock can have it: nothing, or locks of younger sessions that it may
    /// wound. `None`: it has to wait.
    pub(crate) fn in_the_way(&self, slot: LockSlot, waiter: &Waiter) -> Option<SmallVec<[Hold; 2]>> {
        if let Some(own) = self.hold_of_owner(slot, waiter.asker()) {
            if waiter.converts == Fence(0) && self.is_of_kind(own, waiter.kind) {
                return Some(SmallVec::new());
            }
        }
        if waiter.converts != Fence(0) {
            return self.others_in_the_way(slot, waiter);
        }
        if self.goes_beside(slot, waiter.kind) {
            return Some(SmallVec::new());
        }
        match (self.locks[slot].phase, waiter.kind) {
            // No room for one holder more: nobody is in its way whom it could wound for that.
            (Phase::Several { mode, holders, .. }, kind)
                if mode == kind.mode() && holders as usize >= self.limits.holders_per_lock_max =>
            {
                None
            }
            (Phase::Several { mode: LockMode::Permits, sum, .. }, LockKind::Permits { count, max }) => {
                self.permits_to_wound(slot, waiter, (sum + count).saturating_sub(max))
            }
            (Phase::Held { .. }, _) => {
                let hold = Hold::Exclusive(slot);
                self.may_wound(waiter.session, hold).then(|| SmallVec::from_slice(&[hold]))
            }
            (Phase::Several { .. } | Phase::Awaited | Phase::Idle { .. }, _) => {
                self.others_in_the_way(slot, waiter)
            }
        }
    }

    /// All holders but the one that converts.
    fn others_in_the_way(&self, slot: LockSlot, waiter: &Waiter) -> Option<SmallVec<[Hold; 2]>> {
        let Phase::Several { holders, .. } = self.locks[slot].phase else { return None };
        let converts = waiter.converts != Fence(0);
        let own = self.holder_index.with_fence(slot, waiter.converts);
        if own.is_some_and(|own| !self.is_live_holder(own)) {
            // Its own end, later than the instant that is being worked off, will answer it: nobody is told of a grant that is over.
            return None;
        }
        if converts && holders == 1 {
            return Some(SmallVec::new());
        }
        if converts && mutant!(UpgradeBesideReaders) {
            return Some(SmallVec::new());
        }
        if !self.wounds(waiter.session) {
            return None;
        }
        let is_other = |holder: &HolderSlot| self.holders[*holder].fence != waiter.converts;
        let others = || self.holders_of(slot).filter(is_other).map(Hold::Several);
        // Looked at first: of many holders the first few tell.
        let may_have_it = others()
            .enumerate()
            .all(|(looked, hold)| self.may_look_on(looked) && self.may_wound(waiter.session, hold));
        may_have_it.then(|| others().collect())
    }

    /// The youngest holders that have so many permits together, and none of them that the others make up for.
    fn permits_to_wound(&self, slot: LockSlot, waiter: &Waiter, missing: u32) -> Option<SmallVec<[Hold; 2]>> {
        if !self.wounds(waiter.session) {
            return None;
        }
        let mut younger: Vec<HolderSlot> = Vec::new();
        for (looked, holder) in self.holders_of(slot).enumerate() {
            if !self.may_look_on(looked) {
                return None;
            }
            if self.may_wound(waiter.session, Hold::Several(holder)) {
                younger.push(holder);
            }
        }
        younger.sort_by_key(|holder| std::cmp::Reverse(self.age_of(self.holders[*holder].session)));
        let permits = |holder: &HolderSlot| self.holders[*holder].kind.count();
        let mut freed = 0;
        let enough = younger.iter().position(|holder| {
            freed += permits(holder);
            freed >= missing
        })?;
        younger.truncate(enough + 1);
        // The last of them is needed, but may be enough without some before it: nobody loses permits for nothing.
        let mut spare = freed - missing;
        younger.retain(|holder| match spare.checked_sub(permits(holder)) {
            Some(left) => {
                spare = left;
                false
            }
            None => true,
        });
        Some(younger.into_iter().map(Hold::Several).collect())
    }

    /// Whether the entry may look at one holder more for whom to wound, after so many of this lock.
    fn may_look_on(&self, looked: usize) -> bool {
        if looked < WOUND_STEPS_FREE {
            return true;
        }
        let left = self.wound_steps_left.get().checked_sub(1);
        self.wound_steps_left.set(left.unwrap_or(0));
        left.is_some()
    }
}
