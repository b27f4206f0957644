//! What may go wrong with the data directory, as sentences an operator can act on.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Each variant prints as one line. None of them is retried: a node whose storage failed stops.
#[derive(Debug)]
pub enum StorageError {
    /// Another process holds the directory.
    InUse(PathBuf),
    /// Bytes that were once acknowledged are gone or changed. The text says which and what to do.
    Damaged(String),
    /// The directory is sound but belongs to another node, cluster or version.
    NotOurs(String),
    /// No room for the reserve file and what a node writes beside it.
    Full { root: PathBuf, free_bytes: u64, needed_bytes: u64 },
    /// The operating system refused.
    Io { doing: String, source: io::Error },
    /// A bug of ours or of the log engine, caught before it could spread.
    Internal(String),
}

impl StorageError {
    /// `doing` reads after "cannot", for example `write the log`.
    pub fn io(doing: impl Into<String>, source: io::Error) -> StorageError {
        StorageError::Io { doing: doing.into(), source }
    }

    pub(crate) fn io_at(verb: &str, path: &Path, source: io::Error) -> StorageError {
        StorageError::Io { doing: format!("{verb} {}", path.display()), source }
    }
}

impl StorageError {
    /// Whether room on the disk, or a larger quota, is all that is missing.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        match self {
            StorageError::Full { .. } => true,
            StorageError::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            StorageError::InUse(_)
            | StorageError::Damaged(_)
            | StorageError::NotOurs(_)
            | StorageError::Internal(_) => false,
        }
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageError::InUse(dir) => {
                write!(f, "data directory in use: {} is held by another process", dir.display())
            }
            StorageError::Damaged(what) => write!(f, "data directory damaged: {what}"),
            StorageError::NotOurs(what) => write!(f, "wrong data directory: {what}"),
            StorageError::Full { root, free_bytes, needed_bytes } => write!(
                f,
                "disk full: {} has {} KiB free, and a node starts with {} MiB; make room and start it again",
                root.display(),
                free_bytes >> 10,
                needed_bytes.div_ceil(1 << 20)
            ),
            StorageError::Io { doing, source } => write!(f, "cannot {doing}: {source}"),
            StorageError::Internal(what) => write!(f, "storage fault: {what}"),
        }
    }
}

impl std::error::Error for StorageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StorageError::Io { source, .. } => Some(source),
            StorageError::InUse(_)
            | StorageError::Damaged(_)
            | StorageError::NotOurs(_)
            | StorageError::Full { .. }
            | StorageError::Internal(_) => None,
        }
    }
}
