//! The grants that a connection was told of while it was not watched for losses: `LOCK.NOTIFY ON` is for those too.

use crate::events::{GrantKey, ToldGrant};
use bytes::Bytes;
use redfence_core::types::{Fence, UserTag};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// So many are known at least, of those whose time is not over.
pub const TOLD_MIN: usize = 256;
/// From here on those whose time is over are looked for.
const SWEEP_MIN: usize = 64;
/// What one takes besides the name.
const GRANT_BYTES: usize = 144;

#[derive(Debug, Default)]
pub struct ToldGrants {
    /// Oldest first.
    grants: VecDeque<DatedGrant>,
    /// Those whose release is not answered yet, in the order of the answers.
    releasing: VecDeque<DatedGrant>,
    name_bytes: usize,
    /// The highest of all fences that were told: a higher one is told for the first time.
    highest: Fence,
    /// How many there may be before some are dropped.
    sweep_at: usize,
}

/// A grant but for its name.
#[derive(Clone, Copy, Debug)]
pub struct GrantTerms {
    pub db: u32,
    pub fence: Fence,
    /// How long it lasts without a renewal; 0 where its session decides.
    pub lease_ms: u64,
    /// It may end before that, with a session.
    pub in_session: bool,
    pub user: UserTag,
}

#[derive(Debug)]
struct DatedGrant {
    terms: GrantTerms,
    /// Short ones in place: every grant of every client comes here, and few are ever asked for.
    name: SmallVec<[u8; 64]>,
    /// As far as this connection knows; `u64::MAX` where its session decides.
    ends_ms: u64,
}

fn end_of(lease_ms: u64, now_ms: u64) -> u64 {
    match lease_ms {
        0 => u64::MAX,
        lease_ms => now_ms.saturating_add(lease_ms),
    }
}

impl ToldGrants {
    pub fn add(&mut self, name: &[u8], terms: GrantTerms, now_ms: u64) {
        if self.grants.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.sweep(now_ms);
        }
        // An owner that asks again is told the same grant again.
        if terms.fence <= self.highest {
            self.forget(terms.db, name, terms.fence);
        }
        self.highest = self.highest.max(terms.fence);
        self.name_bytes += name.len();
        let ends_ms = end_of(terms.lease_ms, now_ms);
        self.grants.push_back(DatedGrant { terms, name: SmallVec::from_slice(name), ends_ms });
    }

    /// Drops those whose time is over, and the oldest of too many.
    #[cold]
    fn sweep(&mut self, now_ms: u64) {
        self.grants.retain(|known| known.ends_ms > now_ms);
        let too_many = self.grants.len().saturating_sub(TOLD_MIN);
        self.grants.drain(..too_many);
        self.sweep_at = 2 * self.grants.len();
        self.name_bytes = self.all().map(|known| known.name.len()).sum();
    }

    fn all(&self) -> impl Iterator<Item = &DatedGrant> {
        self.grants.iter().chain(&self.releasing)
    }

    fn find(&self, db: u32, resource: &[u8], fence: Fence) -> Option<usize> {
        // Mostly it is the newest.
        self.grants.iter().rposition(|DatedGrant { terms, name, .. }| {
            terms.fence == fence && terms.db == db && name.as_slice() == resource
        })
    }

    fn remove(&mut self, db: u32, resource: &[u8], fence: Fence) -> Option<DatedGrant> {
        self.find(db, resource, fence).and_then(|at| self.grants.remove(at))
    }

    /// It is released.
    pub fn forget(&mut self, db: u32, resource: &[u8], fence: Fence) {
        let known = self.remove(db, resource, fence);
        self.name_bytes -= known.map_or(0, |known| known.name.len());
    }

    /// The connection asks to release it; `released` tells how that went. False: it is not known here.
    pub fn releases(&mut self, db: u32, resource: &[u8], fence: Fence) -> bool {
        let known = self.remove(db, resource, fence);
        let is_known = known.is_some();
        self.releasing.extend(known);
        is_known
    }

    /// The answer for those that `releases` found for one command. An error may have left them held.
    pub fn released(&mut self, count: usize, is_error: bool) {
        for known in self.releasing.drain(..count.min(self.releasing.len())) {
            match is_error {
                true => self.grants.push_back(known),
                false => self.name_bytes -= known.name.len(),
            }
        }
    }

    pub fn renewed(&mut self, db: u32, resource: &[u8], fence: Fence, lease_ms: u64, now_ms: u64) {
        if let Some(at) = self.find(db, resource, fence) {
            self.grants[at].terms.lease_ms = lease_ms;
            self.grants[at].ends_ms = end_of(lease_ms, now_ms);
        }
    }

    /// Once no release is awaited. With each, whether its time is over.
    pub fn take(&mut self, now_ms: u64) -> impl Iterator<Item = (ToldGrant, bool)> {
        debug_assert!(self.releasing.is_empty());
        std::mem::take(self).grants.into_iter().map(move |DatedGrant { terms, name, ends_ms }| {
            let key = GrantKey { db: terms.db, resource: Bytes::copy_from_slice(&name), fence: terms.fence };
            let lease_ms = if terms.in_session { 0 } else { terms.lease_ms };
            let GrantTerms { in_session, user, .. } = terms;
            (ToldGrant { key, lease_ms, in_session, user }, ends_ms <= now_ms)
        })
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.releasing.is_empty()
    }

    /// What they take in memory.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.name_bytes + self.all().count() * GRANT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(told: &mut ToldGrants, fence: u64, lease_ms: u64, now_ms: u64) {
        let terms =
            GrantTerms { db: 0, fence: Fence(fence), lease_ms, in_session: false, user: UserTag::DEFAULT };
        told.add(b"name", terms, now_ms);
    }

    fn fences(told: &mut ToldGrants) -> Vec<u64> {
        told.take(0).map(|(grant, _)| grant.key.fence.0).collect()
    }

    #[test]
    fn what_is_released_is_forgotten() {
        let mut told = ToldGrants::default();
        (1..=3).for_each(|fence| add(&mut told, fence, 100, 0));
        assert!(told.releases(0, b"name", Fence(2)));
        assert!(!told.releases(0, b"other", Fence(3)));
        assert!(!told.releases(1, b"name", Fence(3)));
        assert_eq!(told.held_bytes(), 3 * (GRANT_BYTES + 4));
        told.released(1, false);
        assert_eq!(told.held_bytes(), 2 * (GRANT_BYTES + 4));
        assert_eq!(fences(&mut told), [1, 3]);
        assert_eq!(told.held_bytes(), 0);
    }

    #[test]
    fn what_may_not_have_been_released_is_known_again() {
        let mut told = ToldGrants::default();
        (1..=4).for_each(|fence| add(&mut told, fence, 100, 0));
        [3, 1, 2].into_iter().for_each(|fence| assert!(told.releases(0, b"name", Fence(fence))));
        told.released(1, true);
        told.released(2, false);
        assert_eq!(told.held_bytes(), 2 * (GRANT_BYTES + 4));
        // `RESET` has forgotten what was asked before it.
        told.released(1, true);
        assert_eq!(fences(&mut told), [4, 3]);
    }

    #[test]
    fn those_whose_time_is_over_make_room() {
        let mut told = ToldGrants::default();
        add(&mut told, 1, 0, 0);
        add(&mut told, 2, 10, 0);
        told.renewed(0, b"name", Fence(2), 1_000_000, 5);
        (3..10_000).for_each(|fence| add(&mut told, fence, 10, fence));
        assert!(told.held_bytes() < 3 * SWEEP_MIN * (GRANT_BYTES + 4));
        assert_eq!(fences(&mut told)[..2], [1, 2]);
    }

    #[test]
    fn what_is_told_twice_is_known_once() {
        let mut told = ToldGrants::default();
        (1..=3).for_each(|fence| add(&mut told, fence, 10, 0));
        add(&mut told, 2, 100, 5);
        told.renewed(0, b"name", Fence(2), 1_000, 6);
        assert!(told.releases(0, b"name", Fence(3)));
        add(&mut told, 3, 10, 7);
        told.released(1, false);
        let terms =
            GrantTerms { db: 1, fence: Fence(3), lease_ms: 10, in_session: false, user: UserTag::DEFAULT };
        told.add(b"name", terms, 8);
        told.forget(0, b"name", Fence(3));
        assert_eq!(told.held_bytes(), 3 * (GRANT_BYTES + 4));
        let taken: Vec<_> = told.take(500).map(|(grant, is_over)| (grant.key.fence.0, is_over)).collect();
        assert_eq!(taken, [(1, true), (2, false), (3, true)]);
    }

    #[test]
    fn those_whose_time_is_over_are_told_apart() {
        let mut told = ToldGrants::default();
        add(&mut told, 1, 10, 0);
        add(&mut told, 2, 11, 0);
        add(&mut told, 3, 0, 0);
        let taken: Vec<bool> = told.take(10).map(|(_, is_over)| is_over).collect();
        assert_eq!(taken, [true, false, false]);
    }

    #[test]
    fn they_are_bounded() {
        let mut told = ToldGrants::default();
        for fence in 1..=10_000 {
            add(&mut told, fence, 0, 0);
            assert!(told.held_bytes() <= 2 * TOLD_MIN * (GRANT_BYTES + 4));
        }
        let known = fences(&mut told);
        assert!(known.len() >= TOLD_MIN && known.ends_with(&[9_999, 10_000]));
    }

    #[test]
    fn what_is_over_or_told_again_makes_nobody_forget_what_is_held() {
        let mut told = ToldGrants::default();
        (1..=300).for_each(|fence| add(&mut told, fence, 10, 0));
        add(&mut told, 1_000, 100_000, 20);
        (0..10_000).for_each(|round| add(&mut told, 2_000 + round, 10, 20 + round));
        (0..1_000).for_each(|_| add(&mut told, 20_000, 10_000, 30_000));
        assert_eq!(fences(&mut told)[0], 1_000);
    }
}
