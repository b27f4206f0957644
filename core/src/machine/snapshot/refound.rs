//! What the state of a backup becomes when a new cluster is founded from it.
//!
//! The old cluster may have gone on after the backup: granted, renewed and released. So nothing of the backup may end earlier than a
//! client of the old cluster believes, and no fence may come again:
//!
//! - every lock is held for the whole time of its last grant or renewal, counted from the restore, and every session for its ttl;
//! - every new fence is above the floor, which is an hour above all fences of the backup, and `FENCE.*` refuses what is below it, except for names that are held: the fence of
//!   their holder stays good;
//! - waiters, blocked clients and remembered replies belong to connections that are no more: they are dropped. So are reports of
//!   digests: their members are no more.
//!
//! The rest (keys, settings, scripts, cluster version, clocks) stays as it was.

use crate::machine::keys::blocked::Blocked;
use crate::machine::locks::holder::HolderIndex;
use crate::machine::locks::lock::{GrantedTime, Names, Phase};
use crate::machine::locks::several::Hold;
use crate::machine::queue::waiter::QueuedOwners;
use crate::machine::requests::dedup::Dedup;
use crate::machine::snapshot::invariants::Violation;
use crate::machine::store::deadlines::{Deadlines, NEVER};
use crate::machine::store::list::List;
use crate::machine::store::slab::Slab;
use crate::machine::{Db, HashMap, HolderSlot, LockSlot, Machine};
use crate::types::{Fence, SessionId, FENCE_BOUND};
use ::bytes::Bytes;
use std::fmt;

/// How far a floor is above the fences of the state, and at the caller's above the clock. The fences that the old cluster granted
/// after the backup are not known: where they run ahead of the clock, those of the backup are all there is to go by.
pub const FENCE_MARGIN_US: u64 = 3_600_000_000;
/// A floor above this may not be asked for: in microseconds it is the year 2112.
const FLOOR_ASKED_MAX: u64 = FENCE_BOUND / 2;
/// Nor may there be fences above this already. A state whose fences reach three quarters of their bound is taken for damaged, so a
/// floor leaves room for grants and for later restores.
const FLOOR_MAX: u64 = FENCE_BOUND / 8 * 5;

/// What is in a state, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Every key is a lock: those of all databases.
    pub locks_held: u64,
    /// Of them hashes, lists, sets and other values that are no strings.
    pub collections: u64,
    pub waiters: u64,
    pub sessions: u64,
    pub marks: u64,
    /// Below it every fence of a name without a record is old.
    pub fence_floor: Fence,
    /// The highest fence that may have been issued.
    pub highest_fence: Fence,
    pub memory_bytes: u64,
}

/// A held lock that no time ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenEndedLock {
    pub db: Db,
    pub name: Bytes,
    pub owner: Bytes,
    pub fence: Fence,
    /// The session it ends with, and that session's ttl.
    pub session: Option<(SessionId, u64)>,
}

/// Why no cluster can be founded from a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefoundError {
    /// More was asked for than may be.
    Floor(Fence),
    /// The fences of the state leave no room for a floor above them.
    Fences(Fence),
    Inconsistent(Violation),
}

impl fmt::Display for RefoundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RefoundError::Floor(floor) => {
                write!(f, "the fence floor {floor} is out of range: it may be {FLOOR_ASKED_MAX} at most")
            }
            RefoundError::Fences(highest) => write!(
                f,
                "its highest fence {highest} leaves no room for a fence floor above it: a floor may be {FLOOR_MAX} at most"
            ),
            RefoundError::Inconsistent(violation) => {
                write!(f, "the restored state contradicts itself: {violation}")
            }
        }
    }
}

/// What was done to a state beyond what its contents show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refounded {
    pub fence_floor: Fence,
    pub waiters_dropped: u64,
}

impl Refounded {
    /// The floor to ask for in a further restore of the same backup or an older one: above what the new cluster may have granted.
    /// `None`: no floor may be that high.
    #[must_use]
    pub fn floor_for_another(&self) -> Option<Fence> {
        let floor = self.fence_floor.0 + FENCE_MARGIN_US;
        (floor <= FLOOR_ASKED_MAX).then_some(Fence(floor))
    }
}

impl Machine {
    #[must_use]
    pub fn contents(&self) -> Contents {
        Contents {
            locks_held: self.locks.iter().filter(|(slot, _)| self.outlives_backup(*slot)).count() as u64,
            collections: self.values.len() as u64,
            waiters: (self.waiters.len() + self.blocked.len()) as u64,
            sessions: self.sessions.len() as u64,
            marks: self.marks.len() as u64,
            fence_floor: self.floor.max(self.marks.floor()),
            highest_fence: self.highest_fence(),
            memory_bytes: self.memory_used_bytes(),
        }
    }

    /// At least every fence that was issued up to this state.
    #[must_use]
    pub fn highest_fence(&self) -> Fence {
        let locks = self.locks.iter().map(|(_, lock)| lock.fence);
        let known = [self.floor, self.marks.highest(), Fence(self.clock.wall_us)];
        locks.chain(known).max().unwrap_or_default()
    }

    /// The held locks that no time of their own ends: bound to a session, or a key without a ttl.
    pub fn open_ended_locks(&self) -> impl Iterator<Item = OpenEndedLock> + '_ {
        let standing = self.locks.iter().map(|(slot, _)| slot).filter(|slot| self.outlives_backup(*slot));
        standing.flat_map(move |slot| {
            let exclusive = (!self.locks[slot].is_several()).then_some(Hold::Exclusive(slot));
            let holds = exclusive.into_iter().chain(self.holders_of(slot).map(Hold::Several));
            let open_ended = holds.filter(|hold| self.end_of(*hold) == NEVER);
            open_ended.map(move |hold| self.open_ended_lock(slot, hold))
        })
    }

    fn open_ended_lock(&self, slot: LockSlot, hold: Hold) -> OpenEndedLock {
        let owner = match hold {
            Hold::Exclusive(slot) => self.locks[slot].owner(),
            Hold::Several(holder) => &self.holders[holder].owner,
        };
        OpenEndedLock {
            db: self.locks[slot].db(),
            name: Bytes::copy_from_slice(self.locks[slot].name()),
            owner: Bytes::copy_from_slice(owner),
            fence: self.fence_of(hold),
            session: self
                .sessions
                .get(self.session_of_hold(hold))
                .map(|session| (session.id, session.ttl_ms)),
        }
    }

    /// Makes the state the beginning of a new cluster, whose fences are above `asked` and more than [`FENCE_MARGIN_US`] above all that
    /// this state knows of.
    pub fn refound(&mut self, asked: Fence) -> Result<Refounded, RefoundError> {
        if asked.0 > FLOOR_ASKED_MAX {
            return Err(RefoundError::Floor(asked));
        }
        let highest = self.highest_fence();
        let floor = asked.max(Fence(highest.0.saturating_add(FENCE_MARGIN_US)));
        if floor.0 > FLOOR_MAX {
            return Err(RefoundError::Fences(highest));
        }
        let waiters_dropped = (self.waiters.len() + self.blocked.len()) as u64;
        self.snapshot_cancel();
        self.drop_requests();
        self.digests.refound();
        self.settings.behind.forget_all();
        self.hold_for_full_time();
        self.reindex();
        self.floor = floor;
        self.refound_marks(floor);
        self.check_invariants().map_err(RefoundError::Inconsistent)?;
        Ok(Refounded { fence_floor: floor, waiters_dropped })
    }

    /// Held, and neither flushed nor past its deadline.
    fn outlives_backup(&self, slot: LockSlot) -> bool {
        let lock = &self.locks[slot];
        let lives = |holder: HolderSlot| !self.has_passed(self.holders[holder].deadline_ms);
        let ends = match lock.is_several() {
            true => !self.holders_of(slot).any(lives),
            false => self.has_passed(lock.deadline_ms()),
        };
        lock.is_held() && !self.is_flushed(lock) && !ends
    }

    fn drop_requests(&mut self) {
        self.waiters = Slab::default();
        self.queue_entries = Slab::default();
        self.blocked = Blocked::counting_from(self.blocked.next_number());
        self.dedup = Dedup::default();
        self.sweep.forget_waiters();
        for slot in self.sessions.slots() {
            if self.sessions.get(slot).is_some() {
                let session = self.sessions.edit(slot);
                (session.waiters, session.queue_entries) = (List::EMPTY, 0);
            }
        }
        let now_ms = self.clock.logical_ms;
        for slot in self.locks.slots() {
            let Some(lock) = self.locks.get(slot) else { continue };
            let (phase, fence) = (lock.phase, lock.fence);
            if lock.queue != List::EMPTY {
                self.locks.edit(slot).queue = List::EMPTY;
            }
            match phase {
                Phase::Held { .. } | Phase::Several { .. } | Phase::Idle { .. } => {}
                // Nobody waits for it any more.
                Phase::Awaited if fence == Fence(0) => drop(self.locks.remove(slot)),
                Phase::Awaited => {
                    self.locks.edit(slot).phase = Phase::Idle { since_ms: now_ms };
                    self.idle.push_back(&mut self.locks, slot);
                }
            }
        }
    }

    fn hold_for_full_time(&mut self) {
        let now_ms = self.clock.logical_ms;
        for slot in self.locks.slots() {
            if self.locks.get(slot).is_none() || !self.outlives_backup(slot) {
                continue;
            }
            let lock = &self.locks[slot];
            let Some(granted_ms) = lock.granted_ms() else { continue };
            let deadline_ms = lock.deadline_ms().max(now_ms.saturating_add(granted_ms));
            self.locks.edit(slot).set_deadline(deadline_ms, now_ms);
            if let Some(grants) = self.grants.get_mut(&slot) {
                grants.end_live_at(now_ms, deadline_ms);
            }
        }
        for slot in self.holders.slots() {
            let Some(holder) = self.holders.get(slot) else { continue };
            let (ends_ms, granted_ms) = (holder.deadline_ms, holder.granted.ms());
            if ends_ms != NEVER && !self.has_passed(ends_ms) && !self.is_flushed(&self.locks[holder.lock]) {
                let deadline_ms = ends_ms.max(now_ms.saturating_add(granted_ms));
                let holder = self.holders.edit(slot);
                holder.deadline_ms = deadline_ms;
                holder.granted = GrantedTime::until(deadline_ms, now_ms);
            }
        }
        for slot in self.sessions.slots() {
            if self.sessions.get(slot).is_some_and(|session| !self.has_passed(session.deadline_ms)) {
                let session = self.sessions.edit(slot);
                session.deadline_ms = now_ms.saturating_add(session.ttl_ms);
                // The connection that opened it is gone; a keep-alive takes it over.
                session.orphaned = true;
            }
        }
    }

    fn reindex(&mut self) {
        self.names = Names::default();
        self.queued_owners = QueuedOwners::default();
        self.requests = HashMap::default();
        self.session_ids = HashMap::default();
        self.sessions_of = HashMap::default();
        self.deadlines = Deadlines::default();
        self.holder_index = HolderIndex::default();
        self.sweep.forget_counts();
        self.rebuild_indexes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reached by no clock before the year 2112, and then only by many restores.
    #[test]
    fn fences_that_leave_no_room_for_a_floor_are_refused_and_nothing_is_changed() {
        let most = FLOOR_MAX - FENCE_MARGIN_US;
        for (highest, fits) in [(most, true), (most + 1, false), (FENCE_BOUND / 4 * 3 - 1, false)] {
            let mut machine = Machine { floor: Fence(highest), ..Machine::new() };
            let before = machine.state_hash();
            match machine.refound(Fence(5)) {
                Ok(done) => {
                    assert!(fits && done.fence_floor == Fence(FLOOR_MAX), "{highest}");
                    assert_eq!(done.floor_for_another(), None);
                }
                Err(refused) => {
                    assert!(!fits, "{highest}");
                    assert_eq!(refused, RefoundError::Fences(Fence(highest)));
                    assert!(refused.to_string().contains("leaves no room"), "{refused}");
                    assert_eq!(machine.state_hash(), before);
                }
            }
        }
    }

    #[test]
    fn the_floor_for_another_restore_is_one_that_may_be_asked_for() {
        let last = FLOOR_ASKED_MAX - FENCE_MARGIN_US;
        for (floor, another) in
            [(7, Some(7 + FENCE_MARGIN_US)), (last, Some(FLOOR_ASKED_MAX)), (last + 1, None)]
        {
            let done = Refounded { fence_floor: Fence(floor), ..Refounded::default() };
            assert_eq!(done.floor_for_another(), another.map(Fence), "{floor}");
        }
        let mut machine = Machine::new();
        let refused = machine.refound(Fence(FLOOR_ASKED_MAX + 1));
        assert_eq!(refused, Err(RefoundError::Floor(Fence(FLOOR_ASKED_MAX + 1))));
    }
}
