//! The I/O around the node: its threads, its files, its sockets.
//!
//! [`start`] is the one way in. Six threads: `raft` owns the node and does nothing but turns; `log` writes and syncs;
//! `snapshots` writes snapshot files; `peers` reads sockets (the others write to them directly);
//! `deadlines` answers clients where `raft` is stuck; `garbage` frees large values that `raft` has dropped.
//!
//! A turn: take all inputs there are (or sleep until the node wants to be woken), hand them over, let the node think once,
//! carry out what it says. The log writer gets its work before the network, because its fsync is the longest wait of all and
//! runs beside everything else.
//!
//! # When something breaks
//!
//! A failed write, a fatal word of the node, or a panic on one of these threads ends the process at once with one line and
//! a non-zero code: a proxy whose consensus thread is dead, but which still answers, would be the worst outcome. What to
//! do at that point is [`OnFatal`], so that tests can look on.
//!
//! A disk that is about to be full ends the node in order, as SIGTERM does, and then the process in the same way: `storage::reserve`.

#[cfg(test)]
mod damage;
mod startup;
#[cfg(test)]
mod tests;
mod trouble;
mod writer;

pub use startup::{ShellConfig, StartError};
use trouble::{ClockWatch, TroubleWatch};
use writer::LogWriter;
pub use writer::TASKS_MAX as LOG_WRITES_MAX;

use crate::clock::{Clock, ThreadCpu};
use crate::node_api::{Input, Outputs, PersistTask, SnapshotOp};
use crate::storage::reserve::Reserve;
use crate::storage::snapshots::SnapshotWriter;
use crate::storage::LogStore;
use crate::tier2::handle::deadlines::SWEEP_EVERY;
use crate::tier2::handle::{connect, NodeEndpoint, Tier2Handle};
use crate::tier2::node::Node;
pub use crate::transport::accepting::FILES_MAX as PEER_FILES_MAX;
use crate::transport::peer_registry::PeerRegistry;
use crate::transport::Transport;
use redfence_core::keyspace::Value;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{channel, sync_channel, Sender, SyncSender};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Called once with the reason when the node cannot go on.
pub type OnFatal = Arc<dyn Fn(&str) + Send + Sync>;

/// Logs the reason and ends the process: what a program wants.
#[must_use]
pub fn exit_on_fatal() -> OnFatal {
    Arc::new(|reason| {
        tracing::error!("stopping the process: {reason}");
        std::process::exit(1);
    })
}

/// Opens the data directory, recovers, and starts the threads. The handle serves requests at once (they wait for a leader).
/// The thread ends after [`stop`], when everything is written.
pub fn start(config: &ShellConfig) -> Result<(Tier2Handle, JoinHandle<()>), StartError> {
    // The port first: a node that cannot have it must not leave a new data directory behind.
    let listener = config.peer_listen.map(startup::bind_peers).transpose()?;
    let (dir, identity, store) = startup::open_data(config)?;
    // After the log is open, which deletes snapshots that were never finished.
    let reserve = Reserve::hold(dir.root(), config.reserve_bytes)?;
    let own = config.node.id;
    let told_of = config.cluster.iter().map(|(id, _)| *id).filter(|id| *id != own).collect();
    startup::check_members(config, &store.recovered().snapshot.members)?;
    let snapshots = SnapshotWriter::new(&dir.snapshots_path());
    let registry =
        PeerRegistry::open(dir, identity, config.own_address(), config.peer_security.clone(), told_of)?;
    let registry = Arc::new(registry.with_versions(config.node.versions));
    // Before anybody is let in: whoever greets is measured against the members known so far.
    registry.set_members(&store.recovered().snapshot.members);

    let (handle, endpoint) = connect(config.timeout_ms);
    let mut node =
        Node::new(config.node.clone(), store.recovered(), store.reader()).map_err(StartError::Node)?;
    node.set_cpu_clock(Box::new(ThreadCpu));
    node.set_metrics(Arc::clone(handle.metrics()), config.clock);
    node.set_cluster_id(registry.cluster_id());
    registry.set_cluster_version(node.machine().cluster_version());
    let sink = Arc::new(handle.clone());
    let (transport, peers) = Transport::start(registry, listener, sink).map_err(StartError::Threads)?;
    let disk_full = Arc::new(OnceLock::new());
    let log = LogWriter::new(Box::new(store), reserve, config.log.tidy_bytes(), Arc::clone(&disk_full));
    let disk = start_disk_threads(log, snapshots, &transport, &handle, config);
    let (tasks, ops, disk) = disk.map_err(StartError::Threads)?;
    start_sweeps(handle.clone(), config.clock).map_err(StartError::Threads)?;
    let (clock, on_fatal) = (config.clock, config.on_fatal.clone());
    let garbage = start_garbage_thread().map_err(StartError::Threads)?;
    let raft = RaftThread {
        node,
        endpoint,
        transport,
        tasks,
        ops,
        clock,
        on_fatal,
        garbage,
        disk,
        disk_full,
        peers,
    };
    let thread = std::thread::Builder::new().name("raft".to_string()).spawn(move || raft.run());
    Ok((handle, thread.map_err(StartError::Threads)?))
}

/// Clients are answered by their deadline, also where the raft thread is stuck; trouble is told. Ends with the node.
fn start_sweeps(handle: Tier2Handle, clock: Clock) -> std::io::Result<()> {
    let mut trouble = TroubleWatch::default();
    let sweeps = move || {
        while handle.sweep() {
            trouble.look(handle.metrics(), clock.monotonic_us());
            std::thread::sleep(SWEEP_EVERY);
        }
    };
    std::thread::Builder::new().name("deadlines".to_string()).spawn(sweeps).map(drop)
}

/// Asks the node to hand leadership over and stop. The thread that [`start`] returned ends within a few seconds.
pub fn stop(handle: &Tier2Handle) {
    handle.push_report(Input::Shutdown);
}

type DiskThreads = (SyncSender<PersistTask>, SyncSender<SnapshotOp>, Vec<JoinHandle<()>>);

fn start_disk_threads(
    log_writer: LogWriter,
    snapshots: SnapshotWriter,
    transport: &Transport,
    handle: &Tier2Handle,
    config: &ShellConfig,
) -> std::io::Result<DiskThreads> {
    let (tasks, task_inbox) = sync_channel(writer::TASKS_MAX);
    let (ops, op_inbox) = sync_channel(writer::SNAPSHOT_OPS_MAX);
    let clock = config.clock;
    let (log_transport, log_handle, log_fatal) = (transport.clone(), handle.clone(), config.on_fatal.clone());
    let log = std::thread::Builder::new().name("log".to_string()).spawn(move || {
        guarded("log writer", &log_fatal, || {
            log_writer.run(&task_inbox, &log_transport, &log_handle, clock);
        });
    })?;
    let (snapshot_handle, snapshot_fatal) = (handle.clone(), config.on_fatal.clone());
    let snapshot = std::thread::Builder::new().name("snapshots".to_string()).spawn(move || {
        guarded("snapshot writer", &snapshot_fatal, || {
            writer::write_snapshots(snapshots, &op_inbox, &snapshot_handle);
        });
    })?;
    Ok((tasks, ops, vec![log, snapshot]))
}

/// Ends when the sender does. What waits in the channel was part of the state before, so it is bounded as that is.
fn start_garbage_thread() -> std::io::Result<Sender<Vec<Value>>> {
    let (sender, receiver) = channel::<Vec<Value>>();
    std::thread::Builder::new().name("garbage".to_string()).spawn(move || receiver.iter().for_each(drop))?;
    Ok(sender)
}

/// A panic on a thread the node cannot live without is the end of the process, not of the thread.
fn guarded(name: &str, on_fatal: &OnFatal, work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        let text = crate::storage::panic_text(payload.as_ref());
        on_fatal(&format!("the {name} failed: {text}"));
    }
}

/// What the raft thread owns.
struct RaftThread {
    node: Node,
    endpoint: NodeEndpoint,
    transport: Transport,
    tasks: SyncSender<PersistTask>,
    ops: SyncSender<SnapshotOp>,
    clock: Clock,
    on_fatal: OnFatal,
    /// Where large values are dropped: to free a million elements takes longer than a turn may.
    garbage: Sender<Vec<Value>>,
    disk: Vec<JoinHandle<()>>,
    /// Set by the log writer when it stopped the node for want of room.
    disk_full: Arc<OnceLock<String>>,
    peers: JoinHandle<()>,
}

impl RaftThread {
    fn run(mut self) {
        let on_fatal = self.on_fatal.clone();
        let mut fatal = None;
        guarded("raft thread", &on_fatal, || fatal = self.turns());
        if let Some(reason) = fatal {
            on_fatal(&reason);
        }
        // In this order: the disk finishes what it was given, then the sockets close, then the last clients get their replies. A
        // panic on another thread was reported by that thread itself.
        let RaftThread { endpoint, transport, tasks, ops, disk, disk_full, peers, .. } = self;
        drop((tasks, ops));
        for thread in disk {
            let _ = thread.join();
        }
        transport.stop();
        let _ = peers.join();
        endpoint.close();
        if let Some(reason) = disk_full.get() {
            on_fatal(reason);
        }
    }

    /// Turn after turn, until the node has stopped. Returns the reason where it had to.
    fn turns(&mut self) -> Option<String> {
        let mut inputs = Vec::new();
        let mut outputs = Outputs::default();
        let mut clock_watch = ClockWatch::default();
        let metrics = Arc::clone(self.endpoint.metrics());
        loop {
            let before_us = self.clock.monotonic_us();
            let sleep_us = outputs.wake_at_us.saturating_sub(before_us);
            self.endpoint.collect(Duration::from_micros(sleep_us), outputs.wake_filter, &mut inputs);
            let now = self.clock.now();
            clock_watch.look(&metrics, now, before_us + sleep_us);
            for input in inputs.drain(..) {
                self.node.input(now, input);
            }
            outputs.clear();
            self.node.turn(now, &mut outputs);
            if let Some(reason) = outputs.fatal.take() {
                return Some(reason);
            }
            self.carry_out(&mut outputs);
            if outputs.stopped {
                return None;
            }
        }
    }

    /// A disk thread that is gone has said why: its report reaches the node before the next turn.
    fn carry_out(&mut self, outputs: &mut Outputs) {
        for task in outputs.persist.drain(..) {
            let _ = self.tasks.send(task);
        }
        if !outputs.send.is_empty() {
            self.transport.send_all(outputs.send.drain(..));
        }
        for op in outputs.snapshot_ops.drain(..) {
            let _ = self.ops.send(op);
        }
        if let Some(status) = &outputs.status {
            self.transport.set_cluster_version(status.cluster_version);
        }
        if let Some(members) = outputs.members.take() {
            self.transport.set_members(members);
        }
        if !outputs.garbage.is_empty() {
            // Where that thread is gone, they are dropped here.
            let _ = self.garbage.send(std::mem::take(&mut outputs.garbage));
        }
        self.endpoint.deliver(outputs);
    }
}
