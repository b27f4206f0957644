//! `LOCK.INFO`'s holders, `LOCK.EXPLAIN`, and what a session holds: looks at a lock for people.

use crate::machine::history::{is_ahead, Percentiles, WaitSum};
use crate::machine::locks::several::Hold;
use crate::machine::queue::waiter::Waiter;
use crate::machine::sessions::session::Session;
use crate::machine::store::deadlines::NEVER;
use crate::machine::{Db, LockSlot, Machine, SessionSlot};
use crate::reply::{HolderInfo, Reply};
use crate::types::{Fence, LockKind, LockMode, SessionId, SessionScope};
use ::bytes::Bytes;
use std::collections::BTreeSet;

/// Holders and waiters that one reply shows.
pub(crate) const SHOWN_MAX: usize = 1_000;
/// Names that one answer about contention shows.
pub const CONTENDED_MAX: usize = 100;
/// Links of a chain of sessions that are followed.
const CHAIN_MAX: usize = 16;
/// Holders whose chains are followed.
const CHAINS_MAX: usize = 64;

impl Machine {
    /// How long ago a grant with this fence was made: fences count microseconds, unless they ran ahead of the clock.
    pub(crate) fn held_ms_of_fence(&self, fence: Fence) -> u64 {
        self.held_us_of_fence(fence) / 1_000
    }

    pub(crate) fn held_us_of_fence(&self, fence: Fence) -> u64 {
        self.clock.wall_us.saturating_sub(fence.0)
    }

    /// The same where it is to be shown: `None` where the fence tells nothing, as for an hour after a restore.
    fn known_held_ms(&self, fence: Fence) -> Option<u64> {
        (!is_ahead(fence, self.clock.wall_us)).then(|| self.held_ms_of_fence(fence))
    }

    /// The holds of a lock that stand, oldest first. It was not flushed.
    fn live_holds(&self, slot: LockSlot) -> impl Iterator<Item = Hold> + '_ {
        let exclusive = self.locks[slot].is_exclusive().then_some(Hold::Exclusive(slot));
        let several = self.holders_of(slot).filter(|holder| self.is_live_holder(*holder));
        exclusive.into_iter().chain(several.map(Hold::Several))
    }

    /// Everybody who holds a lock now. `late_ms`: see [`Machine::query_later`].
    /// Sessions beyond `scope` are shown as none.
    pub(crate) fn holder_infos(&self, slot: LockSlot, scope: SessionScope, late_ms: u64) -> Vec<HolderInfo> {
        match self.is_held_now(slot) {
            true => {
                let holds = self.live_holds(slot).take(SHOWN_MAX);
                holds.map(|hold| self.holder_info(slot, hold, scope, late_ms)).collect()
            }
            false => Vec::new(),
        }
    }

    fn holder_info(&self, slot: LockSlot, hold: Hold, scope: SessionScope, late_ms: u64) -> HolderInfo {
        let session = self.session_in(scope, self.session_of_hold(hold)).map(|session| session.id);
        let ttl_ms = match self.end_of(hold) {
            NEVER => -1,
            ends_ms => ends_ms.saturating_sub(self.clock.logical_ms).saturating_sub(late_ms) as i64,
        };
        let (owner, value, held_ms, kind) = match hold {
            Hold::Exclusive(_) => {
                let owner = match self.values.get(&slot) {
                    // A hash or a list is nobody's name: its type is shown.
                    Some(value) => Bytes::from_static(value.view().type_name().as_bytes()),
                    None => Bytes::copy_from_slice(self.locks[slot].owner()),
                };
                let value = self.attached.get(&slot).map_or(&[][..], |value| value);
                (owner, value, self.known_held_ms(self.locks[slot].fence), LockKind::Exclusive)
            }
            Hold::Several(holder) => {
                let holder = &self.holders[holder];
                let held_ms = self.clock.logical_ms.saturating_sub(holder.since_ms);
                (Bytes::copy_from_slice(&holder.owner), &*holder.value, Some(held_ms), holder.kind)
            }
        };
        HolderInfo {
            owner,
            fence: self.fence_of(hold),
            session,
            ttl_ms,
            held_ms: held_ms.map(|held_ms| held_ms + late_ms),
            kind,
            value: (!value.is_empty()).then(|| Bytes::copy_from_slice(value)),
        }
    }

    pub(crate) fn explain(&self, db: Db, name: &[u8], scope: SessionScope, late_ms: u64) -> Reply {
        let pair = |key: &'static str, value: Reply| (Reply::Text(key), value);
        let slot = self.names.find(&self.locks, db, name);
        let holders = slot.map(|slot| self.holder_infos(slot, scope, late_ms)).unwrap_or_default();
        let waiters: Vec<&Waiter> =
            slot.map(|slot| self.live_waiters(&self.locks[slot]).collect()).unwrap_or_default();
        let queue = waiters.iter().take(SHOWN_MAX).enumerate();
        let queue = queue.map(|(at, waiter)| self.queue_row(at + 1, waiter, scope, late_ms)).collect();
        let recent = slot.map(|slot| self.history.of(slot)).unwrap_or_default();
        let number = |value: Option<u64>| value.map_or(Reply::Nil, |value| Reply::Int(value as i64));
        let p50 = |of: Option<Percentiles>| number(of.map(|of| of.p50_ms));
        let p99 = |of: Option<Percentiles>| number(of.map(|of| of.p99_ms));
        let eta_ms = self.eta_ms(&holders, &waiters, recent.holds);
        let blocked_by = slot.map(|slot| self.chains(slot, scope, late_ms)).unwrap_or_default();
        Reply::Map(vec![
            pair("holders", Reply::Array(holders.iter().map(HolderInfo::to_reply).collect())),
            pair("queue", Reply::Array(queue)),
            pair("blocked_by", Reply::Array(blocked_by)),
            pair("hold_p50_ms", p50(recent.holds)),
            pair("hold_p99_ms", p99(recent.holds)),
            pair("wait_p50_ms", p50(recent.waits)),
            pair("wait_p99_ms", p99(recent.waits)),
            pair("eta_ms", number(eta_ms)),
        ])
    }

    /// The names most waited for lately, as this node has seen it since its start: an array of maps, most waited for first.
    pub(crate) fn contention(&self, count: usize) -> Reply {
        let now_ms = self.clock.logical_ms;
        let most = self.history.most_waited_for(count.min(CONTENDED_MAX), now_ms);
        let number = |value: u64| Reply::Int(i64::try_from(value).unwrap_or(i64::MAX));
        let optional = |value: Option<u64>| value.map_or(Reply::Nil, number);
        let row = |(slot, sum): (LockSlot, WaitSum)| {
            let lock = self.locks.get(slot)?;
            let recent = self.history.of(slot);
            Some(Reply::Map(vec![
                (Reply::Text("db"), number(u64::from(lock.db()))),
                (Reply::Text("resource"), Reply::bulk(lock.name())),
                (Reply::Text("waited_ms"), number(sum.ms)),
                (Reply::Text("waits"), number(sum.waits)),
                (Reply::Text("waiters"), number(u64::from(lock.queue.len))),
                (Reply::Text("held"), Reply::Int(i64::from(lock.is_held()))),
                (Reply::Text("wait_p50_ms"), optional(recent.waits.map(|waits| waits.p50_ms))),
                (Reply::Text("wait_p99_ms"), optional(recent.waits.map(|waits| waits.p99_ms))),
                (Reply::Text("hold_p50_ms"), optional(recent.holds.map(|holds| holds.p50_ms))),
                (Reply::Text("hold_p99_ms"), optional(recent.holds.map(|holds| holds.p99_ms))),
            ]))
        };
        Reply::Array(most.into_iter().filter_map(row).collect())
    }

    fn queue_row(&self, position: usize, waiter: &Waiter, scope: SessionScope, late_ms: u64) -> Reply {
        let mode = match waiter.converts == Fence(0) {
            true => waiter.kind.mode(),
            false => LockMode::Exclusive,
        };
        let waited_ms = self.clock.logical_ms - waiter.since_ms + late_ms;
        Reply::Map(vec![
            (Reply::Text("owner"), Reply::bulk(&waiter.owner)),
            (Reply::Text("session"), self.shown_session(scope, waiter.session)),
            (Reply::Text("mode"), Reply::Text(mode.as_str())),
            (Reply::Text("waited_ms"), Reply::Int(waited_ms as i64)),
            (Reply::Text("position"), Reply::Int(position as i64)),
        ])
    }

    fn session_in(&self, scope: SessionScope, session: SessionSlot) -> Option<&Session> {
        self.sessions.get(session).filter(|session| scope.includes(session.user))
    }

    fn shown_session(&self, scope: SessionScope, session: SessionSlot) -> Reply {
        self.session_in(scope, session).map_or(Reply::Nil, |session| Reply::bulk(session.id.to_string()))
    }

    /// When the last in line could have it: what is left of an ordinary hold, and one for every turn in the queue. Readers side by
    /// side take one turn. 0 where nobody holds it or waits; nobody knows without a past.
    fn eta_ms(
        &self,
        holders: &[HolderInfo],
        waiters: &[&Waiter],
        recent: Option<Percentiles>,
    ) -> Option<u64> {
        if holders.is_empty() && waiters.is_empty() {
            return Some(0);
        }
        let ordinary_ms = recent?.p50_ms;
        let left_ms =
            holders.iter().map(|holder| ordinary_ms.saturating_sub(holder.held_ms.unwrap_or(0))).max();
        let mut turns = 0;
        let mut before = None;
        for waiter in waiters {
            let mode = waiter.kind.mode();
            turns += u64::from(!(mode == LockMode::Shared && before == Some(LockMode::Shared)));
            before = Some(mode);
        }
        // The last in line needs no hold of its own to be over.
        Some(left_ms.unwrap_or(0) + ordinary_ms * turns.saturating_sub(1))
    }

    /// For each holder with a session that waits itself: what it waits for, who has that, what those wait for, and so on.
    /// What other users' sessions wait for is not told: the asker may have no right on those names.
    fn chains(&self, slot: LockSlot, scope: SessionScope, late_ms: u64) -> Vec<Reply> {
        let mut seen = BTreeSet::new();
        let sessions = self.sessions_ahead(slot, crate::machine::QueueEntrySlot::NONE);
        let sessions = sessions.map(|(_, session)| session);
        // One session may hold it several times. Most of many holders wait for nothing.
        let waiting =
            sessions.filter(|session| self.first_wait(scope, *session).is_some() && seen.insert(*session));
        let chains = waiting.take(CHAINS_MAX).map(|session| self.chain(session, scope, late_ms));
        chains.filter(|chain| !chain.is_empty()).map(Reply::Array).collect()
    }

    fn chain(&self, first: SessionSlot, scope: SessionScope, late_ms: u64) -> Vec<Reply> {
        let (mut links, mut seen, mut at) = (Vec::new(), vec![first], first);
        while let Some((waiter, slot)) = self.first_wait(scope, at).filter(|_| links.len() < CHAIN_MAX) {
            let next = self.blocker_of(slot, at);
            let waited_ms = self.clock.logical_ms - waiter.since_ms + late_ms;
            // The hold of that session; else one that is not the waiter's own.
            let is_next = |hold: &Hold| next.is_some() && self.session_of_hold(*hold) == next;
            let is_other = |hold: &Hold| self.session_of_hold(*hold) != at;
            let held_by = self.live_holds(slot).find(is_next);
            let held_by = held_by.or_else(|| self.live_holds(slot).filter(|_| next.is_none()).find(is_other));
            let held_by = held_by.filter(|_| self.is_held_now(slot));
            let held_by = held_by.map(|hold| self.holder_info(slot, hold, scope, late_ms));
            links.push(Reply::Map(vec![
                (Reply::Text("session"), self.shown_session(scope, at)),
                (Reply::Text("waits_for"), Reply::bulk(self.locks[slot].name())),
                (Reply::Text("mode"), Reply::Text(waiter.kind.mode().as_str())),
                (Reply::Text("waited_ms"), Reply::Int(waited_ms as i64)),
                (Reply::Text("held_by"), held_by.map_or(Reply::Nil, |holder| Reply::Bulk(holder.owner))),
                (Reply::Text("held_by_session"), self.shown_session(scope, next)),
            ]));
            if next.is_none() || seen.contains(&next) {
                break;
            }
            seen.push(next);
            at = next;
        }
        links
    }

    /// The oldest wait of a session.
    pub(crate) fn first_wait(
        &self,
        scope: SessionScope,
        session: SessionSlot,
    ) -> Option<(&Waiter, LockSlot)> {
        let waiter = &self.waiters[self.session_in(scope, session)?.waiters.first()?];
        let taken = |slot: &LockSlot| self.locks[*slot].is_held();
        let slots = || waiter.queue_entries.iter().map(|entry| self.queue_entries[*entry].lock);
        Some((waiter, slots().find(taken).or_else(|| slots().next())?))
    }

    /// A session that stands in the way at a lock, holders first.
    fn blocker_of(&self, slot: LockSlot, waiting: SessionSlot) -> SessionSlot {
        let ahead = self.sessions_ahead(slot, crate::machine::QueueEntrySlot::NONE);
        let others = ahead.map(|(_, session)| session).filter(|session| *session != waiting);
        others.take(SHOWN_MAX).find(|session| session.is_some()).unwrap_or(SessionSlot::NONE)
    }

    /// What a session holds: `[resource, fence, database]` each, in the order of their grants by mode.
    pub(crate) fn session_locks(&self, id: SessionId, scope: SessionScope) -> Reply {
        let found = self.session_ids.get(&id).and_then(|slot| self.session_in(scope, *slot));
        let Some(session) = found.filter(|session| !self.has_passed(session.deadline_ms)) else {
            return crate::grammar::errors::no_session().into();
        };
        let row = |slot: LockSlot, fence: Fence| {
            let lock = &self.locks[slot];
            let (fence, db) = (Reply::Int(fence.0 as i64), Reply::Int(i64::from(lock.db())));
            Reply::Array(vec![Reply::bulk(lock.name()), fence, db])
        };
        let exclusive = session.locks.walk(&self.locks).map(|slot| (slot, self.locks[slot].fence));
        let several = session.holders.walk(&self.holders);
        let several = several.map(|holder| (self.holders[holder].lock, self.holders[holder].fence));
        let standing = exclusive.chain(several).filter(|(slot, fence)| {
            let lock = &self.locks[*slot];
            self.held_until_ms(lock.db(), lock.name(), *fence).is_some()
        });
        Reply::Array(standing.map(|(slot, fence)| row(slot, fence)).collect())
    }
}
