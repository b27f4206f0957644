//! The Redlock listeners: to a Redlock client each node is a master of its own, a *member*.
//!
//! A string key that comes into being through a member carries the members that have granted it, each with its own time.
//! A member sees what it has granted itself, and every key that came into being in another way (`LOCK.ACQUIRE`, the other
//! listeners, collections); anything else is hidden from it. Its commands and scripts run so. Where they then write to a
//! hidden key
//!
//! - the value it has, the member joins those who have granted it;
//! - anything else, all is taken back and run once more with nothing hidden, so the answer is that of a master on which the
//!   key is held. A write that would still change the value under which others hold the key is refused.
//!
//! A member that deletes a key gives its own grant back; the key ends with the last one.
//!
//! **Each member grants each fence once.** One that grants again, after it gave its grant back or its time was over, brings a
//! new fence. Two majorities share a member: so no two clients ever have a majority under one fence, nor two at a time, even
//! where both write the same value.

use crate::event::EventKind;
use crate::keyspace::errors;
use crate::machine::locks::ending::Ending;
use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::snapshot::invariants::Violation;
use crate::machine::store::deadlines::NEVER;
use crate::machine::{Applied, EventOwner, LockSlot, Machine, SessionSlot};
use crate::reply::Refusal;
use crate::types::{has_passed, Member, OwnerIdentity};

/// Members that may grant one fence. One more is refused: a cluster has a handful of nodes.
const MEMBERS_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    member: Member,
    /// [`GIVEN_BACK`] where it was.
    until_ms: u64,
}

/// No time: also at the very first millisecond, which is never past it.
const GIVEN_BACK: u64 = 0;

impl Grant {
    fn is_live(&self, now_ms: u64) -> bool {
        self.until_ms != GIVEN_BACK && !has_passed(self.until_ms, now_ms)
    }
}

/// Who has granted a key under its fence, in the order of their numbers. Those who gave it back or let it run out stay in
/// it: they have had their turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants(Vec<Grant>);

impl Grants {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn until_ms(&self, member: Member) -> Option<u64> {
        let at = self.0.binary_search_by_key(&member, |grant| grant.member).ok()?;
        Some(self.0[at].until_ms)
    }

    /// When a member's own grant ends, if it is neither over nor given back.
    pub(crate) fn live_until_ms(&self, member: Member, now_ms: u64) -> Option<u64> {
        let at = self.0.binary_search_by_key(&member, |grant| grant.member).ok()?;
        Some(self.0[at]).filter(|grant| grant.is_live(now_ms)).map(|grant| grant.until_ms)
    }

    pub(crate) fn is_live(&self, member: Member, now_ms: u64) -> bool {
        self.live_until_ms(member, now_ms).is_some()
    }

    pub(crate) fn others_live(&self, member: Member, now_ms: u64) -> bool {
        self.0.iter().any(|grant| grant.member != member && grant.is_live(now_ms))
    }

    pub(crate) fn set(&mut self, member: Member, until_ms: u64) {
        let grant = Grant { member, until_ms };
        match self.0.binary_search_by_key(&member, |grant| grant.member) {
            Ok(at) => self.0[at] = grant,
            Err(at) => self.0.insert(at, grant),
        }
    }

    #[cfg(feature = "scripts")]
    pub(crate) fn give_back(&mut self, member: Member) {
        self.set(member, GIVEN_BACK);
    }

    pub(crate) fn has_room_for(&self, member: Member) -> bool {
        self.0.len() < MEMBERS_MAX || self.until_ms(member).is_some()
    }

    /// Forgets those who gave it back or let it run out.
    pub(crate) fn keep_live(&mut self, now_ms: u64) {
        self.0.retain(|grant| grant.is_live(now_ms));
    }

    /// Moves the end of all that live.
    pub(crate) fn end_live_at(&mut self, now_ms: u64, at_ms: u64) {
        for grant in self.0.iter_mut().filter(|grant| grant.is_live(now_ms)) {
            grant.until_ms = at_ms;
        }
    }

    pub(crate) fn last_ms(&self) -> u64 {
        self.0.iter().map(|grant| grant.until_ms).max().unwrap_or(0)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        for grant in &self.0 {
            put_varint(out, grant.member.0);
            put_varint(out, grant.until_ms.wrapping_add(1));
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Grants> {
        let count = reader.varint().filter(|count| *count <= MEMBERS_MAX as u64)?;
        let mut grants = Vec::new();
        for _ in 0..count {
            let (member, until_ms) = (Member(reader.varint()?), reader.varint()?.wrapping_sub(1));
            grants.push(Grant { member, until_ms });
        }
        Some(Grants(grants))
    }
}

impl Machine {
    /// Whether a member has granted this key, or it is one that belongs to all.
    pub(crate) fn sees(&self, member: Member, slot: LockSlot) -> bool {
        self.grants.get(&slot).is_none_or(|grants| grants.is_live(member, self.clock.logical_ms))
    }

    /// When a held key ends: for the member that granted it, when its own grant does.
    pub(crate) fn ends_for(&self, member: Option<Member>, slot: LockSlot) -> u64 {
        let own_ms = || self.grants.get(&slot)?.live_until_ms(member?, self.clock.logical_ms);
        own_ms().unwrap_or_else(|| self.key_end_ms(slot))
    }

    /// When a held key ends; of several holders, when the oldest does.
    pub(crate) fn key_end_ms(&self, slot: LockSlot) -> u64 {
        match self.locks[slot].is_several() {
            true => self.oldest_holder(slot).map_or(NEVER, |holder| self.holders[holder].deadline_ms),
            false => self.locks[slot].deadline_ms(),
        }
    }

    /// Sets when a held lock ends, for whoever has granted it.
    pub(crate) fn set_end(&mut self, slot: LockSlot, at_ms: u64) {
        let now_ms = self.clock.logical_ms;
        if let Some(grants) = self.grants.get_mut(&slot) {
            grants.end_live_at(now_ms, at_ms);
        }
        self.set_lock_end(slot, at_ms);
    }

    fn set_lock_end(&mut self, slot: LockSlot, at_ms: u64) {
        let now_ms = self.clock.logical_ms;
        self.locks.edit(slot).set_deadline(at_ms, now_ms);
        self.deadlines.set_lock(self.locks[slot].db(), slot, at_ms);
    }

    /// Sets when the caller's share of a held key ends. A member that has none yet takes one.
    pub(crate) fn set_end_as(
        &mut self,
        member: Option<Member>,
        slot: LockSlot,
        at_ms: u64,
        out: &mut Applied,
    ) -> Result<(), Refusal> {
        let Some((member, grants)) = member.zip(self.grants.get(&slot)) else {
            self.set_end(slot, at_ms);
            self.emit(EventKind::Renewed, slot, EventOwner::Holder, out);
            return Ok(());
        };
        let had_its_turn = grants.until_ms(member).is_some();
        if had_its_turn && !grants.is_live(member, self.clock.logical_ms) {
            self.grant_again(slot, out);
        } else if !grants.has_room_for(member) {
            return Err(errors::TOO_MANY_MEMBERS);
        } else {
            self.emit(EventKind::Renewed, slot, EventOwner::Holder, out);
        }
        self.grant_by(member, slot, at_ms);
        Ok(())
    }

    /// Notes that a member has granted a held key.
    pub(crate) fn grant_by(&mut self, member: Member, slot: LockSlot, until_ms: u64) {
        let mut grants = self.grants.get(&slot).cloned().unwrap_or_default();
        grants.set(member, until_ms);
        let last_ms = grants.last_ms();
        self.set_grants(slot, Some(grants));
        self.set_lock_end(slot, last_ms);
    }

    /// The same key, value and living grants under a new fence.
    fn grant_again(&mut self, slot: LockSlot, out: &mut Applied) {
        let now_ms = self.clock.logical_ms;
        let mut grants = self.grants.get(&slot).cloned().unwrap_or_default();
        grants.keep_live(now_ms);
        let (owner, at_ms) = (self.locks[slot].owner().to_vec(), self.locks[slot].deadline_ms());
        let user = self.locks[slot].user();
        self.end_grant(slot, Ending::Released, out);
        self.grant_until(slot, OwnerIdentity { owner: &owner, user }, at_ms, SessionSlot::NONE, out);
        self.set_grants(slot, Some(grants));
    }

    /// Takes a member's grant back. Answers whether others keep the key alive; where not, the caller ends it.
    pub(crate) fn give_back(&mut self, member: Member, slot: LockSlot) -> bool {
        let others = self.others_hold(member, slot);
        if others {
            self.grant_by(member, slot, GIVEN_BACK);
        }
        others
    }

    /// Whether others than this member have granted a key and keep it.
    pub(crate) fn others_hold(&self, member: Member, slot: LockSlot) -> bool {
        let now_ms = self.clock.logical_ms;
        self.grants.get(&slot).is_some_and(|grants| grants.others_live(member, now_ms))
    }

    pub(crate) fn check_grants(&self) -> Result<(), Violation> {
        for (slot, grants) in &self.grants {
            let fail = |what: &str| Err(Violation(format!("grants of lock {slot}: {what}")));
            let Some(lock) = self.locks.get(*slot).filter(|lock| lock.is_held() && !lock.is_several()) else {
                return fail("nobody holds it");
            };
            if lock.session().is_some() || self.values.contains_key(slot) {
                return fail("it has a session, or is no string");
            }
            if grants.0.is_empty() || grants.0.len() > MEMBERS_MAX || grants.last_ms() != lock.deadline_ms() {
                return fail("there are none, or too many, or it ends with none of them");
            }
            if !grants.0.windows(2).all(|pair| pair[0].member < pair[1].member) {
                return fail("they are out of order");
            }
        }
        Ok(())
    }
}
