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
//! - A plain write takes a free lock even where a multi-lock waits at the head of its queue, as it would a deleted key.
//! - `DBSIZE` and `KEYS` look at every record.
//! - A free record that a stopped script touched counts as idle from then on.

use super::command::Db;
use super::deadlines::{Kind, NEVER};
use super::lock::{Before, Ended, Phase};
use super::slab::NONE;
use super::{Applied, EventOwner, Machine, Noted};
use crate::event::EventKind;
use crate::keyspace::table::Row;
use crate::keyspace::{Clock, Deadline, Keys, Value, View};
use crate::reply::Refusal;
use std::collections::BTreeMap;

impl Machine {
    fn key_slot(&self, db: Db, key: &[u8]) -> Option<u32> {
        let slot = self.names.find(&self.locks, db, key)?;
        self.is_held_now(&self.locks[slot]).then_some(slot)
    }

    fn key_view(&self, slot: u32) -> View<'_> {
        match self.values.get(&slot) {
            Some(value) => value.view(),
            None => View::Str(self.locks[slot].owner()),
        }
    }

    fn key_deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64> {
        let at_ms = self.locks[self.key_slot(db, key)?].at_ms;
        (at_ms != NEVER).then_some(at_ms)
    }

    fn key_clock(&self) -> Clock {
        Clock { logical_ms: self.clock.logical_ms, wall_us: self.clock.wall_us }
    }

    fn key_count(&self, db: Db) -> usize {
        self.locks.iter().filter(|(_, lock)| lock.db == db && self.is_held_now(lock)).count()
    }

    /// The cursor is the next slot to look at: a key keeps its slot for as long as it lives.
    fn key_scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64 {
        let from = u32::try_from(cursor).unwrap_or(NONE);
        for (looked, (slot, lock)) in self.locks.iter_from(from).enumerate() {
            if looked == count {
                return u64::from(slot);
            }
            if lock.db == db && self.is_held_now(lock) {
                visit(lock.name(), self.key_view(slot));
            }
        }
        0
    }
}

/// The keyspace for commands that only read. Nothing it is asked to change changes.
pub(crate) struct ReadKeys<'m>(pub(crate) &'m Machine);

impl Keys for ReadKeys<'_> {
    fn clock(&self) -> Clock {
        self.0.key_clock()
    }
    fn value(&self, db: Db, key: &[u8]) -> Option<View<'_>> {
        self.0.key_slot(db, key).map(|slot| self.0.key_view(slot))
    }
    fn deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.0.key_deadline_ms(db, key)
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
        self.0.key_count(db)
    }
    fn scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64 {
        self.0.key_scan(db, cursor, count, visit)
    }
    fn flush(&mut self, _: Option<Db>) {}
    fn publish(&mut self, _: &[u8], _: &[u8]) -> i64 {
        0
    }
    fn begin(&mut self) {}
    fn commit(&mut self) {}
    fn rollback(&mut self) {}
}

/// The keyspace for one command, script or transaction.
pub(crate) struct MachineKeys<'m> {
    pub(crate) machine: &'m mut Machine,
    pub(crate) out: &'m mut Applied,
    undo: Option<Undo>,
}

/// How it was at `begin`.
struct Undo {
    locks: BTreeMap<u32, (Before, Option<Value>)>,
    events: usize,
    published: usize,
    noted: usize,
    event_seq: u64,
    counters: super::stats::Counters,
    ready: usize,
}

impl<'m> MachineKeys<'m> {
    pub(crate) fn new(machine: &'m mut Machine, out: &'m mut Applied) -> MachineKeys<'m> {
        MachineKeys { machine, out, undo: None }
    }

    /// Notes a lock before it changes for the first time.
    fn save(&mut self, slot: u32) {
        let Some(undo) = &mut self.undo else { return };
        let machine = &*self.machine;
        let now = || (machine.locks[slot].before(), machine.values.get(&slot).cloned());
        undo.locks.entry(slot).or_insert_with(now);
    }

    fn end(&mut self, slot: u32) {
        self.save(slot);
        self.machine.end_grant(slot, Ended::Released, EventKind::Released, self.out);
    }

    fn set_at(&mut self, slot: u32, at_ms: u64) {
        self.machine.locks.edit(slot).at_ms = at_ms;
        self.machine.deadlines.set(Kind::Lock, slot, at_ms);
    }

    fn renewed(&mut self, slot: u32) {
        self.machine.emit(EventKind::Renewed, slot, EventOwner::Holder, self.out);
    }

    /// Somebody may wait for what this key now holds.
    fn note_ready(&mut self, slot: u32) {
        match self.machine.values.get(&slot) {
            Some(Value::List(_) | Value::ZSet(_)) => {
                let lock = &self.machine.locks[slot];
                self.machine.blocked.note_ready(lock.db, lock.name());
            }
            Some(Value::Str(_) | Value::Hash(_) | Value::Set(_)) | None => {}
        }
    }

    fn put_back(&mut self, slot: u32, before: Before, value: Option<Value>) {
        let machine = &mut *self.machine;
        match value {
            Some(value) => machine.values.insert(slot, value),
            None => machine.values.remove(&slot),
        };
        match before.phase {
            Phase::Held => {
                let (session, at_ms) = (before.session, before.at_ms);
                if session != NONE && machine.locks[slot].session == NONE {
                    let mut locks = machine.sessions[session].locks;
                    locks.push_back(&mut machine.locks, slot);
                    machine.sessions.edit(session).locks = locks;
                }
                machine.locks.edit(slot).put_back(before);
                machine.deadlines.set(Kind::Lock, slot, at_ms);
            }
            Phase::Awaited | Phase::Idle => {
                machine.deadlines.clear(Kind::Lock, slot);
                let mut before = before;
                (before.at_ms, before.phase) = (NEVER, Phase::Awaited);
                machine.locks.edit(slot).put_back(before);
                // Goes back to the idle list, or away where it never had a fence.
                machine.to_serve.push_back(slot);
            }
        }
    }
}

impl Keys for MachineKeys<'_> {
    fn clock(&self) -> Clock {
        self.machine.key_clock()
    }

    fn value(&self, db: Db, key: &[u8]) -> Option<View<'_>> {
        self.machine.key_slot(db, key).map(|slot| self.machine.key_view(slot))
    }

    fn deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.machine.key_deadline_ms(db, key)
    }

    fn put(&mut self, db: Db, key: &[u8], value: Value, deadline: Deadline) -> Result<(), Refusal> {
        let at_ms = match deadline {
            Deadline::Keep => self.machine.key_deadline_ms(db, key).unwrap_or(NEVER),
            Deadline::Never => NEVER,
            Deadline::At(at_ms) => at_ms,
        };
        let slot = match self.machine.names.find(&self.machine.locks, db, key) {
            Some(slot) => slot,
            None => self.machine.record_for(db, key)?,
        };
        self.save(slot);
        if self.machine.locks[slot].is_held() {
            if self.machine.key_view(slot) == value.view() {
                self.set_at(slot, at_ms);
                self.renewed(slot);
                return Ok(());
            }
            self.end(slot);
        }
        let owner: &[u8] = match &value {
            Value::Str(bytes) => bytes,
            Value::Hash(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_) => b"",
        };
        self.machine.grant_until(slot, owner, at_ms, NONE, self.out);
        match value {
            Value::Str(_) => {}
            Value::Hash(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_) => {
                self.machine.values.insert(slot, value);
                self.note_ready(slot);
            }
        }
        Ok(())
    }

    fn edit(&mut self, db: Db, key: &[u8], edit: &mut dyn FnMut(&mut Value) -> bool) {
        let Some(slot) = self.machine.key_slot(db, key) else { return };
        self.save(slot);
        let Some(value) = self.machine.values.get_mut(&slot) else { return };
        let changed = edit(value);
        if value.is_empty_collection() {
            self.end(slot);
        } else if changed {
            self.renewed(slot);
            self.note_ready(slot);
        }
    }

    fn remove(&mut self, db: Db, key: &[u8]) -> bool {
        let Some(slot) = self.machine.key_slot(db, key) else { return false };
        self.end(slot);
        true
    }

    fn set_deadline(&mut self, db: Db, key: &[u8], deadline: Deadline) {
        let Some(slot) = self.machine.key_slot(db, key) else { return };
        self.save(slot);
        match deadline {
            Deadline::Keep => return,
            Deadline::Never => self.set_at(slot, NEVER),
            Deadline::At(at_ms) => self.set_at(slot, at_ms),
        }
        self.renewed(slot);
    }

    fn count(&self, db: Db) -> usize {
        self.machine.key_count(db)
    }

    fn scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64 {
        self.machine.key_scan(db, cursor, count, visit)
    }

    fn flush(&mut self, db: Option<Db>) {
        let locks = self.machine.locks.iter();
        let doomed: Vec<u32> = locks
            .filter(|(_, lock)| lock.is_held() && db.is_none_or(|db| lock.db == db))
            .map(|(slot, _)| slot)
            .collect();
        let noted = self.out.noted.len();
        for slot in doomed {
            self.end(slot);
        }
        if self.machine.wanted.keys {
            // One word for all of them.
            self.out.noted.truncate(noted);
            self.out.noted.push(Noted::Flushed);
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

    fn begin(&mut self) {
        self.undo = Some(Undo {
            locks: BTreeMap::new(),
            events: self.out.events.len(),
            published: self.out.published.len(),
            noted: self.out.noted.len(),
            event_seq: self.machine.event_seq,
            counters: self.machine.counters,
            ready: self.machine.blocked.ready_len(),
        });
    }

    fn commit(&mut self) {
        self.undo = None;
    }

    fn rollback(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        for (slot, (before, value)) in undo.locks {
            self.put_back(slot, before, value);
        }
        self.out.events.truncate(undo.events);
        self.out.published.truncate(undo.published);
        self.out.noted.truncate(undo.noted);
        self.machine.event_seq = undo.event_seq;
        self.machine.counters = undo.counters;
        self.machine.blocked.truncate_ready(undo.ready);
    }
}
