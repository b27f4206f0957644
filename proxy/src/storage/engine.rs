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
//! - A failed fsync panics: [`quiet::catch`] makes it an error, after which the store is dead and the node stops.
//! - A record in the last file that fails its checksum counts as a torn tail: `guard.rs` forbids that below the mark.
//! - Entry bytes are checked when read: [`EngineStore::open`] reads every entry once.
//! - Files are given back only by `purge_expired_files`, and reads may miss a file that is just being moved: reads that
//!   fail are tried again while no purge runs.

use super::datadir::{sync_dir, DataDir};
use super::error::StorageError;
use super::guard::{append_seq, GuardedFileSystem, Refusal, Shared};
use super::mark::Mark;
use super::records::{decode_snapshot, encode_snapshot, EntryChange, Head, Records};
use super::snapshots::{settle, SnapshotReader};
use super::{quiet, LogStore};
use crate::tier2::ports::{
    GroupId, LogMark, LogReader, PersistTask, Recovered, SnapshotId, SnapshotMeta, StoreError, GROUP,
};
use bytes::Bytes;
use raft::eraftpb::Entry;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, RecoveryMode};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const HEAD_KEY: &[u8] = b"head";
const SNAPSHOT_KEY: &[u8] = b"snapshot";
/// Entries read at a time while the log is checked at start.
const CHECK_ENTRIES: u64 = 512;

/// Sizes of the log's files. The defaults keep a node below about 0.7 GB of log in the worst case.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    pub file_bytes: u64,
    /// Old files are given back once the log is larger than this.
    pub purge_bytes: u64,
}

impl Default for EngineLimits {
    fn default() -> EngineLimits {
        EngineLimits { file_bytes: 32 << 20, purge_bytes: 256 << 20 }
    }
}

type Files = Engine<GuardedFileSystem>;

struct EntryOf;

impl MessageExt for EntryOf {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

/// The log of one raft group in one data directory.
pub struct EngineStore {
    parts: Arc<Parts>,
    records: Records,
    opened: Recovered,
    /// A head that differs from the stored one in its commit index alone: written with the next batch that must be.
    head_deferred: bool,
    dead: bool,
}

/// What the store and its readers share.
struct Parts {
    /// `None` once it was given up after a failure, or closed.
    engine: Option<Files>,
    region: u64,
    files: Arc<Shared>,
    snapshots: SnapshotReader,
    truncated: Mutex<LogMark>,
    /// Held while old files are given back.
    purging: Mutex<()>,
}

impl EngineStore {
    /// Makes the log of a new data directory. What an interrupted first start left is thrown away.
    pub fn create(dir: &DataDir, limits: EngineLimits, first: SnapshotMeta) -> Result<(), StorageError> {
        let log = dir.log_path();
        if log.exists() {
            std::fs::remove_dir_all(&log).map_err(|e| StorageError::io_at("clear", &log, e))?;
        }
        let files = Shared::new(Mark::create(&dir.mark_path())?);
        let parts = open_parts(dir, limits, files)?;
        let mut store = EngineStore::over(parts, Records::first(first));
        store.write_records(true)?;
        store.parts.files.mark.flush().map_err(|e| StorageError::io("fsync the durable mark", e))?;
        drop(store);
        sync_dir(&log)?;
        sync_dir(dir.root())
    }

    /// Opens what is there, checks all of it, and counts the start.
    pub fn open(dir: &DataDir, limits: EngineLimits) -> Result<EngineStore, StorageError> {
        let files = Shared::new(Mark::open(&dir.mark_path())?);
        check_last_file(&dir.log_path(), &files)?;
        let parts = open_parts(dir, limits, files)?;
        let records = parts.read_records()?;
        settle(&dir.snapshots_path(), &records.snapshot)?;
        let mut store = EngineStore::over(parts, records);
        store.check_entries()?;
        store.records.head.boot += 1;
        store.write_records(false)?;
        store.opened = store.records.recovered();
        Ok(store)
    }

    fn over(parts: Parts, records: Records) -> EngineStore {
        *lock(&parts.truncated) = records.head.truncated;
        let opened = records.recovered();
        EngineStore { parts: Arc::new(parts), records, opened, head_deferred: false, dead: false }
    }

    /// Reads every entry once: raft-engine verifies their bytes only then.
    fn check_entries(&self) -> Result<(), StorageError> {
        let head = &self.records.head;
        let mut term = head.truncated.term;
        let mut next = head.truncated.index + 1;
        while next <= head.last_index {
            let high = (next + CHECK_ENTRIES).min(head.last_index + 1);
            let entries = self.parts.fetch(next, high, u64::MAX).map_err(|e| StorageError::Damaged(e.0))?;
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
        let region = self.parts.region;
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
        let region = self.parts.region;
        let last_before = self.records.head.last_index;
        for change in self.records.advance(task).map_err(StorageError::Internal)? {
            match change {
                EntryChange::DropAll => {
                    // Past the old end and past the snapshot: nothing of the old log may stay, and no hole may open.
                    let index = last_before.max(self.records.head.truncated.index) + 1;
                    batch.add_command(region, Command::Compact { index });
                }
                EntryChange::Append { .. } => batch
                    .add_entries::<EntryOf>(region, &task.entries)
                    .map_err(|e| StorageError::Internal(e.to_string()))?,
                EntryChange::DropTo { index } => {
                    batch.add_command(region, Command::Compact { index: index + 1 });
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, mut batch: LogBatch, sync: bool) -> Result<(), StorageError> {
        let Some(engine) = self.parts.engine.as_ref() else {
            return Err(StorageError::Internal("the log is closed".to_string()));
        };
        match quiet::catch(|| engine.write(&mut batch, sync)) {
            Ok(Ok(_)) => {
                self.head_deferred = false;
                *lock(&self.parts.truncated) = self.records.head.truncated;
                Ok(())
            }
            Ok(Err(e)) => Err(self.give_up(e.to_string())),
            Err(panic_text) => Err(self.give_up(panic_text)),
        }
    }

    /// After a failed write nobody knows what is on disk, so nothing more is written.
    fn give_up(&mut self, text: String) -> StorageError {
        self.dead = true;
        self.parts.explain(text)
    }

    /// Faults for tests: so many more writes (or fsyncs) work, then the disk is full (or broken).
    #[doc(hidden)]
    pub fn fail_after(&self, writes: u64, syncs: u64) {
        use std::sync::atomic::Ordering;
        self.parts.files.writes_until_full.store(writes, Ordering::Relaxed);
        self.parts.files.syncs_until_error.store(syncs, Ordering::Relaxed);
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
        Box::new(EngineReader(self.parts.clone()))
    }

    fn tidy(&mut self) -> Result<(), StorageError> {
        let Some(engine) = self.parts.engine.as_ref().filter(|_| !self.dead) else { return Ok(()) };
        self.parts.files.mark.flush().map_err(|e| StorageError::io("fsync the durable mark", e))?;
        let outcome = {
            let _guard = lock(&self.parts.purging);
            quiet::catch(|| engine.purge_expired_files())
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
        let _ = self.parts.files.mark.flush();
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // Closing syncs, and a failing sync panics: by now the failure was reported, or there is nobody to tell.
        if let Some(engine) = self.engine.take() {
            let _ = quiet::catch(move || drop(engine));
        }
    }
}

impl Parts {
    fn engine(&self) -> Result<&Files, StoreError> {
        self.engine.as_ref().ok_or_else(|| StoreError("the log is closed".to_string()))
    }

    fn read_records(&self) -> Result<Records, StorageError> {
        let engine = self.engine().map_err(|e| StorageError::Internal(e.0))?;
        let head = engine.get(self.region, HEAD_KEY).and_then(|bytes| Head::decode(&bytes));
        let head = head.ok_or_else(|| damaged("its head record is missing"))?;
        let snapshot = engine.get(self.region, SNAPSHOT_KEY).and_then(|bytes| decode_snapshot(&bytes));
        let (generation, snapshot) = snapshot.ok_or_else(|| damaged("its snapshot record is missing"))?;
        if generation != head.snapshot_generation {
            return Err(damaged("its snapshot record is an old one"));
        }
        let first = head.truncated.index + 1;
        let empty = head.last_index < first;
        let found = (engine.first_index(self.region), engine.last_index(self.region));
        let expected = if empty { (None, None) } else { (Some(first), Some(head.last_index)) };
        if found != expected {
            return Err(damaged(&format!(
                "entries {first} to {} should be there, found {found:?}",
                head.last_index
            )));
        }
        let records = Records { head, snapshot };
        records.check().map_err(|text| damaged(&text))?;
        Ok(records)
    }

    fn fetch(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError> {
        let engine = self.engine()?;
        let attempt = || {
            let mut entries = Vec::new();
            let max = usize::try_from(max_bytes).ok();
            let read = engine.fetch_entries_to::<EntryOf>(self.region, low, high, max, &mut entries);
            read.map(|_| entries)
        };
        let outcome = attempt().or_else(|_| {
            let _guard = lock(&self.purging);
            attempt()
        });
        outcome.map_err(|e| StoreError(format!("cannot read entries {low} to {} of the log: {e}", high - 1)))
    }

    /// The operating system's own words where there are any, else the engine's.
    fn explain(&self, engine_text: String) -> StorageError {
        match self.files.take_refusal() {
            Some(Refusal::Os { doing, error }) => StorageError::Io { doing, source: error },
            Some(Refusal::CutBelowMark { path, cut_at, durable_to }) => StorageError::Damaged(format!(
                "{} is broken at byte {cut_at}, and its bytes up to {durable_to} were acknowledged; {REMEDY}",
                path.display()
            )),
            None => StorageError::Damaged(format!("the log cannot be used ({engine_text}); {REMEDY}")),
        }
    }
}

const REMEDY: &str = "remove this node from the cluster and add it again with an empty directory";

fn damaged(what: &str) -> StorageError {
    StorageError::Damaged(format!("the log is not whole: {what}; {REMEDY}"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_parts(dir: &DataDir, limits: EngineLimits, files: Arc<Shared>) -> Result<Parts, StorageError> {
    let log = dir.log_path();
    let Some(log_text) = log.to_str() else {
        return Err(StorageError::NotOurs(format!("the path {} is not UTF-8", log.display())));
    };
    let config = Config {
        dir: log_text.to_string(),
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        recovery_threads: 2,
        // Entries are small and hot; compressing them costs more than the bytes it saves.
        batch_compression_threshold: ReadableSize(0),
        target_file_size: ReadableSize(limits.file_bytes),
        purge_threshold: ReadableSize(limits.purge_bytes),
        ..Config::default()
    };
    let mut parts = Parts {
        engine: None,
        region: region_of(GROUP),
        files: files.clone(),
        snapshots: SnapshotReader::new(&dir.snapshots_path()),
        truncated: Mutex::default(),
        purging: Mutex::default(),
    };
    let file_system = Arc::new(GuardedFileSystem(files));
    match quiet::catch(|| Engine::open_with_file_system(config, file_system)) {
        Ok(Ok(engine)) => parts.engine = Some(engine),
        Ok(Err(e)) => return Err(parts.explain(e.to_string())),
        Err(panic_text) => return Err(parts.explain(panic_text)),
    }
    Ok(parts)
}

/// raft-engine keeps region 0 free for nobody in particular; ours start at 1 so that 0 never means "unset".
fn region_of(group: GroupId) -> u64 {
    u64::from(group) + 1
}

/// The engine takes a log that lost its newest file, or whole records at its end, for a shorter log; the mark knows better.
fn check_last_file(log: &Path, files: &Shared) -> Result<(), StorageError> {
    let entries = std::fs::read_dir(log).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => damaged(&format!("{} is missing", log.display())),
        _ => StorageError::io_at("read", log, e),
    })?;
    let marked = files.mark.place();
    let mut newest = 0;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let Some(seq) = append_seq(&path) else { continue };
        newest = newest.max(seq);
        let len = path.metadata().map_err(|e| StorageError::io_at("read", &path, e))?.len();
        if seq == marked.file_seq && len < marked.offset {
            return Err(damaged(&format!("{} lost its end", path.display())));
        }
    }
    if newest < marked.file_seq {
        return Err(damaged(&format!("file {} is missing from {}", marked.file_seq, log.display())));
    }
    Ok(())
}

struct EngineReader(Arc<Parts>);

impl LogReader for EngineReader {
    fn entries(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError> {
        self.0.fetch(low, high, max_bytes)
    }

    fn term(&self, index: u64) -> Result<u64, StoreError> {
        let truncated = *lock(&self.0.truncated);
        if index == truncated.index {
            return Ok(truncated.term);
        }
        let entry = self.0.fetch(index, index + 1, u64::MAX)?.pop();
        entry.map(|entry| entry.term).ok_or_else(|| StoreError(format!("entry {index} is not in the log")))
    }

    fn snapshot_read(&self, id: SnapshotId, offset: u64, max_bytes: usize) -> Result<Bytes, StoreError> {
        self.0.snapshots.read(id, offset, max_bytes)
    }
}
