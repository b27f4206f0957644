//! Which scripts may be in one entry.
//!
//! All scripts of an entry run over the state before it, but each is applied to what the ones before it have left. So a script may
//! join only where that makes no difference: it touches no key that an earlier one changed, and nothing happens between the two
//! when they are applied. Between two commands of an entry the machine serves waiters and blocked clients, remembers the
//! reply, and forgets free records where memory or records are short.

use super::engine::{ScriptResult, Touched};
use crate::keyspace::Db;
use crate::machine::overlay::Taken;
use crate::machine::Machine;
use ::bytes::Bytes;
use std::collections::BTreeSet;

/// The scripts of an entry so far.
#[derive(Debug, Default)]
pub struct SharedEntry {
    scripts: usize,
    everything: bool,
    written: BTreeSet<(Db, Bytes)>,
    taken: Taken,
    closed: bool,
}

impl SharedEntry {
    /// What its scripts take of the limits on the whole state. The next one runs behind that.
    #[must_use]
    pub fn taken(&self) -> Taken {
        self.taken
    }

    /// Whether no script may join any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a script that ran behind the others may join them. If not it runs again for a later entry.
    #[must_use]
    pub fn admits(&self, ran: &ScriptResult) -> bool {
        // Alone it may find the room that the others took.
        let is_short = ran.found_no_room && self.scripts > 0;
        !self.closed && !is_short && !self.concerns(&ran.touched)
    }

    /// Whether a script that touched these may have seen something older than what its entry will be applied to.
    fn concerns(&self, touched: &Touched) -> bool {
        let mut named = touched.read.iter().chain(&touched.written);
        match touched.everything {
            true => self.everything || !self.written.is_empty(),
            false => self.everything || named.any(|key| self.written.contains(key)),
        }
    }

    /// Adds a script that was admitted.
    pub fn add(&mut self, machine: &Machine, ran: &ScriptResult) {
        self.scripts += 1;
        self.everything |= ran.touched.everything;
        self.written.extend(ran.touched.written.iter().cloned());
        let Taken { records, written, bytes } = &mut self.taken;
        *records += ran.taken.records;
        *written += ran.taken.written;
        *bytes += ran.taken.bytes;
        self.closed = ran.serves_waiters
            || self.everything
            || machine.has_blocked_to_serve()
            || !machine.forgets_nothing_for(*records, *written, *bytes);
    }
}
