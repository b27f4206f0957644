//! The bytes of one log entry: a version, the leader's stamp, and a batch of commands from each origin.
//!
//! ```text
//! entry  = version:u8  term  logical_ms  wall_us  batch*
//! batch  = node  incarnation:u64  acked_below  count:u32  (seq  len  command)*
//! ```
//! Numbers without a width are varints. A `seq` of 0 wants neither an answer nor to be remembered.
//!
//! Bytes that are no entry change nothing, not even the clock, and are counted; a command inside that is none is answered
//! with an error. Both are the same on every node.

use super::bytes::{put_bytes, put_varint, Reader};
use super::command::Command;
use super::waiter::{origin, put_origin};
use super::{Applied, Machine};
use crate::grammar::errors;
use crate::reply::Reply;
use crate::types::{Origin, RequestId, Stamp};

/// Written by this version, and the only one read.
pub const ENTRY_VERSION: u8 = 1;

/// Puts an entry together from blobs that are encoded already.
#[derive(Debug)]
pub struct EntryBuilder {
    bytes: Vec<u8>,
    commands: usize,
}

impl EntryBuilder {
    #[must_use]
    pub fn new(stamp: Stamp) -> EntryBuilder {
        let mut bytes = Vec::with_capacity(256);
        bytes.push(ENTRY_VERSION);
        put_varint(&mut bytes, stamp.term);
        put_varint(&mut bytes, stamp.logical_ms);
        put_varint(&mut bytes, stamp.wall_us);
        EntryBuilder { bytes, commands: 0 }
    }

    /// Adds one origin's commands. `acked_below`: the origin has every answer with a lower `seq`.
    pub fn push_batch<B: AsRef<[u8]>>(
        &mut self,
        origin: Origin,
        acked_below: u64,
        commands: impl IntoIterator<Item = (u64, B)>,
    ) {
        put_origin(&mut self.bytes, origin);
        put_varint(&mut self.bytes, acked_below);
        let count_at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        let mut count = 0u32;
        for (seq, blob) in commands {
            put_varint(&mut self.bytes, seq);
            put_bytes(&mut self.bytes, blob.as_ref());
            count += 1;
        }
        self.bytes[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
        self.commands += count as usize;
    }

    /// Bytes so far: the leader closes an entry that is large enough.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no command.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    #[must_use]
    pub fn commands(&self) -> usize {
        self.commands
    }

    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads the stamp alone: a new leader goes on from the last one.
#[must_use]
pub fn entry_stamp(bytes: &[u8]) -> Option<Stamp> {
    read_stamp(&mut Reader::new(bytes))
}

fn read_stamp(reader: &mut Reader<'_>) -> Option<Stamp> {
    if reader.u8()? != ENTRY_VERSION {
        return None;
    }
    Some(Stamp { term: reader.varint()?, logical_ms: reader.varint()?, wall_us: reader.varint()? })
}

struct Batch {
    origin: Origin,
    acked_below: u64,
    count: u32,
}

fn read_batch(reader: &mut Reader<'_>) -> Option<Batch> {
    Some(Batch { origin: origin(reader)?, acked_below: reader.varint()?, count: reader.u32_fixed()? })
}

/// Walks the frame without looking into the commands: an entry is taken as a whole or not at all.
fn is_well_framed(mut reader: Reader<'_>) -> bool {
    while !reader.is_empty() {
        let Some(batch) = read_batch(&mut reader) else { return false };
        for _ in 0..batch.count {
            if reader.varint().is_none() || reader.bytes().is_none() {
                return false;
            }
        }
    }
    true
}

impl Machine {
    /// Applies one entry of the log. Total: see the head of this file for bytes that are no entry.
    pub fn apply_entry(&mut self, bytes: &[u8], out: &mut Applied) {
        let mut reader = Reader::new(bytes);
        let stamp = read_stamp(&mut reader);
        let Some(stamp) = stamp.filter(|_| is_well_framed(reader.clone())) else {
            self.counters.malformed += 1;
            return;
        };
        self.begin(stamp, out);
        while !reader.is_empty() {
            let Some(batch) = read_batch(&mut reader) else { break };
            for _ in 0..batch.count {
                let (Some(seq), Some(blob)) = (reader.varint(), reader.bytes()) else { break };
                let id = (seq > 0).then_some(RequestId { origin: batch.origin, seq });
                self.apply_blob(id, blob, out);
            }
            // Behind the commands: the first of them may be the word that this start of the node is the one that counts.
            self.acknowledge(batch.origin, batch.acked_below);
        }
        self.check_after_apply();
    }

    fn apply_blob(&mut self, id: Option<RequestId>, blob: &[u8], out: &mut Applied) {
        match Command::decode(blob) {
            Some(command) => self.run(id, command, out),
            None if !self.admit(id, None, out) => {}
            None => {
                self.counters.malformed += 1;
                self.answer(id, Reply::Error(errors::malformed_command()), out);
            }
        }
    }
}
