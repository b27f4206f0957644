//! Clients that share one connection to the upstream Redis: they must not notice.

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::{behind, behind_by, command, Client, Redis};

/// More small replies than a client needs before it shares.
const WARM: usize = 40;

fn warmed(address: SocketAddr) -> Client {
    warmed_with(address, "HELLO 2")
}

fn warmed_with(address: SocketAddr, hello: &str) -> Client {
    let mut client = Client::connect(address);
    client.ask_all(&[hello]);
    for _ in 0..WARM {
        assert_eq!(client.ask(&["EXISTS", "warm"]), "0");
    }
    client
}

/// All at once, then all replies.
fn pipeline(client: &mut Client, lines: &[String]) -> Vec<String> {
    for line in lines {
        client.send(&line.split(' ').collect::<Vec<_>>());
    }
    lines.iter().map(|_| client.receive()).collect()
}

/// All in pieces of so many bytes, then all replies.
fn pipeline_in_pieces(client: &mut Client, lines: &[String], bytes: usize) -> Vec<String> {
    for piece in frames(lines).chunks(bytes) {
        client.send_bytes(piece);
    }
    lines.iter().map(|_| client.receive()).collect()
}

fn frames(lines: &[String]) -> Vec<u8> {
    let words = lines.iter().map(|line| line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    words.flat_map(|words| command(&words)).collect()
}

/// Commands that share, commands that need the client's own connection, and commands the proxy answers, in turns.
fn mixed_lines(name: &str, round: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for step in 0..10 {
        let key = format!("{name}:{round}:{step}");
        lines.push(format!("SET {key} {step}"));
        lines.push(format!("INCRBY {key} 5"));
        lines.push(format!("ECHO between-{key}"));
        lines.push(format!("GET {key}"));
        lines.push(format!("EVAL return\t{{KEYS[1],ARGV[1]}} 1 {key} x"));
        lines.push(format!("LPUSH {key}:list a b c"));
        match step % 5 {
            0 => {
                lines.extend(["MULTI".into(), format!("INCR {key}"), format!("GET {key}"), "EXEC".into()]);
            }
            1 => lines.push(format!("BLPOP {key}:list 1")),
            2 => lines.extend([
                format!("WATCH {key}"),
                format!("GET {key}"),
                "MULTI".into(),
                format!("SET {key} w"),
                "EXEC".into(),
                format!("GET {key}"),
            ]),
            3 => lines.extend(["PING".into(), format!("HGET {key} wrong-type"), "NOSUCHCOMMAND".into()]),
            _ => lines.extend([
                "SELECT 3".into(),
                format!("SET {key} other"),
                format!("GET {key}"),
                "SELECT 0".into(),
                format!("GET {key}"),
                format!("HSET {key}:hash f v g w"),
                format!("HGETALL {key}:hash"),
            ]),
        }
        lines.push(format!("LRANGE {key}:list 0 -1"));
        for number in 0..step * 3 {
            lines.push(format!("SET {key}:{number} {}\r\n$1\r\n", "v".repeat(number * step)));
            lines.push(format!("get {key}:{number}"));
        }
    }
    lines
}

#[test]
fn replies_are_those_of_redis_in_its_order() {
    replies_are_those_of_redis("1");
}

#[test]
fn replies_are_those_of_redis_in_its_order_by_many_threads() {
    replies_are_those_of_redis("4");
}

fn replies_are_those_of_redis(threads: &str) {
    let (_redis, node) = behind_by(
        |command| {
            command.env("TOKIO_WORKER_THREADS", threads);
        },
        &["--route", "wallet:*=correctness"],
    );
    let beside = Redis::start();
    let (through, straight) = (node.address, beside.address);
    let clients = (0..6).map(|number| {
        std::thread::spawn(move || {
            let hello = if number % 2 == 0 { "HELLO 2" } else { "HELLO 3" };
            let (mut ours, mut theirs) = (warmed_with(through, hello), warmed_with(straight, hello));
            for round in 0..20 {
                let lines = mixed_lines(&format!("c{number}"), round);
                let got = match round % 3 {
                    0 => pipeline(&mut ours, &lines),
                    1 => pipeline_in_pieces(&mut ours, &lines, usize::MAX),
                    _ => pipeline_in_pieces(&mut ours, &lines, 97 + 101 * round),
                };
                let expected = pipeline_in_pieces(&mut theirs, &lines, usize::MAX);
                for ((line, got), expected) in lines.iter().zip(&got).zip(&expected) {
                    assert_eq!(got, expected, "{line} in round {round} of client {number}");
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.join().unwrap();
    }
}

#[test]
fn routes_hold_in_the_midst_of_a_burst() {
    let (redis, node) = behind(&["--route", "wallet:*=correctness", "--route", "*:locked=correctness"]);
    let mut client = warmed(node.address);
    let lines = [
        ("SET a 1", "OK"),
        ("SET wallet:1 owner NX PX 30000", "OK"),
        ("GET a", "\"1\""),
        ("GET wallet:1", "\"owner\""),
        ("GET b:locked", "nil"),
        ("MGET a b", "(\"1\", nil)"),
        ("MGET a wallet:1", "-CROSSTIER"),
        ("GET", "-ERR wrong number of arguments"),
        ("GET a", "\"1\""),
    ];
    for round in 0..20 {
        let mut burst: Vec<String> = lines.iter().map(|(line, _)| (*line).to_string()).collect();
        burst.push("DEL wallet:1".into());
        let got = pipeline_in_pieces(&mut client, &burst, usize::MAX);
        for ((line, expected), got) in lines.iter().zip(&got) {
            assert!(got.starts_with(expected), "{line} in round {round}: {got}");
        }
    }
    let mut straight = Client::connect(redis.address);
    assert_eq!(straight.ask(&["EXISTS", "wallet:1", "b:locked"]), "0");
    assert_eq!(straight.ask(&["GET", "a"]), "\"1\"");
}

#[test]
fn a_burst_of_more_than_may_be_under_way_is_answered_in_order() {
    let (_redis, node) = behind(&[]);
    let mut client = warmed(node.address);
    let lines: Vec<String> = (0..5000).map(|number| format!("SETRANGE key {} x", number * 3)).collect();
    let got = pipeline_in_pieces(&mut client, &lines, usize::MAX);
    for (number, got) in got.iter().enumerate() {
        assert_eq!(*got, (number * 3 + 1).to_string());
    }
}

#[test]
fn unwanted_replies_in_the_midst_of_a_burst_stay_away() {
    let (_redis, node) = behind(&[]);
    let mut client = warmed(node.address);
    let before = commands_run(&mut client);
    let lines = ["SET a 1", "CLIENT REPLY SKIP", "INCR a", "INCR a", "CLIENT REPLY OFF", "INCR a", "INCR a"];
    let rest = ["CLIENT REPLY ON", "GET a", "INCR a"];
    let all: Vec<String> = lines.iter().chain(&rest).map(|line| (*line).to_string()).collect();
    client.send_bytes(&frames(&all));
    for expected in ["OK", "3", "OK", "\"5\"", "6"] {
        assert_eq!(client.receive(), expected);
    }
    // Each is counted once, and so is the INFO that asked before.
    assert_eq!(commands_run(&mut client) - before, all.len() as u64 + 1);
}

fn commands_run(client: &mut Client) -> u64 {
    let info = client.ask(&["INFO", "redfence"]);
    let line = info.rsplit("commands:").next().unwrap();
    line.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn quick_commands_share_a_connection_and_others_do_not() {
    let (redis, node) = behind(&[]);
    let (mut one, mut two) = (warmed(node.address), warmed(node.address));
    let mut monitor = Client::connect(redis.address);
    assert_eq!(monitor.ask(&["MONITOR"]), "OK");
    let mut sources = Vec::new();
    for (client, line) in [(&mut one, "GET shared:1"), (&mut two, "GET shared:2")] {
        client.ask_all(&[line]);
        sources.push(source_of(&mut monitor, "shared:"));
    }
    for (client, line) in [(&mut one, "BLPOP own:1 0.01"), (&mut two, "BLPOP own:2 0.01")] {
        client.ask_all(&[line]);
        sources.push(source_of(&mut monitor, "own:"));
    }
    assert_eq!(sources[0], sources[1]);
    assert!(sources[2] != sources[0] && sources[3] != sources[0] && sources[2] != sources[3], "{sources:?}");
}

/// From which address the next command came that has `part` in it.
fn source_of(monitor: &mut Client, part: &str) -> String {
    loop {
        let line = monitor.receive();
        if line.contains(part) {
            return line.split(['[', ']']).nth(1).unwrap().to_string();
        }
    }
}

#[test]
fn a_large_reply_passes_whole_and_its_client_gets_a_connection_of_its_own() {
    let (redis, node) = behind(&[]);
    let large = "x".repeat(3 * 1024 * 1024);
    assert_eq!(Client::connect(redis.address).ask(&["SET", "large", &large]), "OK");
    let (mut one, mut two) = (warmed(node.address), warmed(node.address));
    for client in [&mut one, &mut two] {
        client.send(&["GET", "none"]);
        client.send(&["GET", "large"]);
        client.send(&["PING"]);
        client.send(&["GET", "none"]);
    }
    for client in [&mut one, &mut two] {
        assert_eq!(client.receive(), "nil");
        assert_eq!(client.receive().trim_matches('"'), large);
        assert_eq!(client.receive(), "PONG");
        assert_eq!(client.receive(), "nil");
    }
    let mut monitor = Client::connect(redis.address);
    assert_eq!(monitor.ask(&["MONITOR"]), "OK");
    one.ask_all(&["GET own:1"]);
    two.ask_all(&["GET own:2"]);
    assert_ne!(source_of(&mut monitor, "own:1"), source_of(&mut monitor, "own:2"));
}

#[test]
fn who_does_not_read_its_replies_holds_nobody_up_for_long() {
    let (redis, node) = behind(&[]);
    let large = "x".repeat(40 * 1024 * 1024);
    assert_eq!(Client::connect(redis.address).ask(&["SET", "large", &large]), "OK");
    let (mut lazy, mut other) = (warmed(node.address), warmed(node.address));
    lazy.send(&["GET", "large"]);
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(other.ask(&["GET", "none"]), "nil");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // Whoever comes again begins with a connection of its own, and may take its time.
    let mut again = node.connect();
    again.send(&["GET", "large"]);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(other.ask(&["GET", "none"]), "nil");
    assert_eq!(again.receive().len(), large.len() + 2);
}

#[test]
fn the_loss_of_the_redis_is_told_and_its_return_is_found() {
    let (mut redis, node) = behind(&[]);
    let mut clients: Vec<Client> = (0..3).map(|_| warmed(node.address)).collect();
    redis.stop();
    for client in &mut clients {
        for line in ["GET a", "PING", "SET a b"] {
            client.send(&line.split(' ').collect::<Vec<_>>());
        }
        for expected in ["-", "PONG", "-"] {
            let reply = client.receive();
            assert!(reply.starts_with(expected), "{reply}");
            let code = reply.starts_with("-UNAVAILABLE ") || reply.starts_with("-INDETERMINATE ");
            assert_eq!(code, expected == "-", "{reply}");
        }
    }
    redis.launch();
    for client in &mut clients {
        assert_eq!(client.ask(&["SET", "a", "b"]), "OK");
        assert_eq!(client.ask(&["GET", "a"]), "\"b\"");
    }
}

#[test]
fn waiting_for_replicas_covers_what_went_by_the_shared_connection() {
    let (redis, node) = behind(&[]);
    let mut client = warmed(node.address);
    assert_eq!(client.ask(&["SET", "a", "b"]), "OK");
    let mut monitor = Client::connect(redis.address);
    assert_eq!(monitor.ask(&["MONITOR"]), "OK");
    assert_eq!(client.ask(&["WAIT", "0", "10"]), "0");
    // A write on the very connection that waits comes first.
    let write = source_of(&mut monitor, "\"PUBLISH\"");
    assert_eq!(source_of(&mut monitor, "\"WAIT\""), write);
}
