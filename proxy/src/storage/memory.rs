//! The log in memory, for the simulator: the same trait, the same rules, and a disk that can lose what was not synced.
//!
//! A [`MemoryDisk`] stands for the platter: it outlives the stores opened on it, as a disk outlives a process. Writes land
//! in its cache; a sync moves them to the platter. [`MemoryDisk::crash`] throws away a suffix of the cache of the
//! caller's choice, since the real log is cut at the first torn record. Snapshot files live here too.

use super::records::{EntryChange, LogRecords};
use super::{LogStore, StorageError};
use crate::node_api::snapshot_stream::StreamChecker;
use crate::node_api::{
    Input, LogReader, PersistTask, Recovered, SnapshotId, SnapshotMeta, SnapshotOp, StoreError,
};
use bytes::Bytes;
use raft::eraftpb::Entry;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The platter. Clones are handles on the same one.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Mutex<MemoryDiskState>>);

#[derive(Default)]
struct MemoryDiskState {
    durable: MemoryLog,
    /// What a reader sees: `durable` and the cached batches on top.
    current: MemoryLog,
    /// The tasks that were not synced yet, oldest first. Each is atomic; a crash may fall between any two.
    cached: Vec<PersistTask>,
    snapshots: BTreeMap<SnapshotId, Vec<u8>>,
    unfinished: BTreeMap<SnapshotId, Vec<u8>>,
}

#[derive(Clone, Default)]
struct MemoryLog {
    records: LogRecords,
    /// From `truncated.index + 1` on, without a hole.
    entries: Vec<Entry>,
}

impl MemoryLog {
    fn first_index(&self) -> u64 {
        self.records.head.truncated.index + 1
    }

    fn apply(&mut self, task: &PersistTask) -> Result<(), String> {
        let mut first = self.first_index();
        for change in self.records.advance(task)? {
            match change {
                EntryChange::DropAll => {
                    self.entries.clear();
                    first = task.install.as_ref().map_or(first, |meta| meta.at.index + 1);
                }
                EntryChange::Append { from } => {
                    self.entries.truncate((from - first) as usize);
                    self.entries.extend_from_slice(&task.entries);
                }
                EntryChange::DropTo { index } => {
                    self.entries.drain(..(index + 1 - first) as usize);
                    first = index + 1;
                }
            }
        }
        Ok(())
    }
}

impl MemoryDiskState {
    fn settle_cached(&mut self) {
        for task in self.cached.drain(..) {
            self.durable.apply(&task).expect("a task the cache accepted is valid");
        }
    }
}

impl MemoryDisk {
    /// A disk as [`super::engine::EngineStore::create`] leaves it.
    #[must_use]
    pub fn new(first: SnapshotMeta) -> MemoryDisk {
        let log = MemoryLog { records: LogRecords::first(first), entries: Vec::new() };
        let platter = MemoryDiskState { durable: log.clone(), current: log, ..MemoryDiskState::default() };
        MemoryDisk(Arc::new(Mutex::new(platter)))
    }

    /// Opens the log as after a restart: counts the start, forgets unfinished and unnamed snapshots.
    pub fn open(&self) -> Result<MemoryStore, StorageError> {
        let mut platter = self.platter();
        let platter = &mut *platter;
        platter.current.records.head.boot += 1;
        platter.durable = platter.current.clone();
        platter.cached.clear();
        platter.unfinished.clear();
        let named = platter.current.records.snapshot.id;
        platter.snapshots.retain(|id, _| *id == named);
        if named != SnapshotId::default() && !platter.snapshots.contains_key(&named) {
            return Err(StorageError::Damaged("the snapshot the log starts from is missing".to_string()));
        }
        platter.current.records.check().map_err(StorageError::Damaged)?;
        Ok(MemoryStore { disk: self.clone(), opened: platter.current.records.recovered() })
    }

    /// How many tasks a crash could take away at most.
    #[must_use]
    pub fn unsynced_tasks(&self) -> usize {
        self.platter().cached.len()
    }

    /// A power cut: of the tasks that were not synced only the `survivors` oldest are on the platter.
    pub fn crash(&self, survivors: usize) {
        let mut platter = self.platter();
        let platter = &mut *platter;
        platter.cached.truncate(survivors);
        platter.settle_cached();
        platter.current = platter.durable.clone();
        platter.unfinished.clear();
    }

    /// Carries out a snapshot operation at once, and returns the input it causes for the node.
    pub fn carry_out(&self, op: SnapshotOp) -> Option<Input> {
        let mut platter = self.platter();
        match op {
            SnapshotOp::Create(id) => {
                platter.unfinished.insert(id, Vec::new());
                None
            }
            SnapshotOp::Append { id, bytes } => Some(match platter.unfinished.get_mut(&id) {
                Some(file) => {
                    file.extend_from_slice(&bytes);
                    Input::SnapshotProgress { id, written_bytes: file.len() as u64 }
                }
                None => failed(id, "this snapshot is not being written"),
            }),
            SnapshotOp::Finish { id, size_bytes, crc32 } => Some(match platter.unfinished.remove(&id) {
                Some(file) if file.len() as u64 == size_bytes && crc32fast::hash(&file) == crc32 => {
                    match read_back(&file) {
                        Ok(()) => {
                            platter.snapshots.insert(id, file);
                            Input::SnapshotStored(id)
                        }
                        Err(reason) => failed(id, &reason),
                    }
                }
                Some(_) => failed(id, "the snapshot's bytes do not fit its checksum"),
                None => failed(id, "this snapshot is not being written"),
            }),
            SnapshotOp::Discard(id) => {
                platter.unfinished.remove(&id);
                platter.snapshots.remove(&id);
                None
            }
        }
    }

    fn platter(&self) -> MutexGuard<'_, MemoryDiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_back(file: &[u8]) -> Result<(), String> {
    let mut checker = StreamChecker::default();
    checker.push(file)?;
    checker.finish()
}

fn failed(id: SnapshotId, reason: &str) -> Input {
    Input::SnapshotFailed { id, reason: reason.to_string() }
}

/// An open log on a [`MemoryDisk`].
pub struct MemoryStore {
    disk: MemoryDisk,
    opened: Recovered,
}

impl MemoryStore {
    /// Writes without syncing, whatever the tasks ask for: the simulator syncs when its clock says so.
    pub fn write_cached(&mut self, tasks: &[PersistTask]) -> Result<(), StorageError> {
        let mut platter = self.disk.platter();
        for task in tasks {
            platter.current.apply(task).map_err(StorageError::Internal)?;
        }
        platter.cached.extend(tasks.iter().map(stored_part));
        Ok(())
    }

    /// Everything written so far is on the platter.
    pub fn sync(&mut self) {
        self.disk.platter().settle_cached();
    }
}

/// The task without its messages.
fn stored_part(task: &PersistTask) -> PersistTask {
    PersistTask {
        number: task.number,
        install: task.install.clone(),
        entries: task.entries.clone(),
        hard_state: task.hard_state.clone(),
        snapshot: task.snapshot.clone(),
        compact: task.compact,
        quarantine: task.quarantine,
        must_sync: task.must_sync,
        after: Vec::new(),
    }
}

impl LogStore for MemoryStore {
    fn recovered(&self) -> Recovered {
        self.opened.clone()
    }

    fn write(&mut self, tasks: &[PersistTask]) -> Result<(), StorageError> {
        self.write_cached(tasks)?;
        if tasks.iter().any(|task| task.must_sync) {
            self.sync();
        }
        Ok(())
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(self.disk.clone())
    }

    fn tidy(&mut self) -> Result<(), StorageError> {
        Ok(())
    }
}

impl LogReader for MemoryDisk {
    fn entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError> {
        let platter = self.platter();
        let log = &platter.current;
        let first = log.first_index();
        if low < first || high > first + log.entries.len() as u64 || low >= high {
            return Err(StoreError(format!("entries {low} to {high} are not in the log")));
        }
        let mut bytes = 0;
        let wanted = &log.entries[(low - first) as usize..(high - first) as usize];
        let fitting = wanted.iter().enumerate().take_while(|(position, entry)| {
            bytes += entry.data.len() as u64 + 16;
            *position == 0 || bytes <= max_bytes
        });
        Ok(fitting.map(|(_, entry)| entry.clone()).collect())
    }

    fn term(&self, index: u64) -> Result<u64, StoreError> {
        let truncated = self.platter().current.records.head.truncated;
        if index == truncated.index {
            return Ok(truncated.term);
        }
        Ok(self.entries(index, index + 1, u64::MAX)?[0].term)
    }

    fn snapshot_read(&self, id: SnapshotId, offset: u64, max_bytes: usize) -> Result<Bytes, StoreError> {
        let platter = self.platter();
        let file = platter.snapshots.get(&id).ok_or_else(|| StoreError(format!("no snapshot {}", id.0)))?;
        let from = (offset as usize).min(file.len());
        let to = (from + max_bytes).min(file.len());
        Ok(Bytes::copy_from_slice(&file[from..to]))
    }
}
