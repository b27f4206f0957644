//! One simulated machine: a node, its disk with the two writers, and its clocks.

use super::clock::HostClock;
use redfence::node_api::{ClusterMember, Input, NodeId, PeerMessage, PersistTask, SnapshotMeta, SnapshotOp};
use redfence::storage::memory::{MemoryDisk, MemoryStore};
use redfence::storage::LogStore;
use redfence::tier2::{Node, NodeConfig};
use redfence_core::machine::version::VersionRange;
use redfence_core::machine::Wanted;
use std::collections::VecDeque;

/// What the disk does at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFaults {
    pub sync_us: (u64, u64),
    /// The next write fails.
    pub fails: bool,
    /// Snapshot files cannot be written.
    pub refuses_snapshots: bool,
    /// How much longer the end of a snapshot file takes: it is synced and read back.
    pub finish_us: u64,
}

pub const GOOD_DISK: DiskFaults =
    DiskFaults { sync_us: (100, 1_500), fails: false, refuses_snapshots: false, finish_us: 0 };

pub struct Host {
    pub id: NodeId,
    pub disk: MemoryDisk,
    pub clock: HostClock,
    pub mood: DiskFaults,
    /// The cluster versions that its program can run.
    pub versions: VersionRange,
    pub node: Option<Node>,
    store: Option<MemoryStore>,
    /// Counts starts: what was meant for an earlier one is dropped.
    pub life: u64,
    pub paused: bool,
    /// Inputs that wait for the next turn, and whether one is planned.
    pub inbox: Vec<Input>,
    pub turn_planned: bool,
    pub wake_at_us: u64,
    pub to_write: Vec<PersistTask>,
    writing: Option<Vec<PersistTask>>,
    /// A write failed: the node must give up, however well the disk is by the time it does.
    pub write_failed: bool,
    /// A sync that ended while the machine stood still.
    pub synced_in_sleep: bool,
    pub snapshot_ops: VecDeque<SnapshotOp>,
    pub snapshot_busy: bool,
    pub applied_seen: u64,
    /// When it first had anything of the log.
    pub first_applied_us: Option<u64>,
    pub members: Vec<ClusterMember>,
    /// Part of the cluster, as far as its operators know, since this time.
    pub member_since_us: Option<u64>,
    /// Changed by hand: whoever asks it may be refused.
    pub disturbed_us: u64,
    pub stopping: bool,
    pub turns: u64,
}

impl Host {
    pub fn new(id: NodeId, first: SnapshotMeta, clock: HostClock) -> Host {
        Host {
            id,
            disk: MemoryDisk::new(first),
            clock,
            mood: GOOD_DISK,
            versions: VersionRange::PROGRAM,
            node: None,
            store: None,
            life: 0,
            paused: false,
            inbox: Vec::new(),
            turn_planned: false,
            wake_at_us: 0,
            to_write: Vec::new(),
            writing: None,
            write_failed: false,
            synced_in_sleep: false,
            snapshot_ops: VecDeque::new(),
            snapshot_busy: false,
            applied_seen: 0,
            first_applied_us: None,
            members: Vec::new(),
            member_since_us: None,
            disturbed_us: 0,
            stopping: false,
            turns: 0,
        }
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.node.is_some()
    }

    /// Starts from what is on the disk. An error means that the disk cannot be used, or the node not started.
    pub fn start(&mut self, config: NodeConfig) -> Result<(), String> {
        assert!(self.node.is_none(), "host {} runs already", self.id);
        self.life += 1;
        let store = self.disk.open().map_err(|error| error.to_string())?;
        let node = Node::new(config, store.recovered(), store.reader())?;
        self.applied_seen = node.applied_index();
        self.node = Some(node);
        self.store = Some(store);
        self.inbox.push(Input::Wanted(Wanted { events: true, ..Wanted::default() }));
        Ok(())
    }

    /// The process is gone. What the disk's cache holds stays there.
    pub fn stop(&mut self) {
        self.node = None;
        self.store = None;
        self.life += 1;
        self.paused = false;
        self.inbox.clear();
        self.turn_planned = false;
        self.wake_at_us = 0;
        self.to_write.clear();
        self.writing = None;
        self.write_failed = false;
        self.synced_in_sleep = false;
        self.snapshot_ops.clear();
        self.snapshot_busy = false;
        self.stopping = false;
    }

    /// The power is gone: of the unsynced tasks `survivors` at most are left.
    pub fn lose_power(&mut self, survivors: usize) {
        self.stop();
        self.disk.crash(survivors);
    }

    /// The writer takes all that waits. `None`: nothing to do, or busy. `Some(Err)`: the write failed.
    pub fn begin_write(&mut self) -> Option<Result<(), String>> {
        if self.writing.is_some() || self.to_write.is_empty() {
            return None;
        }
        let store = self.store.as_mut()?;
        if self.mood.fails {
            self.write_failed = true;
            return Some(Err("simulated input/output error".to_string()));
        }
        let tasks = std::mem::take(&mut self.to_write);
        match store.write_cached(&tasks) {
            Ok(()) => {
                self.writing = Some(tasks);
                Some(Ok(()))
            }
            Err(error) => Some(Err(format!("the log store refused a task: {error}"))),
        }
    }

    /// The write is done. What asked to be durable is; the messages that waited for it may leave.
    pub fn end_write(&mut self) -> Vec<(NodeId, PeerMessage)> {
        let tasks = self.writing.take().unwrap_or_default();
        if tasks.iter().any(|task| task.must_sync) {
            if let Some(store) = &mut self.store {
                store.sync();
            }
        }
        let number = tasks.last().map_or(0, |task| task.number);
        self.inbox.push(Input::Persisted { number });
        tasks.into_iter().flat_map(|task| task.after).collect()
    }
}
