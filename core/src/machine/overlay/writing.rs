//! The overlay's changes: one key's record at a time, by the rules the machine applies.

use super::{note, Bytes, Db, Entry, GivenUp, Holder, Overlay};
use crate::keyspace::{errors, Keys, Value};
use crate::machine::keys::adapter::Clash;
use crate::machine::keys::members::Grants;
use crate::machine::Machine;
use crate::reply::Refusal;
use crate::types::Fence;

impl Overlay<'_> {
    /// Opens a key for change: a copy of its record, if it has none here yet.
    fn open(&mut self, db: Db, key: &[u8]) -> &mut Entry {
        let is_first = note(&mut self.written, db, key);
        self.serves_waiters |= self.machine.is_waited_for(db, key);
        if self.entry(db, key).is_none() {
            let slot = self.machine_slot(db, key);
            self.new_records += usize::from(is_first && slot.is_none());
            let holder = slot.and_then(|slot| self.in_machine(slot)).map(|seen| Holder {
                value: seen.value.to_value(),
                at_ms: seen.at_ms,
                grants: seen.grants.cloned(),
            });
            let fence = slot.map_or(Fence(0), |slot| self.machine.locks[slot].fence);
            let entry = Entry { holder, fence };
            self.changes.by_db.entry(db).or_default().insert(Bytes::copy_from_slice(key), entry);
        }
        let entries = self.changes.by_db.get_mut(&db).expect("it was put there");
        entries.get_mut(key).expect("it was put there")
    }

    /// Whether a key without a record can have one without another being forgotten.
    fn check_room(&mut self, db: Db, key: &[u8]) -> Result<(), Refusal> {
        let has_record = self.entry(db, key).is_some() || self.machine_slot(db, key).is_some();
        if has_record || self.records() + self.taken.records < self.machine.limits.locks_max {
            return Ok(());
        }
        self.give_up(GivenUp::Records);
        Err(crate::grammar::errors::too_many_locks(self.machine.limits.locks_max))
    }

    pub(super) fn write(&mut self, db: Db, key: &[u8], value: Value, at_ms: u64) -> Result<(), Refusal> {
        // Whatever comes of it depends on what is there.
        self.depend_on(db, key);
        if self.is_held_by_several(db, key) {
            return Err(crate::grammar::errors::plain_write_on_several());
        }
        self.check_room(db, key)?;
        if let Some(seen) = self.held(db, key) {
            if seen.value == value.view() {
                return self.set_end(db, key, at_ms);
            }
            self.check_replace(db, key)?;
        }
        let fence = self.next_fence(db, key);
        let grants = match (&value, self.member) {
            (Value::Str(_), Some(member)) => {
                let mut grants = Grants::default();
                grants.set(member, at_ms);
                Some(grants)
            }
            (Value::Str(_), None) | (Value::Hash(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_), _) => {
                None
            }
        };
        let (before, after) =
            (self.weight_of(db, key), Machine::weight_of_key(key, value.view(), grants.as_ref()) as i64);
        if after > before {
            self.room_for((after - before) as usize)?;
        }
        *self.open(db, key) = Entry { holder: Some(Holder { value, at_ms, grants }), fence };
        self.changes.grown += after - before;
        Ok(())
    }

    /// What a key counts for. A free one is as good as none.
    fn weight_of(&self, db: Db, key: &[u8]) -> i64 {
        let Some(seen) = self.held(db, key) else { return 0 };
        Machine::weight_of_key(key, seen.value, seen.grants) as i64
    }

    /// What the end of a key gives back. Of one that goes to a waiter, the record stays.
    fn given_back_by(&self, db: Db, key: &[u8]) -> i64 {
        match self.machine.is_waited_for(db, key) {
            true => 0,
            false => self.weight_of(db, key),
        }
    }

    fn next_fence(&self, db: Db, key: &[u8]) -> Fence {
        let recorded = self.machine_slot(db, key).map(|slot| self.machine.locks[slot].fence);
        let last = self.entry(db, key).map(|entry| entry.fence).or(recorded).unwrap_or(Fence(0));
        Fence::next(last.max(self.machine.floor), self.fence_wall_us)
    }

    /// A member may not change the value under which others hold a key.
    fn check_replace(&mut self, db: Db, key: &[u8]) -> Result<(), Refusal> {
        let (Some(member), Some(seen)) = (self.member, self.held(db, key)) else { return Ok(()) };
        if !seen.grants.is_some_and(|grants| grants.others_live(member, self.now_ms())) {
            return Ok(());
        }
        let hidden = self.hiding && !self.is_granted_by(self.member, &seen);
        self.clash = if hidden { Clash::Hidden } else { Clash::Refused };
        Err(errors::HELD_BY_MEMBERS)
    }

    /// Sets when the caller's share of a held key ends. A member that has none yet takes one.
    pub(super) fn set_end(&mut self, db: Db, key: &[u8], at_ms: u64) -> Result<(), Refusal> {
        let (member, now_ms, next_fence) = (self.member, self.now_ms(), self.next_fence(db, key));
        let is_full = |grants: &Grants| member.is_some_and(|member| !grants.has_room_for(member));
        if self.held(db, key).is_some_and(|seen| seen.grants.is_some_and(is_full)) {
            return Err(errors::TOO_MANY_MEMBERS);
        }
        let entry = self.open(db, key);
        let Some(holder) = &mut entry.holder else { return Ok(()) };
        match (member, &mut holder.grants) {
            (Some(member), Some(grants)) => {
                let had_its_turn = grants.until_ms(member).is_some();
                if had_its_turn && !grants.is_live(member, now_ms) {
                    grants.keep_live(now_ms);
                    entry.fence = next_fence;
                }
                grants.set(member, at_ms);
                holder.at_ms = grants.last_ms();
            }
            (Some(_), None) | (None, None) => holder.at_ms = at_ms,
            (None, Some(grants)) => {
                grants.end_live_at(now_ms, at_ms);
                holder.at_ms = at_ms;
            }
        }
        Ok(())
    }

    /// Changes a collection in place.
    pub(super) fn change(&mut self, db: Db, key: &[u8], edit: &mut dyn FnMut(&mut Value) -> bool) {
        let (mut growth, whole) = (0, self.given_back_by(db, key));
        let entry = self.open(db, key);
        let Some(holder) = &mut entry.holder else { return };
        match &mut holder.value {
            // Strings are replaced, never edited.
            Value::Str(_) => {}
            value @ (Value::Hash(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_)) => {
                let before = value.weight();
                edit(value);
                growth = value.weight() as i64 - before as i64;
                if value.is_empty_collection() {
                    (entry.holder, growth) = (None, -whole);
                }
            }
        }
        self.changes.grown += growth;
    }

    /// Ends a key, or a member's share of it. A member that has none changes nothing.
    pub(super) fn take_away(&mut self, db: Db, key: &[u8]) -> bool {
        let (member, now_ms) = (self.member, self.now_ms());
        if !self.held(db, key).is_some_and(|seen| self.is_granted_by(member, &seen)) {
            return false;
        }
        let whole = self.given_back_by(db, key);
        let entry = self.open(db, key);
        let Some(holder) = &mut entry.holder else { return false };
        match (member, &mut holder.grants) {
            (Some(member), Some(grants)) if grants.others_live(member, now_ms) => {
                grants.give_back(member);
                holder.at_ms = grants.last_ms();
            }
            (Some(_) | None, _) => {
                entry.holder = None;
                self.changes.grown -= whole;
            }
        }
        true
    }

    /// Ends every key of one database, or of all.
    pub(super) fn end_all(&mut self, db: Option<Db>) {
        self.serves_waiters |= self.machine.has_waiters();
        match db {
            None => self.changes.all_flushed = true,
            Some(db) => {
                self.changes.flushed.insert(db);
            }
        }
        let named: Vec<Db> = self.changes.by_db.keys().copied().collect();
        for have in named.into_iter().filter(|have| db.is_none_or(|db| db == *have)) {
            let entries = self.changes.by_db.get_mut(&have).expect("it is there");
            let ended =
                |(key, entry): (&Bytes, &Entry)| (key.clone(), Entry { holder: None, ..entry.clone() });
            *entries = entries.iter().map(ended).collect();
        }
    }
}
