//! [`SeqMap`]: a map whose keys are given out one after the other and mostly removed in the same order.
//!
//! A ring of places from the oldest key on, so that the hot path of a request (added, looked up a few times, removed) costs an
//! index each time and no search. What outlives [`PLACES_MAX`] later keys, a long wait for one, moves to a tree beside it.

use std::collections::{BTreeMap, VecDeque};

/// Places of the ring: the memory that a single old key can keep from being given back.
const PLACES_MAX: usize = 65_536;
/// A ring that grew beyond this is given back once it is empty.
const PLACES_KEPT: usize = 4_096;

#[derive(Debug)]
pub(in crate::tier2) struct SeqMap<T> {
    /// The key of the first place, which is taken if there is one.
    first: u64,
    places: VecDeque<Option<T>>,
    /// Places that are taken.
    taken: usize,
    /// Those below `first`.
    old: BTreeMap<u64, T>,
}

impl<T> Default for SeqMap<T> {
    fn default() -> SeqMap<T> {
        SeqMap { first: 0, places: VecDeque::new(), taken: 0, old: BTreeMap::new() }
    }
}

impl<T> SeqMap<T> {
    pub(in crate::tier2) fn len(&self) -> usize {
        self.taken + self.old.len()
    }

    /// The place of a key that is not below `first`.
    fn place(&self, key: u64) -> Option<usize> {
        key.checked_sub(self.first).and_then(|at| usize::try_from(at).ok())
    }

    /// Answers what stood there before.
    pub(in crate::tier2) fn insert(&mut self, key: u64, value: T) -> Option<T> {
        if self.place(key).is_some_and(|at| at >= PLACES_MAX) {
            self.make_room(key);
        }
        if self.places.is_empty() {
            if self.old.last_key_value().is_some_and(|(last, _)| *last >= key) {
                return self.old.insert(key, value);
            }
            self.first = key;
        }
        let Some(at) = self.place(key) else { return self.old.insert(key, value) };
        if at >= self.places.len() {
            self.places.resize_with(at + 1, || None);
        }
        let before = self.places[at].replace(value);
        self.taken += usize::from(before.is_none());
        before
    }

    /// Moves the oldest ones to the tree until there is a place for `key`.
    #[cold]
    fn make_room(&mut self, key: u64) {
        while key - self.first >= PLACES_MAX as u64 {
            match self.places.pop_front() {
                Some(Some(value)) => {
                    self.old.insert(self.first, value);
                    self.taken -= 1;
                }
                Some(None) => {}
                None => return,
            }
            self.first += 1;
        }
        self.skip_empty();
    }

    pub(in crate::tier2) fn get(&self, key: u64) -> Option<&T> {
        match self.place(key) {
            Some(at) => self.places.get(at)?.as_ref(),
            None => self.old.get(&key),
        }
    }

    pub(in crate::tier2) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        match self.place(key) {
            Some(at) => self.places.get_mut(at)?.as_mut(),
            None => self.old.get_mut(&key),
        }
    }

    pub(in crate::tier2) fn contains(&self, key: u64) -> bool {
        self.get(key).is_some()
    }

    pub(in crate::tier2) fn remove(&mut self, key: u64) -> Option<T> {
        let Some(at) = self.place(key) else { return self.old.remove(&key) };
        let value = self.places.get_mut(at)?.take()?;
        self.taken -= 1;
        if at == 0 {
            self.skip_empty();
        }
        Some(value)
    }

    /// Gives back the places in front of the first that is taken.
    fn skip_empty(&mut self) {
        if self.taken == 0 {
            self.places.clear();
            if self.places.capacity() > PLACES_KEPT {
                self.places.shrink_to(PLACES_KEPT);
            }
            return;
        }
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
    }

    pub(in crate::tier2) fn first_key(&self) -> Option<u64> {
        match self.old.first_key_value() {
            Some((key, _)) => Some(*key),
            None => (!self.places.is_empty()).then_some(self.first),
        }
    }

    /// The lowest key that is not below `key`.
    pub(in crate::tier2) fn first_key_from(&self, key: u64) -> Option<u64> {
        if let Some((found, _)) = self.old.range(key..).next() {
            return Some(*found);
        }
        let from = self.place(key).unwrap_or(0).min(self.places.len());
        let at = self.places.range(from..).position(Option::is_some)?;
        Some(self.first + (from + at) as u64)
    }

    /// The highest key below `key`.
    pub(in crate::tier2) fn last_key_below(&self, key: u64) -> Option<u64> {
        let end = self.place(key).unwrap_or(0).min(self.places.len());
        match self.places.range(..end).rposition(Option::is_some) {
            Some(at) => Some(self.first + at as u64),
            None => self.old.range(..key).next_back().map(|(found, _)| *found),
        }
    }

    /// Lowest key first.
    pub(in crate::tier2) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let places = (self.first..).zip(&self.places).filter_map(|(key, value)| Some((key, value.as_ref()?)));
        self.old.iter().map(|(key, value)| (*key, value)).chain(places)
    }

    /// Takes out what `is_meant` says, lowest key first.
    pub(in crate::tier2) fn take_where(&mut self, is_meant: impl Fn(&T) -> bool) -> Vec<(u64, T)> {
        let keys: Vec<u64> = self.iter().filter(|(_, value)| is_meant(value)).map(|(key, _)| key).collect();
        keys.into_iter().filter_map(|key| Some((key, self.remove(key)?))).collect()
    }

    /// Lowest key first.
    pub(in crate::tier2) fn into_values(self) -> impl Iterator<Item = T> {
        self.old.into_values().chain(self.places.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enough for a test: the state of a linear congruential generator.
    fn draw(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    }

    fn check(map: &mut SeqMap<u64>, model: &mut BTreeMap<u64, u64>, key: u64) {
        assert_eq!(map.len(), model.len());
        assert_eq!(map.get(key), model.get(&key));
        assert_eq!(map.get_mut(key), model.get_mut(&key));
        assert_eq!(map.contains(key), model.contains_key(&key));
        assert_eq!(map.first_key(), model.first_key_value().map(|(key, _)| *key));
        assert_eq!(map.first_key_from(key), model.range(key..).next().map(|(key, _)| *key));
        assert_eq!(map.last_key_below(key), model.range(..key).next_back().map(|(key, _)| *key));
    }

    #[test]
    fn it_does_what_a_tree_does() {
        for seed in 1..=40 {
            let mut state = seed;
            let (mut map, mut model) = (SeqMap::default(), BTreeMap::new());
            let mut next = 1 + draw(&mut state, 1_000_000);
            for step in 0..1_500_u64 {
                match draw(&mut state, 10) {
                    0..=3 => {
                        // Numbers may be left out, and come a little late.
                        next += 1 + draw(&mut state, 3) / 2;
                        let key = next - draw(&mut state, 4).min(next - 1);
                        assert_eq!(map.insert(key, step), model.insert(key, step));
                    }
                    4..=7 => {
                        let oldest = model.keys().nth(draw(&mut state, 3) as usize).copied();
                        let key = oldest.unwrap_or(next);
                        assert_eq!(map.remove(key), model.remove(&key));
                    }
                    8 => {
                        let key = next.saturating_sub(draw(&mut state, 40));
                        assert_eq!(map.remove(key), model.remove(&key));
                    }
                    // Far ahead: those that are left become old.
                    _ if draw(&mut state, 40) == 0 => next += draw(&mut state, 2 * PLACES_MAX as u64),
                    _ => {}
                }
                let key = next.saturating_sub(draw(&mut state, 60));
                check(&mut map, &mut model, key);
            }
            assert!(map.iter().map(|(key, value)| (key, *value)).eq(model.clone()));
            let odd = map.take_where(|value| value % 2 == 1);
            assert!(odd.into_iter().eq(model.clone().into_iter().filter(|(_, value)| value % 2 == 1)));
            model.retain(|_, value| *value % 2 == 0);
            check(&mut map, &mut model, next);
            assert!(map.into_values().eq(model.into_values()));
        }
    }

    #[test]
    fn one_old_key_holds_no_more_than_its_share_of_memory() {
        let mut map = SeqMap::default();
        map.insert(1, 0);
        for key in 2..4 * PLACES_MAX as u64 {
            map.insert(key, key);
            assert_eq!(map.remove(key), Some(key));
        }
        assert!(map.places.len() <= PLACES_MAX, "{} places", map.places.len());
        assert_eq!((map.first_key(), map.len()), (Some(1), 1));
        assert_eq!(map.remove(1), Some(0));
        assert_eq!((map.first_key(), map.len()), (None, 0));
    }
}
