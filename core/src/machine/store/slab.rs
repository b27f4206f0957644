//! Numbered slots for the machine's records, in chunks that come and go with their content.
//!
//! The lowest free number is always the next one given out. So which numbers are in use is all there is to know: two
//! machines with the same records give out the same numbers for ever after, and a snapshot needs no free list.
//!
//! While a snapshot is being written, [`Slab::edit`], [`Slab::insert`] and [`Slab::remove`] save the old image of a slot the
//! walk has not reached yet. They are the only ways to change a slot.

use crate::limits::SNAPSHOT_RECORD_BYTES_MAX;
use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::store::free_map::FreeMap;
use crate::machine::store::slot::Slot;
use std::collections::VecDeque;
use std::ops::Index;

/// Numbers stay below this: the free map has four levels of 64.
pub(crate) const SLOTS_MAX: u32 = 1 << 24;
/// Bytes of a chunk, at most. A little less than a multiple of a power of two: allocators round such sizes up, mimalloc from 20 KiB to 24.
const CHUNK_BYTES: usize = 20 * 1024 - 64;
/// Slots of a chunk, at most: one that comes and goes for a single record must cost little.
const CHUNK_SLOTS_MAX: usize = 256;

/// How a record looks in a snapshot. What can be worked out from other records is not part of it.
pub(crate) trait Image: Sized {
    /// The kind of its records: see `snapshot.rs`.
    const KIND: u8;

    fn write(&self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    free: FreeMap,
    len: usize,
    walk: Option<Box<Walk>>,
}

struct Chunk<T> {
    /// Empty while nothing is in it.
    slots: Box<[Option<T>]>,
    used: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { chunks: Vec::new(), free: FreeMap::default(), len: 0, walk: None }
    }
}

impl<T: Image> Index<Slot<T>> for Slab<T> {
    type Output = T;

    /// A slot that must be in use: the links between records are an invariant, not an input.
    #[inline]
    fn index(&self, slot: Slot<T>) -> &T {
        self.get(slot).expect("a link points at a slot in use")
    }
}

impl<T> Slab<T> {
    const CHUNK_SLOTS: u32 = {
        let fitting = CHUNK_BYTES / size_of::<Option<T>>();
        (if fitting < CHUNK_SLOTS_MAX { fitting } else { CHUNK_SLOTS_MAX }) as u32
    };

    /// The chunk of a slot, and its place there.
    #[inline]
    fn place_of(slot: u32) -> (usize, usize) {
        ((slot / Self::CHUNK_SLOTS) as usize, (slot % Self::CHUNK_SLOTS) as usize)
    }
}

impl<T: Image> Slab<T> {
    /// No slot at or above it is in use.
    pub(crate) fn end(&self) -> u32 {
        self.free.end
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All slots that may be in use. Borrows nothing.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot<T>> {
        (0..self.free.end).map(Slot::new)
    }

    #[inline]
    pub(crate) fn get(&self, slot: Slot<T>) -> Option<&T> {
        self.at(slot.number())
    }

    #[inline]
    fn at(&self, slot: u32) -> Option<&T> {
        let (chunk, place) = Self::place_of(slot);
        self.chunks.get(chunk)?.slots.get(place)?.as_ref()
    }

    /// Opens a slot in use for change.
    #[inline]
    pub(crate) fn edit(&mut self, slot: Slot<T>) -> &mut T {
        let slot = slot.number();
        self.save_before_change(slot);
        let (chunk, place) = Self::place_of(slot);
        self.chunks[chunk].slots[place].as_mut().expect("a link points at a slot in use")
    }

    pub(crate) fn insert(&mut self, value: T) -> Slot<T> {
        let slot = self.free.take_lowest();
        assert!(slot < SLOTS_MAX, "limits keep every slab below {SLOTS_MAX} records");
        self.save_before_change(slot);
        self.put(slot, value);
        Slot::new(slot)
    }

    /// Puts a record where a snapshot says it was. `None` where the place is taken or cannot exist.
    pub(crate) fn insert_at(&mut self, slot: Slot<T>, value: T) -> Option<()> {
        let slot = slot.number();
        if slot >= SLOTS_MAX || self.at(slot).is_some() {
            return None;
        }
        self.free.take(slot);
        self.put(slot, value);
        Some(())
    }

    fn put(&mut self, slot: u32, value: T) {
        let (at, place) = Self::place_of(slot);
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || Chunk { slots: Box::default(), used: 0 });
        }
        let chunk = &mut self.chunks[at];
        if chunk.slots.is_empty() {
            chunk.slots = (0..Self::CHUNK_SLOTS).map(|_| None).collect();
        }
        chunk.slots[place] = Some(value);
        chunk.used += 1;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, slot: Slot<T>) -> T {
        let slot = slot.number();
        self.save_before_change(slot);
        let (at, place) = Self::place_of(slot);
        let chunk = &mut self.chunks[at];
        let value = chunk.slots[place].take().expect("a link points at a slot in use");
        chunk.used -= 1;
        if chunk.used == 0 {
            chunk.slots = Box::default();
        }
        self.len -= 1;
        self.free.give_back(slot);
        value
    }

    /// The records from `slot` on, in the order of their numbers.
    pub(crate) fn iter_from(&self, slot: Slot<T>) -> impl Iterator<Item = (Slot<T>, &T)> {
        let (first, place) = Self::place_of(slot.number());
        self.chunks.iter().enumerate().skip(first).flat_map(move |(at, chunk)| {
            let base = at as u32 * Self::CHUNK_SLOTS;
            let skipped = if at == first { place } else { 0 };
            let slots = chunk.slots.iter().enumerate().skip(skipped);
            slots.filter_map(move |(i, value)| Some((Slot::new(base + i as u32), value.as_ref()?)))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot<T>, &T)> {
        self.iter_from(Slot::new(0))
    }

    #[inline]
    fn save_before_change(&mut self, slot: u32) {
        if self.walk.is_some() {
            self.save_image(slot);
        }
    }

    #[cold]
    fn save_image(&mut self, slot: u32) {
        let Some(mut walk) = self.walk.take() else { return };
        if walk.mark(slot) {
            if let Some(value) = self.at(slot) {
                write_record(Slot::new(slot), value, walk.saved_end());
                walk.saved_count += 1;
            }
        }
        self.walk = Some(walk);
    }

    /// From now on the walk shows this very state, whatever changes meanwhile.
    pub(crate) fn walk_begin(&mut self) {
        self.walk = Some(Box::new(Walk::new(self.free.end)));
    }

    pub(crate) fn walk_stop(&mut self) {
        self.walk = None;
    }

    /// Appends images of slots not yet shown, looking at no more than `budget` slots, until `out` has `bytes_max` bytes or more.
    /// Answers how many records were appended, and whether the walk is over.
    pub(crate) fn walk_step(
        &mut self,
        budget: &mut usize,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> (u64, bool) {
        let Some(mut walk) = self.walk.take() else { return (0, true) };
        while out.len() < bytes_max {
            let Some(saved) = walk.saved.pop_front() else { break };
            out.extend_from_slice(&saved);
        }
        let mut count = std::mem::take(&mut walk.saved_count);
        while walk.next < walk.end && *budget > 0 && out.len() < bytes_max {
            *budget -= 1;
            let slot = walk.next;
            let (chunk, _) = Self::place_of(slot);
            if self.chunks.get(chunk).is_none_or(|chunk| chunk.used == 0) {
                // Nothing is here any more; what was has been saved when it went.
                walk.next = (chunk as u32 + 1) * Self::CHUNK_SLOTS;
                continue;
            }
            if walk.mark(slot) {
                if let Some(value) = self.at(slot) {
                    count += 1;
                    write_record(Slot::new(slot), value, out);
                }
            }
            walk.next += 1;
        }
        let over = walk.next >= walk.end && walk.saved.is_empty();
        if !over {
            self.walk = Some(walk);
        }
        (count, over)
    }
}

pub(crate) fn write_record<T: Image>(slot: Slot<T>, value: &T, out: &mut Vec<u8>) {
    framed(T::KIND, out, |out| {
        put_varint(out, u64::from(slot.number()));
        value.write(out);
    });
}

/// Appends one record: its kind, its length and what `write` appends.
pub(crate) fn framed(kind: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = out.len() - length_at - 4;
    assert!(length <= SNAPSHOT_RECORD_BYTES_MAX, "a record of kind {kind} has {length} bytes");
    out[length_at..length_at + 4].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Saved images are kept in chunks of about this size, so that none of them is ever moved as a whole.
const SAVED_CHUNK_BYTES: usize = 64 * 1024;

/// How far a snapshot has come.
struct Walk {
    next: u32,
    end: u32,
    /// One bit a slot: shown already, or empty at the beginning.
    seen: Vec<u64>,
    /// Records that changed or went before their turn.
    saved: VecDeque<Vec<u8>>,
    saved_count: u64,
}

impl Walk {
    fn new(end: u32) -> Walk {
        Walk {
            next: 0,
            end,
            seen: vec![0; (end as usize).div_ceil(64)],
            saved: VecDeque::new(),
            saved_count: 0,
        }
    }

    fn saved_end(&mut self) -> &mut Vec<u8> {
        if self.saved.back().is_none_or(|chunk| chunk.len() >= SAVED_CHUNK_BYTES) {
            self.saved.push_back(Vec::new());
        }
        self.saved.back_mut().expect("pushed just now")
    }

    /// Whether the slot's image at the beginning is still wanted; from now on it is not.
    fn mark(&mut self, slot: u32) -> bool {
        if slot < self.next || slot >= self.end {
            return false;
        }
        let (word, bit) = (slot as usize / 64, 1u64 << (slot % 64));
        let wanted = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Image for u64 {
        const KIND: u8 = 0;

        fn write(&self, out: &mut Vec<u8>) {
            put_varint(out, *self);
        }

        fn read(reader: &mut Reader<'_>) -> Option<u64> {
            reader.varint()
        }
    }

    fn slab(count: u64) -> Slab<u64> {
        let mut slab = Slab::default();
        (0..count).for_each(|value| assert_eq!(u64::from(slab.insert(value).number()), value));
        slab
    }

    #[test]
    fn lowest_free_number_comes_first() {
        let mut slab = slab(70_000);
        for slot in [69_999, 4096, 3, 64, 65_535] {
            slab.remove(Slot::new(slot));
        }
        for slot in [3, 64, 4096, 65_535, 69_999, 70_000] {
            assert_eq!(slab.insert(0), Slot::new(slot));
        }
    }

    #[test]
    fn empty_chunks_are_given_back() {
        let mut slab = slab(1000);
        (0..1000).for_each(|slot| assert_eq!(slab.remove(Slot::new(slot)), u64::from(slot)));
        assert!(slab.chunks.iter().all(|chunk| chunk.slots.is_empty()));
        assert_eq!(slab.insert(7), Slot::new(0));
    }

    #[test]
    fn walk_shows_the_beginning_whatever_changes() {
        let mut slab = slab(1000);
        slab.remove(Slot::new(5));
        slab.walk_begin();
        let mut bytes = Vec::new();
        let mut total = 0;
        let mut round = 0u64;
        loop {
            let (count, over) = slab.walk_step(&mut 7, usize::MAX, &mut bytes);
            total += count;
            if over {
                break;
            }
            round += 1;
            let slot = Slot::new((round * 331 % 1000) as u32);
            match slab.get(slot) {
                Some(_) if round.is_multiple_of(3) => assert!(slab.remove(slot) > 0),
                Some(_) => *slab.edit(slot) = 1_000_000,
                None => assert!(slab.insert(2_000_000).number() < 1000),
            }
        }
        let mut reader = Reader::new(&bytes);
        let mut seen = std::collections::BTreeMap::new();
        while !reader.is_empty() {
            assert_eq!((reader.u8(), reader.u32_fixed().is_some()), (Some(0), true));
            let slot = reader.varint().unwrap();
            assert_eq!(seen.insert(slot, u64::read(&mut reader).unwrap()), None);
        }
        assert_eq!(total, 999);
        assert_eq!(seen.len(), 999);
        assert!(seen.iter().all(|(slot, value)| slot == value));
    }

    /// As large as a lock's record: no power of two of them makes a chunk.
    struct Wide([u64; 9]);

    impl Image for Wide {
        const KIND: u8 = 0;

        fn write(&self, out: &mut Vec<u8>) {
            put_varint(out, self.0[0]);
        }

        fn read(reader: &mut Reader<'_>) -> Option<Wide> {
            Some(Wide([reader.varint()?; 9]))
        }
    }

    fn draw(seed: &mut u64, bound: u64) -> u64 {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*seed >> 33) % bound
    }

    /// Chunks come and go while a walk goes on; a map of the same records is the model.
    #[test]
    fn chunks_of_any_size_hold_what_a_map_holds() {
        use std::collections::BTreeMap;
        assert!(!Slab::<Wide>::CHUNK_SLOTS.is_power_of_two());
        let mut seed = 7;
        let mut slab: Slab<Wide> = Slab::default();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        for round in 0..60 {
            for _ in 0..draw(&mut seed, 1_500) {
                let value = draw(&mut seed, 1 << 30);
                let slot = slab.insert(Wide([value; 9])).number();
                assert_eq!((0..).find(|number| !model.contains_key(number)), Some(slot));
                model.insert(slot, value);
            }
            let beginning = model.clone();
            slab.walk_begin();
            let (mut bytes, mut total) = (Vec::new(), 0);
            loop {
                let (mut budget, bytes_max) = (1 + draw(&mut seed, 90) as usize, bytes.len() + 300);
                let (count, over) = slab.walk_step(&mut budget, bytes_max, &mut bytes);
                total += count as usize;
                if over {
                    break;
                }
                // Now and then all of a chunk goes.
                let size = if draw(&mut seed, 8) == 0 { 2 * Slab::<Wide>::CHUNK_SLOTS } else { 9 };
                let from = draw(&mut seed, 2_500) as u32;
                for slot in from..from + size {
                    if model.remove(&slot).is_some() {
                        slab.remove(Slot::new(slot));
                    }
                }
                if let Some((slot, value)) = model.range_mut(from..).next() {
                    *value = draw(&mut seed, 1 << 30);
                    slab.edit(Slot::new(*slot)).0 = [*value; 9];
                }
            }
            let mut reader = Reader::new(&bytes);
            let mut seen = BTreeMap::new();
            while !reader.is_empty() {
                assert_eq!((reader.u8(), reader.u32_fixed().is_some()), (Some(0), true));
                let slot = reader.varint().unwrap() as u32;
                assert_eq!(seen.insert(slot, reader.varint().unwrap()), None);
            }
            assert_eq!((seen, total), (beginning.clone(), beginning.len()), "round {round}");
            let from = draw(&mut seed, 2_800) as u32;
            let rest: Vec<_> =
                slab.iter_from(Slot::new(from)).map(|(slot, wide)| (slot.number(), wide.0[0])).collect();
            assert!(rest.into_iter().eq(model.range(from..).map(|(slot, value)| (*slot, *value))));
        }
    }

    #[test]
    fn the_last_slots_are_as_good_as_any() {
        let mut slab: Slab<Wide> = Slab::default();
        for slot in [SLOTS_MAX - 1, SLOTS_MAX - 2, SLOTS_MAX - 300] {
            assert!(slab.insert_at(Slot::new(slot), Wide([1; 9])).is_some());
        }
        for slot in [SLOTS_MAX, SLOTS_MAX + 1, u32::MAX] {
            assert!(slab.insert_at(Slot::new(slot), Wide([1; 9])).is_none());
            assert!(slab.get(Slot::new(slot)).is_none());
            assert_eq!(slab.iter_from(Slot::new(slot)).count(), 0);
        }
        assert_eq!((slab.iter().count(), slab.iter_from(Slot::new(SLOTS_MAX - 2)).count()), (3, 2));
    }
}
