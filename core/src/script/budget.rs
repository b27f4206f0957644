//! What a script may use: thread CPU time and memory. Whoever runs over is stopped, and nothing in the script can catch it.
//!
//! The VM calls back at every loop turn, call and return, and at every step of a pattern match. The clock is not asked each
//! time: every step and every native function is charged an estimate, and once enough of that has gathered, the meter is
//! read. A single step may touch all memory the script has (`a .. b`, `a < b`, `table.insert(t, 1, x)`), so steps are
//! charged by the memory in use. Native functions whose work is not bounded by that are charged by bytes before they run.

use super::vm::HOST;
use crate::machine::overlay::GivenUp;
use mlua::{Error, Lua, Result};
use std::cell::Cell;

/// CPU time of one request: a script, or a transaction with scripts.
pub(super) const CPU_US_MAX: u64 = 20_000;
/// Bytes a script may allocate.
pub(super) const MEMORY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a script may allocate beyond its limit before the allocator itself refuses: between the two it is stopped in order.
pub(super) const MEMORY_BYTES_SLACK: usize = 256 * 1024;
/// Estimated work between two looks at the meter.
pub(super) const UNCHECKED_NS_MAX: u64 = 200_000;
/// Estimate of a step that touches little memory.
const STEP_NS: u64 = 20;
/// Bytes that one step may touch in a nanosecond.
const STEP_BYTES_PER_NS: usize = 10;
/// Lua's own message; it ends with this wherever it was raised.
const OUT_OF_MEMORY: &str = "not enough memory";

/// Why a run is over before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Cpu,
    Memory,
    /// Its writes and its reply are too long for the log.
    Effects,
    Reply,
    /// A write found no free record.
    Full,
    /// A write found no room in `max-memory`.
    OutOfMemory,
    /// A flush by a Redlock member has too many records to look at.
    Flush,
    /// A Redlock member met a key that was hidden from it: to be run again with nothing hidden.
    Hidden,
    /// It met a key of the other tier.
    CrossTier,
    /// It met a key whose route is being changed.
    Rerouting,
}

impl From<GivenUp> for Stop {
    fn from(why: GivenUp) -> Stop {
        match why {
            GivenUp::Records => Stop::Full,
            GivenUp::Memory => Stop::OutOfMemory,
            GivenUp::Work => Stop::Cpu,
            GivenUp::Flush => Stop::Flush,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Budget {
    unchecked_ns: Cell<u64>,
    base_bytes: Cell<usize>,
    stop: Cell<Option<Stop>>,
}

impl Budget {
    /// A script begins; `base_bytes` are the VM's own.
    pub(super) fn start(&self, base_bytes: usize) {
        self.unchecked_ns.set(0);
        self.base_bytes.set(base_bytes);
        self.stop.set(None);
    }

    pub(super) fn stopped(&self) -> Option<Stop> {
        self.stop.get()
    }

    /// The run is over. Answers the error that ends it.
    pub(super) fn end(&self, stop: Stop) -> Error {
        if self.stop.get().is_none() {
            self.stop.set(Some(stop));
        }
        Error::RuntimeError("script stopped".into())
    }

    /// Fails once the run is over, whatever the script does about it.
    pub(super) fn go_on(&self) -> Result<()> {
        match self.stop.get() {
            None => Ok(()),
            Some(stop) => Err(self.end(stop)),
        }
    }

    /// One step of the VM.
    pub(super) fn step(&self, lua: &Lua) -> Result<()> {
        let used = lua.used_memory().saturating_sub(self.base_bytes.get());
        if used > MEMORY_BYTES_MAX {
            return Err(self.end(Stop::Memory));
        }
        let unchecked = self.unchecked_ns.get() + STEP_NS + (used / STEP_BYTES_PER_NS) as u64;
        self.unchecked_ns.set(unchecked);
        if unchecked < UNCHECKED_NS_MAX {
            return self.go_on();
        }
        self.check(0)
    }

    /// Before work that takes about this long.
    pub(super) fn charge_ns(&self, ns: u64) -> Result<()> {
        let unchecked = self.unchecked_ns.get().saturating_add(ns);
        self.unchecked_ns.set(unchecked);
        if unchecked < UNCHECKED_NS_MAX {
            return self.go_on();
        }
        self.check(ns / 1000)
    }

    /// Before something is built outside the VM's own memory.
    pub(super) fn charge_bytes(&self, bytes: usize) -> Result<()> {
        if bytes > MEMORY_BYTES_MAX {
            return Err(self.end(Stop::Memory));
        }
        Ok(())
    }

    fn check(&self, coming_us: u64) -> Result<()> {
        self.unchecked_ns.set(0);
        self.go_on()?;
        let elapsed_us = HOST.with(|host| host.elapsed_us());
        if elapsed_us.saturating_add(coming_us) >= CPU_US_MAX {
            return Err(self.end(Stop::Cpu));
        }
        Ok(())
    }

    /// Looks at an error before the script does.
    pub(super) fn note(&self, lua: &Lua, text: Option<&[u8]>) {
        let full = || {
            let used = lua.used_memory().saturating_sub(self.base_bytes.get());
            used + MEMORY_BYTES_SLACK > MEMORY_BYTES_MAX
        };
        // Errors that are not text come from Rust, which raises none but for want of memory or of time. A handler that
        // finds no memory ends in an error of its own.
        let memory = text.is_none_or(|text| text.ends_with(OUT_OF_MEMORY.as_bytes()) || full());
        if memory && self.stop.get().is_none() {
            self.stop.set(Some(Stop::Memory));
        }
    }
}
