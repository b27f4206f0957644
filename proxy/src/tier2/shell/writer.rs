//! The log writer and the snapshot writer: the two threads that touch the disk.
//!
//! The log writer takes all tasks that queued up while it wrote the last ones, writes them as one batch with one fsync, and
//! then sends what had to wait for that. It never waits for the raft thread, so the raft thread may wait for it.

use crate::clock::Clock;
use crate::node_api::{Input, NodeId, PeerMessage, PersistTask, SnapshotOp};
use crate::storage::snapshots::SnapshotWriter;
use crate::storage::LogStore;
use crate::tier2::handle::Tier2Handle;
use crate::transport::Transport;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Tasks that may wait for the log writer. The raft thread waits at this limit: a disk this far behind is the bottleneck.
pub(super) const TASKS_MAX: usize = 4_096;
/// Operations that may wait for the snapshot writer. The node keeps far fewer bytes under way.
pub(super) const SNAPSHOT_OPS_MAX: usize = 1_024;
/// One batch takes tasks up to about this size.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How often old log files are looked for.
const TIDY_EVERY_MS: u64 = 10_000;

/// Runs until the raft thread has dropped its end and everything is written. An error ends it at once.
pub(super) fn write_log(
    mut store: Box<dyn LogStore>,
    tasks: &Receiver<PersistTask>,
    transport: &Transport,
    handle: &Tier2Handle,
    clock: Clock,
) {
    let mut batch = Vec::new();
    let mut tidied_ms = clock.monotonic_ms();
    loop {
        match tasks.recv_timeout(Duration::from_millis(TIDY_EVERY_MS)) {
            Ok(first) => {
                take_batch(first, tasks, &mut batch);
                if let Err(e) = store.write(&batch) {
                    handle.push_report(Input::PersistFailed { reason: e.to_string() });
                    return;
                }
                release(&mut batch, transport, handle);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if clock.monotonic_ms() - tidied_ms >= TIDY_EVERY_MS {
            if let Err(e) = store.tidy() {
                handle.push_report(Input::PersistFailed { reason: e.to_string() });
                return;
            }
            tidied_ms = clock.monotonic_ms();
        }
    }
}

fn take_batch(first: PersistTask, tasks: &Receiver<PersistTask>, batch: &mut Vec<PersistTask>) {
    let mut bytes = size_of_task(&first);
    batch.push(first);
    while bytes < BATCH_BYTES_MAX {
        let Ok(task) = tasks.try_recv() else { break };
        bytes += size_of_task(&task);
        batch.push(task);
    }
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
