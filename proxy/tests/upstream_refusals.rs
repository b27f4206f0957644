//! What the upstream Redis refuses, says late or says unasked concerns the client that it is for, and nobody else.

mod support;

use support::{await_that, behind, command, Client, Node, Redis};

const ROUTED: [&str; 2] = ["--route", "wallet:*=correctness"];

fn clients_in(client: &mut Client, name: &str) -> usize {
    client.ask(&["CLIENT", "LIST"]).matches(&format!(" cmd={name} ")).count()
}

fn tracking(node: &Node, options: &[&str]) -> Client {
    let mut client = node.connect();
    assert!(client.ask(&["HELLO", "3"]).starts_with('{'));
    let words: Vec<&str> = ["CLIENT", "TRACKING", "ON"].iter().chain(options).copied().collect();
    assert_eq!(client.ask(&words), "OK");
    client
}

fn invalid(key: &str) -> String {
    format!(">(\"invalidate\", (\"{key}\"))")
}

/// `MGET` of so many keys that it comes in pieces.
fn many_keys(first: &str) -> Vec<u8> {
    let names: Vec<String> = (0..1_100).map(|number| format!("{first}{number}")).collect();
    let words: Vec<&[u8]> =
        std::iter::once("MGET").chain(names.iter().map(String::as_str)).map(str::as_bytes).collect();
    command(&words)
}

/// The names wanted by a client that is gone before that Redis has answered.
#[test]
fn a_client_that_is_gone_before_its_subscription_is_confirmed_leaves_nothing() {
    let (redis, node) = behind(&[]);
    let (mut listener, mut other) = (node.connect(), node.connect());
    let mut direct = Client::connect(redis.address);
    await_that("the version is known", || other.ask(&["INFO", "redfence"]).contains("tier1:lua_functions"));
    assert_eq!(listener.ask(&["SUBSCRIBE", "news"]), "(\"subscribe\", \"news\", 1)");
    redis.signal("STOP");
    let mut gone = Vec::new();
    for verb in ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"] {
        for round in 0..5 {
            let mut client = node.connect();
            let id = client.ask(&["CLIENT", "ID"]);
            let name = format!("gone{round}");
            // One name twice: it is taken back once.
            client.send(&[verb, "news", &name, &name]);
            gone.push((id, client));
        }
    }
    await_that("all have asked", || {
        clients_in(&mut other, "subscribe") == 6
            && clients_in(&mut other, "psubscribe") == 5
            && clients_in(&mut other, "ssubscribe") == 5
    });
    for (id, _) in &gone {
        assert_eq!(other.ask(&["CLIENT", "KILL", "ID", id]), "1");
    }
    await_that("all are gone", || {
        clients_in(&mut other, "subscribe") == 1
            && clients_in(&mut other, "psubscribe") == 0
            && clients_in(&mut other, "ssubscribe") == 0
    });
    redis.signal("CONT");
    let mut last = node.connect();
    assert_eq!(last.ask(&["SUBSCRIBE", "last"]), "(\"subscribe\", \"last\", 1)");
    await_that("nothing else is subscribed to", || {
        direct.ask(&["PUBSUB", "CHANNELS", "gone*"]) == "()"
            && direct.ask(&["PUBSUB", "NUMPAT"]) == "0"
            && direct.ask(&["PUBSUB", "SHARDCHANNELS"]) == "()"
    });
    assert_eq!(direct.ask(&["PUBLISH", "news", "kept"]), "1");
    assert_eq!(listener.receive(), "(\"message\", \"news\", \"kept\")");
}

#[test]
fn a_subscription_that_is_refused_ends_no_other() {
    let (redis, node) = behind(&[]);
    let mut direct = Client::connect(redis.address);
    assert_eq!(direct.ask(&["ACL", "SETUSER", "default", "resetchannels", "&ok*"]), "OK");
    let (mut listener, mut other) = (node.connect(), node.connect());
    // As the first of all, which opens the connection, and as a later one.
    for round in 0..3 {
        let refused = other.ask(&["SUBSCRIBE", "ok2", "secret"]);
        assert!(refused.starts_with("-NOPERM "), "{refused}");
        assert_eq!(other.ask(&["PING"]), "PONG");
        if round == 0 {
            assert_eq!(listener.ask(&["SUBSCRIBE", "ok1"]), "(\"subscribe\", \"ok1\", 1)");
        }
        assert_eq!(direct.ask(&["PUBLISH", "ok1", "heard"]), "1");
        assert_eq!(listener.receive(), "(\"message\", \"ok1\", \"heard\")");
    }
    await_that("nothing is left of it", || direct.ask(&["PUBSUB", "CHANNELS"]) == "(\"ok1\")");
    assert_eq!(other.ask(&["SUBSCRIBE", "ok2"]), "(\"subscribe\", \"ok2\", 1)");
}

#[test]
fn a_message_too_large_to_pass_on_ends_those_alone_it_was_for() {
    let (redis, node) = behind(&[]);
    let mut direct = Client::connect(redis.address);
    assert_eq!(direct.ask(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 0 0"]), "OK");
    let mut quiet = node.connect();
    assert_eq!(quiet.ask(&["SUBSCRIBE", "quiet"]), "(\"subscribe\", \"quiet\", 1)");
    // More than is kept for one listener, and more than is taken from that Redis.
    for mebibytes in [33, 65] {
        let mut large = node.connect();
        assert_eq!(large.ask(&["SUBSCRIBE", "large"]), "(\"subscribe\", \"large\", 1)");
        direct.send_words(&[b"PUBLISH", b"large", &vec![b'x'; mebibytes * 1024 * 1024]]);
        assert_eq!(direct.receive(), "1");
        assert_eq!(large.receive(), "(closed)");
        await_that("nobody listens to it", || direct.ask(&["PUBSUB", "NUMSUB", "large"]) == "(\"large\", 0)");
    }
    assert_eq!(direct.ask(&["PUBLISH", "quiet", "heard"]), "1");
    assert_eq!(quiet.receive(), "(\"message\", \"quiet\", \"heard\")");
}

#[test]
fn a_skipped_reply_is_that_of_the_next_command_however_large() {
    for flags in [&[][..], &ROUTED] {
        let (_redis, node) = behind(flags);
        let mut client = node.connect();
        let value = vec![b'v'; 100_000];
        for large in [command(&[b"SET", b"b", &value]), many_keys("k"), command(&[b"NOSUCH", b"b", &value])] {
            client.send(&["CLIENT", "REPLY", "SKIP"]);
            client.send_bytes(&large);
            assert_eq!(client.pipeline(&["PING one", "PING two"]), ["\"one\"", "\"two\""]);
        }
        assert_eq!(client.ask(&["STRLEN", "b"]), "100000");
        assert_eq!(client.ask(&["MONITOR"]), "OK");
        client.send_words(&[b"SET", b"b", &value]);
        await_that("it is refused behind MONITOR", || {
            client.receive().starts_with("-ERR Can't execute 'set'")
        });
    }
}

#[test]
fn what_was_announced_is_tracked_in_a_transaction_and_in_a_large_command() {
    let (_redis, node) = behind(&ROUTED);
    let mut other = node.connect();
    for key in ["plain", "wallet:1"] {
        let mut keeper = tracking(&node, &["OPTIN"]);
        let lines = ["CLIENT CACHING YES", "MULTI", &format!("GET {key}"), "EXEC", "GET unannounced"];
        assert_eq!(keeper.ask_all(&lines), ["OK", "OK", "QUEUED", "(nil)", "nil"]);
        assert_eq!(other.ask(&["SET", "unannounced", "1"]), "OK");
        assert_eq!(other.ask(&["SET", key, "1"]), "OK");
        assert_eq!(keeper.receive(), invalid(key));
        other.ask(&["DEL", "unannounced", key]);
    }
    for flags in [&[][..], &ROUTED] {
        let (_redis, node) = behind(flags);
        let (mut keeper, mut other) = (tracking(&node, &["OPTIN"]), node.connect());
        assert_eq!(keeper.ask(&["CLIENT", "CACHING", "YES"]), "OK");
        keeper.send_bytes(&many_keys("k"));
        assert!(keeper.receive().starts_with("(nil, nil"));
        keeper.send_bytes(&many_keys("unannounced"));
        assert!(keeper.receive().starts_with("(nil, nil"));
        assert_eq!(other.ask_all(&["SET unannounced7 1", "SET k7 1"]), ["OK", "OK"]);
        assert_eq!(keeper.receive(), invalid("k7"));
    }
}

/// That Redis says both in one breath.
#[test]
fn an_invalidation_before_a_reply_that_is_not_shown_is_told() {
    let (redis, node) = behind(&ROUTED);
    let mut other = node.connect();
    let later = |commands: &[&str], last: &str, redis: &Redis, other: &mut Client| {
        let mut keeper = tracking(&node, &[]);
        keeper.ask(&["GET", "seen"]);
        let mut direct = Client::connect(redis.address);
        assert_eq!(direct.ask(&["PING"]), "PONG");
        redis.signal("STOP");
        direct.send(&["SET", "seen", "1"]);
        let frames = commands.iter().map(|line| line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        keeper.send_bytes(&frames.flat_map(|words| command(&words)).collect::<Vec<u8>>());
        await_that("it has asked", || clients_in(other, last) == 1);
        redis.signal("CONT");
        assert_eq!(direct.receive(), "OK");
        keeper
    };
    let mut keeper = later(&["MULTI", "GET b", "EXEC"], "exec", &redis, &mut other);
    let heard: Vec<String> = (0..4).map(|_| keeper.receive()).collect();
    assert!(heard.contains(&invalid("seen")), "{heard:?}");
    let mut keeper = later(&["CLIENT REPLY SKIP", "GET b", "STRLEN b"], "strlen", &redis, &mut other);
    let heard = [keeper.receive(), keeper.receive()];
    assert!(heard.contains(&invalid("seen")) && heard.contains(&"0".to_string()), "{heard:?}");
}

#[test]
fn a_redis_that_takes_no_more_clients_is_unavailable() {
    let (redis, node) = behind(&[]);
    let (mut other, mut direct) = (node.connect(), Client::connect(redis.address));
    await_that("Tier 1 serves", || other.ask(&["INFO", "redfence"]).contains("tier1:lua_functions"));
    assert_eq!(direct.ask(&["CONFIG", "SET", "maxclients", "1"]), "OK");
    for line in ["GET k", "BLPOP k 1", "SUBSCRIBE c"] {
        for protocol in ["2", "3"] {
            let mut client = node.connect();
            client.ask(&["HELLO", protocol]);
            let reply = client.ask(&line.split(' ').collect::<Vec<_>>());
            assert!(reply.starts_with("-UNAVAILABLE "), "{line}: {reply}");
        }
    }
    assert_eq!(direct.ask(&["CONFIG", "SET", "maxclients", "1000"]), "OK");
    let mut client = node.connect();
    assert_eq!(client.ask_all(&["GET k", "BLPOP k 0.01"]), ["nil", "nil-array"]);
}

#[test]
fn monitor_and_tracking_that_are_refused_change_nothing() {
    let (redis, node) = behind(&[]);
    let mut direct = Client::connect(redis.address);
    assert_eq!(direct.ask(&["ACL", "SETUSER", "default", "-monitor", "-client|tracking"]), "OK");
    let mut client = node.connect();
    client.ask(&["HELLO", "3"]);
    for refused in [&["MONITOR"][..], &["CLIENT", "TRACKING", "ON", "OPTIN"]] {
        assert!(client.ask(refused).starts_with("-NOPERM "), "{refused:?}");
        assert_eq!(client.ask(&["GET", "k"]), "nil");
    }
    assert!(client.ask(&["CLIENT", "TRACKINGINFO"]).contains("\"off\""));
    assert!(client.ask(&["CLIENT", "CACHING", "YES"]).starts_with("-ERR CLIENT CACHING"));
}
