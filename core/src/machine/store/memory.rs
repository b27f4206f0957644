//! What the replicated state takes in bytes, counted exactly and with every change, and the limit on it (`max-memory`).
//!
//! Counted is all that a snapshot holds: names, owners, users' tags, values, waiters, sessions, members' grants, blocked clients, scripts, marks, and
//! the replies remembered for retries. Each record costs its bytes and a fixed overhead for its place in the tables. The count
//! depends on the state alone, so it is the same on every node and after a restore; the invariants recompute it.
//!
//! What would make the state larger than the limit is refused with `OOM`. What ends, moves or stretches something is not: a waiter
//! is charged when it queues, so that a hand-over needs no room. Records of free locks count as room: they are forgotten, oldest
//! first, when memory is short ([`Machine::forget_for_room`]).

use crate::grammar::errors;
use crate::keyspace::Value;
#[cfg(feature = "scripts")]
use crate::keyspace::View;
use crate::limits::KEY_OVERHEAD_BYTES;
use crate::machine::keys::blocked::Waiting;
use crate::machine::keys::members::Grants;
use crate::machine::locks::holder::Holder;
use crate::machine::locks::lock::{Lock, Phase, SavedLock};
use crate::machine::locks::several::GrantTerms;
use crate::machine::queue::waiter::Waiter;
use crate::machine::sessions::session::Session;
use crate::machine::{version, LockSlot, Machine, WaiterSlot};
use crate::reply::Refusal;
use crate::script::scripts::Sha;
use crate::types::{LockKind, OwnerIdentity, UserTag};

/// A record, its place in the index of names and among the deadlines.
const LOCK_BYTES: usize = KEY_OVERHEAD_BYTES;
/// A collection's place beside its record.
const VALUE_BYTES: usize = 96;
const WAITER_BYTES: usize = 192;
/// A place in one queue, and in the index of queued owners.
const QUEUE_ENTRY_BYTES: usize = 64;
/// A request that hangs on a waiter, and its place in the index of requests.
const REQUEST_BYTES: usize = 96;
const SESSION_BYTES: usize = 160;
/// A holder beside others, and its places in indexes. No more than a waiter, so that a hand-over needs no room.
const HOLDER_BYTES: usize = 160;
/// A value's place beside its lock.
const ATTACHED_BYTES: usize = 64;
const GRANTS_BYTES: usize = 64;
const GRANT_BYTES: usize = 16;
/// A blocked client, and each of its words and of the keys it waits for.
const BLOCKED_BYTES: usize = 320;
const BLOCKED_WORD_BYTES: usize = 32;
const BLOCKED_KEY_BYTES: usize = 160;
const SCRIPT_BYTES: usize = 192;

/// The holder of a free lock.
const NOBODY: OwnerIdentity<'static> = OwnerIdentity { owner: b"", user: UserTag::DEFAULT };

/// Bytes by what they are for, but for what the parts count themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) locks: usize,
    /// Of those, the records of free locks.
    pub(crate) idle: usize,
    pub(crate) values: usize,
    pub(crate) grants: usize,
    pub(crate) waiters: usize,
    pub(crate) sessions: usize,
    pub(crate) holders: usize,
    pub(crate) attached: usize,
}

impl Lock {
    /// As [`weight_of_lock`] of its name and holder.
    #[inline]
    pub(crate) fn weight(&self) -> usize {
        LOCK_BYTES + self.text_bytes()
    }
}

fn weight_of_lock(name: &[u8], holder: OwnerIdentity<'_>) -> usize {
    LOCK_BYTES + name.len() + weight_of_holder(holder)
}

/// What a holder adds to the record of its lock.
fn weight_of_holder(holder: OwnerIdentity<'_>) -> usize {
    holder.owner.len() + weight_of_user(holder.user)
}

/// What is kept of a user with each of its records. Of `default` nothing is.
pub(crate) fn weight_of_user(user: UserTag) -> usize {
    match user {
        UserTag::DEFAULT => 0,
        UserTag(_) => size_of::<UserTag>(),
    }
}

pub(crate) fn weight_of_value(value: &Value) -> usize {
    VALUE_BYTES + value.weight()
}

impl Waiter {
    pub(crate) fn weight(&self) -> usize {
        let orders: usize = self.requests.iter().map(|request| request.form.len()).sum();
        let terms = (self.asker(), self.kind, &*self.value);
        weight_of_waiter(terms, self.queue_entries.len(), self.requests.len()) + orders
    }
}

/// With what its grants will weigh: a hand-over needs no room. A multi-lock of readers becomes a holder at each of its locks.
fn weight_of_waiter(
    (asker, kind, value): (OwnerIdentity<'_>, LockKind, &[u8]),
    queue_entries: usize,
    requests: usize,
) -> usize {
    let grant = weight_of_holder(asker) + value.len();
    let others = match kind {
        LockKind::Exclusive => 0,
        LockKind::Shared | LockKind::Permits { .. } => queue_entries.saturating_sub(1),
    };
    WAITER_BYTES
        + grant
        + others * (HOLDER_BYTES + grant)
        + queue_entries * QUEUE_ENTRY_BYTES
        + requests * REQUEST_BYTES
}

impl Session {
    pub(crate) fn weight(&self) -> usize {
        weight_of_session(&self.label, self.user)
    }
}

fn weight_of_session(label: &[u8], user: UserTag) -> usize {
    SESSION_BYTES + label.len() + weight_of_user(user)
}

impl Holder {
    pub(crate) fn weight(&self) -> usize {
        HOLDER_BYTES + weight_of_holder(self.asker()) + self.value.len()
    }
}

/// What a grant adds to the record of its lock.
fn weight_of_terms(terms: &GrantTerms<'_>) -> usize {
    match (terms.kind, terms.value.len()) {
        (LockKind::Exclusive, 0) => weight_of_holder(terms.asker),
        (LockKind::Exclusive, value) => weight_of_holder(terms.asker) + ATTACHED_BYTES + value,
        (LockKind::Shared | LockKind::Permits { .. }, value) => {
            HOLDER_BYTES + weight_of_holder(terms.asker) + value
        }
    }
}

impl Grants {
    fn weight(&self) -> usize {
        GRANTS_BYTES + self.len() * GRANT_BYTES
    }
}

impl Waiting {
    pub(crate) fn weight(&self) -> usize {
        weight_of_blocked(&self.argv, &self.keys)
    }
}

fn weight_of_blocked<W: AsRef<[u8]>, K: AsRef<[u8]>>(argv: &[W], keys: &[K]) -> usize {
    let words: usize = argv.iter().map(|word| word.as_ref().len() + BLOCKED_WORD_BYTES).sum();
    let keys: usize = keys.iter().map(|key| key.as_ref().len() + BLOCKED_KEY_BYTES).sum();
    BLOCKED_BYTES + words + keys
}

impl Machine {
    /// What the replicated state takes.
    #[must_use]
    pub fn memory_used_bytes(&self) -> u64 {
        let Memory { locks, idle: _, values, grants, waiters, sessions, holders, attached } = self.memory;
        let counted = locks + values + grants + waiters + sessions + holders + attached;
        let scripts = self.scripts.bytes() + self.scripts.len() * SCRIPT_BYTES;
        (counted + self.blocked.weight() + self.dedup.weight() + scripts + self.marks.bytes()) as u64
    }

    /// Whether the state may grow by so many bytes. Records of free locks are as good as room.
    pub(crate) fn room_for(&self, bytes: usize) -> Result<(), Refusal> {
        let active = self.memory_used_bytes() - self.memory.idle as u64;
        if active.saturating_add(bytes as u64) > self.max_memory_bytes() {
            return Err(errors::out_of_memory());
        }
        Ok(())
    }

    /// The same for a change that may also give bytes back.
    #[cfg(feature = "scripts")]
    pub(crate) fn room_for_change(&self, bytes: i64) -> Result<(), Refusal> {
        let active = self.memory_used_bytes() - self.memory.idle as u64;
        match active.saturating_add_signed(bytes) > self.max_memory_bytes() {
            true => Err(errors::out_of_memory()),
            false => Ok(()),
        }
    }

    /// Keeps a script where there is room. The leader has looked already, but not at what was in the log before it.
    pub(crate) fn keep_script(&mut self, sha: Sha, body: &[u8]) {
        let is_bounded = self.upgrade.version >= version::SECOND;
        if !is_bounded || self.room_for_scripts(1, body.len()).is_ok() {
            self.scripts.insert(sha, body);
        }
    }

    /// Room for so many more scripts. Beyond the cache's own bounds a new one takes the place of older ones.
    pub(crate) fn room_for_scripts(&self, count: usize, bytes: usize) -> Result<(), Refusal> {
        if self.scripts.has_room_for(count, bytes) {
            self.room_for(bytes + count * SCRIPT_BYTES)?;
        }
        Ok(())
    }

    /// Whether commands that make so many records, and free so many, may grow the state by so many bytes and no free record is
    /// forgotten to make room for them.
    #[cfg(feature = "scripts")]
    pub(crate) fn forgets_nothing_for(&self, records: usize, freed: usize, bytes: u64) -> bool {
        self.memory_used_bytes().saturating_add(bytes) <= self.max_memory_bytes()
            && self.locks.len() + records <= self.limits.locks_max
            && self.idle.len as usize + freed <= self.limits.idle_max
    }

    /// What a key with this value counts for. What scripts make is of the user `default`.
    #[cfg(feature = "scripts")]
    pub(crate) fn weight_of_key(name: &[u8], value: View<'_>, grants: Option<&Grants>) -> usize {
        let grants = grants.map_or(0, Grants::weight);
        let beside = match value {
            View::Str(_) => 0,
            View::Hash(_) | View::List(_) | View::Set(_) | View::ZSet(_) => VALUE_BYTES,
        };
        weight_of_lock(name, NOBODY) + beside + value.weight() + grants
    }

    /// Room for a lock that is free (`slot`) or has no record yet, and for its holder.
    pub(crate) fn room_for_grant(
        &self,
        slot: Option<LockSlot>,
        name: &[u8],
        terms: &GrantTerms<'_>,
    ) -> Result<(), Refusal> {
        let counted = slot.map_or(0, |slot| self.active_weight(slot));
        self.room_for((weight_of_lock(name, NOBODY) + weight_of_terms(terms)).saturating_sub(counted))
    }

    /// Room for the exclusive holder of a lock as the first of several.
    pub(crate) fn room_to_share(&self, slot: LockSlot) -> Result<(), Refusal> {
        let value = self.attached.get(&slot).map_or(0, |_| ATTACHED_BYTES);
        self.room_for(HOLDER_BYTES - value)
    }

    /// Room for a waiter at these locks, whose records are there.
    pub(crate) fn room_for_waiter(
        &self,
        asker: OwnerIdentity<'_>,
        kind: LockKind,
        value: &[u8],
        queue_entries: usize,
    ) -> Result<(), Refusal> {
        // A multi-lock keeps the order of its names.
        self.room_for(weight_of_waiter((asker, kind, value), queue_entries, 1) + queue_entries)
    }

    /// Room for a multi-lock: for all its holders now, or for its records and later for its waiter.
    pub(crate) fn room_for_many(
        &self,
        db: crate::machine::Db,
        names: &[&[u8]],
        terms: &GrantTerms<'_>,
        at_once: bool,
    ) -> Result<(), Refusal> {
        let growth = |name: &&[u8]| {
            let slot = self.names.find(&self.locks, db, name);
            let counted = slot.map_or(0, |slot| self.active_weight(slot));
            let is_own = slot.is_some_and(|slot| self.hold_of_owner(slot, terms.asker).is_some());
            let granted = if at_once && !is_own { weight_of_terms(terms) } else { 0 };
            (weight_of_lock(name, NOBODY) + granted).saturating_sub(counted)
        };
        match names.iter().map(growth).sum() {
            0 => Ok(()),
            growth => self.room_for(growth),
        }
    }

    pub(crate) fn room_for_session(&self, label: &[u8], user: UserTag) -> Result<(), Refusal> {
        self.room_for(weight_of_session(label, user))
    }

    pub(crate) fn room_for_blocked<W: AsRef<[u8]>, K: AsRef<[u8]>>(
        &self,
        argv: &[W],
        keys: &[K],
    ) -> Result<(), Refusal> {
        self.room_for(weight_of_blocked(argv, keys))
    }

    /// Room for a key with this value in place of what it holds.
    pub(crate) fn room_for_value(
        &self,
        db: crate::machine::Db,
        name: &[u8],
        value: &Value,
    ) -> Result<(), Refusal> {
        let user = self.acting_user;
        let wanted = match value {
            Value::Str(bytes) => weight_of_lock(name, OwnerIdentity { owner: bytes, user }),
            Value::Hash(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_) => {
                weight_of_lock(name, OwnerIdentity { owner: b"", user }) + weight_of_value(value)
            }
        };
        let counted = self
            .names
            .find(&self.locks, db, name)
            .map_or(0, |slot| self.active_weight(slot) + self.values.get(&slot).map_or(0, weight_of_value));
        match wanted.checked_sub(counted) {
            None | Some(0) => Ok(()),
            Some(growth) => self.room_for(growth),
        }
    }

    /// What a record counts for already. One of a free lock counts as room.
    fn active_weight(&self, slot: LockSlot) -> usize {
        match self.locks[slot].phase {
            Phase::Held { .. } | Phase::Several { .. } | Phase::Awaited => self.locks[slot].weight(),
            Phase::Idle { .. } => 0,
        }
    }

    /// Forgets free locks, oldest first, while the state is larger than it may be. Some with each command: what is left counts as
    /// room all the same.
    pub(crate) fn forget_for_room(&mut self) {
        for _ in 0..self.limits.idle_per_entry_max {
            if self.memory.idle == 0 || self.memory_used_bytes() <= self.max_memory_bytes() {
                return;
            }
            self.forget_oldest_idle(1);
        }
    }

    // ---- changes that are counted ----

    pub(crate) fn insert_lock(&mut self, lock: Lock) -> LockSlot {
        self.memory.locks += lock.weight();
        self.locks.insert(lock)
    }

    /// A record that is in no list and no index any more.
    pub(crate) fn remove_lock(&mut self, slot: LockSlot) -> Lock {
        let lock = self.locks.remove(slot);
        self.history.forget(slot);
        self.memory.locks -= lock.weight();
        lock
    }

    /// Changes a lock's holder.
    pub(crate) fn change_lock(&mut self, slot: LockSlot, change: impl FnOnce(&mut Lock)) {
        let lock = self.locks.edit(slot);
        let before = lock.weight();
        change(lock);
        self.memory.locks = self.memory.locks + lock.weight() - before;
    }

    pub(crate) fn restore_lock(&mut self, slot: LockSlot, before: SavedLock) {
        self.change_lock(slot, |lock| lock.put_back(before));
    }

    pub(crate) fn set_value(&mut self, slot: LockSlot, value: Option<Value>) -> Option<Value> {
        let before = match value {
            Some(value) => {
                self.memory.values += weight_of_value(&value);
                self.values.insert(slot, value)
            }
            None => self.values.remove(&slot),
        };
        self.memory.values -= before.as_ref().map_or(0, weight_of_value);
        before
    }

    pub(crate) fn take_value(&mut self, slot: LockSlot) -> Option<Value> {
        self.set_value(slot, None)
    }

    pub(crate) fn change_value<R>(
        &mut self,
        slot: LockSlot,
        change: impl FnOnce(&mut Value) -> R,
    ) -> Option<R> {
        let value = self.values.get_mut(&slot)?;
        let before = weight_of_value(value);
        let result = change(value);
        self.memory.values = self.memory.values + weight_of_value(value) - before;
        Some(result)
    }

    pub(crate) fn set_grants(&mut self, slot: LockSlot, grants: Option<Grants>) {
        let before = match grants {
            Some(grants) => {
                self.memory.grants += grants.weight();
                self.grants.insert(slot, grants)
            }
            None => self.grants.remove(&slot),
        };
        self.memory.grants -= before.as_ref().map_or(0, Grants::weight);
    }

    /// The VALUE of an exclusive grant. Answers the one before.
    pub(crate) fn set_attached(&mut self, slot: LockSlot, value: Option<Box<[u8]>>) -> Option<Box<[u8]>> {
        let weigh =
            |value: &Option<Box<[u8]>>| value.as_ref().map_or(0, |value| ATTACHED_BYTES + value.len());
        self.memory.attached += weigh(&value);
        let before = match value {
            Some(value) => self.attached.insert(slot, value),
            None => self.attached.remove(&slot),
        };
        self.memory.attached -= weigh(&before);
        before
    }

    pub(crate) fn change_waiter<R>(
        &mut self,
        waiter: WaiterSlot,
        change: impl FnOnce(&mut Waiter) -> R,
    ) -> R {
        let record = self.waiters.edit(waiter);
        let before = record.weight();
        let result = change(record);
        self.memory.waiters = self.memory.waiters + record.weight() - before;
        result
    }

    /// All of it from the records: after a restore, and for the invariants.
    pub(crate) fn weigh_records(&self) -> Memory {
        let locks = self.locks.iter().map(|(_, lock)| lock.weight()).sum();
        let is_idle = |lock: &Lock| lock.idle_since_ms().is_some();
        Memory {
            locks,
            idle: self.locks.iter().filter(|(_, lock)| is_idle(lock)).map(|(_, lock)| lock.weight()).sum(),
            values: self.values.values().map(weight_of_value).sum(),
            grants: self.grants.values().map(Grants::weight).sum(),
            waiters: self.waiters.iter().map(|(_, waiter)| waiter.weight()).sum(),
            sessions: self.sessions.iter().map(|(_, session)| session.weight()).sum(),
            holders: self.holders.iter().map(|(_, holder)| holder.weight()).sum(),
            attached: self.attached.values().map(|value| ATTACHED_BYTES + value.len()).sum(),
        }
    }
}
