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
//! The first piece begins with the head (clock, floor, counters, remembered replies, waiting commands); the last ends with the number of
//! records of each kind.

use super::bytes::{put_bytes, put_varint, Hash64};
use super::members::Grants;
use super::slab::write_record;
use super::Machine;
use crate::keyspace::{codec, Value, View};
use ::bytes::Bytes;
use std::collections::VecDeque;

/// Written by this version, and the only one read.
pub(crate) const SNAPSHOT_VERSION: u8 = 1;

pub(crate) mod section {
    pub(crate) const HEAD: u8 = 1;
    pub(crate) const LOCKS: u8 = 2;
    pub(crate) const SEATS: u8 = 3;
    pub(crate) const WAITERS: u8 = 4;
    pub(crate) const SESSIONS: u8 = 5;
    pub(crate) const END: u8 = 6;
    pub(crate) const VALUES: u8 = 7;
    pub(crate) const SCRIPTS: u8 = 8;
    pub(crate) const GRANTS: u8 = 9;
}

/// How far the snapshot has come.
pub(crate) struct Progress {
    /// Taken by the first step.
    head: Vec<u8>,
    number: u32,
    stage: Stage,
    /// Records written: locks, seats, waiters, sessions.
    counts: [u64; 4],
    /// Values, grants and scripts as they were, still to be written. Copies of them cost nothing.
    values: imbl::OrdMap<u32, Value>,
    grants: imbl::OrdMap<u32, Grants>,
    scripts: VecDeque<Bytes>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Locks,
    Seats,
    Waiters,
    Sessions,
    Values,
    Grants,
    Scripts,
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
        self.snapshot = Some(Progress {
            head,
            number: 0,
            stage: Stage::Locks,
            counts: [0; 4],
            values: self.values.clone(),
            grants: self.grants.clone(),
            scripts: self.scripts.iter().cloned().collect(),
        });
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
        match progress.stage {
            Stage::Locks | Stage::Seats | Stage::Waiters | Stage::Sessions => {}
            Stage::Values => return write_values(progress, budget, piece),
            Stage::Grants => return write_grants(progress, budget, piece),
            Stage::Scripts => return write_scripts(progress, budget, piece),
        }
        let mut records = Vec::new();
        let (kind, at, (count, done), next) = match progress.stage {
            Stage::Locks => (section::LOCKS, 0, self.locks.walk_step(budget, &mut records), Stage::Seats),
            Stage::Seats => (section::SEATS, 1, self.seats.walk_step(budget, &mut records), Stage::Waiters),
            Stage::Waiters => {
                (section::WAITERS, 2, self.waiters.walk_step(budget, &mut records), Stage::Sessions)
            }
            Stage::Sessions | Stage::Values | Stage::Grants | Stage::Scripts => {
                (section::SESSIONS, 3, self.sessions.walk_step(budget, &mut records), Stage::Values)
            }
        };
        if count > 0 {
            piece.push(kind);
            put_varint(piece, count);
            piece.append(&mut records);
            progress.counts[at] += count;
        }
        if done {
            progress.stage = next;
        }
        false
    }

    fn write_head(&self, out: &mut Vec<u8>) {
        put_varint(out, self.clock.term);
        put_varint(out, self.clock.logical_ms);
        put_varint(out, self.clock.wall_us);
        put_varint(out, self.floor.0);
        put_varint(out, self.event_seq);
        self.settings.write(out);
        self.counters.write(out);
        self.idle.write(out);
        self.dedup.write(out);
        self.blocked.write(out);
    }

    /// A hash over all replicated state: equal on every node at the same applied index, and after a restore.
    #[must_use]
    pub fn state_hash(&self) -> u64 {
        let mut hash = Hash64::new(u64::from(SNAPSHOT_VERSION));
        let mut bytes = Vec::with_capacity(1_024);
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
        for (slot, value) in &self.values {
            put_value(*slot, value, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, grants) in &self.grants {
            put_varint(&mut bytes, u64::from(*slot));
            grants.write(&mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for body in self.scripts.iter() {
            put_bytes(&mut bytes, body);
            hash_and_clear(&mut hash, &mut bytes);
        }
        hash.finish()
    }
}

fn put_value(slot: u32, value: &Value, out: &mut Vec<u8>) {
    let mut bytes = Vec::new();
    codec::write(value, &mut bytes);
    put_varint(out, u64::from(slot));
    put_bytes(out, &bytes);
}

/// True when the last has been written: never, scripts come after.
fn write_values(progress: &mut Progress, budget: &mut usize, piece: &mut Vec<u8>) -> bool {
    while *budget > 0 {
        let Some((slot, value)) = progress.values.get_min().cloned() else {
            progress.stage = Stage::Grants;
            break;
        };
        progress.values.remove(&slot);
        piece.push(section::VALUES);
        put_value(slot, &value, piece);
        // A large collection is as much work as many slots.
        *budget = budget.saturating_sub(1 + weight(&value));
    }
    false
}

fn weight(value: &Value) -> usize {
    match value.view() {
        View::Str(_) => 0,
        View::Hash(fields) => fields.len(),
        View::List(items) => items.len(),
        View::Set(members) => members.len(),
        View::ZSet(members) => members.len(),
    }
}

fn write_grants(progress: &mut Progress, budget: &mut usize, piece: &mut Vec<u8>) -> bool {
    while *budget > 0 {
        let Some((slot, grants)) = progress.grants.get_min().cloned() else {
            progress.stage = Stage::Scripts;
            break;
        };
        progress.grants.remove(&slot);
        piece.push(section::GRANTS);
        put_varint(piece, u64::from(slot));
        grants.write(piece);
        *budget -= 1;
    }
    false
}

fn write_scripts(progress: &mut Progress, budget: &mut usize, piece: &mut Vec<u8>) -> bool {
    while *budget > 0 {
        let Some(body) = progress.scripts.pop_front() else { return true };
        piece.push(section::SCRIPTS);
        put_bytes(piece, &body);
        *budget = budget.saturating_sub(1 + body.len() / 64);
    }
    false
}

fn hash_and_clear(hash: &mut Hash64, bytes: &mut Vec<u8>) {
    hash.write(bytes);
    bytes.clear();
}
