//! `PUBLISH` on the correctness tier: what is published through one node is heard at all of them.

mod support;

use std::time::Duration;
use support::{await_that, start_cluster, Client, Node};

/// As Redisson does it: the name of the command is an argument.
const UNLOCK: &str = "redis.call('del', KEYS[1]) redis.call(ARGV[1], KEYS[2], ARGV[2]) return 1";

fn message(channel: &str, text: &str) -> String {
    format!("(\"message\", \"{channel}\", \"{text}\")")
}

#[test]
fn what_a_script_publishes_at_one_node_is_heard_at_all_in_order() {
    let nodes = start_cluster(3, &[]);
    let mut listeners: Vec<Client> = nodes.iter().map(Node::connect).collect();
    for listener in &mut listeners {
        assert_eq!(listener.ask(&["SUBSCRIBE", "chan:{k}"]), "(\"subscribe\", \"chan:{k}\", 1)");
        assert_eq!(listener.ask(&["PSUBSCRIBE", "other*"]), "(\"psubscribe\", \"other*\", 2)");
    }
    let mut clients: Vec<Client> = nodes.iter().map(Node::connect).collect();
    for round in 0..30 {
        let client = &mut clients[round % 3];
        let text = round.to_string();
        assert_eq!(client.ask(&["EVAL", UNLOCK, "2", "k", "chan:{k}", "PUBLISH", &text]), "1");
    }
    // One listener by name and one pattern at every node: each node counts its own.
    assert_eq!(clients[1].ask(&["PUBLISH", "other:1", "direct"]), "1");
    assert_eq!(clients[2].ask(&["PUBLISH", "nobody", "hears"]), "0");
    for listener in &mut listeners {
        for round in 0..30 {
            assert_eq!(listener.receive(), message("chan:{k}", &round.to_string()));
        }
        assert_eq!(listener.receive(), "(\"pmessage\", \"other*\", \"other:1\", \"direct\")");
        assert_eq!(listener.ask(&["PING"]), "(\"pong\", \"\")");
        assert_eq!(listener.ask(&["PING", "me"]), "(\"pong\", \"me\")");
        assert!(listener.ask(&["GET", "k"]).starts_with("-ERR Can't execute 'get'"));
    }
}

/// A waiter subscribes, is told so, looks at the lock, and then relies on the message of the release.
#[test]
fn nothing_is_missed_once_the_subscription_is_confirmed() {
    let nodes = start_cluster(3, &[]);
    let (mut holder, mut look) = (nodes[0].connect(), nodes[1].connect());
    for round in 0..40 {
        let (name, channel) = (format!("lock:{round}"), format!("free:{round}"));
        assert_eq!(holder.ask(&["SET", &name, "me", "NX"]), "OK");
        let mut waiter = nodes[1].connect();
        waiter.ask(&["SUBSCRIBE", &channel]);
        assert_eq!(look.ask(&["EXISTS", &name]), "1");
        assert_eq!(holder.ask(&["EVAL", UNLOCK, "2", &name, &channel, "publish", "0"]), "1");
        assert_eq!(waiter.receive(), message(&channel, "0"));
    }
}

#[test]
fn resp3_listeners_get_pushes_and_go_on_working() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    client.ask(&["HELLO", "3"]);
    assert_eq!(client.ask(&["SUBSCRIBE", "c"]), ">(\"subscribe\", \"c\", 1)");
    client.send(&["PUBLISH", "c", "m"]);
    let mut both = [client.receive(), client.receive()];
    both.sort();
    assert_eq!(both, ["1", ">(\"message\", \"c\", \"m\")"]);
    assert_eq!(client.ask(&["PING"]), "PONG");
    assert_eq!(client.ask(&["PUBSUB", "NUMSUB", "c", "d"]), "(\"c\", 1, \"d\", 0)");
}

#[test]
fn a_script_that_fails_has_published_nothing() {
    let node = Node::start(&[]);
    let mut listener = node.connect();
    listener.ask(&["SUBSCRIBE", "c"]);
    let mut client = node.connect();
    let endless = "redis.call('publish', 'c', 'lost') while true do end";
    assert!(client.ask(&["EVAL", endless, "0"]).starts_with("-"));
    assert_eq!(client.ask(&["PUBLISH", "c", "kept"]), "1");
    assert_eq!(listener.receive(), message("c", "kept"));
}

#[test]
fn a_restart_publishes_nothing_again() {
    let mut node = Node::start(&[]);
    let mut client = node.connect();
    for round in 0..200 {
        client.ask(&["PUBLISH", "c", &round.to_string()]);
    }
    node.process.signal("KILL");
    node.process.await_exit();
    let node = node.start_again(&[]);
    let mut listener = node.connect();
    listener.ask(&["SUBSCRIBE", "c"]);
    let mut client = node.connect();
    await_that("the node serves again", || client.ask(&["PUBLISH", "c", "new"]) == "1");
    assert_eq!(listener.receive(), message("c", "new"));
}

#[test]
fn a_listener_that_does_not_read_is_disconnected_and_holds_up_nobody() {
    let node = Node::start(&[]);
    let mut lazy = node.connect();
    lazy.ask(&["SUBSCRIBE", "c"]);
    let mut listener = node.connect();
    listener.ask(&["SUBSCRIBE", "c"]);
    let mut client = node.connect();
    let text = "x".repeat(60 * 1024);
    let mut sent = 0;
    // Its inbox takes 32 MiB, its socket a few more.
    while client.ask(&["PUBSUB", "NUMSUB", "c"]) != "(\"c\", 1)" {
        client.ask(&["PUBLISH", "c", &text]);
        sent += 1;
        assert!(listener.receive().starts_with("(\"message\""));
        assert!(sent < 4_000, "it is still there");
    }
    assert!(sent > 500, "after {sent} messages");
    assert!(listener.hears_nothing_for(Duration::from_millis(20)));
}

#[test]
fn lock_events_are_heard_from_the_first_one_on() {
    let node = Node::start(&[]);
    for round in 0..20 {
        let name = format!("lock:{round}");
        let mut watcher = node.connect();
        watcher.ask(&["SUBSCRIBE", &format!("__lock__:{name}")]);
        node.connect().acquire(&[&name, "1000", "TIER", "CORRECTNESS"]);
        assert!(watcher.receive().contains("acquired"));
    }
}

/// Every message is matched against every pattern: patterns and channel names are short wherever they come in, and a client has so
/// many bytes of them.
#[test]
fn long_patterns_and_channels_are_refused() {
    let nodes = start_cluster(1, &[]);
    let mut client = nodes[0].connect();
    let (fits, long) = ("a".repeat(1024), "a".repeat(1025));
    for refused in [
        &["SUBSCRIBE", &long][..],
        &["PSUBSCRIBE", &long],
        &["PUBLISH", &long, "m"],
        &["PUBSUB", "CHANNELS", &long],
        &["KEYS", &long],
        &["SCAN", "0", "MATCH", &long],
        &["SSCAN", "s", "0", "MATCH", &long],
        &["LOCK.SCAN", "0", "MATCH", &long],
        &["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", &long],
        &["CONFIG", "GET", &long],
    ] {
        let answer = client.ask(refused);
        assert!(answer.starts_with("-ERR") && answer.contains("1024"), "{} → {answer}", refused[0]);
    }
    assert_eq!(client.ask(&["PUBLISH", &fits, "m"]), "0");
    assert_eq!(client.ask(&["KEYS", &fits]), "()");
    let mut listener = nodes[0].connect();
    let mut refusal = None;
    for number in 0..100 {
        let answer = listener.ask(&["PSUBSCRIBE", &format!("{number:04}{}", "?".repeat(1020))]);
        refusal = refusal.or(answer.starts_with('-').then_some((number, answer)));
    }
    let (number, answer) = refusal.expect("a client may not have any number of patterns");
    assert!(number == 60 && answer.contains("64 KiB"), "{number}: {answer}");
}

/// One command may end all locks of a session. Whoever reads hears of each of them, however many they are.
#[test]
fn a_burst_of_lost_locks_costs_no_reader_its_connection() {
    const LOCKS: usize = 10_000;
    const BATCH: usize = 250;
    let node = Node::start(&[]);
    let mut watcher = node.connect();
    let mut listener = node.connect();
    let mut client = node.connect();
    let session = client.ask(&["LOCK.SESSION", "OPEN", "600000"]).trim_matches('"').to_owned();
    for batch in 0..LOCKS / BATCH {
        let names: Vec<String> = (0..BATCH).map(|at| format!("burst:{}", batch * BATCH + at)).collect();
        let count = BATCH.to_string();
        let mut words = vec!["LOCK.MACQUIRE", &count];
        words.extend(names.iter().map(String::as_str));
        words.extend(["0", "SESSION", &session]);
        assert!(client.ask(&words).starts_with("(("));
    }
    assert_eq!(listener.ask(&["PSUBSCRIBE", "__lock__:*"]), "(\"psubscribe\", \"__lock__:*\", 1)");
    assert_eq!(listener.ask(&["PSUBSCRIBE", "__lost__:*"]), "(\"psubscribe\", \"__lost__:*\", 2)");
    watcher.ask(&["HELLO", "3"]);
    assert!(watcher.ask(&["LOCK.NOTIFY", "ON", "SESSION", &session]).starts_with("(("));
    let heard = std::thread::spawn(move || {
        let pushes = (0..LOCKS).filter(|_| watcher.receive().starts_with(">(\"lock-lost\"")).count();
        (pushes, watcher.ask(&["PING"]))
    });
    let closed = std::thread::spawn(move || client.ask(&["LOCK.SESSION", "CLOSE", &session]));
    let messages = (0..2 * LOCKS).filter(|_| listener.receive().starts_with("(\"pmessage\"")).count();
    assert_eq!(messages, 2 * LOCKS);
    assert_eq!(heard.join().unwrap(), (LOCKS, "PONG".to_owned()));
    assert_eq!(closed.join().unwrap(), LOCKS.to_string());
}
