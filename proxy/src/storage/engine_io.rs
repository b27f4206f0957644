//! What the log store and its readers share: the opened raft-engine, how it is opened, read and blamed.
//!
//! `engine.rs` writes through it; the node reads through [`EngineReader`] from another thread.

use super::catch_panic;
use super::datadir::DataDir;
use super::engine::EngineLimits;
use super::error::StorageError;
use super::guarded_fs::{append_seq, read_small, FileGuard, FileRefusal, GuardedFileSystem};
use super::records::{decode_snapshot, LogHead, LogRecords};
use super::snapshots::SnapshotReader;
use crate::node_api::{GroupId, LogPosition, LogReader, SnapshotId, StoreError, GROUP};
use bytes::Bytes;
use raft::eraftpb::Entry;
use raft_engine::{Config, Engine, MessageExt, ReadableSize, RecoveryMode};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) const HEAD_KEY: &[u8] = b"head";
pub(crate) const SNAPSHOT_KEY: &[u8] = b"snapshot";

/// A log file's header: 53 bytes of magic, 8 of version, and, in version 2 alone, 8 that say how it is laid out.
const VERSION_BYTES: std::ops::Range<usize> = 53..61;
const LAYOUT_BYTES: std::ops::Range<usize> = 61..69;

pub(crate) type GuardedEngine = Engine<GuardedFileSystem>;

pub(crate) struct EntryCodec;

impl MessageExt for EntryCodec {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

/// What the store and its readers share.
pub(crate) struct EngineIo {
    /// `None` once it was given up after a failure, or closed.
    pub(crate) engine: Option<GuardedEngine>,
    pub(crate) region: u64,
    pub(crate) files: Arc<FileGuard>,
    pub(crate) snapshots: SnapshotReader,
    pub(crate) truncated: Mutex<LogPosition>,
    /// Held while old files are given back.
    pub(crate) purging: Mutex<()>,
}

impl Drop for EngineIo {
    fn drop(&mut self) {
        // Closing syncs, and a failing sync panics: by now the failure was reported, or there is nobody to tell.
        if let Some(engine) = self.engine.take() {
            let _ = catch_panic::catch(move || drop(engine));
        }
    }
}

impl EngineIo {
    pub(crate) fn engine(&self) -> Result<&GuardedEngine, StoreError> {
        self.engine.as_ref().ok_or_else(|| StoreError("the log is closed".to_string()))
    }

    pub(crate) fn read_records(&self) -> Result<LogRecords, StorageError> {
        let engine = self.engine().map_err(|e| StorageError::Internal(e.0))?;
        let head = engine.get(self.region, HEAD_KEY).and_then(|bytes| LogHead::decode(&bytes));
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
        let records = LogRecords { head, snapshot };
        records.check().map_err(|text| damaged(&text))?;
        Ok(records)
    }

    pub(crate) fn fetch(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError> {
        let engine = self.engine()?;
        let attempt = || {
            let mut entries = Vec::new();
            let max = usize::try_from(max_bytes).ok();
            let read = engine.fetch_entries_to::<EntryCodec>(self.region, low, high, max, &mut entries);
            read.map(|_| entries)
        };
        let outcome = attempt().or_else(|_| {
            let _guard = lock(&self.purging);
            attempt()
        });
        outcome.map_err(|e| StoreError(format!("cannot read entries {low} to {} of the log: {e}", high - 1)))
    }

    /// The operating system's own words where there are any, else the engine's.
    pub(crate) fn explain(&self, engine_text: String) -> StorageError {
        match self.files.take_refusal() {
            Some(FileRefusal::Os { doing, error }) => StorageError::Io { doing, source: error },
            Some(FileRefusal::CutBelowMark { path, cut_at, durable_to }) => StorageError::Damaged(format!(
                "{} is broken at byte {cut_at}, and its bytes up to {durable_to} were acknowledged; {REMEDY}",
                path.display()
            )),
            None => StorageError::Damaged(format!("the log cannot be used ({engine_text}); {REMEDY}")),
        }
    }
}

const REMEDY: &str = "remove this node from the cluster and add it again with an empty directory";

pub(crate) fn damaged(what: &str) -> StorageError {
    StorageError::Damaged(format!("the log is not whole: {what}; {REMEDY}"))
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn open_engine(
    dir: &DataDir,
    limits: EngineLimits,
    files: Arc<FileGuard>,
) -> Result<EngineIo, StorageError> {
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
    let mut engine_io = EngineIo {
        engine: None,
        region: region_of(GROUP),
        files: files.clone(),
        snapshots: SnapshotReader::new(&dir.snapshots_path()),
        truncated: Mutex::default(),
        purging: Mutex::default(),
    };
    let file_system = Arc::new(GuardedFileSystem(files));
    match catch_panic::catch(|| Engine::open_with_file_system(config, file_system)) {
        Ok(Ok(engine)) => engine_io.engine = Some(engine),
        Ok(Err(e)) => return Err(engine_io.explain(e.to_string())),
        Err(panic_text) => return Err(engine_io.explain(panic_text)),
    }
    Ok(engine_io)
}

/// raft-engine keeps region 0 free for nobody in particular; ours start at 1 so that 0 never means "unset".
fn region_of(group: GroupId) -> u64 {
    u64::from(group) + 1
}

/// The engine takes a log that lost its newest file, or whole records at its end, for a shorter log; the mark knows better.
pub(crate) fn check_last_file(log: &Path, files: &FileGuard) -> Result<(), StorageError> {
    let entries = std::fs::read_dir(log).map_err(|e| {
        if e.kind() == std::io::ErrorKind::NotFound {
            damaged(&format!("{} is missing", log.display()))
        } else {
            StorageError::io_at("read", log, e)
        }
    })?;
    let marked = files.mark.position();
    let mut newest = 0;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        check_layout(&path)?;
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

/// A log file's header has no checksum, and the engine allocates as much as its layout field says, or dies of it. That field
/// is always zero: our files are not aligned. A header that is not whole is the engine's to judge; it begins such a file anew,
/// and then in version 1, which has no such field.
fn check_layout(path: &Path) -> Result<(), StorageError> {
    if !path.extension().is_some_and(|ext| ext == "raftlog" || ext == "rewrite") {
        return Ok(());
    }
    let header =
        read_small(path, LAYOUT_BYTES.end as u64).map_err(|e| StorageError::io_at("read", path, e))?;
    let has_layout = header.get(VERSION_BYTES) == Some(&2_u64.to_be_bytes());
    match header.get(LAYOUT_BYTES) {
        Some(layout) if has_layout && layout.iter().any(|byte| *byte != 0) => {
            Err(damaged(&format!("the head of {} cannot be right", path.display())))
        }
        Some(_) | None => Ok(()),
    }
}

/// What the node reads the log through.
pub(crate) struct EngineReader(pub(crate) Arc<EngineIo>);

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
