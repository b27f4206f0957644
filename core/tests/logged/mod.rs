//! What a leader puts into the log for a request: scripts are recognised or run, the rest goes as it is.
#![allow(dead_code, reason = "each test file uses its own part")]
// A meter of tests looks at a clock; the ban is meant for the machine.
#![allow(clippy::disallowed_methods)]

use redfence_core::machine::{Command, Machine};
use redfence_core::script::{CpuMeter, Engine, Preparation};
use redfence_core::types::Stamp;
use std::time::Instant;

/// A small part of the time that passes: a busy machine stops no script that is within its limits.
pub(crate) struct Slow(Instant);

impl Slow {
    #[must_use]
    pub(crate) fn start() -> Slow {
        Slow(Instant::now())
    }
}

impl CpuMeter for Slow {
    fn elapsed_us(&mut self) -> u64 {
        self.0.elapsed().as_micros() as u64 / 64
    }
}

/// The bytes of the command that is logged. Nothing may be due at `stamp`.
pub(crate) fn logged(engine: &mut Engine, machine: &Machine, stamp: Stamp, command: &Command<'_>) -> Vec<u8> {
    let mut blob = Vec::new();
    command.encode(&mut blob);
    match engine.prepare(machine, &blob) {
        Preparation::AsIs => blob,
        Preparation::Native(native) => native.to_vec(),
        Preparation::Run => {
            assert!(!machine.has_due(stamp), "what is due ends before a script runs");
            engine.run(machine, stamp, &blob, &mut Slow::start()).blob.to_vec()
        }
    }
}
