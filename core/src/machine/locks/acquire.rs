//! `LOCK.ACQUIRE`: try, wait, and the retries of an owner that holds or is queued already.

use crate::event::EventKind;
use crate::grammar::errors;
use crate::machine::locks::lock::Phase;
use crate::machine::locks::several::{GrantTerms, Hold};
use crate::machine::log::command::Db;
use crate::machine::queue::waiter::ReplyForm;
use crate::machine::store::deadlines::NEVER;
use crate::machine::{Applied, EventOwner, LockSlot, Machine, SessionSlot};
use crate::mutant;
use crate::reply::{Refusal, Reply};
use crate::types::{
    Fence, LockKind, OwnerIdentity, RequestId, SessionId, UserTag, OWNER_BYTES_MAX, RESOURCE_BYTES_MAX,
    TTL_MS_MAX, VALUE_BYTES_MAX, WAIT_MS_MAX,
};

/// What was asked, but for the resource.
pub(crate) struct AcquireParams<'a> {
    pub(crate) id: Option<RequestId>,
    pub(crate) ttl_ms: u64,
    pub(crate) wait_ms: u64,
    pub(crate) owner: &'a [u8],
    pub(crate) user: UserTag,
    pub(crate) session: Option<SessionId>,
    pub(crate) kind: LockKind,
    pub(crate) value: &'a [u8],
}

impl<'a> AcquireParams<'a> {
    pub(crate) fn asker(&self) -> OwnerIdentity<'a> {
        OwnerIdentity { owner: self.owner, user: self.user }
    }

    pub(crate) fn terms(&self, session: SessionSlot) -> GrantTerms<'a> {
        let AcquireParams { value, ttl_ms, .. } = *self;
        // Made anew: a copy would be read in larger pieces than it was written in a moment ago, for which the processor waits.
        let kind = if self.kind == LockKind::Exclusive { LockKind::Exclusive } else { self.kind };
        GrantTerms { asker: self.asker(), value, kind, ttl_ms, session }
    }

    /// The grammar has checked a client's words; an entry may hold anything.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.owner.is_empty() || self.owner.len() > OWNER_BYTES_MAX {
            return Err(errors::owner_length());
        }
        if self.ttl_ms > TTL_MS_MAX {
            return Err(errors::ttl_range());
        }
        if self.ttl_ms == 0 && self.session.is_none() {
            return Err(errors::ttl_zero_needs_session());
        }
        if self.wait_ms > WAIT_MS_MAX {
            return Err(errors::wait_range());
        }
        if !self.kind.is_valid() {
            return Err(errors::permits_range());
        }
        if self.value.len() > VALUE_BYTES_MAX {
            return Err(errors::value_length());
        }
        Ok(())
    }
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > RESOURCE_BYTES_MAX {
        return Err(errors::resource_length());
    }
    Ok(())
}

impl Machine {
    /// `None`: queued, the answer comes later.
    pub(crate) fn acquire(
        &mut self,
        db: Db,
        name: &[u8],
        params: &AcquireParams<'_>,
        out: &mut Applied,
    ) -> Option<Reply> {
        self.try_acquire(db, name, params, out).unwrap_or_else(|refusal| Some(refusal.into()))
    }

    fn try_acquire(
        &mut self,
        db: Db,
        name: &[u8],
        params: &AcquireParams<'_>,
        out: &mut Applied,
    ) -> Result<Option<Reply>, Refusal> {
        check_name(name)?;
        params.check()?;
        let session = self.session_of(params, out)?;
        let terms = params.terms(session);
        let Some(slot) = self.find_fresh(db, name, out) else {
            self.check_session_room(session, 1)?;
            if params.kind != LockKind::Exclusive {
                self.check_holders()?;
            }
            self.room_for_grant(None, name, &terms)?;
            let slot = self.record_for(db, name)?;
            let fence = self.grant_as(slot, &terms, out);
            return Ok(Some(Reply::Granted { fence, ttl_ms: params.ttl_ms }));
        };
        let lock = &self.locks[slot];
        if lock.is_several() || params.kind != LockKind::Exclusive {
            return self.acquire_beside(slot, name, params, session, out);
        }
        if lock.is_held_by(params.asker()) && !mutant!(OwnerIgnored) {
            self.check_retry_session(lock.session(), session)?;
            let ttl_ms = self.stretch(slot, params.ttl_ms);
            return Ok(Some(Reply::Granted { fence: self.locks[slot].fence, ttl_ms }));
        }
        if !lock.is_held() && lock.queue.len == 0 {
            self.check_session_room(session, 1)?;
            self.room_for_grant(Some(slot), name, &terms)?;
            let fence = self.grant_as(slot, &terms, out);
            return Ok(Some(Reply::Granted { fence, ttl_ms: params.ttl_ms }));
        }
        if params.wait_ms == 0 {
            return Ok(Some(Reply::Nil));
        }
        self.wait_for(&[slot], ReplyForm::One, params, session, out)?;
        Ok(None)
    }

    /// The same where several may hold the lock at a time.
    #[inline(never)]
    fn acquire_beside(
        &mut self,
        slot: LockSlot,
        name: &[u8],
        params: &AcquireParams<'_>,
        session: SessionSlot,
        out: &mut Applied,
    ) -> Result<Option<Reply>, Refusal> {
        if let Some(own) = self.hold_of_owner(slot, params.asker()) {
            if !self.is_of_kind(own, params.kind) {
                return Err(errors::owner_in_other_mode());
            }
            self.check_retry_session(self.session_of_hold(own), session)?;
            let ttl_ms = self.stretch_hold(own, params.ttl_ms);
            return Ok(Some(Reply::Granted { fence: self.fence_of(own), ttl_ms }));
        }
        self.check_mode(slot, params.kind)?;
        self.check_holder_room(slot, params)?;
        let is_first = self.locks[slot].queue.len == 0 || mutant!(ReaderOvertakes);
        if is_first && self.goes_beside(slot, params.kind) {
            self.check_session_room(session, 1)?;
            self.room_for_grant(Some(slot), name, &params.terms(session))?;
            let fence = self.grant_as(slot, &params.terms(session), out);
            return Ok(Some(Reply::Granted { fence, ttl_ms: params.ttl_ms }));
        }
        if params.wait_ms == 0 {
            return Ok(Some(Reply::Nil));
        }
        self.wait_for(&[slot], ReplyForm::One, params, session, out)?;
        Ok(None)
    }

    /// The slot of the session that was named, which must be of the same user; `NONE` where none was.
    pub(crate) fn session_of(
        &mut self,
        params: &AcquireParams<'_>,
        out: &mut Applied,
    ) -> Result<SessionSlot, Refusal> {
        match params.session {
            None => Ok(SessionSlot::NONE),
            Some(id) => self.own_session(id, out).ok_or_else(errors::no_session),
        }
    }

    /// Whether a session may hold or wait for so many more. Retries and hand-overs never ask.
    pub(crate) fn check_session_room(&self, session: SessionSlot, more: usize) -> Result<(), Refusal> {
        let Some(record) = self.sessions.get(session) else { return Ok(()) };
        let claimed = (record.locks.len + record.holders.len + record.queue_entries) as usize;
        match more == 0 || claimed + more <= self.limits.locks_per_session_max {
            true => Ok(()),
            false => Err(errors::session_full(self.limits.locks_per_session_max)),
        }
    }

    /// A retry may leave its session out, but not name another: the lock would outlive the one or die with the other.
    pub(crate) fn check_retry_session(&self, bound: SessionSlot, named: SessionSlot) -> Result<(), Refusal> {
        if named.is_some() && named != bound {
            return Err(errors::owner_of_other_session());
        }
        Ok(())
    }

    /// Finds a lock as it is at this instant: what is due on it has ended, and its waiters are served.
    pub(crate) fn find_fresh(&mut self, db: Db, name: &[u8], out: &mut Applied) -> Option<LockSlot> {
        let slot = self.names.find(&self.locks, db, name)?;
        match self.locks[slot].phase {
            Phase::Held { .. } => {}
            Phase::Awaited | Phase::Idle { .. } => return Some(slot),
            Phase::Several { .. } => {
                return match self.refresh_several(slot, out) {
                    true => self.names.find(&self.locks, db, name),
                    false => Some(slot),
                }
            }
        }
        if let Some(ended_ms) = self.end_if_due(slot, out) {
            // A waiter that still had time when the lock ended gets it.
            self.instant_ms = ended_ms;
            self.serve_all(out);
            self.instant_ms = self.clock.logical_ms;
            return self.names.find(&self.locks, db, name);
        }
        Some(slot)
    }

    /// A fresh record for a name that has none.
    pub(crate) fn record_for(&mut self, db: Db, name: &[u8]) -> Result<LockSlot, Refusal> {
        if db > Db::from(u16::MAX) {
            return Err(crate::keyspace::errors::DB_OUT_OF_RANGE);
        }
        if self.locks.len() >= self.limits.locks_max {
            self.forget_oldest_idle(1);
        }
        if self.locks.len() >= self.limits.locks_max {
            return Err(errors::too_many_locks(self.limits.locks_max));
        }
        let slot = self.insert_lock(crate::machine::locks::lock::Lock::new(db, name));
        self.names.insert(&self.locks, slot);
        Ok(slot)
    }

    /// Gives a free lock to a holder under the next fence.
    pub(crate) fn grant(
        &mut self,
        slot: LockSlot,
        holder: OwnerIdentity<'_>,
        ttl_ms: u64,
        session: SessionSlot,
        out: &mut Applied,
    ) -> Fence {
        self.grant_until(slot, holder, self.deadline_after(ttl_ms), session, out)
    }

    /// As [`Machine::grant`], for keys that come with a point in time or none.
    pub(crate) fn grant_until(
        &mut self,
        slot: LockSlot,
        holder: OwnerIdentity<'_>,
        deadline_ms: u64,
        session: SessionSlot,
        out: &mut Applied,
    ) -> Fence {
        self.unpark(slot);
        let lock = &self.locks[slot];
        let (db, last) = (lock.db(), lock.fence.max(self.floor));
        let last = if mutant!(FenceByClockAlone) { Fence(0) } else { last };
        let keeps = mutant!(WoundKeepsFence) && crate::mutants::take_mark();
        let fence = if keeps { last } else { Fence::next(last, self.clock.wall_us) };
        let epoch = self.sweep.count_held(db);
        let now_ms = self.clock.logical_ms;
        self.change_lock(slot, |lock| lock.hold(fence, holder, deadline_ms, now_ms, session, epoch));
        self.deadlines.set_lock(db, slot, deadline_ms);
        if session.is_some() {
            let mut locks = self.sessions[session].locks;
            locks.push_back(&mut self.locks, slot);
            self.sessions.edit(session).locks = locks;
        }
        self.counters.held += 1;
        self.counters.grants += 1;
        self.emit(EventKind::Acquired, slot, EventOwner::Holder, out);
        fence
    }

    /// A ttl of 0 is bound to its session alone.
    pub(crate) fn deadline_after(&self, ttl_ms: u64) -> u64 {
        if ttl_ms == 0 {
            NEVER
        } else if mutant!(EndsEarly) {
            self.clock.logical_ms + ttl_ms * 3 / 4
        } else {
            self.clock.logical_ms + ttl_ms
        }
    }

    /// A retry of the holder: at least the ttl asked. Answers the time now granted, 0 where it has no end of its own.
    pub(crate) fn stretch(&mut self, slot: LockSlot, ttl_ms: u64) -> u64 {
        self.stretch_hold(Hold::Exclusive(slot), ttl_ms)
    }

    /// The same for one of several holders.
    pub(crate) fn stretch_hold(&mut self, hold: Hold, ttl_ms: u64) -> u64 {
        let ends_ms = self.end_of(hold);
        let deadline_ms = match ends_ms.max(self.deadline_after(ttl_ms)) {
            // Without a session there must always be an end.
            NEVER if self.session_of_hold(hold).is_none() && ends_ms != NEVER => ends_ms,
            other => other,
        };
        if deadline_ms != ends_ms {
            self.set_end_of(hold, deadline_ms);
        }
        self.time_left(deadline_ms)
    }
}
