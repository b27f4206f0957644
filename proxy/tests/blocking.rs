//! `BLPOP` and its like on the Raft keyspace: served in order, ended in time, left by those who go away, and nothing lost.

mod support;

use std::time::{Duration, Instant};
use support::{await_that, behind, Client, Node, Redis};

/// Waits until the machine has this many commands waiting for an item.
#[track_caller]
fn await_blocked(node: &Node, count: usize) {
    let mut client = node.connect();
    let line = format!("blocked_commands:{count}\\r\\n");
    await_that(&line, || client.ask(&["INFO", "redfence"]).contains(&line));
}

#[test]
fn what_comes_is_served_first_come_first_served() {
    let node = Node::start(&[]);
    let mut pusher = node.connect();
    let mut waiters: Vec<Client> = (0..3).map(|_| node.connect()).collect();
    for (place, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&["BLPOP", "other", "list", "0"]);
        await_blocked(&node, place + 1);
    }
    assert_eq!(pusher.ask(&["RPUSH", "list", "a", "b"]), "2");
    assert_eq!(waiters[0].receive(), "(\"list\", \"a\")");
    assert_eq!(waiters[1].receive(), "(\"list\", \"b\")");
    assert_eq!(pusher.ask(&["EXISTS", "list"]), "0");
    assert_eq!(pusher.ask_all(&["MULTI", "RPUSH other c", "RPUSH list d", "EXEC"])[3], "(1, 1)");
    assert_eq!(waiters[2].receive(), "(\"other\", \"c\")");
    assert_eq!(pusher.ask(&["LRANGE", "list", "0", "-1"]), "(\"d\")");
    // A script fills it, too.
    waiters[0].send(&["BLMOVE", "from", "to", "LEFT", "RIGHT", "0"]);
    await_blocked(&node, 1);
    assert_eq!(pusher.ask(&["EVAL", "return redis.call('rpush', KEYS[1], 'x')", "1", "from"]), "1");
    assert_eq!(waiters[0].receive(), "\"x\"");
    assert_eq!(pusher.ask(&["LRANGE", "to", "0", "-1"]), "(\"x\")");
}

#[test]
fn replies_and_time_outs_are_those_of_redis() {
    let (redis, node) = (Redis::start(), Node::start(&[]));
    let conversation = [
        "BLPOP nokey 0.01",
        "BRPOP nokey nokey2 0.01",
        "BRPOPLPUSH nokey list 0.01",
        "BLMOVE nokey list LEFT LEFT 0.01",
        "BZPOPMIN nokey 0.01",
        "BZPOPMAX nokey 0.01",
        "BLMPOP 0.01 1 nokey LEFT",
        "BZMPOP 0.01 1 nokey MIN",
        "RPUSH list a b c d e f",
        "BLPOP nokey list 0",
        "BRPOP list 0",
        "BLMPOP 0 2 nokey list RIGHT COUNT 2",
        "BLMOVE list list2 LEFT LEFT 0",
        "BRPOPLPUSH list list2 0",
        "ZADD zset 1.5 a 2 b 3 c",
        "BZPOPMIN nokey zset 0",
        "BZPOPMAX zset 0",
        "BZMPOP 0 2 nokey zset MAX COUNT 2",
        "SET text x",
        "BLPOP text 0",
        "BLPOP list -1",
        "BLPOP list x",
        "BLPOP list",
        "BLMPOP 0 0 list LEFT",
        "BLMOVE list list2 UP LEFT 0",
    ];
    for hello in ["HELLO 2", "HELLO 3"] {
        let (mut theirs, mut ours) = (Client::connect(redis.address), node.connect());
        for client in [&mut theirs, &mut ours] {
            client.ask_all(&[hello, "FLUSHALL"]);
        }
        for line in conversation {
            assert_eq!(ours.ask_all(&[line]), theirs.ask_all(&[line]), "{hello} {line}");
        }
    }
}

#[test]
fn a_time_out_is_kept_and_commands_behind_it_wait() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let start = Instant::now();
    // Long enough to look meanwhile.
    client.send(&["BLPOP", "list", "2"]);
    client.send(&["SET", "behind", "1"]);
    assert_eq!(node.connect().ask(&["EXISTS", "behind"]), "0");
    assert_eq!(client.receive(), "nil-array");
    assert!(start.elapsed() >= Duration::from_secs(2), "after {:?}", start.elapsed());
    assert_eq!(client.receive(), "OK");
    await_blocked(&node, 0);
}

#[test]
fn who_goes_away_leaves_the_queue_and_takes_nothing_along() {
    let node = Node::start(&[]);
    let mut pusher = node.connect();
    for round in 0..20 {
        let mut gone = node.connect();
        gone.send(&["BLPOP", "list", "0"]);
        await_blocked(&node, 1);
        let mut next = node.connect();
        // The push may come before or after the wait is called off; either way its item is not lost.
        drop(gone);
        assert_eq!(pusher.ask(&["RPUSH", "list", &round.to_string()]), "1");
        next.send(&["BLPOP", "list", "5"]);
        assert_eq!(next.receive(), format!("(\"list\", \"{round}\")"));
        await_blocked(&node, 0);
    }
}

#[test]
fn a_wait_without_end_outlives_the_timeout_of_requests() {
    let node = Node::start(&[]);
    let (mut waiter, mut pusher) = (node.connect(), node.connect());
    waiter.send(&["BZPOPMIN", "zset", "0"]);
    assert!(
        waiter.hears_nothing_for(Duration::from_millis(6_000)),
        "the timeout of requests is five seconds"
    );
    assert_eq!(pusher.ask(&["ZADD", "zset", "7", "m"]), "1");
    assert_eq!(waiter.receive(), "(\"zset\", \"m\", \"7\")");
}

fn id_of(client: &mut Client) -> String {
    client.ask(&["CLIENT", "ID"])
}

/// Ends a wait as soon as it can be ended.
#[track_caller]
fn unblock(by: &mut Client, id: &str, how: &[&str]) {
    let words = [&["CLIENT", "UNBLOCK", id], how].concat();
    await_that("the client waits", || by.ask(&words) == "1");
    assert_eq!(by.ask(&words), "0", "it waits no more");
}

/// `nil` stands for both kinds of it.
#[track_caller]
fn assert_told(reply: &str, told: &str) {
    assert_eq!(reply.strip_suffix("-array").unwrap_or(reply), told);
}

const UNBLOCKED: &str = "-UNBLOCKED client unblocked via CLIENT UNBLOCK";

#[test]
fn a_wait_is_ended_by_another_client() {
    let node = Node::start(&[]);
    let (mut holder, mut other) = (node.connect(), node.connect());
    let fence = holder.acquire(&["held", "600000"]).to_string();
    for owner in [&["OWNER", "me"][..], &[]] {
        for (how, told) in [(&[][..], "nil"), (&["timeout"], "nil"), (&["ERROR"], UNBLOCKED)] {
            let mut waiter = node.connect();
            let id = id_of(&mut waiter);
            waiter.send(&[&["LOCK.ACQUIRE", "held", "1000", "WAIT", "3600000"], owner].concat());
            unblock(&mut other, &id, how);
            assert_told(&waiter.receive(), told);
            assert_eq!(other.ask(&["LOCK.QUEUE", "held"]), "()");
            assert_eq!(waiter.ask(&["PING"]), "PONG", "it goes on");
        }
    }
    let mut waiter = node.connect();
    let id = id_of(&mut waiter);
    waiter.send(&["BLPOP", "list", "0"]);
    unblock(&mut other, &id, &["ERROR"]);
    assert_eq!(waiter.receive(), UNBLOCKED);
    assert_eq!(other.ask(&["RPUSH", "list", "x"]), "1");
    assert_eq!(waiter.ask(&["LLEN", "list"]), "1", "nothing was taken for it");
    assert!(other.ask(&["LOCK.RELEASE", "held", &fence]).contains("ok"));
    for (words, told) in [
        (&["UNBLOCK", "99999"][..], "0"),
        (&["UNBLOCK", "-1"], "0"),
        (&["UNBLOCK", "x"], "-ERR value is not an integer or out of range"),
        (&["UNBLOCK", "1", "now"], "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        (&["UNBLOCK"], "-ERR wrong number of arguments for 'client|unblock' command"),
    ] {
        assert_eq!(other.ask(&[&["CLIENT"], words].concat()), told, "{words:?}");
    }
}

/// In the Lua library, and in a command that the Redis itself lets wait.
#[test]
fn a_wait_at_an_upstream_redis_is_ended_by_another_client() {
    let (_redis, node) = behind(&["--route", "near:*=efficiency"]);
    let (mut holder, mut other) = (node.connect(), node.connect());
    holder.acquire(&["near:1", "600000"]);
    for (how, told) in [(&[][..], "nil"), (&["ERROR"], UNBLOCKED)] {
        let mut waiter = node.connect();
        let id = id_of(&mut waiter);
        waiter.send(&["LOCK.ACQUIRE", "near:1", "1000", "WAIT", "3600000", "OWNER", "me"]);
        unblock(&mut other, &id, how);
        assert_told(&waiter.receive(), told);
        assert_eq!(other.ask(&["LOCK.QUEUE", "near:1"]), "()");
        waiter.send(&["BLPOP", "list", "0"]);
        unblock(&mut other, &id, how);
        assert_told(&waiter.receive(), told);
        assert_eq!(waiter.ask(&["PING"]), "PONG", "it goes on");
    }
}
