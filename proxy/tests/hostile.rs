//! Bytes nobody honest would send: no crash, bounded memory, other clients unharmed.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{command, Client, Node, PATIENCE};

/// A client that works on, and how long its rounds took.
struct Honest {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Vec<Duration>>>,
}

impl Honest {
    fn start(node: &Node) -> Honest {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, address) = (Arc::clone(&stop), node.address);
        let thread = std::thread::spawn(move || {
            let mut client = Client::connect(address);
            let mut rounds = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let fence = client.acquire(&["honest", "60000"]);
                assert_eq!(client.ask(&["LOCK.RELEASE", "honest", &fence.to_string()]), "(1, \"ok\")");
                rounds.push(begin.elapsed());
            }
            rounds
        });
        Honest { stop, thread: Some(thread) }
    }

    /// All were served, and none waited for the others: a disk may stand still for a while, once.
    fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut rounds = self.thread.take().unwrap().join().expect("the honest client was served");
        rounds.sort_unstable_by(|one, other| other.cmp(one));
        let within = |at: usize, seconds| rounds.get(at).is_none_or(|took| took.as_secs() < seconds);
        assert!(
            !rounds.is_empty() && within(0, 10) && within(1, 2),
            "the slowest of {}: {:?}",
            rounds.len(),
            &rounds[..rounds.len().min(3)]
        );
    }
}

/// Sends what can be sent, ignoring that the node may have hung up.
fn throw(node: &Node, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn malformed_frames_are_refused_with_redis_s_words() {
    let node = Node::start(&[]);
    let honest = Honest::start(&node);
    let nested = b"*1\r\n".repeat(1_000_000);
    let endless_line = vec![b'a'; 100_000];
    let cases: Vec<(&[u8], &str)> = vec![
        (b"*9223372036854775807\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$-2\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*1\r\n$9223372036854775807\r\n", "-ERR Protocol error: invalid bulk length"),
        (&nested, "-ERR Protocol error: expected '$', got '*'"),
        (b"*1\r\n%1\r\n", "-ERR Protocol error: expected '$', got '%'"),
        (&endless_line, "-ERR Protocol error: too big inline request"),
        (b"PING \"\r\n", "-ERR Protocol error: unbalanced quotes in request"),
    ];
    for (bytes, expected) in cases {
        let answer = throw(&node, bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
        assert_eq!(answer.trim_end(), expected, "{shown:?}");
    }
    // Who sends all of a large request before it reads sees the error too, not a reset connection.
    let mut large = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n".to_vec();
    large.resize(24 << 20, b'x');
    assert_eq!(throw(&node, &large).trim_end(), "-ERR Protocol error: invalid bulk length");
    assert_eq!(throw(&node, b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"), "");
    honest.finish();
}

#[test]
fn a_command_beyond_a_limit_costs_an_error_and_not_the_connection() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let (word, large) = (vec![b'x'; 65_537], vec![b'x'; (1 << 20) + 1]);
    let mut whole: Vec<&[u8]> = vec![b"MSET"];
    whole.extend(std::iter::repeat_n(&word[..65_536], 100));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (
            command(&[b"SET", b"k", &word]),
            "-ERR a word of this command may have 65536 bytes, and one has 65537",
        ),
        (command(&[b"LOCK.ACQUIRE", b"k", &word]), "-ERR a word of this command may have 65536 bytes"),
        (command(&[b"SET", &word, b"v"]), "-ERR a word of this command may have 65536 bytes"),
        (command(&[&word]), "-ERR a word of this command may have 65536 bytes"),
        (command(&[b"EVAL", &large, b"0"]), "-ERR a word of this command may have 1048576 bytes"),
        (command(&vec![&b"DEL"[..]; 1025]), "-ERR a command may have 1024 words, and this one has 1025"),
        (command(&vec![&b"LOCK.MACQUIRE"[..]; 100_000]), "-ERR a command may have 1024 words"),
        (command(&whole), "-ERR a command may have 4194304 bytes in all"),
    ];
    for (frame, expected) in &cases {
        client.send_bytes(frame);
        client.send_bytes(&command(&[b"PING"]));
        let answer = client.receive();
        assert!(answer.starts_with(expected), "{answer}");
        assert_eq!(client.receive(), "PONG");
    }
    // In a transaction it is an error like any other: nothing of it is done.
    for frame in
        [command(&[b"MULTI"]), cases[0].0.clone(), command(&[b"SET", b"k", b"v"]), command(&[b"EXEC"])]
    {
        client.send_bytes(&frame);
    }
    assert_eq!(client.receive(), "OK");
    assert!(client.receive().starts_with("-ERR a word"));
    assert_eq!(client.receive(), "QUEUED");
    assert!(client.receive().starts_with("-EXECABORT"));
    // A value of 1 MiB is put together, and read whole.
    client.send_bytes(&command(&[b"SET", b"k", &word[1..]]));
    assert_eq!(client.receive(), "OK");
    for part in 2..=16 {
        client.send_bytes(&command(&[b"APPEND", b"k", &word[1..]]));
        assert_eq!(client.receive(), (part * 65_536).to_string());
    }
    assert!(client.ask(&["APPEND", "k", "x"]).starts_with("-ERR"));
}

#[test]
fn frames_split_at_every_byte_are_read() {
    let node = Node::start(&["--default-tier", "efficiency"]);
    let frame = command(&[b"ECHO", b"a\r\nb"]);
    let mut client = node.connect();
    for byte in &frame {
        client.send_bytes(&[*byte]);
    }
    assert_eq!(client.receive(), "\"a\\r\\nb\"");
    for cut in 1..frame.len() {
        client.send_bytes(&frame[..cut]);
        std::thread::sleep(Duration::from_millis(1));
        client.send_bytes(&frame[cut..]);
        assert_eq!(client.receive(), "\"a\\r\\nb\"", "cut at {cut}");
    }
}

#[test]
fn garbage_from_many_clients_costs_nothing_lasting() {
    let node = Node::start(&[]);
    let honest = Honest::start(&node);
    let before = node.process.memory_kib();
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let alphabet = b"*$:-+0123456789\r\n\"' xPINGLOCK.%~_,#(=>|\0\xff";
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..2000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                alphabet[(state >> 33) as usize % alphabet.len()]
            })
            .collect();
        let mut stream = TcpStream::connect(node.address).unwrap();
        let _ = stream.write_all(&bytes);
    }
    honest.finish();
    let grown = node.process.memory_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "grew by {grown} KiB");
}

/// Half frames that never end, each with a giant promise: none of it is allocated.
#[test]
fn slow_senders_and_giant_promises_are_cheap() {
    let node = Node::start(&[]);
    let honest = Honest::start(&node);
    let before = node.process.memory_kib();
    let mut slow: Vec<TcpStream> = (0..1_000).map(|_| TcpStream::connect(node.address).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"*1024\r\n$12\r\nLOCK.ACQUIRE\r\n$65536\r\nx").unwrap();
    }
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(50));
        slow.iter_mut().for_each(|stream| stream.write_all(b"y").unwrap());
    }
    let grown = node.process.memory_kib().saturating_sub(before);
    assert!(grown < 48 * 1024, "1000 half frames took {grown} KiB");
    honest.finish();
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let node = Node::start(&["--default-tier", "efficiency"]);
    let honest = Honest::start(&node);
    let before = node.process.memory_kib();
    let mut deaf = TcpStream::connect(node.address).unwrap();
    deaf.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let echo = command(&[b"ECHO", &vec![b'x'; 60_000]]);
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match deaf.write_all(&echo) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => break true,
            Err(_) => break false,
            Ok(()) if Instant::now() > deadline => break false,
            Ok(()) => {}
        }
    };
    assert!(ended, "it may go on sending for ever");
    let grown = node.process.memory_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "grew by {grown} KiB");
    honest.finish();
}

#[test]
fn a_subscriber_that_does_not_read_is_disconnected_and_holds_up_nobody() {
    let node = Node::start(&["--default-tier", "efficiency"]);
    let mut deaf = node.connect();
    assert_eq!(deaf.ask(&["SUBSCRIBE", "news"]), "(\"subscribe\", \"news\", 1)");
    let mut publisher = node.connect();
    let message = "m".repeat(50_000);
    let deadline = Instant::now() + PATIENCE;
    while publisher.ask(&["PUBLISH", "news", &message]) != "0" {
        assert!(Instant::now() < deadline, "it still listens");
    }
}

/// The limit on open files is reached: those inside are served, and newcomers again once there is room.
#[test]
fn running_out_of_files_is_survived() {
    let node = Node::start(&["--default-tier", "efficiency"]);
    let mut early = node.connect();
    assert_eq!(early.ask(&["PING"]), "PONG");
    let pid = node.process.child.id().to_string();
    let limited =
        std::process::Command::new("prlimit").args(["--pid", &pid, "--nofile=60:60"]).status().unwrap();
    assert!(limited.success());
    let crowd: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(node.address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(early.ask(&["PING"]), "PONG");
    early.acquire(&["a", "60000"]);
    drop(crowd);
    support::await_that("newcomers are served again", || {
        let mut late = node.connect();
        late.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        late.send(&["PING"]);
        let mut answer = [0; 7];
        late.stream.read_exact(&mut answer).is_ok() && &answer == b"+PONG\r\n"
    });
}

/// Commands that the node has counted, in the reply to an `INFO stats`.
fn commands_in(info: &str) -> usize {
    let rest = info.split("total_commands_processed:").nth(1).unwrap_or_else(|| panic!("{info}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

fn is_stopped(node: &Node) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.process.child.id())).unwrap();
    stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
}

/// One thread for all clients, which finds two floods and another client between them at once, so that a flood is served first in
/// whatever order it takes them. Counted in commands, not in time.
#[test]
fn few_commands_of_a_flood_run_before_others_are_served() {
    /// Of some polls of the connections.
    const RUN_MAX: usize = 4_096;
    const PINGS: usize = 40_000;
    let single = |command: &mut std::process::Command| {
        command.env("TOKIO_WORKER_THREADS", "1");
    };
    let node = Node::start_by(single, &["--default-tier", "efficiency"]);
    let (mut first, mut other, mut second) = (node.connect(), node.connect(), node.connect());
    for client in [&mut first, &mut other, &mut second] {
        assert_eq!(client.ask(&["PING"]), "PONG");
    }
    // While it is stopped all of this gathers: it is found together.
    node.process.signal("STOP");
    support::await_that("the node is stopped", || is_stopped(&node));
    let ping = command(&[b"PING"]);
    let pings = ping.repeat(PINGS);
    let fill = |flood: &mut Client| {
        flood.stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(count @ 1..) = flood.stream.write(&pings[sent..]) {
            sent += count;
        }
        flood.stream.set_nonblocking(false).unwrap();
        assert!(sent / ping.len() > 2 * RUN_MAX, "the kernel took {sent} bytes");
        sent
    };
    let sent_first = fill(&mut first);
    other.send(&["INFO", "stats"]);
    let sent_second = fill(&mut second);
    node.process.signal("CONT");
    let run = commands_in(&other.receive());
    assert!(run < RUN_MAX, "{run} commands of the floods came first");
    for (mut flood, sent) in [(first, sent_first), (second, sent_second)] {
        flood.send_bytes(&pings[sent..]);
        for number in 0..PINGS {
            assert_eq!(flood.receive(), "PONG", "reply {number}");
        }
    }
}

#[test]
fn others_are_served_beside_floods_on_every_thread() {
    let two = |command: &mut std::process::Command| {
        command.env("TOKIO_WORKER_THREADS", "2");
    };
    let node = Node::start_by(two, &[]);
    let mut other = node.connect();
    let mut served = 0;
    let pings = command(&[b"PING"]).repeat(5_000);
    let until = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut stream = TcpStream::connect(node.address).unwrap();
                let mut reading = stream.try_clone().unwrap();
                scope.spawn(move || std::io::copy(&mut reading, &mut std::io::sink()));
                while Instant::now() < until {
                    stream.write_all(&pings).unwrap();
                }
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            });
        }
        while Instant::now() < until {
            assert_eq!(other.ask(&["PING"]), "PONG");
            served += 1;
        }
    });
    // Hundreds; with floods that are served to their end it was one or two.
    assert!(served >= 10, "{served} commands in three seconds");
}

#[test]
fn who_is_not_logged_in_may_send_64_commands_and_64_kib() {
    let node = Node::start(&["--password", "secret", "--default-tier", "efficiency"]);
    let refused = "-NOAUTH Authentication required.";
    let last =
        "-NOAUTH Authentication required: at most 64 commands and 64 KiB may come before AUTH; connect again";
    for (words, reply) in [("PING", refused), ("RESET", "RESET"), ("LOCK.ACQUIRE", refused)] {
        let mut stranger = node.connect();
        stranger.send_bytes(&command(&[words.as_bytes()]).repeat(1_000));
        for number in 1..=64 {
            assert_eq!(stranger.receive(), reply, "{words} {number}");
        }
        assert_eq!(stranger.receive(), last, "{words}");
        assert_eq!(stranger.receive(), "(closed)");
    }
    // Bytes that are no command at all.
    let mut stranger = node.connect();
    stranger.send_bytes(&b"\r\n".repeat(50_000));
    assert_eq!(stranger.receive(), last);
    assert_eq!(stranger.receive(), "(closed)");
    // Whoever logs in in time has no such limit, and has it anew after a RESET.
    let mut client = node.connect();
    for _ in 0..2 {
        for _ in 0..50 {
            assert_eq!(client.ask(&["PING"]), refused);
        }
        assert_eq!(client.ask(&["AUTH", "secret"]), "OK");
        for _ in 0..100 {
            assert_eq!(client.ask(&["PING"]), "PONG");
        }
        assert_eq!(client.ask(&["RESET"]), "RESET");
    }
}

/// Each level looked at all rights again. The user has none of them: they are not looked at.
#[test]
fn a_fence_call_of_a_fence_call_is_refused_whatever_the_rights() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    assert_eq!(client.ask(&["ACL", "SETUSER", "app", "on", "nopass", "+ping"]), "OK");
    assert_eq!(client.ask(&["AUTH", "app", "x"]), "OK");
    let mut words = ["FENCE.CALL", "r", "1"].repeat(300);
    words.extend(["SET", "k", "v"]);
    let reply = client.ask(&words);
    assert!(reply.starts_with("-ERR FENCE.CALL cannot run 'fence.call'"), "{reply}");
}
