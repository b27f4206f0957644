//! Client tracking on the Raft keyspace: a client that keeps what it has read is told when it changes, whoever changed it and
//! through whichever node.

mod support;

use std::time::Duration;
use support::{await_that, start_cluster, Client, Node};

/// What rueidislock sends to acquire.
const ACQUIRE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                       return redis.call('GET', KEYS[1]) else return redis.call('GET', KEYS[1]) end";
const QUIET: Duration = Duration::from_millis(100);

fn resp3(node: &Node) -> Client {
    let mut client = node.connect();
    assert!(client.ask(&["HELLO", "3"]).starts_with('{'));
    client
}

fn tracking(node: &Node, options: &[&str]) -> Client {
    let mut client = resp3(node);
    let words: Vec<&str> = ["CLIENT", "TRACKING", "ON"].into_iter().chain(options.iter().copied()).collect();
    assert_eq!(client.ask(&words), "OK");
    client
}

fn invalid(key: &str) -> String {
    format!(">(\"invalidate\", (\"{key}\"))")
}

#[test]
fn every_kind_of_change_is_told_through_another_node() {
    let nodes = start_cluster(3, &[]);
    let mut keeper = tracking(&nodes[1], &["OPTOUT"]);
    let mut other = nodes[0].connect();
    let mut fence = 0;
    let changes: &[(&str, &[&str])] = &[
        ("", &["SET", "k", "1"]),
        ("1", &["SET", "k", "2", "PX", "100000"]),
        ("2", &["PEXPIRE", "k", "90000"]),
        ("2", &["EVAL", "return redis.call('del', KEYS[1])", "1", "k"]),
        ("", &["LOCK.ACQUIRE", "k", "60000", "OWNER", "me"]),
        ("me", &["LOCK.RENEW", "k", "FENCE", "50000"]),
        ("me", &["LOCK.RELEASE", "k", "FENCE"]),
        ("", &["LOCK.ACQUIRE", "k", "60000", "OWNER", "you"]),
        ("you", &["LOCK.FORCERELEASE", "k"]),
        ("", &["SET", "k", "short", "PX", "3000"]),
        // It ends by its time, which is long enough to read it before.
        ("short", &[]),
    ];
    for (value, change) in changes {
        let expected = if value.is_empty() { "nil".to_string() } else { format!("\"{value}\"") };
        await_that("this node has come so far", || {
            let read = keeper.ask(&["GET", "k"]);
            // What was on its way from the step before.
            if read.starts_with(">(") {
                keeper.receive() == expected
            } else {
                read == expected
            }
        });
        let fence_text = fence.to_string();
        let words: Vec<&str> =
            change.iter().map(|word| if *word == "FENCE" { &fence_text } else { *word }).collect();
        if !words.is_empty() {
            let reply = other.ask(&words);
            assert!(!reply.starts_with('-') && reply != "nil", "{words:?}: {reply}");
            if words[0] == "LOCK.ACQUIRE" {
                fence = support::fence_of(&reply);
            }
        }
        assert_eq!(keeper.receive(), invalid("k"), "{words:?}");
    }
}

#[test]
fn a_read_inside_a_script_counts_and_is_told_once() {
    let nodes = start_cluster(3, &[]);
    let mut holder = nodes[0].connect();
    assert_eq!(holder.ask(&["EVAL", ACQUIRE, "1", "lock", "holder", "60000"]), "\"holder\"");
    let mut waiter = tracking(&nodes[1], &["OPTOUT", "NOLOOP"]);
    await_that("the waiter sees the holder", || {
        waiter.ask(&["EVAL", ACQUIRE, "1", "lock", "waiter", "60000"]) == "\"holder\""
    });
    assert!(waiter.hears_nothing_for(QUIET));
    assert_eq!(holder.ask(&["DEL", "lock"]), "1");
    assert_eq!(waiter.receive(), invalid("lock"));
    // It keeps nothing now: another change is none of its business.
    assert_eq!(holder.ask(&["SET", "lock", "x"]), "OK");
    assert_eq!(holder.ask(&["DEL", "lock"]), "1");
    assert!(waiter.hears_nothing_for(QUIET));
    // Its own acquire is not told; the read behind it in the script counts.
    assert_eq!(waiter.ask(&["EVAL", ACQUIRE, "1", "lock", "waiter", "60000"]), "\"waiter\"");
    assert!(waiter.hears_nothing_for(QUIET));
    assert_eq!(holder.ask(&["DEL", "lock"]), "1");
    assert_eq!(waiter.receive(), invalid("lock"));
}

/// Without NOLOOP, a client hears of its own change, behind the answer to it.
#[test]
fn own_changes_are_told_behind_their_answer() {
    let node = Node::start(&[]);
    let mut client = tracking(&node, &[]);
    client.ask(&["GET", "k"]);
    assert_eq!(client.ask(&["SET", "k", "1"]), "OK");
    assert_eq!(client.receive(), invalid("k"));
    assert_eq!(client.ask(&["SET", "k", "2"]), "OK");
    assert!(client.hears_nothing_for(QUIET));
}

#[test]
fn keys_go_by_name_whatever_the_database_and_a_flush_drops_all() {
    let node = Node::start(&[]);
    let mut keeper = tracking(&node, &[]);
    keeper.ask(&["GET", "k"]);
    let mut other = node.connect();
    other.ask(&["SELECT", "3"]);
    other.ask(&["SET", "k", "1"]);
    assert_eq!(keeper.receive(), invalid("k"));
    for flush in ["FLUSHALL", "FLUSHDB"] {
        keeper.ask(&["GET", "k"]);
        other.ask(&["SET", "unread", "1"]);
        assert_eq!(other.ask(&[flush]), "OK");
        assert_eq!(keeper.receive(), ">(\"invalidate\", nil)");
    }
}

#[test]
fn broadcast_tells_of_every_key_under_its_prefixes() {
    let node = Node::start(&[]);
    let mut keeper = tracking(&node, &["BCAST", "PREFIX", "user:", "PREFIX", "shop:", "NOLOOP"]);
    let mut other = node.connect();
    for key in ["user:1", "order:1", "shop:1", "user"] {
        other.ask(&["SET", key, "1"]);
    }
    assert_eq!([keeper.receive(), keeper.receive()], [invalid("user:1"), invalid("shop:1")]);
    assert_eq!(keeper.ask(&["SET", "user:own", "1"]), "OK");
    assert!(keeper.hears_nothing_for(QUIET));
}

#[test]
fn opt_in_keeps_only_what_was_announced() {
    let node = Node::start(&[]);
    let mut keeper = tracking(&node, &["OPTIN"]);
    let mut other = node.connect();
    keeper.ask(&["GET", "a"]);
    assert_eq!(keeper.ask(&["CLIENT", "CACHING", "YES"]), "OK");
    keeper.ask(&["GET", "b"]);
    keeper.ask(&["GET", "c"]);
    for key in ["a", "b", "c"] {
        other.ask(&["SET", key, "1"]);
    }
    assert_eq!(keeper.receive(), invalid("b"));
    assert!(keeper.hears_nothing_for(QUIET));
    let mut keeper = tracking(&node, &["OPTOUT"]);
    assert_eq!(keeper.ask(&["CLIENT", "CACHING", "NO"]), "OK");
    keeper.ask(&["GET", "a"]);
    keeper.ask(&["GET", "b"]);
    other.ask(&["SET", "a", "2"]);
    other.ask(&["SET", "b", "2"]);
    assert_eq!(keeper.receive(), invalid("b"));
}

#[test]
fn what_is_off_or_gone_is_told_nothing() {
    let node = Node::start(&[]);
    let mut keeper = tracking(&node, &[]);
    let mut other = node.connect();
    keeper.ask(&["GET", "k"]);
    assert_eq!(keeper.ask(&["CLIENT", "TRACKING", "OFF"]), "OK");
    other.ask(&["SET", "k", "1"]);
    assert!(keeper.hears_nothing_for(QUIET));
    let mut gone = tracking(&node, &[]);
    gone.ask(&["GET", "k"]);
    drop(gone);
    for round in 0..100 {
        other.ask(&["SET", "k", &round.to_string()]);
    }
    assert_eq!(keeper.ask(&["GET", "k"]), "\"99\"");
}

#[test]
fn a_resp2_client_has_another_told() {
    let node = Node::start(&[]);
    let mut told = node.connect();
    let id = told.ask(&["CLIENT", "ID"]);
    told.ask(&["SUBSCRIBE", "__redis__:invalidate"]);
    let mut keeper = node.connect();
    assert_eq!(keeper.ask(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id]), "OK");
    assert_eq!(keeper.ask(&["CLIENT", "GETREDIR"]), id);
    keeper.ask(&["GET", "k"]);
    keeper.ask(&["SET", "k", "1"]);
    assert_eq!(told.receive(), "(\"message\", \"__redis__:invalidate\", (\"k\"))");
    keeper.ask(&["FLUSHALL"]);
    assert_eq!(told.receive(), "(\"message\", \"__redis__:invalidate\", nil)");
    let mut keeper = tracking(&node, &["REDIRECT", &id]);
    drop(told);
    assert_eq!(keeper.receive(), format!(">(\"tracking-redir-broken\", {id})"));
    assert!(keeper.ask(&["CLIENT", "TRACKINGINFO"]).contains("broken_redirect"));
}

/// A value on its way to the client must not overtake the word that it is old: the last thing a client believes is the truth.
#[test]
fn a_copy_is_never_left_stale() {
    let nodes = start_cluster(3, &[]);
    let mut writer = nodes[0].connect();
    let mut keeper = tracking(&nodes[1], &[]);
    let mut copy: Option<String> = None;
    let mut reads_under_way = 0;
    for round in 0..300 {
        keeper.send(&["GET", "k"]);
        reads_under_way += 1;
        writer.send(&["SET", "k", &round.to_string()]);
        if round % 3 == 0 {
            assert_eq!(writer.receive(), "OK");
        }
        while reads_under_way > 0 {
            match keeper.receive() {
                push if push.starts_with('>') => copy = None,
                value => {
                    copy = Some(value);
                    reads_under_way -= 1;
                }
            }
        }
        if round % 3 != 0 {
            assert_eq!(writer.receive(), "OK");
        }
    }
    // Everything is written. Whatever the client still keeps must be the last value, or be taken back.
    await_that("the client's copy is true", || {
        let truth = format!("\"{}\"", 299);
        copy.as_ref().is_none_or(|copy| *copy == truth) || {
            if keeper.receive().starts_with('>') {
                copy = None;
            }
            copy.is_none()
        }
    });
}
