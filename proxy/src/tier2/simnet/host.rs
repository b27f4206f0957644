//! One simulated machine: a node, its disk and writer, and clocks of its own.

use super::SimEvent;
use crate::node_api::{NodeId, Now, PeerMessage, PersistTask};
use crate::storage::memory::{MemoryDisk, MemoryStore};
use crate::tier2::node::Node;

/// Where simulated wall clocks begin: some day in 2026.
const WALL_START_US: u64 = 1_790_000_000_000_000;

pub(in crate::tier2) struct Host {
    pub(in crate::tier2) disk: MemoryDisk,
    pub(in crate::tier2) store: Option<MemoryStore>,
    pub(in crate::tier2) node: Option<Node>,
    /// Counts starts.
    pub(in crate::tier2) life: u64,
    pub(in crate::tier2) paused: bool,
    /// What came while it stood still.
    pub(in crate::tier2) backlog: Vec<SimEvent>,
    /// Stopped by itself, after a shutdown.
    pub(in crate::tier2) stopped: bool,
    pub(in crate::tier2) to_write: Vec<PersistTask>,
    writing: Option<Vec<PersistTask>>,
    wake_at_us: u64,
    monotonic_skew_ms: u64,
}

impl Host {
    pub(in crate::tier2) fn new(disk: MemoryDisk, monotonic_skew_ms: u64) -> Host {
        Host {
            disk,
            store: None,
            node: None,
            life: 1,
            paused: false,
            backlog: Vec::new(),
            stopped: false,
            to_write: Vec::new(),
            writing: None,
            wake_at_us: 0,
            monotonic_skew_ms,
        }
    }

    pub(in crate::tier2) fn clocks(&self, now_us: u64) -> Now {
        Now { monotonic_us: now_us + 1_000 * self.monotonic_skew_ms, wall_us: WALL_START_US + now_us }
    }

    /// The process is gone. The disk stays as it is.
    pub(in crate::tier2) fn stop(&mut self) {
        self.node = None;
        self.store = None;
        self.life += 1;
        self.paused = false;
        self.backlog.clear();
        self.to_write.clear();
        self.writing = None;
        self.wake_at_us = 0;
    }

    /// Whether a wake-up is needed: one is under way at a time, unless a sooner one is wanted.
    pub(in crate::tier2) fn wants_wake(&mut self, now_us: u64, wake_at_us: u64) -> bool {
        let wanted = self.wake_at_us <= now_us || wake_at_us < self.wake_at_us;
        if wanted {
            self.wake_at_us = wake_at_us;
        }
        wanted
    }

    /// Writes all that waits into the disk's cache. False: nothing to do, or busy.
    pub(in crate::tier2) fn begin_write(&mut self) -> bool {
        if self.writing.is_some() || self.to_write.is_empty() {
            return false;
        }
        let Some(store) = &mut self.store else { return false };
        let tasks = std::mem::take(&mut self.to_write);
        store.write_cached(&tasks).expect("a simulated disk takes what it is given");
        self.writing = Some(tasks);
        true
    }

    /// The sync is done: the highest number, and the messages that may leave now.
    pub(in crate::tier2) fn end_write(&mut self) -> (u64, Vec<(NodeId, PeerMessage)>) {
        if let Some(store) = &mut self.store {
            store.sync();
        }
        let tasks = self.writing.take().unwrap_or_default();
        let number = tasks.last().map_or(0, |task| task.number);
        (number, tasks.into_iter().flat_map(|task| task.after).collect())
    }
}
