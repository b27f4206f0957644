//! The cluster that is attacked: three nodes with every listener, TLS with client certificates allowed, ACL users, an audit log, and
//! an encrypted peer port. A recorder stands in front of the peer port of node 2.

use crate::recorder::Recorder;
use crate::support::tls::{client_config, Certificates, TlsClient};
use crate::support::{await_that, free_address, Node};
use rustls::ClientConfig;
use socket2::{Domain, Socket, Type};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A key that no stranger may see.
pub(crate) const SECRET_NAME: &str = "app:not-for-strangers";
/// Growth of a node's memory that is no leak.
const GROWTH_KIB_MAX: u64 = 128 * 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    pub(crate) is_peer: bool,
}

/// What a node uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) files: usize,
    pub(crate) memory_kib: u64,
}

pub(crate) struct Target {
    pub(crate) nodes: Vec<Node>,
    pub(crate) tls: Arc<ClientConfig>,
    ports: Vec<Port>,
    recorder: Recorder,
    certificates: Certificates,
}

impl Target {
    pub(crate) fn start() -> Target {
        let certificates = Certificates::new();
        let write = |name: &str, text: &str| std::fs::write(certificates.path().join(name), text).unwrap();
        write("secret", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n");
        write(
            "users.acl",
            "user default off\nuser app on >pw ~app:* &* +@all -@admin\nuser admin on >deep ~* &* +@all\n",
        );
        let peers: [SocketAddr; 3] = std::array::from_fn(|_| free_address());
        let recorder = Recorder::start(peers[1]);
        let reached = [peers[0], recorder.address, peers[2]];
        let members: Vec<String> =
            reached.iter().enumerate().map(|(at, peer)| format!("{}={peer}", at + 1)).collect();
        let mut ports: Vec<Port> = peers.map(|address| Port { address, is_peer: true }).to_vec();
        let nodes = peers.iter().enumerate().map(|(at, peer)| {
            let others: [SocketAddr; 4] = std::array::from_fn(|_| free_address());
            ports.extend(others.map(|address| Port { address, is_peer: false }));
            let flags = node_flags(&certificates, at, *peer, reached[at], &members.join(","), others);
            Node::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let nodes: Vec<Node> = nodes.collect();
        ports.extend(nodes.iter().map(|node| Port { address: node.address, is_peer: false }));
        let tls = client_config(&certificates.authority, None);
        let target = Target { nodes, tls, ports, recorder, certificates };
        for at in 0..target.nodes.len() {
            let mut client = target.honest_client(at);
            await_that("the cluster serves", || client.ask(&["SET", SECRET_NAME, "1"]) == "OK");
        }
        target
    }

    pub(crate) fn ports(&self) -> Vec<Port> {
        self.ports.clone()
    }

    pub(crate) fn recorded_sessions(&self) -> Vec<Vec<u8>> {
        let sessions = self.recorder.sessions();
        assert!(!sessions.is_empty(), "the peers of node 2 have sent something");
        sessions
    }

    pub(crate) fn honest_client(&self, at: usize) -> TlsClient {
        let mut client = self.certificates.connect(self.nodes[at].address);
        assert_eq!(client.ask(&["AUTH", "app", "pw"]), "OK");
        client
    }

    pub(crate) fn usage(&self) -> Vec<Usage> {
        let files = |node: &Node| {
            std::fs::read_dir(format!("/proc/{}/fd", node.process.child.id())).map_or(0, Iterator::count)
        };
        let usage = |node: &Node| Usage { files: files(node), memory_kib: node.process.memory_kib() };
        self.nodes.iter().map(usage).collect()
    }

    /// Nobody panicked, nobody is gone, nothing grew for good, and the state is as it was.
    pub(crate) fn check_unharmed(&self, before: &[Usage]) {
        for (at, (node, before)) in self.nodes.iter().zip(before).enumerate() {
            let log = node.process.log();
            assert!(!log.contains("panicked"), "{log}");
            let now = node.process.memory_kib();
            assert!(now < before.memory_kib + GROWTH_KIB_MAX, "{} KiB became {now}", before.memory_kib);
            let mut client = self.honest_client(at);
            assert_eq!(client.ask(&["GET", SECRET_NAME]), "\"1\"");
            let members = client.ask(&["LOCK.CLUSTER", "INFO"]);
            assert!(members.contains("\"voters\", 3") && members.contains("\"quorum\", 1"), "{members}");
        }
    }
}

/// `others`: the correctness, Redlock, admin and plain listeners.
fn node_flags(
    certificates: &Certificates,
    at: usize,
    peer: SocketAddr,
    reached: SocketAddr,
    members: &str,
    others: [SocketAddr; 4],
) -> Vec<String> {
    let mut flags = certificates.flags(&["--tls-client-auth", "optional"]);
    let mut add = |name: &str, value: String| flags.extend([name.to_owned(), value]);
    add("--tls-client-ca", certificates.file("ca.crt"));
    add("--acl-file", certificates.file("users.acl"));
    add("--audit-log", certificates.file(&format!("audit-{at}")));
    add("--peer-secret-file", certificates.file("secret"));
    add("--id", (at + 1).to_string());
    add("--peer-listen", peer.to_string());
    add("--advertise", reached.to_string());
    add("--cluster", members.to_owned());
    let names = ["--correctness-listen", "--redlock-listen", "--admin", "--plain-listen"];
    names.into_iter().zip(others).for_each(|(name, address)| add(name, address.to_string()));
    flags
}

/// From another address of this machine, so that what guessing costs is not the honest clients' to pay. Closed without waiting: the
/// ports of this machine are few. `None` where it was not let in.
pub(crate) fn connect_as_stranger(address: SocketAddr) -> Option<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).ok()?;
    socket.set_linger(Some(Duration::ZERO)).ok()?;
    socket.connect_timeout(&address.into(), Duration::from_secs(5)).ok()?;
    socket.set_write_timeout(Some(Duration::from_secs(1))).ok()?;
    Some(TcpStream::from(socket))
}
