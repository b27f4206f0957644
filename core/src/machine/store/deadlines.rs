//! What ends when, in one order: by time, then by kind, then by slot. The order does not depend on how it came about, so a
//! restored machine works deadlines off exactly as the original would.
//!
//! A four-way heap that knows where each item sits. It is worked out from the records, so it is not part of a snapshot.

use crate::machine::log::command::Db;
use crate::machine::store::slab::SLOTS_MAX;
use crate::machine::{HolderSlot, LockSlot, SessionSlot, WaiterSlot};

/// No deadline at all.
pub(crate) const NEVER: u64 = u64::MAX;

/// Whose deadline it is. In this order at one instant: a lock that ends goes to the waiter whose time is up in the same
/// millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Lock(LockSlot),
    Holder(HolderSlot),
    Session(SessionSlot),
    Waiter(WaiterSlot),
}

impl Timer {
    /// The number of its kind, and its slot.
    #[inline]
    fn parts(self) -> (usize, u32) {
        match self {
            Timer::Lock(slot) => (0, slot.number()),
            Timer::Holder(slot) => (1, slot.number()),
            Timer::Session(slot) => (2, slot.number()),
            Timer::Waiter(slot) => (3, slot.number()),
        }
    }
}

/// Twelve bytes, for which the time does without its alignment: there is one for each held lock.
#[derive(Clone, Copy)]
#[repr(C, packed(4))]
struct HeapItem {
    at_ms: u64,
    /// The timer's kind above its slot, which takes 24 bits.
    key: u32,
}

const _: () = assert!(size_of::<HeapItem>() == 12 && SLOTS_MAX == 1 << SLOT_BITS);
const SLOT_BITS: u32 = 24;

impl HeapItem {
    #[inline]
    fn new(at_ms: u64, timer: Timer) -> HeapItem {
        let (kind, slot) = timer.parts();
        HeapItem { at_ms, key: (kind as u32) << SLOT_BITS | slot }
    }

    #[inline]
    fn kind(self) -> usize {
        (self.key >> SLOT_BITS) as usize
    }

    #[inline]
    fn slot(self) -> u32 {
        self.key & ((1 << SLOT_BITS) - 1)
    }

    /// What items are ordered by, as one number: compared without a branch.
    #[inline]
    fn rank(self) -> u128 {
        u128::from(self.at_ms) << 64 | u128::from(self.key)
    }

    fn timer(self) -> Timer {
        match self.kind() {
            0 => Timer::Lock(LockSlot::new(self.slot())),
            1 => Timer::Holder(HolderSlot::new(self.slot())),
            2 => Timer::Session(SessionSlot::new(self.slot())),
            _ => Timer::Waiter(WaiterSlot::new(self.slot())),
        }
    }
}

#[derive(Default)]
pub(crate) struct Deadlines {
    heap: Vec<HeapItem>,
    places: [HeapIndexes; 4],
    /// Locks with a deadline, by database: for `INFO` alone.
    locks_by_db: Vec<u64>,
}

const ARITY: usize = 4;

impl Deadlines {
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn next(&self) -> Option<(u64, Timer)> {
        self.heap.first().map(|item| (item.at_ms, item.timer()))
    }

    pub(crate) fn get(&self, timer: Timer) -> Option<u64> {
        let (kind, slot) = timer.parts();
        let at = self.places[kind].get(slot)?;
        self.heap.get(at as usize).map(|item| item.at_ms)
    }

    /// Locks of a database that have a deadline.
    pub(crate) fn locks_of(&self, db: Db) -> u64 {
        self.locks_by_db.get(db as usize).copied().unwrap_or(0)
    }

    /// [`Deadlines::set`] for a lock.
    #[inline]
    pub(crate) fn set_lock(&mut self, db: Db, slot: LockSlot, at_ms: u64) {
        let before = self.heap.len();
        self.set(Timer::Lock(slot), at_ms);
        self.count_lock(db, before);
    }

    /// [`Deadlines::clear`] for a lock.
    #[inline]
    pub(crate) fn clear_lock(&mut self, db: Db, slot: LockSlot) {
        let before = self.heap.len();
        self.clear(Timer::Lock(slot));
        self.count_lock(db, before);
    }

    fn count_lock(&mut self, db: Db, len_before: usize) {
        if self.heap.len() == len_before {
            return;
        }
        if self.locks_by_db.len() <= db as usize {
            self.locks_by_db.resize(db as usize + 1, 0);
        }
        let count = &mut self.locks_by_db[db as usize];
        *count = match self.heap.len() > len_before {
            true => *count + 1,
            false => *count - 1,
        };
    }

    /// Sets, moves or (with [`NEVER`]) takes away the deadline of a slot.
    #[inline]
    pub(crate) fn set(&mut self, timer: Timer, at_ms: u64) {
        if at_ms == NEVER {
            self.clear(timer);
            return;
        }
        let item = HeapItem::new(at_ms, timer);
        let at = match self.places[item.kind()].get(item.slot()) {
            Some(at) => at as usize,
            None => {
                self.heap.push(item);
                self.places[item.kind()].insert(item.slot());
                self.heap.len() - 1
            }
        };
        self.heap[at] = item;
        self.settle(at);
    }

    #[inline]
    pub(crate) fn clear(&mut self, timer: Timer) {
        let (kind, slot) = timer.parts();
        let Some(at) = self.places[kind].get(slot) else { return };
        self.places[kind].remove(slot);
        let last = self.heap.pop().expect("a place points into the heap");
        if (at as usize) < self.heap.len() {
            self.heap[at as usize] = last;
            self.settle(at as usize);
        }
        if self.heap.capacity() > 4096 && self.heap.len() < self.heap.capacity() / 8 {
            self.heap.shrink_to(self.heap.len() * 2);
        }
    }

    /// Moves the item at `at` up or down to where it belongs.
    fn settle(&mut self, mut at: usize) {
        let item = self.heap[at];
        let rank = item.rank();
        while at > 0 {
            let parent = (at - 1) / ARITY;
            let above = self.heap[parent];
            if above.rank() <= rank {
                break;
            }
            self.place(at, above);
            at = parent;
        }
        while let Some(least) = self.least_from(at * ARITY + 1) {
            let below = self.heap[least];
            if rank <= below.rank() {
                break;
            }
            self.place(at, below);
            at = least;
        }
        self.place(at, item);
    }

    /// Where the least of the siblings stands of which this is the first.
    #[inline]
    fn least_from(&self, first: usize) -> Option<usize> {
        let siblings = self.heap.get(first..)?;
        let Some([a, b, c, d]) = siblings.first_chunk() else {
            return (0..siblings.len()).min_by_key(|at| siblings[*at].rank()).map(|at| first + at);
        };
        // Without a branch: which of them it is cannot be foreseen.
        let lesser = |a: (u128, usize), b: (u128, usize)| if b.0 < a.0 { b } else { a };
        let (_, at) = lesser(lesser((a.rank(), 0), (b.rank(), 1)), lesser((c.rank(), 2), (d.rank(), 3)));
        Some(first + at)
    }

    #[inline]
    fn place(&mut self, at: usize, item: HeapItem) {
        self.heap[at] = item;
        self.places[item.kind()].move_to(item.slot(), at as u32);
    }
}

const CHUNK: usize = 1024;
const NOWHERE: u32 = u32::MAX;

/// Chunks that are kept for the next slot that needs one: a lock that comes and goes alone must not make and drop one each time.
const SPARE_CHUNKS: usize = 16;

/// Slot → place in the heap, in chunks that go when nothing is in them.
#[derive(Default)]
struct HeapIndexes {
    chunks: Vec<IndexChunk>,
    /// With nothing in them.
    spare: Vec<Box<[u32; CHUNK]>>,
}

#[derive(Default)]
struct IndexChunk {
    /// None while nothing is in it.
    places: Option<Box<[u32; CHUNK]>>,
    used: u32,
}

impl HeapIndexes {
    #[inline]
    fn get(&self, slot: u32) -> Option<u32> {
        let places = self.chunks.get(slot as usize / CHUNK)?.places.as_ref()?;
        Some(places[slot as usize % CHUNK]).filter(|place| *place != NOWHERE)
    }

    /// Makes room for a slot that has no place; [`HeapIndexes::move_to`] gives it one.
    fn insert(&mut self, slot: u32) {
        let at = slot as usize / CHUNK;
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, IndexChunk::default);
        }
        let chunk = &mut self.chunks[at];
        if chunk.places.is_none() {
            chunk.places = Some(self.spare.pop().unwrap_or_else(|| Box::new([NOWHERE; CHUNK])));
        }
        chunk.used += 1;
    }

    #[inline]
    fn move_to(&mut self, slot: u32, place: u32) {
        let places = self.chunks[slot as usize / CHUNK].places.as_mut().expect("room was made for it");
        places[slot as usize % CHUNK] = place;
    }

    fn remove(&mut self, slot: u32) {
        self.move_to(slot, NOWHERE);
        let chunk = &mut self.chunks[slot as usize / CHUNK];
        chunk.used -= 1;
        if chunk.used == 0 {
            let places = chunk.places.take();
            if self.spare.len() < SPARE_CHUNKS {
                self.spare.extend(places);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A set of the same items is the model.
    #[test]
    fn agrees_with_a_sorted_set() {
        let mut deadlines = Deadlines::default();
        let mut model: BTreeSet<(u64, (usize, u32))> = BTreeSet::new();
        let mut seed = 42u64;
        let mut draw = |bound: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % bound
        };
        for _ in 0..30_000 {
            let kind = draw(4);
            let slot = draw(3000) as u32;
            let timer = [
                Timer::Lock(LockSlot::new(slot)),
                Timer::Holder(HolderSlot::new(slot)),
                Timer::Session(SessionSlot::new(slot)),
                Timer::Waiter(WaiterSlot::new(slot)),
            ][kind as usize];
            if let Some(at) = deadlines.get(timer) {
                model.remove(&(at, timer.parts()));
            }
            if draw(3) == 0 {
                deadlines.clear(timer);
            } else {
                let at_ms = draw(500);
                deadlines.set(timer, at_ms);
                model.insert((at_ms, timer.parts()));
            }
            let first = deadlines.next().map(|(at, timer)| (at, timer.parts()));
            assert_eq!(first, model.first().copied());
            assert_eq!(deadlines.len(), model.len());
        }
        while let Some((at, timer)) = deadlines.next() {
            assert_eq!(model.pop_first(), Some((at, timer.parts())));
            deadlines.clear(timer);
        }
        assert!(deadlines.places.iter().all(|p| p.chunks.iter().all(|chunk| chunk.places.is_none())));
    }
}
