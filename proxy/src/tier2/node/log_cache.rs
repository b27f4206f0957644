//! The log as raft sees it: a tail of entries in memory over what storage can read back.
//!
//! Entries are here from the moment a Ready brings them, before they are durable; raft needs to read them at once. The tail
//! is the truth for every index it covers. What leaves it is both durable and applied, so it can never be overwritten; after
//! a restart it is empty, and what overwrites unapplied entries on disk is in the tail before it is on disk.

use crate::node_api::wire::encode_meta;
use crate::node_api::{LogPosition, LogReader, Recovered, SnapshotMeta, StoreError};
use raft::eraftpb::{Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};
use redfence_core::mutant;
use std::cell::Cell;
use std::collections::VecDeque;

pub(in crate::tier2) struct LogCache {
    reader: Box<dyn LogReader>,
    hard_state: HardState,
    /// The snapshot a restart would begin with, and the one a lagging peer is sent.
    snapshot: SnapshotMeta,
    /// The entry before the first one.
    truncated: LogPosition,
    last_index: u64,
    tail: VecDeque<Entry>,
    tail_bytes: usize,
    /// A peer asked for a snapshot that does not know it as a member yet.
    newer_snapshot_wanted: Cell<bool>,
}

impl LogCache {
    pub(in crate::tier2) fn new(recovered: Recovered, reader: Box<dyn LogReader>) -> LogCache {
        let mut hard_state = recovered.hard_state;
        // The commit index need not be durable, but whatever a snapshot holds was committed.
        if !mutant!(CommitBehindSnapshot) {
            hard_state.commit = hard_state.commit.max(recovered.snapshot.at.index);
        }
        hard_state.term = hard_state.term.max(recovered.snapshot.at.term);
        LogCache {
            reader,
            hard_state,
            snapshot: recovered.snapshot,
            truncated: recovered.truncated,
            last_index: recovered.last_index,
            tail: VecDeque::new(),
            tail_bytes: 0,
            newer_snapshot_wanted: Cell::new(false),
        }
    }

    /// Whether a newer snapshot was asked for since the last look.
    pub(in crate::tier2) fn take_wanted(&self) -> bool {
        self.newer_snapshot_wanted.take()
    }

    /// The first index is above what raft counts as applied: a snapshot was installed and is not durable yet.
    pub(in crate::tier2) fn truncated_index(&self) -> u64 {
        self.truncated.index
    }

    pub(in crate::tier2) fn snapshot_meta(&self) -> &SnapshotMeta {
        &self.snapshot
    }

    /// The same as raft's `Snapshot`.
    pub(in crate::tier2) fn own_snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.data = encode_meta(&self.snapshot);
        let meta = snapshot.mut_metadata();
        meta.index = self.snapshot.at.index;
        meta.term = self.snapshot.at.term;
        meta.set_conf_state(self.snapshot.conf_state.clone());
        snapshot
    }

    pub(in crate::tier2) fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    pub(in crate::tier2) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    pub(in crate::tier2) fn reader(&self) -> &dyn LogReader {
        self.reader.as_ref()
    }

    /// Drops every entry from the first one's index on, then appends.
    pub(in crate::tier2) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index > self.truncated.index && first.index <= self.last_index + 1,
            "entries from {} on do not fit a log of {} to {}",
            first.index,
            self.truncated.index + 1,
            self.last_index
        );
        while self.tail.back().is_some_and(|entry| entry.index >= first.index) {
            let dropped = self.tail.pop_back();
            self.tail_bytes -= dropped.as_ref().map_or(0, entry_bytes);
        }
        for entry in entries {
            self.tail_bytes += entry_bytes(entry);
            self.tail.push_back(entry.clone());
        }
        self.last_index = first.index + entries.len() as u64 - 1;
    }

    /// A received snapshot takes the place of everything.
    pub(in crate::tier2) fn install(&mut self, snapshot: SnapshotMeta) {
        self.tail.clear();
        self.tail_bytes = 0;
        self.truncated = snapshot.at;
        self.last_index = snapshot.at.index;
        self.snapshot = snapshot;
    }

    /// A snapshot of our own is stored. Answers the mark up to which the log is not needed any more. Nothing behind `needed_from`
    /// goes: a member has a snapshot of that index and goes on from there.
    pub(in crate::tier2) fn adopt_snapshot(
        &mut self,
        snapshot: SnapshotMeta,
        keep_entries: u64,
        needed_from: Option<u64>,
    ) -> Option<LogPosition> {
        let index = snapshot.at.index;
        self.snapshot = snapshot;
        let kept_from = index
            .saturating_sub(keep_entries)
            .max(self.tail_first().saturating_sub(1))
            .min(needed_from.unwrap_or(index))
            .min(index);
        if kept_from <= self.truncated.index {
            return None;
        }
        let term = Storage::term(self, kept_from).ok()?;
        self.truncated = LogPosition { index: kept_from, term };
        while self.tail.front().is_some_and(|entry| entry.index <= kept_from) {
            let dropped = self.tail.pop_front();
            self.tail_bytes -= dropped.as_ref().map_or(0, entry_bytes);
        }
        Some(self.truncated)
    }

    /// Lets go of cached entries that are durable and applied, beyond what the cache may hold.
    pub(in crate::tier2) fn trim_cache(&mut self, settled_index: u64, entries_max: usize, bytes_max: usize) {
        while self.tail.len() > entries_max || self.tail_bytes > bytes_max {
            match self.tail.front() {
                Some(entry) if entry.index <= settled_index => {
                    self.tail_bytes -= entry_bytes(entry);
                    self.tail.pop_front();
                }
                Some(_) | None => return,
            }
        }
    }

    /// Index of the first cached entry, or the one the next entry will have.
    fn tail_first(&self) -> u64 {
        self.tail.front().map_or(self.last_index + 1, |entry| entry.index)
    }

    fn cached(&self, index: u64) -> Option<&Entry> {
        let at = index.checked_sub(self.tail.front()?.index)?;
        self.tail.get(usize::try_from(at).ok()?)
    }
}

fn entry_bytes(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + std::mem::size_of::<Entry>()
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        Error::Store(StorageError::Other(error.0.into()))
    }
}

impl Storage for LogCache {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state: self.snapshot.conf_state.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.truncated.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last_index + 1, "entries up to {high} asked, last is {}", self.last_index);
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        let mut entries = Vec::new();
        let mut bytes = 0;
        let tail_first = self.tail_first();
        if low < tail_first {
            let from_disk = high.min(tail_first);
            entries = self.reader.entries(low, from_disk, bytes_max)?;
            bytes = entries.iter().map(|entry| entry_bytes(entry) as u64).sum();
            if entries.len() as u64 != from_disk - low {
                return Ok(entries);
            }
        }
        for index in low.max(tail_first)..high {
            let entry = self.cached(index).expect("cached entries are contiguous");
            bytes += entry_bytes(entry) as u64;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.truncated.index {
            return Ok(self.truncated.term);
        }
        if index < self.truncated.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        if index > self.last_index {
            return Err(Error::Store(StorageError::Unavailable));
        }
        match self.cached(index) {
            Some(entry) => Ok(entry.term),
            None => Ok(self.reader.term(index)?),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.truncated.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last_index)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let conf = &self.snapshot.conf_state;
        // A peer refuses a snapshot from before it was a member.
        let knows_peer = conf.voters.contains(&to) || conf.learners.contains(&to);
        if self.snapshot.at.index < request_index || self.snapshot.at.index == 0 || !knows_peer {
            self.newer_snapshot_wanted.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(self.own_snapshot())
    }
}
