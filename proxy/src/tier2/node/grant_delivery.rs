//! Delivery of grants: a client learns of a grant only while it is still the holder, with the remaining ttl.
//!
//! A node answers its clients from its own apply, and may apply late: it was paused, partitioned, or its messages are slow.
//! The logical clock never runs faster than a monotonic clock, and a request is stamped after it was submitted; so each
//! applied request of this node bounds what the logical clock can be by now ([`ClockBound`]). If a grant's entry may be
//! older than [`PROMPT_MS`], the grant is held back, and the node sends a command without effect through the log (a barrier,
//! like a ReadIndex that also brings the time). When the barrier is applied, the state is at least as new as the barrier:
//! a grant that has ended is answered nil, another with its remaining ttl. Normally grants are prompt and sent unchanged.
//!
//! Where nothing may be left although the lock stands (the barrier took longer than the ttl), another barrier is sent, until time is
//! left or the lock has ended. It is not released: the owner who asked again, or who converted its hold, knows of it and may be renewing it
//! elsewhere. For the same reason the locks that stand of a multi-lock are not released where others of it have ended: the answer is
//! `INDETERMINATE`.
//!
//! A renewal is told by the same rule:
//!
//! - It is still the holder's: `[1, ttl]` with what is left. It is never told as `expired` while the lock is held.
//! - It has ended: the reason that a release would be told now.
//! - A release behind it on the same connection has ended it: `[1, ttl]`, since the client's own commands take effect in order.
//!
//! # Caveats
//!
//! A grant inside `MULTI` is sent unchanged, as is the `OK` of `SET NX`: their clients count the ttl from when they sent the command.

use crate::node_api::{ConnectionId, Ticket};
use crate::tier2::node::Node;
use crate::tier2::refusals;
use crate::tier2::requests::pending::AnsweredRequest;
use bytes::Bytes;
use redfence_core::machine::Command;
use redfence_core::mutant;
use redfence_core::reply::Reply;
use redfence_core::types::Fence;

/// A grant delivered within this time of its stamp is sent unchanged.
const PROMPT_MS: u64 = 250;
/// Lower bound of the allowed delay for short ttls: a commit takes this long.
const NEVER_LATE_MS: u64 = 20;
/// Bounds older than one to two of these are forgotten, because no two clocks run at the same rate.
const BOUND_AGE_MS: u64 = 10_000;

#[derive(Debug, Default)]
pub(in crate::tier2) struct GrantDelivery {
    bound: ClockBound,
    held_back: Vec<HeldGrant>,
}

/// How far ahead of this node's monotonic clock the logical clock can be. Two ages, so that old bounds go.
#[derive(Debug, Default)]
struct ClockBound {
    current: Option<i64>,
    previous: Option<i64>,
    began_ms: u64,
}

/// A grant whose client is not told yet.
#[derive(Debug)]
struct HeldGrant {
    ticket: Ticket,
    reply: Reply,
    locks: Vec<GrantedLock>,
    connection: ConnectionId,
    /// The logical time of its entry.
    stamped_ms: u64,
    deadline_ms: u64,
    /// The sequence number of the barrier command; 0 if none was sent yet.
    barrier: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct GrantedLock {
    db: u32,
    name: Bytes,
    fence: Fence,
}

impl ClockBound {
    /// An entry stamped `logical_ms` holds what was submitted at `submitted_ms` on this node's clock.
    fn note(&mut self, logical_ms: u64, submitted_ms: u64, now_ms: u64) {
        if now_ms.saturating_sub(self.began_ms) >= BOUND_AGE_MS {
            self.previous = self.current.take();
            self.began_ms = now_ms;
        }
        let ahead_ms = logical_ms as i64 - submitted_ms as i64;
        self.current = Some(self.current.map_or(ahead_ms, |current| current.min(ahead_ms)));
    }

    /// The most the logical clock can show now.
    fn logical_ms_max(&self, now_ms: u64) -> Option<u64> {
        let ahead_ms = self.current.into_iter().chain(self.previous).min()?;
        Some((now_ms as i64 + ahead_ms).max(0) as u64)
    }
}

impl GrantDelivery {
    pub(in crate::tier2) fn is_empty(&self) -> bool {
        self.held_back.is_empty()
    }

    /// The client is gone. Its grant stays held, like any other.
    pub(in crate::tier2) fn cancel(&mut self, ticket: Ticket) {
        self.held_back.retain(|held| held.ticket != ticket);
    }

    fn take(&mut self, which: impl Fn(&HeldGrant) -> bool) -> Vec<HeldGrant> {
        let (taken, kept) = std::mem::take(&mut self.held_back).into_iter().partition(which);
        self.held_back = kept;
        taken
    }
}

impl Node {
    /// The machine has answered a request of this node in the entry that was just applied.
    pub(in crate::tier2) fn answer_own(&mut self, seq: u64, reply: Reply) {
        let Some(done) = self.pending.answered(seq) else { return };
        let now_ms = self.now.monotonic_ms();
        if let Some(submitted_ms) = done.submitted_ms {
            self.grant_delivery.bound.note(self.machine.logical_ms(), submitted_ms, now_ms);
        }
        if done.ticket.is_none() && !self.grant_delivery.is_empty() {
            self.tell_after(seq);
        }
        let late_ms = self.late_ms();
        self.tell(done, reply, late_ms);
    }

    /// As [`Node::answer_own`], for an answer out of an entry that this node never saw.
    pub(in crate::tier2) fn answer_own_from_memory(&mut self, seq: u64, reply: Reply) {
        if let Some(done) = self.pending.answered(seq) {
            self.tell(done, reply, None);
        }
    }

    /// A request of this node came to stand in a queue.
    pub(in crate::tier2) fn note_stamp_of(&mut self, submitted_ms: u64) {
        self.grant_delivery.bound.note(self.machine.logical_ms(), submitted_ms, self.now.monotonic_ms());
    }

    /// How long ago the newest applied entry may have been stamped. `None`: nobody knows.
    fn late_ms(&self) -> Option<u64> {
        let now_max_ms = self.grant_delivery.bound.logical_ms_max(self.now.monotonic_ms())?;
        Some(now_max_ms.saturating_sub(self.machine.logical_ms()))
    }

    fn tell(&mut self, done: AnsweredRequest, reply: Reply, late_ms: Option<u64>) {
        let Some(ticket) = done.ticket else { return };
        let is_prompt = |ttl_ms: u64| {
            let allowed_ms =
                if ttl_ms == 0 { PROMPT_MS } else { (ttl_ms / 2).clamp(NEVER_LATE_MS, PROMPT_MS) };
            late_ms.is_some_and(|late_ms| late_ms <= allowed_ms)
        };
        let locks = match lease_ms(&reply) {
            None => None,
            Some(ttl_ms) if is_prompt(ttl_ms) => None,
            Some(_) => locks_of(&done.blob, &reply),
        };
        if !self.grant_delivery.is_empty() {
            self.tell_renewals_before_release(&done, &reply);
        }
        match locks {
            None => self.out.replies.push((ticket, reply)),
            Some(locks) => self.grant_delivery.held_back.push(HeldGrant {
                ticket,
                reply,
                locks,
                connection: done.connection,
                stamped_ms: self.machine.logical_ms(),
                deadline_ms: done.deadline_ms,
                barrier: 0,
            }),
        }
    }

    /// Renewals of a lock that their own connection has released by now.
    fn tell_renewals_before_release(&mut self, done: &AnsweredRequest, reply: &Reply) {
        let released = released_by(&done.blob, reply);
        if released.is_empty() || done.connection == 0 {
            return;
        }
        let told = self.grant_delivery.take(|held| {
            let is_renewal = matches!(held.reply, Reply::Renewed { .. });
            is_renewal && held.connection == done.connection && released.contains(&held.locks[0])
        });
        let now_max_ms = self.now_max_ms();
        for held in told {
            let ends_ms = held.stamped_ms.saturating_add(lease_ms(&held.reply).unwrap_or(0));
            let left_ms = ends_ms.saturating_sub(now_max_ms).max(1);
            self.out.replies.push((held.ticket, with_ttl(&held.reply, left_ms)));
        }
    }

    /// Sends one barrier for all grants held back since the last one; again if a barrier was lost.
    pub(in crate::tier2) fn send_grant_barrier(&mut self) {
        let mut without_barrier = false;
        for held in &mut self.grant_delivery.held_back {
            if held.barrier == 0 || !self.pending.is_unapplied(held.barrier) {
                held.barrier = 0;
                without_barrier = true;
            }
        }
        if without_barrier && !self.removed {
            let barrier = self.submit_own(&Command::SessionsTouch { ids: Default::default() });
            let without_barrier = self.grant_delivery.held_back.iter_mut().filter(|held| held.barrier == 0);
            without_barrier.for_each(|held| held.barrier = barrier);
        }
    }

    /// A barrier was applied: the state is at least as new as it.
    fn tell_after(&mut self, barrier: u64) {
        for held in self.grant_delivery.take(|held| held.barrier == barrier) {
            match self.what_is_left(&held) {
                Some(reply) => self.out.replies.push((held.ticket, reply)),
                None => self.grant_delivery.held_back.push(HeldGrant { barrier: 0, ..held }),
            }
        }
    }

    /// The most the logical clock can show by now.
    fn now_max_ms(&self) -> u64 {
        let logical_ms = self.machine.logical_ms();
        let now_max_ms = self.grant_delivery.bound.logical_ms_max(self.now.monotonic_ms());
        now_max_ms.unwrap_or(logical_ms).max(logical_ms)
    }

    /// What to tell after a barrier. `None`: that takes another one.
    fn what_is_left(&self, held: &HeldGrant) -> Option<Reply> {
        let now_max_ms = self.now_max_ms();
        let ends_ms = |lock: &GrantedLock| self.machine.held_until_ms(lock.db, &lock.name, lock.fence);
        let left_ms =
            |lock: &GrantedLock| ends_ms(lock).map_or(0, |ends_ms| ends_ms.saturating_sub(now_max_ms));
        let left_ms = held.locks.iter().map(left_ms).min();
        match left_ms.unwrap_or(0) {
            0 if matches!(held.reply, Reply::Renewed { .. }) => {
                let lock = &held.locks[0];
                if ends_ms(lock).is_some() || self.is_being_released(lock, held.connection) {
                    return None;
                }
                Some(Reply::Refused(self.machine.reason_against(lock.db, &lock.name, lock.fence)))
            }
            0 => {
                match held.locks.iter().filter(|lock| ends_ms(lock).is_some()).count() {
                    0 => Some(Reply::Nil),
                    standing if standing == held.locks.len() => None,
                    // Not ours to release: its owner may have asked for it again at another node, and been told.
                    _ => Some(refusals::indeterminate()),
                }
            }
            _ if mutant!(ToldInFull) => Some(held.reply.clone()),
            left_ms => Some(with_ttl(&held.reply, left_ms)),
        }
    }

    /// A release by this connection is under way, or was applied in the entry that is being answered.
    fn is_being_released(&self, lock: &GrantedLock, connection: ConnectionId) -> bool {
        connection != 0
            && self.pending.unapplied_of(connection).any(|blob| match Command::decode(blob) {
                Some(Command::Release { db, resource, fence }) => {
                    (db, resource, fence) == (lock.db, &lock.name[..], lock.fence)
                }
                Some(Command::MRelease { db, pairs }) => {
                    db == lock.db && pairs.contains(&(&lock.name[..], lock.fence))
                }
                _ => false,
            })
    }

    /// Ends held grants whose clients waited too long for the barrier.
    pub(in crate::tier2) fn give_up_held_back(&mut self, now_ms: u64) {
        for held in self.grant_delivery.take(|held| held.deadline_ms <= now_ms) {
            self.out.replies.push((held.ticket, refusals::indeterminate()));
        }
    }
}

/// The ttl that a grant or a renewal tells its client.
fn lease_ms(reply: &Reply) -> Option<u64> {
    if let Reply::Renewed { ttl_ms } = reply {
        return Some(*ttl_ms);
    }
    reply.granted().map(|(_, ttl_ms)| ttl_ms)
}

/// What a release has ended.
fn released_by(blob: &[u8], reply: &Reply) -> Vec<GrantedLock> {
    let lock = |db, name: &[u8], fence| GrantedLock { db, name: Bytes::copy_from_slice(name), fence };
    match (reply, Command::decode(blob)) {
        (Reply::Released, Some(Command::Release { db, resource, fence })) => vec![lock(db, resource, fence)],
        (Reply::Array(replies), Some(Command::MRelease { db, pairs })) => pairs
            .iter()
            .zip(replies)
            .filter(|(_, reply)| **reply == Reply::Released)
            .map(|((name, fence), _)| lock(db, name, *fence))
            .collect(),
        _ => Vec::new(),
    }
}

/// What was granted or renewed, if the command is an acquire or a renewal.
fn locks_of(blob: &[u8], reply: &Reply) -> Option<Vec<GrantedLock>> {
    let lock = |db, name: &[u8], fence| GrantedLock { db, name: Bytes::copy_from_slice(name), fence };
    match (Command::decode(blob)?.without_user(), reply) {
        (
            Command::Acquire { db, resource, .. }
            | Command::AcquireWith { db, resource, .. }
            | Command::Convert { db, resource, .. },
            Reply::Granted { fence, .. },
        ) => Some(vec![lock(db, resource, *fence)]),
        (Command::Renew { db, resource, fence, .. }, Reply::Renewed { .. }) => {
            Some(vec![lock(db, resource, fence)])
        }
        (
            Command::MAcquire { db, resources, .. } | Command::MAcquireShared { db, resources, .. },
            Reply::GrantedMany { fences, .. },
        ) if fences.len() == resources.len() => {
            Some(resources.iter().zip(fences).map(|(name, fence)| lock(db, name, *fence)).collect())
        }
        _ => None,
    }
}

/// A ttl of 0 is bound to a session and has no end of its own.
fn with_ttl(reply: &Reply, left_ms: u64) -> Reply {
    let mut reply = reply.clone();
    if let Reply::Granted { ttl_ms, .. } | Reply::GrantedMany { ttl_ms, .. } | Reply::Renewed { ttl_ms } =
        &mut reply
    {
        *ttl_ms = left_ms.min(*ttl_ms);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_tightest_of_late_and_forgets() {
        let mut bound = ClockBound::default();
        assert_eq!(bound.logical_ms_max(5), None);
        bound.note(1_000, 50_000, 50_004);
        assert_eq!(bound.logical_ms_max(50_004), Some(1_004));
        // It came back late: a looser bound, which does not count.
        bound.note(1_010, 50_006, 54_000);
        assert_eq!(bound.logical_ms_max(54_000), Some(5_000));
        // The logical clock stood still meanwhile.
        bound.note(1_020, 54_001, 54_002);
        assert_eq!(bound.logical_ms_max(54_002), Some(1_021));
        // Another clock that runs faster is followed after a while.
        for seconds in 55..80 {
            bound.note(1_000 * (seconds - 53) + 40, 1_000 * seconds, 1_000 * seconds);
        }
        assert_eq!(bound.logical_ms_max(80_000), Some(27_040));
    }
}
