//! A seeded random number generator for election time-outs: the same seed gives the same draws. Not for secrets.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(in crate::tier2) struct Rng(u64);

impl Rng {
    pub(in crate::tier2) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(in crate::tier2) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `low..high`.
    pub(in crate::tier2) fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low).max(1) as u64) as usize
    }
}
