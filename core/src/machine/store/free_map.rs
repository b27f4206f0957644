//! The free slots of a slab, lowest first: a tree of bits.

/// Which numbers below `end` are free: a tree of bits whose every node says whether a free one is below it.
#[derive(Default)]
pub(crate) struct FreeMap {
    levels: [Vec<u64>; 4],
    free: usize,
    pub(crate) end: u32,
}

impl FreeMap {
    pub(crate) fn take_lowest(&mut self) -> u32 {
        if self.free == 0 {
            self.grow(self.end + 1);
            let slot = self.end;
            self.end += 1;
            return slot;
        }
        let mut slot = 0usize;
        for level in (0..4).rev() {
            slot = slot * 64 + self.levels[level][slot].trailing_zeros() as usize;
        }
        self.clear(slot as u32);
        slot as u32
    }

    /// Takes this very number; those passed over become free.
    pub(crate) fn take(&mut self, slot: u32) {
        if slot >= self.end {
            let first = self.end;
            self.grow(slot + 1);
            self.end = slot + 1;
            (first..slot).for_each(|skipped| self.give_back(skipped));
            return;
        }
        self.clear(slot);
    }

    fn grow(&mut self, end: u32) {
        let mut words = end as usize;
        for level in &mut self.levels {
            words = words.div_ceil(64);
            if words > level.len() {
                level.resize(words, 0);
            }
        }
    }

    fn clear(&mut self, slot: u32) {
        self.free -= 1;
        let mut at = slot as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
    }

    pub(crate) fn give_back(&mut self, slot: u32) {
        self.free += 1;
        let mut at = slot as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let had_some = *word != 0;
            *word |= 1 << (at % 64);
            if had_some {
                break;
            }
            at /= 64;
        }
    }
}
