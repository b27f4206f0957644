//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`: on the Raft keyspace as on a Redis, and through the main listener wherever the keys live.

mod support;

use support::{behind, free_address, Client, Node, Redis};

const DISCARDED: &str = "-EXECABORT Transaction discarded because of previous errors.";

/// Conversations that must read the same on both. `nokey:*` are never made.
const CONVERSATIONS: &[&[&str]] = &[
    &["MULTI", "SET a 1", "INCR a", "GET a", "EXEC", "GET a"],
    &["MULTI", "EXEC"],
    &["EXEC", "DISCARD", "MULTI", "SET a 5", "DISCARD", "GET a", "EXEC"],
    &["MULTI", "MULTI", "SET b 1", "EXEC"],
    &["MULTI", "WATCH a", "SET b 2", "EXEC", "GET b"],
    &["MULTI", "NOSUCH x", "SET b 3", "EXEC", "GET b"],
    &["MULTI", "GET", "SET b 3", "EXEC", "GET b"],
    &["MULTI", "MULTI x", "SET b 3", "EXEC", "GET b"],
    &["EXEC x", "MULTI x", "MULTI", "EXEC x", "EXEC", "MULTI", "DISCARD x", "EXEC", "WATCH", "UNWATCH x"],
    &["MULTI", "SET s text", "LPUSH s x", "INCR s", "SET b 4", "EXEC", "GET b"],
    &["MULTI", "UNWATCH", "PING", "ECHO hi", "EXEC"],
    &["MULTI", "SELECT 99", "SELECT 3", "SET q 1", "EXEC", "GET q", "SELECT 0", "GET q"],
    &["MULTI", "SELECT 3", "DISCARD", "GET q", "MULTI", "SELECT x", "EXEC", "GET a"],
    &["MULTI", "BLPOP nokey:1 0", "BLMOVE nokey:1 m LEFT LEFT 0", "BZPOPMIN nokey:2 0", "EXEC"],
    &["MULTI", "RPUSH list x y", "BLPOP list 0", "LRANGE list 0 -1", "EXEC", "DEL list"],
    &["MULTI", "EVAL return{KEYS[1],redis.call('incr',KEYS[1])} 1 n", "EVALSHA nosuch 0", "GET n", "EXEC"],
    &["WATCH w", "SET w 1", "MULTI", "GET w", "EXEC", "MULTI", "GET w", "EXEC"],
    &["WATCH w v", "MULTI", "SET w 2", "EXEC", "GET w"],
    &["WATCH w", "SET w 3", "UNWATCH", "MULTI", "GET w", "EXEC"],
    &[
        "WATCH w", "MULTI", "SET w 4", "UNWATCH", "GET w", "EXEC", "WATCH w", "SET w 5", "MULTI", "UNWATCH",
        "GET w", "EXEC",
    ],
    &["WATCH w", "MULTI", "DISCARD", "SET w 4", "MULTI", "GET w", "EXEC"],
    &["WATCH w", "SET w 5", "WATCH w", "MULTI", "GET w", "EXEC"],
    &["WATCH nokey:3", "SET nokey:3 1", "DEL nokey:3", "MULTI", "PING", "EXEC"],
    &[
        "WATCH ttl",
        "SET ttl 1 PX 900000",
        "MULTI",
        "PING",
        "EXEC",
        "WATCH ttl",
        "PEXPIRE ttl 800000",
        "MULTI",
        "PING",
        "EXEC",
    ],
    &["WATCH w", "SELECT 2", "SET w 9", "MULTI", "GET w", "EXEC", "SELECT 0"],
    &["CLIENT SETNAME a", "MULTI", "CLIENT GETNAME", "CLIENT SETNAME b", "SET q 1", "CLIENT GETNAME", "EXEC"],
    &["CLIENT GETNAME", "MULTI", "CLIENT SETNAME c", "DISCARD", "CLIENT GETNAME"],
    &["WATCH w", "SET w 6", "MULTI", "CLIENT SETNAME d", "EXEC", "CLIENT GETNAME"],
    &["MULTI", "CLIENT SETNAME e", "CLIENT NO-EVICT on", "EXEC", "CLIENT GETNAME"],
    &["MULTI", "CLIENT SETNAME bad~name\u{7f}", "CLIENT NO-EVICT perhaps", "EXEC"],
    &[
        "MULTI",
        "CLIENT NOSUCH",
        "SET q 2",
        "EXEC",
        "MULTI",
        "CLIENT SETNAME",
        "EXEC",
        "MULTI",
        "CLIENT",
        "EXEC",
    ],
    &[
        "MULTI",
        "CLIENT SETNAME x y",
        "EXEC",
        "CLIENT SETNAME z",
        "MULTI",
        "CLIENT GETNAME",
        "SELECT 1",
        "EXEC",
        "SELECT 0",
    ],
    &["MULTI", "SET r 1", "RESET", "EXEC", "GET r"],
];

#[test]
fn the_keyspace_answers_as_redis_does() {
    let (redis, node) = (Redis::start(), Node::start(&[]));
    for hello in ["HELLO 2", "HELLO 3"] {
        let (mut theirs, mut ours) = (Client::connect(redis.address), node.connect());
        for client in [&mut theirs, &mut ours] {
            client.ask_all(&["FLUSHALL"]);
        }
        for conversation in CONVERSATIONS {
            for client in [&mut theirs, &mut ours] {
                client.ask_all(&[hello]);
            }
            assert_eq!(ours.ask_all(conversation), theirs.ask_all(conversation), "{hello} {conversation:?}");
        }
        for conversation in CONVERSATIONS {
            assert_eq!(
                ours.pipeline(conversation),
                theirs.pipeline(conversation),
                "pipelined {conversation:?}"
            );
        }
    }
}

#[test]
fn a_transaction_is_one_step_and_a_watched_key_guards_it() {
    let node = Node::start(&[]);
    let (mut one, mut other) = (node.connect(), node.connect());
    assert_eq!(one.ask_all(&["WATCH guard", "GET guard"]), ["OK", "nil"]);
    assert_eq!(other.ask(&["SET", "guard", "taken", "NX", "PX", "60000"]), "OK");
    assert_eq!(one.ask_all(&["MULTI", "SET guard mine", "EXEC"]), ["OK", "QUEUED", "nil-array"]);
    assert_eq!(one.ask(&["GET", "guard"]), "\"taken\"");

    // Nothing is seen of it before EXEC, all of it after.
    assert_eq!(one.ask_all(&["MULTI", "SET x 1", "SET y 1"]), ["OK", "QUEUED", "QUEUED"]);
    assert_eq!(other.ask(&["EXISTS", "x", "y"]), "0");
    assert_eq!(one.ask(&["EXEC"]), "(OK, OK)");
    assert_eq!(other.ask(&["EXISTS", "x", "y"]), "2");

    // A client that goes away takes its transaction along.
    let mut gone = node.connect();
    gone.ask_all(&["MULTI", "SET x gone"]);
    drop(gone);
    assert_eq!(other.ask(&["GET", "x"]), "\"1\"");
}

#[test]
fn locks_are_taken_and_given_back_in_a_transaction() {
    let node = Node::start(&[]);
    let (mut client, mut waiter) = (node.connect(), node.connect());
    let fence = client.acquire(&["a", "60000"]).to_string();
    waiter.send(&["LOCK.ACQUIRE", "a", "60000", "WAIT", "60000"]);
    support::await_that("it waits", || client.ask(&["LOCK.QUEUE", "a"]) != "()");
    let release = format!("LOCK.RELEASE a {fence}");
    let acquire = "LOCK.ACQUIRE b 60000 OWNER me WAIT 60000";
    let replies = client.ask_all(&["MULTI", &release, acquire, "GET b", acquire, "LOCK.INFO b", "EXEC"]);
    assert!(replies[6].starts_with("((1, \"ok\"), ("), "{replies:?}");
    assert!(replies[6].contains("\"me\""), "{replies:?}");
    support::fence_of(&waiter.receive());

    for refused in [
        "LOCK.SESSION OPEN 1000",
        "LOCK.CLUSTER INFO",
        "FENCE.GET a",
        "LOCK.ACQUIRE",
        "SUBSCRIBE c",
        "HELLO 3",
    ] {
        let replies = client.ask_all(&["MULTI", refused, "SET never 1", "EXEC"]);
        assert!(replies[1].starts_with('-'), "{refused}: {replies:?}");
        assert_eq!(replies[3], DISCARDED, "{refused}");
    }
    assert_eq!(client.ask(&["EXISTS", "never"]), "0");
}

#[test]
fn a_transaction_has_its_limits() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    client.ask(&["MULTI"]);
    let pings = vec!["PING"; 1024];
    assert!(client.pipeline(&pings).iter().all(|reply| reply == "QUEUED"));
    assert_eq!(client.ask(&["PING"]), "-ERR a transaction holds 1024 commands at most");
    assert_eq!(client.ask(&["EXEC"]), DISCARDED);
    assert_eq!(client.ask(&["PING"]), "PONG");
}

#[test]
fn the_first_command_decides_where_a_transaction_goes() {
    let (redis, node) = behind(&["--route", "wallet:*=correctness"]);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    for pipelined in [false, true] {
        let mut ask = |lines: &[&str]| if pipelined { client.pipeline(lines) } else { client.ask_all(lines) };
        // Pure: either tier.
        assert_eq!(
            ask(&["MULTI", "SET x 1", "PING", "GET x", "EXEC"]),
            ["OK", "QUEUED", "QUEUED", "QUEUED", "(OK, PONG, \"1\")"]
        );
        assert_eq!(
            ask(&["MULTI", "SET wallet:1 a", "PING", "EXEC"]),
            ["OK", "QUEUED", "QUEUED", "(OK, PONG)"]
        );
        assert_eq!(
            ask(&["MULTI", "EXEC", "MULTI", "DISCARD", "MULTI", "MULTI", "DISCARD"])[5],
            "-ERR MULTI calls can not be nested"
        );
        // Mixed: neither.
        let mixed = ask(&["MULTI", "SET x 2", "SET wallet:1 b", "EXEC"]);
        assert!(mixed[2].starts_with("-CROSSTIER 'wallet:1' "), "{mixed:?}");
        assert_eq!(mixed[3], DISCARDED);
        let mixed = ask(&["MULTI", "SET wallet:1 b", "SET x 2", "EXEC"]);
        assert!(mixed[2].starts_with("-CROSSTIER 'x' "), "{mixed:?}");
        assert_eq!(mixed[3], DISCARDED);
        let mixed = ask(&["MULTI", "MSET wallet:1 b x 2", "EXEC"]);
        assert!(mixed[1].starts_with("-CROSSTIER "), "{mixed:?}");
        assert_eq!(mixed[2], DISCARDED);
        assert_eq!(ask(&["GET x", "GET wallet:1", "EXEC"]), ["\"1\"", "\"a\"", "-ERR EXEC without MULTI"]);
        // Watching.
        assert_eq!(ask(&["WATCH wallet:1", "SET wallet:1 c", "MULTI", "PING", "EXEC"])[4], "nil-array");
        assert_eq!(ask(&["WATCH x", "SET x 1", "MULTI", "PING", "EXEC"])[4], "nil-array");
        assert!(ask(&["WATCH x", "WATCH wallet:1", "UNWATCH", "WATCH wallet:1", "WATCH x", "UNWATCH"])[1]
            .starts_with("-CROSSTIER "));
        assert_eq!(ask(&["SET wallet:1 a"]), ["OK"]);
    }
    assert_eq!(direct.ask(&["DBSIZE"]), "1", "nothing of the keyspace came to Redis");
    // Large commands follow the same rule.
    let large = "v".repeat(200_000);
    assert_eq!(client.ask(&["MULTI"]), "OK");
    assert_eq!(client.ask(&["SET", "x", &large]), "QUEUED");
    assert_eq!(client.ask(&["EXEC"]), "(OK)");
    assert_eq!(direct.ask(&["STRLEN", "x"]), "200000");
    client.ask_all(&["MULTI", "SET wallet:1 b"]);
    assert!(client.ask(&["SET", "x", &large]).starts_with("-CROSSTIER "));
    assert_eq!(client.ask(&["EXEC"]), DISCARDED);
}

#[test]
fn without_routes_redis_has_every_transaction_but_at_the_correctness_door() {
    let correctness_address = free_address();
    let (redis, node) = behind(&["--correctness-listen", &correctness_address.to_string()]);
    let (mut client, mut inside) = (node.connect(), Client::connect(correctness_address));
    let mut direct = Client::connect(redis.address);
    for conversation in CONVERSATIONS {
        direct.ask(&["FLUSHALL"]);
        let theirs = direct.ask_all(conversation);
        direct.ask(&["FLUSHALL"]);
        assert_eq!(client.ask_all(conversation), theirs, "{conversation:?}");
        direct.ask(&["FLUSHALL"]);
        let theirs = direct.pipeline(conversation);
        direct.ask(&["FLUSHALL"]);
        assert_eq!(client.pipeline(conversation), theirs, "pipelined {conversation:?}");
    }
    direct.ask(&["FLUSHALL"]);
    assert_eq!(inside.ask_all(&["MULTI", "SET x 1", "EXEC"]), ["OK", "QUEUED", "(OK)"]);
    assert_eq!(direct.ask(&["DBSIZE"]), "0");
    let refused =
        client.ask_all(&["MULTI", "SET x 1", "LOCK.ACQUIRE y 1000 TIER CORRECTNESS", "EXEC", "GET x"]);
    assert!(refused[2].starts_with("-CROSSTIER "), "{refused:?}");
    assert_eq!(refused[3..], [DISCARDED, "nil"]);
}

/// Their answers are this node's, in the places of a reply that comes in pieces.
#[test]
fn commands_about_the_client_are_part_of_a_transaction_of_redis() {
    let (redis, node) = behind(&["--route", "wallet:*=correctness"]);
    let (mut client, mut direct) = (node.connect(), Client::connect(redis.address));
    let large = "v".repeat(700_000);
    assert_eq!(client.ask(&["SET", "large", &large]), "OK");
    for hello in ["2", "3"] {
        client.ask(&["HELLO", hello]);
        let id = client.ask(&["CLIENT", "ID"]);
        let lines = [
            "MULTI",
            "CLIENT ID",
            "GET large",
            "CLIENT GETNAME",
            "GET large",
            "SELECT 4",
            "CLIENT ID",
            "SET in four",
            "EXEC",
        ];
        let replies = client.ask_all(&lines);
        assert!(replies[1..lines.len() - 1].iter().all(|reply| reply == "QUEUED"), "{:?}", &replies[..8]);
        let expected = format!("({id}, \"{large}\", nil, \"{large}\", OK, {id}, OK)");
        assert!(replies[8] == expected, "HELLO {hello}: {:.60}", replies[8]);
        assert_eq!(client.ask(&["GET", "in"]), "\"four\"");
        assert!(client.ask(&["CLIENT", "INFO"]).contains(" db=4 "));
        // The keyspace follows, too.
        assert_eq!(client.ask(&["SET", "wallet:1", "x"]), "OK");
        assert_eq!(client.ask_all(&["SELECT 0", "GET wallet:1", "GET in"]), ["OK", "nil", "nil"]);
        // Not carried out: nothing has changed.
        assert_eq!(
            client.ask_all(&["WATCH in", "SET in 0", "MULTI", "SELECT 4", "CLIENT SETNAME lost", "EXEC"])[5],
            if hello == "2" { "nil-array" } else { "nil" }
        );
        assert_eq!(client.ask_all(&["CLIENT GETNAME", "GET in", "DEL in"]), ["nil", "\"0\"", "1"]);
    }
    direct.ask(&["SELECT", "4"]);
    assert_eq!(direct.ask(&["GET", "in"]), "\"four\"");
    // What cannot be part of it says so.
    for line in [
        "CLIENT TRACKING ON",
        "CLIENT REPLY OFF",
        "CLIENT UNBLOCK 1",
        "CLIENT LIST",
        "CLIENT KILL ID 1",
        "SUBSCRIBE a",
        "HELLO 3",
        "AUTH x",
        "ACL WHOAMI",
    ] {
        let replies = client.ask_all(&["MULTI", line, "EXEC"]);
        assert!(replies[1].contains("cannot be part of a transaction here"), "{line}: {}", replies[1]);
        assert_eq!(replies[2], DISCARDED, "{line}");
    }
}
