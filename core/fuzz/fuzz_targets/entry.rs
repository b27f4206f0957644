//! Any bytes as entries, one after the other, each behind its length: the machine stays whole, and a restored copy is equal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence_core::machine::{Applied, Machine};

fuzz_target!(|data: &[u8]| {
    let mut machine = Machine::new();
    machine.set_watched(true);
    let mut out = Applied::default();
    let mut rest = data;
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let (entry, behind) = behind.split_at(behind.len().min(usize::from(u16::from_le_bytes(*len))));
        let _ = machine.apply_entry(entry, &mut out);
        rest = behind;
    }
    machine.check_invariants().expect("the machine stays whole");
    machine.snapshot_begin();
    let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| machine.snapshot_step(2)).collect();
    let restored = Machine::restore(&pieces).expect("what was written can be read");
    assert_eq!(restored.state_hash(), machine.state_hash());
});
