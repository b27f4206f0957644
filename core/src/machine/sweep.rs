//! Bulk ends, spread over entries: what a `FLUSHDB`/`FLUSHALL` has ended, and the waiters of nodes that are no more.
//!
//! A flush only raises the epoch of its database. A held lock of an older epoch counts as ended for every look, as one past its
//! deadline does ([`Machine::is_held_now`]); whatever touches it ends it ([`Machine::end_if_due`]), and the end of every entry
//! sweeps some of the rest. So does the loss of a node: its waiters are never granted while they are still in line.
//!
//! A sweep passes over the records in the order of their slots. What begins while one is on brings another pass after it, so a record
//! is reached within two passes after it became stale. That keeps epochs of 16 bits apart: a flush that finds its database empty
//! raises nothing, and each one sweeps as well. Which slots are in use is state; where the slabs end is not.
//!
//! Sweeping happens when an entry's commands are through, not before them: what a script saw is what its entry is applied to.

use crate::machine::locks::ending::Ending;
use crate::machine::locks::lock::Lock;
use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::log::command::Db;
use crate::machine::{Applied, HolderSlot, LockSlot, Machine, Slot, WaiterSlot};
use crate::types::{Origin, RequestId};

/// Records one entry looks at for a sweep.
const LOOKS_PER_ENTRY_MAX: u32 = 8_192;
/// Records one entry ends for a sweep.
pub(crate) const ENDS_PER_ENTRY_MAX: u32 = 2_048;

/// One database: how often it was flushed, and how many keys it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Database {
    epoch: u16,
    /// Held locks of this epoch. Worked out from the records.
    held: u64,
}

/// A pass over the records of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass<S> {
    /// The next slot to look at.
    next: Option<S>,
    /// Something became stale behind it: another pass follows.
    again: bool,
}

impl<S> Default for Pass<S> {
    fn default() -> Pass<S> {
        Pass { next: None, again: false }
    }
}

impl<T> Pass<Slot<T>> {
    fn begin(&mut self) {
        match self.next {
            None => self.next = Some(Slot::new(0)),
            Some(_) => self.again = true,
        }
    }

    fn end(&mut self) {
        *self = Pass { next: self.again.then_some(Slot::new(0)), again: false };
    }

    fn write(self, out: &mut Vec<u8>) {
        put_varint(out, self.next.map_or(0, |next| u64::from(next.number()) + 1));
        out.push(u8::from(self.again));
    }

    fn read(reader: &mut Reader<'_>) -> Option<Pass<Slot<T>>> {
        let next = reader.varint()?.checked_sub(1).map(u32::try_from).transpose().ok()?.map(Slot::new);
        Some(Pass { next, again: reader.flag()? })
    }
}

/// Flushes, and what is left to sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sweep {
    databases: Vec<Database>,
    locks: Pass<LockSlot>,
    waiters: Pass<WaiterSlot>,
    /// Numbers of blocked clients still to be looked at: from, until.
    blocked: (u64, u64),
}

impl Sweep {
    pub(crate) fn epoch(&self, db: Db) -> u16 {
        self.databases.get(db as usize).map_or(0, |database| database.epoch)
    }

    pub(crate) fn held(&self, db: Db) -> u64 {
        self.databases.get(db as usize).map_or(0, |database| database.held)
    }

    /// A lock of this database is held from now on. Answers its epoch.
    pub(crate) fn count_held(&mut self, db: Db) -> u16 {
        if self.databases.len() <= db as usize {
            self.databases.resize(db as usize + 1, Database::default());
        }
        let database = &mut self.databases[db as usize];
        database.held += 1;
        database.epoch
    }

    /// A held lock of this epoch is free from now on.
    pub(crate) fn count_ended(&mut self, db: Db, epoch: u16) {
        if let Some(database) = self.databases.get_mut(db as usize).filter(|database| database.epoch == epoch)
        {
            database.held -= 1;
        }
    }

    /// Whether waiters of lost nodes may still be in line.
    pub(crate) fn drops_waiters(&self) -> bool {
        self.waiters.next.is_some()
    }

    pub(crate) fn drops_blocked(&self) -> bool {
        self.blocked.0 < self.blocked.1
    }

    /// No waiter is left to be looked at.
    pub(crate) fn forget_waiters(&mut self) {
        self.waiters = Pass::default();
        self.blocked = (0, 0);
    }

    /// Counts of held locks start from nothing: they are about to be worked out anew.
    pub(crate) fn forget_counts(&mut self) {
        self.databases.iter_mut().for_each(|database| database.held = 0);
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.locks.next.is_none() && !self.drops_waiters() && !self.drops_blocked()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        // A database that was never flushed is as good as none: the list is as long as it has to be.
        let used = self.databases.iter().rposition(|database| database.epoch > 0).map_or(0, |last| last + 1);
        put_varint(out, used as u64);
        self.databases[..used].iter().for_each(|database| put_varint(out, u64::from(database.epoch)));
        self.locks.write(out);
        self.waiters.write(out);
        put_varint(out, self.blocked.0);
        put_varint(out, self.blocked.1);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Sweep> {
        let used = reader.varint().filter(|used| *used <= 1 << 16)?;
        let mut databases = Vec::new();
        for _ in 0..used {
            let epoch = u16::try_from(reader.varint()?).ok()?;
            databases.push(Database { epoch, held: 0 });
        }
        let (locks, waiters) = (Pass::read(reader)?, Pass::read(reader)?);
        let blocked = (reader.varint()?, reader.varint()?);
        Some(Sweep { databases, locks, waiters, blocked })
    }
}

impl Machine {
    /// Whether a held lock was flushed, and not ended yet.
    pub(crate) fn is_flushed(&self, lock: &Lock) -> bool {
        lock.epoch() != self.sweep.epoch(lock.db())
    }

    /// Everything held in one database, or in all, counts as ended from now on.
    pub(crate) fn begin_flush(&mut self, db: Option<Db>) {
        let sweep = &mut self.sweep;
        for (number, database) in sweep.databases.iter_mut().enumerate() {
            if db.is_none_or(|db| db as usize == number) && database.held > 0 {
                database.epoch = database.epoch.wrapping_add(1);
                database.held = 0;
                sweep.locks.begin();
            }
        }
    }

    /// The next flushed lock to end, after a look at no more than `looks` records.
    pub(crate) fn next_flushed(&mut self, looks: &mut u32) -> Option<LockSlot> {
        let next = self.sweep.locks.next?;
        for (slot, lock) in self.locks.iter_from(next) {
            let Some(left) = looks.checked_sub(1) else {
                self.sweep.locks.next = Some(slot);
                return None;
            };
            *looks = left;
            if lock.is_held() && self.is_flushed(lock) {
                self.sweep.locks.next = Some(slot.next());
                return Some(slot);
            }
        }
        self.sweep.locks.end();
        None
    }

    /// Ends the holders of a flushed lock, no more of them than `ends`. The pass comes back for the rest.
    pub(crate) fn end_flushed(&mut self, slot: LockSlot, ends: &mut u32, out: &mut Applied) {
        if !self.locks[slot].is_several() {
            *ends -= 1;
            return self.end_grant(slot, Ending::Flushed, out);
        }
        let holders: Vec<HolderSlot> = self.holders_of(slot).take(*ends as usize).collect();
        *ends -= holders.len() as u32;
        holders.into_iter().for_each(|holder| self.end_holder(holder, Ending::Flushed, out));
        if self.locks[slot].is_held() {
            self.sweep.locks.next = Some(slot);
        }
    }

    pub(crate) fn looks_per_sweep() -> u32 {
        LOOKS_PER_ENTRY_MAX
    }

    /// A node's start is no more: its requests leave their queues, the first of them now.
    pub(crate) fn begin_dropping(&mut self, out: &mut Applied) {
        self.sweep.waiters.begin();
        self.sweep.blocked = (0, self.blocked.next_number());
        self.sweep_waiters(out);
        self.sweep_blocked();
    }

    /// Whether a request's node, or the start of it that sent the request, is no more.
    pub(crate) fn is_lost(&self, id: RequestId) -> bool {
        let Origin { node, incarnation } = id.origin;
        self.dedup.state(node).is_some_and(|state| state.gone || state.origin.incarnation != incarnation)
    }

    /// Some of what is left, when an entry's commands are through.
    #[inline]
    pub(crate) fn sweep_some(&mut self, out: &mut Applied) {
        if !self.sweep.is_over() {
            self.go_on_sweeping(out);
        }
    }

    #[inline(never)]
    fn go_on_sweeping(&mut self, out: &mut Applied) {
        let (mut looks, mut ends) = (LOOKS_PER_ENTRY_MAX, ENDS_PER_ENTRY_MAX);
        while ends > 0 {
            let Some(slot) = self.next_flushed(&mut looks) else { break };
            // Trackers were told of the flush itself.
            let noted = out.key_accesses.len();
            self.end_flushed(slot, &mut ends, out);
            out.key_accesses.truncate(noted);
            self.serve_all(out);
        }
        self.sweep_waiters(out);
        self.sweep_blocked();
    }

    fn sweep_waiters(&mut self, out: &mut Applied) {
        let mut looks = LOOKS_PER_ENTRY_MAX;
        for _ in 0..ENDS_PER_ENTRY_MAX {
            let Some(slot) = self.next_lost(&mut looks) else { return };
            self.drop_lost(slot, out);
            self.serve_all(out);
        }
    }

    /// The next waiter with a request of a lost node, after a look at no more than `looks` records.
    fn next_lost(&mut self, looks: &mut u32) -> Option<WaiterSlot> {
        let next = self.sweep.waiters.next?;
        for (slot, waiter) in self.waiters.iter_from(next) {
            let Some(left) = looks.checked_sub(1) else {
                self.sweep.waiters.next = Some(slot);
                return None;
            };
            *looks = left;
            if waiter.requests.iter().filter_map(|pending| pending.id).any(|id| self.is_lost(id)) {
                self.sweep.waiters.next = Some(slot.next());
                return Some(slot);
            }
        }
        self.sweep.waiters.end();
        None
    }

    fn sweep_blocked(&mut self) {
        for _ in 0..ENDS_PER_ENTRY_MAX {
            let (from, until) = self.sweep.blocked;
            match self.blocked.next_from(from).filter(|(number, _)| *number < until) {
                Some((number, id)) => {
                    self.sweep.blocked.0 = number + 1;
                    if self.is_lost(id) {
                        self.blocked.drop_one(number);
                    }
                }
                None => {
                    self.sweep.blocked = (0, 0);
                    return;
                }
            }
        }
    }

    /// Counts the held locks of every database anew. For a machine that was restored.
    pub(crate) fn recount_databases(&mut self) {
        for (_, lock) in self.locks.iter().filter(|(_, lock)| lock.is_held()) {
            if lock.epoch() == self.sweep.epoch(lock.db()) {
                self.sweep.count_held(lock.db());
            }
        }
    }
}
