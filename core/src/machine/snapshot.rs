//! The state as bytes, written between applies without stopping them.
//!
//! [`Machine::snapshot_begin`] fixes the instant: the small parts are written at once, and the slabs begin a walk. Each
//! [`Machine::snapshot_step`] then writes some slots; a slot that changes before its turn is written before it changes. The
//! pieces together show the instant of the beginning, whatever was applied meanwhile.
//!
//! ```text
//! piece   = version:u8  number:u32  body  crc32:u32      (over all before it)
//! body    = section*
//! section = kind:u8 content; records: kind count (slot record)*
//! ```
//! The first piece begins with the head (clock, floor, counters, remembered replies); the last ends with the number of
//! records of each kind.

use super::bytes::{put_varint, Hash64};
use super::slab::write_record;
use super::Machine;

/// Written by this version, and the only one read.
pub(crate) const SNAPSHOT_VERSION: u8 = 1;

pub(crate) mod section {
    pub(crate) const HEAD: u8 = 1;
    pub(crate) const LOCKS: u8 = 2;
    pub(crate) const SEATS: u8 = 3;
    pub(crate) const WAITERS: u8 = 4;
    pub(crate) const SESSIONS: u8 = 5;
    pub(crate) const END: u8 = 6;
}

/// How far the snapshot has come.
pub(crate) struct Progress {
    /// Taken by the first step.
    head: Vec<u8>,
    number: u32,
    stage: Stage,
    /// Records written: locks, seats, waiters, sessions.
    counts: [u64; 4],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Locks,
    Seats,
    Waiters,
    Sessions,
}

impl Machine {
    /// Fixes the instant a snapshot shows. One that was under way is dropped.
    pub fn snapshot_begin(&mut self) {
        let mut head = vec![section::HEAD];
        self.write_head(&mut head);
        self.locks.walk_begin();
        self.seats.walk_begin();
        self.waiters.walk_begin();
        self.sessions.walk_begin();
        self.snapshot = Some(Progress { head, number: 0, stage: Stage::Locks, counts: [0; 4] });
    }

    /// Gives a snapshot up.
    pub fn snapshot_cancel(&mut self) {
        self.locks.walk_stop();
        self.seats.walk_stop();
        self.waiters.walk_stop();
        self.sessions.walk_stop();
        self.snapshot = None;
    }

    /// The next piece, after a look at no more than `max_slots` slots. `None` when the last piece has been given.
    pub fn snapshot_step(&mut self, max_slots: usize) -> Option<Vec<u8>> {
        let mut progress = self.snapshot.take()?;
        let mut budget = max_slots.max(1);
        let mut piece = vec![SNAPSHOT_VERSION];
        piece.extend_from_slice(&progress.number.to_le_bytes());
        piece.append(&mut progress.head);
        let mut over = false;
        while budget > 0 && !over {
            over = self.write_stage(&mut progress, &mut budget, &mut piece);
        }
        progress.number += 1;
        if over {
            piece.push(section::END);
            progress.counts.iter().for_each(|count| put_varint(&mut piece, *count));
        } else {
            self.snapshot = Some(progress);
        }
        let crc = crc32fast::hash(&piece);
        piece.extend_from_slice(&crc.to_le_bytes());
        Some(piece)
    }

    /// Writes what the budget allows of one slab. True when the last slab is done.
    fn write_stage(&mut self, progress: &mut Progress, budget: &mut usize, piece: &mut Vec<u8>) -> bool {
        let mut records = Vec::new();
        let (kind, at, (count, done), next) = match progress.stage {
            Stage::Locks => {
                (section::LOCKS, 0, self.locks.walk_step(budget, &mut records), Some(Stage::Seats))
            }
            Stage::Seats => {
                (section::SEATS, 1, self.seats.walk_step(budget, &mut records), Some(Stage::Waiters))
            }
            Stage::Waiters => {
                (section::WAITERS, 2, self.waiters.walk_step(budget, &mut records), Some(Stage::Sessions))
            }
            Stage::Sessions => (section::SESSIONS, 3, self.sessions.walk_step(budget, &mut records), None),
        };
        if count > 0 {
            piece.push(kind);
            put_varint(piece, count);
            piece.append(&mut records);
            progress.counts[at] += count;
        }
        match next {
            _ if !done => false,
            Some(stage) => {
                progress.stage = stage;
                false
            }
            None => true,
        }
    }

    fn write_head(&self, out: &mut Vec<u8>) {
        put_varint(out, self.clock.term);
        put_varint(out, self.clock.logical_ms);
        put_varint(out, self.clock.wall_us);
        put_varint(out, self.floor.0);
        put_varint(out, self.event_seq);
        self.counters.write(out);
        self.idle.write(out);
        self.dedup.write(out);
    }

    /// A hash over all replicated state: equal on every node at the same applied index, and after a restore.
    #[must_use]
    pub fn state_hash(&self) -> u64 {
        let mut hash = Hash64::new(u64::from(SNAPSHOT_VERSION));
        let mut bytes = Vec::new();
        self.write_head(&mut bytes);
        hash_and_clear(&mut hash, &mut bytes);
        for (slot, lock) in self.locks.iter() {
            write_record(slot, lock, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, seat) in self.seats.iter() {
            write_record(slot, seat, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, waiter) in self.waiters.iter() {
            write_record(slot, waiter, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, session) in self.sessions.iter() {
            write_record(slot, session, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        hash.finish()
    }
}

fn hash_and_clear(hash: &mut Hash64, bytes: &mut Vec<u8>) {
    hash.write(bytes);
    bytes.clear();
}
