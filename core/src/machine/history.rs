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
/// Holds of one name that are put away together.
const NEWEST: usize = 3;
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

/// Of milliseconds, in any order.
fn percentiles(samples: impl Iterator<Item = u64>) -> Option<Percentiles> {
    let mut sorted: Vec<u64> = samples.collect();
    sorted.sort_unstable();
    let at = |percent: usize| sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    Some(Percentiles { p50_ms: at(50)?, p99_ms: at(99)? })
}

/// A hold that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastHold {
    pub(crate) fence: Fence,
    pub(crate) ending: Ending,
    /// Unix time.
    pub(crate) at_ms: u64,
}

/// A fence that is so far ahead of the clock is not the time of its grant. Grants of one instant count up by microseconds.
const AHEAD_US: u64 = 1_000_000;

/// Whether a fence runs ahead of the clock: after a restore, or behind a leader whose clock was wrong.
pub(crate) fn is_ahead(fence: Fence, wall_us: u64) -> bool {
    fence.0 > wall_us.saturating_add(AHEAD_US)
}

/// The same in 16 bytes.
#[derive(Clone, Copy)]
struct PackedHold {
    fence: Fence,
    /// Unix time of the end in microseconds, and in the lowest byte how it ended.
    at_us_and_ending: u64,
}

impl PackedHold {
    const NONE: PackedHold = PackedHold { fence: Fence(0), at_us_and_ending: 0 };

    fn new(fence: Fence, at_us: u64, ending: Ending) -> PackedHold {
        PackedHold { fence, at_us_and_ending: at_us << 8 | u64::from(ending.tag()) }
    }

    fn at_us(self) -> u64 {
        self.at_us_and_ending >> 8
    }

    /// A fence is the time of its grant; nobody knows how long a hold was whose fence runs ahead of the clock.
    fn held_ms(self) -> Option<u64> {
        let held_ms = self.at_us().saturating_sub(self.fence.0) / 1_000;
        (!is_ahead(self.fence, self.at_us())).then_some(held_ms)
    }

    fn unpack(self) -> PastHold {
        let ending = Ending::of_tag(self.at_us_and_ending as u8);
        PastHold { fence: self.fence, ending, at_ms: self.at_us() / 1_000 }
    }
}

/// How many holds may still be noted. Noting one costs an access to memory that is in no cache, which is felt where there are hundreds a
/// millisecond. Clusters have far fewer; the machine alone can have as many.
struct Budget {
    left: u32,
    /// The time up to which it was filled up: microseconds without their lowest [`BUDGET_UNIT_BITS`].
    until: u64,
}

/// 1.024 ms of the clock's microseconds.
const BUDGET_UNIT_BITS: u32 = 10;
/// Holds noted in one unit: 62,500 a second.
const BUDGET_PER_UNIT: u64 = 64;
/// Holds noted at once after a quiet time.
const BUDGET_MAX: u64 = 8_192;

impl Default for Budget {
    fn default() -> Budget {
        Budget { left: BUDGET_MAX as u32, until: 0 }
    }
}

impl Budget {
    #[inline]
    fn takes_one(&mut self, at_us: u64) -> bool {
        let now = at_us >> BUDGET_UNIT_BITS;
        if now != self.until {
            let more = now.saturating_sub(self.until).saturating_mul(BUDGET_PER_UNIT);
            self.left = u64::from(self.left).saturating_add(more).min(BUDGET_MAX) as u32;
            self.until = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// Whose place it is, what counts of what is there, and the newest holds: one line of the CPU's cache, and all places together stay in
/// it. Older holds and waits are kept apart, and touched seldom.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Place {
    newest: [PackedHold; NEWEST],
    slot: LockSlot,
    heat: u8,
    /// How many of the newest there are.
    len: u8,
    older: RingState,
    waits: RingState,
}

const _: () = assert!(size_of::<Place>() == 64);

#[derive(Clone, Copy)]
struct Samples {
    /// As many at a time as there are newest ones.
    older: [[PackedHold; NEWEST]; SAMPLES.div_ceil(NEWEST)],
    wait_ms: [u32; SAMPLES],
    /// Of this name only if it has waits.
    waited: Waited,
}

const NOBODY: Place = Place {
    newest: [PackedHold::NONE; NEWEST],
    slot: LockSlot::NONE,
    heat: 0,
    len: 0,
    older: RingState { next: 0, len: 0 },
    waits: RingState { next: 0, len: 0 },
};

const NO_SAMPLES: Samples = Samples {
    older: [[PackedHold::NONE; NEWEST]; SAMPLES.div_ceil(NEWEST)],
    wait_ms: [0; SAMPLES],
    waited: Waited::NONE,
};

impl Place {
    /// Whether what is to be noted of this name goes here. Each time counts: for the name, or against the one that has the place.
    #[inline]
    fn is_taken_by(&mut self, slot: LockSlot) -> bool {
        if self.slot == slot {
            self.heat = (self.heat + 1).min(HEAT_MAX);
            return true;
        }
        self.heat = self.heat.saturating_sub(1);
        if self.heat == 0 {
            self.give_to(slot);
        }
        self.slot == slot
    }

    /// Becomes another name's.
    fn give_to(&mut self, slot: LockSlot) {
        (self.slot, self.heat) = (slot, u8::from(slot.is_some()));
        self.len = 0;
        (self.older, self.waits) = Default::default();
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
    /// Empty until something falls into one.
    places: Vec<Place>,
    /// Of the same places. Empty until something falls into them.
    chunks: Vec<Vec<Samples>>,
    budget: Budget,
}

fn place_of(slot: LockSlot) -> usize {
    slot.number() as usize % NAMES_MAX
}

impl History {
    #[inline]
    pub(crate) fn note_hold(&mut self, slot: LockSlot, fence: Fence, at_us: u64, ending: Ending) {
        if !self.budget.takes_one(at_us) {
            return;
        }
        let Some(place) = self.open(slot) else { return };
        place.newest[usize::from(place.len)] = PackedHold::new(fence, at_us, ending);
        place.len += 1;
        if usize::from(place.len) == NEWEST {
            self.put_away(place_of(slot));
        }
    }

    /// The newest holds of a place are the older ones from now on.
    fn put_away(&mut self, at: usize) {
        let samples = samples_at(&mut self.chunks, at);
        let place = &mut self.places[at];
        place.older.push(&mut samples.older, place.newest);
        place.len = 0;
    }

    pub(crate) fn note_wait(&mut self, slot: LockSlot, ms: u64, now_ms: u64) {
        if self.open(slot).is_none() {
            return;
        }
        let at = place_of(slot);
        let samples = samples_at(&mut self.chunks, at);
        let waits = &mut self.places[at].waits;
        if waits.len == 0 {
            samples.waited = Waited::NONE;
        }
        waits.push(&mut samples.wait_ms, u32::try_from(ms).unwrap_or(u32::MAX));
        samples.waited.add(ms, now_ms);
    }

    /// The names most waited for in this window and the one before, most first; those not waited for are left out.
    pub(crate) fn most_waited_for(&self, count: usize, now_ms: u64) -> Vec<(LockSlot, WaitSum)> {
        let waited_for = self.places.iter().enumerate().filter(|(_, place)| place.waits.len > 0);
        let mut sums: Vec<(LockSlot, WaitSum)> = waited_for
            .map(|(at, place)| (place.slot, self.chunks[at / CHUNK][at % CHUNK].waited.sum(now_ms)))
            .filter(|(_, sum)| sum.waits > 0)
            .collect();
        sums.sort_unstable_by_key(|(slot, sum)| (std::cmp::Reverse(sum.ms), slot.number()));
        sums.truncate(count);
        sums
    }

    /// The place for what is to be noted of a name, if it is this name's.
    #[inline]
    fn open(&mut self, slot: LockSlot) -> Option<&mut Place> {
        if self.places.is_empty() {
            self.places.resize(NAMES_MAX, NOBODY);
        }
        let place = &mut self.places[place_of(slot)];
        place.is_taken_by(slot).then_some(place)
    }

    fn find(&self, slot: LockSlot) -> Option<(&Place, &Samples)> {
        let at = place_of(slot);
        let place = self.places.get(at).filter(|place| place.slot == slot)?;
        let samples = self.chunks.get(at / CHUNK).and_then(|chunk| chunk.get(at % CHUNK));
        Some((place, samples.unwrap_or(&NO_SAMPLES)))
    }

    /// The record is gone: its slot will be another name's.
    #[inline]
    pub(crate) fn forget(&mut self, slot: LockSlot) {
        if let Some(place) = self.places.get_mut(place_of(slot)).filter(|place| place.slot == slot) {
            place.give_to(LockSlot::NONE);
        }
    }

    /// How the last holds of a name ended, the newest first.
    pub(crate) fn past_of(&self, slot: LockSlot) -> Vec<PastHold> {
        let Some((place, samples)) = self.find(slot) else { return Vec::new() };
        holds(place, samples).take(PAST_MAX).map(PackedHold::unpack).collect()
    }

    pub(crate) fn of(&self, slot: LockSlot) -> RecentUse {
        let Some((place, samples)) = self.find(slot) else { return RecentUse::default() };
        let held_ms = holds(place, samples).take(SAMPLES).filter_map(PackedHold::held_ms);
        let waits = place.waits.newest_first(&samples.wait_ms).map(u64::from);
        RecentUse { holds: percentiles(held_ms), waits: percentiles(waits) }
    }
}

fn samples_at(chunks: &mut Vec<Vec<Samples>>, at: usize) -> &mut Samples {
    if chunks.is_empty() {
        chunks.resize_with(NAMES_MAX.div_ceil(CHUNK), Vec::new);
    }
    let chunk = &mut chunks[at / CHUNK];
    if chunk.is_empty() {
        chunk.resize(CHUNK, NO_SAMPLES);
    }
    &mut chunk[at % CHUNK]
}

/// Those of a place, the newest first.
fn holds<'a>(place: &'a Place, samples: &'a Samples) -> impl Iterator<Item = PackedHold> + 'a {
    let newest = place.newest[..usize::from(place.len)].iter().rev().copied();
    let older = place.older.newest_first(&samples.older).flat_map(|holds| holds.into_iter().rev());
    newest.chain(older)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FENCE: Fence = Fence(1_000_000);

    fn hold(history: &mut History, slot: LockSlot, ms: u64) {
        history.note_hold(slot, FENCE, FENCE.0 + 1_000 * ms, Ending::Released);
    }

    fn past(ms: u64) -> PastHold {
        PastHold { fence: FENCE, ending: Ending::Released, at_ms: FENCE.0 / 1_000 + ms }
    }

    #[test]
    fn the_last_endings_are_remembered_newest_first() {
        let mut history = History::default();
        let slot = LockSlot::from_cursor(3);
        assert_eq!(history.past_of(slot), []);
        for fence in 1..=PAST_MAX as u64 + 2 {
            history.note_hold(slot, Fence(fence), 1_000, Ending::Released);
        }
        let fences: Vec<u64> = history.past_of(slot).iter().map(|past| past.fence.0).collect();
        assert_eq!(fences, [10, 9, 8, 7, 6, 5, 4, 3]);
        history.forget(slot);
        assert_eq!(history.past_of(slot), []);
    }

    #[test]
    fn an_ending_comes_back_as_it_was() {
        let mut history = History::default();
        let slot = LockSlot::new(9);
        let endings = (0..).map_while(|tag| (tag < 9).then(|| Ending::of_tag(tag)));
        for (at, ending) in endings.enumerate() {
            assert_eq!(usize::from(ending.tag()), at);
            history.note_hold(slot, FENCE, FENCE.0 + 1_234_567, ending);
            assert_eq!(history.past_of(slot)[0], PastHold { fence: FENCE, ending, at_ms: 2_234 });
        }
    }

    /// As after a restore, whose fences are above all that may have been lost.
    #[test]
    fn a_fence_ahead_of_the_clock_does_not_move_the_end() {
        let mut history = History::default();
        let slot = LockSlot::new(9);
        history.note_hold(slot, Fence(9_000_000), 5_000_000, Ending::Expired);
        assert_eq!(history.past_of(slot)[0].at_ms, 5_000);
        assert_eq!(history.of(slot).holds, None, "nobody knows how long it was");
    }

    #[test]
    fn holds_are_seen_in_their_order_however_many_were_put_away() {
        let mut history = History::default();
        let slot = LockSlot::new(1);
        let mut model: Vec<PastHold> = Vec::new();
        for ms in 0..5 * SAMPLES as u64 {
            hold(&mut history, slot, ms);
            model.insert(0, past(ms));
            model.truncate(SAMPLES);
            assert_eq!(history.past_of(slot), model[..model.len().min(PAST_MAX)]);
            let held_ms = model.iter().map(|past| past.at_ms - FENCE.0 / 1_000);
            assert_eq!(history.of(slot).holds, percentiles(held_ms));
        }
    }

    #[test]
    fn of_more_holds_than_any_cluster_has_some_are_noted() {
        let mut budget = Budget::default();
        let noted =
            |budget: &mut Budget, at_us| (0..100_000).filter(|_| budget.takes_one(at_us)).count() as u64;
        assert_eq!(noted(&mut budget, 1), BUDGET_MAX);
        assert_eq!(noted(&mut budget, 1 << BUDGET_UNIT_BITS), BUDGET_PER_UNIT);
        assert_eq!(noted(&mut budget, 3 << BUDGET_UNIT_BITS), 2 * BUDGET_PER_UNIT);
        assert_eq!(noted(&mut budget, 2 << BUDGET_UNIT_BITS), 0, "a clock that was set back");
        assert_eq!(noted(&mut budget, u64::MAX), BUDGET_MAX);
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
        (0..100).for_each(|ms| hold(&mut history, slot, ms));
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
        hold(&mut history, after, 5);
        hold(&mut history, after, 5);
        assert_eq!(history.past_of(after), [past(5), past(5)]);
        assert_eq!(history.of(after).waits, None);
        assert_eq!(history.most_waited_for(9, 0), []);
        history.note_wait(after, 30, 0);
        assert_eq!(history.most_waited_for(9, 0), [(after, WaitSum { waits: 1, ms: 30 })]);
        history.forget(after);
        hold(&mut history, before, 5);
        assert_eq!(history.most_waited_for(9, 0), []);
    }

    #[test]
    fn the_busier_name_keeps_its_place() {
        let mut history = History::default();
        let (busy, rare) = (LockSlot::new(1), LockSlot::new(1 + NAMES_MAX as u32));
        for _ in 0..50 {
            hold(&mut history, busy, 5);
            hold(&mut history, busy, 5);
            hold(&mut history, rare, 900);
        }
        assert!(history.of(busy).holds.is_some_and(|holds| holds.p99_ms == 5));
        assert_eq!(history.of(rare).holds, None);
        (0..100).for_each(|_| hold(&mut history, rare, 900));
        assert!(history.of(rare).holds.is_some(), "a name that is used no more gives its place away");
    }
}
