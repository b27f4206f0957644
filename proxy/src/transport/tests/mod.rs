//! Peers over real sockets on the loopback.

mod greetings;
mod strangers;

use super::peer_registry::PeerRegistry;
use super::secret::SecretFile;
use super::security::PeerSecurity;
use super::tls::PeerTls;
use super::*;
use crate::node_api::wire::encode_frame;
use crate::node_api::SnapshotChunk;
use crate::storage::datadir::{DataDir, NodeIdentity, StoreId};
use bytes::{BufMut, Bytes, BytesMut};
use greeting::{GreetingError, Hello};
use redfence_certs::{Authority, Usage};
use redfence_core::machine::version::VersionRange;
use std::io::{Read, Write};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(10);
const CLUSTER: u64 = 0xC1;

#[derive(Debug, PartialEq)]
enum Seen {
    Message(NodeId, PeerMessage),
    Unreachable(NodeId),
    Refused(NodeId),
}

struct Collector(Mutex<Sender<Seen>>);

impl PeerSink for Collector {
    fn message(&self, from: NodeId, message: PeerMessage) -> bool {
        lock(&self.0).send(Seen::Message(from, message)).is_ok()
    }
    fn unreachable(&self, id: NodeId) {
        let _ = lock(&self.0).send(Seen::Unreachable(id));
    }
    fn refused(&self, id: NodeId) {
        let _ = lock(&self.0).send(Seen::Refused(id));
    }
}

struct Who {
    node_id: NodeId,
    cluster_id: u64,
    store: u128,
    /// The file of its peer secrets has these; empty: it has no file.
    secrets: Vec<PeerSecret>,
    members: Vec<NodeId>,
}

impl Who {
    fn node(node_id: NodeId) -> Who {
        Who {
            node_id,
            cluster_id: CLUSTER,
            store: u128::from(node_id),
            secrets: vec![],
            members: vec![1, 2, 3],
        }
    }

    fn registry(&self, dir: &tempfile::TempDir) -> Arc<PeerRegistry> {
        let security = match self.secrets.is_empty() {
            true => PeerSecurity::Plain,
            false => {
                write_secrets(dir, &self.secrets);
                PeerSecurity::Secret(Arc::new(SecretFile::open(&dir.path().join("secret")).unwrap()))
            }
        };
        self.registry_with(dir, security)
    }

    fn registry_with(&self, dir: &tempfile::TempDir, security: PeerSecurity) -> Arc<PeerRegistry> {
        let (node_id, cluster_id) = (self.node_id, self.cluster_id);
        let identity = NodeIdentity { node_id, cluster_id, store_id: StoreId(self.store), log_made: true };
        let dir = Arc::new(DataDir::open(dir.path()).unwrap());
        let registry =
            PeerRegistry::open(dir, identity, format!("n{node_id}:1"), security, Vec::new()).unwrap();
        let members: Vec<ClusterMember> = self.members.iter().map(|id| member(*id, "unused")).collect();
        registry.set_members(&members);
        Arc::new(registry)
    }
}

/// A secret like no other, as the line of a file.
type PeerSecret = String;

fn secret(number: u8) -> PeerSecret {
    format!("{number:02x}112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210")
}

fn write_secrets(dir: &tempfile::TempDir, secrets: &[PeerSecret]) {
    std::fs::write(dir.path().join("secret"), secrets.join("\n")).unwrap();
}

fn member(id: NodeId, addr: &str) -> ClusterMember {
    ClusterMember { id, addr: addr.to_string(), added_at: 0, voter: true }
}

/// A running node: its transport and what it has seen.
struct Node {
    transport: Transport,
    thread: Option<JoinHandle<()>>,
    seen: Receiver<Seen>,
    addr: SocketAddr,
    dir: tempfile::TempDir,
}

impl Node {
    fn start(who: &Who) -> Node {
        Node::start_at(who, "127.0.0.1:0".parse().unwrap())
    }

    fn start_at(who: &Who, addr: SocketAddr) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let registry = who.registry(&dir);
        Node::start_with(registry, dir, addr)
    }

    fn start_with(registry: Arc<PeerRegistry>, dir: tempfile::TempDir, addr: SocketAddr) -> Node {
        let listener = bind(addr).unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, seen) = channel();
        let sink = Arc::new(Collector(Mutex::new(sender)));
        let (transport, thread) = Transport::start(registry, Some(listener), sink).unwrap();
        Node { transport, thread: Some(thread), seen, addr, dir }
    }

    fn knows(&self, others: &[&Node], ids: &[NodeId]) {
        let members = others.iter().zip(ids).map(|(node, id)| member(*id, &node.addr.to_string()));
        self.transport.set_members(members.collect());
    }

    /// Sends until one arrives: connections take a moment.
    fn say(&self, to: NodeId, number: u64) {
        self.transport.send_all([(to, note(number))]);
    }

    fn hears(&self, from: NodeId, number: u64) -> bool {
        let wanted = Seen::Message(from, note(number));
        self.seen.try_iter().any(|seen| seen == wanted)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.transport.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn note(number: u64) -> PeerMessage {
    PeerMessage::NotMember { conf_index: number }
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn connect_pair() -> (Node, Node) {
    connect(&Who::node(1), &Who::node(2))
}

fn connect(one: &Who, two: &Who) -> (Node, Node) {
    let (one, two) = (Node::start(one), Node::start(two));
    one.knows(&[&two], &[2]);
    two.knows(&[&one], &[1]);
    eventually("one reaches two", || {
        one.say(2, 0);
        two.hears(1, 0)
    });
    eventually("two reaches one", || {
        two.say(1, 0);
        one.hears(2, 0)
    });
    (one, two)
}

#[test]
fn messages_arrive_in_order_on_both_channels() {
    let (one, two) = connect_pair();
    let piece = Bytes::from(vec![7; 100_000]);
    for number in 1..=500 {
        one.transport.send_all([(2, note(number)), (2, note(number + 1_000))]);
    }
    one.transport.send_all([(
        2,
        PeerMessage::SnapshotChunk(SnapshotChunk { transfer: 1, offset: 0, bytes: piece, message: None }),
    )]);
    let mut numbers = Vec::new();
    let mut chunks = 0;
    eventually("all arrived", || {
        for seen in two.seen.try_iter() {
            match seen {
                Seen::Message(1, PeerMessage::NotMember { conf_index }) if conf_index > 0 => {
                    numbers.push(conf_index)
                }
                Seen::Message(1, PeerMessage::SnapshotChunk(chunk)) => chunks += chunk.bytes.len() / 100_000,
                _ => {}
            }
        }
        numbers.len() == 1_000 && chunks == 1
    });
    let expected: Vec<u64> = (1..=500).flat_map(|number| [number, number + 1_000]).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn an_answer_finds_its_way_back_to_a_node_nobody_dials() {
    let (one, two) = (Node::start(&Who::node(1)), Node::start(&Who::node(2)));
    one.knows(&[&two], &[2]);
    eventually("two hears one and answers", || {
        one.say(2, 1);
        two.hears(1, 1)
    });
    eventually("the answer comes back", || {
        two.say(1, 2);
        one.hears(2, 2)
    });
}

#[test]
fn a_peer_that_ends_is_found_to_refuse() {
    let (one, two) = connect_pair();
    assert!(!one.seen.try_iter().any(|seen| seen == Seen::Refused(2)), "it lives");
    drop(two);
    eventually("the end is noticed", || one.seen.try_iter().any(|seen| seen == Seen::Refused(2)));
    eventually("the next dial says it again", || one.seen.try_iter().any(|seen| seen == Seen::Refused(2)));
}

/// Its port was never reached, because strangers kept it busy: the connection that it had dialled was the only one.
#[test]
fn a_peer_that_only_dialled_us_is_found_to_refuse_when_it_ends() {
    let (one, two) = (Node::start(&Who::node(1)), Node::start(&Who::node(2)));
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    one.transport.set_members(vec![member(2, &nobody.to_string())]);
    two.knows(&[&one], &[1]);
    eventually("one hears two", || {
        two.say(1, 1);
        one.hears(2, 1)
    });
    assert!(!one.seen.try_iter().any(|seen| seen == Seen::Refused(2)), "it lives");
    drop(two);
    eventually("the end is noticed", || one.seen.try_iter().any(|seen| seen == Seen::Refused(2)));
}

/// More often than it is probed.
#[test]
fn a_peer_that_comes_and_goes_is_found_to_refuse_each_time() {
    let one = Node::start(&Who::node(1));
    for time in 1..=6 {
        let two = Node::start(&Who::node(2));
        one.knows(&[&two], &[2]);
        two.knows(&[&one], &[1]);
        eventually("they hear each other", || {
            one.say(2, time);
            two.say(1, time);
            two.hears(1, time) && one.hears(2, time)
        });
        drop(two);
        eventually("the end is noticed", || one.seen.try_iter().any(|seen| seen == Seen::Refused(2)));
    }
}

/// Its port refuses, as behind a firewall, but it reaches us.
#[test]
fn a_peer_that_lives_is_not_said_to_refuse() {
    let (one, two) = (Node::start(&Who::node(1)), Node::start(&Who::node(2)));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    one.transport.set_members(vec![member(2, &port.local_addr().unwrap().to_string())]);
    two.knows(&[&one], &[1]);
    let near = port.accept().unwrap().0;
    let far = std::net::TcpStream::connect(two.addr).unwrap();
    for (mut from, mut to) in
        [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near.try_clone().unwrap())]
    {
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    }
    eventually("both hear each other", || {
        one.say(2, 1);
        two.say(1, 1);
        two.hears(1, 1) && one.hears(2, 1)
    });
    drop(port);
    near.shutdown(std::net::Shutdown::Both).unwrap();
    let mut failed = 0;
    eventually("more dials fail than there are probes", || {
        for seen in one.seen.try_iter() {
            assert_ne!(seen, Seen::Refused(2), "it lives");
            failed += u32::from(seen == Seen::Unreachable(2));
        }
        failed > 8
    });
    eventually("it is heard", || {
        two.say(1, 2);
        one.hears(2, 2)
    });
}

#[test]
fn a_lost_peer_is_reported_and_found_again() {
    let (one, two) = connect_pair();
    let addr = two.addr;
    drop(two);
    eventually("the loss is reported", || {
        one.say(2, 5);
        one.seen.try_iter().any(|seen| seen == Seen::Unreachable(2))
    });
    let two = Node::start_at(&Who::node(2), addr);
    two.knows(&[&one], &[1]);
    eventually("one reaches the new two", || {
        one.say(2, 6);
        two.hears(1, 6)
    });
}

#[test]
fn a_peer_that_does_not_read_costs_a_bounded_queue() {
    let one = Node::start(&Who::node(1));
    let two_dir = tempfile::tempdir().unwrap();
    let two_book = Who::node(2).registry(&two_dir);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    one.transport.set_members(vec![member(2, &listener.local_addr().unwrap().to_string())]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Greets, and never reads again.
    let _deaf = runtime.block_on(async {
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        greeting::accept(stream, &two_book).await.unwrap()
    });
    eventually("connected", || one.transport.shared.queue(2, Channel::Raft).unwrap().is_connected());
    let big = PeerMessage::Forward(crate::node_api::Forward {
        origin: redfence_core::types::Origin { node: 1, incarnation: 1 },
        term: 1,
        prev: 0,
        acked_below: 0,
        commands: vec![crate::node_api::Forwarded {
            seq: 1,
            connection: 1,
            blob: Bytes::from(vec![1; 1 << 20]),
        }],
    });
    for _ in 0..64 {
        one.transport.send_all([(2, big.clone())]);
    }
    let dropped = one.seen.try_iter().filter(|seen| *seen == Seen::Unreachable(2)).count();
    assert!(dropped >= 30, "only {dropped} of 64 were dropped");
}

#[test]
fn garbage_and_giant_frames_end_their_connection_alone() {
    let (one, two) = connect_pair();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 64], &[3, 0, 0, 0, 9, 0, 0]] {
        let mut stranger = std::net::TcpStream::connect(one.addr).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        stranger.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // Closed with at most a refusal, whatever the bytes. A reset counts as closed.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.len() < 1_024);
    }
    let dir = tempfile::tempdir().unwrap();
    let three = Who::node(3).registry(&dir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut giant = BytesMut::new();
    giant.put_u32_le(u32::MAX);
    let mut unknown = BytesMut::new();
    unknown.put_slice(&[3, 0, 0, 0, 200, 0, 0]);
    let mut bent = BytesMut::new();
    encode_frame(0, &note(4), &mut bent).unwrap();
    let _ = bent.split_off(bent.len() - 2);
    bent[0] -= 2;
    for bytes in [giant, unknown, bent] {
        runtime.block_on(async {
            let stream = TcpStream::connect(one.addr).await.unwrap();
            let mut stream = greeting::dial(stream, "127.0.0.1:1", &three, 1, Channel::Raft).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream.socket, &bytes).await.unwrap();
            let closed = tokio::io::AsyncReadExt::read_u8(&mut stream.socket);
            let closed = tokio::time::timeout(PATIENCE, closed).await.expect("closed in time");
            assert!(closed.is_err());
        });
    }
    eventually("the others are unharmed", || {
        two.say(1, 77);
        one.hears(2, 77)
    });
}
