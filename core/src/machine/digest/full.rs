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

/// Bytes of records hashed in one slice.
const SLICE_BYTES: usize = 256 * 1024;

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

    /// The next slice, of no more than `max_slots` slots. The digest, when it was the last.
    pub fn digest_step(&mut self, max_slots: usize) -> Option<u64> {
        let mut progress = self.snapshot.take()?;
        let (mut budget, mut records) = (max_slots.max(1), Vec::new());
        while budget > 0 && !progress.is_over() && records.len() < SLICE_BYTES {
            self.write_stage(&mut progress, &mut budget, SLICE_BYTES, &mut records);
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
            if let Some(digest) = self.digest_step(usize::MAX) {
                return digest;
            }
        }
    }
}
