//! `LOCK.MACQUIRE`: several locks, all or nothing, in the canonical order of their names.
//!
//! A request that waits stands in the queue of each of its resources from one instant on. It is granted in one step, when it
//! is first in all of them and all are free. Nothing is ever held in part.

use crate::grammar::errors;
use crate::machine::locks::acquire::{check_name, AcquireParams};
use crate::machine::locks::several::{GrantTerms, Hold};
use crate::machine::log::command::Db;
use crate::machine::queue::waiter::ReplyForm;
use crate::machine::{version, Applied, LockSlot, Machine};
use crate::mutant;
use crate::reply::{Refusal, Reply};
use crate::types::{Fence, LockKind, OwnerIdentity, MULTI_RESOURCES_MAX};
use smallvec::SmallVec;

/// Slots, fences or places of one multi-lock.
pub(crate) type Several<T> = SmallVec<[T; 8]>;

impl Machine {
    /// `None`: queued, the answer comes later.
    pub(crate) fn acquire_many(
        &mut self,
        db: Db,
        names: &[&[u8]],
        params: &AcquireParams<'_>,
        out: &mut Applied,
    ) -> Option<Reply> {
        self.try_acquire_many(db, names, params, out).unwrap_or_else(|refusal| Some(refusal.into()))
    }

    fn try_acquire_many(
        &mut self,
        db: Db,
        names: &[&[u8]],
        params: &AcquireParams<'_>,
        out: &mut Applied,
    ) -> Result<Option<Reply>, Refusal> {
        if names.is_empty() || names.len() > MULTI_RESOURCES_MAX {
            return Err(errors::multi_count());
        }
        names.iter().try_for_each(|name| check_name(name))?;
        params.check()?;
        let mut sorted: Several<&[u8]> = names.iter().copied().collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(errors::duplicate_resource(twice[0]));
        }
        let order: Box<[u8]> =
            names.iter().map(|name| sorted.binary_search(name).unwrap_or_default() as u8).collect();
        let session = self.session_of(params, out)?;
        // What is due on one may free another, so all are brought up to date before any is looked at.
        for name in &sorted {
            self.find_fresh(db, name, out);
        }

        self.check_modes(db, &sorted, params)?;
        let all_free = sorted.iter().all(|name| self.can_take(db, name, params));
        if !all_free && params.wait_ms == 0 {
            return Ok(Some(Reply::Nil));
        }
        for name in &sorted {
            if let Some(own) = self.hold_at(db, name, params.asker()) {
                self.check_retry_session(self.session_of_hold(own), session)?;
            }
        }
        self.check_session_room(session, self.claims_of(db, &sorted, params.asker()))?;
        self.room_for_many(db, &sorted, &params.terms(session), all_free)?;
        let slots = self.records_for(db, &sorted)?;
        if all_free {
            let (fences, ttl_ms) = self.grant_many(&slots, &params.terms(session), out);
            return Ok(Some(many_granted(&order, &fences, ttl_ms)));
        }
        let queued = self.wait_for(&slots, ReplyForm::Many(order), params, session, out);
        if queued.is_err() {
            // Records made for nothing go again.
            self.to_serve.extend(&slots);
        }
        queued.map(|()| None)
    }

    /// Whether the owner could have this lock now: it goes beside its holders, if any, and nobody is in line, or it is the owner's already.
    fn can_take(&self, db: Db, name: &[u8], params: &AcquireParams<'_>) -> bool {
        self.names.find(&self.locks, db, name).is_none_or(|slot| {
            self.hold_of_owner(slot, params.asker()).is_some()
                || (self.locks[slot].queue.len == 0 && self.goes_beside(slot, params.kind))
        })
    }

    /// Refuses names that are in use in a mode which this one never goes with, or that the owner has in another mode.
    fn check_modes(&self, db: Db, names: &[&[u8]], params: &AcquireParams<'_>) -> Result<(), Refusal> {
        for name in names {
            let Some(slot) = self.names.find(&self.locks, db, name) else {
                if params.kind != LockKind::Exclusive {
                    self.check_holders()?;
                }
                continue;
            };
            match self.hold_of_owner(slot, params.asker()) {
                Some(own) if !self.is_of_kind(own, params.kind) => return Err(errors::owner_in_other_mode()),
                // A retry: what it has, and its place in line, need no room.
                Some(_) => {}
                None => {
                    self.check_mode(slot, params.kind)?;
                    self.check_holder_room(slot, params)?;
                }
            }
        }
        Ok(())
    }

    /// How many more locks a multi-lock would have a session hold or wait for: none for a retry.
    fn claims_of(&self, db: Db, names: &[&[u8]], asker: OwnerIdentity<'_>) -> usize {
        let is_held = |name: &&&[u8]| self.hold_at(db, name, asker).is_some();
        let is_queued = |name: &&[u8]| {
            let slot = self.names.find(&self.locks, db, name);
            slot.is_some_and(|slot| self.is_queued(slot, asker))
        };
        let held = names.iter().filter(is_held).count();
        match self.cluster_version() < version::SECOND {
            true if held == names.len() => 0,
            true => names.len(),
            false if names.iter().any(is_queued) => 0,
            false => names.len() - held,
        }
    }

    fn hold_at(&self, db: Db, name: &[u8], asker: OwnerIdentity<'_>) -> Option<Hold> {
        self.hold_of_owner(self.names.find(&self.locks, db, name)?, asker)
    }

    /// A record for each name; where there is no room for all, none is made.
    fn records_for(&mut self, db: Db, names: &[&[u8]]) -> Result<Several<LockSlot>, Refusal> {
        let wanted = self.locks.len() + names.len();
        self.forget_oldest_idle(wanted.saturating_sub(self.limits.locks_max));
        let known: Several<Option<LockSlot>> =
            names.iter().map(|name| self.names.find(&self.locks, db, name)).collect();
        let missing = known.iter().filter(|slot| slot.is_none()).count();
        if self.locks.len() + missing > self.limits.locks_max {
            return Err(errors::too_many_locks(self.limits.locks_max));
        }
        names
            .iter()
            .zip(known)
            .map(|(name, slot)| slot.map_or_else(|| self.record_for(db, name), Ok))
            .collect()
    }

    /// Takes all of them in one step. What the owner holds already keeps its fence and is stretched. Answers the fences, in
    /// the order of `slots`, and the shortest time granted (0 where none has an end of its own).
    pub(crate) fn grant_many(
        &mut self,
        slots: &[LockSlot],
        terms: &GrantTerms<'_>,
        out: &mut Applied,
    ) -> (Several<Fence>, u64) {
        let mut fences = Several::new();
        let mut shortest_ms = 0;
        for &slot in slots {
            let (fence, granted_ms) = match self.hold_of_owner(slot, terms.asker) {
                Some(own) => (self.fence_of(own), self.stretch_hold(own, terms.ttl_ms)),
                None if mutant!(AllWaitersAtOnce) && self.locks[slot].is_held() => {
                    (self.locks[slot].fence, self.stretch(slot, terms.ttl_ms))
                }
                None => (self.grant_as(slot, terms, out), terms.ttl_ms),
            };
            if granted_ms != 0 && (shortest_ms == 0 || granted_ms < shortest_ms) {
                shortest_ms = granted_ms;
            }
            fences.push(fence);
        }
        (fences, shortest_ms)
    }
}

/// The reply to a multi-lock, fences in the order asked.
pub(crate) fn many_granted(order: &[u8], fences: &[Fence], ttl_ms: u64) -> Reply {
    let fences = order.iter().map(|place| fences[usize::from(*place)]).collect();
    Reply::GrantedMany { fences, ttl_ms }
}
