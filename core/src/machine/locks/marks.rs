//! `FENCE.*` where no Redis is behind: the high-water marks as part of the replicated state, one truth on all nodes.
//!
//! A mark only rises. One that was not used for `mark-retention-ms` is folded into one floor, below which every fence of a name
//! without a mark is stale: forgetting never lets a stale writer in. After a restore all names rise to its fence floor, but for those
//! that are held: see [`Machine::fence_limit`]. A fence from the future would make every real one stale,
//! so it is refused: see [`Machine::check_future`].

use crate::grammar::{self, errors};
use crate::keyspace::errors as redis_errors;
use crate::keyspace::table::{self, Run};
use crate::machine::keys::redis::CallContext;
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::store::deadlines::NEVER;
use crate::machine::version::ClusterVersion;
use crate::machine::{version, Applied, Db, Machine, Words};
use crate::reply::{Refusal, Reply};
use crate::types::{passed_from_ms, Fence, FENCE_BOUND, RESOURCE_BYTES_MAX};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How far a fence may be ahead of the replicated clock and of the last fence of its name.
pub const FUTURE_US_MAX: u64 = 60_000_000;
/// What a mark costs beside its name, in the accounts of memory.
pub const MARK_OVERHEAD_BYTES: usize = 160;

/// Keyspace and name.
type Key = (Db, Arc<[u8]>);
pub(crate) type MarkMap = imbl::OrdMap<Key, HighWaterMark>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HighWaterMark {
    pub(crate) fence: Fence,
    /// Logical time of its last use.
    used_ms: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// Persistent: a copy for a snapshot costs nothing.
    marks: MarkMap,
    /// At least every mark that was forgotten.
    floor: Fence,
    /// The fence floor of the restore that this cluster began with; 0 where it began with nothing. All fences of its first day are
    /// below it, and what became of them after the backup nobody knows: they are stale, but for names that are held since.
    restored: Fence,
    /// The floor as it was before that restore, for names that are held since: their marks are as they were. `None` without a restore,
    /// and after one at cluster version 1, where all marks rose.
    floor_of_held: Option<Fence>,
    /// By last use, oldest first. Worked out from the marks.
    used: BTreeSet<(u64, Key)>,
    bytes: usize,
}

impl Marks {
    pub(crate) fn len(&self) -> usize {
        self.marks.len()
    }

    /// For the accounts of memory: names and overhead.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn find(&self, db: Db, resource: &[u8]) -> Option<HighWaterMark> {
        self.marks.get(&(db, Arc::from(resource))).copied()
    }

    /// The fence below which all are stale.
    fn limit(&self, db: Db, resource: &[u8]) -> Fence {
        self.find(db, resource).map_or(self.floor, |mark| mark.fence)
    }

    fn raise(&mut self, db: Db, resource: &[u8], fence: Fence, now_ms: u64) {
        let key = (db, Arc::from(resource));
        self.insert(key, HighWaterMark { fence, used_ms: now_ms });
    }

    fn insert(&mut self, key: Key, mark: HighWaterMark) {
        let weight = weight(&key);
        match self.marks.insert(key.clone(), mark) {
            Some(before) => {
                self.used.remove(&(before.used_ms, key.clone()));
            }
            None => self.bytes += weight,
        }
        self.used.insert((mark.used_ms, key));
    }

    /// Below it every fence of a name without a mark is stale.
    pub(crate) fn floor(&self) -> Fence {
        self.floor
    }

    pub(crate) fn highest(&self) -> Fence {
        self.marks.values().map(|mark| mark.fence).max().unwrap_or_default().max(self.floor)
    }

    /// A new cluster begins with these marks: none is below its fence floor, but for those of names that are held (`kept`).
    fn refound(&mut self, floor: Fence, kept: Option<Vec<(Key, Fence)>>, now_ms: u64) {
        for (db, name) in self.marks.keys().cloned().collect::<Vec<_>>() {
            let known = self.limit(db, &name);
            self.raise(db, &name, known.max(floor), now_ms);
        }
        self.floor_of_held = kept.is_some().then_some(match self.floor_of_held {
            Some(floor_of_held) => floor_of_held,
            // What the floor was before a restore at cluster version 1 nobody knows.
            None if self.restored > Fence(0) => Fence(0),
            None => self.floor,
        });
        for ((db, name), fence) in kept.into_iter().flatten() {
            self.raise(db, &name, fence, now_ms);
        }
        self.floor = self.floor.max(floor);
        self.restored = floor;
    }

    /// When the mark that is folded next was used, and its fence.
    fn oldest(&self) -> Option<(u64, Fence)> {
        let (used_ms, key) = self.used.first()?;
        Some((*used_ms, self.marks.get(key)?.fence))
    }

    fn fold_oldest(&mut self) {
        let Some((_, key)) = self.used.pop_first() else { return };
        if let Some(mark) = self.marks.remove(&key) {
            self.floor = self.floor.max(mark.fence);
            self.floor_of_held = self.floor_of_held.map(|floor| floor.max(mark.fence));
            self.bytes -= weight(&key);
        }
    }

    /// The marks as they are, to be written piece by piece.
    pub(crate) fn image(&self) -> MarkMap {
        self.marks.clone()
    }

    pub(crate) fn write_floor(&self, out: &mut Vec<u8>, version: ClusterVersion) {
        put_varint(out, self.floor.0);
        put_varint(out, self.restored.0);
        if version >= version::SECOND {
            put_varint(out, self.floor_of_held.map_or(0, |floor| floor.0 + 1));
        }
    }

    pub(crate) fn read_floor(&mut self, reader: &mut Reader<'_>, version: ClusterVersion) -> Option<()> {
        let mut fence = || reader.varint().filter(|fence| *fence < FENCE_BOUND).map(Fence);
        (self.floor, self.restored) = (fence()?, fence()?);
        if version >= version::SECOND {
            self.floor_of_held = fence()?.0.checked_sub(1).map(Fence);
        }
        Some(())
    }

    /// One record of a snapshot.
    pub(crate) fn restore(&mut self, (key, mark): (Key, HighWaterMark)) -> Option<()> {
        let is_new = !self.marks.contains_key(&key);
        self.insert(key, mark);
        is_new.then_some(())
    }

    /// Sum and index, worked out anew.
    pub(crate) fn is_sound(&self) -> bool {
        self.used.len() == self.marks.len()
            && self.bytes == self.marks.keys().map(weight).sum::<usize>()
            && self.marks.iter().all(|(key, mark)| self.used.contains(&(mark.used_ms, key.clone())))
    }
}

fn weight(key: &Key) -> usize {
    key.1.len() + MARK_OVERHEAD_BYTES
}

pub(crate) fn put_mark(key: &Key, mark: &HighWaterMark, out: &mut Vec<u8>) {
    put_varint(out, u64::from(key.0));
    put_bytes(out, &key.1);
    put_varint(out, mark.fence.0);
    put_varint(out, mark.used_ms);
}

pub(crate) fn read_mark(reader: &mut Reader<'_>) -> Option<(Key, HighWaterMark)> {
    let (db, name) = (reader.varint_u32()?, reader.bytes()?);
    let fence = Fence(reader.varint().filter(|fence| (1..FENCE_BOUND).contains(fence))?);
    let used_ms = reader.varint()?;
    let fits = (1..=RESOURCE_BYTES_MAX).contains(&name.len());
    fits.then(|| ((db, Arc::from(name)), HighWaterMark { fence, used_ms }))
}

/// What `FENCE.*` makes of a fence.
enum Admission {
    /// Below this one all are stale.
    Stale { limit: Fence },
    /// The mark that its use leaves.
    Current { mark: Fence },
}

/// Whether `FENCE.CALL` may run a command: one of the keyspace, that takes so many words. The mark does not rise for any other.
pub fn check_guarded(argv: &[&[u8]]) -> Result<(), Refusal> {
    let Some(name) = argv.first() else { return Err(errors::wrong_arity(grammar::fence::CALL)) };
    let cannot = |why: &str| {
        let name = errors::shown(&name.to_ascii_lowercase());
        Err(Refusal::new(format!("ERR FENCE.CALL cannot run '{name}': {why}")))
    };
    if grammar::is_ours(name) {
        return cannot("it runs commands on plain keys alone");
    }
    match table::find(name) {
        Some(row) if row.is(table::SCRIPT) => cannot("scripts cannot be guarded on the correctness tier"),
        Some(row) if row.is(table::PUBSUB) || row.name == "select" => cannot("it is about the connection"),
        Some(row) if !row.takes(argv.len()) => Err(errors::wrong_arity(&String::from_utf8_lossy(name))),
        Some(row) => match row.run {
            Run::Here(_) => Ok(()),
            Run::Elsewhere => cannot("it is about the connection"),
        },
        None => Err(redis_errors::unknown_command(argv)),
    }
}

impl Machine {
    /// `FENCE.GET`: the fence below which `FENCE.CHECK` answers 0.
    pub(crate) fn mark_of(&self, db: Db, resource: &[u8]) -> Reply {
        let mark = match self.upgrade.version < version::SECOND {
            true => self.marks.find(db, resource).map_or(Fence(0), |mark| mark.fence),
            false => self.fence_limit(db, resource),
        };
        Reply::Int(mark.0 as i64)
    }

    /// Below it every fence of this name is stale. A name that is held since before a restore goes on with its mark as it was, for its
    /// holder's own fence alone ([`Machine::stale_below`]); what happened to others after the backup nobody knows, so for them it is
    /// the floor of the restore at least.
    fn fence_limit(&self, db: Db, resource: &[u8]) -> Fence {
        let Some(floor_of_held) = self.marks.floor_of_held else { return self.marks.limit(db, resource) };
        match self.is_held_up_to(db, resource, self.marks.restored) {
            true => self.marks.find(db, resource).map_or(floor_of_held, |mark| mark.fence),
            false => self.marks.limit(db, resource).max(self.marks.restored),
        }
    }

    /// The marks of a new cluster: see [`Marks::refound`].
    pub(crate) fn refound_marks(&mut self, floor: Fence) {
        let kept = (self.upgrade.version >= version::SECOND).then(|| {
            let held = self.marks.marks.keys().filter(|(db, name)| self.is_held_up_to(*db, name, floor));
            held.map(|(db, name)| ((*db, Arc::clone(name)), self.mark_kept(*db, name))).collect()
        });
        self.marks.refound(floor, kept, self.clock.logical_ms);
    }

    /// The mark with which a name that is held begins in a new cluster.
    fn mark_kept(&self, db: Db, resource: &[u8]) -> Fence {
        let limit = self.fence_limit(db, resource);
        let slot = self.names.find(&self.locks, db, resource);
        match slot.map(|slot| self.locks[slot].fence) {
            Some(fence) if self.is_passed_leniently(db, resource, fence, limit) => limit.min(fence),
            Some(_) | None => limit,
        }
    }

    /// After a restore at cluster version 1 the marks of held names are not known any more: their holders pass.
    fn is_passed_leniently(&self, db: Db, resource: &[u8], fence: Fence, limit: Fence) -> bool {
        let is_lenient = self.marks.floor_of_held.is_none() && limit <= self.marks.restored;
        is_lenient && self.is_held_with(db, resource, fence)
    }

    /// The fence that this one is behind, if it is stale. Below the floor of a restore only who holds the name since before it is
    /// not: the old cluster may have granted the name to others after the backup, up to that floor.
    fn stale_below(&self, db: Db, resource: &[u8], fence: Fence) -> Option<Fence> {
        let limit = self.fence_limit(db, resource);
        if fence < limit {
            return (!self.is_passed_leniently(db, resource, fence, limit)).then_some(limit);
        }
        let restored = self.marks.restored;
        let is_others = fence < restored && !self.is_held_with(db, resource, fence);
        (self.marks.floor_of_held.is_some() && is_others).then_some(restored)
    }

    pub(crate) fn fence_check(&mut self, db: Db, resource: &[u8], fence: Fence) -> Reply {
        match self.admit_fence(db, resource, fence) {
            Err(refusal) => refusal.into(),
            Ok(Admission::Stale { .. }) => Reply::Int(0),
            Ok(Admission::Current { mark }) => {
                self.marks.raise(db, resource, mark, self.clock.logical_ms);
                Reply::Int(1)
            }
        }
    }

    pub(crate) fn fence_call(
        &mut self,
        caller: CallContext,
        resource: &[u8],
        fence: Fence,
        argv: &[&[u8]],
        out: &mut Applied,
    ) -> Reply {
        let admitted = check_guarded(argv).and_then(|()| self.admit_fence(caller.db, resource, fence));
        match admitted {
            Err(refusal) => refusal.into(),
            Ok(Admission::Stale { limit }) => errors::stale_fence(fence.0, limit.0).into(),
            Ok(Admission::Current { mark }) => {
                let reply = self.run_guarded(caller, argv, out);
                let ran =
                    !matches!(&reply, Reply::Error(refusal) if matches!(refusal.code(), "OOM" | "MODE"));
                if ran {
                    self.marks.raise(caller.db, resource, mark, self.clock.logical_ms);
                }
                reply
            }
        }
    }

    /// As a transaction of one command: it never waits.
    fn run_guarded(&mut self, caller: CallContext, argv: &[&[u8]], out: &mut Applied) -> Reply {
        let words: Words<'_> = argv.iter().copied().collect();
        let mut reply = self.transaction(caller, &[], &[words], out);
        if let Reply::Array(replies) = &mut reply {
            return replies.pop().unwrap_or(Reply::Nil);
        }
        reply
    }

    /// Whether a fence is stale; refused where it cannot be real, or where there is no room for its mark.
    fn admit_fence(&self, db: Db, resource: &[u8], fence: Fence) -> Result<Admission, Refusal> {
        if resource.is_empty() || resource.len() > RESOURCE_BYTES_MAX {
            return Err(errors::resource_length());
        }
        if fence.0 == 0 || fence.0 >= FENCE_BOUND {
            return Err(errors::fence_range());
        }
        if self.is_fence_of_several(db, resource, fence) {
            return Err(errors::fence_of_several(fence.0));
        }
        self.check_future(db, resource, fence)?;
        if let Some(limit) = self.stale_below(db, resource, fence) {
            return Ok(Admission::Stale { limit });
        }
        let is_new = self.marks.find(db, resource).is_none();
        if is_new && self.marks.len() >= self.limits.marks_max {
            return Err(errors::too_many_marks(self.limits.marks_max));
        }
        // A known mark needs no room.
        if is_new {
            self.room_for(resource.len() + MARK_OVERHEAD_BYTES)?;
        }
        Ok(Admission::Current { mark: fence.max(self.fence_limit(db, resource)) })
    }

    /// Whether a fence is, or was as far as the lock remembers, that of one of several holders.
    pub(crate) fn is_fence_of_several(&self, db: Db, resource: &[u8], fence: Fence) -> bool {
        let Some(slot) = self.names.find(&self.locks, db, resource) else { return false };
        self.holder_index.with_fence(slot, fence).is_some() || self.locks[slot].ended_beside_others(fence)
    }

    fn is_held_with(&self, db: Db, resource: &[u8], fence: Fence) -> bool {
        let Some(slot) = self.names.find(&self.locks, db, resource) else { return false };
        let lock = &self.locks[slot];
        lock.is_held()
            && !lock.is_several()
            && lock.fence == fence
            && !self.is_flushed(lock)
            && !self.has_passed(lock.deadline_ms())
    }

    /// Whether somebody lives who holds a name, in any kind, under a fence no higher than this.
    fn is_held_up_to(&self, db: Db, resource: &[u8], most: Fence) -> bool {
        let Some(slot) = self.names.find(&self.locks, db, resource) else { return false };
        let lock = &self.locks[slot];
        if !lock.is_held() || self.is_flushed(lock) {
            return false;
        }
        if lock.is_several() {
            let holders = self.holders_of(slot).take_while(|holder| self.holders[*holder].fence <= most);
            return holders.into_iter().any(|holder| self.is_live_holder(holder));
        }
        let session_ends_ms = self.sessions.get(lock.session()).map_or(NEVER, |session| session.deadline_ms);
        lock.fence <= most && !self.has_passed(lock.deadline_ms().min(session_ends_ms))
    }

    fn check_future(&self, db: Db, resource: &[u8], fence: Fence) -> Result<(), Refusal> {
        let last = self.names.find(&self.locks, db, resource).map_or(Fence(0), |slot| self.locks[slot].fence);
        let last = last.max(self.floor);
        let most = last.0.max(self.clock.wall_us).saturating_add(FUTURE_US_MAX);
        if fence.0 > most {
            return Err(errors::future_fence(fence.0));
        }
        Ok(())
    }

    /// Marks unused for their time go into the floor, a bounded number per entry.
    pub(crate) fn fold_old_marks(&mut self) {
        for _ in 0..self.limits.idle_per_entry_max {
            match self.next_mark_fold_ms() {
                Some(at_ms) if at_ms <= self.clock.logical_ms => self.marks.fold_oldest(),
                Some(_) | None => break,
            }
        }
    }

    /// When the oldest mark is to be folded. The leader proposes `Expire` then.
    #[must_use]
    pub fn next_mark_fold_ms(&self) -> Option<u64> {
        let (used_ms, fence) = self.marks.oldest()?;
        let kept_until_ms = used_ms.saturating_add(self.settings.mark_retention_ms);
        Some(passed_from_ms(kept_until_ms).max(self.fold_after_ms(fence)))
    }

    /// A mark ahead of all fences that are issued now is not folded yet: the floor is for all names, and would make their true
    /// holders stale.
    fn fold_after_ms(&self, fence: Fence) -> u64 {
        if self.upgrade.version < version::SECOND {
            return 0;
        }
        let issued_us = self.clock.wall_us.max(self.floor.0).max(self.marks.floor().0);
        match fence.0.saturating_sub(issued_us) {
            0 => 0,
            ahead_us => self.clock.logical_ms.saturating_add(ahead_us.div_ceil(1_000)),
        }
    }

    /// Marks that are kept.
    #[must_use]
    pub fn marks_len(&self) -> usize {
        self.marks.len()
    }
}
