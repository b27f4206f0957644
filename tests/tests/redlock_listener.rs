//! The Redlock listeners of a real cluster, spoken to as Redlock clients do: `SET NX PX` at N masters, compare-and-delete at N
//! masters, a majority in between.

use std::time::{Duration, Instant};

use redfence_tests::ask;
use redfence_tests::client::{Client, REPLY_WITHIN};
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::poll_until;
use redfence_tests::resp::Value;

const TTL_MS: u64 = 60_000;
const RECOVERS_WITHIN: Duration = Duration::from_secs(20);
/// What redlock-py, redis-py and most others send to unlock.
const RELEASE: &str =
    "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end";
/// node-redlock's way to take several keys.
const TAKE_ALL: &str =
    "for i, key in ipairs(KEYS) do if redis.call(\"exists\", key) == 1 then return 0 end end \
    for i, key in ipairs(KEYS) do redis.call(\"set\", key, ARGV[1], \"PX\", ARGV[2]) end return #KEYS";

fn start() -> (Cluster, Vec<Client>) {
    let cluster = Cluster::start(&Options::nodes(3).redlock());
    cluster.wait_for_leader(REPLY_WITHIN);
    let members = cluster.nodes.iter().map(|node| node.redlock_client()).collect();
    (cluster, members)
}

/// Whether a member granted the key. Asks again while the cluster has no leader.
fn takes(member: &mut Client, key: &str, value: &str, ttl_ms: u64) -> bool {
    let deadline = Instant::now() + RECOVERS_WITHIN;
    loop {
        match ask!(member, "SET", key, value, "NX", "PX", ttl_ms) {
            Value::Simple(word) if word == b"OK" => return true,
            Value::NullBulk => return false,
            Value::Error(line) if line.starts_with("UNAVAILABLE") && Instant::now() < deadline => {}
            // Taken or not: what it holds tells.
            Value::Error(line) if line.starts_with("INDETERMINATE") => {
                if ask!(member, "GET", key) == Value::bulk(value) {
                    return true;
                }
            }
            other => panic!("SET NX PX: {other:?}"),
        }
    }
}

fn takes_at_all(members: &mut [Client], key: &str, value: &str) -> Vec<bool> {
    members.iter_mut().map(|member| takes(member, key, value, TTL_MS)).collect()
}

fn releases(member: &mut Client, key: &str, value: &str) -> Value {
    ask!(member, "EVAL", RELEASE, 1, key, value)
}

#[test]
fn a_redlock_is_taken_and_released_at_every_member() {
    let (cluster, mut members) = start();
    assert_eq!(takes_at_all(&mut members, "k", "me"), [true; 3]);
    assert_eq!(takes_at_all(&mut members, "k", "me"), [false; 3], "each grants once");
    assert_eq!(takes_at_all(&mut members, "k", "you"), [false; 3], "another value is refused by all");
    let mut other = cluster.node(1).client();
    other.is_refused("k", TTL_MS);
    assert_eq!(other.info("k").owner.as_deref(), Some("me"));
    for member in &mut members {
        assert_eq!(releases(member, "k", "you"), Value::Integer(0));
        assert_eq!(releases(member, "k", "me"), Value::Integer(1));
        assert_eq!(ask!(member, "EXISTS", "k"), Value::Integer(0));
    }
    let grant = other.acquire("k", TTL_MS);
    assert_eq!(takes_at_all(&mut members, "k", "me"), [false; 3], "a lock is held at every member");
    other.release("k", grant.fence);
    assert_eq!(takes_at_all(&mut members, "k", "me"), [true; 3]);
}

#[test]
fn a_member_that_has_not_granted_a_key_refuses_another_value() {
    let (_cluster, mut members) = start();
    assert!(takes(&mut members[0], "k", "me", TTL_MS));
    assert_eq!(ask!(members[1], "GET", "k"), Value::NullBulk, "it looks like a master of its own");
    assert_eq!(takes_at_all(&mut members, "k", "you"), [false; 3]);
    assert_eq!(ask!(members[2], "EVAL", TAKE_ALL, 2, "free", "k", "you", TTL_MS), Value::Integer(0));
    assert_eq!(ask!(members[2], "EVAL", TAKE_ALL, 2, "free", "k", "me", TTL_MS), Value::Integer(2));
    assert!(takes(&mut members[1], "k", "me", TTL_MS), "the same value joins");
}

#[test]
fn clients_with_one_value_for_all_never_share_a_majority() {
    let (_cluster, mut members) = start();
    assert!(takes(&mut members[0], "k", "1", TTL_MS) && takes(&mut members[1], "k", "1", TTL_MS));
    assert_eq!(
        takes_at_all(&mut members, "k", "1"),
        [false, false, true],
        "the second client gets one of three"
    );
}

#[test]
fn no_member_forgets_when_it_is_killed() {
    let (mut cluster, mut members) = start();
    assert_eq!(takes_at_all(&mut members, "k", "me"), [true; 3]);
    let leader = cluster.wait_for_leader(REPLY_WITHIN);
    let victim = leader as usize - 1;
    cluster.kill(leader);
    let mut left: Vec<usize> = (0..3).filter(|index| *index != victim).collect();
    for index in &left {
        assert!(!takes(&mut members[*index], "k", "you", TTL_MS));
        // Two of three are a majority: a Redlock client goes on.
        assert!(takes(&mut members[*index], "other", "you", TTL_MS));
    }
    cluster.restart(leader);
    cluster.wait_for_leader(RECOVERS_WITHIN);
    let back = cluster.node(leader);
    let caught_up =
        poll_until(RECOVERS_WITHIN, || ask!(back.redlock_client(), "GET", "k") == Value::bulk("me"));
    assert!(caught_up, "the node that came back answers");
    members[victim] = back.redlock_client();
    assert_eq!(
        takes_at_all(&mut members, "k", "me"),
        [false; 3],
        "a master that lost its data would say yes"
    );
    assert!(!takes(&mut members[victim], "other", "he", TTL_MS));
    left.push(victim);
    assert!(left.iter().all(|index| releases(&mut members[*index], "k", "me") == Value::Integer(1)));
    assert_eq!(takes_at_all(&mut members, "k", "you"), [true; 3]);
}

#[test]
fn a_majority_of_one_value_ends_with_its_ttl() {
    let (_cluster, mut members) = start();
    assert!(takes(&mut members[0], "k", "me", 300) && takes(&mut members[1], "k", "me", 300));
    assert!(!takes(&mut members[2], "k", "you", TTL_MS));
    assert!(poll_until(RECOVERS_WITHIN, || takes(&mut members[2], "k", "you", TTL_MS)));
}
