//! Kinds of locks as clients see them: shared, permits, conversion, values, policies; and in `notify`, who is told of a lost lock.

#[path = "../support/mod.rs"]
mod support;

mod notify;

use support::{await_that, behind, fence_of, Client, Node};

/// A node whose cluster runs version 2.
fn node() -> Node {
    let node = Node::start(&[]);
    runs_version_2(&node);
    node
}

fn runs_version_2(node: &Node) {
    let mut client = node.connect();
    await_that("the cluster runs version 2", || {
        client.ask(&["LOCK.CLUSTER", "VERSION"]).starts_with("(\"cluster_version\", 2,")
    });
}

fn resp3(node: &Node) -> Client {
    let mut client = node.connect();
    assert!(client.ask(&["HELLO", "3"]).starts_with('{'));
    client
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

fn grant(client: &mut Client, line: &str) -> u64 {
    fence_of(&client.ask(&words(line)))
}

fn session(client: &mut Client, line: &str) -> String {
    client.ask(&words(line)).trim_matches('"').to_string()
}

fn code(reply: &str) -> &str {
    reply.split(' ').next().unwrap_or_default()
}

#[test]
fn readers_writers_and_permits() {
    let node = node();
    for mut client in [node.connect(), resp3(&node)] {
        let mut other = node.connect();
        let first = grant(&mut client, "LOCK.ACQUIRE r 60000 OWNER a SHARED VALUE here");
        let second = grant(&mut other, "LOCK.ACQUIRE r 60000 OWNER b SHARED");
        assert!(second > first);
        assert_eq!(other.ask(&words("LOCK.ACQUIRE r 60000 OWNER w")), "nil");
        let info = client.ask(&words("LOCK.INFO r"));
        for part in ["\"mode\", \"shared\"", "\"owner\", \"a\"", "\"value\", \"here\"", "\"max\", nil"] {
            assert!(info.contains(part), "{part}: {info}");
        }
        assert!(info.contains(&format!("\"fence\", {second}")), "{info}");
        other.send(&words("LOCK.ACQUIRE r 60000 OWNER w WAIT 10000"));
        await_that("the writer waits", || client.ask(&words("LOCK.QUEUE r")).contains("\"w\""));
        assert_eq!(client.ask(&words("LOCK.ACQUIRE r 60000 OWNER c SHARED")), "nil", "nobody overtakes");
        assert_eq!(client.ask(&["LOCK.RELEASE", "r", &first.to_string()]), "(1, \"ok\")");
        assert_eq!(client.ask(&["LOCK.RELEASE", "r", &second.to_string()]), "(1, \"ok\")");
        let writer = fence_of(&other.receive());
        assert_eq!(code(&client.ask(&words("LOCK.ACQUIRE r 60000 PERMITS 1 OF 2"))), "-MODE");
        assert_eq!(client.ask(&["LOCK.RELEASE", "r", &writer.to_string()]), "(1, \"ok\")");

        grant(&mut client, "LOCK.ACQUIRE p 60000 OWNER a PERMITS 2 OF 3");
        assert_eq!(client.ask(&words("LOCK.ACQUIRE p 60000 OWNER b PERMITS 2 OF 3")), "nil");
        grant(&mut client, "LOCK.ACQUIRE p 60000 OWNER b PERMITS 2 OF 4");
        let info = client.ask(&words("LOCK.INFO p"));
        assert!(info.contains("\"mode\", \"permits\"") && info.contains("\"max\", 3"), "{info}");
        assert_eq!(code(&client.ask(&words("LOCK.ACQUIRE p 60000 OWNER b PERMITS 1 OF 4"))), "-MODE");
        assert_eq!(client.ask(&words("LOCK.FORCERELEASE p")), "1");
        assert_eq!(code(&client.ask(&words("LOCK.ACQUIRE p 60000 PERMITS 3 OF 2"))), "-ERR");
        assert_eq!(code(&client.ask(&words("LOCK.ACQUIRE p 60000 SHARED PERMITS 1 OF 2"))), "-ERR");
    }
}

#[test]
fn conversion_is_one_step() {
    let node = node();
    let (mut client, mut other) = (node.connect(), node.connect());
    let fence = grant(&mut client, "LOCK.ACQUIRE r 60000 OWNER a");
    other.send(&words("LOCK.ACQUIRE r 60000 OWNER b WAIT 10000 SHARED"));
    await_that("the reader waits", || client.ask(&words("LOCK.QUEUE r")).contains("\"b\""));
    assert_eq!(fence_of(&client.ask(&["LOCK.CONVERT", "r", &fence.to_string(), "SHARED"])), fence);
    let reader = fence_of(&other.receive());
    assert_eq!(client.ask(&["LOCK.CONVERT", "r", &fence.to_string(), "EXCLUSIVE"]), "nil");
    client.send(&["LOCK.CONVERT", "r", &fence.to_string(), "EXCLUSIVE", "WAIT", "10000"]);
    let mut third = node.connect();
    await_that("the upgrade waits", || third.ask(&words("LOCK.QUEUE r")).contains("\"a\""));
    let second = other.ask(&["LOCK.CONVERT", "r", &reader.to_string(), "EXCLUSIVE", "WAIT", "10000"]);
    assert_eq!(code(&second), "-DEADLOCK");
    assert_eq!(other.ask(&["LOCK.RELEASE", "r", &reader.to_string()]), "(1, \"ok\")");
    let exclusive = fence_of(&client.receive());
    assert!(exclusive > reader);
    // As after a lost reply, on another connection.
    let again = other.ask(&["LOCK.CONVERT", "r", &fence.to_string(), "EXCLUSIVE"]);
    assert_eq!(fence_of(&again), exclusive);
    assert_eq!(client.ask(&["LOCK.RELEASE", "r", &fence.to_string()]), "(0, \"already_released\")");
    assert_eq!(client.ask(&["LOCK.RELEASE", "r", &exclusive.to_string()]), "(1, \"ok\")");
}

#[test]
fn plain_keys_beside_shared_locks() {
    let node = node();
    let mut client = node.connect();
    let fence = grant(&mut client, "LOCK.ACQUIRE k 60000 OWNER a SHARED");
    grant(&mut client, "LOCK.ACQUIRE k 60000 OWNER b SHARED");
    assert_eq!(client.ask(&words("SET k v NX PX 1000")), "nil");
    assert_eq!(client.ask(&words("SETNX k v")), "0");
    assert_eq!(client.ask(&words("GET k")), "\"a\"");
    assert_eq!(client.ask(&words("EXISTS k")), "1");
    for line in ["SET k v", "DEL k", "PEXPIRE k 5", "PERSIST k", "APPEND k x", "RENAME k j", "GETDEL k"] {
        assert_eq!(code(&client.ask(&words(line))), "-MODE", "{line}");
    }
    let script = client.ask(&["EVAL", "return redis.call('del', KEYS[1])", "1", "k"]);
    assert!(script.contains("MODE"), "{script}");
    let compare =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    assert!(client.ask(&["EVAL", compare, "1", "k", "a"]).contains("MODE"));
    assert_eq!(client.ask(&["EVAL", compare, "1", "k", "b"]), "0");
    assert_eq!(code(&client.ask(&["FENCE.CHECK", "k", &fence.to_string()])), "-MODE");
    assert_eq!(client.ask(&words("FLUSHDB")), "OK");
    assert_eq!(client.ask(&words("EXISTS k")), "0");
    assert_eq!(client.ask(&["LOCK.RENEW", "k", &fence.to_string(), "1000"]), "(0, \"not_owner\")");
    assert_eq!(client.ask(&words("SET k v")), "OK");
    assert_eq!(client.ask(&words("LOCK.ACQUIRE k 60000 SHARED")), "nil", "a plain key is exclusive");
}

#[test]
fn kinds_in_a_transaction() {
    let node = node();
    let mut client = node.connect();
    let lines = [
        "MULTI",
        "LOCK.ACQUIRE r 60000 OWNER a SHARED",
        "LOCK.ACQUIRE r 60000 OWNER b SHARED WAIT 99",
        "LOCK.ACQUIRE r 60000 OWNER w WAIT 99",
        "LOCK.INFO r",
    ];
    let replies = client.ask_all(&lines);
    assert_eq!(replies[1..], ["QUEUED"; 4]);
    let done = client.ask(&["EXEC"]);
    assert!(done.contains("nil") && done.contains("\"mode\", \"shared\""), "{done}");
    assert_eq!(client.ask(&["MULTI"]), "OK");
    assert_eq!(
        code(&client.ask(&words("LOCK.EXPLAIN r"))),
        "-ERR",
        "its reply is not the same on every node"
    );
}

#[test]
fn a_wait_is_explained() {
    let node = node();
    let mut client = resp3(&node);
    let ids: Vec<String> = (0..2).map(|_| session(&mut client, "LOCK.SESSION OPEN 60000")).collect();
    grant(&mut client, &format!("LOCK.ACQUIRE a 0 OWNER o1 SESSION {}", ids[0]));
    grant(&mut client, &format!("LOCK.ACQUIRE b 0 OWNER o2 SESSION {}", ids[1]));
    let (mut first, mut second) = (node.connect(), node.connect());
    first.send(&words(&format!("LOCK.ACQUIRE b 0 OWNER o3 WAIT 20000 SESSION {}", ids[0])));
    second.send(&words("LOCK.ACQUIRE a 1000 OWNER me WAIT 20000"));
    let mut explained = String::new();
    await_that("both wait", || {
        explained = client.ask(&words("LOCK.EXPLAIN a"));
        explained.contains("\"me\"") && explained.contains("\"waits_for\", \"b\"")
    });
    for part in ["\"position\", 1", "\"mode\", \"exclusive\"", "\"held_by\", \"o2\"", &ids[1]] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let nothing = client.ask(&words("LOCK.EXPLAIN nothing"));
    assert!(nothing.contains("\"hold_p50_ms\", nil") && nothing.contains("\"eta_ms\", 0"), "{nothing}");
}

#[test]
fn a_disconnected_waiter_for_permits_leaves_nothing_behind() {
    let node = node();
    let mut client = node.connect();
    let fence = grant(&mut client, "LOCK.ACQUIRE p 60000 OWNER a PERMITS 1 OF 1");
    let mut gone = node.connect();
    gone.send(&words("LOCK.ACQUIRE p 60000 PERMITS 1 OF 1 WAIT 60000"));
    await_that("it waits", || client.ask(&words("LOCK.INFO p")).contains("\"waiters\", 1"));
    drop(gone);
    await_that("it left", || client.ask(&words("LOCK.INFO p")).contains("\"waiters\", 0"));
    assert_eq!(client.ask(&["LOCK.RELEASE", "p", &fence.to_string()]), "(1, \"ok\")");
    await_that("all permits are free", || client.ask(&words("LOCK.INFO p")).contains("\"state\", \"free\""));
}

/// Holders of one name beyond those that `LOCK.INFO` shows.
fn hold_by_many(node: &Node, name: &str, kind: &str, count: usize) -> Client {
    let mut client = node.connect();
    for at in 0..count {
        client.send(&words(&format!("LOCK.ACQUIRE {name} 600000 OWNER o{at} {kind}")));
        if at % 100 == 99 {
            (0..100).for_each(|_| _ = fence_of(&client.receive()));
        }
    }
    (0..count % 100).for_each(|_| _ = fence_of(&client.receive()));
    client
}

/// A grant that nobody is left to take is given back, however many others hold the lock.
#[test]
fn permits_of_disconnected_clients_come_back_beyond_a_thousand_holders() {
    let node = node();
    let mut client = hold_by_many(&node, "p", "PERMITS 1 OF 1101", 1_100);
    let last = grant(&mut client, "LOCK.ACQUIRE p 600000 OWNER last PERMITS 1 OF 1101");
    // They wait for the one permit; whoever gets it has gone.
    let waiters: Vec<Client> = (0..20)
        .map(|_| {
            let mut waiter = node.connect();
            waiter.send(&words("LOCK.ACQUIRE p 600000 PERMITS 1 OF 1101 WAIT 600000"));
            waiter
        })
        .collect();
    await_that("they wait", || client.ask(&words("LOCK.QUEUE p")).matches('(').count() == 21);
    drop(waiters);
    assert_eq!(client.ask(&["LOCK.RELEASE", "p", &last.to_string()]), "(1, \"ok\")");
    await_that("the permit is free again", || {
        let reply = client.ask(&words("LOCK.ACQUIRE p 600000 OWNER again PERMITS 1 OF 1101"));
        reply != "nil"
    });
}

/// A client that waits to convert and goes leaves the queue, and its shared hold stays.
#[test]
fn a_disconnected_upgrader_leaves_the_queue() {
    let node = node();
    let mut client = node.connect();
    let shared = grant(&mut client, "LOCK.ACQUIRE c 60000 SHARED OWNER a");
    grant(&mut client, "LOCK.ACQUIRE c 60000 SHARED OWNER b");
    let mut gone = node.connect();
    gone.send(&["LOCK.CONVERT", "c", &shared.to_string(), "EXCLUSIVE", "WAIT", "60000"]);
    await_that("it waits", || client.ask(&words("LOCK.INFO c")).contains("\"waiters\", 1"));
    drop(gone);
    await_that("it left", || client.ask(&words("LOCK.INFO c")).contains("\"waiters\", 0"));
    assert_eq!(client.ask(&["LOCK.RENEW", "c", &shared.to_string(), "60000"]), "(1, 60000)");
}

/// The marks are in the Redis behind, which knows nothing of modes: the cluster is asked.
#[test]
fn fences_of_several_holders_guard_nothing_at_a_redis_behind() {
    let (_redis, node) = behind(&[]);
    runs_version_2(&node);
    let mut client = node.connect();
    let writer = grant(&mut client, "LOCK.ACQUIRE w 60000 TIER CORRECTNESS");
    assert_eq!(client.ask(&["FENCE.CHECK", "w", &writer.to_string()]), "1", "before anybody shares a lock");
    let shared = grant(&mut client, "LOCK.ACQUIRE r 60000 SHARED TIER CORRECTNESS").to_string();
    let permit = grant(&mut client, "LOCK.ACQUIRE p 60000 PERMITS 1 OF 3 TIER CORRECTNESS").to_string();
    for (name, fence) in [("r", &shared), ("p", &permit)] {
        assert_eq!(code(&client.ask(&["FENCE.CHECK", name, fence])), "-MODE");
        assert_eq!(code(&client.ask(&["FENCE.CALL", name, fence, "SET", "k", "v"])), "-MODE");
        assert_eq!(client.ask(&["FENCE.GET", name]), "0");
        // In a pipeline, with others before and behind.
        let lines = [
            "SET k v",
            &format!("FENCE.CHECK {name} {fence}"),
            &format!("FENCE.CHECK w {writer}"),
            "GET k",
            &format!("FENCE.CALL w {writer} INCR n:{name}"),
            "GET k",
        ];
        let replies = client.pipeline(&lines);
        assert_eq!(code(&replies[1]), "-MODE");
        assert_eq!([&replies[0], &replies[2], &replies[3], &replies[4]], ["OK", "1", "\"v\"", "1"]);
        assert_eq!(client.ask(&["MULTI"]), "OK");
        assert_eq!(code(&client.ask(&["FENCE.CHECK", name, fence])), "-MODE");
        assert_eq!(code(&client.ask(&["EXEC"])), "-EXECABORT");
    }
    let exclusive = fence_of(&client.ask(&["LOCK.CONVERT", "r", &shared, "EXCLUSIVE"]));
    assert_eq!(client.ask(&["FENCE.CHECK", "r", &exclusive.to_string()]), "1");
}

/// The routes give the name to the Redis behind: what is held there is not converted, and that is said. What was taken in Tier 2 is.
#[test]
fn a_lock_of_tier_1_is_not_converted() {
    let (_redis, node) = behind(&["--default-tier", "efficiency", "--route", "wallet:*=correctness"]);
    runs_version_2(&node);
    let mut client = node.connect();
    let fence = grant(&mut client, "LOCK.ACQUIRE e 60000").to_string();
    for mode in ["SHARED", "EXCLUSIVE"] {
        let reply = client.ask(&["LOCK.CONVERT", "e", &fence, mode]);
        assert!(reply.starts_with("-TIER the efficiency tier has exclusive locks only"), "{mode}: {reply}");
    }
    assert_eq!(client.ask(&["LOCK.RENEW", "e", &fence, "60000"]), "(1, 60000)");
    // In a pipeline, with others before and behind.
    let replies = client.pipeline(&["SET k v", &format!("LOCK.CONVERT e {fence} SHARED WAIT 10"), "GET k"]);
    assert_eq!((&replies[0][..], code(&replies[1]), &replies[2][..]), ("OK", "-TIER", "\"v\""));
    let other = grant(&mut client, "LOCK.ACQUIRE c 60000 SHARED TIER CORRECTNESS");
    let exclusive = fence_of(&client.ask(&["LOCK.CONVERT", "c", &other.to_string(), "EXCLUSIVE"]));
    assert!(exclusive > other);
    let gone = client.ask(&["LOCK.CONVERT", "c", &other.to_string(), "SHARED"]);
    assert_eq!(gone, "nil", "Tier 2 knows what became of it");
    assert_eq!(client.ask(&["LOCK.CONVERT", "wallet:1", &fence, "SHARED"]), "nil", "not held, and of Tier 2");
}
