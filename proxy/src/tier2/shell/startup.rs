//! From a configuration to an open data directory: first start, restart, and every reason not to start.

use super::{exit_on_fatal, OnFatal};
use crate::clock::Clock;
use crate::node_api::{ClusterMember, NodeId, SnapshotMeta, NO_ADDRESS};
use crate::storage::datadir::{DataDir, NodeIdentity, StoreId};
use crate::storage::engine::{EngineLimits, EngineStore};
use crate::storage::reserve::RESERVE_BYTES;
use crate::storage::StorageError;
use crate::tier2::config::NodeConfig;
use crate::tier2::handle::TIMEOUT_MS_DEFAULT;
use crate::transport::security::{is_loopback, PeerSecurity};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// What the program decides about its node.
#[derive(Clone)]
pub struct ShellConfig {
    /// The node's id, and its times and sizes.
    pub node: NodeConfig,
    pub data: PathBuf,
    /// Where peers may dial in. `None`: a single node that can never be joined by others.
    pub peer_listen: Option<SocketAddr>,
    /// The address peers dial; the founders' list says so where this is `None`.
    pub advertise: Option<String>,
    /// `--cluster`: the founding members. Only the first start of a data directory looks at it; from then on membership is
    /// what the log says.
    pub cluster: Vec<(NodeId, String)>,
    /// This node is not a founder: it waits to be added by a running cluster.
    pub join: bool,
    /// What protects the traffic between peers.
    pub peer_security: PeerSecurity,
    pub timeout_ms: u64,
    pub log: EngineLimits,
    /// Size of the reserve file; 0 for none.
    pub reserve_bytes: u64,
    pub clock: Clock,
    pub on_fatal: OnFatal,
}

impl ShellConfig {
    /// A single node with no peers. `seed` draws election time-outs: any number, another one on each node.
    #[must_use]
    pub fn single(id: NodeId, seed: u64, data: PathBuf, clock: Clock) -> ShellConfig {
        ShellConfig {
            node: NodeConfig::new(id, seed),
            data,
            peer_listen: None,
            advertise: None,
            cluster: Vec::new(),
            join: false,
            peer_security: PeerSecurity::Plain,
            timeout_ms: TIMEOUT_MS_DEFAULT,
            log: EngineLimits::default(),
            reserve_bytes: RESERVE_BYTES,
            clock,
            on_fatal: exit_on_fatal(),
        }
    }

    /// The address other members know this node by.
    pub(super) fn own_address(&self) -> String {
        let listed = self.cluster.iter().find(|(id, _)| *id == self.node.id).map(|(_, addr)| addr.clone());
        let listening = self.peer_listen.map(|addr| addr.to_string());
        self.advertise.clone().or(listed).or(listening).unwrap_or_else(|| NO_ADDRESS.to_string())
    }

    fn founders(&self) -> Vec<(NodeId, String)> {
        match self.cluster.is_empty() {
            true => vec![(self.node.id, self.own_address())],
            false => self.cluster.clone(),
        }
    }
}

/// Why a node does not start. Each prints as one line.
#[derive(Debug)]
pub enum StartError {
    Storage(StorageError),
    PortTaken(SocketAddr),
    Listen { addr: SocketAddr, source: io::Error },
    NotInCluster { id: NodeId, members: Vec<NodeId> },
    DoubledMember(NodeId),
    Unprotected { id: NodeId, addr: String },
    SingleNode { named: usize },
    Node(String),
    Threads(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Storage(e) => e.fmt(f),
            StartError::PortTaken(addr) => {
                write!(f, "port taken: another process listens at {addr} (peer address)")
            }
            StartError::Listen { addr, source } => write!(f, "cannot listen for peers at {addr}: {source}"),
            StartError::NotInCluster { id, members } => write!(
                f,
                "id not in the cluster: this is node {id}, but --cluster names {members:?}; \
                 to join a running cluster start with --join and LOCK.CLUSTER ADD it there"
            ),
            StartError::DoubledMember(id) => write!(f, "--cluster names node {id} twice"),
            StartError::Unprotected { id, addr } => write!(
                f,
                "node {id} of this cluster is at {addr}, beyond this machine: peers need --peer-secret-file or --peer-tls-cert"
            ),
            StartError::SingleNode { named } => write!(
                f,
                "this data is of a node that is a cluster by itself, and --cluster names {named} nodes: \
                 a node that was restored or first started without --cluster stays alone; \
                 restore it with --cluster, or start it without"
            ),
            StartError::Node(text) => write!(f, "{text}"),
            StartError::Threads(e) => write!(f, "cannot start the node's threads: {e}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<StorageError> for StartError {
    fn from(e: StorageError) -> StartError {
        StartError::Storage(e)
    }
}

/// Opens the data directory, making it at the first start.
pub(super) fn open_data(
    config: &ShellConfig,
) -> Result<(Arc<DataDir>, NodeIdentity, EngineStore), StartError> {
    check_cluster(config)?;
    let dir = DataDir::open(&config.data)?;
    let identity = match dir.identity()? {
        Some(identity) if identity.node_id != config.node.id => {
            return Err(StartError::Storage(StorageError::NotOurs(format!(
                "{} belongs to node {}, not to node {}",
                config.data.display(),
                identity.node_id,
                config.node.id
            ))));
        }
        Some(identity) if identity.log_made => identity,
        Some(_) | None => first_start(config, &dir)?,
    };
    let store = EngineStore::open(&dir, config.log)?;
    Ok((Arc::new(dir), identity, store))
}

/// The identity goes down twice: before the log, so that a half-made log is known for what it is, and after.
fn first_start(config: &ShellConfig, dir: &DataDir) -> Result<NodeIdentity, StartError> {
    let (cluster_id, first) = match config.join {
        true => (0, SnapshotMeta::joining()),
        false => (cluster_id(&config.founders()), SnapshotMeta::founding(&config.founders())),
    };
    let mut identity =
        NodeIdentity { node_id: config.node.id, cluster_id, store_id: StoreId::random()?, log_made: false };
    dir.save_identity(&identity)?;
    EngineStore::create(dir, config.log, first)?;
    identity.log_made = true;
    dir.save_identity(&identity)?;
    Ok(identity)
}

fn check_cluster(config: &ShellConfig) -> Result<(), StartError> {
    let mut members: Vec<NodeId> = config.cluster.iter().map(|(id, _)| *id).collect();
    members.sort_unstable();
    if let Some(pair) = members.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(StartError::DoubledMember(pair[0]));
    }
    if !config.join && !members.is_empty() && !members.contains(&config.node.id) {
        return Err(StartError::NotInCluster { id: config.node.id, members });
    }
    Ok(())
}

/// Members that the data names, whatever the command line says.
pub(super) fn check_members(config: &ShellConfig, members: &[ClusterMember]) -> Result<(), StartError> {
    if let [only] = members {
        // Each of them would be a majority by itself, and grant what the others have granted.
        let is_alone = only.id == config.node.id && only.addr == NO_ADDRESS;
        if is_alone && config.cluster.len() > 1 {
            return Err(StartError::SingleNode { named: config.cluster.len() });
        }
    }
    let others = members.iter().filter(|member| member.id != config.node.id);
    match others.into_iter().find(|member| !is_loopback(&member.addr)) {
        Some(member) if config.peer_security.is_plain() => {
            Err(StartError::Unprotected { id: member.id, addr: member.addr.clone() })
        }
        Some(_) | None => Ok(()),
    }
}

/// A hash of the sorted founding list: the same on every founder, and hardly ever the same for two clusters.
fn cluster_id(founders: &[(NodeId, String)]) -> u64 {
    let mut sorted: Vec<String> = founders.iter().map(|(id, addr)| format!("{id}={addr}")).collect();
    sorted.sort_unstable();
    let digest = Sha256::digest(sorted.join(",").as_bytes());
    let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    // A lower half of 0 stands for "not known yet".
    match u64::from_le_bytes(*first) {
        id if id as u32 == 0 => id | 1,
        id => id,
    }
}

/// Binds the peers' port with a message that says what is wrong.
pub(super) fn bind_peers(addr: SocketAddr) -> Result<std::net::TcpListener, StartError> {
    crate::transport::bind(addr).map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            StartError::PortTaken(addr)
        } else {
            StartError::Listen { addr, source }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(data: &std::path::Path) -> ShellConfig {
        let cluster = vec![(2, "b:2".to_string()), (1, "a:1".to_string())];
        ShellConfig { cluster, ..ShellConfig::single(1, 7, data.to_path_buf(), Clock::start()) }
    }

    fn line(outcome: Result<(Arc<DataDir>, NodeIdentity, EngineStore), StartError>) -> String {
        let text = outcome.map(|_| ()).unwrap_err().to_string();
        assert_eq!(text.lines().count(), 1);
        text
    }

    #[test]
    fn a_restart_keeps_the_identity_and_founders_agree_on_the_cluster() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = open_data(&config(one.path())).unwrap().1;
        assert_eq!(open_data(&config(one.path())).unwrap().1, first);
        let mut other = config(two.path());
        other.node.id = 2;
        other.cluster.reverse();
        let second = open_data(&other).unwrap().1;
        assert_eq!(second.cluster_id, first.cluster_id);
        assert_ne!(second.store_id, first.store_id);
    }

    #[test]
    fn every_refusal_is_one_clear_line() {
        let temp = tempfile::tempdir().unwrap();
        let held = open_data(&config(temp.path())).unwrap();
        assert!(line(open_data(&config(temp.path()))).starts_with("data directory in use"));
        drop(held);
        let mut stranger = config(temp.path());
        stranger.node.id = 2;
        assert!(line(open_data(&stranger)).contains("belongs to node 1, not to node 2"));
        stranger.node.id = 9;
        assert!(line(open_data(&stranger)).starts_with("id not in the cluster"));
        stranger.cluster.push((1, "c:3".to_string()));
        assert!(line(open_data(&stranger)).contains("names node 1 twice"));
        std::fs::remove_dir_all(temp.path().join("log")).unwrap();
        assert!(line(open_data(&config(temp.path()))).starts_with("data directory damaged"));
    }

    #[test]
    fn a_first_start_that_was_cut_short_is_begun_anew() {
        let temp = tempfile::tempdir().unwrap();
        let dir = DataDir::open(temp.path()).unwrap();
        let identity = NodeIdentity { node_id: 1, cluster_id: 5, store_id: StoreId(1), log_made: false };
        dir.save_identity(&identity).unwrap();
        std::fs::create_dir(temp.path().join("log")).unwrap();
        std::fs::write(temp.path().join("log").join("0000000000000001.raftlog"), b"half").unwrap();
        drop(dir);
        let (_, made, _) = open_data(&config(temp.path())).unwrap();
        assert!(made.log_made);
    }

    #[test]
    fn a_taken_port_is_named() {
        let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let text = bind_peers(holder.local_addr().unwrap()).unwrap_err().to_string();
        assert!(text.starts_with("port taken"), "{text}");
    }
}
