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
    fn held_ms(self) -> u64 {
        self.at_us().saturating_sub(self.fence.0) / 1_000
    }

    fn unpack(self) -> PastHold {
        let ending = Ending::of_tag(self.at_us_and_ending as u8);
        PastHold { fence: self.fence, ending, at_ms: self.at_us() / 1_000 }
    }
}

/// Whose place it is, and what counts of what is there. Kept apart from the samples: all heads together fit into the CPU's cache,
/// and the end of a hold touches one line of samples.
#[derive(Clone, Copy)]
struct Head {
    slot: LockSlot,
    heat: u8,
    holds: RingState,
    waits: RingState,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Samples {
    holds: [PackedHold; SAMPLES],
    wait_ms: [u32; SAMPLES],
    /// Of this name only if it has waits.
    waited: Waited,
}

const NOBODY: Head = Head {
    slot: LockSlot::NONE,
    heat: 0,
    holds: RingState { next: 0, len: 0 },
    waits: RingState { next: 0, len: 0 },
};

const NO_SAMPLES: Samples =
    Samples { holds: [PackedHold::NONE; SAMPLES], wait_ms: [0; SAMPLES], waited: Waited::NONE };

impl Head {
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

    /// Becomes the head of another name's place.
    fn give_to(&mut self, slot: LockSlot) {
        (self.slot, self.heat) = (slot, u8::from(slot.is_some()));
        (self.holds, self.waits) = Default::default();
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
    heads: Vec<Head>,
    /// Empty until something falls into them.
    chunks: Vec<Vec<Samples>>,
    /// Holds that are not among the samples yet. Their places are in no cache: many at a time are fetched together, where each alone
    /// would hold up the command that ends it.
    pending: Vec<(LockSlot, PackedHold)>,
}

/// Holds that are put into their places together.
const PENDING_MAX: usize = 64;

fn place_of(slot: LockSlot) -> usize {
    slot.number() as usize % NAMES_MAX
}

impl History {
    #[inline]
    pub(crate) fn note_hold(&mut self, slot: LockSlot, fence: Fence, at_us: u64, ending: Ending) {
        self.pending.push((slot, PackedHold::new(fence, at_us, ending)));
        if self.pending.len() >= PENDING_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        for (slot, hold) in pending.drain(..) {
            if let Some((head, samples)) = self.open(slot) {
                head.holds.push(&mut samples.holds, hold);
            }
        }
        self.pending = pending;
    }

    pub(crate) fn note_wait(&mut self, slot: LockSlot, ms: u64, now_ms: u64) {
        self.flush();
        if let Some((head, samples)) = self.open(slot) {
            if head.waits.len == 0 {
                samples.waited = Waited::NONE;
            }
            head.waits.push(&mut samples.wait_ms, u32::try_from(ms).unwrap_or(u32::MAX));
            samples.waited.add(ms, now_ms);
        }
    }

    /// The names most waited for in this window and the one before, most first; those not waited for are left out.
    pub(crate) fn most_waited_for(&self, count: usize, now_ms: u64) -> Vec<(LockSlot, WaitSum)> {
        let mut heads = self.heads.clone();
        // What is still to go into the places may give some of them to others.
        for (slot, _) in self.pending.iter().filter(|_| !self.heads.is_empty()) {
            heads[place_of(*slot)].is_taken_by(*slot);
        }
        let heads = heads.iter().enumerate().filter(|(_, head)| head.slot.is_some() && head.waits.len > 0);
        let mut sums: Vec<(LockSlot, WaitSum)> = heads
            .map(|(at, head)| (head.slot, self.chunks[at / CHUNK][at % CHUNK].waited.sum(now_ms)))
            .filter(|(_, sum)| sum.waits > 0)
            .collect();
        sums.sort_unstable_by_key(|(slot, sum)| (std::cmp::Reverse(sum.ms), slot.number()));
        sums.truncate(count);
        sums
    }

    #[inline]
    fn open(&mut self, slot: LockSlot) -> Option<(&mut Head, &mut Samples)> {
        let at = place_of(slot);
        if self.heads.is_empty() {
            self.heads.resize(NAMES_MAX, NOBODY);
            self.chunks.resize_with(NAMES_MAX.div_ceil(CHUNK), Vec::new);
        }
        let head = &mut self.heads[at];
        if !head.is_taken_by(slot) {
            return None;
        }
        let chunk = &mut self.chunks[at / CHUNK];
        if chunk.is_empty() {
            chunk.resize(CHUNK, NO_SAMPLES);
        }
        Some((head, &mut chunk[at % CHUNK]))
    }

    /// The place of a name with what is still to go into it.
    fn find(&self, slot: LockSlot) -> Option<(Head, Samples)> {
        let at = place_of(slot);
        let mut head = self.heads.get(at).copied().unwrap_or(NOBODY);
        let samples = self.chunks.get(at / CHUNK).and_then(|chunk| chunk.get(at % CHUNK));
        let mut samples = samples.copied().unwrap_or(NO_SAMPLES);
        for (of, hold) in self.pending.iter().filter(|(of, _)| place_of(*of) == at) {
            if head.is_taken_by(*of) {
                head.holds.push(&mut samples.holds, *hold);
            }
        }
        (head.slot == slot).then_some((head, samples))
    }

    /// The record is gone: its slot will be another name's.
    #[inline]
    pub(crate) fn forget(&mut self, slot: LockSlot) {
        self.flush();
        if let Some(head) = self.heads.get_mut(place_of(slot)).filter(|head| head.slot == slot) {
            head.give_to(LockSlot::NONE);
        }
    }

    /// How the last holds of a name ended, the newest first.
    pub(crate) fn past_of(&self, slot: LockSlot) -> Vec<PastHold> {
        let Some((head, samples)) = self.find(slot) else { return Vec::new() };
        head.holds.newest_first(&samples.holds).take(PAST_MAX).map(PackedHold::unpack).collect()
    }

    pub(crate) fn of(&self, slot: LockSlot) -> RecentUse {
        let Some((head, samples)) = self.find(slot) else { return RecentUse::default() };
        let holds = head.holds.newest_first(&samples.holds).map(PackedHold::held_ms);
        let waits = head.waits.newest_first(&samples.wait_ms).map(u64::from);
        RecentUse { holds: percentiles(holds), waits: percentiles(waits) }
    }
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
        assert_eq!(history.of(slot).holds, Some(Percentiles { p50_ms: 0, p99_ms: 0 }));
    }

    #[test]
    fn holds_that_are_not_in_their_places_yet_are_seen_all_the_same() {
        let (mut history, mut flushed) = (History::default(), History::default());
        let (own, other) = (LockSlot::new(1), LockSlot::new(1 + NAMES_MAX as u32));
        for number in 0..PENDING_MAX as u64 - 1 {
            let slot = if number % 3 == 2 { other } else { own };
            hold(&mut history, slot, number);
            hold(&mut flushed, slot, number);
            flushed.flush();
            assert_eq!(history.pending.len() as u64, number + 1);
            for slot in [own, other] {
                assert_eq!(history.past_of(slot), flushed.past_of(slot));
                assert_eq!(history.of(slot), flushed.of(slot));
            }
        }
        hold(&mut history, own, 1);
        assert!(history.pending.is_empty());
        hold(&mut history, own, 1);
        history.forget(own);
        assert_eq!(history.past_of(own), []);
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
