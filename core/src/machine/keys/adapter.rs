//! The lock table as a keyspace: every key is a lock, and its value is the owner.
//!
//! A key that comes into being takes the next fence; its deletion or its end is the release. Writing the value a string
//! already has is a renewal under the same fence, and so is changing a collection in place; any other value is another
//! owner: release and grant in one, under a new fence, with no moment in between for whoever waits. Waiters are served when
//! the whole command, script or transaction is through.
//!
//! Strings stand where owners stand. Other values are kept beside the locks, by slot; such a lock has no owner's bytes.
//!
//! # Caveats
//!
//! - A free lock with a multi-lock at the head of its queue is an absent key. Writes that ask for one (`NX`, `SETNX`, `MSETNX`,
//!   `RENAMENX`) are refused, as `LOCK.ACQUIRE` is; any other write, and a script that asked `EXISTS`, takes it.
//! - `DBSIZE` counts keys whose time is over until they are ended, as Redis does.
//! - `FLUSHDB` and `FLUSHALL` through a Redlock listener take that member out of every key it has granted, one by one: with more than
//!   [`MEMBER_FLUSH_MAX`] records they are refused.
//! - A free record that a stopped script touched counts as idle from then on.

use crate::event::EventKind;
use crate::keyspace::table::Row;
use crate::keyspace::{errors, Clock, Deadline, Keys, Value, View, BYTES_PER_UNIT};
use crate::machine::keys::undo::Undo;
use crate::machine::locks::ending::Ending;
use crate::machine::locks::lock::Lock;
use crate::machine::log::command::Db;
use crate::machine::store::deadlines::NEVER;
use crate::machine::store::memory::weight_of_user;
use crate::machine::sweep::ENDS_PER_ENTRY_MAX;
use crate::machine::version;
use crate::machine::work::Work;
use crate::machine::{Applied, EventOwner, KeyAccess, LockSlot, Machine, SessionSlot};
use crate::reply::{Refusal, Reply};
use crate::types::{Member, OwnerIdentity, UserTag};

/// Most records for which a member's flush, and an exact count of what it sees, look at each of them.
pub(crate) const MEMBER_FLUSH_MAX: usize = 10_000;

/// Whom keys are hidden from; see `members.rs`. Nobody: all are seen.
type HiddenFrom = Option<Member>;

impl Machine {
    fn is_shown(&self, from: HiddenFrom, slot: LockSlot) -> bool {
        from.is_none_or(|member| self.sees(member, slot))
    }

    fn key_slot(&self, from: HiddenFrom, db: Db, key: &[u8]) -> Option<LockSlot> {
        let slot = self.names.find(&self.locks, db, key)?;
        (self.is_held_now(slot) && self.is_shown(from, slot)).then_some(slot)
    }

    pub(crate) fn has_key(&self, db: Db, key: &[u8]) -> bool {
        self.key_slot(None, db, key).is_some()
    }

    /// Elements of the value at a key; 0 where there is none.
    pub(crate) fn elements_at(&self, db: Db, key: &[u8]) -> usize {
        self.key_slot(None, db, key).map_or(0, |slot| self.key_view(slot).elements())
    }

    pub(crate) fn key_view(&self, slot: LockSlot) -> View<'_> {
        match self.values.get(&slot) {
            Some(value) => value.view(),
            // Of several holders the oldest one shows.
            None if self.locks[slot].is_several() => {
                let oldest = self.oldest_holder(slot);
                View::Str(oldest.map_or(&[], |holder| &self.holders[holder].owner))
            }
            None => View::Str(self.locks[slot].owner()),
        }
    }

    fn key_deadline_ms(&self, member: Option<Member>, slot: LockSlot) -> Option<u64> {
        Some(self.ends_for(member, slot)).filter(|at_ms| *at_ms != NEVER)
    }

    /// Whether a key is a lock that is held in mode shared or permits: no plain command may write to it.
    pub(crate) fn is_held_by_several(&self, db: Db, key: &[u8]) -> bool {
        let slot = self.names.find(&self.locks, db, key);
        slot.is_some_and(|slot| self.locks[slot].is_several() && self.is_held_now(slot))
    }

    /// Whether there is any such lock.
    pub(crate) fn has_several(&self) -> bool {
        self.holders.len() > 0
    }

    /// Whether a free lock has somebody in line who waits for another one too. What this command itself has freed is not
    /// meant: until it is through, nobody else gets it.
    pub(crate) fn is_awaited(&self, db: Db, key: &[u8]) -> bool {
        self.names.find(&self.locks, db, key).is_some_and(|slot| {
            let lock = &self.locks[slot];
            !lock.is_held() && lock.queue.len > 0 && !self.to_serve.contains(&slot)
        })
    }

    /// Whether anybody waits for anything.
    #[cfg(feature = "scripts")]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.len() > 0 || self.blocked.len() > 0
    }

    /// Whether somebody waits for a key, as a lock or for what it may hold.
    #[cfg(feature = "scripts")]
    pub(crate) fn is_waited_for(&self, db: Db, key: &[u8]) -> bool {
        let slot = self.names.find(&self.locks, db, key);
        slot.is_some_and(|slot| self.locks[slot].queue.len > 0) || self.blocked.waits_for(db, key)
    }

    /// Whether a lock was flushed, is not swept yet, and somebody waits for it: it is the first one's.
    #[cfg(feature = "scripts")]
    pub(crate) fn is_unswept_and_awaited(&self, slot: LockSlot) -> bool {
        let lock = &self.locks[slot];
        lock.is_held() && lock.queue.len > 0 && self.is_flushed(lock)
    }

    /// Whether blocked clients are still to try keys that got something before: each command lets some of them.
    #[cfg(feature = "scripts")]
    pub(crate) fn has_blocked_to_serve(&self) -> bool {
        self.blocked.has_ready()
    }

    /// Absolute times are read against the entry's own wall clock, not against the one of fences, which never falls.
    pub(crate) fn key_clock(&self) -> Clock {
        Clock { logical_ms: self.clock.logical_ms, wall_us: self.entry_wall_us }
    }

    /// Keys of a database. For a member, those that are hidden from it are taken off, where they are few enough to look at.
    fn key_count(&self, from: HiddenFrom, db: Db) -> usize {
        let all = self.sweep.held(db) as usize;
        let Some(member) = from.filter(|_| self.grants.len() <= MEMBER_FLUSH_MAX) else { return all };
        let is_hidden = |slot: LockSlot| {
            let lock = &self.locks[slot];
            lock.db() == db && !self.is_flushed(lock) && !self.sees(member, slot)
        };
        all - self.grants.keys().filter(|slot| is_hidden(**slot)).count()
    }

    /// The cursor is the next slot to look at: a key keeps its slot for as long as it lives.
    fn key_scan(
        &self,
        from: HiddenFrom,
        db: Db,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], View<'_>),
    ) -> u64 {
        let first = LockSlot::from_cursor(cursor);
        for (looked, (slot, lock)) in self.locks.iter_from(first).enumerate() {
            if looked == count {
                return u64::from(slot.number());
            }
            if lock.db() == db && self.is_held_now(slot) && self.is_shown(from, slot) {
                visit(lock.name(), self.key_view(slot));
            }
        }
        0
    }
}

/// The keyspace for commands that only read. Nothing it is asked to change changes.
pub(crate) struct ReadKeys<'m> {
    pub(crate) machine: &'m Machine,
    pub(crate) member: Option<Member>,
    /// Time since the newest stamp: see [`Machine::query_later`].
    pub(crate) late_ms: u64,
    pub(crate) work: Work,
}

impl Keys for ReadKeys<'_> {
    fn charge(&self, units: u64) -> Result<(), Refusal> {
        self.machine.work.count(units);
        self.work.charge(units)
    }

    fn charge_done(&self, units: u64) -> Result<(), Refusal> {
        self.machine.work.count(units);
        self.work.charge_done(units)
    }

    fn clock(&self) -> Clock {
        let Clock { logical_ms, wall_us } = self.machine.key_clock();
        Clock {
            logical_ms: logical_ms.saturating_add(self.late_ms),
            wall_us: wall_us.saturating_add(self.late_ms.saturating_mul(1000)),
        }
    }
    fn value(&self, db: Db, key: &[u8]) -> Option<View<'_>> {
        self.machine.key_slot(self.member, db, key).map(|slot| self.machine.key_view(slot))
    }
    fn deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.machine.key_deadline_ms(self.member, self.machine.key_slot(self.member, db, key)?)
    }
    fn put(&mut self, _: Db, _: &[u8], _: Value, _: Deadline) -> Result<(), Refusal> {
        Err(Refusal::new("ERR a read may not write"))
    }
    fn edit(&mut self, _: Db, _: &[u8], _: &mut dyn FnMut(&mut Value) -> bool) {}
    fn remove(&mut self, _: Db, _: &[u8]) -> bool {
        false
    }
    fn set_deadline(&mut self, _: Db, _: &[u8], _: Deadline) {}
    fn count(&self, db: Db) -> usize {
        self.machine.key_count(self.member, db)
    }
    fn scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64 {
        self.machine.key_scan(self.member, db, cursor, count, visit)
    }
    fn flush(&mut self, _: Option<Db>) {}
    fn publish(&mut self, _: &[u8], _: &[u8]) -> i64 {
        0
    }
    fn begin(&mut self) {}
    fn commit(&mut self) {}
    fn rollback(&mut self) {}
}

/// The keyspace for one command or script.
pub(crate) struct MachineKeys<'m> {
    pub(crate) machine: &'m mut Machine,
    pub(crate) out: &'m mut Applied,
    pub(crate) undo: Option<Undo>,
    member: Option<Member>,
    hidden_from: HiddenFrom,
    clash: Clash,
    /// The leader has looked for room before it logged this: what is applied everywhere cannot be refused here. What it
    /// found no room for it has not logged.
    has_room: bool,
}

/// Whether a member met a key that others have granted under another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clash {
    None,
    /// It was hidden: to be run again with nothing hidden.
    Hidden,
    /// It was not: the write was refused.
    Refused,
}

impl<'m> MachineKeys<'m> {
    pub(crate) fn new(machine: &'m mut Machine, out: &'m mut Applied) -> MachineKeys<'m> {
        let (undo, member, hidden_from, clash) = (None, None, None, Clash::None);
        MachineKeys { machine, out, undo, member, hidden_from, clash, has_room: false }
    }

    /// For what a script has written: the leader looked for room before it was logged.
    pub(crate) fn with_room(mut self) -> MachineKeys<'m> {
        self.has_room = true;
        self
    }

    /// For a member; what it has not granted is hidden from it if `hiding`.
    pub(crate) fn of_member(mut self, member: Option<Member>, hiding: bool) -> MachineKeys<'m> {
        self.member = member;
        self.hidden_from = member.filter(|_| hiding);
        self
    }

    pub(crate) fn clash(&self) -> Clash {
        self.clash
    }

    fn key_slot(&self, db: Db, key: &[u8]) -> Option<LockSlot> {
        self.machine.key_slot(self.hidden_from, db, key)
    }

    /// Whether a key holds this value already: writing it is a renewal, which needs no room.
    fn is_same(&self, db: Db, key: &[u8], value: &Value) -> bool {
        let slot = self.machine.names.find(&self.machine.locks, db, key);
        let held = slot.filter(|slot| self.machine.locks[*slot].is_held());
        held.is_some_and(|slot| self.machine.key_view(slot) == value.view())
    }

    fn end(&mut self, slot: LockSlot) {
        self.save(slot);
        match self.machine.locks[slot].is_several() {
            // Reached by a member's flush alone.
            true => self.machine.end_all_holds(slot, Ending::Flushed, self.out),
            false => self.machine.end_grant(slot, Ending::Deleted, self.out),
        }
    }

    /// Ends a key, or a member's share of it. A member that has none changes nothing.
    fn take_away(&mut self, slot: LockSlot) -> bool {
        if let Some(member) = self.member {
            if !self.machine.sees(member, slot) {
                return false;
            }
            self.save(slot);
            if self.machine.give_back(member, slot) {
                self.machine.emit(EventKind::Renewed, slot, EventOwner::Holder, self.out);
                return true;
            }
        }
        self.end(slot);
        true
    }

    fn flush_member(&mut self, member: Member, db: Option<Db>) {
        let machine = &*self.machine;
        let is_there = |slot: LockSlot, lock: &Lock| {
            db.is_none_or(|db| lock.db() == db) && machine.is_held_now(slot) && machine.sees(member, slot)
        };
        let locks = machine.locks.iter().filter(|(slot, lock)| is_there(*slot, lock));
        let doomed: Vec<LockSlot> = locks.map(|(slot, _)| slot).collect();
        for slot in doomed {
            self.take_away(slot);
        }
    }

    /// A member may not change the value under which others hold a key.
    fn check_replace(&mut self, slot: LockSlot) -> Result<(), Refusal> {
        let Some(member) = self.member.filter(|member| self.machine.others_hold(*member, slot)) else {
            return Ok(());
        };
        let hidden = self.hidden_from.is_some() && !self.machine.sees(member, slot);
        self.clash = if hidden { Clash::Hidden } else { Clash::Refused };
        Err(errors::HELD_BY_MEMBERS)
    }

    fn bring_to_life(&mut self, slot: LockSlot, value: Value, at_ms: u64) {
        let owner: &[u8] = match &value {
            Value::Str(bytes) => bytes,
            Value::Hash(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_) => b"",
        };
        let holder = OwnerIdentity { owner, user: self.machine.acting_user };
        self.machine.grant_until(slot, holder, at_ms, SessionSlot::NONE, self.out);
        match value {
            Value::Str(_) => {
                if let Some(member) = self.member {
                    self.machine.grant_by(member, slot, at_ms);
                }
            }
            Value::Hash(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_) => {
                self.machine.set_value(slot, Some(value));
                self.note_ready(slot);
            }
        }
    }

    /// Somebody may wait for what this key now holds.
    fn note_ready(&mut self, slot: LockSlot) {
        match self.machine.values.get(&slot) {
            Some(Value::List(_) | Value::ZSet(_)) => {
                let lock = &self.machine.locks[slot];
                self.machine.blocked.note_ready(lock.db(), lock.name());
            }
            Some(Value::Str(_) | Value::Hash(_) | Value::Set(_)) | None => {}
        }
    }
}

impl Keys for MachineKeys<'_> {
    fn charge(&self, units: u64) -> Result<(), Refusal> {
        self.machine.work.charge(units)
    }

    fn charge_done(&self, units: u64) -> Result<(), Refusal> {
        match self.is_version_1() {
            true => self.machine.work.charge(units),
            false => self.machine.work.charge_done(units),
        }
    }

    fn clock(&self) -> Clock {
        self.machine.key_clock()
    }

    fn value(&self, db: Db, key: &[u8]) -> Option<View<'_>> {
        self.key_slot(db, key).map(|slot| self.machine.key_view(slot))
    }

    fn deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.machine.key_deadline_ms(self.member, self.key_slot(db, key)?)
    }

    fn is_vacant(&self, db: Db, key: &[u8]) -> bool {
        self.key_slot(db, key).is_none() && !self.machine.is_awaited(db, key)
    }

    fn has_several(&self) -> bool {
        self.machine.has_several()
    }

    fn is_held_by_several(&self, db: Db, key: &[u8]) -> bool {
        self.machine.is_held_by_several(db, key)
    }

    fn may_grow(&self, bytes: usize) -> bool {
        self.has_room || self.machine.room_for(bytes).is_ok()
    }

    fn room_for(&mut self, bytes: usize) -> Result<(), Refusal> {
        match self.has_room {
            true => Ok(()),
            false => self.machine.room_for(bytes),
        }
    }

    fn user_growth(&self, db: Db, key: &[u8]) -> usize {
        let holder = self.machine.names.find(&self.machine.locks, db, key);
        let counted = holder.map_or(UserTag::DEFAULT, |slot| self.machine.locks[slot].user());
        weight_of_user(self.machine.acting_user).saturating_sub(weight_of_user(counted))
    }

    fn put(&mut self, db: Db, key: &[u8], value: Value, deadline: Deadline) -> Result<(), Refusal> {
        let at_ms = match deadline {
            Deadline::Keep => self.deadline_ms(db, key).unwrap_or(NEVER),
            Deadline::Never => NEVER,
            Deadline::At(at_ms) => at_ms,
        };
        if !self.has_room && !self.is_same(db, key, &value) {
            self.machine.room_for_value(db, key, &value)?;
        }
        let slot = match self.machine.names.find(&self.machine.locks, db, key) {
            Some(slot) => slot,
            None => self.machine.record_for(db, key)?,
        };
        // It is compared with what is there. A string differs from a collection at the first look.
        if !matches!(value, Value::Str(_)) && self.machine.values.contains_key(&slot) {
            self.charge(value.view().elements() as u64)?;
            if !self.is_version_1() {
                self.charge((value.weight() / BYTES_PER_UNIT) as u64)?;
            }
        }
        self.save(slot);
        // Past its deadline, or flushed, and not ended yet.
        self.machine.end_if_due(slot, self.out);
        if self.machine.locks[slot].is_several() {
            return Err(crate::grammar::errors::plain_write_on_several());
        }
        if self.machine.locks[slot].is_held() {
            if self.machine.key_view(slot) == value.view() {
                return self.machine.set_end_as(self.member, slot, at_ms, self.out);
            }
            self.check_replace(slot)?;
            // Its holder did not release it.
            self.machine.end_grant(slot, Ending::Replaced, self.out);
        }
        self.bring_to_life(slot, value, at_ms);
        Ok(())
    }

    fn edit(&mut self, db: Db, key: &[u8], edit: &mut dyn FnMut(&mut Value) -> bool) {
        let Some(slot) = self.key_slot(db, key) else { return };
        self.save(slot);
        let edit = |value: &mut Value| (edit(value), value.is_empty_collection());
        let Some((changed, is_empty)) = self.machine.change_value(slot, edit) else { return };
        if is_empty {
            self.end(slot);
        } else if changed {
            self.machine.emit(EventKind::Renewed, slot, EventOwner::Holder, self.out);
            self.machine.versions.insert(slot, self.machine.event_seq);
            self.note_ready(slot);
        }
    }

    fn remove(&mut self, db: Db, key: &[u8]) -> bool {
        self.key_slot(db, key).is_some_and(|slot| self.take_away(slot))
    }

    fn set_deadline(&mut self, db: Db, key: &[u8], deadline: Deadline) {
        let Some(slot) = self.key_slot(db, key) else { return };
        let at_ms = match deadline {
            Deadline::Keep => return,
            Deadline::Never => NEVER,
            Deadline::At(at_ms) => at_ms,
        };
        // With nothing hidden a member also meets keys it has not granted: their time is not its to move.
        if self.machine.is_shown(self.member, slot) && !self.machine.locks[slot].is_several() {
            self.save(slot);
            let moved = self.machine.set_end_as(self.member, slot, at_ms, self.out);
            moved.expect("a member that sees a key has granted it already");
        }
    }

    fn count(&self, db: Db) -> usize {
        self.machine.key_count(self.hidden_from, db)
    }

    fn scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64 {
        self.machine.key_scan(self.hidden_from, db, cursor, count, visit)
    }

    fn is_version_1(&self) -> bool {
        self.machine.cluster_version() < version::SECOND
    }

    fn check_flush(&self) -> Result<(), Refusal> {
        match self.member.is_some() && !self.has_room && self.machine.locks.len() > MEMBER_FLUSH_MAX {
            true => Err(errors::MEMBER_FLUSH_TOO_LARGE),
            false => Ok(()),
        }
    }

    /// Whatever is held counts as ended from here on. As much as one entry may is ended at once, the rest is swept later.
    fn flush(&mut self, db: Option<Db>) {
        let noted = self.out.key_accesses.len();
        match self.member {
            Some(member) => self.flush_member(member, db),
            None => {
                self.machine.begin_flush(db);
                let (mut looks, mut ends) = (Machine::looks_per_sweep(), ENDS_PER_ENTRY_MAX);
                while ends > 0 {
                    let Some(slot) = self.machine.next_flushed(&mut looks) else { break };
                    self.save(slot);
                    self.machine.end_flushed(slot, &mut ends, self.out);
                }
            }
        }
        if self.machine.wanted.keys {
            // One word for all of them.
            self.out.key_accesses.truncate(noted);
            self.out.key_accesses.push(KeyAccess::Flushed);
        }
    }

    fn note_read(&mut self, row: &Row, argv: &[&[u8]]) {
        self.machine.note_read(row, argv, self.out);
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        if self.machine.wanted.messages {
            let copy = ::bytes::Bytes::copy_from_slice;
            self.out.published.push((copy(channel), copy(message)));
        }
        0
    }

    fn lock(&mut self, db: Db, argv: &[&[u8]]) -> Option<Reply> {
        for name in Machine::names_changed(argv) {
            let known = self.machine.names.find(&self.machine.locks, db, name);
            // A record of its own from the start, so that there is one to put back. One that stays free goes with the serving.
            let slot = match known.map_or_else(|| self.machine.record_for(db, name), Ok) {
                Ok(slot) => slot,
                Err(refusal) => return Some(refusal.into()),
            };
            self.save(slot);
            self.machine.to_serve.push_back(slot);
        }
        Some(self.machine.lock_at_once(db, argv, self.out))
    }

    fn begin(&mut self) {
        self.clash = Clash::None;
        self.undo = Some(Undo::new(self.machine, self.out));
    }

    /// What a member did may still have to be taken back: see [`Clash::Hidden`].
    fn commit(&mut self) {
        if self.hidden_from.is_none() {
            self.undo = None;
        }
    }

    fn rollback(&mut self) {
        self.undo_all();
    }
}
