//! Any bytes as a snapshot file under a right checksum, read in portions as a start does: refused in a sentence, or a machine
//! that is whole. With every piece's own checksum put right, so that what is inside is reached.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use raft::eraftpb::Entry;
use redfence::tier2::load_snapshot;
use redfence::node_api::{LogReader, SnapshotId, SnapshotMeta, StoreError};
use redfence_core::machine::Machine;

struct File(Vec<u8>, usize);

impl LogReader for File {
    fn entries(&self, _: u64, _: u64, _: u64) -> Result<Vec<Entry>, StoreError> {
        unreachable!("a snapshot alone")
    }

    fn term(&self, _: u64) -> Result<u64, StoreError> {
        unreachable!("a snapshot alone")
    }

    fn snapshot_read(&self, _: SnapshotId, offset: u64, max_bytes: usize) -> Result<Bytes, StoreError> {
        let rest = &self.0[(offset as usize).min(self.0.len())..];
        Ok(Bytes::copy_from_slice(&rest[..rest.len().min(max_bytes).min(self.1)]))
    }
}

fn load(bytes: Vec<u8>, portion: usize) {
    let meta = SnapshotMeta {
        id: SnapshotId(1),
        size_bytes: bytes.len() as u64,
        crc32: crc32fast::hash(&bytes),
        ..SnapshotMeta::default()
    };
    match load_snapshot(&meta, &File(bytes, portion)) {
        Ok(machine) => machine.check_invariants().expect("a machine that was let in is whole"),
        Err(text) => assert!(!text.is_empty()),
    }
}

/// What this source tree writes in front of every piece.
fn version() -> u8 {
    static VERSION: std::sync::OnceLock<u8> = std::sync::OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut machine = Machine::new();
        machine.snapshot_begin();
        machine.snapshot_step(1).expect("even of nothing there is a piece")[0]
    })
}

/// A file of pieces out of `data`: each behind its length, with its number and its checksum.
fn pieces(mut data: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut number = 0u32;
    while let Some((length, rest)) = data.split_first_chunk::<2>() {
        let (body, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        let mut piece = vec![version()];
        piece.extend_from_slice(&number.to_le_bytes());
        piece.extend_from_slice(body);
        let crc = crc32fast::hash(&piece);
        piece.extend_from_slice(&crc.to_le_bytes());
        file.extend_from_slice(&(piece.len() as u32).to_le_bytes());
        file.extend_from_slice(&piece);
        number += 1;
        data = rest;
    }
    file
}

fuzz_target!(|data: &[u8]| {
    load(data.to_vec(), usize::MAX);
    load(data.to_vec(), 3);
    load(pieces(data), 7);
});
