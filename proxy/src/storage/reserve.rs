//! The reserve file: disk blocks that a node keeps for the moment when its disk is full.
//!
//! A node that can write nothing at all can only die in the middle of a write, and all nodes of a cluster tend to fill up at the same
//! time. So the log writer looks at the free space before it writes. When less than [`FREE_BYTES_MIN`] is left it deletes the
//! reserve file, and the node stops as on SIGTERM, with room for all that is still to be written: leadership is handed over, what is under way
//! is synced. The next start makes the file again, or refuses in one line while there is no room for it.
//!
//! `tier2::shell` holds it at the start and gives it to the log writer. Snapshots are not written into the last
//! [`SNAPSHOT_FREE_BYTES_MIN`] bytes: they can wait, the log cannot.
//!
//! # Caveats
//!
//! Quotas that `statvfs` does not show are noticed when a write fails: the node then stops at once, as with any failed write, and the
//! file is deleted all the same, so that the next start can write.

use super::datadir::sync_dir;
use super::error::StorageError;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Size of the file: more than one batch of the log with everything that follows it to the end of the process.
pub const RESERVE_BYTES: u64 = 16 << 20;
/// With less free space than this beside the reserve file a node stops. The log engine allocates 2 MiB at a time.
pub const FREE_BYTES_MIN: u64 = 8 << 20;
/// Snapshots leave this much to the log.
pub(crate) const SNAPSHOT_FREE_BYTES_MIN: u64 = 2 * FREE_BYTES_MIN;

const NAME: &str = "RESERVE";
const TEMP_NAME: &str = "RESERVE.tmp";
/// Free space is looked up before a batch, but not more often than this, unless so many bytes were written since.
const CHECK_EVERY_MS: u64 = 50;
const CHECK_EVERY_BYTES: u64 = 1 << 20;

/// The reserve file of one data directory.
pub struct Reserve {
    root: PathBuf,
    /// 0: none is held. Nothing is watched then.
    bytes: u64,
    unchecked_bytes: u64,
    next_check_ms: u64,
}

impl Reserve {
    /// Makes the file where it is missing or short. An error where the disk has no room for it, or too little beside it.
    pub fn hold(root: &Path, bytes: u64) -> Result<Reserve, StorageError> {
        let reserve = Reserve { root: root.to_path_buf(), bytes, unchecked_bytes: 0, next_check_ms: 0 };
        if bytes == 0 {
            return Ok(reserve);
        }
        let path = root.join(NAME);
        let is_there = fs::metadata(&path).is_ok_and(|file| file.len() == bytes);
        let missing_bytes = if is_there { 0 } else { bytes };
        let free_bytes = free_bytes(root).map_err(|e| StorageError::io_at("look at", root, e))?;
        let needed_bytes = missing_bytes + FREE_BYTES_MIN;
        if free_bytes < needed_bytes {
            return Err(StorageError::Full { root: root.to_path_buf(), free_bytes, needed_bytes });
        }
        if !is_there {
            make(root, bytes).map_err(|e| StorageError::io_at("make", &path, e))?;
            sync_dir(root)?;
        }
        Ok(reserve)
    }

    /// Whether the disk is too full to go on after `bytes` more. Gives the file up and says why the node stops.
    pub fn give_up_if_full(&mut self, bytes: u64, now_ms: u64) -> Option<String> {
        self.unchecked_bytes += bytes;
        if self.bytes == 0 || (self.unchecked_bytes < CHECK_EVERY_BYTES && now_ms < self.next_check_ms) {
            return None;
        }
        (self.unchecked_bytes, self.next_check_ms) = (0, now_ms + CHECK_EVERY_MS);
        // A file system that does not say is left to the write itself.
        let free_bytes = free_bytes(&self.root).ok()?;
        if free_bytes >= FREE_BYTES_MIN + bytes {
            return None;
        }
        let needed_mib = (self.bytes + FREE_BYTES_MIN) >> 20;
        self.give_up();
        Some(format!(
            "disk full: {} had {} KiB left; the reserve file was given up and the node stopped in order, nothing acknowledged is lost; \
             make room ({needed_mib} MiB at least) and start it again",
            self.root.display(),
            free_bytes >> 10,
        ))
    }

    /// Gives the blocks back. Nothing is watched from now on.
    pub fn give_up(&mut self) {
        if std::mem::take(&mut self.bytes) != 0 {
            // A file that cannot be deleted leaves the node where it would be without one.
            let _ = fs::remove_file(self.root.join(NAME));
            let _ = sync_dir(&self.root);
        }
    }
}

/// What an unprivileged process may still write.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Under a temporary name first: a file of the right size has all its blocks.
fn make(root: &Path, bytes: u64) -> io::Result<()> {
    let temp = root.join(TEMP_NAME);
    let made = File::create(&temp).and_then(|mut file| {
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(&mut file, bytes)?,
            Err(error) => return Err(error.into()),
        }
        file.sync_all()
    });
    let made = made.and_then(|()| fs::rename(&temp, root.join(NAME)));
    if made.is_err() {
        let _ = fs::remove_file(&temp);
    }
    made
}

/// For file systems without `fallocate`; random, because some of them compress.
fn fill(file: &mut File, bytes: u64) -> io::Result<()> {
    let mut piece = vec![0; 1 << 20];
    getrandom::getrandom(&mut piece).map_err(io::Error::other)?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const BYTES: u64 = 3 << 20;

    #[test]
    fn the_file_has_blocks_and_is_made_once() {
        let temp = tempfile::tempdir().unwrap();
        Reserve::hold(temp.path(), BYTES).unwrap();
        let made = fs::metadata(temp.path().join(NAME)).unwrap();
        assert_eq!(made.len(), BYTES);
        assert!(made.blocks() * 512 >= BYTES, "{} blocks", made.blocks());
        Reserve::hold(temp.path(), BYTES).unwrap();
        assert_eq!(fs::metadata(temp.path().join(NAME)).unwrap().ino(), made.ino());
    }

    #[test]
    fn a_short_file_is_made_anew_and_a_filled_one_has_blocks_too() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join(NAME), b"short").unwrap();
        Reserve::hold(temp.path(), BYTES).unwrap();
        assert_eq!(fs::metadata(temp.path().join(NAME)).unwrap().len(), BYTES);
        let path = temp.path().join("filled");
        let mut file = File::create(&path).unwrap();
        fill(&mut file, BYTES + 1).unwrap();
        file.sync_all().unwrap();
        let filled = fs::metadata(&path).unwrap();
        assert!(filled.len() == BYTES + 1 && filled.blocks() * 512 >= BYTES);
    }

    #[test]
    fn a_batch_larger_than_the_disk_gives_the_file_up() {
        let temp = tempfile::tempdir().unwrap();
        let mut reserve = Reserve::hold(temp.path(), BYTES).unwrap();
        assert_eq!(reserve.give_up_if_full(100, 0), None);
        let free = free_bytes(temp.path()).unwrap();
        let line = reserve.give_up_if_full(free * 2, 0).expect("no disk has twice its free space");
        assert!(line.starts_with("disk full") && line.lines().count() == 1, "{line}");
        assert!(!temp.path().join(NAME).exists());
        assert_eq!(reserve.give_up_if_full(free * 2, 9_999), None, "it is reported once");
    }

    #[test]
    fn without_a_reserve_nothing_is_made_or_watched() {
        let temp = tempfile::tempdir().unwrap();
        let mut reserve = Reserve::hold(temp.path(), 0).unwrap();
        assert_eq!(reserve.give_up_if_full(u64::MAX / 4, 0), None);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }
}
