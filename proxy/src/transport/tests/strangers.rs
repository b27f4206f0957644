//! Secrets and certificates between peers, and what strangers at the port cost.

use super::greetings::meet;
use super::*;

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
    // With a single message behind the greeting it may be shorter.
    eventually("a whole session was recorded", || {
        two.say(1, 5);
        lock(&recorded).len() > 200
    });
    let bytes = lock(&recorded).clone();
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
