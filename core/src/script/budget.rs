//! What a script may spend. Units are counted, never time: every node must stop a script at the same point.
//!
//! The VM calls back at every loop turn, call and return, and at every step of a pattern match: that is one unit, more
//! where each such step may touch much memory.

use mlua::{Error, Lua, Result};
use std::cell::Cell;

/// Units a script may spend: about as many loop turns. A script runs on the thread that keeps a leader its leadership: all of it
/// must take a small part of an election time-out.
pub(super) const UNITS_MAX: i64 = 1_000_000;
/// Units a script may spend in the shared VM, where steps are cheaper than in a VM of its own. What is shared by strings that
/// are known already depends on what ran before, so the limit is low enough that a script within it is also within
/// [`UNITS_MAX`] in a VM of its own: steps are not a hundred times dearer there.
const SHARED_UNITS_MAX: i64 = UNITS_MAX / 100;
/// Bytes of text that make a step of the pattern matcher one unit dearer.
const BYTES_PER_UNIT_MATCHED: usize = 512;
/// Bytes a script has allocated that make each step one unit dearer, once it runs in a VM of its own.
const BYTES_PER_UNIT_USED: usize = 32 * 1024;
/// Lua's own message; it ends with this wherever it was raised.
const OUT_OF_MEMORY: &str = "not enough memory";

/// Why a run is over before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Budget,
    Memory,
}

#[derive(Debug, Default)]
pub(super) struct Budget {
    spent: Cell<i64>,
    units_max: Cell<i64>,
    matched_weight: Cell<i64>,
    /// Whether memory makes steps dearer: only in a VM of its own, where its use is the same on every node.
    memory_weighs: Cell<bool>,
    stop: Cell<Option<Stop>>,
}

impl Budget {
    /// `own`: in a VM of its own.
    pub(super) fn start(&self, own: bool) {
        self.spent.set(0);
        self.units_max.set(if own { UNITS_MAX } else { SHARED_UNITS_MAX });
        self.matched_weight.set(0);
        self.memory_weighs.set(own);
        self.stop.set(None);
    }

    pub(super) fn stopped(&self) -> Option<Stop> {
        self.stop.get()
    }

    /// One step of the VM.
    pub(super) fn step(&self, lua: &Lua) -> Result<()> {
        let mut units = 1 + self.matched_weight.get();
        if self.memory_weighs.get() {
            units += (lua.used_memory() / BYTES_PER_UNIT_USED) as i64;
        }
        self.spend(units)
    }

    pub(super) fn spend(&self, units: i64) -> Result<()> {
        let spent = self.spent.get().saturating_add(units);
        self.spent.set(spent);
        if spent > self.units_max.get() && self.stop.get().is_none() {
            self.stop.set(Some(Stop::Budget));
        }
        self.go_on()
    }

    /// Fails once the run is over, whatever the script does about it.
    pub(super) fn go_on(&self) -> Result<()> {
        match self.stop.get() {
            None => Ok(()),
            Some(Stop::Budget) => Err(Error::RuntimeError("script stopped: over its budget".into())),
            Some(Stop::Memory) => Err(Error::RuntimeError(OUT_OF_MEMORY.into())),
        }
    }

    /// How long the text is that the matcher walks; 0 when it is done.
    pub(super) fn weigh(&self, bytes: usize) {
        self.matched_weight.set((bytes / BYTES_PER_UNIT_MATCHED) as i64);
    }

    /// Looks at an error before the script does.
    pub(super) fn note(&self, text: Option<&[u8]>) {
        self.matched_weight.set(0);
        // Errors that are not text come from Rust, which raises none but for want of memory or of budget.
        let memory = text.is_none_or(|text| text.ends_with(OUT_OF_MEMORY.as_bytes()));
        if memory && self.stop.get().is_none() {
            self.stop.set(Some(Stop::Memory));
        }
    }
}
