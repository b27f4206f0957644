//! What a node holds for its clients is bounded in bytes, for one of them and for all together. Who reads slowly gets everything;
//! who fills the node is disconnected, and nobody else.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use support::{command, free_address, Client, Node, PATIENCE};

const MIB: usize = 1 << 20;

fn store(client: &mut Client, key: &str, bytes: usize, fill: char) {
    let script = format!("return redis.call('SET', KEYS[1], string.rep('{fill}', {bytes}))");
    assert_eq!(client.ask(&["EVAL", &script, "1", key]), "OK");
}

fn connect(node: &Node) -> TcpStream {
    let stream = TcpStream::connect(node.address).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn grown_mib(node: &Node, before_kib: u64) -> u64 {
    node.process.memory_kib().saturating_sub(before_kib) / 1024
}

/// Whether the node has hung up. Whatever it has sent before is read.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut piece = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}

/// 20 connections, 200 `GET` of 1 MiB each: 4 GiB of replies, if all were made.
#[test]
fn large_replies_that_nobody_reads_are_not_made() {
    let node = Node::start(&[]);
    let mut honest = node.connect();
    store(&mut honest, "large", MIB, 'x');
    let before = node.process.memory_kib();
    let gets = command(&[b"GET", b"large"]).repeat(200);
    let mut deaf: Vec<TcpStream> = (0..20).map(|_| connect(&node)).collect();
    deaf.iter_mut().for_each(|stream| stream.write_all(&gets).unwrap());
    for _ in 0..50 {
        let fence = honest.acquire(&["honest", "60000"]);
        assert_eq!(honest.ask(&["LOCK.RELEASE", "honest", &fence.to_string()]), "(1, \"ok\")");
        let grown = grown_mib(&node, before);
        assert!(grown < 400, "grew by {grown} MiB");
    }
    assert_eq!(honest.ask(&["STRLEN", "large"]), MIB.to_string());
}

/// The same for replies of logged commands, which cannot wait: a transaction shows the value, behind a write.
#[test]
fn large_replies_of_writes_that_nobody_reads_are_bounded() {
    let node = Node::start(&[]);
    let mut honest = node.connect();
    store(&mut honest, "large", MIB, 'x');
    let before = node.process.memory_kib();
    let mut batch = Vec::new();
    for _ in 0..400 {
        batch.extend_from_slice(&command(&[b"SET", b"small", b"v"]));
        batch.extend_from_slice(&command(&[b"GET", b"large"]));
    }
    let mut deaf: Vec<TcpStream> = (0..10).map(|_| connect(&node)).collect();
    deaf.iter_mut().for_each(|stream| stream.write_all(&batch).unwrap());
    for _ in 0..50 {
        let fence = honest.acquire(&["honest", "60000"]);
        assert_eq!(honest.ask(&["LOCK.RELEASE", "honest", &fence.to_string()]), "(1, \"ok\")");
        let grown = grown_mib(&node, before);
        assert!(grown < 700, "grew by {grown} MiB");
    }
}

/// A pipeline of large and small reads, read a little at a time: every reply comes, in order, and no newer state before an older one.
#[test]
fn a_slow_reader_of_a_deep_pipeline_gets_every_reply_in_order() {
    let node = Node::start(&[]);
    let mut writer = node.connect();
    store(&mut writer, "a", MIB, 'a');
    store(&mut writer, "b", MIB / 2 + 7, 'b');
    let mut reader = connect(&node);
    let mut batch = Vec::new();
    for number in 0..150 {
        batch.extend_from_slice(&command(&[b"GET", if number % 3 == 0 { b"a" } else { b"b" }]));
        batch.extend_from_slice(&command(&[b"GET", b"count"]));
        batch.extend_from_slice(&command(&[b"ECHO", number.to_string().as_bytes()]));
    }
    assert_eq!(writer.ask(&["SET", "count", "0"]), "OK");
    reader.write_all(&batch).unwrap();
    let mut last_count = 0;
    for number in 0..150 {
        let expected = if number % 3 == 0 { (MIB, b'a') } else { (MIB / 2 + 7, b'b') };
        let value = read_bulk(&mut reader);
        assert_eq!(
            (value.len(), value.iter().all(|byte| *byte == expected.1)),
            (expected.0, true),
            "{number}"
        );
        let count: u64 = String::from_utf8(read_bulk(&mut reader)).unwrap().parse().unwrap();
        assert!(count >= last_count, "{count} behind {last_count}");
        last_count = count;
        assert_eq!(read_bulk(&mut reader), number.to_string().as_bytes());
        writer.ask(&["INCR", "count"]);
    }
    reader.write_all(&command(&[b"PING"])).unwrap();
    let mut pong = [0; 7];
    reader.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
}

fn read_bulk(stream: &mut TcpStream) -> Vec<u8> {
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        header.push(byte[0]);
    }
    assert_eq!(header[0], b'$', "{}", String::from_utf8_lossy(&header));
    let len: usize = std::str::from_utf8(&header[1..header.len() - 2]).unwrap().parse().unwrap();
    let mut value = vec![0; len + 2];
    stream.read_exact(&mut value).unwrap();
    value.truncate(len);
    value
}

/// Many connections, each within its own limits: what they hold together is bounded, and it is they who are disconnected.
#[track_caller]
fn fill_the_node(piece: &[u8], connections: usize) {
    let node = Node::start(&[]);
    let mut honest = node.connect();
    let mut listener = node.connect();
    assert_eq!(listener.ask(&["SUBSCRIBE", "news"]), "(\"subscribe\", \"news\", 1)");
    let before = node.process.memory_kib();
    let mut crowd = Vec::new();
    for number in 0..connections {
        let mut stream = connect(&node);
        // It may be disconnected meanwhile.
        let _ = stream.write_all(piece);
        crowd.push(stream);
        let fence = honest.acquire(&["honest", "60000"]);
        assert_eq!(honest.ask(&["LOCK.RELEASE", "honest", &fence.to_string()]), "(1, \"ok\")");
        let grown = grown_mib(&node, before);
        assert!(grown < 450, "grew by {grown} MiB with {number} connections");
    }
    support::await_that("some are disconnected", || {
        node.process.log().contains("the clients of this node hold more bytes than the limit")
    });
    let closed = crowd.iter_mut().filter_map(|stream| is_closed(stream).then_some(())).count();
    assert!(closed > 0 && closed < connections, "{closed} of {connections} were disconnected");
    assert_eq!(honest.ask(&["PUBLISH", "news", "m"]), "1");
    assert_eq!(listener.receive(), "(\"message\", \"news\", \"m\")");
}

#[test]
fn half_sent_requests_of_all_clients_are_bounded() {
    let mut half = b"*1024\r\n$4\r\nMGET\r\n".to_vec();
    for _ in 0..60 {
        half.extend_from_slice(b"$65536\r\n");
        half.extend_from_slice(&vec![b'h'; 65_536]);
        half.extend_from_slice(b"\r\n");
    }
    fill_the_node(&half, 90);
}

#[test]
fn queued_transactions_of_all_clients_are_bounded() {
    let mut queued = command(&[b"MULTI"]);
    for _ in 0..60 {
        queued.extend_from_slice(&command(&[b"SET", b"k", &vec![b'q'; 65_000]]));
    }
    fill_the_node(&queued, 90);
}

/// A crowd that fills the node and goes on sending small commands goes before an idle client with a small transaction.
#[test]
fn an_idle_transaction_outlives_a_crowd_that_goes_on_sending() {
    let node = Node::start(&[]);
    let mut idle = node.connect();
    assert_eq!(idle.ask(&["MULTI"]), "OK");
    for _ in 0..2 {
        assert_eq!(idle.ask(&["SET", "idle", &"i".repeat(65_000)]), "QUEUED");
    }
    let mut queued = command(&[b"MULTI"]);
    for _ in 0..60 {
        queued.extend_from_slice(&command(&[b"SET", b"k", &vec![b'q'; 65_000]]));
    }
    let mut crowd = Vec::new();
    for _ in 0..80 {
        let mut stream = connect(&node);
        let _ = stream.write_all(&queued);
        crowd.push(stream);
        for stream in &mut crowd {
            // It may be disconnected meanwhile.
            let _ = stream.write_all(&command(&[b"PING"]));
        }
    }
    support::await_that("some are disconnected", || {
        node.process.log().contains("the clients of this node hold more bytes than the limit")
    });
    assert_eq!(idle.ask(&["EXEC"]), "(OK, OK)");
}

/// Replies that stand behind one that does not come: no quorum, and a client that goes on sending.
#[test]
fn replies_behind_a_blocked_write_are_bounded() {
    let (peer, others) = (free_address().to_string(), [free_address(), free_address()]);
    let members = format!("1={peer},2={},3={}", others[0], others[1]);
    let flags = ["--id", "1", "--peer-listen", &peer, "--cluster", &members, "--deadline-ms", "3000"];
    let node = Node::start(&flags);
    let before = node.process.memory_kib();
    let mut stream = connect(&node);
    stream.set_nonblocking(true).unwrap();
    let _ = stream.write(&command(&[b"SET", b"k", b"v"])).unwrap();
    let echo = command(&[b"ECHO", &vec![b'e'; 60_000]]);
    let mut sent = 0;
    for _ in 0..400 {
        match stream.write(&echo[sent..]) {
            Ok(count) => sent = (sent + count) % echo.len(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
        let grown = grown_mib(&node, before);
        assert!(grown < 24, "grew by {grown} MiB");
    }
}
