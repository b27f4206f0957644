//! The log on raft-engine.
//!
//! One raft group is one raft-engine region. Each batch holds the entries of all merged tasks, the head record, and the
//! snapshot record where it changed, so HardState and entries can never part.
//!
//! # What raft-engine does not forgive, and what is done about it
//!
//! - Entries that leave a hole panic after they were written, and at every later open: `records.rs` refuses them first, and
//!   an installed snapshot drops the old entries in the same batch that appends the new ones.
//! - `Engine::sync` does nothing: only a batch with something in it is synced.
//! - A failed fsync panics: [`catch_panic::catch`] makes it an error, after which the store is dead and the node stops.
//! - A record in the last file that fails its checksum counts as a torn tail: `guarded_fs.rs` forbids that below the mark.
//! - Entry bytes are checked when read: [`EngineStore::open`] reads every entry once.
//! - Files are given back only by `purge_expired_files`, and reads may miss a file that is just being moved: reads that
//!   fail are tried again while no purge runs.

use super::datadir::{sync_dir, DataDir};
use super::durable_mark::DurableMark;
use super::engine_io::{
    check_last_file, damaged, lock, open_engine, EngineIo, EngineReader, EntryCodec, HEAD_KEY, SNAPSHOT_KEY,
};
use super::error::StorageError;
use super::guarded_fs::FileGuard;
use super::records::{encode_snapshot, EntryChange, LogRecords};
use super::snapshots::settle;
use super::{catch_panic, LogStore};
use crate::node_api::{LogReader, PersistTask, Recovered, SnapshotMeta};
use raft_engine::{Command, LogBatch};
use std::sync::Arc;

/// Entries read at a time while the log is checked at start.
const CHECK_ENTRIES: u64 = 512;

/// Sizes of the log's files. How large the log becomes with the defaults is in `docs/operations.md`.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    pub file_bytes: u64,
    /// Old files are given back once the log is larger than this.
    pub purge_bytes: u64,
}

impl EngineLimits {
    /// After so many bytes the log looks for files to give back.
    #[must_use]
    pub fn tidy_bytes(self) -> u64 {
        2 * self.file_bytes
    }
}

impl Default for EngineLimits {
    fn default() -> EngineLimits {
        EngineLimits { file_bytes: 32 << 20, purge_bytes: 256 << 20 }
    }
}

/// The log of one raft group in one data directory.
pub struct EngineStore {
    engine_io: Arc<EngineIo>,
    records: LogRecords,
    opened: Recovered,
    /// A head that differs from the stored one in its commit index alone: written with the next batch that must be.
    head_deferred: bool,
    dead: bool,
}

impl EngineStore {
    /// Makes the log of a new data directory. What an interrupted first start left is thrown away.
    pub fn create(dir: &DataDir, limits: EngineLimits, first: SnapshotMeta) -> Result<(), StorageError> {
        let log = dir.log_path();
        if log.exists() {
            std::fs::remove_dir_all(&log).map_err(|e| StorageError::io_at("clear", &log, e))?;
        }
        let files = FileGuard::new(DurableMark::create(&dir.mark_path())?);
        let engine_io = open_engine(dir, limits, files)?;
        let mut store = EngineStore::over(engine_io, LogRecords::first(first));
        store.write_records(true)?;
        store.engine_io.files.mark.flush().map_err(|e| StorageError::io("fsync the durable mark", e))?;
        drop(store);
        sync_dir(&log)?;
        sync_dir(dir.root())
    }

    /// Opens what is there, checks all of it, and counts the start.
    pub fn open(dir: &DataDir, limits: EngineLimits) -> Result<EngineStore, StorageError> {
        let files = FileGuard::new(DurableMark::open(&dir.mark_path())?);
        check_last_file(&dir.log_path(), &files)?;
        let engine_io = open_engine(dir, limits, files)?;
        let records = engine_io.read_records()?;
        settle(&dir.snapshots_path(), &records.snapshot)?;
        let mut store = EngineStore::over(engine_io, records);
        store.check_entries()?;
        store.records.head.boot += 1;
        store.write_records(false)?;
        store.opened = store.records.recovered();
        Ok(store)
    }

    fn over(engine_io: EngineIo, records: LogRecords) -> EngineStore {
        *lock(&engine_io.truncated) = records.head.truncated;
        let opened = records.recovered();
        EngineStore { engine_io: Arc::new(engine_io), records, opened, head_deferred: false, dead: false }
    }

    /// Reads every entry once: raft-engine verifies their bytes only then.
    fn check_entries(&self) -> Result<(), StorageError> {
        let head = &self.records.head;
        let mut term = head.truncated.term;
        let mut next = head.truncated.index + 1;
        while next <= head.last_index {
            let high = (next + CHECK_ENTRIES).min(head.last_index + 1);
            let entries =
                self.engine_io.fetch(next, high, u64::MAX).map_err(|e| StorageError::Damaged(e.0))?;
            if entries.len() as u64 != high - next {
                return Err(damaged(&format!("entries between {next} and {high} are missing")));
            }
            for entry in entries {
                if entry.index != next || entry.term < term || entry.term > head.hard_state.term.max(term) {
                    return Err(damaged(&format!("entry {next} does not belong where it stands")));
                }
                term = entry.term;
                next += 1;
            }
        }
        Ok(())
    }

    fn write_records(&mut self, with_snapshot: bool) -> Result<(), StorageError> {
        let mut batch = LogBatch::default();
        self.put_records(&mut batch, with_snapshot)?;
        self.commit(batch, true)
    }

    fn put_records(&self, batch: &mut LogBatch, with_snapshot: bool) -> Result<(), StorageError> {
        let region = self.engine_io.region;
        let put = batch.put(region, HEAD_KEY.to_vec(), self.records.head.encode());
        put.map_err(|e| StorageError::Internal(e.to_string()))?;
        if with_snapshot {
            let generation = self.records.head.snapshot_generation;
            let bytes = encode_snapshot(generation, &self.records.snapshot);
            let put = batch.put(region, SNAPSHOT_KEY.to_vec(), bytes);
            put.map_err(|e| StorageError::Internal(e.to_string()))?;
        }
        Ok(())
    }

    fn add_task(&mut self, batch: &mut LogBatch, task: &PersistTask) -> Result<(), StorageError> {
        let region = self.engine_io.region;
        let last_before = self.records.head.last_index;
        for change in self.records.advance(task).map_err(StorageError::Internal)? {
            match change {
                EntryChange::DropAll => {
                    // Past the old end and past the snapshot: nothing of the old log may stay, and no hole may open.
                    let index = last_before.max(self.records.head.truncated.index) + 1;
                    batch.add_command(region, Command::Compact { index });
                }
                EntryChange::Append { .. } => batch
                    .add_entries::<EntryCodec>(region, &task.entries)
                    .map_err(|e| StorageError::Internal(e.to_string()))?,
                EntryChange::DropTo { index } => {
                    batch.add_command(region, Command::Compact { index: index + 1 });
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, mut batch: LogBatch, sync: bool) -> Result<(), StorageError> {
        let Some(engine) = self.engine_io.engine.as_ref() else {
            return Err(StorageError::Internal("the log is closed".to_string()));
        };
        match catch_panic::catch(|| engine.write(&mut batch, sync)) {
            Ok(Ok(_)) => {
                self.head_deferred = false;
                *lock(&self.engine_io.truncated) = self.records.head.truncated;
                Ok(())
            }
            Ok(Err(e)) => Err(self.give_up(e.to_string())),
            Err(panic_text) => Err(self.give_up(panic_text)),
        }
    }

    /// After a failed write nobody knows what is on disk, so nothing more is written.
    fn give_up(&mut self, text: String) -> StorageError {
        self.dead = true;
        self.engine_io.explain(text)
    }

    /// Faults for tests: so many more writes (or fsyncs) work, then the disk is full (or broken).
    #[doc(hidden)]
    pub fn fail_after(&self, writes: u64, syncs: u64) {
        use std::sync::atomic::Ordering;
        self.engine_io.files.writes_until_full.store(writes, Ordering::Relaxed);
        self.engine_io.files.syncs_until_error.store(syncs, Ordering::Relaxed);
    }
}

impl LogStore for EngineStore {
    fn recovered(&self) -> Recovered {
        self.opened.clone()
    }

    fn write(&mut self, tasks: &[PersistTask]) -> Result<(), StorageError> {
        if self.dead {
            return Err(StorageError::Internal("the log failed before, nothing more is written".to_string()));
        }
        let generation = self.records.head.snapshot_generation;
        let mut batch = LogBatch::with_capacity(tasks.len() + 2);
        for task in tasks {
            if let Err(e) = self.add_task(&mut batch, task) {
                self.dead = true;
                return Err(e);
            }
        }
        let sync = tasks.iter().any(|task| task.must_sync);
        let with_snapshot = generation != self.records.head.snapshot_generation;
        if batch.is_empty() && !with_snapshot && !sync {
            // Only the commit index moved, which need not be durable: it rides with the next batch.
            self.head_deferred = true;
            return Ok(());
        }
        self.put_records(&mut batch, with_snapshot)?;
        self.commit(batch, sync)
    }

    fn reader(&self) -> Box<dyn LogReader> {
        Box::new(EngineReader(self.engine_io.clone()))
    }

    fn size_bytes(&self) -> u64 {
        self.engine_io.engine.as_ref().map_or(0, |engine| engine.get_used_size() as u64)
    }

    fn tidy(&mut self) -> Result<(), StorageError> {
        let Some(engine) = self.engine_io.engine.as_ref().filter(|_| !self.dead) else { return Ok(()) };
        self.engine_io.files.mark.flush().map_err(|e| StorageError::io("fsync the durable mark", e))?;
        let outcome = {
            let _guard = lock(&self.engine_io.purging);
            catch_panic::catch(|| engine.purge_expired_files())
        };
        match outcome {
            // The groups it names have old entries in use; they are moved by the engine itself after a while.
            Ok(Ok(_groups)) => Ok(()),
            Ok(Err(e)) => Err(self.give_up(e.to_string())),
            Err(panic_text) => Err(self.give_up(panic_text)),
        }
    }
}

impl Drop for EngineStore {
    fn drop(&mut self) {
        if self.dead {
            return;
        }
        if self.head_deferred {
            let _ = self.write_records(false);
        }
        let _ = self.engine_io.files.mark.flush();
    }
}
