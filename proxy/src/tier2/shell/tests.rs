//! Real threads, real files, real sockets: one node and three, killed and restarted.

use super::*;
use crate::node_api::{
    AdminRequest, ClusterStatus, LogPosition, NodeId, OwnedQuery, Role, SnapshotMeta, WakeFilter,
};
use crate::storage::engine::EngineLimits;
use crate::tier2::handle::PendingReply;
use crate::transport::security::PeerSecurity;
use bytes::Bytes;
use redfence_core::machine::Command;
use redfence_core::reply::Reply;
use redfence_core::types::SessionScope;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);

struct Running {
    id: NodeId,
    handle: Tier2Handle,
    thread: Option<JoinHandle<()>>,
    fatal: Arc<Mutex<Option<String>>>,
}

impl Running {
    fn start(config: &ShellConfig) -> Running {
        let fatal: Arc<Mutex<Option<String>>> = Arc::default();
        let reported = fatal.clone();
        let mut config = config.clone();
        config.on_fatal = Arc::new(move |reason| *reported.lock().unwrap() = Some(reason.to_string()));
        let (handle, thread) = start(&config).unwrap();
        Running { id: config.node.id, handle, thread: Some(thread), fatal }
    }

    fn status(&self) -> Arc<ClusterStatus> {
        self.handle.status()
    }

    fn acquire(&self, resource: &[u8]) -> Reply {
        block_on(self.begin_acquire(resource))
    }

    fn begin_acquire(&self, resource: &[u8]) -> PendingReply {
        let (ttl_ms, wait_ms, owner) = (600_000, 0, &b"owner"[..]);
        let command = Command::Acquire { db: 0, resource, ttl_ms, wait_ms, owner, session: None };
        let mut blob = Vec::new();
        command.encode(&mut blob);
        self.handle.submit(Bytes::from(blob), 0)
    }

    fn info(&self, resource: &'static [u8]) -> Reply {
        block_on(self.handle.query(OwnedQuery::Info {
            db: 0,
            resource: Bytes::from_static(resource),
            sessions: SessionScope::All,
        }))
    }

    /// Ends without a word to the others.
    fn die(mut self) {
        let reason = "no space left on device".to_string();
        self.handle.push_report(Input::PersistFailed { reason });
        self.thread.take().unwrap().join().unwrap();
        assert!(self.fatal.lock().unwrap().is_some());
    }

    fn stop(mut self) {
        stop(&self.handle);
        self.thread.take().unwrap().join().unwrap();
        assert_eq!(*self.fatal.lock().unwrap(), None);
    }
}

fn block_on<T>(future: impl std::future::Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `n` configurations on free ports. Ports are held while they are chosen, so that no two are equal.
fn cluster(root: &Path, n: u64) -> Vec<ShellConfig> {
    let held: Vec<TcpListener> = (0..n).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let members: Vec<(NodeId, String)> =
        (1..=n).zip(&held).map(|(id, socket)| (id, socket.local_addr().unwrap().to_string())).collect();
    members
        .iter()
        .map(|(id, addr)| ShellConfig {
            cluster: members.clone(),
            peer_listen: Some(addr.parse().unwrap()),
            ..ShellConfig::single(*id, *id, root.join(id.to_string()), Clock::start())
        })
        .collect()
}

fn granted_fence(reply: &Reply) -> u64 {
    match reply {
        Reply::Granted { fence, .. } => fence.0,
        other => panic!("not a grant: {other:?}"),
    }
}

#[test]
fn a_single_node_keeps_its_locks_over_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let config = ShellConfig::single(1, 1, root.path().join("one"), Clock::start());
    let node = Running::start(&config);
    let fence = granted_fence(&node.acquire(b"wallet"));
    node.stop();
    let node = Running::start(&config);
    // The same owner asks again: the same fence, or the lock was forgotten.
    assert_eq!(granted_fence(&node.acquire(b"wallet")), fence);
    node.stop();
}

/// Every node in turn is lost, once with a word to the others and once without.
fn three_nodes_survive(lose: impl Fn(Running)) {
    let root = tempfile::tempdir().unwrap();
    let configs = cluster(root.path(), 3);
    let mut nodes: Vec<Running> = configs.iter().map(Running::start).collect();
    let fence = granted_fence(&nodes[0].acquire(b"wallet"));
    for node in &nodes {
        assert_eq!(granted_fence(&node.acquire(b"wallet")), fence, "through node {}", node.id);
    }
    for _ in 0..3 {
        let lost = nodes.remove(0);
        let id = lost.id;
        lose(lost);
        for node in &nodes {
            assert_eq!(
                granted_fence(&node.acquire(b"wallet")),
                fence,
                "through node {} without {id}",
                node.id
            );
        }
        nodes.push(Running::start(&configs[id as usize - 1]));
        let applied = nodes[0].status().applied;
        eventually("the returned node caught up", || nodes[2].status().applied >= applied);
        let seen = nodes[2].info(b"wallet");
        assert!(!matches!(seen, Reply::Error(_)), "{seen:?}");
    }
    nodes.into_iter().for_each(Running::stop);
}

#[test]
fn three_nodes_survive_the_stop_of_each() {
    three_nodes_survive(Running::stop);
}

#[test]
fn three_nodes_survive_the_sudden_end_of_each() {
    three_nodes_survive(Running::die);
}

/// Snapshots every few entries, and hardly any log behind them.
fn eager(mut config: ShellConfig) -> ShellConfig {
    config.node.snapshot_entries = 40;
    config.node.log_keep_entries = 5;
    config.node.cache_entries_max = 16;
    config
}

fn take_many(node: &Running, locks: std::ops::Range<u32>) {
    for number in locks {
        granted_fence(&node.acquire(format!("lock {number}").as_bytes()));
    }
}

#[test]
fn a_node_that_missed_much_comes_back_by_snapshot() {
    let root = tempfile::tempdir().unwrap();
    let configs: Vec<ShellConfig> = cluster(root.path(), 3).into_iter().map(eager).collect();
    let mut nodes: Vec<Running> = configs.iter().map(Running::start).collect();
    take_many(&nodes[0], 0..20);
    nodes.remove(2).stop();
    take_many(&nodes[0], 20..400);
    nodes.push(Running::start(&configs[2]));
    let applied = nodes[0].status().applied;
    eventually("caught up", || nodes[2].status().applied >= applied);
    // And once more from its own disk: what it received is what it starts from.
    nodes.remove(2).stop();
    nodes.push(Running::start(&configs[2]));
    eventually("started again", || nodes[2].status().applied >= applied);
    let again = nodes[2].acquire(b"lock 399");
    assert_eq!(granted_fence(&again), granted_fence(&nodes[0].acquire(b"lock 399")));
    nodes.into_iter().for_each(Running::stop);
}

/// The sizes of all files in a folder.
fn file_sizes(folder: &Path) -> Vec<u64> {
    // A file may go between the look at the folder and the look at the file.
    let files = std::fs::read_dir(folder).unwrap();
    files.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len())).collect()
}

#[test]
fn snapshots_made_and_received_take_the_place_of_older_ones() {
    let root = tempfile::tempdir().unwrap();
    let configs: Vec<ShellConfig> = cluster(root.path(), 3).into_iter().map(eager).collect();
    let mut nodes: Vec<Running> = configs.iter().map(Running::start).collect();
    for round in 0..3 {
        // One misses the round, and receives a snapshot after it.
        let missing = nodes.remove(0);
        let at = missing.id as usize - 1;
        missing.stop();
        take_many(&nodes[0], 150 * round..150 * (round + 1));
        nodes.push(Running::start(&configs[at]));
        let applied = nodes[0].status().applied;
        eventually("caught up", || nodes[2].status().applied >= applied);
        for config in &configs {
            // The current one, and one that waits to be confirmed.
            let folder = config.data.join("snapshots");
            eventually("two snapshots at most", || file_sizes(&folder).len() <= 2);
        }
    }
    nodes.into_iter().for_each(Running::stop);
}

/// One life of a log writer, which is given task after task.
fn write_log(config: &ShellConfig, tasks: Vec<PersistTask>) {
    let (dir, identity, store) = startup::open_data(config).unwrap();
    let registry = PeerRegistry::open(dir, identity, String::new(), PeerSecurity::Plain, vec![]).unwrap();
    let (handle, mut endpoint) = connect(1_000);
    let (transport, peers) = Transport::start(Arc::new(registry), None, Arc::new(handle.clone())).unwrap();
    let reserve = Reserve::hold(&config.data, 0).unwrap();
    let log = LogWriter::new(Box::new(store), reserve, config.log.tidy_bytes(), Arc::default());
    let (sender, inbox) = sync_channel(1);
    std::thread::scope(|scope| {
        let (transport, handle) = (&transport, &handle);
        scope.spawn(move || log.run(&inbox, transport, handle, Clock::start()));
        for task in tasks {
            let written = task.number;
            sender.send(task).unwrap();
            let mut inputs = Vec::new();
            while inputs.is_empty() {
                endpoint.collect(PATIENCE, WakeFilter { requests: 1, durable: true }, &mut inputs);
            }
            let is_written =
                |input: &Input| matches!(input, Input::Persisted { number } if *number == written);
            assert!(inputs.iter().all(is_written), "{inputs:?}");
        }
        drop(sender);
    });
    transport.stop();
    peers.join().unwrap();
}

/// Old log files went ten seconds after a start and every ten seconds from then on: the log of a node that was restarted more often
/// grew until its disk was full, and so did that of one on a fast disk.
#[test]
fn old_log_files_go_at_every_start_and_with_every_few_files() {
    const LOG: EngineLimits = EngineLimits { file_bytes: 16 << 10, purge_bytes: 64 << 10 };
    const ENTRY_BYTES: u64 = 1_000;
    // Entries of a short life: less than what old files are looked for after.
    const SHORT: u64 = 20;
    for (lives, entries) in [(30, SHORT), (1, 30 * SHORT)] {
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut config = ShellConfig::single(1, 1, root.path().join("one"), Clock::start());
        config.log = LOG;
        let mut last = 1;
        for life in 0..lives {
            let task = |index| {
                let data = vec![b'x'; ENTRY_BYTES as usize].into();
                let entry = raft::eraftpb::Entry { index, term: 1, data, ..Default::default() };
                let hard_state = raft::eraftpb::HardState { term: 1, commit: 1, ..Default::default() };
                let at = LogPosition { index: index - 1, term: 1 };
                // Every tenth comes with a snapshot, behind which the log goes.
                let compacts = index % 10 == 0;
                PersistTask {
                    number: index,
                    entries: vec![entry],
                    hard_state: Some(hard_state),
                    snapshot: compacts.then(|| SnapshotMeta { at, ..SnapshotMeta::founding(&[]) }),
                    compact: compacts.then_some(at),
                    must_sync: true,
                    ..PersistTask::default()
                }
            };
            write_log(&config, (last + 1..=last + entries).map(task).collect());
            last += entries;
            let log_bytes: u64 = file_sizes(&config.data.join("log")).iter().sum();
            assert!(log_bytes < 4 * LOG.purge_bytes, "{log_bytes} bytes of log after life {life} of {lives}");
        }
        assert!(last * ENTRY_BYTES > 8 * LOG.purge_bytes, "too little is written to tell");
    }
}

/// Many pieces, and a connection that is dialled only when the first of them is to be sent.
#[test]
fn a_snapshot_of_many_pieces_arrives_whole() {
    let root = tempfile::tempdir().unwrap();
    let configs: Vec<ShellConfig> = cluster(root.path(), 3).into_iter().map(eager).collect();
    let mut nodes: Vec<Running> = configs.iter().map(Running::start).collect();
    take_many(&nodes[0], 0..5);
    nodes.remove(2).stop();
    let long = "x".repeat(450);
    for round in 0..60 {
        let pending: Vec<_> = (0..100)
            .map(|number| nodes[0].begin_acquire(format!("{round} {number} {long}").as_bytes()))
            .collect();
        for reply in pending {
            granted_fence(&block_on(reply));
        }
    }
    let began = Instant::now();
    nodes.push(Running::start(&configs[2]));
    eventually("caught up", || nodes[2].status().applied > 60);
    let took = began.elapsed();
    // A lost piece is waited for ten seconds.
    assert!(took < Duration::from_secs(9), "pieces were lost and waited for: {took:?}");
    let name = format!("59 99 {long}");
    assert_eq!(
        granted_fence(&nodes[2].acquire(name.as_bytes())),
        granted_fence(&nodes[0].acquire(name.as_bytes()))
    );
    nodes.into_iter().for_each(Running::stop);
}

#[test]
fn a_node_joins_a_running_cluster_and_leaves_it() {
    let root = tempfile::tempdir().unwrap();
    let mut configs: Vec<ShellConfig> = cluster(root.path(), 4).into_iter().map(eager).collect();
    let mut joining = configs.pop().unwrap();
    let (id, addr) = joining.cluster.pop().unwrap();
    joining.join = true;
    for config in &mut configs {
        config.cluster.pop();
    }
    let nodes: Vec<Running> = configs.iter().map(Running::start).collect();
    take_many(&nodes[0], 0..100);
    let joined = Running::start(&joining);
    let reply = block_on(nodes[1].handle.admin(AdminRequest::Add { id, addr }));
    assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    eventually("a voter among four", || joined.status().voters == 4);
    assert_eq!(
        granted_fence(&joined.acquire(b"lock 7")),
        granted_fence(&nodes[0].acquire(b"lock 7")),
        "the new node serves"
    );
    let reply = block_on(nodes[2].handle.admin(AdminRequest::Remove { id }));
    assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    eventually("three voters", || nodes.iter().all(|node| node.status().voters == 3));
    eventually("it knows", || joined.status().role == Role::Removed);
    take_many(&nodes[0], 200..210);
    joined.stop();
    nodes.into_iter().for_each(Running::stop);
}

#[test]
fn a_wiped_disk_under_an_old_id_stays_out() {
    let root = tempfile::tempdir().unwrap();
    let configs = cluster(root.path(), 3);
    let mut nodes: Vec<Running> = configs.iter().map(Running::start).collect();
    for node in &nodes {
        take_many(node, 0..5);
    }
    nodes.remove(2).stop();
    std::fs::remove_dir_all(&configs[2].data).unwrap();
    nodes.push(Running::start(&configs[2]));
    take_many(&nodes[0], 5..20);
    // Several election time-outs long the others refuse it, and it them.
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        assert_eq!((nodes[2].status().leader, nodes[2].status().applied > 1), (0, false));
        std::thread::sleep(Duration::from_millis(20));
    }
    take_many(&nodes[1], 20..25);
    nodes.into_iter().for_each(Running::stop);
}

#[test]
fn a_disk_that_fails_ends_the_node_with_one_line() {
    let root = tempfile::tempdir().unwrap();
    let node = Running::start(&ShellConfig::single(1, 1, root.path().join("one"), Clock::start()));
    granted_fence(&node.acquire(b"wallet"));
    let fatal = node.fatal.clone();
    node.die();
    let reason = fatal.lock().unwrap().clone().unwrap();
    assert!(reason.contains("no space left") && reason.lines().count() == 1, "{reason}");
}

#[test]
fn the_writer_reports_what_the_log_refuses() {
    use crate::storage::datadir::{DataDir, NodeIdentity, StoreId};
    use crate::storage::memory::MemoryDisk;
    let root = tempfile::tempdir().unwrap();
    let identity = NodeIdentity { node_id: 1, cluster_id: 1, store_id: StoreId(1), log_made: true };
    let dir = Arc::new(DataDir::open(root.path()).unwrap());
    let registry =
        Arc::new(PeerRegistry::open(dir, identity, String::new(), PeerSecurity::Plain, vec![]).unwrap());
    let (handle, mut endpoint) = connect(1_000);
    let (transport, peers) = Transport::start(registry, None, Arc::new(handle.clone())).unwrap();
    let store = MemoryDisk::new(SnapshotMeta::founding(&[(1, "a".to_string())])).open().unwrap();
    let (tasks, inbox) = sync_channel(8);
    let entry = |index| raft::eraftpb::Entry { index, term: 1, ..Default::default() };
    for (number, index) in [(1, 2), (2, 3), (3, 99)] {
        let entries = vec![entry(index)];
        tasks.send(PersistTask { number, entries, must_sync: true, ..PersistTask::default() }).unwrap();
    }
    drop(tasks);
    let reserve = Reserve::hold(root.path(), 0).unwrap();
    let log = LogWriter::new(Box::new(store), reserve, 0, Arc::default());
    log.run(&inbox, &transport, &handle, Clock::start());
    let mut inputs = Vec::new();
    endpoint.collect(Duration::ZERO, Default::default(), &mut inputs);
    assert!(matches!(inputs.last(), Some(Input::PersistFailed { .. })), "{inputs:?}");
    transport.stop();
    peers.join().unwrap();
}
