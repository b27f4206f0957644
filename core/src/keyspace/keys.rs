//! `Keys`: what the commands need from whoever keeps the keys. The lock machine implements it over its lock table, the tests
//! over a plain map ([`super::memory::MemoryKeys`]).
//!
//! # Contract
//!
//! - A key past its deadline is absent for every method.
//! - Whoever implements this notes each change for watchers, `WATCH` and client tracking by itself: every change comes
//!   through `put`, `edit`, `remove`, `set_deadline` or `flush`.
//! - Deadlines are points of the logical clock. The wall clock serves absolute times and `TIME` alone.
//! - No answer may depend on memory addresses, hash seeds or the order in which maps happen to iterate.

use super::table::Row;
use super::value::{Value, View};
use crate::reply::{Refusal, Reply};

/// Keyspace number, as in `SELECT`.
pub type Db = u32;

/// The stamp of the entry that is being applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    pub logical_ms: u64,
    pub wall_us: u64,
}

impl Clock {
    #[must_use]
    pub fn wall_ms(self) -> i64 {
        (self.wall_us / 1000) as i64
    }
}

/// What a write does to the time a key has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// As it was; none on a new key.
    Keep,
    /// Lives until it is deleted.
    Never,
    /// Ends when the logical clock is past this.
    At(u64),
}

pub trait Keys {
    fn clock(&self) -> Clock;

    /// Pays for work before it is done: about one unit for an element looked at, four for one changed. An error where that is more
    /// than one command may do.
    fn charge(&self, _units: u64) -> Result<(), Refusal> {
        Ok(())
    }

    /// The same for work that was done before it was known how much it is: it counts although it was too much.
    fn charge_done(&self, units: u64) -> Result<(), Refusal> {
        self.charge(units)
    }

    fn value(&self, db: Db, key: &[u8]) -> Option<View<'_>>;

    /// `None` where the key is absent or has no deadline.
    fn deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64>;

    /// Whether a write that asks for an absent key may make this one. Whoever lets clients stand in line for absent keys says
    /// no while somebody does.
    fn is_vacant(&self, db: Db, key: &[u8]) -> bool {
        self.value(db, key).is_none()
    }

    /// Whether there may be keys that are locks with several holders.
    fn has_several(&self) -> bool {
        false
    }

    /// Whether a key is a lock held in mode shared or permits: what would write to it is refused.
    fn is_held_by_several(&self, _db: Db, _key: &[u8]) -> bool {
        false
    }

    /// Whether there is room for so many bytes more, for whoever does not know yet whether it needs them.
    fn may_grow(&self, _bytes: usize) -> bool {
        true
    }

    /// Room for a value to grow by so many bytes: `OOM` where there is none. Asked before an `edit` that grows one; `put` asks for
    /// itself.
    fn room_for(&mut self, _bytes: usize) -> Result<(), Refusal> {
        Ok(())
    }

    /// Bytes by which the key grows, beside its value, where this client's user becomes its holder.
    fn user_growth(&self, _db: Db, _key: &[u8]) -> usize {
        0
    }

    /// Creates the key or replaces its value. `OOM` where there is no room for one more.
    fn put(&mut self, db: Db, key: &[u8], value: Value, deadline: Deadline) -> Result<(), Refusal>;

    /// Changes the value in place; `edit` answers whether it changed anything. A collection that is empty afterwards is
    /// deleted. Does nothing to an absent key.
    fn edit(&mut self, db: Db, key: &[u8], edit: &mut dyn FnMut(&mut Value) -> bool);

    /// Whether there was something to remove.
    fn remove(&mut self, db: Db, key: &[u8]) -> bool;

    /// Does nothing to an absent key. `Deadline::Keep` is for `put` alone and does nothing here.
    fn set_deadline(&mut self, db: Db, key: &[u8], deadline: Deadline);

    fn count(&self, db: Db) -> usize;

    /// Visits about `count` keys from `cursor` on, in an order all nodes share; answers where to go on, 0 at the end. A key
    /// that is there from the first call to the last is visited.
    fn scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64;

    /// Whether `SCAN` counts every record that it looks at, `KEYS` answers in the order of `SCAN`, and elements of collections count whatever
    /// their bytes: as logged commands did at cluster version 1.
    fn is_version_1(&self) -> bool {
        false
    }

    /// Whether a flush may be asked for.
    fn check_flush(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Deletes every key of one database, or of all.
    fn flush(&mut self, db: Option<Db>);

    /// Answers how many receivers are known of. A replicated machine knows of none.
    fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64;

    /// A command was run. Whoever tracks what clients have read looks at it.
    fn note_read(&mut self, _row: &Row, _argv: &[&[u8]]) {}

    /// Runs a `LOCK.*` command at once, for scripts. `None` where there are no locks, only keys.
    fn lock(&mut self, _db: Db, _argv: &[&[u8]]) -> Option<Reply> {
        None
    }

    /// From here on changes can be taken back. Not nested.
    fn begin(&mut self);

    /// Changes since `begin` stay.
    fn commit(&mut self);

    /// Changes since `begin`, published messages too, never were.
    fn rollback(&mut self);
}
