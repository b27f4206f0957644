//! The data directory of a node: its log with the records beside it, its snapshots, and its identity.
//!
//! The node itself does not use this module. Its shell opens a data directory, gives the log writer a [`LogStore`] and the
//! node a [`LogReader`]. The simulator does the same with [`memory::MemoryDisk`], which loses unsynced writes when it
//! crashes. One test suite runs against both.
//!
//! # Layout
//!
//! - [`datadir`]: the directory: lock, identity, known peers
//! - [`engine`]: the log on raft-engine; `engine_io`: how it is opened and read
//! - [`memory`]: the same in memory, for simulations
//! - [`snapshots`]: snapshot files
//! - `records`: the head and snapshot records, and how tasks move them
//! - `guarded_fs`, `durable_mark`: the files under raft-engine, and how far they are known to be durable
//! - [`reserve`]: blocks kept for a full disk
//! - `permissions`: the directory and its files are private
//! - `catch_panic`: panics of raft-engine as errors
//!
//! # Caveats
//!
//! Damage to acknowledged bytes is refused, not repaired: the operator removes the node and adds it again with an empty
//! directory. After a power cut the durable mark may be some seconds old; damage (not loss: the disk kept its word about
//! the fsync) inside that window of the newest log file is taken for a torn tail.

mod catch_panic;
pub mod datadir;
mod durable_mark;
pub mod engine;
mod engine_io;
mod error;
mod guarded_fs;
pub mod memory;
mod permissions;
mod records;
pub mod reserve;
pub mod snapshots;
#[cfg(test)]
mod tests;

pub(crate) use catch_panic::payload_text as panic_text;
pub use error::StorageError;

use crate::node_api::{LogReader, PersistTask, Recovered};

/// The log of one node. Owned by the writer thread.
pub trait LogStore: Send {
    /// What the last start left, as it was when the store was opened.
    fn recovered(&self) -> Recovered;

    /// Carries out all tasks, in order, as one atomic write with at most one fsync. When this returns, every task is as
    /// durable as it asked to be. After an error the store is dead: what is on disk is not known any more.
    fn write(&mut self, tasks: &[PersistTask]) -> Result<(), StorageError>;

    /// Reads what was written, from another thread.
    fn reader(&self) -> Box<dyn LogReader>;

    /// What its files take, for metrics; 0 where nobody knows.
    fn size_bytes(&self) -> u64 {
        0
    }

    /// Gives back space. Called now and then on the writer thread, between writes.
    fn tidy(&mut self) -> Result<(), StorageError>;
}
