//! Snapshot files: images of the machine, written in pieces.
//!
//! A file is written under a temporary name, checked against the size and checksum its maker names, synced, read back from the disk
//! and checked record by record, renamed, and its directory synced: under its final name it is whole, a node can start from it, or it
//! is not there. The log behind it is compacted only then. Which one counts is said by the log's own
//! snapshot record; all others are strays and go at the next start.

use super::datadir::sync_dir;
use super::error::StorageError;
use super::reserve::{free_bytes, SNAPSHOT_FREE_BYTES_MIN};
use crate::node_api::snapshot_stream::StreamChecker;
use crate::node_api::{Input, SnapshotId, SnapshotMeta, SnapshotOp, StoreError};
use bytes::Bytes;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SUFFIX: &str = "snap";
const TEMP_SUFFIX: &str = "tmp";
const CHECK_PIECE_BYTES: usize = 1 << 20;
/// Synced this often while it is written: at the end, all of it at once would hold up the syncs of the log.
const SYNC_EVERY_BYTES: u64 = 512 << 10;

/// Writes snapshot files. One owner: the snapshot thread.
pub struct SnapshotWriter {
    dir: PathBuf,
    /// The file under way. The node writes one at a time; a second `Create` drops the first.
    open: Option<UnfinishedSnapshot>,
}

struct UnfinishedSnapshot {
    id: SnapshotId,
    file: File,
    written_bytes: u64,
    synced_bytes: u64,
    crc: crc32fast::Hasher,
}

impl SnapshotWriter {
    pub fn new(dir: &Path) -> SnapshotWriter {
        SnapshotWriter { dir: dir.to_path_buf(), open: None }
    }

    /// Carries out one operation and returns the input it causes for the node.
    pub fn carry_out(&mut self, op: SnapshotOp) -> Option<Input> {
        match op {
            SnapshotOp::Create(id) => self.create(id).err().map(|e| self.fail(id, e.to_string())),
            SnapshotOp::Append { id, bytes } => Some(match self.append(id, &bytes) {
                Ok(written_bytes) => Input::SnapshotProgress { id, written_bytes },
                Err(reason) => self.fail(id, reason),
            }),
            SnapshotOp::Finish { id, size_bytes, crc32 } => Some(match self.finish(id, size_bytes, crc32) {
                Ok(()) => Input::SnapshotStored(id),
                Err(reason) => self.fail(id, reason),
            }),
            SnapshotOp::Discard(id) => {
                self.discard(id);
                None
            }
        }
    }

    fn create(&mut self, id: SnapshotId) -> io::Result<()> {
        if let Some(abandoned) = self.open.take() {
            self.discard(abandoned.id);
        }
        let file = File::create(temp_path(&self.dir, id))?;
        self.open = Some(UnfinishedSnapshot {
            id,
            file,
            written_bytes: 0,
            synced_bytes: 0,
            crc: crc32fast::Hasher::new(),
        });
        Ok(())
    }

    fn append(&mut self, id: SnapshotId, bytes: &[u8]) -> Result<u64, String> {
        self.leave_room_for_the_log(bytes.len() as u64)?;
        let open = self.under_way(id)?;
        let complain = |e: io::Error| format!("cannot write a snapshot: {e}");
        open.file.write_all(bytes).map_err(complain)?;
        open.crc.update(bytes);
        open.written_bytes += bytes.len() as u64;
        if open.written_bytes - open.synced_bytes >= SYNC_EVERY_BYTES {
            open.file.sync_data().map_err(complain)?;
            open.synced_bytes = open.written_bytes;
        }
        Ok(open.written_bytes)
    }

    /// The last room of a disk belongs to the log: a node can do without a new snapshot.
    fn leave_room_for_the_log(&self, bytes: u64) -> Result<(), String> {
        match free_bytes(&self.dir) {
            Ok(free) if free < SNAPSHOT_FREE_BYTES_MIN + bytes => {
                Err(format!("cannot write a snapshot: the disk has only {} KiB left", free >> 10))
            }
            // A file system that does not say is left to the write itself.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn finish(&mut self, id: SnapshotId, size_bytes: u64, crc32: u32) -> Result<(), String> {
        self.under_way(id)?;
        let Some(done) = self.open.take() else { return Err("no snapshot is being written".to_string()) };
        if done.written_bytes != size_bytes || done.crc.finalize() != crc32 {
            return Err("the snapshot's bytes do not fit its checksum".to_string());
        }
        let (temp, target) = (temp_path(&self.dir, id), final_path(&self.dir, id));
        done.file.sync_all().map_err(|e| format!("cannot store {}: {e}", target.display()))?;
        read_back(&temp, size_bytes, crc32).map_err(|reason| format!("read back, {reason}"))?;
        fs::rename(&temp, &target).map_err(|e| format!("cannot store {}: {e}", target.display()))?;
        sync_dir(&self.dir).map_err(|e| e.to_string())
    }

    fn under_way(&mut self, id: SnapshotId) -> Result<&mut UnfinishedSnapshot, String> {
        self.open
            .as_mut()
            .filter(|open| open.id == id)
            .ok_or_else(|| "this snapshot is not being written (an earlier step failed)".to_string())
    }

    fn fail(&mut self, id: SnapshotId, reason: String) -> Input {
        self.discard(id);
        Input::SnapshotFailed { id, reason }
    }

    /// Failures are left alone: a file that stays behind is a stray, and goes at the next start.
    fn discard(&mut self, id: SnapshotId) {
        self.open.take_if(|open| open.id == id);
        let _ = fs::remove_file(temp_path(&self.dir, id));
        let _ = fs::remove_file(final_path(&self.dir, id));
    }
}

/// Reads stored snapshot files. Opens them for each piece: a file that is kept open keeps its blocks after it is deleted.
pub(crate) struct SnapshotReader {
    dir: PathBuf,
}

impl SnapshotReader {
    pub(crate) fn new(dir: &Path) -> SnapshotReader {
        SnapshotReader { dir: dir.to_path_buf() }
    }

    pub(crate) fn read(&self, id: SnapshotId, offset: u64, max_bytes: usize) -> Result<Bytes, StoreError> {
        let path = final_path(&self.dir, id);
        let complain = |e: io::Error| StoreError(format!("cannot read {}: {e}", path.display()));
        let file = File::open(&path).map_err(complain)?;
        let len = file.metadata().map_err(complain)?.len();
        let wanted = len.saturating_sub(offset).min(max_bytes as u64) as usize;
        let mut bytes = vec![0; wanted];
        file.read_exact_at(&mut bytes, offset).map_err(complain)?;
        Ok(Bytes::from(bytes))
    }
}

/// Checks the snapshot the log names, and deletes every other file.
pub(crate) fn settle(dir: &Path, named: &SnapshotMeta) -> Result<(), StorageError> {
    if named.id != SnapshotId::default() {
        check(&final_path(dir, named.id), named)?;
    }
    let keep = final_path(dir, named.id);
    let entries = fs::read_dir(dir).map_err(|e| StorageError::io_at("read", dir, e))?;
    for entry in entries {
        let path = entry.map_err(|e| StorageError::io_at("read", dir, e))?.path();
        let ours = path.extension().is_some_and(|ext| ext == SUFFIX || ext == TEMP_SUFFIX);
        if ours && path != keep {
            fs::remove_file(&path).map_err(|e| StorageError::io_at("delete", &path, e))?;
        }
    }
    Ok(())
}

/// Reads a file as a start would, without keeping what is in it.
fn read_back(path: &Path, size_bytes: u64, crc32: u32) -> Result<(), String> {
    let mut checker = StreamChecker::default();
    let mut file = File::open(path).map_err(|e| e.to_string())?;
    let mut crc = crc32fast::Hasher::new();
    let mut piece = vec![0; CHECK_PIECE_BYTES];
    let mut read_bytes = 0;
    loop {
        let read = file.read(&mut piece).map_err(|e| e.to_string())?;
        if read == 0 {
            break;
        }
        crc.update(&piece[..read]);
        checker.push(&piece[..read])?;
        read_bytes += read as u64;
    }
    if read_bytes != size_bytes || crc.finalize() != crc32 {
        return Err("the file does not fit its checksum".to_owned());
    }
    checker.finish()
}

fn check(path: &Path, named: &SnapshotMeta) -> Result<(), StorageError> {
    let mut file = File::open(path).map_err(|e| {
        if e.kind() == io::ErrorKind::NotFound {
            StorageError::Damaged(format!("the snapshot {} the log starts from is missing", path.display()))
        } else {
            StorageError::io_at("open", path, e)
        }
    })?;
    let mut crc = crc32fast::Hasher::new();
    let mut size_bytes = 0;
    let mut piece = vec![0; CHECK_PIECE_BYTES];
    loop {
        let read = file.read(&mut piece).map_err(|e| StorageError::io_at("read", path, e))?;
        if read == 0 {
            break;
        }
        crc.update(&piece[..read]);
        size_bytes += read as u64;
    }
    if size_bytes != named.size_bytes || crc.finalize() != named.crc32 {
        return Err(StorageError::Damaged(format!(
            "the snapshot {} fails its checksum; remove this node from the cluster and add it again with an empty directory",
            path.display()
        )));
    }
    Ok(())
}

fn final_path(dir: &Path, id: SnapshotId) -> PathBuf {
    dir.join(format!("{:016x}.{SUFFIX}", id.0))
}

fn temp_path(dir: &Path, id: SnapshotId) -> PathBuf {
    dir.join(format!("{:016x}.{TEMP_SUFFIX}", id.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_api::snapshot_stream::framed;
    use redfence_core::limits::SNAPSHOT_PIECE_BYTES_MAX;

    const ID: SnapshotId = SnapshotId(5);

    /// The file of an empty machine's snapshot, in two portions.
    fn portions() -> [Bytes; 2] {
        let mut machine = redfence_core::machine::Machine::new();
        machine.snapshot_begin();
        let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| machine.snapshot_step(1)).collect();
        let file: Vec<u8> = pieces.iter().flat_map(|piece| framed(piece)).collect();
        let (head, tail) = file.split_at(7);
        [Bytes::copy_from_slice(head), Bytes::copy_from_slice(tail)]
    }

    fn write(writer: &mut SnapshotWriter, portions: &[Bytes], crc32: u32) -> Option<Input> {
        assert!(writer.carry_out(SnapshotOp::Create(ID)).is_none());
        let mut size_bytes = 0;
        for portion in portions {
            size_bytes += portion.len() as u64;
            let input = writer.carry_out(SnapshotOp::Append { id: ID, bytes: portion.clone() });
            assert!(
                matches!(input, Some(Input::SnapshotProgress { written_bytes, .. }) if written_bytes == size_bytes)
            );
        }
        writer.carry_out(SnapshotOp::Finish { id: ID, size_bytes, crc32 })
    }

    #[test]
    fn portions_become_a_file_that_reads_back_and_settles() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SnapshotWriter::new(dir.path());
        let portions = portions();
        let file = portions.concat();
        let crc32 = crc32fast::hash(&file);
        assert!(matches!(write(&mut writer, &portions, crc32), Some(Input::SnapshotStored(ID))));
        let reader = SnapshotReader::new(dir.path());
        assert_eq!(&reader.read(ID, 2, 3).unwrap()[..], &file[2..5]);
        assert!(reader.read(ID, file.len() as u64, 3).unwrap().is_empty());

        fs::write(dir.path().join("0000000000000009.tmp"), b"half").unwrap();
        fs::write(dir.path().join("0000000000000008.snap"), b"older").unwrap();
        let size_bytes = file.len() as u64;
        let named = SnapshotMeta { id: ID, size_bytes, crc32, ..SnapshotMeta::default() };
        settle(dir.path(), &named).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// A file that is open keeps its blocks when it is deleted: the disk would hold one snapshot more than its directory shows.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_was_read_is_not_kept_open() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SnapshotWriter::new(dir.path());
        let portions = portions();
        let crc32 = crc32fast::hash(&portions.concat());
        assert!(matches!(write(&mut writer, &portions, crc32), Some(Input::SnapshotStored(ID))));
        let reader = SnapshotReader::new(dir.path());
        assert_eq!(reader.read(ID, 0, 3).unwrap().len(), 3);
        assert!(writer.carry_out(SnapshotOp::Discard(ID)).is_none());
        let open =
            fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        assert_eq!(open.filter(|path| path.starts_with(dir.path())).count(), 0);
        assert!(reader.read(ID, 0, 3).is_err());
    }

    #[test]
    fn wrong_bytes_are_not_stored_and_damage_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SnapshotWriter::new(dir.path());
        let portions = portions();
        let file = portions.concat();
        assert!(matches!(write(&mut writer, &portions, 1), Some(Input::SnapshotFailed { .. })));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

        let crc32 = crc32fast::hash(&file);
        assert!(matches!(write(&mut writer, &portions, crc32), Some(Input::SnapshotStored(_))));
        let named = SnapshotMeta { id: ID, size_bytes: file.len() as u64, crc32, ..SnapshotMeta::default() };
        for bit in 0..8 * file.len() {
            let mut bytes = file.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(final_path(dir.path(), ID), &bytes).unwrap();
            assert!(settle(dir.path(), &named).is_err(), "bit {bit}");
        }
    }

    /// The checksum fits, but no node could start from the file: it is never reported as stored, so the log behind it stays.
    #[test]
    fn a_snapshot_that_no_node_could_start_from_is_not_stored() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = SnapshotWriter::new(dir.path());
        let too_long = (SNAPSHOT_PIECE_BYTES_MAX as u32 + 1).to_le_bytes();
        for file in [&b"no pieces"[..], &portions()[0], &too_long] {
            let outcome = write(&mut writer, &[Bytes::copy_from_slice(file)], crc32fast::hash(file));
            assert!(matches!(outcome, Some(Input::SnapshotFailed { .. })), "{file:?}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        }
    }
}
