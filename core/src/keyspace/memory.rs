//! `MemoryKeys`: a plain map as a `Keys`, for tests and for measuring. No locks, no fences, no waiters.

use super::keys::{Clock, Db, Deadline, Keys};
use super::value::{Value, View};
use crate::reply::Refusal;
use crate::types::has_passed;
use bytes::Bytes;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: Value,
    deadline_ms: Option<u64>,
}

/// Ordered by a hash that never changes, then by name, so that a scan can go on where it stopped.
type Place = (Db, u64, Bytes);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryKeys {
    pub now: Clock,
    pub published: Vec<(Bytes, Bytes)>,
    entries: BTreeMap<Place, Entry>,
    undo: Option<Box<MemoryKeys>>,
}

fn place(db: Db, key: &[u8]) -> Place {
    (db, scan_hash(key), Bytes::copy_from_slice(key))
}

/// The place of a key in the order of `SCAN`: the same on every node and in every release. Never 0, which is a scan's end.
#[must_use]
pub fn scan_hash(key: &[u8]) -> u64 {
    // FNV-1a, folded once more because its low bits are weak.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in key {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    ((hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) | 1
}

impl MemoryKeys {
    fn live(&self, db: Db, key: &[u8]) -> Option<&Entry> {
        let entry = self.entries.get(&place(db, key))?;
        (!self.is_over(entry)).then_some(entry)
    }

    fn is_over(&self, entry: &Entry) -> bool {
        entry.deadline_ms.is_some_and(|deadline_ms| has_passed(deadline_ms, self.now.logical_ms))
    }
}

impl Keys for MemoryKeys {
    fn clock(&self) -> Clock {
        self.now
    }

    fn value(&self, db: Db, key: &[u8]) -> Option<View<'_>> {
        self.live(db, key).map(|entry| entry.value.view())
    }

    fn deadline_ms(&self, db: Db, key: &[u8]) -> Option<u64> {
        self.live(db, key)?.deadline_ms
    }

    fn put(&mut self, db: Db, key: &[u8], value: Value, deadline: Deadline) -> Result<(), Refusal> {
        let deadline_ms = match deadline {
            Deadline::Keep => self.deadline_ms(db, key),
            Deadline::Never => None,
            Deadline::At(at) => Some(at),
        };
        self.entries.insert(place(db, key), Entry { value, deadline_ms });
        Ok(())
    }

    fn edit(&mut self, db: Db, key: &[u8], edit: &mut dyn FnMut(&mut Value) -> bool) {
        if self.live(db, key).is_none() {
            return;
        }
        let place = place(db, key);
        let entry = self.entries.get_mut(&place).expect("a live key has an entry");
        edit(&mut entry.value);
        if entry.value.is_empty_collection() {
            self.entries.remove(&place);
        }
    }

    fn remove(&mut self, db: Db, key: &[u8]) -> bool {
        let live = self.live(db, key).is_some();
        self.entries.remove(&place(db, key));
        live
    }

    fn set_deadline(&mut self, db: Db, key: &[u8], deadline: Deadline) {
        if self.live(db, key).is_none() {
            return;
        }
        if let Some(entry) = self.entries.get_mut(&place(db, key)) {
            match deadline {
                Deadline::Keep => {}
                Deadline::Never => entry.deadline_ms = None,
                Deadline::At(at) => entry.deadline_ms = Some(at),
            }
        }
    }

    fn count(&self, db: Db) -> usize {
        self.entries.iter().filter(|((have, _, _), entry)| *have == db && !self.is_over(entry)).count()
    }

    fn scan(&self, db: Db, cursor: u64, count: usize, visit: &mut dyn FnMut(&[u8], View<'_>)) -> u64 {
        let mut last_hash = 0;
        let from = (db, cursor, Bytes::new());
        let until = (db + 1, 0, Bytes::new());
        for (seen, ((_, hash, key), entry)) in self.entries.range(from..until).enumerate() {
            if seen >= count && *hash != last_hash {
                return *hash;
            }
            last_hash = *hash;
            if !self.is_over(entry) {
                visit(key, entry.value.view());
            }
        }
        0
    }

    fn flush(&mut self, db: Option<Db>) {
        match db {
            Some(db) => self.entries.retain(|(have, _, _), _| *have != db),
            None => self.entries.clear(),
        }
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        self.published.push((Bytes::copy_from_slice(channel), Bytes::copy_from_slice(message)));
        0
    }

    fn begin(&mut self) {
        self.undo = Some(Box::new(self.clone()));
    }

    fn commit(&mut self) {
        self.undo = None;
    }

    fn rollback(&mut self) {
        if let Some(before) = self.undo.take() {
            *self = *before;
        }
    }
}
