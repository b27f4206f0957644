//! Any bytes as the content of a snapshot's only piece, under a right checksum: an error, or a machine that works.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence_core::machine::{Applied, Command, Machine};
use redfence_core::types::Stamp;
use redfence_core_fuzz::snapshot_version;

fuzz_target!(|data: &[u8]| {
    let mut piece = vec![snapshot_version(), 0, 0, 0, 0];
    piece.extend_from_slice(data);
    let crc = crc32fast::hash(&piece);
    piece.extend_from_slice(&crc.to_le_bytes());
    if let Ok(mut machine) = Machine::restore([&piece]) {
        let stamp = Stamp { term: u64::MAX, logical_ms: u64::MAX, wall_us: u64::MAX };
        machine.apply(stamp, None, Command::Expire { idle_ms: 0 }, &mut Applied::default());
        machine.check_invariants().expect("a machine that was let in stays whole");
    }
});
