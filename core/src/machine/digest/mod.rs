//! Digests: how replicas find out that one of them is not like the others.
//!
//! - The *chain* is a u64 into which apply folds every event and every reply when it is first given. It depends on all entries so far, so comparing it at one
//!   index compares everything before that index.
//! - A *point* is an entry at which all nodes note their chain: the first one with new content 1,024 entries or a second (of the
//!   replicated clock) after the last, or one with a [`DigestCommand::Checkpoint`].
//! - A *full* digest covers what a snapshot holds (`full.rs`): it shows differences that no answer has shown yet. Asked for by a
//!   `Checkpoint` with `full`.
//! - Every voter logs its value ([`DigestCommand::Report`]); `table.rs` compares them. What it decides is a function of the log
//!   alone, so every node decides the same.
//!
//! Which entries are points depends on the log, never on the node. The order of [`EventKind`] and the numbers below are part of the
//! format of the cluster version: changing them changes every chain.
//!
//! # Caveats
//!
//! The hash is no defence against a member that lies: members trust each other.

pub(crate) mod full;
mod reports;
pub(crate) mod table;

use crate::event::EventKind;
use crate::machine::log::bytes::{put_varint, Hash64, Reader};
use crate::machine::{LockSlot, Machine};
use crate::reply::Reply;
use crate::types::{Fence, RequestId};
pub use full::DigestSlice;
pub use reports::DigestCommand;
pub use table::{DigestKind, MemberLife, Standing};
use table::{DigestRow, DigestTable};

/// A point is made after so many entries with content, or after so long.
pub const POINT_ENTRIES: u64 = 1_024;
pub const POINT_MS: u64 = 1_000;

const FOLD_KEYS: [u64; 2] = [0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f];

/// What the machine keeps for digests. All of it but `not state` is in a snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digests {
    chain: u64,
    /// The last entry applied.
    index: u64,
    /// The last entry that changed the chain: digests compared at or after it cover everything.
    content_index: u64,
    point_index: u64,
    point_ms: u64,
    full_index: u64,
    table: DigestTable,

    // Not state.
    asked: Option<DigestKind>,
    chain_before: u64,
    made: Option<MadePoint>,
    /// Rises with whatever may have changed the table.
    revision: u64,
}

/// The entry that was just applied is a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadePoint {
    pub index: u64,
    /// This node's chain after it.
    pub chain: u64,
    /// A full digest is asked for, of the state as it is now.
    pub full: bool,
}

impl Digests {
    #[inline]
    fn fold(&mut self, a: u64, b: u64) {
        let product = u128::from(self.chain ^ a ^ FOLD_KEYS[0]) * u128::from(b ^ FOLD_KEYS[1]);
        self.chain = (product as u64) ^ ((product >> 64) as u64) ^ self.chain.rotate_left(23);
    }

    #[inline]
    pub(crate) fn event(&mut self, kind: EventKind, slot: LockSlot, fence: Fence) {
        self.fold(kind as u64 | u64::from(slot.number()) << 8, fence.0);
    }

    /// A reply to a request. Replies to commands without a number change nothing: nobody hears them.
    #[inline]
    pub(crate) fn reply(&mut self, id: RequestId, reply: &Reply) {
        let (tag, value) = match reply {
            Reply::Granted { fence, ttl_ms } => (1, fence.0 ^ ttl_ms.rotate_left(40)),
            Reply::Released => (2, 0),
            Reply::Renewed { ttl_ms } => (3, *ttl_ms),
            Reply::Refused(reason) => (4, *reason as u64),
            Reply::Nil => (5, 0),
            Reply::Int(number) => (6, *number as u64),
            Reply::GrantedMany { .. }
            | Reply::NilArray
            | Reply::Double(_)
            | Reply::Bool(_)
            | Reply::Bulk(_)
            | Reply::Text(_)
            | Reply::Status(_)
            | Reply::Error(_)
            | Reply::Array(_)
            | Reply::Map(_)
            | Reply::Set(_)
            | Reply::Verbatim(_)
            | Reply::Info(_) => (7, hash_of(reply)),
        };
        self.fold(id.seq ^ id.origin.node.rotate_left(40) ^ tag << 58, value);
    }

    fn begin_entry(&mut self) {
        self.chain_before = self.chain;
        self.asked = None;
    }

    fn end_entry(&mut self, index: u64, logical_ms: u64) {
        self.index = index;
        if self.chain != self.chain_before {
            self.content_index = index;
        }
        let is_due = self.content_index > self.point_index
            && (index >= self.point_index + POINT_ENTRIES || logical_ms >= self.point_ms + POINT_MS);
        if is_due || self.asked.is_some() {
            self.make_point(logical_ms);
        }
    }

    #[cold]
    fn make_point(&mut self, logical_ms: u64) {
        self.revision += 1;
        let full = self.asked.take() == Some(DigestKind::Full);
        (self.point_index, self.point_ms) = (self.index, logical_ms);
        self.table.open(DigestKind::Chain, self.index);
        if full {
            self.full_index = self.index;
            self.table.open(DigestKind::Full, self.index);
        }
        self.made = Some(MadePoint { index: self.index, chain: self.chain, full });
    }

    /// A new cluster begins with this state: what members of the old one reported counts no more, and there is nothing to confirm.
    pub(crate) fn refound(&mut self) {
        self.table = DigestTable::default();
        self.table.confirmed = self.index;
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.chain.to_le_bytes());
        for number in [self.index, self.content_index, self.point_index, self.point_ms, self.full_index] {
            put_varint(out, number);
        }
        self.table.write(out);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Digests> {
        let chain = reader.u64_fixed()?;
        let index = crate::machine::stats::count(reader)?;
        let mut before = || reader.varint().filter(|number| *number <= index);
        let (content_index, point_index) = (before()?, before()?);
        let point_ms = crate::machine::stats::count(reader)?;
        let full_index = reader.varint().filter(|number| *number <= index)?;
        let table = DigestTable::read(reader, index)?;
        Some(Digests {
            chain,
            index,
            content_index,
            point_index,
            point_ms,
            full_index,
            table,
            ..Digests::default()
        })
    }

    /// What a replay of the log alone comes to: the table also depends on who was a voter.
    pub(crate) fn write_chain(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.chain.to_le_bytes());
        put_varint(out, self.point_index);
    }
}

/// Of the replies that are not on the hot path.
#[cold]
fn hash_of(reply: &Reply) -> u64 {
    let mut hash = Hash64::new(0);
    hash_into(reply, &mut hash);
    hash.finish()
}

fn hash_into(reply: &Reply, hash: &mut Hash64) {
    let mut tagged = |tag: u8, bytes: &[u8]| {
        hash.write(&[tag]);
        hash.write(bytes);
    };
    match reply {
        Reply::Granted { fence, ttl_ms } => {
            tagged(1, &fence.0.to_le_bytes());
            tagged(1, &ttl_ms.to_le_bytes());
        }
        Reply::GrantedMany { fences, ttl_ms } => {
            tagged(2, &ttl_ms.to_le_bytes());
            fences.iter().for_each(|fence| tagged(2, &fence.0.to_le_bytes()));
        }
        Reply::Released => tagged(3, &[]),
        Reply::Renewed { ttl_ms } => tagged(4, &ttl_ms.to_le_bytes()),
        Reply::Refused(reason) => tagged(5, reason.as_str().as_bytes()),
        Reply::Nil => tagged(6, &[]),
        Reply::NilArray => tagged(7, &[]),
        Reply::Int(number) => tagged(8, &number.to_le_bytes()),
        Reply::Double(number) => tagged(9, &number.to_bits().to_le_bytes()),
        Reply::Bool(flag) => tagged(10, &[u8::from(*flag)]),
        Reply::Bulk(bytes) => tagged(11, bytes),
        // The same on the wire as a bulk string, and a remembered reply comes back from a snapshot as one.
        Reply::Text(text) => tagged(11, text.as_bytes()),
        Reply::Status(text) => tagged(12, text.as_bytes()),
        Reply::Error(refusal) => tagged(13, refusal.0.as_bytes()),
        Reply::Verbatim(bytes) => tagged(14, bytes),
        Reply::Array(items) | Reply::Set(items) => {
            tagged(15, &items.len().to_le_bytes());
            items.iter().for_each(|item| hash_into(item, hash));
        }
        Reply::Map(pairs) => {
            tagged(16, &pairs.len().to_le_bytes());
            for (key, value) in pairs {
                hash_into(key, hash);
                hash_into(value, hash);
            }
        }
        Reply::Info(info) => hash_into(&Reply::Map(info.pairs()), hash),
    }
}

impl Machine {
    pub(crate) fn begin_digest(&mut self) {
        self.digests.begin_entry();
    }

    pub(crate) fn end_digest(&mut self, index: u64) {
        self.digests.end_entry(index, self.clock.logical_ms);
    }

    /// The last entry applied by [`Machine::apply_entry_at`].
    #[must_use]
    pub fn entry_index(&self) -> u64 {
        self.digests.index
    }

    /// The members as of the last applied entry: whose reports count, and how many are a majority. Not part of a snapshot, which
    /// names the members beside the machine.
    pub fn set_members(&mut self, members: Vec<MemberLife>) {
        self.digests.revision += 1;
        self.digests.table.set_members(members);
    }

    /// Rises when reports may compare differently than before. A state that was restored begins anew.
    #[must_use]
    pub fn digest_revision(&self) -> u64 {
        self.digests.revision
    }

    /// Whether the last applied entry was a point. Answers once.
    pub fn take_point(&mut self) -> Option<MadePoint> {
        self.digests.made.take()
    }

    /// The chain of digests after the last entry.
    #[must_use]
    pub fn digest_chain(&self) -> u64 {
        self.digests.chain
    }

    /// The last entry that changed the chain.
    #[must_use]
    pub fn content_index(&self) -> u64 {
        self.digests.content_index
    }

    /// The last point: its index, and the replicated clock at it.
    #[must_use]
    pub fn last_point(&self) -> (u64, u64) {
        (self.digests.point_index, self.digests.point_ms)
    }

    /// The last entry at which a full digest was asked for.
    #[must_use]
    pub fn last_full_index(&self) -> u64 {
        self.digests.full_index
    }

    /// A majority of voters has reported the same digest at this index: everything up to it is certain. A single voter has nobody
    /// to compare with.
    #[must_use]
    pub fn confirmed_index(&self) -> u64 {
        match self.digests.table.is_alone() {
            true => self.digests.index,
            false => self.digests.table.confirmed,
        }
    }

    /// Whether there is nobody to compare with.
    #[must_use]
    pub fn is_single_voter(&self) -> bool {
        self.digests.table.is_alone()
    }

    /// The reports about one point, if they are still kept.
    #[must_use]
    pub fn digest_row(&self, kind: DigestKind, index: u64) -> Option<&DigestRow> {
        self.digests.table.row(kind, index)
    }

    /// Since which point a member is known to have diverged.
    #[must_use]
    pub fn quarantined_at(&self, node: u64, added_at: u64) -> Option<u64> {
        self.digests.table.quarantined_at(node, added_at)
    }

    /// How many members are known to have diverged.
    #[must_use]
    pub fn quarantined_members(&self) -> usize {
        self.digests.table.quarantined.len()
    }

    /// Voters' whole states differ: only an agreed full digest ends it.
    #[must_use]
    pub fn has_full_conflict(&self) -> bool {
        self.digests.table.has_full_conflict()
    }

    /// Whether the voters' reports allow to go on.
    #[must_use]
    pub fn digest_standing(&self) -> Standing {
        self.digests.table.standing()
    }

    /// Makes this replica differ from the others, as a bug, a bad memory cell or another release would. For tests.
    #[cfg(any(feature = "mutants", debug_assertions))]
    pub fn plant_divergence(&mut self, how: Divergence) {
        match how {
            Divergence::Answer(number) => self.digests.fold(number, number),
            Divergence::State(number) => self.floor.0 = self.floor.0.wrapping_add(number),
        }
    }
}

/// Ways in which a test lets one replica differ.
#[cfg(any(feature = "mutants", debug_assertions))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// It has answered something else than the others: the chain shows it.
    Answer(u64),
    /// Its state differs, and no answer has shown it yet: only a full digest does. Numbers that add up to zero heal it again.
    State(u64),
}
