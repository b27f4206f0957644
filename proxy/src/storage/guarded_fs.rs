//! The file system the log engine works on: the plain one, with three things added.
//!
//! 1. After each fsync of a log file the [`DurableMark`] is raised.
//! 2. While the engine recovers it may cut a torn tail, but not below the mark: then nothing is touched and the open fails.
//! 3. What the operating system refused is remembered, because the engine turns some errors into panics on the way.
//!
//! Only `engine.rs` uses it.

use super::durable_mark::{DurableMark, FilePosition};
use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission, WriteExt};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

type PlainHandle = <DefaultFileSystem as FileSystem>::Handle;
type PlainReader = <DefaultFileSystem as FileSystem>::Reader;
type PlainWriter = <DefaultFileSystem as FileSystem>::Writer;

const APPEND_SUFFIX: &str = ".raftlog";

/// What all files of one log share.
pub(crate) struct FileGuard {
    pub(crate) mark: DurableMark,
    /// The first refusal, as a sentence.
    refusal: Mutex<Option<FileRefusal>>,
    /// Faults asked for by tests: fail every write or fsync once the counter has run down to zero.
    pub(crate) writes_until_full: AtomicU64,
    pub(crate) syncs_until_error: AtomicU64,
}

/// Why the engine was not allowed, or not able, to go on.
#[derive(Debug)]
pub(crate) enum FileRefusal {
    CutBelowMark { path: PathBuf, cut_at: u64, durable_to: u64 },
    Os { doing: String, error: io::Error },
}

impl FileGuard {
    pub(crate) fn new(mark: DurableMark) -> Arc<FileGuard> {
        Arc::new(FileGuard {
            mark,
            refusal: Mutex::new(None),
            writes_until_full: AtomicU64::new(u64::MAX),
            syncs_until_error: AtomicU64::new(u64::MAX),
        })
    }

    pub(crate) fn take_refusal(&self) -> Option<FileRefusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn remember(&self, refusal: FileRefusal) {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(refusal);
    }

    fn remember_os(&self, verb: &str, path: &Path, error: io::Error) -> io::Error {
        let text = in_full(&error);
        self.remember(FileRefusal::Os { doing: format!("{verb} {}", path.display()), error: text });
        error
    }
}

/// raft-engine keeps the kind of an error but not its number, so the text says no more than "pwrite". The system call was
/// the last one of this thread: where its number is of the same kind, it is the one that was lost.
fn in_full(error: &io::Error) -> io::Error {
    let last = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None if last.kind() == error.kind() => last,
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// `true` when the fault is due. `u64::MAX` means never.
fn count_down(counter: &AtomicU64) -> bool {
    match counter.load(Ordering::Relaxed) {
        u64::MAX => false,
        0 => true,
        left => {
            counter.store(left - 1, Ordering::Relaxed);
            false
        }
    }
}

pub(crate) struct GuardedFileSystem(pub(crate) Arc<FileGuard>);

pub(crate) struct GuardedHandle {
    plain: Arc<PlainHandle>,
    path: PathBuf,
    /// The number of an append file; `None` for files the mark does not speak of.
    append_seq: Option<u64>,
    /// End of what was written since the file was opened; 0 before the first write.
    written_to: AtomicU64,
    shared: Arc<FileGuard>,
}

pub(crate) struct GuardedWriter {
    plain: PlainWriter,
    handle: Arc<GuardedHandle>,
    position: u64,
}

/// `0000000000000003.raftlog` is append file 3.
pub(crate) fn append_seq(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_suffix(APPEND_SUFFIX)?.parse().ok()
}

impl GuardedFileSystem {
    fn guard(&self, path: &Path, plain: PlainHandle) -> GuardedHandle {
        GuardedHandle {
            plain: Arc::new(plain),
            path: path.to_path_buf(),
            append_seq: append_seq(path),
            written_to: AtomicU64::new(0),
            shared: self.0.clone(),
        }
    }
}

impl FileSystem for GuardedFileSystem {
    type Handle = GuardedHandle;
    type Reader = PlainReader;
    type Writer = GuardedWriter;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<GuardedHandle> {
        let path = path.as_ref();
        let plain = DefaultFileSystem.create(path).map_err(|e| self.0.remember_os("create", path, e))?;
        Ok(self.guard(path, plain))
    }

    fn open<P: AsRef<Path>>(&self, path: P, perm: Permission) -> io::Result<GuardedHandle> {
        let path = path.as_ref();
        let plain = DefaultFileSystem.open(path, perm).map_err(|e| self.0.remember_os("open", path, e))?;
        Ok(self.guard(path, plain))
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        DefaultFileSystem.delete(path)
    }

    fn rename<P: AsRef<Path>>(&self, src_path: P, dst_path: P) -> io::Result<()> {
        DefaultFileSystem.rename(src_path, dst_path)
    }

    fn new_reader(&self, handle: Arc<GuardedHandle>) -> io::Result<PlainReader> {
        DefaultFileSystem.new_reader(handle.plain.clone())
    }

    fn new_writer(&self, handle: Arc<GuardedHandle>) -> io::Result<GuardedWriter> {
        let plain = DefaultFileSystem.new_writer(handle.plain.clone())?;
        Ok(GuardedWriter { plain, handle, position: 0 })
    }
}

impl Handle for GuardedHandle {
    /// Called by the engine's recovery alone: writers cut through [`WriteExt`].
    fn truncate(&self, offset: usize) -> io::Result<()> {
        let durable = self.shared.mark.position();
        let cut_at = offset as u64;
        if self.append_seq == Some(durable.file_seq) && cut_at < durable.offset {
            let path = self.path.clone();
            self.shared.remember(FileRefusal::CutBelowMark { path, cut_at, durable_to: durable.offset });
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the log is damaged below its durable mark",
            ));
        }
        self.plain.truncate(offset)
    }

    fn file_size(&self) -> io::Result<usize> {
        self.plain.file_size()
    }

    fn sync(&self) -> io::Result<()> {
        let outcome = if count_down(&self.shared.syncs_until_error) {
            Err(io::Error::other("input/output error (injected)"))
        } else {
            self.plain.sync()
        };
        outcome.map_err(|e| self.shared.remember_os("fsync", &self.path, e))?;
        let offset = self.written_to.load(Ordering::Relaxed);
        match self.append_seq {
            Some(file_seq) if offset > 0 => self
                .shared
                .mark
                .raise(FilePosition { file_seq, offset })
                .map_err(|e| self.shared.remember_os("write", self.shared.mark.path(), e)),
            _ => Ok(()),
        }
    }
}

impl Write for GuardedWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let shared = &self.handle.shared;
        let outcome = if count_down(&shared.writes_until_full) {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        } else {
            self.plain.write(buf)
        };
        let written = outcome.map_err(|e| shared.remember_os("write", &self.handle.path, e))?;
        // A file's header is written and synced before the file's name is durable: it must not move the mark yet.
        let is_header = self.position == 0;
        self.position += written as u64;
        if !is_header {
            self.handle.written_to.fetch_max(self.position, Ordering::Relaxed);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.plain.flush()
    }
}

impl Seek for GuardedWriter {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.position = self.plain.seek(pos)?;
        Ok(self.position)
    }
}

impl WriteExt for GuardedWriter {
    fn truncate(&mut self, offset: usize) -> io::Result<()> {
        self.plain.truncate(offset)?;
        self.position = offset as u64;
        self.handle.written_to.fetch_min(self.position, Ordering::Relaxed);
        Ok(())
    }

    fn allocate(&mut self, offset: usize, size: usize) -> io::Result<()> {
        self.plain.allocate(offset, size)
    }
}

/// Reads a whole file that is known to be small.
pub(crate) fn read_small(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}
