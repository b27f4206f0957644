//! `math.random` as Redis has it: `drand48`, each script going on where the last one left off.

use std::cell::Cell;

#[derive(Debug)]
pub(super) struct Random(Cell<u64>);

impl Default for Random {
    fn default() -> Random {
        let random = Random(Cell::new(0));
        random.seed(0);
        random
    }
}

const MASK: u64 = (1 << 48) - 1;

impl Random {
    pub(super) fn seed(&self, seed: u32) {
        self.0.set((u64::from(seed) << 16) | 0x330e);
    }

    /// From 0 to 1, 1 excluded.
    pub(super) fn next(&self) -> f64 {
        let state = self.0.get().wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & MASK;
        self.0.set(state);
        const MAX: u64 = i32::MAX as u64;
        ((state >> 17) % MAX) as f64 / MAX as f64
    }
}
