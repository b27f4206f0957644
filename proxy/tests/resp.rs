//! What a Redis client meets: greeting, authentication, manners, order of replies, pub/sub.

mod support;

use std::time::Duration;
use support::{await_that, command, Client, Node};

fn efficiency() -> Node {
    Node::start(&["--default-tier", "efficiency"])
}

#[test]
fn greetings_and_refusals_are_those_of_redis() {
    let node = efficiency();
    let mut client = node.connect();
    for (line, expected) in [
        ("PING", "PONG"),
        ("PING hi", "\"hi\""),
        ("ECHO x", "\"x\""),
        ("SELECT 15", "OK"),
        ("SELECT 16", "-ERR DB index is out of range"),
        ("SELECT x", "-ERR value is not an integer or out of range"),
        ("SELECT 0", "OK"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range"),
        ("AUTH x", "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"),
        ("CLUSTER SLOTS", "-ERR This instance has cluster support disabled"),
        ("foo a b", "-ERR unknown command 'foo', with args beginning with: 'a' 'b' "),
        ("FOO", "-ERR unknown command 'FOO', with args beginning with: "),
        ("SENTINEL masters", "-ERR unknown command 'SENTINEL', with args beginning with: 'masters' "),
        ("GET", "-ERR wrong number of arguments for 'get' command"),
        ("GET nothing", "nil"),
        ("CLIENT SETNAME me", "OK"),
        ("CLIENT GETNAME", "\"me\""),
        ("CLIENT SETINFO LIB-NAME redis-py", "OK"),
        ("CLIENT SETINFO LIB-VER 8.1.0", "OK"),
        ("CLIENT MAINT_NOTIFICATIONS ON", "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."),
        ("CLIENT NO-EVICT ON", "OK"),
        ("CONFIG GET timeout", "(\"timeout\", \"0\")"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(client.ask(&words), expected, "{line}");
    }
    client.send_words(&[b"ECHO", b"\x00\xff\r\n\x01"]);
    assert_eq!(client.receive(), "\"\\x00\\xff\\r\\n\\x01\"");
    let info = client.ask(&["INFO"]);
    for part in ["redis_version:", "# Clients", "role:master", "# Redfence", "loading:0"] {
        assert!(info.contains(part), "{part}: {info}");
    }
    assert_eq!(
        client.ask(&["CLIENT", "SETNAME", "with space"]),
        "-ERR Client names cannot contain spaces, newlines or special characters."
    );
}

#[test]
fn hello_switches_and_reset_switches_back() {
    let node = efficiency();
    let mut client = node.connect();
    let greeting = client.ask(&["HELLO", "3", "SETNAME", "me"]);
    assert!(greeting.starts_with('{') && greeting.contains("\"proto\", 3"), "{greeting}");
    assert!(client.ask(&["LOCK.INFO", "x"]).starts_with('{'));
    client.acquire(&["x", "10000"]);
    client.send(&["LOCK.ACQUIRE", "x", "10000"]);
    let mut byte = [0; 3];
    std::io::Read::read_exact(&mut client.stream, &mut byte).unwrap();
    assert_eq!(&byte, b"_\r\n");
    assert_eq!(client.ask(&["CLIENT", "GETNAME"]), "\"me\"");
    assert_eq!(client.ask(&["RESET"]), "RESET");
    assert_eq!(client.ask(&["CLIENT", "GETNAME"]), "nil");
    assert!(client.ask(&["LOCK.INFO", "x"]).starts_with('('));
    assert!(client.ask(&["HELLO"]).contains("\"proto\", 2"));
    assert_eq!(client.ask(&["QUIT"]), "OK");
    assert_eq!(client.receive(), "(closed)");
}

#[test]
fn nobody_gets_in_without_the_password() {
    let node = Node::start(&["--password", "secret", "--default-tier", "efficiency"]);
    let mut client = node.connect();
    for line in ["PING", "LOCK.ACQUIRE a 1000", "GET a", "INFO", "SUBSCRIBE x", "CLIENT LIST"] {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(client.ask(&words), "-NOAUTH Authentication required.", "{line}");
    }
    assert!(client.ask(&["HELLO", "3"]).starts_with("-NOAUTH HELLO must be called"));
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(client.ask(&["AUTH", "guess"]), wrong);
    assert_eq!(client.ask(&["AUTH", "root", "secret"]), wrong);
    assert_eq!(client.ask(&["HELLO", "3", "AUTH", "default", "guess"]), wrong);
    assert_eq!(client.ask(&["AUTH", "secret"]), "OK");
    client.acquire(&["a", "1000"]);
    let mut other = node.connect();
    assert!(other.ask(&["HELLO", "3", "AUTH", "default", "secret"]).starts_with('{'));
    assert_eq!(other.ask(&["RESET"]), "RESET");
    assert_eq!(other.ask(&["PING"]), "-NOAUTH Authentication required.");
    // Before it has said who it is a client may send little.
    let mut stranger = node.connect();
    stranger.send_bytes(b"*11\r\n");
    assert_eq!(stranger.receive(), "-ERR Protocol error: unauthenticated multibulk length");
    assert_eq!(stranger.receive(), "(closed)");
}

#[test]
fn replies_come_in_order_whoever_gives_them() {
    let node = Node::start(&["--route", "fast:*=efficiency"]);
    let mut client = node.connect();
    let mut bytes = Vec::new();
    for number in 0..200 {
        let (name, fast) = (format!("slow:{number}"), format!("fast:{number}"));
        bytes.extend(command(&[b"LOCK.ACQUIRE", name.as_bytes(), b"60000", b"OWNER", b"o"]));
        bytes.extend(command(&[b"ECHO", number.to_string().as_bytes()]));
        bytes.extend(command(&[b"LOCK.ACQUIRE", fast.as_bytes(), b"60000"]));
        bytes.extend(command(&[b"LOCK.INFO", name.as_bytes()]));
    }
    client.send_bytes(&bytes);
    for number in 0..200 {
        support::fence_of(&client.receive());
        assert_eq!(client.receive(), format!("\"{number}\""));
        support::fence_of(&client.receive());
        let info = client.receive();
        assert!(info.contains(&format!("slow:{number}\"")) && info.contains("held"), "{info}");
    }
}

#[test]
fn a_wait_holds_up_its_own_connection_alone() {
    for flags in [&["--default-tier", "efficiency"][..], &[]] {
        let node = Node::start(flags);
        let (mut holder, mut waiter, mut other) = (node.connect(), node.connect(), node.connect());
        let fence = holder.acquire(&["a", "60000"]);
        waiter.send(&["LOCK.ACQUIRE", "a", "60000", "WAIT", "60000"]);
        waiter.send(&["PING"]);
        await_that("it stands in the queue", || other.ask(&["LOCK.QUEUE", "a"]) != "()");
        assert_eq!(other.ask(&["PING"]), "PONG");
        assert!(waiter.hears_nothing_for(Duration::from_millis(100)), "PING overtook a blocked command");
        assert_eq!(holder.ask(&["LOCK.RELEASE", "a", &fence.to_string()]), "(1, \"ok\")");
        assert!(support::fence_of(&waiter.receive()) > fence);
        assert_eq!(waiter.receive(), "PONG");
    }
}

#[test]
fn a_waiter_that_goes_away_leaves_the_queue() {
    for flags in [&["--default-tier", "efficiency"][..], &[]] {
        let node = Node::start(flags);
        let mut holder = node.connect();
        let fence = holder.acquire(&["a", "60000"]);
        let mut waiter = node.connect();
        waiter.send(&["LOCK.ACQUIRE", "a", "60000", "WAIT", "60000"]);
        await_that("it stands in the queue", || holder.ask(&["LOCK.QUEUE", "a"]) != "()");
        // Even with more bytes unread than a connection keeps.
        let pipelined = command(&[b"PING"]).repeat(20_000);
        waiter.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = std::io::Write::write_all(&mut waiter.stream, &pipelined);
        drop(waiter);
        await_that("it has left", || holder.ask(&["LOCK.QUEUE", "a"]) == "()");
        assert_eq!(holder.ask(&["LOCK.RELEASE", "a", &fence.to_string()]), "(1, \"ok\")");
        assert!(holder.ask(&["LOCK.INFO", "a"]).contains("\"free\""));
    }
}

/// An owner made up by the server can never ask again: what it is granted after its client went away is given back.
#[test]
fn grants_nobody_can_take_are_given_back() {
    for flags in [&["--default-tier", "efficiency"][..], &[]] {
        let node = Node::start(flags);
        let mut watcher = node.connect();
        for round in 0..50 {
            let name = format!("lock:{round}");
            let fence = watcher.acquire(&[&name, "60000"]);
            let mut waiter = node.connect();
            waiter.send(&["LOCK.ACQUIRE", &name, "60000", "WAIT", "60000"]);
            await_that("it stands in the queue", || watcher.ask(&["LOCK.QUEUE", &name]) != "()");
            // It is gone, but the node may hear of the release first.
            drop(waiter);
            assert_eq!(watcher.ask(&["LOCK.RELEASE", &name, &fence.to_string()]), "(1, \"ok\")");
            await_that("the grant is given back", || watcher.ask(&["LOCK.INFO", &name]).contains("\"free\""));
        }
    }
}

#[test]
fn sessions_live_by_their_connection() {
    let node = Node::start(&[]);
    let mut owner = node.connect();
    let mut watcher = node.connect();
    let session = owner.ask(&["LOCK.SESSION", "OPEN", "4000"]);
    let session = session.trim_matches('"').to_string();
    owner.acquire(&["a", "0", "SESSION", &session]);
    // Any command keeps it alive well past its ttl.
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(owner.ask(&["PING"]), "PONG");
    }
    assert!(watcher.ask(&["LOCK.INFO", "a"]).contains("held"));
    drop(owner);
    await_that("the session ends with its connection", || watcher.ask(&["LOCK.INFO", "a"]).contains("free"));
    // An idle connection does not keep it alive.
    let mut idle = node.connect();
    let session = idle.ask(&["LOCK.SESSION", "OPEN", "2000"]);
    idle.acquire(&["b", "0", "SESSION", session.trim_matches('"')]);
    await_that("a frozen client loses its session", || watcher.ask(&["LOCK.INFO", "b"]).contains("free"));
    assert!(idle.ask(&["LOCK.SESSION", "KEEPALIVE", session.trim_matches('"')]).starts_with("-NOSESSION"));
}

#[test]
fn closed_sessions_make_room_for_others() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let open = |client: &mut Client, count: usize| -> Vec<String> {
        (0..count).for_each(|_| client.send(&["LOCK.SESSION", "OPEN", "60000"]));
        (0..count).map(|_| client.receive()).collect()
    };
    let sessions = open(&mut client, 1024);
    assert!(open(&mut client, 1)[0].starts_with("-ERR this connection has opened 1024 sessions"));
    assert_eq!(client.ask(&["LOCK.SESSION", "CLOSE", sessions[7].trim_matches('"')]), "0");
    assert!(open(&mut client, 1)[0].starts_with('"'));
}

#[test]
fn blocked_in_a_wait_keeps_a_session_alive() {
    let node = Node::start(&[]);
    let (mut holder, mut waiter) = (node.connect(), node.connect());
    let fence = holder.acquire(&["a", "60000"]);
    let session = waiter.ask(&["LOCK.SESSION", "OPEN", "3000"]);
    waiter.send(&["LOCK.ACQUIRE", "a", "0", "SESSION", session.trim_matches('"'), "WAIT", "30000"]);
    std::thread::sleep(Duration::from_millis(4500));
    assert_eq!(holder.ask(&["LOCK.RELEASE", "a", &fence.to_string()]), "(1, \"ok\")");
    support::fence_of(&waiter.receive());
}

#[test]
fn listening_in_resp2_allows_little_and_in_resp3_everything() {
    let node = efficiency();
    let (mut old, mut new, mut other) = (node.connect(), node.connect(), node.connect());
    assert_eq!(old.ask(&["SUBSCRIBE", "news", "__lock__:a"]), "(\"subscribe\", \"news\", 1)");
    assert_eq!(old.receive(), "(\"subscribe\", \"__lock__:a\", 2)");
    assert_eq!(old.ask(&["PSUBSCRIBE", "n*"]), "(\"psubscribe\", \"n*\", 3)");
    assert_eq!(old.ask(&["PING"]), "(\"pong\", \"\")");
    let refused = "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context";
    assert_eq!(old.ask(&["GET", "a"]), refused);
    new.ask(&["HELLO", "3"]);
    assert_eq!(new.ask(&["SUBSCRIBE", "news"]), ">(\"subscribe\", \"news\", 1)");
    assert_eq!(new.ask(&["PING"]), "PONG");
    assert_eq!(other.ask(&["PUBLISH", "news", "hi"]), "3");
    assert_eq!(old.receive(), "(\"message\", \"news\", \"hi\")");
    assert_eq!(old.receive(), "(\"pmessage\", \"n*\", \"news\", \"hi\")");
    assert_eq!(new.receive(), ">(\"message\", \"news\", \"hi\")");
    let fence = new.acquire(&["a", "60000", "OWNER", "me"]);
    let event = old.receive();
    assert!(event.contains("acquired") && event.contains(&fence.to_string()), "{event}");
    assert_eq!(other.ask(&["PUBSUB", "NUMSUB", "news", "none"]), "(\"news\", 2, \"none\", 0)");
    assert_eq!(other.ask(&["PUBSUB", "CHANNELS"]), "(\"__lock__:a\", \"news\")");
    assert_eq!(other.ask(&["PUBSUB", "NUMPAT"]), "1");
    assert_eq!(old.ask(&["UNSUBSCRIBE"]), "(\"unsubscribe\", \"__lock__:a\", 2)");
    assert_eq!(old.receive(), "(\"unsubscribe\", \"news\", 1)");
    assert_eq!(old.ask(&["PUNSUBSCRIBE"]), "(\"punsubscribe\", \"n*\", 0)");
    assert_eq!(old.ask(&["UNSUBSCRIBE"]), "(\"unsubscribe\", nil, 0)");
    assert_eq!(old.ask(&["PING"]), "PONG");
}

#[test]
fn clients_are_counted_listed_and_killed() {
    let node = Node::start(&["--max-clients", "3"]);
    let (mut one, mut two, three) = (node.connect(), node.connect(), node.connect());
    let id = two.ask(&["CLIENT", "ID"]);
    two.ask(&["CLIENT", "SETNAME", "second"]);
    assert_eq!(one.ask(&["PING"]), "PONG");
    await_that("three are in", || one.ask(&["INFO", "clients"]).contains("connected_clients:3"));
    let mut fourth = node.connect();
    assert_eq!(fourth.receive(), "-ERR max number of clients reached");
    assert_eq!(fourth.receive(), "(closed)");
    assert!(one.ask(&["CLIENT", "LIST"]).contains("name=second"));
    assert_eq!(one.ask(&["CLIENT", "KILL", "ID", &id]), "1");
    assert_eq!(two.receive(), "(closed)");
    assert_eq!(one.ask(&["CLIENT", "KILL", "1.2.3.4:5"]), "-ERR No such client");
    drop(three);
    await_that("there is room again", || Client::connect(node.address).ask(&["PING"]) == "PONG");
}

#[test]
fn who_is_not_logged_in_makes_room_for_others() {
    let node = Node::start(&["--max-clients", "3", "--password", "secret"]);
    let mut known = node.connect();
    assert_eq!(known.ask(&["AUTH", "secret"]), "OK");
    let mut silent = Vec::new();
    for count in 2..=3 {
        silent.push(node.connect());
        let all = format!("connected_clients:{count}");
        await_that("it is in", || known.ask(&["INFO", "clients"]).contains(&all));
    }
    let mut late = node.connect();
    assert_eq!(late.ask(&["AUTH", "secret"]), "OK", "the oldest silent one makes room");
    assert_eq!(silent[0].receive(), "(closed)");
    assert_eq!(silent[1].ask(&["AUTH", "secret"]), "OK", "the other one is still there");
    assert_eq!(node.connect().receive(), "-ERR max number of clients reached", "all are logged in");
    assert_eq!(known.ask(&["PING"]), "PONG");
}

#[test]
fn one_address_has_its_own_limit() {
    let node = Node::start(&["--max-clients-per-address", "2"]);
    let (mut one, two) = (node.connect(), node.connect());
    await_that("two are in", || one.ask(&["INFO", "clients"]).contains("connected_clients:2"));
    let mut third = node.connect();
    assert_eq!(third.receive(), "-ERR max number of clients of this address reached");
    assert_eq!(third.receive(), "(closed)");
    drop(two);
    await_that("there is room again", || Client::connect(node.address).ask(&["PING"]) == "PONG");
}

#[test]
fn idle_clients_are_disconnected_and_waiting_ones_are_not() {
    let node = Node::start(&["--idle-timeout-ms", "3000"]);
    let (mut idle, mut waits, mut listens) = (node.connect(), node.connect(), node.connect());
    assert_eq!(waits.ask(&["CONFIG", "GET", "timeout"]), "(\"timeout\", \"3\")");
    waits.send(&["BLPOP", "list", "0"]);
    listens.ask(&["SUBSCRIBE", "news"]);
    assert_eq!(idle.ask(&["PING"]), "PONG");
    assert_eq!(idle.receive(), "(closed)");
    let mut fresh = node.connect();
    assert_eq!(fresh.ask(&["PUBLISH", "news", "hello"]), "1");
    assert!(listens.receive().contains("hello"));
    assert_eq!(fresh.ask(&["RPUSH", "list", "item"]), "1");
    assert_eq!(waits.receive(), "(\"list\", \"item\")");
    assert!(fresh.ask(&["INFO", "stats"]).contains("idle_disconnected_clients:1"));
}

#[test]
fn names_cannot_forge_lines_of_the_log() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let hostile = "x\n2026-01-01T00:00:00Z  WARN forged\r\x1b[2J";
    for command in [
        &["LOCK.FORCERELEASE", hostile][..],
        &["LOCK.CLUSTER", "SET", "route", hostile],
        &["LOCK.CLUSTER", "SET", "max-memory", hostile],
        &["LOCK.CLUSTER", "ADD", "7", hostile],
        &["CLIENT", "SETNAME", hostile],
        &["AUTH", hostile],
        &["AUTH", hostile, hostile],
        &["HELLO", "3", "AUTH", hostile, hostile],
        &["LOCK.ACQUIRE", hostile, "1000", "OWNER", hostile],
        &["EVAL", hostile, "1", hostile],
        &["SUBSCRIBE", hostile],
    ] {
        client.ask(command);
    }
    await_that("the log has the event", || node.process.log().contains("LOCK.FORCERELEASE"));
    let log = node.process.log();
    assert!(!log.contains('\x1b') && !log.contains('\r'), "{log}");
    assert!(log.lines().all(|line| !line.starts_with("2026-01-01T00:00:00Z")), "{log}");
}

#[test]
fn client_reply_off_and_skip() {
    let node = Node::start(&["--route", "fast:*=efficiency"]);
    let mut client = node.connect();
    for line in [
        "CLIENT REPLY SKIP",
        "PING",
        "CLIENT REPLY OFF",
        "PING",
        "LOCK.ACQUIRE a 60000",
        "LOCK.ACQUIRE fast:a 60000",
        "NOSUCH",
        "CLIENT REPLY ON",
    ] {
        client.send(&line.split(' ').collect::<Vec<_>>());
    }
    assert_eq!(client.receive(), "OK");
    assert!(client.ask(&["LOCK.INFO", "a"]).contains("held"));
    assert!(client.ask(&["LOCK.INFO", "fast:a"]).contains("held"));
    client.send(&["CLIENT", "REPLY", "SKIP"]);
    client.send(&["LOCK.ACQUIRE", "b", "60000"]);
    assert_eq!(client.ask(&["ECHO", "x"]), "\"x\"");
}

#[test]
fn inline_commands_work() {
    let node = efficiency();
    let mut client = node.connect();
    client.send_bytes(b"PING\r\nECHO \"a b\"\nLOCK.ACQUIRE a 60000 OWNER me\r\n\r\nPING\r\n");
    assert_eq!(client.receive(), "PONG");
    assert_eq!(client.receive(), "\"a b\"");
    support::fence_of(&client.receive());
    assert_eq!(client.receive(), "PONG");
}

#[test]
fn replies_reach_a_client_that_closed_its_sending_side() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    client.send(&["LOCK.ACQUIRE", "a", "60000", "OWNER", "me"]);
    client.send(&["LOCK.INFO", "a"]);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    support::fence_of(&client.receive());
    assert!(client.receive().contains("held"));
    assert_eq!(client.receive(), "(closed)");
}

#[test]
fn the_correctness_door_serves_tier_2_alone() {
    let correctness_address = support::free_address();
    let node = Node::start(&[
        "--default-tier",
        "efficiency",
        "--correctness-listen",
        &correctness_address.to_string(),
    ]);
    let mut client = Client::connect(correctness_address);
    client.acquire(&["a", "60000"]);
    assert!(client.ask(&["LOCK.INFO", "a"]).contains("CORRECTNESS"));
    assert!(client.ask(&["LOCK.INFO", "a", "TIER", "EFFICIENCY"]).starts_with("-TIER "));
    // Without a Redis there is one store, whichever the listener.
    assert!(node.connect().ask(&["LOCK.INFO", "a"]).contains("held"));
}
