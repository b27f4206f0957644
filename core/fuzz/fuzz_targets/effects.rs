//! Any bytes as one logged command: refused, or a command that is written again as what it was read from and applies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use redfence_core::machine::Command;

/// What a script did: the tag of `Command::Effects`.
const EFFECTS: u8 = 18;

fn read_and_write(bytes: &[u8]) {
    let Some(command) = Command::decode(bytes) else { return };
    let mut written = Vec::new();
    command.encode(&mut written);
    let again = Command::decode(&written).expect("what was written can be read");
    let mut twice = Vec::new();
    again.encode(&mut twice);
    assert_eq!(written, twice);
}

fuzz_target!(|data: &[u8]| {
    read_and_write(data);
    read_and_write(&[&[EFFECTS], data].concat());
});
