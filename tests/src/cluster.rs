//! `redfence serve` as real processes: one node or several, found, killed, paused and started again.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::artifacts;
use crate::client::{Client, SocketWire};
use crate::process::{free_address, poll_until, Process, POLL_EVERY};
use crate::relay::Relay;
use crate::resp::{Connection, Protocol, Value};

const READY_WITHIN: Duration = Duration::from_secs(20);
/// A port found free may be taken before a node binds it: the whole cluster is then started again on others.
const STARTS_MAX: usize = 3;

#[derive(Clone, Default)]
pub struct Options {
    pub nodes: usize,
    /// More flags for every node, e.g. `["--default-tier", "efficiency"]`.
    pub flags: Vec<String>,
    /// Whether each node has a Redlock listener.
    pub redlock: bool,
    /// Where each node runs; none: all on loopback.
    pub hosts: Vec<Host>,
    /// Whether peers reach each node through a relay, so that their connections can be cut.
    pub relayed: bool,
    /// The program of each node; none: the one under test.
    pub programs: Vec<PathBuf>,
    /// What is in the file with the peer secrets; none: traffic between nodes goes in clear.
    pub peer_secret: Option<String>,
}

/// Random enough to be taken.
pub const PEER_SECRET: &str = "7b1f9c02d4e85a6630aa17fe9b2c4d5861708f93a2b4c6d8e0f1325476980abc";

/// Where a node runs. The default is this machine as it is.
#[derive(Clone, Debug)]
pub struct Host {
    pub ip: IpAddr,
    /// Words before the program's, e.g. to enter a network namespace.
    pub prefix: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// The folder its data lies in; the cluster's own without.
    pub disk: Option<PathBuf>,
}

impl Default for Host {
    fn default() -> Host {
        Host { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), prefix: Vec::new(), environment: Vec::new(), disk: None }
    }
}

impl Host {
    /// On loopback a port that is free now. Elsewhere the node has its address to itself.
    fn address(&self, port: u16) -> SocketAddr {
        match self.ip.is_loopback() {
            true => free_address(),
            false => SocketAddr::new(self.ip, port),
        }
    }
}

const CLIENT_PORT: u16 = 6380;
const PEER_PORT: u16 = 7380;
const REDLOCK_PORT: u16 = 6390;

impl Options {
    pub fn nodes(nodes: usize) -> Options {
        Options { nodes, ..Options::default() }
    }

    pub fn redlock(mut self) -> Options {
        self.redlock = true;
        self
    }

    pub fn relayed(mut self) -> Options {
        self.relayed = true;
        self
    }

    /// Nodes encrypt what they send each other.
    pub fn with_peer_secret(mut self) -> Options {
        self.peer_secret = Some(PEER_SECRET.to_owned());
        self
    }

    pub fn flag(mut self, name: &str, value: &str) -> Options {
        self.flags.push(name.to_owned());
        self.flags.push(value.to_owned());
        self
    }
}

pub struct Node {
    pub id: u64,
    pub address: SocketAddr,
    peer_address: SocketAddr,
    /// In front of the peer address, which others do not know then.
    relay: Option<Relay>,
    redlock_address: Option<SocketAddr>,
    process: Option<Process>,
    founder: bool,
    program: Option<PathBuf>,
    pub host: Host,
    prefix_once: Vec<String>,
}

impl Node {
    fn new(id: u64, host: Host, founder: bool) -> Node {
        let (address, peer_address) = (host.address(CLIENT_PORT), host.address(PEER_PORT));
        Node {
            id,
            address,
            peer_address,
            relay: None,
            redlock_address: None,
            process: None,
            founder,
            program: None,
            host,
            prefix_once: Vec::new(),
        }
    }

    /// Cuts all connections that peers have dialled to this node. Answers how many there were.
    pub fn cut_peers(&self) -> usize {
        self.relay.as_ref().expect("a relayed cluster").cut()
    }

    fn founding_address(&self) -> SocketAddr {
        self.relay.as_ref().map_or(self.peer_address, |relay| relay.address)
    }

    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    pub fn process(&self) -> &Process {
        self.process.as_ref().unwrap_or_else(|| panic!("node {} does not run", self.id))
    }

    /// A client in RESP2. A node that was just started may not listen yet.
    pub fn client(&self) -> Client {
        let open = || SocketWire::open(self.address, Protocol::Resp2);
        let mut wire = open();
        let _ = poll_until(READY_WITHIN, || {
            let starts = wire.is_err() && self.process().exit_status().is_none();
            if starts {
                wire = open();
            }
            !starts
        });
        let wire =
            wire.unwrap_or_else(|error| panic!("node {}: {error}\n{}", self.id, self.process().log_tail()));
        Client::new(Box::new(wire), Protocol::Resp2)
    }

    /// A client at the node's Redlock listener, in RESP2.
    pub fn redlock_client(&self) -> Client {
        let address = self.redlock_address.expect("a cluster with Redlock listeners");
        let wire = SocketWire::open(address, Protocol::Resp2)
            .unwrap_or_else(|error| panic!("node {}: {error}\n{}", self.id, self.process().log_tail()));
        Client::new(Box::new(wire), Protocol::Resp2)
    }

    pub fn ask(&self, args: &[&str], timeout: Duration) -> Option<Value> {
        Connection::open(self.address).ok()?.ask(args, timeout).ok()
    }

    /// One field of `LOCK.CLUSTER INFO`, asked of this very node.
    pub fn cluster_info(&self, field: &str) -> Option<Value> {
        let reply = self.ask(&["LOCK.CLUSTER", "INFO"], Duration::from_secs(2))?;
        let Value::Array(items) = reply else { return None };
        items.chunks_exact(2).find(|pair| pair[0] == Value::bulk(field)).map(|pair| pair[1].clone())
    }

    fn believes_in_leader(&self) -> Option<u64> {
        match self.cluster_info("leader")? {
            Value::Integer(0) => None,
            Value::Integer(id) => u64::try_from(id).ok(),
            _ => None,
        }
    }
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    /// The founding list, the same for ever.
    founders: String,
    flags: Vec<String>,
    folder: TempDir,
}

impl Cluster {
    /// Starts all nodes and waits for a leader that every node knows.
    pub fn start(options: &Options) -> Cluster {
        let mut last = String::new();
        for _ in 0..STARTS_MAX {
            match Cluster::try_start(options) {
                Ok(cluster) => return cluster,
                Err(error) => last = error,
            }
            if !last.contains("port taken") {
                break;
            }
        }
        panic!("redfence did not start: {last}");
    }

    fn try_start(options: &Options) -> Result<Cluster, String> {
        let folder = TempDir::with_prefix("redfence-cluster-").expect("a temporary directory");
        let nodes: Vec<Node> = (1..=options.nodes as u64)
            .zip(options.hosts.iter().cloned().chain(std::iter::repeat_with(Host::default)))
            .map(|(id, host)| {
                let redlock_address = options.redlock.then(|| host.address(REDLOCK_PORT));
                let node = Node::new(id, host, true);
                let relay = options.relayed.then(|| Relay::start(node.peer_address));
                let program = options.programs.get(id as usize - 1).cloned();
                Node { redlock_address, relay, program, ..node }
            })
            .collect();
        let founders: Vec<String> =
            nodes.iter().map(|node| format!("{}={}", node.id, node.founding_address())).collect();
        let mut cluster =
            Cluster { nodes, founders: founders.join(","), flags: options.flags.clone(), folder };
        if let Some(secret) = &options.peer_secret {
            cluster.set_peer_secret(secret);
            let file = cluster.peer_secret_file().to_string_lossy().into_owned();
            cluster.flags.extend(["--peer-secret-file".to_owned(), file]);
        }
        for index in 0..cluster.nodes.len() {
            cluster.launch(index)?;
        }
        let deadline = Instant::now() + READY_WITHIN;
        while cluster.agreed_leader().is_none() {
            if let Some(node) = cluster.nodes.iter().find(|node| node.process().exit_status().is_some()) {
                return Err(format!("node {} ended\n{}", node.id, node.process().log_tail()));
            }
            if Instant::now() > deadline {
                return Err(format!("no leader within {READY_WITHIN:?}\n{}", cluster.log()));
            }
            std::thread::sleep(POLL_EVERY);
        }
        Ok(cluster)
    }

    fn peer_secret_file(&self) -> PathBuf {
        self.folder.path().join("peer-secret")
    }

    /// Replaces the file with the peer secrets, which all nodes share, at one stroke.
    pub fn set_peer_secret(&self, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let fresh = self.folder.path().join("peer-secret.new");
        std::fs::write(&fresh, text).expect("a file in our own folder");
        std::fs::set_permissions(&fresh, PermissionsExt::from_mode(0o600)).expect("our own file");
        std::fs::rename(&fresh, self.peer_secret_file()).expect("a file in our own folder");
    }

    /// The leader all running nodes agree on.
    pub fn agreed_leader(&self) -> Option<u64> {
        let mut beliefs = self.nodes.iter().filter(|node| node.runs()).map(Node::believes_in_leader);
        let first = beliefs.next()??;
        beliefs.all(|belief| belief == Some(first)).then_some(first)
    }

    pub fn wait_for_leader(&self, timeout: Duration) -> u64 {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(id) = self.agreed_leader() {
                return id;
            }
            assert!(Instant::now() < deadline, "no leader within {timeout:?}\n{}", self.log());
            std::thread::sleep(POLL_EVERY);
        }
    }

    pub fn node(&self, id: u64) -> &Node {
        self.nodes.iter().find(|node| node.id == id).unwrap_or_else(|| panic!("there is no node {id}"))
    }

    /// Any node that is not the leader; the only node of a cluster of one.
    pub fn follower(&self, leader: u64) -> &Node {
        self.nodes.iter().find(|node| node.runs() && node.id != leader).unwrap_or(&self.nodes[0])
    }

    /// The ids of all running nodes but the leader.
    pub fn followers(&self, leader: u64) -> Vec<u64> {
        self.nodes.iter().filter(|node| node.runs() && node.id != leader).map(|node| node.id).collect()
    }

    /// kill -9
    pub fn kill(&mut self, id: u64) {
        self.slot(id).process = None;
    }

    /// Cuts a node of a relayed cluster off from all others, for good. Clients and the upstream Redis still reach it.
    pub fn cut_off(&self, id: u64) {
        for node in &self.nodes {
            let relay = node.relay.as_ref().expect("a relayed cluster");
            match node.id == id {
                true => relay.close(),
                false => relay.bar(id),
            }
        }
    }

    /// Takes back every [`Cluster::cut_off`].
    pub fn heal(&self) {
        self.nodes.iter().for_each(|node| node.relay.as_ref().expect("a relayed cluster").open());
    }

    pub fn pause(&self, id: u64) {
        self.node(id).process().signal(libc::SIGSTOP);
    }

    pub fn resume(&self, id: u64) {
        self.node(id).process().signal(libc::SIGCONT);
    }

    /// Starts a killed node on its old data and addresses.
    pub fn restart(&mut self, id: u64) {
        assert!(!self.node(id).runs(), "node {id} still runs");
        let index = self.nodes.iter().position(|node| node.id == id).expect("a node of this cluster");
        self.launch(index).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The program of a node from its next start on.
    pub fn set_program(&mut self, id: u64, program: &Path) {
        self.slot(id).program = Some(program.to_owned());
    }

    /// More words before the program's at the next start of a node, and at that one alone.
    pub fn prefix_once(&mut self, id: u64, words: &[&str]) {
        self.slot(id).prefix_once = words.iter().map(|word| (*word).to_string()).collect();
    }

    /// The founding list, as `--cluster` takes it.
    pub fn founders(&self) -> &str {
        &self.founders
    }

    /// Where a node keeps its data.
    pub fn data(&self, id: u64) -> PathBuf {
        self.data_of(self.node(id))
    }

    fn data_of(&self, node: &Node) -> PathBuf {
        node.host.disk.as_deref().unwrap_or(self.folder.path()).join(format!("data-{}", node.id))
    }

    /// Starts a node that is no founder: it waits to be added. Answers its peer address for `LOCK.CLUSTER ADD`.
    pub fn join(&mut self, id: u64) -> SocketAddr {
        self.join_on(id, Host::default())
    }

    pub fn join_on(&mut self, id: u64, host: Host) -> SocketAddr {
        self.join_as(id, host, None)
    }

    /// As [`Cluster::join`], with a program of its own.
    pub fn join_as(&mut self, id: u64, host: Host, program: Option<PathBuf>) -> SocketAddr {
        self.nodes.push(Node { program, ..Node::new(id, host, false) });
        self.restart(id);
        self.node(id).peer_address
    }

    /// Kills a node that is no longer a member and forgets it, its data with it.
    pub fn discard(&mut self, id: u64) -> Host {
        self.kill(id);
        let data = self.data(id);
        let at = self.nodes.iter().position(|node| node.id == id).expect("a node of this cluster");
        // A node that never got as far as to have data leaves none.
        let _ = std::fs::remove_dir_all(data);
        self.nodes.remove(at).host
    }

    /// Waits until a stopped or failing node's process has ended, and forgets it.
    pub fn wait_for_end(&mut self, id: u64, timeout: Duration) -> (ExitStatus, String) {
        let process = self.node(id).process();
        let status = process.wait(timeout);
        let log = process.log_tail();
        let status = status.unwrap_or_else(|| panic!("node {id} still runs\n{log}"));
        self.kill(id);
        (status, log)
    }

    pub fn log(&self) -> String {
        self.nodes.iter().filter_map(|node| node.process.as_ref()).map(Process::log_tail).collect()
    }

    fn slot(&mut self, id: u64) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.id == id).unwrap_or_else(|| panic!("there is no node {id}"))
    }

    fn launch(&mut self, index: usize) -> Result<(), String> {
        let program = match &self.nodes[index].program {
            Some(program) => program.clone(),
            None => artifacts::redfence()?,
        };
        let command = self.command(&program, index);
        let node = &mut self.nodes[index];
        node.prefix_once.clear();
        let log = self.folder.path().join(format!("node-{}.log", node.id));
        node.process = Some(Process::start(&format!("redfence node {}", node.id), command, &log)?);
        Ok(())
    }

    fn command(&self, program: &Path, index: usize) -> Command {
        let node = &self.nodes[index];
        let mut words =
            node.host.prefix.iter().chain(&node.prefix_once).map(OsStr::new).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().expect("at least the program"));
        command.args(words);
        command.envs(node.host.environment.iter().cloned());
        command.current_dir(self.folder.path()).arg("serve");
        command.args(["--id", &node.id.to_string()]);
        command.args([
            "--listen",
            &node.address.to_string(),
            "--peer-listen",
            &node.peer_address.to_string(),
        ]);
        if node.founder {
            command.args(["--cluster", &self.founders]);
        } else {
            command.arg("--join");
        }
        if let Some(address) = node.redlock_address {
            command.args(["--redlock-listen", &address.to_string()]);
        }
        command.arg("--data").arg(self.data_of(node));
        command.args(&self.flags);
        command
    }
}
