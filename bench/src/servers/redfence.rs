//! `redfence serve` on one to five nodes of one cluster, with its default settings.

use super::flapping::FlappingRelay;
use super::site::Site;
use super::{call, free_port_list, temporary_directory, Process, STARTS_WITHIN, START_ATTEMPTS};
use crate::resp;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a node logs when it has written one.
const SNAPSHOT_MADE: &str = "snapshot stored";

pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

/// What protects a cluster; nothing by default, as on loopback.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    /// A secret between the nodes, and all between them encrypted.
    pub(crate) peers: bool,
    /// Where `server.crt` and `server.key` are, for TLS on a second port.
    pub(crate) certificates: Option<PathBuf>,
}

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    binary: PathBuf,
    arguments: Vec<String>,
    /// Where each node listens for the others.
    peers: Vec<SocketAddr>,
    /// Where each listens for clients with TLS, if there are certificates.
    tls: Vec<SocketAddr>,
    directory: tempfile::TempDir,
    pub(crate) site: Arc<Site>,
    security: Security,
}

impl Cluster {
    /// Ready to serve: all nodes answer and know one leader.
    pub(crate) fn start(binary: &Path, count: usize, arguments: &[&str]) -> Result<Cluster, String> {
        Cluster::start_at(binary, count, arguments, Site::Together)
    }

    pub(crate) fn start_at(
        binary: &Path,
        count: usize,
        arguments: &[&str],
        site: Site,
    ) -> Result<Cluster, String> {
        Cluster::start_secured(binary, count, arguments, site, &Security::default())
    }

    pub(crate) fn start_secured(
        binary: &Path,
        count: usize,
        arguments: &[&str],
        site: Site,
        security: &Security,
    ) -> Result<Cluster, String> {
        let site = Arc::new(site);
        let mut last = String::new();
        for _ in 0..START_ATTEMPTS {
            match Cluster::try_start(binary, count, arguments, &site, security) {
                Ok(cluster) => return Ok(cluster),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_start(
        binary: &Path,
        count: usize,
        arguments: &[&str],
        site: &Arc<Site>,
        security: &Security,
    ) -> Result<Cluster, String> {
        let directory = temporary_directory()?;
        let ports = free_port_list(3 * count)?;
        let addresses: Vec<SocketAddr> =
            ports.iter().enumerate().map(|(at, port)| site.address(at % count, *port)).collect();
        let (clients, others) = addresses.split_at(count);
        let (peers, tls) = others.split_at(count);
        let mut cluster = Cluster {
            nodes: Vec::new(),
            binary: binary.to_path_buf(),
            arguments: arguments.iter().map(|argument| (*argument).to_string()).collect(),
            peers: peers.to_vec(),
            tls: tls.to_vec(),
            directory,
            site: Arc::clone(site),
            security: security.clone(),
        };
        for (at, address) in clients.iter().enumerate() {
            cluster.nodes.push(Node { process: cluster.launch(at, *address)?, address: *address });
        }
        for at in 0..count {
            let address = cluster.nodes[at].address;
            let log = cluster.log(at);
            let ready = cluster.nodes[at].process.await_listening(address);
            ready.map_err(|error| format!("{error}: {}", last_line(&log)))?;
        }
        cluster.await_leader()?;
        Ok(cluster)
    }

    fn log(&self, at: usize) -> PathBuf {
        self.directory.path().join(format!("log{}", at + 1))
    }

    fn launch(&self, at: usize, address: SocketAddr) -> Result<Process, String> {
        let mut command = self.site.command(at, &self.binary);
        command.arg("serve").args(["--id", &(at + 1).to_string()]);
        match &self.security.certificates {
            Some(certificates) => {
                let tls = self.tls[at].to_string();
                command.args(["--listen", &tls, "--plain-listen", &address.to_string()]);
                command.arg("--tls-cert").arg(certificates.join("server.crt"));
                command.arg("--tls-key").arg(certificates.join("server.key"));
            }
            None => {
                command.args(["--listen", &address.to_string()]);
            }
        }
        command.arg("--data").arg(self.directory.path().join(format!("node{}", at + 1)));
        if self.peers.len() > 1 {
            let member = |(at, peer): (usize, &SocketAddr)| {
                self.site.advertised(*peer).map(|address| format!("{}={address}", at + 1))
            };
            let members = self.peers.iter().enumerate().map(member).collect::<Result<Vec<_>, _>>()?;
            let own = self.peers[at].to_string();
            command.args(["--cluster", &members.join(","), "--peer-listen", &own]);
        }
        if !self.site.is_loopback() {
            command.args(["--protected-mode", "no"]);
        }
        if self.security.peers || !self.site.is_loopback() {
            command.arg("--peer-secret-file").arg(self.peer_secret()?);
        }
        command.args(&self.arguments);
        Process::start(&mut command, &self.log(at))
    }

    /// Nodes that speak to each other beyond loopback must have one.
    fn peer_secret(&self) -> Result<PathBuf, String> {
        let file = self.directory.path().join("peer-secret");
        let write = || {
            let mut random = [0; 32];
            std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
            let mut made =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
            random.iter().try_for_each(|byte| write!(made, "{byte:02x}"))
        };
        match write() {
            // The others have the same.
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(format!("cannot write {}: {error}", file.display()))
            }
            _ => Ok(file),
        }
    }

    /// Nodes that are started from now on run this one.
    pub(crate) fn replace_program(&mut self, binary: &Path) {
        self.binary = binary.to_path_buf();
    }

    /// Starts a node again that was killed; its data is where it was.
    pub(crate) fn restart(&mut self, at: usize) -> Result<(), String> {
        let address = self.nodes[at].address;
        self.nodes[at].process = self.launch(at, address)?;
        self.nodes[at].process.await_listening(address)
    }

    /// SIGKILL for all, and starts them again at once; nothing is waited for.
    pub(crate) fn restart_all(&mut self) -> Result<(), String> {
        for node in &mut self.nodes {
            node.process.kill();
        }
        for at in 0..self.nodes.len() {
            self.nodes[at].process = self.launch(at, self.nodes[at].address)?;
        }
        Ok(())
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.address).collect()
    }

    /// The relay through which the others reach this node, where the site has such.
    pub(crate) fn with_flapping_relay(&self, at: usize, act: impl FnOnce(&FlappingRelay)) {
        if let Site::Flapping(relays) = &*self.site {
            let relays = relays.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(relay) = relays.iter().find(|relay| relay.to == self.peers[at]) {
                act(relay);
            }
        }
    }

    pub(crate) fn tls_address(&self, at: usize) -> SocketAddr {
        self.tls[at]
    }

    /// By the nodes' logs.
    pub(crate) fn snapshots_made(&self) -> usize {
        let of_node = |at: usize| {
            let log = std::fs::read_to_string(self.log(at)).unwrap_or_default();
            log.lines().filter(|line| line.contains(SNAPSHOT_MADE)).count()
        };
        (0..self.nodes.len()).map(of_node).sum()
    }

    pub(crate) fn process_ids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.process.id()).collect()
    }

    /// The leader's place, once every node names the same.
    pub(crate) fn await_leader(&self) -> Result<usize, String> {
        let deadline = Instant::now() + STARTS_WITHIN;
        while Instant::now() < deadline {
            let named: Vec<Option<usize>> = self.nodes.iter().map(|node| leader_at(node.address)).collect();
            if let Some(Some(leader)) = named.first() {
                if named.iter().all(|other| *other == Some(*leader)) {
                    return Ok(leader - 1);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("no leader after {} s", STARTS_WITHIN.as_secs()))
    }
}

/// Whom this node thinks the leader; none where it has no quorum.
pub(crate) fn leader_at(address: SocketAddr) -> Option<usize> {
    let reply = call(address, &[b"LOCK.CLUSTER", b"INFO"]).ok()?;
    number_after(&reply, b"leader").filter(|leader| *leader > 0).map(|leader| leader as usize)
}

/// The newest term that this node knows.
pub(crate) fn term_at(address: SocketAddr) -> Option<i64> {
    number_after(&call(address, &[b"LOCK.CLUSTER", b"INFO"]).ok()?, b"term")
}

/// The integer that follows a key in a flat map. The same word may also be a value: `role` is `leader` too.
fn number_after(reply: &[u8], key: &[u8]) -> Option<i64> {
    let lines: Vec<&[u8]> = resp::lines(reply).collect();
    let value = lines.windows(2).filter(|pair| pair[0] == key).find_map(|pair| pair[1].strip_prefix(b":"))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().unwrap_or("nothing in its log").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_behind_its_key() {
        let reply = b"*4\r\n$4\r\nrole\r\n$6\r\nleader\r\n$6\r\nleader\r\n:3\r\n";
        assert_eq!(number_after(reply, b"term"), None);
        assert_eq!(number_after(reply, b"leader"), Some(3));
    }
}
