//! The log writer and the snapshot writer: the two threads that touch the disk.
//!
//! The log writer takes all tasks that queued up while it wrote the last ones, writes them as one batch with one fsync, and
//! then sends what had to wait for that. It never waits for the raft thread, so the raft thread may wait for it.

use crate::clock::Clock;
use crate::node_api::{Input, NodeId, PeerMessage, PersistTask, SnapshotOp};
use crate::storage::reserve::Reserve;
use crate::storage::snapshots::SnapshotWriter;
use crate::storage::{LogStore, StorageError};
use crate::tier2::handle::Tier2Handle;
use crate::transport::Transport;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Tasks that may wait for the log writer. The raft thread waits at this limit: a disk this far behind is the bottleneck.
pub const TASKS_MAX: usize = 4_096;
/// Operations that may wait for the snapshot writer. The node keeps far fewer bytes under way.
pub(super) const SNAPSHOT_OPS_MAX: usize = 1_024;
/// One batch takes tasks up to about this size.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How often old log files are looked for, besides at the start and after so many bytes ([`LogWriter::tidy_bytes`]): a node that is
/// restarted often must get there too, and a fast disk must not fill up in between.
const TIDY_EVERY_MS: u64 = 10_000;

/// What the log thread owns.
pub(super) struct LogWriter {
    store: Box<dyn LogStore>,
    reserve: Reserve,
    /// Old log files are looked for after so many bytes.
    tidy_bytes: u64,
    /// Set once: why the node must stop for want of room.
    disk_full: Arc<OnceLock<String>>,
}

impl LogWriter {
    pub(super) fn new(
        store: Box<dyn LogStore>,
        reserve: Reserve,
        tidy_bytes: u64,
        disk_full: Arc<OnceLock<String>>,
    ) -> LogWriter {
        LogWriter { store, reserve, tidy_bytes, disk_full }
    }

    /// Runs until the raft thread has dropped its end and everything is written. An error ends it at once.
    pub(super) fn run(
        mut self,
        tasks: &Receiver<PersistTask>,
        transport: &Transport,
        handle: &Tier2Handle,
        clock: Clock,
    ) {
        let mut batch = Vec::new();
        let mut tidied_ms = clock.monotonic_ms();
        let mut untidied_bytes = 0;
        if let Err(error) = self.store.tidy() {
            return self.failed(&error, handle);
        }
        handle.metrics().log_bytes.set(self.store.size_bytes());
        loop {
            let outcome = match tasks.recv_timeout(Duration::from_millis(TIDY_EVERY_MS)) {
                Ok(first) => {
                    let bytes = take_batch(first, tasks, &mut batch) as u64;
                    untidied_bytes += bytes;
                    self.stop_if_full(bytes, handle, clock);
                    handle.metrics().log_write_begins(clock.monotonic_us());
                    let written = self.store.write(&batch);
                    handle.metrics().log_write_ends(clock.monotonic_us());
                    written
                }
                // Also where nothing is written: a node without quorum has a full disk too.
                Err(RecvTimeoutError::Timeout) => {
                    self.stop_if_full(0, handle, clock);
                    Ok(())
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(error) = outcome {
                return self.failed(&error, handle);
            }
            if !batch.is_empty() {
                release(&mut batch, transport, handle);
            }
            if untidied_bytes >= self.tidy_bytes || clock.monotonic_ms() - tidied_ms >= TIDY_EVERY_MS {
                if let Err(error) = self.store.tidy() {
                    return self.failed(&error, handle);
                }
                (tidied_ms, untidied_bytes) = (clock.monotonic_ms(), 0);
                handle.metrics().log_bytes.set(self.store.size_bytes());
            }
        }
    }

    /// The node stops in order while there is still room for what it writes until then.
    fn stop_if_full(&mut self, bytes: u64, handle: &Tier2Handle, clock: Clock) {
        if let Some(reason) = self.reserve.give_up_if_full(bytes, clock.monotonic_ms()) {
            tracing::warn!("the disk is full: stopping");
            // Nobody else sets it, and a reserve is given up once.
            let _ = self.disk_full.set(reason);
            handle.push_report(Input::Shutdown);
        }
    }

    /// A quota, or somebody who filled the disk faster than it is looked at: the next start needs the room.
    fn failed(&mut self, error: &StorageError, handle: &Tier2Handle) {
        if error.is_full_disk() {
            self.reserve.give_up();
        }
        handle.push_report(Input::PersistFailed { reason: error.to_string() });
    }
}

/// Answers the size of the batch.
fn take_batch(first: PersistTask, tasks: &Receiver<PersistTask>, batch: &mut Vec<PersistTask>) -> usize {
    let mut bytes = size_of_task(&first);
    batch.push(first);
    while bytes < BATCH_BYTES_MAX {
        let Ok(task) = tasks.try_recv() else { break };
        bytes += size_of_task(&task);
        batch.push(task);
    }
    bytes
}

fn size_of_task(task: &PersistTask) -> usize {
    task.entries.iter().map(|entry| entry.data.len() + 64).sum::<usize>() + 256
}

/// What waited for the disk leaves now. The node hears of it first: raft asserts that no answer overtakes the report.
fn release(batch: &mut Vec<PersistTask>, transport: &Transport, handle: &Tier2Handle) {
    let number = batch.last().map_or(0, |task| task.number);
    handle.push_report(Input::Persisted { number });
    let messages: Vec<(NodeId, PeerMessage)> = batch.drain(..).flat_map(|task| task.after).collect();
    if !messages.is_empty() {
        transport.send_all(messages);
    }
}

/// Runs until the raft thread has dropped its end.
pub(super) fn write_snapshots(mut writer: SnapshotWriter, ops: &Receiver<SnapshotOp>, handle: &Tier2Handle) {
    while let Ok(op) = ops.recv() {
        if let Some(report) = writer.carry_out(op) {
            handle.push_report(report);
        }
    }
}
