//! `LOCK.CONVERT`: an exclusive lock becomes a shared one, or a shared hold the exclusive one.
//!
//! Down: at once, under the same fence. Up: under a new fence, when no other reader is left. Whoever waits for that stands before
//! everybody else in the queue and keeps its shared hold meanwhile; two of them could never both be served, so the second is refused.

use crate::event::EventKind;
use crate::grammar::convert::ConvertTo;
use crate::grammar::errors;
use crate::machine::locks::acquire::check_name;
use crate::machine::locks::ending::Ending;
use crate::machine::locks::lock::Phase;
use crate::machine::locks::several::{GrantTerms, Hold};
use crate::machine::log::command::Db;
use crate::machine::store::deadlines::NEVER;
use crate::machine::{Applied, EventOwner, HolderSlot, LockSlot, Machine};
use crate::mutant;
use crate::reply::{Refusal, Reply};
use crate::types::{Fence, LockKind, LockMode, OwnerIdentity, RequestId, OWNER_BYTES_MAX, WAIT_MS_MAX};

/// What was asked.
pub(crate) struct ConvertParams<'a> {
    pub(crate) id: Option<RequestId>,
    pub(crate) db: Db,
    pub(crate) resource: &'a [u8],
    pub(crate) fence: Fence,
    pub(crate) to: ConvertTo,
    pub(crate) wait_ms: u64,
}

impl Machine {
    /// `None`: queued, the answer comes later.
    pub(crate) fn convert(&mut self, params: &ConvertParams<'_>, out: &mut Applied) -> Option<Reply> {
        self.try_convert(params, out).unwrap_or_else(|refusal| Some(refusal.into()))
    }

    fn try_convert(
        &mut self,
        params: &ConvertParams<'_>,
        out: &mut Applied,
    ) -> Result<Option<Reply>, Refusal> {
        check_name(params.resource)?;
        if params.wait_ms > WAIT_MS_MAX {
            return Err(errors::wait_range());
        }
        let Some(slot) = self.find_fresh(params.db, params.resource, out) else {
            return Ok(Some(Reply::Nil));
        };
        let Some(hold) = self.hold_with_fence(slot, params.fence) else {
            // A retry whose first reply got lost: the conversion is done, and its hold stands.
            let is_retry =
                params.to == ConvertTo::Exclusive && self.locks[slot].was_converted_from(params.fence);
            return Ok(Some(if is_retry { self.as_granted(Hold::Exclusive(slot)) } else { Reply::Nil }));
        };
        match (hold, params.to) {
            (Hold::Exclusive(_), ConvertTo::Exclusive) => Ok(Some(self.as_granted(hold))),
            (Hold::Exclusive(_), ConvertTo::Shared) => {
                // The value of a plain key stands in for an owner. A waiter's is bounded, and this one may come to wait.
                let is_owner = (1..=OWNER_BYTES_MAX).contains(&self.locks[slot].owner().len());
                if !is_owner || self.values.contains_key(&slot) || self.grants.contains_key(&slot) {
                    return Err(errors::not_convertible());
                }
                self.check_holders()?;
                self.room_to_share(slot)?;
                self.make_shared(slot, out);
                let hold = self.hold_with_fence(slot, params.fence).expect("it was made just now");
                Ok(Some(self.as_granted(hold)))
            }
            (Hold::Several(_), _) if self.locks[slot].mode() == Some(LockMode::Permits) => {
                Err(errors::not_convertible())
            }
            (Hold::Several(_), ConvertTo::Shared) => Ok(Some(self.as_granted(hold))),
            (Hold::Several(holder), ConvertTo::Exclusive) => self.upgrade_lock(slot, holder, params, out),
        }
    }

    fn upgrade_lock(
        &mut self,
        slot: LockSlot,
        holder: HolderSlot,
        params: &ConvertParams<'_>,
        out: &mut Applied,
    ) -> Result<Option<Reply>, Refusal> {
        if self.upgrader_of(slot).is_some_and(|waiter| self.waiters[waiter].converts != params.fence) {
            return Err(errors::second_upgrade());
        }
        if matches!(self.locks[slot].phase, Phase::Several { holders: 1, .. }) {
            // In a transaction that has released the others, whoever waited for that before is served with it.
            let waiting = self.upgrader_of(slot).map(|waiter| self.vacate(waiter).0);
            let (fence, ttl_ms) = self.make_exclusive(slot, holder, out);
            for pending in waiting.iter().flat_map(|waiter| &waiter.requests) {
                self.settle(pending, Some(Reply::Granted { fence, ttl_ms }), out);
            }
            return Ok(Some(Reply::Granted { fence, ttl_ms }));
        }
        if params.wait_ms == 0 {
            return Ok(Some(Reply::Nil));
        }
        self.wait_to_convert(slot, holder, params, out)?;
        Ok(None)
    }

    /// A hold as `LOCK.ACQUIRE` would have answered it now.
    fn as_granted(&self, hold: Hold) -> Reply {
        Reply::Granted { fence: self.fence_of(hold), ttl_ms: self.time_left(self.end_of(hold)) }
    }

    /// 0 where there is no end; in its last millisecond it is not that.
    pub(crate) fn time_left(&self, deadline_ms: u64) -> u64 {
        match deadline_ms {
            NEVER => 0,
            deadline_ms => deadline_ms.saturating_sub(self.clock.logical_ms).max(1),
        }
    }

    /// The exclusive holder becomes the first of several readers.
    fn make_shared(&mut self, slot: LockSlot, out: &mut Applied) {
        let lock = &self.locks[slot];
        let (fence, deadline_ms, session) = (lock.fence, lock.deadline_ms(), lock.session());
        let (owner, user) = (lock.owner().to_vec(), lock.user());
        let since_ms = self.clock.logical_ms.saturating_sub(self.held_ms_of_fence(fence));
        if session.is_some() {
            let mut locks = self.sessions[session].locks;
            locks.unlink(&mut self.locks, slot);
            self.sessions.edit(session).locks = locks;
        }
        self.deadlines.clear_lock(self.locks[slot].db(), slot);
        let value = self.set_attached(slot, None).unwrap_or_default();
        let asker = OwnerIdentity { owner: &owner, user };
        let terms = GrantTerms { asker, value: &value, kind: LockKind::Shared, ttl_ms: 0, session };
        let holder = self.insert_holder(slot, fence, &terms, deadline_ms);
        self.holders.edit(holder).since_ms = since_ms;
        self.emit(EventKind::Renewed, slot, EventOwner::Several(holder), out);
        // Readers that waited go in at once.
        self.to_serve.push_back(slot);
    }

    /// The only reader becomes the exclusive holder, until the same time. Answers the new fence and the time left.
    pub(crate) fn make_exclusive(
        &mut self,
        slot: LockSlot,
        holder: HolderSlot,
        out: &mut Applied,
    ) -> (Fence, u64) {
        let record = &self.holders[holder];
        let (owner, user, value) = (record.owner.clone(), record.user, record.value.clone());
        let (deadline_ms, session) = (record.deadline_ms, record.session);
        self.end_holder(holder, Ending::Converted, out);
        if mutant!(ConvertInTwoSteps) {
            self.serve_all(out);
        }
        if !value.is_empty() {
            self.set_attached(slot, Some(value));
        }
        let fence = self.grant_until(slot, OwnerIdentity { owner: &owner, user }, deadline_ms, session, out);
        (fence, self.time_left(deadline_ms))
    }
}
