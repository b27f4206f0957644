//! The two small records beside the entries, and their bytes.
//!
//! Every batch carries the whole [`LogHead`], so that the newest batch alone tells what the log must look like: a lost or
//! stale part of it is noticed at the next start instead of being believed.

use crate::node_api::wire::{decode_meta, encode_meta};
use crate::node_api::{LogPosition, PersistTask, Recovered, SnapshotMeta};
use bytes::{Buf, BufMut};
use raft::eraftpb::HardState;
use redfence_core::mutant;

const HEAD_VERSION: u8 = 2;
const HEAD_BYTES: usize = 1 + 9 * 8;

/// Where the log stands after a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LogHead {
    /// How often this data directory was started.
    pub(crate) boot: u64,
    /// Rises with each change of the snapshot record, which carries the same number.
    pub(crate) snapshot_generation: u64,
    pub(crate) hard_state: HardState,
    pub(crate) truncated: LogPosition,
    pub(crate) last_index: u64,
    /// The index at which this node was found to differ from a majority of voters; 0: never.
    pub(crate) quarantined: u64,
}

/// What must happen to the stored entries, in order, to follow one task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EntryChange {
    /// Drop every entry, also those past the new start.
    DropAll,
    /// Append this task's entries, from `from` on; what stood there goes.
    Append { from: u64 },
    /// Drop entries up to and including this index.
    DropTo { index: u64 },
}

/// The records together, and the rules by which tasks move them. Shared by the engine and by its in-memory counterpart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LogRecords {
    pub(crate) head: LogHead,
    pub(crate) snapshot: SnapshotMeta,
}

impl LogRecords {
    /// The state of a data directory that was just made.
    pub(crate) fn first(snapshot: SnapshotMeta) -> LogRecords {
        let hard_state =
            HardState { term: snapshot.at.term, commit: snapshot.at.index, ..HardState::default() };
        let head = LogHead {
            boot: 0,
            snapshot_generation: 1,
            hard_state,
            truncated: snapshot.at,
            last_index: snapshot.at.index,
            quarantined: 0,
        };
        LogRecords { head, snapshot }
    }

    /// Moves the records past `task` and lists what happens to the entries. An error means that the task contradicts the
    /// log; nothing may be written then, because the engine cannot live with a hole.
    pub(crate) fn advance(&mut self, task: &PersistTask) -> Result<Vec<EntryChange>, String> {
        let mut changes = Vec::new();
        if let Some(meta) = &task.install {
            changes.push(EntryChange::DropAll);
            self.head.truncated = meta.at;
            self.head.last_index = meta.at.index;
            self.take_snapshot(meta);
        }
        if let Some(first) = task.entries.first() {
            self.check_entries(task, first.index)?;
            changes.push(EntryChange::Append { from: first.index });
            self.head.last_index = first.index + task.entries.len() as u64 - 1;
        }
        if let Some(hard_state) = &task.hard_state {
            self.head.hard_state = hard_state.clone();
        }
        if let Some(meta) = &task.snapshot {
            self.take_snapshot(meta);
        }
        if let Some(mark) = task.compact {
            self.check_compact(mark)?;
            changes.push(EntryChange::DropTo { index: mark.index });
            self.head.truncated = mark;
        }
        if let (Some(index), 0) = (task.quarantine, self.head.quarantined) {
            self.head.quarantined = index;
        }
        Ok(changes)
    }

    fn take_snapshot(&mut self, meta: &SnapshotMeta) {
        self.snapshot = meta.clone();
        self.head.snapshot_generation += 1;
    }

    fn check_entries(&self, task: &PersistTask, first: u64) -> Result<(), String> {
        let head = &self.head;
        if first <= head.truncated.index || first > head.last_index + 1 {
            return Err(format!(
                "entries from {first} on do not follow a log that runs from {} to {}",
                head.truncated.index + 1,
                head.last_index
            ));
        }
        let contiguous = task.entries.iter().zip(first..).all(|(entry, index)| entry.index == index);
        contiguous.then_some(()).ok_or_else(|| format!("the entries from {first} on are not contiguous"))
    }

    fn check_compact(&self, mark: LogPosition) -> Result<(), String> {
        if mark.index > self.snapshot.at.index {
            return Err(format!(
                "the log may not be cut at {}: the snapshot reaches only to {}",
                mark.index, self.snapshot.at.index
            ));
        }
        if mark.index < self.head.truncated.index || mark.index > self.head.last_index {
            return Err(format!("the log cannot be cut at {}", mark.index));
        }
        Ok(())
    }

    /// Checks that the parts agree with each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        let LogRecords { head, snapshot } = self;
        if snapshot.at.index < head.truncated.index || snapshot.at.index > head.last_index {
            return Err(format!(
                "the snapshot at {} does not meet the log, which runs from {} to {}",
                snapshot.at.index,
                head.truncated.index + 1,
                head.last_index
            ));
        }
        if head.hard_state.commit > head.last_index {
            return Err(format!(
                "entries up to {} were committed, but the log ends at {}",
                head.hard_state.commit, head.last_index
            ));
        }
        Ok(())
    }

    pub(crate) fn recovered(&self) -> Recovered {
        let mut hard_state = self.head.hard_state.clone();
        // What a snapshot holds is committed, whether or not the commit index was written since.
        if !mutant!(CommitBehindSnapshot) {
            hard_state.commit = hard_state.commit.max(self.snapshot.at.index);
        }
        hard_state.term = hard_state.term.max(self.snapshot.at.term);
        Recovered {
            boot: self.head.boot,
            hard_state,
            snapshot: self.snapshot.clone(),
            truncated: self.head.truncated,
            last_index: self.head.last_index,
            quarantined: Some(self.head.quarantined).filter(|index| *index > 0),
        }
    }
}

impl LogHead {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_BYTES);
        out.put_u8(HEAD_VERSION);
        for number in [
            self.boot,
            self.snapshot_generation,
            self.hard_state.term,
            self.hard_state.vote,
            self.hard_state.commit,
            self.truncated.index,
            self.truncated.term,
            self.last_index,
            self.quarantined,
        ] {
            out.put_u64_le(number);
        }
        out
    }

    pub(crate) fn decode(mut bytes: &[u8]) -> Option<LogHead> {
        if bytes.len() != HEAD_BYTES || bytes.get_u8() != HEAD_VERSION {
            return None;
        }
        let mut head = LogHead { boot: bytes.get_u64_le(), ..LogHead::default() };
        head.snapshot_generation = bytes.get_u64_le();
        head.hard_state.term = bytes.get_u64_le();
        head.hard_state.vote = bytes.get_u64_le();
        head.hard_state.commit = bytes.get_u64_le();
        head.truncated = LogPosition { index: bytes.get_u64_le(), term: bytes.get_u64_le() };
        head.last_index = bytes.get_u64_le();
        head.quarantined = bytes.get_u64_le();
        Some(head)
    }
}

/// The snapshot record: its generation, then the meta.
pub(crate) fn encode_snapshot(generation: u64, meta: &SnapshotMeta) -> Vec<u8> {
    let mut out = generation.to_le_bytes().to_vec();
    out.extend_from_slice(&encode_meta(meta));
    out
}

pub(crate) fn decode_snapshot(bytes: &[u8]) -> Option<(u64, SnapshotMeta)> {
    let (generation, meta) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*generation), decode_meta(meta).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_their_bytes() {
        let mut meta = SnapshotMeta::founding(&[(1, "a:1".into()), (2, "b:2".into())]);
        meta.conf_state.set_learners(vec![9]);
        meta.crc32 = 7;
        assert_eq!(decode_snapshot(&encode_snapshot(4, &meta)), Some((4, meta.clone())));
        let head = LogRecords::first(meta).head;
        assert_eq!(LogHead::decode(&head.encode()), Some(head));
        assert_eq!(LogHead::decode(&[]), None);
        assert_eq!(decode_snapshot(&[1, 2]), None);
    }
}
