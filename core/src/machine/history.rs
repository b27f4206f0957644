//! How long the busiest names were held and waited for lately: what `LOCK.EXPLAIN` estimates from. No state: each node keeps its
//! own, it is not in snapshots, and it starts empty.
//!
//! A table of fixed size with one place for many slots. Who comes to a place of another's wears it down by one; a name that is
//! used more often than the others of its place keeps it.

use crate::machine::locks::ending::Ending;
use crate::machine::LockSlot;
use crate::types::Fence;

/// Names that are remembered at most.
const NAMES_MAX: usize = 10_000;
const CHUNK: usize = 50;
/// Holds and waits of one name that are remembered.
const SAMPLES: usize = 32;
/// Holds of one name whose end is remembered.
pub(crate) const PAST_MAX: usize = 8;
/// How far the use of a name counts against others.
const HEAT_MAX: u8 = 64;
/// Time waited is added up for this window and the one before it.
pub(crate) const WINDOW_MS: u64 = 10 * 60 * 1_000;

/// Time spent waiting for one name, in the current window and the one before.
#[derive(Clone, Copy)]
struct Waited {
    window: u64,
    current: WaitSum,
    previous: WaitSum,
}

/// Waits that ended with a grant, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitSum {
    pub(crate) waits: u64,
    pub(crate) ms: u64,
}

impl Waited {
    const NONE: Waited =
        Waited { window: 0, current: WaitSum { waits: 0, ms: 0 }, previous: WaitSum { waits: 0, ms: 0 } };

    /// As it is in the window of `now_ms`.
    fn at(self, now_ms: u64) -> Waited {
        let window = now_ms / WINDOW_MS;
        match window.saturating_sub(self.window) {
            0 => self,
            1 => Waited { window, current: WaitSum::default(), previous: self.current },
            _ => Waited { window, ..Waited::NONE },
        }
    }

    fn add(&mut self, ms: u64, now_ms: u64) {
        *self = self.at(now_ms);
        self.current.waits += 1;
        self.current.ms = self.current.ms.saturating_add(ms);
    }

    fn sum(self, now_ms: u64) -> WaitSum {
        let Waited { current, previous, .. } = self.at(now_ms);
        WaitSum { waits: current.waits + previous.waits, ms: current.ms.saturating_add(previous.ms) }
    }
}

/// Where the next item of a ring goes, and how many are in it.
#[derive(Clone, Copy, Default)]
struct RingState {
    next: u8,
    len: u8,
}

impl RingState {
    fn push<T, const SIZE: usize>(&mut self, ring: &mut [T; SIZE], item: T) {
        ring[usize::from(self.next)] = item;
        self.next = (self.next + 1) % SIZE as u8;
        self.len = (self.len + 1).min(SIZE as u8);
    }

    fn newest_first<T: Copy, const SIZE: usize>(self, ring: &[T; SIZE]) -> impl Iterator<Item = T> + '_ {
        let next = usize::from(self.next);
        (1..=usize::from(self.len)).map(move |back| ring[(next + SIZE - back) % SIZE])
    }
}

fn percentiles(state: RingState, ring: &[u32; SAMPLES]) -> Option<Percentiles> {
    let mut sorted = *ring;
    let sorted = &mut sorted[..usize::from(state.len)];
    sorted.sort_unstable();
    let at = |percent: usize| {
        let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(index).map(|ms| u64::from(*ms))
    };
    Some(Percentiles { p50_ms: at(50)?, p99_ms: at(99)? })
}

/// Among many names a place changes hands with almost every hold, and is out of the CPU's caches by then: what the first hold of a name
/// writes stands together, and what else is there counts only as far as the states of the rings say.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Place {
    slot: LockSlot,
    heat: u8,
    holds: RingState,
    waits: RingState,
    past: RingState,
    past_holds: [PastHold; PAST_MAX],
    hold_ms: [u32; SAMPLES],
    wait_ms: [u32; SAMPLES],
    /// Of this name only if it has waits.
    waited: Waited,
}

/// A hold that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastHold {
    pub(crate) fence: Fence,
    pub(crate) ending: Ending,
    /// Unix time.
    pub(crate) at_ms: u64,
}

const NOBODY: Place = Place {
    slot: LockSlot::NONE,
    heat: 0,
    holds: RingState { next: 0, len: 0 },
    waits: RingState { next: 0, len: 0 },
    past: RingState { next: 0, len: 0 },
    past_holds: [PastHold { fence: Fence(0), ending: Ending::Released, at_ms: 0 }; PAST_MAX],
    hold_ms: [0; SAMPLES],
    wait_ms: [0; SAMPLES],
    waited: Waited::NONE,
};

impl Place {
    /// Becomes the place of another name.
    fn give_to(&mut self, slot: LockSlot) {
        (self.slot, self.heat) = (slot, u8::from(slot.is_some()));
        (self.holds, self.waits, self.past) = Default::default();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percentiles {
    pub(crate) p50_ms: u64,
    pub(crate) p99_ms: u64,
}

/// What is known of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecentUse {
    pub(crate) holds: Option<Percentiles>,
    pub(crate) waits: Option<Percentiles>,
}

#[derive(Default)]
pub(crate) struct History {
    /// Empty until something falls into them.
    chunks: Vec<Vec<Place>>,
}

fn sample(ms: u64) -> u32 {
    u32::try_from(ms).unwrap_or(u32::MAX)
}

fn place_of(slot: LockSlot) -> (usize, usize) {
    let index = slot.number() as usize % NAMES_MAX;
    (index / CHUNK, index % CHUNK)
}

impl History {
    pub(crate) fn note_hold(&mut self, slot: LockSlot, ms: u64, past: PastHold) {
        if let Some(place) = self.open(slot) {
            place.holds.push(&mut place.hold_ms, sample(ms));
            place.past.push(&mut place.past_holds, past);
        }
    }

    pub(crate) fn note_wait(&mut self, slot: LockSlot, ms: u64, now_ms: u64) {
        if let Some(place) = self.open(slot) {
            if place.waits.len == 0 {
                place.waited = Waited::NONE;
            }
            place.waits.push(&mut place.wait_ms, sample(ms));
            place.waited.add(ms, now_ms);
        }
    }

    /// The names most waited for in this window and the one before, most first; those not waited for are left out.
    pub(crate) fn most_waited_for(&self, count: usize, now_ms: u64) -> Vec<(LockSlot, WaitSum)> {
        let places = self.chunks.iter().flatten().filter(|place| place.slot.is_some() && place.waits.len > 0);
        let mut sums: Vec<(LockSlot, WaitSum)> = places
            .map(|place| (place.slot, place.waited.sum(now_ms)))
            .filter(|(_, sum)| sum.waits > 0)
            .collect();
        sums.sort_unstable_by_key(|(slot, sum)| (std::cmp::Reverse(sum.ms), slot.number()));
        sums.truncate(count);
        sums
    }

    #[inline]
    fn open(&mut self, slot: LockSlot) -> Option<&mut Place> {
        let (chunk, index) = place_of(slot);
        if self.chunks.len() <= chunk {
            self.chunks.resize_with(chunk + 1, Vec::new);
        }
        let chunk = &mut self.chunks[chunk];
        if chunk.is_empty() {
            chunk.resize(CHUNK, NOBODY);
        }
        let place = &mut chunk[index];
        if place.slot == slot {
            place.heat = (place.heat + 1).min(HEAT_MAX);
            return Some(place);
        }
        place.heat = place.heat.saturating_sub(1);
        if place.heat > 0 {
            return None;
        }
        place.give_to(slot);
        Some(place)
    }

    /// The record is gone: its slot will be another name's.
    #[inline]
    pub(crate) fn forget(&mut self, slot: LockSlot) {
        let (chunk, index) = place_of(slot);
        if let Some(place) = self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(index)) {
            if place.slot == slot {
                place.give_to(LockSlot::NONE);
            }
        }
    }

    /// How the last holds of a name ended, the newest first.
    pub(crate) fn past_of(&self, slot: LockSlot) -> Vec<PastHold> {
        let (chunk, index) = place_of(slot);
        match self.chunks.get(chunk).and_then(|chunk| chunk.get(index)) {
            Some(place) if place.slot == slot => place.past.newest_first(&place.past_holds).collect(),
            Some(_) | None => Vec::new(),
        }
    }

    pub(crate) fn of(&self, slot: LockSlot) -> RecentUse {
        let (chunk, index) = place_of(slot);
        match self.chunks.get(chunk).and_then(|chunk| chunk.get(index)) {
            Some(place) if place.slot == slot => {
                let holds = percentiles(place.holds, &place.hold_ms);
                RecentUse { holds, waits: percentiles(place.waits, &place.wait_ms) }
            }
            Some(_) | None => RecentUse::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAST: PastHold = PastHold { fence: Fence(1), ending: Ending::Released, at_ms: 0 };

    #[test]
    fn the_last_endings_are_remembered_newest_first() {
        let mut history = History::default();
        let slot = LockSlot::from_cursor(3);
        assert_eq!(history.past_of(slot), []);
        for fence in 1..=PAST_MAX as u64 + 2 {
            history.note_hold(slot, 1, PastHold { fence: Fence(fence), ..PAST });
        }
        let fences: Vec<u64> = history.past_of(slot).iter().map(|past| past.fence.0).collect();
        assert_eq!(fences, [10, 9, 8, 7, 6, 5, 4, 3]);
        history.forget(slot);
        assert_eq!(history.past_of(slot), []);
    }

    #[test]
    fn the_most_waited_for_come_first_and_old_waits_are_forgotten() {
        let mut history = History::default();
        let (a, b) = (LockSlot::new(1), LockSlot::new(2));
        history.note_wait(a, 10, 0);
        history.note_wait(b, 30, 0);
        history.note_wait(a, 50, WINDOW_MS);
        let sum = |waits, ms| WaitSum { waits, ms };
        assert_eq!(history.most_waited_for(9, WINDOW_MS), [(a, sum(2, 60)), (b, sum(1, 30))]);
        assert_eq!(history.most_waited_for(1, WINDOW_MS), [(a, sum(2, 60))]);
        assert_eq!(history.most_waited_for(9, 2 * WINDOW_MS), [(a, sum(1, 50))]);
        history.forget(a);
        assert_eq!(history.most_waited_for(9, 2 * WINDOW_MS), []);
    }

    #[test]
    fn the_last_samples_count() {
        let mut history = History::default();
        let slot = LockSlot::new(7);
        assert_eq!(history.of(slot), RecentUse::default());
        (0..100).for_each(|ms| history.note_hold(slot, ms, PAST));
        assert_eq!(history.of(slot).holds, Some(Percentiles { p50_ms: 83, p99_ms: 99 }));
        assert_eq!(history.of(slot).waits, None);
        history.forget(slot);
        assert_eq!(history.of(slot), RecentUse::default());
    }

    #[test]
    fn nothing_of_the_name_before_is_seen() {
        let mut history = History::default();
        let (before, after) = (LockSlot::new(1), LockSlot::new(1 + NAMES_MAX as u32));
        history.note_wait(before, 70, 0);
        history.note_hold(after, 5, PAST);
        history.note_hold(after, 5, PAST);
        assert_eq!(history.past_of(after), [PAST, PAST]);
        assert_eq!(history.of(after).waits, None);
        assert_eq!(history.most_waited_for(9, 0), []);
        history.note_wait(after, 30, 0);
        assert_eq!(history.most_waited_for(9, 0), [(after, WaitSum { waits: 1, ms: 30 })]);
        history.forget(after);
        history.note_hold(before, 5, PAST);
        assert_eq!(history.most_waited_for(9, 0), []);
    }

    #[test]
    fn the_busier_name_keeps_its_place() {
        let mut history = History::default();
        let (busy, rare) = (LockSlot::new(1), LockSlot::new(1 + NAMES_MAX as u32));
        for _ in 0..50 {
            history.note_hold(busy, 5, PAST);
            history.note_hold(busy, 5, PAST);
            history.note_hold(rare, 900, PAST);
        }
        assert!(history.of(busy).holds.is_some_and(|holds| holds.p99_ms == 5));
        assert_eq!(history.of(rare).holds, None);
        (0..100).for_each(|_| history.note_hold(rare, 900, PAST));
        assert!(history.of(rare).holds.is_some(), "a name that is used no more gives its place away");
    }
}
