//! Peers over real sockets on the loopback.

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
}

struct Collector(Mutex<Sender<Seen>>);

impl PeerSink for Collector {
    fn message(&self, from: NodeId, message: PeerMessage) -> bool {
        lock(&self.0).send(Seen::Message(from, message)).is_ok()
    }
    fn unreachable(&self, id: NodeId) {
        let _ = lock(&self.0).send(Seen::Unreachable(id));
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

/// Lets `dialler` greet `acceptor` and returns how it ended on both sides.
fn greet(dialler: &Who, acceptor: &Who, twice_with: Option<&Who>) -> (Option<String>, Option<String>) {
    let (dial_dir, accept_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let acceptor = acceptor.registry(&accept_dir);
    let mut outcome = meet(&dialler.registry(&dial_dir), &acceptor);
    if let Some(again) = twice_with {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(outcome, (None, None), "the first greeting must pass");
        outcome = meet(&again.registry(&dir), &acceptor);
    }
    outcome
}

fn meet(dialler: &PeerRegistry, acceptor: &PeerRegistry) -> (Option<String>, Option<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let dial = async {
            let stream = TcpStream::connect(addr).await.unwrap();
            greeting::dial(stream, "127.0.0.1:1", dialler, 2, Channel::Raft).await.map(|_| ())
        };
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            greeting::accept(stream, acceptor).await.map(|_| ())
        };
        let (dialled, accepted) = tokio::join!(dial, accept);
        let text = |outcome: Result<(), GreetingError>| outcome.err().map(|e| e.to_string());
        (text(dialled), text(accepted))
    })
}

fn both_say(outcome: &(Option<String>, Option<String>), words: &str) {
    for side in [&outcome.0, &outcome.1] {
        let text = side.as_deref().unwrap_or("let in");
        assert!(text.contains(words), "expected '{words}', got '{text}'");
    }
}

#[test]
fn whoever_does_not_belong_is_refused_on_both_sides() {
    assert_eq!(greet(&Who::node(1), &Who::node(2), None), (None, None));
    let stranger = Who { cluster_id: 99, ..Who::node(1) };
    both_say(&greet(&stranger, &Who::node(2), None), "is not our cluster");
    let wiped = Who { store: 1_000, ..Who::node(1) };
    both_say(&greet(&Who::node(1), &Who::node(2), Some(&wiped)), "its disk was wiped");
    both_say(&greet(&Who::node(2), &Who::node(2), None), "both sides say they are node 2");
    both_say(&greet(&Who::node(1), &Who::node(3), None), "node 2 was wanted, but node 3 answers");
    let unadded = Who { cluster_id: 0, ..Who::node(9) };
    both_say(&greet(&unadded, &Who::node(2), None), "was not added to this cluster");
}

#[test]
fn in_clear_a_refusal_names_no_cluster_and_no_store() {
    let stranger = Who { cluster_id: 99, ..Who::node(1) };
    let (told, logged) = greet(&stranger, &Who::node(2), None);
    assert!(logged.unwrap().contains(&format!("{CLUSTER:016x}")), "our own log says it all");
    assert!(!told.unwrap().contains(&format!("{CLUSTER:x}")));
    let wiped = Who { store: 0xABCD_EF12, ..Who::node(1) };
    let known = Who { store: 0x1234_5678, ..Who::node(1) };
    let (told, logged) = greet(&known, &Who::node(2), Some(&wiped));
    assert!(logged.unwrap().contains("12345678"));
    let told = told.unwrap();
    assert!(told.contains("its disk was wiped") && !told.contains("12345678"), "{told}");
}

#[test]
fn a_secret_is_needed_on_both_sides() {
    let with = |node, number| Who { secrets: vec![secret(number)], ..Who::node(node) };
    assert_eq!(greet(&with(1, 1), &with(2, 1), None), (None, None));
    let differs = "the peer secret is missing or differs";
    for (dialler, acceptor) in
        [(with(1, 1), with(2, 2)), (Who::node(1), with(2, 2)), (with(1, 1), Who::node(2))]
    {
        let (dialled, accepted) = greet(&dialler, &acceptor, None);
        assert!(dialled.unwrap().contains(differs));
        assert!(accepted.is_some(), "the acceptor lets nobody in");
    }
}

#[test]
fn a_node_dials_with_the_first_secret_and_accepts_all() {
    let old = |node| Who { secrets: vec![secret(1)], ..Who::node(node) };
    let both = |node| Who { secrets: vec![secret(1), secret(2)], ..Who::node(node) };
    let turned = |node| Who { secrets: vec![secret(2), secret(1)], ..Who::node(node) };
    let new = |node| Who { secrets: vec![secret(2)], ..Who::node(node) };
    // Each step of a rotation beside the one before it, either way round.
    for (before, after) in [(old(1), both(2)), (both(1), turned(2)), (turned(1), new(2))] {
        assert_eq!(greet(&before, &after, None), (None, None));
        let (before, after) = (Who { node_id: 2, ..before }, Who { node_id: 1, ..after });
        assert_eq!(greet(&after, &before, None), (None, None));
    }
    assert!(greet(&old(1), &new(2), None).1.is_some());
}

#[test]
fn with_a_secret_messages_of_every_size_arrive_in_order() {
    let with = |node| Who { secrets: vec![secret(1)], ..Who::node(node) };
    let (one, two) = connect(&with(1), &with(2));
    let piece = Bytes::from((0..1_000_000u32).map(|n| n as u8).collect::<Vec<_>>());
    for number in 1..=300 {
        one.transport.send_all([(2, note(number))]);
    }
    let chunk = SnapshotChunk { transfer: 1, offset: 0, bytes: piece, message: None };
    one.transport.send_all([(2, PeerMessage::SnapshotChunk(chunk.clone()))]);
    let (mut numbers, mut chunks) = (Vec::new(), Vec::new());
    eventually("all arrived", || {
        for seen in two.seen.try_iter() {
            match seen {
                Seen::Message(1, PeerMessage::NotMember { conf_index }) if conf_index > 0 => {
                    numbers.push(conf_index)
                }
                Seen::Message(1, PeerMessage::SnapshotChunk(chunk)) => chunks.push(chunk),
                _ => {}
            }
        }
        numbers.len() == 300 && chunks.len() == 1
    });
    assert_eq!(numbers, (1..=300).collect::<Vec<_>>());
    assert_eq!(chunks, [chunk]);
}

#[test]
fn a_secret_is_rotated_while_messages_flow() {
    let with = |node| Who { secrets: vec![secret(1)], ..Who::node(node) };
    let (one, two) = connect(&with(1), &with(2));
    let steps = [vec![secret(1), secret(2)], vec![secret(2), secret(1)], vec![secret(2)]];
    for (step, secrets) in steps.iter().enumerate() {
        for node in [&one, &two] {
            write_secrets(&node.dir, secrets);
            let registry = &node.transport.shared.registry;
            let PeerSecurity::Secret(file) = &registry.security else { panic!("it has secrets") };
            eventually("the file is read", || {
                file.secrets().len() == secrets.len() && {
                    file.secrets()[0] == secret::PeerSecret::parse(&secrets[0]).unwrap()
                }
            });
            let number = 100 * (step as u64 + 1);
            eventually("both hear each other", || {
                one.say(2, number);
                two.say(1, number);
                two.hears(1, number) && one.hears(2, number)
            });
        }
    }
    let stranger = Who { secrets: vec![secret(1)], ..Who::node(3) };
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(async {
        let stream = TcpStream::connect(one.addr).await.unwrap();
        greeting::dial(stream, "127.0.0.1:1", &stranger.registry(&dir), 1, Channel::Raft).await.is_err()
    });
    assert!(refused, "the old secret opens nothing any more");
}

/// Sends bytes to a node and returns what it answers until it closes.
fn answer_to(addr: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = std::net::TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset counts as closed.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "closed in time");
    }
    answer
}

#[test]
fn a_stranger_gets_no_byte_and_disturbs_nobody() {
    let with = |node| Who { secrets: vec![secret(1)], ..Who::node(node) };
    let (one, two) = connect(&with(1), &with(2));
    let mut greeting = BytesMut::new();
    let dir = tempfile::tempdir().unwrap();
    let identity = Who::node(2).registry(&dir).identity();
    let hello = Hello {
        versions: VersionRange::PROGRAM,
        cluster_version: 1,
        cluster_id: CLUSTER,
        node_id: 2,
        to_node: 1,
        store_id: identity.store_id,
        channel: Channel::Raft,
        advertise: "n2:1".to_string(),
    };
    let hello = hello.encode();
    greeting.put_u32_le(hello.len() as u32 + 3);
    greeting.put_slice(&[1, 0, 0]);
    greeting.put_slice(&hello);
    // Half of a handshake is closed after a time.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 48], &greeting, &[7; 20], &[]] {
        assert_eq!(answer_to(one.addr, bytes), b"", "{bytes:?}");
    }
    eventually("the others are unharmed", || {
        two.say(1, 77);
        one.hears(2, 77)
    });
}

#[test]
fn a_replayed_greeting_is_not_acted_on() {
    let with = |node| Who { secrets: vec![secret(1)], ..Who::node(node) };
    let one = Node::start(&with(1));
    let (recorder_addr, recorded) = record_through(one.addr);
    let two = Node::start(&with(2));
    two.transport.set_members(vec![member(1, &recorder_addr.to_string())]);
    eventually("one hears two", || {
        two.say(1, 5);
        one.hears(2, 5)
    });
    let bytes = lock(&recorded).clone();
    assert!(bytes.len() > 200, "a whole session was recorded");
    drop(two);
    while one.seen.try_recv().is_ok() {}
    let answer = answer_to(one.addr, &bytes);
    assert!(answer.len() <= 48, "an ephemeral key at most");
    assert!(one.seen.try_iter().all(|seen| !matches!(seen, Seen::Message(..))), "nothing was acted on");
}

/// Passes connections on to `to`, and keeps what the first dialler sends.
fn record_through(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let for_thread = recorded.clone();
    std::thread::spawn(move || {
        let (mut dialler, _) = listener.accept().unwrap();
        drop(listener);
        let mut acceptor = std::net::TcpStream::connect(to).unwrap();
        let (mut back_from, mut back_to) = (acceptor.try_clone().unwrap(), dialler.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let mut buffer = [0; 4_096];
        while let Ok(read @ 1..) = dialler.read(&mut buffer) {
            lock(&for_thread).extend_from_slice(&buffer[..read]);
            if acceptor.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
    });
    (addr, recorded)
}

#[test]
fn a_crowd_of_silent_connections_keeps_no_peer_out() {
    let with = |node| Who { secrets: vec![secret(1)], ..Who::node(node) };
    let one = Node::start(&with(1));
    let crowd: Vec<_> = (0..300).map(|_| std::net::TcpStream::connect(one.addr).unwrap()).collect();
    let two = Node::start(&with(2));
    two.knows(&[&one], &[1]);
    eventually("one hears two", || {
        two.say(1, 5);
        one.hears(2, 5)
    });
    drop(crowd);
}

/// Certificates of `authority` for a node on loopback, in `dir`.
fn certificates(dir: &tempfile::TempDir, authority: &Authority, hosts: &[&str]) -> PeerSecurity {
    let issued = authority.issue("node", hosts, Usage::Peer).unwrap();
    issued.write(dir.path(), "node").unwrap();
    std::fs::write(dir.path().join("ca.crt"), &authority.pair().certificate).unwrap();
    let path = |name| dir.path().join(name);
    PeerSecurity::Tls(Arc::new(PeerTls::open(&path("node.crt"), &path("node.key"), &path("ca.crt")).unwrap()))
}

#[test]
fn with_certificates_of_one_authority_messages_of_every_size_arrive_in_order() {
    let authority = Authority::new("peers").unwrap();
    let [one, two] = [1, 2].map(|id| {
        let dir = tempfile::tempdir().unwrap();
        let security = certificates(&dir, &authority, &["127.0.0.1"]);
        Node::start_with(Who::node(id).registry_with(&dir, security), dir, "127.0.0.1:0".parse().unwrap())
    });
    one.knows(&[&two], &[2]);
    two.knows(&[&one], &[1]);
    let piece = Bytes::from((0..1_000_000u32).map(|n| n as u8).collect::<Vec<_>>());
    eventually("two hears one", || {
        one.say(2, 1);
        two.hears(1, 1)
    });
    eventually("one hears two", || {
        two.say(1, 1);
        one.hears(2, 1)
    });
    let chunk = SnapshotChunk { transfer: 1, offset: 0, bytes: piece, message: None };
    for number in 2..=300 {
        one.transport.send_all([(2, note(number))]);
    }
    one.transport.send_all([(2, PeerMessage::SnapshotChunk(chunk.clone()))]);
    let (mut numbers, mut chunks) = (Vec::new(), Vec::new());
    eventually("all arrived", || {
        for seen in two.seen.try_iter() {
            match seen {
                Seen::Message(1, PeerMessage::NotMember { conf_index }) if conf_index > 1 => {
                    numbers.push(conf_index)
                }
                Seen::Message(1, PeerMessage::SnapshotChunk(chunk)) => chunks.push(chunk),
                _ => {}
            }
        }
        numbers.len() == 299 && chunks.len() == 1
    });
    assert_eq!(numbers, (2..=300).collect::<Vec<_>>());
    assert_eq!(chunks, [chunk]);
    // Plain bytes, a broken handshake, silence.
    for bytes in [&b"RFPEER1\n"[..], &[22, 3, 1, 0, 100], &[]] {
        let answer = answer_to(one.addr, bytes);
        assert!(!answer.windows(4).any(|bytes| bytes == b"peer"), "{answer:?}");
    }
}

#[test]
fn a_certificate_of_another_authority_or_for_another_host_is_refused() {
    let (authority, other) = (Authority::new("peers").unwrap(), Authority::new("others").unwrap());
    let dirs = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let two = Who::node(2).registry_with(&dirs[0], certificates(&dirs[0], &authority, &["127.0.0.1"]));
    let good = Who::node(1).registry_with(&dirs[1], certificates(&dirs[1], &authority, &["127.0.0.1"]));
    assert_eq!(meet(&good, &two), (None, None));
    let stranger = Who::node(1).registry_with(&dirs[2], certificates(&dirs[2], &other, &["127.0.0.1"]));
    let (dialled, accepted) = meet(&stranger, &two);
    assert!(dialled.is_some() && accepted.is_some());
    let elsewhere = Who::node(2).registry_with(&dirs[3], certificates(&dirs[3], &authority, &["10.9.8.7"]));
    assert!(meet(&good, &elsewhere).0.is_some(), "the certificate is for another host");
    let plain_dir = tempfile::tempdir().unwrap();
    assert!(meet(&Who::node(1).registry(&plain_dir), &two).1.is_some());
}

/// Strangers who ask for handshakes as fast as they can get so many answers, and the messages of peers arrive.
#[test]
fn handshakes_of_strangers_are_limited_and_delay_no_peer() {
    let authority = Authority::new("peers").unwrap();
    let [one, two] = [1, 2].map(|id| {
        let dir = tempfile::tempdir().unwrap();
        let security = certificates(&dir, &authority, &["127.0.0.1"]);
        Node::start_with(Who::node(id).registry_with(&dir, security), dir, "127.0.0.1:0".parse().unwrap())
    });
    let begun = Instant::now();
    one.knows(&[&two], &[2]);
    two.knows(&[&one], &[1]);
    let dir = tempfile::tempdir().unwrap();
    let PeerSecurity::Tls(tls) = certificates(&dir, &authority, &["127.0.0.1"]) else { unreachable!() };
    let mut hello = Vec::new();
    tls.dial("127.0.0.1:1").unwrap().write_tls(&mut hello).unwrap();
    let answered = std::sync::atomic::AtomicU32::new(0);
    let flood = || {
        while begun.elapsed() < Duration::from_secs(2) {
            let mut stranger = std::net::TcpStream::connect(two.addr).unwrap();
            stranger.set_read_timeout(Some(PATIENCE)).unwrap();
            stranger.write_all(&hello).unwrap();
            // One whose place was taken is closed without a byte.
            if stranger.read(&mut [0]).is_ok_and(|count| count > 0) {
                answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(flood)));
        for number in 1..=50 {
            eventually("two hears one", || {
                one.say(2, number);
                two.hears(1, number)
            });
        }
    });
    let limit = f64::from(accepting::HANDSHAKES_PER_SECOND) * begun.elapsed().as_secs_f64().ceil()
        + f64::from(accepting::HANDSHAKES_AT_ONCE);
    let answered = answered.into_inner();
    assert!(answered > 0 && f64::from(answered) <= limit, "{answered} handshakes, {limit} allowed");
}

#[test]
fn refusals_are_logged_a_few_times_and_then_counted() {
    let mut log = RefusalLog::default();
    let now = Instant::now();
    let logged = (0..100).filter(|_| log.admit(now).is_some()).count();
    assert_eq!(logged, REFUSAL_LINES_MAX as usize);
    assert_eq!(log.admit(now + REFUSAL_LINES_EVERY), Some(95));
}

#[test]
fn a_removed_node_is_let_in_so_that_it_can_be_told() {
    let acceptor = Who { members: vec![2, 3], ..Who::node(2) };
    assert_eq!(greet(&Who::node(1), &acceptor, None), (None, None));
}

#[test]
fn a_joining_node_takes_the_cluster_of_its_first_caller_and_keeps_it() {
    for secrets in [vec![], vec![secret(1)]] {
        let dir = tempfile::tempdir().unwrap();
        let joining = Who { cluster_id: 0, members: vec![], secrets: secrets.clone(), ..Who::node(2) };
        let registry = joining.registry(&dir);
        let caller_dir = tempfile::tempdir().unwrap();
        let caller = Who { secrets, ..Who::node(1) };
        assert_eq!(meet(&caller.registry(&caller_dir), &registry), (None, None));
        assert_eq!(registry.identity().cluster_id, CLUSTER);
        drop(registry);
        let stored = DataDir::open(dir.path()).unwrap().identity().unwrap().unwrap();
        assert_eq!(stored.cluster_id, CLUSTER);
    }
}

#[test]
fn a_restored_node_takes_the_cluster_of_its_own_restore_alone() {
    const FAMILY: u64 = 7 << 32;
    let dir = tempfile::tempdir().unwrap();
    let restored = Who { cluster_id: FAMILY, members: vec![], ..Who::node(2) };
    let registry = restored.registry(&dir);
    let caller = |cluster_id| Who { cluster_id, ..Who::node(1) };
    let meets = |cluster_id| {
        let caller_dir = tempfile::tempdir().unwrap();
        meet(&caller(cluster_id).registry(&caller_dir), &registry)
    };
    both_say(&meets(CLUSTER), "is not our cluster");
    both_say(&meets(FAMILY), "was not added to this cluster");
    assert_eq!(registry.identity().cluster_id, FAMILY, "nothing is learned from a refused one");
    assert_eq!(meets(FAMILY | 5), (None, None));
    assert_eq!(registry.identity().cluster_id, FAMILY | 5);
    // Its first member was restored again.
    both_say(&meets(FAMILY | 6), "is not our cluster");
}

/// Two nodes that can run these versions, of clusters that run these, and what each side hears.
fn meet_as(
    dialler: (VersionRange, ClusterVersion),
    acceptor: (VersionRange, ClusterVersion),
) -> (Option<String>, Option<String>) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let registry = |id: NodeId, dir, (versions, runs): (VersionRange, ClusterVersion)| {
        let registry = Arc::into_inner(Who::node(id).registry(dir)).unwrap().with_versions(versions);
        registry.set_cluster_version(runs);
        registry
    };
    meet(&registry(1, &dirs[0], dialler), &registry(2, &dirs[1], acceptor))
}

#[test]
fn a_peer_that_cannot_run_the_version_of_the_cluster_is_refused_and_both_sides_say_why() {
    let (old, both) = (VersionRange { oldest: 1, newest: 1 }, VersionRange { oldest: 1, newest: 2 });
    assert_eq!(meet_as((old, 1), (both, 1)), (None, None));
    assert_eq!(meet_as((both, 1), (old, 1)), (None, None));
    let why = |id| {
        format!("the cluster runs version 2, node {id} can run version 1: start it with a release that can")
    };
    for (dialler, acceptor, id) in [((old, 1), (both, 2), 1), ((both, 2), (old, 1), 2)] {
        let (here, there) = meet_as(dialler, acceptor);
        let (here, there) = (here.unwrap(), there.unwrap());
        assert!(here.contains(&why(id)) && there.contains(&why(id)), "{here} / {there}");
    }
    // A node that was down during the raise, and a later release that has dropped version 1.
    let later = VersionRange { oldest: 2, newest: 3 };
    assert_eq!(meet_as((both, 1), (later, 2)), (None, None));
    assert_eq!(meet_as((later, 2), (both, 1)), (None, None));
}

#[test]
fn a_peer_from_before_release_1_is_named() {
    let refused = Hello::decode(b"RFPEER\r\n\x01\0rest").unwrap_err();
    assert_eq!(refused.to_string(), "the peer is a program from before release 1");
}
