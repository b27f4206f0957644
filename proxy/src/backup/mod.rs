//! `redfence backup`, `redfence backup verify` and `redfence restore`: what an operator runs against a disaster.
//!
//! A backup is a snapshot of the replicated state, given out by a running node over an ordinary client connection
//! (`LOCK.CLUSTER BACKUP`, see `tier2/snapshot/backups.rs`). A restore makes data directories of a new cluster out of it.
//!
//! # Layout
//!
//! - `take.rs`: asks a node and writes the file; `connection.rs`: its RESP connection
//! - `file.rs`: reads the file; `verify.rs`: shows what is in it
//! - `restore.rs`: founds the new cluster
//!
//! # Caveats
//!
//! - What the upstream Redis holds (Tier 1, and high-water marks where there is one) is not part of a backup.
//! - A backup is as secret as the data directory of a node: the file is readable by its owner alone.

mod connection;
mod file;
pub mod restore;
mod take;
mod verify;

pub(crate) use take::connect;

use crate::cli::{BackupArgs, BackupCommand};

/// `redfence backup …`. An error is one line.
pub fn run(args: &BackupArgs) -> Result<(), String> {
    match &args.command {
        Some(BackupCommand::Verify { file }) => verify::verify(file),
        None => take::take(args),
    }
}
