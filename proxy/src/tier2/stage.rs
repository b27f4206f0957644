//! What the leader holds ready for its next entry: commands of its own clients and of followers' clients, unstamped.
//!
//! Bounded; what followers send beyond the bound is dropped, and they send it again. Emptied when leadership ends: origins
//! keep their requests until they see them applied, so nothing is lost with it.
//!
//! **Order.** Followers repeat what they did not see applied by going back to the oldest of it (go-back-N). Of each of them the
//! stage knows the highest number it has taken in this leadership. A batch with a gap before it is not taken; what was taken
//! before is passed over. So one node's commands are staged in the order of their numbers, whatever was lost, repeated or
//! overtaken on the way; and what a former leader of theirs left in the log is a beginning of the same sequence.

use super::pending::Pending;
use super::ports::{Forward, Forwarded, NodeId};
use bytes::Bytes;
use redfence_core::machine::EntryBuilder;
use redfence_core::types::{Origin, Stamp};
use std::collections::{BTreeMap, VecDeque};

/// A request that wants neither an answer nor to be remembered.
pub(super) const UNNUMBERED: u64 = 0;

#[derive(Debug, Default)]
pub(super) struct Stage {
    groups: VecDeque<Group>,
    commands: usize,
    bytes: usize,
    /// By node: the newest start of it that was heard of, and the highest number taken of that.
    taken: BTreeMap<NodeId, Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    incarnation: u64,
    seq: u64,
}

#[derive(Debug)]
enum Group {
    /// Of this node's clients: looked up when the entry is built, so that what was given up meanwhile stays out.
    Own(VecDeque<u64>),
    /// Of the node itself: expiry and the like.
    Unnumbered(Bytes),
    Forwarded {
        origin: Origin,
        acked_below: u64,
        commands: VecDeque<Forwarded>,
    },
}

/// An entry that is built but not yet taken out of the stage.
pub(super) struct Built {
    pub(super) data: Vec<u8>,
    /// Numbers of this node's own requests inside.
    pub(super) own: Vec<u64>,
    /// How many staged commands it covers, those passed over included.
    covered: usize,
}

impl Stage {
    pub(super) fn is_empty(&self) -> bool {
        self.commands == 0
    }

    pub(super) fn len(&self) -> usize {
        self.commands
    }

    pub(super) fn clear(&mut self) {
        *self = Stage::default();
    }

    pub(super) fn push_own(&mut self, seq: u64) {
        match self.groups.back_mut() {
            Some(Group::Own(seqs)) => seqs.push_back(seq),
            Some(Group::Unnumbered(_) | Group::Forwarded { .. }) | None => {
                self.groups.push_back(Group::Own([seq].into()));
            }
        }
        self.commands += 1;
    }

    pub(super) fn push_unnumbered(&mut self, blob: Bytes) {
        self.bytes += blob.len();
        self.commands += 1;
        self.groups.push_back(Group::Unnumbered(blob));
    }

    /// False: no room, or something before it is missing. The batch is dropped.
    pub(super) fn push_forwarded(&mut self, forward: Forward, commands_max: usize, bytes_max: usize) -> bool {
        let Forward { origin, prev, acked_below, mut commands, .. } = forward;
        let Some(last) = commands.last().map(|command| command.seq) else { return true };
        if last != UNNUMBERED {
            let taken = self.taken.entry(origin.node).or_default();
            if origin.incarnation > taken.incarnation {
                *taken = Taken { incarnation: origin.incarnation, seq: 0 };
            }
            if origin.incarnation < taken.incarnation || prev > taken.seq {
                return false;
            }
            let repeated = commands.partition_point(|command| command.seq <= taken.seq);
            commands.drain(..repeated);
        }
        let bytes: usize = commands.iter().map(|command| command.blob.len()).sum();
        if self.commands + commands.len() > commands_max || self.bytes + bytes > bytes_max {
            return false;
        }
        if commands.is_empty() {
            return true;
        }
        if let Some(taken) = self.taken.get_mut(&origin.node).filter(|_| last != UNNUMBERED) {
            taken.seq = last;
        }
        self.commands += commands.len();
        self.bytes += bytes;
        self.groups.push_back(Group::Forwarded { origin, acked_below, commands: commands.into() });
        true
    }

    /// Builds one entry from the front of the stage. `None` where nothing is left to propose.
    pub(super) fn build(
        &mut self,
        stamp: Stamp,
        pending: &Pending,
        commands_max: usize,
        bytes_max: usize,
    ) -> Option<Built> {
        let mut builder = EntryBuilder::new(stamp);
        let mut own = Vec::new();
        let mut covered = 0;
        for group in &self.groups {
            let room = Room {
                commands: commands_max.saturating_sub(covered),
                bytes: bytes_max.saturating_sub(builder.len()),
                is_empty: builder.is_empty(),
            };
            if room.commands == 0 || room.bytes == 0 {
                break;
            }
            let taken = match group {
                Group::Own(seqs) => push_own_batch(&mut builder, seqs, pending, &room, &mut own),
                Group::Unnumbered(blob) if room.fitting([blob.len()].into_iter()) == 0 => 0,
                Group::Unnumbered(blob) => {
                    builder.push_batch(pending.origin(), pending.acked_below(), [(UNNUMBERED, blob)]);
                    1
                }
                Group::Forwarded { origin, acked_below, commands } => {
                    let count = room.fitting(commands.iter().map(|command| command.blob.len()));
                    let batch = commands.iter().take(count).map(|command| (command.seq, &command.blob));
                    if count > 0 {
                        builder.push_batch(*origin, *acked_below, batch);
                    }
                    count
                }
            };
            covered += taken;
            if taken < group.len() {
                break;
            }
        }
        if builder.is_empty() {
            self.take_out(covered);
            return None;
        }
        Some(Built { data: builder.finish(), own, covered })
    }

    /// The entry is in the log: what it covers leaves the stage.
    pub(super) fn proposed(&mut self, covered: &Covered) -> usize {
        self.take_out(covered.0);
        covered.0
    }

    fn take_out(&mut self, mut count: usize) {
        self.commands -= count;
        while count > 0 {
            let Some(group) = self.groups.front_mut() else { return };
            let left = match group {
                Group::Own(seqs) => {
                    let taken = count.min(seqs.len());
                    seqs.drain(..taken);
                    count -= taken;
                    seqs.len()
                }
                Group::Unnumbered(blob) => {
                    self.bytes -= blob.len();
                    count -= 1;
                    0
                }
                Group::Forwarded { commands, .. } => {
                    let taken = count.min(commands.len());
                    self.bytes -= commands.drain(..taken).map(|command| command.blob.len()).sum::<usize>();
                    count -= taken;
                    commands.len()
                }
            };
            if left == 0 {
                self.groups.pop_front();
            }
        }
    }
}

/// How much of the stage an entry covers.
pub(super) struct Covered(usize);

impl Built {
    pub(super) fn covered(&self) -> Covered {
        Covered(self.covered)
    }
}

impl Group {
    fn len(&self) -> usize {
        match self {
            Group::Own(seqs) => seqs.len(),
            Group::Unnumbered(_) => 1,
            Group::Forwarded { commands, .. } => commands.len(),
        }
    }
}

struct Room {
    commands: usize,
    bytes: usize,
    /// Nothing is in the entry yet: it takes one command however large it is. So no entry is larger than one largest command.
    is_empty: bool,
}

impl Room {
    /// How many commands of these sizes fit.
    fn fitting(&self, sizes: impl Iterator<Item = usize>) -> usize {
        let mut bytes = 0;
        let mut count = 0;
        for size in sizes.take(self.commands) {
            bytes += size;
            if bytes > self.bytes && (count > 0 || !self.is_empty) {
                break;
            }
            count += 1;
        }
        count
    }
}

fn push_own_batch(
    builder: &mut EntryBuilder,
    seqs: &VecDeque<u64>,
    pending: &Pending,
    room: &Room,
    own: &mut Vec<u64>,
) -> usize {
    let sizes = seqs.iter().map(|seq| pending.blob(*seq).map_or(0, Bytes::len));
    let count = room.fitting(sizes);
    let first = own.len();
    own.extend(seqs.iter().take(count).filter(|seq| pending.blob(**seq).is_some()));
    if own.len() > first {
        let batch = own[first..].iter().filter_map(|seq| Some((*seq, pending.blob(*seq)?)));
        builder.push_batch(pending.origin(), pending.acked_below(), batch);
    }
    count
}
