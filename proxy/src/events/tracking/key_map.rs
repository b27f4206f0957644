//! A map by key names that grows in small steps.
//!
//! A hash table that grows moves all its entries at once: with a million of them that takes hundreds of milliseconds. Beyond
//! [`ONE_TABLE_MAX`] entries this map is [`SHARDS`] tables, and an insertion moves the entries of one of them at most. A small map is
//! one table: there is a map for each tracking client.

use bytes::Bytes;
use indexmap::map::Entry;
use indexmap::IndexMap;
use std::hash::{BuildHasher, RandomState};

/// Entries up to which the map is one table.
const ONE_TABLE_MAX: usize = 4_096;
/// Tables of a larger map.
const SHARDS: usize = 256;

#[derive(Debug)]
pub(super) struct KeyMap<V> {
    /// None before the first entry, then one, or [`SHARDS`].
    shards: Vec<IndexMap<Bytes, V>>,
    /// Chooses the shard. Its seed is random, so that no client can fill a single shard.
    hasher: RandomState,
    len: usize,
    /// Where [`KeyMap::pick_other_than`] goes on.
    next_pick: usize,
}

impl<V> Default for KeyMap<V> {
    fn default() -> KeyMap<V> {
        KeyMap { shards: Vec::new(), hasher: RandomState::new(), len: 0, next_pick: 0 }
    }
}

impl<V> KeyMap<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn shard_of(&self, key: &[u8]) -> usize {
        match self.shards.len() {
            0 | 1 => 0,
            shards => self.hasher.hash_one(key) as usize % shards,
        }
    }

    pub(super) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        let shard = self.shard_of(key);
        self.shards.get_mut(shard)?.get_mut(key)
    }

    pub(super) fn get_or_insert_default(&mut self, key: &Bytes) -> &mut V
    where
        V: Default,
    {
        match self.shards.len() {
            0 => self.shards.push(IndexMap::new()),
            1 if self.len >= ONE_TABLE_MAX => self.split(),
            _ => {}
        }
        let shard = self.shard_of(key);
        let entry = self.shards[shard].entry(key.clone());
        self.len += usize::from(matches!(entry, Entry::Vacant(_)));
        entry.or_default()
    }

    fn split(&mut self) {
        let capacity = 2 * ONE_TABLE_MAX / SHARDS;
        let shards = (0..SHARDS).map(|_| IndexMap::with_capacity(capacity)).collect();
        for (key, value) in std::mem::replace(&mut self.shards, shards).into_iter().flatten() {
            let shard = self.shard_of(&key);
            self.shards[shard].insert(key, value);
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<V> {
        let shard = self.shard_of(key);
        let removed = self.shards.get_mut(shard)?.swap_remove(key);
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// A key other than this one; this one where there is no other. It goes round: a key that has just come in is not the next.
    pub(super) fn pick_other_than(&mut self, key: &[u8]) -> Option<Bytes> {
        let shards = self.shards.len();
        // A shard may be empty, and one pick may hit the key itself.
        for _ in 0..=shards {
            let (shard, turn) = (self.next_pick % shards.max(1), self.next_pick / shards.max(1));
            self.next_pick = self.next_pick.wrapping_add(1);
            let table = self.shards.get(shard)?;
            let picked = table.get_index(turn % table.len().max(1)).map(|(picked, _)| picked);
            if let Some(picked) = picked.filter(|picked| *picked != key) {
                return Some(picked.clone());
            }
        }
        let mut keys = self.shards.iter().flat_map(IndexMap::keys);
        keys.clone().find(|other| *other != key).or_else(|| keys.next()).cloned()
    }

    /// All keys. What has been taken is freed as the iterator goes on, a shard at a time.
    pub(super) fn into_keys(self) -> impl Iterator<Item = Bytes> + Send
    where
        V: Send,
    {
        self.shards.into_iter().flat_map(IndexMap::into_keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Bytes {
        Bytes::from(format!("key:{number}"))
    }

    /// How many entries an insertion moves: all of its table where that grows, all there are where the map is split.
    fn moved_by_insertion(map: &mut KeyMap<u32>, key: &Bytes) -> usize {
        let shape = |map: &KeyMap<u32>| {
            let table = map.shards.get(map.shard_of(key));
            (map.shards.len(), table.map_or(0, IndexMap::capacity), table.map_or(0, IndexMap::len))
        };
        let (shards, capacity, len) = shape(map);
        let all = map.len();
        *map.get_or_insert_default(key) += 1;
        let (shards_now, capacity_now, _) = shape(map);
        match () {
            () if shards_now != shards => all,
            () if capacity_now != capacity => len,
            () => 0,
        }
    }

    #[test]
    fn no_insertion_moves_more_than_a_small_part() {
        let mut map = KeyMap::default();
        let mut growths = 0;
        for number in 0..200_000 {
            let moved = moved_by_insertion(&mut map, &key(number));
            growths += usize::from(moved > 0);
            let most = ONE_TABLE_MAX.max(map.len() / 64);
            assert!(moved <= most, "{moved} of {} entries moved", map.len());
        }
        assert!(growths > SHARDS, "each shard has grown by itself");
        assert_eq!((map.len(), map.shards.len()), (200_000, SHARDS));
        let largest = map.shards.iter().map(IndexMap::len).max();
        assert!(largest.is_some_and(|largest| largest < 200_000 / 64), "the largest shard: {largest:?}");
    }

    #[test]
    fn entries_stay_where_they_are_found_when_it_is_split() {
        let mut map = KeyMap::<u32>::default();
        let count = 2 * ONE_TABLE_MAX;
        assert_eq!((map.remove(b"none"), map.pick_other_than(b"none")), (None, None));
        assert_eq!(map.get_mut(b"none"), None);
        for number in (0..count).chain(0..count) {
            *map.get_or_insert_default(&key(number)) += 1;
        }
        assert_eq!(map.len(), count);
        for number in 0..count / 2 {
            assert_eq!(map.remove(&key(number)), Some(2));
            assert_eq!(map.remove(&key(number)), None);
        }
        assert!((count / 2..count).all(|number| map.get_mut(&key(number)).is_some()));
        assert_eq!((map.len(), map.into_keys().count()), (count / 2, count / 2));
    }

    #[test]
    fn any_key_is_picked_but_the_given_one() {
        let mut map = KeyMap::<u32>::default();
        for number in 0..ONE_TABLE_MAX + 1 {
            map.get_or_insert_default(&key(number));
        }
        let last = key(ONE_TABLE_MAX);
        for left in (1..=ONE_TABLE_MAX).rev() {
            let picked = map.pick_other_than(&last).expect("there are others");
            assert_ne!(picked, last);
            assert_eq!((map.remove(&picked), map.len()), (Some(0), left));
        }
        assert_eq!(map.pick_other_than(&last), Some(last), "there is no other");
    }
}
