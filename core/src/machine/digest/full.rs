//! The full digest: a hash over the records that a snapshot has, made in slices while entries are applied.
//!
//! The walk is that of snapshots, so it shows the instant it began, and there is one at a time: while a snapshot is being written
//! no digest is made, and the other way round. Records of the slabs come in an order that depends on what changed meanwhile, so
//! their hashes are added up; each of them names its slot. All other records come in a fixed order, and each hash depends on the
//! one before.
//!
//! Statistics are in a snapshot (the record `COUNTERS`) and not in the digest.

use crate::machine::log::bytes::{Hash64, Reader};
use crate::machine::snapshot::write::kind;
use crate::machine::Machine;

/// The slots visited and the bytes of records hashed in one slice of a small state.
const SLICE_SLOTS_MIN: usize = 1_024;
const SLICE_BYTES_MIN: usize = 256 << 10;
/// No slice holds up the log for longer than this many bytes take.
const SLICE_BYTES_MAX: usize = 8 << 20;
/// A walk has about so many slices at most: with one every 5 ms it takes half a minute.
const SLICES: u64 = 6_000;
/// The memory of a lock with a short name; a queue entry takes less, and its waiter more.
const SLOT_BYTES: usize = 128;

/// How much of a state is hashed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestSlice {
    pub slots: usize,
    pub bytes: usize,
}

impl DigestSlice {
    /// Slices grow with the state, so that a walk ends within about half a minute up to 48 GiB: snapshots, backups and the log that
    /// cannot be compacted wait for it. `slots`: what is visited, which after a peak may be far more than what is in use.
    #[must_use]
    pub fn of_state(state_bytes: u64, slots: u64) -> DigestSlice {
        let share = |of: u64| usize::try_from(of / SLICES).unwrap_or(usize::MAX);
        let bytes = share(state_bytes).min(SLICE_BYTES_MAX);
        DigestSlice {
            slots: (bytes / SLOT_BYTES).max(share(slots) + 1).max(SLICE_SLOTS_MIN),
            bytes: bytes.max(SLICE_BYTES_MIN),
        }
    }
}

impl Default for DigestSlice {
    fn default() -> DigestSlice {
        DigestSlice::of_state(0, 0)
    }
}

/// The digest of the records so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordSum {
    sum: u64,
    ordered: u64,
}

impl RecordSum {
    pub(crate) fn add(&mut self, kind: u8, content: &[u8]) {
        let is_slot =
            matches!(kind, kind::LOCK | kind::QUEUE_ENTRY | kind::WAITER | kind::SESSION | kind::HOLDER);
        if matches!(kind, kind::COUNTERS | kind::END) {
            return;
        }
        let before = if is_slot { 0 } else { self.ordered };
        let mut hash = Hash64::new(before ^ u64::from(kind));
        hash.write(content);
        let hash = hash.finish();
        match is_slot {
            true => self.sum = self.sum.wrapping_add(hash),
            false => self.ordered = hash,
        }
    }

    /// Adds whole records, as they stand in a snapshot.
    pub(crate) fn add_all(&mut self, records: &[u8]) {
        let mut reader = Reader::new(records);
        while let (Some(kind), Some(length)) = (reader.u8(), reader.u32_fixed()) {
            let content = reader.take(length as usize).expect("records are written whole");
            self.add(kind, content);
        }
    }

    pub(crate) fn value(&self) -> u64 {
        let mut hash = Hash64::new(self.ordered);
        hash.write(&self.sum.to_le_bytes());
        hash.finish()
    }
}

impl Machine {
    /// Begins a full digest of the state as it is now. False: a snapshot is being written.
    pub fn digest_begin(&mut self) -> bool {
        if self.snapshot.is_some() {
            return false;
        }
        self.snapshot_begin();
        true
    }

    /// How much of the state as it is now is hashed at once.
    #[must_use]
    pub fn digest_slice(&self) -> DigestSlice {
        DigestSlice::of_state(self.memory_used_bytes(), self.slots_visited())
    }

    /// Empty ones too.
    fn slots_visited(&self) -> u64 {
        let ends = [
            self.locks.end(),
            self.queue_entries.end(),
            self.waiters.end(),
            self.sessions.end(),
            self.holders.end(),
        ];
        ends.into_iter().map(u64::from).sum()
    }

    /// The next slice. The digest, when it was the last.
    pub fn digest_step(&mut self, slice: DigestSlice) -> Option<u64> {
        let mut progress = self.snapshot.take()?;
        let (mut budget, mut records) = (slice.slots.max(1), Vec::new());
        while budget > 0 && !progress.is_over() && records.len() < slice.bytes {
            self.write_stage(&mut progress, &mut budget, slice.bytes, &mut records);
        }
        if progress.is_over() {
            return Some(progress.digest());
        }
        self.snapshot = Some(progress);
        None
    }

    /// The full digest at once. For a machine that is not in use yet.
    pub(crate) fn full_digest(&mut self) -> u64 {
        self.snapshot_begin();
        loop {
            if let Some(digest) = self.digest_step(DigestSlice { slots: usize::MAX, bytes: SLICE_BYTES_MIN })
            {
                return digest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Applied, Command, Limits};
    use crate::types::Stamp;

    #[test]
    fn slices_grow_with_the_state_between_their_bounds() {
        let of = |state_bytes| {
            let DigestSlice { slots, bytes } = DigestSlice::of_state(state_bytes, 0);
            (slots, bytes)
        };
        let (small, large) = ((1_024, 256 << 10), (65_536, 8 << 20));
        for state_bytes in [0, 1, 1 << 20, 6_000 * 128 * 1_024] {
            assert_eq!(of(state_bytes), small, "{state_bytes}");
        }
        assert_eq!(of(6_000 * 128 * 1_025), (1_025, 256 << 10), "many small records");
        assert_eq!(of(6_000 * (256 << 10)), (2_048, 256 << 10));
        assert_eq!(of(6_000 * ((256 << 10) + 1)), (2_048, (256 << 10) + 1));
        assert_eq!(of(6_000 * (8 << 20) - 1), (65_535, (8 << 20) - 1));
        for state_bytes in [6_000 * (8 << 20), 1 << 40, u64::MAX] {
            assert_eq!(of(state_bytes), large, "{state_bytes}");
        }
    }

    #[test]
    fn a_walk_has_a_bounded_number_of_slices() {
        for gib in 0..=46 {
            let state_bytes: u64 = gib << 30;
            let slice = DigestSlice::of_state(state_bytes, 0);
            let slices = |each: usize, most: usize| (state_bytes / each as u64).div_ceil(most as u64);
            assert!(slices(1, slice.bytes) <= SLICES + 1, "{gib} GiB of large records");
            assert!(slices(SLOT_BYTES, slice.slots) <= SLICES + 8, "{gib} GiB of small records");
        }
        for slots in [0, 1, 6_143_999, 6_144_000, 8_000_000, 5 << 24] {
            let slice = DigestSlice::of_state(0, slots);
            assert!(slots.div_ceil(slice.slots as u64) <= SLICES, "{slots} slots, most of them empty");
        }
    }

    /// After a peak one record is left in each chunk: all of them are visited.
    #[test]
    fn empty_slots_count_as_visited() {
        let limits = Limits { idle_max: 10, ..Limits::default() };
        let mut machine = Machine { limits, ..Machine::new() };
        let mut take = |count: u64, ttl_ms: u64, logical_ms: u64| {
            let stamp = Stamp { term: 1, logical_ms, wall_us: 1_000 * logical_ms };
            for n in 0..count {
                let name = format!("{ttl_ms}-{n}");
                let (resource, owner) = (name.as_bytes(), b"o".as_slice());
                let command = Command::Acquire { db: 0, resource, owner, ttl_ms, wait_ms: 0, session: None };
                machine.apply(stamp, None, command, &mut Applied::default());
            }
            (machine.locks.len(), machine.slots_visited())
        };
        assert_eq!(take(3_000, 10, 1), (3_000, 3_000));
        let mut left = 3_000;
        for at_ms in 0..100 {
            let visited;
            (left, visited) = take(1, 1_000, 1_000_000 + 10_000 * at_ms);
            assert_eq!(visited, 3_000);
        }
        assert!(left < 20, "{left} left");
    }
}
