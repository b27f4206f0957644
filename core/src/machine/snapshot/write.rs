//! The state as bytes, written between applies without stopping them.
//!
//! [`Machine::snapshot_begin`] fixes the instant: the small parts are written at once, and the slabs begin a walk. Each
//! [`Machine::snapshot_step`] then writes some slots; a slot that changes before its turn is written before it changes. The
//! pieces together show the instant of the beginning, whatever was applied meanwhile.
//!
//! ```text
//! piece  = format:u8  number:u32  bytes  crc32:u32      (over all before it)
//! record = kind:u8  length:u32  content
//! ```
//! `format` tells the cluster version at that instant. The bytes of all pieces are one stream of records: the head first, the counts of what came last. Pieces are cut by bytes, wherever
//! that falls, so none is ever longer than [`SNAPSHOT_PIECE_BYTES_MAX`]; a reader refuses longer ones. No record is longer than
//! [`SNAPSHOT_RECORD_BYTES_MAX`]: a collection is a record for itself and as many for its elements as it takes.

use crate::keyspace::stream::{self, Writer};
use crate::keyspace::{codec, Value};
use crate::limits::{SNAPSHOT_ELEMENTS_BYTES, SNAPSHOT_PIECE_BYTES_MAX};
use crate::machine::digest::full::RecordSum;
use crate::machine::keys::blocked::{Ready, Waitings};
use crate::machine::keys::members::Grants;
use crate::machine::locks::marks::{put_mark, MarkMap};
use crate::machine::log::bytes::{put_bytes, put_varint, Hash64};
use crate::machine::store::slab::{framed, write_record};
use crate::machine::version::{format_byte, ClusterVersion};
use crate::machine::{LockSlot, Machine};
use ::bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Format and number before the bytes of a piece, checksum behind them.
const PIECE_OVERHEAD_BYTES: usize = 1 + 4 + 4;
/// Bytes of records in one piece.
const PIECE_CONTENT_BYTES_MAX: usize = SNAPSHOT_PIECE_BYTES_MAX - PIECE_OVERHEAD_BYTES;

/// What a record is.
pub(crate) mod kind {
    pub(crate) const HEAD: u8 = 1;
    pub(crate) const LOCK: u8 = 2;
    pub(crate) const QUEUE_ENTRY: u8 = 3;
    pub(crate) const WAITER: u8 = 4;
    pub(crate) const SESSION: u8 = 5;
    pub(crate) const END: u8 = 6;
    /// Slot, form and number of elements of a collection. Its elements follow.
    pub(crate) const VALUE: u8 = 7;
    pub(crate) const SCRIPT: u8 = 8;
    pub(crate) const GRANTS: u8 = 9;
    pub(crate) const ELEMENTS: u8 = 10;
    /// A node the machine knows, and some of the replies remembered for it.
    pub(crate) const ORIGIN: u8 = 11;
    pub(crate) const REPLIES: u8 = 12;
    pub(crate) const BLOCKED: u8 = 13;
    /// A key for which blocked clients are still to try.
    pub(crate) const READY: u8 = 14;
    /// When a collection was last changed in place.
    pub(crate) const VERSION: u8 = 15;
    pub(crate) const MARK: u8 = 16;
    /// Statistics: not part of the digest.
    pub(crate) const COUNTERS: u8 = 17;
    /// Since cluster version 2: a holder beside others, and the VALUE of an exclusive one.
    pub(crate) const HOLDER: u8 = 18;
    pub(crate) const ATTACHED: u8 = 19;
}

/// How far the snapshot has come.
pub(crate) struct Progress {
    /// Of the instant that is shown.
    version: ClusterVersion,
    number: u32,
    stage: Stage,
    /// Bytes of records that are not in a piece yet.
    ready: BytesMut,
    /// Records written: locks, queue entries, waiters, sessions, holders.
    counts: [u64; 5],
    /// What is copied at the beginning because a copy costs nothing, and still to be written.
    blocked: Waitings,
    blocked_ready: VecDeque<Ready>,
    values: imbl::OrdMap<LockSlot, Value>,
    /// The collection whose elements are being written.
    value: Option<Writer>,
    versions: imbl::OrdMap<LockSlot, u64>,
    grants: imbl::OrdMap<LockSlot, Grants>,
    attached: imbl::OrdMap<LockSlot, Box<[u8]>>,
    marks: MarkMap,
    scripts: VecDeque<Bytes>,
    /// Over the records written so far.
    sum: RecordSum,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Locks,
    QueueEntries,
    Waiters,
    Sessions,
    Holders,
    Blocked,
    Values,
    Versions,
    Grants,
    Attached,
    Marks,
    Scripts,
    End,
    Over,
}

impl Machine {
    /// Fixes the instant a snapshot shows. One that was under way is dropped.
    pub fn snapshot_begin(&mut self) {
        let mut head = Vec::new();
        self.write_head(&mut head);
        let mut sum = RecordSum::default();
        sum.add_all(&head);
        self.locks.walk_begin();
        self.queue_entries.walk_begin();
        self.waiters.walk_begin();
        self.sessions.walk_begin();
        self.holders.walk_begin();
        self.snapshot = Some(Progress {
            version: self.cluster_version(),
            number: 0,
            stage: Stage::Locks,
            ready: BytesMut::from(&head[..]),
            counts: [0; 5],
            blocked: self.blocked.waitings(),
            blocked_ready: self.blocked.ready(),
            values: self.values.clone(),
            value: None,
            versions: self.versions.clone(),
            grants: self.grants.clone(),
            attached: self.attached.clone(),
            marks: self.marks.image(),
            scripts: self.scripts.iter().cloned().collect(),
            sum,
        });
    }

    /// Gives a snapshot up.
    pub fn snapshot_cancel(&mut self) {
        self.locks.walk_stop();
        self.queue_entries.walk_stop();
        self.waiters.walk_stop();
        self.sessions.walk_stop();
        self.holders.walk_stop();
        self.snapshot = None;
    }

    /// The next piece, at most [`SNAPSHOT_PIECE_BYTES_MAX`] long, after a look at no more than `max_slots` slots. `None` when the
    /// last piece has been given.
    pub fn snapshot_step(&mut self, max_slots: usize) -> Option<Vec<u8>> {
        let mut progress = self.snapshot.take().filter(|progress| !progress.is_written())?;
        let mut budget = max_slots.max(1);
        let mut records = Vec::new();
        while budget > 0 && progress.stage != Stage::Over {
            let missing = PIECE_CONTENT_BYTES_MAX.saturating_sub(progress.ready.len());
            if records.len() >= missing {
                break;
            }
            self.write_stage(&mut progress, &mut budget, missing, &mut records);
        }
        progress.ready.extend_from_slice(&records);
        let content = progress.ready.split_to(progress.ready.len().min(PIECE_CONTENT_BYTES_MAX));
        let piece = piece(progress.version, progress.number, &content);
        progress.number += 1;
        self.snapshot = Some(progress);
        Some(piece)
    }

    /// The full digest of the state that the snapshot shows, between its last piece and the `None` behind it.
    #[must_use]
    pub fn snapshot_digest(&self) -> Option<u64> {
        self.snapshot.as_ref().filter(|progress| progress.is_written()).map(Progress::digest)
    }

    /// Writes what the budget allows of one stage, until `out` has `bytes_max` bytes or more.
    pub(crate) fn write_stage(
        &mut self,
        progress: &mut Progress,
        budget: &mut usize,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) {
        let from = out.len();
        let (at, (count, done), next) = match progress.stage {
            Stage::Locks => (0, self.locks.walk_step(budget, bytes_max, out), Stage::QueueEntries),
            Stage::QueueEntries => (1, self.queue_entries.walk_step(budget, bytes_max, out), Stage::Waiters),
            Stage::Waiters => (2, self.waiters.walk_step(budget, bytes_max, out), Stage::Sessions),
            Stage::Sessions => (3, self.sessions.walk_step(budget, bytes_max, out), Stage::Holders),
            Stage::Holders => (4, self.holders.walk_step(budget, bytes_max, out), Stage::Blocked),
            Stage::Blocked
            | Stage::Values
            | Stage::Versions
            | Stage::Grants
            | Stage::Attached
            | Stage::Marks
            | Stage::Scripts
            | Stage::End
            | Stage::Over => {
                progress.write_copied(budget, bytes_max, out);
                return;
            }
        };
        progress.sum.add_all(&out[from..]);
        progress.counts[at] += count;
        if done {
            progress.stage = next;
        }
    }

    /// Everything that is written at the beginning: bounded, since remembered replies are.
    fn write_head(&self, out: &mut Vec<u8>) {
        framed(kind::HEAD, out, |out| {
            self.write_head_fields(out);
            self.digests.write(out);
        });
        framed(kind::COUNTERS, out, |out| self.counters.write(out));
        self.dedup.write(out);
    }

    fn write_head_fields(&self, out: &mut Vec<u8>) {
        put_varint(out, self.clock.term);
        put_varint(out, self.clock.logical_ms);
        put_varint(out, self.clock.wall_us);
        put_varint(out, self.entry_wall_us);
        put_varint(out, self.floor.0);
        put_varint(out, self.event_seq);
        self.idle.write(out);
        self.sweep.write(out);
        put_varint(out, self.blocked.next_number());
        self.settings.write(out);
        self.marks.write_floor(out, self.upgrade.version);
        out.push(u8::from(self.upgrade.hold));
        if self.cluster_version() >= 2 {
            put_varint(out, self.sessions_opened);
        }
        #[cfg(feature = "next-version")]
        if self.cluster_version() >= 3 {
            put_varint(out, self.next_count);
        }
    }

    /// As [`Machine::write_head`], without what depends on who was a voter: a replay of the log alone comes to the same.
    fn write_head_for_replay(&self, out: &mut Vec<u8>) {
        self.write_head_fields(out);
        self.digests.write_chain(out);
        self.counters.write(out);
        self.dedup.write(out);
    }

    /// A hash over all replicated state: equal on every node at the same applied index, and after a restore.
    #[must_use]
    pub fn state_hash(&self) -> u64 {
        let mut hash = Hash64::new(u64::from(self.cluster_version()));
        let mut bytes = Vec::with_capacity(1_024);
        self.write_head_for_replay(&mut bytes);
        hash_and_clear(&mut hash, &mut bytes);
        for (slot, lock) in self.locks.iter() {
            write_record(slot, lock, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, entry) in self.queue_entries.iter() {
            write_record(slot, entry, &mut bytes);
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
        for (slot, holder) in self.holders.iter() {
            write_record(slot, holder, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, value) in &self.attached {
            write_attached(*slot, value, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (number, waiting) in &self.blocked.waitings() {
            waiting.write(*number, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for ready in self.blocked.ready() {
            ready.write(&mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, value) in &self.values {
            put_varint(&mut bytes, u64::from(slot.number()));
            codec::write(value, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, version) in &self.versions {
            write_version(*slot, *version, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (key, mark) in &self.marks.image() {
            put_mark(key, mark, &mut bytes);
            hash_and_clear(&mut hash, &mut bytes);
        }
        for (slot, grants) in &self.grants {
            put_varint(&mut bytes, u64::from(slot.number()));
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

impl Progress {
    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// All pieces of a snapshot have been given.
    fn is_written(&self) -> bool {
        self.is_over() && self.ready.is_empty()
    }

    /// Of all records, once it is over.
    pub(crate) fn digest(&self) -> u64 {
        self.sum.value()
    }

    /// As [`Machine::write_stage`], for what was copied at the beginning.
    fn write_copied(&mut self, budget: &mut usize, bytes_max: usize, out: &mut Vec<u8>) {
        while *budget > 0 && out.len() < bytes_max && self.stage != Stage::Over {
            *budget -= 1;
            let from = out.len();
            match self.stage {
                Stage::Locks
                | Stage::QueueEntries
                | Stage::Waiters
                | Stage::Sessions
                | Stage::Holders
                | Stage::Over => return,
                Stage::Blocked => match self.blocked.get_min().cloned() {
                    Some((number, waiting)) => {
                        self.blocked.remove(&number);
                        waiting.write(number, out);
                    }
                    None => match self.blocked_ready.pop_front() {
                        Some(ready) => ready.write(out),
                        None => self.stage = Stage::Values,
                    },
                },
                Stage::Values => self.write_value(out),
                Stage::Versions => match self.versions.get_min().copied() {
                    Some((slot, version)) => {
                        self.versions.remove(&slot);
                        write_version(slot, version, out);
                    }
                    None => self.stage = Stage::Grants,
                },
                Stage::Grants => match self.grants.get_min().cloned() {
                    Some((slot, grants)) => {
                        self.grants.remove(&slot);
                        framed(kind::GRANTS, out, |out| {
                            put_varint(out, u64::from(slot.number()));
                            grants.write(out);
                        });
                    }
                    None => self.stage = Stage::Attached,
                },
                Stage::Attached => match self.attached.get_min().cloned() {
                    Some((slot, value)) => {
                        self.attached.remove(&slot);
                        write_attached(slot, &value, out);
                    }
                    None => self.stage = Stage::Marks,
                },
                Stage::Marks => match self.marks.get_min().cloned() {
                    Some((key, mark)) => {
                        self.marks.remove(&key);
                        framed(kind::MARK, out, |out| put_mark(&key, &mark, out));
                    }
                    None => self.stage = Stage::Scripts,
                },
                Stage::Scripts => match self.scripts.pop_front() {
                    Some(body) => framed(kind::SCRIPT, out, |out| out.extend_from_slice(&body)),
                    None => self.stage = Stage::End,
                },
                Stage::End => {
                    let counts = self.counts;
                    let digest = self.digest();
                    let kinds = counts_at(self.version);
                    framed(kind::END, out, |out| {
                        counts[..kinds].iter().for_each(|count| put_varint(out, *count));
                        out.extend_from_slice(&digest.to_le_bytes());
                    });
                    self.stage = Stage::Over;
                }
            }
            self.sum.add_all(&out[from..]);
        }
    }

    /// Some elements of the collection under way, or the beginning of the next.
    fn write_value(&mut self, out: &mut Vec<u8>) {
        if let Some(writer) = self.value.as_mut() {
            framed(kind::ELEMENTS, out, |out| writer.write(SNAPSHOT_ELEMENTS_BYTES, out));
            if writer.is_done() {
                self.value = None;
            }
            return;
        }
        let Some((slot, value)) = self.values.get_min().cloned() else {
            self.stage = Stage::Versions;
            return;
        };
        self.values.remove(&slot);
        framed(kind::VALUE, out, |out| {
            put_varint(out, u64::from(slot.number()));
            out.push(stream::form(&value).expect("strings are kept as owners"));
            put_varint(out, stream::len(&value) as u64);
        });
        self.value = Some(Writer::new(value));
    }
}

fn piece(version: ClusterVersion, number: u32, content: &[u8]) -> Vec<u8> {
    let mut piece = Vec::with_capacity(content.len() + PIECE_OVERHEAD_BYTES);
    piece.push(format_byte(version));
    piece.extend_from_slice(&number.to_le_bytes());
    piece.extend_from_slice(content);
    let crc = crc32fast::hash(&piece);
    piece.extend_from_slice(&crc.to_le_bytes());
    assert!(piece.len() <= SNAPSHOT_PIECE_BYTES_MAX, "a piece of {} bytes was cut", piece.len());
    piece
}

/// How many kinds of records are counted.
pub(crate) fn counts_at(version: ClusterVersion) -> usize {
    if version < 2 {
        4
    } else {
        5
    }
}

fn write_attached(slot: LockSlot, value: &[u8], out: &mut Vec<u8>) {
    framed(kind::ATTACHED, out, |out| {
        put_varint(out, u64::from(slot.number()));
        put_bytes(out, value);
    });
}

fn write_version(slot: LockSlot, version: u64, out: &mut Vec<u8>) {
    framed(kind::VERSION, out, |out| {
        put_varint(out, u64::from(slot.number()));
        put_varint(out, version);
    });
}

fn hash_and_clear(hash: &mut Hash64, bytes: &mut Vec<u8>) {
    hash.write(bytes);
    bytes.clear();
}
