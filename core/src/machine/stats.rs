//! What `INFO` shows of the machine. The counters are part of the state: they go on after a restore.

use crate::keyspace::DATABASES;
use crate::machine::log::bytes::{put_varint, Reader};
use crate::machine::Machine;
use crate::types::LockMode;

/// Counted since the state was first made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) held: u64,
    pub(crate) grants: u64,
    pub(crate) releases: u64,
    pub(crate) expiries: u64,
    pub(crate) refusals: u64,
    pub(crate) deadlocks: u64,
    pub(crate) deadlock_searches_cut: u64,
    pub(crate) differing_effects: u64,
}

impl Counters {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let Counters {
            held,
            grants,
            releases,
            expiries,
            refusals,
            deadlocks,
            deadlock_searches_cut,
            differing_effects,
        } = *self;
        let lock_counts = [held, grants, releases, expiries, refusals, deadlocks, deadlock_searches_cut];
        for value in lock_counts.into_iter().chain([differing_effects]) {
            put_varint(out, value);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Counters> {
        Some(Counters {
            held: count(reader)?,
            grants: count(reader)?,
            releases: count(reader)?,
            expiries: count(reader)?,
            refusals: count(reader)?,
            deadlocks: count(reader)?,
            deadlock_searches_cut: count(reader)?,
            differing_effects: count(reader)?,
        })
    }
}

/// A count that can still go up.
pub(crate) fn count(reader: &mut Reader<'_>) -> Option<u64> {
    reader.varint().filter(|count| *count < 1 << 60)
}

/// One database, as `INFO keyspace` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseStats {
    /// Keys whose time is over count until they are ended.
    pub keys: u64,
    /// Those that have a deadline. Locks with several holders do not count.
    pub expires: u64,
}

/// Figures for `INFO` and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Names that are held, in whatever mode.
    pub locks_held: u64,
    /// Exclusive holds, and holders of the other modes.
    pub exclusive_holds: u64,
    pub shared_holds: u64,
    pub permit_holds: u64,
    pub waiters: u64,
    /// Commands that wait for an item: `BLPOP` and its like.
    pub blocked: u64,
    pub sessions: u64,
    /// Free locks whose last fence is still remembered.
    pub idle_records: u64,
    pub grants: u64,
    pub releases: u64,
    pub expiries: u64,
    /// Nil, `[0, reason]` and error replies.
    pub refusals: u64,
    /// Waits refused because they would have closed a circle.
    pub deadlocks: u64,
    /// Searches for a circle that were given up as too long.
    pub deadlock_searches_cut: u64,
    /// Scripts whose writes came out differently than on the leader that ran them. Always 0 unless there is a bug.
    pub differing_effects: u64,
    pub events: u64,
    /// What the replicated state takes, and how much it may.
    pub memory_used_bytes: u64,
    pub memory_max_bytes: u64,
    pub databases: [DatabaseStats; DATABASES as usize],
}

impl Machine {
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counters = self.counters;
        let holders = self.holder_index.counts();
        Stats {
            locks_held: counters.held,
            exclusive_holds: counters.held.saturating_sub(holders.locks),
            shared_holds: holders.of_mode(LockMode::Shared),
            permit_holds: holders.of_mode(LockMode::Permits),
            waiters: self.waiters.len() as u64,
            blocked: self.blocked.len() as u64,
            sessions: self.sessions.len() as u64,
            idle_records: u64::from(self.idle.len),
            grants: counters.grants,
            releases: counters.releases,
            expiries: counters.expiries,
            refusals: counters.refusals,
            deadlocks: counters.deadlocks,
            deadlock_searches_cut: counters.deadlock_searches_cut,
            differing_effects: counters.differing_effects,
            events: self.event_seq,
            memory_used_bytes: self.memory_used_bytes(),
            memory_max_bytes: self.max_memory_bytes(),
            databases: std::array::from_fn(|db| self.database_stats(db as u32)),
        }
    }

    fn database_stats(&self, db: u32) -> DatabaseStats {
        let keys = self.sweep.held(db);
        // What a flush has ended keeps its deadline until it is swept.
        DatabaseStats { keys, expires: self.deadlines.locks_of(db).min(keys) }
    }
}
