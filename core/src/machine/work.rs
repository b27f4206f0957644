//! The work of one logged command, counted in units: about one element looked at. The same on every node, so a command over the limit is
//! refused by all of them, before it changes anything.
//!
//! A command has [`WORK_PER_COMMAND_MAX`], a transaction as much for all of its commands. An entry holds many commands, so what they take
//! beyond a little each comes out of one budget of the entry: commands that do not fit any more are refused with `UNAVAILABLE`, which is
//! certain not to have been applied. What a script did is not counted again when it is applied: it was when the script ran.

use crate::keyspace::errors;
use crate::reply::Refusal;
use std::cell::Cell;

/// Units one logged command or transaction may take: some 20 ms on a slow core.
pub const WORK_PER_COMMAND_MAX: u64 = 200_000;
/// Units the commands of one entry may take together, beyond [`WORK_FREE`] each.
pub const WORK_PER_ENTRY_MAX: u64 = 400_000;
/// What every command may take, however much the others of its entry took.
pub const WORK_FREE: u64 = 128;
/// Units a command may take that only reads, and is not logged.
pub const WORK_PER_READ_MAX: u64 = 400_000;

/// Counts down.
#[derive(Debug, Default)]
pub(crate) struct Work {
    taken: Cell<u64>,
    max: Cell<u64>,
    entry_left: Cell<u64>,
    /// Of all entries so far: not state, for tests and metrics.
    total: Cell<u64>,
}

impl Work {
    /// For a command that is not logged.
    pub(crate) fn of_read() -> Work {
        let work = Work::default();
        work.max.set(WORK_PER_READ_MAX);
        work.entry_left.set(u64::MAX);
        work
    }

    /// For a script, or a transaction with one: as much as one logged command.
    #[cfg(feature = "scripts")]
    pub(crate) fn of_script() -> Work {
        let work = Work::of_read();
        work.max.set(WORK_PER_COMMAND_MAX);
        work
    }

    pub(crate) fn begin_entry(&self) {
        self.entry_left.set(WORK_PER_ENTRY_MAX);
    }

    pub(crate) fn begin_command(&self, max: u64) {
        self.taken.set(0);
        self.max.set(max);
    }

    pub(crate) fn charge(&self, units: u64) -> Result<(), Refusal> {
        let before = self.taken.get();
        let taken = before.saturating_add(units);
        if taken > self.max.get() {
            return Err(errors::too_much_work(self.max.get()));
        }
        let costs_entry = taken.saturating_sub(WORK_FREE.max(before));
        if costs_entry > self.entry_left.get() && self.max.get() != u64::MAX {
            return Err(errors::ENTRY_TOO_MUCH_WORK);
        }
        self.entry_left.set(self.entry_left.get().saturating_sub(costs_entry));
        self.taken.set(taken);
        self.total.set(self.total.get().wrapping_add(units));
        Ok(())
    }

    /// The same for work that was done before it was known how much it is. It counts although it was too much: what comes after it in the
    /// same transaction is refused.
    pub(crate) fn charge_done(&self, units: u64) -> Result<(), Refusal> {
        let result = self.charge(units);
        if result.is_err() {
            self.taken.set(self.taken.get().saturating_add(units));
            self.entry_left.set(self.entry_left.get().saturating_sub(units));
            self.count(units);
        }
        result
    }

    /// Adds to the total alone.
    pub(crate) fn count(&self, units: u64) {
        self.total.set(self.total.get().wrapping_add(units));
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.get()
    }
}

impl super::Machine {
    /// Units of work that keyspace commands have taken since this machine was made. Not state.
    #[must_use]
    pub fn work_total(&self) -> u64 {
        self.work.total()
    }
}
