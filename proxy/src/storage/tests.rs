//! One suite for both logs: [`EngineStore`] on a temporary directory, [`MemoryStore`] on a disk in memory.

use super::datadir::DataDir;
use super::engine::{EngineLimits, EngineStore};
use super::memory::{MemoryDisk, MemoryStore};
use super::*;
use crate::node_api::{LogPosition, SnapshotMeta};
use raft::eraftpb::{Entry, HardState};
use std::path::Path;

/// A place where logs can be opened on again and again.
trait Disk {
    type Store: LogStore;
    fn open(&self) -> Result<Self::Store, StorageError>;
}

struct Directory {
    temp: tempfile::TempDir,
    limits: EngineLimits,
}

/// The store goes before the directory's lock.
struct InDirectory(EngineStore, DataDir);

const SMALL: EngineLimits = EngineLimits { file_bytes: 4096, purge_bytes: 16384 };

fn founding() -> SnapshotMeta {
    SnapshotMeta::founding(&[(1, "a:1".to_string()), (2, "b:2".to_string()), (3, "c:3".to_string())])
}

impl Directory {
    fn new(limits: EngineLimits) -> Directory {
        // Thousands of opens and syncs: in memory where the system has such a place.
        let temp = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let dir = DataDir::open(temp.path()).unwrap();
        EngineStore::create(&dir, limits, founding()).unwrap();
        Directory { temp, limits }
    }

    fn log_file(&self) -> std::path::PathBuf {
        self.temp.path().join("log").join("0000000000000001.raftlog")
    }
}

impl Disk for Directory {
    type Store = InDirectory;
    fn open(&self) -> Result<InDirectory, StorageError> {
        let dir = DataDir::open(self.temp.path())?;
        Ok(InDirectory(EngineStore::open(&dir, self.limits)?, dir))
    }
}

impl LogStore for InDirectory {
    fn recovered(&self) -> Recovered {
        self.0.recovered()
    }
    fn write(&mut self, tasks: &[PersistTask]) -> Result<(), StorageError> {
        self.0.write(tasks)
    }
    fn reader(&self) -> Box<dyn LogReader> {
        self.0.reader()
    }
    fn tidy(&mut self) -> Result<(), StorageError> {
        let _ = &self.1;
        self.0.tidy()
    }
}

impl Disk for MemoryDisk {
    type Store = MemoryStore;
    fn open(&self) -> Result<MemoryStore, StorageError> {
        MemoryDisk::open(self)
    }
}

fn entry(index: u64, term: u64) -> Entry {
    let data = format!("entry {index} of term {term}").into_bytes().into();
    Entry { index, term, data, ..Entry::default() }
}

fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit, ..HardState::default() }
}

fn append(indexes: std::ops::RangeInclusive<u64>, term: u64) -> PersistTask {
    PersistTask {
        entries: indexes.map(|index| entry(index, term)).collect(),
        hard_state: Some(hard_state(term, 2, 1)),
        must_sync: true,
        ..PersistTask::default()
    }
}

fn snapshot_at(index: u64, term: u64) -> SnapshotMeta {
    SnapshotMeta { at: LogPosition { index, term }, ..founding() }
}

/// Every entry of the log as `(index, term)`, read through a reader.
fn contents(store: &impl LogStore, recovered: &Recovered) -> Vec<(u64, u64)> {
    let reader = store.reader();
    let (low, high) = (recovered.truncated.index + 1, recovered.last_index + 1);
    if low == high {
        return Vec::new();
    }
    let entries = reader.entries(low, high, u64::MAX).unwrap();
    for entry in &entries {
        assert_eq!(reader.term(entry.index).unwrap(), entry.term);
        assert_eq!(entry.data, super::tests::entry(entry.index, entry.term).data);
    }
    entries.iter().map(|entry| (entry.index, entry.term)).collect()
}

fn restart<D: Disk>(disk: &D, store: D::Store) -> (D::Store, Recovered, Vec<(u64, u64)>) {
    drop(store);
    let store = disk.open().unwrap();
    let recovered = store.recovered();
    let contents = contents(&store, &recovered);
    (store, recovered, contents)
}

fn starts_empty_and_counts_starts(disk: &impl Disk) {
    let store = disk.open().unwrap();
    let first = store.recovered();
    assert_eq!((first.boot, first.last_index, first.truncated), (1, 1, LogPosition { index: 1, term: 1 }));
    assert_eq!(first.snapshot, founding());
    assert_eq!((first.hard_state.term, first.hard_state.commit), (1, 1));
    let (_store, second, _) = restart(disk, store);
    assert_eq!(second.boot, 2);
}

fn appends_survive_and_conflicts_replace(disk: &impl Disk) {
    let mut store = disk.open().unwrap();
    store.write(&[append(2..=5, 1)]).unwrap();
    // Two tasks in one batch, the second of which takes back part of the first.
    store.write(&[append(6..=9, 1), append(7..=8, 2)]).unwrap();
    let (store, recovered, found) = restart(disk, store);
    assert_eq!(found, [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 2), (8, 2)]);
    assert_eq!((recovered.hard_state.term, recovered.hard_state.vote), (2, 2));
    let reader = store.reader();
    assert_eq!(reader.entries(2, 9, 1).unwrap().len(), 1, "at least one, whatever the limit");
    assert!(reader.term(9).is_err());
}

fn compaction_keeps_the_tail(disk: &impl Disk) {
    let mut store = disk.open().unwrap();
    store.write(&[append(2..=10, 3)]).unwrap();
    let snapshot = Some(snapshot_at(8, 3));
    let compact = Some(LogPosition { index: 6, term: 3 });
    store.write(&[PersistTask { snapshot, compact, ..PersistTask::default() }]).unwrap();
    store.write(&[append(11..=11, 3)]).unwrap();
    let (store, recovered, found) = restart(disk, store);
    assert_eq!(recovered.snapshot, snapshot_at(8, 3));
    assert_eq!(recovered.truncated, LogPosition { index: 6, term: 3 });
    assert_eq!(recovered.hard_state.commit, 8, "what the snapshot holds is committed");
    assert_eq!(found, [(7, 3), (8, 3), (9, 3), (10, 3), (11, 3)]);
    assert_eq!(store.reader().term(6).unwrap(), 3);
}

/// Behind the end of the log, and inside it: either way nothing of the old log may stay.
fn an_installed_snapshot_replaces_the_log(disk: &impl Disk) {
    let mut store = disk.open().unwrap();
    store.write(&[append(2..=5, 1)]).unwrap();
    let install = |index, term| PersistTask {
        install: Some(snapshot_at(index, term)),
        hard_state: Some(hard_state(term, 0, index)),
        must_sync: true,
        ..PersistTask::default()
    };
    store.write(&[install(100, 4), append(101..=102, 4)]).unwrap();
    let (mut store, recovered, found) = restart(disk, store);
    assert_eq!(found, [(101, 4), (102, 4)]);
    assert_eq!(recovered.snapshot.at.index, 100);

    store.write(&[append(103..=110, 4)]).unwrap();
    store.write(&[install(105, 6)]).unwrap();
    let (mut store, recovered, found) = restart(disk, store);
    assert_eq!((recovered.last_index, found.len()), (105, 0));
    store.write(&[append(106..=107, 6)]).unwrap();
    let (_store, _, found) = restart(disk, store);
    assert_eq!(found, [(106, 6), (107, 6)]);
}

fn a_hole_is_refused_and_nothing_is_written(disk: &impl Disk) {
    let mut store = disk.open().unwrap();
    store.write(&[append(2..=3, 1)]).unwrap();
    assert!(store.write(&[append(9..=9, 1)]).is_err());
    let (_store, recovered, _) = restart(disk, store);
    assert_eq!(recovered.last_index, 3);
}

/// Many small files, purged again and again, with installs and conflicts in between.
fn long_life(disk: &impl Disk) {
    let mut store = disk.open().unwrap();
    let mut last = 1;
    for round in 1..=60_u64 {
        let term = 1 + round / 7;
        for _ in 0..10 {
            store.write(&[append(last + 1..=last + 9, term)]).unwrap();
            last += 9;
        }
        let keep = last - 20;
        let (snapshot, compact) = (Some(snapshot_at(keep, term)), Some(LogPosition { index: keep, term }));
        store.write(&[PersistTask { snapshot, compact, ..PersistTask::default() }]).unwrap();
        if round % 11 == 0 {
            let meta = snapshot_at(last - 5, term);
            last = meta.at.index;
            let task = PersistTask { install: Some(meta), must_sync: true, ..PersistTask::default() };
            store.write(&[task]).unwrap();
        }
        store.tidy().unwrap();
        if round % 5 == 0 {
            let (again, recovered, found) = restart(disk, store);
            store = again;
            assert_eq!(recovered.last_index, last, "round {round}");
            assert_eq!(found.len() as u64, last - recovered.truncated.index, "round {round}");
        }
    }
}

macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod on_raft_engine {
            $(#[test] fn $case() { super::$case(&super::Directory::new(super::SMALL)); })*
        }
        mod in_memory {
            $(#[test] fn $case() { super::$case(&super::MemoryDisk::new(super::founding())); })*
        }
    };
}

on_both!(
    starts_empty_and_counts_starts,
    appends_survive_and_conflicts_replace,
    compaction_keeps_the_tail,
    an_installed_snapshot_replaces_the_log,
    a_hole_is_refused_and_nothing_is_written,
    long_life,
);

#[test]
fn a_crash_in_memory_takes_unsynced_tasks_alone() {
    for survivors in 0..=2 {
        let disk = MemoryDisk::new(founding());
        let mut store = disk.open().unwrap();
        store.write(&[append(2..=3, 1)]).unwrap();
        store.write_cached(&[append(4..=4, 1), append(5..=5, 1)]).unwrap();
        assert_eq!(disk.unsynced_tasks(), 2);
        disk.crash(survivors);
        assert_eq!(disk.open().unwrap().recovered().last_index, 3 + survivors as u64);
    }
}

/// A small log with several batches: what a start may find, batch by batch, and the bytes on disk.
fn small_log() -> (Directory, Vec<u8>, Vec<u8>) {
    let disk = Directory::new(EngineLimits::default());
    let mut store = disk.open().unwrap();
    store.write(&[append(2..=4, 1)]).unwrap();
    store.write(&[append(5..=5, 1)]).unwrap();
    store.write(&[append(5..=6, 2)]).unwrap();
    drop(store);
    let log = std::fs::read(disk.log_file()).unwrap();
    let mark = std::fs::read(disk.temp.path().join("durable-mark")).unwrap();
    (disk, log, mark)
}

fn put_back(disk: &Directory, log: &[u8], mark: &[u8]) {
    std::fs::write(disk.log_file(), log).unwrap();
    std::fs::write(disk.temp.path().join("durable-mark"), mark).unwrap();
}

const WHOLE: [(u64, u64); 5] = [(2, 1), (3, 1), (4, 1), (5, 2), (6, 2)];

#[test]
fn a_torn_tail_of_unacknowledged_bytes_is_cut_at_every_byte() {
    let disk = Directory::new(EngineLimits::default());
    let mut store = disk.open().unwrap();
    store.write(&[append(2..=4, 1), append(5..=6, 2)]).unwrap();
    drop(store);
    let before = std::fs::read(disk.log_file()).unwrap();
    let mark = std::fs::read(disk.temp.path().join("durable-mark")).unwrap();
    let mut store = disk.open().unwrap();
    store.write(&[append(7..=9, 2)]).unwrap();
    drop(store);
    let after = std::fs::read(disk.log_file()).unwrap();
    for cut in before.len()..=after.len() {
        // As a power cut leaves it: the mark of before, part of the newest bytes, and zeros the file was extended with.
        for padding in [0, 40] {
            let mut torn = after[..cut].to_vec();
            torn.extend(std::iter::repeat_n(0, padding));
            put_back(&disk, &torn, &mark);
            let store = disk.open().unwrap();
            let recovered = store.recovered();
            let found = contents(&store, &recovered);
            assert!(found.starts_with(&WHOLE), "cut at {cut}: {found:?}");
            assert!(found.len() == 5 || found.len() == 8, "cut at {cut}: {found:?}");
        }
    }
}

#[test]
fn acknowledged_bytes_that_are_gone_are_refused_and_left_alone() {
    let (disk, log, mark) = small_log();
    for cut in 0..log.len() {
        put_back(&disk, &log[..cut], &mark);
        let text = disk.open().map(|_| ()).unwrap_err().to_string();
        assert!(text.starts_with("data directory damaged"), "cut at {cut}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(
            std::fs::read(disk.log_file()).unwrap(),
            &log[..cut],
            "cut at {cut}: evidence was destroyed"
        );
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused_or_harmless() {
    let (disk, log, mark) = small_log();
    let mut refused = 0;
    for byte in 0..log.len() {
        let mut bad = log.clone();
        bad[byte] ^= 1 << (byte % 8);
        put_back(&disk, &bad, &mark);
        match disk.open() {
            Ok(store) => {
                let recovered = store.recovered();
                assert_eq!(contents(&store, &recovered), WHOLE, "byte {byte}");
                assert_eq!((recovered.hard_state.term, recovered.hard_state.vote), (2, 2), "byte {byte}");
                assert_eq!(recovered.snapshot, founding(), "byte {byte}");
            }
            Err(e) => {
                refused += 1;
                let text = e.to_string();
                assert!(text.starts_with("data directory damaged"), "byte {byte}: {text}");
            }
        }
    }
    assert!(refused > log.len() / 2, "only {refused} of {} flips were noticed", log.len());
}

#[test]
fn a_missing_log_file_is_refused() {
    let disk = Directory::new(SMALL);
    let mut store = disk.open().unwrap();
    for index in 2..200 {
        store.write(&[append(index..=index, 1)]).unwrap();
    }
    drop(store);
    let log = disk.temp.path().join("log");
    let mut names: Vec<_> = std::fs::read_dir(&log).unwrap().map(|e| e.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|ext| ext == "raftlog"));
    assert!(names.len() > 3);
    for gone in names {
        let aside = gone.with_extension("aside");
        std::fs::rename(&gone, &aside).unwrap();
        assert!(disk.open().is_err(), "{} was not missed", gone.display());
        std::fs::rename(&aside, &gone).unwrap();
    }
    disk.open().unwrap();
}

/// As a disk that is full at the change of files leaves it. The engine begins such a file anew, with a shorter header.
#[test]
fn a_file_without_a_whole_header_is_begun_anew_and_opened_again_and_again() {
    let whole = std::fs::read(Directory::new(SMALL).log_file()).unwrap();
    for header_bytes in [0, 1, 30, 53, 60, 61, 68] {
        let disk = Directory::new(SMALL);
        let mut store = disk.open().unwrap();
        store.write(&[append(2..=3, 1)]).unwrap();
        drop(store);
        let next = disk.log_file().with_file_name("0000000000000002.raftlog");
        std::fs::write(&next, &whole[..header_bytes]).unwrap();
        for last in 4..8 {
            let mut store = disk.open().unwrap_or_else(|e| panic!("{header_bytes} bytes of header: {e}"));
            store.write(&[append(last..=last, 1)]).unwrap();
            let (_, _, entries) = restart(&disk, store);
            assert_eq!(entries, (2..=last).map(|index| (index, 1)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_full_disk_and_a_failing_fsync_are_errors_and_lose_nothing() {
    for (writes, syncs, expected) in [(0, u64::MAX, "write "), (u64::MAX, 0, "fsync ")] {
        let disk = Directory::new(EngineLimits::default());
        let mut store = disk.open().unwrap();
        store.write(&[append(2..=4, 1)]).unwrap();
        store.0.fail_after(writes, syncs);
        let text = store.write(&[append(5..=6, 1)]).unwrap_err().to_string();
        assert!(text.starts_with("cannot ") && text.contains(expected), "{text}");
        assert!(store.write(&[append(5..=6, 1)]).is_err(), "a dead log must stay dead");
        store.0.fail_after(u64::MAX, u64::MAX);
        let (_store, recovered, _) = restart(&disk, store);
        assert!(recovered.last_index >= 4);
    }
}

#[test]
fn what_is_no_directory_is_a_clear_error() {
    let text = DataDir::open(Path::new("/dev/null/data")).unwrap_err().to_string();
    assert!(text.starts_with("cannot create data directory"), "{text}");
}
