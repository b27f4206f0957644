//! Bytes nobody meant: random ones, and good ones with a few changed. Nothing panics, nothing grows without measure, a
//! snapshot is either what was written or an error. The fuzz targets in `fuzz/` do the same for as long as they are let.

mod drive;

use drive::{apply, steps, watched, Writer};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use redfence_core::grammar;
use redfence_core::machine::version::{FormatError, VersionRange};
use redfence_core::machine::{Applied, Command, Limits, Machine, RestoreError};

fn config() -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500);
    Config { rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..Config::with_cases(cases) }
}

/// Changes to make: where, and to what.
fn changes() -> impl Strategy<Value = Vec<(u16, u8)>> {
    prop::collection::vec(any::<(u16, u8)>(), 1..4)
}

fn change(bytes: &mut [u8], changes: &[(u16, u8)]) {
    for (at, value) in changes {
        if !bytes.is_empty() {
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *value;
        }
    }
}

/// Makes the checksum right again, so that the content is looked at.
fn seal(piece: &mut [u8]) {
    if let Some((body, crc)) = piece.split_last_chunk_mut::<4>() {
        *crc = crc32fast::hash(body).to_le_bytes();
    }
}

fn pieces_of(machine: &mut Machine) -> Vec<Vec<u8>> {
    machine.snapshot_begin();
    std::iter::from_fn(|| machine.snapshot_step(3)).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_entries(entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let mut machine = watched(Limits::default());
        for mut entry in entries {
            apply(&mut machine, &entry);
            // A good version and stamp, so that the rest is looked at.
            let mut start = vec![1, 1, 1, 1];
            start.append(&mut entry);
            apply(&mut machine, &start);
        }
    }

    #[test]
    fn changed_entries(steps in steps(60), changes in changes()) {
        let mut machine = watched(Limits::default());
        let mut writer = Writer::new();
        for step in &steps {
            let mut entry = writer.entry(step, &machine);
            change(&mut entry, &changes);
            apply(&mut machine, &entry);
        }
    }

    /// What can be read is written again the same way: there is one form only.
    #[test]
    fn random_commands(bytes in prop::collection::vec(any::<u8>(), 0..80), tag in 0..20u8) {
        for bytes in [bytes.clone(), [&[tag], &bytes[..]].concat()] {
            if let Some(command) = Command::decode(&bytes) {
                let mut again = Vec::new();
                command.encode(&mut again);
                prop_assert_eq!(&again, &bytes);
            }
        }
    }

    #[test]
    fn random_snapshots(mut pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..4), sealed in any::<bool>()) {
        if sealed {
            for (number, piece) in pieces.iter_mut().enumerate() {
                let mut start = vec![1, number as u8, 0, 0, 0];
                start.append(piece);
                start.extend_from_slice(&[0; 4]);
                seal(&mut start);
                *piece = start;
            }
        }
        prop_assert!(Machine::restore(&pieces).is_err());
    }

    /// A flipped bit is found by the checksum.
    #[test]
    fn damaged_snapshots(steps in steps(60), at in any::<(u16, u16)>(), bit in 0..8u8) {
        let mut machine = watched(Limits::default());
        let mut writer = Writer::new();
        for step in &steps {
            let entry = writer.entry(step, &machine);
            apply(&mut machine, &entry);
        }
        let mut pieces = pieces_of(&mut machine);
        let piece = usize::from(at.0) % pieces.len();
        let byte = usize::from(at.1) % pieces[piece].len();
        pieces[piece][byte] ^= 1 << bit;
        prop_assert_eq!(Machine::restore(&pieces).err(), Some(RestoreError::Damaged));
    }

    /// With the checksum made right again, the content itself must be refused or be a machine that works.
    #[test]
    fn forged_snapshots(steps in steps(60), at in any::<u16>(), changes in changes(), then in steps(30)) {
        let mut machine = watched(Limits::default());
        let mut writer = Writer::new();
        for step in &steps {
            let entry = writer.entry(step, &machine);
            apply(&mut machine, &entry);
        }
        let mut pieces = pieces_of(&mut machine);
        let piece = usize::from(at) % pieces.len();
        change(&mut pieces[piece], &changes);
        seal(&mut pieces[piece]);
        if let Ok(mut forged) = Machine::restore(&pieces) {
            for step in &then {
                let entry = writer.entry(step, &forged);
                apply(&mut forged, &entry);
            }
        }
    }

    #[test]
    fn random_words(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..8), pick in 0..14usize) {
        let _ = grammar::parse(&words);
        let name = grammar::table::ROWS[pick].name.as_bytes().to_vec();
        let argv: Vec<Vec<u8>> = std::iter::once(name).chain(words).collect();
        prop_assert!(grammar::parse(&argv).is_some());
    }
}

#[test]
fn a_snapshot_misses_no_piece() {
    let mut machine = watched(Limits::default());
    let mut out = Applied::default();
    for name in [b"a", b"b", b"c", b"d", b"e", b"f"] {
        let command =
            Command::Acquire { db: 0, resource: name, ttl_ms: 9, wait_ms: 0, owner: b"o", session: None };
        machine.apply(redfence_core::types::Stamp::default(), None, command, &mut out);
    }
    let pieces = pieces_of(&mut machine);
    assert!(pieces.len() >= 3);
    assert!(Machine::restore(&pieces).is_ok());
    let without = |left_out: usize| {
        let kept = pieces.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, piece)| piece);
        Machine::restore(kept).err()
    };
    assert_eq!(without(0), Some(RestoreError::Order));
    assert_eq!(without(1), Some(RestoreError::Order));
    assert_eq!(without(pieces.len() - 1), Some(RestoreError::Unfinished));
    let doubled = [&pieces[0], &pieces[0]];
    assert_eq!(Machine::restore(doubled).err(), Some(RestoreError::Order));
    assert_eq!(Machine::restore(Vec::<Vec<u8>>::new()).err(), Some(RestoreError::Unfinished));
    let mut later = pieces[0].clone();
    later[0] = 90;
    seal(&mut later);
    assert_eq!(
        Machine::restore([later]).err(),
        Some(RestoreError::Format(FormatError::Unknown { version: 75, known: VersionRange::PROGRAM }))
    );
}
