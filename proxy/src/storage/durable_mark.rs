//! The durable mark: how far the log is known to be on disk.
//!
//! The log engine cuts the last log file at the first record it cannot read, which is right for a torn tail and wrong
//! for a damaged record that had been acknowledged. The mark tells the two apart: after every fsync of the log it takes
//! the file's number and the byte up to which it is safe. It is written in place and not fsynced itself, so it costs one
//! small write; it survives a crash of the process at once, and of the machine from the last [`DurableMark::flush`] on. It may
//! lag behind the log, never lead it, so it can refuse too little, never too much.

use super::error::StorageError;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const MAGIC: &[u8; 8] = b"RFMARK01";
const MARK_LEN: usize = 28;

/// A position in the log: everything before `offset` of file `file_seq`, and every earlier file, is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FilePosition {
    pub(crate) file_seq: u64,
    pub(crate) offset: u64,
}

pub(crate) struct DurableMark {
    file: File,
    path: PathBuf,
    position: Mutex<FilePosition>,
}

impl DurableMark {
    /// Writes the first mark of a new data directory.
    pub(crate) fn create(path: &Path) -> Result<DurableMark, StorageError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(|e| StorageError::io_at("create", path, e))?;
        let mark = DurableMark { file, path: path.to_path_buf(), position: Mutex::default() };
        mark.store(FilePosition::default())
            .and_then(|()| mark.flush())
            .map_err(|e| StorageError::io_at("write", path, e))?;
        Ok(mark)
    }

    pub(crate) fn open(path: &Path) -> Result<DurableMark, StorageError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| {
            if e.kind() == std::io::ErrorKind::NotFound {
                StorageError::Damaged(format!("{} is missing", path.display()))
            } else {
                StorageError::io_at("open", path, e)
            }
        })?;
        let mut bytes = [0; MARK_LEN];
        file.read_exact_at(&mut bytes, 0)
            .map_err(|e| StorageError::Damaged(format!("{} cannot be read: {e}", path.display())))?;
        let position = decode(&bytes)
            .ok_or_else(|| StorageError::Damaged(format!("{} fails its checksum", path.display())))?;
        Ok(DurableMark { file, path: path.to_path_buf(), position: Mutex::new(position) })
    }

    pub(crate) fn position(&self) -> FilePosition {
        *self.position.lock().expect("mutex poisoned")
    }

    /// Raises the mark; a position behind the present one changes nothing.
    pub(crate) fn raise(&self, position: FilePosition) -> std::io::Result<()> {
        let mut current = self.position.lock().expect("mutex poisoned");
        if position <= *current {
            return Ok(());
        }
        self.store(position)?;
        *current = position;
        Ok(())
    }

    /// Makes the mark itself durable: before log files are purged, and when the store is closed.
    pub(crate) fn flush(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn store(&self, position: FilePosition) -> std::io::Result<()> {
        self.file.write_all_at(&encode(position), 0)
    }
}

fn encode(position: FilePosition) -> [u8; MARK_LEN] {
    let mut bytes = [0; MARK_LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..16].copy_from_slice(&position.file_seq.to_le_bytes());
    bytes[16..24].copy_from_slice(&position.offset.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..24]);
    bytes[24..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; MARK_LEN]) -> Option<FilePosition> {
    let crc = u32::from_le_bytes(bytes[24..28].try_into().ok()?);
    if &bytes[..8] != MAGIC || crc32fast::hash(&bytes[..24]) != crc {
        return None;
    }
    Some(FilePosition {
        file_seq: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
        offset: u64::from_le_bytes(bytes[16..24].try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_reopening_and_never_falls() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        let mark = DurableMark::create(&path).unwrap();
        mark.raise(FilePosition { file_seq: 2, offset: 100 }).unwrap();
        mark.raise(FilePosition { file_seq: 1, offset: 900 }).unwrap();
        drop(mark);
        assert_eq!(DurableMark::open(&path).unwrap().position(), FilePosition { file_seq: 2, offset: 100 });
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        drop(DurableMark::create(&path).unwrap());
        let good = std::fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &bad).unwrap();
            assert!(DurableMark::open(&path).is_err(), "bit {bit}");
        }
    }
}
